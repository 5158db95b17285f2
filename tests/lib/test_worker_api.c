/* SPDX-License-Identifier: Apache-2.0
 *
 * test_worker_api.c - a worker in this process: made, run in each of the three ways, stopped from
 * anywhere.
 */
#include <poll.h>
#include <signal.h>

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

static void once_runs_what_is_due_and_ends(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_job later = STINT_JOB_INIT;
    stint_enqueued job, scheduled;
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    kit_add(&k, "t", "{}", &job);
    kit_add_many(&k, "t", 99);
    later.type = "t";
    later.delay_ms = 3600 * 1000;
    OK(stint_enqueue(k.st, &later, 1, &scheduled, NULL));
    opt.once = 1;
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", count, &ran);
    OK(stint_worker_run(w, NULL));
    assert_int_equal(atomic_load(&ran), 100);
    CHECK_MEMBER(&k, job.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&k, scheduled.id, "state", "\"scheduled\"");
    stint_worker_free(w);
    kit_close(&k);
}

struct crowd {
    atomic_int now, most, ended;
};

static stint_code jostle(stint_attempt *a, void *arg)
{
    struct crowd *c = arg;
    int now = atomic_fetch_add(&c->now, 1) + 1;

    (void)a;
    for (int most = atomic_load(&c->most); now > most;) {
        if (atomic_compare_exchange_weak(&c->most, &most, now))
            break;
    }
    usleep(500);
    atomic_fetch_sub(&c->now, 1);
    atomic_fetch_add(&c->ended, 1);
    return STINT_OK;
}

static int most_at_once(int slots)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct crowd c = {0};
    struct kit k;
    stint_worker *w;

    kit_open(&k);
    kit_add_many(&k, "t", 60);
    opt.once = 1;
    opt.slots = slots;
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", jostle, &c);
    OK(stint_worker_run(w, NULL));
    assert_int_equal(atomic_load(&c.ended), 60);
    stint_worker_free(w);
    kit_close(&k);
    return atomic_load(&c.most);
}

static void a_worker_has_one_slot_unless_it_asks_for_more(void **state)
{
    (void)state;
    assert_int_equal(most_at_once(0), 1);
    assert_true(most_at_once(3) <= 3);
}

static stint_code note_type(stint_attempt *a, void *arg)
{
    char json[160];
    int n = snprintf(json, sizeof(json), "\"%s as %s\"", stint_attempt_type(a), (const char *)arg);

    return stint_attempt_complete(a, json, (size_t)n);
}

static void the_most_specific_pattern_gets_the_job(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_enqueued a, b, c;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    kit_add(&k, "img.resize", "{}", &a);
    kit_add(&k, "img.crop", "{}", &b);
    kit_add(&k, "mail", "{}", &c);
    opt.once = 1;
    w = kit_worker(&k, &opt);
    kit_handle(w, "*", note_type, (void *)"all");
    kit_handle(w, "img.*", note_type, (void *)"images");
    kit_handle(w, "img.crop", note_type, (void *)"crop");
    OK(stint_worker_run(w, NULL));
    CHECK_MEMBER(&k, a.id, "result", "\"img.resize as images\"");
    CHECK_MEMBER(&k, b.id, "result", "\"img.crop as crop\"");
    CHECK_MEMBER(&k, c.id, "result", "\"mail as all\"");
    stint_worker_free(w);
    kit_close(&k);
}

static void only_types_and_queues_that_are_served_are_claimed(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_job job = STINT_JOB_INIT;
    stint_enqueued here, other_queue, other_type;
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    job.type = "t";
    job.queue = "mine";
    OK(stint_enqueue(k.st, &job, 1, &here, NULL));
    job.queue = "yours";
    OK(stint_enqueue(k.st, &job, 1, &other_queue, NULL));
    job.type = "u";
    job.queue = "mine";
    OK(stint_enqueue(k.st, &job, 1, &other_type, NULL));
    opt.once = 1;
    opt.queues = "mine=2,spare=1";
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", count, &ran);
    OK(stint_worker_run(w, NULL));
    assert_int_equal(atomic_load(&ran), 1);
    CHECK_MEMBER(&k, here.id, "state", "\"succeeded\"");
    CHECK_MEMBER(&k, other_queue.id, "state", "\"pending\"");
    CHECK_MEMBER(&k, other_type.id, "state", "\"pending\"");
    stint_worker_free(w);
    kit_close(&k);
}

