/* SPDX-License-Identifier: Apache-2.0
 *
 * member.c - one resident child: its start, its requests and answers, its end.
 *
 *     STARTING --{"status":"ready"}--> READY --recycle--> RETIRING --no more requests--> ends
 *         |                              |                   |
 *         +------stop, trouble-----------+-------------------+--> LEAVING --> over
 *
 * Requests are gathered and written together (child.c); answers are taken from all that one read
 * gave.  They are matched by id, in any order.  What else it prints goes to the logs.
 *
 * Invariants:
 *   (1) of one id at most one request is in flight in one child, so that an answer has one owner;
 *   (2) what it has not read when it ends goes back to those that wait, though not for ever.
 *
 * Thread: the loop's.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "execute/caps.h"
#include "execute/resident.h"
#include "execute/result.h"
#include "execute/talk.h"

#define STARTUP_US   (60 * ST_SEC)
#define AGAIN_US     ST_SEC /* after no process was to be had */
#define PROGRESS_MAX 65536
#define ERR_LINE_MAX 65536
#define LOG_MAX      8 /* with more in flight, what is printed cannot be said to be of one */
#define RSS_EVERY_US ST_SEC
#define UNREAD_MAX   3             /* children that do not read a request: that is an attempt */
#define STAY_US      (10 * ST_SEC) /* one that nobody needed and that left has stayed so long */

static struct st_member *of_child(const struct st_child *c)
{
    return (struct st_member *)(void *)((char *)(uintptr_t)c - offsetof(struct st_member, child));
}

static const char *name_of(const struct st_member *m)
{
    return m->crew->cmd.name ? m->crew->cmd.name : "";
}

/* The one place a member changes state. */
static void member_set(struct st_member *m, enum st_member_state to)
{
    struct st_crew *c = m->crew;

    c->n_starting -= m->state == ST_MEMBER_STARTING;
    c->n_ready -= m->state == ST_MEMBER_READY;
    m->state = to;
    c->n_starting += m->state == ST_MEMBER_STARTING;
    c->n_ready += m->state == ST_MEMBER_READY;
}

/* ---- requests -------------------------------------------------------------------- */

static struct st_request *find(const struct st_member *m, const char *id, size_t len, uint32_t hash)
{
    struct st_request *r = m->buckets[hash & (m->n_buckets - 1)];

    while (r && (r->hash != hash || r->id_len != len || memcmp(r->job->id, id, len)))
        r = r->bucket_next;
    return r;
}

bool st_member_free(const struct st_member *m, const struct st_request *r)
{
    return !m->flight.n || !find(m, r->job->id, r->id_len, r->hash);
}

static void flight_add(struct st_member *m, struct st_request *r)
{
    struct st_request **at = &m->buckets[r->hash & (m->n_buckets - 1)];

    r->bucket_next = *at;
    *at = r;
    st_requests_add(&m->flight, r);
    r->member = m;
}

static void flight_remove(struct st_member *m, struct st_request *r)
{
    struct st_request **at = &m->buckets[r->hash & (m->n_buckets - 1)];

    while (*at != r)
        at = &(*at)->bucket_next;
    *at = r->bucket_next;
    st_requests_remove(&m->flight, r);
    r->member = NULL;
}

/* The CPU cap is per request: what was used so far is not held against the next.  Only the soft
 * limit is moved, since nobody but root can raise the hard one. */
static void allow_cpu(struct st_member *m)
{
    int64_t cap_us = m->crew->cmd.caps.cpu_us, used_us;
    struct rlimit lim;
    struct timespec ts;
    clockid_t clock;

    if (cap_us <= 0 || m->child.pid <= 0 || clock_getcpuclockid(m->child.pid, &clock) || clock_gettime(clock, &ts) ||
        prlimit(m->child.pid, RLIMIT_CPU, NULL, &lim))
        return;
    used_us = ts.tv_sec * ST_SEC + ts.tv_nsec / 1000;
    lim.rlim_cur = (rlim_t)((used_us + cap_us * m->flight.n + ST_SEC - 1) / ST_SEC);
    prlimit(m->child.pid, RLIMIT_CPU, &lim, NULL);
}

