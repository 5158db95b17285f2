/* SPDX-License-Identifier: Apache-2.0
 *
 * thread.h - small threads that sleep on a condition and can be told to stop.
 */
#ifndef ST_BASE_THREAD_H
#define ST_BASE_THREAD_H

#include <pthread.h>

#include "base/clock.h"

/* Starts a thread with a small stack (256 KiB) and all signals blocked: signals are the main thread's. */
stint_code st_thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg, stint_error *err);

/* A condition counted by the monotonic clock. */
void st_cond_init(pthread_cond_t *c);
/* Waits until signalled or `us` have passed (us < 0: without limit).  false = the time has passed. */
bool st_cond_wait_us(pthread_cond_t *c, pthread_mutex_t *m, int64_t us);

/* Delays between tries: base, doubled each time up to max, each +-25%. */
struct st_tries {
    int64_t base_us, max_us;
    int n;
};
int64_t st_tries_next(struct st_tries *t);

#endif
