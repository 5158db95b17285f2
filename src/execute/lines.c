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
 * Invariants: those of solo.h.
 *
 * Thread: the loop's.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/caps.h"
#include "execute/frames.h"
#include "execute/result.h"
#include "execute/solo.h"
#include "execute/talk.h"

#define STARTUP_US   (60 * ST_SEC)
#define PROGRESS_MAX 65536

enum lines_state { LINES_STARTING, LINES_ASKED, LINES_ANSWERED };

struct lines {
    struct st_solo solo;
    enum lines_state state;
    bool silent; /* its stdout has ended */
    struct st_limits limits;
    int64_t startup_us;
    char *progress;
    size_t progress_len;
    struct st_frames out;
};

static struct lines *of_child(const struct st_child *c)
{
    return (struct lines *)(void *)st_solo_of(c);
}

/* ---- the end --------------------------------------------------------------------- */

static void lines_free(struct lines *l)
{
    st_frames_clear(&l->out);
    free(l->progress);
    free(l);
}

static void on_freed(struct st_child *c)
{
    st_solo_tell(st_solo_of(c));
    lines_free(of_child(c));
}

static void on_over(struct st_child *c)
{
    struct lines *l = of_child(c);
    struct st_ran *ran = &l->solo.ran;
    char how[ST_RESULT_STATUS];
    struct st_slice last;

    if (st_solo_over(&l->solo))
        return;
    last = st_result_last_line(ran);
    st_ran_fail(ran, ST_KIND_CHILD_CRASHED, "the child ended without an answer: %s%s%s%.*s",
                st_result_status(c->status, how), l->state == LINES_STARTING ? " before it was ready" : "",
                last.len ? ": " : "", (int)last.len, last.len ? last.p : "");
}

/* ---- stopping -------------------------------------------------------------------- */

static void not_started(struct lines *l, const char *why)
{
    if (st_solo_decide(&l->solo))
        st_ran_fail(&l->solo.ran, ST_KIND_CHILD_CRASHED, "the child did not start: %s", why);
    st_child_stop(&l->solo.child);
}

/* It has had the grace to exit: no timeout is over, only its chance to answer. */
static void closed_out(struct lines *l)
{
    if (st_solo_decide(&l->solo))
        st_ran_fail(&l->solo.ran, ST_KIND_CHILD_CRASHED, "the child closed its stdout %s",
                    l->state == LINES_STARTING ? "before it was ready" : "without an answer");
    st_child_stop(&l->solo.child);
}

static void on_late(struct st_child *c)
{
    struct lines *l = of_child(c);
    char text[ST_DURATION_TEXT], why[ST_DURATION_TEXT + 24];

    if (l->silent) {
        closed_out(l);
    } else if (l->state == LINES_STARTING) {
        snprintf(why, sizeof(why), "not ready within %s", st_duration_format(l->startup_us, text));
        not_started(l, why);
    } else {
        st_solo_timed_out(&l->solo);
    }
}

/* It has not got its job yet. */
static void on_drain(struct st_child *c)
{
    if (of_child(c)->state == LINES_STARTING)
        st_solo_stop(&st_solo_of(c)->run, ST_ABORT_SHUTDOWN, false);
}

static void take_rest(struct lines *l);

/* It cannot answer any more: it has the grace to exit. */
static void on_silent(struct st_child *c)
{
    take_rest(of_child(c));
    of_child(c)->silent = true;
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
    const struct st_job *job = l->solo.job;
    struct st_child *c = &l->solo.child;
    int64_t timeout_us = job->policy.timeout_us;
    int64_t deadline_us = timeout_us > 0 ? st_clock_real_us() + timeout_us : 0;
    struct st_buf *b = st_child_put(c);
    size_t before = b->len;

    l->state = LINES_ASKED;
    st_child_in_time(c);
    if (!st_talk_request(b, job, deadline_us, &c->x->time, l->limits.line)) {
        if (st_solo_decide(&l->solo))
            st_talk_too_long(job, l->limits.line, &l->solo.ran);
        st_child_stop(c);
        return;
    }
    st_child_wrote(c, before);
    st_child_close_in(c);
    if (timeout_us > 0)
        st_child_after(c, timeout_us);
}

