/* SPDX-License-Identifier: Apache-2.0
 *
 * test_redis_store.c - what only a Redis store writes: asynq's keys and bytes, and what becomes of jobs that stock programs touch.
 *
 * Beside a server that is thrown away (scripts/redis-test).  What a stock program does is done here with its own commands, move by move.
 */
#include "redis_kit.h"

#include <pthread.h>

#include "base/clock.h"
#include "job/spec.h"
#include "store/redis_int.h"

#define S(text)  st_slice_cstr(text)
#define SEC      ST_SEC
#define T0       ((int64_t)1700000000 * ST_SEC)
#define OK(call) assert_int_equal((call), STINT_OK)
#define ID       "11111111-1111-4111-8111-111111111111"
#define Q        "inference.default"
#define K(name)  "asynq:{" Q "}:" name

static const char golden[] =
    "0a11696e666572656e63652e64656661756c7412077b2261223a317d1a2431313131313131312d313131312d343131312d38313131"
    "2d3131313131313131313131312211696e666572656e63652e64656661756c74280340ac026080a305";

static char url[600];
static struct st_redis *raw;

/* ---- the server, raw ------------------------------------------------------------------------------------------------ */

/* One command; its answer as text ("(nil)" for nothing), or as many elements as there are, joined by blanks. */
static const char *askv(const char *const *words, size_t n, const struct st_slice *last)
{
    static char text[8][4096];
    static int turn;
    struct st_slice argv[16];
    struct st_redis_batch b;
    stint_error err = {0};
    const redisReply *r;
    char *out = text[turn++ % 8];
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        argv[i] = S(words[i]);
    if (last)
        argv[n++] = *last;
    st_redis_batch_init(&b);
    st_redis_add(&b, ST_REDIS_WRITE, n > 1 ? argv[1] : ST_NONE, argv, n);
    if (st_redis_run(raw, &b, &err))
        fail_msg("%s: %s", words[0], err.message);
    r = st_redis_reply(&b, 0);
    out[0] = '\0';
    if (r->type == REDIS_REPLY_ERROR)
        fail_msg("%s: %s", words[0], r->str);
    if (r->type == REDIS_REPLY_INTEGER)
        snprintf(out, 4096, "%lld", r->integer);
    else if (r->type == REDIS_REPLY_NIL)
        snprintf(out, 4096, "(nil)");
    else if (r->type != REDIS_REPLY_ARRAY)
        snprintf(out, 4096, "%.*s", (int)r->len, r->str);
    for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i < r->elements && at < 3000; i++) {
        const struct st_slice e = st_redis_text(r->element[i]);

        at += (size_t)snprintf(out + at, 4096 - at, "%s%.*s", i ? " " : "", (int)e.len, e.p ? e.p : "");
    }
    st_redis_batch_clear(&b);
    return out;
}
#define WORDS(...)       ((const char *const[]){__VA_ARGS__}), sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)
#define ASK(...)         askv(WORDS(__VA_ARGS__), NULL)
#define ASK_LAST(b, ...) askv(WORDS(__VA_ARGS__), &(b))
#define IS(want, ...)    assert_string_equal(ASK(__VA_ARGS__), want)

/* A field's bytes as hex. */
static const char *hex_of(const char *key, const char *field)
{
    static char out[4][8192];
    static int turn;
    const struct st_slice argv[] = {S("HGET"), S(key), S(field)};
    struct st_redis_batch b;
    struct st_slice v;
    char *to = out[turn++ % 4];

    st_redis_batch_init(&b);
    st_redis_add(&b, ST_REDIS_READ, argv[1], argv, 3);
    OK(st_redis_run(raw, &b, NULL));
    v = st_redis_text(st_redis_reply(&b, 0));
    to[0] = '\0';
    for (size_t i = 0; i < v.len && i < 4000; i++)
        sprintf(to + 2 * i, "%02x", (unsigned char)v.p[i]);
    st_redis_batch_clear(&b);
    return to;
}

static const char *msg_hex(const struct st_redis_msg *m)
{
    static char out[4096];
    struct st_buf b;

    st_buf_init(&b, 2048);
    st_redis_msg_write(m, &b);
    for (size_t i = 0; i < b.len; i++)
        sprintf(out + 2 * i, "%02x", (unsigned char)b.p[i]);
    st_buf_clear(&b);
    return out;
}

/* The message of the job below, as it is at first. */
static struct st_redis_msg first_msg(void)
{
    return (struct st_redis_msg){.type = S(Q),
                                 .payload = S("{\"a\":1}"),
                                 .id = S(ID),
                                 .queue = S(Q),
                                 .retry = 3,
                                 .timeout_s = 300,
                                 .retention_s = 86400};
}

/* ---- jobs -------------------------------------------------------------------------------------------------------------- */

static struct st_new_job job_of(const char *id)
{
    return (struct st_new_job){.id = S(id),
                               .type = S(Q),
                               .queue = S(Q),
                               .payload = S("{\"a\":1}"),
                               .max_attempts = 4,
                               .timeout_us = 300 * SEC};
}

static void add(struct st_store *s, int64_t now, struct st_new_job j)
{
    struct st_enqueued out;
    stint_error err = {0};

    if (st_store_enqueue(s, now, &j, 1, &out, &err))
        fail_msg("enqueue: %s", err.message);
    assert_false(out.duplicate);
}

static struct st_claim_req req_of(int64_t now, size_t n)
{
    return (struct st_claim_req){.now_us = now, .worker = S("w1"), .lease_us = 10 * SEC, .n = n, .n_run = n};
}

static struct st_job *claim(struct st_store *s, int64_t now)
{
    struct st_claim_req req = req_of(now, 1);
    struct st_job *job = NULL;
    stint_error err = {0};
    size_t n;

    if (st_store_claim(s, &req, &job, &n, &err))
        fail_msg("claim: %s", err.message);
    return n ? job : NULL;
}

static struct st_finish fin(const struct st_job *job, enum st_outcome outcome)
{
    return (struct st_finish){.id = S(job->id),
                              .fence = job->fence,
                              .ref = job->ref,
                              .outcome = outcome,
                              .started_ago_us = -1,
                              .exit_code = -1};
}

static stint_code finish(struct st_store *s, int64_t now, const struct st_job *job, enum st_outcome outcome)
{
    struct st_finish f = fin(job, outcome);
    stint_error err = {0};

    if (st_store_finish(s, now, &f, 1, &err))
        fail_msg("finish: %s", err.message);
    return f.verdict;
}

static struct st_store *open_store(void)
{
    struct st_store_open opt = {.timeout_ms = 20000};
    struct st_store *s;
    stint_error err = {0};

    if (st_store_open(url, &opt, &s, &err))
        fail_msg("open: %s", err.message);
    return s;
}

static int fresh(void **state)
{
    redis_empty(url);
    *state = open_store();
    return 0;
}

static int done(void **state)
{
    st_store_close(*state);
    return 0;
}

/* ---- a stock program's moves ---------------------------------------------------------------------------------------------- */

/* As asynq's client enqueues. */
static void stock_enqueue(const struct st_redis_msg *m, struct st_slice more)
{
    char key[300], list[300];
    struct st_buf b;
    struct st_slice bytes;

    snprintf(key, sizeof(key), "asynq:{%.*s}:t:%.*s", (int)m->queue.len, m->queue.p, (int)m->id.len, m->id.p);
    snprintf(list, sizeof(list), "asynq:{%.*s}:pending", (int)m->queue.len, m->queue.p);
    st_buf_init(&b, 65536);
    st_redis_msg_write(m, &b);
    st_buf_slice(&b, more);
    bytes = st_buf_view(&b);
    ASK_LAST(m->queue, "SADD", "asynq:queues");
    ASK_LAST(bytes, "HSET", key, "state", "pending", "pending_since", "1699999990000000000", "msg");
    ASK_LAST(m->id, "LPUSH", list);
    st_buf_clear(&b);
}

/* Its recoverer takes a job whose lease it believes to have ended; then its forwarder; then its server. */
static void stock_recover(int64_t at_s)
{
    struct st_redis_msg m = first_msg();
    struct st_buf b;
    struct st_slice bytes;
    char when[32];

    m.retried = 1;
    m.error_msg = S("asynq: task lease expired");
    m.last_failed_s = at_s;
    st_buf_init(&b, 4096);
    st_redis_msg_write(&m, &b);
    bytes = st_buf_view(&b);
    snprintf(when, sizeof(when), "%lld", (long long)at_s);
    IS("1", "LREM", K("active"), "0", ID);
    IS("1", "ZREM", K("lease"), ID);
    ASK("ZADD", K("retry"), when, ID);
    ASK_LAST(bytes, "HSET", K("t:" ID), "state", "retry", "msg");
    st_buf_clear(&b);
}

static void stock_forward(void)
{
    ASK("LPUSH", K("pending"), ID);
    ASK("ZREM", K("retry"), ID);
    ASK("HSET", K("t:" ID), "state", "pending", "pending_since", "1700000040000000000");
}

static void stock_dequeue(const char *lease)
{
    IS(ID, "RPOPLPUSH", K("pending"), K("active"));
    ASK("HSET", K("t:" ID), "state", "active");
    ASK("HDEL", K("t:" ID), "pending_since");
    ASK("ZADD", K("lease"), lease, ID);
}

