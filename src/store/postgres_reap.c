/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_reap.c - jobs whose worker has gone silent, and jobs a worker does not know it holds.
 *
 *     running, lease expired   charged: retry with its backoff, or failed (lease_expired)
 *     claimed, lease expired   not charged, pending at once; from the 4th time in a row as above
 *     asked to cancel          cancelled
 *
 * What is to be done is decided here, by the policy that was written at the claim; the server does it only where the
 * lease is still the one that was seen and still expired.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>

#include "base/id.h"
#include "store/postgres_op.h"

#define SKIPS_MAX 3
#define TIDY_MAX  2000
#define REAP_MAX  1000 /* at once */

enum { X_ID, X_FENCE, X_UNTIL, X_STARTED, X_ATTEMPT, X_SKIPS, X_CANCEL, X_WORKER, X_POLICY, X_MAX, X_NOW };

static const char gone[] = "the lease expired: its worker is gone";
static const char gone_cancelled[] = "cancelled; its worker is gone";

static struct st_pg_end decide(const PGresult *r, int row)
{
    struct st_pg_end e = {.key = st_pg_get(r, row, X_ID), .fence = st_pg_get_i64(r, row, X_FENCE, 0), .delay_us = -1};
    int attempt = (int)st_pg_get_i64(r, row, X_ATTEMPT, 1);
    struct st_policy policy;

    if (!st_policy_read(st_pg_get(r, row, X_POLICY), &policy))
        policy = st_policy_default;
    st_pg_policy_own(&policy, r, row, X_MAX, -1);
    attempt = attempt > 0 ? attempt : 1;
    e.message = st_pg_get_bool(r, row, X_CANCEL) ? gone_cancelled : gone;
    if (st_pg_is_null(r, row, X_STARTED) && st_pg_get_i64(r, row, X_SKIPS, 0) < SKIPS_MAX) {
        e.outcome = ST_PG_EXPIRED_GIVEN;
    } else if (st_policy_may_retry(policy.max_attempts, attempt)) {
        e.outcome = ST_PG_EXPIRED_RETRY;
        e.delay_us = st_policy_delay(&policy, attempt, st_random_unit());
    } else {
        e.outcome = ST_PG_EXPIRED_FAILED;
    }
    return e;
}

static void reaped_fill(struct st_reaped *out, const PGresult *r, int row, int state)
{
    const struct st_slice worker = st_pg_get(r, row, X_WORKER);

    st_pg_get_id(r, row, X_ID, out->id);
    snprintf(out->worker, sizeof(out->worker), "%.*s", (int)worker.len, worker.p ? worker.p : "");
    out->fence = st_pg_get_i64(r, row, X_FENCE, 0);
    out->from = st_pg_is_null(r, row, X_STARTED) ? ST_CLAIMED : ST_RUNNING;
    out->to = (enum st_state)state;
}

static stint_code reap_these(struct st_pg *s, int64_t now_us, const PGresult *r, struct st_reaped *out, size_t *n_out,
                             stint_error *err)
{
    const size_t n = (size_t)PQntuples(r);
    struct st_pg_end *ends = calloc(n, sizeof(*ends));
    int *state = calloc(n, sizeof(*state));
    stint_code code = STINT_OK;

    if (!ends || !state)
        code = st_fail(err, STINT_ENOMEM, "out of memory for %zu expired jobs", n);
    for (size_t i = 0; !code && i < n; i++)
        ends[i] = decide(r, (int)i);
    if (!code)
        code = st_pg_end_all(s, now_us, st_pg_get_i64(r, 0, X_NOW, 0), ends, n, state, err);
    for (size_t i = 0; !code && i < n; i++)
        if (state[i])
            reaped_fill(&out[(*n_out)++], r, (int)i, state[i]);
    free(ends);
    free(state);
    return code;
}

