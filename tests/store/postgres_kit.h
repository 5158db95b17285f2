/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_kit.h - what the tests of the PostgreSQL store's own files share.
 *
 * They run beside a server that scripts/pg-test has started; without one the program is skipped.  Each test has a schema of
 * its own.  Behind a pooler (the URL has listen=) what needs the server's own session is left out.
 */
#ifndef ST_TESTS_STORE_POSTGRES_KIT_H
#define ST_TESTS_STORE_POSTGRES_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/postgres_conn.h"

#define S(text)    st_slice_cstr(text)
#define OK(call)   assert_int_equal((call), STINT_OK)
#define SKIPPED    77
#define TIMEOUT_MS 1500

/* Statements of the tests take the places of some of the store's; see kit_say. */
#define Q_ADD      ((enum st_pg_sql)0) /* one row, value $1 */
#define Q_COUNT    ((enum st_pg_sql)1) /* how many rows */
#define Q_DIVIDE   ((enum st_pg_sql)2) /* 1 / $1 */
#define Q_SLEEP    ((enum st_pg_sql)3) /* $1 ms */
#define Q_ADD_SLOW ((enum st_pg_sql)4) /* a row, after 800 ms */
#define Q_ADD_ONCE ((enum st_pg_sql)5) /* refused at COMMIT when it is there already */
#define Q_RAISE    ((enum st_pg_sql)6) /* SQLSTATE $1, message $2 */
#define Q_LENGTH   ((enum st_pg_sql)7) /* of the text $1 */
#define Q_ECHO     ((enum st_pg_sql)8)

static char kit_url[1024], kit_schema[64];
static stint_error kit_err;

static bool kit_pooled(void)
{
    return strstr(kit_url, "&listen=") != NULL;
}

static void kit_name_schema(void)
{
    unsigned random[2];

    st_random(random, sizeof(random));
    snprintf(kit_schema, sizeof(kit_schema), "t_%08x%08x", random[0], random[1]);
    snprintf(kit_url, sizeof(kit_url), "%s&schema=%s", getenv("STINT_TEST_PG"), kit_schema);
}

static struct st_pg *kit_open_url(const char *url, const struct st_store_open *opt)
{
    struct st_store *s;

    memset(&kit_err, 0, sizeof(kit_err));
    return st_store_open(url, opt, &s, &kit_err) ? NULL : st_pg_of(s);
}

/* The store's statement `which` is from now on this text, with {s}. */
static inline void kit_say(struct st_pg *s, enum st_pg_sql which, const char *sql)
{
    free(s->text[which]);
    s->text[which] = st_pg_in_schema(s, sql);
    assert_non_null(s->text[which]);
}

static inline void kit_statements(struct st_pg *s)
{
    kit_say(s, Q_ADD, "INSERT INTO {s}.t_row(v) VALUES ($1)");
    kit_say(s, Q_COUNT, "SELECT count(*) FROM {s}.t_row");
    kit_say(s, Q_DIVIDE, "SELECT 1 / $1");
    kit_say(s, Q_SLEEP, "SELECT pg_sleep($1 / 1000.0)");
    kit_say(s, Q_ADD_SLOW, "INSERT INTO {s}.t_row(v) SELECT $1 FROM pg_sleep(0.8)");
    kit_say(s, Q_ADD_ONCE, "INSERT INTO {s}.t_once(v) VALUES ($1)");
    kit_say(s, Q_RAISE, "SELECT {s}.t_raise($1, $2)");
    kit_say(s, Q_LENGTH, "SELECT length($1)");
    kit_say(s, Q_ECHO,
            "SELECT $1::int8, $2::int4, $3::bool, $4::text, $5::bytea, $6::int8[], $7::bytea[], $8::int2,"
            " $9::text[], array_length($10::int4[], 1), $11::int2[]");
}

/* Of a call; the session that has the old one goes. */
static inline void kit_timeout(struct st_pg *s, int ms)
{
    s->base.timeout_ms = ms;
    st_pg_conn_drop(s);
}

