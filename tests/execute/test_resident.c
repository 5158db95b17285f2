/* SPDX-License-Identifier: Apache-2.0
 *
 * test_resident.c - resident children: requests, answers, and what stands between.
 */
#include "talk_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define ECHO_SCRIPT                                                                                       \
    "ready()\n"                                                                                    \
    "for r in reqs(): say(task_id=r['task_id'], result=r['payload'], error=None, retry=False)\n"

static void a_child_answers_many_jobs(void **state)
{
    struct kit k;
    struct fx_job j[20];
    char id[16], payload[16];

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): say(task_id=r['task_id'], result=[os.getpid(), r['payload']])\n");
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
    snprintf(want, sizeof(want),
             "[\"job \\\"7\\\"\", \"a.type\", {}, 1, 2, \"mail.fast\", 2, %lld]",
             (long long)j.job->fence);
    kit_ok(&j, want);
    fx_job_clear(&j);
    kit_clear(&k);
}

static void an_error_is_for_good_unless_it_says_retry(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): say(task_id=r['task_id'], **r['payload'])\n");
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

static void a_child_that_dies_fails_what_it_had(void **state)
{
    struct kit k;
    struct fx_job a, b;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']: note('out of ideas\\n'); os.kill(os.getpid(), 9)\n");
    kit_job(&k, &a, "a", "0");
    kit_job(&k, &b, "b", "1");
    kit_start(&k, &a);
    kit_start(&k, &b);
    fx_wait(k.fx, &a);
    fx_wait(k.fx, &b);
    kit_failed(&a, ST_KIND_CHILD_CRASHED,
               "the child died: killed by signal 9 (SIGKILL): out of ideas");
    assert_int_equal(a.ran.signal, 9);
    assert_true(a.ran.max_rss_kb > 0);
    assert_int_equal(a.ran.advice, ST_BY_POLICY);
    assert_string_equal(a.ran.log_tail, "out of ideas\n");
    fx_job_clear(&a);
    fx_job_clear(&b);
    kit_clear(&k);
}

static void a_job_that_takes_too_long_takes_its_child_along(void **state)
{
    struct kit k;
    struct fx_job slow, other;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs(): time.sleep(1000)\n");
    kit_job(&k, &slow, "slow", "1");
    slow.job->policy.timeout_us = 100 * ST_MS;
    kit_job(&k, &other, "other", "1");
    kit_start(&k, &slow);
    kit_start(&k, &other);
    fx_wait(k.fx, &slow);
    fx_wait(k.fx, &other);
    kit_failed(&slow, ST_KIND_TIMEOUT, "timed out after 100ms");
    assert_int_equal(slow.ran.signal, 15);
    kit_given_back(&other);
    fx_job_clear(&slow);
    fx_job_clear(&other);
    kit_clear(&k);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(a_child_answers_many_jobs),
        FX_TEST(a_request_says_all_there_is),
        FX_TEST(an_error_is_for_good_unless_it_says_retry),
        FX_TEST(a_child_that_dies_fails_what_it_had),
        FX_TEST(a_job_that_takes_too_long_takes_its_child_along),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
