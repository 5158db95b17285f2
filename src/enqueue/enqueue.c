/* SPDX-License-Identifier: Apache-2.0
 *
 * enqueue.c - the way every new job takes into a store: checked, filled in, handed over.
 *
 *     given --check--> complete --store--> OK | EINVAL | EEXISTS | ...
 *                                  |  ^
 *                          EUNKNOWN|  |the same ids again
 *                                  `--'
 *
 * Invariants:
 *   (1) no job without an id reaches a store, so an unknown outcome can always be asked again;
 *   (2) once one try ended EUNKNOWN, "nothing was changed" is no longer an answer: EAGAIN and
 *       ESTORE of a later try speak of that try alone.
 *
 * Thread: the store handle's.
 */
#include "enqueue/enqueue.h"

#include <string.h>
#include <time.h>

#define SPAN_MAX_US     (36500 * ST_DAY)
#define TIME_MAX_US     ((int64_t)253402300799 * ST_SEC) /* the end of 9999 */
#define REPEAT_FIRST_US (10 * ST_MS)
#define REPEAT_MAX_US   (500 * ST_MS)

const struct st_new_job st_new_job_default = {.max_attempts = -1, .timeout_us = -1};

stint_code st_unique_parse(struct st_slice text, enum st_unique *out, int64_t *window_us,
                           stint_error *err)
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
        return st_fail(err, STINT_EINVAL, "a window of no time holds nothing");
    return STINT_OK;
}

/* ---- checks ------------------------------------------------------------------------ */

static stint_code check_payload(const struct st_new_job *job, size_t max, stint_error *err)
{
    stint_code rc;

    if (job->payload.len <= max)
        return STINT_OK;
    rc = st_fail(err, STINT_EINVAL, "the payload has %zu bytes, the limit is %zu", job->payload.len,
                 max);
    st_err_remedy(err, "raise limits.payload, or put the data in a file and enqueue its name");
    return rc;
}

static stint_code check_meta(const struct st_new_job *job, size_t max, stint_error *err)
{
    if (!job->meta.p)
        return STINT_OK;
    if (job->meta.len > max)
        return st_fail(err, STINT_EINVAL, "meta has %zu bytes, the limit is %zu (limits.payload)",
                       job->meta.len, max);
    if (st_json_check(job->meta, err) != STINT_OK) {
        st_err_prefix(err, "meta");
        return STINT_EINVAL;
    }
    if (st_json_typeof(st_json_trim(job->meta)) != ST_JSON_OBJECT)
        return st_fail(err, STINT_EINVAL, "meta is not a JSON object");
    return STINT_OK;
}

static stint_code check_times(const struct st_new_job *job, stint_error *err)
{
    if (job->delay_us < 0 || job->delay_us > SPAN_MAX_US)
        return st_fail(err, STINT_EINVAL, "the delay is %s",
                       job->delay_us < 0 ? "negative" : "longer than 36500d");
    if (job->due_us < 0 || job->due_us > TIME_MAX_US)
        return st_fail(err, STINT_EINVAL, "the time to run at is %s",
                       job->due_us < 0 ? "before 1970" : "after the year 9999");
    if (job->due_us && job->delay_us)
        return st_fail(err, STINT_EINVAL, "both delay and at are given; one of them is enough");
    if (job->timeout_us < -1 || job->timeout_us > SPAN_MAX_US)
        return st_fail(err, STINT_EINVAL, "the timeout is %s",
                       job->timeout_us < 0 ? "negative" : "longer than 36500d");
    return STINT_OK;
}

static stint_code check_numbers(const struct st_new_job *job, stint_error *err)
{
    if (job->priority < ST_PRIORITY_MIN || job->priority > ST_PRIORITY_MAX)
        return st_fail(err, STINT_EINVAL, "priority %d is not in %d..%d", job->priority,
                       ST_PRIORITY_MIN, ST_PRIORITY_MAX);
    if (job->max_attempts < -1)
        return st_fail(err, STINT_EINVAL, "max_attempts %d is negative", job->max_attempts);
    return check_times(job, err);
}

/* Names last what the hash is made of, so it runs when everything else is settled. */
static stint_code fill_key(struct st_enqueue_item *item, stint_error *err)
{
    struct st_new_job *job = &item->job;
    stint_code rc;

    if (job->key.p && job->unique == ST_UNIQUE_NONE)
        job->unique = ST_UNIQUE_ACTIVE;
    if (job->unique == ST_UNIQUE_NONE)
        return STINT_OK;
    if (job->unique == ST_UNIQUE_WINDOW && (job->window_us <= 0 || job->window_us > SPAN_MAX_US))
        return st_fail(err, STINT_EINVAL, "unique: the window is not in 1us..36500d");
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

/* ---- to the store ------------------------------------------------------------------ */

static void name_ids(const struct st_new_job *jobs, size_t n, struct st_enqueued *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = jobs[i].id.len < ST_ID_MAX ? jobs[i].id.len : ST_ID_MAX;

        if (len)
            memcpy(out[i].id, jobs[i].id.p, len);
        out[i].id[len] = '\0';
        out[i].duplicate = false;
    }
}

static void pause_us(int64_t us)
{
    struct timespec t = {.tv_sec = us / ST_SEC, .tv_nsec = us % ST_SEC * 1000};

    nanosleep(&t, NULL);
}

/* Does this answer to a repeated enqueue say what became of the first? */
static bool settles(stint_code rc)
{
    return rc == STINT_OK || rc == STINT_EEXISTS || rc == STINT_EINVAL;
}

stint_code st_enqueue(struct st_store *store, const struct st_new_job *jobs, size_t n,
                      struct st_enqueued *out, stint_error *err)
{
    int64_t give_up_us = st_clock_mono_us() + store->timeout_ms * ST_MS;
    int64_t wait_us = REPEAT_FIRST_US;
    stint_error unknown, later;
    stint_code rc;

    name_ids(jobs, n, out);
    if (n == 0)
        return STINT_OK;
    rc = st_store_enqueue(store, 0, jobs, n, out, err);
    if (rc != STINT_EUNKNOWN)
        return rc;
    if (err)
        unknown = *err;
    while (st_clock_mono_us() + wait_us < give_up_us) {
        pause_us(wait_us);
        rc = st_store_enqueue(store, 0, jobs, n, out, err ? &later : NULL);
        if (settles(rc)) {
            if (err && rc != STINT_OK)
                *err = later;
            return rc;
        }
        wait_us = wait_us * 2 < REPEAT_MAX_US ? wait_us * 2 : REPEAT_MAX_US;
    }
    name_ids(jobs, n, out);
    if (err)
        *err = unknown;
    return STINT_EUNKNOWN;
}
