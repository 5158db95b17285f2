/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_enqueue.c - adding jobs.
 *
 *     no keys         one statement for all of them; an id that is taken makes it fail, and then:
 *     keys, or ids    one by one on the server, in one transaction: what is there is answered, not added
 *     that may be
 *     there, old ones
 *
 * Those who sleep are woken after the commit, and only if somebody does.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>

#include "store/postgres_op.h"

/* ---- the fast way -------------------------------------------------------------------------------- */

/* The lanes of a batch, each once, by the index of a job that has it. */
struct lanes {
    int64_t *of; /* per job */
    size_t *first;
    size_t n;
};

static void lanes_clear(struct lanes *l)
{
    free(l->of);
    free(l->first);
}

static bool same_lane(const struct st_new_job *a, const struct st_new_job *b)
{
    return a->priority == b->priority && st_slice_eq(a->queue, b->queue) && st_slice_eq(a->type, b->type);
}

static bool lanes_note(struct lanes *l, size_t i)
{
    for (size_t k = 0; k < l->n; k++)
        if (l->of[l->first[k]] == l->of[i])
            return true;
    if (l->n % 16 == 0) {
        size_t *grown = realloc(l->first, (l->n + 16) * sizeof(*grown));

        if (!grown)
            return false;
        l->first = grown;
    }
    l->first[l->n++] = i;
    return true;
}

static bool lanes_find(struct lanes *l, const struct st_new_job *jobs, size_t n)
{
    *l = (struct lanes){.of = calloc(n, sizeof(*l->of))};
    if (!l->of)
        return false;
    for (size_t i = 0; i < n; i++) {
        const bool as_before = i > 0 && same_lane(&jobs[i - 1], &jobs[i]);

        l->of[i] = as_before ? l->of[i - 1] : st_pg_lane_id(jobs[i].queue, jobs[i].type, jobs[i].priority);
        if (!as_before && !lanes_note(l, i))
            return false;
    }
    return true;
}

static void put_lanes(struct st_pg_args *a, const struct st_new_job *jobs, const struct lanes *l)
{
    st_pg_array(a, ST_PG_INT8);
    for (size_t k = 0; k < l->n; k++)
        st_pg_item_i64(a, l->of[l->first[k]]);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_TEXT);
    for (size_t k = 0; k < l->n; k++)
        st_pg_item_bytes(a, jobs[l->first[k]].queue);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_TEXT);
    for (size_t k = 0; k < l->n; k++)
        st_pg_item_bytes(a, jobs[l->first[k]].type);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    for (size_t k = 0; k < l->n; k++)
        st_pg_item_i32(a, jobs[l->first[k]].priority);
    st_pg_array_end(a);
}

#define EACH(elem, put)                                                                                                \
    do {                                                                                                               \
        st_pg_array(a, (elem));                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                                 \
            put;                                                                                                       \
        st_pg_array_end(a);                                                                                            \
    } while (0)

static void item_key(struct st_pg_args *a, struct st_slice id)
{
    struct st_pg_key key;

    st_pg_key(id, &key);
    st_pg_item_bytes(a, ST_SLICE((const char *)key.p, key.len));
}

static int16_t slot_of(struct st_slice id)
{
    struct st_pg_key key;

    st_pg_key(id, &key);
    return (int16_t)st_pg_slot(&key);
}

static void item_given32(struct st_pg_args *a, int64_t v)
{
    if (v >= 0)
        st_pg_item_i32(a, (int32_t)v);
    else
        st_pg_item_null(a);
}

static void item_given64(struct st_pg_args *a, int64_t v)
{
    if (v >= 0)
        st_pg_item_i64(a, v);
    else
        st_pg_item_null(a);
}

/* What both ways send alike, from the due times on. */
static void put_rest(struct st_pg_args *a, const struct st_new_job *jobs, size_t n)
{
    bool max = false, timeout = false, meta = false;

    for (size_t i = 0; i < n; i++) {
        max |= jobs[i].max_attempts >= 0;
        timeout |= jobs[i].timeout_us >= 0;
        meta |= jobs[i].meta.p != NULL;
    }
    EACH(ST_PG_INT8, st_pg_item_i64(a, jobs[i].due_us));
    EACH(ST_PG_INT8, st_pg_item_i64(a, jobs[i].delay_us));
    if (max)
        EACH(ST_PG_INT4, item_given32(a, jobs[i].max_attempts));
    else
        st_pg_no_array(a, ST_PG_INT4);
    if (timeout)
        EACH(ST_PG_INT8, item_given64(a, jobs[i].timeout_us));
    else
        st_pg_no_array(a, ST_PG_INT8);
    EACH(ST_PG_BYTEA, st_pg_item_bytes(a, jobs[i].payload));
    if (meta)
        EACH(ST_PG_BYTEA, st_pg_item_bytes(a, jobs[i].meta));
    else
        st_pg_no_array(a, ST_PG_BYTEA);
}

