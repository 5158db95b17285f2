/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_api.c - a worker inside somebody's program: made, given handlers, run, stopped.
 *
 * A stint_worker is what was asked for; each run makes a worker of its own (st_worker) and takes it
 * down again, so that the handle can be run many times.  It can be run in three ways, which differ
 * only in who turns the loop:
 *
 *     run           the caller's thread, until the end
 *     start, join   a thread of its own
 *     begin, step   the host's loop: one descriptor gathers the loop's own and a timer
 *
 * Stopping must be possible from anywhere, a signal handler too, and at any time: it only writes to
 * an eventfd that lives as long as the handle and that the loop watches.
 *
 * Whoever leaves a state says so (`changed`), which is what stint_worker_free waits for: a thread
 * that is in run, join or step is let out before the handle goes.
 *
 * Thread: any; `mutex` guards the state.  Handlers and middlewares may be added only while it is
 * idle.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "complete/complete.h"
#include "lib/lib.h"

#define STORE_TIMEOUT_MS 5000

/* ---- making ------------------------------------------------------------------------------ */

static stint_code no_memory(stint_error *err)
{
    return st_fail(err, STINT_ENOMEM, "no memory for a worker");
}

/* The worker on one of whose threads a handler or a callback of the host's runs just now: that
 * thread cannot wait for the worker's end, being part of it. */
static _Thread_local const stint_worker *inside;

const stint_worker *st_lib_inside(const stint_worker *w)
{
    const stint_worker *before = inside;

    inside = w;
    return before;
}

/* One event at a time, whichever thread it comes from. */
static void tell(void *arg, const stint_event *event)
{
    stint_worker *w = arg;
    const stint_worker *before = st_lib_inside(w);

    pthread_mutex_lock(&w->event_mutex);
    w->event(w->event_arg, event);
    st_lib_end_fork(w->pid);
    pthread_mutex_unlock(&w->event_mutex);
    st_lib_inside(before);
}

static void worker_clear(stint_worker *w)
{
    for (size_t i = 0; i < w->n_handlers; i++) {
        free(w->handlers[i]->pattern);
        free(w->handlers[i]);
    }
    free(w->handlers);
    free(w->uses);
    free(w->url);
    free(w->stores);
    st_settings_clear(&w->settings);
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->event_mutex);
    pthread_mutex_destroy(&w->store_mutex);
    free(w);
}

static stint_code worker_fill(stint_worker *w, const char *url, const stint_worker_options *opt, stint_error *err)
{
    stint_code rc = st_lib_worker_options(opt, w, err);

    if (rc != STINT_OK)
        return rc;
    w->url = strdup(st_lib_url(url));
    w->stores = calloc((size_t)w->settings.slots, sizeof(*w->stores));
    if (w->url && !w->settings.results_dir)
        w->settings.results_dir = st_results_dir(w->url);
    if (!w->url || !w->stores || !w->settings.results_dir)
        return no_memory(err);
    if (w->settings.worker_id)
        snprintf(w->id, sizeof(w->id), "%s", w->settings.worker_id);
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return w->stop_fd >= 0 ? STINT_OK : st_fail(err, STINT_EAGAIN, "cannot make an eventfd: %s", strerror(errno));
}

stint_code stint_worker_new(const char *url, const stint_worker_options *opt, stint_worker **out, stint_error *err)
{
    stint_worker *w;
    stint_code rc;

    if (!out)
        return st_fail(err, STINT_EINVAL, "there is no place for the worker: out is NULL");
    *out = NULL;
    w = calloc(1, sizeof(*w));
    if (!w)
        return no_memory(err);
    w->pid = getpid();
    w->stop_fd = w->epoll_fd = w->timer_fd = -1;
    pthread_mutex_init(&w->mutex, NULL);
    st_cond_init(&w->changed);
    pthread_mutex_init(&w->event_mutex, NULL);
    pthread_mutex_init(&w->store_mutex, NULL);
    rc = worker_fill(w, url, opt, err);
    if (rc != STINT_OK) {
        worker_clear(w);
        return rc;
    }
    *out = w;
    return STINT_OK;
}

/* ---- what it serves ---------------------------------------------------------------------- */

static stint_code usable(const stint_worker *w, stint_error *err)
{
    if (!w)
        return st_fail(err, STINT_EINVAL, "the worker is NULL: stint_worker_new() gives one");
    return st_lib_same_process(w->pid, "worker", "stint_worker_new()", err);
}

/* From one state to another; `refusal` where it is in neither that one nor on its way out. */
static stint_code move_state(stint_worker *w, enum lib_state from, enum lib_state to, const char *refusal,
                             stint_error *err)
{
    stint_code rc = usable(w, err);

    if (rc != STINT_OK)
        return rc;
    pthread_mutex_lock(&w->mutex);
    if (w->state != from || w->freeing)
        rc = st_fail(err, STINT_ESTATE, "%s", w->freeing ? "the worker is being freed" : refusal);
    else
        w->state = to;
    pthread_mutex_unlock(&w->mutex);
    return rc;
}

