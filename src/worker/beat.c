/* SPDX-License-Identifier: Apache-2.0
 *
 * beat.c - watch over the leases of what we hold.
 *
 * While anything is held a timer ticks.  Each tick gathers the jobs whose lease wants renewing or whose start the
 * store does not know yet, and hands them to the lease thread as one beat.  A lease that was not renewed in time ends
 * by our own clock before it ends by the store's: then the attempt is stopped.
 *
 * Thread: loop.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/worker_int.h"

#define QUEUED_MAX (2 * ST_SEC) /* how long a prefetched job may wait for a slot here */

static int64_t tick_us(const struct st_worker *w)
{
    int64_t us = w->settings->lease_us;

    for (size_t i = 0; i < w->settings->n_types; i++) {
        if (w->settings->types[i].lease_us > 0 && w->settings->types[i].lease_us < us)
            us = w->settings->types[i].lease_us;
    }
    for (size_t i = 0; i < w->opt.n_handlers; i++) {
        if (w->opt.handlers[i].lease_us > 0 && w->opt.handlers[i].lease_us < us)
            us = w->opt.handlers[i].lease_us;
    }
    us /= 10;
    return us > 500 * ST_MS ? 500 * ST_MS : us < 20 * ST_MS ? 20 * ST_MS : us;
}

static bool wants_beat(const struct held *h, int64_t now)
{
    if (h->beating || st_abort_lost(h->stopping) || h->stopping == ST_ABORT_TIMEOUT ||
        atomic_load_explicit(&h->item.settling, memory_order_relaxed))
        return false;
    if (h->w->renew_all || now >= h->lease.renew_at_us || atomic_load_explicit(&h->item.progress, memory_order_relaxed))
        return true;
    return !h->start_told && held_started(h) && now - held_started(h) > 250 * ST_MS;
}

static void fill_beat(struct st_beat *b, struct held *h)
{
    const struct st_job *job = h->done.job;

    memset(b, 0, sizeof(*b));
    snprintf(b->id, sizeof(b->id), "%s", job->id);
    b->fence = job->fence;
    b->ref = job->ref;
    b->lease_us = job->lease_us;
    if (!h->start_told)
        b->started_boot_us = held_started(h);
    b->progress = st_item_progress_take(&h->item);
}

/* What could not be told is still news. */
static void take_back(struct st_worker *w, struct st_beat *b)
{
    struct held *h = held_find(w, b->id, b->fence);

    if (h && b->progress) {
        st_item_progress_back(&h->item, b->progress);
        b->progress = NULL;
    }
}

static uint64_t fingerprint(const char *p, size_t len)
{
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h;
}

/* What a child has said of its progress since the last tick becomes news, as a handler's is. */
static void collect_progress(struct st_worker *w)
{
    for (struct held *h = w->first; h; h = h->next) {
        size_t len = 0;
        const char *p = h->run ? st_run_progress(h->run, &len) : NULL;
        uint64_t print = p ? fingerprint(p, len) : 0;

        if (p && print != h->progress_print && st_item_progress(&h->item, ST_SLICE(p, len)))
            h->progress_print = print;
    }
}

static void send_beat(struct st_worker *w, int64_t now)
{
    struct st_beat *beats;
    size_t room = 0, n = 0;

    for (struct held *h = w->first; h; h = h->next)
        room += wants_beat(h, now);
    if (room == 0 || !(beats = calloc(room, sizeof(*beats))))
        return;
    for (struct held *h = w->first; h && n < room; h = h->next) { /* handlers may report more meanwhile */
        if (wants_beat(h, now))
            fill_beat(&beats[n++], h);
    }
    if (!st_lessor_beat(w->lessor, beats, n)) {
        for (size_t i = 0; i < n; i++)
            take_back(w, &beats[i]);
        st_beats_free(beats, n); /* one is under way; the next tick comes soon */
        return;
    }
    w->renew_all = false;
    for (size_t i = 0; i < n; i++)
        held_find(w, beats[i].id, beats[i].fence)->beating = true;
}

/* While another beat is under way it waits for that one's answer. */
void beat_all(struct st_worker *w)
{
    w->renew_all = w->n_held > 0;
    send_beat(w, st_clock_boot_us());
}

/* A command's timeout is its executor's business; a handler of this process can only be asked. */
static bool past_timeout(const struct held *h, int64_t now)
{
    int64_t timeout_us = h->done.job->policy.timeout_us;

    return h->item.fn && h->stopping == ST_ABORT_NOT && timeout_us > 0 && held_started(h) &&
           now - held_started(h) >= timeout_us;
}

