/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_idle.c - what a worker with nothing to do costs.
 */
#include "cli/bench_idle.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SETTLE_SECONDS 2

extern char **environ;

static stint_code write_config(const char *path, stint_error *err)
{
    FILE *f = fopen(path, "we");

    if (!f || fputs("types:\n  bench.idle: {run: ['true']}\n", f) < 0 || fclose(f) != 0)
        return st_fail(err, STINT_ESTORE, "cannot write %s: %s", path, strerror(errno));
    return STINT_OK;
}

/* A line "Name:   123 kB" of /proc/PID/status. */
static long status_kb(pid_t pid, const char *name)
{
    char path[64], line[256];
    long kb = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, strlen(name)) == 0)
            kb = strtol(line + strlen(name), NULL, 10);
    }
    if (f)
        fclose(f);
    return kb;
}

/* CPU time of all its threads, in nanoseconds. */
static double cpu_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec ts;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ts) != 0)
        return 0;
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static stint_code start_worker(const char *url, const char *config, pid_t *pid, stint_error *err)
{
    char *argv[] = {"stint",        "worker",      "--store", (char *)url, "--config",
                    (char *)config, "--log-level", "error",   NULL};
    int rc = posix_spawn(pid, "/proc/self/exe", NULL, NULL, argv, environ);

    if (rc)
        return st_fail(err, STINT_EAGAIN, "cannot start a worker: %s", strerror(rc));
    return STINT_OK;
}

stint_code bench_idle(const char *url, const char *dir, int seconds, struct bench_idle *out, stint_error *err)
{
    char config[256];
    double cpu;
    pid_t pid;
    stint_code rc;

    snprintf(config, sizeof(config), "%s/%s", dir ? dir : ".", dir ? "stint.yaml" : ".stint-bench.yaml");
    rc = write_config(config, err);
    if (rc == STINT_OK)
        rc = start_worker(url, config, &pid, err);
    if (rc == STINT_OK) {
        sleep(SETTLE_SECONDS);
        cpu = cpu_ns(pid);
        sleep((unsigned)seconds);
        out->cpu_percent = (cpu_ns(pid) - cpu) / (seconds * 1e9) * 100;
        out->seconds = seconds;
        out->anon_kb = status_kb(pid, "RssAnon:");
        out->rss_kb = status_kb(pid, "VmRSS:");
        kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
        if (out->anon_kb == 0)
            rc = st_fail(err, STINT_ESTATE, "the idle worker did not stay up");
    }
    unlink(config);
    return rc;
}
