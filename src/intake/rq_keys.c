/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_keys.c - RQ's side in Redis: registration, messages in, messages out.
 *
 * Times are this machine's, as those of every RQ worker are: seconds as text for scores, RFC 3339 for the rest.
 *
 * Thread: the intake's.
 */
#include "intake/rq_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "intake/rq_data.h"
#include "intake/rq_scripts.h"

#define WORKER_TTL     "480" /* RQ's worker_ttl of 420 s, and a minute */
#define NAMES_MAX      (64u << 20)
#define LOST_PAGE      50 /* started jobs that are looked at in one go */
#define LOST_PAGES_MAX 20 /* ... and so many goes at a time */

/* Keys and arguments of one command: texts that live in q->names until it is added. */
struct words {
    struct st_rq *q;
    size_t at[4 + 4 * ST_RQ_QUEUES_MAX], n;
};

static void words_begin(struct words *w, struct st_rq *q)
{
    w->q = q;
    w->n = 0;
    st_buf_reset(&q->names);
}

static void word(struct words *w, const char *a, const char *b, const char *c)
{
    w->at[w->n++] = w->q->names.len;
    st_buf_puts(&w->q->names, a);
    st_buf_puts(&w->q->names, b);
    st_buf_puts(&w->q->names, c);
    st_buf_putc(&w->q->names, '\0');
}

static size_t words_end(struct words *w, struct st_slice *out)
{
    if (w->q->names.failed)
        w->q->b.failed = true;
    for (size_t i = 0; i < w->n; i++)
        out[i] = w->q->names.p && !w->q->names.failed ? st_slice_cstr(w->q->names.p + w->at[i]) : ST_SLICE("", 0);
    return w->n;
}

static char *seconds_text(int64_t us, char out[32])
{
    snprintf(out, 32, "%lld.%06lld", (long long)(us / ST_SEC), (long long)(us % ST_SEC));
    return out;
}

/* ---- the connection --------------------------------------------------------------------------------- */

stint_code st_rq_open(const char *url, char *const *queues, const char *worker, struct st_rq *out, stint_error *err)
{
    stint_code rc;

    memset(out, 0, sizeof(*out));
    st_rq_scripts_init();
    st_redis_batch_init(&out->b);
    st_buf_init(&out->names, NAMES_MAX);
    snprintf(out->worker, sizeof(out->worker), "%s", worker);
    while (queues[out->n_queues])
        out->n_queues++;
    if (out->n_queues > ST_RQ_QUEUES_MAX)
        return st_refuse(err, "name fewer, or start more workers", "intake.queues names more than %d queues",
                         ST_RQ_QUEUES_MAX);
    out->queues = calloc(out->n_queues + 1, sizeof(*out->queues));
    for (size_t i = 0; out->queues && i < out->n_queues; i++)
        if (!(out->queues[i] = strdup(queues[i])))
            return st_fail(err, STINT_ENOMEM, "no memory for the intake");
    out->passed = calloc(out->n_queues + 1, sizeof(*out->passed));
    if (!out->queues || !out->passed)
        return st_fail(err, STINT_ENOMEM, "no memory for the intake");
    rc = st_redis_open(url, 5000, &out->r, err);
    if (rc == STINT_OK)
        rc = st_redis_options_check(out->r, (const char *const[]){NULL}, err);
    if (rc != STINT_OK)
        st_err_prefix(err, "intake.rq");
    return rc;
}

void st_rq_close(struct st_rq *q)
{
    st_redis_close(q->r);
    st_redis_batch_clear(&q->b);
    st_buf_clear(&q->names);
    for (size_t i = 0; q->queues && i < q->n_queues; i++)
        free(q->queues[i]);
    free(q->queues);
    free(q->passed);
    memset(q, 0, sizeof(*q));
}

/* Sends what was added.  An answer that is an error is one for all: nothing here expects any. */
stint_code st_rq_flush(struct st_rq *q, stint_error *err)
{
    stint_code rc;

    if (q->b.n == 0 && !q->b.failed)
        return STINT_OK;
    rc = st_redis_run(q->r, &q->b, err);
    for (size_t i = 0; rc == STINT_OK && i < q->b.n; i++)
        rc = st_redis_reply_fail(q->r, st_redis_reply(&q->b, i), err);
    return rc;
}

