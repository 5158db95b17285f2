/* SPDX-License-Identifier: Apache-2.0
 *
 * test_config.c - stint.yaml, the environment and flags into settings.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/config.h"
#include "cli/suggest.h"
#include "cli/yaml_tree.h"

static stint_code parse(const char *text, struct st_settings *s, stint_error *err)
{
    st_settings_init(s);
    return st_config_parse("f.yaml", "/etc/stint", st_slice_cstr(text), false, s, err);
}

static void good(const char *text, struct st_settings *s)
{
    stint_error err = {0};

    if (parse(text, s, &err) != STINT_OK)
        fail_msg("%s", err.message);
}

/* ---- good files ------------------------------------------------------------------------ */

static void an_empty_file_gives_the_defaults(void **state)
{
    static const char *const texts[] = {"",   "# nothing\n",        "---\n",         "null\n",
                                        "{}", "worker:\nlimits:\n", "\xef\xbb\xbf{}"};
    struct st_settings s;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        good(texts[i], &s);
        assert_int_equal(s.slots, 10);
        assert_int_equal(s.lease_us, 60 * ST_SEC);
        assert_int_equal(s.renew_us, 20 * ST_SEC);
        assert_int_equal(s.poll_us, 5 * ST_SEC);
        assert_int_equal(s.shutdown_us, 30 * ST_SEC);
        assert_true(s.notify);
        assert_int_equal(s.limits.payload, 1 << 20);
        assert_int_equal(s.limits.result, 10 << 20);
        assert_int_equal(s.limits.line, 16 << 20);
        assert_int_equal(s.limits.output, 1 << 20);
        assert_int_equal(s.keep.succeeded_us, 7 * ST_DAY);
        assert_int_equal(s.keep.failed_us, 90 * ST_DAY);
        assert_int_equal(s.keep.cancelled_us, 7 * ST_DAY);
        assert_int_equal(s.n_types + s.n_queues + s.n_parents, 0);
        assert_null(s.only_types);
        st_settings_clear(&s);
    }
}

static const char whole[] = "store: sqlite:/var/lib/stint.db\n"
                            "worker:\n"
                            "  id: w-1\n"
                            "  slots: 4\n"
                            "  queues: {mail: 3, bulk: 1}\n"
                            "  types: [mail.send, 'img.*']\n"
                            "  lease: 30s\n"
                            "  renew: 5s\n"
                            "  poll: 250ms\n"
                            "  claim_batch: 20\n"
                            "  shutdown_timeout: 1m30s\n"
                            "  results_dir: results\n"
                            "  logs_dir: /var/log/stint\n"
                            "  notify: off\n"
                            "limits: {payload: 64KiB, result: 1MiB, line: 2048, output: 10B}\n"
                            "retention: {succeeded: 1d, failed: forever, cancelled: 12h}\n"
                            "runqy: false\n"
                            "types:\n"
                            "  mail.send:\n"
                            "    run: [./bin/send, --to, '{payload}', '']\n"
                            "    mode: oneshot\n"
                            "    payload: argument\n"
                            "    timeout: 90s\n"
                            "    grace: 2s\n"
                            "    cwd: work\n"
                            "    env: {LEVEL: 3, EMPTY: , QUOTED: 'a b'}\n"
                            "    inherit_env: [AWS_REGION, HTTP_PROXY]\n"
                            "    retry: {max_attempts: 5, backoff: exponential, initial: 1s, "
                            "multiplier: 1.5, max: 1h, jitter: 0}\n"
                            "    lease: {duration: 2m, renew: 10s}\n"
                            "  img.*:\n"
                            "    run: [python3, crop.py]\n"
                            "    payload: file\n"
                            "    timeout: none\n"
                            "    inherit_env: all\n"
                            "    retry: {max_attempts: 0, delays: [1s, 10s, 1m]}\n"
                            "    lease: {duration: 30s}\n"
                            "intake: {rq: 'redis://r:6379/2', queues: [a, b], function: go, grace: 1m}\n"
                            "queues:\n"
                            "  inference:\n"
                            "    type: img.any\n"
                            "    subs: {standard: 3, premium: 10, slow: -1}\n"
                            "  other:\n";

