/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.h - claim, execute, complete, on one loop.
 */
#ifndef ST_WORKER_WORKER_H
#define ST_WORKER_WORKER_H

#include "claim/courier.h"
#include "execute/pool.h"
#include "worker/settings.h"

/* A type served by a function in this process. */
struct st_worker_handler {
    const char *pattern;
    st_handler_fn fn;
    void *arg;
    struct st_policy policy;
    int64_t lease_us, renew_us; /* 0 = the worker's */
};

struct st_worker_options {
    struct st_opener opener;
    const struct st_settings *settings; /* stays the caller's, and there, while the worker lives */
    const struct st_worker_handler *handlers;
    size_t n_handlers;
    const char *self;   /* the program that answers to ST_MINDER_ARG; NULL = this one */
    bool once;          /* end when nothing is due and the slots are empty */
    bool signals;       /* TERM, INT, TSTP and HUP are the worker's */
    const int *stop_fd; /* an eventfd: what is added to it counts as calls of st_worker_stop; NULL = none */
    /* HUP: read the configuration again; the worker takes over *out (st_settings_clear, free).  NULL = HUP is ignored. */
    stint_code (*reload)(void *arg, struct st_settings **out, stint_error *err);
    void *reload_arg;
    stint_event_fn event; /* NULL = nobody listens */
    void *event_arg;
};

struct st_worker;

/* First thing in a program that will run a worker with `signals`: those that come before it is ready wait for it. */
void st_worker_hold_signals(void);

stint_code st_worker_new(const struct st_worker_options *opt, struct st_worker **out, stint_error *err);
/* Works until it is stopped (or, with once, until there is nothing left), on the calling thread.  OK after a
 * graceful stop; ESTORE when the store cannot be used; EAGAIN when outcomes could not be written at the end. */
stint_code st_worker_run(struct st_worker *w, stint_error *err);
/* The same in steps, for a caller with a loop of its own: begin; turn whenever the descriptor is readable or the time
 * has passed, until it says false; end.  One thread. */
stint_code st_worker_begin(struct st_worker *w, stint_error *err);
bool st_worker_turn(struct st_worker *w);
stint_code st_worker_end(struct st_worker *w, stint_error *err);
int st_worker_fd(const struct st_worker *w);
int st_worker_wait_ms(const struct st_worker *w); /* until the next timer; -1 = none */
/* Graceful stop; a second call stops at once.  Any thread. */
void st_worker_stop(struct st_worker *w);
const char *st_worker_id(const struct st_worker *w);
struct st_tally st_worker_tally(const struct st_worker *w); /* after run */
void st_worker_free(struct st_worker *w);

#endif
