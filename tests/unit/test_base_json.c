/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_json.c - JSON is judged strictly and looked at without being altered.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "unit.h"

/* In memory of exactly its size, so that a sanitizer sees every read past the end. */
static bool check(struct st_slice s, stint_error *err)
{
    char *exact = malloc(s.len ? s.len : 1);
    struct st_slice copy = ST_SLICE(exact, s.len);
    bool ok;

    memcpy(exact, s.p, s.len);
    ok = st_json_check(copy, err) == STINT_OK;
    assert_int_equal(st_json_ok(copy), ok);
    free(exact);
    return ok;
}

/* --- checking --- */

static void documents_of_the_grammar_pass(void **state)
{
    static const struct st_slice t[] = {
        LIT("null"),
        LIT("true"),
        LIT("false"),
        LIT("0"),
        LIT("-0"),
        LIT("\"\""),
        LIT("{}"),
        LIT("[]"),
        LIT(" \t\r\n1 \t\r\n"),
        LIT("[ ]"),
        LIT("{ }"),
        LIT("[1,2 , 3]"),
        LIT("{\"a\":1}"),
        LIT("{ \"a\" : 1 , \"b\" : [ { } ] }"),
        LIT("{\"a\":1,\"a\":2}"),
        LIT("{\"\":0}"),
        LIT("[[],[[]],{}]"),
        /* numbers keep their text, so any length is fine */
        LIT("123456789012345678901234567890"),
        LIT("1.10"),
        LIT("-1.5e+10"),
        LIT("1E400"),
        LIT("0.0"),
        LIT("1e-0"),
        LIT("0e0"),
        LIT("-0.000000000000000000000000000001"),
        /* strings */
        LIT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\""),
        LIT("\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""),
        LIT("\"\x7f\""),
        LIT("\"\\u0000\""),
        LIT("\"\\ud83d\\ude00\""),
        LIT("\"\\uD800\""),
        LIT("\"\\udc00\\ud800\""),
        LIT("\"\\uabcd\\uABCD\""),
        LIT("\"\xef\xbf\xbf\""),
        LIT("\"a string of more than eight bytes, and \\\"quotes\\\" in it\""),
    };
    stint_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        if (!check(t[i], &err))
            fail_msg("%s: %s", t[i].p, err.message);
}

