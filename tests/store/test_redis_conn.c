/* SPDX-License-Identifier: Apache-2.0
 *
 * test_redis_conn.c - the Redis client beside real servers: batches, scripts, what a failed batch means (EAGAIN or
 * EUNKNOWN), passwords, TLS, Sentinel, Cluster, listening.
 *
 * Which cases run depends on what scripts/redis-test was asked for.
 */
#include <stdatomic.h>

#include "redis_net_kit.h"

static struct st_redis_script adds = {.name = "adds", .text = "return redis.call('INCRBY', KEYS[1], ARGV[1])"};
static struct st_redis_script wrong = {.name = "wrong", .text = "this is not Lua"};

static const char slow[] = "local t = redis.call('TIME')[1] while redis.call('TIME')[1] - t < 20 do end return 1";

static size_t add_adds(struct st_redis_batch *b, const char *key, const char *n)
{
    const struct st_slice keys[1] = {S(key)}, args[1] = {S(n)};

    return st_redis_add_script(b, ST_REDIS_WRITE, &adds, keys, 1, args, 1);
}

/* ---- batches ------------------------------------------------------------------------------ */

static void a_batch_is_answered_in_its_order(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_batch b;
    char n[16];

    (void)state;
    st_redis_batch_init(&b);
    for (int round = 0; round < 3; round++) {
        st_redis_batch_reset(&b);
        for (int i = 0; i < 5000; i++) {
            snprintf(n, sizeof(n), "%d", i);
            st_redis_addv(&b, ST_REDIS_READ, "ECHO", n, NULL);
        }
        OK(st_redis_run(r, &b, &kit_err));
        for (int i = 0; i < 5000; i++)
            assert_int_equal(st_redis_int(st_redis_reply(&b, (size_t)i), -1), i);
        assert_null(st_redis_reply(&b, 5000));
    }
    assert_int_equal(st_redis_generation(r), kit_is("cluster") ? st_redis_generation(r) : 1);
    st_redis_batch_clear(&b);
    OK(st_redis_run(r, &b, &kit_err)); /* an empty one */
    st_redis_close(r);
}

static void large_values_come_back_as_they_were(void **state)
{
    const size_t size = 24 << 20;
    struct st_redis *r = kit_open(LONG_MS);
    struct st_redis_batch b;
    char *bytes = malloc(size);
    struct st_slice argv[3] = {S("SET"), S("{large}"), ST_SLICE(bytes, size)};

    (void)state;
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 31 + i / 251);
    st_redis_batch_init(&b);
    for (int i = 0; i < 2; i++) { /* both ways at once: answers come while more is sent */
        argv[0] = S("SET");
        st_redis_add(&b, ST_REDIS_WRITE, argv[1], argv, 3);
        argv[0] = S("GET");
        st_redis_add(&b, ST_REDIS_READ, argv[1], argv, 2);
    }
    OK(st_redis_run(r, &b, &kit_err));
    for (size_t i = 1; i < 4; i += 2) {
        assert_int_equal(st_redis_text(st_redis_reply(&b, i)).len, size);
        assert_memory_equal(st_redis_text(st_redis_reply(&b, i)).p, bytes, size);
    }
    assert_int_equal(kit_int(r, ST_REDIS_WRITE, "DEL {large}"), 1);
    st_redis_batch_clear(&b);
    st_redis_close(r);
    free(bytes);
}

static void an_error_is_one_commands_own(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_batch b;

    (void)state;
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_WRITE, "SET", "{e}", "text", NULL);
    st_redis_addv(&b, ST_REDIS_WRITE, "LPUSH", "{e}", "x", NULL);
    st_redis_addv(&b, ST_REDIS_READ, "GET", "{e}", NULL);
    st_redis_addv(&b, ST_REDIS_READ, "HGET", "{e}:none", "x", NULL);
    OK(st_redis_run(r, &b, &kit_err));
    OK(st_redis_reply_fail(r, st_redis_reply(&b, 0), &kit_err));
    assert_int_equal(st_redis_reply_fail(r, st_redis_reply(&b, 1), &kit_err), STINT_ESTORE);
    assert_string_equal(kit_err.detail, "WRONGTYPE");
    assert_true(kit_err.remedy[0]);
    assert_true(st_slice_is(st_redis_text(st_redis_reply(&b, 2)), "text"));
    assert_null(st_redis_text(st_redis_reply(&b, 3)).p);
    assert_int_equal(st_redis_reply_fail(r, NULL, &kit_err), STINT_EUNKNOWN);
    st_redis_batch_clear(&b);
    st_redis_close(r);
}

static void all_is_an_array_of_the_masters_answers(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_batch b;
    const redisReply *a;

    (void)state;
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ | ST_REDIS_ALL, "ECHO", "7", NULL);
    OK(st_redis_run(r, &b, &kit_err));
    a = st_redis_reply(&b, 0);
    assert_int_equal(a->type, REDIS_REPLY_ARRAY);
    assert_int_equal(a->elements, kit_is("cluster") ? 3 : 1);
    for (size_t i = 0; i < a->elements; i++)
        assert_int_equal(st_redis_int(a->element[i], 0), 7);
    assert_int_equal(st_redis_is_cluster(r), kit_is("cluster"));
    st_redis_batch_clear(&b);
    st_redis_close(r);
}

/* ---- scripts -------------------------------------------------------------------------------- */

