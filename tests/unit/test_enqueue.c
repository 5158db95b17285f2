/* SPDX-License-Identifier: Apache-2.0
 *
 * test_enqueue.c - what is checked and filled in, and how an unknown outcome is settled.
 */
#include <string.h>

#include "enqueue/enqueue.h"
#include "unit.h"

static struct st_enqueue_item item(void)
{
    struct st_enqueue_item it = {.job = st_new_job_default};

    it.job.type = LIT("mail");
    return it;
}

static stint_code check(struct st_enqueue_item *it)
{
    return st_enqueue_check(it, ST_PAYLOAD_MAX, NULL);
}

static void an_id_a_queue_and_an_empty_payload_are_filled_in(void **state)
{
    struct st_enqueue_item it = item();

    (void)state;
    assert_int_equal(check(&it), STINT_OK);
    assert_slice_equal(it.job.queue, "default");
    assert_slice_equal(it.job.payload, "");
    assert_int_equal(it.job.id.len, ST_UUID_LEN);
    assert_ptr_equal(it.job.id.p, it.id);
    assert_null(it.job.key.p);
}

static void a_key_alone_is_unique_while_the_job_lives(void **state)
{
    struct st_enqueue_item it = item();

    (void)state;
    it.job.key = LIT("k");
    assert_int_equal(check(&it), STINT_OK);
    assert_int_equal(it.job.unique, ST_UNIQUE_ACTIVE);
}

static void unique_alone_takes_the_spec_hash_with_the_default_queue(void **state)
{
    struct st_enqueue_item it = item();
    char hash[ST_HASH_LEN + 1];

    (void)state;
    it.job.unique = ST_UNIQUE_FOREVER;
    it.job.payload = LIT("{\"a\":1}");
    assert_int_equal(check(&it), STINT_OK);
    st_spec_hash(LIT("mail"), LIT("default"), LIT("{\"a\":1}"), hash, NULL);
    assert_slice_equal(it.job.key, hash);
}

#define REFUSED(change)                                                                                                \
    do {                                                                                                               \
        struct st_enqueue_item it = item();                                                                            \
        stint_error err = {0};                                                                                         \
        change;                                                                                                        \
        assert_int_equal(st_enqueue_check(&it, 10, &err), STINT_EINVAL);                                               \
        assert_true(err.message[0] != '\0');                                                                           \
    } while (0)

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    REFUSED(it.job.type = ST_NONE);
    REFUSED(it.job.type = LIT("a b"));
    REFUSED(it.job.queue = LIT(""));
    REFUSED(it.job.queue = LIT("a.*"));
    REFUSED(it.job.id = LIT(""));
    REFUSED(it.job.id = LIT("a\n"));
    REFUSED(it.job.payload = LIT("12345678901"));
    REFUSED(it.job.meta = LIT("{\"a\":12345}"));
    REFUSED(it.job.meta = LIT("[]"));
    REFUSED(it.job.meta = LIT("{"));
    REFUSED(it.job.meta = LIT(""));
    REFUSED(it.job.priority = 32768);
    REFUSED(it.job.priority = -32769);
    REFUSED(it.job.max_attempts = -2);
    REFUSED(it.job.timeout_us = -2);
    REFUSED(it.job.timeout_us = 36501 * ST_DAY);
    REFUSED(it.job.delay_us = -1);
    REFUSED(it.job.delay_us = 36501 * ST_DAY);
    REFUSED(it.job.due_us = -1);
    REFUSED(it.job.due_us = INT64_MAX);
    REFUSED((it.job.due_us = 1, it.job.delay_us = 1));
    REFUSED(it.job.unique = ST_UNIQUE_WINDOW);
    REFUSED(it.job.key = LIT(""));
    REFUSED(it.job.key = LIT("\xff"));
}

static void the_edges_of_every_range_are_allowed(void **state)
{
    struct st_enqueue_item it = item();

    (void)state;
    it.job.priority = 32767;
    it.job.delay_us = 36500 * ST_DAY;
    it.job.timeout_us = 0;
    it.job.max_attempts = 0;
    it.job.payload = LIT("1234567890");
    it.job.meta = LIT(" {} ");
    assert_int_equal(st_enqueue_check(&it, 10, NULL), STINT_OK);
    it.job.priority = -32768;
    it.job.delay_us = 0;
    it.job.due_us = 1;
    assert_int_equal(st_enqueue_check(&it, 10, NULL), STINT_OK);
}

static void unique_is_active_forever_or_a_window(void **state)
{
    enum st_unique u;
    int64_t window;

    (void)state;
    assert_int_equal(st_unique_parse(LIT("active"), &u, &window, NULL), STINT_OK);
    assert_int_equal(u, ST_UNIQUE_ACTIVE);
    assert_int_equal(st_unique_parse(LIT("forever"), &u, &window, NULL), STINT_OK);
    assert_int_equal(u, ST_UNIQUE_FOREVER);
    assert_int_equal(st_unique_parse(LIT("10m"), &u, &window, NULL), STINT_OK);
    assert_int_equal(u, ST_UNIQUE_WINDOW);
    assert_int_equal(window, 10 * ST_MIN);
    assert_int_equal(st_unique_parse(LIT("10"), &u, &window, NULL), STINT_EINVAL);
    assert_int_equal(st_unique_parse(LIT("0s"), &u, &window, NULL), STINT_EINVAL);
    assert_int_equal(st_unique_parse(LIT(""), &u, &window, NULL), STINT_EINVAL);
}

