/* SPDX-License-Identifier: Apache-2.0
 *
 * case_finish.c - while a job is held: renew, start, every outcome, and who may write them.
 */
#include "suite.h"

static struct st_job *held(struct t *t, struct st_store *s)
{
    test_enqueue(t, s, "mail");
    return test_claim(t, s, T0, 10 * SEC);
}

static struct st_renew renewal(const struct st_job *job)
{
    return (struct st_renew){.id = S(job->id),
                             .fence = job->fence,
                             .ref = job->ref,
                             .lease_us = 10 * SEC,
                             .started_ago_us = -1,
                             .verdict = STINT_EINVAL,
                             .cancel = true};
}

/* ---- the fence -------------------------------------------------------------------------- */

TEST(the_fence_grows_with_every_claim_and_is_never_given_back)
{
    struct st_store *s = test_store(t);
    struct st_job *job;

    test_enqueue(t, s, "mail");
    for (int fence = 1; fence <= 5; fence++) {
        job = test_claim(t, s, T0, 10 * SEC);
        assert_int_equal(job->fence, fence);
        assert_int_equal(job->attempt, 1); /* given back each time */
        OK(test_finish(s, T0, job, ST_OUT_RELEASED));
        st_job_free(job);
    }
}

TEST(an_operators_retry_does_not_reset_the_fence)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s), *again;

    OK(test_finish(s, T0, job, ST_OUT_FAILED));
    OK(test_retry(s, T0, job->id));
    again = test_claim(t, s, T0, 10 * SEC);
    assert_int_equal(again->fence, 2);
    assert_int_equal(again->attempt, 1);
    st_job_free(job);
    st_job_free(again);
}

/* By the store's own clock: the job that has an id now is not the one that had it when a worker fell asleep. */
TEST(an_id_that_is_used_again_goes_on_with_its_fences)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_pruned gone = {0};
    struct st_job *old, *next;
    struct st_job_info i;
    stint_code verdict;

    test_add(t, s, 0, j);
    old = test_claim(t, s, 0, 60 * SEC);
    OK(test_finish(s, 0, old, ST_OUT_FAILED));
    OK(st_store_discard(s, &j.id, 1, &verdict, &gone, NULL));
    st_pruned_clear(&gone);
    OK(verdict);
    test_add(t, s, 0, j);
    i = test_get(s, 0, j.id.p);
    assert_int_equal(i.fence, 0);
    st_job_info_clear(&i);
    next = test_claim(t, s, 0, 60 * SEC);
    assert_true(next->fence > old->fence);
    assert_int_equal(test_finish(s, 0, old, ST_OUT_SUCCEEDED), STINT_ELOST);
    OK(test_finish(s, 0, next, ST_OUT_SUCCEEDED));
    st_job_free(old);
    st_job_free(next);
}

/* A worker that slept through its lease must not overwrite its successor. */
TEST(finish_from_a_lost_attempt_changes_nothing)
{
    struct st_store *s = test_store(t);
    struct st_job *slow = held(t, s), *next;
    static const enum st_outcome all[] = {ST_OUT_SUCCEEDED, ST_OUT_RETRY, ST_OUT_FAILED, ST_OUT_CANCELLED,
                                          ST_OUT_RELEASED};

    assert_int_equal(test_reap(s, T0 + 11 * SEC, "w2", NULL, 0), 1);
    next = test_claim_as(t, s, T0 + 60 * SEC, 10 * SEC, "w2");
    assert_int_equal(next->fence, slow->fence + 1);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(test_finish(s, T0 + 61 * SEC, slow, all[i]), STINT_ELOST);
        assert_int_equal(test_shown(s, T0 + 61 * SEC, next->id), ST_SHOW_RUNNING);
    }
    OK(test_finish(s, T0 + 62 * SEC, next, ST_OUT_SUCCEEDED));
    st_job_free(slow);
    st_job_free(next);
}

TEST(finish_after_the_reaper_is_lost_even_if_nobody_runs_it)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);

    assert_int_equal(test_reap(s, T0 + 11 * SEC, "w2", NULL, 0), 1);
    assert_int_equal(test_finish(s, T0 + 11 * SEC, job, ST_OUT_SUCCEEDED), STINT_ELOST);
    assert_int_equal(test_shown(s, T0 + 11 * SEC, job->id), ST_SHOW_RETRYING);
    st_job_free(job);
}

