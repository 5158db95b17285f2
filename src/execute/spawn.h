/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.h - the few steps between a new process and its program.
 */
#ifndef ST_EXECUTE_SPAWN_H
#define ST_EXECUTE_SPAWN_H

#include <stdint.h>
#include <sys/types.h>

#include "execute/minder.h"

#define ST_SPAWN_LIMITS 4

struct st_spawn_limit {
    int resource; /* RLIMIT_* */
    uint64_t soft, hard;
};

struct st_spawn {
    char **paths; /* what to try, in this order; NULL-terminated */
    char **argv, **env;
    const char *cwd; /* NULL = the caller's */
    int fds[3];      /* stdin, stdout, stderr; each above 2 */
    int cgroup_fd;   /* of the group it is to be in; -1 = ours */
    struct st_spawn_limit limits[ST_SPAWN_LIMITS];
    int n_limits;
    /* answers */
    enum st_stage stage;
    int err;
};

/* Starts the program in its own process group, with default signals and nothing open but the
 * three descriptors; it dies with the calling thread.  The caller must be single-threaded.
 * Returns its pid once the program runs, or -1 with stage and err set and no process left. */
pid_t st_spawn(struct st_spawn *s);

/* The signals the caller has set to be ignored, 0-terminated; they are reset in the child. */
extern const int st_spawn_ignored[];

#endif