static void check_worker(const struct st_settings *s)
{
    assert_string_equal(s->store, "sqlite:/var/lib/stint.db");
    assert_string_equal(s->intake.rq, "redis://r:6379/2");
    assert_string_equal(s->intake.queues[1], "b");
    assert_null(s->intake.queues[2]);
    assert_string_equal(s->intake.function, "go");
    assert_int_equal(s->intake.grace_us, ST_MIN);
    assert_true(st_settings_announced(s, LIT("a")) && st_settings_announced(s, LIT("b.sub")));
    assert_false(st_settings_announced(s, LIT("mail")));
    assert_string_equal(s->worker_id, "w-1");
    assert_int_equal(s->slots, 4);
    assert_true(s->weighted);
    assert_int_equal(s->n_queues, 2);
    assert_string_equal(s->queues[0].name, "mail");
    assert_int_equal(s->queues[0].weight, 3);
    assert_string_equal(s->only_types[1], "img.*");
    assert_null(s->only_types[2]);
    assert_int_equal(s->lease_us, 30 * ST_SEC);
    assert_int_equal(s->renew_us, 5 * ST_SEC);
    assert_int_equal(s->poll_us, 250 * ST_MS);
    assert_int_equal(s->claim_batch, 20);
    assert_int_equal(s->shutdown_us, 90 * ST_SEC);
    assert_string_equal(s->results_dir, "/etc/stint/results");
    assert_string_equal(s->logs_dir, "/var/log/stint");
    assert_false(s->notify);
    assert_int_equal(s->limits.payload, 65536);
    assert_int_equal(s->limits.line, 2048);
    assert_int_equal(s->limits.output, 10);
    assert_int_equal(s->keep.succeeded_us, ST_DAY);
    assert_int_equal(s->keep.failed_us, 0);
}

static void check_mail(const struct st_type_conf *t)
{
    assert_string_equal(t->pattern, "mail.send");
    assert_int_equal(t->line, 19);
    assert_string_equal(t->command.argv[0], "/etc/stint/bin/send");
    assert_string_equal(t->command.argv[2], "{payload}");
    assert_string_equal(t->command.argv[3], "");
    assert_null(t->command.argv[4]);
    assert_int_equal(t->command.payload_by, ST_PAYLOAD_ARGUMENT);
    assert_int_equal(t->policy.timeout_us, 90 * ST_SEC);
    assert_int_equal(t->command.grace_us, 2 * ST_SEC);
    assert_string_equal(t->command.cwd, "/etc/stint/work");
    assert_string_equal(t->command.env[0], "LEVEL=3");
    assert_string_equal(t->command.env[1], "EMPTY=");
    assert_string_equal(t->command.env[2], "QUOTED=a b");
    assert_string_equal(t->command.inherit_env[1], "HTTP_PROXY");
    assert_false(t->command.inherit_all);
    assert_int_equal(t->policy.max_attempts, 5);
    assert_int_equal(t->policy.initial_us, ST_SEC);
    assert_true(t->policy.multiplier == 1.5 && t->policy.jitter == 0);
    assert_int_equal(t->policy.max_us, ST_HOUR);
    assert_int_equal(t->lease_us, 2 * ST_MIN);
    assert_int_equal(t->renew_us, 10 * ST_SEC);
}

static void check_img(const struct st_type_conf *t)
{
    assert_string_equal(t->pattern, "img.*");
    assert_string_equal(t->command.argv[0], "python3");
    assert_int_equal(t->command.payload_by, ST_PAYLOAD_FILE);
    assert_int_equal(t->policy.timeout_us, 0);
    assert_true(t->command.inherit_all);
    assert_int_equal(t->command.grace_us, 5 * ST_SEC);
    assert_int_equal(t->policy.backoff, ST_BACKOFF_LIST);
    assert_int_equal(t->policy.n_delays, 3);
    assert_int_equal(t->policy.delays_us[2], ST_MIN);
    assert_int_equal(t->policy.max_attempts, 0);
    assert_int_equal(t->renew_us, 10 * ST_SEC);
}

static void every_key_lands_where_it_belongs(void **state)
{
    struct st_settings s;

    (void)state;
    good(whole, &s);
    check_worker(&s);
    assert_int_equal(s.n_types, 2);
    check_mail(&s.types[0]);
    check_img(&s.types[1]);
    assert_int_equal(s.n_parents, 2);
    assert_string_equal(s.parents[0].type, "img.any");
    assert_int_equal(s.parents[0].n_subs, 3);
    assert_string_equal(s.parents[0].subs[0].name, "premium");
    assert_string_equal(s.parents[0].subs[1].name, "standard");
    assert_string_equal(s.parents[0].subs[2].name, "slow");
    assert_null(s.parents[1].type);
    st_settings_clear(&s);
}

