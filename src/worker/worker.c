/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.c - claim, execute, complete, on one loop.
 *
 *     courier   brings jobs, takes outcomes            its own thread and store handle
 *     lessor    keeps leases                           "
 *     hinter    says that there may be work, or news   "
 *     maintainer reaps, beats, leads                   "
 *     exec/pool run attempts                           children; threads for in-process handlers
 *
 * The loop owns slots, timers and the table of held jobs, and never blocks.  Everything that happens ends in
 * worker_advance(), which does whatever is possible now.
 */
#include "worker/worker.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "maintain/takeover.h"
#include "worker/worker_int.h"

void worker_send_out(struct st_worker *w)
{
    if (!w->n_out)
        return;
    st_courier_finish(w->courier, w->out_first, w->out_last, w->n_out);
    w->in_hand += w->n_out;
    w->out_first = w->out_last = NULL;
    w->n_out = 0;
}

/* What the courier is to do comes first, so that it is under way while the slots are filled. */
static void step(struct st_worker *w)
{
    feed(w);
    worker_send_out(w);
    if (w->answered)
        st_courier_said(w->courier);
    w->answered = false;
    slots_fill(w);
    worker_send_out(w);
    announce_feed(w);
    stop_step(w);
}

/* Does whatever is possible now.  Called from inside itself (an attempt that ends at once) it only notes that there is
 * more to do. */
void worker_advance(struct st_worker *w)
{
    w->again = true;
    if (w->in_advance)
        return;
    w->in_advance = true;
    while (w->again && w->phase != CLOSING) {
        w->again = false;
        step(w);
    }
    w->in_advance = false;
}

/* ---- news from the threads --------------------------------------------------------------- */

static void maintain_options(struct st_worker *w, struct st_maintain_options *o)
{
    const struct st_settings *s = w->settings;

    memset(o, 0, sizeof(*o));
    snprintf(o->self.id, sizeof(o->self.id), "%s", w->id);
    snprintf(o->self.name, sizeof(o->self.name), "%s", s->worker_name ? s->worker_name : "");
    snprintf(o->self.queues, sizeof(o->self.queues), "%s", st_plan_queues_json(w->plans.all));
    st_plan_weights(w->plans.all, o->self.weights, sizeof(o->self.weights));
    snprintf(o->self.types, sizeof(o->self.types), "%s", st_plan_types_json(w->plans.all));
    o->self.slots = s->slots;
    o->lease_us = s->lease_us;
    o->keep = s->keep;
    o->vitals = &w->vitals;
    o->observer = &w->observer;
}

/* The store is there and the id is ours: from now on we may be seen.  Told to stop meanwhile, a worker with an id of
 * its own has a row all the same, which the maintainer takes away at the end. */
static void on_opened(struct st_worker *w)
{
    struct st_maintain_options mo;

    if (w->phase != OPENING && !w->settings->worker_id)
        return;
    maintain_options(w, &mo);
    if (st_maintainer_new(&w->opener, &mo, &w->wake, &w->maintainer, &w->error) != STINT_OK) {
        w->result = w->error.code;
        atomic_fetch_add(&w->stops, 1);
        return;
    }
    if (w->phase != OPENING)
        return;
    w->phase = WORKING;
    w->begun = true;
    if (announce_begin(w, &w->error) != STINT_OK) {
        w->result = w->error.code;
        atomic_fetch_add(&w->stops, 1);
        return;
    }
    st_observe_worker(&w->observer, STINT_EVENT_WORKER_STARTED, NULL);
}

void worker_hear_courier(struct st_worker *w)
{
    struct st_courier_news news;

    st_courier_take(w->courier, &news);
    if (news.fatal != STINT_OK && w->result == STINT_OK) {
        w->result = news.fatal;
        w->error = news.error;
        st_observe_worker(&w->observer, STINT_EVENT_WORKER_ERROR, &w->error);
    }
    if (news.opened)
        on_opened(w);
    feed_on_news(w, &news);
}

static void hear_hinter(struct st_worker *w)
{
    const unsigned news = w->hinter ? st_hinter_take(w->hinter) : 0;

    if (news & ST_NEWS_CANCEL && w->n_held)
        st_lessor_look(w->lessor);
    if (news & ST_NEWS_CANCEL && w->asking)
        w->recheck = st_hinter_addressed(w->hinter);
    if (news & ST_NEWS_LOST)
        beat_all(w);
    if (news & (ST_NEWS_WORK | ST_NEWS_LOOK))
        feed_on_hint(w);
}

