/* SPDX-License-Identifier: Apache-2.0
 *
 * test_batch.c - jobs from newline-delimited JSON, good lines and bad ones.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enqueue/batch.h"
#include "unit.h"

static void batch_init(struct st_batch *b)
{
    st_batch_init(b, &st_new_job_default, ST_PAYLOAD_MAX);
}

static void a_line_gives_every_member_its_place(void **state)
{
    const struct st_new_job *job;
    struct st_batch b;

    (void)state;
    batch_init(&b);
    assert_int_equal(st_batch_line(&b,
                                   LIT("{\"type\":\"mail\",\"payload\": {\"a\" : 1.10,\"a\":2 } ,\"queue\":"
                                       "\"q.s\",\"priority\":-7,\"delay\":\"1h30m\",\"max_attempts\":0,"
                                       "\"timeout\":\"0s\",\"key\":\"k\\u00e9\",\"unique\":\"10m\","
                                       "\"id\":\"my id\",\"meta\":{\"x\": 1}}"),
                                   NULL),
                     STINT_OK);
    assert_int_equal(b.n, 1);
    job = &b.jobs[0];
    assert_slice_equal(job->type, "mail");
    assert_slice_equal(job->payload, "{\"a\" : 1.10,\"a\":2 }");
    assert_slice_equal(job->queue, "q.s");
    assert_int_equal(job->priority, -7);
    assert_int_equal(job->delay_us, 90 * ST_MIN);
    assert_int_equal(job->due_us, 0);
    assert_int_equal(job->max_attempts, 0);
    assert_int_equal(job->timeout_us, 0);
    assert_slice_equal(job->key, "k\xc3\xa9");
    assert_int_equal(job->unique, ST_UNIQUE_WINDOW);
    assert_int_equal(job->window_us, 10 * ST_MIN);
    assert_slice_equal(job->id, "my id");
    assert_slice_equal(job->meta, "{\"x\": 1}");
    st_batch_clear(&b);
}

static void attempts_and_timeout_take_what_the_flags_take(void **state)
{
    struct st_batch b;

    (void)state;
    batch_init(&b);
    assert_int_equal(st_batch_line(&b, LIT("{\"type\":\"t\",\"timeout\":\"none\",\"max_attempts\":1000000}"), NULL),
                     STINT_OK);
    assert_int_equal(b.jobs[0].timeout_us, 0);
    assert_int_equal(b.jobs[0].max_attempts, 1000000);
    st_batch_clear(&b);
}

static void what_is_missing_or_null_comes_from_the_defaults(void **state)
{
    struct st_new_job defaults = st_new_job_default;
    struct st_batch b;

    (void)state;
    defaults.type = LIT("mail");
    defaults.queue = LIT("slow");
    defaults.payload = LIT("{}");
    defaults.priority = 3;
    defaults.timeout_us = ST_MIN;
    defaults.id = LIT("never used");
    st_batch_init(&b, &defaults, 100);
    assert_int_equal(st_batch_line(&b, LIT("{}"), NULL), STINT_OK);
    assert_int_equal(st_batch_line(&b,
                                   LIT("{\"type\":null,\"queue\":null,\"priority\":null,"
                                       "\"payload\":null,\"id\":null,\"meta\":null}"),
                                   NULL),
                     STINT_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_slice_equal(b.jobs[i].type, "mail");
        assert_slice_equal(b.jobs[i].queue, "slow");
        assert_int_equal(b.jobs[i].priority, 3);
        assert_int_equal(b.jobs[i].timeout_us, ST_MIN);
        assert_int_equal(b.jobs[i].id.len, ST_UUID_LEN);
    }
    assert_slice_equal(b.jobs[0].payload, "{}");
    assert_slice_equal(b.jobs[1].payload, "null"); /* for a payload null is a value */
    assert_false(st_slice_eq(b.jobs[0].id, b.jobs[1].id));
    st_batch_clear(&b);
}