static void people_see_the_worker_under_its_id_and_name(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct st_worker_info *list = NULL;
    size_t n = 0;
    struct kit k;
    stint_worker *w;
    atomic_int ran = 0;

    (void)state;
    kit_open(&k);
    opt.id = "w1";
    opt.name = "The one";
    opt.slots = 7;
    w = kit_worker(&k, &opt);
    assert_string_equal(stint_worker_id(w), "w1");
    kit_handle(w, "t", count, &ran);
    OK(stint_worker_start(w, NULL));
    for (int i = 0; n == 0 && i < 30000; i++) {
        free(list);
        OK(st_store_worker_list(k.store, &list, &n, NULL));
        usleep(1000);
    }
    assert_int_equal(n, 1);
    assert_string_equal(list[0].id, "w1");
    assert_string_equal(list[0].name, "The one");
    assert_int_equal(list[0].slots, 7);
    assert_string_equal(list[0].types, "[\"t\"]");
    free(list);
    kit_stop(w);
    OK(st_store_worker_list(k.store, &list, &n, NULL));
    assert_int_equal(n, 0);
    free(list);
    stint_worker_free(w);
    kit_close(&k);
}

/* ---- start and stop from anywhere -------------------------------------------------------- */

static void *stop_it(void *arg)
{
    stint_worker_stop(arg);
    return NULL;
}

/* Two threads stop it while a third waits for it: again and again on the same handle. */
static void it_can_be_started_and_stopped_from_any_thread_many_times(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    opt.slots = 2;
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", count, &ran);
    for (int i = 0; i < 50; i++) {
        pthread_t stoppers[2];
        stint_enqueued job;

        if (i % 5 == 0)
            kit_add(&k, "t", "{}", &job);
        OK(stint_worker_start(w, NULL));
        if (i % 5 == 0)
            assert_string_equal(kit_wait(&k, job.id), "succeeded");
        for (int s = 0; s < 2; s++)
            assert_int_equal(pthread_create(&stoppers[s], NULL, stop_it, w), 0);
        OK(stint_worker_join(w, NULL));
        for (int s = 0; s < 2; s++)
            pthread_join(stoppers[s], NULL);
        stint_worker_stop_now(w); /* whatever is left over is for nobody: see below */
        OK(stint_worker_run(w, NULL));
    }
    assert_int_equal(atomic_load(&ran), 10);
    stint_worker_free(w);
    kit_close(&k);
}

static void a_stop_that_comes_first_is_not_lost(void **state)
{
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    w = kit_worker(&k, NULL);
    kit_handle(w, "t", count, &ran);
    stint_worker_stop(w);
    OK(stint_worker_run(w, NULL)); /* else it would never come back */
    stint_worker_free(w);
    kit_close(&k);
}

/* With an id of its own it has a row before it works. */
static void a_worker_that_is_stopped_at_its_start_leaves_no_row(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct st_worker_info *list = NULL;
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;
    size_t n = 0;

    (void)state;
    kit_open(&k);
    opt.id = "w1";
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", count, &ran);
    for (int i = 0; i < 10; i++) {
        stint_worker_stop(w);
        OK(stint_worker_run(w, NULL));
        OK(st_store_worker_list(k.store, &list, &n, NULL));
        free(list);
        assert_int_equal(n, 0);
    }
    stint_worker_free(w);
    kit_close(&k);
}

static stint_code stop_from_inside(stint_attempt *a, void *arg)
{
    (void)a;
    stint_worker_stop(arg);
    return STINT_OK;
}

static void a_handler_may_stop_its_worker(void **state)
{
    stint_enqueued job;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    kit_add(&k, "t", "{}", &job);
    w = kit_worker(&k, NULL);
    kit_handle(w, "t", stop_from_inside, w);
    OK(stint_worker_run(w, NULL));
    CHECK_MEMBER(&k, job.id, "state", "\"succeeded\"");
    stint_worker_free(w);
    kit_close(&k);
}

static stint_worker *signalled;

static void on_usr1(int sig)
{
    (void)sig;
    stint_worker_stop(signalled);
}

static stint_code raise_usr1(stint_attempt *a, void *arg)
{
    (void)a;
    (void)arg;
    kill(getpid(), SIGUSR1);
    return STINT_OK;
}

static void a_signal_handler_may_stop_it(void **state)
{
    stint_enqueued job;
    struct kit k;

    (void)state;
    kit_open(&k);
    kit_add(&k, "t", "{}", &job);
    signalled = kit_worker(&k, NULL);
    signal(SIGUSR1, on_usr1);
    kit_handle(signalled, "t", raise_usr1, NULL);
    OK(stint_worker_run(signalled, NULL));
    signal(SIGUSR1, SIG_DFL);
    CHECK_MEMBER(&k, job.id, "state", "\"succeeded\"");
    stint_worker_free(signalled);
    kit_close(&k);
}

