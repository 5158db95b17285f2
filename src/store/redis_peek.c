/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_peek.c - walking through the ids of a queue, and what decides about a job without reading it whole.
 *
 * A queue may hold a million jobs: ids are read a chunk at a time, and of each job only the few bytes that decide, so that
 * neither the server is held up nor this program grows.  Between two chunks the world goes on: a job that moves meanwhile may be seen
 * twice or not at all.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_look.h"

/* ---- small things ----------------------------------------------------------------------------------------- */

struct st_redis_care *st_redis_care(struct st_redis_store *s, stint_error *err)
{
    if (!s->care && !(s->care = calloc(1, sizeof(*s->care))))
        st_fail(err, STINT_ENOMEM, "no memory for a handle's duties");
    return s->care;
}

void st_redis_care_close(struct st_redis_store *s)
{
    free(s->care);
    s->care = NULL;
}

int64_t st_redis_time(const redisReply *r)
{
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 2)
        return 0;
    return st_redis_int(r->element[0], 0) * ST_SEC + st_redis_int(r->element[1], 0);
}

int64_t st_redis_store_now(const struct st_redis_store *s)
{
    return s->base.ops->now((struct st_store *)&s->base);
}

double st_redis_score_read(const redisReply *r)
{
    const struct st_slice text = st_redis_text(r);
    char copy[64];
    char *end;
    double v;

    if (!text.len || text.len >= sizeof(copy))
        return NAN;
    memcpy(copy, text.p, text.len);
    copy[text.len] = '\0';
    v = strtod(copy, &end);
    return *end ? NAN : v;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int64_t st_redis_id_time(struct st_slice id)
{
    int64_t ms = 0;

    if (id.len != ST_UUID_LEN || id.p[8] != '-' || id.p[13] != '-' || id.p[14] != '7')
        return 0;
    for (size_t i = 0; i < 13; i++) {
        if (i == 8)
            continue;
        if (hex(id.p[i]) < 0)
            return 0;
        ms = ms << 4 | hex(id.p[i]);
    }
    return ms * ST_MS;
}

/* ---- walking ------------------------------------------------------------------------------------------------- */

static void add_page(struct st_redis_batch *b, const struct st_redis_walk *w, size_t at, size_t n)
{
    struct st_redis_key key;
    char from[ST_REDIS_NUM], many[ST_REDIS_NUM];
    const char *min = w->min ? w->min : "-inf", *max = w->max ? w->max : "+inf";

    st_redis_key(&key, w->queue, w->set);
    st_redis_num(from, (int64_t)at);
    if (w->list) {
        st_redis_num(many, (int64_t)(at + n - 1));
        st_redis_addv(b, ST_REDIS_READ, "LRANGE", key.p, from, many, NULL);
        return;
    }
    st_redis_num(many, (int64_t)n);
    st_redis_addv(b, ST_REDIS_READ, w->down ? "ZREVRANGEBYSCORE" : "ZRANGEBYSCORE", key.p, w->down ? max : min,
                  w->down ? min : max, "WITHSCORES", "LIMIT", from, many, NULL);
}

struct page {
    struct st_slice ids[ST_REDIS_CHUNK];
    double scores[ST_REDIS_CHUNK];
    size_t n;
};

static void page_read(struct page *p, const redisReply *r, bool list)
{
    const size_t step = list ? 1 : 2;

    p->n = 0;
    for (size_t i = 0; i + step <= r->elements && p->n < ST_REDIS_CHUNK; i += step) {
        p->ids[p->n] = st_redis_text(r->element[i]);
        p->scores[p->n] = list ? NAN : st_redis_score_read(r->element[i + 1]);
        p->n += p->ids[p->n].len > 0 && p->ids[p->n].len <= ST_ID_MAX;
    }
}

stint_code st_redis_walk(struct st_redis_store *s, const struct st_redis_walk *w, st_redis_chunk_fn fn, void *arg,
                         stint_error *err)
{
    struct page *p = malloc(sizeof(*p));
    struct st_redis_batch b;
    stint_code code = p ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory to walk through a queue");
    bool more = true;

    st_redis_batch_init(&b);
    for (size_t at = 0; !code && more && (!w->most || at < w->most) && !(w->enough && *w->enough);
         at += ST_REDIS_CHUNK) {
        const size_t n = w->most && w->most - at < ST_REDIS_CHUNK ? w->most - at : ST_REDIS_CHUNK;
        const redisReply *r;

        st_redis_batch_reset(&b);
        add_page(&b, w, at, n);
        code = st_redis_run(s->r, &b, err);
        r = code ? NULL : st_redis_reply(&b, 0);
        if (!code)
            code = st_redis_reply_fail(s->r, r, err);
        if (code)
            break;
        page_read(p, r, w->list);
        more = r->elements >= (w->list ? n : 2 * n);
        if (p->n)
            code = fn(arg, p->ids, p->scores, p->n, err);
    }
    st_redis_batch_clear(&b);
    free(p);
    return code;
}

/* ---- peeking --------------------------------------------------------------------------------------------------- */

enum { P_STATE, P_STINT, P_SINCE, P_LEASE, P_CANCELLED, P_KEY, P_HEAD, P_N };

/* A message begins with its type. */
static struct st_slice type_of(struct st_slice head)
{
    size_t len;

    if (head.len < 2 || head.p[0] != 0x0a)
        return ST_NONE;
    len = (unsigned char)head.p[1];
    if (len >= 0x80) { /* two bytes of length: up to 16383 */
        if (head.len < 3)
            return ST_NONE;
        len = (len & 0x7f) | (size_t)(unsigned char)head.p[2] << 7;
        return len + 3 <= head.len ? ST_SLICE(head.p + 3, len) : ST_NONE;
    }
    return len + 2 <= head.len ? ST_SLICE(head.p + 2, len) : ST_NONE;
}

static enum st_state state_of(struct st_redis_peek *p, const redisReply *r)
{
    const struct st_slice s = p->asynq;

    if (st_slice_is(s, "active"))
        return p->held_by_us ? p->task.held : ST_RUNNING;
    if (st_slice_is(s, "completed"))
        return ST_SUCCEEDED;
    if (st_slice_is(s, "archived"))
        return st_redis_text(r->element[P_CANCELLED]).p ? ST_CANCELLED : ST_FAILED;
    return st_slice_is(s, "aggregating") ? ST_BLOCKED : ST_PENDING;
}

static int64_t since_us(const redisReply *r)
{
    return st_redis_int(r, 0) / 1000;
}

/* false = it is gone. */
static bool peek_read(const redisReply *r, struct st_slice id, struct st_redis_peek *p)
{
    memset(p, 0, sizeof(*p));
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != P_N || !st_redis_text(r->element[P_STATE]).p)
        return false;
    p->asynq = st_redis_text(r->element[P_STATE]);
    st_redis_task_unpack(st_redis_text(r->element[P_STINT]), &p->task);
    p->lease_s = st_redis_score_read(r->element[P_LEASE]);
    p->held_by_us = st_redis_task_holds(&p->task, p->asynq, p->lease_s);
    p->state = state_of(p, r);
    p->created_us = p->task.created_us ? p->task.created_us : since_us(r->element[P_SINCE]);
    if (!p->created_us)
        p->created_us = st_redis_id_time(id);
    p->key = st_redis_text(r->element[P_KEY]);
    p->type = type_of(st_redis_text(r->element[P_HEAD]));
    return true;
}

