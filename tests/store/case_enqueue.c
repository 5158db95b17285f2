/* SPDX-License-Identifier: Apache-2.0
 *
 * case_enqueue.c - ids, batches, payloads and unique keys.
 */
#include "suite.h"

#include <pthread.h>

/* ---- ids -------------------------------------------------------------------------------- */

TEST(an_enqueued_job_is_there_as_it_was_given)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_job_info i;

    j.queue = S("post.fast");
    j.priority = test_priority(s, 7);
    j.payload = S("{\"n\":1.10}");
    j.meta = S("{\"by\":\"test\"}");
    j.due_us = T0 + 5 * SEC;
    j.max_attempts = 9;
    j.timeout_us = 3 * SEC;
    test_add(t, s, T0, j);
    i = test_get(s, T0, j.id.p);
    assert_string_equal(i.id, j.id.p);
    assert_string_equal(i.type, "mail");
    assert_string_equal(i.queue, "post.fast");
    assert_int_equal(i.state, ST_PENDING);
    assert_int_equal(i.shown, ST_SHOW_SCHEDULED);
    assert_int_equal(i.priority, test_priority(s, 7));
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.max_attempts, 9);
    assert_int_equal(i.timeout_us, 3 * SEC);
    assert_int_equal(i.created_us, T0);
    assert_int_equal(i.due_us, T0 + 5 * SEC);
    assert_int_equal(i.started_us, 0);
    assert_int_equal(i.finished_us, 0);
    assert_int_equal(i.lease_until_us, 0);
    assert_int_equal(i.fence, 0);
    assert_null(i.worker);
    assert_true(st_slice_is(i.payload, "{\"n\":1.10}"));
    assert_true(st_slice_is(i.meta, "{\"by\":\"test\"}"));
    assert_null(i.result.p);
    assert_int_equal(i.n_attempts, 0);
    st_job_info_clear(&i);
}

TEST(a_job_without_values_of_its_own_has_the_defaults)
{
    struct st_store *s = test_store(t);
    struct st_job_info i = test_get(s, T0, test_enqueue(t, s, "mail"));

    assert_int_equal(i.max_attempts, st_policy_default.max_attempts);
    assert_int_equal(i.timeout_us, st_policy_default.timeout_us);
    assert_null(i.key);
    st_job_info_clear(&i);
}

TEST(the_same_id_again_changes_nothing_and_answers_the_same)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_enqueued out;

    for (int i = 0; i < 3; i++) {
        memset(&out, 0xee, sizeof(out));
        OK(st_store_enqueue(s, T0 + i, &j, 1, &out, NULL));
        assert_string_equal(out.id, j.id.p);
        assert_false(out.duplicate);
    }
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
}

TEST(the_same_id_again_answers_the_same_after_the_job_has_ended)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_job *job;

    test_add(t, s, T0, j);
    job = test_claim(t, s, T0, 10 * SEC);
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    assert_string_equal(test_add(t, s, T0, j), j.id.p);
    assert_int_equal(test_shown(s, T0, j.id.p), ST_SHOW_SUCCEEDED);
    st_job_free(job);
}

static void id_taken(struct st_store *s, const struct st_new_job *j)
{
    struct st_enqueued out;

    assert_int_equal(st_store_enqueue(s, T0, j, 1, &out, NULL), STINT_EEXISTS);
}

TEST(an_id_that_is_taken_by_another_job_is_refused)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail"), other;

    test_add(t, s, T0, j);
    other = j;
    other.type = S("sms");
    id_taken(s, &other);
    other = j;
    other.queue = S("other");
    id_taken(s, &other);
    other = j;
    other.payload = S("{} ");
    id_taken(s, &other);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
}

TEST(an_id_may_be_any_text_up_to_128_bytes)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    char longest[ST_ID_MAX + 1];
    struct st_job *job;

    memset(longest, 'x', ST_ID_MAX);
    longest[ST_ID_MAX] = '\0';
    j.id = S(longest);
    assert_string_equal(test_add(t, s, T0, j), longest);
    job = test_claim(t, s, T0, 10 * SEC);
    assert_string_equal(job->id, longest);
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
    j.id = S("a/b %2e' \xc3\xa9");
    assert_string_equal(test_add(t, s, T0, j), "a/b %2e' \xc3\xa9");
    assert_int_equal(test_shown(s, T0, "a/b %2e' \xc3\xa9"), ST_SHOW_PENDING);
}

/* ---- batches ---------------------------------------------------------------------------- */

TEST(a_batch_is_added_whole)
{
    struct st_store *s = test_store(t);
    struct st_new_job jobs[250];
    struct st_enqueued out[250];

    for (int i = 0; i < 250; i++)
        jobs[i] = test_job(t, i % 2 ? "mail" : "sms");
    OK(st_store_enqueue(s, T0, jobs, 250, out, NULL));
    for (int i = 0; i < 250; i++) {
        assert_string_equal(out[i].id, jobs[i].id.p);
        assert_false(out[i].duplicate);
    }
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 250);
}

