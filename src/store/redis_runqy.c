/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_runqy.c - what runqy's clients and dashboard expect beside asynq's layout; with runqy=1.
 *
 *     a queue without a sub          is its sub `default`: inference -> inference.default
 *     asynq:t:ID                     HASH   field `queue`: in which queue a job is; kept as long as the job may be asked for
 *     asynq:result:ID                STRING the result, for a day
 *     asynq:QUEUE:pending            LIST   ids that clients push without the braces of asynq's keys, the jobs in asynq:t:ID with the
 *                                           fields type, payload, max_retry: taken over before a claim, once a second at most
 *     redis_storage=false            in the URL: nothing is kept of a job that has succeeded or failed
 *     asynq:workers:HOST:PID         HASH   see redis_asynq.c
 *
 * It stands around the store's own operations, which know nothing of it.  These keys are hints and copies: what cannot be
 * written is logged, and the operation has done what it was asked.  An id is taken off its list only when its job is enqueued;
 * repeating that with the same id adds nothing.
 *
 * Thread: the handle's.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/redis_look.h"

#define KEEP_S     "604800" /* how long the way to a job is kept after it was last written */
#define RESULT_S   "86400"
#define TAKE_EVERY ST_SEC
#define TAKE_MAX   200 /* of a list at once */

static const struct st_store_ops *const real = &st_redis_ops;

static void addf(struct st_redis_batch *b, const char *command, const char *key, struct st_slice id,
                 const struct st_slice *more, size_t n)
{
    struct st_redis_key name;
    struct st_slice argv[8] = {st_slice_cstr(command)};
    const int head = snprintf(name.p, sizeof(name.p), "%s", key);

    memcpy(name.p + head, id.p, id.len);
    argv[1] = ST_SLICE(name.p, (size_t)head + id.len);
    memcpy(argv + 2, more, n * sizeof(*more));
    st_redis_add(b, ST_REDIS_WRITE, argv[1], argv, n + 2);
}

