/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_idle.h - what a worker with nothing to do costs.
 */
#ifndef ST_CLI_BENCH_IDLE_H
#define ST_CLI_BENCH_IDLE_H

#include "base/err.h"

struct bench_idle {
    double seconds, cpu_percent;
    long anon_kb, rss_kb; /* RssAnon and VmRSS */
};

/* Starts `stint worker` on url as a process of its own and watches it.  dir: where its configuration is written (NULL =
 * the working directory). */
stint_code bench_idle(const char *url, const char *dir, int seconds, struct bench_idle *out, stint_error *err);

#endif
