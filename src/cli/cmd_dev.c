/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_dev.c - `stint dev`: a store, a worker and a few example jobs, in one process.
 *
 * The example jobs stand in jobs.ndjson beside the configuration; what is planned for one stands in its meta as
 * {"expect":"failed"} (succeeded otherwise).  With --once a second thread waits for all of them and stops the worker.
 */
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "claim/plan.h"
#include "cli/config.h"
#include "cli/run_worker.h"
#include "enqueue/await.h"
#include "enqueue/batch.h"

enum { OPT_ONCE = 1, OPT_JOBS };

#define JOBS_MAX ((size_t)1 << 20)

static const char builtin_config[] = "types:\n"
                                     "  hello:\n"
                                     "    run: [sh, -c, 'printf \"hello, %s\" \"$(cat)\"']\n"
                                     "  count:\n"
                                     "    run: [sh, -c, 'wc -c']\n"
                                     "  flaky:\n"
                                     "    run: [sh, -c, 'test \"$STINT_ATTEMPT\" -gt 1']\n"
                                     "    retry: {backoff: fixed, initial: 1s}\n";
static const char builtin_jobs[] = "{\"type\":\"hello\",\"payload\":\"world\"}\n"
                                   "{\"type\":\"count\",\"payload\":[1,2,3]}\n"
                                   "{\"type\":\"hello\",\"payload\":\"later\",\"delay\":\"1s\"}\n"
                                   "{\"type\":\"flaky\",\"meta\":{\"note\":\"fails once\"}}\n";

struct dev {
    struct cli *c;
    bool once;
    const char *jobs_flag;
    char *jobs_name; /* the file of the example jobs; NULL = they are built in, or there are none */
    const char *url;
    struct st_settings settings;
    struct st_enqueued *ids;
    char (*expect)[16];
    struct st_job_info *ends;
    size_t n;
    struct st_worker *worker;
    pthread_t watcher;
    atomic_bool over; /* the worker has ended: nobody will end those jobs any more */
};

/* ---- the example jobs ---------------------------------------------------------------- */

/* --jobs, or jobs.ndjson beside the configuration; NULL = the built-in ones. */
static char *jobs_path(const struct dev *d)
{
    const char *conf = d->settings.path, *slash = conf ? strrchr(conf, '/') : NULL;
    char *path = NULL;

    if (d->jobs_flag)
        return strdup(d->jobs_flag);
    if (!conf)
        return NULL;
    if (asprintf(&path, "%.*sjobs.ndjson", slash ? (int)(slash - conf + 1) : 0, conf) < 0)
        return NULL;
    if (access(path, R_OK) != 0) {
        free(path);
        path = NULL;
    }
    return path;
}

/* A configuration of one's own without jobs.ndjson has no example jobs: that is fine. */
static stint_code read_jobs(struct dev *d, char **text, size_t *len, stint_error *err)
{
    *text = NULL;
    *len = 0;
    d->jobs_name = jobs_path(d);
    if (d->jobs_name)
        return cli_read_all(d->jobs_name, JOBS_MAX, text, len, err);
    if (!d->settings.path) {
        *text = strdup(builtin_jobs);
        *len = *text ? strlen(*text) : 0;
    }
    return STINT_OK;
}

static void read_expectation(const struct st_new_job *job, char out[16])
{
    struct st_slice v = job->meta.p ? st_json_member(job->meta, "expect") : ST_NONE;
    struct st_buf b;

    st_buf_init(&b, 15);
    if (!v.p || !st_json_string(st_json_trim(v), &b) || b.failed)
        snprintf(out, 16, "succeeded");
    else
        snprintf(out, 16, "%s", b.p ? b.p : "");
    st_buf_clear(&b);
}

static stint_code make_room(struct dev *d, size_t n, stint_error *err)
{
    d->ids = calloc(n + 1, sizeof(*d->ids));
    d->expect = calloc(n + 1, sizeof(*d->expect));
    d->ends = calloc(n + 1, sizeof(*d->ends));
    if (!d->ids || !d->expect || !d->ends)
        return st_fail(err, STINT_ENOMEM, "no memory for the example jobs");
    d->n = n;
    return STINT_OK;
}

