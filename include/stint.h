/* SPDX-License-Identifier: Apache-2.0
 *
 * stint.h - background jobs on the database you already have.
 *
 * This is the whole public interface of libstint, but for stint_sqlite.h and stint_pq.h, where an
 * application's own SQLite or PostgreSQL connection comes in.
 *
 *     client    stint_open, stint_enqueue, stint_get, stint_wait, stint_cancel
 *     worker    stint_worker_new, _handle, _use, _run (or _start, _stop, _join; or _begin, _step)
 *     attempt   what a handler is given: payload, abort, progress, and how it ended
 *
 * A handle (stint *) belongs to one thread at a time.  Every call that can fail
 * returns a stint_code and fills the caller's stint_error, if one was passed.
 * Bytes that go in are copied before the call returns.
 *
 * Handles stay in the process that made them.  In one that was forked from it every call on them is
 * STINT_ESTATE, stops do nothing, and closing or freeing leaves the parent's alone; open new ones
 * there.  A process forked by a handler, middleware, transaction or event callback must not return
 * from it: it ends with exit code 70.
 *
 * Structures of options start from their _INIT and carry their size, so that they can grow
 * without breaking programs that were built against an older header.
 */
#ifndef STINT_H
#define STINT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STINT_API __attribute__((visibility("default")))
#else
#define STINT_API
#endif

/* Codes say what the caller should do next, not which library complained. */
#define STINT_CODES(X)                                                                                                 \
    X(OK, "ok")                                                                                                        \
    X(EINVAL, "the request is wrong; do not send it again")                                                            \
    X(ENOTFOUND, "there is no such job, queue or worker")                                                              \
    X(ESTATE, "not possible in the state it is in")                                                                    \
    X(EEXISTS, "the id is taken by another job, or a live job holds the unique key")                                   \
    X(ELOST, "this attempt no longer owns the job")                                                                    \
    X(EAGAIN, "the store is busy or away; nothing was changed")                                                        \
    X(ESTORE, "the store cannot be used as it is; nothing was changed")                                                \
    X(EUNKNOWN, "the store may or may not have made the change")                                                       \
    X(ETIMEOUT, "the time given has passed")                                                                           \
    X(ENOMEM, "out of memory")

typedef enum stint_code {
#define X(name, text) STINT_##name,
    STINT_CODES(X)
#undef X
} stint_code;

/* Owned by the caller, never allocated, NULL where details are not wanted. */
typedef struct stint_error {
    stint_code code;
    char detail[16];   /* SQLSTATE, SQLite extended code, Redis prefix */
    char message[240]; /* one sentence, no trailing newline */
    char remedy[200];  /* what to do about it; may be empty */
} stint_error;

/* "EAGAIN" and the sentence above; never NULL. */
STINT_API const char *stint_code_name(stint_code code);
STINT_API const char *stint_code_text(stint_code code);

/* The library's version, such as "0.1.0". */
STINT_API const char *stint_version(void);

/* A connection to a store. */
typedef struct stint stint;

/* url: "sqlite:path", or NULL for $STINT_STORE and its defaults.
 * timeout_ms: how long a call may wait for a busy or absent store; 0 = 5000. */
STINT_API stint_code stint_open(const char *url, int timeout_ms, stint **out, stint_error *err);
STINT_API void stint_close(stint *st); /* NULL is fine */

/* What to run.  Start from STINT_JOB_INIT and set what you need. */
typedef struct stint_job {
    const char *type;    /* required: which handler */
    const void *payload; /* kept byte for byte */
    size_t payload_len;
    const char *queue;  /* NULL = "default" */
    const char *id;     /* NULL = a new UUIDv7; repeating an id enqueues nothing new */
    int priority;       /* -32768..32767, higher first */
    int64_t delay_ms;   /* from now */
    int64_t at_us;      /* or at this time, microseconds since 1970; 0 = use delay_ms */
    int max_attempts;   /* -1 = by the type's configuration; 0 = no limit */
    int64_t timeout_ms; /* -1 = by the type's configuration; 0 = none */
    const char *key;    /* unique key; NULL with unique set = hash of type, payload, queue */
    const char *unique; /* NULL, "active", "forever", or a duration such as "10m" */
    const char *meta;   /* a JSON object kept with the job, or NULL */
} stint_job;