static void types_are_found_by_the_most_specific_pattern_and_by_parent_queue(void **state)
{
    struct st_settings s;

    (void)state;
    good("types: {img.crop: {run: [d]}, '*': {run: [a]}, 'img.c*': {run: [c]}, 'img.*': {run: "
         "[b]}}\n"
         "queues: {gpu: {type: img.x}}\n",
         &s);
    assert_string_equal(st_settings_type(&s, LIT("img.crop"))->command.argv[0], "d");
    assert_string_equal(st_settings_type(&s, LIT("img.cut"))->command.argv[0], "c");
    assert_string_equal(st_settings_type(&s, LIT("img.scale"))->command.argv[0], "b");
    assert_string_equal(st_settings_type(&s, LIT("mail"))->command.argv[0], "a");
    assert_string_equal(st_settings_handler(&s, LIT("mail"), LIT("gpu.fast"))->command.argv[0], "b");
    assert_string_equal(st_settings_handler(&s, LIT("mail"), LIT("cpu"))->command.argv[0], "a");
    st_settings_clear(&s);
    good("types: {mail: {run: [a]}}", &s);
    assert_null(st_settings_type(&s, LIT("mails")));
    st_settings_clear(&s);
}

static void a_lease_without_renew_is_renewed_three_times(void **state)
{
    struct st_settings s;

    (void)state;
    good("worker: {lease: 6s}", &s);
    assert_int_equal(s.renew_us, 2 * ST_SEC);
    st_settings_clear(&s);
}

static void a_list_of_queues_is_strict(void **state)
{
    struct st_settings s;

    (void)state;
    good("worker: {queues: [high, low.slow]}", &s);
    assert_false(s.weighted);
    assert_string_equal(s.queues[1].name, "low.slow");
    st_settings_clear(&s);
}

/* ---- bad files ------------------------------------------------------------------------- */

struct bad {
    const char *text;
    const char *at;   /* "line:column" */
    const char *says; /* words of the message, or of the remedy */
};

