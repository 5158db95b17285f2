/* SPDX-License-Identifier: Apache-2.0
 *
 * test_redis_url.c - what Redis URLs say, and which slot a key has; no server is needed.
 */
#include "redis_net_kit.h"

/* ---- good ones --------------------------------------------------------------------------- */

static const struct good {
    const char *url, *host;
    int port, db;
    const char *user, *password, *where;
} goods[] = {
    {"redis://localhost", "localhost", 6379, 0, NULL, NULL, "localhost:6379/0"},
    {"redis://localhost/", "localhost", 6379, 0, NULL, NULL, "localhost:6379/0"},
    {"redis://h:1234/5", "h", 1234, 5, NULL, NULL, "h:1234/5"},
    {"redis://:secret@h", "h", 6379, 0, NULL, "secret", "h:6379/0"},
    {"redis://me:s%3Acret%40@h/2", "h", 6379, 2, "me", "s:cret@", "h:6379/2"},
    {"redis://me@h", "h", 6379, 0, "me", "", "h:6379/0"},
    {"redis://me:a@b@h", "h", 6379, 0, "me", "a@b", "h:6379/0"},
    {"redis://[::1]:7000/1", "::1", 7000, 1, NULL, NULL, "[::1]:7000/1"},
    {"redis://h?db=3", "h", 6379, 3, NULL, NULL, "h:6379/3"},
    {"rediss://h:1", "h", 1, 0, NULL, NULL, "h:1/0"},
    {"redis+unix:///run/redis.sock", "/run/redis.sock", 0, 0, NULL, NULL, "/run/redis.sock db 0"},
    {"redis+unix://u:p@/run/redis.sock?db=4", "/run/redis.sock", 0, 4, "u", "p", "/run/redis.sock db 4"},
    {"redis-socket:///a%20b", "/a b", 0, 0, NULL, NULL, "/a b db 0"},
    {"redis-sentinel://a,b:7?master=m", "a", 26379, 0, NULL, NULL, "m@a:26379/0"},
    {"redis-cluster://:p@a,b,c", "a", 6379, 0, NULL, "p", "a:6379/0"},
};

static void same(const char *a, const char *b)
{
    assert_int_equal(!a, !b);
    if (a)
        assert_string_equal(a, b);
}

static void good_urls_say_what_they_mean(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(goods) / sizeof(goods[0]); i++) {
        struct st_redis_url u;

        if (st_redis_url_parse(goods[i].url, &u, &kit_err))
            fail_msg("%s: %s", goods[i].url, kit_err.message);
        assert_true(st_redis_url_is(goods[i].url));
        assert_string_equal(u.hosts[0].host, goods[i].host);
        assert_int_equal(u.hosts[0].port, goods[i].port);
        assert_int_equal(u.db, goods[i].db);
        same(u.user, goods[i].user);
        same(u.password, goods[i].password);
        assert_string_equal(u.where, goods[i].where);
        st_redis_url_clear(&u);
    }
}

/* ---- bad ones ------------------------------------------------------------------------------ */

static const char *const bads[] = {
    "",
    "http://h",
    "redis:h",
    "redis://",
    "redis://:6379",
    "redis://h:0",
    "redis://h:65536",
    "redis://h:x",
    "redis://h:",
    "redis://[::1",
    "redis://[::1]x",
    "redis://a b",
    "redis://h/x",
    "redis://h/-1",
    "redis://h/99999999999",
    "redis://h/0/1",
    "redis://a,b",
    "redis://u:p%zz@h",
    "redis://u:p%4@h",
    "redis://u:p%00@h",
    "redis://h?x",
    "redis://h?=x",
    "redis://h?tls_ca=x",
    "redis://h?master=m",
    "rediss://h?tls_verify=maybe",
    "rediss://h?tls_cert=x",
    "rediss://h?tls_key=x",
    "redis-sentinel://a",
    "redis-sentinel://a?master=",
    "redis-sentinel://a,?master=m",
    "redis-cluster://a/1",
    "redis+unix://",
    "redis+unix://run",
    "redis+unix://host/run",
};

static void bad_urls_are_refused_with_a_remedy(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
        struct st_redis_url u;

        if (st_redis_url_parse(bads[i], &u, &kit_err) != STINT_EINVAL)
            fail_msg("%s was taken", bads[i]);
        assert_true(kit_err.message[0] && kit_err.remedy[0]);
    }
}

static void a_refusal_shows_no_password(void **state)
{
    static const char *const urls[] = {"redis://u:hush@",      "redis://u:hush@h:x", "redis://u:hush%zz@h",
                                       "redis://u:hush/x@h/1", "redis://u/hush@h",   "redis-sentinel://u:hush@h",
                                       "redis://:hush@h?zap"};

    (void)state;
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct st_redis_url u;

        assert_int_equal(st_redis_url_parse(urls[i], &u, &kit_err), STINT_EINVAL);
        assert_null(strstr(kit_err.message, "hush"));
        assert_null(strstr(kit_err.remedy, "hush"));
    }
}

static void a_very_long_url_is_refused(void **state)
{
    char url[ST_REDIS_URL_MAX + 100];
    struct st_redis_url u;

    (void)state;
    memset(url, 'a', sizeof(url));
    memcpy(url, "redis://", 8);
    url[sizeof(url) - 1] = '\0';
    assert_int_equal(st_redis_url_parse(url, &u, &kit_err), STINT_EINVAL);
}

/* ---- options ---------------------------------------------------------------------------------- */

static void options_of_others_are_kept_and_checked(void **state)
{
    static const char *const known[] = {"runqy", "notify", NULL}, *const fewer[] = {"runqy", NULL};
    struct st_redis *r = kit_open_url("redis://h?runqy=1&notify=off%20now", 0);

    (void)state;
    assert_string_equal(st_redis_option(r, "runqy"), "1");
    assert_string_equal(st_redis_option(r, "notify"), "off now");
    assert_null(st_redis_option(r, "tls_ca"));
    OK(st_redis_options_check(r, known, &kit_err));
    assert_int_equal(st_redis_options_check(r, fewer, &kit_err), STINT_EINVAL);
    assert_non_null(strstr(kit_err.message, "notify"));
    st_redis_close(r);
}

/* ---- slots --------------------------------------------------------------------------------------- */

static void slots_are_those_of_redis(void **state)
{
    (void)state; /* as CLUSTER KEYSLOT says */
    assert_int_equal(st_redis_slot(S("123456789")), 12739);
    assert_int_equal(st_redis_slot(S("foo")), 12182);
    assert_int_equal(st_redis_slot(S("")), 0);
    assert_int_equal(st_redis_slot(S("{user1000}.following")), st_redis_slot(S("user1000")));
    assert_int_equal(st_redis_slot(S("foo{{bar}}zap")), st_redis_slot(S("{bar")));
    assert_int_equal(st_redis_slot(S("foo{bar}{zap}")), st_redis_slot(S("bar")));
    assert_int_not_equal(st_redis_slot(S("foo{}{bar}")), st_redis_slot(S("bar")));
    assert_int_equal(st_redis_slot(S("a{b")), st_redis_slot(S("a{b")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_urls_say_what_they_mean),
        cmocka_unit_test(bad_urls_are_refused_with_a_remedy),
        cmocka_unit_test(a_refusal_shows_no_password),
        cmocka_unit_test(a_very_long_url_is_refused),
        cmocka_unit_test(options_of_others_are_kept_and_checked),
        cmocka_unit_test(slots_are_those_of_redis),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