#define STINT_JOB_INIT                                                                                                 \
    {                                                                                                                  \
        NULL, NULL, 0, NULL, NULL, 0, 0, 0, -1, -1, NULL, NULL, NULL                                                   \
    }

#define STINT_ID_MAX 128

typedef struct stint_enqueued {
    char id[STINT_ID_MAX + 1]; /* the new job, or the one that holds the key */
    int duplicate;             /* 1: nothing was added, a job with this key exists */
} stint_enqueued;

/* Adds all n jobs or none.  After STINT_EUNKNOWN repeat the call with the ids
 * that were used: out[] holds them even then. */
STINT_API stint_code stint_enqueue(stint *st, const stint_job *jobs, size_t n, stint_enqueued *out, stint_error *err);

/* The job as JSON, the same document `stint job show --json` prints.
 * Free *json with stint_free(). */
STINT_API stint_code stint_get(stint *st, const char *id, char **json, stint_error *err);

/* Waits until the job has ended; *state becomes "succeeded", "failed" or
 * "cancelled" (a constant string).  timeout_ms < 0 waits without limit. */
STINT_API stint_code stint_wait(stint *st, const char *id, int timeout_ms, const char **state, stint_error *err);

/* A waiting job is cancelled at once; a running one is asked to stop. */
STINT_API stint_code stint_cancel(stint *st, const char *id, stint_error *err);

STINT_API void stint_free(void *p);

/* ---- workers ------------------------------------------------------------------------------ */

/* Claims jobs and runs them inside this process, each on a thread of the worker's own. */
typedef struct stint_worker stint_worker;

/* One run of one job.  Lives until its handler returns. */
typedef struct stint_attempt stint_attempt;

/*
 * A handler, or a middleware around handlers.  How the attempt ends:
 *
 *     stint_attempt_complete, _fail or     as the last of them said
 *       _snooze was called
 *     STINT_OK, and none was called        succeeded, without a result
 *     another code                         failed, tried again by the policy; it also takes back
 *                                          a stint_attempt_complete
 *
 * Handlers run at the same time as each other, up to the worker's slots.  No exception may leave
 * them.
 */
typedef stint_code (*stint_handler_fn)(stint_attempt *a, void *arg);

/* When a failed job is tried again.  Start from STINT_RETRY_INIT, where each member says "as it
 * is": the defaults below for a worker, the worker's for a type. */
typedef struct stint_retry {
    size_t size;
    int max_attempts;         /* runs in all: 3; 0 = no limit; -1 = as it is */
    const char *backoff;      /* "exponential"; or "linear", "fixed", "asynq", "list" */
    int64_t initial_ms;       /* 10 s; -1 = as it is */
    int64_t max_ms;           /* the longest delay: 300 s; -1 = as it is */
    double multiplier;        /* of "exponential": 2; 0 = as it is */
    double jitter;            /* 0.1: up to a tenth more or less; -1 = as it is */
    const int64_t *delays_ms; /* of "list": one per failure, the last one repeated */
    size_t n_delays;          /* at most 16 */
} stint_retry;

#define STINT_RETRY_INIT                                                                                               \
    {                                                                                                                  \
        sizeof(stint_retry), -1, NULL, -1, -1, 0, -1, NULL, 0                                                          \
    }

/* ---- events ------------------------------------------------------------------------------- */

