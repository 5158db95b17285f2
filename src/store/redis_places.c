/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_places.c - what a sleeping worker must know of its queues, read so that the server remembers it (see redis_wait.c).
 *
 * A place is a queue: is it paused, how long is its list, what is due first.  It is read when the worker falls asleep, and again when
 * something of it has changed.  A paused queue's list counts for nothing.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_wait.h"

#define QUEUES_MAX 1000

/* ---- what it is for ---------------------------------------------------------------------------------------------- */

static bool same_queues(const struct st_redis_wait *w, const struct st_slice *queues, size_t n)
{
    if (n != w->n_queues)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!st_slice_eq(w->queues[i], queues[i]))
            return false;
    return true;
}

static struct st_slice keep(char **at, struct st_slice from)
{
    const struct st_slice copy = ST_SLICE(*at, from.len);

    memcpy(*at, from.p, from.len);
    *at += from.len;
    return copy;
}

static bool names_take(struct st_redis_wait *w, struct st_slice worker, const struct st_slice *queues, size_t n)
{
    size_t size = n * sizeof(*queues) + worker.len;
    struct st_slice *list;
    char *text;

    for (size_t i = 0; i < n; i++)
        size += queues[i].len;
    list = malloc(size);
    if (!list)
        return false;
    text = (char *)(list + n);
    for (size_t i = 0; i < n; i++)
        list[i] = keep(&text, queues[i]);
    w->worker = keep(&text, worker);
    snprintf(w->own, sizeof(w->own), "stint:wake:%.*s", (int)worker.len, worker.p);
    free(w->queues);
    w->queues = list;
    w->n_queues = n;
    return true;
}

stint_code st_redis_op_watch(struct st_store *store, struct st_slice worker, const struct st_slice *queues, size_t n,
                             bool work, stint_error *err)
{
    struct st_redis_wait *w = st_redis_of(store)->w;

    if (!w->watched || !st_slice_eq(w->worker, worker) || !same_queues(w, queues, n)) {
        w->renamed |= w->watched && !st_slice_eq(w->worker, worker);
        if (!names_take(w, worker, queues, n))
            return st_fail(err, STINT_ENOMEM, "no memory to watch %zu queues", n);
        w->watched = true;
        w->names_known = false;
    }
    w->work = work;
    w->asleep &= work;
    if (!work)
        w->pending &= ~(unsigned)(ST_NEWS_WORK | ST_NEWS_LOOK);
    return STINT_OK;
}

static bool is_ours(const struct st_redis_wait *w, struct st_slice queue)
{
    bool covered = w->n_queues == 0;

    for (size_t i = 0; !covered && i < w->n_queues; i++)
        covered = st_queue_covers(w->queues[i], queue);
    return covered;
}

/* ---- which queues -------------------------------------------------------------------------------------------------- */

static struct st_redis_place *place_of(const struct st_redis_wait *w, struct st_slice name)
{
    for (size_t i = 0; i < w->n_places; i++)
        if (st_slice_is(name, w->places[i].name))
            return &w->places[i];
    return NULL;
}

/* Keeps what was known of those that stay. */
static void place_add(const struct st_redis_wait *w, struct st_redis_place *list, size_t *n, struct st_slice name)
{
    const struct st_redis_place *old = place_of(w, name);

    for (size_t i = 0; i < *n; i++)
        if (st_slice_is(name, list[i].name))
            return;
    if (*n == QUEUES_MAX || name.len > ST_NAME_MAX || st_slice_is(name, ST_QUEUE_ANY))
        return;
    if (old)
        list[*n] = *old;
    else
        snprintf(list[*n].name, sizeof(list[*n].name), "%.*s", (int)name.len, name.p);
    (*n)++;
}

/* The names that were asked for, there or not, and those they mean. */
static stint_code places_choose(struct st_redis_wait *w, const redisReply *names, stint_error *err)
{
    const size_t there = names->type == REDIS_REPLY_ARRAY ? names->elements : 0;
    struct st_redis_place *list =
        calloc(QUEUES_MAX < there + w->n_queues + 1 ? QUEUES_MAX : there + w->n_queues + 1, sizeof(*list));
    size_t n = 0;

    if (!list)
        return st_fail(err, STINT_ENOMEM, "no memory to watch %zu queues", there);
    for (size_t i = 0; i < w->n_queues; i++)
        place_add(w, list, &n, w->queues[i]);
    for (size_t i = 0; i < there; i++)
        if (is_ours(w, st_redis_text(names->element[i])))
            place_add(w, list, &n, st_redis_text(names->element[i]));
    free(w->places);
    w->places = list;
    w->n_places = n;
    w->names_known = true;
    w->names_us = st_clock_mono_us();
    return STINT_OK;
}

