/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_batch.c - commands put together as bytes, in the order in which they are sent.
 *
 * The bytes of all commands stand one behind the other, so that a batch for one server is one write; where
 * they go to several, each command's are copied.
 *
 * Thread: the batch's; scripts are named under a lock.
 */
#include "store/redis_net.h"

#include <openssl/sha.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_MAX 64 /* of st_redis_addv */

void st_redis_script_init(struct st_redis_script *s)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    unsigned char sum[SHA_DIGEST_LENGTH];

    pthread_mutex_lock(&lock);
    if (!s->sha[0]) {
        SHA1((const unsigned char *)s->text, strlen(s->text), sum);
        for (size_t i = 0; i < sizeof(sum); i++)
            snprintf(s->sha + 2 * i, 3, "%02x", sum[i]);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- bytes ------------------------------------------------------------------------------------- */

static void put_count(struct st_buf *b, char kind, size_t n)
{
    char text[24], *p = text + sizeof(text);

    *--p = '\n';
    *--p = '\r';
    do
        *--p = (char)('0' + n % 10);
    while ((n /= 10));
    *--p = kind;
    st_buf_put(b, p, (size_t)(text + sizeof(text) - p));
}

static void put_arg(struct st_buf *b, struct st_slice s)
{
    put_count(b, '$', s.len);
    st_buf_slice(b, s);
    st_buf_put(b, "\r\n", 2);
}

void st_redis_put_command(struct st_buf *b, const struct st_slice *argv, size_t argc)
{
    put_count(b, '*', argc);
    for (size_t i = 0; i < argc; i++)
        put_arg(b, argv[i]);
}

/* ---- the batch ------------------------------------------------------------------------------------ */

void st_redis_batch_init(struct st_redis_batch *b)
{
    memset(b, 0, sizeof(*b));
    st_buf_init(&b->wire, ST_REDIS_BATCH_MAX);
}

void st_redis_batch_reset(struct st_redis_batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].reply)
            freeReplyObject(b->items[i].reply);
    b->n = 0;
    b->failed = b->writes = false;
    st_buf_reset(&b->wire);
}

void st_redis_batch_clear(struct st_redis_batch *b)
{
    st_redis_batch_reset(b);
    free(b->items);
    st_buf_clear(&b->wire);
    b->items = NULL;
    b->cap = 0;
}

/* A new request whose bytes begin here; NULL = no memory. */
static struct st_redis_request *begin(struct st_redis_batch *b, unsigned flags, struct st_slice slot_key)
{
    struct st_redis_request *q;

    if (!b->wire.max)
        st_buf_init(&b->wire, ST_REDIS_BATCH_MAX);
    if (b->n == b->cap) {
        const size_t cap = b->cap ? 2 * b->cap : 16;
        struct st_redis_request *items = realloc(b->items, cap * sizeof(*items));

        if (!items) {
            b->failed = true;
            return NULL;
        }
        b->items = items;
        b->cap = cap;
    }
    q = &b->items[b->n++];
    *q = (struct st_redis_request){
        .off = b->wire.len, .flags = flags, .slot = slot_key.p ? st_redis_slot(slot_key) : -1};
    if (flags & ST_REDIS_WRITE)
        b->writes = true;
    return q;
}

static size_t end(struct st_redis_batch *b, struct st_redis_request *q)
{
    if (!q)
        return b->n;
    q->len = b->wire.len - q->off;
    if (b->wire.failed)
        b->failed = true;
    return b->n - 1;
}

size_t st_redis_add(struct st_redis_batch *b, unsigned flags, struct st_slice slot_key, const struct st_slice *argv,
                    size_t argc)
{
    struct st_redis_request *q = begin(b, flags, slot_key);

    if (q)
        st_redis_put_command(&b->wire, argv, argc);
    return end(b, q);
}

size_t st_redis_addv(struct st_redis_batch *b, unsigned flags, ...)
{
    struct st_slice argv[ARGS_MAX];
    const char *arg;
    size_t n = 0;
    va_list ap;

    va_start(ap, flags);
    while ((arg = va_arg(ap, const char *)) && n < ARGS_MAX)
        argv[n++] = st_slice_cstr(arg);
    va_end(ap);
    if (arg) /* our own mistake: use st_redis_add */
        b->failed = true;
    return st_redis_add(b, flags, n > 1 ? argv[1] : ST_NONE, argv, n);
}

size_t st_redis_add_script(struct st_redis_batch *b, unsigned flags, struct st_redis_script *s,
                           const struct st_slice *keys, size_t n_keys, const struct st_slice *args, size_t n_args)
{
    struct st_redis_request *q = begin(b, flags, n_keys ? keys[0] : ST_NONE);
    char count[24];

    if (!q)
        return b->n;
    st_redis_script_init(s);
    snprintf(count, sizeof(count), "%zu", n_keys);
    q->script = s;
    put_count(&b->wire, '*', 3 + n_keys + n_args);
    put_arg(&b->wire, ST_SLICE("EVALSHA", 7));
    put_arg(&b->wire, ST_SLICE(s->sha, 40));
    put_arg(&b->wire, st_slice_cstr(count));
    for (size_t i = 0; i < n_keys; i++)
        put_arg(&b->wire, keys[i]);
    for (size_t i = 0; i < n_args; i++)
        put_arg(&b->wire, args[i]);
    return end(b, q);
}

redisReply *st_redis_reply(const struct st_redis_batch *b, size_t i)
{
    return i < b->n && b->items[i].fate == ST_REDIS_DONE ? b->items[i].reply : NULL;
}