/* Does it help to try again? */
static bool passes(const stint_error *err)
{
    static const char *const words[] = {"OOM",        "MISCONF", "NOPERM",    "READONLY",
                                        "NOREPLICAS", "NOAUTH",  "WRONGPASS", NULL};

    for (size_t i = 0; words[i]; i++)
        if (strcmp(err->detail, words[i]) == 0)
            return true;
    return err->code != STINT_ESTORE;
}

stint_code st_rq_flush_lenient(struct st_rq *q, bool loud, stint_error *err)
{
    stint_code rc = q->b.n || q->b.failed ? st_redis_run(q->r, &q->b, err) : STINT_OK;

    for (size_t i = 0; rc == STINT_OK && i < q->b.n; i++) {
        rc = st_redis_reply_fail(q->r, st_redis_reply(&q->b, i), err);
        if (rc != STINT_OK && !passes(err)) {
            if (loud)
                st_log(ST_LOG_ERROR, "intake.not_told", ST_FE(err));
            rc = STINT_OK;
        }
    }
    return rc;
}

/* The same, and the answers are not wanted. */
static stint_code flush(struct st_rq *q, stint_error *err)
{
    stint_code rc = st_rq_flush(q, err);

    st_redis_batch_reset(&q->b);
    return rc;
}

/* ---- the worker ------------------------------------------------------------------------------------- */

static void add_membership(struct st_rq *q, const char *command, const char *key)
{
    char set[ST_NAME_MAX + 32];

    st_redis_addv(&q->b, ST_REDIS_WRITE, command, "rq:workers", key, NULL);
    for (size_t i = 0; i < q->n_queues; i++) {
        snprintf(set, sizeof(set), "rq:workers:%s", q->queues[i]);
        st_redis_addv(&q->b, ST_REDIS_WRITE, command, set, key, NULL);
    }
}

static void worker_key(const struct st_rq *q, char out[ST_ID_MAX + 16])
{
    snprintf(out, ST_ID_MAX + 16, "rq:worker:%s", q->worker);
}

/* In place of whoever had the name: the store says that it is ours. */
stint_code st_rq_birth(struct st_rq *q, stint_error *err)
{
    char key[ST_ID_MAX + 16], now[ST_TIME_TEXT], pid[16], all[ST_RQ_QUEUES_MAX * (ST_NAME_MAX + 1)] = "";
    size_t len = 0;

    worker_key(q, key);
    st_time_format(st_clock_real_us(), now);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    for (size_t i = 0; i < q->n_queues; i++)
        len += (size_t)snprintf(all + len, sizeof(all) - len, "%s%s", i ? "," : "", q->queues[i]);
    st_redis_batch_reset(&q->b);
    st_redis_addv(&q->b, ST_REDIS_WRITE, "DEL", key, NULL);
    st_redis_addv(&q->b, ST_REDIS_WRITE, "HSET", key, "birth", now, "last_heartbeat", now, "queues", all, "pid", pid,
                  "hostname", st_host_name(), "ip_address", "unknown", "version", "stint " STINT_VERSION,
                  "python_version", "none", "state", "idle", NULL);
    st_redis_addv(&q->b, ST_REDIS_WRITE, "EXPIRE", key, WORKER_TTL, NULL);
    add_membership(q, "SADD", key);
    return flush(q, err);
}

stint_code st_rq_death(struct st_rq *q, stint_error *err)
{
    char key[ST_ID_MAX + 16], now[ST_TIME_TEXT];

    worker_key(q, key);
    st_time_format(st_clock_real_us(), now);
    st_redis_batch_reset(&q->b);
    add_membership(q, "SREM", key);
    st_redis_addv(&q->b, ST_REDIS_WRITE, "HSET", key, "death", now, NULL);
    st_redis_addv(&q->b, ST_REDIS_WRITE, "EXPIRE", key, "60", NULL);
    return flush(q, err);
}

void st_rq_add_state(struct st_rq *q, const char *job, bool suspended)
{
    const char *state = job ? "busy" : suspended ? "suspended" : "idle";
    char key[ST_ID_MAX + 16];

    worker_key(q, key);
    st_redis_addv(&q->b, ST_REDIS_WRITE, "HSET", key, "state", state, "current_job", job ? job : "", NULL);
    if (!job)
        st_redis_addv(&q->b, ST_REDIS_WRITE, "HDEL", key, "current_job", NULL);
    st_redis_addv(&q->b, ST_REDIS_WRITE, "EXPIRE", key, WORKER_TTL, NULL);
}

/* The keys and arguments of one that runs, at those places. */
struct beat_texts {
    char job[ST_RQ_ID_MAX + 16], wip[ST_NAME_MAX + 16], intermediate[ST_NAME_MAX + 32], started[ST_TIME_TEXT];
};

