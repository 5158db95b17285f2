/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_wait.c - who is woken on PostgreSQL, by what, and what it costs those who are not.
 *
 * Needs a server: STINT_TEST_PG is the store's URL.  Each test has a schema of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/id.h"
#include "store/store.h"

#define S(text)  st_slice_cstr(text)
#define OK(call) assert_int_equal((call), STINT_OK)
#define LONG_MS  20000 /* a loaded machine is not a failure */
#define SHORT_MS 150   /* what does not come by then does not come */

static char schema[32], url[768];
static PGconn *raw; /* a connection to the server itself */
static struct st_store *stores[16];
static size_t n_stores;

/* ---- the kit ------------------------------------------------------------------------------ */

static int hex(char c)
{
    return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

/* The URL for libpq, which does not know our parameters; they come last.  listen= is the server's own. */
static void direct_url(char *out)
{
    const char *from = getenv("STINT_TEST_PG"), *listen = strstr(from, "&listen=");
    char *p = out;

    for (from = listen ? listen + 8 : from; *from; from++, p++) {
        *p = *from;
        if (*from == '%' && listen) {
            *p = (char)(hex(from[1]) << 4 | hex(from[2]));
            from += 2;
        }
    }
    *p = '\0';
}

/* {s} is the schema.  The first value of the first row; 0 = none. */
static int64_t sql(const char *text)
{
    char whole[1024];
    const char *hole;
    size_t n = 0;
    PGresult *r;
    int64_t value;

    for (; (hole = strstr(text, "{s}")); text = hole + 3)
        n += (size_t)snprintf(whole + n, sizeof(whole) - n, "%.*s%s", (int)(hole - text), text, schema);
    snprintf(whole + n, sizeof(whole) - n, "%s", text);
    r = PQexec(raw, whole);
    if (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", whole, PQerrorMessage(raw));
    value = PQntuples(r) ? strtoll(PQgetvalue(r, 0, 0), NULL, 10) : 0;
    PQclear(r);
    return value;
}

static struct st_store *open_with(const char *more)
{
    struct st_store_open opt = {.timeout_ms = 10000};
    struct st_store *s = NULL;
    stint_error err = {0};
    char whole[1024];

    snprintf(whole, sizeof(whole), "%s%s", url, more);
    if (st_store_open(whole, &opt, &s, &err) != STINT_OK)
        fail_msg("%s", err.message);
    stores[n_stores++] = s;
    return s;
}

static struct st_store *open_one(void)
{
    return open_with("");
}

static int setup(void **state)
{
    const char *base = getenv("STINT_TEST_PG");
    char direct[512];
    unsigned random[2];

    (void)state;
    st_random(random, sizeof(random));
    snprintf(schema, sizeof(schema), "t_%08x%08x", random[0], random[1]);
    snprintf(url, sizeof(url), "%s%capplication_name=%s&schema=%s", base, strchr(base, '?') ? '&' : '?', schema,
             schema);
    direct_url(direct);
    raw = PQconnectdb(direct);
    assert_int_equal(PQstatus(raw), CONNECTION_OK);
    open_one(); /* makes the tables */
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    while (n_stores)
        st_store_close(stores[--n_stores]);
    sql("SET client_min_messages = error");
    sql("DROP SCHEMA {s} CASCADE");
    PQfinish(raw);
    return 0;
}

static char last_id[ST_ID_MAX + 1];

static stint_code try_add(struct st_store *s, const char *id, const char *queue, int64_t due_us)
{
    struct st_new_job j = {.id = S(id),
                           .type = S("t"),
                           .queue = S(queue),
                           .payload = S("{}"),
                           .due_us = due_us,
                           .max_attempts = -1,
                           .timeout_us = -1};
    struct st_enqueued out;

    return st_store_enqueue(s, 0, &j, 1, &out, NULL);
}

static void add(struct st_store *s, const char *queue)
{
    st_id_new(last_id);
    OK(try_add(s, last_id, queue, 0));
}

static struct st_job *claim(struct st_store *s, const char *worker, int64_t lease_us)
{
    struct st_claim_req req = {.worker = S(worker), .lease_us = lease_us, .n = 1, .n_run = 1};
    struct st_job *job = NULL;
    size_t n = 0;

    OK(st_store_claim(s, &req, &job, &n, NULL));
    return n ? job : NULL;
}

static void watch(struct st_store *s, const char *worker, const char *queue, bool work)
{
    struct st_slice q = S(queue);

    OK(st_store_watch(s, S(worker), &q, queue ? 1 : 0, work, NULL));
}

/* Waits once; what was heard, 0 = nothing. */
static unsigned wait_for(struct st_store *s, int ms)
{
    bool woken = false;

    OK(st_store_wait(s, ms, &woken, NULL));
    assert_true(woken == (st_store_news(s) != 0));
    return st_store_news(s);
}

/* Makes the connection, and hears that something may have been missed before. */
static void connect_to(struct st_store *s)
{
    assert_int_equal(wait_for(s, LONG_MS), ST_NEWS_CANCEL | ST_NEWS_LOST);
}

/* A wait on a thread of its own. */
struct waiter {
    struct st_store *s;
    pthread_t thread;
    int ms;
    unsigned news;
    int64_t took_us;
};

static void *waiter_run(void *arg)
{
    struct waiter *w = arg;
    int64_t began = st_clock_mono_us();
    bool woken = false;

    if (st_store_wait(w->s, w->ms, &woken, NULL) == STINT_OK && woken)
        w->news = st_store_news(w->s);
    w->took_us = st_clock_mono_us() - began;
    return NULL;
}

static void waiter_start(struct waiter *w, struct st_store *s, int ms)
{
    *w = (struct waiter){.s = s, .ms = ms};
    assert_int_equal(pthread_create(&w->thread, NULL, waiter_run, w), 0);
}

static unsigned waiter_end(struct waiter *w)
{
    pthread_join(w->thread, NULL);
    return w->news;
}

static int64_t sleepers(const char *queue)
{
    char text[512];

    snprintf(text, sizeof(text),
             "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted"
             " AND (classid::int8 << 32 | objid::int8) = {s}._sleeper('%s')",
             queue);
    return sql(text);
}

static void until_sleepers(const char *queue, int64_t n)
{
    for (int64_t end = st_clock_mono_us() + LONG_MS * ST_MS; sleepers(queue) != n; usleep(1000))
        assert_true(st_clock_mono_us() < end);
}

/* The sleep that is meant is the one that begins with nothing to do. */
static void start_asleep(struct waiter *w, struct st_store *s, const char *queue)
{
    waiter_start(w, s, LONG_MS);
    until_sleepers(queue ? queue : "*", 1);
}

static int notes(void)
{
    struct pollfd p = {.fd = PQsocket(raw), .events = POLLIN};
    PGnotify *note;
    int n = 0;

    while (poll(&p, 1, n ? 0 : SHORT_MS) > 0 && PQconsumeInput(raw))
        while ((note = PQnotifies(raw))) {
            PQfreemem(note);
            n++;
        }
    return n;
}

static int64_t connections(void)
{
    return sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{s}'");
}

/* ---- work ----------------------------------------------------------------------------------- */

static void an_enqueue_on_another_handle_wakes_a_sleeper(void **state)
{
    struct st_store *s = open_one(), *other = open_one();
    struct waiter w;

    (void)state;
    watch(s, "w1", "mail", true);
    connect_to(s);
    start_asleep(&w, s, "mail");
    add(other, "mail");
    assert_int_equal(waiter_end(&w), ST_NEWS_WORK);
    assert_true(w.took_us < 5 * ST_SEC);
    until_sleepers("mail", 0); /* a worker that has something to do is not asleep */
}

static void a_sub_queue_wakes_those_who_serve_its_parent_or_everything(void **state)
{
    struct st_store *s = open_one(), *all = open_one(), *other = open_one();
    struct waiter w, v;

    (void)state;
    watch(s, "w1", "mail", true);
    watch(all, "w2", NULL, true);
    connect_to(s);
    connect_to(all);
    start_asleep(&w, s, "mail");
    start_asleep(&v, all, NULL);
    add(other, "mail.bulk");
    assert_int_equal(waiter_end(&w), ST_NEWS_WORK);
    assert_int_equal(waiter_end(&v), ST_NEWS_WORK);
}

static void another_queue_does_not_wake(void **state)
{
    struct st_store *s = open_one(), *elsewhere = open_one(), *other = open_one();
    struct waiter w, v;

    (void)state;
    watch(s, "w1", "mail", true);
    watch(elsewhere, "w2", "img", true);
    connect_to(s);
    connect_to(elsewhere);
    start_asleep(&w, s, "mail");
    start_asleep(&v, elsewhere, "img");
    add(other, "img");
    assert_int_equal(waiter_end(&v), ST_NEWS_WORK);
    usleep(SHORT_MS * 1000);
    st_store_interrupt(s);
    assert_int_equal(waiter_end(&w), 0); /* nobody but we woke it */
}

static void nothing_is_sent_when_nobody_sleeps_there(void **state)
{
    struct st_store *busy = open_one(), *asleep = open_one(), *other = open_one();
    struct waiter w, v;

    (void)state;
    watch(busy, "w1", "mail", false);
    watch(asleep, "w2", "img", true);
    connect_to(busy);
    connect_to(asleep);
    waiter_start(&w, busy, LONG_MS);
    start_asleep(&v, asleep, "img");
    sql("LISTEN {s}");
    for (int i = 0; i < 20; i++)
        add(other, i % 2 ? "mail" : "mail.bulk");
    assert_int_equal(notes(), 0);
    st_store_interrupt(busy);
    assert_int_equal(waiter_end(&w), 0);
    add(other, "img");
    assert_int_equal(waiter_end(&v), ST_NEWS_WORK);
    assert_int_equal(notes(), 1);
}

static void *add_many(void *arg)
{
    for (int i = 0; i < 300; i++) {
        char id[ST_ID_MAX + 1];

        st_id_new(id);
        if (try_add(arg, id, "mail", 0) != STINT_OK)
            return arg;
    }
    return NULL;
}

/* They all ask at the same time if somebody sleeps, and must not take each other for a sleeper. */
static void producers_at_the_same_time_send_nothing_either(void **state)
{
    pthread_t threads[4];
    void *failed;

    (void)state;
    sql("LISTEN {s}");
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, open_one()), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(notes(), 0);
}

static void what_was_there_before_it_fell_asleep_is_found(void **state)
{
    struct st_store *s = open_one(), *other = open_one();
    struct st_job *job;

    (void)state;
    watch(s, "w1", "mail", false);
    connect_to(s);
    add(other, "mail"); /* a lane that this process has not seen yet */
    watch(s, "w1", "mail", true);
    assert_int_equal(wait_for(s, LONG_MS), ST_NEWS_LOOK);
    assert_int_equal(sleepers("mail"), 1); /* it sleeps all the same: the claim that follows is its last look */
    assert_int_equal(wait_for(s, SHORT_MS), 0);
    job = claim(other, "w1", 60 * ST_SEC);
    assert_non_null(job);
    st_job_free(job);
    watch(s, "w1", "mail", false);
    assert_int_equal(wait_for(s, SHORT_MS), 0);
    assert_int_equal(sleepers("mail"), 0);
    watch(s, "w1", "mail", true);
    assert_int_equal(wait_for(s, SHORT_MS), 0); /* nothing is there */
    watch(s, "w1", "mail", false);
    assert_int_equal(wait_for(s, 0), 0);
    add(other, "mail"); /* a lane that it knows */
    watch(s, "w1", "mail", true);
    assert_int_equal(wait_for(s, LONG_MS), ST_NEWS_LOOK);
}

/* A job behind others that were claimed, and one whose due time has long passed. */
static void the_look_begins_where_the_claims_have_come_to(void **state)
{
    struct st_store *s = open_one(), *other = open_one();

    (void)state;
    for (int i = 0; i < 20; i++)
        add(other, "mail");
    for (int i = 0; i < 20; i++)
        st_job_free(claim(other, "w1", 60 * ST_SEC));
    assert_null(claim(other, "w1", 60 * ST_SEC));
    watch(s, "w1", NULL, true);
    connect_to(s);
    assert_int_equal(wait_for(s, SHORT_MS), 0);
    watch(s, "w1", NULL, false);
    assert_int_equal(wait_for(s, 0), 0);
    OK(try_add(other, "old", "mail", ST_SEC));
    watch(s, "w1", NULL, true);
    assert_int_equal(wait_for(s, LONG_MS), ST_NEWS_LOOK);
}

static void a_job_that_is_not_due_is_not_found(void **state)
{
    struct st_store *s = open_one(), *other = open_one();

    (void)state;
    OK(try_add(other, "later", "mail", st_clock_real_us() + ST_HOUR));
    assert_null(claim(other, "w1", 60 * ST_SEC));
    watch(s, "w1", "mail", true);
    connect_to(s);
    assert_int_equal(wait_for(s, SHORT_MS), 0);
}

static void *add_soon(void *arg)
{
    unsigned us;

    st_random(&us, sizeof(us));
    usleep(us % 3000);
    add(arg, "mail");
    return NULL;
}

/* The enqueue comes at any moment of falling asleep. */
static void no_moment_is_missed(void **state)
{
    struct st_store *s = open_one(), *other = open_one(), *claimer = open_one();
    unsigned seen = 0;

    (void)state;
    watch(s, "w1", "mail", false);
    connect_to(s);
    for (int i = 0; i < 300; i++) {
        pthread_t t;
        struct st_job *job;
        unsigned news, us;

        assert_int_equal(pthread_create(&t, NULL, add_soon, other), 0);
        st_random(&us, sizeof(us));
        usleep(us % 3000);
        watch(s, "w1", "mail", true);
        news = wait_for(s, LONG_MS);
        assert_true(news == ST_NEWS_WORK || news == ST_NEWS_LOOK || news == (ST_NEWS_WORK | ST_NEWS_LOOK));
        seen |= news;
        pthread_join(t, NULL);
        watch(s, "w1", "mail", false);
        assert_int_equal(wait_for(s, 0), 0);
        job = claim(claimer, "w1", 60 * ST_SEC);
        assert_non_null(job);
        st_job_free(job);
    }
    assert_int_equal(seen, ST_NEWS_WORK | ST_NEWS_LOOK); /* both ways were gone */
}

/* Whoever looked for sleepers before there was one, and commits when it sleeps, tells nobody. */
static void what_is_committed_late_is_found_by_looking_again(void **state)
{
    struct st_store *s = open_one(), *other = open_one();
    struct waiter w;

    (void)state;
    add(other, "mail");
    watch(s, "w1", "mail", false);
    connect_to(s);
    st_job_free(claim(s, "w1", 60 * ST_SEC));
    for (int i = 0; i < 3; i++) {
        sql("BEGIN");
        sql("SELECT {s}.enqueue('t', queue => 'mail')");
        watch(s, "w1", "mail", true);
        start_asleep(&w, s, "mail");
        usleep(SHORT_MS * 1000);
        sql("COMMIT");
        assert_int_equal(waiter_end(&w), ST_NEWS_LOOK);
        assert_true(w.took_us < 3 * ST_SEC);
        st_job_free(claim(s, "w1", 60 * ST_SEC));
        watch(s, "w1", "mail", false);
        assert_int_equal(wait_for(s, 0), 0);
        until_sleepers("mail", 0);
    }
}

/* An application that adds a job and keeps its transaction open keeps nobody from falling asleep. */
static void who_adds_in_a_transaction_of_its_own_is_in_nobodys_way(void **state)
{
    struct st_store *s = open_one(), *other = open_one();
    struct st_new_job j = {
        .type = S("t"), .queue = S("mail"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
    struct st_enqueued out;
    struct waiter w;

    (void)state;
    add(other, "mail");
    watch(s, "w1", "mail", false);
    connect_to(s);
    st_job_free(claim(s, "w1", 60 * ST_SEC));
    st_id_new(last_id);
    j.id = S(last_id);
    sql("BEGIN");
    OK(st_store_enqueue_tx(other, raw, 0, &j, 1, &out, NULL));
    watch(s, "w1", "mail", true);
    start_asleep(&w, s, "mail");
    sql("COMMIT");
    assert_int_equal(waiter_end(&w), ST_NEWS_LOOK);
}

static void other_queues_from_now_on(void **state)
{
    struct st_store *s = open_one(), *other = open_one();
    struct waiter w;

    (void)state;
    watch(s, "w1", "mail", true);
    connect_to(s);
    assert_int_equal(wait_for(s, SHORT_MS), 0);
    assert_int_equal(sleepers("mail"), 1);
    watch(s, "w1", "img", true);
    start_asleep(&w, s, "img");
    assert_int_equal(sleepers("mail"), 0);
    add(other, "mail");
    add(other, "img");
    assert_int_equal(waiter_end(&w), ST_NEWS_WORK);
}

/* ---- news of one's own jobs --------------------------------------------------------------------- */

static void a_cancel_is_heard_by_the_worker_that_holds_the_job(void **state)
{
    struct st_store *s = open_one(), *stranger = open_one(), *other = open_one();
    struct st_slice id;
    struct waiter w, v;
    stint_code verdict;
    struct st_job *job;
    bool asked = false;

    (void)state;
    add(other, "mail");
    job = claim(other, "w1", 60 * ST_SEC);
    assert_non_null(job);
    watch(s, "w1", "mail", false); /* busy */
    watch(stranger, "w2", "mail", true);
    connect_to(s);
    connect_to(stranger);
    waiter_start(&w, s, LONG_MS);
    start_asleep(&v, stranger, "mail");
    id = S(job->id);
    OK(st_store_cancel(other, 0, &id, 1, &verdict, &asked, NULL));
    assert_true(asked);
    assert_int_equal(waiter_end(&w), ST_NEWS_CANCEL);
    assert_true(w.took_us < 5 * ST_SEC);
    usleep(SHORT_MS * 1000);
    st_store_interrupt(stranger);
    assert_int_equal(waiter_end(&v), 0);
    st_job_free(job);
}

static void a_cancel_does_not_end_the_sleep(void **state)
{
    struct st_store *s = open_one(), *other = open_one();
    struct waiter w;

    (void)state;
    watch(s, "w1", "mail", true);
    connect_to(s);
    start_asleep(&w, s, "mail");
    sql("SELECT pg_notify('{s}', 'c w1')");
    assert_int_equal(waiter_end(&w), ST_NEWS_CANCEL);
    assert_int_equal(sleepers("mail"), 1);
    start_asleep(&w, s, "mail");
    add(other, "mail");
    assert_int_equal(waiter_end(&w), ST_NEWS_WORK);
}

static void who_loses_a_job_hears_of_it(void **state)
{
    struct st_store *s = open_one(), *stranger = open_one(), *other = open_one();
    struct st_reaped reaped[4];
    struct waiter w, v;
    size_t n = 0;

    (void)state;
    add(other, "mail");
    st_job_free(claim(other, "w1", 50 * ST_MS));
    watch(s, "w1", NULL, false);
    watch(stranger, "w2", NULL, false);
    connect_to(s);
    connect_to(stranger);
    waiter_start(&w, s, LONG_MS);
    waiter_start(&v, stranger, LONG_MS);
    while (n == 0)
        OK(st_store_reap(other, 0, S("w3"), reaped, 4, &n, NULL));
    assert_string_equal(reaped[0].worker, "w1");
    assert_int_equal(waiter_end(&w), ST_NEWS_LOST);
    st_store_interrupt(stranger);
    assert_int_equal(waiter_end(&v), 0);
    assert_int_equal(wait_for(stranger, SHORT_MS), 0);
}

static void who_is_robbed_of_a_job_hears_of_it(void **state)
{
    struct st_claim_req req = {.worker = S("w2"), .lease_us = ST_SEC, .n = 1, .n_run = 1};
    struct st_store *s = open_one(), *other = open_one();
    struct st_job *job = NULL;
    enum st_refusal why;
    struct waiter w;

    (void)state;
    add(other, "mail");
    st_job_free(claim(other, "w1", 50 * ST_MS));
    watch(s, "w1", NULL, false);
    connect_to(s);
    waiter_start(&w, s, LONG_MS);
    usleep(60 * 1000);
    OK(st_store_acquire(other, S(last_id), &req, &job, &why, NULL));
    assert_int_equal(waiter_end(&w), ST_NEWS_LOST);
    st_job_free(job);
}

static void strange_words_are_not_news(void **state)
{
    struct st_store *s = open_one();

    (void)state;
    watch(s, "w1", NULL, true);
    connect_to(s);
    assert_int_equal(wait_for(s, SHORT_MS), 0);
    sql("SELECT pg_notify('{s}', t) FROM unnest(ARRAY['', 'w', 'c', 'c ', 'c w11', 'l w', 'x w1', 'what']) t");
    assert_int_equal(wait_for(s, SHORT_MS), 0);
}

/* ---- the connection ---------------------------------------------------------------------------------- */

static void a_connection_that_was_cut_is_made_again(void **state)
{
    struct st_store *s = open_one(), *other = open_one();
    struct waiter w;

    (void)state;
    watch(s, "w1", "mail", true);
    connect_to(s);
    start_asleep(&w, s, "mail");
    sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
        " AND (classid::int8 << 32 | objid::int8) = {s}._sleeper('mail')");
    assert_int_equal(waiter_end(&w), ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST | ST_NEWS_DEAF);
    assert_true(w.took_us < 5 * ST_SEC);
    assert_int_equal(wait_for(s, LONG_MS) & ~(unsigned)ST_NEWS_WORK, ST_NEWS_CANCEL | ST_NEWS_LOST);
    start_asleep(&w, s, "mail");
    add(other, "mail");
    assert_int_equal(waiter_end(&w), ST_NEWS_WORK);
}

static void a_waiting_handle_has_one_connection(void **state)
{
    struct st_store *s = open_one();

    (void)state;
    if (strstr(url, "&listen="))
        return; /* a pooler keeps connections as it likes */
    st_store_close(stores[0]);
    stores[0] = s;
    n_stores = 1;
    add(s, "img"); /* on the handle's own */
    assert_true(connections() > 0);
    watch(s, "w1", "mail", false);
    connect_to(s);
    watch(s, "w1", "mail", true);
    assert_int_equal(wait_for(s, SHORT_MS), ST_NEWS_LOOK); /* the lane of img is new */
    for (int i = 0; connections() > 1 && i < 1000; i++)
        usleep(1000); /* the server takes a moment to see that one has left */
    assert_int_equal(connections(), 1);
}

static void without_notify_time_passes_and_nothing_is_heard(void **state)
{
    struct st_store *s = open_with("&notify=off"), *t = open_with("&notify=off");
    const int64_t before = connections();
    int64_t began;

    (void)state;
    (void)s;
    watch(t, "w1", "mail", true);
    assert_int_equal(wait_for(t, LONG_MS), ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST | ST_NEWS_DEAF);
    add(stores[0], "mail");
    began = st_clock_mono_us();
    assert_int_equal(wait_for(t, SHORT_MS), 0);
    assert_true(st_clock_mono_us() - began >= SHORT_MS * ST_MS);
    assert_true(connections() <= before);
    assert_int_equal(sleepers("mail"), 0);
}

static void behind_a_pooler_nothing_is_heard_without_listen(void **state)
{
    char *listen = strstr(url, "&listen="), cut[sizeof(url)];
    struct st_store *s = NULL;

    (void)state;
    if (!listen)
        return; /* no pooler */
    snprintf(cut, sizeof(cut), "%.*s&schema=%s", (int)(listen - url), url, schema);
    OK(st_store_open(cut, NULL, &s, NULL));
    stores[n_stores++] = s;
    watch(s, "w1", "mail", true);
    assert_true(wait_for(s, LONG_MS) & ST_NEWS_DEAF);
    assert_int_equal(wait_for(s, SHORT_MS), 0);
}

/* ---- interrupting, and waits for nothing in particular ---------------------------------------------- */

static void interrupt_ends_a_sleep_and_the_next_one_only(void **state)
{
    struct st_store *s = open_one();
    struct waiter w;

    (void)state;
    watch(s, "w1", "mail", true);
    connect_to(s);
    start_asleep(&w, s, "mail");
    st_store_interrupt(s);
    assert_int_equal(waiter_end(&w), 0);
    assert_true(w.took_us < LONG_MS * ST_MS / 2);
    st_store_interrupt(s);
    assert_int_equal(wait_for(s, LONG_MS), 0);
    start_asleep(&w, s, "mail");
    sql("SELECT {s}._wake(ARRAY['mail'])");
    assert_int_equal(waiter_end(&w), ST_NEWS_WORK);
}

static void a_wait_for_nothing_in_particular_comes_back_now_and_then(void **state)
{
    struct st_store *s = open_one();
    const int64_t before = connections(), began = st_clock_mono_us();

    (void)state;
    assert_true(wait_for(s, LONG_MS) & ST_NEWS_DEAF);
    assert_true(st_clock_mono_us() - began < 5 * ST_SEC);
    assert_true(connections() <= before);
    assert_int_equal(wait_for(s, 5), 0);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(an_enqueue_on_another_handle_wakes_a_sleeper),
        T(a_sub_queue_wakes_those_who_serve_its_parent_or_everything),
        T(another_queue_does_not_wake),
        T(nothing_is_sent_when_nobody_sleeps_there),
        T(producers_at_the_same_time_send_nothing_either),
        T(what_was_there_before_it_fell_asleep_is_found),
        T(the_look_begins_where_the_claims_have_come_to),
        T(a_job_that_is_not_due_is_not_found),
        T(no_moment_is_missed),
        T(what_is_committed_late_is_found_by_looking_again),
        T(who_adds_in_a_transaction_of_its_own_is_in_nobodys_way),
        T(other_queues_from_now_on),
        T(a_cancel_is_heard_by_the_worker_that_holds_the_job),
        T(a_cancel_does_not_end_the_sleep),
        T(who_loses_a_job_hears_of_it),
        T(who_is_robbed_of_a_job_hears_of_it),
        T(strange_words_are_not_news),
        T(a_connection_that_was_cut_is_made_again),
        T(a_waiting_handle_has_one_connection),
        T(without_notify_time_passes_and_nothing_is_heard),
        T(behind_a_pooler_nothing_is_heard_without_listen),
        T(interrupt_ends_a_sleep_and_the_next_one_only),
        T(a_wait_for_nothing_in_particular_comes_back_now_and_then),
    };

    if (!getenv("STINT_TEST_PG"))
        return 77;
    return cmocka_run_group_tests_name("postgres_wait", tests, NULL, NULL);
}
