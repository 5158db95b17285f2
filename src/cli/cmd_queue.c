/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_queue.c - `stint queue list|pause|resume`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* The paused queue that keeps this one paused whatever is said of itself; NULL = none. */
static const char *paused_parent(const struct st_queue_info *q, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (q[i].paused && strcmp(q[i].name, name) != 0 &&
            st_queue_covers(st_slice_cstr(q[i].name), st_slice_cstr(name)))
            return q[i].name;
    return NULL;
}

/* ---- list ----------------------------------------------------------------------------- */

static int list_json(struct cli *c, const struct st_queue_info *q, size_t n, int64_t now_us)
{
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "queues");
    st_jw_open(&w, '[');
    for (size_t i = 0; i < n; i++) {
        st_jw_open(&w, '{');
        st_jw_key(&w, "name");
        st_jw_cstr(&w, q[i].name);
        st_jw_key(&w, "paused");
        st_jw_bool(&w, q[i].paused);
        st_jw_key(&w, "paused_by_parent");
        st_jw_cstr(&w, paused_parent(q, n, q[i].name));
        st_jw_key(&w, "counts");
        st_jw_open(&w, '{');
        for (int s = 0; s < ST_SHOWN_N; s++) {
            st_jw_key(&w, st_shown_name((enum st_shown)s));
            st_jw_int(&w, q[i].counts[s]);
        }
        st_jw_close(&w, '}');
        st_jw_key(&w, "oldest_due_seconds");
        if (q[i].oldest_due_us)
            st_jw_num(&w, (double)(now_us > q[i].oldest_due_us ? now_us - q[i].oldest_due_us : 0) / 1e6, 3);
        else
            st_jw_null(&w);
        st_jw_close(&w, '}');
    }
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

static void paused_cell(struct cli_table *t, const struct st_queue_info *q, const char *parent)
{
    if (q->paused)
        cli_table_cell(t, "paused");
    else if (parent)
        cli_table_cell(t, "paused (by %s)", parent);
    else
        cli_table_cell(t, "%s", "");
    cli_table_color(t, CLI_YELLOW);
}

static void count_cell(struct cli_table *t, int64_t n, enum cli_color color)
{
    if (n == 0) {
        cli_table_cell(t, "-");
        return;
    }
    cli_table_cell(t, "%lld", (long long)n);
    cli_table_color(t, color);
}

static int list_text(struct cli *c, const struct st_queue_info *q, size_t n, int64_t now_us)
{
    static const char *const heads[] = {"QUEUE",   ">PENDING",   ">SCHEDULED",    ">RETRYING", ">RUNNING", ">SUCCEEDED",
                                        ">FAILED", ">CANCELLED", "WAITING SINCE", "",          NULL};
    struct cli_table t;
    char text[CLI_TEXT];

    if (n == 0) {
        fprintf(stderr, "no queues\n");
        return CLI_DONE;
    }
    cli_table_init(&t, heads);
    for (size_t i = 0; i < n; i++) {
        const int64_t *k = q[i].counts;

        cli_table_cell(&t, "%s", q[i].name);
        count_cell(&t, k[ST_SHOW_PENDING] + k[ST_SHOW_BLOCKED], CLI_PLAIN);
        count_cell(&t, k[ST_SHOW_SCHEDULED], CLI_PLAIN);
        count_cell(&t, k[ST_SHOW_RETRYING], CLI_YELLOW);
        count_cell(&t, k[ST_SHOW_RUNNING] + k[ST_SHOW_CLAIMED], CLI_BLUE);
        count_cell(&t, k[ST_SHOW_SUCCEEDED], CLI_GREEN);
        count_cell(&t, k[ST_SHOW_FAILED], CLI_RED);
        count_cell(&t, k[ST_SHOW_CANCELLED], CLI_DIM);
        cli_table_cell(&t, "%s", q[i].oldest_due_us ? cli_age(now_us, q[i].oldest_due_us, text) : "-");
        paused_cell(&t, &q[i], paused_parent(q, n, q[i].name));
    }
    return cli_table_print(c, &t);
}

static int list(struct cli *c)
{
    struct st_queue_info *q = NULL;
    struct st_store *store;
    const char *arg;
    stint_error err;
    size_t n = 0;
    int code;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 0, 0))
        return c->exit;
    store = cli_store(c, 0);
    if (!store)
        return c->exit;
    if (st_store_queues(store, 0, &q, &n, &err))
        return cli_fail(c, &err);
    code = c->json ? list_json(c, q, n, st_store_now(store)) : list_text(c, q, n, st_store_now(store));
    free(q);
    return code;
}

