/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_ring.c - the leader's housekeeping in a PostgreSQL store: history emptied slot by
 * slot, counts, vacuum.
 *
 * The jobs of these tests were enqueued some twelve days ago, in one slot of the ring.  Nothing
 * waits for the minute's pace of a real leader: what is due next is made due now.
 */
#include "postgres_kit.h"

#include "base/id.h"
#include "store/postgres_care.h"

#define KEEP  ((struct st_retention){7 * ST_DAY, 90 * ST_DAY, 7 * ST_DAY})
#define MANY  30000 /* more than is left to the rows */
#define EPOCH 1

static int64_t then_us; /* when those jobs were enqueued */
static int slot;
static struct st_pruned all; /* what the steps have named */

static struct st_pg *open_here(void)
{
    struct st_store_open opt = {.timeout_ms = 20000};
    struct st_pg *s = kit_open_url(kit_url, &opt);

    if (!s)
        fail_msg("open %s: %s", kit_url, kit_err.message);
    return s;
}

static void lead_as(struct st_pg *s, const char *worker, int64_t epoch)
{
    struct st_lead_req req = {.worker = S(worker), .term_us = 60 * ST_SEC};
    struct st_lead l;

    if (epoch > 1)
        kit_exec(s, "UPDATE {s}.leader SET until = 0");
    OK(st_store_lead(&s->base, &req, &l, NULL));
    assert_int_equal(l.epoch, epoch);
}

/* A leader, and the time of the jobs. */
static struct st_pg *leader(void)
{
    const int64_t nth = st_clock_real_us() / 1000 / ST_PG_SLOT_MS - 8;
    struct st_pg *s = open_here();

    then_us = (nth * ST_PG_SLOT_MS + 3600000) * 1000;
    slot = (int)(nth % ST_PG_SLOTS);
    st_pruned_clear(&all);
    lead_as(s, "a", EPOCH);
    return s;
}

static void done(struct st_pg *s)
{
    st_pruned_clear(&all);
    kit_close(s);
}

static int64_t number(struct st_pg *s, const char *sql)
{
    PGresult *r = NULL;
    int64_t v;

    if (st_pg_exec(s, sql, NULL, false, &r, &kit_err))
        fail_msg("%s: %s", sql, kit_err.message);
    v = atoll(PQgetvalue(r, 0, 0));
    PQclear(r);
    return v;
}

static int64_t in_slot(struct st_pg *s, const char *table)
{
    char sql[96];

    snprintf(sql, sizeof(sql), "SELECT count(*) FROM {s}.%s_%d", table, slot);
    return number(s, sql);
}

/* Succeeded jobs of that time, so many that it pays. */
static void fill(struct st_pg *s)
{
    char sql[1400];

    snprintf(sql, sizeof(sql),
             "INSERT INTO {s}.entry(lane, created, due, slot, umode, id, payload) SELECT "
             "{s}._lane('default', 'bulk', 0), %lld, %lld, %d, 0,"
             " '\\x00'::bytea || substr(int8send(%lld + i), 3, 6) || '\\x7000'::bytea || "
             "int8send(i), convert_to(repeat('x', 300), 'UTF8')"
             " FROM generate_series(1, %d) i;"
             "INSERT INTO {s}.ended(fence, finished, n, slot, part, outcome, state, kind, id, "
             "worker, log)"
             " SELECT 1, %lld + 1, 1, %d, 0, 0, 4, 0, e.id, 'w', CASE WHEN e.seq %% 1000 = 0 THEN "
             "'bulk-log' END FROM {s}.entry_%d e"
             " WHERE length(e.payload) = 300;"
             "INSERT INTO {s}.lane(lane, priority, queue, type) SELECT {s}._lane('default', "
             "'bulk', 0), 0, 'default', 'bulk';"
             "INSERT INTO {s}.tally(lane, waiting, succeeded) VALUES ({s}._lane('default', 'bulk', "
             "0), 0, %d)",
             (long long)then_us, (long long)then_us, slot, (long long)(then_us / 1000), MANY, (long long)then_us, slot,
             slot, MANY);
    kit_exec(s, sql);
}

/* ---- jobs -------------------------------------------------------------------------------------
 */

