/* SPDX-License-Identifier: Apache-2.0
 *
 * test_resident.c - resident children: requests, answers, and what stands between.
 */
#include "talk_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

/* Sends the payload back without understanding it. */
#define RAW_ECHO                                                                                                       \
    "ready()\n"                                                                                                        \
    "for line in iter(sys.stdin.buffer.readline, b''):\n"                                                              \
    "    id = json.loads(line.decode('utf-8', 'surrogateescape'))['task_id']\n"                                        \
    "    payload = line[line.index(b'\"payload\":') + 10:line.rindex(b',\"retry_count\"')]\n"                          \
    "    sys.stdout.buffer.write(b'{\"task_id\":' + json.dumps(id).encode() + b',\"result\":' +\n"                     \
    "                            payload + b'}\\n')\n"                                                                 \
    "    sys.stdout.buffer.flush()\n"

#define ECHO_ALL                                                                                                       \
    "ready()\n"                                                                                                        \
    "for r in reqs(): say(task_id=r['task_id'], result=r['payload'])\n"

/* ---- requests and answers -------------------------------------------------------- */

static void a_child_answers_many_jobs(void **state)
{
    struct kit k;
    struct fx_job j[20];
    char id[16], payload[16];

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): say(task_id=r['task_id'], result=[os.getpid(), "
             "r['payload']])\n");
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof(id), "j%d", i);
        snprintf(payload, sizeof(payload), "%d", i);
        kit_job(&k, &j[i], id, payload);
        kit_start(&k, &j[i]);
    }
    for (int i = 0; i < 20; i++) {
        fx_wait(k.fx, &j[i]);
        assert_true(j[i].ran.ok);
        assert_int_equal(atoi(j[i].ran.result + 1), atoi(j[0].ran.result + 1)); /* the same child */
        assert_int_equal(atoi(strchr(j[i].ran.result, ' ')), i);
    }
    for (int i = 0; i < 20; i++)
        fx_job_clear(&j[i]);
    kit_clear(&k);
}

static void a_request_says_all_there_is(void **state)
{
    struct kit k;
    struct fx_job j;
    char want[512];

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): say(task_id=r['task_id'], result=[r[x] for x in ('task_id', "
             "'type', 'payload', 'retry_count', 'max_retry', 'queue', 'attempt', 'fence')])\n");
    kit_job(&k, &j, "job \"7\"", "{}");
    kit_run(&k, &j);
    snprintf(want, sizeof(want), "[\"job \\\"7\\\"\", \"a.type\", {}, 1, 2, \"mail.fast\", 2, %lld]",
             (long long)j.job->fence);
    kit_ok(&j, want);
    fx_job_clear(&j);
    kit_clear(&k);
}

static void an_error_is_for_good_unless_it_says_retry(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT, "ready()\nfor r in reqs(): say(task_id=r['task_id'], **r['payload'])\n");
    kit_job(&k, &j, "j1", "{\"error\": \"no such user\"}");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_APP_ERROR, "no such user");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    fx_job_clear(&j);

    kit_job(&k, &j, "j2", "{\"error\": \"busy\", \"retry\": true, \"retry_after\": 1.5}");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_APP_ERROR, "busy");
    assert_int_equal(j.ran.advice, ST_BY_POLICY);
    assert_int_equal(j.ran.retry_after_us, 1500 * ST_MS);
    fx_job_clear(&j);

    kit_expect(&k, "j3", "{\"error\": \"\", \"result\": 7}", "7");
    kit_expect(&k, "j4", "{\"error\": null}", "null");
    kit_clear(&k);
}

static void answers_may_come_in_any_order(void **state)
{
    struct kit k;
    struct fx_job j[4];
    char id[8];

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\n"
             "got = []\n"
             "for r in reqs():\n"
             "    got.append(r)\n"
             "    if len(got) == 4:\n"
             "        for r in reversed(got): say(task_id=r['task_id'], result=r['payload'])\n");
    for (int i = 0; i < 4; i++) {
        snprintf(id, sizeof(id), "j%d", i);
        kit_job(&k, &j[i], id, id + 1);
        kit_start(&k, &j[i]);
    }
    for (int i = 0; i < 4; i++) {
        fx_wait(k.fx, &j[i]);
        snprintf(id, sizeof(id), "%d", i);
        kit_ok(&j[i], id);
        fx_job_clear(&j[i]);
    }
    kit_clear(&k);
}

