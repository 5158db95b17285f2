/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_duration.c - any text as a duration and as a time.
 *
 * What must hold: what is accepted is in range and comes back the same from its written form;
 * what is refused leaves the result alone and says why in one line of UTF-8; any number can be
 * written.
 */
#include "fuzz.h"

#include <string.h>

#include "base/clock.h"

#define UNTOUCHED 0x5354494e54

static void check_error(const stint_error *err, int64_t us)
{
    MUST(us == UNTOUCHED);
    MUST(err->code == STINT_EINVAL && err->message[0] && err->remedy[0]);
    MUST(st_utf8_valid(err->message, strlen(err->message)));
    MUST(!strpbrk(err->message, "\r\n\t\x1b"));
}

static void check_duration(struct st_slice s)
{
    int64_t us = UNTOUCHED, again;
    char out[ST_DURATION_TEXT];
    stint_error err = {0};

    if (st_duration_parse(s, &us, &err) != STINT_OK) {
        check_error(&err, us);
        return;
    }
    MUST(us >= 0 && us <= 36500 * ST_DAY && us % ST_MS == 0);
    st_duration_format(us, out);
    MUST(st_duration_parse(st_slice_cstr(out), &again, NULL) == STINT_OK && again == us);
}

static void check_time(struct st_slice s)
{
    int64_t us = UNTOUCHED, again;
    char out[ST_TIME_TEXT];
    stint_error err = {0};

    if (st_time_parse(s, &us, &err) != STINT_OK) {
        check_error(&err, us);
        return;
    }
    st_time_format(us, out);
    MUST(strlen(out) == 27);
    MUST(st_time_parse(st_slice_cstr(out), &again, NULL) == STINT_OK && again == us);
}

/* A number from anywhere; most random ones lie beyond year 9999, the folded ones do not. */
static void check_number(int64_t us)
{
    char out[ST_DURATION_TEXT > ST_TIME_TEXT ? ST_DURATION_TEXT : ST_TIME_TEXT];
    int64_t again, folded = us % (200000 * (int64_t)366 * ST_DAY / 100);

    MUST(strlen(st_duration_format(us, out)) < ST_DURATION_TEXT);
    MUST(strlen(st_time_format(us, out)) < ST_TIME_TEXT);
    st_time_format(folded, out);
    if (strlen(out) == 27 && out[0] != '-')
        MUST(st_time_parse(st_slice_cstr(out), &again, NULL) == STINT_OK && again == folded);
    folded = us < 0 ? 0 : us % (36500 * ST_DAY) / ST_MS * ST_MS;
    st_duration_format(folded, out);
    MUST(st_duration_parse(st_slice_cstr(out), &again, NULL) == STINT_OK && again == folded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_slice s = ST_SLICE((const char *)data, size);
    int64_t us = 0;

    check_duration(s);
    check_time(s);
    memcpy(&us, data, size < sizeof(us) ? size : sizeof(us));
    check_number(us);
    return 0;
}
