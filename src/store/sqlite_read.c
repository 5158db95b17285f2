/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_read.c - looking at jobs: one, or many.
 *
 * Thread: the handle's, on its own read connection; a read sees one moment of the file.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>

#include "job/spec.h"

/* Columns of SQ_INFO. */
enum {
    C_SEQ,
    C_ID,
    C_TYPE,
    C_QUEUE,
    C_STATE,
    C_PRIORITY,
    C_ATTEMPT,
    C_MAX,
    C_TIMEOUT,
    C_CREATED,
    C_DUE,
    C_FIRST,
    C_FINISHED,
    C_LEASE,
    C_STARTED,
    C_FENCE,
    C_WORKER,
    C_CANCEL,
    C_PROGRESS,
    C_RESULT_REF,
    C_KEY,
    C_UMODE,
    C_KIND,
    C_ERROR,
    C_POLICY,
    C_EXIT,
    C_SIGNAL,
    C_RSS,
    C_LOG,
    C_TAIL,
    C_RESULT,
    C_PAYLOAD,
    C_META
};

/* ---- copying out of a row --------------------------------------------------------------- */

static bool dup_text(char **to, sqlite3_stmt *st, int col)
{
    const struct st_slice s = col_slice(st, col);

    *to = s.p ? st_slice_dup(s) : NULL;
    return !s.p || *to;
}

static bool dup_bytes(struct st_slice *to, sqlite3_stmt *st, int col)
{
    char *p;

    if (!dup_text(&p, st, col))
        return false;
    *to = p ? ST_SLICE(p, (size_t)sqlite3_column_bytes(st, col)) : ST_NONE;
    return true;
}

/* What is not the job's own comes from the policy of its last claim, else from the default. */
static stint_code effective(struct st_sq_conn *c, sqlite3_stmt *st, struct st_job_info *i, stint_error *err)
{
    const int64_t max = col_opt(st, C_MAX), timeout = col_opt(st, C_TIMEOUT);
    struct st_policy policy;

    if (st_sq_policy_get(c, col_int(st, C_POLICY), &policy, err))
        return err->code;
    i->max_attempts = max >= 0 ? (int)max : policy.max_attempts;
    i->timeout_us = timeout >= 0 ? timeout : policy.timeout_us;
    return STINT_OK;
}

static void info_numbers(sqlite3_stmt *st, int64_t now, struct st_job_info *i)
{
    i->state = (enum st_state)col_int(st, C_STATE);
    i->priority = (int)col_int(st, C_PRIORITY);
    i->attempt = (int)col_int(st, C_ATTEMPT);
    i->created_us = col_int(st, C_CREATED);
    i->due_us = col_int(st, C_DUE);
    i->started_us = col_int(st, C_FIRST);
    i->finished_us = col_int(st, C_FINISHED);
    i->lease_until_us = col_int(st, C_LEASE);
    i->fence = col_int(st, C_FENCE);
    i->cancel_requested = col_int(st, C_CANCEL) != 0;
    i->unique = (enum st_unique)col_int(st, C_UMODE);
    i->error_kind = (enum st_kind)col_int(st, C_KIND);
    i->cursor = (uint64_t)col_int(st, C_SEQ);
    i->shown = st_state_shown(i->state, i->due_us, i->attempt, now);
    i->run_started_us = col_int(st, C_STARTED);
    if (i->state == ST_RUNNING && i->timeout_us > 0 && i->run_started_us)
        i->deadline_us = i->run_started_us + i->timeout_us;
}

static bool info_texts(sqlite3_stmt *st, bool with_payload, struct st_job_info *i)
{
    if (!dup_text(&i->id, st, C_ID) || !dup_text(&i->type, st, C_TYPE) || !dup_text(&i->queue, st, C_QUEUE) ||
        !dup_text(&i->worker, st, C_WORKER) || !dup_text(&i->result_ref, st, C_RESULT_REF) ||
        !dup_text(&i->key, st, C_KEY) || !dup_text(&i->error_message, st, C_ERROR) ||
        !dup_bytes(&i->progress, st, C_PROGRESS))
        return false;
    return !with_payload || (dup_bytes(&i->payload, st, C_PAYLOAD) && dup_bytes(&i->meta, st, C_META) &&
                             dup_bytes(&i->result, st, C_RESULT));
}