/* ---- a store that answers by a script ---------------------------------------------- */

struct scripted {
    struct st_store base;
    const stint_code *answers; /* the last one repeated */
    size_t n_answers, calls;
    char id[ST_ID_MAX + 1]; /* of the first call */
};

static stint_code scripted_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                                   struct st_enqueued *out, stint_error *err)
{
    struct scripted *sc = (struct scripted *)s;
    size_t i = sc->calls < sc->n_answers ? sc->calls : sc->n_answers - 1;

    (void)now_us;
    assert_int_equal(n, 1);
    if (sc->calls++ == 0)
        memcpy(sc->id, jobs[0].id.p, jobs[0].id.len);
    assert_slice_equal(jobs[0].id, sc->id); /* the same id every time */
    strcpy(out[0].id, "from the store");
    out[0].duplicate = true;
    if (sc->answers[i] == STINT_OK)
        return STINT_OK;
    return st_fail(err, sc->answers[i], "answer %zu", i + 1);
}

static stint_code run(const stint_code *answers, size_t n_answers, int timeout_ms, size_t *calls,
                      struct st_enqueued *out, stint_error *err)
{
    static const struct st_store_ops ops = {.name = "scripted", .enqueue = scripted_enqueue};
    struct scripted sc = {{&ops, timeout_ms}, answers, n_answers, 0, ""};
    struct st_enqueue_item it = item();
    stint_code rc;

    it.job.id = LIT("mine");
    assert_int_equal(check(&it), STINT_OK);
    rc = st_enqueue(&sc.base, &it.job, 1, out, err);
    *calls = sc.calls;
    return rc;
}
#define RUN(timeout_ms, ...)                                                                                           \
    run((const stint_code[]){__VA_ARGS__}, sizeof((const stint_code[]){__VA_ARGS__}) / sizeof(stint_code),             \
        (timeout_ms), &calls, &out, &err)

static void a_clear_answer_is_passed_on_at_once(void **state)
{
    struct st_enqueued out;
    stint_error err = {0};
    size_t calls;

    (void)state;
    assert_int_equal(RUN(60000, STINT_OK), STINT_OK);
    assert_int_equal(calls, 1);
    assert_string_equal(out.id, "from the store");
    assert_int_equal(RUN(60000, STINT_EAGAIN), STINT_EAGAIN);
    assert_int_equal(calls, 1);
    assert_int_equal(RUN(60000, STINT_EEXISTS), STINT_EEXISTS);
    assert_int_equal(calls, 1);
}

static void an_unknown_outcome_is_asked_again_until_it_is_known(void **state)
{
    struct st_enqueued out;
    stint_error err = {0};
    size_t calls;

    (void)state;
    assert_int_equal(RUN(60000, STINT_EUNKNOWN, STINT_EUNKNOWN, STINT_OK), STINT_OK);
    assert_int_equal(calls, 3);
    assert_true(out.duplicate);
    assert_int_equal(RUN(60000, STINT_EUNKNOWN, STINT_EEXISTS), STINT_EEXISTS);
    assert_string_equal(err.message, "answer 2");
}

/* "Nothing was changed" is said of the second try; the first may have changed something. */
static void after_an_unknown_outcome_a_busy_store_is_no_answer(void **state)
{
    struct st_enqueued out;
    stint_error err = {0};
    size_t calls;

    (void)state;
    assert_int_equal(RUN(60000, STINT_EUNKNOWN, STINT_EAGAIN, STINT_ESTORE, STINT_OK), STINT_OK);
    assert_int_equal(calls, 4);
    assert_int_equal(RUN(25, STINT_EUNKNOWN, STINT_EAGAIN), STINT_EUNKNOWN);
}

static void an_outcome_that_stays_unknown_is_unknown_and_keeps_the_id(void **state)
{
    struct st_enqueued out;
    stint_error err = {0};
    size_t calls;

    (void)state;
    assert_int_equal(RUN(1, STINT_EUNKNOWN), STINT_EUNKNOWN);
    assert_int_equal(calls, 1);
    assert_string_equal(out.id, "mine");
    assert_false(out.duplicate);
    assert_string_equal(err.message, "answer 1");
    assert_int_equal(err.code, STINT_EUNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_id_a_queue_and_an_empty_payload_are_filled_in),
        cmocka_unit_test(a_key_alone_is_unique_while_the_job_lives),
        cmocka_unit_test(unique_alone_takes_the_spec_hash_with_the_default_queue),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(the_edges_of_every_range_are_allowed),
        cmocka_unit_test(unique_is_active_forever_or_a_window),
        cmocka_unit_test(a_clear_answer_is_passed_on_at_once),
        cmocka_unit_test(an_unknown_outcome_is_asked_again_until_it_is_known),
        cmocka_unit_test(after_an_unknown_outcome_a_busy_store_is_no_answer),
        cmocka_unit_test(an_outcome_that_stays_unknown_is_unknown_and_keeps_the_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
