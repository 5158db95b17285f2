/* SPDX-License-Identifier: Apache-2.0
 *
 * lib.h - what is behind the handles of stint.h.
 */
#ifndef ST_LIB_LIB_H
#define ST_LIB_LIB_H

#include "base/thread.h"
#include "enqueue/enqueue.h"
#include "execute/runlog.h"
#include "worker/worker.h"

#include "stint_pq.h"
#include "stint_sqlite.h"

/* ---- fork.c ------------------------------------------------------------------------------ */

/* A handle lives in the process that made it; one that forked() from it has nothing behind its
 * copy: no thread, no lock, and descriptors that it shares. */
bool st_lib_forked(pid_t made_in);
/* STINT_ESTATE and what to do instead, in a process forked from the one that made `what`. */
stint_code st_lib_same_process(pid_t made_in, const char *what, const char *again, stint_error *err);
/* A function of the host's has returned, perhaps in a process that it forked: that one ends here.
 * There is no worker in it that could go on. */
void st_lib_end_fork(pid_t made_in);

/* ---- client.c ---------------------------------------------------------------------------- */

struct stint {
    struct st_store *store;
    pid_t pid; /* that opened it */
};

/* STINT_EINVAL: there is no handle; STINT_ESTATE: it is that of another process. */
stint_code st_lib_usable(const stint *st, stint_error *err);

/* The store to use: url, else the environment's, else the default. */
const char *st_lib_url(const char *url);
/* STINT_SIGNAL, or NULL. */
const char *st_lib_signal(void);

/* Checks the caller's jobs, then hands them over: into out[], whatever the answer is. */
typedef stint_code (*st_lib_add_fn)(void *arg, const struct st_new_job *jobs, size_t n, struct st_enqueued *out,
                                    stint_error *err);
stint_code st_lib_enqueue(const stint_job *jobs, size_t n, stint_enqueued *out, st_lib_add_fn add, void *arg,
                          stint_error *err);

/* ---- options.c --------------------------------------------------------------------------- */

/* Fill everything that the options say; `retry` over what is in *policy already. */
stint_code st_lib_worker_options(const stint_worker_options *in, struct stint_worker *w, stint_error *err);
struct lib_handler;
stint_code st_lib_handler_options(const stint_handler_options *in, const struct stint_worker *w, struct lib_handler *h,
                                  stint_error *err);

/* ---- worker_api.c ------------------------------------------------------------------------ */

struct lib_handler {
    struct stint_worker *w;
    char *pattern;
    stint_handler_fn fn;
    void *arg;
    struct st_policy policy;
    int64_t lease_us, renew_us; /* 0 = the worker's */
};

struct lib_middleware {
    stint_handler_fn fn;
    void *arg;
};

/*
 *   IDLE --run--> RUNNING --> IDLE
 *   IDLE --begin--> STEPPING --step--> STEP --> STEPPING, or IDLE after the last
 *   IDLE --start--> STARTED --join--> JOINING --> IDLE
 */
enum lib_state { LIB_IDLE, LIB_RUNNING, LIB_STEPPING, LIB_STEP, LIB_STARTED, LIB_JOINING };

struct stint_worker {
    /* set before it runs, and left alone while it does */
    char *url;
    struct st_settings settings;
    struct st_policy policy;
    bool once;
    stint_event_fn event;
    void *event_arg;
    struct lib_handler **handlers;
    size_t n_handlers;
    struct lib_middleware *uses;
    size_t n_uses;
    pid_t pid;        /* that made it */
    int stop_fd;      /* an eventfd that the loop watches: see stint_worker_stop */
    atomic_int stops; /* 0 = not asked to, 1 = gracefully, 2 = at once */

    pthread_mutex_t mutex; /* guards these */
    pthread_cond_t changed;
    enum lib_state state;
    bool freeing;

    /* of the run */
    char id[ST_ID_MAX + 1];
    struct st_worker *inner;
    struct st_worker_handler *table;
    struct st_observer observer; /* event, one at a time */
    pthread_mutex_t event_mutex;
    pthread_t thread;
    stint_code result;
    stint_error error;
    int epoll_fd, timer_fd; /* STEPPING */

    pthread_mutex_t store_mutex; /* guards the stores that lie idle */
    struct st_store **stores;
    size_t n_stores;
};

/* This thread runs something of the host's for w from now on; gives what it was before. */
const struct stint_worker *st_lib_inside(const struct stint_worker *w);

/* A store handle for a handler's transactions; given back for the next. */
stint_code st_lib_store_take(struct stint_worker *w, struct st_store **out, stint_error *err);
void st_lib_store_give(struct stint_worker *w, struct st_store *s);

/* ---- attempt.c --------------------------------------------------------------------------- */

/* Where in the onion we are; on the stack of the one that runs there. */
struct lib_frame {
    size_t level; /* n_uses = the handler */
    bool called;  /* stint_next */
};

struct stint_attempt {
    struct stint_worker *w;
    const struct lib_handler *handler;
    struct st_pool_item *it;
    struct lib_frame *frame;
    stint_outcome said;
    bool explicitly;         /* by a call, not by a returned code */
    bool settled;            /* the store has the outcome already */
    bool in_tx;              /* a function of the host's runs in a transaction of ours */
    struct st_store *atomic; /* has the transaction of the whole attempt open; NULL = there is none */

    pthread_mutex_t log_mutex;
    bool has_log;
    struct st_runlog log;
};

/* The handler has returned: ends the transaction of the whole attempt, if there is one (tx.c). */
void st_lib_end_atomic(struct stint_attempt *a);
/* The st_handler_fn of every lib_handler. */
void st_lib_run_attempt(void *handler, struct st_pool_item *it);
/* Takes back what was said. */
void st_lib_unsay(struct stint_attempt *a);

#endif
