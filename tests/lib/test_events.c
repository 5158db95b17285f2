/* SPDX-License-Identifier: Apache-2.0
 *
 * test_events.c - what a worker tells, when, and in which order.
 */
#include <sched.h>

#include "kit.h"

struct log {
    struct kit k;
    stint_worker *w;
    stint_enqueued job;
    atomic_int inside; /* callbacks at the same time */
    atomic_int go, n, started;
    char lines[8192];   /* "name[:state[/reason]]" separated by blanks */
    int true_when_told; /* outcomes that were in the store when they were told */
};

static void note(void *arg, const stint_event *e)
{
    struct log *l = arg;
    size_t at = strlen(l->lines);

    assert_int_equal(atomic_fetch_add(&l->inside, 1), 0);
    assert_string_equal(e->worker, stint_worker_id(l->w));
    if (e->kind != STINT_EVENT_ATTEMPT_LEASE_RENEWED) /* how many there are is a matter of time */
        snprintf(l->lines + at, sizeof(l->lines) - at, "%s%s%s%s%s%s", at ? " " : "", e->name, e->state ? ":" : "",
                 e->state ? e->state : "", e->state && e->reason ? "/" : "", e->state && e->reason ? e->reason : "");
    if (e->kind == STINT_EVENT_ATTEMPT_COMPLETED) {
        assert_non_null(e->job);
        assert_string_equal(e->type, "t");
        assert_string_equal(e->queue, "default");
        assert_true(e->attempt >= 1 && e->fence >= 1 && e->took_us >= 0);
        l->true_when_told += kit_is(&l->k, e->job, "state", "\"succeeded\"");
    }
    atomic_fetch_add(&l->n, 1);
    atomic_fetch_sub(&l->inside, 1);
}

static void log_open(struct log *l, stint_worker_options *opt, stint_handler_fn fn)
{
    memset(l, 0, sizeof(*l));
    kit_open(&l->k);
    opt->event = note;
    opt->event_arg = l;
    l->w = kit_worker(&l->k, opt);
    kit_handle(l->w, "t", fn, l);
}

static void log_close(struct log *l)
{
    stint_worker_free(l->w);
    kit_close(&l->k);
}

/* How often it was told. */
static int count(const struct log *l, const char *name)
{
    int n = 0;

    for (const char *p = l->lines; (p = strstr(p, name)); p += strlen(name))
        n++;
    return n;
}

static stint_code succeed(stint_attempt *a, void *arg)
{
    (void)a;
    (void)arg;
    return STINT_OK;
}

static void a_workers_life_is_told_in_order(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct log l;

    (void)state;
    opt.once = 1;
    log_open(&l, &opt, succeed);
    kit_add(&l.k, "t", "{}", &l.job);
    OK(stint_worker_run(l.w, NULL));
    assert_string_equal(l.lines, "worker_started attempt_started attempt_completed:succeeded worker_stopping "
                                 "worker_stopped");
    log_close(&l);
}

static void an_outcome_is_told_when_the_store_has_it(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct log l;

    (void)state;
    opt.once = 1;
    opt.slots = 3;
    log_open(&l, &opt, succeed);
    kit_add_many(&l.k, "t", 50);
    OK(stint_worker_run(l.w, NULL));
    assert_int_equal(count(&l, "attempt_started"), 50);
    assert_int_equal(count(&l, "attempt_completed:succeeded"), 50);
    assert_int_equal(l.true_when_told, 50);
    log_close(&l);
}

/* The first outcome is told slowly, while the other slots go on to their next jobs. */
static void note_slowly(void *arg, const stint_event *e)
{
    struct log *l = arg;

    assert_int_equal(atomic_fetch_add(&l->inside, 1), 0);
    if (e->kind == STINT_EVENT_ATTEMPT_STARTED)
        atomic_fetch_add(&l->started, 1);
    if (e->kind == STINT_EVENT_ATTEMPT_COMPLETED && !atomic_exchange(&l->go, 1)) {
        UNTIL(atomic_load(&l->n) >= 4);
        for (int i = 0; i < 2000; i++)
            sched_yield();
    }
    atomic_fetch_sub(&l->inside, 1);
}