static const struct bad bad_files[] = {
    /* YAML */
    {"worker:\n  slots: [1\n", "3:1", ""},
    {"worker:\n\tslots: 1\n", "2:1", "cannot start any token"},
    {"a: &x 1\n", "1:4", "anchors"},
    {"worker: {slots: *x}\n", "1:17", "aliases"},
    {"worker: !!map {slots: 1}\n", "1:9", "tags"},
    {"store: !secret x\n", "1:8", "tags"},
    {"worker: {slots: 1}\nworker: {slots: 2}\n", "2:1", "second time; the first is in line 1"},
    {"worker: {slots: 1, slots: 2}\n", "1:20", "'slots' is here for the second time"},
    {"{}\n---\n{}\n", "2:1", "second document"},
    {"? [a, b]\n: 1\n", "1:3", "key must be a plain text"},
    {"store: \"a\\0b\"\n", "1:8", "NUL"},
    {"store: a\x01"
     "b\n",
     "1:9", "control characters"},
    {"store: x\nworker: \xff\xfe\n", "2:9", "UTF-8"},
    {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]", "1:33", "levels"},
    /* the shape */
    {"- a list\n", "1:1", "stint.yaml must be a map"},
    {"just text\n", "1:1", "stint.yaml must be a map"},
    {"worker: 5\n", "1:9", "worker must be a map"},
    {"nonsense: 1\n", "1:1", "unknown key 'nonsense' in stint.yaml"},
    {"worker:\n  slots: 4\n  slotz: 3\n", "3:3", "unknown key 'slotz' in worker; did you mean 'slots'?"},
    {"retension: {}\n", "1:1", "did you mean 'retention'?"},
    {"types:\n  t:\n    run: [a]\n    timout: 1s\n", "4:5", "did you mean 'timeout'?"},
    /* signal, intake, runqy */
    {"signal: postgres://x\n", "1:9", "not the URL of a Redis server"},
    {"signal: redis://x:y\n", "1:9", "bad port"},
    {"signal: redis://x?zap=1\n", "1:9", "unknown option: zap"},
    {"signal: redis://x?prefix=\n", "1:9", "prefix="},
    {"store: host=db password=hush\n", "1:8", "a list of words as libpq takes it"},
    {"store: mysql://x\n", "1:8", "the kind mysql, which this version does not have"},
    {"store: redis:/x\n", "1:8", "the kind redis, but has no // behind that"},
    {"intake: {}\n", "1:9", "intake has no `rq`"},
    {"intake: yes\n", "1:9", "intake must be a map"},
    {"intake: {rq: 'http://x'}\n", "1:14", "not the URL of a Redis server"},
    {"intake: {rq: 'redis-cluster://x'}\n", "1:14", "do not fit a Redis Cluster"},
    {"intake:\n  rq: redis://x\n  queues: []\n", "3:11", "queues is empty"},
    {"intake:\n  rq: redis://x\n  queues: [a b]\n", "3:12", "has a blank"},
    {"intake:\n  rq: redis://x\n  queues: [a, b, a]\n", "3:11", "'a' is here for the second time"},
    {"intake:\n  rq: redis://x\n  grace: 30\n", "3:10", "grace: "},
    {"intake:\n  rq: redis://x\n  grace: 10ms\n", "3:10", "is not between 1s"},
    {"intake:\n  rq: redis://x\n  funktion: f\n", "3:3", "did you mean 'function'?"},
    {"types:\n  t: {builtin: magic}\n", "2:16", "'magic' is not known"},
    {"types:\n  t: {builtin: mock, run: [a]}\n", "2:22", "run does not go with builtin"},
    {"runqy: perhaps\n", "1:8", "runqy"},
    {"types:\n  t: {run: [a], mode: forever}\n", "2:23", "mode: 'forever' is not known"},
    {"types:\n  t: {run: [a], processes: 2}\n", "2:17", "processes is not for this mode"},
    {"types:\n  t: {run: [a], max_in_flight: 2}\n", "2:17", "max_in_flight is not for this mode"},
    {"types:\n  t: {run: [a], startup_timeout: 2s}\n", "2:17", "startup_timeout is not for this mode"},
    {"types:\n  t: {run: [a], on_child_crash: park}\n", "2:17", "on_child_crash is not for this mode"},
    {"types:\n  t: {run: [a], recycle: {jobs: 5}}\n", "2:17", "recycle is not for this mode"},
    {"types:\n  t: {run: [a], mode: resident, payload: file}\n", "2:33", "payload is not for this mode"},
    {"types:\n  t: {run: [a], mode: resident, processes: 0}\n", "2:44", "processes"},
    {"types:\n  t: {run: [a], mode: resident, on_child_crash: cry}\n", "2:49", "'cry' is not known"},
    {"types:\n  t: {run: [a], mode: resident, recycle: {weeks: 2}}\n", "2:43", "weeks"},
    {"types:\n  t: {run: [a], caps: {memory: lots}}\n", "2:32", "memory"},
    /* the worker */
    {"worker:\n  lease: 60\n", "2:10", "lease: "},
    {"worker:\n  lease: soon\n", "2:10", "lease: "},
    {"worker:\n  lease: [1s]\n", "2:10", "lease: one value is expected here, not a list"},
    {"worker:\n  lease: 10ms\n", "2:10", "lease: 10ms is not between 100ms and 1d"},
    {"worker:\n  lease: 30s\n  renew: 20s\n", "3:10", "at most half"},
    {"worker:\n  renew: 40s\n", "2:10", "at most half"},
    {"worker:\n  slots: 0\n", "2:10", "slots: 0 is not between 1 and 4096"},
    {"worker:\n  slots: 4097\n", "2:10", "slots: 4097 is not between 1 and 4096"},
    {"worker:\n  slots: many\n", "2:10", "slots: 'many' is not a whole number"},
    {"worker:\n  slots: 99999999999999999999\n", "2:10", "slots: "},
    {"worker:\n  queues: all\n", "2:11", "must be a list"},
    {"worker:\n  queues: [a, b c]\n", "2:15", "has a blank"},
    {"worker:\n  queues: [a, a]\n", "2:15", "second time"},
    {"worker:\n  queues: [[a]]\n", "2:12", "not a list"},
    {"worker:\n  queues: {a: 0}\n", "2:15", "weight: 0 is not between"},
    {"worker:\n  queues: {'a b': 1}\n", "2:12", "has a blank"},
    {"worker:\n  types: []\n", "2:10", "types is empty"},
    {"worker:\n  types: [a b]\n", "2:11", "has a blank"},
    {"worker:\n  types: mail\n", "2:10", "types must be a list"},
    {"worker:\n  notify: perhaps\n", "2:11", "neither true nor false"},
    {"worker:\n  notify: maybe\n", "2:11", "write true or false"},
    {"worker:\n  slots: many\n", "2:10", "write a whole number between 1 and 4096"},
    {"types:\n  t:\n    run: [a]\n    retry: {jitter: lots}\n", "4:21", "between 0 and 1"},
    {"types:\n  t:\n    run: []\n", "3:10", "write run: [program, argument, ...]"},
    {"queues: {a: {type: nobody}}\n", "1:20", "add the type under `types:`"},
    {"worker:\n  id: \"\"\n", "2:7", "id is empty"},
    {"worker:\n  id: \"a\\tb\"\n", "2:7", "id: "},
    {"worker:\n  logs_dir: ''\n", "2:13", "logs_dir is empty"},
    /* limits and retention */
    {"limits:\n  payload: huge\n", "2:12", "payload: 'huge' is not a size"},
    {"limits:\n  payload: 1MB\n", "2:12", "KiB, MiB or GiB"},
    {"limits:\n  payload: -1\n", "2:12", "is not a size"},
    {"limits:\n  payload: 2GiB\n", "2:12", "is not between"},
    {"limits:\n  payload: 99999999999999999999\n", "2:12", "is not a size"},
    {"retention:\n  succeeded: 7\n", "2:14", "succeeded: "},
    {"retention:\n  succeeded: 0s\n", "2:14", "is not between 1ms"},
    /* types */
    {"types: [a]\n", "1:8", "types must be a map"},
    {"types:\n  two words:\n    run: [a]\n", "2:3", "two words"},
    {"types:\n  t:\n    timeout: 3s\n", "2:3", "the type 't' has no `run`"},
    {"types:\n  t:\n", "2:5", "a type must be a map"},
    {"types:\n  t:\n    run: []\n", "3:10", "run names no program"},
    {"types:\n  t:\n    run: ['']\n", "3:10", "run names no program"},
    {"types:\n  t:\n    run: echo hi\n", "3:10", "must be a list of the program"},
    {"types:\n  t:\n    run: [a, {b: c}]\n", "3:14", "not a map"},
    {"types:\n  t:\n    run: [a, '--in={payload}']\n", "3:14", "only with `payload: argument`"},
    {"types:\n  t:\n    payload: file\n    run:\n      - a\n      - b\n      - '{payload}'\n", "7:9",
     "{payload} is filled in only with `payload: argument`"},
    {"types:\n  t:\n    run: [a, '{payload_file}']\n    payload: argument\n", "3:14",
     "{payload_file} is filled in only with `payload: file`"},
    {"types:\n  t:\n    run: [a, '--in={payload}']\n    mode: resident\n", "3:14",
     "{payload} is not filled in with `mode: resident`"},
    {"types:\n  t:\n    run: [a, b, '{payload_file}']\n    mode: resident\n", "3:17",
     "{payload_file} is not filled in"},
    {"types:\n  t:\n    run: [a, 'x{id}']\n    mode: resident\n", "3:14", "{id} is not filled in"},
    {"types:\n  t:\n    run: [a, '{attempt}']\n    mode: resident\n", "3:14", "{attempt} is not filled in"},
    {"types:\n  t:\n    run: [a, '{payload}']\n    mode: oneshot-lines\n", "3:14",
     "{payload} is not filled in with `mode: oneshot-lines`"},
    {"types:\n  t:\n    run: [a]\n    mode: sideways\n", "4:11", "'sideways' is not known"},
    {"types:\n  t:\n    run: [a]\n    payload: telepathy\n", "4:14", "it is stdin, file or argument"},
    {"types:\n  t:\n    run: [a]\n    timeout: never\n", "4:14", "timeout: "},
    {"types:\n  t:\n    run: [a]\n    env: [a]\n", "4:10", "env must be a map"},
    {"types:\n  t:\n    run: [a]\n    env: {a=b: c}\n", "4:11", "has a '=' in it"},
    {"types:\n  t:\n    run: [a]\n    env: {STINT_JOB_ID: x}\n", "4:11", "set by stint itself"},
    {"types:\n  t:\n    run: [a]\n    env: {A: [1]}\n", "4:14", "not a list"},
    {"types:\n  t:\n    run: [a]\n    inherit_env: some\n", "4:18", "`all` or a list"},
    {"types:\n  t:\n    run: [a]\n    retry: {backoff: sideways}\n", "4:22", "exponential, linear"},
    {"types:\n  t:\n    run: [a]\n    retry: {backoff: list}\n", "4:22", "needs `delays"},
    {"types:\n  t:\n    run: [a]\n    retry: {backoff: fixed, delays: [1s]}\n", "4:29", "only for `backoff: list`"},
    {"types:\n  t:\n    run: [a]\n    retry: {delays: []}\n", "4:21", "must be a list of durations"},
    {"types:\n  t:\n    run: [a]\n    retry: {delays: [1s, 2]}\n", "4:26", "delays: "},
    {"types:\n  t:\n    run: [a]\n    retry: {delays: "
     "[1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s]}\n",
     "4:21", "the most is 16"},
    {"types:\n  t:\n    run: [a]\n    retry: {multiplier: 1e3}\n", "4:25", "is not a number"},
    {"types:\n  t:\n    run: [a]\n    retry: {multiplier: 0.5}\n", "4:25", "is not between 1 and 100"},
    {"types:\n  t:\n    run: [a]\n    retry: {jitter: 1.5}\n", "4:21", "is not between 0 and 1"},
    {"types:\n  t:\n    run: [a]\n    retry: {initial: 1m, max: 1s}\n", "4:31", "shorter than the first wait"},
    {"types:\n  t:\n    run: [a]\n    retry: {max_attempts: -1}\n", "4:27", "is not between 0"},
    {"types:\n  t:\n    run: [a]\n    retry: {max_attempts: 1000001}\n", "4:27", "is not between 0 and 1000000"},
    {"types:\n  t:\n    run: [a]\n    lease: {duration: 2s, renew: 2s}\n", "4:34", "at most half"},
    {"types:\n  t:\n    run: [a]\n    lease: {renew: 40s}\n", "4:20", "at most half"},
    {"types:\n  t:\n    run: [a]\n    lease: 5s\n", "4:12", "lease must be a map"},
    /* parent queues */
    {"queues: {a.b: {}}\n", "1:10", "is a sub-queue"},
    {"queues: {a b: {}}\n", "1:10", "has a blank"},
    {"queues: {a: {type: nobody}}\n", "1:20", "there is no 'nobody' under `types:`"},
    {"queues: {a: {subs: {x: high}}}\n", "1:24", "is not a whole number"},
    {"queues: {a: {subs: {'x y': 1}}}\n", "1:21", "has a blank"},
    {"queues: {a: {sub: {}}}\n", "1:14", "did you mean 'subs'?"},
};

