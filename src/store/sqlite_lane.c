/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_lane.c - lanes (queue, type), counts per lane, effective policies by number.
 *
 * All three are kept in memory beside the connection, because every job touches them.
 *
 * Invariants:
 *   (1) lanes are never removed and never change: what is cached stays true;
 *   (2) what a rolled-back transaction has added is forgotten (st_sq_counts_drop);
 *   (3) counts change with the jobs they count, in the same transaction, once per lane and bucket.
 *
 * Thread: the writer's; st_sq_lanes_refresh also serves a handle's own list of lanes.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>

static uint32_t lane_hash(struct st_slice queue, struct st_slice type)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < queue.len; i++)
        h = (h ^ (unsigned char)queue.p[i]) * 16777619u;
    h = (h ^ 0xff) * 16777619u;
    for (size_t i = 0; i < type.len; i++)
        h = (h ^ (unsigned char)type.p[i]) * 16777619u;
    return h;
}

static void hash_put(struct st_sq_lanes *l, size_t index)
{
    size_t at = lane_hash(l->v[index].queue, l->v[index].type) & (l->n_hash - 1);

    while (l->hash[at])
        at = (at + 1) & (l->n_hash - 1);
    l->hash[at] = (uint32_t)index + 1;
}

static bool hash_rebuild(struct st_sq_lanes *l, size_t n_hash)
{
    uint32_t *hash = calloc(n_hash, sizeof(*hash));

    if (!hash)
        return false;
    free(l->hash);
    l->hash = hash;
    l->n_hash = n_hash;
    for (size_t i = 0; i < l->n; i++)
        hash_put(l, i);
    return true;
}

static bool lanes_grow(struct st_sq_lanes *l)
{
    size_t cap = l->cap ? l->cap * 2 : 16;
    struct st_sq_lane *v = realloc(l->v, cap * sizeof(*v));

    if (!v)
        return false;
    l->v = v;
    l->cap = cap;
    return hash_rebuild(l, cap * 2);
}

static struct st_sq_lane *lanes_add(struct st_sq_lanes *l, int64_t id, struct st_slice queue, struct st_slice type,
                                    stint_error *err)
{
    struct st_sq_lane *lane;
    char *text;

    if ((l->n == l->cap && !lanes_grow(l)) || !(text = malloc(queue.len + type.len + 1))) {
        st_fail(err, STINT_ENOMEM, "out of memory for a queue");
        return NULL;
    }
    memcpy(text, queue.p, queue.len);
    memcpy(text + queue.len, type.p, type.len);
    lane = &l->v[l->n];
    *lane =
        (struct st_sq_lane){.id = id, .queue = ST_SLICE(text, queue.len), .type = ST_SLICE(text + queue.len, type.len)};
    hash_put(l, l->n);
    l->n++;
    return lane;
}

void st_sq_lanes_clear(struct st_sq_lanes *l)
{
    for (size_t i = 0; i < l->n; i++)
        free((void *)l->v[i].queue.p);
    free(l->v);
    free(l->hash);
    memset(l, 0, sizeof(*l));
}

stint_code st_sq_lanes_refresh(struct st_sq_conn *c, struct st_sq_lanes *l, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_LANE_NEW, err);
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, l->n ? l->v[l->n - 1].id : 0);
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW) {
        if (!lanes_add(l, col_int(st, 0), col_slice(st, 1), col_slice(st, 2), err)) {
            sqlite3_reset(st);
            return err->code;
        }
    }
    return rc < 0 ? err->code : STINT_OK;
}

static struct st_sq_lane *lanes_by_id(struct st_sq_lanes *l, int64_t id)
{
    size_t lo = 0, hi = l->n;

