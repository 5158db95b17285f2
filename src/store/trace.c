/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.c - a store that logs every call to the store it wraps.
 *
 *     level=debug event=store.call op=claim n=12 code=OK us=431
 *
 * n is what went in or came out, whichever tells more.  Payloads are never logged.
 */
#include "store/store.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"

struct trace {
    struct st_store base;
    struct st_store *real;
    struct st_store_ops ops; /* our own copy: name and caps are the real store's */
};

static struct st_store *real_of(struct st_store *s)
{
    return ((struct trace *)s)->real;
}

static stint_code traced(const char *op, size_t n, int64_t began_us, stint_code code)
{
    st_log(ST_LOG_DEBUG, "store.call", ST_F("op", op), ST_FI("n", n), ST_F("code", stint_code_name(code)),
           ST_FI("us", st_clock_mono_us() - began_us));
    return code;
}

/* Calls the real store's op with the arguments that follow, measures, logs `count` afterwards. */
#define CALL(op, count, ...)                                                                                           \
    do {                                                                                                               \
        struct st_store *real = real_of(s);                                                                            \
        const int64_t began_us = st_clock_mono_us();                                                                   \
        const stint_code code = real->ops->op(real, __VA_ARGS__);                                                      \
                                                                                                                       \
        return traced(#op, (count), began_us, code);                                                                   \
    } while (0)

static stint_code t_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err)
{
    CALL(enqueue, n, now_us, jobs, n, out, err);
}

static stint_code t_enqueue_tx(struct st_store *s, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, stint_error *err)
{
    CALL(enqueue_tx, n, conn, now_us, jobs, n, out, err);
}

static stint_code t_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                          stint_error *err)
{
    CALL(claim, *n_out, req, out, n_out, err);
}

static stint_code t_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                             const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                             stint_error *err)
{
    CALL(exchange, n + *n_out, now_us, items, n, req, out, n_out, finished, err);
}

static stint_code t_acquire(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                            enum st_refusal *why, stint_error *err)
{
    CALL(acquire, *out ? 1 : 0, id, req, out, why, err);
}

static stint_code t_acquire_many(struct st_store *s, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                                 stint_error *err)
{
    const int64_t began_us = st_clock_mono_us();
    const stint_code code = st_store_acquire_many(real_of(s), items, n, req, err); /* not every store has it */

    return traced("acquire_many", n, began_us, code);
}

static stint_code t_renew(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err)
{
    CALL(renew, n, now_us, items, n, err);
}

static stint_code t_finish(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err)
{
    CALL(finish, n, now_us, items, n, err);
}

static stint_code t_transact(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                             struct st_finish *fin, stint_error *err)
{
    CALL(transact, 1, now_us, hold, fn, arg, fin, err);
}

static stint_code t_transact_open(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn,
                                  void *arg, stint_error *err)
{
    CALL(transact_open, 1, now_us, hold, fn, arg, err);
}

static void t_abandon(struct st_store *s)
{
    st_store_abandon(real_of(s));
}

static stint_code t_reap(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                         size_t *n_out, stint_error *err)
{
    CALL(reap, *n_out, now_us, me, out, max, n_out, err);
}

static stint_code t_disown(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                           size_t n, size_t *n_given, stint_error *err)
{
    CALL(disown, *n_given, now_us, worker, known, n, n_given, err);
}

static stint_code t_flagged(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                            size_t *n_out, stint_error *err)
{
    CALL(flagged, *n_out, worker, ids, max, n_out, err);
}

static stint_code t_cancel(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                           stint_code *verdicts, bool *asked, stint_error *err)
{
    CALL(cancel, n, now_us, ids, n, verdicts, asked, err);
}

static stint_code t_retry(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                          stint_code *verdicts, stint_error *err)
{
    CALL(retry, n, now_us, ids, n, verdicts, err);
}

static stint_code t_discard(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                            struct st_pruned *out, stint_error *err)
{
    CALL(discard, n, ids, n, verdicts, out, err);
}

static stint_code t_fit(struct st_store *s, stint_error *err)
{
    CALL(fit, 0, err);
}

static stint_code t_pause(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err)
{
    CALL(pause, 1, now_us, queue, paused, err);
}

static stint_code t_get(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                        stint_error *err)
{
    CALL(get, 1, now_us, id, out, err);
}

static stint_code t_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                         uint64_t *next, stint_error *err)
{
    CALL(list, *n_out, req, out, n_out, next, err);
}

static stint_code t_queues(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                           stint_error *err)
{
    CALL(queues, *n_out, now_us, out, n_out, err);
}

static stint_code t_next_due(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err)
{
    CALL(next_due, *due_us ? 1 : 0, now_us, due_us, err);
}

