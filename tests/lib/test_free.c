/* SPDX-License-Identifier: Apache-2.0
 *
 * test_free.c - freeing a worker that still runs, in each way it can run, and calls that make no
 * sense.
 */
#include <poll.h>

#include "kit.h"

static stint_code count(stint_attempt *a, void *arg)
{
    (void)a;
    atomic_fetch_add((atomic_int *)arg, 1);
    return STINT_OK;
}

/* Runs until it is told to stop. */
static stint_code hold(stint_attempt *a, void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
    while (!stint_attempt_aborted(a))
        usleep(500);
    return STINT_OK;
}

struct other {
    stint_worker *w;
    atomic_int in;
    stint_code rc;
};

static void *run_it(void *arg)
{
    struct other *o = arg;

    o->rc = stint_worker_run(o->w, NULL);
    return NULL;
}

static void *join_it(void *arg)
{
    struct other *o = arg;

    atomic_store(&o->in, 1);
    o->rc = stint_worker_join(o->w, NULL);
    return NULL;
}

/* A job is running when the worker is freed; it goes back, and no thread is left behind. */
static void free_while(void *(*fn)(void *), bool start)
{
    struct other o = {0};
    atomic_int ran = 0;
    stint_enqueued job;
    pthread_t t;
    struct kit k;

    kit_open(&k);
    kit_add(&k, "t", "{}", &job);
    o.w = kit_worker(&k, NULL);
    kit_handle(o.w, "t", hold, &ran);
    if (start)
        OK(stint_worker_start(o.w, NULL));
    assert_int_equal(pthread_create(&t, NULL, fn, &o), 0);
    UNTIL(atomic_load(&ran) == 1);
    if (start) {
        UNTIL(atomic_load(&o.in) == 1);
        usleep(20000); /* it waits by now, most likely */
    }
    stint_worker_free(o.w);
    pthread_join(t, NULL);
    assert_true(o.rc == STINT_OK || (start && o.rc == STINT_ESTATE));
    CHECK_MEMBER(&k, job.id, "state", "\"pending\"");
    kit_close(&k);
}

static void freeing_lets_a_thread_out_that_runs_it(void **state)
{
    (void)state;
    free_while(run_it, false);
}

static void freeing_lets_a_thread_out_that_waits_for_it(void **state)
{
    (void)state;
    free_while(join_it, true);
}

static void freeing_at_any_moment_of_a_start(void **state)
{
    atomic_int ran = 0;
    struct kit k;

    (void)state;
    kit_open(&k);
    kit_add_many(&k, "t", 50);
    for (int i = 0; i < 60; i++) {
        stint_worker *w = kit_worker(&k, NULL);

        kit_handle(w, "t", count, &ran);
        OK(stint_worker_start(w, NULL));
        usleep((useconds_t)(i * i * 3));
        stint_worker_free(w);
    }
    kit_close(&k);
}

static void *step_it(void *arg)
{
    struct other *o = arg;
    int running = 1;

    while (running && (o->rc = stint_worker_step(o->w, &running, NULL)) == STINT_OK)
        atomic_store(&o->in, 1);
    return NULL;
}

static void freeing_one_that_the_host_drives(void **state)
{
    atomic_int ran = 0;
    stint_enqueued job;
    struct kit k;
    stint_worker *w;
    int fd, running = 1;

    (void)state;
    kit_open(&k);
    kit_add(&k, "t", "{}", &job);
    w = kit_worker(&k, NULL);
    kit_handle(w, "t", hold, &ran);
    OK(stint_worker_begin(w, &fd, NULL));
    while (atomic_load(&ran) == 0) {
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 100);
        OK(stint_worker_step(w, &running, NULL));
    }
    stint_worker_free(w);
    CHECK_MEMBER(&k, job.id, "state", "\"pending\"");
    kit_close(&k);
}

