/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_upkeep.c - the leader's housekeeping, one short step per call.
 *
 *     ring        slots of the history whose time is over are emptied by TRUNCATE; looking through
 * one takes a tenth of the time at most fold        counts are added up, not more often than 20
 * times what it takes summarize   the summaries by which the newest and the oldest are found vacuum
 * the hot tables, where it pays: a table in which it removed next to nothing (somebody holds an old
 *                 snapshot) is left alone for longer and longer
 *     reindex     a hot index that is large for next to nothing, while nobody else is at it
 *
 * What changes jobs or counts names the leader's epoch to the database.  The rest does no harm,
 * whoever does it. Every step that waits for a lock gives up after 100 ms (reindex: 2 s) and is
 * tried again later.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "store/postgres_care.h"

#define LATER_US      (60 * ST_SEC)
#define FOLD_US       (10 * ST_SEC)
#define REINDEX_US    (3600 * ST_SEC)
#define JUDGE_US      (2 * ST_SEC)
#define VACUUM_MAX_US (16 * LATER_US)
#define VACUUM_DEAD   5000
#define RING_BYTES    ((int64_t)8 << 20) /* less is not worth it */
#define RING_JOBS     10000
#define AGAIN_MIN_US  (10 * ST_MS)

static void ring_reset(struct st_pg_ring *g)
{
    free(g->lanes);
    free(g->counts);
    memset(g, 0, sizeof(*g));
}

struct st_pg_care *st_pg_care(struct st_pg *s, stint_error *err)
{
    if (!s->care && !(s->care = calloc(1, sizeof(*s->care))))
        st_fail(err, STINT_ENOMEM, "no memory for the upkeep of a store");
    return s->care;
}

void st_pg_care_close(struct st_pg *s)
{
    if (s->care)
        ring_reset(&s->care->ring);
    free(s->care);
    s->care = NULL;
}

struct upkeep {
    struct st_pg *s;
    struct st_pg_care *care;
    const struct st_prune_req *req;
    struct st_pruned *out;
};

static int64_t later(int64_t us)
{
    return st_clock_mono_us() + us;
}

/* ---- the ring -------------------------------------------------------------------------------- */

