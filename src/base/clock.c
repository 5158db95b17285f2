/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.c - the clocks, and times and durations as people write them.
 *
 * Invariants:
 *   (1) a duration that parsed is formatted to a text that parses to the same value;
 *   (2) so is a time: what st_time_parse lets through lies in the years 0000 to 9999, UTC.
 *
 * Thread: any; no state.
 */
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DURATION_MAX (36500 * ST_DAY)
#define SHOWN        40 /* bytes of a wrong text that the message repeats */

static int64_t read_clock(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts); /* cannot fail for the clocks we name */
    return (int64_t)ts.tv_sec * ST_SEC + ts.tv_nsec / 1000;
}

int64_t st_clock_real_us(void)
{
    return read_clock(CLOCK_REALTIME);
}

int64_t st_clock_mono_us(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t st_clock_boot_us(void)
{
    return read_clock(CLOCK_BOOTTIME);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "what "text" why", with the text cut to a readable length. */
static stint_code bad(stint_error *err, const char *what, struct st_slice s, const char *why)
{
    size_t n = st_utf8_cut(s.p, s.len, SHOWN);

    return st_fail(err, STINT_EINVAL, "%s \"%.*s%s\" %s", what, (int)n, n ? s.p : "", n < s.len ? "..." : "", why);
}

/* --- durations --- */

static const struct unit {
    const char *name;
    int64_t us;
} units[] = {{"d", ST_DAY}, {"h", ST_HOUR}, {"m", ST_MIN}, {"s", ST_SEC}, {"ms", ST_MS}};

#define N_UNITS (sizeof(units) / sizeof(units[0]))

static stint_code bad_duration(stint_error *err, struct st_slice s, const char *why)
{
    stint_code rc = bad(err, "the duration", s, why);

    st_err_remedy(err, "write numbers with units d, h, m, s, ms, such as 90s, 1h30m or 250ms");
    return rc;
}

/* The decimal number at s.p[*pos]; stays at a value above every maximum if it is too large. */
static int64_t take_number(struct st_slice s, size_t *pos)
{
    int64_t v = 0;

    for (; *pos < s.len && is_digit(s.p[*pos]); (*pos)++)
        if (v <= DURATION_MAX)
            v = v * 10 + (s.p[*pos] - '0');
    return v;
}

static size_t take_unit(struct st_slice s, size_t *pos)
{
    size_t from = *pos, i;

    while (*pos < s.len && !is_digit(s.p[*pos]))
        (*pos)++;
    for (i = 0; i < N_UNITS; i++)
        if (st_slice_is(ST_SLICE(s.p + from, *pos - from), units[i].name))
            break;
    return i;
}

/* Why there is no number at s.p[pos]. */
static const char *no_number(struct st_slice s, size_t pos)
{
    if (s.len == 0)
        return "is empty";
    if (s.p[pos] == '-' || s.p[pos] == '+')
        return "has a sign";
    return "does not start with a number";
}

/* Why the text from s.p[pos], which follows a number, is no unit. */
static const char *no_unit(struct st_slice s, size_t pos)
{
    if (pos == s.len)
        return "has a number without a unit";
    if (s.p[pos] == '.' || s.p[pos] == ',')
        return "has a fraction";
    if (s.p[pos] == ' ' || s.p[pos] == '\t')
        return "has a blank in it";
    return "has an unknown unit";
}

stint_code st_duration_parse(struct st_slice s, int64_t *us, stint_error *err)
{
    size_t pos = 0, next_unit = 0;
    int64_t total = 0;

    if (s.len == 0 || !is_digit(s.p[0]))
        return bad_duration(err, s, no_number(s, 0));
    while (pos < s.len) { /* at a digit */
        int64_t n = take_number(s, &pos), part;
        size_t at = pos, u = take_unit(s, &pos);

        if (u == N_UNITS)
            return bad_duration(err, s, no_unit(s, at));
        if (u < next_unit)
            return bad_duration(err, s, "must have each unit once, the largest first");
        next_unit = u + 1;
        if (__builtin_mul_overflow(n, units[u].us, &part) || __builtin_add_overflow(total, part, &total) ||
            total > DURATION_MAX)
            return bad_duration(err, s, "is longer than 36500d");
    }
    *us = total;
    return STINT_OK;
}

char *st_duration_format(int64_t us, char out[ST_DURATION_TEXT])
{
    uint64_t left = us < 0 ? 0 - (uint64_t)us : (uint64_t)us;
    size_t at = 0;

    if (us < 0)
        out[at++] = '-';
    for (size_t i = 0; i < N_UNITS - 1; i++) {
        uint64_t unit = (uint64_t)units[i].us, n = left / unit;

        left %= unit;
        if (n)
            at += (size_t)snprintf(out + at, ST_DURATION_TEXT - at, "%" PRIu64 "%s", n, units[i].name);
    }
    if (left % 1000) {
        at += (size_t)snprintf(out + at, ST_DURATION_TEXT - at, "%" PRIu64 ".%03" PRIu64, left / 1000, left % 1000);
        while (out[at - 1] == '0')
            at--;
        snprintf(out + at, ST_DURATION_TEXT - at, "ms");
    } else if (left) {
        snprintf(out + at, ST_DURATION_TEXT - at, "%" PRIu64 "ms", left / 1000);
    } else if (us == 0) {
        snprintf(out, ST_DURATION_TEXT, "0s");
    }
    return out;
}

/* --- times --- */

struct date {
    int year;
    unsigned char month, day;
};

/* Both ways between dates and days since 1970, in the Gregorian calendar for ever; years begin in
 * March here, so that the leap day comes last (after Howard Hinnant's chrono algorithms). */
static int64_t days_from_date(struct date d)
{
    int64_t y = d.month <= 2 ? d.year - 1 : d.year;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    int64_t yoe = y - era * 400;
    int64_t doy = (153 * (d.month + (d.month > 2 ? -3 : 9)) + 2) / 5 + d.day - 1;

    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

static struct date date_from_days(int64_t days)
{
    int64_t z = days + 719468;
    int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153;
    unsigned char month = (unsigned char)(mp < 10 ? mp + 3 : mp - 9);

    return (struct date){
        .year = (int)(yoe + era * 400) + (month <= 2), /* 64 bits of us reach year 294247 */
        .month = month,
        .day = (unsigned char)(doy - (153 * mp + 2) / 5 + 1),
    };
}

static int month_days(struct date d)
{
    static const char days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = d.year % 4 == 0 && (d.year % 100 != 0 || d.year % 400 == 0);

    return d.month == 2 && leap ? 29 : days[d.month - 1];
}

/* Does s have this shape at *pos?  '0' stands for a digit.  Then steps over it. */
static bool take_shape(struct st_slice s, size_t *pos, const char *shape)
{
    size_t n = strlen(shape);

    if (s.len - *pos < n)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = s.p[*pos + i];

        if (shape[i] == '0' ? !is_digit(c) : c != shape[i])
            return false;
    }
    *pos += n;
    return true;
}

static int two(const char *p)
{
    return (p[0] - '0') * 10 + p[1] - '0';
}

/* ".123456789" to microseconds, 0 if there is none; false if it is malformed. */
static bool take_fraction(struct st_slice s, size_t *pos, int64_t *us)
{
    int digits = 0;

    *us = 0;
    if (*pos == s.len || s.p[*pos] != '.')
        return true;
    for ((*pos)++; *pos < s.len && is_digit(s.p[*pos]); (*pos)++, digits++)
        if (digits < 6)
            *us = *us * 10 + (s.p[*pos] - '0');
    for (int i = digits; i < 6; i++)
        *us *= 10;
    return digits >= 1 && digits <= 9;
}

/* "Z" or "+02:00", to the end of s. */
static bool take_zone(struct st_slice s, size_t pos, int64_t *offset_us)
{
    size_t at = pos + 1;
    const char *p;

    if (pos == s.len)
        return false;
    p = s.p + pos;
    *offset_us = 0;
    if (*p == 'Z' || *p == 'z')
        return at == s.len;
    if ((*p != '+' && *p != '-') || !take_shape(s, &at, "00:00") || at != s.len)
        return false;
    if (two(p + 1) > 23 || two(p + 4) > 59)
        return false;
    *offset_us = two(p + 1) * ST_HOUR + two(p + 4) * ST_MIN;
    if (*p == '-')
        *offset_us = -*offset_us;
    return true;
}

static stint_code bad_time(stint_error *err, struct st_slice s, const char *why)
{
    stint_code rc = bad(err, "the time", s, why);

    st_err_remedy(err, "write it as 2025-01-31T12:00:00Z or 2025-01-31T14:00:00+02:00");
    return rc;
}

stint_code st_time_parse(struct st_slice s, int64_t *us, stint_error *err)
{
    size_t pos = 0;
    int64_t fraction, offset, t;
    struct date d;
    int hour, minute, second;

    if (!take_shape(s, &pos, "0000-00-00") || pos == s.len || !strchr("Tt ", s.p[pos]) || s.p[pos++] == '\0' ||
        !take_shape(s, &pos, "00:00:00"))
        return bad_time(err, s, "is not of the form YYYY-MM-DDTHH:MM:SSZ");
    d = (struct date){two(s.p) * 100 + two(s.p + 2), (unsigned char)two(s.p + 5), (unsigned char)two(s.p + 8)};
    hour = two(s.p + 11);
    minute = two(s.p + 14);
    second = two(s.p + 17);
    if (d.month < 1 || d.month > 12 || d.day < 1 || d.day > month_days(d))
        return bad_time(err, s, "names a day that does not exist");
    if (hour > 23 || minute > 59 || second > 60)
        return bad_time(err, s, "names a time of day that does not exist");
    if (second == 60)
        second = 59;
    if (!take_fraction(s, &pos, &fraction))
        return bad_time(err, s, "must have one to nine digits after the point");
    if (!take_zone(s, pos, &offset))
        return bad_time(err, s, "must end in Z or an offset such as +02:00");

    t = days_from_date(d) * ST_DAY + hour * ST_HOUR + minute * ST_MIN + second * ST_SEC + fraction - offset;
    if (t < days_from_date((struct date){0, 1, 1}) * ST_DAY || t >= days_from_date((struct date){10000, 1, 1}) * ST_DAY)
        return bad_time(err, s, "is outside the years 0000 to 9999");
    *us = t;
    return STINT_OK;
}

char *st_time_format(int64_t us, char out[ST_TIME_TEXT])
{
    int64_t days = us / ST_DAY, rest = us % ST_DAY;
    struct date d;

    if (rest < 0) {
        rest += ST_DAY;
        days--;
    }
    d = date_from_days(days);
    snprintf(out, ST_TIME_TEXT, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", d.year, d.month, d.day, (int)(rest / ST_HOUR),
             (int)(rest / ST_MIN % 60), (int)(rest / ST_SEC % 60), (int)(rest % ST_SEC));
    return out;
}
