/* SPDX-License-Identifier: Apache-2.0
 *
 * signal.c - a store whose wake-ups go through Redis.
 *
 * Wraps a real store.  What may concern others is told after it has succeeded: jobs added, given back or taken, requests
 * to stop.  The waits of a worker listen to Redis instead of the real store.  All of it is a hint: Redis being away,
 * slow or wrong changes no answer of the store, only how soon others notice.
 *
 * Not told: jobs added inside somebody's own transaction (nobody knows here when it commits), and what programs without
 * this setting do.  Those are found by polling.
 *
 * Thread: the handle's; the telling has its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/redis_net.h"
#include "store/signal_int.h"

struct signal {
    struct st_store base;
    struct st_store *real;
    struct st_store_ops ops; /* our own copy: name and caps are the real store's */
    char *url;
    struct st_signal_channels channels;
    struct st_redis *redis; /* never connects: the hearer and the teller have their own */
    struct st_hearer *hearer;
    struct st_teller *teller; /* NULL until there is something to tell */
    bool mute;                /* there cannot be one */
};

static struct signal *of(struct st_store *s)
{
    return (struct signal *)s;
}

static struct st_store *real_of(struct st_store *s)
{
    of(s)->real->timeout_ms = s->timeout_ms;
    return of(s)->real;
}

static void tell(struct st_store *s, enum st_signal_what what, struct st_slice about)
{
    struct signal *g = of(s);
    stint_error err = {0};

    if (!g->teller && !g->mute) {
        g->teller = st_teller_new(g->url, &g->channels, &err);
        g->mute = !g->teller;
        if (g->mute)
            st_log(ST_LOG_WARN, "signal.lost", ST_F("redis", st_redis_where(g->redis)), ST_F("what", "telling"),
                   ST_FE(&err));
    }
    if (g->teller)
        st_teller_tell(g->teller, what, about);
}

static void tell_any(struct st_store *s, enum st_signal_what what)
{
    tell(s, what, st_slice_cstr(ST_SIGNAL_ANY));
}

/* ---- what others are told ---------------------------------------------------------------------------- */

static stint_code g_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->enqueue(real, now_us, jobs, n, out, err);

    /* EUNKNOWN: it may be there */
    for (size_t i = 0; i < n && (code == STINT_OK || code == STINT_EUNKNOWN); i++)
        if (code || !out[i].duplicate)
            tell(s, ST_SIGNAL_SCHED, jobs[i].queue);
    return code;
}

/* Those that are given back may be run by somebody else at once. */
static void tell_finished(struct st_store *s, const struct st_finish *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i].outcome == ST_OUT_RELEASED && items[i].verdict == STINT_OK) {
            tell_any(s, ST_SIGNAL_SCHED);
            return;
        }
    }
}

static stint_code g_finish(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->finish(real, now_us, items, n, err);

    if (!code)
        tell_finished(s, items, n);
    return code;
}

static stint_code g_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                             const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                             stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->exchange(real, now_us, items, n, req, out, n_out, finished, err);

    if (*finished)
        tell_finished(s, items, n);
    return code;
}

static stint_code g_reap(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                         size_t *n_out, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->reap(real, now_us, me, out, max, n_out, err);

    for (size_t i = 0; i < *n_out && !code; i++)
        tell(s, ST_SIGNAL_OWLS, st_slice_cstr(out[i].worker));
    if (!code && *n_out)
        tell_any(s, ST_SIGNAL_SCHED);
    return code;
}

static stint_code g_acquire(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                            enum st_refusal *why, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->acquire(real, id, req, out, why, err);

    if (!code) /* perhaps from somebody whose lease had ended */
        tell_any(s, ST_SIGNAL_OWLS);
    return code;
}

static stint_code g_acquire_many(struct st_store *s, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                                 stint_error *err)
{
    const stint_code code = st_store_acquire_many(real_of(s), items, n, req, err);
    bool any = false;

    for (size_t i = 0; i < n; i++)
        any = any || items[i].job;
    if (any)
        tell_any(s, ST_SIGNAL_OWLS);
    return code;
}

static stint_code g_disown(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                           size_t n, size_t *n_given, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->disown(real, now_us, worker, known, n, n_given, err);

    if (!code && *n_given)
        tell_any(s, ST_SIGNAL_SCHED);
    return code;
}

static stint_code g_cancel(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                           stint_code *verdicts, bool *asked, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->cancel(real, now_us, ids, n, verdicts, asked, err);

    for (size_t i = 0; i < n && !code; i++)
        if (verdicts[i] == STINT_OK && (!asked || asked[i]))
            tell(s, ST_SIGNAL_CANCEL, ids[i]);
    return code;
}

