/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_prune.c - removing ended jobs: by retention, or by hand.
 *
 * What goes: the row, its payload, its attempts.  What stays: keys held for a window or for ever.
 * The files a job has left are the caller's to unlink, once the removal is committed.
 *
 * Thread: the writer's, inside a transaction.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>

bool st_sq_pruned_add(struct st_pruned *p, struct st_slice file)
{
    char **grown;

    if (!file.p)
        return true;
    if ((p->n_files & (p->n_files - 1)) == 0) { /* grows at each power of two */
        grown = realloc(p->files, (p->n_files ? p->n_files * 2 : 1) * sizeof(*grown));
        if (!grown)
            return false;
        p->files = grown;
    }
    p->files[p->n_files] = st_slice_dup(file);
    if (!p->files[p->n_files])
        return false;
    p->n_files++;
    return true;
}

static stint_code run_seq(struct st_sq_writer *w, enum st_sq_sql which, int64_t seq, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, which, err);

    if (!st)
        return err->code;
    bind_int(st, 1, seq);
    return st_sq_run(&w->c, st, err);
}

static stint_code attempt_files(struct st_sq_writer *w, int64_t seq, struct st_pruned *out, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ATTEMPT_FILES, err);
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, seq);
    while ((rc = st_sq_step(&w->c, st, err)) == SQLITE_ROW) {
        if (!st_sq_pruned_add(out, col_slice(st, 0))) {
            sqlite3_reset(st);
            return st_fail(err, STINT_ENOMEM, "out of memory for file names");
        }
    }
    return rc < 0 ? err->code : STINT_OK;
}

static stint_code remove_job(struct st_sq_writer *w, int64_t seq, struct st_sq_lane *lane, enum st_state state,
                             struct st_pruned *out, stint_error *err)
{
    if (attempt_files(w, seq, out, err) || run_seq(w, SQ_JOB_DEL, seq, err) || run_seq(w, SQ_PAYLOAD_DEL, seq, err) ||
        run_seq(w, SQ_ATTEMPT_DEL, seq, err))
        return err->code;
    st_sq_count(lane, st_sq_bucket(state, false, 0), -1);
    out->n++;
    return STINT_OK;
}

/* ---- prune ------------------------------------------------------------------------------ */

struct prune {
    const struct st_prune_req *req;
    struct st_pruned *out;
};

struct gone {
    int64_t seq, lane;
};

/* Up to max ended jobs of one state, oldest first, and their own files. */
static stint_code ended_read(struct st_sq_writer *w, enum st_state state, int64_t before, size_t max, struct gone *list,
                             size_t *n, struct st_pruned *out, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ENDED, err);
    int rc;

    *n = 0;
    if (!st)
        return err->code;
    bind_int(st, 1, state);
    bind_int(st, 2, before);
    bind_int(st, 3, (int64_t)max);
    while ((rc = st_sq_step(&w->c, st, err)) == SQLITE_ROW) {
        list[(*n)++] = (struct gone){col_int(st, 0), col_int(st, 1)};
        if (!st_sq_pruned_add(out, col_slice(st, 2)) || !st_sq_pruned_add(out, col_slice(st, 3))) {
            sqlite3_reset(st);
            return st_fail(err, STINT_ENOMEM, "out of memory for file names");
        }
    }
    return rc < 0 ? err->code : STINT_OK;
}

static stint_code prune_state(struct st_sq_writer *w, struct prune *p, enum st_state state, int64_t keep, int64_t now,
                              struct gone *list, stint_error *err)
{
    const size_t max = p->req->limit - p->out->n;
    struct st_sq_lane *lane;
    size_t n;

    if (keep <= 0 || max == 0)
        return STINT_OK;
    if (ended_read(w, state, now - keep, max, list, &n, p->out, err))
        return err->code;
    for (size_t i = 0; i < n; i++) {
        lane = st_sq_lane_by_id(w, list[i].lane, err);
        if (!lane || remove_job(w, list[i].seq, lane, state, p->out, err))
            return err->code;
    }
    return STINT_OK;
}

/* Keys whose window is over. */
static stint_code prune_keys(struct st_sq_writer *w, int64_t now, size_t limit, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_KEY_PRUNE, err);

    if (!st)
        return err->code;
    bind_int(st, 1, now);
    bind_int(st, 2, (int64_t)limit);
    return st_sq_run(&w->c, st, err);
}

static stint_code prune_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct prune *p = arg;
    const struct st_retention *keep = &p->req->keep;
    const int64_t now = st_sq_now(p->req->now_us);
    struct gone *list;
    stint_code code;

    if (st_sq_epoch_check(w, p->req->epoch, err))
        return err->code;
    list = malloc((p->req->limit + 1) * sizeof(*list));
    if (!list)
        return st_fail(err, STINT_ENOMEM, "out of memory for ended jobs");
    code = prune_state(w, p, ST_SUCCEEDED, keep->succeeded_us, now, list, err);
    if (!code)
        code = prune_state(w, p, ST_FAILED, keep->failed_us, now, list, err);
    if (!code)
        code = prune_state(w, p, ST_CANCELLED, keep->cancelled_us, now, list, err);
    if (!code)
        code = prune_keys(w, now, p->req->limit, err);
    free(list);
    p->out->more = p->out->n == p->req->limit;
    return code;
}

