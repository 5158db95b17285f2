/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h - what the parts of `stint bench` share.
 */
#ifndef ST_CLI_BENCH_H
#define ST_CLI_BENCH_H

#include "cli/bench_idle.h"
#include "cli/bench_postgres.h"
#include "cli/run_worker.h"

#define BENCH_QUEUE       "bench"
#define BENCH_TYPE        "bench.noop"
#define BENCH_TYPES_MAX   100
#define BENCH_FIFTHS      5
#define BENCH_WORKERS_MAX 64

struct bench_report {
    double single_rate, batch_rate, drain_rate, drain_cpu_us, drain_batch;
    double fifths[BENCH_FIFTHS]; /* jobs/s over each fifth of the drain; 0 = not known */
    double claim_p50_ms, claim_p99_ms;
    double pickup_p50_ms, pickup_p99_ms, pickup_max_ms;
    int64_t drained, claims, pickup_n, peak_rss_kb;
    struct bench_idle idle;
    struct st_store_about about;
    struct bench_pg_cost pg_batch, pg_drain; /* seen by the server; PostgreSQL only */
};

struct bench {
    struct cli *c;
    const char *url;
    struct cli_place place; /* the same, for workers */
    char *own_dir;          /* made here, removed at the end */
    char *own_url;
    char *payload;
    const char *only;
    const char *preload; /* what lies beside, as name=count,... */
    int64_t jobs, batch, slots, samples, payload_len, seconds, workers, types;
    int64_t limit;       /* drain no more than about so many; 0 = all */
    bool pin;            /* a snapshot is held while draining */
    struct bench_pg *pg; /* NULL = the store is not PostgreSQL */
    struct bench_report r;
};

static inline double bench_seconds_since(int64_t start_us)
{
    return (double)(st_clock_mono_us() - start_us) / (double)ST_SEC;
}

/* A worker's settings; st_settings_clear(). */
void bench_settings(const struct bench *b, struct st_settings *s);

/* bench_drain.c, bench_pickup.c: fill b->r. */
stint_code bench_drain(struct bench *b, stint_error *err);
stint_code bench_pickup(struct bench *b, stint_error *err);

/* bench_report.c */
void bench_print_text(const struct bench *b);
int bench_print_json(const struct bench *b);

#endif
