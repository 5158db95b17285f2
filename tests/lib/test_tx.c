/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tx.c - a handler's writes and its job's outcome: both or neither.
 *
 * The application's table, `ledger`, lives in the store's file.
 */
#include <sqlite3.h>
#include <sys/stat.h>

#include "kit.h"
#include "lib/lib.h"
#include "stint_sqlite.h"

struct bank {
    struct kit k;
    sqlite3 *db; /* the application's own connection */
    stint_worker *w;
    stint_enqueued job;
    stint_code (*act)(stint_attempt *a, struct bank *b);
    stint_tx_fn in_tx;
    stint_code answer; /* of prepare or finish_with */
    stint_error err;
    atomic_int runs, completed, lost, renewed, go;
};

static void run_sql(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

static sqlite3 *open_db(const struct kit *k)
{
    char path[96];
    sqlite3 *db;

    snprintf(path, sizeof(path), "%s/stint.db", k->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

static int rows(struct bank *b, const char *sql)
{
    sqlite3_stmt *st;
    int n;

    assert_int_equal(sqlite3_prepare_v2(b->db, sql, -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    n = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    return n;
}

static int ledger(struct bank *b)
{
    return rows(b, "SELECT count(*) FROM ledger");
}

static void complain(void *arg, enum st_severity sev, const char *what, const char *remedy)
{
    (void)remedy;
    if (sev == ST_BAD) {
        print_error("store: %s\n", what);
        (*(int *)arg)++;
    }
}

/* The store's own checks, its counts among them. */
static void check_store(struct bank *b)
{
    int bad = 0;

    OK(st_store_check(b->k.store, complain, &bad, NULL));
    assert_int_equal(bad, 0);
}

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
    if (e->kind == STINT_EVENT_ATTEMPT_ALREADY_COMPLETED ||
        e->kind == STINT_EVENT_ATTEMPT_TAKEN_BY_ANOTHER_WORKER)
        atomic_fetch_add(&b->lost, 1);
    if (e->kind == STINT_EVENT_ATTEMPT_LEASE_RENEWED)
        atomic_fetch_add(&b->renewed, 1);
}

static void bank_open(struct bank *b, int once, stint_code (*act)(stint_attempt *a, struct bank *b))
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;

    memset(b, 0, sizeof(*b));
    kit_open(&b->k);
    b->act = act;
    opt.once = once;
    opt.event = on_event;
    opt.event_arg = b;
    b->w = kit_worker(&b->k, &opt);
    kit_handle(b->w, "t", handle, b);
    b->db = open_db(&b->k);
    run_sql(b->db, "CREATE TABLE ledger (job TEXT, amount INTEGER)");
    kit_add(&b->k, "t", "{}", &b->job);
}

static void bank_close(struct bank *b)
{
    check_store(b);
    sqlite3_close(b->db);
    stint_worker_free(b->w);
    kit_close(&b->k);
}

/* ---- in the transaction ------------------------------------------------------------------ */

static stint_code pay(stint_attempt *a, stint_tx *tx, void *arg)
{
    sqlite3_stmt *st;

    (void)arg;
    assert_int_equal(
        sqlite3_prepare_v2(stint_sqlite_tx(tx), "INSERT INTO ledger VALUES (?1, 5)", -1, &st, NULL),
        SQLITE_OK);
    sqlite3_bind_text(st, 1, stint_attempt_id(a), -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(st), SQLITE_DONE);
    sqlite3_finalize(st);
    return STINT_OK;
}

static stint_code pay_and_complete(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    return stint_attempt_complete(a, "\"paid\"", 6);
}

static stint_code pay_and_regret(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay_and_complete(a, tx, arg);
    return STINT_ESTATE;
}

static stint_code pay_and_fail(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "booked as failed");
}

static stint_code pay_and_snooze(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    return stint_attempt_snooze(a, 3600 * 1000);
}

static stint_code pay_and_roll_back(stint_attempt *a, stint_tx *tx, void *arg)
{
    pay(a, tx, arg);
    run_sql(stint_sqlite_tx(tx), "ROLLBACK");
    return STINT_OK;
}

static stint_code pay_and_follow(stint_attempt *a, stint_tx *tx, void *arg)
{
    stint_job next = STINT_JOB_INIT;
    stint_enqueued out;

    pay(a, tx, arg);
    next.type = "receipt";
    next.id = "receipt-1";
    OK(stint_tx_enqueue(tx, &next, 1, &out, NULL));
    assert_string_equal(out.id, "receipt-1");
    next.priority = 1 << 20;
    assert_int_equal(stint_tx_enqueue(tx, &next, 1, &out, NULL), STINT_EINVAL);
    return arg ? *(stint_code *)arg : STINT_OK;
}

/* ---- finish ------------------------------------------------------------------------------ */

static stint_code finish(stint_attempt *a, struct bank *b)
{
    b->answer = stint_attempt_finish_with(a, b->in_tx, NULL, &b->err);
    return STINT_OK;
}

static void finish_once(struct bank *b, stint_tx_fn fn)
{
    bank_open(b, 1, finish);
    b->in_tx = fn;
    OK(stint_worker_run(b->w, NULL));
}

static void a_handlers_write_commits_with_the_outcome(void **state)
{
    struct bank b;

    (void)state;
    finish_once(&b, pay_and_complete);
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(ledger(&b), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, b.job.id, "result", "\"paid\"");
    assert_int_equal(atomic_load(&b.completed), 1);
    bank_close(&b);
}

static void without_a_word_the_outcome_is_success(void **state)
{
    struct bank b;

    (void)state;
    finish_once(&b, pay);
    assert_int_equal(b.answer, STINT_OK);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, b.job.id, "result", "null");
    bank_close(&b);
}

static void a_failure_and_a_snooze_can_be_committed_too(void **state)
{
    struct bank b;

    (void)state;
    finish_once(&b, pay_and_fail);
    assert_int_equal(ledger(&b), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"failed\"");
    CHECK_MEMBER(&b.k, b.job.id, "error",
                 "{\"kind\":\"permanent\",\"message\":\"booked as failed\"}");
    bank_close(&b);
    finish_once(&b, pay_and_snooze);
    assert_int_equal(ledger(&b), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"scheduled\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "0");
    assert_int_equal(atomic_load(&b.runs), 1);
    bank_close(&b);
}

static stint_code regret_then_fail(stint_attempt *a, struct bank *b)
{
    b->answer = stint_attempt_finish_with(a, pay_and_regret, NULL, &b->err);
    assert_int_equal(stint_attempt_outcome(a), STINT_UNDECIDED);
    assert_null(stint_attempt_result(a, NULL));
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "changed its mind");
}

static void a_function_that_fails_takes_everything_back(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, regret_then_fail);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(b.answer, STINT_ESTATE);
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"failed\"");
    CHECK_MEMBER(&b.k, b.job.id, "error",
                 "{\"kind\":\"permanent\",\"message\":\"changed its mind\"}");
    bank_close(&b);
}