/* ---- reading, and being remembered ----------------------------------------------------------------------------------- */

/* The server remembers only what is read after this on the same connection. */
static void add_tracking(struct st_redis_store *s, struct st_redis_batch *b)
{
    const struct st_redis_wait *w = s->w;
    char id[24];

    if (w->no_tracking || !w->ear_id || (w->generation && w->generation == st_redis_generation(s->r)))
        return;
    snprintf(id, sizeof(id), "%lld", (long long)w->ear_id);
    st_redis_add(b, ST_REDIS_READ, ST_NONE,
                 (const struct st_slice[]){st_slice_cstr("CLIENT"), st_slice_cstr("TRACKING"), st_slice_cstr("ON"),
                                           st_slice_cstr("REDIRECT"), st_slice_cstr(id)},
                 5);
}

void st_redis_places_forget(struct st_redis_wait *w)
{
    w->names_known = false;
    for (size_t i = 0; i < w->n_places; i++)
        w->places[i].known = false;
}

void st_redis_places_connection(struct st_redis_store *s)
{
    struct st_redis_wait *w = s->w;

    if (w->generation && w->generation != st_redis_generation(s->r)) {
        w->generation = 0;
        st_redis_places_forget(w);
    }
}

static void refused(struct st_redis_store *s, const redisReply *r)
{
    s->w->no_tracking = true;
    st_log(ST_LOG_WARN, "store.no_tracking", ST_F("where", st_redis_where(s->r)),
           ST_F("why", r->str ? r->str : "a Cluster"),
           ST_F("effect", "new jobs are noticed by looking ten times a second"),
           ST_F("remedy", "allow CLIENT TRACKING and SUBSCRIBE of __redis__:invalidate to this user"));
}

/* Runs a batch that begins with what add_tracking has added, if anything. */
static stint_code run_tracked(struct st_redis_store *s, struct st_redis_batch *b, size_t reads, stint_error *err)
{
    struct st_redis_wait *w = s->w;
    const bool asked = b->n > reads;
    stint_code code = st_redis_run(s->r, b, err);

    if (code || !asked)
        return code;
    if (st_redis_is_cluster(s->r)) {
        w->no_tracking = true;
        return STINT_OK;
    }
    if (st_redis_reply(b, 0)->type == REDIS_REPLY_ERROR)
        refused(s, st_redis_reply(b, 0));
    else
        w->generation = st_redis_generation(s->r);
    return STINT_OK;
}

static stint_code read_names(struct st_redis_store *s, stint_error *err)
{
    struct st_redis_batch b;
    stint_code code;

    st_redis_batch_init(&b);
    add_tracking(s, &b);
    st_redis_addv(&b, ST_REDIS_READ, "SMEMBERS", "asynq:queues", NULL);
    code = run_tracked(s, &b, 1, err);
    if (!code)
        code = st_redis_reply_fail(s->r, st_redis_reply(&b, b.n - 1), err);
    if (!code)
        code = places_choose(s->w, st_redis_reply(&b, b.n - 1), err);
    st_redis_batch_clear(&b);
    return code;
}

#define READS 5

static void add_key(struct st_redis_batch *b, const char *command, struct st_slice queue, const char *what)
{
    char key[ST_NAME_MAX + 32];

    snprintf(key, sizeof(key), "asynq:{%.*s}:%s", (int)queue.len, queue.p, what);
    if (strcmp(command, "ZRANGE") == 0)
        st_redis_addv(b, ST_REDIS_READ, command, key, "0", "0", "WITHSCORES", NULL);
    else
        st_redis_addv(b, ST_REDIS_READ, command, key, NULL);
}

static void add_place(struct st_redis_batch *b, const struct st_redis_place *p)
{
    const struct st_slice name = st_slice_cstr(p->name);

    add_key(b, "EXISTS", name, "paused");
    add_key(b, "EXISTS", st_queue_parent(name), "paused");
    add_key(b, "LLEN", name, "pending");
    add_key(b, "ZRANGE", name, "scheduled");
    add_key(b, "ZRANGE", name, "retry");
}

static int64_t first_due(const redisReply *r, int64_t so_far)
{
    int64_t us;

    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements < 2)
        return so_far;
    us = st_redis_score_us(st_redis_score_read(r->element[1]));
    return so_far == 0 || us < so_far ? us : so_far;
}