static stint_code ring_rest(struct upkeep *u, stint_error *err)
{
    struct st_pg_ring *g = &u->care->ring;
    const int64_t keep = u->req->keep.succeeded_us;
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    u->care->at_us[CHORE_RING] = later(LATER_US);
    if (keep <= 0)
        return STINT_OK; /* succeeded jobs are kept for ever */
    st_pg_args_init(&a);
    st_pg_i64(&a, keep);
    st_pg_i64(&a, RING_BYTES);
    code = st_pg_call(u->s, PG_RING_NEXT, &a, false, &r, err);
    g->slot = code ? -1 : (int32_t)st_pg_get_i64(r, 0, 0, -1);
    PQclear(r);
    st_pg_args_clear(&a);
    if (code || g->slot < 0)
        return code;
    st_pg_i64(&a, u->req->epoch);
    st_pg_i32(&a, g->slot);
    code = st_pg_call(u->s, PG_RING_BEGIN, &a, true, &r, err);
    if (!code) {
        g->seq = st_pg_get_i64(r, 0, 0, 0);
        g->gone = st_pg_get_i64(r, 0, 1, 0);
        g->since_us = st_pg_get_i64(r, 0, 2, 0);
        g->xid = st_pg_get_i64(r, 0, 3, 0);
        g->keep_us = keep;
        g->state = RING_WAIT;
        u->care->at_us[CHORE_RING] = 0;
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return code;
}

/* Whoever wrote before the beginning must have ended, so that all of it can be seen. */
static stint_code ring_wait(struct upkeep *u, stint_error *err)
{
    struct st_pg_ring *g = &u->care->ring;
    PGresult *r = NULL;

    u->care->at_us[CHORE_RING] = later(2 * ST_SEC);
    if (st_pg_call(u->s, PG_RING_WAIT, NULL, false, &r, err))
        return err->code;
    if (st_pg_get_i64(r, 0, 0, 0) > g->xid) {
        g->before_us = st_pg_get_i64(r, 0, 1, 0) - g->keep_us;
        if (g->before_us > g->since_us) /* what ended later than this counts as added meanwhile */
            g->before_us = g->since_us;
        g->state = RING_LOOK;
        u->care->at_us[CHORE_RING] = 0;
    }
    PQclear(r);
    return STINT_OK;
}

/* Adds a step's counts, which come in the order of their lanes as ours are kept.  false = no
 * memory. */
static bool ring_add(struct st_pg_ring *g, struct st_pg_array *lanes, struct st_pg_array *counts)
{
    const size_t max = g->n + (size_t)lanes->left;
    struct st_pg_ring sum = {.lanes = calloc(max + 1, sizeof(int64_t)), .counts = calloc(max + 1, sizeof(int64_t))};
    struct st_slice lane, n;
    size_t i = 0;

    if (!sum.lanes || !sum.counts) {
        ring_reset(&sum);
        return false;
    }
    while (st_pg_array_next(lanes, &lane) && st_pg_array_next(counts, &n)) {
        const int64_t id = st_pg_be64(lane.p);

        for (; i < g->n && g->lanes[i] < id; i++, sum.n++) {
            sum.lanes[sum.n] = g->lanes[i];
            sum.counts[sum.n] = g->counts[i];
        }
        sum.lanes[sum.n] = id;
        sum.counts[sum.n++] = st_pg_be64(n.p) + (i < g->n && g->lanes[i] == id ? g->counts[i++] : 0);
    }
    for (; i < g->n; i++, sum.n++) {
        sum.lanes[sum.n] = g->lanes[i];
        sum.counts[sum.n] = g->counts[i];
    }
    free(g->lanes);
    free(g->counts);
    g->lanes = sum.lanes;
    g->counts = sum.counts;
    g->n = sum.n;
    return true;
}

static bool ring_add_all(struct st_pg_ring *g, const PGresult *r)
{
    struct st_pg_array lanes, counts;

    if (!st_pg_get_array(r, 0, 2, &lanes) || !st_pg_get_array(r, 0, 3, &counts))
        return true; /* nothing goes */
    return ring_add(g, &lanes, &counts);
}

/* The answer of a step: false = no memory. */
static bool ring_take(struct upkeep *u, const PGresult *r)
{
    struct st_pg_ring *g = &u->care->ring;
    const struct st_slice last = st_pg_get(r, 0, 0);

    if (!ring_add_all(g, r) || !st_pg_pruned_files(u->out, r, 0, 4))
        return false;
    if (!last.p || last.len > sizeof(g->after)) {
        g->state = RING_EMPTY;
        return true;
    }
    memcpy(g->after, last.p, last.len);
    g->after_len = last.len;
    return true;
}

static stint_code summarize(struct st_pg *s, int32_t slot, stint_error *err)
{
    struct st_pg_args a;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_i32(&a, slot);
    code = st_pg_call(s, PG_SUMMARIZE, &a, true, NULL, err);
    st_pg_args_clear(&a);
    return code;
}

/* The files of what will go are named at once: should this leader vanish the next one names them
 * again.  A step that fails is repeated as it is. */
static stint_code ring_look(struct upkeep *u, stint_error *err)
{
    struct st_pg_ring *g = &u->care->ring;
    const int64_t began_us = st_clock_mono_us();
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    u->care->at_us[CHORE_RING] = later(LATER_US);
    st_pg_args_init(&a);
    st_pg_i64(&a, u->req->epoch);
    st_pg_i32(&a, g->slot);
    st_pg_bytes(&a, ST_SLICE((const char *)g->after, g->after_len));
    st_pg_i32(&a, RING_JOBS);
    st_pg_i64(&a, g->before_us);
    code = st_pg_call(u->s, PG_RING_STEP, &a, true, &r, err);
    if (!code && !ring_take(u, r)) {
        code = st_fail(err, STINT_ENOMEM, "no memory for what goes from slot %d", g->slot);
        ring_reset(g);
    } else if (!code) {
        u->care->at_us[CHORE_RING] = later(9 * (st_clock_mono_us() - began_us));
    }
    PQclear(r);
    st_pg_args_clear(&a);
    if (!code && g->state == RING_EMPTY) {
        stint_error ignored = {0};

        summarize(u->s, g->slot, &ignored); /* what came late is then found without reading it all */
        u->care->at_us[CHORE_RING] = 0;
    }
    return code;
}

static void put_numbers(struct st_pg_args *a, const int64_t *v, size_t n)
{
    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < n; i++)
        st_pg_item_i64(a, v[i]);
    st_pg_array_end(a);
}

