/* SPDX-License-Identifier: Apache-2.0
 *
 * test_redis_look.c - what only a Redis store shows: jobs of stock programs, its workers in asynq's eyes, waiting for stock producers.
 *
 * Beside a server that is thrown away (scripts/redis-test).  What a stock program does is done here with its own commands, key by key.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/redis_conn.h"
#include "store/redis_int.h"
#include "store/store.h"

#define S(text)  st_slice_cstr(text)
#define SEC      ST_SEC
#define T0       ((int64_t)1700000000 * ST_SEC)
#define OK(call) assert_int_equal((call), STINT_OK)

/* ---- the server, raw -------------------------------------------------------------------------------------- */

static struct st_redis *raw;
static char url[600];

/* One command; its answer as a number, or -1. */
static int64_t cmdv(const struct st_slice *argv, size_t n, char *text, size_t size)
{
    struct st_redis_batch b;
    const redisReply *r;
    stint_error err = {0};
    int64_t got;

    st_redis_batch_init(&b);
    st_redis_add(&b, ST_REDIS_WRITE, ST_NONE, argv, n);
    if (st_redis_run(raw, &b, &err))
        fail_msg("%.*s: %s", (int)argv[0].len, argv[0].p, err.message);
    r = st_redis_reply(&b, 0);
    if (r->type == REDIS_REPLY_ERROR)
        fail_msg("%.*s: %s", (int)argv[0].len, argv[0].p, r->str);
    got = r->type == REDIS_REPLY_ARRAY ? (int64_t)r->elements : st_redis_int(r, -1);
    if (text)
        snprintf(text, size, "%.*s", (int)st_redis_text(r).len, st_redis_text(r).p ? st_redis_text(r).p : "");
    st_redis_batch_clear(&b);
    return got;
}

#define CMD(...)                                                                                                       \
    cmdv((const struct st_slice[]){__VA_ARGS__},                                                                       \
         sizeof((const struct st_slice[]){__VA_ARGS__}) / sizeof(struct st_slice), NULL, 0)
#define ASK(text, ...)                                                                                                 \
    cmdv((const struct st_slice[]){__VA_ARGS__},                                                                       \
         sizeof((const struct st_slice[]){__VA_ARGS__}) / sizeof(struct st_slice), text, sizeof(text))

static struct st_store *store_open(const char *more)
{
    char full[800];
    struct st_store *s;
    stint_error err = {0};

    snprintf(full, sizeof(full), "%s%s%s", url, *more ? (strchr(url, '?') ? "&" : "?") : "", more);
    if (st_store_open(full, NULL, &s, &err))
        fail_msg("cannot open %s: %s", full, err.message);
    return s;
}

static int fresh(void **state)
{
    CMD(S("FLUSHALL"));
    *state = store_open("");
    return 0;
}

static int done(void **state)
{
    st_store_close(*state);
    return 0;
}

/* ---- a stock producer ------------------------------------------------------------------------------------------ */

/* As asynq's client writes it: fields in order, zeros left out. */
struct stock {
    const char *type, *payload, *id, *queue;
    int retry, retried;
    const char *error;
    int64_t last_failed, retention, completed;
    const char *header, *value;
};

static void stock_msg(const struct stock *t, struct st_buf *b)
{
    const struct st_redis_msg m = {.type = S(t->type),
                                   .payload = S(t->payload),
                                   .id = S(t->id),
                                   .queue = S(t->queue),
                                   .retry = t->retry,
                                   .retried = t->retried,
                                   .error_msg = S(t->error),
                                   .last_failed_s = t->last_failed,
                                   .retention_s = t->retention,
                                   .completed_s = t->completed};

    st_redis_msg_write(&m, b);
    if (t->header) { /* 15: a map's entry */
        const size_t k = strlen(t->header), v = strlen(t->value);

        st_buf_putc(b, 0x7a);
        st_buf_putc(b, (char)(k + v + 4));
        st_buf_putc(b, 0x0a);
        st_buf_putc(b, (char)k);
        st_buf_puts(b, t->header);
        st_buf_putc(b, 0x12);
        st_buf_putc(b, (char)v);
        st_buf_puts(b, t->value);
    }
}

/* Its hash, in this state. */
static void stock_put(const struct stock *t, const char *state)
{
    struct st_redis_key key;
    struct st_slice k = st_redis_task_key(&key, S(t->queue), S(t->id));
    struct st_buf b;

    st_buf_init(&b, 1 << 20);
    stock_msg(t, &b);
    CMD(S("SADD"), S("asynq:queues"), S(t->queue));
    CMD(S("HSET"), k, S("msg"), st_buf_view(&b), S("state"), S(state));
    st_buf_clear(&b);
}

static void stock_enqueue(const struct stock *t, int64_t since_us)
{
    char list[200], ns[40];
    struct st_redis_key key;

    stock_put(t, "pending");
    snprintf(ns, sizeof(ns), "%lld000", (long long)since_us);
    CMD(S("HSET"), st_redis_task_key(&key, S(t->queue), S(t->id)), S("pending_since"), S(ns));
    snprintf(list, sizeof(list), "asynq:{%s}:pending", t->queue);
    CMD(S("LPUSH"), S(list), S(t->id));
}

