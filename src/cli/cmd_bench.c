/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_bench.c - `stint bench`: what this machine and store reach, with the shipped worker.
 *
 *     enqueue   one job per call, each durable before the next      jobs/s
 *     batch     --batch jobs per call                               jobs/s
 *     drain     a worker with slots, leases and batches and a handler that does nothing
 *     pickup    another process enqueues one job at a time; from its acknowledgement to the handler's start
 *     idle      a worker with nothing to do: private memory and CPU
 *
 * Each part works on its own queue of the store; without --store on a new one in a temporary folder here, removed
 * afterwards.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "cli/bench_idle.h"
#include "cli/config.h"
#include "cli/run_worker.h"
#include "enqueue/enqueue.h"

enum { OPT_JOBS = 1, OPT_BATCH, OPT_SLOTS, OPT_SAMPLES, OPT_PAYLOAD, OPT_ONLY, OPT_SECONDS, OPT_LIMIT };

#define TYPE "bench.noop"

struct report {
    double single_rate, batch_rate, drain_rate, drain_cpu_us, drain_batch;
    double pickup_p50_ms, pickup_p99_ms, pickup_max_ms;
    int64_t drained, pickup_n, peak_rss_kb;
    struct bench_idle idle;
    struct st_store_about about;
};

struct bench {
    struct cli *c;
    const char *url;
    char *own_dir; /* made here, removed at the end */
    char *own_url;
    char *payload;
    const char *only;
    int64_t jobs, batch, slots, samples, payload_len, seconds;
    int64_t limit; /* drain no more than about so many; 0 = all */
    struct report r;
};

static const char *const part_names[] = {"enqueue", "batch", "drain", "pickup", "idle", NULL};

/* Is word among the words of a list with commas? */
static bool in_list(const char *list, const char *word)
{
    for (;;) {
        size_t len = strcspn(list, ",");

        if (st_slice_is(ST_SLICE(list, len), word))
            return true;
        if (!list[len])
            return false;
        list += len + 1;
    }
}

static bool wanted(const struct bench *b, const char *part)
{
    return !b->only || in_list(b->only, part);
}

/* --only: every word names a part. */
static bool check_only(struct cli *c, const char *list)
{
    for (;;) {
        size_t len = strcspn(list, ","), i = 0;

        while (part_names[i] && !st_slice_is(ST_SLICE(list, len), part_names[i]))
            i++;
        if (!part_names[i]) {
            cli_usage(c, "--only: '%.*s' is not a part; the parts are enqueue, batch, drain, pickup and idle",
                      (int)(len > 60 ? 60 : len), list);
            return false;
        }
        if (!list[len])
            return true;
        list += len + 1;
    }
}

static double seconds_since(int64_t start_us)
{
    return (double)(st_clock_mono_us() - start_us) / (double)ST_SEC;
}

/* ---- enqueue ------------------------------------------------------------------------------- */

static stint_code enqueue_some(struct st_store *s, const struct bench *b, size_t n, stint_error *err)
{
    struct st_enqueue_item *items = calloc(n, sizeof(*items));
    struct st_new_job *jobs = calloc(n, sizeof(*jobs));
    struct st_enqueued *out = calloc(n, sizeof(*out));
    stint_code rc = STINT_OK;

    if (!items || !jobs || !out)
        rc = st_fail(err, STINT_ENOMEM, "no memory for a batch of %zu", n);
    for (size_t i = 0; rc == STINT_OK && i < n; i++) {
        items[i].job = st_new_job_default;
        items[i].job.type = st_slice_cstr(TYPE);
        items[i].job.queue = st_slice_cstr("bench");
        items[i].job.payload = ST_SLICE(b->payload, (size_t)b->payload_len);
        rc = st_enqueue_check(&items[i], ST_PAYLOAD_MAX, err);
        jobs[i] = items[i].job;
    }
    if (rc == STINT_OK)
        rc = st_enqueue(s, jobs, n, out, err);
    free(items);
    free(jobs);
    free(out);
    return rc;
}

static stint_code part_enqueue(struct bench *b, int64_t total, int64_t step, const char *what, double *rate,
                               stint_error *err)
{
    struct cli_progress p;
    struct st_store *s = NULL;
    stint_code rc = cli_store_open(b->c, b->url, CLI_CREATE, &s, err);
    int64_t start = st_clock_mono_us();

    cli_progress_start(b->c, &p, what, "jobs", total);
    for (int64_t done = 0; rc == STINT_OK && done < total; done += step) {
        int64_t n = total - done < step ? total - done : step;

        rc = enqueue_some(s, b, (size_t)n, err);
        cli_progress_set(&p, done, total);
    }
    *rate = (double)total / seconds_since(start);
    cli_progress_end(&p);
    st_store_close(s);
    return rc;
}

