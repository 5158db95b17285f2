/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_turn.c - messages become jobs that this worker holds.
 *
 *     taken -> read -> acquired -> started (RQ's side) -> the worker's loop
 *                |         `-- refused: see refuse()
 *                `-- not understood: failed
 *
 * The loop has the job before RQ's side is written: a crash in between leaves the message in the intermediate list, from
 * where it comes again, and the lease decides.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "intake/rq_int.h"

#define LATER_US (15 * ST_SEC) /* paused, exhausted: look again */
#define HELD_US  (5 * ST_SEC)  /* our own message, somebody else's attempt */

struct taken {
    struct st_rq_message m;
    struct st_rq_call call;
    stint_code code; /* of reading it */
    char why[sizeof(((stint_error *)0)->message)];
    bool back; /* to be given back to its queue */
};

/* ---- reading -------------------------------------------------------------------------------------------- */

bool st_rq_turn_ours(void *intake, struct st_slice data)
{
    const struct st_intake *x = intake;
    struct st_rq_call call;

    return st_rq_data_read(data, x->function, &call, NULL) == STINT_OK;
}

static void read_call(struct st_intake *x, struct taken *t)
{
    stint_error err = {0};

    if (t->m.too_large)
        t->code = st_fail(&err, STINT_EINVAL, "the job's data is larger than 1 MiB");
    else
        t->code = st_rq_data_read(t->m.data, x->function, &t->call, &err);
    memcpy(t->why, err.message, sizeof(t->why));
    t->m.data = ST_NONE;
}

/* ---- refused ---------------------------------------------------------------------------------------------- */

/* A message that was started before stands for the run until it ends; it says what became of it. */
static void tell_ended(struct st_intake *x, const struct taken *t, const struct st_job_info *info)
{
    if (t->m.again && info->state == ST_FAILED)
        st_rq_end_now(x, &t->m, ST_RQ_FAILED, info->error_message ? info->error_message : "failed", 0);
    else if (t->m.again && info->state == ST_CANCELLED)
        st_rq_end_now(x, &t->m, ST_RQ_STOPPED, "cancelled", 0);
    else
        st_rq_end_now(x, &t->m, ST_RQ_FINISHED, NULL, 0);
}

/* Whoever only heard of a run that somebody else has, or had, is done: that is no error.  A run that cannot start yet keeps its
 * message, for then. */
static void refuse(struct st_intake *x, struct taken *t, enum st_refusal why)
{
    const int64_t now = st_clock_real_us();
    struct st_job_info info = {0};
    int64_t wait = LATER_US;
    char text[ST_ID_MAX + 100];

    st_log(ST_LOG_INFO, "intake.refused", ST_F("message", "Lease acquisition failed"), ST_F("job", t->call.run_id),
           ST_F("rq_job", t->m.id), ST_F("reason", st_refusal_name(why)));
    if (why == ST_REFUSED_UNKNOWN) {
        snprintf(text, sizeof(text), "there is no run %s in the store\n", t->call.run_id);
        st_rq_end_now(x, &t->m, ST_RQ_FAILED, text, 0);
        return;
    }
    if (why == ST_REFUSED_HELD && !t->m.again) {
        st_rq_end_now(x, &t->m, ST_RQ_FINISHED, NULL, 0);
        return;
    }
    if (why == ST_REFUSED_ENDED || why == ST_REFUSED_NOT_DUE) {
        if (st_store_get(x->store, 0, st_slice_cstr(t->call.run_id), &info, NULL) != STINT_OK)
            info.due_us = 0;
        else if (why == ST_REFUSED_ENDED) {
            tell_ended(x, t, &info);
            st_job_info_clear(&info);
            return;
        }
        if (info.due_us)
            wait = info.due_us - st_store_now(x->store);
        st_job_info_clear(&info);
    }
    if (why == ST_REFUSED_HELD)
        wait = HELD_US;
    st_rq_end_now(x, &t->m, ST_RQ_SCHEDULE, NULL, now + (wait > 0 ? wait : 0));
}

/* ---- acquired ---------------------------------------------------------------------------------------------- */

/* Nobody here can run it: it is given back at once, and its message goes round until it meets a worker that can. */
static void give_up(struct st_intake *x, struct taken *t, struct st_job *job)
{
    struct st_finish f = {.id = st_slice_cstr(job->id),
                          .fence = job->fence,
                          .ref = job->ref,
                          .outcome = ST_OUT_RELEASED,
                          .started_ago_us = -1,
                          .exit_code = -1};
    stint_error err = {0};

    st_log(ST_LOG_WARN, "intake.no_handler", ST_F("job", job->id), ST_F("type", job->type), ST_F("rq_job", t->m.id));
    if (st_store_finish(x->store, 0, &f, 1, &err) != STINT_OK) {
        pthread_mutex_lock(&x->mutex);
        x->news.doubt = true;
        pthread_mutex_unlock(&x->mutex);
    }
    st_rq_end_now(x, &t->m, ST_RQ_SCHEDULE, NULL, st_clock_real_us() + ST_RQ_ELSEWHERE_US);
    st_job_free(job);
}

/* Into the news; false: no memory.  Under the mutex. */
static bool deliver(struct st_intake *x, struct st_job *job, struct ticket *t)
{
    struct st_intake_news *n = &x->news;

    if (n->n_arrivals == x->cap_arrivals || !n->arrivals) {
        const size_t cap = n->n_arrivals + 64;
        struct st_arrival *a = realloc(n->arrivals, cap * sizeof(*a));

        if (!a)
            return false;
        n->arrivals = a;
        x->cap_arrivals = cap;
    }
    n->arrivals[n->n_arrivals++] = (struct st_arrival){job, &t->base};
    t->prev = NULL;
    t->next = x->open;
    if (x->open)
        x->open->prev = t;
    x->open = t;
    x->n_open++;
    return true;
}

/* The job is ours.  RQ is told that it has started with the batch that follows. */
static void hand_over(struct st_intake *x, struct taken *t, struct st_job *job)
{
    struct ticket *k = st_rq_ticket_new(x, &t->m, &t->call);
    bool ok = k != NULL;

    if (k)
        st_rq_add_start(&x->rq, k->id, k->execution, k->queue, k->started_us);
    pthread_mutex_lock(&x->mutex);
    ok = ok && deliver(x, job, k);
    x->news.doubt = x->news.doubt || !ok;
    pthread_mutex_unlock(&x->mutex);
    if (!ok) { /* the store gives it back: see doubt */
        st_log(ST_LOG_ERROR, "job.no_memory", ST_F("job", job->id));
        t->back = true;
        st_job_free(job);
        st_rq_ticket_free(k);
    }
}

static void note_store(struct st_intake *x, const stint_error *err)
{
    if (!x->store_away)
        st_log(ST_LOG_WARN, "intake.store_away", ST_FE(err));
    x->store_away = true;
    x->not_before_us = st_clock_mono_us() + st_tries_next(&x->store_tries);
}

static void dispatch(struct st_intake *x, const struct st_claim_req *req, struct taken *t, const struct st_acquire *a,
                     int64_t asked)
{
    struct st_job *job = a->job;

    if (job && !st_rule_find(req->types, req->n_types, st_slice_cstr(job->queue), st_slice_cstr(job->type))) {
        give_up(x, t, job);
    } else if (job) {
        job->asked_boot_us = asked;
        hand_over(x, t, job);
    } else if (a->why) {
        refuse(x, t, a->why);
    } else {
        t->back = true; /* the store is away, or was when its turn came */
    }
}

/* All that were understood, in one go. */
static void acquire(struct st_intake *x, const struct st_claim_req *req, struct taken **all, struct st_acquire *items,
                    size_t n)
{
    const int64_t asked = st_clock_boot_us();
    stint_error err = {0};
    stint_code rc;

    for (size_t i = 0; i < n; i++)
        items[i].id = st_slice_cstr(all[i]->call.run_id);
    rc = st_store_acquire_many(x->store, items, n, req, &err);
    if (rc == STINT_OK) {
        x->store_away = false;
        x->store_tries.n = 0;
    } else {
        note_store(x, &err);
    }
    if (rc == STINT_EUNKNOWN) {
        pthread_mutex_lock(&x->mutex);
        x->news.doubt = true;
        pthread_mutex_unlock(&x->mutex);
    }
    for (size_t i = 0; i < n; i++) /* first what begins: an id that is there twice is refused the second time */
        if (items[i].job)
            dispatch(x, req, all[i], &items[i], asked);
    for (size_t i = 0; i < n; i++)
        if (!items[i].job)
            dispatch(x, req, all[i], &items[i], asked);
}

/* ---- the turn ------------------------------------------------------------------------------------------------ */

static void settle(struct st_intake *x, struct taken *all, size_t n, struct st_plan *plan, int64_t lease_us)
{
    struct st_claim_req req = {.worker = st_slice_cstr(x->worker_id), .lease_us = lease_us, .n = 1, .n_run = 1};
    struct taken **good = calloc(n, sizeof(*good));
    struct st_acquire *items = calloc(n, sizeof(*items));
    size_t n_good = 0;

    req.types = st_plan_rules(plan, &req.n_types);
    for (size_t i = 0; i < n; i++) {
        struct taken *t = &all[i];

        if (t->code == STINT_EINVAL) {
            st_log(ST_LOG_WARN, "intake.bad_message", ST_F("rq_job", t->m.id), ST_F("queue", x->rq.queues[t->m.queue]),
                   ST_F("error", t->why));
            st_rq_end_now(x, &t->m, ST_RQ_FAILED, t->why, 0);
        } else if (t->code == STINT_OK && good && items) {
            good[n_good++] = t;
        } else {
            t->back = true;
        }
    }
    if (n_good)
        acquire(x, &req, good, items, n_good);
    for (size_t i = n; i > 0; i--) /* the first is to be the first again */
        if (all[i - 1].back)
            st_rq_end_now(x, &all[i - 1].m, ST_RQ_REQUEUE, NULL, 0);
    free(good);
    free(items);
}

/* Tells RQ what was started and refused.  If it cannot be told, nothing is lost: the lists still have the messages. */
static void tell(struct st_intake *x)
{
    char job[ST_RQ_ID_MAX + 1] = "";
    stint_error err = {0};
    stint_code rc;

    pthread_mutex_lock(&x->mutex);
    if (x->open)
        memcpy(job, x->open->id, strlen(x->open->id) + 1);
    pthread_mutex_unlock(&x->mutex);
    if (job[0])
        st_rq_add_state(&x->rq, job, false);
    rc = st_rq_flush_lenient(&x->rq, true, &err);
    st_redis_batch_reset(&x->rq.b);
    st_rq_note(x, rc, &err);
}

static void note_taken(struct st_intake *x, const struct st_rq_taken *t)
{
    x->suspended = t->suspended;
    if (t->n_dropped)
        st_log(ST_LOG_WARN, "intake.dropped", ST_FI("messages", t->n_dropped),
               ST_F("reason", "RQ has no job of that id"));
    if (t->odd[0] && !x->odd)
        st_log(ST_LOG_WARN, "intake.odd_key", ST_F("error", t->odd));
    x->odd = t->odd[0] != '\0';
    if (x->odd && !t->n && !t->n_dropped)
        x->not_before_us = st_clock_mono_us() + ST_SEC; /* what is there cannot be taken */
}

static size_t take(struct st_intake *x, struct taken *all, struct st_rq_message *m, size_t n)
{
    struct st_rq_taken t;
    stint_error err = {0};
    stint_code rc = st_rq_take(&x->rq, n, m, &t, &err);

    st_rq_note(x, rc, &err);
    if (rc == STINT_OK)
        note_taken(x, &t);
    for (size_t i = 0; i < t.n; i++) {
        all[i].m = m[i];
        read_call(x, &all[i]);
    }
    st_redis_batch_reset(&x->rq.b);
    pthread_mutex_lock(&x->mutex);
    x->more = t.n == n;
    pthread_mutex_unlock(&x->mutex);
    return t.n;
}

void st_rq_turn_take(struct st_intake *x, size_t n)
{
    struct taken *all = calloc(n, sizeof(*all));
    struct st_rq_message *m = calloc(n, sizeof(*m));
    const size_t got = all && m ? take(x, all, m, n) : 0;
    struct st_plan *plan;
    int64_t lease_us;
    bool held;

    pthread_mutex_lock(&x->mutex);
    plan = st_plan_ref(x->plan);
    lease_us = x->lease_us;
    pthread_mutex_unlock(&x->mutex);
    if (got)
        settle(x, all, got, plan, lease_us);
    st_plan_unref(plan);
    pthread_mutex_lock(&x->mutex);
    x->reserved = 0;
    held = x->hold;
    pthread_mutex_unlock(&x->mutex);
    if (got || held)
        uv_async_send(x->wake);
    if (got)
        tell(x);
    free(all);
    free(m);
}
