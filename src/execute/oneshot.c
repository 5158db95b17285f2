/* SPDX-License-Identifier: Apache-2.0
 *
 * oneshot.c - one run of a command, from the request to the minder to the one call of done.
 *
 *     RUNNING --stop--> STOPPING --grace--> KILLING
 *        |  `-------------|------kill--------^ |
 *        +----------------+--------------------+--gone--> DRAINING --both pipes at EOF--> DONE
 *
 * A run is over when the command was reaped, nothing that it started is left (the minder says
 * GONE), and both pipes have reached their end.  Somebody outside the tree may hold a pipe: then
 * we stop reading a while after GONE.
 *
 * Invariants:
 *   (1) done is called exactly once, from the loop, when all handles of the run are closed;
 *   (2) the first reason to stop a run is the one that counts; once the command was reaped there
 *       is none any more.
 *
 * Thread: the loop's.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/command.h"
#include "execute/ends.h"
#include "execute/result.h"
#include "execute/run.h"
#include "execute/runlog.h"

#define EOF_EXTRA_US ST_SEC

enum run_state { RUN_RUNNING, RUN_STOPPING, RUN_KILLING, RUN_DRAINING, RUN_DONE, RUN_N };

enum why { WHY_NONE, WHY_FAILED, WHY_ABORT, WHY_TIMEOUT, WHY_TOO_LARGE, WHY_MINDER };

struct st_run {
    struct st_exec *x;
    struct st_run *next, **prev;
    const struct st_job *job;
    st_ran_fn done;
    void *arg;
    struct st_link *link;       /* NULL: its minder died */
    const struct st_lost *lost; /* then: who cleans up */
    uint64_t tag;
    enum run_state state;
    enum why why;
    bool unheard; /* st_exec_run failed: nobody is told */

    bool reaped;
    int status;
    int64_t grace_us, deadline_us; /* deadline: of the state, by CLOCK_MONOTONIC */
    size_t result_max;
    char *program, *cwd; /* for messages */
    char *payload_file;

    uv_pipe_t in, out, err;
    uv_timer_t timer;
    uv_write_t write;
    int open_handles;
    bool in_open, out_open, err_open; /* initialised and not closed */

    struct st_buf stdout_buf;
    struct st_runlog log;
    struct st_ran ran;
};

static void run_check(struct st_run *run);
static void on_timer(uv_timer_t *timer);

/* The one place a run changes state. */
static void run_set(struct st_run *run, enum run_state to)
{
    static const bool legal[RUN_N][RUN_N] = {
        [RUN_RUNNING] = {[RUN_STOPPING] = true, [RUN_KILLING] = true, [RUN_DRAINING] = true},
        [RUN_STOPPING] = {[RUN_KILLING] = true, [RUN_DRAINING] = true},
        [RUN_KILLING] = {[RUN_DRAINING] = true},
        [RUN_DRAINING] = {[RUN_DONE] = true},
    };

    assert(legal[run->state][to]);
    run->state = to;
}

/* ---- handles --------------------------------------------------------------------- */

static void run_free(struct st_run *run)
{
    st_buf_clear(&run->stdout_buf);
    st_runlog_clear(&run->log);
    st_ran_clear(&run->ran);
    free(run->program);
    free(run->cwd);
    free(run->payload_file);
    free(run);
}

static void on_closed(uv_handle_t *handle)
{
    struct st_run *run = handle->data;
    struct st_ran ran = run->ran;

    if (--run->open_handles)
        return;
    if (!run->unheard) {
        run->ran = (struct st_ran)ST_RAN_INIT;
        run->done(run->arg, &ran);
    }
    run_free(run);
}

static void pipe_close(uv_pipe_t *pipe, bool *open)
{
    if (*open)
        uv_close((uv_handle_t *)pipe, on_closed);
    *open = false;
}

static void timer_set(struct st_run *run, int64_t after_us)
{
    run->deadline_us = st_clock_mono_us() + after_us;
    uv_timer_start(&run->timer, on_timer, (uint64_t)((after_us + ST_MS - 1) / ST_MS), 0);
}

/* ---- the end --------------------------------------------------------------------- */

static void fill_stopped(struct st_run *run)
{
    struct st_ran *ran = &run->ran;
    char text[ST_DURATION_TEXT];

    if (run->reaped && WIFSIGNALED(run->status))
        ran->signal = WTERMSIG(run->status);
    else if (run->reaped)
        ran->exit_code = WEXITSTATUS(run->status);
    switch (run->why) {
    case WHY_ABORT:
        st_ran_fail(ran, ran->aborted == ST_ABORT_CANCELLED ? ST_KIND_CANCELLED : ST_KIND_KILLED,
                    "stopped: %s", st_abort_name(ran->aborted));
        break;
    case WHY_TIMEOUT:
        st_ran_fail(ran, ST_KIND_TIMEOUT, "timed out after %s",
                    st_duration_format(run->job->policy.timeout_us, text));
        break;
    case WHY_TOO_LARGE:
        st_ran_fail(ran, ST_KIND_RESULT_TOO_LARGE, "the result is larger than %zu bytes",
                    run->result_max);
        break;
    case WHY_MINDER:
        st_ran_fail(ran, ST_KIND_CHILD_CRASHED, "the process that minds the commands died");
        break;
    case WHY_NONE:
    case WHY_FAILED:
        break;
    }
}

