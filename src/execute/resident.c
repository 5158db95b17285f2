/* SPDX-License-Identifier: Apache-2.0
 *
 * resident.c - resident children: which request goes to which, and when they are started.
 *
 * A crew is the children of one command (member.c).  A request waits until a child has a free
 * place; children are started as they are needed, up to `processes`:
 *
 *     st_exec_run --> waiting --> in flight --answer--> told
 *                        ^------------'   (its child ended before it was sent)
 *
 * Where a child that crashed may not be replaced any more (supervise.c), those that wait are given
 * back, and no others are taken.
 *
 * Stopping one request: a child that understands cancel lines gets one and has the grace to
 * answer.  Else, or after that, the child is stopped; its other requests are given back, uncharged.
 *
 * Invariants:
 *   (1) a request's done is called exactly once, from the loop;
 *   (2) the first reason to stop a request is the one that counts;
 *   (3) while a request waits and its crew is healthy, a child has it coming or the timer is set.
 *
 * Thread: the loop's.
 */
#include "execute/resident.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define SPARE_MAX     256
#define SOON_US       (10 * ST_SEC) /* a child that may be started by then is as good as there */
#define IN_FLIGHT_MAX 65536

/* ---- lists ----------------------------------------------------------------------- */

void st_requests_add(struct st_requests *q, struct st_request *r)
{
    r->next = NULL;
    r->prev = q->last;
    *(q->last ? &q->last->next : &q->first) = r;
    q->last = r;
    q->n++;
}

void st_requests_add_first(struct st_requests *q, struct st_request *r)
{
    r->prev = NULL;
    r->next = q->first;
    *(q->first ? &q->first->prev : &q->last) = r;
    q->first = r;
    q->n++;
}

void st_requests_remove(struct st_requests *q, struct st_request *r)
{
    *(r->prev ? &r->prev->next : &q->first) = r->next;
    *(r->next ? &r->next->prev : &q->last) = r->prev;
    r->next = r->prev = NULL;
    q->n--;
}

/* ---- deadlines ------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

/* Have the timer fire by then. */
static void timer_by(struct st_crew *c, int64_t at_us, int64_t now_us)
{
    int64_t after_us = at_us > now_us ? at_us - now_us : 0;

    if (c->timer_us && c->timer_us <= at_us)
        return;
    c->timer_us = at_us;
    uv_update_time(c->x->loop);
    uv_timer_start(&c->timer, on_timer, (uint64_t)((after_us + ST_MS - 1) / ST_MS), 0);
}

void st_request_no_limit(struct st_request *r)
{
    struct st_crew *c = r->crew;

    if (!r->deadline_us)
        return;
    *(r->sooner ? &r->sooner->later : &c->soonest) = r->later;
    *(r->later ? &r->later->sooner : &c->latest) = r->sooner;
    r->sooner = r->later = NULL;
    r->deadline_us = 0;
}

/* Most have the same timeout, so that the place is at the end of the list. */
void st_request_limit(struct st_request *r, int64_t after_us)
{
    struct st_crew *c = r->crew;
    int64_t now_us = st_exec_mono_us(c->x);
    struct st_request *at = c->latest;

    st_request_no_limit(r);
    r->deadline_us = now_us + after_us;
    while (at && at->deadline_us > r->deadline_us)
        at = at->sooner;
    r->sooner = at;
    r->later = at ? at->later : c->soonest;
    *(r->sooner ? &r->sooner->later : &c->soonest) = r;
    *(r->later ? &r->later->sooner : &c->latest) = r;
    timer_by(c, c->soonest->deadline_us, now_us);
}

/* ---- the end of a request -------------------------------------------------------- */

static void request_free(struct st_request *r)
{
    struct st_crew *c = r->crew;

    free(r->progress);
    if (c->n_spare < SPARE_MAX) {
        r->next = c->spare;
        c->spare = r;
        c->n_spare++;
    } else {
        free(r);
    }
}

void st_request_finish(struct st_request *r, struct st_ran *ran)
{
    st_ran_fn done = r->done;
    void *arg = r->arg;

    st_request_no_limit(r);
    if (r->log) {
        st_runlog_finish(r->log, ran);
        free(r->log);
    }
    r->crew->x->n_runs--;
    request_free(r);
    done(arg, ran);
}

