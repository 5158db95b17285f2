/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_finish.c - while a job is held: renew its lease, write its outcome.
 *
 * Both are fenced by (id, fence) on the server.  A finish may be repeated: the function answers again what it has written
 * before (see _settle).
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/postgres_op.h"

/* ---- outcomes as arrays ------------------------------------------------------------------------ */

static void item_opt(struct st_pg_args *a, bool given, int64_t v, bool wide)
{
    if (!given)
        st_pg_item_null(a);
    else if (wide)
        st_pg_item_i64(a, v);
    else
        st_pg_item_i32(a, (int32_t)v);
}

/* An array that says nothing is sent as NULL. */
#define COLUMN(elem, used, put)                                                                                        \
    do {                                                                                                               \
        bool any = false;                                                                                              \
        for (size_t i = 0; !any && i < n; i++)                                                                         \
            any = (used);                                                                                              \
        if (!any) {                                                                                                    \
            st_pg_no_array(a, (elem));                                                                                 \
            break;                                                                                                     \
        }                                                                                                              \
        st_pg_array(a, (elem));                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                                 \
            put;                                                                                                       \
        st_pg_array_end(a);                                                                                            \
    } while (0)

static void put_keys(struct st_pg_args *a, const struct st_finish *items, size_t n)
{
    struct st_pg_key key;

    st_pg_array(a, ST_PG_BYTEA);
    for (size_t i = 0; i < n; i++) {
        st_pg_key(items[i].id, &key);
        st_pg_item_bytes(a, ST_SLICE((const char *)key.p, key.len));
    }
    st_pg_array_end(a);
}

void st_pg_settle_args(struct st_pg_args *a, int64_t now_us, const struct st_finish *items, size_t n,
                       enum st_pg_manner how)
{
    st_pg_i64(a, now_us);
    st_pg_null(a, ST_PG_INT8);
    put_keys(a, items, n);
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, items[i].fence));
    COLUMN(ST_PG_INT2, true, st_pg_item_i16(a, (int16_t)items[i].outcome));
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, items[i].delay_us));
    COLUMN(ST_PG_INT8, items[i].started_ago_us >= 0,
           item_opt(a, items[i].started_ago_us >= 0, items[i].started_ago_us, true));
    COLUMN(ST_PG_INT2, items[i].kind != ST_KIND_NONE, st_pg_item_i16(a, (int16_t)items[i].kind));
    COLUMN(ST_PG_TEXT, items[i].message.p, st_pg_item_text(a, items[i].message));
    COLUMN(ST_PG_INT4, items[i].exit_code >= 0, item_opt(a, items[i].exit_code >= 0, items[i].exit_code, false));
    COLUMN(ST_PG_INT4, items[i].signal > 0, item_opt(a, items[i].signal > 0, items[i].signal, false));
    COLUMN(ST_PG_INT8, items[i].max_rss_kb > 0, item_opt(a, items[i].max_rss_kb > 0, items[i].max_rss_kb, true));
    COLUMN(ST_PG_TEXT, items[i].log.p, st_pg_item_text(a, items[i].log));
    COLUMN(ST_PG_BYTEA, items[i].log_tail.p, st_pg_item_bytes(a, items[i].log_tail));
    COLUMN(ST_PG_BYTEA, items[i].result.p, st_pg_item_bytes(a, items[i].result));
    COLUMN(ST_PG_TEXT, items[i].result_ref.p, st_pg_item_text(a, items[i].result_ref));
    if (how == ST_PG_PATIENT)
        st_pg_null(a, ST_PG_BOOL);
    else
        st_pg_bool(a, how == ST_PG_CAREFUL);
}

/* One row of the answer: (0, state) is said of all of them, a state of -1 means that somebody else is at the job. */
static void verdict_set(struct st_finish *f, int64_t state)
{
    f->verdict = state < 0 ? STINT_EAGAIN : STINT_OK;
    if (state >= 0)
        f->state = (enum st_state)state;
}

#define CAREFUL_US (10 * ST_SEC)

void st_pg_settle_read(struct st_pg *s, const PGresult *r, struct st_finish *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        items[i].verdict = STINT_ELOST;
    for (int row = 0; row < PQntuples(r); row++) {
        const int64_t ord = st_pg_get_i64(r, row, 0, 0);

        if (ord < 0 || (size_t)ord > n)
            continue;
        for (size_t i = ord ? (size_t)ord - 1 : 0; i < (ord ? (size_t)ord : n); i++)
            verdict_set(&items[i], st_pg_get_i64(r, row, 1, ST_PENDING));
        if (st_pg_get_i64(r, row, 1, ST_PENDING) < 0) /* still there: the next call need not wait for it again */
            s->careful_us = st_clock_mono_us() + CAREFUL_US;
    }
}

bool st_pg_careful(const struct st_pg *s)
{
    return st_clock_mono_us() < s->careful_us;
}

bool st_pg_in_the_way(struct st_pg *s, const stint_error *err)
{
    /* a lock that was not to be had in time; an attempt whose end was being written already */
    if (strcmp(err->detail, "55P03") != 0 && strcmp(err->detail, "23505") != 0)
        return false;
    s->careful_us = st_clock_mono_us() + CAREFUL_US;
    return true;
}

