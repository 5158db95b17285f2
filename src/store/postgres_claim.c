/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_claim.c - taking jobs by queues and types, alone or together with the outcomes of the last ones.
 *
 * The request becomes a list of lanes in the order of service; one function on the server takes n jobs from them.  In the
 * same answer lies what the marks must know (postgres_mark.c).
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

#define SPENT SIZE_MAX /* the limit of a rule by which nothing more may be taken */

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

/* Claimers that serve the same have the lanes of a class in the same order: they meet at the first one's gate. */
static int place_order(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    const int order = place_cmp(a, b);

    return order ? order : (x->lane->id > y->lane->id) - (x->lane->id < y->lane->id);
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

        if ((req->n_queues && group == req->n_queues) || (req->n_types && (!rule || rule->max == SPENT)))
            continue;
        p->places[p->n++] = (struct place){lane, group, rule ? (int)(rule - req->types) + 1 : 1};
    }
    qsort(p->places, p->n, sizeof(*p->places), place_order);
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

static void put_places(struct st_pg_args *a, const struct plan *p)
{
    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < p->n; i++) {
        st_pg_item_i64(a, p->seen[i].from.key);
        st_pg_item_i64(a, st_pg_begin.key);
    }
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_BYTEA);
    for (size_t i = 0; i < p->n; i++) {
        st_pg_item_bytes(a, key_slice(&p->seen[i].from.id));
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
    put_places(a, p);
    put_rules(a, p, req);
    st_pg_bool(a, careful);
    st_pg_bool(a, req->crowded != NULL);
}

/* ---- the answer -------------------------------------------------------------------------------- */

enum {
    C_ORD,
    C_LANE,
    C_KEY,
    C_FENCE,
    C_ATTEMPT,
    C_RULE,
    C_STARTED,
    C_UNTIL,
    C_CREATED,
    C_MAX,
    C_TIMEOUT,
    C_ID,
    C_PAYLOAD,
    C_META
};
/* Rows that are no jobs, by their ord, and the columns of the last one (see _claim). */
enum { ROW_AWAY = -1, ROW_FIRST = -2, ROW_LAST = -3 };
enum {
    L_LAST_LANE = C_LANE,
    L_NEXT_DUE = C_KEY,
    L_XID = C_FENCE,
    L_LANES = C_ATTEMPT,
    L_LOOKED = C_RULE,
    L_NOW = C_STARTED,
    L_SERVER = C_UNTIL,
    L_SNAPSHOT = C_PAYLOAD
};

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
    job =
        st_job_new(st_slice_cstr(id), lane->type, lane->queue, st_pg_get(r, row, C_PAYLOAD), st_pg_get(r, row, C_META));
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

struct row {
    int64_t ord, key;
    struct st_slice id;
    int at;
};

static int row_cmp(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    if (x->ord != y->ord)
        return x->ord < y->ord ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return st_slice_cmp(x->id, y->id);
}

/* The jobs in the order of service: what was taken at once has one ord, and goes by due time and id.  NULL = no memory. */
static struct row *rows_order(const PGresult *r, int *n)
{
    struct row *rows = calloc((size_t)PQntuples(r) + 1, sizeof(*rows));
    bool sorted = true;

    *n = 0;
    for (int i = 0; rows && i < PQntuples(r); i++) {
        const struct row row = {st_pg_get_i64(r, i, C_ORD, 0), st_pg_get_i64(r, i, C_KEY, 0), st_pg_get(r, i, C_ID), i};

        if (row.ord < 1)
            continue;
        rows[*n] = row;
        sorted = sorted && (*n == 0 || row_cmp(&rows[*n - 1], &row) <= 0);
        ++*n;
    }
    if (rows && !sorted)
        qsort(rows, (size_t)*n, sizeof(*rows), row_cmp);
    return rows;
}

