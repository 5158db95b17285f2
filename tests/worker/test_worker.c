/* SPDX-License-Identifier: Apache-2.0
 *
 * test_worker.c - a whole worker, its threads and its store, with handlers in this process.
 *
 * Nothing here sleeps to make a race likely: handlers wait for what the test says, and the test waits for facts in the
 * store.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "enqueue/await.h"
#include "enqueue/enqueue.h"
#include "worker/worker.h"

struct world {
    char dir[64], url[96];
    struct st_store *store; /* the test's own */
    struct st_settings settings;
    struct st_worker *worker;
    pthread_t thread;
    stint_code result;
    atomic_int ran, aborted, go;
    atomic_int at_once, most_at_once;
};

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* Claims that may be sent away are, so often; the others are counted. */
static struct {
    const struct st_store_ops *real;
    struct st_store_ops ops;
    atomic_int left, passed;
    atomic_int fail_at; /* the store is away once when so many are left */
} crowd;

static bool sent_away(const struct st_claim_req *req)
{
    if (!req->crowded)
        atomic_fetch_add(&crowd.passed, 1);
    if (!req->crowded || atomic_load(&crowd.left) == 0)
        return false;
    atomic_fetch_sub(&crowd.left, 1);
    *req->crowded = true;
    return true;
}

static stint_code crowd_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                              stint_error *err)
{
    int left = atomic_load(&crowd.left);

    *n_out = 0;
    if (left > 0 && atomic_compare_exchange_strong(&crowd.fail_at, &left, -1))
        return st_fail(err, STINT_EAGAIN, "away");
    return sent_away(req) ? STINT_OK : crowd.real->claim(s, req, out, n_out, err);
}

static stint_code crowd_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                                 const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                                 stint_error *err)
{
    stint_code code;

    if (!sent_away(req))
        return crowd.real->exchange(s, now_us, items, n, req, out, n_out, finished, err);
    *n_out = 0;
    code = crowd.real->finish(s, now_us, items, n, err);
    *finished = code == STINT_OK;
    return code;
}

static stint_code open_store(void *arg, struct st_store **out, stint_error *err)
{
    struct world *w = arg;
    const stint_code code = st_store_open(w->url, &(struct st_store_open){.timeout_ms = 5000}, out, err);

    if (code == STINT_OK && crowd.real)
        (*out)->ops = &crowd.ops;
    return code;
}

static void crowd_begin(struct st_store *s, int left)
{
    crowd.real = s->ops;
    crowd.ops = *s->ops;
    crowd.ops.claim = crowd_claim;
    crowd.ops.exchange = crowd_exchange;
    atomic_store(&crowd.left, left);
    atomic_store(&crowd.passed, 0);
    atomic_store(&crowd.fail_at, -1);
}

static void world_init(struct world *w)
{
    stint_error err;

    memset(w, 0, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/stint-worker-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->url, sizeof(w->url), "sqlite:%s/stint.db?sync=normal", w->dir);
    assert_int_equal(open_store(w, &w->store, &err), STINT_OK);
    st_settings_init(&w->settings);
    w->settings.slots = 4;
}