TEST(a_late_finish_is_accepted_while_its_fence_matches)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);

    OK(test_finish(s, T0 + 3600 * SEC, job, ST_OUT_SUCCEEDED));
    assert_int_equal(test_shown(s, T0 + 3600 * SEC, job->id), ST_SHOW_SUCCEEDED);
    st_job_free(job);
}

TEST(finish_of_an_unknown_job_is_lost)
{
    struct st_store *s = test_store(t);
    struct st_finish f = {.id = S("nobody"), .fence = 1, .outcome = ST_OUT_SUCCEEDED};

    assert_int_equal(test_finish_item(s, T0, &f), STINT_ELOST);
}

TEST(a_shortcut_that_names_another_job_does_no_harm)
{
    struct st_store *s = test_store(t);
    struct st_job *a = held(t, s), *b = held(t, s), *c;
    struct st_finish f = test_fin(a, ST_OUT_FAILED);

    f.ref = b->ref; /* as after a job was removed and its place was taken */
    OK(test_finish_item(s, T0, &f));
    assert_int_equal(test_shown(s, T0, a->id), ST_SHOW_FAILED);
    assert_int_equal(test_shown(s, T0, b->id), ST_SHOW_RUNNING);
    c = held(t, s);
    f = test_fin(c, ST_OUT_SUCCEEDED); /* hinted at, which is a way of its own */
    f.held_as = ST_RUNNING;
    f.ref = b->ref;
    OK(test_finish_item(s, T0, &f));
    assert_int_equal(test_shown(s, T0, c->id), ST_SHOW_SUCCEEDED);
    assert_int_equal(test_shown(s, T0, b->id), ST_SHOW_RUNNING);
    f = test_fin(b, ST_OUT_FAILED);
    f.ref = 999999;
    OK(test_finish_item(s, T0, &f));
    st_job_free(a);
    st_job_free(b);
    st_job_free(c);
}

TEST(a_batch_has_a_verdict_for_each_job)
{
    struct st_store *s = test_store(t);
    struct st_job *a = held(t, s), *b = held(t, s), *c = held(t, s);
    struct st_finish f[3] = {test_fin(a, ST_OUT_SUCCEEDED), test_fin(b, ST_OUT_SUCCEEDED), test_fin(c, ST_OUT_FAILED)};

    f[1].fence += 1;
    OK(st_store_finish(s, T0, f, 3, NULL));
    OK(f[0].verdict);
    assert_int_equal(f[0].state, ST_SUCCEEDED);
    assert_int_equal(f[1].verdict, STINT_ELOST);
    OK(f[2].verdict);
    assert_int_equal(f[2].state, ST_FAILED);
    assert_int_equal(test_shown(s, T0, b->id), ST_SHOW_RUNNING);
    st_job_free(a);
    st_job_free(b);
    st_job_free(c);
}

/* ---- outcomes --------------------------------------------------------------------------- */

TEST(success_keeps_the_result_byte_for_byte)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_finish f = test_fin(job, ST_OUT_SUCCEEDED);
    struct st_job_info i;

    f.result = ST_SLICE("[1.10,\0\xff]", 9);
    f.result_ref = S("r/1.json");
    f.exit_code = 0;
    f.max_rss_kb = 1234;
    f.log = S("l/1.log");
    f.log_tail = ST_SLICE("x\0y", 3);
    OK(test_finish_item(s, T0 + 3 * SEC, &f));
    assert_int_equal(f.state, ST_SUCCEEDED);
    i = test_get(s, T0 + 4 * SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_SUCCEEDED);
    assert_int_equal(i.finished_us, T0 + 3 * SEC);
    assert_int_equal(i.lease_until_us, 0);
    assert_true(st_slice_eq(i.result, f.result));
    assert_string_equal(i.result_ref, "r/1.json");
    assert_string_equal(i.worker, "w1");
    assert_int_equal(i.n_attempts, 1);
    assert_int_equal(i.attempts[0].n, 1);
    assert_int_equal(i.attempts[0].fence, 1);
    assert_string_equal(i.attempts[0].worker, "w1");
    assert_string_equal(i.attempts[0].outcome, "succeeded");
    assert_int_equal(i.attempts[0].started_us, T0);
    assert_int_equal(i.attempts[0].ended_us, T0 + 3 * SEC);
    assert_int_equal(i.attempts[0].exit_code, 0);
    assert_int_equal(i.attempts[0].max_rss_kb, 1234);
    assert_string_equal(i.attempts[0].log, "l/1.log");
    assert_int_equal(i.attempts[0].log_tail_len, 3);
    assert_memory_equal(i.attempts[0].log_tail, "x\0y", 3);
    st_job_info_clear(&i);
    st_job_free(job);
}

