/* SPDX-License-Identifier: Apache-2.0
 *
 * courier.c - one thread that carries outcomes to the store and brings jobs back.
 *
 *     loop --finish, claim--> [ in ] --> courier --> store
 *     loop <----- news ------ [ out ] <---'
 *
 * Each round takes everything that lies in `in`: all outcomes (up to a batch) and the claim, if one was asked for.
 * So an idle courier writes a single outcome at once, and a busy one writes batches: what came in during a round
 * goes out in the next.  Both together are one exchange with the store.
 *
 * Invariants:
 *   (1) an outcome leaves the courier only with a verdict, or when it gives up at the end of its time; after
 *       EAGAIN and EUNKNOWN the same batch is sent again (a finish may be repeated), and a single one that somebody
 *       else is in the way of (an operator's open transaction) is kept for a later round, while the others go on;
 *   (2) a claim is never repeated by itself: after EUNKNOWN the loop must disown first;
 *   (3) what a handler has committed with writes of its own is never written again: a store that has lost that commit (a standby
 *       that took over) must run the job again, or it would have the outcome without the writes.
 *
 * Thread: its own, with a store handle of its own.
 */
#include "claim/courier.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "claim/lease.h"

#define FINISH_BATCH  1000
#define KEPT_AGAIN_US (250 * ST_MS)
#define LISTEN_US     (ST_MS) /* the loop never blocks: it has long spoken */

struct claim_order {
    struct st_plan *plan; /* NULL = none asked for */
    size_t n, n_run;
    int64_t late_us;
    bool may_defer, crowded;
};

struct known {
    char *text; /* ids, each followed by NUL */
    struct st_slice *ids;
    size_t n;
};

struct st_courier {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    uv_async_t *wake;
    const struct st_opener *opener;
    struct st_admit admit;
    const struct st_observer *observer;
    char worker_id[ST_ID_MAX + 1];
    char *results_dir;

    /* in: under the mutex */
    struct st_done *first, **end;
    size_t n_in;
    struct claim_order claim;
    struct known *known;
    bool listening; /* the loop is about to speak: outcomes in hand go with the claim that it may ask for */
    bool drain, stop;
    int64_t give_up_us; /* monotonic */

    /* out: under the mutex */
    struct st_courier_news news;
    bool ended;

    /* the thread's own */
    struct st_store *store;
    struct st_done *batch[FINISH_BATCH];
    struct st_finish items[FINISH_BATCH];
    size_t n_batch;
    size_t n_kept; /* the first ones of the batch: prepared, and not taken in an earlier round */
    struct st_tries tries;
    bool away;
    stint_code away_code; /* why, as last told */
};

/* ---- the loop's side ------------------------------------------------------------- */

void st_courier_finish(struct st_courier *c, struct st_done *first, struct st_done *last, size_t n)
{
    pthread_mutex_lock(&c->mutex);
    last->next = NULL;
    *c->end = first;
    c->end = &last->next;
    c->n_in += n;
    c->news.in_hand += n;
    if (!c->listening)
        pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
}

void st_courier_claim(struct st_courier *c, struct st_plan *plan, size_t n, size_t n_run, int64_t late_us,
                      bool may_defer)
{
    pthread_mutex_lock(&c->mutex);
    c->claim = (struct claim_order){st_plan_ref(plan), n, n_run, late_us, may_defer, false};
    if (!c->listening)
        pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
}

void st_courier_said(struct st_courier *c)
{
    pthread_mutex_lock(&c->mutex);
    c->listening = false;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
}

static void known_free(struct known *k)
{
    if (!k)
        return;
    free(k->text);
    free(k->ids);
    free(k);
}

static struct known *known_copy(const struct st_slice *ids, size_t n)
{
    struct known *k = calloc(1, sizeof(*k));
    size_t len = 1, at = 0;

    if (!k)
        return NULL;
    for (size_t i = 0; i < n; i++)
        len += ids[i].len + 1;
    k->text = malloc(len);
    k->ids = calloc(n + 1, sizeof(*k->ids));
    if (!k->text || !k->ids) {
        known_free(k);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(k->text + at, ids[i].p, ids[i].len);
        k->ids[i] = ST_SLICE(k->text + at, ids[i].len);
        at += ids[i].len + 1;
    }
    k->n = n;
    return k;
}

stint_code st_courier_disown(struct st_courier *c, const struct st_slice *known, size_t n, stint_error *err)
{
    struct known *k = known_copy(known, n);

    if (!k)
        return st_fail(err, STINT_ENOMEM, "no memory for a list of %zu jobs", n);
    pthread_mutex_lock(&c->mutex);
    known_free(c->known);
    c->known = k;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
    return STINT_OK;
}