/* Without our id nothing of ours can be told from the other's: stop. */
static void hear_maintainer(struct st_worker *w)
{
    struct st_maintain_news news = {0};

    if (w->maintainer)
        news = st_maintainer_take(w->maintainer);
    if (news.rescued)
        feed_wet(w);
    if (news.ousted && w->result == STINT_OK) {
        w->result = st_fail(&w->error, STINT_ESTATE, "another worker has taken the id %s", w->id);
        st_err_remedy(&w->error, "give each worker an id of its own (STINT_WORKER_ID, worker.id), or none");
        atomic_fetch_add(&w->stops, 1);
    }
}

static void on_wake(uv_async_t *a)
{
    struct st_worker *w = a->data;
    struct st_lessor_news news;

    if (w->phase == CLOSING)
        return;
    slots_collect(w);
    worker_hear_courier(w);
    st_lessor_take(w->lessor, &news);
    beat_on_news(w, &news);
    hear_hinter(w);
    hear_maintainer(w);
    announce_hear(w);
    worker_advance(w);
}

/* ---- signals ------------------------------------------------------------------------------ */

static void exec_options(struct st_worker *w, const struct st_settings *s, struct st_exec_options *o)
{
    *o = (struct st_exec_options){.self = w->opt.self,
                                  .worker_id = w->id,
                                  .logs_dir = s->logs_dir,
                                  .limits = s->limits,
                                  .health = types_on_health,
                                  .health_arg = w};
}

static bool text_same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* What was fixed at the start stays as it was: say so rather than seem to obey. */
static void tell_fixed(const struct st_settings *was, const struct st_settings *is)
{
    const struct {
        const char *key;
        bool same;
    } fixed[] = {
        {"store", text_same(was->store, is->store)},
        {"signal", text_same(was->signal, is->signal)},
        {"runqy", was->runqy == is->runqy},
        {"intake", announce_same(was, is)},
        {"worker.id", text_same(was->worker_id, is->worker_id)},
        {"worker.results_dir", text_same(was->results_dir, is->results_dir)},
        {"worker.notify", was->notify == is->notify},
    };

    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        if (!fixed[i].same)
            st_log(ST_LOG_WARN, "worker.reload_partly", ST_F("key", fixed[i].key),
                   ST_F("remedy", "restart the worker to change it"));
}

/* Takes over new settings, or keeps the old ones and says why. */
static void reload(struct st_worker *w)
{
    struct st_maintain_options mo;
    struct st_settings *s = NULL;
    struct st_exec_options xo;
    struct plans plans = {0};
    stint_error err;

    if (!w->opt.reload)
        return;
    if (w->opt.reload(w->opt.reload_arg, &s, &err) != STINT_OK || plans_make(w, s, &plans, &err) != STINT_OK) {
        st_log(ST_LOG_ERROR, "worker.reload_failed", ST_FE(&err), ST_F("remedy", err.remedy));
        if (s)
            st_settings_clear(s);
        free(s);
        return;
    }
    tell_fixed(w->settings, s);
    exec_options(w, s, &xo);
    if (w->exec && st_exec_configure(w->exec, &xo, &err) != STINT_OK)
        st_log(ST_LOG_ERROR, "worker.reload_failed", ST_FE(&err));
    plans_clear(&w->plans);
    w->plans = plans;
    w->settings = s;
    if (w->own_settings)
        st_settings_clear(w->own_settings);
    free(w->own_settings);
    w->own_settings = s;
    if (types_init(w, &err) != STINT_OK) { /* nothing can be run without: stop */
        st_log(ST_LOG_ERROR, "worker.reload_failed", ST_FE(&err));
        atomic_fetch_add(&w->stops, 1);
        return;
    }
    if (w->hinter)
        st_hinter_plan(w->hinter, plans.main);
    if (w->intake)
        st_intake_plan(w->intake, plans.main, s->lease_us);
    if (w->maintainer)
        st_maintainer_health(w->maintainer, true, NULL);
    maintain_options(w, &mo);
    if (w->maintainer)
        st_maintainer_configure(w->maintainer, &mo);
    st_log(ST_LOG_INFO, "worker.reloaded", ST_FI("types", s->n_types), ST_FI("slots", s->slots));
    feed_wet(w);
}

