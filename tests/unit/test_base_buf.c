/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_buf.c - a buffer keeps to its maximum and to whole appends.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "unit.h"

static void appends_follow_each_other_and_end_in_nul(void **state)
{
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 1000);
    assert_null(b.p);
    assert_slice_equal(st_buf_view(&b), "");
    st_buf_puts(&b, "ab");
    st_buf_putc(&b, 'c');
    st_buf_put(&b, "d\0e", 3);
    st_buf_slice(&b, LIT("f"));
    st_buf_printf(&b, "-%05d-", 42);
    assert_int_equal(b.len, 14);
    assert_memory_equal(b.p, "abcd\0ef-00042-", 15);
    assert_false(b.failed);
    st_buf_clear(&b);
    assert_null(b.p);
}

static void what_does_not_fit_is_left_out_and_so_is_the_rest(void **state)
{
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 5);
    st_buf_puts(&b, "1234");
    st_buf_puts(&b, "56");
    assert_true(b.failed);
    st_buf_putc(&b, '5');
    assert_slice_equal(st_buf_view(&b), "1234");
    st_buf_reset(&b);
    st_buf_puts(&b, "12345");
    assert_false(b.failed);
    assert_slice_equal(st_buf_view(&b), "12345");
    assert_int_equal(b.p[5], 0);
    st_buf_clear(&b);
    assert_int_equal(b.max, 5);
}

static void printf_takes_exactly_what_is_left(void **state)
{
    struct st_buf b;

    (void)state;
    for (int width = 60; width <= 70; width++) { /* around the first allocation */
        st_buf_init(&b, 70);
        st_buf_printf(&b, "%*d", width, 7);
        assert_int_equal(b.len, width);
        assert_int_equal(b.p[width - 1], '7');
        st_buf_clear(&b);
    }
    st_buf_init(&b, 70);
    st_buf_puts(&b, "kept");
    st_buf_printf(&b, "%67d", 7);
    assert_true(b.failed);
    assert_slice_equal(st_buf_view(&b), "kept");
    assert_int_equal(b.p[4], 0);
    st_buf_clear(&b);
}

static void a_buffer_grows_to_its_maximum_and_no_further(void **state)
{
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 100000);
    for (int i = 0; i < 100000; i++)
        st_buf_putc(&b, (char)('a' + i % 26));
    assert_false(b.failed);
    assert_true(b.cap <= 100001);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.p[i], 'a' + i % 26);
    st_buf_putc(&b, 'x');
    assert_true(b.failed);
    st_buf_clear(&b);

    st_buf_init(&b, SIZE_MAX); /* no maximum is no reason to overflow */
    st_buf_puts(&b, "a");
    st_buf_put(&b, "b", SIZE_MAX - 1);
    assert_true(b.failed);
    st_buf_clear(&b);
}

/* As log lines are made: the memory is larger than what may be used of it for now. */
static void a_buffer_over_an_array_keeps_to_its_maximum_too(void **state)
{
    char mem[33];
    struct st_buf b = {.p = mem, .cap = sizeof(mem), .max = 20};

    (void)state;
    st_buf_puts(&b, "123456789");
    st_buf_printf(&b, "%12d", 7);
    assert_true(b.failed);
    assert_slice_equal(st_buf_view(&b), "123456789");
    assert_int_equal(b.p[9], 0);
    b.failed = false;
    b.max = 32;
    st_buf_printf(&b, "%23d", 7);
    assert_false(b.failed);
    assert_int_equal(b.len, 32);
    assert_ptr_equal(b.p, mem);
}

static void taking_gives_the_bytes_away(void **state)
{
    struct st_buf b;
    char *p;

    (void)state;
    st_buf_init(&b, 10);
    st_buf_puts(&b, "mine");
    p = st_buf_take(&b);
    assert_string_equal(p, "mine");
    free(p);
    assert_int_equal(b.len, 0);
    st_buf_puts(&b, "next");
    assert_slice_equal(st_buf_view(&b), "next");
    st_buf_puts(&b, "too much to hold");
    assert_null(st_buf_take(&b));
    assert_null(b.p);
    st_buf_reset(&b);
    p = st_buf_take(&b); /* empty is not failed */
    assert_string_equal(p, "");
    free(p);
}

static void base64_is_rfc_4648(void **state)
{
    static const char *const t[][2] = {{"", ""},
                                       {"f", "Zg=="},
                                       {"fo", "Zm8="},
                                       {"foo", "Zm9v"},
                                       {"foob", "Zm9vYg=="},
                                       {"fooba", "Zm9vYmE="},
                                       {"foobar", "Zm9vYmFy"},
                                       {"\xff\xfe\xfb", "//77"}};
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 100);
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        st_buf_reset(&b);
        st_buf_base64(&b, st_slice_cstr(t[i][0]));
        assert_slice_equal(st_buf_view(&b), t[i][1]);
        assert_int_equal(b.p[b.len], 0);
    }
    st_buf_reset(&b);
    st_buf_base64(&b, LIT("\0\0"));
    assert_slice_equal(st_buf_view(&b), "AAA=");
    st_buf_clear(&b);

    st_buf_init(&b, 7);
    st_buf_base64(&b, LIT("foob"));
    assert_true(b.failed);
    assert_int_equal(b.len, 0);
    st_buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_follow_each_other_and_end_in_nul),
        cmocka_unit_test(what_does_not_fit_is_left_out_and_so_is_the_rest),
        cmocka_unit_test(printf_takes_exactly_what_is_left),
        cmocka_unit_test(a_buffer_grows_to_its_maximum_and_no_further),
        cmocka_unit_test(a_buffer_over_an_array_keeps_to_its_maximum_too),
        cmocka_unit_test(taking_gives_the_bytes_away),
        cmocka_unit_test(base64_is_rfc_4648),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
