/* SPDX-License-Identifier: Apache-2.0
 *
 * test_decide.c - what is written about an attempt, for everything that can come of it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claim/lease.h"
#include "complete/complete.h"

static struct st_done *done_new(int attempt, int max_attempts)
{
    struct st_done *d = calloc(1, sizeof(*d));

    assert_non_null(d);
    d->job = st_job_new(st_slice_cstr("id/1"), st_slice_cstr("t"), st_slice_cstr("q"), ST_NONE, ST_NONE);
    assert_non_null(d->job);
    d->job->fence = 7;
    d->job->attempt = attempt;
    d->job->policy = st_policy_default;
    d->job->policy.max_attempts = max_attempts;
    d->ran = (struct st_ran)ST_RAN_INIT;
    d->started_boot_us = 100;
    return d;
}

static void success_brings_its_result(void **state)
{
    struct st_done *d = done_new(1, 3);
    struct st_finish f;

    (void)state;
    d->ran.ok = true;
    d->ran.result = strdup("[1]");
    d->ran.result_len = 3;
    assert_true(st_done_decide(d, 0.5, 1100, &f));
    assert_int_equal(f.outcome, ST_OUT_SUCCEEDED);
    assert_int_equal(f.fence, 7);
    assert_int_equal(f.started_ago_us, 1000);
    assert_true(st_slice_is(f.result, "[1]"));
    st_done_free(d);
}

static void a_snoozed_attempt_is_given_back_for_later(void **state)
{
    struct st_done *d = done_new(3, 3);
    struct st_finish f;

    (void)state;
    d->ran.advice = ST_SNOOZE;
    d->ran.retry_after_us = 7;
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_RELEASED); /* though its budget is used up */
    assert_int_equal(f.delay_us, 7);
    assert_int_equal(f.kind, ST_KIND_NONE);
    st_done_free(d);
}

static void a_handler_past_its_timeout_has_failed_whatever_it_says(void **state)
{
    struct st_done *d = done_new(1, 3);
    struct st_finish f;

    (void)state;
    d->ran.ok = true;
    d->ran.aborted = ST_ABORT_TIMEOUT;
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_RETRY);
    assert_int_equal(f.kind, ST_KIND_TIMEOUT);
    st_done_free(d);
}

static void failure_with_budget_left_is_retried_after_the_policys_delay(void **state)
{
    struct st_done *d = done_new(2, 3);
    struct st_finish f;

    (void)state;
    st_ran_fail(&d->ran, ST_KIND_EXIT, "exit status 1");
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_RETRY);
    assert_int_equal(f.delay_us, st_policy_delay(&d->job->policy, 2, 0.5));
    assert_int_equal(f.kind, ST_KIND_EXIT);
    st_done_free(d);
}

static void failure_may_ask_for_its_own_delay(void **state)
{
    struct st_done *d = done_new(1, 3);
    struct st_finish f;

    (void)state;
    st_ran_fail(&d->ran, ST_KIND_APP_ERROR, "later");
    d->ran.retry_after_us = 42;
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_RETRY);
    assert_int_equal(f.delay_us, 42);
    st_done_free(d);
}

static void the_last_attempt_fails_the_job(void **state)
{
    struct st_done *d = done_new(3, 3);
    struct st_finish f;

    (void)state;
    st_ran_fail(&d->ran, ST_KIND_TIMEOUT, "too long");
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_FAILED);
    st_done_free(d);
}

static void no_limit_on_attempts_means_retry_for_ever(void **state)
{
    struct st_done *d = done_new(1000, 0);
    struct st_finish f;

    (void)state;
    st_ran_fail(&d->ran, ST_KIND_TIMEOUT, "too long");
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_RETRY);
    st_done_free(d);
}

static void a_permanent_failure_is_not_retried(void **state)
{
    struct st_done *d = done_new(1, 3);
    struct st_finish f;

    (void)state;
    st_ran_fail(&d->ran, ST_KIND_PERMANENT, "no use");
    d->ran.advice = ST_PERMANENT;
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_FAILED);
    assert_int_equal(f.kind, ST_KIND_PERMANENT);
    st_done_free(d);
}

static void a_lost_attempt_writes_nothing_even_if_it_succeeded(void **state)
{
    static const enum st_abort lost[] = {ST_ABORT_TAKEN, ST_ABORT_NOT_FOUND, ST_ABORT_ALREADY_COMPLETED};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct st_done *d = done_new(1, 3);
        struct st_finish f;

        d->ran.ok = true;
        d->ran.aborted = lost[i];
        assert_false(st_done_decide(d, 0.5, 0, &f));
        st_done_free(d);
    }
}

