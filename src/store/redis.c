/* SPDX-License-Identifier: Apache-2.0
 *
 * redis.c - the Redis store: opening a handle, its table, the queues it knows.
 *
 * A handle connects when it is opened, to say at once what is wrong.  There is no schema to make: keys come with the first
 * job, and a store that was emptied is simply empty.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_int.h"

#define QUEUES_FRESH_US ST_SEC

/* ---- small things --------------------------------------------------------------------------------- */

struct st_slice st_redis_num(char out[ST_REDIS_NUM], int64_t v)
{
    const int n = snprintf(out, ST_REDIS_NUM, "%lld", (long long)v);

    return ST_SLICE(out, (size_t)n);
}

void st_redis_saw(struct st_redis_store *s, int64_t now_us)
{
    s->clock_off_us = now_us - st_clock_real_us();
}

stint_code st_redis_go(struct st_redis_store *s, stint_error *err)
{
    stint_code code = st_redis_run(s->r, &s->b, err);

    for (size_t i = 0; !code && i < s->b.n; i++)
        code = st_redis_reply_fail(s->r, st_redis_reply(&s->b, i), err);
    return code;
}

bool st_redis_broken(const redisReply *reply)
{
    return reply && reply->type == REDIS_REPLY_ERROR &&
           strstr(reply->str, "WRONGTYPE"); /* not its first word in Redis 6.2 */
}

bool st_redis_broken_said(const stint_error *err)
{
    return err->code == STINT_ESTORE && strstr(err->message, "WRONGTYPE");
}

void st_redis_tell_broken(struct st_slice queue)
{
    static _Atomic int64_t next_us;
    int64_t due = next_us;
    const int64_t now = st_clock_mono_us();

    if (now < due || !atomic_compare_exchange_strong(&next_us, &due, now + 60 * ST_SEC))
        return;
    st_log(ST_LOG_ERROR, "queue.broken", ST_FS("queue", queue), ST_F("why", "one of its keys is of another kind"),
           ST_F("effect", "its jobs are not run, or their outcomes wait"),
           ST_F("remedy", "`stint doctor` names the key: find out who made it, and remove it"));
}

stint_code st_redis_go_each(struct st_redis_store *s, stint_error *err)
{
    stint_code code = st_redis_run(s->r, &s->b, err);

    for (size_t i = 0; !code && i < s->b.n; i++)
        if (!st_redis_broken(st_redis_reply(&s->b, i)))
            code = st_redis_reply_fail(s->r, st_redis_reply(&s->b, i), err);
    return code;
}

/* ---- queues ----------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Anybody may add a name. */
static bool name_fits(struct st_slice name)
{
    return name.len && name.len <= ST_NAME_MAX && !memchr(name.p, '\0', name.len);
}

static bool names_take(struct st_redis_names *names, const redisReply *reply)
{
    char(*p)[ST_NAME_MAX + 1] = calloc(reply->elements + 1, sizeof(*p));
    size_t n = 0;

    if (!p)
        return false;
    for (size_t i = 0; i < reply->elements; i++) {
        const struct st_slice name = st_redis_text(reply->element[i]);

        if (name_fits(name))
            memcpy(p[n++], name.p, name.len);
    }
    names->odd = reply->elements - n;
    qsort(p, n, sizeof(*p), by_name);
    free(names->p);
    names->p = p;
    names->n = n;
    names->read_us = st_clock_mono_us();
    return true;
}

stint_code st_redis_queues_read(struct st_redis_store *s, bool fresh, stint_error *err)
{
    const redisReply *reply;

    if (!fresh && s->queues.read_us && st_clock_mono_us() - s->queues.read_us < QUEUES_FRESH_US)
        return STINT_OK;
    st_redis_batch_reset(&s->b);
    st_redis_addv(&s->b, ST_REDIS_READ, "SMEMBERS", ST_REDIS_QUEUES, (char *)NULL);
    if (st_redis_go(s, err))
        return err->code;
    reply = st_redis_reply(&s->b, 0);
    if (!names_take(&s->queues, reply))
        return st_fail(err, STINT_ENOMEM, "no memory for the names of %zu queues", reply->elements);
    return STINT_OK;
}

