/* SPDX-License-Identifier: Apache-2.0
 *
 * case_steer.c - cancel, retry, discard.
 */
#include "suite.h"

/* ---- cancel ----------------------------------------------------------------------------- */

TEST(a_waiting_job_is_cancelled_at_once)
{
    struct st_store *s = test_store(t);
    struct st_new_job later = test_job(t, "mail");
    const char *now = test_enqueue(t, s, "mail");
    struct st_job_info i;
    bool asked = true;

    later.due_us = T0 + 60 * SEC;
    test_add(t, s, T0, later);
    OK(test_cancel(s, T0 + SEC, now, &asked));
    assert_false(asked);
    OK(test_cancel(s, T0 + SEC, later.id.p, &asked));
    assert_false(asked);
    i = test_get(s, T0 + SEC, now);
    assert_int_equal(i.shown, ST_SHOW_CANCELLED);
    assert_int_equal(i.finished_us, T0 + SEC);
    assert_int_equal(i.error_kind, ST_KIND_CANCELLED);
    assert_int_equal(i.n_attempts, 0);
    st_job_info_clear(&i);
    assert_null(test_claim(t, s, T0 + 99 * SEC, 10 * SEC));
}

TEST(a_held_job_is_asked_to_stop)
{
    struct st_store *s = test_store(t);
    char ids[4][ST_ID_MAX + 1];
    struct st_job *run, *ahead;
    struct st_job_info i;
    bool asked = false;
    size_t n;

    test_enqueue(t, s, "mail");
    test_enqueue(t, s, "mail");
    run = test_claim(t, s, T0, 10 * SEC);
    ahead = test_prefetch(t, s, T0, 10 * SEC);
    OK(st_store_flagged(s, S("w1"), ids, 4, &n, NULL));
    assert_int_equal(n, 0);
    OK(test_cancel(s, T0, run->id, &asked));
    assert_true(asked);
    OK(test_cancel(s, T0, run->id, &asked)); /* twice is once */
    assert_true(asked);
    i = test_get(s, T0, run->id);
    assert_int_equal(i.shown, ST_SHOW_RUNNING);
    assert_true(i.cancel_requested);
    st_job_info_clear(&i);
    OK(st_store_flagged(s, S("w1"), ids, 4, &n, NULL));
    assert_int_equal(n, 1);
    assert_string_equal(ids[0], run->id);
    OK(st_store_flagged(s, S("w2"), ids, 4, &n, NULL));
    assert_int_equal(n, 0);
    OK(test_cancel(s, T0, ahead->id, &asked));
    assert_true(asked);
    OK(st_store_flagged(s, S("w1"), ids, 1, &n, NULL));
    assert_int_equal(n, 1); /* no more than there is room for */
    OK(test_finish(s, T0, run, ST_OUT_CANCELLED));
    OK(test_finish(s, T0, ahead, ST_OUT_RELEASED));
    OK(st_store_flagged(s, S("w1"), ids, 4, &n, NULL));
    assert_int_equal(n, 0);
    assert_int_equal(test_shown(s, T0, run->id), ST_SHOW_CANCELLED);
    assert_int_equal(test_shown(s, T0, ahead->id), ST_SHOW_CANCELLED);
    st_job_free(run);
    st_job_free(ahead);
}

static void asked_then(struct t *t, struct st_store *s, enum st_outcome outcome, enum st_shown want)
{
    struct st_finish f;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    OK(test_cancel(s, T0, job->id, NULL));
    f = test_fin(job, outcome);
    OK(test_finish_item(s, T0, &f));
    assert_int_equal(test_shown(s, T0, job->id), want);
    st_job_free(job);
}

TEST(a_cancel_request_turns_retry_and_release_into_cancelled)
{
    struct st_store *s = test_store(t);

    asked_then(t, s, ST_OUT_RETRY, ST_SHOW_CANCELLED);
    asked_then(t, s, ST_OUT_RELEASED, ST_SHOW_CANCELLED);
    asked_then(t, s, ST_OUT_SUCCEEDED, ST_SHOW_SUCCEEDED); /* it was done before it heard */
    asked_then(t, s, ST_OUT_FAILED, ST_SHOW_FAILED);
    asked_then(t, s, ST_OUT_CANCELLED, ST_SHOW_CANCELLED);
}

TEST(an_ended_job_cannot_be_cancelled)
{
    struct st_store *s = test_store(t);
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    assert_int_equal(test_cancel(s, T0, job->id, NULL), STINT_ESTATE);
    assert_int_equal(test_shown(s, T0, job->id), ST_SHOW_SUCCEEDED);
    assert_int_equal(test_cancel(s, T0, "nobody", NULL), STINT_ENOTFOUND);
    st_job_free(job);
}