static void beat_one(const struct st_rq *q, const struct st_rq_running *r, struct beat_texts *t,
                     struct st_slice keys[3], struct st_slice args[3])
{
    const char *queue = q->queues[r->queue];

    snprintf(t->job, sizeof(t->job), "rq:job:%s", r->id);
    snprintf(t->wip, sizeof(t->wip), "rq:wip:%s", queue);
    snprintf(t->intermediate, sizeof(t->intermediate), "rq:queue:%s:intermediate", queue);
    keys[0] = st_slice_cstr(t->job);
    keys[1] = st_slice_cstr(t->wip);
    keys[2] = st_slice_cstr(t->intermediate);
    args[0] = st_slice_cstr(r->id);
    args[1] = st_slice_cstr(r->execution);
    args[2] = st_slice_cstr(st_time_format(r->started_us, t->started));
}

/* One script for all that runs: n of them are a few hundred at most. */
stint_code st_rq_beat(struct st_rq *q, const struct st_rq_running *running, size_t n, bool *known, stint_error *err)
{
    struct st_slice *keys = calloc(3 * n + 1, sizeof(*keys)), *args = calloc(3 * n + 5, sizeof(*args));
    struct beat_texts *texts = calloc(n + 1, sizeof(*texts));
    char key[ST_ID_MAX + 16], now[ST_TIME_TEXT], score[32], ttl[16];
    const int64_t us = st_clock_real_us();
    stint_code rc = STINT_ENOMEM;

    worker_key(q, key);
    snprintf(ttl, sizeof(ttl), "%d", ST_RQ_EXECUTION_TTL);
    st_redis_batch_reset(&q->b);
    if (keys && args && texts) {
        keys[0] = st_slice_cstr(key);
        args[0] = st_slice_cstr(st_time_format(us, now));
        args[1] = st_slice_cstr(seconds_text(us, score));
        args[2] = st_slice_cstr(ttl);
        args[3] = st_slice_cstr(WORKER_TTL);
        args[4] = st_slice_cstr(q->worker);
        for (size_t i = 0; i < n; i++)
            beat_one(q, &running[i], &texts[i], &keys[3 * i + 1], &args[3 * i + 5]);
        st_redis_add_script(&q->b, ST_REDIS_WRITE, &st_rq_script_beat, keys, 3 * n + 1, args, 3 * n + 5);
        rc = st_rq_flush(q, err);
        *known = rc == STINT_OK && st_redis_int(st_redis_reply(&q->b, 0), 0) == 1;
        st_redis_batch_reset(&q->b);
    } else {
        st_fail(err, rc, "no memory for a heartbeat");
    }
    free(keys);
    free(args);
    free(texts);
    return rc;
}

/* ---- messages in ------------------------------------------------------------------------------------- */

static bool read_message(const struct st_rq *q, const redisReply *m, struct st_rq_message *out)
{
    const struct st_slice id =
        m->type == REDIS_REPLY_ARRAY && m->elements == 5 ? st_redis_text(m->element[0]) : ST_NONE;
    int64_t queue;

    if (!id.p || id.len > ST_RQ_ID_MAX || memchr(id.p, '\0', id.len))
        return false;
    memcpy(out->id, id.p, id.len);
    out->id[id.len] = '\0';
    queue = st_redis_int(m->element[1], -1);
    out->queue = (size_t)queue;
    out->data = st_redis_text(m->element[2]);
    out->again = st_redis_int(m->element[3], 0) > 0;
    out->too_large = st_redis_int(m->element[4], 0) > (int64_t)ST_RQ_DATA_MAX;
    return queue >= 0 && (size_t)queue < q->n_queues;
}

static void add_take(struct st_rq *q, size_t n)
{
    struct st_slice keys[1 + 4 * ST_RQ_QUEUES_MAX], args[5];
    char count[24], score[32], now[ST_TIME_TEXT], most[16], longest[16];
    const int64_t us = st_clock_real_us();
    struct words w;

    words_begin(&w, q);
    word(&w, "rq:suspended", "", "");
    for (size_t i = 0; i < q->n_queues; i++) {
        word(&w, "rq:queue:", q->queues[i], "");
        word(&w, "rq:queue:", q->queues[i], ":intermediate");
        word(&w, "rq:scheduled:", q->queues[i], "");
        word(&w, "rq:scheduler-lock:", q->queues[i], "");
    }
    snprintf(count, sizeof(count), "%zu", n);
    args[0] = st_slice_cstr(count);
    args[1] = st_slice_cstr(seconds_text(us, score));
    args[2] = st_slice_cstr(st_time_format(us, now));
    snprintf(most, sizeof(most), "%u", ST_RQ_DATA_MAX);
    snprintf(longest, sizeof(longest), "%d", ST_RQ_ID_MAX);
    args[3] = st_slice_cstr(most);
    args[4] = st_slice_cstr(longest);
    st_redis_add_script(&q->b, ST_REDIS_WRITE, &st_rq_script_take, keys, words_end(&w, keys), args, 5);
}

