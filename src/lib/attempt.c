/* SPDX-License-Identifier: Apache-2.0
 *
 * attempt.c - one run of one job, as its handler sees it.
 *
 *     pool thread -> middleware 0 -> stint_next -> middleware 1 -> ... -> handler
 *                                                                            |
 *     outcome     <- may say otherwise  <--------- sees what was said <------'
 *
 * The outcome is said by a call, or by the code that is returned where no call was made.  It lies
 * in the pool item's st_ran from the start, so that saying it costs nothing later.
 *
 * Thread: the pool's, one per attempt; what stint.h opens to any thread touches only atomics and
 * the log's lock.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "lib/lib.h"

#define PROGRESS_MAX (16 * 1024)

/* ---- what it is -------------------------------------------------------------------------- */

static const struct st_job *job_of(const stint_attempt *a)
{
    return a->it->job;
}

static const char *text_of(struct st_slice s, size_t *len)
{
    if (len)
        *len = s.len;
    return s.p;
}

const char *stint_attempt_id(const stint_attempt *a)
{
    return job_of(a)->id;
}

const char *stint_attempt_type(const stint_attempt *a)
{
    return job_of(a)->type;
}

const char *stint_attempt_queue(const stint_attempt *a)
{
    return job_of(a)->queue;
}

const char *stint_attempt_worker(const stint_attempt *a)
{
    return a->w->id;
}

const char *stint_attempt_payload(const stint_attempt *a, size_t *len)
{
    const char *p = text_of(job_of(a)->payload, len);

    return p ? p : "";
}

const char *stint_attempt_meta(const stint_attempt *a, size_t *len)
{
    return text_of(job_of(a)->meta, len);
}

int stint_attempt_number(const stint_attempt *a)
{
    return job_of(a)->attempt;
}

int stint_attempt_max(const stint_attempt *a)
{
    return job_of(a)->policy.max_attempts;
}

int64_t stint_attempt_fence(const stint_attempt *a)
{
    return job_of(a)->fence;
}

int64_t stint_attempt_deadline_us(const stint_attempt *a)
{
    int64_t timeout_us = job_of(a)->policy.timeout_us;

    if (timeout_us <= 0)
        return 0;
    return st_clock_real_us() - st_clock_boot_us() + atomic_load(&a->it->started_us) + timeout_us;
}

/* ---- being told to stop ------------------------------------------------------------------ */

const char *stint_attempt_aborted(const stint_attempt *a)
{
    enum st_abort why = (enum st_abort)atomic_load(&a->it->abort);

    if (why == ST_ABORT_NOT)
        return NULL;
    return st_abort_name(why == ST_ABORT_LEASE ? ST_ABORT_ERROR : why);
}

int stint_attempt_abort_fd(stint_attempt *a)
{
    return st_item_abort_fd(a->it);
}

/* ---- while it runs ----------------------------------------------------------------------- */

stint_code stint_attempt_progress(stint_attempt *a, const char *json, size_t len)
{
    struct st_slice doc = ST_SLICE(json, len);

    if (!json || len > PROGRESS_MAX || !st_json_ok(doc))
        return STINT_EINVAL;
    return st_item_progress(a->it, doc) ? STINT_OK : STINT_ENOMEM;
}

stint_code stint_attempt_log(stint_attempt *a, const char *line)
{
    if (!line)
        return STINT_EINVAL;
    pthread_mutex_lock(&a->log_mutex);
    if (!a->has_log) {
        st_runlog_open(&a->log, NULL, job_of(a), 0);
        a->has_log = true;
    }
    st_runlog_put(&a->log, ST_STDERR, line, strlen(line));
    st_runlog_put(&a->log, ST_STDERR, "\n", 1);
    pthread_mutex_unlock(&a->log_mutex);
    st_log(ST_LOG_INFO, "job.log", ST_F("job", job_of(a)->id), ST_F("type", job_of(a)->type), ST_F("line", line));
    return STINT_OK;
}

/* ---- how it ends ------------------------------------------------------------------------- */

void st_lib_unsay(stint_attempt *a)
{
    struct st_ran *ran = &a->it->ran;

    st_ran_clear(ran); /* nothing of the log is in it yet */
    ran->ok = true;
    a->said = STINT_UNDECIDED;
    a->explicitly = false;
}

/* false: it is too late for that. */
static bool say(stint_attempt *a, stint_outcome what)
{
    if (a->settled)
        return false;
    st_lib_unsay(a);
    a->said = what;
    a->explicitly = true;
    return true;
}

static void say_failed(stint_attempt *a, enum st_kind kind, const char *message)
{
    st_ran_fail(&a->it->ran, kind, "%s", message ? message : "");
    if (a->said == STINT_PERMANENT)
        a->it->ran.advice = ST_PERMANENT;
}

