/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_claim.c - taking jobs by queues and types, alone or together with the outcomes of the last ones.
 *
 * The request becomes a list of lanes in the order of service; one function on the server takes n jobs from them.  In the
 * same transaction a probe tells what the marks must know (postgres_mark.c).
 *
 *     class 1   queue "fast", priority 5     lanes of its types, even and odd: one order by due time and id
 *     class 2   queue "fast", priority 0
 *     class 3   queue "slow", ...
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/postgres_op.h"

/* ---- the plan ---------------------------------------------------------------------------------- */

struct place {
    struct st_pg_lane *lane;
    size_t group; /* which of the request's queues */
    int rule;     /* from 1 */
};

struct plan {
    struct place *places; /* in the order of service */
    size_t n;
    struct st_pg_seen *seen; /* one per place */
    int32_t *policies;       /* one per rule */
    size_t n_rules;
};

static void plan_clear(struct plan *p)
{
    free(p->places);
    free(p->seen);
    free(p->policies);
}

static int place_cmp(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->lane->priority < y->lane->priority) - (x->lane->priority > y->lane->priority);
}

/* The first of the request's queues that means this lane; n = none. */
static size_t group_of(const struct st_claim_req *req, const struct st_pg_lane *lane)
{
    size_t i = 0;

    while (i < req->n_queues && !st_queue_covers(req->queues[i], lane->queue))
        i++;
    return i;
}

/* Under mu. */
static stint_code plan_lanes(struct plan *p, struct st_pg_shared *sh, const struct st_claim_req *req, stint_error *err)
{
    p->places = calloc(sh->n_lanes + 1, sizeof(*p->places));
    p->seen = calloc(sh->n_lanes + 1, sizeof(*p->seen));
    if (!p->places || !p->seen)
        return st_fail(err, STINT_ENOMEM, "out of memory for a claim");
    for (size_t i = 0; i < sh->n_lanes; i++) {
        struct st_pg_lane *lane = sh->lanes[i];
        const struct st_type_rule *rule = st_rule_find(req->types, req->n_types, lane->queue, lane->type);
        const size_t group = req->n_queues ? group_of(req, lane) : 0;

        if ((req->n_queues && group == req->n_queues) || (req->n_types && !rule))
            continue;
        p->places[p->n++] = (struct place){lane, group, rule ? (int)(rule - req->types) + 1 : 1};
    }
    qsort(p->places, p->n, sizeof(*p->places), place_cmp);
    st_pg_marks_sweep(sh);
    for (size_t i = 0; i < p->n; i++) {
        p->seen[i].lane = p->places[i].lane;
        p->seen[i].from = req->now_us ? st_pg_begin : *st_pg_mark_from(p->places[i].lane);
        p->seen[i].sweeps = p->places[i].lane->sweeps;
    }
    return STINT_OK;
}

static stint_code plan_rules(struct plan *p, struct st_pg *s, const struct st_claim_req *req, stint_error *err)
{
    p->n_rules = req->n_types ? req->n_types : 1;
    p->policies = calloc(p->n_rules, sizeof(*p->policies));
    if (!p->policies)
        return st_fail(err, STINT_ENOMEM, "out of memory for a claim");
    for (size_t i = 0; i < p->n_rules; i++)
        if (st_pg_policy_id(s, req->n_types ? &req->types[i].policy : &st_policy_default, &p->policies[i], err))
            return err->code;
    return STINT_OK;
}

static stint_code plan_make(struct plan *p, struct st_pg *s, const struct st_claim_req *req, stint_error *err)
{
    stint_code code;

    memset(p, 0, sizeof(*p));
    if (st_pg_lanes_refresh(s, false, err) || plan_rules(p, s, req, err))
        return err->code;
    pthread_mutex_lock(&s->sh->mu);
    code = plan_lanes(p, s->sh, req, err);
    pthread_mutex_unlock(&s->sh->mu);
    return code;
}

/* ---- the call ---------------------------------------------------------------------------------- */

static struct st_slice key_slice(const struct st_pg_key *k)
{
    return ST_SLICE((const char *)k->p, k->len);
}

/* Each lane is asked for twice: the even one from its mark, the odd one from its beginning. */
static void put_lanes(struct st_pg_args *a, const struct plan *p)
{
    int class;

    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < p->n; i++) {
        st_pg_item_i64(a, p->places[i].lane->id);
        st_pg_item_i64(a, p->places[i].lane->id + 1);
    }
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    class = 0;
    for (size_t i = 0; i < p->n; i++) {
        class += i == 0 || place_cmp(&p->places[i - 1], &p->places[i]) != 0;
        st_pg_item_i32(a, class);
        st_pg_item_i32(a, class);
    }
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    for (size_t i = 0; i < p->n; i++) {
        st_pg_item_i32(a, p->places[i].rule);
        st_pg_item_i32(a, p->places[i].rule);
    }
    st_pg_array_end(a);
}

