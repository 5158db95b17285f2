/* SPDX-License-Identifier: Apache-2.0
 *
 * hint.c - be woken when there may be work, or news of the jobs that run.
 *
 * Hints only shorten the wait: losing all of them costs latency up to the poll interval, doubling them costs an
 * empty claim.
 *
 *     DISARMED --arm--> ARMED --there may be work--> DISARMED, wake the loop
 *
 * A store whose waits are for everything is waited for only while armed: the thread sleeps for good while the worker is
 * busy, since a busy worker asks anyway.  A store that tells whom its news is for is always waited for: while disarmed for
 * what concerns this worker's own jobs, and nobody then takes it for one that sleeps.
 *
 * Thread: its own, with a store handle of its own.
 */
#include "claim/hint.h"

#include <stdlib.h>

#include "base/thread.h"

#define WAIT_MS     60000
#define SPACING_MAX (20 * ST_MS)

struct st_hinter {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    uv_async_t *wake;
    const struct st_opener *opener;
    char worker_id[ST_ID_MAX + 1];

    /* under the mutex */
    struct st_plan *plan;
    bool armed, stop, addressed, deaf;
    bool spaced; /* it has kept its distance since it was armed */
    unsigned news;
    int64_t spacing_us;
    struct st_store *store; /* set by the thread, interrupted by others */
};

/* ---- the thread ------------------------------------------------------------------- */

static void pause_for(struct st_hinter *h, int64_t us)
{
    pthread_mutex_lock(&h->mutex);
    if (!h->stop)
        st_cond_wait_us(&h->cond, &h->mutex, us);
    pthread_mutex_unlock(&h->mutex);
}

static bool stopped(struct st_hinter *h)
{
    bool stop;

    pthread_mutex_lock(&h->mutex);
    stop = h->stop;
    pthread_mutex_unlock(&h->mutex);
    return stop;
}

static bool open_store(struct st_hinter *h)
{
    struct st_tries tries = {.base_us = 100 * ST_MS, .max_us = 5 * ST_SEC};
    struct st_store *s = NULL;

    while (!stopped(h)) {
        if (h->opener->open(h->opener->arg, &s, NULL) == STINT_OK) {
            pthread_mutex_lock(&h->mutex);
            h->store = s;
            h->addressed = s->ops->watch != NULL;
            pthread_mutex_unlock(&h->mutex);
            return true;
        }
        pause_for(h, st_tries_next(&tries));
    }
    return false;
}

static void give_news(struct st_hinter *h, unsigned news)
{
    pthread_mutex_lock(&h->mutex);
    if (news & ST_NEWS_WORK)
        h->armed = false;
    h->deaf = news & ST_NEWS_DEAF;
    h->news |= news;
    pthread_mutex_unlock(&h->mutex);
    uv_async_send(h->wake);
}

/* Under the mutex. */
static void keep_distance(struct st_hinter *h)
{
    if (h->armed && !h->spaced && h->spacing_us > 0 && !h->stop)
        st_cond_wait_us(&h->cond, &h->mutex, h->spacing_us);
    h->spaced = true;
}

/* The poll stands behind it all: after an error just do not spin. */
static void wait_once(struct st_hinter *h)
{
    bool woken = false;
    stint_code rc = st_store_wait(h->store, WAIT_MS, &woken, NULL);

    if (rc != STINT_OK)
        pause_for(h, ST_SEC);
    else if (woken && !stopped(h))
        give_news(h, h->addressed ? st_store_news(h->store) : ST_NEWS_WORK | ST_NEWS_CANCEL);
}

/* true: armed and ready; false: time to end. */
static bool await_arming(struct st_hinter *h)
{
    bool go;

    pthread_mutex_lock(&h->mutex);
    while (!h->armed && !h->stop)
        pthread_cond_wait(&h->cond, &h->mutex);
    keep_distance(h);
    go = !h->stop;
    pthread_mutex_unlock(&h->mutex);
    return go;
}

/* Says what the next wait is for.  An arming after this interrupts it. */
static bool say_what_for(struct st_hinter *h)
{
    const struct st_slice *queues;
    struct st_plan *plan;
    bool work, go;
    size_t n;

    pthread_mutex_lock(&h->mutex);
    keep_distance(h);
    plan = st_plan_ref(h->plan);
    work = h->armed;
    go = !h->stop;
    pthread_mutex_unlock(&h->mutex);
    queues = st_plan_queues(plan, &n);
    if (go && st_store_watch(h->store, st_slice_cstr(h->worker_id), queues, n, work, NULL) != STINT_OK)
        pause_for(h, ST_SEC);
    st_plan_unref(plan);
    return go;
}

