/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_steer.c - what an operator asks for: cancel, retry, pause.
 *
 * Thread: the writer's, inside a transaction.
 */
#include "store/sqlite_int.h"

struct steer {
    int64_t now_us;
    const struct st_slice *ids;
    size_t n;
    stint_code *verdicts;
    bool *asked;
};

/* ---- cancel ----------------------------------------------------------------------------- */

static stint_code ask_cancel(struct st_sq_writer *w, const struct st_sq_row *row, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ASK_CANCEL, err);

    if (!st)
        return err->code;
    bind_int(st, 1, row->seq);
    return st_sq_run(&w->c, st, err);
}

static stint_code cancel_one(struct st_sq_writer *w, struct st_slice id, int64_t now, stint_code *verdict, bool *asked,
                             stint_error *err)
{
    const struct st_sq_ended e = {
        .now_us = now,
        .outcome = st_outcome_name(ST_OUT_CANCELLED),
        .kind = ST_KIND_CANCELLED,
        .message = st_slice_cstr("cancelled before it ran"),
        .exit_code = -1,
    };
    struct st_sq_row row;
    bool found;

    *asked = false;
    if (st_sq_row_find(w, id, 0, &row, &found, err))
        return err->code;
    *verdict = !found ? STINT_ENOTFOUND : st_state_ended(row.state) ? STINT_ESTATE : STINT_OK;
    if (*verdict)
        return STINT_OK;
    *asked = st_state_held(row.state);
    return *asked ? ask_cancel(w, &row, err) : st_sq_row_end(w, &row, ST_EV_CANCEL, &e, err);
}

static stint_code cancel_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct steer *s = arg;
    const int64_t now = st_sq_now(s->now_us);
    bool asked;

    for (size_t i = 0; i < s->n; i++) {
        if (cancel_one(w, s->ids[i], now, &s->verdicts[i], &asked, err))
            return err->code;
        if (s->asked)
            s->asked[i] = asked;
    }
    return STINT_OK;
}

stint_code st_sq_cancel(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts,
                        bool *asked, stint_error *err)
{
    struct steer a = {now_us, ids, n, verdicts, asked};
    struct st_sq_req req = {.run = cancel_run, .arg = &a};

    return st_sq_submit(st_sq_of(s), &req, err);
}

/* ---- retry ------------------------------------------------------------------------------ */

/* Does another job hold the key of this one? */
static stint_code key_held(struct st_sq_writer *w, const struct st_sq_row *row, int64_t now, bool *held,
                           stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_KEY_GET, err);
    int rc;

    *held = false;
    if (!st)
        return err->code;
    bind_text(st, 1, row->lane->type);
    bind_text(st, 2, st_slice_cstr(row->key));
    rc = st_sq_step(&w->c, st, err);
    if (rc < 0)
        return err->code;
    if (rc == SQLITE_ROW) {
        *held = !st_slice_is(col_slice(st, 0), row->id) && (col_int(st, 1) != ST_UNIQUE_WINDOW || col_int(st, 2) > now);
        sqlite3_reset(st);
    }
    return STINT_OK;
}

static stint_code key_retake(struct st_sq_writer *w, const struct st_sq_row *row, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_KEY_SET, err);

    if (!st)
        return err->code;
    bind_text(st, 1, row->lane->type);
    bind_text(st, 2, st_slice_cstr(row->key));
    bind_text(st, 3, st_slice_cstr(row->id));
    bind_int(st, 4, ST_UNIQUE_ACTIVE);
    sqlite3_bind_null(st, 5);
    return st_sq_run(&w->c, st, err);
}

static stint_code revive(struct st_sq_writer *w, const struct st_sq_row *row, int64_t now, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_REVIVE, err);
    enum st_state to;

    if (!st || st_sq_next(row, ST_EV_REVIVE, &to, err))
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, now);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    st_sq_count(row->lane, st_sq_bucket(row->state, false, row->attempt), -1);
    st_sq_count(row->lane, st_sq_bucket(to, true, 0), 1);
    return row->unique == ST_UNIQUE_ACTIVE ? key_retake(w, row, err) : STINT_OK;
}

static stint_code retry_one(struct st_sq_writer *w, struct st_slice id, int64_t now, stint_code *verdict,
                            stint_error *err)
{
    struct st_sq_row row;
    bool found, held = false;

    if (st_sq_row_find(w, id, 0, &row, &found, err))
        return err->code;
    *verdict = STINT_ENOTFOUND;
    if (!found)
        return STINT_OK;
    *verdict = STINT_ESTATE;
    if (st_state_next(row.state, ST_EV_REVIVE) < 0)
        return STINT_OK;
    if (row.unique && key_held(w, &row, now, &held, err))
        return err->code;
    *verdict = held ? STINT_EEXISTS : STINT_OK;
    return held ? STINT_OK : revive(w, &row, now, err);
}

static stint_code retry_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct steer *s = arg;
    const int64_t now = st_sq_now(s->now_us);

    for (size_t i = 0; i < s->n; i++)
        if (retry_one(w, s->ids[i], now, &s->verdicts[i], err))
            return err->code;
    return STINT_OK;
}

stint_code st_sq_retry(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts,
                       stint_error *err)
{
    struct steer a = {now_us, ids, n, verdicts, NULL};
    struct st_sq_req req = {.run = retry_run, .arg = &a};

    return st_sq_submit(st_sq_of(s), &req, err);
}

/* ---- pause ------------------------------------------------------------------------------ */

struct pause {
    int64_t now_us;
    struct st_slice queue;
    bool paused;
};

static stint_code pause_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    const struct pause *p = arg;
    sqlite3_stmt *st = st_sq_stmt(&w->c, p->paused ? SQ_PAUSE : SQ_RESUME, err);

    if (!st)
        return err->code;
    bind_text(st, 1, p->queue);
    if (p->paused)
        bind_int(st, 2, st_sq_now(p->now_us));
    return st_sq_run(&w->c, st, err);
}

stint_code st_sq_pause(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err)
{
    struct pause p = {now_us, queue, paused};
    struct st_sq_req req = {.run = pause_run, .arg = &p};

    return st_sq_submit(st_sq_of(s), &req, err);
}
