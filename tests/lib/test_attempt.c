/* SPDX-License-Identifier: Apache-2.0
 *
 * test_attempt.c - what a handler is given, what it may say while it runs, and how it ends.
 */
#include "bench.h"

/* The job's last fence came so many claims after the one that was seen. */
static void check_fence(struct bench *b, const char *id, int claims)
{
    char text[24];

    snprintf(text, sizeof(text), "%lld", (long long)b->fence + claims);
    CHECK_MEMBER(&b->k, id, "fence", text);
}

/* ---- what it is -------------------------------------------------------------------------- */

static stint_code look_around(stint_attempt *a, struct bench *b)
{
    size_t payload, meta;

    assert_string_equal(stint_attempt_payload(a, &payload), "{\"n\":1}");
    assert_string_equal(stint_attempt_meta(a, &meta), "{\"m\":2}");
    assert_int_equal(payload, 7);
    assert_int_equal(meta, 7);
    assert_string_equal(stint_attempt_payload(a, NULL), "{\"n\":1}");
    assert_string_equal(stint_attempt_id(a), "job-1");
    assert_string_equal(stint_attempt_type(a), "t");
    assert_string_equal(stint_attempt_queue(a), "q.sub");
    assert_string_equal(stint_attempt_worker(a), stint_worker_id(b->w));
    assert_int_equal(stint_attempt_number(a), 1);
    assert_int_equal(stint_attempt_max(a), 9);
    b->fence = stint_attempt_fence(a);
    assert_null(stint_attempt_aborted(a));
    snprintf(b->seen, sizeof(b->seen), "%lld", (long long)stint_attempt_deadline_us(a));
    return STINT_OK;
}

static void a_handler_sees_its_job(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_job job = STINT_JOB_INIT;
    int64_t before = st_clock_real_us(), deadline = 0;
    struct bench b;

    (void)state;
    opt.once = 1;
    bench_open(&b, &opt, NULL, look_around);
    job.type = "t";
    job.id = "job-1";
    job.queue = "q.sub";
    job.payload = "{\"n\":1}";
    job.payload_len = 7;
    job.meta = "{\"m\":2}";
    job.max_attempts = 9;
    job.timeout_ms = 60 * 1000;
    OK(stint_enqueue(b.k.st, &job, 1, &b.job, NULL));
    OK(stint_worker_run(b.w, NULL));
    CHECK_MEMBER(&b.k, "job-1", "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, "job-1", "result", "null");
    check_fence(&b, "job-1", 0);
    assert_true(st_parse_i64(st_slice_cstr(b.seen), &deadline));
    assert_true(deadline >= before + 60 * ST_SEC && deadline <= st_clock_real_us() + 60 * ST_SEC);
    bench_close(&b);
}

static stint_code no_deadline(stint_attempt *a, struct bench *b)
{
    (void)b;
    assert_int_equal(stint_attempt_deadline_us(a), 0);
    assert_null(stint_attempt_meta(a, NULL));
    return STINT_OK;
}

static void a_worker_may_have_no_timeout(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct bench b;

    (void)state;
    opt.once = 1;
    opt.timeout_ms = -1;
    bench_open(&b, &opt, NULL, no_deadline);
    kit_add(&b.k, "t", "", &b.job);
    OK(stint_worker_run(b.w, NULL));
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bench_close(&b);
}

/* ---- how it ends ------------------------------------------------------------------------- */

static stint_code complete_twice(stint_attempt *a, struct bench *b)
{
    (void)b;
    OK(stint_attempt_complete(a, "[1]", 3));
    return stint_attempt_complete(a, "{\"v\":1.10}", 10);
}

static void the_last_result_is_kept_byte_for_byte(void **state)
{
    struct bench b;

    (void)state;
    run_once(&b, complete_twice);
    CHECK_MEMBER(&b.k, b.job.id, "result", "{\"v\":1.10}");
    bench_close(&b);
}

static stint_code complete_large(stint_attempt *a, struct bench *b)
{
    char *big = calloc(1, 100 * 1024);
    stint_code rc;

    (void)b;
    memset(big, '7', 100 * 1024);
    rc = stint_attempt_complete(a, big, 100 * 1024);
    free(big);
    return rc;
}

static void a_large_result_goes_to_a_file_beside_the_store(void **state)
{
    char ref[1024], expected[128];
    struct bench b;

    (void)state;
    run_once(&b, complete_large);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    kit_member(&b.k, b.job.id, "result_ref", ref);
    snprintf(expected, sizeof(expected), "\"%s/stint-results/", b.k.dir);
    assert_memory_equal(ref, expected, strlen(expected));
    bench_close(&b);
}

static stint_code complete_too_large(stint_attempt *a, struct bench *b)
{
    size_t n = ((size_t)10 << 20) + 1;
    char *big = calloc(1, n);
    stint_code rc = stint_attempt_complete(a, big, n);

    (void)b;
    free(big);
    assert_int_equal(rc, STINT_EINVAL);
    return STINT_OK;
}

static void a_result_above_the_limit_fails_the_job(void **state)
{
    struct bench b;

    (void)state;
    run_once(&b, complete_too_large);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"failed\"");
    CHECK_MEMBER(&b.k, b.job.id, "error",
                 "{\"kind\":\"result_too_large\",\"message\":\"the result is larger than 10 MiB\"}");
    bench_close(&b);
}

