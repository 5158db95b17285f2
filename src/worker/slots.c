/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.c - put waiting jobs into free slots, and take them out again.
 *
 * Thread: loop.
 */
#include <string.h>

#include "execute/mock.h"
#include "worker/worker_int.h"

#define NUDGE_MS 5

static const struct st_worker_handler *find_handler(const struct st_worker *w, const struct st_job *job)
{
    const struct st_worker_handler *best = NULL;
    int score = 0;

    for (size_t i = 0; i < w->opt.n_handlers; i++) {
        int s = st_pattern_match(st_slice_cstr(w->opt.handlers[i].pattern), st_slice_cstr(job->type));

        if (s > score) {
            score = s;
            best = &w->opt.handlers[i];
        }
    }
    return best;
}

/* Given back uncharged. */
static void release(struct held *h)
{
    h->done.ran.aborted = ST_ABORT_SHUTDOWN;
    held_over(h);
}

void slots_put_off(struct held *h)
{
    h->done.put_off = true;
    release(h);
}

/* The executor is done with a command. */
static void on_ran(void *arg, struct st_ran *ran)
{
    struct held *h = arg;
    struct st_worker *w = h->w;

    h->done.ran = *ran;
    h->run = NULL;
    if (h->stopping != ST_ABORT_NOT)
        h->done.ran.aborted = h->stopping;
    types_on_end(w, h->done.job, &h->done.ran);
    held_over(h);
    if (w->capped)
        feed_wet(w);
    worker_advance(w);
}

static void begin_in_process(struct held *h, const struct st_worker_handler *in)
{
    struct st_worker *w = h->w;

    held_began(h);
    if (in->renew_us || in->lease_us)
        h->renew_us = in->renew_us;
    st_item_init(&h->item, in->fn, in->arg, h->done.job);
    *(w->push_last ? &w->push_last->next : &w->push_first) = &h->item;
    w->push_last = &h->item;
    w->n_push++;
}

/* No process could be made: the machine is short of something.  What waits here may run elsewhere; we ask for nothing
 * more until a while has passed. */
static void hold_back(struct st_worker *w)
{
    struct held *h = w->next_queued, *next;

    for (; h; h = next) {
        next = h->next;
        if (h->state == HELD_QUEUED)
            release(h);
    }
    feed_hold(w, st_tries_next(&w->start_tries));
}

static void begin_command(struct held *h, const struct st_type_conf *conf)
{
    struct st_worker *w = h->w;
    stint_error err;

    h->grace_us = conf->command.grace_us;
    h->renew_us = conf->renew_us ? conf->renew_us : w->settings->renew_us;
    held_began(h);
    h->done.started_boot_us = st_clock_boot_us();
    if (st_exec_run(w->exec, &conf->command, h->done.job, on_ran, h, &h->run, &err) != STINT_OK) {
        st_log(ST_LOG_ERROR, "job.not_started", ST_F("job", h->done.job->id), ST_FE(&err));
        h->done.started_boot_us = 0;
        release(h);
        hold_back(w);
        return;
    }
    w->start_tries.n = 0;
    st_observe_job(&w->observer, STINT_EVENT_ATTEMPT_STARTED, h->done.job);
    st_log(ST_LOG_DEBUG, "job.started", ST_F("job", h->done.job->id), ST_F("type", h->done.job->type),
           ST_FI("attempt", h->done.job->attempt), ST_FI("fence", h->done.job->fence));
}

/* Its pool is made when the first one comes. */
static void begin_builtin(struct held *h, const struct st_type_conf *conf)
{
    struct st_worker *w = h->w;
    const struct st_worker_handler in = {.fn = st_mock_handler(),
                                         .lease_us = conf->lease_us,
                                         .renew_us = conf->renew_us ? conf->renew_us : w->settings->renew_us};
    stint_error err;

    if (!w->pool && st_pool_new(w->settings->slots, &w->wake, &w->pool, &err) != STINT_OK) {
        st_log(ST_LOG_ERROR, "job.not_started", ST_F("job", h->done.job->id), ST_FE(&err));
        release(h);
        hold_back(w);
        return;
    }
    begin_in_process(h, &in);
}

