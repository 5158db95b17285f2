/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_list.c - looking at many jobs, newest first.
 *
 * The newest are at the end of entry, which has no exact index for that, only a coarse one that
 * costs nothing to keep.  So it is walked in windows of the number that jobs get when they are
 * enqueued, until a page is full:
 *
 *     number of the last job 0 [1,024][ 8,192 ][      65,536      ][      65,536      ] ... later
 * ones grow
 *
 * Where only few jobs can match, the small place they are in is read instead and sorted: a handful
 * of failures must not cost a walk through millions of successes.
 *
 * A page comes from one statement, so it is of one moment.  Only the spec hash is made here: what
 * it is made of never changes, so candidates are read first, and what is then said about them is
 * again one statement.
 *
 * Thread: the handle's.
 */
#include "store/postgres_look.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "job/spec.h"

#define BIT(shown)   (1u << (shown))
#define WAITING_BITS (BIT(ST_SHOW_SCHEDULED) | BIT(ST_SHOW_PENDING) | BIT(ST_SHOW_RETRYING))
#define HELD_BITS    (BIT(ST_SHOW_CLAIMED) | BIT(ST_SHOW_RUNNING))
#define DEAD_BITS    (BIT(ST_SHOW_FAILED) | BIT(ST_SHOW_CANCELLED))
#define ENDED_BITS   (BIT(ST_SHOW_SUCCEEDED) | DEAD_BITS)
#define ALL_BITS     (WAITING_BITS | HELD_BITS | ENDED_BITS)

#define FEW          20000 /* so many rows are sorted sooner than a long history is walked */
#define WINDOW_FIRST 1024
#define WINDOW_MAX   65536
#define WINDOWS_SAME 64 /* so many of that size; then each 16 are twice as long */
#define WALK_SHORT   ((int64_t)4 * WINDOW_MAX)
#define SPECS_N      512 /* candidates for a spec hash at a time, and about how many bytes */
#define SPECS_BYTES  ((int64_t)8 << 20)

struct list {
    struct st_pg *s;
    const struct st_list_req *req;
    unsigned states; /* those that can match at all */
    int64_t before;  /* only jobs with a smaller number */
    struct st_job_info *out;
    size_t n;
    bool more;
};

/* ---- parameters ---------------------------------------------------------------------------- */

static bool is_prefix(struct st_slice type)
{
    return type.p && type.len && type.p[type.len - 1] == '*';
}

static void put_names(struct st_pg_args *a, const struct st_list_req *req)
{
    const bool prefix = is_prefix(req->type);

    st_pg_text(a, req->queue);
    st_pg_text(a, prefix ? ST_NONE : req->type);
    st_pg_text(a, prefix ? ST_SLICE(req->type.p, req->type.len - 1) : ST_NONE);
}

/* $1 to $9 of every statement of a list. */
static void put_filters(struct st_pg_args *a, const struct list *l)
{
    st_pg_i64(a, l->req->now_us);
    st_pg_i32(a, (int32_t)l->states);
    put_names(a, l->req);
    st_pg_text(a, l->req->worker);
    st_pg_text(a, l->req->key);
    st_pg_i64(a, l->req->ended_before_us);
    st_pg_i64(a, l->before);
}

static void put_page(struct st_pg_args *a, const struct list *l)
{
    put_filters(a, l);
    st_pg_i64(a, (int64_t)l->req->limit + 1); /* one more tells whether there are more */
    st_pg_bool(a, l->req->with_payload);
}

/* How long the window after `taken` others is. */
static int64_t window_size(int taken)
{
    int64_t size = WINDOW_FIRST;

    for (int i = 0; i < taken && size < WINDOW_MAX; i++)
        size *= 8;
    if (size > WINDOW_MAX)
        size = WINDOW_MAX;
    for (int i = WINDOWS_SAME; i <= taken && size < INT64_MAX / 4; i += 16)
        size *= 2;
    return size;
}

/* The windows below top, down to bottom, as two arrays: where each begins, and its last number. */
static void put_windows(struct st_pg_args *a, int64_t top, int64_t bottom)
{
    for (int which = 0; which < 2; which++) {
        int64_t hi = top;

        st_pg_array(a, ST_PG_INT8);
        for (int i = 0; hi > bottom; i++) {
            const int64_t size = window_size(i), lo = hi - bottom > size ? hi - size : bottom;

            st_pg_item_i64(a, which == 0 ? hi : lo);
            hi = lo;
        }
        st_pg_array_end(a);
    }
}

/* ---- a page -------------------------------------------------------------------------------- */

static void page_clear(struct list *l)
{
    st_job_info_list_free(l->out, l->n);
    l->out = NULL;
    l->n = 0;
    l->more = false;
}

static stint_code page_read(struct list *l, const PGresult *r, stint_error *err)
{
    const size_t n = (size_t)PQntuples(r);

    page_clear(l);
    l->more = n > l->req->limit;
    if (n == 0)
        return STINT_OK;
    l->out = calloc(n, sizeof(*l->out));
    if (!l->out)
        return st_fail(err, STINT_ENOMEM, "out of memory for a list of jobs");
    while (l->n < n && l->n < l->req->limit) {
        if (st_pg_info_read(r, (int)l->n, &l->out[l->n], err))
            return err->code;
        l->n++;
    }
    return STINT_OK;
}

