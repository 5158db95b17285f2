/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_race.c - two at one job on the PostgreSQL store, in every order that matters.
 *
 * One of them is held in the middle: a session with an open transaction in which it has called a function of the schema.
 * The other goes through the store, in a thread if it has to wait; that it waits is seen in the server's own books.  Then
 * the first commits, and both must have been told the truth.
 */
#include "postgres_lab.h"

#define LEASE (10 * SEC)
#define LATE  (T0 + 11 * SEC) /* a lease of T0 has ended */

enum { IS_PENDING = 1, IS_CLAIMED, IS_RUNNING, IS_SUCCEEDED, IS_FAILED, IS_CANCELLED };

/* ---- the scene -------------------------------------------------------------------------------- */

static struct st_store *us;            /* worker w1 */
static struct st_store *them;          /* another process */
static PGconn *held, *watch;           /* in the middle of something; looks on */
static char ids[16][ST_ID_MAX + 1];
static struct st_job *jobs[16];
static size_t n_jobs;

static const char *add(void)
{
    struct st_new_job j = {
        .type = S("t"), .queue = S("q"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
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

/* n jobs, running in our hands since T0. */
static void scene(size_t n)
{
    n_jobs = 0;
    memset(jobs, 0, sizeof(jobs));
    us = lab_store("us");
    them = lab_store("them");
    held = lab_connect();
    watch = lab_connect();
    lab_patient(held);
    for (size_t i = 0; i < n; i++)
        add();
    if (n)
        assert_int_equal(claim_as(us, "w1", T0, jobs, n), n);
    for (size_t i = 0; i < n; i++) /* in the order of the ids */
        assert_string_equal(jobs[i]->id, ids[i]);
}

/* Whatever has happened, each job is in one place, and the books agree. */
static void check_sound(void)
{
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready JOIN lease USING (id)"), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM lease l WHERE NOT EXISTS (SELECT FROM grp g WHERE g.gid = l.gid"
                                    " AND l.id = ANY (g.ids))"),
                     0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM entry e WHERE NOT EXISTS (SELECT FROM ready r WHERE r.id = e.id)"
                                    " AND NOT EXISTS (SELECT FROM lease l WHERE l.id = e.id) AND coalesce((SELECT d.state"
                                    " FROM ended d WHERE d.id = e.id ORDER BY d.fence DESC, d.part DESC LIMIT 1), 0) < 4"),
                     0);
    assert_int_equal(lab_int(watch, "SELECT coalesce(sum(waiting), 0) - (SELECT count(*) FROM ready) FROM tally"), 0);
    assert_int_equal(lab_int(watch, "SELECT coalesce(sum(succeeded + failed + cancelled), 0) - (SELECT count(*) FROM entry)"
                                    " + (SELECT count(*) FROM ready) + (SELECT count(*) FROM lease) FROM tally"),
                     0);
}

static void scene_end(void)
{
    check_sound();
    for (size_t i = 0; i < n_jobs; i++)
        st_job_free(jobs[i]);
    st_store_close(us);
    st_store_close(them);
}

/* Clears it for another round. */
static void scene_again(size_t n)
{
    scene_end();
    lab_close(held);
    lab_close(watch);
    scene(n);
}

static int state_of(size_t i)
{
    return (int)lab_intf(watch, "SELECT coalesce(state, 0) FROM _look(_key('%s'))", ids[i]);
}

static int64_t fence_of(size_t i)
{
    return lab_intf(watch, "SELECT fence FROM _look(_key('%s'))", ids[i]);
}

static int64_t until_of(size_t i)
{
    return lab_intf(watch, "SELECT until FROM lease WHERE id = _key('%s')", ids[i]);
}

/* ---- what is held in the middle ---------------------------------------------------------------- */

/* guard: as the reaper does it, or "NULL".  How many it settled. */
static int64_t settle_in(PGconn *c, size_t i, int outcome, const char *guard)
{
    return lab_intf(c,
                    "SELECT count(*) FROM _settle(%lld, %s, ARRAY[_key('%s')], ARRAY[%lld::int8], ARRAY[%d::int2],"
                    " ARRAY[0::int8], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
                    (long long)LATE, guard, ids[i], (long long)jobs[i]->fence, outcome);
}

static void begin_settle(size_t i, int outcome)
{
    lab_exec(held, "BEGIN");
    assert_int_equal(settle_in(held, i, outcome, "NULL"), 1);
}

static void begin_reap(size_t i)
{
    lab_exec(held, "BEGIN");
    assert_int_equal(settle_in(held, i, 5, "9e15::int8"), 1);
}

static void begin_cancel(size_t i)
{
    lab_exec(held, "BEGIN");
    lab_execf(held, "SELECT * FROM _cancel(0, ARRAY[_key('%s')])", ids[i]);
}

