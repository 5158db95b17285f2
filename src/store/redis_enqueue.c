/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_enqueue.c - adding jobs, and what a job must not ask of this store.
 *
 * Each queue's jobs are one script call (large batches are several), so a batch is whole within a call but not across calls.  Ids
 * that are there already are looked at first: if one of them belongs to another job, nothing is written.  A call that the server
 * refuses after another has written makes the outcome unknown: whoever repeats it with the same ids adds what is missing.
 *
 * Ids and keys are unique within a queue by the scripts.  In the other queues that are known they are looked for just before, which two
 * producers at the same moment can slip through: a Cluster has no better.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_int.h"

#define CALL_JOBS  500
#define CALL_BYTES ((size_t)8 << 20)
#define JOB_ARGS   8

/* ---- what it cannot do -------------------------------------------------------------------------------- */

static stint_code job_check(const struct st_new_job *j, stint_error *err)
{
    if (!st_utf8_valid(j->id.p, j->id.len))
        return st_refuse(err, "use text", "an id in a redis store must be UTF-8");
    return STINT_OK;
}

/* ---- arguments ------------------------------------------------------------------------------------------ */

static unsigned flags_of(const struct st_new_job *j)
{
    unsigned flags = 0;

    if (j->max_attempts < 0)
        flags |= ST_RT_BY_TYPE;
    if (j->max_attempts == 0)
        flags |= ST_RT_NO_LIMIT;
    if (j->unique == ST_UNIQUE_ACTIVE)
        flags |= ST_RT_ACTIVE;
    if (j->unique == ST_UNIQUE_WINDOW)
        flags |= ST_RT_WINDOW;
    if (j->meta.len)
        flags |= ST_RT_META;
    return flags;
}

/* The packed field without created and due, which the script knows. */
static void arg_field(struct st_redis_args *a, const struct st_new_job *j)
{
    const struct st_redis_task t = {.flags = flags_of(j), .timeout_us = j->timeout_us};
    char field[ST_RT_FIXED - 16];
    struct st_buf b;

    st_buf_init(&b, ST_RT_FIXED);
    st_redis_task_pack(&t, &b);
    if (b.failed) {
        a->failed = true;
    } else {
        memcpy(field, b.p, 24);
        memcpy(field + 24, b.p + 40, sizeof(field) - 24);
        st_redis_arg_copy(a, field, sizeof(field));
    }
    st_buf_clear(&b);
}

static void arg_due(struct st_redis_args *a, const struct st_new_job *j)
{
    char text[ST_REDIS_NUM + 2];
    const int n = j->due_us ? snprintf(text, sizeof(text), "%lld", (long long)j->due_us)
                            : snprintf(text, sizeof(text), "+%lld", (long long)j->delay_us);

    st_redis_arg_copy(a, text, (size_t)n);
}

static void arg_msg(struct st_redis_args *a, const struct st_new_job *j, struct st_slice lock, struct st_buf *b)
{
    st_buf_reset(b);
    st_redis_msg_new(j, j->unique == ST_UNIQUE_ACTIVE ? lock : ST_NONE, b);
    if (b->failed)
        a->failed = true;
    else
        st_redis_arg_copy(a, b->p, b->len);
}

static void job_args(struct st_redis_args *a, const struct st_new_job *j, struct st_buf *b)
{
    struct st_redis_key key;
    const struct st_slice lock = j->unique ? st_redis_lock_key(&key, j) : ST_NONE;

    st_redis_arg(a, j->id);
    arg_msg(a, j, lock, b);
    arg_field(a, j);
    arg_due(a, j);
    st_redis_arg_copy(a, lock.p, lock.len);
    st_redis_arg_num(a, j->unique == ST_UNIQUE_WINDOW ? j->window_us : 0);
    st_redis_arg(a, j->meta);
    st_redis_arg(a, j->unique ? j->key : ST_NONE);
}

/* ---- one call: some jobs of one queue ------------------------------------------------------------------------ */

struct call {
    size_t first, n; /* of the order */
    size_t reply;
};

struct adding {
    struct st_redis_store *s;
    int64_t now_us;
    const struct st_new_job *jobs;
    size_t n;
    struct st_enqueued *out;
    size_t *order; /* jobs by queue, those that are duplicates already left out */
    size_t n_order;
    bool *done;
    struct call *calls;
    size_t n_calls;
    bool wrote; /* some of them have written */
    struct st_redis_args args;
};

/* Of the script. */
enum mode { MODE_NONE_THERE, MODE_THERE_IS_FINE, MODE_LOOK };

static void answer(struct st_enqueued *out, struct st_slice id, bool duplicate)
{
    const size_t n = id.len < ST_ID_MAX ? id.len : ST_ID_MAX;

    if (n)
        memcpy(out->id, id.p, n);
    out->id[n] = '\0';
    out->duplicate = duplicate;
}

