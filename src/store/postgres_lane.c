/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_lane.c - what this process knows of lanes and policies.
 *
 * The registry in the database is only added to.  A claim tells how many rows it has, so that a lane that was never
 * seen is read before the next claim; a slow re-read stands behind that.
 *
 * Thread: any; the shared mutex guards the list.  Lanes are never moved and live as long as the shared part.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/postgres_int.h"

#define REREAD_US (5 * ST_SEC)

/* ---- lanes ------------------------------------------------------------------------------------ */

/* Where id is, or would be. */
static size_t lane_place(const struct st_pg_shared *sh, int64_t id)
{
    size_t lo = 0, hi = sh->n_lanes;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (sh->lanes[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct st_pg_lane *st_pg_lane_by_id(struct st_pg_shared *sh, int64_t id)
{
    const int64_t even = id & -2;
    const size_t at = lane_place(sh, even);

    return at < sh->n_lanes && sh->lanes[at]->id == even ? sh->lanes[at] : NULL;
}

static struct st_pg_lane *lane_new(int64_t id, struct st_slice queue, struct st_slice type, int priority)
{
    struct st_pg_lane *lane = calloc(1, sizeof(*lane));
    char *text = malloc(queue.len + type.len + 1);

    if (!lane || !text) {
        free(lane);
        free(text);
        return NULL;
    }
    memcpy(text, queue.p, queue.len);
    memcpy(text + queue.len, type.p, type.len);
    lane->id = id;
    lane->queue = ST_SLICE(text, queue.len);
    lane->type = ST_SLICE(text + queue.len, type.len);
    lane->priority = priority;
    lane->tail = st_pg_begin;
    return lane;
}

/* Under mu.  false = no memory. */
static bool lane_add(struct st_pg_shared *sh, int64_t id, struct st_slice queue, struct st_slice type, int priority)
{
    const size_t at = lane_place(sh, id);
    struct st_pg_lane *lane, **grown;

    if (at < sh->n_lanes && sh->lanes[at]->id == id)
        return true;
    if (sh->n_lanes == sh->cap_lanes) {
        const size_t cap = sh->cap_lanes ? 2 * sh->cap_lanes : 16;

        grown = realloc(sh->lanes, cap * sizeof(*grown));
        if (!grown)
            return false;
        sh->lanes = grown;
        sh->cap_lanes = cap;
    }
    lane = lane_new(id, queue, type, priority);
    if (!lane)
        return false;
    memmove(sh->lanes + at + 1, sh->lanes + at, (sh->n_lanes - at) * sizeof(*sh->lanes));
    sh->lanes[at] = lane;
    sh->n_lanes++;
    return true;
}

static bool lanes_take(struct st_pg_shared *sh, const PGresult *r)
{
    bool ok = true;

    sh->lanes_seen = PQntuples(r);
    sh->lanes_max = 0;
    for (int i = 0; ok && i < PQntuples(r); i++) {
        const int64_t n = st_pg_get_i64(r, i, 0, 0);

        if (n > sh->lanes_max)
            sh->lanes_max = n;
        ok = lane_add(sh, st_pg_get_i64(r, i, 1, 0), st_pg_get(r, i, 3), st_pg_get(r, i, 4),
                      (int)st_pg_get_i64(r, i, 2, 0));
    }
    return ok;
}

stint_code st_pg_lanes_refresh(struct st_pg *s, bool force, stint_error *err)
{
    struct st_pg_shared *sh = s->sh;
    PGresult *r = NULL;
    bool ok;

    pthread_mutex_lock(&sh->mu);
    ok = !force && sh->lanes_read_us && st_clock_mono_us() - sh->lanes_read_us < REREAD_US;
    pthread_mutex_unlock(&sh->mu);
    if (ok)
        return STINT_OK;
    if (st_pg_call(s, PG_LANES, NULL, false, &r, err))
        return err->code;
    pthread_mutex_lock(&sh->mu);
    ok = lanes_take(sh, r);
    sh->lanes_read_us = ok ? st_clock_mono_us() : 0;
    pthread_mutex_unlock(&sh->mu);
    PQclear(r);
    return ok ? STINT_OK : st_fail(err, STINT_ENOMEM, "out of memory for the list of lanes");
}

void st_pg_lanes_clear(struct st_pg_shared *sh)
{
    for (size_t i = 0; i < sh->n_lanes; i++) {
        free((char *)(uintptr_t)sh->lanes[i]->queue.p);
        free(sh->lanes[i]->notes);
        free(sh->lanes[i]->exceptions);
        free(sh->lanes[i]);
    }
    free(sh->lanes);
    sh->lanes = NULL;
    sh->n_lanes = sh->cap_lanes = 0;
    for (size_t i = 0; i < sh->n_policies; i++)
        free(sh->policies[i].text);
    sh->n_policies = 0;
}

/* ---- policies --------------------------------------------------------------------------------- */

static bool policy_known(struct st_pg_shared *sh, const char *text, int32_t *id)
{
    bool found = false;

    pthread_mutex_lock(&sh->mu);
    for (size_t i = 0; !found && i < sh->n_policies; i++) {
        found = strcmp(sh->policies[i].text, text) == 0;
        if (found)
            *id = sh->policies[i].id;
    }
    pthread_mutex_unlock(&sh->mu);
    return found;
}

/* Takes text. */
static void policy_keep(struct st_pg_shared *sh, char *text, int32_t id)
{
    pthread_mutex_lock(&sh->mu);
    if (sh->n_policies < sizeof(sh->policies) / sizeof(sh->policies[0])) {
        sh->policies[sh->n_policies].id = id;
        sh->policies[sh->n_policies++].text = text;
        text = NULL;
    }
    pthread_mutex_unlock(&sh->mu);
    free(text);
}

stint_code st_pg_policy_id(struct st_pg *s, const struct st_policy *p, int32_t *id, stint_error *err)
{
    struct st_pg_args a;
    struct st_buf b;
    PGresult *r = NULL;

    st_buf_init(&b, 4096);
    st_policy_write(p, &b);
    if (b.failed) {
        st_buf_clear(&b);
        return st_fail(err, STINT_ENOMEM, "out of memory for a policy");
    }
    if (policy_known(s->sh, b.p, id)) {
        st_buf_clear(&b);
        return STINT_OK;
    }
    st_pg_args_init(&a);
    st_pg_text(&a, st_buf_view(&b));
    if (!st_pg_call(s, PG_POLICY, &a, true, &r, err)) {
        *id = (int32_t)st_pg_get_i64(r, 0, 0, 0);
        PQclear(r);
        policy_keep(s->sh, st_buf_take(&b), *id);
        err->code = STINT_OK;
    }
    st_pg_args_clear(&a);
    st_buf_clear(&b);
    return err->code;
}
