/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c - what callers use: checks arguments, then calls through the store's table.
 *
 * A wrong argument is EINVAL before any store is asked, so that all stores refuse the same things.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

#define BATCH_MAX 1000000
#define LIST_MAX  100000

/* ---- names ------------------------------------------------------------------------------ */

const char *st_cap_name(unsigned bit)
{
    switch (bit) {
    case ST_CAP_PRIORITY:
        return "PRIORITY";
    case ST_CAP_TYPE_FILTER:
        return "TYPE_FILTER";
    case ST_CAP_DUE_ORDER:
        return "DUE_ORDER";
    case ST_CAP_UNIQUE_FOREVER:
        return "UNIQUE_FOREVER";
    case ST_CAP_BATCH_ATOMIC:
        return "BATCH_ATOMIC";
    case ST_CAP_USER_TX:
        return "USER_TX";
    case ST_CAP_ATOMIC_HANDLER:
        return "ATOMIC_HANDLER";
    case ST_CAP_FENCE_FOREIGN:
        return "FENCE_FOREIGN";
    default:
        return "?";
    }
}

const char *st_refusal_name(enum st_refusal r)
{
    static const char *const names[] = {
        [ST_REFUSED_NOT] = "not refused", [ST_REFUSED_UNKNOWN] = "unknown",     [ST_REFUSED_NOT_DUE] = "not due",
        [ST_REFUSED_PAUSED] = "paused",   [ST_REFUSED_EXHAUSTED] = "exhausted", [ST_REFUSED_HELD] = "held",
        [ST_REFUSED_ENDED] = "ended",
    };

    return (size_t)r < sizeof(names) / sizeof(names[0]) ? names[r] : "?";
}

const char *st_outcome_name(enum st_outcome o)
{
    static const char *const names[] = {
        [ST_OUT_SUCCEEDED] = "succeeded", [ST_OUT_RETRY] = "retry",       [ST_OUT_FAILED] = "failed",
        [ST_OUT_CANCELLED] = "cancelled", [ST_OUT_RELEASED] = "released",
    };

    return (size_t)o < sizeof(names) / sizeof(names[0]) ? names[o] : "?";
}

const struct st_type_rule *st_rule_find(const struct st_type_rule *rules, size_t n, struct st_slice queue,
                                        struct st_slice type)
{
    const struct st_type_rule *best = NULL;
    int best_rank = 0;

    for (size_t i = 0; i < n; i++) {
        const struct st_type_rule *r = &rules[i];
        const int rank = st_pattern_match(r->pattern, type);

        if (!rank || (r->queue.p && !st_queue_covers(r->queue, queue)))
            continue;
        if (!best || (r->queue.p && !best->queue.p) || (!r->queue.p == !best->queue.p && rank > best_rank)) {
            best = r;
            best_rank = rank;
        }
    }
    return best;
}

/* ---- memory ----------------------------------------------------------------------------- */

void st_pruned_clear(struct st_pruned *p)
{
    for (size_t i = 0; i < p->n_files; i++)
        free(p->files[i]);
    free(p->files);
    memset(p, 0, sizeof(*p));
}

void st_job_info_list_free(struct st_job_info *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        st_job_info_clear(&list[i]);
    free(list);
}

/* ---- checks ----------------------------------------------------------------------------- */

static stint_code text_check(struct st_slice s, size_t max, const char *what, stint_error *err)
{
    if (!s.p || s.len == 0 || s.len > max)
        return st_fail(err, STINT_EINVAL, "%s must have 1 to %zu bytes", what, max);
    return STINT_OK;
}

static stint_code batch_check(size_t n, const char *what, stint_error *err)
{
    if (n > BATCH_MAX)
        return st_fail(err, STINT_EINVAL, "too many %s at once: %zu, at most %d", what, n, BATCH_MAX);
    return STINT_OK;
}

static stint_code ids_check(const struct st_slice *ids, size_t n, stint_error *err)
{
    stint_code code = batch_check(n, "jobs", err);

    for (size_t i = 0; !code && i < n; i++)
        code = text_check(ids[i], ST_ID_MAX, "an id", err);
    return code;
}