static void stock_in(const struct stock *t, const char *state, int64_t score)
{
    char set[200], text[40];

    stock_put(t, state);
    snprintf(set, sizeof(set), "asynq:{%s}:%s", t->queue, state);
    snprintf(text, sizeof(text), "%lld", (long long)score);
    CMD(S("ZADD"), S(set), S(text), S(t->id));
}

#define ID1 "1c9a6be4-2e5e-4ef8-9d3a-000000000001"
#define ID2 "0a9a6be4-2e5e-4ef8-9d3a-000000000002"
#define ID3 "f09a6be4-2e5e-4ef8-9d3a-000000000003"
#define ID4 "219a6be4-2e5e-4ef8-9d3a-000000000004"

static struct st_job_info get(struct st_store *s, const char *id)
{
    struct st_job_info i;
    stint_error err = {0};

    if (st_store_get(s, T0, S(id), &i, &err))
        fail_msg("get: %s", err.message);
    return i;
}

/* ---- looking at stock jobs ---------------------------------------------------------------------------------------- */

static void a_stock_task_is_shown_with_what_is_known_of_it(void **state)
{
    const struct stock t = {.type = "email:send",
                            .payload = "{\"a\":1}",
                            .id = ID1,
                            .queue = "mail",
                            .retry = 25,
                            .header = "traceparent",
                            .value = "00-ab"};
    struct st_job_info i;

    stock_enqueue(&t, T0 - 5 * SEC);
    i = get(*state, ID1);
    assert_int_equal(i.shown, ST_SHOW_PENDING);
    assert_string_equal(i.type, "email:send");
    assert_string_equal(i.queue, "mail");
    assert_true(st_slice_is(i.payload, "{\"a\":1}"));
    assert_true(st_slice_is(i.meta, "{\"traceparent\":\"00-ab\"}"));
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.max_attempts, 26);
    assert_int_equal(i.timeout_us, 1800 * SEC);
    assert_int_equal(i.created_us, T0 - 5 * SEC);
    assert_int_equal(i.due_us, T0 - 5 * SEC);
    assert_int_equal(i.n_attempts, 0);
    st_job_info_clear(&i);
}

static void a_stock_task_to_be_tried_again_shows_its_error(void **state)
{
    const struct stock t = {.type = "x",
                            .id = ID1,
                            .queue = "q",
                            .payload = "",
                            .retry = 3,
                            .retried = 2,
                            .error = "boom",
                            .last_failed = T0 / SEC - 1};
    struct st_job_info i;

    stock_in(&t, "retry", T0 / SEC + 60);
    i = get(*state, ID1);
    assert_int_equal(i.shown, ST_SHOW_RETRYING);
    assert_int_equal(i.attempt, 2);
    assert_int_equal(i.max_attempts, 4);
    assert_int_equal(i.due_us, T0 + 60 * SEC);
    assert_string_equal(i.error_message, "boom");
    assert_int_equal(i.error_kind, ST_KIND_APP_ERROR);
    st_job_info_clear(&i);
}

static void what_stock_servers_have_done_is_shown(void **state)
{
    const struct stock good = {
        .type = "good", .id = ID1, .queue = "q", .payload = "", .retention = 600, .completed = T0 / SEC - 10};
    const struct stock bad = {.type = "bad",
                              .id = ID2,
                              .queue = "q",
                              .payload = "",
                              .retry = 1,
                              .retried = 1,
                              .error = "asynq: task lease expired"};
    struct st_redis_key key;
    struct st_job_info i;

    stock_in(&good, "completed", T0 / SEC + 590);
    CMD(S("HSET"), st_redis_task_key(&key, S("q"), S(ID1)), S("result"), S("42"));
    stock_in(&bad, "archived", T0 / SEC - 7);
    i = get(*state, ID1);
    assert_int_equal(i.shown, ST_SHOW_SUCCEEDED);
    assert_true(st_slice_is(i.result, "42"));
    assert_int_equal(i.finished_us, T0 - 10 * SEC);
    assert_int_equal(i.attempt, 1);
    assert_int_equal(i.n_attempts, 1);
    assert_string_equal(i.attempts[0].outcome, "succeeded");
    st_job_info_clear(&i);
    i = get(*state, ID2);
    assert_int_equal(i.shown, ST_SHOW_FAILED);
    assert_int_equal(i.attempt, 2);
    assert_int_equal(i.error_kind, ST_KIND_LEASE_EXPIRED);
    assert_int_equal(i.finished_us, T0 - 7 * SEC);
    st_job_info_clear(&i);
}

