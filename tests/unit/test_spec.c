/* SPDX-License-Identifier: Apache-2.0
 *
 * test_spec.c - canonical JSON text and the spec hash, against what Python gives.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job/number.h"
#include "job/spec.h"
#include "unit.h"

/* Each second text is Python's json.dumps(json.loads(first), sort_keys=True,
 * ensure_ascii=False, separators=(',', ':')). */
static const struct {
    const char *doc, *canonical;
} python[] = {
    {"null", "null"},
    {" true ", "true"},
    {"[ ]", "[]"},
    {"{ }", "{}"},
    {"\"\"", "\"\""},
    {"-0", "0"},
    {"-0.0", "-0.0"},
    {"0", "0"},
    {"123456789012345678901234567890123", "123456789012345678901234567890123"},
    {"-17", "-17"},
    {"1.0", "1.0"},
    {"1.10", "1.1"},
    {"1E5", "100000.0"},
    {"1e15", "1000000000000000.0"},
    {"1e16", "1e+16"},
    {"1e-4", "0.0001"},
    {"1e-5", "1e-05"},
    {"1e-7", "1e-07"},
    {"0.1", "0.1"},
    {"123456789.125", "123456789.125"},
    {"5e-324", "5e-324"},
    {"2.2250738585072014e-308", "2.2250738585072014e-308"},
    {"1.7976931348623157e308", "1.7976931348623157e+308"},
    {"5.684341886080801486968994140625e-14", "5.684341886080802e-14"},
    {"9007199254740993.0", "9007199254740992.0"},
    {"1e22", "1e+22"},
    {"1e23", "1e+23"},
    {"4.35e-10", "4.35e-10"},
    {"\"\\u00e9\\u0041\\/\\u007f\\u2028\"", "\"\xc3\xa9"
                                            "A/\x7f\xe2\x80\xa8\""},
    {"\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\\"", "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\\""},
    {"\"\\uD83D\\uDE00 \\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80 \xf0\x9f\x98\x80\""},
    {"\"caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80\"",
     "\"caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80\""},
    {"{\"b\":1,\"a\":2}", "{\"a\":2,\"b\":1}"},
    {"{\"a\":1,\"a\":2,\"A\":3}", "{\"A\":3,\"a\":2}"},
    {"{\"a\":1,\"\\u0061\":{\"y\":[],\"x\":{}}}", "{\"a\":{\"x\":{},\"y\":[]}}"},
    {"{\"\":1,\"aa\":2,\"a\":3,\"a b\":4}", "{\"\":1,\"a\":3,\"a b\":4,\"aa\":2}"},
    {"{\"\xc3\xa9\":1,\"z\":2,\"\xf0\x9f\x98\x80\":3,\"\xef\xbf\xbf\":4,\"\xee\x80\x80\":5}",
     "{\"z\":2,\"\xc3\xa9\":1,\"\xee\x80\x80\":5,\"\xef\xbf\xbf\":4,\"\xf0\x9f\x98\x80\":3}"},
    {"{\"z\":{\"b\":[{\"d\":1,\"c\":2},{\"c\":3}],\"a\":null},\"k\":[1.50,2e2,{\"q\":{\"p\":{\"o\":"
     "0,\"n\":1}}}]}",
     "{\"k\":[1.5,200.0,{\"q\":{\"p\":{\"n\":1,\"o\":0}}}],\"z\":{\"a\":null,\"b\":[{\"c\":2,\"d\":"
     "1},{\"c\":3}]}}"},
    {" [ 1 , [ 2 , [ { \"b\" : false , \"a\" : true } ] ] ] ", "[1,[2,[{\"a\":true,\"b\":false}]]]"},
};
#define PYTHON_N (sizeof(python) / sizeof(python[0]))

static void check_canonical(const char *doc, const char *want)
{
    struct st_buf out;
    stint_error err;

    st_buf_init(&out, 1 << 16);
    assert_int_equal(st_json_canonical(st_slice_cstr(doc), &out, &err), STINT_OK);
    assert_string_equal(out.p, want);
    st_buf_clear(&out);
}

