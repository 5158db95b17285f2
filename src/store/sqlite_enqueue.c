/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_enqueue.c - adding jobs: all of a batch or none, each id once, each held key once.
 *
 * A job's fence begins with the moment it is added, by the store's own clock: where an id is used again, its attempts
 * go on beyond those of the job that had it before.
 *
 * A key is a row of `ukey`, so that the table's primary key is what makes it unique.
 *
 *     active    held until the job ends; the row is removed then
 *     window    held until enqueue time + window, whatever becomes of the job
 *     forever   held for ever, also when the job is long gone
 *
 * Thread: the writer's, inside a transaction; or that of somebody who has one open (sqlite_tx.c).
 */
#include "store/sqlite_int.h"

#include <string.h>

static void answer_id(struct st_enqueued *out, struct st_slice id, bool duplicate)
{
    const size_t n = id.len < ST_ID_MAX ? id.len : ST_ID_MAX;

    if (n)
        memcpy(out->id, id.p, n);
    out->id[n] = '\0';
    out->duplicate = duplicate;
}

/* Is the id there already?  Then it must be the same job. */
static stint_code same_id(struct st_sq_writer *w, const struct st_new_job *j, bool *there, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_JOB_SAME, err);
    struct st_sq_lane *lane;
    bool same;
    int rc;

    if (!st)
        return err->code;
    bind_text(st, 1, j->id);
    rc = st_sq_step(&w->c, st, err);
    if (rc < 0)
        return err->code;
    *there = rc == SQLITE_ROW;
    if (!*there)
        return STINT_OK;
    lane = st_sq_lane_by_id(w, col_int(st, 0), err);
    same = lane && st_slice_eq(lane->queue, j->queue) && st_slice_eq(lane->type, j->type) &&
           st_slice_eq(col_slice(st, 1), j->payload);
    sqlite3_reset(st);
    if (!lane)
        return err->code;
    if (!same)
        return st_fail(err, STINT_EEXISTS, "the id %.*s is taken by another job", (int)j->id.len, j->id.p);
    return STINT_OK;
}

/* Who holds the key of this job now?  *held and its id in out, if anybody. */
static stint_code key_holder(struct st_sq_writer *w, const struct st_new_job *j, int64_t now, struct st_enqueued *out,
                             bool *held, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_KEY_GET, err);
    int rc;

    *held = false;
    if (!st)
        return err->code;
    bind_text(st, 1, j->type);
    bind_text(st, 2, j->key);
    rc = st_sq_step(&w->c, st, err);
    if (rc < 0)
        return err->code;
    if (rc == SQLITE_ROW) {
        *held = col_int(st, 1) != ST_UNIQUE_WINDOW || col_int(st, 2) > now;
        if (*held)
            answer_id(out, col_slice(st, 0), true);
        sqlite3_reset(st);
    }
    return STINT_OK;
}

static stint_code key_take(struct st_sq_writer *w, const struct st_new_job *j, int64_t now, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_KEY_SET, err);

    if (!st)
        return err->code;
    bind_text(st, 1, j->type);
    bind_text(st, 2, j->key);
    bind_text(st, 3, j->id);
    bind_int(st, 4, j->unique);
    bind_opt(st, 5, j->unique == ST_UNIQUE_WINDOW ? now + j->window_us : -1);
    return st_sq_run(&w->c, st, err);
}

static stint_code payload_add(struct st_sq_writer *w, const struct st_new_job *j, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_PAYLOAD_ADD, err);

    if (!st)
        return err->code;
    bind_int(st, 1, sqlite3_last_insert_rowid(w->c.db));
    bind_blob(st, 2, j->payload);
    bind_blob(st, 3, j->meta);
    return st_sq_run(&w->c, st, err);
}

/* *added = false: the id is there already. */
static stint_code job_add(struct st_sq_writer *w, const struct st_new_job *j, int64_t now, int64_t fence, bool *added,
                          stint_error *err)
{
    struct st_sq_lane *lane = st_sq_lane_get(w, j->queue, j->type, err);
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_JOB_ADD, err);
    const int64_t due = j->due_us ? j->due_us : now + j->delay_us;

    if (!lane || !st)
        return err->code;
    bind_text(st, 1, j->id);
    bind_int(st, 2, lane->id);
    bind_pos(st, 3, due <= now);
    bind_pos(st, 11, due > now);
    bind_int(st, 4, j->priority);
    bind_int(st, 5, due);
    bind_opt(st, 6, j->max_attempts);
    bind_opt(st, 7, j->timeout_us);
    bind_int(st, 8, j->unique);
    bind_text(st, 9, j->unique ? j->key : ST_NONE);
    bind_int(st, 10, now);
    bind_int(st, 12, fence);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    *added = sqlite3_changes(w->c.db) == 1;
    if (!*added)
        return STINT_OK;
    st_sq_count(lane, st_sq_bucket(ST_PENDING, due <= now, 0), 1);
    return payload_add(w, j, err);
}

static stint_code enqueue_keyed(struct st_sq_writer *w, const struct st_new_job *j, int64_t now, int64_t fence,
                                struct st_enqueued *out, stint_error *err)
{
    bool there, held, added;

    if (same_id(w, j, &there, err))
        return err->code;
    answer_id(out, j->id, false);
    if (there)
        return STINT_OK;
    if (key_holder(w, j, now, out, &held, err))
        return err->code;
    if (held)
        return STINT_OK;
    if (key_take(w, j, now, err))
        return err->code;
    return job_add(w, j, now, fence, &added, err);
}

static stint_code enqueue_plain(struct st_sq_writer *w, const struct st_new_job *j, int64_t now, int64_t fence,
                                struct st_enqueued *out, stint_error *err)
{
    bool added = false, there;

    answer_id(out, j->id, false);
    if (job_add(w, j, now, fence, &added, err))
        return err->code;
    return added ? STINT_OK : same_id(w, j, &there, err);
}

stint_code st_sq_enqueue_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct st_sq_enqueue_arg *e = arg;
    const int64_t now = st_sq_now(e->now_us), fence = e->now_us ? 0 : now;

    for (size_t i = 0; i < e->n; i++) {
        const struct st_new_job *j = &e->jobs[i];

        if (j->unique ? enqueue_keyed(w, j, now, fence, &e->out[i], err)
                      : enqueue_plain(w, j, now, fence, &e->out[i], err))
            return err->code;
    }
    return STINT_OK;
}

stint_code st_sq_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                         struct st_enqueued *out, stint_error *err)
{
    struct st_sq_enqueue_arg e = {.now_us = now_us, .jobs = jobs, .n = n, .out = out};
    struct st_sq_req req = {.run = st_sq_enqueue_run, .arg = &e};

    return st_sq_submit(st_sq_of(s), &req, err);
}
