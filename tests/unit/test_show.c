/* SPDX-License-Identifier: Apache-2.0
 *
 * test_show.c - the JSON of a job, byte for byte, and the memory of the records behind it.
 */
#include <stdlib.h>
#include <string.h>

#include "job/show.h"
#include "job/spec.h"
#include "unit.h"

#define T0 ((int64_t)1735732800 * ST_SEC) /* 2025-01-01T12:00:00Z */

static struct st_slice owned(const char *s)
{
    return ST_SLICE(strdup(s), strlen(s));
}

static void check_shown(const struct st_job_info *info, bool full, const char *want)
{
    struct st_buf text;
    struct st_jw w;

    st_buf_init(&text, ST_SHOW_MAX);
    st_jw_init(&w, &text);
    st_job_show_json(&w, info, full);
    assert_false(text.failed);
    assert_true(st_json_ok(st_buf_view(&text)));
    assert_string_equal(text.p, want);
    st_buf_clear(&text);
}

/* A job that was lost once, failed once and runs for the third time. */
static void fill(struct st_job_info *info)
{
    struct st_attempt_info *a = calloc(4, sizeof(*a));

    memset(info, 0, sizeof(*info));
    assert_non_null(a);
    a[0] = (struct st_attempt_info){.n = 1,
                                    .fence = 11,
                                    .worker = strdup("w1"),
                                    .started_us = T0 + ST_SEC,
                                    .ended_us = T0 + 2 * ST_SEC,
                                    .outcome = strdup("lease_expired"),
                                    .kind = ST_KIND_LEASE_EXPIRED,
                                    .message = strdup("lost"),
                                    .exit_code = -1};
    a[1] = (struct st_attempt_info){.n = 2,
                                    .fence = 12,
                                    .worker = strdup("w1"),
                                    .ended_us = T0 + 3 * ST_SEC,
                                    .outcome = strdup("released"),
                                    .exit_code = -1};
    a[2] = (struct st_attempt_info){.n = 2,
                                    .fence = 13,
                                    .worker = strdup("w2"),
                                    .started_us = T0 + 4 * ST_SEC,
                                    .ended_us = T0 + 5 * ST_SEC,
                                    .outcome = strdup("retry"),
                                    .kind = ST_KIND_EXIT,
                                    .message = strdup("exit 3 \"x\""),
                                    .exit_code = 3,
                                    .signal = 0,
                                    .max_rss_kb = 2,
                                    .log = strdup("/l/1.log")};
    a[3] = (struct st_attempt_info){
        .n = 3, .fence = 14, .worker = strdup("w2"), .started_us = T0 + 6 * ST_SEC, .exit_code = -1, .signal = 9};
    info->id = strdup("42");
    info->type = strdup("mail");
    info->queue = strdup("default");
    info->state = ST_RUNNING;
    info->shown = ST_SHOW_RUNNING;
    info->priority = -3;
    info->attempt = 3;
    info->max_attempts = 5;
    info->timeout_us = 90 * ST_MIN;
    info->created_us = T0;
    info->due_us = T0 + 250 * ST_MS;
    info->started_us = T0 + ST_SEC;
    info->lease_until_us = T0 + ST_MIN;
    info->deadline_us = T0 + ST_HOUR;
    info->fence = 14;
    info->worker = strdup("w2");
    info->payload = owned("{\"to\" : 1.10,\"to\":2}");
    info->meta = owned("{\"m\":1}");
    info->progress = owned("50");
    info->key = strdup("k");
    info->unique = ST_UNIQUE_ACTIVE;
    info->error_kind = ST_KIND_EXIT;
    info->error_message = strdup("exit 3 \"x\"");
    info->attempts = a;
    info->n_attempts = 4;
}

#define SPEC "2fb3669fcfc22817f7d12d19a9ff1e7c369dc0c2ba10c634787589514e63b577"

