/* SPDX-License-Identifier: Apache-2.0
 *
 * rq.c - the intake's thread: takes messages while there are free slots, and finishes them.
 *
 *     loop --grant, tickets over--> intake --take, start, end--> Redis
 *     loop <----- arrivals -------- intake --acquire-----------> store
 *
 * It sleeps listening: the server tells it when one of the queues has changed (CLIENT TRACKING with a redirect), and whoever
 * wants something of this worker by name; the loop rings it for slots and outcomes.  Nothing is popped without lying
 * in another list at the same moment, whatever the number of queues.
 *
 * Invariants:
 *   (1) it never holds more jobs for the loop than the loop has slots for;
 *   (2) while it is held (st_intake_hold answered true) it acquires nothing: a disown may go by what the loop knows;
 *   (3) an outcome leaves it only when Redis has it, or at the end of its time.
 *
 * Thread: its own, with a store handle, a Redis connection and a listening one of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "intake/rq_int.h"

#define TAKE_MAX   128
#define TICK_MS    1000
#define DEAF_MS    200 /* where the server tells us nothing */
#define RECOVER_US (30 * ST_SEC)
#define STOPS_MAX  4096

/* ---- the loop's side ----------------------------------------------------------------------------------- */

/* Under the mutex. */
static void rouse(struct st_intake *x)
{
    if (!x->asleep)
        return;
    x->asleep = false;
    pthread_cond_signal(&x->cond);
    if (x->ear)
        st_redis_ear_interrupt(x->ear);
}

void st_intake_take(struct st_intake *x, struct st_intake_news *news)
{
    pthread_mutex_lock(&x->mutex);
    *news = x->news;
    x->n_free -= news->n_arrivals < x->n_free ? news->n_arrivals : x->n_free; /* until the loop says more */
    memset(&x->news, 0, sizeof(x->news));
    x->cap_arrivals = x->cap_stops = 0;
    pthread_mutex_unlock(&x->mutex);
}

/* Slots that nothing came for are still free.  Under the mutex. */
static size_t grant(const struct st_intake *x)
{
    const size_t busy = x->reserved + x->news.n_arrivals;

    return x->n_free > busy ? x->n_free - busy : 0;
}

void st_intake_grant(struct st_intake *x, size_t n_free)
{
    pthread_mutex_lock(&x->mutex);
    x->n_free = n_free;
    if (grant(x) && x->more && !x->hold)
        rouse(x);
    pthread_mutex_unlock(&x->mutex);
}

size_t st_intake_busy(struct st_intake *x)
{
    size_t n;

    pthread_mutex_lock(&x->mutex);
    n = x->reserved + x->news.n_arrivals;
    pthread_mutex_unlock(&x->mutex);
    return n;
}

bool st_intake_more(struct st_intake *x)
{
    bool more;

    pthread_mutex_lock(&x->mutex);
    more = x->more && !x->hold;
    pthread_mutex_unlock(&x->mutex);
    return more;
}

bool st_intake_hold(struct st_intake *x)
{
    bool clear;

    pthread_mutex_lock(&x->mutex);
    x->hold = true;
    clear = x->reserved == 0 && x->news.n_arrivals == 0;
    pthread_mutex_unlock(&x->mutex);
    return clear;
}

void st_intake_go(struct st_intake *x)
{
    pthread_mutex_lock(&x->mutex);
    x->hold = false;
    rouse(x);
    pthread_mutex_unlock(&x->mutex);
}

bool st_intake_idle(struct st_intake *x)
{
    bool idle;

    pthread_mutex_lock(&x->mutex);
    idle = x->idle && x->n_open == 0 && !x->ended && x->news.n_arrivals == 0;
    pthread_mutex_unlock(&x->mutex);
    return idle;
}

void st_intake_plan(struct st_intake *x, struct st_plan *plan, int64_t lease_us)
{
    pthread_mutex_lock(&x->mutex);
    st_plan_unref(x->plan);
    x->plan = st_plan_ref(plan);
    x->lease_us = lease_us;
    pthread_mutex_unlock(&x->mutex);
}

/* ---- Redis, there and away ------------------------------------------------------------------------------ */