stint_code st_rq_take(struct st_rq *q, size_t n, struct st_rq_message *out, struct st_rq_taken *taken, stint_error *err)
{
    struct st_slice odd;
    const redisReply *r;
    stint_code rc;

    memset(taken, 0, sizeof(*taken));
    st_redis_batch_reset(&q->b);
    add_take(q, n);
    rc = st_rq_flush(q, err);
    if (rc != STINT_OK)
        return rc;
    r = st_redis_reply(&q->b, 0);
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3)
        return st_fail(err, STINT_ESTORE, "%s gave an answer that is none", st_redis_where(q->r));
    taken->suspended = st_redis_int(r->element[0], 0) == 1;
    taken->n_dropped = (size_t)st_redis_int(r->element[1], 0);
    odd = st_redis_text(r->element[2]);
    snprintf(taken->odd, sizeof(taken->odd), "%.*s", (int)(odd.len < 150 ? odd.len : 150), odd.p ? odd.p : "");
    for (size_t i = 3; i < r->elements && taken->n < n; i++)
        if (read_message(q, r->element[i], &out[taken->n]))
            taken->n++;
    return STINT_OK;
}

/* Reads in a connection that is tracked: the server tells when one of these changes. */
stint_code st_rq_look(struct st_rq *q, bool *any, stint_error *err)
{
    char key[ST_NAME_MAX + 32];
    bool suspended;
    stint_code rc;

    *any = false;
    st_redis_batch_reset(&q->b);
    st_redis_addv(&q->b, ST_REDIS_READ, "EXISTS", "rq:suspended", NULL);
    for (size_t i = 0; i < q->n_queues; i++) {
        snprintf(key, sizeof(key), "rq:queue:%s", q->queues[i]);
        st_redis_addv(&q->b, ST_REDIS_READ, "LLEN", key, NULL);
    }
    rc = st_rq_flush_lenient(q, false, err); /* a key of another kind has nothing for us */
    if (rc == STINT_OK) {
        suspended = st_redis_int(st_redis_reply(&q->b, 0), 0) == 1;
        for (size_t i = 1; i < q->b.n; i++)
            *any = *any || (!suspended && st_redis_int(st_redis_reply(&q->b, i), 0) > 0);
    }
    st_redis_batch_reset(&q->b);
    return rc;
}

stint_code st_rq_track(struct st_rq *q, int64_t listener, stint_error *err)
{
    char id[24];

    snprintf(id, sizeof(id), "%lld", (long long)listener);
    st_redis_batch_reset(&q->b);
    st_redis_addv(&q->b, ST_REDIS_READ, "CLIENT", "TRACKING", "OFF", NULL);
    st_redis_addv(&q->b, ST_REDIS_READ, "CLIENT", "TRACKING", "ON", "REDIRECT", id, "NOLOOP", NULL);
    return flush(q, err);
}

/* ---- messages out ------------------------------------------------------------------------------------ */

void st_rq_add_start(struct st_rq *q, const char *id, const char *execution, size_t queue, int64_t now_us)
{
    char now[ST_TIME_TEXT], score[32], ttl[16];
    struct st_slice keys[3], args[6];
    struct words w;

    words_begin(&w, q);
    word(&w, "rq:job:", id, "");
    word(&w, "rq:wip:", q->queues[queue], "");
    word(&w, "rq:queue:", q->queues[queue], ":intermediate");
    words_end(&w, keys);
    snprintf(ttl, sizeof(ttl), "%d", ST_RQ_EXECUTION_TTL);
    args[0] = st_slice_cstr(id);
    args[1] = st_slice_cstr(execution);
    args[2] = st_slice_cstr(st_time_format(now_us, now));
    args[3] = st_slice_cstr(seconds_text(now_us, score));
    args[4] = st_slice_cstr(ttl);
    args[5] = st_slice_cstr(q->worker);
    st_redis_add_script(&q->b, ST_REDIS_WRITE, &st_rq_script_start, keys, 3, args, 6);
}