TEST(a_batch_with_one_bad_job_adds_nothing)
{
    struct st_store *s = test_store(t);
    struct st_new_job jobs[3];
    struct st_enqueued out[3];
    const char *first = test_enqueue(t, s, "mail");

    NEEDS(t, s, ST_CAP_BATCH_ATOMIC);
    for (int i = 0; i < 3; i++)
        jobs[i] = test_job(t, "mail");
    jobs[0].queue = S("one");
    jobs[1].queue = S("two");
    jobs[2].id = S(first); /* taken, with another payload */
    jobs[2].payload = S("[]");
    assert_int_equal(st_store_enqueue(s, T0, jobs, 3, out, NULL), STINT_EEXISTS);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
    assert_true(test_count(s, T0, "one", ST_SHOW_PENDING) <= 0);
    assert_true(test_count(s, T0, "two", ST_SHOW_PENDING) <= 0);
}

TEST(the_same_id_twice_in_a_batch_is_one_job)
{
    struct st_store *s = test_store(t);
    struct st_new_job jobs[2] = {test_job(t, "mail")};
    struct st_enqueued out[2];

    jobs[1] = jobs[0];
    OK(st_store_enqueue(s, T0, jobs, 2, out, NULL));
    assert_string_equal(out[1].id, jobs[0].id.p);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
}

TEST(wrong_arguments_are_refused_before_anything_is_written)
{
    struct st_store *s = test_store(t);
    struct st_new_job bad[5];
    struct st_enqueued out;

    for (int i = 0; i < 5; i++)
        bad[i] = test_job(t, "mail");
    bad[0].id = ST_NONE;
    bad[1].type = S("");
    bad[2].queue = ST_NONE;
    bad[3].priority = ST_PRIORITY_MAX + 1;
    bad[4].unique = ST_UNIQUE_ACTIVE; /* without a key */
    for (int i = 0; i < 5; i++)
        assert_int_equal(st_store_enqueue(s, T0, &bad[i], 1, &out, NULL), STINT_EINVAL);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), -1); /* no such queue yet */
}

/* What a store cannot do it says, in its own name and with what to do instead. */
TEST(what_a_store_cannot_do_is_refused_by_name)
{
    struct st_store *s = test_store(t);
    struct st_new_job ranked = test_job(t, "mail"), forever = test_job(t, "mail");
    struct st_enqueued out;
    stint_error err = {0};

    ranked.priority = 1;
    forever.unique = ST_UNIQUE_FOREVER;
    forever.key = S("k");
    if (!(s->ops->caps & ST_CAP_PRIORITY)) {
        assert_int_equal(st_store_enqueue(s, T0, &ranked, 1, &out, &err), STINT_EINVAL);
        assert_non_null(strstr(err.message, s->ops->name));
        assert_true(err.remedy[0]);
    }
    if (!(s->ops->caps & ST_CAP_UNIQUE_FOREVER)) {
        assert_int_equal(st_store_enqueue(s, T0, &forever, 1, &out, &err), STINT_EINVAL);
        assert_non_null(strstr(err.message, s->ops->name));
        assert_true(err.remedy[0]);
    }
    assert_true(test_count(s, T0, "default", ST_SHOW_PENDING) <= 0);
}

/* ---- payloads --------------------------------------------------------------------------- */