static stint_code wait_for_the_first(stint_attempt *a, void *arg)
{
    struct log *l = arg;

    if (strcmp(stint_attempt_payload(a, NULL), "first") == 0)
        UNTIL(atomic_load(&l->started) >= 4);
    else
        UNTIL(atomic_load(&l->go));
    atomic_fetch_add(&l->n, 1);
    return STINT_OK;
}

static void events_come_one_at_a_time(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct log l;

    (void)state;
    memset(&l, 0, sizeof(l));
    kit_open(&l.k);
    opt.once = 1;
    opt.slots = 4;
    opt.event = note_slowly;
    opt.event_arg = &l;
    l.w = kit_worker(&l.k, &opt);
    kit_handle(l.w, "t", wait_for_the_first, &l);
    kit_add(&l.k, "t", "first", &l.job);
    kit_add_many(&l.k, "t", 30);
    OK(stint_worker_run(l.w, NULL));
    assert_int_equal(atomic_load(&l.n), 31);
    log_close(&l);
}

static stint_code by_number(stint_attempt *a, void *arg)
{
    struct log *l = arg;

    switch (atomic_fetch_add(&l->go, 1)) {
    case 0:
        return stint_attempt_fail(a, STINT_RETRY, 0, "first");
    case 1:
        return stint_attempt_snooze(a, 0);
    default:
        return stint_attempt_fail(a, STINT_PERMANENT, -1, "last");
    }
}

static void failures_and_snoozes_say_what_becomes_of_the_job(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct log l;

    (void)state;
    opt.once = 1;
    log_open(&l, &opt, by_number);
    kit_add(&l.k, "t", "{}", &l.job);
    OK(stint_worker_run(l.w, NULL));
    assert_string_equal(l.lines,
                        "worker_started attempt_started attempt_failed:pending/app_error attempt_started "
                        "attempt_released:pending attempt_started attempt_failed:failed/permanent worker_stopping "
                        "worker_stopped");
    log_close(&l);
}

static stint_code hold(stint_attempt *a, void *arg)
{
    struct log *l = arg;

    atomic_store(&l->go, 1);
    while (!stint_attempt_aborted(a))
        usleep(500);
    return STINT_OK;
}

static void a_cancelled_attempt_is_told_as_that(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct log l;

    (void)state;
    log_open(&l, &opt, hold);
    kit_add(&l.k, "t", "{}", &l.job);
    OK(stint_worker_start(l.w, NULL));
    UNTIL(atomic_load(&l.go));
    OK(stint_cancel(l.k.st, l.job.id, NULL));
    assert_string_equal(kit_wait(&l.k, l.job.id), "cancelled");
    kit_stop(l.w);
    assert_int_equal(count(&l, "attempt_cancelled:cancelled/cancelled"), 1);
    log_close(&l);
}

static stint_code report_and_hold(stint_attempt *a, void *arg)
{
    struct log *l = arg;

    atomic_store(&l->go, 1);
    while (atomic_load(&l->go) != 2)
        usleep(500);
    OK(stint_attempt_progress(a, "1", 1));
    while (!stint_attempt_aborted(a))
        usleep(500);
    return stint_attempt_complete(a, "1", 1);
}

static void a_lost_job_is_told_once_and_nothing_of_its_outcome(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct st_job *stolen;
    struct log l;

    (void)state;
    log_open(&l, &opt, report_and_hold);
    kit_add(&l.k, "t", "{}", &l.job);
    OK(stint_worker_start(l.w, NULL));
    UNTIL(atomic_load(&l.go) == 1);
    stolen = kit_steal(&l.k, l.job.id);
    atomic_store(&l.go, 2);
    UNTIL(atomic_load(&l.n) >= 3);
    kit_stop(l.w);
    assert_string_equal(l.lines, "worker_started attempt_started attempt_taken_by_another_worker worker_stopping "
                                 "worker_stopped");
    st_job_free(stolen);
    log_close(&l);
}

