/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_drain.c - `stint bench`: how fast workers empty a queue, with a handler that does nothing.
 *
 * One worker runs in this process, several in a process each.  What they count is shared memory, so
 * that both are the same.  Handles are opened as everywhere; only their claims are timed on the
 * way.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench.h"

#define CLAIMS_MAX 100000

/* Shared by all processes. */
struct drain {
    long long total; /* how many will be drained, as far as is known; 0 = not known */
    long long limit; /* stop after about so many; 0 = none */
    atomic_llong begun;
    atomic_llong fifth_us[BENCH_FIFTHS]; /* CLOCK_MONOTONIC when so many had begun */
    atomic_llong n_claims;
    atomic_llong succeeded, rounds;
    atomic_int failed;
    int claim_us[CLAIMS_MAX];
};

static struct drain *drain; /* one at a time */

/* ---- timed claims ---------------------------------------------------------------------------- */

static const struct st_store_ops *real_ops;
static struct st_store_ops timed_ops;

static void note_claim(int64_t began_us, size_t n)
{
    long long i;

    if (n == 0)
        return; /* the last one, or a poll */
    i = atomic_fetch_add(&drain->n_claims, 1);
    if (i < CLAIMS_MAX)
        drain->claim_us[i] = (int)(st_clock_mono_us() - began_us);
}

static stint_code timed_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                              stint_error *err)
{
    int64_t began_us = st_clock_mono_us();
    stint_code rc = real_ops->claim(s, req, out, n_out, err);

    note_claim(began_us, rc == STINT_OK ? *n_out : 0);
    return rc;
}

static stint_code timed_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                                 const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                                 stint_error *err)
{
    int64_t began_us = st_clock_mono_us();
    stint_code rc = real_ops->exchange(s, now_us, items, n, req, out, n_out, finished, err);

    note_claim(began_us, rc == STINT_OK ? *n_out : 0);
    return rc;
}

/* The worker opens its handles on several threads; they all have the same table. */
static stint_code open_timed(void *arg, struct st_store **out, stint_error *err)
{
    struct st_opener plain = cli_opener(arg);
    stint_code rc = plain.open(plain.arg, out, err);

    if (rc == STINT_OK && (*out)->ops == real_ops)
        (*out)->ops = &timed_ops;
    return rc;
}

static void timed_prepare(const struct st_store *s)
{
    real_ops = s->ops;
    timed_ops = *real_ops;
    timed_ops.claim = timed_claim;
    if (real_ops->exchange)
        timed_ops.exchange = timed_exchange;
}

/* ---- one worker -------------------------------------------------------------------------------
 */

/* Nothing but counting; each worker is stopped once, when the limit is reached. */
static void noop(void *arg, struct st_pool_item *it)
{
    static atomic_flag stopped = ATOMIC_FLAG_INIT;
    long long n = atomic_fetch_add(&drain->begun, 1) + 1;

    (void)it;
    for (int i = 0; drain->total && i < BENCH_FIFTHS; i++) {
        if (n == drain->total * (i + 1) / BENCH_FIFTHS)
            atomic_store(&drain->fifth_us[i], st_clock_mono_us());
    }
    if (drain->limit && n >= drain->limit && !atomic_flag_test_and_set(&stopped))
        st_worker_stop(*(struct st_worker **)arg);
}

static stint_code work(struct bench *b, stint_error *err)
{
    struct st_worker *w = NULL;
    struct st_worker_handler h = {.pattern = BENCH_TYPE "*", .fn = noop, .arg = &w, .policy = st_policy_default};
    struct st_settings s;
    struct st_worker_options opt = {.opener = {.open = open_timed, .arg = &b->place},
                                    .settings = &s,
                                    .handlers = &h,
                                    .n_handlers = 1,
                                    .once = true};
    struct st_tally t = {0};
    stint_code rc;

    b->place.url = b->url;
    bench_settings(b, &s);
    rc = st_worker_new(&opt, &w, err);
    if (rc == STINT_OK)
        rc = st_worker_run(w, err);
    if (w)
        t = st_worker_tally(w);
    st_worker_free(w);
    st_settings_clear(&s);
    atomic_fetch_add(&drain->succeeded, t.succeeded);
    atomic_fetch_add(&drain->rounds, t.rounds);
    return rc;
}

/* ---- several -----------------------------------------------------------------------------------
 */