static void two_threads_do_not_step_at_once(void **state)
{
    struct other a = {0}, b = {0};
    atomic_int ran = 0;
    pthread_t t[2];
    struct kit k;
    stint_worker *w;
    int fd;

    (void)state;
    kit_open(&k);
    w = kit_worker(&k, NULL);
    kit_handle(w, "t", count, &ran);
    OK(stint_worker_begin(w, &fd, NULL));
    a.w = b.w = w;
    assert_int_equal(pthread_create(&t[0], NULL, step_it, &a), 0);
    assert_int_equal(pthread_create(&t[1], NULL, step_it, &b), 0);
    usleep(30000);
    stint_worker_stop(w);
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    assert_true(a.rc == STINT_OK || a.rc == STINT_ESTATE);
    assert_true(b.rc == STINT_OK || b.rc == STINT_ESTATE);
    stint_worker_free(w);
    kit_close(&k);
}

/* ---- from inside -------------------------------------------------------------------------- */

struct insider {
    stint_worker *w;
    stint_code joined;
    char remedy[200];
    atomic_int ran, told;
};

static stint_code join_and_free_inside(stint_attempt *a, void *arg)
{
    struct insider *i = arg;
    stint_error err = {0};

    i->joined = stint_worker_join(i->w, &err);
    memcpy(i->remedy, err.remedy, sizeof(i->remedy));
    stint_worker_free(i->w);
    atomic_fetch_add(&i->ran, 1);
    return stint_attempt_complete(a, "1", 1); /* else it is given back, being told to stop */
}

static void a_handler_cannot_wait_for_or_free_its_worker(void **state)
{
    struct insider i = {0};
    stint_enqueued job;
    struct kit k;

    (void)state;
    kit_open(&k);
    kit_add(&k, "t", "{}", &job);
    i.w = kit_worker(&k, NULL);
    kit_handle(i.w, "t", join_and_free_inside, &i);
    OK(stint_worker_start(i.w, NULL));
    OK(stint_worker_join(i.w, NULL)); /* the free inside has stopped it */
    assert_int_equal(atomic_load(&i.ran), 1);
    assert_int_equal(i.joined, STINT_ESTATE);
    assert_non_null(strstr(i.remedy, "stint_worker_stop"));
    stint_worker_free(i.w);
    CHECK_MEMBER(&k, job.id, "state", "\"succeeded\"");
    kit_close(&k);
}

static void free_on_event(void *arg, const stint_event *event)
{
    struct insider *i = arg;

    if (event->kind == STINT_EVENT_WORKER_STARTED) {
        i->joined = stint_worker_join(i->w, NULL);
        stint_worker_free(i->w);
        atomic_fetch_add(&i->told, 1);
    }
}

static void neither_can_an_event_callback(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct insider i = {0};
    struct kit k;

    (void)state;
    kit_open(&k);
    opt.event = free_on_event;
    opt.event_arg = &i;
    i.w = kit_worker(&k, &opt);
    kit_handle(i.w, "t", join_and_free_inside, &i);
    OK(stint_worker_run(i.w, NULL));
    assert_int_equal(atomic_load(&i.told), 1);
    assert_int_equal(i.joined, STINT_ESTATE);
    stint_worker_free(i.w);
    kit_close(&k);
}

/* ---- races ------------------------------------------------------------------------------- */

struct race {
    struct kit k;
    stint_worker *w;
    atomic_int starters, over;
};

/* Until nobody can be in a join that a stop has to end. */
static void *race_stop(void *arg)
{
    struct race *r = arg;

    while (atomic_load(&r->starters)) {
        stint_worker_stop(r->w);
        usleep(300);
        stint_worker_stop_now(r->w);
    }
    return NULL;
}

static void *race_start(void *arg)
{
    struct race *r = arg;

    while (!atomic_load(&r->over)) {
        if (stint_worker_start(r->w, NULL) == STINT_OK)
            usleep(100);
        stint_worker_join(r->w, NULL);
    }
    atomic_fetch_sub(&r->starters, 1);
    return NULL;
}

static void *race_enqueue(void *arg)
{
    struct race *r = arg;
    stint_job job = STINT_JOB_INIT;
    stint_enqueued out;
    stint *st = NULL;

    OK(stint_open(r->k.url, 30000, &st, NULL));
    job.type = "t";
    while (!atomic_load(&r->over))
        OK(stint_enqueue(st, &job, 1, &out, NULL));
    stint_close(st);
    return NULL;
}

