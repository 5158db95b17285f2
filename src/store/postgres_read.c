/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_read.c - looking at one job.
 *
 * A job is put together from where it is: entry (as it was enqueued), ready or lease (if it has not
 * ended) and ended (its attempts).  One statement reads them all, so the parts are of one moment.
 *
 * Thread: the handle's.
 */
#include "store/postgres_look.h"

#include <stdlib.h>
#include <string.h>

/* Columns of an attempt, behind the job's. */
enum {
    A_N = ST_PG_C_N,
    A_FENCE,
    A_WORKER,
    A_STARTED,
    A_ENDED,
    A_OUTCOME,
    A_KIND,
    A_MESSAGE,
    A_EXIT,
    A_SIGNAL,
    A_RSS,
    A_LOG,
    A_TAIL
};

#define OUTCOME_EXPIRED 5 /* behind those of enum st_outcome */

/* ---- a job --------------------------------------------------------------------------------- */

static bool dup_text(char **to, const PGresult *r, int row, int col)
{
    bool oom = false;

    *to = st_pg_get_dup(r, row, col, &oom);
    return !oom;
}

static bool dup_bytes(struct st_slice *to, const PGresult *r, int row, int col)
{
    char *p;

    if (!dup_text(&p, r, row, col))
        return false;
    *to = p ? ST_SLICE(p, st_pg_get(r, row, col).len) : ST_NONE;
    return true;
}

/* What is not the job's own comes from the policy of its last claim, else from the default. */
static void info_policy(const PGresult *r, int row, struct st_job_info *i)
{
    struct st_policy policy;

    if (st_pg_is_null(r, row, ST_PG_C_POLICY) || !st_policy_read(st_pg_get(r, row, ST_PG_C_POLICY), &policy))
        policy = st_policy_default;
    i->max_attempts = (int)st_pg_get_i64(r, row, ST_PG_C_MAX, policy.max_attempts);
    i->timeout_us = st_pg_get_i64(r, row, ST_PG_C_TIMEOUT, policy.timeout_us);
}

static void info_numbers(const PGresult *r, int row, struct st_job_info *i)
{
    i->state = (enum st_state)st_pg_get_i64(r, row, ST_PG_C_STATE, ST_PENDING);
    i->priority = (int)st_pg_get_i64(r, row, ST_PG_C_PRIORITY, 0);
    i->attempt = (int)st_pg_get_i64(r, row, ST_PG_C_ATTEMPT, 0);
    i->created_us = st_pg_get_i64(r, row, ST_PG_C_CREATED, 0);
    i->due_us = st_pg_get_i64(r, row, ST_PG_C_DUE, 0);
    i->started_us = st_pg_get_i64(r, row, ST_PG_C_FIRST, 0);
    i->finished_us = st_pg_get_i64(r, row, ST_PG_C_FINISHED, 0);
    i->lease_until_us = st_pg_get_i64(r, row, ST_PG_C_LEASE, 0);
    i->run_started_us = st_pg_get_i64(r, row, ST_PG_C_STARTED, 0);
    i->fence = st_pg_get_i64(r, row, ST_PG_C_FENCE, 0);
    i->cancel_requested = st_pg_get_bool(r, row, ST_PG_C_CANCEL);
    i->unique = (enum st_unique)st_pg_get_i64(r, row, ST_PG_C_UMODE, 0);
    i->error_kind = (enum st_kind)st_pg_get_i64(r, row, ST_PG_C_KIND, 0);
    i->cursor = (uint64_t)st_pg_get_i64(r, row, ST_PG_C_SEQ, 0);
    i->shown = st_state_shown(i->state, i->due_us, i->attempt, st_pg_get_i64(r, row, ST_PG_C_NOW, 0));
    if (i->state == ST_RUNNING && i->timeout_us > 0 && i->run_started_us)
        i->deadline_us = i->run_started_us + i->timeout_us;
}

static bool info_texts(const PGresult *r, int row, struct st_job_info *i)
{
    char id[ST_ID_MAX + 1];

    if (!st_pg_get_id(r, row, ST_PG_C_ID, id))
        id[0] = '\0'; /* no job of ours has such a key */
    i->id = strdup(id);
    return i->id && dup_text(&i->type, r, row, ST_PG_C_TYPE) && dup_text(&i->queue, r, row, ST_PG_C_QUEUE) &&
           dup_text(&i->worker, r, row, ST_PG_C_WORKER) && dup_text(&i->result_ref, r, row, ST_PG_C_RESULT_REF) &&
           dup_text(&i->key, r, row, ST_PG_C_KEY) && dup_text(&i->error_message, r, row, ST_PG_C_ERROR) &&
           dup_bytes(&i->progress, r, row, ST_PG_C_PROGRESS) && dup_bytes(&i->payload, r, row, ST_PG_C_PAYLOAD) &&
           dup_bytes(&i->meta, r, row, ST_PG_C_META) && dup_bytes(&i->result, r, row, ST_PG_C_RESULT);
}

