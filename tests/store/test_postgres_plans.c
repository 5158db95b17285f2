/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_plans.c - how the server goes about the statements of the hot path: by index,
 * whatever it believes of its tables.
 *
 * A planner that finds a table empty, or full of dead rows, would rather read all of it; a plan
 * made then is kept for as long as the session lives.  So the plans are looked at (auto_explain
 * tells them, those inside functions too) in the states in which a wrong one would be chosen, each
 * time in a new session.  Not behind a pooler, where a session is not one's own.
 */
#include <ctype.h>

#include "postgres_lab.h"

#define DEAD 100000
#define LIVE 200000
#define HELD 20000

/* ---- what the server tells ------------------------------------------------------------------- */

#define PLANS_MAX 4000

static struct plan {
    char *context; /* the functions it ran in, the innermost first */
    char *text;
} plans[PLANS_MAX];
static size_t n_plans;

static void hear(void *arg, const PGresult *r)
{
    const char *text = PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY);
    const char *context = PQresultErrorField(r, PG_DIAG_CONTEXT);

    (void)arg;
    if (!text || !strstr(text, "plan:") || n_plans == PLANS_MAX)
        return;
    plans[n_plans].text = strdup(text);
    plans[n_plans++].context = strdup(context ? context : "");
}

static void forget_plans(void)
{
    for (size_t i = 0; i < n_plans; i++) {
        free(plans[i].text);
        free(plans[i].context);
    }
    n_plans = 0;
}

/* The big table that this line of a plan reads, or NULL: "->  Index Scan using ready_pkey on ready
 * x  (cost=..." */
static const char *reads(const char *line)
{
    static const char *const big[] = {"ready", "lease", "ended", "entry", "grp"};
    const char *scan = strstr(line, " Scan "), *on = scan ? strstr(scan, " on ") : NULL;

    for (size_t i = 0; on && i < sizeof(big) / sizeof(big[0]); i++) {
        const size_t len = strlen(big[i]);
        const char after = strncmp(on + 4, big[i], len) == 0 ? on[4 + len] : 'x';

        if (after == ' ' || after == '_' || after == '\0') /* a partition of it has _N */
            return big[i];
    }
    return NULL;
}

/* A node's name, without the arrow. */
static bool is_node(const char *line, const char *name)
{
    while (isspace((unsigned char)*line) || *line == '-' || *line == '>')
        line++;
    return strncmp(line, name, strlen(name)) == 0;
}

/* What is wrong with it, or NULL.  Sorting what was found by index is fine, sorting a table is not.
 * hot: nor may it gather the rows first; where one job is looked up by its id that is no harm. */
static const char *fault_of(char *text, bool hot)
{
    const char *fault = NULL;
    bool sorts = false;
    char *at = NULL;

    for (char *line = strtok_r(text, "\n", &at); line && !fault; line = strtok_r(NULL, "\n", &at)) {
        if (!strstr(line, "(cost=")) /* a condition, or the statement */
            continue;
        if (is_node(line, "Sort") || is_node(line, "Incremental Sort")) {
            sorts = true;
            continue;
        }
        if (reads(line) && sorts)
            fault = "sorts a table";
        if (reads(line) && (strstr(line, "Seq Scan") || (hot && strstr(line, "Bitmap"))))
            fault = line;
        sorts = sorts && is_node(line, "LockRows");
    }
    return fault;
}

/* The first ones are hot. */
static const char *const functions[] = {"_claim(",   "_settle(", "_renew(",   "_expired(", "_groups_tidy(", "_held(",
                                        "_flagged(", "_look(",   "_acquire(", "_cancel(",  "_retry("};
#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))
#define HOT       7

/* Which of them it ran in; FUNCTIONS = none. */
static size_t function_of(const struct plan *p)
{
    size_t i = 0;

    while (i < FUNCTIONS && !strstr(p->context, functions[i]))
        i++;
    return i;
}

static void check_plans(const char *when)
{
    size_t seen[FUNCTIONS + 1] = {0}, bad = 0;

    assert_true(n_plans < PLANS_MAX);
    for (size_t i = 0; i < n_plans; i++) {
        const size_t in = function_of(&plans[i]);
        char *copy = strdup(plans[i].text);
        const char *fault = fault_of(copy, in < HOT);

        seen[in] += strstr(plans[i].text, " Scan") != NULL;
        if (fault && bad++ < 3)
            fprintf(stderr, "%s: %s\n%s\nin %s\n\n", when, fault, plans[i].text, plans[i].context);
        free(copy);
    }
    for (size_t k = 0; k < FUNCTIONS; k++)
        if (!seen[k])
            fail_msg("%s: no plan of %s was seen", when, functions[k]);
    print_message("%s: %zu plans\n", when, n_plans);
    assert_int_equal(bad, 0);
}

