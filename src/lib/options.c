/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - from the structures of stint.h to the worker's settings.
 *
 * A structure that comes in may be shorter than ours, from a program built against an older header:
 * what it does not have is as in our _INIT.  It may be longer: then what we do not know must be
 * zero.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/lib.h"

#define LEASE_MIN (100 * ST_MS)
#define RENEW_MIN (10 * ST_MS)
#define SLOTS_MAX 4096

/* Lays what the caller has over *out, which holds the defaults. */
static stint_code take_struct(const void *in, void *out, size_t size, const char *name, stint_error *err)
{
    size_t have;

    memcpy(&have, in, sizeof(have)); /* the size is their first member */
    if (have < sizeof(have)) {
        st_fail(err, STINT_EINVAL, "%s has no size", name);
        st_err_remedy(err, "start from its _INIT");
        return STINT_EINVAL;
    }
    for (size_t i = size; i < have; i++) {
        if (((const unsigned char *)in)[i])
            return st_fail(err, STINT_EINVAL, "%s has members that this libstint (" STINT_VERSION ") does not know",
                           name);
    }
    memcpy(out, in, have < size ? have : size);
    return STINT_OK;
}

/* ms to us in *out, which keeps its value where ms is `unset`. */
static stint_code take_ms(int64_t ms, int64_t unset, int64_t min_us, const char *name, int64_t *out, stint_error *err)
{
    char least[ST_DURATION_TEXT];

    if (ms == unset)
        return STINT_OK;
    if (ms < 0 || ms > 365 * ST_DAY / ST_MS || ms * ST_MS < min_us)
        return st_fail(err, STINT_EINVAL, "%s is not between %s and 365d", name, st_duration_format(min_us, least));
    *out = ms * ST_MS;
    return STINT_OK;
}

static stint_code take_delays(const stint_retry *r, struct st_policy *p, stint_error *err)
{
    stint_code rc = STINT_OK;

    if (p->backoff == ST_BACKOFF_LIST && (!r->delays_ms || r->n_delays == 0) && p->n_delays == 0)
        return st_fail(err, STINT_EINVAL, "retry: the backoff \"list\" needs delays_ms");
    if (r->n_delays > ST_DELAYS_MAX)
        return st_fail(err, STINT_EINVAL, "retry: more than %d delays", ST_DELAYS_MAX);
    for (size_t i = 0; r->delays_ms && rc == STINT_OK && i < r->n_delays; i++)
        rc = take_ms(r->delays_ms[i], -1, 0, "retry: a delay", &p->delays_us[i], err);
    if (r->delays_ms && r->n_delays)
        p->n_delays = (int)r->n_delays;
    return rc;
}

/* Over what is in *p. */
static stint_code take_retry(const stint_retry *in, struct st_policy *p, stint_error *err)
{
    stint_retry r = STINT_RETRY_INIT;
    stint_code rc;

    if (!in)
        return STINT_OK;
    rc = take_struct(in, &r, sizeof(r), "stint_retry", err);
    if (rc != STINT_OK)
        return rc;
    if (r.max_attempts < -1 || r.max_attempts > 1000000)
        return st_fail(err, STINT_EINVAL, "retry: max_attempts is not between 0 and 1000000");
    if (r.backoff && !st_backoff_parse(st_slice_cstr(r.backoff), &p->backoff))
        return st_fail(err, STINT_EINVAL, "retry: there is no backoff \"%.40s\"", r.backoff);
    if (r.multiplier != 0 && !(r.multiplier >= 1 && r.multiplier <= 1000))
        return st_fail(err, STINT_EINVAL, "retry: the multiplier is not between 1 and 1000");
    if (r.jitter != -1 && !(r.jitter >= 0 && r.jitter <= 1))
        return st_fail(err, STINT_EINVAL, "retry: the jitter is not between 0 and 1");
    if (r.max_attempts >= 0)
        p->max_attempts = r.max_attempts;
    if (r.multiplier != 0)
        p->multiplier = r.multiplier;
    if (r.jitter != -1)
        p->jitter = r.jitter;
    rc = take_ms(r.initial_ms, -1, 0, "retry: initial_ms", &p->initial_us, err);
    if (rc == STINT_OK)
        rc = take_ms(r.max_ms, -1, 0, "retry: max_ms", &p->max_us, err);
    return rc == STINT_OK ? take_delays(&r, p, err) : rc;
}