void st_courier_take(struct st_courier *c, struct st_courier_news *news)
{
    pthread_mutex_lock(&c->mutex);
    *news = c->news;
    c->news.opened = false;
    c->news.claim_over = false;
    c->news.disowned = false;
    c->news.jobs = NULL;
    c->news.n_jobs = 0;
    pthread_mutex_unlock(&c->mutex);
}

void st_courier_drain(struct st_courier *c)
{
    pthread_mutex_lock(&c->mutex);
    c->drain = true;
    if (c->claim.plan) {
        st_plan_unref(c->claim.plan);
        c->claim.plan = NULL;
        c->news.claim_over = true;
        c->news.claim_code = STINT_OK;
        c->news.crowded = false;
        c->news.n_asked = 0;
    }
    if (c->known) {
        known_free(c->known);
        c->known = NULL;
        c->news.disowned = true;
    }
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
    uv_async_send(c->wake);
}

void st_courier_stop(struct st_courier *c, int64_t deadline_us)
{
    pthread_mutex_lock(&c->mutex);
    c->stop = true;
    c->give_up_us = st_clock_mono_us() + deadline_us;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
}

bool st_courier_ended(struct st_courier *c)
{
    bool ended;

    pthread_mutex_lock(&c->mutex);
    ended = c->ended;
    pthread_mutex_unlock(&c->mutex);
    return ended;
}

/* ---- the thread ------------------------------------------------------------------- */

/* Waits before the next try.  false: it is time to give up. */
static bool pause_before_retry(struct st_courier *c)
{
    int64_t us = st_tries_next(&c->tries);
    bool go_on = true;

    pthread_mutex_lock(&c->mutex);
    if (!c->stop)
        st_cond_wait_us(&c->cond, &c->mutex, us);
    if (c->stop) {
        int64_t left = c->give_up_us - st_clock_mono_us();

        go_on = left > 0;
        if (go_on) {
            pthread_mutex_unlock(&c->mutex);
            usleep((useconds_t)(us < 100 * ST_MS ? us : 100 * ST_MS));
            pthread_mutex_lock(&c->mutex);
        }
    }
    pthread_mutex_unlock(&c->mutex);
    return go_on;
}

static void note_away(struct st_courier *c, const stint_error *err)
{
    const bool passing = err->code == STINT_EAGAIN || err->code == STINT_EUNKNOWN;

    /* it may be away first, and then want an operator */
    if (!c->away || (!passing && c->away_code != err->code)) {
        st_log(ST_LOG_WARN, "store.away", ST_FE(err), ST_F("remedy", err->remedy));
        st_observe_worker(c->observer, STINT_EVENT_WORKER_ERROR, err);
    }
    c->away = true;
    c->away_code = err->code;
    pthread_mutex_lock(&c->mutex);
    c->news.away = true;
    c->news.error = *err;
    pthread_mutex_unlock(&c->mutex);
    uv_async_send(c->wake);
}

static void note_back(struct st_courier *c)
{
    c->tries.n = 0;
    if (!c->away)
        return;
    st_log(ST_LOG_INFO, "store.back");
    c->away = false;
    pthread_mutex_lock(&c->mutex);
    c->news.away = false;
    pthread_mutex_unlock(&c->mutex);
}

static bool open_store(struct st_courier *c)
{
    stint_error err;

    for (;;) {
        stint_code rc = STINT_OK;

        if (!c->store)
            rc = c->opener->open(c->opener->arg, &c->store, &err);
        if (rc == STINT_OK && c->admit.fn)
            rc = c->admit.fn(c->admit.arg, c->store, &err);
        if (rc == STINT_OK)
            break;
        if (rc != STINT_EAGAIN && rc != STINT_EUNKNOWN) {
            pthread_mutex_lock(&c->mutex);
            c->news.fatal = rc;
            c->news.error = err;
            pthread_mutex_unlock(&c->mutex);
            return false;
        }
        note_away(c, &err);
        pthread_mutex_lock(&c->mutex);
        rc = c->stop;
        pthread_mutex_unlock(&c->mutex);
        if (rc || !pause_before_retry(c))
            return false;
    }
    note_back(c);
    pthread_mutex_lock(&c->mutex);
    c->news.opened = true;
    pthread_mutex_unlock(&c->mutex);
    uv_async_send(c->wake);
    return true;
}

/* Takes what lies in `in`.  Under the mutex. */
static void take_batch(struct st_courier *c)
{
    while (c->first && c->n_batch < FINISH_BATCH) {
        struct st_done *d = c->first;

        c->first = d->next;
        c->n_in--;
        c->batch[c->n_batch++] = d;
    }
    if (!c->first)
        c->end = &c->first;
}

