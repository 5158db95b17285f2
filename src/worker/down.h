/* SPDX-License-Identifier: Apache-2.0
 *
 * down.h - the types that a worker cannot run right now, in the note of its row.
 *
 *     cannot run resize, mail.* - resize: 5 crashes in 10m; mail.*: quarantined
 *
 * Written for people, and read again by `stint explain`: names of types have neither blanks nor
 * commas.  Where not all fit, the last one is "...".
 */
#ifndef ST_WORKER_DOWN_H
#define ST_WORKER_DOWN_H

#include <stdbool.h>

#include "base/str.h"

struct st_down {
    const char *pattern, *why;
};

/* Writes the note, cut to fit; n > 0. */
void st_down_write(const struct st_down *list, size_t n, char *out, size_t size);

/* Does the note name a pattern that this type matches?  How specific the best match is, as
 * st_pattern_match(), INT32_MAX if it does not say (no names, or not all of them); 0 = none. */
int st_down_match(const char *note, struct st_slice type);

/* Is it such a note? */
bool st_down_names(const char *note);

#endif