static bool queue_served(const struct st_settings *s, struct st_slice queue)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (st_queue_covers(st_slice_cstr(s->queues[i].name), queue))
            return true;
    return s->n_queues == 0;
}

/* A job that this worker will never take would keep --once waiting for ever. */
static stint_code check_served(struct dev *d, const struct st_batch *batch, stint_error *err)
{
    const struct st_type_rule *rules;
    struct st_plan *plan = NULL;
    stint_code rc = batch->n ? st_plan_new(&d->settings, NULL, 0, &plan, err) : STINT_OK;
    size_t n = 0;

    rules = plan ? st_plan_rules(plan, &n) : NULL;
    for (size_t i = 0; rc == STINT_OK && i < batch->n; i++) {
        struct st_slice type = batch->jobs[i].type, queue = batch->jobs[i].queue;

        if (!st_rule_find(rules, n, queue, type))
            rc = st_refuse(err, "add it under `types:` in the configuration",
                           "line %zu: nothing here runs the type %.*s", batch->lines[i], (int)type.len, type.p);
        else if (!queue_served(&d->settings, queue))
            rc = st_refuse(err, "add it to `worker.queues` in the configuration, or to STINT_QUEUES",
                           "line %zu: nothing here serves the queue %.*s", batch->lines[i], (int)queue.len, queue.p);
    }
    st_plan_unref(plan);
    return rc;
}

/* Without --once others may run it. */
static stint_code refuse_unserved(struct dev *d, const struct st_batch *batch, stint_error *err)
{
    stint_code rc = check_served(d, batch, err);

    if (rc != STINT_EINVAL || d->once)
        return rc;
    cli_warn(d->c, "%s: %s", d->jobs_name ? d->jobs_name : "example jobs", err->message);
    return STINT_OK;
}

static stint_code enqueue_all(struct dev *d, struct st_batch *batch, stint_error *err)
{
    struct st_store *s = NULL;
    stint_code rc = refuse_unserved(d, batch, err);

    if (rc == STINT_OK)
        rc = make_room(d, batch->n, err);
    for (size_t i = 0; rc == STINT_OK && i < batch->n; i++)
        read_expectation(&batch->jobs[i], d->expect[i]);
    if (rc == STINT_OK)
        rc = cli_store_open(d->c, d->url, CLI_CREATE, &s, err);
    if (rc == STINT_OK && batch->n)
        rc = st_batch_enqueue(batch, s, d->ids, err);
    st_store_close(s);
    return rc;
}

static stint_code enqueue_examples(struct dev *d, stint_error *err)
{
    struct st_batch batch;
    char *text = NULL;
    size_t len = 0;
    stint_code rc = read_jobs(d, &text, &len, err);

    if (rc != STINT_OK)
        return rc;
    st_batch_init(&batch, &st_new_job_default, d->settings.limits.payload);
    rc = st_batch_feed(&batch, ST_SLICE(text, len), err);
    if (rc == STINT_OK)
        rc = st_batch_end(&batch, err);
    if (rc == STINT_OK)
        rc = enqueue_all(d, &batch, err);
    if (rc != STINT_OK && d->jobs_name && strncmp(err->message, "line ", 5) == 0)
        st_err_prefix(err, "%s", d->jobs_name);
    st_batch_clear(&batch);
    free(text);
    return rc;
}

/* ---- waiting for them ------------------------------------------------------------------- */

/* In short waits, so that the end of the worker is noticed too. */
static void *watch(void *arg)
{
    struct dev *d = arg;
    struct st_store *s = NULL;
    stint_error err;

    if (st_store_open(d->url, &(struct st_store_open){0}, &s, &err) == STINT_OK) {
        for (size_t i = 0; i < d->n && !atomic_load(&d->over);) {
            stint_code rc = st_await(s, st_slice_cstr(d->ids[i].id), 300, &d->ends[i], &err);

            if (rc != STINT_ETIMEOUT && rc != STINT_EAGAIN)
                i++;
        }
    }
    st_store_close(s);
    st_worker_stop(d->worker);
    return NULL;
}

