/* SPDX-License-Identifier: Apache-2.0
 *
 * solo.h - one attempt, one process: what oneshot.c and lines.c share.
 *
 * Invariants:
 *   (1) done is called exactly once, from the loop, when all handles of the run are closed;
 *   (2) what came of the attempt is decided once: the first reason to stop it is the one that
 *       counts, and when the command was reaped there is none any more.
 *
 * Thread: the loop's.
 */
#ifndef ST_EXECUTE_SOLO_H
#define ST_EXECUTE_SOLO_H

#include "execute/child.h"

/* First in the struct of the one that runs. */
struct st_solo {
    struct st_run run;
    struct st_child child;
    const struct st_job *job;
    st_ran_fn done;
    void *arg;
    bool unheard; /* st_exec_run failed: nobody is told */
    bool decided; /* ran says what came of it: how it ends does not matter any more */

    struct st_caps caps;
    int64_t n_output;    /* bytes printed */
    char *program, *cwd; /* for messages */
    struct st_runlog log;
    struct st_ran ran;
};

static inline struct st_solo *st_solo_of(const struct st_child *c)
{
    return (struct st_solo *)(void *)((char *)(uintptr_t)c - offsetof(struct st_solo, child));
}

/* false = no memory: st_solo_clear(). */
bool st_solo_init(struct st_solo *s, struct st_exec *x, const struct st_run_ops *run_ops,
                  const struct st_child_ops *child_ops, const struct st_command *cmd);
/* It is for this job. */
void st_solo_for(struct st_solo *s, const struct st_job *job, st_ran_fn done, void *arg);
/* On an error nothing was started and nobody is told; freed comes from the loop. */
stint_code st_solo_start(struct st_solo *s, const struct st_prepared *prep, enum st_stdin kind, struct st_slice input,
                         stint_error *err);
/* Nothing is started; what is in ran is told from the loop. */
void st_solo_forgo(struct st_solo *s);

/* May the caller say what came of it?  Once, and only while it runs. */
bool st_solo_decide(struct st_solo *s);
/* The job's timeout has passed. */
void st_solo_timed_out(struct st_solo *s);
/* So much was printed.  false: more than it may. */
bool st_solo_printed(struct st_solo *s, size_t n);

/* When it is over: has that been decided, or was it not the command's own doing? */
bool st_solo_over(struct st_solo *s);
/* Tells what came of it, and frees what is inside. */
void st_solo_tell(struct st_solo *s);
void st_solo_clear(struct st_solo *s);

/* As they are in the tables. */
void st_solo_stop(struct st_run *run, enum st_abort why, bool now);
bool st_solo_owns(const struct st_child *c, const char *env, size_t len);

#endif
