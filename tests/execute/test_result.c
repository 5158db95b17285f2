/* SPDX-License-Identifier: Apache-2.0
 *
 * test_result.c - how an exit, and what was printed, become an outcome.
 */
#include "fixture.h"

#include <stdlib.h>
#include <string.h>

#include "execute/result.h"

#define EXIT(n) ((n) << 8)

static struct st_ran ran_of(int status, const char *out, size_t len, const char *tail)
{
    struct st_ran ran = ST_RAN_INIT;
    struct st_buf b;

    st_buf_init(&b, 1 << 20);
    st_buf_put(&b, out, len);
    if (tail) {
        ran.log_tail = strdup(tail);
        ran.log_tail_len = strlen(tail);
    }
    st_result_fill(&ran, status, &b);
    st_buf_clear(&b);
    return ran;
}

static void expect_result(const char *out, const char *want)
{
    struct st_ran ran = ran_of(EXIT(0), out, strlen(out), NULL);

    assert_true(ran.ok);
    assert_int_equal(ran.kind, ST_KIND_NONE);
    assert_int_equal(ran.exit_code, 0);
    assert_null(ran.message);
    if (want) {
        assert_non_null(ran.result);
        assert_string_equal(ran.result, want);
        assert_int_equal(ran.result_len, strlen(want));
    } else {
        assert_null(ran.result);
        assert_int_equal(ran.result_len, 0);
    }
    st_ran_clear(&ran);
}

static void expect_failure(int status, const char *out, const char *tail, enum st_kind kind, enum st_advice advice,
                           const char *message)
{
    struct st_ran ran = ran_of(status, out, strlen(out), tail);

    assert_false(ran.ok);
    assert_string_equal(st_kind_name(ran.kind), st_kind_name(kind));
    assert_int_equal(ran.advice, advice);
    assert_null(ran.result);
    assert_string_equal(ran.message, message);
    st_ran_clear(&ran);
}

static void stdout_is_kept_byte_for_byte_less_one_newline(void **state)
{
    (void)state;
    expect_result("{\"b\":1.10,\"a\":123456789012345678901234567890, \"a\":2}\n",
                  "{\"b\":1.10,\"a\":123456789012345678901234567890, \"a\":2}");
    expect_result(" [1,\n2 ] \n\n", " [1,\n2 ] \n");
    expect_result("just text\n", "just text");
    expect_result("no newline", "no newline");
    expect_result("true", "true");
    expect_result("null\n", "null");
}

static void nothing_printed_is_no_result(void **state)
{
    (void)state;
    expect_result("", NULL);
    expect_result("\n", NULL);
    expect_result("\n\n", "\n");
}

static void bytes_that_are_no_text_are_kept(void **state)
{
    static const char bytes[] = "\xff\x00\xfe\n\n";
    struct st_ran ran = ran_of(EXIT(0), bytes, sizeof(bytes) - 1, NULL);

    (void)state;
    assert_true(ran.ok);
    assert_int_equal(ran.result_len, 4);
    assert_memory_equal(ran.result, bytes, 4);
    st_ran_clear(&ran);
}

static void an_envelope_that_says_ok_gives_its_return_value(void **state)
{
    (void)state;
    expect_result("{\"ok\":true,\"return\":{\"x\": 1.0}}\n", "{\"x\": 1.0}");
    expect_result(" {\"return\" : [1, 2] , \"ok\":true} \n", "[1, 2]");
    expect_result("{\"ok\":true,\"return\":null}", "null");
    expect_result("{\"ok\":true,\"return\":\"a\\u00e9\"}", "\"a\\u00e9\"");
    expect_result("{\"ok\":true,\"exception_class\":null}", NULL);
}

static void what_only_looks_like_an_envelope_is_a_result(void **state)
{
    (void)state;
    expect_result("{\"ok\":true}", "{\"ok\":true}");
    expect_result("{\"ok\":\"yes\",\"return\":1}", "{\"ok\":\"yes\",\"return\":1}");
    expect_result("{\"ok\":1,\"return\":1}", "{\"ok\":1,\"return\":1}");
    expect_result("[{\"ok\":false,\"return\":1}]", "[{\"ok\":false,\"return\":1}]");
    expect_result("{\"ok\":false,\"return\":1", "{\"ok\":false,\"return\":1");
    expect_result("{\"x\":{\"ok\":false,\"return\":1}}", "{\"x\":{\"ok\":false,\"return\":1}}");
}

static void an_envelope_that_says_not_ok_fails_even_with_exit_0(void **state)
{
    static const char text[] = "{\"ok\":false,\"exception_class\":\"ValueError\","
                               "\"message\":\"bad \\\"x\\\"\",\"traceback\":\"line 1\\nline 2\"}";

    (void)state;
    expect_failure(EXIT(0), text, NULL, ST_KIND_APP_ERROR, ST_BY_POLICY, "ValueError: bad \"x\"\nline 1\nline 2");
    expect_failure(EXIT(1), text, "noise\n", ST_KIND_APP_ERROR, ST_BY_POLICY, "ValueError: bad \"x\"\nline 1\nline 2");
    expect_failure(EXIT(65), text, NULL, ST_KIND_PERMANENT, ST_PERMANENT, "ValueError: bad \"x\"\nline 1\nline 2");
    expect_failure(EXIT(0), "{\"ok\":false,\"exception_class\":\"E\"}", NULL, ST_KIND_APP_ERROR, ST_BY_POLICY, "E");
    expect_failure(EXIT(0), "{\"ok\":false,\"return\":null}", NULL, ST_KIND_APP_ERROR, ST_BY_POLICY,
                   "the command said ok: false");
    expect_failure(EXIT(0), "{\"ok\":false,\"return\":1,\"message\":\"why\",\"traceback\":null}", NULL,
                   ST_KIND_APP_ERROR, ST_BY_POLICY, "why");
}