static void go_quiet(struct st_worker *w)
{
    w->quiet = true;
    atomic_store(&w->vitals.quiet, true);
    if (w->hinter)
        st_hinter_disarm(w->hinter);
    slots_release_queued(w, 0);
    if (w->maintainer)
        st_maintainer_nudge(w->maintainer);
    st_log(ST_LOG_INFO, "worker.quiet", ST_FI("running", w->n_running));
}

static void on_signal(uv_signal_t *sig, int signum)
{
    struct st_worker *w = sig->data;

    if (w->phase == CLOSING)
        return;
    if (signum == SIGHUP)
        reload(w);
    else if (signum == SIGTSTP)
        go_quiet(w);
    else
        atomic_fetch_add(&w->stops, 1);
    worker_advance(w);
}

static void on_stop_fd(uv_poll_t *p, int status, int events)
{
    struct st_worker *w = p->data;
    uint64_t n = 0;

    (void)status;
    (void)events;
    if (w->phase == CLOSING || read(*w->opt.stop_fd, &n, sizeof(n)) != (ssize_t)sizeof(n))
        return;
    atomic_fetch_add(&w->stops, (int)n);
    worker_advance(w);
}

/* ---- life ----------------------------------------------------------------------------------- */

static stint_code loop_init(struct st_worker *w, stint_error *err)
{
    int rc = uv_loop_init(&w->loop);

    if (rc)
        return st_fail(err, STINT_ENOMEM, "cannot make an event loop: %s", uv_strerror(rc));
    uv_async_init(&w->loop, &w->wake, on_wake);
    uv_timer_init(&w->loop, &w->poll);
    uv_timer_init(&w->loop, &w->tick);
    uv_timer_init(&w->loop, &w->deadline);
    uv_timer_init(&w->loop, &w->nudge);
    w->wake.data = w->poll.data = w->tick.data = w->deadline.data = w->nudge.data = w;
    return STINT_OK;
}

static const int our_signals[4] = {SIGTERM, SIGINT, SIGTSTP, SIGHUP};

static void mask_signals(int how)
{
    sigset_t set;

    sigemptyset(&set);
    for (int i = 0; i < 4; i++)
        sigaddset(&set, our_signals[i]);
    pthread_sigmask(how, &set, NULL);
}

void st_worker_hold_signals(void)
{
    mask_signals(SIG_BLOCK);
}

static void signals_init(struct st_worker *w)
{
    if (w->opt.stop_fd) {
        uv_poll_init(&w->loop, &w->stop_poll, *w->opt.stop_fd);
        w->stop_poll.data = w;
        uv_poll_start(&w->stop_poll, UV_READABLE, on_stop_fd);
    }
    for (int i = 0; w->opt.signals && i < 4; i++) {
        uv_signal_init(&w->loop, &w->signals[i]);
        w->signals[i].data = w;
        uv_signal_start(&w->signals[i], on_signal, our_signals[i]);
    }
    if (w->opt.signals)
        mask_signals(SIG_UNBLOCK);
}

static stint_code executors_init(struct st_worker *w, stint_error *err)
{
    struct st_exec_options xo;
    stint_code rc = STINT_OK;

    exec_options(w, w->settings, &xo);
    if (w->opt.n_handlers)
        rc = st_pool_new(w->settings->slots, &w->wake, &w->pool, err);
    if (rc == STINT_OK && (w->settings->n_types || w->opt.reload))
        rc = st_exec_new(&w->loop, &xo, &w->exec, err);
    return rc;
}

/* Courier thread, before the first claim. */
static stint_code admit(void *arg, struct st_store *s, stint_error *err)
{
    struct st_worker *w = arg;

    if (st_store_fit(s, err))
        return err->code;
    return w->settings->worker_id ? st_takeover(s, &w->row, err) : STINT_OK;
}

static stint_code threads_init(struct st_worker *w, stint_error *err)
{
    const char *results = w->settings->results_dir ? w->settings->results_dir : "stint-results";
    struct st_admit admission = {.fn = admit, .arg = w};
    struct st_maintain_options mo;
    stint_code rc;

    maintain_options(w, &mo);
    w->row = mo.self;
    w->row.healthy = true;
    st_worker_describe(&w->row);
    rc = st_lessor_new(&w->opener, w->id, &w->wake, &w->lessor, err);
    if (rc == STINT_OK && w->settings->notify)
        rc = st_hinter_new(&w->opener, w->id, w->plans.main, &w->wake, &w->hinter, err);
    if (rc == STINT_OK)
        rc = st_courier_new(&w->opener, admission, w->id, results, &w->observer, &w->wake, &w->courier, err);
    return rc;
}