/* The hint says how the worker believes to hold it; it may be wrong, or the job may be gone. */
TEST(a_hinted_success_is_judged_like_any_other)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "keyed");
    struct st_finish f;
    struct st_job *job = held(t, s);

    f = test_fin(job, ST_OUT_SUCCEEDED);
    f.held_as = ST_CLAIMED; /* it runs */
    OK(test_finish_item(s, T0, &f));
    OK(test_finish_item(s, T0, &f)); /* again */
    assert_int_equal(f.state, ST_SUCCEEDED);
    f.fence++;
    assert_int_equal(test_finish_item(s, T0, &f), STINT_ELOST);
    st_job_free(job);

    j.unique = ST_UNIQUE_ACTIVE;
    j.key = S("k");
    test_add(t, s, T0, j);
    job = test_claim(t, s, T0, 10 * SEC);
    OK(test_cancel(s, T0, job->id, NULL));
    f = test_fin(job, ST_OUT_SUCCEEDED);
    f.held_as = ST_RUNNING;
    OK(test_finish_item(s, T0, &f));
    j.id = S(test_id(t));
    assert_string_equal(test_add(t, s, T0, j), j.id.p); /* the key is free again */
    st_job_free(job);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_SUCCEEDED), 2);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_RUNNING), 0);
}

TEST(a_result_may_be_there_and_empty_or_not_be_there)
{
    struct st_store *s = test_store(t);
    struct st_job *a = held(t, s), *b = held(t, s);
    struct st_finish f = test_fin(a, ST_OUT_SUCCEEDED);
    struct st_job_info i;

    f.result = ST_SLICE("", 0);
    OK(test_finish_item(s, T0, &f));
    OK(test_finish(s, T0, b, ST_OUT_SUCCEEDED));
    i = test_get(s, T0, a->id);
    assert_non_null(i.result.p);
    assert_int_equal(i.result.len, 0);
    st_job_info_clear(&i);
    i = test_get(s, T0, b->id);
    assert_null(i.result.p);
    st_job_info_clear(&i);
    st_job_free(a);
    st_job_free(b);
}

TEST(retry_makes_it_pending_after_its_delay_and_keeps_the_charge)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s), *again;
    struct st_finish f = test_fin(job, ST_OUT_RETRY);
    struct st_job_info i;

    f.delay_us = 20 * SEC;
    f.kind = ST_KIND_EXIT;
    f.message = S("exit 3");
    f.exit_code = 3;
    OK(test_finish_item(s, T0 + SEC, &f));
    assert_int_equal(f.state, ST_PENDING);
    i = test_get(s, T0 + 2 * SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_RETRYING);
    assert_int_equal(i.due_us, T0 + 21 * SEC);
    assert_int_equal(i.attempt, 1);
    assert_int_equal(i.error_kind, ST_KIND_EXIT);
    assert_string_equal(i.error_message, "exit 3");
    assert_null(i.worker);
    assert_int_equal(i.n_attempts, 1);
    assert_string_equal(i.attempts[0].outcome, "retry");
    assert_int_equal(i.attempts[0].kind, ST_KIND_EXIT);
    assert_string_equal(i.attempts[0].message, "exit 3");
    assert_int_equal(i.attempts[0].exit_code, 3);
    assert_int_equal(i.started_us, T0); /* the first start stays */
    st_job_info_clear(&i);
    assert_null(test_claim(t, s, T0 + 20 * SEC, 10 * SEC));
    again = test_claim(t, s, T0 + 21 * SEC, 10 * SEC);
    assert_int_equal(again->attempt, 2);
    st_job_free(job);
    st_job_free(again);
}