void st_rq_add_end(struct st_rq *q, const struct st_rq_end *e, int64_t now_us)
{
    static const char *const names[] = {[ST_RQ_FINISHED] = "finished",
                                        [ST_RQ_FAILED] = "failed",
                                        [ST_RQ_STOPPED] = "stopped",
                                        [ST_RQ_REQUEUE] = "requeue",
                                        [ST_RQ_SCHEDULE] = "schedule"};
    char now[ST_TIME_TEXT], score[32], when[32], started[32], worked[32];
    struct st_slice keys[5], args[12];
    struct words w;

    words_begin(&w, q);
    word(&w, "rq:job:", e->id, "");
    word(&w, "rq:wip:", q->queues[e->queue], "");
    word(&w, "rq:queue:", q->queues[e->queue], ":intermediate");
    word(&w, "rq:queue:", q->queues[e->queue], "");
    word(&w, "rq:worker:", q->worker, "");
    words_end(&w, keys);
    args[0] = st_slice_cstr(names[e->how]);
    args[1] = st_slice_cstr(e->id);
    args[2] = st_slice_cstr(e->execution);
    args[3] = st_slice_cstr(st_time_format(now_us, now));
    args[4] = st_slice_cstr(seconds_text(now_us, score));
    args[5] = e->value.p ? e->value : ST_SLICE("", 0);
    args[6] = st_slice_cstr(q->queues[e->queue]);
    args[7] = st_slice_cstr(q->worker);
    args[8] = st_slice_cstr(seconds_text(e->at_us, when));
    args[9] = st_slice_cstr(e->started_us ? seconds_text(e->started_us, started) : "0");
    args[10] =
        st_slice_cstr(e->started_us && now_us > e->started_us ? seconds_text(now_us - e->started_us, worked) : "0");
    args[11] = st_slice_cstr(e->failed ? "1" : "0");
    st_redis_add_script(&q->b, ST_REDIS_WRITE, &st_rq_script_end, keys, 5, args, 12);
}

/* ---- what dead workers left ---------------------------------------------------------------------------- */

/* A started job whose time is up, as the server told it: texts of our own. */
struct lost {
    char *member, *id;
};

static void lost_clear(struct lost *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(all[i].member);
        free(all[i].id);
    }
}

/* Those of a page that are ours; *n_there = how many there are in all; *end: there was no page any more. */
static stint_code lost_page(struct st_rq *q, const char *wip, size_t skip, st_rq_ours_fn ours, void *arg,
                            struct lost *all, size_t *n, size_t *n_there, bool *end, stint_error *err)
{
    char score[32], from[24], count[16], most[16];
    const struct st_slice key = st_slice_cstr(wip);
    struct st_slice args[4];
    const redisReply *r;
    stint_code rc;

    snprintf(from, sizeof(from), "%zu", skip);
    snprintf(count, sizeof(count), "%d", LOST_PAGE);
    snprintf(most, sizeof(most), "%u", ST_RQ_DATA_MAX);
    args[0] = st_slice_cstr(seconds_text(st_clock_real_us(), score));
    args[1] = st_slice_cstr(from);
    args[2] = st_slice_cstr(count);
    args[3] = st_slice_cstr(most);
    st_redis_batch_reset(&q->b);
    st_redis_add_script(&q->b, ST_REDIS_WRITE, &st_rq_script_lost, &key, 1, args, 4);
    rc = st_rq_flush(q, err);
    r = rc == STINT_OK ? st_redis_reply(&q->b, 0) : NULL;
    *n = 0;
    *n_there = r && r->type == REDIS_REPLY_ARRAY && r->elements ? r->elements - 1 : 0;
    *end = !r || r->type != REDIS_REPLY_ARRAY || !r->elements || st_redis_int(r->element[0], 0) == 0;
    for (size_t i = 1; i <= *n_there && *n < LOST_PAGE; i++) {
        const redisReply *e = r->element[i];
        struct lost *l = &all[*n];

        if (e->type != REDIS_REPLY_ARRAY || e->elements != 3 || st_redis_text(e->element[1]).len > ST_RQ_ID_MAX ||
            !ours(arg, st_redis_text(e->element[2])))
            continue;
        *l = (struct lost){st_slice_dup(st_redis_text(e->element[0])), st_slice_dup(st_redis_text(e->element[1]))};
        ++*n;
    }
    st_redis_batch_reset(&q->b);
    return rc;
}

