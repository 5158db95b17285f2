/* SPDX-License-Identifier: Apache-2.0
 *
 * test_atomic.c - PostgreSQL: one transaction for a whole attempt, and jobs in the application's
 * own.
 *
 * The application's table, `ledger`, lies in the schema of the store.  Needs a server:
 * scripts/pg-test.
 */
#include <libpq-fe.h>
#include <sys/wait.h>

#include "base/id.h"
#include "kit.h"
#include "stint_pq.h"
#include "stint_sqlite.h"

#define SKIPPED 77

struct bank {
    struct kit k; /* its url is too short for ours */
    char url[1024], schema[32];
    PGconn *db; /* the application's own connection */
    stint_worker *w;
    stint_enqueued job;
    stint_code (*act)(stint_attempt *a, struct bank *b);
    stint_code answer, second; /* what the handler was told */
    stint_error err;
    char during[16]; /* rows that others saw while it ran */
    int pid;         /* of the transaction's server process */
    atomic_int runs, completed, lost, renewed, go, paid;
};

/* ---- the application's database -------------------------------------------------------------- */

static int hex_pair(const char *p)
{
    char text[3] = {p[0], p[1], '\0'};

    return (int)strtol(text, NULL, 16);
}

/* Behind a pooler the server itself is what listen= names. */
static PGconn *connect_direct(const char *schema)
{
    const char *p = strstr(getenv("STINT_TEST_PG"), "&listen=");
    char url[1024], sql[96];
    size_t n = 0;
    PGconn *c;

    snprintf(url, sizeof(url), "%s", getenv("STINT_TEST_PG"));
    for (p = p ? p + 8 : NULL; p && *p && n + 1 < sizeof(url); p++) {
        url[n++] = *p == '%' ? (char)hex_pair(p + 1) : *p;
        p += *p == '%' ? 2 : 0;
        url[n] = '\0';
    }
    c = PQconnectdb(url);
    assert_int_equal(PQstatus(c), CONNECTION_OK);
    snprintf(sql, sizeof(sql), "SET search_path = %s, public; SET client_min_messages = error", schema);
    PQclear(PQexec(c, sql));
    return c;
}

static void sql(PGconn *c, const char *text)
{
    PGresult *r = PQexec(c, text);

    if (PQresultStatus(r) != PGRES_COMMAND_OK && PQresultStatus(r) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQerrorMessage(c));
    PQclear(r);
}

static int number(PGconn *c, const char *text)
{
    PGresult *r = PQexec(c, text);
    int n;

    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQerrorMessage(c));
    n = atoi(PQgetvalue(r, 0, 0));
    PQclear(r);
    return n;
}

static int ledger(struct bank *b)
{
    return number(b->db, "SELECT count(*) FROM ledger");
}

static bool is_there(struct bank *b, const char *id)
{
    char *json = NULL;
    const stint_code rc = stint_get(b->k.st, id, &json, NULL);

    stint_free(json);
    assert_true(rc == STINT_OK || rc == STINT_ENOTFOUND);
    return rc == STINT_OK;
}

/* ---- a bank ------------------------------------------------------------------------------------
 */

static stint_code handle(stint_attempt *a, void *arg)
{
    struct bank *b = arg;

    atomic_fetch_add(&b->runs, 1);
    return b->act(a, b);
}

static void on_event(void *arg, const stint_event *e)
{
    struct bank *b = arg;

    if (e->kind == STINT_EVENT_ATTEMPT_COMPLETED)
        atomic_fetch_add(&b->completed, 1);
    if (e->kind == STINT_EVENT_ATTEMPT_ALREADY_COMPLETED || e->kind == STINT_EVENT_ATTEMPT_TAKEN_BY_ANOTHER_WORKER)
        atomic_fetch_add(&b->lost, 1);
    if (e->kind == STINT_EVENT_ATTEMPT_LEASE_RENEWED)
        atomic_fetch_add(&b->renewed, 1);
}