static void freeing_a_running_worker_stops_it_and_gives_its_attempt_back(void **state)
{
    stint_enqueued job;
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    kit_add(&k, "t", "{}", &job);
    w = kit_worker(&k, NULL);
    kit_handle(w, "t", hold, &ran);
    OK(stint_worker_start(w, NULL));
    UNTIL(atomic_load(&ran) == 1);
    stint_worker_free(w);
    CHECK_MEMBER(&k, job.id, "state", "\"pending\"");
    CHECK_MEMBER(&k, job.id, "attempt", "0");
    kit_close(&k);
}

static void it_runs_one_way_at_a_time(void **state)
{
    stint_error err;
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;
    int fd;

    (void)state;
    kit_open(&k);
    w = kit_worker(&k, NULL);
    kit_handle(w, "t", count, &ran);
    assert_int_equal(stint_worker_join(w, &err), STINT_ESTATE);
    OK(stint_worker_start(w, NULL));
    assert_int_equal(stint_worker_start(w, &err), STINT_ESTATE);
    assert_int_equal(stint_worker_run(w, &err), STINT_ESTATE);
    assert_int_equal(stint_worker_begin(w, &fd, &err), STINT_ESTATE);
    assert_int_equal(stint_worker_handle(w, "u", count, &ran, NULL, &err), STINT_ESTATE);
    assert_int_equal(stint_worker_use(w, count, &ran, &err), STINT_ESTATE);
    kit_stop(w);
    stint_worker_free(w);
    kit_close(&k);
}

/* ---- the host's own loop ----------------------------------------------------------------- */

/* The host waits on nothing but the descriptor; the delayed job comes by a timer of the worker's.
 */
static void a_hosts_own_loop_can_drive_it(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_job later = STINT_JOB_INIT;
    struct pollfd p = {.events = POLLIN};
    stint_enqueued job;
    int running = 1, fd = -1;
    atomic_int ran = 0;
    stint_error err;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    kit_add_many(&k, "t", 20);
    later.type = "t";
    later.delay_ms = 300;
    OK(stint_enqueue(k.st, &later, 1, &job, NULL));
    opt.poll_ms = 3600 * 1000;
    opt.slots = 4;
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", count, &ran);
    assert_int_equal(stint_worker_step(w, &running, &err), STINT_ESTATE);
    OK(stint_worker_begin(w, &fd, &err));
    p.fd = fd;
    do {
        assert_int_equal(poll(&p, 1, 30000), 1);
        OK(stint_worker_step(w, &running, &err));
        if (atomic_load(&ran) == 21)
            stint_worker_stop(w);
    } while (running);
    assert_int_equal(atomic_load(&ran), 21);
    CHECK_MEMBER(&k, job.id, "state", "\"succeeded\"");
    OK(stint_worker_begin(w, &fd, &err)); /* and again; this time it is just freed */
    OK(stint_worker_step(w, &running, &err));
    stint_worker_free(w);
    kit_close(&k);
}

/* Nothing happens but its own polling. */
static void the_descriptor_tells_of_timers_too(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct pollfd p = {.events = POLLIN};
    int running = 1;
    atomic_int ran = 0;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    opt.poll_ms = 20;
    w = kit_worker(&k, &opt);
    kit_handle(w, "t", count, &ran);
    OK(stint_worker_begin(w, &p.fd, NULL));
    for (int i = 0; i < 60; i++) {
        assert_int_equal(poll(&p, 1, 30000), 1);
        OK(stint_worker_step(w, &running, NULL));
        assert_true(running);
    }
    stint_worker_free(w);
    kit_close(&k);
}

/* ---- what is refused --------------------------------------------------------------------- */

static void check_refused(struct kit *k, const stint_worker_options *opt, const char *word)
{
    stint_error err = {0};
    stint_worker *w;

    assert_int_equal(stint_worker_new(k->url, opt, &w, &err), STINT_EINVAL);
    assert_null(w);
    if (!strstr(err.message, word))
        fail_msg("\"%s\" does not name %s", err.message, word);
}

static void options_that_make_no_sense_are_refused_by_name(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT, init = STINT_WORKER_OPTIONS_INIT;
    stint_retry retry = STINT_RETRY_INIT, retry_init = STINT_RETRY_INIT;
    struct kit k;

    (void)state;
    kit_open(&k);
    opt.size = 0;
    check_refused(&k, &opt, "stint_worker_options");
    opt = init;
    opt.slots = -1;
    check_refused(&k, &opt, "slots");
    opt = init;
    opt.lease_ms = 5;
    check_refused(&k, &opt, "lease_ms");
    opt = init;
    opt.lease_ms = 1000;
    opt.renew_ms = 900;
    check_refused(&k, &opt, "renew_ms");
    opt = init;
    opt.queues = "a,b=2";
    check_refused(&k, &opt, "weight");
    opt = init;
    opt.queues = "a b";
    check_refused(&k, &opt, "a b");
    opt = init;
    opt.id = "";
    check_refused(&k, &opt, "id");
    opt = init;
    opt.retry = &retry;
    retry.backoff = "sometimes";
    check_refused(&k, &opt, "sometimes");
    retry = retry_init;
    retry.backoff = "list";
    check_refused(&k, &opt, "delays_ms");
    retry = retry_init;
    retry.jitter = 2;
    check_refused(&k, &opt, "jitter");
    kit_close(&k);
}