struct old {
    char id[ST_ID_MAX + 1];
    struct st_job *job; /* while it is held */
};

/* An id of that moment; st_id_new_at would not go back again. */
static void id_at(int64_t us, char id[ST_ID_MAX + 1])
{
    char time[32];

    st_id_new_at(us, id);
    snprintf(time, sizeof(time), "%08llx-%04llx", (unsigned long long)(us / 1000) >> 16,
             (unsigned long long)(us / 1000) & 0xffff);
    memcpy(id, time, 13);
}

static void add(struct st_pg *s, struct old *o, int64_t due_us)
{
    struct st_new_job j = {.type = S("mail"),
                           .queue = S("default"),
                           .payload = S("{\"to\":1}"),
                           .due_us = due_us,
                           .max_attempts = -1,
                           .timeout_us = -1};
    struct st_enqueued out;

    id_at(then_us, o->id);
    o->job = NULL;
    j.id = S(o->id);
    OK(st_store_enqueue(&s->base, then_us, &j, 1, &out, NULL));
}

static void hold(struct st_pg *s, struct old *o, int64_t now_us)
{
    struct st_claim_req req = {.now_us = now_us, .worker = S("w1"), .lease_us = 30 * ST_DAY, .n = 1, .n_run = 1};
    enum st_refusal why;

    OK(st_store_acquire(&s->base, S(o->id), &req, &o->job, &why, NULL));
}

static stint_code end(struct st_pg *s, struct old *o, int64_t now_us, enum st_outcome outcome)
{
    struct st_finish f = {.id = S(o->id),
                          .fence = o->job->fence,
                          .ref = o->job->ref,
                          .outcome = outcome,
                          .exit_code = -1,
                          .kind = outcome == ST_OUT_FAILED ? ST_KIND_APP_ERROR : 0,
                          .started_ago_us = -1,
                          .log = S("old-log"),
                          .result_ref = outcome == ST_OUT_SUCCEEDED ? S("old-result") : ST_NONE};

    OK(st_store_finish(&s->base, now_us, &f, 1, NULL));
    st_job_free(o->job);
    o->job = NULL;
    return f.verdict;
}

static void add_ended(struct st_pg *s, struct old *o, int64_t ended_us, enum st_outcome outcome)
{
    add(s, o, then_us);
    hold(s, o, then_us);
    OK(end(s, o, ended_us, outcome));
}

/* -1 = it is not there. */
static int shown(struct st_pg *s, const struct old *o)
{
    struct st_job_info i;
    int state;

    if (st_store_get(&s->base, 0, S(o->id), &i, NULL))
        return -1;
    state = (int)i.shown;
    st_job_info_clear(&i);
    return state;
}

static void counts_are_right(struct st_pg *s)
{
    assert_int_equal(number(s, "SELECT count(*) FROM (SELECT x.lane FROM (SELECT t.* FROM {s}.tally t UNION ALL "
                               "SELECT c.lane, -c.waiting,"
                               " -c.succeeded, -c.failed, -c.cancelled FROM {s}._counts() c) x GROUP BY x.lane "
                               "HAVING sum(x.waiting) <> 0"
                               " OR sum(x.succeeded) <> 0 OR sum(x.failed) <> 0 OR sum(x.cancelled) <> 0) wrong"),
                     0);
    assert_int_equal(number(s, "SELECT count(*) FROM {s}._strays()"), 0);
}

/* ---- steps ------------------------------------------------------------------------------------
 */

static stint_code step(struct st_pg *s, enum st_pg_chore chore, int64_t epoch)
{
    struct st_prune_req req = {.keep = KEEP, .epoch = epoch, .limit = 1000};
    struct st_pruned out;
    int64_t again_us;
    stint_code code;

    if (!st_pg_care(s, &kit_err)->epoch) { /* the first one learns the epoch */
        OK(st_store_upkeep(&s->base, &req, &out, &again_us, &kit_err));
        assert_true(again_us > 0);
        st_pruned_clear(&out);
    }
    for (int i = 0; i < CHORE_N; i++)
        s->care->at_us[i] = i == (int)chore ? 0 : INT64_MAX;
    code = st_store_upkeep(&s->base, &req, &out, &again_us, &kit_err);
    all.n += out.n;
    for (size_t i = 0; i < out.n_files; i++)
        assert_true(st_pg_pruned_add(&all, S(out.files[i])));
    st_pruned_clear(&out);
    return code;
}