static void anything_else_is_refused_with_reason_and_place(void **state)
{
    static const struct {
        struct st_slice s;
        const char *why;
    } t[] = {
        {LIT(""), "a value is missing at byte 0"},
        {LIT("  "), "a value is missing at byte 2"},
        {LIT("\xef\xbb\xbf"
             "1"),
         "this is no value at byte 0"},
        {LIT("nul"), "no value at byte 0"},
        {LIT("True"), "no value at byte 0"},
        {LIT("nulll"), "something follows the value at byte 4"},
        {LIT("NaN"), "no value"},
        {LIT("Infinity"), "no value"},
        {LIT("'a'"), "no value"},
        {LIT("// c\n1"), "no value"},
        {LIT("1 2"), "something follows the value at byte 2"},
        {LIT("{} {}"), "something follows"},
        {LIT("1\0"), "something follows the value at byte 1"},
        {LIT("\0"), "no value"},
        {LIT("\f1"), "no value"},
        {LIT("\xc2\xa0"
             "1"),
         "no value"},
        /* numbers */
        {LIT("01"), "must not start with 0 at byte 1"},
        {LIT("-01"), "must not start with 0"},
        {LIT("-"), "a digit is missing at byte 1"},
        {LIT("+1"), "no value"},
        {LIT(".5"), "no value"},
        {LIT("1."), "a digit is missing at byte 2"},
        {LIT("1.e5"), "a digit is missing"},
        {LIT("1e"), "a digit is missing"},
        {LIT("1e+"), "a digit is missing"},
        {LIT("1e5.5"), "something follows"},
        {LIT("0x10"), "something follows"},
        {LIT("1_000"), "something follows"},
        {LIT("--1"), "a digit is missing"},
        /* strings */
        {LIT("\""), "a string is not closed at byte 1"},
        {LIT("\"abc"), "a string is not closed at byte 4"},
        {LIT("\"abc\\"), "a string is not closed"},
        {LIT("\"abc\\\""), "a string is not closed"},
        {LIT("\"a\nb\""), "control character in a string must be escaped at byte 2"},
        {LIT("\"a\0b\""), "control character in a string must be escaped at byte 2"},
        {LIT("\"12345678901234567890\x1f\""), "must be escaped at byte 21"},
        {LIT("\"123\n5678901234567890\""), "must be escaped at byte 4"},
        {LIT("\"1234567\"901234567890"), "something follows the value at byte 9"},
        {LIT("\"\\x41\""), "no such escape at byte 1"},
        {LIT("\"\\\0\""), "no such escape"},
        {LIT("\"\\'\""), "no such escape"},
        {LIT("\"\\u12\""), "four hexadecimal digits"},
        {LIT("\"\\u123g\""), "four hexadecimal digits"},
        {LIT("\"\\u"), "four hexadecimal digits"},
        {LIT("\"\\U0041\""), "no such escape"},
        {LIT("\"\xff\""), "not UTF-8 at byte 1"},
        {LIT("\"\xc3\""), "not UTF-8"},
        {LIT("\"\xe2\x82"), "not UTF-8"},
        {LIT("\"\xf0\x9f\x98\""), "not UTF-8"},
        {LIT("\"\xc0\x80\""), "not UTF-8"},
        {LIT("\"\xed\xa0\x80\""), "not UTF-8"},
        {LIT("\"\xf4\x90\x80\x80\""), "not UTF-8"},
        {LIT("\"1234567890123456\x80\""), "not UTF-8 at byte 17"},
        /* containers */
        {LIT("["), "a value is missing at byte 1"},
        {LIT("[1"), "an array is not closed at byte 2"},
        {LIT("[1,"), "a value is missing"},
        {LIT("[1,]"), "no value at byte 3"},
        {LIT("[,1]"), "no value"},
        {LIT("[1 2]"), "a comma or ] is missing at byte 3"},
        {LIT("[1}"), "a comma or ] is missing"},
        {LIT("[\"a\":1]"), "a comma or ] is missing"},
        {LIT("]"), "no value at byte 0"},
        {LIT("[]]"), "something follows"},
        {LIT("{"), "a member's name is missing at byte 1"},
        {LIT("{1:2}"), "a member's name is missing"},
        {LIT("{a:2}"), "a member's name is missing"},
        {LIT("{\"a\"}"), "a colon is missing at byte 4"},
        {LIT("{\"a\" 1}"), "a colon is missing"},
        {LIT("{\"a\":}"), "no value at byte 5"},
        {LIT("{\"a\":1"), "an object is not closed"},
        {LIT("{\"a\":1,"), "a member's name is missing"},
        {LIT("{\"a\":1,}"), "a member's name is missing at byte 7"},
        {LIT("{\"a\":1]"), "a comma or } is missing"},
        {LIT("{\"a\":1 \"b\":2}"), "a comma or } is missing"},
        {LIT("{,}"), "a member's name is missing"},
        {LIT("{\"a\":[}]"), "no value"},
        {LIT("{\"\xff\":1}"), "not UTF-8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        stint_error err;

        if (check(t[i].s, &err))
            fail_msg("passed: %s", t[i].s.p);
        assert_int_equal(err.code, STINT_EINVAL);
        if (!strstr(err.message, t[i].why))
            fail_msg("%s: %s", t[i].s.p, err.message);
    }
    assert_false(st_json_ok(ST_NONE));
}

/* "[[...]]", or with objects in turn, which need two kinds of bookkeeping. */
static struct st_slice nested(char *out, size_t depth, bool objects)
{
    size_t n = 0;

    for (size_t i = 0; i < depth; i++) {
        if (objects && i % 3 == 1) {
            memcpy(out + n, "{\"a\":", 5);
            n += 5;
        } else {
            out[n++] = '[';
        }
    }
    if (objects)
        out[n++] = '1';
    for (size_t i = depth; i-- > 0;)
        out[n++] = objects && i % 3 == 1 ? '}' : ']';
    return ST_SLICE(out, n);
}

static void nesting_is_taken_to_512_and_no_deeper(void **state)
{
    char *out = malloc(16 << 20);
    stint_error err;

    (void)state;
    assert_true(check(nested(out, 512, false), &err));
    assert_true(check(nested(out, 512, true), &err));
    assert_false(check(nested(out, 513, false), &err));
    assert_non_null(strstr(err.message, "nested too deeply at byte 512"));
    assert_false(check(nested(out, 513, true), &err));
    assert_false(check(nested(out, 1 << 20, true), &err));
    memset(out, '[', 16 << 20);
    assert_false(check(ST_SLICE(out, 16 << 20), &err));
    free(out);
}

static void a_wrong_bracket_is_found_at_every_depth(void **state)
{
    char out[6000];

    (void)state;
    for (size_t i = 1; i <= 512; i++) {
        struct st_slice s = nested(out, 512, true);

        out[s.len - i] ^= ']' ^ '}';
        assert_false(st_json_ok(s));
    }
}

/* No prefix of a document is one, unless it is a number or only blanks are missing. */
static void no_part_of_a_document_passes_for_the_whole(void **state)
{
    static const char doc[] = "{\"a\":[1,2.5e3,{\"\\u00e4\":\"\xc3\xa4\"}],\"b\":{\"c\":null},\"d\":true}";

    (void)state;
    assert_true(check(LIT(doc), NULL));
    for (size_t n = 0; n < sizeof(doc) - 1; n++)
        assert_false(check(ST_SLICE(doc, n), NULL));
}

/* --- walking --- */

static void members_come_in_order_with_their_own_text(void **state)
{
    static const struct {
        const char *key, *value;
    } want[] = {
        {"n", "123456789012345678901234567890"}, {"d", "1.10"}, {"n", "[1, 2]"},
        {"a\\u0062", "{ \"x\" : \"}\" }"},       {"", "null"},
    };
    struct st_slice doc = LIT(" { \"n\":123456789012345678901234567890,\t\"d\" : 1.10 ,\"n\":[1, 2], "
                              "\"a\\u0062\":{ \"x\" : \"}\" },\"\":null\n} "),
                    key, value;
    size_t pos = 0;

    (void)state;
    assert_true(st_json_ok(doc));
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_true(st_json_next(doc, &pos, &key, &value));
        assert_slice_equal(key, want[i].key);
        assert_slice_equal(value, want[i].value);
    }
    assert_false(st_json_next(doc, &pos, &key, &value));
    assert_false(st_json_next(doc, &pos, &key, &value)); /* and stays at the end */
    assert_null(value.p);
}

