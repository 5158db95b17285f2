/* SPDX-License-Identifier: Apache-2.0
 *
 * exec_bench.c - the executor beside bare programs that do the same.
 *
 *     exec_bench resident CHILD PIPE_ECHO [JOBS [IN_FLIGHT [ROUNDS [BARE_CHILD]]]]
 *     exec_bench oneshot /bin/true SPAWN_LOOP [JOBS [IN_FLIGHT [ROUNDS]]]
 *
 * The two run in turns; the figure is the median of the rounds' ratios.  BARE_CHILD is the bare
 * program's, if it is another.  Jobs are made beforehand: what is measured is from st_exec_run() to
 * done.  cpu_us is the CPU time of this process per job.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/execute.h"

#define ROUNDS_MAX 99

static const char payload[] = "{\"order\": 4711, \"text\": \"hello world\", \"items\": [1, 2, 3]}";

struct bench {
    uv_loop_t loop;
    struct st_exec *x;
    struct st_command cmd;
    struct st_job **jobs;
    long n, started, done, in_flight;
    int64_t began_us, ended_us;
    double began_cpu, cpu_us; /* of this process, and per job */
    bool closed;
};

static void fill(struct bench *b);

static double cpu_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static void on_ran(void *arg, struct st_ran *ran)
{
    struct bench *b = arg;

    if (!ran->ok) {
        fprintf(stderr, "an attempt failed: %s\n", ran->message ? ran->message : "?");
        exit(1);
    }
    if (b->done == 0) { /* the child is up */
        b->began_us = st_clock_mono_us();
        b->began_cpu = cpu_us();
    }
    b->done++;
    st_ran_clear(ran);
    fill(b);
    if (b->done == b->n) {
        b->ended_us = st_clock_mono_us();
        b->cpu_us = (cpu_us() - b->began_cpu) / (double)(b->n - 1);
        uv_stop(&b->loop);
    }
}

/* The first job alone: what it takes to start is not counted. */
static void fill(struct bench *b)
{
    stint_error err;
    struct st_run *run;

    while (b->started < b->n && b->started - b->done < (b->done ? b->in_flight : 1))
        if (st_exec_run(b->x, &b->cmd, b->jobs[b->started++], on_ran, b, &run, &err) != STINT_OK) {
            fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
}

static void on_closed(void *arg)
{
    ((struct bench *)arg)->closed = true;
}

static bool jobs_make(struct bench *b)
{
    char id[64];

    b->jobs = calloc((size_t)b->n, sizeof(*b->jobs));
    for (long i = 0; b->jobs && i < b->n; i++) {
        snprintf(id, sizeof(id), "019a0000-0000-7000-8000-%012ld", i);
        b->jobs[i] = st_job_new(st_slice_cstr(id), st_slice_cstr("echo"), st_slice_cstr("default"),
                                st_slice_cstr(payload), ST_NONE);
        if (!b->jobs[i])
            return false;
        b->jobs[i]->attempt = 1;
        b->jobs[i]->fence = i + 1;
        b->jobs[i]->policy = st_policy_default;
    }
    return b->jobs != NULL;
}

/* Jobs per second. */
static double ours(struct bench *b, const char *self)
{
    struct st_exec_options opt = {.self = self, .worker_id = "bench", .limits = st_limits_default};
    stint_error err;

    b->started = b->done = 0;
    b->closed = false;
    uv_loop_init(&b->loop);
    if (st_exec_new(&b->loop, &opt, &b->x, &err) != STINT_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    fill(b);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    st_exec_close(b->x, on_closed, b);
    while (!b->closed)
        uv_run(&b->loop, UV_RUN_ONCE);
    uv_loop_close(&b->loop);
    return (double)(b->n - 1) * 1e6 / (double)(b->ended_us - b->began_us);
}

static double bare(const char *program, const char *child, const struct bench *b)
{
    char line[1024];
    double rate = 0;
    FILE *f;

    snprintf(line, sizeof(line), "%s %s %ld %ld", program, child, b->n, b->in_flight);
    f = popen(line, "r");
    if (!f || fscanf(f, "%lf", &rate) != 1 || pclose(f)) {
        fprintf(stderr, "cannot run %s\n", line);
        exit(1);
    }
    return rate;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_size);
    return v[n / 2];
}

static long number(int argc, char **argv, int i, long otherwise)
{
    return argc > i ? atol(argv[i]) : otherwise;
}

int main(int argc, char **argv)
{
    bool resident = argc > 1 && !strcmp(argv[1], "resident");
    double a[ROUNDS_MAX], z[ROUNDS_MAX], share[ROUNDS_MAX];
    struct bench b = {0};
    char *command[] = {argc > 2 ? argv[2] : NULL, NULL};
    int rounds;

    if (argc == 3 && !strcmp(argv[1], ST_MINDER_ARG))
        return st_minder_main(atoi(argv[2]));
    if (argc < 4 || (!resident && strcmp(argv[1], "oneshot"))) {
        fprintf(stderr, "usage: exec_bench resident|oneshot COMMAND LIMIT_PROGRAM [JOBS "
                        "[IN_FLIGHT [ROUNDS [BARE_COMMAND]]]]\n");
        return 2;
    }
    b.n = number(argc, argv, 4, resident ? 100000 : 1000);
    b.in_flight = number(argc, argv, 5, resident ? 100 : 2);
    rounds = (int)number(argc, argv, 6, 5);
    if (b.n < 2 || b.in_flight < 1 || rounds < 1 || rounds > ROUNDS_MAX || !jobs_make(&b))
        return 2;
    b.cmd = (struct st_command){.argv = command,
                                .mode = resident ? ST_MODE_RESIDENT : ST_MODE_ONESHOT,
                                .grace_us = 5 * ST_SEC,
                                .name = argv[1],
                                .max_in_flight = (int)b.in_flight};
    for (int i = 0; i < rounds; i++) {
        z[i] = bare(argv[3], argc > 7 ? argv[7] : argv[2], &b);
        a[i] = ours(&b, argv[0]);
        share[i] = a[i] / z[i];
    }
    printf("%s jobs=%ld in_flight=%ld rounds=%d bare=%.0f ours=%.0f ratio=%.2f cpu_us=%.2f\n", argv[1], b.n,
           b.in_flight, rounds, median(z, rounds), median(a, rounds), median(share, rounds), b.cpu_us);
    for (long i = 0; i < b.n; i++)
        st_job_free(b.jobs[i]);
    free(b.jobs);
    return 0;
}
