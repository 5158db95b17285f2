/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_prune.c - removing ended jobs whose retention is over, row by row.
 *
 * Failed and cancelled jobs, what an operator asks for, and everything where there is little:
 * exactly, in batches.  Of a long history a leader's prune leaves the succeeded jobs to the ring
 * (postgres_upkeep.c), which pays nothing per row.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>

#include "store/postgres_care.h"

static int64_t kept(int64_t us)
{
    return us > 0 ? us : 0;
}

static void put_keep(struct st_pg_args *a, const struct st_retention *keep)
{
    st_pg_i64(a, kept(keep->succeeded_us));
    st_pg_i64(a, kept(keep->failed_us));
    st_pg_i64(a, kept(keep->cancelled_us));
}

static stint_code count(struct st_pg *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_i64(&a, req->now_us);
    put_keep(&a, &req->keep);
    code = st_pg_call(s, PG_PRUNE_COUNT, &a, false, &r, err);
    if (!code)
        out->n = (size_t)st_pg_get_i64(r, 0, 0, 0);
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

static stint_code remove_some(struct st_pg *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    struct st_pg_care *care = st_pg_care(s, err);
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    if (!care)
        return err->code;
    st_pg_args_init(&a);
    st_pg_i64(&a, req->now_us);
    st_pg_i64(&a, req->epoch);
    put_keep(&a, &req->keep);
    st_pg_i32(&a, (int32_t)req->limit);
    st_pg_i32(&a, care->slot);
    st_pg_i64(&a, care->from_us);
    code = st_pg_call(s, PG_PRUNE, &a, true, &r, err);
    if (!code) {
        care->slot = (int32_t)st_pg_get_i64(r, 0, 0, 0);
        care->from_us = st_pg_get_i64(r, 0, 1, 0);
        out->n = (size_t)st_pg_get_i64(r, 0, 2, 0);
        out->more = out->n == req->limit;
        if (!st_pg_pruned_files(out, r, 0, 3)) /* the jobs are gone: too late for an error */
            st_log(ST_LOG_WARN, "prune.files", ST_F("error", "out of memory: some files of removed jobs stay"));
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

stint_code st_pg_prune(struct st_store *store, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};
    stint_code code;

    memset(out, 0, sizeof(*out));
    code = req->dry_run ? count(s, req, out, &local) : remove_some(s, req, out, &local);
    return st_pg_told(code, &local, err);
}