/* From now on this handle's session tells its plans. */
static void listen_to(struct st_store *s)
{
    struct st_pg *pg = st_pg_of(s);

    if (st_pg_exec(pg,
                   "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET "
                   "auto_explain.log_nested_statements = on;"
                   " SET auto_explain.log_level = notice; SET client_min_messages = notice",
                   NULL, false, NULL, &kit_err))
        fail_msg("%s", kit_err.message);
    PQsetNoticeReceiver(pg->c, hear, NULL);
}

/* ---- everything a worker does
 * -------------------------------------------------------------------- */

static void add(struct st_store *s, const char *type, size_t n, char (*ids)[ST_ID_MAX + 1])
{
    for (size_t i = 0; i < n; i++) {
        struct st_new_job j = {
            .type = S(type), .queue = S("q"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
        struct st_enqueued out;

        st_id_new(ids[i]);
        j.id = S(ids[i]);
        OK(st_store_enqueue(s, 0, &j, 1, &out, NULL));
    }
}

static size_t claim(struct st_store *s, const char *type, int64_t lease_us, struct st_job **out, size_t n)
{
    const struct st_type_rule rule = {.pattern = S(type), .policy = st_policy_default};
    const struct st_claim_req req = {
        .worker = S("w1"), .types = &rule, .n_types = 1, .lease_us = lease_us, .n = n, .n_run = n};
    stint_error err = {0};
    size_t got = 0;

    if (st_store_claim(s, &req, out, &got, &err))
        fail_msg("claim: %s", err.message);
    return got;
}

static void end_jobs(struct st_store *s, struct st_job **jobs, size_t n)
{
    static const enum st_outcome outcomes[] = {ST_OUT_SUCCEEDED, ST_OUT_RETRY, ST_OUT_FAILED, ST_OUT_RELEASED};
    const struct st_claim_req req = {.worker = S("w1"), .lease_us = ST_HOUR, .n = 1, .n_run = 1};
    struct st_renew r[8];
    struct st_finish f[8];
    struct st_job *more = NULL;
    size_t n_more = 0;
    bool finished;

    assert_true(n >= 2 && n <= 8);
    for (size_t i = 0; i < n; i++) {
        r[i] =
            (struct st_renew){.id = S(jobs[i]->id), .fence = jobs[i]->fence, .lease_us = ST_HOUR, .started_ago_us = -1};
        f[i] = (struct st_finish){
            .id = r[i].id, .fence = jobs[i]->fence, .outcome = outcomes[i % 4], .started_ago_us = -1, .exit_code = -1};
    }
    OK(st_store_renew(s, 0, r, n, NULL));
    OK(st_store_finish(s, 0, f, n - 1, NULL));
    OK(st_store_exchange(s, 0, f + n - 1, 1, &req, &more, &n_more, &finished, NULL));
    OK(st_store_finish(s, 0, f, n, NULL)); /* again: it looks for what it wrote */
    st_job_free(more);
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
}

static void by_id(struct st_store *s, const char *id)
{
    const struct st_claim_req req = {.worker = S("w1"), .lease_us = ST_HOUR};
    const struct st_slice one = S(id);
    char flagged[4][ST_ID_MAX + 1];
    struct st_job *job = NULL;
    enum st_refusal why;
    stint_code verdict;
    size_t n;
    bool asked;

    OK(st_store_acquire(s, one, &req, &job, &why, NULL));
    OK(st_store_cancel(s, 0, &one, 1, &verdict, &asked, NULL));
    assert_true(asked);
    OK(st_store_flagged(s, S("w1"), flagged, 4, &n, NULL));
    assert_int_equal(n, 1);
    OK(st_store_retry(s, 0, &one, 1, &verdict, NULL));
    st_job_free(job);
}

static void work(struct st_store *s)
{
    char ids[8][ST_ID_MAX + 1];
    struct st_job *jobs[8];
    struct st_reaped reaped[64];
    stint_error err = {0};
    size_t n;

    add(s, "alone", 6, ids);
    assert_int_equal(claim(s, "alone", ST_HOUR, jobs, 4), 4); /* one lane */
    end_jobs(s, jobs, 4);
    st_pg_of(s)->careful_us = st_clock_mono_us() + 60 * SEC;
    assert_int_equal(claim(s, "alone", ST_HOUR, jobs, 2), 2); /* locking each row */
    end_jobs(s, jobs, 2);
    st_pg_of(s)->careful_us = 0;
    add(s, "one.a", 3, ids);
    add(s, "one.b", 3, ids);
    assert_int_equal(claim(s, "one.*", 1, jobs, 6), 6); /* two lanes; their leases end at once */
    for (size_t i = 0; i < 6; i++)
        st_job_free(jobs[i]);
    do { /* where thousands are held */
        OK(st_store_reap(s, 0, S("w2"), reaped, 64, &n, &err));
    } while (n == 64);
    assert_true(n > 0);
    add(s, "by.id", 1, ids);
    by_id(s, ids[0]);
    OK(st_store_disown(s, 0, S("w1"), NULL, 0, &n, NULL));
}

/* In a session of its own, so that nothing is remembered from another state. */
static void look_at(const char *when)
{
    struct st_store *s = lab_store("plans");
    struct st_job *none;

    claim(s, "nothing", ST_HOUR, &none, 1);
    forget_plans();
    listen_to(s);
    work(s);
    check_plans(when);
    st_store_close(s);
}

/* ---- the states
 * ------------------------------------------------------------------------------------ */

/* Rows that others have left or hold: waiting in (q, alone), and the rest. */
static void fill(PGconn *c, const char *table, int n)
{
    if (strcmp(table, "ready") == 0)
        lab_execf(c,
                  "INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id) SELECT "
                  "_lane('q', 'alone', 0),"
                  " _us(clock_timestamp()) + 3600000000, 0, 0, 16, 0, false, '\\x01'::bytea || "
                  "int8send(i)"
                  " FROM generate_series(1, %d) i",
                  n);
    else if (strcmp(table, "lease") == 0)
        lab_execf(c,
                  "INSERT INTO lease(gid, lane, fence, until, due, started, attempt, slot, skips, "
                  "keyed, id)"
                  " SELECT -1 - i / 100, _lane('q', 'alone', 0), 1, _us(clock_timestamp()) + "
                  "3600000000, 1, 1, 1, 16, 0, false,"
                  " '\\x02'::bytea || int8send(i) FROM generate_series(1, %d) i",
                  n);
    else if (strcmp(table, "grp") == 0)
        lab_execf(c,
                  "INSERT INTO grp(gid, look_at, lease, policy, n, worker, ids) SELECT -1 - i, "
                  "_us(clock_timestamp()) +"
                  " 3600000000, 1, 1, 100, 'other' || i %% 10, ARRAY(SELECT '\\x02'::bytea || "
                  "int8send(k) FROM"
                  " generate_series(i * 100, i * 100 + 99) k) FROM generate_series(0, %d) i",
                  n / 100);
    else if (strcmp(table, "entry") == 0)
        lab_execf(c,
                  "INSERT INTO entry(lane, created, due, slot, umode, id, payload) SELECT "
                  "_lane('q', 'alone', 0), 1, 1, 16, 0,"
                  " '\\x01'::bytea || int8send(i), '{}' FROM generate_series(1, %d) i",
                  n);
    else
        lab_execf(c,
                  "INSERT INTO ended(fence, finished, started, n, policy, slot, part, outcome, "
                  "state, kind, id, worker)"
                  " SELECT 1, 1, 1, 1, 1, 16, 0, 0, 4, 0, '\\x03'::bytea || int8send(i), 'other' "
                  "FROM generate_series(1, %d) i",
                  n);
}

static void vacuum(PGconn *c)
{
    lab_exec(c, "VACUUM ANALYZE ready");
    lab_exec(c, "VACUUM ANALYZE lease");
    lab_exec(c, "VACUUM ANALYZE grp");
    lab_exec(c, "VACUUM ANALYZE entry");
    lab_exec(c, "VACUUM ANALYZE ended");
}

static void plans_go_by_index_on_tables_known_to_be_empty(void **state)
{
    PGconn *c;

    (void)state;
    KIT_DIRECT;
    st_store_close(lab_store("maker"));
    c = lab_connect();
    vacuum(c);
    look_at("empty and analyzed");
    lab_close(c);
}

/* A horizon that is held back: nothing that was deleted can be removed. */
static void plans_go_by_index_past_rows_that_are_dead(void **state)
{
    static const char *const tables[] = {"ready", "lease", "grp"};
    PGconn *c, *pin;

    (void)state;
    KIT_DIRECT;
    st_store_close(lab_store("maker"));
    c = lab_connect();
    pin = lab_connect();
    vacuum(c);
    lab_exec(pin, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    lab_exec(pin, "SELECT count(*) FROM ready");
    for (size_t i = 0; i < 3; i++) {
        fill(c, tables[i], DEAD);
        lab_execf(c, "DELETE FROM %s", tables[i]);
    }
    fill(c, "ended", DEAD);
    look_at("a hundred thousand dead");
    vacuum(c); /* finds dead rows only, and writes that down */
    look_at("the same, vacuumed and analyzed");
    lab_close(pin);
    lab_close(c);
}

static void plans_go_by_index_where_there_is_much(void **state)
{
    PGconn *c;

    (void)state;
    KIT_DIRECT;
    st_store_close(lab_store("maker"));
    c = lab_connect();
    fill(c, "ready", LIVE);
    fill(c, "entry", LIVE);
    fill(c, "ended", LIVE);
    fill(c, "lease", HELD);
    fill(c, "grp", HELD);
    look_at("many live, not analyzed");
    vacuum(c);
    look_at("many live, analyzed");
    lab_close(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        LAB_TEST(plans_go_by_index_on_tables_known_to_be_empty),
        LAB_TEST(plans_go_by_index_past_rows_that_are_dead),
        LAB_TEST(plans_go_by_index_where_there_is_much),
    };

    KIT_NEEDS_SERVER
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