static void elements_have_no_key(void **state)
{
    static const char *const want[] = {"\"a\"", "[]", "\":\"", "{\"k\":1}", "-0"};
    struct st_slice doc = LIT("[\"a\",[], \":\" ,{\"k\":1},-0]"), key, value;
    size_t pos = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_true(st_json_next(doc, &pos, &key, &value));
        assert_null(key.p);
        assert_slice_equal(value, want[i]);
    }
    assert_false(st_json_next(doc, &pos, &key, &value));
}

static void empty_containers_and_scalars_have_nothing_to_walk(void **state)
{
    static const struct st_slice t[] = {LIT("{}"), LIT(" [ ] "), LIT("1"), LIT("\"{}\""), LIT("")};

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct st_slice key, value;
        size_t pos = 0;

        assert_false(st_json_next(t[i], &pos, &key, &value));
    }
    assert_false(st_json_next(ST_NONE, &(size_t){0}, &(struct st_slice){0}, &(struct st_slice){0}));
    assert_false(st_json_next(LIT("[1]"), &(size_t){99}, &(struct st_slice){0}, &(struct st_slice){0}));
}

static void a_member_is_found_by_its_name_the_last_one_wins(void **state)
{
    struct st_slice doc = LIT(" {\"a\":1,\"b\":{\"a\":2},\"a\":3.0,\"\\u0063\\n\":4,\"ab\":5,\"\":6,"
                              "\"\\ud83d\\ude00\":7,\"z\\u0000\":8} ");

    (void)state;
    assert_slice_equal(st_json_member(doc, "a"), "3.0");
    assert_slice_equal(st_json_member(doc, "b"), "{\"a\":2}");
    assert_slice_equal(st_json_member(doc, "c\n"), "4");
    assert_slice_equal(st_json_member(doc, "ab"), "5");
    assert_slice_equal(st_json_member(doc, ""), "6");
    assert_slice_equal(st_json_member(doc, "\xf0\x9f\x98\x80"), "7");
    assert_null(st_json_member(doc, "c").p);
    assert_null(st_json_member(doc, "z").p);
    assert_null(st_json_member(doc, "nothing").p);
    assert_null(st_json_member(LIT("[\"a\",1]"), "a").p);
    assert_null(st_json_member(LIT("\"a\""), "a").p);
    assert_null(st_json_member(ST_NONE, "a").p);
}

