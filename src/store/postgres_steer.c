/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_steer.c - cancel, retry, discard, pause.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>

#include "store/postgres_op.h"

/* What the server's functions answer per job. */
static stint_code verdict_of(const PGresult *r, int row)
{
    static const stint_code codes[] = {STINT_OK, STINT_ENOTFOUND, STINT_ESTATE, STINT_EEXISTS};
    const int64_t v = st_pg_get_i64(r, row, 1, 0);

    return v >= 0 && v < 4 ? codes[v] : STINT_ESTORE;
}

/* The index of a row's job, or -1. */
static int64_t place_of(const PGresult *r, int row, size_t n)
{
    const int64_t ord = st_pg_get_i64(r, row, 0, 0);

    return ord >= 1 && (size_t)ord <= n ? ord - 1 : -1;
}

stint_code st_pg_cancel(struct st_store *store, int64_t now_us, const struct st_slice *ids, size_t n,
                        stint_code *verdicts, bool *asked, stint_error *err)
{
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_i64(&a, now_us);
    st_pg_ids(&a, ids, n);
    code = st_pg_call(st_pg_of(store), PG_CANCEL, &a, true, &r, &local);
    for (int row = 0; !code && row < PQntuples(r); row++) {
        const int64_t i = place_of(r, row, n);

        if (i < 0)
            continue;
        verdicts[i] = verdict_of(r, row);
        if (asked)
            asked[i] = st_pg_get_bool(r, row, 2);
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return st_pg_told(code, &local, err);
}

stint_code st_pg_retry(struct st_store *store, int64_t now_us, const struct st_slice *ids, size_t n,
                       stint_code *verdicts, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    struct st_slice *queues = calloc(n, sizeof(*queues));
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    size_t woken = 0;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_i64(&a, now_us);
    st_pg_ids(&a, ids, n);
    code = st_pg_call(s, PG_RETRY, &a, true, &r, &local);
    for (int row = 0; !code && row < PQntuples(r); row++) {
        const int64_t i = place_of(r, row, n);

        if (i < 0)
            continue;
        verdicts[i] = verdict_of(r, row);
        if (queues && !st_pg_is_null(r, row, 2))
            queues[woken++] = st_pg_get(r, row, 2);
    }
    if (!code && woken)
        st_pg_wake(s, queues, woken);
    free(queues);
    PQclear(r);
    st_pg_args_clear(&a);
    return st_pg_told(code, &local, err);
}

/* ---- discard ------------------------------------------------------------------------------------ */

bool st_pg_pruned_add(struct st_pruned *p, struct st_slice file)
{
    char **grown = realloc(p->files, (p->n_files + 1) * sizeof(*grown));
    char *copy = st_slice_dup(file);

    if (grown)
        p->files = grown;
    if (!grown || !copy) {
        free(copy);
        return false;
    }
    p->files[p->n_files++] = copy;
    return true;
}

bool st_pg_pruned_files(struct st_pruned *p, const PGresult *r, int row, int col)
{
    struct st_pg_array files;
    struct st_slice file;

    if (!st_pg_get_array(r, row, col, &files))
        return true;
    while (st_pg_array_next(&files, &file))
        if (file.p && !st_pg_pruned_add(p, file))
            return false;
    return true;
}

stint_code st_pg_discard(struct st_store *store, const struct st_slice *ids, size_t n, stint_code *verdicts,
                         struct st_pruned *out, stint_error *err)
{
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    bool whole = true;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_ids(&a, ids, n);
    code = st_pg_call(st_pg_of(store), PG_DISCARD, &a, true, &r, &local);
    for (int row = 0; !code && row < PQntuples(r); row++) {
        const int64_t i = place_of(r, row, n);

        if (i < 0)
            continue;
        verdicts[i] = verdict_of(r, row);
        out->n += verdicts[i] == STINT_OK;
        whole &= st_pg_pruned_files(out, r, row, 2);
    }
    PQclear(r);
    st_pg_args_clear(&a);
    if (!code && !whole)
        st_log(ST_LOG_WARN, "prune.files", ST_F("error", "out of memory: some files of removed jobs stay"));
    return st_pg_told(code, &local, err);
}

/* ---- pause -------------------------------------------------------------------------------------- */

stint_code st_pg_pause(struct st_store *store, int64_t now_us, struct st_slice queue, bool paused, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    struct st_pg_args a;
    stint_error local = {0};
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_text(&a, queue);
    if (paused)
        st_pg_i64(&a, now_us);
    code = st_pg_call(s, paused ? PG_PAUSE : PG_RESUME, &a, true, &r, &local);
    PQclear(r);
    st_pg_args_clear(&a);
    if (!code && !paused)
        st_pg_wake_all(s);
    return st_pg_told(code, &local, err);
}
