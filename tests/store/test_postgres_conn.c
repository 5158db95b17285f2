/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_conn.c - URLs, connections, deadlines, and what a failed call means: EAGAIN or EUNKNOWN.
 */
#include "postgres_kit.h"

/* ---- ids, lanes, parameters ------------------------------------------------------------- */

static void ids_slots_and_lanes_are_those_of_the_functions(void **state)
{
    static const char *const ids[] = {"018c1234-5678-7abc-8def-0123456789ab",
                                      "018C1234-5678-7abc-8def-0123456789ab",
                                      "ffffffff-ffff-4fff-bfff-ffffffffffff",
                                      "ffffffff-ffff-7fff-bfff-ffffffffffff",
                                      "018c1234-5678-7abc-8def-0123456789a",
                                      "018c1234x5678-7abc-8def-0123456789ab",
                                      "x",
                                      "\xc3\xa9"};
    struct st_pg *s = kit_open();

    (void)state;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        struct st_pg_args a;
        struct st_pg_key key;
        struct st_slice seen;
        char text[ST_ID_MAX + 1];
        PGresult *r;

        st_pg_args_init(&a);
        st_pg_text(&a, S(ids[i]));
        OK(st_pg_exec(s,
                      "SELECT {s}._key($1), {s}._home({s}._key($1)), {s}._lane($1, 'mail', -3), {s}._id({s}._key($1))",
                      &a, false, &r, &kit_err));
        st_pg_key(S(ids[i]), &key);
        seen = st_pg_get(r, 0, 0);
        assert_int_equal(seen.len, key.len);
        assert_memory_equal(seen.p, key.p, key.len);
        assert_int_equal(st_pg_get_i64(r, 0, 1, -1), st_pg_slot(&key));
        assert_int_equal(st_pg_get_i64(r, 0, 2, 1), st_pg_lane_id(S(ids[i]), S("mail"), -3));
        assert_int_equal(st_pg_get_i64(r, 0, 2, 1) & 1, 0);
        assert_true(st_pg_get_id(r, 0, 0, text));
        assert_string_equal(text, ids[i]);
        assert_true(st_slice_is(st_pg_get(r, 0, 3), ids[i]));
        PQclear(r);
        st_pg_args_clear(&a);
    }
    kit_close(s);
}

static void what_is_no_key_is_not_taken_for_one(void **state)
{
    char text[ST_ID_MAX + 1];

    (void)state;
    assert_false(st_pg_key_text(ST_NONE, text));
    assert_false(st_pg_key_text(ST_SLICE("\0abc", 4), text));
    assert_false(st_pg_key_text(ST_SLICE("\2abc", 4), text));
    assert_false(st_pg_key_text(ST_SLICE("\1", 1), text));
}

static void echo_args(struct st_pg_args *a)
{
    const struct st_slice ids[2] = {S("018c1234-5678-7abc-8def-0123456789ab"), S("other")};

    st_pg_args_init(a);
    st_pg_i64(a, -5000000000);
    st_pg_i32(a, -7);
    st_pg_bool(a, true);
    st_pg_text(a, S("h\xc3\xa9"));
    st_pg_bytes(a, ST_NONE);
    st_pg_array(a, ST_PG_INT8);
    st_pg_item_i64(a, 1);
    st_pg_item_null(a);
    st_pg_array_end(a);
    st_pg_ids(a, ids, 2);
    st_pg_null(a, ST_PG_INT2);
    st_pg_array(a, ST_PG_TEXT);
    st_pg_item_bytes(a, S("x"));
    st_pg_item_bytes(a, ST_SLICE("", 0));
    st_pg_item_bytes(a, ST_NONE);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT4);
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT2);
    st_pg_item_i16(a, -3);
    st_pg_array_end(a);
}

