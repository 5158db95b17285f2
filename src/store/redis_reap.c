/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_reap.c - jobs whose worker let their lease end: ours, and those of stock asynq servers.
 *
 * A script says which they are, with all that is needed to decide; what is decided here is written by another, only where neither
 * lease nor message has changed in between.
 */
#include <stdlib.h>
#include <string.h>

#include "base/id.h"
#include "store/redis_int.h"

#define PARTS           6
#define SKIPS_FREE      3 /* a prefetched job may be lost so often before it counts as run */
#define FOREIGN_MESSAGE "asynq: task lease expired"

struct candidate {
    struct st_slice queue, id, score, msg, field, rules,
        digest; /* in the answers of the first batch, kept; msg has no payload */
    double lease;
    enum st_outcome outcome;
    int64_t delay_us;
    bool ours;
    struct st_redis_task task;
    size_t reply, place;
};

struct reaping {
    struct st_redis_store *s;
    int64_t now_us;
    struct st_slice me;
    struct candidate *c;
    size_t n;
    struct st_redis_args args;
};

/* ---- finding ------------------------------------------------------------------------------------------------- */

static int oldest_first(const void *a, const void *b)
{
    const double x = ((const struct candidate *)a)->lease, y = ((const struct candidate *)b)->lease;

    return x < y ? -1 : x > y;
}

static stint_code candidates_take(struct reaping *w, size_t max, stint_error *err)
{
    struct st_redis_batch *b = &w->s->b;
    size_t total = 0;

    for (size_t i = 0; i < b->n; i++)
        total += st_redis_reply(b, i)->elements / PARTS;
    w->c = calloc(total + 1, sizeof(*w->c));
    if (!w->c)
        return st_fail(err, STINT_ENOMEM, "no memory to reap");
    for (size_t i = 0; i < b->n; i++) {
        const redisReply *r = st_redis_reply(b, i);

        for (size_t k = 1; k + PARTS <= r->elements; k += PARTS) {
            struct candidate *c = &w->c[w->n++];
            struct st_slice *to[PARTS] = {&c->id, &c->score, &c->msg, &c->field, &c->rules, &c->digest};

            c->queue = st_redis_ref_queue(st_redis_ref(st_slice_cstr(w->s->queues.p[i])));
            for (int p = 0; p < PARTS; p++) {
                const struct st_slice text = st_redis_text(r->element[k + (size_t)p]);

                st_redis_arg_copy(&w->args, text.p, text.len);
                *to[p] = w->args.failed ? ST_SLICE("", 0) : w->args.p[w->args.n - 1];
            }
            c->lease = strtod(c->score.len ? c->score.p : "0", NULL);
        }
    }
    if (w->args.failed)
        return st_fail(err, STINT_ENOMEM, "no memory to reap");
    qsort(w->c, w->n, sizeof(*w->c), oldest_first);
    w->n = w->n < max ? w->n : max;
    return STINT_OK;
}

static stint_code find(struct reaping *w, size_t max, stint_error *err)
{
    struct st_redis_store *s = w->s;
    struct st_redis_args args;

    if (st_redis_queues_read(s, true, err))
        return err->code;
    st_redis_args_init(&args);
    st_redis_arg_num(&args, w->now_us);
    st_redis_arg(&args, w->me);
    st_redis_arg_num(&args, (int64_t)(max < 1000 ? max : 1000));
    st_redis_batch_reset(&s->b);
    for (size_t i = 0; i < s->queues.n; i++)
        st_redis_add_lua(s, ST_REDIS_READ, ST_LUA_expired, st_slice_cstr(s->queues.p[i]), &args, 0);
    st_redis_args_clear(&args);
    if (s->b.n && st_redis_go_each(s, err))
        return err->code;
    return candidates_take(w, max, err);
}

/* ---- deciding ------------------------------------------------------------------------------------------------- */

static double unit(void)
{
    uint32_t r;

    st_random(&r, sizeof(r));
    return r / 4294967296.0;
}

static void decide_run(struct candidate *c, const struct st_policy *p, const struct st_redis_msg *m)
{
    const int attempt = m->retried < ST_ATTEMPTS_MAX ? m->retried + 1 : ST_ATTEMPTS_MAX;

    c->outcome = ST_OUT_FAILED;
    if (!st_policy_may_retry(p->max_attempts, attempt))
        return;
    c->outcome = ST_OUT_RETRY;
    c->delay_us = st_policy_delay(p, attempt, unit());
}

