/* SPDX-License-Identifier: Apache-2.0
 *
 * feed.c - ask for work when there is room for it.
 *
 *     WET --claim found all it asked for--> WET    ask again as soon as there is room
 *     WET --claim found less--------------> DRY    wait for a hint, the next due time, or the poll (sooner at first, if
 *                                                  there are no hints to come)
 *     WET --store away--------------------> DRY    for a growing while
 *     WET --others were claiming----------> DRY    for a few milliseconds, longer each time; then without regard to them
 *     DRY --hint, timer, rescued jobs-----> WET
 *
 * How many: the free slots, plus what the slots will use up from asking until jobs are there, twice.  Long jobs
 * make that nothing, so they never wait here while another worker has a free slot; short ones make it two
 * batches: one to run while the other is under way.
 *
 * Thread: loop.
 */
#include <stdlib.h>

#include "worker/worker_int.h"

#define BATCH_MAX   500
#define SMOOTH      0.3
#define SURE_FOR    (60 * ST_SEC)
#define CROWD_TRIES 6 /* half a second */
#define SPARE_MS    50

static size_t batch_max(const struct st_worker *w)
{
    return w->settings->claim_batch > 0 ? (size_t)w->settings->claim_batch : BATCH_MAX;
}

static size_t prefetch(const struct st_worker *w)
{
    const double n = w->rate * w->trip_us / (double)ST_SEC * 2, most = 2.0 * (double)batch_max(w);

    return n < 1 ? 0 : (size_t)(n > most ? most : n);
}

static void on_poll(uv_timer_t *t)
{
    struct st_worker *w = t->data;

    feed_wet(w);
    worker_advance(w);
}

static void sleep_for(struct st_worker *w, int64_t us)
{
    w->dry = true;
    uv_timer_start(&w->poll, on_poll, (uint64_t)((us + ST_MS - 1) / ST_MS), 0);
}

bool feed_hears(struct st_worker *w)
{
    return w->hinter && !st_hinter_deaf(w->hinter);
}

/* Where nobody tells us of work, more of it is likely soon after there was some. */
static int64_t poll_us(struct st_worker *w)
{
    static const int64_t first[] = {50 * ST_MS, 200 * ST_MS, ST_SEC};
    const int64_t us = w->settings->poll_us;

    if (w->n_polls >= (int)(sizeof(first) / sizeof(first[0])) || feed_hears(w))
        return us;
    return first[w->n_polls] < us ? first[w->n_polls++] : us;
}

/* The poll interval give or take a tenth, or until the next scheduled job. */
static void sleep_until_next(struct st_worker *w, int64_t next_due_in_us)
{
    int64_t us = (int64_t)((double)poll_us(w) * (0.9 + 0.2 * st_random_unit()));

    if (next_due_in_us >= 0 && next_due_in_us < us)
        us = next_due_in_us;
    sleep_for(w, us);
}

void feed_hold(struct st_worker *w, int64_t us)
{
    sleep_for(w, us);
}

void feed_wet(struct st_worker *w)
{
    w->dry = false;
    uv_timer_stop(&w->poll);
}

static void disown_unknown(struct st_worker *w);

/* Again in a moment: the intake is asking for messages just now, and nobody tells when none came. */
static void after_messages(struct st_worker *w)
{
    if (!uv_is_active((uv_handle_t *)&w->poll))
        uv_timer_start(&w->poll, on_poll, SPARE_MS, 0);
}

void feed(struct st_worker *w)
{
    size_t held = w->n_running + w->n_queued, slots = (size_t)w->settings->slots;
    const bool late = w->plans.late && st_clock_boot_us() >= w->late_at_us;
    size_t ahead = late ? 0 : prefetch(w), n, n_run;

    if (w->phase != WORKING || w->asking || w->disowning || (w->dry && !late))
        return;
    if (w->doubt || st_clock_boot_us() - w->sure_us > SURE_FOR) {
        disown_unknown(w);
        if (!w->disowning)
            after_messages(w);
        return;
    }
    if (w->quiet)
        return;
    if (w->plans.only_late && !late) {
        w->crowd.n = 0;
        sleep_until_next(w, -1);
        return;
    }
    n_run = held < slots ? announce_share(w, slots - held) : 0;
    if (n_run == 0 && (w->intake || held - slots > ahead / 2)) {
        w->crowd.n = 0;
        if (held < slots)
            after_messages(w);
        return;
    }
    n = w->intake ? n_run + ahead : slots + ahead > held ? slots + ahead - held : 0;
    if (n > batch_max(w))
        n = batch_max(w);
    if (n == 0)
        return;
    if (!types_make_room(w, ahead)) {
        w->capped = w->n_held > 0;
        sleep_until_next(w, -1);
        return;
    }
    w->asking = true;
    if (w->crowd.n == 0)
        w->asked_us = st_clock_mono_us();
    w->n_asked = n;
    w->ask_seq = w->finish_seq;
    st_courier_claim(w->courier, late ? w->plans.late : w->plans.main, n, n_run,
                     late ? w->settings->intake.grace_us : 0, !late && w->crowd.n < CROWD_TRIES);
}

/* What the slots used up while the claim was under way. */
static void measure(struct st_worker *w, const struct st_courier_news *news)
{
    int64_t now = st_clock_mono_us(), took;
    double span = (double)(now - w->reply_us), rate;

    if (w->reply_us && span > 0) {
        rate = (double)(w->ended - w->ended_at_reply) / span * (double)ST_SEC;
        w->rate += SMOOTH * (rate - w->rate);
    }
    w->reply_us = now;
    w->ended_at_reply = w->ended;
    took = w->crowd.n ? now - w->asked_us : news->claim_took_us;
    w->trip_us += SMOOTH * ((double)took - w->trip_us);
}