static void parameters_come_back_as_they_were_given(void **state)
{
    struct st_pg *s = kit_open();
    struct st_pg_args a;
    bool oom = false;
    PGresult *r;
    char *text;

    (void)state;
    echo_args(&a);
    for (int i = 0; i < 3; i++) { /* the first time it is prepared */
        OK(st_pg_call(s, Q_ECHO, &a, false, &r, &kit_err));
        assert_int_equal(st_pg_get_i64(r, 0, 0, 0), -5000000000);
        assert_int_equal(st_pg_get_i64(r, 0, 1, 0), -7);
        assert_true(st_pg_get_bool(r, 0, 2));
        text = st_pg_get_dup(r, 0, 3, &oom);
        assert_string_equal(text, "h\xc3\xa9");
        free(text);
        assert_true(st_pg_is_null(r, 0, 4));
        assert_null(st_pg_get(r, 0, 4).p);
        assert_int_equal(st_pg_get_i64(r, 0, 7, 42), 42);
        assert_true(st_pg_is_null(r, 0, 9)); /* an empty array has no length */
        PQclear(r);
    }
    assert_int_equal(s->prepared[Q_ECHO], !kit_pooled());
    st_pg_args_clear(&a);
    kit_close(s);
}

static void one_parameter_too_many_is_told_by_the_call(void **state)
{
    struct st_pg *s = kit_open();
    struct st_pg_args a;
    PGresult *r;

    (void)state;
    st_pg_args_init(&a);
    for (int i = 0; i <= ST_PG_ARGS; i++)
        st_pg_i32(&a, i);
    assert_int_equal(st_pg_call(s, Q_ECHO, &a, true, &r, &kit_err), STINT_ENOMEM);
    assert_null(r);
    st_pg_args_clear(&a);
    kit_close(s);
}

static void a_large_parameter_goes_through(void **state)
{
    const size_t size = (size_t)30 << 20;
    struct st_pg *s = kit_open();
    char *big = malloc(size);
    struct st_pg_args a;
    PGresult *r;

    (void)state;
    assert_non_null(big);
    memset(big, 'x', size);
    s->base.timeout_ms = 30000;
    st_pg_args_init(&a);
    st_pg_text(&a, ST_SLICE(big, size));
    OK(st_pg_call(s, Q_LENGTH, &a, false, &r, &kit_err));
    assert_int_equal(st_pg_get_i64(r, 0, 0, 0), size);
    PQclear(r);
    st_pg_args_clear(&a);
    free(big);
    kit_close(s);
}

/* ---- transactions -------------------------------------------------------------------------- */

static void steps_are_one_transaction(void **state)
{
    struct st_pg *s = kit_open();
    struct st_pg_args one, zero;
    struct st_pg_step good[3], bad[3];

    (void)state;
    kit_tables(s);
    st_pg_args_init(&one);
    st_pg_i32(&one, 1);
    st_pg_args_init(&zero);
    st_pg_i32(&zero, 0);
    memcpy(good, (struct st_pg_step[3]){{Q_ADD, &one, NULL}, {Q_ADD, &one, NULL}, {Q_COUNT, NULL, NULL}}, sizeof(good));
    memcpy(bad, (struct st_pg_step[3]){{Q_ADD, &one, NULL}, {Q_DIVIDE, &zero, NULL}, {Q_ADD, &one, NULL}}, sizeof(bad));
    OK(st_pg_run(s, good, 3, true, &kit_err));
    assert_int_equal(st_pg_get_i64(good[2].res, 0, 0, 0), 2);
    for (int i = 0; i < 3; i++)
        PQclear(good[i].res);
    assert_int_equal(st_pg_run(s, bad, 3, true, &kit_err), STINT_ESTORE);
    assert_string_equal(kit_err.detail, "22012");
    for (int i = 0; i < 3; i++)
        assert_null(bad[i].res);
    assert_non_null(s->c); /* a no is no reason to connect again */
    assert_int_equal(kit_count(s), 2);
    st_pg_args_clear(&one);
    st_pg_args_clear(&zero);
    kit_close(s);
}

/* The step has succeeded by then: only what follows it says that nothing was done. */
static void an_error_that_only_the_commit_raises_is_seen(void **state)
{
    struct st_pg *s = kit_open();

    (void)state;
    kit_tables(s);
    OK(kit_call(s, Q_ADD_ONCE, 1, true));
    assert_int_equal(kit_call(s, Q_ADD_ONCE, 1, true), STINT_ESTORE);
    assert_string_equal(kit_err.detail, "23505");
    OK(kit_call(s, Q_ADD_ONCE, 2, true));
    kit_close(s);
}

