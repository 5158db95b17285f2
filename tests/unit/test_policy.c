/* SPDX-License-Identifier: Apache-2.0
 *
 * test_policy.c - retry delays, budgets, and the text stores keep.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "job/policy.h"
#include "unit.h"

#define CENTURY (36500 * ST_DAY)

/* No jitter, whatever the random number is. */
static struct st_policy policy(enum st_backoff backoff)
{
    struct st_policy p = st_policy_default;

    p.backoff = backoff;
    p.jitter = 0;
    return p;
}

static void the_default_is_three_runs_of_an_hour_and_ten_seconds_doubled(void **state)
{
    const struct st_policy *p = &st_policy_default;

    (void)state;
    assert_int_equal(p->max_attempts, 3);
    assert_int_equal(p->timeout_us, ST_HOUR);
    assert_int_equal(p->backoff, ST_BACKOFF_EXPONENTIAL);
    assert_int_equal(p->initial_us, 10 * ST_SEC);
    assert_int_equal(p->max_us, 300 * ST_SEC);
    assert_true(p->multiplier == 2 && p->jitter == 0.1);
}

static void exponential_doubles_up_to_its_cap(void **state)
{
    static const int64_t want_s[] = {10, 20, 40, 80, 160, 300, 300};
    struct st_policy p = policy(ST_BACKOFF_EXPONENTIAL);

    (void)state;
    for (int i = 0; i < 7; i++)
        assert_int_equal(st_policy_delay(&p, i + 1, 0.7), want_s[i] * ST_SEC);
}

static void linear_grows_by_the_initial_delay_up_to_its_cap(void **state)
{
    struct st_policy p = policy(ST_BACKOFF_LINEAR);

    (void)state;
    assert_int_equal(st_policy_delay(&p, 1, 0), 10 * ST_SEC);
    assert_int_equal(st_policy_delay(&p, 7, 0), 70 * ST_SEC);
    assert_int_equal(st_policy_delay(&p, 31, 0), 300 * ST_SEC);
}

static void fixed_stays_the_same(void **state)
{
    struct st_policy p = policy(ST_BACKOFF_FIXED);

    (void)state;
    assert_int_equal(st_policy_delay(&p, 1, 0), 10 * ST_SEC);
    assert_int_equal(st_policy_delay(&p, 99, 0), 10 * ST_SEC);
}

static void a_list_repeats_its_last_delay(void **state)
{
    struct st_policy p = policy(ST_BACKOFF_LIST);

    (void)state;
    p.n_delays = 3;
    p.delays_us[0] = ST_SEC;
    p.delays_us[1] = 0;
    p.delays_us[2] = ST_HOUR;
    assert_int_equal(st_policy_delay(&p, 1, 0), ST_SEC);
    assert_int_equal(st_policy_delay(&p, 2, 0), 0);
    assert_int_equal(st_policy_delay(&p, 3, 0), ST_HOUR);
    assert_int_equal(st_policy_delay(&p, 4, 0), ST_HOUR);
    p.n_delays = 0;
    assert_int_equal(st_policy_delay(&p, 1, 0), 10 * ST_SEC);
}

/* n^4 + 15 + random(30) * (n + 1), n = retries so far; random(30) is a whole number below 30. */
static void asynq_follows_its_own_formula_without_jitter_or_cap(void **state)
{
    struct st_policy p = policy(ST_BACKOFF_ASYNQ);

    (void)state;
    p.jitter = 0.5;
    assert_int_equal(st_policy_delay(&p, 1, 0), 15 * ST_SEC);
    assert_int_equal(st_policy_delay(&p, 1, 0.999), (15 + 29) * ST_SEC);
    assert_int_equal(st_policy_delay(&p, 3, 0), (16 + 15) * ST_SEC);
    assert_int_equal(st_policy_delay(&p, 3, 0.5), (16 + 15 + 15 * 3) * ST_SEC);
    assert_int_equal(st_policy_delay(&p, 11, 0), (10000 + 15) * ST_SEC);
}

static void jitter_scales_the_delay_both_ways(void **state)
{
    struct st_policy p = policy(ST_BACKOFF_FIXED);

    (void)state;
    p.jitter = 0.25;
    p.initial_us = 1000;
    assert_int_equal(st_policy_delay(&p, 1, 0), 750);
    assert_int_equal(st_policy_delay(&p, 1, 0.5), 1000);
    assert_int_equal(st_policy_delay(&p, 1, 0.75), 1125);
}

static void no_policy_overflows_or_goes_below_nothing(void **state)
{
    static const double units[] = {0, 0.5, 0.9999999};

    (void)state;
    for (int b = ST_BACKOFF_EXPONENTIAL; b <= ST_BACKOFF_LIST; b++) {
        struct st_policy p = policy((enum st_backoff)b);

        p.initial_us = INT64_MAX;
        p.multiplier = 1e300;
        p.max_us = 0;
        p.jitter = 5;
        p.n_delays = 1;
        p.delays_us[0] = INT64_MAX;
        for (size_t u = 0; u < 3; u++) {
            int64_t d = st_policy_delay(&p, INT_MAX, units[u]);

            assert_true(d >= 0 && d <= CENTURY);
        }
    }
}

