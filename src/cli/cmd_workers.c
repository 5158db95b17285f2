/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_workers.c - `stint workers`: who is there.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/explain.h"

/* What the worker wrote, or [] where it is no JSON. */
static void put_list(struct st_jw *w, const char *key, const char *json)
{
    struct st_slice text = st_slice_cstr(json);

    st_jw_key(w, key);
    if (text.len && st_json_ok(text)) {
        st_jw_raw(w, text);
        return;
    }
    st_jw_open(w, '[');
    st_jw_close(w, ']');
}

static void put_worker(struct st_jw *w, const struct st_worker_info *i, int64_t now_us)
{
    st_jw_open(w, '{');
    st_jw_key(w, "id");
    st_jw_cstr(w, i->id);
    st_jw_key(w, "name");
    st_jw_cstr(w, i->name[0] ? i->name : NULL);
    st_jw_key(w, "host");
    st_jw_cstr(w, i->host);
    st_jw_key(w, "pid");
    st_jw_int(w, i->pid);
    st_jw_key(w, "slots");
    st_jw_int(w, i->slots);
    st_jw_key(w, "running");
    st_jw_int(w, i->running);
    put_list(w, "queues", i->queues);
    put_list(w, "types", i->types);
    st_jw_key(w, "healthy");
    st_jw_bool(w, i->healthy && cli_worker_live(i, now_us));
    st_jw_key(w, "quiet");
    st_jw_bool(w, i->quiet);
    st_jw_key(w, "note");
    st_jw_cstr(w, i->note[0] ? i->note : NULL);
    st_jw_key(w, "leader");
    st_jw_bool(w, i->leader);
    st_jw_key(w, "epoch");
    st_jw_int(w, i->epoch);
    st_jw_key(w, "last_beat");
    st_jw_time(w, i->last_beat_us);
    st_jw_close(w, '}');
}

static int print_json(struct cli *c, const struct st_worker_info *list, size_t n, int64_t now_us)
{
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "workers");
    st_jw_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        put_worker(&w, &list[i], now_us);
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

/* ["a","b"] as a,b; nothing as "all". */
static void list_cell(struct cli_table *t, const char *json)
{
    struct st_slice text = st_slice_cstr(json), key, value;
    struct st_buf b;
    size_t pos = 0;

    st_buf_init(&b, 4096);
    if (text.len && st_json_ok(text)) {
        text = st_json_trim(text);
        while (st_json_next(text, &pos, &key, &value)) {
            if (b.len)
                st_buf_putc(&b, ',');
            st_json_string(value, &b);
        }
    }
    cli_table_cell(t, "%s", b.len ? b.p : "all");
    st_buf_clear(&b);
}

static void state_cell(struct cli_table *t, const struct st_worker_info *i, int64_t now_us)
{
    bool fine = cli_worker_live(i, now_us) && i->healthy && !i->quiet;

    if (!cli_worker_live(i, now_us))
        cli_table_cell(t, "silent");
    else if (!i->healthy)
        cli_table_cell(t, "unhealthy%s%s", i->note[0] ? ": " : "", i->note);
    else if (i->quiet)
        cli_table_cell(t, "quiet%s%s", i->note[0] ? ": " : "", i->note);
    else
        cli_table_cell(t, "healthy%s", i->leader ? ", leads" : "");
    cli_table_color(t, fine ? CLI_GREEN : CLI_YELLOW);
}

static int print_text(struct cli *c, const struct st_worker_info *list, size_t n, int64_t now_us)
{
    static const char *const heads[] = {"WORKER", "NAME",  "HOST",      ">PID",  ">BUSY",
                                        "QUEUES", "TYPES", "LAST BEAT", "STATE", NULL};
    struct cli_table t;
    char text[CLI_TEXT];

    if (n == 0) {
        fprintf(stderr, "no workers\n");
        return CLI_DONE;
    }
    cli_table_init(&t, heads);
    for (size_t i = 0; i < n; i++) {
        cli_table_cell(&t, "%s", list[i].id);
        cli_table_cell(&t, "%s", list[i].name[0] ? list[i].name : "-");
        cli_table_cell(&t, "%s", list[i].host);
        cli_table_cell(&t, "%d", list[i].pid);
        cli_table_cell(&t, "%d/%d", list[i].running, list[i].slots);
        list_cell(&t, list[i].queues);
        list_cell(&t, list[i].types);
        cli_table_cell(&t, "%s", cli_age(now_us, list[i].last_beat_us, text));
        state_cell(&t, &list[i], now_us);
    }
    return cli_table_print(c, &t);
}

static int run(struct cli *c)
{
    struct st_worker_info *list = NULL;
    struct st_store *store;
    const char *arg;
    stint_error err;
    int64_t now_us;
    size_t n = 0;
    int code;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 0, 0))
        return c->exit;
    store = cli_store(c, 0);
    if (!store)
        return c->exit;
    if (st_store_worker_list(store, &list, &n, &err))
        return cli_fail(c, &err);
    now_us = st_store_now(store);
    code = c->json ? print_json(c, list, n, now_us) : print_text(c, list, n, now_us);
    free(list);
    return code;
}

const struct cli_command cmd_workers = {
    .name = "workers",
    .summary = "the workers that serve this store",
    .synopsis = "",
    .about = "Lists the workers: how busy they are, what they serve, when they were last heard of. "
             " A worker that\n"
             "has been silent for 30 seconds counts as not healthy; one that is quiet takes no new "
             "jobs.",
    .examples = "stint workers\nstint workers --json | jq '.workers[] | select(.healthy|not)'",
    .run = run,
};