static stint_code return_a_code(stint_attempt *a, struct bench *b)
{
    (void)b;
    OK(stint_attempt_complete(a, "1", 1)); /* taken back by what follows */
    return STINT_ENOMEM;
}

static void a_returned_code_is_a_failure_to_be_tried_again(void **state)
{
    struct bench b;

    (void)state;
    run_once(&b, return_a_code);
    assert_int_equal(atomic_load(&b.runs), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"retrying\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "1");
    CHECK_MEMBER(&b.k, b.job.id, "result", "null");
    CHECK_MEMBER(&b.k, b.job.id, "error",
                 "{\"kind\":\"app_error\",\"message\":\"the handler returned ENOMEM: out of memory\"}");
    bench_close(&b);
}

static stint_code retry_at_once(stint_attempt *a, struct bench *b)
{
    (void)b;
    if (stint_attempt_number(a) == 3)
        return STINT_OK;
    return stint_attempt_fail(a, STINT_RETRY, 0, "not yet");
}

static void a_failure_may_say_when_to_try_again(void **state)
{
    struct bench b;

    (void)state;
    run_once(&b, retry_at_once); /* the policy would wait for ten seconds: once would leave it */
    assert_int_equal(atomic_load(&b.runs), 3);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "3");
    bench_close(&b);
}

static stint_code give_up(stint_attempt *a, struct bench *b)
{
    (void)b;
    assert_int_equal(stint_attempt_fail(a, STINT_SUCCEEDED, -1, "x"), STINT_EINVAL);
    assert_int_equal(stint_attempt_fail(a, STINT_RETRY, -2, "x"), STINT_EINVAL);
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "no such customer");
}

static void a_permanent_failure_is_not_tried_again(void **state)
{
    struct bench b;

    (void)state;
    run_once(&b, give_up);
    assert_int_equal(atomic_load(&b.runs), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"failed\"");
    CHECK_MEMBER(&b.k, b.job.id, "error", "{\"kind\":\"permanent\",\"message\":\"no such customer\"}");
    bench_close(&b);
}

static stint_code snooze_four_times(stint_attempt *a, struct bench *b)
{
    assert_int_equal(stint_attempt_number(a), 1);
    assert_int_equal(stint_attempt_snooze(a, -1), STINT_EINVAL);
    if (atomic_load(&b->runs) == 1)
        b->fence = stint_attempt_fence(a);
    if (atomic_load(&b->runs) <= 4)
        return stint_attempt_snooze(a, 0);
    return STINT_OK;
}

/* max_attempts is 3, so four charged attempts would have ended it. */
static void snoozing_is_not_charged(void **state)
{
    struct bench b;

    (void)state;
    run_once(&b, snooze_four_times);
    assert_int_equal(atomic_load(&b.runs), 5);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "1");
    check_fence(&b, b.job.id, 4);
    bench_close(&b);
}

static stint_code snooze_long(stint_attempt *a, struct bench *b)
{
    (void)b;
    return stint_attempt_snooze(a, 3600 * 1000);
}

static void a_snoozed_job_waits_for_its_time(void **state)
{
    struct bench b;

    (void)state;
    run_once(&b, snooze_long);
    assert_int_equal(atomic_load(&b.runs), 1);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"scheduled\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "0");
    CHECK_MEMBER(&b.k, b.job.id, "error", "null");
    bench_close(&b);
}

static stint_code always_fail(stint_attempt *a, struct bench *b)
{
    (void)b;
    return stint_attempt_fail(a, STINT_RETRY, -1, "as always");
}

/* The worker tries again after an hour, the type at once and five times. */
static void a_type_may_have_its_own_retry_policy(void **state)
{
    stint_handler_options handler = STINT_HANDLER_OPTIONS_INIT;
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_retry slow = STINT_RETRY_INIT, fast = STINT_RETRY_INIT;
    stint_enqueued other;
    struct bench b;

    (void)state;
    slow.backoff = "fixed";
    slow.initial_ms = slow.max_ms = 3600 * 1000;
    fast.initial_ms = 0;
    fast.max_attempts = 5;
    opt.once = 1;
    opt.retry = &slow;
    handler.retry = &fast;
    bench_open(&b, &opt, &handler, always_fail);
    kit_handle(b.w, "u", handle, &b);
    kit_add(&b.k, "t", "{}", &b.job);
    kit_add(&b.k, "u", "{}", &other);
    OK(stint_worker_run(b.w, NULL));
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"failed\"");
    CHECK_MEMBER(&b.k, b.job.id, "attempt", "5");
    CHECK_MEMBER(&b.k, other.id, "state", "\"retrying\"");
    CHECK_MEMBER(&b.k, other.id, "attempt", "1");
    bench_close(&b);
}

/* ---- while it runs ----------------------------------------------------------------------- */

