/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - what every libFuzzer target includes.
 */
#ifndef ST_TESTS_FUZZ_H
#define ST_TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* What must hold for every input, whether or not asserts are compiled in. */
#define MUST(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #cond);                                      \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