stint_code st_pg_info_read(const PGresult *r, int row, struct st_job_info *out, stint_error *err)
{
    memset(out, 0, sizeof(*out));
    info_policy(r, row, out);
    info_numbers(r, row, out);
    if (info_texts(r, row, out))
        return STINT_OK;
    st_job_info_clear(out);
    return st_fail(err, STINT_ENOMEM, "out of memory for a job");
}

/* ---- its attempts -------------------------------------------------------------------------- */

static const char *outcome_name(int64_t outcome)
{
    return outcome == OUTCOME_EXPIRED ? "lease_expired" : st_outcome_name((enum st_outcome)outcome);
}

static bool attempt_ended(const PGresult *r, int row, struct st_attempt_info *a)
{
    a->n = (int)st_pg_get_i64(r, row, A_N, 0);
    a->fence = st_pg_get_i64(r, row, A_FENCE, 0);
    a->started_us = st_pg_get_i64(r, row, A_STARTED, 0);
    a->ended_us = st_pg_get_i64(r, row, A_ENDED, 0);
    a->outcome = strdup(outcome_name(st_pg_get_i64(r, row, A_OUTCOME, 0)));
    a->kind = (enum st_kind)st_pg_get_i64(r, row, A_KIND, 0);
    a->exit_code = (int)st_pg_get_i64(r, row, A_EXIT, -1);
    a->signal = (int)st_pg_get_i64(r, row, A_SIGNAL, 0);
    a->max_rss_kb = st_pg_get_i64(r, row, A_RSS, 0);
    a->log_tail_len = st_pg_get(r, row, A_TAIL).len;
    return a->outcome && dup_text(&a->worker, r, row, A_WORKER) && dup_text(&a->message, r, row, A_MESSAGE) &&
           dup_text(&a->log, r, row, A_LOG) && dup_text(&a->log_tail, r, row, A_TAIL);
}

/* The one that is going on has no row in ended: the job's own columns tell. */
static bool attempt_now(const struct st_job_info *i, struct st_attempt_info *a)
{
    a->n = i->attempt;
    a->fence = i->fence;
    a->started_us = i->run_started_us;
    a->exit_code = -1;
    a->worker = i->worker ? strdup(i->worker) : NULL;
    return !i->worker || a->worker;
}

/* One row per ended attempt, or a single one without. */
static stint_code attempts_read(const PGresult *r, struct st_job_info *i, stint_error *err)
{
    const int n = st_pg_is_null(r, 0, A_FENCE) ? 0 : PQntuples(r);
    const bool held = st_state_held(i->state);
    bool ok;

    if (n == 0 && !held)
        return STINT_OK;
    i->attempts = calloc((size_t)n + 1, sizeof(*i->attempts));
    ok = i->attempts != NULL;
    for (int k = 0; ok && k < n; k++)
        ok = attempt_ended(r, k, &i->attempts[i->n_attempts++]);
    if (ok && held)
        ok = attempt_now(i, &i->attempts[i->n_attempts++]);
    return ok ? STINT_OK : st_fail(err, STINT_ENOMEM, "out of memory for an attempt");
}

/* ---- get ----------------------------------------------------------------------------------- */

static stint_code get(struct st_pg *s, int64_t now_us, struct st_slice id, struct st_job_info *out, stint_error *err)
{
    struct st_pg_args args;
    struct st_pg_key key;
    PGresult *r = NULL;
    stint_code code;

    st_pg_key(id, &key);
    st_pg_args_init(&args);
    st_pg_i64(&args, now_us);
    st_pg_bytes(&args, ST_SLICE((const char *)key.p, key.len));
    for (int i = 0; i < 3; i++)
        st_pg_text(&args, ST_NONE); /* no filters */
    code = st_pg_call(s, PG_GET, &args, false, &r, err);
    st_pg_args_clear(&args);
    if (!code && PQntuples(r) == 0)
        code = st_fail(err, STINT_ENOTFOUND, "there is no job %.*s", (int)id.len, id.p);
    if (!code)
        code = st_pg_info_read(r, 0, out, err);
    if (!code && attempts_read(r, out, err)) {
        code = err->code;
        st_job_info_clear(out);
    }
    PQclear(r);
    return code;
}

stint_code st_pg_get_job(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                         stint_error *err)
{
    stint_error local = {0};

    memset(out, 0, sizeof(*out));
    return st_pg_told(get(st_pg_of(s), now_us, id, out, &local), &local, err);
}
