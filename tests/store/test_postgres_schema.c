/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_schema.c - versions of the PostgreSQL store's schema: up, down, beside older and newer programs.
 */
#include "postgres_kit.h"

static const struct st_pg_migration more[] = {
    {1, 1, "", ""},
    {2, 1, "CREATE TABLE {s}.t_two(x int)", "DROP TABLE {s}.t_two"},
    {3, 3, "CREATE TABLE {s}.t_three(x int); SELECT 1 / 0", ""},
};

/* As if only the first version were there. */
static struct st_pg *at_version_one(void)
{
    struct st_pg *s = kit_open();

    kit_exec(s, "DELETE FROM {s}.schema_version WHERE version > 1");
    return s;
}

static void several_programs_make_it_at_once(void **state)
{
    const struct st_store_open opt = {.timeout_ms = 30000};
    struct st_pg *s;
    pid_t pids[6];

    (void)state;
    for (int i = 0; i < 6; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            s = kit_open_url(kit_url, &opt);
            if (s)
                kit_close(s);
            _exit(!s);
        }
    }
    for (int i = 0; i < 6; i++)
        kit_join(pids[i], 0);
    kit_close(kit_open());
}

static void a_store_that_is_not_there_is_not_made_unasked(void **state)
{
    const struct st_store_open opt = {.timeout_ms = 20000, .no_create = true};

    (void)state;
    assert_null(kit_open_url(kit_url, &opt));
    assert_int_equal(kit_err.code, STINT_ESTORE);
    assert_non_null(strstr(kit_err.remedy, "stint migrate up"));
}

static void tables_of_another_program_are_refused(void **state)
{
    const struct st_store_open look = {.timeout_ms = 20000, .no_migrate = true}, opt = {.timeout_ms = 20000};
    struct st_pg *s = kit_open_url(kit_url, &look);

    (void)state;
    assert_non_null(s);
    kit_exec(s, "CREATE SCHEMA {s}; CREATE TABLE {s}.theirs(x int)");
    kit_close(s);
    assert_null(kit_open_url(kit_url, &opt));
    assert_int_equal(kit_err.code, STINT_ESTORE);
    assert_non_null(strstr(kit_err.message, "another program"));
}

static void a_schema_that_is_empty_is_used(void **state)
{
    const struct st_store_open look = {.timeout_ms = 20000, .no_migrate = true};
    struct st_pg *s = kit_open_url(kit_url, &look);

    (void)state;
    assert_non_null(s);
    kit_exec(s, "CREATE SCHEMA {s}");
    kit_close(s);
    kit_close(kit_open());
}

static void an_older_schema_waits_for_the_operator(void **state)
{
    struct st_pg *s = at_version_one();
    int have;

    (void)state;
    assert_int_equal(st_pg_schema_check(s, more, 2, &have, &kit_err), STINT_ESTORE);
    assert_non_null(strstr(kit_err.remedy, "stint migrate up"));
    assert_int_equal(have, 1);
    OK(st_pg_schema_up(s, more, 2, &kit_err));
    OK(st_pg_schema_check(s, more, 2, &have, &kit_err));
    assert_int_equal(have, 2);
    OK(st_pg_schema_check(s, more, 1, &have, &kit_err)); /* compat 1: an old program goes on */
    OK(st_pg_schema_down(s, more, 2, 1, &kit_err));
    OK(st_pg_schema_check(s, more, 1, &have, &kit_err));
    assert_int_equal(have, 1);
    kit_close(s);
}

static void a_version_that_fails_leaves_nothing(void **state)
{
    struct st_pg *s = at_version_one();
    int have;

    (void)state;
    assert_int_equal(st_pg_schema_up(s, more, 3, &kit_err), STINT_ESTORE);
    assert_non_null(strstr(kit_err.message, "version 3"));
    OK(st_pg_schema_check(s, more, 2, &have, &kit_err)); /* the one before it is there */
    assert_int_equal(have, 2);
    assert_int_not_equal(st_pg_exec(s, "SELECT FROM {s}.t_three", NULL, false, NULL, &kit_err), STINT_OK);
    assert_string_equal(kit_err.detail, "42P01");
    kit_close(s);
}

static void a_newer_schema_is_used_as_long_as_it_allows(void **state)
{
    struct st_pg *s = kit_open();

    (void)state;
    kit_tables(s);
    kit_exec(s, "INSERT INTO {s}.schema_version(version, compat) VALUES (99, 1)");
    st_pg_conn_drop(s);
    assert_int_equal(kit_count(s), 0);
    kit_exec(s, "UPDATE {s}.schema_version SET compat = 98 WHERE version = 99");
    st_pg_conn_drop(s);
    assert_int_equal(kit_call(s, Q_ADD, 1, true), STINT_ESTORE);
    assert_non_null(strstr(kit_err.remedy, "newer stint"));
    kit_close(s);
}

static void run_file(struct st_pg *s, const char *sql)
{
    PGconn *c = st_pg_connect(s, NULL, NULL, &kit_err);
    PGresult *r = PQexec(c, sql);

    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        fail_msg("%s", PQerrorMessage(c));
    PQclear(r);
    PQfinish(c);
}

