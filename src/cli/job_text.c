/* SPDX-License-Identifier: Apache-2.0
 *
 * job_text.c - jobs as people read them, and as programs do.
 *
 * Whatever comes from outside (payloads, results, messages) is printed without control characters,
 * so that a job cannot write to the terminal of whoever looks at it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jobs.h"
#include "job/show.h"

#define SHOWN_MAX 2000 /* bytes of a payload or result */

/* Bytes of a user's for people: one line, cut to max bytes, fit for a terminal.  For free(). */
static char *bytes_text(struct st_slice bytes, size_t max)
{
    size_t n = bytes.len > max ? max : bytes.len;
    char *out;

    if (!bytes.p)
        return strdup("-");
    if (!st_utf8_valid(bytes.p, bytes.len)) {
        if (asprintf(&out, "(%zu bytes that are not text)", bytes.len) < 0)
            return NULL;
        return out;
    }
    n = st_utf8_cut(bytes.p, bytes.len, n);
    out = malloc(n + 64);
    if (!out)
        return NULL;
    for (size_t i = 0; i < n; i++) /* a NUL would end it */
        out[i] = bytes.p[i] ? bytes.p[i] : '?';
    out[n] = '\0';
    cli_clean(out);
    if (n < bytes.len)
        snprintf(out + n, 64, "... (%zu bytes in all)", bytes.len);
    return out;
}

/* ---- one job -------------------------------------------------------------------------- */

static void line(const char *label, const char *value)
{
    printf("  %-12s %s\n", label, value);
}

static void line_text(const char *label, const char *value)
{
    char safe[1024];

    if (value && *value)
        line(label, cli_safe(value, safe, sizeof(safe)));
}

static void line_time(const char *label, int64_t now_us, int64_t us)
{
    char text[CLI_TEXT];

    if (us)
        line(label, cli_when(now_us, us, text));
}

static void line_bytes(const char *label, struct st_slice bytes)
{
    char *text;

    if (!bytes.p)
        return;
    text = bytes_text(bytes, SHOWN_MAX);
    line(label, text ? text : "(no memory)");
    free(text);
}

static void line_attempts(const struct st_job_info *info)
{
    if (info->max_attempts)
        printf("  %-12s %d of %d\n", "attempt", info->attempt, info->max_attempts);
    else
        printf("  %-12s %d, without a limit\n", "attempt", info->attempt);
}

static void line_state(struct cli *c, const struct st_job_info *info)
{
    printf("  %-12s %s%s%s%s\n", "state", cli_paint(c, cli_state_color(info->shown)), st_shown_name(info->shown),
           cli_paint(c, CLI_PLAIN), info->cancel_requested && !st_state_ended(info->state) ? ", asked to stop" : "");
}

static void line_error(const struct st_job_info *info)
{
    char *text;

    if (!st_job_has_error(info))
        return;
    text = bytes_text(st_slice_cstr(info->error_message ? info->error_message : ""), SHOWN_MAX);
    printf("  %-12s %s: %s\n", "error", st_kind_name(info->error_kind), text ? text : "");
    free(text);
}

static void line_times(const struct st_job_info *info, int64_t now_us)
{
    char text[CLI_TEXT];

    line_time("created", now_us, info->created_us);
    line_time(st_state_ended(info->state) || (info->started_us && info->due_us <= now_us) ? "was due" : "due", now_us,
              info->due_us);
    line_time("started", now_us, info->started_us);
    line_time("finished", now_us, info->finished_us);
    if (info->timeout_us)
        line("timeout", cli_human(info->timeout_us, text));
    line_time("deadline", now_us, info->deadline_us);
    line_text("worker", info->worker);
    if (st_state_held(info->state))
        line_time("lease until", now_us, info->lease_until_us);
}

static void attempt_row(struct cli_table *t, const struct st_attempt_info *a, int64_t now_us)
{
    char text[CLI_TEXT];
    char *message;

    cli_table_cell(t, "  %d", a->n);
    cli_table_cell(t, "%s", a->outcome ? a->outcome : "going on");
    cli_table_cell(t, "%s", cli_clock(now_us, a->started_us, text));
    if (a->started_us)
        cli_table_cell(t, "%s", cli_human((a->ended_us ? a->ended_us : now_us) - a->started_us, text));
    else
        cli_table_cell(t, "-");
    if (a->signal)
        cli_table_cell(t, "signal %d", a->signal);
    else if (a->exit_code >= 0)
        cli_table_cell(t, "exit %d", a->exit_code);
    else
        cli_table_cell(t, "-");
    cli_table_cell(t, "%s", a->worker ? a->worker : "-");
    message = a->message ? bytes_text(st_slice_cstr(a->message), 60) : NULL;
    cli_table_cell(t, "%s%s%s", st_kind_name(a->kind), message ? ": " : "", message ? message : "");
    free(message);
}

