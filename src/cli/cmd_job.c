/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_job.c - `stint job show|list|wait|cancel|retry|logs`.
 */
#include <errno.h>
#include <fcntl.h>
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
    {"state", 's', "STATE", CLI_F_STATE,
     "scheduled, pending, running, failed, ...; several with commas"},
    {"queue", 'q', "NAME", CLI_F_QUEUE, "of this queue; a parent means its subs too"},
    {"type", 't', "TYPE", CLI_F_TYPE, "of this type; a name, or a beginning with *"},
    {"worker", 'w', "ID", CLI_F_WORKER, "held by this worker, or ended by it"},
    {"key", 'k', "KEY", CLI_F_KEY, "with this unique key"},
    {"spec-hash", 0, "HASH", CLI_F_SPEC, "with this spec hash: the same type, queue and payload"},
    {"limit", 'n', "N", CLI_F_LIMIT, "at most so many [50]"},
    {"after", 0, "CURSOR", CLI_F_AFTER, "go on behind this: the `next` of the page before"},
    {"payload", 0, NULL, CLI_F_PAYLOAD, "with payload and result (--json)"},
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

enum { OPT_TIMEOUT = 1, OPT_RESULT, OPT_ATTEMPT, OPT_REPLAY };

static const struct cli_option wait_options[] = {
    {"timeout", 0, "DURATION", OPT_TIMEOUT, "give up after so long [wait for ever]"},
    {"result", 0, NULL, OPT_RESULT, "print the result alone, byte for byte"},
    {NULL, 0, NULL, 0, NULL},
};

/* Copies a file to stdout; STINT_ENOTFOUND when it is not there. */
static stint_code copy_file(const char *path, stint_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char chunk[65536];
    ssize_t n = 0;

    if (fd < 0) {
        st_fail(err, errno == ENOENT ? STINT_ENOTFOUND : STINT_ESTATE, "cannot open %s: %s", path,
                strerror(errno));
        st_err_remedy(
            err, "the file was removed, or lies on the worker's machine, or is another user's");
        return err->code;
    }
    while ((n = read(fd, chunk, sizeof(chunk))) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && fwrite(chunk, 1, (size_t)n, stdout) != (size_t)n)
            break;
    close(fd);
    return n < 0 ? st_fail(err, STINT_ESTATE, "cannot read %s: %s", path, strerror(errno))
                 : STINT_OK;
}

static int print_result(struct cli *c, const struct st_job_info *info)
{
    stint_error err;

    if (info->result_ref) {
        if (copy_file(info->result_ref, &err))
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
        return cli_error(c, STINT_ESTATE, info->error_message, "job %s is %s", info->id,
                         st_shown_name(info->shown));
    code = cli_job_print(c, info, st_store_now(c->store));
    return code || ok ? code : CLI_FAILED;
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
        return cli_fail(c, &err);
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
    .exits = "1  a job had already ended\n3  there is no such job",
    .run = cancel,
};

static const struct cli_option retry_options[] = {
    {"replay", 0, NULL, OPT_REPLAY,
     "run a succeeded job once more: makes a new job with its payload"},
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
             "3  there is no such job",
    .run = retry,
};

/* ---- logs ----------------------------------------------------------------------------- */

static const struct cli_option logs_options[] = {
    {"attempt", 'a', "N", OPT_ATTEMPT, "which run, 1 = the first [the last]"},
    {NULL, 0, NULL, 0, NULL},
};

/* The attempt asked for, the last of that number; 0 = the last of all. */
static const struct st_attempt_info *pick_attempt(struct cli *c, const struct st_job_info *info,
                                                  int64_t n)
{
    for (size_t i = info->n_attempts; i > 0; i--)
        if (!n || info->attempts[i - 1].n == n)
            return &info->attempts[i - 1];
    if (n)
        cli_error(c, STINT_ENOTFOUND, "`stint job show` lists the attempts",
                  "job %s has no attempt %lld", info->id, (long long)n);
    else
        cli_error(c, STINT_ESTATE, "`stint explain` says what keeps it from running",
                  "job %s has not run yet, so there is no log", info->id);
    return NULL;
}

#define LOG_JSON_MAX ((size_t)16 << 20)

/* Has the end of stderr that is kept lost its beginning?  Then its first line says so. */
static bool tail_is_cut(const struct st_attempt_info *a)
{
    static const char mark[] = "[cut here: only the end of ";

    return a->log_tail_len >= sizeof(mark) && memcmp(a->log_tail, mark, sizeof(mark) - 1) == 0;
}

static int logs_json(struct cli *c, const struct st_job_info *info, const struct st_attempt_info *a)
{
    struct st_slice text = {a->log_tail, a->log_tail_len};
    char *file = NULL;
    struct st_buf b;
    struct st_jw w;
    size_t len;

    if (a->log && cli_read_all(a->log, LOG_JSON_MAX, &file, &len, NULL) == STINT_OK)
        text = ST_SLICE(file, len);
    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "id");
    st_jw_cstr(&w, info->id);
    st_jw_key(&w, "attempt");
    st_jw_int(&w, a->n);
    st_jw_key(&w, "log");
    st_jw_cstr(&w, a->log);
    st_jw_key(&w, "cut");
    st_jw_bool(&w, !file && tail_is_cut(a));
    st_jw_key(&w, !text.p || st_utf8_valid(text.p, text.len) ? "text" : "text_base64");
    if (!text.p || st_utf8_valid(text.p, text.len)) {
        st_jw_str(&w, text);
    } else {
        struct st_buf b64;

        st_buf_init(&b64, CLI_JSON_MAX);
        st_buf_base64(&b64, text);
        st_jw_cstr(&w, b64.p);
        st_buf_clear(&b64);
    }
    st_jw_close(&w, '}');
    free(file);
    return cli_print_json(c, &b);
}