static stint_code finish_and_go_on(stint_attempt *a, struct bank *b)
{
    OK(stint_attempt_finish_with(a, pay_and_complete, NULL, &b->err));
    assert_int_equal(stint_attempt_complete(a, "1", 1), STINT_ESTATE);
    assert_int_equal(stint_attempt_fail(a, STINT_RETRY, -1, "late"), STINT_ESTATE);
    assert_int_equal(stint_attempt_snooze(a, 1), STINT_ESTATE);
    assert_int_equal(stint_attempt_finish_with(a, pay, NULL, &b->err), STINT_ESTATE);
    assert_int_equal(stint_attempt_prepare(a, STINT_STAGED, pay, NULL, &b->err), STINT_ESTATE);
    assert_int_equal(stint_attempt_outcome(a), STINT_SUCCEEDED);
    return STINT_ENOMEM; /* does not matter any more */
}

static void what_is_committed_cannot_be_taken_back(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish_and_go_on);
    OK(stint_worker_run(b.w, NULL));
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, b.job.id, "result", "\"paid\"");
    assert_int_equal(ledger(&b), 1);
    assert_int_equal(atomic_load(&b.completed), 1);
    bank_close(&b);
}

static stint_code finish_when_told(stint_attempt *a, struct bank *b)
{
    atomic_store(&b->go, 1);
    while (atomic_load(&b->go) != 2)
        usleep(500);
    b->answer = stint_attempt_finish_with(a, pay_and_complete, NULL, &b->err);
    return STINT_OK;
}

static void a_lost_job_takes_the_handlers_write_with_it(void **state)
{
    struct st_job *stolen;
    struct bank b;

    (void)state;
    bank_open(&b, 0, finish_when_told);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    stolen = kit_steal(&b.k, b.job.id);
    atomic_store(&b.go, 2);
    kit_stop(b.w);
    assert_int_equal(b.answer, STINT_ELOST);
    assert_int_equal(ledger(&b), 0);
    assert_int_equal(atomic_load(&b.completed), 0);
    CHECK_MEMBER(&b.k, b.job.id, "worker", "\"thief\"");
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"running\"");
    st_job_free(stolen);
    bank_close(&b);
}

