/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_op.h - what the operations of the PostgreSQL store share beyond postgres_int.h.
 */
#ifndef ST_STORE_POSTGRES_OP_H
#define ST_STORE_POSTGRES_OP_H

#include <endian.h>
#include <string.h>

#include "store/postgres_int.h"

/* Hands an error to a caller who may not want it. */
static inline stint_code st_pg_told(stint_code code, const stint_error *local, stint_error *err)
{
    if (code && err)
        *err = *local;
    return code;
}

static inline int64_t st_pg_be64(const char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return (int64_t)be64toh(v);
}

/* Reading an array of a result, item by item.  A NULL item is ST_NONE. */
struct st_pg_array {
    const char *at, *end;
    int32_t left;
};
bool st_pg_get_array(const PGresult *r, int row, int col, struct st_pg_array *out); /* false: NULL, or no array */
bool st_pg_array_next(struct st_pg_array *a, struct st_slice *item);

/* The job's own values over a policy: columns of max_attempts and timeout. */
void st_pg_policy_own(struct st_policy *p, const PGresult *r, int row, int max, int timeout);

/* Jobs that somebody else is at... */
enum st_pg_manner {
    ST_PG_QUICK,   /* ...may make it fail, and then it is repeated carefully */
    ST_PG_CAREFUL, /* ...are not waited for */
    ST_PG_PATIENT, /* ...are waited for, since it cannot be repeated */
};
/* Outcomes as the parameters of _settle, and its verdicts. */
void st_pg_settle_args(struct st_pg_args *a, int64_t now_us, const struct st_finish *items, size_t n,
                       enum st_pg_manner how);
void st_pg_settle_read(struct st_pg *s, const PGresult *r, struct st_finish *items, size_t n);

/* Is this handle to step round rows that others are at?  An operator's transaction may stay open: not every call shall wait
 * for it first. */
bool st_pg_careful(const struct st_pg *s);
/* After a call that failed: was somebody else in its way?  Then nothing was done, and it is to be repeated with care. */
bool st_pg_in_the_way(struct st_pg *s, const stint_error *err);

/* Given back or ended by somebody else than its holder: one row of _settle's parameters. */
enum { ST_PG_EXPIRED_RETRY = 5, ST_PG_EXPIRED_FAILED = 6, ST_PG_EXPIRED_GIVEN = 7, ST_PG_DISOWNED = 8 };
struct st_pg_end {
    struct st_slice key; /* as the tables keep it */
    int64_t fence;
    int outcome;
    int64_t delay_us; /* -1 = its due time stays */
    const char *message;
};
/* guard_us: only leases that ended by then; below 0 = any.  state[i]: what became of it, 0 = it was not ended, or somebody
 * else is at it this moment. */
stint_code st_pg_end_all(struct st_pg *s, int64_t now_us, int64_t guard_us, const struct st_pg_end *ends, size_t n,
                         int *state, stint_error *err);

/* Tells those who sleep of work in these queues, in any.  Hints: errors are of no interest. */
void st_pg_wake(struct st_pg *s, const struct st_slice *queues, size_t n);
void st_pg_wake_all(struct st_pg *s);

/* Enqueue inside a transaction that is open on conn (postgres_enqueue.c). */
stint_code st_pg_enqueue_in(struct st_pg *s, PGconn *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err);

/* Files that go with removed jobs; an array column of them.  false = no memory. */
bool st_pg_pruned_add(struct st_pruned *p, struct st_slice file);
bool st_pg_pruned_files(struct st_pruned *p, const PGresult *r, int row, int col);

#endif