static void every_bad_file_is_refused_at_its_line_and_column(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
        const struct bad *b = &bad_files[i];
        struct st_settings s;
        stint_error err = {0};
        char at[64];

        snprintf(at, sizeof(at), "f.yaml:%s: ", b->at);
        if (parse(b->text, &s, &err) != STINT_EINVAL)
            fail_msg("accepted: %s", b->text);
        if (strncmp(err.message, at, strlen(at)) != 0 ||
            (!strstr(err.message, b->says) && !strstr(err.remedy, b->says)))
            fail_msg("%s\nexpected %s...%s\ngot      %s\n%s", b->text, at, b->says, err.message, err.remedy);
        if (!err.remedy[0])
            fail_msg("no remedy: %s", err.message);
        st_settings_clear(&s);
    }
}

static void too_large_too_wide_and_too_deep_are_refused(void **state)
{
    size_t n = ST_YAML_SIZE_MAX + 1;
    char *text = malloc(n + 1);
    struct st_settings s;
    stint_error err;

    (void)state;
    assert_non_null(text);
    memset(text, '#', n);
    text[n] = '\0';
    assert_int_equal(parse(text, &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "more than 1048576 bytes"));
    st_settings_clear(&s);

    for (size_t i = 0; i < 200000; i += 2)
        memcpy(text + i, i ? ",a" : "[a", 2);
    strcpy(text + 200000, "]");
    assert_int_equal(parse(text, &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "more than 65536 values"));
    st_settings_clear(&s);

    n = 0;
    for (int i = 0; i < 5000; i++)
        n += (size_t)sprintf(text + n, "k%d: 1\n", i);
    assert_int_equal(parse(text, &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "f.yaml:4097:1: more than 4096 keys"));
    st_settings_clear(&s);
    free(text);
}

