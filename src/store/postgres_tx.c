/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_tx.c - transactions that somebody else writes in too: a handler's, or an application's.
 *
 *     transact     on a connection of the handle's own: BEGIN, is the job still held?, fn, the outcome, COMMIT
 *     _open        the first half of that: the rest comes with the next transact, or it is abandoned
 *     enqueue_tx   in such a transaction, or in one that the application has open on a connection to this database
 *
 * Invariants:
 *   (1) fn runs after the fence was checked and with the lease's row locked against its end by others (not against renewal
 *       or a cancel request): what it writes commits with the job still held, or not at all;
 *   (2) a COMMIT whose answer was lost is EUNKNOWN; the outcome can be brought again, and is then judged by the fence.
 *
 * Thread: the handle's.
 */
#include "base/clock.h"
#include "store/postgres_conn.h"
#include "store/postgres_op.h"

static stint_code lost(struct st_slice id, stint_error *err)
{
    return st_fail(err, STINT_ELOST, "job %.*s is not held by this attempt any more", (int)id.len, id.p);
}

static void hang_up(struct st_pg *s)
{
    PQfinish(s->tx);
    s->tx = NULL;
}

/* BEGIN, COMMIT or ROLLBACK, with the handle's deadline. */
static enum st_pg_fate control(struct st_pg *s, enum st_pg_sql which, PGresult **r, stint_error *err)
{
    struct st_pg_args none;
    const char *sql = st_pg_sql_text(s, which);

    *r = NULL;
    if (!sql) {
        st_fail(err, STINT_ENOMEM, "no memory for a statement");
        return ST_PG_REFUSED;
    }
    st_pg_args_init(&none);
    return st_pg_exec_on(s, s->tx, sql, &none, st_clock_mono_us() + s->base.timeout_ms * ST_MS, r, err);
}

static stint_code begin(struct st_pg *s, stint_error *err)
{
    PGresult *r;
    bool pooled;

    for (int i = 0; i < 2; i++) {
        const bool fresh = !s->tx;
        enum st_pg_fate fate;

        if (fresh && !(s->tx = st_pg_connect(s, NULL, &pooled, err)))
            return err->code;
        fate = control(s, PG_BEGIN, &r, err);
        PQclear(r);
        if (fate == ST_PG_DONE)
            return STINT_OK;
        hang_up(s); /* it may have died while nobody used it */
        if (fresh)
            break;
    }
    return err->code == STINT_EUNKNOWN ? (err->code = STINT_EAGAIN) : err->code;
}

/* The server answers the commit of a transaction that cannot be committed with ROLLBACK. */
static stint_code commit(struct st_pg *s, stint_error *err)
{
    PGresult *r;
    const enum st_pg_fate fate = control(s, PG_COMMIT, &r, err);
    stint_code code = STINT_OK;

    if (fate == ST_PG_DONE && strcmp(PQcmdStatus(r), "COMMIT") != 0)
        code = st_fail(err, STINT_EINVAL, "the transaction was rolled back by the server");
    else if (fate == ST_PG_REFUSED)
        code = err->code;
    else if (fate != ST_PG_DONE)
        code = err->code = STINT_EUNKNOWN;
    PQclear(r);
    return code;
}

