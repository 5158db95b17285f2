/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_wait.h - what a waiting handle knows: shared by redis_wait.c, which listens, and redis_places.c, which reads.
 */
#ifndef ST_STORE_REDIS_WAIT_H
#define ST_STORE_REDIS_WAIT_H

#include <pthread.h>

#include "base/thread.h"
#include "store/redis_look.h"

#define ST_REDIS_LOOK_US (100 * ST_MS) /* so often it looks where nothing is told */

/* What is known of a queue. */
struct st_redis_place {
    char name[ST_NAME_MAX + 1];
    bool known;
    bool paused;
    int64_t len;    /* of its list; 0 while it is paused */
    int64_t due_us; /* of the first that is scheduled or to be tried again; 0 = none */
};

struct st_redis_wait {
    pthread_mutex_t mu; /* guards ear's coming and going, and interrupted */
    struct st_redis_ear *ear;
    bool interrupted;
    int fd; /* an eventfd, for waits without an ear */

    /* what it is for; the names are in one allocation */
    bool watched, work, renamed;
    struct st_slice *queues, worker;
    size_t n_queues;          /* 0 = all */
    char own[ST_ID_MAX + 16]; /* stint:wake:WORKER */

    bool no_tracking;    /* refused, or a Cluster */
    bool no_ear;         /* refused, or not wanted */
    int64_t ear_id;      /* whom the tracking is for */
    unsigned generation; /* of the connection that has it on; 0 = none */
    bool asleep;         /* what it waits for was read since it wants work */
    bool names_known;    /* asynq:queues has not changed */
    struct st_redis_place *places;
    size_t n_places;
    int64_t names_us, read_us; /* when the names and the places were last read */

    int64_t spoken_us, heard_us;
    struct st_tries tries;
    int64_t retry_us; /* when to connect again */
    bool away;        /* no connection; people were told */

    unsigned pending; /* heard, and not told yet */
    unsigned news;    /* what the last wait has told */
    bool told_deaf;
};

/* Is it told of changes? */
static inline bool st_redis_wait_told(const struct st_redis_wait *w)
{
    return w->ear && !w->no_tracking;
}

/* Reads what is not known, or all of it from time to time where nothing is told; what there is goes into w->pending. */
stint_code st_redis_places_look(struct st_redis_store *s, stint_error *err);
/* This key has changed; p NULL = everything. */
void st_redis_places_changed(struct st_redis_wait *w, struct st_slice key);
/* Nothing is known any more. */
void st_redis_places_forget(struct st_redis_wait *w);
/* The connection may be a new one: then nothing of it is remembered by the server. */
void st_redis_places_connection(struct st_redis_store *s);

#endif