static void a_task_that_a_stock_server_runs_is_running(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    struct st_queue_info *q;
    struct st_job_info i;
    size_t n;

    stock_put(&t, "active");
    CMD(S("LPUSH"), S("asynq:{q}:active"), S(ID1));
    CMD(S("ZADD"), S("asynq:{q}:lease"), S("1700000030"), S(ID1));
    i = get(*state, ID1);
    assert_int_equal(i.shown, ST_SHOW_RUNNING);
    assert_int_equal(i.lease_until_us, T0 + 30 * SEC);
    assert_null(i.worker);
    assert_int_equal(i.n_attempts, 1);
    st_job_info_clear(&i);
    OK(st_store_queues(*state, T0, &q, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(q[0].counts[ST_SHOW_RUNNING], 1);
    free(q);
}

static void a_damaged_message_is_shown_all_the_same(void **state)
{
    struct st_redis_key key;
    struct st_job_info i;

    CMD(S("SADD"), S("asynq:queues"), S("q"));
    CMD(S("HSET"), st_redis_task_key(&key, S("q"), S("broken")), S("msg"), S("\xff\xff\xff"), S("state"), S("pending"));
    CMD(S("LPUSH"), S("asynq:{q}:pending"), S("broken"));
    i = get(*state, "broken");
    assert_int_equal(i.shown, ST_SHOW_PENDING);
    assert_string_equal(i.type, "");
    st_job_info_clear(&i);
}

/* ---- lists ------------------------------------------------------------------------------------------------------------ */

static void many_stock_tasks_are_listed_each_once(void **state)
{
    struct st_list_req req = {.now_us = T0, .limit = 100, .type = S("even*")};
    size_t seen = 0, pages = 0;
    char id[40];

    for (int i = 0; i < 2500; i++) {
        const struct stock t = {.type = i % 2 ? "odd" : "even:x", .id = id, .queue = "q", .payload = ""};

        snprintf(id, sizeof(id), "stock-%d", i);
        stock_enqueue(&t, T0 + i * ST_MS);
    }
    do {
        struct st_job_info *list;
        size_t n;

        OK(st_store_list(*state, &req, &list, &n, &req.after, NULL));
        for (size_t i = 0; i < n; i++) {
            char want[40];

            snprintf(want, sizeof(want), "stock-%zu", 2498 - 2 * (seen + i));
            assert_string_equal(list[i].id, want); /* newest first, by when it came */
        }
        seen += n;
        pages++;
        st_job_info_list_free(list, n);
    } while (req.after);
    assert_int_equal(seen, 1250);
    assert_true(pages >= 13);
}

static void jobs_that_share_a_cursor_are_all_listed(void **state)
{
    struct st_list_req req = {.now_us = T0, .limit = 3};
    size_t seen = 0;
    char id[40];

    for (int i = 0; i < 40; i++) { /* the same moment */
        const struct stock t = {.type = "x", .id = id, .queue = i % 2 ? "a" : "b", .payload = ""};

        snprintf(id, sizeof(id), "s%d", i);
        stock_enqueue(&t, T0);
    }
    do {
        struct st_job_info *list;
        size_t n;

        OK(st_store_list(*state, &req, &list, &n, &req.after, NULL));
        seen += n;
        st_job_info_list_free(list, n);
    } while (req.after);
    assert_int_equal(seen, 40);
}

static void an_aggregating_task_is_shown_as_blocked(void **state)
{
    struct st_list_req req = {.now_us = T0, .limit = 3, .states = 1u << ST_SHOW_BLOCKED};
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    struct st_job_info *list;
    uint64_t next;
    size_t n;

    stock_put(&t, "aggregating");
    CMD(S("SADD"), S("asynq:{q}:groups"), S("g1"));
    CMD(S("ZADD"), S("asynq:{q}:g:g1"), S("1700000000"), S(ID1));
    OK(st_store_list(*state, &req, &list, &n, &next, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(list[0].shown, ST_SHOW_BLOCKED);
    st_job_info_list_free(list, n);
}

static void a_payload_that_was_not_asked_for_does_not_leave_the_server(void **state)
{
    static char big[300000];
    struct st_list_req req = {.now_us = T0, .limit = 10};
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = big, .retry = 7};
    struct st_job_info *list;
    char out[64], before[64];
    uint64_t next;
    size_t n;

    memset(big, 'p', sizeof(big) - 1);
    stock_enqueue(&t, T0);
    ASK(before, S("EVAL"), S("return string.match(redis.call('INFO', 'stats'), 'total_net_output_bytes:(%d+)')"),
        S("0"));
    OK(st_store_list(*state, &req, &list, &n, &next, NULL));
    ASK(out, S("EVAL"), S("return string.match(redis.call('INFO', 'stats'), 'total_net_output_bytes:(%d+)')"), S("0"));
    assert_int_equal(n, 1);
    assert_int_equal(list[0].max_attempts, 8);
    assert_true(atoll(out) - atoll(before) < 10000);
    st_job_info_list_free(list, n);
}

/* ---- retention ----------------------------------------------------------------------------------------------------------- */

static void the_janitor_takes_what_its_own_retention_has_let_go(void **state)
{
    const struct stock old = {
        .type = "x", .id = ID1, .queue = "q", .payload = "", .retention = 5, .completed = T0 / SEC - 10};
    const struct stock young = {
        .type = "x", .id = ID2, .queue = "q", .payload = "", .retention = 60, .completed = T0 / SEC - 10};
    const struct st_prune_req req = {.now_us = T0, .keep = {SEC, SEC, SEC}, .limit = 10};
    struct st_pruned gone;
    int64_t again;

    stock_in(&old, "completed", T0 / SEC - 5);
    stock_in(&young, "completed", T0 / SEC + 50);
    OK(st_store_prune(*state, &req, &gone, NULL)); /* what its producer wants kept is kept */
    assert_int_equal(gone.n, 0);
    st_pruned_clear(&gone);
    OK(st_store_upkeep(*state, &req, &gone, &again, NULL));
    assert_int_equal(gone.n, 1);
    st_pruned_clear(&gone);
    assert_int_equal(CMD(S("EXISTS"), S("asynq:{q}:t:" ID1)), 0);
    assert_int_equal(CMD(S("EXISTS"), S("asynq:{q}:t:" ID2)), 1);
    assert_int_equal(CMD(S("ZCARD"), S("asynq:{q}:completed")), 1);
}

static void a_stale_leader_does_no_upkeep(void **state)
{
    const struct stock old = {
        .type = "x", .id = ID1, .queue = "q", .payload = "", .retention = 5, .completed = T0 / SEC - 10};
    const struct st_prune_req req = {.now_us = T0, .epoch = 7, .limit = 10};
    struct st_pruned gone;
    int64_t again;

    stock_in(&old, "completed", T0 / SEC - 5);
    assert_int_equal(st_store_upkeep(*state, &req, &gone, &again, NULL), STINT_ELOST);
    assert_int_equal(CMD(S("EXISTS"), S("asynq:{q}:t:" ID1)), 1);
}

/* ---- workers --------------------------------------------------------------------------------------------------------------- */

static char logged[8192];

static void remember(void *arg, enum st_log_level level, const char *line, size_t len)
{
    const size_t at = strlen(logged);

    (void)arg;
    (void)level;
    snprintf(logged + at, sizeof(logged) - at, "%.*s\n", (int)len, line);
}

static const struct st_worker_info worker = {.id = "w-1",
                                             .host = "web1",
                                             .boot_id = "b",
                                             .pid = 4711,
                                             .pid_start = 9,
                                             .slots = 10,
                                             .running = 0,
                                             .queues = "[\"mail\",\"default\"]",
                                             .types = "[]",
                                             .healthy = true,
                                             .started_us = T0};

static void a_worker_is_shown_to_asynqs_inspector(void **state)
{
    static const char key[] = "asynq:servers:{web1:4711:w-1}";
    char info[600] = "";

    OK(st_store_worker_beat(*state, 0, &worker, NULL));
    assert_int_equal(CMD(S("ZCARD"), S("asynq:servers")), 1);
    assert_int_equal(CMD(S("ZRANK"), S("asynq:servers"), S(key)), 0);
    assert_int_equal(CMD(S("ZRANK"), S("asynq:workers"), S("asynq:workers:{web1:4711:w-1}")), 0);
    assert_true(CMD(S("TTL"), S(key)) > 10);
    ASK(info, S("GET"), S(key));
    /* 1 host, 2 pid, 3 server_id, 4 concurrency, 5 queues, 6 strict, 7 status */
    assert_memory_equal(info,
                        "\x0a\x04web1\x10\xe7\x24\x1a\x03w-1\x20\x0a\x2a\x08\x0a\x04mail\x10\x02\x2a\x0b\x0a\x07"
                        "default\x10\x01"
                        "\x30\x01\x3a\x06"
                        "active",
                        49);
    OK(st_store_worker_remove(*state, 0, S("w-1"), false, 0, 0, NULL));
    assert_int_equal(CMD(S("EXISTS"), S(key), S("asynq:servers"), S("asynq:workers")), 0);
}

static void a_worker_is_shown_to_runqys_dashboard(void **state)
{
    struct st_store *s = store_open("runqy=1");
    struct st_worker_info sick = worker;
    char text[64];

    (void)state;
    sick.healthy = false;
    OK(st_store_worker_beat(s, 0, &sick, NULL));
    ASK(text, S("HGET"), S("asynq:workers:web1:4711"), S("healthy"));
    assert_string_equal(text, "0");
    ASK(text, S("HGET"), S("asynq:workers:web1:4711"), S("worker_id"));
    assert_string_equal(text, "w-1");
    assert_int_equal(CMD(S("ZRANK"), S("asynq:workers"), S("web1:4711")) >= 0, 1);
    sick.healthy = true;
    OK(st_store_worker_beat(s, 0, &sick, NULL));
    ASK(text, S("HGET"), S("asynq:workers:web1:4711"), S("healthy"));
    assert_string_equal(text, "1");
    st_store_close(s);
}

static void a_store_that_was_emptied_is_told_of_once(void **state)
{
    st_log_set_sink(remember, NULL, false);
    st_log_set_level(ST_LOG_INFO);
    OK(st_store_worker_beat(*state, 0, &worker, NULL));
    OK(st_store_worker_beat(*state, 0, &worker, NULL));
    logged[0] = '\0';
    CMD(S("FLUSHALL"));
    OK(st_store_worker_beat(*state, 0, &worker, NULL));
    assert_non_null(strstr(logged, "store.emptied"));
    logged[0] = '\0';
    OK(st_store_worker_beat(*state, 0, &worker, NULL));
    assert_null(strstr(logged, "store.emptied"));
    OK(st_store_worker_remove(*state, 0, S("w-1"), false, 0, 0, NULL)); /* buried by the leader: not the same */
    OK(st_store_worker_beat(*state, 0, &worker, NULL));
    assert_null(strstr(logged, "store.emptied"));
    st_log_set_sink(NULL, NULL, false);
}

static void upkeep(struct st_store *s)
{
    struct st_prune_req req = {.limit = 10};
    struct st_pruned out;
    int64_t again_us;

    OK(st_store_upkeep(s, &req, &out, &again_us, NULL));
    st_pruned_clear(&out);
}

/* A list of jobs may be among what was evicted: nobody would miss it. */
static void evictions_are_told_of(void **state)
{
    char text[64];

    st_log_set_sink(remember, NULL, false);
    st_log_set_level(ST_LOG_INFO);
    upkeep(*state);
    logged[0] = '\0';
    upkeep(*state);
    assert_null(strstr(logged, "store.evicted"));
    CMD(S("SET"), S("something"), S("to go"));
    ASK(text, S("CONFIG"), S("SET"), S("maxmemory-policy"), S("allkeys-lru"));
    ASK(text, S("CONFIG"), S("SET"), S("maxmemory"), S("1"));
    CMD(S("EXISTS"), S("something"));
    ASK(text, S("CONFIG"), S("SET"), S("maxmemory"), S("0"));
    ASK(text, S("CONFIG"), S("SET"), S("maxmemory-policy"), S("noeviction"));
    upkeep(*state);
    assert_non_null(strstr(logged, "store.evicted"));
    st_log_set_sink(NULL, NULL, false);
}

/* ---- runqy ------------------------------------------------------------------------------------------------------------------ */

static struct st_job *claim_one(struct st_store *s)
{
    const struct st_slice q[1] = {S("inference")};
    const struct st_claim_req req = {
        .worker = S("w-1"), .queues = q, .n_queues = 1, .lease_us = 60 * SEC, .n = 1, .n_run = 1};
    struct st_job *job = NULL;
    stint_error err = {0};
    size_t n;

    if (st_store_claim(s, &req, &job, &n, &err))
        fail_msg("claim: %s", err.message);
    return n ? job : NULL;
}

static void finish(struct st_store *s, struct st_job *job, const char *result)
{
    struct st_finish f = {.id = S(job->id),
                          .fence = job->fence,
                          .ref = job->ref,
                          .outcome = ST_OUT_SUCCEEDED,
                          .result = S(result),
                          .started_ago_us = 0,
                          .exit_code = -1};

    OK(st_store_finish(s, 0, &f, 1, NULL));
    OK(f.verdict);
    st_job_free(job);
}

static void runqys_keys_are_written_beside_asynqs(void **state)
{
    const struct st_new_job j = {.id = S("r-1"),
                                 .type = S("t"),
                                 .queue = S("inference"),
                                 .payload = S("{}"),
                                 .max_attempts = -1,
                                 .timeout_us = -1};
    struct st_store *s = store_open("runqy=1");
    struct st_enqueued out;
    struct st_job *job;
    char text[64];

    (void)state;
    OK(st_store_enqueue(s, 0, &j, 1, &out, NULL));
    ASK(text, S("HGET"), S("asynq:t:r-1"), S("queue"));
    assert_string_equal(text, "inference.default");
    assert_true(CMD(S("TTL"), S("asynq:t:r-1")) > 0);
    assert_int_equal(CMD(S("LLEN"), S("asynq:{inference.default}:pending")), 1);
    job = claim_one(s);
    assert_non_null(job);
    assert_string_equal(job->queue, "inference.default");
    finish(s, job, "{\"ok\":true}");
    ASK(text, S("GET"), S("asynq:result:r-1"));
    assert_string_equal(text, "{\"ok\":true}");
    assert_true(CMD(S("TTL"), S("asynq:result:r-1")) > 0);
    st_store_close(s);
}

static void without_storage_nothing_is_kept_of_what_has_ended(void **state)
{
    const struct st_new_job j = {.id = S("r-5"),
                                 .type = S("t"),
                                 .queue = S("inference"),
                                 .payload = S("{}"),
                                 .max_attempts = -1,
                                 .timeout_us = -1};
    struct st_store *s = store_open("runqy=1&redis_storage=false");
    struct st_enqueued out;
    struct st_job *job;

    (void)state;
    OK(st_store_enqueue(s, 0, &j, 1, &out, NULL));
    job = claim_one(s);
    assert_non_null(job);
    finish(s, job, "1");
    assert_int_equal(CMD(S("EXISTS"), S("asynq:{inference.default}:t:r-5")), 0);
    assert_int_equal(CMD(S("ZCARD"), S("asynq:{inference.default}:completed")), 0);
    assert_int_equal(CMD(S("EXISTS"), S("asynq:result:r-5"), S("asynq:t:r-5")), 0);
    st_store_close(s);
}

static void lists_without_braces_are_taken_over(void **state)
{
    struct st_store *s = store_open("runqy=1");
    struct st_job *job;

    (void)state;
    CMD(S("HSET"), S("asynq:t:r-2"), S("type"), S("infer"), S("payload"), S("[1]"), S("max_retry"), S("4"));
    CMD(S("LPUSH"), S("asynq:inference:pending"), S("r-2"), S("no-such-task"));
    job = claim_one(s);
    assert_non_null(job);
    assert_string_equal(job->id, "r-2");
    assert_string_equal(job->type, "infer");
    assert_string_equal(job->queue, "inference.default");
    assert_true(st_slice_is(job->payload, "[1]"));
    assert_int_equal(job->policy.max_attempts, 5);
    assert_int_equal(CMD(S("LLEN"), S("asynq:inference:pending")), 0);
    finish(s, job, "1");
    st_store_close(s);
}

/* The worker names no queues, and all that is known is the sub. */
static void a_parents_list_is_taken_over_where_its_sub_is_known(void **state)
{
    const struct st_claim_req req = {.worker = S("w-1"), .lease_us = 60 * SEC, .n = 1, .n_run = 1};
    struct st_store *s = store_open("runqy=1");
    struct st_job *job = NULL;
    size_t n;

    (void)state;
    CMD(S("SADD"), S("asynq:queues"), S("inference.default"));
    CMD(S("HSET"), S("asynq:t:r-4"), S("type"), S("infer"), S("payload"), S("[1]"));
    CMD(S("LPUSH"), S("asynq:inference:pending"), S("r-4"));
    OK(st_store_claim(s, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    assert_string_equal(job->id, "r-4");
    assert_int_equal(CMD(S("LLEN"), S("asynq:inference:pending")), 0);
    finish(s, job, "1");
    st_store_close(s);
}

static void without_runqy_a_queue_is_what_it_is_called(void **state)
{
    const struct st_new_job j = {.id = S("r-3"),
                                 .type = S("t"),
                                 .queue = S("inference"),
                                 .payload = S("{}"),
                                 .max_attempts = -1,
                                 .timeout_us = -1};
    struct st_enqueued out;

    OK(st_store_enqueue(*state, 0, &j, 1, &out, NULL));
    assert_int_equal(CMD(S("LLEN"), S("asynq:{inference}:pending")), 1);
    assert_int_equal(CMD(S("EXISTS"), S("asynq:t:r-3")), 0);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------------ */

/* Waits until one comes back without news. */
static unsigned settle(struct st_store *s)
{
    unsigned news = 0;
    bool woken;

    do {
        OK(st_store_wait(s, 0, &woken, NULL));
        news |= st_store_news(s);
    } while (woken);
    return news;
}

static unsigned wait_news(struct st_store *s)
{
    const int64_t began = st_clock_mono_us();
    bool woken = false;

    while (!woken && st_clock_mono_us() - began < 60 * SEC)
        OK(st_store_wait(s, 60000, &woken, NULL));
    assert_true(woken);
    return st_store_news(s);
}

static void watch(struct st_store *s, const char *queue, bool work)
{
    const struct st_slice q[1] = {S(queue)};

    OK(st_store_watch(s, S("w-1"), q, *queue ? 1 : 0, work, NULL));
}

static void a_stock_producers_push_wakes(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    const struct stock other = {.type = "x", .id = ID2, .queue = "other", .payload = ""};

    watch(*state, "q", true);
    settle(*state);
    stock_enqueue(&t, st_clock_real_us());
    assert_true(wait_news(*state) & ST_NEWS_WORK);
    CMD(S("DEL"), S("asynq:{q}:pending"));
    settle(*state);
    stock_enqueue(&other, st_clock_real_us()); /* not ours */
    assert_false(settle(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK));
}

static void a_new_queue_is_noticed_by_who_serves_all(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "brand-new", .payload = ""};

    watch(*state, "", true);
    settle(*state);
    stock_enqueue(&t, st_clock_real_us());
    assert_true(wait_news(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK));
}

/* A key of another kind in one queue: the worker goes on listening, and hears of the others. */
static void a_broken_queue_makes_nobody_deaf(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};

    CMD(S("SADD"), S("asynq:queues"), S("broken"));
    CMD(S("SET"), S("asynq:{broken}:pending"), S("x"));
    watch(*state, "", true);
    assert_false(settle(*state) & ST_NEWS_DEAF);
    stock_enqueue(&t, st_clock_real_us());
    assert_int_equal(wait_news(*state) & (ST_NEWS_DEAF | ST_NEWS_WORK), ST_NEWS_WORK);
}

static void a_sub_queue_belongs_to_its_parent(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "mail.high", .payload = ""};

    watch(*state, "mail", true);
    settle(*state);
    stock_enqueue(&t, st_clock_real_us());
    assert_true(wait_news(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK));
}

static void what_was_there_already_is_told_once(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    bool woken;

    stock_enqueue(&t, st_clock_real_us());
    watch(*state, "q", true);
    assert_true(settle(*state) & ST_NEWS_LOOK);
    watch(*state, "q", true);
    OK(st_store_wait(*state, 10, &woken, NULL));
    assert_false(woken);
}

static void a_paused_queue_wakes_nobody_until_it_goes_on(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q.sub", .payload = ""};

    CMD(S("SET"), S("asynq:{q}:paused"), S("1"));
    watch(*state, "q", true);
    settle(*state);
    stock_enqueue(&t, st_clock_real_us());
    assert_false(settle(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK));
    CMD(S("DEL"), S("asynq:{q}:paused"));
    assert_true(wait_news(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK));
}

static void an_earlier_due_time_wakes(void **state)
{
    const struct stock later = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    const struct stock sooner = {.type = "x", .id = ID2, .queue = "q", .payload = ""};
    const struct stock last = {.type = "x", .id = ID3, .queue = "q", .payload = ""};

    stock_in(&later, "scheduled", st_clock_real_us() / SEC + 900);
    watch(*state, "q", true);
    settle(*state);
    stock_in(&last, "scheduled", st_clock_real_us() / SEC + 9000);
    assert_false(settle(*state) & ST_NEWS_WORK);
    stock_in(&sooner, "retry", st_clock_real_us() / SEC + 300);
    assert_true(wait_news(*state) & ST_NEWS_WORK);
}

/* A busy worker costs the server nothing, an idle one neither. */
static void sleeping_asks_the_server_for_nothing(void **state)
{
    char before[64], after[64];
    static const char script[] = "return string.match(redis.call('INFO', 'stats'), 'total_commands_processed:(%d+)')";
    bool woken;

    watch(*state, "q", true);
    settle(*state);
    ASK(before, S("EVAL"), S(script), S("0"));
    OK(st_store_wait(*state, 500, &woken, NULL));
    watch(*state, "q", false);
    OK(st_store_wait(*state, 100, &woken, NULL));
    ASK(after, S("EVAL"), S(script), S("0"));
    assert_true(atoll(after) - atoll(before) <= 4); /* the question itself, and what it calls */
}

static void who_wants_no_work_is_not_woken_by_it(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};

    watch(*state, "q", true);
    settle(*state);
    watch(*state, "q", false);
    stock_enqueue(&t, st_clock_real_us());
    assert_int_equal(settle(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK), 0);
    watch(*state, "q", true); /* and when it does again it sees what came meanwhile */
    assert_true(wait_news(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK));
}

static void flushall_wakes(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};

    watch(*state, "q", true);
    settle(*state);
    CMD(S("FLUSHALL"));
    wait_news(*state);
    settle(*state);
    stock_enqueue(&t, st_clock_real_us());
    assert_true(wait_news(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK));
}

static void a_lost_connection_is_made_again(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};

    watch(*state, "q", true);
    settle(*state);
    CMD(S("CLIENT"), S("KILL"), S("TYPE"), S("pubsub"));
    CMD(S("CLIENT"), S("KILL"), S("TYPE"), S("normal"), S("SKIPME"), S("yes"));
    stock_enqueue(&t, st_clock_real_us());
    while (!(wait_news(*state) & (ST_NEWS_WORK | ST_NEWS_LOOK)))
        watch(*state, "q", true);
    CMD(S("DEL"), S("asynq:{q}:pending"));
    while (settle(*state) & ST_NEWS_DEAF)
        usleep(10000);
    settle(*state);
    CMD(S("LPUSH"), S("asynq:{q}:pending"), S(ID1));
    assert_true(wait_news(*state) & ST_NEWS_WORK);
}

