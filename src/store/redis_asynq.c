/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_asynq.c - what asynq's inspector and runqy's dashboard are shown of our workers.
 *
 *     asynq:servers                       ZSET   the key below -> until when it counts
 *     asynq:servers:{HOST:PID:WORKER}     STRING protobuf ServerInfo
 *     asynq:workers                       ZSET   the key below -> until when
 *     asynq:workers:{HOST:PID:WORKER}     HASH   task id -> protobuf WorkerInfo, one for each job that runs
 *     asynq:workers:HOST:PID              HASH   runqy's, with runqy=1
 *
 * asynq renews these every 5 s for 10 s.  Our workers beat every 10 s, so they are written for 30.  All of it is for people
 * to look at: nothing of ours reads it, and when it cannot be written the worker goes on.
 *
 * Which jobs a worker has is found by looking through what is active; with very many of them (SCAN_MAX) that is left out,
 * and the tools show the number only.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "store/redis_look.h"

#define SHOWN_S     30
#define RUNQY_S     1800        /* how long runqy keeps a worker in its list */
#define SCAN_MAX    2000        /* active jobs that are looked through at a beat */
#define PAYLOAD_MAX (16 * 1024) /* of a running job's, shown */
#define INFO_MAX    (256 * 1024)

/* ---- protobuf, as far as it is needed --------------------------------------------------------------------- */

static void put_varint(struct st_buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        st_buf_putc(b, (char)(v | 0x80));
    st_buf_putc(b, (char)v);
}

static void put_int(struct st_buf *b, unsigned field, int64_t v)
{
    if (v == 0)
        return;
    put_varint(b, field << 3);
    put_varint(b, (uint64_t)v);
}

static void put_bytes(struct st_buf *b, unsigned field, struct st_slice s)
{
    if (s.len == 0)
        return;
    put_varint(b, field << 3 | 2);
    put_varint(b, s.len);
    st_buf_slice(b, s);
}

static void put_text(struct st_buf *b, unsigned field, const char *s)
{
    put_bytes(b, field, st_slice_cstr(s));
}

static void put_time(struct st_buf *b, unsigned field, int64_t us)
{
    char room[32];
    struct st_buf t = {.p = room, .cap = sizeof(room), .max = sizeof(room) - 1};

    put_int(&t, 1, us / ST_SEC);
    put_int(&t, 2, us % ST_SEC * 1000);
    put_bytes(b, field, st_buf_view(&t));
}

/* ---- its name ------------------------------------------------------------------------------------------------ */

/* HOST:PID:WORKER; braces in it would move the key to another slot. */
static void put_name(struct st_buf *b, const struct st_worker_info *w)
{
    const size_t at = b->len;

    st_buf_printf(b, "%s:%d:%s", w->host, w->pid, w->id);
    for (size_t i = at; i < b->len; i++)
        if (b->p[i] == '{' || b->p[i] == '}')
            b->p[i] = '_';
}

struct names {
    struct st_buf server, workers, runqy;
};

static bool names_make(struct names *n, const struct st_worker_info *w)
{
    struct st_buf *const all[] = {&n->server, &n->workers, &n->runqy};

    for (size_t i = 0; i < 3; i++)
        st_buf_init(all[i], 1024);
    st_buf_puts(&n->server, "asynq:servers:{");
    put_name(&n->server, w);
    st_buf_putc(&n->server, '}');
    st_buf_puts(&n->workers, "asynq:workers:{");
    put_name(&n->workers, w);
    st_buf_putc(&n->workers, '}');
    st_buf_printf(&n->runqy, "asynq:workers:%s:%d", w->host, w->pid);
    return !n->server.failed && !n->workers.failed && !n->runqy.failed;
}

static void names_clear(struct names *n)
{
    st_buf_clear(&n->server);
    st_buf_clear(&n->workers);
    st_buf_clear(&n->runqy);
}

/* ---- the server ------------------------------------------------------------------------------------------------ */

