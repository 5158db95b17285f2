/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sqlite_sql.c - the statements: they use their indexes, their guards agree with the table of
 * states, and their cost does not grow with the number of jobs.
 */
#include "sqlite_kit.h"

/* ---- plans ------------------------------------------------------------------------------ */

/* One line of a plan of a hot statement.  A scan is fine only along an index and with an end. */
static bool line_is_fine(const char *line, const char *sql)
{
    if (strstr(line, "TEMP B-TREE"))
        return false;
    if (strstr(line, "SCAN"))
        return strstr(line, "USING") && strstr(line, "INDEX") && strstr(sql, "LIMIT");
    return true;
}

static void plan_is_fine(sqlite3 *db, const struct st_sq_sql_info *info)
{
    char *sql = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", info->sql);
    sqlite3_stmt *st;

    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", info->name, sqlite3_errmsg(db));
    while (sqlite3_step(st) == SQLITE_ROW) {
        const char *line = (const char *)sqlite3_column_text(st, 3);

        if (!line_is_fine(line, info->sql))
            fail_msg("%s: %s", info->name, line);
    }
    sqlite3_finalize(st);
    sqlite3_free(sql);
}

static void every_hot_statement_goes_along_an_index_and_sorts_nothing(void **state)
{
    struct st_store *s = kit_open(1000);
    sqlite3 *db = kit_raw();
    int hot = 0;

    (void)state;
    for (int i = 0; i < SQ_SQL_N; i++) {
        if (st_sq_sql_info[i].flags & SQ_HOT) {
            plan_is_fine(db, &st_sq_sql_info[i]);
            hot++;
        }
    }
    assert_true(hot > 40);
    sqlite3_close(db);
    st_store_close(s);
}

static void every_statement_can_be_prepared(void **state)
{
    struct st_store *s = kit_open(1000);
    sqlite3 *db = kit_raw();
    sqlite3_stmt *st;

    (void)state;
    for (int i = 0; i < SQ_SQL_N; i++) {
        if (sqlite3_prepare_v2(db, st_sq_sql_info[i].sql, -1, &st, NULL) != SQLITE_OK)
            fail_msg("%s: %s", st_sq_sql_info[i].name, sqlite3_errmsg(db));
        sqlite3_finalize(st);
    }
    sqlite3_close(db);
    st_store_close(s);
}

/* ---- guards ----------------------------------------------------------------------------- */

/* A statement that changes states, and the events it stands for. */
struct guard {
    enum st_sq_sql which;
    enum st_event events[2];
    int n_events;
    enum { ANY, HELD, WAITING, CLAIMED, RUNNING } from; /* it serves only part of what the event allows */
    void (*bind)(sqlite3_stmt *st);
};

static void bind_claim(sqlite3_stmt *st) /* seq, state, attempt, fence, lease, worker */
{
    bind_int(st, 2, ST_CLAIMED);
    bind_int(st, 3, 1);
    bind_int(st, 4, 8);
    bind_int(st, 5, 1);
}
static void bind_claim_run(sqlite3_stmt *st)
{
    bind_claim(st);
    bind_int(st, 2, ST_RUNNING);
}
static void bind_claim_many(sqlite3_stmt *st) /* seqs, state, lease, worker */
{
    sqlite3_bind_text(st, 1, "[1]", -1, SQLITE_STATIC);
    bind_int(st, 2, ST_RUNNING);
    bind_int(st, 3, 1);
}
static void bind_acquire(sqlite3_stmt *st)
{
    bind_int(st, 2, 1);
    bind_int(st, 3, 8);
    bind_int(st, 4, 1);
    bind_int(st, 7, 1);
}
static void bind_start(sqlite3_stmt *st)
{
    bind_int(st, 2, 1);
    bind_int(st, 3, 7);
}
static void bind_fence2(sqlite3_stmt *st)
{
    bind_int(st, 2, 7);
    bind_int(st, 3, 1);
    bind_int(st, 4, 1);
    bind_int(st, 5, 1);
    bind_int(st, 6, 1);
}
static void bind_as_running(sqlite3_stmt *st)
{
    bind_fence2(st);
    bind_int(st, 12, ST_RUNNING);
    sqlite3_bind_text(st, 13, "x", -1, SQLITE_STATIC);
}
static void bind_as_claimed(sqlite3_stmt *st)
{
    bind_as_running(st);
    bind_int(st, 12, ST_CLAIMED);
}
static void bind_fail(sqlite3_stmt *st)
{
    bind_fence2(st);
    bind_int(st, 3, ST_FAILED);
}
static void bind_cancel(sqlite3_stmt *st)
{
    bind_fence2(st);
    bind_int(st, 3, ST_CANCELLED);
}
static void bind_revive(sqlite3_stmt *st)
{
    bind_int(st, 2, 1);
}