static stint_code large(stint_attempt *a, stint_tx *tx, void *arg)
{
    char *big = malloc(200 * 1024);
    stint_code rc;

    pay(a, tx, arg);
    memset(big, '8', 200 * 1024);
    rc = stint_attempt_complete(a, big, 200 * 1024);
    free(big);
    return rc;
}

static stint_code finish_large(stint_attempt *a, struct bank *b)
{
    b->answer = stint_attempt_finish_with(a, large, NULL, &b->err);
    return STINT_OK;
}

static void a_large_result_goes_to_a_file_here_too(void **state)
{
    char ref[1024];
    struct stat sb;
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish_large);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(b.answer, STINT_OK);
    kit_member(&b.k, b.job.id, "result_ref", ref);
    ref[strlen(ref) - 1] = '\0';
    assert_int_equal(stat(ref + 1, &sb), 0);
    assert_int_equal(sb.st_size, 200 * 1024);
    bank_close(&b);
}

static stint_code end_the_transaction(stint_attempt *a, struct bank *b)
{
    b->answer = stint_attempt_finish_with(a, pay_and_roll_back, NULL, &b->err);
    return STINT_ENOMEM;
}

static void a_function_must_leave_the_transaction_open(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, end_the_transaction);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(b.answer, STINT_EINVAL);
    assert_non_null(strstr(b.err.message, "transaction"));
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"retrying\"");
    bank_close(&b);
}

static stint_code no_place_for_the_result(stint_attempt *a, struct bank *b)
{
    OK(stint_attempt_log(a, "one"));
    b->answer = stint_attempt_finish_with(a, large, NULL, &b->err);
    OK(stint_attempt_log(a, "two"));
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "no place");
}

static void a_result_that_cannot_be_kept_takes_everything_back(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct st_job_info info;
    struct bank b;

    (void)state;
    bank_open(&b, 1, no_place_for_the_result);
    stint_worker_free(b.w);
    opt.once = 1;
    opt.results_dir = "/proc/there/is/no/such/place";
    b.w = kit_worker(&b.k, &opt);
    kit_handle(b.w, "t", handle, &b);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(b.answer, STINT_ESTORE);
    assert_int_equal(ledger(&b), 0);
    OK(st_store_get(b.k.store, 0, st_slice_cstr(b.job.id), &info, NULL));
    assert_int_equal(info.state, ST_FAILED);
    assert_int_equal(info.n_attempts, 1);
    assert_true(st_slice_is(ST_SLICE(info.attempts[0].log_tail, info.attempts[0].log_tail_len),
                            "one\ntwo\n"));
    st_job_info_clear(&info);
    bank_close(&b);
}

static stint_code talk_and_finish(stint_attempt *a, struct bank *b)
{
    OK(stint_attempt_log(a, "one"));
    assert_int_equal(stint_attempt_finish_with(a, pay_and_regret, NULL, &b->err), STINT_ESTATE);
    OK(stint_attempt_log(a, "two"));
    OK(stint_attempt_finish_with(a, pay_and_fail, NULL, &b->err));
    return STINT_OK;
}

static void the_log_is_committed_with_the_outcome(void **state)
{
    struct st_job_info info;
    struct bank b;

    (void)state;
    bank_open(&b, 1, talk_and_finish);
    OK(stint_worker_run(b.w, NULL));
    OK(st_store_get(b.k.store, 0, st_slice_cstr(b.job.id), &info, NULL));
    assert_int_equal(info.n_attempts, 1);
    assert_true(st_slice_is(ST_SLICE(info.attempts[0].log_tail, info.attempts[0].log_tail_len),
                            "one\ntwo\n"));
    st_job_info_clear(&info);
    bank_close(&b);
}

static stint_code hold_on(stint_attempt *a, void *arg)
{
    struct bank *b = arg;

    (void)a;
    while (atomic_load(&b->go) != 1)
        usleep(500);
    return STINT_OK;
}

/* Ends its job, and stays for three more beats, which the other job's renewals show. */
static stint_code finish_and_linger(stint_attempt *a, struct bank *b)
{
    int before;

    OK(stint_attempt_finish_with(a, pay, NULL, &b->err));
    before = atomic_load(&b->renewed);
    OK(stint_attempt_progress(a, "1", 1));
    UNTIL(atomic_load(&b->renewed) >= before + 3);
    assert_null(stint_attempt_aborted(a));
    atomic_store(&b->go, 1);
    return STINT_OK;
}