static void a_script_that_was_forgotten_is_sent_again(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_batch b;

    (void)state;
    kit_do(r, ST_REDIS_WRITE, "DEL {s}", NULL, NULL);
    st_redis_batch_init(&b);
    for (int i = 1; i <= 3; i++) {
        OK(kit_do(r, ST_REDIS_WRITE | ST_REDIS_ALL, "SCRIPT FLUSH", NULL, NULL));
        st_redis_batch_reset(&b);
        add_adds(&b, "{s}", "1");
        st_redis_addv(&b, ST_REDIS_READ, "EXISTS", "{s}", NULL);
        add_adds(&b, "{s}", "1");
        OK(st_redis_run(r, &b, &kit_err));
        assert_int_equal(st_redis_int(st_redis_reply(&b, 0), 0), 2 * i - 1);
        assert_int_equal(st_redis_int(st_redis_reply(&b, 2), 0), 2 * i); /* each once */
    }
    st_redis_batch_clear(&b);
    st_redis_close(r);
}

static void a_script_that_is_none_is_refused(void **state)
{
    struct st_redis *r = kit_open(0);
    const struct st_slice keys[1] = {S("{s}")};
    struct st_redis_batch b;

    (void)state;
    st_redis_batch_init(&b);
    st_redis_add_script(&b, ST_REDIS_WRITE, &wrong, keys, 1, NULL, 0);
    OK(st_redis_run(r, &b, &kit_err));
    assert_int_equal(st_redis_reply_fail(r, st_redis_reply(&b, 0), &kit_err), STINT_ESTORE);
    assert_non_null(strstr(kit_err.message, "compiling"));
    st_redis_batch_clear(&b);
    st_redis_close(r);
}

/* ---- what a failure means ------------------------------------------------------------------------ */

static void a_server_that_is_not_there_is_eagain(void **state)
{
    struct st_redis *r = kit_open(0);

    (void)state;
    kit_ctl("stop");
    assert_int_equal(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL), STINT_EAGAIN);
    assert_true(kit_err.message[0] && kit_err.remedy[0]);
    kit_ctl("start");
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    st_redis_close(r);
}

static void restart_in_between(const char *url)
{
    struct st_redis *r = kit_open_url(url, 0);

    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    assert_int_equal(st_redis_generation(r), 1);
    kit_ctl("restart");
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 2", NULL, NULL));
    assert_int_equal(st_redis_generation(r), 2);
    kit_ctl("kill");
    kit_ctl("start");
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 3", NULL, NULL));
    st_redis_close(r);
}

static void a_restart_in_between_is_not_noticed(void **state)
{
    (void)state;
    restart_in_between(kit_url());
    if (kit_is("plain"))
        restart_in_between(getenv("STINT_TEST_REDIS_TCP"));
}

static void run_slow(struct st_redis *r, unsigned flags, stint_code want)
{
    struct kit_later later;
    struct st_redis_batch b;

    st_redis_batch_init(&b);
    st_redis_addv(&b, flags, "GET", "a", NULL);
    st_redis_addv(&b, flags, "EVAL", slow, "0", NULL);
    kit_later(&later, 300, "kill");
    assert_int_equal(st_redis_run(r, &b, &kit_err), want);
    pthread_join(later.thread, NULL);
    st_redis_batch_clear(&b);
    kit_ctl("start");
}

static void a_server_that_dies_meanwhile_may_have_written(void **state)
{
    struct st_redis *r = kit_open(LONG_MS);

    (void)state;
    run_slow(r, ST_REDIS_WRITE, STINT_EUNKNOWN);
    run_slow(r, ST_REDIS_READ, STINT_EAGAIN);
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    st_redis_close(r);
}

static void silence_is_eunknown_only_after_something_was_sent(void **state)
{
    struct st_redis *r = kit_open(300), *late = kit_open(300);

    (void)state;
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    kit_ctl("freeze");
    assert_int_equal(kit_do(r, ST_REDIS_WRITE, "INCR a", NULL, NULL), STINT_EUNKNOWN);
    assert_int_equal(kit_do(r, ST_REDIS_READ, "GET a", NULL, NULL), STINT_EAGAIN);
    assert_int_equal(kit_do(late, ST_REDIS_WRITE, "INCR a", NULL, NULL), STINT_EAGAIN);
    if (kit_is("plain"))
        assert_non_null(strstr(kit_err.remedy, "says nothing"));
    kit_ctl("thaw");
    assert_int_equal(kit_int(r, ST_REDIS_READ, "GET a"), 2); /* the first did arrive, the other did not */
    st_redis_close(late);
    st_redis_close(r);
}

/* ---- connections that are cut ------------------------------------------------------------------------ */

#define CUTS_MS   1000
#define PER_BATCH 40
#define LARGE     200000

struct cutter {
    pthread_t thread;
    atomic_bool stop;
    int cuts;
};