/* 0 = as it is, -1 = none. */
static stint_code take_timeout(int64_t ms, struct st_policy *p, stint_error *err)
{
    if (ms == -1) {
        p->timeout_us = 0;
        return STINT_OK;
    }
    return take_ms(ms, 0, 1, "timeout_ms", &p->timeout_us, err);
}

static stint_code check_renew(int64_t lease_us, int64_t renew_us, stint_error *err)
{
    if (renew_us > lease_us / 2)
        return st_fail(err, STINT_EINVAL, "renew_ms must be at most half of the lease");
    return STINT_OK;
}

static stint_code copy_text(const char *in, char **out, stint_error *err)
{
    if (!in)
        return STINT_OK;
    *out = strdup(in);
    return *out ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory for the worker's options");
}

static stint_code take_times(const stint_worker_options *o, struct st_settings *s, stint_error *err)
{
    stint_code rc = take_ms(o->lease_ms, 0, LEASE_MIN, "lease_ms", &s->lease_us, err);

    s->renew_us = s->lease_us / 3;
    if (rc == STINT_OK)
        rc = take_ms(o->renew_ms, 0, RENEW_MIN, "renew_ms", &s->renew_us, err);
    if (rc == STINT_OK)
        rc = check_renew(s->lease_us, s->renew_us, err);
    if (rc == STINT_OK)
        rc = take_ms(o->poll_ms, 0, 10 * ST_MS, "poll_ms", &s->poll_us, err);
    if (rc == STINT_OK && o->shutdown_ms == -1)
        s->shutdown_us = 0;
    else if (rc == STINT_OK)
        rc = take_ms(o->shutdown_ms, 0, 1, "shutdown_ms", &s->shutdown_us, err);
    return rc;
}

static stint_code take_names(const stint_worker_options *o, struct st_settings *s, stint_error *err)
{
    stint_code rc = o->id ? st_id_check(st_slice_cstr(o->id), err) : STINT_OK;

    if (rc == STINT_OK && o->name)
        rc = st_id_check(st_slice_cstr(o->name), err);
    if (rc == STINT_OK)
        rc = copy_text(o->id, &s->worker_id, err);
    if (rc == STINT_OK)
        rc = copy_text(o->name, &s->worker_name, err);
    if (rc == STINT_OK)
        rc = copy_text(o->results_dir, &s->results_dir, err);
    if (rc == STINT_OK && o->queues)
        rc = st_settings_queues(s, o->queues, err);
    return rc;
}

stint_code st_lib_worker_options(const stint_worker_options *in, struct stint_worker *w, stint_error *err)
{
    stint_worker_options o = STINT_WORKER_OPTIONS_INIT;
    stint_code rc = in ? take_struct(in, &o, sizeof(o), "stint_worker_options", err) : STINT_OK;

    st_settings_init(&w->settings);
    w->policy = st_policy_default;
    if (rc != STINT_OK)
        return rc;
    if (o.slots < 0 || o.slots > SLOTS_MAX)
        return st_fail(err, STINT_EINVAL, "slots is not between 1 and %d", SLOTS_MAX);
    w->settings.slots = o.slots ? o.slots : 1;
    w->once = o.once != 0;
    w->event = o.event;
    w->event_arg = o.event_arg;
    rc = take_times(&o, &w->settings, err);
    if (rc == STINT_OK)
        rc = take_names(&o, &w->settings, err);
    if (rc == STINT_OK)
        rc = take_timeout(o.timeout_ms, &w->policy, err);
    return rc == STINT_OK ? take_retry(o.retry, &w->policy, err) : rc;
}

stint_code st_lib_handler_options(const stint_handler_options *in, const struct stint_worker *w, struct lib_handler *h,
                                  stint_error *err)
{
    stint_handler_options o = STINT_HANDLER_OPTIONS_INIT;
    stint_code rc = in ? take_struct(in, &o, sizeof(o), "stint_handler_options", err) : STINT_OK;

    h->policy = w->policy;
    if (rc == STINT_OK)
        rc = take_ms(o.lease_ms, 0, LEASE_MIN, "lease_ms", &h->lease_us, err);
    if (h->lease_us)
        h->renew_us = h->lease_us / 3;
    if (rc == STINT_OK)
        rc = take_ms(o.renew_ms, 0, RENEW_MIN, "renew_ms", &h->renew_us, err);
    if (rc == STINT_OK)
        rc = check_renew(h->lease_us ? h->lease_us : w->settings.lease_us, h->renew_us, err);
    if (rc == STINT_OK)
        rc = take_timeout(o.timeout_ms, &h->policy, err);
    return rc == STINT_OK ? take_retry(o.retry, &h->policy, err) : rc;
}
