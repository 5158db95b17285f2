/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.h - what the commands about jobs share.
 */
#ifndef ST_CLI_JOBS_H
#define ST_CLI_JOBS_H

#include "cli/cli.h"

/* ---- showing (job_text.c) ------------------------------------------------------------- */

/* The whole job, as JSON or for people; the exit code. */
int cli_job_print(struct cli *c, const struct st_job_info *info, int64_t now_us);
/* A page of jobs, as JSON or as a table; frees the list. */
int cli_jobs_print(struct cli *c, struct st_job_info *list, size_t n, uint64_t next, int64_t now_us);

/* Reads one job; false has said why not. */
bool cli_job_get(struct cli *c, const char *id, struct st_job_info *info);

/* ---- listing (job_list.c) --------------------------------------------------------------- */

struct cli_filter {
    struct st_list_req req;
    bool any; /* something was asked for */
};

/* Options that choose jobs; a command lists those it knows in its own table. */
enum {
    CLI_F_STATE = 50,
    CLI_F_QUEUE,
    CLI_F_TYPE,
    CLI_F_SPEC,
    CLI_F_WORKER,
    CLI_F_KEY,
    CLI_F_BEFORE,
    CLI_F_LIMIT,
    CLI_F_AFTER,
    CLI_F_PAYLOAD,
};
void cli_filter_init(struct cli_filter *f);
bool cli_filter_option(struct cli *c, struct cli_filter *f, int opt, const char *arg);
/* Prints the page the filter asks for. */
int cli_jobs_list(struct cli *c, struct cli_filter *f);

/* ---- changing (job_change.c) -------------------------------------------------------------- */

enum cli_change { CLI_CHANGE_CANCEL, CLI_CHANGE_RETRY, CLI_CHANGE_REPLAY, CLI_CHANGE_DISCARD };

/* Does it to each job named; only_dead refuses those that are not failed.  Prints what became of
 * each; the exit code is that of the first that was refused. */
int cli_jobs_change(struct cli *c, enum cli_change what, char **ids, int n, bool only_dead);
/* Does it to all failed jobs that the filter chooses, and says how many. */
int cli_dead_change(struct cli *c, enum cli_change what, struct cli_filter *f);

/* ---- logs (job_logs.c, job_follow.c) ------------------------------------------------------ */

extern const struct cli_command cmd_job_logs;

/* The log file of an attempt, as it is kept or, while it goes on, as a worker with our logs_dir
 * writes it; NULL = none is known.  free() it. */
char *cli_log_path(struct cli *c, const struct st_job_info *info, const struct st_attempt_info *a);
/* What is kept of an attempt, for people. */
int cli_log_print(struct cli *c, const struct st_job_info *info, const struct st_attempt_info *a);
/* Prints what attempts write, from the last one on (n 0) or only attempt n, until there is no more
 * to come. */
int cli_job_follow(struct cli *c, const char *id, int64_t n);

#endif