/* What has come since it was last known.  fresh: it is read for falling asleep. */
static unsigned place_read(struct st_redis_place *p, const struct st_redis_batch *b, size_t at, bool fresh)
{
    const struct st_redis_place old = *p;
    bool more;

    p->known = true;
    p->paused = st_redis_int(st_redis_reply(b, at), 0) > 0 || st_redis_int(st_redis_reply(b, at + 1), 0) > 0;
    p->len = st_redis_int(st_redis_reply(b, at + 2), 0);
    p->due_us = first_due(st_redis_reply(b, at + 4), first_due(st_redis_reply(b, at + 3), 0));
    if (p->paused)
        return 0;
    if (fresh || old.paused)
        return p->len > 0 ? (fresh ? ST_NEWS_LOOK : ST_NEWS_WORK) : 0;
    more = p->len > 0 || (p->due_us && (!old.due_us || p->due_us < old.due_us));
    return more ? ST_NEWS_WORK : 0;
}

static bool same_place(const struct st_redis_place *a, const struct st_redis_place *b)
{
    return a->paused == b->paused && a->len == b->len && a->due_us == b->due_us;
}

/* Reads what is stale.  every: all of it, as those do who are told nothing; then only a change counts. */
static stint_code read_places(struct st_redis_store *s, bool every, bool fresh, stint_error *err)
{
    struct st_redis_wait *w = s->w;
    struct st_redis_batch b;
    size_t n = 0, at;
    unsigned news = 0;
    stint_code code;

    st_redis_batch_init(&b);
    add_tracking(s, &b);
    at = b.n;
    for (size_t i = 0; i < w->n_places; i++)
        if (every || !w->places[i].known) {
            add_place(&b, &w->places[i]);
            n++;
        }
    code = n ? run_tracked(s, &b, n * READS, err) : STINT_OK;
    for (size_t i = 0; !code && n && i < w->n_places; i++) {
        const struct st_redis_place old = w->places[i];

        if (!every && old.known)
            continue;
        if (!st_redis_broken(st_redis_reply(
                &b, at + 2))) /* a broken one has no work, and is no reason not to listen for the others */
            code = st_redis_reply_fail(s->r, st_redis_reply(&b, at + 2), err);
        if (!code)
            news = place_read(&w->places[i], &b, at, fresh);
        if (!code && !(old.known && !fresh &&
                       same_place(&old, &w->places[i]))) /* who looks all the time tells of changes only */
            w->pending |= news;
        at += READS;
    }
    w->read_us = st_clock_mono_us();
    st_redis_batch_clear(&b);
    return code;
}

/* ---- what has changed --------------------------------------------------------------------------------------------------- */

/* asynq:{QUEUE}:what */
static bool key_split(struct st_slice key, struct st_slice *queue, struct st_slice *what)
{
    const char *open = key.len > 7 && memcmp(key.p, "asynq:{", 7) == 0 ? key.p + 7 : NULL;
    const char *close = open ? memchr(open, '}', key.len - 7) : NULL;

    if (!close || close + 2 > key.p + key.len)
        return false;
    *queue = ST_SLICE(open, (size_t)(close - open));
    *what = ST_SLICE(close + 2, (size_t)(key.p + key.len - close - 2));
    return true;
}

static void paused_changed(struct st_redis_wait *w, struct st_slice queue)
{
    for (size_t i = 0; i < w->n_places; i++)
        if (st_queue_covers(queue, st_slice_cstr(w->places[i].name)))
            w->places[i].known = false;
}

void st_redis_places_changed(struct st_redis_wait *w, struct st_slice key)
{
    struct st_slice queue, what;
    struct st_redis_place *p;

    if (!key.p) { /* everything */
        st_redis_places_forget(w);
        w->pending |= w->work ? ST_NEWS_WORK : 0;
        return;
    }
    if (st_slice_is(key, "asynq:queues"))
        w->names_known = false;
    if (!key_split(key, &queue, &what))
        return;
    if (st_slice_is(what, "paused")) {
        paused_changed(w, queue);
        return;
    }
    p = place_of(w, queue);
    if (p && p->known && !p->paused && w->work && p->len == 0 && st_slice_is(what, "pending"))
        w->pending |= ST_NEWS_WORK;
    if (p)
        p->known = false;
}

/* ---- together ----------------------------------------------------------------------------------------------------------- */

stint_code st_redis_places_look(struct st_redis_store *s, stint_error *err)
{
    struct st_redis_wait *w = s->w;
    const bool every = !st_redis_wait_told(w) && st_clock_mono_us() - w->read_us >= ST_REDIS_LOOK_US;
    stint_code code = STINT_OK;

    st_redis_places_connection(s);
    if (!w->names_known || (every && st_clock_mono_us() - w->names_us >= ST_SEC))
        code = read_names(s, err);
    if (!code)
        code = read_places(s, every, !w->asleep, err);
    w->asleep = !code;
    return code;
}