/* It is in no list any more; it is told before the loop sleeps. */
static void request_end(struct st_request *r, struct st_ran *ran)
{
    struct st_exec *x = r->crew->x;

    r->ran = *ran;
    r->ended = true;
    r->next = NULL;
    *x->ended_last = r;
    x->ended_last = &r->next;
    st_exec_wake(x);
}

void st_resident_tell_ended(struct st_exec *x)
{
    while (x->ended) {
        struct st_request *r = x->ended;
        struct st_ran ran = r->ran;

        x->ended = r->next;
        if (!x->ended)
            x->ended_last = &x->ended;
        st_request_finish(r, &ran);
    }
}

void st_request_fill_why(const struct st_request *r, struct st_ran *ran)
{
    char text[ST_DURATION_TEXT];

    if (r->why == ST_WHY_TIMEOUT) {
        st_ran_fail(ran, ST_KIND_TIMEOUT, "timed out after %s", st_duration_format(r->job->policy.timeout_us, text));
    } else if (r->why == ST_WHY_ABORT) {
        ran->aborted = r->aborted;
        st_ran_fail(ran, ran->aborted == ST_ABORT_CANCELLED ? ST_KIND_CANCELLED : ST_KIND_KILLED, "stopped: %s",
                    st_abort_name(ran->aborted));
    }
}

/* ---- stopping a request ---------------------------------------------------------- */

static void stop_waiting(struct st_request *r)
{
    struct st_ran ran = ST_RAN_INIT;

    st_requests_remove(&r->crew->waiting, r);
    st_request_fill_why(r, &ran);
    request_end(r, &ran);
}

static void stop_in_flight(struct st_request *r, bool now)
{
    struct st_member *m = r->member;

    st_request_no_limit(r);
    if (!now && !r->cancelling && m->child.grace_us > 0 && st_member_cancel(m, r)) {
        r->cancelling = true;
        st_request_limit(r, m->child.grace_us);
        return;
    }
    st_member_stop(m, now);
    st_crew_tend(r->crew);
}

static void on_stop(struct st_run *run, enum st_abort why, bool now)
{
    struct st_request *r = (struct st_request *)(void *)run;
    bool first = r->why == ST_WHY_NONE;

    if (first) {
        r->why = ST_WHY_ABORT;
        r->aborted = why;
    }
    if (r->member && (first || now))
        stop_in_flight(r, now);
    else if (!r->member && !r->ended)
        stop_waiting(r);
}

static void request_late(struct st_request *r)
{
    if (r->why == ST_WHY_NONE)
        r->why = ST_WHY_TIMEOUT;
    stop_in_flight(r, false);
}

static const char *on_progress(const struct st_run *run, size_t *len)
{
    const struct st_request *r = (const struct st_request *)(const void *)run;

    *len = r->progress_len;
    return r->progress;
}

static const struct st_run_ops run_ops = {.stop = on_stop, .progress = on_progress};

/* Eight bytes at a time; ids are made by us or by the user's own programs. */
uint32_t st_request_hash(const char *id, size_t len)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t h = len, w;

    for (; len >= sizeof(w); id += sizeof(w), len -= sizeof(w)) {
        memcpy(&w, id, sizeof(w));
        h = (h ^ w) * odd;
        h ^= h >> 29;
    }
    w = 0;
    memcpy(&w, id, len);
    h = (h ^ w) * odd;
    return (uint32_t)(h >> 32);
}

static struct st_request *request_new(struct st_crew *c, const struct st_job *job, st_ran_fn done, void *arg)
{
    struct st_request *r = c->spare;
    size_t len = strlen(job->id);

    if (r) {
        c->spare = r->next;
        c->n_spare--;
    } else if (!(r = malloc(sizeof(*r)))) {
        return NULL;
    }
    *r = (struct st_request){.run.ops = &run_ops,
                             .crew = c,
                             .job = job,
                             .done = done,
                             .arg = arg,
                             .hash = st_request_hash(job->id, len),
                             .id_len = (uint32_t)len};
    c->x->n_runs++;
    return r;
}

/* ---- who gets it ----------------------------------------------------------------- */

/* The child with the least to do that can take it; NULL = none can.  *full: nobody could take
 * anything. */
