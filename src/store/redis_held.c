/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_held.c - what a worker holds, over all queues.
 *
 * Nothing lists a worker's jobs: what is active is looked through.  That is only done for people to look at, and when a worker
 * is known to have died.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "store/redis_look.h"

/* Names of all queues, to be walked through while others may be read. */
static stint_code names_copy(struct st_redis_store *s, char (**out)[ST_NAME_MAX + 1], size_t *n, stint_error *err)
{
    if (st_redis_queues_read(s, false, err))
        return err->code;
    *out = calloc(s->queues.n + 1, sizeof(**out));
    if (!*out)
        return st_fail(err, STINT_ENOMEM, "no memory for the names of %zu queues", s->queues.n);
    memcpy(*out, s->queues.p, s->queues.n * sizeof(**out));
    *n = s->queues.n;
    return STINT_OK;
}

static stint_code each_queue(struct st_redis_store *s, struct st_redis_walk *w, struct st_slice *queue,
                             st_redis_chunk_fn fn, void *arg, stint_error *err)
{
    char(*names)[ST_NAME_MAX + 1] = NULL;
    size_t n = 0;
    stint_code code = names_copy(s, &names, &n, err);

    for (size_t i = 0; !code && i < n; i++) {
        *queue = w->queue = st_slice_cstr(names[i]);
        code = st_redis_walk(s, w, fn, arg, err);
    }
    free(names);
    return code;
}

/* ---- looking at them ------------------------------------------------------------------------------------------ */

struct held {
    struct st_redis_store *s;
    struct st_slice queue, worker;
    size_t left; /* so many may still be looked at */
    bool enough;
    st_redis_held_fn fn;
    void *arg;
    const struct st_slice *ids;
    struct st_slice mine[ST_REDIS_CHUNK];
    size_t n;
};

static void on_peek(void *arg, size_t i, const struct st_redis_peek *p)
{
    struct held *h = arg;

    if (p->held_by_us && p->task.held == ST_RUNNING && st_slice_is(h->worker, p->task.worker))
        h->mine[h->n++] = h->ids[i];
}

static stint_code on_chunk(void *arg, const struct st_slice *ids, const double *scores, size_t n, stint_error *err)
{
    struct held *h = arg;
    int64_t now_us = 0;

    (void)scores;
    h->ids = ids;
    h->n = 0;
    n = n < h->left ? n : h->left;
    h->left -= n;
    h->enough = h->left == 0;
    if (st_redis_peek(h->s, h->queue, ids, n, false, on_peek, h, err))
        return err->code;
    for (size_t i = 0; i < h->n; i++) {
        struct st_job_info info;

        if (st_redis_look(h->s, h->queue, &h->mine[i], 1, ST_LOOK_PAYLOAD, &now_us, &info, err))
            return err->code;
        if (info.id)
            h->fn(h->arg, &info);
        st_job_info_clear(&info);
    }
    return STINT_OK;
}

void st_redis_each_held(struct st_redis_store *s, struct st_slice worker, size_t most, st_redis_held_fn fn, void *arg)
{
    struct held *h = calloc(1, sizeof(*h));
    stint_error err = {0};

    if (!h)
        return;
    *h = (struct held){.s = s, .worker = worker, .left = most, .fn = fn, .arg = arg};
    if (each_queue(s, &(struct st_redis_walk){.set = "active", .list = true, .enough = &h->enough}, &h->queue, on_chunk,
                   h, &err))
        st_log(ST_LOG_DEBUG, "worker.held_unknown", ST_FE(&err));
    free(h);
}

/* ---- ending their leases ------------------------------------------------------------------------------------------ */

struct ending {
    struct st_redis_store *s;
    struct st_slice queue, worker, now;
    struct st_redis_key names[ST_REDIS_CHUNK + 1];
    struct st_slice keys[ST_REDIS_CHUNK + 1], args[ST_REDIS_CHUNK + 2];
};

static stint_code end_chunk(void *arg, const struct st_slice *ids, const double *scores, size_t n, stint_error *err)
{
    struct ending *e = arg;
    struct st_redis_batch b;
    stint_code code;

    (void)scores;
    e->keys[0] = st_redis_key(&e->names[0], e->queue, "lease");
    e->args[0] = e->now;
    e->args[1] = e->worker;
    for (size_t i = 0; i < n; i++) {
        e->keys[i + 1] = st_redis_task_key(&e->names[i + 1], e->queue, ids[i]);
        e->args[i + 2] = ids[i];
    }
    st_redis_batch_init(&b);
    st_redis_add_script(&b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_stop_worker), e->keys, n + 1, e->args, n + 2);
    code = st_redis_run(e->s->r, &b, err);
    if (!code)
        code = st_redis_reply_fail(e->s->r, st_redis_reply(&b, 0), err);
    st_redis_batch_clear(&b);
    return code;
}

stint_code st_redis_expire_leases(struct st_redis_store *s, int64_t now_us, struct st_slice worker, stint_error *err)
{
    struct ending *e = malloc(sizeof(*e));
    char now[ST_REDIS_NUM];
    stint_code code;

    if (!e)
        return st_fail(err, STINT_ENOMEM, "no memory to end a worker's leases");
    e->s = s;
    e->worker = worker;
    e->now = st_redis_num(now, now_us);
    code = each_queue(s, &(struct st_redis_walk){.set = "active", .list = true}, &e->queue, end_chunk, e, err);
    free(e);
    return code;
}
