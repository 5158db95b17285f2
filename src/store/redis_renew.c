/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_renew.c - moving leases.
 *
 * As finish: one call per queue, all in one round trip, by the jobs' refs first.
 */
#include <stdlib.h>
#include <string.h>

#include "store/redis_int.h"

#define CALL_ITEMS 500

struct renewing {
    struct st_redis_store *s;
    int64_t now_us;
    struct st_renew *items;
    size_t n;
    struct st_slice *queues;
    size_t *order, *reply, *place; /* of each item: the call's answer, and which of it */
    bool *in;
    struct st_redis_args args;
};

static void put_be(char *p, int64_t v)
{
    for (int i = 7; i >= 0; i--, v >>= 8)
        p[i] = (char)v;
}

static void item_args(struct st_redis_args *a, const struct st_renew *r)
{
    char head[24];

    put_be(head, r->fence);
    put_be(head + 8, r->lease_us);
    put_be(head + 16, r->started_ago_us);
    st_redis_arg(a, r->id);
    st_redis_arg_copy(a, head, sizeof(head));
    st_redis_arg(a, r->progress);
}

static void call_add(struct renewing *w, size_t from)
{
    const size_t args = w->args.n;
    size_t n = 0, reply;

    st_redis_arg_num(&w->args, w->now_us);
    for (size_t i = from; i < w->n && n < CALL_ITEMS; i++)
        if (!w->in[i] && w->queues[i].p && st_slice_eq(w->queues[i], w->queues[from])) {
            item_args(&w->args, &w->items[i]);
            w->order[n] = i;
            w->place[i] = n++;
            w->in[i] = true;
        }
    reply = st_redis_add_lua(w->s, ST_REDIS_WRITE, ST_LUA_renew, w->queues[from], &w->args, args);
    for (size_t k = 0; k < n; k++)
        w->reply[w->order[k]] = reply;
}

/* One round over the items that have a queue; those that were not there lose it. */
static stint_code round_go(struct renewing *w, stint_error *err)
{
    struct st_redis_store *s = w->s;

    memset(w->in, 0, w->n * sizeof(*w->in));
    st_redis_args_clear(&w->args);
    st_redis_batch_reset(&s->b);
    for (size_t i = 0; i < w->n; i++)
        if (!w->in[i] && w->queues[i].p)
            call_add(w, i);
    if (s->b.n && st_redis_go_each(s, err))
        return err->code;
    for (size_t i = 0; i < w->n; i++) {
        const redisReply *r = w->in[i] ? st_redis_reply(&s->b, w->reply[i]) : NULL;
        const int64_t v = r && r->elements > w->place[i] + 1 ? st_redis_int(r->element[w->place[i] + 1], 0) : 0;

        if (!w->in[i])
            continue;
        w->items[i].verdict = v > 0 ? STINT_OK : st_redis_broken(r) ? STINT_EAGAIN : STINT_ELOST;
        w->items[i].cancel = v == 2;
        if (v >= 0)
            w->queues[i] = ST_NONE; /* nothing more to ask */
    }
    return STINT_OK;
}

/* Those that are still to be asked for, wherever they are. */
static stint_code look_for_rest(struct renewing *w, stint_error *err)
{
    struct st_slice *ids = calloc(2 * w->n + 1, sizeof(*ids));
    size_t m = 0;
    stint_code code = STINT_OK;

    if (!ids)
        return st_fail(err, STINT_ENOMEM, "no memory for %zu leases", w->n);
    for (size_t i = 0; i < w->n; i++)
        if (w->queues[i].p)
            ids[m++] = w->items[i].id;
    if (m)
        code = st_redis_locate(w->s, ids, NULL, m, ids + w->n, err);
    for (size_t i = 0, k = 0; !code && i < w->n; i++)
        if (w->queues[i].p)
            w->queues[i] = ids[w->n + k++];
    free(ids);
    return code || !m ? code : round_go(w, err);
}

static stint_code renew_all(struct renewing *w, stint_error *err)
{
    for (size_t i = 0; i < w->n; i++) {
        w->items[i].verdict = STINT_ELOST;
        w->items[i].cancel = false;
        w->queues[i] = st_redis_ref_queue(w->items[i].ref);
    }
    if (round_go(w, err))
        return err->code;
    for (size_t i = 0; i < w->n; i++)
        if (!w->in[i])
            w->queues[i] = ST_SLICE("", 0); /* no ref: to be looked for */
    return look_for_rest(w, err);
}

stint_code st_redis_op_renew(struct st_store *base, int64_t now_us, struct st_renew *items, size_t n, stint_error *err)
{
    struct renewing w = {.s = st_redis_of(base), .now_us = now_us, .items = items, .n = n};
    stint_error local = {0};
    stint_code code;

    err = err ? err : &local;
    st_redis_args_init(&w.args);
    w.queues = calloc(n + 1, sizeof(*w.queues));
    w.order = calloc(3 * (n + 1), sizeof(*w.order));
    w.in = calloc(n + 1, sizeof(*w.in));
    if (w.queues && w.order && w.in) {
        w.reply = w.order + n + 1;
        w.place = w.reply + n + 1;
        code = renew_all(&w, err);
    } else {
        code = st_fail(err, STINT_ENOMEM, "no memory for %zu leases", n);
    }
    st_redis_args_clear(&w.args);
    free(w.queues);
    free(w.order);
    free(w.in);
    return code;
}
