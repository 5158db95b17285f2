/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_clock.c - durations and times as people write them.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "unit.h"

static void durations_with_units_are_read(void **state)
{
    static const struct {
        const char *s;
        int64_t us;
    } t[] = {
        {"0s", 0},
        {"0d0h0m0s0ms", 0},
        {"90s", 90 * ST_SEC},
        {"1h30m", 90 * ST_MIN},
        {"250ms", 250 * ST_MS},
        {"1m1ms", ST_MIN + ST_MS},
        {"2d", 2 * ST_DAY},
        {"1d2h3m4s5ms", ST_DAY + 2 * ST_HOUR + 3 * ST_MIN + 4 * ST_SEC + 5 * ST_MS},
        {"007s", 7 * ST_SEC},
        {"36500d", 36500 * ST_DAY},
        {"876000h", 36500 * ST_DAY},
        {"00000000000000000000000000000001s", ST_SEC},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        int64_t us = -1;
        stint_error err;

        if (st_duration_parse(st_slice_cstr(t[i].s), &us, &err) != STINT_OK)
            fail_msg("\"%s\": %s", t[i].s, err.message);
        assert_true(us == t[i].us);
    }
}

static void wrong_durations_are_refused_with_the_reason(void **state)
{
    static const struct {
        const char *s, *why;
    } t[] = {
        {"", "is empty"},
        {"90", "without a unit"},
        {"1h30", "without a unit"},
        {"0", "without a unit"},
        {"-5s", "has a sign"},
        {"+5s", "has a sign"},
        {"s", "does not start with a number"},
        {" 5s", "does not start with a number"},
        {"5 s", "has a blank"},
        {"5s ", "has an unknown unit"},
        {"1.5h", "has a fraction"},
        {"1m1h", "the largest first"},
        {"1s1s", "each unit once"},
        {"5ms1s", "the largest first"},
        {"5S", "has an unknown unit"},
        {"5w", "has an unknown unit"},
        {"5min", "has an unknown unit"},
        {"5s-", "has an unknown unit"},
        {"5\xc2\xb5s", "has an unknown unit"},
        {"36501d", "longer than 36500d"},
        {"36500d1ms", "longer than 36500d"},
        {"9223372036854775807d", "longer than 36500d"},
        {"99999999999999999999999999999999999999ms", "longer than 36500d"},
        {"18446744073709551617s", "longer than 36500d"}, /* 2^64 + 1 */
        {"3153600000001ms", "longer than 36500d"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        int64_t us = 4711;
        stint_error err;

        assert_int_equal(st_duration_parse(st_slice_cstr(t[i].s), &us, &err), STINT_EINVAL);
        if (!strstr(err.message, t[i].why))
            fail_msg("\"%s\": %s", t[i].s, err.message);
        assert_true(strlen(err.remedy) > 0);
        assert_true(us == 4711);
    }
    assert_int_equal(st_duration_parse(LIT("5\0s"), &(int64_t){0}, NULL), STINT_EINVAL);
    assert_int_equal(st_duration_parse(LIT("5s\0"), &(int64_t){0}, NULL), STINT_EINVAL);
    assert_int_equal(st_duration_parse(ST_NONE, &(int64_t){0}, NULL), STINT_EINVAL);
}

static void a_long_wrong_duration_is_shown_in_part(void **state)
{
    stint_error err;
    char text[1000];

    (void)state;
    memset(text, '1', sizeof(text));
    st_duration_parse(ST_SLICE(text, sizeof(text)), &(int64_t){0}, &err);
    assert_non_null(strstr(err.message, "1...\" has a number without a unit"));
}

static void durations_are_written_with_the_largest_units_first(void **state)
{
    static const struct {
        int64_t us;
        const char *s;
    } t[] = {
        {0, "0s"},
        {250 * ST_MS, "250ms"},
        {250, "0.25ms"},
        {1, "0.001ms"},
        {1001, "1.001ms"},
        {ST_SEC, "1s"},
        {90 * ST_MIN, "1h30m"},
        {ST_DAY + ST_MS, "1d1ms"},
        {ST_HOUR + 500, "1h0.5ms"},
        {-ST_SEC, "-1s"},
        {-1, "-0.001ms"},
        {INT64_MAX, "106751991d4h54s775.807ms"},
        {INT64_MIN, "-106751991d4h54s775.808ms"},
    };
    char out[ST_DURATION_TEXT];

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        assert_string_equal(st_duration_format(t[i].us, out), t[i].s);
}

static void a_formatted_duration_parses_to_itself(void **state)
{
    char out[ST_DURATION_TEXT];
    int64_t us;

    (void)state;
    for (int64_t ms = 0; ms < 36500 * ST_DAY / ST_MS; ms = ms * 3 + 7) {
        st_duration_format(ms * ST_MS, out);
        assert_int_equal(st_duration_parse(st_slice_cstr(out), &us, NULL), STINT_OK);
        assert_true(us == ms * ST_MS);
    }
}

static void times_with_a_zone_are_read(void **state)
{
    static const struct {
        const char *s, *utc;
    } t[] = {
        {"1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"},
        {"2025-01-01T12:00:00Z", "2025-01-01T12:00:00.000000Z"},
        {"2025-01-01t12:00:00z", "2025-01-01T12:00:00.000000Z"},
        {"2025-01-01 12:00:00Z", "2025-01-01T12:00:00.000000Z"},
        {"2025-01-01T12:00:00+02:00", "2025-01-01T10:00:00.000000Z"},
        {"2025-01-01T00:30:00+01:00", "2024-12-31T23:30:00.000000Z"},
        {"2024-12-31T23:30:00-01:15", "2025-01-01T00:45:00.000000Z"},
        {"2025-01-01T12:00:00-00:00", "2025-01-01T12:00:00.000000Z"},
        {"2025-01-01T12:00:00.1Z", "2025-01-01T12:00:00.100000Z"},
        {"2025-01-01T12:00:00.123456Z", "2025-01-01T12:00:00.123456Z"},
        {"2025-01-01T12:00:00.123456999Z", "2025-01-01T12:00:00.123456Z"},
        {"2025-01-01T12:00:00.000001+23:59", "2024-12-31T12:01:00.000001Z"},
        {"2016-12-31T23:59:60Z", "2016-12-31T23:59:59.000000Z"},
        {"2016-12-31T23:59:60.5Z", "2016-12-31T23:59:59.500000Z"},
        {"2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000000Z"},
        {"2000-02-29T00:00:00Z", "2000-02-29T00:00:00.000000Z"},
        {"0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000000Z"},
        {"1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z"},
        {"9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"},
    };
    char out[ST_TIME_TEXT];

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        int64_t us;
        stint_error err;

        if (st_time_parse(st_slice_cstr(t[i].s), &us, &err) != STINT_OK)
            fail_msg("\"%s\": %s", t[i].s, err.message);
        assert_string_equal(st_time_format(us, out), t[i].utc);
    }
}

