/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_bench.c - `stint bench`: what this machine and store reach, with the shipped worker.
 *
 *     preload   --preload: jobs that lie beside those that are measured (PostgreSQL)
 *     enqueue   one job per call, each durable before the next      jobs/s
 *     batch     --batch jobs per call                               jobs/s
 *     drain     workers with slots, leases and batches and a handler that does nothing
 *     pickup    another process enqueues one job at a time; from its acknowledgement to the
 * handler's start idle      a worker with nothing to do: private memory and CPU
 *
 * Each part works on its own queue of the store; without --store on a new one in a temporary folder
 * here, removed afterwards.
 */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/bench.h"
#include "cli/config.h"
#include "enqueue/enqueue.h"

enum {
    OPT_JOBS = 1,
    OPT_BATCH,
    OPT_SLOTS,
    OPT_SAMPLES,
    OPT_PAYLOAD,
    OPT_ONLY,
    OPT_SECONDS,
    OPT_LIMIT,
    OPT_WORKERS,
    OPT_TYPES,
    OPT_PIN,
    OPT_PRELOAD
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
            cli_usage(c,
                      "--only: '%.*s' is not a part; the parts are enqueue, batch, drain, pickup "
                      "and idle",
                      (int)(len > 60 ? 60 : len), list);
            return false;
        }
        if (!list[len])
            return true;
        list += len + 1;
    }
}

/* ---- enqueue ------------------------------------------------------------------------------- */

struct type_name {
    char text[sizeof(BENCH_TYPE) + 8];
};

/* The i-th of the types, from 0. */
static const char *type_name(struct type_name *name, size_t i)
{
    snprintf(name->text, sizeof(name->text), i ? BENCH_TYPE ".%zu" : BENCH_TYPE, i + 1);
    return name->text;
}

static stint_code enqueue_some(struct st_store *s, const struct bench *b, size_t n, stint_error *err)
{
    struct st_enqueue_item *items = calloc(n, sizeof(*items));
    struct st_new_job *jobs = calloc(n, sizeof(*jobs));
    struct st_enqueued *out = calloc(n, sizeof(*out));
    struct type_name names[BENCH_TYPES_MAX];
    stint_code rc = STINT_OK;

    if (!items || !jobs || !out)
        rc = st_fail(err, STINT_ENOMEM, "no memory for a batch of %zu", n);
    for (size_t i = 0; rc == STINT_OK && i < n; i++) {
        items[i].job = st_new_job_default;
        items[i].job.type = st_slice_cstr(type_name(names + i % (size_t)b->types, i % (size_t)b->types));
        items[i].job.queue = st_slice_cstr(BENCH_QUEUE);
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
    *rate = (double)total / bench_seconds_since(start);
    cli_progress_end(&p);
    st_store_close(s);
    return rc;
}

void bench_settings(const struct bench *b, struct st_settings *s)
{
    st_settings_init(s);
    s->slots = (int)b->slots;
    s->claim_batch = (int)b->batch;
}

/* ---- the command --------------------------------------------------------------------------------
 */

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

/* A part, and what the server says about it. */
static stint_code part_batch(struct bench *b, stint_error *err)
{
    stint_code rc = b->pg ? bench_pg_begin(b->pg, err) : STINT_OK;

    if (rc == STINT_OK)
        rc = part_enqueue(b, b->jobs, b->batch, "batch enqueue", &b->r.batch_rate, err);
    return rc == STINT_OK && b->pg ? bench_pg_end(b->pg, &b->r.pg_batch, err) : rc;
}

static stint_code part_drain(struct bench *b, stint_error *err)
{
    stint_code rc = b->pg ? bench_pg_begin(b->pg, err) : STINT_OK;

    if (rc == STINT_OK)
        rc = bench_drain(b, err);
    return rc == STINT_OK && b->pg ? bench_pg_end(b->pg, &b->r.pg_drain, err) : rc;
}

static stint_code parts(struct bench *b, stint_error *err)
{
    stint_code rc = STINT_OK;

    if (b->preload)
        rc = bench_pg_preload(b->pg, b->preload, b->payload_len, err);
    if (rc == STINT_OK && wanted(b, "enqueue"))
        rc = part_enqueue(b, b->jobs / 50 > 2000 ? 2000 : b->jobs / 50 + 1, 1, "enqueue", &b->r.single_rate, err);
    if (rc == STINT_OK && wanted(b, "batch"))
        rc = part_batch(b, err);
    if (rc == STINT_OK && wanted(b, "drain"))
        rc = part_drain(b, err);
    if (rc == STINT_OK && wanted(b, "pickup"))
        rc = bench_pickup(b, err);
    if (rc == STINT_OK && wanted(b, "idle"))
        rc = bench_idle(b->url, b->own_dir, (int)b->seconds, &b->r.idle, err);
    return rc;
}

/* The largest process so far, children included. */
static int64_t peak_rss_kb(void)
{
    struct rusage self, children;

    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return self.ru_maxrss > children.ru_maxrss ? self.ru_maxrss : children.ru_maxrss;
}

/* The store is made if need be, and asked what it is. */
static stint_code meet_store(struct bench *b, stint_error *err)
{
    struct st_store *s = NULL;
    stint_code rc = cli_store_open(b->c, b->url, CLI_CREATE, &s, err);

    if (rc == STINT_OK)
        st_store_about(s, &b->r.about);
    st_store_close(s);
    if (rc == STINT_OK && bench_pg_is(b->url))
        rc = bench_pg_open(b->url, &b->pg, err);
    if (rc == STINT_OK && !b->pg && (b->pin || b->preload))
        rc = st_fail(err, STINT_EINVAL, "--pin and --preload are for PostgreSQL stores");
    return rc;
}

static int bench_run(struct bench *b)
{
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
        rc = meet_store(b, &err);
    if (rc == STINT_OK)
        rc = parts(b, &err);
    bench_pg_close(b->pg);
    b->r.peak_rss_kb = peak_rss_kb();
    if (rc != STINT_OK)
        return cli_fail(b->c, &err);
    if (b->c->json)
        return bench_print_json(b);
    bench_print_text(b);
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
        else if (opt == OPT_WORKERS)
            ok = cli_int(c, "--workers", arg, 1, BENCH_WORKERS_MAX, &b->workers);
        else if (opt == OPT_TYPES)
            ok = cli_int(c, "--types", arg, 1, BENCH_TYPES_MAX, &b->types);
        else if (opt == OPT_PIN)
            b->pin = true;
        else if (opt == OPT_PRELOAD)
            b->preload = arg;
        else if (opt == OPT_ONLY)
            ok = check_only(c, b->only = arg);
    }
    return ok && opt != CLI_STOP && cli_args(c, 0, 0);
}

