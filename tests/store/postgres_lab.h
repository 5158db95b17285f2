/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_lab.h - sessions beside a PostgreSQL store: transactions held open, and knowing who
 * waits for whom.
 *
 * A session is the server's own, also where the store goes through a pooler.  Its search_path is
 * the test's schema.  What runs in a thread asserts nothing: it keeps what it was told, and the
 * test looks after joining it.
 */
#ifndef ST_TESTS_STORE_POSTGRES_LAB_H
#define ST_TESTS_STORE_POSTGRES_LAB_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/id.h"
#include "postgres_kit.h"

#define SEC ST_SEC
#define T0  ((int64_t)1700000000 * ST_SEC)

/* ---- sessions ------------------------------------------------------------------------------- */

static inline int lab_hex(const char *p)
{
    char text[3] = {p[0], p[1], '\0'};

    return (int)strtol(text, NULL, 16);
}

/* The server itself: behind a pooler its URL is what listen= says. */
static inline void lab_direct_url(char *out, size_t size)
{
    const char *p = getenv("STINT_TEST_PG");
    size_t n = 0;

    if (!kit_pooled()) {
        snprintf(out, size, "%s", p);
        return;
    }
    for (p = strstr(p, "&listen=") + 8; *p && *p != '&' && n + 1 < size; p++) {
        out[n++] = *p == '%' ? (char)lab_hex(p + 1) : *p;
        p += *p == '%' ? 2 : 0;
    }
    out[n] = '\0';
}

/* NULL = it failed; for threads. */
static inline PGconn *lab_try_connect(void)
{
    char url[1024], sql[160];
    PGconn *c;
    PGresult *r;

    lab_direct_url(url, sizeof(url));
    c = PQconnectdb(url);
    snprintf(sql, sizeof(sql), "SET search_path = %s, public; SET statement_timeout = '60s'", kit_schema);
    r = PQexec(c, sql);
    if (PQresultStatus(r) != PGRES_COMMAND_OK) {
        PQfinish(c);
        c = NULL;
    }
    PQclear(r);
    return c;
}

/* A session of the test itself: it ends with the test, so that one that failed leaves no locks
 * behind. */
static PGconn *lab_sessions[16];

static inline PGconn *lab_connect(void)
{
    PGconn *c = lab_try_connect();
    size_t i = 0;

    assert_non_null(c);
    while (i < 15 && lab_sessions[i])
        i++;
    assert_null(lab_sessions[i]);
    return lab_sessions[i] = c;
}

static inline void lab_close(PGconn *c)
{
    for (size_t i = 0; i < 16; i++)
        if (lab_sessions[i] == c)
            lab_sessions[i] = NULL;
    PQfinish(c);
}

/* true = it worked; for threads. */
static inline bool lab_try(PGconn *c, const char *sql)
{
    PGresult *r = PQexec(c, sql);
    const bool ok = PQresultStatus(r) == PGRES_COMMAND_OK || PQresultStatus(r) == PGRES_TUPLES_OK;

    if (!ok)
        fprintf(stderr, "%s: %s", sql, PQerrorMessage(c));
    PQclear(r);
    return ok;
}

static inline void lab_exec(PGconn *c, const char *sql)
{
    if (!lab_try(c, sql))
        fail_msg("%s: %s", sql, PQerrorMessage(c));
}