static int logs_text(struct cli *c, const struct st_attempt_info *a)
{
    stint_error err;

    if (a->log && copy_file(a->log, &err) == STINT_OK)
        return CLI_DONE;
    if (a->log)
        cli_warn(c, "%s; here is the end of stderr that the store keeps", err.message);
    if (tail_is_cut(a))
        fprintf(stderr,
                "stint: the beginning is missing: without a log file only the last 16 KiB of "
                "stderr are kept\n"
                "  set `logs_dir` under `worker:` in stint.yaml to keep whole logs\n");
    if (a->log_tail_len)
        fwrite(a->log_tail, 1, a->log_tail_len, stdout);
    else
        fprintf(stderr, "attempt %d %s\n", a->n,
                a->outcome ? "wrote nothing to stderr" : "is still going on");
    return CLI_DONE;
}

static int logs(struct cli *c)
{
    const struct st_attempt_info *a;
    struct st_job_info info;
    const char *arg;
    int64_t n = 0;
    int opt, code;

    while ((opt = cli_option(c, &arg)) > 0)
        if (!cli_int(c, "--attempt", arg, 1, INT_MAX, &n))
            return c->exit;
    if (opt == CLI_STOP || !cli_args(c, 1, 1) || !cli_job_get(c, c->args[0], &info))
        return c->exit;
    a = pick_attempt(c, &info, n);
    if (!a)
        code = c->exit;
    else
        code = c->json ? logs_json(c, &info, a) : logs_text(c, a);
    st_job_info_clear(&info);
    return code;
}

static const struct cli_command job_logs = {
    .name = "logs",
    .summary = "what a job's command wrote",
    .synopsis = "ID [--attempt N]",
    .about = "Prints the log file of an attempt if the worker has a `logs_dir`, else the last 16 "
             "KiB of stderr,\n"
             "which are kept with the attempt.",
    .options = logs_options,
    .examples = "stint job logs order-42\nstint job logs order-42 --attempt 1",
    .exits = "1  it has not run yet\n3  there is no such job or attempt",
    .run = logs,
};

static const struct cli_command *const verbs[] = {&job_show,  &job_list, &job_wait, &job_cancel,
                                                  &job_retry, &job_logs, NULL};

const struct cli_command cmd_job = {
    .name = "job",
    .summary = "look at jobs, wait for them, stop them, run them again",
    .about = "Looks at single jobs and steers them.",
    .examples = "stint job list --state failed\nstint job show order-42\nstint job wait order-42 "
                "--timeout 1m",
    .verbs = verbs,
};
