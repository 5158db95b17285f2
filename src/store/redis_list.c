/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_list.c - listing jobs, newest first.
 *
 * asynq keeps no order of all jobs, only a list or set for each state of a queue.  So the ids of those that can hold what
 * was asked for are walked through, a chunk at a time, and the newest `limit` are kept in a heap; only these are then read
 * whole.  What the ids and a peek cannot decide (the spec hash) is decided then, and the walk is repeated below it.
 *
 *     cursor   milliseconds 42 bits, then 22 bits: of a UUIDv7 both are in the id itself, in its order; any other id has the
 *              millisecond of its job's creation, and 22 bits of a hash
 *
 * So a cursor says the same tomorrow, whatever was added or removed.  Two jobs may share one: a page never ends between them, unless they
 * fill it.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "job/spec.h"
#include "store/redis_look.h"

#define BIT(shown) (1u << (shown))
#define ALL_BITS   ((1u << ST_SHOWN_N) - 1)
#define HELD_BITS  (BIT(ST_SHOW_CLAIMED) | BIT(ST_SHOW_RUNNING))
#define DEAD_BITS  (BIT(ST_SHOW_FAILED) | BIT(ST_SHOW_CANCELLED))
#define ENDED_BITS (DEAD_BITS | BIT(ST_SHOW_SUCCEEDED))
#define SPECS_N    2000 /* candidates of one walk when each must be read to know */
#define BLOCK      50   /* read whole at once */

struct candidate {
    uint64_t cursor;
    uint32_t queue;
    unsigned char len;
    char id[ST_ID_MAX];
};

struct list {
    struct st_redis_store *s;
    const struct st_list_req *req;
    unsigned states;
    int64_t now_us;
    uint64_t after;                 /* only below it; 0 = from the top */
    char (*names)[ST_NAME_MAX + 1]; /* of the queues */
    size_t n_names;

    struct candidate *heap; /* the least first, while it is gathered */
    size_t n, want;         /* room for want + 1: the one more tells that there are more */

    /* where the walk is */
    uint32_t queue;
    unsigned set_states; /* what can be in this set */

    struct st_job_info *out;
    size_t n_out;
};

/* ---- cursors -------------------------------------------------------------------------------------------------- */

static unsigned digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 32) - 'a') + 10;
}

static uint64_t id_bits(struct st_slice id)
{
    uint64_t h = 1469598103934665603u;

    for (size_t i = 0; i < id.len; i++)
        h = (h ^ (unsigned char)id.p[i]) * 1099511628211u;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu; /* short ids hardly reach the upper bits */
    return h >> 42;
}

/* Ours count within a millisecond: 12 bits behind the version, 6 behind the variant. */
static uint64_t cursor_v7(struct st_slice id, int64_t us)
{
    const unsigned high = digit(id.p[15]) << 8 | digit(id.p[16]) << 4 | digit(id.p[17]);
    const unsigned low = (digit(id.p[19]) & 3) << 4 | digit(id.p[20]);

    return (uint64_t)(us / ST_MS) << 22 | (uint64_t)(high << 6 | low) << 4 | digit(id.p[21]);
}

static bool is_hex(struct st_slice id, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (i != 18 && !strchr("0123456789abcdefABCDEF", id.p[i]))
            return false;
    return true;
}

/* 0 = the id does not tell. */
static uint64_t cursor_of_id(struct st_slice id)
{
    const int64_t us = st_redis_id_time(id);

    return us > 0 && is_hex(id, 15, 22) ? cursor_v7(id, us) : 0;
}

static uint64_t cursor_of(struct st_slice id, int64_t created_us)
{
    const uint64_t own = cursor_of_id(id), us = created_us > 0 ? (uint64_t)created_us : 0;

    return own ? own : ((us / 1000) << 22 | id_bits(id)) + 1;
}

/* ---- the heap ---------------------------------------------------------------------------------------------------- */

