/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_int.h - what the files of the RQ intake share.
 */
#ifndef ST_INTAKE_RQ_INT_H
#define ST_INTAKE_RQ_INT_H

#include "base/log.h"
#include "base/thread.h"
#include "intake/intake.h"
#include "intake/rq_data.h"
#include "intake/rq_keys.h"

#define ST_RQ_ELSEWHERE_US                                                                                             \
    (30 * ST_SEC) /* what cannot be run here comes again after this: for another worker, or for us */

/* A message whose job we hold, from the acquire until RQ's side is written. */
struct ticket {
    struct st_ticket base; /* first */
    struct st_intake *x;
    struct ticket *prev, *next; /* open ones; ended ones are chained by next */
    char *id;                   /* in RQ */
    char execution[33];
    char run_id[ST_ID_MAX + 1];
    size_t queue;
    enum st_rq_format format;
    int64_t started_us; /* real time */
    bool stopped;       /* somebody wanted it stopped through RQ */

    /* once it is over */
    enum st_rq_how how;
    char *text; /* finished: the result; failed, stopped: the message */
    size_t text_len;
    int64_t at_us;
    bool failed;
};

struct st_intake {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    const struct st_opener *opener;
    uv_async_t *wake;
    char worker_id[ST_ID_MAX + 1];
    char *function;

    /* under the mutex */
    struct st_plan *plan;
    int64_t lease_us;
    size_t n_free, reserved; /* slots: free as the loop said last, and about to be filled */
    bool hold, asleep, stop, idle, more;
    int64_t give_up_us; /* monotonic */
    struct st_intake_news news;
    size_t cap_arrivals, cap_stops;
    struct ticket *open;
    size_t n_open;
    struct ticket *ended, **ended_end;

    /* the thread's own */
    struct st_rq rq;
    struct st_redis_ear *ear;
    struct st_store *store;
    struct ticket *writing; /* ended ones that Redis does not have yet */
    struct st_tries tries;  /* of Redis */
    struct st_tries store_tries;
    bool away, store_away, born, tracked, deaf, suspended;
    unsigned generation; /* of the connection that is tracked */
    int64_t listener;
    int64_t beat_us, recover_us; /* monotonic: when next */
    int64_t not_before_us;       /* take nothing earlier */
    int64_t listen_us;           /* monotonic: the listening connection is of no use before */
    bool told_suspended, odd;
};

/* rq_turn.c: what comes in */
void st_rq_turn_take(struct st_intake *x, size_t n);
bool st_rq_turn_ours(void *intake, struct st_slice data);

/* rq_ends.c: what goes out */
struct ticket *st_rq_ticket_new(struct st_intake *x, const struct st_rq_message *m, const struct st_rq_call *call);
void st_rq_ticket_free(struct ticket *t);
/* false: Redis did not take them; they are kept. */
bool st_rq_ends_write(struct st_intake *x);
/* Ends a message that was not started.  why: the message of a failure. */
void st_rq_end_now(struct st_intake *x, const struct st_rq_message *m, enum st_rq_how how, const char *why,
                   int64_t at_us);

/* rq.c */
void st_rq_note(struct st_intake *x, stint_code rc, const stint_error *err); /* of Redis: away, or back */

#endif
