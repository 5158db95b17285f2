/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fault.c - break every store call of a worker's life in turn, before and after it took effect.
 *
 * A run enqueues jobs, some of which fail at first, and lets a whole worker (all its threads, in-process handlers) work
 * them off with the nth call broken.  It is repeated with n = 1, 2, ... until a run passes in which nothing was broken.
 * After every run each job has succeeded, with exactly one successful attempt.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enqueue/enqueue.h"
#include "worker/worker.h"

#define JOBS    20
#define NTH_MAX 2000

struct world {
    char dir[64];
    char url[96];
    struct st_fault_plan plan;
    atomic_int runs[JOBS]; /* how often each handler has begun */
};

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void world_init(struct world *w, int nth, enum st_fault how)
{
    memset(w, 0, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/stint-fault-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->url, sizeof(w->url), "sqlite:%s/stint.db?sync=normal", w->dir);
    w->plan.nth = nth;
    w->plan.how = how;
}

static void world_clear(struct world *w)
{
    nftw(w->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static stint_code open_real(void *arg, struct st_store **out, stint_error *err)
{
    struct world *w = arg;
    struct st_store_open opt = {.timeout_ms = 5000};

    return st_store_open(w->url, &opt, out, err);
}

static stint_code open_faulty(void *arg, struct st_store **out, stint_error *err)
{
    struct world *w = arg;
    stint_code rc = open_real(arg, out, err);

    if (rc == STINT_OK)
        *out = st_store_faulty(*out, &w->plan);
    return rc;
}

/* Every third job fails its first attempt and is tried again at once. */
static void handle(void *arg, struct st_pool_item *it)
{
    const struct st_job *job = it->job;
    struct st_ran *ran = &it->ran;
    struct world *w = arg;
    int64_t i = -1;

    assert_true(st_parse_i64(job->payload, &i) && i >= 0 && i < JOBS);
    atomic_fetch_add(&w->runs[i], 1);
    if (i % 3 == 0 && job->attempt == 1) {
        ran->ok = false;
        ran->retry_after_us = 0;
        st_ran_fail(ran, ST_KIND_APP_ERROR, "not at first");
        return;
    }
    ran->result = strdup("\"done\"");
    ran->result_len = strlen("\"done\"");
}

/* As a producer would: EAGAIN means again with the same ids, EUNKNOWN is st_enqueue's own business. */
static void enqueue_jobs(struct world *w, struct st_enqueued out[JOBS])
{
    struct st_enqueue_item items[JOBS];
    struct st_new_job jobs[JOBS];
    char numbers[JOBS][8];
    struct st_store *s = NULL;
    stint_error err;
    stint_code rc = STINT_EAGAIN;

    for (int i = 0; i < JOBS; i++) {
        items[i] = (struct st_enqueue_item){.job = st_new_job_default};
        snprintf(numbers[i], sizeof(numbers[i]), "%d", i);
        items[i].job.type = st_slice_cstr("t");
        items[i].job.payload = st_slice_cstr(numbers[i]);
        assert_int_equal(st_enqueue_check(&items[i], ST_PAYLOAD_MAX, &err), STINT_OK);
        jobs[i] = items[i].job;
    }
    assert_int_equal(open_faulty(w, &s, &err), STINT_OK);
    for (int tries = 0; rc == STINT_EAGAIN && tries < 3; tries++)
        rc = st_enqueue(s, jobs, JOBS, out, &err);
    assert_int_equal(rc, STINT_OK);
    st_store_close(s);
}

static void run_worker(struct world *w)
{
    struct st_policy policy = st_policy_default;
    struct st_worker_handler h = {.pattern = "t", .fn = handle, .arg = w};
    struct st_settings s;
    struct st_worker_options opt = {
        .opener = {open_faulty, w}, .settings = &s, .handlers = &h, .n_handlers = 1, .once = true};
    struct st_worker *worker;
    stint_error err;

    policy.max_attempts = 10;
    h.policy = policy;
    st_settings_init(&s);
    s.slots = 4;
    s.poll_us = 100 * ST_MS;
    assert_int_equal(st_worker_new(&opt, &worker, &err), STINT_OK);
    assert_int_equal(st_worker_run(worker, &err), STINT_OK);
    st_worker_free(worker);
    st_settings_clear(&s);
}

static int count_successes(const struct st_job_info *j)
{
    int n = 0;

    for (size_t i = 0; i < j->n_attempts; i++)
        n += j->attempts[i].outcome && strcmp(j->attempts[i].outcome, "succeeded") == 0;
    return n;
}

static void check_all(struct world *w, const struct st_enqueued ids[JOBS])
{
    struct st_store *s = NULL;
    stint_error err;

    assert_int_equal(open_real(w, &s, &err), STINT_OK);
    for (int i = 0; i < JOBS; i++) {
        struct st_job_info j;

        assert_int_equal(st_store_get(s, 0, st_slice_cstr(ids[i].id), &j, &err), STINT_OK);
        if (j.state != ST_SUCCEEDED || count_successes(&j) != 1 || atomic_load(&w->runs[i]) < 1)
            print_error("job %d: state %s, %d successes, ran %d times; broke call %d (%s)\n", i, st_state_name(j.state),
                        count_successes(&j), atomic_load(&w->runs[i]), w->plan.nth, w->plan.op ? w->plan.op : "none");
        assert_int_equal(j.state, ST_SUCCEEDED);
        assert_int_equal(count_successes(&j), 1);
        assert_true(atomic_load(&w->runs[i]) >= (i % 3 == 0 ? 2 : 1));
        st_job_info_clear(&j);
    }
    st_store_close(s);
}

static void break_each_call(enum st_fault how)
{
    int broken = 0;

    for (int nth = 1; nth < NTH_MAX; nth++) {
        struct st_enqueued ids[JOBS];
        struct world w;
        int fired;

        world_init(&w, nth, how);
        enqueue_jobs(&w, ids);
        run_worker(&w);
        check_all(&w, ids);
        fired = __atomic_load_n(&w.plan.fired, __ATOMIC_SEQ_CST);
        world_clear(&w);
        if (!fired) {
            print_message("%d calls were broken, one at a time\n", broken);
            assert_true(broken > 10); /* a worker's life is longer than that */
            return;
        }
        broken++;
    }
    fail_msg("no run passed unbroken");
}

static void no_call_that_fails_before_its_effect_loses_a_job(void **state)
{
    (void)state;
    break_each_call(ST_FAULT_BEFORE);
}

static void no_call_that_fails_after_its_effect_loses_or_doubles_a_job(void **state)
{
    (void)state;
    break_each_call(ST_FAULT_AFTER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_call_that_fails_before_its_effect_loses_a_job),
        cmocka_unit_test(no_call_that_fails_after_its_effect_loses_or_doubles_a_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