static void begin_steal(size_t i)
{
    lab_exec(held, "BEGIN");
    assert_int_equal(lab_intf(held, "SELECT count(*) FROM _acquire(%lld, 'thief', _key('%s'), %lld, true, 2, %lld, _policy('{}'::text))",
                              (long long)LATE, ids[i], (long long)jobs[i]->fence, (long long)LEASE),
                     1);
}

static void begin_renew(size_t i)
{
    lab_exec(held, "BEGIN");
    lab_execf(held, "SELECT * FROM _renew(%lld, ARRAY[_key('%s')], ARRAY[%lld::int8], ARRAY[%lld::int8], NULL, NULL)",
              (long long)LATE, ids[i], (long long)jobs[i]->fence, (long long)LEASE);
}

static void commit(void)
{
    lab_exec(held, "COMMIT");
}

/* ---- what goes through the store ---------------------------------------------------------------- */

static struct act {
    struct st_store *s;
    size_t job;
    enum st_outcome outcome;
    stint_code code, verdict;
    enum st_state state;
    bool asked;
    enum st_refusal why;
    struct st_job *got;
    stint_error err;
} act;

static void reset(struct st_store *s, size_t job)
{
    st_job_free(act.got);
    memset(&act, 0, sizeof(act));
    act.s = s;
    act.job = job;
}

static struct st_finish fin_of(size_t i, enum st_outcome outcome)
{
    return (struct st_finish){.id = S(ids[i]),
                              .fence = jobs[i]->fence,
                              .outcome = outcome,
                              .started_ago_us = -1,
                              .exit_code = -1};
}

static void do_finish(void *arg)
{
    struct st_finish f = fin_of(act.job, act.outcome);

    (void)arg;
    act.code = st_store_finish(act.s, LATE, &f, 1, &act.err);
    act.verdict = f.verdict;
    act.state = f.state;
}

static void do_cancel(void *arg)
{
    const struct st_slice id = S(ids[act.job]);

    (void)arg;
    act.code = st_store_cancel(act.s, LATE, &id, 1, &act.verdict, &act.asked, &act.err);
}

static void do_retry(void *arg)
{
    const struct st_slice id = S(ids[act.job]);

    (void)arg;
    act.code = st_store_retry(act.s, LATE, &id, 1, &act.verdict, &act.err);
}

static void do_acquire(void *arg)
{
    const struct st_claim_req req = {.now_us = LATE, .worker = S("w2"), .lease_us = LEASE};

    (void)arg;
    act.code = st_store_acquire(act.s, S(ids[act.job]), &req, &act.got, &act.why, &act.err);
}

static void do_renew(void *arg)
{
    struct st_renew r = {
        .id = S(ids[act.job]), .fence = jobs[act.job]->fence, .lease_us = LEASE, .started_ago_us = -1};

    (void)arg;
    act.code = st_store_renew(act.s, LATE, &r, 1, &act.err);
    act.verdict = r.verdict;
}

static size_t reap(struct st_store *s, int64_t now)
{
    struct st_reaped out[16];
    size_t n = 0;

    act.code = st_store_reap(s, now, S("w2"), out, 16, &n, &act.err);
    if (act.code)
        fail_msg("reap: %s", act.err.message);
    return n;
}

/* It waits for what is held; that commits; it comes back. */
static void after_commit(void (*fn)(void *arg))
{
    struct lab_racer *r = lab_start(fn, NULL);

    lab_until_waits(r, watch, held);
    commit();
    lab_join(r);
    if (act.code)
        print_message("told: %s\n", act.err.message);
}

/* ---- cancel -------------------------------------------------------------------------------------- */

/* Else the job that was cancelled runs again. */
static void a_cancel_finds_the_job_that_is_just_being_put_back(void **state)
{
    static const int outcomes[] = {1, 4}; /* retry, released */

    (void)state;
    scene(1);
    for (size_t i = 0; i < 2; i++) {
        begin_settle(0, outcomes[i]);
        reset(them, 0);
        after_commit(do_cancel);
        OK(act.code);
        OK(act.verdict);
        assert_false(act.asked); /* it waited again: there was nobody to ask */
        assert_int_equal(state_of(0), IS_CANCELLED);
        assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready"), 0);
        scene_again(1);
    }
    begin_reap(0);
    reset(them, 0);
    after_commit(do_cancel);
    OK(act.verdict);
    assert_int_equal(state_of(0), IS_CANCELLED);
    scene_end();
}

