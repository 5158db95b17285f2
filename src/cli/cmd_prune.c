/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_prune.c - `stint prune`: removes ended jobs whose retention is over, with their files.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

enum { OPT_SUCCEEDED = 1, OPT_FAILED, OPT_CANCELLED, OPT_DRY_RUN };

#define PAGE 1000

static const struct cli_option options[] = {
    {"succeeded", 0, "DURATION", OPT_SUCCEEDED, "keep succeeded jobs so long, or forever [7d]"},
    {"failed", 0, "DURATION", OPT_FAILED, "keep failed jobs so long, or forever [90d]"},
    {"cancelled", 0, "DURATION", OPT_CANCELLED, "keep cancelled jobs so long, or forever [7d]"},
    {"dry-run", 'n', NULL, OPT_DRY_RUN, "only count what would be removed"},
    {NULL, 0, NULL, 0, NULL},
};

struct flags {
    const char *keep[OPT_CANCELLED + 1]; /* as given, by option */
    bool dry_run;
};

/* A flag over the configuration.  To the store 0 is for ever, so that "0s" becomes the shortest
 * time there is. */
static bool set_keep(struct cli *c, const char *what, const char *arg, int64_t *us)
{
    if (!arg)
        return true;
    if (strcmp(arg, "forever") == 0) {
        *us = 0;
        return true;
    }
    if (!cli_duration(c, what, arg, us))
        return false;
    *us = *us ? *us : 1;
    return true;
}

struct tally {
    size_t jobs, files, left;
};

static int report(struct cli *c, const struct tally *t, bool dry_run)
{
    struct st_buf b;
    struct st_jw w;

    if (!c->json) {
        printf("%zu job%s %s", t->jobs, t->jobs == 1 ? "" : "s", dry_run ? "would be removed" : "removed");
        if (t->files)
            printf(", with %zu file%s", t->files, t->files == 1 ? "" : "s");
        putchar('\n');
    } else {
        st_buf_init(&b, 4096);
        st_jw_init(&w, &b);
        st_jw_open(&w, '{');
        st_jw_key(&w, "removed");
        st_jw_int(&w, (int64_t)t->jobs);
        if (!dry_run) { /* the store does not look for files then */
            st_jw_key(&w, "files");
            st_jw_int(&w, (int64_t)t->files);
        }
        st_jw_key(&w, "dry_run");
        st_jw_bool(&w, dry_run);
        st_jw_close(&w, '}');
        if (cli_print_json(c, &b) != CLI_DONE)
            return c->exit;
    }
    return t->left ? CLI_FAILED : CLI_DONE;
}

/* How much there is to do, for the bar; 0 = not known. */
static int64_t count(struct st_store *store, struct st_prune_req req)
{
    struct st_pruned p = {0};
    int64_t n = 0;

    req.dry_run = true; /* counts all there is, whatever the limit */
    if (st_store_prune(store, &req, &p, NULL) == STINT_OK)
        n = (int64_t)p.n;
    st_pruned_clear(&p);
    return n;
}

static stint_code prune(struct cli *c, struct st_store *store, struct st_prune_req *req, struct tally *t,
                        stint_error *err)
{
    struct cli_progress bar;
    stint_code rc = STINT_OK;
    int64_t total;
    bool more = true;

    cli_progress_start(c, &bar, "removing", "jobs", 0);
    total = bar.on ? count(store, *req) : 0;
    while (!rc && more) {
        struct st_pruned p = {0};

        rc = st_store_prune(store, req, &p, err);
        if (!rc) {
            size_t left = req->dry_run ? 0 : cli_unlink(c, &p);

            t->jobs += p.n;
            t->left += left;
            t->files += p.n_files - left;
            more = p.more && !req->dry_run;
            cli_progress_set(&bar, (int64_t)t->jobs, total);
        }
        st_pruned_clear(&p);
    }
    cli_progress_end(&bar);
    return rc;
}

static bool read_flags(struct cli *c, struct flags *f)
{
    const char *arg;
    int opt;

    while ((opt = cli_option(c, &arg)) > 0) {
        if (opt == OPT_DRY_RUN)
            f->dry_run = true;
        else
            f->keep[opt] = arg;
    }
    return opt != CLI_STOP && cli_args(c, 0, 0);
}

static int run(struct cli *c)
{
    struct flags f = {{NULL}, false};
    struct st_prune_req req = {.limit = PAGE};
    struct tally t = {0};
    const struct st_settings *s;
    struct st_store *store;
    stint_error err;

    if (!read_flags(c, &f))
        return c->exit;
    s = cli_settings(c);
    if (!s)
        return c->exit;
    req.keep = s->keep;
    req.dry_run = f.dry_run;
    if (!set_keep(c, "--succeeded", f.keep[OPT_SUCCEEDED], &req.keep.succeeded_us) ||
        !set_keep(c, "--failed", f.keep[OPT_FAILED], &req.keep.failed_us) ||
        !set_keep(c, "--cancelled", f.keep[OPT_CANCELLED], &req.keep.cancelled_us))
        return c->exit;
    store = cli_store(c, 0);
    if (!store)
        return c->exit;
    if (prune(c, store, &req, &t, &err)) {
        if (t.jobs)
            cli_warn(c, "%zu jobs were removed before this went wrong", t.jobs);
        return cli_fail(c, &err);
    }
    return report(c, &t, f.dry_run);
}

const struct cli_command cmd_prune = {
    .name = "prune",
    .summary = "remove old jobs that have ended",
    .synopsis = "[options]",
    .about = "Removes jobs that ended longer ago than `retention:` in stint.yaml says, with their "
             "result files and\n"
             "logs.  Workers do the same by themselves from time to time.  Unique keys that are "
             "held longer stay.",
    .options = options,
    .examples = "stint prune --dry-run\nstint prune --succeeded 1d",
    .exits = "1  a file could not be removed\n" CLI_EXIT_UNKNOWN,
    .run = run,
};
