/* SPDX-License-Identifier: Apache-2.0
 *
 * client.c - the producers' side of stint.h on top of a store.
 *
 * Thread: a handle belongs to one at a time; there is no state outside handles.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enqueue/await.h"
#include "job/show.h"
#include "lib/lib.h"

#define BATCH_MAX 1000000 /* as of the store, before anything is allocated */

/* ---- open and close ---------------------------------------------------------------------- */

const char *st_lib_url(const char *url)
{
    static const char *const names[] = {"STINT_STORE", "DATABASE_URL", "REDIS_URL"};

    for (size_t i = 0; !url && i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i]);

        if (value && *value)
            url = value;
    }
    return url ? url : "sqlite:stint.db";
}

const char *st_lib_signal(void)
{
    const char *url = getenv("STINT_SIGNAL");

    return url && *url ? url : NULL;
}

stint_code stint_open(const char *url, int timeout_ms, stint **out, stint_error *err)
{
    struct st_store_open opt = {.timeout_ms = timeout_ms, .signal = st_lib_signal()};
    stint *st;
    stint_code rc;

    if (!out)
        return st_fail(err, STINT_EINVAL, "there is no place for the handle: out is NULL");
    *out = NULL;
    if (timeout_ms < 0)
        return st_fail(err, STINT_EINVAL, "the timeout is negative");
    st = calloc(1, sizeof(*st));
    if (!st)
        return st_fail(err, STINT_ENOMEM, "no memory for a handle");
    st->pid = getpid();
    rc = st_store_open(st_lib_url(url), &opt, &st->store, err);
    if (rc != STINT_OK) {
        free(st);
        return rc;
    }
    *out = st;
    return STINT_OK;
}

void stint_close(stint *st)
{
    if (!st)
        return;
    if (!st_lib_forked(st->pid))
        st_store_close(st->store);
    free(st);
}

stint_code st_lib_usable(const stint *st, stint_error *err)
{
    if (!st)
        return st_fail(err, STINT_EINVAL, "the handle is NULL: stint_open() gives one");
    return st_lib_same_process(st->pid, "handle", "stint_open()", err);
}

void stint_free(void *p)
{
    free(p);
}

/* ---- enqueue ----------------------------------------------------------------------------- */

/* ms to us; what does not fit becomes a value that the checks refuse. */
static int64_t us_of_ms(int64_t ms)
{
    if (ms > INT64_MAX / ST_MS)
        return INT64_MAX;
    return ms < INT64_MIN / ST_MS ? INT64_MIN : ms * ST_MS;
}

static stint_code take_job(const stint_job *in, struct st_enqueue_item *item, stint_error *err)
{
    struct st_new_job *job = &item->job;
    stint_code rc = STINT_OK;

    *job = st_new_job_default;
    job->id = st_slice_cstr(in->id);
    job->type = st_slice_cstr(in->type);
    job->queue = st_slice_cstr(in->queue);
    job->payload = ST_SLICE(in->payload, in->payload_len);
    job->meta = st_slice_cstr(in->meta);
    job->key = st_slice_cstr(in->key);
    job->priority = in->priority;
    job->delay_us = us_of_ms(in->delay_ms);
    job->due_us = in->at_us;
    job->max_attempts = in->max_attempts;
    job->timeout_us = in->timeout_ms == -1 ? -1 : us_of_ms(in->timeout_ms);
    if (!in->payload && in->payload_len)
        return st_fail(err, STINT_EINVAL, "the payload is NULL and has a length");
    if (in->unique) {
        rc = st_unique_parse(st_slice_cstr(in->unique), &job->unique, &job->window_us, err);
        if (rc != STINT_OK)
            st_err_prefix(err, "unique");
    }
    return rc == STINT_OK ? st_enqueue_check(item, ST_PAYLOAD_MAX, err) : rc;
}

static stint_code take_jobs(const stint_job *in, size_t n, struct st_enqueue_item *items, struct st_new_job *jobs,
                            stint_error *err)
{
    for (size_t i = 0; i < n; i++) {
        stint_code rc = take_job(&in[i], &items[i], err);

        if (rc != STINT_OK) {
            if (n > 1)
                st_err_prefix(err, "job %zu of %zu", i + 1, n);
            return rc;
        }
        jobs[i] = items[i].job;
    }
    return STINT_OK;
}

