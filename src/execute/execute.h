/* SPDX-License-Identifier: Apache-2.0
 *
 * execute.h - run one attempt: what goes in, what comes out.
 *
 * Knows nothing of stores.  The caller hands over a job and how to run it, and gets one st_ran back,
 * always, on the loop's thread.
 */
#ifndef ST_EXECUTE_EXECUTE_H
#define ST_EXECUTE_EXECUTE_H

#include <uv.h>

#include "job/job.h"

/* Sizes from outside; every one has a default (see contract: 1 MiB, 10 MiB, 16 MiB, 1 MiB). */
struct st_limits {
    size_t payload, result, line, output;
};
extern const struct st_limits st_limits_default;

enum st_payload_by { ST_PAYLOAD_STDIN, ST_PAYLOAD_FILE, ST_PAYLOAD_ARGUMENT };
enum st_mode { ST_MODE_ONESHOT, ST_MODE_ONESHOT_LINES, ST_MODE_RESIDENT };

/* Limits on what a command may use; 0 = none.  Of each of its processes, unless it says otherwise:
 *
 *   cpu_us     CPU time, in whole seconds: SIGXCPU, a second later SIGKILL.  A resident child has
 *              it per request (SIGXCPU only).
 *   memory     of all its processes together where a cgroup can be made (memory.max); else what
 *              one may allocate (RLIMIT_DATA, not RLIMIT_AS: address space that is only set aside,
 *              as by Go, Java or thread stacks, does not count)
 *   files      open descriptors
 *   processes  all of them, threads too.  Needs a cgroup, or a worker that is not root: then by
 *              RLIMIT_NPROC, which counts what else the user has at the start.  Where it cannot be
 *              kept, the attempt fails (kind caps, for good).
 *   output     bytes on stdout and stderr together; of a resident child between two answers
 *
 * Kinds of failure: caps, and oom for memory.  A call that a cap makes fail inside the program is
 * the program's own affair. */
struct st_caps {
    int64_t cpu_us, memory, files, processes, output;
};

/* When a resident child is replaced by a fresh one; 0 = never. */
struct st_recycle {
    int64_t jobs, age_us, rss; /* rss in bytes */
};

/* How a type's command is run.  Borrowed during st_exec_run only: what is needed later is copied. */
struct st_command {
    char **argv; /* NULL-terminated; placeholders {id} {attempt} {payload} {payload_file} */
    enum st_mode mode;
    enum st_payload_by payload_by;
    int64_t grace_us;   /* between TERM and KILL */
    char *cwd;          /* NULL = the worker's */
    char **env;         /* "NAME=value", NULL-terminated, or NULL */
    char **inherit_env; /* names, NULL-terminated, or NULL */
    bool inherit_all;
    struct st_caps caps;

    /* ST_MODE_RESIDENT and ST_MODE_ONESHOT_LINES */
    char *name;         /* the type's pattern: resident children are shared by it */
    int64_t startup_us; /* until the ready line; 0 = 60 s */
    /* ST_MODE_RESIDENT */
    int processes;     /* children; 0 = 1 */
    int max_in_flight; /* requests per child; 0 = 1 */
    bool park;         /* on_child_crash: park */
    struct st_recycle recycle;
};

enum st_abort {
    ST_ABORT_NOT,
    ST_ABORT_TAKEN,     /* taken_by_another_worker */
    ST_ABORT_CANCELLED, /* cancelled */
    ST_ABORT_SHUTDOWN,  /* shutdown */
    ST_ABORT_LEASE,     /* lease_expired: by our own clock, before the store would say so */
    ST_ABORT_NOT_FOUND, /* not_found */
    ST_ABORT_ALREADY_COMPLETED,
    ST_ABORT_ERROR,   /* error */
    ST_ABORT_TIMEOUT, /* timeout: of an in-process handler, which cannot be killed */
};
const char *st_abort_name(enum st_abort a); /* "taken_by_another_worker" */

/* The job is not ours any more: nothing may be written about it. */
static inline bool st_abort_lost(enum st_abort a)
{
    return a == ST_ABORT_TAKEN || a == ST_ABORT_NOT_FOUND || a == ST_ABORT_ALREADY_COMPLETED;
}

enum st_advice {
    ST_BY_POLICY,
    ST_PERMANENT,
    ST_SNOOZE, /* not ok, but no failure: again after retry_after_us, the attempt given back */
};

