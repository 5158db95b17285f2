/* SPDX-License-Identifier: Apache-2.0
 *
 * explain.c - why a job is not running.
 *
 * Asked in the order in which a claim would stumble:
 *
 *     ended?  held?  blocked?  due?  budget?  queue paused?  announced?
 *     a live worker -> for its queue -> for its type -> healthy -> not quiet -> a free slot
 *
 * Everything that keeps the job is told, not only the first thing: a job may be both not due and in
 * a paused queue. Of the workers, only the first hurdle that none of them takes is.
 */
#include "cli/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "worker/down.h"

struct list {
    struct cli_reason *out;
    size_t n;
};

ST_PRINTF(4, 5)
static void add(struct list *l, const char *code, const char *remedy, const char *fmt, ...)
{
    struct cli_reason *r;
    va_list ap;

    if (l->n == CLI_REASONS_MAX)
        return;
    r = &l->out[l->n++];
    memset(r, 0, sizeof(*r));
    snprintf(r->code, sizeof(r->code), "%s", code);
    snprintf(r->remedy, sizeof(r->remedy), "%s", remedy ? remedy : "");
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof(r->text), fmt, ap);
    va_end(ap);
    cli_clean(r->text);
}

/* ---- the job itself --------------------------------------------------------------------- */

static const char *last_error(const struct st_job_info *j, char out[200])
{
    snprintf(out, 200, "%s%s%.150s", st_kind_name(j->error_kind), j->error_message ? ": " : "",
             j->error_message ? j->error_message : "");
    return out;
}

static void why_ended(struct list *l, const struct cli_facts *f)
{
    const struct st_job_info *j = f->job;
    char when[CLI_TEXT], error[200], remedy[200];

    cli_when(f->now_us, j->finished_us, when);
    if (j->state == ST_SUCCEEDED) {
        snprintf(remedy, sizeof(remedy), "`stint job retry %s --replay` runs it once more, as a new job", j->id);
        add(l, "succeeded", remedy, "it succeeded at %s", when);
        return;
    }
    snprintf(remedy, sizeof(remedy), "`stint job retry %s` runs it again", j->id);
    if (j->state == ST_CANCELLED)
        add(l, "cancelled", remedy, "it was cancelled at %s", when);
    else if (j->max_attempts && j->attempt >= j->max_attempts)
        add(l, "failed", remedy, "it failed at %s after %d of %d attempts (%s)", when, j->attempt, j->max_attempts,
            last_error(j, error));
    else
        add(l, "failed", remedy, "it failed for good at %s (%s)", when, last_error(j, error));
}

static size_t count_live(const struct cli_facts *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_workers; i++)
        n += cli_worker_live(&f->workers[i], f->now_us);
    return n;
}

static void why_held(struct list *l, const struct cli_facts *f)
{
    const struct st_job_info *j = f->job;
    const char *who = j->worker ? j->worker : "?";
    char when[CLI_TEXT];

    cli_when(f->now_us, j->lease_until_us, when);
    if (j->lease_until_us <= f->now_us) {
        add(l, "lease_expired", count_live(f) ? NULL : "start a worker: `stint worker`",
            "the lease of worker %s ended at %s; %s", who, when,
            count_live(f) ? "a live worker will take the job back" : "no live worker is there to take it back");
    } else if (j->state == ST_RUNNING) {
        add(l, "running", NULL, "it is running: held by worker %s until %s", who, when);
    } else {
        add(l, "claimed", NULL, "worker %s has fetched it and starts it when a slot is free; held until %s", who, when);
    }
    if (j->cancel_requested)
        add(l, "cancel_requested", NULL, "it was asked to stop, and its worker has not done so yet");
}

