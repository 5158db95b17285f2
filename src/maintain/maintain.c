/* SPDX-License-Identifier: Apache-2.0
 *
 * maintain.c - rescue lost jobs, keep the workers table true, lead.
 *
 *     every worker   reap      jobs of others whose lease has expired          a quarter of a lease, 0.1 s .. 5 s
 *                    beat      its own row in the workers table                10 s
 *                    neighbours: workers of this host and boot whose process
 *                              is gone lose their leases at once               with the beat
 *                    elect     try to lead, or renew                           half a term, 15 s
 *     the leader     bury      rows of workers that have not beaten for long   with the election
 *                    prune     ended jobs past their retention                 a minute
 *                    upkeep    what the store itself needs                     as the store says
 *
 * Every leader's write carries its epoch, so that one that slept through its term changes nothing.
 * All of it may be done twice or late without harm.
 *
 * Thread: its own, with a store handle of its own.
 */
#include "maintain/maintain.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "maintain/takeover.h"

#define REAP_BATCH   100
#define BEATS_MISSED 3 /* in a row, before a store that is busy or away is told here too */
#define PRUNE_BATCH  1000
#define PRUNE_EVERY  (60 * ST_SEC)

/* Things to do from time to time, by the monotonic clock. */
struct chore {
    int64_t every_us;
    int64_t at_us;
};

struct st_maintainer {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    uv_async_t *wake;
    const struct st_opener *opener;
    const struct st_vitals *vitals;
    const struct st_observer *observer;
    char id[ST_ID_MAX + 1];

    /* under the mutex */
    struct st_maintain_options opt;
    bool stop, nudge, healthy;
    struct st_maintain_news news;
    char note[240];
    int64_t give_up_us;

    /* the thread's own */
    struct st_store *store;
    bool registered; /* the first beat is written */
    int missed;      /* beats that have failed since the last one that did not */
    bool told;       /* that they fail */
    bool ousted;     /* the row is another's now */
    struct chore reap, beat, elect, prune, upkeep;
    int64_t epoch; /* 0 = not the leader */
};

static int64_t with_jitter(int64_t us)
{
    return (int64_t)((double)us * (0.9 + 0.2 * st_random_unit()));
}

static bool due(struct chore *c, int64_t now_us)
{
    if (now_us < c->at_us)
        return false;
    c->at_us = now_us + with_jitter(c->every_us);
    return true;
}

/* ---- every worker's ---------------------------------------------------------------- */

static void tell_reaped(const struct st_maintainer *m, const struct st_reaped *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        st_log(ST_LOG_WARN, "job.reaped", ST_F("job", r[i].id), ST_FI("fence", r[i].fence), ST_F("from", r[i].worker),
               ST_F("state", st_state_name(r[i].to)));
        st_observe_reaped(m->observer, &r[i]);
    }
}

static void do_reap(struct st_maintainer *m)
{
    struct st_reaped *r = calloc(REAP_BATCH, sizeof(*r));
    size_t n = 0;

    if (!r)
        return;
    while (st_store_reap(m->store, 0, st_slice_cstr(m->id), r, REAP_BATCH, &n, NULL) == STINT_OK && n > 0) {
        tell_reaped(m, r, n);
        pthread_mutex_lock(&m->mutex);
        m->news.rescued = true;
        pthread_mutex_unlock(&m->mutex);
        uv_async_send(m->wake);
        if (n < REAP_BATCH)
            break;
    }
    free(r);
}

/* A JSON array of names as people write it in a log: a,b */
static void names_text(const char *json, char *out, size_t size)
{
    size_t n = 0;

    for (; *json && n + 1 < size; json++) {
        if (!strchr("[]\"", *json))
            out[n++] = *json;
    }
    out[n] = '\0';
}

/* Now that others can see the worker it counts as started. */
static void say_started(struct st_maintainer *m, const struct st_worker_info *w)
{
    char queues[1024], types[1024];

    names_text(w->queues, queues, sizeof(queues));
    names_text(w->types, types, sizeof(types));
    m->registered = true;
    st_log(ST_LOG_INFO, "worker.started", ST_F("worker", w->id), ST_FI("slots", w->slots),
           ST_F(*queues ? "queues" : "types", *queues ? queues : types), ST_F(*queues ? "types" : NULL, types));
}