/* Ends everybody else's connections, again and again, on all nodes. */
static void *cut_run(void *arg)
{
    struct cutter *c = arg;
    struct st_redis *r = NULL;
    struct st_redis_batch b;

    st_redis_batch_init(&b);
    if (st_redis_open(kit_url(), LONG_MS, &r, NULL))
        return NULL;
    while (!atomic_load(&c->stop)) {
        st_redis_batch_reset(&b);
        st_redis_addv(&b, ST_REDIS_READ | ST_REDIS_ALL, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes", NULL);
        if (st_redis_run(r, &b, NULL) == STINT_OK)
            c->cuts++;
        usleep(3000);
    }
    st_redis_batch_clear(&b);
    st_redis_close(r);
    return NULL;
}

/* A batch that adds to lists of its own, with something large between that is only echoed: so that it can be cut in its
 * middle, on the way there and back. */
static void push_batch(struct st_redis_batch *b, int n, const char *large, char names[PER_BATCH][32])
{
    st_redis_batch_init(b);
    for (int i = 0; i < PER_BATCH; i++) {
        struct st_slice argv[3] = {S("LPUSH"), ST_NONE, S("x")}, echo[2] = {S("ECHO"), ST_SLICE(large, LARGE)};

        snprintf(names[i], 32, "cut:%d:%d", n, i);
        argv[1] = S(names[i]);
        if (i % 8 == 0)
            st_redis_add(b, ST_REDIS_READ, argv[1], echo, 2);
        else
            st_redis_add(b, ST_REDIS_WRITE, argv[1], argv, 3);
    }
}

/* What was answered was done once; after EAGAIN nothing was; nothing was done twice. */
static void check_batch(struct st_redis *r, const struct st_redis_batch *b, stint_code code, char names[PER_BATCH][32])
{
    for (int i = 0; i < PER_BATCH; i++) {
        char line[64];
        int64_t n;

        snprintf(line, sizeof(line), "LLEN %.31s", names[i]);
        if (i % 8 == 0)
            continue;
        n = kit_int(r, ST_REDIS_READ, line);
        if (st_redis_reply(b, (size_t)i))
            assert_int_equal(n, 1);
        else
            assert_in_range(n, 0, code == STINT_EUNKNOWN ? 1 : 0);
    }
}

static void forget_large(struct st_redis_batch *b)
{
    st_buf_clear(&b->wire);
    for (size_t i = 0; i < b->n; i += 8) {
        if (b->items[i].reply)
            freeReplyObject(b->items[i].reply);
        b->items[i].reply = NULL;
    }
}

static void the_verdict_is_true_while_connections_are_cut(void **state)
{
    static char names[4096][PER_BATCH][32];
    static struct st_redis_batch batches[4096];
    static stint_code codes[4096];
    const int64_t until_us = st_clock_mono_us() + CUTS_MS * ST_MS;
    struct st_redis *r = kit_open(LONG_MS);
    struct cutter c = {0};
    char *large = calloc(1, LARGE);
    int n = 0, unknown = 0;

    (void)state;
    if (kit_is("sentinel")) /* theirs would be cut too, and another become the master */
        c.stop = true;
    assert_int_equal(pthread_create(&c.thread, NULL, cut_run, &c), 0);
    for (; n < 4096 && st_clock_mono_us() < until_us; n++) {
        push_batch(&batches[n], n, large, names[n]);
        codes[n] = st_redis_run(r, &batches[n], &kit_err);
        assert_true(codes[n] == STINT_OK || codes[n] == STINT_EAGAIN || codes[n] == STINT_EUNKNOWN);
        unknown += codes[n] == STINT_EUNKNOWN;
        forget_large(&batches[n]);
    }
    atomic_store(&c.stop, true);
    pthread_join(c.thread, NULL);
    assert_true(n > 0 && (c.cuts > 0 || kit_is("sentinel")));
    print_message("%d batches, %d cuts, %d of unknown outcome\n", n, c.cuts, unknown);
    for (int i = 0; i < n; i++) {
        check_batch(r, &batches[i], codes[i], names[i]);
        st_redis_batch_clear(&batches[i]);
    }
    OK(kit_do(r, ST_REDIS_WRITE | ST_REDIS_ALL, "FLUSHALL", NULL, NULL));
    free(large);
    st_redis_close(r);
}

/* ---- what only a false server does ----------------------------------------------------------------- */

static void an_answered_write_keeps_its_answer(void **state)
{
    static const char *const says[] = {":1\r\n", NULL, "+no\r\n"};
    struct kit_false f;
    struct st_redis_batch b;
    struct st_redis *r;

    (void)state;
    kit_false_start(&f, says, 3);
    r = kit_open_url(f.url, 0);
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_WRITE, "INCR", "a", NULL);
    st_redis_addv(&b, ST_REDIS_WRITE, "INCR", "b", NULL);
    assert_int_equal(st_redis_run(r, &b, &kit_err), STINT_EUNKNOWN);
    assert_int_equal(st_redis_int(st_redis_reply(&b, 0), 0), 1);
    assert_null(st_redis_reply(&b, 1));
    st_redis_batch_clear(&b);
    st_redis_close(r);
    kit_false_stop(&f);
    assert_int_equal(f.greetings, 1); /* nothing was sent twice */
}

static void reads_are_asked_again(void **state)
{
    static const char *const says[] = {":1\r\n", NULL, ":2\r\n"};
    struct kit_false f;
    struct st_redis_batch b;
    struct st_redis *r;

    (void)state;
    kit_false_start(&f, says, 3);
    r = kit_open_url(f.url, 0);
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ, "GET", "a", NULL);
    st_redis_addv(&b, ST_REDIS_READ, "GET", "b", NULL);
    OK(st_redis_run(r, &b, &kit_err));
    assert_int_equal(st_redis_int(st_redis_reply(&b, 0), 0), 1);
    assert_int_equal(st_redis_int(st_redis_reply(&b, 1), 0), 2);
    st_redis_batch_clear(&b);
    st_redis_close(r);
    kit_false_stop(&f);
}

static void loading_is_waited_for(void **state)
{
    static const char *const says[] = {"-LOADING wait\r\n", "-LOADING wait\r\n", "+OK\r\n"};
    struct kit_false f;
    struct st_redis *r;

    (void)state;
    kit_false_start(&f, says, 3);
    r = kit_open_url(f.url, 0);
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    st_redis_close(r);
    kit_false_stop(&f);
    assert_int_equal(f.rounds, 4); /* and the end that follows */
}