static int run(struct cli *c)
{
    struct bench b = {.c = c,
                      .jobs = 100000,
                      .batch = 500,
                      .slots = 10,
                      .samples = 1000,
                      .payload_len = 60,
                      .seconds = 10,
                      .workers = 1,
                      .types = 1};
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
    {"workers", 'w', "N", OPT_WORKERS, "drain with so many worker processes (1)"},
    {"types", 0, "N", OPT_TYPES, "jobs are of so many types, in turns (1)"},
    {"pin", 0, NULL, OPT_PIN, "PostgreSQL: hold a snapshot while draining, so that nothing dead can go"},
    {"preload", 0, "KIND=N,..", OPT_PRELOAD,
     "PostgreSQL: first add waiting, scheduled, history, unserved or paused jobs"},
    {"only", 0, "PARTS", OPT_ONLY, "some of enqueue,batch,drain,pickup,idle"},
    {0},
};

const struct cli_command cmd_bench = {
    .name = "bench",
    .summary = "measure this machine and store",
    .synopsis = "[options]",
    .about = "Measures enqueueing, draining, pickup and an idle worker, with the worker that ships.\n"
             "Without --store it makes a store of its own in this folder and removes it afterwards; "
             "with --store\n"
             "it uses the queue `bench` there and leaves its finished jobs to retention.  A PostgreSQL "
             "server is also\n"
             "asked what it cost: log and commits per job, pages, dead rows, connections; nothing else "
             "should run there.",
    .options = options,
    .examples = "stint bench\n"
                "stint bench --only drain,batch --jobs 1000000 --batch 100\n"
                "stint bench --store 'bench.db?sync=normal'\n"
                "stint bench --store postgres:///test --only batch,drain --workers 4\n"
                "stint bench --store postgres:///test --only batch,drain --pin --batch 100",
    .run = run,
};
