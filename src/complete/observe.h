/* SPDX-License-Identifier: Apache-2.0
 *
 * observe.h - tell whoever listens what happens to a worker's jobs.
 */
#ifndef ST_COMPLETE_OBSERVE_H
#define ST_COMPLETE_OBSERVE_H

#include "execute/execute.h"
#include "store/store.h"

/* Shared by the threads of one worker; never changes while it works.  fn NULL = nobody listens. */
struct st_observer {
    stint_event_fn fn;
    void *arg;
    const char *worker; /* id */
};

/* Each is nothing but a look at fn where nobody listens. */
void st_observe_worker(const struct st_observer *o, stint_event_kind kind, const stint_error *err);
void st_observe_job(const struct st_observer *o, stint_event_kind kind, const struct st_job *job);
void st_observe_reaped(const struct st_observer *o, const struct st_reaped *r);
/* The attempt was told to stop; only what the job's owner should know is an event. */
void st_observe_abort(const struct st_observer *o, const struct st_job *job, enum st_abort why);
/* The store has answered.  lost: why it refused, when the verdict is ELOST. */
void st_observe_verdict(const struct st_observer *o, const struct st_job *job, const struct st_finish *f,
                        enum st_abort lost);

const char *st_event_kind_name(stint_event_kind kind);

#endif
