/* SPDX-License-Identifier: Apache-2.0
 *
 * courier.h - one thread that carries outcomes to the store and brings jobs back.
 */
#ifndef ST_CLAIM_COURIER_H
#define ST_CLAIM_COURIER_H

#include <uv.h>

#include "claim/plan.h"
#include "complete/complete.h"
#include "complete/observe.h"

/* How the worker's threads get a handle of their own. */
struct st_opener {
    stint_code (*open)(void *arg, struct st_store **out, stint_error *err);
    void *arg;
};

/* Asked by the courier once the store is open, before the first claim; again after EAGAIN. */
struct st_admit {
    stint_code (*fn)(void *arg, struct st_store *s, stint_error *err); /* NULL = nothing to ask */
    void *arg;
};

struct st_courier;

/* Verdicts so far. */
struct st_tally {
    int64_t succeeded, failed, retried, cancelled, released, refused;
    int64_t rounds; /* batches they were written in */
};

/* What the courier tells the loop.  Counters grow; the loop compares. */
struct st_courier_news {
    bool opened;       /* the store was opened for the first time */
    stint_code fatal;  /* not OK: the store cannot be used (error below); the courier has ended */
    stint_error error; /* of the last failure */
    bool claim_over;   /* the claim asked for is answered: */
    stint_code claim_code;
    struct st_job **jobs; /* owned by the taker: free the array, the jobs are its own */
    size_t n_jobs, n_asked;
    bool late;              /* it was for late ones only */
    bool crowded;           /* others were claiming: there may be more than it brought */
    int64_t next_due_in_us; /* after an empty claim: the next scheduled job; -1 = none known */
    int64_t claim_took_us;
    bool disowned;  /* the disown asked for is done */
    bool away;      /* the store does not answer at the moment */
    size_t in_hand; /* outcomes not yet written */
    struct st_tally tally;
};

/* observer stays the caller's. */
stint_code st_courier_new(const struct st_opener *opener, struct st_admit admit, const char *worker_id,
                          const char *results_dir, const struct st_observer *observer, uv_async_t *wake,
                          struct st_courier **out, stint_error *err);

/* Takes over a list of n ended attempts; written at once when idle, in batches while busy. */
void st_courier_finish(struct st_courier *c, struct st_done *first, struct st_done *last, size_t n);
/* Ask for up to n jobs, the first n_run to run at once.  One claim at a time.  Takes a reference to plan.  late_us > 0: only
 * jobs that have been due for so long.  may_defer: where many are claiming it may be answered with `crowded`, and less than there is. */
void st_courier_claim(struct st_courier *c, struct st_plan *plan, size_t n, size_t n_run, int64_t late_us,
                      bool may_defer);
/* After the answer of a claim was taken: all that follows from it was said.  Until then the courier waits a moment, so that
 * the outcomes it has and the next claim are one exchange. */
void st_courier_said(struct st_courier *c);
/* After a claim that ended EUNKNOWN: give back what we hold without knowing.  ids: n texts, copied. */
stint_code st_courier_disown(struct st_courier *c, const struct st_slice *known, size_t n, stint_error *err);
void st_courier_take(struct st_courier *c, struct st_courier_news *news);

/* No more claims: one that was asked for and not begun is answered with nothing, and a disown that the store does not
 * take is given up.  Outcomes are still written. */
void st_courier_drain(struct st_courier *c);
/* Write what is in hand, then end; give up deadline_us from now.  Wakes the loop when ended; see st_courier_ended. */
void st_courier_stop(struct st_courier *c, int64_t deadline_us);
bool st_courier_ended(struct st_courier *c);
/* How many outcomes could not be written.  Only after it has ended. */
size_t st_courier_free(struct st_courier *c);

#endif