/* ---- drain ---------------------------------------------------------------------------------- */

struct drain {
    struct st_worker *w;
    atomic_llong begun;
    long long limit; /* 0 = none */
};

/* Nothing, but the one that reaches the limit stops the worker. */
static void noop(void *arg, struct st_pool_item *it)
{
    struct drain *d = arg;

    (void)it;
    if (d->limit && atomic_fetch_add(&d->begun, 1) + 1 == d->limit)
        st_worker_stop(d->w);
}

static void bench_settings(const struct bench *b, struct st_settings *s)
{
    st_settings_init(s);
    s->slots = (int)b->slots;
    s->claim_batch = (int)b->batch;
}

static double cpu_us(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static stint_code part_drain(struct bench *b, stint_error *err)
{
    struct drain d = {.limit = b->limit};
    struct st_worker_handler h = {.pattern = TYPE, .fn = noop, .arg = &d, .policy = st_policy_default};
    struct st_settings s;
    struct st_worker_options opt = {
        .opener = cli_opener(&b->url), .settings = &s, .handlers = &h, .n_handlers = 1, .once = true};
    struct st_tally t = {0};
    double cpu = cpu_us();
    int64_t start = st_clock_mono_us();
    stint_code rc;

    bench_settings(b, &s);
    rc = st_worker_new(&opt, &d.w, err);
    if (rc == STINT_OK)
        rc = st_worker_run(d.w, err);
    if (d.w)
        t = st_worker_tally(d.w);
    st_worker_free(d.w);
    st_settings_clear(&s);
    if (rc == STINT_OK && t.succeeded > 0) {
        b->r.drained = (int64_t)t.succeeded;
        b->r.drain_rate = (double)t.succeeded / seconds_since(start);
        b->r.drain_cpu_us = (cpu_us() - cpu) / (double)t.succeeded;
        b->r.drain_batch = (double)t.succeeded / (double)(t.rounds ? t.rounds : 1);
    }
    return rc;
}

/* ---- pickup ---------------------------------------------------------------------------------- */

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
        it.job.type = st_slice_cstr("bench.pickup");
        it.job.queue = st_slice_cstr("bench");
        it.job.payload = st_slice_cstr(number);
        if (st_enqueue_check(&it, ST_PAYLOAD_MAX, &err) != STINT_OK || st_enqueue(s, &it.job, 1, &out, &err) != STINT_OK)
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

static stint_code pickup_figures(struct bench *b, const struct pickup *p, stint_error *err)
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

static stint_code run_pickup_worker(struct bench *b, struct pickup *p, pid_t child, stint_error *err)
{
    struct st_worker_handler h = {.pattern = "bench.pickup", .fn = note_start, .arg = p, .policy = st_policy_default};
    struct st_settings s;
    struct st_worker_options opt = {.opener = cli_opener(&b->url), .settings = &s, .handlers = &h, .n_handlers = 1};
    struct pickup_end end = {.child = child};
    pthread_t t;
    stint_code rc;

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

static stint_code part_pickup(struct bench *b, stint_error *err)
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
    rc = run_pickup_worker(b, p, child, err);
    if (rc == STINT_OK)
        rc = pickup_figures(b, p, err);
    munmap(p, size);
    return rc;
}

/* ---- the report ------------------------------------------------------------------------------- */

static void print_text(const struct bench *b)
{
    const struct report *r = &b->r;

    printf("store       %s, %s\n", r->about.kind, r->about.durability);
    printf("            jobs %lld, batch %lld, slots %lld, payload %lld bytes\n", (long long)b->jobs,
           (long long)b->batch, (long long)b->slots, (long long)b->payload_len);
    if (r->single_rate > 0)
        printf("enqueue     %.0f jobs/s one at a time\n", r->single_rate);
    if (r->batch_rate > 0)
        printf("            %.0f jobs/s in batches of %lld\n", r->batch_rate, (long long)b->batch);
    if (r->drain_rate > 0)
        printf("drain       %.0f jobs/s, %.1f us of CPU per job, %.0f outcomes per write\n", r->drain_rate,
               r->drain_cpu_us, r->drain_batch);
    if (r->pickup_n)
        printf("pickup      p50 %.2f ms, p99 %.2f ms, max %.2f ms (%lld samples)\n", r->pickup_p50_ms,
               r->pickup_p99_ms, r->pickup_max_ms, (long long)r->pickup_n);
    if (r->idle.seconds > 0)
        printf("idle worker %.2f MiB private, %.1f MiB resident, %.3f%% CPU over %.0f s\n",
               (double)r->idle.anon_kb / 1024, (double)r->idle.rss_kb / 1024, r->idle.cpu_percent, r->idle.seconds);
    printf("peak RSS    %.1f MiB (this process)\n", (double)r->peak_rss_kb / 1024);
}

static void put_num(struct st_jw *w, const char *key, double v, int decimals)
{
    st_jw_key(w, key);
    st_jw_num(w, v, decimals);
}

static int print_json(const struct bench *b)
{
    const struct report *r = &b->r;
    struct st_buf buf;
    struct st_jw w;

    st_buf_init(&buf, 1 << 16);
    st_jw_init(&w, &buf);
    st_jw_open(&w, '{');
    st_jw_key(&w, "store");
    st_jw_cstr(&w, r->about.kind);
    st_jw_key(&w, "durability");
    st_jw_cstr(&w, r->about.durability);
    put_num(&w, "jobs", (double)b->jobs, 0);
    put_num(&w, "batch", (double)b->batch, 0);
    put_num(&w, "slots", (double)b->slots, 0);
    put_num(&w, "enqueue_per_s", r->single_rate, 1);
    put_num(&w, "enqueue_batch_per_s", r->batch_rate, 1);
    put_num(&w, "drained", (double)r->drained, 0);
    put_num(&w, "drain_per_s", r->drain_rate, 1);
    put_num(&w, "drain_cpu_us_per_job", r->drain_cpu_us, 2);
    put_num(&w, "drain_outcomes_per_write", r->drain_batch, 1);
    put_num(&w, "pickup_p50_ms", r->pickup_p50_ms, 3);
    put_num(&w, "pickup_p99_ms", r->pickup_p99_ms, 3);
    put_num(&w, "pickup_samples", (double)r->pickup_n, 0);
    put_num(&w, "idle_private_kb", (double)r->idle.anon_kb, 0);
    put_num(&w, "idle_rss_kb", (double)r->idle.rss_kb, 0);
    put_num(&w, "idle_cpu_percent", r->idle.cpu_percent, 4);
    put_num(&w, "peak_rss_kb", (double)r->peak_rss_kb, 0);
    st_jw_close(&w, '}');
    return cli_print_json(b->c, &buf);
}

/* ---- the command -------------------------------------------------------------------------------- */

/* A store of one's own, in a folder that is removed at the end. */
static stint_code own_store(struct bench *b, stint_error *err)
{
    b->own_dir = strdup("stint-bench-XXXXXX");
    if (!b->own_dir || !mkdtemp(b->own_dir))
        return st_fail(err, STINT_ESTORE, "cannot make a folder here: %s", strerror(errno));
    if (asprintf(&b->own_url, "sqlite:%s/bench.db", b->own_dir) < 0)
        return st_fail(err, STINT_ENOMEM, "no memory");
    b->url = b->own_url;
    return STINT_OK;
}

static void remove_own(struct bench *b)
{
    static const char *const names[] = {"bench.db", "bench.db-wal", "bench.db-shm", "stint.yaml"};
    char path[128];

    for (size_t i = 0; b->own_url && i < sizeof(names) / sizeof(*names); i++) {
        snprintf(path, sizeof(path), "%s/%s", b->own_dir, names[i]);
        unlink(path);
    }
    if (b->own_dir)
        rmdir(b->own_dir);
    free(b->own_dir);
    free(b->own_url);
}

static stint_code parts(struct bench *b, stint_error *err)
{
    stint_code rc = STINT_OK;

    if (wanted(b, "enqueue"))
        rc = part_enqueue(b, b->jobs / 50 > 2000 ? 2000 : b->jobs / 50 + 1, 1, "enqueue", &b->r.single_rate, err);
    if (rc == STINT_OK && wanted(b, "batch"))
        rc = part_enqueue(b, b->jobs, b->batch, "batch enqueue", &b->r.batch_rate, err);
    if (rc == STINT_OK && wanted(b, "drain"))
        rc = part_drain(b, err);
    if (rc == STINT_OK && wanted(b, "pickup"))
        rc = part_pickup(b, err);
    if (rc == STINT_OK && wanted(b, "idle"))
        rc = bench_idle(b->url, b->own_dir, (int)b->seconds, &b->r.idle, err);
    return rc;
}

static int bench_run(struct bench *b)
{
    struct st_store *s = NULL;
    struct rusage u;
    stint_error err;
    stint_code rc = STINT_OK;

    b->payload = malloc((size_t)b->payload_len + 1);
    if (!b->payload)
        return cli_error(b->c, STINT_ENOMEM, "", "no memory for the payload");
    memset(b->payload, '0', (size_t)b->payload_len);
    if (b->payload_len)
        b->payload[0] = '1';
    if (b->c->store_flag)
        b->url = st_config_store(b->c->store_flag, &b->c->settings, false);
    else
        rc = own_store(b, &err);
    if (rc == STINT_OK)
        rc = cli_store_open(b->c, b->url, CLI_CREATE, &s, &err);
    if (rc == STINT_OK)
        st_store_about(s, &b->r.about);
    st_store_close(s);
    if (rc == STINT_OK)
        rc = parts(b, &err);
    getrusage(RUSAGE_SELF, &u);
    b->r.peak_rss_kb = u.ru_maxrss;
    if (rc != STINT_OK)
        return cli_fail(b->c, &err);
    if (b->c->json)
        return print_json(b);
    print_text(b);
    return CLI_DONE;
}

static bool read_options(struct cli *c, struct bench *b)
{
    const char *arg;
    int opt;
    bool ok = true;

    while (ok && (opt = cli_option(c, &arg)) > 0) {
        if (opt == OPT_JOBS)
            ok = cli_int(c, "--jobs", arg, 1, 100000000, &b->jobs);
        else if (opt == OPT_BATCH)
            ok = cli_int(c, "--batch", arg, 1, 10000, &b->batch);
        else if (opt == OPT_SLOTS)
            ok = cli_int(c, "--slots", arg, 1, ST_SLOTS_MAX, &b->slots);
        else if (opt == OPT_SAMPLES)
            ok = cli_int(c, "--samples", arg, 1, 1000000, &b->samples);
        else if (opt == OPT_PAYLOAD)
            ok = cli_int(c, "--payload", arg, 1, 1 << 20, &b->payload_len);
        else if (opt == OPT_SECONDS)
            ok = cli_int(c, "--idle-seconds", arg, 1, 3600, &b->seconds);
        else if (opt == OPT_LIMIT)
            ok = cli_int(c, "--limit", arg, 1, 100000000, &b->limit);
        else if (opt == OPT_ONLY)
            ok = check_only(c, b->only = arg);
    }
    return ok && opt != CLI_STOP && cli_args(c, 0, 0);
}

static int run(struct cli *c)
{
    struct bench b = {.c = c, .jobs = 100000, .batch = 500, .slots = 10, .samples = 1000, .payload_len = 60,
                      .seconds = 10};
    int exit;

    if (!read_options(c, &b))
        return c->exit;
    mallopt(M_ARENA_MAX, 2);
    exit = bench_run(&b);
    remove_own(&b);
    free(b.payload);
    return exit;
}

static const struct cli_option options[] = {
    {"jobs", 'n', "N", OPT_JOBS, "how many jobs to enqueue and drain (100000)"},
    {"batch", 'b', "N", OPT_BATCH, "jobs per enqueue, and at most per claim (500)"},
    {"slots", 's', "N", OPT_SLOTS, "slots of the worker (10)"},
    {"samples", 0, "N", OPT_SAMPLES, "pickups to measure (1000)"},
    {"payload", 0, "BYTES", OPT_PAYLOAD, "size of a payload (60)"},
    {"idle-seconds", 0, "N", OPT_SECONDS, "how long to watch an idle worker (10)"},
    {"limit", 0, "N", OPT_LIMIT, "stop draining after about N jobs (all)"},
    {"only", 0, "PARTS", OPT_ONLY, "some of enqueue,batch,drain,pickup,idle"},
    {0},
};

const struct cli_command cmd_bench = {
    .name = "bench",
    .summary = "measure this machine and store",
    .synopsis = "[options]",
    .about = "Measures enqueueing, draining, pickup and an idle worker, with the worker that ships.\n"
             "Without --store it makes a store of its own in this folder and removes it afterwards; with --store\n"
             "it uses the queue `bench` there and leaves its finished jobs to retention.",
    .options = options,
    .examples = "stint bench\n"
                "stint bench --only drain,batch --jobs 1000000 --batch 100\n"
                "stint bench --store 'bench.db?sync=normal'",
    .run = run,
};