static void bank_open(struct bank *b, stint_worker_options opt, stint_code (*act)(stint_attempt *a, struct bank *b))
{
    const struct st_store_open open = {.timeout_ms = 20000};
    stint_error err = {0};
    unsigned random[2];

    memset(b, 0, sizeof(*b));
    st_random(random, sizeof(random));
    snprintf(b->schema, sizeof(b->schema), "t_%08x%08x", random[0], random[1]);
    snprintf(b->url, sizeof(b->url), "%s&schema=%s", getenv("STINT_TEST_PG"), b->schema);
    if (st_store_open(b->url, &open, &b->k.store, &err) != STINT_OK)
        fail_msg("%s", err.message);
    OK(stint_open(b->url, 0, &b->k.st, &err));
    b->act = act;
    opt.event = on_event;
    opt.event_arg = b;
    OK(stint_worker_new(b->url, &opt, &b->w, &err));
    kit_handle(b->w, "t", handle, b);
    b->db = connect_direct(b->schema);
    sql(b->db, "CREATE TABLE ledger (job text, amount int)");
    kit_add(&b->k, "t", "{}", &b->job);
}

static stint_worker_options once(void)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;

    opt.once = 1;
    return opt;
}

static stint_worker_options for_long(void)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;

    opt.poll_ms = 100;
    return opt;
}

static void bank_close(struct bank *b)
{
    char text[256];

    stint_worker_free(b->w);
    stint_close(b->k.st);
    st_store_close(b->k.store);
    snprintf(text, sizeof(text), "DROP SCHEMA %s CASCADE", b->schema);
    sql(b->db, text);
    PQfinish(b->db);
}

/* Runs until nothing is due. */
static void bank_run(struct bank *b, stint_code (*act)(stint_attempt *a, struct bank *b))
{
    stint_error err = {0};

    bank_open(b, once(), act);
    if (stint_worker_run(b->w, &err) != STINT_OK)
        fail_msg("%s", err.message);
}

/* ---- in the transaction ------------------------------------------------------------------------
 */

static stint_code pay(stint_attempt *a, stint_tx *tx, void *arg)
{
    struct bank *b = arg;
    const char *id[1] = {stint_attempt_id(a)};
    PGresult *r = PQexecParams(stint_pq_tx(tx), "SELECT pg_backend_pid()", 0, NULL, NULL, NULL, NULL, 0);
    char text[96];

    b->pid = atoi(PQgetvalue(r, 0, 0));
    PQclear(r);
    snprintf(text, sizeof(text), "INSERT INTO %s.ledger VALUES ($1, 5)", b->schema);
    r = PQexecParams(stint_pq_tx(tx), text, 1, NULL, id, NULL, NULL, 0);
    atomic_fetch_add(&b->paid, PQresultStatus(r) == PGRES_COMMAND_OK);
    PQclear(r);
    return STINT_OK;
}

static stint_code pay_and_complete(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    return stint_attempt_complete(a, "\"paid\"", 6);
}

static stint_code pay_and_fail(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "booked as failed");
}

static stint_code pay_and_regret(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    return STINT_ESTATE;
}

static stint_code pay_and_follow(stint_attempt *a, stint_tx *tx, void *arg)
{
    stint_job next = STINT_JOB_INIT;
    stint_enqueued out;

    pay(a, tx, arg);
    next.type = "receipt";
    next.id = "receipt-1";
    return stint_tx_enqueue(tx, &next, 1, &out, NULL);
}

static stint_code begin(stint_attempt *a, struct bank *b, stint_tx_fn fn)
{
    return b->answer = stint_attempt_prepare(a, STINT_ATOMIC, fn, b, &b->err);
}

/* What everybody else sees. */
static void look(struct bank *b)
{
    PGconn *c = connect_direct(b->schema);

    snprintf(b->during, sizeof(b->during), "%d", number(c, "SELECT count(*) FROM ledger"));
    PQfinish(c);
}

/* ---- success
 * ------------------------------------------------------------------------------------- */

static stint_code work(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    look(b);
    return STINT_OK;
}

static void what_was_written_commits_with_the_success(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, work);
    assert_int_equal(b.answer, STINT_OK);
    assert_string_equal(b.during, "0");
    assert_int_equal(ledger(&b), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    assert_int_equal(atomic_load(&b.runs), 1);
    assert_int_equal(atomic_load(&b.completed), 1);
    assert_int_equal(atomic_load(&b.lost), 0);
    bank_close(&b);
}

