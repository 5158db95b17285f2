/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_acquire.c - taking one job by its id.
 *
 *     pending and due            -> running
 *     held, its lease expired    -> that attempt ends as lease_expired, and we run it
 *     anything else              -> refused, with the reason; nothing changes
 *
 * Look, decide, take if it is still as it was seen (one compare-and-swap on the server); if it is not, look again.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>

#include "store/postgres_op.h"

#define TRIES 20

enum {
    L_STATE,
    L_LANE,
    L_FENCE,
    L_ATTEMPT,
    L_DUE,
    L_UNTIL,
    L_STARTED,
    L_CANCEL,
    L_CREATED,
    L_MAX,
    L_TIMEOUT,
    L_PAYLOAD,
    L_META,
    L_PAUSED,
    L_NOW,
    L_ORD
};

struct acquire {
    const struct st_claim_req *req;
    struct st_slice id;
    struct st_pg_key key;
    const struct st_pg_lane *lane;
    const struct st_type_rule *rule;
    struct st_policy policy; /* effective */
    int attempt;             /* the number ours would have */
    struct st_job *job;
    enum st_refusal why;
};

static enum st_refusal refusal(const struct acquire *a, const PGresult *r, int row)
{
    const int64_t now = a->req->now_us ? a->req->now_us : st_pg_get_i64(r, row, L_NOW, 0);
    const enum st_state state = (enum st_state)st_pg_get_i64(r, row, L_STATE, 0);

    if (st_state_ended(state))
        return ST_REFUSED_ENDED;
    /* A job that was asked to stop is not run again: reaping will cancel it. */
    if (st_state_held(state) && (st_pg_get_i64(r, row, L_UNTIL, 0) > now || st_pg_get_bool(r, row, L_CANCEL)))
        return ST_REFUSED_HELD;
    if (state == ST_PENDING && st_pg_get_i64(r, row, L_DUE, 0) > now)
        return ST_REFUSED_NOT_DUE;
    if (st_pg_get_bool(r, row, L_PAUSED))
        return ST_REFUSED_PAUSED;
    if (a->policy.max_attempts > 0 && a->attempt > a->policy.max_attempts)
        return ST_REFUSED_EXHAUSTED;
    return ST_REFUSED_NOT;
}

static const struct st_pg_lane *lane_of(struct st_pg *s, int64_t id, stint_error *err)
{
    const struct st_pg_lane *lane;

    for (int i = 0; i < 2; i++) {
        if (st_pg_lanes_refresh(s, i > 0, err))
            return NULL;
        pthread_mutex_lock(&s->sh->mu);
        lane = st_pg_lane_by_id(s->sh, id);
        pthread_mutex_unlock(&s->sh->mu);
        if (lane)
            return lane;
    }
    st_fail(err, STINT_ESTORE, "the store is damaged: a job belongs to no lane");
    st_err_remedy(err, "run `stint doctor`");
    return NULL;
}

/* What we would run it with. */
static void prepare(struct acquire *a, const PGresult *r, int row)
{
    const int attempt = (int)st_pg_get_i64(r, row, L_ATTEMPT, 0);

    a->rule = st_rule_find(a->req->types, a->req->n_types, a->lane->queue, a->lane->type);
    a->policy = a->rule ? a->rule->policy : st_policy_default;
    st_pg_policy_own(&a->policy, r, row, L_MAX, L_TIMEOUT);
    /* a held job that never started was not charged */
    a->attempt = st_pg_get_i64(r, row, L_STATE, 0) == ST_CLAIMED ? attempt : attempt + 1;
}

static int64_t lease_of(const struct acquire *a)
{
    return a->rule && a->rule->lease_us ? a->rule->lease_us : a->req->lease_us;
}