static void heap_down(struct candidate *h, size_t n)
{
    for (size_t i = 0, k; (k = 2 * i + 1) < n; i = k) {
        const struct candidate swap = h[i];

        k += k + 1 < n && h[k + 1].cursor < h[k].cursor;
        if (swap.cursor <= h[k].cursor)
            return;
        h[i] = h[k];
        h[k] = swap;
    }
}

static void heap_up(struct candidate *h, size_t i)
{
    for (size_t up; i && h[up = (i - 1) / 2].cursor > h[i].cursor; i = up) {
        const struct candidate swap = h[i];

        h[i] = h[up];
        h[up] = swap;
    }
}

/* Would it have a place? */
static bool is_wanted(const struct list *l, uint64_t cursor)
{
    return !(l->after && cursor >= l->after) && !(l->n > l->want && cursor <= l->heap[0].cursor);
}

static void offer(struct list *l, struct st_slice id, uint64_t cursor)
{
    struct candidate c = {.cursor = cursor, .queue = l->queue, .len = (unsigned char)id.len};

    if (!is_wanted(l, cursor))
        return;
    memcpy(c.id, id.p, id.len);
    if (l->n > l->want) {
        l->heap[0] = c;
        heap_down(l->heap, l->n);
        return;
    }
    l->heap[l->n] = c;
    heap_up(l->heap, l->n++);
}

static int newest_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->cursor != y->cursor)
        return x->cursor > y->cursor ? -1 : 1;
    return st_slice_cmp(ST_SLICE(x->id, x->len), ST_SLICE(y->id, y->len));
}

/* In order, each once.  true = there are more than wanted, which are cut off. */
static bool heap_done(struct list *l)
{
    const bool full = l->n > l->want;
    size_t kept = 0, end;

    qsort(l->heap, l->n, sizeof(*l->heap), newest_first);
    for (size_t i = 0; i < l->n; i++)
        if (!kept || newest_first(&l->heap[kept - 1], &l->heap[i]) || l->heap[kept - 1].queue != l->heap[i].queue)
            l->heap[kept++] = l->heap[i];
    l->n = kept;
    if (!full)
        return false;
    if (kept > l->want) { /* one that was seen twice may have taken a place: then there is nothing to cut */
        for (end = l->want; end > 0 && l->heap[end - 1].cursor == l->heap[l->want].cursor; end--)
            ;
        l->n = end ? end : l->want;
    }
    return true;
}

/* ---- walking ------------------------------------------------------------------------------------------------------ */

static enum st_shown shown_of(const struct list *l, const struct st_redis_peek *p)
{
    static const enum st_shown shown[ST_STATE_N] = {
        [ST_BLOCKED] = ST_SHOW_BLOCKED,     [ST_CLAIMED] = ST_SHOW_CLAIMED, [ST_RUNNING] = ST_SHOW_RUNNING,
        [ST_SUCCEEDED] = ST_SHOW_SUCCEEDED, [ST_FAILED] = ST_SHOW_FAILED,   [ST_CANCELLED] = ST_SHOW_CANCELLED};

    if (p->state != ST_PENDING)
        return shown[p->state];
    return l->set_states & BIT(ST_SHOW_SCHEDULED)  ? ST_SHOW_SCHEDULED
           : l->set_states & BIT(ST_SHOW_RETRYING) ? ST_SHOW_RETRYING
                                                   : ST_SHOW_PENDING;
}

struct chunk {
    struct list *l;
    const struct st_slice *ids;
};

static bool peek_matches(const struct list *l, const struct st_redis_peek *p)
{
    const struct st_list_req *req = l->req;
    const bool whose = p->held_by_us || st_state_ended(p->state);

    if (!(l->states & BIT(shown_of(l, p))))
        return false;
    if (req->type.p && p->type.p && !st_pattern_match(req->type, p->type))
        return false;
    if (req->worker.p && (!whose || !st_slice_is(req->worker, p->task.worker)))
        return false;
    return !req->key.p || !p->key.p || st_slice_eq(p->key, req->key);
}