/* The first line of its result, or of what went wrong. */
static void summary_note(struct cli_table *t, const struct st_job_info *j)
{
    struct st_slice text = j->state == ST_SUCCEEDED ? j->result : st_slice_cstr(j->error_message);
    size_t len = 0;

    while (len < text.len && len < 60 && text.p[len] != '\n')
        len++;
    cli_table_cell(t, "%.*s", (int)len, text.p ? text.p : "");
}

static int summary(struct dev *d)
{
    static const char *const heads[] = {"TYPE", "STATE", "PLANNED", ">ATTEMPTS", "RESULT OR ERROR", NULL};
    struct cli_table t;
    size_t as_planned = 0;

    cli_table_init(&t, heads);
    for (size_t i = 0; i < d->n; i++) {
        const struct st_job_info *j = &d->ends[i];
        bool ok = j->id && strcmp(st_shown_name(j->shown), d->expect[i]) == 0;

        as_planned += ok;
        cli_table_cell(&t, "%s", j->type ? j->type : "?");
        cli_table_cell(&t, "%s", j->id ? st_shown_name(j->shown) : "unfinished");
        cli_table_color(&t, ok ? CLI_GREEN : CLI_RED);
        cli_table_cell(&t, "%s", ok ? "yes" : "no");
        cli_table_cell(&t, "%d", j->attempt);
        summary_note(&t, j);
    }
    if (cli_table_print(d->c, &t) != CLI_DONE)
        return d->c->exit;
    printf("%zu example job%s, %zu ended as planned\n", d->n, d->n == 1 ? "" : "s", as_planned);
    return as_planned == d->n ? CLI_DONE : CLI_FAILED;
}

static int summary_json(struct dev *d)
{
    struct st_buf b;
    struct st_jw w;
    bool planned = true;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "jobs");
    st_jw_open(&w, '[');
    for (size_t i = 0; i < d->n; i++) {
        const struct st_job_info *j = &d->ends[i];
        const char *state = j->id ? st_shown_name(j->shown) : "unfinished";

        planned = planned && strcmp(state, d->expect[i]) == 0;
        st_jw_open(&w, '{');
        st_jw_key(&w, "id");
        st_jw_cstr(&w, d->ids[i].id);
        st_jw_key(&w, "state");
        st_jw_cstr(&w, state);
        st_jw_key(&w, "planned");
        st_jw_cstr(&w, d->expect[i]);
        st_jw_close(&w, '}');
    }
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    if (cli_print_json(d->c, &b) != CLI_DONE)
        return d->c->exit;
    return planned ? CLI_DONE : CLI_FAILED;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* The store's URL, with stars where a password stands: before the '@', or in a parameter (listen= is a URL itself). */
static void show_url(const char *url, char *out, size_t size)
{
    const char *host = strstr(url, "://"), *at = host ? strpbrk(host + 3, "@/?") : NULL, *colon;
    const char *from = url;
    struct st_buf b;

    st_buf_init(&b, size - 1);
    if (at && *at == '@' && (colon = memchr(host + 3, ':', (size_t)(at - host - 3)))) {
        st_buf_printf(&b, "%.*s:***", (int)(colon - url), url);
        from = at;
    }
    while (*from) {
        const size_t len = strcspn(from, "?&"), name = strcspn(from, "=?&");
        const bool secret = name < len && ((name >= 8 && strncmp(from + name - 8, "password", 8) == 0) ||
                                           (name == 6 && strncmp(from, "listen", 6) == 0));

        st_buf_printf(&b, secret ? "%.*s=***" : "%.*s", (int)(secret ? name : len), from);
        from += len;
        if (*from)
            st_buf_putc(&b, *from++);
    }
    snprintf(out, size, "%s", b.p && !b.failed ? b.p : "(a long URL)");
    st_buf_clear(&b);
}