/* ---- programs -------------------------------------------------------------------------- */

static void write_file(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static stint_code read_with(const char *dir, const char *yaml, struct st_settings *s, stint_error *err)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/stint.yaml", dir);
    write_file(path, yaml, 0600);
    st_settings_init(s);
    return st_config_read(path, true, s, err);
}

static void programs_and_directories_are_looked_for_from_the_file(void **state)
{
    char dir[] = "/tmp/stint-config.XXXXXX", path[256];
    struct st_settings s;
    stint_error err = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/run.sh", dir);
    write_file(path, "#!/bin/sh\n", 0700);
    assert_int_equal(read_with(dir, "types: {t: {run: [./run.sh], cwd: .}, u: {run: [sh]}}", &s, &err), STINT_OK);
    assert_string_equal(s.types[0].command.argv[0], path);
    st_settings_clear(&s);

    assert_int_equal(read_with(dir, "types:\n  t:\n    run: [./gone.sh]\n", &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "stint.yaml:3:11: run: "));
    assert_non_null(strstr(err.message, "gone.sh' cannot be run: No such file"));
    st_settings_clear(&s);

    assert_int_equal(read_with(dir, "types:\n  t:\n    run: [no-such-program-here, x]\n", &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "stint.yaml:3:11: run: the program 'no-such-program-here' is not on the PATH"));
    st_settings_clear(&s);

    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(read_with(dir, "types:\n  t:\n    run: [./run.sh]\n", &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "run.sh' may not be run"));
    assert_non_null(strstr(err.remedy, "chmod +x"));
    st_settings_clear(&s);

    assert_int_equal(read_with(dir, "types:\n  t: {run: [sh], cwd: nowhere}\n", &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "stint.yaml:2:23: cwd: "));
    st_settings_clear(&s);

    unlink(path);
    snprintf(path, sizeof(path), "%s/stint.yaml", dir);
    unlink(path);
    rmdir(dir);
}

