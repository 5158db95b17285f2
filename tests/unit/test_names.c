/* SPDX-License-Identifier: Apache-2.0
 *
 * test_names.c - what queues, types and keys may be called, and which queues a name means.
 */
#include <string.h>

#include "job/names.h"
#include "unit.h"

typedef stint_code (*check_fn)(struct st_slice, stint_error *);

static stint_code check(check_fn fn, const char *text)
{
    stint_error err = {0};
    stint_code rc = fn(st_slice_cstr(text), &err);

    if (rc != STINT_OK) {
        assert_int_equal(err.code, rc);
        assert_true(err.message[0] != '\0');
    }
    return rc;
}

static void ordinary_names_are_fine(void **state)
{
    static const char *const good[] = {"mail",    "mail.fast", "a.b.c", "x", "img:resize",
                                       "a/b-c_d", "größe",     "日本",  "0"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(check(st_queue_check, good[i]), STINT_OK);
        assert_int_equal(check(st_type_check, good[i]), STINT_OK);
        assert_int_equal(check(st_type_pattern_check, good[i]), STINT_OK);
    }
}

static void blanks_controls_and_characters_with_a_meaning_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "a b",
                                      " a",
                                      "a\tb",
                                      "a\nb",
                                      "a\x7f",
                                      "a*b",
                                      "a{b",
                                      "a}b",
                                      "a,b",
                                      "a\"b",
                                      "a'b",
                                      "a`b",
                                      "a\xc2\xa0"
                                      "b",
                                      "a\xc2\x85",
                                      "\xe2\x80\xa8",
                                      "\xe3\x80\x80",
                                      "\xef\xbb\xbfq",
                                      "a\xff",
                                      "\xc3"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(check(st_queue_check, bad[i]), STINT_EINVAL);
        assert_int_equal(check(st_type_check, bad[i]), STINT_EINVAL);
        assert_int_equal(check(st_type_pattern_check, bad[i]), STINT_EINVAL);
    }
}

static void a_name_has_at_most_128_bytes(void **state)
{
    char name[ST_NAME_MAX + 2];

    (void)state;
    memset(name, 'a', sizeof(name));
    name[ST_NAME_MAX] = '\0';
    assert_int_equal(check(st_queue_check, name), STINT_OK);
    name[ST_NAME_MAX] = 'a';
    name[ST_NAME_MAX + 1] = '\0';
    assert_int_equal(check(st_queue_check, name), STINT_EINVAL);
    assert_int_equal(check(st_type_check, name), STINT_EINVAL);
}

static void a_nul_in_a_name_is_refused(void **state)
{
    (void)state;
    assert_int_equal(st_queue_check(ST_SLICE("a\0b", 3), NULL), STINT_EINVAL);
    assert_int_equal(st_type_check(ST_SLICE("a\0b", 3), NULL), STINT_EINVAL);
    assert_int_equal(st_key_check(ST_SLICE("a\0b", 3), NULL), STINT_EINVAL);
}

static void a_queue_has_no_empty_part_but_a_type_may(void **state)
{
    (void)state;
    assert_int_equal(check(st_queue_check, ".a"), STINT_EINVAL);
    assert_int_equal(check(st_queue_check, "a."), STINT_EINVAL);
    assert_int_equal(check(st_queue_check, "a..b"), STINT_EINVAL);
    assert_int_equal(check(st_queue_check, "."), STINT_EINVAL);
    assert_int_equal(check(st_type_check, "a..b"), STINT_OK);
}

static void a_pattern_may_end_in_a_star_and_only_there(void **state)
{
    (void)state;
    assert_int_equal(check(st_type_pattern_check, "*"), STINT_OK);
    assert_int_equal(check(st_type_pattern_check, "img*"), STINT_OK);
    assert_int_equal(check(st_type_pattern_check, "i*g"), STINT_EINVAL);
    assert_int_equal(check(st_type_pattern_check, "**"), STINT_EINVAL);
    assert_int_equal(check(st_type_check, "img*"), STINT_EINVAL);
}

static void the_message_names_the_thing_and_hides_controls(void **state)
{
    stint_error err;

    (void)state;
    st_queue_check(st_slice_cstr("my queue"), &err);
    assert_non_null(strstr(err.message, "queue name \"my queue\""));
    assert_true(err.remedy[0] != '\0');
    st_type_check(st_slice_cstr("a\x1b[31m"), &err);
    assert_null(strchr(err.message, '\x1b'));
    assert_non_null(strstr(err.message, "type name"));
}

static void a_key_may_be_anything_up_to_512_bytes(void **state)
{
    char key[ST_KEY_MAX + 2];

    (void)state;
    assert_int_equal(check(st_key_check, "user 42, \"*\""), STINT_OK);
    assert_int_equal(check(st_key_check, ""), STINT_EINVAL);
    assert_int_equal(check(st_key_check, "\xff"), STINT_EINVAL);
    memset(key, 'k', sizeof(key));
    key[ST_KEY_MAX] = '\0';
    assert_int_equal(check(st_key_check, key), STINT_OK);
    key[ST_KEY_MAX] = 'k';
    key[ST_KEY_MAX + 1] = '\0';
    assert_int_equal(check(st_key_check, key), STINT_EINVAL);
}

static bool covers(const char *asked, const char *name)
{
    return st_queue_covers(st_slice_cstr(asked), st_slice_cstr(name));
}

static void a_parent_means_its_subs_but_not_the_other_way_round(void **state)
{
    (void)state;
    assert_true(covers("mail", "mail"));
    assert_true(covers("mail", "mail.fast"));
    assert_true(covers("mail", "mail.fast.eu"));
    assert_true(covers("mail.fast", "mail.fast"));
    assert_false(covers("mail.fast", "mail"));
    assert_false(covers("mail.fast", "mail.fast.eu")); /* only what stands before the first dot */
    assert_false(covers("mail", "mailing"));
    assert_false(covers("mai", "mail.fast"));
}

static void the_parent_is_what_stands_before_the_first_dot(void **state)
{
    (void)state;
    assert_true(st_slice_is(st_queue_parent(st_slice_cstr("a.b.c")), "a"));
    assert_true(st_slice_is(st_queue_parent(st_slice_cstr("abc")), "abc"));
    assert_true(st_slice_is(st_queue_parent(st_slice_cstr("")), ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordinary_names_are_fine),
        cmocka_unit_test(blanks_controls_and_characters_with_a_meaning_are_refused),
        cmocka_unit_test(a_name_has_at_most_128_bytes),
        cmocka_unit_test(a_nul_in_a_name_is_refused),
        cmocka_unit_test(a_queue_has_no_empty_part_but_a_type_may),
        cmocka_unit_test(a_pattern_may_end_in_a_star_and_only_there),
        cmocka_unit_test(the_message_names_the_thing_and_hides_controls),
        cmocka_unit_test(a_key_may_be_anything_up_to_512_bytes),
        cmocka_unit_test(a_parent_means_its_subs_but_not_the_other_way_round),
        cmocka_unit_test(the_parent_is_what_stands_before_the_first_dot),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