static void an_id_that_is_written_with_escapes_is_the_same(void **state)
{
    struct kit k;

    kit_init(&k, *state, ST_MODE_RESIDENT, ECHO_ALL);
    kit_expect(&k, "\xc3\xa9t\xc3\xa9 \"\\/ \xf0\x9f\x98\x80", "1", "1");
    kit_clear(&k);
}

static void only_the_first_answer_counts(void **state)
{
    struct kit k;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\n"
             "for r in reqs():\n"
             "    say(task_id='somebody else', result=0)\n"
             "    say(task_id=r['task_id'], result=1)\n"
             "    say(task_id=r['task_id'], result=2)\n");
    kit_expect(&k, "a", "null", "1");
    kit_expect(&k, "b", "null", "1");
    kit_clear(&k);
}

/* The same job again: what is still to come of its earlier attempt is not taken for this one's. */
static void an_answer_with_another_fence_is_not_ours(void **state)
{
    struct kit k;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\n"
             "for r in reqs():\n"
             "    say(task_id=r['task_id'], result='old', fence=r['fence'] - 1)\n"
             "    say(task_id=r['task_id'], result='new', fence=r['fence'])\n");
    kit_expect(&k, "a", "null", "\"new\"");
    kit_clear(&k);
}

/* ---- byte for byte --------------------------------------------------------------- */

static void payloads_and_results_stay_byte_for_byte(void **state)
{
    static const char *const all[] = {
        "9223372036854775807",
        "-9223372036854775808",
        "123456789012345678901234567890",
        "1.10",
        "1E400",
        "-0.0",
        "{\"a\":1,\"a\":2,\"\":3}",
        "\"\\ud800\"",
        "\"\\uDC00 \\ud83d\\ude00 \\u0000 \\/\"",
        "\"\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80\"",
        " [ ]\t",
        "\"\"",
        "null",
    };
    struct kit k;
    char id[16];

    kit_init(&k, *state, ST_MODE_RESIDENT, RAW_ECHO);
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        struct fx_job j;
        struct st_slice want = st_json_trim(st_slice_cstr(all[i]));

        snprintf(id, sizeof(id), "j%zu", i);
        kit_job(&k, &j, id, all[i]);
        kit_run(&k, &j);
        assert_true(j.ran.ok);
        assert_int_equal(j.ran.result_len, want.len); /* blanks around a value are not of it */
        assert_memory_equal(j.ran.result, want.p, want.len);
        fx_job_clear(&j);
    }
    kit_clear(&k);
}

static void a_pretty_printed_payload_is_one_line(void **state)
{
    struct kit k;

    kit_init(&k, *state, ST_MODE_RESIDENT, RAW_ECHO);
    kit_expect(&k, "a", "{\n  \"a\": [\r\n\t1.10\n  ],\n  \"b\": \"x\\ny\"\n}",
               "{   \"a\": [  \t1.10   ],   \"b\": \"x\\ny\" }");
    kit_expect(&k, "b", "2", "2");
    kit_clear(&k);
}

static void a_payload_that_is_not_json_comes_as_base64(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "import base64\n"
             "ready()\n"
             "for r in reqs():\n"
             "    say(task_id=r['task_id'], result=[r['payload'], "
             "list(base64.b64decode(r['payload_base64']))])\n");
    kit_job_bytes(&k, &j, "j", "\0\n\xff{", 4);
    kit_run(&k, &j);
    kit_ok(&j, "[null, [0, 10, 255, 123]]");
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ---- sizes ----------------------------------------------------------------------- */

static char *string_of(size_t len)
{
    char *s = malloc(len + 1);

    assert_non_null(s);
    memset(s, 'x', len);
    s[0] = s[len - 1] = '"';
    s[len] = '\0';
    return s;
}

