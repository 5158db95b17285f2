/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_dead.c - `stint dead list|show|retry|discard`: the dead letter, which is the failed jobs.
 *
 * Retry and discard never mean all jobs by accident: either jobs are named, or a filter, or --all.
 */
#include <string.h>

#include "cli/jobs.h"

enum { OPT_ALL = 1 };

static const struct cli_option list_options[] = {
    {"type", 't', "TYPE", CLI_F_TYPE, "of this type; a name, or a beginning with *"},
    {"queue", 'q', "NAME", CLI_F_QUEUE, "of this queue; a parent means its subs too"},
    {"before", 'b', "WHEN", CLI_F_BEFORE, "failed before: a time, or how long ago (7d)"},
    {"limit", 'n', "N", CLI_F_LIMIT, "at most so many [50]"},
    {"after", 0, "CURSOR", CLI_F_AFTER, "go on behind this: the `next` of the page before"},
    {"payload", 0, NULL, CLI_F_PAYLOAD, "with payload, result, progress, meta (--json)"},
    {NULL, 0, NULL, 0, NULL},
};

static const struct cli_option change_options[] = {
    {"type", 't', "TYPE", CLI_F_TYPE, "all of this type; a name, or a beginning with *"},
    {"queue", 'q', "NAME", CLI_F_QUEUE, "all of this queue; a parent means its subs too"},
    {"before", 'b', "WHEN", CLI_F_BEFORE, "all that failed before: a time, or how long ago (7d)"},
    {"all", 0, NULL, OPT_ALL, "all failed jobs"},
    {NULL, 0, NULL, 0, NULL},
};

static int list(struct cli *c)
{
    struct cli_filter f;
    const char *arg;
    int opt;

    cli_filter_init(&f);
    while ((opt = cli_option(c, &arg)) > 0)
        if (!cli_filter_option(c, &f, opt, arg))
            return c->exit;
    if (opt == CLI_STOP || !cli_args(c, 0, 0))
        return c->exit;
    f.req.states = 1u << ST_SHOW_FAILED;
    return cli_jobs_list(c, &f);
}

static int show(struct cli *c)
{
    struct st_job_info info;
    const char *arg;
    int code;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 1, 1) || !cli_job_get(c, c->args[0], &info))
        return c->exit;
    if (info.state == ST_FAILED)
        code = cli_job_print(c, &info, st_store_now(c->store));
    else
        code = cli_error(c, STINT_ESTATE, "`stint job show` shows it", "job %s is %s, not failed", info.id,
                         st_shown_name(info.shown));
    st_job_info_clear(&info);
    return code;
}

static int change(struct cli *c, enum cli_change what)
{
    struct cli_filter f;
    bool all = false;
    const char *arg;
    int opt;

    cli_filter_init(&f);
    while ((opt = cli_option(c, &arg)) > 0) {
        if (opt == OPT_ALL)
            all = true;
        else if (!cli_filter_option(c, &f, opt, arg))
            return c->exit;
    }
    if (opt == CLI_STOP)
        return c->exit;
    if (c->n_args && (all || f.any))
        return cli_usage(c, "either name jobs, or choose them by options");
    if (c->n_args)
        return cli_jobs_change(c, what, c->args, c->n_args, true);
    if (!all && !f.any)
        return cli_usage(c, "which jobs?  name them, or choose by --type, --queue or --before, or say --all");
    return cli_dead_change(c, what, &f);
}

static int retry(struct cli *c)
{
    return change(c, CLI_CHANGE_RETRY);
}

static int discard(struct cli *c)
{
    return change(c, CLI_CHANGE_DISCARD);
}

static const struct cli_command dead_list = {
    .name = "list",
    .summary = "failed jobs, the newest first",
    .synopsis = "[options]",
    .about = "Lists jobs that have failed for good, the newest first.",
    .options = list_options,
    .examples = "stint dead list --type 'mail.*'",
    .run = list,
};

static const struct cli_command dead_show = {
    .name = "show",
    .summary = "everything about a failed job",
    .synopsis = "ID",
    .about = "Prints a failed job with its errors and every attempt.",
    .examples = "stint dead show order-42\nstint dead show order-42 --json | jq '.errors'",
    .exits = "1  the job has not failed\n3  there is no such job",
    .run = show,
};

static const struct cli_command dead_retry = {
    .name = "retry",
    .summary = "run failed jobs again",
    .synopsis = "ID...\n--type TYPE | --queue NAME | --before WHEN | --all",
    .about = "Makes failed jobs pending again, with all their attempts before them; their errors "
             "are kept.",
    .options = change_options,
    .examples = "stint dead retry order-42\nstint dead retry --type mail.send --before 1h\nstint "
                "dead retry --all",
    .exits = "1  a named job has not failed, or its unique key is held by another job\n"
             "3  there is no such job\n" CLI_EXIT_UNKNOWN,
    .run = retry,
};

static const struct cli_command dead_discard = {
    .name = "discard",
    .summary = "remove failed jobs for good",
    .synopsis = "ID...\n--type TYPE | --queue NAME | --before WHEN | --all",
    .about = "Removes failed jobs with their results and logs.  This cannot be undone.",
    .options = change_options,
    .examples = "stint dead discard order-42\nstint dead discard --before 30d",
    .exits = "1  a named job has not failed\n3  there is no such job\n" CLI_EXIT_UNKNOWN,
    .run = discard,
};

static const struct cli_command *const verbs[] = {&dead_list, &dead_show, &dead_retry, &dead_discard, NULL};

const struct cli_command cmd_dead = {
    .name = "dead",
    .summary = "the dead letter: failed jobs; run them again or remove them",
    .about = "Jobs that have failed for good stay here until their retention ends.",
    .examples = "stint dead list\nstint dead retry --type mail.send",
    .verbs = verbs,
};
