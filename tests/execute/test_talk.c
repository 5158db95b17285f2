/* SPDX-License-Identifier: Apache-2.0
 *
 * test_talk.c - lines out of a stream, what they say, what is said to a child, and when a child
 * that died is started again.  No processes.
 */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "execute/frames.h"
#include "execute/supervise.h"
#include "execute/talk.h"

/* ---- lines ----------------------------------------------------------------------- */

static void feed(struct st_frames *f, const char *text, size_t len)
{
    while (len) {
        size_t n = st_frames_put(f, text, len);

        assert_true(n > 0);
        text += n;
        len -= n;
    }
}

static void expect_line(struct st_frames *f, enum st_frames_got kind, const char *text)
{
    struct st_slice line;

    assert_int_equal(st_frames_next(f, &line), kind);
    assert_int_equal(line.len, strlen(text));
    assert_memory_equal(line.p, text, line.len);
}

static void expect_none(struct st_frames *f)
{
    struct st_slice line;

    assert_int_equal(st_frames_next(f, &line), ST_FRAMES_NONE);
}

static void lines_come_whole_however_they_are_cut(void **state)
{
    static const char text[] = "one\n\ntwo three\nfour";
    struct st_slice rest;

    (void)state;
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct st_frames f;
        char got[64] = "";

        st_frames_init(&f, 100);
        for (int part = 0; part < 2; part++) {
            struct st_slice line;

            feed(&f, part ? text + cut : text, part ? strlen(text) - cut : cut);
            while (st_frames_next(&f, &line) == ST_FRAMES_LINE) {
                strncat(got, line.p, line.len);
                strcat(got, "|");
            }
        }
        assert_string_equal(got, "one||two three|");
        assert_true(st_frames_rest(&f, &rest));
        assert_int_equal(rest.len, 4);
        assert_memory_equal(rest.p, "four", 4);
        assert_false(st_frames_rest(&f, &rest));
        st_frames_clear(&f);
    }
}

static void a_line_may_be_as_long_as_the_limit_and_no_longer(void **state)
{
    struct st_frames f;

    (void)state;
    st_frames_init(&f, 4);
    feed(&f, "1234\n12345\n1\n", 13);
    expect_line(&f, ST_FRAMES_LINE, "1234");
    expect_line(&f, ST_FRAMES_CUT, "1234");
    expect_line(&f, ST_FRAMES_LINE, "1");
    assert_int_equal(f.n_dropped, 1);
    st_frames_clear(&f);
}

static void a_line_without_an_end_takes_no_more_memory_than_the_limit(void **state)
{
    enum { LIMIT = 300000, WHOLE = 5000000 };
    struct st_frames f;
    char *many = malloc(WHOLE);
    int cuts = 0;

    (void)state;
    assert_non_null(many);
    memset(many, 'x', WHOLE);
    st_frames_init(&f, LIMIT);
    for (int i = 0; i < 5; i++) {
        size_t at = 0;

        while (at < WHOLE) {
            struct st_slice line;
            enum st_frames_got got;

            at += st_frames_put(&f, many + at, WHOLE - at);
            while ((got = st_frames_next(&f, &line)) != ST_FRAMES_NONE) {
                assert_int_equal(got, ST_FRAMES_CUT);
                assert_int_equal(line.len, LIMIT);
                cuts++;
            }
            assert_in_range(f.cap, 1, LIMIT + 1);
        }
    }
    assert_int_equal(cuts, 1);
    feed(&f, "\nback\n", 6);
    expect_line(&f, ST_FRAMES_LINE, "back");
    expect_none(&f);
    st_frames_clear(&f);
    free(many);
}

/* ---- what a line says ------------------------------------------------------------ */

static struct st_frame parse(const char *line)
{
    struct st_frame f;

    st_frame_parse(st_slice_cstr(line), true, &f);
    return f;
}

static void is_slice(struct st_slice s, const char *text)
{
    assert_int_equal(s.len, strlen(text));
    assert_memory_equal(s.p, text, s.len);
}