static void a_cancel_of_a_job_that_is_just_ending_is_told_so(void **state)
{
    (void)state;
    scene(1);
    begin_settle(0, 0);
    reset(them, 0);
    after_commit(do_cancel);
    OK(act.code);
    assert_int_equal(act.verdict, STINT_ESTATE);
    assert_int_equal(state_of(0), IS_SUCCEEDED);
    scene_end();
}

static void what_a_cancel_came_before_is_not_put_back(void **state)
{
    static const struct {
        enum st_outcome outcome;
        int becomes;
    } cases[] = {{ST_OUT_RETRY, IS_CANCELLED},
                 {ST_OUT_RELEASED, IS_CANCELLED},
                 {ST_OUT_SUCCEEDED, IS_SUCCEEDED},
                 {ST_OUT_FAILED, IS_FAILED}};

    (void)state;
    scene(1);
    for (size_t i = 0; i < 4; i++) {
        begin_cancel(0);
        reset(us, 0);
        act.outcome = cases[i].outcome;
        after_commit(do_finish);
        OK(act.code);
        OK(act.verdict);
        assert_int_equal(act.state, cases[i].becomes);
        assert_int_equal(state_of(0), cases[i].becomes);
        scene_again(1);
    }
    begin_cancel(0);
    assert_int_equal(reap(them, LATE), 0); /* somebody is at it */
    commit();
    assert_int_equal(reap(them, LATE), 1);
    assert_int_equal(state_of(0), IS_CANCELLED);
    scene_end();
}

static void two_cancels_of_a_running_job_ask_once(void **state)
{
    (void)state;
    scene(1);
    begin_cancel(0);
    reset(them, 0);
    after_commit(do_cancel);
    OK(act.verdict);
    assert_true(act.asked);
    assert_int_equal(state_of(0), IS_RUNNING);
    scene_end();
}

static void two_retries_of_a_failed_job_put_it_back_once(void **state)
{
    static const enum st_outcome ends[] = {ST_OUT_FAILED, ST_OUT_CANCELLED};

    (void)state;
    scene(1);
    for (size_t i = 0; i < 2; i++) {
        reset(us, 0);
        act.outcome = ends[i];
        do_finish(NULL);
        OK(act.verdict);
        lab_exec(held, "BEGIN");
        assert_int_equal(lab_intf(held, "SELECT verdict FROM _retry(%lld, ARRAY[_key('%s')])", (long long)LATE, ids[0]), 0);
        reset(them, 0);
        after_commit(do_retry);
        OK(act.code);
        assert_int_equal(act.verdict, STINT_ESTATE);
        assert_int_equal(state_of(0), IS_PENDING);
        scene_again(1);
    }
    scene_end();
}

/* ---- acquire -------------------------------------------------------------------------------------- */

static void a_job_that_is_just_being_finished_cannot_be_taken(void **state)
{
    (void)state;
    scene(1);
    begin_settle(0, 0);
    reset(them, 0);
    after_commit(do_acquire);
    assert_int_equal(act.code, STINT_ESTATE);
    assert_int_equal(act.why, ST_REFUSED_ENDED);
    assert_null(act.got);
    scene_again(1);
    begin_settle(0, 1); /* for another try: then it is there to be taken */
    reset(them, 0);
    after_commit(do_acquire);
    OK(act.code);
    assert_int_equal(act.got->fence, jobs[0]->fence + 1);
    assert_int_equal(state_of(0), IS_RUNNING);
    scene_end();
}

static void who_finishes_what_is_just_being_taken_has_lost(void **state)
{
    (void)state;
    scene(1);
    begin_steal(0);
    reset(us, 0);
    after_commit(do_finish);
    OK(act.code);
    assert_int_equal(act.verdict, STINT_ELOST);
    assert_int_equal(state_of(0), IS_RUNNING);
    assert_int_equal(fence_of(0), jobs[0]->fence + 1);
    scene_end();
}

static void two_who_acquire_one_job_are_told_apart(void **state)
{
    (void)state;
    scene(1);
    begin_steal(0);
    reset(them, 0);
    after_commit(do_acquire);
    assert_int_equal(act.code, STINT_ESTATE);
    assert_int_equal(act.why, ST_REFUSED_HELD);
    assert_int_equal(fence_of(0), jobs[0]->fence + 1);
    scene_end();
}

/* ---- renew ---------------------------------------------------------------------------------------- */

static void a_lease_that_is_just_being_renewed_cannot_be_taken(void **state)
{
    (void)state;
    scene(1);
    begin_renew(0);
    assert_int_equal(reap(them, LATE), 0);
    reset(them, 0);
    after_commit(do_acquire);
    assert_int_equal(act.code, STINT_ESTATE);
    assert_int_equal(act.why, ST_REFUSED_HELD);
    assert_int_equal(reap(them, LATE), 0);
    assert_int_equal(fence_of(0), jobs[0]->fence);
    assert_int_equal(until_of(0), LATE + LEASE);
    scene_end();
}