static void why_not_due(struct list *l, const struct cli_facts *f)
{
    const struct st_job_info *j = f->job;
    char when[CLI_TEXT], error[200];

    if (j->due_us <= f->now_us)
        return;
    cli_when(f->now_us, j->due_us, when);
    if (j->attempt == 0 && j->error_kind == ST_KIND_NO_HANDLER) /* Redis: a worker without its type had it */
        add(l, "retrying", "let all workers of its queue handle the type, or give the type a queue of its own",
            "it was put off until %s (%s)", when, last_error(j, error));
    else if (j->attempt > 0)
        add(l, "retrying", NULL, "attempt %d ended with %s; it is tried again at %s", j->attempt, last_error(j, error),
            when);
    else
        add(l, "not_due", NULL, "it is not due until %s", when);
}

static void why_paused(struct list *l, const struct cli_facts *f)
{
    struct st_slice queue = st_slice_cstr(f->job->queue);
    char remedy[200];

    for (size_t i = 0; i < f->n_queues; i++) {
        const struct st_queue_info *q = &f->queues[i];

        if (!q->paused || !st_queue_covers(st_slice_cstr(q->name), queue))
            continue;
        snprintf(remedy, sizeof(remedy), "`stint queue resume %s`", q->name);
        add(l, "queue_paused", remedy, "the queue %s is paused", q->name);
    }
}

/* Workers leave it to the message that announces it, for a while. */
static void why_announced(struct list *l, const struct cli_facts *f)
{
    int64_t late_us;
    char when[CLI_TEXT];

    if (!f->settings || !st_settings_announced(f->settings, st_slice_cstr(f->job->queue)))
        return;
    late_us = f->job->due_us + f->settings->intake.grace_us;
    if (f->now_us >= late_us)
        return;
    cli_when(f->now_us, late_us, when);
    add(l, "announced", "announce it through RQ, or wait",
        "its queue is announced by RQ: without a message it is claimed at %s", when);
}

/* ---- the workers -------------------------------------------------------------------------- */

/* How well does a worker's JSON list let this name pass?  0 = not at all.  An empty list is
 * everything; one that cannot be read proves nothing against it. */
static int listed(const char *json, struct st_slice name, bool queue)
{
    struct st_slice text = st_slice_cstr(json), key, value;
    bool any = false;
    struct st_buf b;
    size_t pos = 0;
    int best = 0;

    if (!text.len || !st_json_ok(text))
        return 1;
    text = st_json_trim(text);
    if (st_json_typeof(text) != ST_JSON_ARRAY)
        return 1;
    st_buf_init(&b, 4096);
    while (st_json_next(text, &pos, &key, &value)) {
        int match = 0;

        any = true;
        st_buf_reset(&b);
        if (!st_json_string(value, &b))
            continue;
        if (st_slice_is(st_buf_view(&b), "*"))
            match = 1;
        else
            match = queue ? st_queue_covers(st_buf_view(&b), name) : st_pattern_match(st_buf_view(&b), name);
        best = match > best ? match : best;
    }
    st_buf_clear(&b);
    return any ? best : 1;
}

/* A parent queue that picks the handler makes the job's own type irrelevant: the handler, or NULL. */
static const char *queue_decides(const struct cli_facts *f)
{
    struct st_slice parent = st_queue_parent(st_slice_cstr(f->job->queue));

    for (size_t i = 0; f->settings && i < f->settings->n_parents; i++)
        if (f->settings->parents[i].type && st_slice_is(parent, f->settings->parents[i].name))
            return f->settings->parents[i].type;
    return NULL;
}

/* A worker may be unwell in what does not concern this type. */
static bool is_sick(const struct st_worker_info *w, struct st_slice type)
{
    int down = w->healthy ? 0 : st_down_match(w->note, type);

    return down > 0 && down >= listed(w->types, type, false);
}

/* How far each worker gets with this job. */
struct hurdles {
    size_t live, queue, type, healthy, awake, free;
    const struct st_worker_info *sick, *quiet;
};