static void the_canonical_text_is_the_one_python_writes(void **state)
{
    (void)state;
    for (size_t i = 0; i < PYTHON_N; i++)
        check_canonical(python[i].doc, python[i].canonical);
}

static void canonical_text_is_its_own_canonical_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < PYTHON_N; i++)
        check_canonical(python[i].canonical, python[i].canonical);
}

/* Python would write Infinity, which is no JSON. */
static void a_number_beyond_doubles_keeps_its_text(void **state)
{
    (void)state;
    check_canonical("[1E400, -1.50e+999]", "[1E400,-1.50e+999]");
    check_canonical("1e-400", "0.0");
}

/* Python keeps it and then cannot encode it. */
static void a_lone_surrogate_stays_an_escape_and_sorts_by_its_number(void **state)
{
    (void)state;
    check_canonical("\"a\\uD800\"", "\"a\\ud800\"");
    check_canonical("\"\\uDC00\\uD800\"", "\"\\udc00\\ud800\"");
    check_canonical("{\"\\ue000\":1,\"\\uD800\":2,\"\\ud7ff\":3,\"\\ud800\":4}",
                    "{\"\xed\x9f\xbf\":3,\"\\ud800\":4,\"\xee\x80\x80\":1}");
}

static void nesting_to_the_limit_is_written(void **state)
{
    char doc[2 * ST_JSON_DEPTH + 1];

    (void)state;
    memset(doc, '[', ST_JSON_DEPTH);
    memset(doc + ST_JSON_DEPTH, ']', ST_JSON_DEPTH);
    doc[2 * ST_JSON_DEPTH] = '\0';
    check_canonical(doc, doc);
}

static void many_members_are_put_in_order(void **state)
{
    struct st_buf doc, want, out;

    (void)state;
    st_buf_init(&doc, 1 << 20);
    st_buf_init(&want, 1 << 20);
    st_buf_init(&out, 1 << 20);
    for (int i = 0; i < 5000; i++) { /* 7919 and 5000 have no common divisor */
        st_buf_printf(&doc, "%s\"%04d\":%d", i ? ", " : "{", i * 7919 % 5000, i * 7919 % 5000);
        st_buf_printf(&want, "%s\"%04d\":%d", i ? "," : "{", i, i);
    }
    st_buf_putc(&doc, '}');
    st_buf_putc(&want, '}');
    assert_int_equal(st_json_canonical(st_buf_view(&doc), &out, NULL), STINT_OK);
    assert_string_equal(out.p, want.p);
    st_buf_clear(&doc);
    st_buf_clear(&want);
    st_buf_clear(&out);
}

static void the_text_is_appended_to_what_is_there(void **state)
{
    struct st_buf out;

    (void)state;
    st_buf_init(&out, 100);
    st_buf_puts(&out, "x=");
    assert_int_equal(st_json_canonical(st_slice_cstr("{\"b\":1,\"a\":2}"), &out, NULL), STINT_OK);
    assert_string_equal(out.p, "x={\"a\":2,\"b\":1}");
    st_buf_clear(&out);
}

static void what_is_no_json_is_refused_and_what_does_not_fit_is_said(void **state)
{
    struct st_buf out;
    stint_error err;

    (void)state;
    st_buf_init(&out, 8);
    assert_int_equal(st_json_canonical(st_slice_cstr("{a:1}"), &out, &err), STINT_EINVAL);
    assert_int_equal(st_json_canonical(st_slice_cstr(""), &out, &err), STINT_EINVAL);
    assert_int_equal(st_json_canonical(st_slice_cstr("{\"b\":[1,2],\"a\":{\"k\":\"v\"}}"), &out, &err), STINT_ENOMEM);
    st_buf_clear(&out);
}

/* ---- the hash ---------------------------------------------------------------------- */