/* Jobs of the first queue that is not in the order yet, behind it. */
static void order_more(struct adding *a, size_t from)
{
    for (size_t i = from; i < a->n; i++)
        if (!a->done[i] && st_slice_eq(a->jobs[i].queue, a->jobs[from].queue)) {
            a->done[i] = true;
            a->order[a->n_order++] = i;
        }
}

static void calls_cut(struct adding *a)
{
    for (size_t at = 0; at < a->n_order;) {
        struct call *c = &a->calls[a->n_calls++];
        const struct st_slice queue = a->jobs[a->order[at]].queue;
        size_t bytes = 0;

        *c = (struct call){.first = at};
        while (at < a->n_order && c->n < CALL_JOBS && bytes < CALL_BYTES &&
               st_slice_eq(a->jobs[a->order[at]].queue, queue)) {
            bytes += a->jobs[a->order[at]].payload.len;
            c->n++;
            at++;
        }
    }
}

static void call_add(struct adding *a, struct call *c, enum mode mode)
{
    const struct st_slice queue = a->jobs[a->order[c->first]].queue;
    const struct st_slice sadd[] = {st_slice_cstr("SADD"), st_slice_cstr(ST_REDIS_QUEUES), queue};
    const size_t from = a->args.n;
    struct st_buf b;

    st_buf_init(&b, (size_t)256 << 20);
    st_redis_arg_num(&a->args, a->now_us);
    st_redis_arg_num(&a->args, mode);
    for (size_t k = 0; k < c->n; k++)
        job_args(&a->args, &a->jobs[a->order[c->first + k]], &b);
    st_buf_clear(&b);
    if (mode != MODE_LOOK)
        st_redis_add(&a->s->b, ST_REDIS_WRITE, sadd[1], sadd, 3); /* each time: somebody may have emptied the store */
    c->reply = st_redis_add_lua(a->s, mode == MODE_LOOK ? ST_REDIS_READ : ST_REDIS_WRITE, ST_LUA_enqueue, queue,
                                &a->args, from);
}

/* ---- answers ------------------------------------------------------------------------------------------------- */

/* An id that is there: the same job, or another one? */
static stint_code same_job(const struct st_new_job *j, struct st_slice bytes, stint_error *err)
{
    struct st_redis_msg m;
    bool same;

    if (!st_redis_msg_read(bytes, &m))
        same = false;
    else
        same = st_slice_eq(m.type, j->type) && st_slice_eq(m.payload, j->payload);
    st_redis_msg_clear(&m);
    return same ? STINT_OK
                : st_fail(err, STINT_EEXISTS, "the id %.*s is taken by another job", (int)j->id.len, j->id.p);
}

/* again: nothing was written, because some were there; all of those are the same jobs. */
static stint_code call_take(struct adding *a, const struct call *c, bool *again, stint_error *err)
{
    const redisReply *r = st_redis_reply(&a->s->b, c->reply);

    *again = false;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != c->n + 1)
        return st_fail(err, STINT_ESTORE, "redis: the enqueue script answered something else");
    for (size_t k = 0; k < c->n; k++) {
        const size_t i = a->order[c->first + k];
        const redisReply *e = r->element[k + 1];
        const int64_t what = e->type == REDIS_REPLY_ARRAY && e->elements ? st_redis_int(e->element[0], 0) : 0;

        if (what == 1 && same_job(&a->jobs[i], st_redis_text(e->element[1]), err))
            return err->code;
        *again = *again || (e->type == REDIS_REPLY_ARRAY && what == 0);
        if (what == 2)
            answer(&a->out[i], st_redis_text(e->element[1]), true);
        else
            answer(&a->out[i], a->jobs[i].id, false);
    }
    return STINT_OK;
}

/* "Nothing was changed" is not an answer where a call has written before another failed. */
static stint_code whole_or_unknown(struct adding *a, stint_code code, stint_error *err)
{
    for (size_t i = 0; i < a->n_calls; i++) {
        const redisReply *r = st_redis_reply(&a->s->b, a->calls[i].reply);

        a->wrote = a->wrote || (r && r->type == REDIS_REPLY_ARRAY);
    }
    if (!code || code == STINT_EUNKNOWN || !a->wrote)
        return code;
    st_err_prefix(err, "some of the jobs were added");
    err->code = STINT_EUNKNOWN;
    return STINT_EUNKNOWN;
}

