/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_acquire.c - taking one job by its id.
 *
 *     pending and due            -> running
 *     held, its lease expired    -> that attempt ends as lease_expired, and we run it
 *     anything else              -> refused, with the reason; nothing changes
 *
 * Thread: the writer's, inside a transaction.
 */
#include "store/sqlite_int.h"

struct acquire {
    struct st_slice id;
    const struct st_claim_req *req;
    struct st_job *job;
    enum st_refusal why;
};

static stint_code queue_paused(struct st_sq_writer *w, struct st_slice queue, bool *paused, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_PAUSED, err);
    int rc;

    *paused = false;
    if (!st)
        return err->code;
    while ((rc = st_sq_step(&w->c, st, err)) == SQLITE_ROW)
        *paused |= st_queue_covers(col_slice(st, 0), queue);
    return rc < 0 ? err->code : STINT_OK;
}

/* The number the attempt would have: a held job that never started was not charged. */
static int next_attempt(const struct st_sq_row *row)
{
    return row->state == ST_CLAIMED ? row->attempt : row->attempt + 1;
}

static enum st_refusal refusal(const struct st_sq_row *row, int64_t now, bool paused, int max_attempts)
{
    if (st_state_ended(row->state))
        return ST_REFUSED_ENDED;
    /* A job that was asked to stop is not run again: reaping will cancel it. */
    if (st_state_held(row->state) && (row->lease_until > now || row->cancel))
        return ST_REFUSED_HELD;
    if (row->state == ST_BLOCKED || (row->state == ST_PENDING && row->due > now))
        return ST_REFUSED_NOT_DUE;
    if (paused)
        return ST_REFUSED_PAUSED;
    if (max_attempts > 0 && next_attempt(row) > max_attempts)
        return ST_REFUSED_EXHAUSTED;
    return ST_REFUSED_NOT;
}

static struct st_job *job_build(struct st_sq_writer *w, const struct st_sq_row *row, stint_error *err)
{
    sqlite3_stmt *pay = st_sq_stmt(&w->c, SQ_PAYLOAD_GET, err);
    sqlite3_stmt *info = st_sq_stmt(&w->c, SQ_JOB_CLAIM_INFO, err);
    struct st_job *job = NULL;
    int rc;

    if (!pay || !info)
        return NULL;
    bind_int(pay, 1, row->seq);
    rc = st_sq_step(&w->c, pay, err);
    if (rc < 0)
        return NULL;
    job = st_job_new(st_slice_cstr(row->id), row->lane->type, row->lane->queue,
                     rc == SQLITE_ROW ? col_slice(pay, 0) : ST_NONE, rc == SQLITE_ROW ? col_slice(pay, 1) : ST_NONE);
    sqlite3_reset(pay);
    if (!job) {
        st_fail(err, STINT_ENOMEM, "out of memory for a job");
        return NULL;
    }
    bind_int(info, 1, row->seq);
    rc = st_sq_step(&w->c, info, err);
    if (rc < 0) {
        st_job_free(job);
        return NULL;
    }
    job->priority = (int)col_int(info, 0);
    job->due_us = col_int(info, 1);
    job->created_us = col_int(info, 2);
    sqlite3_reset(info);
    return job;
}

/* The attempt that lost its lease is written down before the next one takes its place. */
static stint_code end_expired(struct st_sq_writer *w, const struct st_sq_row *row, int64_t now, stint_error *err)
{
    const struct st_sq_ended e = {.now_us = now,
                                  .started_us = row->started,
                                  .outcome = "lease_expired",
                                  .kind = ST_KIND_LEASE_EXPIRED,
                                  .message = st_slice_cstr("the lease expired"),
                                  .exit_code = -1};

    return st_state_held(row->state) ? st_sq_attempt_add(w, row, &e, err) : STINT_OK;
}

static stint_code mark(struct st_sq_writer *w, const struct acquire *a, const struct st_sq_row *row, int64_t policy,
                       int64_t now, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_ACQUIRE, err);
    enum st_state to;

    if (!st || st_sq_next(row, st_state_held(row->state) ? ST_EV_STEAL : ST_EV_CLAIM_RUN, &to, err))
        return err->code;
    bind_int(st, 1, row->seq);
    bind_int(st, 2, a->job->attempt);
    bind_int(st, 3, a->job->fence);
    bind_int(st, 4, a->job->lease_until_us);
    bind_text(st, 5, a->req->worker);
    bind_int(st, 6, policy);
    bind_int(st, 7, now);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    if (sqlite3_changes(w->c.db) != 1)
        return st_fail(err, STINT_ESTORE, "%s is damaged: job %s does not change", w->path, row->id);
    st_sq_count(row->lane, st_sq_bucket(row->state, row->ready, row->attempt), -1);
    st_sq_count(row->lane, st_sq_bucket(to, false, a->job->attempt), 1);
    return STINT_OK;
}

