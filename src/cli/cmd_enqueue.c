/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_enqueue.c - `stint enqueue`: one job, or a batch of them.
 *
 * Everything is checked before the store is opened, so that wrong input never makes one.  The ids
 * are made before the call: whatever becomes of it, the caller knows what to ask for.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "enqueue/batch.h"

enum {
    OPT_QUEUE = 1,
    OPT_PRIORITY,
    OPT_DELAY,
    OPT_AT,
    OPT_ATTEMPTS,
    OPT_TIMEOUT,
    OPT_KEY,
    OPT_UNIQUE,
    OPT_ID,
    OPT_META,
    OPT_BATCH,
};

static const struct cli_option options[] = {
    {"queue", 'q', "NAME", OPT_QUEUE, "the queue, parent or parent.sub [default]"},
    {"priority", 'p', "N", OPT_PRIORITY, "-32768 to 32767, higher first [0]"},
    {"delay", 'd', "DURATION", OPT_DELAY, "not before so long from now: 90s, 5m, 2h"},
    {"at", 0, "TIME", OPT_AT, "not before this time: 2030-01-01T12:00:00Z"},
    {"max-attempts", 0, "N", OPT_ATTEMPTS, "how often it may run, 0 = no limit [by its type]"},
    {"timeout", 0, "DURATION", OPT_TIMEOUT, "how long a run may take, or none [by its type]"},
    {"key", 'k', "KEY", OPT_KEY, "a unique key: while it is held, the same type and key is a duplicate"},
    {"unique", 'u', "HOW", OPT_UNIQUE, "how long the key is held: active, forever, or a duration [active]"},
    {"id", 0, "ID", OPT_ID, "the job's id; repeating an id adds nothing [a new UUIDv7]"},
    {"meta", 0, "JSON", OPT_META, "an object that is kept with the job"},
    {"batch", 'b', "FILE", OPT_BATCH, "jobs from a file, or - for stdin: one JSON object per line"},
    {NULL, 0, NULL, 0, NULL},
};

struct want {
    struct st_enqueue_item item;
    const char *batch; /* a file, or NULL */
};

static bool set_unique(struct cli *c, struct st_new_job *job, const char *arg)
{
    stint_error err;

    if (st_unique_parse(st_slice_cstr(arg), &job->unique, &job->window_us, &err) == STINT_OK)
        return true;
    st_err_prefix(&err, "--unique");
    cli_fail(c, &err);
    return false;
}

static bool set_timeout(struct cli *c, struct st_new_job *job, const char *arg)
{
    stint_error err;

    if (st_timeout_parse(st_slice_cstr(arg), &job->timeout_us, &err) == STINT_OK)
        return true;
    st_err_prefix(&err, "--timeout");
    cli_fail(c, &err);
    return false;
}

static bool set_int(struct cli *c, const char *what, const char *arg, int64_t min, int64_t max, int *out)
{
    int64_t n;

    if (!cli_int(c, what, arg, min, max, &n))
        return false;
    *out = (int)n;
    return true;
}

static bool set_option(struct cli *c, struct want *w, int opt, const char *arg)
{
    struct st_new_job *job = &w->item.job;

    switch (opt) {
    case OPT_QUEUE:
        job->queue = st_slice_cstr(arg);
        return true;
    case OPT_PRIORITY:
        return set_int(c, "--priority", arg, ST_PRIORITY_MIN, ST_PRIORITY_MAX, &job->priority);
    case OPT_DELAY:
        return cli_duration(c, "--delay", arg, &job->delay_us);
    case OPT_AT:
        return cli_time(c, "--at", arg, &job->due_us);
    case OPT_ATTEMPTS:
        return set_int(c, "--max-attempts", arg, 0, ST_ATTEMPTS_MAX, &job->max_attempts);
    case OPT_TIMEOUT:
        return set_timeout(c, job, arg);
    case OPT_KEY:
        job->key = st_slice_cstr(arg);
        return true;
    case OPT_UNIQUE:
        return set_unique(c, job, arg);
    case OPT_ID:
        job->id = st_slice_cstr(arg);
        return true;
    case OPT_META:
        job->meta = st_slice_cstr(arg);
        return true;
    default:
        w->batch = arg;
        return true;
    }
}

/* ---- one job ------------------------------------------------------------------------ */

static bool read_payload(struct cli *c, size_t max, struct st_slice *out, char **text)
{
    stint_error err;
    bool more;
    size_t len;

    if (cli_read_limited("-", max, text, &len, &more, &err)) {
        st_err_prefix(&err, "payload");
    } else if (more) {
        st_payload_too_large(max, true, max, &err);
    } else {
        *out = ST_SLICE(*text, len);
        return true;
    }
    cli_fail(c, &err);
    return false;
}