static stint_code run_calls(struct adding *a, enum mode mode, stint_error *err)
{
    bool *again = calloc(a->n_calls + 1, sizeof(*again));
    size_t n = 0;
    stint_code code = STINT_OK;

    if (!again)
        return st_fail(err, STINT_ENOMEM, "no memory for an enqueue");
    st_redis_batch_reset(&a->s->b);
    st_redis_args_clear(&a->args);
    for (size_t i = 0; i < a->n_calls; i++)
        call_add(a, &a->calls[i], mode);
    code = st_redis_go(a->s, err);
    if (mode != MODE_LOOK)
        code = whole_or_unknown(a, code, err);
    for (size_t i = 0; !code && i < a->n_calls; i++) {
        code = call_take(a, &a->calls[i], &again[i], err);
        if (again[i] || mode == MODE_LOOK)
            a->calls[n++] = a->calls[i];
    }
    a->n_calls = n; /* what is left to do */
    free(again);
    return code;
}

/* ---- the other queues -------------------------------------------------------------------------------------------- */

/* Is one of these ids in another queue?  One command per queue and call. */
static void ask_ids(struct adding *a, const struct call *c, struct st_slice other)
{
    const size_t from = a->args.n;
    struct st_redis_key key;
    struct st_slice first;

    st_redis_arg(&a->args, st_slice_cstr("EXISTS"));
    for (size_t k = 0; k < c->n; k++) {
        const struct st_slice name = st_redis_task_key(&key, other, a->jobs[a->order[c->first + k]].id);

        st_redis_arg_copy(&a->args, name.p, name.len);
    }
    first = a->args.failed ? ST_NONE : a->args.p[from + 1];
    if (!a->args.failed)
        st_redis_add(&a->s->b, ST_REDIS_READ, first, a->args.p + from, a->args.n - from);
}

static stint_code ids_elsewhere(struct adding *a, stint_error *err)
{
    st_redis_batch_reset(&a->s->b);
    for (size_t i = 0; i < a->n_calls; i++)
        for (size_t q = 0; q < a->s->queues.n; q++) {
            const struct st_slice other = st_slice_cstr(a->s->queues.p[q]);

            if (!st_slice_eq(other, a->jobs[a->order[a->calls[i].first]].queue))
                ask_ids(a, &a->calls[i], other);
        }
    if (a->s->b.n == 0)
        return STINT_OK;
    if (st_redis_go(a->s, err))
        return err->code;
    for (size_t i = 0; i < a->s->b.n; i++)
        if (st_redis_int(st_redis_reply(&a->s->b, i), 0) > 0)
            return a->n == 1 ? st_fail(err, STINT_EEXISTS, "the id %.*s is taken by a job in another queue",
                                       (int)a->jobs[0].id.len, a->jobs[0].id.p)
                             : st_fail(err, STINT_EEXISTS, "an id is taken by a job in another queue");
    return STINT_OK;
}

/* Where there are several calls, an id of a later one may be another job's: that must be known before the first writes. */
static stint_code ids_here(struct adding *a, stint_error *err)
{
    int64_t there = 0;

    if (a->n_calls < 2)
        return STINT_OK;
    st_redis_batch_reset(&a->s->b);
    for (size_t i = 0; i < a->n_calls; i++)
        ask_ids(a, &a->calls[i], a->jobs[a->order[a->calls[i].first]].queue);
    if (st_redis_go(a->s, err))
        return err->code;
    for (size_t i = 0; i < a->s->b.n; i++)
        there += st_redis_int(st_redis_reply(&a->s->b, i), 0);
    return there ? run_calls(a, MODE_LOOK, err) : STINT_OK;
}

/* Does a lock in another queue stand at this time? */
static stint_code holder_stands(struct adding *a, struct st_slice queue, struct st_slice holder, bool *stands,
                                stint_error *err)
{
    struct st_redis_key key;
    const struct st_slice name = st_redis_task_key(&key, queue, holder);
    const struct st_slice argv[] = {st_slice_cstr("HMGET"), name, st_slice_cstr("stint"), st_slice_cstr("state")};
    const int64_t now = a->now_us ? a->now_us : st_clock_real_us() + a->s->clock_off_us;
    const redisReply *r;
    struct st_redis_task t;
    struct st_slice state;

    st_redis_batch_reset(&a->s->b);
    st_redis_add(&a->s->b, ST_REDIS_READ, name, argv, 4);
    if (st_redis_go(a->s, err))
        return err->code;
    r = st_redis_reply(&a->s->b, 0);
    *stands = true;
    if (r->elements != 2 || !st_redis_task_unpack(st_redis_text(r->element[0]), &t))
        return STINT_OK;
    state = st_redis_text(r->element[1]);
    if (t.flags & ST_RT_WINDOW)
        *stands = t.unique_until_us > now;
    else if (t.flags & ST_RT_ACTIVE)
        *stands = !st_slice_is(state, "archived") && !st_slice_is(state, "completed");
    return STINT_OK;
}