static void an_answer_is_ranges_of_its_line(void **state)
{
    struct st_frame f = parse(" {\"task_id\": \"a\\\"b\", \"result\": {\"n\": 1.10, \"n\": "
                              "123456789012345678901234567890}, \"error\": null, \"retry\":true,"
                              "\"retry_after\": 2.25, \"fence\": 9, \"more\": [1]} \r");

    (void)state;
    assert_int_equal(f.kind, ST_FRAME_ANSWER);
    is_slice(f.task_id, "a\\\"b");
    is_slice(f.result, "{\"n\": 1.10, \"n\": 123456789012345678901234567890}");
    is_slice(f.error, "null");
    assert_true(f.retry);
    assert_int_equal(f.retry_after_us, 2250 * ST_MS);
    assert_int_equal(f.fence, 9);
    assert_true(st_frame_id_is(f.task_id, "a\"b"));
    assert_false(st_frame_id_is(f.task_id, "a"));
}

static void kinds_of_lines(void **state)
{
    static const struct {
        const char *line;
        enum st_frame_kind kind;
    } all[] = {
        {"", ST_FRAME_NOISE},
        {"hello", ST_FRAME_NOISE},
        {"{}", ST_FRAME_NOISE},
        {"[]", ST_FRAME_NOISE},
        {"{\"level\":\"info\"}", ST_FRAME_NOISE},
        {"{\"task_id\":7}", ST_FRAME_NOISE},
        {"{\"status\":\"ready\"}", ST_FRAME_STATUS},
        {"{\"status\":\"ready\"} x", ST_FRAME_NOISE},
        {"{\"status\":\"ready\",}", ST_FRAME_NOISE},
        {"{\"status\":\"x\",\"task_id\":\"a\"}", ST_FRAME_ANSWER},
        {"{\"task_id\":\"a\"}", ST_FRAME_ANSWER},
        {"{\"t\\u0061sk_id\":\"a\"}", ST_FRAME_ANSWER},
        {"{\"task_id\":\"a\",\"progress\":1}", ST_FRAME_PROGRESS},
        {"{\"task_id\":\"a\",\"progress\":1,\"result\":2}", ST_FRAME_ANSWER},
        {"{\"task_id\":\"a\",\"progress\":1,\"error\":null}", ST_FRAME_ANSWER},
        {"{\"task_id\":\"a\",\"result\":NaN}", ST_FRAME_BROKEN},
        {"{\"task_id\":\"a\",\"result\":\"\xff\"}", ST_FRAME_BROKEN},
        {"{\"task_id\":\"a\"", ST_FRAME_BROKEN},
        {"{\"task_id\":\"a\"}}", ST_FRAME_BROKEN},
        {"{\"task_id\":\"a\"]", ST_FRAME_BROKEN},
        {"{\"task_id\":\"a\",\"b\"}", ST_FRAME_BROKEN},
        {"{\"result\":1,\"task_id\":\"a", ST_FRAME_NOISE},
        {"{\"a\" \"task_id\":\"a\"}", ST_FRAME_NOISE},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (parse(all[i].line).kind != all[i].kind)
            fail_msg("%s", all[i].line);
}

static void a_line_that_was_cut_still_tells_whose_it_is(void **state)
{
    struct st_frame f;

    (void)state;
    st_frame_parse(st_slice_cstr("{\"task_id\":\"a\",\"result\":\"xxxxxxx"), false, &f);
    assert_int_equal(f.kind, ST_FRAME_BROKEN);
    is_slice(f.task_id, "a");
    /* even if what is left happens to be whole */
    st_frame_parse(st_slice_cstr("{\"task_id\":\"a\",\"result\":1}"), false, &f);
    assert_int_equal(f.kind, ST_FRAME_BROKEN);
}

static void retry_after_is_seconds(void **state)
{
    static const struct {
        const char *text;
        int64_t us;
    } all[] = {{"0", 0},
               {"3", 3 * ST_SEC},
               {"0.5", 500 * ST_MS},
               {"1e2", 100 * ST_SEC},
               {"1.5E-3", 1500},
               {"25e-1", 2500 * ST_MS},
               {"1e999999", 36500 * ST_DAY},
               {"123456789012345678901234567890", 36500 * ST_DAY},
               {"1e-999999", 0},
               {"-1", -1},
               {"\"5\"", -1},
               {"null", -1}};
    char line[128];

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        snprintf(line, sizeof(line), "{\"task_id\":\"a\",\"retry_after\":%s}", all[i].text);
        if (parse(line).retry_after_us != all[i].us)
            fail_msg("%s", all[i].text);
    }
}