static void put_places(struct st_pg_args *a, const struct plan *p, bool odd)
{
    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < p->n; i++) {
        st_pg_item_i64(a, p->seen[i].from.key);
        if (odd)
            st_pg_item_i64(a, st_pg_begin.key);
    }
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_BYTEA);
    for (size_t i = 0; i < p->n; i++) {
        st_pg_item_bytes(a, key_slice(&p->seen[i].from.id));
        if (odd)
            st_pg_item_bytes(a, key_slice(&st_pg_begin.id));
    }
    st_pg_array_end(a);
}

static void put_rules(struct st_pg_args *a, const struct plan *p, const struct st_claim_req *req)
{
    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < p->n_rules; i++)
        st_pg_item_i64(a, req->n_types && req->types[i].lease_us ? req->types[i].lease_us : req->lease_us);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    for (size_t i = 0; i < p->n_rules; i++)
        st_pg_item_i32(a, p->policies[i]);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    for (size_t i = 0; i < p->n_rules; i++) {
        const size_t max = req->n_types && req->types[i].max ? req->types[i].max : INT32_MAX;

        st_pg_item_i32(a, (int32_t)(max < INT32_MAX ? max : INT32_MAX));
    }
    st_pg_array_end(a);
}

static void put_claim(struct st_pg_args *a, const struct plan *p, const struct st_claim_req *req, bool careful)
{
    st_pg_i64(a, req->now_us);
    st_pg_text(a, req->worker);
    st_pg_i32(a, (int32_t)req->n);
    st_pg_i32(a, (int32_t)(req->n_run < req->n ? req->n_run : req->n));
    put_lanes(a, p);
    put_places(a, p, true);
    put_rules(a, p, req);
    st_pg_bool(a, careful);
}

static void put_probe(struct st_pg_args *a, const struct plan *p)
{
    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < p->n; i++)
        st_pg_item_i64(a, p->places[i].lane->id);
    st_pg_array_end(a);
    put_places(a, p, false);
}

/* ---- the answer -------------------------------------------------------------------------------- */

enum { C_ORD, C_LANE, C_KEY, C_FENCE, C_ATTEMPT, C_RULE, C_STARTED, C_UNTIL, C_CREATED, C_MAX, C_TIMEOUT, C_ID, C_PAYLOAD, C_META };

static struct st_job *job_read(struct st_pg *s, const struct st_claim_req *req, const PGresult *r, int row)
{
    const int64_t rule = st_pg_get_i64(r, row, C_RULE, 1);
    const struct st_pg_lane *lane;
    char id[ST_ID_MAX + 1];
    struct st_job *job;

    pthread_mutex_lock(&s->sh->mu);
    lane = st_pg_lane_by_id(s->sh, st_pg_get_i64(r, row, C_LANE, 0));
    pthread_mutex_unlock(&s->sh->mu);
    if (!lane || !st_pg_get_id(r, row, C_ID, id))
        return NULL;
    job = st_job_new(st_slice_cstr(id), lane->type, lane->queue, st_pg_get(r, row, C_PAYLOAD), st_pg_get(r, row, C_META));
    if (!job)
        return NULL;
    job->fence = st_pg_get_i64(r, row, C_FENCE, 0);
    job->attempt = (int)st_pg_get_i64(r, row, C_ATTEMPT, 1);
    job->priority = lane->priority;
    job->state = st_pg_is_null(r, row, C_STARTED) ? ST_CLAIMED : ST_RUNNING;
    job->policy = req->n_types ? req->types[rule - 1].policy : st_policy_default;
    st_pg_policy_own(&job->policy, r, row, C_MAX, C_TIMEOUT);
    job->created_us = st_pg_get_i64(r, row, C_CREATED, 0);
    job->due_us = st_pg_get_i64(r, row, C_KEY, 0);
    job->lease_until_us = st_pg_get_i64(r, row, C_UNTIL, 0);
    job->lease_us = req->n_types && req->types[rule - 1].lease_us ? req->types[rule - 1].lease_us : req->lease_us;
    return job;
}

