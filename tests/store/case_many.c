/* SPDX-License-Identifier: Apache-2.0
 *
 * case_many.c - several processes and threads on one store; waiting and being woken.
 */
#include "suite.h"

#include <pthread.h>
#include <unistd.h>

/* ---- two processes ---------------------------------------------------------------------- */

enum { MANY = 2000, BATCH = 37 };

struct contest {
    int gate[2];   /* closed by the parent: begin */
    int report[2]; /* ids claimed, ST_ID_MAX + 1 bytes each */
    const char *worker;
};

static bool report_ids(int fd, struct st_job **jobs, size_t n)
{
    char id[ST_ID_MAX + 1];

    for (size_t i = 0; i < n; i++) {
        memset(id, 0, sizeof(id));
        strcpy(id, jobs[i]->id);
        if (write(fd, id, sizeof(id)) != sizeof(id))
            return false;
    }
    return true;
}

/* Claims and finishes until nothing is left. */
static int contest_run(struct st_store *s, void *arg)
{
    struct contest *c = arg;
    struct st_claim_req req = test_req(T0, c->worker, BATCH);
    struct st_job *jobs[BATCH];
    struct st_finish fins[BATCH];
    char byte;
    size_t n;

    close(c->gate[1]);
    if (read(c->gate[0], &byte, 1) != 0)
        return 98;
    for (;;) {
        if (st_store_claim(s, &req, jobs, &n, NULL))
            return 97;
        if (!n)
            return 0;
        if (!report_ids(c->report[1], jobs, n))
            return 96;
        for (size_t i = 0; i < n; i++)
            fins[i] = test_fin(jobs[i], ST_OUT_SUCCEEDED);
        if (st_store_finish(s, T0, fins, n, NULL))
            return 95;
        for (size_t i = 0; i < n; i++) {
            if (fins[i].verdict)
                return 94;
            st_job_free(jobs[i]);
        }
    }
}

static void add_many(struct t *t, struct st_store *s, size_t n)
{
    struct st_new_job *jobs = calloc(n, sizeof(*jobs));
    struct st_enqueued *out = calloc(n, sizeof(*out));

    assert_non_null(jobs);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        jobs[i] = test_job(t, "mail");
    OK(st_store_enqueue(s, T0, jobs, n, out, NULL));
    free(jobs);
    free(out);
}

static int by_id(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void no_double(int fd)
{
    char(*ids)[ST_ID_MAX + 1] = calloc(MANY + 1, sizeof(*ids));
    char *at = (char *)ids;
    size_t got = 0;
    ssize_t n;

    assert_non_null(ids);
    while (got < (MANY + 1) * sizeof(*ids) && (n = read(fd, at + got, sizeof(*ids))) > 0)
        got += (size_t)n;
    assert_int_equal(got, MANY * sizeof(*ids));
    qsort(ids, MANY, sizeof(*ids), by_id);
    for (int i = 1; i < MANY; i++)
        assert_string_not_equal(ids[i - 1], ids[i]);
    free(ids);
}

TEST(two_processes_share_2000_jobs_and_none_is_given_twice)
{
    struct contest c = {.worker = "p1"};
    int pids[2];
    struct st_store *s;

    assert_int_equal(pipe(c.gate), 0);
    assert_int_equal(pipe(c.report), 0);
    pids[0] = test_fork(t, contest_run, &c);
    c.worker = "p2";
    pids[1] = test_fork(t, contest_run, &c);
    s = test_store(t);
    add_many(t, s, MANY);
    close(c.report[1]);
    close(c.gate[1]); /* go */
    no_double(c.report[0]);
    assert_int_equal(test_join(pids[0]), 0);
    assert_int_equal(test_join(pids[1]), 0);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_SUCCEEDED), MANY);
    close(c.gate[0]);
    close(c.report[0]);
}

