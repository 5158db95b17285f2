/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_race.c - two at one job on the PostgreSQL store, in every order that matters.
 *
 * The first goes through the store and is stopped at a gate before it commits (postgres_lab.h).
 * Then the second comes; if it must wait, the server's own books tell that it does.  Then the gate
 * opens, and both must have been told the truth. Times are arguments: a lease of T0 has ended LATE.
 */
#include "postgres_lab.h"
#include "store/postgres_op.h"

#define LEASE (10 * SEC)
#define LATE  (T0 + 11 * SEC)

/* ---- the scene --------------------------------------------------------------------------------
 */

static struct st_store *us, *them, *gated; /* three processes */
static PGconn *gate, *watch;
static char ids[16][ST_ID_MAX + 1];
static struct st_job *jobs[16];
static size_t n_jobs;

static const char *add(void)
{
    struct st_new_job j = {.type = S("t"), .queue = S("q"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
    struct st_enqueued out;

    assert_true(n_jobs < 16);
    st_id_new(ids[n_jobs]);
    j.id = S(ids[n_jobs]);
    OK(st_store_enqueue(us, T0, &j, 1, &out, NULL));
    return ids[n_jobs++];
}

static size_t claim_as(struct st_store *s, const char *worker, int64_t now, struct st_job **out, size_t n)
{
    const struct st_claim_req req = {.now_us = now, .worker = S(worker), .lease_us = LEASE, .n = n, .n_run = n};
    stint_error err = {0};
    size_t got = 0;

    if (st_store_claim(s, &req, out, &got, &err))
        fail_msg("claim: %s", err.message);
    return got;
}

static void forget_jobs(void)
{
    for (size_t i = 0; i < 16; i++)
        st_job_free(jobs[i]);
    memset(jobs, 0, sizeof(jobs));
    n_jobs = 0;
}

/* n new jobs, running in the hands of w1 since T0. */
static void hold_jobs(size_t n)
{
    forget_jobs();
    st_pg_of(us)->careful_us = st_pg_of(them)->careful_us = 0; /* nothing was in their way yet */
    for (size_t i = 0; i < n; i++)
        add();
    assert_int_equal(claim_as(us, "w1", T0, jobs, n), n);
    for (size_t i = 0; i < n; i++) /* in the order of the ids */
        assert_string_equal(jobs[i]->id, ids[i]);
}

/* Whatever has happened, each job is in one place, and the books agree. */
static void check_sound(void)
{
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready JOIN lease USING (id)"), 0);
    assert_int_equal(lab_int(watch,
                             "SELECT count(*) FROM lease l WHERE NOT EXISTS (SELECT FROM grp g WHERE g.gid = l.gid"
                             " AND l.id = ANY (g.ids))"),
                     0);
    assert_int_equal(lab_int(watch,
                             "SELECT count(*) FROM entry e WHERE NOT EXISTS (SELECT FROM ready r WHERE r.id = e.id)"
                             " AND NOT EXISTS (SELECT FROM lease l WHERE l.id = e.id) AND coalesce((SELECT d.state"
                             " FROM ended d WHERE d.id = e.id ORDER BY d.fence DESC, d.part DESC LIMIT 1), 0) < 4"),
                     0);
    assert_int_equal(lab_int(watch, "SELECT coalesce(sum(waiting), 0) - (SELECT count(*) FROM ready) FROM tally"), 0);
    assert_int_equal(lab_int(watch,
                             "SELECT coalesce(sum(succeeded + failed + cancelled), 0) - (SELECT count(*) FROM entry)"
                             " + (SELECT count(*) FROM ready) + (SELECT count(*) FROM lease) FROM tally"),
                     0);
}

static enum st_state state_of(size_t i)
{
    struct st_job_info info = {0};
    enum st_state state;

    OK(st_store_get(them, LATE, S(ids[i]), &info, NULL));
    state = info.state;
    st_job_info_clear(&info);
    return state;
}

static int64_t fence_of(size_t i)
{
    struct st_job_info info = {0};
    int64_t fence;

    OK(st_store_get(them, LATE, S(ids[i]), &info, NULL));
    fence = info.fence;
    st_job_info_clear(&info);
    return fence;
}

static int64_t until_of(size_t i)
{
    return lab_intf(watch, "SELECT until FROM lease WHERE id = _key('%s')", ids[i]);
}

/* How often its attempts have ended. */
static int64_t ends_of(size_t i)
{
    return lab_intf(watch, "SELECT count(*) FROM ended WHERE id = _key('%s')", ids[i]);
}

/* ---- what they do ------------------------------------------------------------------------------
 */

struct act {
    struct st_store *s;
    size_t job;
    enum st_outcome outcome;
    const char *worker;
    int64_t now;
    stint_code code, verdict;
    enum st_state state;
    bool asked;
    enum st_refusal why;
    struct st_job *got[4];
    size_t n;
    stint_error err;
};
static struct act first, second;
static struct lab_racer *first_racer;

static struct st_finish fin_of(size_t i, enum st_outcome outcome)
{
    return (struct st_finish){
        .id = S(ids[i]), .fence = jobs[i]->fence, .outcome = outcome, .started_ago_us = -1, .exit_code = -1};
}

static void finish(void *arg)
{
    struct act *a = arg;
    struct st_finish f = fin_of(a->job, a->outcome);

    a->code = st_store_finish(a->s, LATE, &f, 1, &a->err);
    a->verdict = f.verdict;
    a->state = f.state;
}

static void cancel(void *arg)
{
    struct act *a = arg;
    const struct st_slice id = S(ids[a->job]);

    a->code = st_store_cancel(a->s, LATE, &id, 1, &a->verdict, &a->asked, &a->err);
}

static void retry(void *arg)
{
    struct act *a = arg;
    const struct st_slice id = S(ids[a->job]);

    a->code = st_store_retry(a->s, LATE, &id, 1, &a->verdict, &a->err);
}

static void acquire(void *arg)
{
    struct act *a = arg;
    const struct st_claim_req req = {.now_us = LATE, .worker = S(a->worker), .lease_us = LEASE};

    a->code = st_store_acquire(a->s, S(ids[a->job]), &req, &a->got[0], &a->why, &a->err);
}

static void renew(void *arg)
{
    struct act *a = arg;
    struct st_renew r = {.id = S(ids[a->job]), .fence = jobs[a->job]->fence, .lease_us = LEASE, .started_ago_us = -1};

    a->code = st_store_renew(a->s, LATE, &r, 1, &a->err);
    a->verdict = r.verdict;
}

static void reap(void *arg)
{
    struct act *a = arg;
    struct st_reaped out[16];

    a->code = st_store_reap(a->s, a->now, S(a->worker), out, 16, &a->n, &a->err);
}

static void claim(void *arg)
{
    struct act *a = arg;
    const struct st_claim_req req = {.now_us = T0, .worker = S(a->worker), .lease_us = LEASE, .n = 4, .n_run = 4};

    a->code = st_store_claim(a->s, &req, a->got, &a->n, &a->err);
}

static void enqueue_keyed(void *arg)
{
    struct act *a = arg;
    struct st_new_job j = {.type = S("t"),
                           .queue = S("q"),
                           .payload = S("{}"),
                           .max_attempts = -1,
                           .timeout_us = -1,
                           .id = S(ids[a->job]),
                           .key = S("k"),
                           .unique = ST_UNIQUE_ACTIVE};
    struct st_enqueued out = {0};

    a->code = st_store_enqueue(a->s, T0, &j, 1, &out, &a->err);
    a->asked = out.duplicate;
}

static void act_set(struct act *a, struct st_store *s, const char *worker, size_t job)
{
    for (size_t i = 0; i < 4; i++)
        st_job_free(a->got[i]);
    memset(a, 0, sizeof(*a));
    a->s = s;
    a->worker = worker;
    a->job = job;
    a->now = LATE;
}

/* The first does it, up to the gate. */
static void stop(void (*fn)(void *arg), size_t job, enum st_outcome outcome)
{
    act_set(&first, gated, "gated", job);
    first.outcome = outcome;
    lab_gate_shut(gate);
    first_racer = lab_start(fn, &first);
    lab_until_waits_for(first_racer, watch, "gated", "advisory"); /* at the gate, and not for a moment on its way */
}

/* And on. */
static void go_on(void)
{
    lab_gate_open(gate);
    lab_join(first_racer);
    if (first.code)
        fail_msg("the first: %s", first.err.message);
}

/* The second at once: it does not wait. */
static void now_do(void (*fn)(void *arg), struct st_store *s, size_t job)
{
    act_set(&second, s, s == us ? "w1" : "w2", job);
    fn(&second);
}

static size_t now_reap(int64_t now)
{
    act_set(&second, them, "w2", 0);
    second.now = now;
    reap(&second);
    if (second.code)
        fail_msg("reap: %s", second.err.message);
    return second.n;
}

/* The second waits for the first, and then comes back. */
static void then_do(void (*fn)(void *arg), struct st_store *s, size_t job, enum st_outcome outcome)
{
    struct lab_racer *r;

    act_set(&second, s, s == us ? "w1" : "w2", job);
    second.outcome = outcome;
    r = lab_start(fn, &second);
    lab_until_waits(r, watch, s == us ? "us" : "them");
    go_on();
    lab_join(r);
}

/* ---- enqueue
 * -------------------------------------------------------------------------------------- */

/* The first was not heard of: who brings the same job again under its id has added it, and is no duplicate of himself. */
static void a_keyed_job_that_is_brought_again_while_it_is_added_is_the_same(void)
{
    forget_jobs();
    st_id_new(ids[0]);
    n_jobs = 1;
    stop(enqueue_keyed, 0, 0);
    then_do(enqueue_keyed, us, 0, 0);
    OK(second.code);
    assert_false(second.asked);
    assert_int_equal(state_of(0), ST_PENDING);
    now_do(cancel, us, 0);
    OK(second.verdict);
}

/* ---- cancel
 * -------------------------------------------------------------------------------------- */

/* Else the job that was cancelled runs again. */
static void a_cancel_finds_the_job_that_is_just_being_put_back(void)
{
    static const struct {
        void (*fn)(void *arg);
        enum st_outcome outcome;
    } ways[] = {{finish, ST_OUT_RETRY}, {finish, ST_OUT_RELEASED}, {reap, 0}};

    for (size_t i = 0; i < 3; i++) {
        hold_jobs(1);
        stop(ways[i].fn, 0, ways[i].outcome);
        then_do(cancel, them, 0, 0);
        OK(second.code);
        OK(second.verdict);
        assert_false(second.asked); /* it waited again: there was nobody to ask */
        assert_int_equal(state_of(0), ST_CANCELLED);
        assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready"), 0);
    }
}

static void a_cancel_of_a_job_that_is_just_ending_is_told_so(void)
{
    hold_jobs(1);
    stop(finish, 0, ST_OUT_SUCCEEDED);
    then_do(cancel, them, 0, 0);
    OK(second.code);
    assert_int_equal(second.verdict, STINT_ESTATE);
    assert_int_equal(state_of(0), ST_SUCCEEDED);
}

static void a_cancel_of_a_job_that_is_just_being_claimed_asks_its_worker(void)
{
    add();
    stop(claim, 0, 0);
    then_do(cancel, them, 0, 0);
    OK(second.code);
    OK(second.verdict);
    assert_true(second.asked);
    assert_int_equal(first.n, 1);
    assert_int_equal(state_of(0), ST_RUNNING);
}

static void what_a_cancel_came_before_is_not_put_back(void)
{
    static const struct {
        enum st_outcome outcome;
        enum st_state becomes;
    } cases[] = {{ST_OUT_RETRY, ST_CANCELLED},
                 {ST_OUT_RELEASED, ST_CANCELLED},
                 {ST_OUT_SUCCEEDED, ST_SUCCEEDED},
                 {ST_OUT_FAILED, ST_FAILED}};

    for (size_t i = 0; i < 4; i++) {
        hold_jobs(1);
        stop(cancel, 0, 0);
        then_do(finish, us, 0, cases[i].outcome);
        OK(second.code);
        OK(second.verdict);
        assert_int_equal(second.state, cases[i].becomes);
        assert_int_equal(state_of(0), cases[i].becomes);
    }
    hold_jobs(1);
    stop(cancel, 0, 0);
    assert_int_equal(now_reap(LATE), 0); /* somebody is at it */
    go_on();
    assert_int_equal(now_reap(LATE), 1);
    assert_int_equal(state_of(0), ST_CANCELLED);
}

static void two_cancels_of_a_running_job_ask_once(void)
{
    hold_jobs(1);
    stop(cancel, 0, 0);
    then_do(cancel, them, 0, 0);
    OK(second.verdict);
    assert_true(second.asked);
    assert_int_equal(state_of(0), ST_RUNNING);
}

/* The first has written the end of the attempt and not been heard: the outcome is brought again. It
 * is committed just between the repetition's two looks, for the lease and for the end: else it is
 * called another's, and its result is thrown away. */
static void an_outcome_that_is_committed_while_it_is_repeated_is_not_lost(void)
{
    struct lab_racer *r;

    hold_jobs(1);
    stop(finish, 0, ST_OUT_SUCCEEDED);
    /* it stops where it looks for the end, with what can be seen at this moment */
    lab_exec(watch, "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('_home'::regproc), '_home', "
                    "'_home_kept'); END $do$;"
                    " CREATE OR REPLACE FUNCTION _home(key bytea) RETURNS int2 LANGUAGE plpgsql IMMUTABLE "
                    "AS $$ BEGIN"
                    " IF current_setting('application_name') LIKE 'us-%' THEN"
                    " PERFORM pg_advisory_xact_lock_shared(4712); END IF; RETURN _home_kept(key); END $$");
    lab_exec(watch, "SELECT pg_advisory_lock(4712)");
    act_set(&second, us, "w1", 0);
    second.outcome = ST_OUT_SUCCEEDED;
    st_pg_of(us)->careful_us = INT64_MAX;
    r = lab_start(finish, &second);
    lab_until_waits_for(r, watch, "us", "advisory");
    go_on();
    lab_exec(watch, "SELECT pg_advisory_unlock(4712)");
    lab_join(r);
    lab_exec(watch, "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('_home_kept'::regproc), "
                    "'_home_kept', '_home'); END $do$;"
                    " DROP FUNCTION _home_kept");
    OK(second.code);
    assert_int_equal(second.verdict, STINT_EAGAIN); /* to be brought once more */
    now_do(finish, us, 0);
    OK(second.verdict);
    st_pg_of(us)->careful_us = 0;
}

static void two_retries_of_a_job_put_it_back_once(void)
{
    static const enum st_outcome ends[] = {ST_OUT_FAILED, ST_OUT_CANCELLED};

    for (size_t i = 0; i < 3; i++) {
        if (i < 2) {
            hold_jobs(1);
            act_set(&second, us, "w1", 0);
            second.outcome = ends[i];
            finish(&second);
        } else { /* cancelled while it waited */
            forget_jobs();
            add();
            now_do(cancel, us, 0);
        }
        OK(second.verdict);
        stop(retry, 0, 0);
        then_do(retry, them, 0, 0);
        OK(first.verdict);
        OK(second.code);
        assert_int_equal(second.verdict, STINT_ESTATE);
        assert_int_equal(state_of(0), ST_PENDING);
        now_do(cancel, us, 0); /* out of the way */
    }
}

static void discard(void *arg)
{
    struct act *a = arg;
    const struct st_slice id = S(ids[a->job]);
    struct st_pruned out = {0};

    a->code = st_store_discard(a->s, &id, 1, &a->verdict, &out, &a->err);
    st_pruned_clear(&out);
}

/* It looks at how the job ended; but that was an earlier time, the job runs again, and has ended
 * otherwise when it comes to act. Else a job that has succeeded would run once more, and under a
 * fence that was given out before. */
static void an_operator_who_looked_before_the_job_ended_again_changes_nothing(void)
{
    static void (*const acts[])(void *arg) = {retry, discard};

    for (size_t i = 0; i < 2; i++) {
        PGconn *other = lab_connect();
        struct lab_racer *r;

        hold_jobs(1);
        act_set(&second, us, "w1", 0);
        second.outcome = ST_OUT_CANCELLED;
        finish(&second);
        now_do(retry, us, 0);
        OK(second.verdict);
        st_job_free(jobs[0]);
        assert_int_equal(claim_as(us, "w1", LATE, jobs, 1), 1);
        assert_int_equal(jobs[0]->fence, 2);
        lab_exec(other, "BEGIN");
        lab_execf(other, "SELECT FROM ended WHERE id = _key('%s') FOR UPDATE", ids[0]);
        act_set(&first, them, "w2", 0);
        r = lab_start(acts[i], &first);
        lab_until_waits(r, watch, "them");
        now_do(finish, us, 0);
        OK(second.verdict);
        lab_exec(other, "COMMIT");
        lab_join(r);
        OK(first.code);
        assert_int_equal(first.verdict, STINT_ESTATE);
        assert_int_equal(state_of(0), ST_SUCCEEDED);
        assert_int_equal(fence_of(0), 2);
        lab_close(other);
    }
}

/* ---- acquire
 * -------------------------------------------------------------------------------------- */

static void a_job_that_is_just_being_finished_cannot_be_taken(void)
{
    hold_jobs(1);
    stop(finish, 0, ST_OUT_SUCCEEDED);
    then_do(acquire, them, 0, 0);
    assert_int_equal(second.code, STINT_ESTATE);
    assert_int_equal(second.why, ST_REFUSED_ENDED);
    assert_null(second.got[0]);
    hold_jobs(1);
    stop(finish, 0, ST_OUT_RETRY); /* for another try: then it is there to be taken */
    then_do(acquire, them, 0, 0);
    OK(second.code);
    assert_int_equal(second.got[0]->fence, jobs[0]->fence + 1);
    assert_int_equal(state_of(0), ST_RUNNING);
}

static void who_finishes_what_is_just_being_taken_has_lost(void)
{
    hold_jobs(1);
    stop(acquire, 0, 0);
    then_do(finish, us, 0, ST_OUT_SUCCEEDED);
    OK(second.code);
    assert_int_equal(second.verdict, STINT_ELOST);
    assert_int_equal(state_of(0), ST_RUNNING);
    assert_int_equal(fence_of(0), jobs[0]->fence + 1);
}

static void two_who_acquire_one_job_are_told_apart(void)
{
    hold_jobs(1);
    stop(acquire, 0, 0); /* its lease has ended */
    then_do(acquire, them, 0, 0);
    assert_int_equal(second.code, STINT_ESTATE);
    assert_int_equal(second.why, ST_REFUSED_HELD);
    assert_int_equal(fence_of(0), jobs[0]->fence + 1);
    forget_jobs();
    add();
    stop(acquire, 0, 0); /* it waited */
    then_do(acquire, them, 0, 0);
    assert_int_equal(second.why, ST_REFUSED_HELD);
    assert_int_equal(fence_of(0), 1);
}

/* ---- renew
 * ---------------------------------------------------------------------------------------- */

static void a_lease_that_is_just_being_renewed_cannot_be_taken(void)
{
    hold_jobs(1);
    stop(renew, 0, 0);
    assert_int_equal(now_reap(LATE), 0);
    then_do(acquire, them, 0, 0);
    assert_int_equal(second.code, STINT_ESTATE);
    assert_int_equal(second.why, ST_REFUSED_HELD);
    OK(first.verdict);
    assert_int_equal(now_reap(LATE), 0);
    assert_int_equal(fence_of(0), jobs[0]->fence);
    assert_int_equal(until_of(0), LATE + LEASE);
}

/* "renewed" would be a lie, and "lost" not sure yet. */
static void a_lease_that_is_just_being_taken_is_not_called_renewed(void)
{
    static void (*const takers[])(void *arg) = {acquire, reap};

    for (size_t i = 0; i < 2; i++) {
        hold_jobs(1);
        stop(takers[i], 0, 0);
        now_do(renew, us, 0);
        OK(second.code);
        assert_int_equal(second.verdict, STINT_EAGAIN);
        go_on();
        now_do(renew, us, 0);
        OK(second.code);
        assert_int_equal(second.verdict, STINT_ELOST);
    }
}

static void a_lease_whose_taker_came_to_nothing_is_renewed(void)
{
    hold_jobs(1);
    stop(acquire, 0, 0);
    lab_execf(watch, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'gated-%s'",
              kit_schema);
    lab_join(first_racer);
    assert_int_equal(first.code, STINT_EAGAIN);
    now_do(renew, us, 0);
    OK(second.verdict);
    assert_int_equal(until_of(0), LATE + LEASE);
    lab_gate_open(gate);
}

/* ---- reap
 * ----------------------------------------------------------------------------------------- */

static void a_job_that_is_just_being_finished_is_not_reaped(void)
{
    hold_jobs(2);
    stop(finish, 0, ST_OUT_SUCCEEDED);
    assert_int_equal(now_reap(LATE), 1); /* the other one: it does not wait */
    go_on();
    OK(first.verdict);
    assert_int_equal(now_reap(LATE), 0);
    assert_int_equal(state_of(0), ST_SUCCEEDED);
    assert_int_equal(state_of(1), ST_PENDING);
}

/* It looks first, and decides; much can happen until it takes. */
static void a_reaper_that_looked_before_a_renewal_takes_nothing(void)
{
    struct st_pg_key key;
    struct st_pg_end e = {.outcome = ST_PG_EXPIRED_RETRY, .message = "gone"};
    stint_error err = {0};
    int became = 9;

    hold_jobs(1);
    st_pg_key(S(ids[0]), &key);
    e.key = ST_SLICE((const char *)key.p, key.len);
    e.fence = jobs[0]->fence;
    now_do(renew, us, 0);
    OK(second.verdict);
    OK(st_pg_end_all(st_pg_of(them), LATE, LATE, &e, 1, &became, &err));
    assert_int_equal(became, 0);
    assert_int_equal(state_of(0), ST_RUNNING);
    OK(st_pg_end_all(st_pg_of(them), LATE, LATE + LEASE, &e, 1, &became, &err));
    assert_int_equal(became, ST_PENDING);
}

static void who_finishes_what_is_just_being_reaped_has_lost(void)
{
    hold_jobs(1);
    stop(reap, 0, 0);
    then_do(finish, us, 0, ST_OUT_SUCCEEDED);
    OK(second.code);
    assert_int_equal(second.verdict, STINT_ELOST);
    assert_int_equal(first.n, 1);
    assert_int_equal(state_of(0), ST_PENDING);
    assert_int_equal(ends_of(0), 1);
}

/* A batch of which the reaper has one: the others are written all the same. */
static void finish_both(void *arg)
{
    struct act *a = arg;
    struct st_finish f[2] = {fin_of(1, ST_OUT_SUCCEEDED), fin_of(0, ST_OUT_SUCCEEDED)};

    a->code = st_store_finish(a->s, LATE, f, 2, &a->err);
    a->verdict = f[0].verdict;
    a->n = (size_t)f[1].verdict;
}

static void a_finish_and_a_reaper_do_not_wait_for_each_other(void)
{
    struct st_renew r;

    hold_jobs(2);
    r = (struct st_renew){.id = S(ids[0]), .fence = jobs[0]->fence, .lease_us = LEASE, .started_ago_us = -1};
    OK(st_store_renew(us, LATE, &r, 1, NULL));
    stop(reap, 1, 0);
    then_do(finish_both, us, 0, 0);
    OK(second.code);
    assert_int_equal(second.verdict, STINT_ELOST);
    assert_int_equal(second.n, STINT_OK);
    assert_int_equal(state_of(0), ST_SUCCEEDED);
    assert_int_equal(state_of(1), ST_PENDING);
    assert_int_equal(ends_of(0) + ends_of(1), 2);
}

static void two_reapers_reap_each_job_once(void)
{
    hold_jobs(3);
    stop(reap, 0, 0);
    assert_int_equal(now_reap(LATE), 0);
    go_on();
    assert_int_equal(first.n, 3);
    assert_int_equal(now_reap(LATE), 0);
    assert_int_equal(ends_of(0) + ends_of(1) + ends_of(2), 3);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready"), 3);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 0);
}

/* ---- finish
 * --------------------------------------------------------------------------------------- */

/* No answer came to the first, and the server is still at it. */
static void a_finish_repeated_while_the_first_is_under_way_is_told_ok(void)
{
    static const enum st_outcome outcomes[] = {ST_OUT_SUCCEEDED, ST_OUT_RETRY, ST_OUT_FAILED, ST_OUT_RELEASED};

    for (size_t i = 0; i < 4; i++) {
        hold_jobs(1);
        stop(finish, 0, outcomes[i]);
        then_do(finish, us, 0, outcomes[i]);
        OK(second.code);
        OK(first.verdict);
        OK(second.verdict);
        assert_int_equal(second.state, first.state);
        assert_int_equal(second.state, state_of(0));
        assert_int_equal(ends_of(0), 1);
        now_do(cancel, us, 0); /* out of the way */
    }
    hold_jobs(1);
    stop(finish, 0, ST_OUT_SUCCEEDED);
    then_do(finish, us, 0, ST_OUT_FAILED); /* another outcome is another matter */
    assert_int_equal(second.verdict, STINT_ELOST);
}

static stint_code writes_nothing(void *arg, struct st_tx *tx, stint_error *err)
{
    (void)arg;
    (void)tx;
    (void)err;
    return STINT_OK;
}

static void finish_in_tx(void *arg)
{
    struct act *a = arg;
    struct st_finish f = fin_of(a->job, a->outcome);
    const struct st_hold hold = {.id = f.id, .fence = f.fence};

    a->code = st_store_transact(a->s, LATE, &hold, writes_nothing, NULL, &f, &a->err);
    a->verdict = f.verdict;
    a->state = f.state;
}

/* A renewal that comes in between is no reason to take back what a handler has written. */
static void an_outcome_with_writes_of_its_own_waits_for_a_renewal(void)
{
    hold_jobs(1);
    stop(renew, 0, 0);
    then_do(finish_in_tx, us, 0, ST_OUT_SUCCEEDED);
    OK(second.code);
    OK(second.verdict);
    assert_int_equal(state_of(0), ST_SUCCEEDED);
}

/* An operator's transaction that is open for an hour. */
static void an_open_cancel_holds_up_nobody_but_its_job(void)
{
    struct st_renew r[5];
    struct st_finish two[2], rest[3];
    stint_error err = {0};

    hold_jobs(5);
    lab_impatient(watch);
    stop(cancel, 2, 0);
    for (size_t i = 0; i < 5; i++)
        r[i] = (struct st_renew){.id = S(ids[i]), .fence = jobs[i]->fence, .lease_us = LEASE, .started_ago_us = -1};
    OK(st_store_renew(us, T0 + 5 * SEC, r, 5, NULL));
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(r[i].verdict, i == 2 ? STINT_EAGAIN : STINT_OK);
        assert_int_equal(until_of(i), T0 + LEASE + (i == 2 ? 0 : 5 * SEC));
    }
    two[0] = fin_of(1, ST_OUT_SUCCEEDED);
    two[1] = fin_of(2, ST_OUT_SUCCEEDED);
    OK(st_store_finish(us, T0 + 6 * SEC, two, 2, &err));
    OK(two[0].verdict);
    assert_int_equal(two[1].verdict, STINT_EAGAIN); /* nothing has changed for it */
    assert_int_equal(state_of(1), ST_SUCCEEDED);
    assert_int_equal(state_of(2), ST_RUNNING);
    rest[0] = fin_of(0, ST_OUT_SUCCEEDED);
    rest[1] = fin_of(3, ST_OUT_FAILED);
    rest[2] = fin_of(4, ST_OUT_RETRY);
    OK(st_store_finish(us, T0 + 6 * SEC, rest, 3, NULL));
    for (size_t i = 0; i < 3; i++)
        OK(rest[i].verdict);
    go_on();
    OK(st_store_finish(us, T0 + 7 * SEC, two, 2, NULL)); /* again, as it was */
    OK(two[0].verdict);
    OK(two[1].verdict);
    assert_int_equal(state_of(1), ST_SUCCEEDED);
    assert_int_equal(state_of(2), ST_SUCCEEDED);
    assert_int_equal(state_of(3), ST_FAILED);
    assert_int_equal(state_of(4), ST_PENDING);
}

/* ---- fence_ok
 * -------------------------------------------------------------------------------------- */

static int64_t fence_ok(PGconn *c, int64_t fence)
{
    return lab_intf(c, "SELECT fence_ok('%s', %lld)", ids[0], (long long)fence);
}

static void fence_ok_is_true_until_the_callers_transaction_ends(void)
{
    PGconn *caller = lab_connect();
    struct lab_racer *r;

    hold_jobs(1);
    lab_exec(caller, "BEGIN");
    assert_int_equal(fence_ok(caller, jobs[0]->fence), 1);
    assert_int_equal(fence_ok(caller, jobs[0]->fence + 1), 0);
    assert_int_equal(now_reap(LATE), 0); /* though it has expired */
    act_set(&second, them, "w2", 0);
    r = lab_start(acquire, &second);
    lab_until_waits(r, watch, "them");
    lab_exec(caller, "COMMIT");
    lab_join(r); /* takes it when the caller is done, not before */
    OK(second.code);
    assert_int_equal(second.got[0]->fence, jobs[0]->fence + 1);
    assert_int_equal(fence_ok(caller, jobs[0]->fence), 0);
}

static void fence_ok_hinders_neither_its_worker_nor_an_operator(void)
{
    PGconn *caller = lab_connect();

    hold_jobs(1);
    lab_exec(caller, "BEGIN");
    assert_int_equal(fence_ok(caller, jobs[0]->fence), 1);
    now_do(renew, us, 0);
    OK(second.verdict);
    assert_int_equal(until_of(0), LATE + LEASE);
    now_do(cancel, them, 0);
    OK(second.verdict);
    assert_true(second.asked);
    assert_int_equal(fence_ok(caller, jobs[0]->fence), 1);
    lab_exec(caller, "COMMIT");
    assert_int_equal(now_reap(LATE + LEASE), 1);
    assert_int_equal(fence_ok(caller, jobs[0]->fence), 0);
}

/* Whoever asks while it is being taken waits, and is told no. */
static void ask_fence(void *arg)
{
    struct act *a = arg;
    PGconn *c = lab_try_connect();
    char sql[256];
    PGresult *r;

    snprintf(sql, sizeof(sql), "SET application_name = 'asks-%s'; SELECT fence_ok('%s', %lld)", kit_schema, ids[0],
             (long long)jobs[0]->fence);
    r = PQexec(c, sql);
    a->code = PQresultStatus(r) == PGRES_TUPLES_OK ? STINT_OK : STINT_ESTORE;
    a->asked = !a->code && strcmp(PQgetvalue(r, 0, 0), "t") == 0;
    PQclear(r);
    PQfinish(c);
}

static void fence_ok_of_a_job_that_is_just_being_taken_is_false(void)
{
    struct lab_racer *r;

    hold_jobs(1);
    stop(acquire, 0, 0);
    act_set(&second, NULL, "", 0);
    r = lab_start(ask_fence, &second);
    lab_until_waits(r, watch, "asks");
    go_on();
    lab_join(r);
    OK(second.code);
    assert_false(second.asked);
}

/* ---- claim
 * ----------------------------------------------------------------------------------------- */

/* A claim whose answer was lost: its server may still be at it when we ask what we hold. */
static void what_a_claim_takes_after_we_asked_is_given_back_later(void)
{
    size_t given = 9;

    add();
    add();
    stop(claim, 0, 0);
    OK(st_store_disown(us, T0, S("gated"), NULL, 0, &given, NULL));
    assert_int_equal(given, 0);
    assert_int_equal(claim_as(them, "w2", T0, jobs, 4), 0);
    go_on();
    assert_int_equal(first.n, 2);
    OK(st_store_disown(us, T0, S("gated"), NULL, 0, &given, NULL)); /* a worker asks again now and then */
    assert_int_equal(given, 2);
    assert_int_equal(state_of(0), ST_PENDING);
    assert_int_equal(lab_int(watch, "SELECT max(attempt) FROM ready"), 0);
}

/* Nor is an operator's open transaction waited for: the others are given back at once. */
static void what_somebody_is_at_is_given_back_later(void)
{
    size_t given = 9;

    hold_jobs(3);
    stop(cancel, 1, 0);
    OK(st_store_disown(us, T0, S("w1"), NULL, 0, &given, NULL));
    assert_int_equal(given, 2);
    assert_int_equal(state_of(0), ST_PENDING);
    assert_int_equal(state_of(1), ST_RUNNING);
    assert_int_equal(state_of(2), ST_PENDING);
    go_on();
    OK(st_store_disown(us, T0, S("w1"), NULL, 0, &given, NULL));
    assert_int_equal(given, 1);
    assert_int_equal(state_of(1), ST_CANCELLED);
}

/* And without that, when its lease has ended: there is nothing to renew that would keep it. */
static void what_nobody_knows_to_hold_is_reaped(void)
{
    hold_jobs(2);
    now_do(renew, us, 0);
    OK(second.verdict);
    assert_int_equal(now_reap(LATE), 1);
    assert_int_equal(state_of(0), ST_RUNNING);
    assert_int_equal(state_of(1), ST_PENDING);
}

/* Groups are thrown away when nothing of them is held: not one that is just being filled, nor one
 * whose jobs go on. */
static void a_group_is_not_tidied_away_from_under_its_jobs(void)
{
    add();
    add();
    stop(claim, 0, 0);
    assert_int_equal(now_reap(LATE), 0);
    go_on();
    check_sound();
    assert_int_equal(now_reap(LATE), 2);
    hold_jobs(2);
    stop(renew, 0, 0);
    assert_int_equal(now_reap(LATE), 1); /* the other one */
    go_on();
    check_sound();
    assert_int_equal(now_reap(LATE + 5 * SEC), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 1);
    assert_int_equal(now_reap(LATE + LEASE), 1);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 0);
}