static const struct guard guards[] = {
    {SQ_CLAIM, {ST_EV_CLAIM}, 1, ANY, bind_claim},
    {SQ_CLAIM, {ST_EV_CLAIM_RUN}, 1, ANY, bind_claim_run},
    {SQ_CLAIM_MANY, {ST_EV_CLAIM_RUN}, 1, ANY, bind_claim_many},
    {SQ_ACQUIRE, {ST_EV_CLAIM_RUN, ST_EV_STEAL}, 2, ANY, bind_acquire},
    {SQ_START, {ST_EV_START}, 1, ANY, bind_start},
    {SQ_SUCCEED, {ST_EV_SUCCEED}, 1, ANY, bind_fence2},
    {SQ_SUCCEED_AS, {ST_EV_SUCCEED}, 1, CLAIMED, bind_as_claimed},
    {SQ_SUCCEED_AS, {ST_EV_SUCCEED}, 1, RUNNING, bind_as_running},
    {SQ_BACK, {ST_EV_RETRY}, 1, ANY, bind_fence2},
    {SQ_BACK, {ST_EV_RELEASE}, 1, ANY, bind_fence2},
    {SQ_END_HELD, {ST_EV_FAIL}, 1, ANY, bind_fail},
    {SQ_END_HELD, {ST_EV_CANCEL}, 1, HELD, bind_cancel},
    {SQ_END_WAITING, {ST_EV_CANCEL}, 1, WAITING, bind_cancel},
    {SQ_REVIVE, {ST_EV_REVIVE}, 1, ANY, bind_revive},
};

/* What the table says: the state after it, or -1. */
static int table_says(const struct guard *g, enum st_state from)
{
    if ((g->from == HELD && !st_state_held(from)) || (g->from == WAITING && st_state_held(from)) ||
        (g->from == CLAIMED && from != ST_CLAIMED) || (g->from == RUNNING && from != ST_RUNNING))
        return -1;
    for (int i = 0; i < g->n_events; i++)
        if (st_state_next(from, g->events[i]) >= 0)
            return st_state_next(from, g->events[i]);
    return -1;
}

static void put_row(sqlite3 *db, enum st_state state, int fence)
{
    char sql[256];

    snprintf(sql, sizeof(sql),
             "DELETE FROM job; INSERT INTO job(seq, id, lane, state, ready, priority, due, fence, "
             "created)"
             " VALUES (1, 'x', 1, %d, %s, 0, 0, %d, 0)",
             state, state == ST_PENDING ? "1" : "NULL", fence);
    kit_exec(db, sql);
}

/* Runs the statement on a row in that state; the state after it, or -1 if it was refused. */
static int sql_says(sqlite3 *db, const struct guard *g, enum st_state from, int fence)
{
    sqlite3_stmt *st;
    int changed;

    put_row(db, from, fence);
    assert_int_equal(sqlite3_prepare_v2(db, st_sq_sql_info[g->which].sql, -1, &st, NULL), SQLITE_OK);
    bind_int(st, 1, 1);
    g->bind(st);
    assert_int_equal(sqlite3_step(st), SQLITE_DONE);
    changed = sqlite3_changes(db);
    sqlite3_finalize(st);
    return changed ? (int)kit_int(db, "SELECT state FROM job") : -1;
}

static void the_guards_of_the_statements_are_the_table_of_states(void **state)
{
    struct st_store *s = kit_open(1000);
    sqlite3 *db = kit_raw();

    (void)state;
    for (size_t i = 0; i < sizeof(guards) / sizeof(guards[0]); i++) {
        for (int from = 0; from < ST_STATE_N; from++) {
            const int sql = sql_says(db, &guards[i], (enum st_state)from, 7);

            if (sql != table_says(&guards[i], (enum st_state)from))
                fail_msg("%s from %s gives %d", st_sq_sql_info[guards[i].which].name,
                         st_state_name((enum st_state)from), sql);
        }
    }
    sqlite3_close(db);
    st_store_close(s);
}