/* ---- requests -------------------------------------------------------------------- */

static struct st_job *job_of(const char *id, const char *payload, size_t len, const char *meta)
{
    struct st_job *job = st_job_new(st_slice_cstr(id), st_slice_cstr("a.type"), st_slice_cstr("mail.fast"),
                                    ST_SLICE(payload, len), st_slice_cstr(meta));

    assert_non_null(job);
    job->attempt = 2;
    job->fence = 77;
    job->policy = st_policy_default;
    return job;
}

static void expect_request(struct st_job *job, int64_t deadline_us, const char *want)
{
    struct st_talk_time time = {0};
    struct st_buf b;

    st_buf_init(&b, 1 << 20);
    for (int again = 0; again < 2; again++) {
        st_buf_reset(&b);
        assert_true(st_talk_request(&b, job, deadline_us, &time, 1 << 20));
        assert_string_equal(b.p, want);
    }
    st_buf_clear(&b);
    st_job_free(job);
}

static void a_request_is_one_line(void **state)
{
    struct st_job *job;

    (void)state;
    expect_request(job_of("j1", "{\"a\":1}", 7, NULL), 1735732800000042,
                   "{\"task_id\":\"j1\",\"type\":\"a.type\",\"payload\":{\"a\":1},\"retry_count\":1,"
                   "\"max_retry\":2,\"queue\":\"mail.fast\",\"attempt\":2,"
                   "\"deadline\":\"2025-01-01T12:00:00.000042Z\",\"fence\":77,"
                   "\"traceparent\":null}\n");
    job = job_of("a\"\\\xc3\xa9", "null", 4, "{\"traceparent\":\"00-ab\"}");
    job->policy.max_attempts = 0;
    expect_request(job, 0,
                   "{\"task_id\":\"a\\\"\\\\\xc3\xa9\",\"type\":\"a.type\",\"payload\":null,"
                   "\"retry_count\":1,\"max_retry\":2147483647,\"queue\":\"mail.fast\",\"attempt\":2,"
                   "\"deadline\":null,\"fence\":77,\"traceparent\":\"00-ab\"}\n");
}

static void a_pretty_printed_payload_stays_on_its_line(void **state)
{
    static const char pretty[] = "{\r\n\t\"a\": \"x\\ny\",\n  \"b\": [\n1.10]\r\n}\n";

    (void)state;
    expect_request(job_of("j1", pretty, strlen(pretty), NULL), 0,
                   "{\"task_id\":\"j1\",\"type\":\"a.type\",\"payload\":{  \t\"a\": \"x\\ny\",   "
                   "\"b\": [ 1.10]  } ,\"retry_count\":1,\"max_retry\":2,\"queue\":\"mail.fast\","
                   "\"attempt\":2,\"deadline\":null,\"fence\":77,\"traceparent\":null}\n");
}

static void a_payload_that_is_not_json_goes_as_base64(void **state)
{
    (void)state;
    expect_request(job_of("j1", "\0\xff\n", 3, NULL), 0,
                   "{\"task_id\":\"j1\",\"type\":\"a.type\",\"payload\":null,\"payload_base64\":"
                   "\"AP8K\",\"retry_count\":1,\"max_retry\":2,\"queue\":\"mail.fast\","
                   "\"attempt\":2,\"deadline\":null,\"fence\":77,\"traceparent\":null}\n");
    expect_request(job_of("j1", "", 0, NULL), 0,
                   "{\"task_id\":\"j1\",\"type\":\"a.type\",\"payload\":null,\"payload_base64\":"
                   "\"\",\"retry_count\":1,\"max_retry\":2,\"queue\":\"mail.fast\","
                   "\"attempt\":2,\"deadline\":null,\"fence\":77,\"traceparent\":null}\n");
}