static stint_code key_check(const struct st_store *s, const struct st_new_job *j, stint_error *err)
{
    if (j->unique == ST_UNIQUE_NONE)
        return STINT_OK;
    if (j->unique == ST_UNIQUE_FOREVER && !(s->ops->caps & ST_CAP_UNIQUE_FOREVER))
        return st_refuse(err, "use a long duration, such as 365d", "the %s store cannot hold a key for ever",
                         s->ops->name);
    if (j->unique == ST_UNIQUE_WINDOW && j->window_us <= 0)
        return st_fail(err, STINT_EINVAL, "a unique window must be longer than nothing");
    return text_check(j->key, ST_KEY_MAX, "a unique key", err);
}

static stint_code new_job_check(const struct st_store *s, const struct st_new_job *j, stint_error *err)
{
    stint_code code = text_check(j->id, ST_ID_MAX, "an id", err);

    if (!code)
        code = text_check(j->type, ST_NAME_MAX, "a type", err);
    if (!code)
        code = text_check(j->queue, ST_NAME_MAX, "a queue", err);
    if (!code)
        code = key_check(s, j, err);
    if (code)
        return code;
    if (j->priority < ST_PRIORITY_MIN || j->priority > ST_PRIORITY_MAX)
        return st_fail(err, STINT_EINVAL, "priority %d is not between %d and %d", j->priority, ST_PRIORITY_MIN,
                       ST_PRIORITY_MAX);
    if (j->priority && !(s->ops->caps & ST_CAP_PRIORITY))
        return st_refuse(err, "give it a queue of its own, such as mail.high, and let workers name that one first",
                         "the %s store knows no priorities within a queue", s->ops->name);
    if (j->due_us < 0 || j->delay_us < 0)
        return st_fail(err, STINT_EINVAL, "a delay cannot be negative");
    if (j->payload.len > INT32_MAX || j->meta.len > INT32_MAX)
        return st_fail(err, STINT_EINVAL, "the payload is too large");
    return STINT_OK;
}

static stint_code claim_check(const struct st_store *s, const struct st_claim_req *req, stint_error *err)
{
    stint_code code = text_check(req->worker, ST_ID_MAX, "a worker's id", err);

    if (!code)
        code = batch_check(req->n, "jobs", err);
    if (!code && req->lease_us <= 0)
        code = st_fail(err, STINT_EINVAL, "a lease must be longer than nothing");
    if (!code && req->due_by_us && !(s->ops->caps & ST_CAP_DUE_ORDER))
        code = st_fail(err, STINT_EINVAL, "the %s store cannot choose by due time", s->ops->name);
    return code;
}

/* ---- calls ------------------------------------------------------------------------------ */

stint_code st_store_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err)
{
    stint_code code = batch_check(n, "jobs", err);

    for (size_t i = 0; !code && i < n; i++)
        code = new_job_check(s, &jobs[i], err);
    return code || n == 0 ? code : s->ops->enqueue(s, now_us, jobs, n, out, err);
}

stint_code st_store_enqueue_tx(struct st_store *s, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, stint_error *err)
{
    stint_code code = batch_check(n, "jobs", err);

    if (!s->ops->enqueue_tx || !(s->ops->caps & ST_CAP_USER_TX))
        return st_fail(err, STINT_EINVAL, "the %s store cannot add jobs in somebody's own transaction", s->ops->name);
    for (size_t i = 0; !code && i < n; i++)
        code = new_job_check(s, &jobs[i], err);
    return code || n == 0 ? code : s->ops->enqueue_tx(s, conn, now_us, jobs, n, out, err);
}

stint_code st_store_fit(struct st_store *s, stint_error *err)
{
    return s->ops->fit ? s->ops->fit(s, err) : STINT_OK;
}

stint_code st_store_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                          stint_error *err)
{
    stint_code code = claim_check(s, req, err);

    *n_out = 0;
    return code || req->n == 0 ? code : s->ops->claim(s, req, out, n_out, err);
}

static stint_code finish_check(const struct st_finish *items, size_t n, stint_error *err)
{
    stint_code code = batch_check(n, "outcomes", err);

    for (size_t i = 0; !code && i < n; i++) {
        code = text_check(items[i].id, ST_ID_MAX, "an id", err);
        if (!code && (items[i].delay_us < 0 || items[i].result.len > INT32_MAX))
            code = st_fail(err, STINT_EINVAL, "a delay below zero or a result too large");
    }
    return code;
}