static stint_code check_held(struct st_pg *s, const struct st_hold *hold, stint_error *err)
{
    struct st_pg_args a;
    struct st_pg_key key;
    PGresult *r = NULL;
    stint_code code;

    st_pg_key(hold->id, &key);
    st_pg_args_init(&a);
    st_pg_bytes(&a, ST_SLICE((const char *)key.p, key.len));
    st_pg_i64(&a, hold->fence);
    code = st_pg_call_on(s, s->tx, PG_HOLD, &a, &r, err);
    if (!code && PQntuples(r) == 0)
        code = lost(hold->id, err);
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

static stint_code begin_held(struct st_pg *s, const struct st_hold *hold, stint_error *err)
{
    stint_code code = begin(s, err);

    if (!code)
        code = check_held(s, hold, err);
    return code == STINT_EUNKNOWN ? (err->code = STINT_EAGAIN) : code;
}

static stint_code run_fn(struct st_pg *s, st_tx_fn fn, void *arg, stint_error *err)
{
    struct st_tx tx = {.store = &s->base, .conn = s->tx};
    const stint_code code = fn(arg, &tx, err);

    if (code)
        return code;
    switch (PQtransactionStatus(s->tx)) {
    case PQTRANS_INTRANS:
        return STINT_OK;
    case PQTRANS_INERROR:
        return st_fail(err, STINT_EINVAL, "a statement of the function has failed, and with it the transaction");
    default:
        return st_fail(err, STINT_EINVAL, "the function has ended the transaction it was given");
    }
}

static stint_code write_outcome(struct st_pg *s, int64_t now_us, struct st_finish *fin, stint_error *err)
{
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    st_pg_args_init(&a);
    a.narrow = s->narrow;
    st_pg_settle_args(&a, now_us, fin, 1, ST_PG_PATIENT); /* what fn has written would go with it */
    code = st_pg_call_on(s, s->tx, PG_SETTLE, &a, &r, err);
    if (!code) {
        st_pg_settle_read(s, r, fin, 1);
        if (fin->verdict)
            code = lost(fin->id, err);
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

/* From the function on.  Until the commit was sent nothing has happened. */
static stint_code in_tx(struct st_pg *s, int64_t now_us, st_tx_fn fn, void *arg, struct st_finish *fin,
                        stint_error *err)
{
    stint_code code = run_fn(s, fn, arg, err);

    if (!code && fin)
        code = write_outcome(s, now_us, fin, err);
    if (code == STINT_EUNKNOWN)
        code = err->code = STINT_EAGAIN;
    return code ? code : commit(s, err);
}

static void rollback(struct st_pg *s)
{
    const PGTransactionStatusType status = PQtransactionStatus(s->tx);
    stint_error ignored = {0};
    PGresult *r = NULL;

    if (PQstatus(s->tx) == CONNECTION_OK && status == PQTRANS_IDLE)
        return;
    if (PQstatus(s->tx) != CONNECTION_OK || status == PQTRANS_ACTIVE ||
        control(s, PG_ROLLBACK, &r, &ignored) != ST_PG_DONE)
        hang_up(s);
    PQclear(r);
}

stint_code st_pg_transact(struct st_store *store, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                          struct st_finish *fin, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};
    stint_code code = s->tx_open ? STINT_OK : begin_held(s, hold, &local);

    s->tx_open = false;
    if (!code)
        code = in_tx(s, now_us, fn, arg, fin, &local);
    if (code && s->tx)
        rollback(s);
    return st_pg_told(code, &local, err);
}

stint_code st_pg_transact_open(struct st_store *store, int64_t now_us, const struct st_hold *hold, st_tx_fn fn,
                               void *arg, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};
    stint_code code = begin_held(s, hold, &local);

    (void)now_us;
    if (!code)
        code = run_fn(s, fn, arg, &local);
    s->tx_open = !code;
    if (code && s->tx)
        rollback(s);
    return st_pg_told(code, &local, err);
}

void st_pg_abandon(struct st_store *store)
{
    struct st_pg *s = st_pg_of(store);

    if (s->tx_open && s->tx)
        rollback(s);
    s->tx_open = false;
}

/* ---- enqueue_tx ------------------------------------------------------------------------------------ */

stint_code st_pg_enqueue_tx(struct st_store *store, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};
    stint_code code;

    if (PQtransactionStatus(conn) != PQTRANS_INTRANS) {
        code = st_fail(&local, STINT_EINVAL, "no transaction is open on the connection");
        st_err_remedy(&local, "BEGIN first; or add the jobs without a connection");
    } else {
        code = st_pg_enqueue_in(s, conn, now_us, jobs, n, out, &local);
    }
    return st_pg_told(code, &local, err);
}
