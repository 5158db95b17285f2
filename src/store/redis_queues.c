/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_queues.c - counts per queue, and what is due next.
 *
 * asynq keeps a list or set for each state, so a count is the size of one.  Two things it does not tell apart are looked up: which of the
 * active jobs have not started yet (by a peek at each; there are never many), and which of the archived were cancelled (a set of ours).
 * What is due but still in `scheduled` or `retry` counts as pending: whether somebody has moved it yet is nobody's business.
 *
 * The job that waits longest is looked for among the last of the list, where the next ones are taken from.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_look.h"

/* The parts of an answer: see lua/counts.lua */
enum {
    C_PAUSED,
    C_PENDING,
    C_ACTIVE,
    C_SCHEDULED,
    C_SCHEDULED_DUE,
    C_RETRY,
    C_RETRY_DUE,
    C_ARCHIVED,
    C_CANCELLED,
    C_COMPLETED,
    C_FIRST_SCHEDULED,
    C_FIRST_RETRY,
    C_LAST,
    C_N
};

#define ACTIVE_MAX 10000        /* so many are looked at; the others count as running */
#define CLAIM_AGO  (50 * ST_MS) /* a claim before this call has seen what was due then */

struct tally {
    int64_t claimed;
    int64_t oldest_us;
};

/* ---- what must be looked up ------------------------------------------------------------------------------------- */

static void on_active(void *arg, size_t i, const struct st_redis_peek *p)
{
    (void)i;
    ((struct tally *)arg)->claimed += p->held_by_us && p->task.held == ST_CLAIMED;
}

struct active {
    struct st_redis_store *s;
    struct st_slice queue;
    struct tally *t;
};

static stint_code active_chunk(void *arg, const struct st_slice *ids, const double *scores, size_t n, stint_error *err)
{
    const struct active *a = arg;

    (void)scores;
    return st_redis_peek(a->s, a->queue, ids, n, false, on_active, a->t, err);
}

static void older(struct tally *t, int64_t us)
{
    if (us > 0 && (t->oldest_us == 0 || us < t->oldest_us))
        t->oldest_us = us;
}

static void on_waiting(void *arg, size_t i, const struct st_redis_peek *p)
{
    (void)i;
    older(arg, p->task.due_us ? p->task.due_us : p->created_us);
}

static stint_code look_up(struct st_redis_store *s, struct st_slice queue, const redisReply *r, struct tally *t,
                          stint_error *err)
{
    struct active a = {.s = s, .queue = queue, .t = t};
    const struct st_redis_walk w = {.queue = queue, .set = "active", .list = true, .most = ACTIVE_MAX};
    const redisReply *last = r->element[C_LAST];
    struct st_slice ids[32];
    size_t n = 0;

    for (; last->type == REDIS_REPLY_ARRAY && n < last->elements && n < 32; n++)
        ids[n] = st_redis_text(last->element[n]);
    if (n && st_redis_peek(s, queue, ids, n, false, on_waiting, t, err))
        return err->code;
    return st_redis_int(r->element[C_ACTIVE], 0) > 0 ? st_redis_walk(s, &w, active_chunk, &a, err) : STINT_OK;
}

/* ---- counts ------------------------------------------------------------------------------------------------------- */

static void add_counts(struct st_redis_batch *b, struct st_slice queue, struct st_slice now)
{
    static const char *const names[] = {"paused", "pending", "active", "scheduled", "retry", "archived", "completed"};
    struct st_redis_key room[8];
    struct st_slice keys[8];

    for (size_t i = 0; i < 7; i++)
        keys[i] = st_redis_key(&room[i], queue, names[i]);
    keys[7] = st_redis_own_key(&room[7], queue, "cancelled");
    st_redis_add_script(b, ST_REDIS_READ, st_redis_lua(ST_LUA_counts), keys, 8, &now, 1);
}

static void first_due(struct tally *t, const redisReply *r, int64_t n)
{
    const double score = st_redis_score_read(r);

    if (n > 0 && !isnan(score))
        older(t, st_redis_score_us(score));
}