static int print_attempts(struct cli *c, const struct st_job_info *info, int64_t now_us)
{
    static const char *const heads[] = {"  RUN", "OUTCOME", "STARTED", "TOOK", "END", "WORKER", "ERROR", NULL};
    struct cli_table t;

    if (!info->n_attempts)
        return CLI_DONE;
    putchar('\n');
    cli_table_init(&t, heads);
    for (size_t i = 0; i < info->n_attempts; i++)
        attempt_row(&t, &info->attempts[i], now_us);
    return cli_table_print(c, &t);
}

static int print_text(struct cli *c, const struct st_job_info *info, int64_t now_us)
{
    char safe[ST_ID_MAX + 1];

    printf("%sjob %s%s\n", cli_paint(c, CLI_BOLD), cli_safe(info->id, safe, sizeof(safe)), cli_paint(c, CLI_PLAIN));
    line_text("type", info->type);
    line_text("queue", info->queue);
    line_state(c, info);
    if (info->priority)
        printf("  %-12s %d\n", "priority", info->priority);
    line_attempts(info);
    line_times(info, now_us);
    line_text("key", info->key);
    line_bytes("payload", info->payload);
    line_bytes("result", info->result);
    line_text("result file", info->result_ref);
    line_bytes("progress", info->progress);
    line_bytes("meta", info->meta);
    line_error(info);
    return print_attempts(c, info, now_us);
}

int cli_job_print(struct cli *c, const struct st_job_info *info, int64_t now_us)
{
    struct st_buf b;
    struct st_jw w;

    if (!c->json)
        return print_text(c, info, now_us);
    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_job_show_json(&w, info, true);
    return cli_print_json(c, &b);
}

bool cli_job_get(struct cli *c, const char *id, struct st_job_info *info)
{
    struct st_store *store = cli_store(c, 0);
    stint_error err;

    if (!store)
        return false;
    if (st_store_get(store, 0, st_slice_cstr(id), info, &err) == STINT_OK)
        return true;
    cli_fail(c, &err);
    return false;
}

/* ---- many jobs ------------------------------------------------------------------------ */

static void note_cell(struct cli_table *t, const struct st_job_info *j, int64_t now_us)
{
    char text[CLI_TEXT];
    char *message = NULL;

    switch (j->shown) {
    case ST_SHOW_SCHEDULED:
    case ST_SHOW_RETRYING:
        cli_table_cell(t, "due %s", cli_age(now_us, j->due_us, text));
        return;
    case ST_SHOW_CLAIMED:
    case ST_SHOW_RUNNING:
        cli_table_cell(t, "on %s", j->worker ? j->worker : "?");
        return;
    case ST_SHOW_SUCCEEDED:
        if (j->run_started_us && j->finished_us)
            cli_table_cell(t, "took %s", cli_human(j->finished_us - j->run_started_us, text));
        else
            cli_table_cell(t, "-");
        return;
    case ST_SHOW_FAILED:
        if (j->error_message)
            message = bytes_text(st_slice_cstr(j->error_message), 60);
        cli_table_cell(t, "%s%s%s", st_kind_name(j->error_kind), message ? ": " : "", message ? message : "");
        free(message);
        return;
    default:
        cli_table_cell(t, "-");
    }
}

static int print_table(struct cli *c, const struct st_job_info *list, size_t n, int64_t now_us)
{
    static const char *const heads[] = {"ID", "TYPE", "QUEUE", "STATE", ">RUNS", "CREATED", "NOTE", NULL};
    struct cli_table t;
    char text[CLI_TEXT];

    cli_table_init(&t, heads);
    for (size_t i = 0; i < n; i++) {
        const struct st_job_info *j = &list[i];

        cli_table_cell(&t, "%s", j->id);
        cli_table_cell(&t, "%s", j->type);
        cli_table_cell(&t, "%s", j->queue);
        cli_table_cell(&t, "%s", st_shown_name(j->shown));
        cli_table_color(&t, cli_state_color(j->shown));
        cli_table_cell(&t, "%d", j->attempt);
        cli_table_cell(&t, "%s", j->created_us ? cli_age(now_us, j->created_us, text) : "-");
        note_cell(&t, j, now_us);
    }
    return cli_table_print(c, &t);
}

static int print_json(struct cli *c, const struct st_job_info *list, size_t n, uint64_t next)
{
    char cursor[24];
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "jobs");
    st_jw_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        st_job_show_json(&w, &list[i], false);
    st_jw_close(&w, ']');
    snprintf(cursor, sizeof(cursor), "%llu", (unsigned long long)next);
    st_jw_key(&w, "next");
    st_jw_cstr(&w, next ? cursor : NULL);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

int cli_jobs_print(struct cli *c, struct st_job_info *list, size_t n, uint64_t next, int64_t now_us)
{
    int code;

    if (c->json)
        code = print_json(c, list, n, next);
    else if (n == 0)
        code = CLI_DONE;
    else
        code = print_table(c, list, n, now_us);
    if (!c->json && n == 0)
        fprintf(stderr, "no jobs\n");
    if (!c->json && next)
        fprintf(stderr, "more: --after %llu\n", (unsigned long long)next);
    st_job_info_list_free(list, n);
    return code;
}