static void stock_requeue(void)
{
    IS("1", "LREM", K("active"), "0", ID);
    IS("1", "ZREM", K("lease"), ID);
    ASK("RPUSH", K("pending"), ID);
    ASK("HSET", K("t:" ID), "state", "pending");
}

static void stock_done(void)
{
    IS("1", "LREM", K("active"), "0", ID);
    IS("1", "ZREM", K("lease"), ID);
    IS("1", "DEL", K("t:" ID));
}

/* ---- bytes ----------------------------------------------------------------------------------------------------------------- */

static void the_message_is_the_golden_one(void **state)
{
    const struct st_redis_msg m = first_msg();
    struct st_redis_msg back;
    unsigned char bytes[94];

    (void)state;
    assert_string_equal(msg_hex(&m), golden);
    for (size_t i = 0; i < sizeof(bytes); i++)
        sscanf(golden + 2 * i, "%2hhx", &bytes[i]);
    assert_true(st_redis_msg_read(ST_SLICE((char *)bytes, sizeof(bytes)), &back));
    assert_true(st_slice_is(back.type, Q));
    assert_true(st_slice_is(back.payload, "{\"a\":1}"));
    assert_true(st_slice_is(back.id, ID));
    assert_int_equal(back.retry, 3);
    assert_int_equal(back.timeout_s, 300);
    assert_int_equal(back.retention_s, 86400);
    st_redis_msg_clear(&back);
}

static void the_packed_field_comes_back_as_it_was(void **state)
{
    struct st_redis_task t = {.flags = ST_RT_ACTIVE | ST_RT_META,
                              .skips = 3,
                              .last_outcome = 2,
                              .last_state = ST_PENDING,
                              .kind = ST_KIND_TIMEOUT,
                              .created_us = T0,
                              .due_us = T0 + 1,
                              .first_started_us = T0 + 2,
                              .timeout_us = -1,
                              .last_fence = 4,
                              .unique_until_us = T0 + 5,
                              .finished_us = T0 + 6,
                              .held = ST_CLAIMED,
                              .fence = T0 + 7,
                              .lease_us = T0 + 8,
                              .run_started_us = T0 + 9,
                              .digest = "0123456789abcdef",
                              .rules = "fedcba9876543210",
                              .worker = "w/1"};
    struct st_redis_task back;
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 1024);
    st_redis_task_pack(&t, &b);
    assert_int_equal(b.len, ST_RT_FIXED + ST_RT_HOLD + 3);
    assert_true(st_redis_task_unpack(st_buf_view(&b), &back));
    assert_memory_equal(&t, &back, sizeof(t));
    for (size_t n = 0; n < b.len; n++) /* cut anywhere: never more than what is there */
        st_redis_task_unpack(ST_SLICE(b.p, n), &back);
    st_buf_clear(&b);
}

static void ended_attempts_are_read_as_far_as_they_are_whole(void **state)
{
    const struct st_redis_run told = {
        .exit_code = -1, .signal = 9, .max_rss_kb = 77, .message = S("boom"), .log_tail = S("")};
    struct st_redis_run back;
    struct st_slice rest;
    struct st_buf b, part;

    (void)state;
    st_buf_init(&b, 4096);
    st_buf_init(&part, 4096);
    st_buf_put(&part, "\2\5\0\0\0\1", 6);
    st_buf_put(&part, "\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\2w1", 27);
    st_redis_run_told(&part, &told);
    st_buf_put(&b, "\0\0\0", 3);
    st_buf_putc(&b, (char)part.len);
    st_buf_slice(&b, st_buf_view(&part));
    rest = st_buf_view(&b);
    assert_true(st_redis_run_next(&rest, &back));
    assert_int_equal(back.outcome, ST_OUT_FAILED);
    assert_int_equal(back.kind, ST_KIND_EXIT);
    assert_int_equal(back.fence, 1);
    assert_int_equal(back.exit_code, -1);
    assert_int_equal(back.signal, 9);
    assert_true(st_slice_is(back.worker, "w1"));
    assert_true(st_slice_is(back.message, "boom"));
    assert_null(back.log.p);
    assert_non_null(back.log_tail.p);
    assert_false(st_redis_run_next(&rest, &back));
    for (size_t n = 0; n < b.len; n++) {
        rest = ST_SLICE(b.p, n);
        assert_false(st_redis_run_next(&rest, &back));
    }
    st_buf_clear(&b);
    st_buf_clear(&part);
}

/* ---- asynq's moves, made by us ------------------------------------------------------------------------------------------------ */

static void an_enqueue_writes_what_asynqs_does(void **state)
{
    struct st_new_job j = job_of("second");

    add(*state, T0, job_of(ID));
    add(*state, T0, j);
    IS(Q, "SMEMBERS", "asynq:queues");
    assert_string_equal(hex_of(K("t:" ID), "msg"), golden);
    IS("pending", "HGET", K("t:" ID), "state");
    IS("1700000000000000000", "HGET", K("t:" ID), "pending_since");
    IS("second " ID, "LRANGE", K("pending"), "0", "-1");
    IS("-1", "TTL", K("t:" ID));
    IS("(nil)", "HGET", K("t:" ID), "unique_key");
}

static void a_later_job_is_scheduled(void **state)
{
    struct st_new_job j = job_of(ID);

    j.due_us = T0 + 90 * SEC + 250000;
    add(*state, T0, j);
    IS("scheduled", "HGET", K("t:" ID), "state");
    IS("1700000090.25", "ZSCORE", K("scheduled"), ID);
    IS("(nil)", "HGET", K("t:" ID), "pending_since");
    IS("0", "LLEN", K("pending"));
}

static void a_claim_moves_as_asynqs_dequeue(void **state)
{
    struct st_job *job;

    add(*state, T0, job_of(ID));
    job = claim(*state, T0 + SEC);
    assert_non_null(job);
    IS("active", "HGET", K("t:" ID), "state");
    IS("(nil)", "HGET", K("t:" ID), "pending_since");
    IS(ID, "LRANGE", K("active"), "0", "-1");
    IS("0", "LLEN", K("pending"));
    IS("1700000011", "ZSCORE", K("lease"), ID);
    assert_string_equal(hex_of(K("t:" ID), "msg"), golden);
    assert_int_equal(job->policy.max_attempts, 4);
    assert_int_equal(job->policy.timeout_us, 300 * SEC);
    st_job_free(job);
}

static void a_success_moves_as_asynqs_complete(void **state)
{
    struct st_finish f;
    struct st_job *job;
    char want[400];

    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    f = fin(job, ST_OUT_SUCCEEDED);
    f.result = S("[1]");
    OK(st_store_finish(*state, T0 + 2 * SEC, &f, 1, NULL));
    OK(f.verdict);
    IS("completed", "HGET", K("t:" ID), "state");
    IS("[1]", "HGET", K("t:" ID), "result");
    IS("1700086402", "ZSCORE", K("completed"), ID);
    IS("0", "LLEN", K("active"));
    IS("0", "ZCARD", K("lease"));
    IS("1", "GET", K("processed"));
    IS("(nil)", "GET", K("failed"));
    snprintf(want, sizeof(want), "%s6882e2cfaa06", golden); /* completed_at 1700000002, field 13 */
    assert_string_equal(hex_of(K("t:" ID), "msg"), want);
    st_job_free(job);
}

static void a_failed_attempt_moves_as_asynqs_retry(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_finish f;
    struct st_job *job;

    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    f = fin(job, ST_OUT_RETRY);
    f.delay_us = 20 * SEC;
    f.message = S("boom");
    OK(st_store_finish(*state, T0 + 2 * SEC, &f, 1, NULL));
    m.retried = 1;
    m.error_msg = S("boom");
    m.last_failed_s = T0 / SEC + 2;
    assert_string_equal(hex_of(K("t:" ID), "msg"), msg_hex(&m)); /* to the byte, in asynq's order */
    IS("retry", "HGET", K("t:" ID), "state");
    IS("1700000022", "ZSCORE", K("retry"), ID);
    IS("0", "ZCARD", K("lease"));
    IS("1", "GET", K("processed"));
    IS("1", "GET", K("failed"));
    st_job_free(job);
}

static void a_dead_job_moves_as_asynqs_archive_and_back_by_its_run(void **state)
{
    const struct st_slice ids[1] = {S(ID)};
    struct st_redis_msg m = first_msg();
    stint_code verdict;
    struct st_finish f;
    struct st_job *job;

    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    f = fin(job, ST_OUT_FAILED);
    f.message = S("no \xff way");
    OK(st_store_finish(*state, T0, &f, 1, NULL));
    m.error_msg = S("no ? way"); /* a protobuf string is UTF-8 */
    m.last_failed_s = T0 / SEC;
    assert_string_equal(hex_of(K("t:" ID), "msg"), msg_hex(&m));
    IS("archived", "HGET", K("t:" ID), "state");
    IS("1700000000", "ZSCORE", K("archived"), ID);
    IS("1", "GET", K("failed"));
    OK(st_store_retry(*state, T0 + SEC, ids, 1, &verdict, NULL));
    OK(verdict);
    IS("pending", "HGET", K("t:" ID), "state");
    IS(ID, "LRANGE", K("pending"), "0", "-1");
    IS("0", "ZCARD", K("archived"));
    st_job_free(job);
}