static stint_code info_read(struct st_sq_conn *c, sqlite3_stmt *st, int64_t now, bool with_payload,
                            struct st_job_info *i, stint_error *err)
{
    memset(i, 0, sizeof(*i));
    if (effective(c, st, i, err))
        return err->code;
    info_numbers(st, now, i);
    if (info_texts(st, with_payload, i))
        return STINT_OK;
    st_job_info_clear(i);
    return st_fail(err, STINT_ENOMEM, "out of memory for a job");
}

/* ---- attempts --------------------------------------------------------------------------- */

static struct st_attempt_info *attempt_new(struct st_job_info *i)
{
    struct st_attempt_info *grown = realloc(i->attempts, (i->n_attempts + 1) * sizeof(*grown));

    if (!grown)
        return NULL;
    i->attempts = grown;
    memset(&grown[i->n_attempts], 0, sizeof(*grown));
    return &grown[i->n_attempts++];
}

static bool attempt_read(sqlite3_stmt *st, struct st_job_info *i)
{
    struct st_attempt_info *a = attempt_new(i);

    if (!a)
        return false;
    a->n = (int)col_int(st, 0);
    a->fence = col_int(st, 1);
    a->started_us = col_int(st, 3);
    a->ended_us = col_int(st, 4);
    a->kind = (enum st_kind)col_int(st, 6);
    a->exit_code = (int)col_opt(st, 8);
    a->signal = (int)col_int(st, 9);
    a->max_rss_kb = col_int(st, 10);
    a->log_tail_len = (size_t)sqlite3_column_bytes(st, 12);
    return dup_text(&a->worker, st, 2) && dup_text(&a->outcome, st, 5) && dup_text(&a->message, st, 7) &&
           dup_text(&a->log, st, 11) && dup_text(&a->log_tail, st, 12);
}

static stint_code attempts_read(struct st_sq_conn *c, int64_t seq, struct st_job_info *i, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_ATTEMPTS, err);
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, seq);
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW) {
        if (!attempt_read(st, i)) {
            sqlite3_reset(st);
            return st_fail(err, STINT_ENOMEM, "out of memory for an attempt");
        }
    }
    return rc < 0 ? err->code : STINT_OK;
}

/* The attempt that is going on and the successful one have no row of their own: the job's tells. */
static stint_code attempt_of_job(sqlite3_stmt *st, struct st_job_info *i, stint_error *err)
{
    struct st_attempt_info *a;

    if (!st_state_held(i->state) && i->state != ST_SUCCEEDED)
        return STINT_OK;
    a = attempt_new(i);
    if (!a)
        goto no_memory;
    a->n = i->attempt;
    a->fence = i->fence;
    a->started_us = col_int(st, C_STARTED);
    a->ended_us = i->finished_us;
    a->exit_code = (int)col_opt(st, C_EXIT);
    a->signal = (int)col_int(st, C_SIGNAL);
    a->max_rss_kb = col_int(st, C_RSS);
    a->log_tail_len = (size_t)sqlite3_column_bytes(st, C_TAIL);
    if (i->state == ST_SUCCEEDED && !(a->outcome = strdup(st_outcome_name(ST_OUT_SUCCEEDED))))
        goto no_memory;
    if (dup_text(&a->worker, st, C_WORKER) && dup_text(&a->log, st, C_LOG) && dup_text(&a->log_tail, st, C_TAIL))
        return STINT_OK;
no_memory:
    return st_fail(err, STINT_ENOMEM, "out of memory for an attempt");
}

/* ---- get -------------------------------------------------------------------------------- */

static stint_code get_in(struct st_sq_conn *c, int64_t now, struct st_slice id, struct st_job_info *out,
                         stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_INFO_ID, err);
    int rc;

    if (!st)
        return err->code;
    bind_text(st, 1, id);
    rc = st_sq_step(c, st, err);
    if (rc < 0)
        return err->code;
    if (rc != SQLITE_ROW)
        return st_fail(err, STINT_ENOTFOUND, "there is no job %.*s", (int)id.len, id.p);
    if (info_read(c, st, now, true, out, err) || attempts_read(c, col_int(st, C_SEQ), out, err) ||
        attempt_of_job(st, out, err)) {
        sqlite3_reset(st);
        st_job_info_clear(out);
        return err->code;
    }
    sqlite3_reset(st);
    return STINT_OK;
}

