/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - the states of a job and the one function that changes them.
 *
 *                    enqueue
 *                       |
 *   blocked --------> pending <------------------------------------------.
 *      |  unblock     |  |  ^                                            |
 *      |       cancel |  |  | retry, release, reap (budget left)         |
 *      |              |  |  `------------------------.                   |
 *      |              |  +--claim (prefetch)--> claimed --start--> running
 *      |              |  +--claim (free slot)------------------------>|  |
 *      |              |                            |                  |  |
 *      |              v        cancel flag, finish | finish           |  |
 *      `--------> cancelled <----------------------+------------------'  |
 *                     |                            |                     |
 *                     |      succeeded <-----------+---------------------+
 *                     |      failed    <-----------+---------------------+
 *                     |        | operator's retry
 *                     `--------+------> pending
 *
 * Kept in the store: enum st_state.  Shown to people: enum st_shown, where a pending job that is
 * not yet due is `scheduled`, or `retrying` if an attempt was already charged.
 */
#ifndef ST_JOB_STATE_H
#define ST_JOB_STATE_H

#include "base/str.h"

/* The numbers are stored; never reuse or reorder them. */
enum st_state {
    ST_BLOCKED = 0,
    ST_PENDING = 1,
    ST_CLAIMED = 2,
    ST_RUNNING = 3,
    ST_SUCCEEDED = 4,
    ST_FAILED = 5,
    ST_CANCELLED = 6,
    ST_STATE_N
};

enum st_event {
    ST_EV_UNBLOCK,   /* what it waited for is there */
    ST_EV_CLAIM,     /* prefetched: not started yet */
    ST_EV_CLAIM_RUN, /* claimed into a free slot, or acquired by id */
    ST_EV_START,     /* a prefetched job begins */
    ST_EV_SUCCEED,
    ST_EV_RETRY,   /* failed, budget left: also a reaped job */
    ST_EV_FAIL,    /* failed for good: also a reaped job without budget */
    ST_EV_RELEASE, /* given back uncharged */
    ST_EV_CANCEL,  /* cancelled before it ran, or its attempt ended after a cancel request */
    ST_EV_STEAL,   /* acquire-by-id of a held job whose lease has expired */
    ST_EV_REVIVE,  /* the operator's retry of a dead or cancelled job */
    ST_EVENT_N
};

/* The state after the event, or -1 where the event is not legal in that state. */
int st_state_next(enum st_state from, enum st_event ev);

const char *st_state_name(enum st_state s); /* "pending" */
const char *st_event_name(enum st_event e);

static inline bool st_state_held(enum st_state s)
{
    return s == ST_CLAIMED || s == ST_RUNNING;
}
static inline bool st_state_ended(enum st_state s)
{
    return s >= ST_SUCCEEDED;
}

enum st_shown {
    ST_SHOW_BLOCKED,
    ST_SHOW_SCHEDULED,
    ST_SHOW_PENDING,
    ST_SHOW_RETRYING,
    ST_SHOW_CLAIMED,
    ST_SHOW_RUNNING,
    ST_SHOW_SUCCEEDED,
    ST_SHOW_FAILED,
    ST_SHOW_CANCELLED,
    ST_SHOWN_N
};
enum st_shown st_state_shown(enum st_state s, int64_t due_us, int attempt, int64_t now_us);
const char *st_shown_name(enum st_shown s);
bool st_shown_parse(struct st_slice name, enum st_shown *out);

/* Why an attempt or a job failed.  The numbers are stored. */
#define ST_KINDS(X)                                                                                                    \
    X(NONE, "")                                                                                                        \
    X(APP_ERROR, "app_error")                                                                                          \
    X(PERMANENT, "permanent")                                                                                          \
    X(TIMEOUT, "timeout")                                                                                              \
    X(KILLED, "killed")                                                                                                \
    X(EXIT, "exit")                                                                                                    \
    X(RESULT_TOO_LARGE, "result_too_large")                                                                            \
    X(BAD_RESULT, "bad_result")                                                                                        \
    X(LEASE_EXPIRED, "lease_expired")                                                                                  \
    X(CHILD_CRASHED, "child_crashed")                                                                                  \
    X(NO_HANDLER, "no_handler")                                                                                        \
    X(CANCELLED, "cancelled")                                                                                          \
    X(OOM, "oom")                                                                                                      \
    X(CAPS, "caps")                                                                                                    \
    X(QUARANTINED, "quarantined")                                                                                      \
    X(EXPIRED, "expired")                                                                                              \
    X(INTERNAL, "internal")
enum st_kind {
#define X(name, text) ST_KIND_##name,
    ST_KINDS(X)
#undef X
        ST_KIND_N
};
const char *st_kind_name(enum st_kind k);

#endif