static void an_sqlstate_says_what_to_do(void **state)
{
    static const struct {
        const char *state;
        stint_code code;
    } cases[] = {
        {"ST001", STINT_EINVAL}, {"ST002", STINT_EEXISTS},  {"ST003", STINT_ELOST},    {"ST004", STINT_ESTATE},
        {"40001", STINT_EAGAIN}, {"40P01", STINT_EAGAIN},   {"55P03", STINT_EAGAIN},   {"57014", STINT_EAGAIN},
        {"53200", STINT_EAGAIN}, {"53100", STINT_ESTORE},   {"25006", STINT_ESTORE},   {"42501", STINT_ESTORE},
        {"23505", STINT_ESTORE}, {"57P01", STINT_EUNKNOWN}, {"57P03", STINT_EUNKNOWN}, {"08006", STINT_EUNKNOWN}};
    struct st_pg *s = kit_open();

    (void)state;
    kit_tables(s);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_pg_args a;

        st_pg_args_init(&a);
        st_pg_text(&a, S(cases[i].state));
        st_pg_text(&a, S("so it is"));
        assert_int_equal(st_pg_call(s, Q_RAISE, &a, true, NULL, &kit_err), cases[i].code);
        assert_string_equal(kit_err.detail, cases[i].state);
        assert_non_null(strstr(kit_err.message, "so it is"));
        st_pg_args_clear(&a);
    }
    kit_close(s);
}

/* ---- deadlines ----------------------------------------------------------------------------- */

static void a_late_read_is_eagain_and_a_late_write_is_unknown(void **state)
{
    struct st_pg *s = kit_open();
    int64_t began;

    (void)state;
    kit_tables(s);
    began = st_clock_mono_us();
    assert_int_equal(kit_call(s, Q_SLEEP, 5000, false), STINT_EAGAIN);
    assert_true(st_clock_mono_us() - began < 3 * ST_SEC);
    assert_null(s->c);
    assert_int_equal(kit_call(s, Q_SLEEP, 5000, true), STINT_EUNKNOWN);
    assert_int_equal(kit_count(s), 0);
    kit_close(s);
}

static void a_frozen_server_costs_no_more_than_the_timeout(void **state)
{
    stint_code first, second;
    int64_t began, took;
    struct st_pg *s;

    (void)state;
    KIT_DIRECT;
    s = kit_open();
    kit_tables(s);
    assert_int_equal(kit_count(s), 0); /* the connection is up, and its schema looked at */
    kit_server("freeze");
    began = st_clock_mono_us();
    first = kit_call(s, Q_ADD, 1, true);
    second = kit_call(s, Q_ADD, 2, true); /* cannot even connect */
    took = st_clock_mono_us() - began;
    kit_server("thaw"); /* before anything can fail */
    assert_int_equal(first, STINT_EUNKNOWN);
    assert_int_equal(second, STINT_EAGAIN);
    assert_true(took < 5 * ST_SEC);
    s->base.timeout_ms = 20000;
    assert_true(kit_count(s) <= 1); /* what was unknown may have happened; what was refused has not */
    kit_close(s);
}

/* ---- a server that goes --------------------------------------------------------------------- */

static void a_restart_while_idle_goes_unnoticed(void **state)
{
    static const char *const how[] = {"stop", "kill"};
    struct st_pg *s;

    (void)state;
    KIT_DIRECT;
    s = kit_open();
    kit_tables(s);
    kit_checkpoint(s);
    for (int i = 0; i < 2; i++) {
        const int64_t before = kit_count(s);

        kit_server(how[i]);
        kit_server("start");
        OK(kit_call(s, Q_ADD, 1, true));
        kit_server("restart");
        assert_int_equal(kit_count(s), before + 1);
    }
    kit_close(s);
}

static void a_server_that_is_away_is_eagain(void **state)
{
    struct st_pg *s;

    (void)state;
    KIT_DIRECT;
    s = kit_open();
    kit_tables(s);
    kit_server("stop");
    assert_int_equal(kit_call(s, Q_ADD, 1, true), STINT_EAGAIN);
    assert_int_equal(kit_call(s, Q_COUNT, 1, false), STINT_EAGAIN);
    assert_true(*kit_err.remedy);
    kit_server("start");
    assert_int_equal(kit_count(s), 0);
    kit_close(s);
}