static void on_peek(void *arg, size_t i, const struct st_redis_peek *p)
{
    const struct chunk *c = arg;

    if (peek_matches(c->l, p))
        offer(c->l, c->ids[i], cursor_of(c->ids[i], p->created_us));
}

static void on_created(void *arg, size_t i, const struct st_redis_peek *p)
{
    const struct chunk *c = arg;

    offer(c->l, c->ids[i], cursor_of(c->ids[i], p->created_us));
}

static bool must_peek(const struct list *l)
{
    return l->req->type.p || l->req->worker.p || l->req->key.p || (l->set_states & ~l->states);
}

/* Ids that tell their order need no look, or only if they would have a place: lists begin with the newest. */
static stint_code on_chunk(void *arg, const struct st_slice *ids, const double *scores, size_t n, stint_error *err)
{
    struct list *l = arg;
    const bool peek = must_peek(l);
    struct st_slice some[ST_REDIS_CHUNK];
    struct chunk c = {.l = l, .ids = some};
    size_t k = 0;

    (void)scores;
    for (size_t i = 0; i < n; i++) {
        const uint64_t cursor = cursor_of_id(ids[i]);

        if (!cursor || (peek && is_wanted(l, cursor)))
            some[k++] = ids[i];
        else if (!peek)
            offer(l, ids[i], cursor);
    }
    if (k == 0)
        return STINT_OK;
    return st_redis_peek(l->s, st_slice_cstr(l->names[l->queue]), some, k, l->req->type.p != NULL,
                         peek ? on_peek : on_created, &c, err);
}

static stint_code walk(struct list *l, const char *set, bool list, const char *min, const char *max, unsigned states,
                       stint_error *err)
{
    const struct st_redis_walk w = {
        .queue = st_slice_cstr(l->names[l->queue]), .set = set, .list = list, .min = min, .max = max, .down = true};

    if (!(l->states & states))
        return STINT_OK;
    l->set_states = states;
    return st_redis_walk(l->s, &w, on_chunk, l, err);
}

/* Tasks of stock programs that wait to be put together. */
static stint_code walk_groups(struct list *l, stint_error *err)
{
    struct st_redis_key key;
    struct st_redis_batch b;
    const redisReply *r;
    char set[ST_NAME_MAX + 8];
    stint_code code;

    if (!(l->states & BIT(ST_SHOW_BLOCKED)))
        return STINT_OK;
    st_redis_batch_init(&b);
    st_redis_key(&key, st_slice_cstr(l->names[l->queue]), "groups");
    st_redis_addv(&b, ST_REDIS_READ, "SMEMBERS", key.p, NULL);
    code = st_redis_run(l->s->r, &b, err);
    r = code ? NULL : st_redis_reply(&b, 0);
    if (!code)
        code = st_redis_reply_fail(l->s->r, r, err);
    for (size_t i = 0; !code && i < r->elements; i++) {
        const struct st_slice name = st_redis_text(r->element[i]);

        if (name.len > ST_NAME_MAX)
            continue;
        snprintf(set, sizeof(set), "g:%.*s", (int)name.len, name.p);
        code = walk(l, set, false, NULL, NULL, BIT(ST_SHOW_BLOCKED), err);
    }
    st_redis_batch_clear(&b);
    return code;
}

/* In the order jobs go through them: one that goes on meanwhile is seen twice rather than not at all. */
static stint_code gather_queue(struct list *l, stint_error *err)
{
    char due[ST_REDIS_SCORE], later[ST_REDIS_SCORE + 1];

    st_redis_score(due, l->now_us);
    snprintf(later, sizeof(later), "(%s", due);
    if (walk_groups(l, err) || walk(l, "scheduled", false, later, NULL, BIT(ST_SHOW_SCHEDULED), err) ||
        walk(l, "retry", false, later, NULL, BIT(ST_SHOW_RETRYING), err) ||
        walk(l, "scheduled", false, NULL, due, BIT(ST_SHOW_PENDING), err) ||
        walk(l, "retry", false, NULL, due, BIT(ST_SHOW_PENDING), err) ||
        walk(l, "pending", true, NULL, NULL, BIT(ST_SHOW_PENDING), err) ||
        walk(l, "active", true, NULL, NULL, HELD_BITS, err) || walk(l, "archived", false, NULL, NULL, DEAD_BITS, err))
        return err->code;
    return walk(l, "completed", false, NULL, NULL, BIT(ST_SHOW_SUCCEEDED), err);
}