static void run_done(struct st_run *run)
{
    run_set(run, RUN_DONE);
    *run->prev = run->next;
    if (run->next)
        run->next->prev = run->prev;
    if (run->payload_file)
        unlink(run->payload_file); /* the minder's task, but it may have died or refused */
    st_runlog_finish(&run->log, &run->ran);
    if (run->why == WHY_NONE)
        st_result_fill(&run->ran, run->status, &run->stdout_buf);
    else
        fill_stopped(run);
    pipe_close(&run->in, &run->in_open);
    pipe_close(&run->out, &run->out_open);
    pipe_close(&run->err, &run->err_open);
    uv_close((uv_handle_t *)&run->timer, on_closed);
}

static void run_check(struct st_run *run)
{
    if (run->state == RUN_DRAINING && !run->out_open && !run->err_open)
        run_done(run);
}

/* Nothing of it is left: what is in the pipes is all there is. */
static void run_gone(struct st_run *run)
{
    if (run->state >= RUN_DRAINING)
        return;
    run_set(run, RUN_DRAINING);
    pipe_close(&run->in, &run->in_open);
    timer_set(run, run->grace_us + EOF_EXTRA_US);
    run_check(run);
}

/* ---- stopping -------------------------------------------------------------------- */

static void run_kill(struct st_run *run)
{
    if (run->state >= RUN_KILLING)
        return;
    run_set(run, RUN_KILLING);
    uv_timer_stop(&run->timer);
    pipe_close(&run->in, &run->in_open);
    if (run->link)
        st_link_signal(run->link, run->tag, SIGKILL);
}

static void run_stop(struct st_run *run)
{
    if (run->state >= RUN_STOPPING)
        return;
    if (run->grace_us <= 0) {
        run_kill(run);
        return;
    }
    run_set(run, RUN_STOPPING);
    pipe_close(&run->in, &run->in_open);
    if (run->link)
        st_link_signal(run->link, run->tag, SIGTERM);
    timer_set(run, run->grace_us);
}

static bool give_reason(struct st_run *run, enum why why)
{
    if (run->why != WHY_NONE || run->reaped || run->state >= RUN_DRAINING)
        return false;
    run->why = why;
    return true;
}

void st_exec_abort(struct st_run *run, enum st_abort why)
{
    if (give_reason(run, WHY_ABORT))
        run->ran.aborted = why;
    run_stop(run);
}

void st_exec_kill(struct st_run *run, enum st_abort why)
{
    if (give_reason(run, WHY_ABORT))
        run->ran.aborted = why;
    run_kill(run);
}

static void on_timer(uv_timer_t *timer)
{
    struct st_run *run = timer->data;
    int64_t left = run->deadline_us - st_clock_mono_us();

    if (left > 0) { /* the loop's clock runs ahead of ours by up to an iteration */
        uv_timer_start(timer, on_timer, (uint64_t)((left + ST_MS - 1) / ST_MS), 0);
        return;
    }
    switch (run->state) {
    case RUN_RUNNING:
        give_reason(run, WHY_TIMEOUT);
        run_stop(run);
        break;
    case RUN_STOPPING:
        run_kill(run);
        break;
    case RUN_DRAINING:
        pipe_close(&run->out, &run->out_open);
        pipe_close(&run->err, &run->err_open);
        run_check(run);
        break;
    default:
        break;
    }
}

/* ---- pipes ----------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct st_run *run = handle->data;

    (void)suggested;
    *buf = uv_buf_init(run->x->read_buf, ST_READ_SIZE);
}

static void stdout_put(struct st_run *run, const char *p, size_t n)
{
    if (run->why == WHY_TOO_LARGE)
        return; /* drained, so that nobody is stuck in a write */
    st_buf_put(&run->stdout_buf, p, n);
    if (!run->stdout_buf.failed)
        return;
    if (!give_reason(run, WHY_TOO_LARGE) && run->why == WHY_NONE)
        run->why = WHY_TOO_LARGE; /* it came after the end: still no result */
    st_buf_clear(&run->stdout_buf);
    run_kill(run);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct st_run *run = stream->data;
    bool is_out = stream == (uv_stream_t *)&run->out;

    if (n > 0) {
        st_runlog_put(&run->log, is_out ? ST_STDOUT : ST_STDERR, buf->base, (size_t)n);
        if (is_out)
            stdout_put(run, buf->base, (size_t)n);
    } else if (n < 0) {
        pipe_close((uv_pipe_t *)stream, is_out ? &run->out_open : &run->err_open);
        run_check(run);
    }
}