static void *hinter_thread(void *arg)
{
    struct st_hinter *h = arg;
    struct st_store *s;

    if (!open_store(h))
        return NULL;
    while (h->addressed ? say_what_for(h) : await_arming(h))
        wait_once(h);
    pthread_mutex_lock(&h->mutex);
    s = h->store;
    h->store = NULL;
    pthread_mutex_unlock(&h->mutex);
    st_store_close(s);
    return NULL;
}

/* ---- the loop's side ---------------------------------------------------------------- */

static void hinter_clear(struct st_hinter *h)
{
    st_plan_unref(h->plan);
    pthread_cond_destroy(&h->cond);
    pthread_mutex_destroy(&h->mutex);
    free(h);
}

stint_code st_hinter_new(const struct st_opener *opener, const char *worker_id, struct st_plan *plan, uv_async_t *wake,
                         struct st_hinter **out, stint_error *err)
{
    struct st_hinter *h = calloc(1, sizeof(*h));
    stint_code rc;

    *out = NULL;
    if (!h)
        return st_fail(err, STINT_ENOMEM, "no memory for the wake-up thread");
    pthread_mutex_init(&h->mutex, NULL);
    st_cond_init(&h->cond);
    h->opener = opener;
    h->wake = wake;
    h->plan = st_plan_ref(plan);
    snprintf(h->worker_id, sizeof(h->worker_id), "%s", worker_id);
    rc = st_thread_start(&h->thread, "stint-wait", hinter_thread, h, err);
    if (rc != STINT_OK) {
        hinter_clear(h);
        return rc;
    }
    *out = h;
    return STINT_OK;
}

/* Under the mutex: what the thread is to wait for has changed. */
static void nudge(struct st_hinter *h)
{
    if (h->addressed && h->store)
        st_store_interrupt(h->store);
    pthread_cond_signal(&h->cond);
}

void st_hinter_plan(struct st_hinter *h, struct st_plan *plan)
{
    pthread_mutex_lock(&h->mutex);
    st_plan_unref(h->plan);
    h->plan = st_plan_ref(plan);
    nudge(h);
    pthread_mutex_unlock(&h->mutex);
}

void st_hinter_arm(struct st_hinter *h, bool fruitless)
{
    pthread_mutex_lock(&h->mutex);
    if (!fruitless)
        h->spacing_us = 0;
    else if (!h->armed)
        h->spacing_us = h->spacing_us ? 2 * h->spacing_us : ST_MS / 4;
    if (h->spacing_us > SPACING_MAX)
        h->spacing_us = SPACING_MAX;
    if (!h->armed) {
        h->armed = true;
        h->spaced = false;
        nudge(h);
    }
    pthread_mutex_unlock(&h->mutex);
}

void st_hinter_disarm(struct st_hinter *h)
{
    pthread_mutex_lock(&h->mutex);
    if (h->armed && (h->addressed || !h->store)) {
        h->armed = false;
        nudge(h);
    }
    pthread_mutex_unlock(&h->mutex);
}

void st_hinter_listen(struct st_hinter *h)
{
    if (!st_hinter_addressed(h))
        st_hinter_arm(h, true);
}

bool st_hinter_addressed(struct st_hinter *h)
{
    bool addressed;

    pthread_mutex_lock(&h->mutex);
    addressed = h->addressed;
    pthread_mutex_unlock(&h->mutex);
    return addressed;
}

bool st_hinter_deaf(struct st_hinter *h)
{
    bool deaf;

    pthread_mutex_lock(&h->mutex);
    deaf = h->deaf;
    pthread_mutex_unlock(&h->mutex);
    return deaf;
}

unsigned st_hinter_take(struct st_hinter *h)
{
    unsigned news;

    pthread_mutex_lock(&h->mutex);
    news = h->news;
    h->news = 0;
    pthread_mutex_unlock(&h->mutex);
    return news;
}

void st_hinter_free(struct st_hinter *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->mutex);
    h->stop = true;
    if (h->store)
        st_store_interrupt(h->store);
    pthread_cond_broadcast(&h->cond);
    pthread_mutex_unlock(&h->mutex);
    pthread_join(h->thread, NULL);
    hinter_clear(h);
}
