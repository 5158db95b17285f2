/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_log.c - log lines are whole, bounded and readable by machines.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "unit.h"

static char line[10000];
static size_t line_len;
static int lines;
static enum st_log_level line_level;

static void catch_line(void *arg, enum st_log_level level, const char *text, size_t len)
{
    assert_ptr_equal(arg, &lines);
    assert_true(len < sizeof(line));
    memcpy(line, text, len);
    line[len] = '\0';
    line_len = len;
    line_level = level;
    lines++;
}

static int logfmt(void **state)
{
    (void)state;
    lines = 0;
    st_log_set_level(ST_LOG_INFO);
    st_log_set_sink(catch_line, &lines, false);
    return 0;
}

static int json(void **state)
{
    logfmt(state);
    st_log_set_sink(catch_line, &lines, true);
    return 0;
}

static int silence(void **state)
{
    (void)state;
    st_log_set_sink(NULL, NULL, false);
    return 0;
}

/* The line behind its time, which is checked for its form alone. */
static const char *behind_time(const char *before, const char *after)
{
    size_t at = strlen(before);

    assert_memory_equal(line, before, at);
    assert_int_equal(strspn(line + at, "0123456789-:.TZ"), 27);
    assert_memory_equal(line + at + 27, after, strlen(after));
    return line + at + 27 + strlen(after);
}

static void a_line_has_time_level_event_and_fields(void **state)
{
    stint_error err;

    (void)state;
    st_log(ST_LOG_INFO, "job.claimed", ST_F("job", "42"), ST_FI("attempt", 1));
    assert_string_equal(behind_time("ts=", ""), " level=info event=job.claimed job=42 attempt=1");
    assert_int_equal(line_level, ST_LOG_INFO);
    st_log(ST_LOG_WARN, "bare");
    assert_string_equal(behind_time("ts=", ""), " level=warn event=bare");
    st_fail(&err, STINT_EAGAIN, "it is busy");
    st_log(ST_LOG_ERROR, "store.away", ST_FE(&err), ST_FI("n", INT64_MIN));
    assert_string_equal(behind_time("ts=", ""), " level=error event=store.away error=\"it is busy\""
                                                " code=EAGAIN n=-9223372036854775808");
}

