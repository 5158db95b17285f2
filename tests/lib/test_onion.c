/* SPDX-License-Identifier: Apache-2.0
 *
 * test_onion.c - middlewares around every attempt.
 */
#include "kit.h"

/* What happened, in order. */
static char trail[512];

static void mark(const char *what)
{
    size_t at = strlen(trail);

    snprintf(trail + at, sizeof(trail) - at, "%s%s", at ? " " : "", what);
}

static stint_code handler(stint_attempt *a, void *arg)
{
    mark("handler");
    assert_int_equal(stint_next(a), STINT_ESTATE); /* there is nothing further in */
    if (arg)
        return stint_attempt_fail(a, STINT_RETRY, -1, arg);
    return stint_attempt_complete(a, "\"inner\"", 7);
}

static stint_code wrap(stint_attempt *a, void *arg)
{
    char word[32];
    stint_code rc;

    snprintf(word, sizeof(word), "%s(", (const char *)arg);
    mark(word);
    assert_int_equal(stint_attempt_outcome(a), STINT_UNDECIDED);
    rc = stint_next(a);
    assert_int_equal(stint_next(a), STINT_ESTATE); /* once is enough */
    snprintf(word, sizeof(word), ")%s", (const char *)arg);
    mark(word);
    return rc;
}

struct onion {
    struct kit k;
    stint_worker *w;
    stint_enqueued job;
};

static void onion_open(struct onion *o, void *handler_arg)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;

    trail[0] = '\0';
    kit_open(&o->k);
    opt.once = 1;
    o->w = kit_worker(&o->k, &opt);
    kit_handle(o->w, "t", handler, handler_arg);
    kit_add(&o->k, "t", "{}", &o->job);
}

static void onion_run(struct onion *o)
{
    OK(stint_worker_run(o->w, NULL));
}

static void onion_close(struct onion *o)
{
    stint_worker_free(o->w);
    kit_close(&o->k);
}

static void the_first_middleware_is_the_outermost(void **state)
{
    struct onion o;

    (void)state;
    onion_open(&o, NULL);
    OK(stint_worker_use(o.w, wrap, (void *)"a", NULL));
    OK(stint_worker_use(o.w, wrap, (void *)"b", NULL));
    OK(stint_worker_use(o.w, wrap, (void *)"c", NULL));
    onion_run(&o);
    assert_string_equal(trail, "a( b( c( handler )c )b )a");
    CHECK_MEMBER(&o.k, o.job.id, "result", "\"inner\"");
    onion_close(&o);
}

static stint_code cut_short(stint_attempt *a, void *arg)
{
    (void)arg;
    mark("cut");
    return stint_attempt_complete(a, "\"cached\"", 8);
}

static void a_middleware_may_end_the_attempt_without_the_handler(void **state)
{
    struct onion o;

    (void)state;
    onion_open(&o, NULL);
    OK(stint_worker_use(o.w, wrap, (void *)"a", NULL));
    OK(stint_worker_use(o.w, cut_short, NULL, NULL));
    OK(stint_worker_use(o.w, wrap, (void *)"never", NULL));
    onion_run(&o);
    assert_string_equal(trail, "a( cut )a");
    CHECK_MEMBER(&o.k, o.job.id, "result", "\"cached\"");
    onion_close(&o);
}

static stint_code see_and_change(stint_attempt *a, void *arg)
{
    char json[64];
    size_t len = 0;
    const char *inner;
    int n;

    (void)arg;
    OK(stint_next(a));
    assert_int_equal(stint_attempt_outcome(a), STINT_SUCCEEDED);
    inner = stint_attempt_result(a, &len);
    n = snprintf(json, sizeof(json), "[%.*s,\"outer\"]", (int)len, inner);
    return stint_attempt_complete(a, json, (size_t)n);
}