TEST(the_error_of_an_earlier_attempt_stays_when_it_succeeds_later)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_finish f = test_fin(job, ST_OUT_RETRY);
    struct st_job_info i;

    f.kind = ST_KIND_TIMEOUT;
    f.message = S("too slow");
    OK(test_finish_item(s, T0, &f));
    st_job_free(job);
    job = test_claim_as(t, s, T0, 10 * SEC, "w2");
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    i = test_get(s, T0, job->id);
    assert_int_equal(i.n_attempts, 2);
    assert_string_equal(i.attempts[0].outcome, "retry");
    assert_string_equal(i.attempts[0].worker, "w1");
    assert_string_equal(i.attempts[1].outcome, "succeeded");
    assert_string_equal(i.attempts[1].worker, "w2");
    assert_int_equal(i.attempts[1].n, 2);
    assert_string_equal(i.error_message, "too slow");
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(failure_ends_it_with_its_reason)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_finish f = test_fin(job, ST_OUT_FAILED);
    struct st_job_info i;

    f.kind = ST_KIND_PERMANENT;
    f.message = S("no such address");
    f.signal = 9;
    OK(test_finish_item(s, T0 + SEC, &f));
    i = test_get(s, T0 + SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_FAILED);
    assert_int_equal(i.finished_us, T0 + SEC);
    assert_int_equal(i.error_kind, ST_KIND_PERMANENT);
    assert_string_equal(i.error_message, "no such address");
    assert_string_equal(i.attempts[0].outcome, "failed");
    assert_int_equal(i.attempts[0].signal, 9);
    assert_int_equal(i.attempts[0].exit_code, -1);
    st_job_info_clear(&i);
    assert_null(test_claim(t, s, T0 + 9999 * SEC, 10 * SEC));
    st_job_free(job);
}

TEST(release_gives_the_attempt_back)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_finish f = test_fin(job, ST_OUT_RELEASED);
    struct st_job_info i;

    f.delay_us = 5 * SEC;
    OK(test_finish_item(s, T0, &f));
    assert_int_equal(f.state, ST_PENDING);
    i = test_get(s, T0, job->id);
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.shown, ST_SHOW_SCHEDULED);
    assert_int_equal(i.due_us, T0 + 5 * SEC);
    assert_int_equal(i.n_attempts, 1); /* it had started: that is told */
    assert_string_equal(i.attempts[0].outcome, "released");
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(release_of_a_job_that_never_started_leaves_no_attempt)
{
    struct st_store *s = test_store(t);
    struct st_job_info i;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_prefetch(t, s, T0, 10 * SEC);
    OK(test_finish(s, T0, job, ST_OUT_RELEASED));
    i = test_get(s, T0, job->id);
    assert_int_equal(i.shown, ST_SHOW_PENDING);
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.n_attempts, 0);
    assert_int_equal(i.started_us, 0);
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(a_prefetched_job_can_end_without_its_start_having_been_written)
{
    struct st_store *s = test_store(t);
    struct st_job *job;
    struct st_finish f;
    struct st_job_info i;

    test_enqueue(t, s, "mail");
    job = test_prefetch(t, s, T0, 10 * SEC);
    f = test_fin(job, ST_OUT_SUCCEEDED);
    f.started_ago_us = 2 * SEC;
    OK(test_finish_item(s, T0 + 5 * SEC, &f));
    i = test_get(s, T0 + 5 * SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_SUCCEEDED);
    assert_int_equal(i.started_us, T0 + 3 * SEC);
    assert_int_equal(i.attempts[0].started_us, T0 + 3 * SEC);
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(cancelled_is_an_outcome)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_job_info i;

    OK(test_finish(s, T0, job, ST_OUT_CANCELLED));
    i = test_get(s, T0, job->id);
    assert_int_equal(i.shown, ST_SHOW_CANCELLED);
    assert_int_equal(i.error_kind, ST_KIND_CANCELLED);
    assert_string_equal(i.attempts[0].outcome, "cancelled");
    st_job_info_clear(&i);
    st_job_free(job);
}

/* ---- repeating -------------------------------------------------------------------------- */