static void say_ousted(struct st_maintainer *m, const stint_error *err)
{
    st_log(ST_LOG_ERROR, "worker.ousted", ST_F("worker", m->id), ST_FE(err));
    m->ousted = true;
    pthread_mutex_lock(&m->mutex);
    m->news.ousted = true;
    pthread_mutex_unlock(&m->mutex);
    uv_async_send(m->wake);
}

/* A store that is away is the courier's to tell.  One that refuses us alone, or has no connection left for us, may be told by
 * nobody else: as long as nothing is due a claim only reads, over a connection that it has. */
static void say_beat_failed(struct st_maintainer *m, const stint_error *err)
{
    const bool passing = err->code == STINT_EAGAIN || err->code == STINT_EUNKNOWN;
    const bool tell = !m->told && (!passing || m->missed + 1 >= BEATS_MISSED);

    st_log(tell ? ST_LOG_WARN : ST_LOG_DEBUG, "worker.beat_failed", ST_F("worker", m->id), ST_FE(err),
           ST_F("remedy", err->remedy));
    m->missed++;
    m->told = m->told || tell;
}

static void do_beat(struct st_maintainer *m)
{
    struct st_worker_info w;
    stint_error err;
    stint_code rc;

    pthread_mutex_lock(&m->mutex);
    w = m->opt.self;
    w.healthy = m->healthy;
    memcpy(w.note, m->note, sizeof(w.note));
    pthread_mutex_unlock(&m->mutex);
    w.running = atomic_load(&m->vitals->running);
    w.quiet = atomic_load(&m->vitals->quiet);
    rc = st_store_worker_beat(m->store, 0, &w, &err);
    if (rc == STINT_EEXISTS)
        say_ousted(m, &err);
    else if (rc != STINT_OK)
        say_beat_failed(m, &err);
    if (rc != STINT_OK)
        return;
    m->missed = 0;
    m->told = false;
    if (!m->registered)
        say_started(m, &w);
}

static void do_neighbours(struct st_maintainer *m)
{
    struct st_worker_info *list = NULL;
    size_t n = 0;

    if (st_store_worker_list(m->store, &list, &n, NULL) != STINT_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i].id, m->id) == 0 || !st_worker_process_gone(&list[i]))
            continue;
        if (st_store_worker_remove(m->store, 0, st_slice_cstr(list[i].id), true, 0, list[i].last_beat_us, NULL) ==
            STINT_OK) {
            st_log(ST_LOG_WARN, "worker.gone", ST_F("worker", list[i].id), ST_FI("pid", list[i].pid));
            m->reap.at_us = 0;
        }
    }
    free(list);
}

/* ---- the leader's ------------------------------------------------------------------- */

static void do_elect(struct st_maintainer *m)
{
    struct st_lead_req req = {.worker = st_slice_cstr(m->id), .term_us = ST_LEADER_TERM};
    struct st_lead lead = {0};
    stint_error err;

    if (st_store_lead(m->store, &req, &lead, &err) != STINT_OK) {
        m->epoch = 0; /* perhaps still ours; the next election will say */
        return;
    }
    if (lead.leader && m->epoch != lead.epoch)
        st_log(ST_LOG_INFO, "leader.elected", ST_F("worker", m->id), ST_FI("epoch", lead.epoch));
    m->epoch = lead.leader ? lead.epoch : 0;
}

static void do_bury(struct st_maintainer *m)
{
    struct st_worker_info *list = NULL;
    int64_t now = st_store_now(m->store);
    size_t n = 0;

    if (st_store_worker_list(m->store, &list, &n, NULL) != STINT_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        if (now - list[i].last_beat_us < ST_WORKER_STALE || strcmp(list[i].id, m->id) == 0)
            continue;
        if (st_store_worker_remove(m->store, 0, st_slice_cstr(list[i].id), false, m->epoch, list[i].last_beat_us,
                                   NULL) == STINT_OK)
            st_log(ST_LOG_WARN, "worker.stale", ST_F("worker", list[i].id), ST_F("host", list[i].host));
    }
    free(list);
}

static void unlink_files(const struct st_pruned *p)
{
    for (size_t i = 0; i < p->n_files; i++)
        unlink(p->files[i]);
}