static void a_write_that_the_server_dies_under_is_unknown(void **state)
{
    static const char *const how[] = {"stop", "kill"};
    struct st_pg *s;

    (void)state;
    KIT_DIRECT;
    s = kit_open();
    kit_tables(s);
    kit_checkpoint(s);
    for (int i = 0; i < 2; i++) {
        const pid_t pid = kit_server_soon(how[i]);

        s->base.timeout_ms = 10000;
        assert_int_equal(kit_call(s, Q_ADD_SLOW, 1, true), STINT_EUNKNOWN);
        kit_join(pid, 0);
        kit_server("start");
        assert_int_equal(kit_count(s), 0);
    }
    kit_close(s);
}

static void terminate(struct st_pg *by, struct st_pg *whom)
{
    char sql[320];

    snprintf(sql, sizeof(sql),
             "DO $$ BEGIN PERFORM pg_terminate_backend(%d); FOR i IN 1..500 LOOP"
             " EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d);"
             " PERFORM pg_sleep(0.01), pg_stat_clear_snapshot(); END LOOP; END $$",
             PQbackendPID(whom->c), PQbackendPID(whom->c));
    kit_exec(by, sql);
}

static void a_session_that_was_ended_is_replaced(void **state)
{
    struct st_pg *s, *other;

    (void)state;
    KIT_DIRECT;
    s = kit_open();
    other = kit_open();
    kit_tables(s);
    assert_int_equal(kit_count(s), 0);
    terminate(other, s);
    OK(kit_call(s, Q_ADD, 1, true));
    terminate(other, s);
    assert_int_equal(kit_count(s), 1);
    kit_close(s);
    kit_close(other);
}

static void prepared_statements_that_vanish_are_done_without(void **state)
{
    struct st_pg *s;

    (void)state;
    KIT_DIRECT;
    s = kit_open();
    kit_tables(s);
    OK(kit_call(s, Q_ADD, 1, true));
    kit_exec(s, "DEALLOCATE ALL");
    OK(kit_call(s, Q_ADD, 2, true));
    assert_int_equal(kit_count(s), 2);
    assert_true(s->pooled); /* that is how it looks when a pooler hides */
    kit_close(s);
}

/* ---- others --------------------------------------------------------------------------------------- */

static int in_child(struct st_pg *s, struct st_pg *rested)
{
    struct st_store_open opt = {.timeout_ms = 20000};
    struct st_pg *mine;
    PGresult *r;
    int bad = 0;

    bad |= st_pg_call(s, Q_COUNT, NULL, false, &r, &kit_err) != STINT_ESTATE;
    bad |= (st_pg_connect(s, NULL, NULL, &kit_err) != NULL) << 1;
    kit_close(s);
    kit_close(rested);
    mine = kit_open_url(kit_url, &opt);
    bad |= !mine << 2;
    if (mine)
        kit_close(mine);
    return bad;
}

static void a_child_never_touches_the_parents_connection(void **state)
{
    struct st_pg *s = kit_open(), *rested = kit_open();
    int session;
    pid_t pid;

    (void)state;
    kit_tables(s);
    assert_int_equal(kit_count(s), 0);
    session = PQbackendPID(s->c);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(in_child(s, rested));
    kit_join(pid, 0);
    assert_int_equal(kit_count(s), 0);
    assert_int_equal(PQbackendPID(s->c), session);
    kit_close(s);
    kit_close(rested);
}

