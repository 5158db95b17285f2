/* SPDX-License-Identifier: Apache-2.0
 *
 * observe.c - tell whoever listens what happens to a worker's jobs.
 *
 * An outcome becomes an event when the store has taken it, never before: so what is told is what
 * anybody would find in the store, and an outcome that was refused is told as that.
 *
 * Thread: any of the worker's.  Events of one attempt come in order because each is told by the
 * thread that holds the attempt at that moment.
 */
#include "complete/observe.h"

const char *st_event_kind_name(stint_event_kind kind)
{
    static const char *const names[] = {
#define X(name, text) [STINT_EVENT_##name] = text,
        STINT_EVENTS(X)
#undef X
    };

    return (size_t)kind < sizeof(names) / sizeof(*names) ? names[kind] : "";
}

static stint_event event_of(const struct st_observer *o, stint_event_kind kind, const struct st_job *job)
{
    stint_event e = {.kind = kind, .name = st_event_kind_name(kind), .worker = o->worker};

    if (job) {
        e.job = job->id;
        e.type = job->type;
        e.queue = job->queue;
        e.fence = job->fence;
        e.attempt = job->attempt;
    }
    return e;
}

void st_observe_worker(const struct st_observer *o, stint_event_kind kind, const stint_error *err)
{
    stint_event e;

    if (!o->fn)
        return;
    e = event_of(o, kind, NULL);
    if (err) {
        e.reason = stint_code_name(err->code);
        e.message = err->message;
    }
    o->fn(o->arg, &e);
}

void st_observe_job(const struct st_observer *o, stint_event_kind kind, const struct st_job *job)
{
    stint_event e;

    if (!o->fn)
        return;
    e = event_of(o, kind, job);
    o->fn(o->arg, &e);
}

void st_observe_reaped(const struct st_observer *o, const struct st_reaped *r)
{
    stint_event e;

    if (!o->fn)
        return;
    e = event_of(o, STINT_EVENT_JOB_REAPED, NULL);
    e.job = r->id;
    e.fence = r->fence;
    e.state = st_state_name(r->to);
    e.reason = st_kind_name(ST_KIND_LEASE_EXPIRED);
    o->fn(o->arg, &e);
}

void st_observe_abort(const struct st_observer *o, const struct st_job *job, enum st_abort why)
{
    if (why == ST_ABORT_TAKEN)
        st_observe_job(o, STINT_EVENT_ATTEMPT_TAKEN_BY_ANOTHER_WORKER, job);
    else if (why == ST_ABORT_ALREADY_COMPLETED)
        st_observe_job(o, STINT_EVENT_ATTEMPT_ALREADY_COMPLETED, job);
    else if (why == ST_ABORT_NOT_FOUND)
        st_observe_job(o, STINT_EVENT_ATTEMPT_NOT_FOUND, job);
    else if (why == ST_ABORT_LEASE)
        st_observe_job(o, STINT_EVENT_ATTEMPT_LEASE_EXPIRED, job);
}

static stint_event_kind kind_of(const struct st_finish *f)
{
    if (f->outcome == ST_OUT_SUCCEEDED)
        return STINT_EVENT_ATTEMPT_COMPLETED;
    if (f->state == ST_CANCELLED)
        return STINT_EVENT_ATTEMPT_CANCELLED;
    return f->outcome == ST_OUT_RELEASED ? STINT_EVENT_ATTEMPT_RELEASED : STINT_EVENT_ATTEMPT_FAILED;
}

void st_observe_verdict(const struct st_observer *o, const struct st_job *job, const struct st_finish *f,
                        enum st_abort lost)
{
    stint_event e;

    if (!o->fn)
        return;
    if (f->verdict != STINT_OK) {
        st_observe_abort(o, job, lost);
        return;
    }
    e = event_of(o, kind_of(f), job);
    e.state = st_state_name(f->state);
    e.reason = f->kind ? st_kind_name(f->kind) : NULL;
    e.message = f->message.p;
    e.took_us = f->started_ago_us > 0 ? f->started_ago_us : 0;
    e.delay_us = f->delay_us;
    o->fn(o->arg, &e);
}