static void a_request_may_be_as_long_as_a_line_and_no_longer(void **state)
{
    struct fx *fx = *state;
    char *payload = string_of(1500); /* room for the other members is made below */
    struct kit k;
    struct fx_job j;
    size_t others;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor line in iter(sys.stdin.readline, ''):\n"
             "    r = json.loads(line); say(task_id=r['task_id'], result=len(line) - 1)\n");
    kit_job(&k, &j, "j", payload);
    j.job->policy.timeout_us = 0;
    kit_run(&k, &j);
    others = (size_t)atol(j.ran.result) - 1500;
    fx_job_clear(&j);

    fx->opt.limits.line = 2000;
    fx_reopen(fx);
    free(payload);
    payload = string_of(2000 - others);
    kit_job(&k, &j, "j", payload);
    j.job->policy.timeout_us = 0;
    kit_run(&k, &j);
    kit_ok(&j, "2000");
    fx_job_clear(&j);

    free(payload);
    payload = string_of(2001 - others);
    kit_job(&k, &j, "j", payload);
    j.job->policy.timeout_us = 0;
    kit_run(&k, &j);
    kit_failed_like(&j, ST_KIND_PERMANENT, "the request with its payload of ");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    fx_job_clear(&j);
    kit_job(&k, &j, "j", "1"); /* the child goes on */
    kit_run(&k, &j);
    assert_true(j.ran.ok);
    fx_job_clear(&j);
    free(payload);
    kit_clear(&k);
}

static void a_payload_of_the_limit_goes_there_and_back(void **state)
{
    char *payload = string_of(st_limits_default.payload);
    struct kit k;
    struct fx_job j[4];
    char id[8];

    /* All of them at once: more than the pipes hold, in both directions. */
    kit_init(&k, *state, ST_MODE_RESIDENT, RAW_ECHO);
    for (int i = 0; i < 4; i++) {
        snprintf(id, sizeof(id), "j%d", i);
        kit_job(&k, &j[i], id, payload);
        kit_start(&k, &j[i]);
    }
    for (int i = 0; i < 4; i++) {
        fx_wait(k.fx, &j[i]);
        kit_ok(&j[i], payload);
        fx_job_clear(&j[i]);
    }
    free(payload);
    kit_clear(&k);
}

static void a_result_may_be_as_large_as_the_limit_and_no_larger(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;
    char *want = string_of(1000);

    fx->opt.limits.result = 1000;
    fx_reopen(fx);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): say(task_id=r['task_id'], result='x' * r['payload'])\n");
    kit_expect(&k, "a", "998", want);
    kit_job(&k, &j, "b", "999");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_RESULT_TOO_LARGE, "the result is larger than 1000 bytes");
    fx_job_clear(&j);
    kit_expect(&k, "c", "998", want);
    free(want);
    kit_clear(&k);
}

static void an_answer_that_is_longer_than_a_line_fails_its_job_only(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;

    fx->opt.limits.line = 100000;
    fx_reopen(fx);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): say(task_id=r['task_id'], result='x' * r['payload'])\n");
    kit_job(&k, &j, "a", "100001");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_RESULT_TOO_LARGE, "the answer is longer than a line may be (100000 bytes)");
    fx_job_clear(&j);
    kit_expect(&k, "b", "1", "\"x\"");
    kit_clear(&k);
}

static void an_answer_that_is_not_json_fails_its_job_only(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): say(task_id=r['task_id'], result=float(r['payload']))\n");
    kit_job(&k, &j, "a", "\"nan\"");
    kit_run(&k, &j);
    kit_failed_like(&j, ST_KIND_BAD_RESULT, "the answer is not JSON: this is no value at byte ");
    fx_job_clear(&j);
    kit_expect(&k, "b", "1", "1.0");
    kit_clear(&k);
}

static void a_gigabyte_of_noise_is_only_noise(void **state)
{
    struct fx *fx = *state;
    struct kit k;

    fx->opt.limits.line = 1 << 20;
    fx_reopen(fx);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\n"
             "for r in reqs():\n"
             "    for i in range(1024): raw('x' * (1 << 20))\n"
             "    raw('\\n')\n"
             "    say(task_id=r['task_id'], result=r['payload'])\n");
    kit_expect(&k, "a", "7", "7");
    kit_clear(&k);
}

/* ---- noise, stderr and logs ------------------------------------------------------ */