bool st_member_give(struct st_member *m, struct st_request *r, struct st_ran *ran)
{
    struct st_buf *b = st_child_put(&m->child);
    int64_t timeout_us = r->job->policy.timeout_us;
    int64_t deadline_us = timeout_us > 0 ? st_exec_real_us(m->crew->x) + timeout_us : 0;
    size_t before = b->len;

    if (!st_talk_request(b, r->job, deadline_us, &m->crew->x->time, m->out.max)) {
        st_talk_too_long(r->job, m->out.max, ran);
        return false;
    }
    r->at = m->child.n_put;
    st_child_wrote(&m->child, before);
    flight_add(m, r);
    if (timeout_us > 0)
        st_request_limit(r, timeout_us);
    if (m->crew->cmd.caps.cpu_us > 0)
        allow_cpu(m);
    m->n_given++;
    if (m->crew->cmd.recycle.jobs > 0 && m->n_given >= m->crew->cmd.recycle.jobs)
        st_member_retire(m);
    return true;
}

bool st_member_cancel(struct st_member *m, const struct st_request *r)
{
    struct st_buf *b = st_child_put(&m->child);
    size_t before = b->len;

    if (!m->cancels || !m->child.in_open || m->child.state != ST_CHILD_RUNNING)
        return false;
    st_talk_cancel(b, r->job);
    st_child_wrote(&m->child, before);
    return true;
}

/* ---- stopping it ----------------------------------------------------------------- */

void st_member_stop(struct st_member *m, bool now)
{
    if (m->child.state == ST_CHILD_RUNNING && !m->silent && !m->deaf && !m->child.reaped)
        m->by_us = true;
    member_set(m, ST_MEMBER_LEAVING);
    if (now)
        st_child_kill(&m->child);
    else
        st_child_stop(&m->child);
}

/* It should end by itself: it has no more input.  What it still prints gives it no more time. */
static void dismiss(struct st_member *m)
{
    if (m->dismissed)
        return;
    m->dismissed = true;
    st_child_close_in(&m->child);
    st_child_after(&m->child, m->child.grace_us);
}

void st_member_retire(struct st_member *m)
{
    if (m->state == ST_MEMBER_STARTING) {
        st_member_stop(m, false);
    } else if (m->state == ST_MEMBER_READY) {
        m->retired = true;
        member_set(m, ST_MEMBER_RETIRING);
        if (m->flight.n == 0)
            dismiss(m);
    }
}

static void on_drain(struct st_child *c)
{
    struct st_member *m = of_child(c);

    if (m->prev)
        st_member_retire(m);
}

/* Something is wrong with it: that is a crash. */
static void trouble(struct st_member *m, char *text)
{
    if (!m->trouble)
        m->trouble = text;
    else
        free(text);
    member_set(m, ST_MEMBER_LEAVING);
    st_child_stop(&m->child);
}

static void take_rest(struct st_member *m);

static void on_silent(struct st_child *c)
{
    struct st_member *m = of_child(c);
    take_rest(m);
    if (m->state == ST_MEMBER_LEAVING)
        return;
    m->silent = true;
    member_set(m, ST_MEMBER_LEAVING);
    st_child_after(c, c->grace_us);
}

/* It may still answer what it has read. */
static void on_deaf(struct st_child *c)
{
    struct st_member *m = of_child(c);

    if (m->state == ST_MEMBER_LEAVING)
        return;
    m->deaf = true;
    member_set(m, ST_MEMBER_LEAVING);
    st_child_after(c, c->grace_us);
}

static void on_late(struct st_child *c)
{
    struct st_member *m = of_child(c);
    char text[ST_DURATION_TEXT], *what = NULL;

    if (m->state != ST_MEMBER_STARTING) {
        st_child_stop(c);
        return;
    }
    st_duration_format(m->crew->cmd.startup_us > 0 ? m->crew->cmd.startup_us : STARTUP_US, text);
    if (asprintf(&what, "not ready within %s", text) < 0)
        what = NULL;
    trouble(m, what);
}

/* ---- time for a fresh one? ------------------------------------------------------- */

