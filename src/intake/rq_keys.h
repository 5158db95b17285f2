/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_keys.h - RQ's side in Redis: what is written where, so that its own tools see the truth.
 *
 * Everything here blocks, for as long as the client's time allows, and belongs to the intake's thread.
 */
#ifndef ST_INTAKE_RQ_KEYS_H
#define ST_INTAKE_RQ_KEYS_H

#include "base/clock.h"
#include "base/id.h"
#include "job/names.h"
#include "store/redis_conn.h"

#define ST_RQ_ID_MAX        512 /* of a job's id in RQ; longer ones are passed over */
#define ST_RQ_QUEUES_MAX    64
#define ST_RQ_EXECUTION_TTL 90 /* seconds; a started job whose worker says nothing for so long is taken for lost */
#define ST_RQ_BEAT_US       (30 * ST_SEC)

/* The connection, and the names that are used all the time. */
struct st_rq {
    struct st_redis *r;
    struct st_redis_batch b;
    char worker[ST_ID_MAX + 1];
    char **queues;
    size_t n_queues;
    size_t *passed;      /* per queue: started jobs of others at the head of its registry; see recover_started */
    struct st_buf names; /* scratch: keys of the command being added */
};

/* A message that was taken: it lies in its queue's intermediate list. */
struct st_rq_message {
    char id[ST_RQ_ID_MAX + 1];
    size_t queue;         /* index */
    bool again;           /* it was started before, or may have been */
    bool too_large;       /* its data; then there is none */
    struct st_slice data; /* a view of the answer: until the next batch */
};

/* How a message ends. */
enum st_rq_how {
    ST_RQ_FINISHED,
    ST_RQ_FAILED,
    ST_RQ_STOPPED,
    ST_RQ_REQUEUE,  /* to the head of its queue */
    ST_RQ_SCHEDULE, /* it comes again at a given time */
};

struct st_rq_end {
    enum st_rq_how how;
    const char *id;
    const char *execution; /* "" = it was not started: it still lies in the intermediate list */
    size_t queue;
    struct st_slice value; /* finished: the serialized result, or none; failed, stopped: the packed message */
    int64_t at_us;         /* schedule: when, real time */
    int64_t started_us;    /* real time; 0 = it did not start */
    bool failed;           /* schedule: because an attempt failed */
};

stint_code st_rq_open(const char *url, char *const *queues, const char *worker, struct st_rq *out, stint_error *err);
void st_rq_close(struct st_rq *q);

stint_code st_rq_birth(struct st_rq *q, stint_error *err);
stint_code st_rq_death(struct st_rq *q, stint_error *err);
/* A started job. */
struct st_rq_running {
    char id[ST_RQ_ID_MAX + 1];
    char execution[33];
    size_t queue;
    int64_t started_us; /* real time */
};

/* Signs of life of the worker and of what runs.  *known = false: the server has forgotten us, birth is needed. */
stint_code st_rq_beat(struct st_rq *q, const struct st_rq_running *running, size_t n, bool *known, stint_error *err);
/* What the worker is doing, for those who look: the last job begun, NULL = nothing. */
void st_rq_add_state(struct st_rq *q, const char *job, bool suspended);

/* Moves what is due in the scheduled registries to the queues, then at most n messages to the intermediate lists, the first
 * queue first.  out has room for n. */
struct st_rq_taken {
    size_t n;
    bool suspended;
    size_t n_dropped; /* ids without a job */
    char odd[160];    /* a key is not of the kind that RQ makes; "" = none */
};
stint_code st_rq_take(struct st_rq *q, size_t n, struct st_rq_message *out, struct st_rq_taken *taken,
                      stint_error *err);
/* Is there anything in the queues?  Also tells the server to say so when that changes: see st_rq_track. */
stint_code st_rq_look(struct st_rq *q, bool *any, stint_error *err);
/* Changes of the queues are told to the listener.  ESTORE: the server does not let us. */
stint_code st_rq_track(struct st_rq *q, int64_t listener, stint_error *err);

/* Add to q->b; st_rq_flush sends them all. */
void st_rq_add_start(struct st_rq *q, const char *id, const char *execution, size_t queue, int64_t now_us);
void st_rq_add_end(struct st_rq *q, const struct st_rq_end *end, int64_t now_us);
stint_code st_rq_flush(struct st_rq *q, stint_error *err);
/* The same, but a command that will never succeed (a key of a kind it should not be) is given up; loud: and
 * logged. */
stint_code st_rq_flush_lenient(struct st_rq *q, bool loud, stint_error *err);

/* Gives back to the queues what dead workers left: ids that lie in an intermediate list for a minute, and started jobs whose
 * time is up, of those that `ours` knows.  Removes what has expired from the registries. */
typedef bool (*st_rq_ours_fn)(void *arg, struct st_slice data);
stint_code st_rq_recover(struct st_rq *q, st_rq_ours_fn ours, void *arg, size_t *n_back, stint_error *err);

#endif