static struct st_member *pick(const struct st_crew *c, const struct st_request *r, bool *full)
{
    struct st_member *best = NULL;

    *full = true;
    for (struct st_member *m = c->members; m; m = m->next) {
        if (m->state != ST_MEMBER_READY || m->flight.n >= c->max_in_flight)
            continue;
        *full = false;
        if ((!best || m->flight.n < best->flight.n) && st_member_free(m, r))
            best = m;
    }
    return best;
}

static bool give(struct st_member *m, struct st_request *r)
{
    struct st_ran ran = ST_RAN_INIT;

    if (st_member_give(m, r, &ran))
        return true;
    request_end(r, &ran);
    return false;
}

static void give_waiting(struct st_crew *c)
{
    bool full = c->n_ready == 0;

    for (struct st_request *r = c->waiting.first, *next; r && !full; r = next) {
        struct st_member *m = pick(c, r, &full);

        next = r->next;
        if (m) {
            st_requests_remove(&c->waiting, r);
            give(m, r);
        }
    }
}

/* ---- those that wait ------------------------------------------------------------ */

/* Those that wait get this. */
static void tell_waiting(struct st_crew *c, const struct st_ran *what)
{
    while (c->waiting.first) {
        struct st_request *r = c->waiting.first;
        struct st_ran ran = ST_RAN_INIT;

        st_requests_remove(&c->waiting, r);
        ran.aborted = what->aborted;
        ran.advice = what->advice;
        st_ran_fail(&ran, what->kind, "%s", what->message ? what->message : "");
        request_end(r, &ran);
    }
}

static void give_back(struct st_crew *c, const char *why)
{
    struct st_ran ran = ST_RAN_INIT;

    ran.aborted = ST_ABORT_SHUTDOWN;
    st_ran_fail(&ran, ST_KIND_KILLED, "given back: %s", why);
    tell_waiting(c, &ran);
    st_ran_clear(&ran);
}

/* ---- when children are started --------------------------------------------------- */

static bool all_busy(const struct st_crew *c)
{
    for (const struct st_member *m = c->members; m; m = m->next)
        if (m->state == ST_MEMBER_READY && m->flight.n == 0)
            return false;
    return c->n_ready > 0;
}

/* Would another child be of use? */
static bool wants_more(const struct st_crew *c)
{
    if (c->closing || c->n_starting + c->n_ready >= c->processes)
        return false;
    if (c->n_starting > 0 && (c->supervise.doubtful || !st_supervise_healthy(&c->supervise)))
        return false;
    return c->owed || !st_supervise_healthy(&c->supervise) || c->waiting.n > c->n_starting * c->max_in_flight ||
           (c->n_starting == 0 && all_busy(c));
}

/* How long until one may be started: 0 = now, -1 = never. */
static int64_t start_in(const struct st_crew *c, int64_t now_us)
{
    int64_t wait_us = st_supervise_wait(&c->supervise, now_us);

    if (wait_us >= 0 && c->not_before_us - now_us > wait_us)
        wait_us = c->not_before_us - now_us;
    return wait_us;
}

static void start_more(struct st_crew *c)
{
    while (wants_more(c)) {
        int64_t now_us = st_clock_mono_us(), wait_us = start_in(c, now_us);

        if (wait_us == 0 && st_member_start(c)) {
            c->owed = false;
            st_supervise_started(&c->supervise);
            continue;
        }
        if (wait_us == 0 && !c->members)
            give_back(c, "no process could be made");
        wait_us = start_in(c, now_us); /* it may have been put off */
        if (wait_us > 0 && wants_more(c))
            timer_by(c, now_us + wait_us, now_us);
        break;
    }
}

void st_crew_tend(struct st_crew *c)
{
    if (c->waiting.first)
        give_waiting(c);
    start_more(c);
}

/* Nobody has asked for it since the configuration changed: it is not in it any more. */
static void retire_unused(struct st_crew *c, int64_t now_us)
{
    if (!c->stale_us || c->generation == c->x->generation) {
        c->stale_us = 0;
    } else if (now_us < c->stale_us) {
        timer_by(c, c->stale_us, now_us);
    } else {
        c->stale_us = 0;
        c->owed = false;
        for (struct st_member *m = c->members; m; m = m->next)
            st_member_retire(m);
    }
}