static void on_status(struct lines *l, const struct st_frame *f)
{
    char *trouble;

    if (l->state != LINES_STARTING)
        return;
    if (st_talk_ready(f)) {
        ask(l);
    } else if ((trouble = st_talk_error(f))) {
        not_started(l, trouble);
        free(trouble);
    }
}

static void on_own_line(struct lines *l, const struct st_frame *f, struct st_slice line, bool whole)
{
    struct st_solo *s = &l->solo;

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
        st_talk_answer(f, l->limits.result, &s->ran);
    else
        st_talk_broken(line, whole, l->limits.line, &s->ran);
    l->state = LINES_ANSWERED;
    s->decided = true;
    st_child_after(&s->child, s->child.grace_us);
}

/* What is not about this attempt is dropped. */
static void on_task_line(struct lines *l, const struct st_frame *f, struct st_slice line, bool whole)
{
    struct st_solo *s = &l->solo;

    if (!st_frame_id_is(f->task_id, s->job->id) || (f->fence >= 0 && f->fence != s->job->fence))
        st_log(ST_LOG_DEBUG, "child.stray", ST_F("job", s->job->id), ST_FI("pid", s->child.pid),
               ST_FS("task", f->task_id));
    else if (l->state == LINES_ASKED && !s->decided)
        on_own_line(l, f, line, whole);
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
        st_runlog_put(&l->solo.log, ST_STDOUT, line.p, line.len);
        st_runlog_put(&l->solo.log, ST_STDOUT, whole ? "\n" : " [cut here]\n", whole ? 1 : 12);
    }
}

/* The last line may lack its newline. */
static void take_rest(struct lines *l)
{
    struct st_slice line;

    if (st_frames_rest(&l->out, &line) && st_talk_is_whole(line))
        on_line(l, line, true);
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
        st_runlog_put(&l->solo.log, ST_STDERR, p, n);
    } else {
        st_frames_filled(&l->out, n);
        while ((got = st_frames_next(&l->out, &line)) != ST_FRAMES_NONE)
            on_line(l, line, got == ST_FRAMES_LINE);
    }
    if (!st_solo_printed(&l->solo, n)) {
        if (st_solo_decide(&l->solo))
            st_caps_fail_output(&l->solo.caps, &l->solo.ran);
        st_child_kill(c);
    }
}

/* ---- starting -------------------------------------------------------------------- */

static const struct st_child_ops child_ops = {.room = on_room,
                                              .read = on_read,
                                              .silent = on_silent,
                                              .late = on_late,
                                              .drain = on_drain,
                                              .over = on_over,
                                              .freed = on_freed,
                                              .owns = st_solo_owns};
static const struct st_run_ops run_ops = {.stop = st_solo_stop, .progress = on_progress};

static struct lines *lines_new(struct st_exec *x, const struct st_command *cmd)
{
    struct lines *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->limits = x->limits;
    l->startup_us = cmd->startup_us > 0 ? cmd->startup_us : STARTUP_US;
    st_frames_init(&l->out, x->limits.line);
    if (st_solo_init(&l->solo, x, &run_ops, &child_ops, cmd))
        return l;
    st_solo_clear(&l->solo);
    lines_free(l);
    return NULL;
}

stint_code st_lines_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                        void *arg, struct st_run **out, stint_error *err)
{
    struct lines *l = lines_new(x, cmd);
    struct st_prepared prep;
    stint_code rc;

    if (!l)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    st_solo_for(&l->solo, job, done, arg);
    *out = &l->solo.run;
    if (!st_command_prepare(cmd, job, 0, &prep, &l->solo.ran)) {
        st_solo_forgo(&l->solo);
        return STINT_OK;
    }
    rc = st_solo_start(&l->solo, &prep, ST_STDIN_OPEN, ST_NONE, err);
    st_prepared_clear(&prep);
    if (rc == STINT_OK)
        st_child_after(&l->solo.child, l->startup_us);
    else
        *out = NULL;
    return rc;
}
