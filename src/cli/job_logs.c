/* SPDX-License-Identifier: Apache-2.0
 *
 * job_logs.c - `stint job logs`.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jobs.h"
#include "execute/runlog.h"

enum { OPT_ATTEMPT = 1, OPT_FOLLOW };

static const struct cli_option logs_options[] = {
    {"attempt", 'a', "N", OPT_ATTEMPT, "which run, 1 = the first [the last]"},
    {"follow", 'f', NULL, OPT_FOLLOW, "go on until the job has ended, as it is written"},
    {NULL, 0, NULL, 0, NULL},
};

/* The attempt asked for, the last of that number; 0 = the last of all. */
static const struct st_attempt_info *pick_attempt(struct cli *c, const struct st_job_info *info, int64_t n)
{
    for (size_t i = info->n_attempts; i > 0; i--)
        if (!n || info->attempts[i - 1].n == n)
            return &info->attempts[i - 1];
    if (n)
        cli_error(c, STINT_ENOTFOUND, "`stint job show` lists the attempts", "job %s has no attempt %lld", info->id,
                  (long long)n);
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

char *cli_log_path(struct cli *c, const struct st_job_info *info, const struct st_attempt_info *a)
{
    const struct st_settings *s;

    if (a->log)
        return strdup(a->log);
    s = a->outcome ? NULL : cli_settings(c);
    return s && s->logs_dir ? st_runlog_path(s->logs_dir, info->id, a->n, a->fence) : NULL;
}

static int logs_json(struct cli *c, const struct st_job_info *info, const struct st_attempt_info *a)
{
    struct st_slice text = {a->log_tail, a->log_tail_len};
    char *file = NULL, *path = cli_log_path(c, info, a);
    struct st_buf b;
    struct st_jw w;
    size_t len;

    if (path && cli_read_all(path, LOG_JSON_MAX, &file, &len, NULL) == STINT_OK)
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
    free(path);
    return cli_print_json(c, &b);
}

int cli_log_print(struct cli *c, const struct st_job_info *info, const struct st_attempt_info *a)
{
    char *path = cli_log_path(c, info, a);
    stint_error err;
    bool done = path && cli_copy_file(path, &err) == STINT_OK;

    free(path);
    if (done)
        return CLI_DONE;
    if (a->log)
        cli_warn(c, "%s; here is the end of stderr that the store keeps", err.message);
    if (tail_is_cut(a))
        fprintf(stderr, "stint: the beginning is missing: without a log file only the last 16 KiB of "
                        "stderr are kept\n"
                        "  set `logs_dir` under `worker:` in stint.yaml to keep whole logs\n");
    if (a->log_tail_len)
        fwrite(a->log_tail, 1, a->log_tail_len, stdout);
    else
        fprintf(stderr, "attempt %d %s\n", a->n, a->outcome ? "wrote nothing to stderr" : "is still going on");
    return CLI_DONE;
}

static int logs(struct cli *c)
{
    const struct st_attempt_info *a;
    struct st_job_info info;
    const char *arg;
    bool follow = false;
    int64_t n = 0;
    int opt, code;

    while ((opt = cli_option(c, &arg)) > 0)
        if (opt == OPT_FOLLOW)
            follow = true;
        else if (!cli_int(c, "--attempt", arg, 1, INT_MAX, &n))
            return c->exit;
    if (opt == CLI_STOP || !cli_args(c, 1, 1))
        return c->exit;
    if (follow && c->json)
        return cli_usage(c, "--follow prints text as it comes; --json wants all of it");
    if (follow)
        return cli_job_follow(c, c->args[0], n);
    if (!cli_job_get(c, c->args[0], &info))
        return c->exit;
    a = pick_attempt(c, &info, n);
    if (!a)
        code = c->exit;
    else
        code = c->json ? logs_json(c, &info, a) : cli_log_print(c, &info, a);
    st_job_info_clear(&info);
    return code;
}

const struct cli_command cmd_job_logs = {
    .name = "logs",
    .summary = "what a job's command wrote",
    .synopsis = "ID [--attempt N] [--follow]",
    .about = "Prints the log file of an attempt if the worker has a `logs_dir`, else the last 16 "
             "KiB of stderr,\n"
             "which are kept with the attempt.  With --follow it waits for the job, prints what is "
             "written as it\n"
             "comes, of the attempts after it too, and ends with the job; without a log file that "
             "it can read,\n"
             "whenever an attempt has ended.",
    .options = logs_options,
    .examples = "stint job logs order-42\nstint job logs order-42 --attempt 1\n"
                "stint job logs order-42 --follow",
    .exits = "1  it has not run yet\n3  there is no such job or attempt",
    .run = logs,
};
