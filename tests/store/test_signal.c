/* SPDX-License-Identifier: Apache-2.0
 *
 * test_signal.c - a SQLite store whose wake-ups go through Redis: what is told, who hears it, and what happens without.
 *
 * Needs a server: scripts/redis-test sets STINT_TEST_REDIS.
 */
#include <pthread.h>

#include "sqlite_kit.h"

#define LONG_MS 30000

static struct st_store *open_with(const char *url)
{
    struct st_store *s;
    stint_error err;

    if (st_store_signal(kit_open(1000), url, &s, &err))
        fail_msg("%s", err.message);
    return s;
}

static struct st_store *open_signal(void)
{
    return open_with(getenv("STINT_TEST_REDIS"));
}

static void ctl(const char *what)
{
    char command[256];

    snprintf(command, sizeof(command), "%s %s >/dev/null 2>&1", getenv("STINT_TEST_REDIS_CTL"), what);
    assert_int_equal(system(command), 0);
}

static void add(struct st_store *s, const char *id, const char *queue)
{
    struct st_new_job j = {
        .id = S(id), .type = S("t"), .queue = S(queue), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
    struct st_enqueued out;

    OK(st_store_enqueue(s, T0, &j, 1, &out, NULL));
}

static struct st_job *take(struct st_store *s, const char *worker, int64_t lease_us)
{
    const struct st_claim_req req = {.now_us = T0, .worker = S(worker), .lease_us = lease_us, .n = 1, .n_run = 1};
    struct st_job *job = NULL;
    size_t n = 0;

    OK(st_store_claim(s, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    return job;
}

static void watch(struct st_store *s, const char *worker, const char *queue, bool work)
{
    const struct st_slice name = S(queue);

    OK(st_store_watch(s, S(worker), &name, queue ? 1 : 0, work, NULL));
}

/* The news of the next wait that is woken. */
static unsigned news(struct st_store *s)
{
    bool woken = false;

    OK(st_store_wait(s, LONG_MS, &woken, NULL));
    assert_true(woken);
    return st_store_news(s);
}

static void nothing_new(struct st_store *s)
{
    bool woken = true;

    st_store_interrupt(s);
    OK(st_store_wait(s, LONG_MS, &woken, NULL));
    assert_false(woken);
}

/* A worker that listens; the first thing it hears is that it should look at everything. */
static struct st_store *listener(const char *worker, const char *queue)
{
    struct st_store *s = open_signal();

    watch(s, worker, queue, true);
    assert_int_equal(news(s), ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST);
    return s;
}

/* ---- who hears what -------------------------------------------------------------------------- */

static void work_is_heard_by_those_who_serve_the_queue(void **state)
{
    struct st_store *mail = listener("w1", "mail"), *all = listener("w2", NULL), *other = listener("w3", "other"),
                    *s = open_signal();

    (void)state;
    add(s, "a", "mail.high"); /* a sub of it */
    assert_int_equal(news(mail), ST_NEWS_WORK);
    assert_int_equal(news(all), ST_NEWS_WORK);
    add(s, "b", "other");
    assert_int_equal(news(other), ST_NEWS_WORK); /* its first, though "a" was told before */
    nothing_new(other);
    st_store_close(s);
    st_store_close(other);
    st_store_close(all);
    st_store_close(mail);
}

static void work_heard_while_busy_is_told_when_asleep(void **state)
{
    struct st_store *w = listener("w", "q"), *s = open_signal();

    (void)state;
    watch(w, "w", "q", false);
    add(s, "a", "q");
    {
        struct st_job *job = take(s, "w", SEC);
        const struct st_slice id = S("a");
        stint_code verdict;

        OK(st_store_cancel(s, T0, &id, 1, &verdict, NULL, NULL));
        st_job_free(job);
    }
    assert_int_equal(news(w), ST_NEWS_CANCEL); /* what concerns its jobs is told at once */
    watch(w, "w", "q", true);
    assert_int_equal(news(w), ST_NEWS_WORK);
    nothing_new(w);
    st_store_close(s);
    st_store_close(w);
}

static void a_lost_job_is_told_to_the_worker_that_had_it(void **state)
{
    struct st_store *loser = listener("loser", "q"), *other = listener("other", "elsewhere"), *s = open_signal();
    struct st_reaped reaped[4];
    struct st_job *job;
    size_t n = 0;

    (void)state;
    add(s, "a", "q");
    assert_int_equal(news(loser), ST_NEWS_WORK);
    watch(loser, "loser", "q", false);
    job = take(s, "loser", SEC);
    OK(st_store_reap(s, T0 + 60 * SEC, S("me"), reaped, 4, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(news(loser), ST_NEWS_LOST);
    assert_int_equal(news(other), ST_NEWS_WORK); /* it may be anybody's now; the loss is not told to it */
    st_job_free(job);
    st_store_close(s);
    st_store_close(other);
    st_store_close(loser);
}

static void a_program_with_the_library_tells_too(void **state)
{
    struct st_store *w = listener("w", NULL);
    char url[128];
    stint *st;
    stint_job job = STINT_JOB_INIT;
    stint_enqueued out;
    stint_error err;

    (void)state;
    snprintf(url, sizeof(url), "sqlite:%s", kit_path);
    setenv("STINT_SIGNAL", getenv("STINT_TEST_REDIS"), 1);
    OK(stint_open(url, 1000, &st, &err));
    unsetenv("STINT_SIGNAL");
    job.type = "t";
    job.payload = "{}";
    job.payload_len = 2;
    OK(stint_enqueue(st, &job, 1, &out, &err));
    assert_int_equal(news(w), ST_NEWS_WORK);
    stint_close(st);
    st_store_close(w);
}

/* ---- without Redis --------------------------------------------------------------------------------- */

static void a_worker_is_told_that_it_is_deaf_and_that_it_hears_again(void **state)
{
    struct st_store *w = listener("w", NULL), *s = open_signal();
    bool woken;

    (void)state;
    ctl("stop");
    assert_int_equal(news(w), ST_NEWS_DEAF);
    add(s, "a", "q"); /* SQLite's own wait stands in */
    assert_int_equal(news(w), ST_NEWS_WORK | ST_NEWS_DEAF);
    ctl("start");
    do
        OK(st_store_wait(w, LONG_MS, &woken, NULL));
    while (!woken || st_store_news(w) & ST_NEWS_DEAF);
    assert_int_equal(st_store_news(w), ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST);
    st_store_close(s);
    st_store_close(w);
}

static void nobody_there_changes_no_answer(void **state)
{
    struct st_store *s = open_with("redis+unix:///nowhere/at/all");

    (void)state;
    for (int i = 0; i < 5; i++) {
        char id[8];

        snprintf(id, sizeof(id), "j%d", i);
        add(s, id, "q");
    }
    st_job_free(take(s, "w", SEC));
    st_store_close(s);
}

/* ---- the wrapper ------------------------------------------------------------------------------------- */

static void it_looks_like_the_store_it_wraps(void **state)
{
    struct st_store *s = open_signal();
    struct st_store_about about;
    bool woken = false;

    (void)state;
    assert_string_equal(s->ops->name, "sqlite");
    assert_int_equal(s->timeout_ms, 1000);
    st_store_about(s, &about);
    assert_string_equal(about.kind, "sqlite");
    OK(st_store_wait(s, LONG_MS, &woken, NULL)); /* not told what for: the real store's own */
    assert_true(woken);
    st_store_close(s);
}

static void what_is_no_url_leaves_the_real_store_alone(void **state)
{
    struct st_store *real = kit_open(1000), *s;
    stint_error err;

    (void)state;
    assert_int_equal(st_store_signal(real, "redis://x?zap=1", &s, &err), STINT_EINVAL);
    assert_null(s);
    add(real, "a", "q");
    st_store_close(real);
}

static void *interrupt_later(void *arg)
{
    usleep(200 * 1000);
    st_store_interrupt(arg);
    return NULL;
}

static void a_wait_can_be_interrupted(void **state)
{
    struct st_store *w = listener("w", NULL);
    bool woken = true;
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, interrupt_later, w), 0);
    OK(st_store_wait(w, 10 * LONG_MS, &woken, NULL));
    assert_false(woken);
    pthread_join(t, NULL);
    st_store_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(work_is_heard_by_those_who_serve_the_queue),
        KIT_TEST(work_heard_while_busy_is_told_when_asleep),
        KIT_TEST(a_lost_job_is_told_to_the_worker_that_had_it),
        KIT_TEST(a_program_with_the_library_tells_too),
        KIT_TEST(a_worker_is_told_that_it_is_deaf_and_that_it_hears_again),
        KIT_TEST(nobody_there_changes_no_answer),
        KIT_TEST(it_looks_like_the_store_it_wraps),
        KIT_TEST(what_is_no_url_leaves_the_real_store_alone),
        KIT_TEST(a_wait_can_be_interrupted),
    };

    if (!getenv("STINT_TEST_REDIS")) {
        fprintf(stderr, "no server: run `scripts/redis-test -- PROGRAM` (STINT_TEST_REDIS is not set)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