static void with_no_default_at_all_queue_payload_and_policy_are_the_usual(void **state)
{
    struct st_batch b;

    (void)state;
    batch_init(&b);
    assert_int_equal(st_batch_line(&b, LIT("{\"type\":\"t\"}"), NULL), STINT_OK);
    assert_slice_equal(b.jobs[0].queue, "default");
    assert_slice_equal(b.jobs[0].payload, "");
    assert_int_equal(b.jobs[0].max_attempts, -1);
    assert_int_equal(b.jobs[0].timeout_us, -1);
    assert_int_equal(b.jobs[0].unique, ST_UNIQUE_NONE);
    st_batch_clear(&b);
}

static void a_lines_own_time_stands_above_the_default_one(void **state)
{
    struct st_new_job defaults = st_new_job_default;
    struct st_batch b;

    (void)state;
    defaults.type = LIT("t");
    defaults.delay_us = ST_HOUR;
    st_batch_init(&b, &defaults, 100);
    assert_int_equal(st_batch_line(&b, LIT("{\"at\":\"2030-01-01T00:00:00Z\"}"), NULL), STINT_OK);
    assert_int_equal(b.jobs[0].delay_us, 0);
    assert_int_equal(b.jobs[0].due_us, (int64_t)1893456000 * ST_SEC);
    st_batch_clear(&b);

    defaults.delay_us = 0;
    defaults.due_us = (int64_t)1893456000 * ST_SEC;
    st_batch_init(&b, &defaults, 100);
    assert_int_equal(st_batch_line(&b, LIT("{\"delay\":\"0s\"}"), NULL), STINT_OK);
    assert_int_equal(b.jobs[0].due_us, 0);
    assert_int_equal(b.jobs[0].delay_us, 0);
    st_batch_clear(&b);
}

static void unique_without_a_key_takes_the_spec_hash_of_each_line(void **state)
{
    char hash[ST_HASH_LEN + 1];
    struct st_batch b;

    (void)state;
    batch_init(&b);
    st_batch_line(&b, LIT("{\"type\":\"t\",\"unique\":\"active\",\"payload\":{\"b\":1,\"a\":2}}"), NULL);
    st_batch_line(&b, LIT("{\"type\":\"t\",\"unique\":\"active\",\"payload\":{\"a\":2,\"b\":1}}"), NULL);
    st_batch_line(&b, LIT("{\"type\":\"t\",\"unique\":\"forever\",\"payload\":{\"a\":3}}"), NULL);
    assert_int_equal(b.n, 3);
    st_spec_hash(LIT("t"), LIT("default"), LIT("{\"a\":2,\"b\":1}"), hash, NULL);
    assert_slice_equal(b.jobs[0].key, hash);
    assert_slice_equal(b.jobs[1].key, hash);
    assert_false(st_slice_is(b.jobs[2].key, hash));
    st_batch_clear(&b);
}

/* The message names the line, and there is a remedy; `part` must be in the message too. */
static void check_bad(const char *line, const char *part)
{
    stint_error err = {0};
    struct st_batch b;

    batch_init(&b);
    assert_int_equal(st_batch_line(&b, LIT(" \t\r"), &err), STINT_OK);
    assert_int_equal(st_batch_line(&b, LIT("{\"type\":\"good\"}"), &err), STINT_OK);
    assert_int_equal(st_batch_line(&b, st_slice_cstr(line), &err), STINT_EINVAL);
    assert_int_equal(strncmp(err.message, "line 3: ", 8), 0);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" does not name %s", err.message, part);
    if (!err.remedy[0])
        fail_msg("\"%s\" has no remedy", err.message);
    st_batch_clear(&b);
}