static void a_middleware_sees_the_inner_result_and_may_change_it(void **state)
{
    struct onion o;

    (void)state;
    onion_open(&o, NULL);
    OK(stint_worker_use(o.w, see_and_change, NULL, NULL));
    onion_run(&o);
    CHECK_MEMBER(&o.k, o.job.id, "result", "[\"inner\",\"outer\"]");
    onion_close(&o);
}

static stint_code see_failure(stint_attempt *a, void *arg)
{
    OK(stint_next(a));
    assert_int_equal(stint_attempt_outcome(a), STINT_RETRY);
    assert_string_equal(stint_attempt_error(a), "no luck");
    mark("seen");
    return arg ? stint_attempt_fail(a, STINT_PERMANENT, -1, "no luck, and no use") : STINT_OK;
}

static void a_middleware_that_only_looks_changes_nothing(void **state)
{
    struct onion o;

    (void)state;
    onion_open(&o, (void *)"no luck");
    OK(stint_worker_use(o.w, see_failure, NULL, NULL));
    onion_run(&o);
    assert_string_equal(trail, "handler seen");
    CHECK_MEMBER(&o.k, o.job.id, "state", "\"retrying\"");
    CHECK_MEMBER(&o.k, o.job.id, "error", "{\"kind\":\"app_error\",\"message\":\"no luck\"}");
    onion_close(&o);
}

static void a_middleware_may_turn_a_failure_into_a_final_one(void **state)
{
    struct onion o;

    (void)state;
    onion_open(&o, (void *)"no luck");
    OK(stint_worker_use(o.w, see_failure, &o, NULL));
    onion_run(&o);
    CHECK_MEMBER(&o.k, o.job.id, "state", "\"failed\"");
    onion_close(&o);
}

static stint_code fail_afterwards(stint_attempt *a, void *arg)
{
    (void)arg;
    OK(stint_next(a));
    return STINT_EINVAL;
}

static void a_code_returned_by_a_middleware_takes_back_the_inner_success(void **state)
{
    struct onion o;

    (void)state;
    onion_open(&o, NULL);
    OK(stint_worker_use(o.w, fail_afterwards, NULL, NULL));
    onion_run(&o);
    CHECK_MEMBER(&o.k, o.job.id, "state", "\"retrying\"");
    CHECK_MEMBER(&o.k, o.job.id, "result", "null");
    onion_close(&o);
}

static stint_code returns_oom(stint_attempt *a, void *arg)
{
    (void)a;
    (void)arg;
    return STINT_ENOMEM;
}

static stint_code rescue(stint_attempt *a, void *arg)
{
    (void)arg;
    assert_int_equal(stint_next(a), STINT_ENOMEM);
    assert_int_equal(stint_attempt_outcome(a), STINT_RETRY);
    return stint_attempt_snooze(a, 3600 * 1000);
}

static void a_middleware_sees_the_code_the_handler_returned(void **state)
{
    struct onion o;
    stint_enqueued job;

    (void)state;
    onion_open(&o, NULL);
    kit_handle(o.w, "oom", returns_oom, NULL);
    OK(stint_cancel(o.k.st, o.job.id, NULL));
    kit_add(&o.k, "oom", "{}", &job);
    OK(stint_worker_use(o.w, rescue, NULL, NULL));
    onion_run(&o);
    CHECK_MEMBER(&o.k, job.id, "state", "\"scheduled\"");
    CHECK_MEMBER(&o.k, job.id, "attempt", "0");
    onion_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_middleware_is_the_outermost),
        cmocka_unit_test(a_middleware_may_end_the_attempt_without_the_handler),
        cmocka_unit_test(a_middleware_sees_the_inner_result_and_may_change_it),
        cmocka_unit_test(a_middleware_that_only_looks_changes_nothing),
        cmocka_unit_test(a_middleware_may_turn_a_failure_into_a_final_one),
        cmocka_unit_test(a_code_returned_by_a_middleware_takes_back_the_inner_success),
        cmocka_unit_test(a_middleware_sees_the_code_the_handler_returned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