/* Who holds this job's key in another queue? */
static stint_code key_elsewhere(struct adding *a, size_t i, stint_error *err)
{
    const struct st_new_job *j = &a->jobs[i];

    for (size_t q = 0; q < a->s->queues.n && !a->done[i]; q++) {
        struct st_new_job there = *j;
        struct st_redis_key key;
        struct st_slice argv[2] = {st_slice_cstr("GET")};
        char holder[ST_ID_MAX + 1] = "";
        bool stands = false;

        there.queue = st_slice_cstr(a->s->queues.p[q]);
        if (st_slice_eq(there.queue, j->queue))
            continue;
        argv[1] = st_redis_lock_key(&key, &there);
        st_redis_batch_reset(&a->s->b);
        st_redis_add(&a->s->b, ST_REDIS_READ, argv[1], argv, 2);
        if (st_redis_go(a->s, err))
            return err->code;
        if (st_redis_text(st_redis_reply(&a->s->b, 0)).len - 1 >= ST_ID_MAX)
            continue;
        memcpy(holder, st_redis_text(st_redis_reply(&a->s->b, 0)).p, st_redis_text(st_redis_reply(&a->s->b, 0)).len);
        if (holder_stands(a, there.queue, st_slice_cstr(holder), &stands, err))
            return err->code;
        if (stands) {
            answer(&a->out[i], st_slice_cstr(holder), true);
            a->done[i] = true;
        }
    }
    return STINT_OK;
}

/* ---- the operation -------------------------------------------------------------------------------------------------- */

static stint_code add_all(struct adding *a, stint_error *err)
{
    if (st_redis_queues_read(a->s, false, err))
        return err->code;
    for (size_t i = 0; i < a->n; i++)
        if (a->jobs[i].unique && a->s->queues.n > 0 && key_elsewhere(a, i, err))
            return err->code;
    for (size_t i = 0; i < a->n; i++)
        if (!a->done[i])
            order_more(a, i);
    calls_cut(a);
    if (ids_elsewhere(a, err) || ids_here(a, err) || run_calls(a, MODE_NONE_THERE, err))
        return err->code;
    if (a->n_calls && run_calls(a, MODE_THERE_IS_FINE, err))
        return err->code;
    for (size_t i = 0; i < a->n; i++)
        if (i == 0 || !st_slice_eq(a->jobs[i].queue, a->jobs[i - 1].queue))
            st_redis_queues_add(a->s, a->jobs[i].queue);
    return STINT_OK;
}

/* Two jobs of one batch that want the same id and are not the same: told before anything is written. */
static int by_id(const void *a, const void *b)
{
    const struct st_new_job *x = *(const struct st_new_job *const *)a, *y = *(const struct st_new_job *const *)b;
    const int order = st_slice_cmp(x->id, y->id);

    return order ? order : (x > y) - (x < y);
}

static bool same_work(const struct st_new_job *a, const struct st_new_job *b)
{
    return st_slice_eq(a->type, b->type) && st_slice_eq(a->queue, b->queue) && st_slice_eq(a->payload, b->payload);
}

static stint_code ids_differ(const struct st_new_job *jobs, size_t n, stint_error *err)
{
    const struct st_new_job **sorted = n > 1 ? malloc(n * sizeof(*sorted)) : NULL;
    stint_code code = STINT_OK;

    if (n > 1 && !sorted)
        return st_fail(err, STINT_ENOMEM, "no memory for an enqueue of %zu jobs", n);
    for (size_t i = 0; i < n && sorted; i++)
        sorted[i] = &jobs[i];
    if (sorted)
        qsort(sorted, n, sizeof(*sorted), by_id);
    for (size_t i = 1; !code && i < n; i++)
        if (st_slice_eq(sorted[i - 1]->id, sorted[i]->id) && !same_work(sorted[i - 1], sorted[i]))
            code = st_fail(err, STINT_EEXISTS, "the id %.*s is taken by another job", (int)sorted[i]->id.len,
                           sorted[i]->id.p);
    free(sorted);
    return code;
}

stint_code st_redis_op_enqueue(struct st_store *base, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, stint_error *err)
{
    struct adding a = {.s = st_redis_of(base), .now_us = now_us, .jobs = jobs, .n = n, .out = out};
    stint_error local = {0};
    stint_code code = STINT_OK;

    err = err ? err : &local;
    for (size_t i = 0; i < n; i++)
        if (job_check(&jobs[i], err))
            return err->code;
    if (ids_differ(jobs, n, err))
        return err->code;
    st_redis_args_init(&a.args);
    a.order = calloc(n, sizeof(*a.order));
    a.done = calloc(n, sizeof(*a.done));
    a.calls = calloc(n, sizeof(*a.calls));
    if (a.order && a.done && a.calls)
        code = add_all(&a, err);
    else
        code = st_fail(err, STINT_ENOMEM, "no memory for an enqueue of %zu jobs", n);
    st_redis_args_clear(&a.args);
    free(a.order);
    free(a.done);
    free(a.calls);
    return code;
}