static void every_error_names_its_line_and_member(void **state)
{
    static const struct {
        const char *line, *part;
    } bad[] = {
        {"{", "JSON"},
        {"[]", "object"},
        {"null", "object"},
        {"{\"type\":\"t\"} x", "JSON"},
        {"{}", "type: is missing"},
        {"{\"type\":7}", "type: is not a string"},
        {"{\"type\":\"a b\"}", "type name \"a b\""},
        {"{\"type\":\"\"}", "type name"},
        {"{\"type\":\"t\",\"queue\":\"a..b\"}", "queue name"},
        {"{\"type\":\"t\",\"priority\":1.5}", "priority: is not a whole number"},
        {"{\"type\":\"t\",\"priority\":\"1\"}", "priority: "},
        {"{\"type\":\"t\",\"priority\":32768}", "priority: 32768 is out of range"},
        {"{\"type\":\"t\",\"priority\":99999999999}", "priority: 99999999999"},
        {"{\"type\":\"t\",\"delay\":5}", "delay: is not a duration"},
        {"{\"type\":\"t\",\"delay\":\"5\"}", "delay: "},
        {"{\"type\":\"t\",\"delay\":\"-5s\"}", "delay: "},
        {"{\"type\":\"t\",\"at\":\"tomorrow\"}", "at: "},
        {"{\"type\":\"t\",\"at\":\"2030-01-01T00:00:00Z\",\"delay\":\"0s\"}", "both delay and at"},
        {"{\"type\":\"t\",\"max_attempts\":-1}", "max_attempts: -1"},
        {"{\"type\":\"t\",\"max_attempts\":1000001}", "max_attempts: 1000001 is out of range"},
        {"{\"type\":\"t\",\"timeout\":true}", "timeout: is not a string"},
        {"{\"type\":\"t\",\"timeout\":\"never\"}", "timeout: "},
        {"{\"type\":\"t\",\"unique\":\"often\"}", "unique: "},
        {"{\"type\":\"t\",\"unique\":\"0s\"}", "unique: "},
        {"{\"type\":\"t\",\"key\":\"\"}", "unique key"},
        {"{\"type\":\"t\",\"id\":\"\"}", "id"},
        {"{\"type\":\"t\",\"id\":\"a\\u0007\"}", "id has a control character"},
        {"{\"type\":\"t\",\"meta\":[]}", "meta: is not an object"},
        {"{\"type\":\"t\",\"color\":1}", "no member \"color\""},
        {"{\"type\":\"t\",\"type\":\"u\"}", "type is given twice"},
        {"{\"type\":\"t\",\"ty\\u0070e\":\"u\"}", "type is given twice"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        check_bad(bad[i].line, bad[i].part);
}

static void a_payload_over_the_limit_names_the_limit_and_the_remedy(void **state)
{
    stint_error err = {0};
    struct st_batch b;

    (void)state;
    st_batch_init(&b, &st_new_job_default, 4);
    assert_int_equal(st_batch_line(&b, LIT("{\"type\":\"t\",\"payload\":1234}"), &err), STINT_OK);
    assert_int_equal(st_batch_line(&b, LIT("{\"type\":\"t\",\"payload\":12345}"), &err), STINT_EINVAL);
    assert_string_equal(err.message, "line 2: the payload has 5 bytes, the limit is 4");
    assert_non_null(strstr(err.remedy, "limits.payload"));
    st_batch_clear(&b);
}

static void strings_that_are_too_long_are_refused(void **state)
{
    stint_error err = {0};
    struct st_buf line;
    struct st_batch b;

    (void)state;
    batch_init(&b);
    st_buf_init(&line, 1 << 16);
    st_buf_puts(&line, "{\"type\":\"");
    for (int i = 0; i < 5000; i++)
        st_buf_putc(&line, 'a');
    st_buf_puts(&line, "\"}");
    assert_int_equal(st_batch_line(&b, st_buf_view(&line), &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "line 1: type: is longer"));
    st_buf_clear(&line);
    st_batch_clear(&b);
}

/* However the bytes are cut, the jobs are the same. */
static void lines_may_come_in_any_pieces(void **state)
{
    static const char text[] = "\n{\"type\":\"a\",\"payload\":[1]}\r\n  \n{\"type\":\"b\"}\n\n"
                               "{\"type\":\"c\",\"payload\":\"x\"}";

    (void)state;
    for (size_t piece = 1; piece <= sizeof(text); piece++) {
        struct st_batch b;

        batch_init(&b);
        for (size_t at = 0; at < sizeof(text) - 1; at += piece) {
            char *copy; /* of exactly this size, and gone before the jobs are looked at */
            size_t n = sizeof(text) - 1 - at < piece ? sizeof(text) - 1 - at : piece;

            copy = malloc(n);
            assert_non_null(copy);
            memcpy(copy, text + at, n);
            assert_int_equal(st_batch_feed(&b, ST_SLICE(copy, n), NULL), STINT_OK);
            free(copy);
        }
        assert_int_equal(st_batch_end(&b, NULL), STINT_OK);
        assert_int_equal(b.n, 3);
        assert_int_equal(b.line, 6);
        assert_slice_equal(b.jobs[0].type, "a");
        assert_slice_equal(b.jobs[0].payload, "[1]");
        assert_slice_equal(b.jobs[1].type, "b");
        assert_slice_equal(b.jobs[2].payload, "\"x\"");
        st_batch_clear(&b);
    }
}

static void a_bad_line_in_fed_bytes_is_counted_right(void **state)
{
    stint_error err = {0};
    struct st_batch b;

    (void)state;
    batch_init(&b);
    assert_int_equal(st_batch_feed(&b, LIT("{\"type\":\"a\"}\n\n{\"ty"), &err), STINT_OK);
    assert_int_equal(st_batch_feed(&b, LIT("pe\":1}\n"), &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "line 3: type:"));
    st_batch_clear(&b);
}

static void a_line_has_at_most_16_mib(void **state)
{
    const size_t half = ST_BATCH_LINE_MAX / 2;
    char *blanks = malloc(half + 1);
    stint_error err = {0};
    struct st_batch b;

    (void)state;
    assert_non_null(blanks);
    memset(blanks, ' ', half + 1);
    batch_init(&b);
    assert_int_equal(st_batch_feed(&b, LIT("\n"), &err), STINT_OK);
    assert_int_equal(st_batch_feed(&b, ST_SLICE(blanks, half), &err), STINT_OK);
    assert_int_equal(st_batch_feed(&b, ST_SLICE(blanks, half + 1), &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "line 2: has more than 16777216 bytes"));
    st_batch_clear(&b);
    free(blanks);
}

/* Texts stay where they are while the array of jobs and the texts grow. */
static void thousands_of_lines_keep_their_texts(void **state)
{
    struct st_batch b;
    char line[100];

    (void)state;
    batch_init(&b);
    for (int i = 0; i < 5000; i++) {
        int n = snprintf(line, sizeof(line), "{\"type\":\"t%d\",\"payload\":%d,\"id\":\"%d\"}", i, i, i);

        assert_int_equal(st_batch_line(&b, ST_SLICE(line, (size_t)n), NULL), STINT_OK);
    }
    assert_int_equal(b.n, 5000);
    for (int i = 0; i < 5000; i++) {
        snprintf(line, sizeof(line), "%d", i);
        assert_slice_equal(b.jobs[i].payload, line);
        assert_slice_equal(b.jobs[i].id, line);
        snprintf(line, sizeof(line), "t%d", i);
        assert_slice_equal(b.jobs[i].type, line);
    }
    st_batch_clear(&b);
}

static void every_job_knows_its_line(void **state)
{
    struct st_batch b;

    (void)state;
    batch_init(&b);
    for (int i = 1; i <= 1000; i++)
        assert_int_equal(st_batch_feed(&b, LIT("\n{\"type\":\"t\"}\n"), NULL), STINT_OK);
    assert_int_equal(b.n, 1000);
    for (size_t i = 0; i < b.n; i++)
        assert_int_equal(b.lines[i], 2 * (i + 1));
    st_batch_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_gives_every_member_its_place),
        cmocka_unit_test(attempts_and_timeout_take_what_the_flags_take),
        cmocka_unit_test(what_is_missing_or_null_comes_from_the_defaults),
        cmocka_unit_test(with_no_default_at_all_queue_payload_and_policy_are_the_usual),
        cmocka_unit_test(a_lines_own_time_stands_above_the_default_one),
        cmocka_unit_test(unique_without_a_key_takes_the_spec_hash_of_each_line),
        cmocka_unit_test(every_error_names_its_line_and_member),
        cmocka_unit_test(a_payload_over_the_limit_names_the_limit_and_the_remedy),
        cmocka_unit_test(strings_that_are_too_long_are_refused),
        cmocka_unit_test(lines_may_come_in_any_pieces),
        cmocka_unit_test(a_bad_line_in_fed_bytes_is_counted_right),
        cmocka_unit_test(a_line_has_at_most_16_mib),
        cmocka_unit_test(thousands_of_lines_keep_their_texts),
        cmocka_unit_test(every_job_knows_its_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