/* The planner must not be led astray by tables that were empty when it last looked. */
static stint_code page_run(struct list *l, enum st_pg_sql which, const struct st_pg_args *args, stint_error *err)
{
    struct st_pg_step steps[2] = {{.which = PG_BY_INDEX}, {.which = which, .args = args}};
    stint_code code = st_pg_run(l->s, steps, 2, false, err);

    if (!code)
        code = page_read(l, steps[1].res, err);
    PQclear(steps[0].res);
    PQclear(steps[1].res);
    return code;
}

static stint_code by_key(struct list *l, stint_error *err)
{
    struct st_pg_args args;
    stint_code code;

    st_pg_args_init(&args);
    put_page(&args, l);
    code = page_run(l, PG_LIST_KEY, &args, err);
    st_pg_args_clear(&args);
    return code;
}

static stint_code by_walk(struct list *l, int64_t top, int64_t bottom, stint_error *err)
{
    struct st_pg_args args;
    stint_code code;

    st_pg_args_init(&args);
    put_page(&args, l);
    put_windows(&args, top, bottom > 0 ? bottom : 0);
    code = page_run(l, PG_LIST_WALK, &args, err);
    st_pg_args_clear(&args);
    return code;
}

/* The small places.  now_us: what is due by then need not be looked at when only later jobs are
 * asked for. */
static stint_code by_few(struct list *l, int64_t now_us, stint_error *err)
{
    const bool scan = l->states & BIT(ST_SHOW_SUCCEEDED) || (l->req->worker.p && l->states & ENDED_BITS);
    struct st_pg_args args;
    stint_code code;

    st_pg_args_init(&args);
    put_page(&args, l);
    st_pg_bool(&args, (l->states & HELD_BITS) != 0);
    if (l->states & WAITING_BITS)
        st_pg_i64(&args, l->states & BIT(ST_SHOW_PENDING) ? INT64_MIN : now_us);
    else
        st_pg_null(&args, ST_PG_INT8);
    st_pg_bool(&args, !scan && l->states & DEAD_BITS);
    st_pg_bool(&args, scan);
    code = page_run(l, PG_LIST_FEW, &args, err);
    st_pg_args_clear(&args);
    return code;
}

/* ---- which way ----------------------------------------------------------------------------- */

/* What the counts say of the jobs that these names mean. */
struct counts {
    int64_t last, waiting, succeeded, dead, later, now_us;
};

static stint_code probe(struct list *l, struct counts *c, stint_error *err)
{
    struct st_pg_step steps[2] = {{.which = PG_BY_INDEX}, {.which = PG_LIST_PROBE}};
    struct st_pg_args args;
    stint_code code;

    memset(c, 0, sizeof(*c));
    st_pg_args_init(&args);
    st_pg_i64(&args, l->req->now_us);
    put_names(&args, l->req);
    /* those who wait for later are counted only where that matters */
    st_pg_i64(&args, l->states & WAITING_BITS && !(l->states & BIT(ST_SHOW_PENDING)) ? FEW + 1 : 0);
    steps[1].args = &args;
    code = st_pg_run(l->s, steps, 2, false, err);
    if (!code) {
        c->last = st_pg_get_i64(steps[1].res, 0, 0, 0);
        c->waiting = st_pg_get_i64(steps[1].res, 0, 1, 0);
        c->succeeded = st_pg_get_i64(steps[1].res, 0, 2, 0);
        c->dead = st_pg_get_i64(steps[1].res, 0, 3, 0);
        c->later = st_pg_get_i64(steps[1].res, 0, 4, 0);
        c->now_us = st_pg_get_i64(steps[1].res, 0, 5, 0);
    }
    PQclear(steps[0].res);
    PQclear(steps[1].res);
    st_pg_args_clear(&args);
    return code;
}

/* How many jobs the places hold that the asked-for states are in.  What is held is never many. */
static int64_t how_many(const struct list *l, const struct counts *c)
{
    int64_t n = 0;

    if (l->states & WAITING_BITS)
        n += l->states & BIT(ST_SHOW_PENDING) ? c->waiting : c->later;
    if (l->states & BIT(ST_SHOW_SUCCEEDED))
        n += c->succeeded;
    if (l->states & DEAD_BITS)
        n += c->dead;
    return n;
}

/* A worker's jobs are found on a short walk if it did many of late; else there are few, or long
 * ago. */
static stint_code by_worker(struct list *l, int64_t top, const struct counts *c, stint_error *err)
{
    if (l->states & ENDED_BITS && top > WALK_SHORT) {
        if (by_walk(l, top, top - WALK_SHORT, err))
            return err->code;
        if (l->more)
            return STINT_OK;
    }
    return by_few(l, c->now_us, err);
}

