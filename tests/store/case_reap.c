/* SPDX-License-Identifier: Apache-2.0
 *
 * case_reap.c - jobs whose worker is gone: reaped, disowned, or acquired by id.
 */
#include "suite.h"

static const struct st_policy two_tries = {.max_attempts = 2,
                                           .timeout_us = 60 * SEC,
                                           .backoff = ST_BACKOFF_FIXED,
                                           .initial_us = 30 * SEC,
                                           .multiplier = 1,
                                           .max_us = 300 * SEC};

static struct st_job *claim_by(struct st_store *s, int64_t now, const char *worker, bool run)
{
    const struct st_type_rule rule = {.pattern = S("*"), .policy = two_tries};
    struct st_claim_req req = test_req(now, worker, 1);
    struct st_job *job;
    size_t n;

    req.types = &rule;
    req.n_types = 1;
    req.n_run = run;
    OK(st_store_claim(s, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    return job;
}

/* ---- running ---------------------------------------------------------------------------- */

TEST(a_running_job_is_reaped_when_its_lease_has_expired_and_not_before)
{
    struct st_store *s = test_store(t);
    struct st_reaped r;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = claim_by(s, T0, "w1", true);
    assert_int_equal(test_reap(s, T0 + 10 * SEC - 1, "w2", &r, 1), 0);
    assert_int_equal(test_reap(s, T0 + 10 * SEC, "w2", &r, 1), 1);
    assert_string_equal(r.id, job->id);
    assert_string_equal(r.worker, "w1");
    assert_int_equal(r.fence, 1);
    assert_int_equal(r.from, ST_RUNNING);
    assert_int_equal(r.to, ST_PENDING);
    assert_int_equal(test_reap(s, T0 + 11 * SEC, "w2", &r, 1), 0);
    st_job_free(job);
}

TEST(a_reaped_running_job_is_charged_and_waits_for_its_backoff)
{
    struct st_store *s = test_store(t);
    struct st_job_info i;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = claim_by(s, T0, "w1", true);
    test_reap(s, T0 + 10 * SEC, "w2", NULL, 0);
    i = test_get(s, T0 + 10 * SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_RETRYING);
    assert_int_equal(i.attempt, 1);
    assert_int_equal(i.due_us, T0 + 40 * SEC); /* by the policy of its claim */
    assert_int_equal(i.error_kind, ST_KIND_LEASE_EXPIRED);
    assert_int_equal(i.n_attempts, 1);
    assert_string_equal(i.attempts[0].outcome, "lease_expired");
    assert_string_equal(i.attempts[0].worker, "w1");
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(jobs_of_several_rules_that_are_taken_at_once_are_each_reaped_by_its_own)
{
    const struct st_policy once = {.max_attempts = 1, .multiplier = 1};
    const struct st_type_rule rules[] = {{.pattern = S("mail"), .policy = two_tries, .lease_us = 30 * SEC},
                                         {.pattern = S("sms"), .policy = once, .lease_us = 20 * SEC}};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 4);
    const char *mail = test_enqueue(t, s, "mail"), *sms = test_enqueue(t, s, "sms");
    struct st_job *jobs[4];
    struct st_reaped r[2];
    size_t n;

    NEEDS(t, s, ST_CAP_TYPE_FILTER);
    req.types = rules;
    req.n_types = 2;
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 2);
    assert_int_equal(test_reap(s, T0 + 20 * SEC - 1, "w2", r, 2), 0);
    assert_int_equal(test_reap(s, T0 + 20 * SEC, "w2", r, 2), 1);
    assert_string_equal(r[0].id, sms);
    assert_int_equal(r[0].to, ST_FAILED);
    assert_int_equal(test_reap(s, T0 + 30 * SEC - 1, "w2", r, 2), 0);
    assert_int_equal(test_reap(s, T0 + 30 * SEC, "w2", r, 2), 1);
    assert_string_equal(r[0].id, mail);
    assert_int_equal(r[0].to, ST_PENDING);
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
}

TEST(a_reaped_running_job_without_budget_fails)
{
    struct st_store *s = test_store(t);
    struct st_job_info i;
    struct st_reaped r;
    struct st_job *job;
    const char *id = test_enqueue(t, s, "mail");

    for (int k = 0; k < 2; k++) {
        job = claim_by(s, T0 + k * 100 * SEC, "w1", true);
        st_job_free(job);
        assert_int_equal(test_reap(s, T0 + k * 100 * SEC + 10 * SEC, "w2", &r, 1), 1);
    }
    assert_int_equal(r.to, ST_FAILED);
    i = test_get(s, T0, id);
    assert_int_equal(i.shown, ST_SHOW_FAILED);
    assert_int_equal(i.error_kind, ST_KIND_LEASE_EXPIRED);
    assert_int_equal(i.n_attempts, 2);
    assert_int_equal(i.finished_us, T0 + 110 * SEC);
    st_job_info_clear(&i);
}

TEST(a_jobs_own_max_attempts_counts_when_it_is_reaped)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_job *job;