static stint_code t_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    CALL(prune, out->n, req, out, err);
}

static stint_code t_upkeep(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us,
                           stint_error *err)
{
    CALL(upkeep, out->n, req, out, again_us, err);
}

static stint_code t_worker_beat(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err)
{
    CALL(worker_beat, 1, now_us, w, err);
}

static stint_code t_worker_list(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err)
{
    CALL(worker_list, *n_out, out, n_out, err);
}

static stint_code t_worker_remove(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                                  int64_t epoch, int64_t if_beat_us, stint_error *err)
{
    CALL(worker_remove, 1, now_us, id, expire_leases, epoch, if_beat_us, err);
}

static stint_code t_lead(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err)
{
    CALL(lead, out->leader ? 1 : 0, req, out, err);
}

static stint_code t_wait(struct st_store *s, int timeout_ms, bool *woken, stint_error *err)
{
    CALL(wait, *woken ? 1 : 0, timeout_ms, woken, err);
}

static void t_interrupt(struct st_store *s)
{
    st_store_interrupt(real_of(s));
}

static stint_code t_watch(struct st_store *s, struct st_slice worker, const struct st_slice *queues, size_t n,
                          bool work, stint_error *err)
{
    return st_store_watch(real_of(s), worker, queues, n, work, err);
}

static unsigned t_news(struct st_store *s)
{
    return st_store_news(real_of(s));
}

static stint_code t_schema(struct st_store *s, bool up, struct st_schema *out, stint_error *err)
{
    CALL(schema, 1, up, out, err);
}

static stint_code t_schema_down(struct st_store *s, int to, struct st_schema *out, stint_error *err)
{
    CALL(schema_down, 1, to, out, err);
}

static stint_code t_schema_sql(struct st_store *s, enum st_schema_sql what, char **sql, stint_error *err)
{
    CALL(schema_sql, 1, what, sql, err);
}

static stint_code t_backup(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err)
{
    CALL(backup, 1, path, progress, arg, err);
}

static stint_code t_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err)
{
    CALL(check, 1, found, arg, err);
}

static void t_about(struct st_store *s, struct st_store_about *out)
{
    st_store_about(real_of(s), out);
}

static int64_t t_now(struct st_store *s)
{
    return st_store_now(real_of(s));
}

static void t_close(struct st_store *s)
{
    st_store_close(real_of(s));
    free(s);
}

static const struct st_store_ops trace_ops = {
    .enqueue = t_enqueue,
    .enqueue_tx = t_enqueue_tx,
    .claim = t_claim,
    .exchange = t_exchange,
    .acquire = t_acquire,
    .acquire_many = t_acquire_many,
    .renew = t_renew,
    .finish = t_finish,
    .transact = t_transact,
    .transact_open = t_transact_open,
    .abandon = t_abandon,
    .reap = t_reap,
    .disown = t_disown,
    .flagged = t_flagged,
    .cancel = t_cancel,
    .retry = t_retry,
    .discard = t_discard,
    .pause = t_pause,
    .get = t_get,
    .list = t_list,
    .queues = t_queues,
    .next_due = t_next_due,
    .prune = t_prune,
    .upkeep = t_upkeep,
    .worker_beat = t_worker_beat,
    .worker_list = t_worker_list,
    .worker_remove = t_worker_remove,
    .lead = t_lead,
    .wait = t_wait,
    .interrupt = t_interrupt,
    .watch = t_watch,
    .news = t_news,
    .fit = t_fit,
    .schema = t_schema,
    .schema_down = t_schema_down,
    .schema_sql = t_schema_sql,
    .backup = t_backup,
    .check = t_check,
    .about = t_about,
    .now = t_now,
    .close = t_close,
};

struct st_store *st_store_trace(struct st_store *real)
{
    struct trace *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->real = real;
    t->ops = trace_ops;
    t->ops.name = real->ops->name;
    t->ops.caps = real->ops->caps;
    if (!real->ops->exchange)
        t->ops.exchange = NULL;
    if (!real->ops->enqueue_tx)
        t->ops.enqueue_tx = NULL;
    if (!real->ops->transact)
        t->ops.transact = NULL;
    if (!real->ops->transact_open)
        t->ops.transact_open = NULL;
    if (!real->ops->watch)
        t->ops.watch = NULL;
    if (!real->ops->upkeep)
        t->ops.upkeep = NULL;
    if (!real->ops->fit)
        t->ops.fit = NULL;
    if (!real->ops->schema_down)
        t->ops.schema_down = NULL;
    if (!real->ops->schema_sql)
        t->ops.schema_sql = NULL;
    t->base.ops = &t->ops;
    t->base.timeout_ms = real->timeout_ms;
    return &t->base;
}
