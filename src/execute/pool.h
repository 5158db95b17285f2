/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h - run attempts inside this process, one thread per slot.
 */
#ifndef ST_EXECUTE_POOL_H
#define ST_EXECUTE_POOL_H

#include <stdatomic.h>

#include "execute/execute.h"

/* An in-process handler.  Runs on a thread of its own; fills *ran (which starts as ST_RAN_INIT with ok = true).
 * *abort becomes an enum st_abort when the attempt should stop; the handler looks at it when it can. */
typedef void (*st_handler_fn)(void *arg, const struct st_job *job, const atomic_int *abort,
                              struct st_ran *ran);

/* One attempt on its way through the pool; embedded in the caller's own record. */
struct st_pool_item {
    struct st_pool_item *next;
    st_handler_fn fn;
    void *arg;
    const struct st_job *job;
    struct st_ran ran;
    atomic_int abort;             /* set before it has begun: the handler is not called */
    _Atomic int64_t started_us;   /* CLOCK_BOOTTIME when a thread took it; 0 = it waits */
};

struct st_pool;

/* Threads are started as they are needed, at most n.  wake is sent when results are there. */
stint_code st_pool_new(int n, uv_async_t *wake, struct st_pool **out, stint_error *err);
/* Hands over a list of n items; they belong to the pool until they come back. */
void st_pool_push(struct st_pool *p, struct st_pool_item *first, struct st_pool_item *last, size_t n);
/* While items are in the pool, call this every few milliseconds (see pool.c). */
void st_pool_nudge(struct st_pool *p);
/* Takes back all items that no thread has begun, or NULL. */
struct st_pool_item *st_pool_withdraw(struct st_pool *p);
/* All items that are done since the last call, oldest first, or NULL. */
struct st_pool_item *st_pool_take(struct st_pool *p);
/* Waits for the handlers that still run. */
void st_pool_free(struct st_pool *p);

#endif
