/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_report.c - `stint bench`: what was measured, for people and for programs.
 */
#include <stdio.h>

#include "cli/bench.h"

static double per_job(int64_t total, int64_t jobs)
{
    return jobs > 0 ? (double)total / (double)jobs : 0;
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_drain(const struct bench *b)
{
    const struct bench_report *r = &b->r;

    printf("drain       %.0f jobs/s, %.1f us of CPU per job, %.0f outcomes per write\n", r->drain_rate, r->drain_cpu_us,
           r->drain_batch);
    printf("            by fifths");
    for (int i = 0; i < BENCH_FIFTHS; i++)
        printf(" %.0f", r->fifths[i]);
    printf(" jobs/s\n");
    printf("            claims p50 %.2f ms, p99 %.2f ms (%lld)\n", r->claim_p50_ms, r->claim_p99_ms,
           (long long)r->claims);
}

static void print_server(const struct bench *b)
{
    const struct bench_report *r = &b->r;

    if (r->pg_batch.known)
        printf("server      enqueue: %.0f bytes of log, %.4f commits per job\n",
               per_job(r->pg_batch.wal_bytes, b->jobs), per_job(r->pg_batch.commits, b->jobs));
    if (r->pg_drain.known)
        printf("            drain: %.0f bytes of log, %.4f commits (%.4f that write), %.1f pages "
               "per job; %lld dead rows left;\n"
               "            %d connections at most, %.1f per process\n",
               per_job(r->pg_drain.wal_bytes, r->drained), per_job(r->pg_drain.commits, r->drained),
               per_job(r->pg_drain.writes, r->drained), per_job(r->pg_drain.buffers, r->drained),
               (long long)r->pg_drain.dead, r->pg_drain.connections,
               (double)r->pg_drain.connections / (double)b->workers);
}

void bench_print_text(const struct bench *b)
{
    const struct bench_report *r = &b->r;

    printf("store       %s, %s\n", r->about.kind, r->about.durability);
    printf("            jobs %lld, batch %lld, slots %lld, workers %lld, payload %lld bytes\n", (long long)b->jobs,
           (long long)b->batch, (long long)b->slots, (long long)b->workers, (long long)b->payload_len);
    if (r->single_rate > 0)
        printf("enqueue     %.0f jobs/s one at a time\n", r->single_rate);
    if (r->batch_rate > 0)
        printf("            %.0f jobs/s in batches of %lld\n", r->batch_rate, (long long)b->batch);
    if (r->drain_rate > 0)
        print_drain(b);
    print_server(b);
    if (r->pickup_n)
        printf("pickup      p50 %.2f ms, p99 %.2f ms, max %.2f ms (%lld samples)\n", r->pickup_p50_ms, r->pickup_p99_ms,
               r->pickup_max_ms, (long long)r->pickup_n);
    if (r->idle.seconds > 0)
        printf("idle worker %.2f MiB private, %.1f MiB resident, %.3f%% CPU over %.0f s\n",
               (double)r->idle.anon_kb / 1024, (double)r->idle.rss_kb / 1024, r->idle.cpu_percent, r->idle.seconds);
    printf("peak RSS    %.1f MiB (the largest process)\n", (double)r->peak_rss_kb / 1024);
}

/* ---- for programs ------------------------------------------------------------------------------
 */

static void put_num(struct st_jw *w, const char *key, double v, int decimals)
{
    st_jw_key(w, key);
    st_jw_num(w, v, decimals);
}

static void put_str(struct st_jw *w, const char *key, const char *s)
{
    st_jw_key(w, key);
    st_jw_cstr(w, s);
}

static void put_drain(struct st_jw *w, const struct bench_report *r)
{
    put_num(w, "drained", (double)r->drained, 0);
    put_num(w, "drain_per_s", r->drain_rate, 1);
    put_num(w, "drain_cpu_us_per_job", r->drain_cpu_us, 2);
    put_num(w, "drain_outcomes_per_write", r->drain_batch, 1);
    st_jw_key(w, "drain_fifths_per_s");
    st_jw_open(w, '[');
    for (int i = 0; i < BENCH_FIFTHS; i++)
        st_jw_num(w, r->fifths[i], 0);
    st_jw_close(w, ']');
    put_num(w, "claims", (double)r->claims, 0);
    put_num(w, "claim_p50_ms", r->claim_p50_ms, 3);
    put_num(w, "claim_p99_ms", r->claim_p99_ms, 3);
}

static void put_cost(struct st_jw *w, const char *key, const struct bench_pg_cost *c, int64_t jobs)
{
    if (!c->known)
        return;
    st_jw_key(w, key);
    st_jw_open(w, '{');
    put_num(w, "wal_bytes_per_job", per_job(c->wal_bytes, jobs), 1);
    put_num(w, "commits_per_job", per_job(c->commits, jobs), 5);
    put_num(w, "writing_commits_per_job", per_job(c->writes, jobs), 5);
    put_num(w, "buffers_per_job", per_job(c->buffers, jobs), 2);
    put_num(w, "dead_tuples", (double)c->dead, 0);
    put_num(w, "connections", c->connections, 0);
    st_jw_close(w, '}');
}

int bench_print_json(const struct bench *b)
{
    const struct bench_report *r = &b->r;
    struct st_buf buf;
    struct st_jw w;

    st_buf_init(&buf, 1 << 16);
    st_jw_init(&w, &buf);
    st_jw_open(&w, '{');
    put_str(&w, "store", r->about.kind);
    put_str(&w, "version", r->about.version);
    put_str(&w, "durability", r->about.durability);
    put_num(&w, "jobs", (double)b->jobs, 0);
    put_num(&w, "batch", (double)b->batch, 0);
    put_num(&w, "slots", (double)b->slots, 0);
    put_num(&w, "workers", (double)b->workers, 0);
    put_num(&w, "types", (double)b->types, 0);
    put_num(&w, "enqueue_per_s", r->single_rate, 1);
    put_num(&w, "enqueue_batch_per_s", r->batch_rate, 1);
    put_drain(&w, r);
    put_num(&w, "pickup_p50_ms", r->pickup_p50_ms, 3);
    put_num(&w, "pickup_p99_ms", r->pickup_p99_ms, 3);
    put_num(&w, "pickup_samples", (double)r->pickup_n, 0);
    put_num(&w, "idle_private_kb", (double)r->idle.anon_kb, 0);
    put_num(&w, "idle_rss_kb", (double)r->idle.rss_kb, 0);
    put_num(&w, "idle_cpu_percent", r->idle.cpu_percent, 4);
    put_num(&w, "peak_rss_kb", (double)r->peak_rss_kb, 0);
    put_cost(&w, "postgres_enqueue", &r->pg_batch, b->jobs);
    put_cost(&w, "postgres_drain", &r->pg_drain, r->drained);
    st_jw_close(&w, '}');
    return cli_print_json(b->c, &buf);
}
