/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_finish.c - writing outcomes.
 *
 * One script call per queue (and per some hundred jobs), all of them in one round trip.  An outcome carries no queue, so the job's ref
 * says where to look first; a job that is not there is looked for in all queues that are known.
 */
#include <stdlib.h>
#include <string.h>

#include "store/redis_int.h"

#define CALL_ITEMS  500
#define CALL_BYTES  ((size_t)8 << 20)
#define MESSAGE_MAX 16384

struct st_redis_call {
    struct st_slice queue;
    size_t first, n; /* of the order */
    size_t reply;
};

/* ---- arguments ------------------------------------------------------------------------------------------------ */

enum { PART_RESULT = 1, PART_REF = 2, PART_MESSAGE = 4, PART_TOLD = 8, PART_NO_HANDLER = 16 };

static void put_be(char *p, int64_t v)
{
    for (int i = 7; i >= 0; i--, v >>= 8)
        p[i] = (char)v;
}

static unsigned parts_of(const struct st_finish *f)
{
    unsigned parts = 0;

    if (f->result.p)
        parts |= PART_RESULT;
    if (f->result_ref.p)
        parts |= PART_REF;
    if (f->message.len && f->outcome != ST_OUT_SUCCEEDED)
        parts |= PART_MESSAGE;
    if (f->held_as == (enum st_state)ST_REDIS_NO_HANDLER)
        return parts | PART_NO_HANDLER;
    if (f->outcome != ST_OUT_SUCCEEDED || f->exit_code != -1 || f->signal || f->max_rss_kb || f->log.p || f->log_tail.p)
        parts |= PART_TOLD;
    return parts;
}

static void arg_head(struct st_redis_args *a, const struct st_finish *f, unsigned parts)
{
    char head[27];

    put_be(head, f->fence);
    head[8] = (char)f->outcome;
    head[9] = (char)f->kind;
    head[10] = (char)parts;
    put_be(head + 11, f->delay_us);
    put_be(head + 19, f->started_ago_us);
    st_redis_arg_copy(a, head, sizeof(head));
}

/* A message travels in a protobuf string, which a stock program refuses if it is not UTF-8. */
static void arg_message(struct st_redis_args *a, struct st_slice s)
{
    const size_t len = s.len > MESSAGE_MAX ? st_utf8_cut(s.p, s.len, MESSAGE_MAX) : s.len;
    char *p;

    st_redis_arg_copy(a, s.p, len);
    if (a->failed || st_utf8_valid(s.p, len))
        return;
    p = (char *)a->p[a->n - 1].p; /* our own copy */
    for (size_t i = 0; i < len;) {
        const size_t n = st_utf8_len(p + i, len - i);

        if (!n)
            p[i] = '?';
        i += n ? n : 1;
    }
}

static void arg_told(struct st_redis_args *a, const struct st_finish *f)
{
    const struct st_redis_run r = {.exit_code = f->exit_code,
                                   .signal = f->signal,
                                   .max_rss_kb = f->max_rss_kb,
                                   .message = f->message,
                                   .log = f->log,
                                   .log_tail = f->log_tail};
    struct st_buf b;

    st_buf_init(&b, (size_t)1 << 20);
    st_redis_run_told(&b, &r);
    if (b.failed)
        a->failed = true;
    else
        st_redis_arg_copy(a, b.p, b.len);
    st_buf_clear(&b);
}

