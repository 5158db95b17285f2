/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - the clocks, and times and durations as people write them.
 *
 * All times are int64_t microseconds.  Real time counts from 1970, UTC.  Code that decides
 * something takes the time as an argument; only its outermost caller reads a clock.
 */
#ifndef ST_BASE_CLOCK_H
#define ST_BASE_CLOCK_H

#include "base/err.h"
#include "base/str.h"

#define ST_MS   ((int64_t)1000)
#define ST_SEC  (1000 * ST_MS)
#define ST_MIN  (60 * ST_SEC)
#define ST_HOUR (60 * ST_MIN)
#define ST_DAY  (24 * ST_HOUR)

int64_t st_clock_real_us(void);
int64_t st_clock_mono_us(void); /* for measuring; stops in suspend */
int64_t st_clock_boot_us(void); /* CLOCK_BOOTTIME: what leases are counted by */

/* "90s", "1h30m", "250ms", "2d": units ms s m h d, each at most once, largest first; at most
 * 36500d.  A bare number, a sign, blanks or an empty text are errors that say so (EINVAL). */
stint_code st_duration_parse(struct st_slice s, int64_t *us, stint_error *err);
/* The same, back: "1h30m", "0s", "250ms"; below a millisecond "0.25ms".  Returns out. */
#define ST_DURATION_TEXT 48
char *st_duration_format(int64_t us, char out[ST_DURATION_TEXT]);

/* RFC 3339 with a zone ("2025-01-01T12:00:00Z", "+02:00", fraction up to 9 digits, cut to
 * microseconds).  Leap second 60 is taken as 59. */
stint_code st_time_parse(struct st_slice s, int64_t *us, stint_error *err);
/* "2025-01-01T12:00:00.000000Z" */
#define ST_TIME_TEXT 40
char *st_time_format(int64_t us, char out[ST_TIME_TEXT]);

#endif