static void a_traceback_is_cut_at_10000_bytes_on_a_character(void **state)
{
    struct st_ran ran;
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 1 << 20);
    st_buf_puts(&b, "{\"ok\":false,\"exception_class\":\"E\",\"traceback\":\"");
    for (int i = 0; i < 200000; i++)
        st_buf_puts(&b, "\xc3\xa9");
    st_buf_puts(&b, "\"}");
    ran = ran_of(EXIT(1), b.p, b.len, NULL);
    assert_int_equal(ran.kind, ST_KIND_APP_ERROR);
    assert_true(strlen(ran.message) <= 10000);
    assert_true(strlen(ran.message) >= 9998);
    assert_true(st_utf8_valid(ran.message, strlen(ran.message)));
    assert_memory_equal(ran.message, "E\n\xc3\xa9", 4);
    st_ran_clear(&ran);
    st_buf_clear(&b);
}

static void an_envelope_that_says_ok_does_not_help_a_bad_exit(void **state)
{
    (void)state;
    expect_failure(EXIT(3), "{\"ok\":true,\"return\":1}", NULL, ST_KIND_EXIT, ST_BY_POLICY, "exit status 3");
}

static void an_exit_status_decides_kind_and_advice(void **state)
{
    (void)state;
    expect_failure(EXIT(1), "", NULL, ST_KIND_EXIT, ST_BY_POLICY, "exit status 1");
    expect_failure(EXIT(75), "x", NULL, ST_KIND_EXIT, ST_BY_POLICY, "exit status 75");
    expect_failure(EXIT(65), "", "no such user\n", ST_KIND_PERMANENT, ST_PERMANENT, "exit status 65: no such user");
}

static void the_last_line_of_stderr_explains_an_exit(void **state)
{
    (void)state;
    expect_failure(EXIT(2), "", "first\nsecond line\n\n  \n", ST_KIND_EXIT, ST_BY_POLICY, "exit status 2: second line");
    expect_failure(EXIT(2), "", "only", ST_KIND_EXIT, ST_BY_POLICY, "exit status 2: only");
    expect_failure(EXIT(2), "", "\n\n", ST_KIND_EXIT, ST_BY_POLICY, "exit status 2");
    expect_failure(EXIT(2), "", "bad \xff byte", ST_KIND_EXIT, ST_BY_POLICY, "exit status 2: bad \xef\xbf\xbd byte");
}

static void a_signal_is_named(void **state)
{
    struct st_ran ran = ran_of(9, "1", 1, NULL);

    (void)state;
    assert_int_equal(ran.signal, 9);
    assert_int_equal(ran.exit_code, -1);
    assert_null(ran.result);
    st_ran_clear(&ran);
    expect_failure(9, "{\"ok\":true,\"return\":1}", NULL, ST_KIND_KILLED, ST_BY_POLICY, "killed by signal 9 (SIGKILL)");
    expect_failure(11 | 0x80, "", NULL, ST_KIND_KILLED, ST_BY_POLICY, "killed by signal 11 (SIGSEGV)");
}

static void a_failure_message_has_a_maximum(void **state)
{
    struct st_ran ran = ST_RAN_INIT;
    char *big = malloc(50001);

    (void)state;
    memset(big, 'x', 50000);
    big[50000] = '\0';
    st_ran_fail(&ran, ST_KIND_INTERNAL, "first");
    st_ran_fail(&ran, ST_KIND_EXIT, "%s", big);
    assert_int_equal(ran.kind, ST_KIND_EXIT);
    assert_int_equal(strlen(ran.message), 10000);
    free(big);
    st_ran_clear(&ran);
    assert_null(ran.message);
    assert_int_equal(ran.exit_code, -1);
}

static void abort_reasons_have_the_names_of_the_contract(void **state)
{
    (void)state;
    assert_string_equal(st_abort_name(ST_ABORT_TAKEN), "taken_by_another_worker");
    assert_string_equal(st_abort_name(ST_ABORT_CANCELLED), "cancelled");
    assert_string_equal(st_abort_name(ST_ABORT_SHUTDOWN), "shutdown");
    assert_string_equal(st_abort_name(ST_ABORT_LEASE), "lease_expired");
    assert_string_equal(st_abort_name(ST_ABORT_NOT_FOUND), "not_found");
    assert_string_equal(st_abort_name(ST_ABORT_ALREADY_COMPLETED), "already_completed");
    assert_string_equal(st_abort_name(ST_ABORT_ERROR), "error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stdout_is_kept_byte_for_byte_less_one_newline),
        cmocka_unit_test(nothing_printed_is_no_result),
        cmocka_unit_test(bytes_that_are_no_text_are_kept),
        cmocka_unit_test(an_envelope_that_says_ok_gives_its_return_value),
        cmocka_unit_test(what_only_looks_like_an_envelope_is_a_result),
        cmocka_unit_test(an_envelope_that_says_not_ok_fails_even_with_exit_0),
        cmocka_unit_test(a_traceback_is_cut_at_10000_bytes_on_a_character),
        cmocka_unit_test(an_envelope_that_says_ok_does_not_help_a_bad_exit),
        cmocka_unit_test(an_exit_status_decides_kind_and_advice),
        cmocka_unit_test(the_last_line_of_stderr_explains_an_exit),
        cmocka_unit_test(a_signal_is_named),
        cmocka_unit_test(a_failure_message_has_a_maximum),
        cmocka_unit_test(abort_reasons_have_the_names_of_the_contract),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
