/* SPDX-License-Identifier: Apache-2.0
 *
 * policy.c - how often, how long and how soon again: retry policies.
 *
 * Delays are computed as doubles and cut to whole microseconds at the very end, so that no
 * multiplier and no attempt number can overflow; nothing waits longer than DELAY_CEILING_US.
 * A max_us of 0 sets no cap of its own.
 *
 * Thread: any; there is no state here.
 */
#include "job/policy.h"

#include <math.h>

#include "base/json.h"
#include "job/number.h"

#define DELAY_CEILING_US (36500 * ST_DAY) /* the longest duration people can write */

const struct st_policy st_policy_default = {
    .max_attempts = 3,
    .timeout_us = ST_HOUR,
    .backoff = ST_BACKOFF_EXPONENTIAL,
    .initial_us = 10 * ST_SEC,
    .multiplier = 2,
    .max_us = 300 * ST_SEC,
    .jitter = 0.1,
};

/* ---- delays ------------------------------------------------------------------------ */

static double capped(const struct st_policy *p, double us)
{
    return p->max_us > 0 && us > (double)p->max_us ? (double)p->max_us : us;
}

static double asynq_delay(int attempt, double unit)
{
    double n = attempt - 1;

    return (n * n * n * n + 15 + floor(unit * 30) * (n + 1)) * (double)ST_SEC;
}

static double list_delay(const struct st_policy *p, int attempt)
{
    int n = p->n_delays < ST_DELAYS_MAX ? p->n_delays : ST_DELAYS_MAX;

    if (n <= 0)
        return (double)p->initial_us;
    return (double)p->delays_us[attempt <= n ? attempt - 1 : n - 1];
}

/* Before jitter. */
static double plain_delay(const struct st_policy *p, int attempt)
{
    double initial = (double)p->initial_us;

    switch (p->backoff) {
    case ST_BACKOFF_EXPONENTIAL:
        return initial > 0 ? capped(p, initial * pow(p->multiplier, attempt - 1)) : 0;
    case ST_BACKOFF_LINEAR:
        return capped(p, initial * attempt);
    case ST_BACKOFF_LIST:
        return list_delay(p, attempt);
    case ST_BACKOFF_FIXED:
    case ST_BACKOFF_ASYNQ:
        break;
    }
    return initial;
}

int64_t st_policy_delay(const struct st_policy *p, int attempt, double unit)
{
    double us;

    if (attempt < 1)
        attempt = 1;
    if (p->backoff == ST_BACKOFF_ASYNQ)
        us = asynq_delay(attempt, unit);
    else
        us = plain_delay(p, attempt) * (1 - p->jitter + 2 * p->jitter * unit);
    if (!(us > 0)) /* a NaN too */
        return 0;
    return us < (double)DELAY_CEILING_US ? (int64_t)us : DELAY_CEILING_US;
}

bool st_policy_may_retry(int max_attempts, int attempt)
{
    return max_attempts <= 0 || attempt < max_attempts;
}

/* ---- names ------------------------------------------------------------------------- */

static const char *const backoff_names[] = {
    [ST_BACKOFF_EXPONENTIAL] = "exponential",
    [ST_BACKOFF_LINEAR] = "linear",
    [ST_BACKOFF_FIXED] = "fixed",
    [ST_BACKOFF_ASYNQ] = "asynq",
    [ST_BACKOFF_LIST] = "list",
};
#define BACKOFF_N (sizeof(backoff_names) / sizeof(backoff_names[0]))

const char *st_backoff_name(enum st_backoff b)
{
    return (unsigned)b < BACKOFF_N ? backoff_names[b] : "?";
}

bool st_backoff_parse(struct st_slice s, enum st_backoff *out)
{
    for (unsigned i = 0; i < BACKOFF_N; i++) {
        if (st_slice_is(s, backoff_names[i])) {
            *out = (enum st_backoff)i;
            return true;
        }
    }
    return false;
}

/* ---- as text ----------------------------------------------------------------------- */