    j.max_attempts = 1;
    test_add(t, s, T0, j);
    job = claim_by(s, T0, "w1", true);
    test_reap(s, T0 + 10 * SEC, "w2", NULL, 0);
    assert_int_equal(test_shown(s, T0, job->id), ST_SHOW_FAILED);
    st_job_free(job);
}

TEST(a_job_without_limit_is_reaped_for_ever)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_job *job;

    j.max_attempts = 0;
    test_add(t, s, T0, j);
    for (int k = 0; k < 20; k++) {
        job = claim_by(s, T0 + k * 100 * SEC, "w1", true);
        assert_int_equal(job->attempt, k + 1);
        st_job_free(job);
        assert_int_equal(test_reap(s, T0 + k * 100 * SEC + 10 * SEC, "w2", NULL, 0), 1);
    }
    assert_int_equal(test_shown(s, T0 + 1910 * SEC, j.id.p), ST_SHOW_RETRYING);
}

TEST(a_worker_does_not_reap_its_own_jobs)
{
    struct st_store *s = test_store(t);
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = claim_by(s, T0, "w1", true);
    assert_int_equal(test_reap(s, T0 + 60 * SEC, "w1", NULL, 0), 0);
    OK(test_finish(s, T0 + 61 * SEC, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
}

TEST(a_worker_reaps_others_and_leaves_its_own_alone)
{
    struct st_store *s = test_store(t);
    struct st_job *mine, *other;
    struct st_reaped r[2];

    test_enqueue(t, s, "mail");
    test_enqueue(t, s, "mail");
    mine = claim_by(s, T0, "w1", true);
    other = claim_by(s, T0, "w2", true);
    assert_int_equal(test_reap(s, T0 + 60 * SEC, "w1", r, 2), 1);
    assert_string_equal(r[0].id, other->id);
    assert_int_equal(test_shown(s, T0 + 60 * SEC, mine->id), ST_SHOW_RUNNING);
    st_job_free(mine);
    st_job_free(other);
}

TEST(reaping_is_in_batches_oldest_first)
{
    struct st_store *s = test_store(t);
    const char *ids[5];
    struct st_reaped r[5];
    struct st_job *job;

    for (int i = 0; i < 5; i++)
        ids[i] = test_enqueue(t, s, "mail");
    for (int i = 0; i < 5; i++) {
        job = claim_by(s, T0 + (5 - i) * SEC, "w1", true); /* the last one expires first */
        assert_string_equal(job->id, ids[i]);
        st_job_free(job);
    }
    assert_int_equal(test_reap(s, T0 + 60 * SEC, "w2", r, 3), 3);
    assert_string_equal(r[0].id, ids[4]);
    assert_string_equal(r[1].id, ids[3]);
    assert_string_equal(r[2].id, ids[2]);
    assert_int_equal(test_reap(s, T0 + 60 * SEC, "w2", r, 5), 2);
}

/* ---- prefetched ------------------------------------------------------------------------- */

TEST(a_reaped_prefetched_job_is_not_charged)
{
    struct st_store *s = test_store(t);
    struct st_reaped r;
    struct st_job_info i;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = claim_by(s, T0, "w1", false);
    assert_int_equal(test_reap(s, T0 + 10 * SEC, "w2", &r, 1), 1);
    assert_int_equal(r.from, ST_CLAIMED);
    assert_int_equal(r.to, ST_PENDING);
    i = test_get(s, T0 + 10 * SEC, job->id);
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.shown, ST_SHOW_PENDING); /* at once: it did nothing wrong */
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(from_the_4th_time_in_a_row_a_prefetched_job_counts_as_run)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");
    struct st_job_info i;

    for (int k = 1; k <= 4; k++) {
        st_job_free(claim_by(s, T0 + k * 20 * SEC, "w1", false));
        assert_int_equal(test_reap(s, T0 + k * 20 * SEC + 10 * SEC, "w2", NULL, 0), 1);
        i = test_get(s, T0 + k * 20 * SEC + 10 * SEC, id);
        assert_int_equal(i.attempt, k < 4 ? 0 : 1);
        assert_int_equal(i.shown, k < 4 ? ST_SHOW_PENDING : ST_SHOW_RETRYING);
        st_job_info_clear(&i);
    }
}

TEST(a_start_in_between_ends_the_row)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");
    struct st_job *job;
    struct st_job_info i;

    for (int k = 1; k <= 7; k++) {
        job = claim_by(s, T0 + k * 20 * SEC, "w1", k == 4);
        if (k == 4) {
            OK(test_finish(s, T0 + k * 20 * SEC, job, ST_OUT_RELEASED));
        } else {
            assert_int_equal(test_reap(s, T0 + k * 20 * SEC + 10 * SEC, "w2", NULL, 0), 1);
        }
        st_job_free(job);
    }
    i = test_get(s, T0 + 200 * SEC, id);
    assert_int_equal(i.attempt, 0);
    assert_int_equal(i.shown, ST_SHOW_PENDING);
    st_job_info_clear(&i);
}

