/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_job.c - `stint job show|list|wait|cancel|retry`; logs are in job_logs.c.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/jobs.h"
#include "enqueue/await.h"

/* ---- show ----------------------------------------------------------------------------- */

static int show(struct cli *c)
{
    struct st_job_info info;
    const char *arg;
    int code;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 1, 1) || !cli_job_get(c, c->args[0], &info))
        return c->exit;
    code = cli_job_print(c, &info, st_store_now(c->store));
    st_job_info_clear(&info);
    return code;
}

static const struct cli_command job_show = {
    .name = "show",
    .summary = "everything about one job",
    .synopsis = "ID",
    .about = "Prints a job: its state, payload, result, errors, and every attempt to run it.",
    .examples = "stint job show 0190c5a4-7e6b-7cc3-98c1-9f1e2d3c4b5a\n"
                "stint job show order-42 --json | jq .result",
    .exits = "3  there is no such job",
    .run = show,
};

/* ---- list ----------------------------------------------------------------------------- */

static const struct cli_option list_options[] = {
    {"state", 's', "STATE", CLI_F_STATE, "scheduled, pending, running, failed, ...; several with commas"},
    {"queue", 'q', "NAME", CLI_F_QUEUE, "of this queue; a parent means its subs too"},
    {"type", 't', "TYPE", CLI_F_TYPE, "of this type; a name, or a beginning with *"},
    {"worker", 'w', "ID", CLI_F_WORKER, "held by this worker, or ended by it"},
    {"key", 'k', "KEY", CLI_F_KEY, "with this unique key"},
    {"spec-hash", 0, "HASH", CLI_F_SPEC, "with this spec hash: the same type, queue and payload"},
    {"limit", 'n', "N", CLI_F_LIMIT, "at most so many [50]"},
    {"after", 0, "CURSOR", CLI_F_AFTER, "go on behind this: the `next` of the page before"},
    {"payload", 0, NULL, CLI_F_PAYLOAD, "with payload, result, progress, meta (--json)"},
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
    return cli_jobs_list(c, &f);
}

static const struct cli_command job_list = {
    .name = "list",
    .summary = "jobs, the newest first",
    .synopsis = "[options]",
    .about = "Lists jobs, the newest first, a page at a time.  With --json "
             "{\"jobs\":[...],\"next\"}: hand `next` to\n"
             "--after for the page that follows; null is the end.",
    .options = list_options,
    .examples = "stint job list --state running,retrying\n"
                "stint job list --type 'mail.*' --queue bulk --limit 10",
    .run = list,
};

/* ---- wait ----------------------------------------------------------------------------- */

enum { OPT_TIMEOUT = 1, OPT_RESULT, OPT_REPLAY };

static const struct cli_option wait_options[] = {
    {"timeout", 0, "DURATION", OPT_TIMEOUT, "give up after so long [wait for ever]"},
    {"result", 0, NULL, OPT_RESULT, "print the result alone, byte for byte"},
    {NULL, 0, NULL, 0, NULL},
};

static int print_result(struct cli *c, const struct st_job_info *info)
{
    stint_error err;

    if (info->result_ref) {
        if (cli_copy_file(info->result_ref, &err))
            return cli_fail(c, &err);
    } else if (info->result.p) {
        fwrite(info->result.p, 1, info->result.len, stdout);
    } else {
        fputs("null", stdout);
    }
    if (isatty(STDOUT_FILENO))
        putchar('\n');
    return CLI_DONE;
}

static int wait_print(struct cli *c, const struct st_job_info *info, bool result)
{
    bool ok = info->state == ST_SUCCEEDED;
    int code;

    if (result && ok)
        return print_result(c, info);
    if (result && !c->json)
        return cli_error(c, STINT_ESTATE, info->error_message, "job %s is %s", info->id, st_shown_name(info->shown));
    code = cli_job_print(c, info, st_store_now(c->store));
    return code || ok ? code : CLI_FAILED;
}

/* In the place of a job that cannot be shown any more. */
static int wait_gone(struct cli *c)
{
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, 4096);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "id");
    st_jw_cstr(&w, c->args[0]);
    st_jw_key(&w, "state");
    st_jw_cstr(&w, ST_AWAIT_GONE);
    st_jw_close(&w, '}');
    if (!b.failed)
        printf("%s\n", b.p);
    st_buf_clear(&b);
    return CLI_NOTFOUND;
}