static void where_tracking_is_not_permitted_it_looks(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    char where[800];
    struct st_store *s;
    stint_error err = {0};

    (void)state;
    CMD(S("ACL"), S("SETUSER"), S("plain"), S("on"), S(">secret"), S("~*"), S("&*"), S("+@all"), S("-client"),
        S("+client|id")); /* 6.2 cannot take a part of a command away */
    assert_non_null(strstr(url, "://"));
    snprintf(where, sizeof(where), "%.*s://plain:secret@%s", (int)(strstr(url, "://") - url), url,
             strstr(url, "://") + 3);
    if (st_store_open(where, NULL, &s, &err))
        fail_msg("%s", err.message);
    watch(s, "q", true);
    settle(s);
    stock_enqueue(&t, st_clock_real_us());
    assert_true(wait_news(s) & (ST_NEWS_WORK | ST_NEWS_LOOK));
    st_store_close(s);
    CMD(S("ACL"), S("DELUSER"), S("plain"));
}

static void notify_off_looks_too(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    struct st_store *s = store_open("notify=off");

    (void)state;
    watch(s, "q", true);
    settle(s);
    stock_enqueue(&t, st_clock_real_us());
    assert_true(wait_news(s) & (ST_NEWS_WORK | ST_NEWS_LOOK));
    st_store_close(s);
}