struct held *feed_take(struct st_worker *w, struct st_job *job)
{
    struct held *h = held_new(w, job);

    if (!h) {
        st_log(ST_LOG_ERROR, "job.no_memory", ST_F("job", job->id));
        st_job_free(job);
        w->doubt = true;
        return NULL;
    }
    h->done.to_file = st_settings_announced(w->settings, st_slice_cstr(job->queue));
    h->renew_us = w->settings->renew_us;
    h->asked_us = job->asked_boot_us;
    h->lease = st_lease_from(h->asked_us, job->lease_us, h->renew_us, 0);
    return h;
}

static void take_jobs(struct st_worker *w, struct st_courier_news *news)
{
    for (size_t i = 0; i < news->n_jobs; i++)
        feed_take(w, news->jobs[i]);
    free(news->jobs);
    if (w->n_held)
        beat_start(w);
}

/* Give back whatever we hold in the store's eyes without knowing of it: after a claim whose answer was lost, and once
 * in a while in any case, since nobody else may take from a worker that is alive. */
static void disown_unknown(struct st_worker *w)
{
    struct st_slice *known;
    stint_error err;
    size_t n = 0;

    if (w->intake && !st_intake_hold(w->intake))
        return; /* it is about to bring something: then */
    known = calloc(w->n_held + 1, sizeof(*known));
    worker_send_out(w); /* outcomes first: the courier keeps the order */
    if (known) {
        for (struct held *h = w->first; h; h = h->next)
            known[n++] = st_slice_cstr(h->done.job->id);
        w->disowning = st_courier_disown(w->courier, known, n, &err) == STINT_OK;
    }
    if (w->disowning) {
        w->doubt = false;
        w->sure_us = st_clock_boot_us();
    } else if (w->intake) {
        st_intake_go(w->intake);
    }
    free(known);
}

void feed_on_hint(struct st_worker *w)
{
    if (w->dry && !w->asking && w->tries.n == 0 && w->start_tries.n == 0) {
        w->hinted = true;
        feed_wet(w);
        return;
    }
    w->relook = w->asking && st_hinter_addressed(w->hinter); /* it may have come too late for that claim */
    st_hinter_listen(w->hinter);
}

/* Who found less than he asked for wants to be woken; the others ask anyway. */
static void tell_hinter(struct st_worker *w, const struct st_courier_news *news)
{
    const bool fruitless = w->hinted && news->n_jobs == 0;

    w->hinted = false;
    if (!w->hinter)
        return;
    if (w->recheck && w->n_held)
        st_lessor_look(w->lessor);
    w->recheck = false;
    if (!w->dry || w->crowd.n || w->phase != WORKING || w->quiet) {
        st_hinter_disarm(w->hinter);
    } else if (w->relook) {
        w->hinted = true;
        feed_wet(w);
    } else {
        st_hinter_arm(w->hinter, fruitless);
    }
    w->relook = false;
}

/* Late ones: when to ask again.  Where nothing else is asked for it is that which an end waits for. */
static void on_late_over(struct st_worker *w, struct st_courier_news *news)
{
    const int64_t grace = w->settings->intake.grace_us, poll = w->settings->poll_us;

    w->late_at_us = st_clock_boot_us() + (news->n_jobs < news->n_asked ? (poll < grace ? poll : grace) : 0);
    if (w->plans.only_late && news->n_jobs == 0)
        w->empty_seq = w->ask_seq + 1;
    w->tries.n = 0;
}

/* What it brought is what there was, as far as it asked. */
static void on_answer(struct st_worker *w, struct st_courier_news *news)
{
    measure(w, news);
    w->crowd.n = 0;
    if (news->n_jobs < news->n_asked)
        sleep_until_next(w, news->next_due_in_us);
    if (news->n_jobs == 0)
        w->empty_seq = w->ask_seq + 1;
}

static void on_claim_over(struct st_worker *w, struct st_courier_news *news)
{
    w->asking = false;
    w->capped = types_used_up(w, news->jobs, news->n_jobs);
    take_jobs(w, news);
    if (news->claim_code == STINT_OK && news->late) {
        on_late_over(w, news);
        return;
    }
    if (news->claim_code == STINT_OK) {
        w->tries.n = 0;
        if (news->n_jobs > 0)
            w->n_polls = 0;
        if (news->crowded)
            sleep_for(w, st_tries_next(&w->crowd));
        else
            on_answer(w, news);
        tell_hinter(w, news);
        return;
    }
    w->crowd.n = 0; /* what passes until the store is back is not what others took */
    sleep_for(w, st_tries_next(&w->tries));
    w->late_at_us = st_clock_boot_us() + ST_SEC;
    if (news->claim_code == STINT_EUNKNOWN)
        w->doubt = true;
}

void feed_on_news(struct st_worker *w, struct st_courier_news *news)
{
    if (news->claim_over) {
        on_claim_over(w, news);
        w->answered = true;
    }
    if (news->disowned) {
        w->disowning = false;
        if (w->intake)
            st_intake_go(w->intake);
        feed_wet(w);
    }
    if (news->in_hand != w->in_hand)
        w->finish_seq++;
    w->in_hand = news->in_hand;
    w->tally = news->tally;
}
