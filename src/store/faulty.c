/* SPDX-License-Identifier: Apache-2.0
 *
 * faulty.c - a store that breaks one call on purpose.
 *
 * Every call that can fail is counted in a plan that several handles may share.  The nth is broken:
 *
 *     BEFORE   the real store is not asked, EAGAIN
 *     AFTER    the real store does it, but what it answers is dropped: EUNKNOWN
 *              (a read: EAGAIN, since it changes nothing)
 *
 * A test runs with nth = 1, 2, 3, ... until a run passes in which nothing fired.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

struct faulty {
    struct st_store base;
    struct st_store *real;
    struct st_fault_plan *plan;
    struct st_store_ops ops; /* our own copy: name and caps are the real store's */
};

enum turn { TURN_PASS, TURN_BEFORE, TURN_AFTER };

static struct st_store *real_of(struct st_store *s)
{
    return ((struct faulty *)s)->real;
}

static enum turn next_turn(struct st_store *s, const char *op)
{
    struct st_fault_plan *p = ((struct faulty *)s)->plan;

    if (__atomic_add_fetch(&p->seen, 1, __ATOMIC_SEQ_CST) != p->nth)
        return TURN_PASS;
    p->op = op;
    __atomic_store_n(&p->fired, 1, __ATOMIC_SEQ_CST);
    return p->how == ST_FAULT_BEFORE ? TURN_BEFORE : TURN_AFTER;
}

static stint_code broke(enum turn turn, bool writes, const char *op, stint_error *err)
{
    if (turn == TURN_AFTER && writes)
        return st_fail(err, STINT_EUNKNOWN, "%s was broken on purpose, after it took effect", op);
    return st_fail(err, STINT_EAGAIN, "%s was broken on purpose", op);
}

/* Passes the call on, or breaks it; `drop` forgets what the real store has answered. */
#define CALL(op, writes, drop, ...)                                                                                    \
    do {                                                                                                               \
        const enum turn turn = next_turn(s, #op);                                                                      \
        struct st_store *real = real_of(s);                                                                            \
        stint_code code;                                                                                               \
                                                                                                                       \
        if (turn == TURN_BEFORE)                                                                                       \
            return broke(turn, writes, #op, err);                                                                      \
        code = real->ops->op(real, __VA_ARGS__);                                                                       \
        if (turn == TURN_PASS)                                                                                         \
            return code;                                                                                               \
        if (code == STINT_OK) {                                                                                        \
            drop;                                                                                                      \
        }                                                                                                              \
        return broke(turn, writes, #op, err);                                                                          \
    } while (0)

static void drop_jobs(struct st_job **out, size_t *n_out)
{
    while (*n_out > 0)
        st_job_free(out[--*n_out]);
}

static void drop_list(struct st_job_info **out, size_t *n_out)
{
    st_job_info_list_free(*out, *n_out);
    *out = NULL;
    *n_out = 0;
}

static stint_code f_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err)
{
    CALL(enqueue, true, memset(out, 0, n * sizeof(*out)), now_us, jobs, n, out, err);
}

static stint_code f_enqueue_tx(struct st_store *s, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, stint_error *err)
{
    CALL(enqueue_tx, true, memset(out, 0, n * sizeof(*out)), conn, now_us, jobs, n, out, err);
}

static stint_code f_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                          stint_error *err)
{
    CALL(claim, true, drop_jobs(out, n_out), req, out, n_out, err);
}

static void drop_exchange(struct st_finish *items, size_t n, struct st_job **out, size_t *n_out, bool *finished)
{
    for (size_t i = 0; i < n; i++)
        items[i].verdict = STINT_OK;
    drop_jobs(out, n_out);
    *finished = false;
}

static stint_code f_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                             const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                             stint_error *err)
{
    CALL(exchange, true, drop_exchange(items, n, out, n_out, finished), now_us, items, n, req, out, n_out, finished,
         err);
}

static void drop_one(struct st_job **out)
{
    st_job_free(*out);
    *out = NULL;
}

static stint_code f_acquire(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                            enum st_refusal *why, stint_error *err)
{
    CALL(acquire, true, drop_one(out), id, req, out, why, err);
}

static stint_code f_renew(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err)
{
    CALL(renew, true, , now_us, items, n, err);
}

static stint_code f_finish(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err)
{
    CALL(finish, true, , now_us, items, n, err);
}

static stint_code f_transact(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                             struct st_finish *fin, stint_error *err)
{
    CALL(transact, true, , now_us, hold, fn, arg, fin, err);
}

static stint_code f_transact_open(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn,
                                  void *arg, stint_error *err)
{
    CALL(transact_open, true, , now_us, hold, fn, arg, err);
}

static void f_abandon(struct st_store *s)
{
    st_store_abandon(real_of(s));
}

static stint_code f_reap(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                         size_t *n_out, stint_error *err)
{
    CALL(reap, true, *n_out = 0, now_us, me, out, max, n_out, err);
}

static stint_code f_disown(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                           size_t n, size_t *n_given, stint_error *err)
{
    CALL(disown, true, *n_given = 0, now_us, worker, known, n, n_given, err);
}

static stint_code f_flagged(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                            size_t *n_out, stint_error *err)
{
    CALL(flagged, false, *n_out = 0, worker, ids, max, n_out, err);
}

static stint_code f_cancel(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                           stint_code *verdicts, bool *asked, stint_error *err)
{
    CALL(cancel, true, , now_us, ids, n, verdicts, asked, err);
}

static stint_code f_retry(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                          stint_code *verdicts, stint_error *err)
{
    CALL(retry, true, , now_us, ids, n, verdicts, err);
}

static stint_code f_discard(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                            struct st_pruned *out, stint_error *err)
{
    CALL(discard, true, st_pruned_clear(out), ids, n, verdicts, out, err);
}

