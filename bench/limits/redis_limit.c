/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_limit.c - how fast this Redis can do what the store asks of it.
 *
 * The keys are asynq's, and every task goes the way of a kept one: pending -> active with a lease
 * -> completed, with its message, state and counters.  Nothing else is done: one connection, one
 * thread, no worker, no fence, no renewals, no verdicts.  Two ways, and the limit is the better
 * one:
 *
 *     batch    scripts written for this loop that take n tasks each; the counters are moved once
 * per batch calls    asynq's own moves, one EVALSHA per task, n of them sent at once
 *
 *     drain      finish the batch before, claim the next one, until nothing is pending: one round
 * trip per batch
 *     --enqueue  n tasks per round trip into hash and list
 *
 * hiredis formats and parses, blocking.  One line of JSON comes out; `cpu_us_per_job` is ours
 * alone.
 */
#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>

#define QUEUE     "bench"
#define TYPE      "bench.noop"
#define KEY(name) "asynq:{" QUEUE "}:" name
#define LEASE_S   60
#define RETENTION 86400
#define BATCH_MAX 10000
#define STATS_S   (90 * 86400)
#define FIFTHS    5

/* KEYS pending active lease paused; ARGV n, lease end, prefix.  Answers id, msg, id, msg, ... */
static const char claim_lua[] = "local out = {} "
                                "if redis.call('EXISTS', KEYS[4]) == 1 then return out end "
                                "for i = 1, tonumber(ARGV[1]) do "
                                "  local id = redis.call('RPOPLPUSH', KEYS[1], KEYS[2]) "
                                "  if not id then break end "
                                "  local key = ARGV[3] .. id "
                                "  redis.call('HSET', key, 'state', 'active') "
                                "  redis.call('HDEL', key, 'pending_since') "
                                "  redis.call('ZADD', KEYS[3], ARGV[2], id) "
                                "  out[#out + 1] = id "
                                "  out[#out + 1] = redis.call('HGET', key, 'msg') "
                                "end "
                                "return out";

/* KEYS active lease completed processed:day processed; ARGV expiry of the statistics, end of the
 * retention, prefix, id, msg, ... */
static const char finish_lua[] =
    "local n = 0 "
    "for i = 4, #ARGV, 2 do "
    "  local id = ARGV[i] "
    "  if redis.call('LREM', KEYS[1], -1, id) == 1 and redis.call('ZREM', KEYS[2], id) == 1 then "
    "    redis.call('ZADD', KEYS[3], ARGV[2], id) "
    "    redis.call('HSET', ARGV[3] .. id, 'msg', ARGV[i + 1], 'state', 'completed') "
    "    n = n + 1 "
    "  end "
    "end "
    "if redis.call('INCRBY', KEYS[4], n) == n then redis.call('EXPIREAT', KEYS[4], ARGV[1]) end "
    "redis.call('INCRBY', KEYS[5], n) "
    "return n";

/* KEYS hash pending; ARGV msg, id, now in ns */
static const char enqueue_lua[] =
    "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end "
    "redis.call('HSET', KEYS[1], 'msg', ARGV[1], 'state', 'pending', 'pending_since', ARGV[3]) "
    "redis.call('LPUSH', KEYS[2], ARGV[2]) "
    "return 1";

enum { CLAIM, FINISH, ENQUEUE, N_SCRIPTS };
static const char *const texts[N_SCRIPTS] = {claim_lua, finish_lua, enqueue_lua};

struct bytes {
    char *ptr;
    size_t len, cap;
};

struct task {
    struct bytes id, msg;
};

struct limit {
    redisContext *c;
    char sha[N_SCRIPTS][41];
    struct task held[BATCH_MAX];
    size_t n_held, n_done;
    const char *path, *variant;
    int64_t batch, enqueue, payload_len;
    char day_key[64];
};

static void die(struct limit *l, const char *what, const redisReply *r)
{
    const char *why = l->c && l->c->err                   ? l->c->errstr
                      : r && r->type == REDIS_REPLY_ERROR ? r->str
                                                          : "an answer of another kind";

    fprintf(stderr, "redis_limit: %s: %s\n", what, why);
    exit(1);
}