static void a_release_moves_as_asynqs_requeue(void **state)
{
    struct st_job *job;

    add(*state, T0, job_of(ID));
    add(*state, T0, job_of("second"));
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_RELEASED));
    IS("pending", "HGET", K("t:" ID), "state");
    IS("second " ID, "LRANGE", K("pending"), "0", "-1"); /* next out */
    IS("(nil)", "GET", K("processed"));
    assert_string_equal(hex_of(K("t:" ID), "msg"), golden);
    st_job_free(job);
}

static void counters_of_the_day_last_90_days(void **state)
{
    char key[80], day[ST_TIME_TEXT];
    struct st_job *job;
    long long ttl;

    add(*state, 0, job_of(ID));
    job = claim(*state, 0); /* by the server's clock: a TTL is real */
    assert_true(job->fence > T0);
    assert_int_equal(finish(*state, 0, job, ST_OUT_FAILED), STINT_OK);
    st_time_format(st_clock_real_us(), day);
    snprintf(key, sizeof(key), K("processed:%.10s"), day);
    IS("1", "GET", key);
    ttl = atoll(ASK("TTL", key));
    assert_true(ttl > 90 * 86400 - 60 && ttl <= 90 * 86400);
    snprintf(key, sizeof(key), K("failed:%.10s"), day);
    IS("1", "GET", key);
    st_job_free(job);
}

static void a_total_at_its_end_begins_anew(void **state)
{
    struct st_job *job;

    ASK("SET", K("processed"), "9223372036854775807");
    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    IS("1", "GET", K("processed"));
    st_job_free(job);
}

static void the_archive_is_trimmed_by_age_and_size(void **state)
{
    struct st_job *job;
    char n[16];

    ASK("ZADD", K("archived"), "1692000000", "ancient"); /* 92 days */
    ASK("HSET", K("t:ancient"), "state", "archived", "msg", "x");
    for (int i = 0; i < 9999; i++) {
        snprintf(n, sizeof(n), "d%05d", i);
        ASK("ZADD", K("archived"), "1699999999", n);
    }
    ASK("HSET", K("t:d00000"), "state", "archived", "msg", "x");
    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_FAILED));
    IS("9999", "ZCARD", K("archived"));
    IS("0", "EXISTS", K("t:ancient"), K("t:d00000"));
    IS("1", "EXISTS", K("t:" ID));
    st_job_free(job);
}

static void pause_is_asynqs(void **state)
{
    OK(st_store_pause(*state, T0, S(Q), true, NULL));
    IS("1700000000", "GET", K("paused"));
    OK(st_store_pause(*state, T0 + SEC, S(Q), true, NULL));
    IS("1700000000", "GET", K("paused"));
    OK(st_store_pause(*state, T0, S(Q), false, NULL));
    add(*state, T0, job_of(ID));
    ASK("SET", K("paused"), "1"); /* a stock inspector's */
    assert_null(claim(*state, T0));
    ASK("DEL", K("paused"));
    st_job_free(claim(*state, T0));
}

/* ---- unique ----------------------------------------------------------------------------------------------------------------------- */

#define LOCK K("unique:" Q ":bb6cb5c68df4652941caf652a366f2d8")

static struct st_new_job unique_job(const char *id, char hash[ST_HASH_LEN + 1])
{
    struct st_new_job j = job_of(id);

    OK(st_spec_hash(j.type, j.queue, j.payload, hash, NULL));
    j.unique = ST_UNIQUE_ACTIVE;
    j.key = S(hash);
    return j;
}

static void a_job_unique_by_its_content_takes_asynqs_lock(void **state)
{
    char hash[ST_HASH_LEN + 1];
    struct st_job *job;

    add(*state, T0, unique_job(ID, hash));
    IS(ID, "GET", LOCK);
    assert_true(atoll(ASK("TTL", LOCK)) > 86400);
    IS(LOCK, "HGET", K("t:" ID), "unique_key");
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    IS("0", "EXISTS", LOCK);
    st_job_free(job);
}

static void a_stock_producers_lock_makes_a_duplicate(void **state)
{
    char hash[ST_HASH_LEN + 1];
    struct st_new_job j = unique_job("mine", hash);
    struct st_redis_msg m = first_msg();
    struct st_enqueued out;
    struct st_job *job;

    m.unique_key = S(LOCK);
    m.retention_s = 0;
    ASK("SET", LOCK, ID, "NX", "EX", "100");
    stock_enqueue(&m, ST_NONE);
    ASK("HSET", K("t:" ID), "unique_key", LOCK);
    OK(st_store_enqueue(*state, T0, &j, 1, &out, NULL));
    assert_true(out.duplicate);
    assert_string_equal(out.id, ID);
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    IS("0", "EXISTS", LOCK); /* as asynq does: on success */
    st_job_free(job);
}

static void a_stock_lock_stays_when_its_job_dies(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_job *job;

    m.unique_key = S(LOCK);
    ASK("SET", LOCK, ID, "NX", "EX", "100");
    stock_enqueue(&m, ST_NONE);
    ASK("HSET", K("t:" ID), "unique_key", LOCK);
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_FAILED));
    IS(ID, "GET", LOCK);
    st_job_free(job);
}

static void a_window_is_nothing_a_stock_server_would_free(void **state)
{
    struct st_new_job j = job_of(ID);

    j.unique = ST_UNIQUE_WINDOW;
    j.window_us = 90 * SEC;
    j.key = S("k1");
    add(*state, T0, j);
    IS(ID, "GET", K("unique:" Q ":k1"));
    assert_true(atoll(ASK("TTL", K("unique:" Q ":k1"))) <= 90);
    IS("(nil)", "HGET", K("t:" ID), "unique_key");
    assert_string_equal(hex_of(K("t:" ID), "msg"), golden);
}

enum { PRODUCERS = 100 };
struct producer {
    pthread_t thread;
    struct st_enqueued out;
    stint_code code;
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    struct st_store *s = open_store();
    struct st_new_job j = job_of(ID);
    char id[ST_UUID_LEN + 1];

    st_id_new(id);
    j.id = S(id);
    j.unique = ST_UNIQUE_ACTIVE;
    j.key = S("one");
    p->code = st_store_enqueue(s, 0, &j, 1, &p->out, NULL);
    st_store_close(s);
    return NULL;
}

static void of_100_producers_at_once_one_wins(void **state)
{
    struct producer *p = calloc(PRODUCERS, sizeof(*p));
    int news = 0;

    (void)state;
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(pthread_create(&p[i].thread, NULL, produce, &p[i]), 0);
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(p[i].thread, NULL);
    for (int i = 0; i < PRODUCERS; i++) {
        OK(p[i].code);
        news += !p[i].out.duplicate;
        assert_string_equal(p[i].out.id, p[0].out.id);
    }
    assert_int_equal(news, 1);
    IS("1", "LLEN", K("pending"));
    free(p);
}

/* ---- stock tasks --------------------------------------------------------------------------------------------------------------------- */

static void a_stock_task_is_run_by_its_own_values(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_job *job;

    m.retried = 2;
    m.retry = 25;
    m.timeout_s = 0;
    stock_enqueue(&m, ST_NONE);
    job = claim(*state, T0);
    assert_non_null(job);
    assert_int_equal(job->attempt, 3);
    assert_int_equal(job->policy.max_attempts, 26);
    assert_int_equal(job->policy.timeout_us, 1800 * SEC); /* asynq's, where there is none */
    assert_int_equal(job->created_us, T0 - 10 * SEC);
    assert_true(st_slice_is(job->payload, "{\"a\":1}"));
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
}

static void a_stock_deadline_is_kept(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_job *job;

    m.deadline_s = T0 / SEC + 7;
    stock_enqueue(&m, ST_NONE);
    job = claim(*state, T0);
    assert_int_equal(job->policy.timeout_us, 7 * SEC);
    st_job_free(job);
}

static void a_task_that_nobody_keeps_is_gone_and_its_finish_can_be_repeated(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_job *job;

    m.retention_s = 0;
    stock_enqueue(&m, ST_NONE);
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    IS("0", "EXISTS", K("t:" ID));
    IS("0", "ZCARD", K("completed"));
    IS("1", "GET", K("processed"));
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    assert_int_equal(finish(*state, T0, job, ST_OUT_FAILED), STINT_ELOST);
    IS("1", "GET", K("processed"));
    st_job_free(job);
}

/* Headers (15) and a field nobody has heard of, in the middle of a life. */
static void unknown_fields_stay_through_a_retry(void **state)
{
    static const char more[] = "\x7a\x06\x0a\x01k\x12\x01v\xfa\x06\x03xyz\x80\x07\x96\x01";
    struct st_redis_msg m = first_msg();
    struct st_job *job;
    char want[1000];

    stock_enqueue(&m, ST_SLICE(more, sizeof(more) - 1));
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_RETRY));
    m.retried = 1;
    m.last_failed_s = T0 / SEC;
    snprintf(want, sizeof(want), "%s7a060a016b120176fa060378797a80079601", msg_hex(&m));
    assert_string_equal(hex_of(K("t:" ID), "msg"), want);
    st_job_free(job);
    job = claim(*state, T0);
    assert_int_equal(job->attempt, 2);
    st_job_free(job);
}

