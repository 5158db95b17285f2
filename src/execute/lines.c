/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.c - one attempt, one process that works by lines (mode: oneshot-lines).
 *
 *     STARTING --{"status":"ready"}--> ASKED --answer--> ANSWERED --exit--> over
 *         `---error, exit, too late-----'----exit, timeout------------------^
 *
 * The protocol of a resident child with a fresh one for every job: it says that it is ready, gets
 * one request and the end of its input, answers, and exits.  The job's timeout counts from the
 * request on; before that there is the start-up timeout.  Its answer counts however it exits.
 *
 * Invariants: as in oneshot.c.
 *
 * Thread: the loop's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/caps.h"
#include "execute/child.h"
#include "execute/frames.h"
#include "execute/result.h"
#include "execute/talk.h"

#define STARTUP_US   (60 * ST_SEC)
#define PROGRESS_MAX 65536

enum lines_state { LINES_STARTING, LINES_ASKED, LINES_ANSWERED };
enum why { WHY_NONE, WHY_FAILED, WHY_ABORT, WHY_TIMEOUT, WHY_OUTPUT, WHY_START, WHY_LATE };

struct lines {
    struct st_run run;
    struct st_child child;
    const struct st_job *job;
    st_ran_fn done;
    void *arg;
    enum lines_state state;
    enum why why;
    bool unheard;  /* st_exec_run failed: nobody is told */
    char *trouble; /* WHY_START: its own words */

    struct st_limits limits;
    struct st_caps caps;
    int64_t startup_us;
    int64_t n_output;    /* bytes printed */
    char *program, *cwd; /* for messages */
    char *progress;
    size_t progress_len;

    struct st_frames out;
    struct st_runlog log;
    struct st_ran ran;
};

static struct lines *of_child(const struct st_child *c)
{
    return (struct lines *)(void *)((char *)(uintptr_t)c - offsetof(struct lines, child));
}

/* ---- the end --------------------------------------------------------------------- */

static void lines_free(struct lines *l)
{
    st_frames_clear(&l->out);
    st_runlog_clear(&l->log);
    st_ran_clear(&l->ran);
    free(l->trouble);
    free(l->program);
    free(l->cwd);
    free(l->progress);
    free(l);
}

static void on_freed(struct st_child *c)
{
    struct lines *l = of_child(c);
    struct st_ran ran = l->ran;

    if (!l->unheard) {
        l->ran = (struct st_ran)ST_RAN_INIT;
        c->x->n_runs--;
        l->done(l->arg, &ran);
    }
    lines_free(l);
}

static void fill_stopped(struct lines *l)
{
    struct st_ran *ran = &l->ran;
    char text[ST_DURATION_TEXT];

    switch (l->why) {
    case WHY_ABORT:
        st_ran_fail(ran, ran->aborted == ST_ABORT_CANCELLED ? ST_KIND_CANCELLED : ST_KIND_KILLED,
                    "stopped: %s", st_abort_name(ran->aborted));
        break;
    case WHY_TIMEOUT:
        st_ran_fail(ran, ST_KIND_TIMEOUT, "timed out after %s",
                    st_duration_format(l->job->policy.timeout_us, text));
        break;
    case WHY_OUTPUT:
        st_caps_fail_output(&l->caps, ran);
        break;
    case WHY_START:
        st_ran_fail(ran, ST_KIND_CHILD_CRASHED, "the child did not start: %s",
                    l->trouble ? l->trouble : "");
        break;
    case WHY_LATE:
        st_ran_fail(ran, ST_KIND_CHILD_CRASHED, "the child did not start: not ready within %s",
                    st_duration_format(l->startup_us, text));
        break;
    case WHY_NONE:
    case WHY_FAILED:
        break;
    }
}

static void fill_crashed(struct lines *l)
{
    struct st_slice last = st_result_last_line(&l->ran);
    char how[ST_RESULT_STATUS];

    st_ran_fail(&l->ran, ST_KIND_CHILD_CRASHED, "the child ended without an answer: %s%s%s%.*s",
                st_result_status(l->child.status, how),
                l->state == LINES_STARTING ? " before it was ready" : "", last.len ? ": " : "",
                (int)last.len, last.len ? last.p : "");
}

static void on_over(struct st_child *c)
{
    struct lines *l = of_child(c);

    if (c->flags & ST_MD_LEFT)
        st_log(ST_LOG_WARN, "run.left", ST_F("job", l->job->id),
               ST_F("error", "a process of this job could not be killed"));
    st_runlog_finish(&l->log, &l->ran);
    st_child_fill(c, &l->ran);
    if (l->why != WHY_NONE)
        fill_stopped(l);
    else if (l->state == LINES_ANSWERED)
        return;
    else if (c->stage != ST_STAGE_OK)
        st_child_refused(c, l->program, l->cwd, &l->ran);
    else if (c->minder_died)
        st_ran_fail(&l->ran, ST_KIND_CHILD_CRASHED, "the process that minds the commands died");
    else if (!st_caps_blame(&l->caps, c, &l->ran))
        fill_crashed(l);
}

/* ---- stopping -------------------------------------------------------------------- */

static void stop_for(struct lines *l, enum why why)
{
    const struct st_child *c = &l->child;

    if (l->why == WHY_NONE && l->state != LINES_ANSWERED && !c->reaped && !c->minder_died &&
        c->state < ST_CHILD_DRAINING)
        l->why = why;
}

static void on_stop(struct st_run *run, enum st_abort why, bool now)
{
    struct lines *l = (struct lines *)(void *)run;
    bool had = l->why != WHY_NONE;

    stop_for(l, WHY_ABORT);
    if (!had && l->why == WHY_ABORT)
        l->ran.aborted = why;
    if (now)
        st_child_kill(&l->child);
    else
        st_child_stop(&l->child);
}

/* It has not got its job yet. */
static void on_drain(struct st_child *c)
{
    struct lines *l = of_child(c);

    if (l->state == LINES_STARTING)
        on_stop(&l->run, ST_ABORT_SHUTDOWN, false);
}

static void on_late(struct st_child *c)
{
    struct lines *l = of_child(c);

    if (l->state == LINES_STARTING)
        stop_for(l, WHY_LATE);
    else
        stop_for(l, WHY_TIMEOUT);
    st_child_stop(c);
}

/* It cannot answer any more: it has the grace to exit. */
static void on_silent(struct st_child *c)
{
    st_child_close_in(c);
    st_child_after(c, c->grace_us);
}

static const char *on_progress(const struct st_run *run, size_t *len)
{
    const struct lines *l = (const struct lines *)(const void *)run;

    *len = l->progress_len;
    return l->progress;
}

/* ---- what it says ---------------------------------------------------------------- */

static void ask(struct lines *l)
{
    int64_t timeout_us = l->job->policy.timeout_us;
    int64_t deadline_us = timeout_us > 0 ? st_clock_real_us() + timeout_us : 0;
    struct st_buf *b = st_child_put(&l->child);
    size_t before = b->len;

    l->state = LINES_ASKED;
    st_child_in_time(&l->child);
    if (!st_talk_request(b, l->job, deadline_us, &l->child.x->time, l->limits.line)) {
        st_talk_too_long(l->job, l->limits.line, &l->ran);
        stop_for(l, WHY_FAILED);
        st_child_stop(&l->child);
        return;
    }
    st_child_wrote(&l->child, before);
    st_child_close_in(&l->child);
    if (timeout_us > 0)
        st_child_after(&l->child, timeout_us);
}

static void on_status(struct lines *l, const struct st_frame *f)
{
    if (l->state != LINES_STARTING)
        return;
    if (st_talk_ready(f)) {
        ask(l);
    } else if ((l->trouble = st_talk_error(f))) {
        stop_for(l, WHY_START);
        st_child_stop(&l->child);
    }
}

static void on_task_line(struct lines *l, const struct st_frame *f, struct st_slice line,
                         bool whole)
{
    if (l->state != LINES_ASKED || l->why != WHY_NONE || !st_frame_id_is(f->task_id, l->job->id))
        return;
    if (f->kind == ST_FRAME_PROGRESS) {
        char *copy = f->progress.len <= PROGRESS_MAX ? st_slice_dup(f->progress) : NULL;

        if (copy) {
            free(l->progress);
            l->progress = copy;
            l->progress_len = f->progress.len;
        }
        return;
    }
    if (f->kind == ST_FRAME_ANSWER)
        st_talk_answer(f, l->limits.result, &l->ran);
    else
        st_talk_broken(line, whole, l->limits.line, &l->ran);
    l->state = LINES_ANSWERED;
    st_child_after(&l->child, l->child.grace_us);
}

static void on_line(struct lines *l, struct st_slice line, bool whole)
{
    struct st_frame f;

    st_frame_parse(line, whole, &f);
    if (f.kind == ST_FRAME_STATUS) {
        on_status(l, &f);
    } else if (f.kind != ST_FRAME_NOISE) {
        on_task_line(l, &f, line, whole);
    } else {
        st_runlog_put(&l->log, ST_STDOUT, line.p, line.len);
        st_runlog_put(&l->log, ST_STDOUT, whole ? "\n" : " [cut here]\n", whole ? 1 : 12);
    }
}

static void on_room(struct st_child *c, uv_buf_t *buf)
{
    size_t n;
    char *p = st_frames_room(&of_child(c)->out, &n);

    *buf = uv_buf_init(p, (unsigned)n); /* no room: the read is an error, and the end */
}

static void on_read(struct st_child *c, enum st_stream from, const char *p, size_t n)
{
    struct lines *l = of_child(c);
    enum st_frames_got got;
    struct st_slice line;

    if (from == ST_STDERR) {
        st_runlog_put(&l->log, ST_STDERR, p, n);
    } else {
        st_frames_filled(&l->out, n);
        while ((got = st_frames_next(&l->out, &line)) != ST_FRAMES_NONE)
            on_line(l, line, got == ST_FRAMES_LINE);
    }
    l->n_output += (int64_t)n;
    if (l->caps.output > 0 && l->n_output > l->caps.output) {
        stop_for(l, WHY_OUTPUT);
        st_child_kill(c);
    }
}

static bool on_owns(const struct st_child *c, const char *env, size_t len)
{
    return st_env_is_job(env, len, of_child(c)->job);
}

/* ---- starting -------------------------------------------------------------------- */

static const struct st_child_ops child_ops = {.room = on_room,
                                              .read = on_read,
                                              .silent = on_silent,
                                              .late = on_late,
                                              .drain = on_drain,
                                              .over = on_over,
                                              .freed = on_freed,
                                              .owns = on_owns};
static const struct st_run_ops run_ops = {.stop = on_stop, .progress = on_progress};

static struct lines *lines_new(struct st_exec *x, const struct st_command *cmd,
                               const struct st_job *job, st_ran_fn done, void *arg)
{
    struct lines *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    *l = (struct lines){.run.ops = &run_ops,
                        .job = job,
                        .done = done,
                        .arg = arg,
                        .limits = x->limits,
                        .caps = cmd->caps,
                        .startup_us = cmd->startup_us > 0 ? cmd->startup_us : STARTUP_US,
                        .log = {.fd = -1},
                        .ran = ST_RAN_INIT};
    st_frames_init(&l->out, x->limits.line);
    l->program = strdup(cmd->argv && cmd->argv[0] ? cmd->argv[0] : "");
    l->cwd = cmd->cwd ? strdup(cmd->cwd) : NULL;
    if (!l->program || (cmd->cwd && !l->cwd)) {
        lines_free(l);
        return NULL;
    }
    st_child_init(&l->child, x, &child_ops, cmd->grace_us);
    x->n_runs++;
    return l;
}

stint_code st_lines_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job,
                        st_ran_fn done, void *arg, struct st_run **out, stint_error *err)
{
    struct lines *l = lines_new(x, cmd, job, done, arg);
    struct st_prepared prep;
    stint_code rc;

    if (!l)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    if (!st_command_prepare(cmd, job, 0, &prep, &l->ran)) {
        l->why = WHY_FAILED;
        st_child_forgo(&l->child);
        *out = &l->run;
        return STINT_OK;
    }
    rc = st_child_start(&l->child, &prep.body, ST_STDIN_OPEN, ST_NONE, err);
    st_prepared_clear(&prep);
    if (rc != STINT_OK) {
        l->unheard = true;
        l->why = WHY_FAILED;
        x->n_runs--;
        st_child_discard(&l->child);
        return rc;
    }
    st_runlog_open(&l->log, x->logs_dir, job, x->limits.output);
    st_child_after(&l->child, l->startup_us);
    *out = &l->run;
    return STINT_OK;
}
