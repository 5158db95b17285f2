/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_err.c - errors are one line of UTF-8, whatever goes into them.
 */
#include <string.h>

#include "base/err.h"
#include "unit.h"

static void a_failure_fills_the_error_and_returns_the_code(void **state)
{
    stint_error err;

    (void)state;
    memset(&err, 'x', sizeof(err));
    assert_int_equal(st_fail(&err, STINT_EAGAIN, "%s is %d", "it", 7), STINT_EAGAIN);
    assert_int_equal(err.code, STINT_EAGAIN);
    assert_string_equal(err.message, "it is 7");
    assert_string_equal(err.detail, "");
    assert_string_equal(err.remedy, "");
}

static void a_refusal_says_what_is_wrong_and_what_to_do(void **state)
{
    stint_error err;

    (void)state;
    memset(&err, 'x', sizeof(err));
    assert_int_equal(st_refuse(&err, "use 100% of it", "%d is too many", 7), STINT_EINVAL);
    assert_int_equal(err.code, STINT_EINVAL);
    assert_string_equal(err.message, "7 is too many");
    assert_string_equal(err.remedy, "use 100% of it");
    assert_string_equal(err.detail, "");
}

static void no_call_minds_a_missing_error(void **state)
{
    (void)state;
    assert_int_equal(st_refuse(NULL, "nor this", "nobody reads this"), STINT_EINVAL);
    assert_int_equal(st_fail(NULL, STINT_EINVAL, "nobody reads this"), STINT_EINVAL);
    st_err_remedy(NULL, "nor this");
    st_err_detail(NULL, "nor this");
    st_err_prefix(NULL, "nor this");
    st_err_clear(NULL);
}

static void a_long_message_is_cut_between_characters(void **state)
{
    char text[400] = "a"; /* puts the two-byte characters at odd offsets */
    stint_error err;

    (void)state;
    for (int i = 0; i < 190; i++)
        strcat(text, "\xc3\xa4");
    st_fail(&err, STINT_EINVAL, "%s", text);
    assert_true(st_utf8_valid(err.message, strlen(err.message)));
    assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
    st_fail(&err, STINT_EINVAL, "%s", text + 1);
    assert_true(st_utf8_valid(err.message, strlen(err.message)));
    assert_int_equal(strlen(err.message), sizeof(err.message) - 2);
}

static void a_message_may_be_made_from_itself(void **state)
{
    stint_error err;

    (void)state;
    st_fail(&err, STINT_EINVAL, "the inside");
    st_fail(&err, STINT_ESTORE, "outside, %s, outside", err.message);
    assert_string_equal(err.message, "outside, the inside, outside");
    st_err_prefix(&err, "file %d", 3);
    assert_string_equal(err.message, "file 3: outside, the inside, outside");
    assert_int_equal(err.code, STINT_ESTORE);
}

static void a_prefix_longer_than_a_message_stays_inside_it(void **state)
{
    char text[600];
    stint_error err;

    (void)state;
    memset(text, 'p', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    st_fail(&err, STINT_EINVAL, "m");
    st_err_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
}

static void messages_are_one_line_of_utf8(void **state)
{
    stint_error err;

    (void)state;
    st_fail(&err, STINT_EINVAL,
            "a\nb\x1b[2J\xff\xc3\xa4\xc2\x9b"
            "c\n\r\n");
    assert_string_equal(err.message, "a b [2J?\xc3\xa4  c");
    st_err_remedy(&err, "try\tthis");
    assert_string_equal(err.remedy, "try this");
}

static void detail_and_remedy_are_cut_to_their_room(void **state)
{
    stint_error err;

    (void)state;
    st_fail(&err, STINT_ESTORE, "m");
    st_err_detail(&err, "01234567890123456789");
    assert_string_equal(err.detail, "012345678901234");
    st_err_detail(&err, NULL);
    assert_string_equal(err.detail, "");
    st_err_remedy(&err, "%500d", 1);
    assert_int_equal(strlen(err.remedy), sizeof(err.remedy) - 1);
    st_err_clear(&err);
    assert_int_equal(err.code, STINT_OK);
    assert_string_equal(err.message, "");
}

static void every_code_has_a_name_and_a_sentence(void **state)
{
    (void)state;
    assert_string_equal(stint_code_name(STINT_OK), "OK");
    assert_string_equal(stint_code_name(STINT_EAGAIN), "EAGAIN");
    assert_string_equal(stint_code_name(STINT_ENOMEM), "ENOMEM");
    assert_string_equal(stint_code_text(STINT_ENOMEM), "out of memory");
    assert_string_equal(stint_code_name((stint_code)999), "?");
    assert_string_equal(stint_code_name((stint_code)-1), "?");
    assert_non_null(stint_code_text((stint_code)999));
    assert_true(strlen(stint_version()) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_fills_the_error_and_returns_the_code),
        cmocka_unit_test(a_refusal_says_what_is_wrong_and_what_to_do),
        cmocka_unit_test(no_call_minds_a_missing_error),
        cmocka_unit_test(a_long_message_is_cut_between_characters),
        cmocka_unit_test(a_message_may_be_made_from_itself),
        cmocka_unit_test(a_prefix_longer_than_a_message_stays_inside_it),
        cmocka_unit_test(messages_are_one_line_of_utf8),
        cmocka_unit_test(detail_and_remedy_are_cut_to_their_room),
        cmocka_unit_test(every_code_has_a_name_and_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