static stint_code work_with_result(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    return stint_attempt_complete(a, "{\"sum\":5}", 9);
}

static stint_code work_and_finish(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    b->second = stint_attempt_finish_with(a, pay_and_complete, b, &b->err);
    look(b);
    return STINT_ENOMEM; /* does not matter any more */
}

static void a_result_goes_with_it(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, work_with_result);
    CHECK_MEMBER(&b.k, b.job.id, "result", "{\"sum\":5}");
    assert_int_equal(ledger(&b), 1);
    bank_close(&b);
    bank_run(&b, work_and_finish);
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(b.second, STINT_OK);
    assert_string_equal(b.during, "2"); /* both functions' writes, at once */
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, b.job.id, "result", "\"paid\"");
    assert_int_equal(atomic_load(&b.completed), 1);
    bank_close(&b);
}

static stint_code work_and_book_a_failure(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    b->second = stint_attempt_finish_with(a, pay_and_fail, b, &b->err);
    return STINT_OK;
}

/* Who says it in finish_with means it. */
static void a_failure_can_be_committed_with_what_was_written(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, work_and_book_a_failure);
    assert_int_equal(b.second, STINT_OK);
    assert_int_equal(ledger(&b), 2);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"failed\"");
    bank_close(&b);
}

/* ---- anything else
 * -------------------------------------------------------------------------------- */

static stint_code work_in_vain(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    return STINT_ESTORE;
}

static void a_returned_error_takes_it_back_and_the_job_is_retried(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, work_in_vain);
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(atomic_load(&b.paid), 1);
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"retrying\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "1");
    bank_close(&b);
}

static stint_code fail_once(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    return atomic_load(&b->runs) == 1 ? stint_attempt_fail(a, STINT_RETRY, 0, "again") : STINT_OK;
}

static stint_code fail_for_good(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "never");
}

static stint_code snooze(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    return stint_attempt_snooze(a, 3600 * 1000);
}

static void so_does_whatever_else_is_said(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, fail_once);
    assert_int_equal(atomic_load(&b.runs), 2);
    assert_int_equal(ledger(&b), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bank_close(&b);
    bank_run(&b, fail_for_good);
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"failed\"");
    CHECK_MEMBER(&b.k, b.job.id, "error", "{\"kind\":\"permanent\",\"message\":\"never\"}");
    bank_close(&b);
    bank_run(&b, snooze);
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"scheduled\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "0");
    bank_close(&b);
}

static stint_code finish_then_regret(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    b->second = stint_attempt_finish_with(a, pay_and_regret, b, &b->err);
    return STINT_OK; /* it has nothing open any more: a plain success */
}

/* finish_with ends the transaction whatever comes of it. */
static void a_finish_that_fails_takes_back_the_whole(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, finish_then_regret);
    assert_int_equal(b.second, STINT_ESTATE);
    assert_int_equal(atomic_load(&b.paid), 2);
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bank_close(&b);
}

static stint_code until_aborted(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    atomic_store(&b->go, 1);
    while (!stint_attempt_aborted(a))
        usleep(500);
    return STINT_OK; /* too late for that */
}

static void a_cancelled_attempt_commits_nothing(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, for_long(), until_aborted);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    OK(stint_cancel(b.k.st, b.job.id, NULL));
    assert_string_equal(kit_wait(&b.k, b.job.id), "cancelled");
    kit_stop(b.w);
    assert_int_equal(atomic_load(&b.paid), 1);
    assert_int_equal(ledger(&b), 0);
    bank_close(&b);
}

/* ---- others
 * ------------------------------------------------------------------------------------------ */

static stint_code until_told(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    atomic_store(&b->go, 1);
    while (atomic_load(&b->go) != 2 && !stint_attempt_aborted(a))
        usleep(500);
    return STINT_OK;
}