static stint_code finish_with(struct st_pg *s, int64_t now_us, struct st_finish *items, size_t n, bool careful,
                              stint_error *err)
{
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    a.narrow = s->narrow;
    st_pg_settle_args(&a, now_us, items, n, careful ? ST_PG_CAREFUL : ST_PG_QUICK);
    code = st_pg_call(s, PG_SETTLE, &a, true, &r, err);
    if (!code)
        st_pg_settle_read(s, r, items, n);
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

stint_code st_pg_finish(struct st_store *store, int64_t now_us, struct st_finish *items, size_t n, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    const bool careful = st_pg_careful(s);
    stint_error local = {0};
    stint_code code = finish_with(s, now_us, items, n, careful, &local);

    if (code && !careful && st_pg_in_the_way(s, &local))
        code = finish_with(s, now_us, items, n, true, &local);
    return st_pg_told(code, &local, err);
}

/* ---- ended by somebody else ---------------------------------------------------------------------- */

static void end_args(struct st_pg_args *a, int64_t now_us, int64_t guard_us, const struct st_pg_end *e, size_t n)
{
    st_pg_i64(a, now_us);
    if (guard_us >= 0)
        st_pg_i64(a, guard_us);
    else
        st_pg_null(a, ST_PG_INT8);
    COLUMN(ST_PG_BYTEA, true, st_pg_item_bytes(a, e[i].key));
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, e[i].fence));
    COLUMN(ST_PG_INT2, true, st_pg_item_i16(a, (int16_t)e[i].outcome));
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, e[i].delay_us));
    st_pg_no_array(a, ST_PG_INT8);
    COLUMN(ST_PG_INT2, true, st_pg_item_i16(a, e[i].message ? ST_KIND_LEASE_EXPIRED : ST_KIND_NONE));
    COLUMN(ST_PG_TEXT, e[i].message, st_pg_item_text(a, st_slice_cstr(e[i].message)));
    st_pg_no_array(a, ST_PG_INT4);
    st_pg_no_array(a, ST_PG_INT4);
    st_pg_no_array(a, ST_PG_INT8);
    st_pg_no_array(a, ST_PG_TEXT);
    st_pg_no_array(a, ST_PG_BYTEA);
    st_pg_no_array(a, ST_PG_BYTEA);
    st_pg_no_array(a, ST_PG_TEXT);
    st_pg_bool(a, true); /* somebody's open transaction is not waited for */
}

stint_code st_pg_end_all(struct st_pg *s, int64_t now_us, int64_t guard_us, const struct st_pg_end *ends, size_t n,
                         int *state, stint_error *err)
{
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    end_args(&a, now_us, guard_us, ends, n);
    code = st_pg_call(s, PG_SETTLE, &a, true, &r, err);
    for (size_t i = 0; i < n; i++)
        state[i] = 0;
    for (int row = 0; !code && row < PQntuples(r); row++) {
        const int64_t ord = st_pg_get_i64(r, row, 0, 0);

        if (ord >= 1 && (size_t)ord <= n && st_pg_get_i64(r, row, 1, 0) > 0)
            state[ord - 1] = (int)st_pg_get_i64(r, row, 1, 0);
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

/* ---- renew -------------------------------------------------------------------------------------- */

static void renew_args(struct st_pg_args *a, int64_t now_us, const struct st_renew *items, size_t n)
{
    struct st_pg_key key;

    st_pg_i64(a, now_us);
    st_pg_array(a, ST_PG_BYTEA);
    for (size_t i = 0; i < n; i++) {
        st_pg_key(items[i].id, &key);
        st_pg_item_bytes(a, ST_SLICE((const char *)key.p, key.len));
    }
    st_pg_array_end(a);
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, items[i].fence));
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, items[i].lease_us));
    COLUMN(ST_PG_INT8, items[i].started_ago_us >= 0,
           item_opt(a, items[i].started_ago_us >= 0, items[i].started_ago_us, true));
    COLUMN(ST_PG_BYTEA, items[i].progress.p, st_pg_item_bytes(a, items[i].progress));
}

stint_code st_pg_renew(struct st_store *store, int64_t now_us, struct st_renew *items, size_t n, stint_error *err)
{
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    renew_args(&a, now_us, items, n);
    code = st_pg_call(st_pg_of(store), PG_RENEW, &a, true, &r, &local);
    if (!code) {
        for (size_t i = 0; i < n; i++) {
            items[i].verdict = STINT_ELOST;
            items[i].cancel = false;
        }
        for (int row = 0; row < PQntuples(r); row++) {
            const int64_t ord = st_pg_get_i64(r, row, 0, 0);

            if (ord < 1 || (size_t)ord > n)
                continue;
            items[ord - 1].verdict = st_pg_get_bool(r, row, 2) ? STINT_OK : STINT_EAGAIN;
            items[ord - 1].cancel = st_pg_get_bool(r, row, 1);
        }
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return st_pg_told(code, &local, err);
}
