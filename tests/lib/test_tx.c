/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tx.c - a handler's writes and its job's outcome: both or neither.
 */
#include <sys/stat.h>

#include "bank.h"
#include "lib/lib.h"

/* ---- in the transaction ------------------------------------------------------------------ */

static stint_code pay(stint_attempt *a, stint_tx *tx, void *arg)
{
    sqlite3_stmt *st;

    (void)arg;
    assert_int_equal(sqlite3_prepare_v2(stint_sqlite_tx(tx), "INSERT INTO ledger VALUES (?1, 5)", -1, &st, NULL),
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

static void put_back(const char *path, sqlite3 *db)
{
    sqlite3_backup *copy;
    sqlite3 *was;

    assert_int_equal(sqlite3_open(path, &was), SQLITE_OK);
    copy = sqlite3_backup_init(db, "main", was, "main");
    assert_non_null(copy);
    assert_int_equal(sqlite3_backup_step(copy, -1), SQLITE_DONE);
    assert_int_equal(sqlite3_backup_finish(copy), SQLITE_OK);
    sqlite3_close(was);
}

/* As if a standby that has not got the commit took over: the store is as it was before. */
static stint_code finish_and_lose_it(stint_attempt *a, struct bank *b)
{
    const bool first = atomic_load(&b->runs) == 1;
    char was[96], sql[128];

    snprintf(was, sizeof(was), "%s/was.db", b->k.dir);
    snprintf(sql, sizeof(sql), "VACUUM INTO '%s'", was);
    if (first)
        assert_int_equal(sqlite3_exec(b->db, sql, NULL, NULL, NULL), SQLITE_OK);
    finish(a, b);
    if (first)
        put_back(was, b->db);
    return STINT_OK;
}

static void an_outcome_is_never_there_without_the_handlers_writes(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish_and_lose_it);
    b.in_tx = pay_and_complete;
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(b.answer, STINT_OK);
    assert_int_equal(atomic_load(&b.completed), atomic_load(&b.runs));
    assert_int_equal(rows(&b, "SELECT count(*) FROM job WHERE state = 4"), ledger(&b));
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
    CHECK_MEMBER(&b.k, b.job.id, "error", "{\"kind\":\"permanent\",\"message\":\"booked as failed\"}");
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
    CHECK_MEMBER(&b.k, b.job.id, "error", "{\"kind\":\"permanent\",\"message\":\"changed its mind\"}");
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

/* It would wait for its own lock, and everybody else for it. */
static stint_code pay_in_vain(stint_attempt *a, stint_tx *tx, void *arg)
{
    struct bank *b = arg;

    assert_int_equal(stint_attempt_prepare(a, STINT_STAGED, pay, NULL, &b->err), STINT_ESTATE);
    assert_non_null(strstr(b->err.remedy, "transaction"));
    assert_int_equal(stint_attempt_finish_with(a, pay, NULL, &b->err), STINT_ESTATE);
    return pay_and_complete(a, tx, NULL);
}

static stint_code finish_within(stint_attempt *a, struct bank *b)
{
    OK(stint_attempt_prepare(a, STINT_STAGED, pay_in_vain, b, NULL));
    return stint_attempt_finish_with(a, pay_in_vain, b, NULL);
}

static void a_transaction_within_a_transaction_is_refused(void **state)
{
    struct bank b;

    (void)state;
    bank_open(&b, 1, finish_within);
    OK(stint_worker_run(b.w, NULL));
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    assert_int_equal(ledger(&b), 2);
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
    assert_true(st_slice_is(ST_SLICE(info.attempts[0].log_tail, info.attempts[0].log_tail_len), "one\ntwo\n"));
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
    assert_true(st_slice_is(ST_SLICE(info.attempts[0].log_tail, info.attempts[0].log_tail_len), "one\ntwo\n"));
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
    assert_int_equal(rows(b, "SELECT count(*) FROM ledger"), 1); /* seen by others while the work goes on */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handlers_write_commits_with_the_outcome),
        cmocka_unit_test(an_outcome_is_never_there_without_the_handlers_writes),
        cmocka_unit_test(without_a_word_the_outcome_is_success),
        cmocka_unit_test(a_failure_and_a_snooze_can_be_committed_too),
        cmocka_unit_test(a_function_that_fails_takes_everything_back),
        cmocka_unit_test(what_is_committed_cannot_be_taken_back),
        cmocka_unit_test(a_transaction_within_a_transaction_is_refused),
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