static stint_code finish_when_told(stint_attempt *a, void *arg)
{
    struct log *l = arg;

    atomic_store(&l->go, 1);
    while (atomic_load(&l->go) != 2)
        usleep(500);
    return stint_attempt_complete(a, "1", 1);
}

/* Nobody knows of the theft until the outcome is brought. */
static void a_refused_outcome_is_told_as_lost(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct st_job *stolen;
    struct log l;

    (void)state;
    log_open(&l, &opt, finish_when_told);
    kit_add(&l.k, "t", "{}", &l.job);
    OK(stint_worker_start(l.w, NULL));
    UNTIL(atomic_load(&l.go) == 1);
    stolen = kit_steal(&l.k, l.job.id);
    kit_finish(&l.k, stolen);
    atomic_store(&l.go, 2);
    UNTIL(atomic_load(&l.n) >= 3);
    kit_stop(l.w);
    assert_string_equal(l.lines, "worker_started attempt_started attempt_already_completed worker_stopping "
                                 "worker_stopped");
    st_job_free(stolen);
    log_close(&l);
}

static stint_code hold_for_renewals(stint_attempt *a, void *arg)
{
    struct log *l = arg;

    (void)a;
    UNTIL(atomic_load(&l->n) >= 2 + 3); /* started, started, and three renewals */
    return STINT_OK;
}

static void renewals_are_told(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct log l;

    (void)state;
    opt.once = 1;
    opt.lease_ms = 2000;
    opt.renew_ms = 50;
    log_open(&l, &opt, hold_for_renewals);
    kit_add(&l.k, "t", "{}", &l.job);
    OK(stint_worker_run(l.w, NULL));
    assert_int_equal(count(&l, "attempt_completed"), 1);
    log_close(&l);
}

/* A job of a worker that is gone; its lease is over. */
static void a_rescued_job_is_told(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct st_type_rule rule = {.pattern = st_slice_cstr("*"), .policy = st_policy_default};
    struct st_claim_req req = {
        .worker = st_slice_cstr("gone"), .lease_us = 1, .n = 1, .n_run = 1, .types = &rule, .n_types = 1};
    struct st_job *job = NULL;
    struct log l;
    size_t n = 0;

    (void)state;
    log_open(&l, &opt, succeed);
    kit_add(&l.k, "t", "{}", &l.job);
    OK(st_store_claim(l.k.store, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    st_job_free(job);
    OK(stint_worker_start(l.w, NULL));
    UNTIL(atomic_load(&l.n) >= 2);
    kit_stop(l.w);
    assert_string_equal(l.lines, "worker_started job_reaped:pending/lease_expired worker_stopping worker_stopped");
    log_close(&l);
}

static void a_store_that_cannot_be_used_is_told(void **state)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    struct log l;
    char path[80];
    FILE *f;

    (void)state;
    memset(&l, 0, sizeof(l));
    kit_open(&l.k);
    snprintf(path, sizeof(path), "%s/other", l.k.dir);
    f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 1000; i++)
        fputs("this is not a database\n", f);
    fclose(f);
    snprintf(l.k.url, sizeof(l.k.url), "sqlite:%s", path);
    opt.event = note;
    opt.event_arg = &l;
    l.w = kit_worker(&l.k, &opt);
    kit_handle(l.w, "t", succeed, &l);
    assert_int_equal(stint_worker_run(l.w, NULL), STINT_ESTORE);
    assert_string_equal(l.lines, "worker_error worker_stopped");
    log_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_workers_life_is_told_in_order),
        cmocka_unit_test(an_outcome_is_told_when_the_store_has_it),
        cmocka_unit_test(events_come_one_at_a_time),
        cmocka_unit_test(failures_and_snoozes_say_what_becomes_of_the_job),
        cmocka_unit_test(a_cancelled_attempt_is_told_as_that),
        cmocka_unit_test(a_lost_job_is_told_once_and_nothing_of_its_outcome),
        cmocka_unit_test(a_refused_outcome_is_told_as_lost),
        cmocka_unit_test(renewals_are_told),
        cmocka_unit_test(a_rescued_job_is_told),
        cmocka_unit_test(a_store_that_cannot_be_used_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
