/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_acquire.c - one job by its id; and what a worker holds without knowing it.
 */
#include <stdlib.h>
#include <string.h>

#include "store/redis_int.h"

#define TRIES 8 /* somebody else changes the message in between */
enum { WHY_CHANGED = -1, WHY_RULES = -2 };

/* What is told of an attempt whose worker said nothing. */
static void told_nothing(struct st_redis_args *a, const char *message)
{
    const struct st_redis_run r = {.exit_code = -1, .message = st_slice_cstr(message)};
    struct st_buf b;

    st_buf_init(&b, 4096);
    st_redis_run_told(&b, &r);
    if (b.failed)
        a->failed = true;
    else
        st_redis_arg_copy(a, b.p, b.len);
    st_buf_clear(&b);
}

struct acquiring {
    struct st_redis_store *s;
    struct st_slice id, queue;
    const struct st_claim_req *req;
    const struct st_type_rule *rule;
    char digest[17];
    int max_attempts;
    bool parent_paused; /* in a Cluster it is in another slot: as it was read before */
};

static stint_code refused(struct acquiring *a, enum st_refusal what, enum st_refusal *why, stint_error *err)
{
    *why = what;
    if (what == ST_REFUSED_UNKNOWN)
        return st_fail(err, STINT_ENOTFOUND, "there is no job %.*s", (int)a->id.len, a->id.p);
    return st_fail(err, STINT_ESTATE, "job %.*s cannot be taken: %s", (int)a->id.len, a->id.p, st_refusal_name(what));
}

/* The message, for the rule and the budget; *there false: no such job. */
static stint_code look(struct acquiring *a, bool *there, stint_error *err)
{
    struct st_redis_key key, paused;
    const struct st_slice name = st_redis_task_key(&key, a->queue, a->id);
    const struct st_slice get[] = {st_slice_cstr("HMGET"), name, st_slice_cstr("msg"), st_slice_cstr("stint")};
    const struct st_slice exists[] = {st_slice_cstr("EXISTS"),
                                      st_redis_key(&paused, st_queue_parent(a->queue), "paused")};
    struct st_redis_store *s = a->s;
    struct st_redis_task t;
    struct st_redis_msg m;
    struct st_slice msg;

    st_redis_batch_reset(&s->b);
    st_redis_add(&s->b, ST_REDIS_READ, name, get, 4);
    st_redis_add(&s->b, ST_REDIS_READ, exists[1], exists, 2);
    if (st_redis_go(s, err))
        return err->code;
    msg = st_redis_text(st_redis_reply(&s->b, 0)->element[0]);
    a->parent_paused = st_redis_int(st_redis_reply(&s->b, 1), 0) > 0;
    st_redis_task_unpack(st_redis_text(st_redis_reply(&s->b, 0)->element[1]), &t);
    *there = st_redis_msg_read(msg, &m);
    if (!*there)
        return STINT_OK;
    a->rule = st_rule_find(a->req->types, a->req->n_types, a->queue, m.type);
    a->max_attempts = st_redis_policy(a->rule ? &a->rule->policy : &st_policy_default, &m, &t).max_attempts;
    st_redis_digest(msg, a->digest);
    st_redis_msg_clear(&m);
    return STINT_OK;
}

static size_t script_add(struct acquiring *a, struct st_redis_args *args, const char *rules, int64_t lease_us)
{
    struct st_redis_keys keys;
    struct st_redis_key parent;
    struct st_slice all[ST_RK_N + 1];

    st_redis_arg_num(args, a->req->now_us);
    st_redis_arg(args, a->id);
    st_redis_arg(args, st_slice_cstr(a->digest));
    st_redis_arg_num(args, lease_us);
    st_redis_arg(args, a->req->worker);
    st_redis_arg(args, st_slice_cstr(rules));
    st_redis_arg_num(args, a->max_attempts);
    told_nothing(args, "lease expired");
    st_redis_arg_num(args, a->parent_paused);
    st_redis_keys(&keys, a->queue);
    memcpy(all, keys.k, sizeof(keys.k));
    all[ST_RK_N] =
        st_redis_is_cluster(a->s->r) ? all[ST_RK_PAUSED] : st_redis_key(&parent, st_queue_parent(a->queue), "paused");
    if (args->failed)
        a->s->b.failed = true;
    return st_redis_add_script(&a->s->b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_acquire), all, ST_RK_N + 1, args->p,
                               args->n);
}