stint_code st_store_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                             const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                             stint_error *err)
{
    stint_code code = finish_check(items, n, err);

    *n_out = 0;
    *finished = false;
    if (!code)
        code = claim_check(s, req, err);
    if (code)
        return code;
    if (s->ops->exchange && n > 0 && req->n > 0 && !req->due_by_us)
        return s->ops->exchange(s, now_us, items, n, req, out, n_out, finished, err);
    if (n > 0)
        code = s->ops->finish(s, now_us, items, n, err);
    *finished = !code;
    return code || req->n == 0 ? code : s->ops->claim(s, req, out, n_out, err);
}

stint_code st_store_acquire(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                            enum st_refusal *why, stint_error *err)
{
    stint_code code = text_check(id, ST_ID_MAX, "an id", err);

    *out = NULL;
    *why = ST_REFUSED_NOT;
    if (!code)
        code = claim_check(s, req, err);
    return code ? code : s->ops->acquire(s, id, req, out, why, err);
}

stint_code st_store_acquire_many(struct st_store *s, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                                 stint_error *err)
{
    stint_code code = batch_check(n, "jobs", err);

    for (size_t i = 0; i < n; i++) {
        items[i].job = NULL;
        items[i].why = ST_REFUSED_NOT;
        if (!code)
            code = text_check(items[i].id, ST_ID_MAX, "an id", err);
    }
    if (!code)
        code = claim_check(s, req, err);
    if (code || n == 0)
        return code;
    if (s->ops->acquire_many && n > 1)
        return s->ops->acquire_many(s, items, n, req, err);
    for (size_t i = 0; i < n && !code; i++) {
        code = s->ops->acquire(s, items[i].id, req, &items[i].job, &items[i].why, err);
        if (code && items[i].why)
            code = STINT_OK; /* refused: that is an answer */
    }
    return code;
}

stint_code st_store_renew(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err)
{
    stint_code code = batch_check(n, "leases", err);

    for (size_t i = 0; !code && i < n; i++)
        code = text_check(items[i].id, ST_ID_MAX, "an id", err);
    return code || n == 0 ? code : s->ops->renew(s, now_us, items, n, err);
}

stint_code st_store_finish(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err)
{
    stint_code code = finish_check(items, n, err);

    return code || n == 0 ? code : s->ops->finish(s, now_us, items, n, err);
}

stint_code st_store_transact(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                             struct st_finish *fin, stint_error *err)
{
    stint_code code = text_check(hold->id, ST_ID_MAX, "an id", err);

    if (!s->ops->transact)
        return st_fail(err, STINT_EINVAL, "the %s store has no transactions for handlers", s->ops->name);
    return code ? code : s->ops->transact(s, now_us, hold, fn, arg, fin, err);
}

stint_code st_store_transact_open(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn,
                                  void *arg, stint_error *err)
{
    stint_code code = text_check(hold->id, ST_ID_MAX, "an id", err);

    if (!s->ops->transact_open || !(s->ops->caps & ST_CAP_ATOMIC_HANDLER)) {
        st_fail(err, STINT_EINVAL, "the %s store cannot run a whole attempt in one transaction", s->ops->name);
        st_err_remedy(err, "use STINT_STAGED: prepare and finish in two");
        return STINT_EINVAL;
    }
    return code ? code : s->ops->transact_open(s, now_us, hold, fn, arg, err);
}

void st_store_abandon(struct st_store *s)
{
    if (s->ops->abandon)
        s->ops->abandon(s);
}

stint_code st_store_reap(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                         size_t *n_out, stint_error *err)
{
    stint_code code = batch_check(max, "jobs", err);

    *n_out = 0;
    return code || max == 0 ? code : s->ops->reap(s, now_us, me, out, max, n_out, err);
}

stint_code st_store_disown(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                           size_t n, size_t *n_given, stint_error *err)
{
    stint_code code = text_check(worker, ST_ID_MAX, "a worker's id", err);

    *n_given = 0;
    if (!code)
        code = ids_check(known, n, err);
    return code ? code : s->ops->disown(s, now_us, worker, known, n, n_given, err);
}