static void ctl(const char *what)
{
    char command[600];

    snprintf(command, sizeof(command), "%s %s 1", getenv("STINT_TEST_REDIS_CTL"), what);
    assert_int_equal(system(command), 0);
}

/* It says that it hears nothing, does not spin, and hears again. */
static void away_and_back(struct st_store *s)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = ""};
    unsigned news = 0;
    int waits = 0;
    bool woken;

    s->timeout_ms = 300;
    watch(s, "q", true);
    settle(s);
    ctl("stop");
    while (!(news & ST_NEWS_DEAF)) {
        OK(st_store_wait(s, 1000, &woken, NULL));
        news |= st_store_news(s);
    }
    for (int64_t until = st_clock_mono_us() + SEC; st_clock_mono_us() < until; waits++)
        OK(st_store_wait(s, 100, &woken, NULL));
    assert_true(waits < 30);
    ctl("start");
    while (st_store_news(s) & ST_NEWS_DEAF || !woken)
        OK(st_store_wait(s, 1000, &woken, NULL));
    settle(s);
    st_redis_close(raw);
    OK(st_redis_open(url, 0, &raw, NULL));
    stock_enqueue(&t, st_clock_real_us());
    assert_true(wait_news(s) & (ST_NEWS_WORK | ST_NEWS_LOOK));
}