static void what_is_not_redis_is_told_apart(void **state)
{
    static const char *const says[] = {"HTTP/1.1 400 Bad Request\r\n\r\n"};
    struct kit_false f;
    struct st_redis *r;

    (void)state;
    kit_false_start(&f, says, 1);
    r = kit_open_url(f.url, 0);
    assert_int_equal(kit_do(r, ST_REDIS_READ, "GET a", NULL, NULL), STINT_ESTORE);
    assert_non_null(strstr(kit_err.message, "not one of a Redis server"));
    st_redis_close(r);
    kit_false_stop(&f);
}

static void a_server_that_is_taken_for_a_sentinel_is_told(void **state)
{
    const char *server = strstr(getenv("STINT_TEST_REDIS_TCP"), "://");
    char url[256];
    struct st_redis *r;

    (void)state;
    snprintf(url, sizeof(url), "redis-sentinel%.*s?master=m", (int)(3 + strcspn(server + 3, "/?")), server);
    r = kit_open_url(url, 0);
    assert_int_equal(kit_do(r, ST_REDIS_READ, "GET a", NULL, NULL), STINT_ESTORE);
    assert_non_null(strstr(kit_err.remedy, "no Sentinel"));
    st_redis_close(r);
}

static void a_replica_says_so_in_the_end(void **state)
{
    struct st_redis *r = kit_open(0);

    (void)state;
    kit_ctl("cli 1 REPLICAOF 127.0.0.1 1");
    assert_int_equal(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL), STINT_ESTORE);
    assert_string_equal(kit_err.detail, "READONLY");
    kit_ctl("cli 1 REPLICAOF NO ONE");
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    st_redis_close(r);
}

/* ---- who may ---------------------------------------------------------------------------------------- */

static void with(char *out, size_t size, const char *who, const char *more)
{
    const char *url = kit_url(), *rest = strstr(url, "://") + 3;

    snprintf(out, size, "%.*s%s%s%s", (int)(rest - url), url, who, rest, more);
}

static void passwords_and_databases_are_given(void **state)
{
    char url[256];
    struct st_redis *r;

    (void)state;
    kit_ctl("cli 1 ACL SETUSER me on '>s:e@cret' allkeys allchannels +@all");
    with(url, sizeof(url), "me:s%3Ae%40cret@", "?db=5");
    r = kit_open_url(url, 0);
    OK(kit_do(r, ST_REDIS_WRITE, "SET mine 1", NULL, NULL));
    st_redis_close(r);
    r = kit_open(0);
    assert_int_equal(kit_int(r, ST_REDIS_READ, "EXISTS mine"), 0);
    st_redis_close(r);
    with(url, sizeof(url), "", "?db=5");
    r = kit_open_url(url, 0);
    assert_int_equal(kit_int(r, ST_REDIS_READ, "EXISTS mine"), 1);
    st_redis_close(r);
}

static void refused(const char *url, const char *detail)
{
    struct st_redis *r = kit_open_url(url, 0);

    assert_int_equal(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL), STINT_ESTORE);
    if (detail)
        assert_string_equal(kit_err.detail, detail);
    assert_true(kit_err.remedy[0]);
    assert_null(strstr(kit_err.message, "hush"));
    st_redis_close(r);
}

/* As Redis 6.2 tells what a script met; 7 begins with the word. */
static void what_a_script_was_refused_is_understood(void **state)
{
    static const struct {
        const char *said, *word;
        stint_code code;
    } cases[] = {
        {"OOM command not allowed when used memory > 'maxmemory'. script: f00, on @user_script:1.", "OOM",
         STINT_ESTORE},
        {"ERR Error running script (call to f_0a1b): @user_script:7: @user_script: 7: -OOM command not allowed", "OOM",
         STINT_ESTORE},
        {"ERR Error running script (call to f_0a1b): @user_script:7: @user_script: 7: -READONLY You can't", "READONLY",
         STINT_ESTORE},
        {"ERR Error running script (call to f_0a1b): @user_script:7: -NOREPLICAS Not enough", "NOREPLICAS",
         STINT_EAGAIN},
        {"ERR Error running script (call to f_0a1b): @user_script:7: WRONGTYPE Operation against", "WRONGTYPE",
         STINT_ESTORE},
        {"ERR Error running script (call to f_0a1b): @user_script:7: Script attempted", "ERR", STINT_ESTORE},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char said[160];
        const redisReply r = {
            .type = REDIS_REPLY_ERROR, .str = said, .len = (size_t)snprintf(said, sizeof(said), "%s", cases[i].said)};
        stint_error err = {0};

        assert_int_equal(st_redis_error("here", &r, &err), cases[i].code);
        assert_string_equal(err.detail, cases[i].word);
        assert_true(st_redis_error_is(&r, cases[i].word));
        assert_int_equal(err.remedy[0] != '\0', strcmp(cases[i].word, "ERR") != 0);
    }
}