void st_rq_note(struct st_intake *x, stint_code rc, const stint_error *err)
{
    if (rc == STINT_OK) {
        if (x->away) {
            st_log(ST_LOG_INFO, "intake.back", ST_F("redis", st_redis_where(x->rq.r)));
            if (x->beat_us)
                x->beat_us = st_clock_mono_us(); /* does it still know us? */
        }
        x->away = false;
        x->tries.n = 0;
        return;
    }
    if (!x->away)
        st_log(ST_LOG_WARN, "intake.away", ST_F("redis", st_redis_where(x->rq.r)), ST_FE(err),
               ST_F("remedy", err->remedy));
    x->away = true;
    x->not_before_us = st_clock_mono_us() + st_tries_next(&x->tries);
}

/* ---- commands ------------------------------------------------------------------------------------------- */

/* Under the mutex. */
static void ask_to_stop(struct st_intake *x, struct ticket *t)
{
    struct st_intake_news *n = &x->news;

    if (n->n_stops == STOPS_MAX)
        return;
    if (n->n_stops == x->cap_stops || !n->stops) {
        void *more = realloc(n->stops, (n->n_stops + 16) * sizeof(*n->stops));

        if (!more)
            return;
        n->stops = more;
        x->cap_stops = n->n_stops + 16;
    }
    t->stopped = true;
    memcpy(n->stops[n->n_stops++], t->run_id, sizeof(t->run_id));
}

/* id NULL = all that runs here. */
static void stop_jobs(struct st_intake *x, const char *id, bool at_once)
{
    pthread_mutex_lock(&x->mutex);
    for (struct ticket *t = x->open; t; t = t->next)
        if (!id || strcmp(t->id, id) == 0)
            ask_to_stop(x, t);
    x->news.kill = x->news.kill || at_once;
    pthread_mutex_unlock(&x->mutex);
}

static void text_of(struct st_slice doc, const char *key, char *out, size_t size)
{
    const struct st_slice v = st_json_member(doc, key);
    struct st_buf b;

    out[0] = '\0';
    st_buf_init(&b, size - 1);
    if (v.p && st_json_string(v, &b) && b.p && !b.failed)
        memcpy(out, b.p, b.len + 1);
    st_buf_clear(&b);
}

static void obey(struct st_intake *x, struct st_slice message)
{
    char command[32], id[ST_RQ_ID_MAX + 1];

    if (message.len > 65536 || !st_json_ok(message))
        return;
    message = st_json_trim(message);
    text_of(message, "command", command, sizeof(command));
    text_of(message, "job_id", id, sizeof(id));
    st_log(ST_LOG_INFO, "intake.command", ST_F("command", command), ST_F(id[0] ? "rq_job" : NULL, id));
    if ((strcmp(command, "stop-job") == 0 || strcmp(command, "stop-execution") == 0) && id[0]) {
        stop_jobs(x, id, false);
    } else if (strcmp(command, "kill-horse") == 0) {
        stop_jobs(x, NULL, true);
    } else if (strcmp(command, "shutdown") == 0) {
        pthread_mutex_lock(&x->mutex);
        x->news.shutdown = true;
        pthread_mutex_unlock(&x->mutex);
    }
    uv_async_send(x->wake);
}

/* ---- listening ------------------------------------------------------------------------------------------- */

/* Not permitted: nothing is told, until it is. */
static void tell_deaf(struct st_intake *x, const stint_error *err)
{
    if (x->deaf || strcmp(err->detail, "NOPERM") != 0)
        return;
    st_log(ST_LOG_WARN, "intake.polling", ST_FE(err), ST_F("effect", "stop commands of RQ are not heard"),
           ST_F("remedy", "let the user's ACL allow the channels rq:* and __redis__:invalidate"));
    x->deaf = true;
}

/* Hears all there is to hear within the time. */
static void listen_for(struct st_intake *x, int ms)
{
    struct st_slice channel, message;
    stint_error err = {0};

    for (;;) {
        if (st_redis_ear_next(x->ear, ms, &channel, &message, &err) != STINT_OK) {
            tell_deaf(x, &err);
            x->listener = 0;
            x->listen_us = st_clock_mono_us() + ST_SEC;
            return;
        }
        if (!channel.p)
            return;
        if (st_slice_is(channel, "__redis__:invalidate")) {
            pthread_mutex_lock(&x->mutex);
            x->more = true;
            pthread_mutex_unlock(&x->mutex);
        } else if (message.p) {
            obey(x, message);
        }
        ms = 0;
    }
}