/* As a program built against an older, and against a newer header would send them. */
static void shorter_and_longer_options_are_understood(void **state)
{
    struct {
        stint_worker_options known;
        int64_t unknown;
    } opt = {STINT_WORKER_OPTIONS_INIT, 0};
    stint_error err;
    stint_worker *w;
    struct kit k;

    (void)state;
    kit_open(&k);
    opt.known.slots = -1; /* would be refused if it were looked at */
    opt.known.size = offsetof(stint_worker_options, slots);
    OK(stint_worker_new(k.url, &opt.known, &w, &err));
    stint_worker_free(w);
    opt.known.slots = 2;
    opt.known.size = sizeof(opt);
    OK(stint_worker_new(k.url, &opt.known, &w, &err));
    stint_worker_free(w);
    opt.unknown = 1;
    assert_int_equal(stint_worker_new(k.url, &opt.known, &w, &err), STINT_EINVAL);
    kit_close(&k);
}

static void handlers_that_make_no_sense_are_refused(void **state)
{
    stint_handler_options opt = STINT_HANDLER_OPTIONS_INIT;
    atomic_int ran = 0;
    stint_error err;
    struct kit k;
    stint_worker *w;

    (void)state;
    kit_open(&k);
    w = kit_worker(&k, NULL);
    assert_int_equal(stint_worker_run(w, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "no handler"));
    assert_int_equal(stint_worker_handle(w, NULL, count, &ran, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_handle(w, "t", NULL, &ran, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_handle(w, "a b", count, &ran, NULL, &err), STINT_EINVAL);
    assert_int_equal(stint_worker_use(w, NULL, NULL, &err), STINT_EINVAL);
    opt.renew_ms = 3600 * 1000; /* the worker's lease is a minute */
    assert_int_equal(stint_worker_handle(w, "t", count, &ran, &opt, &err), STINT_EINVAL);
    kit_handle(w, "t", count, &ran);
    assert_int_equal(stint_worker_handle(w, "t", count, &ran, NULL, &err), STINT_EEXISTS);
    stint_worker_free(w);
    kit_close(&k);
}

static void a_store_that_cannot_be_used_ends_the_run(void **state)
{
    atomic_int ran = 0;
    stint_error err = {0};
    stint_worker *w;
    struct kit k;
    FILE *f;

    (void)state;
    kit_open(&k);
    snprintf(k.url, sizeof(k.url), "sqlite:%s/not-a-store", k.dir);
    f = fopen(k.url + strlen("sqlite:"), "w");
    assert_non_null(f);
    for (int i = 0; i < 1000; i++)
        fputs("this is not a database\n", f);
    fclose(f);
    w = kit_worker(&k, NULL);
    kit_handle(w, "t", count, &ran);
    assert_int_equal(stint_worker_run(w, &err), STINT_ESTORE);
    assert_int_equal(err.code, STINT_ESTORE);
    stint_worker_free(w);
    kit_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once_runs_what_is_due_and_ends),
        cmocka_unit_test(a_worker_has_one_slot_unless_it_asks_for_more),
        cmocka_unit_test(the_most_specific_pattern_gets_the_job),
        cmocka_unit_test(only_types_and_queues_that_are_served_are_claimed),
        cmocka_unit_test(people_see_the_worker_under_its_id_and_name),
        cmocka_unit_test(it_can_be_started_and_stopped_from_any_thread_many_times),
        cmocka_unit_test(a_stop_that_comes_first_is_not_lost),
        cmocka_unit_test(a_worker_that_is_stopped_at_its_start_leaves_no_row),
        cmocka_unit_test(a_handler_may_stop_its_worker),
        cmocka_unit_test(a_signal_handler_may_stop_it),
        cmocka_unit_test(freeing_a_running_worker_stops_it_and_gives_its_attempt_back),
        cmocka_unit_test(it_runs_one_way_at_a_time),
        cmocka_unit_test(a_hosts_own_loop_can_drive_it),
        cmocka_unit_test(the_descriptor_tells_of_timers_too),
        cmocka_unit_test(options_that_make_no_sense_are_refused_by_name),
        cmocka_unit_test(shorter_and_longer_options_are_understood),
        cmocka_unit_test(handlers_that_make_no_sense_are_refused),
        cmocka_unit_test(a_store_that_cannot_be_used_ends_the_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