static void repeat_is_ok(struct t *t, struct st_store *s, enum st_outcome outcome, enum st_state state)
{
    struct st_job *job = held(t, s);
    struct st_finish f = test_fin(job, outcome);

    f.delay_us = 3600 * SEC;
    for (int i = 0; i < 3; i++) {
        f.verdict = STINT_EINVAL;
        OK(test_finish_item(s, T0 + i, &f));
        assert_int_equal(f.state, state);
    }
    st_job_free(job);
}

TEST(repeating_a_finish_answers_ok_again)
{
    struct st_store *s = test_store(t);

    repeat_is_ok(t, s, ST_OUT_SUCCEEDED, ST_SUCCEEDED);
    repeat_is_ok(t, s, ST_OUT_RETRY, ST_PENDING);
    repeat_is_ok(t, s, ST_OUT_FAILED, ST_FAILED);
    repeat_is_ok(t, s, ST_OUT_CANCELLED, ST_CANCELLED);
    repeat_is_ok(t, s, ST_OUT_RELEASED, ST_PENDING);
}

TEST(repeating_the_release_of_a_job_that_never_started_answers_ok)
{
    struct st_store *s = test_store(t);
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_prefetch(t, s, T0, 10 * SEC);
    OK(test_finish(s, T0, job, ST_OUT_RELEASED));
    OK(test_finish(s, T0, job, ST_OUT_RELEASED));
    assert_int_equal(test_finish(s, T0, job, ST_OUT_SUCCEEDED), STINT_ELOST);
    st_job_free(job);
}

TEST(repeating_with_another_outcome_is_lost)
{
    struct st_store *s = test_store(t);
    struct st_job *a = held(t, s), *b;

    OK(test_finish(s, T0, a, ST_OUT_SUCCEEDED));
    assert_int_equal(test_finish(s, T0, a, ST_OUT_FAILED), STINT_ELOST);
    assert_int_equal(test_finish(s, T0, a, ST_OUT_RETRY), STINT_ELOST);
    b = held(t, s);
    OK(test_finish(s, T0, b, ST_OUT_FAILED));
    assert_int_equal(test_finish(s, T0, b, ST_OUT_SUCCEEDED), STINT_ELOST);
    assert_int_equal(test_shown(s, T0, a->id), ST_SHOW_SUCCEEDED);
    assert_int_equal(test_shown(s, T0, b->id), ST_SHOW_FAILED);
    st_job_free(a);
    st_job_free(b);
}

TEST(repeating_a_retry_answers_ok_after_somebody_else_took_the_job)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s), *next;

    OK(test_finish(s, T0, job, ST_OUT_RETRY));
    next = test_claim_as(t, s, T0, 10 * SEC, "w2");
    OK(test_finish(s, T0, job, ST_OUT_RETRY));
    assert_int_equal(test_shown(s, T0, job->id), ST_SHOW_RUNNING); /* and leaves it alone */
    assert_int_equal(test_finish(s, T0, job, ST_OUT_SUCCEEDED), STINT_ELOST);
    st_job_free(job);
    st_job_free(next);
}

TEST(repeating_what_a_cancel_request_turned_into_cancelled_answers_ok)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_finish f = test_fin(job, ST_OUT_RETRY);

    OK(test_cancel(s, T0, job->id, NULL));
    for (int i = 0; i < 2; i++) {
        OK(test_finish_item(s, T0, &f));
        assert_int_equal(f.state, ST_CANCELLED);
    }
    st_job_free(job);
}

/* ---- renew ------------------------------------------------------------------------------ */

TEST(renew_moves_the_lease)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_renew r = renewal(job);
    struct st_job_info i;

    OK(st_store_renew(s, T0 + 8 * SEC, &r, 1, NULL));
    OK(r.verdict);
    assert_false(r.cancel);
    i = test_get(s, T0, job->id);
    assert_int_equal(i.lease_until_us, T0 + 18 * SEC);
    st_job_info_clear(&i);
    assert_int_equal(test_reap(s, T0 + 18 * SEC - 1, "w2", NULL, 0), 0);
    assert_int_equal(test_reap(s, T0 + 18 * SEC, "w2", NULL, 0), 1);
    st_job_free(job);
}

