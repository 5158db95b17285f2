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

enum { L_STATE, L_LANE, L_FENCE, L_ATTEMPT, L_DUE, L_UNTIL, L_STARTED, L_CANCEL, L_CREATED, L_MAX, L_TIMEOUT, L_PAYLOAD,
       L_META, L_PAUSED, L_NOW };

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

static enum st_refusal refusal(const struct acquire *a, const PGresult *r)
{
    const int64_t now = a->req->now_us ? a->req->now_us : st_pg_get_i64(r, 0, L_NOW, 0);
    const enum st_state state = (enum st_state)st_pg_get_i64(r, 0, L_STATE, 0);

    if (st_state_ended(state))
        return ST_REFUSED_ENDED;
    /* A job that was asked to stop is not run again: reaping will cancel it. */
    if (st_state_held(state) && (st_pg_get_i64(r, 0, L_UNTIL, 0) > now || st_pg_get_bool(r, 0, L_CANCEL)))
        return ST_REFUSED_HELD;
    if (state == ST_PENDING && st_pg_get_i64(r, 0, L_DUE, 0) > now)
        return ST_REFUSED_NOT_DUE;
    if (st_pg_get_bool(r, 0, L_PAUSED))
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
static void prepare(struct acquire *a, const PGresult *r)
{
    const int attempt = (int)st_pg_get_i64(r, 0, L_ATTEMPT, 0);

    a->rule = st_rule_find(a->req->types, a->req->n_types, a->lane->queue, a->lane->type);
    a->policy = a->rule ? a->rule->policy : st_policy_default;
    st_pg_policy_own(&a->policy, r, 0, L_MAX, L_TIMEOUT);
    /* a held job that never started was not charged */
    a->attempt = st_pg_get_i64(r, 0, L_STATE, 0) == ST_CLAIMED ? attempt : attempt + 1;
}

static stint_code take(struct st_pg *s, struct acquire *a, const PGresult *seen, stint_error *err)
{
    const int64_t lease = a->rule && a->rule->lease_us ? a->rule->lease_us : a->req->lease_us;
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
    st_pg_i64(&args, lease);
    st_pg_i32(&args, policy);
    code = st_pg_call(s, PG_ACQUIRE, &args, true, &r, err);
    if (!code && PQntuples(r) == 1) {
        a->job = st_job_new(a->id, a->lane->type, a->lane->queue, st_pg_get(seen, 0, L_PAYLOAD), st_pg_get(seen, 0, L_META));
        if (!a->job)
            code = st_fail(err, STINT_EUNKNOWN, "out of memory for a job");
    }
    if (a->job) {
        a->job->fence = st_pg_get_i64(seen, 0, L_FENCE, 0) + 1;
        a->job->attempt = a->attempt;
        a->job->priority = a->lane->priority;
        a->job->state = ST_RUNNING;
        a->job->policy = a->policy;
        a->job->created_us = st_pg_get_i64(seen, 0, L_CREATED, 0);
        a->job->due_us = st_pg_get_i64(r, 0, 2, 0);
        a->job->lease_us = lease;
        a->job->lease_until_us = st_pg_get_i64(r, 0, 1, 0);
    }
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
            prepare(a, r);
            a->why = refusal(a, r);
        }
        if (!code && !a->why)
            code = take(s, a, r, err);
    }
    PQclear(r);
    return code;
}

stint_code st_pg_acquire(struct st_store *store, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                         enum st_refusal *why, stint_error *err)
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