stint_code st_sq_get(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out, stint_error *err)
{
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(st_sq_of(s), &local);

    memset(out, 0, sizeof(*out));
    if (c && !get_in(c, st_sq_now(now_us), id, out, &local))
        return STINT_OK;
    if (err)
        *err = local;
    return local.code;
}

/* ---- list ------------------------------------------------------------------------------- */

struct list {
    const struct st_list_req *req;
    int64_t now_us;
    struct st_job_info *out;
    size_t n, cap;
    bool full; /* there may be more */
};

/* The filters that the statement does not do. */
static stint_code wanted(sqlite3_stmt *st, const struct list *l, bool *yes, stint_error *err)
{
    const struct st_list_req *r = l->req;
    const enum st_shown shown =
        st_state_shown((enum st_state)col_int(st, C_STATE), col_int(st, C_DUE), (int)col_int(st, C_ATTEMPT), l->now_us);
    char hash[ST_HASH_LEN + 1];

    *yes = (!r->states || r->states & (1u << shown)) &&
           (!r->queue.p || st_queue_covers(r->queue, col_slice(st, C_QUEUE))) &&
           (!r->type.p || st_pattern_match(r->type, col_slice(st, C_TYPE))) &&
           (!r->worker.p || st_slice_eq(r->worker, col_slice(st, C_WORKER))) &&
           (!r->key.p || st_slice_eq(r->key, col_slice(st, C_KEY)));
    if (!*yes || !r->spec_hash.p)
        return STINT_OK;
    if (st_spec_hash(col_slice(st, C_TYPE), col_slice(st, C_QUEUE), col_slice(st, C_PAYLOAD), hash, err))
        return err->code;
    *yes = st_slice_is(r->spec_hash, hash);
    return STINT_OK;
}

static stint_code list_add(struct st_sq_conn *c, sqlite3_stmt *st, struct list *l, stint_error *err)
{
    struct st_job_info *grown;

    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 16;
        grown = realloc(l->out, l->cap * sizeof(*grown));
        if (!grown)
            return st_fail(err, STINT_ENOMEM, "out of memory for a list of jobs");
        l->out = grown;
    }
    if (info_read(c, st, l->now_us, l->req->with_payload, &l->out[l->n], err))
        return err->code;
    l->n++;
    return STINT_OK;
}

/* Which states of the table the shown states ask for, as "j.state IN (...)"; j.ended has them in
 * its index. */
static void states_text(unsigned shown, bool ended, struct st_buf *b)
{
    static const enum st_state of[ST_SHOWN_N] = {
        [ST_SHOW_BLOCKED] = ST_BLOCKED,     [ST_SHOW_SCHEDULED] = ST_PENDING, [ST_SHOW_PENDING] = ST_PENDING,
        [ST_SHOW_RETRYING] = ST_PENDING,    [ST_SHOW_CLAIMED] = ST_CLAIMED,   [ST_SHOW_RUNNING] = ST_RUNNING,
        [ST_SHOW_SUCCEEDED] = ST_SUCCEEDED, [ST_SHOW_FAILED] = ST_FAILED,     [ST_SHOW_CANCELLED] = ST_CANCELLED,
    };

    st_buf_puts(b, ended ? " AND j.ended IN (-1" : " AND j.state IN (-1");
    for (int i = 0; i < ST_SHOWN_N; i++)
        if (shown & (1u << i))
            st_buf_printf(b, ",%d", of[i]);
    st_buf_puts(b, ")");
}

#define ENDED_BITS  (1u << ST_SHOW_SUCCEEDED | 1u << ST_SHOW_FAILED | 1u << ST_SHOW_CANCELLED)
#define HELD_BITS   (1u << ST_SHOW_CLAIMED | 1u << ST_SHOW_RUNNING)
#define SMALL_ENDED 20000 /* so many rows are sorted sooner than a long history is walked */