static void log_verdict(const struct st_done *d, const struct st_finish *f)
{
    enum st_log_level level = ST_LOG_INFO;
    char took[ST_DURATION_TEXT], wait[ST_DURATION_TEXT];
    bool retry = f->outcome == ST_OUT_RETRY && f->state == ST_PENDING;

    if (f->verdict != STINT_OK) {
        st_log(ST_LOG_WARN, "job.outcome_refused", ST_F("job", d->job->id), ST_F("type", d->job->type),
               ST_FI("fence", d->job->fence), ST_F("outcome", st_outcome_name(f->outcome)),
               ST_F("reason", "taken_by_another_worker"));
        return;
    }
    if (f->outcome == ST_OUT_FAILED)
        level = ST_LOG_WARN;
    if (level < st_log_threshold())
        return;
    st_duration_format(f->started_ago_us > 0 ? f->started_ago_us : 0, took);
    st_duration_format(f->delay_us, wait);
    st_log(level,
           retry                      ? "job.retry"
           : f->state == ST_PENDING   ? "job.released"
           : f->state == ST_SUCCEEDED ? "job.succeeded"
           : f->state == ST_CANCELLED ? "job.cancelled"
                                      : "job.failed",
           ST_F("job", d->job->id), ST_F("type", d->job->type), ST_FI("attempt", d->job->attempt), ST_F("took", took),
           ST_F(f->kind ? "kind" : NULL, st_kind_name(f->kind)), ST_F(retry ? "in" : NULL, wait));
}

static void count_verdict(struct st_tally *t, const struct st_finish *f)
{
    if (f->verdict != STINT_OK)
        t->refused++;
    else if (f->state == ST_SUCCEEDED)
        t->succeeded++;
    else if (f->state == ST_FAILED)
        t->failed++;
    else if (f->state == ST_CANCELLED)
        t->cancelled++;
    else if (f->outcome == ST_OUT_RETRY)
        t->retried++;
    else
        t->released++;
}

static void tell_verdict(struct st_courier *c, const struct st_done *d, const struct st_finish *f)
{
    enum st_abort lost = ST_ABORT_NOT;

    if (!c->observer->fn)
        return;
    if (f->verdict != STINT_OK)
        lost = st_lost_reason(c->store, d->job->id);
    st_observe_verdict(c->observer, d->job, f, lost);
}

/* It has its verdict: everybody is told. */
static void conclude(struct st_courier *c, struct st_done *d, const struct st_finish *f, struct st_tally *counts)
{
    log_verdict(d, f);
    tell_verdict(c, d, f);
    count_verdict(counts, f);
    if (f->verdict != STINT_OK)
        st_result_discard(d);
    st_done_tell(d, f);
    st_done_free(d);
}

/* Outcomes into finish items; those that must not be written are dropped here, and those that are written already only told. */
static void prepare_items(struct st_courier *c)
{
    struct st_tally counts = c->news.tally; /* only this thread changes it */
    int64_t now = st_clock_boot_us();
    size_t n = c->n_kept, dropped = 0;

    for (size_t i = c->n_kept; i < c->n_batch; i++) {
        struct st_done *d = c->batch[i];

        if (!d->ran.settled)
            st_result_settle(d, c->results_dir);
        if (st_done_decide(d, st_random_unit(), now, &c->items[n])) {
            if (!d->ran.settled) {
                c->batch[n++] = d;
                continue;
            }
            c->items[n].verdict = STINT_OK;
            c->items[n].state = (enum st_state)d->ran.state;
            conclude(c, d, &c->items[n], &counts);
            dropped++;
        } else {
            st_log(ST_LOG_INFO, "job.dropped", ST_F("job", d->job->id), ST_FI("fence", d->job->fence),
                   ST_F("reason", st_abort_name(d->ran.aborted)));
            st_done_free(d);
            dropped++;
        }
    }
    c->n_batch = n;
    if (dropped) {
        pthread_mutex_lock(&c->mutex);
        c->news.tally = counts;
        c->news.in_hand -= dropped;
        pthread_mutex_unlock(&c->mutex);
        uv_async_send(c->wake);
    }
}