static void fast_args(struct st_pg_args *a, int64_t now_us, const struct st_new_job *jobs, size_t n,
                      const struct lanes *l)
{
    st_pg_i64(a, now_us);
    put_lanes(a, jobs, l);
    EACH(ST_PG_BYTEA, item_key(a, jobs[i].id));
    EACH(ST_PG_INT2, st_pg_item_i16(a, slot_of(jobs[i].id)));
    EACH(ST_PG_INT8, st_pg_item_i64(a, l->of[i]));
    put_rest(a, jobs, n);
}

/* ---- waking --------------------------------------------------------------------------------------- */

static void wake_args(struct st_pg_args *a, const struct st_slice *queues, size_t n)
{
    st_pg_array(a, ST_PG_TEXT);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !st_slice_eq(queues[i - 1], queues[i]))
            st_pg_item_bytes(a, queues[i]);
    st_pg_array_end(a);
}

/* The same for the queues of jobs. */
static void wake_args_for(struct st_pg_args *a, const struct st_new_job *jobs, size_t n)
{
    st_pg_array(a, ST_PG_TEXT);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !st_slice_eq(jobs[i - 1].queue, jobs[i].queue))
            st_pg_item_bytes(a, jobs[i].queue);
    st_pg_array_end(a);
}

static void wake_with(struct st_pg *s, const struct st_pg_args *a)
{
    stint_error ignored = {0};
    PGresult *r = NULL;

    st_pg_call(s, PG_WAKE, a, false, &r, &ignored); /* a hint: whoever misses it polls */
    PQclear(r);
}

void st_pg_wake(struct st_pg *s, const struct st_slice *queues, size_t n)
{
    struct st_pg_args a;

    if (!s->url.notify)
        return;
    st_pg_args_init(&a);
    wake_args(&a, queues, n);
    wake_with(s, &a);
    st_pg_args_clear(&a);
}

void st_pg_wake_all(struct st_pg *s)
{
    stint_error ignored = {0};
    PGresult *r = NULL;

    if (s->url.notify)
        st_pg_call(s, PG_WAKE_ALL, NULL, false, &r, &ignored);
    PQclear(r);
}

/* Writes, and tells those who sleep once it is committed: both in one round trip where the connection is our own. */
static stint_code call_and_wake(struct st_pg *s, enum st_pg_sql which, const struct st_pg_args *a,
                                const struct st_new_job *jobs, size_t n, PGresult **r, stint_error *err)
{
    struct st_pg_step step = {.which = which, .args = a}, wake = {.which = PG_WAKE};
    struct st_pg_args names;
    stint_code code;

    st_pg_args_init(&names);
    wake_args_for(&names, jobs, n);
    wake.args = &names;
    code = st_pg_run_then(s, &step, 1, s->url.notify && !s->pooled ? &wake : NULL, true, err);
    if (!code && s->url.notify && s->pooled)
        wake_with(s, &names);
    st_pg_args_clear(&names);
    *r = step.res;
    return code;
}

/* Somebody adds the same ids in another order. */
static bool crossed(const stint_error *err)
{
    return strcmp(err->detail, "40P01") == 0;
}

/* *taken: an id is there already, or is just being added; nothing was added. */
static stint_code enqueue_fast(struct st_pg *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, bool *taken, stint_error *err)
{
    struct st_pg_args a;
    struct lanes lanes;
    PGresult *r = NULL;
    stint_code code;

    *taken = false;
    if (!lanes_find(&lanes, jobs, n)) {
        lanes_clear(&lanes);
        return st_fail(err, STINT_ENOMEM, "out of memory for %zu jobs", n);
    }
    st_pg_args_init(&a);
    fast_args(&a, now_us, jobs, n, &lanes);
    code = call_and_wake(s, PG_ENQUEUE, &a, jobs, n, &r, err);
    *taken = code && (strcmp(err->detail, "23505") == 0 || crossed(err));
    for (size_t i = 0; !code && i < n; i++) {
        out[i].duplicate = false;
        snprintf(out[i].id, sizeof(out[i].id), "%.*s", (int)jobs[i].id.len, jobs[i].id.p);
    }
    PQclear(r);
    st_pg_args_clear(&a);
    lanes_clear(&lanes);
    return code;
}

/* ---- one by one ----------------------------------------------------------------------------------- */

