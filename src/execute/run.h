/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - what the files of the executor share: the executor, its runs and its children.
 *
 *     st_exec --- children (child.c), each for one attempt or, resident, for many
 *        `------- crews (resident.c): the resident children of one command
 *
 * Thread: the loop's.
 */
#ifndef ST_EXECUTE_RUN_H
#define ST_EXECUTE_RUN_H

#include "execute/execute.h"
#include "execute/link.h"
#include "execute/proc.h"
#include "execute/supervise.h"
#include "execute/talk.h"

#define ST_READ_SIZE 65536

struct st_child;
struct st_crew;

/* An attempt, first in the struct of whoever runs it. */
struct st_run_ops {
    void (*stop)(struct st_run *run, enum st_abort why, bool now);
    const char *(*progress)(const struct st_run *run, size_t *len); /* NULL = there is none */
};
struct st_run {
    const struct st_run_ops *ops;
};

struct st_exec {
    uv_loop_t *loop;
    char *self, *logs_dir;
    struct st_limits limits;
    struct st_link *link; /* NULL until the first run, and after the minder died */
    uint64_t last_tag;
    struct st_child *children; /* all that are not over */
    size_t n_children;         /* not freed */
    size_t n_runs;             /* whose done was not called yet */
    char *read_buf;            /* ST_READ_SIZE; filled and emptied within one callback */

    /* resident children */
    struct st_crew *crews;
    unsigned generation; /* of the configuration */
    int64_t stale_us;    /* how long after a change of it children wait to be asked for */
    struct st_supervise_conf supervise;
    void (*health)(void *arg, const char *name, bool healthy, const char *note);
    void *health_arg;
    struct st_talk_time time;
    int64_t mono_us, real_us;  /* while many requests are dealt with at once; 0 = look */
    uv_prepare_t before_sleep; /* runs while there is something in: */
    struct st_child *dirty;    /* those with bytes to be sent */
    struct st_request *ended;  /* attempts that are over and not told yet, oldest first */
    struct st_request **ended_last;

    bool draining;             /* nothing more begins */
    struct st_lost *lost;      /* minders that died and whose runs are being cleaned up */
    int open_handles;          /* links and crews that will still call back */
    void (*closed)(void *arg); /* set by st_exec_close */
    void *closed_arg;
};

/* The link to a minder, started if there is none. */
stint_code st_exec_link(struct st_exec *x, struct st_link **out, stint_error *err);

/* The clocks, looked at once while many requests are dealt with. */
int64_t st_exec_mono_us(const struct st_exec *x);
int64_t st_exec_real_us(const struct st_exec *x);

/* Flush it before the loop sleeps; or not any more. */
void st_exec_dirty(struct st_child *c);
void st_exec_clean(struct st_child *c);
/* Have what is in `ended` told before the loop sleeps. */
void st_exec_wake(struct st_exec *x);
/* Something is closed: it may be the last that st_exec_close() waits for. */
void st_exec_check_closed(struct st_exec *x);

/* ---- the ways to run, as st_exec_run() ------------------------------------------- */

stint_code st_oneshot_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                          void *arg, struct st_run **out, stint_error *err);
stint_code st_lines_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                        void *arg, struct st_run **out, stint_error *err);
stint_code st_resident_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                           void *arg, struct st_run **out, stint_error *err);

int st_resident_room(struct st_exec *x, const struct st_command *cmd);
void st_resident_configured(struct st_exec *x); /* the configuration may have changed */
void st_resident_tell_ended(struct st_exec *x); /* empties x->ended */
void st_resident_drain(struct st_exec *x);      /* gives back what waits */
void st_resident_close(struct st_exec *x);      /* stops every child */
void st_resident_free(struct st_exec *x);       /* when all children are freed */

#endif