static stint_code add_jobs(const stint_job *jobs, size_t n, stint_enqueued *out, st_lib_add_fn add, void *arg,
                           stint_error *err)
{
    struct st_enqueue_item *items = calloc(n ? n : 1, sizeof(*items));
    struct st_new_job *new_jobs = calloc(n ? n : 1, sizeof(*new_jobs));
    struct st_enqueued *added = calloc(n ? n : 1, sizeof(*added));
    stint_code rc;

    if (out)
        memset(out, 0, n * sizeof(*out));
    if (!items || !new_jobs || !added)
        rc = st_fail(err, STINT_ENOMEM, "no memory for %zu jobs", n);
    else
        rc = take_jobs(jobs, n, items, new_jobs, err);
    if (rc == STINT_OK) {
        rc = add(arg, new_jobs, n, added, err);
        for (size_t i = 0; out && i < n; i++) {
            memcpy(out[i].id, added[i].id, sizeof(out[i].id));
            out[i].duplicate = added[i].duplicate;
        }
    }
    free(items);
    free(new_jobs);
    free(added);
    return rc;
}

stint_code st_lib_enqueue(const stint_job *jobs, size_t n, stint_enqueued *out, st_lib_add_fn add, void *arg,
                          stint_error *err)
{
    if (n && !jobs)
        return st_fail(err, STINT_EINVAL, "there are no jobs: the list is NULL");
    if (n > BATCH_MAX)
        return st_fail(err, STINT_EINVAL, "too many jobs at once: %zu, at most %d", n, BATCH_MAX);
    return add_jobs(jobs, n, out, add, arg, err);
}

static stint_code add_to_store(void *arg, const struct st_new_job *jobs, size_t n, struct st_enqueued *out,
                               stint_error *err)
{
    return st_enqueue(arg, jobs, n, out, err);
}

stint_code stint_enqueue(stint *st, const stint_job *jobs, size_t n, stint_enqueued *out, stint_error *err)
{
    stint_code rc = st_lib_usable(st, err);

    return rc == STINT_OK ? st_lib_enqueue(jobs, n, out, add_to_store, st->store, err) : rc;
}

/* ---- look, wait, cancel ------------------------------------------------------------------ */

static stint_code check_call(const stint *st, const char *id, stint_error *err)
{
    stint_code rc = st_lib_usable(st, err);

    if (rc != STINT_OK)
        return rc;
    if (!id)
        return st_fail(err, STINT_EINVAL, "the id is NULL");
    return st_id_check(st_slice_cstr(id), err);
}

stint_code stint_get(stint *st, const char *id, char **json, stint_error *err)
{
    struct st_job_info info = {0};
    struct st_buf text;
    struct st_jw w;
    stint_code rc = check_call(st, id, err);

    if (!json)
        return st_fail(err, STINT_EINVAL, "there is no place for the job: json is NULL");
    *json = NULL;
    if (rc == STINT_OK)
        rc = st_store_get(st->store, 0, st_slice_cstr(id), &info, err);
    if (rc != STINT_OK)
        return rc;
    st_buf_init(&text, ST_SHOW_MAX);
    st_jw_init(&w, &text);
    st_job_show_json(&w, &info, true);
    st_job_info_clear(&info);
    *json = st_buf_take(&text);
    if (!*json)
        rc = st_fail(err, STINT_ENOMEM, "no memory to show job %s", id);
    st_buf_clear(&text);
    return rc;
}

stint_code stint_wait(stint *st, const char *id, int timeout_ms, const char **state, stint_error *err)
{
    struct st_job_info info = {0};
    stint_code rc = check_call(st, id, err);

    if (state)
        *state = NULL;
    if (rc == STINT_OK)
        rc = st_await(st->store, st_slice_cstr(id), timeout_ms, &info, err);
    if (rc != STINT_OK)
        return rc;
    if (state)
        *state = st_state_name(info.state);
    st_job_info_clear(&info);
    return STINT_OK;
}

static stint_code cancel_refused(stint_code verdict, const char *id, stint_error *err)
{
    if (verdict == STINT_ENOTFOUND)
        return st_fail(err, verdict, "there is no job %s", id);
    return st_fail(err, verdict, "job %s has ended already", id);
}

stint_code stint_cancel(stint *st, const char *id, stint_error *err)
{
    struct st_slice ids = st_slice_cstr(id);
    stint_code verdict = STINT_OK, rc = check_call(st, id, err);
    bool asked = false;

    if (rc == STINT_OK)
        rc = st_store_cancel(st->store, 0, &ids, 1, &verdict, &asked, err);
    if (rc != STINT_OK)
        return rc;
    return verdict == STINT_OK ? STINT_OK : cancel_refused(verdict, id, err);
}
