/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_migrate.c - `stint migrate [up|down|status|sql]`: the version of the store's schema.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { OPT_TO = 1, OPT_YES };

static const struct cli_option options[] = {
    {"to", 0, "N", OPT_TO, "down: the version to go back to; 0 takes away everything [one less]"},
    {"yes", 0, NULL, OPT_YES, "down: do it; what was kept in the newer version is lost"},
    {NULL, 0, NULL, 0, NULL},
};

struct flags {
    const char *verb;
    int64_t to; /* -1 = not given */
    bool yes;
};

/* ---- telling ------------------------------------------------------------------------------ */

static void pending_json(struct st_jw *w, const struct st_schema *v)
{
    st_jw_key(w, "pending");
    st_jw_open(w, '[');
    for (int i = v->have + 1; i <= v->want; i++)
        st_jw_int(w, i);
    st_jw_close(w, ']');
}

/* sql may be NULL; key is what it is called. */
static int report_json(struct cli *c, const struct st_schema *before, const struct st_schema *now, const char *key,
                       const char *sql)
{
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "before");
    st_jw_int(&w, before->have);
    st_jw_key(&w, "have");
    st_jw_int(&w, now->have);
    st_jw_key(&w, "want");
    st_jw_int(&w, now->want);
    pending_json(&w, now);
    if (sql) {
        st_jw_key(&w, key);
        st_jw_str(&w, st_slice_cstr(sql));
    }
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

static void print_versions(const struct st_schema *before, const struct st_schema *now)
{
    if (before->have != now->have)
        printf("schema brought from version %d to %d\n", before->have, now->have);
    else if (now->have == now->want)
        printf("schema version %d: nothing to do\n", now->have);
    else if (now->have > now->want)
        printf("schema version %d, newer than this program's %d, which can work with it\n", now->have, now->want);
    else
        printf("schema version %d; this program wants %d: run `stint migrate up`\n", now->have, now->want);
}

/* roles: SQL that somebody with more rights must run, or "". */
static int report(struct cli *c, const struct st_schema *before, const struct st_schema *now, const char *roles)
{
    if (c->json)
        return report_json(c, before, now, "roles_sql", roles);
    print_versions(before, now);
    if (roles && *roles) {
        cli_warn(c, "the roles were not made, which takes CREATEROLE; whoever has it may run this");
        fputs(roles, stdout);
    }
    return CLI_DONE;
}

static int too_new(struct cli *c, struct st_store *store, const struct st_schema *s)
{
    struct st_store_about about = {0};

    st_store_about(store, &about);
    return cli_error(c, STINT_ESTORE, "use a newer stint",
                     "%s has schema version %d, newer than this program, which knows up to %d", about.where, s->have,
                     s->want);
}

/* ---- verbs -------------------------------------------------------------------------------- */

/* Are there roles to make beside a schema that is as new as it can be? */
static bool roles_missing(struct st_store *store, const struct st_schema *s)
{
    char *roles = NULL;
    bool missing;

    if (s->have != s->want || !store->ops->schema_sql ||
        st_store_schema_sql(store, ST_SCHEMA_SQL_ROLES, &roles, NULL) != STINT_OK)
        return false;
    missing = *roles;
    free(roles);
    return missing;
}

static int up(struct cli *c, struct st_store *store, const struct st_schema *before)
{
    const bool bare = roles_missing(store, before);
    struct st_schema now = {0};
    char *roles = NULL;
    stint_error err;
    int exit;

    if (st_store_schema(store, true, &now, &err))
        return cli_fail(c, &err);
    if (store->ops->schema_sql && st_store_schema_sql(store, ST_SCHEMA_SQL_ROLES, &roles, &err))
        return cli_fail(c, &err);
    if (bare && !*roles && !c->json) {
        printf("schema version %d: its roles were made\n", now.have);
        exit = CLI_DONE;
    } else {
        exit = report(c, before, &now, roles);
    }
    free(roles);
    return exit;
}