stint_code st_store_flagged(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                            size_t *n_out, stint_error *err)
{
    stint_code code = text_check(worker, ST_ID_MAX, "a worker's id", err);

    *n_out = 0;
    return code || max == 0 ? code : s->ops->flagged(s, worker, ids, max, n_out, err);
}

stint_code st_store_cancel(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                           stint_code *verdicts, bool *asked, stint_error *err)
{
    stint_code code = ids_check(ids, n, err);

    return code || n == 0 ? code : s->ops->cancel(s, now_us, ids, n, verdicts, asked, err);
}

stint_code st_store_retry(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                          stint_code *verdicts, stint_error *err)
{
    stint_code code = ids_check(ids, n, err);

    return code || n == 0 ? code : s->ops->retry(s, now_us, ids, n, verdicts, err);
}

stint_code st_store_discard(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                            struct st_pruned *out, stint_error *err)
{
    stint_code code = ids_check(ids, n, err);

    memset(out, 0, sizeof(*out));
    return code || n == 0 ? code : s->ops->discard(s, ids, n, verdicts, out, err);
}

stint_code st_store_pause(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err)
{
    stint_code code = text_check(queue, ST_NAME_MAX, "a queue", err);

    return code ? code : s->ops->pause(s, now_us, queue, paused, err);
}

stint_code st_store_get(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                        stint_error *err)
{
    stint_code code = text_check(id, ST_ID_MAX, "an id", err);

    memset(out, 0, sizeof(*out));
    return code ? code : s->ops->get(s, now_us, id, out, err);
}

stint_code st_store_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                         uint64_t *next, stint_error *err)
{
    uint64_t after = 0; /* next may be &req->after */
    stint_code code;

    *out = NULL;
    *n_out = 0;
    if (req->limit == 0 || req->limit > LIST_MAX)
        return st_fail(err, STINT_EINVAL, "a list has 1 to %d jobs", LIST_MAX);
    code = s->ops->list(s, req, out, n_out, &after, err);
    *next = code ? 0 : after;
    return code;
}

stint_code st_store_queues(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                           stint_error *err)
{
    *out = NULL;
    *n_out = 0;
    return s->ops->queues(s, now_us, out, n_out, err);
}

stint_code st_store_next_due(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err)
{
    *due_us = 0;
    return s->ops->next_due(s, now_us, due_us, err);
}

stint_code st_store_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    memset(out, 0, sizeof(*out));
    if (req->limit == 0 || req->limit > BATCH_MAX)
        return st_fail(err, STINT_EINVAL, "prune removes 1 to %d jobs at once", BATCH_MAX);
    return s->ops->prune(s, req, out, err);
}

stint_code st_store_upkeep(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us,
                           stint_error *err)
{
    memset(out, 0, sizeof(*out));
    *again_us = ST_DAY;
    return s->ops->upkeep ? s->ops->upkeep(s, req, out, again_us, err) : STINT_OK;
}

stint_code st_store_worker_beat(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err)
{
    stint_code code = text_check(st_slice_cstr(w->id), ST_ID_MAX, "a worker's id", err);

    return code ? code : s->ops->worker_beat(s, now_us, w, err);
}

stint_code st_store_worker_list(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err)
{
    *out = NULL;
    *n_out = 0;
    return s->ops->worker_list(s, out, n_out, err);
}

stint_code st_store_worker_remove(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                                  int64_t epoch, int64_t if_beat_us, stint_error *err)
{
    stint_code code = text_check(id, ST_ID_MAX, "a worker's id", err);

    return code ? code : s->ops->worker_remove(s, now_us, id, expire_leases, epoch, if_beat_us, err);
}

stint_code st_store_lead(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err)
{
    stint_code code = text_check(req->worker, ST_ID_MAX, "a worker's id", err);

    memset(out, 0, sizeof(*out));
    if (!code && !req->release && req->term_us <= 0)
        code = st_fail(err, STINT_EINVAL, "a term must be longer than nothing");
    return code ? code : s->ops->lead(s, req, out, err);
}

stint_code st_store_wait(struct st_store *s, int timeout_ms, bool *woken, stint_error *err)
{
    *woken = false;
    return s->ops->wait(s, timeout_ms, woken, err);
}

void st_store_interrupt(struct st_store *s)
{
    s->ops->interrupt(s);
}