/* The payload argument, stdin for "-", or null; *text is to be freed. */
static bool get_payload(struct cli *c, const char *arg, size_t max, struct st_slice *out, char **text)
{
    stint_error err;

    *text = NULL;
    *out = st_slice_cstr(arg ? arg : "null");
    if (arg && strcmp(arg, "-") == 0 && !read_payload(c, max, out, text))
        return false;
    if (st_json_check(*out, &err) == STINT_OK)
        return true;
    st_err_prefix(&err, "payload");
    if (arg && !strchr("-{[\"", arg[0]))
        st_err_remedy(&err, "a text needs double quotes inside the shell's: '\"text\"'");
    else
        st_err_remedy(&err, "write JSON, names and texts in double quotes: '{\"to\":\"ada\"}'");
    free(*text);
    cli_fail(c, &err);
    return false;
}

static int report_one(struct cli *c, const struct st_enqueued *out)
{
    struct st_buf b;
    struct st_jw w;

    if (!c->json) {
        printf("%s\n", out->id);
        if (out->duplicate)
            fprintf(stderr, "stint: duplicate: this job holds the key, nothing was added\n");
        return CLI_DONE;
    }
    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "id");
    st_jw_cstr(&w, out->id);
    st_jw_key(&w, "duplicate");
    st_jw_bool(&w, out->duplicate);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

static int enqueue_one(struct cli *c, struct want *w, size_t payload_max)
{
    struct st_enqueue_item *item = &w->item;
    struct st_store *store;
    struct st_enqueued out;
    stint_error err;
    stint_code rc;

    rc = st_enqueue_check(item, payload_max, &err);
    if (rc)
        return cli_fail(c, &err);
    store = cli_store(c, CLI_CREATE);
    if (!store)
        return c->exit;
    rc = st_enqueue(store, &item->job, 1, &out, &err);
    if (rc == STINT_EUNKNOWN) {
        st_fail(&err, rc, "the store may or may not have job %s", out.id);
        st_err_remedy(&err, "repeat the command with --id %s: that adds it once at most", out.id);
    }
    if (rc == STINT_EEXISTS)
        st_err_remedy(&err, "choose another --id; `stint job show %s` shows the job that has it", out.id);
    return rc ? cli_fail(c, &err) : report_one(c, &out);
}

/* ---- a batch ------------------------------------------------------------------------ */

static stint_code feed_all(int fd, const char *name, struct st_batch *b, struct cli_progress *p, stint_error *err)
{
    int64_t total = 0, done = 0;
    struct stat st;
    char chunk[65536];

    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        total = st.st_size;
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        stint_code rc;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return st_refuse(err, "name a file that this user may read", "cannot read %s: %s", name, strerror(errno));
        if (n == 0)
            return st_batch_end(b, err);
        rc = st_batch_feed(b, ST_SLICE(chunk, (size_t)n), err);
        if (rc)
            return rc;
        done += n;
        cli_progress_set(p, done, total);
    }
}

static stint_code read_batch(struct cli *c, const char *path, struct st_batch *b, stint_error *err)
{
    bool in = strcmp(path, "-") == 0;
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    struct cli_progress p;
    stint_code rc;

    if (fd < 0)
        return st_refuse(err, "name a file that is there, or - for stdin", "cannot open %s: %s", path, strerror(errno));
    cli_progress_start(c, &p, "reading", "bytes", 0);
    rc = feed_all(fd, in ? "standard input" : path, b, &p, err);
    cli_progress_end(&p);
    if (!in)
        close(fd);
    return rc;
}

static int report_batch(struct cli *c, const struct st_enqueued *out, size_t n)
{
    size_t duplicates = 0;
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "jobs");
    st_jw_open(&w, '[');
    for (size_t i = 0; i < n; i++) {
        duplicates += out[i].duplicate;
        if (!c->json) {
            printf("%s\n", out[i].id);
            continue;
        }
        st_jw_open(&w, '{');
        st_jw_key(&w, "id");
        st_jw_cstr(&w, out[i].id);
        st_jw_key(&w, "duplicate");
        st_jw_bool(&w, out[i].duplicate);
        st_jw_close(&w, '}');
    }
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    if (c->json)
        return cli_print_json(c, &b);
    st_buf_clear(&b);
    if (duplicates || c->tty_err)
        fprintf(stderr, "stint: %zu enqueued, %zu duplicate\n", n - duplicates, duplicates);
    return CLI_DONE;
}