static void payload_survives(struct t *t, struct st_store *s, struct st_slice payload)
{
    struct st_new_job j = test_job(t, "mail");
    struct st_job_info i;
    struct st_job *job;

    j.payload = payload;
    test_add(t, s, T0, j);
    job = test_claim(t, s, T0, 10 * SEC);
    assert_non_null(job);
    assert_true(st_slice_eq(job->payload, payload));
    assert_int_equal(job->payload.p == NULL, payload.p == NULL);
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    i = test_get(s, T0, job->id);
    assert_true(st_slice_eq(i.payload, payload));
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(payloads_come_back_byte_for_byte)
{
    struct st_store *s = test_store(t);
    char all[256];

    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    payload_survives(t, s, ST_SLICE(all, sizeof(all)));
    payload_survives(t, s, ST_SLICE("\0\0", 2));
    payload_survives(t, s, S("{\"a\":1,\"a\":2, \"big\":123456789012345678901234567890}"));
    payload_survives(t, s, S(""));
}

TEST(a_payload_of_1_mib_survives)
{
    struct st_store *s = test_store(t);
    const size_t len = 1 << 20;
    char *big = malloc(len);

    assert_non_null(big);
    for (size_t i = 0; i < len; i++)
        big[i] = (char)(i * 31 + i / 257);
    payload_survives(t, s, ST_SLICE(big, len));
    free(big);
}

/* ---- unique keys ------------------------------------------------------------------------ */

static struct st_new_job keyed(struct t *t, const char *key, enum st_unique unique)
{
    struct st_new_job j = test_job(t, "mail");

    j.key = S(key);
    j.unique = unique;
    j.window_us = 60 * SEC;
    return j;
}

/* Enqueues; true if it was a duplicate of `holder`. */
static bool is_duplicate_of(struct st_store *s, int64_t now, struct st_new_job j, const char *holder)
{
    struct st_enqueued out;

    OK(st_store_enqueue(s, now, &j, 1, &out, NULL));
    if (!out.duplicate)
        assert_string_equal(out.id, j.id.p);
    return out.duplicate && strcmp(out.id, holder) == 0;
}

static void run_to(struct t *t, struct st_store *s, int64_t now, enum st_outcome outcome)
{
    struct st_job *job = test_claim(t, s, now, 10 * SEC);

    assert_non_null(job);
    OK(test_finish(s, now, job, outcome));
    st_job_free(job);
}

TEST(an_active_key_is_held_until_its_job_has_ended)
{
    struct st_store *s = test_store(t);
    const char *a = test_add(t, s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE));
    struct st_job *job;

    assert_true(is_duplicate_of(s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE), a)); /* pending */
    job = test_claim(t, s, T0, 10 * SEC);
    assert_true(is_duplicate_of(s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE), a)); /* running */
    OK(test_finish(s, T0, job, ST_OUT_RETRY));
    assert_true(is_duplicate_of(s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE), a)); /* retrying */
    st_job_free(job);
    run_to(t, s, T0, ST_OUT_SUCCEEDED);
    assert_false(is_duplicate_of(s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE), a));
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
}

TEST(an_active_key_is_free_after_failure_and_cancel)
{
    struct st_store *s = test_store(t);
    const char *a = test_add(t, s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE)), *b;

    run_to(t, s, T0, ST_OUT_FAILED);
    b = test_add(t, s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE));
    assert_string_not_equal(a, b);
    OK(test_cancel(s, T0, b, NULL));
    assert_false(is_duplicate_of(s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE), b));
}

TEST(a_window_key_is_held_for_its_time_whatever_becomes_of_the_job)
{
    struct st_store *s = test_store(t);
    const char *a = test_add(t, s, T0, keyed(t, "k", ST_UNIQUE_WINDOW));

    run_to(t, s, T0, ST_OUT_SUCCEEDED);
    assert_true(is_duplicate_of(s, T0 + 59 * SEC, keyed(t, "k", ST_UNIQUE_WINDOW), a));
    assert_false(is_duplicate_of(s, T0 + 60 * SEC, keyed(t, "k", ST_UNIQUE_WINDOW), a));
}

TEST(a_key_held_for_ever_stays_held_after_its_job_was_removed)
{
    struct st_store *s = test_store(t);
    struct st_prune_req req = {.now_us = T0 + 100 * SEC, .keep = {.succeeded_us = SEC}, .limit = 10};
    struct st_pruned pruned;
    const char *a;

    NEEDS(t, s, ST_CAP_UNIQUE_FOREVER);
    a = test_add(t, s, T0, keyed(t, "k", ST_UNIQUE_FOREVER));
    run_to(t, s, T0, ST_OUT_SUCCEEDED);
    OK(st_store_prune(s, &req, &pruned, NULL));
    assert_int_equal(pruned.n, 1);
    st_pruned_clear(&pruned);
    assert_true(is_duplicate_of(s, T0 + 36500 * ST_DAY, keyed(t, "k", ST_UNIQUE_FOREVER), a));
}

TEST(a_key_that_is_held_is_held_against_its_own_id_too)
{
    struct st_store *s = test_store(t);
    struct st_prune_req req = {.now_us = T0 + 100 * SEC, .keep = {.succeeded_us = SEC}, .limit = 10};
    struct st_new_job j;
    struct st_pruned pruned;
    const char *a;

    NEEDS(t, s, ST_CAP_UNIQUE_FOREVER);
    j = keyed(t, "k", ST_UNIQUE_FOREVER);
    a = test_add(t, s, T0, j);
    run_to(t, s, T0, ST_OUT_SUCCEEDED);
    OK(st_store_prune(s, &req, &pruned, NULL));
    assert_int_equal(pruned.n, 1);
    st_pruned_clear(&pruned);
    assert_true(is_duplicate_of(s, T0 + 200 * SEC, j, a)); /* it has run once, and is not kept any more */
    assert_null(test_claim(t, s, T0 + 200 * SEC, SEC));
}