static void a_message_that_cannot_be_read_ends_in_the_archive(void **state)
{
    ASK("SADD", "asynq:queues", Q);
    ASK("HSET", K("t:" ID), "msg", "\xff\xff\xff nonsense", "state", "pending");
    ASK("LPUSH", K("pending"), ID);
    add(*state, T0, job_of("good"));
    st_job_free(claim(*state, T0)); /* the good one */
    IS("archived", "HGET", K("t:" ID), "state");
    IS("good", "LRANGE", K("active"), "0", "-1");
}

static void an_id_without_a_task_is_dropped(void **state)
{
    struct st_claim_req req = req_of(T0, 5);
    struct st_job *jobs[5];
    size_t n;

    ASK("LPUSH", K("pending"), "ghost");
    ASK("ZADD", K("scheduled"), "1", "shade");
    add(*state, T0, job_of(ID));
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_int_equal(n, 1);
    assert_string_equal(jobs[0]->id, ID);
    IS(ID, "LRANGE", K("active"), "0", "-1");
    IS("0", "EXISTS", K("pending"), K("scheduled"), K("t:ghost"), K("t:shade"));
    st_job_free(jobs[0]);
}

/* Claims up to 5 and lets them go; how many, or -1 for an error. */
static int claim_all(struct st_store *s, int64_t now)
{
    struct st_claim_req req = req_of(now, 5);
    struct st_job *jobs[5];
    size_t n;

    if (st_store_claim(s, &req, jobs, &n, NULL))
        return -1;
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
    return (int)n;
}

/* A task's key or field of the wrong kind costs that task, none of those beside it. */
static void what_is_no_task_costs_no_other_job(void **state)
{
    static const char *const fields[][2] = {
        {"pending_since", "abc"},
        {"pending_since", "-1e300"},
        {"stint", "shorter"},
        {"stint", "something of another program, and longer than a field of ours is without a holder of the job"},
    };
    char lock[] = K("unique:x");

    ASK("SET", K("t:bad"), "x");
    ASK("LPUSH", K("pending"), "bad");
    ASK("ZADD", K("scheduled"), "1", "bad");
    add(*state, T0, job_of(ID));
    assert_int_equal(claim_all(*state, T0), 1);
    IS(ID, "LRANGE", K("active"), "0", "-1");
    IS("0", "EXISTS", K("pending"), K("scheduled"));
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        redis_empty(url);
        add(*state, T0, job_of("one"));
        add(*state, T0, job_of(ID));
        ASK("HSET", K("t:one"), fields[i][0], fields[i][1]);
        if (!strcmp(fields[i][0], "pending_since"))
            ASK("HDEL", K("t:one"), "stint");
        ASK("RPUSH", lock, "x");
        ASK("HSET", K("t:" ID), "unique_key", lock);
        assert_int_equal(claim_all(*state, T0), 2);
    }
}

/* Nor does it keep the others from being seen and steered. */
static void what_is_no_task_is_no_job(void **state)
{
    const struct st_slice ids[] = {S("bad"), S(ID)};
    const struct st_list_req req = {.limit = 10};
    struct st_job_info *list = NULL, info = {0};
    stint_code verdicts[2];
    bool asked[2];
    size_t n = 0;
    uint64_t next;

    add(*state, T0, job_of(ID));
    ASK("SET", K("t:bad"), "x");
    ASK("LPUSH", K("pending"), "bad");
    OK(st_store_list(*state, &req, &list, &n, &next, NULL));
    assert_int_equal(n, 1);
    st_job_info_list_free(list, n);
    assert_int_equal(st_store_get(*state, T0, ids[0], &info, NULL), STINT_ENOTFOUND);
    OK(st_store_cancel(*state, T0, ids, 2, verdicts, asked, NULL));
    assert_int_equal(verdicts[0], STINT_ENOTFOUND);
    OK(verdicts[1]);
}

/* Where a list or set that a claim, an enqueue or an outcome writes to is of another kind, nothing is taken out of the others. */
static void a_key_of_another_kind_loses_no_job(void **state)
{
    static const char *const keys[] = {K("active"), K("lease"), K("scheduled"), "stint:{" Q "}:fence"};
    struct st_new_job j = job_of("two");
    struct st_enqueued e;
    struct st_finish f;
    struct st_job *job;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        redis_empty(url);
        add(*state, T0, job_of(ID));
        ASK("HSET", keys[i], "a", "b");
        assert_int_equal(claim_all(*state, T0), -1);
        IS(ID, "LRANGE", K("pending"), "0", "-1");
        ASK("DEL", keys[i]);
        assert_int_equal(claim_all(*state, T0), 1);
    }
    ASK("SET", K("pending"), "x");
    assert_int_not_equal(st_store_enqueue(*state, T0, &j, 1, &e, NULL), STINT_OK);
    IS("0", "EXISTS", K("t:two"));
    redis_empty(url);
    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    ASK("SET", K("completed"), "x");
    f = fin(job, ST_OUT_SUCCEEDED);
    OK(st_store_finish(*state, T0, &f, 1, NULL));
    assert_int_equal(f.verdict, STINT_EAGAIN);
    IS("active", "HGET", K("t:" ID), "state");
    ASK("DEL", K("completed"));
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    IS(ID, "ZRANGE", K("completed"), "0", "-1");
    st_job_free(job);
}

/* The same of what is written when a job goes elsewhere than to the succeeded ones. */
static void a_key_of_another_kind_loses_no_job_that_moves(void **state)
{
    static const char *const keys[] = {K("retry"), K("archived"), K("pending"), "stint:{" Q "}:cancelled"};
    static const enum st_outcome outcomes[] = {ST_OUT_RETRY, ST_OUT_FAILED, ST_OUT_RELEASED, ST_OUT_CANCELLED};
    const struct st_slice id = S(ID);
    stint_code verdict;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct st_reaped reaped;
        struct st_job *job;
        size_t n;

        redis_empty(url);
        add(*state, T0, job_of(ID));
        job = claim(*state, T0);
        ASK("SET", keys[i], "x");
        assert_int_equal(finish(*state, T0, job, outcomes[i]), STINT_EAGAIN);
        OK(st_store_reap(*state, T0 + 60 * SEC, S("w2"), &reaped, 1, &n, NULL));
        assert_int_equal(n, 0);
        IS(ID, "LRANGE", K("active"), "0", "-1");
        IS(ID, "ZRANGE", K("lease"), "0", "-1");
        ASK("DEL", keys[i]);
        OK(finish(*state, T0, job, outcomes[i]));
        IS("0", "EXISTS", K("active"), K("lease"));
        st_job_free(job);
    }
    redis_empty(url);
    add(*state, T0, job_of(ID));
    ASK("SET", K("archived"), "x");
    assert_int_not_equal(st_store_cancel(*state, T0, &id, 1, &verdict, NULL, NULL), STINT_OK);
    IS(ID, "LRANGE", K("pending"), "0", "-1");
    ASK("DEL", K("archived"));
    OK(st_store_cancel(*state, T0, &id, 1, &verdict, NULL, NULL));
    ASK("SET", K("pending"), "x");
    assert_int_not_equal(st_store_retry(*state, T0, &id, 1, &verdict, NULL), STINT_OK);
    IS(ID, "ZRANGE", K("archived"), "0", "-1");
}

/* Leases and outcomes of the others go on, and what a dead worker held of them is taken up. */
static void a_broken_queue_costs_no_other_its_lease(void **state)
{
    struct st_new_job j = job_of("broken");
    struct st_job *jobs[3] = {0};
    struct st_claim_req req = req_of(T0, 3);
    struct st_renew r[3];
    struct st_finish f[3];
    struct st_reaped reaped[3];
    const struct st_prune_req prune = {.now_us = T0 + 3600 * SEC, .keep = {.succeeded_us = SEC}, .limit = 10};
    struct st_pruned pruned;
    size_t n, at = 0;

    j.queue = S("aaa");
    add(*state, T0, j);
    add(*state, T0, job_of("one"));
    add(*state, T0, job_of("two"));
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_int_equal(n, 3);
    ASK("DEL", "asynq:{aaa}:lease");
    ASK("SET", "asynq:{aaa}:lease", "x");
    for (size_t i = 0; i < 3; i++) {
        r[i] = (struct st_renew){.id = S(jobs[i]->id),
                                 .fence = jobs[i]->fence,
                                 .ref = jobs[i]->ref,
                                 .lease_us = 20 * SEC,
                                 .started_ago_us = -1};
        if (strcmp(jobs[i]->id, "two"))
            f[at++] = fin(jobs[i], ST_OUT_SUCCEEDED);
    }
    OK(st_store_renew(*state, T0, r, 3, NULL));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(r[i].verdict, strcmp(jobs[i]->id, "broken") ? STINT_OK : STINT_EAGAIN);
    OK(st_store_finish(*state, T0, f, 2, NULL));
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(f[i].verdict, st_slice_is(f[i].id, "broken") ? STINT_EAGAIN : STINT_OK);
    ASK("SET", "asynq:{aaa}:completed", "x");
    OK(st_store_prune(*state, &prune, &pruned, NULL));
    assert_int_equal(pruned.n, 1);
    st_pruned_clear(&pruned);
    OK(st_store_disown(*state, T0, S("w3"), NULL, 0, &n, NULL));
    OK(st_store_reap(*state, T0 + 60 * SEC, S("w2"), reaped, 3, &n, NULL));
    assert_int_equal(n, 1);
    assert_string_equal(reaped[0].id, "two");
    for (size_t i = 0; i < 3; i++)
        st_job_free(jobs[i]);
}