static void its_lease_is_renewed_while_the_transaction_is_open(void **state)
{
    stint_worker_options opt = for_long();
    struct st_reaped reaped[4];
    struct bank b;
    size_t n;

    (void)state;
    opt.lease_ms = 1500;
    bank_open(&b, opt, until_told);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.renewed) >= 5); /* more than a lease */
    assert_int_equal(atomic_load(&b.go), 1);
    OK(st_store_reap(b.k.store, 0, st_slice_cstr("other"), reaped, 4, &n, NULL));
    assert_int_equal(n, 0);
    atomic_store(&b.go, 2);
    assert_string_equal(kit_wait(&b.k, b.job.id), "succeeded");
    kit_stop(b.w);
    assert_int_equal(atomic_load(&b.runs), 1);
    assert_int_equal(ledger(&b), 1);
    bank_close(&b);
}

/* Even if its lease has ended: the transaction holds it. */
static void nobody_can_take_the_job_while_the_transaction_is_open(void **state)
{
    struct st_claim_req req = {.worker = st_slice_cstr("thief"), .lease_us = ST_HOUR};
    struct st_reaped reaped[4];
    struct st_job *stolen = NULL;
    enum st_refusal why;
    struct bank b;
    size_t n;

    (void)state;
    bank_open(&b, for_long(), until_told);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    req.now_us = st_store_now(b.k.store) + ST_HOUR;
    assert_int_equal(st_store_acquire(b.k.store, st_slice_cstr(b.job.id), &req, &stolen, &why, NULL), STINT_EAGAIN);
    OK(st_store_reap(b.k.store, req.now_us, st_slice_cstr("thief"), reaped, 4, &n, NULL));
    assert_int_equal(n, 0);
    atomic_store(&b.go, 2);
    assert_string_equal(kit_wait(&b.k, b.job.id), "succeeded");
    kit_stop(b.w);
    assert_int_equal(ledger(&b), 1);
    bank_close(&b);
}

static stint_code when_told(stint_attempt *a, struct bank *b)
{
    atomic_store(&b->go, 1);
    while (atomic_load(&b->go) != 2)
        usleep(500);
    begin(a, b, pay);
    return STINT_OK;
}

static void a_job_that_was_lost_before_is_not_begun(void **state)
{
    struct st_job *stolen;
    struct bank b;

    (void)state;
    bank_open(&b, for_long(), when_told);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    stolen = kit_steal(&b.k, b.job.id);
    atomic_store(&b.go, 2);
    kit_stop(b.w);
    assert_int_equal(b.answer, STINT_ELOST);
    assert_int_equal(atomic_load(&b.paid), 0);
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "worker", "\"thief\"");
    st_job_free(stolen);
    bank_close(&b);
}

/* The server ends the transaction's session. */
static void cut(struct bank *b)
{
    char text[96];

    snprintf(text, sizeof(text), "SELECT pg_terminate_backend(%d)", b->pid);
    sql(b->db, text);
    snprintf(text, sizeof(text), "SELECT count(*) FROM pg_stat_activity WHERE pid = %d", b->pid);
    UNTIL(number(b->db, text) == 0);
}

static void a_connection_that_was_cut_commits_nothing(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, for_long(), until_told);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    cut(&b);
    atomic_store(&b.go, 2);
    UNTIL(kit_is(&b.k, b.job.id, "state", "\"retrying\""));
    kit_stop(b.w);
    assert_int_equal(ledger(&b), 0);
    assert_int_equal(atomic_load(&b.completed), 0);
    bank_close(&b);
}

static void an_attempt_that_was_lost_meanwhile_commits_nothing(void **state)
{
    struct st_job *stolen;
    struct bank b;

    (void)state;
    bank_open(&b, for_long(), until_told);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    cut(&b); /* nothing holds it any more */
    stolen = kit_steal(&b.k, b.job.id);
    atomic_store(&b.go, 2);
    kit_stop(b.w);
    assert_int_equal(ledger(&b), 0);
    assert_int_equal(atomic_load(&b.completed), 0);
    CHECK_MEMBER(&b.k, b.job.id, "worker", "\"thief\"");
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"running\"");
    kit_finish(&b.k, stolen);
    st_job_free(stolen);
    bank_close(&b);
}

static stint_code together(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    atomic_fetch_add(&b->go, 1);
    while (atomic_load(&b->go) < 4) /* all of them are open at once */
        usleep(500);
    return STINT_OK;
}