static stint_code report_and_hold(stint_attempt *a, struct bench *b)
{
    assert_int_equal(stint_attempt_progress(a, "{half", 5), STINT_EINVAL);
    OK(stint_attempt_progress(a, "1", 1));
    OK(stint_attempt_progress(a, "{\"done\":3,\"of\":7}", 17));
    while (atomic_load(&b->go) == 0)
        usleep(500);
    OK(stint_attempt_progress(a, "0.9", 3));
    while (atomic_load(&b->go) == 1)
        usleep(500);
    return STINT_OK;
}

static void progress_is_seen_while_the_job_runs(void **state)
{
    struct bench b;

    (void)state;
    bench_open(&b, NULL, NULL, report_and_hold);
    kit_add(&b.k, "t", "{}", &b.job);
    OK(stint_worker_start(b.w, NULL));
    UNTIL(kit_is(&b.k, b.job.id, "progress", "{\"done\":3,\"of\":7}"));
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"running\"");
    atomic_store(&b.go, 1);
    UNTIL(kit_is(&b.k, b.job.id, "progress", "0.9"));
    atomic_store(&b.go, 2);
    assert_string_equal(kit_wait(&b.k, b.job.id), "succeeded");
    kit_stop(b.w);
    bench_close(&b);
}

/* From two threads each, for as long as the store needs to renew a few times. */
static void *report_beside(void *arg)
{
    for (int i = 0; i < 20000; i++)
        OK(stint_attempt_progress(arg, "[1]", 3));
    return NULL;
}

static stint_code report_a_lot(stint_attempt *a, struct bench *b)
{
    pthread_t beside;

    (void)b;
    assert_int_equal(pthread_create(&beside, NULL, report_beside, a), 0);
    report_beside(a);
    pthread_join(beside, NULL);
    return STINT_OK;
}

static void many_attempts_may_report_without_pause(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct bench b;

    (void)state;
    opt.once = 1;
    opt.slots = 8;
    opt.lease_ms = 5000;
    opt.renew_ms = 20;
    bench_open(&b, &opt, NULL, report_a_lot);
    kit_add_many(&b.k, "t", 24);
    kit_add(&b.k, "t", "{}", &b.job);
    OK(stint_worker_run(b.w, NULL));
    assert_int_equal(atomic_load(&b.runs), 25);
    CHECK_MEMBER(&b.k, b.job.id, "state", "\"succeeded\"");
    bench_close(&b);
}

static stint_code talk(stint_attempt *a, struct bench *b)
{
    (void)b;
    OK(stint_attempt_log(a, "fetching"));
    OK(stint_attempt_log(a, "parsing"));
    return stint_attempt_fail(a, STINT_PERMANENT, -1, "cannot parse it");
}

static void log_lines_are_kept_with_the_attempt(void **state)
{
    struct st_job_info info;
    struct bench b;

    (void)state;
    run_once(&b, talk);
    OK(st_store_get(b.k.store, 0, st_slice_cstr(b.job.id), &info, NULL));
    assert_int_equal(info.n_attempts, 1);
    assert_true(st_slice_is(ST_SLICE(info.attempts[0].log_tail, info.attempts[0].log_tail_len), "fetching\nparsing\n"));
    st_job_info_clear(&info);
    bench_close(&b);
}

static char host_log[4096];

static void keep_line(void *arg, stint_log_level level, const char *line)
{
    size_t at = strlen(host_log);

    assert_ptr_equal(arg, host_log);
    assert_true(level >= STINT_LOG_INFO);
    snprintf(host_log + at, sizeof(host_log) - at, "%s\n", line);
}

static void the_log_goes_where_the_host_wants_it(void **state)
{
    struct bench b;

    (void)state;
    stint_log_to(STINT_LOG_INFO, keep_line, host_log);
    run_once(&b, talk);
    stint_log_to(STINT_LOG_INFO, NULL, NULL);
    assert_non_null(strstr(host_log, "event=worker.started"));
    assert_non_null(strstr(host_log, "event=job.log"));
    assert_non_null(strstr(host_log, "line=fetching"));
    assert_non_null(strstr(host_log, "event=job.failed"));
    assert_null(strstr(host_log, "{\\\"n\\\""));
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handler_sees_its_job),
        cmocka_unit_test(a_worker_may_have_no_timeout),
        cmocka_unit_test(the_last_result_is_kept_byte_for_byte),
        cmocka_unit_test(a_large_result_goes_to_a_file_beside_the_store),
        cmocka_unit_test(a_result_above_the_limit_fails_the_job),
        cmocka_unit_test(a_returned_code_is_a_failure_to_be_tried_again),
        cmocka_unit_test(a_failure_may_say_when_to_try_again),
        cmocka_unit_test(a_permanent_failure_is_not_tried_again),
        cmocka_unit_test(snoozing_is_not_charged),
        cmocka_unit_test(a_snoozed_job_waits_for_its_time),
        cmocka_unit_test(a_type_may_have_its_own_retry_policy),
        cmocka_unit_test(progress_is_seen_while_the_job_runs),
        cmocka_unit_test(many_attempts_may_report_without_pause),
        cmocka_unit_test(log_lines_are_kept_with_the_attempt),
        cmocka_unit_test(the_log_goes_where_the_host_wants_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
