/* SPDX-License-Identifier: Apache-2.0
 *
 * oneshot.c - one attempt, one process: the payload goes in, stdout is the result.
 *
 * Invariants:
 *   (1) done is called exactly once, from the loop, when all handles of the run are closed;
 *   (2) the first reason to stop a run is the one that counts; once the command was reaped there
 *       is none any more.
 *
 * Thread: the loop's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/caps.h"
#include "execute/child.h"
#include "execute/result.h"

enum why { WHY_NONE, WHY_FAILED, WHY_ABORT, WHY_TIMEOUT, WHY_TOO_LARGE, WHY_OUTPUT };

struct oneshot {
    struct st_run run;
    struct st_child child;
    const struct st_job *job;
    st_ran_fn done;
    void *arg;
    enum why why;
    bool unheard; /* st_exec_run failed: nobody is told */

    size_t result_max;
    struct st_caps caps;
    int64_t n_output;    /* bytes printed */
    char *program, *cwd; /* for messages */
    char *payload_file;

    struct st_buf stdout_buf;
    struct st_runlog log;
    struct st_ran ran;
};

static struct oneshot *of_child(const struct st_child *c)
{
    return (struct oneshot *)(void *)((char *)(uintptr_t)c - offsetof(struct oneshot, child));
}

/* ---- the end --------------------------------------------------------------------- */

static void oneshot_free(struct oneshot *o)
{
    st_buf_clear(&o->stdout_buf);
    st_runlog_clear(&o->log);
    st_ran_clear(&o->ran);
    free(o->program);
    free(o->cwd);
    free(o->payload_file);
    free(o);
}

static void on_freed(struct st_child *c)
{
    struct oneshot *o = of_child(c);
    struct st_ran ran = o->ran;

    if (!o->unheard) {
        o->ran = (struct st_ran)ST_RAN_INIT;
        c->x->n_runs--;
        o->done(o->arg, &ran);
    }
    oneshot_free(o);
}

static void fill_stopped(struct oneshot *o)
{
    struct st_ran *ran = &o->ran;
    char text[ST_DURATION_TEXT];

    switch (o->why) {
    case WHY_ABORT:
        st_ran_fail(ran, ran->aborted == ST_ABORT_CANCELLED ? ST_KIND_CANCELLED : ST_KIND_KILLED,
                    "stopped: %s", st_abort_name(ran->aborted));
        break;
    case WHY_TIMEOUT:
        st_ran_fail(ran, ST_KIND_TIMEOUT, "timed out after %s",
                    st_duration_format(o->job->policy.timeout_us, text));
        break;
    case WHY_TOO_LARGE:
        st_ran_fail(ran, ST_KIND_RESULT_TOO_LARGE, "the result is larger than %zu bytes",
                    o->result_max);
        break;
    case WHY_OUTPUT:
        st_caps_fail_output(&o->caps, ran);
        break;
    case WHY_NONE:
    case WHY_FAILED:
        break;
    }
}

static void on_over(struct st_child *c)
{
    struct oneshot *o = of_child(c);

    if (o->payload_file)
        unlink(o->payload_file); /* the minder's task, but it may have died or refused */
    if (c->flags & ST_MD_LEFT)
        st_log(ST_LOG_WARN, "run.left", ST_F("job", o->job->id),
               ST_F("error", "a process of this job could not be killed"));
    st_runlog_finish(&o->log, &o->ran);
    st_child_fill(c, &o->ran);
    if (o->why != WHY_NONE)
        fill_stopped(o);
    else if (c->stage != ST_STAGE_OK)
        st_child_refused(c, o->program, o->cwd, &o->ran);
    else if (c->minder_died)
        st_ran_fail(&o->ran, ST_KIND_CHILD_CRASHED, "the process that minds the commands died");
    else if (!st_caps_blame(&o->caps, c, &o->ran))
        st_result_fill(&o->ran, c->status, &o->stdout_buf);
}

/* ---- stopping -------------------------------------------------------------------- */

static bool give_reason(struct oneshot *o, enum why why)
{
    const struct st_child *c = &o->child;

    if (o->why != WHY_NONE || c->reaped || c->minder_died || c->state >= ST_CHILD_DRAINING)
        return false;
    o->why = why;
    return true;
}

