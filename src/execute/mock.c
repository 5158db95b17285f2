/* SPDX-License-Identifier: Apache-2.0
 *
 * mock.c - the built-in handler `mock`: sleeps N seconds and returns random figures.
 *
 * For trying out a deployment before there is a model to run, and for measuring what stint itself costs.
 *
 * Thread: one of the pool's.
 */
#include "execute/mock.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "job/number.h"

#define SECONDS_MAX 86400.0
#define SAMPLES     1000

stint_code st_mock_seconds(struct st_slice payload, double *out, stint_error *err)
{
    struct st_slice v = ST_NONE;

    *out = 1;
    if (payload.len && st_json_ok(payload)) {
        v = st_json_trim(payload);
        if (st_json_typeof(v) == ST_JSON_OBJECT)
            v = st_json_member(v, "seconds");
        else if (st_json_typeof(v) == ST_JSON_NULL)
            v = ST_NONE;
    }
    if (!v.p)
        return STINT_OK;
    if (st_json_typeof(v) != ST_JSON_NUMBER)
        return st_fail(err, STINT_EINVAL, "mock: the payload is a number of seconds, or an object with `seconds`");
    if (!st_number_parse(v, out))
        return st_fail(err, STINT_ENOMEM, "mock: no memory");
    if (!(*out >= 0 && *out <= SECONDS_MAX))
        return st_fail(err, STINT_EINVAL, "mock: seconds must be between 0 and 86400");
    return STINT_OK;
}

/* Until the time has passed or somebody wants it to stop. */
static void rest(struct st_pool_item *it, double seconds)
{
    const int64_t until = st_clock_mono_us() + (int64_t)(seconds * 1e6);
    struct pollfd p = {.fd = -1, .events = POLLIN};
    int64_t left = until - st_clock_mono_us();

    if (left > 0)
        p.fd = st_item_abort_fd(it);
    while (left > 0 && !atomic_load(&it->abort)) {
        int64_t ms = (left + 999) / 1000;

        poll(&p, 1, p.fd < 0 && ms > 100 ? 100 : ms > 60000 ? 60000 : (int)ms);
        left = until - st_clock_mono_us();
    }
}

static char *figures(double seconds, size_t *len)
{
    double sum = 0, squares = 0, least = 1, most = 0, mean;
    struct st_buf b;
    struct st_jw w;

    for (int i = 0; i < SAMPLES; i++) {
        double x = st_random_unit();

        sum += x;
        squares += x * x;
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    mean = sum / SAMPLES;
    st_buf_init(&b, 1024);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "n");
    st_jw_int(&w, SAMPLES);
    st_jw_key(&w, "mean");
    st_jw_num(&w, mean, 6);
    st_jw_key(&w, "std");
    st_jw_num(&w, sqrt(fmax(0, squares / SAMPLES - mean * mean)), 6);
    st_jw_key(&w, "min");
    st_jw_num(&w, least, 6);
    st_jw_key(&w, "max");
    st_jw_num(&w, most, 6);
    st_jw_key(&w, "seconds");
    st_jw_num(&w, seconds, 3);
    st_jw_close(&w, '}');
    *len = b.len;
    return st_buf_take(&b);
}

/* The message of {"fail": ...}, or NULL. */
static char *told_to_fail(struct st_slice payload)
{
    struct st_slice v = payload.len && st_json_ok(payload) ? st_json_member(st_json_trim(payload), "fail") : ST_NONE;
    struct st_buf b;
    char *text;

    st_buf_init(&b, 1000);
    if (!v.p || !st_json_string(v, &b))
        return NULL;
    text = st_buf_take(&b);
    st_buf_clear(&b);
    return text;
}

static void run(void *arg, struct st_pool_item *it)
{
    stint_error err = {0};
    char *fail = NULL;
    double seconds;

    (void)arg;
    if (st_mock_seconds(it->job->payload, &seconds, &err)) {
        it->ran.ok = false;
        it->ran.advice = ST_PERMANENT;
        st_ran_fail(&it->ran, ST_KIND_APP_ERROR, "%s", err.message);
        return;
    }
    rest(it, seconds);
    fail = told_to_fail(it->job->payload);
    if (fail) {
        it->ran.ok = false;
        st_ran_fail(&it->ran, ST_KIND_APP_ERROR, "%s", fail);
    } else {
        it->ran.result = figures(seconds, &it->ran.result_len);
    }
    free(fail);
}

st_handler_fn st_mock_handler(void)
{
    return run;
}