/* "renewed" would be a lie, and "lost" not sure yet. */
static void a_lease_that_is_just_being_taken_is_not_called_renewed(void **state)
{
    static void (*const takers[])(size_t i) = {begin_steal, begin_reap};

    (void)state;
    scene(1);
    for (size_t i = 0; i < 2; i++) {
        takers[i](0);
        reset(us, 0);
        do_renew(NULL);
        OK(act.code);
        assert_int_equal(act.verdict, STINT_EAGAIN);
        commit();
        do_renew(NULL);
        OK(act.code);
        assert_int_equal(act.verdict, STINT_ELOST);
        scene_again(1);
    }
    begin_steal(0); /* and if it comes to nothing it goes on */
    lab_exec(held, "ROLLBACK");
    reset(us, 0);
    do_renew(NULL);
    OK(act.verdict);
    assert_int_equal(until_of(0), LATE + LEASE);
    scene_end();
}

/* ---- reap ----------------------------------------------------------------------------------------- */

static void a_job_that_is_just_being_finished_is_not_reaped(void **state)
{
    (void)state;
    scene(1);
    begin_settle(0, 0);
    assert_int_equal(reap(them, LATE), 0); /* and does not wait */
    commit();
    assert_int_equal(reap(them, LATE), 0);
    assert_int_equal(state_of(0), IS_SUCCEEDED);
    scene_end();
}

static void who_finishes_what_is_just_being_reaped_has_lost(void **state)
{
    (void)state;
    scene(1);
    begin_reap(0);
    reset(us, 0);
    after_commit(do_finish);
    OK(act.code);
    assert_int_equal(act.verdict, STINT_ELOST);
    assert_int_equal(state_of(0), IS_PENDING);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ended"), 1);
    scene_end();
}

static void do_finish_in_held(void *arg)
{
    (void)arg; /* the second half of a batch; how many it settled */
    act.state = (enum st_state)settle_in(held, 1, 0, "NULL");
}

/* A finish of two jobs and a reaper that is at both, in the other order: nobody waits in a circle, each job has one end. */
static void a_finish_and_a_reaper_do_not_wait_for_each_other(void **state)
{
    PGconn *reaper;
    struct lab_racer *r;

    (void)state;
    scene(2);
    reaper = lab_connect();
    begin_settle(0, 0);
    lab_exec(reaper, "BEGIN");
    assert_int_equal(lab_intf(reaper,
                              "SELECT count(*) FROM _settle(%lld, %lld, ARRAY[_key('%s'), _key('%s')], ARRAY[1::int8, 1],"
                              " '{5,5}'::int2[], ARRAY[0::int8, 0], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
                              (long long)LATE, (long long)LATE, ids[1], ids[0]),
                     1); /* the other one it leaves alone */
    r = lab_start(do_finish_in_held, NULL);
    lab_until_waits(r, watch, reaper);
    lab_exec(reaper, "COMMIT");
    lab_join(r);
    assert_int_equal(act.state, 0);
    commit();
    assert_int_equal(state_of(0), IS_SUCCEEDED);
    assert_int_equal(state_of(1), IS_PENDING);
    lab_close(reaper);
    scene_end();
}

static void two_reapers_reap_each_job_once(void **state)
{
    (void)state;
    scene(3);
    begin_reap(1);
    assert_int_equal(reap(them, LATE), 2);
    commit();
    assert_int_equal(reap(them, LATE), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ended"), 3);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready"), 3);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 0);
    scene_end();
}

/* ---- finish --------------------------------------------------------------------------------------- */

/* No answer came to the first, and the server is still at it. */
static void a_finish_repeated_while_the_first_is_under_way_is_told_ok(void **state)
{
    (void)state;
    scene(1);
    for (int outcome = 0; outcome < 3; outcome++) { /* succeeded, retry, failed */
        begin_settle(0, outcome);
        reset(us, 0);
        act.outcome = (enum st_outcome)outcome;
        after_commit(do_finish);
        OK(act.code);
        OK(act.verdict);
        assert_int_equal(act.state, state_of(0));
        assert_int_equal(lab_intf(watch, "SELECT count(*) FROM ended WHERE id = _key('%s')", ids[0]), 1);
        scene_again(1);
    }
    begin_settle(0, 0); /* another outcome is another matter */
    reset(us, 0);
    act.outcome = ST_OUT_FAILED;
    after_commit(do_finish);
    assert_int_equal(act.verdict, STINT_ELOST);
    scene_end();
}

