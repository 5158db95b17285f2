/* SPDX-License-Identifier: Apache-2.0
 *
 * proc.h - looking at processes through /proc.
 *
 * A scan is a picture that is out of date when it is finished: callers repeat it until it shows
 * what they want.
 */
#ifndef ST_EXECUTE_PROC_H
#define ST_EXECUTE_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct st_proc {
    pid_t pid, ppid, pgrp, session;
    uint64_t start; /* clock ticks since boot: with the pid, a name for good */
    pid_t top;      /* see st_procs_tops() */
    char state;     /* R S D T t Z X ... */
};

struct st_procs {
    struct st_proc *p; /* by ascending pid */
    size_t n, cap;
};

/* Every process there is.  false: /proc cannot be read or no memory.  The array is kept from
 * scan to scan. */
bool st_procs_scan(struct st_procs *ps);
void st_procs_clear(struct st_procs *ps);
struct st_proc *st_procs_find(const struct st_procs *ps, pid_t pid);

/* For each process below `root`: the child of root that it descends from (or is), in ->top;
 * 0 for all others. */
void st_procs_tops(struct st_procs *ps, pid_t root);

/* One process.  false if it is gone. */
bool st_proc_read(pid_t pid, struct st_proc *out);
static inline bool st_proc_dead(const struct st_proc *p)
{
    return p->state == 'Z' || p->state == 'X';
}

/* The environment a process was started with, NUL after each text; free() it.  NULL with *len 0
 * if it cannot be read. */
char *st_proc_env(pid_t pid, size_t *len);
/* Is this "NAME=value" in it? */
bool st_env_has(const char *env, size_t len, const char *text);

/* Send sig to exactly this process: one that has its number by now is left alone. */
void st_proc_signal(const struct st_proc *p, int sig);

/* The children of the calling process' only thread, into pids (at most max); their number, or -1
 * where the kernel cannot tell.  *fd is kept between calls; start with -1. */
int st_proc_children(int *fd, pid_t *pids, int max);

/* How many tasks (processes and their threads) does our user have?  false: that cannot be read. */
bool st_proc_user_tasks(uint64_t *n);
/* Does RLIMIT_NPROC bind us and our children? */
bool st_nproc_binds(void);

#endif