/* *why < 0: once more. */
static stint_code try_once(struct acquiring *a, struct st_job **out, int *why, stint_error *err)
{
    struct st_slice text;
    const char *rules = st_redis_rules_ref(a->s, a->req->types, a->req->n_types, &text);
    const int64_t lease_us = a->rule && a->rule->lease_us ? a->rule->lease_us : a->req->lease_us;
    const struct st_type_rule *rule;
    struct st_redis_args args;
    const redisReply *r;
    struct st_redis_claimed c;

    st_redis_args_init(&args);
    st_redis_batch_reset(&a->s->b);
    script_add(a, &args, rules, lease_us);
    st_redis_args_clear(&args); /* the batch has copied them */
    if (st_redis_go(a->s, err))
        return err->code;
    r = st_redis_reply(&a->s->b, 0);
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 2)
        return st_fail(err, STINT_ESTORE, "redis: the acquire script answered something else");
    *why = (int)st_redis_int(r->element[1], ST_REFUSED_UNKNOWN);
    if (*why == WHY_RULES)
        return st_redis_rules_write(a->s, a->queue, rules, text, err);
    if (*why || r->elements < 5)
        return STINT_OK;
    c = (struct st_redis_claimed){.queue = a->queue,
                                  .id = st_redis_text(r->element[2]),
                                  .msg = st_redis_text(r->element[3]),
                                  .field = st_redis_text(r->element[4]),
                                  .meta = r->elements > 5 ? st_redis_text(r->element[5]) : ST_NONE,
                                  .now_us = st_redis_int(r->element[0], 0)};
    return st_redis_job(&c, a->req->types, a->req->n_types, lease_us, out, &rule, err);
}

stint_code st_redis_op_acquire(struct st_store *base, struct st_slice id, const struct st_claim_req *req,
                               struct st_job **out, enum st_refusal *why, stint_error *err)
{
    struct acquiring a = {.s = st_redis_of(base), .id = id, .req = req};
    stint_error local = {0};
    int no = WHY_CHANGED;

    err = err ? err : &local;
    *out = NULL;
    *why = ST_REFUSED_NOT;
    if (st_redis_rights(a.s, err))
        return err->code;
    for (int i = 0; i < TRIES && no < 0; i++) {
        bool there = false;

        if (st_redis_locate(a.s, &id, NULL, 1, &a.queue, err) || (a.queue.p && look(&a, &there, err)))
            return err->code;
        if (!there)
            return refused(&a, ST_REFUSED_UNKNOWN, why, err);
        if (try_once(&a, out, &no, err))
            return err->code;
    }
    if (no < 0)
        return st_fail(err, STINT_EAGAIN, "job %.*s changes all the time", (int)id.len, id.p);
    if (no == 0)
        return *out ? STINT_OK
                    : st_fail(err, STINT_ESTORE, "the message of job %.*s cannot be read", (int)id.len, id.p);
    return refused(&a, (enum st_refusal)no, why, err);
}

/* ---- disown ------------------------------------------------------------------------------------------------------- */

stint_code st_redis_op_disown(struct st_store *base, int64_t now_us, struct st_slice worker,
                              const struct st_slice *known, size_t n, size_t *n_given, stint_error *err)
{
    struct st_redis_store *s = st_redis_of(base);
    struct st_redis_args args;
    stint_error local = {0};

    err = err ? err : &local;
    *n_given = 0;
    if (st_redis_queues_read(s, true, err))
        return err->code;
    st_redis_args_init(&args);
    st_redis_arg_num(&args, now_us);
    st_redis_arg(&args, worker);
    told_nothing(&args, "given back: its worker does not know of it");
    for (size_t i = 0; i < n; i++)
        st_redis_arg(&args, known[i]);
    st_redis_batch_reset(&s->b);
    for (size_t i = 0; i < s->queues.n; i++)
        st_redis_add_lua(s, ST_REDIS_WRITE, ST_LUA_disown, st_slice_cstr(s->queues.p[i]), &args, 0);
    st_redis_args_clear(&args);
    if (s->b.n && st_redis_go_each(s, err))
        return err->code;
    for (size_t i = 0; i < s->b.n; i++) {
        const redisReply *r = st_redis_reply(&s->b, i);

        *n_given += r->elements == 2 ? (size_t)st_redis_int(r->element[1], 0) : 0;
    }
    return STINT_OK;
}
