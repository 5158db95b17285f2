/* SPDX-License-Identifier: Apache-2.0
 *
 * job_list.c - choosing jobs: the filters of `job list` and `dead`, and a page of what they find.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jobs.h"

#define LIMIT_MAX 10000

void cli_filter_init(struct cli_filter *f)
{
    memset(f, 0, sizeof(*f));
    f->req.limit = 50;
}

static bool unknown_state(struct cli *c, struct st_slice word)
{
    char names[160] = "there are: ";

    for (int s = 0; s < ST_SHOWN_N; s++) {
        strcat(names, s ? ", " : "");
        strcat(names, st_shown_name((enum st_shown)s));
    }
    cli_error(c, STINT_EINVAL, names, "--state: '%.*s' is no state", (int)(word.len > 60 ? 60 : word.len), word.p);
    return false;
}

/* "failed" or "pending,running" */
static bool add_states(struct cli *c, struct cli_filter *f, const char *arg)
{
    for (;;) {
        struct st_slice word = {arg, strcspn(arg, ",")};
        enum st_shown shown;

        if (!st_shown_parse(word, &shown))
            return unknown_state(c, word);
        f->req.states |= 1u << shown;
        if (!arg[word.len])
            return true;
        arg += word.len + 1;
    }
}

/* A time, or how long ago. */
static bool set_before(struct cli *c, struct cli_filter *f, const char *arg)
{
    int64_t us;

    if (st_duration_parse(st_slice_cstr(arg), &us, NULL) == STINT_OK) {
        f->req.ended_before_us = st_clock_real_us() - us;
        return true;
    }
    if (st_time_parse(st_slice_cstr(arg), &f->req.ended_before_us, NULL) == STINT_OK)
        return true;
    cli_usage(c, "--before: '%.60s' is neither a duration (7d) nor a time (2030-01-01T12:00:00Z)", arg);
    return false;
}

static bool set_after(struct cli *c, struct cli_filter *f, const char *arg)
{
    char *end;

    errno = 0;
    f->req.after = strtoull(arg, &end, 10);
    if (arg[0] >= '0' && arg[0] <= '9' && !*end && !errno)
        return true;
    cli_usage(c, "--after: '%.60s' is no cursor; it is the `next` of the page before", arg);
    return false;
}

static bool set_pattern(struct cli *c, struct cli_filter *f, const char *arg)
{
    stint_error err;

    f->req.type = st_slice_cstr(arg);
    if (st_type_pattern_check(f->req.type, &err) == STINT_OK)
        return true;
    cli_fail(c, &err);
    return false;
}

static bool set_queue(struct cli *c, struct cli_filter *f, const char *arg)
{
    stint_error err;

    f->req.queue = st_slice_cstr(arg);
    if (st_queue_check(f->req.queue, &err) == STINT_OK)
        return true;
    cli_fail(c, &err);
    return false;
}

static bool set_limit(struct cli *c, struct cli_filter *f, const char *arg)
{
    int64_t n;

    if (!cli_int(c, "--limit", arg, 1, LIMIT_MAX, &n))
        return false;
    f->req.limit = (size_t)n;
    return true;
}

bool cli_filter_option(struct cli *c, struct cli_filter *f, int opt, const char *arg)
{
    f->any |= opt != CLI_F_LIMIT && opt != CLI_F_AFTER && opt != CLI_F_PAYLOAD;
    switch (opt) {
    case CLI_F_STATE:
        return add_states(c, f, arg);
    case CLI_F_QUEUE:
        return set_queue(c, f, arg);
    case CLI_F_TYPE:
        return set_pattern(c, f, arg);
    case CLI_F_SPEC:
        f->req.spec_hash = st_slice_cstr(arg);
        return true;
    case CLI_F_WORKER:
        f->req.worker = st_slice_cstr(arg);
        return true;
    case CLI_F_KEY:
        f->req.key = st_slice_cstr(arg);
        return true;
    case CLI_F_BEFORE:
        return set_before(c, f, arg);
    case CLI_F_LIMIT:
        return set_limit(c, f, arg);
    case CLI_F_AFTER:
        return set_after(c, f, arg);
    default:
        f->req.with_payload = true;
        return true;
    }
}

int cli_jobs_list(struct cli *c, struct cli_filter *f)
{
    struct st_store *store = cli_store(c, 0);
    struct st_job_info *list = NULL;
    uint64_t next = 0;
    stint_error err;
    size_t n = 0;

    if (!store)
        return c->exit;
    if (st_store_list(store, &f->req, &list, &n, &next, &err))
        return cli_fail(c, &err);
    return cli_jobs_print(c, list, n, next, st_store_now(store));
}