static int64_t rss_of(pid_t pid)
{
    char path[32], text[128];
    long long size, resident;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/statm", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return sscanf(text, "%lld %lld", &size, &resident) == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

static bool is_spent(struct st_member *m)
{
    const struct st_recycle *rec = &m->crew->cmd.recycle;
    int64_t now_us;

    if (rec->age_us <= 0 && rec->rss <= 0)
        return false;
    now_us = st_clock_mono_us();
    if (rec->age_us > 0 && now_us - m->since_us >= rec->age_us)
        return true;
    m->unseen = rec->rss > 0 && m->child.pid > 0;
    if (!m->unseen || now_us - m->rss_us < RSS_EVERY_US)
        return false;
    m->unseen = false;
    m->rss_us = now_us;
    return rss_of(m->child.pid) > rec->rss;
}

/* When to look at it again, whether it prints something by then or not; 0 = it need not be. */
static int64_t look_at(const struct st_member *m)
{
    const struct st_recycle *rec = &m->crew->cmd.recycle;
    int64_t old_us = rec->age_us > 0 ? m->since_us + rec->age_us : 0;
    int64_t seen_us = m->unseen ? m->rss_us + RSS_EVERY_US : 0;

    return old_us && (!seen_us || old_us < seen_us) ? old_us : seen_us;
}

int64_t st_member_check(struct st_member *m)
{
    if (m->state != ST_MEMBER_READY || m->n_given == 0)
        return 0;
    if (!is_spent(m))
        return look_at(m);
    st_member_retire(m);
    return 0;
}

static void check_age(struct st_member *m)
{
    int64_t at_us = st_member_check(m);

    if (at_us)
        st_crew_look(m->crew, at_us);
    if (m->state == ST_MEMBER_RETIRING && m->flight.n == 0)
        dismiss(m);
}

/* ---- what it prints -------------------------------------------------------------- */

static void request_log(struct st_member *m, struct st_request *r, enum st_stream from, struct st_slice text)
{
    struct st_exec *x = m->crew->x;

    if (!r->log) {
        r->log = malloc(sizeof(*r->log));
        if (!r->log)
            return;
        st_runlog_open(r->log, x->logs_dir, r->job, x->limits.output);
    }
    st_runlog_file(r->log, from, text.p, text.len);
}

/* Into the logs of those it may be about. */
static void requests_log(struct st_member *m, enum st_stream from, struct st_slice text)
{
    if (!m->crew->x->logs_dir || m->flight.n > LOG_MAX)
        return;
    for (struct st_request *r = m->flight.first; r; r = r->next)
        request_log(m, r, from, text);
}

static void noise(struct st_member *m, struct st_slice line, bool whole)
{
    st_log(ST_LOG_DEBUG, "child.stdout", ST_F("type", name_of(m)), ST_FI("pid", m->child.pid),
           ST_FI("bytes", line.len));
    requests_log(m, ST_STDOUT, line);
    requests_log(m, ST_STDOUT, whole ? ST_SLICE("\n", 1) : ST_SLICE(" [cut here]\n", 12));
}

static struct st_request *find_raw(const struct st_member *m, struct st_slice raw)
{
    char text[ST_ID_MAX + 1];
    struct st_buf b = {.p = text, .cap = sizeof(text), .max = ST_ID_MAX};

    if (memchr(raw.p, '\\', raw.len)) {
        st_json_string(ST_SLICE(raw.p - 1, raw.len + 2), &b); /* with its quotes */
        if (b.failed)
            return NULL;
        raw = st_buf_view(&b);
    }
    return find(m, raw.p, raw.len, st_request_hash(raw.p, raw.len));
}

static void answered(struct st_member *m, struct st_request *r, struct st_ran *ran)
{
    m->n_output = 0;
    m->n_answered++;
    flight_remove(m, r);
    if (r->why != ST_WHY_NONE)
        st_request_fill_why(r, ran);
    if (!ran->ok)
        st_runlog_tail(&m->log, ran);
    st_request_finish(r, ran);
}

static void on_task_line(struct st_member *m, const struct st_frame *f, struct st_slice line, bool whole)
{
    struct st_request *r = find_raw(m, f->task_id);
    struct st_ran ran = ST_RAN_INIT;

    if (!r || (f->fence >= 0 && f->fence != r->job->fence)) {
        m->crew->n_stray++;
        m->n_stray++;
        st_log(ST_LOG_DEBUG, "child.stray", ST_F("type", name_of(m)), ST_FI("pid", m->child.pid),
               ST_FS("task", f->task_id));
    } else if (f->kind == ST_FRAME_PROGRESS) {
        char *copy = f->progress.len <= PROGRESS_MAX ? st_slice_dup(f->progress) : NULL;

        if (copy) {
            free(r->progress);
            r->progress = copy;
            r->progress_len = f->progress.len;
        }
    } else if (r->why != ST_WHY_NONE) {
        answered(m, r, &ran);
    } else {
        if (f->kind == ST_FRAME_ANSWER)
            st_talk_answer(f, m->crew->x->limits.result, &ran);
        else
            st_talk_broken(line, whole, m->out.max, &ran);
        answered(m, r, &ran);
    }
}

static void on_status(struct st_member *m, const struct st_frame *f)
{
    char *what;

    if (m->state != ST_MEMBER_STARTING)
        return;
    what = st_talk_error(f);
    if (what) {
        trouble(m, what);
    } else if (st_talk_ready(f)) {
        m->cancels = f->cancel;
        m->was_ready = true;
        m->since_us = m->rss_us = st_clock_mono_us();
        st_child_in_time(&m->child);
        member_set(m, ST_MEMBER_READY);
        st_log(ST_LOG_DEBUG, "child.ready", ST_F("type", name_of(m)), ST_FI("pid", m->child.pid));
        st_crew_ready(m->crew);
    }
}

static void on_line(struct st_member *m, struct st_slice line, bool whole)
{
    struct st_frame f;

    st_frame_parse(line, whole, &f);
    if (f.kind == ST_FRAME_STATUS)
        on_status(m, &f);
    else if (f.kind == ST_FRAME_NOISE)
        noise(m, line, whole);
    else
        on_task_line(m, &f, line, whole);
}

/* The last line may lack its newline. */
static void take_rest(struct st_member *m)
{
    struct st_slice line;

    if (st_frames_rest(&m->out, &line) && st_talk_is_whole(line))
        on_line(m, line, true);
}

static void on_room(struct st_child *c, uv_buf_t *buf)
{
    size_t n;
    char *p = st_frames_room(&of_child(c)->out, &n);

    *buf = uv_buf_init(p, (unsigned)n); /* no room: the read is an error, and the end */
}

static void read_out(struct st_member *m, size_t n)
{
    struct st_exec *x = m->crew->x;
    enum st_frames_got got;
    struct st_slice line;

    x->mono_us = st_clock_mono_us();
    x->real_us = st_clock_real_us();
    st_frames_filled(&m->out, n);
    while ((got = st_frames_next(&m->out, &line)) != ST_FRAMES_NONE)
        on_line(m, line, got == ST_FRAMES_LINE);
    x->mono_us = x->real_us = 0;
    check_age(m);
    st_crew_tend(m->crew);
}

/* Line by line into our own log. */
static void log_err(struct st_member *m, const char *p, size_t n)
{
    enum st_frames_got got;
    struct st_slice line;

    while (n && st_log_threshold() <= ST_LOG_DEBUG) {
        size_t took = st_frames_put(&m->errs, p, n);

        if (!took)
            return;
        p += took;
        n -= took;
        while ((got = st_frames_next(&m->errs, &line)) != ST_FRAMES_NONE)
            st_log(ST_LOG_DEBUG, "child.stderr", ST_F("type", name_of(m)), ST_FI("pid", m->child.pid),
                   ST_FS("line", line));
    }
}

static void on_read(struct st_child *c, enum st_stream from, const char *p, size_t n)
{
    struct st_member *m = of_child(c);
    int64_t cap = m->crew->cmd.caps.output;

    m->n_output += (int64_t)n;
    if (from == ST_STDERR) {
        st_runlog_put(&m->log, ST_STDERR, p, n);
        requests_log(m, ST_STDERR, ST_SLICE(p, n));
        log_err(m, p, n);
    } else {
        read_out(m, n);
    }
    if (cap > 0 && m->n_output > cap && !m->too_much) {
        m->too_much = true;
        member_set(m, ST_MEMBER_LEAVING);
        st_child_kill(c);
    }
}

/* ---- its end --------------------------------------------------------------------- */

/* It was there for nothing: another one might be, too. */
static bool was_useless(const struct st_member *m)
{
    if (m->n_answered)
        return false;
    return m->n_unread || (!m->retired && st_clock_mono_us() - m->since_us < STAY_US);
}

static bool is_crash(const struct st_member *m)
{
    const struct st_child *c = &m->child;

    if (m->by_us || c->minder_died)
        return false;
    if (c->stage != ST_STAGE_OK || m->trouble || m->too_much || !m->was_ready || m->flight.n || was_useless(m))
        return true;
    /* An idle child may go. */
    return !m->retired && !(WIFEXITED(c->status) && !WEXITSTATUS(c->status));
}

/* What was wrong, in one line; free() it. */
static char *reason_of(const struct st_member *m)
{
    const struct st_child *c = &m->child;
    char how[ST_RESULT_STATUS];
    struct st_ran ran = ST_RAN_INIT;
    struct st_slice last;
    struct st_buf b;

    st_buf_init(&b, 2000);
    if (c->stage != ST_STAGE_OK) {
        st_child_refused(c, m->crew->cmd.argv[0], m->crew->cmd.cwd, &ran);
        st_buf_puts(&b, ran.message ? ran.message : "");
    } else if (m->trouble || m->too_much) {
        st_buf_printf(&b, "%.1000s", m->trouble ? m->trouble : "it printed too much");
    } else if (m->silent && c->stopped) {
        st_buf_puts(&b, "it closed its stdout");
    } else if (m->deaf && c->stopped) {
        st_buf_puts(&b, "it closed its stdin");
    } else {
        st_buf_printf(&b, "%s%s", st_result_status(c->status, how),
                      !m->was_ready                   ? " before it was ready"
                      : m->n_unread && !m->n_answered ? " without reading its request"
                                                      : "");
    }
    st_runlog_tail(&m->log, &ran);
    last = st_result_last_line(&ran);
    if (last.len)
        st_buf_printf(&b, ": %.*s", (int)last.len, last.p);
    st_ran_clear(&ran);
    return st_buf_take(&b);
}

/* What comes of a request that was in flight when it ended. */
static void fill_ended(const struct st_member *m, const struct st_request *r, const char *reason, struct st_ran *ran)
{
    const struct st_command *cmd = &m->crew->cmd;

    st_child_fill(&m->child, ran);
    st_runlog_tail(&m->log, ran);
    if (r->why != ST_WHY_NONE) {
        st_request_fill_why(r, ran);
    } else if (m->by_us) {
        ran->aborted = ST_ABORT_SHUTDOWN;
        st_ran_fail(ran, ST_KIND_KILLED, "given back: its child was stopped for another job");
    } else {
        if (m->child.minder_died)
            st_ran_fail(ran, ST_KIND_CHILD_CRASHED, "the process that minds the commands died");
        else if (m->too_much)
            st_caps_fail_output(&cmd->caps, ran);
        else if (!st_caps_blame(&cmd->caps, &m->child, ran))
            st_ran_fail(ran, ST_KIND_CHILD_CRASHED, "the child died: %s", reason ? reason : "");
        if (cmd->park && !m->child.minder_died)
            ran->advice = ST_PERMANENT;
    }
}

/* A request that child after child leaves unread counts as one that they died of. */
static void give_back_unread(struct st_member *m)
{
    uint64_t seen = st_child_seen(&m->child);
    bool blame = !m->n_answered && !m->by_us && !m->child.minder_died;

    for (struct st_request *r = m->flight.last, *prev; r; r = prev) {
        prev = r->prev;
        if (r->at < seen || r->why != ST_WHY_NONE)
            continue;
        m->n_unread++;
        if (blame && ++r->n_unread >= UNREAD_MAX)
            continue;
        st_request_no_limit(r);
        flight_remove(m, r);
        st_requests_add_first(&m->crew->waiting, r);
    }
}

static void on_over(struct st_child *c)
{
    struct st_member *m = of_child(c);
    struct st_crew *crew = m->crew;
    char *reason = NULL;

    if (!m->prev)
        return; /* never started */
    *m->prev = m->next;
    if (m->next)
        m->next->prev = m->prev;
    give_back_unread(m);
    if (m->n_stray)
        st_log(ST_LOG_WARN, "child.strays", ST_F("type", name_of(m)), ST_FI("pid", c->pid),
               ST_FI("answers", m->n_stray));
    if (c->stage == ST_STAGE_CAPS) {
        struct st_ran ran = ST_RAN_INIT;

        st_child_refused(c, crew->cmd.argv[0], crew->cmd.cwd, &ran);
        st_crew_refuse(crew, &ran);
        st_ran_clear(&ran);
    } else if (is_crash(m)) {
        reason = reason_of(m);
        st_log(ST_LOG_WARN, "child.crashed", ST_F("type", name_of(m)), ST_FI("pid", c->pid),
               ST_F("error", reason ? reason : ""));
        st_crew_crashed(crew, reason ? reason : "");
    }
    member_set(m, ST_MEMBER_LEAVING);
    while (m->flight.first) {
        struct st_request *r = m->flight.first;
        struct st_ran ran = ST_RAN_INIT;

        fill_ended(m, r, reason, &ran);
        flight_remove(m, r);
        st_request_finish(r, &ran);
    }
    free(reason);
    st_crew_settle(crew);
}

static void on_freed(struct st_child *c)
{
    struct st_member *m = of_child(c);

    st_frames_clear(&m->out);
    st_frames_clear(&m->errs);
    st_runlog_clear(&m->log);
    free(m->buckets);
    free(m->trouble);
    free(m);
}

static bool on_owns(const struct st_child *c, const char *env, size_t len)
{
    return st_env_has(env, len, of_child(c)->mark);
}

/* ---- its start ------------------------------------------------------------------- */

static const struct st_child_ops child_ops = {.room = on_room,
                                              .read = on_read,
                                              .silent = on_silent,
                                              .deaf = on_deaf,
                                              .late = on_late,
                                              .drain = on_drain,
                                              .over = on_over,
                                              .freed = on_freed,
                                              .owns = on_owns};

static struct st_member *member_new(struct st_crew *c)
{
    struct st_member *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    for (m->n_buckets = 8; m->n_buckets < (size_t)c->max_in_flight;)
        m->n_buckets *= 2;
    m->buckets = calloc(m->n_buckets, sizeof(struct st_request *));
    if (!m->buckets) {
        free(m);
        return NULL;
    }
    m->crew = c;
    m->state = ST_MEMBER_LEAVING; /* until it is one */
    st_frames_init(&m->out, c->x->limits.line);
    st_frames_init(&m->errs, ERR_LINE_MAX);
    st_runlog_open(&m->log, NULL, NULL, 0);
    st_child_init(&m->child, c->x, &child_ops, c->cmd.grace_us);
    snprintf(m->mark, sizeof(m->mark), "STINT_CHILD=%d-%llu", getpid(), (unsigned long long)m->child.tag);
    return m;
}

static void member_join(struct st_member *m)
{
    struct st_crew *c = m->crew;

    m->next = c->members;
    m->prev = &c->members;
    if (c->members)
        c->members->prev = &m->next;
    c->members = m;
    member_set(m, ST_MEMBER_STARTING);
}

bool st_member_start(struct st_crew *c)
{
    struct st_member *m = member_new(c);
    struct st_ran why = ST_RAN_INIT;
    struct st_prepared prep;
    stint_error err;

    c->not_before_us = st_clock_mono_us() + AGAIN_US;
    if (!m)
        return false;
    if (!st_command_prepare_resident(&c->cmd, m->mark, &prep, &why)) {
        st_child_discard(&m->child);
        st_crew_refuse(c, &why);
        st_ran_clear(&why);
        return false;
    }
    if (st_child_start(&m->child, &prep.body, ST_STDIN_OPEN, ST_NONE, &err) != STINT_OK) {
        st_log(ST_LOG_ERROR, "child.not_started", ST_F("type", name_of(m)), ST_FE(&err));
        st_prepared_clear(&prep);
        st_child_discard(&m->child);
        return false;
    }
    st_prepared_clear(&prep);
    c->not_before_us = 0;
    member_join(m);
    uv_update_time(c->x->loop);
    st_child_after(&m->child, c->cmd.startup_us > 0 ? c->cmd.startup_us : STARTUP_US);
    return true;
}