static void no_statement_about_an_attempt_works_under_another_fence(void **state)
{
    struct st_store *s = kit_open(1000);
    sqlite3 *db = kit_raw();

    (void)state;
    for (size_t i = 0; i < sizeof(guards) / sizeof(guards[0]); i++) {
        if (guards[i].which == SQ_REVIVE) /* not about an attempt */
            continue;
        if (guards[i].which == SQ_CLAIM_MANY) /* begins one: the rows were read in the same transaction */
            continue;
        for (int from = 0; from < ST_STATE_N; from++)
            assert_int_equal(sql_says(db, &guards[i], (enum st_state)from, 6), -1);
    }
    sqlite3_close(db);
    st_store_close(s);
}

/* ---- cost ------------------------------------------------------------------------------- */

/* Steps of SQLite's virtual machine, of all statements of the writer, since the last time. */
static int64_t steps(struct st_store *s)
{
    struct st_sq_writer *w = st_sq_of(s)->w;
    int64_t n = 0;

    for (int i = 0; i < SQ_SQL_N; i++)
        if (w->c.stmt[i])
            n += sqlite3_stmt_status(w->c.stmt[i], SQLITE_STMTSTATUS_VM_STEP, 1);
    return n;
}

static const struct st_type_rule served = {.pattern = {"mail", 4}};

static size_t claim_and_finish(struct st_store *s, struct st_job **jobs)
{
    struct st_claim_req req = {
        .now_us = T0, .worker = S("w1"), .types = &served, .n_types = 1, .lease_us = 10 * SEC, .n = 20, .n_run = 20};
    struct st_finish fins[20];
    size_t n;

    OK(st_store_claim(s, &req, jobs, &n, NULL));
    for (size_t i = 0; i < n; i++)
        fins[i] = (struct st_finish){.id = S(jobs[i]->id),
                                     .fence = jobs[i]->fence,
                                     .ref = jobs[i]->ref,
                                     .outcome = ST_OUT_SUCCEEDED,
                                     .exit_code = -1};
    OK(st_store_finish(s, T0, fins, n, NULL));
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
    return n;
}

static int64_t cost(struct st_store *s)
{
    struct st_job *jobs[20];

    assert_int_equal(claim_and_finish(s, jobs), 20); /* warm: everything is prepared and cached */
    steps(s);
    assert_int_equal(claim_and_finish(s, jobs), 20);
    return steps(s);
}

static void flat(int64_t now, int64_t alone, const char *what)
{
    if (now > alone + alone / 10)
        fail_msg("%s: %lld steps, %lld alone", what, (long long)now, (long long)alone);
}

static void the_cost_of_a_job_does_not_grow_with_the_number_of_jobs(void **state)
{
    enum { N = 20000 };
    struct st_store *s = kit_open(10000);
    sqlite3 *db;
    int64_t alone;

    (void)state;
    kit_fill(s, "a", "default", "other", 1, T0);
    kit_fill(s, "b", "paused", "mail", 1, T0);
    OK(st_store_pause(s, T0, S("paused"), true, NULL));
    kit_fill(s, "c", "default", "mail", 400, T0);
    alone = cost(s);

    kit_fill(s, "unserved", "default", "other", N, T0 - SEC);
    flat(cost(s), alone, "waiting jobs of a type nobody serves");
    kit_fill(s, "paused", "paused", "mail", N, T0 - SEC);
    flat(cost(s), alone, "waiting jobs of a paused queue");
    kit_fill(s, "later", "default", "mail", N, T0 + 3600 * SEC);
    flat(cost(s), alone, "scheduled jobs");
    kit_fill(s, "waiting", "default", "mail", N, T0);
    flat(cost(s), alone, "waiting jobs");
    db = kit_raw();
    kit_exec(db, "UPDATE job SET state = 4, ended = 4, later = NULL, finished = 1 WHERE later = 1");
    sqlite3_close(db);
    flat(cost(s), alone, "finished jobs");
    st_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(every_statement_can_be_prepared),
        KIT_TEST(every_hot_statement_goes_along_an_index_and_sorts_nothing),
        KIT_TEST(the_guards_of_the_statements_are_the_table_of_states),
        KIT_TEST(no_statement_about_an_attempt_works_under_another_fence),
        KIT_TEST(the_cost_of_a_job_does_not_grow_with_the_number_of_jobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