/* Where it is among the first n, or would be. */
static size_t name_place(const struct st_redis_names *names, size_t n, struct st_slice name, bool *there)
{
    size_t from = 0;

    *there = false;
    while (from < n) {
        const size_t mid = from + (n - from) / 2;
        const int d = strncmp(names->p[mid], name.p, name.len);

        if (d < 0)
            from = mid + 1;
        else
            n = mid;
        *there = *there || (d == 0 && !names->p[mid][name.len]);
    }
    return from;
}

/* Room for so many more. */
static bool names_room(struct st_redis_names *names, size_t more)
{
    char(*p)[ST_NAME_MAX + 1] = realloc(names->p, (names->n + more) * sizeof(*p));

    if (!p)
        return false; /* they are read again before long */
    names->p = p;
    return true;
}

void st_redis_queues_add(struct st_redis_store *s, struct st_slice queue)
{
    struct st_redis_names *names = &s->queues;
    bool there;
    const size_t at = name_fits(queue) ? name_place(names, names->n, queue, &there) : 0;

    if (!name_fits(queue) || there || !names_room(names, 1))
        return;
    memmove(names->p + at + 1, names->p + at, (names->n - at) * sizeof(*names->p));
    memset(names->p[at], 0, sizeof(*names->p));
    memcpy(names->p[at], queue.p, queue.len);
    names->n++;
}

void st_redis_queues_saw(struct st_redis_store *s, const redisReply *reply)
{
    struct st_redis_names *names = &s->queues;
    const size_t known = names->n;
    bool there;

    for (size_t i = 0; i < reply->elements; i++) {
        const struct st_slice name = st_redis_text(reply->element[i]);

        if (!name_fits(name))
            continue;
        name_place(names, known, name, &there);
        if (there || (names->n == known && !names_room(names, reply->elements - i)))
            continue;
        memset(names->p[names->n], 0, sizeof(*names->p));
        memcpy(names->p[names->n++], name.p, name.len);
    }
    if (names->n > known)
        qsort(names->p, names->n, sizeof(*names->p), by_name);
}

size_t st_redis_queues_asked(const struct st_redis_store *s, const struct st_slice *asked, size_t n, size_t *out)
{
    const struct st_slice any = st_slice_cstr(ST_QUEUE_ANY);
    size_t at = 0;

    if (!n) {
        asked = &any;
        n = 1;
    }
    for (size_t a = 0; a < n; a++)
        for (size_t i = 0; i < s->queues.n; i++) {
            bool seen = !st_queue_covers(asked[a], st_slice_cstr(s->queues.p[i]));

            for (size_t k = 0; !seen && k < at; k++)
                seen = out[k] == i;
            if (!seen)
                out[at++] = i;
        }
    return at;
}

/* ---- which queue a job is in ---------------------------------------------------------------------------- */

/* Asks one queue for each job that has none yet; queue p NULL = the one the job's hint names. */
static void ask(struct st_redis_store *s, const struct st_slice *ids, const uint64_t *hints, size_t n,
                const struct st_slice *found, struct st_slice queue)
{
    st_redis_batch_reset(&s->b);
    for (size_t i = 0; i < n; i++) {
        const struct st_slice q = queue.p ? queue : hints ? st_redis_ref_queue(hints[i]) : ST_NONE;
        struct st_redis_key key;
        struct st_slice argv[2] = {st_slice_cstr("EXISTS")};

        if (found[i].p || !q.p)
            continue;
        argv[1] = st_redis_task_key(&key, q, ids[i]);
        st_redis_add(&s->b, ST_REDIS_READ, argv[1], argv, 2);
    }
}

