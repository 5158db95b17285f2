/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sqlite.c - jobs added in a transaction of the application's own.
 */
#include "bank.h"

static stint_code succeed(stint_attempt *a, struct bank *b)
{
    (void)a;
    (void)b;
    return STINT_OK;
}

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
    bank_open(&b, 1, succeed);
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
    bank_open(&b, 1, succeed);
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
    bank_open(&b, 1, succeed);
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
    bank_open(&b, 1, succeed);
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
    bank_open(&b, 1, succeed);
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
        cmocka_unit_test(jobs_added_in_a_transaction_exist_when_it_commits),
        cmocka_unit_test(a_batch_that_is_refused_leaves_the_transaction_as_it_was),
        cmocka_unit_test(unique_keys_hold_in_a_transaction_too),
        cmocka_unit_test(a_transaction_must_be_open_on_the_stores_file),
        cmocka_unit_test(an_idle_worker_is_woken_by_a_commit_of_the_applications),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