/* Our own clock: stop what we may no longer believe in. */
static void check_deadlines(struct st_worker *w, int64_t now)
{
    struct held *h = w->first;

    while (h) {
        struct held *next = h->next;

        if (h->state == HELD_RUNNING && now >= h->lease.kill_at_us)
            slots_abort(h, ST_ABORT_LEASE, true);
        else if (now >= h->lease.stop_at_us && h->stopping == ST_ABORT_NOT) /* given back, or charged */
            slots_abort(h, h->state == HELD_QUEUED ? ST_ABORT_SHUTDOWN : ST_ABORT_LEASE, false);
        else if (past_timeout(h, now))
            slots_abort(h, ST_ABORT_TIMEOUT, false);
        h = next;
    }
}

/* People look at the workers table: keep its count of running jobs fresh, at most once a second. */
static void tell_running(struct st_worker *w, int64_t now)
{
    int running = atomic_load(&w->vitals.running);

    if (running == w->told_running || now - w->told_us < ST_SEC || !w->maintainer)
        return;
    w->told_running = running;
    w->told_us = now;
    st_maintainer_nudge(w->maintainer);
}

/* A store that tells whom its news is for says when a job of ours was asked to stop.  Others are listened to, and where
 * there is nothing to listen to we look, as often as for new jobs. */
static void heed_cancels(struct st_worker *w, int64_t now)
{
    if (w->hinter && w->n_running)
        st_hinter_listen(w->hinter);
    if (feed_hears(w) || now - w->looked_us < w->settings->poll_us)
        return;
    w->looked_us = now;
    st_lessor_look(w->lessor);
}

static void on_tick(uv_timer_t *t)
{
    struct st_worker *w = t->data;
    int64_t now = st_clock_boot_us();

    tell_running(w, now);
    if (w->n_held == 0) {
        if (w->told_running == 0)
            uv_timer_stop(t);
        return;
    }
    if (w->lines)
        collect_progress(w);
    send_beat(w, now);
    check_deadlines(w, now);
    if (w->n_running >= (size_t)w->settings->slots || w->n_queued)
        slots_release_queued(w, QUEUED_MAX);
    heed_cancels(w, now);
    worker_advance(w);
}

void beat_start(struct st_worker *w)
{
    uint64_t ms = (uint64_t)(tick_us(w) / ST_MS);

    if (!uv_is_active((uv_handle_t *)&w->tick))
        uv_timer_start(&w->tick, on_tick, ms, ms);
}

static void on_verdict(struct st_worker *w, const struct st_beat *b, int64_t asked_us)
{
    struct held *h = held_find(w, b->id, b->fence);

    if (!h)
        return;
    h->beating = false;
    if (b->verdict == STINT_ELOST) {
        if (!atomic_load(&h->item.settling)) /* else it is just ending the job itself */
            slots_abort(h, b->lost, false);
        return;
    }
    st_observe_job(&w->observer, STINT_EVENT_ATTEMPT_LEASE_RENEWED, h->done.job);
    h->asked_us = asked_us;
    h->lease = st_lease_from(asked_us, h->done.job->lease_us, h->renew_us, h->grace_us);
    if (b->started_boot_us) {
        h->start_told = true;
        h->done.job->state = ST_RUNNING;
    }
    if (b->cancel && h->stopping == ST_ABORT_NOT)
        slots_abort(h, ST_ABORT_CANCELLED, false);
}

static void on_silence(struct st_worker *w, struct st_beat *b)
{
    struct held *h = held_find(w, b->id, b->fence);

    if (h)
        h->beating = false; /* no answer is not a no: the next tick asks again */
    take_back(w, b);
}

void beat_on_news(struct st_worker *w, struct st_lessor_news *news)
{
    for (size_t i = 0; i < news->n; i++) {
        if (news->code == STINT_OK && news->beats[i].verdict != STINT_EAGAIN)
            on_verdict(w, &news->beats[i], news->asked_us);
        else
            on_silence(w, &news->beats[i]);
    }
    for (size_t i = 0; i < news->n_flagged; i++) {
        struct held *h = held_find(w, news->flagged[i], 0);

        if (h && h->stopping == ST_ABORT_NOT)
            slots_abort(h, ST_ABORT_CANCELLED, false);
    }
    st_beats_free(news->beats, news->n);
    free(news->flagged);
    if (w->renew_all)
        send_beat(w, st_clock_boot_us());
}