/* Into out, in the order of service.  What is answered is claimed: it is given back if it cannot be told. */
static stint_code jobs_read(struct st_pg *s, const struct st_claim_req *req, const PGresult *r, struct st_job **out,
                            size_t *n_out, stint_error *err)
{
    const int n = PQntuples(r);

    for (int i = 0; i < n; i++)
        out[i] = NULL;
    for (int i = 0; i < n; i++) {
        const int64_t at = st_pg_get_i64(r, i, C_ORD, 0) - 1;
        struct st_job *job = at >= 0 && at < n && !out[at] ? job_read(s, req, r, i) : NULL;

        if (!job) {
            for (int k = 0; k < n; k++)
                st_job_free(out[k]);
            /* the worker asks for what it holds and does not know of */
            return st_fail(err, STINT_EUNKNOWN, "out of memory for %d claimed jobs", n);
        }
        out[at] = job;
    }
    *n_out = (size_t)n;
    return STINT_OK;
}

static int pos_order(const PGresult *r, int row, const struct st_pg_pos *than)
{
    const int64_t key = st_pg_get_i64(r, row, C_KEY, 0);

    if (key != than->key)
        return key < than->key ? -1 : 1;
    return st_slice_cmp(st_pg_get(r, row, C_ID), key_slice(&than->id));
}

static void pos_set(struct st_pg_pos *p, int64_t key, struct st_slice id)
{
    p->key = key;
    p->id.len = id.len < ST_PG_KEY_MAX ? id.len : ST_PG_KEY_MAX;
    memcpy(p->id.p, id.p, p->id.len);
}

/* What was taken from each lane.  Rows of odd lanes count too: a mark is only an upper bound. */
static void marks_read(struct plan *p, const PGresult *r)
{
    struct st_pg_seen *last = NULL;

    for (int row = 0; row < PQntuples(r); row++) {
        const int64_t id = st_pg_get_i64(r, row, C_LANE, 0);

        if (!last || last->lane->id != id) {
            for (size_t i = 0; i < p->n; i++)
                if (p->seen[i].lane->id == id)
                    last = &p->seen[i];
        }
        if (!last || last->lane->id != id)
            continue;
        if (last->n++ == 0 || pos_order(r, row, &last->mark) > 0)
            pos_set(&last->mark, st_pg_get_i64(r, row, C_KEY, 0), st_pg_get(r, row, C_ID));
    }
}

enum { P_NOW, P_XID, P_SNAPSHOT, P_SERVER, P_LANES, P_LAST_LANE, P_NEXT_DUE, P_FIRSTS, P_FIRST_IDS };

static void firsts_read(struct plan *p, const PGresult *r)
{
    struct st_pg_array keys, ids;
    struct st_slice key, id;

    if (!st_pg_get_array(r, 0, P_FIRSTS, &keys) || !st_pg_get_array(r, 0, P_FIRST_IDS, &ids))
        return;
    for (size_t i = 0; i < p->n && st_pg_array_next(&keys, &key) && st_pg_array_next(&ids, &id); i++) {
        p->seen[i].any_first = key.p != NULL;
        if (key.p)
            pos_set(&p->seen[i].first, st_pg_be64(key.p), id);
    }
}

/* What the probe says of the server: another one, or one whose clock was set back, makes every mark worthless. */
static bool same_world(struct st_pg_shared *sh, const PGresult *r)
{
    const int64_t now = st_pg_get_i64(r, 0, P_NOW, 0), server = st_pg_get_i64(r, 0, P_SERVER, 0);
    const bool same = (!sh->server_started || sh->server_started == server) && now > sh->last_now_us - 200 * ST_MS;

    sh->server_started = server;
    sh->last_now_us = same && now < sh->last_now_us ? sh->last_now_us : now;
    return same;
}

/* *again: there is a lane that this claim did not know of, or the marks were worthless.  real: it went by the server's clock;
 * a time that a test has given says nothing about what may still come before it. */
static void learn(struct st_pg *s, struct plan *p, const PGresult *jobs, const PGresult *probe, int64_t took_us, bool real,
                  bool *again)
{
    struct st_pg_shared *sh = s->sh;
    char *snapshot = strndup(PQgetvalue(probe, 0, P_SNAPSHOT), (size_t)PQgetlength(probe, 0, P_SNAPSHOT));
    bool swept = false;

    marks_read(p, jobs);
    firsts_read(p, probe);
    pthread_mutex_lock(&sh->mu);
    *again = st_pg_get_i64(probe, 0, P_LANES, 0) != sh->lanes_seen || st_pg_get_i64(probe, 0, P_LAST_LANE, 0) != sh->lanes_max;
    if (*again)
        sh->lanes_read_us = 0;
    for (size_t i = 0; i < p->n; i++)
        swept |= p->seen[i].lane->sweeping;
    if (!same_world(sh, probe) || !snapshot) {
        st_pg_marks_forget(sh);
        *again = true;
    } else if (real) {
        st_pg_marks_learn(sh, (uint64_t)st_pg_get_i64(probe, 0, P_XID, 0), snapshot, p->seen, p->n);
    }
    if (swept && real)
        st_pg_marks_swept(sh, took_us);
    pthread_mutex_unlock(&sh->mu);
    free(snapshot);
}