static void wrong_passwords_and_databases_are_estore(void **state)
{
    char url[256];

    (void)state;
    with(url, sizeof(url), "me:hush@", "");
    refused(url, "WRONGPASS");
    with(url, sizeof(url), ":hush@", ""); /* the server wants none */
    refused(url, NULL);
    with(url, sizeof(url), "", "?db=1000");
    refused(url, NULL);
    kit_ctl("cli 1 ACL SETUSER poor on nopass '~x' '+get' '+hello'");
    with(url, sizeof(url), "poor@", "");
    refused(url, "NOPERM");
    kit_ctl("cli 1 ACL SETUSER default resetpass '>pw'");
    refused(kit_url(), "NOAUTH");
    assert_non_null(strstr(kit_err.message, "NOAUTH the server wants a password"));
    kit_ctl("cli 1 -a pw ACL SETUSER default nopass");
}

/* ---- fork ------------------------------------------------------------------------------------------------ */

static void a_childs_copy_is_refused_and_harms_nothing(void **state)
{
    struct st_redis *r = kit_open(0);
    int status;
    pid_t child;

    (void)state;
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    child = fork();
    if (child == 0) {
        const stint_code code = kit_do(r, ST_REDIS_WRITE, "SET a 2", NULL, NULL);

        st_redis_close(r);
        _exit(code == STINT_ESTATE ? 0 : 1);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(kit_int(r, ST_REDIS_READ, "GET a"), 1);
    assert_int_equal(st_redis_generation(r), kit_is("cluster") ? st_redis_generation(r) : 1);
    st_redis_close(r);
}

/* ---- listening ---------------------------------------------------------------------------------------------- */

static struct st_redis_ear *listen_to(struct st_redis *r, const char *channel)
{
    const struct st_slice name = S(channel);
    struct st_redis_ear *e;

    OK(st_redis_ear_open(r, ST_NONE, &e, &kit_err));
    assert_int_equal(st_redis_ear_id(e), 0);
    OK(st_redis_ear_subscribe(e, &name, 1, &kit_err));
    assert_true(st_redis_ear_id(e) > 0);
    return e;
}

static void heard(struct st_redis_ear *e, const char *channel, const char *message)
{
    struct st_slice c, m;

    OK(st_redis_ear_next(e, LONG_MS, &c, &m, &kit_err));
    assert_true(st_slice_is(c, channel));
    assert_true(message ? st_slice_is(m, message) : !m.p);
}

static void messages_are_heard_in_their_order(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_ear *e = listen_to(r, "news");
    struct st_slice c, m;

    (void)state;
    for (int i = 0; i < 3; i++)
        OK(kit_do(r, ST_REDIS_WRITE,
                  i == 0   ? "PUBLISH news one"
                  : i == 1 ? "PUBLISH other x"
                           : "PUBLISH news two",
                  NULL, NULL));
    heard(e, "news", "one");
    heard(e, "news", "two");
    OK(st_redis_ear_next(e, 10, &c, &m, &kit_err));
    assert_null(c.p);
    st_redis_ear_close(e);
    st_redis_close(r);
}

static void invalidations_are_told_key_by_key(void **state)
{
    struct st_redis *r = kit_open(0), *other = kit_open(0);
    struct st_redis_ear *e = listen_to(r, "__redis__:invalidate");
    char command[96];

    (void)state;
    snprintf(command, sizeof(command), "CLIENT TRACKING ON REDIRECT %lld", (long long)st_redis_ear_id(e));
    OK(kit_do(r, ST_REDIS_READ, command, NULL, NULL));
    OK(kit_do(r, ST_REDIS_READ, "MGET t1 t2", NULL, NULL));
    OK(kit_do(other, ST_REDIS_WRITE, "MSET t1 a t2 b", NULL, NULL));
    for (int i = 0; i < 2; i++) {
        struct st_slice c, m;

        OK(st_redis_ear_next(e, LONG_MS, &c, &m, &kit_err));
        assert_true(st_slice_is(c, "__redis__:invalidate"));
        assert_true(st_slice_is(m, "t1") || st_slice_is(m, "t2"));
    }
    OK(kit_do(r, ST_REDIS_READ, "GET t1", NULL, NULL));
    OK(kit_do(other, ST_REDIS_WRITE, "FLUSHALL", NULL, NULL));
    heard(e, "__redis__:invalidate", NULL);
    st_redis_ear_close(e);
    st_redis_close(other);
    st_redis_close(r);
}

static void an_ear_hears_again_after_a_restart(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_ear *e = listen_to(r, "news");
    const unsigned before = st_redis_generation(r);
    struct st_slice c, m;

    (void)state;
    kit_ctl("restart");
    assert_int_equal(st_redis_ear_next(e, LONG_MS, &c, &m, &kit_err), STINT_EAGAIN);
    assert_int_equal(st_redis_ear_id(e), 0);
    OK(st_redis_ear_next(e, 1, &c, &m, &kit_err));
    assert_null(c.p);
    assert_true(st_redis_ear_id(e) > 0);
    OK(kit_do(r, ST_REDIS_WRITE, "PUBLISH news again", NULL, NULL));
    assert_int_equal(st_redis_generation(r), before + 1);
    heard(e, "news", "again");
    kit_ctl("stop");
    assert_int_equal(st_redis_ear_next(e, LONG_MS, &c, &m, &kit_err), STINT_EAGAIN);
    assert_int_equal(st_redis_ear_next(e, LONG_MS, &c, &m, &kit_err), STINT_EAGAIN); /* nobody there */
    kit_ctl("start");
    OK(st_redis_ear_next(e, 1, &c, &m, &kit_err));
    st_redis_ear_close(e);
    st_redis_close(r);
}

static void *interrupt_later(void *arg)
{
    usleep(200 * 1000);
    st_redis_ear_interrupt(arg);
    return NULL;
}

static void an_ear_can_be_interrupted(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_ear *e = listen_to(r, "news");
    struct st_slice c, m;
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, interrupt_later, e), 0);
    OK(st_redis_ear_next(e, 10 * LONG_MS, &c, &m, &kit_err));
    assert_null(c.p);
    pthread_join(t, NULL);
    st_redis_ear_interrupt(e); /* before the call */
    OK(st_redis_ear_next(e, 10 * LONG_MS, &c, &m, &kit_err));
    assert_null(c.p);
    st_redis_ear_close(e);
    st_redis_close(r);
}