/* What was taken from one queue before the script met another's is not forgotten, and is taken again and again. */
static void a_broken_queue_keeps_no_other_from_being_served(void **state)
{
    static const char *const names[] = {"aaa", "zzz", "mmm"};
    char key[64];

    for (size_t i = 0; i < 3; i++) {
        snprintf(key, sizeof(key), "asynq:{%s}:pending", names[i]);
        ASK("SADD", "asynq:queues", names[i]);
        ASK("SET", key, "x");
    }
    add(*state, T0, job_of(ID));
    assert_int_equal(claim_all(*state, T0), 1);
    assert_int_equal(claim_all(*state, T0), 0);
}

/* More jobs than one call takes: an id of the last call that is another job's is noticed before the first one writes. */
static void an_id_that_is_taken_keeps_all_of_a_large_batch_out(void **state)
{
    static struct st_new_job jobs[1100];
    static struct st_enqueued out[1100];
    static char ids[1100][16];
    struct st_new_job other = job_of("id-1099");

    for (size_t i = 0; i < 1100; i++) {
        snprintf(ids[i], sizeof(ids[i]), "id-%zu", i);
        jobs[i] = job_of(ids[i]);
    }
    other.payload = S("{}");
    add(*state, T0, other);
    assert_int_equal(st_store_enqueue(*state, T0, jobs, 1100, out, NULL), STINT_EEXISTS);
    IS("1", "LLEN", K("pending"));
    OK(st_store_enqueue(*state, T0, jobs, 1099, out, NULL));
    OK(st_store_enqueue(*state, T0, jobs, 1099, out, NULL)); /* the same jobs are no hindrance */
    IS("1100", "LLEN", K("pending"));
}

static int64_t sent_by_the_server(void)
{
    const char *at = strstr(ASK("INFO", "stats"), "total_net_output_bytes:");

    assert_non_null(at);
    return strtoll(strchr(at, ':') + 1, NULL, 10);
}

/* A dead worker may have held hundreds of large ones: an answer with all their payloads would be too large to be read. */
static void reaping_reads_no_payloads(void **state)
{
    const size_t len = (size_t)4 << 20;
    char *payload = malloc(len);
    struct st_new_job j = job_of(ID);
    struct st_reaped r[1];
    struct st_job *job;
    int64_t before;
    size_t n;

    memset(payload, 'x', len);
    j.payload = ST_SLICE(payload, len);
    add(*state, T0, j);
    st_job_free(claim(*state, T0));
    before = sent_by_the_server();
    OK(st_store_reap(*state, T0 + 60 * SEC, S("w2"), r, 1, &n, NULL));
    assert_int_equal(n, 1);
    assert_in_range(sent_by_the_server() - before, 1, 1 << 20);
    job = claim(*state, T0 + 3600 * SEC);
    assert_int_equal(job->attempt, 2);
    assert_int_equal(job->payload.len, len);
    st_job_free(job);
    free(payload);
}

/* "Nothing was changed" would be wrong; repeating it with the same ids is right. */
static void a_batch_that_is_refused_in_the_middle_is_unknown(void **state)
{
    struct st_new_job jobs[] = {job_of("one"), job_of("two")};
    struct st_enqueued out[2];
    stint_error err = {0};

    jobs[1].queue = S("aaa");
    ASK("SET", "asynq:{aaa}:pending", "x");
    assert_int_equal(st_store_enqueue(*state, T0, jobs + 1, 1, out, NULL), STINT_ESTORE);
    assert_int_equal(st_store_enqueue(*state, T0, jobs, 2, out, &err), STINT_EUNKNOWN);
    assert_non_null(strstr(err.message, "some of the jobs were added"));
    assert_non_null(strstr(err.message, "WRONGTYPE"));
    ASK("DEL", "asynq:{aaa}:pending");
    OK(st_store_enqueue(*state, T0, jobs, 2, out, NULL));
    IS("1", "LLEN", K("pending"));
    IS("1", "LLEN", "asynq:{aaa}:pending");
}

/* Who looks sees the others, and what of it can be read. */
static void a_broken_queue_hides_no_other(void **state)
{
    static const char *const kinds[] = {"pending", "active", "lease", "scheduled", "retry", "archived", "completed"};
    const struct st_list_req req = {.now_us = T0, .limit = 10};
    struct st_new_job later = job_of("later");
    struct st_queue_info *q;
    struct st_job_info *list;
    int64_t due;
    uint64_t next;
    char key[64], ids[1][ST_ID_MAX + 1];
    size_t n;

    later.due_us = T0 + 60 * SEC;
    add(*state, T0, job_of(ID));
    add(*state, T0, later);
    ASK("SADD", "asynq:queues", "aaa", "zzz");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        snprintf(key, sizeof(key), "asynq:{%s}:%s", i % 2 ? "zzz" : "aaa", kinds[i]);
        ASK("SET", key, "x");
        OK(st_store_queues(*state, T0, &q, &n, NULL));
        assert_int_equal(n, 3);
        assert_int_equal(q[1].counts[ST_SHOW_PENDING], 1);
        free(q);
        OK(st_store_list(*state, &req, &list, &n, &next, NULL));
        assert_int_equal(n, 2);
        st_job_info_list_free(list, n);
        OK(st_store_next_due(*state, T0, &due, NULL));
        assert_int_equal(due, T0 + 60 * SEC);
        ASK("DEL", key);
    }
    ASK("SET", "stint:{aaa}:cancel", "x");
    OK(st_store_flagged(*state, S("w1"), ids, 1, &n, NULL));
}

/* What ails the server and not a queue is the claim's error, however many queues there are. */
static void a_claim_from_a_replica_says_so(void **state)
{
    struct st_claim_req req = req_of(T0, 1);
    struct st_job *job = NULL;
    stint_error err = {0};
    size_t n;

    add(*state, T0, job_of(ID));
    ASK("SADD", "asynq:queues", "aaa", "zzz");
    ASK("REPLICAOF", "127.0.0.1", "1");
    assert_int_not_equal(st_store_claim(*state, &req, &job, &n, &err), STINT_OK);
    ASK("REPLICAOF", "NO", "ONE");
    assert_non_null(strstr(err.message, ": READONLY"));
}

/* Where no memory is left nothing can be added; what is there is still done. */
static void a_full_server_lets_jobs_be_done(void **state)
{
    struct st_new_job j = job_of("two");
    struct st_enqueued e;
    struct st_renew r;
    struct st_job *job;

    add(*state, T0, job_of(ID));
    j.due_us = T0 + SEC;
    add(*state, T0, j);
    ASK("CONFIG", "SET", "maxmemory", "1");
    j.id = S("three");
    assert_int_not_equal(st_store_enqueue(*state, T0, &j, 1, &e, NULL), STINT_OK);
    job = claim(*state, T0);
    assert_non_null(job);
    r = (struct st_renew){
        .id = S(job->id), .fence = job->fence, .ref = job->ref, .lease_us = 20 * SEC, .started_ago_us = -1};
    OK(st_store_renew(*state, T0, &r, 1, NULL));
    OK(r.verdict);
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
    assert_int_equal(claim_all(*state, T0 + SEC), 1);
    ASK("CONFIG", "SET", "maxmemory", "0");
}

/* More outcomes at once than are looked for one by one. */
static void a_full_server_takes_many_outcomes_at_once(void **state)
{
    struct st_claim_req req = req_of(T0, 16);
    struct st_job *jobs[16];
    struct st_finish f[16];
    stint_error err = {0};
    char id[16];
    size_t n;

    for (int i = 0; i < 16; i++) {
        snprintf(id, sizeof(id), "job-%d", i);
        add(*state, T0, job_of(id));
    }
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_int_equal(n, 16);
    ASK("CONFIG", "SET", "maxmemory", "1");
    for (int i = 0; i < 16; i++)
        f[i] = fin(jobs[i], ST_OUT_SUCCEEDED);
    if (st_store_finish(*state, T0, f, 16, &err))
        fail_msg("finish: %s", err.message);
    ASK("CONFIG", "SET", "maxmemory", "0");
    for (int i = 0; i < 16; i++) {
        OK(f[i].verdict);
        st_job_free(jobs[i]);
    }
}

