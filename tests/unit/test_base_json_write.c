/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_json_write.c - what we write is JSON, on one line, and keeps a user's bytes.
 */
#include <locale.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "unit.h"

static struct st_buf b;
static struct st_jw w;

static int start(void **state)
{
    (void)state;
    st_buf_init(&b, 100000);
    st_jw_init(&w, &b);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    st_buf_clear(&b);
    return 0;
}

static void commas_stand_between_values_only(void **state)
{
    (void)state;
    st_jw_open(&w, '{');
    st_jw_key(&w, "a");
    st_jw_open(&w, '[');
    st_jw_int(&w, 1);
    st_jw_int(&w, INT64_MIN);
    st_jw_open(&w, '{');
    st_jw_close(&w, '}');
    st_jw_open(&w, '[');
    st_jw_close(&w, ']');
    st_jw_bool(&w, true);
    st_jw_close(&w, ']');
    st_jw_key(&w, "b");
    st_jw_bool(&w, false);
    st_jw_key(&w, "c");
    st_jw_null(&w);
    st_jw_key(&w, "d");
    st_jw_raw(&w, LIT("1.10"));
    st_jw_key(&w, "e");
    st_jw_str(&w, LIT("x"));
    st_jw_key(&w, "f");
    st_jw_str(&w, ST_NONE);
    st_jw_key(&w, "g");
    st_jw_cstr(&w, NULL);
    st_jw_key(&w, "h");
    st_jw_str(&w, LIT(""));
    st_jw_close(&w, '}');
    assert_slice_equal(st_buf_view(&b), "{\"a\":[1,-9223372036854775808,{},[],true],\"b\":false,"
                                        "\"c\":null,\"d\":1.10,\"e\":\"x\",\"f\":null,\"g\":null,"
                                        "\"h\":\"\"}");
    assert_true(st_json_ok(st_buf_view(&b)));
}

static void strings_are_escaped_so_that_no_control_character_is_left(void **state)
{
    (void)state;
    st_json_put_string(&b, LIT("\"\\/\b\f\n\r\t\x01\x1b\x7f\0z\xc2\x9b\xc2\xa0\xc3\xa4"));
    assert_slice_equal(st_buf_view(&b), "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001b\\u007f\\u0000z"
                                        "\\u009b\xc2\xa0\xc3\xa4\"");
}

static void what_is_not_utf8_is_replaced_byte_by_byte(void **state)
{
    (void)state;
    st_json_put_string(&b, LIT("a\xff\xc3(\xed\xa0\x80\xe2\x82"));
    assert_slice_equal(st_buf_view(&b), "\"a\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                        "\xef\xbf\xbd\xef\xbf\xbd\"");
    assert_true(st_json_ok(st_buf_view(&b)));
}

static void a_written_string_reads_back_as_it_was(void **state)
{
    char text[256 * 3];
    struct st_buf back;
    size_t n = 0;

    (void)state;
    for (unsigned c = 0; c < 0x80; c++)
        text[n++] = (char)c;
    for (unsigned c = 0x80; c < 0x100; c++) {
        text[n++] = (char)(0xc0 | c >> 6);
        text[n++] = (char)(0x80 | (c & 0x3f));
    }
    st_json_put_string(&b, ST_SLICE(text, n));
    assert_true(st_json_ok(st_buf_view(&b)));
    st_buf_init(&back, sizeof(text));
    assert_true(st_json_string(st_buf_view(&b), &back));
    assert_true(st_slice_eq(st_buf_view(&back), ST_SLICE(text, n)));
    st_buf_clear(&back);
}

static void numbers_have_a_point_whatever_the_locale(void **state)
{
    (void)state;
    setlocale(LC_ALL, "de_DE.UTF-8"); /* if this machine has it */
    st_jw_open(&w, '[');
    st_jw_num(&w, 1.5, 3);
    st_jw_num(&w, -0.125, 2);
    st_jw_num(&w, 3, 0);
    st_jw_num(&w, NAN, 1);
    st_jw_num(&w, -INFINITY, 1);
    st_jw_num(&w, 2, -1);
    st_jw_close(&w, ']');
    setlocale(LC_ALL, "C");
    assert_slice_equal(st_buf_view(&b), "[1.500,-0.12,3,null,null,2]");
    st_buf_reset(&b);
    st_jw_init(&w, &b);
    st_jw_num(&w, 1.7976931348623157e308, 100);
    assert_true(st_json_ok(st_buf_view(&b)));
    assert_int_equal(b.len, 309 + 1 + 17);
}

static void times_are_rfc_3339_and_no_time_is_null(void **state)
{
    (void)state;
    st_jw_open(&w, '[');
    st_jw_time(&w, 0);
    st_jw_time(&w, 1735732800 * ST_SEC + 5);
    st_jw_close(&w, ']');
    assert_slice_equal(st_buf_view(&b), "[null,\"2025-01-01T12:00:00.000005Z\"]");
}

static void a_users_bytes_are_json_or_text_or_base64(void **state)
{
    (void)state;
    st_jw_open(&w, '{');
    st_jw_bytes(&w, "json", LIT("{\"n\":123456789012345678901234567890,\"n\": 1.10}"));
    st_jw_bytes(&w, "text", LIT("not JSON,\nbut \xc3\xa4"));
    st_jw_bytes(&w, "bytes", LIT("\xff\0"));
    st_jw_bytes(&w, "broken", LIT("\"\xff\""));
    st_jw_bytes(&w, "empty", LIT(""));
    st_jw_bytes(&w, "none", ST_NONE);
    st_jw_close(&w, '}');
    assert_slice_equal(st_buf_view(&b), "{\"json\":{\"n\":123456789012345678901234567890,\"n\": 1.10},"
                                        "\"text\":\"not JSON,\\nbut \xc3\xa4\",\"bytes_base64\":\"/wA=\","
                                        "\"broken_base64\":\"Iv8i\",\"empty\":\"\",\"none\":null}");
    assert_true(st_json_ok(st_buf_view(&b)));
}

static void too_small_a_buffer_fails_and_does_not_overflow(void **state)
{
    (void)state;
    for (size_t max = 0; max < 30; max++) {
        struct st_buf small;

        st_buf_init(&small, max);
        st_jw_init(&w, &small);
        st_jw_open(&w, '{');
        st_jw_bytes(&w, "key", LIT("\xff\xff\xff\xff"));
        st_jw_close(&w, '}');
        assert_int_equal(small.failed, max < 25); /* {"key_base64":"/////w=="} */
        assert_true(small.len <= max);
        st_buf_clear(&small);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(commas_stand_between_values_only, start, stop),
        cmocka_unit_test_setup_teardown(strings_are_escaped_so_that_no_control_character_is_left, start, stop),
        cmocka_unit_test_setup_teardown(what_is_not_utf8_is_replaced_byte_by_byte, start, stop),
        cmocka_unit_test_setup_teardown(a_written_string_reads_back_as_it_was, start, stop),
        cmocka_unit_test_setup_teardown(numbers_have_a_point_whatever_the_locale, start, stop),
        cmocka_unit_test_setup_teardown(times_are_rfc_3339_and_no_time_is_null, start, stop),
        cmocka_unit_test_setup_teardown(a_users_bytes_are_json_or_text_or_base64, start, stop),
        cmocka_unit_test(too_small_a_buffer_fails_and_does_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