/* An operator's transaction that is open for an hour. */
static void an_open_cancel_holds_up_nobody_but_its_job(void **state)
{
    struct st_renew renew[5];
    struct st_finish two[2], rest[3];
    stint_error err = {0};

    (void)state;
    scene(5);
    lab_exec(held, "ALTER FUNCTION _settle SET lock_timeout = '200ms'"); /* impatient again */
    begin_cancel(2);
    for (size_t i = 0; i < 5; i++)
        renew[i] = (struct st_renew){
            .id = S(ids[i]), .fence = jobs[i]->fence, .lease_us = LEASE, .started_ago_us = -1};
    OK(st_store_renew(us, T0 + 5 * SEC, renew, 5, NULL));
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(renew[i].verdict, i == 2 ? STINT_EAGAIN : STINT_OK);
        assert_int_equal(until_of(i), T0 + LEASE + (i == 2 ? 0 : 5 * SEC));
    }
    two[0] = fin_of(1, ST_OUT_SUCCEEDED);
    two[1] = fin_of(2, ST_OUT_SUCCEEDED);
    assert_int_equal(st_store_finish(us, T0 + 6 * SEC, two, 2, &err), STINT_EAGAIN); /* nothing has changed */
    assert_string_equal(err.detail, "55P03");
    assert_int_equal(state_of(1), IS_RUNNING);
    assert_int_equal(state_of(2), IS_RUNNING);
    rest[0] = fin_of(0, ST_OUT_SUCCEEDED);
    rest[1] = fin_of(3, ST_OUT_FAILED);
    rest[2] = fin_of(4, ST_OUT_RETRY);
    OK(st_store_finish(us, T0 + 6 * SEC, rest, 3, NULL));
    for (size_t i = 0; i < 3; i++)
        OK(rest[i].verdict);
    commit();
    OK(st_store_finish(us, T0 + 7 * SEC, two, 2, NULL)); /* again, as it was */
    OK(two[0].verdict);
    OK(two[1].verdict);
    assert_int_equal(state_of(1), IS_SUCCEEDED);
    assert_int_equal(state_of(2), IS_SUCCEEDED);
    assert_int_equal(state_of(3), IS_FAILED);
    assert_int_equal(state_of(4), IS_PENDING);
    scene_end();
}

/* ---- fence_ok -------------------------------------------------------------------------------------- */

static void fence_ok_is_true_until_the_callers_transaction_ends(void **state)
{
    (void)state;
    scene(1);
    lab_exec(held, "BEGIN");
    assert_int_equal(lab_intf(held, "SELECT fence_ok('%s', %lld)", ids[0], (long long)jobs[0]->fence), 1);
    assert_int_equal(lab_intf(held, "SELECT fence_ok('%s', %lld)", ids[0], (long long)jobs[0]->fence + 1), 0);
    assert_int_equal(reap(them, LATE), 0); /* though it has expired */
    reset(us, 0);
    do_renew(NULL); /* nor does it hinder its owner, */
    OK(act.verdict);
    assert_int_equal(until_of(0), LATE + LEASE);
    reset(them, 0);
    do_cancel(NULL); /* nor an operator */
    OK(act.verdict);
    assert_true(act.asked);
    commit();
    assert_int_equal(reap(them, LATE + LEASE), 1);
    assert_int_equal(lab_intf(held, "SELECT fence_ok('%s', %lld)", ids[0], (long long)jobs[0]->fence), 0);
    scene_again(1);
    lab_exec(held, "BEGIN");
    assert_int_equal(lab_intf(held, "SELECT fence_ok('%s', %lld)", ids[0], (long long)jobs[0]->fence), 1);
    reset(them, 0);
    after_commit(do_acquire); /* takes it when the caller is done, not before */
    OK(act.code);
    assert_int_equal(act.got->fence, jobs[0]->fence + 1);
    scene_end();
}

/* Whoever asks while it is being taken waits, and is told no. */
static void do_fence_ok(void *arg)
{
    PGconn *c = arg;
    char sql[256];
    PGresult *r;

    snprintf(sql, sizeof(sql), "SELECT fence_ok('%s', %lld)", ids[0], (long long)jobs[0]->fence);
    r = PQexec(c, sql);
    act.asked = PQntuples(r) == 1 && strcmp(PQgetvalue(r, 0, 0), "t") == 0;
    act.code = PQresultStatus(r) == PGRES_TUPLES_OK ? STINT_OK : STINT_ESTORE;
    PQclear(r);
}

static void fence_ok_of_a_job_that_is_just_being_taken_is_false(void **state)
{
    PGconn *asks;
    struct lab_racer *r;

    (void)state;
    scene(1);
    asks = lab_connect();
    begin_steal(0);
    reset(them, 0);
    r = lab_start(do_fence_ok, asks);
    lab_until_waits(r, watch, held);
    commit();
    lab_join(r);
    OK(act.code);
    assert_false(act.asked);
    lab_close(asks);
    scene_end();
}