static void ring_emptied(struct upkeep *u)
{
    const struct st_pg_ring *g = &u->care->ring;

    for (size_t i = 0; i < g->n; i++)
        u->out->n += (size_t)g->counts[i];
    st_log(ST_LOG_INFO, "ring.emptied", ST_FI("slot", g->slot), ST_FI("jobs", u->out->n));
    u->care->at_us[CHORE_RING] = 0; /* is there another? */
}

static stint_code ring_empty(struct upkeep *u, stint_error *err)
{
    struct st_pg_ring *g = &u->care->ring;
    struct st_pg_args a;
    PGresult *r = NULL;
    stint_code code;

    u->care->at_us[CHORE_RING] = later(LATER_US);
    st_pg_args_init(&a);
    st_pg_i64(&a, u->req->epoch);
    st_pg_i32(&a, g->slot);
    st_pg_i64(&a, g->seq);
    st_pg_i64(&a, g->gone);
    st_pg_i64(&a, g->since_us);
    put_numbers(&a, g->lanes, g->n);
    put_numbers(&a, g->counts, g->n);
    code = st_pg_call(u->s, PG_RING_EMPTY, &a, true, &r, err);
    if (!code && st_pg_get_i64(r, 0, 0, 1) == 0)
        ring_emptied(u);
    if (code == STINT_EAGAIN)
        st_log(ST_LOG_DEBUG, "ring.busy", ST_FI("slot", g->slot), ST_FE(err));
    else
        ring_reset(g); /* done, or again from the beginning; nobody knows: what is left will tell */
    PQclear(r);
    st_pg_args_clear(&a);
    return code == STINT_EAGAIN ? STINT_OK : code;
}

static stint_code do_ring(struct upkeep *u, stint_error *err)
{
    struct st_pg_ring *g = &u->care->ring;

    if (g->state != RING_REST && g->keep_us != u->req->keep.succeeded_us)
        ring_reset(g);
    switch (g->state) {
    case RING_REST:
        return ring_rest(u, err);
    case RING_WAIT:
        return ring_wait(u, err);
    case RING_LOOK:
        return ring_look(u, err);
    case RING_EMPTY:
        return ring_empty(u, err);
    }
    return STINT_OK;
}

/* ---- counts and summaries -------------------------------------------------------------------- */

static stint_code do_fold(struct upkeep *u, stint_error *err)
{
    const int64_t began_us = st_clock_mono_us();
    struct st_pg_args a;
    int64_t pause_us;
    stint_code code;

    st_pg_args_init(&a);
    st_pg_i64(&a, u->req->epoch);
    code = st_pg_call(u->s, PG_FOLD, &a, true, NULL, err);
    st_pg_args_clear(&a);
    pause_us = 20 * (st_clock_mono_us() - began_us);
    u->care->at_us[CHORE_FOLD] = later(pause_us > FOLD_US ? pause_us : FOLD_US);
    return code;
}

/* The slot that jobs of now go to; for a while the one before gets their outcomes. */
static stint_code do_summarize(struct upkeep *u, stint_error *err)
{
    const int64_t nth = st_store_now(&u->s->base) / ST_MS / ST_PG_SLOT_MS;
    stint_code code = summarize(u->s, (int32_t)(nth % ST_PG_SLOTS), err);

    if (!code)
        code = summarize(u->s, (int32_t)((nth + ST_PG_SLOTS - 1) % ST_PG_SLOTS), err);
    /* who does not own the tables leaves it to autovacuum */
    u->care->at_us[CHORE_SUMMARIZE] = later(code == STINT_ESTORE ? REINDEX_US : LATER_US);
    return code == STINT_ESTORE ? STINT_OK : code;
}