static void check_hash(const char *type, const char *queue, struct st_slice payload, const char *want)
{
    char hash[ST_HASH_LEN + 1];

    assert_int_equal(st_spec_hash(st_slice_cstr(type), st_slice_cstr(queue), payload, hash, NULL), STINT_OK);
    assert_string_equal(hash, want);
}

#define GOLDEN "2d6721014757fa10799d528b6b15aee6c76a841b9ea74e187875f4abfcdbedd5"

static const char *const golden_members[] = {
    "\"args\":[1,{\"nested\":true}]",
    "\"concurrency_key\":\"account:42\"",
    "\"concurrency_limit\":2",
    "\"exec\":{\"max_attempts\":3,\"timeout_seconds\":900}",
    "\"kwargs\":{\"amount\":\"12.34\",\"notes\":\"hello\","
    "\"token\":\"123e4567-e89b-12d3-a456-426614174000\"}",
    "\"lock_key\":\"user:123\"",
    "\"priority\":5",
    "\"provenance\":{\"code_ref\":\"abc123\",\"pip_lock_hash\":\"deadbeef\"}",
    "\"queue_name\":\"default\"",
    "\"run_after\":\"2025-01-01T12:00:00+00:00\"",
    "\"takes_context\":false",
    "\"task_path\":\"contracts.example_task\"",
    "\"v\":1",
};
#define GOLDEN_N (sizeof(golden_members) / sizeof(golden_members[0]))

/* A spec that names its own task is hashed alone, so type and queue do not matter. */
static void the_golden_spec_hashes_right_with_its_keys_in_any_order(void **state)
{
    struct st_buf doc;

    (void)state;
    st_buf_init(&doc, 1 << 12);
    for (size_t step = 1; step < GOLDEN_N; step++) { /* 13 is prime: each step is an order */
        for (size_t first = 0; first < GOLDEN_N; first++) {
            st_buf_reset(&doc);
            for (size_t i = 0; i < GOLDEN_N; i++) {
                st_buf_puts(&doc, i ? " ,\n" : "{");
                st_buf_puts(&doc, golden_members[(first + i * step) % GOLDEN_N]);
            }
            st_buf_putc(&doc, '}');
            check_hash("any", "queue", st_buf_view(&doc), GOLDEN);
        }
    }
    st_buf_clear(&doc);
}

static void any_other_payload_is_hashed_with_its_type_and_queue(void **state)
{
    (void)state;
    check_hash("mail", "default", st_slice_cstr(" {\"to\":\"a\", \"n\":1}"),
               "28b30ed2764a4c9245a4a58c6f15b07f1c584f917120e1c391db311659de2f44");
    check_hash("mail", "default", ST_SLICE("\xff\0raw", 5),
               "096a84fe21486597a1b10d56620d5c82404c576a66a3766eef0164723e748c32");
    check_hash("gr\xc3\xb6\xc3\x9f"
               "e",
               "q", st_slice_cstr("null"), "a317804e89e4ff6eb97c3f914cfb7fecae6ed54df1d2514f9f2cb0f215ef9001");
}

static void no_payload_and_an_empty_one_are_the_same_work(void **state)
{
    static const char *const want = "108f6633ac62695a8993a5e91f51de310b88a3f5e4c19815ae3a932164f0b935";

    (void)state;
    check_hash("mail", "default", ST_NONE, want);
    check_hash("mail", "default", ST_SLICE("", 0), want);
}

static void a_spec_without_a_version_or_with_a_wrong_path_is_an_ordinary_payload(void **state)
{
    static const char *const docs[] = {"{\"task_path\":\"a.b\"}", "{\"v\":1}", "{\"task_path\":1,\"v\":1}",
                                       "[\"task_path\",\"v\"]"};
    char one[ST_HASH_LEN + 1], two[ST_HASH_LEN + 1];

    (void)state;
    for (size_t i = 0; i < sizeof(docs) / sizeof(docs[0]); i++) {
        struct st_slice payload = st_slice_cstr(docs[i]), q = st_slice_cstr("q");

        assert_int_equal(st_spec_hash(st_slice_cstr("a"), q, payload, one, NULL), STINT_OK);
        assert_int_equal(st_spec_hash(st_slice_cstr("b"), q, payload, two, NULL), STINT_OK);
        assert_string_not_equal(one, two);
    }
}