static void a_server_that_is_away_is_heard_again(void **state)
{
    away_and_back(*state);
}

static void a_server_that_is_away_is_looked_at_again(void **state)
{
    struct st_store *s = store_open("notify=off");

    (void)state;
    away_and_back(s);
    st_store_close(s);
}

static void *interrupt_soon(void *arg)
{
    st_store_interrupt(arg);
    return NULL;
}

static void a_watching_wait_is_interrupted(void **state)
{
    pthread_t thread;
    bool woken;

    watch(*state, "q", true);
    settle(*state);
    assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, *state), 0);
    OK(st_store_wait(*state, 600000, &woken, NULL));
    assert_false(woken);
    pthread_join(thread, NULL);
}

/* ---- cancelling as asynq's tools do ------------------------------------------------------------------------------------------------ */

static void a_stock_cancel_reaches_the_worker_that_holds_the_job(void **state)
{
    const struct stock t = {.type = "x", .id = ID1, .queue = "q", .payload = "", .retry = 3};
    const struct st_claim_req req = {.worker = S("w-1"), .lease_us = 60 * SEC, .n = 1, .n_run = 1};
    char flagged[4][ST_ID_MAX + 1];
    struct st_job *job;
    size_t n;

    stock_enqueue(&t, st_clock_real_us());
    OK(st_store_claim(*state, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    st_job_free(job);
    watch(*state, "q", false);
    settle(*state);
    CMD(S("PUBLISH"), S("asynq:cancel"), S(ID2)); /* somebody else's */
    assert_int_equal(settle(*state) & ST_NEWS_CANCEL, 0);
    CMD(S("PUBLISH"), S("asynq:cancel"), S(ID1));
    assert_true(wait_news(*state) & ST_NEWS_CANCEL);
    OK(st_store_flagged(*state, S("w-1"), flagged, 4, &n, NULL));
    assert_int_equal(n, 1);
    assert_string_equal(flagged[0], ID1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, fresh, done)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(a_stock_task_is_shown_with_what_is_known_of_it),
        T(a_stock_task_to_be_tried_again_shows_its_error),
        T(what_stock_servers_have_done_is_shown),
        T(a_task_that_a_stock_server_runs_is_running),
        T(a_damaged_message_is_shown_all_the_same),
        T(many_stock_tasks_are_listed_each_once),
        T(jobs_that_share_a_cursor_are_all_listed),
        T(an_aggregating_task_is_shown_as_blocked),
        T(a_payload_that_was_not_asked_for_does_not_leave_the_server),
        T(the_janitor_takes_what_its_own_retention_has_let_go),
        T(a_stale_leader_does_no_upkeep),
        T(a_worker_is_shown_to_asynqs_inspector),
        T(a_worker_is_shown_to_runqys_dashboard),
        T(a_store_that_was_emptied_is_told_of_once),
        T(evictions_are_told_of),
        T(runqys_keys_are_written_beside_asynqs),
        T(without_storage_nothing_is_kept_of_what_has_ended),
        T(a_parents_list_is_taken_over_where_its_sub_is_known),
        T(lists_without_braces_are_taken_over),
        T(without_runqy_a_queue_is_what_it_is_called),
        T(a_stock_producers_push_wakes),
        T(a_new_queue_is_noticed_by_who_serves_all),
        T(a_broken_queue_makes_nobody_deaf),
        T(a_sub_queue_belongs_to_its_parent),
        T(what_was_there_already_is_told_once),
        T(a_paused_queue_wakes_nobody_until_it_goes_on),
        T(an_earlier_due_time_wakes),
        T(sleeping_asks_the_server_for_nothing),
        T(who_wants_no_work_is_not_woken_by_it),
        T(flushall_wakes),
        T(a_lost_connection_is_made_again),
        T(where_tracking_is_not_permitted_it_looks),
        T(notify_off_looks_too),
        T(a_server_that_is_away_is_heard_again),
        T(a_server_that_is_away_is_looked_at_again),
        T(a_watching_wait_is_interrupted),
        T(a_stock_cancel_reaches_the_worker_that_holds_the_job),
    };
    const char *given = getenv("STINT_TEST_REDIS");
    int failed;

    if (!given) {
        fprintf(stderr, "STINT_TEST_REDIS is not set: run this beside a server, with scripts/redis-test\n");
        return 77;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    snprintf(url, sizeof(url), "%s", given);
    if (st_redis_open(url, 0, &raw, NULL))
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    st_redis_close(raw);
    return failed;
}