/* ---- TLS -------------------------------------------------------------------------------------------------------- */

static void tls_url(char *out, size_t size, const char *options)
{
    const char *tls = getenv("STINT_TEST_REDIS_TLS"), *url = kit_url();
    size_t n = (size_t)snprintf(out, size, "%.*s?", (int)strcspn(url, "?"), url);

    for (const char *p = options; *p && n + 128 < size; p++) { /* @ = the folder */
        if (*p == '@')
            n += (size_t)snprintf(out + n, size - n, "%s", tls);
        else
            out[n++] = *p;
    }
    out[n] = '\0';
}

static void only_the_right_server_is_trusted(void **state)
{
    static const struct {
        const char *options;
        stint_code code;
    } cases[] = {
        {"tls_ca=@/ca.pem", STINT_OK},
        {"tls_ca=@/ca.pem&tls_name=redis.test", STINT_OK},
        {"tls_ca=@/ca.pem&tls_name=localhost&tls_cert=@/cert.pem&tls_key=@/key.pem", STINT_OK},
        {"tls_verify=no", STINT_OK},
        {"tls_ca=@/other-ca.pem", STINT_ESTORE},
        {"tls_name=redis.test", STINT_ESTORE}, /* the system's authorities do not know it */
        {"tls_ca=@/ca.pem&tls_name=other.test", STINT_ESTORE},
        {"tls_ca=@/ca.pem&tls_name=10.0.0.1", STINT_ESTORE},
        {"tls_ca=@/none.pem", STINT_EINVAL},
        {"tls_ca=@/ca.pem&tls_cert=@/cert.pem&tls_key=@/ca-key.pem", STINT_EINVAL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char url[512];
        struct st_redis *r;
        stint_code code;

        tls_url(url, sizeof(url), cases[i].options);
        r = kit_open_url(url, 0);
        code = kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL);
        if (code != cases[i].code)
            fail_msg("%s: %s (%s)", cases[i].options, stint_code_name(code), kit_err.message);
        if (code)
            assert_true(kit_err.remedy[0]);
        st_redis_close(r);
    }
}

/* ---- Sentinel ------------------------------------------------------------------------------------------------------- */

static void a_failover_is_followed(void **state)
{
    const bool first = kit_ctl_try("cli 1 ROLE | grep -q master") == 0;
    struct st_redis *r = kit_open(LONG_MS);
    struct st_redis_ear *e = listen_to(r, "news");
    struct st_slice c, m;

    (void)state;
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    kit_ctl(first ? "kill 1" : "kill 2");
    assert_int_equal(st_redis_ear_next(e, LONG_MS, &c, &m, &kit_err), STINT_EAGAIN);
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 2", NULL, NULL)); /* waits for the new master */
    OK(st_redis_ear_next(e, 1, &c, &m, &kit_err));
    OK(kit_do(r, ST_REDIS_WRITE, "PUBLISH news here", NULL, NULL));
    heard(e, "news", "here");
    kit_ctl(first ? "start 1" : "start 2"); /* comes back as a replica */
    assert_int_equal(kit_int(r, ST_REDIS_READ, "GET a"), 2);
    st_redis_ear_close(e);
    st_redis_close(r);
}

static void a_master_that_nobody_knows_is_estore(void **state)
{
    char url[256];
    struct st_redis *r;

    (void)state;
    snprintf(url, sizeof(url), "%.*s?master=nobody", (int)strcspn(kit_url(), "?"), kit_url());
    r = kit_open_url(url, 0);
    assert_int_equal(kit_do(r, ST_REDIS_READ, "GET a", NULL, NULL), STINT_ESTORE);
    assert_non_null(strstr(kit_err.message, "nobody"));
    st_redis_close(r);
}

static void a_sentinel_that_is_away_is_passed_over(void **state)
{
    struct st_redis *r;

    (void)state;
    kit_ctl("kill 3");
    r = kit_open(0);
    OK(kit_do(r, ST_REDIS_WRITE, "SET a 1", NULL, NULL));
    st_redis_close(r);
    kit_ctl("start 3");
}

static void the_url_of_a_sentinel_alone_is_told_from_a_servers(void **state)
{
    char url[256];
    struct st_redis *r;

    (void)state;
    snprintf(url, sizeof(url), "redis%.*s", (int)strcspn(strstr(kit_url(), "://"), ",?"), strstr(kit_url(), "://"));
    r = kit_open_url(url, 0);
    assert_int_equal(kit_do(r, ST_REDIS_READ, "GET a", NULL, NULL), STINT_ESTORE);
    assert_non_null(strstr(kit_err.message, "is a Sentinel"));
    assert_non_null(strstr(kit_err.remedy, "redis-sentinel://"));
    st_redis_close(r);
}

static void a_sentinels_password_is_told_from_a_servers(void **state)
{
    char url[256];
    struct st_redis *r;

    (void)state;
    snprintf(url, sizeof(url), "%s&sentinel_user=nobody&sentinel_password=wrong", kit_url());
    r = kit_open_url(url, 0);
    assert_int_equal(kit_do(r, ST_REDIS_READ, "GET a", NULL, NULL), STINT_ESTORE);
    assert_non_null(strstr(kit_err.remedy, "sentinel_password="));
    st_redis_close(r);
}

