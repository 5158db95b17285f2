/* SPDX-License-Identifier: Apache-2.0
 *
 * job.h - the records of a job: as it is enqueued, as a worker holds it, as people see it.
 */
#ifndef ST_JOB_JOB_H
#define ST_JOB_JOB_H

#include "base/id.h"
#include "job/names.h"
#include "job/policy.h"
#include "job/state.h"

enum st_unique { ST_UNIQUE_NONE, ST_UNIQUE_ACTIVE, ST_UNIQUE_WINDOW, ST_UNIQUE_FOREVER };

/* A job to be enqueued.  Views of the caller's bytes; everything checked by enqueue/. */
struct st_new_job {
    struct st_slice id; /* required: the caller made it, so that it can ask again */
    struct st_slice type, queue;
    struct st_slice payload;
    struct st_slice meta; /* a JSON object, or none */
    int priority;
    int64_t due_us; /* absolute; 0 = now + delay_us by the store's clock */
    int64_t delay_us;
    int max_attempts;   /* -1 = by type */
    int64_t timeout_us; /* -1 = by type; 0 = none */
    enum st_unique unique;
    int64_t window_us;   /* ST_UNIQUE_WINDOW: how long the key is held, from the enqueue */
    struct st_slice key; /* required unless ST_UNIQUE_NONE */
};

struct st_enqueued {
    char id[ST_ID_MAX + 1]; /* the new job, or the one that holds the key */
    bool duplicate;
};

/* A job somebody holds: one allocation, st_job_free().  Passed claimer -> slot -> completer. */
struct st_job {
    const char *id, *type, *queue;
    struct st_slice payload, meta;
    int64_t fence;
    int attempt; /* this run's number in the budget, 1 = first */
    int priority;
    enum st_state state;                        /* ST_CLAIMED or ST_RUNNING */
    struct st_policy policy;                    /* effective: the job's own values over the type's */
    int64_t created_us, due_us, lease_until_us; /* store time */
    int64_t lease_us;                           /* how long a lease of this job is */
    int64_t asked_boot_us;                      /* CLOCK_BOOTTIME before the claim was sent (set by claim/) */
    uint64_t ref;                               /* the store's own shortcut; 0 = none */
};

/* Allocates a job and copies the texts into it.  NULL = no memory. */
struct st_job *st_job_new(struct st_slice id, struct st_slice type, struct st_slice queue, struct st_slice payload,
                          struct st_slice meta);
void st_job_free(struct st_job *job);

/* One ended attempt, or the one that is going on. */
struct st_attempt_info {
    int n;
    int64_t fence;
    char *worker;
    int64_t started_us, ended_us; /* 0 = not */
    char *outcome;                /* succeeded, retry, failed, cancelled, released, lease_expired; NULL = going on */
    enum st_kind kind;
    char *message;
    int exit_code;      /* -1 = none */
    int signal;         /* 0 = none */
    int64_t max_rss_kb; /* 0 = unknown */
    char *log;          /* path, or NULL */
    char *log_tail;
    size_t log_tail_len;
};

/* All there is to know of a job.  st_job_info_free(). */
struct st_job_info {
    char *id, *type, *queue;
    enum st_state state;
    enum st_shown shown;
    int priority;
    int attempt, max_attempts;
    int64_t timeout_us;                                                  /* effective */
    int64_t created_us, due_us, started_us, finished_us, lease_until_us; /* 0 = not; started = first start */
    int64_t run_started_us; /* of the attempt going on, or that ended the job; 0 = not known */
    int64_t deadline_us;    /* of the attempt going on; 0 = none */
    int64_t fence;
    char *worker; /* of the attempt going on, or of the one that ended the job */
    bool cancel_requested;
    struct st_slice payload, result, meta, progress; /* p NULL = none; owned by the info */
    char *result_ref;
    char *key;
    enum st_unique unique;
    enum st_kind error_kind; /* of the last error */
    char *error_message;
    struct st_attempt_info *attempts; /* oldest first; filled by get, not by list */
    size_t n_attempts;
    uint64_t cursor; /* where a listing goes on after this one */
};
void st_job_info_clear(struct st_job_info *info); /* frees what it points to */

#endif