static stint_code page(struct list *l, stint_error *err)
{
    struct counts c;
    int64_t top;

    if (l->req->key.p)
        return by_key(l, err);
    if (probe(l, &c, err))
        return err->code;
    top = l->before <= c.last ? l->before : c.last + 1;
    if (l->req->worker.p)
        return by_worker(l, top, &c, err);
    if (how_many(l, &c) <= FEW && l->states != ALL_BITS)
        return by_few(l, c.now_us, err);
    return by_walk(l, top, 0, err);
}

/* ---- by spec hash -------------------------------------------------------------------------- */

struct found {
    struct st_buf keys; /* of jobs with this hash, each with its length in front */
    size_t n;
    int64_t at; /* the number of the last candidate; 0 = there are no more */
};

static stint_code candidate(const struct list *l, const PGresult *r, int row, struct found *f, stint_error *err)
{
    const struct st_slice key = st_pg_get(r, row, 1);
    const unsigned char len = (unsigned char)key.len;
    char hash[ST_HASH_LEN + 1];

    f->at = st_pg_get_i64(r, row, 0, 0);
    if (st_spec_hash(st_pg_get(r, row, 2), st_pg_get(r, row, 3), st_pg_get(r, row, 4), hash, err))
        return err->code;
    if (!st_slice_is(l->req->spec_hash, hash))
        return STINT_OK;
    st_buf_put(&f->keys, &len, 1);
    st_buf_slice(&f->keys, key);
    f->n++;
    return f->keys.failed ? st_fail(err, STINT_ENOMEM, "out of memory for a list of jobs") : STINT_OK;
}

/* The next candidates below f->at. */
static stint_code candidates(const struct list *l, struct found *f, stint_error *err)
{
    struct st_pg_step steps[2] = {{.which = PG_BY_INDEX}, {.which = PG_LIST_SPECS}};
    struct st_pg_args args;
    stint_code code;
    int n = 0;

    st_pg_args_init(&args);
    put_filters(&args, l);
    st_pg_i64(&args, SPECS_N);
    st_pg_i64(&args, SPECS_BYTES);
    put_windows(&args, f->at, 0);
    steps[1].args = &args;
    code = st_pg_run(l->s, steps, 2, false, err);
    st_pg_args_clear(&args);
    if (!code)
        n = PQntuples(steps[1].res);
    for (int i = 0; !code && i < n; i++)
        code = candidate(l, steps[1].res, i, f, err);
    if (!code && n == 0)
        f->at = 0;
    PQclear(steps[0].res);
    PQclear(steps[1].res);
    return code;
}

static stint_code by_ids(struct list *l, const struct found *f, stint_error *err)
{
    struct st_pg_args args;
    stint_code code;

    st_pg_args_init(&args);
    put_page(&args, l);
    st_pg_array(&args, ST_PG_BYTEA);
    for (size_t at = 0; at < f->keys.len; at += 1u + (unsigned char)f->keys.p[at])
        st_pg_item_bytes(&args, ST_SLICE(f->keys.p + at + 1, (unsigned char)f->keys.p[at]));
    st_pg_array_end(&args);
    code = page_run(l, PG_LIST_IDS, &args, err);
    st_pg_args_clear(&args);
    return code;
}

/* Goes on until a page is full or half of the call's time is over; then the cursor says how far it
 * came. */
static stint_code by_hash(struct list *l, int64_t *came_to, stint_error *err)
{
    const int64_t until = st_clock_mono_us() + (int64_t)l->s->base.timeout_ms * ST_MS / 2;
    struct found f = {.n = 0};
    struct counts c;
    size_t read = 0;
    stint_code code = probe(l, &c, err);

    st_buf_init(&f.keys, (size_t)64 << 20);
    f.at = l->before <= c.last ? l->before : c.last + 1;
    while (!code && f.at > 0 && !l->more && st_clock_mono_us() < until) {
        code = candidates(l, &f, err);
        if (code || f.n == read)
            continue;
        read = f.n;
        code = by_ids(l, &f, err);
    }
    *came_to = f.at;
    st_buf_clear(&f.keys);
    return code;
}

/* ---- list ---------------------------------------------------------------------------------- */

static stint_code list(struct list *l, uint64_t *next, stint_error *err)
{
    int64_t came_to = 0;
    stint_code code;

    *next = 0;
    code = l->req->spec_hash.p ? by_hash(l, &came_to, err) : page(l, err);
    if (code)
        return code;
    if (l->more && l->n)
        *next = l->out[l->n - 1].cursor;
    else if (came_to > 0)
        *next = (uint64_t)came_to;
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

stint_code st_pg_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                      uint64_t *next, stint_error *err)
{
    struct list l = {.s = st_pg_of(s), .req = req, .states = states_possible(req)};
    stint_error local = {0};
    stint_code code = STINT_OK;

    *next = 0;
    l.before = req->after && req->after < INT64_MAX ? (int64_t)req->after : INT64_MAX;
    if (l.states)
        code = list(&l, next, &local);
    if (code)
        page_clear(&l);
    *out = l.out;
    *n_out = l.n;
    return st_pg_told(code, &local, err);
}