/* ---- Cluster ----------------------------------------------------------------------------------------------------------- */

/* {a} is slot 15495: of master 3; {b} 3300: of 1; {c} 7365: of 2. */
static void a_batch_goes_to_all_nodes(void **state)
{
    struct st_redis *r = kit_open(0);
    struct st_redis_batch b;
    char key[16];

    (void)state;
    st_redis_batch_init(&b);
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof(key), "k%d", i % 100);
        if (i < 100)
            st_redis_addv(&b, ST_REDIS_WRITE, "SET", key, "0", NULL);
        else
            add_adds(&b, key, "1");
    }
    OK(st_redis_run(r, &b, &kit_err));
    for (size_t i = 100; i < 300; i++)
        assert_int_equal(st_redis_int(st_redis_reply(&b, i), -1), i / 100);
    st_redis_batch_clear(&b);
    st_redis_close(r);
}

static void a_plain_url_of_a_node_is_a_cluster(void **state)
{
    char url[256];
    struct st_redis *r;

    (void)state;
    snprintf(url, sizeof(url), "redis://%.*s", (int)strcspn(strstr(kit_url(), "://") + 3, ","),
             strstr(kit_url(), "://") + 3);
    r = kit_open_url(url, 0);
    OK(kit_do(r, ST_REDIS_WRITE, "SET {a} 1", NULL, NULL));
    OK(kit_do(r, ST_REDIS_WRITE, "SET {b} 1", NULL, NULL));
    OK(kit_do(r, ST_REDIS_WRITE, "SET {c} 1", NULL, NULL));
    assert_true(st_redis_is_cluster(r));
    st_redis_close(r);
}

/* What doctor proposes is enough for a Cluster, on a 6.2 too, to which CLUSTER is @admin as a whole. */
static void a_user_with_few_rights_finds_all_nodes(void **state)
{
    const char *nodes = strstr(kit_url(), "://") + 3;
    char command[160], url[256];
    struct st_redis *r;

    (void)state;
    for (int n = 1; n <= 4; n++) {
        snprintf(command, sizeof(command),
                 "cli %d ACL SETUSER few on '>pw' '~few:*' +@all -@admin -@dangerous '+cluster|slots'", n);
        kit_ctl(command);
    }
    snprintf(url, sizeof(url), "redis-cluster://few:pw@%s", nodes);
    r = kit_open_url(url, 0);
    OK(kit_do(r, ST_REDIS_WRITE, "SET few:{a} 1", NULL, NULL));
    OK(kit_do(r, ST_REDIS_WRITE, "SET few:{b} 1", NULL, NULL));
    OK(kit_do(r, ST_REDIS_WRITE, "SET few:{c} 1", NULL, NULL));
    st_redis_close(r);
}

/* The slot of {b}, from node 1 to 2; half: leaves it between them. */
static void move_slot(bool half)
{
    const char *ctl = getenv("STINT_TEST_REDIS_CTL");
    char command[2048];

    snprintf(command, sizeof(command),
             "c='%s cli'; s=$($c 1 CLUSTER KEYSLOT b); from=$($c 1 CLUSTER MYID); to=$($c 2 CLUSTER MYID); "
             "$c 2 CLUSTER SETSLOT $s IMPORTING $from && $c 1 CLUSTER SETSLOT $s MIGRATING $to && %s "
             "$c 1 MIGRATE 127.0.0.1 $($c 2 CONFIG GET port | tail -1) '{b}' 0 5000 && "
             "for n in 1 2 3; do $c $n CLUSTER SETSLOT $s NODE $to; done",
             ctl, half ? "exit 0;" : "true;");
    assert_int_equal(system(command), 0);
}

static void moved_and_ask_are_followed(void **state)
{
    struct st_redis *r = kit_open(LONG_MS);

    (void)state;
    OK(kit_do(r, ST_REDIS_WRITE, "SET {b} 5", NULL, NULL));
    kit_do(r, ST_REDIS_WRITE, "DEL {b}new", NULL, NULL);
    move_slot(true);
    assert_int_equal(kit_int(r, ST_REDIS_READ, "GET {b}"), 5);      /* still there */
    assert_int_equal(kit_int(r, ST_REDIS_WRITE, "INCR {b}new"), 1); /* ASK: the new node takes what is new */
    OK(kit_do(r, ST_REDIS_WRITE | ST_REDIS_ALL, "SCRIPT FLUSH", NULL, NULL));
    {
        struct st_redis_batch b;

        st_redis_batch_init(&b);
        add_adds(&b, "{b}new", "1"); /* ASK and NOSCRIPT */
        OK(st_redis_run(r, &b, &kit_err));
        assert_int_equal(st_redis_int(st_redis_reply(&b, 0), 0), 2);
        st_redis_batch_clear(&b);
    }
    move_slot(false);
    assert_int_equal(kit_int(r, ST_REDIS_READ, "GET {b}"), 5); /* MOVED */
    assert_int_equal(kit_int(r, ST_REDIS_WRITE, "INCR {b}new"), 3);
    st_redis_close(r);
}