static void an_attempt_that_has_ended_its_job_is_not_taken_for_a_loser(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_worker *w;
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish_and_linger);
    opt.once = 1;
    opt.slots = 2;
    opt.lease_ms = 2000;
    opt.renew_ms = 50;
    opt.event = on_event;
    opt.event_arg = &b;
    w = kit_worker(&b.k, &opt);
    kit_handle(w, "t", handle, &b);
    kit_handle(w, "hold", hold_on, &b);
    kit_add_many(&b.k, "hold", 1);
    OK(stint_worker_run(w, NULL));
    assert_int_equal(atomic_load(&b.completed), 2);
    assert_int_equal(atomic_load(&b.lost), 0);
    stint_worker_free(w);
    bank_close(&b);
}

/* ---- prepare ----------------------------------------------------------------------------- */

static stint_code in_two_stages(stint_attempt *a, struct bank *b)
{
    OK(stint_attempt_prepare(a, STINT_STAGED, pay, NULL, &b->err));
    assert_int_equal(rows(b, "SELECT count(*) FROM ledger"),
                     1); /* seen by others while the work goes on */
    return stint_attempt_finish_with(a, pay_and_complete, NULL, &b->err);
}

static void a_staged_attempt_has_two_transactions(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, in_two_stages);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(ledger(&b), 2);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bank_close(&b);
}

static stint_code prepare_when_told(stint_attempt *a, struct bank *b)
{
    atomic_store(&b->go, 1);
    while (atomic_load(&b->go) != 2)
        usleep(500);
    b->answer = stint_attempt_prepare(a, STINT_STAGED, pay, NULL, &b->err);
    return STINT_OK;
}

static void nothing_is_prepared_for_a_lost_job(void **state)
{
    struct st_job *stolen;
    struct bank b;

    (void)state;
    bank_open(&b, 0, prepare_when_told);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    stolen = kit_steal(&b.k, b.job.id);
    atomic_store(&b.go, 2);
    kit_stop(b.w);
    assert_int_equal(b.answer, STINT_ELOST);
    assert_int_equal(ledger(&b), 0);
    st_job_free(stolen);
    bank_close(&b);
}

static stint_code atomically(stint_attempt *a, struct bank *b)
{
    b->answer = stint_attempt_prepare(a, STINT_ATOMIC, pay, NULL, &b->err);
    return STINT_OK;
}

static void an_atomic_attempt_is_refused_naming_the_store(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, atomically);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(b.answer, STINT_EINVAL);
    assert_non_null(strstr(b.err.message, "sqlite"));
    assert_non_null(strstr(b.err.remedy, "STINT_STAGED"));
    assert_int_equal(ledger(&b), 0);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bank_close(&b);
}

/* ---- following jobs ---------------------------------------------------------------------- */

static stint_code follow_up(stint_attempt *a, struct bank *b)
{
    stint_code fail = STINT_ESTATE;
    char *json;

    assert_int_equal(stint_attempt_finish_with(a, pay_and_follow, &fail, &b->err), STINT_ESTATE);
    assert_int_equal(stint_get(b->k.st, "receipt-1", &json, NULL), STINT_ENOTFOUND);
    return stint_attempt_finish_with(a, pay_and_follow, NULL, &b->err);
}

static void a_following_job_exists_if_the_outcome_does(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, follow_up);
    OK(stint_worker_run(b.w, NULL));
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, "receipt-1", "state", "\"pending\"");
    assert_int_equal(ledger(&b), 1);
    bank_close(&b);
}

/* ---- many at once ------------------------------------------------------------------------ */

static stint_code pay_quickly(stint_attempt *a, void *arg)
{
    (void)arg;
    return stint_attempt_finish_with(a, pay_and_complete, NULL, NULL);
}

static stint_code succeed(stint_attempt *a, struct bank *b)
{
    (void)a;
    (void)b;
    return STINT_OK;
}

