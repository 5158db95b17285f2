/* SPDX-License-Identifier: Apache-2.0
 *
 * talk_kit.c - children that work by lines, written in Python, and jobs for them.
 */
#include "talk_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static const char prelude[] =
    "import json, os, signal, sys, time\n"
    "D = os.environ['D']\n"
    "def raw(text):\n"
    "    sys.stdout.write(text); sys.stdout.flush()\n"
    "def say(**line): raw(json.dumps(line) + '\\n')\n"
    "def ready(**more): say(status='ready', **more)\n"
    "def note(text): sys.stderr.write(text); sys.stderr.flush()\n"
    "def reqs():\n"
    "    for line in iter(sys.stdin.readline, ''): yield json.loads(line)\n"
    "def mark(name, text=None):\n"
    "    with open(D + '/' + name + '.tmp', 'w') as f: f.write(str(text or os.getpid()) + '\\n')\n"
    "    os.rename(D + '/' + name + '.tmp', D + '/' + name)\n"
    "def await_file(name):\n"
    "    while not os.path.exists(D + '/' + name): time.sleep(0.002)\n";

void kit_init(struct kit *k, struct fx *fx, enum st_mode mode, const char *script)
{
    static const char usual[] = "/usr/bin/python3"; /* one in PATH may be a slow wrapper */
    size_t size = sizeof(prelude) + strlen(script);

    memset(k, 0, sizeof(*k));
    k->fx = fx;
    k->argv[0] = strdup(access(usual, X_OK) ? "python3" : usual);
    k->argv[1] = strdup("-S");
    k->argv[2] = strdup("-c");
    k->argv[3] = malloc(size);
    assert_non_null(k->argv[3]);
    snprintf(k->argv[3], size, "%s%s", prelude, script);
    snprintf(k->env, sizeof(k->env), "D=%s", fx->dir);
    k->envp[0] = k->env;
    k->cmd = (struct st_command){.argv = k->argv,
                                 .mode = mode,
                                 .grace_us = 5 * ST_SEC,
                                 .env = k->envp,
                                 .name = (char *)(uintptr_t) "a.*",
                                 .startup_us = 30 * ST_SEC,
                                 .processes = 1,
                                 .max_in_flight = 4};
}

void kit_clear(struct kit *k)
{
    for (int i = 0; i < 4; i++)
        free(k->argv[i]);
}

void kit_job_bytes(struct kit *k, struct fx_job *j, const char *id, const void *payload, size_t len)
{
    static int64_t fence = 100;

    memset(j, 0, sizeof(*j));
    j->cmd = k->cmd;
    j->job = st_job_new(st_slice_cstr(id), st_slice_cstr("a.type"), st_slice_cstr("mail.fast"), ST_SLICE(payload, len),
                        ST_NONE);
    assert_non_null(j->job);
    j->job->fence = ++fence;
    j->job->attempt = 2;
    j->job->policy = st_policy_default;
}

void kit_job(struct kit *k, struct fx_job *j, const char *id, const char *payload)
{
    kit_job_bytes(k, j, id, payload, strlen(payload));
}

void kit_start(struct kit *k, struct fx_job *j)
{
    j->cmd = k->cmd;
    fx_start(k->fx, j);
}

void kit_run(struct kit *k, struct fx_job *j)
{
    kit_start(k, j);
    fx_wait(k->fx, j);
}

void kit_expect(struct kit *k, const char *id, const char *payload, const char *result)
{
    struct fx_job j;

    kit_job(k, &j, id, payload);
    kit_run(k, &j);
    kit_ok(&j, result);
    fx_job_clear(&j);
}

void kit_ok(const struct fx_job *j, const char *result)
{
    if (!j->ran.ok)
        fail_msg("failed: %s", j->ran.message ? j->ran.message : "(no message)");
    assert_non_null(j->ran.result);
    assert_string_equal(j->ran.result, result);
    assert_int_equal(j->ran.result_len, strlen(result));
    assert_int_equal(j->ran.aborted, ST_ABORT_NOT);
}

void kit_failed(const struct fx_job *j, enum st_kind kind, const char *message)
{
    assert_false(j->ran.ok);
    assert_non_null(j->ran.message);
    assert_string_equal(j->ran.message, message);
    assert_string_equal(st_kind_name(j->ran.kind), st_kind_name(kind));
    assert_null(j->ran.result);
    assert_int_equal(j->ran.aborted, ST_ABORT_NOT);
}

void kit_failed_like(const struct fx_job *j, enum st_kind kind, const char *begins)
{
    assert_false(j->ran.ok);
    assert_non_null(j->ran.message);
    if (strncmp(j->ran.message, begins, strlen(begins)))
        fail_msg("the message is: %s", j->ran.message);
    assert_string_equal(st_kind_name(j->ran.kind), st_kind_name(kind));
}

void kit_given_back(const struct fx_job *j)
{
    assert_false(j->ran.ok);
    assert_int_equal(j->ran.aborted, ST_ABORT_SHUTDOWN);
    assert_non_null(j->ran.message);
    assert_memory_equal(j->ran.message, "given back", strlen("given back"));
}
