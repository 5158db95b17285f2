/* SPDX-License-Identifier: Apache-2.0
 *
 * case_tx.c - transactions in which a handler writes beside the store: both or neither.
 *
 * The handler's own write is a job, since that is what every store can tell us of.
 */
#include "suite.h"

/* What the function does, and whether it was called. */
struct tx_call {
    const char *add; /* id of a job to be added, or NULL */
    stint_code answer;
    struct st_finish *fin; /* filled as a success, or NULL */
    const struct st_job *job;
    int calls;
};

static stint_code in_tx(void *arg, struct st_tx *tx, stint_error *err)
{
    struct tx_call *c = arg;
    struct st_new_job j = {.id = S(c->add ? c->add : "-"),
                           .type = S("next"),
                           .queue = S("default"),
                           .payload = S("{}"),
                           .max_attempts = -1,
                           .timeout_us = -1};
    struct st_enqueued out;

    c->calls++;
    if (c->add)
        OK(st_store_enqueue_tx(tx->store, tx->conn, T0, &j, 1, &out, NULL));
    if (c->fin)
        *c->fin = test_fin(c->job, ST_OUT_SUCCEEDED);
    return c->answer ? st_fail(err, c->answer, "as the test wants it") : STINT_OK;
}

static stint_code transact(struct st_store *s, const struct st_job *job, struct tx_call *c)
{
    const struct st_hold hold = {.id = S(job->id), .fence = job->fence, .ref = job->ref};

    return st_store_transact(s, T0, &hold, in_tx, c, c->fin, NULL);
}

static bool there(struct st_store *s, const char *id)
{
    struct st_job_info info;
    const stint_code code = st_store_get(s, T0, S(id), &info, NULL);

    st_job_info_clear(&info);
    return code == STINT_OK;
}

/* A store that has no such transactions says so by name, and nothing happens. */
static bool refused(struct st_store *s, const struct st_job *job)
{
    const struct st_hold hold = {.id = S(job->id), .fence = job->fence};
    struct tx_call c = {0};
    stint_error err;

    if (s->ops->transact)
        return false;
    assert_int_equal(st_store_transact(s, T0, &hold, in_tx, &c, NULL, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, s->ops->name));
    assert_int_equal(c.calls, 0);
    return true;
}

static struct st_job *held(struct t *t, struct st_store *s)
{
    test_enqueue(t, s, "mail");
    return test_claim(t, s, T0, 10 * SEC);
}

TEST(a_write_in_a_transaction_commits_with_the_outcome)
{
    struct st_store *s = test_store(t), *other = test_store(t);
    struct st_job *job = held(t, s);
    struct st_finish fin;
    struct tx_call c = {.add = "next-1", .fin = &fin, .job = job};

    if (!refused(s, job)) {
        OK(transact(s, job, &c));
        assert_int_equal(fin.state, ST_SUCCEEDED);
        assert_int_equal(test_shown(other, T0, job->id), ST_SHOW_SUCCEEDED);
        assert_int_equal(test_shown(other, T0, "next-1"), ST_SHOW_PENDING);
        OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED)); /* repeating it is safe */
    }
    st_job_free(job);
}

TEST(a_transaction_that_fails_leaves_the_job_held)
{
    struct st_store *s = test_store(t), *other = test_store(t);
    struct st_job *job = held(t, s);
    struct st_finish fin;
    struct tx_call c = {.add = "next-1", .answer = STINT_ESTATE, .fin = &fin, .job = job};

    if (!refused(s, job)) {
        assert_int_equal(transact(s, job, &c), STINT_ESTATE);
        assert_int_equal(c.calls, 1);
        assert_false(there(other, "next-1"));
        assert_int_equal(test_shown(other, T0, job->id), ST_SHOW_RUNNING);
        OK(test_finish(s, T0, job, ST_OUT_FAILED));
    }
    st_job_free(job);
}

TEST(a_transaction_without_an_outcome_leaves_the_job_as_it_is)
{
    struct st_store *s = test_store(t), *other = test_store(t);
    struct st_job *job = held(t, s);
    struct tx_call c = {.add = "next-1"};

    if (!refused(s, job)) {
        OK(transact(s, job, &c));
        assert_true(there(other, "next-1"));
        assert_int_equal(test_shown(other, T0, job->id), ST_SHOW_RUNNING);
    }
    st_job_free(job);
}

TEST(a_lost_attempt_has_no_transaction)
{
    struct st_store *s = test_store(t), *other = test_store(t);
    struct st_job *slow = held(t, s), *next;
    struct st_finish fin;
    struct tx_call c = {.add = "next-1", .fin = &fin, .job = slow};

    if (!refused(s, slow)) {
        OK(test_finish(other, T0, slow, ST_OUT_RELEASED));
        next = test_claim(t, other, T0, 10 * SEC);
        assert_int_equal(transact(s, slow, &c), STINT_ELOST);
        assert_int_equal(c.calls, 0);
        assert_false(there(other, "next-1"));
        assert_int_equal(test_shown(other, T0, slow->id), ST_SHOW_RUNNING);
        st_job_free(next);
    }
    st_job_free(slow);
}

TEST(a_store_that_cannot_join_somebodys_transaction_says_so_by_name)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_enqueued out;
    stint_error err;

    if (s->ops->caps & ST_CAP_USER_TX)
        return; /* that it works is shown above, and by the store's own tests */
    assert_int_equal(st_store_enqueue_tx(s, NULL, T0, &j, 1, &out, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, s->ops->name));
}