TEST(renew_writes_start_and_progress)
{
    struct st_store *s = test_store(t);
    struct st_job_info i;
    struct st_job *job;
    struct st_renew r;

    test_enqueue(t, s, "mail");
    job = test_prefetch(t, s, T0, 10 * SEC);
    r = renewal(job);
    r.started_ago_us = SEC;
    r.progress = S("{\"done\":1}");
    OK(st_store_renew(s, T0 + 3 * SEC, &r, 1, NULL));
    OK(r.verdict);
    i = test_get(s, T0 + 3 * SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_RUNNING);
    assert_int_equal(i.started_us, T0 + 2 * SEC);
    assert_true(st_slice_is(i.progress, "{\"done\":1}"));
    st_job_info_clear(&i);
    r.progress = ST_NONE; /* none: what is there stays */
    OK(st_store_renew(s, T0 + 4 * SEC, &r, 1, NULL));
    OK(r.verdict);
    i = test_get(s, T0 + 4 * SEC, job->id);
    assert_true(st_slice_is(i.progress, "{\"done\":1}"));
    assert_int_equal(i.started_us, T0 + 2 * SEC); /* a start is written once */
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(renew_tells_which_leases_are_lost_and_which_jobs_to_stop)
{
    struct st_store *s = test_store(t);
    struct st_job *kept = held(t, s), *ended = held(t, s), *asked = held(t, s);
    struct st_renew r[4] = {renewal(kept), renewal(ended), renewal(asked), renewal(kept)};

    r[3].fence += 1;
    OK(test_finish(s, T0, ended, ST_OUT_FAILED));
    OK(test_cancel(s, T0, asked->id, NULL));
    OK(st_store_renew(s, T0, r, 4, NULL));
    OK(r[0].verdict);
    assert_false(r[0].cancel);
    assert_int_equal(r[1].verdict, STINT_ELOST);
    OK(r[2].verdict);
    assert_true(r[2].cancel);
    assert_int_equal(r[3].verdict, STINT_ELOST);
    st_job_free(kept);
    st_job_free(ended);
    st_job_free(asked);
}

TEST(a_late_renew_is_accepted_while_its_fence_matches)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s);
    struct st_renew r = renewal(job);

    OK(st_store_renew(s, T0 + 60 * SEC, &r, 1, NULL));
    OK(r.verdict);
    assert_int_equal(test_reap(s, T0 + 61 * SEC, "w2", NULL, 0), 0);
    st_job_free(job);
}

/* ---- exchange --------------------------------------------------------------------------- */

TEST(exchange_finishes_and_claims)
{
    struct st_store *s = test_store(t);
    struct st_job *job = held(t, s), *next;
    struct st_finish f = test_fin(job, ST_OUT_SUCCEEDED);
    struct st_claim_req req = test_req(T0, "w1", 1);
    bool finished = false;
    size_t n;

    test_enqueue(t, s, "sms");
    OK(st_store_exchange(s, T0, &f, 1, &req, &next, &n, &finished, NULL));
    assert_true(finished);
    OK(f.verdict);
    assert_int_equal(n, 1);
    assert_string_equal(next->type, "sms");
    assert_int_equal(test_shown(s, T0, job->id), ST_SHOW_SUCCEEDED);
    assert_int_equal(test_shown(s, T0, next->id), ST_SHOW_RUNNING);
    st_job_free(job);
    st_job_free(next);
}

TEST(exchange_works_with_nothing_to_finish_and_with_nothing_to_claim)
{
    struct st_store *s = test_store(t);
    struct st_job *job;
    struct st_claim_req req = test_req(T0, "w1", 1);
    struct st_finish f;
    bool finished = false;
    size_t n;

    test_enqueue(t, s, "mail");
    OK(st_store_exchange(s, T0, NULL, 0, &req, &job, &n, &finished, NULL));
    assert_int_equal(n, 1);
    f = test_fin(job, ST_OUT_SUCCEEDED);
    OK(st_store_exchange(s, T0, &f, 1, &req, NULL, &n, &finished, NULL));
    assert_true(finished);
    assert_int_equal(n, 0);
    assert_int_equal(test_shown(s, T0, job->id), ST_SHOW_SUCCEEDED);
    st_job_free(job);
}