/* Nobody has the slot: it is tried until the time is over, and then nothing has been done. */
static void a_cluster_with_a_hole_is_eagain(void **state)
{
    struct st_redis *r = kit_open(700);
    char line[32];
    int key = 0;

    (void)state;
    do
        snprintf(line, sizeof(line), "hole%d", ++key);
    while (st_redis_slot(S(line)) > 3000);
    snprintf(line, sizeof(line), "INCR hole%d", key);
    OK(kit_do(r, ST_REDIS_WRITE, line, NULL, NULL));
    kit_ctl("kill 1");
    kit_ctl("kill 4");
    for (int i = 0; i < 5; i++)
        assert_int_equal(kit_do(r, ST_REDIS_WRITE, line, NULL, NULL), STINT_EAGAIN);
    kit_ctl("start 1");
    kit_ctl("start 4");
    st_redis_timeout(r, LONG_MS);
    /* what it was is lost with the server, and nothing came later */
    assert_int_equal(kit_int(r, ST_REDIS_WRITE, line), 1);
    st_redis_close(r);
}

static void a_failed_node_is_replaced(void **state)
{
    struct st_redis *r = kit_open(LONG_MS);

    (void)state;
    OK(kit_do(r, ST_REDIS_WRITE, "SET {m2} 1", NULL, NULL)); /* slot 2345 or so: of node 1 */
    OK(kit_do(r, ST_REDIS_READ, "GET {a}", NULL, NULL));
    kit_ctl("kill 1");
    for (int i = 0; i < 50; i++) { /* every slot, soon after; its replica takes over within the time */
        char line[64];

        snprintf(line, sizeof(line), "SET k%d x", i);
        if (kit_do(r, ST_REDIS_WRITE, line, NULL, NULL))
            fail_msg("%s: %s", line, kit_err.message);
    }
    kit_ctl("start 1");
    st_redis_close(r);
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest any[] = {
        cmocka_unit_test(a_batch_is_answered_in_its_order),
        cmocka_unit_test(large_values_come_back_as_they_were),
        cmocka_unit_test(an_error_is_one_commands_own),
        cmocka_unit_test(what_a_script_was_refused_is_understood),
        cmocka_unit_test(all_is_an_array_of_the_masters_answers),
        cmocka_unit_test(a_script_that_was_forgotten_is_sent_again),
        cmocka_unit_test(a_script_that_is_none_is_refused),
        cmocka_unit_test(a_childs_copy_is_refused_and_harms_nothing),
        cmocka_unit_test(the_verdict_is_true_while_connections_are_cut),
        cmocka_unit_test(messages_are_heard_in_their_order),
        cmocka_unit_test(an_ear_can_be_interrupted),
    };
    const struct CMUnitTest plain[] = {
        cmocka_unit_test(a_server_that_is_not_there_is_eagain),
        cmocka_unit_test(a_restart_in_between_is_not_noticed),
        cmocka_unit_test(a_server_that_dies_meanwhile_may_have_written),
        cmocka_unit_test(silence_is_eunknown_only_after_something_was_sent),
        cmocka_unit_test(an_answered_write_keeps_its_answer),
        cmocka_unit_test(reads_are_asked_again),
        cmocka_unit_test(loading_is_waited_for),
        cmocka_unit_test(what_is_not_redis_is_told_apart),
        cmocka_unit_test(a_server_that_is_taken_for_a_sentinel_is_told),
        cmocka_unit_test(a_replica_says_so_in_the_end),
        cmocka_unit_test(passwords_and_databases_are_given),
        cmocka_unit_test(wrong_passwords_and_databases_are_estore),
        cmocka_unit_test(invalidations_are_told_key_by_key),
        cmocka_unit_test(an_ear_hears_again_after_a_restart),
    };
    const struct CMUnitTest tls[] = {
        cmocka_unit_test(only_the_right_server_is_trusted),
        cmocka_unit_test(a_restart_in_between_is_not_noticed),
        cmocka_unit_test(an_ear_hears_again_after_a_restart),
    };
    const struct CMUnitTest sentinel[] = {
        cmocka_unit_test(a_sentinel_that_is_away_is_passed_over),
        cmocka_unit_test(the_url_of_a_sentinel_alone_is_told_from_a_servers),
        cmocka_unit_test(a_sentinels_password_is_told_from_a_servers),
        cmocka_unit_test(a_master_that_nobody_knows_is_estore),
        cmocka_unit_test(a_failover_is_followed),
    };
    const struct CMUnitTest cluster[] = {
        cmocka_unit_test(a_batch_goes_to_all_nodes),
        cmocka_unit_test(a_plain_url_of_a_node_is_a_cluster),
        cmocka_unit_test(a_user_with_few_rights_finds_all_nodes),
        cmocka_unit_test(moved_and_ask_are_followed),
        cmocka_unit_test(a_failed_node_is_replaced),
        cmocka_unit_test(a_cluster_with_a_hole_is_eagain),
    };
    int failed;

    if (!kit_url()) {
        fprintf(stderr, "no server: run `scripts/redis-test -- PROGRAM` (STINT_TEST_REDIS is not set)\n");
        return SKIPPED;
    }
    failed = cmocka_run_group_tests_name("any", any, NULL, NULL);
    if (kit_is("plain"))
        failed += cmocka_run_group_tests_name("plain", plain, NULL, NULL);
    if (kit_is("tls"))
        failed += cmocka_run_group_tests_name("tls", tls, NULL, NULL);
    if (kit_is("sentinel"))
        failed += cmocka_run_group_tests_name("sentinel", sentinel, NULL, NULL);
    if (kit_is("cluster"))
        failed += cmocka_run_group_tests_name("cluster", cluster, NULL, NULL);
    return failed ? 1 : 0;
}