/* Leaves it where it is while its type has no room. */
static void begin(struct held *h)
{
    const struct st_job *job = h->done.job;
    const struct st_worker_handler *in = find_handler(h->w, job);
    const struct st_type_conf *conf = NULL;

    if (!in)
        conf = st_settings_handler(h->w->settings, st_slice_cstr(job->type), st_slice_cstr(job->queue));
    if (conf && !types_can_begin(h->w, conf))
        return;
    if (in) {
        begin_in_process(h, in);
    } else if (conf && conf->builtin) {
        begin_builtin(h, conf);
    } else if (conf) {
        begin_command(h, conf);
    } else { /* configured away while it was under way to us */
        release(h);
    }
    h->lease = st_lease_from(h->asked_us, job->lease_us, h->renew_us, h->grace_us);
}

/* Where all handlers are in-process the pool's threads are the slots, and what waits may wait there: so that a short
 * handler is followed by the next without a turn of the loop. */
static bool slot_free(const struct st_worker *w)
{
    return w->n_running < (size_t)w->settings->slots || w->settings->n_types == 0;
}

static void on_nudge(uv_timer_t *t)
{
    struct st_worker *w = t->data;

    if (w->n_pooled == 0)
        uv_timer_stop(t);
    else
        st_pool_nudge(w->pool);
}

static void push_all(struct st_worker *w)
{
    st_pool_push(w->pool, w->push_first, w->push_last, w->n_push);
    w->n_pooled += w->n_push;
    w->push_first = w->push_last = NULL;
    w->n_push = 0;
    if (!uv_is_active((uv_handle_t *)&w->nudge))
        uv_timer_start(&w->nudge, on_nudge, NUDGE_MS, NUDGE_MS);
}

void slots_fill(struct st_worker *w)
{
    struct held *h = w->next_queued, *next;

    for (; h && w->phase == WORKING && slot_free(w); h = next) {
        next = h->next;
        if (h->state == HELD_QUEUED)
            begin(h);
        if (next && next->state == HELD_OVER)
            break; /* all were given back */
    }
    if (w->n_push)
        push_all(w);
}

static struct held *held_of(struct st_pool_item *it)
{
    return (struct held *)((char *)it - offsetof(struct held, item));
}

void slots_collect(struct st_worker *w)
{
    struct st_pool_item *it = w->pool ? st_pool_take(w->pool) : NULL;

    while (it) {
        struct st_pool_item *next = it->next;
        struct held *h = held_of(it);

        w->n_pooled--;
        h->done.ran = it->ran;
        if (st_abort_lost(h->stopping))
            h->done.ran.aborted = h->stopping;
        h->done.started_boot_us = atomic_load(&it->started_us);
        held_over(h);
        it = next;
    }
}

/* What waits in the pool comes back and is released. */
static void release_pooled(struct st_worker *w)
{
    struct st_pool_item *it = w->pool ? st_pool_withdraw(w->pool) : NULL;

    while (it) {
        struct st_pool_item *next = it->next;

        w->n_pooled--;
        release(held_of(it));
        it = next;
    }
}

void slots_abort(struct held *h, enum st_abort why, bool now)
{
    if (h->state == HELD_QUEUED) {
        h->done.ran.aborted = why;
        st_observe_abort(&h->w->observer, h->done.job, why);
        if (st_abort_lost(why))
            held_forget(h);
        else
            held_over(h);
        return;
    }
    if (h->stopping == ST_ABORT_NOT) {
        st_log(ST_LOG_INFO, "job.stopping", ST_F("job", h->done.job->id), ST_F("type", h->done.job->type),
               ST_FI("fence", h->done.job->fence), ST_F("reason", st_abort_name(why)));
        st_observe_abort(&h->w->observer, h->done.job, why);
        h->stopping = why;
    } else if (st_abort_lost(why) && !st_abort_lost(h->stopping)) {
        st_observe_abort(&h->w->observer, h->done.job, why);
        h->stopping = why; /* whatever the reason was: the outcome is not ours to write any more */
    }
    if (!h->run)
        st_item_abort(&h->item, h->stopping);
    else if (now)
        st_exec_kill(h->run, why);
    else
        st_exec_abort(h->run, why);
}

/* Prefetched jobs that wait for a slot: somebody else may have one. */
void slots_release_queued(struct st_worker *w, int64_t older_than_us)
{
    int64_t now = st_clock_boot_us();
    struct held *h = w->first;
    bool pooled = false;

    while (h) {
        struct held *next = h->next;
        bool old = now - h->queued_us >= older_than_us;

        if (old && h->state == HELD_QUEUED)
            release(h);
        else if (old && h->item.fn && !held_started(h))
            pooled = true;
        h = next;
    }
    if (pooled)
        release_pooled(w);
}
