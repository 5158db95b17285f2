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
            st_pg_no_array(a, (elem));                                                                                   \
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

void st_pg_settle_args(struct st_pg_args *a, int64_t now_us, const struct st_finish *items, size_t n)
{
    st_pg_i64(a, now_us);
    st_pg_null(a, ST_PG_INT8);
    put_keys(a, items, n);
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, items[i].fence));
    COLUMN(ST_PG_INT2, true, st_pg_item_i16(a, (int16_t)items[i].outcome));
    COLUMN(ST_PG_INT8, true, st_pg_item_i64(a, items[i].delay_us));
    COLUMN(ST_PG_INT8, items[i].started_ago_us >= 0, item_opt(a, items[i].started_ago_us >= 0, items[i].started_ago_us, true));
    COLUMN(ST_PG_INT2, items[i].kind != ST_KIND_NONE, st_pg_item_i16(a, (int16_t)items[i].kind));
    COLUMN(ST_PG_TEXT, items[i].message.p, st_pg_item_text(a, items[i].message));
    COLUMN(ST_PG_INT4, items[i].exit_code >= 0, item_opt(a, items[i].exit_code >= 0, items[i].exit_code, false));
    COLUMN(ST_PG_INT4, items[i].signal > 0, item_opt(a, items[i].signal > 0, items[i].signal, false));
    COLUMN(ST_PG_INT8, items[i].max_rss_kb > 0, item_opt(a, items[i].max_rss_kb > 0, items[i].max_rss_kb, true));
    COLUMN(ST_PG_TEXT, items[i].log.p, st_pg_item_text(a, items[i].log));
    COLUMN(ST_PG_BYTEA, items[i].log_tail.p, st_pg_item_bytes(a, items[i].log_tail));
    COLUMN(ST_PG_BYTEA, items[i].result.p, st_pg_item_bytes(a, items[i].result));
    COLUMN(ST_PG_TEXT, items[i].result_ref.p, st_pg_item_text(a, items[i].result_ref));
}

void st_pg_settle_read(const PGresult *r, struct st_finish *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        items[i].verdict = STINT_ELOST;
    for (int row = 0; row < PQntuples(r); row++) {
        const int64_t ord = st_pg_get_i64(r, row, 0, 0);

        if (ord < 1 || (size_t)ord > n)
            continue;
        items[ord - 1].verdict = STINT_OK;
        items[ord - 1].state = (enum st_state)st_pg_get_i64(r, row, 1, ST_PENDING);
    }
}

stint_code st_pg_finish(struct st_store *store, int64_t now_us, struct st_finish *items, size_t n, stint_error *err)
{
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_settle_args(&a, now_us, items, n);
    code = st_pg_call(st_pg_of(store), PG_SETTLE, &a, true, &r, &local);
    if (!code)
        st_pg_settle_read(r, items, n);
    PQclear(r);
    st_pg_args_clear(&a);
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

        if (ord >= 1 && (size_t)ord <= n)
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
    COLUMN(ST_PG_INT8, items[i].started_ago_us >= 0, item_opt(a, items[i].started_ago_us >= 0, items[i].started_ago_us, true));
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