/* ---- claim ----------------------------------------------------------------------------------------- */

/* As worker w1, in the session; how many it took. */
static int64_t claim_in(PGconn *c, int n)
{
    return lab_intf(c,
                    "SELECT count(*) FROM _claim(%lld, 'w1', %d, %d, ARRAY[_lane('q', 't', 0), _lane('q', 't', 0) + 1],"
                    " ARRAY[1, 1], ARRAY[1, 1], ARRAY[0::int8, 0], ARRAY[''::bytea, ''], ARRAY[%lld::int8],"
                    " ARRAY[_policy('{}'::text)], ARRAY[1000])",
                    (long long)T0, n, n, (long long)LEASE);
}

/* A claim whose answer was lost: its server may still be at it when we ask what we hold. */
static void what_a_claim_takes_after_we_asked_is_given_back_later(void **state)
{
    size_t given = 9;

    (void)state;
    scene(0);
    add();
    add();
    lab_exec(held, "BEGIN");
    assert_int_equal(claim_in(held, 5), 2);
    OK(st_store_disown(us, T0, S("w1"), NULL, 0, &given, NULL));
    assert_int_equal(given, 0);
    assert_int_equal(claim_as(them, "w2", T0, jobs, 5), 0);
    commit();
    assert_int_equal(reap(them, T0 + SEC), 0);
    OK(st_store_disown(us, T0, S("w1"), NULL, 0, &given, NULL)); /* a worker asks again now and then */
    assert_int_equal(given, 2);
    assert_int_equal(state_of(0), IS_PENDING);
    assert_int_equal(lab_int(watch, "SELECT max(attempt) FROM ready"), 0);
    scene_end();
}

/* And without that, when its lease has ended: there is no group to renew that would keep it. */
static void what_nobody_knows_to_hold_is_reaped(void **state)
{
    struct st_renew r;

    (void)state;
    scene(2);
    r = (struct st_renew){.id = S(ids[0]), .fence = jobs[0]->fence, .lease_us = LEASE, .started_ago_us = -1};
    OK(st_store_renew(us, T0 + 5 * SEC, &r, 1, NULL));
    OK(r.verdict);
    assert_int_equal(reap(them, LATE), 1);
    assert_int_equal(state_of(0), IS_RUNNING);
    assert_int_equal(state_of(1), IS_PENDING);
    scene_end();
}

/* Groups are thrown away when nothing of them is held: not one that is just being filled, nor one whose jobs go on. */
static void a_group_is_not_tidied_away_from_under_its_jobs(void **state)
{
    (void)state;
    scene(0);
    add();
    add();
    lab_exec(held, "BEGIN");
    assert_int_equal(claim_in(held, 5), 2);
    assert_int_equal(reap(them, LATE), 0);
    commit();
    check_sound();
    for (size_t i = 0; i < 2; i++) {
        jobs[i] = st_job_new(S(ids[i]), S("t"), S("q"), S("{}"), ST_NONE);
        jobs[i]->fence = 1;
    }
    begin_renew(0);
    assert_int_equal(reap(them, LATE), 1); /* the other one */
    commit();
    check_sound();
    assert_int_equal(reap(them, LATE + 5 * SEC), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 1);
    assert_int_equal(reap(them, LATE + LEASE), 1);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 0);
    scene_again(2); /* one of them is stolen out of its group, which is then looked at */
    begin_steal(0);
    assert_int_equal(reap(them, LATE), 1);
    commit();
    check_sound();
    assert_int_equal(reap(them, LATE + 5 * SEC), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM grp"), 1);
    assert_int_equal(reap(them, LATE + LEASE), 1);
    scene_end();
}

/* A job that waits and that somebody has locked is skipped, and taken when it is free: by its real clock, with marks. */
static void a_waiting_job_that_is_locked_is_taken_later(void **state)
{
    struct st_job *got[4] = {NULL};

    (void)state;
    scene(0);
    for (int i = 0; i < 3; i++)
        add();
    lab_exec(held, "UPDATE ready SET lane = _lane('q', 't', 0)"); /* as if added by the clock */
    lab_exec(held, "BEGIN");
    lab_execf(held, "SELECT FROM ready WHERE id = _key('%s') FOR UPDATE", ids[0]);
    assert_int_equal(claim_as(us, "w1", 0, got, 1), 1);
    assert_string_equal(got[0]->id, ids[1]);
    assert_int_equal(claim_as(us, "w1", 0, got + 1, 1), 1);
    assert_string_equal(got[1]->id, ids[2]);
    for (int i = 0; i < 3; i++)
        assert_int_equal(claim_as(us, "w1", 0, got + 2, 1), 0);
    lab_exec(held, "ROLLBACK");
    assert_int_equal(claim_as(us, "w1", 0, got + 2, 1), 1);
    assert_string_equal(got[2]->id, ids[0]);
    for (size_t i = 0; i < 3; i++)
        jobs[i] = got[i];
    scene_end();
}