/* What came of an attempt.  The pointers are owned by the struct: st_ran_clear(). */
struct st_ran {
    bool ok;
    bool settled;          /* its outcome was committed by the handler itself... */
    int state;             /* ...and this became of the job: enum st_state */
    enum st_abort aborted; /* we stopped it: how it ended does not count */
    char *result;          /* NULL = none (null) */
    size_t result_len;
    enum st_kind kind; /* when not ok */
    char *message;     /* UTF-8, at most 10,000 bytes */
    enum st_advice advice;
    int64_t retry_after_us; /* -1 = by the policy */
    int exit_code;          /* -1 = none */
    int signal;
    int64_t max_rss_kb;
    char *log;      /* the attempt's log file, or NULL */
    char *log_tail; /* last 16 KiB of stderr, or NULL */
    size_t log_tail_len;
};
void st_ran_clear(struct st_ran *ran);
#define ST_RAN_INIT                                                                                                    \
    {                                                                                                                  \
        .exit_code = -1, .retry_after_us = -1                                                                          \
    }
/* Sets kind and message (printf-style) of a failed attempt. */
void st_ran_fail(struct st_ran *ran, enum st_kind kind, const char *fmt, ...) ST_PRINTF(3, 4);

/* Takes over what is in *ran (the callee clears it).  Loop thread.  Never called from inside st_exec_run. */
typedef void (*st_ran_fn)(void *arg, struct st_ran *ran);

/* ---- commands ------------------------------------------------------------------- */

struct st_exec;
struct st_run;

struct st_exec_options {
    const char *self; /* program that answers to the hidden `minder` argument; NULL = /proc/self/exe */
    const char *worker_id;
    const char *logs_dir; /* per-attempt log files, or NULL */
    struct st_limits limits;
    /* A type's children cannot be kept up (breaker, parked), or can again.  From the loop; may be NULL. */
    void (*health)(void *arg, const char *name, bool healthy, const char *note);
    void *health_arg;
};

stint_code st_exec_new(uv_loop_t *loop, const struct st_exec_options *opt, struct st_exec **out, stint_error *err);
/* HUP: new directories and limits for runs that start from now on.  Crews that were given up get a
 * new chance; children of commands that nobody asks for any more go after a while. */
stint_code st_exec_configure(struct st_exec *x, const struct st_exec_options *opt, stint_error *err);

/* Starts the attempt.  The job must stay until done was called.  A program that cannot be started
 * is an attempt that failed, told through done like any other.  An error here (no memory, no descriptors, minder
 * gone) means nothing was started: release the job. */
stint_code st_exec_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                       void *arg, struct st_run **out, stint_error *err);

/* How many more attempts of this command can be taken right now: the free places of its resident children (those
 * not started yet count), 0 while they cannot be kept up; INT_MAX for one-shot commands. */
int st_exec_room(struct st_exec *x, const struct st_command *cmd);

/* What a running attempt last said of its progress: a JSON value, or NULL.  Stays until the loop
 * goes on.  Only children that work by lines can say it. */
const char *st_run_progress(struct st_run *run, size_t *len);

/* Stop it: close stdin, TERM to the tree, grace, KILL, sweep.  done is called when all is gone.
 * The first reason counts.
 *
 * A request of a resident child: if the child understands cancel lines, it gets one and has the
 * grace to answer.  Else, or after that, the whole child is stopped; its other requests come back
 * with ST_ABORT_SHUTDOWN: they are to be released, uncharged. */
void st_exec_abort(struct st_run *run, enum st_abort why);
/* KILL at once, whatever the grace; a resident child as a whole. */
void st_exec_kill(struct st_run *run, enum st_abort why);

/* The end is near: nothing more begins.  Attempts that no child has yet come back with
 * ST_ABORT_SHUTDOWN; children that have none, and those that get done with theirs, end. */
void st_exec_drain(struct st_exec *x);

/* No run may be going on; idle children are stopped.  closed is called from the loop when all handles are gone. */
void st_exec_close(struct st_exec *x, void (*closed)(void *arg), void *arg);

/* The minder's main(): `stint` calls it when started with the hidden argument. */
#define ST_MINDER_ARG "--minder"
int st_minder_main(int fd);

#endif
