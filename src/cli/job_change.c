/* SPDX-License-Identifier: Apache-2.0
 *
 * job_change.c - cancel, retry, replay and discard: jobs that are named, or all that a filter
 * finds.
 *
 * Named jobs are told about one by one.  Of a filter's jobs only the numbers are: they are gone
 * through page by page, and those that changed meanwhile are left alone and counted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jobs.h"
#include "enqueue/enqueue.h"

#define PAGE 500

/* What became of one job. */
struct outcome {
    stint_error err; /* code OK: done */
    bool asked;      /* it runs and was asked to stop */
    char new_id[ST_ID_MAX + 1];
};

static const char *const done_words[] = {
    [CLI_CHANGE_CANCEL] = "cancelled",
    [CLI_CHANGE_RETRY] = "retried",
    [CLI_CHANGE_REPLAY] = "replayed",
    [CLI_CHANGE_DISCARD] = "discarded",
};

/* ---- one job -------------------------------------------------------------------------- */

/* Why a verdict was what it was, in words that name the job's state. */
static void explain_verdict(struct st_store *store, enum cli_change what, const char *id, stint_code verdict,
                            stint_error *err)
{
    struct st_job_info info;
    const char *state;

    if (verdict == STINT_ENOTFOUND) {
        st_fail(err, verdict, "there is no job %s", id);
        return;
    }
    if (verdict == STINT_EEXISTS) {
        st_fail(err, STINT_ESTATE, "job %s: another live job holds its unique key", id);
        st_err_remedy(err, "wait until that one has ended, or cancel it");
        return;
    }
    if (st_store_get(store, 0, st_slice_cstr(id), &info, err) != STINT_OK)
        return;
    state = st_shown_name(info.shown);
    if (what == CLI_CHANGE_CANCEL)
        st_fail(err, STINT_ESTATE, "job %s has ended: it is %s", id, state);
    else
        st_fail(err, STINT_ESTATE, "job %s is %s, not failed%s", id, state,
                what == CLI_CHANGE_RETRY ? " or cancelled" : "");
    if (what == CLI_CHANGE_RETRY && info.state == ST_SUCCEEDED)
        st_err_remedy(err, "`stint job retry %s --replay` runs it once more, as a new job", id);
    else if (what == CLI_CHANGE_DISCARD && !st_state_ended(info.state))
        st_err_remedy(err, "`stint job cancel %s` stops it", id);
    st_job_info_clear(&info);
}

/* A new job with everything the old one was given, but for its id and key. */
static stint_code replay(struct st_store *store, const char *id, struct outcome *out)
{
    struct st_enqueue_item item = {.job = st_new_job_default};
    struct st_enqueued made;
    struct st_job_info info;
    stint_code rc = st_store_get(store, 0, st_slice_cstr(id), &info, &out->err);

    if (rc)
        return rc;
    if (!st_state_ended(info.state)) {
        rc = st_fail(&out->err, STINT_ESTATE, "job %s is %s: it has not ended yet", id, st_shown_name(info.shown));
        st_err_remedy(&out->err, "`stint job wait %s` waits until it has", id);
    } else {
        item.job.type = st_slice_cstr(info.type);
        item.job.queue = st_slice_cstr(info.queue);
        item.job.payload = info.payload;
        item.job.meta = info.meta;
        item.job.priority = info.priority;
        if (info.n_attempts) { /* what it ran with; before that its type decides */
            item.job.max_attempts = info.max_attempts;
            item.job.timeout_us = info.timeout_us;
        }
        rc = st_enqueue_check(&item, SIZE_MAX, &out->err);
        if (!rc)
            rc = st_enqueue(store, &item.job, 1, &made, &out->err);
        if (!rc)
            memcpy(out->new_id, made.id, sizeof(out->new_id));
        if (rc == STINT_EUNKNOWN)
            st_err_remedy(&out->err, "`stint job show %s` tells whether it was added", made.id);
    }
    st_job_info_clear(&info);
    return rc;
}

