/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_schema.c - versions of the PostgreSQL store's schema, and how one becomes the next.
 *
 * {s}.schema_version has a row for each version that was applied.  Its compat is the oldest program
 * (by the version it wants) that can still work beside it.
 *
 *     nothing there            made when a store is opened, unless that is forbidden
 *     older than we want       refused: the operator runs `stint migrate up` when the time is right
 *     newer, compat <= ours    fine: programs are replaced one by one
 *     newer, compat >  ours    refused: use a newer stint
 *     tables, but not ours     refused
 *
 * A new version is two more files in sql/ and one more line in the list.  Each runs in a transaction of
 * its own (from nothing, and on the way down: all in one), under a lock made from the schema's name, in
 * which the version is read again: any number of programs may migrate at once.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/postgres_conn.h"
#include "store/postgres_files.h" /* made from sql/ by scripts/embed */

#define OPERATOR_MS 600000 /* somebody watches it */
#define SQL_MAX     ((size_t)8 << 20)

const struct st_pg_migration st_pg_migrations[] = {
    {1, 1, postgres_1_sql, postgres_1_down_sql},
    {2, 1, postgres_2_sql, postgres_2_down_sql},
};
const int st_pg_n_migrations = (int)(sizeof(st_pg_migrations) / sizeof(st_pg_migrations[0]));

static const char create_sql[] =
    "CREATE SCHEMA IF NOT EXISTS {s};\n"
    "CREATE TABLE IF NOT EXISTS {s}.schema_version(\n"
    "    version int PRIMARY KEY, compat int NOT NULL, applied timestamptz NOT NULL DEFAULT now());\n";
static const char lock_sql[] = "SET LOCAL search_path = pg_catalog;\n"
                               "SELECT pg_advisory_xact_lock(hashtextextended('stint migrate {s_plain}', 0));\n";

/* What is there. */
struct found {
    bool schema; /* there is a schema of this name */
    int have;    /* 0 = nothing of ours in it */
    int compat;
};

/* ---- running SQL -------------------------------------------------------------------------------- */

static int64_t until_ms(int64_t ms)
{
    return st_clock_mono_us() + ms * ST_MS;
}

/* On the handle's connection, never on a new one: there may be a transaction.  Whatever breaks it, the
 * server rolls back; only a COMMIT can leave doubt. */
static stint_code run(struct st_pg *s, const char *sql, bool params, int64_t until_us, PGresult **res, stint_error *err)
{
    char *text = st_pg_in_schema(s, sql);
    struct st_pg_args none;
    enum st_pg_fate fate;

    st_pg_args_init(&none);
    if (!text)
        return st_fail(err, STINT_ENOMEM, "no memory for the schema of %s", s->url.where);
    if (!s->c) {
        free(text);
        return st_fail(err, STINT_EAGAIN, "the connection to %s was lost", s->url.where);
    }
    fate = st_pg_exec_on(s, s->c, text, params ? &none : NULL, until_us, res, err);
    free(text);
    if (fate == ST_PG_DONE)
        return STINT_OK;
    if (fate != ST_PG_REFUSED)
        st_pg_conn_drop(s);
    return err->code;
}

static void rollback(struct st_pg *s)
{
    stint_error ignored = {0};

    if (s->c)
        run(s, "ROLLBACK", false, until_ms(1000), NULL, &ignored);
}

static stint_code commit(struct st_pg *s, int64_t until_us, stint_error *err)
{
    if (!run(s, "COMMIT", false, until_us, NULL, err))
        return STINT_OK;
    if (!s->c) {
        err->code = STINT_EUNKNOWN;
        st_err_remedy(err, "see what came of it: `stint migrate status`");
    }
    return err->code;
}

/* ---- looking --------------------------------------------------------------------------------------- */

static stint_code foreign(struct st_pg *s, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s: the schema %s has tables of another program", s->url.where, s->url.schema);
    st_err_remedy(err, "name another schema in the URL, for example schema=stint_jobs");
    return err->code;
}

static stint_code version_read(struct st_pg *s, int64_t until_us, struct found *f, stint_error *err)
{
    PGresult *r = NULL;

    if (run(s, "SELECT version, compat FROM {s}.schema_version ORDER BY version DESC LIMIT 1", true, until_us, &r, err))
        return err->code;
    if (PQntuples(r) == 1) {
        f->have = (int)st_pg_get_i64(r, 0, 0, 0);
        f->compat = (int)st_pg_get_i64(r, 0, 1, 0);
    }
    PQclear(r);
    return STINT_OK;
}