/* How many jobs the counts know in these buckets. */
static stint_code count_shown(struct st_sq_conn *c, unsigned shown, int64_t *n, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_COUNT_ALL, err);
    int rc;

    *n = 0;
    if (!st)
        return err->code;
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW)
        if (shown & (1u << col_int(st, 1)))
            *n += col_int(st, 2);
    return rc < 0 ? err->code : STINT_OK;
}

/*
 * Newest first means walking job from its end.  Where only few rows can match, their index is
 * walked instead and what it gives is sorted: a handful of failures must not cost a walk through a
 * million successes.
 */
static stint_code list_sql(struct st_sq_conn *c, const struct st_list_req *r, struct st_buf *b, stint_error *err)
{
    const char *by = "NOT INDEXED";
    int64_t n;

    if (r->states && !(r->states & ~ENDED_BITS)) {
        if (count_shown(c, r->states, &n, err))
            return err->code;
        if (n < SMALL_ENDED)
            by = "INDEXED BY job_ended";
    } else if (r->states && !(r->states & ~HELD_BITS)) {
        by = "INDEXED BY job_lease";
    }
    st_buf_puts(b, "SELECT seq FROM job j ");
    st_buf_puts(b, by);
    st_buf_puts(b, " WHERE j.seq < ?1");
    if (r->states)
        states_text(r->states, strstr(by, "job_ended"), b);
    if (strstr(by, "job_lease"))
        st_buf_puts(b, " AND j.lease_until IS NOT NULL");
    if (r->ended_before_us)
        st_buf_puts(b, " AND j.finished < ?2");
    st_buf_puts(b, " ORDER BY j.seq DESC");
    if (b->failed)
        return st_fail(err, STINT_ENOMEM, "out of memory for a list of jobs");
    return STINT_OK;
}

/* Looks at one candidate; *done once the list is full. */
static stint_code list_candidate(struct st_sq_conn *c, int64_t seq, struct list *l, bool *done, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_INFO_SEQ, err);
    stint_code code;
    bool yes;
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, seq);
    rc = st_sq_step(c, st, err);
    if (rc != SQLITE_ROW)
        return rc < 0 ? err->code : STINT_OK;
    code = wanted(st, l, &yes, err);
    if (!code && yes) {
        *done = l->n == l->req->limit;
        l->full = *done;
        code = *done ? STINT_OK : list_add(c, st, l, err);
    }
    sqlite3_reset(st);
    return code;
}

static stint_code list_walk(struct st_sq_conn *c, sqlite3_stmt *st, struct list *l, stint_error *err)
{
    stint_code code = STINT_OK;
    bool done = false;
    int rc = SQLITE_DONE;

    while (!code && !done && (rc = st_sq_step(c, st, err)) == SQLITE_ROW)
        code = list_candidate(c, col_int(st, 0), l, &done, err);
    return rc < 0 ? err->code : code;
}

static stint_code list_in(struct st_sq_conn *c, struct list *l, stint_error *err)
{
    sqlite3_stmt *st = NULL;
    struct st_buf sql;
    stint_code code;

    st_buf_init(&sql, 4096);
    code = list_sql(c, l->req, &sql, err);
    if (!code && sqlite3_prepare_v2(c->db, sql.p, (int)sql.len, &st, NULL) != SQLITE_OK)
        code = st_sq_fail(c->db, "list", err);
    st_buf_clear(&sql);
    if (code)
        return code;
    bind_int(st, 1, l->req->after ? (int64_t)l->req->after : INT64_MAX);
    if (l->req->ended_before_us)
        bind_int(st, 2, l->req->ended_before_us);
    code = list_walk(c, st, l, err);
    sqlite3_finalize(st);
    return code;
}

stint_code st_sq_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                      uint64_t *next, stint_error *err)
{
    struct list l = {.req = req, .now_us = st_sq_now(req->now_us)};
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(st_sq_of(s), &local);

    if (!c || list_in(c, &l, &local)) {
        st_job_info_list_free(l.out, l.n);
        if (err)
            *err = local;
        return local.code;
    }
    *out = l.out;
    *n_out = l.n;
    *next = l.full && l.n ? l.out[l.n - 1].cursor : 0;
    return STINT_OK;
}