static void a_job_that_is_just_being_stolen_is_in_one_group(void)
{
    hold_jobs(2);
    stop(acquire, 0, 0);
    assert_int_equal(now_reap(LATE), 1); /* the other one; their group is looked at */
    go_on();
    check_sound();
    assert_int_equal(now_reap(LATE + 5 * SEC), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 1);
    assert_int_equal(now_reap(LATE + LEASE), 1);
    assert_int_equal(state_of(0), ST_PENDING);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 0);
}

static void add_now_of(size_t i, const char *type)
{
    struct st_new_job j = {.type = S(type), .queue = S("q"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
    struct st_enqueued out;

    st_id_new(ids[i]);
    j.id = S(ids[i]);
    OK(st_store_enqueue(us, 0, &j, 1, &out, NULL));
}

static void add_now(size_t i)
{
    add_now_of(i, "t");
}

/* By the real clock, with marks: the tail must not pass what was skipped.  Only the first claim
 * waits before it steps round, and none of them forgets how far it had come. */
static void a_waiting_job_that_somebody_is_at_is_taken_later(void)
{
    const struct st_pg_lane *lane = NULL;
    PGconn *other = lab_connect();
    int64_t tail;

    while (!lane || lane->tail.key == INT64_MIN) { /* others on this server may hold it for a while */
        add_now(0);
        assert_int_equal(claim_as(us, "w1", 0, jobs, 1), 1);
        st_job_free(jobs[0]);
        lane = st_pg_lane_by_id(st_pg_of(us)->sh, st_pg_lane_id(S("q"), S("t"), 0));
    }
    for (size_t i = 0; i < 3; i++)
        add_now(i);
    tail = lane->tail.key;
    lab_impatient(watch);
    lab_exec(other, "BEGIN");
    lab_execf(other, "DELETE FROM ready WHERE id = _key('%s')", ids[0]); /* as a cancel does */
    assert_int_equal(claim_as(us, "w1", 0, jobs, 1), 1);
    assert_string_equal(jobs[0]->id, ids[1]);
    assert_int_equal(claim_as(us, "w1", 0, jobs + 1, 1), 1);
    assert_string_equal(jobs[1]->id, ids[2]);
    assert_int_equal(claim_as(us, "w1", 0, jobs + 2, 1), 0);
    assert_true(st_pg_of(us)->careful_us > st_clock_mono_us());
    assert_true(lane->tail.key >= tail);
    assert_true(lane->tail.key <= lab_intf(watch, "SELECT key FROM ready WHERE id = _key('%s')", ids[0]));
    lab_exec(other, "ROLLBACK");
    assert_int_equal(claim_as(us, "w1", 0, jobs + 2, 1), 1);
    assert_string_equal(jobs[2]->id, ids[0]);
}

/* A run that an operator is just cancelling, announced before another. */
static void who_acquires_several_is_held_up_by_none_that_somebody_is_at(void)
{
    const struct st_claim_req req = {.now_us = LATE, .worker = S("w1"), .lease_us = LEASE};
    struct st_acquire items[3];
    PGconn *other = lab_connect();

    forget_jobs();
    for (size_t i = 0; i < 3; i++)
        items[i] = (struct st_acquire){.id = S(add())};
    lab_impatient(watch);
    lab_exec(other, "BEGIN");
    lab_execf(other, "DELETE FROM ready WHERE id = _key('%s')", ids[0]); /* as a cancel does */
    assert_int_equal(st_store_acquire_many(us, items, 3, &req, NULL), STINT_EAGAIN);
    assert_null(items[0].job);
    assert_int_equal(items[0].why, ST_REFUSED_NOT);
    assert_non_null(items[1].job);
    assert_non_null(items[2].job);
    lab_exec(other, "ROLLBACK");
    OK(st_store_acquire_many(us, items, 1, &req, NULL));
    for (size_t i = 0; i < 3; i++)
        jobs[i] = items[i].job;
    assert_non_null(jobs[0]);
}

/* Whoever finds another claimer at the lane begins behind what that one is likely to take, and takes
 * what lies before where nothing behind it is free. */
static void who_comes_second_begins_behind_and_leaves_nothing(void)
{
    PGconn *other = lab_connect();

    forget_jobs();
    st_pg_of(us)->careful_us = 0;
    for (size_t i = 0; i < 4; i++)
        add_now(i);
    lab_exec(other, "BEGIN");
    lab_execf(other, "SELECT pg_advisory_xact_lock(_gate(%lld), 0)", (long long)st_pg_lane_id(S("q"), S("t"), 0));
    assert_int_equal(claim_as(us, "w1", 0, jobs, 1), 1);
    assert_string_equal(jobs[0]->id, ids[1]);
    lab_execf(other, "DELETE FROM ready WHERE id IN (_key('%s'), _key('%s'))", ids[2], ids[3]);
    assert_int_equal(claim_as(us, "w1", 0, jobs + 1, 1), 1);
    assert_string_equal(jobs[1]->id, ids[0]);
    assert_int_equal(claim_as(us, "w1", 0, jobs + 2, 2), 0);
    lab_exec(other, "ROLLBACK");
    assert_int_equal(claim_as(us, "w1", 0, jobs + 2, 2), 2);
}

/* The same where several lanes have something, in turns.  The first lane's gate says who comes second; where another's is
 * taken too it passes by what is locked. */
static void who_comes_second_to_several_lanes_leaves_nothing(void)
{
    const bool t_first = st_pg_lane_id(S("q"), S("t"), 0) < st_pg_lane_id(S("q"), S("u"), 0);
    const char *const types[] = {t_first ? "t" : "u", t_first ? "u" : "t"};

    for (int both = 0; both < 2; both++) {
        PGconn *other = lab_connect();

        forget_jobs();
        st_pg_of(us)->careful_us = 0;
        for (size_t i = 0; i < 4; i++)
            add_now_of(i, types[i % 2]);
        lab_impatient(watch);
        lab_exec(other, "BEGIN");
        for (int i = 0; i <= both; i++)
            lab_execf(other, "SELECT pg_advisory_xact_lock(_gate(%lld), %d)",
                      (long long)st_pg_lane_id(S("q"), S(types[i]), 0), i);
        lab_execf(other, "DELETE FROM ready WHERE id = _key('%s')", ids[0]);
        assert_int_equal(claim_as(us, "w1", 0, jobs, 1), 1);
        assert_string_equal(jobs[0]->id, ids[both ? 1 : 2]);
        assert_int_equal(claim_as(us, "w1", 0, jobs + 1, 4), 2);
        assert_int_equal(claim_as(us, "w1", 0, jobs + 3, 4), 0);
        lab_exec(other, "ROLLBACK");
        assert_int_equal(claim_as(us, "w1", 0, jobs + 3, 4), 1);
        assert_string_equal(jobs[3]->id, ids[0]);
        lab_close(other);
    }
}

/* Jobs of one claim may lie in several slots of the ring, and in each of them alone. */
static void a_claim_reads_jobs_of_every_age(void)
{
    static const int days[] = {0, 3, 0, 9, 400};
    char payloads[5][16];

    forget_jobs();
    for (size_t round = 0; round < 2; round++) {
        const size_t n = 5, each = round ? n : 1;

        for (size_t i = 0; i < n; i++) {
            struct st_new_job j = {.type = S("t"), .queue = S("q"), .max_attempts = -1, .timeout_us = -1};
            const long long ms = (st_clock_real_us() - days[i] * 24 * ST_HOUR) / 1000;
            struct st_enqueued out;

            snprintf(ids[i], sizeof(ids[i]), "%08llx-%04llx-7000-8000-%012zx", ms >> 16, ms & 0xffff, round * n + i);
            snprintf(payloads[i], sizeof(payloads[i]), "[%zu,%zu]", round, i);
            j.id = S(ids[i]);
            j.payload = S(payloads[i]);
            OK(st_store_enqueue(us, 0, &j, 1, &out, NULL));
        }
        for (size_t got = 0; got < n; got += each)
            assert_int_equal(claim_as(us, "w1", 0, jobs + got, each), each);
        for (size_t i = 0; i < n; i++) {
            assert_string_equal(jobs[i]->id, ids[i]);
            assert_int_equal(jobs[i]->payload.len, strlen(payloads[i]));
            assert_memory_equal(jobs[i]->payload.p, payloads[i], strlen(payloads[i]));
        }
        forget_jobs();
    }
}

/* Where an entry was put is written down with the job; it may be elsewhere by now, and another there. */
static void find_elsewhere(bool unknown, size_t types, bool apart)
{
    const struct st_type_rule rules[] = {{.pattern = S("t"), .policy = st_policy_default},
                                         {.pattern = S("u"), .policy = st_policy_default, .lease_us = LEASE / 2}};
    struct st_claim_req req = {
        .worker = S("w1"), .lease_us = LEASE, .n = 4, .n_run = 4, .types = rules, .n_types = apart ? 2 : 0};
    size_t n = 0;

    forget_jobs();
    for (size_t i = 0; i < 4; i++) {
        struct st_new_job j = {
            .type = S(i % types ? "u" : "t"), .queue = S("q"), .max_attempts = (int)i + 2, .timeout_us = -1};
        struct st_enqueued out;

        st_id_new(ids[i]);
        j.id = S(ids[i]);
        j.payload = ST_SLICE(ids[i], 36);
        OK(st_store_enqueue(us, 0, &j, 1, &out, NULL));
    }
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready r JOIN entry e ON e.ctid = r.at AND e.id = r.id"), 4);
    lab_execf(watch, "UPDATE entry SET slot = 16 WHERE id = _key('%s')", ids[0]);
    lab_execf(watch,
              "UPDATE ready r SET at = (SELECT x.at FROM ready x WHERE x.id = _key('%s')) WHERE r.id = _key('%s')",
              ids[3], ids[1]);
    if (unknown)
        lab_execf(watch, "UPDATE ready SET at = DEFAULT WHERE id = _key('%s')", ids[2]);
    OK(st_store_claim(us, &req, jobs, &n, NULL));
    assert_int_equal(n, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(jobs[i]->id, ids[i]);
        assert_int_equal(jobs[i]->payload.len, 36);
        assert_memory_equal(jobs[i]->payload.p, ids[i], 36);
        assert_int_equal(jobs[i]->policy.max_attempts, i + 2);
    }
}

static void a_claim_finds_entries_that_are_elsewhere(void)
{
    for (size_t types = 1; types <= 2; types++) {
        find_elsewhere(false, types, false);
        find_elsewhere(true, types, false);
    }
    find_elsewhere(false, 2, true); /* in groups of their own */
}

/* ---- a crowd -------------------------------------------------------------------------------------- */

#define MUCH 300 /* so much that it does not begin behind others */

static struct crowd {
    struct st_store *s;
    const struct st_slice *queues;
    size_t n_queues;
    struct st_job *got[MUCH];
    bool crowded;
    size_t n;
    stint_code code;
} crowd;

static void crowd_forget(struct crowd *c)
{
    for (size_t i = 0; i < MUCH; i++)
        st_job_free(c->got[i]);
    memset(c->got, 0, sizeof(c->got));
}

static void claim_much(void *arg)
{
    struct crowd *c = arg;
    const struct st_claim_req req = {.worker = S("w1"),
                                     .lease_us = ST_HOUR,
                                     .n = MUCH,
                                     .n_run = 1,
                                     .queues = c->queues,
                                     .n_queues = c->n_queues,
                                     .crowded = &c->crowded};

    crowd_forget(c);
    c->code = st_store_claim(c->s, &req, c->got, &c->n, NULL);
}

/* A session that is at a lane of this queue, by these numbers of its gate. */
static PGconn *at_the_lane_of(struct st_slice queue, bool odd, int from, int to)
{
    PGconn *c = lab_connect();

    lab_exec(c, "BEGIN");
    for (int i = from; i <= to; i++)
        lab_execf(c, "SELECT pg_advisory_xact_lock(_gate(%lld), %d)", (long long)st_pg_lane_id(queue, S("t"), 0) + odd,
                  i);
    return c;
}

static PGconn *at_the_lane(int from, int to)
{
    return at_the_lane_of(S("q"), false, from, to);
}

static void leave_the_lane(PGconn *c)
{
    lab_exec(c, "ROLLBACK"); /* the locks are given back when it is answered; of a session that ends, some time later */
    lab_close(c);
}

static void crowd_begin(void)
{
    forget_jobs();
    st_pg_of(us)->careful_us = 0;
    crowd.s = us;
    crowd.n_queues = 0;
    add_now(0);
}

static void who_comes_into_a_crowd_is_sent_away(void)
{
    PGconn *others = at_the_lane(-2, 0);

    crowd_begin();
    crowd.crowded = false;
    claim_much(&crowd);
    assert_int_equal(crowd.code, STINT_OK);
    assert_int_equal(crowd.n, 0);
    assert_true(crowd.crowded);
    assert_int_equal(claim_as(us, "w1", 0, jobs, 1), 1); /* who does not ask for that passes by */
    add_now(1);
    leave_the_lane(others);
    claim_much(&crowd);
    assert_int_equal(crowd.n, 1);
    assert_false(crowd.crowded);
}

static void who_is_next_waits_for_its_turn(void)
{
    PGconn *other = at_the_lane(0, 0);
    struct lab_racer *r;

    crowd_begin();
    add_now(1);
    r = lab_start(claim_much, &crowd);
    lab_until_waits_for(r, watch, "us", "advisory");
    leave_the_lane(other);
    lab_join(r);
    assert_int_equal(crowd.code, STINT_OK);
    assert_int_equal(crowd.n, 2);
    assert_false(crowd.crowded);
}

static void add_to(struct st_slice queue, struct st_slice type, int64_t due_us)
{
    struct st_new_job j = {
        .type = type, .queue = queue, .payload = S("{}"), .due_us = due_us, .max_attempts = -1, .timeout_us = -1};
    struct st_enqueued out;
    char id[ST_ID_MAX + 1];

    st_id_new(id);
    j.id = S(id);
    OK(st_store_enqueue(us, 0, &j, 1, &out, NULL));
}

static void claim_much_after(PGconn *other)
{
    struct lab_racer *r = lab_start(claim_much, &crowd);

    lab_until_waits_for(r, watch, "us", "advisory");
    leave_the_lane(other);
    lab_join(r);
    assert_int_equal(crowd.code, STINT_OK);
    assert_int_equal(crowd.n, 1);
    assert_false(crowd.crowded);
}

/* What was due long ago has a lane of its own. */
static void who_is_next_waits_for_what_is_old_too(void)
{
    crowd_begin();
    claim_much(&crowd);
    assert_int_equal(crowd.n, 1);
    add_to(S("q"), S("t"), ST_SEC);
    claim_much_after(at_the_lane_of(S("q"), true, 0, 0));
}

/* From a queue that is empty nobody is sent away, nor has it a gate there. */
static void who_finds_a_queue_empty_goes_on_to_the_next(void)
{
    const struct st_slice queues[] = {S("b"), S("q")};
    PGconn *others;

    crowd_begin();
    add_to(S("b"), S("t"), 0);
    usleep(1000);
    crowd.queues = queues;
    crowd.n_queues = 1;
    claim_much(&crowd);
    assert_int_equal(crowd.n, 1);
    crowd.n_queues = 2;
    claim_much_after(at_the_lane(0, 0));
    add_now(1);
    others = at_the_lane_of(S("b"), false, -2, 0);
    claim_much(&crowd);
    assert_int_equal(crowd.n, 1);
    assert_false(crowd.crowded);
    leave_the_lane(others);
}

/* Whoever comes to the rows it has taken would wait as long as it does. */
static void take_and_do_not_wait(const struct st_type_rule *types, size_t n_types, size_t lanes)
{
    const struct st_slice queues[] = {S("a"), S("q")};
    const struct st_claim_req req = {.worker = S("w1"),
                                     .lease_us = ST_HOUR,
                                     .n = MUCH,
                                     .n_run = 1,
                                     .queues = queues,
                                     .n_queues = 2,
                                     .types = types,
                                     .n_types = n_types,
                                     .crowded = &crowd.crowded};
    PGconn *other = at_the_lane(0, 0);
    size_t n = 0;

    lab_patient(watch);
    crowd_begin();
    for (size_t i = 0; i < lanes; i++)
        add_to(S("a"), S(i ? "u" : "t"), 0);
    usleep(1000);
    crowd.crowded = false;
    OK(st_store_claim(us, &req, crowd.got, &n, NULL));
    assert_int_equal(n, lanes);
    assert_true(crowd.crowded);
    leave_the_lane(other);
}

static void who_has_taken_something_does_not_wait_with_it(void)
{
    take_and_do_not_wait(NULL, 0, 2);
}

/* It did not ask for a turn at its first queue, since it may take few there. */
static void who_has_taken_a_few_does_not_wait_with_them(void)
{
    const struct st_type_rule types[] = {{.pattern = S("*"), .queue = S("a"), .policy = st_policy_default, .max = 10},
                                         {.pattern = S("*"), .policy = st_policy_default}};

    take_and_do_not_wait(types, 2, 1);
}

static void claim_by_rules(void *arg)
{
    struct crowd *c = arg;
    const struct st_type_rule types[] = {{.pattern = S("t"), .policy = st_policy_default, .max = 1},
                                         {.pattern = S("*"), .policy = st_policy_default}};
    const struct st_claim_req req = {
        .worker = S("w1"), .lease_us = ST_HOUR, .n = MUCH, .n_run = MUCH, .types = types, .n_types = 2};

    crowd_forget(c);
    c->code = st_store_claim(c->s, &req, c->got, &c->n, NULL);
}

/* The limit of its type is for what it takes: there is another. */
static void who_loses_a_job_to_a_cancel_takes_another_of_its_type(void)
{
    struct lab_racer *r;

    crowd_begin();
    add_now_of(1, "t");
    add_now_of(2, "u");
    stop(cancel, 0, ST_OUT_SUCCEEDED);
    r = lab_start(claim_by_rules, &crowd);
    lab_until_waits(r, watch, "us");
    go_on();
    lab_join(r);
    assert_int_equal(crowd.code, STINT_OK);
    assert_int_equal(crowd.n, 2);
    assert_string_equal(crowd.got[0]->id, ids[2]);
    assert_string_equal(crowd.got[1]->id, ids[1]);
}

static void who_has_waited_long_passes_by(void)
{
    PGconn *other = at_the_lane(0, 0);

    lab_impatient(watch);
    crowd_begin();
    claim_much(&crowd);
    assert_int_equal(crowd.code, STINT_OK);
    assert_int_equal(crowd.n, 1);
    assert_false(crowd.crowded);
    leave_the_lane(other);
}

/* It is asked once more, for what the first answer has left of the limit. */
static void a_claim_that_did_not_know_of_a_lane_keeps_to_the_limits(void)
{
    const struct st_type_rule types[] = {{.pattern = S("new*"), .policy = st_policy_default, .max = 2},
                                         {.pattern = S("*"), .policy = st_policy_default, .max = 2}};
    const struct st_claim_req req = {
        .worker = S("w1"), .lease_us = LEASE, .n = 16, .n_run = 16, .types = types, .n_types = 2};
    char type[32];
    size_t n = 0;

    forget_jobs();
    add_now_of(0, "new");
    assert_int_equal(claim_as(us, "w1", 0, jobs, 16), 1); /* this one it knows */
    forget_jobs();
    add_now_of(0, "new");
    add_now_of(1, "t");
    add_now_of(2, "t");
    for (size_t i = 3; i < 7; i++) { /* others that it has not heard of: two for each rule */
        struct st_new_job j = {.queue = S("q"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
        struct st_enqueued out;

        snprintf(type, sizeof(type), "%s%zu-%d", i < 5 ? "new" : "other", i, (int)getpid());
        st_id_new(ids[i]);
        j.id = S(ids[i]);
        j.type = S(type);
        OK(st_store_enqueue(them, 0, &j, 1, &out, NULL));
    }
    OK(st_store_claim(us, &req, jobs, &n, NULL));
    assert_int_equal(n, 4);
}

/* Somebody else has held a lock for long, as happens on a loaded machine: an answer, and nothing was changed. */
static bool in_the_way(stint_code code, const stint_error *err)
{
    return code == STINT_EAGAIN && strcmp(err->detail, "55P03") == 0;
}

#define MANY 600

static struct claimer {
    struct st_store *s;
    char worker[8];
    char ids[MANY][ST_ID_MAX + 1];
    size_t n;
    int busy;
    stint_code code;
    stint_error err;
} claimers[2];

static void claim_all(void *arg)
{
    struct claimer *c = arg;
    const struct st_claim_req req = {.worker = S(c->worker), .lease_us = ST_HOUR, .n = 7, .n_run = 7};
    struct st_job *got[7];
    int dry = 0;

    while (dry < 3 && !c->code && !atomic_load(&lab_over)) { /* what was locked may be free again */
        size_t n = 0;

        c->code = st_store_claim(c->s, &req, got, &n, &c->err);
        if (in_the_way(c->code, &c->err) && c->busy++ < 10) {
            print_message("%s: %s %s\n", c->worker, c->err.detail, c->err.message);
            c->code = STINT_OK;
            continue;
        }
        dry = n ? 0 : dry + 1;
        for (size_t i = 0; i < n; i++) {
            if (c->n < MANY)
                snprintf(c->ids[c->n++], sizeof(c->ids[0]), "%s", got[i]->id);
            st_job_free(got[i]);
        }
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void add_many(struct st_store *s, size_t n)
{
    static const char *const types[] = {"t", "u", "v"};
    struct st_new_job *j = calloc(n, sizeof(*j));
    struct st_enqueued *out = calloc(n, sizeof(*out));
    char(*id)[ST_ID_MAX + 1] = calloc(n, sizeof(*id));

    assert_true(j && out && id);
    for (size_t i = 0; i < n; i++) {
        st_id_new(id[i]);
        j[i] = (struct st_new_job){.id = S(id[i]),
                                   .type = S(types[i % 3]),
                                   .queue = S("q"),
                                   .payload = S("{}"),
                                   .max_attempts = -1,
                                   .timeout_us = -1};
    }
    OK(st_store_enqueue(s, 0, j, n, out, NULL));
    free(j);
    free(out);
    free(id);
}

static void two_who_claim_at_once_get_each_job_once(void)
{
    static char all[2 * MANY][ST_ID_MAX + 1];
    struct lab_racer *r[2];
    size_t n = 0;

    add_many(us, MANY);
    memset(claimers, 0, sizeof(claimers));
    for (int i = 0; i < 2; i++) {
        claimers[i].s = i ? them : us;
        snprintf(claimers[i].worker, sizeof(claimers[i].worker), "w%d", i + 1);
        r[i] = lab_start(claim_all, &claimers[i]);
    }
    for (int i = 0; i < 2; i++) {
        lab_join(r[i]);
        if (claimers[i].code)
            fail_msg("%s: %s %s", claimers[i].worker, claimers[i].err.detail, claimers[i].err.message);
        memcpy(all[n], claimers[i].ids, claimers[i].n * sizeof(all[0]));
        n += claimers[i].n;
    }
    print_message("%zu and %zu\n", claimers[0].n, claimers[1].n);
    assert_int_equal(n, MANY);
    qsort(all, n, sizeof(all[0]), by_text);
    for (size_t i = 1; i < n; i++)
        assert_string_not_equal(all[i - 1], all[i]);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM lease"), MANY);
}

/* ---- lanes of one's own --------------------------------------------------------------------------- */

/* Claimers of sets of types that overlap, in few and in many, while jobs are put back, come late, and are held by somebody who then
 * leaves them.  However they pass each other: what a process has put behind it has nothing in it that can run (here no sweep would
 * find it), and each job succeeds once.  STINT_TEST_THRONG_S: for so many seconds. */
#define THRONG_MOST  3000 /* that wait, every other half second; else few */
#define THRONG_ADD   200
#define THRONG_TYPES 4
#define THRONG_BATCH 500
enum { THRONG_CLAIMERS = 5, THRONG_ADDER = THRONG_CLAIMERS, THRONG_HOLDER, THRONG_ALL };

static struct throng {
    struct st_store *s;
    int which;
    unsigned seed;
    size_t done, busy, sent_away, empty;
    stint_code code;
    stint_error err;
} throng[THRONG_ALL];
static atomic_bool throng_over;
static atomic_int throng_added, throng_ended;

static unsigned throng_dice(struct throng *m, unsigned n)
{
    return (unsigned)rand_r(&m->seed) % n;
}

/* What is in the way is an answer. */
static bool throng_told(struct throng *m, stint_code code, const stint_error *err)
{
    if (in_the_way(code, err)) {
        m->busy++;
        return false;
    }
    if (code && !m->code) {
        m->code = code;
        m->err = *err;
    }
    return !code;
}

static void throng_add(struct throng *m)
{
    const unsigned more =
        st_clock_mono_us() / ST_SEC % 2 ? 6 : 1; /* every other second so many lanes that nobody has a gate of each */
    struct st_new_job j[THRONG_ADD];
    char type[THRONG_ADD][4];
    char id[THRONG_ADD][ST_ID_MAX + 1];
    struct st_enqueued out[THRONG_ADD];
    stint_error err = {0};
    const size_t n = 1 + throng_dice(m, THRONG_ADD);

    if (atomic_load(&throng_added) - atomic_load(&throng_ended) >
        (st_clock_mono_us() / (ST_SEC / 2) % 2 ? THRONG_MOST : 50)) {
        usleep(1000);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        st_id_new(id[i]);
        snprintf(type[i], sizeof(type[i]), "t%c%u", 'a' + throng_dice(m, 4) % 4, throng_dice(m, more) % 10);
        j[i] = (struct st_new_job){.id = S(id[i]),
                                   .type = S(type[i]),
                                   .queue = S(throng_dice(m, 3) ? "p" : "q"),
                                   .payload = S("{}"),
                                   .priority = throng_dice(m, 4) == 0,
                                   .max_attempts = -1,
                                   .timeout_us = -1};
        if (throng_dice(m, 6) == 0)
            j[i].due_us = T0 + throng_dice(m, 100); /* odd lanes */
        else if (throng_dice(m, 6) == 0)
            j[i].delay_us = throng_dice(m, 20 * ST_MS);
    }
    if (throng_told(m, st_store_enqueue(m->s, 0, j, n, out, &err), &err))
        atomic_fetch_add(&throng_added, (int)n);
}

/* Somebody who is at a few rows for a while, as if to cancel them, and changes his mind; adds a job in a transaction that takes its time;
 * stops a queue. */
static void throng_hold(struct throng *m, PGconn *c)
{
    stint_error err = {0};
    const bool adds = throng_dice(m, 2);

    lab_try(c, "BEGIN");
    if (adds)
        lab_try(c, "SELECT _enqueue_one(0, 'p', 'ta0', 0, _key(gen_random_uuid()::text), 0, 0, NULL, NULL, '{}', NULL, "
                   "0::int2, NULL, 0)");
    else
        lab_try(c, "DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM ready ORDER BY key, random() LIMIT 3"
                   " FOR UPDATE SKIP LOCKED))");
    if (throng_dice(m, 8) == 0)
        throng_told(m, st_store_pause(m->s, 0, S("q"), true, &err), &err);
    usleep(1000 * throng_dice(m, throng_dice(m, 4) ? 10 : 150));
    throng_told(m, st_store_pause(m->s, 0, S("q"), false, &err), &err);
    atomic_fetch_add(&throng_added, adds);
    lab_try(c, adds ? "COMMIT" : "ROLLBACK");
    usleep(1000 * throng_dice(m, 20));
    m->done++;
}

static struct st_claim_req throng_req(struct throng *m, struct st_type_rule *rules, struct st_slice *queues)
{
    static const char *const sets[][THRONG_TYPES] = {{"ta*", "tb*"}, {"tb*", "tc*"}, {"tb0"}, {"t*", "td*"}};
    static const size_t sizes[] = {1, 3, 7, 40, 300, THRONG_BATCH};
    struct st_claim_req req = {.worker = S("w1"), .lease_us = ST_HOUR};
    const unsigned set = m->which == 4 ? throng_dice(m, 4) : (unsigned)m->which;

    for (size_t i = 0; i < THRONG_TYPES && sets[set][i]; i++) {
        rules[i] = (struct st_type_rule){.pattern = S(sets[set][i]), .policy = st_policy_default};
        if (throng_dice(m, 3) == 0)
            rules[i].max = 1 + throng_dice(m, throng_dice(m, 2) ? 10 : 600);
        if (throng_dice(m, 3) == 0)
            rules[i].lease_us = 2 * ST_HOUR;
        req.n_types = i + 1;
    }
    req.types = rules;
    if (throng_dice(m, 3)) {
        queues[0] = S(set & 1 ? "p" : "q");
        queues[1] = S(set & 1 ? "q" : "p");
        req.queues = queues;
        req.n_queues = 2;
    }
    req.n = sizes[throng_dice(m, sizeof(sizes) / sizeof(sizes[0]))];
    req.n_run = throng_dice(m, (unsigned)req.n + 1);
    return req;
}

/* Most of them succeed; the others go back to their lanes, at once or in a moment. */
static void throng_end(struct throng *m, struct st_job **got, size_t n, const struct st_claim_req *req)
{
    struct st_finish f[THRONG_BATCH];
    struct st_job *more[THRONG_BATCH] = {NULL};
    stint_error err = {0};
    size_t n_more = 0;

    for (size_t i = 0; i < n; i++)
        f[i] = (struct st_finish){.id = S(got[i]->id),
                                  .fence = got[i]->fence,
                                  .outcome = throng_dice(m, 4) ? ST_OUT_SUCCEEDED : ST_OUT_RELEASED,
                                  .delay_us = throng_dice(m, 3) ? 0 : 3 * ST_MS,
                                  .started_ago_us = -1,
                                  .exit_code = -1};
    for (size_t left = n; left && !m->code;) {
        bool finished;
        size_t kept = 0;

        if (req && throng_dice(m, 2)) {
            if (throng_told(m, st_store_exchange(m->s, 0, f, left, req, more, &n_more, &finished, &err), &err))
                req = NULL;
        } else {
            finished = throng_told(m, st_store_finish(m->s, 0, f, left, &err), &err);
        }
        for (size_t i = 0; finished && i < left; i++) {
            if (f[i].verdict == STINT_EAGAIN)
                f[kept++] = f[i];
            else if (f[i].verdict)
                throng_told(m, f[i].verdict, &err);
            else if (f[i].outcome == ST_OUT_SUCCEEDED)
                atomic_fetch_add(&throng_ended, 1);
        }
        left = finished ? kept : left;
    }
    for (size_t i = 0; i < n; i++) {
        st_job_free(got[i]);
        got[i] = NULL;
    }
    if (n_more)
        throng_end(m, more, n_more, NULL);
}

/* No more than was asked for, and no more of a type than its rule says. */
static void throng_look(struct throng *m, const struct st_claim_req *req, struct st_job *const *got, size_t n)
{
    size_t taken[THRONG_TYPES] = {0};

    for (size_t i = 0; i < n; i++) {
        const struct st_type_rule *rule =
            st_rule_find(req->types, req->n_types, st_slice_cstr(got[i]->queue), st_slice_cstr(got[i]->type));

        if (!rule || (++taken[rule - req->types] > rule->max && rule->max)) {
            m->code = STINT_EINVAL;
            st_fail(&m->err, STINT_EINVAL, "%zu of type %s", n, got[i]->type);
        }
    }
}

static void throng_claim(struct throng *m)
{
    struct st_type_rule rules[THRONG_TYPES];
    struct st_slice queues[2];
    struct st_claim_req req = throng_req(m, rules, queues);
    struct st_job *got[THRONG_BATCH] = {NULL};
    stint_error err = {0};
    bool crowded = false;
    size_t n = 0;

    if (throng_dice(m, 2))
        req.crowded = &crowded;
    if (throng_dice(m, 4))
        st_pg_of(m->s)->careful_us = 0;
    throng_told(m, st_store_claim(m->s, &req, got, &n, &err), &err);
    throng_look(m, &req, got, n);
    m->sent_away += crowded;
    m->empty += n == 0;
    m->done += n;
    if (!n)
        usleep(500);
    if (n)
        throng_end(m, got, n, &req);
}

static void throng_run(void *arg)
{
    struct throng *m = arg;
    PGconn *c = m->which == THRONG_HOLDER ? lab_try_connect() : NULL;

    while (!atomic_load(&throng_over) && !atomic_load(&lab_over) && !m->code) {
        if (m->which < THRONG_CLAIMERS)
            throng_claim(m);
        else if (m->which == THRONG_ADDER)
            throng_add(m);
        else
            throng_hold(m, c);
    }
    PQfinish(c);
}

/* What lies before the place where this process would begin.  Of a transaction that was set aside it does not know yet. */
static void check_marks(struct throng *m)
{
    struct st_pg_shared *sh = st_pg_of(m->s)->sh;
    struct {
        int64_t lane;
        struct st_pg_pos from;
    } at[256];
    size_t n = 0;

    pthread_mutex_lock(&sh->mu);
    sh->swept_us = st_clock_mono_us();
    for (size_t i = 0; i < sh->n_lanes && n < 256; i++) {
        if (sh->lanes[i]->n_exceptions)
            continue;
        at[n].lane = sh->lanes[i]->id;
        at[n++].from = *st_pg_mark_from(sh->lanes[i]);
    }
    pthread_mutex_unlock(&sh->mu);
    for (size_t i = 0; i < n; i++) {
        char hex[2 * ST_PG_KEY_MAX + 1] = "";
        int64_t behind;

        for (size_t k = 0; k < at[i].from.id.len; k++)
            snprintf(hex + 2 * k, 3, "%02x", (unsigned char)at[i].from.id.p[k]);
        behind =
            lab_intf(watch, "SELECT count(*) FROM ready WHERE lane = %lld AND (key, id) < (%lld, decode('%s', 'hex'))",
                     (long long)at[i].lane, (long long)at[i].from.key, hex);
        if (behind)
            fail_msg("claimer %d has put %lld jobs behind it", m->which, (long long)behind);
    }
}

static void throng_start(struct lab_racer **r)
{
    char process[16];

    memset(throng, 0, sizeof(throng));
    atomic_store(&throng_over, false);
    atomic_store(&throng_added, 0);
    for (int i = 0; i < THRONG_ALL; i++) {
        snprintf(process, sizeof(process), "throng%d",
                 i == THRONG_CLAIMERS - 1 ? i - 1 : i); /* two are of one process */
        throng[i] = (struct throng){.s = lab_store(process), .which = i, .seed = (unsigned)i};
    }
    for (int i = 0; i < THRONG_ALL; i++)
        r[i] = lab_start(throng_run, &throng[i]);
}

static void those_who_claim_different_sets_of_lanes_leave_nothing(void)
{
    const char *const seconds = getenv("STINT_TEST_THRONG_S");
    const int64_t until = st_clock_mono_us() + (seconds ? atoi(seconds) * ST_SEC : 2 * ST_SEC);
    const struct st_claim_req rest = {.worker = S("w1"), .lease_us = ST_HOUR, .n = THRONG_BATCH};
    struct lab_racer *r[THRONG_ALL];
    struct st_job *got[THRONG_BATCH];
    size_t n = 0;

    lab_impatient(watch);
    throng_start(r);
    while (st_clock_mono_us() < until)
        for (int i = 0; i < THRONG_CLAIMERS; i++)
            check_marks(&throng[i]);
    atomic_store(&throng_over, true);
    for (int i = 0; i < THRONG_ALL; i++)
        lab_join(r[i]);
    for (int i = 0; i < THRONG_ALL; i++) {
        print_message("%d: %zu, busy %zu, sent away %zu, nothing %zu\n", i, throng[i].done, throng[i].busy,
                      throng[i].sent_away, throng[i].empty);
        if (throng[i].code)
            fail_msg("%d: %s (%s)", i, throng[i].err.message, throng[i].err.detail);
        if (i < THRONG_CLAIMERS)
            check_marks(&throng[i]);
    }
    for (int dry = 0; dry < 2; dry = n ? 0 : dry + 1) {
        usleep(n ? 0 : 20 * 1000); /* what comes later has come */
        OK(st_store_claim(throng[0].s, &rest, got, &n, NULL));
        st_pg_of(throng[0].s)->careful_us = 0;
        if (n)
            throng_end(&throng[0], got, n, NULL);
        OK(throng[0].code);
    }
    assert_int_equal(lab_int(watch, "SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM lease)"), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ended WHERE state = 4"), atomic_load(&throng_added));
    assert_int_equal(lab_int(watch, "SELECT count(DISTINCT id) FROM ended WHERE state = 4"),
                     atomic_load(&throng_added));
    for (int i = 0; i < THRONG_ALL; i++)
        st_store_close(throng[i].s);
}

/* ---- all at once
 * --------------------------------------------------------------------------------------- */

/* Workers, a reaper, a thief and an operator, at the same few jobs for a while.  Two jobs have each
 * key, so that only one of them can be alive. */
#define STORM_JOBS 16
#define STORM_KEYS 8

static struct stormer {
    struct st_store *s;
    int which;
    unsigned seed;
    size_t done, busy;
    stint_code code;
    stint_error err;
} stormers[5];
static atomic_bool storm_over;
static pthread_mutex_t storm_mutex = PTHREAD_MUTEX_INITIALIZER; /* of the ids: the operator adds new jobs */

/* Busy is an answer; a deadlock is none. */
static bool told(struct stormer *m, stint_code code, const stint_error *err)
{
    if (in_the_way(code, err) || (code == STINT_EAGAIN && strcmp(err->detail, "40001") == 0)) {
        m->busy++;
        return false;
    }
    if (code && !m->code) {
        m->code = code;
        m->err = *err;
    }
    return !code;
}

static unsigned dice(struct stormer *m, unsigned n)
{
    return (unsigned)rand_r(&m->seed) % n;
}

static void storm_end(struct stormer *m, const struct st_claim_req *req, struct st_job **got, size_t n)
{
    struct st_finish f[6];
    struct st_renew r[6];
    struct st_job *more[6] = {NULL};
    stint_error err = {0};
    size_t n_more = 0;
    bool finished;

    for (size_t i = 0; i < n; i++) {
        const size_t k = n - 1 - i; /* in the other order than a claim has them */

        f[i] = (struct st_finish){.id = S(got[k]->id),
                                  .fence = got[k]->fence,
                                  .outcome = (enum st_outcome)dice(m, 5),
                                  .started_ago_us = -1,
                                  .exit_code = -1};
        r[i] = (struct st_renew){.id = f[i].id, .fence = f[i].fence, .lease_us = 5 * ST_MS, .started_ago_us = -1};
    }
    if (dice(m, 2))
        told(m, st_store_renew(m->s, 0, r, n, &err), &err);
    if (dice(m, 4) == 0)
        told(m, st_store_exchange(m->s, 0, f, n, req, more, &n_more, &finished, &err), &err);
    else if (dice(m, 4))
        told(m, st_store_finish(m->s, 0, f, n, &err), &err);
    for (size_t i = 0; i < n_more; i++)
        st_job_free(more[i]); /* forgotten: they are given back, or reaped */
}

static void storm_work(struct stormer *m)
{
    const struct st_slice me = S(m->which ? "w1" : "w0");
    const struct st_claim_req req = {.worker = me, .lease_us = 5 * ST_MS, .n = 6, .n_run = dice(m, 7)};
    struct st_job *got[6] = {NULL};
    stint_error err = {0};
    size_t n = 0, given;

    told(m, st_store_claim(m->s, &req, got, &n, &err), &err);
    if (n)
        storm_end(m, &req, got, n);
    for (size_t i = 0; i < n; i++)
        st_job_free(got[i]);
    m->done += n;
    if (dice(m, 8) == 0)
        told(m, st_store_disown(m->s, 0, me, NULL, 0, &given, &err), &err);
}

/* A job whose key may be held; then it is not added. */
static void storm_add(struct stormer *m, size_t at)
{
    char id[ST_ID_MAX + 1], key[16];
    struct st_new_job j = {.type = S("t"),
                           .queue = S("q"),
                           .payload = S("{}"),
                           .max_attempts = -1,
                           .timeout_us = -1,
                           .unique = ST_UNIQUE_ACTIVE};
    struct st_enqueued out;
    stint_error err = {0};

    st_id_new(id);
    snprintf(key, sizeof(key), "k%zu", at % STORM_KEYS);
    j.id = S(id);
    j.key = S(key);
    if (!told(m, st_store_enqueue(m->s, 0, &j, 1, &out, &err), &err) || out.duplicate)
        return;
    pthread_mutex_lock(&storm_mutex);
    memcpy(ids[at], id, sizeof(id));
    pthread_mutex_unlock(&storm_mutex);
}

static void storm_steer(struct stormer *m)
{
    const size_t at = dice(m, STORM_JOBS - 3);
    struct st_slice some[4];
    stint_code verdicts[4];
    stint_error err = {0};
    bool asked[4];

    for (size_t i = 0; i < 4; i++)
        some[i] = S(ids[at + i]);
    switch (dice(m, 4)) {
    case 0:
        told(m, st_store_cancel(m->s, 0, some, 4, verdicts, asked, &err), &err);
        break;
    case 1:
        storm_add(m, at);
        break;
    default:
        told(m, st_store_retry(m->s, 0, some, 4, verdicts, &err), &err);
    }
    m->done++;
}

static void storm_take(struct stormer *m)
{
    const struct st_claim_req req = {.worker = S("thief"), .lease_us = 5 * ST_MS};
    char id[ST_ID_MAX + 1];
    struct st_job *got = NULL;
    stint_error err = {0};
    enum st_refusal why;
    stint_code code;

    pthread_mutex_lock(&storm_mutex);
    memcpy(id, ids[dice(m, STORM_JOBS)], sizeof(id));
    pthread_mutex_unlock(&storm_mutex);
    code = st_store_acquire(m->s, S(id), &req, &got, &why, &err);
    m->done++;
    if (code != STINT_ESTATE && code != STINT_ENOTFOUND)
        told(m, code, &err);
    st_job_free(got);
}

static void storm_reap(struct stormer *m)
{
    struct st_reaped out[16];
    stint_error err = {0};
    size_t n = 0;

    if (told(m, st_store_reap(m->s, 0, S("w9"), out, 16, &n, &err), &err))
        m->done += n;
}

static void storm(void *arg)
{
    static void (*const parts[])(struct stormer * m) = {storm_work, storm_work, storm_reap, storm_steer, storm_take};
    struct stormer *m = arg;

    while (!atomic_load(&storm_over) && !atomic_load(&lab_over) && !m->code)
        parts[m->which](m);
}

static void check_keys(void)
{
    assert_int_equal(lab_int(watch,
                             "SELECT count(*) FROM (SELECT id FROM ready WHERE keyed UNION ALL SELECT id FROM lease"
                             " WHERE keyed) x WHERE NOT EXISTS (SELECT FROM ukey k WHERE k.id = x.id AND k.mode = "
                             "1)"),
                     0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ukey k WHERE k.mode = 1 AND NOT EXISTS (SELECT FROM ready r"
                                    " WHERE r.id = k.id) AND NOT EXISTS (SELECT FROM lease l WHERE l.id = k.id)"),
                     0);
    /* the fences of a job are those of its attempts, one after the other, save what was given back
     */
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ended d JOIN ready r USING (id) WHERE d.fence > r.fence"), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ended d JOIN lease l USING (id) WHERE d.fence >= l.fence"),
                     0);
}

static void a_storm_leaves_each_job_in_one_place(void)
{
    struct lab_racer *r[5];
    size_t busy = 0;

    memset(stormers, 0, sizeof(stormers));
    atomic_store(&storm_over, false);
    lab_impatient(watch); /* as they are: shorter than the server takes to find a circle */
    for (int i = 0; i < 5; i++)
        stormers[i] = (struct stormer){.s = lab_store("storm"), .which = i, .seed = (unsigned)i};
    for (size_t i = 0; i < STORM_JOBS; i++) { /* half of them find their key held */
        st_id_new(ids[i]);
        storm_add(&stormers[3], i);
    }
    for (int i = 0; i < 5; i++)
        r[i] = lab_start(storm, &stormers[i]);
    usleep(1500 * 1000);
    atomic_store(&storm_over, true);
    for (int i = 0; i < 5; i++) {
        lab_join(r[i]);
        st_store_close(stormers[i].s);
    }
    for (int i = 0; i < 5; i++) {
        if (stormers[i].code)
            fail_msg("%d: %s (%s)", i, stormers[i].err.message, stormers[i].err.detail);
        busy += stormers[i].busy;
    }
    print_message("claimed %zu and %zu, reaped %zu, asked for by id %zu times, steered %zu times; "
                  "busy %zu times\n",
                  stormers[0].done, stormers[1].done, stormers[2].done, stormers[4].done, stormers[3].done, busy);
    assert_true(stormers[0].done + stormers[1].done > 0);
    check_keys();
}

/* ---- beside other things
 * ----------------------------------------------------------------------------- */

/* What a publication FOR ALL TABLES does to ours: without a replica identity no row can be updated
 * or deleted.  (Only our tables are published: others use this database.) */
static void publish(void)
{
    lab_execf(watch,
              "DO $$ BEGIN EXECUTE (SELECT 'CREATE PUBLICATION %s FOR TABLE ' || "
              "string_agg(c.oid::regclass::text, ', ')"
              " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = "
              "'%s' AND c.relkind IN ('r', 'p')"
              " AND NOT c.relispartition); END $$",
              kit_schema, kit_schema);
}

static void everything_works_in_a_database_that_is_published(void)
{
    const struct st_lead_req lead = {.now_us = LATE, .worker = S("w1"), .term_us = 30 * SEC};
    struct st_prune_req prune = {.now_us = LATE + 10 * ST_DAY, .keep = {1, 1, 1}, .limit = 100};
    struct st_worker_info w = {.id = "w1", .host = "h", .boot_id = "b", .pid = 1, .slots = 1};
    struct st_pruned pruned = {0};
    struct st_lead leads = {0};
    stint_error err = {0};

    hold_jobs(5);
    lab_exec(watch, "SET client_min_messages = error");
    publish();
    assert_int_equal(lab_intf(watch,
                              "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE "
                              "n.nspname = '%s'"
                              " AND c.relkind IN ('r', 'p') AND c.relreplident = 'd'"
                              " AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)",
                              kit_schema),
                     0);
    assert_int_equal(claim_as(us, "w1", T0, jobs + 5, 1), 0);
    now_do(renew, us, 0);
    OK(second.verdict);
    now_do(finish, us, 0);
    OK(second.verdict);
    act_set(&second, us, "w1", 1);
    second.outcome = ST_OUT_FAILED;
    finish(&second);
    OK(second.verdict);
    now_do(retry, us, 1);
    OK(second.verdict);
    now_do(acquire, us, 1);
    OK(second.code);
    now_do(cancel, us, 2);
    OK(second.verdict);
    assert_int_equal(now_reap(LATE), 3);
    OK(st_store_pause(us, T0, S("q"), true, NULL));
    OK(st_store_pause(us, T0, S("q"), false, NULL));
    OK(st_store_worker_beat(us, LATE, &w, NULL));
    OK(st_store_worker_beat(us, LATE + SEC, &w, NULL));
    OK(st_store_lead(us, &lead, &leads, NULL));
    assert_true(leads.leader);
    prune.epoch = leads.epoch;
    prune.now_us = LATE + 2 * SEC;
    if (st_store_prune(us, &prune, &pruned, &err)) /* as the leader */
        fail_msg("prune: %s", err.message);
    st_pruned_clear(&pruned);
    for (int i = 0; i < 20; i++) { /* each time another chore */
        int64_t again_us;

        if (st_store_upkeep(us, &prune, &pruned, &again_us, &err))
            fail_msg("upkeep: %s", err.message);
        st_pruned_clear(&pruned);
    }
    prune.epoch = 0;
    prune.now_us = LATE + 10 * ST_DAY;
    if (st_store_prune(us, &prune, &pruned, &err))
        fail_msg("prune: %s", err.message);
    st_pruned_clear(&pruned);
    OK(st_store_worker_remove(us, LATE, S("w1"), true, 0, 0, NULL));
}

/* Two at once find nothing, and one makes it. */
static struct opener {
    char url[1200];
    struct st_store *s;
    stint_error err;
} openers[2];

static void open_one(void *arg)
{
    struct opener *o = arg;
    const struct st_store_open opt = {.timeout_ms = 30000};

    st_store_open(o->url, &opt, &o->s, &o->err);
}

static void two_who_make_the_schema_make_one(void)
{
    struct lab_racer *r[2];
    PGconn *c = lab_connect();

    memset(openers, 0, sizeof(openers));
    lab_exec(c, "BEGIN");
    lab_execf(c, "SELECT pg_advisory_xact_lock(hashtextextended('stint migrate %s_m', 0))", kit_schema);
    for (int i = 0; i < 2; i++) {
        snprintf(openers[i].url, sizeof(openers[i].url), "%s_m&application_name=maker%d-%s", kit_url, i, kit_schema);
        r[i] = lab_start(open_one, &openers[i]);
    }
    lab_until_waits(r[0], watch, "maker0");
    lab_until_waits(r[1], watch, "maker1");
    lab_exec(c, "COMMIT");
    for (int i = 0; i < 2; i++) {
        lab_join(r[i]);
        if (!openers[i].s)
            fail_msg("%s", openers[i].err.message);
        st_store_close(openers[i].s);
    }
    assert_int_equal(lab_intf(c, "SELECT count(*) - max(version) FROM %s_m.schema_version", kit_schema), 0);
    lab_exec(c, "SET client_min_messages = error");
    lab_execf(c, "DROP SCHEMA %s_m CASCADE; DROP ROLE IF EXISTS %s_m_enqueue, %s_m_worker, %s_m_read", kit_schema,
              kit_schema, kit_schema, kit_schema);
}

/* ---- the program
 * ---------------------------------------------------------------------------------------- */

/* One schema for all of them: making it takes longer than most tests. */
static int open_scene(void **state)
{
    PGconn *c;

    kit_setup(state);
    st_store_close(lab_store("first"));
    c = lab_connect();
    lab_gate_make(c);
    lab_close(c);
    return 0;
}

static int begin(void **state)
{
    (void)state;
    us = lab_store("us");
    them = lab_store("them");
    gated = lab_store("gated");
    gate = lab_connect();
    watch = lab_connect();
    lab_patient(watch);
    return 0;
}

struct race {
    void (*run)(void);
};

/* Whatever has happened, the books agree. */
static void run(void **state)
{
    struct race *r = *state;

    r->run();
    check_sound();
}

static int end(void **state)
{
    PGconn *c;

    (void)state;
    lab_end();
    c = lab_connect();
    lab_execf(c, "SET client_min_messages = error; DROP PUBLICATION IF EXISTS %s", kit_schema);
    lab_exec(c, "DELETE FROM entry; DELETE FROM ended; DELETE FROM ready; DELETE FROM lease; "
                "DELETE FROM grp; DELETE FROM tally;"
                " DELETE FROM ukey");
    lab_close(c);
    forget_jobs();
    crowd_forget(&crowd);
    act_set(&first, NULL, NULL, 0);
    act_set(&second, NULL, NULL, 0);
    st_store_close(us);
    st_store_close(them);
    st_store_close(gated);
    return 0;
}

#define RACE(name)                                                                                                     \
    {                                                                                                                  \
#name, run, begin, end, &(struct race)                                                                         \
        {                                                                                                              \
            name                                                                                                       \
        }                                                                                                              \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RACE(a_keyed_job_that_is_brought_again_while_it_is_added_is_the_same),
        RACE(a_cancel_finds_the_job_that_is_just_being_put_back),
        RACE(a_cancel_of_a_job_that_is_just_ending_is_told_so),
        RACE(a_cancel_of_a_job_that_is_just_being_claimed_asks_its_worker),
        RACE(what_a_cancel_came_before_is_not_put_back),
        RACE(two_cancels_of_a_running_job_ask_once),
        RACE(an_outcome_that_is_committed_while_it_is_repeated_is_not_lost),
        RACE(two_retries_of_a_job_put_it_back_once),
        RACE(an_operator_who_looked_before_the_job_ended_again_changes_nothing),
        RACE(a_job_that_is_just_being_finished_cannot_be_taken),
        RACE(who_finishes_what_is_just_being_taken_has_lost),
        RACE(two_who_acquire_one_job_are_told_apart),
        RACE(a_lease_that_is_just_being_renewed_cannot_be_taken),
        RACE(a_lease_that_is_just_being_taken_is_not_called_renewed),
        RACE(a_lease_whose_taker_came_to_nothing_is_renewed),
        RACE(a_job_that_is_just_being_finished_is_not_reaped),
        RACE(a_reaper_that_looked_before_a_renewal_takes_nothing),
        RACE(who_finishes_what_is_just_being_reaped_has_lost),
        RACE(a_finish_and_a_reaper_do_not_wait_for_each_other),
        RACE(two_reapers_reap_each_job_once),
        RACE(a_finish_repeated_while_the_first_is_under_way_is_told_ok),
        RACE(an_outcome_with_writes_of_its_own_waits_for_a_renewal),
        RACE(an_open_cancel_holds_up_nobody_but_its_job),
        RACE(fence_ok_is_true_until_the_callers_transaction_ends),
        RACE(fence_ok_hinders_neither_its_worker_nor_an_operator),
        RACE(fence_ok_of_a_job_that_is_just_being_taken_is_false),
        RACE(what_a_claim_takes_after_we_asked_is_given_back_later),
        RACE(what_somebody_is_at_is_given_back_later),
        RACE(what_nobody_knows_to_hold_is_reaped),
        RACE(a_group_is_not_tidied_away_from_under_its_jobs),
        RACE(a_job_that_is_just_being_stolen_is_in_one_group),
        RACE(a_waiting_job_that_somebody_is_at_is_taken_later),
        RACE(who_acquires_several_is_held_up_by_none_that_somebody_is_at),
        RACE(who_comes_second_begins_behind_and_leaves_nothing),
        RACE(who_comes_second_to_several_lanes_leaves_nothing),
        RACE(a_claim_reads_jobs_of_every_age),
        RACE(a_claim_finds_entries_that_are_elsewhere),
        RACE(a_claim_that_did_not_know_of_a_lane_keeps_to_the_limits),
        RACE(who_comes_into_a_crowd_is_sent_away),
        RACE(who_is_next_waits_for_its_turn),
        RACE(who_is_next_waits_for_what_is_old_too),
        RACE(who_finds_a_queue_empty_goes_on_to_the_next),
        RACE(who_has_taken_something_does_not_wait_with_it),
        RACE(who_has_taken_a_few_does_not_wait_with_them),
        RACE(who_loses_a_job_to_a_cancel_takes_another_of_its_type),
        RACE(who_has_waited_long_passes_by),
        RACE(two_who_claim_at_once_get_each_job_once),
        RACE(those_who_claim_different_sets_of_lanes_leave_nothing),
        RACE(a_storm_leaves_each_job_in_one_place),
        RACE(everything_works_in_a_database_that_is_published),
        RACE(two_who_make_the_schema_make_one),
    };

    KIT_NEEDS_SERVER
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_scene, lab_teardown);
}