static void a_request_that_is_too_long_leaves_no_trace(void **state)
{
    struct st_job *job = job_of("j1", "[1,2,3]", 7, NULL);
    struct st_talk_time time = {0};
    struct st_buf b;
    size_t len;

    (void)state;
    st_buf_init(&b, 1 << 20);
    assert_true(st_talk_request(&b, job, 0, &time, 1 << 20));
    len = b.len - 1; /* without its newline */
    assert_true(st_talk_request(&b, job, 0, &time, len));
    assert_int_equal(b.len, 2 * (len + 1));
    assert_false(st_talk_request(&b, job, 0, &time, len - 1));
    assert_int_equal(b.len, 2 * (len + 1));
    assert_int_equal(strlen(b.p), b.len);
    assert_false(b.failed);
    st_buf_clear(&b);
    st_job_free(job);
}

/* ---- answers --------------------------------------------------------------------- */

static struct st_ran ran_of(const char *line, size_t max)
{
    struct st_frame f = parse(line);
    struct st_ran ran = ST_RAN_INIT;

    assert_int_equal(f.kind, ST_FRAME_ANSWER);
    st_talk_answer(&f, max, &ran);
    return ran;
}

static void answers(void **state)
{
    static const struct {
        const char *line, *result, *message;
        enum st_advice advice;
    } all[] = {
        {"{\"task_id\":\"a\",\"result\":[1]}", "[1]", NULL, 0},
        {"{\"task_id\":\"a\"}", "null", NULL, 0},
        {"{\"task_id\":\"a\",\"result\":null,\"error\":\"\"}", "null", NULL, 0},
        {"{\"task_id\":\"a\",\"result\":1,\"error\":false}", "1", NULL, 0},
        {"{\"task_id\":\"a\",\"error\":\"a\\nb\"}", NULL, "a\nb", ST_PERMANENT},
        {"{\"task_id\":\"a\",\"error\":\"x\",\"retry\":1}", NULL, "x", ST_PERMANENT},
        {"{\"task_id\":\"a\",\"error\":\"x\",\"retry\":true}", NULL, "x", ST_BY_POLICY},
        {"{\"task_id\":\"a\",\"error\":{\"c\":1},\"retry\":true}", NULL, "{\"c\":1}", ST_BY_POLICY},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        struct st_ran ran = ran_of(all[i].line, 100);

        assert_int_equal(ran.ok, all[i].result != NULL);
        if (ran.ok) {
            assert_string_equal(ran.result, all[i].result);
        } else {
            assert_int_equal(ran.kind, ST_KIND_APP_ERROR);
            assert_string_equal(ran.message, all[i].message);
            assert_int_equal(ran.advice, all[i].advice);
        }
        assert_int_equal(ran.retry_after_us, -1);
        st_ran_clear(&ran);
    }
}

static void a_result_has_a_limit(void **state)
{
    struct st_ran ran = ran_of("{\"task_id\":\"a\",\"result\":12345}", 5);

    (void)state;
    assert_true(ran.ok);
    st_ran_clear(&ran);
    ran = ran_of("{\"task_id\":\"a\",\"result\":12345}", 4);
    assert_false(ran.ok);
    assert_int_equal(ran.kind, ST_KIND_RESULT_TOO_LARGE);
    st_ran_clear(&ran);
}

/* ---- when it is started again ---------------------------------------------------- */

#define T0 (1000 * ST_SEC)

static void restarts_wait_longer_from_crash_to_crash(void **state)
{
    struct st_supervise_conf conf = st_supervise_default;
    struct st_supervise s = {0};
    int64_t now = T0, want = ST_SEC;

    (void)state;
    conf.crashes = ST_CRASHES_MAX; /* so many do not come in 10 min */
    assert_int_equal(st_supervise_wait(&s, now), 0);
    for (int i = 0; i < 12; i++) {
        assert_false(st_supervise_crashed(&s, &conf, now));
        assert_int_equal(st_supervise_wait(&s, now), want);
        now += want;
        assert_int_equal(st_supervise_wait(&s, now), 0);
        st_supervise_started(&s);
        assert_false(st_supervise_ready(&s));
        want = 2 * want < 5 * ST_MIN ? 2 * want : 5 * ST_MIN;
    }
    assert_int_equal(want, 5 * ST_MIN);
    now += 10 * ST_MIN + 1;
    assert_false(st_supervise_crashed(&s, &conf, now));
    assert_int_equal(st_supervise_wait(&s, now), ST_SEC);
}

