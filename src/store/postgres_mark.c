/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_mark.c - how far this process has claimed, so that no claim walks the dead rows of those before it.
 *
 * A claimer remembers per lane a place (key, id), the *tail*: nothing that can run lies before it.  A claim begins there.
 * Commits come in another order than keys, so the tail may not simply be the last key claimed:
 *
 *     note      (mark, y): a claim took rows up to mark, and y was its own transaction's number
 *     first     the first row at or after the beginning, visible to a claim's first look, locked or not; where there is none, the
 *               claim's now(): it did not look further
 *     snapshot  which transactions were still open just before
 *
 * A row enters an even lane only with a key that is not before the clock, read after its transaction had its number x; a
 * claim takes only keys before its now(), which was read before it got y.  So a row with a key up to `mark` has x < y.  Once
 * every transaction below y has ended, such a row is visible (then `first` stops the tail there), or gone for good.
 * Hence: tail = min(first, last mark whose y is below everything still open).
 *
 * A transaction that stays open for long would hold the tail.  When more than WINDOW jobs were claimed past the tail, those
 * open below the last y become *exceptions*: they no longer count, and when one has ended the lane is looked through once
 * more, from where the tail stood when it became one (a *sweep*).  A sweep is over when the look of a claim that began after
 * it was asked for finds nothing before the tail.
 * Behind all of it, against clocks set back and our own mistakes: a sweep from the beginning, at the start, after every error,
 * and from time to time, seldom enough to cost 1% at most.
 *
 * Thread: any, under the shared mutex.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/postgres_int.h"

#define WINDOW      2000 /* jobs claimed past the tail before open transactions are set aside */
#define SWEEP_EVERY (10 * ST_SEC)
#define SWEEP_SHARE 100 /* the slow sweep takes at most one part in so many */

const struct st_pg_pos st_pg_begin = {.key = INT64_MIN};

static int pos_cmp(const struct st_pg_pos *a, const struct st_pg_pos *b)
{
    const size_t n = a->id.len < b->id.len ? a->id.len : b->id.len;
    int c;

    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    c = memcmp(a->id.p, b->id.p, n);
    return c ? c : (a->id.len > b->id.len) - (a->id.len < b->id.len);
}

static void lane_forget(struct st_pg_lane *lane)
{
    lane->tail = st_pg_begin;
    lane->sweeping = false;
    lane->n_notes = 0;
    lane->n_exceptions = 0;
}

void st_pg_marks_forget(struct st_pg_shared *sh)
{
    for (size_t i = 0; i < sh->n_lanes; i++)
        lane_forget(sh->lanes[i]);
    sh->swept_us = st_clock_mono_us();
}

const struct st_pg_pos *st_pg_mark_from(const struct st_pg_lane *lane)
{
    return lane->sweeping && pos_cmp(&lane->sweep, &lane->tail) < 0 ? &lane->sweep : &lane->tail;
}

static void sweep_from(struct st_pg_lane *lane, const struct st_pg_pos *low)
{
    if (!lane->sweeping || pos_cmp(low, &lane->sweep) < 0)
        lane->sweep = *low;
    lane->sweeping = true;
    lane->sweeps++;
}

void st_pg_marks_sweep(struct st_pg_shared *sh)
{
    const int64_t now = st_clock_mono_us();
    const int64_t every = sh->sweep_cost_us * SWEEP_SHARE > SWEEP_EVERY ? sh->sweep_cost_us * SWEEP_SHARE : SWEEP_EVERY;

    if (now - sh->swept_us < every)
        return;
    sh->swept_us = now;
    sh->sweep_cost_us = 0;
    for (size_t i = 0; i < sh->n_lanes; i++)
        if (pos_cmp(&sh->lanes[i]->tail, &st_pg_begin) > 0)
            sweep_from(sh->lanes[i], &st_pg_begin);
}

void st_pg_marks_swept(struct st_pg_shared *sh, int64_t took_us)
{
    if (took_us > sh->sweep_cost_us)
        sh->sweep_cost_us = took_us;
}

/* ---- snapshots ------------------------------------------------------------------------------ */

/* "xmin:xmax:xip,xip,..." */
struct snapshot {
    uint64_t xmax;
    const char *xip; /* the list, from its first number on; "" = none is open */
};

static bool snapshot_parse(const char *text, struct snapshot *out)
{
    char *end;

    strtoull(text, &end, 10);
    if (*end != ':')
        return false;
    out->xmax = strtoull(end + 1, &end, 10);
    if (*end != ':')
        return false;
    out->xip = end + 1;
    return true;
}

/* The next number of the list, or false. */
static bool xip_next(const char **at, uint64_t *xid)
{
    char *end;

    if (!**at)
        return false;
    *xid = strtoull(*at, &end, 10);
    if (end == *at)
        return false;
    *at = *end == ',' ? end + 1 : end;
    return true;
}

static bool is_open(const struct snapshot *s, uint64_t xid)
{
    const char *at = s->xip;
    uint64_t x;

    if (xid >= s->xmax)
        return true;
    while (xip_next(&at, &x))
        if (x == xid)
            return true;
    return false;
}