static void item_args(struct st_redis_args *a, const struct st_finish *f)
{
    const unsigned parts = parts_of(f);

    st_redis_arg(a, f->id);
    arg_head(a, f, parts);
    if (parts & PART_RESULT)
        st_redis_arg(a, f->result);
    if (parts & PART_REF)
        st_redis_arg(a, f->result_ref);
    if (parts & PART_MESSAGE)
        arg_message(a, f->message);
    if (parts & PART_TOLD)
        arg_told(a, f);
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

static void call_add(struct st_redis_store *s, struct st_redis_finishing *f, struct st_redis_call *c, int64_t now_us)
{
    const size_t from = f->args.n;

    st_redis_arg_num(&f->args, now_us);
    for (size_t k = 0; k < c->n; k++)
        item_args(&f->args, &f->items[f->order[c->first + k]]);
    c->reply = st_redis_add_lua(s, ST_REDIS_WRITE, ST_LUA_finish, c->queue, &f->args, from);
}

/* The items of one queue that are in no call yet, up to what fits. */
static void call_gather(struct st_redis_finishing *f, struct st_redis_call *c, bool *in, size_t from, size_t at)
{
    size_t bytes = 0;

    *c = (struct st_redis_call){.queue = f->queues[from], .first = at};
    for (size_t i = from; i < f->n && c->n < CALL_ITEMS && bytes < CALL_BYTES; i++) {
        if (in[i] || !f->queues[i].p || !st_slice_eq(f->queues[i], c->queue))
            continue;
        in[i] = true;
        bytes += f->items[i].result.len + f->items[i].log_tail.len;
        f->order[at + c->n++] = i;
    }
}

stint_code st_redis_finishing_add(struct st_redis_store *s, struct st_redis_finishing *f, int64_t now_us,
                                  stint_error *err)
{
    bool *in = calloc(f->n + 1, sizeof(*in));
    size_t at = 0;

    st_redis_args_init(&f->args);
    f->n_calls = 0;
    f->order = calloc(f->n + 1, sizeof(*f->order));
    f->calls = calloc(f->n + 1, sizeof(*f->calls));
    if (!in || !f->order || !f->calls) {
        free(in);
        return st_fail(err, STINT_ENOMEM, "no memory for %zu outcomes", f->n);
    }
    for (size_t i = 0; i < f->n; i++) {
        struct st_redis_call *c = &f->calls[f->n_calls];

        if (in[i] || !f->queues[i].p)
            continue;
        call_gather(f, c, in, i, at);
        call_add(s, f, c, now_us);
        at += c->n;
        f->n_calls++;
    }
    free(in);
    return STINT_OK;
}

static void item_take(struct st_finish *item, int64_t verdict, bool *missing)
{
    *missing = verdict == -1;
    item->verdict = verdict > 0 && verdict < ST_STATE_N ? STINT_OK : STINT_ELOST;
    if (!item->verdict)
        item->state = (enum st_state)verdict;
}

/* Its queue is broken: the outcomes wait until it is not, and hold up no other queue's. */
static void call_later(struct st_redis_finishing *f, const struct st_redis_call *c, bool *missing)
{
    for (size_t k = 0; k < c->n; k++) {
        f->items[f->order[c->first + k]].verdict = STINT_EAGAIN;
        missing[f->order[c->first + k]] = false;
    }
    st_redis_tell_broken(c->queue);
}

stint_code st_redis_finishing_take(struct st_redis_store *s, struct st_redis_finishing *f, bool *missing,
                                   stint_error *err)
{
    for (size_t i = 0; i < f->n_calls; i++) {
        const struct st_redis_call *c = &f->calls[i];
        const redisReply *r = st_redis_reply(&s->b, c->reply);

        if (st_redis_broken(r)) {
            call_later(f, c, missing);
            continue;
        }
        if (st_redis_reply_fail(s->r, r, err))
            return err->code;
        if (r->type != REDIS_REPLY_ARRAY || r->elements != c->n + 2)
            return st_fail(err, STINT_ESTORE, "redis: the finish script answered something else");
        if (st_redis_int(r->element[1], 0) > 0)
            st_log(ST_LOG_WARN, "archive.trimmed", ST_FS("queue", c->queue),
                   ST_FI("jobs", st_redis_int(r->element[1], 0)));
        for (size_t k = 0; k < c->n; k++)
            item_take(&f->items[f->order[c->first + k]], st_redis_int(r->element[k + 2], 0),
                      &missing[f->order[c->first + k]]);
    }
    return STINT_OK;
}

void st_redis_finishing_clear(struct st_redis_finishing *f)
{
    st_redis_args_clear(&f->args);
    free(f->order);
    free(f->calls);
    f->order = NULL;
    f->calls = NULL;
}

/* ---- where they are ---------------------------------------------------------------------------------------------- */

/* Looks for the items that want[i] says, and for nothing else. */
static stint_code locate_some(struct st_redis_store *s, const struct st_finish *items, size_t n, const bool *want,
                              struct st_slice *queues, stint_error *err)
{
    struct st_slice *ids = calloc(2 * n + 1, sizeof(*ids));
    size_t m = 0;

    if (!ids)
        return st_fail(err, STINT_ENOMEM, "no memory for %zu outcomes", n);
    for (size_t i = 0; i < n; i++)
        if (want[i])
            ids[m++] = items[i].id;
    if (m && st_redis_locate(s, ids, NULL, m, ids + n, err)) {
        free(ids);
        return err->code;
    }
    for (size_t i = n, k = 0; i-- > 0;)
        if (want[i])
            queues[i] = ids[n + m - ++k];
        else
            queues[i] = ST_NONE;
    free(ids);
    return STINT_OK;
}

stint_code st_redis_finish_queues(struct st_redis_store *s, struct st_finish *items, size_t n, struct st_slice *queues,
                                  stint_error *err)
{
    bool *want = NULL;
    struct st_slice *found = NULL;
    size_t missing = 0;
    stint_code code = STINT_OK;

    for (size_t i = 0; i < n; i++) {
        items[i].verdict = STINT_ELOST;
        queues[i] = st_redis_ref_queue(items[i].ref);
        missing += !queues[i].p;
    }
    if (!missing)
        return STINT_OK;
    want = calloc(n, sizeof(*want));
    found = calloc(n, sizeof(*found));
    if (!want || !found)
        code = st_fail(err, STINT_ENOMEM, "no memory for %zu outcomes", n);
    for (size_t i = 0; !code && i < n; i++)
        want[i] = !queues[i].p;
    if (!code)
        code = locate_some(s, items, n, want, found, err);
    for (size_t i = 0; !code && i < n; i++)
        if (want[i])
            queues[i] = found[i];
    free(want);
    free(found);
    return code;
}

stint_code st_redis_finish_missing(struct st_redis_store *s, int64_t now_us, struct st_finish *items, size_t n,
                                   struct st_slice *queues, bool *missing, stint_error *err)
{
    struct st_redis_finishing f = {.items = items, .queues = queues, .n = n};
    stint_code code;
    bool any = false;

    for (size_t i = 0; i < n; i++)
        any = any || missing[i];
    if (!any)
        return STINT_OK;
    if (locate_some(s, items, n, missing, queues, err))
        return err->code;
    st_redis_batch_reset(&s->b);
    code = st_redis_finishing_add(s, &f, now_us, err);
    if (!code && s->b.n)
        code = st_redis_run(s->r, &s->b, err);
    if (!code)
        code = st_redis_finishing_take(s, &f, missing, err);
    st_redis_finishing_clear(&f);
    return code;
}

/* ---- the operation ------------------------------------------------------------------------------------------------- */

static stint_code finish_in(struct st_redis_store *s, int64_t now_us, struct st_finish *items, size_t n,
                            struct st_slice *queues, bool *missing, stint_error *err)
{
    struct st_redis_finishing f = {.items = items, .queues = queues, .n = n};
    stint_code code = st_redis_finish_queues(s, items, n, queues, err);

    if (code)
        return code;
    st_redis_batch_reset(&s->b);
    code = st_redis_finishing_add(s, &f, now_us, err);
    if (!code && s->b.n)
        code = st_redis_run(s->r, &s->b, err);
    if (!code)
        code = st_redis_finishing_take(s, &f, missing, err);
    st_redis_finishing_clear(&f);
    return code ? code : st_redis_finish_missing(s, now_us, items, n, queues, missing, err);
}

stint_code st_redis_op_finish(struct st_store *base, int64_t now_us, struct st_finish *items, size_t n,
                              stint_error *err)
{
    struct st_slice *queues = calloc(n + 1, sizeof(*queues));
    bool *missing = calloc(n + 1, sizeof(*missing));
    stint_error local = {0};
    stint_code code;

    err = err ? err : &local;
    if (queues && missing)
        code = finish_in(st_redis_of(base), now_us, items, n, queues, missing, err);
    else
        code = st_fail(err, STINT_ENOMEM, "no memory for %zu outcomes", n);
    free(queues);
    free(missing);
    return code;
}
