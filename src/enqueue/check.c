/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - a new job before any store sees it: checked whole, and filled in.
 *
 * Everything that can be wrong with a job is found here, so that stores may trust what they get.
 * The order matters once: the unique key may be the hash of type, queue and payload, so it is
 * made when those are settled.
 *
 * Thread: any; there is no state here.
 */
#include "enqueue/enqueue.h"

#define SPAN_MAX_US (36500 * ST_DAY)
#define TIME_MAX_US ((int64_t)253402300799 * ST_SEC) /* the end of 9999 */

const struct st_new_job st_new_job_default = {.max_attempts = -1, .timeout_us = -1};

stint_code st_unique_parse(struct st_slice text, enum st_unique *out, int64_t *window_us, stint_error *err)
{
    *window_us = 0;
    if (st_slice_is(text, "active")) {
        *out = ST_UNIQUE_ACTIVE;
        return STINT_OK;
    }
    if (st_slice_is(text, "forever")) {
        *out = ST_UNIQUE_FOREVER;
        return STINT_OK;
    }
    *out = ST_UNIQUE_WINDOW;
    if (st_duration_parse(text, window_us, err) != STINT_OK) {
        st_err_remedy(err, "use active, forever or a duration such as 10m");
        return STINT_EINVAL;
    }
    if (*window_us == 0)
        return st_refuse(err, "use active, forever or a duration such as 10m", "a window of no time holds nothing");
    return STINT_OK;
}

stint_code st_timeout_parse(struct st_slice text, int64_t *us, stint_error *err)
{
    *us = 0;
    if (st_slice_is(text, "none"))
        return STINT_OK;
    if (st_duration_parse(text, us, err) == STINT_OK)
        return STINT_OK;
    st_err_remedy(err, "use none or a duration such as 30s or 1h30m");
    return STINT_EINVAL;
}

/* ---- checks ------------------------------------------------------------------------ */

stint_code st_payload_too_large(size_t len, bool more, size_t max, stint_error *err)
{
    st_fail(err, STINT_EINVAL, "the payload has %s%zu bytes, the limit is %zu", more ? "more than " : "", len, max);
    st_err_remedy(err, "raise limits.payload, or put the data in a file and enqueue its name");
    return STINT_EINVAL;
}

static stint_code check_payload(const struct st_new_job *job, size_t max, stint_error *err)
{
    if (job->payload.len <= max)
        return STINT_OK;
    return st_payload_too_large(job->payload.len, false, max, err);
}

static stint_code check_meta(const struct st_new_job *job, size_t max, stint_error *err)
{
    static const char object[] = "write an object, such as {\"by\":\"ada\"}";

    if (!job->meta.p)
        return STINT_OK;
    if (job->meta.len > max)
        return st_refuse(err, "raise limits.payload, or put the data elsewhere and name it here",
                         "meta has %zu bytes, the limit is %zu", job->meta.len, max);
    if (st_json_check(job->meta, err) != STINT_OK) {
        st_err_prefix(err, "meta");
        st_err_remedy(err, "%s", object);
        return STINT_EINVAL;
    }
    if (st_json_typeof(st_json_trim(job->meta)) != ST_JSON_OBJECT)
        return st_refuse(err, object, "meta is not a JSON object");
    return STINT_OK;
}

static stint_code check_times(const struct st_new_job *job, stint_error *err)
{
    static const char span[] = "a duration is 0s to 36500d";

    if (job->delay_us < 0 || job->delay_us > SPAN_MAX_US)
        return st_refuse(err, span, "the delay is %s", job->delay_us < 0 ? "negative" : "longer than 36500d");
    if (job->due_us < 0 || job->due_us > TIME_MAX_US)
        return st_refuse(err, "a time is in the years 1970 to 9999", "the time to run at is %s",
                         job->due_us < 0 ? "before 1970" : "after the year 9999");
    if (job->due_us && job->delay_us)
        return st_refuse(err, "one of them is enough: take the other out", "both delay and at are given");
    if (job->timeout_us < -1 || job->timeout_us > SPAN_MAX_US)
        return st_refuse(err, span, "the timeout is %s", job->timeout_us < 0 ? "negative" : "longer than 36500d");
    return STINT_OK;
}

static stint_code check_numbers(const struct st_new_job *job, stint_error *err)
{
    static const char attempts[] = "say how often it may run, 0 for no limit";

    if (job->priority < ST_PRIORITY_MIN || job->priority > ST_PRIORITY_MAX)
        return st_refuse(err, "choose a number in that range; higher runs first", "priority %d is not in %d..%d",
                         job->priority, ST_PRIORITY_MIN, ST_PRIORITY_MAX);
    if (job->max_attempts < -1)
        return st_refuse(err, attempts, "max_attempts %d is negative", job->max_attempts);
    if (job->max_attempts > ST_ATTEMPTS_MAX)
        return st_refuse(err, attempts, "max_attempts %d is more than %d", job->max_attempts, ST_ATTEMPTS_MAX);
    return check_times(job, err);
}

static stint_code fill_key(struct st_enqueue_item *item, stint_error *err)
{
    struct st_new_job *job = &item->job;
    stint_code rc;

    if (job->key.p && job->unique == ST_UNIQUE_NONE)
        job->unique = ST_UNIQUE_ACTIVE;
    if (job->unique == ST_UNIQUE_NONE)
        return STINT_OK;
    if (job->unique == ST_UNIQUE_WINDOW && (job->window_us <= 0 || job->window_us > SPAN_MAX_US))
        return st_refuse(err, "use active, forever or a duration such as 10m",
                         "unique: the window is not in 1us..36500d");
    if (job->key.p)
        return st_key_check(job->key, err);
    rc = st_spec_hash(job->type, job->queue, job->payload, item->key, err);
    if (rc == STINT_OK)
        job->key = ST_SLICE(item->key, ST_HASH_LEN);
    return rc;
}

static stint_code check_names(struct st_enqueue_item *item, stint_error *err)
{
    struct st_new_job *job = &item->job;
    stint_code rc = st_type_check(job->type, err);

    if (!job->queue.p)
        job->queue = st_slice_cstr(ST_QUEUE_DEFAULT);
    if (rc == STINT_OK)
        rc = st_queue_check(job->queue, err);
    if (rc != STINT_OK || job->id.p)
        return rc == STINT_OK ? st_id_check(job->id, err) : rc;
    st_id_new(item->id);
    job->id = ST_SLICE(item->id, ST_UUID_LEN);
    return STINT_OK;
}

stint_code st_enqueue_check(struct st_enqueue_item *item, size_t payload_max, stint_error *err)
{
    stint_code rc = check_names(item, err);

    if (!item->job.payload.p)
        item->job.payload = ST_SLICE("", 0);
    if (rc == STINT_OK)
        rc = check_payload(&item->job, payload_max, err);
    if (rc == STINT_OK)
        rc = check_meta(&item->job, payload_max, err);
    if (rc == STINT_OK)
        rc = check_numbers(&item->job, err);
    return rc == STINT_OK ? fill_key(item, err) : rc;
}
