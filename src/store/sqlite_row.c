/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_row.c - a job's row, and the ways it changes state.
 *
 * Every change goes the same way: read the row, ask st_state_next, write it with a guard that says
 * the same once more (state and fence), move the counts, let go of the key if the job has ended.
 *
 * Invariants:
 *   (1) a job is in exactly one bucket of its lane's counts;
 *   (2) an `active` key is held exactly while its job has not ended;
 *   (3) every ended attempt has a row in `attempt`, except the successful one and a claim that was
 *       given back before it started.
 *
 * Thread: the writer's, inside a transaction.
 */
#include "store/sqlite_int.h"

#include <string.h>

#define ATTEMPTS_KEPT 256 /* per job: one without limit may be tried for years */

static void copy_text(char *to, size_t size, struct st_slice s)
{
    size_t n = s.len < size - 1 ? s.len : size - 1;

    if (n)
        memcpy(to, s.p, n);
    to[n] = '\0';
}

stint_code st_sq_row_read(struct st_sq_writer *w, sqlite3_stmt *st, struct st_sq_row *row, stint_error *err)
{
    row->seq = col_int(st, 0);
    copy_text(row->id, sizeof(row->id), col_slice(st, 1));
    row->lane = st_sq_lane_by_id(w, col_int(st, 2), err);
    if (!row->lane)
        return err->code;
    row->state = (enum st_state)col_int(st, 3);
    row->ready = col_int(st, 4) == 1;
    row->attempt = (int)col_int(st, 5);
    row->skips = (int)col_int(st, 6);
    row->fence = col_int(st, 7);
    row->due = col_int(st, 8);
    row->lease_until = col_int(st, 9);
    row->policy = col_int(st, 10);
    row->started = col_int(st, 11);
    row->max_attempts = col_opt(st, 12);
    row->timeout_us = col_opt(st, 13);
    row->cancel = col_int(st, 14) != 0;
    row->unique = (enum st_unique)col_int(st, 15);
    copy_text(row->worker, sizeof(row->worker), col_slice(st, 16));
    copy_text(row->key, sizeof(row->key), col_slice(st, 17));
    return STINT_OK;
}

static stint_code row_by(struct st_sq_writer *w, sqlite3_stmt *st, struct st_sq_row *row, bool *found, stint_error *err)
{
    const int rc = st_sq_step(&w->c, st, err);
    stint_code code;

    if (rc < 0)
        return err->code;
    *found = rc == SQLITE_ROW;
    if (!*found)
        return STINT_OK;
    code = st_sq_row_read(w, st, row, err);
    sqlite3_reset(st);
    return code;
}

stint_code st_sq_row_find(struct st_sq_writer *w, struct st_slice id, uint64_t ref, struct st_sq_row *row, bool *found,
                          stint_error *err)
{
    sqlite3_stmt *st;

    *found = false;
    if (ref) {
        st = st_sq_stmt(&w->c, SQ_ROW_SEQ, err);
        if (!st)
            return err->code;
        bind_int(st, 1, st_sq_ref_seq(ref));
        if (row_by(w, st, row, found, err))
            return err->code;
        if (*found && st_slice_is(id, row->id))
            return STINT_OK;
    }
    st = st_sq_stmt(&w->c, SQ_ROW_ID, err);
    if (!st)
        return err->code;
    bind_text(st, 1, id);
    return row_by(w, st, row, found, err);
}

stint_code st_sq_next(const struct st_sq_row *row, enum st_event ev, enum st_state *to, stint_error *err)
{
    const int next = st_state_next(row->state, ev);

    if (next < 0)
        return st_fail(err, STINT_ESTATE, "job %s is %s: %s is not possible", row->id, st_state_name(row->state),
                       st_event_name(ev));
    *to = (enum st_state)next;
    return STINT_OK;
}

/* Runs an UPDATE of one row whose guard must hold: we have just read it. */
static stint_code run_one(struct st_sq_writer *w, sqlite3_stmt *st, const struct st_sq_row *row, stint_error *err)
{
    if (st_sq_run(&w->c, st, err))
        return err->code;
    if (sqlite3_changes(w->c.db) != 1)
        return st_fail(err, STINT_ESTORE, "%s is damaged: the row of job %s does not change", w->path, row->id);
    return STINT_OK;
}

static void count_move(const struct st_sq_row *row, enum st_shown to)
{
    st_sq_count(row->lane, st_sq_bucket(row->state, row->ready, row->attempt), -1);
    st_sq_count(row->lane, to, 1);
}