static void count_hurdles(const struct cli_facts *f, struct hurdles *h)
{
    const char *handler = queue_decides(f);
    struct st_slice type = st_slice_cstr(handler ? handler : f->job->type);

    memset(h, 0, sizeof(*h));
    for (size_t i = 0; i < f->n_workers; i++) {
        const struct st_worker_info *w = &f->workers[i];

        if (!cli_worker_live(w, f->now_us))
            continue;
        h->live++;
        if (!listed(w->queues, st_slice_cstr(f->job->queue), true))
            continue;
        h->queue++;
        if (!handler && !listed(w->types, type, false))
            continue;
        h->type++;
        if (is_sick(w, type)) {
            h->sick = w;
            continue;
        }
        h->healthy++;
        if (w->quiet) {
            h->quiet = w;
            continue;
        }
        h->awake++;
        h->free += w->running < w->slots;
    }
}

static void why_no_worker(struct list *l, const struct cli_facts *f)
{
    const char *queue = f->job->queue, *type = f->job->type;
    char remedy[200];
    struct hurdles h;

    count_hurdles(f, &h);
    if (!h.live) {
        if (f->n_workers)
            add(l, "no_worker", "start a worker: `stint worker`",
                "no worker is live: %zu known, none heard of for 30 s", f->n_workers);
        else
            add(l, "no_worker", "start a worker: `stint worker`", "no worker serves this store");
    } else if (!h.queue) {
        snprintf(remedy, sizeof(remedy), "`stint worker --queues %s`, or add it to `queues:` of the workers", queue);
        add(l, "no_worker_for_queue", remedy, "none of the live workers (%zu) serves the queue %s", h.live, queue);
    } else if (!h.type) {
        add(l, "no_worker_for_type", "add the type to `types:` in the stint.yaml of a worker",
            "none of the live workers of the queue %s (%zu) handles the type %s", queue, h.queue, type);
    } else if (!h.healthy) {
        snprintf(remedy, sizeof(remedy), "when the cause is mended, `kill -HUP %d` on %.64s has it try again at once",
                 h.sick->pid, h.sick->host);
        add(l, "workers_unhealthy", st_down_names(h.sick->note) ? remedy : NULL,
            "every worker that could run it is unhealthy; %s says: %s", h.sick->id,
            h.sick->note[0] ? h.sick->note : "nothing");
    } else if (!h.awake) {
        add(l, "workers_quiet", "a worker is quiet after TSTP or while it stops",
            "every worker that could run it is quiet and takes no new jobs; one is %s", h.quiet->id);
    } else if (!h.free) {
        add(l, "workers_busy", "more slots (`--slots`) or more workers would help",
            "all slots of the workers that could run it (%zu) are busy", h.awake);
    } else if (!l->n) {
        add(l, "soon", NULL,
            "nothing keeps it: workers that serve it have a free slot (%zu of %zu), and jobs with "
            "higher priority or an earlier due time go first",
            h.free, h.awake);
    }
}

size_t cli_explain(const struct cli_facts *f, struct cli_reason out[CLI_REASONS_MAX])
{
    const struct st_job_info *j = f->job;
    struct list l = {.out = out};

    if (st_state_ended(j->state)) {
        why_ended(&l, f);
        return l.n;
    }
    if (st_state_held(j->state)) {
        why_held(&l, f);
        return l.n;
    }
    if (j->state == ST_BLOCKED)
        add(&l, "blocked", NULL, "it waits for other jobs to end");
    if (j->cancel_requested)
        add(&l, "cancel_requested", NULL, "it was asked to stop");
    why_not_due(&l, f);
    if (j->max_attempts && j->attempt >= j->max_attempts)
        add(&l, "exhausted", "`stint job cancel` and `stint job retry` give it a fresh budget",
            "its budget is used up: %d of %d attempts", j->attempt, j->max_attempts);
    why_paused(&l, f);
    why_announced(&l, f);
    why_no_worker(&l, f);
    return l.n;
}