static void keys_are_compared_after_unescaping(void **state)
{
    (void)state;
    assert_true(st_json_key_is(LIT("ab"), "ab"));
    assert_true(st_json_key_is(LIT("\\u0061b"), "ab"));
    assert_true(st_json_key_is(LIT("a\\u0062"), "ab"));
    assert_true(st_json_key_is(LIT("\\/\\\"\\\\"), "/\"\\"));
    assert_true(st_json_key_is(LIT("\\u00E4"), "\xc3\xa4"));
    assert_true(st_json_key_is(LIT(""), ""));
    assert_false(st_json_key_is(LIT("\\u0061"), "ab"));
    assert_false(st_json_key_is(LIT("\\u0061bc"), "ab"));
    assert_false(st_json_key_is(LIT("\\u0061\\u0000"), "a"));
    assert_false(st_json_key_is(LIT("u0061"), "a"));
    assert_false(st_json_key_is(ST_NONE, ""));
}

static void strings_lose_their_quotes_and_escapes(void **state)
{
    static const struct {
        struct st_slice raw, text;
    } t[] = {
        {LIT("\"\""), LIT("")},
        {LIT("\"plain\""), LIT("plain")},
        {LIT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), LIT("\"\\/\b\f\n\r\t")},
        {LIT("\"a\\u0000b\""), LIT("a\0b")},
        {LIT("\"\\u00e4\\u20AC\\ud83d\\ude00\""), LIT("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80")},
        {LIT("\"\\udbff\\udfff\""), LIT("\xf4\x8f\xbf\xbf")},
        {LIT("\"\\ud800\""), LIT("\xef\xbf\xbd")},
        {LIT("\"\\ud800x\""), LIT("\xef\xbf\xbdx")},
        {LIT("\"\\ud800\\n\""), LIT("\xef\xbf\xbd\n")},
        {LIT("\"\\ud800\\u0041\""), LIT("\xef\xbf\xbd"
                                        "A")},
        {LIT("\"\\ud800\\ud83d\\ude00\""), LIT("\xef\xbf\xbd\xf0\x9f\x98\x80")},
        {LIT("\"\\udc00\\ud800\""), LIT("\xef\xbf\xbd\xef\xbf\xbd")},
    };
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 1000);
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        st_buf_reset(&b);
        assert_true(st_json_ok(t[i].raw));
        assert_true(st_json_string(t[i].raw, &b));
        assert_true(st_slice_eq(st_buf_view(&b), t[i].text));
        assert_int_equal(b.p[b.len], 0);
    }
    assert_false(st_json_string(LIT("1"), &b));
    assert_false(st_json_string(LIT("null"), &b));
    assert_false(st_json_string(ST_NONE, &b));
    st_buf_clear(&b);
}