static void what_is_printed_before_ready_does_not_matter(void **state)
{
    struct kit k;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "raw('loading...\\n{\"half\": \\n\\n[1]\\n\\0\\xff\\n{\"status\": \"warming up\"}\\n')\n"
             "say(task_id='j', result='not yet')\n" RAW_ECHO);
    kit_expect(&k, "j", "1", "1");
    kit_clear(&k);
}

static char *contents(const char *path)
{
    char *text = calloc(1, 4096);
    FILE *f = fopen(path, "re");

    assert_non_null(f);
    assert_non_null(text);
    assert_true(fread(text, 1, 4095, f) > 0);
    fclose(f);
    return text;
}

static void noise_and_stderr_go_to_the_log_of_the_attempt(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;
    char *text;

    fx->opt.logs_dir = fx->dir;
    fx_reopen(fx);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\n"
             "for r in reqs():\n"
             "    raw('some noise\\n{\"more\": 1}\\n')\n"
             "    if r['payload']: note('a warning\\n'); await_file('go')\n"
             "    say(task_id=r['task_id'], error='no', result=1)\n");
    kit_job(&k, &j, "j", "false");
    kit_run(&k, &j);
    assert_non_null(j.ran.log);
    text = contents(j.ran.log);
    assert_string_equal(text, "STDOUT:\nsome noise\n{\"more\": 1}\n");
    free(text);
    fx_job_clear(&j);

    kit_job(&k, &j, "k", "true");
    kit_start(&k, &j);
    for (text = NULL; !text || !strstr(text, "a warning\n");) {
        char path[256];

        uv_run(&fx->loop, UV_RUN_NOWAIT);
        free(text);
        snprintf(path, sizeof(path), "%s/k-2-%lld.log", fx->dir, (long long)j.job->fence);
        text = access(path, R_OK) ? NULL : contents(path);
    }
    free(text);
    fclose(fopen(fx_path(fx, "go"), "we"));
    fx_wait(fx, &j);
    kit_failed(&j, ST_KIND_APP_ERROR, "no");
    assert_string_equal(j.ran.log_tail, "a warning\n");
    fx_job_clear(&j);
    kit_clear(&k);
}

static void a_job_without_noise_has_no_log(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;

    fx->opt.logs_dir = fx->dir;
    fx_reopen(fx);
    kit_init(&k, fx, ST_MODE_RESIDENT, ECHO_ALL);
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_ok(&j, "1");
    assert_null(j.ran.log);
    assert_null(j.ran.log_tail);
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ---- what it sees ---------------------------------------------------------------- */

static void a_child_sees_the_base_set_and_what_is_configured(void **state)
{
    struct kit k;
    struct fx_job j;

    setenv("STINT_JOB_ID", "leaked", 1);
    setenv("A_SECRET", "leaked", 1);
    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    known = {'PATH', 'HOME', 'LANG', 'TZ', 'TMPDIR', 'LC_CTYPE', 'D'}\n"
             "    say(task_id=r['task_id'], result=[sorted(k for k in os.environ if k not in known),"
             " os.environ['STINT_MAX_IN_FLIGHT'], os.getpgid(0) == os.getpid()])\n");
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_ok(&j, "[[\"STINT_CHILD\", \"STINT_MAX_IN_FLIGHT\"], \"4\", true]");
    fx_job_clear(&j);
    kit_clear(&k);
    unsetenv("STINT_JOB_ID");
    unsetenv("A_SECRET");
}

static void placeholders_make_no_sense_for_many_jobs(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT, ECHO_ALL "# {id}");
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed_like(&j, ST_KIND_NO_HANDLER, "the command of this type has {id} or {attempt}");
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ---- progress -------------------------------------------------------------------- */

static bool has_progress(void *arg)
{
    size_t len;

    return st_run_progress(((struct fx_job *)arg)->run, &len) != NULL;
}