static void every_slot_has_a_transaction_of_its_own(void **state)
{
    stint_worker_options opt = once();
    struct bank b;

    (void)state;
    opt.slots = 4;
    bank_open(&b, opt, together);
    kit_add_many(&b.k, "t", 3);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(atomic_load(&b.runs), 4);
    assert_int_equal(ledger(&b), 4);
    assert_int_equal(atomic_load(&b.completed), 4);
    bank_close(&b);
}

/* ---- how it may be used
 * -------------------------------------------------------------------------------- */

static stint_code begin_twice(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay);
    b->second = stint_attempt_prepare(a, STINT_ATOMIC, pay, b, &b->err);
    if (b->second == STINT_ESTATE)
        b->second = stint_attempt_prepare(a, STINT_STAGED, pay, b, &b->err);
    return STINT_OK;
}

static void there_is_one_at_a_time(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, begin_twice);
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(b.second, STINT_ESTATE);
    assert_int_equal(ledger(&b), 1);
    bank_close(&b);
}

static stint_code regret_and_begin_again(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay_and_regret);
    b->second = stint_attempt_prepare(a, STINT_ATOMIC, pay, b, &b->err);
    return STINT_OK;
}

static void one_that_did_not_begin_can_be_begun_again(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, regret_and_begin_again);
    assert_int_equal(b.answer, STINT_ESTATE);
    assert_int_equal(b.second, STINT_OK);
    assert_int_equal(ledger(&b), 1);
    bank_close(&b);
}

static stint_code commit_it(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    PQclear(PQexec(stint_pq_tx(tx), "ROLLBACK"));
    return STINT_OK;
}

static stint_code break_it(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    PQclear(PQexec(stint_pq_tx(tx), "SELECT 1 / 0"));
    return STINT_OK;
}

static stint_code meddle(stint_attempt *a, struct bank *b)
{
    begin(a, b, commit_it);
    b->second = stint_attempt_prepare(a, STINT_ATOMIC, break_it, b, &b->err);
    return STINT_OK;
}

static void a_function_that_ends_or_breaks_its_transaction_is_told_so(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, meddle);
    assert_int_equal(b.answer, STINT_EINVAL);
    assert_int_equal(b.second, STINT_EINVAL);
    assert_non_null(strstr(b.err.message, "failed"));
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bank_close(&b);
}

static stint_code work_staged(stint_attempt *a, struct bank *b)
{
    b->answer = stint_attempt_prepare(a, STINT_STAGED, pay, b, &b->err);
    look(b);
    b->second = stint_attempt_finish_with(a, pay_and_complete, b, &b->err);
    return STINT_OK;
}

static void staged_is_two_transactions_here_too(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, work_staged);
    assert_int_equal(b.answer, STINT_OK);
    assert_string_equal(b.during, "1");
    assert_int_equal(b.second, STINT_OK);
    assert_int_equal(ledger(&b), 2);
    CHECK_MEMBER(&b.k, b.job.id, "result", "\"paid\"");
    bank_close(&b);
}

/* ---- jobs
 * ------------------------------------------------------------------------------------------------
 */

static stint_code follow(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay_and_follow);
    b->second = is_there(b, "receipt-1") ? STINT_OK : STINT_ENOTFOUND;
    return STINT_OK;
}

static stint_code follow_in_vain(stint_attempt *a, struct bank *b)
{
    begin(a, b, pay_and_follow);
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "no");
}

static void jobs_added_in_it_exist_if_it_commits(void **state)
{
    struct bank b;

    (void)state;
    bank_run(&b, follow);
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(b.second, STINT_ENOTFOUND); /* not before */
    assert_int_equal(ledger(&b), 1);
    assert_true(is_there(&b, "receipt-1"));
    bank_close(&b);
    bank_run(&b, follow_in_vain);
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(ledger(&b), 0);
    assert_false(is_there(&b, "receipt-1"));
    bank_close(&b);
}

/* ---- the application's own transactions
 * -------------------------------------------------------------------- */

static void enqueue_in(struct bank *b, const char *id, stint_code want)
{
    stint_job job = STINT_JOB_INIT;
    stint_enqueued out = {0};
    stint_error err = {0};

    job.type = "t";
    job.id = id;
    if (stint_pq_enqueue(b->k.st, b->db, &job, 1, &out, &err) != want)
        fail_msg("%s: %s", id, err.message);
    if (want == STINT_OK)
        assert_string_equal(out.id, id);
}

