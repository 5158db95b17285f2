/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_conn.c - requests on a connection: one transaction, one round trip, one deadline.
 *
 *     send all steps and one Sync  -->  read until the server is ready again
 *
 * Without an explicit BEGIN the steps up to a Sync are one transaction, which commits when the server
 * reads the Sync: results that came before say nothing yet.  So
 *
 *     the Sync was never given to the socket              nothing happened
 *     ERROR came, whichever step or the commit raised it  nothing happened
 *     ReadyForQuery came, and no ERROR                    it is committed
 *     anything else                                       it may have happened
 *
 * A connection that broke, or whose answer is still to come when the time has passed, is closed; the
 * next call makes a new one.  Before something is sent on a connection that has rested, a look at the
 * socket tells if the server has left it meanwhile: then a new one is made, and nothing was sent.
 *
 * After fork() the child's copy of a connection is not used: see st_pg_fork_check and st_pg_hangup.
 *
 * Thread: the handle's.
 */
#include "store/postgres_conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

#define CANCEL_GRACE_US (500 * ST_MS) /* for somebody else's connection to come to rest */

/* ---- fork ------------------------------------------------------------------------------------ */

stint_code st_pg_fork_check(struct st_pg *s, stint_error *err)
{
    if (st_pg_own(s)->pid == getpid())
        return STINT_OK;
    st_fail(err, STINT_ESTATE, "this handle on %s was opened before the process was forked", s->url.where);
    st_err_remedy(err, "open the store again in the child");
    return err->code;
}

/* PQfinish says goodbye to the server, which would end the parent's session.  In a child its socket is
 * therefore first replaced by something that leads nowhere. */
void st_pg_hangup(PGconn *c, bool inherited)
{
    int nowhere;

    if (!c)
        return;
    if (inherited && PQsocket(c) >= 0) {
        nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (nowhere < 0 || dup3(nowhere, PQsocket(c), O_CLOEXEC) < 0) {
            if (nowhere >= 0)
                close(nowhere);
            return; /* leaked: better than cutting off the parent */
        }
        close(nowhere);
    }
    PQfinish(c);
}

/* ---- giving up ------------------------------------------------------------------------------- */

static int cancels; /* under way, in this process */

static void *cancel_thread(void *arg)
{
    char ignored[256];

    PQcancel(arg, ignored, sizeof(ignored));
    PQfreeCancel(arg);
    __atomic_store_n(&cancels, 0, __ATOMIC_RELEASE);
    return NULL;
}

/* Asking for a cancel makes a connection and waits for its end, so a thread does it: the server may be
 * what does not answer.  One at a time is enough, statement_timeout does it too. */