static void write_double(struct st_jw *w, const char *key, double d)
{
    char text[ST_NUMBER_TEXT];

    st_jw_key(w, key);
    st_jw_raw(w, st_slice_cstr(st_number_repr(isfinite(d) ? d : 0, text)));
}

static void write_int(struct st_jw *w, const char *key, int64_t v)
{
    st_jw_key(w, key);
    st_jw_int(w, v);
}

void st_policy_write(const struct st_policy *p, struct st_buf *out)
{
    struct st_jw w;

    st_jw_init(&w, out);
    st_jw_open(&w, '{');
    write_int(&w, "max_attempts", p->max_attempts);
    write_int(&w, "timeout_us", p->timeout_us);
    st_jw_key(&w, "backoff");
    st_jw_cstr(&w, st_backoff_name(p->backoff));
    write_int(&w, "initial_us", p->initial_us);
    write_double(&w, "multiplier", p->multiplier);
    write_int(&w, "max_us", p->max_us);
    write_double(&w, "jitter", p->jitter);
    st_jw_key(&w, "delays_us");
    st_jw_open(&w, '[');
    for (int i = 0; i < p->n_delays && i < ST_DELAYS_MAX; i++)
        st_jw_int(&w, p->delays_us[i]);
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
}

static bool read_us(struct st_slice v, int64_t *out)
{
    return st_json_i64(v, out) && *out >= 0;
}

static bool read_double(struct st_slice v, double *out)
{
    return st_json_typeof(v) == ST_JSON_NUMBER && st_number_parse(v, out) && isfinite(*out) && *out >= 0;
}

static bool read_attempts(struct st_slice v, int *out)
{
    int64_t n;

    if (!read_us(v, &n) || n > INT32_MAX)
        return false;
    *out = (int)n;
    return true;
}

static bool read_backoff(struct st_slice v, enum st_backoff *out)
{
    if (st_json_typeof(v) != ST_JSON_STRING)
        return false;
    return st_backoff_parse(ST_SLICE(v.p + 1, v.len - 2), out);
}

static bool read_delays(struct st_slice v, struct st_policy *p)
{
    struct st_slice key, item;
    size_t pos = 0;

    if (st_json_typeof(v) != ST_JSON_ARRAY)
        return false;
    p->n_delays = 0;
    while (st_json_next(v, &pos, &key, &item)) {
        if (p->n_delays == ST_DELAYS_MAX || !read_us(item, &p->delays_us[p->n_delays]))
            return false;
        p->n_delays++;
    }
    return true;
}

static bool read_member(struct st_slice key, struct st_slice v, struct st_policy *p)
{
    if (st_slice_is(key, "max_attempts"))
        return read_attempts(v, &p->max_attempts);
    if (st_slice_is(key, "timeout_us"))
        return read_us(v, &p->timeout_us);
    if (st_slice_is(key, "backoff"))
        return read_backoff(v, &p->backoff);
    if (st_slice_is(key, "initial_us"))
        return read_us(v, &p->initial_us);
    if (st_slice_is(key, "multiplier"))
        return read_double(v, &p->multiplier);
    if (st_slice_is(key, "max_us"))
        return read_us(v, &p->max_us);
    if (st_slice_is(key, "jitter"))
        return read_double(v, &p->jitter);
    if (st_slice_is(key, "delays_us"))
        return read_delays(v, p);
    return true; /* a later version's member */
}

/* What is not there keeps its default, so that an older row stays readable. */
bool st_policy_read(struct st_slice text, struct st_policy *out)
{
    struct st_policy p = st_policy_default;
    struct st_slice key, value, doc;
    size_t pos = 0;

    if (!st_json_ok(text))
        return false;
    doc = st_json_trim(text);
    if (st_json_typeof(doc) != ST_JSON_OBJECT)
        return false;
    while (st_json_next(doc, &pos, &key, &value))
        if (!read_member(key, value, &p))
            return false;
    *out = p;
    return true;
}