/* queues: a JSON array of names.  asynq wants a weight for each; of a strict list the first has most. */
static void put_queues(struct st_buf *b, const char *json, const char *weights)
{
    const struct st_slice list = st_slice_cstr(json);
    struct st_slice key, value;
    struct st_buf name, entry;
    size_t pos = 0;
    int n = 0, at = 0;

    if (!st_json_ok(list) || st_json_typeof(st_json_trim(list)) != ST_JSON_ARRAY)
        return;
    while (st_json_next(list, &pos, &key, &value))
        n++;
    st_buf_init(&name, ST_NAME_MAX + 1);
    st_buf_init(&entry, 2 * ST_NAME_MAX);
    for (pos = 0; st_json_next(list, &pos, &key, &value); at++) {
        char *after = NULL;
        const long weight = strtol(weights, &after, 10);

        weights = after;
        st_buf_reset(&name);
        st_buf_reset(&entry);
        if (!st_json_string(value, &name))
            continue;
        put_bytes(&entry, 1, st_buf_view(&name));
        put_int(&entry, 2, weight > 0 ? weight : n - at);
        put_bytes(b, 5, st_buf_view(&entry));
    }
    st_buf_clear(&name);
    st_buf_clear(&entry);
}

static void put_server(struct st_buf *b, const struct st_worker_info *w)
{
    put_text(b, 1, w->host);
    put_int(b, 2, w->pid);
    put_text(b, 3, w->id);
    put_int(b, 4, w->slots);
    put_queues(b, w->queues, w->weights);
    put_int(b, 6, w->weights[0] == '\0');
    put_text(b, 7, w->quiet ? "stopped" : "active");
    put_time(b, 8, w->started_us);
    put_int(b, 9, w->running);
}

/* ---- what it runs ------------------------------------------------------------------------------------------------- */

struct running {
    struct st_redis_store *s;
    const struct st_worker_info *w;
    struct st_redis_batch *b;
    struct st_slice key;
};

static void running_one(void *arg, const struct st_job_info *i)
{
    const struct running *r = arg;
    struct st_buf info;

    st_buf_init(&info, INFO_MAX);
    put_text(&info, 1, r->w->host);
    put_int(&info, 2, r->w->pid);
    put_text(&info, 3, r->w->id);
    put_text(&info, 4, i->id);
    put_text(&info, 5, i->type);
    if (i->payload.len <= PAYLOAD_MAX)
        put_bytes(&info, 6, i->payload);
    put_text(&info, 7, i->queue);
    put_time(&info, 8, i->run_started_us ? i->run_started_us : i->created_us);
    if (i->deadline_us)
        put_time(&info, 9, i->deadline_us);
    st_redis_add(r->b, ST_REDIS_WRITE, r->key,
                 (const struct st_slice[]){st_slice_cstr("HSET"), r->key, st_slice_cstr(i->id), st_buf_view(&info)}, 4);
    st_buf_clear(&info);
}

/* ---- runqy's hash --------------------------------------------------------------------------------------------------- */

/* As it prints a Go map: map[a:2 b:1] */
static void put_go_map(struct st_buf *b, const char *json)
{
    const struct st_slice list = st_slice_cstr(json);
    struct st_slice key, value;
    size_t pos = 0;
    bool more = false;

    st_buf_puts(b, "map[");
    if (st_json_ok(list) && st_json_typeof(st_json_trim(list)) == ST_JSON_ARRAY)
        while (st_json_next(list, &pos, &key, &value)) {
            if (more)
                st_buf_putc(b, ' ');
            more = st_json_string(value, b);
            st_buf_puts(b, ":1");
        }
    st_buf_putc(b, ']');
}