static stint_code queue_fill(struct st_redis_store *s, struct st_queue_info *q, const redisReply *r, stint_error *err)
{
    struct tally t = {0};
    int64_t c[C_N];

    if (st_redis_reply_fail(s->r, r, err))
        return err->code;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != C_N)
        return st_fail(err, STINT_ESTORE, "the counts of queue %s make no sense", q->name);
    if (look_up(s, st_slice_cstr(q->name), r, &t, err))
        return err->code;
    for (int i = 0; i < C_N; i++)
        c[i] = st_redis_int(r->element[i], 0);
    first_due(&t, r->element[C_FIRST_SCHEDULED], c[C_SCHEDULED_DUE]);
    first_due(&t, r->element[C_FIRST_RETRY], c[C_RETRY_DUE]);
    q->paused = c[C_PAUSED] > 0;
    q->counts[ST_SHOW_PENDING] = c[C_PENDING] + c[C_SCHEDULED_DUE] + c[C_RETRY_DUE];
    q->counts[ST_SHOW_SCHEDULED] = c[C_SCHEDULED] - c[C_SCHEDULED_DUE];
    q->counts[ST_SHOW_RETRYING] = c[C_RETRY] - c[C_RETRY_DUE];
    q->counts[ST_SHOW_CLAIMED] = t.claimed < c[C_ACTIVE] ? t.claimed : c[C_ACTIVE];
    q->counts[ST_SHOW_RUNNING] = c[C_ACTIVE] - q->counts[ST_SHOW_CLAIMED];
    q->counts[ST_SHOW_SUCCEEDED] = c[C_COMPLETED];
    q->counts[ST_SHOW_CANCELLED] = c[C_CANCELLED];
    q->counts[ST_SHOW_FAILED] = c[C_ARCHIVED] - c[C_CANCELLED];
    q->oldest_due_us = t.oldest_us;
    return STINT_OK;
}

static stint_code queues(struct st_redis_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                         stint_error *err)
{
    struct st_redis_batch b;
    char now[ST_REDIS_SCORE] = "0";
    stint_code code;
    size_t n;

    if (st_redis_queues_read(s, true, err))
        return err->code;
    n = s->queues.n;
    *out = n ? calloc(n, sizeof(**out)) : NULL;
    if (n && !*out)
        return st_fail(err, STINT_ENOMEM, "out of memory for the queues");
    if (now_us)
        st_redis_score(now, now_us);
    st_redis_batch_init(&b);
    for (size_t i = 0; i < n; i++) {
        memcpy((*out)[i].name, s->queues.p[i], sizeof((*out)[i].name));
        add_counts(&b, st_slice_cstr((*out)[i].name), st_slice_cstr(now));
    }
    code = n ? st_redis_run(s->r, &b, err) : STINT_OK;
    for (size_t i = 0; !code && i < n; i++) {
        code = queue_fill(s, &(*out)[i], st_redis_reply(&b, i), err);
        if (code && st_redis_broken_said(err)) { /* nothing of it can be counted: the others all the same */
            st_redis_tell_broken(st_slice_cstr((*out)[i].name));
            code = STINT_OK;
        }
    }
    st_redis_batch_clear(&b);
    *n_out = code ? 0 : n;
    if (code) {
        free(*out);
        *out = NULL;
    }
    return code;
}

stint_code st_redis_op_queues(struct st_store *base, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                              stint_error *err)
{
    stint_error local = {0};

    *out = NULL;
    *n_out = 0;
    return st_redis_told(queues(st_redis_of(base), now_us, out, n_out, &local), &local, err);
}

/* ---- next due -------------------------------------------------------------------------------------------------------- */

static void add_next(struct st_redis_batch *b, const char *queue, const char *set, const char *after)
{
    struct st_redis_key key;

    st_redis_key(&key, st_slice_cstr(queue), set);
    st_redis_addv(b, ST_REDIS_READ, "ZRANGEBYSCORE", key.p, after, "+inf", "WITHSCORES", "LIMIT", "0", "1", NULL);
}

/* What came due since the claim before this was seen by none: it counts as still to come. */
static stint_code next_due(struct st_redis_store *s, int64_t now_us, int64_t *due_us, stint_error *err)
{
    char after[ST_REDIS_SCORE + 1] = "(";
    struct st_redis_batch b;
    struct tally t = {0};
    stint_code code;

    if (st_redis_queues_read(s, false, err))
        return err->code;
    st_redis_score(after + 1, now_us ? now_us : st_redis_store_now(s) - CLAIM_AGO);
    st_redis_batch_init(&b);
    for (size_t i = 0; i < s->queues.n; i++) {
        add_next(&b, s->queues.p[i], "scheduled", after);
        add_next(&b, s->queues.p[i], "retry", after);
    }
    code = b.n ? st_redis_run(s->r, &b, err) : STINT_OK;
    for (size_t i = 0; !code && i < b.n; i++) {
        const redisReply *r = st_redis_reply(&b, i);

        if (st_redis_broken(r))
            continue;
        code = st_redis_reply_fail(s->r, r, err);
        if (!code && r->elements == 2)
            first_due(&t, r->element[1], 1);
    }
    st_redis_batch_clear(&b);
    *due_us = t.oldest_us;
    return code;
}

stint_code st_redis_op_next_due(struct st_store *base, int64_t now_us, int64_t *due_us, stint_error *err)
{
    stint_error local = {0};

    *due_us = 0;
    return st_redis_told(next_due(st_redis_of(base), now_us, due_us, &local), &local, err);
}
