/* SPDX-License-Identifier: Apache-2.0
 *
 * sweep.h - the minder's knowledge of who belongs to which run, and how it gets rid of them.
 */
#ifndef ST_EXECUTE_SWEEP_H
#define ST_EXECUTE_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "execute/cgroup.h"
#include "execute/proc.h"

/* A command and what it started. */
struct st_minded {
    uint64_t tag;
    pid_t pid;    /* the command; leader of its process group */
    bool ending;  /* it was reaped: what is left of the run is being killed */
    bool killing; /* KILL was asked for */
    int64_t reaped_us;
    char *env[2];             /* "STINT_JOB_ID=...", "STINT_FENCE=...": how orphans are told apart */
    char *unlink;             /* NULL = no file to remove */
    struct st_cgroup *cgroup; /* NULL = it has none of its own */
};

/* A process that was not started by the minder and has become its child because its parent died.
 * It cannot vanish before the minder reaps it, so the pid alone names it. */
struct st_orphan {
    pid_t pid;
    uint64_t owner;    /* tag of its run; 0: its environment and group name none that was known */
    uint64_t seen_max; /* no run above this tag was started when it was first seen */
};

struct st_sweep {
    struct st_minded *runs;
    size_t n_runs, cap_runs;
    struct st_orphan *orphans;
    size_t n_orphans, cap_orphans;
    uint64_t max_tag; /* the newest run's */
    struct st_procs procs;
    int children_fd;
};

void st_sweep_init(struct st_sweep *s);

struct st_minded *st_sweep_add(struct st_sweep *s, uint64_t tag); /* NULL = no memory */
struct st_minded *st_sweep_by_tag(struct st_sweep *s, uint64_t tag);
struct st_minded *st_sweep_by_pid(struct st_sweep *s, pid_t pid);
void st_sweep_drop(struct st_sweep *s, struct st_minded *run);

/* An orphan was reaped. */
void st_sweep_forget(struct st_sweep *s, pid_t pid);

/* Learn which orphans there are.  true: every child of ours is known.  false: some ended while we
 * looked, and may have left others, or we could not look; reap and look again.
 * stop: stop each new one until it is known whose it is, so that it cannot run away by forking. */
bool st_sweep_look(struct st_sweep *s, bool stop);

/* Is anything left that belongs to this run, which has ended? */
bool st_sweep_left(const struct st_sweep *s, const struct st_minded *run);

/* Kill the trees of all orphans whose time has come and of runs marked killing.  false: there was
 * nothing to kill. */
bool st_sweep_kill(struct st_sweep *s);
/* Kill everything below the calling process that can be seen now. */
void st_sweep_kill_all(struct st_sweep *s);

/* A signal for the group of a run and everything else that belongs to it. */
void st_sweep_signal(struct st_sweep *s, const struct st_minded *run, int sig);

#endif