    if (id >= 1 && (size_t)id <= l->n && l->v[id - 1].id == id)
        return &l->v[id - 1];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (l->v[mid].id == id)
            return &l->v[mid];
        if (l->v[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

struct st_sq_lane *st_sq_lane_by_id(struct st_sq_writer *w, int64_t id, stint_error *err)
{
    struct st_sq_lane *lane = lanes_by_id(&w->lanes, id);

    if (lane)
        return lane;
    if (st_sq_lanes_refresh(&w->c, &w->lanes, err))
        return NULL;
    lane = lanes_by_id(&w->lanes, id);
    if (!lane)
        st_fail(err, STINT_ESTORE, "%s is damaged: there is no lane %lld", w->path, (long long)id);
    return lane;
}

static struct st_sq_lane *lanes_by_name(struct st_sq_lanes *l, struct st_slice queue, struct st_slice type)
{
    size_t at;

    if (!l->n)
        return NULL;
    for (at = lane_hash(queue, type) & (l->n_hash - 1); l->hash[at]; at = (at + 1) & (l->n_hash - 1)) {
        struct st_sq_lane *lane = &l->v[l->hash[at] - 1];

        if (st_slice_eq(lane->queue, queue) && st_slice_eq(lane->type, type))
            return lane;
    }
    return NULL;
}

struct st_sq_lane *st_sq_lane_get(struct st_sq_writer *w, struct st_slice queue, struct st_slice type, stint_error *err)
{
    struct st_sq_lane *lane = lanes_by_name(&w->lanes, queue, type);
    sqlite3_stmt *st;

    if (lane)
        return lane;
    if (st_sq_lanes_refresh(&w->c, &w->lanes, err))
        return NULL;
    lane = lanes_by_name(&w->lanes, queue, type);
    if (lane)
        return lane;
    st = st_sq_stmt(&w->c, SQ_LANE_ADD, err);
    if (!st)
        return NULL;
    bind_text(st, 1, queue);
    bind_text(st, 2, type);
    if (st_sq_run(&w->c, st, err))
        return NULL;
    return lanes_add(&w->lanes, sqlite3_last_insert_rowid(w->c.db), queue, type, err);
}

/* ---- counts ----------------------------------------------------------------------------- */

void st_sq_count(struct st_sq_lane *lane, enum st_shown bucket, int64_t n)
{
    lane->delta[bucket] += n;
    lane->touched = true;
}

static stint_code lane_flush(struct st_sq_writer *w, struct st_sq_lane *lane, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_COUNT_ADD, err);

    if (!st)
        return err->code;
    for (int b = 0; b < ST_SHOWN_N; b++) {
        if (!lane->delta[b])
            continue;
        bind_int(st, 1, lane->id);
        bind_int(st, 2, b);
        bind_int(st, 3, lane->delta[b]);
        if (st_sq_run(&w->c, st, err))
            return err->code;
        lane->delta[b] = 0;
    }
    lane->touched = false;
    return STINT_OK;
}

stint_code st_sq_counts_flush(struct st_sq_writer *w, stint_error *err)
{
    for (size_t i = 0; i < w->lanes.n; i++)
        if (w->lanes.v[i].touched && lane_flush(w, &w->lanes.v[i], err))
            return err->code;
    return STINT_OK;
}

void st_sq_counts_drop(struct st_sq_writer *w)
{
    struct st_sq_lanes *l = &w->lanes;

    w->n_policies = 0;
    while (l->n > l->n_base)
        free((void *)l->v[--l->n].queue.p);
    for (size_t i = 0; i < l->n; i++) {
        memset(l->v[i].delta, 0, sizeof(l->v[i].delta));
        l->v[i].touched = false;
    }
    if (l->n_hash)
        memset(l->hash, 0, l->n_hash * sizeof(*l->hash));
    for (size_t i = 0; i < l->n; i++)
        hash_put(l, i);
}

/* ---- policies --------------------------------------------------------------------------- */

static bool policy_same(const struct st_policy *a, const struct st_policy *b)
{
    return a->max_attempts == b->max_attempts && a->timeout_us == b->timeout_us && a->backoff == b->backoff &&
           a->initial_us == b->initial_us && a->multiplier == b->multiplier && a->max_us == b->max_us &&
           a->jitter == b->jitter && a->n_delays == b->n_delays &&
           memcmp(a->delays_us, b->delays_us, (size_t)a->n_delays * sizeof(a->delays_us[0])) == 0;
}

static stint_code policy_intern(struct st_sq_writer *w, struct st_slice text, int64_t *id, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_POLICY_FIND, err);
    int rc;

    if (!st)
        return err->code;
    bind_text(st, 1, text);
    rc = st_sq_step(&w->c, st, err);
    if (rc < 0)
        return err->code;
    if (rc == SQLITE_ROW) {
        *id = col_int(st, 0);
        sqlite3_reset(st);
        return STINT_OK;
    }
    st = st_sq_stmt(&w->c, SQ_POLICY_ADD, err);
    if (!st)
        return err->code;
    bind_text(st, 1, text);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    *id = sqlite3_last_insert_rowid(w->c.db);
    return STINT_OK;
}

stint_code st_sq_policy_id(struct st_sq_writer *w, const struct st_policy *p, int64_t *id, stint_error *err)
{
    struct st_buf text;
    stint_code code;

    for (size_t i = 0; i < w->n_policies; i++) {
        if (policy_same(&w->policies[i].policy, p)) {
            *id = w->policies[i].id;
            return STINT_OK;
        }
    }
    st_buf_init(&text, 4096);
    st_policy_write(p, &text);
    code = text.failed ? st_fail(err, STINT_ENOMEM, "out of memory for a policy")
                       : policy_intern(w, st_buf_view(&text), id, err);
    st_buf_clear(&text);
    if (code)
        return code;
    if (w->n_policies == ST_SQ_POLICIES)
        w->n_policies = 0;
    w->policies[w->n_policies++] = (struct st_sq_policy){.id = *id, .policy = *p};
    return STINT_OK;
}

stint_code st_sq_policy_get(struct st_sq_conn *c, int64_t id, struct st_policy *out, stint_error *err)
{
    sqlite3_stmt *st;
    int rc;

    *out = st_policy_default;
    if (id <= 0)
        return STINT_OK;
    st = st_sq_stmt(c, SQ_POLICY_GET, err);
    if (!st)
        return err->code;
    bind_int(st, 1, id);
    rc = st_sq_step(c, st, err);
    if (rc < 0)
        return err->code;
    if (rc == SQLITE_ROW) {
        if (!st_policy_read(col_slice(st, 0), out))
            *out = st_policy_default;
        sqlite3_reset(st);
    }
    return STINT_OK;
}