static void on_written(uv_write_t *req, int status)
{
    struct st_run *run = req->data;

    (void)status; /* a command that does not want its input has its reasons */
    pipe_close(&run->in, &run->in_open);
}

/* ---- what the minder says -------------------------------------------------------- */

static void run_not_started(struct st_run *run, enum st_stage stage, int e)
{
    struct st_ran *ran = &run->ran;

    run->why = WHY_FAILED;
    if (stage == ST_STAGE_EXEC && e == E2BIG) {
        st_ran_fail(ran, ST_KIND_PERMANENT,
                    "the arguments and environment of %s are too long; "
                    "use payload: stdin or payload: file for this type",
                    run->program);
        ran->advice = ST_PERMANENT;
    } else if (stage == ST_STAGE_EXEC) {
        st_ran_fail(ran, ST_KIND_NO_HANDLER, "cannot run %s: %s", run->program, strerror(e));
    } else if (stage == ST_STAGE_CWD) {
        st_ran_fail(ran, ST_KIND_NO_HANDLER, "cannot run %s in %s: %s", run->program,
                    run->cwd ? run->cwd : ".", strerror(e));
    } else {
        st_ran_fail(ran, ST_KIND_INTERNAL, "no process could be made for %s: %s", run->program,
                    strerror(e));
    }
    run_gone(run);
}

void st_run_heard(struct st_run *run, const struct st_minder_msg *msg)
{
    switch (msg->op) {
    case ST_MD_FAILED:
        run_not_started(run, (enum st_stage)msg->stage, msg->err);
        break;
    case ST_MD_EXITED:
        run->reaped = true;
        uv_timer_stop(&run->timer);
        run->status = msg->status;
        run->ran.max_rss_kb = msg->max_rss_kb;
        if (msg->flags & ST_MD_AND_GONE)
            run_gone(run);
        break;
    case ST_MD_GONE:
        if (msg->flags & ST_MD_LEFT)
            st_log(ST_LOG_WARN, "run.left", ST_F("job", run->job->id),
                   ST_F("error", "a process of this job could not be killed"));
        run_gone(run);
        break;
    default:
        break;
    }
}

struct st_run *st_run_next(const struct st_run *run)
{
    return run->next;
}

uint64_t st_run_tag(const struct st_run *run)
{
    return run->tag;
}

const struct st_link *st_run_link(const struct st_run *run)
{
    return run->link;
}

const struct st_lost *st_run_lost(const struct st_run *run)
{
    return run->lost;
}

bool st_run_owns(const struct st_run *run, pid_t pid)
{
    char id[sizeof("STINT_JOB_ID=") + ST_ID_MAX], fence[sizeof("STINT_FENCE=") + 24], *env;
    size_t len;
    bool ours;

    snprintf(id, sizeof(id), "STINT_JOB_ID=%s", run->job->id);
    snprintf(fence, sizeof(fence), "STINT_FENCE=%lld", (long long)run->job->fence);
    env = st_proc_env(pid, &len);
    ours = st_env_has(env, len, id) && st_env_has(env, len, fence);
    free(env);
    return ours;
}

void st_run_minder_died(struct st_run *run, const struct st_lost *lost)
{
    run->link = NULL;
    run->lost = lost;
    give_reason(run, WHY_MINDER);
    pipe_close(&run->in, &run->in_open);
    uv_timer_stop(&run->timer);
}

void st_run_swept(struct st_run *run)
{
    run_gone(run);
}

/* ---- starting -------------------------------------------------------------------- */

static void pipe_init(struct st_run *run, uv_pipe_t *pipe, bool *open)
{
    uv_pipe_init(run->x->loop, pipe, 0);
    pipe->data = run;
    run->open_handles++;
    *open = true;
}

static int pipe_read(struct st_run *run, uv_pipe_t *pipe, bool *open, int *fd)
{
    int rc;

    pipe_init(run, pipe, open);
    rc = uv_pipe_open(pipe, *fd);
    if (!rc) {
        *fd = -1;
        rc = uv_read_start((uv_stream_t *)pipe, on_alloc, on_read);
    }
    return rc;
}