static stint_code locate_in(struct st_redis_store *s, const struct st_slice *ids, const uint64_t *hints, size_t n,
                            struct st_slice *found, struct st_slice queue, size_t *missing, stint_error *err)
{
    size_t at = 0;

    ask(s, ids, hints, n, found, queue);
    if (s->b.n == 0)
        return STINT_OK;
    if (st_redis_go(s, err))
        return err->code;
    for (size_t i = 0; i < n; i++) {
        const struct st_slice q = queue.p ? queue : hints ? st_redis_ref_queue(hints[i]) : ST_NONE;

        if (found[i].p || !q.p)
            continue;
        if (st_redis_int(st_redis_reply(&s->b, at++), 0) == 1) {
            found[i] = q;
            --*missing;
        }
    }
    return STINT_OK;
}

stint_code st_redis_locate(struct st_redis_store *s, const struct st_slice *ids, const uint64_t *hints, size_t n,
                           struct st_slice *queues, stint_error *err)
{
    size_t missing = n;

    for (size_t i = 0; i < n; i++)
        queues[i] = ST_NONE;
    if (hints && locate_in(s, ids, hints, n, queues, ST_NONE, &missing, err))
        return err->code;
    for (int fresh = 0; missing && fresh < 2; fresh++) {
        const int64_t before = s->queues.read_us;

        if (st_redis_queues_read(s, fresh, err))
            return err->code;
        if (fresh && before == 0)
            break;
        for (size_t k = 0; missing && k < s->queues.n; k++) {
            /* an interned name: it outlives the list */
            const struct st_slice q = st_redis_ref_queue(st_redis_ref(st_slice_cstr(s->queues.p[k])));

            if (locate_in(s, ids, NULL, n, queues, q, &missing, err))
                return err->code;
        }
    }
    return STINT_OK;
}

/* ---- what it cannot do, and what is trivial ----------------------------------------------------------------- */

static stint_code redis_schema(struct st_store *base, bool up, struct st_schema *out, stint_error *err)
{
    (void)base;
    (void)up;
    (void)err;
    *out = (struct st_schema){.have = 1, .want = 1};
    return STINT_OK;
}

static stint_code redis_backup(struct st_store *base, const char *path, st_progress_fn progress, void *arg,
                               stint_error *err)
{
    (void)base;
    (void)path;
    (void)progress;
    (void)arg;
    return st_refuse(err, "use Redis' own: BGSAVE and a copy of dump.rdb, or `redis-cli --rdb FILE`",
                     "a redis store is not backed up by stint");
}

static int64_t redis_now(struct st_store *base)
{
    return st_clock_real_us() + st_redis_of(base)->clock_off_us;
}

static void redis_close(struct st_store *base)
{
    struct st_redis_store *s = st_redis_of(base);

    st_redis_wait_close(s);
    st_redis_care_close(s);
    st_redis_rules_close(s);
    st_redis_batch_clear(&s->b);
    st_redis_close(s->r);
    free(s->queues.p);
    free(s);
}