static void greet(const struct dev *d)
{
    char url[1024];

    show_url(d->url, url, sizeof(url));
    fprintf(stderr, "store   %s\nconfig  %s\n", url, d->settings.path ? d->settings.path : "(built-in examples)");
    fprintf(stderr, "jobs    %zu example job%s enqueued\n", d->n, d->n == 1 ? "" : "s");
    if (!d->once)
        fprintf(stderr,
                "\nFrom another terminal, in this directory:\n"
                "  stint job list --store %s\n"
                "  stint queue list --store %s\n"
                "Ctrl-C stops.\n\n",
                url, url);
}

static stint_code work(struct dev *d, stint_error *err)
{
    const struct cli_place place = {.url = d->url, .signal = d->settings.signal, .runqy = d->settings.runqy};
    struct st_worker_options opt = {.opener = cli_opener(&place), .settings = &d->settings, .signals = true};
    stint_code rc = st_worker_new(&opt, &d->worker, err);
    bool watching = false;

    if (rc != STINT_OK)
        return rc;
    if (d->once) {
        rc = st_thread_start(&d->watcher, "stint-watch", watch, d, err);
        watching = rc == STINT_OK;
    }
    if (rc == STINT_OK)
        rc = st_worker_run(d->worker, err);
    atomic_store(&d->over, true);
    if (watching)
        pthread_join(d->watcher, NULL);
    st_worker_free(d->worker);
    return rc;
}

static void dev_clear(struct dev *d)
{
    for (size_t i = 0; i < d->n; i++)
        st_job_info_clear(&d->ends[i]);
    free(d->ids);
    free(d->expect);
    free(d->ends);
    free(d->jobs_name);
    st_settings_clear(&d->settings);
}

static int dev_run(struct dev *d)
{
    struct cli_worker_flags flags = {0};
    stint_error err;
    stint_code rc = cli_worker_settings(d->c, &flags, builtin_config, &d->settings, &err);

    if (rc != STINT_OK)
        return cli_fail(d->c, &err);
    d->url = cli_store_url(d->c, true);
    if (!d->url)
        return d->c->exit;
    if (!d->settings.results_dir)
        d->settings.results_dir = cli_results_dir(d->url);
    rc = enqueue_examples(d, &err);
    if (rc != STINT_OK)
        return cli_fail(d->c, &err);
    greet(d);
    rc = work(d, &err);
    if (rc != STINT_OK)
        return cli_fail(d->c, &err);
    if (!d->once)
        return CLI_DONE;
    return d->c->json ? summary_json(d) : summary(d);
}

static int run(struct cli *c)
{
    struct dev d = {.c = c};
    const char *arg;
    int opt, exit;

    while ((opt = cli_option(c, &arg)) > 0) {
        if (opt == OPT_ONCE)
            d.once = true;
        else if (opt == OPT_JOBS)
            d.jobs_flag = arg;
    }
    if (opt == CLI_STOP || !cli_args(c, 0, 0))
        return c->exit;
    st_worker_hold_signals();
    cli_log_start(c, ST_LOG_INFO);
    mallopt(M_ARENA_MAX, 2);
    exit = dev_run(&d);
    dev_clear(&d);
    return exit;
}

static const struct cli_option options[] = {
    {"once", 0, NULL, OPT_ONCE, "end when the example jobs have ended; exit 1 if one did not end as planned"},
    {"jobs", 0, "FILE", OPT_JOBS, "example jobs to enqueue (jobs.ndjson beside the configuration)"},
    {0},
};

const struct cli_command cmd_dev = {
    .name = "dev",
    .summary = "try it: a store, a worker and example jobs in one process",
    .synopsis = "[--once] [options]",
    .about = "Makes an embedded store if there is none, enqueues example jobs and runs them.\n"
             "DATABASE_URL and REDIS_URL are ignored; --store, STINT_STORE and `store:` are not.",
    .options = options,
    .examples = "stint dev\n"
                "stint dev --once --config examples/stint.yaml",
    .exits = "1  an example job ended otherwise than planned (with --once)",
    .run = run,
};