static void a_call_in_somebodys_transaction_commits_with_it(void **state)
{
    struct st_pg *s = kit_open();
    PGconn *c = st_pg_connect(s, NULL, NULL, &kit_err);
    struct st_pg_args a;

    (void)state;
    kit_tables(s);
    assert_non_null(c);
    st_pg_args_init(&a);
    st_pg_i32(&a, 5000);
    assert_int_equal(st_pg_call_on(s, c, Q_ADD, &a, NULL, &kit_err), STINT_EINVAL); /* no transaction */
    PQclear(PQexec(c, "BEGIN"));
    OK(st_pg_call_on(s, c, Q_ADD, &a, NULL, &kit_err));
    assert_int_equal(kit_count(s), 0);
    PQclear(PQexec(c, "COMMIT"));
    assert_int_equal(kit_count(s), 1);
    PQclear(PQexec(c, "BEGIN"));
    assert_int_equal(st_pg_call_on(s, c, Q_SLEEP, &a, NULL, &kit_err), STINT_EAGAIN); /* 5 s are too long */
    assert_int_equal(st_pg_call_on(s, c, Q_ADD, &a, NULL, &kit_err), STINT_ESTATE);
    PQclear(PQexec(c, "ROLLBACK"));
    assert_int_equal(PQtransactionStatus(c), PQTRANS_IDLE);
    PQfinish(c);
    st_pg_args_clear(&a);
    kit_close(s);
}

static void a_session_ends_what_its_client_has_given_up(void **state)
{
    struct st_pg *s = kit_open();
    PGresult *r;

    (void)state;
    OK(st_pg_exec(s, "SELECT current_setting('statement_timeout'), current_setting('application_name')", NULL, false,
                  &r, &kit_err));
    if (!kit_pooled())
        assert_string_equal(PQgetvalue(r, 0, 0), "2500ms");
    assert_string_equal(PQgetvalue(r, 0, 1), "stint");
    assert_int_equal(s->pooled, kit_pooled());
    PQclear(r);
    kit_close(s);
}

/* ---- URLs -------------------------------------------------------------------------------------------- */

static void wrong_urls_are_told_without_the_password(void **state)
{
    static const struct {
        const char *url;
        stint_code code;
    } cases[] = {
        {"postgres://u:secret@127.0.0.1:1/db", STINT_EAGAIN},
        {"postgres://u:secret%zz@127.0.0.1:1/db", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?colour=red", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?password=secret%z", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?sslmode=no", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?schema=", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?schema=a%27b", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?schema=pg_x", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?notify=maybe", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:1/db?listen=http%3A%2F%2Fsecret", STINT_EINVAL},
        {"postgres://u:secret@127.0.0.1:port/db", STINT_EINVAL},
        {"postgres://u:my@secret@127.0.0.1:1/db", STINT_EINVAL},
        {"postgres://u:my/secret@127.0.0.1:1/db", STINT_EINVAL},
        {"postgres://u:secret/db", STINT_EINVAL},
        {"postgres://127.0.0.1:1/db?listen=postgres%3A%2F%2Fu%3Amy%40secret%40127.0.0.1%2Fdb", STINT_EINVAL},
        {"postgres://127.0.0.1:1/db?listen=postgres%3A%2F%2Fu%3Asecret%2Fdb", STINT_EINVAL},
        {"postgresql://u:secret@nowhere.invalid/db?notify=off", STINT_EAGAIN},
    };
    const struct st_store_open opt = {.timeout_ms = 1000};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_null(kit_open_url(cases[i].url, &opt));
        if (kit_err.code != cases[i].code)
            fail_msg("%s: %s", cases[i].url, kit_err.message);
        assert_null(strstr(kit_err.message, "secret"));
        assert_null(strstr(kit_err.remedy, "secret"));
        assert_true(*kit_err.remedy);
    }
}

static void our_own_parameters_are_taken_out(void **state)
{
    char url[2048];
    struct st_store_open opt = {.timeout_ms = 20000};
    struct st_pg *s;

    (void)state;
    snprintf(url, sizeof(url), "%s&notify=off&listen=postgres%%3A%%2F%%2Fh%%2Fdb%%3Fuser%%3Du%%26port%%3D2", kit_url);
    s = kit_open_url(url, &opt);
    assert_non_null(s);
    assert_false(s->url.notify);
    assert_string_equal(s->url.listen, "postgres://h/db?user=u&port=2");
    assert_string_equal(s->url.listen_where, "h:2/db");
    assert_string_equal(s->url.schema, kit_schema);
    assert_null(strstr(s->url.conninfo, "schema"));
    assert_null(strstr(s->url.conninfo, "notify"));
    kit_close(s);
}