/* Away: it is tried again whenever it is listened to. */
static void subscribe(struct st_intake *x)
{
    char own[ST_ID_MAX + 16];
    struct st_slice channels[2] = {st_slice_cstr("__redis__:invalidate"), ST_NONE};
    stint_error err = {0};

    snprintf(own, sizeof(own), "rq:pubsub:%s", x->worker_id);
    channels[1] = st_slice_cstr(own);
    if (st_redis_ear_subscribe(x->ear, channels, 2, &err) != STINT_OK)
        st_log(ST_LOG_DEBUG, "intake.deaf", ST_FE(&err));
}

/* The data connection's reads are to be told to the listening one. */
static void track(struct st_intake *x)
{
    stint_error err = {0};
    int64_t id = st_redis_ear_id(x->ear);
    stint_code rc;

    if (!id && st_clock_mono_us() >= x->listen_us) {
        listen_for(x, 0);
        id = st_redis_ear_id(x->ear);
    }
    if (!id || (id == x->listener && x->generation == st_redis_generation(x->rq.r)))
        return;
    rc = st_rq_track(&x->rq, id, &err);
    if (rc == STINT_OK) {
        x->listener = id;
        x->generation = st_redis_generation(x->rq.r);
        x->deaf = false;
    } else if (!x->deaf && rc == STINT_ESTORE) {
        listen_for(x, 0); /* a server that was started anew does not know its listeners of before: nor do we then */
        if (st_redis_ear_id(x->ear) != id)
            return;
        st_log(ST_LOG_WARN, "intake.polling", ST_FE(&err));
        x->deaf = true;
    }
}

/* ---- care -------------------------------------------------------------------------------------------------- */

/* Copies: one may be over, but not gone, by the time it is told.  NULL = no memory. */
static struct st_rq_running *all_running(struct st_intake *x, size_t *n)
{
    struct st_rq_running *all;

    *n = 0;
    pthread_mutex_lock(&x->mutex);
    all = calloc(x->n_open + 1, sizeof(*all));
    for (struct ticket *t = x->open; all && t; t = t->next) {
        struct st_rq_running *r = &all[(*n)++];

        snprintf(r->id, sizeof(r->id), "%s", t->id);
        memcpy(r->execution, t->execution, sizeof(r->execution));
        r->queue = t->queue;
        r->started_us = t->started_us;
    }
    pthread_mutex_unlock(&x->mutex);
    return all;
}

static void beat(struct st_intake *x)
{
    size_t n;
    struct st_rq_running *running = all_running(x, &n);
    stint_error err = {0};
    bool known = false;
    stint_code rc;

    rc = running ? st_rq_beat(&x->rq, running, n, &known, &err)
                 : st_fail(&err, STINT_ENOMEM, "no memory for a heartbeat");
    free(running);
    st_rq_note(x, rc, &err);
    if (rc == STINT_OK) {
        x->beat_us = st_clock_mono_us() + ST_RQ_BEAT_US;
        x->born = known;
        if (!known)
            st_log(ST_LOG_WARN, "intake.forgotten", ST_F("redis", st_redis_where(x->rq.r)),
                   ST_F("effect", "the server knows this worker no more: its data may be gone, and messages with it"));
    }
}

/* Suspended or not, a worker that has runs is busy with them. */
static bool tell_state(struct st_intake *x)
{
    char job[ST_RQ_ID_MAX + 1];
    stint_error err;
    bool told;

    pthread_mutex_lock(&x->mutex);
    snprintf(job, sizeof(job), "%s", x->open ? x->open->id : "");
    pthread_mutex_unlock(&x->mutex);
    st_redis_batch_reset(&x->rq.b);
    st_rq_add_state(&x->rq, job[0] ? job : NULL, x->suspended);
    told = st_rq_flush(&x->rq, &err) == STINT_OK;
    st_redis_batch_reset(&x->rq.b);
    return told;
}