stint_code st_worker_new(const struct st_worker_options *opt, struct st_worker **out, stint_error *err)
{
    struct st_worker *w = calloc(1, sizeof(*w));
    stint_code rc;

    *out = NULL;
    if (!w)
        return st_fail(err, STINT_ENOMEM, "no memory for a worker");
    w->opt = *opt;
    w->opener = opt->opener;
    w->settings = opt->settings;
    w->tries = (struct st_tries){.base_us = 100 * ST_MS, .max_us = 5 * ST_SEC};
    w->start_tries = w->tries;
    w->crowd = (struct st_tries){.base_us = 16 * ST_MS, .max_us = 160 * ST_MS};
    w->trip_us = (double)ST_MS;
    w->sure_us = st_clock_boot_us();
    if (opt->settings->worker_id)
        snprintf(w->id, sizeof(w->id), "%s", opt->settings->worker_id);
    else
        st_worker_id_new(w->id);
    w->observer = (struct st_observer){.fn = opt->event, .arg = opt->event_arg, .worker = w->id};
    rc = plans_make(w, w->settings, &w->plans, err);
    if (rc == STINT_OK)
        rc = types_init(w, err);
    if (rc == STINT_OK)
        rc = loop_init(w, err);
    if (rc != STINT_OK) {
        types_clear(w);
        plans_clear(&w->plans);
        free(w);
        return rc;
    }
    *out = w;
    return STINT_OK;
}

static void on_exec_closed(void *arg)
{
    struct st_worker *w = arg;

    w->exec = NULL;
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

/* Everything down, whatever was reached. */
static void worker_close(struct st_worker *w)
{
    st_intake_free(w->intake, 0);
    w->intake = NULL;
    st_hinter_free(w->hinter);
    st_lessor_free(w->lessor);
    st_maintainer_free(w->maintainer, 0);
    st_pool_free(w->pool);
    w->hinter = NULL;
    w->lessor = NULL;
    w->maintainer = NULL;
    w->pool = NULL;
    if (w->exec) {
        st_exec_close(w->exec, on_exec_closed, w);
        while (w->exec)
            uv_run(&w->loop, UV_RUN_ONCE);
    }
}

stint_code st_worker_begin(struct st_worker *w, stint_error *err)
{
    stint_code rc = executors_init(w, err);

    if (rc == STINT_OK)
        rc = threads_init(w, err);
    if (rc == STINT_OK)
        signals_init(w);
    else
        worker_close(w);
    return rc;
}

bool st_worker_turn(struct st_worker *w)
{
    if (w->phase != CLOSING)
        uv_run(&w->loop, UV_RUN_NOWAIT);
    return w->phase != CLOSING;
}

stint_code st_worker_end(struct st_worker *w, stint_error *err)
{
    if (w->result != STINT_OK && err)
        *err = w->error;
    worker_close(w);
    if (w->begun)
        st_log(ST_LOG_INFO, "worker.stopped", ST_F("worker", w->id), ST_FI("succeeded", w->tally.succeeded),
               ST_FI("failed", w->tally.failed), ST_FI("retried", w->tally.retried));
    st_observe_worker(&w->observer, STINT_EVENT_WORKER_STOPPED, w->result != STINT_OK ? &w->error : NULL);
    return w->result;
}

int st_worker_fd(const struct st_worker *w)
{
    return uv_backend_fd(&w->loop);
}

int st_worker_wait_ms(const struct st_worker *w)
{
    return uv_backend_timeout(&w->loop);
}

stint_code st_worker_run(struct st_worker *w, stint_error *err)
{
    stint_code rc = st_worker_begin(w, err);

    if (rc != STINT_OK)
        return rc;
    uv_run(&w->loop, UV_RUN_DEFAULT);
    return st_worker_end(w, err);
}

void st_worker_stop(struct st_worker *w)
{
    atomic_fetch_add(&w->stops, 1);
    uv_async_send(&w->wake);
}

const char *st_worker_id(const struct st_worker *w)
{
    return w->id;
}

struct st_tally st_worker_tally(const struct st_worker *w)
{
    return w->tally;
}

void st_worker_free(struct st_worker *w)
{
    if (!w)
        return;
    uv_walk(&w->loop, close_handle, NULL);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    uv_loop_close(&w->loop);
    types_clear(w);
    plans_clear(&w->plans);
    if (w->own_settings)
        st_settings_clear(w->own_settings);
    free(w->own_settings);
    free(w);
}