/*
 * Nothing is told before it is true: an outcome is an event when the store has it.
 *
 *     worker_error            the store is away, or cannot be used: message
 *     job_reaped              the lease of a worker that is gone had expired; state: what became
 *                             of its job
 *     attempt_failed          state "pending": it is tried again in delay_us; or "failed"
 *     attempt_released        given back uncharged: snoozed, or the worker stops
 *     attempt_lease_expired   by our own clock; the attempt is told to stop
 *     attempt_taken_by_another_worker, _already_completed, _not_found
 *                             the job is lost; the outcome is not written
 */
#define STINT_EVENTS(X)                                                                                                \
    X(WORKER_STARTED, "worker_started")                                                                                \
    X(WORKER_ERROR, "worker_error")                                                                                    \
    X(WORKER_STOPPING, "worker_stopping")                                                                              \
    X(WORKER_STOPPED, "worker_stopped")                                                                                \
    X(JOB_REAPED, "job_reaped")                                                                                        \
    X(ATTEMPT_STARTED, "attempt_started")                                                                              \
    X(ATTEMPT_COMPLETED, "attempt_completed")                                                                          \
    X(ATTEMPT_FAILED, "attempt_failed")                                                                                \
    X(ATTEMPT_CANCELLED, "attempt_cancelled")                                                                          \
    X(ATTEMPT_RELEASED, "attempt_released")                                                                            \
    X(ATTEMPT_LEASE_RENEWED, "attempt_lease_renewed")                                                                  \
    X(ATTEMPT_LEASE_EXPIRED, "attempt_lease_expired")                                                                  \
    X(ATTEMPT_TAKEN_BY_ANOTHER_WORKER, "attempt_taken_by_another_worker")                                              \
    X(ATTEMPT_ALREADY_COMPLETED, "attempt_already_completed")                                                          \
    X(ATTEMPT_NOT_FOUND, "attempt_not_found")

typedef enum stint_event_kind {
#define X(name, text) STINT_EVENT_##name,
    STINT_EVENTS(X)
#undef X
} stint_event_kind;

/* The texts live until the callback returns; NULL (and 0) where an event has no such thing. */
typedef struct stint_event {
    stint_event_kind kind;
    const char *name;   /* "attempt_completed" */
    const char *worker; /* id */
    const char *job, *type, *queue;
    int64_t fence;
    int attempt;
    const char *state;  /* the job's, now */
    const char *reason; /* kind of a failure ("app_error", "timeout", ...), code of an error */
    const char *message;
    int64_t took_us;  /* how long the attempt ran */
    int64_t delay_us; /* until the job is due again */
} stint_event;

/* Called from the worker's threads, some of which have small stacks (256 KiB), one event at a
 * time; those of one attempt in their order.  Must be quick, and may call nothing of the worker
 * but stint_worker_stop. */
typedef void (*stint_event_fn)(void *arg, const stint_event *event);

/* ---- making a worker ---------------------------------------------------------------------- */

/* Start from STINT_WORKER_OPTIONS_INIT: 0 and NULL mean the default. */
typedef struct stint_worker_options {
    size_t size;
    int slots;                /* attempts at a time; 0 = 1 */
    const char *id;           /* unique among live workers; NULL = made up */
    const char *name;         /* what people call it */
    const char *queues;       /* "a,b" strictly in order, "a=3,b=1" by weight; NULL = all */
    int64_t lease_ms;         /* how long the store waits for a silent worker; 0 = 60 s */
    int64_t renew_ms;         /* 0 = a third of the lease */
    int64_t poll_ms;          /* asking without a hint; 0 = 5 s */
    int64_t shutdown_ms;      /* for what runs to end after a stop; 0 = 30 s; -1 = no time */
    int64_t timeout_ms;       /* of an attempt; 0 = 1 h; -1 = none */
    const stint_retry *retry; /* NULL = the defaults */
    int once;                 /* 1: end when nothing is due and nothing runs */
    const char *results_dir;  /* of results above 64 KiB; NULL = stint-results beside the store */
    stint_event_fn event;     /* NULL = nobody listens */
    void *event_arg;
} stint_worker_options;