static stint_code fork_workers(struct bench *b, pid_t *pids, stint_error *err)
{
    stint_error theirs;

    fflush(NULL);
    for (int64_t i = 0; i < b->workers; i++) {
        pids[i] = fork(); /* no thread is left from the parts before */
        if (pids[i] < 0)
            return st_fail(err, STINT_EAGAIN, "cannot fork: %s", strerror(errno));
        if (pids[i] == 0) {
            stint_code rc = work(b, &theirs);

            if (rc != STINT_OK)
                fprintf(stderr, "stint: a worker: %s\n", theirs.message);
            _exit(rc == STINT_OK ? 0 : 1);
        }
    }
    return STINT_OK;
}

static stint_code work_in_processes(struct bench *b, stint_error *err)
{
    pid_t pids[BENCH_WORKERS_MAX] = {0};
    stint_code rc = fork_workers(b, pids, err);
    int status;

    for (int64_t i = 0; i < b->workers; i++) {
        if (pids[i] <= 0)
            continue;
        if (rc != STINT_OK)
            kill(pids[i], SIGKILL);
        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            ;
        if (rc == STINT_OK && status != 0)
            rc = st_fail(err, STINT_EAGAIN, "a worker failed");
    }
    return rc;
}

/* ---- the part
 * ------------------------------------------------------------------------------------ */

static double cpu_us(void)
{
    struct rusage self, children;

    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return (double)(self.ru_utime.tv_sec + self.ru_stime.tv_sec + children.ru_utime.tv_sec + children.ru_stime.tv_sec) *
               1e6 +
           (double)(self.ru_utime.tv_usec + self.ru_stime.tv_usec + children.ru_utime.tv_usec +
                    children.ru_stime.tv_usec);
}

static int by_size(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return x < y ? -1 : x > y;
}

static void figures(struct bench *b, int64_t start, double cpu)
{
    struct bench_report *r = &b->r;
    double jobs = (double)atomic_load(&drain->succeeded), part;
    size_t n = (size_t)atomic_load(&drain->n_claims);
    int64_t from = start, at;

    r->drained = atomic_load(&drain->succeeded);
    r->drain_rate = jobs / bench_seconds_since(start);
    r->drain_cpu_us = (cpu_us() - cpu) / jobs;
    r->drain_batch = jobs / (double)(drain->rounds ? drain->rounds : 1);
    r->claims = (int64_t)n;
    n = n > CLAIMS_MAX ? CLAIMS_MAX : n;
    qsort(drain->claim_us, n, sizeof(*drain->claim_us), by_size);
    r->claim_p50_ms = n ? drain->claim_us[n / 2] / 1e3 : 0;
    r->claim_p99_ms = n ? drain->claim_us[n * 99 / 100] / 1e3 : 0;
    for (int i = 0; i < BENCH_FIFTHS; i++) {
        at = atomic_load(&drain->fifth_us[i]);
        part = (double)drain->total / BENCH_FIFTHS;
        r->fifths[i] = at > from ? part * (double)ST_SEC / (double)(at - from) : 0;
        from = at;
    }
}

/* How many wait in our queue and are due, and the table of operations that handles of this store
 * have. */
static stint_code look_around(struct bench *b, long long *waiting, stint_error *err)
{
    struct st_queue_info *q = NULL;
    struct st_store *s = NULL;
    size_t n = 0;
    stint_code rc = cli_store_open(b->c, b->url, CLI_CREATE, &s, err);

    *waiting = 0;
    if (rc == STINT_OK) {
        timed_prepare(s);
        rc = st_store_queues(s, 0, &q, &n, err);
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(q[i].name, BENCH_QUEUE) == 0)
            *waiting = q[i].counts[ST_SHOW_PENDING];
    }
    free(q);
    st_store_close(s);
    return rc;
}

static stint_code drain_pinned(struct bench *b, stint_error *err)
{
    stint_code rc = b->pin ? bench_pg_pin(b->pg, err) : STINT_OK;
    int64_t start = st_clock_mono_us();
    double cpu = cpu_us();

    if (rc == STINT_OK)
        rc = b->workers > 1 ? work_in_processes(b, err) : work(b, err);
    if (rc == STINT_OK && drain->succeeded > 0)
        figures(b, start, cpu);
    if (b->pin)
        bench_pg_unpin(b->pg);
    return rc;
}

stint_code bench_drain(struct bench *b, stint_error *err)
{
    stint_code rc;

    drain = mmap(NULL, sizeof(*drain), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (drain == MAP_FAILED)
        return st_fail(err, STINT_ENOMEM, "no memory");
    rc = look_around(b, &drain->total, err);
    drain->limit = b->limit;
    if (b->limit && drain->total > b->limit)
        drain->total = b->limit;
    if (rc == STINT_OK)
        rc = drain_pinned(b, err);
    munmap(drain, sizeof(*drain));
    return rc;
}