/* From what was seen, and what taking it answered. */
static bool make_job(struct acquire *a, const PGresult *seen, int row, const PGresult *taken, int taken_row)
{
    struct st_job *job =
        st_job_new(a->id, a->lane->type, a->lane->queue, st_pg_get(seen, row, L_PAYLOAD), st_pg_get(seen, row, L_META));

    if (!job)
        return false;
    job->fence = st_pg_get_i64(seen, row, L_FENCE, 0) + 1;
    job->attempt = a->attempt;
    job->priority = a->lane->priority;
    job->state = ST_RUNNING;
    job->policy = a->policy;
    job->created_us = st_pg_get_i64(seen, row, L_CREATED, 0);
    job->due_us = st_pg_get_i64(taken, taken_row, 2, 0);
    job->lease_us = lease_of(a);
    job->lease_until_us = st_pg_get_i64(taken, taken_row, 1, 0);
    a->job = job;
    return true;
}

static stint_code take(struct st_pg *s, struct acquire *a, const PGresult *seen, stint_error *err)
{
    struct st_pg_args args;
    PGresult *r = NULL;
    int32_t policy;
    stint_code code;

    if (st_pg_policy_id(s, a->rule ? &a->rule->policy : &st_policy_default, &policy, err))
        return err->code;
    st_pg_args_init(&args);
    st_pg_i64(&args, a->req->now_us);
    st_pg_text(&args, a->req->worker);
    st_pg_bytes(&args, ST_SLICE((const char *)a->key.p, a->key.len));
    st_pg_i64(&args, st_pg_get_i64(seen, 0, L_FENCE, 0));
    st_pg_bool(&args, st_state_held((enum st_state)st_pg_get_i64(seen, 0, L_STATE, 0)));
    st_pg_i32(&args, a->attempt);
    st_pg_i64(&args, lease_of(a));
    st_pg_i32(&args, policy);
    code = st_pg_call(s, PG_ACQUIRE, &args, true, &r, err);
    if (!code && PQntuples(r) == 1 && !make_job(a, seen, 0, r, 0))
        code = st_fail(err, STINT_EUNKNOWN, "out of memory for a job");
    PQclear(r);
    st_pg_args_clear(&args);
    return code;
}

static stint_code look(struct st_pg *s, const struct st_pg_key *key, PGresult **r, stint_error *err)
{
    struct st_pg_args a;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_bytes(&a, ST_SLICE((const char *)key->p, key->len));
    code = st_pg_call(s, PG_LOOK, &a, false, r, err);
    st_pg_args_clear(&a);
    return code;
}

/* One try.  Neither job nor reason: it moved, look again. */
static stint_code try_once(struct st_pg *s, struct acquire *a, stint_error *err)
{
    PGresult *r = NULL;
    stint_code code = look(s, &a->key, &r, err);

    a->why = ST_REFUSED_NOT;
    if (!code && PQntuples(r) == 0) {
        a->why = ST_REFUSED_UNKNOWN;
    } else if (!code && !st_pg_is_null(r, 0, L_STATE)) {
        a->lane = lane_of(s, st_pg_get_i64(r, 0, L_LANE, 0), err);
        code = a->lane ? STINT_OK : err->code;
        if (!code) {
            prepare(a, r, 0);
            a->why = refusal(a, r, 0);
        }
        if (!code && !a->why)
            code = take(s, a, r, err);
    }
    PQclear(r);
    return code;
}

stint_code st_pg_acquire(struct st_store *store, struct st_slice id, const struct st_claim_req *req,
                         struct st_job **out, enum st_refusal *why, stint_error *err)
{
    struct acquire a = {.req = req, .id = id};
    stint_error local = {0};
    stint_code code = STINT_OK;