static stint_code g_retry(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                          stint_code *verdicts, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->retry(real, now_us, ids, n, verdicts, err);

    for (size_t i = 0; i < n && !code; i++)
        if (verdicts[i] == STINT_OK)
            tell_any(s, ST_SIGNAL_SCHED);
    return code;
}

static stint_code g_pause(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err)
{
    struct st_store *real = real_of(s);
    const stint_code code = real->ops->pause(real, now_us, queue, paused, err);

    if (!code && !paused)
        tell(s, ST_SIGNAL_SCHED, queue);
    return code;
}

/* ---- what is heard -------------------------------------------------------------------------------------- */

static stint_code g_wait(struct st_store *s, int timeout_ms, bool *woken, stint_error *err)
{
    return st_hearer_wait(of(s)->hearer, real_of(s), timeout_ms, woken, err);
}

static stint_code g_watch(struct st_store *s, struct st_slice worker, const struct st_slice *queues, size_t n,
                          bool work, stint_error *err)
{
    return st_hearer_watch(of(s)->hearer, worker, queues, n, work, err);
}

static unsigned g_news(struct st_store *s)
{
    return st_hearer_news(of(s)->hearer);
}

/* Either may be what the handle sleeps in. */
static void g_interrupt(struct st_store *s)
{
    st_hearer_interrupt(of(s)->hearer);
    st_store_interrupt(of(s)->real);
}

/* ---- what is only passed on -------------------------------------------------------------------------------- */

#define PASS(op, ...)                                                                                                  \
    do {                                                                                                               \
        struct st_store *real = real_of(s);                                                                            \
                                                                                                                       \
        return real->ops->op(real, __VA_ARGS__);                                                                       \
    } while (0)

static stint_code g_enqueue_tx(struct st_store *s, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, stint_error *err)
{
    PASS(enqueue_tx, conn, now_us, jobs, n, out, err);
}

static stint_code g_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                          stint_error *err)
{
    PASS(claim, req, out, n_out, err);
}

static stint_code g_renew(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err)
{
    PASS(renew, now_us, items, n, err);
}

static stint_code g_transact(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                             struct st_finish *fin, stint_error *err)
{
    PASS(transact, now_us, hold, fn, arg, fin, err);
}

static stint_code g_transact_open(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn,
                                  void *arg, stint_error *err)
{
    PASS(transact_open, now_us, hold, fn, arg, err);
}

static void g_abandon(struct st_store *s)
{
    st_store_abandon(real_of(s));
}

static stint_code g_flagged(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                            size_t *n_out, stint_error *err)
{
    PASS(flagged, worker, ids, max, n_out, err);
}

static stint_code g_discard(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                            struct st_pruned *out, stint_error *err)
{
    PASS(discard, ids, n, verdicts, out, err);
}

static stint_code g_get(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                        stint_error *err)
{
    PASS(get, now_us, id, out, err);
}

static stint_code g_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                         uint64_t *next, stint_error *err)
{
    PASS(list, req, out, n_out, next, err);
}

static stint_code g_queues(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                           stint_error *err)
{
    PASS(queues, now_us, out, n_out, err);
}

static stint_code g_next_due(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err)
{
    PASS(next_due, now_us, due_us, err);
}

static stint_code g_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    PASS(prune, req, out, err);
}

static stint_code g_upkeep(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us,
                           stint_error *err)
{
    PASS(upkeep, req, out, again_us, err);
}

static stint_code g_worker_beat(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err)
{
    PASS(worker_beat, now_us, w, err);
}

static stint_code g_worker_list(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err)
{
    PASS(worker_list, out, n_out, err);
}

static stint_code g_worker_remove(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                                  int64_t epoch, int64_t if_beat_us, stint_error *err)
{
    PASS(worker_remove, now_us, id, expire_leases, epoch, if_beat_us, err);
}

static stint_code g_lead(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err)
{
    PASS(lead, req, out, err);
}

static stint_code g_schema(struct st_store *s, bool up, struct st_schema *out, stint_error *err)
{
    PASS(schema, up, out, err);
}

static stint_code g_schema_down(struct st_store *s, int to, struct st_schema *out, stint_error *err)
{
    PASS(schema_down, to, out, err);
}

static stint_code g_schema_sql(struct st_store *s, enum st_schema_sql what, char **sql, stint_error *err)
{
    PASS(schema_sql, what, sql, err);
}

static stint_code g_backup(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err)
{
    PASS(backup, path, progress, arg, err);
}

