/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lines.c - mode: oneshot-lines, a fresh child by lines for every job.
 */
#include "talk_kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define PID_ECHO                                                                                                       \
    "ready()\n"                                                                                                        \
    "for r in reqs(): say(task_id=r['task_id'], result=[os.getpid(), r['payload']])\n"

static void run_script(struct fx *fx, struct kit *k, struct fx_job *j, const char *script, const char *payload)
{
    kit_init(k, fx, ST_MODE_ONESHOT_LINES, script);
    kit_job(k, j, "j", payload);
    kit_run(k, j);
}

static void clear(struct kit *k, struct fx_job *j)
{
    fx_job_clear(j);
    kit_clear(k);
}

static void every_job_has_a_child_of_its_own(void **state)
{
    struct kit k;
    struct fx_job j;
    long pid[2];

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, PID_ECHO);
    for (int i = 0; i < 2; i++) {
        kit_job(&k, &j, "j", "{\"a\": 1}");
        kit_run(&k, &j);
        assert_true(j.ran.ok); /* its input has ended, so that it exits */
        assert_int_equal(j.ran.exit_code, 0);
        assert_true(j.ran.max_rss_kb > 0);
        pid[i] = atol(j.ran.result + 1);
        assert_non_null(strstr(j.ran.result, ", {\"a\": 1}]"));
        assert_false(fx_alive(pid[i]));
        fx_job_clear(&j);
    }
    assert_int_not_equal(pid[0], pid[1]);
    assert_int_equal(st_exec_room(k.fx->x, &k.cmd), INT32_MAX);
    kit_clear(&k);
}

static void the_environment_names_the_job(void **state)
{
    struct kit k;
    struct fx_job j;

    run_script(*state, &k, &j,
               "ready()\nfor r in reqs(): say(task_id=r['task_id'], result=[os.environ[v] for v in "
               "('STINT_JOB_ID', 'STINT_TYPE', 'STINT_QUEUE', 'STINT_ATTEMPT')])\n",
               "1");
    kit_ok(&j, "[\"j\", \"a.type\", \"mail.fast\", \"2\"]");
    clear(&k, &j);
}

static void its_errors_are_as_a_resident_childs(void **state)
{
    struct kit k;
    struct fx_job j;

    run_script(*state, &k, &j,
               "ready()\nfor r in reqs(): say(task_id=r['task_id'], error='no', retry=True, "
               "retry_after=3)\nnote('words\\n')\n",
               "1");
    kit_failed(&j, ST_KIND_APP_ERROR, "no");
    assert_int_equal(j.ran.advice, ST_BY_POLICY);
    assert_int_equal(j.ran.retry_after_us, 3 * ST_SEC);
    assert_string_equal(j.ran.log_tail, "words\n");
    clear(&k, &j);

    run_script(*state, &k, &j, "ready()\nfor r in reqs(): say(task_id='j', error='no')\n", "1");
    kit_failed(&j, ST_KIND_APP_ERROR, "no");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    clear(&k, &j);
}

static void its_answer_counts_however_it_exits(void **state)
{
    struct kit k;
    struct fx_job j;

    run_script(*state, &k, &j, PID_ECHO "os._exit(9)\n", "1");
    assert_true(j.ran.ok);
    assert_int_equal(j.ran.exit_code, 9);
    clear(&k, &j);
}

static void one_that_does_not_exit_after_its_answer_is_stopped(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES,
             "ready()\nfor r in reqs(): say(task_id='j', result=5)\nwhile True: time.sleep(1000)\n");
    k.cmd.grace_us = 50 * ST_MS;
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_ok(&j, "5");
    assert_int_equal(j.ran.signal, SIGTERM);
    clear(&k, &j);
}