static void a_stop_by_us_is_given_back_cancelled_or_charged(void **state)
{
    static const struct {
        enum st_abort why;
        enum st_outcome what;
        enum st_kind kind;
    } cases[] = {
        {ST_ABORT_SHUTDOWN, ST_OUT_RELEASED, ST_KIND_NONE},
        {ST_ABORT_CANCELLED, ST_OUT_CANCELLED, ST_KIND_CANCELLED},
        {ST_ABORT_LEASE, ST_OUT_RETRY, ST_KIND_LEASE_EXPIRED},
    };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct st_done *d = done_new(1, 3);
        struct st_finish f;

        st_ran_fail(&d->ran, ST_KIND_KILLED, "killed by signal 15 (SIGTERM)");
        d->ran.aborted = cases[i].why;
        assert_true(st_done_decide(d, 0.5, 0, &f));
        assert_int_equal(f.outcome, cases[i].what);
        assert_int_equal(f.kind, cases[i].kind);
        st_done_free(d);
    }
}

static void large_results_go_to_a_private_file_and_small_ones_stay(void **state)
{
    char dir[] = "/tmp/stint-result-XXXXXX";
    struct st_done *d = done_new(1, 3);
    struct st_finish f;
    struct stat st;

    (void)state;
    assert_non_null(mkdtemp(dir));
    d->ran.ok = true;
    d->ran.result_len = ST_RESULT_INLINE;
    d->ran.result = calloc(1, ST_RESULT_INLINE + 2);
    st_result_settle(d, dir);
    assert_null(d->result_ref);
    d->ran.result_len = ST_RESULT_INLINE + 1;
    st_result_settle(d, dir);
    assert_non_null(d->result_ref);
    assert_int_equal(stat(d->result_ref, &st), 0);
    assert_int_equal(st.st_size, ST_RESULT_INLINE + 1);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_null(f.result.p);
    assert_true(st_slice_is(f.result_ref, d->result_ref));
    st_result_discard(d);
    assert_null(d->result_ref);
    assert_int_equal(rmdir(dir), 0); /* nothing else is left */
    st_done_free(d);
}

static void a_result_that_cannot_be_written_fails_the_attempt(void **state)
{
    struct st_done *d = done_new(1, 3);
    struct st_finish f;

    (void)state;
    d->ran.ok = true;
    d->ran.result_len = ST_RESULT_INLINE + 1;
    d->ran.result = calloc(1, ST_RESULT_INLINE + 1);
    st_result_settle(d, "/proc/no-such-place");
    assert_true(st_done_decide(d, 0.5, 0, &f));
    assert_int_equal(f.outcome, ST_OUT_RETRY);
    assert_int_equal(f.kind, ST_KIND_INTERNAL);
    st_done_free(d);
}

/* Our own deadline comes before the store's, and leaves time to stop. */
static void a_lease_ends_for_us_before_it_ends_for_the_store(void **state)
{
    static const int64_t leases[] = {300 * ST_MS, 2 * ST_SEC, 60 * ST_SEC, ST_HOUR};
    static const int64_t graces[] = {0, 5 * ST_SEC, ST_MIN};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 3; k++) {
            struct st_lease l = st_lease_from(1000, leases[i], 0, graces[k]);

            assert_true(l.renew_at_us > 1000 && l.renew_at_us < l.stop_at_us);
            assert_true(l.stop_at_us < l.kill_at_us);
            assert_true(l.kill_at_us < 1000 + leases[i]);
            assert_true(l.renew_at_us <= 1000 + leases[i] / 2);
        }
    }
    assert_int_equal(st_lease_from(0, 60 * ST_SEC, 20 * ST_SEC, 5 * ST_SEC).stop_at_us, 54 * ST_SEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(success_brings_its_result),
        cmocka_unit_test(a_snoozed_attempt_is_given_back_for_later),
        cmocka_unit_test(a_handler_past_its_timeout_has_failed_whatever_it_says),
        cmocka_unit_test(failure_with_budget_left_is_retried_after_the_policys_delay),
        cmocka_unit_test(failure_may_ask_for_its_own_delay),
        cmocka_unit_test(the_last_attempt_fails_the_job),
        cmocka_unit_test(no_limit_on_attempts_means_retry_for_ever),
        cmocka_unit_test(a_permanent_failure_is_not_retried),
        cmocka_unit_test(a_lost_attempt_writes_nothing_even_if_it_succeeded),
        cmocka_unit_test(a_stop_by_us_is_given_back_cancelled_or_charged),
        cmocka_unit_test(large_results_go_to_a_private_file_and_small_ones_stay),
        cmocka_unit_test(a_result_that_cannot_be_written_fails_the_attempt),
        cmocka_unit_test(a_lease_ends_for_us_before_it_ends_for_the_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
