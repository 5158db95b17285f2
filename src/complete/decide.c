/* SPDX-License-Identifier: Apache-2.0
 *
 * decide.c - succeed, retry, give up, give back: one place decides.
 *
 *     stopped by us: taken by another, gone     nothing is written
 *                    cancelled                  cancelled
 *                    shutdown                   released, uncharged
 *                    lease doubtful             as a failure, kind lease_expired
 *                    past its timeout           as a failure, kind timeout
 *     ok                                        succeeded
 *     snoozed                                   released, uncharged, due after the time it asked for
 *     failed, permanent or budget used up       failed
 *     failed otherwise                          retry after the policy's delay, or the one it asked for
 */
#include "complete/complete.h"

#include <stdlib.h>
#include <string.h>

void st_done_tell(struct st_done *d, const struct st_finish *f)
{
    struct st_ticket *t = d->ticket;

    d->ticket = NULL;
    if (t)
        t->over(t, d, f);
}

void st_done_free(struct st_done *d)
{
    if (!d)
        return;
    st_done_tell(d, NULL);
    st_job_free(d->job);
    st_ran_clear(&d->ran);
    free(d->result_ref);
    free(d);
}

static void decide_failure(const struct st_done *d, double unit, struct st_finish *f)
{
    const struct st_policy *p = &d->job->policy;
    const struct st_ran *r = &d->ran;

    f->kind = r->kind;
    f->message = st_slice_cstr(r->message);
    if (r->aborted == ST_ABORT_TIMEOUT) {
        f->kind = ST_KIND_TIMEOUT;
        f->message = st_slice_cstr("it did not end within its timeout");
    } else if (r->aborted != ST_ABORT_NOT) {
        f->kind = ST_KIND_LEASE_EXPIRED;
        f->message = st_slice_cstr("the lease could not be renewed in time; the attempt was stopped");
    } else if (r->advice == ST_PERMANENT) {
        f->outcome = ST_OUT_FAILED;
        return;
    }
    if (!st_policy_may_retry(p->max_attempts, d->job->attempt)) {
        f->outcome = ST_OUT_FAILED;
        return;
    }
    f->outcome = ST_OUT_RETRY;
    f->delay_us = r->retry_after_us >= 0 ? r->retry_after_us : st_policy_delay(p, d->job->attempt, unit);
}

static void describe(const struct st_done *d, int64_t now_boot_us, struct st_finish *f)
{
    const struct st_ran *r = &d->ran;

    memset(f, 0, sizeof(*f));
    f->id = st_slice_cstr(d->job->id);
    f->fence = d->job->fence;
    f->ref = d->job->ref;
    f->held_as = d->job->state;
    f->started_ago_us = d->started_boot_us ? now_boot_us - d->started_boot_us : -1;
    f->exit_code = r->exit_code;
    f->signal = r->signal;
    f->max_rss_kb = r->max_rss_kb;
    f->log = st_slice_cstr(r->log);
    f->log_tail = ST_SLICE(r->log_tail, r->log_tail_len);
}

bool st_done_decide(const struct st_done *d, double unit, int64_t now_boot_us, struct st_finish *f)
{
    const struct st_ran *r = &d->ran;

    describe(d, now_boot_us, f);
    switch (r->aborted) {
    case ST_ABORT_TAKEN:
    case ST_ABORT_NOT_FOUND:
    case ST_ABORT_ALREADY_COMPLETED:
        return false;
    case ST_ABORT_CANCELLED:
        f->outcome = ST_OUT_CANCELLED;
        f->kind = ST_KIND_CANCELLED;
        f->message = st_slice_cstr("cancelled while it ran");
        return true;
    case ST_ABORT_SHUTDOWN:
        f->outcome = ST_OUT_RELEASED;
        return true;
    case ST_ABORT_LEASE:
    case ST_ABORT_ERROR:
    case ST_ABORT_TIMEOUT:
        decide_failure(d, unit, f);
        return true;
    case ST_ABORT_NOT:
        break;
    }
    if (!r->ok && r->advice == ST_SNOOZE) {
        f->outcome = ST_OUT_RELEASED;
        f->delay_us = r->retry_after_us > 0 ? r->retry_after_us : 0;
        return true;
    }
    if (!r->ok) {
        decide_failure(d, unit, f);
        return true;
    }
    f->outcome = ST_OUT_SUCCEEDED;
    f->result_ref = st_slice_cstr(d->result_ref);
    if (!d->result_ref || r->result_len <= ST_RESULT_INLINE)
        f->result = ST_SLICE(r->result, r->result_len);
    return true;
}