/* 192.0.2.1 is nobody's. */
static void a_silent_first_host_leaves_time_for_the_second(void **state)
{
    const char *host = strstr(kit_url, "host=");
    struct st_store_open opt = {.timeout_ms = 4000};
    char url[2048];
    struct st_pg *s;

    (void)state;
    KIT_DIRECT;
    if (!host)
        return;
    kit_close(kit_open()); /* makes the schema */
    snprintf(url, sizeof(url), "postgres://postgres@/test?host=192.0.2.1,%s", host + strlen("host="));
    s = kit_open_url(url, &opt);
    if (!s)
        fail_msg("%s", kit_err.message);
    kit_close(s);
}

/* With no_migrate nothing but the connection is looked at. */
static void what_the_first_host_says_is_forgotten_when_the_second_answers(void **state)
{
    const char *host = strstr(kit_url, "host=");
    const struct st_store_open opt = {.timeout_ms = 4000, .no_migrate = true};
    struct st_schema schema;
    stint_error err = {0};
    char url[2048];
    struct st_pg *s;

    (void)state;
    KIT_DIRECT;
    if (!host)
        return;
    kit_close(kit_open()); /* makes the schema */
    snprintf(url, sizeof(url), "postgres://postgres@/test?host=/nowhere,%s", host + strlen("host="));
    s = kit_open_url(url, &opt);
    if (!s)
        fail_msg("%s", kit_err.message);
    st_pg_conn_drop(s);
    assert_int_equal(st_store_schema(&s->base, false, &schema, &err), STINT_OK);
    assert_int_equal(schema.have, schema.want);
    kit_close(s);
}

static void a_wrong_user_or_database_is_the_operators(void **state)
{
    static const char *const names[] = {"nobody_here@/test", "postgres@/nothing_here"};
    const char *host = strstr(kit_url, "?host=");
    const struct st_store_open opt = {.timeout_ms = 2000};
    char url[2048];

    (void)state;
    KIT_DIRECT;
    for (int i = 0; host && i < 2; i++) {
        snprintf(url, sizeof(url), "postgres://%s%s", names[i], host);
        assert_null(kit_open_url(url, &opt));
        assert_int_equal(kit_err.code, STINT_ESTORE);
        assert_string_equal(kit_err.detail, i ? "3D000" : "28000");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(ids_slots_and_lanes_are_those_of_the_functions),
        KIT_TEST(what_is_no_key_is_not_taken_for_one),
        KIT_TEST(parameters_come_back_as_they_were_given),
        KIT_TEST(one_parameter_too_many_is_told_by_the_call),
        KIT_TEST(a_large_parameter_goes_through),
        KIT_TEST(steps_are_one_transaction),
        KIT_TEST(an_error_that_only_the_commit_raises_is_seen),
        KIT_TEST(an_sqlstate_says_what_to_do),
        KIT_TEST(a_late_read_is_eagain_and_a_late_write_is_unknown),
        KIT_TEST(a_frozen_server_costs_no_more_than_the_timeout),
        KIT_TEST(a_restart_while_idle_goes_unnoticed),
        KIT_TEST(a_server_that_is_away_is_eagain),
        KIT_TEST(a_write_that_the_server_dies_under_is_unknown),
        KIT_TEST(a_session_that_was_ended_is_replaced),
        KIT_TEST(prepared_statements_that_vanish_are_done_without),
        KIT_TEST(a_child_never_touches_the_parents_connection),
        KIT_TEST(a_call_in_somebodys_transaction_commits_with_it),
        KIT_TEST(a_session_ends_what_its_client_has_given_up),
        KIT_TEST(wrong_urls_are_told_without_the_password),
        KIT_TEST(our_own_parameters_are_taken_out),
        KIT_TEST(a_silent_first_host_leaves_time_for_the_second),
        KIT_TEST(what_the_first_host_says_is_forgotten_when_the_second_answers),
        KIT_TEST(a_wrong_user_or_database_is_the_operators),
    };

    KIT_NEEDS_SERVER
    return cmocka_run_group_tests(tests, NULL, NULL);
}