/* Until the ring is in that state. */
static void ring_to(struct st_pg *s, int state)
{
    for (int i = 0; i < 2000; i++) {
        OK(step(s, CHORE_RING, EPOCH));
        if ((int)s->care->ring.state == state)
            return;
        if (s->care->ring.state == RING_WAIT)
            usleep(5000); /* somebody else writes: autovacuum */
    }
    fail_msg("the ring stays at %d", s->care->ring.state);
}

/* Looks through the slot, and empties it. */
static void ring_round(struct st_pg *s)
{
    ring_to(s, RING_EMPTY);
    ring_to(s, RING_REST);
}

static size_t files_named(const char *name)
{
    size_t n = 0;

    for (size_t i = 0; i < all.n_files; i++)
        n += strcmp(all.files[i], name) == 0;
    return n;
}

static PGconn *session(struct st_pg *s, const char *sql)
{
    char *text = st_pg_in_schema(s, sql);
    PGconn *c = PQconnectdb(s->url.conninfo);

    if (sql)
        PQclear(PQexec(c, text));
    assert_int_equal(PQtransactionStatus(c), PQTRANS_INTRANS);
    free(text);
    return c;
}

/* ---- the ring -----------------------------------------------------------------------------------
 */

static void what_is_needed_survives_and_the_rest_is_gone(void **state)
{
    struct st_pg *s = leader();
    struct old waits, held, failed, late, old, cancelled;
    const int64_t now = st_clock_real_us();
    struct st_claim_req req = {.worker = S("w2"), .lease_us = 60 * ST_SEC, .n = 1, .n_run = 1};
    enum st_refusal why;
    stint_code verdict;

    (void)state;
    fill(s);
    add(s, &waits, then_us);
    add(s, &held, then_us);
    hold(s, &held, now);
    add_ended(s, &failed, then_us + ST_SEC, ST_OUT_FAILED);
    add_ended(s, &late, now - ST_DAY, ST_OUT_SUCCEEDED);
    add_ended(s, &old, then_us + ST_SEC, ST_OUT_SUCCEEDED);
    add_ended(s, &cancelled, now - ST_DAY, ST_OUT_CANCELLED);
    assert_int_equal(in_slot(s, "entry"), MANY + 6);
    counts_are_right(s);
    ring_round(s);

    assert_int_equal(in_slot(s, "entry"), 0);
    assert_int_equal(in_slot(s, "ended"), 0);
    assert_int_equal(all.n, MANY + 1);
    assert_int_equal(files_named("bulk-log"), MANY / 1000);
    assert_int_equal(files_named("old-log"), 1);
    assert_int_equal(files_named("old-result"), 1);
    assert_int_equal(shown(s, &old), -1);
    assert_int_equal(shown(s, &waits), ST_SHOW_PENDING);
    assert_int_equal(shown(s, &held), ST_SHOW_RUNNING);
    assert_int_equal(shown(s, &failed), ST_SHOW_FAILED);
    assert_int_equal(shown(s, &late), ST_SHOW_SUCCEEDED);
    assert_int_equal(shown(s, &cancelled), ST_SHOW_CANCELLED);
    counts_are_right(s);

    OK(st_store_acquire(&s->base, S(waits.id), &req, &waits.job, &why, NULL));
    assert_true(st_slice_is(waits.job->payload, "{\"to\":1}"));
    OK(end(s, &waits, 0, ST_OUT_SUCCEEDED));
    OK(end(s, &held, 0, ST_OUT_SUCCEEDED));
    OK(st_store_retry(&s->base, 0, (struct st_slice[]){S(failed.id)}, 1, &verdict, NULL));
    OK(verdict);
    hold(s, &failed, 0);
    OK(end(s, &failed, 0, ST_OUT_SUCCEEDED));
    assert_int_equal(shown(s, &waits), ST_SHOW_SUCCEEDED);
    assert_int_equal(shown(s, &held), ST_SHOW_SUCCEEDED);
    assert_int_equal(shown(s, &failed), ST_SHOW_SUCCEEDED);
    counts_are_right(s);
    done(s);
}

