/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h - run attempts inside this process, one thread per slot.
 */
#ifndef ST_EXECUTE_POOL_H
#define ST_EXECUTE_POOL_H

#include <stdatomic.h>

#include "execute/execute.h"

struct st_pool_item;

/* An in-process handler.  Runs on a thread of its own; fills it->ran (which starts as ST_RAN_INIT with ok = true).
 * it->abort becomes an enum st_abort when the attempt should stop; the handler looks at it when it can. */
typedef void (*st_handler_fn)(void *arg, struct st_pool_item *it);

/* One attempt on its way through the pool; embedded in the caller's own record. */
struct st_pool_item {
    struct st_pool_item *next;
    st_handler_fn fn;
    void *arg;
    const struct st_job *job;
    struct st_ran ran;
    bool firm;                  /* the handler means its outcome, told to stop or not: only a lost job overrules it */
    atomic_int abort;           /* set before it has begun: the handler is not called */
    atomic_int abort_fd;        /* an eventfd that becomes readable with abort; -1 = nobody asked for one */
    atomic_bool settling;       /* the handler writes its outcome itself: from before until the attempt is over */
    _Atomic(char *) progress;   /* JSON not yet told to the store, or NULL */
    _Atomic int64_t started_us; /* CLOCK_BOOTTIME when a thread took it; 0 = it waits */
};

void st_item_init(struct st_pool_item *it, st_handler_fn fn, void *arg, const struct st_job *job);
/* Closes and frees what the attempt asked for.  The handler has returned, or never began. */
void st_item_clear(struct st_pool_item *it);
/* The loop's: tells the handler to stop. */
void st_item_abort(struct st_pool_item *it, enum st_abort why);
/* The handler's: the descriptor, made when first asked for; -1 = there is none to be had. */
int st_item_abort_fd(struct st_pool_item *it);
/* A newer text takes the place of one that was not told yet.  false = no memory.  Any thread. */
bool st_item_progress(struct st_pool_item *it, struct st_slice json);
/* Takes the text, for free(); NULL = nothing new. */
char *st_item_progress_take(struct st_pool_item *it);
/* It could not be told: puts it back unless there is a newer one. */
void st_item_progress_back(struct st_pool_item *it, char *json);

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
