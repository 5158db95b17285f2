/* SPDX-License-Identifier: Apache-2.0
 *
 * cgroup.h - a control group of its own for a run that has a cap on processes or memory.
 *
 * Below the group we are in ourselves, so that nothing leaves the limits that were set for us:
 *
 *     v2    needs write access there; a group can only hand controllers down if it holds no
 *           processes, so that worker and minder move to a leaf if they are alone in it
 *     v1    the pids hierarchy
 *
 * Thread: the minder's only one.
 */
#ifndef ST_EXECUTE_CGROUP_H
#define ST_EXECUTE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* Where groups can be made; looked for when the first is wanted. */
struct st_cgroups {
    bool looked;
    char *dir;         /* NULL = nowhere */
    bool pids, memory; /* what can be capped there */
    bool v2;
};

struct st_cgroup {
    char *dir;
    int procs_fd;      /* who writes "0" to it is in */
    bool pids, memory; /* what it caps */
    bool v2;
};

/* A group with these caps (0 = none) as far as they can be kept; NULL if none can. */
struct st_cgroup *st_cgroup_make(struct st_cgroups *g, uint64_t tag, uint64_t processes, uint64_t memory);
void st_cgroups_clear(struct st_cgroups *g);

/* No process may be started in it from now on, and all that are in it are killed. */
void st_cgroup_kill(const struct st_cgroup *cg);
bool st_cgroup_empty(const struct st_cgroup *cg);
/* Has the kernel killed one of them for its memory? */
bool st_cgroup_oom(const struct st_cgroup *cg);
/* Removes and frees it; a group that is not empty stays behind.  NULL is fine. */
void st_cgroup_remove(struct st_cgroup *cg);

#endif