static void progress_can_be_asked_for_while_it_runs(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;
    const char *p;
    size_t len;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    raw('{\"task_id\":\"j\",\"progress\":0.1}\\n{\"task_id\":\"j\",\"progress\": "
             "{\"done\":1.10}}\\n')\n"
             "    await_file('go')\n"
             "    say(task_id=r['task_id'], result=1)\n");
    kit_job(&k, &j, "j", "1");
    kit_start(&k, &j);
    assert_null(st_run_progress(j.run, &len));
    assert_int_equal(len, 0);
    fx_until(fx, has_progress, &j);
    p = st_run_progress(j.run, &len);
    assert_int_equal(len, strlen("{\"done\":1.10}"));
    assert_memory_equal(p, "{\"done\":1.10}", len);
    fclose(fopen(fx_path(fx, "go"), "we"));
    fx_wait(fx, &j);
    kit_ok(&j, "1");
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ---- several children ------------------------------------------------------------ */

static void work_is_spread_over_the_children(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j[3];
    char id[8];
    long pid[3];

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    mark('at%d' % r['payload'])\n"
             "    await_file('go')\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.processes = 3;
    k.cmd.max_in_flight = 1;
    assert_int_equal(st_exec_room(fx->x, &k.cmd), 3);
    for (int i = 0; i < 3; i++) { /* all at work at once: that takes three */
        snprintf(id, sizeof(id), "j%d", i);
        kit_job(&k, &j[i], id, id + 1);
        kit_start(&k, &j[i]);
        snprintf(id, sizeof(id), "at%d", i);
        pid[i] = fx_wait_number(fx, fx_path(fx, id));
    }
    assert_int_equal(st_exec_room(fx->x, &k.cmd), 0);
    fclose(fopen(fx_path(fx, "go"), "we"));
    for (int i = 0; i < 3; i++) {
        fx_wait(fx, &j[i]);
        assert_int_equal(atol(j[i].ran.result), pid[i]);
        for (int other = 0; other < i; other++)
            assert_int_not_equal(pid[i], pid[other]);
        fx_job_clear(&j[i]);
    }
    kit_clear(&k);
}

/* Both are up and could take more: each gets one. */
static void the_child_with_the_least_to_do_is_next(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j[4];
    char id[8];

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    mark('at' + r['task_id']); await_file(r['payload'])\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.processes = 2;
    k.cmd.max_in_flight = 2;
    for (int i = 0; i < 4; i++) { /* two places each: each child has begun one of them */
        snprintf(id, sizeof(id), "i%d", i);
        kit_job(&k, &j[i], id, "\"first\"");
        kit_start(&k, &j[i]);
    }
    assert_int_not_equal(fx_wait_number(fx, fx_path(fx, "ati0")), fx_wait_number(fx, fx_path(fx, "ati2")));
    fclose(fopen(fx_path(fx, "first"), "we"));
    for (int i = 0; i < 4; i++) {
        fx_wait(fx, &j[i]);
        fx_job_clear(&j[i]);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(id, sizeof(id), "j%d", i);
        kit_job(&k, &j[i], id, "\"second\"");
        kit_start(&k, &j[i]);
    }
    assert_int_not_equal(fx_wait_number(fx, fx_path(fx, "atj0")), fx_wait_number(fx, fx_path(fx, "atj1")));
    fclose(fopen(fx_path(fx, "second"), "we"));
    for (int i = 0; i < 2; i++) {
        fx_wait(fx, &j[i]);
        fx_job_clear(&j[i]);
    }
    kit_clear(&k);
}

static void what_finds_no_place_waits(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j[5];
    char id[8], want[8];

    kit_init(&k, fx, ST_MODE_RESIDENT, ECHO_ALL);
    k.cmd.max_in_flight = 2;
    for (int i = 0; i < 5; i++) {
        snprintf(id, sizeof(id), "j%d", i);
        kit_job(&k, &j[i], id, id + 1);
        assert_int_equal(st_exec_room(fx->x, &k.cmd), i < 2 ? 2 - i : 0);
        kit_start(&k, &j[i]);
    }
    for (int i = 0; i < 5; i++) {
        fx_wait(fx, &j[i]);
        snprintf(want, sizeof(want), "%d", i);
        kit_ok(&j[i], want);
        fx_job_clear(&j[i]);
    }
    assert_int_equal(st_exec_room(fx->x, &k.cmd), 2);
    kit_clear(&k);
}

static void keep_strays(void *arg, enum st_log_level level, const char *line, size_t len)
{
    const char *at = strstr(line, "event=child.strays");

    (void)level;
    if (at)
        snprintf(arg, 200, "%.*s", (int)(len - (size_t)(at - line)), at);
}

static void answers_to_nothing_are_dropped_and_counted(void **state)
{
    char line[200] = "", want[200];
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['task_id'] == 'j':\n"
             "        say(task_id='nobody', result=1)\n"
             "        say(task_id='j', fence=r['fence'] + 1, result=2)\n"
             "        say(task_id='j', result=3)\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    st_log_set_sink(keep_strays, line, false);
    kit_expect(&k, "j", "1", "3");
    kit_job(&k, &j, "k", "1");
    kit_run(&k, &j);
    assert_true(j.ran.ok);
    snprintf(want, sizeof(want), "event=child.strays type=a.* pid=%s answers=3", j.ran.result);
    fx_job_clear(&j);
    fx_reopen(k.fx); /* the child ends */
    st_log_set_sink(NULL, NULL, false);
    assert_string_equal(line, want);
    kit_clear(&k);
}

/* An attempt that was given up is still with the child when the next one comes. */
static void one_id_is_never_twice_in_one_child(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job old, new;
    long pid;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready(cancel=True)\nfor r in reqs():\n"
             "    if r.get('cancel'): mark('cancelled')\n"
             "    elif r['payload'] == 'old': mark('old')\n"
             "    else: say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.processes = 2;
    k.cmd.grace_us = ST_HOUR;
    kit_job(&k, &old, "same", "\"old\"");
    kit_job(&k, &new, "same", "\"new\"");
    kit_start(&k, &old);
    pid = fx_wait_number(fx, fx_path(fx, "old"));
    st_exec_abort(old.run, ST_ABORT_TAKEN);
    fx_wait_number(fx, fx_path(fx, "cancelled"));
    kit_run(&k, &new);
    assert_true(new.ran.ok);
    assert_int_not_equal(atol(new.ran.result), pid);
    assert_int_equal(old.done, 0);
    st_exec_kill(old.run, ST_ABORT_TAKEN);
    fx_wait(fx, &old);
    assert_int_equal(old.ran.aborted, ST_ABORT_TAKEN);
    fx_job_clear(&old);
    fx_job_clear(&new);
    kit_clear(&k);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(a_child_answers_many_jobs),
        FX_TEST(a_request_says_all_there_is),
        FX_TEST(an_error_is_for_good_unless_it_says_retry),
        FX_TEST(answers_may_come_in_any_order),
        FX_TEST(an_id_that_is_written_with_escapes_is_the_same),
        FX_TEST(only_the_first_answer_counts),
        FX_TEST(an_answer_with_another_fence_is_not_ours),
        FX_TEST(payloads_and_results_stay_byte_for_byte),
        FX_TEST(a_pretty_printed_payload_is_one_line),
        FX_TEST(a_payload_that_is_not_json_comes_as_base64),
        FX_TEST(a_request_may_be_as_long_as_a_line_and_no_longer),
        FX_TEST(a_payload_of_the_limit_goes_there_and_back),
        FX_TEST(a_result_may_be_as_large_as_the_limit_and_no_larger),
        FX_TEST(an_answer_that_is_longer_than_a_line_fails_its_job_only),
        FX_TEST(an_answer_that_is_not_json_fails_its_job_only),
        FX_TEST(a_gigabyte_of_noise_is_only_noise),
        FX_TEST(what_is_printed_before_ready_does_not_matter),
        FX_TEST(noise_and_stderr_go_to_the_log_of_the_attempt),
        FX_TEST(a_job_without_noise_has_no_log),
        FX_TEST(a_child_sees_the_base_set_and_what_is_configured),
        FX_TEST(placeholders_make_no_sense_for_many_jobs),
        FX_TEST(progress_can_be_asked_for_while_it_runs),
        FX_TEST(work_is_spread_over_the_children),
        FX_TEST(the_child_with_the_least_to_do_is_next),
        FX_TEST(what_finds_no_place_waits),
        FX_TEST(answers_to_nothing_are_dropped_and_counted),
        FX_TEST(one_id_is_never_twice_in_one_child),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