static bool is_exception(const struct st_pg_lane *lane, uint64_t xid)
{
    for (size_t i = 0; i < lane->n_exceptions; i++)
        if (lane->exceptions[i].xid == xid)
            return true;
    return false;
}

/* Everything below it has ended, exceptions aside. */
static uint64_t oldest_open(const struct st_pg_lane *lane, const struct snapshot *s)
{
    const char *at = s->xip;
    uint64_t oldest = s->xmax, x;

    while (xip_next(&at, &x))
        if (x < oldest && !is_exception(lane, x))
            oldest = x;
    return oldest;
}

/* ---- learning -------------------------------------------------------------------------------- */

/* Exceptions that have ended: what they may have left behind the tail must be looked for. */
static void settle_exceptions(struct st_pg_lane *lane, const struct snapshot *s)
{
    size_t n = 0;

    for (size_t i = 0; i < lane->n_exceptions; i++) {
        if (is_open(s, lane->exceptions[i].xid))
            lane->exceptions[n++] = lane->exceptions[i];
        else
            sweep_from(lane, &lane->exceptions[i].low);
    }
    lane->n_exceptions = n;
    if (!n) { /* there may be very many lanes, of which few are at work */
        free(lane->exceptions);
        lane->exceptions = NULL;
    }
}

static void move_tail(struct st_pg_lane *lane, const struct st_pg_seen *seen, const struct snapshot *s)
{
    const uint64_t oldest = oldest_open(lane, s);
    const struct st_pg_pos *to = NULL;
    struct st_pg_pos safe;
    size_t kept = 0;

    if (pos_cmp(&seen->from, &lane->tail) > 0)
        return; /* all was forgotten since it began: it cannot speak for what lies before */
    for (size_t i = 0; i < lane->n_notes; i++) {
        if (lane->notes[i].xid >= oldest) {
            lane->notes[kept++] = lane->notes[i];
        } else if (!to || pos_cmp(&lane->notes[i].mark, &safe) > 0) {
            safe = lane->notes[i].mark;
            to = &safe;
        }
    }
    lane->n_notes = kept;
    if (!kept) {
        free(lane->notes);
        lane->notes = NULL;
    }
    if (to && pos_cmp(&seen->first, to) < 0)
        to = &seen->first;
    if (to && pos_cmp(to, &lane->tail) > 0)
        lane->tail = *to;
}

static void end_sweep(struct st_pg_lane *lane, const struct st_pg_seen *seen)
{
    if (!lane->sweeping || seen->sweeps != lane->sweeps || pos_cmp(&seen->from, &lane->sweep) > 0)
        return;
    if (pos_cmp(&seen->first, &lane->tail) >= 0)
        lane->sweeping = false;
    else if (pos_cmp(&seen->first, &lane->sweep) > 0)
        lane->sweep = seen->first;
}

static void add_note(struct st_pg_lane *lane, const struct st_pg_seen *seen, uint64_t xid)
{
    if (!seen->n || !xid)
        return;
    if (!lane->notes && !(lane->notes = calloc(ST_PG_NOTES, sizeof(*lane->notes))))
        return;                         /* the tail stays where it is: slower, not wrong */
    if (lane->n_notes == ST_PG_NOTES) { /* the two newest become one: the later number covers both */
        struct st_pg_note *last = &lane->notes[lane->n_notes - 1];

        if (pos_cmp(&seen->mark, &last->mark) > 0)
            last->mark = seen->mark;
        if (xid > last->xid)
            last->xid = xid;
        last->n += seen->n;
        return;
    }
    lane->notes[lane->n_notes++] = (struct st_pg_note){.mark = seen->mark, .xid = xid, .n = seen->n};
}

static void set_aside(struct st_pg_lane *lane, const struct snapshot *s)
{
    const char *at = s->xip;
    uint64_t last = 0, x;
    size_t past = 0;

    for (size_t i = 0; i < lane->n_notes; i++) {
        past += lane->notes[i].n;
        if (lane->notes[i].xid > last)
            last = lane->notes[i].xid;
    }
    if (past <= WINDOW)
        return;
    if (!lane->exceptions && !(lane->exceptions = calloc(ST_PG_EXCEPTIONS, sizeof(*lane->exceptions))))
        return;
    while (xip_next(&at, &x) && lane->n_exceptions < ST_PG_EXCEPTIONS)
        if (x < last && !is_exception(lane, x))
            lane->exceptions[lane->n_exceptions++] = (struct st_pg_exception){.xid = x, .low = lane->tail};
}

void st_pg_marks_learn(struct st_pg_shared *sh, uint64_t xid, const char *snapshot, const struct st_pg_seen *seen,
                       size_t n)
{
    struct snapshot s;

    if (!snapshot_parse(snapshot, &s)) {
        st_pg_marks_forget(sh);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct st_pg_lane *lane = seen[i].lane;

        if (seen[i].skipped)
            continue; /* it says nothing about this lane, and took nothing from it */
        settle_exceptions(lane, &s);
        move_tail(lane, &seen[i], &s);
        end_sweep(lane, &seen[i]);
        add_note(lane, &seen[i], xid);
        set_aside(lane, &s);
    }
}