/* 1e15 is the text that grows most. */
static void a_payload_of_nothing_but_growing_numbers_has_a_hash(void **state)
{
    char hash[ST_HASH_LEN + 1];
    struct st_buf doc;

    (void)state;
    st_buf_init(&doc, 1 << 16);
    for (int i = 0; i < 5000; i++)
        st_buf_puts(&doc, i ? ",1e15" : "[1e15");
    st_buf_putc(&doc, ']');
    assert_int_equal(st_spec_hash(st_slice_cstr("t"), st_slice_cstr("q"), st_buf_view(&doc), hash, NULL), STINT_OK);
    st_buf_clear(&doc);
}

/* ---- numbers ----------------------------------------------------------------------- */

static void every_double_reads_back_from_its_text(void **state)
{
    uint64_t bits = 88172645463325252u; /* xorshift, the same every time */
    char text[ST_NUMBER_TEXT];
    double d, back;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        memcpy(&d, &bits, sizeof(d));
        if (!isfinite(d))
            continue;
        assert_true(st_number_parse(st_slice_cstr(st_number_repr(d, text)), &back));
        assert_memory_equal(&d, &back, sizeof(d));
    }
}

/* Below a power of two doubles lie twice as close; the shortest text is not the nearest one. */
static void powers_of_two_have_their_shortest_text(void **state)
{
    char text[ST_NUMBER_TEXT];

    (void)state;
    assert_string_equal(st_number_repr(ldexp(1, -44), text), "5.684341886080802e-14");
    assert_string_equal(st_number_repr(ldexp(1, 1023), text), "8.98846567431158e+307");
    assert_string_equal(st_number_repr(ldexp(1, -1074), text), "5e-324");
    assert_string_equal(st_number_repr(ldexp(1, 53), text), "9007199254740992.0");
    assert_string_equal(st_number_repr(ldexp(1, 60), text), "1.152921504606847e+18");
}

static void a_very_long_number_is_read(void **state)
{
    char text[4002];
    double d;

    (void)state;
    memset(text, '0', sizeof(text));
    memcpy(text, "0.", 2);
    memcpy(text + 3990, "1e3989", 6);
    assert_true(st_number_parse(ST_SLICE(text, 3996), &d));
    assert_true(d == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_canonical_text_is_the_one_python_writes),
        cmocka_unit_test(canonical_text_is_its_own_canonical_text),
        cmocka_unit_test(a_number_beyond_doubles_keeps_its_text),
        cmocka_unit_test(a_lone_surrogate_stays_an_escape_and_sorts_by_its_number),
        cmocka_unit_test(nesting_to_the_limit_is_written),
        cmocka_unit_test(many_members_are_put_in_order),
        cmocka_unit_test(the_text_is_appended_to_what_is_there),
        cmocka_unit_test(what_is_no_json_is_refused_and_what_does_not_fit_is_said),
        cmocka_unit_test(the_golden_spec_hashes_right_with_its_keys_in_any_order),
        cmocka_unit_test(any_other_payload_is_hashed_with_its_type_and_queue),
        cmocka_unit_test(no_payload_and_an_empty_one_are_the_same_work),
        cmocka_unit_test(a_spec_without_a_version_or_with_a_wrong_path_is_an_ordinary_payload),
        cmocka_unit_test(a_payload_of_nothing_but_growing_numbers_has_a_hash),
        cmocka_unit_test(every_double_reads_back_from_its_text),
        cmocka_unit_test(powers_of_two_have_their_shortest_text),
        cmocka_unit_test(a_very_long_number_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