/* A worker's rights are enough. */
static void it_can_be_emptied_by_whoever_does_not_own_it(void **state)
{
    struct st_pg *s = leader();
    struct st_schema v;
    struct old failed;
    char sql[128];

    (void)state;
    if (!kit_pooled()) {
        OK(st_store_schema(&s->base, true, &v, &kit_err)); /* makes the roles */
        fill(s);
        add_ended(s, &failed, then_us + ST_SEC, ST_OUT_FAILED);
        snprintf(sql, sizeof(sql), "SET ROLE \"%s_worker\"", kit_schema);
        kit_exec(s, sql);
        for (int i = 0; i < CHORE_N; i++)
            OK(step(s, (enum st_pg_chore)i, EPOCH));
        ring_to(s, RING_EMPTY);
        ring_to(s, RING_REST);
        assert_int_equal(in_slot(s, "entry") + in_slot(s, "ended"), 0);
        assert_int_equal(shown(s, &failed), ST_SHOW_FAILED);
        counts_are_right(s);
    }
    done(s);
}

static void what_comes_while_it_is_emptied_is_kept(void **state)
{
    struct st_pg *s = leader();
    struct old held, later, fresh;

    (void)state;
    fill(s);
    add(s, &held, then_us);
    hold(s, &held, 0);
    add(s, &later, then_us);
    hold(s, &later, 0);
    ring_to(s, RING_EMPTY);
    OK(end(s, &held, 0, ST_OUT_SUCCEEDED)); /* its entry has moved, its outcome goes to the slot */
    add(s, &fresh, then_us);
    assert_int_equal(in_slot(s, "ended"), MANY + 1);
    ring_to(s, RING_REST);
    assert_int_equal(in_slot(s, "entry") + in_slot(s, "ended"), 0);
    assert_int_equal(all.n, MANY);
    assert_int_equal(shown(s, &held), ST_SHOW_SUCCEEDED);
    assert_int_equal(shown(s, &fresh), ST_SHOW_PENDING);
    counts_are_right(s);

    OK(end(s, &later, 0, ST_OUT_SUCCEEDED)); /* and what ends after that, until the next time round */
    fill(s);
    ring_round(s);
    assert_int_equal(in_slot(s, "entry") + in_slot(s, "ended"), 0);
    assert_int_equal(shown(s, &later), ST_SHOW_SUCCEEDED);
    counts_are_right(s);
    done(s);
}

static void jobs_removed_meanwhile_are_not_counted_twice(void **state)
{
    struct st_pg *s = leader();
    struct st_prune_req req = {.keep = KEEP, .limit = 100};
    struct st_pruned gone;
    struct old old;
    stint_code verdict;

    (void)state;
    fill(s);
    add_ended(s, &old, then_us + ST_SEC, ST_OUT_SUCCEEDED);
    ring_to(s, RING_EMPTY);
    memset(&gone, 0, sizeof(gone));
    OK(st_store_discard(&s->base, (struct st_slice[]){S(old.id)}, 1, &verdict, &gone, NULL));
    OK(verdict);
    st_pruned_clear(&gone);
    ring_to(s, RING_REST); /* it notices, and begins again */
    assert_int_equal(in_slot(s, "entry"), MANY);
    ring_to(s, RING_EMPTY);
    OK(st_store_prune(&s->base, &req, &gone, NULL)); /* an operator, row by row */
    assert_int_equal(gone.n, 100);
    st_pruned_clear(&gone);
    ring_to(s, RING_REST);
    assert_int_equal(in_slot(s, "entry"), MANY - 100);
    ring_round(s);
    assert_int_equal(in_slot(s, "entry"), 0);
    counts_are_right(s);
    done(s);
}

static void a_reader_elsewhere_does_not_disturb(void **state)
{
    struct st_pg *s = leader();
    char sql[128];
    PGconn *reader;

    (void)state;
    fill(s);
    snprintf(sql, sizeof(sql), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {s}.entry_%d",
             (slot + 1) % 16);
    reader = session(s, sql);
    ring_round(s);
    assert_int_equal(in_slot(s, "entry"), 0);
    PQfinish(reader);
    done(s);
}