/* One batch per turn, so that reaping and beats are never far away. */
static void do_prune(struct st_maintainer *m)
{
    struct st_prune_req req = {.epoch = m->epoch, .limit = PRUNE_BATCH};
    struct st_pruned out = {0};
    stint_error err;

    pthread_mutex_lock(&m->mutex);
    req.keep = m->opt.keep;
    pthread_mutex_unlock(&m->mutex);
    if (st_store_prune(m->store, &req, &out, &err) != STINT_OK) {
        st_log(ST_LOG_DEBUG, "prune.failed", ST_FE(&err));
        return;
    }
    if (out.n)
        st_log(ST_LOG_INFO, "prune.done", ST_FI("jobs", out.n), ST_FI("files", out.n_files));
    unlink_files(&out);
    if (out.more)
        m->prune.at_us = 0;
    st_pruned_clear(&out);
}

/* One step per turn, too. */
static void do_upkeep(struct st_maintainer *m)
{
    struct st_prune_req req = {.epoch = m->epoch, .limit = PRUNE_BATCH};
    struct st_pruned out = {0};
    int64_t again_us = PRUNE_EVERY;
    stint_error err;

    pthread_mutex_lock(&m->mutex);
    req.keep = m->opt.keep;
    pthread_mutex_unlock(&m->mutex);
    if (st_store_upkeep(m->store, &req, &out, &again_us, &err) != STINT_OK)
        st_log(ST_LOG_DEBUG, "upkeep.failed", ST_FE(&err));
    else if (out.n)
        st_log(ST_LOG_INFO, "prune.done", ST_FI("jobs", out.n), ST_FI("files", out.n_files));
    m->upkeep.at_us = st_clock_mono_us() + again_us;
    unlink_files(&out);
    st_pruned_clear(&out);
}

/* ---- the thread ----------------------------------------------------------------------- */

static void work(struct st_maintainer *m, bool nudged)
{
    int64_t now = st_clock_mono_us();

    if (due(&m->beat, now) || nudged) {
        do_beat(m);
        do_neighbours(m);
    }
    if (due(&m->elect, now)) {
        do_elect(m);
        if (m->epoch)
            do_bury(m);
    }
    if (due(&m->reap, now))
        do_reap(m);
    if (m->epoch && due(&m->prune, now))
        do_prune(m);
    if (m->epoch && now >= m->upkeep.at_us)
        do_upkeep(m);
}

static int64_t next_chore(const struct st_maintainer *m)
{
    int64_t at = m->reap.at_us;

    if (m->beat.at_us < at)
        at = m->beat.at_us;
    if (m->elect.at_us < at)
        at = m->elect.at_us;
    if (m->epoch && m->prune.at_us < at)
        at = m->prune.at_us;
    if (m->epoch && m->upkeep.at_us < at)
        at = m->upkeep.at_us;
    at -= st_clock_mono_us();
    return at > 0 ? at : 0;
}

static void set_pace(struct st_maintainer *m)
{
    int64_t reap = m->opt.lease_us / 4;

    reap = reap < 100 * ST_MS ? 100 * ST_MS : reap > 5 * ST_SEC ? 5 * ST_SEC : reap;
    m->reap.every_us = reap;
    m->beat.every_us = ST_WORKER_BEAT;
    m->elect.every_us = ST_LEADER_TERM / 2;
    m->prune.every_us = PRUNE_EVERY;
}

/* Leave nothing behind: no leadership, no row. */
static void say_goodbye(struct st_maintainer *m)
{
    struct st_lead_req req = {.worker = st_slice_cstr(m->id), .term_us = ST_LEADER_TERM, .release = true};
    struct st_lead lead;
    stint_code rc;

    if (m->ousted)
        return; /* the row is another's */
    do {
        rc = m->epoch ? st_store_lead(m->store, &req, &lead, NULL) : STINT_OK;
        if (rc == STINT_OK)
            rc = st_store_worker_remove(m->store, 0, st_slice_cstr(m->id), false, 0, 0, NULL);
        if (rc == STINT_OK || rc == STINT_ENOTFOUND)
            return;
        usleep(50 * 1000);
    } while (st_clock_mono_us() < m->give_up_us);
}

