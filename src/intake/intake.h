/* SPDX-License-Identifier: Apache-2.0
 *
 * intake.h - jobs that somebody else's queue announces.
 *
 * A message brings the id of a job that is in the store already.  The intake takes messages while there are free slots,
 * acquires each job by its id, hands it to the worker, and when the attempt is over finishes the message.  Whoever holds
 * the lease runs the job; a message alone gives no right to.
 *
 * The loop calls everything here, but for tickets, which any thread may end.
 */
#ifndef ST_INTAKE_INTAKE_H
#define ST_INTAKE_INTAKE_H

#include "claim/courier.h"

struct st_intake;

struct st_intake_options {
    const struct st_opener *opener;
    const struct st_intake_conf *conf; /* copied */
    const char *worker_id;
    struct st_plan *plan; /* its rules give the policies; a reference is taken */
    int64_t lease_us;
    uv_async_t *wake;
};

/* A job that was acquired, and the message it came by: the ticket goes into its st_done. */
struct st_arrival {
    struct st_job *job;
    struct st_ticket *ticket;
};

/* What the loop is told. */
struct st_intake_news {
    struct st_arrival *arrivals; /* owned by the taker: free the array */
    size_t n_arrivals;
    char (*stops)[ST_ID_MAX + 1]; /* jobs that somebody wants stopped; free() */
    size_t n_stops;
    bool kill;     /* ... at once, without a grace */
    bool shutdown; /* the worker is to stop */
    bool doubt;    /* the store may believe that we hold what we do not know of */
};

/* EINVAL: the URL is wrong.  A server that is away is waited for. */
stint_code st_intake_new(const struct st_intake_options *opt, struct st_intake **out, stint_error *err);
void st_intake_take(struct st_intake *x, struct st_intake_news *news);
/* So many slots are free now. */
void st_intake_grant(struct st_intake *x, size_t n_free);
/* How many slots it is about to fill, or has filled without the loop knowing. */
size_t st_intake_busy(struct st_intake *x);
/* Were there more messages than it could take? */
bool st_intake_more(struct st_intake *x);
/* Takes nothing more until st_intake_go.  true: nothing is on its way to the loop, either. */
bool st_intake_hold(struct st_intake *x);
void st_intake_go(struct st_intake *x);
/* It has looked, there was nothing, and nothing is left to do. */
bool st_intake_idle(struct st_intake *x);
void st_intake_plan(struct st_intake *x, struct st_plan *plan, int64_t lease_us);
/* Finishes what messages it can within the time, says goodbye, and ends.  NULL is fine. */
void st_intake_free(struct st_intake *x, int64_t deadline_us);

#endif