TEST(a_reaped_job_that_was_asked_to_stop_is_cancelled)
{
    struct st_store *s = test_store(t);
    struct st_reaped r[2];
    struct st_job *a, *b;

    test_enqueue(t, s, "mail");
    test_enqueue(t, s, "mail");
    a = claim_by(s, T0, "w1", true);
    b = claim_by(s, T0, "w1", false);
    OK(test_cancel(s, T0, a->id, NULL));
    OK(test_cancel(s, T0, b->id, NULL));
    assert_int_equal(test_reap(s, T0 + 10 * SEC, "w2", r, 2), 2);
    assert_int_equal(r[0].to, ST_CANCELLED);
    assert_int_equal(r[1].to, ST_CANCELLED);
    assert_int_equal(test_shown(s, T0, a->id), ST_SHOW_CANCELLED);
    assert_int_equal(test_shown(s, T0, b->id), ST_SHOW_CANCELLED);
    st_job_free(a);
    st_job_free(b);
}

/* ---- disown ----------------------------------------------------------------------------- */

TEST(disown_gives_back_what_the_worker_does_not_know)
{
    struct st_store *s = test_store(t);
    struct st_job *known, *lost, *ahead, *other;
    struct st_slice ids[1];
    struct st_job_info i;
    size_t n;

    for (int k = 0; k < 4; k++)
        test_enqueue(t, s, "mail");
    known = claim_by(s, T0, "w1", true);
    lost = claim_by(s, T0, "w1", true);
    ahead = claim_by(s, T0, "w1", false);
    other = claim_by(s, T0, "w2", true);
    ids[0] = S(known->id);
    OK(st_store_disown(s, T0 + SEC, S("w1"), ids, 1, &n, NULL));
    assert_int_equal(n, 2);
    assert_int_equal(test_shown(s, T0 + SEC, known->id), ST_SHOW_RUNNING);
    assert_int_equal(test_shown(s, T0 + SEC, other->id), ST_SHOW_RUNNING);
    assert_int_equal(test_shown(s, T0 + SEC, ahead->id), ST_SHOW_PENDING);
    i = test_get(s, T0 + SEC, lost->id);
    assert_int_equal(i.shown, ST_SHOW_PENDING);
    assert_int_equal(i.attempt, 0);
    st_job_info_clear(&i);
    assert_int_equal(test_finish(s, T0 + SEC, lost, ST_OUT_SUCCEEDED), STINT_ELOST);
    OK(st_store_disown(s, T0 + SEC, S("w1"), ids, 1, &n, NULL)); /* again: nothing is left */
    assert_int_equal(n, 0);
    st_job_free(known);
    st_job_free(lost);
    st_job_free(ahead);
    st_job_free(other);
}

/* ---- acquire ---------------------------------------------------------------------------- */

static stint_code acquire(struct st_store *s, int64_t now, const char *id, struct st_job **out, enum st_refusal *why)
{
    const struct st_type_rule rule = {.pattern = S("*"), .policy = two_tries, .lease_us = 20 * SEC};
    struct st_claim_req req = test_req(now, "w9", 1);

    req.types = &rule;
    req.n_types = 1;
    return st_store_acquire(s, S(id), &req, out, why, NULL);
}

