/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_worker.c - who works here, and who leads.
 *
 * The leader's row is one: (epoch, worker, until).  The epoch grows whenever leadership is taken by
 * somebody who does not hold it at that moment.  Every write of a leader names its epoch and is
 * refused by the database if that is not the one of today (_epoch_check): a leader that was frozen
 * or cut off changes nothing, and while its write is under way nobody else becomes leader.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>

#include "store/postgres_op.h"

static void copy_col(const PGresult *r, int row, int col, char *to, size_t size)
{
    const struct st_slice s = st_pg_get(r, row, col);
    const size_t n = s.len < size - 1 ? s.len : st_utf8_cut(s.p, s.len, size - 1);

    if (n)
        memcpy(to, s.p, n);
    to[n] = '\0';
}

/* ---- workers -------------------------------------------------------------------------------- */

static void put_cstr(struct st_pg_args *a, const char *text)
{
    st_pg_text(a, st_slice_cstr(text));
}

static void put_shown(struct st_pg_args *a, const char *text)
{
    st_pg_shown(a, st_slice_cstr(text));
}

/* narrow: of what only people read, what every database can hold. */
static stint_code beat(struct st_pg *s, int64_t now_us, const struct st_worker_info *w, bool narrow, stint_error *err)
{
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    a.narrow = narrow;
    put_cstr(&a, w->id);
    put_shown(&a, w->name);
    put_cstr(&a, w->host);
    put_cstr(&a, w->boot_id);
    st_pg_i32(&a, w->pid);
    st_pg_i64(&a, (int64_t)w->pid_start);
    st_pg_i32(&a, w->slots);
    st_pg_i32(&a, w->running);
    put_shown(&a, w->queues);
    put_shown(&a, w->types);
    st_pg_bool(&a, w->healthy);
    st_pg_bool(&a, w->quiet);
    put_shown(&a, w->note);
    st_pg_i64(&a, w->started_us);
    st_pg_i64(&a, now_us);
    st_pg_i64(&a, ST_WORKER_SILENT_US);
    code = st_pg_call(s, PG_WORKER_BEAT, &a, true, &r, err);
    if (!code && PQntuples(r) != 1)
        code = st_fail(err, STINT_EEXISTS, "the worker id %s is in use by another process", w->id);
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

stint_code st_pg_worker_beat(struct st_store *store, int64_t now_us, const struct st_worker_info *w, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};
    stint_code code = beat(s, now_us, w, false, &local);

    if (code && strcmp(local.detail, "22P05") == 0) /* a character that the database does not have */
        code = beat(s, now_us, w, true, &local);
    return st_pg_told(code, &local, err);
}

static void worker_read(const PGresult *r, int row, struct st_worker_info *w)
{
    copy_col(r, row, 0, w->id, sizeof(w->id));
    copy_col(r, row, 1, w->name, sizeof(w->name));
    copy_col(r, row, 2, w->host, sizeof(w->host));
    copy_col(r, row, 3, w->boot_id, sizeof(w->boot_id));
    w->pid = (int)st_pg_get_i64(r, row, 4, 0);
    w->pid_start = (uint64_t)st_pg_get_i64(r, row, 5, 0);
    w->slots = (int)st_pg_get_i64(r, row, 6, 0);
    w->running = (int)st_pg_get_i64(r, row, 7, 0);
    copy_col(r, row, 8, w->queues, sizeof(w->queues));
    copy_col(r, row, 9, w->types, sizeof(w->types));
    w->healthy = st_pg_get_bool(r, row, 10);
    w->quiet = st_pg_get_bool(r, row, 11);
    copy_col(r, row, 12, w->note, sizeof(w->note));
    w->started_us = st_pg_get_i64(r, row, 13, 0);
    w->last_beat_us = st_pg_get_i64(r, row, 14, 0);
    w->epoch = st_pg_get_i64(r, row, 15, 0);
    w->leader = st_pg_get_bool(r, row, 16);
}

stint_code st_pg_worker_list(struct st_store *store, struct st_worker_info **out, size_t *n_out, stint_error *err)
{
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code = st_pg_call(st_pg_of(store), PG_WORKER_LIST, NULL, false, &r, &local);
    const int n = code ? 0 : PQntuples(r);

    *out = NULL;
    *n_out = 0;
    if (!code && !(*out = calloc((size_t)n + 1, sizeof(**out))))
        code = st_fail(&local, STINT_ENOMEM, "out of memory for the workers");
    for (int row = 0; !code && row < n; row++)
        worker_read(r, row, &(*out)[(*n_out)++]);
    PQclear(r);
    return st_pg_told(code, &local, err);
}

stint_code st_pg_worker_remove(struct st_store *store, int64_t now_us, struct st_slice id, bool expire_leases,
                               int64_t epoch, int64_t if_beat_us, stint_error *err)
{
    struct st_pg_args a;
    stint_error local = {0};
    stint_code code;

    st_pg_args_init(&a);
    st_pg_i64(&a, now_us);
    st_pg_text(&a, id);
    st_pg_bool(&a, expire_leases);
    st_pg_i64(&a, epoch);
    st_pg_i64(&a, if_beat_us);
    code = st_pg_call(st_pg_of(store), PG_WORKER_REMOVE, &a, true, NULL, &local);
    st_pg_args_clear(&a);
    return st_pg_told(code, &local, err);
}

/* ---- the lead ------------------------------------------------------------------------------- */

stint_code st_pg_lead(struct st_store *store, const struct st_lead_req *req, struct st_lead *out, stint_error *err)
{
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code;

    memset(out, 0, sizeof(*out));
    st_pg_args_init(&a);
    st_pg_i64(&a, req->now_us);
    st_pg_text(&a, req->worker);
    st_pg_i64(&a, req->term_us);
    st_pg_bool(&a, req->release);
    code = st_pg_call(st_pg_of(store), PG_LEAD, &a, true, &r, &local);
    if (!code) {
        out->leader = st_pg_get_bool(r, 0, 0);
        out->epoch = st_pg_get_i64(r, 0, 1, 0);
        out->until_us = st_pg_get_i64(r, 0, 2, 0);
        copy_col(r, 0, 3, out->holder, sizeof(out->holder));
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return st_pg_told(code, &local, err);
}