/* Into out, in the order of service.  What is answered is claimed: it is given back if it cannot be told. */
static stint_code jobs_read(struct st_pg *s, const struct st_claim_req *req, const PGresult *r, struct st_job **out,
                            size_t *n_out, stint_error *err)
{
    int n;
    struct row *rows = rows_order(r, &n);

    for (int i = 0; i < n; i++) {
        out[i] = job_read(s, req, r, rows[i].at);
        if (!out[i]) {
            while (i-- > 0)
                st_job_free(out[i]);
            free(rows);
            rows = NULL;
        }
        if (!rows)
            break;
    }
    if (!rows) /* the worker asks for what it holds and does not know of */
        return st_fail(err, STINT_EUNKNOWN, "out of memory for %d claimed jobs", PQntuples(r));
    free(rows);
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

/* The lane of a row among those of the plan, or NULL.  The rows come in the order of the plan: it is looked for from where the one
 * before was. */
static struct st_pg_seen *seen_find(struct plan *p, int64_t id, size_t *near)
{
    for (size_t i = 0; i < p->n; i++) {
        const size_t at = (*near + i) % p->n;

        if (p->seen[at].lane->id == id) {
            *near = at;
            return &p->seen[at];
        }
    }
    return NULL;
}

/* What was found first in each lane, and what was taken from it.  It looked no further than its own now: what another claim, whose
 * now was later, may have passed there was not looked for.  Rows taken from odd lanes come under the even number, and count too: a
 * mark is only an upper bound. */
static void rows_learn(struct plan *p, const PGresult *r, size_t looked, int64_t now)
{
    size_t near = 0;

    for (size_t i = 0; i < p->n; i++) {
        p->seen[i].skipped = i >= looked;
        p->seen[i].first.key = now;
    }
    for (int row = 0; row < PQntuples(r); row++) {
        const int64_t ord = st_pg_get_i64(r, row, C_ORD, 0), key = st_pg_get_i64(r, row, C_KEY, 0);
        const int64_t id = st_pg_get_i64(r, row, C_LANE, 0);
        struct st_pg_seen *seen;

        if ((ord != ROW_FIRST && ord < 1) || id & 1)
            continue;
        seen = seen_find(p, id, &near);
        if (!seen)
            continue;
        if (ord != ROW_FIRST) {
            if (seen->n++ == 0 || pos_order(r, row, &seen->mark) > 0)
                pos_set(&seen->mark, key, st_pg_get(r, row, C_ID));
        } else if (st_pg_is_null(r, row, C_KEY)) {
            seen->skipped = true;
        } else {
            pos_set(&seen->first, key, st_pg_get(r, row, C_ID));
        }
    }
}

/* What the last row says of the server: another one, or one whose clock was set back, makes every mark worthless. */
static bool same_world(struct st_pg_shared *sh, const PGresult *r, int row)
{
    const int64_t now = st_pg_get_i64(r, row, L_NOW, 0), server = st_pg_get_i64(r, row, L_SERVER, 0);
    const bool same = (!sh->server_started || sh->server_started == server) && now > sh->last_now_us - 200 * ST_MS;

    sh->server_started = server;
    sh->last_now_us = same && now < sh->last_now_us ? sh->last_now_us : now;
    return same;
}

/* *again: there is a lane that this claim did not know of, or the marks were worthless.  real: it went by the server's clock;
 * a time that a test has given says nothing about what may still come before it. */
static void learn(struct st_pg *s, struct plan *p, const PGresult *r, int64_t took_us, bool real, bool *again)
{
    const int last = PQntuples(r) - 1;
    struct st_pg_shared *sh = s->sh;
    char *snapshot = strndup(PQgetvalue(r, last, L_SNAPSHOT), (size_t)PQgetlength(r, last, L_SNAPSHOT));
    bool swept = false;

    rows_learn(p, r, (size_t)st_pg_get_i64(r, last, L_LOOKED, 0) / 2, st_pg_get_i64(r, last, L_NOW, 0));
    pthread_mutex_lock(&sh->mu);
    *again =
        st_pg_get_i64(r, last, L_LANES, 0) != sh->lanes_seen || st_pg_get_i64(r, last, L_LAST_LANE, 0) != sh->lanes_max;
    if (*again)
        sh->lanes_read_us = 0;
    for (size_t i = 0; i < p->n; i++)
        swept |= p->seen[i].lane->sweeping;
    if (!same_world(sh, r, last) || !snapshot) {
        st_pg_marks_forget(sh);
        *again = true;
    } else if (real) {
        st_pg_marks_learn(sh, (uint64_t)st_pg_get_i64(r, last, L_XID, 0), snapshot, p->seen, p->n);
    }
    if (swept && real)
        st_pg_marks_swept(sh, took_us);
    pthread_mutex_unlock(&sh->mu);
    free(snapshot);
}

/* Is the last row there, which tells of all of it? */
static bool answered(const PGresult *r)
{
    return PQntuples(r) > 0 && st_pg_get_i64(r, PQntuples(r) - 1, C_ORD, 0) == ROW_LAST;
}

/* When there will be more, and whether there is more that others were in the way of. */
static void note_rest(struct st_pg *s, const struct st_claim_req *req, const PGresult *r, bool again)
{
    const int last = PQntuples(r) - 1;

    if (req->crowded)
        *req->crowded = last > 0 && st_pg_get_i64(r, last - 1, C_ORD, 0) == ROW_AWAY;
    s->next_due_us = st_pg_get_i64(r, last, L_NEXT_DUE, 0);
    s->next_due_fresh = req->now_us == 0 && !again;
}

/* ---- the operations ----------------------------------------------------------------------------- */

/* Outcomes that are written in the transaction of a claim. */
struct ends {
    int64_t now_us;
    struct st_finish *items;
    size_t n;
    bool written;
};

/* One claim; ends NULL = alone.  *again as above. */
static stint_code claim_with(struct st_pg *s, struct ends *ends, bool careful, const struct st_claim_req *req,
                             struct st_job **out, size_t *n_out, bool *again, stint_error *err)
{
    struct st_pg_step steps[2] = {{.which = PG_SETTLE}, {.which = PG_CLAIM}};
    const size_t first = ends ? 0 : 1;
    const int64_t began = st_clock_mono_us();
    struct st_pg_args args[2];
    struct plan p;
    stint_code code;

    *again = false;
    code = plan_make(&p, s, req, err);
    if (code) {
        plan_clear(&p);
        return code;
    }
    for (size_t i = 0; i < 2; i++) {
        st_pg_args_init(&args[i]);
        args[i].narrow = s->narrow;
        steps[i].args = &args[i];
    }
    if (ends)
        st_pg_settle_args(&args[0], ends->now_us, ends->items, ends->n, careful ? ST_PG_CAREFUL : ST_PG_QUICK);
    put_claim(&args[1], &p, req, careful);
    code = st_pg_run(s, steps + first, 2 - first, true, err);
    if (!code && !answered(steps[1].res))
        code = st_fail(err, STINT_EUNKNOWN, "the server's answer to a claim makes no sense");
    if (!code) {
        learn(s, &p, steps[1].res, st_clock_mono_us() - began, req->now_us == 0, again);
        note_rest(s, req, steps[1].res, *again);
        if (ends) {
            st_pg_settle_read(s, steps[0].res, ends->items, ends->n);
            ends->written = true;
        }
        code = jobs_read(s, req, steps[1].res, out, n_out, err);
        if (*n_out == req->n || (req->crowded && *req->crowded))
            s->next_due_fresh = false; /* it did not look for that */
    } else if (careful || !st_pg_in_the_way(s, err)) {
        pthread_mutex_lock(&s->sh->mu);
        st_pg_marks_forget(s->sh);
        pthread_mutex_unlock(&s->sh->mu);
    }
    for (size_t i = 0; i < 2; i++) {
        st_pg_args_clear(&args[i]);
        PQclear(steps[i].res);
    }
    plan_clear(&p);
    return code;
}

/* The same; where somebody else is at a row that it wants, it is asked again to step round. */
static stint_code claim_once(struct st_pg *s, struct ends *ends, const struct st_claim_req *req, struct st_job **out,
                             size_t *n_out, bool *again, stint_error *err)
{
    const bool careful = st_pg_careful(s);
    const stint_code code = claim_with(s, ends, careful, req, out, n_out, again, err);

    if (!code || careful || !st_pg_careful(s))
        return code;
    return claim_with(s, ends, true, req, out, n_out, again, err);
}

/* The rules of a claim that has taken these already; NULL = no memory. */
static struct st_type_rule *rules_left(const struct st_claim_req *req, struct st_job *const *out, size_t n)
{
    struct st_type_rule *rules = calloc(req->n_types + 1, sizeof(*rules));

    for (size_t i = 0; rules && i < req->n_types; i++)
        rules[i] = req->types[i];
    for (size_t i = 0; rules && i < n; i++) {
        const struct st_type_rule *rule =
            st_rule_find(req->types, req->n_types, st_slice_cstr(out[i]->queue), st_slice_cstr(out[i]->type));
        struct st_type_rule *left = rule ? &rules[rule - req->types] : NULL;

        if (left && left->max && left->max != SPENT)
            left->max = left->max > 1 ? left->max - 1 : SPENT;
    }
    return rules;
}

/* The rest of a claim that did not know of all lanes. */
static void claim_rest(struct st_pg *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out)
{
    struct st_type_rule *rules;
    struct st_claim_req rest = *req;
    stint_error ignored = {0};
    size_t n = 0;
    bool again;

    if (*n_out >= req->n)
        return;
    rules = rules_left(req, out, *n_out);
    if (!rules)
        return;
    rest.types = rules;
    rest.n -= *n_out;
    rest.n_run = req->n_run > *n_out ? req->n_run - *n_out : 0;
    if (!claim_once(s, NULL, &rest, out + *n_out, &n, &again, &ignored))
        *n_out += n;
    free(rules);
}

/* Only what was due by a moment in the past: the server is told that it is that moment, the leases are longer by what has
 * passed since, and nothing is said to have started; the worker tells when it has. */
static stint_code claim_due_by(struct st_store *store, const struct st_claim_req *req, struct st_job **out,
                               size_t *n_out, stint_error *err)
{
    const int64_t now = req->now_us ? req->now_us : st_store_now(store), past = now - req->due_by_us;
    struct st_type_rule *rules = calloc(req->n_types + 1, sizeof(*rules));
    struct st_claim_req then = *req;
    stint_code code;

    if (!rules)
        return st_fail(err, STINT_ENOMEM, "out of memory for the claim");
    for (size_t i = 0; i < req->n_types; i++) {
        rules[i] = req->types[i];
        rules[i].lease_us += rules[i].lease_us ? past : 0;
    }
    then.types = rules;
    then.now_us = req->due_by_us;
    then.due_by_us = 0;
    then.lease_us += past;
    then.n_run = 0;
    code = st_pg_claim(store, &then, out, n_out, err);
    for (size_t i = 0; i < *n_out; i++)
        out[i]->lease_us -= past;
    free(rules);
    return code;
}

stint_code st_pg_claim(struct st_store *store, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                       stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};
    bool again;
    stint_code code;

    if (req->due_by_us)
        return claim_due_by(store, req, out, n_out, err);
    code = claim_once(s, NULL, req, out, n_out, &again, &local);
    if (!code && again)
        claim_rest(s, req, out, n_out);
    return st_pg_told(code, &local, err);
}

stint_code st_pg_exchange(struct st_store *store, int64_t now_us, struct st_finish *items, size_t n,
                          const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                          stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    struct ends ends = {.now_us = now_us, .items = items, .n = n};
    stint_error local = {0};
    bool again = false;
    stint_code code = claim_once(s, &ends, req, out, n_out, &again, &local);

    *finished = ends.written;
    if (!code && again)
        claim_rest(s, req, out, n_out);
    return st_pg_told(code, &local, err);
}
