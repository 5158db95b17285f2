/* SPDX-License-Identifier: Apache-2.0
 *
 * tx.c - a handler's own writes, in one transaction with its job.
 *
 *     prepare      [ job still ours?  fn ]                      the lease goes on
 *     finish_with  [ job still ours?  fn  the outcome ]         the attempt is over
 *     atomic       [ job still ours?  fn  ...  fn  the outcome ]   one from prepare to finish
 *
 * What finish_with has committed is told to the courier all the same, as what the handler said:
 * repeating an outcome changes nothing, and so there is one place that counts and tells.  While it
 * is being written, the loop must not take "not held any more" for a loss: that is what `settling`
 * says.
 *
 * Thread: the attempt's.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "complete/complete.h"
#include "lib/lib.h"

struct stint_tx {
    struct st_tx *tx;
};

/* ---- what the application does with it --------------------------------------------------- */

static stint_code add_in_tx(void *arg, const struct st_new_job *jobs, size_t n, struct st_enqueued *out,
                            stint_error *err)
{
    struct st_tx *tx = arg;

    return st_store_enqueue_tx(tx->store, tx->conn, 0, jobs, n, out, err);
}

stint_code stint_tx_enqueue(stint_tx *tx, const stint_job *jobs, size_t n, stint_enqueued *out, stint_error *err)
{
    return st_lib_enqueue(jobs, n, out, add_in_tx, tx->tx, err);
}

static bool is_sqlite(const struct st_store *s)
{
    return strcmp(s->ops->name, "sqlite") == 0;
}

static bool is_postgres(const struct st_store *s)
{
    return strcmp(s->ops->name, "postgres") == 0;
}

struct pg_conn *stint_pq_tx(stint_tx *tx)
{
    return is_postgres(tx->tx->store) ? tx->tx->conn : NULL;
}

stint_code stint_pq_enqueue(stint *st, struct pg_conn *conn, const stint_job *jobs, size_t n, stint_enqueued *out,
                            stint_error *err)
{
    stint_code rc = st_lib_usable(st, err);
    struct st_tx tx = {.conn = conn};

    if (rc != STINT_OK)
        return rc;
    tx.store = st->store;
    if (!is_postgres(st->store))
        return st_fail(err, STINT_EINVAL, "a PostgreSQL connection is of no use to the %s store", st->store->ops->name);
    if (!conn)
        return st_fail(err, STINT_EINVAL, "the connection is NULL");
    return st_lib_enqueue(jobs, n, out, add_in_tx, &tx, err);
}

struct sqlite3 *stint_sqlite_tx(stint_tx *tx)
{
    return is_sqlite(tx->tx->store) ? tx->tx->conn : NULL;
}

stint_code stint_sqlite_enqueue(stint *st, struct sqlite3 *db, const stint_job *jobs, size_t n, stint_enqueued *out,
                                stint_error *err)
{
    stint_code rc = st_lib_usable(st, err);
    struct st_tx tx = {.conn = db};

    if (rc != STINT_OK)
        return rc;
    tx.store = st->store;
    if (!is_sqlite(st->store))
        return st_fail(err, STINT_EINVAL, "a SQLite connection is of no use to the %s store", st->store->ops->name);
    if (!db)
        return st_fail(err, STINT_EINVAL, "the connection is NULL");
    return st_lib_enqueue(jobs, n, out, add_in_tx, &tx, err);
}

/* ---- prepare ----------------------------------------------------------------------------- */

struct call {
    stint_attempt *a;
    stint_tx_fn fn;
    void *arg;
    struct st_done done; /* finish_with: what is written, views of the attempt's */
    struct st_finish fin;
};

static struct st_hold hold_of(const stint_attempt *a)
{
    const struct st_job *job = a->it->job;

    return (struct st_hold){.id = st_slice_cstr(job->id), .fence = job->fence, .ref = job->ref};
}