static void a_job_is_shown_with_everything_in_its_place(void **state)
{
    struct st_job_info info;

    (void)state;
    fill(&info);
    check_shown(&info, true,
                "{\"id\":\"42\",\"type\":\"mail\",\"queue\":\"default\",\"state\":\"running\","
                "\"priority\":-3,\"attempt\":3,\"max_attempts\":5,"
                "\"created_at\":\"2025-01-01T12:00:00.000000Z\","
                "\"run_at\":\"2025-01-01T12:00:00.250000Z\","
                "\"started_at\":\"2025-01-01T12:00:01.000000Z\",\"finished_at\":null,"
                "\"payload\":{\"to\" : 1.10,\"to\":2},\"result\":null,\"result_ref\":null,"
                "\"error\":{\"kind\":\"exit\",\"message\":\"exit 3 \\\"x\\\"\"},"
                "\"errors\":[{\"kind\":\"lease_expired\",\"message\":\"lost\",\"attempt\":1,"
                "\"at\":\"2025-01-01T12:00:02.000000Z\"},"
                "{\"kind\":\"exit\",\"message\":\"exit 3 \\\"x\\\"\",\"attempt\":2,"
                "\"at\":\"2025-01-01T12:00:05.000000Z\"}],"
                "\"worker\":\"w2\",\"lease_until\":\"2025-01-01T12:01:00.000000Z\",\"key\":\"k\","
                "\"spec_hash\":\"" SPEC "\",\"timeout\":\"1h30m\","
                "\"deadline\":\"2025-01-01T13:00:00.000000Z\",\"fence\":14,\"progress\":50,"
                "\"meta\":{\"m\":1},\"attempts\":["
                "{\"n\":1,\"fence\":11,\"worker\":\"w1\",\"started_at\":\"2025-01-01T12:00:01.000000Z\","
                "\"ended_at\":\"2025-01-01T12:00:02.000000Z\",\"outcome\":\"lease_expired\","
                "\"kind\":\"lease_expired\",\"message\":\"lost\",\"exit_code\":null,\"signal\":null,"
                "\"max_rss\":null,\"log\":null},"
                "{\"n\":2,\"fence\":12,\"worker\":\"w1\",\"started_at\":null,"
                "\"ended_at\":\"2025-01-01T12:00:03.000000Z\",\"outcome\":\"released\",\"kind\":null,"
                "\"message\":null,\"exit_code\":null,\"signal\":null,\"max_rss\":null,\"log\":null},"
                "{\"n\":2,\"fence\":13,\"worker\":\"w2\",\"started_at\":\"2025-01-01T12:00:04.000000Z\","
                "\"ended_at\":\"2025-01-01T12:00:05.000000Z\",\"outcome\":\"retry\",\"kind\":\"exit\","
                "\"message\":\"exit 3 \\\"x\\\"\",\"exit_code\":3,\"signal\":null,\"max_rss\":2048,"
                "\"log\":\"/l/1.log\"},"
                "{\"n\":3,\"fence\":14,\"worker\":\"w2\",\"started_at\":\"2025-01-01T12:00:06.000000Z\","
                "\"ended_at\":null,\"outcome\":null,\"kind\":null,\"message\":null,\"exit_code\":null,"
                "\"signal\":9,\"max_rss\":null,\"log\":null}]}");
    st_job_info_clear(&info);
}

static void a_list_leaves_out_attempts_and_what_was_not_loaded(void **state)
{
    struct st_job_info info = {.id = strdup("7"),
                               .type = strdup("t"),
                               .queue = strdup("q"),
                               .state = ST_PENDING,
                               .shown = ST_SHOW_SCHEDULED,
                               .max_attempts = 3};

    (void)state;
    check_shown(&info, false,
                "{\"id\":\"7\",\"type\":\"t\",\"queue\":\"q\",\"state\":\"scheduled\","
                "\"priority\":0,\"attempt\":0,\"max_attempts\":3,\"created_at\":null,"
                "\"run_at\":null,\"started_at\":null,\"finished_at\":null,\"result_ref\":null,"
                "\"error\":null,\"worker\":null,\"lease_until\":null,\"key\":null,"
                "\"timeout\":null,\"deadline\":null,\"fence\":0}");
    st_job_info_clear(&info);
}

static bool shows(const struct st_job_info *info, bool full, const char *part)
{
    struct st_buf text;
    struct st_jw w;
    bool found;

    st_buf_init(&text, ST_SHOW_MAX);
    st_jw_init(&w, &text);
    st_job_show_json(&w, info, full);
    assert_true(st_json_ok(st_buf_view(&text)));
    found = strstr(text.p, part) != NULL;
    st_buf_clear(&text);
    return found;
}

static void a_list_with_payloads_shows_them_with_the_hash(void **state)
{
    struct st_job_info info;

    (void)state;
    fill(&info);
    assert_true(shows(&info, false, "\"payload\":{\"to\" : 1.10,\"to\":2}"));
    assert_true(shows(&info, false, "\"spec_hash\":\"" SPEC "\""));
    assert_true(shows(&info, false, "\"meta\":{\"m\":1}"));
    assert_false(shows(&info, false, "\"attempts\""));
    assert_false(shows(&info, false, "\"errors\""));
    st_job_info_clear(&info);
}

static void bytes_that_are_no_json_are_shown_as_text_or_base64(void **state)
{
    struct st_job_info info;

    (void)state;
    fill(&info);
    free((void *)info.payload.p);
    free((void *)info.result.p);
    info.payload = owned("\xff\x01");
    info.result = owned("plain text");
    assert_true(shows(&info, true, "\"payload_base64\":\"/wE=\""));
    assert_true(shows(&info, true, "\"result\":\"plain text\""));
    st_job_info_clear(&info);
}

