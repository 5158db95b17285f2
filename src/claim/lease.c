/* SPDX-License-Identifier: Apache-2.0
 *
 * lease.c - keep claimed jobs ours for as long as they run.
 *
 * A claim comes with a deadline.  The loop says when a beat is due; this thread moves the deadlines of all its
 * jobs in one batch and answers which are no longer ours and which are asked to cancel.
 *
 *     HELD --renewed--> HELD
 *     HELD --refused--> LOST   another attempt owns it: stop the child
 *     HELD --silence--> HELD   no answer is not a no, until our own clock says so
 *
 * Invariants:
 *   (1) our deadline is never later than the store's: it is counted from before the request was sent;
 *   (2) a LOST job is never reported as finished.
 *
 * Thread: lease.  Has a store handle of its own.
 */
#include "claim/lease.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"

#define FLAGGED_MAX 256

struct st_lessor {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    uv_async_t *wake;
    const struct st_opener *opener;
    char worker_id[ST_ID_MAX + 1];

    /* under the mutex */
    struct st_beat *beats;
    size_t n;
    bool busy, look, stop;
    struct st_lessor_news news;

    /* the thread's own */
    struct st_store *store;
};

struct st_lease st_lease_from(int64_t asked_us, int64_t lease_us, int64_t renew_us, int64_t grace_us)
{
    int64_t margin = grace_us + ST_SEC;
    struct st_lease l;

    if (margin > lease_us / 3)
        margin = lease_us / 3;
    if (renew_us <= 0 || renew_us > lease_us / 2)
        renew_us = lease_us / 3;
    l.renew_at_us = asked_us + renew_us;
    l.stop_at_us = asked_us + lease_us - margin;
    l.kill_at_us = asked_us + lease_us - margin / 4;
    return l;
}

void st_beats_free(struct st_beat *beats, size_t n)
{
    for (size_t i = 0; beats && i < n; i++)
        free(beats[i].progress);
    free(beats);
}

enum st_abort st_lost_reason(struct st_store *s, const char *id)
{
    struct st_job_info info = {0};
    enum st_abort why = ST_ABORT_TAKEN;
    stint_code rc = st_store_get(s, 0, st_slice_cstr(id), &info, NULL);

    if (rc == STINT_ENOTFOUND)
        why = ST_ABORT_NOT_FOUND;
    else if (rc == STINT_OK && st_state_ended(info.state))
        why = ST_ABORT_ALREADY_COMPLETED;
    st_job_info_clear(&info);
    return why;
}

/* ---- the thread ------------------------------------------------------------------- */

static bool have_store(struct st_lessor *l)
{
    stint_error err;

    if (l->store)
        return true;
    return l->opener->open(l->opener->arg, &l->store, &err) == STINT_OK;
}

static stint_code renew(struct st_lessor *l, struct st_beat *beats, size_t n, int64_t asked_us)
{
    struct st_renew *items = calloc(n, sizeof(*items));
    stint_error err;
    stint_code rc = STINT_EAGAIN;

    if (!items)
        return STINT_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        items[i].id = st_slice_cstr(beats[i].id);
        items[i].fence = beats[i].fence;
        items[i].ref = beats[i].ref;
        items[i].lease_us = beats[i].lease_us;
        items[i].started_ago_us = beats[i].started_boot_us ? asked_us - beats[i].started_boot_us : -1;
        items[i].progress = st_slice_cstr(beats[i].progress);
    }
    if (have_store(l))
        rc = st_store_renew(l->store, 0, items, n, &err);
    if (rc == STINT_OK) {
        st_log(ST_LOG_DEBUG, "lease.renewed", ST_FI("jobs", n));
    } else {
        st_log(ST_LOG_DEBUG, "lease.no_answer", ST_FI("jobs", n));
    }
    for (size_t i = 0; i < n; i++) {
        beats[i].verdict = items[i].verdict;
        beats[i].cancel = items[i].cancel;
        if (rc == STINT_OK && items[i].verdict == STINT_ELOST)
            beats[i].lost = st_lost_reason(l->store, beats[i].id);
    }
    free(items);
    return rc;
}

