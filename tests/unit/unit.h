/* SPDX-License-Identifier: Apache-2.0
 *
 * unit.h - what every unit test includes.
 */
#ifndef ST_TESTS_UNIT_H
#define ST_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/str.h"

/* A string literal as a slice, NUL bytes inside it included. */
#define LIT(s) ST_SLICE((s), sizeof(s) - 1)

#define assert_slice_equal(slice, text)                                                                                \
    do {                                                                                                               \
        struct st_slice slice_ = (slice);                                                                              \
        assert_non_null(slice_.p);                                                                                     \
        assert_int_equal(slice_.len, strlen(text));                                                                    \
        assert_memory_equal(slice_.p, (text), slice_.len);                                                             \
    } while (0)

#endif
