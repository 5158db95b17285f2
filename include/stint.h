/* SPDX-License-Identifier: Apache-2.0
 *
 * stint.h - background jobs on the database you already have.
 *
 * This is the whole public interface of libstint.
 *
 * A handle (stint *) belongs to one thread at a time.  Every call that can fail
 * returns a stint_code and fills the caller's stint_error, if one was passed.
 * Bytes that go in are copied before the call returns.
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
#define STINT_CODES(X)                                                                   \
    X(OK, "ok")                                                                          \
    X(EINVAL, "the request is wrong; do not send it again")                              \
    X(ENOTFOUND, "there is no such job, queue or worker")                                \
    X(ESTATE, "not possible in the state it is in")                                      \
    X(EEXISTS, "the id is taken by another job, or a live job holds the unique key")     \
    X(ELOST, "this attempt no longer owns the job")                                      \
    X(EAGAIN, "the store is busy or away; nothing was changed")                          \
    X(ESTORE, "the store cannot be used as it is; nothing was changed")                  \
    X(EUNKNOWN, "the store may or may not have made the change")                         \
    X(ETIMEOUT, "the time given has passed")                                             \
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
    const char *type;        /* required: which handler */
    const void *payload;     /* kept byte for byte */
    size_t payload_len;
    const char *queue;       /* NULL = "default" */
    const char *id;          /* NULL = a new UUIDv7; repeating an id enqueues nothing new */
    int priority;            /* -32768..32767, higher first */
    int64_t delay_ms;        /* from now */
    int64_t at_us;           /* or at this time, microseconds since 1970; 0 = use delay_ms */
    int max_attempts;        /* -1 = by the type's configuration; 0 = no limit */
    int64_t timeout_ms;      /* -1 = by the type's configuration; 0 = none */
    const char *key;         /* unique key; NULL with unique set = hash of type, payload, queue */
    const char *unique;      /* NULL, "active", "forever", or a duration such as "10m" */
    const char *meta;        /* a JSON object kept with the job, or NULL */
} stint_job;

#define STINT_JOB_INIT                                                                   \
    {                                                                                    \
        NULL, NULL, 0, NULL, NULL, 0, 0, 0, -1, -1, NULL, NULL, NULL                     \
    }

#define STINT_ID_MAX 128

typedef struct stint_enqueued {
    char id[STINT_ID_MAX + 1]; /* the new job, or the one that holds the key */
    int duplicate;             /* 1: nothing was added, a job with this key exists */
} stint_enqueued;

/* Adds all n jobs or none.  After STINT_EUNKNOWN repeat the call with the ids
 * that were used: out[] holds them even then. */
STINT_API stint_code stint_enqueue(stint *st, const stint_job *jobs, size_t n, stint_enqueued *out,
                                   stint_error *err);

/* The job as JSON, the same document `stint job show --json` prints.
 * Free *json with stint_free(). */
STINT_API stint_code stint_get(stint *st, const char *id, char **json, stint_error *err);

/* Waits until the job has ended; *state becomes "succeeded", "failed" or
 * "cancelled" (a constant string).  timeout_ms < 0 waits without limit. */
STINT_API stint_code stint_wait(stint *st, const char *id, int timeout_ms, const char **state,
                                stint_error *err);

/* A waiting job is cancelled at once; a running one is asked to stop. */
STINT_API stint_code stint_cancel(stint *st, const char *id, stint_error *err);

STINT_API void stint_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