stint_code st_sq_attempt_add(struct st_sq_writer *w, const struct st_sq_row *row, const struct st_sq_ended *e,
                             stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ATTEMPT_ADD, err);

    if (!st)
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, row->fence);
    bind_int(st, 3, row->attempt);
    bind_text(st, 4, st_slice_cstr(row->worker));
    bind_pos(st, 5, e->started_us);
    bind_int(st, 6, e->now_us);
    bind_text(st, 7, st_slice_cstr(e->outcome));
    bind_int(st, 8, e->kind);
    bind_text(st, 9, e->message);
    bind_opt(st, 10, e->exit_code);
    bind_pos(st, 11, e->signal);
    bind_pos(st, 12, e->max_rss_kb);
    bind_text(st, 13, e->log);
    bind_blob(st, 14, e->log_tail);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    st = st_sq_stmt(&w->c, SQ_ATTEMPT_TRIM, err);
    if (!st)
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, row->fence - ATTEMPTS_KEPT);
    return st_sq_run(&w->c, st, err);
}

stint_code st_sq_key_free(struct st_sq_writer *w, const struct st_sq_row *row, stint_error *err)
{
    sqlite3_stmt *st;

    if (row->unique != ST_UNIQUE_ACTIVE)
        return STINT_OK;
    st = st_sq_stmt(&w->c, SQ_KEY_FREE, err);
    if (!st)
        return err->code;
    bind_text(st, 1, row->lane->type);
    bind_text(st, 2, st_slice_cstr(row->key));
    bind_text(st, 3, st_slice_cstr(row->id));
    return st_sq_run(&w->c, st, err);
}

stint_code st_sq_row_to_pending(struct st_sq_writer *w, const struct st_sq_row *row, enum st_event ev, int64_t now_us,
                                int64_t due_us, int attempt, int skips, const struct st_sq_ended *e, stint_error *err)
{
    const bool ready = due_us <= now_us;
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_BACK, err);
    enum st_state to = row->state;

    if (!st || st_sq_next(row, ev, &to, err))
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, row->fence);
    bind_int(st, 3, ready);
    bind_int(st, 4, due_us);
    bind_int(st, 5, attempt);
    bind_int(st, 6, skips);
    bind_pos(st, 7, e ? e->started_us : 0);
    bind_pos(st, 8, e ? e->kind : 0);
    bind_text(st, 9, e ? e->message : ST_NONE);
    if (run_one(w, st, row, err))
        return err->code;
    count_move(row, st_sq_bucket(to, ready, attempt));
    return e ? st_sq_attempt_add(w, row, e, err) : STINT_OK;
}

static stint_code end_held(struct st_sq_writer *w, const struct st_sq_row *row, enum st_state to,
                           const struct st_sq_ended *e, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_END_HELD, err);

    if (!st)
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, row->fence);
    bind_int(st, 3, to);
    bind_int(st, 4, e->now_us);
    bind_pos(st, 5, e->started_us);
    bind_int(st, 6, e->kind);
    bind_text(st, 7, e->message);
    if (run_one(w, st, row, err))
        return err->code;
    return st_sq_attempt_add(w, row, e, err);
}

static stint_code end_waiting(struct st_sq_writer *w, const struct st_sq_row *row, const struct st_sq_ended *e,
                              stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_END_WAITING, err);

    if (!st)
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, row->fence);
    bind_int(st, 3, e->now_us);
    bind_int(st, 4, e->kind);
    bind_text(st, 5, e->message);
    return run_one(w, st, row, err);
}

stint_code st_sq_row_end(struct st_sq_writer *w, const struct st_sq_row *row, enum st_event ev,
                         const struct st_sq_ended *e, stint_error *err)
{
    enum st_state to = row->state;

    if (st_sq_next(row, ev, &to, err))
        return err->code;
    if (st_state_held(row->state) ? end_held(w, row, to, e, err) : end_waiting(w, row, e, err))
        return err->code;
    count_move(row, st_sq_bucket(to, false, row->attempt));
    return st_sq_key_free(w, row, err);
}

stint_code st_sq_row_succeed(struct st_sq_writer *w, const struct st_sq_row *row, const struct st_finish *f,
                             const struct st_sq_ended *e, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_SUCCEED, err);
    enum st_state to = row->state;

    if (!st || st_sq_next(row, ST_EV_SUCCEED, &to, err))
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, row->fence);
    bind_int(st, 3, e->now_us);
    bind_pos(st, 4, e->started_us);
    bind_blob(st, 5, f->result);
    bind_text(st, 6, f->result_ref);
    bind_opt(st, 7, f->exit_code);
    bind_pos(st, 8, f->signal);
    bind_pos(st, 9, f->max_rss_kb);
    bind_text(st, 10, f->log);
    bind_blob(st, 11, f->log_tail);
    if (run_one(w, st, row, err))
        return err->code;
    count_move(row, st_sq_bucket(to, false, row->attempt));
    return st_sq_key_free(w, row, err);
}
