/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_worker.c - `stint worker`: run jobs.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/config.h"
#include "cli/run_worker.h"
#include "store/redis_conn.h"

enum { OPT_QUEUES = 1, OPT_TYPES, OPT_SLOTS, OPT_ONCE, OPT_NAME };

struct args {
    struct cli *c;
    struct cli_worker_flags flags;
    bool once;
    const char *url;
};

static bool read_options(struct cli *c, struct args *a)
{
    const char *arg;
    int opt;

    while ((opt = cli_option(c, &arg)) > 0) {
        if (opt == OPT_QUEUES)
            a->flags.queues = arg;
        else if (opt == OPT_TYPES)
            a->flags.types = arg;
        else if (opt == OPT_NAME)
            a->flags.name = arg;
        else if (opt == OPT_ONCE)
            a->once = true;
        else if (opt == OPT_SLOTS && !cli_int(c, "--slots", arg, 1, ST_SLOTS_MAX, &a->flags.slots))
            return false;
    }
    return opt != CLI_STOP && cli_args(c, 0, 0);
}

static stint_code load(struct args *a, struct st_settings *s, stint_error *err)
{
    stint_code rc = cli_worker_settings(a->c, &a->flags, NULL, s, err);

    if (rc == STINT_OK && !s->results_dir && !(s->results_dir = cli_results_dir(a->url)))
        rc = st_fail(err, STINT_ENOMEM, "no memory for the settings");
    return rc;
}

/* HUP */
static stint_code reload(void *arg, struct st_settings **out, stint_error *err)
{
    struct st_settings *s = malloc(sizeof(*s));
    stint_code rc;

    if (!s)
        return st_fail(err, STINT_ENOMEM, "no memory for the settings");
    rc = load(arg, s, err);
    if (rc != STINT_OK) {
        st_settings_clear(s);
        free(s);
        return rc;
    }
    *out = s;
    return STINT_OK;
}

/* What stays for later in the queues this worker serves. */
struct later {
    int64_t scheduled, retrying;
};

static bool serves(const struct st_settings *s, const char *queue)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        if (st_queue_covers(st_slice_cstr(s->queues[i].name), st_slice_cstr(queue)))
            return true;
    }
    return s->n_queues == 0;
}

static struct later count_later(const struct args *a, const struct st_settings *s)
{
    struct later l = {0, 0};
    struct st_queue_info *q = NULL;
    struct st_store *store = NULL;
    stint_error err;
    size_t n = 0;

    if (cli_store_open(a->c, a->url, 0, &store, &err) == STINT_OK &&
        st_store_queues(store, 0, &q, &n, &err) == STINT_OK) {
        for (size_t i = 0; i < n; i++) {
            bool ours = serves(s, q[i].name);

            l.scheduled += ours ? q[i].counts[ST_SHOW_SCHEDULED] : 0;
            l.retrying += ours ? q[i].counts[ST_SHOW_RETRYING] : 0;
        }
    }
    free(q);
    st_store_close(store);
    return l;
}

static void put_int(struct st_jw *w, const char *key, int64_t v)
{
    st_jw_key(w, key);
    st_jw_int(w, v);
}

static int print_tally(struct cli *c, const struct st_tally *t, const struct later *l)
{
    struct st_buf b;
    struct st_jw w;

    if (!c->json) {
        printf("done: %lld succeeded, %lld failed, %lld cancelled; for later: %lld retrying, %lld scheduled\n",
               (long long)t->succeeded, (long long)t->failed, (long long)t->cancelled, (long long)l->retrying,
               (long long)l->scheduled);
        return CLI_DONE;
    }
    st_buf_init(&b, 4096);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    put_int(&w, "succeeded", t->succeeded);
    put_int(&w, "failed", t->failed);
    put_int(&w, "cancelled", t->cancelled);
    put_int(&w, "retried", t->retried);
    put_int(&w, "retrying", l->retrying);
    put_int(&w, "scheduled", l->scheduled);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

/* RQ's messages go by a store that can choose by due time; a Redis store is fed by its own clients. */
static stint_code check_intake(const struct args *a, const struct st_settings *s, stint_error *err)
{
    if (!s->intake.rq || !st_redis_url_is(a->url))
        return STINT_OK;
    return st_refuse(err, "use a postgres:// or sqlite: store, or take intake out of the configuration",
                     "intake stands in front of a PostgreSQL or SQLite store, not of a Redis one");
}

static int work(struct args *a, const struct st_settings *s)
{
    const struct cli_place place = {.url = a->url, .signal = s->signal, .runqy = s->runqy};
    struct st_worker_options opt = {.opener = cli_opener(&place),
                                    .settings = s,
                                    .once = a->once,
                                    .signals = true,
                                    .reload = reload,
                                    .reload_arg = a};
    struct st_worker *w;
    struct st_tally tally;
    struct later later;
    stint_error err;
    stint_code rc = check_intake(a, s, &err);

    if (rc == STINT_OK)
        rc = st_worker_new(&opt, &w, &err);
    if (rc != STINT_OK)
        return cli_fail(a->c, &err);
    rc = st_worker_run(w, &err);
    tally = st_worker_tally(w);
    st_worker_free(w);
    if (rc != STINT_OK)
        return cli_fail(a->c, &err);
    if (!a->once)
        return CLI_DONE;
    later = count_later(a, s);
    return print_tally(a->c, &tally, &later);
}

static int run(struct cli *c)
{
    struct args a = {.c = c};
    struct st_settings s;
    stint_error err;
    int exit;

    if (!read_options(c, &a))
        return c->exit;
    st_worker_hold_signals();
    cli_log_start(c, ST_LOG_INFO);
    mallopt(M_ARENA_MAX, 2); /* a handful of small threads: one heap each would be waste */
    a.url = cli_store_url(c, false);
    if (!a.url)
        return c->exit;
    exit = load(&a, &s, &err) == STINT_OK ? work(&a, &s) : cli_fail(c, &err);
    st_settings_clear(&s);
    return exit;
}

static const struct cli_option options[] = {
    {"queues", 'q', "LIST", OPT_QUEUES, "serve only these: a,b strictly in order, or a=3,b=1 by weight"},
    {"types", 't', "LIST", OPT_TYPES, "run only these configured types: mail,img*"},
    {"slots", 's', "N", OPT_SLOTS, "run up to N jobs at a time (10)"},
    {"once", 0, NULL, OPT_ONCE, "end when nothing is due and the slots are empty"},
    {"name", 0, "NAME", OPT_NAME, "what `stint workers` calls it"},
    {0},
};

const struct cli_command cmd_worker = {
    .name = "worker",
    .summary = "run jobs",
    .synopsis = "[options]",
    .about = "Claims jobs of the types in stint.yaml and runs them, until it is told to stop.\n"
             "\n"
             "TERM or INT    stop gracefully: finish what runs (up to shutdown_timeout), give the rest back\n"
             "the same again stop at once; the attempts are given back\n"
             "TSTP           go quiet: take no new jobs, finish what runs\n"
             "HUP            read the configuration again",
    .options = options,
    .examples = "stint worker --slots 4\n"
                "stint worker --queues critical,default --once",
    .exits = "0  stopped as asked, even if jobs failed",
    .run = run,
};
