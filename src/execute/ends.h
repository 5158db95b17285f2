/* SPDX-License-Identifier: Apache-2.0
 *
 * ends.h - the descriptors of one start: what the command gets and what we keep.
 */
#ifndef ST_EXECUTE_ENDS_H
#define ST_EXECUTE_ENDS_H

#include "base/buf.h"
#include "execute/minder.h"

/* -1 where there is none.  Who takes one over puts -1 in its place. */
struct st_ends {
    int child[ST_MD_FDS]; /* body, stdin, stdout, stderr */
    int own[3];           /* our ends of the last three */
};
#define ST_ENDS_INIT                                                                                                   \
    {                                                                                                                  \
        {-1, -1, -1, -1},                                                                                              \
        {                                                                                                              \
            -1, -1, -1                                                                                                 \
        }                                                                                                              \
    }

/* by_stdin: stdin is a pipe; else it is empty. */
stint_code st_ends_open(struct st_ends *e, const struct st_buf *body, bool by_stdin, stint_error *err);
void st_ends_close(struct st_ends *e); /* all that is left; copes with a half-opened one */

#endif