static stint_code discard(struct cli *c, struct st_store *store, const struct st_slice *ids, size_t n,
                          stint_code *verdicts, stint_error *err)
{
    struct st_pruned files = {0};
    stint_code rc = st_store_discard(store, ids, n, verdicts, &files, err);

    if (rc == STINT_OK)
        cli_unlink(c, &files);
    st_pruned_clear(&files);
    return rc;
}

static stint_code change(struct cli *c, struct st_store *store, enum cli_change what, const struct st_slice *ids,
                         size_t n, stint_code *verdicts, bool *asked, stint_error *err)
{
    if (what == CLI_CHANGE_CANCEL)
        return st_store_cancel(store, 0, ids, n, verdicts, asked, err);
    if (what == CLI_CHANGE_DISCARD)
        return discard(c, store, ids, n, verdicts, err);
    return st_store_retry(store, 0, ids, n, verdicts, err);
}

/* false: it is not failed, and *out says so. */
static bool check_dead(struct st_store *store, const char *id, struct outcome *out)
{
    struct st_job_info info;
    stint_code rc = st_store_get(store, 0, st_slice_cstr(id), &info, &out->err);

    if (rc)
        return false;
    if (info.state != ST_FAILED) {
        st_fail(&out->err, STINT_ESTATE, "job %s is %s, not failed", id, st_shown_name(info.shown));
        st_err_remedy(&out->err, "`stint dead list` shows those that have failed");
    } else {
        st_err_clear(&out->err);
    }
    st_job_info_clear(&info);
    return out->err.code == STINT_OK;
}

static void change_one(struct cli *c, struct st_store *store, enum cli_change what, const char *id, bool only_dead,
                       struct outcome *out)
{
    struct st_slice slice = st_slice_cstr(id);
    stint_code verdict = STINT_OK;

    memset(out, 0, sizeof(*out));
    if (only_dead && !check_dead(store, id, out))
        return;
    if (what == CLI_CHANGE_REPLAY) {
        if (replay(store, id, out) == STINT_OK)
            st_err_clear(&out->err);
        return;
    }
    if (change(c, store, what, &slice, 1, &verdict, &out->asked, &out->err) != STINT_OK)
        return;
    st_err_clear(&out->err);
    if (verdict)
        explain_verdict(store, what, id, verdict, &out->err);
}

/* ---- named jobs ----------------------------------------------------------------------- */

static void put_outcome(struct st_jw *w, enum cli_change what, const char *id, const struct outcome *o)
{
    st_jw_open(w, '{');
    st_jw_key(w, "id");
    st_jw_cstr(w, o->new_id[0] ? o->new_id : id);
    if (o->new_id[0]) {
        st_jw_key(w, "replay_of");
        st_jw_cstr(w, id);
    }
    st_jw_key(w, done_words[what]);
    st_jw_bool(w, o->err.code == STINT_OK && !o->asked);
    if (what == CLI_CHANGE_CANCEL) {
        st_jw_key(w, "asked");
        st_jw_bool(w, o->asked);
    }
    if (o->err.code) {
        st_jw_key(w, "error");
        st_jw_open(w, '{');
        st_jw_key(w, "code");
        st_jw_cstr(w, stint_code_name(o->err.code));
        st_jw_key(w, "message");
        st_jw_cstr(w, o->err.message);
        st_jw_key(w, "remedy");
        st_jw_cstr(w, o->err.remedy);
        st_jw_close(w, '}');
    }
    st_jw_close(w, '}');
}

static void say_outcome(struct cli *c, enum cli_change what, const char *id, const struct outcome *o)
{
    char safe[ST_ID_MAX + 1];

    cli_safe(id, safe, sizeof(safe));
    if (o->err.code)
        cli_fail(c, &o->err);
    else if (o->asked)
        printf("%s asked to stop\n", safe);
    else if (o->new_id[0])
        printf("%s\n", o->new_id);
    else
        printf("%s %s\n", safe, done_words[what]);
}

