/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_finish.c - while a job is held: renew its lease, write its outcome.
 *
 * Both are fenced: the row must be held and carry the very fence the worker got.  A late one is
 * accepted as long as that holds; the clock does not matter here.
 *
 * A finish may be repeated after an unknown outcome.  It was ours, and is answered OK again, if
 *   - the job succeeded under this fence, and that is what is brought;
 *   - the row of this attempt says the outcome that is brought (or cancelled, where a cancel
 *     request turned it into that);
 *   - it was given back before it started: there is no row, and the job waits under this fence.
 *
 * Thread: the writer's, inside a transaction.
 */
#include "store/sqlite_int.h"

#include <string.h>

/* ---- renew ------------------------------------------------------------------------------ */

struct renew {
    int64_t now_us;
    struct st_renew *items;
    size_t n;
};

static stint_code start(struct st_sq_writer *w, const struct st_sq_row *row, int64_t started, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_START, err);
    enum st_state to;

    if (!st || st_sq_next(row, ST_EV_START, &to, err))
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, started);
    bind_int(st, 3, row->fence);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    st_sq_count(row->lane, ST_SHOW_CLAIMED, -1);
    st_sq_count(row->lane, st_sq_bucket(to, false, row->attempt), 1);
    return STINT_OK;
}

static stint_code renew_one(struct st_sq_writer *w, struct st_renew *r, int64_t now, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_RENEW, err);
    struct st_sq_row row;
    bool found;

    if (!st || st_sq_row_find(w, r->id, r->ref, &row, &found, err))
        return err->code;
    r->cancel = false;
    r->verdict = STINT_ELOST;
    if (!found || !st_state_held(row.state) || row.fence != r->fence)
        return STINT_OK;
    bind_int(st, 1, row.seq);
    bind_int(st, 2, now + r->lease_us);
    bind_blob(st, 3, r->progress);
    bind_int(st, 4, row.fence);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    if (row.state == ST_CLAIMED && r->started_ago_us >= 0 && start(w, &row, now - r->started_ago_us, err))
        return err->code;
    r->verdict = STINT_OK;
    r->cancel = row.cancel;
    return STINT_OK;
}

static stint_code renew_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct renew *r = arg;
    const int64_t now = st_sq_now(r->now_us);

    for (size_t i = 0; i < r->n; i++)
        if (renew_one(w, &r->items[i], now, err))
            return err->code;
    return STINT_OK;
}

stint_code st_sq_renew(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err)
{
    struct renew r = {.now_us = now_us, .items = items, .n = n};
    struct st_sq_req req = {.run = renew_run, .arg = &r};

    return st_sq_submit(st_sq_of(s), &req, err);
}

/* ---- finish ----------------------------------------------------------------------------- */

static bool gives_back(enum st_outcome o)
{
    return o == ST_OUT_RETRY || o == ST_OUT_RELEASED;
}

/* What the outcome becomes for this row. */
static enum st_outcome effective(const struct st_sq_row *row, const struct st_finish *f)
{
    return row->cancel && gives_back(f->outcome) ? ST_OUT_CANCELLED : f->outcome;
}

static void ended_fill(struct st_sq_ended *e, const struct st_sq_row *row, const struct st_finish *f,
                       enum st_outcome outcome, int64_t now)
{
    *e = (struct st_sq_ended){
        .now_us = now,
        .started_us = f->started_ago_us >= 0 && !row->started ? now - f->started_ago_us : row->started,
        .outcome = st_outcome_name(outcome),
        .kind = f->kind,
        .message = f->message,
        .exit_code = f->exit_code,
        .signal = f->signal,
        .max_rss_kb = f->max_rss_kb,
        .log = f->log,
        .log_tail = f->log_tail,
    };
    if (outcome == ST_OUT_CANCELLED)
        e->kind = ST_KIND_CANCELLED;
}

/* Given back: the attempt is not charged.  If it never started nothing is written down. */
static stint_code release(struct st_sq_writer *w, const struct st_sq_row *row, const struct st_finish *f,
                          struct st_sq_ended *e, stint_error *err)
{
    const int attempt = row->attempt > 0 ? row->attempt - 1 : 0;
    const int skips = e->started_us ? 0 : row->skips;

    return st_sq_row_to_pending(w, row, ST_EV_RELEASE, e->now_us, e->now_us + f->delay_us, attempt, skips,
                                e->started_us ? e : NULL, err);
}

static stint_code finish_held(struct st_sq_writer *w, const struct st_sq_row *row, struct st_finish *f, int64_t now,
                              stint_error *err)
{
    const enum st_outcome outcome = effective(row, f);
    struct st_sq_ended e;

    ended_fill(&e, row, f, outcome, now);
    switch (outcome) {
    case ST_OUT_SUCCEEDED:
        f->state = ST_SUCCEEDED;
        return st_sq_row_succeed(w, row, f, &e, err);
    case ST_OUT_RETRY:
        f->state = ST_PENDING;
        return st_sq_row_to_pending(w, row, ST_EV_RETRY, now, now + f->delay_us, row->attempt, 0, &e, err);
    case ST_OUT_RELEASED:
        f->state = ST_PENDING;
        return release(w, row, f, &e, err);
    case ST_OUT_FAILED:
        f->state = ST_FAILED;
        return st_sq_row_end(w, row, ST_EV_FAIL, &e, err);
    case ST_OUT_CANCELLED:
        f->state = ST_CANCELLED;
        return st_sq_row_end(w, row, ST_EV_CANCEL, &e, err);
    }
    return st_fail(err, STINT_EINVAL, "no such outcome: %d", (int)outcome);
}