/* Whoever would make room, by running jobs or by removing old ones, must be let in: with rules that nobody had before. */
static void a_worker_begins_on_a_full_server(void **state)
{
    const struct st_type_rule rules[] = {{.pattern = S("*"), .policy = st_policy_default}};
    const struct st_worker_info w = {.id = "w1", .host = "here", .pid = 7, .slots = 1, .queues = "[]", .types = "[]"};
    const struct st_lead_req lead = {.worker = S("w1"), .term_us = 10 * SEC};
    struct st_claim_req req = req_of(T0, 1);
    struct st_job *job = NULL;
    struct st_lead led;
    stint_code verdict;
    bool asked;
    size_t n;

    add(*state, T0, job_of(ID));
    req.types = rules;
    req.n_types = 1;
    ASK("CONFIG", "SET", "maxmemory", "1");
    OK(st_store_worker_beat(*state, 0, &w, NULL));
    OK(st_store_lead(*state, &lead, &led, NULL));
    assert_true(led.leader);
    OK(st_store_claim(*state, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    OK(st_store_cancel(*state, T0, (const struct st_slice[]){S(ID)}, 1, &verdict, &asked, NULL));
    OK(verdict);
    OK(st_store_worker_remove(*state, T0, S("w1"), true, 0, 0, NULL));
    ASK("CONFIG", "SET", "maxmemory", "0");
    st_job_free(job);
}

static void a_queue_is_resumed_on_a_full_server(void **state)
{
    OK(st_store_pause(*state, T0, S(Q), true, NULL));
    ASK("CONFIG", "SET", "maxmemory", "1");
    OK(st_store_pause(*state, T0, S(Q), false, NULL));
    ASK("CONFIG", "SET", "maxmemory", "0");
    IS("0", "EXISTS", K("paused"));
}

/* A key is held while its job lives, however far ahead that is due. */
static void a_key_outlives_the_wait_of_a_job_that_is_due_late(void **state)
{
    const int64_t day = 86400;
    struct st_new_job j = job_of(ID);
    char *end;

    j.unique = ST_UNIQUE_ACTIVE;
    j.key = S("k");
    j.due_us = T0 + 90 * day * SEC;
    add(*state, T0, j);
    assert_true(strtol(ASK("TTL", K("unique:" Q ":k")), &end, 10) > 100 * day);
    assert_string_equal(end, "");
}

/* More queues than anybody thought of: each is served. */
static void the_last_of_many_queues_is_served(void **state)
{
    struct st_new_job j = job_of(ID);
    char name[16];

    for (int i = 0; i < 4200; i++) {
        snprintf(name, sizeof(name), "q%04d", i);
        ASK("SADD", "asynq:queues", name);
    }
    j.queue = S(name);
    add(*state, T0, j);
    assert_int_equal(claim_all(*state, T0), 1);
}

/* Anybody may add names; no queue can have these. */
static void names_that_are_none_are_not_kept(void **state)
{
    struct st_redis_store *s = st_redis_of(*state);
    struct st_redis *r = redis_kit_client(url);
    struct st_slice argv[3] = {S("SADD"), S("asynq:queues"), ST_SLICE("q\0x", 3)};
    struct st_redis_batch b;

    st_redis_batch_init(&b);
    st_redis_add(&b, ST_REDIS_WRITE, argv[1], argv, 3);
    argv[2] = ST_SLICE("", 0);
    st_redis_add(&b, ST_REDIS_WRITE, argv[1], argv, 3);
    OK(st_redis_run(r, &b, NULL));
    st_redis_batch_clear(&b);
    st_redis_close(r);
    add(*state, T0, job_of(ID));
    assert_int_equal(claim_all(*state, T0), 1);
    assert_int_equal(claim_all(*state, T0), 0);
    assert_int_equal(s->queues.n, 1);
    assert_string_equal(s->queues.p[0], Q);
}

/* Each once, whichever way they came to be known, and in order. */
static void queues_are_known_once(void **state)
{
    static const char *const names[] = {"b", "a", "ab", "aa", "b", "abc", "a"};
    static const char *const sorted[] = {"a", "aa", "ab", "abc", "b", "c", Q};
    struct st_redis_store *s = st_redis_of(*state);

    add(*state, T0, job_of(ID));
    ASK("SADD", "asynq:queues", "ab", "c", "a", "b");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        st_redis_queues_add(s, S(names[i]));
    assert_int_equal(claim_all(*state, T0), 1);
    assert_int_equal(s->queues.n, sizeof(sorted) / sizeof(sorted[0]));
    for (size_t i = 0; i < s->queues.n; i++)
        assert_string_equal(s->queues.p[i], sorted[i]);
}

/* Its id was pushed by hand, before and after its claim. */
static void a_job_that_is_in_the_list_twice_is_taken_once(void **state)
{
    add(*state, T0, job_of(ID));
    ASK("LPUSH", K("pending"), ID);
    assert_int_equal(claim_all(*state, T0), 1);
    ASK("LPUSH", K("pending"), ID);
    assert_int_equal(claim_all(*state, T0), 0);
    IS(ID, "LRANGE", K("active"), "0", "-1");
    IS("1", "ZCARD", K("lease"));
}

/* asynq allows any id: one that is too long for us is left to stock servers, and holds nobody up. */
static void a_task_with_a_very_long_id_is_put_off(void **state)
{
    char id[201] = "", key[300];

    memset(id, 'x', 200);
    snprintf(key, sizeof(key), "%s%s", K("t:"), id);
    add(*state, T0, job_of(ID));
    ASK("HSET", key, "msg", "\x0a\x01t", "state", "pending");
    ASK("LPUSH", K("pending"), id);
    assert_int_equal(claim_all(*state, T0), 1);
    IS("retry", "HGET", key, "state");
    IS("1700000030", "ZSCORE", K("retry"), id);
    IS(ID, "LRANGE", K("active"), "0", "-1");
}

/* It must not run as the type that the bytes before the zero name. */
/* Somebody pushed it by hand; no producer can. */
static void a_task_without_an_id_is_put_off(void **state)
{
    struct st_redis_msg m = first_msg();

    m.id = ST_NONE;
    stock_enqueue(&m, ST_NONE);
    assert_int_equal(claim_all(*state, T0), 0);
    IS("1", "ZCARD", K("retry"));
    IS("0", "EXISTS", K("active"), K("lease"));
}

static void a_type_with_a_zero_byte_is_archived(void **state)
{
    struct st_redis_msg m = first_msg();

    m.type = ST_SLICE(Q "\0x", sizeof(Q) + 1);
    stock_enqueue(&m, ST_NONE);
    assert_int_equal(claim_all(*state, T0), 0);
    IS("archived", "HGET", K("t:" ID), "state");
}

static void a_scheduled_task_of_a_group_goes_to_its_group(void **state)
{
    struct st_redis_msg m = first_msg();

    m.group_key = S("g1");
    stock_enqueue(&m, ST_NONE);
    ASK("DEL", K("pending"));
    ASK("HSET", K("t:" ID), "state", "scheduled", "group", "g1");
    ASK("ZADD", K("scheduled"), "1699999999", ID);
    assert_null(claim(*state, T0));
    IS("aggregating", "HGET", K("t:" ID), "state");
    IS("1700000000", "ZSCORE", K("g:g1"), ID);
    IS("0", "EXISTS", K("scheduled"), K("pending"));
}

/* It would be in no set any more, and nobody would ever see it again. */
static void a_task_whose_group_is_broken_stays_scheduled(void **state)
{
    struct st_redis_msg m = first_msg();

    m.group_key = S("g1");
    stock_enqueue(&m, ST_NONE);
    ASK("DEL", K("pending"));
    ASK("HSET", K("t:" ID), "state", "scheduled", "group", "g1");
    ASK("ZADD", K("scheduled"), "1699999999", ID);
    ASK("SET", K("g:g1"), "x");
    add(*state, T0, job_of("other"));
    assert_int_equal(claim_all(*state, T0), 1); /* and is in nobody's way */
    IS("scheduled", "HGET", K("t:" ID), "state");
    IS(ID, "ZRANGE", K("scheduled"), "0", "-1");
}

static void an_acquire_that_finds_a_broken_fence_takes_nothing(void **state)
{
    struct st_claim_req req = req_of(T0, 1);
    enum st_refusal why;
    struct st_job *job;

    add(*state, T0, job_of(ID));
    ASK("LPUSH", "stint:{" Q "}:fence", "x");
    assert_int_equal(st_store_acquire(*state, S(ID), &req, &job, &why, NULL), STINT_ESTORE);
    IS(ID, "LRANGE", K("pending"), "0", "-1");
}

/* It would be out of the active ones, and nobody would reap it. */
static void a_success_that_meets_a_broken_key_waits(void **state)
{
    const struct st_slice id = S(ID);
    struct st_job *job;
    struct st_finish f;
    stint_code verdict;

    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    OK(st_store_cancel(*state, T0, &id, 1, &verdict, NULL, NULL));
    ASK("DEL", "stint:{" Q "}:cancel");
    ASK("SET", "stint:{" Q "}:cancel", "x");
    f = fin(job, ST_OUT_SUCCEEDED);
    OK(st_store_finish(*state, T0, &f, 1, NULL));
    assert_int_equal(f.verdict, STINT_EAGAIN);
    IS(ID, "LRANGE", K("active"), "0", "-1");
    ASK("DEL", "stint:{" Q "}:cancel");
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    IS("completed", "HGET", K("t:" ID), "state");
    st_job_free(job);
}

/* As a stock server, which keeps for more than nothing only. */
static void a_negative_retention_keeps_nothing(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_job *job;

    m.retention_s = -5;
    stock_enqueue(&m, ST_NONE);
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_SUCCEEDED));
    IS("0", "EXISTS", K("t:" ID), K("completed"));
    st_job_free(job);
}