static void only_integers_that_fit_are_integers(void **state)
{
    static const char *const no[] = {"1.0",  "1e3", "9223372036854775808",           "\"1\"", "null", "1.10",
                                     "true", "[1]", "123456789012345678901234567890"};
    int64_t v = 4711;
    bool b = false;

    (void)state;
    assert_true(st_json_i64(LIT("-9223372036854775808"), &v) && v == INT64_MIN);
    assert_true(st_json_i64(LIT("9223372036854775807"), &v) && v == INT64_MAX);
    assert_true(st_json_i64(LIT("-0"), &v) && v == 0);
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        assert_false(st_json_i64(st_slice_cstr(no[i]), &v));
    assert_false(st_json_i64(ST_NONE, &v));
    assert_true(v == 0);
    assert_true(st_json_bool(LIT("true"), &b) && b);
    assert_true(st_json_bool(LIT("false"), &b) && !b);
    assert_false(st_json_bool(LIT("1"), &b));
    assert_false(st_json_bool(LIT("\"true\""), &b));
    assert_false(st_json_bool(ST_NONE, &b));
}

static void types_and_blanks(void **state)
{
    (void)state;
    assert_int_equal(st_json_typeof(LIT("null")), ST_JSON_NULL);
    assert_int_equal(st_json_typeof(LIT("true")), ST_JSON_TRUE);
    assert_int_equal(st_json_typeof(LIT("false")), ST_JSON_FALSE);
    assert_int_equal(st_json_typeof(LIT("-1")), ST_JSON_NUMBER);
    assert_int_equal(st_json_typeof(LIT("\"\"")), ST_JSON_STRING);
    assert_int_equal(st_json_typeof(LIT("[]")), ST_JSON_ARRAY);
    assert_int_equal(st_json_typeof(LIT("{}")), ST_JSON_OBJECT);
    assert_slice_equal(st_json_trim(LIT(" \t\r\n{ } \n")), "{ }");
    assert_int_equal(st_json_trim(LIT("  ")).len, 0);
}

/* Unchecked bytes are none of the walkers' business, but they stay inside them and come to an
 * end. */
static void walkers_survive_what_is_no_document(void **state)
{
    static const char doc[] = "{\"a\":[1,\"\\ud83d\\ude00\"],\"\\u0061\":tru,:,\"b\"}\"\\";

    (void)state;
    for (size_t from = 0; from < sizeof(doc); from++) {
        for (size_t to = from; to < sizeof(doc); to++) {
            char *exact = malloc(to - from + 1);
            struct st_slice s = ST_SLICE(exact, to - from), k, v;
            struct st_buf b;
            size_t pos = 0;

            memcpy(exact, doc + from, s.len);
            exact = realloc(exact, s.len ? s.len : 1);
            s.p = exact;
            st_buf_init(&b, 100);
            while (st_json_next(s, &pos, &k, &v))
                st_json_string(v, &b);
            st_json_member(s, "a");
            st_json_key_is(s, "a\xf0\x9f\x98\x80");
            st_json_string(s, &b);
            st_buf_clear(&b);
            free(exact);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_of_the_grammar_pass),
        cmocka_unit_test(anything_else_is_refused_with_reason_and_place),
        cmocka_unit_test(nesting_is_taken_to_512_and_no_deeper),
        cmocka_unit_test(a_wrong_bracket_is_found_at_every_depth),
        cmocka_unit_test(no_part_of_a_document_passes_for_the_whole),
        cmocka_unit_test(members_come_in_order_with_their_own_text),
        cmocka_unit_test(elements_have_no_key),
        cmocka_unit_test(empty_containers_and_scalars_have_nothing_to_walk),
        cmocka_unit_test(a_member_is_found_by_its_name_the_last_one_wins),
        cmocka_unit_test(keys_are_compared_after_unescaping),
        cmocka_unit_test(strings_lose_their_quotes_and_escapes),
        cmocka_unit_test(only_integers_that_fit_are_integers),
        cmocka_unit_test(types_and_blanks),
        cmocka_unit_test(walkers_survive_what_is_no_document),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
