/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_pickup.c - `stint bench`: how soon a job that another process enqueues is begun by an idle
 * worker.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "cli/bench.h"
#include "enqueue/enqueue.h"

#define TYPE "bench.pickup"

/* Shared by both processes. */
struct pickup {
    atomic_int started; /* how many handlers have begun */
    int64_t n;
    struct {
        int64_t acked_us, begun_us; /* CLOCK_MONOTONIC is the same in both */
    } at[];
};

static void note_start(void *arg, struct st_pool_item *it)
{
    struct pickup *p = arg;
    int64_t i;

    if (st_parse_i64(it->job->payload, &i) && i >= 0 && i < p->n)
        p->at[i].begun_us = st_clock_mono_us();
    atomic_fetch_add(&p->started, 1);
}

/* The other process: one job at a time, and a rest in between, so that the worker is idle. */
static int produce(const struct bench *b, struct pickup *p)
{
    struct st_store_open opt = {.timeout_ms = 5000};
    struct st_store *s = NULL;
    stint_error err;
    struct st_enqueued out;

    if (st_store_open(b->url, &opt, &s, &err) != STINT_OK)
        return 1;
    usleep(300 * 1000); /* the worker settles down */
    for (int64_t i = 0; i < p->n; i++) {
        struct st_enqueue_item it = {.job = st_new_job_default};
        char number[24];

        snprintf(number, sizeof(number), "%lld", (long long)i);
        it.job.type = st_slice_cstr(TYPE);
        it.job.queue = st_slice_cstr(BENCH_QUEUE);
        it.job.payload = st_slice_cstr(number);
        if (st_enqueue_check(&it, ST_PAYLOAD_MAX, &err) != STINT_OK ||
            st_enqueue(s, &it.job, 1, &out, &err) != STINT_OK)
            return 1;
        p->at[i].acked_us = st_clock_mono_us();
        for (int tries = 0; atomic_load(&p->started) <= i && tries < 20000; tries++)
            usleep(500);
        usleep((useconds_t)(2000 + 3000 * st_random_unit()));
    }
    st_store_close(s);
    return 0;
}

struct pickup_end {
    struct st_worker *w;
    pid_t child;
    int status;
};

static void *await_producer(void *arg)
{
    struct pickup_end *e = arg;

    while (waitpid(e->child, &e->status, 0) < 0 && errno == EINTR)
        ;
    st_worker_stop(e->w);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

static stint_code figures(struct bench *b, const struct pickup *p, stint_error *err)
{
    int64_t *us = calloc((size_t)p->n, sizeof(*us)), n = 0;

    if (!us)
        return st_fail(err, STINT_ENOMEM, "no memory for %lld samples", (long long)p->n);
    for (int64_t i = 0; i < p->n; i++) {
        if (p->at[i].begun_us && p->at[i].acked_us)
            us[n++] = p->at[i].begun_us > p->at[i].acked_us ? p->at[i].begun_us - p->at[i].acked_us : 0;
    }
    if (n == 0) {
        free(us);
        return st_fail(err, STINT_ESTATE, "no job of the pickup part was run");
    }
    qsort(us, (size_t)n, sizeof(*us), by_size);
    b->r.pickup_n = n;
    b->r.pickup_p50_ms = (double)us[n / 2] / 1e3;
    b->r.pickup_p99_ms = (double)us[n * 99 / 100] / 1e3;
    b->r.pickup_max_ms = (double)us[n - 1] / 1e3;
    free(us);
    return STINT_OK;
}

static stint_code run_worker(struct bench *b, struct pickup *p, pid_t child, stint_error *err)
{
    struct st_worker_handler h = {.pattern = TYPE, .fn = note_start, .arg = p, .policy = st_policy_default};
    struct st_settings s;
    struct st_worker_options opt = {.opener = cli_opener(&b->place), .settings = &s, .handlers = &h, .n_handlers = 1};
    struct pickup_end end = {.child = child};
    pthread_t t;
    stint_code rc;

    b->place.url = b->url;
    bench_settings(b, &s);
    rc = st_worker_new(&opt, &end.w, err);
    if (rc == STINT_OK && (rc = st_thread_start(&t, "stint-bench", await_producer, &end, err)) == STINT_OK) {
        rc = st_worker_run(end.w, err);
        pthread_join(t, NULL);
    } else {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    st_worker_free(end.w);
    st_settings_clear(&s);
    if (rc == STINT_OK && end.status != 0)
        rc = st_fail(err, STINT_EAGAIN, "the enqueuing process failed");
    return rc;
}

stint_code bench_pickup(struct bench *b, stint_error *err)
{
    size_t size = sizeof(struct pickup) + (size_t)b->samples * 2 * sizeof(int64_t);
    struct pickup *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stint_code rc;
    pid_t child;

    if (p == MAP_FAILED)
        return st_fail(err, STINT_ENOMEM, "no memory for %lld samples", (long long)b->samples);
    p->n = b->samples;
    fflush(NULL);
    child = fork(); /* no thread is left from the parts before */
    if (child == 0)
        _exit(produce(b, p));
    if (child < 0)
        return st_fail(err, STINT_EAGAIN, "cannot fork: %s", strerror(errno));
    rc = run_worker(b, p, child, err);
    if (rc == STINT_OK)
        rc = figures(b, p, err);
    munmap(p, size);
    return rc;
}