static void its_last_line_needs_no_newline(void **state)
{
    struct kit k;
    struct fx_job j;

    run_script(*state, &k, &j,
               "ready()\nfor r in reqs():\n"
               "    os.write(1, b'{\"task_id\":\"%s\",\"result\":22}' % r['task_id'].encode())\n"
               "    os._exit(0)\n",
               "1");
    kit_ok(&j, "22");
    clear(&k, &j);

    run_script(*state, &k, &j,
               "ready()\nfor r in reqs():\n"
               "    os.write(1, b'{\"task_id\":\"%s\",\"result\":22' % r['task_id'].encode())\n"
               "    os._exit(0)\n",
               "1");
    kit_failed_like(&j, ST_KIND_CHILD_CRASHED, "the child ended without an answer");
    clear(&k, &j);
}

static void one_that_closes_its_stdout_has_crashed_and_not_timed_out(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES,
             "ready()\nfor r in reqs(): os.close(1)\nwhile True: time.sleep(1000)\n");
    k.cmd.grace_us = 50 * ST_MS;
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child closed its stdout without an answer");
    clear(&k, &j);

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, "os.close(1)\nwhile True: time.sleep(1000)\n");
    k.cmd.grace_us = 50 * ST_MS;
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child closed its stdout before it was ready");
    clear(&k, &j);
}

static void an_answer_to_another_task_or_attempt_does_not_count(void **state)
{
    struct kit k;
    struct fx_job j;

    run_script(*state, &k, &j,
               "ready()\nfor r in reqs():\n"
               "    say(task_id='other', result=1)\n"
               "    say(task_id='j', fence=r['fence'] + 1, result=2)\n"
               "    say(task_id='j', fence=r['fence'], result=3)\n",
               "1");
    kit_ok(&j, "3");
    clear(&k, &j);
}

static void one_that_exits_without_an_answer_has_crashed(void **state)
{
    struct kit k;
    struct fx_job j;

    run_script(*state, &k, &j,
               "ready()\nfor r in reqs():\n    say(task_id='other', result=1)\n"
               "    note('lost it\\n')\n    os._exit(0)\n",
               "1");
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child ended without an answer: exit status 0: lost it");
    assert_int_equal(j.ran.exit_code, 0);
    clear(&k, &j);

    run_script(*state, &k, &j, "os.kill(os.getpid(), 9)\n", "1");
    kit_failed(&j, ST_KIND_CHILD_CRASHED,
               "the child ended without an answer: killed by signal 9 (SIGKILL) before it was ready");
    assert_int_equal(j.ran.signal, SIGKILL);
    clear(&k, &j);

    run_script(*state, &k, &j, "ready()\nos.close(1)\nfor r in reqs(): pass\n", "1");
    kit_failed_like(&j, ST_KIND_CHILD_CRASHED, "the child ended without an answer: exit status");
    clear(&k, &j);
}

static void one_that_cannot_start_says_why(void **state)
{
    struct kit k;
    struct fx_job j;

    run_script(*state, &k, &j, "say(status='error', error='no model')\ntime.sleep(1000)\n", "1");
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child did not start: no model");
    clear(&k, &j);

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, "time.sleep(1000)\n");
    k.cmd.startup_us = 50 * ST_MS;
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child did not start: not ready within 50ms");
    clear(&k, &j);

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, "");
    free(k.argv[0]);
    k.argv[0] = strdup("/no/such/program");
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_NO_HANDLER, "cannot run /no/such/program: No such file or directory");
    clear(&k, &j);
}

/* Starting is not part of it. */
static void the_timeout_counts_from_the_request(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, "time.sleep(0.3)\n" PID_ECHO);
    kit_job(&k, &j, "j", "1");
    j.job->policy.timeout_us = 250 * ST_MS;
    kit_run(&k, &j);
    if (!j.ran.ok)
        fail_msg("failed: %s", j.ran.message);
    clear(&k, &j);

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, "ready()\nfor r in reqs(): time.sleep(1000)\n");
    kit_job(&k, &j, "j", "1");
    j.job->policy.timeout_us = 100 * ST_MS;
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_TIMEOUT, "timed out after 100ms");
    clear(&k, &j);
}