static void settle_verdicts(struct st_courier *c)
{
    struct st_tally counts = c->news.tally; /* only this thread changes it */
    size_t n = c->n_batch, kept = 0;

    for (size_t i = 0; i < n; i++) {
        if (c->items[i].verdict == STINT_EAGAIN) {
            if (i >= c->n_kept)
                st_log(ST_LOG_INFO, "job.outcome_waits", ST_F("job", c->batch[i]->job->id),
                       ST_F("reason", "the_store_cannot_take_it_now"));
            c->items[kept] = c->items[i];
            c->batch[kept++] = c->batch[i];
            continue;
        }
        conclude(c, c->batch[i], &c->items[i], &counts);
    }
    c->n_batch = c->n_kept = kept;
    counts.rounds++;
    pthread_mutex_lock(&c->mutex);
    c->news.tally = counts;
    c->news.in_hand -= n - kept;
    pthread_mutex_unlock(&c->mutex);
}

static void answer_claim(struct st_courier *c, const struct claim_order *o, stint_code rc, stint_error *err,
                         struct st_job **jobs, size_t n, int64_t took_us)
{
    int64_t due = -1;

    if (rc == STINT_OK && n < o->n && !o->crowded) {
        int64_t at = 0;

        if (st_store_next_due(c->store, 0, &at, NULL) == STINT_OK && at > 0) {
            due = at - st_store_now(c->store);
            due = due > 0 ? due : 0;
        }
    }
    pthread_mutex_lock(&c->mutex);
    c->news.claim_over = true;
    c->news.claim_code = rc;
    if (rc != STINT_OK)
        c->news.error = *err;
    c->news.jobs = jobs;
    c->news.n_jobs = n;
    c->news.n_asked = o->n;
    c->news.late = o->late_us > 0;
    c->news.crowded = o->crowded;
    c->news.next_due_in_us = due;
    c->news.claim_took_us = took_us;
    c->listening = true;
    pthread_mutex_unlock(&c->mutex);
    st_plan_unref(o->plan);
    uv_async_send(c->wake);
}

/* One round: finish, claim, or both.  false: the outcomes are still in hand and the store did not take them. */
static bool exchange(struct st_courier *c, struct claim_order *o)
{
    struct st_claim_req req = {.worker = st_slice_cstr(c->worker_id), .n = o->n, .n_run = o->n_run};
    struct st_job **jobs = NULL;
    stint_error err = {0};
    size_t n = 0;
    bool finished = c->n_batch == 0;
    int64_t asked = st_clock_boot_us();
    stint_code rc;

    if (o->may_defer)
        req.crowded = &o->crowded;
    if (o->late_us)
        req.due_by_us = st_store_now(c->store) - o->late_us;
    if (!o->plan) {
        rc = st_store_finish(c->store, 0, c->items, c->n_batch, &err);
        finished = rc == STINT_OK;
    } else if (!(jobs = calloc(o->n, sizeof(*jobs)))) {
        rc = st_fail(&err, STINT_ENOMEM, "no memory for a claim of %zu jobs", o->n);
    } else if (!st_plan_request(o->plan, &req)) {
        rc = c->n_batch ? st_store_finish(c->store, 0, c->items, c->n_batch, &err) : STINT_OK;
        finished = rc == STINT_OK;
    } else {
        rc = c->n_batch ? st_store_exchange(c->store, 0, c->items, c->n_batch, &req, jobs, &n, &finished, &err)
                        : st_store_claim(c->store, &req, jobs, &n, &err);
    }
    for (size_t i = 0; i < n; i++)
        jobs[i]->asked_boot_us = asked;
    if (rc == STINT_OK)
        note_back(c);
    else
        note_away(c, &err);
    if (finished && c->n_batch)
        settle_verdicts(c);
    if (o->plan) {
        if (n == 0) {
            free(jobs);
            jobs = NULL;
        }
        answer_claim(c, o, rc, &err, jobs, n, st_clock_boot_us() - asked);
        o->plan = NULL;
    } else {
        uv_async_send(c->wake);
    }
    return finished;
}

static bool draining(struct st_courier *c)
{
    bool drain;

    pthread_mutex_lock(&c->mutex);
    drain = c->drain;
    pthread_mutex_unlock(&c->mutex);
    return drain;
}

/* Those whose outcomes are kept here are known too.  false = no memory. */
static bool know_kept(struct st_courier *c, struct known *k)
{
    struct st_slice *ids = realloc(k->ids, (k->n + c->n_kept + 1) * sizeof(*ids));

    if (!ids)
        return false;
    k->ids = ids;
    for (size_t i = 0; i < c->n_kept; i++)
        k->ids[k->n++] = st_slice_cstr(c->batch[i]->job->id);
    return true;
}