static stint_code nothing(stint_attempt *a, struct bank *b)
{
    (void)a;
    (void)b;
    return STINT_OK;
}

static void a_job_exists_if_and_when_the_application_commits(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, once(), nothing);
    sql(b.db, "BEGIN; INSERT INTO ledger VALUES ('x', 1)");
    enqueue_in(&b, "own-1", STINT_OK);
    assert_false(is_there(&b, "own-1"));
    sql(b.db, "ROLLBACK");
    assert_false(is_there(&b, "own-1"));
    assert_int_equal(ledger(&b), 0);
    sql(b.db, "BEGIN; INSERT INTO ledger VALUES ('x', 1)");
    enqueue_in(&b, "own-2", STINT_OK);
    enqueue_in(&b, "own-3", STINT_OK);
    sql(b.db, "COMMIT");
    assert_int_equal(ledger(&b), 1);
    OK(stint_worker_run(b.w, NULL));
    CHECK_MEMBER(&b.k, "own-2", "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, "own-3", "state", "\"succeeded\"");
    assert_int_equal(atomic_load(&b.runs), 3);
    bank_close(&b);
}

/* Part of it is taken back, as with any other write. */
static void a_savepoint_takes_back_jobs_too(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, once(), nothing);
    sql(b.db, "BEGIN");
    enqueue_in(&b, "own-1", STINT_OK);
    sql(b.db, "SAVEPOINT s");
    enqueue_in(&b, "own-2", STINT_OK);
    sql(b.db, "ROLLBACK TO s; COMMIT");
    assert_true(is_there(&b, "own-1"));
    assert_false(is_there(&b, "own-2"));
    bank_close(&b);
}

static void the_application_is_told_what_is_wrong(void **state)
{
    stint_job job = STINT_JOB_INIT;
    stint_enqueued out;
    stint_error err = {0};
    struct bank b;

    (void)state;
    bank_open(&b, once(), nothing);
    job.type = "t";
    enqueue_in(&b, "no-1", STINT_EINVAL); /* no transaction */
    assert_int_equal(stint_pq_enqueue(b.k.st, NULL, &job, 1, &out, &err), STINT_EINVAL);
    assert_int_equal(stint_pq_enqueue(NULL, b.db, &job, 1, &out, &err), STINT_EINVAL);
    sql(b.db, "BEGIN");
    job.priority = 1 << 20;
    assert_int_equal(stint_pq_enqueue(b.k.st, b.db, &job, 1, &out, &err), STINT_EINVAL);
    enqueue_in(&b, "yes-1", STINT_OK); /* which has harmed nothing */
    sql(b.db, "COMMIT");
    assert_true(is_there(&b, "yes-1"));
    sql(b.db, "BEGIN");
    PQclear(PQexec(b.db, "SELECT 1 / 0"));
    enqueue_in(&b, "no-2", STINT_EINVAL); /* one that has failed already */
    sql(b.db, "ROLLBACK");
    assert_int_equal(PQsendQuery(b.db, "BEGIN; SELECT pg_sleep(0.2)"), 1);
    enqueue_in(&b, "no-3", STINT_EINVAL); /* busy */
    for (PGresult *r; (r = PQgetResult(b.db));)
        PQclear(r);
    sql(b.db, "ROLLBACK");
    sql(b.db, "BEGIN");
    assert_int_equal(PQenterPipelineMode(b.db), 1);
    enqueue_in(&b, "no-4", STINT_EINVAL);
    assert_int_equal(PQexitPipelineMode(b.db), 1);
    sql(b.db, "ROLLBACK");
    assert_int_equal(stint_sqlite_enqueue(b.k.st, NULL, &job, 1, &out, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "postgres"));
    for (int i = 1; i <= 4; i++) {
        char id[8];

        snprintf(id, sizeof(id), "no-%d", i);
        assert_false(is_there(&b, id));
    }
    bank_close(&b);
}

