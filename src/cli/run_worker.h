/* SPDX-License-Identifier: Apache-2.0
 *
 * run_worker.h - a worker as the commands start it: worker, dev, bench.
 */
#ifndef ST_CLI_RUN_WORKER_H
#define ST_CLI_RUN_WORKER_H

#include "cli/cli.h"
#include "worker/worker.h"

/* What lies over the configuration file. */
struct cli_worker_flags {
    const char *queues, *types, *name;
    int64_t slots; /* 0 = as configured */
};

/* Settings from --config (or the file found), the environment and the flags; programs checked.  text: used instead of a
 * file when there is none (NULL = defaults). */
stint_code cli_worker_settings(struct cli *c, const struct cli_worker_flags *f, const char *text, struct st_settings *s,
                               stint_error *err);

/* A store and the signal that goes with it. */
struct cli_place {
    const char *url, *signal; /* signal may be NULL */
    bool runqy;
};

/* An opener for place, which must outlive it. */
struct st_opener cli_opener(const struct cli_place *place);

/* Where large results go when nothing is configured: beside the SQLite file, else the working directory.  A new
 * string, absolute; NULL = no memory. */
char *cli_results_dir(const char *url);

#endif