static bool open_store(struct st_maintainer *m)
{
    struct st_tries tries = {.base_us = 100 * ST_MS, .max_us = 5 * ST_SEC};
    bool stop = false;

    while (!stop && m->opener->open(m->opener->arg, &m->store, NULL) != STINT_OK) {
        pthread_mutex_lock(&m->mutex);
        if (!m->stop)
            st_cond_wait_us(&m->cond, &m->mutex, st_tries_next(&tries));
        stop = m->stop;
        pthread_mutex_unlock(&m->mutex);
    }
    return m->store != NULL;
}

static void *maintain_thread(void *arg)
{
    struct st_maintainer *m = arg;
    bool nudged = false;

    if (!open_store(m))
        return NULL;
    pthread_mutex_lock(&m->mutex);
    while (!m->stop) {
        set_pace(m);
        pthread_mutex_unlock(&m->mutex);
        work(m, nudged);
        pthread_mutex_lock(&m->mutex);
        if (!m->stop && !m->nudge)
            st_cond_wait_us(&m->cond, &m->mutex, next_chore(m));
        nudged = m->nudge;
        m->nudge = false;
    }
    pthread_mutex_unlock(&m->mutex);
    say_goodbye(m);
    st_store_close(m->store);
    return NULL;
}

void st_worker_describe(struct st_worker_info *w)
{
    snprintf(w->host, sizeof(w->host), "%s", st_host_name());
    st_worker_boot_name(w->boot_id);
    w->pid = getpid();
    w->pid_start = st_pid_start(w->pid);
}

static void take_options(struct st_maintainer *m, const struct st_maintain_options *opt)
{
    m->opt = *opt;
    st_worker_describe(&m->opt.self);
}

stint_code st_maintainer_new(const struct st_opener *opener, const struct st_maintain_options *opt, uv_async_t *wake,
                             struct st_maintainer **out, stint_error *err)
{
    struct st_maintainer *m = calloc(1, sizeof(*m));
    stint_code rc;

    *out = NULL;
    if (!m)
        return st_fail(err, STINT_ENOMEM, "no memory for the maintenance thread");
    pthread_mutex_init(&m->mutex, NULL);
    st_cond_init(&m->cond);
    m->opener = opener;
    m->wake = wake;
    m->vitals = opt->vitals;
    m->observer = opt->observer;
    m->healthy = true;
    snprintf(m->id, sizeof(m->id), "%s", opt->self.id);
    take_options(m, opt);
    rc = st_thread_start(&m->thread, "stint-maintain", maintain_thread, m, err);
    if (rc != STINT_OK) {
        free(m);
        return rc;
    }
    *out = m;
    return STINT_OK;
}

void st_maintainer_health(struct st_maintainer *m, bool healthy, const char *note)
{
    size_t n;

    pthread_mutex_lock(&m->mutex);
    m->healthy = healthy;
    n = note ? st_utf8_cut(note, strlen(note), sizeof(m->note) - 1) : 0;
    memcpy(m->note, note ? note : "", n);
    m->note[n] = '\0';
    m->nudge = true;
    pthread_cond_signal(&m->cond);
    pthread_mutex_unlock(&m->mutex);
}

void st_maintainer_nudge(struct st_maintainer *m)
{
    pthread_mutex_lock(&m->mutex);
    m->nudge = true;
    pthread_cond_signal(&m->cond);
    pthread_mutex_unlock(&m->mutex);
}

void st_maintainer_configure(struct st_maintainer *m, const struct st_maintain_options *opt)
{
    pthread_mutex_lock(&m->mutex);
    take_options(m, opt);
    m->nudge = true;
    pthread_cond_signal(&m->cond);
    pthread_mutex_unlock(&m->mutex);
}

struct st_maintain_news st_maintainer_take(struct st_maintainer *m)
{
    struct st_maintain_news news;

    pthread_mutex_lock(&m->mutex);
    news = m->news;
    memset(&m->news, 0, sizeof(m->news));
    pthread_mutex_unlock(&m->mutex);
    return news;
}

void st_maintainer_free(struct st_maintainer *m, int64_t deadline_us)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->mutex);
    m->stop = true;
    m->give_up_us = st_clock_mono_us() + deadline_us;
    pthread_cond_signal(&m->cond);
    pthread_mutex_unlock(&m->mutex);
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->cond);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}
