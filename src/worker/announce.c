/* SPDX-License-Identifier: Apache-2.0
 *
 * announce.c - jobs that an intake announces, beside those that are claimed.
 *
 *     free slots --grant--> intake --acquired jobs--> held, as claimed ones are
 *
 * Their queues are left out of the ordinary claims.  What nobody announces in time (a message may die with its worker) is
 * claimed after the grace: those are the late ones, looked for as often as the worker polls.
 *
 * Thread: loop.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/worker_int.h"

/* ---- plans ------------------------------------------------------------------------------------------ */

static stint_code plan_of(struct st_worker *w, const struct st_settings *s, struct st_plan **out, stint_error *err)
{
    struct st_plan_handler *h = calloc(w->opt.n_handlers + 1, sizeof(*h));
    stint_code rc;

    if (!h)
        return st_fail(err, STINT_ENOMEM, "no memory for the claim plan");
    for (size_t i = 0; i < w->opt.n_handlers; i++) {
        h[i].pattern = w->opt.handlers[i].pattern;
        h[i].policy = w->opt.handlers[i].policy;
        h[i].lease_us = w->opt.handlers[i].lease_us;
    }
    rc = st_plan_new(s, h, w->opt.n_handlers, out, err);
    free(h);
    return rc;
}

void plans_clear(struct plans *p)
{
    st_plan_unref(p->main);
    st_plan_unref(p->late);
    st_plan_unref(p->all);
    memset(p, 0, sizeof(*p));
}

/* A parent means its subs too: those that are announced would be claimed before their time. */
static stint_code check_parents(const struct st_settings *s, stint_error *err)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        const char *name = s->queues[i].name;

        for (char **q = s->intake.queues; *q; q++) {
            if (strcmp(name, *q) == 0 || !st_queue_covers(st_slice_cstr(name), st_slice_cstr(*q)))
                continue;
            st_fail(err, STINT_EINVAL, "worker.queues names %.60s, which means %.60s of intake.queues too", name, *q);
            st_err_remedy(err, "name the other queues of %.60s one by one, or let intake.queues name %.60s itself",
                          name, name);
            return STINT_EINVAL;
        }
    }
    return STINT_OK;
}

/* The worker's queues without the announced ones, those alone, and both. */
static stint_code split(struct st_worker *w, const struct st_settings *s, struct st_queue_weight *rest,
                        struct st_queue_weight *late, struct st_queue_weight *all, struct plans *out, stint_error *err)
{
    struct st_settings view = *s;
    size_t n_rest = 0, n_late = 0, n_all = 0;
    stint_code rc;

    for (size_t i = 0; i < s->n_queues; i++)
        if (!st_settings_announced(s, st_slice_cstr(s->queues[i].name)))
            rest[n_rest++] = all[n_all++] = s->queues[i];
    for (char **q = s->intake.queues; *q; q++)
        late[n_late++] = all[n_all++] = (struct st_queue_weight){.name = *q, .weight = 1};
    view.queues = late;
    view.n_queues = n_late;
    view.weighted = false;
    rc = plan_of(w, &view, &out->late, err);
    view.queues = all;
    view.n_queues = n_all;
    if (rc == STINT_OK)
        rc = plan_of(w, &view, &out->all, err);
    view.queues = rest;
    view.n_queues = n_rest;
    view.weighted = s->weighted;
    if (rc == STINT_OK && n_rest)
        rc = plan_of(w, &view, &out->main, err);
    else if (rc == STINT_OK)
        out->main = st_plan_ref(out->late);
    out->only_late = n_rest == 0;
    return rc;
}

