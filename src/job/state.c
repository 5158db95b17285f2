/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c - the one table of a job's states, and the names of states and failures.
 *
 * Whatever changes a job's state asks st_state_next() first; a store whose language is not C
 * guards its own statements and is tested against this table.
 *
 * Invariants:
 *   (1) a succeeded job never changes again;
 *   (2) an ended job comes back only by the operator's hand (revive);
 *   (3) only a held job (claimed, running) has an outcome.
 *
 * Thread: any; there is no state here.
 */
#include "job/state.h"

/* to + 1, so that what is not written is 0: not legal. */
#define TO(s) ((unsigned char)((s) + 1))

static const unsigned char next_state[ST_STATE_N][ST_EVENT_N] = {
    [ST_BLOCKED] =
        {
            [ST_EV_UNBLOCK] = TO(ST_PENDING),
            [ST_EV_CANCEL] = TO(ST_CANCELLED),
        },
    [ST_PENDING] =
        {
            [ST_EV_CLAIM] = TO(ST_CLAIMED),
            [ST_EV_CLAIM_RUN] = TO(ST_RUNNING),
            [ST_EV_CANCEL] = TO(ST_CANCELLED),
        },
    /* A prefetched job's start is often written together with its outcome, so a claimed job
     * can end in every way a running one can. */
    [ST_CLAIMED] =
        {
            [ST_EV_START] = TO(ST_RUNNING),
            [ST_EV_SUCCEED] = TO(ST_SUCCEEDED),
            [ST_EV_RETRY] = TO(ST_PENDING),
            [ST_EV_FAIL] = TO(ST_FAILED),
            [ST_EV_RELEASE] = TO(ST_PENDING),
            [ST_EV_CANCEL] = TO(ST_CANCELLED),
            [ST_EV_STEAL] = TO(ST_RUNNING),
        },
    [ST_RUNNING] =
        {
            [ST_EV_SUCCEED] = TO(ST_SUCCEEDED),
            [ST_EV_RETRY] = TO(ST_PENDING),
            [ST_EV_FAIL] = TO(ST_FAILED),
            [ST_EV_RELEASE] = TO(ST_PENDING),
            [ST_EV_CANCEL] = TO(ST_CANCELLED),
            [ST_EV_STEAL] = TO(ST_RUNNING),
        },
    [ST_FAILED] = {[ST_EV_REVIVE] = TO(ST_PENDING)},
    [ST_CANCELLED] = {[ST_EV_REVIVE] = TO(ST_PENDING)},
};

int st_state_next(enum st_state from, enum st_event ev)
{
    if ((unsigned)from >= ST_STATE_N || (unsigned)ev >= ST_EVENT_N)
        return -1;
    return (int)next_state[from][ev] - 1;
}

const char *st_state_name(enum st_state s)
{
    static const char *const names[ST_STATE_N] = {
        [ST_BLOCKED] = "blocked",     [ST_PENDING] = "pending", [ST_CLAIMED] = "claimed",     [ST_RUNNING] = "running",
        [ST_SUCCEEDED] = "succeeded", [ST_FAILED] = "failed",   [ST_CANCELLED] = "cancelled",
    };

    return (unsigned)s < ST_STATE_N ? names[s] : "?";
}

const char *st_event_name(enum st_event e)
{
    static const char *const names[ST_EVENT_N] = {
        [ST_EV_UNBLOCK] = "unblock", [ST_EV_CLAIM] = "claim",     [ST_EV_CLAIM_RUN] = "claim_run",
        [ST_EV_START] = "start",     [ST_EV_SUCCEED] = "succeed", [ST_EV_RETRY] = "retry",
        [ST_EV_FAIL] = "fail",       [ST_EV_RELEASE] = "release", [ST_EV_CANCEL] = "cancel",
        [ST_EV_STEAL] = "steal",     [ST_EV_REVIVE] = "revive",
    };

    return (unsigned)e < ST_EVENT_N ? names[e] : "?";
}

static enum st_shown shown_pending(int64_t due_us, int attempt, int64_t now_us)
{
    if (due_us <= now_us)
        return ST_SHOW_PENDING;
    return attempt > 0 ? ST_SHOW_RETRYING : ST_SHOW_SCHEDULED;
}

enum st_shown st_state_shown(enum st_state s, int64_t due_us, int attempt, int64_t now_us)
{
    switch (s) {
    case ST_BLOCKED:
        return ST_SHOW_BLOCKED;
    case ST_CLAIMED:
        return ST_SHOW_CLAIMED;
    case ST_RUNNING:
        return ST_SHOW_RUNNING;
    case ST_SUCCEEDED:
        return ST_SHOW_SUCCEEDED;
    case ST_FAILED:
        return ST_SHOW_FAILED;
    case ST_CANCELLED:
        return ST_SHOW_CANCELLED;
    case ST_PENDING:
    case ST_STATE_N:
        break;
    }
    return shown_pending(due_us, attempt, now_us);
}

static const char *const shown_names[ST_SHOWN_N] = {
    [ST_SHOW_BLOCKED] = "blocked",     [ST_SHOW_SCHEDULED] = "scheduled", [ST_SHOW_PENDING] = "pending",
    [ST_SHOW_RETRYING] = "retrying",   [ST_SHOW_CLAIMED] = "claimed",     [ST_SHOW_RUNNING] = "running",
    [ST_SHOW_SUCCEEDED] = "succeeded", [ST_SHOW_FAILED] = "failed",       [ST_SHOW_CANCELLED] = "cancelled",
};

const char *st_shown_name(enum st_shown s)
{
    return (unsigned)s < ST_SHOWN_N ? shown_names[s] : "?";
}

bool st_shown_parse(struct st_slice name, enum st_shown *out)
{
    for (int i = 0; i < ST_SHOWN_N; i++) {
        if (st_slice_is(name, shown_names[i])) {
            *out = (enum st_shown)i;
            return true;
        }
    }
    return false;
}

const char *st_kind_name(enum st_kind k)
{
    static const char *const names[ST_KIND_N] = {
#define X(name, text) [ST_KIND_##name] = text,
        ST_KINDS(X)
#undef X
    };

    return (unsigned)k < ST_KIND_N ? names[k] : "internal";
}