stint_code stint_attempt_complete(stint_attempt *a, const void *result, size_t len)
{
    struct st_ran *ran = &a->it->ran;

    if (!result && len)
        return STINT_EINVAL;
    if (len > a->w->settings.limits.result) {
        if (!say(a, STINT_PERMANENT))
            return STINT_ESTATE;
        say_failed(a, ST_KIND_RESULT_TOO_LARGE, "the result is larger than 10 MiB");
        return STINT_EINVAL;
    }
    if (!say(a, STINT_SUCCEEDED))
        return STINT_ESTATE;
    if (!result)
        return STINT_OK;
    ran->result = malloc(len + 1);
    if (!ran->result) {
        st_lib_unsay(a);
        return STINT_ENOMEM;
    }
    memcpy(ran->result, result, len);
    ran->result[len] = '\0';
    ran->result_len = len;
    return STINT_OK;
}

/* us, or -1 where ms is -1; false = out of range. */
static bool delay_of(int64_t ms, int64_t *us)
{
    if (ms < -1 || ms > INT64_MAX / ST_MS / 4)
        return false;
    *us = ms < 0 ? -1 : ms * ST_MS;
    return true;
}

stint_code stint_attempt_fail(stint_attempt *a, stint_outcome how, int64_t after_ms, const char *message)
{
    int64_t after_us;

    if ((how != STINT_RETRY && how != STINT_PERMANENT) || !delay_of(after_ms, &after_us))
        return STINT_EINVAL;
    if (!say(a, how))
        return STINT_ESTATE;
    say_failed(a, how == STINT_PERMANENT ? ST_KIND_PERMANENT : ST_KIND_APP_ERROR, message);
    a->it->ran.retry_after_us = after_us;
    return STINT_OK;
}

stint_code stint_attempt_snooze(stint_attempt *a, int64_t after_ms)
{
    int64_t after_us;

    if (after_ms < 0 || !delay_of(after_ms, &after_us))
        return STINT_EINVAL;
    if (!say(a, STINT_SNOOZED))
        return STINT_ESTATE;
    a->it->ran.ok = false;
    a->it->ran.advice = ST_SNOOZE;
    a->it->ran.retry_after_us = after_us;
    return STINT_OK;
}

stint_outcome stint_attempt_outcome(const stint_attempt *a)
{
    return a->said;
}

const char *stint_attempt_result(const stint_attempt *a, size_t *len)
{
    if (len)
        *len = a->it->ran.result_len;
    return a->it->ran.result;
}

const char *stint_attempt_error(const stint_attempt *a)
{
    return a->it->ran.message;
}

/* ---- the onion --------------------------------------------------------------------------- */

/* What a returned code says, where no call has said it. */
static void heed_code(stint_attempt *a, stint_code rc)
{
    char text[128];

    if (a->settled)
        return;
    if (rc == STINT_OK) {
        if (a->said == STINT_UNDECIDED)
            a->said = STINT_SUCCEEDED;
        return;
    }
    if (a->said != STINT_UNDECIDED && a->said != STINT_SUCCEEDED)
        return;
    st_lib_unsay(a);
    a->said = STINT_RETRY;
    snprintf(text, sizeof(text), "the handler returned %s: %s", stint_code_name(rc), stint_code_text(rc));
    say_failed(a, ST_KIND_APP_ERROR, text);
}

static stint_code go_in(stint_attempt *a, size_t level)
{
    const struct stint_worker *w = a->w;
    struct lib_frame here = {.level = level}, *outer = a->frame;
    stint_code rc;

    a->frame = &here;
    if (level < w->n_uses)
        rc = w->uses[level].fn(a, w->uses[level].arg);
    else
        rc = a->handler->fn(a, a->handler->arg);
    st_lib_end_fork(w->pid);
    a->frame = outer;
    heed_code(a, rc);
    return rc;
}

stint_code stint_next(stint_attempt *a)
{
    struct lib_frame *f = a->frame;

    if (f->level == a->w->n_uses || f->called)
        return STINT_ESTATE;
    f->called = true;
    return go_in(a, f->level + 1);
}

void st_lib_run_attempt(void *arg, struct st_pool_item *it)
{
    const struct lib_handler *h = arg;
    stint_attempt a = {.w = h->w, .handler = h, .it = it, .log_mutex = PTHREAD_MUTEX_INITIALIZER};

    st_observe_job(&h->w->observer, STINT_EVENT_ATTEMPT_STARTED, it->job);
    st_lib_inside(h->w);
    go_in(&a, 0);
    st_lib_end_atomic(&a);
    st_lib_inside(NULL);
    it->firm = a.explicitly || a.settled;
    if (a.has_log)
        st_runlog_finish(&a.log, &it->ran);
    pthread_mutex_destroy(&a.log_mutex);
}