static stint_code may_transact(const stint_attempt *a, stint_tx_fn fn, stint_error *err)
{
    stint_code rc = st_lib_same_process(a->w->pid, "attempt", "stint_open()", err);

    if (rc != STINT_OK)
        return rc;
    if (!fn)
        return st_fail(err, STINT_EINVAL, "a transaction needs a function");
    if (a->settled)
        return st_fail(err, STINT_ESTATE, "the attempt is finished");
    if (a->in_tx) { /* it would wait for its own lock */
        st_fail(err, STINT_ESTATE, "the attempt is in a transaction already");
        st_err_remedy(err, "write with the transaction that the function was given");
        return STINT_ESTATE;
    }
    return STINT_OK;
}

static stint_code call_fn(void *arg, struct st_tx *tx, stint_error *err)
{
    struct call *c = arg;
    struct stint_tx handle = {.tx = tx};
    stint_code rc;

    c->a->in_tx = true;
    rc = c->fn(c->a, &handle, c->arg);
    st_lib_end_fork(c->a->w->pid);
    c->a->in_tx = false;
    return rc == STINT_OK ? rc : st_fail(err, rc, "the function returned %s", stint_code_name(rc));
}

stint_code stint_attempt_prepare(stint_attempt *a, stint_mode mode, stint_tx_fn fn, void *arg, stint_error *err)
{
    struct call c = {.a = a, .fn = fn, .arg = arg};
    struct st_hold hold = hold_of(a);
    struct st_store *store;
    stint_code rc;

    rc = may_transact(a, fn, err);
    if (rc != STINT_OK)
        return rc;
    if (a->atomic)
        return st_fail(err, STINT_ESTATE, "the attempt is in a transaction of its own already");
    rc = st_lib_store_take(a->w, &store, err);
    if (rc != STINT_OK)
        return rc;
    if (mode == STINT_ATOMIC)
        rc = st_store_transact_open(store, 0, &hold, call_fn, &c, err);
    else
        rc = st_store_transact(store, 0, &hold, call_fn, &c, NULL, err);
    if (mode == STINT_ATOMIC && rc == STINT_OK)
        a->atomic = store;
    else
        st_lib_store_give(a->w, store);
    return rc;
}

/* ---- finish ------------------------------------------------------------------------------ */

/* The log so far goes with the outcome. */
static void log_take(stint_attempt *a, struct st_ran *ran)
{
    pthread_mutex_lock(&a->log_mutex);
    if (a->has_log)
        st_runlog_finish(&a->log, ran);
    a->has_log = false;
    pthread_mutex_unlock(&a->log_mutex);
}

static void log_back(stint_attempt *a, struct st_ran *ran)
{
    if (!ran->log_tail)
        return;
    pthread_mutex_lock(&a->log_mutex);
    if (!a->has_log)
        st_runlog_open(&a->log, NULL, a->it->job, 0);
    a->has_log = true;
    st_runlog_put(&a->log, ST_STDERR, ran->log_tail, ran->log_tail_len);
    pthread_mutex_unlock(&a->log_mutex);
}

static stint_code call_finish(void *arg, struct st_tx *tx, stint_error *err)
{
    struct call *c = arg;
    stint_attempt *a = c->a;
    stint_code rc = call_fn(arg, tx, err);

    if (rc != STINT_OK)
        return rc;
    if (a->said == STINT_UNDECIDED)
        a->said = STINT_SUCCEEDED;
    log_take(a, &a->it->ran);
    c->done.ran = a->it->ran;
    st_result_settle(&c->done, a->w->settings.results_dir);
    a->it->ran = c->done.ran;
    if (a->said == STINT_SUCCEEDED && !c->done.ran.ok)
        return st_fail(err, STINT_ESTORE, "%s", c->done.ran.message ? c->done.ran.message : "no memory");
    st_done_decide(&c->done, st_random_unit(), st_clock_boot_us(), &c->fin);
    return STINT_OK;
}

