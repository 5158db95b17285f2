/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_reap.c - jobs whose worker has gone silent, and jobs a worker does not know it holds.
 *
 *     running, lease expired   charged: retry with its backoff, or failed (lease_expired)
 *     claimed, lease expired   not charged, pending at once; from the 4th time in a row as above
 *     asked to cancel          cancelled
 *
 * Thread: the writer's.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>

#define SKIPS_MAX 3

struct reap {
    int64_t now_us;
    struct st_slice me;
    struct st_reaped *out;
    size_t max, n_out;
};

static stint_code read_rows(struct st_sq_writer *w, sqlite3_stmt *st, struct st_sq_row **rows, size_t *n,
                            stint_error *err)
{
    struct st_sq_row *grown;
    size_t cap = 0;
    int rc;

    *rows = NULL;
    *n = 0;
    if (st_sq_lanes_refresh(&w->c, &w->lanes, err)) /* now, so that no lane moves while we read */
        return err->code;
    while ((rc = st_sq_step(&w->c, st, err)) == SQLITE_ROW) {
        if (*n == cap) {
            cap = cap ? cap * 2 : 16;
            grown = realloc(*rows, cap * sizeof(**rows));
            if (!grown) {
                sqlite3_reset(st);
                return st_fail(err, STINT_ENOMEM, "out of memory for expired jobs");
            }
            *rows = grown;
        }
        if (st_sq_row_read(w, st, &(*rows)[*n], err)) {
            sqlite3_reset(st);
            return err->code;
        }
        (*n)++;
    }
    return rc < 0 ? err->code : STINT_OK;
}

/* Back to pending, or failed, by the policy that was written when it was claimed. */
static stint_code charge(struct st_sq_writer *w, const struct st_sq_row *row, struct st_sq_ended *e, enum st_state *to,
                         stint_error *err)
{
    struct st_policy policy;
    int max, attempt = row->attempt > 0 ? row->attempt : 1;

    if (st_sq_policy_get(&w->c, row->policy, &policy, err))
        return err->code;
    max = row->max_attempts >= 0 ? (int)row->max_attempts : policy.max_attempts;
    if (st_policy_may_retry(max, attempt)) {
        *to = ST_PENDING;
        return st_sq_row_to_pending(w, row, ST_EV_RETRY, e->now_us,
                                    e->now_us + st_policy_delay(&policy, attempt, st_random_unit()), row->attempt, 0, e,
                                    err);
    }
    *to = ST_FAILED;
    return st_sq_row_end(w, row, ST_EV_FAIL, e, err);
}

static stint_code reap_row(struct st_sq_writer *w, const struct st_sq_row *row, int64_t now, enum st_state *to,
                           stint_error *err)
{
    struct st_sq_ended e = {.now_us = now,
                            .started_us = row->started,
                            .outcome = "lease_expired",
                            .kind = ST_KIND_LEASE_EXPIRED,
                            .message = st_slice_cstr("the lease expired: its worker is gone"),
                            .exit_code = -1};

    if (row->cancel) {
        e.kind = ST_KIND_CANCELLED;
        e.message = st_slice_cstr("cancelled; its worker is gone");
        *to = ST_CANCELLED;
        return st_sq_row_end(w, row, ST_EV_CANCEL, &e, err);
    }
    if (row->state == ST_RUNNING || row->skips >= SKIPS_MAX)
        return charge(w, row, &e, to, err);
    *to = ST_PENDING;
    return st_sq_row_to_pending(w, row, ST_EV_RELEASE, now, row->due < now ? row->due : now,
                                row->attempt > 0 ? row->attempt - 1 : 0, row->skips + 1, &e, err);
}

static void reaped_fill(struct st_reaped *r, const struct st_sq_row *row, enum st_state to)
{
    memcpy(r->id, row->id, sizeof(r->id));
    memcpy(r->worker, row->worker, sizeof(r->worker));
    r->fence = row->fence;
    r->from = row->state;
    r->to = to;
}

