/* SPDX-License-Identifier: Apache-2.0
 *
 * resident.h - what resident.c (crews and requests) and member.c (one child) share.
 *
 * Thread: the loop's.
 */
#ifndef ST_EXECUTE_RESIDENT_H
#define ST_EXECUTE_RESIDENT_H

#include "execute/child.h"
#include "execute/frames.h"

enum st_request_why { ST_WHY_NONE, ST_WHY_ABORT, ST_WHY_TIMEOUT };

/* An attempt.  It waits (no member), is in flight (a member), or is in the executor's list of
 * those that have ended. */
struct st_request {
    struct st_run run;
    struct st_crew *crew;
    struct st_member *member;
    struct st_request *next, *prev;    /* waiting, in flight, or ended */
    struct st_request *bucket_next;    /* in the member's table */
    struct st_request *sooner, *later; /* by deadline, if it has one */
    const struct st_job *job;
    st_ran_fn done;
    void *arg;
    uint64_t at;   /* where its line begins in the child's stdin */
    uint32_t hash; /* of its id */
    uint32_t id_len;
    int n_unread;    /* children that ended without an answer and had not read it */
    bool ended;      /* and not told yet */
    bool cancelling; /* the cancel line was sent; the deadline is the grace's */
    enum st_request_why why;
    enum st_abort aborted;
    int64_t deadline_us; /* CLOCK_MONOTONIC; 0 = none */
    char *progress;
    size_t progress_len;
    struct st_runlog *log; /* made with the first line for it */
    struct st_ran ran;     /* when it has ended */
};

struct st_requests {
    struct st_request *first, *last;
    int n;
};

/* The resident children of one command. */
struct st_crew {
    struct st_exec *x;
    struct st_crew *next;
    struct st_command cmd;         /* a copy */
    const struct st_command *same; /* known to be the same, while generation is the executor's */
    unsigned generation;
    int processes, max_in_flight;

    struct st_supervise supervise;
    int64_t not_before_us; /* no process was to be had */
    bool owed;             /* one crashed and was not replaced yet */
    int64_t stale_us;      /* if nobody has asked for it by then, its children go; 0 = not set */
    uint64_t n_stray;      /* answers to nothing that was asked */

    struct st_member *members; /* all that are not over */
    int n_starting, n_ready;   /* those that take requests, or will */
    struct st_requests waiting;
    struct st_request *soonest, *latest; /* by deadline */
    uv_timer_t timer;
    int64_t timer_us; /* when it fires; 0 = not set */
    bool closing;
    struct st_request *spare; /* for the next ones */
    int n_spare;
};

enum st_member_state {
    ST_MEMBER_STARTING,
    ST_MEMBER_READY,
    ST_MEMBER_RETIRING, /* finishes what it has, then ends */
    ST_MEMBER_LEAVING,  /* is being stopped, or has ended */
};

struct st_member {
    struct st_child child;
    struct st_crew *crew;
    struct st_member *next, **prev;
    enum st_member_state state;
    bool cancels; /* it understands cancel lines */
    bool by_us;   /* we stopped it: no crash */
    bool retired, dismissed;
    bool was_ready;
    bool silent, deaf; /* it closed its stdout, its stdin */
    bool too_much;     /* it printed more than its cap */
    char *trouble;     /* what else was wrong with it, or NULL */
    char mark[64];     /* "STINT_CHILD=..." */

    struct st_requests flight;
    struct st_request **buckets; /* flight, by id; n_buckets is a power of two */
    size_t n_buckets;
    int64_t n_given, n_answered, n_stray;
    int n_unread;             /* requests it had not read when it ended */
    int64_t since_us, rss_us; /* CLOCK_MONOTONIC: when it was ready, when its size was looked at */
    bool unseen;              /* its size was not looked at since it last printed something */
    int64_t n_output;         /* bytes since the last answer */

    struct st_frames out, errs;
    struct st_runlog log; /* the end of its stderr */
};

/* ---- lists ---- */
void st_requests_add(struct st_requests *q, struct st_request *r);
void st_requests_add_first(struct st_requests *q, struct st_request *r);
void st_requests_remove(struct st_requests *q, struct st_request *r);

/* ---- resident.c ---- */
uint32_t st_request_hash(const char *id, size_t len);
/* Tells what came of it; *ran is taken over.  r is gone afterwards, and anything may have been
 * started or stopped. */
void st_request_finish(struct st_request *r, struct st_ran *ran);
/* What came of an attempt that was stopped. */
void st_request_fill_why(const struct st_request *r, struct st_ran *ran);
/* From now on it has this long. */
void st_request_limit(struct st_request *r, int64_t after_us);
void st_request_no_limit(struct st_request *r);

void st_crew_tend(struct st_crew *c);                /* give requests to children, start more, set the timer */
void st_crew_ready(struct st_crew *c);               /* a child is */
void st_crew_look(struct st_crew *c, int64_t at_us); /* check its children by then */
/* A child crashed.  Comes before what becomes of its requests; st_crew_settle() after it. */
void st_crew_crashed(struct st_crew *c, const char *reason);
void st_crew_settle(struct st_crew *c);
/* Its command cannot be run: all that wait fail like this. */
void st_crew_refuse(struct st_crew *c, const struct st_ran *why);

/* ---- member.c ---- */
/* Starts one.  false: it could not be; if that is for good, those that wait have been told. */
bool st_member_start(struct st_crew *c);
/* Can it take this one? */
bool st_member_free(const struct st_member *m, const struct st_request *r);
/* Gives it the request.  false: it is too long; *ran is what comes of it. */
bool st_member_give(struct st_member *m, struct st_request *r, struct st_ran *ran);
/* Tells it to stop working on it.  false: it would not understand. */
bool st_member_cancel(struct st_member *m, const struct st_request *r);
void st_member_stop(struct st_member *m, bool now);
/* No more requests; it ends when it has none. */
void st_member_retire(struct st_member *m);
/* Time for a fresh one?  Retires it, once it has had a request; or gives when to look again, 0 =
 * there is no need. */
int64_t st_member_check(struct st_member *m);

#endif
