/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_explain.c - `stint explain ID`: why a job is not running.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/explain.h"
#include "cli/jobs.h"

static int print_json(struct cli *c, const struct st_job_info *j, const struct cli_reason *r, size_t n)
{
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "id");
    st_jw_cstr(&w, j->id);
    st_jw_key(&w, "state");
    st_jw_cstr(&w, st_shown_name(j->shown));
    st_jw_key(&w, "reasons");
    st_jw_open(&w, '[');
    for (size_t i = 0; i < n; i++) {
        st_jw_open(&w, '{');
        st_jw_key(&w, "code");
        st_jw_cstr(&w, r[i].code);
        st_jw_key(&w, "text");
        st_jw_cstr(&w, r[i].text);
        st_jw_key(&w, "remedy");
        st_jw_cstr(&w, r[i].remedy);
        st_jw_close(&w, '}');
    }
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

static int print_text(struct cli *c, const struct st_job_info *j, const struct cli_reason *r, size_t n)
{
    char safe[sizeof(r->text)];

    printf("job %s is %s%s%s\n", cli_safe(j->id, safe, sizeof(safe)), cli_paint(c, cli_state_color(j->shown)),
           st_shown_name(j->shown), cli_paint(c, CLI_PLAIN));
    for (size_t i = 0; i < n; i++) {
        printf("  - %s\n", cli_safe(r[i].text, safe, sizeof(safe)));
        if (r[i].remedy[0])
            printf("    %s\n", cli_safe(r[i].remedy, safe, sizeof(safe)));
    }
    return CLI_DONE;
}

/* Everything the reasons are made from; what it allocates is in *queues and *workers. */
static bool gather(struct cli *c, struct cli_facts *f, struct st_queue_info **queues, struct st_worker_info **workers)
{
    stint_error err;

    f->settings = cli_settings(c);
    if (!f->settings)
        return false;
    if (st_store_queues(c->store, 0, queues, &f->n_queues, &err) ||
        st_store_worker_list(c->store, workers, &f->n_workers, &err)) {
        cli_fail(c, &err);
        return false;
    }
    f->queues = *queues;
    f->workers = *workers;
    f->now_us = st_store_now(c->store);
    return true;
}

static int run(struct cli *c)
{
    struct cli_reason reasons[CLI_REASONS_MAX];
    struct st_queue_info *queues = NULL;
    struct st_worker_info *workers = NULL;
    struct st_job_info info;
    struct cli_facts f = {.job = &info};
    const char *arg;
    int code;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 1, 1) || !cli_job_get(c, c->args[0], &info))
        return c->exit;
    if (gather(c, &f, &queues, &workers)) {
        size_t n = cli_explain(&f, reasons);

        code = c->json ? print_json(c, &info, reasons, n) : print_text(c, &info, reasons, n);
    } else {
        code = c->exit;
    }
    free(queues);
    free(workers);
    st_job_info_clear(&info);
    return code;
}

const struct cli_command cmd_explain = {
    .name = "explain",
    .summary = "why a job is not running",
    .synopsis = "ID",
    .about = "Says what keeps a job from running: not due yet, its queue paused, no live worker "
             "for its queue or\n"
             "type, all of them busy, held by a worker, asked to stop, or ended.  All reasons are "
             "told, with what\n"
             "to do about them.",
    .examples = "stint explain order-42",
    .exits = "3  there is no such job",
    .run = run,
};