static void disown(struct st_courier *c, struct known *k)
{
    const bool all = know_kept(c, k);
    stint_error err;
    size_t n = 0;

    while (all && st_store_disown(c->store, 0, st_slice_cstr(c->worker_id), k->ids, k->n, &n, &err) != STINT_OK) {
        note_away(c, &err);
        if (!pause_before_retry(c) || draining(c))
            break;
    }
    if (n)
        st_log(ST_LOG_INFO, "worker.gave_back", ST_FI("jobs", n));
    known_free(k);
    pthread_mutex_lock(&c->mutex);
    c->news.disowned = true;
    pthread_mutex_unlock(&c->mutex);
    uv_async_send(c->wake);
}

/* Exchanges until the outcomes are written.  false: time is up. */
static bool carry(struct st_courier *c, struct claim_order *o)
{
    while (!exchange(c, o) && c->n_batch) {
        if (!pause_before_retry(c))
            return false;
    }
    return true;
}

/* Waits for something to do.  Under the mutex. */
static void await_work(struct st_courier *c)
{
    const bool full = c->n_kept == FINISH_BATCH; /* nothing else can be taken */

    if (c->listening && !c->stop)
        st_cond_wait_us(&c->cond, &c->mutex, LISTEN_US);
    c->listening = false;
    if (c->n_kept && (!c->first || full) && !c->claim.plan && (!c->known || full)) {
        st_cond_wait_us(&c->cond, &c->mutex, KEPT_AGAIN_US);
        return;
    }
    while (!c->n_kept && !c->first && !c->claim.plan && !c->known && !c->stop)
        pthread_cond_wait(&c->cond, &c->mutex);
}

/* One turn of the thread: outcomes before a disown, which would give back what they are about.  false: nothing is left to do, or time is up. */
static bool turn(struct st_courier *c)
{
    struct claim_order o;
    struct known *k;

    pthread_mutex_lock(&c->mutex);
    await_work(c);
    if (c->n_kept && c->stop && st_clock_mono_us() > c->give_up_us) {
        pthread_mutex_unlock(&c->mutex);
        return false;
    }
    take_batch(c);
    o = c->claim;
    c->claim.plan = NULL;
    k = c->first ? NULL : c->known;
    if (k)
        c->known = NULL;
    pthread_mutex_unlock(&c->mutex);
    if (!o.plan && !k && c->n_batch == 0)
        return false; /* stop, and nothing in hand */
    prepare_items(c);
    if ((o.plan || c->n_batch) && !carry(c, &o)) {
        known_free(k);
        return false;
    }
    if (k)
        disown(c, k);
    return true;
}

static void *courier_thread(void *arg)
{
    struct st_courier *c = arg;

    if (open_store(c)) {
        while (turn(c))
            ;
    }
    st_store_close(c->store);
    pthread_mutex_lock(&c->mutex);
    c->ended = true;
    pthread_mutex_unlock(&c->mutex);
    uv_async_send(c->wake);
    return NULL;
}

stint_code st_courier_new(const struct st_opener *opener, struct st_admit admit, const char *worker_id,
                          const char *results_dir, const struct st_observer *observer, uv_async_t *wake,
                          struct st_courier **out, stint_error *err)
{
    struct st_courier *c = calloc(1, sizeof(*c));
    stint_code rc;

    *out = NULL;
    if (!c || !(c->results_dir = strdup(results_dir))) {
        free(c);
        return st_fail(err, STINT_ENOMEM, "no memory for the courier");
    }
    pthread_mutex_init(&c->mutex, NULL);
    st_cond_init(&c->cond);
    c->opener = opener;
    c->admit = admit;
    c->observer = observer;
    c->wake = wake;
    c->end = &c->first;
    c->tries = (struct st_tries){.base_us = 50 * ST_MS, .max_us = 5 * ST_SEC};
    snprintf(c->worker_id, sizeof(c->worker_id), "%s", worker_id);
    rc = st_thread_start(&c->thread, "stint-courier", courier_thread, c, err);
    if (rc != STINT_OK) {
        free(c->results_dir);
        free(c);
        return rc;
    }
    *out = c;
    return STINT_OK;
}

size_t st_courier_free(struct st_courier *c)
{
    size_t left = 0;

    if (!c)
        return 0;
    pthread_join(c->thread, NULL);
    for (size_t i = 0; i < c->n_batch; i++, left++)
        st_done_free(c->batch[i]);
    while (c->first) {
        struct st_done *d = c->first;

        c->first = d->next;
        st_done_free(d);
        left++;
    }
    for (size_t i = 0; i < c->news.n_jobs; i++)
        st_job_free(c->news.jobs[i]);
    free(c->news.jobs);
    if (c->claim.plan)
        st_plan_unref(c->claim.plan);
    known_free(c->known);
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->mutex);
    free(c->results_dir);
    free(c);
    return left;
}