/* What the row of attempt (seq, fence) says; "" = there is none. */
static stint_code attempt_outcome(struct st_sq_writer *w, int64_t seq, int64_t fence, char out[32], stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ATTEMPT_OUTCOME, err);
    int rc;

    out[0] = '\0';
    if (!st)
        return err->code;
    bind_int(st, 1, seq);
    bind_int(st, 2, fence);
    rc = st_sq_step(&w->c, st, err);
    if (rc < 0)
        return err->code;
    if (rc == SQLITE_ROW) {
        snprintf(out, 32, "%.*s", (int)col_slice(st, 0).len, col_slice(st, 0).p);
        sqlite3_reset(st);
    }
    return STINT_OK;
}

/* The row is not held under this fence.  Have we written this outcome before? */
static stint_code finish_again(struct st_sq_writer *w, const struct st_sq_row *row, struct st_finish *f,
                               stint_error *err)
{
    char was[32];
    bool ours;

    if (row->fence < f->fence || attempt_outcome(w, row->seq, f->fence, was, err))
        return row->fence < f->fence ? STINT_OK : err->code;
    if (was[0])
        ours = strcmp(was, st_outcome_name(f->outcome)) == 0 ||
               (gives_back(f->outcome) && strcmp(was, st_outcome_name(ST_OUT_CANCELLED)) == 0);
    else if (row->fence == f->fence && row->state == ST_SUCCEEDED)
        ours = f->outcome == ST_OUT_SUCCEEDED;
    else
        ours = row->fence == f->fence && row->state == ST_PENDING && f->outcome == ST_OUT_RELEASED;
    if (ours) {
        f->verdict = STINT_OK;
        f->state = row->state;
    }
    return STINT_OK;
}

/* The common case without a look at the row: the job succeeded, holds no key, and is as the worker
 * believes. *done = false: it is not that case, nothing has changed. */
static stint_code succeed_as(struct st_sq_writer *w, struct st_finish *f, int64_t now, bool *done, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_SUCCEED_AS, err);
    struct st_sq_lane *lane;

    *done = false;
    if (!st)
        return err->code;
    bind_int(st, 1, st_sq_ref_seq(f->ref));
    bind_int(st, 2, f->fence);
    bind_int(st, 3, now);
    bind_opt(st, 4, f->started_ago_us >= 0 ? now - f->started_ago_us : -1);
    bind_blob(st, 5, f->result);
    bind_text(st, 6, f->result_ref);
    bind_opt(st, 7, f->exit_code);
    bind_pos(st, 8, f->signal);
    bind_pos(st, 9, f->max_rss_kb);
    bind_text(st, 10, f->log);
    bind_blob(st, 11, f->log_tail);
    bind_int(st, 12, f->held_as);
    bind_text(st, 13, f->id);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    if (sqlite3_changes(w->c.db) != 1)
        return STINT_OK;
    lane = st_sq_lane_by_id(w, st_sq_ref_lane(f->ref), err);
    if (!lane)
        return err->code;
    st_sq_count(lane, st_sq_bucket(f->held_as, false, 1), -1);
    st_sq_count(lane, ST_SHOW_SUCCEEDED, 1);
    f->verdict = STINT_OK;
    f->state = ST_SUCCEEDED;
    *done = true;
    return STINT_OK;
}

static bool may_succeed_as(const struct st_finish *f)
{
    return f->outcome == ST_OUT_SUCCEEDED && f->ref && st_state_held(f->held_as) &&
           st_state_next(f->held_as, ST_EV_SUCCEED) == ST_SUCCEEDED;
}

static stint_code finish_one(struct st_sq_writer *w, struct st_finish *f, int64_t now, stint_error *err)
{
    struct st_sq_row row;
    bool found = false;

    if (may_succeed_as(f) && (succeed_as(w, f, now, &found, err) || found))
        return found ? STINT_OK : err->code;
    if (st_sq_row_find(w, f->id, f->ref, &row, &found, err))
        return err->code;
    f->verdict = STINT_ELOST;
    if (!found)
        return STINT_OK;
    if (!st_state_held(row.state) || row.fence != f->fence)
        return finish_again(w, &row, f, err);
    if (finish_held(w, &row, f, now, err))
        return err->code;
    f->verdict = STINT_OK;
    return STINT_OK;
}

stint_code st_sq_finish_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct st_sq_finish_arg *a = arg;
    const int64_t now = st_sq_now(a->now_us);

    for (size_t i = 0; i < a->n; i++)
        if (finish_one(w, &a->items[i], now, err))
            return err->code;
    return STINT_OK;
}

stint_code st_sq_finish(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err)
{
    struct st_sq_finish_arg a = {.now_us = now_us, .items = items, .n = n};
    struct st_sq_req req = {.run = st_sq_finish_run, .arg = &a};

    return st_sq_submit(st_sq_of(s), &req, err);
}