/* Moves on only from idle: one way of running at a time. */
static stint_code leave_idle(stint_worker *w, enum lib_state to, stint_error *err)
{
    return move_state(w, LIB_IDLE, to, "the worker is running", err);
}

/* The last that a call does with the worker: it may be freed as soon as the lock is open. */
static void set_state(stint_worker *w, enum lib_state to)
{
    pthread_mutex_lock(&w->mutex);
    w->state = to;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static stint_code check_handler(const stint_worker *w, const char *pattern, stint_handler_fn fn, stint_error *err)
{
    stint_code rc;

    if (!pattern || !fn)
        return st_fail(err, STINT_EINVAL, "a handler needs a type and a function");
    rc = st_type_pattern_check(st_slice_cstr(pattern), err);
    for (size_t i = 0; rc == STINT_OK && i < w->n_handlers; i++) {
        if (strcmp(w->handlers[i]->pattern, pattern) == 0)
            rc = st_fail(err, STINT_EEXISTS, "there is a handler for %s already", pattern);
    }
    return rc;
}

static stint_code add_handler(stint_worker *w, struct lib_handler *h, stint_error *err)
{
    struct lib_handler **grown = realloc(w->handlers, (w->n_handlers + 1) * sizeof(*grown));

    if (!grown)
        return no_memory(err);
    w->handlers = grown;
    grown[w->n_handlers++] = h;
    return STINT_OK;
}

static stint_code make_handler(stint_worker *w, const char *pattern, stint_handler_fn fn, void *arg,
                               const stint_handler_options *opt, stint_error *err)
{
    stint_code rc = check_handler(w, pattern, fn, err);
    struct lib_handler *h;

    if (rc != STINT_OK)
        return rc;
    h = calloc(1, sizeof(*h));
    if (!h || !(h->pattern = strdup(pattern))) {
        free(h);
        return no_memory(err);
    }
    h->w = w;
    h->fn = fn;
    h->arg = arg;
    rc = st_lib_handler_options(opt, w, h, err);
    if (rc == STINT_OK)
        rc = add_handler(w, h, err);
    if (rc != STINT_OK) {
        free(h->pattern);
        free(h);
    }
    return rc;
}

stint_code stint_worker_handle(stint_worker *w, const char *pattern, stint_handler_fn fn, void *arg,
                               const stint_handler_options *opt, stint_error *err)
{
    stint_code rc = leave_idle(w, LIB_RUNNING, err);

    if (rc != STINT_OK)
        return rc;
    rc = make_handler(w, pattern, fn, arg, opt, err);
    set_state(w, LIB_IDLE);
    return rc;
}

stint_code stint_worker_use(stint_worker *w, stint_handler_fn fn, void *arg, stint_error *err)
{
    struct lib_middleware *grown;
    stint_code rc = fn ? leave_idle(w, LIB_RUNNING, err) : st_fail(err, STINT_EINVAL, "a middleware needs a function");

    if (rc != STINT_OK)
        return rc;
    grown = realloc(w->uses, (w->n_uses + 1) * sizeof(*grown));
    if (grown) {
        w->uses = grown;
        grown[w->n_uses++] = (struct lib_middleware){fn, arg};
    } else {
        rc = no_memory(err);
    }
    set_state(w, LIB_IDLE);
    return rc;
}

/* ---- stores for handlers' transactions --------------------------------------------------- */

static stint_code open_store(void *arg, struct st_store **out, stint_error *err)
{
    const stint_worker *w = arg;

    return st_store_open(w->url, &(struct st_store_open){.timeout_ms = STORE_TIMEOUT_MS, .signal = st_lib_signal()},
                         out, err);
}

stint_code st_lib_store_take(stint_worker *w, struct st_store **out, stint_error *err)
{
    *out = NULL;
    pthread_mutex_lock(&w->store_mutex);
    if (w->n_stores)
        *out = w->stores[--w->n_stores];
    pthread_mutex_unlock(&w->store_mutex);
    return *out ? STINT_OK : open_store(w, out, err);
}

void st_lib_store_give(stint_worker *w, struct st_store *s)
{
    pthread_mutex_lock(&w->store_mutex);
    if (w->n_stores < (size_t)w->settings.slots) {
        w->stores[w->n_stores++] = s;
        s = NULL;
    }
    pthread_mutex_unlock(&w->store_mutex);
    st_store_close(s);
}

/* ---- a run ------------------------------------------------------------------------------- */

static void run_clear(stint_worker *w)
{
    uint64_t stops;
    ssize_t n = read(w->stop_fd, &stops, sizeof(stops)); /* what was asked of this run */

    (void)n;
    atomic_store(&w->stops, 0);
    while (w->n_stores)
        st_store_close(w->stores[--w->n_stores]);
    st_worker_free(w->inner);
    free(w->table);
    w->inner = NULL;
    w->table = NULL;
}

static stint_code run_make(stint_worker *w, stint_error *err)
{
    struct st_worker_options opt = {.opener = {open_store, w},
                                    .settings = &w->settings,
                                    .once = w->once,
                                    .stop_fd = &w->stop_fd,
                                    .event = w->event ? tell : NULL,
                                    .event_arg = w};
    stint_code rc;

    w->table = calloc(w->n_handlers + 1, sizeof(*w->table));
    if (!w->table)
        return no_memory(err);
    for (size_t i = 0; i < w->n_handlers; i++) {
        const struct lib_handler *h = w->handlers[i];

        w->table[i] = (struct st_worker_handler){.pattern = h->pattern,
                                                 .fn = st_lib_run_attempt,
                                                 .arg = w->handlers[i],
                                                 .policy = h->policy,
                                                 .lease_us = h->lease_us,
                                                 .renew_us = h->renew_us};
    }
    opt.handlers = w->table;
    opt.n_handlers = w->n_handlers;
    if (w->n_handlers == 0)
        rc = st_fail(err, STINT_EINVAL, "the worker has no handler: stint_worker_handle() adds one");
    else
        rc = st_worker_new(&opt, &w->inner, err);
    if (rc != STINT_OK) {
        free(w->table);
        w->table = NULL;
        return rc;
    }
    memcpy(w->id, st_worker_id(w->inner), strlen(st_worker_id(w->inner)) + 1);
    w->observer = (struct st_observer){.fn = opt.event, .arg = w, .worker = w->id};
    return STINT_OK;
}

stint_code stint_worker_run(stint_worker *w, stint_error *err)
{
    stint_code rc = leave_idle(w, LIB_RUNNING, err);

    if (rc != STINT_OK)
        return rc;
    rc = run_make(w, err);
    if (rc == STINT_OK) {
        rc = st_worker_run(w->inner, err);
        run_clear(w);
    }
    set_state(w, LIB_IDLE);
    return rc;
}

static void *run_thread(void *arg)
{
    stint_worker *w = arg;

    w->result = st_worker_run(w->inner, &w->error);
    return NULL;
}

stint_code stint_worker_start(stint_worker *w, stint_error *err)
{
    stint_code rc = leave_idle(w, LIB_RUNNING, err);

    if (rc != STINT_OK)
        return rc;
    rc = run_make(w, err);
    if (rc == STINT_OK) {
        rc = st_thread_start(&w->thread, "stint-worker", run_thread, w, err);
        if (rc != STINT_OK)
            run_clear(w);
    }
    set_state(w, rc == STINT_OK ? LIB_STARTED : LIB_IDLE);
    return rc;
}

/* In JOINING. */
static stint_code join_thread(stint_worker *w, stint_error *err)
{
    stint_code rc;

    pthread_join(w->thread, NULL);
    rc = w->result;
    if (rc != STINT_OK && err)
        *err = w->error;
    run_clear(w);
    set_state(w, LIB_IDLE);
    return rc;
}

static stint_code own_thread(stint_error *err)
{
    st_fail(err, STINT_ESTATE, "a handler or event callback cannot wait for the end of its worker");
    st_err_remedy(err, "call stint_worker_stop() here, and wait on another thread");
    return STINT_ESTATE;
}

stint_code stint_worker_join(stint_worker *w, stint_error *err)
{
    stint_code rc = usable(w, err);

    if (rc == STINT_OK && inside == w)
        rc = own_thread(err);
    if (rc == STINT_OK)
        rc = move_state(w, LIB_STARTED, LIB_JOINING, "the worker was not started, or somebody else waits for it", err);
    return rc == STINT_OK ? join_thread(w, err) : rc;
}

/* ---- stopping ---------------------------------------------------------------------------- */

/* `how` as in stops.  The loop counts what it reads: the second stop is the one at once. */
static void ask_to_stop(stint_worker *w, int how)
{
    int asked;
    uint64_t more;
    ssize_t n;

    if (!w || st_lib_forked(w->pid)) /* the descriptor is the parent's too */
        return;
    asked = atomic_load(&w->stops);
    while (asked < how && !atomic_compare_exchange_weak(&w->stops, &asked, how))
        ;
    if (asked >= how)
        return;
    more = (uint64_t)(how - asked);
    n = write(w->stop_fd, &more, sizeof(more));
    (void)n; /* it cannot be full */
}

void stint_worker_stop(stint_worker *w)
{
    ask_to_stop(w, 1);
}

void stint_worker_stop_now(stint_worker *w)
{
    ask_to_stop(w, 2);
}

/* ---- the host's loop --------------------------------------------------------------------- */

static bool watch(int epoll_fd, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};

    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

static void step_clear(stint_worker *w)
{
    if (w->epoll_fd >= 0)
        close(w->epoll_fd);
    if (w->timer_fd >= 0)
        close(w->timer_fd);
    w->epoll_fd = w->timer_fd = -1;
}

/* The loop's next timer makes the descriptor readable as well. */
static void arm_timer(stint_worker *w)
{
    int ms = st_worker_wait_ms(w->inner);
    struct itimerspec t = {0};

    if (ms == 0)
        t.it_value.tv_nsec = 1;
    else if (ms > 0)
        t.it_value = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    timerfd_settime(w->timer_fd, 0, &t, NULL);
}

static stint_code step_open(stint_worker *w, stint_error *err)
{
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    w->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (w->epoll_fd >= 0 && w->timer_fd >= 0 && watch(w->epoll_fd, st_worker_fd(w->inner)) &&
        watch(w->epoll_fd, w->timer_fd))
        return STINT_OK;
    st_fail(err, STINT_EAGAIN, "cannot make a descriptor for the worker: %s", strerror(errno));
    step_clear(w);
    return STINT_EAGAIN;
}

stint_code stint_worker_begin(stint_worker *w, int *fd, stint_error *err)
{
    stint_code rc =
        fd ? leave_idle(w, LIB_RUNNING, err) : st_fail(err, STINT_EINVAL, "there is no place for the descriptor");

    if (fd)
        *fd = -1;
    if (rc != STINT_OK)
        return rc;
    rc = run_make(w, err);
    if (rc == STINT_OK) {
        rc = step_open(w, err);
        if (rc == STINT_OK)
            rc = st_worker_begin(w->inner, err);
        if (rc != STINT_OK) {
            step_clear(w);
            run_clear(w);
        }
    }
    if (rc == STINT_OK) {
        st_worker_turn(w->inner); /* the loop tells epoll of its descriptors */
        arm_timer(w);
        *fd = w->epoll_fd;
    }
    set_state(w, rc == STINT_OK ? LIB_STEPPING : LIB_IDLE);
    return rc;
}

/* In STEP.  0 = that was the last one. */
static int turn(stint_worker *w, stint_code *rc, stint_error *err)
{
    uint64_t expired;
    ssize_t n = read(w->timer_fd, &expired, sizeof(expired));
    int running = st_worker_turn(w->inner);

    (void)n;
    *rc = STINT_OK;
    if (running) {
        arm_timer(w);
    } else {
        *rc = st_worker_end(w->inner, err);
        step_clear(w);
        run_clear(w);
    }
    set_state(w, running ? LIB_STEPPING : LIB_IDLE);
    return running;
}

stint_code stint_worker_step(stint_worker *w, int *running, stint_error *err)
{
    stint_code rc = move_state(w, LIB_STEPPING, LIB_STEP,
                               "stint_worker_begin() comes before stint_worker_step(), and one "
                               "step before the next",
                               err);
    int more = rc == STINT_OK && turn(w, &rc, err);

    if (running)
        *running = more;
    return rc;
}

/* ---- the end ----------------------------------------------------------------------------- */

const char *stint_worker_id(const stint_worker *w)
{
    return w ? w->id : "";
}

/* Until nobody else is in a call that ends by itself; what is left is idle, or ours to end. */
static enum lib_state wait_for_others(stint_worker *w)
{
    enum lib_state state;

    pthread_mutex_lock(&w->mutex);
    while (w->state == LIB_RUNNING || w->state == LIB_JOINING || w->state == LIB_STEP)
        pthread_cond_wait(&w->changed, &w->mutex);
    state = w->state;
    if (state == LIB_STARTED)
        w->state = LIB_JOINING;
    else if (state == LIB_STEPPING)
        w->state = LIB_STEP;
    pthread_mutex_unlock(&w->mutex);
    return state;
}

static void end_run(stint_worker *w)
{
    enum lib_state state = wait_for_others(w);
    stint_code rc;

    if (state == LIB_STARTED)
        join_thread(w, NULL);
    while (state == LIB_STEPPING && turn(w, &rc, NULL))
        poll(&(struct pollfd){.fd = w->epoll_fd, .events = POLLIN}, 1, -1);
}

void stint_worker_free(stint_worker *w)
{
    if (!w || st_lib_forked(w->pid))
        return;
    stint_worker_stop_now(w);
    if (inside == w) {
        st_log(ST_LOG_ERROR, "worker.not_freed", ST_F("worker", w->id),
               ST_F("why", "stint_worker_free() was called by a handler or event callback of it"));
        return;
    }
    pthread_mutex_lock(&w->mutex);
    w->freeing = true;
    pthread_mutex_unlock(&w->mutex);
    end_run(w);
    worker_clear(w);
}