static int send_batch(struct cli *c, const struct st_batch *b)
{
    struct st_enqueued *out = calloc(b->n ? b->n : 1, sizeof(*out));
    struct st_store *store = NULL;
    struct cli_progress p;
    stint_error err;
    stint_code rc = STINT_OK;
    int code;

    if (!out)
        return cli_error(c, STINT_ENOMEM, NULL, "no memory for %zu jobs", b->n);
    if (b->n && !(store = cli_store(c, CLI_CREATE))) {
        free(out);
        return c->exit;
    }
    cli_progress_start(c, &p, "storing", "jobs", (int64_t)b->n);
    cli_progress_set(&p, 0, (int64_t)b->n);
    if (b->n)
        rc = st_batch_enqueue(b, store, out, &err);
    cli_progress_end(&p);
    if (rc == STINT_EUNKNOWN && !(store->ops->caps & ST_CAP_BATCH_ATOMIC)) {
        st_err_prefix(&err, "the store may have part of the batch");
        st_err_remedy(&err, "repeat it: lines with an `id` are added once at most; for the others "
                            "see what is there, `stint job list`");
    } else if (rc == STINT_EUNKNOWN) {
        st_fail(&err, rc, "the store may or may not have the batch, whose first job is %s", out[0].id);
        st_err_remedy(&err, "all of it is there or nothing: ask with `stint job show %s`", out[0].id);
    }
    code = rc ? cli_fail(c, &err) : report_batch(c, out, b->n);
    free(out);
    return code;
}

static int enqueue_batch(struct cli *c, const struct want *w, size_t payload_max)
{
    struct st_batch b;
    stint_error err;
    int code;

    if (w->item.job.id.p)
        return cli_usage(c, "--id names one job; in a batch every line may have its own \"id\"");
    st_batch_init(&b, &w->item.job, payload_max);
    if (read_batch(c, w->batch, &b, &err))
        code = cli_fail(c, &err);
    else
        code = send_batch(c, &b);
    st_batch_clear(&b);
    return code;
}

static int run(struct cli *c)
{
    struct want w = {.item.job = st_new_job_default};
    struct st_new_job *job = &w.item.job;
    const struct st_settings *s;
    const char *arg;
    char *text = NULL;
    int opt, code;

    while ((opt = cli_option(c, &arg)) > 0)
        if (!set_option(c, &w, opt, arg))
            return c->exit;
    if (opt == CLI_STOP || !cli_args(c, w.batch ? 0 : 1, 2))
        return c->exit;
    if (job->due_us && job->delay_us)
        return cli_usage(c, "--at and --delay exclude each other");
    s = cli_settings(c);
    if (!s)
        return c->exit;
    job->type = c->n_args > 0 ? st_slice_cstr(c->args[0]) : ST_NONE;
    if ((!w.batch || c->n_args > 1) &&
        !get_payload(c, c->n_args > 1 ? c->args[1] : NULL, s->limits.payload, &job->payload, &text))
        return c->exit;
    code = w.batch ? enqueue_batch(c, &w, s->limits.payload) : enqueue_one(c, &w, s->limits.payload);
    free(text);
    return code;
}

const struct cli_command cmd_enqueue = {
    .name = "enqueue",
    .summary = "add a job, or a batch of jobs",
    .synopsis = "TYPE [JSON|-] [options]\n[TYPE [JSON]] --batch FILE|- [options]",
    .about = "Adds a job of TYPE with a JSON payload (- reads it from stdin; without one it is "
             "null) and prints its\n"
             "id.  A duplicate prints the id of the job that holds the key.  Repeating an --id "
             "adds nothing and\n"
             "answers the same, so a command whose outcome is not known can be repeated.\n"
             "\n"
             "A batch has one object per line: {\"type\", \"payload\", \"queue\", \"priority\", "
             "\"delay\" or \"at\",\n"
             "\"max_attempts\", \"timeout\", \"key\", \"unique\", \"id\", \"meta\"}.  TYPE and the "
             "options are its defaults.\n"
             "All of it is added or nothing.",
    .options = options,
    .examples = "stint enqueue mail.send '{\"to\":\"ada@example.org\"}'\n"
                "stint enqueue report --delay 2h --queue reports.slow --max-attempts 5\n"
                "stint enqueue sync '{\"user\":42}' --key user-42 --unique 10m\n"
                "generate | stint enqueue --batch - --json",
    .exits = "6  the outcome is not known: repeat with the same --id",
    .run = run,
};