static void too_many_crashes_open_the_breaker(void **state)
{
    struct st_supervise s = {0};
    int64_t now = T0;

    (void)state;
    for (int i = 0; i < 5; i++, now += ST_MIN) {
        assert_true(st_supervise_healthy(&s));
        assert_int_equal(st_supervise_crashed(&s, &st_supervise_default, now), i == 4);
        assert_true(s.doubtful);
    }
    now -= ST_MIN;
    assert_false(st_supervise_healthy(&s));
    assert_int_equal(st_supervise_wait(&s, now), 10 * ST_MIN);
    assert_false(st_supervise_crashed(&s, &st_supervise_default, now)); /* another one, dying late */
    assert_int_equal(st_supervise_wait(&s, now), 10 * ST_MIN);
    now += 10 * ST_MIN;
    assert_int_equal(st_supervise_wait(&s, now), 0);
    st_supervise_started(&s);
    assert_false(st_supervise_healthy(&s)); /* it is only a try */
    assert_false(st_supervise_crashed(&s, &st_supervise_default, now));
    assert_int_equal(st_supervise_wait(&s, now), 10 * ST_MIN);
    now += 10 * ST_MIN;
    st_supervise_started(&s);
    assert_true(st_supervise_ready(&s));
    assert_true(st_supervise_healthy(&s));
    assert_false(s.doubtful);
    assert_false(st_supervise_crashed(&s, &st_supervise_default, now + ST_SEC)); /* forgotten */
}

static void crashes_far_apart_do_not(void **state)
{
    struct st_supervise s = {0};

    (void)state;
    for (int i = 0; i < 50; i++)
        assert_false(st_supervise_crashed(&s, &st_supervise_default, T0 + i * (5 * ST_MIN + ST_SEC)));
    assert_true(st_supervise_healthy(&s));
}

static void crashes_of_one_moment_count_once(void **state)
{
    struct st_supervise s = {0};

    (void)state;
    for (int i = 0; i < 20; i++)
        assert_false(st_supervise_crashed(&s, &st_supervise_default, T0 + i * ST_MS));
    assert_int_equal(s.n_crashes, 1);
    assert_int_equal(st_supervise_wait(&s, T0), ST_SEC);
}

static void a_parked_one_stays(void **state)
{
    struct st_supervise s = {0};

    (void)state;
    assert_true(st_supervise_park(&s));
    assert_false(st_supervise_park(&s));
    assert_int_equal(st_supervise_wait(&s, T0 + 1000 * ST_DAY), -1);
    assert_false(st_supervise_ready(&s));
    assert_false(st_supervise_healthy(&s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_whole_however_they_are_cut),
        cmocka_unit_test(a_line_may_be_as_long_as_the_limit_and_no_longer),
        cmocka_unit_test(a_line_without_an_end_takes_no_more_memory_than_the_limit),
        cmocka_unit_test(an_answer_is_ranges_of_its_line),
        cmocka_unit_test(kinds_of_lines),
        cmocka_unit_test(a_line_that_was_cut_still_tells_whose_it_is),
        cmocka_unit_test(retry_after_is_seconds),
        cmocka_unit_test(a_request_is_one_line),
        cmocka_unit_test(a_pretty_printed_payload_stays_on_its_line),
        cmocka_unit_test(a_payload_that_is_not_json_goes_as_base64),
        cmocka_unit_test(a_request_that_is_too_long_leaves_no_trace),
        cmocka_unit_test(answers),
        cmocka_unit_test(a_result_has_a_limit),
        cmocka_unit_test(restarts_wait_longer_from_crash_to_crash),
        cmocka_unit_test(too_many_crashes_open_the_breaker),
        cmocka_unit_test(crashes_far_apart_do_not),
        cmocka_unit_test(crashes_of_one_moment_count_once),
        cmocka_unit_test(a_parked_one_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