/* No answer to the commit: what does the store say of our attempt? */
static stint_code look_for(const struct st_job_info *info, const struct st_finish *fin)
{
    if (info->fence == fin->fence && st_state_held(info->state))
        return STINT_EAGAIN;
    if (info->fence == fin->fence && info->state == ST_SUCCEEDED)
        return fin->outcome == ST_OUT_SUCCEEDED ? STINT_OK : STINT_ELOST;
    for (size_t i = 0; i < info->n_attempts; i++) {
        const char *was = info->attempts[i].outcome;

        if (info->attempts[i].fence == fin->fence && was)
            return strcmp(was, "lease_expired") == 0 ? STINT_ELOST : STINT_OK;
    }
    return STINT_ELOST;
}

static stint_code find_out(struct st_store *s, const struct st_finish *fin, stint_error *err)
{
    int64_t give_up_us = st_clock_mono_us() + s->timeout_ms * ST_MS;
    struct st_tries tries = {.base_us = 10 * ST_MS, .max_us = 500 * ST_MS};
    struct st_job_info info = {0};
    stint_code rc;

    while (st_store_get(s, 0, fin->id, &info, NULL) != STINT_OK) {
        if (st_clock_mono_us() >= give_up_us)
            return STINT_EUNKNOWN;
        usleep((useconds_t)st_tries_next(&tries));
    }
    rc = look_for(&info, fin);
    st_job_info_clear(&info);
    if (rc != STINT_OK)
        st_fail(err, rc, "the outcome of job %.*s was not written", (int)fin->id.len, fin->id.p);
    return rc;
}

/* Committed: the courier will only tell it, so the bytes need not be kept. */
static void settle(stint_attempt *a, struct call *c)
{
    a->settled = true;
    a->it->ran.settled = true;
    a->it->ran.state = (int)c->fin.state;
    free(a->it->ran.result);
    a->it->ran.result = NULL;
    a->it->ran.result_len = 0;
    free(c->done.result_ref);
}

static void unsettle(stint_attempt *a, struct call *c, stint_code rc)
{
    if (rc == STINT_EUNKNOWN) {
        free(c->done.result_ref); /* it may be the one the store knows */
        st_item_abort(a->it, ST_ABORT_TAKEN);
        return;
    }
    st_result_discard(&c->done);
    log_back(a, &a->it->ran);
    st_lib_unsay(a);
    atomic_store(&a->it->settling, false);
}

stint_code stint_attempt_finish_with(stint_attempt *a, stint_tx_fn fn, void *arg, stint_error *err)
{
    struct call c = {.a = a, .fn = fn, .arg = arg};
    struct st_hold hold = hold_of(a);
    struct st_store *store;
    stint_code rc;

    rc = may_transact(a, fn, err);
    if (rc != STINT_OK)
        return rc;
    store = a->atomic;
    a->atomic = NULL; /* it ends here, one way or the other */
    if (!store)
        rc = st_lib_store_take(a->w, &store, err);
    if (rc != STINT_OK)
        return rc;
    c.done.job = (struct st_job *)a->it->job;
    c.done.started_boot_us = atomic_load(&a->it->started_us);
    atomic_store(&a->it->settling, true);
    rc = st_store_transact(store, 0, &hold, call_finish, &c, &c.fin, err);
    if (rc == STINT_EUNKNOWN)
        rc = find_out(store, &c.fin, err);
    if (rc == STINT_OK)
        settle(a, &c);
    else
        unsettle(a, &c, rc);
    st_lib_store_give(a->w, store);
    return rc;
}

/* ---- one transaction for all ---------------------------------------------------------------- */

static stint_code nothing_more(stint_attempt *a, stint_tx *tx, void *arg)
{
    (void)a;
    (void)tx;
    (void)arg;
    return STINT_OK;
}

/* A success commits with what was written; anything else takes it back, and goes the way every outcome goes. */
void st_lib_end_atomic(stint_attempt *a)
{
    stint_error err = {0};

    if (!a->atomic)
        return;
    if (a->said == STINT_SUCCEEDED && !stint_attempt_aborted(a)) {
        if (stint_attempt_finish_with(a, nothing_more, NULL, &err) != STINT_OK)
            stint_attempt_fail(a, STINT_RETRY, -1, err.message);
        return;
    }
    st_store_abandon(a->atomic);
    st_lib_store_give(a->w, a->atomic);
    a->atomic = NULL;
}