TEST(a_window_key_outlives_the_retention_of_its_job)
{
    struct st_store *s = test_store(t);
    struct st_prune_req req = {.now_us = T0 + 10 * SEC, .keep = {.succeeded_us = SEC}, .limit = 10};
    struct st_pruned pruned;
    const char *a = test_add(t, s, T0, keyed(t, "k", ST_UNIQUE_WINDOW));

    run_to(t, s, T0, ST_OUT_SUCCEEDED);
    OK(st_store_prune(s, &req, &pruned, NULL));
    assert_int_equal(pruned.n, 1);
    st_pruned_clear(&pruned);
    assert_true(is_duplicate_of(s, T0 + 20 * SEC, keyed(t, "k", ST_UNIQUE_WINDOW), a));
}

TEST(keys_are_per_type)
{
    struct st_store *s = test_store(t);
    struct st_new_job other = keyed(t, "k", ST_UNIQUE_ACTIVE);
    const char *a = test_add(t, s, T0, keyed(t, "k", ST_UNIQUE_ACTIVE));

    other.type = S("sms");
    assert_false(is_duplicate_of(s, T0, other, a));
    other = keyed(t, "k", ST_UNIQUE_ACTIVE);
    other.queue = S("elsewhere"); /* the queue does not matter */
    assert_true(is_duplicate_of(s, T0, other, a));
}

TEST(two_equal_keys_in_one_batch_are_one_job)
{
    struct st_store *s = test_store(t);
    struct st_new_job jobs[2] = {keyed(t, "k", ST_UNIQUE_ACTIVE), keyed(t, "k", ST_UNIQUE_ACTIVE)};
    struct st_enqueued out[2];

    OK(st_store_enqueue(s, T0, jobs, 2, out, NULL));
    assert_false(out[0].duplicate);
    assert_true(out[1].duplicate);
    assert_string_equal(out[1].id, jobs[0].id.p);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
}

TEST(the_same_id_with_its_key_again_is_no_duplicate)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = keyed(t, "k", ST_UNIQUE_ACTIVE);

    test_add(t, s, T0, j);
    assert_false(is_duplicate_of(s, T0, j, ""));
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
}

TEST(the_key_is_shown_with_the_job)
{
    struct st_store *s = test_store(t);
    struct st_job_info i = test_get(s, T0, test_add(t, s, T0, keyed(t, "k/1", ST_UNIQUE_WINDOW)));

    assert_string_equal(i.key, "k/1");
    assert_int_equal(i.unique, ST_UNIQUE_WINDOW);
    st_job_info_clear(&i);
}

struct racer {
    pthread_t thread;
    struct st_store *s;
    struct st_new_job job;
    struct st_enqueued out;
    stint_code code;
};

static void *race(void *arg)
{
    struct racer *r = arg;

    r->code = st_store_enqueue(r->s, T0, &r->job, 1, &r->out, NULL);
    return NULL;
}

/* 20 threads at a time, 5 times over: a handle belongs to one thread. */
TEST(of_100_enqueues_of_a_key_by_threads_one_job_comes)
{
    struct racer r[20];
    char winner[ST_ID_MAX + 1] = "";
    int news = 0;

    for (int i = 0; i < 20; i++)
        r[i].s = test_store(t);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 20; i++) {
            r[i].job = keyed(t, "k", ST_UNIQUE_ACTIVE);
            assert_int_equal(pthread_create(&r[i].thread, NULL, race, &r[i]), 0);
        }
        for (int i = 0; i < 20; i++) {
            pthread_join(r[i].thread, NULL);
            OK(r[i].code);
            news += !r[i].out.duplicate;
            if (!winner[0])
                strcpy(winner, r[i].out.id);
            assert_string_equal(r[i].out.id, winner);
        }
    }
    assert_int_equal(news, 1);
    assert_int_equal(test_count(r[0].s, T0, "default", ST_SHOW_PENDING), 1);
}

static int race_process(struct st_store *s, void *arg)
{
    struct st_new_job j = *(struct st_new_job *)arg;
    char id[ST_UUID_LEN + 1];
    struct st_enqueued out;
    int news = 0;

    for (int i = 0; i < 25; i++) {
        st_id_new(id);
        j.id = S(id);
        if (st_store_enqueue(s, T0, &j, 1, &out, NULL))
            return 99;
        news += !out.duplicate;
    }
    return news;
}

TEST(of_100_enqueues_of_a_key_by_processes_one_job_comes)
{
    struct st_new_job j = keyed(t, "k", ST_UNIQUE_ACTIVE);
    int pids[4], news = 0;

    for (int i = 0; i < 4; i++)
        pids[i] = test_fork(t, race_process, &j);
    for (int i = 0; i < 4; i++)
        news += test_join(pids[i]);
    assert_int_equal(news, 1);
    assert_int_equal(test_count(test_store(t), T0, "default", ST_SHOW_PENDING), 1);
}