/* ---- the operations ----------------------------------------------------------------------------- */

#define CAREFUL_US (10 * ST_SEC) /* an operator's transaction may stay open: not every claim shall wait for it first */

/* Somebody else is at a row that it wants.  Nothing was done. */
static bool in_the_way(const stint_error *err)
{
    return strcmp(err->detail, "55P03") == 0;
}

/* One claim; settle NULL = alone.  *again as above. */
static stint_code claim_with(struct st_pg *s, const struct st_pg_args *settle, PGresult **settled, bool careful,
                             const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *again, stint_error *err)
{
    struct st_pg_step steps[3] = {{.which = PG_SETTLE, .args = settle}, {.which = PG_CLAIM}, {.which = PG_PROBE}};
    const size_t first = settle ? 0 : 1;
    const int64_t began = st_clock_mono_us();
    struct st_pg_args claim, probe;
    struct plan p;
    stint_code code;

    *again = false;
    code = plan_make(&p, s, req, err);
    if (code) {
        plan_clear(&p);
        return code;
    }
    st_pg_args_init(&claim);
    st_pg_args_init(&probe);
    put_claim(&claim, &p, req, careful);
    put_probe(&probe, &p);
    steps[1].args = &claim;
    steps[2].args = &probe;
    code = st_pg_run(s, steps + first, 3 - first, true, err);
    if (!code) {
        learn(s, &p, steps[1].res, steps[2].res, st_clock_mono_us() - began, req->now_us == 0, again);
        s->next_due_us = st_pg_get_i64(steps[2].res, 0, P_NEXT_DUE, 0);
        s->next_due_fresh = req->now_us == 0 && !*again;
        code = jobs_read(s, req, steps[1].res, out, n_out, err);
        if (settle && settled) {
            *settled = steps[0].res;
            steps[0].res = NULL;
        }
        for (size_t i = first; i < 3; i++)
            PQclear(steps[i].res);
    } else if (!in_the_way(err)) {
        pthread_mutex_lock(&s->sh->mu);
        st_pg_marks_forget(s->sh);
        pthread_mutex_unlock(&s->sh->mu);
    }
    st_pg_args_clear(&claim);
    st_pg_args_clear(&probe);
    plan_clear(&p);
    return code;
}

/* The same; where somebody else is at a row that it wants, it is asked again to step round. */
static stint_code claim_once(struct st_pg *s, const struct st_pg_args *settle, PGresult **settled,
                             const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *again, stint_error *err)
{
    const bool careful = st_clock_mono_us() < s->careful_us;
    const stint_code code = claim_with(s, settle, settled, careful, req, out, n_out, again, err);

    if (!code || careful || !in_the_way(err))
        return code;
    s->careful_us = st_clock_mono_us() + CAREFUL_US;
    return claim_with(s, settle, settled, true, req, out, n_out, again, err);
}

/* The rest of a claim that did not know of all lanes. */
static void claim_rest(struct st_pg *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out)
{
    struct st_claim_req rest = *req;
    stint_error ignored = {0};
    size_t n = 0;
    bool again;

    if (*n_out >= req->n)
        return;
    rest.n -= *n_out;
    rest.n_run = req->n_run > *n_out ? req->n_run - *n_out : 0;
    if (!claim_once(s, NULL, NULL, &rest, out + *n_out, &n, &again, &ignored))
        *n_out += n;
}

stint_code st_pg_claim(struct st_store *store, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                       stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};
    bool again;
    stint_code code = claim_once(s, NULL, NULL, req, out, n_out, &again, &local);

    if (!code && again)
        claim_rest(s, req, out, n_out);
    return st_pg_told(code, &local, err);
}

stint_code st_pg_exchange(struct st_store *store, int64_t now_us, struct st_finish *items, size_t n,
                          const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                          stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    struct st_pg_args settle;
    stint_error local = {0};
    PGresult *settled = NULL;
    bool again = false;
    stint_code code;

    st_pg_args_init(&settle);
    st_pg_settle_args(&settle, now_us, items, n);
    code = claim_once(s, &settle, &settled, req, out, n_out, &again, &local);
    *finished = settled != NULL;
    if (settled)
        st_pg_settle_read(settled, items, n);
    PQclear(settled);
    st_pg_args_clear(&settle);
    if (!code && again)
        claim_rest(s, req, out, n_out);
    return st_pg_told(code, &local, err);
}
