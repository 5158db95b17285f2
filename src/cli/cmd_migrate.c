/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_migrate.c - `stint migrate [up|status]`: the version of the store's schema.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static int report(struct cli *c, const struct st_schema *before, const struct st_schema *now)
{
    struct st_buf b;
    struct st_jw w;

    if (!c->json) {
        if (before->have != now->have)
            printf("schema brought from version %d to %d\n", before->have, now->have);
        else if (now->have == now->want)
            printf("schema version %d: nothing to do\n", now->have);
        else
            printf("schema version %d; this program wants %d: run `stint migrate up`\n", now->have,
                   now->want);
        return CLI_DONE;
    }
    st_buf_init(&b, 4096);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "before");
    st_jw_int(&w, before->have);
    st_jw_key(&w, "have");
    st_jw_int(&w, now->have);
    st_jw_key(&w, "want");
    st_jw_int(&w, now->want);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

static int too_new(struct cli *c, struct st_store *store, const struct st_schema *s)
{
    struct st_store_about about = {0};

    st_store_about(store, &about);
    return cli_error(c, STINT_ESTORE, "use a newer stint",
                     "%s has schema version %d, newer than this program, which knows up to %d",
                     about.where, s->have, s->want);
}

static int run(struct cli *c)
{
    struct st_schema before = {0}, now = {0};
    struct st_store *store;
    const char *arg, *verb;
    stint_error err;
    bool up;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 0, 1))
        return c->exit;
    verb = c->n_args ? c->args[0] : "up";
    up = strcmp(verb, "up") == 0;
    if (!up && strcmp(verb, "status") != 0)
        return cli_usage(c, "'%s' is neither up nor status", verb);
    store = cli_store(c, CLI_NO_MIGRATE | (up ? CLI_CREATE : 0));
    if (!store)
        return c->exit;
    if (st_store_schema(store, false, &before, &err))
        return cli_fail(c, &err);
    if (before.have > before.want)
        return too_new(c, store, &before);
    now = before;
    if (up && st_store_schema(store, true, &now, &err))
        return cli_fail(c, &err);
    return report(c, &before, &now);
}

const struct cli_command cmd_migrate = {
    .name = "migrate",
    .summary = "bring the store's schema up to date, or show its version",
    .synopsis = "[up|status]",
    .about = "`up`, which is meant when nothing is said, brings the schema of the store to what "
             "this program wants,\n"
             "making the store if it is not there.  `status` only looks.  Other commands bring it "
             "up by themselves.",
    .examples = "stint migrate status\nstint backup before.db && stint migrate up",
    .run = run,
};