static stint_code ended_count(struct st_sq_conn *c, enum st_state state, int64_t keep, int64_t now, size_t *n,
                              stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_ENDED_COUNT, err);
    int rc;

    if (!st)
        return err->code;
    if (keep <= 0)
        return STINT_OK;
    bind_int(st, 1, state);
    bind_int(st, 2, now - keep);
    rc = st_sq_step(c, st, err);
    if (rc < 0)
        return err->code;
    *n += (size_t)col_int(st, 0);
    sqlite3_reset(st);
    return STINT_OK;
}

/* How many there are, whatever the limit. */
static stint_code prune_count(struct st_sq *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    const int64_t now = st_sq_now(req->now_us);
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(s, &local);

    if (!c || ended_count(c, ST_SUCCEEDED, req->keep.succeeded_us, now, &out->n, &local) ||
        ended_count(c, ST_FAILED, req->keep.failed_us, now, &out->n, &local) ||
        ended_count(c, ST_CANCELLED, req->keep.cancelled_us, now, &out->n, &local)) {
        if (err)
            *err = local;
        return local.code;
    }
    return STINT_OK;
}

static void prune_undo(void *arg)
{
    st_pruned_clear(((struct prune *)arg)->out);
}

/* A sweep that finds nothing takes no lock. */
static stint_code prune_probe(struct st_sq_writer *w, void *arg, bool *need, stint_error *err)
{
    const struct st_prune_req *req = ((struct prune *)arg)->req;
    const int64_t now = st_sq_now(req->now_us);
    const struct {
        enum st_state state;
        int64_t keep;
    } all[] = {{ST_SUCCEEDED, req->keep.succeeded_us},
               {ST_FAILED, req->keep.failed_us},
               {ST_CANCELLED, req->keep.cancelled_us}};
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ENDED, err);
    int rc;

    if (!st)
        return err->code;
    *need = req->epoch != 0; /* the epoch is judged where it counts */
    for (size_t i = 0; i < 3 && !*need; i++) {
        if (all[i].keep <= 0)
            continue;
        bind_int(st, 1, all[i].state);
        bind_int(st, 2, now - all[i].keep);
        bind_int(st, 3, 1);
        rc = st_sq_step(&w->c, st, err);
        if (rc < 0)
            return err->code;
        *need = rc == SQLITE_ROW;
        sqlite3_reset(st);
    }
    return STINT_OK;
}

stint_code st_sq_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err)
{
    struct prune p = {req, out};
    struct st_sq_req r = {.run = prune_run, .probe = prune_probe, .undo = prune_undo, .arg = &p};
    stint_code code;

    memset(out, 0, sizeof(*out));
    code = req->dry_run ? prune_count(st_sq_of(s), req, out, err) : st_sq_submit(st_sq_of(s), &r, err);
    if (code)
        st_pruned_clear(out);
    return code;
}

/* ---- discard ---------------------------------------------------------------------------- */

struct discard {
    const struct st_slice *ids;
    size_t n;
    stint_code *verdicts;
    struct st_pruned *out;
};

static stint_code discard_one(struct st_sq_writer *w, struct discard *d, size_t i, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ENDED_ONE, err);
    struct st_sq_lane *lane;
    enum st_state state;
    int64_t seq;
    bool kept;
    int rc;

    if (!st)
        return err->code;
    bind_text(st, 1, d->ids[i]);
    rc = st_sq_step(&w->c, st, err);
    d->verdicts[i] = STINT_ENOTFOUND;
    if (rc != SQLITE_ROW)
        return rc < 0 ? err->code : STINT_OK;
    seq = col_int(st, 0);
    lane = st_sq_lane_by_id(w, col_int(st, 1), err);
    state = (enum st_state)col_int(st, 4);
    d->verdicts[i] = st_state_ended(state) ? STINT_OK : STINT_ESTATE;
    kept = d->verdicts[i] || (st_sq_pruned_add(d->out, col_slice(st, 2)) && st_sq_pruned_add(d->out, col_slice(st, 3)));
    sqlite3_reset(st);
    if (!lane)
        return err->code;
    if (!kept)
        return st_fail(err, STINT_ENOMEM, "out of memory for file names");
    return d->verdicts[i] ? STINT_OK : remove_job(w, seq, lane, state, d->out, err);
}

static stint_code discard_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct discard *d = arg;

    for (size_t i = 0; i < d->n; i++)
        if (discard_one(w, d, i, err))
            return err->code;
    return STINT_OK;
}

static void discard_undo(void *arg)
{
    st_pruned_clear(((struct discard *)arg)->out);
}

stint_code st_sq_discard(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                         struct st_pruned *out, stint_error *err)
{
    struct discard d = {ids, n, verdicts, out};
    struct st_sq_req req = {.run = discard_run, .undo = discard_undo, .arg = &d};

    memset(out, 0, sizeof(*out));
    return st_sq_submit(st_sq_of(s), &req, err);
}