static void world_clear(struct world *w)
{
    st_store_close(w->store);
    st_settings_clear(&w->settings);
    nftw(w->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Counts, and how many run at the same time. */
static void count(void *arg, struct st_pool_item *it)
{
    struct world *w = arg;
    int now = atomic_fetch_add(&w->at_once, 1) + 1;

    (void)it;
    for (int most = atomic_load(&w->most_at_once); now > most;) {
        if (atomic_compare_exchange_weak(&w->most_at_once, &most, now))
            break;
    }
    atomic_fetch_add(&w->ran, 1);
    atomic_fetch_sub(&w->at_once, 1);
}

/* Runs until it is told to stop, by us or by the test. */
static void hold(void *arg, struct st_pool_item *it)
{
    struct world *w = arg;

    atomic_fetch_add(&w->ran, 1);
    while (!atomic_load(&it->abort) && !atomic_load(&w->go))
        usleep(1000);
    if (atomic_load(&it->abort))
        atomic_store(&w->aborted, atomic_load(&it->abort));
}

static void *run_thread(void *arg)
{
    struct world *w = arg;
    stint_error err;

    w->result = st_worker_run(w->worker, &err);
    return NULL;
}

static void start(struct world *w, st_handler_fn fn, bool once)
{
    static struct st_worker_handler h;
    struct st_worker_options opt = {
        .opener = {open_store, w}, .settings = &w->settings, .handlers = &h, .n_handlers = 1, .once = once};
    stint_error err;

    h = (struct st_worker_handler){.pattern = "*", .fn = fn, .arg = w, .policy = st_policy_default};
    assert_int_equal(st_worker_new(&opt, &w->worker, &err), STINT_OK);
    assert_int_equal(st_thread_start(&w->thread, "worker", run_thread, w, &err), STINT_OK);
}

static void join(struct world *w)
{
    pthread_join(w->thread, NULL);
    st_worker_free(w->worker);
    w->worker = NULL;
    assert_int_equal(w->result, STINT_OK);
}

static void stop(struct world *w)
{
    st_worker_stop(w->worker);
    join(w);
}

static void add(struct world *w, int n, int64_t delay_us, char ids[][ST_ID_MAX + 1])
{
    stint_error err;

    for (int i = 0; i < n; i++) {
        struct st_enqueue_item it = {.job = st_new_job_default};
        struct st_enqueued out;

        it.job.type = st_slice_cstr("t");
        it.job.delay_us = delay_us;
        assert_int_equal(st_enqueue_check(&it, ST_PAYLOAD_MAX, &err), STINT_OK);
        assert_int_equal(st_enqueue(w->store, &it.job, 1, &out, &err), STINT_OK);
        if (ids)
            memcpy(ids[i], out.id, sizeof(out.id));
    }
}

static struct st_job_info await(struct world *w, const char *id)
{
    struct st_job_info j;
    stint_error err;

    assert_int_equal(st_await(w->store, st_slice_cstr(id), 20000, &j, &err), STINT_OK);
    return j;
}

static struct st_job_info look(struct world *w, const char *id)
{
    struct st_job_info j;
    stint_error err;

    assert_int_equal(st_store_get(w->store, 0, st_slice_cstr(id), &j, &err), STINT_OK);
    return j;
}

/* Waits for a fact, at most 20 s. */
#define UNTIL(fact)                                                                                                    \
    do {                                                                                                               \
        int tries_ = 0;                                                                                                \
        while (!(fact) && tries_++ < 20000)                                                                            \
            usleep(1000);                                                                                              \
        assert_true(fact);                                                                                             \
    } while (0)

static int count_state(struct world *w, enum st_shown s)
{
    struct st_queue_info *q = NULL;
    size_t n = 0;
    int64_t sum = 0;

    assert_int_equal(st_store_queues(w->store, 0, &q, &n, NULL), STINT_OK);
    for (size_t i = 0; i < n; i++)
        sum += q[i].counts[s];
    free(q);
    return (int)sum;
}

/* ---- tests ---------------------------------------------------------------------------- */

static void once_ends_when_all_is_done_and_never_exceeds_its_slots(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    add(&w, 300, 0, NULL);
    add(&w, 1, ST_HOUR, NULL);
    start(&w, count, true);
    join(&w);
    assert_int_equal(atomic_load(&w.ran), 300);
    assert_true(atomic_load(&w.most_at_once) <= 4);
    assert_int_equal(count_state(&w, ST_SHOW_SUCCEEDED), 300);
    assert_int_equal(count_state(&w, ST_SHOW_SCHEDULED), 1);
    world_clear(&w);
}

static void an_idle_worker_is_woken_by_an_enqueue(void **state)
{
    char ids[1][ST_ID_MAX + 1];
    struct world w;

    (void)state;
    world_init(&w);
    w.settings.poll_us = ST_HOUR; /* only a hint can do it */
    start(&w, count, false);
    for (int i = 0; i < 5; i++) {
        struct st_job_info j;

        add(&w, 1, 0, ids);
        j = await(&w, ids[0]);
        assert_int_equal(j.state, ST_SUCCEEDED);
        st_job_info_clear(&j);
    }
    stop(&w);
    world_clear(&w);
}

static void a_scheduled_job_starts_when_it_is_due(void **state)
{
    char ids[1][ST_ID_MAX + 1];
    struct st_job_info j;
    struct world w;

    (void)state;
    world_init(&w);
    w.settings.poll_us = ST_HOUR;
    start(&w, count, false);
    add(&w, 1, 300 * ST_MS, ids);
    j = await(&w, ids[0]);
    assert_int_equal(j.state, ST_SUCCEEDED);
    assert_true(j.started_us >= j.due_us);
    st_job_info_clear(&j);
    stop(&w);
    world_clear(&w);
}

static void a_cancelled_job_is_stopped_and_ends_cancelled(void **state)
{
    char ids[1][ST_ID_MAX + 1];
    struct st_job_info j;
    struct st_slice id;
    stint_code verdict;
    struct world w;
    bool asked = false;

    (void)state;
    world_init(&w);
    start(&w, hold, false);
    add(&w, 1, 0, ids);
    UNTIL(atomic_load(&w.ran) == 1);
    id = st_slice_cstr(ids[0]);
    assert_int_equal(st_store_cancel(w.store, 0, &id, 1, &verdict, &asked, NULL), STINT_OK);
    assert_true(asked);
    j = await(&w, ids[0]);
    assert_int_equal(j.state, ST_CANCELLED);
    assert_int_equal(atomic_load(&w.aborted), ST_ABORT_CANCELLED);
    st_job_info_clear(&j);
    stop(&w);
    world_clear(&w);
}

static void a_graceful_stop_gives_the_attempt_back(void **state)
{
    char ids[1][ST_ID_MAX + 1];
    struct st_job_info j;
    struct st_worker_info *list = NULL;
    struct world w;
    size_t n = 0;

    (void)state;
    world_init(&w);
    w.settings.shutdown_us = 50 * ST_MS;
    start(&w, hold, false);
    add(&w, 1, 0, ids);
    UNTIL(atomic_load(&w.ran) == 1);
    stop(&w);
    j = look(&w, ids[0]);
    assert_int_equal(j.state, ST_PENDING);
    assert_int_equal(j.attempt, 0);
    assert_int_equal(atomic_load(&w.aborted), ST_ABORT_SHUTDOWN);
    assert_int_equal(st_store_worker_list(w.store, &list, &n, NULL), STINT_OK);
    assert_int_equal(n, 0); /* it has deregistered */
    free(list);
    st_job_info_clear(&j);
    world_clear(&w);
}

/* Another worker takes the job by its id once the lease is over in the store's eyes. */
static void a_lost_lease_aborts_the_attempt_and_its_outcome_is_not_written(void **state)
{
    struct st_claim_req req = {.worker = st_slice_cstr("thief"), .lease_us = ST_HOUR};
    char ids[1][ST_ID_MAX + 1];
    struct st_job *stolen = NULL;
    enum st_refusal why;
    struct st_job_info j;
    stint_error err;
    struct world w;

    (void)state;
    world_init(&w);
    w.settings.lease_us = 3 * ST_SEC;
    w.settings.renew_us = 200 * ST_MS;
    start(&w, hold, false);
    add(&w, 1, 0, ids);
    UNTIL(atomic_load(&w.ran) == 1);
    req.now_us = st_store_now(w.store) + ST_HOUR; /* later, when it has expired */
    assert_int_equal(st_store_acquire(w.store, st_slice_cstr(ids[0]), &req, &stolen, &why, &err), STINT_OK);
    UNTIL(atomic_load(&w.aborted) == ST_ABORT_TAKEN);
    stop(&w);
    j = look(&w, ids[0]);
    assert_int_equal(j.state, ST_RUNNING);
    assert_string_equal(j.worker, "thief");
    assert_int_equal(j.fence, stolen->fence);
    st_job_info_clear(&j);
    st_job_free(stolen);
    world_clear(&w);
}

static void long_jobs_are_not_hoarded(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.settings.slots = 2;
    add(&w, 20, 0, NULL);
    start(&w, hold, false);
    UNTIL(atomic_load(&w.ran) == 2);
    assert_int_equal(count_state(&w, ST_SHOW_CLAIMED), 0);
    assert_int_equal(count_state(&w, ST_SHOW_PENDING), 18);
    atomic_store(&w.go, 1);
    UNTIL(count_state(&w, ST_SHOW_SUCCEEDED) == 20);
    stop(&w);
    world_clear(&w);
}

static void leases_are_kept_while_a_job_runs_longer_than_one(void **state)
{
    char ids[1][ST_ID_MAX + 1];
    struct st_job_info j;
    struct world w;
    int64_t first, fence;

    (void)state;
    world_init(&w);
    w.settings.lease_us = 2 * ST_SEC;
    w.settings.renew_us = 100 * ST_MS;
    start(&w, hold, false);
    add(&w, 1, 0, ids);
    UNTIL(atomic_load(&w.ran) == 1);
    j = look(&w, ids[0]);
    first = j.lease_until_us;
    fence = j.fence;
    for (int renewed = 0; renewed < 3;) {
        st_job_info_clear(&j);
        j = look(&w, ids[0]);
        if (j.lease_until_us > first) {
            first = j.lease_until_us;
            renewed++;
        }
        usleep(1000);
    }
    assert_int_equal(j.fence, fence);
    st_job_info_clear(&j);
    atomic_store(&w.go, 1);
    j = await(&w, ids[0]);
    assert_int_equal(j.state, ST_SUCCEEDED);
    assert_int_equal(j.attempt, 1);
    st_job_info_clear(&j);
    stop(&w);
    world_clear(&w);
}

/* A job that was held under the id when its worker died; its lease is over. */
static void a_worker_that_starts_under_the_id_of_a_dead_one_rescues_its_jobs(void **state)
{
    struct st_claim_req req = {.worker = st_slice_cstr("fixed"), .lease_us = ST_SEC, .n = 1, .n_run = 1};
    struct st_policy quick = st_policy_default;
    struct st_type_rule rule = {.pattern = st_slice_cstr("*"), .policy = quick};
    char ids[1][ST_ID_MAX + 1];
    struct st_job *job = NULL;
    struct st_job_info j;
    stint_error err;
    struct world w;
    size_t n = 0;

    (void)state;
    world_init(&w);
    add(&w, 1, 0, ids);
    rule.policy.backoff = ST_BACKOFF_FIXED;
    rule.policy.initial_us = 0;
    req.types = &rule;
    req.n_types = 1;
    req.lease_us = 1; /* over as soon as it was given */
    assert_int_equal(st_store_claim(w.store, &req, &job, &n, &err), STINT_OK);
    assert_int_equal(n, 1);
    st_job_free(job);
    w.settings.worker_id = strdup("fixed");
    start(&w, count, false);
    j = await(&w, ids[0]);
    assert_int_equal(j.state, ST_SUCCEEDED);
    assert_int_equal(j.attempt, 2); /* the crash was charged */
    assert_string_equal(j.worker, "fixed");
    st_job_info_clear(&j);
    stop(&w);
    world_clear(&w);
}

static void the_id_of_a_live_worker_is_refused(void **state)
{
    struct st_worker_info other = {.id = "fixed", .pid = 1, .slots = 1, .queues = "[]", .types = "[]"};
    struct st_worker_info *list = NULL;
    stint_error err;
    struct world w;
    size_t n = 0;

    (void)state;
    world_init(&w);
    snprintf(other.host, sizeof(other.host), "elsewhere");
    assert_int_equal(st_store_worker_beat(w.store, 0, &other, &err), STINT_OK);
    w.settings.worker_id = strdup("fixed");
    start(&w, count, false);
    pthread_join(w.thread, NULL);
    st_worker_free(w.worker);
    assert_int_equal(w.result, STINT_EINVAL);
    assert_int_equal(st_store_worker_list(w.store, &list, &n, &err), STINT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(list[0].pid, 1); /* its row is as it was */
    free(list);
    world_clear(&w);
}

/* All is run, though so many claims are sent away, and the store is away once when fail_at of them are left (-1: never). */
static void run_in_a_crowd(int left, int fail_at)
{
    struct world w;

    world_init(&w);
    add(&w, 30, 0, NULL);
    crowd_begin(w.store, left);
    atomic_store(&crowd.fail_at, fail_at);
    start(&w, count, true);
    join(&w);
    crowd.real = NULL;
    assert_int_equal(atomic_load(&crowd.left), 0);
    assert_int_equal(atomic_load(&crowd.passed), 0);
    assert_int_equal(atomic_load(&w.ran), 30);
    world_clear(&w);
}

/* Others were claiming: that says nothing about what is there, and is no end. */
static void once_does_not_end_while_others_are_in_its_way(void **state)
{
    (void)state;
    run_in_a_crowd(3, -1);
}

/* The time that a store was away is not one that others were in the way: it begins anew. */
static void who_was_sent_away_before_the_store_was_away_begins_anew(void **state)
{
    (void)state;
    run_in_a_crowd(10, 5);
}

static void whoever_is_always_sent_away_passes_by(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    add(&w, 30, 0, NULL);
    crowd_begin(w.store, 1000000);
    start(&w, count, true);
    join(&w);
    crowd.real = NULL;
    assert_true(atomic_load(&crowd.passed) > 0);
    assert_int_equal(atomic_load(&w.ran), 30);
    world_clear(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once_ends_when_all_is_done_and_never_exceeds_its_slots),
        cmocka_unit_test(once_does_not_end_while_others_are_in_its_way),
        cmocka_unit_test(who_was_sent_away_before_the_store_was_away_begins_anew),
        cmocka_unit_test(whoever_is_always_sent_away_passes_by),
        cmocka_unit_test(an_idle_worker_is_woken_by_an_enqueue),
        cmocka_unit_test(a_scheduled_job_starts_when_it_is_due),
        cmocka_unit_test(a_cancelled_job_is_stopped_and_ends_cancelled),
        cmocka_unit_test(a_graceful_stop_gives_the_attempt_back),
        cmocka_unit_test(a_lost_lease_aborts_the_attempt_and_its_outcome_is_not_written),
        cmocka_unit_test(long_jobs_are_not_hoarded),
        cmocka_unit_test(leases_are_kept_while_a_job_runs_longer_than_one),
        cmocka_unit_test(a_worker_that_starts_under_the_id_of_a_dead_one_rescues_its_jobs),
        cmocka_unit_test(the_id_of_a_live_worker_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
