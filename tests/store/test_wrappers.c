/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wrappers.c - the store that traces and the store that fails on purpose.
 */
#include "sqlite_kit.h"

/* ---- trace ------------------------------------------------------------------------------ */

static char lines[8192];

static void sink(void *arg, enum st_log_level level, const char *line, size_t len)
{
    const size_t at = strlen(lines);

    (void)arg;
    (void)level;
    snprintf(lines + at, sizeof(lines) - at, "%.*s\n", (int)len, line);
}

static void a_traced_call_is_logged_without_its_payload(void **state)
{
    struct st_store *s = st_store_trace(kit_open(1000));
    struct st_new_job j = {.id = S("a"),
                           .type = S("mail"),
                           .queue = S("default"),
                           .payload = S("{\"secret\":1}"),
                           .max_attempts = -1,
                           .timeout_us = -1};
    struct st_new_job other = j;
    struct st_enqueued out;

    (void)state;
    other.type = S("sms");
    lines[0] = '\0';
    st_log_set_sink(sink, NULL, false);
    st_log_set_level(ST_LOG_DEBUG);
    OK(st_store_enqueue(s, T0, &j, 1, &out, NULL));
    assert_int_equal(st_store_enqueue(s, T0, &other, 1, &out, NULL), STINT_EEXISTS);
    st_log_set_level(ST_LOG_INFO);
    st_log_set_sink(NULL, NULL, false);
    assert_non_null(strstr(lines, "event=store.call op=enqueue n=1 code=OK us="));
    assert_non_null(strstr(lines, "event=store.call op=enqueue n=1 code=EEXISTS us="));
    assert_null(strstr(lines, "secret"));
    st_store_close(s);
}

static void a_wrapper_looks_like_the_store_it_wraps(void **state)
{
    struct st_store *real = kit_open(1234), *s = st_store_trace(real);
    struct st_fault_plan plan = {0};
    struct st_store_about about;

    (void)state;
    assert_string_equal(s->ops->name, "sqlite");
    assert_int_equal(s->ops->caps, real->ops->caps);
    assert_int_equal(s->timeout_ms, 1234);
    s = st_store_faulty(s, &plan);
    assert_string_equal(s->ops->name, "sqlite");
    assert_int_equal(s->ops->caps, real->ops->caps);
    assert_null(s->ops->watch); /* its waits are for everything */
    st_store_about(s, &about);
    assert_string_equal(about.kind, "sqlite");
    st_store_close(s); /* closes all three */
}

/* ---- faults ----------------------------------------------------------------------------- */

static void a_fault_before_leaves_everything_as_it_was(void **state)
{
    struct st_fault_plan plan = {.nth = 2, .how = ST_FAULT_BEFORE};
    struct st_store *s = st_store_faulty(kit_open(1000), &plan);

    (void)state;
    OK(kit_add(s, "a", NULL));
    assert_false(plan.fired);
    assert_int_equal(kit_add(s, "b", NULL), STINT_EAGAIN);
    assert_true(plan.fired);
    assert_string_equal(plan.op, "enqueue");
    assert_false(kit_has(s, "b"));
    OK(kit_add(s, "b", NULL)); /* only the nth is broken */
    assert_int_equal(plan.seen, 4);
    st_store_close(s);
}

static void a_fault_after_hides_what_was_done(void **state)
{
    struct st_fault_plan plan = {.nth = 1, .how = ST_FAULT_AFTER};
    struct st_store *s = st_store_faulty(kit_open(1000), &plan);

    (void)state;
    assert_int_equal(kit_add(s, "a", NULL), STINT_EUNKNOWN);
    assert_true(kit_has(s, "a"));
    OK(kit_add(s, "a", NULL));
    st_store_close(s);
}

static void a_claim_broken_after_gives_no_jobs_and_disown_finds_them(void **state)
{
    struct st_claim_req req = {.now_us = T0, .worker = S("w1"), .lease_us = SEC, .n = 5, .n_run = 5};
    struct st_fault_plan plan = {.how = ST_FAULT_AFTER};
    struct st_store *s = st_store_faulty(kit_open(1000), &plan);
    struct st_job *jobs[5];
    size_t n = 9;

    (void)state;
    OK(kit_add(s, "a", NULL));
    OK(kit_add(s, "b", NULL));
    plan.nth = plan.seen + 1;
    assert_int_equal(st_store_claim(s, &req, jobs, &n, NULL), STINT_EUNKNOWN);
    assert_int_equal(n, 0);
    assert_string_equal(plan.op, "claim");
    OK(st_store_disown(s, T0, S("w1"), NULL, 0, &n, NULL));
    assert_int_equal(n, 2);
    st_store_close(s);
}

static void an_exchange_broken_after_says_unknown_and_can_be_repeated(void **state)
{
    struct st_claim_req req = {.now_us = T0, .worker = S("w1"), .lease_us = SEC, .n = 1, .n_run = 1};
    struct st_fault_plan plan = {.how = ST_FAULT_AFTER};
    struct st_store *s = st_store_faulty(kit_open(1000), &plan);
    struct st_job *job, *next;
    struct st_finish f;
    bool finished = true;
    size_t n;

    (void)state;
    OK(kit_add(s, "a", NULL));
    OK(kit_add(s, "b", NULL));
    OK(st_store_claim(s, &req, &job, &n, NULL));
    f = (struct st_finish){.id = S(job->id), .fence = job->fence, .outcome = ST_OUT_SUCCEEDED};
    plan.nth = plan.seen + 1;
    assert_int_equal(st_store_exchange(s, T0, &f, 1, &req, &next, &n, &finished, NULL), STINT_EUNKNOWN);
    assert_false(finished);
    assert_int_equal(n, 0);
    OK(st_store_finish(s, T0, &f, 1, NULL));
    OK(f.verdict);
    st_job_free(job);
    st_store_close(s);
}

static void a_read_broken_after_is_only_eagain(void **state)
{
    struct st_fault_plan plan = {.nth = 2, .how = ST_FAULT_AFTER};
    struct st_store *s = st_store_faulty(kit_open(1000), &plan);
    struct st_job_info i;

    (void)state;
    OK(kit_add(s, "a", NULL));
    assert_int_equal(st_store_get(s, T0, S("a"), &i, NULL), STINT_EAGAIN);
    st_store_close(s);
}

static void several_handles_count_together(void **state)
{
    struct st_fault_plan plan = {.nth = 3, .how = ST_FAULT_BEFORE};
    struct st_store *a = st_store_faulty(kit_open(1000), &plan), *b = st_store_faulty(kit_open(1000), &plan);

    (void)state;
    OK(kit_add(a, "1", NULL));
    OK(kit_add(b, "2", NULL));
    assert_int_equal(kit_add(a, "3", NULL), STINT_EAGAIN);
    st_store_close(a);
    st_store_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(a_traced_call_is_logged_without_its_payload),
        KIT_TEST(a_wrapper_looks_like_the_store_it_wraps),
        KIT_TEST(a_fault_before_leaves_everything_as_it_was),
        KIT_TEST(a_fault_after_hides_what_was_done),
        KIT_TEST(a_claim_broken_after_gives_no_jobs_and_disown_finds_them),
        KIT_TEST(an_exchange_broken_after_says_unknown_and_can_be_repeated),
        KIT_TEST(a_read_broken_after_is_only_eagain),
        KIT_TEST(several_handles_count_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