#define MANY 600

static struct claimer {
    struct st_store *s;
    char worker[8];
    char ids[MANY][ST_ID_MAX + 1];
    size_t n;
    stint_code code;
} claimers[2];

static void claim_all(void *arg)
{
    struct claimer *c = arg;
    const struct st_claim_req req = {.worker = S(c->worker), .lease_us = ST_HOUR, .n = 7, .n_run = 7};
    struct st_job *got[7];
    size_t n = 1;

    while (n > 0 && !c->code && !atomic_load(&lab_over)) {
        n = 0;
        c->code = st_store_claim(c->s, &req, got, &n, NULL);
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

static void two_who_claim_at_once_get_each_job_once(void **state)
{
    static char all[2 * MANY][ST_ID_MAX + 1];
    struct lab_racer *r[2];
    size_t n = 0;

    (void)state;
    scene(0);
    lab_execf(held,
              "SELECT _enqueue_one(0, 'q', 't' || i %% 3, 0, _key(gen_random_uuid()::text), 0, 0, NULL, NULL, '{}', NULL,"
              " 0::int2, NULL, 0) FROM generate_series(1, %d) i",
              MANY);
    memset(claimers, 0, sizeof(claimers));
    for (int i = 0; i < 2; i++) {
        claimers[i].s = i ? them : us;
        snprintf(claimers[i].worker, sizeof(claimers[i].worker), "w%d", i + 1);
        r[i] = lab_start(claim_all, &claimers[i]);
    }
    for (int i = 0; i < 2; i++) {
        lab_join(r[i]);
        OK(claimers[i].code);
        memcpy(all[n], claimers[i].ids, claimers[i].n * sizeof(all[0]));
        n += claimers[i].n;
    }
    print_message("%zu and %zu\n", claimers[0].n, claimers[1].n);
    for (int i = 0; i < 2; i++) /* one may have come to the end while the other's last were locked */
        n += claim_as(i ? them : us, "w3", 0, jobs, 16);
    assert_int_equal(n, MANY);
    qsort(all, claimers[0].n + claimers[1].n, sizeof(all[0]), by_text);
    for (size_t i = 1; i < claimers[0].n + claimers[1].n; i++)
        assert_string_not_equal(all[i - 1], all[i]);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM ready"), 0);
    assert_int_equal(lab_int(watch, "SELECT count(*) FROM lease"), MANY);
    scene_end();
}

/* ---- beside other things ----------------------------------------------------------------------------- */

/* What a publication FOR ALL TABLES does to ours: without a replica identity no row can be updated or deleted.  (Only our
 * tables are published: others use this database.) */
static void publish(void)
{
    lab_execf(held,
              "DO $$ BEGIN EXECUTE (SELECT 'CREATE PUBLICATION %s FOR TABLE ' || string_agg(c.oid::regclass::text, ', ')"
              " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = '%s' AND c.relkind IN ('r', 'p')"
              " AND NOT c.relispartition); END $$",
              kit_schema, kit_schema);
}

static void everything_works_in_a_database_that_is_published(void **state)
{
    const struct st_lead_req lead = {.now_us = LATE, .worker = S("w1"), .term_us = 30 * SEC};
    struct st_prune_req prune = {.now_us = LATE + 10 * ST_DAY, .keep = {1, 1, 1}, .limit = 100};
    struct st_worker_info w = {.id = "w1", .host = "h", .boot_id = "b", .pid = 1, .slots = 1};
    struct st_pruned pruned = {0};
    struct st_lead leads = {0};
    stint_error err = {0};

    (void)state;
    scene(5);
    lab_exec(held, "SET client_min_messages = error");
    publish();
    assert_int_equal(claim_as(us, "w1", T0, jobs + 5, 1), 0);
    reset(us, 0);
    do_renew(NULL);
    OK(act.verdict);
    do_finish(NULL);
    OK(act.verdict);
    reset(us, 1);
    act.outcome = ST_OUT_FAILED;
    do_finish(NULL);
    OK(act.verdict);
    do_retry(NULL);
    OK(act.verdict);
    do_acquire(NULL);
    OK(act.code);
    reset(us, 2);
    do_cancel(NULL);
    OK(act.verdict);
    assert_int_equal(reap(them, LATE), 3);
    reset(them, 3);
    do_acquire(NULL);
    OK(st_store_pause(us, T0, S("q"), true, NULL));
    OK(st_store_pause(us, T0, S("q"), false, NULL));
    OK(st_store_worker_beat(us, LATE, &w, NULL));
    OK(st_store_worker_beat(us, LATE + SEC, &w, NULL));
    OK(st_store_lead(us, &lead, &leads, NULL));
    assert_true(leads.leader);
    prune.epoch = leads.epoch;
    prune.now_us = LATE + 2 * SEC;
    if (st_store_prune(us, &prune, &pruned, &err)) /* as the leader: also adds up the counts */
        fail_msg("prune: %s", err.message);
    st_pruned_clear(&pruned);
    prune.epoch = 0;
    prune.now_us = LATE + 10 * ST_DAY;
    if (st_store_prune(us, &prune, &pruned, &err))
        fail_msg("prune: %s", err.message);
    st_pruned_clear(&pruned);
    OK(st_store_worker_remove(us, LATE, S("w1"), true, 0, 0, NULL));
    lab_execf(held, "DROP PUBLICATION %s", kit_schema);
    scene_end();
}

/* Two at once find nothing, and one makes it. */
static struct opener {
    char url[1200];
    struct st_pg *s;
    stint_error err;
} openers[2];

static void open_one(void *arg)
{
    struct opener *o = arg;
    struct st_store_open opt = {.timeout_ms = 30000};
    struct st_store *s = NULL;

    if (!st_store_open(o->url, &opt, &s, &o->err))
        o->s = st_pg_of(s);
}

static void two_who_make_the_schema_make_one(void **state)
{
    struct lab_racer *r[2];
    PGconn *c = lab_connect(), *look = lab_connect();

    (void)state;
    memset(openers, 0, sizeof(openers));
    lab_exec(c, "BEGIN");
    lab_execf(c, "SELECT pg_advisory_xact_lock(hashtextextended('stint migrate %s', 0))", kit_schema);
    for (int i = 0; i < 2; i++) {
        snprintf(openers[i].url, sizeof(openers[i].url), "%s&application_name=p%d", kit_url, i);
        r[i] = lab_start(open_one, &openers[i]);
    }
    while (lab_intf(look, "SELECT count(*) FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid))", PQbackendPID(c)) < 2)
        assert_false(atomic_load(&r[0]->done) || atomic_load(&r[1]->done));
    lab_exec(c, "COMMIT");
    for (int i = 0; i < 2; i++) {
        lab_join(r[i]);
        if (!openers[i].s)
            fail_msg("%s", openers[i].err.message);
        st_store_close(&openers[i].s->base);
    }
    assert_int_equal(lab_int(look, "SELECT count(*) - max(version) FROM schema_version"), 0);
    lab_close(c);
    lab_close(look);
}

static int end_test(void **state)
{
    st_job_free(act.got);
    act.got = NULL;
    return lab_teardown(state);
}

#define RACE(name) cmocka_unit_test_setup_teardown(name, lab_setup, end_test)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RACE(a_cancel_finds_the_job_that_is_just_being_put_back),
        RACE(a_cancel_of_a_job_that_is_just_ending_is_told_so),
        RACE(what_a_cancel_came_before_is_not_put_back),
        RACE(two_cancels_of_a_running_job_ask_once),
        RACE(two_retries_of_a_failed_job_put_it_back_once),
        RACE(a_job_that_is_just_being_finished_cannot_be_taken),
        RACE(who_finishes_what_is_just_being_taken_has_lost),
        RACE(two_who_acquire_one_job_are_told_apart),
        RACE(a_lease_that_is_just_being_renewed_cannot_be_taken),
        RACE(a_lease_that_is_just_being_taken_is_not_called_renewed),
        RACE(a_job_that_is_just_being_finished_is_not_reaped),
        RACE(who_finishes_what_is_just_being_reaped_has_lost),
        RACE(a_finish_and_a_reaper_do_not_wait_for_each_other),
        RACE(two_reapers_reap_each_job_once),
        RACE(a_finish_repeated_while_the_first_is_under_way_is_told_ok),
        RACE(an_open_cancel_holds_up_nobody_but_its_job),
        RACE(fence_ok_is_true_until_the_callers_transaction_ends),
        RACE(fence_ok_of_a_job_that_is_just_being_taken_is_false),
        RACE(what_a_claim_takes_after_we_asked_is_given_back_later),
        RACE(what_nobody_knows_to_hold_is_reaped),
        RACE(a_group_is_not_tidied_away_from_under_its_jobs),
        RACE(a_waiting_job_that_is_locked_is_taken_later),
        RACE(two_who_claim_at_once_get_each_job_once),
        RACE(everything_works_in_a_database_that_is_published),
        RACE(two_who_make_the_schema_make_one),
    };

    KIT_NEEDS_SERVER
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
