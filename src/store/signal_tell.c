/* SPDX-License-Identifier: Apache-2.0
 *
 * signal_tell.c - publishes hints to Redis, from a thread of its own.
 *
 * What is told while a batch is on its way waits for the next one, each thing once: the busier, the fewer batches.  When
 * Redis is away what is told is dropped, and people are told once: whoever listens has lost his connection too, and looks
 * for himself.
 *
 * Invariant: telling never waits for Redis; only the end does, and not for long.
 *
 * Thread: its own, and any that tells.
 */
#include "store/signal_int.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

#define PENDING_MAX 256 /* different things; then it is "any" */

struct words {
    struct {
        enum st_signal_what what;
        char about[ST_ID_MAX + 1];
    } items[PENDING_MAX];
    size_t n;
};

_Static_assert(ST_ID_MAX >= ST_NAME_MAX, "a queue's name must fit");

struct st_teller {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    pid_t pid;
    struct st_signal_channels channels;
    struct words pending; /* under the mutex */
    bool stop;            /* under the mutex */

    /* the thread's */
    struct st_redis *r;
    struct words sending;
    bool away;
    int64_t retry_us;
    struct st_tries tries;
};

/* ---- the thread ------------------------------------------------------------------------------ */

static void went_away(struct st_teller *t, const stint_error *err)
{
    t->retry_us = st_clock_mono_us() + st_tries_next(&t->tries);
    if (!t->away)
        st_log(ST_LOG_WARN, "signal.lost", ST_F("redis", st_redis_where(t->r)), ST_F("what", "telling"), ST_FE(err),
               ST_F("effect", "other workers find new jobs by polling"));
    t->away = true;
}

static void came_back(struct st_teller *t)
{
    if (t->away)
        st_log(ST_LOG_INFO, "signal.back", ST_F("redis", st_redis_where(t->r)), ST_F("what", "telling"));
    t->away = false;
    t->tries.n = 0;
}

static void publish(struct st_teller *t)
{
    struct st_redis_batch b;
    stint_error err = {0};
    stint_code code;

    if (t->away && st_clock_mono_us() < t->retry_us)
        return;
    st_redis_batch_init(&b);
    for (size_t i = 0; i < t->sending.n; i++) /* twice is harmless: it may be sent again as if it only read */
        st_redis_addv(&b, ST_REDIS_READ, "PUBLISH", t->channels.names[t->sending.items[i].what],
                      t->sending.items[i].about, NULL);
    code = st_redis_run(t->r, &b, &err);
    for (size_t i = 0; i < b.n && !code; i++)
        code = st_redis_reply_fail(t->r, st_redis_reply(&b, i), &err);
    st_redis_batch_clear(&b);
    if (code)
        went_away(t, &err);
    else
        came_back(t);
}

static void *teller_thread(void *arg)
{
    struct st_teller *t = arg;

    pthread_mutex_lock(&t->mutex);
    for (;;) {
        while (!t->pending.n && !t->stop)
            pthread_cond_wait(&t->cond, &t->mutex);
        if (!t->pending.n)
            break;
        t->sending = t->pending;
        t->pending.n = 0;
        pthread_mutex_unlock(&t->mutex);
        publish(t);
        pthread_mutex_lock(&t->mutex);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

/* ---- the others' side -------------------------------------------------------------------------- */

static void teller_clear(struct st_teller *t)
{
    st_redis_close(t->r);
    pthread_cond_destroy(&t->cond);
    pthread_mutex_destroy(&t->mutex);
    free(t);
}

struct st_teller *st_teller_new(const char *url, const struct st_signal_channels *channels, stint_error *err)
{
    struct st_teller *t = calloc(1, sizeof(*t));
    stint_code code;

    if (!t) {
        st_fail(err, STINT_ENOMEM, "no memory for the signal");
        return NULL;
    }
    pthread_mutex_init(&t->mutex, NULL);
    st_cond_init(&t->cond);
    t->pid = getpid();
    t->channels = *channels;
    t->tries = (struct st_tries){.base_us = 500 * ST_MS, .max_us = 10 * ST_SEC};
    code = st_redis_open(url, ST_SIGNAL_TIMEOUT_MS, &t->r, err);
    if (!code)
        code = st_thread_start(&t->thread, "stint-signal", teller_thread, t, err);
    if (!code)
        return t;
    teller_clear(t);
    return NULL;
}

static bool is_pending(const struct words *w, enum st_signal_what what, struct st_slice about)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->items[i].what == what &&
            (st_slice_is(about, w->items[i].about) || strcmp(w->items[i].about, ST_SIGNAL_ANY) == 0))
            return true;
    return false;
}

/* Where there is no room left it becomes "any", for which a place of each kind is kept. */
static void add(struct words *w, enum st_signal_what what, struct st_slice about)
{
    if (w->n >= PENDING_MAX - ST_SIGNAL_N || about.len > ST_ID_MAX)
        about = st_slice_cstr(ST_SIGNAL_ANY);
    if (is_pending(w, what, about) || w->n == PENDING_MAX)
        return;
    w->items[w->n].what = what;
    memcpy(w->items[w->n].about, about.p, about.len);
    w->items[w->n++].about[about.len] = '\0';
}

void st_teller_tell(struct st_teller *t, enum st_signal_what what, struct st_slice about)
{
    if (t->pid != getpid())
        return;
    pthread_mutex_lock(&t->mutex);
    add(&t->pending, what, about);
    pthread_cond_signal(&t->cond);
    pthread_mutex_unlock(&t->mutex);
}

void st_teller_free(struct st_teller *t)
{
    if (!t || t->pid != getpid()) /* a forked child has no such thread */
        return;
    pthread_mutex_lock(&t->mutex);
    t->stop = true;
    pthread_cond_signal(&t->cond);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    teller_clear(t);
}
