/* SPDX-License-Identifier: Apache-2.0
 *
 * test_abort.c - every reason to stop a handler, its lease and its timeout.
 */
#include <poll.h>
#include <sqlite3.h>

#include "bench.h"

/* Sleeps on the descriptor alone. */
static stint_code wait_for_abort(stint_attempt *a, struct bench *b)
{
    struct pollfd p = {.fd = stint_attempt_abort_fd(a), .events = POLLIN};

    assert_true(p.fd >= 0);
    assert_int_equal(stint_attempt_abort_fd(a), p.fd);
    assert_int_equal(poll(&p, 1, 0), 0);
    atomic_store(&b->go, 1);
    assert_int_equal(poll(&p, 1, 30000), 1);
    atomic_store(&b->aborted, stint_attempt_aborted(a));
    return STINT_OK;
}

/* A worker that is in wait_for_abort (or another act that sets go). */
static void start_held(struct bench *b, const stint_worker_options *opt,
                       stint_code (*act)(stint_attempt *a, struct bench *b))
{
    bench_open(b, opt, NULL, act);
    kit_add(&b->k, "t", "{}", &b->job);
    OK(stint_worker_start(b->w, NULL));
    UNTIL(atomic_load(&b->go) == 1);
}

static void check_aborted(struct bench *b, const char *reason)
{
    UNTIL(atomic_load(&b->aborted));
    assert_string_equal(atomic_load(&b->aborted), reason);
}

static stint_worker_options quick(void)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;

    opt.lease_ms = 3000;
    opt.renew_ms = 100;
    return opt;
}

static void a_cancelled_job_is_told_to_stop(void **state)
{
    struct bench b;

    (void)state;
    start_held(&b, NULL, wait_for_abort);
    OK(stint_cancel(b.k.st, b.job.id, NULL));
    check_aborted(&b, "cancelled");
    assert_string_equal(kit_wait(&b.k, b.job.id), "cancelled");
    kit_stop(b.w);
    bench_close(&b);
}

static void a_stolen_job_is_told_to_stop_and_its_outcome_is_not_written(void **state)
{
    stint_worker_options opt = quick();
    struct st_job *stolen;
    struct bench b;

    (void)state;
    start_held(&b, &opt, wait_for_abort);
    stolen = kit_steal(&b.k, b.job.id);
    check_aborted(&b, "taken_by_another_worker");
    kit_stop(b.w);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"running\"");
    CHECK_MEMBER(&b.k, b.job.id, "worker", "\"thief\"");
    st_job_free(stolen);
    bench_close(&b);
}

/* The lease is long: nothing is asked of the store until there is progress to tell. */
static stint_code report_when_told(stint_attempt *a, struct bench *b)
{
    struct pollfd p = {.fd = stint_attempt_abort_fd(a), .events = POLLIN};

    atomic_store(&b->go, 1);
    while (atomic_load(&b->go) != 2)
        usleep(500);
    OK(stint_attempt_progress(a, "1", 1));
    assert_int_equal(poll(&p, 1, 30000), 1);
    atomic_store(&b->aborted, stint_attempt_aborted(a));
    return STINT_OK;
}

static void a_job_that_somebody_else_has_ended_is_told_so(void **state)
{
    struct st_job *stolen;
    char fence[24];
    struct bench b;

    (void)state;
    start_held(&b, NULL, report_when_told);
    stolen = kit_steal(&b.k, b.job.id);
    kit_finish(&b.k, stolen);
    atomic_store(&b.go, 2);
    check_aborted(&b, "already_completed");
    kit_stop(b.w);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    snprintf(fence, sizeof(fence), "%lld", (long long)stolen->fence);
    CHECK_MEMBER(&b.k, b.job.id, "fence", fence);
    CHECK_MEMBER(&b.k, b.job.id, "progress", "null");
    st_job_free(stolen);
    bench_close(&b);
}

static void a_job_that_is_gone_is_told_so(void **state)
{
    struct st_job *stolen;
    struct bench b;
    char *json;

    (void)state;
    start_held(&b, NULL, report_when_told);
    stolen = kit_steal(&b.k, b.job.id);
    kit_finish(&b.k, stolen);
    kit_discard(&b.k, b.job.id);
    atomic_store(&b.go, 2);
    check_aborted(&b, "not_found");
    kit_stop(b.w);
    assert_int_equal(stint_get(b.k.st, b.job.id, &json, NULL), STINT_ENOTFOUND);
    st_job_free(stolen);
    bench_close(&b);
}

static void a_stopping_worker_tells_its_handlers_and_gives_the_attempt_back(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct bench b;

    (void)state;
    opt.shutdown_ms = -1;
    start_held(&b, &opt, wait_for_abort);
    kit_stop(b.w);
    check_aborted(&b, "shutdown");
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"pending\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "0");
    bench_close(&b);
}