void st_crew_look(struct st_crew *c, int64_t at_us)
{
    timer_by(c, at_us, st_clock_mono_us());
}

/* Those that have nothing to do grow old, too. */
static void check_members(struct st_crew *c)
{
    for (struct st_member *m = c->members, *next; m; m = next) {
        int64_t at_us = st_member_check(m);

        next = m->next;
        if (at_us)
            st_crew_look(c, at_us);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct st_crew *c = timer->data;
    int64_t now_us = st_clock_mono_us();

    c->timer_us = 0;
    while (c->soonest && c->soonest->deadline_us <= now_us)
        request_late(c->soonest);
    retire_unused(c, now_us);
    check_members(c);
    st_crew_tend(c);
    if (c->soonest)
        timer_by(c, c->soonest->deadline_us, now_us);
}

/* ---- health ---------------------------------------------------------------------- */

static const char *crew_name(const struct st_crew *c)
{
    return c->cmd.name ? c->cmd.name : "";
}

static void tell_health(struct st_crew *c, bool healthy, const char *note)
{
    st_log(healthy ? ST_LOG_INFO : ST_LOG_ERROR, healthy ? "children.up" : "children.down", ST_F("type", crew_name(c)),
           ST_F("note", note ? note : ""));
    if (c->x->health)
        c->x->health(c->x->health_arg, crew_name(c), healthy, note);
}

static void tell_down(struct st_crew *c, const char *reason)
{
    char window[ST_DURATION_TEXT], again[ST_DURATION_TEXT];
    struct st_buf b;

    st_buf_init(&b, 2000);
    if (c->cmd.park)
        st_buf_printf(&b, "a child crashed and is not restarted (on_child_crash: park)");
    else
        st_buf_printf(&b, "%d crashes in %s; next try in %s", c->x->supervise.crashes,
                      st_duration_format(c->x->supervise.window_us, window),
                      st_duration_format(c->x->supervise.cool_us, again));
    if (c->n_stray)
        st_buf_printf(&b, "; %llu answers to unknown tasks", (unsigned long long)c->n_stray);
    st_buf_printf(&b, "; last: %s", reason);
    tell_health(c, false, b.p ? b.p : "children crash");
    st_buf_clear(&b);
}

void st_crew_crashed(struct st_crew *c, const char *reason)
{
    bool other = c->cmd.park ? st_supervise_park(&c->supervise)
                             : st_supervise_crashed(&c->supervise, &c->x->supervise, st_clock_mono_us());

    c->owed = true;
    if (other)
        tell_down(c, reason);
}

void st_crew_ready(struct st_crew *c)
{
    if (st_supervise_ready(&c->supervise))
        tell_health(c, true, NULL);
}

void st_crew_settle(struct st_crew *c)
{
    if (c->closing)
        give_back(c, "the worker stops");
    else if (!st_supervise_healthy(&c->supervise))
        give_back(c, "its children cannot be kept up");
    st_crew_tend(c);
}

void st_crew_refuse(struct st_crew *c, const struct st_ran *why)
{
    c->owed = false;
    tell_waiting(c, why);
}

/* ---- crews ----------------------------------------------------------------------- */

static void crew_sizes(struct st_crew *c)
{
    int in_flight = c->cmd.max_in_flight;

    c->processes = c->cmd.processes > 0 ? c->cmd.processes : 1;
    c->max_in_flight = in_flight < 1 ? 1 : in_flight > IN_FLIGHT_MAX ? IN_FLIGHT_MAX : in_flight;
}

static struct st_crew *crew_new(struct st_exec *x, const struct st_command *cmd)
{
    struct st_crew *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    if (!st_command_copy(cmd, &c->cmd)) {
        free(c);
        return NULL;
    }
    c->x = x;
    crew_sizes(c);
    uv_timer_init(x->loop, &c->timer);
    c->timer.data = c;
    c->next = x->crews;
    x->crews = c;
    x->open_handles++;
    return c;
}

/* Another configuration: a fresh start with fresh children. */
static bool crew_change(struct st_crew *c, const struct st_command *cmd)
{
    struct st_command copy;

    if (!st_command_copy(cmd, &copy))
        return false;
    st_command_clear(&c->cmd);
    c->cmd = copy;
    crew_sizes(c);
    c->supervise = (struct st_supervise){0};
    c->owed = false;
    for (struct st_member *m = c->members; m; m = m->next)
        st_member_retire(m);
    return true;
}

static struct st_crew *crew_find(const struct st_exec *x, const struct st_command *cmd)
{
    const char *name = cmd->name ? cmd->name : "";

    for (struct st_crew *c = x->crews; c; c = c->next)
        if (!strcmp(crew_name(c), name))
            return c;
    return NULL;
}

/* The crew of this command, as it is configured now.  NULL = no memory. */
static struct st_crew *crew_of(struct st_exec *x, const struct st_command *cmd)
{
    struct st_crew *c = crew_find(x, cmd);

    if (!c)
        c = crew_new(x, cmd);
    else if (c->same == cmd && c->generation == x->generation)
        return c;
    else if (!st_command_same(&c->cmd, cmd) && !crew_change(c, cmd))
        return NULL;
    if (c) {
        c->same = cmd;
        c->generation = x->generation;
    }
    return c;
}

/* ---- what the executor asks for -------------------------------------------------- */

stint_code st_resident_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                           void *arg, struct st_run **out, stint_error *err)
{
    struct st_crew *c = crew_of(x, cmd);
    struct st_request *r;
    struct st_member *m = NULL;
    bool full;

    if (x->draining)
        return st_fail(err, STINT_EAGAIN, "the worker stops");
    if (c && !st_supervise_healthy(&c->supervise))
        return st_fail(err, STINT_EAGAIN, "the children of %s cannot be kept up", crew_name(c));
    r = c ? request_new(c, job, done, arg) : NULL;
    if (!r)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    *out = &r->run;
    if (!c->waiting.first)
        m = pick(c, r, &full);
    if (m)
        give(m, r);
    else
        st_requests_add(&c->waiting, r);
    if (!m || c->n_starting + c->n_ready < c->processes)
        start_more(c);
    return STINT_OK;
}