/* Fails for no reason but the connection and privileges, so that a transaction survives it. */
static stint_code look(struct st_pg *s, int64_t until_us, struct found *f, stint_error *err)
{
    static const char sql[] =
        "SELECT n.oid IS NOT NULL, EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = "
        "'schema_version'),"
        " EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f'))"
        " FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = '{s_plain}'";
    PGresult *r = NULL;
    bool versions, tables;

    memset(f, 0, sizeof(*f));
    if (run(s, sql, true, until_us, &r, err))
        return err->code;
    f->schema = st_pg_get_bool(r, 0, 0);
    versions = st_pg_get_bool(r, 0, 1);
    tables = st_pg_get_bool(r, 0, 2);
    PQclear(r);
    if (versions)
        return version_read(s, until_us, f, err);
    return tables ? foreign(s, err) : STINT_OK;
}

static stint_code judge(struct st_pg *s, const struct st_pg_migration *list, int n, const struct found *f,
                        stint_error *err)
{
    const int want = list[n - 1].version;

    if (f->have > want && f->compat > want) {
        st_fail(err, STINT_ESTORE, "%s has schema version %d, this program knows only up to %d", s->url.where, f->have,
                want);
        st_err_remedy(err, "use a newer stint");
        return err->code;
    }
    if (f->have > 0 && f->have < want) {
        st_fail(err, STINT_ESTORE, "%s has schema version %d, this program wants %d", s->url.where, f->have, want);
        st_err_remedy(err, "run `stint migrate up`");
        return err->code;
    }
    return STINT_OK;
}

static stint_code look_and_judge(struct st_pg *s, const struct st_pg_migration *list, int n, int64_t until_us,
                                 struct found *f, stint_error *err)
{
    return look(s, until_us, f, err) ? err->code : judge(s, list, n, f, err);
}

stint_code st_pg_schema_check(struct st_pg *s, const struct st_pg_migration *list, int n, int *have, stint_error *err)
{
    struct found f = {0};
    stint_code code = st_pg_fork_check(s, err);

    st_pg_own(s)->until_us = until_ms(s->base.timeout_ms);
    if (!code)
        code = st_pg_conn_up(s, err);
    if (!code)
        code = look_and_judge(s, list, n, st_pg_own(s)->until_us, &f, err);
    *have = f.have;
    return code;
}

static stint_code nothing_there(struct st_pg *s, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s: there is no store in schema %s", s->url.where, s->url.schema);
    st_err_remedy(err, "make one with `stint migrate up`, or name another schema in the URL");
    return err->code;
}

stint_code st_pg_schema_known(struct st_pg *s, stint_error *err)
{
    struct found f;

    if (look_and_judge(s, st_pg_migrations, st_pg_n_migrations, st_pg_own(s)->until_us, &f, err))
        return err->code;
    if (f.have == 0)
        return nothing_there(s, err);
    s->checked = true;
    return STINT_OK;
}

/* ---- up ------------------------------------------------------------------------------------------------ */

static const struct st_pg_migration *after(const struct st_pg_migration *list, int n, int have)
{
    for (int i = 0; i < n; i++)
        if (list[i].version > have)
            return &list[i];
    return NULL;
}

static stint_code begin(struct st_pg *s, int64_t until_us, stint_error *err)
{
    char sql[256];

    snprintf(sql, sizeof(sql), "BEGIN; SET LOCAL statement_timeout = %d; %s",
             (int)((until_us - st_clock_mono_us()) / ST_MS + 1000), lock_sql);
    return run(s, sql, false, until_us, NULL, err);
}

static stint_code apply(struct st_pg *s, const struct st_pg_migration *m, bool first, int64_t until_us,
                        stint_error *err)
{
    char sql[128];

    if (first && run(s, create_sql, false, until_us, NULL, err))
        return err->code;
    if (run(s, m->up, false, until_us, NULL, err)) {
        st_err_prefix(err, "migration to version %d", m->version);
        return err->code;
    }
    snprintf(sql, sizeof(sql), "INSERT INTO {s}.schema_version(version, compat) VALUES (%d, %d)", m->version,
             m->compat);
    return run(s, sql, false, until_us, NULL, err);
}

/* Who may not make it can have it made. */
static stint_code not_allowed(struct st_pg *s, const struct found *f, stint_error *err)
{
    const char *user = s->c && PQuser(s->c) ? PQuser(s->c) : "the user";
    const char *db = s->c && PQdb(s->c) ? PQdb(s->c) : "the database";

    if (strcmp(err->detail, "42501") != 0)
        return err->code;
    if (f->schema)
        st_err_remedy(err,
                      "GRANT CREATE, USAGE ON SCHEMA %s TO %s, or let its owner run what `stint migrate sql` prints",
                      s->url.quoted, user);
    else
        st_err_remedy(err,
                      "GRANT CREATE ON DATABASE \"%s\" TO %s, or let its owner run what `stint migrate sql` prints", db,
                      user);
    return err->code;
}