static void starts_stops_joins_and_enqueues_may_race(void **state)
{
    void *(*const fns[])(void *) = {race_stop, race_start, race_start, race_enqueue, race_enqueue};
    pthread_t t[sizeof(fns) / sizeof(fns[0])];
    struct race r = {0};
    atomic_int ran = 0;

    (void)state;
    kit_open(&r.k);
    r.w = kit_worker(&r.k, NULL);
    atomic_store(&r.starters, 2);
    kit_handle(r.w, "t", count, &ran);
    for (size_t i = 0; i < sizeof(fns) / sizeof(fns[0]); i++)
        assert_int_equal(pthread_create(&t[i], NULL, fns[i], &r), 0);
    usleep(1500000);
    atomic_store(&r.over, 1);
    for (size_t i = 0; i < sizeof(fns) / sizeof(fns[0]); i++)
        pthread_join(t[i], NULL);
    stint_worker_free(r.w);
    kit_close(&r.k);
}

/* ---- NULL and other nonsense ------------------------------------------------------------- */

static void null_is_refused_not_followed(void **state)
{
    stint_job job = STINT_JOB_INIT;
    stint_enqueued out;
    stint_error err = {0};
    const char *end;
    char *json;
    int fd, running;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    assert_int_equal(stint_open(k.url, 0, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_enqueue(NULL, &job, 1, &out, &err), STINT_EINVAL);
    assert_int_equal(stint_enqueue(k.st, NULL, 1, &out, &err), STINT_EINVAL);
    assert_int_equal(stint_enqueue(k.st, &job, 1, &out, &err), STINT_EINVAL); /* no type */
    assert_int_equal(stint_enqueue(k.st, &job, SIZE_MAX, &out, &err), STINT_EINVAL);
    assert_int_equal(stint_enqueue(k.st, &job, SIZE_MAX / 100, &out, &err), STINT_EINVAL);
    OK(stint_enqueue(k.st, NULL, 0, NULL, NULL));
    job.type = "t";
    OK(stint_enqueue(k.st, &job, 1, NULL, NULL));
    assert_int_equal(stint_get(NULL, "x", &json, &err), STINT_EINVAL);
    assert_int_equal(stint_get(k.st, NULL, &json, &err), STINT_EINVAL);
    assert_int_equal(stint_get(k.st, "x", NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_wait(NULL, "x", 0, &end, &err), STINT_EINVAL);
    assert_int_equal(stint_wait(k.st, NULL, 0, &end, &err), STINT_EINVAL);
    assert_int_equal(stint_wait(k.st, "x", 0, NULL, &err), STINT_ENOTFOUND);
    assert_int_equal(stint_cancel(NULL, "x", &err), STINT_EINVAL);
    assert_int_equal(stint_cancel(k.st, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_new(k.url, NULL, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_handle(NULL, "t", hold, NULL, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_use(NULL, hold, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_run(NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_start(NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_join(NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_begin(NULL, &fd, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_step(NULL, &running, &err), STINT_EINVAL);
    w = kit_worker(&k, NULL);
    assert_int_equal(stint_worker_begin(w, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_step(w, NULL, &err), STINT_ESTATE);
    stint_worker_stop(NULL);
    stint_worker_stop_now(NULL);
    assert_string_equal(stint_worker_id(NULL), "");
    stint_worker_free(w);
    stint_worker_free(NULL);
    stint_close(NULL);
    stint_free(NULL);
    kit_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freeing_lets_a_thread_out_that_runs_it),
        cmocka_unit_test(freeing_lets_a_thread_out_that_waits_for_it),
        cmocka_unit_test(freeing_at_any_moment_of_a_start),
        cmocka_unit_test(freeing_one_that_the_host_drives),
        cmocka_unit_test(two_threads_do_not_step_at_once),
        cmocka_unit_test(a_handler_cannot_wait_for_or_free_its_worker),
        cmocka_unit_test(neither_can_an_event_callback),
        cmocka_unit_test(starts_stops_joins_and_enqueues_may_race),
        cmocka_unit_test(null_is_refused_not_followed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