int st_resident_room(struct st_exec *x, const struct st_command *cmd)
{
    struct st_crew *c = crew_of(x, cmd);
    int64_t wait_us, room = 0;
    int to_come;

    if (!c || x->draining || !st_supervise_healthy(&c->supervise))
        return 0;
    wait_us = start_in(c, st_clock_mono_us());
    to_come = wait_us >= 0 && wait_us <= SOON_US ? c->processes - c->n_ready : c->n_starting;
    for (const struct st_member *m = c->members; m; m = m->next)
        if (m->state == ST_MEMBER_READY)
            room += c->max_in_flight - m->flight.n;
    room += (int64_t)(to_come > 0 ? to_come : 0) * c->max_in_flight - c->waiting.n;
    return room < 0 ? 0 : room > INT_MAX ? INT_MAX : (int)room;
}

/* A new configuration is a new chance. */
void st_resident_configured(struct st_exec *x)
{
    int64_t now_us = st_clock_mono_us();

    for (struct st_crew *c = x->crews; c; c = c->next) {
        bool other = !st_supervise_healthy(&c->supervise);

        c->supervise = (struct st_supervise){0};
        c->stale_us = now_us + x->stale_us;
        timer_by(c, c->stale_us, now_us);
        if (other)
            tell_health(c, true, NULL);
    }
}

void st_resident_drain(struct st_exec *x)
{
    for (struct st_crew *c = x->crews; c; c = c->next) {
        c->closing = true;
        give_back(c, "the worker stops");
    }
}

void st_resident_close(struct st_exec *x)
{
    for (struct st_crew *c = x->crews; c; c = c->next) {
        c->closing = true;
        for (struct st_member *m = c->members; m; m = m->next)
            st_member_stop(m, false);
    }
}

static void on_crew_closed(uv_handle_t *handle)
{
    struct st_crew *c = handle->data;
    struct st_exec *x = c->x;

    while (c->spare) {
        struct st_request *r = c->spare;

        c->spare = r->next;
        free(r);
    }
    st_command_clear(&c->cmd);
    free(c);
    x->open_handles--;
    st_exec_check_closed(x);
}

void st_resident_free(struct st_exec *x)
{
    while (x->crews) {
        struct st_crew *c = x->crews;

        x->crews = c->next;
        uv_close((uv_handle_t *)&c->timer, on_crew_closed);
    }
}