    st_pg_key(id, &a.key);
    for (int i = 0; i < TRIES && !code && !a.job && !a.why; i++)
        code = try_once(st_pg_of(store), &a, &local);
    *out = a.job;
    *why = a.why;
    if (!code && a.why == ST_REFUSED_UNKNOWN)
        code = st_fail(&local, STINT_ENOTFOUND, "there is no job %.*s", (int)id.len, id.p);
    else if (!code && a.why)
        code = st_fail(&local, STINT_ESTATE, "job %.*s was not taken: %s", (int)id.len, id.p, st_refusal_name(a.why));
    else if (!code && !a.job)
        code = st_fail(&local, STINT_EAGAIN, "job %.*s is on the move", (int)id.len, id.p);
    return st_pg_told(code, &local, err);
}

/* ---- several ------------------------------------------------------------------------------------ */

/*
 * The same in two statements for all of them: what is neither taken nor refused has moved, and is looked at again.  A row that
 * somebody else is at makes the whole statement fail, and nothing is done: then they are taken one by one.
 */
struct many {
    struct st_acquire *items;
    struct acquire *a; /* parallel */
    size_t n;
    size_t *rows; /* of what is asked for: index of the item */
    int *seen;    /* its row in what was seen; -1 = none */
    size_t n_rows;
};

static bool is_open(const struct st_acquire *it)
{
    return !it->job && !it->why;
}

static stint_code look_many(struct st_pg *s, struct many *m, PGresult **r, stint_error *err)
{
    struct st_pg_args args;
    stint_code code;

    m->n_rows = 0;
    st_pg_args_init(&args);
    st_pg_array(&args, ST_PG_BYTEA);
    for (size_t i = 0; i < m->n; i++) {
        if (!is_open(&m->items[i]))
            continue;
        st_pg_item_bytes(&args, ST_SLICE((const char *)m->a[i].key.p, m->a[i].key.len));
        m->seen[m->n_rows] = -1;
        m->rows[m->n_rows++] = i;
    }
    st_pg_array_end(&args);
    code = st_pg_call(s, PG_LOOK_MANY, &args, false, r, err);
    st_pg_args_clear(&args);
    for (int row = 0; !code && row < PQntuples(*r); row++) {
        const int64_t o = st_pg_get_i64(*r, row, L_ORD, 0);

        if (o >= 1 && (size_t)o <= m->n_rows)
            m->seen[o - 1] = row;
    }
    return code;
}

/* Leaves in rows what can be taken. */
static stint_code decide_many(struct st_pg *s, struct many *m, const PGresult *r, stint_error *err)
{
    size_t n = 0;

    for (size_t k = 0; k < m->n_rows; k++) {
        const size_t i = m->rows[k];
        struct acquire *a = &m->a[i];

        if (m->seen[k] < 0) {
            m->items[i].why = ST_REFUSED_UNKNOWN;
            continue;
        }
        if (st_pg_is_null(r, m->seen[k], L_STATE))
            continue;
        a->lane = lane_of(s, st_pg_get_i64(r, m->seen[k], L_LANE, 0), err);
        if (!a->lane)
            return err->code;
        prepare(a, r, m->seen[k]);
        m->items[i].why = refusal(a, r, m->seen[k]);
        if (m->items[i].why)
            continue;
        m->seen[n] = m->seen[k];
        m->rows[n++] = i;
    }
    m->n_rows = n;
    return STINT_OK;
}

static stint_code put_many(struct st_pg *s, const struct many *m, const PGresult *seen, struct st_pg_args *a,
                           stint_error *err)
{
    st_pg_array(a, ST_PG_BYTEA);
    for (size_t k = 0; k < m->n_rows; k++)
        st_pg_item_bytes(a, ST_SLICE((const char *)m->a[m->rows[k]].key.p, m->a[m->rows[k]].key.len));
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT8);
    for (size_t k = 0; k < m->n_rows; k++)
        st_pg_item_i64(a, st_pg_get_i64(seen, m->seen[k], L_FENCE, 0));
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    for (size_t k = 0; k < m->n_rows; k++)
        st_pg_item_i32(a, st_state_held((enum st_state)st_pg_get_i64(seen, m->seen[k], L_STATE, 0)));
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    for (size_t k = 0; k < m->n_rows; k++)
        st_pg_item_i32(a, m->a[m->rows[k]].attempt);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT8);
    for (size_t k = 0; k < m->n_rows; k++)
        st_pg_item_i64(a, lease_of(&m->a[m->rows[k]]));
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    for (size_t k = 0; k < m->n_rows; k++) {
        const struct acquire *x = &m->a[m->rows[k]];
        int32_t policy;

        if (st_pg_policy_id(s, x->rule ? &x->rule->policy : &st_policy_default, &policy, err))
            return err->code;
        st_pg_item_i32(a, policy);
    }
    st_pg_array_end(a);
    return STINT_OK;
}