/* Redis has a say in how soon jobs start: it is looked at with the store. */
static stint_code g_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err)
{
    struct signal *g = of(s);
    struct st_redis_batch b;
    stint_error why = {0};
    char text[512];

    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ, "PUBLISH", g->channels.names[ST_SIGNAL_CANCEL], "-", NULL);
    if (st_redis_run(g->redis, &b, &why) || st_redis_reply_fail(g->redis, st_redis_reply(&b, 0), &why)) {
        snprintf(text, sizeof(text), "signal: %s", why.message);
        found(arg, ST_WARNING, text,
              why.remedy[0] ? why.remedy
                            : "start that Redis, or take `signal` out of stint.yaml: until then workers poll");
    }
    st_redis_batch_clear(&b);
    PASS(check, found, arg, err);
}

static void g_about(struct st_store *s, struct st_store_about *out)
{
    st_store_about(real_of(s), out);
}

static int64_t g_now(struct st_store *s)
{
    return st_store_now(real_of(s));
}

static void g_close(struct st_store *s)
{
    struct signal *g = of(s);

    st_teller_free(g->teller);
    st_hearer_free(g->hearer);
    st_redis_close(g->redis);
    st_store_close(g->real);
    if (g->url)
        explicit_bzero(g->url, strlen(g->url));
    free(g->url);
    free(g);
}

static const struct st_store_ops signal_ops = {
    .enqueue = g_enqueue,
    .enqueue_tx = g_enqueue_tx,
    .claim = g_claim,
    .exchange = g_exchange,
    .acquire = g_acquire,
    .acquire_many = g_acquire_many,
    .renew = g_renew,
    .finish = g_finish,
    .transact = g_transact,
    .transact_open = g_transact_open,
    .abandon = g_abandon,
    .reap = g_reap,
    .disown = g_disown,
    .flagged = g_flagged,
    .cancel = g_cancel,
    .retry = g_retry,
    .discard = g_discard,
    .pause = g_pause,
    .get = g_get,
    .list = g_list,
    .queues = g_queues,
    .next_due = g_next_due,
    .prune = g_prune,
    .upkeep = g_upkeep,
    .worker_beat = g_worker_beat,
    .worker_list = g_worker_list,
    .worker_remove = g_worker_remove,
    .lead = g_lead,
    .wait = g_wait,
    .interrupt = g_interrupt,
    .watch = g_watch,
    .news = g_news,
    .schema = g_schema,
    .schema_down = g_schema_down,
    .schema_sql = g_schema_sql,
    .backup = g_backup,
    .check = g_check,
    .about = g_about,
    .now = g_now,
    .close = g_close,
};

/* ---- opening -------------------------------------------------------------------------------------------------- */

static void ops_take(struct signal *g, const struct st_store_ops *real)
{
    g->ops = signal_ops;
    g->ops.name = real->name;
    g->ops.caps = real->caps;
    if (!real->exchange)
        g->ops.exchange = NULL;
    if (!real->enqueue_tx)
        g->ops.enqueue_tx = NULL;
    if (!real->transact)
        g->ops.transact = NULL;
    if (!real->transact_open)
        g->ops.transact_open = NULL;
    if (!real->upkeep)
        g->ops.upkeep = NULL;
    if (!real->schema_down)
        g->ops.schema_down = NULL;
    if (!real->schema_sql)
        g->ops.schema_sql = NULL;
}

/* EINVAL if it is not a URL for this. */
static stint_code signal_open(struct signal *g, const char *url, stint_error *err)
{
    stint_code code = st_redis_open(url, ST_SIGNAL_TIMEOUT_MS, &g->redis, err);

    if (!code)
        code = st_signal_channels(&g->redis->url, &g->channels, err);
    if (!code && !(g->hearer = st_hearer_new(g->redis, &g->channels, err)))
        code = err ? err->code : STINT_ENOMEM;
    if (!code && !(g->url = strdup(url)))
        code = st_fail(err, STINT_ENOMEM, "no memory for the signal");
    return code;
}

stint_code st_store_signal(struct st_store *real, const char *url, struct st_store **out, stint_error *err)
{
    struct signal *g = calloc(1, sizeof(*g));
    stint_error own = {0};
    stint_code code;

    *out = NULL;
    if (!g)
        return st_fail(err, STINT_ENOMEM, "no memory for the signal");
    code = signal_open(g, url, &own);
    if (code) {
        if (err)
            *err = own;
        g_close(&g->base);
        return code;
    }
    g->real = real;
    ops_take(g, real->ops);
    g->base.ops = &g->ops;
    g->base.timeout_ms = real->timeout_ms;
    *out = &g->base;
    return STINT_OK;
}
