/* SPDX-License-Identifier: Apache-2.0
 *
 * test_oneshot.c - what goes into a command and what comes out of it.
 */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_ok(const struct fx_job *j, const char *result)
{
    if (!j->ran.ok)
        fail_msg("failed: %s", j->ran.message ? j->ran.message : "(no message)");
    if (!result) {
        assert_null(j->ran.result);
        return;
    }
    assert_non_null(j->ran.result);
    assert_string_equal(j->ran.result, result);
    assert_int_equal(j->ran.result_len, strlen(result));
}

static void the_payload_comes_on_stdin_and_stdout_is_the_result(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "cat", "{\"a\": 1.10}");
    fx_run(*state, &j);
    check_ok(&j, "{\"a\": 1.10}");
    assert_int_equal(j.ran.exit_code, 0);
    assert_true(j.ran.max_rss_kb > 0);
    fx_job_clear(&j);
}

static void check_failed(const struct fx_job *j, enum st_kind kind, const char *message)
{
    assert_false(j->ran.ok);
    assert_string_equal(st_kind_name(j->ran.kind), st_kind_name(kind));
    assert_non_null(j->ran.message);
    assert_string_equal(j->ran.message, message);
    assert_null(j->ran.result);
}

static void a_command_that_takes_too_long_is_a_timeout(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "sleep 1000", "");
    j.job->policy.timeout_us = 150 * ST_MS;
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_TIMEOUT, "timed out after 150ms");
    assert_int_equal(j.ran.aborted, ST_ABORT_NOT);
    fx_job_clear(&j);
}

static void an_aborted_run_tells_the_first_reason(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "sleep 1000", "");
    fx_start(*state, &j);
    st_exec_abort(j.run, ST_ABORT_TAKEN);
    st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(*state, &j);
    assert_int_equal(j.ran.aborted, ST_ABORT_TAKEN);
    assert_false(j.ran.ok);
    assert_int_equal(j.ran.signal, 15);
    fx_job_clear(&j);
}

static void a_program_that_is_not_there_is_named(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "", "");
    free(j.argv[0]);
    j.argv[0] = strdup("no-such-program");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "cannot run no-such-program: No such file or directory");
    fx_job_clear(&j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(the_payload_comes_on_stdin_and_stdout_is_the_result),
        FX_TEST(a_command_that_takes_too_long_is_a_timeout),
        FX_TEST(an_aborted_run_tells_the_first_reason),
        FX_TEST(a_program_that_is_not_there_is_named),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