static stint_code give_back(struct st_rq *q, size_t queue, const char *wip, const struct lost *all, size_t n,
                            size_t *n_back, stint_error *err)
{
    char job[ST_RQ_ID_MAX + 16], list[ST_NAME_MAX + 16], score[32];
    const struct st_slice now = st_slice_cstr(seconds_text(st_clock_real_us(), score));
    stint_code rc;

    snprintf(list, sizeof(list), "rq:queue:%s", q->queues[queue]);
    for (size_t i = n; i > 0; i--) { /* to the head each: the first is to be the first */
        const struct lost *l = &all[i - 1];
        const struct st_slice args[3] = {st_slice_cstr(l->member), st_slice_cstr(l->id), now};
        struct st_slice keys[3] = {ST_NONE, st_slice_cstr(wip), st_slice_cstr(list)};

        if (!l->member || !l->id)
            continue;
        snprintf(job, sizeof(job), "rq:job:%s", l->id);
        keys[0] = st_slice_cstr(job);
        st_redis_add_script(&q->b, ST_REDIS_WRITE, &st_rq_script_back, keys, 3, args, 3);
    }
    rc = st_rq_flush(q, err);
    for (size_t i = 0; rc == STINT_OK && i < q->b.n; i++)
        *n_back += st_redis_int(st_redis_reply(&q->b, i), 0) == 1;
    st_redis_batch_reset(&q->b);
    return rc;
}

/* Page by page, since those of others stay where they are, however many; it goes on there the next time. */
static stint_code recover_started(struct st_rq *q, size_t queue, st_rq_ours_fn ours, void *arg, size_t *n_back,
                                  stint_error *err)
{
    char wip[ST_NAME_MAX + 16];
    struct lost all[LOST_PAGE];
    stint_code rc = STINT_OK;
    bool end = false;

    snprintf(wip, sizeof(wip), "rq:wip:%s", q->queues[queue]);
    for (int page = 0; rc == STINT_OK && !end && page < LOST_PAGES_MAX; page++) {
        const size_t before = *n_back;
        size_t n, n_there;

        rc = lost_page(q, wip, q->passed[queue], ours, arg, all, &n, &n_there, &end, err);
        if (rc == STINT_OK && n)
            rc = give_back(q, queue, wip, all, n, n_back, err);
        lost_clear(all, n);
        q->passed[queue] = end ? 0 : q->passed[queue] + n_there - (*n_back - before);
    }
    return rc;
}

static stint_code recover_stuck(struct st_rq *q, size_t queue, size_t *n_back, stint_error *err)
{
    struct st_slice keys[4], arg;
    char score[32];
    struct words w;
    stint_code rc;

    words_begin(&w, q);
    word(&w, "rq:queue:", q->queues[queue], "");
    word(&w, "rq:queue:", q->queues[queue], ":intermediate");
    word(&w, "rq:finished:", q->queues[queue], "");
    word(&w, "rq:failed:", q->queues[queue], "");
    words_end(&w, keys);
    arg = st_slice_cstr(seconds_text(st_clock_real_us(), score));
    st_redis_batch_reset(&q->b);
    st_redis_add_script(&q->b, ST_REDIS_WRITE, &st_rq_script_stuck, keys, 4, &arg, 1);
    rc = st_rq_flush(q, err);
    if (rc == STINT_OK)
        *n_back += (size_t)st_redis_int(st_redis_reply(&q->b, 0), 0);
    st_redis_batch_reset(&q->b);
    return rc;
}

/* One registry is not what it should be: the others may be. */
static stint_code odd_passed_over(const struct st_rq *q, size_t queue, stint_code rc, const stint_error *err)
{
    if (rc == STINT_OK || passes(err))
        return rc;
    st_log(ST_LOG_WARN, "intake.odd_key", ST_F("queue", q->queues[queue]), ST_FE(err));
    return STINT_OK;
}

stint_code st_rq_recover(struct st_rq *q, st_rq_ours_fn ours, void *arg, size_t *n_back, stint_error *err)
{
    stint_code rc = STINT_OK;

    *n_back = 0;
    for (size_t i = 0; rc == STINT_OK && i < q->n_queues; i++) {
        rc = odd_passed_over(q, i, recover_stuck(q, i, n_back, err), err);
        if (rc == STINT_OK)
            rc = odd_passed_over(q, i, recover_started(q, i, ours, arg, n_back, err), err);
    }
    return rc;
}
