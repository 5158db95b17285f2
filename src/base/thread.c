/* SPDX-License-Identifier: Apache-2.0
 *
 * thread.c - small threads that sleep on a condition and can be told to stop.
 */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/id.h"

#define STACK_SIZE (256 * 1024)

/* The sanitizers' own frames need more room. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_FACTOR 8
#else
#define STACK_FACTOR 1
#endif

stint_code st_thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg, stint_error *err)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)STACK_SIZE * STACK_FACTOR);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread inherits it */
    rc = pthread_create(t, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc)
        return st_fail(err, STINT_ENOMEM, "cannot start the %s thread: %s", name, strerror(rc));
    pthread_setname_np(*t, name);
    return STINT_OK;
}

void st_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

bool st_cond_wait_us(pthread_cond_t *c, pthread_mutex_t *m, int64_t us)
{
    struct timespec ts;
    int64_t at;

    if (us < 0)
        return pthread_cond_wait(c, m) == 0;
    at = st_clock_mono_us() + us;
    ts.tv_sec = at / ST_SEC;
    ts.tv_nsec = at % ST_SEC * 1000;
    return pthread_cond_timedwait(c, m, &ts) != ETIMEDOUT;
}

int64_t st_tries_next(struct st_tries *t)
{
    int64_t us = t->base_us;

    for (int i = 0; i < t->n && us < t->max_us; i++)
        us *= 2;
    if (us > t->max_us)
        us = t->max_us;
    t->n++;
    return (int64_t)((double)us * (0.75 + 0.5 * st_random_unit()));
}