static void a_reader_of_the_slot_makes_it_give_up_for_now(void **state)
{
    struct st_pg *s = leader();
    struct old o;
    char sql[128];
    PGconn *reader, *locker;
    int64_t began;

    (void)state;
    fill(s);
    ring_to(s, RING_EMPTY);
    snprintf(sql, sizeof(sql), "BEGIN; SELECT count(*) FROM {s}.ended_%d", slot);
    reader = session(s, sql);
    began = st_clock_mono_us();
    OK(step(s, CHORE_RING, EPOCH));
    assert_true(st_clock_mono_us() - began >= 100 * ST_MS);
    assert_true(st_clock_mono_us() - began < 5 * ST_SEC);
    assert_int_equal(s->care->ring.state, RING_EMPTY);
    assert_true(s->care->at_us[CHORE_RING] > st_clock_mono_us() + 30 * ST_SEC);
    assert_int_equal(in_slot(s, "ended"), MANY);
    PQfinish(reader);
    /* even while it has the slot for itself nobody else needs it for an enqueue of now */
    snprintf(sql, sizeof(sql), "BEGIN; LOCK TABLE {s}.entry_%d, {s}.ended_%d IN ACCESS EXCLUSIVE MODE", slot, slot);
    locker = session(s, sql);
    s->base.timeout_ms = 3000;
    then_us = st_clock_real_us();
    add(s, &o, 0);
    PQfinish(locker);
    ring_to(s, RING_REST);
    assert_int_equal(in_slot(s, "ended"), 0);
    counts_are_right(s);
    done(s);
}

static void who_has_written_before_it_began_must_have_ended(void **state)
{
    struct st_pg *s = leader();
    PGconn *writer;

    (void)state;
    fill(s);
    writer = session(s, "BEGIN; SELECT pg_current_xact_id()");
    OK(step(s, CHORE_RING, EPOCH));
    for (int i = 0; i < 3; i++)
        OK(step(s, CHORE_RING, EPOCH));
    assert_int_equal(s->care->ring.state, RING_WAIT);
    PQfinish(writer);
    ring_round(s);
    assert_int_equal(in_slot(s, "entry"), 0);
    done(s);
}

static void a_leader_of_yesterday_changes_nothing(void **state)
{
    struct st_pg *s = leader();
    struct old failed;

    (void)state;
    fill(s);
    add_ended(s, &failed, then_us + ST_SEC, ST_OUT_FAILED);
    ring_to(s, RING_LOOK);
    lead_as(s, "b", 2);
    assert_int_equal(step(s, CHORE_RING, EPOCH), STINT_ELOST);
    assert_int_equal(in_slot(s, "entry"), MANY + 1); /* nothing has moved */
    kit_exec(s, "UPDATE {s}.leader SET epoch = 1");
    ring_to(s, RING_EMPTY);
    kit_exec(s, "UPDATE {s}.leader SET epoch = 2");
    assert_int_equal(step(s, CHORE_RING, EPOCH), STINT_ELOST);
    assert_int_equal(in_slot(s, "entry"), MANY);
    assert_int_equal(all.n, 0);
    kit_exec(s, "UPDATE {s}.leader SET epoch = 1");
    OK(step(s, CHORE_FOLD, EPOCH));
    kit_exec(s, "UPDATE {s}.leader SET epoch = 2");
    assert_int_equal(step(s, CHORE_FOLD, EPOCH), STINT_ELOST);
    counts_are_right(s);
    done(s);
}

static void while_a_leader_writes_nobody_takes_the_lead(void **state)
{
    struct st_pg *s = leader();
    struct st_lead_req req = {.worker = S("b"), .term_us = 60 * ST_SEC};
    struct st_lead l;
    PGconn *old;

    (void)state;
    kit_exec(s, "UPDATE {s}.leader SET until = 0");
    old = session(s, "BEGIN; SELECT {s}._epoch_check(1)"); /* in the middle of a write */
    assert_int_equal(st_store_lead(&s->base, &req, &l, NULL), STINT_EAGAIN);
    PQfinish(old);
    for (int i = 0; i < 100 && st_store_lead(&s->base, &req, &l, NULL); i++)
        usleep(10000); /* until the server has noticed */
    assert_true(l.leader);
    assert_int_equal(l.epoch, 2);
    done(s);
}