TEST(many_are_cancelled_with_a_verdict_each)
{
    struct st_store *s = test_store(t);
    const struct st_slice ids[3] = {S(test_enqueue(t, s, "mail")), S("nobody"), S(test_enqueue(t, s, "sms"))};
    stint_code verdicts[3];
    bool asked[3];

    OK(st_store_cancel(s, T0, ids, 3, verdicts, asked, NULL));
    OK(verdicts[0]);
    assert_int_equal(verdicts[1], STINT_ENOTFOUND);
    OK(verdicts[2]);
    assert_false(asked[0] || asked[1] || asked[2]);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_CANCELLED), 2);
}

/* ---- retry ------------------------------------------------------------------------------ */

TEST(a_failed_job_is_revived_with_a_new_budget)
{
    struct st_store *s = test_store(t);
    struct st_finish f;
    struct st_job_info i;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    f = test_fin(job, ST_OUT_FAILED);
    f.kind = ST_KIND_EXIT;
    f.message = S("exit 1");
    OK(test_finish_item(s, T0, &f));
    OK(test_retry(s, T0 + 60 * SEC, job->id));
    i = test_get(s, T0 + 60 * SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_PENDING);
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.due_us, T0 + 60 * SEC);
    assert_int_equal(i.finished_us, 0);
    assert_int_equal(i.n_attempts, 1); /* the errors are kept */
    assert_string_equal(i.attempts[0].message, "exit 1");
    assert_string_equal(i.error_message, "exit 1");
    st_job_info_clear(&i);
    st_job_free(job);
    job = test_claim(t, s, T0 + 60 * SEC, 10 * SEC);
    assert_int_equal(job->attempt, 1);
    assert_int_equal(job->fence, 2);
    st_job_free(job);
}

TEST(a_cancelled_job_is_revived_and_no_longer_asked_to_stop)
{
    struct st_store *s = test_store(t);
    struct st_job_info i;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    OK(test_cancel(s, T0, job->id, NULL));
    OK(test_finish(s, T0, job, ST_OUT_RELEASED));
    OK(test_retry(s, T0, job->id));
    i = test_get(s, T0, job->id);
    assert_int_equal(i.shown, ST_SHOW_PENDING);
    assert_false(i.cancel_requested);
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(only_failed_and_cancelled_jobs_can_be_revived)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");
    struct st_job *job;

    assert_int_equal(test_retry(s, T0, id), STINT_ESTATE);
    job = test_claim(t, s, T0, 10 * SEC);
    assert_int_equal(test_retry(s, T0, id), STINT_ESTATE);
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    assert_int_equal(test_retry(s, T0, id), STINT_ESTATE);
    assert_int_equal(test_retry(s, T0, "nobody"), STINT_ENOTFOUND);
    st_job_free(job);
}

TEST(revival_takes_the_active_key_again_or_is_refused)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail"), other = test_job(t, "mail");
    struct st_enqueued out;

    j.unique = other.unique = ST_UNIQUE_ACTIVE;
    j.key = other.key = S("k");
    test_add(t, s, T0, j);
    OK(test_cancel(s, T0, j.id.p, NULL));
    test_add(t, s, T0, other);
    assert_int_equal(test_retry(s, T0, j.id.p), STINT_EEXISTS);
    assert_int_equal(test_shown(s, T0, j.id.p), ST_SHOW_CANCELLED);
    OK(test_cancel(s, T0, other.id.p, NULL));
    OK(test_retry(s, T0, j.id.p));
    other.id = S(test_id(t));
    OK(st_store_enqueue(s, T0, &other, 1, &out, NULL));
    assert_true(out.duplicate);
    assert_string_equal(out.id, j.id.p);
}

/* ---- discard ---------------------------------------------------------------------------- */

TEST(discard_removes_ended_jobs_and_names_their_files)
{
    struct st_store *s = test_store(t);
    struct st_job *job;
    struct st_finish f;
    struct st_slice ids[3];
    stint_code verdicts[3];
    struct st_pruned gone;
    struct st_job_info i;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    f = test_fin(job, ST_OUT_FAILED);
    f.log = S("/logs/a");
    OK(test_finish_item(s, T0, &f));
    ids[0] = S(job->id);
    ids[1] = S(test_enqueue(t, s, "mail"));
    ids[2] = S("nobody");
    OK(st_store_discard(s, ids, 3, verdicts, &gone, NULL));
    OK(verdicts[0]);
    assert_int_equal(verdicts[1], STINT_ESTATE);
    assert_int_equal(verdicts[2], STINT_ENOTFOUND);
    assert_int_equal(gone.n, 1);
    assert_int_equal(gone.n_files, 1);
    assert_string_equal(gone.files[0], "/logs/a");
    st_pruned_clear(&gone);
    assert_int_equal(st_store_get(s, T0, ids[0], &i, NULL), STINT_ENOTFOUND);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_FAILED), 0);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_PENDING), 1);
    st_job_free(job);
}
