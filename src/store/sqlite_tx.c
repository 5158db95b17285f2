/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_tx.c - transactions that somebody else writes in too: a handler's, or an application's.
 *
 *     transact     on a connection of the handle's own:
 *                  BEGIN, is the job still held?, fn, the outcome, COMMIT
 *     enqueue_tx   in such a transaction, or in one that the application has open on a connection
 *                  to this file
 *
 * These connections are not the writer's.  To the writer they are like those of another process:
 * they wait for the same lock, and what they add (lanes, counts) is found in the file.  The
 * operations themselves are the writer's own; each connection is dressed as a writer that has no
 * thread.
 *
 * Invariants:
 *   (1) fn runs after the fence was checked and under the write lock: what it writes commits with
 *       the job still held, or not at all;
 *   (2) an enqueue that fails leaves the transaction as it found it (a savepoint).
 *
 * Thread: the handle's.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- a handle's connection for transactions ---------------------------------------------- */

static bool same_file(const struct st_sq_writer *w, const char *path)
{
    struct stat sb;

    return path && stat(path, &sb) == 0 && sb.st_dev == w->dev && sb.st_ino == w->ino;
}

static stint_code moved(const struct st_sq_writer *w, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s was deleted or replaced while in use", w->path);
    st_err_remedy(err, "put the file back, or start this program again to use the new one");
    return STINT_ESTORE;
}

void st_sq_tx_free(struct st_sq_writer *tx)
{
    sqlite3 *db;
    ST_SQ_GATE;

    if (!tx)
        return;
    db = tx->c.db;
    tx->c.db = NULL;
    st_sq_conn_close(&tx->c); /* our statements */
    sqlite3_close_v2(db);     /* a handler may have forgotten one of its own */
    st_sq_lanes_clear(&tx->lanes);
    free(tx);
}

static stint_code tx_open(struct st_sq *s, stint_error *err)
{
    struct st_sq_writer *tx = calloc(1, sizeof(*tx));

    if (!tx)
        return st_fail(err, STINT_ENOMEM, "no memory for a transaction on %s", s->w->path);
    tx->path = s->w->path;
    tx->c.until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    if (st_sq_conn_open(&tx->c, tx->path, err) ||
        st_sq_exec(&tx->c, "PRAGMA temp_store = MEMORY; PRAGMA cache_size = -512", err) ||
        st_sq_exec(&tx->c, s->sync_normal ? "PRAGMA synchronous = NORMAL" : "PRAGMA synchronous = FULL", err)) {
        st_sq_tx_free(tx);
        return err->code;
    }
    s->tx = tx;
    return STINT_OK;
}

static stint_code run_simple(struct st_sq_writer *tx, enum st_sq_sql which, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&tx->c, which, err);

    return st ? st_sq_run(&tx->c, st, err) : err->code;
}

static stint_code begin(struct st_sq *s, stint_error *err)
{
    if (!same_file(s->w, s->w->path))
        return moved(s->w, err);
    if (!s->tx && tx_open(s, err))
        return err->code;
    s->tx->c.until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    if (run_simple(s->tx, SQ_BEGIN, err))
        return err->code;
    s->tx->lanes.n_base = s->tx->lanes.n;
    return STINT_OK;
}

static void rollback(struct st_sq_writer *tx)
{
    stint_error ignored;

    if (!sqlite3_get_autocommit(tx->c.db))
        run_simple(tx, SQ_ROLLBACK, &ignored);
    st_sq_counts_drop(tx);
}

/* As in the writer: an I/O error while committing leaves open whether it will be found in the file.
 */
static stint_code commit(struct st_sq_writer *tx, stint_error *err)
{
    if (st_sq_counts_flush(tx, err))
        return err->code;
    if (!run_simple(tx, SQ_COMMIT, err))
        return STINT_OK;
    if ((sqlite3_extended_errcode(tx->c.db) & 0xff) == SQLITE_IOERR)
        err->code = STINT_EUNKNOWN;
    return err->code;
}

/* ---- transact ---------------------------------------------------------------------------- */

static stint_code lost(struct st_slice id, stint_error *err)
{
    return st_fail(err, STINT_ELOST, "job %.*s is not held by this attempt any more", (int)id.len, id.p);
}

