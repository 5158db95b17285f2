/* SPDX-License-Identifier: Apache-2.0
 *
 * stop.c - end gracefully.
 *
 * Stop claiming, give back what was only prefetched or waits for a child to be ready, let what runs end; when
 * `shutdown_timeout` has passed stop it too and give its attempt back.  Told a second time: kill at once.  Then the courier
 * writes what it has, leadership and the worker's row go, and the threads end.
 *
 * Thread: loop.
 */
#include "worker/worker_int.h"

#define FLUSH_TIME       (5 * ST_SEC)
#define FLUSH_TIME_HURRY (1 * ST_SEC)
#define GOODBYE_TIME     (2 * ST_SEC)

static void abort_all(struct st_worker *w, bool now)
{
    struct held *h = w->first;

    while (h) {
        struct held *next = h->next;

        slots_abort(h, ST_ABORT_SHUTDOWN, now);
        h = next;
    }
}

void stop_on_deadline(uv_timer_t *t)
{
    struct st_worker *w = t->data;

    st_log(ST_LOG_WARN, "worker.shutdown_timeout", ST_FI("running", w->n_running));
    abort_all(w, false);
    worker_advance(w);
}

static void start_draining(struct st_worker *w)
{
    st_log(ST_LOG_INFO, "worker.stopping", ST_F("worker", w->id), ST_FI("running", w->n_running));
    st_observe_worker(&w->observer, STINT_EVENT_WORKER_STOPPING, NULL);
    w->phase = DRAINING;
    st_courier_drain(w->courier);
    if (w->hinter)
        st_hinter_disarm(w->hinter);
    atomic_store(&w->vitals.quiet, true);
    uv_timer_stop(&w->poll);
    if (w->exec)
        st_exec_drain(w->exec);
    if (w->n_running) {
        uv_timer_start(&w->deadline, stop_on_deadline, (uint64_t)(w->settings->shutdown_us / ST_MS), 0);
        if (w->maintainer)
            st_maintainer_nudge(w->maintainer);
    }
}

static void heed_stops(struct st_worker *w)
{
    int stops = atomic_load(&w->stops);

    if (stops == w->stops_seen)
        return;
    w->stops_seen = stops;
    if (w->phase < DRAINING)
        start_draining(w);
    if (stops > 1) {
        st_log(ST_LOG_WARN, "worker.stopping_at_once", ST_FI("running", w->n_running));
        abort_all(w, true);
    }
}

/* once: the slots are empty and all is written.  Then an empty claim that was asked for afterwards ends the work; one
 * asked for earlier might have missed a job that became due since, and one that others were in the way of says nothing. */
static void check_once(struct st_worker *w)
{
    if (!w->opt.once || w->phase != WORKING || ((!w->dry || w->crowd.n) && !w->quiet) || w->asking || w->disowning ||
        w->n_held || w->in_hand || w->n_out || w->tries.n || w->start_tries.n ||
        (w->intake && !w->quiet && !st_intake_idle(w->intake)))
        return;
    if (w->empty_seq > w->finish_seq || w->quiet) {
        start_draining(w);
    } else {
        feed_wet(w);
        w->late_at_us = 0;
        w->again = true;
    }
}

static void end_threads(struct st_worker *w)
{
    size_t left;

    w->phase = CLOSING;
    uv_timer_stop(&w->deadline);
    uv_timer_stop(&w->tick);
    left = st_courier_free(w->courier);
    w->courier = NULL;
    if (left && w->result == STINT_OK) {
        w->result = st_fail(&w->error, STINT_EAGAIN, "%zu outcomes could not be written before the end", left);
        st_err_remedy(&w->error, "their jobs run again when the leases have expired");
    }
    st_intake_free(w->intake, w->stops_seen > 1 ? FLUSH_TIME_HURRY : FLUSH_TIME);
    w->intake = NULL;
    st_hinter_free(w->hinter);
    st_lessor_free(w->lessor);
    st_maintainer_free(w->maintainer, GOODBYE_TIME);
    w->hinter = NULL;
    w->lessor = NULL;
    w->maintainer = NULL;
    uv_stop(&w->loop);
}

/* Moves on when the phase it is in is done. */
void stop_step(struct st_worker *w)
{
    heed_stops(w);
    check_once(w);
    if (w->phase == DRAINING) {
        slots_release_queued(w, 0);
        worker_send_out(w);
        if (w->n_held == 0 && !w->asking && !w->disowning && (!w->intake || st_intake_hold(w->intake))) {
            w->phase = FLUSHING;
            st_courier_stop(w->courier, w->stops_seen > 1 ? FLUSH_TIME_HURRY : FLUSH_TIME);
        }
    }
    if ((w->phase == FLUSHING || w->phase == OPENING) && st_courier_ended(w->courier)) {
        worker_hear_courier(w); /* its last words */
        end_threads(w);
    }
}