stint_code st_store_watch(struct st_store *s, struct st_slice worker, const struct st_slice *queues, size_t n,
                          bool work, stint_error *err)
{
    stint_code code = text_check(worker, ST_ID_MAX, "a worker's id", err);

    return code || !s->ops->watch ? code : s->ops->watch(s, worker, queues, n, work, err);
}

unsigned st_store_news(struct st_store *s)
{
    return s->ops->news ? s->ops->news(s) : ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST;
}

stint_code st_store_schema(struct st_store *s, bool up, struct st_schema *out, stint_error *err)
{
    return s->ops->schema(s, up, out, err);
}

stint_code st_store_schema_down(struct st_store *s, int to, struct st_schema *out, stint_error *err)
{
    memset(out, 0, sizeof(*out));
    if (to < 0)
        return st_fail(err, STINT_EINVAL, "there is no schema version %d", to);
    if (!s->ops->schema_down)
        return st_fail(err, STINT_EINVAL, "the %s store cannot take its schema down", s->ops->name);
    return s->ops->schema_down(s, to, out, err);
}

stint_code st_store_schema_sql(struct st_store *s, enum st_schema_sql what, char **sql, stint_error *err)
{
    *sql = NULL;
    if (!s->ops->schema_sql)
        return st_fail(err, STINT_EINVAL, "the %s store has no SQL for others to run", s->ops->name);
    return s->ops->schema_sql(s, what, sql, err);
}

stint_code st_store_backup(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err)
{
    if (!path || !*path)
        return st_fail(err, STINT_EINVAL, "a backup needs the path of a new file");
    return s->ops->backup(s, path, progress, arg, err);
}

stint_code st_store_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err)
{
    return s->ops->check(s, found, arg, err);
}

void st_store_about(struct st_store *s, struct st_store_about *out)
{
    s->ops->about(s, out);
}

int64_t st_store_now(struct st_store *s)
{
    return s->ops->now(s);
}

void st_store_close(struct st_store *s)
{
    if (s)
        s->ops->close(s);
}

/* ---- opening ---------------------------------------------------------------------------- */

static stint_code sqlite_open(const char *url, const struct st_store_open *opt, struct st_store **out, stint_error *err)
{
    return st_store_sqlite_open(url + strlen("sqlite:"), opt, out, err);
}

static const struct {
    const char *kind;
    stint_code (*open)(const char *url, const struct st_store_open *opt, struct st_store **out, stint_error *err);
} kinds[] = {
    {"sqlite", sqlite_open},
    {"postgres", st_store_postgres_open},
    {"redis", st_store_redis_open},
};

/* Puts the signal around a store that was just opened. */
static stint_code with_signal(const char *kind, const char *signal, struct st_store **out, stint_error *err)
{
    struct st_store *real = *out;
    stint_code rc;

    if (strcmp(kind, "redis") == 0) {
        rc = st_refuse(err, "take `signal` out of stint.yaml, or unset STINT_SIGNAL",
                       "a Redis store has wake-ups of its own: it takes no signal");
    } else {
        rc = st_store_signal(real, signal, out, err);
    }
    if (rc != STINT_OK) {
        st_store_close(real);
        *out = NULL;
    }
    return rc;
}

stint_code st_store_open(const char *url, const struct st_store_open *opt, struct st_store **out, stint_error *err)
{
    const char *kind = st_store_kind(url);
    const char *colon = strchr(url, ':');
    stint_code rc;

    *out = NULL;
    if (kind && opt && opt->runqy && strcmp(kind, "redis") != 0)
        return st_refuse(err, "name a Redis store (redis://...), or leave runqy out",
                         "runqy: true needs a Redis store, not %s", kind);
    for (size_t i = 0; kind && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kind, kinds[i].kind) == 0) {
            rc = kinds[i].open(url, opt, out, err);
            return rc == STINT_OK && opt && opt->signal ? with_signal(kind, opt->signal, out, err) : rc;
        }
    if (colon)
        st_fail(err, STINT_EINVAL, "there is no store of the kind %.*s", (int)(colon - url), url);
    else
        st_fail(err, STINT_EINVAL, "a store is named by a URL, not \"%s\"", url);
    st_err_remedy(err, "use " ST_STORE_URLS);
    return STINT_EINVAL;
}