static void a_longer_retention_is_heeded_at_once(void **state)
{
    struct st_pg *s = leader();
    struct st_prune_req req = {.keep = {0, ST_DAY, ST_DAY}, .epoch = EPOCH, .limit = 1000};
    struct st_pruned out;
    int64_t again_us;

    (void)state;
    fill(s);
    ring_to(s, RING_EMPTY);
    s->care->at_us[CHORE_RING] = 0;
    OK(st_store_upkeep(&s->base, &req, &out, &again_us, NULL)); /* succeeded: for ever */
    assert_int_equal(s->care->ring.state, RING_REST);
    assert_int_equal(in_slot(s, "entry"), MANY);
    done(s);
}

/* ---- row by row ------------------------------------------------------------------------------ */

static size_t prune(struct st_pg *s, int64_t epoch)
{
    struct st_prune_req req = {.keep = KEEP, .epoch = epoch, .limit = 10000};
    struct st_pruned gone;
    size_t n;

    OK(st_store_prune(&s->base, &req, &gone, NULL));
    n = gone.n;
    st_pruned_clear(&gone);
    return n;
}

static void of_a_long_history_a_leader_prunes_only_what_the_ring_leaves(void **state)
{
    struct st_pg *s = leader();
    struct old failed, old;

    (void)state;
    add_ended(s, &failed, then_us - 90 * ST_DAY, ST_OUT_FAILED);
    add_ended(s, &old, then_us, ST_OUT_SUCCEEDED);
    kit_exec(s, "INSERT INTO {s}.tally(lane, waiting, succeeded) VALUES (42, 0, 100000)");
    assert_int_equal(prune(s, EPOCH), 1);
    assert_int_equal(shown(s, &failed), -1);
    assert_int_equal(shown(s, &old), ST_SHOW_SUCCEEDED);
    kit_exec(s, "DELETE FROM {s}.tally WHERE lane = 42");
    assert_int_equal(prune(s, EPOCH), 1);
    assert_int_equal(shown(s, &old), -1);
    counts_are_right(s);
    done(s);
}

static void a_prune_goes_on_where_it_was_and_misses_nothing(void **state)
{
    struct st_pg *s = leader();
    struct old early;
    size_t n = 0, got;

    (void)state;
    fill(s);
    assert_int_equal(prune(s, 0), 10000);
    add_ended(s, &early, then_us - ST_DAY, ST_OUT_SUCCEEDED); /* behind where it was */
    while ((got = prune(s, 0)))
        n += got;
    assert_int_equal(n, MANY - 10000 + 1);
    assert_int_equal(shown(s, &early), -1);
    counts_are_right(s);
    done(s);
}

/* A retry that has not been committed yet is nobody's to remove. */
/* An id may be brought again at any time, also when its job lies where old ones are kept. */
static void an_old_id_is_found_where_it_is_kept(void **state)
{
    struct st_pg *s = leader();
    struct old o;

    (void)state;
    add(s, &o, then_us);
    kit_exec(s, "UPDATE {s}.entry SET slot = 16");
    {
        const struct st_new_job job = {.id = st_slice_cstr(o.id),
                                       .type = st_slice_cstr("mail"),
                                       .queue = st_slice_cstr("default"),
                                       .payload = st_slice_cstr("{}"),
                                       .max_attempts = -1,
                                       .timeout_us = -1};
        struct st_enqueued out;

        /* as before, or refused if it was another: never a second one */
        st_store_enqueue(&s->base, 0, &job, 1, &out, &kit_err);
    }
    assert_int_equal(number(s, "SELECT count(*) FROM {s}.entry"), 1);
    assert_int_equal(number(s, "SELECT count(*) FROM {s}.ready"), 1);
    done(s);
}

