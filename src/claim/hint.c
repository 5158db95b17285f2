/* SPDX-License-Identifier: Apache-2.0
 *
 * hint.c - be woken when there may be work.
 *
 * Hints only shorten the wait: losing all of them costs latency up to the poll interval, doubling them costs an
 * empty claim.  The thread sleeps for good while the worker is busy, since a busy worker asks anyway.
 *
 *     DISARMED --arm--> ARMED --something changed--> DISARMED, wake the loop
 *
 * Thread: its own, with a store handle of its own.
 */
#include "claim/hint.h"

#include <stdlib.h>

#include "base/thread.h"

#define WAIT_MS 60000
#define SPACING_MAX (20 * ST_MS)

struct st_hinter {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    uv_async_t *wake;
    const struct st_opener *opener;

    /* under the mutex */
    bool armed, stop, hinted;
    int64_t spacing_us;
    struct st_store *store; /* set by the thread, interrupted by others */
};

static bool stopped(struct st_hinter *h)
{
    bool stop;

    pthread_mutex_lock(&h->mutex);
    stop = h->stop;
    pthread_mutex_unlock(&h->mutex);
    return stop;
}

/* true: armed and ready; false: time to end. */
static bool await_arming(struct st_hinter *h)
{
    bool go;

    pthread_mutex_lock(&h->mutex);
    while (!h->armed && !h->stop)
        pthread_cond_wait(&h->cond, &h->mutex);
    if (h->spacing_us > 0 && !h->stop)
        st_cond_wait_us(&h->cond, &h->mutex, h->spacing_us);
    go = !h->stop;
    pthread_mutex_unlock(&h->mutex);
    return go;
}

static void give_hint(struct st_hinter *h)
{
    pthread_mutex_lock(&h->mutex);
    h->armed = false;
    h->hinted = true;
    pthread_mutex_unlock(&h->mutex);
    uv_async_send(h->wake);
}

static bool open_store(struct st_hinter *h)
{
    struct st_tries tries = {.base_us = 100 * ST_MS, .max_us = 5 * ST_SEC};
    struct st_store *s = NULL;

    while (!stopped(h)) {
        if (h->opener->open(h->opener->arg, &s, NULL) == STINT_OK) {
            pthread_mutex_lock(&h->mutex);
            h->store = s;
            pthread_mutex_unlock(&h->mutex);
            return true;
        }
        pthread_mutex_lock(&h->mutex);
        if (!h->stop)
            st_cond_wait_us(&h->cond, &h->mutex, st_tries_next(&tries));
        pthread_mutex_unlock(&h->mutex);
    }
    return false;
}

static void *hinter_thread(void *arg)
{
    struct st_hinter *h = arg;
    struct st_store *s;

    if (!open_store(h))
        return NULL;
    while (await_arming(h)) {
        bool woken = false;
        stint_code rc = st_store_wait(h->store, WAIT_MS, &woken, NULL);

        if (rc == STINT_OK && woken && !stopped(h))
            give_hint(h);
        if (rc != STINT_OK) { /* the poll stands behind it: just do not spin */
            pthread_mutex_lock(&h->mutex);
            if (!h->stop)
                st_cond_wait_us(&h->cond, &h->mutex, ST_SEC);
            pthread_mutex_unlock(&h->mutex);
        }
    }
    pthread_mutex_lock(&h->mutex);
    s = h->store;
    h->store = NULL;
    pthread_mutex_unlock(&h->mutex);
    st_store_close(s);
    return NULL;
}

stint_code st_hinter_new(const struct st_opener *opener, uv_async_t *wake, struct st_hinter **out,
                         stint_error *err)
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
    rc = st_thread_start(&h->thread, "stint-wait", hinter_thread, h, err);
    if (rc != STINT_OK) {
        free(h);
        return rc;
    }
    *out = h;
    return STINT_OK;
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
    h->armed = true;
    pthread_cond_signal(&h->cond);
    pthread_mutex_unlock(&h->mutex);
}

bool st_hinter_take(struct st_hinter *h)
{
    bool hinted;

    pthread_mutex_lock(&h->mutex);
    hinted = h->hinted;
    h->hinted = false;
    pthread_mutex_unlock(&h->mutex);
    return hinted;
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
    pthread_cond_destroy(&h->cond);
    pthread_mutex_destroy(&h->mutex);
    free(h);
}