#define STINT_WORKER_OPTIONS_INIT                                                                                      \
    {                                                                                                                  \
        sizeof(stint_worker_options), 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL                    \
    }

/* What one type does differently; the job's own max_attempts and timeout stand above it. */
typedef struct stint_handler_options {
    size_t size;
    int64_t lease_ms, renew_ms; /* 0 = the worker's */
    int64_t timeout_ms;         /* 0 = the worker's; -1 = none */
    const stint_retry *retry;   /* over the worker's; NULL = nothing */
} stint_handler_options;

#define STINT_HANDLER_OPTIONS_INIT                                                                                     \
    {                                                                                                                  \
        sizeof(stint_handler_options), 0, 0, 0, NULL                                                                   \
    }

/* url as for stint_open; opt may be NULL.  Nothing is opened yet. */
STINT_API stint_code stint_worker_new(const char *url, const stint_worker_options *opt, stint_worker **out,
                                      stint_error *err);

/* Serves a type: "mail", "img.*" or "*"; the most specific pattern gets the job.  opt may be
 * NULL. */
STINT_API stint_code stint_worker_handle(stint_worker *w, const char *pattern, stint_handler_fn fn, void *arg,
                                         const stint_handler_options *opt, stint_error *err);

/* Wraps every attempt in fn, which calls stint_next() to go on inwards, or does not.  The first one
 * added is the outermost. */
STINT_API stint_code stint_worker_use(stint_worker *w, stint_handler_fn fn, void *arg, stint_error *err);

/* ---- running it --------------------------------------------------------------------------- */

/* Works on this thread until it is stopped (or, with once, has nothing left).  STINT_OK after a
 * graceful stop.  A store that is away is waited for; STINT_ESTORE means it cannot be used. */
STINT_API stint_code stint_worker_run(stint_worker *w, stint_error *err);

/* The same on a thread of its own.  After stint_worker_join it may be started again. */
STINT_API stint_code stint_worker_start(stint_worker *w, stint_error *err);
/* Waits until it has ended and gives what stint_worker_run would have.  STINT_ESTATE: it was not
 * started, another thread waits already, or this is a handler or event callback of its own. */
STINT_API stint_code stint_worker_join(stint_worker *w, stint_error *err);

/* Stop gracefully: claim nothing more, give back what has not begun, let what runs end; when
 * shutdown_ms have passed, tell it to stop ("shutdown") and give its attempt back.  Comes back at
 * once; repeating it changes nothing.  One that comes before the worker runs is not lost: it ends
 * at once then.  Any thread, handlers and signal handlers too. */
STINT_API void stint_worker_stop(stint_worker *w);
/* The same without waiting for shutdown_ms.  A handler that does not look at its abort flag still
 * keeps the worker. */
STINT_API void stint_worker_stop_now(stint_worker *w);

/*
 * Driven by the host's own loop: wait until *fd is readable (poll, epoll, select, a watcher of your
 * event loop), call step, and so on until *running is 0.
 *
 *     stint_worker_begin(w, &fd, &err);
 *     do {
 *         poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1);
 *         rc = stint_worker_step(w, &running, &err);
 *     } while (running);
 *
 * The descriptor is an epoll instance of the worker's; timers make it readable too.  begin and step
 * belong to one thread.  A step does not block, but for the last one, which waits for the worker's
 * threads to end.
 */
STINT_API stint_code stint_worker_begin(stint_worker *w, int *fd, stint_error *err);
STINT_API stint_code stint_worker_step(stint_worker *w, int *running, stint_error *err);

/* Its id in the workers table: of the run that goes on, or of the last one. */
STINT_API const char *stint_worker_id(const stint_worker *w);

/* Stops it at once and waits, if it still runs: for a thread that is in run, join or step too.  No
 * other call may begin afterwards.  NULL is fine.  From a handler or event callback of its own it
 * stops the worker, frees nothing and logs worker.not_freed. */