/* ---- vacuum ---------------------------------------------------------------------------------- */

enum { H_NAME, H_DEAD, H_LIVE };

static void hot_read(struct st_pg_care *care, const PGresult *r)
{
    for (int row = 0; row < PQntuples(r) && care->n_hot < ST_PG_HOT; row++) {
        const struct st_slice name = st_pg_get(r, row, H_NAME);

        snprintf(care->hot[care->n_hot].name, sizeof(care->hot[0].name), "%.*s", (int)name.len, name.p);
        care->hot[care->n_hot++].wait_us = LATER_US;
    }
}

/* Its place in the list, or -1. */
static int hot_find(const struct st_pg_care *care, struct st_slice name)
{
    for (size_t i = 0; i < care->n_hot; i++)
        if (st_slice_is(name, care->hot[i].name))
            return (int)i;
    return -1;
}

static bool pays(int64_t dead, int64_t live)
{
    return dead >= VACUUM_DEAD && dead * 4 >= live;
}

/* One table per call: the next one at once. */
static stint_code do_vacuum(struct upkeep *u, stint_error *err)
{
    struct st_pg_care *care = u->care;
    PGresult *r = NULL;
    char sql[96] = "";
    stint_code code = st_pg_call(u->s, PG_HOT_TABLES, NULL, false, &r, err);

    care->at_us[CHORE_VACUUM] = later(LATER_US);
    if (!code && !care->n_hot)
        hot_read(care, r);
    for (int row = 0; !code && !*sql && row < PQntuples(r); row++) {
        const int i = hot_find(care, st_pg_get(r, row, H_NAME));
        const int64_t dead = st_pg_get_i64(r, row, H_DEAD, 0);

        if (i < 0 || st_clock_mono_us() < care->hot[i].at_us || !pays(dead, st_pg_get_i64(r, row, H_LIVE, 0)))
            continue;
        care->hot[i].dead = dead;
        care->hot[i].at_us = later(care->hot[i].wait_us);
        snprintf(sql, sizeof(sql), "VACUUM (SKIP_LOCKED, TRUNCATE FALSE) {s}.%s", care->hot[i].name);
    }
    PQclear(r);
    if (code || !*sql)
        return code;
    care->at_us[CHORE_VACUUM] = 0;
    care->at_us[CHORE_JUDGE] = later(JUDGE_US);
    code = st_pg_exec(u->s, sql, NULL, false, NULL, err);
    if (code)
        care->at_us[CHORE_VACUUM] = later(LATER_US);
    return code;
}

/* Has it removed anything?  Looked at a moment later, when it has been counted. */
static stint_code do_judge(struct upkeep *u, stint_error *err)
{
    struct st_pg_care *care = u->care;
    PGresult *r = NULL;

    care->at_us[CHORE_JUDGE] = INT64_MAX;
    if (st_pg_call(u->s, PG_HOT_TABLES, NULL, false, &r, err))
        return err->code;
    for (int row = 0; row < PQntuples(r); row++) {
        const int i = hot_find(care, st_pg_get(r, row, H_NAME));

        if (i < 0 || !care->hot[i].dead)
            continue;
        if (st_pg_get_i64(r, row, H_DEAD, 0) * 5 < care->hot[i].dead * 4)
            care->hot[i].wait_us = LATER_US;
        else if (care->hot[i].wait_us < VACUUM_MAX_US)
            care->hot[i].wait_us *= 2;
        care->hot[i].dead = 0;
    }
    PQclear(r);
    return STINT_OK;
}

/* ---- reindex --------------------------------------------------------------------------------- */

static stint_code drop_left(struct st_pg *s, struct st_slice index, stint_error *err)
{
    char sql[256];

    snprintf(sql, sizeof(sql), "DROP INDEX CONCURRENTLY IF EXISTS {s}.%.*s", (int)index.len, index.p);
    st_log(ST_LOG_INFO, "index.dropped", ST_FS("index", index));
    return st_pg_exec(s, sql, NULL, false, NULL, err);
}