static stint_code reap_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct reap *r = arg;
    const int64_t now = st_sq_now(r->now_us);
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ROW_EXPIRED, err);
    struct st_sq_row *rows;
    enum st_state to = ST_PENDING;
    stint_code code;
    size_t n;

    if (!st)
        return err->code;
    bind_int(st, 1, now);
    bind_text(st, 2, r->me.p ? r->me : st_slice_cstr(""));
    bind_int(st, 3, (int64_t)r->max);
    code = read_rows(w, st, &rows, &n, err);
    for (size_t i = 0; !code && i < n; i++) {
        code = reap_row(w, &rows[i], now, &to, err);
        if (!code)
            reaped_fill(&r->out[r->n_out++], &rows[i], to);
    }
    free(rows);
    return code;
}

static stint_code reap_probe(struct st_sq_writer *w, void *arg, bool *need, stint_error *err)
{
    const struct reap *r = arg;
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_EXPIRED_ANY, err);
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, st_sq_now(r->now_us));
    bind_text(st, 2, r->me.p ? r->me : st_slice_cstr(""));
    rc = st_sq_step(&w->c, st, err);
    *need = rc == SQLITE_ROW;
    if (*need)
        sqlite3_reset(st);
    return rc < 0 ? err->code : STINT_OK;
}

static void reap_undo(void *arg)
{
    ((struct reap *)arg)->n_out = 0;
}

stint_code st_sq_reap(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                      size_t *n_out, stint_error *err)
{
    struct reap r = {.now_us = now_us, .me = me, .out = out, .max = max};
    struct st_sq_req req = {.run = reap_run, .probe = reap_probe, .undo = reap_undo, .arg = &r};
    const stint_code code = st_sq_submit(st_sq_of(s), &req, err);

    *n_out = r.n_out;
    return code;
}

/* ---- disown ----------------------------------------------------------------------------- */

struct disown {
    int64_t now_us;
    struct st_slice worker;
    const struct st_slice *known;
    size_t n, given;
};

static bool is_known(const struct disown *d, const char *id)
{
    for (size_t i = 0; i < d->n; i++)
        if (st_slice_is(d->known[i], id))
            return true;
    return false;
}

static stint_code disown_row(struct st_sq_writer *w, const struct st_sq_row *row, int64_t now, stint_error *err)
{
    struct st_sq_ended e = {
        .now_us = now, .outcome = st_outcome_name(ST_OUT_CANCELLED), .kind = ST_KIND_CANCELLED, .exit_code = -1};

    if (row->cancel)
        return st_sq_row_end(w, row, ST_EV_CANCEL, &e, err);
    return st_sq_row_to_pending(w, row, ST_EV_RELEASE, now, row->due < now ? row->due : now,
                                row->attempt > 0 ? row->attempt - 1 : 0, row->skips, NULL, err);
}

static stint_code disown_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct disown *d = arg;
    const int64_t now = st_sq_now(d->now_us);
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ROW_HELD_BY, err);
    struct st_sq_row *rows;
    stint_code code;
    size_t n;

    if (!st)
        return err->code;
    bind_int(st, 1, INT64_MIN);
    bind_text(st, 2, d->worker);
    bind_int(st, 3, -1);
    code = read_rows(w, st, &rows, &n, err);
    for (size_t i = 0; !code && i < n; i++) {
        if (is_known(d, rows[i].id))
            continue;
        code = disown_row(w, &rows[i], now, err);
        d->given++;
    }
    free(rows);
    return code;
}

static void disown_undo(void *arg)
{
    ((struct disown *)arg)->given = 0;
}

stint_code st_sq_disown(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                        size_t n, size_t *n_given, stint_error *err)
{
    struct disown d = {.now_us = now_us, .worker = worker, .known = known, .n = n};
    struct st_sq_req req = {.run = disown_run, .undo = disown_undo, .arg = &d};
    const stint_code code = st_sq_submit(st_sq_of(s), &req, err);

    *n_given = d.given;
    return code;
}