/* It would write on the parent's handle. */
static void a_handle_from_before_a_fork_is_refused(void **state)
{
    stint_job job = STINT_JOB_INIT;
    stint_enqueued out;
    struct bank b;
    int status = -1;
    pid_t pid;

    (void)state;
    bank_open(&b, once(), nothing);
    job.type = "t";
    sql(b.db, "BEGIN");
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(stint_pq_enqueue(b.k.st, b.db, &job, 1, &out, NULL) != STINT_ESTATE);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    enqueue_in(&b, "own-1", STINT_OK); /* the parent's goes on */
    sql(b.db, "COMMIT");
    bank_close(&b);
}

/* ---- SQLite
 * ------------------------------------------------------------------------------------------------
 */

struct small {
    stint_code answer, pq;
    stint_error err;
    int called;
};

static stint_code is_called(stint_attempt *a, stint_tx *tx, void *arg)
{
    struct small *s = arg;

    (void)a;
    s->called++;
    assert_null(stint_pq_tx(tx));
    assert_non_null(stint_sqlite_tx(tx));
    return STINT_OK;
}

static stint_code try_atomic(stint_attempt *a, void *arg)
{
    struct small *s = arg;

    s->answer = stint_attempt_prepare(a, STINT_ATOMIC, is_called, s, &s->err);
    s->pq = stint_attempt_prepare(a, STINT_STAGED, is_called, s, NULL);
    return STINT_OK;
}

static void sqlite_still_cannot(void **state)
{
    stint_worker_options opt = once();
    stint_job job = STINT_JOB_INIT;
    struct small s = {0};
    stint_enqueued out;
    stint_error err = {0};
    stint_worker *w;
    struct kit k;

    (void)state;
    kit_open(&k);
    kit_add(&k, "t", "{}", &out);
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", try_atomic, &s);
    OK(stint_worker_run(w, NULL));
    assert_int_equal(s.answer, STINT_EINVAL);
    assert_non_null(strstr(s.err.message, "sqlite"));
    assert_int_equal(s.pq, STINT_OK);
    assert_int_equal(s.called, 1);
    CHECK_MEMBER(&k, out.id, "state", "\"succeeded\"");
    job.type = "t";
    assert_int_equal(stint_pq_enqueue(k.st, NULL, &job, 1, &out, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "sqlite"));
    stint_worker_free(w);
    kit_close(&k);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_commits_with_the_success),
        cmocka_unit_test(a_result_goes_with_it),
        cmocka_unit_test(a_failure_can_be_committed_with_what_was_written),
        cmocka_unit_test(a_returned_error_takes_it_back_and_the_job_is_retried),
        cmocka_unit_test(so_does_whatever_else_is_said),
        cmocka_unit_test(a_finish_that_fails_takes_back_the_whole),
        cmocka_unit_test(a_cancelled_attempt_commits_nothing),
        cmocka_unit_test(its_lease_is_renewed_while_the_transaction_is_open),
        cmocka_unit_test(nobody_can_take_the_job_while_the_transaction_is_open),
        cmocka_unit_test(a_job_that_was_lost_before_is_not_begun),
        cmocka_unit_test(a_connection_that_was_cut_commits_nothing),
        cmocka_unit_test(an_attempt_that_was_lost_meanwhile_commits_nothing),
        cmocka_unit_test(every_slot_has_a_transaction_of_its_own),
        cmocka_unit_test(there_is_one_at_a_time),
        cmocka_unit_test(one_that_did_not_begin_can_be_begun_again),
        cmocka_unit_test(a_function_that_ends_or_breaks_its_transaction_is_told_so),
        cmocka_unit_test(staged_is_two_transactions_here_too),
        cmocka_unit_test(jobs_added_in_it_exist_if_it_commits),
        cmocka_unit_test(a_job_exists_if_and_when_the_application_commits),
        cmocka_unit_test(a_savepoint_takes_back_jobs_too),
        cmocka_unit_test(the_application_is_told_what_is_wrong),
        cmocka_unit_test(a_handle_from_before_a_fork_is_refused),
        cmocka_unit_test(sqlite_still_cannot),
    };

    if (!getenv("STINT_TEST_PG")) {
        puts("no server: run `scripts/pg-test PROGRAM`");
        return SKIPPED;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
