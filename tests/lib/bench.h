/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h - a store, a worker, and one handler that does what the test says.
 */
#ifndef TESTS_LIB_BENCH_H
#define TESTS_LIB_BENCH_H

#include "kit.h"

/* One handler that does what the test says, and what it has seen. */
struct bench {
    struct kit k;
    stint_worker *w;
    stint_code (*act)(stint_attempt *a, struct bench *b);
    atomic_int runs, go;
    const char *_Atomic aborted;
    char seen[512];
    int64_t fence;
    stint_enqueued job;
};

static inline stint_code handle(stint_attempt *a, void *arg)
{
    struct bench *b = arg;

    atomic_fetch_add(&b->runs, 1);
    return b->act(a, b);
}

static inline void bench_open(struct bench *b, const stint_worker_options *opt, const stint_handler_options *handler,
                              stint_code (*act)(stint_attempt *a, struct bench *b))
{
    memset(b, 0, sizeof(*b));
    kit_open(&b->k);
    b->act = act;
    b->w = kit_worker(&b->k, opt);
    OK(stint_worker_handle(b->w, "t", handle, b, handler, NULL));
}

static inline void bench_close(struct bench *b)
{
    stint_worker_free(b->w);
    kit_close(&b->k);
}

/* A job and a worker that runs it once, and then what is left. */
static inline void run_once(struct bench *b, stint_code (*act)(stint_attempt *a, struct bench *b))
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;

    opt.once = 1;
    bench_open(b, &opt, NULL, act);
    kit_add(&b->k, "t", "{\"n\":1}", &b->job);
    OK(stint_worker_run(b->w, NULL));
}

#endif