STINT_API void stint_worker_free(stint_worker *w);

/* ---- an attempt: what it is --------------------------------------------------------------- */

/* The texts end with a NUL that len does not count, and live as long as the attempt.  len may be
 * NULL. */
STINT_API const char *stint_attempt_id(const stint_attempt *a);
STINT_API const char *stint_attempt_type(const stint_attempt *a);
STINT_API const char *stint_attempt_queue(const stint_attempt *a);
STINT_API const char *stint_attempt_worker(const stint_attempt *a); /* id */
STINT_API const char *stint_attempt_payload(const stint_attempt *a, size_t *len);
STINT_API const char *stint_attempt_meta(const stint_attempt *a, size_t *len); /* JSON, or NULL */
STINT_API int stint_attempt_number(const stint_attempt *a);                    /* 1 = first run */
STINT_API int stint_attempt_max(const stint_attempt *a);                       /* 0 = no limit */
/* Grows with every claim of the job: for fencing writes of your own elsewhere. */
STINT_API int64_t stint_attempt_fence(const stint_attempt *a);
/* When its timeout will have passed, in microseconds since 1970; 0 = it has none. */
STINT_API int64_t stint_attempt_deadline_us(const stint_attempt *a);

/* ---- an attempt: being told to stop ------------------------------------------------------- */

/*
 * NULL while it should go on; else why it should stop:
 *
 *     taken_by_another_worker   the lease was lost                    the outcome is not written
 *     already_completed         the job was ended by somebody else    "
 *     not_found                 the job is gone                       "
 *     cancelled                 somebody asked for it                 ends cancelled
 *     shutdown                  the worker stops                      given back, uncharged
 *     timeout                   its time is over                      failed, by the policy
 *     error                     the lease could not be renewed        "
 *
 * Nothing stops a handler by force.  Unless the job is lost, one that calls stint_attempt_complete,
 * _fail or _snooze all the same has the last word.  After "timeout" the lease is not renewed any
 * more: a handler that never comes back loses the job, not the queue.  Any thread, until the
 * handler has returned.
 */
STINT_API const char *stint_attempt_aborted(const stint_attempt *a);

/* A descriptor that becomes readable when stint_attempt_aborted() stops being NULL; for poll,
 * together with your own.  Do not read or close it.  -1 = none could be made. */
STINT_API int stint_attempt_abort_fd(stint_attempt *a);

/* ---- an attempt: while it runs ------------------------------------------------------------ */

/* How far it is, as JSON of at most 16 KiB (42, {"done": 3, "of": 7}); told to the store within
 * half a second, where `stint job show` and stint_get find it.  Any thread, until the handler has
 * returned. */
STINT_API stint_code stint_attempt_progress(stint_attempt *a, const char *json, size_t len);

/* A line for the job's log, of which the last 16 KiB are kept with the attempt (`stint job logs`).
 * Any thread, until the handler has returned. */
STINT_API stint_code stint_attempt_log(stint_attempt *a, const char *line);

/* Goes on with the next middleware, or the handler, and gives what it returned.  Once per
 * middleware, else STINT_ESTATE. */
STINT_API stint_code stint_next(stint_attempt *a);

/* ---- an attempt: how it ends -------------------------------------------------------------- */

typedef enum stint_outcome {
    STINT_UNDECIDED, /* nothing was said yet */
    STINT_SUCCEEDED,
    STINT_RETRY,     /* failed; tried again while there are attempts left */
    STINT_PERMANENT, /* failed for good */
    STINT_SNOOZED,   /* not now */
} stint_outcome;

/* Each takes back what was said before.  STINT_ESTATE after stint_attempt_finish_with(). */

/* Succeeded.  The result is kept byte for byte; JSON is shown as such.  NULL, 0 = none.  Above
 * 10 MiB it is a failure for good, and STINT_EINVAL. */