/* A job that failed once and was then cancelled, as it waited or as it ran. */
static void fill_cancelled(struct st_job_info *info, bool waited)
{
    fill(info);
    info->state = ST_CANCELLED;
    info->shown = ST_SHOW_CANCELLED;
    info->finished_us = T0 + 7 * ST_SEC;
    info->error_kind = ST_KIND_CANCELLED;
    free(info->error_message);
    info->error_message = strdup("stop");
    if (waited) { /* the attempt that went on was never there */
        free(info->attempts[3].worker);
        info->n_attempts = 3;
        return;
    }
    info->attempts[3].ended_us = info->finished_us;
    info->attempts[3].outcome = strdup("cancelled");
    info->attempts[3].kind = ST_KIND_CANCELLED;
    info->attempts[3].message = strdup("stop");
}

static void a_cancellation_is_an_error_like_others(void **state)
{
    struct st_job_info info;

    (void)state;
    fill_cancelled(&info, true);
    assert_true(shows(&info, true, "\"error\":{\"kind\":\"cancelled\",\"message\":\"stop\"}"));
    assert_true(shows(&info, true,
                      "\"at\":\"2025-01-01T12:00:05.000000Z\"},{\"kind\":\"cancelled\","
                      "\"message\":\"stop\",\"attempt\":null,"
                      "\"at\":\"2025-01-01T12:00:07.000000Z\"}],"));
    st_job_info_clear(&info);
    fill_cancelled(&info, false);
    assert_true(shows(&info, true, "\"error\":{\"kind\":\"cancelled\",\"message\":\"stop\"}"));
    assert_true(shows(&info, true,
                      "\"at\":\"2025-01-01T12:00:05.000000Z\"},{\"kind\":\"cancelled\","
                      "\"message\":\"stop\",\"attempt\":3,"
                      "\"at\":\"2025-01-01T12:00:07.000000Z\"}],"));
    st_job_info_clear(&info);
}

static void a_job_that_is_no_longer_cancelled_does_not_show_that_as_its_error(void **state)
{
    struct st_job_info info;

    (void)state;
    for (int waited = 0; waited < 2; waited++) {
        fill_cancelled(&info, waited);
        info.state = ST_PENDING;
        info.shown = ST_SHOW_PENDING;
        info.finished_us = 0;
        assert_true(shows(&info, true, "\"error\":null"));
        assert_true(shows(&info, false, "\"error\":null"));
        assert_int_equal(shows(&info, true, "\"kind\":\"cancelled\""), !waited);
        st_job_info_clear(&info);
    }
}

static void a_held_job_is_one_block_with_copies_of_its_texts(void **state)
{
    char id[] = "1", type[] = "t", payload[] = "{}";
    struct st_job *job = st_job_new(st_slice_cstr(id), st_slice_cstr(type), LIT("q"), ST_SLICE(payload, 2), ST_NONE);

    (void)state;
    assert_non_null(job);
    memset(id, 'x', 1);
    memset(type, 'x', 1);
    memset(payload, 'x', 2);
    assert_string_equal(job->id, "1");
    assert_string_equal(job->type, "t");
    assert_string_equal(job->queue, "q");
    assert_slice_equal(job->payload, "{}");
    assert_null(job->meta.p);
    assert_int_equal(job->fence, 0);
    assert_int_equal(job->policy.max_attempts, 3);
    st_job_free(job);
}

static void an_empty_payload_is_given_and_a_missing_one_is_not(void **state)
{
    struct st_job *job = st_job_new(LIT("1"), LIT("t"), LIT("q"), LIT(""), LIT("{}"));

    (void)state;
    assert_non_null(job->payload.p);
    assert_int_equal(job->payload.len, 0);
    assert_slice_equal(job->meta, "{}");
    st_job_free(job);
    st_job_free(NULL);
}

static void a_cleared_record_can_be_cleared_again(void **state)
{
    struct st_job_info info;

    (void)state;
    fill(&info);
    st_job_info_clear(&info);
    assert_null(info.id);
    assert_int_equal(info.n_attempts, 0);
    st_job_info_clear(&info);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_shown_with_everything_in_its_place),
        cmocka_unit_test(a_list_leaves_out_attempts_and_what_was_not_loaded),
        cmocka_unit_test(a_list_with_payloads_shows_them_with_the_hash),
        cmocka_unit_test(bytes_that_are_no_json_are_shown_as_text_or_base64),
        cmocka_unit_test(a_cancellation_is_an_error_like_others),
        cmocka_unit_test(a_job_that_is_no_longer_cancelled_does_not_show_that_as_its_error),
        cmocka_unit_test(a_held_job_is_one_block_with_copies_of_its_texts),
        cmocka_unit_test(an_empty_payload_is_given_and_a_missing_one_is_not),
        cmocka_unit_test(a_cleared_record_can_be_cleared_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