static void wrong_times_are_refused_with_the_reason(void **state)
{
    static const struct {
        const char *s, *why;
    } t[] = {
        {"", "not of the form"},
        {"2025-01-01", "not of the form"},
        {"2025-01-01T12:00Z", "not of the form"},
        {"2025-1-01T12:00:00Z", "not of the form"},
        {"+2025-01-01T12:00:00Z", "not of the form"},
        {"2025-01-01X12:00:00Z", "not of the form"},
        {"2025/01/01T12:00:00Z", "not of the form"},
        {"20250101T120000Z", "not of the form"},
        {"10000-01-01T00:00:00Z", "not of the form"},
        {"-001-01-01T00:00:00Z", "not of the form"},
        {"2025-02-29T00:00:00Z", "day that does not exist"},
        {"2025-02-30T00:00:00Z", "day that does not exist"},
        {"1900-02-29T00:00:00Z", "day that does not exist"},
        {"2025-04-31T00:00:00Z", "day that does not exist"},
        {"2025-13-01T00:00:00Z", "day that does not exist"},
        {"2025-00-01T00:00:00Z", "day that does not exist"},
        {"2025-01-00T00:00:00Z", "day that does not exist"},
        {"2025-01-01T24:00:00Z", "time of day that does not exist"},
        {"2025-01-01T12:60:00Z", "time of day that does not exist"},
        {"2025-01-01T12:00:61Z", "time of day that does not exist"},
        {"2025-01-01T12:00:00.Z", "one to nine digits"},
        {"2025-01-01T12:00:00.1234567890Z", "one to nine digits"},
        {"2025-01-01T12:00:00", "must end in Z or an offset"},
        {"2025-01-01T12:00:00.5", "must end in Z or an offset"},
        {"2025-01-01T12:00:00,5Z", "must end in Z or an offset"},
        {"2025-01-01T12:00:00 Z", "must end in Z or an offset"},
        {"2025-01-01T12:00:00Z ", "must end in Z or an offset"},
        {"2025-01-01T12:00:00Zulu", "must end in Z or an offset"},
        {"2025-01-01T12:00:00+0200", "must end in Z or an offset"},
        {"2025-01-01T12:00:00+2:00", "must end in Z or an offset"},
        {"2025-01-01T12:00:00+02:00Z", "must end in Z or an offset"},
        {"2025-01-01T12:00:00+24:00", "must end in Z or an offset"},
        {"2025-01-01T12:00:00+02:60", "must end in Z or an offset"},
        {"0000-01-01T00:00:00+00:01", "outside the years"},
        {"9999-12-31T23:59:59-00:01", "outside the years"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        int64_t us = 4711;
        stint_error err;

        assert_int_equal(st_time_parse(st_slice_cstr(t[i].s), &us, &err), STINT_EINVAL);
        if (!strstr(err.message, t[i].why))
            fail_msg("\"%s\": %s", t[i].s, err.message);
        assert_true(us == 4711);
    }
    assert_int_equal(st_time_parse(LIT("2025-01-01\00012:00:00Z"), &(int64_t){0}, NULL), STINT_EINVAL);
}

/* The C library's calendar is the judge, a time every three months or so, from year 0 to 9999. */
static void times_agree_with_the_c_library(void **state)
{
    char ours[ST_TIME_TEXT], theirs[64];
    int64_t back;

    (void)state;
    for (time_t t = -62167219200; t < 253402300800; t += 31 * 3600 * 24 * 3 + 3721) {
        struct tm tm;
        size_t n;

        gmtime_r(&t, &tm);
        tm.tm_year += 1900;
        n = (size_t)snprintf(theirs, sizeof(theirs), "%04d-", tm.tm_year);
        strftime(theirs + n, sizeof(theirs) - n, "%m-%dT%H:%M:%S.000000Z", &tm);
        st_time_format((int64_t)t * ST_SEC, ours);
        assert_string_equal(ours, theirs);
        assert_int_equal(st_time_parse(st_slice_cstr(ours), &back, NULL), STINT_OK);
        assert_true(back == (int64_t)t * ST_SEC);
    }
}

static void the_ends_of_the_number_range_can_be_written(void **state)
{
    char out[ST_TIME_TEXT];

    (void)state;
    assert_string_equal(st_time_format(INT64_MAX, out), "294247-01-10T04:00:54.775807Z");
    assert_string_equal(st_time_format(INT64_MIN, out), "-290308-12-21T19:59:05.224192Z");
}

static void clocks_count_microseconds(void **state)
{
    int64_t before = (int64_t)time(NULL) - 1, real = st_clock_real_us() / ST_SEC;
    int64_t mono = st_clock_mono_us(), boot = st_clock_boot_us();

    (void)state;
    assert_true(before <= real && real <= (int64_t)time(NULL) + 1);
    assert_true(st_clock_mono_us() >= mono);
    assert_true(boot >= mono); /* what was slept through counts too */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_with_units_are_read),
        cmocka_unit_test(wrong_durations_are_refused_with_the_reason),
        cmocka_unit_test(a_long_wrong_duration_is_shown_in_part),
        cmocka_unit_test(durations_are_written_with_the_largest_units_first),
        cmocka_unit_test(a_formatted_duration_parses_to_itself),
        cmocka_unit_test(times_with_a_zone_are_read),
        cmocka_unit_test(wrong_times_are_refused_with_the_reason),
        cmocka_unit_test(times_agree_with_the_c_library),
        cmocka_unit_test(the_ends_of_the_number_range_can_be_written),
        cmocka_unit_test(clocks_count_microseconds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
