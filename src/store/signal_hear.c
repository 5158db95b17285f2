/* SPDX-License-Identifier: Apache-2.0
 *
 * signal_hear.c - waits that listen to Redis.
 *
 *     HEARS --connection lost--> AWAY --connected again--> HEARS   and a look at everything: something may have been said
 *
 * While it is AWAY the worker is told that it is deaf, and polls.  Where the real store's waits are for everything
 * (SQLite's, which notice what this machine writes) they stand in for a worker that sleeps.
 *
 * Work that is heard of while the worker does not sleep is remembered until it does: its last claim may have come too
 * early for it.
 *
 * Thread: the handle's, but for st_hearer_interrupt.
 */
#include "store/signal_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"

#define EVERYTHING (ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST)

struct st_hearer {
    struct st_redis_ear *ear;
    struct st_signal_channels channels;
    const char *where; /* the client's */

    bool watched, work;
    char worker[ST_ID_MAX + 1];
    char (*queues)[ST_NAME_MAX + 1];
    size_t n_queues; /* 0 = all */

    bool subscribed, hears, told_away;
    unsigned pending; /* heard, and not told yet */
    unsigned news;    /* what the last wait has told */
    struct st_tries tries;
    int64_t retry_us;
};

struct st_hearer *st_hearer_new(struct st_redis *r, const struct st_signal_channels *channels, stint_error *err)
{
    struct st_hearer *h = calloc(1, sizeof(*h));

    if (!h) {
        st_fail(err, STINT_ENOMEM, "no memory for the signal");
        return NULL;
    }
    h->channels = *channels;
    h->where = st_redis_where(r);
    h->tries = (struct st_tries){.base_us = 500 * ST_MS, .max_us = 10 * ST_SEC};
    if (st_redis_ear_open(r, ST_NONE, &h->ear, err)) {
        free(h);
        return NULL;
    }
    return h;
}

void st_hearer_free(struct st_hearer *h)
{
    if (!h)
        return;
    st_redis_ear_close(h->ear);
    free(h->queues);
    free(h);
}

void st_hearer_interrupt(struct st_hearer *h)
{
    st_redis_ear_interrupt(h->ear);
}

unsigned st_hearer_news(struct st_hearer *h)
{
    return h->news;
}

/* ---- what it is for ------------------------------------------------------------------------------ */

stint_code st_hearer_watch(struct st_hearer *h, struct st_slice worker, const struct st_slice *queues, size_t n,
                           bool work, stint_error *err)
{
    char(*names)[ST_NAME_MAX + 1] = calloc(n ? n : 1, sizeof(*names));

    if (!names)
        return st_fail(err, STINT_ENOMEM, "no memory to wait");
    for (size_t i = 0; i < n; i++)
        snprintf(names[i], sizeof(names[i]), "%.*s", (int)queues[i].len, queues[i].p);
    snprintf(h->worker, sizeof(h->worker), "%.*s", (int)worker.len, worker.p);
    free(h->queues);
    h->queues = names;
    h->n_queues = n;
    h->watched = true;
    h->work = work;
    return STINT_OK;
}

/* A parent means its subs; word of a parent (it was resumed) concerns them too. */
static bool is_ours(const struct st_hearer *h, struct st_slice queue)
{
    if (!h->n_queues || st_slice_is(queue, ST_SIGNAL_ANY))
        return true;
    for (size_t i = 0; i < h->n_queues; i++) {
        const struct st_slice ours = st_slice_cstr(h->queues[i]);

        if (st_queue_covers(ours, queue) || st_queue_covers(queue, ours))
            return true;
    }
    return false;
}

static void heard(struct st_hearer *h, struct st_slice channel, struct st_slice about)
{
    if (!about.p)
        return;
    if (st_slice_is(channel, h->channels.names[ST_SIGNAL_CANCEL]))
        h->pending |= ST_NEWS_CANCEL;
    else if (st_slice_is(channel, h->channels.names[ST_SIGNAL_OWLS]) &&
             (st_slice_is(about, h->worker) || st_slice_is(about, ST_SIGNAL_ANY)))
        h->pending |= ST_NEWS_LOST;
    else if (st_slice_is(channel, h->channels.names[ST_SIGNAL_SCHED]) && is_ours(h, about))
        h->pending |= ST_NEWS_WORK;
}