static void do_beat(struct st_lessor *l, struct st_beat *beats, size_t n)
{
    int64_t asked = st_clock_boot_us();
    stint_code rc = renew(l, beats, n, asked);

    pthread_mutex_lock(&l->mutex);
    l->news.beats = beats;
    l->news.n = n;
    l->news.code = rc;
    l->news.asked_us = asked;
    pthread_mutex_unlock(&l->mutex);
    uv_async_send(l->wake);
}

static void do_look(struct st_lessor *l)
{
    char(*ids)[ST_ID_MAX + 1] = calloc(FLAGGED_MAX, sizeof(*ids));
    size_t n = 0;

    if (ids && have_store(l))
        st_store_flagged(l->store, st_slice_cstr(l->worker_id), ids, FLAGGED_MAX, &n, NULL);
    if (n == 0) {
        free(ids);
        return;
    }
    pthread_mutex_lock(&l->mutex);
    free(l->news.flagged);
    l->news.flagged = ids;
    l->news.n_flagged = n;
    pthread_mutex_unlock(&l->mutex);
    uv_async_send(l->wake);
}

static void *lessor_thread(void *arg)
{
    struct st_lessor *l = arg;

    pthread_mutex_lock(&l->mutex);
    for (;;) {
        struct st_beat *beats;
        size_t n;
        bool look;

        while (!l->beats && !l->look && !l->stop)
            pthread_cond_wait(&l->cond, &l->mutex);
        if (l->stop)
            break;
        beats = l->beats;
        n = l->n;
        look = l->look;
        l->beats = NULL;
        l->look = false;
        pthread_mutex_unlock(&l->mutex);
        if (beats)
            do_beat(l, beats, n);
        if (look)
            do_look(l);
        pthread_mutex_lock(&l->mutex);
    }
    pthread_mutex_unlock(&l->mutex);
    st_store_close(l->store);
    return NULL;
}

/* ---- the loop's side ------------------------------------------------------------- */

stint_code st_lessor_new(const struct st_opener *opener, const char *worker_id, uv_async_t *wake,
                         struct st_lessor **out, stint_error *err)
{
    struct st_lessor *l = calloc(1, sizeof(*l));
    stint_code rc;

    *out = NULL;
    if (!l)
        return st_fail(err, STINT_ENOMEM, "no memory for the lease thread");
    pthread_mutex_init(&l->mutex, NULL);
    st_cond_init(&l->cond);
    l->opener = opener;
    l->wake = wake;
    snprintf(l->worker_id, sizeof(l->worker_id), "%s", worker_id);
    rc = st_thread_start(&l->thread, "stint-lease", lessor_thread, l, err);
    if (rc != STINT_OK) {
        free(l);
        return rc;
    }
    *out = l;
    return STINT_OK;
}

bool st_lessor_beat(struct st_lessor *l, struct st_beat *beats, size_t n)
{
    bool taken;

    pthread_mutex_lock(&l->mutex);
    taken = !l->busy;
    if (taken) {
        l->busy = true;
        l->beats = beats;
        l->n = n;
        pthread_cond_signal(&l->cond);
    }
    pthread_mutex_unlock(&l->mutex);
    return taken;
}

void st_lessor_look(struct st_lessor *l)
{
    pthread_mutex_lock(&l->mutex);
    l->look = true;
    pthread_cond_signal(&l->cond);
    pthread_mutex_unlock(&l->mutex);
}

void st_lessor_take(struct st_lessor *l, struct st_lessor_news *news)
{
    pthread_mutex_lock(&l->mutex);
    *news = l->news;
    if (news->beats)
        l->busy = false;
    memset(&l->news, 0, sizeof(l->news));
    pthread_mutex_unlock(&l->mutex);
}

void st_lessor_free(struct st_lessor *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_signal(&l->cond);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->thread, NULL);
    st_beats_free(l->beats, l->n);
    st_beats_free(l->news.beats, l->news.n);
    free(l->news.flagged);
    pthread_cond_destroy(&l->cond);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}