static stint_code gather(struct list *l, bool *more, stint_error *err)
{
    l->n = 0;
    for (size_t i = 0; i < l->n_names; i++) {
        l->queue = (uint32_t)i;
        if (!gather_queue(l, err))
            continue;
        if (!st_redis_broken_said(err))
            return err->code;
        st_redis_tell_broken(st_slice_cstr(l->names[i])); /* what of it can be read is listed, and the others */
    }
    *more = heap_done(l);
    return STINT_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------- */

static bool hash_matches(const struct list *l, const struct st_job_info *i)
{
    char hash[ST_HASH_LEN + 1];

    return !st_spec_hash(st_slice_cstr(i->type), st_slice_cstr(i->queue), i->payload, hash, NULL) &&
           st_slice_is(l->req->spec_hash, hash);
}

static bool info_matches(const struct list *l, const struct st_job_info *i)
{
    const struct st_list_req *req = l->req;

    if (!i->id || !(l->states & BIT(i->shown)))
        return false;
    if (req->type.p && !st_pattern_match(req->type, st_slice_cstr(i->type)))
        return false;
    if (req->worker.p && (!i->worker || !st_slice_is(req->worker, i->worker)))
        return false;
    if (req->key.p && (!i->key || !st_slice_is(req->key, i->key)))
        return false;
    if (req->ended_before_us && (!i->finished_us || i->finished_us >= req->ended_before_us))
        return false;
    return !req->spec_hash.p || hash_matches(l, i);
}

static void forget(struct st_slice *s)
{
    free((char *)s->p);
    *s = ST_NONE;
}

static void keep(struct list *l, struct st_job_info *i, uint64_t cursor)
{
    if (!info_matches(l, i)) {
        st_job_info_clear(i);
        return;
    }
    if (!l->req->with_payload) {
        forget(&i->payload);
        forget(&i->meta);
        forget(&i->result);
    }
    i->cursor = cursor;
    l->out[l->n_out++] = *i;
}

/* All candidates of a block that are in one queue with one call. */
static stint_code look_block(struct list *l, const struct candidate *c, size_t n, struct st_job_info *infos,
                             stint_error *err)
{
    const enum st_redis_how_much how = l->req->with_payload || l->req->spec_hash.p ? ST_LOOK_PAYLOAD : ST_LOOK_BARE;
    struct st_job_info some[BLOCK];
    struct st_slice ids[BLOCK];
    size_t at[BLOCK];
    bool done[BLOCK] = {false};

    for (size_t first = 0; first < n; first++) {
        size_t k = 0;

        for (size_t i = first; !done[first] && i < n; i++)
            if (!done[i] && c[i].queue == c[first].queue) {
                ids[k] = ST_SLICE(c[i].id, c[i].len);
                at[k++] = i;
            }
        if (!k)
            continue;
        if (st_redis_look(l->s, st_slice_cstr(l->names[c[first].queue]), ids, k, how, &l->now_us, some, err))
            return err->code;
        for (size_t i = 0; i < k; i++) {
            infos[at[i]] = some[i];
            done[at[i]] = true;
        }
    }
    return STINT_OK;
}

static stint_code read_block(struct list *l, const struct candidate *c, size_t n, size_t *used, stint_error *err)
{
    struct st_job_info infos[BLOCK] = {0};
    const stint_code code = look_block(l, c, n, infos, err);

    for (size_t i = 0; i < n; i++) {
        if (code || l->n_out == l->req->limit) {
            st_job_info_clear(&infos[i]);
            continue;
        }
        keep(l, &infos[i], c[i].cursor);
        ++*used;
    }
    return code;
}

/* Reads candidates until the page is full; *used: how many were looked at. */
static stint_code read_all(struct list *l, size_t *used, stint_error *err)
{
    *used = 0;
    while (*used < l->n && l->n_out < l->req->limit) {
        const size_t n = l->n - *used < BLOCK ? l->n - *used : BLOCK;

        if (read_block(l, l->heap + *used, n, used, err))
            return err->code;
    }
    return STINT_OK;
}

/* ---- together ------------------------------------------------------------------------------------------------------------ */

static stint_code page(struct list *l, uint64_t *next, stint_error *err)
{
    const int64_t until = st_clock_mono_us() + (int64_t)l->s->base.timeout_ms * ST_MS / 2;
    bool more = true;
    size_t used = 0;

    l->after = l->req->after;
    while (more && l->n_out < l->req->limit) {
        if (gather(l, &more, err) || read_all(l, &used, err))
            return err->code;
        more |= used < l->n;
        if (used)
            l->after = l->heap[used - 1].cursor;
        *next = more ? l->after : 0;
        if (!used || st_clock_mono_us() > until) /* the cursor says how far it came */
            break;
    }
    return STINT_OK;
}

/* The queues' names as they are now: others may read them anew meanwhile. */
static stint_code names_copy(struct list *l, stint_error *err)
{
    struct st_redis_store *s = l->s;

    if (st_redis_queues_read(s, true, err))
        return err->code;
    l->names = calloc(s->queues.n + 1, sizeof(*l->names));
    if (!l->names)
        return st_fail(err, STINT_ENOMEM, "out of memory for a list of jobs");
    for (size_t i = 0; i < s->queues.n; i++)
        if (!l->req->queue.p || st_queue_covers(l->req->queue, st_slice_cstr(s->queues.p[i])))
            memcpy(l->names[l->n_names++], s->queues.p[i], sizeof(*l->names));
    return STINT_OK;
}

/* A job has a worker only while it is held or has ended, and an end only then. */
static unsigned states_possible(const struct st_list_req *req)
{
    unsigned states = req->states ? req->states & ALL_BITS : ALL_BITS;

    if (req->worker.p)
        states &= HELD_BITS | ENDED_BITS;
    if (req->ended_before_us)
        states &= ENDED_BITS;
    return states;
}

static stint_code list(struct list *l, uint64_t *next, stint_error *err)
{
    const bool hash = l->req->spec_hash.p != NULL;

    if (names_copy(l, err))
        return err->code;
    l->want = hash && l->req->limit < SPECS_N ? SPECS_N : l->req->limit;
    l->heap = malloc((l->want + 1) * sizeof(*l->heap));
    l->out = calloc(l->req->limit, sizeof(*l->out));
    if (!l->heap || !l->out)
        return st_fail(err, STINT_ENOMEM, "out of memory for a list of jobs");
    return page(l, next, err);
}

stint_code st_redis_op_list(struct st_store *base, const struct st_list_req *req, struct st_job_info **out,
                            size_t *n_out, uint64_t *next, stint_error *err)
{
    struct st_redis_store *s = st_redis_of(base);
    struct list l = {.s = s,
                     .req = req,
                     .states = states_possible(req),
                     .now_us = req->now_us ? req->now_us : st_redis_store_now(s)};
    stint_error local = {0};
    stint_code code;

    *next = 0;
    code = l.states ? list(&l, next, &local) : STINT_OK;
    free(l.names);
    free(l.heap);
    if (code) {
        st_job_info_list_free(l.out, l.n_out);
        l.out = NULL;
        l.n_out = 0;
    }
    *out = l.out;
    *n_out = l.n_out;
    return st_redis_told(code, &local, err);
}
