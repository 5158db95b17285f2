/* SPDX-License-Identifier: Apache-2.0
 *
 * hint.h - be woken when there may be work.
 */
#ifndef ST_CLAIM_HINT_H
#define ST_CLAIM_HINT_H

#include "claim/courier.h"

struct st_hinter;

/* A thread that sleeps in st_store_wait while it is armed.  A hint disarms it and wakes the loop. */
stint_code st_hinter_new(const struct st_opener *opener, uv_async_t *wake, struct st_hinter **out,
                         stint_error *err);
/* fruitless: the last hint led to nothing.  Such hints are spaced out, up to 20 ms, so that the traffic of other
 * queues does not keep us busy. */
void st_hinter_arm(struct st_hinter *h, bool fruitless);
/* Was there a hint since the last call? */
bool st_hinter_take(struct st_hinter *h);
void st_hinter_free(struct st_hinter *h); /* stops and joins */

#endif