static int64_t clock_us(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static void keep(struct bytes *b, const char *ptr, size_t len)
{
    if (len > b->cap) {
        b->cap = len * 2;
        b->ptr = realloc(b->ptr, b->cap);
        if (!b->ptr)
            abort();
    }
    memcpy(b->ptr, ptr, len);
    b->len = len;
}

/* ---- commands ----------------------------------------------------------------------------- */

struct words {
    const char *ptr[2 * BATCH_MAX + 32];
    size_t len[2 * BATCH_MAX + 32];
    int n;
};

static struct words words;

static void add(const char *ptr, size_t len)
{
    words.ptr[words.n] = ptr;
    words.len[words.n++] = len;
}

static void adds(const char *text)
{
    add(text, strlen(text));
}

static void begin(struct limit *l, int script, const char *n_keys)
{
    words.n = 0;
    adds("EVALSHA");
    adds(l->sha[script]);
    adds(n_keys);
}

static void send_words(struct limit *l)
{
    if (redisAppendCommandArgv(l->c, words.n, words.ptr, words.len) != REDIS_OK)
        die(l, "send", NULL);
}

static redisReply *answer(struct limit *l, const char *what, int type)
{
    redisReply *r = NULL;

    if (redisGetReply(l->c, (void **)&r) != REDIS_OK || !r || r->type != type)
        die(l, what, r);
    return r;
}

static void open_server(struct limit *l)
{
    time_t now = time(NULL);
    struct tm day;

    l->c = redisConnectUnix(l->path);
    if (!l->c || l->c->err)
        die(l, "connect", NULL);
    for (int i = 0; i < N_SCRIPTS; i++) {
        redisReply *r = redisCommand(l->c, "SCRIPT LOAD %s", texts[i]);

        if (!r || r->type != REDIS_REPLY_STRING || r->len != 40)
            die(l, "SCRIPT LOAD", r);
        memcpy(l->sha[i], r->str, 41);
        freeReplyObject(r);
    }
    gmtime_r(&now, &day);
    strftime(l->day_key, sizeof(l->day_key), KEY("processed:%Y-%m-%d"), &day);
}

/* ---- drain -------------------------------------------------------------------------------- */

static void send_claim(struct limit *l, int64_t n)
{
    char count[24], until[24];

    begin(l, CLAIM, "4");
    adds(KEY("pending"));
    adds(KEY("active"));
    adds(KEY("lease"));
    adds(KEY("paused"));
    snprintf(count, sizeof(count), "%lld", (long long)n);
    snprintf(until, sizeof(until), "%lld", (long long)time(NULL) + LEASE_S);
    adds(count);
    adds(until);
    adds(KEY("t:"));
    send_words(l);
}

/* completed_at (field 13) goes behind: the last one of a field counts. */
static void complete(struct bytes *msg, int64_t now)
{
    char tail[16];
    size_t n = 0;

    tail[n++] = 13 << 3;
    for (; now > 0x7f; now >>= 7)
        tail[n++] = (char)((now & 0x7f) | 0x80);
    tail[n++] = (char)now;
    if (msg->len + n > msg->cap) {
        msg->cap = (msg->len + n) * 2;
        msg->ptr = realloc(msg->ptr, msg->cap);
        if (!msg->ptr)
            abort();
    }
    memcpy(msg->ptr + msg->len, tail, n);
    msg->len += n;
}

static void send_finish(struct limit *l, size_t from, size_t n)
{
    int64_t now = time(NULL);
    char stats[24], kept[24];

    begin(l, FINISH, "5");
    adds(KEY("active"));
    adds(KEY("lease"));
    adds(KEY("completed"));
    adds(l->day_key);
    adds(KEY("processed"));
    snprintf(stats, sizeof(stats), "%lld", (long long)now + STATS_S);
    snprintf(kept, sizeof(kept), "%lld", (long long)now + RETENTION);
    adds(stats);
    adds(kept);
    adds(KEY("t:"));
    for (size_t i = from; i < from + n; i++) {
        complete(&l->held[i].msg, now);
        add(l->held[i].id.ptr, l->held[i].id.len);
        add(l->held[i].msg.ptr, l->held[i].msg.len);
    }
    send_words(l);
}

static void take_finish(struct limit *l, size_t n)
{
    redisReply *r = answer(l, "finish", REDIS_REPLY_INTEGER);

    if (r->integer != (long long)n) {
        fprintf(stderr, "redis_limit: %lld of %zu tasks were finished\n", r->integer, n);
        exit(1);
    }
    l->n_done += n;
    freeReplyObject(r);
}

static void take_claim(struct limit *l)
{
    redisReply *r = answer(l, "claim", REDIS_REPLY_ARRAY);

    for (size_t i = 0; i + 1 < r->elements; i += 2) {
        struct task *t = &l->held[l->n_held++];

        keep(&t->id, r->element[i]->str, r->element[i]->len);
        keep(&t->msg, r->element[i + 1]->str, r->element[i + 1]->len);
    }
    freeReplyObject(r);
}

/* One round trip: what is held ends, and the next come. */
static void exchange(struct limit *l)
{
    const bool batch = strcmp(l->variant, "batch") == 0;
    const size_t step = batch ? l->n_held : 1, n = l->n_held;
    const int64_t claims = batch ? 1 : l->batch;

    for (size_t i = 0; i < n; i += step)
        send_finish(l, i, step);
    for (int64_t i = 0; i < claims; i++)
        send_claim(l, batch ? l->batch : 1);
    for (size_t i = 0; i < n; i += step)
        take_finish(l, step);
    l->n_held = 0;
    for (int64_t i = 0; i < claims; i++)
        take_claim(l);
}

static void drain(struct limit *l)
{
    do
        exchange(l);
    while (l->n_held > 0);
}

/* ---- enqueue ------------------------------------------------------------------------------ */

static size_t put_text(char *to, int field, const char *text, size_t len)
{
    to[0] = (char)(field << 3 | 2);
    to[1] = (char)len; /* short ones only */
    memcpy(to + 2, text, len);
    return len + 2;
}

static size_t message(char *to, const char *id, size_t payload_len)
{
    static const char tail[] = {5 << 3, 2, 8 << 3, (char)0x88, 0x0e, 12 << 3, (char)0x80, (char)0xa3, 5};
    char payload[128];
    size_t n;

    memset(payload, 'x', payload_len);
    payload[0] = payload[payload_len - 1] = '"';
    n = put_text(to, 1, TYPE, strlen(TYPE));
    n += put_text(to + n, 2, payload, payload_len);
    n += put_text(to + n, 3, id, strlen(id));
    n += put_text(to + n, 4, QUEUE, strlen(QUEUE));
    memcpy(to + n, tail, sizeof(tail)); /* 2 retries, 30 min, kept for a day */
    return n + sizeof(tail);
}

static void send_enqueue(struct limit *l, int64_t number)
{
    char id[40], key[96], msg[512], now[24];

    snprintf(id, sizeof(id), "00000000-0000-7000-8000-%012lld", (long long)number);
    snprintf(key, sizeof(key), KEY("t:%s"), id);
    snprintf(now, sizeof(now), "%lld000", (long long)clock_us(CLOCK_REALTIME));
    begin(l, ENQUEUE, "2");
    adds(key);
    adds(KEY("pending"));
    add(msg, message(msg, id, (size_t)l->payload_len));
    adds(id);
    adds(now);
    send_words(l);
}

static void enqueue(struct limit *l)
{
    freeReplyObject(redisCommand(l->c, "SADD asynq:queues " QUEUE));
    for (int64_t done = 0; done < l->enqueue;) {
        int64_t n = l->enqueue - done < l->batch ? l->enqueue - done : l->batch;

        for (int64_t i = 0; i < n; i++)
            send_enqueue(l, done + i);
        for (int64_t i = 0; i < n; i++)
            freeReplyObject(answer(l, "enqueue", REDIS_REPLY_INTEGER));
        done += n;
    }
    l->n_done = (size_t)l->enqueue;
}

/* ---- main --------------------------------------------------------------------------------- */

static void usage(void)
{
    fprintf(stderr, "usage: redis_limit SOCKET [--batch N] [--variant batch|calls] [--enqueue N] "
                    "[--payload BYTES]\n");
    exit(2);
}

static int64_t number(const char *text, int64_t max)
{
    char *end;
    int64_t n = text ? strtoll(text, &end, 10) : 0;

    if (!text || *end || n < 1 || n > max)
        usage();
    return n;
}

static void parse(struct limit *l, int argc, char **argv)
{
    *l = (struct limit){.variant = "batch", .batch = 500, .payload_len = 60};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--batch") == 0)
            l->batch = number(argv[++i], BATCH_MAX);
        else if (strcmp(argv[i], "--enqueue") == 0)
            l->enqueue = number(argv[++i], 1000000000);
        else if (strcmp(argv[i], "--payload") == 0)
            l->payload_len = number(argv[++i], 120);
        else if (strcmp(argv[i], "--variant") == 0 && i + 1 < argc)
            l->variant = argv[++i];
        else if (argv[i][0] != '-' && !l->path)
            l->path = argv[i];
        else
            usage();
    }
    if (!l->path || (strcmp(l->variant, "batch") != 0 && strcmp(l->variant, "calls") != 0))
        usage();
}

int main(int argc, char **argv)
{
    static struct limit l;
    int64_t start, us, cpu;

    parse(&l, argc, argv);
    open_server(&l);
    start = clock_us(CLOCK_MONOTONIC);
    if (l.enqueue)
        enqueue(&l);
    else
        drain(&l);
    us = clock_us(CLOCK_MONOTONIC) - start;
    cpu = clock_us(CLOCK_PROCESS_CPUTIME_ID);
    printf("{\"jobs\": %zu, \"seconds\": %.6f, \"per_s\": %.1f, \"batch\": %lld, \"variant\": "
           "\"%s\", \"cpu_us_per_job\": %.3f}\n",
           l.n_done, (double)us / 1e6, us ? (double)l.n_done * 1e6 / (double)us : 0, (long long)l.batch, l.variant,
           l.n_done ? (double)cpu / (double)l.n_done : 0);
    redisFree(l.c);
    return 0;
}