static stint_code take_many(struct st_pg *s, struct many *m, const PGresult *seen, const struct st_claim_req *req,
                            stint_error *err)
{
    struct st_pg_args args;
    PGresult *r = NULL;
    stint_code code;

    if (m->n_rows == 0)
        return STINT_OK;
    st_pg_args_init(&args);
    st_pg_i64(&args, req->now_us);
    st_pg_text(&args, req->worker);
    code = put_many(s, m, seen, &args, err);
    if (!code)
        code = st_pg_call(s, PG_ACQUIRE_MANY, &args, true, &r, err);
    for (int row = 0; !code && row < PQntuples(r); row++) {
        const int64_t o = st_pg_get_i64(r, row, 3, 0);
        const size_t k = (size_t)(o - 1);

        if (o < 1 || k >= m->n_rows)
            continue;
        if (!make_job(&m->a[m->rows[k]], seen, m->seen[k], r, row))
            code = st_fail(err, STINT_EUNKNOWN, "out of memory for a job");
        m->items[m->rows[k]].job = m->a[m->rows[k]].job;
    }
    PQclear(r);
    st_pg_args_clear(&args);
    return code;
}

static stint_code many_once(struct st_pg *s, struct many *m, const struct st_claim_req *req, stint_error *err)
{
    PGresult *r = NULL;
    stint_code code = look_many(s, m, &r, err);

    if (!code)
        code = decide_many(s, m, r, err);
    if (!code)
        code = take_many(s, m, r, req, err);
    PQclear(r);
    return code;
}

/* Those that are left, each by itself.  EAGAIN: somebody else is at some, which are left; the others are dealt with. */
static stint_code one_by_one(struct st_store *store, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                             stint_error *err)
{
    stint_error busy = {0};

    for (size_t i = 0; i < n; i++) {
        stint_code code;

        if (!is_open(&items[i]))
            continue;
        code = st_pg_acquire(store, items[i].id, req, &items[i].job, &items[i].why, err);
        if (!code || items[i].why)
            continue;
        if (!st_pg_in_the_way(st_pg_of(store), err))
            return code;
        busy = *err;
    }
    if (busy.code)
        *err = busy;
    return busy.code;
}

stint_code st_pg_acquire_many(struct st_store *store, struct st_acquire *items, size_t n,
                              const struct st_claim_req *req, stint_error *err)
{
    struct many m = {.items = items,
                     .n = n,
                     .a = calloc(n, sizeof(*m.a)),
                     .rows = calloc(n, sizeof(*m.rows)),
                     .seen = calloc(n, sizeof(*m.seen))};
    stint_error local = {0};
    stint_code code = m.a && m.rows && m.seen ? STINT_OK : st_fail(&local, STINT_ENOMEM, "out of memory to take jobs");

    for (size_t i = 0; !code && i < n; i++) {
        m.a[i].req = req;
        m.a[i].id = items[i].id;
        st_pg_key(items[i].id, &m.a[i].key);
    }
    if (!code)
        code = many_once(st_pg_of(store), &m, req, &local);
    if (!code || st_pg_in_the_way(st_pg_of(store), &local))
        code = one_by_one(store, items, n, req, &local);
    free(m.a);
    free(m.rows);
    free(m.seen);
    return st_pg_told(code, &local, err);
}