static stint_code f_pause(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err)
{
    CALL(pause, true, , now_us, queue, paused, err);
}

static stint_code f_get(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                        stint_error *err)
{
    CALL(get, false, st_job_info_clear(out), now_us, id, out, err);
}

static stint_code f_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                         uint64_t *next, stint_error *err)
{
    CALL(list, false, drop_list(out, n_out), req, out, n_out, next, err);
}

static void drop_array(void **out, size_t *n_out)
{
    free(*out);
    *out = NULL;
    *n_out = 0;
}

static stint_code f_queues(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                           stint_error *err)
{
    CALL(queues, false, drop_array((void **)out, n_out), now_us, out, n_out, err);
}

static stint_code f_next_due(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err)
{
    CALL(next_due, false, *due_us = 0, now_us, due_us, err);
}

static stint_code f_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    CALL(prune, !req->dry_run, st_pruned_clear(out), req, out, err);
}

static stint_code f_upkeep(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us,
                           stint_error *err)
{
    CALL(upkeep, true, st_pruned_clear(out), req, out, again_us, err);
}

static stint_code f_worker_beat(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err)
{
    CALL(worker_beat, true, , now_us, w, err);
}

static stint_code f_worker_list(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err)
{
    CALL(worker_list, false, drop_array((void **)out, n_out), out, n_out, err);
}

static stint_code f_worker_remove(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                                  int64_t epoch, int64_t if_beat_us, stint_error *err)
{
    CALL(worker_remove, true, , now_us, id, expire_leases, epoch, if_beat_us, err);
}

static stint_code f_lead(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err)
{
    CALL(lead, true, memset(out, 0, sizeof(*out)), req, out, err);
}

static stint_code f_wait(struct st_store *s, int timeout_ms, bool *woken, stint_error *err)
{
    CALL(wait, false, *woken = false, timeout_ms, woken, err);
}

static void f_interrupt(struct st_store *s)
{
    st_store_interrupt(real_of(s));
}

static stint_code f_watch(struct st_store *s, struct st_slice worker, const struct st_slice *queues, size_t n,
                          bool work, stint_error *err)
{
    return st_store_watch(real_of(s), worker, queues, n, work, err);
}

static unsigned f_news(struct st_store *s)
{
    return st_store_news(real_of(s));
}

static stint_code f_schema(struct st_store *s, bool up, struct st_schema *out, stint_error *err)
{
    CALL(schema, up, memset(out, 0, sizeof(*out)), up, out, err);
}

static stint_code f_schema_down(struct st_store *s, int to, struct st_schema *out, stint_error *err)
{
    CALL(schema_down, true, memset(out, 0, sizeof(*out)), to, out, err);
}

static void drop_text(char **text)
{
    free(*text);
    *text = NULL;
}

static stint_code f_schema_sql(struct st_store *s, enum st_schema_sql what, char **sql, stint_error *err)
{
    CALL(schema_sql, false, drop_text(sql), what, sql, err);
}

static stint_code f_backup(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err)
{
    CALL(backup, true, , path, progress, arg, err);
}

static stint_code f_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err)
{
    CALL(check, false, , found, arg, err);
}

static void f_about(struct st_store *s, struct st_store_about *out)
{
    st_store_about(real_of(s), out);
}

static int64_t f_now(struct st_store *s)
{
    return st_store_now(real_of(s));
}

static void f_close(struct st_store *s)
{
    st_store_close(real_of(s));
    free(s);
}

static const struct st_store_ops faulty_ops = {
    .enqueue = f_enqueue,
    .enqueue_tx = f_enqueue_tx,
    .claim = f_claim,
    .exchange = f_exchange,
    .acquire = f_acquire,
    .renew = f_renew,
    .finish = f_finish,
    .transact = f_transact,
    .transact_open = f_transact_open,
    .abandon = f_abandon,
    .reap = f_reap,
    .disown = f_disown,
    .flagged = f_flagged,
    .cancel = f_cancel,
    .retry = f_retry,
    .discard = f_discard,
    .pause = f_pause,
    .get = f_get,
    .list = f_list,
    .queues = f_queues,
    .next_due = f_next_due,
    .prune = f_prune,
    .upkeep = f_upkeep,
    .worker_beat = f_worker_beat,
    .worker_list = f_worker_list,
    .worker_remove = f_worker_remove,
    .lead = f_lead,
    .wait = f_wait,
    .interrupt = f_interrupt,
    .watch = f_watch,
    .news = f_news,
    .schema = f_schema,
    .schema_down = f_schema_down,
    .schema_sql = f_schema_sql,
    .backup = f_backup,
    .check = f_check,
    .about = f_about,
    .now = f_now,
    .close = f_close,
};

struct st_store *st_store_faulty(struct st_store *real, struct st_fault_plan *plan)
{
    struct faulty *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->real = real;
    f->plan = plan;
    f->ops = faulty_ops;
    f->ops.name = real->ops->name;
    f->ops.caps = real->ops->caps;
    if (!real->ops->exchange)
        f->ops.exchange = NULL;
    if (!real->ops->enqueue_tx)
        f->ops.enqueue_tx = NULL;
    if (!real->ops->transact)
        f->ops.transact = NULL;
    if (!real->ops->transact_open)
        f->ops.transact_open = NULL;
    if (!real->ops->watch)
        f->ops.watch = NULL;
    if (!real->ops->upkeep)
        f->ops.upkeep = NULL;
    if (!real->ops->schema_down)
        f->ops.schema_down = NULL;
    if (!real->ops->schema_sql)
        f->ops.schema_sql = NULL;
    f->base.ops = &f->ops;
    f->base.timeout_ms = real->timeout_ms;
    return &f->base;
}