STINT_API stint_code stint_attempt_complete(stint_attempt *a, const void *result, size_t len);
/* how: STINT_RETRY or STINT_PERMANENT.  after_ms: when to try again; -1 = by the policy.  message:
 * up to 10,000 bytes. */
STINT_API stint_code stint_attempt_fail(stint_attempt *a, stint_outcome how, int64_t after_ms, const char *message);
/* Not now: due again after_ms from now, the attempt not charged. */
STINT_API stint_code stint_attempt_snooze(stint_attempt *a, int64_t after_ms);

/* What was said so far: for middlewares, after stint_next().  A code that was returned counts as
 * said.  No result and no error are NULL. */
STINT_API stint_outcome stint_attempt_outcome(const stint_attempt *a);
STINT_API const char *stint_attempt_result(const stint_attempt *a, size_t *len);
STINT_API const char *stint_attempt_error(const stint_attempt *a);

/* ---- an attempt: transactions of the store ------------------------------------------------ */

/*
 * Where jobs live in the application's own database, a handler's writes and its job can change
 * together:
 *
 *     prepare   a transaction of the handler's, committed only while the job is still its own
 *     ...       the work, outside any transaction, with the lease renewed
 *     finish    another transaction, in which the outcome is written too: both or neither
 *
 * The function is given the transaction; stint_sqlite_tx() of stint_sqlite.h or stint_pq_tx() of
 * stint_pq.h gives its connection.
 * It must be short, since it holds the store's lock, and must not commit or roll back, nor begin
 * another (STINT_ESTATE), nor use a handle of its own on the same store, which would wait for that
 * lock: jobs are added with stint_tx_enqueue.  Returning another code than STINT_OK rolls
 * everything back, and that code is the answer.
 */
typedef struct stint_tx stint_tx;
typedef stint_code (*stint_tx_fn)(stint_attempt *a, stint_tx *tx, void *arg);

typedef enum stint_mode {
    STINT_STAGED, /* prepare and finish are two transactions */
    STINT_ATOMIC, /* one for the whole attempt, from prepare to finish: a handler that returns
                     success without finish_with commits what it wrote together with that; any
                     other end takes it back.  STINT_EINVAL where the store cannot, as SQLite */
} stint_mode;

/* STINT_ELOST: the job is not ours any more, nothing was written.  STINT_EINVAL: this store cannot
 * do that. */
STINT_API stint_code stint_attempt_prepare(stint_attempt *a, stint_mode mode, stint_tx_fn fn, void *arg,
                                           stint_error *err);

/* fn says the outcome with stint_attempt_complete, _fail or _snooze (nothing: succeeded).
 * STINT_OK: it is committed, with all that fn has written; what the handler returns afterwards does
 * not matter.  Any other code: nothing was written and nothing is said yet; after STINT_EUNKNOWN
 * the store will tell, and the handler can only return. */
STINT_API stint_code stint_attempt_finish_with(stint_attempt *a, stint_tx_fn fn, void *arg, stint_error *err);

/* Adds jobs in that transaction: they exist if it commits. */
STINT_API stint_code stint_tx_enqueue(stint_tx *tx, const stint_job *jobs, size_t n, stint_enqueued *out,
                                      stint_error *err);

/* ---- the log ------------------------------------------------------------------------------ */

typedef enum stint_log_level {
    STINT_LOG_DEBUG,
    STINT_LOG_INFO,
    STINT_LOG_WARN,
    STINT_LOG_ERROR,
} stint_log_level;

/* line: logfmt, without a newline; it lives until the callback returns. */
typedef void (*stint_log_fn)(void *arg, stint_log_level level, const char *line);

/* What the library has to say from this level on goes to fn, from any of its threads, one line at a
 * time; NULL (as it begins): nowhere.  One for the whole process, since workers share threads of
 * the store.  Payloads are never logged. */
STINT_API void stint_log_to(stint_log_level level, stint_log_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