static int down(struct cli *c, struct st_store *store, const struct st_schema *before, const struct flags *f)
{
    const int to = f->to >= 0 ? (int)f->to : before->have > 0 ? before->have - 1 : 0;
    struct st_schema now = {0};
    stint_error err;

    if (!store->ops->schema_down)
        return cli_error(c, STINT_EINVAL,
                         before->have > 1 ? "restore a backup that was made before `stint migrate up`"
                                          : "there is no older version to go back to",
                         "the %s store cannot take its schema down", store->ops->name);
    if (to > before->have)
        return cli_usage(c, "--to %d is not down from version %d", to, before->have);
    if (to < before->have && !f->yes)
        return cli_error(c, STINT_EINVAL, "make a backup, then say --yes",
                         to == 0 ? "this takes away the whole store, every job included"
                                 : "this takes away what version %d keeps beyond version %d",
                         before->have, to);
    if (st_store_schema_down(store, to, &now, &err))
        return cli_fail(c, &err);
    if (c->json || before->have == now.have)
        return report(c, before, &now, NULL);
    printf("schema brought from version %d down to %d\n", before->have, now.have);
    return CLI_DONE;
}

static int sql(struct cli *c, struct st_store *store, const struct st_schema *before)
{
    stint_error err;
    char *text;
    int exit;

    if (st_store_schema_sql(store, ST_SCHEMA_SQL_UP, &text, &err))
        return cli_fail(c, &err);
    if (c->json)
        exit = report_json(c, before, before, "sql", text);
    else
        exit = fputs(*text ? text : "-- nothing to do\n", stdout) < 0 ? CLI_FAILED : CLI_DONE;
    free(text);
    return exit;
}

/* ---- running ------------------------------------------------------------------------------ */

static bool read_flags(struct cli *c, struct flags *f)
{
    static const char *const verbs[] = {"up", "down", "status", "sql"};
    const char *arg;
    int opt;

    f->to = -1;
    while ((opt = cli_option(c, &arg)) > 0) {
        if (opt == OPT_YES)
            f->yes = true;
        else if (!cli_int(c, "--to", arg, 0, 1000000, &f->to))
            return false;
    }
    if (opt == CLI_STOP || !cli_args(c, 0, 1))
        return false;
    f->verb = c->n_args ? c->args[0] : "up";
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(f->verb, verbs[i]) != 0)
            continue;
        if ((f->to < 0 && !f->yes) || i == 1)
            return true;
        cli_usage(c, "--to and --yes belong to `migrate down`");
        return false;
    }
    cli_usage(c, "'%s' is none of up, down, status and sql", f->verb);
    return false;
}

static int run(struct cli *c)
{
    struct st_schema before = {0};
    struct flags f = {0};
    struct st_store *store;
    stint_error err;

    if (!read_flags(c, &f))
        return c->exit;
    store = cli_store(c, CLI_NO_MIGRATE | (strcmp(f.verb, "up") == 0 ? CLI_CREATE : 0));
    if (!store)
        return c->exit;
    if (st_store_schema(store, false, &before, &err))
        return cli_fail(c, &err);
    if (st_schema_too_new(&before))
        return too_new(c, store, &before);
    if (strcmp(f.verb, "up") == 0)
        return up(c, store, &before);
    if (strcmp(f.verb, "down") == 0)
        return down(c, store, &before, &f);
    if (strcmp(f.verb, "sql") == 0)
        return sql(c, store, &before);
    return report(c, &before, &before, NULL);
}

const struct cli_command cmd_migrate = {
    .name = "migrate",
    .summary = "bring the store's schema up to date, or show its version",
    .synopsis = "[up|down|status|sql] [options]",
    .about = "`up`, which is meant when nothing is said, brings the schema of the store to what this\n"
             "program wants, making the store if it is not there.  `status` only looks.  `sql` prints "
             "what\n"
             "`up` would run, for whoever has the rights.  `down` goes back.\n"
             "A SQLite store is brought up by every command; a PostgreSQL store only here, once it is "
             "made.",
    .options = options,
    .examples = "stint migrate status\nstint backup before.db && stint migrate up\n"
                "stint migrate sql > stint.sql\nstint migrate down --to 1 --yes",
    .exits = "1  `down` was refused: others have tables in the schema\n" CLI_EXIT_UNKNOWN,
    .run = run,
};