/* Of 40 jobs of 1 MiB one claim gives what fits an answer; the others stay, in their order. */
static void a_claim_of_large_jobs_leaves_some_for_the_next(void **state)
{
    struct st_claim_req req = req_of(T0, 40);
    struct st_new_job j = job_of(ID);
    struct st_job *jobs[40];
    char *big = malloc(1 << 20), id[8], next[8];
    size_t n;

    memset(big, 'x', 1 << 20);
    j.payload = ST_SLICE(big, 1 << 20);
    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof(id), "%02d", i);
        j.id = S(id);
        add(*state, T0, j);
    }
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_true(n > 1 && n < 40);
    snprintf(id, sizeof(id), "%zu", 40 - n);
    snprintf(next, sizeof(next), "%02zu", n);
    IS(id, "LLEN", K("pending"));
    IS(next, "LINDEX", K("pending"), "-1");
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_string_equal(jobs[0]->id, next);
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
    IS("0", "LLEN", K("pending"));
    free(big);
}

/* ---- types nobody handles --------------------------------------------------------------------------------------------------------------- */

static void what_no_rule_covers_waits_in_retry_uncharged(void **state)
{
    const struct st_type_rule mail = {.pattern = S("mail"), .policy = st_policy_default},
                              all = {.pattern = S("*"), .policy = st_policy_default};
    struct st_claim_req req = req_of(T0, 5);
    struct st_job *jobs[5];
    struct st_job_info i;
    size_t n;

    add(*state, T0, job_of(ID));
    req.types = &mail;
    req.n_types = 1;
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_int_equal(n, 0);
    IS("retry", "HGET", K("t:" ID), "state");
    IS("1700000030", "ZSCORE", K("retry"), ID);
    IS("(nil)", "GET", K("processed"));
    OK(st_store_get(*state, T0, S(ID), &i, NULL));
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.error_kind, ST_KIND_NO_HANDLER);
    assert_non_null(strstr(i.error_message, "no handler"));
    assert_int_equal(i.n_attempts, 0);
    st_job_info_clear(&i);
    req.types = &all;
    req.now_us = T0 + 30 * SEC;
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(jobs[0]->attempt, 1);
    st_job_free(jobs[0]);
}

static void what_is_beyond_a_rules_limit_goes_back_to_the_head(void **state)
{
    const struct st_type_rule two = {.pattern = S("*"), .policy = st_policy_default, .max = 2};
    struct st_claim_req req = req_of(T0, 4);
    struct st_job *jobs[4];
    size_t n;

    for (int i = 0; i < 4; i++)
        add(*state, T0, job_of((const char *[]){"a", "b", "c", "d"}[i]));
    req.types = &two;
    req.n_types = 1;
    OK(st_store_claim(*state, &req, jobs, &n, NULL));
    assert_int_equal(n, 2);
    assert_string_equal(jobs[0]->id, "a");
    assert_string_equal(jobs[1]->id, "b");
    IS("d c", "LRANGE", K("pending"), "0", "-1");
    st_job_free(jobs[0]);
    st_job_free(jobs[1]);
}

/* ---- the fence -------------------------------------------------------------------------------------------------------------------------- */

static void all_refused(struct st_store *s, int64_t now, const struct st_job *job)
{
    struct st_renew r = {
        .id = S(job->id), .fence = job->fence, .ref = job->ref, .lease_us = 10 * SEC, .started_ago_us = -1};

    for (int o = ST_OUT_SUCCEEDED; o <= ST_OUT_RELEASED; o++)
        assert_int_equal(finish(s, now, job, (enum st_outcome)o), STINT_ELOST);
    OK(st_store_renew(s, now, &r, 1, NULL));
    assert_int_equal(r.verdict, STINT_ELOST);
}

static void a_stale_worker_of_ours_cannot_finish_after_a_stock_server_took_the_task(void **state)
{
    struct st_job *job;
    char before[4096];

    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    stock_recover(T0 / SEC + 40);
    all_refused(*state, T0 + 41 * SEC, job);
    stock_forward();
    all_refused(*state, T0 + 41 * SEC, job);
    stock_dequeue("1700000075");
    snprintf(before, sizeof(before), "%s", hex_of(K("t:" ID), "msg"));
    all_refused(*state, T0 + 45 * SEC, job);
    IS("active", "HGET", K("t:" ID), "state");
    IS("1700000075", "ZSCORE", K("lease"), ID);
    IS(ID, "LRANGE", K("active"), "0", "-1");
    assert_string_equal(hex_of(K("t:" ID), "msg"), before);
    stock_done();
    all_refused(*state, T0 + 45 * SEC, job);
    IS("0", "EXISTS", K("t:" ID), K("completed"), K("retry"), K("archived"));
    st_job_free(job);
}

/* The same message, and a lease that ends in the very second ours does: a stock one is never a fraction. */
static void nor_after_a_stock_server_gave_it_back_and_took_it_again(void **state)
{
    struct st_job *job;

    add(*state, T0, job_of(ID));
    job = claim(*state, T0 + 250000);
    stock_requeue();
    all_refused(*state, T0 + SEC, job);
    stock_dequeue("1700000010");
    all_refused(*state, T0 + SEC, job);
    st_job_free(job);
}

/* The same lease to the microsecond: the message tells. */
static void nor_with_the_same_lease_once_the_message_has_changed(void **state)
{
    struct st_job *job;

    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    stock_recover(T0 / SEC + 40);
    stock_forward();
    stock_dequeue("1700000010");
    all_refused(*state, T0 + 45 * SEC, job);
    IS("1700000010", "ZSCORE", K("lease"), ID);
    st_job_free(job);
}

/* By the server's own clock no lease of ours ends with a whole second, as every stock one does. */
static void a_lease_of_ours_is_never_a_stock_servers(void **state)
{
    struct st_claim_req req = req_of(0, 1);
    struct st_job *job;
    size_t n;

    for (int i = 0; i < 20; i++) {
        char id[16];

        snprintf(id, sizeof(id), "j%d", i);
        add(*state, 0, job_of(id));
        OK(st_store_claim(*state, &req, &job, &n, NULL));
        assert_int_equal(n, 1);
        assert_true(job->lease_until_us % SEC != 0);
        st_job_free(job);
    }
}

static void nor_after_its_id_was_deleted_and_given_to_a_new_job(void **state)
{
    struct st_store *s = *state;
    struct st_job *old, *next;

    add(s, 0, job_of(ID));
    old = claim(s, 0);
    redis_empty(url);
    add(s, 0, job_of(ID));
    next = claim(s, 0);
    assert_non_null(next);
    assert_true(next->fence > old->fence); /* though the counter was lost */
    assert_int_equal(finish(s, 0, old, ST_OUT_SUCCEEDED), STINT_ELOST);
    OK(finish(s, 0, next, ST_OUT_SUCCEEDED));
    st_job_free(old);
    st_job_free(next);
}

static void what_a_stock_server_left_behind_is_reaped_as_asynq_does(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_reaped r[2];
    size_t n;

    stock_enqueue(&m, ST_NONE);
    stock_dequeue("1700000030");
    OK(st_store_reap(*state, T0 + 59 * SEC, S("w1"), r, 2, &n, NULL));
    assert_int_equal(n, 0); /* asynq waits half a minute more */
    OK(st_store_reap(*state, T0 + 60 * SEC, S("w1"), r, 2, &n, NULL));
    assert_int_equal(n, 1);
    assert_string_equal(r[0].id, ID);
    assert_int_equal(r[0].to, ST_PENDING);
    m.retried = 1;
    m.error_msg = S("asynq: task lease expired");
    m.last_failed_s = T0 / SEC + 60;
    assert_string_equal(hex_of(K("t:" ID), "msg"), msg_hex(&m));
    IS("retry", "HGET", K("t:" ID), "state");
    IS("0", "EXISTS", K("active"), K("lease"));
}

static void archive_is_full(const char *at_s)
{
    ASK("EVAL", "for i = 1, 9999 do redis.call('ZADD', KEYS[1], ARGV[1], 'z' .. i) end", "1", K("archived"), at_s);
}

/* All were archived in the same second, and by their ids ours is the first to go. */
static void what_the_archive_has_no_room_for_leaves_nothing_behind(void **state)
{
    struct st_redis_msg m = first_msg();
    struct st_reaped r[1];
    struct st_job *job;
    size_t n;

    archive_is_full("1700000000");
    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_FAILED));
    IS("9999", "ZCARD", K("archived"));
    IS("0", "EXISTS", K("t:" ID));
    st_job_free(job);

    redis_empty(url);
    archive_is_full("1700000060");
    m.retry = 0;
    stock_enqueue(&m, ST_NONE);
    stock_dequeue("1700000030");
    OK(st_store_reap(*state, T0 + 60 * SEC, S("w1"), r, 1, &n, NULL));
    assert_int_equal(n, 1);
    IS("9999", "ZCARD", K("archived"));
    IS("0", "EXISTS", K("t:" ID));
}