static void add_runqy(struct st_redis_batch *b, const struct st_worker_info *w, struct st_slice key, int64_t now_us)
{
    char started[24], beat[24], slots[16], until[24];
    struct st_buf queues;
    const char *const colon = memchr(key.p, ':', key.len); /* asynq:workers:HOST:PID */
    const char *const member = strchr(colon + 1, ':') + 1;

    snprintf(started, sizeof(started), "%lld", (long long)(w->started_us / ST_SEC));
    snprintf(beat, sizeof(beat), "%lld", (long long)(now_us / ST_SEC));
    snprintf(until, sizeof(until), "%lld", (long long)(now_us / ST_SEC + RUNQY_S));
    snprintf(slots, sizeof(slots), "%d", w->slots);
    st_buf_init(&queues, 4096);
    put_go_map(&queues, w->queues);
    st_redis_addv(b, ST_REDIS_WRITE, "HSET", key.p, "worker_id", w->id, "started_at", started, "last_beat", beat,
                  "concurrency", slots, "queues", queues.p ? queues.p : "map[]", "status",
                  w->quiet ? "stopped" : "running", "healthy", w->healthy ? "1" : "0", NULL);
    st_redis_addv(b, ST_REDIS_WRITE, "EXPIRE", key.p, "30", NULL);
    st_redis_addv(b, ST_REDIS_WRITE, "ZADD", "asynq:workers", until, member, NULL);
    st_buf_clear(&queues);
}

/* ---- together --------------------------------------------------------------------------------------------------------- */

static void add_all(struct st_redis_store *s, struct st_redis_batch *b, const struct st_worker_info *w,
                    const struct names *n, const struct st_buf *info, int64_t now_us)
{
    const struct st_slice server = st_buf_view(&n->server), workers = st_buf_view(&n->workers);
    struct running r = {.s = s, .w = w, .b = b, .key = workers};
    char until[24];

    snprintf(until, sizeof(until), "%lld", (long long)(now_us / ST_SEC + SHOWN_S));
    st_redis_addv(b, ST_REDIS_WRITE, "ZADD", "asynq:servers", until, server.p, NULL);
    st_redis_add(b, ST_REDIS_WRITE, server,
                 (const struct st_slice[]){st_slice_cstr("SET"), server, st_buf_view(info), st_slice_cstr("EX"),
                                           st_slice_cstr("30")},
                 5);
    st_redis_addv(b, ST_REDIS_WRITE, "ZADD", "asynq:workers", until, workers.p, NULL);
    st_redis_addv(b, ST_REDIS_WRITE, "DEL", workers.p, NULL);
    if (w->running > 0)
        st_redis_each_held(s, st_slice_cstr(w->id), SCAN_MAX, running_one, &r);
    st_redis_addv(b, ST_REDIS_WRITE, "EXPIRE", workers.p, "30", NULL);
    if (s->runqy)
        add_runqy(b, w, st_buf_view(&n->runqy), now_us);
}

void st_redis_asynq_beat(struct st_redis_store *s, const struct st_worker_info *w)
{
    const int64_t now_us = st_redis_store_now(s);
    struct st_redis_batch b;
    struct names n;
    struct st_buf info;
    stint_error err = {0};

    st_buf_init(&info, INFO_MAX);
    st_redis_batch_init(&b);
    put_server(&info, w);
    if (names_make(&n, w) && !info.failed) {
        add_all(s, &b, w, &n, &info, now_us);
        if (st_redis_run(s->r, &b, &err))
            st_log(ST_LOG_DEBUG, "worker.shown_failed", ST_FE(&err));
    }
    names_clear(&n);
    st_redis_batch_clear(&b);
    st_buf_clear(&info);
}

void st_redis_asynq_gone(struct st_redis_store *s, const struct st_worker_info *w)
{
    struct st_redis_batch b;
    struct names n;
    stint_error err = {0};

    st_redis_batch_init(&b);
    if (names_make(&n, w)) {
        st_redis_addv(&b, ST_REDIS_WRITE, "ZREM", "asynq:servers", n.server.p, NULL);
        st_redis_addv(&b, ST_REDIS_WRITE, "DEL", n.server.p, NULL);
        st_redis_addv(&b, ST_REDIS_WRITE, "ZREM", "asynq:workers", n.workers.p, strlen("asynq:workers:") + n.runqy.p,
                      NULL);
        st_redis_addv(&b, ST_REDIS_WRITE, "DEL", n.workers.p, NULL);
        if (s->runqy)
            st_redis_addv(&b, ST_REDIS_WRITE, "DEL", n.runqy.p, NULL);
        if (st_redis_run(s->r, &b, &err))
            st_log(ST_LOG_DEBUG, "worker.shown_failed", ST_FE(&err));
    }
    names_clear(&n);
    st_redis_batch_clear(&b);
}