struct keys {
    struct st_redis_key p[ST_REDIS_CHUNK + 3];
    struct st_slice keys[ST_REDIS_CHUNK + 3], args[ST_REDIS_CHUNK + 1];
};

static void add_peek(struct st_redis_batch *b, struct keys *k, struct st_slice queue, const struct st_slice *ids,
                     size_t n, bool types)
{
    k->keys[0] = st_redis_key(&k->p[0], queue, "lease");
    k->keys[1] = st_redis_own_key(&k->p[1], queue, "cancelled");
    k->keys[2] = st_redis_key(&k->p[2], queue, "archived");
    k->args[0] = st_slice_cstr(types ? "1" : "0");
    for (size_t i = 0; i < n; i++) {
        k->keys[i + 3] = st_redis_task_key(&k->p[i + 3], queue, ids[i]);
        k->args[i + 1] = ids[i];
    }
    st_redis_add_script(b, ST_REDIS_READ, st_redis_lua(ST_LUA_peek), k->keys, n + 3, k->args, n + 1);
}

static stint_code peek_chunk(struct st_redis_store *s, struct keys *k, struct st_slice queue,
                             const struct st_slice *ids, size_t n, bool types, st_redis_peek_fn fn, void *arg,
                             size_t base, stint_error *err)
{
    struct st_redis_batch b;
    struct st_redis_peek p;
    const redisReply *r;
    stint_code code;

    st_redis_batch_init(&b);
    add_peek(&b, k, queue, ids, n, types);
    code = st_redis_run(s->r, &b, err);
    r = code ? NULL : st_redis_reply(&b, 0);
    if (!code)
        code = st_redis_reply_fail(s->r, r, err);
    for (size_t i = 0; !code && i < n && i < r->elements; i++)
        if (peek_read(r->element[i], ids[i], &p))
            fn(arg, base + i, &p);
    st_redis_batch_clear(&b);
    return code;
}

stint_code st_redis_peek(struct st_redis_store *s, struct st_slice queue, const struct st_slice *ids, size_t n,
                         bool types, st_redis_peek_fn fn, void *arg, stint_error *err)
{
    struct keys *k = malloc(sizeof(*k));
    stint_code code = k ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory to look at %zu jobs", n);
    const size_t step = types ? ST_REDIS_CHUNK / 5 : ST_REDIS_CHUNK;

    for (size_t at = 0; !code && at < n; at += step)
        code = peek_chunk(s, k, queue, ids + at, n - at < step ? n - at : step, types, fn, arg, at, err);
    free(k);
    return code;
}

static void keep_peek(void *arg, size_t i, const struct st_redis_peek *p)
{
    struct st_redis_peek *out = arg;

    (void)i;
    *out = *p;
    out->asynq = st_slice_cstr("found");
    out->key = out->type = ST_NONE;
}

stint_code st_redis_peek_id(struct st_redis_store *s, struct st_slice id, struct st_redis_peek *out, stint_error *err)
{
    struct st_slice queue;

    memset(out, 0, sizeof(*out));
    if (st_redis_locate(s, &id, NULL, 1, &queue, err))
        return err->code;
    if (queue.p && st_redis_peek(s, queue, &id, 1, false, keep_peek, out, err))
        return err->code;
    if (!out->asynq.p)
        return st_fail(err, STINT_ENOTFOUND, "there is no job %.*s", (int)id.len, id.p);
    return STINT_OK;
}