static const struct cli_command queue_list = {
    .name = "list",
    .summary = "every queue with its counts",
    .synopsis = "",
    .about = "Lists every queue that has or had jobs, or is paused, with how many jobs are in "
             "which state and how\n"
             "long the one that is due has been waiting.  Counts cover what is retained.",
    .examples = "stint queue list\nstint queue list --json | jq '.queues[] | select(.paused)'",
    .run = list,
};

/* ---- pause and resume ------------------------------------------------------------------- */

/* Is there such a queue, or a sub of it? */
static bool known(struct cli *c, struct st_store *store, struct st_slice name, bool *yes)
{
    struct st_queue_info *q = NULL;
    stint_error err;
    size_t n = 0;

    *yes = false;
    if (st_store_queues(store, 0, &q, &n, &err)) {
        cli_fail(c, &err);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        *yes |= st_queue_covers(name, st_slice_cstr(q[i].name));
    free(q);
    return true;
}

static bool set_paused(struct cli *c, struct st_store *store, const char *name, bool paused)
{
    struct st_slice slice = st_slice_cstr(name);
    stint_error err;
    bool there = true;

    if (!paused && !known(c, store, slice, &there))
        return false;
    if (!there) {
        cli_error(c, STINT_ENOTFOUND, "`stint queue list` shows those there are", "there is no queue %s", name);
        return false;
    }
    if (st_store_pause(store, 0, slice, paused, &err) == STINT_OK)
        return true;
    cli_fail(c, &err);
    return false;
}

static void report_text(const char *name, bool paused, const char *parent)
{
    printf("%s %s", name, paused ? "paused" : "resumed");
    if (!paused && parent)
        printf(", but its parent %s is paused", parent);
    putchar('\n');
}

static void report_json(struct st_jw *w, const char *name, bool paused, const char *parent)
{
    st_jw_open(w, '{');
    st_jw_key(w, "name");
    st_jw_cstr(w, name);
    st_jw_key(w, "paused");
    st_jw_bool(w, paused);
    st_jw_key(w, "paused_by_parent");
    st_jw_cstr(w, parent);
    st_jw_close(w, '}');
}

static int report(struct cli *c, struct st_store *store, bool paused)
{
    struct st_queue_info *q = NULL;
    stint_error err;
    struct st_buf b;
    struct st_jw w;
    size_t n = 0;

    if (st_store_queues(store, 0, &q, &n, &err))
        return cli_fail(c, &err);
    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "queues");
    st_jw_open(&w, '[');
    for (int i = 0; i < c->n_args; i++) {
        const char *parent = paused_parent(q, n, c->args[i]);

        if (c->json)
            report_json(&w, c->args[i], paused, parent);
        else
            report_text(c->args[i], paused, parent);
    }
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    free(q);
    if (c->json)
        return cli_print_json(c, &b);
    st_buf_clear(&b);
    return CLI_DONE;
}

static int change(struct cli *c, bool paused)
{
    struct st_store *store;
    const char *arg;
    stint_error err;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 1, -1))
        return c->exit;
    for (int i = 0; i < c->n_args; i++)
        if (st_queue_check(st_slice_cstr(c->args[i]), &err))
            return cli_fail(c, &err);
    store = cli_store(c, paused ? CLI_CREATE : 0);
    if (!store)
        return c->exit;
    for (int i = 0; i < c->n_args; i++)
        if (!set_paused(c, store, c->args[i], paused))
            return c->exit;
    return report(c, store, paused);
}

static int pause_run(struct cli *c)
{
    return change(c, true);
}

static int resume_run(struct cli *c)
{
    return change(c, false);
}

static const struct cli_command queue_pause = {
    .name = "pause",
    .summary = "give out no more jobs of a queue",
    .synopsis = "NAME...",
    .about = "Workers take no more jobs of the queue until it is resumed.  Jobs that run go on, and "
             "jobs may still be\n"
             "added.  Pausing a parent pauses its subs too; a queue that has no jobs yet may be paused.",
    .examples = "stint queue pause mail",
    .exits = CLI_EXIT_UNKNOWN,
    .run = pause_run,
};

static const struct cli_command queue_resume = {
    .name = "resume",
    .summary = "give out its jobs again",
    .synopsis = "NAME...",
    .about = "Ends a pause.  A sub whose parent is paused stays so until the parent is resumed; "
             "that is said.",
    .examples = "stint queue resume mail",
    .exits = "3  there is no such queue\n" CLI_EXIT_UNKNOWN,
    .run = resume_run,
};

static const struct cli_command *const verbs[] = {&queue_list, &queue_pause, &queue_resume, NULL};

const struct cli_command cmd_queue = {
    .name = "queue",
    .summary = "queues: their counts; pause and resume them",
    .about = "Looks at queues and steers them.",
    .examples = "stint queue list\nstint queue pause mail",
    .verbs = verbs,
};