static void decide(struct candidate *c)
{
    struct st_policy p = st_policy_default;
    struct st_redis_msg m;

    c->ours = c->field.len > 0 && st_redis_task_unpack(c->field, &c->task);
    if (!st_redis_msg_read(c->msg, &m)) {
        c->outcome = ST_OUT_FAILED;
        return;
    }
    if (!c->ours) {
        st_redis_task_unpack(ST_NONE, &c->task);
        p.backoff = ST_BACKOFF_ASYNQ;
        p.max_us = INT64_MAX;
        p = st_redis_policy(&p, &m, &c->task);
        decide_run(c, &p, &m);
    } else if (c->task.flags & ST_RT_CANCEL) {
        c->outcome = ST_OUT_CANCELLED;
    } else if (c->task.held == ST_CLAIMED && c->task.skips < SKIPS_FREE) {
        c->outcome = ST_OUT_RELEASED;
    } else {
        p = st_redis_rules_policy(c->rules, c->queue, m.type);
        p = st_redis_policy(&p, &m, &c->task);
        decide_run(c, &p, &m);
    }
    st_redis_msg_clear(&m);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static void item_args(struct st_redis_args *a, const struct candidate *c)
{
    const struct st_slice message = st_slice_cstr(c->ours ? "lease expired" : FOREIGN_MESSAGE);
    const struct st_redis_run r = {.exit_code = -1, .message = message};
    struct st_buf b;

    st_buf_init(&b, 4096);
    st_redis_run_told(&b, &r);
    st_redis_arg(a, c->id);
    st_redis_arg(a, c->score);
    st_redis_arg(a, c->digest);
    st_redis_arg_num(a, c->outcome);
    st_redis_arg_num(a, c->delay_us);
    st_redis_arg(a, message);
    st_redis_arg_copy(a, b.p, b.len);
    st_buf_clear(&b);
}

static void queue_add(struct reaping *w, size_t from, struct st_redis_args *args, bool *in)
{
    const size_t first = args->n;
    size_t place = 2, reply;

    st_redis_arg_num(args, w->now_us);
    for (size_t i = from; i < w->n; i++)
        if (!in[i] && st_slice_eq(w->c[i].queue, w->c[from].queue)) {
            item_args(args, &w->c[i]);
            w->c[i].place = place++;
            in[i] = true;
        }
    reply = st_redis_add_lua(w->s, ST_REDIS_WRITE, ST_LUA_reap, w->c[from].queue, args, first);
    for (size_t i = from; i < w->n; i++)
        if (st_slice_eq(w->c[i].queue, w->c[from].queue))
            w->c[i].reply = reply;
}

static stint_code write_all(struct reaping *w, stint_error *err)
{
    struct st_redis_args args;
    bool *in = calloc(w->n + 1, sizeof(*in));
    stint_code code;

    if (!in)
        return st_fail(err, STINT_ENOMEM, "no memory to reap");
    st_redis_args_init(&args);
    st_redis_batch_reset(&w->s->b);
    for (size_t i = 0; i < w->n; i++)
        if (!in[i])
            queue_add(w, i, &args, in);
    code = st_redis_go_each(w->s, err);
    st_redis_args_clear(&args);
    free(in);
    return code;
}

static void tell(const struct reaping *w, struct st_reaped *out, size_t *n_out)
{
    for (size_t i = 0; i < w->n; i++) {
        const struct candidate *c = &w->c[i];
        const redisReply *r = st_redis_reply(&w->s->b, c->reply);
        const int64_t state = r && c->place < r->elements ? st_redis_int(r->element[c->place], 0) : 0;
        struct st_reaped *o = &out[*n_out];

        if (state <= 0 || state >= ST_STATE_N || c->id.len > ST_ID_MAX)
            continue; /* somebody was faster */
        memset(o, 0, sizeof(*o));
        memcpy(o->id, c->id.p, c->id.len);
        o->fence = c->task.fence;
        memcpy(o->worker, c->task.worker, sizeof(o->worker));
        o->from = c->ours ? c->task.held : ST_RUNNING;
        o->to = (enum st_state)state;
        ++*n_out;
    }
}

stint_code st_redis_op_reap(struct st_store *base, int64_t now_us, struct st_slice me, struct st_reaped *out,
                            size_t max, size_t *n_out, stint_error *err)
{
    struct reaping w = {.s = st_redis_of(base), .now_us = now_us, .me = me};
    stint_error local = {0};
    stint_code code;

    err = err ? err : &local;
    *n_out = 0;
    st_redis_args_init(&w.args);
    code = st_redis_rights(w.s, err);
    if (!code)
        code = find(&w, max, err);
    if (!code && w.n) {
        for (size_t i = 0; i < w.n; i++)
            decide(&w.c[i]);
        code = write_all(&w, err);
        if (!code)
            tell(&w, out, n_out);
    }
    st_redis_args_clear(&w.args);
    free(w.c);
    return code;
}