static void what_stock_tools_removed_is_not_cancelled_for_ever(void **state)
{
    struct st_job *job;

    ASK("ZADD", "stint:{" Q "}:cancelled", "1600000000", "long-gone", "1700000000", "lately");
    add(*state, T0, job_of(ID));
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_FAILED));
    IS("1", "ZCARD", "stint:{" Q "}:cancelled");
    st_job_free(job);
}

static void a_cancel_is_told_to_stock_servers_too(void **state)
{
    const struct st_slice ids[1] = {S(ID)}, channel[1] = {S("asynq:cancel")};
    struct st_slice from, message;
    struct st_redis_msg m = first_msg();
    struct st_redis_ear *ear;
    stint_code verdict;
    bool asked;

    stock_enqueue(&m, ST_NONE);
    stock_dequeue("1700000030");
    OK(st_redis_ear_open(raw, ST_NONE, &ear, NULL));
    OK(st_redis_ear_subscribe(ear, channel, 1, NULL));
    OK(st_store_cancel(*state, T0, ids, 1, &verdict, &asked, NULL));
    OK(verdict);
    assert_true(asked);
    do
        OK(st_redis_ear_next(ear, 20000, &from, &message, NULL));
    while (!from.p);
    assert_true(st_slice_is(message, ID));
    st_redis_ear_close(ear);
}

/* As asynq's inspector runs an archived task again. */
static void stock_run(void)
{
    ASK("ZREM", K("archived"), ID);
    ASK("LPUSH", K("pending"), ID);
    ASK("HSET", K("t:" ID), "state", "pending");
}

static void is_failed(struct st_store *s)
{
    struct st_queue_info *q;
    struct st_job_info i;
    size_t n;

    OK(st_store_get(s, T0, S(ID), &i, NULL));
    assert_int_equal(i.state, ST_FAILED);
    st_job_info_clear(&i);
    OK(st_store_queues(s, T0, &q, &n, NULL));
    assert_int_equal(q[0].counts[ST_SHOW_FAILED], 1);
    assert_int_equal(q[0].counts[ST_SHOW_CANCELLED], 0);
    free(q);
}

static void what_was_cancelled_and_run_again_by_a_stock_tool_fails_as_any_other(void **state)
{
    const struct st_slice ids[1] = {S(ID)};
    struct st_job *job;
    stint_code verdict;

    add(*state, T0, job_of(ID));
    OK(st_store_cancel(*state, T0, ids, 1, &verdict, NULL, NULL));
    stock_run();
    ASK("LREM", K("pending"), "0", ID); /* a stock server has run and archived it */
    ASK("ZADD", K("archived"), "1700000007", ID);
    ASK("HSET", K("t:" ID), "state", "archived");
    is_failed(*state);

    stock_run();
    job = claim(*state, T0);
    OK(finish(*state, T0, job, ST_OUT_FAILED)); /* in the very second of the cancel */
    st_job_free(job);
    is_failed(*state);
}

/* ---- a server that dies ------------------------------------------------------------------------------------------------------------------- */

static void ctl(const char *what)
{
    char command[512];

    snprintf(command, sizeof(command), "%s %s", getenv("STINT_TEST_REDIS_CTL"), what);
    assert_int_equal(system(command), 0);
}

static void what_is_held_is_held_after_the_server_was_killed(void **state)
{
    struct st_job *job;
    stint_code code = STINT_EAGAIN;
    struct st_finish f;

    ASK("CONFIG", "SET", "appendonly", "yes");
    ASK("CONFIG", "SET", "appendfsync", "always");
    while (strstr(ASK("INFO", "persistence"), "aof_rewrite_in_progress:1") ||
           !strstr(ASK("INFO", "persistence"), "aof_enabled:1"))
        ;
    ASK("CONFIG", "REWRITE"); /* for when it comes back */
    add(*state, 0, job_of(ID));
    job = claim(*state, 0);
    assert_non_null(job);
    ctl("kill");
    ctl("start");
    f = fin(job, ST_OUT_SUCCEEDED);
    for (int i = 0; i < 100 && (code == STINT_EAGAIN || code == STINT_EUNKNOWN); i++)
        code = st_store_finish(*state, 0, &f, 1, NULL);
    OK(code);
    OK(f.verdict);
    IS("completed", "HGET", K("t:" ID), "state");
    IS("1", "ZCARD", K("completed"));
    st_job_free(job);
    ASK("CONFIG", "SET", "appendonly", "no");
    ASK("CONFIG", "REWRITE");
}

#define T(name) cmocka_unit_test_setup_teardown(name, fresh, done)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(the_message_is_the_golden_one),
        T(the_packed_field_comes_back_as_it_was),
        T(ended_attempts_are_read_as_far_as_they_are_whole),
        T(an_enqueue_writes_what_asynqs_does),
        T(a_later_job_is_scheduled),
        T(a_claim_moves_as_asynqs_dequeue),
        T(a_success_moves_as_asynqs_complete),
        T(a_failed_attempt_moves_as_asynqs_retry),
        T(a_dead_job_moves_as_asynqs_archive_and_back_by_its_run),
        T(a_release_moves_as_asynqs_requeue),
        T(counters_of_the_day_last_90_days),
        T(a_total_at_its_end_begins_anew),
        T(the_archive_is_trimmed_by_age_and_size),
        T(pause_is_asynqs),
        T(a_job_unique_by_its_content_takes_asynqs_lock),
        T(a_stock_producers_lock_makes_a_duplicate),
        T(a_stock_lock_stays_when_its_job_dies),
        T(a_window_is_nothing_a_stock_server_would_free),
        T(of_100_producers_at_once_one_wins),
        T(a_stock_task_is_run_by_its_own_values),
        T(a_stock_deadline_is_kept),
        T(a_task_that_nobody_keeps_is_gone_and_its_finish_can_be_repeated),
        T(unknown_fields_stay_through_a_retry),
        T(a_message_that_cannot_be_read_ends_in_the_archive),
        T(an_id_without_a_task_is_dropped),
        T(what_is_no_task_costs_no_other_job),
        T(what_is_no_task_is_no_job),
        T(a_key_of_another_kind_loses_no_job),
        T(a_key_of_another_kind_loses_no_job_that_moves),
        T(a_broken_queue_costs_no_other_its_lease),
        T(a_broken_queue_keeps_no_other_from_being_served),
        T(an_id_that_is_taken_keeps_all_of_a_large_batch_out),
        T(a_batch_that_is_refused_in_the_middle_is_unknown),
        T(reaping_reads_no_payloads),
        T(a_broken_queue_hides_no_other),
        T(a_claim_from_a_replica_says_so),
        T(a_full_server_lets_jobs_be_done),
        T(a_full_server_takes_many_outcomes_at_once),
        T(a_worker_begins_on_a_full_server),
        T(a_queue_is_resumed_on_a_full_server),
        T(a_key_outlives_the_wait_of_a_job_that_is_due_late),
        T(the_last_of_many_queues_is_served),
        T(names_that_are_none_are_not_kept),
        T(queues_are_known_once),
        T(a_job_that_is_in_the_list_twice_is_taken_once),
        T(a_task_with_a_very_long_id_is_put_off),
        T(a_task_without_an_id_is_put_off),
        T(a_type_with_a_zero_byte_is_archived),
        T(a_scheduled_task_of_a_group_goes_to_its_group),
        T(a_task_whose_group_is_broken_stays_scheduled),
        T(an_acquire_that_finds_a_broken_fence_takes_nothing),
        T(a_success_that_meets_a_broken_key_waits),
        T(a_negative_retention_keeps_nothing),
        T(a_claim_of_large_jobs_leaves_some_for_the_next),
        T(what_no_rule_covers_waits_in_retry_uncharged),
        T(what_is_beyond_a_rules_limit_goes_back_to_the_head),
        T(a_stale_worker_of_ours_cannot_finish_after_a_stock_server_took_the_task),
        T(nor_after_a_stock_server_gave_it_back_and_took_it_again),
        T(nor_with_the_same_lease_once_the_message_has_changed),
        T(a_lease_of_ours_is_never_a_stock_servers),
        T(nor_after_its_id_was_deleted_and_given_to_a_new_job),
        T(what_a_stock_server_left_behind_is_reaped_as_asynq_does),
        T(what_the_archive_has_no_room_for_leaves_nothing_behind),
        T(what_stock_tools_removed_is_not_cancelled_for_ever),
        T(a_cancel_is_told_to_stock_servers_too),
        T(what_was_cancelled_and_run_again_by_a_stock_tool_fails_as_any_other),
        T(what_is_held_is_held_after_the_server_was_killed),
    };
    const char *given = getenv("STINT_TEST_REDIS");
    int failed;

    if (!given) {
        puts("no server: run `scripts/redis-test PROGRAM`");
        return 77;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    snprintf(url, sizeof(url), "%s", given);
    raw = redis_kit_client(url);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    st_redis_close(raw);
    return failed;
}