static int wait(struct cli *c)
{
    int64_t timeout_us = -1;
    bool result = false;
    struct st_job_info info;
    struct st_store *store;
    const char *arg;
    stint_error err;
    int opt, ms, code;

    while ((opt = cli_option(c, &arg)) > 0) {
        if (opt == OPT_RESULT)
            result = true;
        else if (!cli_duration(c, "--timeout", arg, &timeout_us))
            return c->exit;
    }
    if (opt == CLI_STOP || !cli_args(c, 1, 1))
        return c->exit;
    store = cli_store(c, 0);
    if (!store)
        return c->exit;
    ms = timeout_us < 0 ? -1 : timeout_us / ST_MS > INT_MAX ? INT_MAX : (int)(timeout_us / ST_MS);
    if (st_await(store, st_slice_cstr(c->args[0]), ms, &info, &err))
        return c->json && strcmp(err.detail, ST_AWAIT_GONE) == 0 ? wait_gone(c) : cli_fail(c, &err);
    code = wait_print(c, &info, result);
    st_job_info_clear(&info);
    return code;
}

static const struct cli_command job_wait = {
    .name = "wait",
    .summary = "until a job has ended",
    .synopsis = "ID [options]",
    .about = "Waits until the job has ended and prints it.  It is woken by the store, so waiting "
             "costs next to\n"
             "nothing.",
    .options = wait_options,
    .examples = "stint job wait order-42 --timeout 30s\n"
                "stint job wait \"$(stint enqueue report)\" --result >report.json",
    .exits = "1  the job failed or was cancelled\n3  there is no such job (any more)\n5  --timeout "
             "has passed",
    .run = wait,
};

/* ---- cancel and retry ------------------------------------------------------------------ */

static int cancel(struct cli *c)
{
    const char *arg;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 1, -1))
        return c->exit;
    return cli_jobs_change(c, CLI_CHANGE_CANCEL, c->args, c->n_args, false);
}

static const struct cli_command job_cancel = {
    .name = "cancel",
    .summary = "stop jobs, or see to it that they never start",
    .synopsis = "ID...",
    .about = "A waiting job is cancelled at once.  A running one is asked to stop: its worker ends "
             "the command and\n"
             "all its children, and then the job is cancelled.",
    .examples = "stint job cancel order-42\nstint job cancel order-42 && stint job wait order-42",
    .exits = "1  a job had already ended\n3  there is no such job\n" CLI_EXIT_UNKNOWN,
    .run = cancel,
};

static const struct cli_option retry_options[] = {
    {"replay", 0, NULL, OPT_REPLAY, "run a succeeded job once more: makes a new job with its payload"},
    {NULL, 0, NULL, 0, NULL},
};

static int retry(struct cli *c)
{
    enum cli_change what = CLI_CHANGE_RETRY;
    const char *arg;
    int opt;

    while ((opt = cli_option(c, &arg)) > 0)
        what = CLI_CHANGE_REPLAY;
    if (opt == CLI_STOP || !cli_args(c, 1, -1))
        return c->exit;
    return cli_jobs_change(c, what, c->args, c->n_args, false);
}

static const struct cli_command job_retry = {
    .name = "retry",
    .summary = "run failed or cancelled jobs again",
    .synopsis = "ID... [--replay]",
    .about = "A failed or cancelled job becomes pending now, with all its attempts before it and "
             "its errors kept.\n"
             "A succeeded job is not run again; --replay makes a new one with the same type, queue "
             "and payload.",
    .options = retry_options,
    .examples = "stint job retry order-42\nstint job retry order-41 --replay",
    .exits = "1  a job is neither failed nor cancelled, or its unique key is held by another job\n"
             "3  there is no such job\n" CLI_EXIT_UNKNOWN,
    .run = retry,
};

static const struct cli_command *const verbs[] = {&job_show,  &job_list,     &job_wait, &job_cancel,
                                                  &job_retry, &cmd_job_logs, NULL};

const struct cli_command cmd_job = {
    .name = "job",
    .summary = "look at jobs, wait for them, stop them, run them again",
    .about = "Looks at single jobs and steers them.",
    .examples = "stint job list --state failed\nstint job show order-42\nstint job wait order-42 "
                "--timeout 1m",
    .verbs = verbs,
};