static void it_can_be_stopped(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, "ready()\nfor r in reqs():\n    mark('got')\n    time.sleep(1000)\n");
    kit_job(&k, &j, "j", "1");
    kit_start(&k, &j);
    fx_wait_number(k.fx, fx_path(k.fx, "got"));
    st_exec_abort(j.run, ST_ABORT_CANCELLED);
    fx_wait(k.fx, &j);
    assert_int_equal(j.ran.aborted, ST_ABORT_CANCELLED);
    assert_string_equal(j.ran.message, "stopped: cancelled");
    clear(&k, &j);

    kit_init(&k, *state, ST_MODE_ONESHOT_LINES, "time.sleep(1000)\n");
    kit_job(&k, &j, "j", "1");
    kit_start(&k, &j);
    st_exec_kill(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(k.fx, &j);
    assert_int_equal(j.ran.aborted, ST_ABORT_SHUTDOWN);
    clear(&k, &j);
}

static void draining_spares_those_that_have_their_request(void **state)
{
    struct fx *fx = *state;
    struct kit k, slow;
    struct fx_job a, b;

    kit_init(&k, fx, ST_MODE_ONESHOT_LINES,
             "ready()\nfor r in reqs():\n"
             "    mark('read'); await_file('go'); say(task_id=r['task_id'], result=1)\n");
    kit_init(&slow, fx, ST_MODE_ONESHOT_LINES, "mark('slow')\ntime.sleep(1000)\n");
    kit_job(&k, &a, "a", "0");
    kit_job(&slow, &b, "b", "0");
    kit_start(&k, &a);
    kit_start(&slow, &b);
    fx_wait_number(fx, fx_path(fx, "read"));
    fx_wait_number(fx, fx_path(fx, "slow"));
    st_exec_drain(fx->x);
    fx_wait(fx, &b);
    assert_false(b.ran.ok);
    assert_int_equal(b.ran.aborted, ST_ABORT_SHUTDOWN);
    fclose(fopen(fx_path(fx, "go"), "we"));
    fx_wait(fx, &a);
    kit_ok(&a, "1");
    fx_job_clear(&a);
    fx_job_clear(&b);
    kit_clear(&k);
    kit_clear(&slow);
}

static void noise_goes_to_the_log(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;
    char text[256] = "";
    FILE *f;

    fx->opt.logs_dir = fx->dir;
    fx_reopen(fx);
    run_script(fx, &k, &j, "raw('loading\\n')\n" PID_ECHO, "1");
    assert_true(j.ran.ok);
    f = fopen(j.ran.log, "re");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    assert_string_equal(text, "STDOUT:\nloading\n");
    clear(&k, &j);
}

static void a_large_payload_goes_there_and_back(void **state)
{
    size_t len = 1 << 20;
    char *payload = malloc(len + 1), *want;
    struct kit k;
    struct fx_job j;

    assert_non_null(payload);
    memset(payload, 'x', len);
    payload[0] = payload[len - 1] = '"';
    payload[len] = '\0';
    run_script(*state, &k, &j, PID_ECHO, payload);
    assert_true(j.ran.ok);
    want = strstr(j.ran.result, ", ");
    assert_non_null(want);
    assert_memory_equal(want + 2, payload, len);
    free(payload);
    clear(&k, &j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(every_job_has_a_child_of_its_own),
        FX_TEST(the_environment_names_the_job),
        FX_TEST(its_errors_are_as_a_resident_childs),
        FX_TEST(its_answer_counts_however_it_exits),
        FX_TEST(one_that_does_not_exit_after_its_answer_is_stopped),
        FX_TEST(its_last_line_needs_no_newline),
        FX_TEST(one_that_closes_its_stdout_has_crashed_and_not_timed_out),
        FX_TEST(an_answer_to_another_task_or_attempt_does_not_count),
        FX_TEST(one_that_exits_without_an_answer_has_crashed),
        FX_TEST(one_that_cannot_start_says_why),
        FX_TEST(the_timeout_counts_from_the_request),
        FX_TEST(it_can_be_stopped),
        FX_TEST(draining_spares_those_that_have_their_request),
        FX_TEST(noise_goes_to_the_log),
        FX_TEST(a_large_payload_goes_there_and_back),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