static void on_stop(struct st_run *run, enum st_abort why, bool now)
{
    struct oneshot *o = (struct oneshot *)(void *)run;

    if (give_reason(o, WHY_ABORT))
        o->ran.aborted = why;
    if (now)
        st_child_kill(&o->child);
    else
        st_child_stop(&o->child);
}

static void on_late(struct st_child *c)
{
    give_reason(of_child(c), WHY_TIMEOUT);
    st_child_stop(c);
}

/* ---- what it prints -------------------------------------------------------------- */

/* Too much; what comes now is drained, so that nobody is stuck in a write. */
static void too_much(struct oneshot *o, enum why why)
{
    if (!give_reason(o, why) && o->why == WHY_NONE)
        o->why = why; /* it came after the end: still no result */
    st_buf_clear(&o->stdout_buf);
    st_child_kill(&o->child);
}

static void stdout_put(struct oneshot *o, const char *p, size_t n)
{
    if (o->why == WHY_TOO_LARGE || o->why == WHY_OUTPUT)
        return;
    st_buf_put(&o->stdout_buf, p, n);
    if (o->stdout_buf.failed)
        too_much(o, WHY_TOO_LARGE);
}

static void on_read(struct st_child *c, enum st_stream from, const char *p, size_t n)
{
    struct oneshot *o = of_child(c);

    st_runlog_put(&o->log, from, p, n);
    if (from == ST_STDOUT)
        stdout_put(o, p, n);
    o->n_output += (int64_t)n;
    if (o->caps.output > 0 && o->n_output > o->caps.output)
        too_much(o, WHY_OUTPUT);
}

static bool on_owns(const struct st_child *c, const char *env, size_t len)
{
    return st_env_is_job(env, len, of_child(c)->job);
}

/* ---- starting -------------------------------------------------------------------- */

static const struct st_child_ops child_ops = {
    .read = on_read, .late = on_late, .over = on_over, .freed = on_freed, .owns = on_owns};
static const struct st_run_ops run_ops = {.stop = on_stop};

static struct oneshot *oneshot_new(struct st_exec *x, const struct st_command *cmd,
                                   const struct st_job *job, st_ran_fn done, void *arg)
{
    struct oneshot *o = calloc(1, sizeof(*o));

    if (!o)
        return NULL;
    *o = (struct oneshot){.run.ops = &run_ops,
                          .job = job,
                          .done = done,
                          .arg = arg,
                          .result_max = x->limits.result,
                          .caps = cmd->caps,
                          .log = {.fd = -1},
                          .ran = ST_RAN_INIT};
    st_buf_init(&o->stdout_buf, x->limits.result);
    o->program = strdup(cmd->argv && cmd->argv[0] ? cmd->argv[0] : "");
    o->cwd = cmd->cwd ? strdup(cmd->cwd) : NULL;
    if (!o->program || (cmd->cwd && !o->cwd)) {
        oneshot_free(o);
        return NULL;
    }
    st_child_init(&o->child, x, &child_ops, cmd->grace_us);
    x->n_runs++;
    return o;
}

stint_code st_oneshot_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job,
                          st_ran_fn done, void *arg, struct st_run **out, stint_error *err)
{
    int64_t timeout_us = job->policy.timeout_us;
    struct oneshot *o = oneshot_new(x, cmd, job, done, arg);
    struct st_prepared prep;
    stint_code rc;

    if (!o)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    if (!st_command_prepare(cmd, job, timeout_us > 0 ? st_clock_real_us() + timeout_us : 0, &prep,
                            &o->ran)) {
        o->why = WHY_FAILED;
        st_child_forgo(&o->child);
        *out = &o->run;
        return STINT_OK;
    }
    rc = st_child_start(&o->child, &prep.body, prep.by_stdin ? ST_STDIN_ONCE : ST_STDIN_NONE,
                        job->payload, err);
    if (rc != STINT_OK) {
        st_prepared_clear(&prep);
        o->unheard = true;
        o->why = WHY_FAILED;
        x->n_runs--;
        st_child_discard(&o->child);
        return rc;
    }
    st_runlog_open(&o->log, x->logs_dir, job, x->limits.output);
    o->payload_file = prep.payload_file;
    prep.payload_file = NULL;
    st_prepared_clear(&prep);
    if (timeout_us > 0)
        st_child_after(&o->child, timeout_us);
    *out = &o->run;
    return STINT_OK;
}