/* One version further; from nothing to the last at once, so that nobody ever finds half a store.  *done: there is none. */
static stint_code up_one(struct st_pg *s, const struct st_pg_migration *list, int n, int64_t until_us, bool *done,
                         stint_error *err)
{
    const struct st_pg_migration *m;
    struct found f = {0};
    stint_code code = begin(s, until_us, err);
    int to;

    if (!code)
        code = look(s, until_us, &f, err);
    to = f.have;
    while (!code && (f.have == 0 || to == f.have) && (m = after(list, n, to))) {
        code = apply(s, m, to == 0, until_us, err);
        to = m->version;
    }
    if (code && to != f.have)
        not_allowed(s, &f, err);
    if (code || to == f.have) {
        rollback(s);
        *done = !code;
        return code ? code : judge(s, list, n, &f, err);
    }
    if (commit(s, until_us, err))
        return err->code;
    st_log(ST_LOG_INFO, "store.migrated", ST_F("where", s->url.where), ST_FI("from", f.have), ST_FI("to", to));
    return STINT_OK;
}

static stint_code up_until(struct st_pg *s, const struct st_pg_migration *list, int n, int64_t until_us,
                           stint_error *err)
{
    bool done = false;

    st_pg_own(s)->until_us = until_us;
    if (st_pg_fork_check(s, err) || st_pg_conn_up(s, err))
        return err->code;
    while (!done)
        if (up_one(s, list, n, until_us, &done, err))
            return err->code;
    return STINT_OK;
}

stint_code st_pg_schema_up(struct st_pg *s, const struct st_pg_migration *list, int n, stint_error *err)
{
    return up_until(s, list, n, until_ms(OPERATOR_MS), err);
}

/* What opening a store makes must be there within the time of a call. */
stint_code st_pg_schema_open(struct st_pg *s, stint_error *err)
{
    const int64_t until_us = st_pg_own(s)->until_us;
    struct found f;

    if (look_and_judge(s, st_pg_migrations, st_pg_n_migrations, until_us, &f, err))
        return err->code;
    if (f.have == 0 && s->no_create)
        return nothing_there(s, err);
    if (f.have == 0 && up_until(s, st_pg_migrations, st_pg_n_migrations, until_us, err))
        return err->code;
    s->checked = true;
    return STINT_OK;
}

/* ---- down ------------------------------------------------------------------------------------------------ */

/* The newest version, `have`, goes. */
static stint_code down_one(struct st_pg *s, const struct st_pg_migration *list, int n, int have, int64_t until_us,
                           stint_error *err)
{
    const struct st_pg_migration *m = NULL;
    char sql[96];

    for (int i = 0; i < n; i++)
        if (list[i].version == have)
            m = &list[i];
    if (!m) {
        st_fail(err, STINT_ESTORE, "%s has schema version %d, which this program does not know", s->url.where, have);
        st_err_remedy(err, "use the stint that made it");
        return err->code;
    }
    snprintf(sql, sizeof(sql), "DELETE FROM {s}.schema_version WHERE version = %d", have);
    if (!run(s, sql, false, until_us, NULL, err) && !run(s, m->down, false, until_us, NULL, err))
        return STINT_OK;
    st_err_prefix(err, "migration down from version %d", have);
    if (strcmp(err->detail, "42501") == 0)
        st_err_remedy(err, "run it as the owner of the schema; no role of ours may do it");
    return err->code;
}

/* In one transaction: where one version will not go, none has gone. */
static stint_code down_until(struct st_pg *s, const struct st_pg_migration *list, int n, int to, int64_t until_us,
                             stint_error *err)
{
    struct found f = {0};
    stint_code code = begin(s, until_us, err);

    if (!code)
        code = look(s, until_us, &f, err);
    while (!code && f.have > to) {
        code = down_one(s, list, n, f.have, until_us, err);
        if (!code)
            code = look(s, until_us, &f, err);
    }
    if (!code)
        return commit(s, until_us, err);
    rollback(s);
    return code;
}

stint_code st_pg_schema_down(struct st_pg *s, const struct st_pg_migration *list, int n, int to, stint_error *err)
{
    const int64_t until_us = until_ms(OPERATOR_MS);

    st_pg_own(s)->until_us = until_us;
    if (st_pg_fork_check(s, err) || st_pg_conn_up(s, err) || down_until(s, list, n, to, until_us, err))
        return err->code;
    s->checked = false;
    return STINT_OK;
}