static void many_slots_finish_in_transactions_beside_others_that_do_not(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_worker *w;
    struct bank b;

    (void)state;
    bank_open(&b, 1, succeed);
    opt.once = 1;
    opt.slots = 4;
    w = kit_worker(&b.k, &opt);
    kit_handle(w, "pay", pay_quickly, NULL);
    kit_handle(w, "*", handle, &b);
    kit_add_many(&b.k, "pay", 100);
    kit_add_many(&b.k, "t", 99);
    OK(stint_worker_run(w, NULL));
    assert_int_equal(atomic_load(&b.runs), 100);
    assert_int_equal(ledger(&b), 100);
    assert_int_equal(rows(&b, "SELECT count(DISTINCT job) FROM ledger"), 100);
    assert_int_equal(rows(&b, "SELECT count(*) FROM job WHERE state = 4"), 200);
    stint_worker_free(w);
    bank_close(&b);
}

/* ---- no answer to the commit ------------------------------------------------------------- */

/* The store's answer to the first call of a handler's transaction is lost. */
static void run_with_fault(struct bank *b, enum st_fault how)
{
    static struct st_fault_plan plan;
    struct st_store *real;

    plan = (struct st_fault_plan){.nth = 1, .how = how};
    bank_open(b, 1, finish);
    b->in_tx = pay_and_complete;
    OK(st_store_open(b->k.url, &(struct st_store_open){.timeout_ms = 5000}, &real, NULL));
    b->w->stores[b->w->n_stores++] = st_store_faulty(real, &plan);
    OK(stint_worker_run(b->w, NULL));
    assert_true(plan.fired);
    assert_string_equal(plan.op, "transact");
}

static void a_commit_whose_answer_was_lost_is_found_out(void **state)
{
    struct bank b;

    (void)state;
    run_with_fault(&b, ST_FAULT_AFTER);
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(ledger(&b), 1);
    assert_int_equal(atomic_load(&b.completed), 1);
    CHECK_MEMBER(&b.k, b.job.id, "result", "\"paid\"");
    bank_close(&b);
}

static void a_transaction_that_did_not_begin_has_changed_nothing(void **state)
{
    struct bank b;

    (void)state;
    run_with_fault(&b, ST_FAULT_BEFORE);
    assert_int_equal(b.answer, STINT_EAGAIN);
    assert_int_equal(ledger(&b), 0);
    bank_close(&b);
}

/* ---- an application's own transaction ---------------------------------------------------- */

static stint_job mail(const char *id)
{
    stint_job job = STINT_JOB_INIT;

    job.type = "mail";
    job.id = id;
    return job;
}

static bool exists(struct bank *b, const char *id)
{
    char *json = NULL;
    stint_code rc = stint_get(b->k.st, id, &json, NULL);

    stint_free(json);
    return rc == STINT_OK;
}

static void jobs_added_in_a_transaction_exist_when_it_commits(void **state)
{
    stint_job jobs[2] = {mail("a"), mail("b")};
    stint_enqueued out[2];
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish);
    run_sql(b.db, "BEGIN IMMEDIATE; INSERT INTO ledger VALUES ('x', 1)");
    OK(stint_sqlite_enqueue(b.k.st, b.db, jobs, 2, out, &b.err));
    assert_string_equal(out[1].id, "b");
    assert_false(exists(&b, "a"));
    run_sql(b.db, "ROLLBACK");
    assert_false(exists(&b, "a"));
    assert_int_equal(ledger(&b), 0);
    run_sql(b.db, "BEGIN; INSERT INTO ledger VALUES ('x', 1)");
    OK(stint_sqlite_enqueue(b.k.st, b.db, jobs, 2, out, &b.err));
    run_sql(b.db, "COMMIT");
    assert_true(exists(&b, "a") && exists(&b, "b"));
    assert_int_equal(ledger(&b), 1);
    bank_close(&b);
}

static void a_batch_that_is_refused_leaves_the_transaction_as_it_was(void **state)
{
    stint_job jobs[2] = {mail("new"), mail("taken")};
    stint_enqueued out[2];
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish);
    OK(stint_enqueue(b.k.st, &jobs[1], 1, out, NULL));
    jobs[1].type = "sms"; /* the id is another job's */
    run_sql(b.db, "BEGIN IMMEDIATE; INSERT INTO ledger VALUES ('x', 1)");
    assert_int_equal(stint_sqlite_enqueue(b.k.st, b.db, jobs, 2, out, &b.err), STINT_EEXISTS);
    run_sql(b.db, "COMMIT");
    assert_int_equal(ledger(&b), 1);
    assert_false(exists(&b, "new"));
    bank_close(&b);
}

