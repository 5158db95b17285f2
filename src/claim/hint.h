/* SPDX-License-Identifier: Apache-2.0
 *
 * hint.h - be woken when there may be work, or news of the jobs that run.
 */
#ifndef ST_CLAIM_HINT_H
#define ST_CLAIM_HINT_H

#include "claim/courier.h"

struct st_hinter;

/* A thread that sleeps in st_store_wait and wakes the loop.  A hint of work disarms it.  Takes a reference to plan: its
 * queues are what it listens for. */
stint_code st_hinter_new(const struct st_opener *opener, const char *worker_id, struct st_plan *plan, uv_async_t *wake,
                         struct st_hinter **out, stint_error *err);
/* Another plan from now on. */
void st_hinter_plan(struct st_hinter *h, struct st_plan *plan);

/* Wake us for work.  fruitless: the last hint led to nothing.  Such hints are spaced out, up to 20 ms, so that the traffic
 * of other queues does not keep us busy. */
void st_hinter_arm(struct st_hinter *h, bool fruitless);
/* We ask for work anyway. */
void st_hinter_disarm(struct st_hinter *h);
/* While jobs run: hear of what concerns them.  A store that tells whom its news is for is always heard. */
void st_hinter_listen(struct st_hinter *h);
/* Does the store tell whom its news is for?  If not, a hint of anything is a hint of work and of cancelled jobs. */
bool st_hinter_addressed(struct st_hinter *h);
/* Are there no hints to come?  Then look from time to time. */
bool st_hinter_deaf(struct st_hinter *h);

/* What was heard since the last call: ST_NEWS_ bits. */
unsigned st_hinter_take(struct st_hinter *h);
void st_hinter_free(struct st_hinter *h); /* stops and joins */

#endif