stint_code plans_make(struct st_worker *w, const struct st_settings *s, struct plans *out, stint_error *err)
{
    struct st_queue_weight *lists;
    size_t n = s->n_queues;
    stint_code rc;

    memset(out, 0, sizeof(*out));
    if (!s->intake.rq) {
        rc = plan_of(w, s, &out->main, err);
        if (rc == STINT_OK)
            out->all = st_plan_ref(out->main);
        return rc;
    }
    if (check_parents(s, err) != STINT_OK)
        return STINT_EINVAL;
    for (char **q = s->intake.queues; *q; q++)
        n++;
    lists = calloc(3 * n, sizeof(*lists));
    rc = lists ? split(w, s, lists, lists + n, lists + 2 * n, out, err)
               : st_fail(err, STINT_ENOMEM, "no memory for the claim plan");
    free(lists);
    if (rc != STINT_OK)
        plans_clear(out);
    return rc;
}

/* ---- the intake --------------------------------------------------------------------------------------- */

stint_code announce_begin(struct st_worker *w, stint_error *err)
{
    const struct st_intake_options o = {.opener = &w->opener,
                                        .conf = &w->settings->intake,
                                        .worker_id = w->id,
                                        .plan = w->plans.main,
                                        .lease_us = w->settings->lease_us,
                                        .wake = &w->wake};

    return w->settings->intake.rq ? st_intake_new(&o, &w->intake, err) : STINT_OK;
}

bool announce_same(const struct st_settings *a, const struct st_settings *b)
{
    size_t i = 0;

    if (!a->intake.rq || !b->intake.rq)
        return a->intake.rq == b->intake.rq;
    while (a->intake.queues[i] && b->intake.queues[i] && strcmp(a->intake.queues[i], b->intake.queues[i]) == 0)
        i++;
    return !a->intake.queues[i] && !b->intake.queues[i] && strcmp(a->intake.rq, b->intake.rq) == 0 &&
           strcmp(a->intake.function, b->intake.function) == 0;
}

/* Slots that neither run nor wait nor are being asked for. */
void announce_feed(struct st_worker *w)
{
    const size_t taken = w->n_running + w->n_queued + (w->asking ? w->n_asked : 0), slots = (size_t)w->settings->slots;

    if (!w->intake)
        return;
    if (w->phase != WORKING || w->quiet)
        st_intake_grant(w->intake, 0);
    else
        st_intake_grant(w->intake, taken < slots ? slots - taken : 0);
}

/* What a claim may not have: what the intake is about to fill, and half of the rest while messages wait. */
size_t announce_share(struct st_worker *w, size_t n_free)
{
    size_t busy;

    if (!w->intake)
        return n_free;
    busy = st_intake_busy(w->intake);
    n_free = n_free > busy ? n_free - busy : 0;
    return st_intake_more(w->intake) ? (n_free + (w->turns++ & 1)) / 2 : n_free;
}

static void take_arrival(struct st_worker *w, struct st_arrival *a)
{
    struct held *h = feed_take(w, a->job);

    if (h) {
        h->done.ticket = a->ticket;
        h->done.to_file = true;
        if (types_down(w,
                       h->done.job)) /* a claim would not have asked for it: it is not to stand in the way of others */
            slots_put_off(h);
        return;
    }
    /* it is given back by the disown; the message comes again */
    a->ticket->over(a->ticket, NULL, NULL);
}

static void stop_jobs(struct st_worker *w, const struct st_intake_news *news)
{
    for (size_t i = 0; i < news->n_stops; i++) {
        struct held *h = held_find(w, news->stops[i], 0);

        if (h && h->stopping == ST_ABORT_NOT)
            slots_abort(h, ST_ABORT_CANCELLED, news->kill);
    }
}

void announce_hear(struct st_worker *w)
{
    struct st_intake_news news;

    if (!w->intake)
        return;
    st_intake_take(w->intake, &news);
    for (size_t i = 0; i < news.n_arrivals; i++)
        take_arrival(w, &news.arrivals[i]);
    if (w->n_held)
        beat_start(w);
    stop_jobs(w, &news);
    if (news.doubt) {
        w->doubt = true;
        feed_wet(w);
    }
    if (news.shutdown)
        atomic_fetch_add(&w->stops, 1);
    free(news.arrivals);
    free(news.stops);
}
