/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_look.h - what the reading side of the Redis store shares: redis_read.c, _list.c, _queues.c, _prune.c, _worker.c,
 * _asynq.c, _wait.c, _check.c.
 */
#ifndef ST_STORE_REDIS_LOOK_H
#define ST_STORE_REDIS_LOOK_H

#include <math.h>

#include "store/redis_int.h"

/* Keys of all queues together, in one slot. */
#define ST_REDIS_WORKERS        "stint:{stint}:workers" /* HASH worker id -> row */
#define ST_REDIS_LEADER         "stint:{stint}:leader"  /* HASH epoch, worker, until */
#define ST_REDIS_LAYOUT         "stint:{stint}:layout"  /* the version of our keys, since the first beat */
#define ST_REDIS_LAYOUT_VERSION 1

#define ST_REDIS_CHUNK 1000 /* ids that are asked for at once: a busy server must not be held up */

/* What a handle remembers of its duties. */
struct st_redis_care {
    bool beaten;      /* a worker has beaten on this handle */
    int64_t since_us; /* ... and when first */
    int64_t evicted;  /* how many keys the server has evicted, and one more; 0 = not known yet */
    int64_t taken_us; /* when lists without braces were last looked at (runqy) */
};
struct st_redis_care *st_redis_care(struct st_redis_store *s, stint_error *err); /* NULL = no memory */

static inline stint_code st_redis_told(stint_code code, const stint_error *local, stint_error *err)
{
    if (code && err)
        *err = *local;
    return code;
}

/* The server's clock from an answer to TIME; 0 if that is none. */
int64_t st_redis_time(const redisReply *reply);
/* A score as Redis writes it; NaN = none. */
double st_redis_score_read(const redisReply *reply);
int64_t st_redis_store_now(const struct st_redis_store *s); /* best known */

/* ---- one or some jobs of a queue, whole (redis_read.c) ---------------------------------------------------------- */

enum st_redis_how_much { ST_LOOK_BARE, ST_LOOK_PAYLOAD, ST_LOOK_ALL };
/* Fills out[0..n): id NULL = it is not there (any more).  *now_us 0 becomes the server's. */
stint_code st_redis_look(struct st_redis_store *s, struct st_slice queue, const struct st_slice *ids, size_t n,
                         enum st_redis_how_much how, int64_t *now_us, struct st_job_info *out, stint_error *err);

/* ---- what decides about a job, without its payload (redis_peek.c) ----------------------------------------------- */

struct st_redis_peek {
    enum st_state state;   /* pending: also what is scheduled or to be tried again */
    struct st_slice asynq; /* its state in asynq's words */
    bool held_by_us;       /* the hold in task is the truth */
    struct st_redis_task task;
    double lease_s;       /* its score; NaN = none */
    int64_t created_us;   /* 0 = not known */
    struct st_slice key;  /* the unique key; p NULL = none */
    struct st_slice type; /* p NULL = not asked for, or too long to look at */
};
typedef void (*st_redis_peek_fn)(void *arg, size_t i, const struct st_redis_peek *p);
/* Calls fn for each that is there; in chunks.  The slices live until fn returns. */
stint_code st_redis_peek(struct st_redis_store *s, struct st_slice queue, const struct st_slice *ids, size_t n,
                         bool types, st_redis_peek_fn fn, void *arg, stint_error *err);
/* The job's worker and state, wherever it is.  ENOTFOUND. */
stint_code st_redis_peek_id(struct st_redis_store *s, struct st_slice id, struct st_redis_peek *out, stint_error *err);
/* The time in a UUIDv7, us; 0 if it is none. */
int64_t st_redis_id_time(struct st_slice id);

/* Ids of a list or set, a chunk at a time, until fn says no.  scores (NULL for lists): min and max as Redis takes them. */
struct st_redis_walk {
    struct st_slice queue;
    const char *set; /* "pending", ... */
    bool list;
    const char *min, *max; /* of a sorted set's scores */
    bool down;             /* a sorted set from its highest score down */
    size_t most;           /* 0 = all */
    const bool *enough;    /* not NULL: no further chunk once it is set */
};
typedef stint_code (*st_redis_chunk_fn)(void *arg, const struct st_slice *ids, const double *scores, size_t n,
                                        stint_error *err);
stint_code st_redis_walk(struct st_redis_store *s, const struct st_redis_walk *w, st_redis_chunk_fn fn, void *arg,
                         stint_error *err);

/* ---- workers (redis_worker.c, redis_asynq.c) ----------------------------------------------------------------------- */

void st_redis_worker_row(struct st_slice id, struct st_slice row, struct st_worker_info *w);
/* ELOST if the epoch is not the leader's of today; 0 is everybody's. */
stint_code st_redis_epoch_check(struct st_redis_store *s, int64_t epoch, stint_error *err);
void st_redis_asynq_beat(struct st_redis_store *s, const struct st_worker_info *w);
void st_redis_asynq_gone(struct st_redis_store *s, const struct st_worker_info *w);
/* Calls fn for each job the worker holds, whole, looking at no more than `most` active ones. */
typedef void (*st_redis_held_fn)(void *arg, const struct st_job_info *i);
void st_redis_each_held(struct st_redis_store *s, struct st_slice worker, size_t most, st_redis_held_fn fn, void *arg);
/* The leases of this worker, whose process is known to be gone, end now. */
stint_code st_redis_expire_leases(struct st_redis_store *s, int64_t now_us, struct st_slice worker, stint_error *err);

#endif