static void what_sql_prints_is_what_up_does(void **state)
{
    struct st_pg *s = kit_open();
    struct st_schema v;
    char *sql;

    (void)state;
    OK(st_store_schema_down(&s->base, 0, &v, &kit_err));
    assert_int_equal(v.have, 0);
    OK(st_store_schema_sql(&s->base, ST_SCHEMA_SQL_UP, &sql, &kit_err));
    run_file(s, sql);
    free(sql);
    OK(st_store_schema(&s->base, false, &v, &kit_err));
    assert_int_equal(v.have, v.want);
    OK(st_store_schema_sql(&s->base, ST_SCHEMA_SQL_ROLES, &sql, &kit_err));
    assert_string_equal(sql, "");
    free(sql);
    OK(st_store_schema_sql(&s->base, ST_SCHEMA_SQL_UP, &sql, &kit_err));
    assert_string_equal(sql, "");
    free(sql);
    kit_close(s);
}

/* ---- rights ------------------------------------------------------------------------------------------- */

/* The same URL as another user. */
static void url_as(const char *user, char *out, size_t size)
{
    const char *rest = strstr(kit_url, "postgres@");

    assert_non_null(rest);
    snprintf(out, size, "postgres://%s@%s", user, rest + strlen("postgres@"));
}

static void who_may_not_make_it_is_told_what_is_missing(void **state)
{
    const struct st_store_open look = {.timeout_ms = 20000, .no_migrate = true}, opt = {.timeout_ms = 20000};
    struct st_pg *s = kit_open_url(kit_url, &look), *theirs;
    char user[96], sql[256], url[1024];
    struct st_schema v;
    char *roles;

    (void)state;
    KIT_DIRECT; /* the pooler logs in as one user */
    snprintf(user, sizeof(user), "%s_user", kit_schema);
    url_as(user, url, sizeof(url));
    snprintf(sql, sizeof(sql), "CREATE ROLE %s LOGIN", user);
    kit_exec(s, sql);
    assert_null(kit_open_url(url, &opt));
    assert_int_equal(kit_err.code, STINT_ESTORE);
    assert_string_equal(kit_err.detail, "42501");
    assert_non_null(strstr(kit_err.remedy, "GRANT CREATE ON DATABASE"));

    /* with that right it is made, and only the roles are missing */
    snprintf(sql, sizeof(sql), "GRANT CREATE ON DATABASE test TO %s", user);
    kit_exec(s, sql);
    theirs = kit_open_url(url, &opt);
    if (!theirs)
        fail_msg("%s", kit_err.message);
    OK(st_store_schema(&theirs->base, true, &v, &kit_err));
    OK(st_store_schema_sql(&theirs->base, ST_SCHEMA_SQL_ROLES, &roles, &kit_err));
    assert_non_null(strstr(roles, "_worker"));
    run_file(s, roles);
    free(roles);
    kit_close(theirs);
    kit_exec(s, "DROP SCHEMA {s} CASCADE");
    snprintf(sql, sizeof(sql), "DROP OWNED BY %s; DROP ROLE %s", user, user);
    kit_exec(s, sql);
    kit_close(s);
}

static void a_role_without_rights_is_told_so_and_a_worker_works(void **state)
{
    const struct st_store_open opt = {.timeout_ms = 20000, .no_create = true};
    struct st_pg *s = kit_open(), *theirs;
    char user[96], sql[256], url[1024];
    struct st_schema v;

    (void)state;
    OK(st_store_schema(&s->base, true, &v, &kit_err)); /* the roles */
    snprintf(user, sizeof(user), "%s_user", kit_schema);
    url_as(user, url, sizeof(url));
    snprintf(sql, sizeof(sql), "CREATE ROLE %s LOGIN", user);
    if (!kit_pooled()) {
        kit_exec(s, sql);
        assert_null(kit_open_url(url, &opt));
        assert_int_equal(kit_err.code, STINT_ESTORE);
        assert_string_equal(kit_err.detail, "42501");
        snprintf(sql, sizeof(sql), "GRANT %s_worker TO %s", kit_schema, user);
        kit_exec(s, sql);
        theirs = kit_open_url(url, &opt);
        if (!theirs)
            fail_msg("%s", kit_err.message);
        kit_close(theirs);
        snprintf(sql, sizeof(sql), "DROP ROLE %s", user);
        kit_exec(s, sql);
    }
    kit_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(several_programs_make_it_at_once),
        KIT_TEST(a_store_that_is_not_there_is_not_made_unasked),
        KIT_TEST(tables_of_another_program_are_refused),
        KIT_TEST(a_schema_that_is_empty_is_used),
        KIT_TEST(an_older_schema_waits_for_the_operator),
        KIT_TEST(a_version_that_fails_leaves_nothing),
        KIT_TEST(a_newer_schema_is_used_as_long_as_it_allows),
        KIT_TEST(what_sql_prints_is_what_up_does),
        KIT_TEST(who_may_not_make_it_is_told_what_is_missing),
        KIT_TEST(a_role_without_rights_is_told_so_and_a_worker_works),
    };

    KIT_NEEDS_SERVER
    return cmocka_run_group_tests(tests, NULL, NULL);
}