static stint_code finish_while_stopping(stint_attempt *a, struct bench *b)
{
    atomic_store(&b->go, 1);
    while (!stint_attempt_aborted(a))
        usleep(500);
    return stint_attempt_complete(a, "\"done all the same\"", 19);
}

static void a_handler_that_finishes_all_the_same_has_the_last_word(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct bench b;

    (void)state;
    opt.shutdown_ms = -1;
    start_held(&b, &opt, finish_while_stopping);
    kit_stop(b.w);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, b.job.id, "result", "\"done all the same\"");
    bench_close(&b);
}

static stint_code wait_for_go(stint_attempt *a, struct bench *b)
{
    atomic_store(&b->go, 1);
    while (atomic_load(&b->go) != 2)
        usleep(500);
    assert_null(stint_attempt_aborted(a));
    return STINT_OK;
}

static void *go_on(void *arg)
{
    struct bench *b = arg;

    usleep(20 * 1000);
    atomic_store(&b->go, 2);
    return NULL;
}

static void a_stopping_worker_lets_what_runs_end(void **state)
{
    struct bench b;
    pthread_t t;

    (void)state;
    start_held(&b, NULL, wait_for_go);
    assert_int_equal(pthread_create(&t, NULL, go_on, &b), 0);
    kit_stop(b.w);
    pthread_join(t, NULL);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bench_close(&b);
}

static void a_handler_past_its_timeout_is_told_and_its_job_tried_again(void **state)
{
    stint_handler_options handler = STINT_HANDLER_OPTIONS_INIT;
    struct bench b;

    (void)state;
    handler.lease_ms = 1000;
    handler.timeout_ms = 50;
    bench_open(&b, NULL, &handler, wait_for_abort);
    kit_add(&b.k, "t", "{}", &b.job);
    OK(stint_worker_start(b.w, NULL));
    check_aborted(&b, "timeout");
    UNTIL(kit_is(&b.k, b.job.id, "state", "\"retrying\""));
    CHECK_MEMBER(&b.k, b.job.id, "error", "{\"kind\":\"timeout\",\"message\":\"it did not end within its timeout\"}");
    kit_stop(b.w);
    bench_close(&b);
}

static sqlite3 *lock_store(struct kit *k)
{
    char path[96];
    sqlite3 *db;

    snprintf(path, sizeof(path), "%s/stint.db", k->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static void a_lease_that_cannot_be_renewed_ends_by_our_own_clock(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct bench b;
    sqlite3 *db;

    (void)state;
    opt.lease_ms = 600;
    start_held(&b, &opt, wait_for_abort);
    db = lock_store(&b.k);
    check_aborted(&b, "error");
    sqlite3_close(db);
    UNTIL(kit_is(&b.k, b.job.id, "state", "\"retrying\""));
    kit_stop(b.w);
    bench_close(&b);
}

/* The worker's lease is a minute: only the type's own can make the store wait so short. */
static void a_type_may_have_its_own_lease(void **state)
{
    stint_handler_options handler = STINT_HANDLER_OPTIONS_INIT;
    struct st_job_info info;
    int64_t first;
    struct bench b;

    (void)state;
    handler.lease_ms = 2000;
    handler.renew_ms = 100;
    bench_open(&b, NULL, &handler, wait_for_go);
    kit_add(&b.k, "t", "{}", &b.job);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(atomic_load(&b.go) == 1);
    OK(st_store_get(b.k.store, 0, st_slice_cstr(b.job.id), &info, NULL));
    first = info.lease_until_us;
    assert_true(first <= st_store_now(b.k.store) + 2 * ST_SEC);
    for (int renewed = 0; renewed < 3; usleep(1000)) {
        st_job_info_clear(&info);
        OK(st_store_get(b.k.store, 0, st_slice_cstr(b.job.id), &info, NULL));
        renewed += info.lease_until_us > first;
        first = info.lease_until_us;
    }
    st_job_info_clear(&info);
    atomic_store(&b.go, 2);
    assert_string_equal(kit_wait(&b.k, b.job.id), "succeeded");
    kit_stop(b.w);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cancelled_job_is_told_to_stop),
        cmocka_unit_test(a_stolen_job_is_told_to_stop_and_its_outcome_is_not_written),
        cmocka_unit_test(a_job_that_somebody_else_has_ended_is_told_so),
        cmocka_unit_test(a_job_that_is_gone_is_told_so),
        cmocka_unit_test(a_stopping_worker_tells_its_handlers_and_gives_the_attempt_back),
        cmocka_unit_test(a_handler_that_finishes_all_the_same_has_the_last_word),
        cmocka_unit_test(a_stopping_worker_lets_what_runs_end),
        cmocka_unit_test(a_handler_past_its_timeout_is_told_and_its_job_tried_again),
        cmocka_unit_test(a_lease_that_cannot_be_renewed_ends_by_our_own_clock),
        cmocka_unit_test(a_type_may_have_its_own_lease),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
