/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_wait.c - sleeping until there may be work, or news of this worker's jobs, with stock producers and a stock server.
 *
 * A handle that was told what to watch has two connections: an ear, which is told things, and its own, whose reads are
 * remembered by the server for the ear (CLIENT TRACKING ON REDIRECT):
 *
 *     __redis__:invalidate   a key that was read has changed: said once, until it is read again
 *     asynq:cancel           a job was asked to stop, by asynq's tools or by us
 *     stint:wake:WORKER      c: a job of this worker was asked to stop; l: one may be another's now; .: our own sign of life
 *
 * What is read of each queue: is it paused, how long is its list, what is due first.
 *
 *     STALE --read--> KNOWN --it has changed--> STALE
 *                        |  list was empty: somebody has pushed       ST_NEWS_WORK at once, without reading
 *                        |  list was not empty, or something else     read again, and WORK if there is more to do than before
 *                        `- found something when falling asleep       ST_NEWS_LOOK
 *
 * A busy worker reads nothing: each key costs it one message at most until it falls asleep again.  A paused queue's list is
 * not read, so that it wakes nobody.
 *
 * In a Cluster, and where the server or its ACL refuse tracking (or a subscription), the same is read ten times a second
 * instead.  While there is no connection at all waits only let time pass and say so: ST_NEWS_DEAF.  notify=off: the same.
 * A handle that was not told what to watch makes no connection: its waits come back twice a second.
 *
 * Thread: the handle's; st_redis_interrupt may come from any.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/redis_wait.h"

#define BEAT_US (20 * ST_SEC) /* so often the ear is spoken to */
#define DEAD_US (10 * ST_SEC) /* and so long it may take to hear it */
#define DOZE_US (500 * ST_MS) /* a wait that was not told what for */
#define ALL     (ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST)

#define INVALIDATE "__redis__:invalidate"
#define CANCEL     "asynq:cancel"

/* ---- coming and going -------------------------------------------------------------------------------------- */

stint_code st_redis_wait_open(struct st_redis_store *s, stint_error *err)
{
    struct st_redis_wait *w = calloc(1, sizeof(*w));

    if (!w)
        return st_fail(err, STINT_ENOMEM, "no memory to wait");
    pthread_mutex_init(&w->mu, NULL);
    w->tries = (struct st_tries){.base_us = 100 * ST_MS, .max_us = 5 * ST_SEC};
    w->no_ear = w->no_tracking = !s->notify;
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->w = w;
    return w->fd >= 0 ? STINT_OK : st_fail(err, STINT_EAGAIN, "no descriptor is left to wait with");
}

static void ear_drop(struct st_redis_wait *w)
{
    struct st_redis_ear *ear;

    pthread_mutex_lock(&w->mu);
    ear = w->ear;
    w->ear = NULL;
    pthread_mutex_unlock(&w->mu);
    st_redis_ear_close(ear);
    w->generation = 0;
    w->ear_id = 0;
    w->asleep = false;
}

void st_redis_wait_close(struct st_redis_store *s)
{
    struct st_redis_wait *w = s->w;

    if (!w)
        return;
    ear_drop(w);
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_destroy(&w->mu);
    free(w->queues);
    free(w->places);
    free(w);
    s->w = NULL;
}

void st_redis_op_interrupt(struct st_store *store)
{
    struct st_redis_wait *w = st_redis_of(store)->w;
    const uint64_t one = 1;

    pthread_mutex_lock(&w->mu);
    w->interrupted = true;
    if (w->ear)
        st_redis_ear_interrupt(w->ear);
    if (write(w->fd, &one, sizeof(one)) < 0)
        w->interrupted = true; /* it is full: it wakes all the same */
    pthread_mutex_unlock(&w->mu);
}

static bool was_interrupted(struct st_redis_wait *w)
{
    uint64_t count;
    bool was;

    pthread_mutex_lock(&w->mu);
    was = w->interrupted;
    w->interrupted = false;
    if (read(w->fd, &count, sizeof(count)) < 0)
        count = 0; /* nothing was in it */
    pthread_mutex_unlock(&w->mu);
    return was;
}

/* ---- hearing ------------------------------------------------------------------------------------------------------------ */

/* asynq's own word for it names no worker: whoever holds the job flags it, so that it is remembered. */
static void asked_to_stop(struct st_redis_store *s, struct st_slice id)
{
    struct st_redis_wait *w = s->w;
    struct st_redis_peek peek;
    stint_error err = {0};
    stint_code verdict;

    if (id.len == 0 || id.len > ST_ID_MAX || st_redis_peek_id(s, id, &peek, &err))
        return;
    if (!peek.held_by_us || !st_slice_is(w->worker, peek.task.worker))
        return;
    if (!(peek.task.flags & ST_RT_CANCEL) && st_redis_op_cancel(&s->base, 0, &id, 1, &verdict, NULL, &err))
        st_log(ST_LOG_WARN, "job.cancel_failed", ST_FS("job", id), ST_FE(&err));
    w->pending |= ST_NEWS_CANCEL;
}

static void hear(struct st_redis_store *s, struct st_slice channel, struct st_slice message)
{
    struct st_redis_wait *w = s->w;

    w->heard_us = st_clock_mono_us();
    w->tries.n = 0;
    if (st_slice_is(channel, INVALIDATE))
        st_redis_places_changed(w, message);
    else if (st_slice_is(channel, CANCEL))
        asked_to_stop(s, message);
    else if (st_slice_is(channel, w->own))
        w->pending |= st_slice_is(message, "c") ? ST_NEWS_CANCEL : st_slice_is(message, "l") ? ST_NEWS_LOST : 0;
}

/* ---- the connections ------------------------------------------------------------------------------------------------------- */

static void lost(struct st_redis_store *s, const stint_error *err)
{
    struct st_redis_wait *w = s->w;

    if (!w->away)
        st_log(ST_LOG_WARN, "store.listen_lost", ST_F("where", st_redis_where(s->r)),
               ST_F("error", err && err->message[0] ? err->message : "the connection was lost"),
               ST_F("effect", "new jobs are noticed by polling until it is back"));
    w->away = true;
    ear_drop(w);
    st_redis_places_forget(w);
    w->retry_us = st_clock_mono_us() + st_tries_next(&w->tries);
}

static stint_code ear_make(struct st_redis_store *s, stint_error *err)
{
    struct st_redis_wait *w = s->w;
    const struct st_slice channels[] = {st_slice_cstr(CANCEL), st_slice_cstr(w->own), st_slice_cstr(INVALIDATE)};
    struct st_redis_ear *ear;
    stint_code code = st_redis_ear_open(s->r, ST_NONE, &ear, err);

    if (code)
        return code;
    pthread_mutex_lock(&w->mu);
    w->ear = ear;
    pthread_mutex_unlock(&w->mu);
    code = st_redis_ear_subscribe(ear, channels, 3, err);
    if (code)
        return code;
    w->ear_id = st_redis_ear_id(ear);
    w->heard_us = w->spoken_us = st_clock_mono_us();
    w->renamed = false;
    w->generation = 0;
    return STINT_OK;
}

/* What was said before is lost: it may have been about us. */
static void connect_now(struct st_redis_store *s)
{
    struct st_redis_wait *w = s->w;
    stint_error err = {0};
    const stint_code code = ear_make(s, &err);

    if (code == STINT_ESTORE) { /* not permitted: what can be read is looked at */
        st_log(ST_LOG_WARN, "store.no_listen", ST_F("where", st_redis_where(s->r)), ST_F("why", err.message),
               ST_F("effect", "new jobs are noticed by looking ten times a second"),
               ST_F("remedy", "allow SUBSCRIBE of asynq:cancel, stint:wake:* and __redis__:invalidate to this user"));
        ear_drop(w);
        w->no_ear = w->no_tracking = true;
        return;
    }
    if (code) {
        lost(s, &err);
        return;
    }
    st_log(w->away ? ST_LOG_INFO : ST_LOG_DEBUG, "store.listening", ST_F("where", st_redis_where(s->r)));
    w->away = false;
    w->pending |= ST_NEWS_CANCEL | ST_NEWS_LOST;
}

/* The ear hears what is said on its own channel, or it hears nothing at all. */
static bool keep_alive(struct st_redis_store *s, stint_error *err)
{
    struct st_redis_wait *w = s->w;
    const int64_t now = st_clock_mono_us();
    struct st_redis_batch b;
    stint_code code;

    if (w->heard_us < w->spoken_us && now - w->spoken_us > DEAD_US) {
        st_fail(err, STINT_EAGAIN, "the listening connection hears nothing any more");
        return false;
    }
    if (now - w->spoken_us < BEAT_US)
        return true;
    w->spoken_us = now;
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ, "PUBLISH", w->own, ".", NULL);
    code = st_redis_run(s->r, &b, err);
    st_redis_batch_clear(&b);
    st_redis_places_connection(s);
    return code == STINT_OK;
}

/* ---- waiting -------------------------------------------------------------------------------------------------------------------- */

/* Connected if it can be, and knowing what it must while it sleeps. */
static void tend(struct st_redis_store *s)
{
    struct st_redis_wait *w = s->w;
    const bool may = !w->away || st_clock_mono_us() >= w->retry_us;
    stint_error err = {0};

    if (w->ear && w->renamed)
        ear_drop(w);
    if (!w->ear && !w->no_ear && may)
        connect_now(s);
    if (w->no_ear && may)
        w->away = false; /* the next look tells */
    if (w->ear && !keep_alive(s, &err))
        lost(s, &err);
    if (w->work && !w->away && !(w->pending & ST_NEWS_WORK) && st_redis_places_look(s, &err))
        lost(s, &err);
    if (w->told_deaf != w->away)
        w->pending |= ALL;
}

static int64_t next_us(const struct st_redis_wait *w, int64_t until_us)
{
    int64_t at = until_us;

    if (w->away)
        at = w->retry_us;
    else if (w->work && !st_redis_wait_told(w))
        at = w->read_us + ST_REDIS_LOOK_US;
    else if (w->ear)
        at = w->heard_us < w->spoken_us ? w->spoken_us + DEAD_US : w->spoken_us + BEAT_US;
    return at < until_us ? at : until_us;
}

static void sleep_until(struct st_redis_wait *w, int64_t until_us)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    const int64_t left = until_us - st_clock_mono_us(), us = left < 0 ? 0 : left;
    const struct timespec ts = {.tv_sec = (time_t)(us / ST_SEC), .tv_nsec = (long)(us % ST_SEC) * 1000};

    ppoll(&fd, 1, &ts, NULL);
}

/* Until something is heard, or the time has come. */
static void listen_until(struct st_redis_store *s, int64_t until_us)
{
    struct st_redis_wait *w = s->w;
    const int64_t left = until_us - st_clock_mono_us();
    struct st_slice channel = ST_NONE, message = ST_NONE;
    stint_error err = {0};
    int ms = left <= 0 ? 0 : (int)((left + ST_MS - 1) / ST_MS);

    if (!w->ear) {
        sleep_until(w, until_us);
        return;
    }
    do { /* all that has come */
        if (st_redis_ear_next(w->ear, ms, &channel, &message, &err)) {
            lost(s, &err);
            w->pending |= ST_NEWS_CANCEL | ST_NEWS_LOST;
            return;
        }
        if (channel.p)
            hear(s, channel, message);
        ms = 0;
    } while (channel.p);
}

static void tell(struct st_redis_wait *w, bool *woken)
{
    if (!w->work)
        w->pending &= ~(unsigned)(ST_NEWS_WORK | ST_NEWS_LOOK);
    *woken = w->pending != 0;
    w->told_deaf = w->away;
    w->news = w->pending | (w->away ? ST_NEWS_DEAF : 0);
    w->pending = 0;
}

static void wait_in(struct st_redis_store *s, int64_t until_us, bool *woken)
{
    struct st_redis_wait *w = s->w;

    for (bool first = true;; first = false) {
        tend(s);
        if (w->pending)
            tell(w, woken);
        if (*woken || was_interrupted(w) || (!first && st_clock_mono_us() >= until_us))
            return;
        listen_until(s, next_us(w, until_us));
    }
}

static void doze(struct st_redis_wait *w, int64_t until_us, bool *woken)
{
    const int64_t nap_us = st_clock_mono_us() + DOZE_US;

    sleep_until(w, nap_us < until_us ? nap_us : until_us);
    *woken = !was_interrupted(w) && nap_us < until_us;
    if (*woken)
        w->news = ALL | ST_NEWS_DEAF;
}

stint_code st_redis_op_wait(struct st_store *store, int timeout_ms, bool *woken, stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + timeout_ms * ST_MS;
    struct st_redis_store *s = st_redis_of(store);

    (void)err;
    *woken = false;
    s->w->news = 0;
    if (s->w->watched)
        wait_in(s, until_us, woken);
    else
        doze(s->w, until_us, woken);
    return STINT_OK;
}

unsigned st_redis_op_news(struct st_store *store)
{
    return st_redis_of(store)->w->news;
}