void st_pg_cancel_soon(PGconn *c)
{
    PGcancel *cancel;
    pthread_t t;
    int none = 0;

    if (!__atomic_compare_exchange_n(&cancels, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    cancel = PQgetCancel(c);
    if (cancel && !st_thread_start(&t, "pg-cancel", cancel_thread, cancel, NULL)) {
        pthread_detach(t);
        return;
    }
    if (cancel)
        PQfreeCancel(cancel);
    __atomic_store_n(&cancels, 0, __ATOMIC_RELEASE);
}

void st_pg_conn_drop(struct st_pg *s)
{
    PQfinish(s->c);
    s->c = NULL;
    s->checked = false;
    memset(s->prepared, 0, sizeof(s->prepared));
}

static stint_code late(struct st_pg *s, PGconn *c, const char *what, stint_error *err)
{
    st_pg_cancel_soon(c);
    st_fail(err, STINT_EAGAIN, "%s%s%s: no answer within %d ms", what ? what : "", what ? " on " : "", s->url.where,
            s->base.timeout_ms);
    st_err_remedy(err, "see what the server is doing (pg_stat_activity), or give it more time (--store-timeout)");
    return err->code;
}

/* A write that the server may have carried out, although we did not hear of it. */
static stint_code unknown(stint_error *err)
{
    err->code = STINT_EUNKNOWN;
    st_err_remedy(err, "repeat it: a repetition finds what was done");
    return err->code;
}

/* ---- reading answers -------------------------------------------------------------------------- */

static bool is_error(const PGresult *r)
{
    switch (PQresultStatus(r)) {
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
    case PGRES_EMPTY_QUERY:
    case PGRES_PIPELINE_SYNC:
        return false;
    default:
        return true;
    }
}

/* Waits for the next result.  DONE with *r NULL: the end of one query's results. */
static enum st_pg_fate next_result(PGconn *c, int64_t until_us, PGresult **r)
{
    *r = NULL;
    for (;;) {
        const int unsent = PQflush(c);
        int ready;

        if (unsent < 0 && PQstatus(c) == CONNECTION_BAD)
            return ST_PG_BROKEN;
        if (!PQisBusy(c)) {
            *r = PQgetResult(c);
            return ST_PG_DONE;
        }
        ready = st_pg_poll(c, (short)(POLLIN | (unsent > 0 ? POLLOUT : 0)), until_us);
        if (ready <= 0)
            return ready == 0 ? ST_PG_LATE : ST_PG_BROKEN;
        if (!PQconsumeInput(c) && PQstatus(c) == CONNECTION_BAD) {
            *r = PQgetResult(c); /* what the server had to say before it left, if anything */
            return *r ? ST_PG_DONE : ST_PG_BROKEN;
        }
    }
}

/* ---- any text ---------------------------------------------------------------------------------- */

static bool args_bad(const struct st_pg_args *a)
{
    return a && a->buf.failed;
}

static stint_code args_fail(stint_error *err)
{
    return st_fail(err, STINT_ENOMEM, "the request is too large, or there is no memory for it");
}

/* The arrays that the library wants. */
struct packed {
    const char *values[ST_PG_ARGS];
    int formats[ST_PG_ARGS];
};

static void pack(const struct st_pg_args *a, struct packed *p)
{
    for (int i = 0; i < a->n; i++) {
        p->values[i] = a->len[i] < 0 ? NULL : a->buf.p ? a->buf.p + a->at[i] : "";
        p->formats[i] = 1;
    }
}

static int send_params(PGconn *c, const char *sql, const struct st_pg_args *a)
{
    struct packed p;

    if (!a)
        return PQsendQueryParams(c, sql, 0, NULL, NULL, NULL, NULL, 1);
    pack(a, &p);
    return PQsendQueryParams(c, sql, a->n, a->oid, p.values, a->len, p.formats, 1);
}

/* Reads all results of one query; keeps the last, or the first that failed. */
static enum st_pg_fate collect(PGconn *c, int64_t until_us, PGresult **kept)
{
    enum st_pg_fate fate;
    PGresult *r;

    *kept = NULL;
    for (;;) {
        fate = next_result(c, until_us, &r);
        if (fate != ST_PG_DONE)
            return fate;
        if (!r)
            break;
        if (*kept && is_error(*kept)) {
            PQclear(r);
            continue;
        }
        PQclear(*kept);
        *kept = r;
        if (PQresultStatus(r) == PGRES_COPY_IN || PQresultStatus(r) == PGRES_COPY_OUT ||
            PQresultStatus(r) == PGRES_COPY_BOTH)
            return ST_PG_BROKEN; /* nothing of ours copies */
    }
    if (!*kept)
        return ST_PG_BROKEN;
    if (!is_error(*kept))
        return ST_PG_DONE;
    return st_pg_definite(*kept) ? ST_PG_REFUSED : ST_PG_BROKEN;
}

enum st_pg_fate st_pg_exec_on(struct st_pg *s, PGconn *c, const char *sql, const struct st_pg_args *args,
                              int64_t until_us, PGresult **res, stint_error *err)
{
    const int blocking = !PQisnonblocking(c);
    enum st_pg_fate fate = ST_PG_BROKEN;
    PGresult *r = NULL;

    if (res)
        *res = NULL;
    if (args_bad(args)) {
        args_fail(err);
        return ST_PG_REFUSED;
    }
    if (blocking)
        PQsetnonblocking(c, 1);
    if (PQpipelineStatus(c) != PQ_PIPELINE_OFF)
        PQexitPipelineMode(c);
    if (args ? send_params(c, sql, args) : PQsendQuery(c, sql))
        fate = collect(c, until_us, &r);
    if (fate == ST_PG_LATE)
        late(s, c, NULL, err);
    else if (fate != ST_PG_DONE)
        st_pg_fail(s, c, r, NULL, err);
    if (blocking && PQstatus(c) == CONNECTION_OK)
        PQsetnonblocking(c, 0);
    if (fate == ST_PG_DONE && res)
        *res = r;
    else
        PQclear(r);
    return fate;
}

/* ---- the handle's connection --------------------------------------------------------------------- */

static stint_code deadline_set(struct st_pg *s, stint_error *err)
{
    if (st_pg_fork_check(s, err))
        return err->code;
    st_pg_own(s)->until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    return STINT_OK;
}

/* A statement shall not outlive the call that asked for it, nor a transaction its client, nor one that only the first half of a
 * pipeline has reached (which none of the server's timeouts ends) the network to it.  Whatever others have put into schemas that all
 * may write to is not found. */
static stint_code session_set(struct st_pg *s, PGconn *c, stint_error *err)
{
    const int64_t until_us = st_pg_own(s)->until_us;
    const int64_t ms = s->base.timeout_ms;
    const int64_t statement = ms + 1000, idle = ms < 10000 ? 30000 : 3 * ms;
    char sql[512];

    snprintf(sql, sizeof(sql),
             "SET statement_timeout = %d; SET idle_in_transaction_session_timeout = %d; SET lock_timeout = 0;"
             " SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3;"
             " SET jit = off;" /* no statement of ours is worth compiling */
             " SET default_transaction_isolation = 'read committed'; SET search_path = pg_catalog;"
             " SET standard_conforming_strings = on",
             (int)(statement < INT32_MAX ? statement : 0), (int)(idle < INT32_MAX ? idle : 0));
    return st_pg_exec_on(s, c, sql, NULL, until_us, NULL, err) == ST_PG_DONE ? STINT_OK : err->code;
}

bool st_pg_narrow(PGconn *c)
{
    const char *encoding = PQparameterStatus(c, "server_encoding");

    return encoding && strcmp(encoding, "UTF8") != 0 && strcmp(encoding, "SQL_ASCII") != 0;
}

static void learn(struct st_pg *s, PGconn *c, const struct st_pg_probe *probe)
{
    struct st_pg_shared_own *sh = (struct st_pg_shared_own *)s->sh;

    s->pooled = probe->pooled || st_pg_own(s)->no_prepare;
    s->narrow = st_pg_narrow(c);
    s->clock_off_us = probe->clock_off_us;
    s->boot_off_us = probe->boot_off_us;
    pthread_mutex_lock(&sh->sh.mu);
    sh->clock_off_us = probe->clock_off_us;
    sh->boot_off_us = probe->boot_off_us;
    snprintf(sh->version, sizeof(sh->version), "PostgreSQL %s", PQparameterStatus(c, "server_version"));
    snprintf(sh->durability, sizeof(sh->durability), "%s", probe->durability);
    pthread_mutex_unlock(&sh->sh.mu);
}

/* On a connection that rests a server's last word comes as a notice. */
static void hear(void *arg, const PGresult *r)
{
    const char *severity = PQresultErrorField(r, PG_DIAG_SEVERITY_NONLOCALIZED);

    if (severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
        st_pg_own(arg)->farewell = true;
}

stint_code st_pg_conn_up(struct st_pg *s, stint_error *err)
{
    struct st_pg_probe probe = {0};
    PGconn *c;

    if (s->c)
        return STINT_OK;
    c = st_pg_connect_until(s, NULL, st_pg_own(s)->until_us, &probe, err);
    if (!c)
        return err->code;
    PQsetnonblocking(c, 1);
    PQsetNoticeReceiver(c, hear, s);
    st_pg_own(s)->farewell = false;
    if (!probe.pooled && session_set(s, c, err)) {
        PQfinish(c);
        return err->code;
    }
    learn(s, c, &probe);
    st_log(ST_LOG_DEBUG, "store.connected", ST_F("where", s->url.where), ST_FI("pooled", probe.pooled),
           ST_FI("clock_off_us", probe.clock_off_us));
    s->c = c;
    return STINT_OK;
}

/* Has the server left the connection while it rested?  Then the socket is readable, and there is nothing
 * on it but the end, or a farewell before the end. */
static void drop_if_dead(struct st_pg *s)
{
    if (!s->c)
        return;
    if (PQstatus(s->c) == CONNECTION_OK && st_pg_poll(s->c, POLLIN, 0) == 0)
        return;
    if (PQconsumeInput(s->c) && !PQisBusy(s->c) && PQstatus(s->c) == CONNECTION_OK &&
        st_pg_poll(s->c, POLLIN, 0) == 0 && !st_pg_own(s)->farewell)
        return; /* a notice, or a changed setting */
    st_pg_conn_drop(s);
}

static stint_code conn_ready(struct st_pg *s, stint_error *err)
{
    drop_if_dead(s);
    if (st_pg_conn_up(s, err))
        return err->code;
    if (s->checked || s->no_migrate)
        return STINT_OK;
    return st_pg_schema_known(s, err);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

static int send_step(struct st_pg *s, const struct st_pg_step *step, bool prepare)
{
    const char *sql = st_pg_sql_text(s, step->which);
    const struct st_pg_args *a = step->args;
    struct packed p;
    char name[16];

    if (!sql)
        return 0;
    if (s->pooled)
        return send_params(s->c, sql, a);
    snprintf(name, sizeof(name), "st%d", (int)step->which);
    if (prepare && !PQsendPrepare(s->c, name, sql, a ? a->n : 0, a ? a->oid : NULL))
        return 0;
    if (!a)
        return PQsendQueryPrepared(s->c, name, 0, NULL, NULL, NULL, 1);
    pack(a, &p);
    return PQsendQueryPrepared(s->c, name, a->n, p.values, a->len, p.formats, 1);
}

/* Does this step prepare its statement, given those before it in the same run? */
static bool prepares(const struct st_pg *s, const struct st_pg_step *steps, size_t i)
{
    if (s->pooled || s->prepared[steps[i].which])
        return false;
    for (size_t k = 0; k < i; k++)
        if (steps[k].which == steps[i].which)
            return false;
    return true;
}

/* Up to, and not with, the Sync: until then nothing can have happened. */
static bool send_steps(struct st_pg *s, const struct st_pg_step *steps, size_t n)
{
    if (PQpipelineStatus(s->c) == PQ_PIPELINE_OFF && !PQenterPipelineMode(s->c))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!send_step(s, &steps[i], prepares(s, steps, i)))
            return false;
    return true;
}

/* The results of one query in the pipeline.  *failed: the first failed result of the run. */
static enum st_pg_fate take_result(struct st_pg *s, PGresult **out, PGresult **failed)
{
    const int64_t until_us = st_pg_own(s)->until_us;
    enum st_pg_fate fate;
    PGresult *r;

    *out = NULL;
    for (;;) {
        fate = next_result(s->c, until_us, &r);
        if (fate != ST_PG_DONE || !r)
            return fate;
        if (is_error(r)) {
            if (!*failed && PQresultStatus(r) != PGRES_PIPELINE_ABORTED)
                *failed = r;
            else
                PQclear(r);
            if (PQstatus(s->c) == CONNECTION_BAD)
                return ST_PG_BROKEN;
        } else if (*out) {
            PQclear(r);
        } else {
            *out = r;
        }
    }
}

static enum st_pg_fate take_steps(struct st_pg *s, struct st_pg_step *steps, size_t n, PGresult **failed)
{
    enum st_pg_fate fate = ST_PG_DONE;
    PGresult *r;

    for (size_t i = 0; fate == ST_PG_DONE && i < n; i++) {
        if (prepares(s, steps, i)) {
            fate = take_result(s, &r, failed);
            if (fate == ST_PG_DONE && r)
                s->prepared[steps[i].which] = true;
            PQclear(r);
        }
        if (fate == ST_PG_DONE)
            fate = take_result(s, &steps[i].res, failed);
    }
    return fate;
}

/* The server is ready again.  An error that only the commit raised comes before that. */
static enum st_pg_fate take_sync(struct st_pg *s, PGresult **failed)
{
    const int64_t until_us = st_pg_own(s)->until_us;
    int empty = 0;

    while (empty < 3) {
        PGresult *r;
        const enum st_pg_fate fate = next_result(s->c, until_us, &r);
        const bool sync = r && PQresultStatus(r) == PGRES_PIPELINE_SYNC;

        if (fate != ST_PG_DONE)
            return fate;
        empty = r ? 0 : empty + 1;
        if (r && is_error(r) && !*failed && PQresultStatus(r) != PGRES_PIPELINE_ABORTED)
            *failed = r;
        else
            PQclear(r);
        if (sync)
            return ST_PG_DONE;
        if (PQstatus(s->c) == CONNECTION_BAD)
            return ST_PG_BROKEN;
    }
    return ST_PG_BROKEN;
}

/* How a run ended. */
struct ended {
    enum st_pg_fate fate;
    bool sent;  /* it may have reached the server, Sync and all */
    bool stale; /* prepared statements are not what we think: a hidden pooler, or a changed schema */
};

static void drop_results(struct st_pg_step *steps, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        PQclear(steps[i].res);
        steps[i].res = NULL;
    }
}

static void note_stale(struct st_pg *s, const PGresult *failed, struct ended *e)
{
    const bool strange = st_pg_is_state(failed, "26000") || st_pg_is_state(failed, "42P05");

    if (s->pooled)
        return;
    if (strange) /* other backends answer, though it did not look like it: no prepared statements from now on */
        st_pg_own(s)->no_prepare = true;
    e->stale = strange || st_pg_is_state(failed, "0A000"); /* "cached plan must not change result type" */
}

static stint_code run_failed(struct st_pg *s, PGresult *failed, bool writes, struct ended *e, stint_error *err)
{
    if (st_pg_definite(failed))
        e->fate = e->fate == ST_PG_DONE ? ST_PG_REFUSED : e->fate;
    else if (failed && e->fate == ST_PG_DONE)
        e->fate = ST_PG_BROKEN;
    note_stale(s, failed, e);
    if (e->fate == ST_PG_LATE && !st_pg_definite(failed))
        late(s, s->c, NULL, err);
    else
        st_pg_fail(s, s->c, failed, NULL, err);
    if (e->fate != ST_PG_REFUSED || e->stale || st_pg_is_state(failed, "25006"))
        st_pg_conn_drop(s); /* read-only: another host may be the primary now */
    if (st_pg_is_state(failed, "42P01") || st_pg_is_state(failed, "42883") || st_pg_is_state(failed, "3F000"))
        s->checked = false; /* the schema is not what it was */
    if (writes && e->sent && !st_pg_definite(failed))
        return unknown(err);
    return err->code;
}

/* What follows the commit in the same round trip: a hint, of no interest to the caller.  Without it the connection may
 * be of no use, and is dropped. */
static bool send_after(struct st_pg *s, const struct st_pg_step *after)
{
    return after && send_steps(s, after, 1) && PQpipelineSync(s->c);
}

static void take_after(struct st_pg *s, struct st_pg_step *after)
{
    PGresult *ignored = NULL;

    if (take_steps(s, after, 1, &ignored) != ST_PG_DONE || take_sync(s, &ignored) != ST_PG_DONE)
        st_pg_conn_drop(s);
    PQclear(ignored);
    PQclear(after->res);
    after->res = NULL;
}

static stint_code run_once(struct st_pg *s, struct st_pg_step *steps, size_t n, struct st_pg_step *after, bool writes,
                           struct ended *e, stint_error *err)
{
    PGresult *failed = NULL;
    stint_code code = STINT_OK;
    bool more = false;

    e->fate = ST_PG_BROKEN;
    if (send_steps(s, steps, n)) {
        e->sent = true;
        if (PQpipelineSync(s->c)) {
            more = send_after(s, after);
            e->fate = take_steps(s, steps, n, &failed);
        }
        if (e->fate == ST_PG_DONE)
            e->fate = take_sync(s, &failed);
    }
    if (e->fate != ST_PG_DONE || failed)
        code = run_failed(s, failed, writes, e, err);
    if (s->c && more)
        take_after(s, after);
    else if (s->c && after)
        st_pg_conn_drop(s);
    PQclear(failed);
    if (code)
        drop_results(steps, n);
    return code;
}

/* May it be tried once more, on a new connection?  Only if the first try certainly changed nothing. */
static bool may_repeat(struct st_pg *s, const struct ended *e, bool rested, bool writes)
{
    if (st_clock_mono_us() >= st_pg_own(s)->until_us)
        return false;
    if (e->stale)
        return true;
    return rested && e->fate == ST_PG_BROKEN && !(writes && e->sent);
}

stint_code st_pg_run_then(struct st_pg *s, struct st_pg_step *steps, size_t n, struct st_pg_step *after, bool writes,
                          stint_error *err)
{
    stint_code code = deadline_set(s, err);

    s->next_due_fresh = false;
    for (size_t i = 0; i < n; i++) {
        steps[i].res = NULL;
        if (!code && args_bad(steps[i].args))
            code = args_fail(err);
    }
    for (int tries = 0; !code; tries++) {
        const bool rested = s->c != NULL;
        struct ended e = {0};

        if (conn_ready(s, err))
            return err->code;
        code = run_once(s, steps, n, after, writes, &e, err);
        if (!code || tries > 0 || !may_repeat(s, &e, rested, writes))
            break;
        code = STINT_OK;
        st_log(ST_LOG_DEBUG, "store.repeated", ST_F("where", s->url.where), ST_F("error", err->message));
        st_err_clear(err);
    }
    return code;
}

stint_code st_pg_run(struct st_pg *s, struct st_pg_step *steps, size_t n, bool writes, stint_error *err)
{
    return st_pg_run_then(s, steps, n, NULL, writes, err);
}

stint_code st_pg_call(struct st_pg *s, enum st_pg_sql which, const struct st_pg_args *args, bool writes, PGresult **res,
                      stint_error *err)
{
    struct st_pg_step step = {.which = which, .args = args};
    const stint_code code = st_pg_run(s, &step, 1, writes, err);

    if (res)
        *res = step.res;
    else
        PQclear(step.res);
    return code;
}

/* ---- in somebody's transaction ------------------------------------------------------------------------ */

static stint_code on_check(struct st_pg *s, PGconn *c, stint_error *err)
{
    if (!c || PQstatus(c) != CONNECTION_OK)
        return st_fail(err, STINT_EAGAIN, "the connection for the transaction is not open");
    if (PQpipelineStatus(c) != PQ_PIPELINE_OFF)
        return st_refuse(err, "leave pipeline mode first (PQexitPipelineMode)",
                         "the connection for the transaction is in pipeline mode");
    switch (PQtransactionStatus(c)) {
    case PQTRANS_INTRANS:
        return STINT_OK;
    case PQTRANS_INERROR:
        st_fail(err, STINT_ESTATE, "the transaction on %s has failed already", s->url.where);
        st_err_remedy(err, "roll it back");
        return err->code;
    case PQTRANS_ACTIVE:
        return st_refuse(err, "read the results of its last query first", "the connection for the transaction is busy");
    default:
        return st_refuse(err, "send BEGIN first", "no transaction is open on the connection");
    }
}

/* The connection is not ours to close: it gets a moment to come to rest. */
static void settle(PGconn *c)
{
    const int64_t until_us = st_clock_mono_us() + CANCEL_GRACE_US;
    PGresult *r = NULL;

    while (next_result(c, until_us, &r) == ST_PG_DONE && r)
        PQclear(r);
}

stint_code st_pg_call_on(struct st_pg *s, PGconn *c, enum st_pg_sql which, const struct st_pg_args *args,
                         PGresult **res, stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    const char *sql = st_pg_sql_text(s, which);
    struct st_pg_args none;
    enum st_pg_fate fate;

    if (res)
        *res = NULL;
    if (!sql)
        return st_fail(err, STINT_ENOMEM, "no memory for a statement");
    if (st_pg_fork_check(s, err) || on_check(s, c, err))
        return err->code;
    st_pg_args_init(&none);
    fate = st_pg_exec_on(s, c, sql, args ? args : &none, until_us, res, err);
    if (fate == ST_PG_LATE)
        settle(c);
    return fate == ST_PG_DONE ? STINT_OK : err->code;
}

/* ---- any text on the handle's connection ------------------------------------------------------------- */

stint_code st_pg_exec(struct st_pg *s, const char *sql, const struct st_pg_args *args, bool writes, PGresult **res,
                      stint_error *err)
{
    enum st_pg_fate fate;
    char *text;

    if (res)
        *res = NULL;
    if (deadline_set(s, err))
        return err->code;
    drop_if_dead(s);
    if (st_pg_conn_up(s, err))
        return err->code;
    text = st_pg_in_schema(s, sql);
    if (!text)
        return st_fail(err, STINT_ENOMEM, "no memory for a statement");
    fate = st_pg_exec_on(s, s->c, text, args, st_pg_own(s)->until_us, res, err);
    free(text);
    if (fate == ST_PG_DONE)
        return STINT_OK;
    if (fate != ST_PG_REFUSED) {
        st_pg_conn_drop(s);
        if (writes)
            return unknown(err);
    }
    return err->code;
}