static void a_job_that_is_being_revived_is_not_removed(void **state)
{
    struct st_pg *s = leader();
    struct old failed;
    char sql[256];
    PGconn *c;

    (void)state;
    add_ended(s, &failed, then_us - 90 * ST_DAY, ST_OUT_FAILED);
    snprintf(sql, sizeof(sql), "BEGIN; SELECT * FROM {s}._retry(0, ARRAY[{s}._key('%s')])", failed.id);
    c = session(s, sql);
    assert_int_equal(prune(s, 0), 0);
    PQclear(PQexec(c, "COMMIT"));
    PQfinish(c);
    assert_int_equal(prune(s, 0), 0);
    assert_int_equal(shown(s, &failed), ST_SHOW_PENDING);
    counts_are_right(s);
    done(s);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void counts_are_added_up_and_lanes_made_one(void **state)
{
    struct st_pg *s = leader();

    (void)state;
    kit_exec(s, "INSERT INTO {s}.tally SELECT i % 3, 1, 0, 2, -1 FROM generate_series(1, 3000) i;"
                "INSERT INTO {s}.lane(lane, priority, queue, type) SELECT 2 * (i % 5), 0, 'q' || i "
                "% 5, 't' FROM generate_series(1, 20) i");
    OK(step(s, CHORE_FOLD, EPOCH));
    assert_int_equal(number(s, "SELECT count(*) FROM {s}.tally"), 3);
    assert_int_equal(number(s, "SELECT sum(waiting) * 1000000 + sum(failed) FROM {s}.tally"), 3000006000);
    assert_int_equal(number(s, "SELECT count(*) FROM {s}.lane"), 5);
    assert_int_equal(number(s, "SELECT count(DISTINCT lane) FROM {s}.lane"), 5);
    OK(step(s, CHORE_FOLD, EPOCH)); /* few rows are left as they are */
    done(s);
}

static int64_t dead_rows(struct st_pg *s)
{
    return number(s, "SELECT pg_stat_get_dead_tuples('{s}.tally'::regclass)");
}

static void dead_rows_are_vacuumed_where_it_pays(void **state)
{
    struct st_pg *s = leader();
    PGconn *pin;
    int i, tally = -1;

    (void)state;
    KIT_DIRECT;
    kit_exec(s, "ALTER TABLE {s}.tally SET (autovacuum_enabled = off)");
    pin = session(s, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {s}.lane");
    kit_exec(s, "INSERT INTO {s}.tally(lane, waiting) SELECT i, 1 FROM generate_series(1, 20000) i");
    kit_exec(s, "DELETE FROM {s}.tally");
    st_pg_conn_drop(s); /* a session tells what it has done when it ends, at the latest */
    for (i = 0; dead_rows(s) < 20000 && i < 500; i++)
        usleep(10000);
    OK(step(s, CHORE_VACUUM, EPOCH));
    for (i = 0; i < (int)s->care->n_hot; i++)
        if (strcmp(s->care->hot[i].name, "tally") == 0)
            tally = i;
    assert_true(tally >= 0);
    assert_int_equal(s->care->hot[tally].dead, 20000);
    OK(step(s, CHORE_JUDGE, EPOCH)); /* in vain: somebody could still see them */
    assert_int_equal(s->care->hot[tally].wait_us, 120 * ST_SEC);
    PQfinish(pin);
    OK(step(s, CHORE_VACUUM, EPOCH));
    assert_int_equal(s->care->hot[tally].dead, 0); /* left alone for now */
    s->care->hot[tally].at_us = 0;
    for (i = 0; dead_rows(s) > 0 && i < 500; i++) {
        s->care->hot[tally].at_us = 0;
        OK(step(s, CHORE_VACUUM, EPOCH));
        usleep(10000);
    }
    OK(step(s, CHORE_JUDGE, EPOCH));
    assert_int_equal(s->care->hot[tally].wait_us, 60 * ST_SEC);
    assert_int_equal(dead_rows(s), 0);
    done(s);
}

static void what_an_interrupted_reindex_left_is_cleared_away(void **state)
{
    struct st_pg *s = leader();
    PGconn *pin;

    (void)state;
    KIT_DIRECT;
    pin = session(s, "BEGIN; DELETE FROM {s}.ready");
    kit_exec(s, "SET lock_timeout = '200ms'");
    assert_int_not_equal(st_pg_exec(s, "REINDEX INDEX CONCURRENTLY {s}.ready_id", NULL, true, NULL, &kit_err),
                         STINT_OK);
    kit_exec(s, "RESET lock_timeout");
    PQfinish(pin);
    assert_int_equal(number(s, "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = "
                               "i.indexrelid WHERE NOT i.indisvalid"
                               " AND c.relnamespace = '{s}'::regnamespace"),
                     1);
    for (int i = 0; i < 100 && number(s, "SELECT count(*) FROM pg_class WHERE relname = "
                                         "'ready_id_ccnew' AND relnamespace = '{s}'::regnamespace");
         i++) {
        step(s, CHORE_REINDEX, EPOCH);
        usleep(10000);
    }
    assert_int_equal(number(s, "SELECT count(*) FROM pg_class WHERE relname LIKE 'ready_id%' AND "
                               "relnamespace = '{s}'::regnamespace"),
                     1);
    done(s);
}

static void an_index_that_is_large_for_nothing_is_rebuilt(void **state)
{
    struct st_pg *s = leader();

    (void)state;
    if (!kit_pooled()) {
        kit_exec(s, "INSERT INTO {s}.ready(lane, key, fence, attempt, slot, skips, keyed, id)"
                    " SELECT 2, i, 0, 0, 16, 0, false, convert_to(lpad(i::text, 480, 'x'), 'UTF8')"
                    " FROM generate_series(1, 160000) i");
        kit_exec(s, "DELETE FROM {s}.ready");
        kit_exec(s, "VACUUM {s}.ready");
        assert_true(number(s, "SELECT pg_indexes_size('{s}.ready')") > 128 << 20);
        st_pg_conn_drop(s); /* a session tells what it has done when it ends, at the latest */
        for (int i = 0; i < 1000 && number(s, "SELECT pg_indexes_size('{s}.ready')") > 1 << 20; i++) {
            step(s, CHORE_REINDEX, EPOCH); /* not while others are at it: it tries again */
            usleep(10000);
        }
        assert_true(number(s, "SELECT pg_indexes_size('{s}.ready')") < 1 << 20);
        assert_int_equal(number(s, "SELECT count(*) FROM pg_index WHERE NOT indisvalid"), 0);
        assert_int_equal(number(s, "SELECT CASE current_setting('lock_timeout') WHEN '0' THEN 1 END"), 1);
    }
    done(s);
}

static void every_chore_has_its_turn(void **state)
{
    struct st_pg *s = leader();
    struct st_prune_req req = {.keep = KEEP, .epoch = EPOCH, .limit = 1000};
    struct st_pruned out;
    int64_t again_us = 0;
    int steps = 0;

    (void)state;
    while (again_us < ST_SEC && steps++ < 20) {
        OK(st_store_upkeep(&s->base, &req, &out, &again_us, NULL));
        st_pruned_clear(&out);
    }
    assert_int_equal(steps, 4); /* ring, fold, summaries, vacuum; then nothing for a while */
    assert_true(again_us <= 10 * ST_SEC);
    done(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(what_is_needed_survives_and_the_rest_is_gone),
        KIT_TEST(it_can_be_emptied_by_whoever_does_not_own_it),
        KIT_TEST(what_comes_while_it_is_emptied_is_kept),
        KIT_TEST(jobs_removed_meanwhile_are_not_counted_twice),
        KIT_TEST(a_reader_elsewhere_does_not_disturb),
        KIT_TEST(a_reader_of_the_slot_makes_it_give_up_for_now),
        KIT_TEST(who_has_written_before_it_began_must_have_ended),
        KIT_TEST(a_leader_of_yesterday_changes_nothing),
        KIT_TEST(while_a_leader_writes_nobody_takes_the_lead),
        KIT_TEST(a_longer_retention_is_heeded_at_once),
        KIT_TEST(of_a_long_history_a_leader_prunes_only_what_the_ring_leaves),
        KIT_TEST(a_prune_goes_on_where_it_was_and_misses_nothing),
        KIT_TEST(a_job_that_is_being_revived_is_not_removed),
        KIT_TEST(an_old_id_is_found_where_it_is_kept),
        KIT_TEST(counts_are_added_up_and_lanes_made_one),
        KIT_TEST(dead_rows_are_vacuumed_where_it_pays),
        KIT_TEST(what_an_interrupted_reindex_left_is_cleared_away),
        KIT_TEST(an_index_that_is_large_for_nothing_is_rebuilt),
        KIT_TEST(every_chore_has_its_turn),
    };

    KIT_NEEDS_SERVER
    return cmocka_run_group_tests(tests, NULL, NULL);
}