static void an_attempt_below_one_counts_as_the_first(void **state)
{
    struct st_policy p = policy(ST_BACKOFF_EXPONENTIAL);

    (void)state;
    assert_int_equal(st_policy_delay(&p, 0, 0), 10 * ST_SEC);
    assert_int_equal(st_policy_delay(&p, INT_MIN, 0), 10 * ST_SEC);
}

static void max_attempts_counts_runs_and_zero_is_no_limit(void **state)
{
    (void)state;
    assert_true(st_policy_may_retry(3, 2));
    assert_false(st_policy_may_retry(3, 3));
    assert_false(st_policy_may_retry(1, 1));
    assert_true(st_policy_may_retry(0, INT_MAX));
}

static void names_of_backoffs_can_be_read_back(void **state)
{
    enum st_backoff b;

    (void)state;
    for (int i = ST_BACKOFF_EXPONENTIAL; i <= ST_BACKOFF_LIST; i++) {
        assert_true(st_backoff_parse(st_slice_cstr(st_backoff_name((enum st_backoff)i)), &b));
        assert_int_equal(b, i);
    }
    assert_false(st_backoff_parse(st_slice_cstr("quadratic"), &b));
}

static void the_text_of_a_policy_has_fixed_members(void **state)
{
    struct st_policy p = st_policy_default;
    struct st_buf text;

    (void)state;
    p.n_delays = 2;
    p.delays_us[0] = 5;
    p.delays_us[1] = 0;
    st_buf_init(&text, 4096);
    st_policy_write(&p, &text);
    assert_string_equal(text.p, "{\"max_attempts\":3,\"timeout_us\":3600000000,"
                                "\"backoff\":\"exponential\",\"initial_us\":10000000,"
                                "\"multiplier\":2.0,\"max_us\":300000000,\"jitter\":0.1,"
                                "\"delays_us\":[5,0]}");
    st_buf_clear(&text);
}

static void a_policy_written_is_the_policy_read(void **state)
{
    struct st_policy p = {.max_attempts = 0,
                          .timeout_us = 1,
                          .backoff = ST_BACKOFF_LIST,
                          .initial_us = INT64_MAX,
                          .multiplier = 1.0 / 3,
                          .max_us = 7,
                          .jitter = 0.123456789012345678,
                          .n_delays = ST_DELAYS_MAX};
    struct st_policy back;
    struct st_buf text;

    (void)state;
    for (int i = 0; i < ST_DELAYS_MAX; i++)
        p.delays_us[i] = i * ST_DAY;
    st_buf_init(&text, 4096);
    st_policy_write(&p, &text);
    memset(&back, 0x55, sizeof(back));
    assert_true(st_policy_read(st_buf_view(&text), &back));
    assert_int_equal(back.max_attempts, p.max_attempts);
    assert_int_equal(back.timeout_us, p.timeout_us);
    assert_int_equal(back.backoff, p.backoff);
    assert_int_equal(back.initial_us, p.initial_us);
    assert_true(back.multiplier == p.multiplier && back.jitter == p.jitter);
    assert_int_equal(back.max_us, p.max_us);
    assert_int_equal(back.n_delays, p.n_delays);
    assert_memory_equal(back.delays_us, p.delays_us, sizeof(p.delays_us));
    st_buf_clear(&text);
}

static void what_is_missing_in_the_text_keeps_its_default(void **state)
{
    struct st_policy p;

    (void)state;
    assert_true(st_policy_read(st_slice_cstr(" {\"max_attempts\":9,\"later\":[1]} "), &p));
    assert_int_equal(p.max_attempts, 9);
    assert_int_equal(p.initial_us, st_policy_default.initial_us);
}

static void a_text_that_makes_no_sense_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "null",
        "[]",
        "{\"max_attempts\":-1}",
        "{\"max_attempts\":3000000000}",
        "{\"max_attempts\":1.5}",
        "{\"backoff\":\"never\"}",
        "{\"backoff\":3}",
        "{\"jitter\":\"1\"}",
        "{\"multiplier\":-1}",
        "{\"multiplier\":1e999}",
        "{\"delays_us\":{}}",
        "{\"delays_us\":[1,-1]}",
        "{\"delays_us\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
        "{\"max_attempts\":3",
    };
    struct st_policy p;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(st_policy_read(st_slice_cstr(bad[i]), &p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_three_runs_of_an_hour_and_ten_seconds_doubled),
        cmocka_unit_test(exponential_doubles_up_to_its_cap),
        cmocka_unit_test(linear_grows_by_the_initial_delay_up_to_its_cap),
        cmocka_unit_test(fixed_stays_the_same),
        cmocka_unit_test(a_list_repeats_its_last_delay),
        cmocka_unit_test(asynq_follows_its_own_formula_without_jitter_or_cap),
        cmocka_unit_test(jitter_scales_the_delay_both_ways),
        cmocka_unit_test(no_policy_overflows_or_goes_below_nothing),
        cmocka_unit_test(an_attempt_below_one_counts_as_the_first),
        cmocka_unit_test(max_attempts_counts_runs_and_zero_is_no_limit),
        cmocka_unit_test(names_of_backoffs_can_be_read_back),
        cmocka_unit_test(the_text_of_a_policy_has_fixed_members),
        cmocka_unit_test(a_policy_written_is_the_policy_read),
        cmocka_unit_test(what_is_missing_in_the_text_keeps_its_default),
        cmocka_unit_test(a_text_that_makes_no_sense_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