static void unique_keys_hold_in_a_transaction_too(void **state)
{
    stint_job job = mail("first"), again = mail("second");
    stint_enqueued out;
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish);
    job.key = again.key = "k";
    run_sql(b.db, "BEGIN IMMEDIATE");
    OK(stint_sqlite_enqueue(b.k.st, b.db, &job, 1, &out, &b.err));
    assert_int_equal(out.duplicate, 0);
    OK(stint_sqlite_enqueue(b.k.st, b.db, &again, 1, &out, &b.err));
    assert_int_equal(out.duplicate, 1);
    assert_string_equal(out.id, "first");
    run_sql(b.db, "COMMIT");
    OK(stint_enqueue(b.k.st, &again, 1, &out, NULL));
    assert_int_equal(out.duplicate, 1);
    bank_close(&b);
}

static void a_transaction_must_be_open_on_the_stores_file(void **state)
{
    stint_job job = mail("a");
    stint_enqueued out;
    struct bank b;
    sqlite3 *other;

    (void)state;
    bank_open(&b, 1, finish);
    assert_int_equal(stint_sqlite_enqueue(b.k.st, b.db, &job, 1, &out, &b.err), STINT_EINVAL);
    assert_non_null(strstr(b.err.message, "no transaction"));
    assert_int_equal(stint_sqlite_enqueue(b.k.st, NULL, &job, 1, &out, &b.err), STINT_EINVAL);
    assert_int_equal(sqlite3_open(":memory:", &other), SQLITE_OK);
    run_sql(other, "BEGIN");
    assert_int_equal(stint_sqlite_enqueue(b.k.st, other, &job, 1, &out, &b.err), STINT_EINVAL);
    assert_non_null(strstr(b.err.message, "not one to the store's file"));
    sqlite3_close(other);
    assert_false(exists(&b, "a"));
    bank_close(&b);
}

static void an_idle_worker_is_woken_by_a_commit_of_the_applications(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_job job = mail("a");
    stint_enqueued out;
    stint_worker *w;
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish);
    b.in_tx = pay;
    opt.poll_ms = 3600 * 1000; /* only a hint can do it */
    w = kit_worker(&b.k, &opt);
    kit_handle(w, "*", handle, &b);
    OK(stint_worker_start(w, NULL));
    assert_string_equal(kit_wait(&b.k, b.job.id), "succeeded");
    run_sql(b.db, "BEGIN IMMEDIATE");
    OK(stint_sqlite_enqueue(b.k.st, b.db, &job, 1, &out, &b.err));
    run_sql(b.db, "COMMIT");
    assert_string_equal(kit_wait(&b.k, "a"), "succeeded");
    kit_stop(w);
    stint_worker_free(w);
    bank_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handlers_write_commits_with_the_outcome),
        cmocka_unit_test(without_a_word_the_outcome_is_success),
        cmocka_unit_test(a_failure_and_a_snooze_can_be_committed_too),
        cmocka_unit_test(a_function_that_fails_takes_everything_back),
        cmocka_unit_test(what_is_committed_cannot_be_taken_back),
        cmocka_unit_test(a_lost_job_takes_the_handlers_write_with_it),
        cmocka_unit_test(a_large_result_goes_to_a_file_here_too),
        cmocka_unit_test(a_function_must_leave_the_transaction_open),
        cmocka_unit_test(a_result_that_cannot_be_kept_takes_everything_back),
        cmocka_unit_test(the_log_is_committed_with_the_outcome),
        cmocka_unit_test(an_attempt_that_has_ended_its_job_is_not_taken_for_a_loser),
        cmocka_unit_test(a_staged_attempt_has_two_transactions),
        cmocka_unit_test(nothing_is_prepared_for_a_lost_job),
        cmocka_unit_test(an_atomic_attempt_is_refused_naming_the_store),
        cmocka_unit_test(a_following_job_exists_if_the_outcome_does),
        cmocka_unit_test(many_slots_finish_in_transactions_beside_others_that_do_not),
        cmocka_unit_test(a_commit_whose_answer_was_lost_is_found_out),
        cmocka_unit_test(a_transaction_that_did_not_begin_has_changed_nothing),
        cmocka_unit_test(jobs_added_in_a_transaction_exist_when_it_commits),
        cmocka_unit_test(a_batch_that_is_refused_leaves_the_transaction_as_it_was),
        cmocka_unit_test(unique_keys_hold_in_a_transaction_too),
        cmocka_unit_test(a_transaction_must_be_open_on_the_stores_file),
        cmocka_unit_test(an_idle_worker_is_woken_by_a_commit_of_the_applications),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