static void each_args(struct st_pg_args *a, int64_t now_us, const struct st_new_job *jobs, size_t n)
{
    st_pg_i64(a, now_us);
    EACH(ST_PG_TEXT, st_pg_item_bytes(a, jobs[i].queue));
    EACH(ST_PG_TEXT, st_pg_item_bytes(a, jobs[i].type));
    EACH(ST_PG_INT4, st_pg_item_i32(a, jobs[i].priority));
    EACH(ST_PG_BYTEA, item_key(a, jobs[i].id));
    put_rest(a, jobs, n);
    EACH(ST_PG_INT2, st_pg_item_i16(a, (int16_t)jobs[i].unique));
    EACH(ST_PG_TEXT, st_pg_item_bytes(a, jobs[i].unique ? jobs[i].key : ST_NONE));
    EACH(ST_PG_INT8, st_pg_item_i64(a, jobs[i].window_us));
}

static stint_code each_read(const PGresult *r, size_t n, struct st_enqueued *out, stint_error *err)
{
    for (int row = 0; row < PQntuples(r); row++) {
        const int64_t ord = st_pg_get_i64(r, row, 0, 0);

        if (ord < 1 || (size_t)ord > n || !st_pg_get_id(r, row, 1, out[ord - 1].id))
            return st_fail(err, STINT_EUNKNOWN, "the server's answer to an enqueue makes no sense");
        out[ord - 1].duplicate = st_pg_get_bool(r, row, 2);
    }
    return STINT_OK;
}

/* conn NULL = the handle's own connection. */
static stint_code enqueue_each(struct st_pg *s, PGconn *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, stint_error *err)
{
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    each_args(&a, now_us, jobs, n);
    code = conn ? st_pg_call_on(s, conn, PG_ENQUEUE_EACH, &a, &r, err)
                : call_and_wake(s, PG_ENQUEUE_EACH, &a, jobs, n, &r, err);
    if (!code)
        code = each_read(r, n, out, err);
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

/* ---- the operations -------------------------------------------------------------------------------- */

#define YOUNG_MS (30 * 60 * 1000) /* a slot is not touched before its time has been over for an hour: _ring_next */

/* An id whose job, if there is one, may have moved to the slot of what is kept, where the fast way does not see it: it is old, or
 * has a time of the future, whose slot is taken for the one of a round before. */
static bool is_old(struct st_slice id, int64_t now_ms)
{
    struct st_pg_key key;
    int64_t ms = 0;

    st_pg_key(id, &key);
    if (st_pg_slot(&key) == ST_PG_KEPT)
        return false; /* it belongs there */
    for (int i = 1; i <= 6; i++)
        ms = ms << 8 | key.p[i];
    return ms < now_ms - YOUNG_MS || ms > now_ms + YOUNG_MS;
}

static bool needs_each(const struct st_new_job *jobs, size_t n, int64_t now_ms)
{
    for (size_t i = 0; i < n; i++)
        if (jobs[i].unique != ST_UNIQUE_NONE || is_old(jobs[i].id, now_ms))
            return true;
    return false;
}

stint_code st_pg_enqueue(struct st_store *store, int64_t now_us, const struct st_new_job *jobs, size_t n,
                         struct st_enqueued *out, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    bool each = needs_each(jobs, n, st_store_now(store) / ST_MS);
    stint_error local = {0};
    stint_code code = STINT_OK;

    if (!each)
        code = enqueue_fast(s, now_us, jobs, n, out, &each, &local);
    for (int i = 0; each && i < 3; i++) {
        memset(&local, 0, sizeof(local));
        code = enqueue_each(s, NULL, now_us, jobs, n, out, &local);
        each = code && crossed(&local);
    }
    return st_pg_told(code, &local, err);
}

/* Told with the caller's commit. */
static stint_code wake_in(struct st_pg *s, PGconn *conn, const struct st_new_job *jobs, size_t n, stint_error *err)
{
    struct st_pg_args names;
    PGresult *r = NULL;
    stint_code code;

    if (!s->url.notify)
        return STINT_OK;
    st_pg_args_init(&names);
    wake_args_for(&names, jobs, n);
    code = st_pg_call_on(s, conn, PG_WAKE_IN, &names, &r, err);
    PQclear(r);
    st_pg_args_clear(&names);
    return code;
}

/* In somebody's transaction: never the fast way, whose failure would take the transaction with it. */
stint_code st_pg_enqueue_in(struct st_pg *s, PGconn *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err)
{
    const stint_code code = enqueue_each(s, conn, now_us, jobs, n, out, err);

    return code ? code : wake_in(s, conn, jobs, n, err);
}