static stint_code check_held(struct st_sq_writer *tx, const struct st_hold *hold, stint_error *err)
{
    struct st_sq_row row;
    bool found;

    if (st_sq_row_find(tx, hold->id, hold->ref, &row, &found, err))
        return err->code;
    if (found && st_state_held(row.state) && row.fence == hold->fence)
        return STINT_OK;
    return lost(hold->id, err);
}

static stint_code run_fn(struct st_sq *s, st_tx_fn fn, void *arg, stint_error *err)
{
    struct st_tx tx = {.store = &s->base, .conn = s->tx->c.db};
    stint_code code = fn(arg, &tx, err);

    if (code)
        return code;
    if (sqlite3_get_autocommit(s->tx->c.db))
        return st_fail(err, STINT_EINVAL, "the function has ended the transaction it was given");
    return STINT_OK;
}

static stint_code write_outcome(struct st_sq_writer *tx, int64_t now_us, struct st_finish *fin, stint_error *err)
{
    struct st_sq_finish_arg a = {.now_us = now_us, .items = fin, .n = 1};

    if (st_sq_finish_run(tx, &a, err))
        return err->code;
    return fin->verdict == STINT_OK ? STINT_OK : lost(fin->id, err);
}

stint_code st_sq_transact(struct st_store *store, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                          struct st_finish *fin, stint_error *err)
{
    struct st_sq *s = st_sq_of(store);
    stint_error local;
    stint_code code;
    ST_SQ_GATE;

    st_err_clear(&local);
    code = begin(s, &local);
    if (!code) {
        code = check_held(s->tx, hold, &local);
        if (!code)
            code = run_fn(s, fn, arg, &local);
        if (!code && fin)
            code = write_outcome(s->tx, now_us, fin, &local);
        if (!code)
            code = commit(s->tx, &local);
        if (code)
            rollback(s->tx);
    }
    if (code && err)
        *err = local;
    return code;
}

/* ---- enqueue_tx -------------------------------------------------------------------------- */

static stint_code enqueue_in(struct st_sq_writer *tx, struct st_sq_enqueue_arg *a, stint_error *err)
{
    stint_error ignored;
    stint_code code;

    if (st_sq_exec(&tx->c, "SAVEPOINT stint_enqueue", err))
        return err->code;
    code = st_sq_enqueue_run(tx, a, err);
    if (!code)
        code = st_sq_counts_flush(tx, err);
    if (!code)
        return st_sq_exec(&tx->c, "RELEASE stint_enqueue", err);
    st_sq_exec(&tx->c, "ROLLBACK TO stint_enqueue; RELEASE stint_enqueue", &ignored);
    st_sq_counts_drop(tx);
    return code;
}

/* A connection of the application's, dressed for this one call. */
static stint_code enqueue_foreign(struct st_sq *s, sqlite3 *db, struct st_sq_enqueue_arg *a, stint_error *err)
{
    struct st_sq_writer *tx;
    stint_code code;

    if (!same_file(s->w, sqlite3_db_filename(db, "main")))
        return st_fail(err, STINT_EINVAL, "the connection is not one to the store's file %s", s->w->path);
    if (sqlite3_get_autocommit(db)) {
        st_fail(err, STINT_EINVAL, "no transaction is open on the connection");
        st_err_remedy(err, "BEGIN IMMEDIATE first; or add the jobs without a connection");
        return STINT_EINVAL;
    }
    tx = calloc(1, sizeof(*tx));
    if (!tx)
        return st_fail(err, STINT_ENOMEM, "no memory to add jobs to %s", s->w->path);
    tx->path = s->w->path;
    tx->c.db = db;
    code = enqueue_in(tx, a, err);
    tx->c.db = NULL;
    st_sq_conn_close(&tx->c);
    st_sq_lanes_clear(&tx->lanes);
    free(tx);
    return code;
}

stint_code st_sq_enqueue_tx(struct st_store *store, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err)
{
    struct st_sq_enqueue_arg a = {.now_us = now_us, .jobs = jobs, .n = n, .out = out};
    struct st_sq *s = st_sq_of(store);
    stint_error local;
    stint_code code;
    ST_SQ_GATE;

    st_err_clear(&local);
    code = s->tx && conn == s->tx->c.db ? enqueue_in(s->tx, &a, &local) : enqueue_foreign(s, conn, &a, &local);
    if (code && err)
        *err = local;
    return code;
}