static void a_file_that_is_not_there_is_named(void **state)
{
    struct st_settings s;
    stint_error err;

    (void)state;
    st_settings_init(&s);
    assert_int_equal(st_config_read("/no/such/stint.yaml", false, &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "/no/such/stint.yaml"));
    st_settings_clear(&s);
}

/* ---- environment, flags, store ----------------------------------------------------------- */

static void clean_env(void)
{
    static const char *const names[] = {"STINT_WORKER_ID", "STINT_SLOTS",  "STINT_QUEUES", "STINT_POLL",
                                        "STINT_STORE",     "STINT_CONFIG", "DATABASE_URL", "REDIS_URL"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

static void the_environment_lies_over_the_file(void **state)
{
    struct st_settings s;
    stint_error err;

    (void)state;
    clean_env();
    good("worker: {id: a, slots: 2, queues: [x], poll: 1s}", &s);
    setenv("STINT_WORKER_ID", "b", 1);
    setenv("STINT_SLOTS", "3", 1);
    setenv("STINT_QUEUES", "p=3,q=1", 1);
    setenv("STINT_POLL", "2s", 1);
    assert_int_equal(st_config_env(&s, &err), STINT_OK);
    assert_string_equal(s.worker_id, "b");
    assert_int_equal(s.slots, 3);
    assert_int_equal(s.n_queues, 2);
    assert_true(s.weighted);
    assert_int_equal(s.queues[0].weight, 3);
    assert_int_equal(s.poll_us, 2 * ST_SEC);
    setenv("STINT_SLOTS", "", 1); /* empty is not set */
    assert_int_equal(st_config_env(&s, &err), STINT_OK);
    assert_int_equal(s.slots, 3);
    st_settings_clear(&s);
    clean_env();
}

static void a_wrong_variable_is_named(void **state)
{
    static const char *const wrong[][2] = {
        {"STINT_SLOTS", "0"},      {"STINT_SLOTS", "many"}, {"STINT_SLOTS", "4097"}, {"STINT_POLL", "5"},
        {"STINT_POLL", "1ms"},     {"STINT_QUEUES", "a b"}, {"STINT_QUEUES", "a,"},  {"STINT_QUEUES", "a,a"},
        {"STINT_QUEUES", "a=1,b"}, {"STINT_QUEUES", "a=x"}, {"STINT_QUEUES", "a=0"}, {"STINT_WORKER_ID", "a\nb"}};

    (void)state;
    clean_env();
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct st_settings s;
        stint_error err = {0};

        st_settings_init(&s);
        setenv(wrong[i][0], wrong[i][1], 1);
        assert_int_equal(st_config_env(&s, &err), STINT_EINVAL);
        assert_int_equal(strncmp(err.message, wrong[i][0], strlen(wrong[i][0])), 0);
        unsetenv(wrong[i][0]);
        st_settings_clear(&s);
    }
}

static void types_of_a_flag_replace_those_of_the_file(void **state)
{
    struct st_settings s;
    stint_error err;

    (void)state;
    good("worker: {types: [a]}", &s);
    assert_int_equal(st_config_types("mail,img.*", &s, &err), STINT_OK);
    assert_string_equal(s.only_types[0], "mail");
    assert_string_equal(s.only_types[1], "img.*");
    assert_null(s.only_types[2]);
    assert_int_equal(st_config_types("mail,,x", &s, &err), STINT_EINVAL);
    assert_int_equal(st_config_types("", &s, &err), STINT_EINVAL);
    assert_string_equal(s.only_types[0], "mail");
    st_settings_clear(&s);
}

static void the_store_is_chosen_by_precedence(void **state)
{
    struct st_settings s;

    (void)state;
    clean_env();
    st_settings_init(&s);
    assert_string_equal(st_config_store(NULL, &s, false), "sqlite:stint.db");
    setenv("REDIS_URL", "redis://r", 1);
    assert_string_equal(st_config_store(NULL, &s, false), "redis://r");
    setenv("DATABASE_URL", "postgres://d", 1);
    assert_string_equal(st_config_store(NULL, &s, false), "postgres://d");
    assert_string_equal(st_config_store(NULL, &s, true), "sqlite:stint.db");
    s.store = strdup("sqlite:file.db");
    assert_string_equal(st_config_store(NULL, &s, false), "sqlite:file.db");
    setenv("STINT_STORE", "env.db", 1);
    assert_string_equal(st_config_store(NULL, &s, true), "sqlite:env.db");
    assert_string_equal(st_config_store("/a:b/c.db", &s, false), "sqlite:/a:b/c.db");
    assert_string_equal(st_config_store("sqlite:x.db?sync=normal", &s, false), "sqlite:x.db?sync=normal");
    st_settings_clear(&s);
    clean_env();
}

static void the_nearest_name_is_suggested_and_nothing_far_off(void **state)
{
    static const char *const names[] = {"enqueue", "queue", "job", "dev", "doctor", NULL};

    (void)state;
    assert_string_equal(st_suggest(LIT("enqeue"), names), "enqueue");
    assert_string_equal(st_suggest(LIT("ququee"), names), "queue");
    assert_string_equal(st_suggest(LIT("jbo"), names), "job");
    assert_string_equal(st_suggest(LIT("doc"), names), "doctor");
    assert_null(st_suggest(LIT("telephone"), names));
    assert_null(st_suggest(LIT(""), names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_file_gives_the_defaults),
        cmocka_unit_test(every_key_lands_where_it_belongs),
        cmocka_unit_test(types_are_found_by_the_most_specific_pattern_and_by_parent_queue),
        cmocka_unit_test(a_lease_without_renew_is_renewed_three_times),
        cmocka_unit_test(a_list_of_queues_is_strict),
        cmocka_unit_test(every_bad_file_is_refused_at_its_line_and_column),
        cmocka_unit_test(too_large_too_wide_and_too_deep_are_refused),
        cmocka_unit_test(programs_and_directories_are_looked_for_from_the_file),
        cmocka_unit_test(a_file_that_is_not_there_is_named),
        cmocka_unit_test(the_environment_lies_over_the_file),
        cmocka_unit_test(a_wrong_variable_is_named),
        cmocka_unit_test(types_of_a_flag_replace_those_of_the_file),
        cmocka_unit_test(the_store_is_chosen_by_precedence),
        cmocka_unit_test(the_nearest_name_is_suggested_and_nothing_far_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