static void values_are_quoted_where_they_must_be(void **state)
{
    static const struct {
        struct st_slice value;
        const char *text;
    } t[] = {
        {LIT("plain"), "plain"},
        {LIT("a/b:c,d{}\\'"), "a/b:c,d{}\\'"},
        {LIT("\xc3\xa4"), "\xc3\xa4"},
        {LIT(""), "\"\""},
        {ST_NONE, "\"\""},
        {LIT("a b"), "\"a b\""},
        {LIT("a=b"), "\"a=b\""},
        {LIT("say \"hi\""), "\"say \\\"hi\\\"\""},
        {LIT("\""), "\"\\\"\""},
        {LIT("a\nb"), "\"a\\nb\""},
        {LIT("a \\ b"), "\"a \\\\ b\""},
        {LIT("\x1b[2J"), "\"\\u001b[2J\""},
        {LIT("\x7f"), "\"\\u007f\""},
        {LIT("\xc2\x9b"), "\"\\u009b\""},
        {LIT("nul\0"), "\"nul\\u0000\""},
        {LIT("a\xff"), "\"a\xef\xbf\xbd\""},
        {LIT("\xc3"), "\"\xef\xbf\xbd\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        st_log(ST_LOG_INFO, "e", ST_FS("v", t[i].value), ST_FI("z", 1));
        assert_memory_equal(strstr(line, " v=") + 3, t[i].text, strlen(t[i].text));
        assert_string_equal(strstr(line, " v=") + 3 + strlen(t[i].text), " z=1");
    }
}

static void json_lines_are_objects(void **state)
{
    (void)state;
    st_log(ST_LOG_INFO, "job.claimed", ST_F("job", "a \"b\"\n\xff"), ST_FI("attempt", -1), ST_F("none", NULL),
           ST_F("empty", ""));
    assert_string_equal(behind_time("{\"ts\":\"", "\""),
                        ",\"level\":\"info\",\"event\":\"job.claimed\",\"job\":\"a \\\"b\\\"\\n"
                        "\xef\xbf\xbd\",\"attempt\":-1,\"none\":null,\"empty\":\"\"}");
    assert_true(st_json_ok(ST_SLICE(line, line_len)));
    st_log(ST_LOG_INFO, "bare");
    assert_string_equal(behind_time("{\"ts\":\"", "\""), ",\"level\":\"info\",\"event\":\"bare\"}");
}

static void a_field_without_a_key_ends_the_line(void **state)
{
    (void)state;
    st_log_fields(ST_LOG_INFO, "e", (const struct st_field[]){ST_FI("a", 1), {0}, ST_FI("b", 2)});
    assert_string_equal(behind_time("ts=", ""), " level=info event=e a=1");
    st_log_fields(ST_LOG_INFO, "e", NULL);
    assert_string_equal(behind_time("ts=", ""), " level=info event=e");
}

static void lines_below_the_level_are_not_made(void **state)
{
    (void)state;
    st_log_set_level(ST_LOG_WARN);
    assert_int_equal(st_log_threshold(), ST_LOG_WARN);
    st_log(ST_LOG_INFO, "e");
    st_log_fields(ST_LOG_INFO, "e", NULL);
    assert_int_equal(lines, 0);
    st_log(ST_LOG_WARN, "e");
    assert_int_equal(lines, 1);
    st_log_set_level(ST_LOG_OFF);
    st_log(ST_LOG_ERROR, "e");
    st_log(ST_LOG_OFF, "e");
    assert_int_equal(lines, 1);
    st_log_set_level(ST_LOG_DEBUG);
    st_log(ST_LOG_DEBUG, "e");
    assert_int_equal(lines, 2);
    st_log_set_sink(NULL, NULL, false);
    st_log(ST_LOG_ERROR, "e");
    assert_int_equal(lines, 2);
}

static void levels_have_names(void **state)
{
    enum st_log_level level = ST_LOG_OFF;

    (void)state;
    assert_true(st_log_level_parse("debug", &level) && level == ST_LOG_DEBUG);
    assert_true(st_log_level_parse("info", &level) && level == ST_LOG_INFO);
    assert_true(st_log_level_parse("warn", &level) && level == ST_LOG_WARN);
    assert_true(st_log_level_parse("error", &level) && level == ST_LOG_ERROR);
    assert_true(st_log_level_parse("off", &level) && level == ST_LOG_OFF);
    assert_false(st_log_level_parse("INFO", &level));
    assert_false(st_log_level_parse("", &level));
    assert_false(st_log_level_parse(NULL, &level));
}

/* Values of every length around the bounds, each byte of which grows sixfold when escaped. */
static void no_line_grows_past_eight_kib_and_a_cut_one_says_so(void **state)
{
    char big[9000];

    (void)state;
    memset(big, '\x01', sizeof(big));
    for (size_t i = 0; i < sizeof(big); i++) {
        size_t n = i / 2;
        bool as_json = i % 2, cut, whole;

        st_log_set_sink(catch_line, &lines, as_json);
        st_log(ST_LOG_INFO, "e", ST_FS("a", ST_SLICE(big, n)), ST_FS("b", ST_SLICE(big, n / 2)), ST_FI("last", 1));
        assert_true(line_len <= 8192);
        assert_int_equal(strlen(line), line_len);
        assert_true(!as_json || st_json_ok(ST_SLICE(line, line_len)));
        cut = strstr(line, as_json ? ",\"cut\":true}" : " cut=true") != NULL;
        whole = line_len > 6 * (n + n / 2) && strstr(line, as_json ? "\"last\":1" : " last=1");
        assert_int_equal(cut, !whole);
        assert_true(cut || n < 1500);
        assert_true(!cut || n > 800);
    }
}

static void a_long_value_is_cut_between_characters(void **state)
{
    char big[5000];

    (void)state;
    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = i % 2 ? '\xa4' : '\xc3';
    st_log(ST_LOG_INFO, "e", ST_FS("a", ST_SLICE(big, 3000)), ST_FI("b", 1));
    assert_non_null(strstr(line, "\xc3\xa4 b=1 cut=true"));
    big[1] = 'x'; /* and with the characters at odd places */
    st_log(ST_LOG_INFO, "e", ST_FS("a", ST_SLICE(big + 1, 3001)), ST_FI("b", 1));
    assert_non_null(strstr(line, "a=x\xc3\xa4"));
    assert_non_null(strstr(line, "\xc3\xa4 b=1 cut=true"));
    assert_true(st_utf8_valid(line, line_len));
}

static void log_again(void *arg, enum st_log_level level, const char *text, size_t len)
{
    catch_line(arg, level, text, len);
    st_log(ST_LOG_ERROR, "from.the.sink");
}

static void a_sink_that_logs_does_not_wait_for_itself(void **state)
{
    (void)state;
    st_log_set_sink(log_again, &lines, false);
    st_log(ST_LOG_INFO, "e");
    assert_int_equal(lines, 1);
    st_log(ST_LOG_INFO, "e");
    assert_int_equal(lines, 2);
}

static void *log_many(void *arg)
{
    for (int i = 0; i < 2000; i++)
        st_log(ST_LOG_INFO, "e", ST_F("who", arg), ST_FI("i", i));
    return NULL;
}

/* catch_line counts without a lock: a race would lose counts, and a thread sanitizer sees it. */
static void threads_take_turns_at_the_sink(void **state)
{
    char names[4][2] = {"a", "b", "c", "d"};
    pthread_t t[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, log_many, names[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(lines, 8000);
}

static void the_stderr_sink_adds_the_newline(void **state)
{
    int saved = dup(STDERR_FILENO), fds[2];
    char got[100] = "";

    (void)state;
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    st_log_stderr_sink(NULL, ST_LOG_INFO, "hello", 5);
    dup2(saved, STDERR_FILENO);
    assert_int_equal(read(fds[0], got, sizeof(got)), 6);
    assert_memory_equal(got, "hello\n", 6);
    close(fds[0]);
    close(fds[1]);
    close(saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_has_time_level_event_and_fields, logfmt, silence),
        cmocka_unit_test_setup_teardown(values_are_quoted_where_they_must_be, logfmt, silence),
        cmocka_unit_test_setup_teardown(json_lines_are_objects, json, silence),
        cmocka_unit_test_setup_teardown(a_field_without_a_key_ends_the_line, logfmt, silence),
        cmocka_unit_test_setup_teardown(lines_below_the_level_are_not_made, logfmt, silence),
        cmocka_unit_test(levels_have_names),
        cmocka_unit_test_setup_teardown(no_line_grows_past_eight_kib_and_a_cut_one_says_so, logfmt, silence),
        cmocka_unit_test_setup_teardown(a_long_value_is_cut_between_characters, logfmt, silence),
        cmocka_unit_test_setup_teardown(a_sink_that_logs_does_not_wait_for_itself, logfmt, silence),
        cmocka_unit_test_setup_teardown(threads_take_turns_at_the_sink, logfmt, silence),
        cmocka_unit_test(the_stderr_sink_adds_the_newline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