/* ---- connected or not ------------------------------------------------------------------------------ */

static void went_away(struct st_hearer *h, const stint_error *err)
{
    h->hears = false;
    h->retry_us = st_clock_mono_us() + st_tries_next(&h->tries);
    if (!h->told_away)
        st_log(ST_LOG_WARN, "signal.lost", ST_F("redis", h->where), ST_F("what", "listening"), ST_FE(err),
               ST_F("effect", "new jobs are found by polling"));
    h->told_away = true;
}

static void came_back(struct st_hearer *h)
{
    if (h->told_away)
        st_log(ST_LOG_INFO, "signal.back", ST_F("redis", h->where), ST_F("what", "listening"));
    h->told_away = false;
    h->hears = true;
    h->tries.n = 0;
    h->pending = EVERYTHING;
}

/* Connects, unless it failed to a moment ago. */
static void try_to_hear(struct st_hearer *h)
{
    struct st_slice names[ST_SIGNAL_N], channel, about;
    stint_error err = {0};
    stint_code code;

    if (h->hears || st_clock_mono_us() < h->retry_us)
        return;
    for (size_t i = 0; i < ST_SIGNAL_N; i++)
        names[i] = st_slice_cstr(h->channels.names[i]);
    code = h->subscribed ? st_redis_ear_next(h->ear, 0, &channel, &about, &err)
                         : st_redis_ear_subscribe(h->ear, names, ST_SIGNAL_N, &err);
    h->subscribed = true; /* also when it failed: the ear keeps the names */
    if (code)
        went_away(h, &err);
    else
        came_back(h); /* something may have been heard just now: everything is looked at anyway */
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

static int left_ms(int64_t until_us)
{
    const int64_t left = until_us - st_clock_mono_us();

    return left > 0 ? (int)((left + ST_MS - 1) / ST_MS) : 0;
}

/* *over: it was interrupted, or the time has passed. */
static void listen(struct st_hearer *h, int64_t until_us, bool *over)
{
    struct st_slice channel, about;
    stint_error err = {0};

    if (st_redis_ear_next(h->ear, left_ms(until_us), &channel, &about, &err))
        went_away(h, &err);
    else if (!channel.p)
        *over = true;
    else
        heard(h, channel, about);
}

/* Until it is time to try Redis again.  The real store's wait is for a worker that sleeps; one that is busy would be woken
 * by everything it writes itself. */
static stint_code stand_in(struct st_hearer *h, struct st_store *real, int64_t until_us, bool *over, stint_error *err)
{
    const int left = left_ms(until_us), most = left_ms(h->retry_us) + 1, ms = left < most ? left : most;
    stint_code code = STINT_OK;
    bool woken = false;

    if (!(h->news & ST_NEWS_DEAF)) { /* say so once */
        h->pending |= ST_NEWS_DEAF;
        return STINT_OK;
    }
    if (h->work && !real->ops->watch)
        code = st_store_wait(real, ms, &woken, err);
    else
        st_redis_ear_sleep(h->ear, ms);
    if (woken)
        h->pending |= ST_NEWS_WORK;
    *over = code || !woken;
    return code;
}

/* What of the pending news is for now. */
static unsigned due_news(const struct st_hearer *h)
{
    return h->pending & ~(h->work ? 0u : (unsigned)ST_NEWS_WORK);
}

stint_code st_hearer_wait(struct st_hearer *h, struct st_store *real, int timeout_ms, bool *woken, stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + timeout_ms * ST_MS;
    stint_code code = STINT_OK;
    bool over = false;

    *woken = false;
    if (!h->watched) /* somebody waits for an end, of which nothing is said here */
        return st_store_wait(real, timeout_ms, woken, err);
    while (!code && !over) {
        try_to_hear(h);
        if (due_news(h))
            break;
        if (h->hears)
            listen(h, until_us, &over);
        else
            code = stand_in(h, real, until_us, &over, err);
    }
    *woken = due_news(h) != 0;
    if (*woken) {
        h->news = due_news(h) | (h->hears ? 0u : (unsigned)ST_NEWS_DEAF);
        h->pending &= ~h->news;
    }
    return code;
}