static inline struct st_pg *kit_open(void)
{
    struct st_store_open opt = {.timeout_ms = 20000}; /* to make the schema */
    struct st_pg *s = kit_open_url(kit_url, &opt);

    if (!s)
        fail_msg("open %s: %s", kit_url, kit_err.message);
    kit_timeout(s, TIMEOUT_MS);
    kit_statements(s);
    return s;
}

static inline void kit_close(struct st_pg *s)
{
    st_store_close(&s->base);
}

static inline void kit_exec(struct st_pg *s, const char *sql)
{
    if (st_pg_exec(s, sql, NULL, true, NULL, &kit_err))
        fail_msg("%s: %s", sql, kit_err.message);
}

/* So that a server that is stopped has little left to write.  What others have written costs as long as the disk takes. */
static inline void kit_checkpoint(struct st_pg *s)
{
    kit_timeout(s, 60000);
    kit_exec(s, "CHECKPOINT");
    kit_timeout(s, TIMEOUT_MS);
    kit_exec(s, "SELECT 1"); /* connected, as before */
}

static inline void kit_tables(struct st_pg *s)
{
    kit_exec(s, "CREATE TABLE {s}.t_row(v int);"
                "CREATE TABLE {s}.t_once(v int UNIQUE DEFERRABLE INITIALLY DEFERRED);"
                "CREATE FUNCTION {s}.t_raise(c text, m text) RETURNS int LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION USING errcode = c, message = m; END $$");
}

/* One call with an int4; its code. */
static inline stint_code kit_call(struct st_pg *s, enum st_pg_sql which, int v, bool writes)
{
    struct st_pg_args a;
    stint_code code;

    memset(&kit_err, 0, sizeof(kit_err));
    st_pg_args_init(&a);
    st_pg_i32(&a, v);
    code = st_pg_call(s, which, &a, writes, NULL, &kit_err);
    st_pg_args_clear(&a);
    assert_int_equal(code, kit_err.code);
    return code;
}

static inline int64_t kit_count(struct st_pg *s)
{
    PGresult *r;
    int64_t n;

    if (st_pg_call(s, Q_COUNT, NULL, false, &r, &kit_err))
        fail_msg("count: %s", kit_err.message);
    n = st_pg_get_i64(r, 0, 0, -1);
    PQclear(r);
    return n;
}

/* start, stop, restart, kill, freeze, thaw */
static inline void kit_server(const char *what)
{
    char command[512];

    snprintf(command, sizeof(command), "%s %s", getenv("STINT_TEST_PG_CTL"), what);
    assert_int_equal(system(command), 0);
}

/* The same in a moment, from another process. */
static inline pid_t kit_server_soon(const char *what)
{
    char command[512];
    pid_t pid;

    snprintf(command, sizeof(command), "sleep 0.3; exec %s %s", getenv("STINT_TEST_PG_CTL"), what);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static inline void kit_join(pid_t pid, int want)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), want);
}

static inline int kit_setup(void **state)
{
    (void)state;
    kit_name_schema();
    return 0;
}

static inline int kit_teardown(void **state)
{
    struct st_store_open opt = {.timeout_ms = 20000, .no_migrate = true};
    struct st_pg *s = kit_open_url(kit_url, &opt);
    char sql[512];

    (void)state;
    if (!s)
        fail_msg("open %s: %s", kit_url, kit_err.message);
    snprintf(sql, sizeof(sql), "DROP SCHEMA IF EXISTS {s} CASCADE; DROP ROLE IF EXISTS %s_enqueue, %s_worker, %s_read",
             kit_schema, kit_schema, kit_schema);
    kit_exec(s, sql);
    kit_close(s);
    return 0;
}

#define KIT_TEST(name) cmocka_unit_test_setup_teardown(name, kit_setup, kit_teardown)
#define KIT_NEEDS_SERVER                                                                                               \
    if (!getenv("STINT_TEST_PG")) {                                                                                    \
        puts("no server: run `scripts/pg-test PROGRAM`");                                                              \
        return SKIPPED;                                                                                                \
    }
/* Leaves a test that makes no sense behind a pooler. */
#define KIT_DIRECT                                                                                                     \
    if (kit_pooled())                                                                                                  \
    return

#endif
