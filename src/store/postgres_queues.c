/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_queues.c - counts per queue, and what is due next.
 *
 * No history is scanned: what waits and what has ended is added up from the changes in tally.  What
 * is held is counted in lease, and of what waits, those whose time has not come.  One statement
 * reads all of it, so that the parts fit together.
 *
 * Thread: the handle's.
 */
#include "store/postgres_op.h"

#include <stdlib.h>

/* Columns of QUEUES. */
enum {
    Q_NAME,
    Q_PAUSED,
    Q_SCHEDULED,
    Q_PENDING,
    Q_RETRYING,
    Q_CLAIMED,
    Q_RUNNING,
    Q_SUCCEEDED,
    Q_FAILED,
    Q_CANCELLED,
    Q_OLDEST
};

static void queue_fill(struct st_queue_info *q, const PGresult *r, int row)
{
    static const int column[ST_SHOWN_N] = {
        [ST_SHOW_SCHEDULED] = Q_SCHEDULED, [ST_SHOW_PENDING] = Q_PENDING,     [ST_SHOW_RETRYING] = Q_RETRYING,
        [ST_SHOW_CLAIMED] = Q_CLAIMED,     [ST_SHOW_RUNNING] = Q_RUNNING,     [ST_SHOW_SUCCEEDED] = Q_SUCCEEDED,
        [ST_SHOW_FAILED] = Q_FAILED,       [ST_SHOW_CANCELLED] = Q_CANCELLED,
    };
    const struct st_slice name = st_pg_get(r, row, Q_NAME);

    snprintf(q->name, sizeof(q->name), "%.*s", (int)name.len, name.p);
    q->paused = st_pg_get_bool(r, row, Q_PAUSED);
    for (int i = 0; i < ST_SHOWN_N; i++)
        if (column[i])
            q->counts[i] = st_pg_get_i64(r, row, column[i], 0);
    q->oldest_due_us = st_pg_get_i64(r, row, Q_OLDEST, 0);
}

static stint_code queues(struct st_pg *s, int64_t now_us, struct st_queue_info **out, size_t *n_out, stint_error *err)
{
    struct st_pg_step steps[2] = {{.which = PG_BY_INDEX}, {.which = PG_QUEUES}};
    struct st_pg_args args;
    stint_code code;
    int n;

    st_pg_args_init(&args);
    st_pg_i64(&args, now_us);
    steps[1].args = &args;
    code = st_pg_run(s, steps, 2, false, err);
    st_pg_args_clear(&args);
    if (code)
        return code;
    n = PQntuples(steps[1].res);
    *out = n ? calloc((size_t)n, sizeof(**out)) : NULL;
    if (n && !*out)
        code = st_fail(err, STINT_ENOMEM, "out of memory for the queues");
    for (int i = 0; !code && i < n; i++)
        queue_fill(&(*out)[i], steps[1].res, i);
    *n_out = code ? 0 : (size_t)n;
    PQclear(steps[0].res);
    PQclear(steps[1].res);
    return code;
}

stint_code st_pg_queues(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out, stint_error *err)
{
    stint_error local = {0};

    *out = NULL;
    *n_out = 0;
    return st_pg_told(queues(st_pg_of(s), now_us, out, n_out, &local), &local, err);
}

/* ---- next due ------------------------------------------------------------------------------ */

/* What came due between this process's last claim and now was seen by no claim: it counts as still
 * to come. */
static stint_code next_due(struct st_pg *s, int64_t now_us, int64_t *due_us, stint_error *err)
{
    struct st_pg_step steps[2] = {{.which = PG_BY_INDEX}, {.which = PG_NEXT_DUE}};
    struct st_pg_args args;
    stint_code code;

    st_pg_args_init(&args);
    st_pg_i64(&args, now_us);
    pthread_mutex_lock(&s->sh->mu);
    st_pg_i64(&args, s->sh->last_now_us);
    pthread_mutex_unlock(&s->sh->mu);
    steps[1].args = &args;
    code = st_pg_run(s, steps, 2, false, err);
    if (!code)
        *due_us = st_pg_get_i64(steps[1].res, 0, 0, 0);
    PQclear(steps[0].res);
    PQclear(steps[1].res);
    st_pg_args_clear(&args);
    return code;
}

stint_code st_pg_next_due(struct st_store *store, int64_t now_us, int64_t *due_us, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};

    *due_us = 0;
    if (now_us == 0 && s->next_due_fresh) { /* the claim before this has looked */
        s->next_due_fresh = false;
        *due_us = s->next_due_us;
        return STINT_OK;
    }
    return st_pg_told(next_due(s, now_us, due_us, &local), &local, err);
}