static stint_code take(struct st_sq_writer *w, struct acquire *a, const struct st_sq_row *row,
                       const struct st_type_rule *rule, const struct st_policy *effective, int64_t now,
                       stint_error *err)
{
    int64_t policy;

    if (st_sq_policy_id(w, rule ? &rule->policy : &st_policy_default, &policy, err))
        return err->code;
    a->job = job_build(w, row, err);
    if (!a->job)
        return err->code;
    a->job->ref = st_sq_ref(row->seq, row->lane->id);
    a->job->fence = row->fence + 1;
    a->job->attempt = next_attempt(row);
    a->job->state = ST_RUNNING;
    a->job->policy = *effective;
    a->job->lease_us = rule && rule->lease_us ? rule->lease_us : a->req->lease_us;
    a->job->lease_until_us = now + a->job->lease_us;
    if (end_expired(w, row, now, err))
        return err->code;
    return mark(w, a, row, policy, now, err);
}

static stint_code acquire_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct acquire *a = arg;
    const int64_t now = st_sq_now(a->req->now_us);
    const struct st_type_rule *rule;
    struct st_policy effective;
    struct st_sq_row row;
    bool found, paused;

    a->why = ST_REFUSED_UNKNOWN;
    if (st_sq_row_find(w, a->id, 0, &row, &found, err))
        return err->code;
    if (!found)
        return STINT_OK;
    if (queue_paused(w, row.lane->queue, &paused, err))
        return err->code;
    rule = st_rule_find(a->req->types, a->req->n_types, row.lane->queue, row.lane->type);
    effective = rule ? rule->policy : st_policy_default;
    if (row.max_attempts >= 0)
        effective.max_attempts = (int)row.max_attempts;
    if (row.timeout_us >= 0)
        effective.timeout_us = row.timeout_us;
    a->why = refusal(&row, now, paused, effective.max_attempts);
    return a->why ? STINT_OK : take(w, a, &row, rule, &effective, now, err);
}

static void acquire_undo(void *arg)
{
    struct acquire *a = arg;

    st_job_free(a->job);
    a->job = NULL;
}

stint_code st_sq_acquire(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                         enum st_refusal *why, stint_error *err)
{
    struct acquire a = {.id = id, .req = req};
    struct st_sq_req r = {.run = acquire_run, .undo = acquire_undo, .arg = &a};
    const stint_code code = st_sq_submit(st_sq_of(s), &r, err);

    *out = a.job;
    *why = a.why;
    if (code || !a.why)
        return code;
    if (a.why == ST_REFUSED_UNKNOWN)
        return st_fail(err, STINT_ENOTFOUND, "there is no job %.*s", (int)id.len, id.p);
    return st_fail(err, STINT_ESTATE, "job %.*s was not taken: %s", (int)id.len, id.p, st_refusal_name(a.why));
}

/* ---- several in one transaction ----------------------------------------------------------- */

struct acquire_many {
    struct st_acquire *items;
    size_t n;
    const struct st_claim_req *req;
};

static stint_code many_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct acquire_many *m = arg;

    for (size_t i = 0; i < m->n; i++) {
        struct acquire a = {.id = m->items[i].id, .req = m->req};
        const stint_code code = acquire_run(w, &a, err);

        m->items[i].job = a.job;
        m->items[i].why = a.why;
        if (code)
            return code;
    }
    return STINT_OK;
}

static void many_undo(void *arg)
{
    struct acquire_many *m = arg;

    for (size_t i = 0; i < m->n; i++) {
        st_job_free(m->items[i].job);
        m->items[i].job = NULL;
        m->items[i].why = ST_REFUSED_NOT;
    }
}

stint_code st_sq_acquire_many(struct st_store *s, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                              stint_error *err)
{
    struct acquire_many m = {items, n, req};
    struct st_sq_req r = {.run = many_run, .undo = many_undo, .arg = &m};

    return st_sq_submit(st_sq_of(s), &r, err);
}