static void refused(struct st_store *s, int64_t now, const char *id, enum st_refusal want)
{
    enum st_refusal why = ST_REFUSED_NOT;
    struct st_job *job = (struct st_job *)&why;

    assert_int_equal(acquire(s, now, id, &job, &why), want == ST_REFUSED_UNKNOWN ? STINT_ENOTFOUND : STINT_ESTATE);
    assert_null(job);
    assert_int_equal(why, want);
}

TEST(acquire_takes_a_due_job_by_its_id)
{
    struct st_store *s = test_store(t);
    const char *id;
    enum st_refusal why;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    id = test_enqueue(t, s, "sms");
    OK(acquire(s, T0, id, &job, &why));
    assert_int_equal(why, ST_REFUSED_NOT);
    assert_string_equal(job->id, id);
    assert_int_equal(job->state, ST_RUNNING);
    assert_int_equal(job->attempt, 1);
    assert_int_equal(job->fence, 1);
    assert_int_equal(job->policy.max_attempts, 2);
    assert_int_equal(job->lease_until_us, T0 + 20 * SEC);
    assert_true(st_slice_is(job->payload, "{}"));
    assert_int_equal(test_shown(s, T0, id), ST_SHOW_RUNNING);
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
}

TEST(acquire_takes_over_a_running_job_whose_lease_has_expired)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");
    struct st_job *old = claim_by(s, T0, "w1", true), *job;
    struct st_job_info i;
    enum st_refusal why;

    OK(acquire(s, T0 + 10 * SEC, id, &job, &why));
    assert_int_equal(job->fence, 2);
    assert_int_equal(job->attempt, 2); /* the lost one was charged */
    i = test_get(s, T0 + 10 * SEC, id);
    assert_int_equal(i.n_attempts, 2);
    assert_string_equal(i.attempts[0].outcome, "lease_expired");
    assert_string_equal(i.attempts[0].worker, "w1");
    assert_null(i.attempts[1].outcome);
    assert_string_equal(i.worker, "w9");
    st_job_info_clear(&i);
    assert_int_equal(test_finish(s, T0 + 10 * SEC, old, ST_OUT_SUCCEEDED), STINT_ELOST);
    OK(test_finish(s, T0 + 10 * SEC, job, ST_OUT_SUCCEEDED));
    st_job_free(old);
    st_job_free(job);
}

TEST(acquire_does_not_charge_for_a_lost_prefetch)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");
    enum st_refusal why;
    struct st_job *job;

    st_job_free(claim_by(s, T0, "w1", false));
    OK(acquire(s, T0 + 10 * SEC, id, &job, &why));
    assert_int_equal(job->attempt, 1);
    assert_int_equal(job->fence, 2);
    st_job_free(job);
}

TEST(acquire_says_why_it_refuses)
{
    struct st_store *s = test_store(t);
    struct st_new_job later = test_job(t, "mail");
    struct st_job *job;
    const char *id;

    refused(s, T0, "nobody", ST_REFUSED_UNKNOWN);
    later.due_us = T0 + 5 * SEC;
    test_add(t, s, T0, later);
    refused(s, T0, later.id.p, ST_REFUSED_NOT_DUE);

    id = test_enqueue(t, s, "mail");
    OK(st_store_pause(s, T0, S("default"), true, NULL));
    refused(s, T0, id, ST_REFUSED_PAUSED);
    OK(st_store_pause(s, T0, S("default"), false, NULL));

    job = claim_by(s, T0, "w1", true);
    refused(s, T0 + 9 * SEC, id, ST_REFUSED_HELD);
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
    refused(s, T0 + 99 * SEC, id, ST_REFUSED_ENDED);
}

TEST(acquire_refuses_a_job_without_budget)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");

    st_job_free(claim_by(s, T0, "w1", true));
    test_reap(s, T0 + 10 * SEC, "w2", NULL, 0);
    st_job_free(claim_by(s, T0 + 50 * SEC, "w1", true));
    refused(s, T0 + 70 * SEC, id, ST_REFUSED_EXHAUSTED); /* two of two are spent */
    assert_int_equal(test_shown(s, T0 + 70 * SEC, id), ST_SHOW_RUNNING);
}

TEST(acquire_refuses_an_expired_job_that_was_asked_to_stop)
{
    struct st_store *s = test_store(t);
    const char *id = test_enqueue(t, s, "mail");

    st_job_free(claim_by(s, T0, "w1", true));
    OK(test_cancel(s, T0, id, NULL));
    refused(s, T0 + 60 * SEC, id, ST_REFUSED_HELD);
}