static void run_or_tell(struct st_redis_store *s, struct st_redis_batch *b, const char *what)
{
    stint_error err = {0};

    if (b->n && st_redis_run(s->r, b, &err))
        st_log(ST_LOG_WARN, "runqy.not_written", ST_F("what", what), ST_FE(&err));
    st_redis_batch_clear(b);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

static bool has_sub(struct st_slice queue)
{
    return memchr(queue.p, '.', queue.len) != NULL;
}

static void add_way(struct st_redis_batch *b, struct st_slice id, struct st_slice queue)
{
    addf(b, "HSET", "asynq:t:", id, (const struct st_slice[]){st_slice_cstr("queue"), queue}, 2);
    addf(b, "EXPIRE", "asynq:t:", id, (const struct st_slice[]){st_slice_cstr(KEEP_S)}, 1);
}

struct renamed {
    struct st_new_job *jobs;
    char (*names)[ST_NAME_MAX + 1];
};

static stint_code rename_all(struct renamed *r, const struct st_new_job *jobs, size_t n, stint_error *err)
{
    r->jobs = malloc(n * sizeof(*r->jobs));
    r->names = malloc(n * sizeof(*r->names));
    if (!r->jobs || !r->names)
        return st_fail(err, STINT_ENOMEM, "no memory for an enqueue of %zu jobs", n);
    memcpy(r->jobs, jobs, n * sizeof(*jobs));
    for (size_t i = 0; i < n; i++) {
        const struct st_slice q = jobs[i].queue;

        if (has_sub(q))
            continue;
        if (q.len + strlen(".default") > ST_NAME_MAX)
            return st_fail(err, STINT_EINVAL, "the queue %.*s is too long a name for a .default behind it", (int)q.len,
                           q.p);
        snprintf(r->names[i], sizeof(r->names[i]), "%.*s.default", (int)q.len, q.p);
        r->jobs[i].queue = st_slice_cstr(r->names[i]);
    }
    return STINT_OK;
}

static stint_code runqy_enqueue(struct st_store *base, int64_t now_us, const struct st_new_job *jobs, size_t n,
                                struct st_enqueued *out, stint_error *err)
{
    struct st_redis_store *s = st_redis_of(base);
    struct renamed r = {0};
    struct st_redis_batch b;
    stint_error local = {0};
    stint_code code = rename_all(&r, jobs, n, &local);

    if (!code)
        code = real->enqueue(base, now_us, r.jobs, n, out, &local);
    st_redis_batch_init(&b);
    for (size_t i = 0; !code && i < n; i++)
        if (!out[i].duplicate)
            add_way(&b, r.jobs[i].id, r.jobs[i].queue);
    run_or_tell(s, &b, "asynq:t:ID");
    free(r.jobs);
    free(r.names);
    return st_redis_told(code, &local, err);
}

/* ---- outcomes ---------------------------------------------------------------------------------------------------- */

static void tell_results(struct st_store *base, const struct st_finish *items, size_t n)
{
    struct st_redis_batch b;

    st_redis_batch_init(&b);
    for (size_t i = 0; i < n; i++) {
        if (items[i].verdict)
            continue;
        if (items[i].outcome == ST_OUT_SUCCEEDED && items[i].result.p)
            addf(&b, "SET", "asynq:result:", items[i].id,
                 (const struct st_slice[]){items[i].result, st_slice_cstr("EX"), st_slice_cstr(RESULT_S)}, 3);
        addf(&b, "EXPIRE", "asynq:t:", items[i].id, (const struct st_slice[]){st_slice_cstr(KEEP_S)}, 1);
    }
    run_or_tell(st_redis_of(base), &b, "asynq:result:ID");
}

/* redis_storage=false: nothing is kept of what has succeeded or failed, as runqy does where a deployment does not ask for it.  What has
 * not can still be asked for. */
static void forget_ended(struct st_store *base, const struct st_finish *items, size_t n)
{
    struct st_redis_batch b;
    struct st_slice *ids = calloc(n + 1, sizeof(*ids));
    stint_code *verdicts = calloc(n + 1, sizeof(*verdicts));
    struct st_pruned files = {0};
    stint_error err = {0};
    size_t m = 0;

    st_redis_batch_init(&b);
    for (size_t i = 0; ids && i < n; i++) {
        if (items[i].verdict)
            continue;
        if (items[i].state == ST_SUCCEEDED || items[i].state == ST_FAILED) {
            ids[m++] = items[i].id;
            addf(&b, "DEL", "asynq:t:", items[i].id, &items[i].id, 0);
        } else {
            addf(&b, "EXPIRE", "asynq:t:", items[i].id, (const struct st_slice[]){st_slice_cstr(KEEP_S)}, 1);
        }
    }
    if (m && verdicts && real->discard(base, ids, m, verdicts, &files, &err))
        st_log(ST_LOG_WARN, "runqy.not_removed", ST_FE(&err));
    run_or_tell(st_redis_of(base), &b, "asynq:t:ID");
    for (size_t i = 0; i < files.n_files; i++)
        unlink(files.files[i]);
    st_pruned_clear(&files);
    free(ids);
    free(verdicts);
}

/* After outcomes were written. */
static void tell_ends(struct st_store *base, const struct st_finish *items, size_t n)
{
    if (st_redis_of(base)->no_storage)
        forget_ended(base, items, n);
    else
        tell_results(base, items, n);
}

static stint_code runqy_finish(struct st_store *base, int64_t now_us, struct st_finish *items, size_t n,
                               stint_error *err)
{
    const stint_code code = real->finish(base, now_us, items, n, err);

    if (!code)
        tell_ends(base, items, n);
    return code;
}

/* ---- lists without braces ------------------------------------------------------------------------------------------ */

enum { F_TYPE, F_PAYLOAD, F_MAX, F_N };

static void add_list(struct st_redis_batch *b, const char *command, struct st_slice queue, const struct st_slice *more,
                     size_t n)
{
    char tail[ST_NAME_MAX + 16];
    const int len = snprintf(tail, sizeof(tail), "%.*s:pending", (int)queue.len, queue.p);

    addf(b, command, "asynq:", ST_SLICE(tail, (size_t)len), more, n);
}

/* Off the list: it is enqueued, or cannot be. */
static void take_off(struct st_redis_store *s, struct st_slice queue, struct st_slice id)
{
    struct st_redis_batch b;

    st_redis_batch_init(&b);
    add_list(&b, "LREM", queue, (const struct st_slice[]){st_slice_cstr("-1"), id}, 2);
    run_or_tell(s, &b, "asynq:QUEUE:pending");
}

static stint_code enqueue_one(struct st_redis_store *s, struct st_slice queue, struct st_slice id, const redisReply *r,
                              stint_error *err)
{
    const struct st_slice type = st_redis_text(r->element[F_TYPE]), payload = st_redis_text(r->element[F_PAYLOAD]);
    const int64_t max = st_redis_int(r->element[F_MAX], -1);
    const struct st_new_job job = {.id = id,
                                   .type = type.len ? type : queue,
                                   .queue = queue,
                                   .payload = payload.p ? payload : st_slice_cstr(""),
                                   .max_attempts = max >= 0 && max < ST_ATTEMPTS_MAX ? (int)max + 1 : -1,
                                   .timeout_us = -1};
    struct st_enqueued out;

    if (st_id_check(id, err) || st_type_check(job.type, err) || st_queue_check(queue, err))
        return err->code;
    return runqy_enqueue(&s->base, 0, &job, 1, &out, err);
}

static bool has_job(const redisReply *r)
{
    return r->type == REDIS_REPLY_ARRAY && r->elements == F_N &&
           (st_redis_text(r->element[F_TYPE]).p || st_redis_text(r->element[F_PAYLOAD]).p);
}

static void take_one(struct st_redis_store *s, struct st_slice queue, struct st_slice id)
{
    struct st_redis_batch b;
    stint_error err = {0};
    const redisReply *r;
    stint_code code;

    if (id.len == 0 || id.len > ST_ID_MAX) {
        st_log(ST_LOG_WARN, "runqy.refused", ST_FS("queue", queue), ST_F("error", "what was pushed is no id"));
        take_off(s, queue, id);
        return;
    }
    st_redis_batch_init(&b);
    addf(&b, "HMGET", "asynq:t:", id,
         (const struct st_slice[]){st_slice_cstr("type"), st_slice_cstr("payload"), st_slice_cstr("max_retry")}, 3);
    code = st_redis_run(s->r, &b, &err);
    r = code ? NULL : st_redis_reply(&b, 0);
    if (!code && !has_job(r))
        code = st_fail(&err, STINT_ENOTFOUND, "asynq:t:%.*s has no such job", (int)id.len, id.p);
    if (!code)
        code = enqueue_one(s, queue, id, r, &err);
    if (code == STINT_EINVAL || code == STINT_ENOTFOUND || code == STINT_EEXISTS)
        st_log(ST_LOG_WARN, "runqy.refused", ST_FS("queue", queue), ST_FS("job", id), ST_FE(&err));
    if (!code || code == STINT_EINVAL || code == STINT_ENOTFOUND || code == STINT_EEXISTS)
        take_off(s, queue, id);
    st_redis_batch_clear(&b);
}

static void take_list(struct st_redis_store *s, struct st_slice queue, const redisReply *ids)
{
    if (!ids || ids->type != REDIS_REPLY_ARRAY)
        return;
    for (size_t i = ids->elements; i-- > 0;) /* the oldest is the last */
        take_one(s, queue, st_redis_text(ids->element[i]));
}

static void take_over(struct st_redis_store *s, const struct st_slice *queues, size_t n)
{
    struct st_redis_batch b;
    stint_error err = {0};
    char from[ST_REDIS_NUM];

    st_redis_num(from, -TAKE_MAX);
    st_redis_batch_init(&b);
    for (size_t i = 0; i < n; i++)
        add_list(&b, "LRANGE", queues[i], (const struct st_slice[]){st_slice_cstr(from), st_slice_cstr("-1")}, 2);
    if (n && !st_redis_run(s->r, &b, &err))
        for (size_t i = 0; i < n; i++)
            take_list(s, queues[i], st_redis_reply(&b, i));
    st_redis_batch_clear(&b);
}

static size_t name_add(struct st_slice *names, size_t n, struct st_slice name)
{
    for (size_t i = 0; i < n; i++)
        if (st_slice_eq(names[i], name))
            return n;
    names[n] = name;
    return n + 1;
}

/* For the queues a claim names and those that are known: these names and their parents', which clients that know of no subs push to. */
static void take_for(struct st_redis_store *s, const struct st_claim_req *req)
{
    stint_error err = {0};
    struct st_redis_care *care = st_redis_care(s, &err);
    struct st_slice *names;
    size_t n = 0;

    if (!care || st_clock_mono_us() - care->taken_us < TAKE_EVERY || st_redis_queues_read(s, false, &err))
        return;
    care->taken_us = st_clock_mono_us();
    names = malloc(2 * (req->n_queues + s->queues.n) * sizeof(*names) + 1);
    for (size_t i = 0; names && i < req->n_queues; i++) {
        if (st_slice_is(req->queues[i], ST_QUEUE_ANY))
            continue;
        n = name_add(names, n, req->queues[i]);
        n = name_add(names, n, st_queue_parent(req->queues[i]));
    }
    for (size_t i = 0; names && i < s->queues.n; i++) { /* interned: the list is read again while jobs are added */
        const struct st_slice own = st_redis_ref_queue(st_redis_ref(st_slice_cstr(s->queues.p[i])));

        n = own.p ? name_add(names, n, own) : n;
        n = own.p ? name_add(names, n, st_queue_parent(own)) : n;
    }
    if (names)
        take_over(s, names, n);
    free(names);
}

static stint_code runqy_claim(struct st_store *base, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                              stint_error *err)
{
    take_for(st_redis_of(base), req);
    return real->claim(base, req, out, n_out, err);
}

static stint_code runqy_exchange(struct st_store *base, int64_t now_us, struct st_finish *items, size_t n,
                                 const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                                 stint_error *err)
{
    stint_code code;

    take_for(st_redis_of(base), req);
    code = real->exchange(base, now_us, items, n, req, out, n_out, finished, err);
    if (*finished)
        tell_ends(base, items, n);
    return code;
}

static struct st_store_ops around;

static void around_make(void)
{
    around = *real;
    around.enqueue = runqy_enqueue;
    around.finish = runqy_finish;
    around.claim = runqy_claim;
    around.exchange = runqy_exchange;
}

const struct st_store_ops *st_redis_runqy_ops(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, around_make);
    return &around;
}