/* The first column of the first row as a number. */
static inline int64_t lab_int(PGconn *c, const char *sql)
{
    PGresult *r = PQexec(c, sql);
    int64_t v;

    if (PQresultStatus(r) != PGRES_TUPLES_OK || PQntuples(r) < 1)
        fail_msg("%s: %s", sql, PQerrorMessage(c));
    v = strcmp(PQgetvalue(r, 0, 0), "t") == 0 ? 1 : strtoll(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return v;
}

#define LAB_SQL_MAX 2048
#define LAB_FORMAT(buf)                                                                                                \
    do {                                                                                                               \
        va_list args_;                                                                                                 \
        va_start(args_, format);                                                                                       \
        vsnprintf(buf, sizeof(buf), format, args_);                                                                    \
        va_end(args_);                                                                                                 \
    } while (0)

__attribute__((format(printf, 2, 3))) static inline int64_t lab_intf(PGconn *c, const char *format, ...)
{
    char sql[LAB_SQL_MAX];

    LAB_FORMAT(sql);
    return lab_int(c, sql);
}

__attribute__((format(printf, 2, 3))) static inline void lab_execf(PGconn *c, const char *format, ...)
{
    char sql[LAB_SQL_MAX];

    LAB_FORMAT(sql);
    lab_exec(c, sql);
}

/* ---- handles -------------------------------------------------------------------------------- */

/* `process`: handles with the same one share what a process knows; with another they are as two
 * processes. */
static inline struct st_store *lab_store(const char *process)
{
    struct st_store_open opt = {.timeout_ms = 30000}; /* a loaded machine is not a failure */
    char url[1200];
    struct st_pg *s;

    snprintf(url, sizeof(url), "%s&application_name=%s-%s", kit_url, process, kit_schema);
    s = kit_open_url(url, &opt);
    if (!s)
        fail_msg("open %s: %s", url, kit_err.message);
    return &s->base;
}

/* The functions give up a lock after a moment: too short where the test has to look first. */
static inline void lab_lock_timeout(PGconn *c, const char *value)
{
    lab_execf(c,
              "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT p.oid FROM pg_proc p JOIN "
              "pg_namespace n"
              " ON n.oid = p.pronamespace WHERE n.nspname = '%s' AND p.proconfig::text LIKE "
              "'%%lock_timeout%%' LOOP"
              " EXECUTE format('ALTER FUNCTION %%s SET lock_timeout = ''%s''', f); END LOOP; END $$",
              kit_schema, value);
}

static inline void lab_patient(PGconn *c)
{
    lab_lock_timeout(c, "20s");
}

static inline void lab_impatient(PGconn *c)
{
    lab_lock_timeout(c, "100ms");
}

/* ---- somebody else, meanwhile --------------------------------------------------------------- */

/* What it uses must outlive a test that fails: static, not on its stack. */
struct lab_racer {
    pthread_t thread;
    void (*fn)(void *arg);
    void *arg;
    bool running;
    atomic_bool done;
};
static struct lab_racer lab_racers[8];
static atomic_bool lab_over; /* the test has ended: come back */

static inline void *lab_racer_run(void *arg)
{
    struct lab_racer *r = arg;

    r->fn(r->arg);
    atomic_store(&r->done, true);
    return NULL;
}

static inline struct lab_racer *lab_start(void (*fn)(void *arg), void *arg)
{
    struct lab_racer *r = lab_racers;

    while (r < lab_racers + 7 && r->running)
        r++;
    assert_false(r->running);
    r->fn = fn;
    r->arg = arg;
    atomic_store(&r->done, false);
    assert_int_equal(pthread_create(&r->thread, NULL, lab_racer_run, r), 0);
    r->running = true;
    return r;
}

static inline void lab_join(struct lab_racer *r)
{
    r->running = false;
    assert_int_equal(pthread_join(r->thread, NULL), 0);
}

/* How many sessions of this process wait for a lock of this kind ("%" = any); the server's own books tell. */
static inline int64_t lab_waiting(PGconn *watch, const char *process, const char *kind)
{
    return lab_intf(watch,
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = '%s-%s' AND "
                    "wait_event_type = 'Lock' AND wait_event LIKE '%s'"
                    " AND cardinality(pg_blocking_pids(pid)) > 0",
                    process, kit_schema, kind);
}

static inline void lab_until_waits_for(const struct lab_racer *r, PGconn *watch, const char *process, const char *kind)
{
    for (int i = 0; i < 20000; i++) {
        if (lab_waiting(watch, process, kind))
            return;
        if (atomic_load(&r->done))
            fail_msg("it did not wait");
        usleep(1000);
    }
    fail_msg("it neither waits nor comes back");
}

/* The racer has come so far that it waits. */
static inline void lab_until_waits(const struct lab_racer *r, PGconn *watch, const char *process)
{
    lab_until_waits_for(r, watch, process, "%");
}

/* ---- stopping a call in the middle
 * --------------------------------------------------------------- */

/* A handle of process "gated" that changes ready or lease comes to a gate before it commits: it has
 * done everything, holds its locks, and nobody sees it yet. */
#define LAB_GATE 4711

static inline void lab_gate_make(PGconn *c)
{
    lab_exec(c, "CREATE FUNCTION t_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " IF current_setting('application_name') LIKE 'gated-%' THEN"
                " PERFORM pg_advisory_xact_lock_shared(4711, hashtext(TG_TABLE_SCHEMA)); END IF; "
                "RETURN NULL; END $$;"
                " CREATE CONSTRAINT TRIGGER t_gate AFTER INSERT OR UPDATE OR DELETE ON lease "
                "DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION t_gate();"
                " CREATE CONSTRAINT TRIGGER t_gate AFTER INSERT OR DELETE ON ready DEFERRABLE "
                "INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION t_gate()");
}

static inline void lab_gate_shut(PGconn *c)
{
    lab_execf(c, "SELECT pg_advisory_lock(%d, hashtext('%s'))", LAB_GATE, kit_schema);
}

static inline void lab_gate_open(PGconn *c)
{
    lab_execf(c, "SELECT pg_advisory_unlock(%d, hashtext('%s'))", LAB_GATE, kit_schema);
}

/* ---- a test -----------------------------------------------------------------------------------
 */

/* Ends whatever a test, or one that failed, has left running. */
static inline void lab_end(void)
{
    atomic_store(&lab_over, true);
    for (size_t i = 0; i < 16; i++) {
        if (lab_sessions[i])
            PQfinish(lab_sessions[i]);
        lab_sessions[i] = NULL;
    }
    for (size_t i = 0; i < 8; i++)
        if (lab_racers[i].running)
            lab_join(&lab_racers[i]);
    atomic_store(&lab_over, false);
}

static inline int lab_teardown(void **state)
{
    lab_end();
    return kit_teardown(state);
}

#define LAB_TEST(name) cmocka_unit_test_setup_teardown(name, kit_setup, lab_teardown)

#endif