static stint_code rebuild(struct st_pg *s, struct st_slice index, stint_error *err)
{
    stint_error ignored = {0};
    char sql[256];
    stint_code code;

    snprintf(sql, sizeof(sql), "REINDEX INDEX CONCURRENTLY {s}.%.*s", (int)index.len, index.p);
    code = st_pg_exec(s, "SET lock_timeout = '2s'", NULL, false, NULL, err);
    if (!code)
        code = st_pg_exec(s, sql, NULL, false, NULL, err);
    st_log(ST_LOG_INFO, "index.rebuilt", ST_FS("index", index), ST_F("code", stint_code_name(code)));
    st_pg_exec(s, "SET lock_timeout = 0", NULL, false, NULL, &ignored);
    return code;
}

/* Leftovers of one that was interrupted go first, ours or another's. */
static stint_code do_reindex(struct upkeep *u, stint_error *err)
{
    struct st_pg *s = u->s;
    PGresult *r = NULL;
    stint_code code;

    u->care->at_us[CHORE_REINDEX] = later(REINDEX_US);
    if (s->pooled) /* needs a session of its own */
        return STINT_OK;
    code = st_pg_call(s, PG_INDEX_WORK, NULL, false, &r, err);
    if (!code && PQntuples(r) > 0) {
        const bool left = st_pg_get_bool(r, 0, 1);

        code = left ? drop_left(s, st_pg_get(r, 0, 0), err) : rebuild(s, st_pg_get(r, 0, 0), err);
        if (!left && code)
            u->care->at_us[CHORE_REINDEX] = later(LATER_US); /* to clear away what it left */
    }
    PQclear(r);
    return code;
}

/* ---- one step -------------------------------------------------------------------------------- */

static stint_code (*const chores[CHORE_N])(struct upkeep *u, stint_error *err) = {
    [CHORE_RING] = do_ring,     [CHORE_FOLD] = do_fold,   [CHORE_SUMMARIZE] = do_summarize,
    [CHORE_VACUUM] = do_vacuum, [CHORE_JUDGE] = do_judge, [CHORE_REINDEX] = do_reindex,
};

static int first_due(const struct st_pg_care *care)
{
    int first = 0;

    for (int i = 1; i < CHORE_N; i++)
        if (care->at_us[i] < care->at_us[first])
            first = i;
    return first;
}

/* A new leader, or one that led before: whatever was under way is begun again. */
static void begin_again(struct st_pg_care *care, int64_t epoch)
{
    ring_reset(&care->ring);
    memset(care->at_us, 0, sizeof(care->at_us));
    care->at_us[CHORE_JUDGE] = INT64_MAX;
    care->at_us[CHORE_REINDEX] = later(LATER_US);
    care->epoch = epoch;
}

stint_code st_pg_upkeep(struct st_store *store, const struct st_prune_req *req, struct st_pruned *out,
                        int64_t *again_us, stint_error *err)
{
    struct upkeep u = {.s = st_pg_of(store), .req = req, .out = out};
    stint_error local = {0};
    stint_code code = STINT_OK;
    int which;

    memset(out, 0, sizeof(*out));
    *again_us = LATER_US;
    u.care = st_pg_care(u.s, &local);
    if (!u.care)
        return st_pg_told(local.code, &local, err);
    if (u.care->epoch != req->epoch)
        begin_again(u.care, req->epoch);
    which = first_due(u.care);
    if (u.care->at_us[which] <= st_clock_mono_us()) {
        code = chores[which](&u, &local);
        if (code && u.care->at_us[which] < later(LATER_US / 2))
            u.care->at_us[which] = later(LATER_US);
    }
    if (code == STINT_ELOST)
        u.care->epoch = 0;
    *again_us = u.care->at_us[first_due(u.care)] - st_clock_mono_us();
    if (*again_us < AGAIN_MIN_US)
        *again_us = AGAIN_MIN_US;
    if (code)
        st_pruned_clear(out);
    return st_pg_told(code, &local, err);
}