/* ---- roles --------------------------------------------------------------------------------------------------- */

/* Are the roles there?  May we make them? */
static stint_code roles_look(struct st_pg *s, int64_t until_us, bool *there, bool *may, stint_error *err)
{
    static const char sql[] =
        "SELECT (SELECT count(*) FROM pg_roles WHERE rolname IN"
        " ('{s_plain}_enqueue', '{s_plain}_worker', '{s_plain}_read')) = 3,"
        " EXISTS (SELECT FROM pg_roles WHERE rolname = current_user AND (rolcreaterole OR rolsuper))";
    PGresult *r = NULL;

    if (run(s, sql, true, until_us, &r, err))
        return err->code;
    *there = st_pg_get_bool(r, 0, 0);
    *may = st_pg_get_bool(r, 0, 1);
    PQclear(r);
    return STINT_OK;
}

/* With the migration, as far as we may: whoever may not gets the text (`stint migrate sql`). */
static stint_code roles_make(struct st_pg *s, int64_t until_us, stint_error *err)
{
    bool there = false, may = false;

    if (roles_look(s, until_us, &there, &may, err))
        return err->code;
    if (!there && !may)
        return STINT_OK;
    if (begin(s, until_us, err) || run(s, postgres_roles_sql, false, until_us, NULL, err)) {
        const bool refused = strcmp(err->detail, "42501") == 0;

        rollback(s);
        if (refused)
            st_err_clear(err);
        return err->code;
    }
    return commit(s, until_us, err);
}

/* ---- what the store's table calls ------------------------------------------------------------------------------- */

static stint_code version_now(struct st_pg *s, struct st_schema *out, stint_error *err)
{
    struct found f;

    st_pg_own(s)->until_us = until_ms(s->base.timeout_ms);
    if (st_pg_fork_check(s, err) || st_pg_conn_up(s, err) || look(s, st_pg_own(s)->until_us, &f, err))
        return err->code;
    out->have = f.have;
    out->compat = f.compat;
    out->want = st_pg_migrations[st_pg_n_migrations - 1].version;
    return STINT_OK;
}

static stint_code told(const stint_error *local, stint_error *err)
{
    if (local->code && err)
        *err = *local;
    return local->code;
}

stint_code st_pg_schema(struct st_store *store, bool up, struct st_schema *out, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};

    memset(out, 0, sizeof(*out));
    if (up && !st_pg_schema_up(s, st_pg_migrations, st_pg_n_migrations, &local))
        roles_make(s, until_ms(OPERATOR_MS), &local);
    if (!local.code)
        version_now(s, out, &local);
    return told(&local, err);
}

stint_code st_pg_schema_take_down(struct st_store *store, int to, struct st_schema *out, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};

    memset(out, 0, sizeof(*out));
    if (!st_pg_schema_down(s, st_pg_migrations, st_pg_n_migrations, to, &local))
        version_now(s, out, &local);
    return told(&local, err);
}

/* As `up` does it, for a file that somebody else runs. */
static void sql_put(struct st_buf *b, const struct st_pg_migration *m, bool first)
{
    st_buf_puts(b, "BEGIN;\n");
    st_buf_puts(b, lock_sql);
    if (first)
        st_buf_puts(b, create_sql);
    st_buf_puts(b, m->up);
    st_buf_printf(b, "INSERT INTO {s}.schema_version(version, compat) VALUES (%d, %d);\nCOMMIT;\n\n", m->version,
                  m->compat);
}

stint_code st_pg_schema_sql(struct st_store *store, enum st_schema_sql what, char **sql, stint_error *err)
{
    struct st_pg *s = st_pg_of(store);
    const struct st_pg_migration *m;
    struct st_schema v = {0};
    stint_error local = {0};
    bool there = false, may;
    struct st_buf b;
    char *text;

    *sql = NULL;
    if (version_now(s, &v, &local) || roles_look(s, st_pg_own(s)->until_us, &there, &may, &local))
        return told(&local, err);
    st_buf_init(&b, SQL_MAX);
    st_buf_puts(&b, "");
    for (int have = v.have; what == ST_SCHEMA_SQL_UP && (m = after(st_pg_migrations, st_pg_n_migrations, have));
         have = m->version)
        sql_put(&b, m, have == 0);
    if (!there || b.len)
        st_buf_puts(&b, postgres_roles_sql);
    text = st_buf_take(&b);
    *sql = text ? st_pg_in_schema(s, text) : NULL;
    free(text);
    return *sql ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory for the SQL of the schema");
}