static int enqueue_run(struct st_store *s, void *arg)
{
    char id[ST_UUID_LEN + 1];
    struct st_enqueued out;

    for (int i = 0; i < *(int *)arg; i++) {
        struct st_new_job j = {
            .type = S("mail"), .queue = S("default"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};

        st_id_new(id);
        j.id = S(id);
        if (st_store_enqueue(s, T0, &j, 1, &out, NULL))
            return 1;
    }
    return 0;
}

TEST(a_second_process_may_enqueue_while_jobs_are_worked_on)
{
    struct st_claim_req req = test_req(T0, "w1", 20);
    int n = 200, pid = test_fork(t, enqueue_run, &n);
    struct st_store *s = test_store(t);
    size_t total = 0;
    bool woken;

    while (total < 200) {
        total += test_claim_count(s, &req);
        OK(st_store_wait(s, 1000, &woken, NULL));
    }
    assert_int_equal(test_join(pid), 0);
    assert_int_equal(total, 200);
}

/* ---- waiting ---------------------------------------------------------------------------- */

/* Waits until a wait comes back without news: what happened before is used up. */
static void settle(struct st_store *s)
{
    bool woken;

    do
        OK(st_store_wait(s, 0, &woken, NULL));
    while (woken);
}

static int enqueue_at_gate(struct st_store *s, void *arg)
{
    const struct contest *c = arg;
    int one = 1;
    char byte;

    close(c->gate[1]);
    return read(c->gate[0], &byte, 1) == 0 ? enqueue_run(s, &one) : 98;
}

TEST(wait_is_woken_by_another_process)
{
    struct contest c = {0};
    int64_t began;
    struct st_store *s;
    bool woken = false;
    int pid;

    assert_int_equal(pipe(c.gate), 0);
    pid = test_fork(t, enqueue_at_gate, &c);
    s = test_store(t);
    test_enqueue(t, s, "first"); /* the other process has nothing left to set up that could wake us */
    settle(s);
    began = st_clock_mono_us();
    close(c.gate[1]);
    while (!woken && st_clock_mono_us() - began < 60 * SEC)
        OK(st_store_wait(s, 60000, &woken, NULL));
    assert_true(woken);
    assert_int_equal(test_join(pid), 0);
    close(c.gate[0]);
}

TEST(wait_is_woken_by_another_handle)
{
    struct st_store *s = test_store(t), *other = test_store(t);
    bool woken;

    settle(s);
    test_enqueue(t, other, "mail");
    OK(st_store_wait(s, 60000, &woken, NULL)); /* also by what happened before it was called */
    assert_true(woken);
    settle(s);
    OK(st_store_wait(s, 1, &woken, NULL));
    assert_false(woken);
}

static void *wait_long(void *arg)
{
    bool woken;

    settle(arg);
    return (void *)(intptr_t)st_store_wait(arg, 600000, &woken, NULL);
}

TEST(interrupt_ends_a_wait_from_another_thread)
{
    struct st_store *s = test_store(t);
    pthread_t thread;
    void *code;

    assert_int_equal(pthread_create(&thread, NULL, wait_long, s), 0);
    st_store_interrupt(s); /* before, during or after it began to wait: it must come back */
    pthread_join(thread, &code);
    assert_null(code);
}

TEST(interrupt_makes_the_next_wait_return_at_once)
{
    struct st_store *s = test_store(t);
    bool woken = true;
    int64_t began;

    settle(s);
    st_store_interrupt(s);
    OK(st_store_wait(s, 600000, &woken, NULL));
    assert_false(woken);
    began = st_clock_mono_us();
    OK(st_store_wait(s, 20, &woken, NULL)); /* and only the next one */
    assert_true(woken || st_clock_mono_us() - began >= 20 * ST_MS);
}

/* ---- threads ---------------------------------------------------------------------------- */

struct hand {
    struct st_store *s;
    pthread_t thread;
    char worker[16];
    size_t done;
    stint_code code;
};

static void *drain(void *arg)
{
    struct hand *h = arg;
    struct st_claim_req req = test_req(T0, h->worker, 7);
    struct st_job *jobs[7];
    struct st_finish fins[7];
    size_t n = 1;

    while (n && !h->code) {
        h->code = st_store_claim(h->s, &req, jobs, &n, NULL);
        for (size_t i = 0; i < n; i++)
            fins[i] = test_fin(jobs[i], ST_OUT_SUCCEEDED);
        if (!h->code && n)
            h->code = st_store_finish(h->s, T0, fins, n, NULL);
        for (size_t i = 0; i < n; i++) {
            h->done += !fins[i].verdict;
            st_job_free(jobs[i]);
        }
    }
    return NULL;
}

TEST(threads_with_their_own_handles_share_the_work)
{
    struct hand hands[6] = {0};
    size_t done = 0;

    for (int i = 0; i < 6; i++) {
        hands[i].s = test_store(t);
        snprintf(hands[i].worker, sizeof(hands[i].worker), "t%d", i);
    }
    add_many(t, hands[0].s, 1000);
    for (int i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&hands[i].thread, NULL, drain, &hands[i]), 0);
    for (int i = 0; i < 6; i++) {
        pthread_join(hands[i].thread, NULL);
        OK(hands[i].code);
        done += hands[i].done;
    }
    assert_int_equal(done, 1000);
    assert_int_equal(test_count(hands[0].s, T0, "default", ST_SHOW_SUCCEEDED), 1000);
}

TEST(what_was_acknowledged_is_there_after_the_store_was_closed)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");

    test_close(t, s);
    s = test_store(t);
    assert_int_equal(test_shown(s, T0, id), ST_SHOW_PENDING);
    st_job_free(test_claim(t, s, T0, 10 * SEC));
    test_close(t, s);
    s = test_store(t);
    assert_int_equal(test_shown(s, T0, id), ST_SHOW_RUNNING);
}
