/* SPDX-License-Identifier: Apache-2.0
 *
 * explain.h - why a job is not running: reasons from what the store knows, without a store.
 */
#ifndef ST_CLI_EXPLAIN_H
#define ST_CLI_EXPLAIN_H

#include "store/store.h"
#include "worker/settings.h"

#define CLI_LIVE_US (30 * ST_SEC) /* silent for longer: three beats have been missed */

static inline bool cli_worker_live(const struct st_worker_info *w, int64_t now_us)
{
    return now_us - w->last_beat_us < CLI_LIVE_US;
}

struct cli_facts {
    int64_t now_us; /* the store's */
    const struct st_job_info *job;
    const struct st_queue_info *queues;
    size_t n_queues;
    const struct st_worker_info *workers;
    size_t n_workers;
    const struct st_settings *settings; /* a parent queue may pick the handler */
};

struct cli_reason {
    char code[24]; /* stable, for programs: "not_due" */
    char text[400];
    char remedy[200];
};

/* The reasons, the one that decides first; at least one.  Returns how many were written. */
#define CLI_REASONS_MAX 8
size_t cli_explain(const struct cli_facts *f, struct cli_reason out[CLI_REASONS_MAX]);

#endif
