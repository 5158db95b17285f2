/* SPDX-License-Identifier: Apache-2.0
 *
 * link.h - the worker's end of a minder.
 *
 * Thread: the loop's.
 */
#ifndef ST_EXECUTE_LINK_H
#define ST_EXECUTE_LINK_H

#include <stdbool.h>
#include <uv.h>

#include "base/err.h"
#include "execute/minder.h"

struct st_link;

struct st_link_calls {
    void (*heard)(void *arg, const struct st_minder_msg *msg);
    void (*lost)(void *arg, struct st_link *link); /* the minder is dead; close the link */
    void *arg;
};

/* Starts a minder: the program `self` (NULL = /proc/self/exe) with the argument --minder. */
stint_code st_link_start(uv_loop_t *loop, const char *self, struct st_link_calls calls, struct st_link **out,
                         stint_error *err);

/* Asks for a command; never waits.  The descriptors are taken over if all went well. */
stint_code st_link_spawn(struct st_link *l, uint64_t tag, unsigned flags, const int fds[ST_MD_FDS], stint_error *err);
void st_link_signal(struct st_link *l, uint64_t tag, int sig);

/* Hear what has come by now, be it the end. */
void st_link_check(struct st_link *l);

int st_link_pid(const struct st_link *l);

/* Hangs up: the minder kills what is left and exits.  closed is called from the loop when it has
 * been reaped; the link is freed then.  Neither heard nor lost is called any more. */
void st_link_close(struct st_link *l, void (*closed)(void *arg), void *arg);

/* Is this process a minder of ours that lives? */
bool st_link_is_minder(int pid);

#endif