static bool check_ids(struct cli *c, char **ids, int n)
{
    stint_error err;

    for (int i = 0; i < n; i++) {
        if (st_id_check(st_slice_cstr(ids[i]), &err)) {
            cli_fail(c, &err);
            return false;
        }
    }
    return true;
}

int cli_jobs_change(struct cli *c, enum cli_change what, char **ids, int n, bool only_dead)
{
    struct st_store *store = cli_store(c, 0);
    struct outcome o;
    int code = CLI_DONE;
    struct st_buf b;
    struct st_jw w;

    if (!store || !check_ids(c, ids, n))
        return c->exit;
    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "jobs");
    st_jw_open(&w, '[');
    for (int i = 0; i < n; i++) {
        change_one(c, store, what, ids[i], only_dead, &o);
        cli_remedy(c, &o.err);
        if (!code)
            code = cli_exit_code(o.err.code);
        if (c->json)
            put_outcome(&w, what, ids[i], &o);
        else
            say_outcome(c, what, ids[i], &o);
    }
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    if (c->json && n == 1 && code) {
        st_buf_clear(&b);
        return cli_fail(c, &o.err);
    }
    if (!c->json)
        st_buf_clear(&b);
    else if (cli_print_json(c, &b) != CLI_DONE)
        return c->exit;
    return code;
}

/* ---- all that a filter finds ------------------------------------------------------------ */

struct tally {
    size_t done, skipped;
};

static stint_code change_page(struct cli *c, struct st_store *store, enum cli_change what,
                              const struct st_job_info *list, size_t n, struct tally *t, stint_error *err)
{
    struct st_slice ids[PAGE] = {{NULL, 0}};
    stint_code verdicts[PAGE] = {STINT_OK};
    stint_code rc;

    for (size_t i = 0; i < n; i++)
        ids[i] = st_slice_cstr(list[i].id);
    rc = change(c, store, what, ids, n, verdicts, NULL, err);
    for (size_t i = 0; !rc && i < n; i++) {
        t->done += verdicts[i] == STINT_OK;
        t->skipped += verdicts[i] != STINT_OK;
    }
    return rc;
}

static int say_tally(struct cli *c, enum cli_change what, const struct tally *t)
{
    struct st_buf b;
    struct st_jw w;

    if (!c->json) {
        printf("%zu %s", t->done, done_words[what]);
        if (t->skipped)
            printf(", %zu left as they are (changed meanwhile, or their unique key is held by "
                   "another job)",
                   t->skipped);
        putchar('\n');
        return CLI_DONE;
    }
    st_buf_init(&b, 4096);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, done_words[what]);
    st_jw_int(&w, (int64_t)t->done);
    st_jw_key(&w, "skipped");
    st_jw_int(&w, (int64_t)t->skipped);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

int cli_dead_change(struct cli *c, enum cli_change what, struct cli_filter *f)
{
    struct st_store *store = cli_store(c, 0);
    struct tally t = {0};
    struct cli_progress p;
    stint_error err;
    stint_code rc = STINT_OK;
    bool more = true;

    if (!store)
        return c->exit;
    f->req.states = 1u << ST_SHOW_FAILED;
    f->req.limit = PAGE;
    cli_progress_start(c, &p, done_words[what], "jobs", 0);
    while (!rc && more) {
        struct st_job_info *list = NULL;
        uint64_t next = 0;
        size_t n = 0;

        rc = st_store_list(store, &f->req, &list, &n, &next, &err);
        if (!rc && n)
            rc = change_page(c, store, what, list, n, &t, &err);
        if (!rc)
            cli_progress_set(&p, (int64_t)(t.done + t.skipped), 0);
        st_job_info_list_free(list, n);
        f->req.after = next;
        more = next != 0;
    }
    cli_progress_end(&p);
    if (rc && t.done)
        cli_warn(c, "%zu were %s before this went wrong", t.done, done_words[what]);
    return rc ? cli_fail(c, &err) : say_tally(c, what, &t);
}