const struct st_store_ops st_redis_ops = {
    .name = "redis",
    .caps = 0,
    .enqueue = st_redis_op_enqueue,
    .claim = st_redis_op_claim,
    .exchange = st_redis_op_exchange,
    .acquire = st_redis_op_acquire,
    .renew = st_redis_op_renew,
    .finish = st_redis_op_finish,
    .reap = st_redis_op_reap,
    .disown = st_redis_op_disown,
    .flagged = st_redis_op_flagged,
    .cancel = st_redis_op_cancel,
    .retry = st_redis_op_retry,
    .discard = st_redis_op_discard,
    .pause = st_redis_op_pause,
    .get = st_redis_op_get,
    .list = st_redis_op_list,
    .queues = st_redis_op_queues,
    .next_due = st_redis_op_next_due,
    .prune = st_redis_op_prune,
    .upkeep = st_redis_op_upkeep,
    .worker_beat = st_redis_op_worker_beat,
    .worker_list = st_redis_op_worker_list,
    .worker_remove = st_redis_op_worker_remove,
    .lead = st_redis_op_lead,
    .wait = st_redis_op_wait,
    .interrupt = st_redis_op_interrupt,
    .watch = st_redis_op_watch,
    .news = st_redis_op_news,
    .fit = st_redis_op_fit,
    .schema = redis_schema,
    .backup = redis_backup,
    .check = st_redis_op_check,
    .about = st_redis_op_about,
    .now = redis_now,
    .close = redis_close,
};

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static stint_code options_read(struct st_redis_store *s, stint_error *err)
{
    static const char *const known[] = {"runqy", "redis_storage", "notify", "may_lose", NULL};
    const char *notify = st_redis_option(s->r, "notify"), *runqy = st_redis_option(s->r, "runqy");
    const char *storage = st_redis_option(s->r, "redis_storage"), *lose = st_redis_option(s->r, "may_lose");

    if (st_redis_options_check(s->r, known, err))
        return err->code;
    if (notify && strcmp(notify, "on") != 0 && strcmp(notify, "off") != 0)
        return st_refuse(err, "it takes notify=on (the default) or notify=off", "notify= is neither on nor off");
    s->notify = !notify || strcmp(notify, "on") == 0;
    s->runqy = runqy && strcmp(runqy, "0") != 0;
    if (storage && strcmp(storage, "true") != 0 && strcmp(storage, "false") != 0)
        return st_refuse(err, "use redis_storage=true or redis_storage=false",
                         "redis_storage=%s is neither true nor false", storage);
    s->no_storage = storage && strcmp(storage, "false") == 0;
    if (lose && strcmp(lose, "yes") != 0 && strcmp(lose, "no") != 0)
        return st_refuse(err, "use may_lose=yes or may_lose=no (the default)", "may_lose= is neither yes nor no");
    s->may_lose = lose && strcmp(lose, "yes") == 0;
    return STINT_OK;
}

/* The server's clock, and whether it is there at all. */
static stint_code first_look(struct st_redis_store *s, stint_error *err)
{
    const redisReply *reply;

    st_redis_batch_reset(&s->b);
    st_redis_addv(&s->b, ST_REDIS_READ, "TIME", (char *)NULL);
    if (st_redis_go(s, err))
        return err->code;
    reply = st_redis_reply(&s->b, 0);
    if (reply->elements == 2)
        st_redis_saw(s, st_redis_int(reply->element[0], 0) * ST_SEC + st_redis_int(reply->element[1], 0));
    return STINT_OK;
}

static stint_code handle_open(struct st_redis_store *s, const char *url, const struct st_store_open *opt,
                              stint_error *err)
{
    s->base.ops = &st_redis_ops;
    s->base.timeout_ms = opt && opt->timeout_ms > 0 ? opt->timeout_ms : 5000;
    st_redis_batch_init(&s->b);
    if (st_redis_open(url, s->base.timeout_ms, &s->r, err) || options_read(s, err) || st_redis_wait_open(s, err))
        return err->code;
    if (s->runqy || (opt && opt->runqy)) {
        s->runqy = true;
        s->base.ops = st_redis_runqy_ops();
    }
    return first_look(s, err);
}

stint_code st_store_redis_open(const char *url, const struct st_store_open *opt, struct st_store **out,
                               stint_error *err)
{
    struct st_redis_store *s = calloc(1, sizeof(*s));
    stint_error local = {0};

    *out = NULL;
    if (!s)
        return st_fail(err, STINT_ENOMEM, "no memory for a store");
    if (!handle_open(s, url, opt, &local)) {
        *out = &s->base;
        return STINT_OK;
    }
    if (err)
        *err = local;
    redis_close(&s->base); /* copes with whatever was not reached */
    return local.code;
}