static void be_born(struct st_intake *x)
{
    stint_error err = {0};
    stint_code rc = st_rq_birth(&x->rq, &err);

    st_rq_note(x, rc, &err);
    if (rc != STINT_OK)
        return;
    if (!x->beat_us)
        st_log(ST_LOG_INFO, "intake.ready", ST_F("redis", st_redis_where(x->rq.r)), ST_F("worker", x->worker_id));
    x->born = true;
    x->beat_us = st_clock_mono_us() + ST_RQ_BEAT_US;
    x->told_suspended = tell_state(x) && x->suspended;
}

static void recover(struct st_intake *x)
{
    stint_error err = {0};
    size_t n = 0;
    stint_code rc = st_rq_recover(&x->rq, st_rq_turn_ours, x, &n, &err);

    st_rq_note(x, rc, &err);
    x->recover_us = st_clock_mono_us() + RECOVER_US;
    if (n)
        st_log(ST_LOG_INFO, "intake.recovered", ST_FI("messages", n));
}

/* What is to be done from time to time: our own signs of life before anybody is taken for dead. */
static void tend(struct st_intake *x)
{
    if (!x->born)
        be_born(x);
    else if (st_clock_mono_us() >= x->beat_us)
        beat(x);
    if (x->born && st_clock_mono_us() >= x->recover_us)
        recover(x);
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

static size_t reserve(struct st_intake *x)
{
    size_t n = 0;

    if (st_clock_mono_us() < x->not_before_us || !x->born)
        return 0;
    pthread_mutex_lock(&x->mutex);
    if (!x->hold && !x->stop)
        n = grant(x) < TAKE_MAX ? grant(x) : TAKE_MAX;
    x->reserved = n;
    pthread_mutex_unlock(&x->mutex);
    return n;
}

/* Nothing came: is there really nothing?  From now on we are told. */
static void look(struct st_intake *x)
{
    stint_error err = {0};
    bool any = false, news;
    stint_code rc;

    track(x);
    rc = st_rq_look(&x->rq, &any, &err);
    st_rq_note(x, rc, &err);
    pthread_mutex_lock(&x->mutex);
    x->more = any;
    news = rc == STINT_OK && !any && !x->idle;
    x->idle = rc == STINT_OK && !any;
    pthread_mutex_unlock(&x->mutex);
    if (news)
        uv_async_send(x->wake);
}

/* true: there is something to do at once.  Else it is said to be asleep. */
static bool awake(struct st_intake *x)
{
    const bool waits = st_clock_mono_us() < x->not_before_us;
    bool now;

    pthread_mutex_lock(&x->mutex);
    now = x->ended && !(x->away && waits);
    now = now || (x->stop ? !x->n_open && !x->ended && !x->writing : x->more && grant(x) && !x->hold && !waits);
    x->asleep = !now;
    pthread_mutex_unlock(&x->mutex);
    return now;
}

static void nap(struct st_intake *x)
{
    int64_t ms = x->deaf || !x->listener ? DEAF_MS : TICK_MS;
    const int64_t left = (x->not_before_us - st_clock_mono_us() + ST_MS - 1) / ST_MS;

    if (left > 0 && left < ms)
        ms = left;
    if (awake(x))
        return;
    if (x->away || st_clock_mono_us() < x->listen_us) {
        pthread_mutex_lock(&x->mutex);
        if (x->asleep)
            st_cond_wait_us(&x->cond, &x->mutex, ms * ST_MS);
        pthread_mutex_unlock(&x->mutex);
    } else {
        listen_for(x, (int)ms);
    }
    pthread_mutex_lock(&x->mutex);
    x->asleep = false;
    pthread_mutex_unlock(&x->mutex);
}

/* false: all is done, or the time is up. */
static bool going_on(struct st_intake *x)
{
    bool on;

    pthread_mutex_lock(&x->mutex);
    on = !x->stop || ((x->n_open || x->ended || x->writing) && st_clock_mono_us() < x->give_up_us);
    pthread_mutex_unlock(&x->mutex);
    return on;
}

static bool store_open(struct st_intake *x)
{
    stint_error err = {0};

    if (!x->store && x->opener->open(x->opener->arg, &x->store, &err) != STINT_OK) {
        x->store = NULL;
        x->not_before_us = st_clock_mono_us() + st_tries_next(&x->store_tries);
    }
    return x->store != NULL;
}

static void tell_suspended(struct st_intake *x)
{
    st_log(ST_LOG_INFO, x->suspended ? "intake.suspended" : "intake.resumed");
    x->told_suspended = x->suspended;
    if (!tell_state(x))
        x->told_suspended = !x->suspended;
}

static void turn(struct st_intake *x)
{
    bool written = true;
    size_t n = 0;

    if (!x->away || st_clock_mono_us() >= x->not_before_us) {
        written = st_rq_ends_write(x);
        if (written)
            tend(x);
        n = written && store_open(x) ? reserve(x) : 0;
    }
    if (n) {
        st_rq_turn_take(x, n);
        pthread_mutex_lock(&x->mutex);
        n = x->more ? n : 0;
        pthread_mutex_unlock(&x->mutex);
        if (!n && !x->away)
            look(x);
        if (x->suspended != x->told_suspended)
            tell_suspended(x);
    }
    nap(x);
}

static void *intake_thread(void *arg)
{
    struct st_intake *x = arg;
    stint_error err;

    subscribe(x);
    while (going_on(x))
        turn(x);
    if (x->born && !x->away && st_rq_death(&x->rq, &err) != STINT_OK)
        st_log(ST_LOG_WARN, "intake.away", ST_FE(&err));
    st_store_close(x->store);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void intake_clear(struct st_intake *x)
{
    while (x->writing) {
        struct ticket *t = x->writing;

        x->writing = t->next;
        st_rq_ticket_free(t);
    }
    while (x->ended) {
        struct ticket *t = x->ended;

        x->ended = t->next;
        st_rq_ticket_free(t);
    }
    free(x->news.arrivals);
    free(x->news.stops);
    st_redis_ear_close(x->ear);
    st_rq_close(&x->rq);
    st_plan_unref(x->plan);
    pthread_cond_destroy(&x->cond);
    pthread_mutex_destroy(&x->mutex);
    free(x->function);
    free(x);
}

stint_code st_intake_new(const struct st_intake_options *opt, struct st_intake **out, stint_error *err)
{
    struct st_intake *x = calloc(1, sizeof(*x));
    stint_code rc;

    *out = NULL;
    if (!x)
        return st_fail(err, STINT_ENOMEM, "no memory for the intake");
    pthread_mutex_init(&x->mutex, NULL);
    st_cond_init(&x->cond);
    x->opener = opt->opener;
    x->wake = opt->wake;
    x->plan = st_plan_ref(opt->plan);
    x->lease_us = opt->lease_us;
    x->ended_end = &x->ended;
    x->more = true;
    x->tries = x->store_tries = (struct st_tries){.base_us = 100 * ST_MS, .max_us = 5 * ST_SEC};
    snprintf(x->worker_id, sizeof(x->worker_id), "%s", opt->worker_id);
    x->function = strdup(opt->conf->function);
    rc = x->function ? st_rq_open(opt->conf->rq, opt->conf->queues, opt->worker_id, &x->rq, err)
                     : st_fail(err, STINT_ENOMEM, "no memory for the intake");
    if (rc == STINT_OK)
        rc = st_redis_ear_open(x->rq.r, ST_NONE, &x->ear, err);
    if (rc == STINT_OK)
        rc = st_thread_start(&x->thread, "stint-intake", intake_thread, x, err);
    if (rc != STINT_OK) {
        intake_clear(x);
        return rc;
    }
    *out = x;
    return STINT_OK;
}

void st_intake_free(struct st_intake *x, int64_t deadline_us)
{
    if (!x)
        return;
    pthread_mutex_lock(&x->mutex);
    x->stop = true;
    x->give_up_us = st_clock_mono_us() + deadline_us;
    rouse(x);
    pthread_mutex_unlock(&x->mutex);
    pthread_join(x->thread, NULL);
    intake_clear(x);
}
