/* SPDX-License-Identifier: Apache-2.0
 *
 * show.c - a job as the JSON people and programs read.
 *
 * The names and their order are promised; new ones may be added, none may change.  Memory
 * is shown in bytes.  The spec hash is not stored: it is computed from type, queue and payload.
 *
 * Invariant: what stands in `error` stands in `errors` too.
 *
 * Thread: any; there is no state here.
 */
#include "job/show.h"

#include <string.h>

#include "job/spec.h"

static void put_cstr(struct st_jw *w, const char *key, const char *s)
{
    st_jw_key(w, key);
    st_jw_cstr(w, s);
}

static void put_int(struct st_jw *w, const char *key, int64_t v)
{
    st_jw_key(w, key);
    st_jw_int(w, v);
}

static void put_time(struct st_jw *w, const char *key, int64_t us)
{
    st_jw_key(w, key);
    st_jw_time(w, us);
}

/* A number, or null where `none` stands for not known. */
static void put_int_unless(struct st_jw *w, const char *key, int64_t v, int64_t none)
{
    st_jw_key(w, key);
    if (v == none)
        st_jw_null(w);
    else
        st_jw_int(w, v);
}

static void put_kind(struct st_jw *w, enum st_kind kind)
{
    put_cstr(w, "kind", kind == ST_KIND_NONE ? NULL : st_kind_name(kind));
}

bool st_job_has_error(const struct st_job_info *info)
{
    if (info->error_kind == ST_KIND_CANCELLED)
        return info->state == ST_CANCELLED;
    return info->error_kind != ST_KIND_NONE;
}

static void put_error(struct st_jw *w, const struct st_job_info *info)
{
    st_jw_key(w, "error");
    if (!st_job_has_error(info)) {
        st_jw_null(w);
        return;
    }
    st_jw_open(w, '{');
    put_kind(w, info->error_kind);
    put_cstr(w, "message", info->error_message);
    st_jw_close(w, '}');
}

/* Attempts that succeeded, were given back or go on have no error to tell. */
static bool attempt_failed(const struct st_attempt_info *a)
{
    return a->outcome && (!strcmp(a->outcome, "retry") || !strcmp(a->outcome, "failed") ||
                          !strcmp(a->outcome, "lease_expired") || !strcmp(a->outcome, "cancelled"));
}

/* A cancellation that met no attempt: the job waited. */
static bool cancelled_waiting(const struct st_job_info *info)
{
    const struct st_attempt_info *last = info->n_attempts ? &info->attempts[info->n_attempts - 1] : NULL;

    return info->state == ST_CANCELLED && info->error_kind == ST_KIND_CANCELLED &&
           !(last && last->outcome && !strcmp(last->outcome, "cancelled") && last->ended_us >= info->finished_us);
}

/* attempt 0: it was not running. */
static void put_one_error(struct st_jw *w, enum st_kind kind, const char *message, int attempt, int64_t at_us)
{
    st_jw_open(w, '{');
    put_kind(w, kind);
    put_cstr(w, "message", message);
    put_int_unless(w, "attempt", attempt, 0);
    put_time(w, "at", at_us);
    st_jw_close(w, '}');
}

static void put_errors(struct st_jw *w, const struct st_job_info *info)
{
    st_jw_key(w, "errors");
    st_jw_open(w, '[');
    for (size_t i = 0; i < info->n_attempts; i++) {
        const struct st_attempt_info *a = &info->attempts[i];

        if (attempt_failed(a))
            put_one_error(w, a->kind, a->message, a->n, a->ended_us);
    }
    if (cancelled_waiting(info))
        put_one_error(w, info->error_kind, info->error_message, 0, info->finished_us);
    st_jw_close(w, ']');
}

static void put_attempt(struct st_jw *w, const struct st_attempt_info *a)
{
    st_jw_open(w, '{');
    put_int(w, "n", a->n);
    put_int(w, "fence", a->fence);
    put_cstr(w, "worker", a->worker);
    put_time(w, "started_at", a->started_us);
    put_time(w, "ended_at", a->ended_us);
    put_cstr(w, "outcome", a->outcome);
    put_kind(w, a->kind);
    put_cstr(w, "message", a->message);
    put_int_unless(w, "exit_code", a->exit_code, -1);
    put_int_unless(w, "signal", a->signal, 0);
    put_int_unless(w, "max_rss", a->max_rss_kb * 1024, 0);
    put_cstr(w, "log", a->log);
    st_jw_close(w, '}');
}

static void put_attempts(struct st_jw *w, const struct st_job_info *info)
{
    st_jw_key(w, "attempts");
    st_jw_open(w, '[');
    for (size_t i = 0; i < info->n_attempts; i++)
        put_attempt(w, &info->attempts[i]);
    st_jw_close(w, ']');
}

static void put_spec_hash(struct st_jw *w, const struct st_job_info *info)
{
    char hash[ST_HASH_LEN + 1];
    stint_code rc = st_spec_hash(st_slice_cstr(info->type), st_slice_cstr(info->queue), info->payload, hash, NULL);

    put_cstr(w, "spec_hash", rc == STINT_OK ? hash : NULL);
}

static void put_timeout(struct st_jw *w, int64_t timeout_us)
{
    char text[ST_DURATION_TEXT];

    put_cstr(w, "timeout", timeout_us > 0 ? st_duration_format(timeout_us, text) : NULL);
}

static void put_what(struct st_jw *w, const struct st_job_info *info)
{
    put_cstr(w, "id", info->id);
    put_cstr(w, "type", info->type);
    put_cstr(w, "queue", info->queue);
    put_cstr(w, "state", st_shown_name(info->shown));
    put_int(w, "priority", info->priority);
    put_int(w, "attempt", info->attempt);
    put_int(w, "max_attempts", info->max_attempts);
    put_time(w, "created_at", info->created_us);
    put_time(w, "run_at", info->due_us);
    put_time(w, "started_at", info->started_us);
    put_time(w, "finished_at", info->finished_us);
}

void st_job_show_json(struct st_jw *w, const struct st_job_info *info, bool full)
{
    bool loaded = full || info->payload.p;

    st_jw_open(w, '{');
    put_what(w, info);
    if (loaded) {
        st_jw_bytes(w, "payload", info->payload);
        st_jw_bytes(w, "result", info->result);
    }
    put_cstr(w, "result_ref", info->result_ref);
    put_error(w, info);
    if (full)
        put_errors(w, info);
    put_cstr(w, "worker", info->worker);
    put_time(w, "lease_until", info->lease_until_us);
    put_cstr(w, "key", info->key);
    if (loaded)
        put_spec_hash(w, info);
    put_timeout(w, info->timeout_us);
    put_time(w, "deadline", info->deadline_us);
    put_int(w, "fence", info->fence);
    if (loaded) {
        st_jw_bytes(w, "progress", info->progress);
        st_jw_bytes(w, "meta", info->meta);
    }
    if (full)
        put_attempts(w, info);
    st_jw_close(w, '}');
}
