/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_wake.c - a worker on PostgreSQL that never polls: everything it hears of, it was told.
 *
 * Needs a server: STINT_TEST_PG is the store's URL.  Each test has a schema of its own.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "enqueue/await.h"
#include "enqueue/enqueue.h"
#include "worker/worker.h"

#define LONG_US (20 * ST_SEC) /* a loaded machine is not a failure */

struct world {
    char schema[32], url[768];
    struct st_store *store; /* the test's own */
    struct st_settings settings;
    struct st_worker *worker;
    pthread_t thread;
    stint_code result;
    atomic_int ran, aborted;
};

static struct world w;

/* ---- the kit --------------------------------------------------------------------------------- */

/* {s} is the schema; on a connection of its own, through a pooler if the store's is. */
static int64_t sql(const char *text)
{
    char whole[1024], url[512], *ours;
    const char *hole;
    size_t n = 0;
    int64_t value;
    PGconn *c;
    PGresult *r;

    snprintf(url, sizeof(url), "%s", getenv("STINT_TEST_PG"));
    ours = strstr(url, "&listen=");
    if (ours)
        *ours = '\0';
    for (; (hole = strstr(text, "{s}")); text = hole + 3)
        n += (size_t)snprintf(whole + n, sizeof(whole) - n, "%.*s%s", (int)(hole - text), text, w.schema);
    snprintf(whole + n, sizeof(whole) - n, "%s", text);
    c = PQconnectdb(url);
    r = PQexec(c, whole);
    if (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", whole, PQerrorMessage(c));
    value = PQntuples(r) ? strtoll(PQgetvalue(r, 0, 0), NULL, 10) : 0;
    PQclear(r);
    PQfinish(c);
    return value;
}

static stint_code open_store(void *arg, struct st_store **out, stint_error *err)
{
    (void)arg;
    return st_store_open(w.url, &(struct st_store_open){.timeout_ms = 5000}, out, err);
}

static int setup(void **state)
{
    const char *base = getenv("STINT_TEST_PG");
    stint_error err = {0};
    unsigned random[2];

    (void)state;
    memset(&w, 0, sizeof(w));
    st_random(random, sizeof(random));
    snprintf(w.schema, sizeof(w.schema), "t_%08x%08x", random[0], random[1]);
    snprintf(w.url, sizeof(w.url), "%s%capplication_name=%s&schema=%s", base, strchr(base, '?') ? '&' : '?', w.schema,
             w.schema);
    if (open_store(NULL, &w.store, &err) != STINT_OK)
        fail_msg("%s", err.message);
    st_settings_init(&w.settings);
    w.settings.slots = 2;
    w.settings.poll_us = ST_HOUR;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    st_store_close(w.store);
    st_settings_clear(&w.settings);
    sql("SET client_min_messages = error; DROP SCHEMA {s} CASCADE");
    return 0;
}

static void count(void *arg, struct st_pool_item *it)
{
    (void)arg;
    (void)it;
    atomic_fetch_add(&w.ran, 1);
}

/* Until somebody says that it shall stop. */
static void hold(void *arg, struct st_pool_item *it)
{
    (void)arg;
    atomic_fetch_add(&w.ran, 1);
    while (!atomic_load(&it->abort))
        usleep(500);
    atomic_store(&w.aborted, atomic_load(&it->abort));
}

static void *run_thread(void *arg)
{
    stint_error err;

    (void)arg;
    w.result = st_worker_run(w.worker, &err);
    return NULL;
}

static void start(st_handler_fn fn)
{
    static struct st_worker_handler h;
    struct st_worker_options opt = {
        .opener = {open_store, NULL}, .settings = &w.settings, .handlers = &h, .n_handlers = 1};
    stint_error err;

    h = (struct st_worker_handler){.pattern = "t", .fn = fn, .policy = st_policy_default};
    assert_int_equal(st_worker_new(&opt, &w.worker, &err), STINT_OK);
    assert_int_equal(st_thread_start(&w.thread, "worker", run_thread, NULL, &err), STINT_OK);
}

static void stop(void)
{
    st_worker_stop(w.worker);
    pthread_join(w.thread, NULL);
    st_worker_free(w.worker);
    assert_int_equal(w.result, STINT_OK);
}

static char last_id[ST_ID_MAX + 1];

static void add(const char *type)
{
    struct st_enqueue_item it = {.job = st_new_job_default};
    struct st_enqueued out;
    stint_error err;

    it.job.type = st_slice_cstr(type);
    assert_int_equal(st_enqueue_check(&it, ST_PAYLOAD_MAX, &err), STINT_OK);
    for (int64_t end = st_clock_mono_us() + LONG_US; st_enqueue(w.store, &it.job, 1, &out, &err) != STINT_OK;)
        assert_true(st_clock_mono_us() < end); /* its connection may have been cut */
    memcpy(last_id, out.id, sizeof(out.id));
}

#define UNTIL(fact)                                                                                                    \
    do {                                                                                                               \
        for (int64_t end = st_clock_mono_us() + LONG_US; !(fact); usleep(1000))                                        \
            if (st_clock_mono_us() > end)                                                                              \
                fail_msg("not within %d s: %s", (int)(LONG_US / ST_SEC), #fact);                                       \
    } while (0)

static int64_t sleepers(void)
{
    return sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted"
               " AND (classid::int8 << 32 | objid::int8) = {s}._sleeper('*')");
}

/* ---- work -------------------------------------------------------------------------------------- */

static void an_idle_worker_is_woken_for_every_job(void **state)
{
    (void)state;
    start(count);
    for (int i = 0; i < 200; i++) {
        unsigned us;

        st_random(&us, sizeof(us));
        usleep(us % 4000);
        add("t");
    }
    UNTIL(atomic_load(&w.ran) == 200);
    UNTIL(sleepers() == 1);
    add("t");
    UNTIL(atomic_load(&w.ran) == 201);
    stop();
}

/* What it cannot take must not keep it from sleeping, nor from being woken. */
static void jobs_it_does_not_serve_do_not_matter(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        add("foreign");
    start(count);
    UNTIL(sleepers() == 1);
    for (int i = 0; i < 50; i++) {
        add(i % 5 ? "foreign" : "t");
        usleep(1000);
    }
    UNTIL(atomic_load(&w.ran) == 10);
    UNTIL(sleepers() == 1);
    add("t");
    UNTIL(atomic_load(&w.ran) == 11);
    stop();
}

static void a_busy_worker_does_not_count_as_asleep(void **state)
{
    (void)state;
    start(hold);
    UNTIL(sleepers() == 1);
    add("t");
    UNTIL(atomic_load(&w.ran) == 1);
    UNTIL(sleepers() == 1); /* one slot is free */
    add("t");
    UNTIL(atomic_load(&w.ran) == 2);
    add("t");
    UNTIL(sleepers() == 0);
    st_worker_stop(w.worker);
    stop();
    assert_int_equal(atomic_load(&w.ran), 2);
}

static void cut_connections_cost_no_job(void **state)
{
    (void)state;
    if (strstr(w.url, "&listen="))
        return; /* they have no name there */
    start(count);
    for (int i = 0; i < 60; i++) {
        if (i % 20 == 10)
            sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{s}'");
        add("t");
        usleep(1000);
    }
    UNTIL(sql("SELECT count(*) FROM {s}.ended WHERE state = 4") == 60);
    UNTIL(sleepers() == 1); /* it listens again */
    add("t");
    UNTIL(sql("SELECT count(*) FROM {s}.ended WHERE state = 4") == 61);
    stop();
}

static void without_notify_it_polls(void **state)
{
    (void)state;
    w.settings.poll_us = 300 * ST_MS;
    snprintf(w.url + strlen(w.url), sizeof(w.url) - strlen(w.url), "&notify=off");
    start(count);
    for (int i = 0; i < 5; i++) {
        add("t");
        UNTIL(atomic_load(&w.ran) == i + 1);
    }
    assert_int_equal(sleepers(), 0);
    stop();
}

/* ---- news of what runs ---------------------------------------------------------------------------- */

/* Its leases are renewed after 20 s: nothing else would tell it as soon. */
static void a_busy_worker_hears_of_a_cancel(void **state)
{
    struct st_slice id;
    stint_code verdict;
    bool asked = false;
    int64_t began;

    (void)state;
    w.settings.slots = 1;
    start(hold);
    add("t");
    UNTIL(atomic_load(&w.ran) == 1);
    id = st_slice_cstr(last_id);
    began = st_clock_mono_us();
    assert_int_equal(st_store_cancel(w.store, 0, &id, 1, &verdict, &asked, NULL), STINT_OK);
    assert_true(asked);
    UNTIL(atomic_load(&w.aborted) == ST_ABORT_CANCELLED);
    assert_true(st_clock_mono_us() - began < 5 * ST_SEC);
    stop();
}

/* The lease of the oldest job ends, and somebody else takes it.  Not if the worker renews it in between, as it does
 * when it has just begun to listen. */
static bool robbed(void)
{
    struct st_reaped reaped[2];
    size_t n = 0;

    sql("UPDATE {s}.lease SET until = 1 WHERE id = (SELECT id FROM {s}.lease ORDER BY id LIMIT 1)");
    sql("UPDATE {s}.grp SET look_at = 1");
    return st_store_reap(w.store, 0, st_slice_cstr("thief"), reaped, 2, &n, NULL) == STINT_OK && n == 1;
}

static void a_worker_that_lost_a_job_hears_of_it(void **state)
{
    int64_t began;

    (void)state;
    start(hold);
    add("t");
    UNTIL(atomic_load(&w.ran) == 1);
    add("t");
    UNTIL(atomic_load(&w.ran) == 2);
    UNTIL(robbed());
    began = st_clock_mono_us();
    UNTIL(atomic_load(&w.aborted) == ST_ABORT_TAKEN);
    assert_true(st_clock_mono_us() - began < 10 * ST_SEC);
    st_worker_stop(w.worker);
    stop();
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(an_idle_worker_is_woken_for_every_job),
        T(jobs_it_does_not_serve_do_not_matter),
        T(a_busy_worker_does_not_count_as_asleep),
        T(cut_connections_cost_no_job),
        T(without_notify_it_polls),
        T(a_busy_worker_hears_of_a_cancel),
        T(a_worker_that_lost_a_job_hears_of_it),
    };

    if (!getenv("STINT_TEST_PG"))
        return 77;
    return cmocka_run_group_tests_name("postgres_wake", tests, NULL, NULL);
}
