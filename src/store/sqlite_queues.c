/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_queues.c - counts per queue, what is due next, which jobs are asked to stop.
 *
 * No history is scanned: the counts are kept with every change.  Only jobs that have become due
 * since the last claim are still counted as scheduled there; their index says how many they are.
 *
 * Thread: the handle's, on its own read connection.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>

struct queues {
    struct st_queue_info *v;
    size_t n, cap;
};

static struct st_queue_info *queue_find(struct queues *q, struct st_slice name)
{
    for (size_t i = 0; i < q->n; i++)
        if (st_slice_is(name, q->v[i].name))
            return &q->v[i];
    return NULL;
}

static struct st_queue_info *queue_get(struct queues *q, struct st_slice name, stint_error *err)
{
    struct st_queue_info *i = queue_find(q, name), *grown;
    const size_t len = name.len < ST_NAME_MAX ? name.len : ST_NAME_MAX;

    if (i)
        return i;
    if (q->n == q->cap) {
        q->cap = q->cap ? q->cap * 2 : 16;
        grown = realloc(q->v, q->cap * sizeof(*grown));
        if (!grown) {
            st_fail(err, STINT_ENOMEM, "out of memory for the queues");
            return NULL;
        }
        q->v = grown;
    }
    i = &q->v[q->n++];
    memset(i, 0, sizeof(*i));
    memcpy(i->name, name.p, len);
    return i;
}

static void oldest_min(struct st_queue_info *i, int64_t due)
{
    if (!i->oldest_due_us || due < i->oldest_due_us)
        i->oldest_due_us = due;
}

/* The head of each priority of the lane: the oldest is one of them. */
static stint_code oldest_ready(struct st_sq_conn *c, int64_t lane, struct st_queue_info *i, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_OLDEST, err);
    int64_t below = ST_PRIORITY_MAX + 1;
    int rc;

    if (!st)
        return err->code;
    for (;;) {
        bind_int(st, 1, lane);
        bind_int(st, 2, below);
        rc = st_sq_step(c, st, err);
        if (rc != SQLITE_ROW)
            return rc < 0 ? err->code : STINT_OK;
        below = col_int(st, 0);
        oldest_min(i, col_int(st, 1));
        sqlite3_reset(st);
    }
}

static const struct st_sq_lane *lane_of(const struct st_sq_lanes *l, int64_t id)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].id == id)
            return &l->v[i];
    return NULL;
}

static stint_code read_lanes(struct st_sq *s, struct st_sq_conn *c, struct queues *q, stint_error *err)
{
    struct st_queue_info *i;

    if (st_sq_lanes_refresh(c, &s->lanes, err))
        return err->code;
    for (size_t k = 0; k < s->lanes.n; k++) {
        i = queue_get(q, s->lanes.v[k].queue, err);
        if (!i || oldest_ready(c, s->lanes.v[k].id, i, err))
            return err->code;
    }
    return STINT_OK;
}

static stint_code read_paused(struct st_sq_conn *c, struct queues *q, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_PAUSED, err);
    struct st_queue_info *i;
    int rc;

    if (!st)
        return err->code;
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW) {
        i = queue_get(q, col_slice(st, 0), err);
        if (!i) {
            sqlite3_reset(st);
            return err->code;
        }
        i->paused = true;
    }
    return rc < 0 ? err->code : STINT_OK;
}

static stint_code read_counts(struct st_sq *s, struct st_sq_conn *c, struct queues *q, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_COUNT_ALL, err);
    const struct st_sq_lane *lane;
    struct st_queue_info *i;
    int rc;

    if (!st)
        return err->code;
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW) {
        lane = lane_of(&s->lanes, col_int(st, 0));
        i = lane ? queue_find(q, lane->queue) : NULL;
        if (i && col_int(st, 1) >= 0 && col_int(st, 1) < ST_SHOWN_N)
            i->counts[col_int(st, 1)] += col_int(st, 2);
    }
    return rc < 0 ? err->code : STINT_OK;
}

/* Jobs that are due but were not promoted yet: people see them as pending. */
static stint_code read_overdue(struct st_sq *s, struct st_sq_conn *c, int64_t now, struct queues *q, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_OVERDUE, err);
    const struct st_sq_lane *lane;
    struct st_queue_info *i;
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, now);
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW) {
        lane = lane_of(&s->lanes, col_int(st, 0));
        i = lane ? queue_find(q, lane->queue) : NULL;
        if (!i)
            continue;
        i->counts[col_int(st, 1) ? ST_SHOW_RETRYING : ST_SHOW_SCHEDULED] -= col_int(st, 2);
        i->counts[ST_SHOW_PENDING] += col_int(st, 2);
        oldest_min(i, col_int(st, 3));
    }
    return rc < 0 ? err->code : STINT_OK;
}

/* In one read transaction, so that the parts fit together. */
static stint_code queues_in(struct st_sq *s, struct st_sq_conn *c, int64_t now, struct queues *q, stint_error *err)
{
    stint_code code;

    if (st_sq_exec(c, "BEGIN", err))
        return err->code;
    code = read_lanes(s, c, q, err);
    if (!code)
        code = read_paused(c, q, err);
    if (!code)
        code = read_counts(s, c, q, err);
    if (!code)
        code = read_overdue(s, c, now, q, err);
    sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
    return code;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_queue_info *)a)->name, ((const struct st_queue_info *)b)->name);
}

stint_code st_sq_queues(struct st_store *store, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                        stint_error *err)
{
    struct st_sq *s = st_sq_of(store);
    struct queues q = {0};
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(s, &local);

    if (!c || queues_in(s, c, st_sq_now(now_us), &q, &local)) {
        free(q.v);
        if (err)
            *err = local;
        return local.code;
    }
    if (q.n)
        qsort(q.v, q.n, sizeof(*q.v), by_name);
    *out = q.v;
    *n_out = q.n;
    return STINT_OK;
}

/* The earliest job that no claim has seen as due: it may be overdue. */
stint_code st_sq_next_due(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err)
{
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(st_sq_of(s), &local);
    sqlite3_stmt *st = c ? st_sq_stmt(c, SQ_NEXT_DUE, &local) : NULL;
    int rc = st ? st_sq_step(c, st, &local) : -1;

    (void)now_us;
    *due_us = rc == SQLITE_ROW ? col_int(st, 0) : 0;
    if (rc == SQLITE_ROW)
        sqlite3_reset(st);
    if (rc < 0 && err)
        *err = local;
    return rc < 0 ? local.code : STINT_OK;
}

static stint_code flagged_in(struct st_sq_conn *c, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                             size_t *n, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_FLAGGED, err);
    int rc;

    if (!st)
        return err->code;
    bind_text(st, 1, worker);
    bind_int(st, 2, (int64_t)max);
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW)
        snprintf(ids[(*n)++], ST_ID_MAX + 1, "%.*s", (int)col_slice(st, 0).len, col_slice(st, 0).p);
    return rc < 0 ? err->code : STINT_OK;
}

stint_code st_sq_flagged(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                         size_t *n_out, stint_error *err)
{
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(st_sq_of(s), &local);

    *n_out = 0;
    if (c && !flagged_in(c, worker, ids, max, n_out, &local))
        return STINT_OK;
    *n_out = 0;
    if (err)
        *err = local;
    return local.code;
}