static void tell_lost(struct st_pg *s, const struct st_reaped *reaped, size_t n)
{
    struct st_pg_args a;
    stint_error ignored = {0};
    PGresult *r = NULL;

    st_pg_args_init(&a);
    st_pg_array(&a, ST_PG_TEXT);
    for (size_t i = 0; i < n; i++)
        st_pg_item_bytes(&a, st_slice_cstr(reaped[i].worker));
    st_pg_array_end(&a);
    st_pg_call(s, PG_TELL_LOST, &a, true, &r, &ignored); /* a hint */
    PQclear(r);
    st_pg_args_clear(&a);
}

/* Groups that have nothing left are thrown away, others looked at later. */
static stint_code tidy(struct st_pg *s, int64_t now_us, stint_error *err)
{
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_i64(&a, now_us);
    st_pg_i32(&a, TIDY_MAX);
    code = st_pg_call(s, PG_TIDY, &a, true, &r, err);
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

stint_code st_pg_reap(struct st_store *store, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                      size_t *n_out, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code;

    *n_out = 0;
    st_pg_args_init(&a);
    st_pg_i64(&a, now_us);
    st_pg_text(&a, me.p ? me : st_slice_cstr(""));
    st_pg_i32(&a, (int32_t)(max < REAP_MAX ? max : REAP_MAX));
    code = st_pg_call(s, PG_EXPIRED, &a, false, &r, &local);
    if (!code && PQntuples(r) > 0)
        code = reap_these(s, now_us, r, out, n_out, &local);
    PQclear(r);
    st_pg_args_clear(&a);
    if (!code && *n_out)
        tell_lost(s, out, *n_out);
    if (!code)
        code = tidy(s, now_us, &local);
    return st_pg_told(code, &local, err);
}

/* ---- disown ------------------------------------------------------------------------------------- */

static bool is_known(const struct st_slice *known, size_t n, const char *id)
{
    for (size_t i = 0; i < n; i++)
        if (st_slice_is(known[i], id))
            return true;
    return false;
}

static stint_code held_by(struct st_pg *s, struct st_slice worker, PGresult **r, stint_error *err)
{
    struct st_pg_args a;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_text(&a, worker);
    code = st_pg_call(s, PG_HELD, &a, false, r, err);
    st_pg_args_clear(&a);
    return code;
}

stint_code st_pg_disown(struct st_store *store, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                        size_t n, size_t *n_given, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    struct st_pg_end *ends = NULL;
    stint_error local = {0};
    PGresult *r = NULL;
    char id[ST_ID_MAX + 1];
    int *state = NULL;
    size_t m = 0;
    stint_code code = held_by(s, worker, &r, &local);

    *n_given = 0;
    if (!code && PQntuples(r) > 0) {
        ends = calloc((size_t)PQntuples(r), sizeof(*ends));
        state = calloc((size_t)PQntuples(r), sizeof(*state));
        if (!ends || !state)
            code = st_fail(&local, STINT_ENOMEM, "out of memory for the jobs that are held");
    }
    for (int i = 0; !code && i < PQntuples(r); i++)
        if (st_pg_get_id(r, i, 0, id) && !is_known(known, n, id))
            ends[m++] = (struct st_pg_end){.key = st_pg_get(r, i, 0),
                                           .fence = st_pg_get_i64(r, i, 1, 0),
                                           .outcome = ST_PG_DISOWNED,
                                           .delay_us = -1};
    if (!code && m)
        code = st_pg_end_all(s, now_us, -1, ends, m, state, &local);
    for (size_t i = 0; !code && i < m; i++)
        *n_given += state[i] != 0;
    PQclear(r);
    free(ends);
    free(state);
    return st_pg_told(code, &local, err);
}

/* ---- flagged ------------------------------------------------------------------------------------ */

stint_code st_pg_flagged(struct st_store *store, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                         size_t *n_out, stint_error *err)
{
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code;

    *n_out = 0;
    st_pg_args_init(&a);
    st_pg_text(&a, worker);
    st_pg_i64(&a, (int64_t)max);
    code = st_pg_call(st_pg_of(store), PG_FLAGGED, &a, false, &r, &local);
    for (int i = 0; !code && i < PQntuples(r); i++)
        *n_out += st_pg_get_id(r, i, 0, ids[*n_out]);
    PQclear(r);
    st_pg_args_clear(&a);
    return st_pg_told(code, &local, err);
}