/* Most payloads fit into the pipe at once; the rest is written as the command reads. */
static int payload_write(struct st_run *run, int *fd)
{
    struct st_slice left = run->job->payload;
    ssize_t n;
    uv_buf_t buf;
    int rc;

    if (*fd < 0)
        return 0;
    if (fcntl(*fd, F_SETFL, O_NONBLOCK))
        return -errno;
    while (left.len && (n = write(*fd, left.p, left.len)) > 0) {
        left.p += n;
        left.len -= (size_t)n;
    }
    if (!left.len) {
        close(*fd);
        *fd = -1;
        return 0;
    }
    pipe_init(run, &run->in, &run->in_open);
    if ((rc = uv_pipe_open(&run->in, *fd)))
        return rc;
    *fd = -1;
    run->write.data = run;
    buf = uv_buf_init((char *)(uintptr_t)left.p, (unsigned)left.len);
    return uv_write(&run->write, (uv_stream_t *)&run->in, &buf, 1, on_written);
}

static stint_code handles_open(struct st_run *run, struct st_ends *e, stint_error *err)
{
    int rc = payload_write(run, &e->own[0]);

    if (!rc)
        rc = pipe_read(run, &run->out, &run->out_open, &e->own[1]);
    if (!rc)
        rc = pipe_read(run, &run->err, &run->err_open, &e->own[2]);
    if (rc)
        return st_fail(err, STINT_EAGAIN, "cannot open pipes of a command: %s", uv_strerror(rc));
    return STINT_OK;
}

/* A minder that died a moment ago is only noticed when it is written to: then try once more. */
static stint_code ask(struct st_run *run, struct st_ends *e, stint_error *err)
{
    struct st_link *link;
    stint_code rc = STINT_OK;

    for (int tries = 0; tries < 2; tries++) {
        rc = st_exec_link(run->x, &link, err);
        if (rc != STINT_OK)
            return rc;
        rc = st_link_spawn(link, run->tag, e->child, err);
        if (rc == STINT_OK) {
            run->link = link;
            for (int i = 0; i < ST_MD_FDS; i++)
                e->child[i] = -1;
            return rc;
        }
        st_link_check(link);
    }
    return rc;
}

static stint_code start(struct st_run *run, const struct st_prepared *prep, stint_error *err)
{
    struct st_ends e = ST_ENDS_INIT;
    stint_code rc = st_ends_open(&e, &prep->body, prep->by_stdin, err);

    if (rc == STINT_OK)
        rc = handles_open(run, &e, err);
    if (rc == STINT_OK)
        rc = ask(run, &e, err);
    st_ends_close(&e);
    return rc;
}

static struct st_run *run_new(struct st_exec *x, const struct st_command *cmd,
                              const struct st_job *job, st_ran_fn done, void *arg)
{
    struct st_run *run = calloc(1, sizeof(*run));

    if (!run)
        return NULL;
    *run = (struct st_run){.x = x,
                           .job = job,
                           .done = done,
                           .arg = arg,
                           .tag = ++x->last_tag,
                           .grace_us = cmd->grace_us,
                           .result_max = x->limits.result,
                           .log = {.fd = -1},
                           .ran = ST_RAN_INIT};
    st_buf_init(&run->stdout_buf, x->limits.result);
    run->program = strdup(cmd->argv && cmd->argv[0] ? cmd->argv[0] : "");
    run->cwd = cmd->cwd ? strdup(cmd->cwd) : NULL;
    if (!run->program || (cmd->cwd && !run->cwd)) {
        run_free(run);
        return NULL;
    }
    uv_timer_init(x->loop, &run->timer);
    run->timer.data = run;
    run->open_handles = 1;
    run->next = x->runs;
    run->prev = &x->runs;
    if (x->runs)
        x->runs->prev = &run->next;
    x->runs = run;
    return run;
}

static void run_discard(struct st_run *run)
{
    run->unheard = true;
    run->why = WHY_FAILED;
    run_set(run, RUN_DRAINING);
    run_done(run);
}

stint_code st_exec_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job,
                       st_ran_fn done, void *arg, struct st_run **out, stint_error *err)
{
    int64_t timeout_us = job->policy.timeout_us;
    struct st_run *run = run_new(x, cmd, job, done, arg);
    struct st_prepared prep;
    stint_code rc;

    *out = NULL;
    if (!run)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    uv_update_time(x->loop); /* timers count from here */
    if (!st_command_prepare(cmd, job, timeout_us > 0 ? st_clock_real_us() + timeout_us : 0, &prep,
                            &run->ran)) {
        run->why = WHY_FAILED;
        run_set(run, RUN_DRAINING);
        timer_set(run, 0); /* done must come from the loop */
        *out = run;
        return STINT_OK;
    }
    rc = start(run, &prep, err);
    if (rc != STINT_OK) {
        st_prepared_clear(&prep);
        run_discard(run);
        return rc;
    }
    st_runlog_open(&run->log, x->logs_dir, job, x->limits.output);
    run->payload_file = prep.payload_file;
    prep.payload_file = NULL;
    st_prepared_clear(&prep);
    if (timeout_us > 0)
        timer_set(run, timeout_us);
    *out = run;
    return STINT_OK;
}
