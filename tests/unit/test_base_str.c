/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_str.c - slices, UTF-8, numbers, patterns.
 */
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static void slices_compare_by_their_bytes(void **state)
{
    (void)state;
    assert_true(st_slice_eq(LIT("a\0b"), LIT("a\0b")));
    assert_false(st_slice_eq(LIT("a\0b"), LIT("a\0c")));
    assert_false(st_slice_eq(LIT("a"), LIT("ab")));
    assert_true(st_slice_eq(ST_NONE, LIT("")));
    assert_true(st_slice_is(LIT("abc"), "abc"));
    assert_false(st_slice_is(LIT("abc\0"), "abc"));
    assert_true(st_slice_cmp(LIT("a"), LIT("ab")) < 0);
    assert_true(st_slice_cmp(LIT("b"), LIT("ab")) > 0);
    assert_true(st_slice_cmp(LIT("\xff"), LIT("a")) > 0);
    assert_int_equal(st_slice_cmp(ST_NONE, LIT("")), 0);
}

static void a_missing_string_is_no_slice_and_an_empty_one_is(void **state)
{
    (void)state;
    assert_null(st_slice_cstr(NULL).p);
    assert_non_null(st_slice_cstr("").p);
}

static void a_copy_ends_in_nul_and_keeps_nuls_inside(void **state)
{
    char *p = st_slice_dup(LIT("a\0b"));

    (void)state;
    assert_memory_equal(p, "a\0b", 4);
    free(p);
    p = st_slice_dup(ST_NONE);
    assert_string_equal(p, "");
    free(p);
}

static void utf8_is_what_unicode_says(void **state)
{
    static const struct {
        struct st_slice s;
        bool ok;
    } t[] = {
        {{"", 0}, true},
        {{"plain ascii of more than eight bytes", 36}, true},
        {{"\x7f", 1}, true},
        {{"nul\0inside", 10}, true},
        {{"\xc2\x80", 2}, true},
        {{"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9}, true},
        {{"\xed\x9f\xbf\xee\x80\x80", 6}, true}, /* around the surrogates */
        {{"\xf4\x8f\xbf\xbf", 4}, true},         /* U+10FFFF */
        {{"\xf4\x90\x80\x80", 4}, false},        /* above it */
        {{"\xf5\x80\x80\x80", 4}, false},
        {{"\x80", 1}, false},
        {{"\xc0\x80", 2}, false}, /* overlong NUL */
        {{"\xc1\xbf", 2}, false},
        {{"\xe0\x9f\xbf", 3}, false},
        {{"\xf0\x8f\xbf\xbf", 4}, false},
        {{"\xed\xa0\x80", 3}, false}, /* a surrogate */
        {{"\xed\xbf\xbf", 3}, false},
        {{"\xc3", 1}, false}, /* cut short */
        {{"\xe2\x82", 2}, false},
        {{"\xf0\x9f\x98", 3}, false},
        {{"\xc3(", 2}, false},
        {{"\xe2\x82(", 3}, false},
        {{"\xff", 1}, false},
        {{"12345678901234567890\xff", 21}, false},
        {{"1234567\xc3\xa4"
          "1234567\xc3",
          17},
         false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        char *exact = malloc(t[i].s.len + 1); /* so that a sanitizer sees reads past the end */

        memcpy(exact, t[i].s.p, t[i].s.len);
        exact = realloc(exact, t[i].s.len ? t[i].s.len : 1);
        if (st_utf8_valid(exact, t[i].s.len) != t[i].ok)
            fail_msg("case %zu", i);
        free(exact);
    }
}

static void a_cut_splits_no_character(void **state)
{
    (void)state;
    assert_int_equal(st_utf8_cut("abc", 3, 5), 3);
    assert_int_equal(st_utf8_cut("abc", 3, 3), 3);
    assert_int_equal(st_utf8_cut("abc", 3, 2), 2);
    assert_int_equal(st_utf8_cut("abc", 3, 0), 0);
    assert_int_equal(st_utf8_cut("a\xf0\x9f\x98\x80z", 6, 5), 5);
    assert_int_equal(st_utf8_cut("a\xf0\x9f\x98\x80z", 6, 4), 1);
    assert_int_equal(st_utf8_cut("a\xf0\x9f\x98\x80z", 6, 3), 1);
    assert_int_equal(st_utf8_cut("a\xf0\x9f\x98\x80z", 6, 2), 1);
    assert_int_equal(st_utf8_cut("a\xf0\x9f\x98\x80z", 6, 1), 1);
    assert_int_equal(st_utf8_cut("\xf0\x9f\x98\x80z", 5, 3), 0);
    assert_int_equal(st_utf8_cut("\x80\x80\x80\x80\x80\x80\x80\x80", 8, 6), 6); /* not UTF-8 */
}

static void numbers_are_whole_strings_that_fit(void **state)
{
    static const struct {
        const char *s;
        bool ok;
        int64_t v;
    } t[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"007", true, 7},
        {"-42", true, -42},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"123456789012345678901234567890", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"1.0", false, 0},
        {"--1", false, 0},
        {"0x1", false, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        int64_t v = 4711;

        if (st_parse_i64(st_slice_cstr(t[i].s), &v) != t[i].ok)
            fail_msg("\"%s\"", t[i].s);
        assert_true(v == (t[i].ok ? t[i].v : 4711));
    }
    assert_false(st_parse_i64(LIT("1\0"), &(int64_t){0}));
}

static void the_more_specific_pattern_wins(void **state)
{
    (void)state;
    assert_int_equal(st_pattern_match(LIT("mail"), LIT("mail")), INT32_MAX);
    assert_int_equal(st_pattern_match(LIT("mail"), LIT("mails")), 0);
    assert_int_equal(st_pattern_match(LIT("mail*"), LIT("mails")), 5);
    assert_int_equal(st_pattern_match(LIT("mail*"), LIT("mail")), 5);
    assert_int_equal(st_pattern_match(LIT("mail*"), LIT("mai")), 0);
    assert_int_equal(st_pattern_match(LIT("*"), LIT("anything")), 1);
    assert_int_equal(st_pattern_match(LIT("*"), LIT("")), 1);
    assert_int_equal(st_pattern_match(LIT("m*l"), LIT("mail")), 0);
    assert_int_equal(st_pattern_match(LIT(""), LIT("mail")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_compare_by_their_bytes),
        cmocka_unit_test(a_missing_string_is_no_slice_and_an_empty_one_is),
        cmocka_unit_test(a_copy_ends_in_nul_and_keeps_nuls_inside),
        cmocka_unit_test(utf8_is_what_unicode_says),
        cmocka_unit_test(a_cut_splits_no_character),
        cmocka_unit_test(numbers_are_whole_strings_that_fit),
        cmocka_unit_test(the_more_specific_pattern_wins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
