/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_steer.c - cancel, retry, discard, pause; and which jobs are asked to stop.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_int.h"

#define CALL_IDS 500

/* ---- ids by queue ------------------------------------------------------------------------------------------------ */

/* One script over ids, whatever queues they are in; answer(i) is called with each one's part of the answer.  Unknown ones: ENOTFOUND. */
struct steering {
    struct st_redis_store *s;
    const struct st_slice *ids;
    size_t n;
    stint_code *verdicts;
    struct st_slice *queues;
    size_t *reply, *place;
};

typedef stint_code (*answer_fn)(void *arg, size_t i, const redisReply *r, stint_error *err);

static void call_add(struct steering *w, enum st_redis_lua which, int64_t now_us, bool clock, size_t from, bool *in)
{
    struct st_redis_args args;
    size_t n = 0, reply;

    st_redis_args_init(&args);
    if (clock)
        st_redis_arg_num(&args, now_us);
    for (size_t i = from; i < w->n && n < CALL_IDS; i++)
        if (!in[i] && w->queues[i].p && st_slice_eq(w->queues[i], w->queues[from])) {
            st_redis_arg(&args, w->ids[i]);
            w->place[i] = n++ + clock;
            in[i] = true;
            w->reply[i] = w->s->b.n;
        }
    reply = st_redis_add_lua(w->s, ST_REDIS_WRITE, which, w->queues[from], &args, 0);
    (void)reply;
    st_redis_args_clear(&args);
}

static stint_code steer_in(struct steering *w, enum st_redis_lua which, int64_t now_us, bool clock, bool *in,
                           answer_fn fn, void *arg, stint_error *err)
{
    struct st_redis_store *s = w->s;

    if (st_redis_locate(s, w->ids, NULL, w->n, w->queues, err))
        return err->code;
    st_redis_batch_reset(&s->b);
    for (size_t i = 0; i < w->n; i++)
        if (!in[i] && w->queues[i].p)
            call_add(w, which, now_us, clock, i, in);
    if (s->b.n && st_redis_go(s, err))
        return err->code;
    for (size_t i = 0; i < w->n; i++) {
        const redisReply *r = in[i] ? st_redis_reply(&s->b, w->reply[i]) : NULL;

        w->verdicts[i] = STINT_ENOTFOUND;
        if (r && w->place[i] < r->elements && fn(arg, i, r->element[w->place[i]], err))
            return err->code;
    }
    return STINT_OK;
}

static stint_code steer(struct st_redis_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                        enum st_redis_lua which, int64_t now_us, bool clock, answer_fn fn, void *arg, stint_error *err)
{
    struct steering w = {.s = s, .ids = ids, .n = n, .verdicts = verdicts};
    bool *in = calloc(n + 1, sizeof(*in));
    stint_code code;

    w.queues = calloc(n + 1, sizeof(*w.queues));
    w.reply = calloc(2 * (n + 1), sizeof(*w.reply));
    if (in && w.queues && w.reply) {
        w.place = w.reply + n + 1;
        code = steer_in(&w, which, now_us, clock, in, fn, arg, err);
    } else {
        code = st_fail(err, STINT_ENOMEM, "no memory for %zu jobs", n);
    }
    free(in);
    free(w.queues);
    free(w.reply);
    return code;
}

/* ---- cancel ---------------------------------------------------------------------------------------------------------- */

struct cancelling {
    stint_code *verdicts;
    bool *asked;
};

static stint_code cancel_answer(void *arg, size_t i, const redisReply *r, stint_error *err)
{
    struct cancelling *c = arg;
    const int64_t what = st_redis_int(r, 0);

    (void)err;
    c->verdicts[i] = what == 0 ? STINT_ENOTFOUND : what == 3 ? STINT_ESTATE : STINT_OK;
    if (c->asked)
        c->asked[i] = what == 2;
    return STINT_OK;
}

/* To whoever runs them, us or a stock server: a hint, the flag is the truth. */
static void cancel_tell(struct st_redis_store *s, const struct st_slice *ids, size_t n, const bool *asked)
{
    stint_error err = {0};

    st_redis_batch_reset(&s->b);
    for (size_t i = 0; i < n; i++) {
        const struct st_slice argv[] = {st_slice_cstr("PUBLISH"), st_slice_cstr(ST_REDIS_CANCEL), ids[i]};

        if (asked[i])
            st_redis_add(&s->b, ST_REDIS_READ, ST_NONE, argv, 3);
    }
    if (s->b.n)
        st_redis_run(s->r, &s->b, &err);
}

stint_code st_redis_op_cancel(struct st_store *base, int64_t now_us, const struct st_slice *ids, size_t n,
                              stint_code *verdicts, bool *asked, stint_error *err)
{
    struct st_redis_store *s = st_redis_of(base);
    bool *told = calloc(n + 1, sizeof(*told));
    struct cancelling c = {verdicts, told};
    stint_error local = {0};
    stint_code code;

    err = err ? err : &local;
    if (!told)
        return st_fail(err, STINT_ENOMEM, "no memory for %zu jobs", n);
    code = steer(s, ids, n, verdicts, ST_LUA_cancel, now_us, true, cancel_answer, &c, err);
    if (!code)
        cancel_tell(s, ids, n, told);
    for (size_t i = 0; !code && asked && i < n; i++)
        asked[i] = told[i];
    free(told);
    return code;
}

/* ---- retry and discard --------------------------------------------------------------------------------------------------- */

static stint_code retry_answer(void *arg, size_t i, const redisReply *r, stint_error *err)
{
    static const stint_code codes[] = {STINT_ENOTFOUND, STINT_OK, STINT_ESTATE, STINT_EEXISTS};
    const int64_t what = st_redis_int(r, 0);

    (void)err;
    ((stint_code *)arg)[i] = what >= 0 && what < 4 ? codes[what] : STINT_ESTATE;
    return STINT_OK;
}

stint_code st_redis_op_retry(struct st_store *base, int64_t now_us, const struct st_slice *ids, size_t n,
                             stint_code *verdicts, stint_error *err)
{
    stint_error local = {0};

    return steer(st_redis_of(base), ids, n, verdicts, ST_LUA_revive, now_us, true, retry_answer, verdicts,
                 err ? err : &local);
}

static bool file_add(struct st_pruned *p, struct st_slice file)
{
    char **files = realloc(p->files, (p->n_files + 1) * sizeof(*files));

    if (!files)
        return false;
    p->files = files;
    files[p->n_files] = st_slice_dup(file);
    return files[p->n_files] && ++p->n_files;
}

stint_code st_redis_pruned_add(struct st_pruned *out, struct st_slice ref, struct st_slice runs, stint_error *err)
{
    struct st_redis_run run;
    bool ok = !ref.len || file_add(out, ref);

    while (ok && st_redis_run_next(&runs, &run))
        ok = !run.log.len || file_add(out, run.log);
    return ok ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory for the names of files");
}

struct discarding {
    stint_code *verdicts;
    struct st_pruned *out;
};

static stint_code discard_answer(void *arg, size_t i, const redisReply *r, stint_error *err)
{
    struct discarding *d = arg;

    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3) {
        d->verdicts[i] = st_redis_int(r, 0) == 2 ? STINT_ESTATE : STINT_ENOTFOUND;
        return STINT_OK;
    }
    d->verdicts[i] = STINT_OK;
    d->out->n++;
    return st_redis_pruned_add(d->out, st_redis_text(r->element[1]), st_redis_text(r->element[2]), err);
}

stint_code st_redis_op_discard(struct st_store *base, const struct st_slice *ids, size_t n, stint_code *verdicts,
                               struct st_pruned *out, stint_error *err)
{
    struct discarding d = {verdicts, out};
    stint_error local = {0};
    stint_code code;

    memset(out, 0, sizeof(*out));
    err = err ? err : &local;
    code = steer(st_redis_of(base), ids, n, verdicts, ST_LUA_discard, 0, false, discard_answer, &d, err);
    if (code)
        st_pruned_clear(out);
    return code;
}

/* ---- pause ----------------------------------------------------------------------------------------------------------------- */

stint_code st_redis_op_pause(struct st_store *base, int64_t now_us, struct st_slice queue, bool paused,
                             stint_error *err)
{
    struct st_redis_store *s = st_redis_of(base);
    struct st_redis_key key;
    const struct st_slice name = st_redis_key(&key, queue, "paused");
    const int64_t now = now_us ? now_us : st_clock_real_us() + s->clock_off_us;
    char text[ST_REDIS_NUM];
    const struct st_slice set[] = {st_slice_cstr("SET"), name, st_redis_num(text, now / ST_SEC), st_slice_cstr("NX")};
    const struct st_slice del[] = {st_slice_cstr("DEL"), name};
    const struct st_slice add[] = {st_slice_cstr("SADD"), st_slice_cstr(ST_REDIS_QUEUES), queue};
    stint_error local = {0};

    err = err ? err : &local;
    st_redis_batch_reset(&s->b);
    if (paused) {
        st_redis_add(&s->b, ST_REDIS_WRITE, add[1], add, 3);
        st_redis_add(&s->b, ST_REDIS_WRITE, name, set, 4);
    } else { /* alone: a server whose memory is used up would refuse what adds */
        st_redis_add(&s->b, ST_REDIS_WRITE, name, del, 2);
    }
    if (st_redis_go(s, err))
        return err->code;
    if (paused)
        st_redis_queues_add(s, queue);
    return STINT_OK;
}

/* ---- who is asked to stop ------------------------------------------------------------------------------------------------------ */

struct flagging {
    struct st_redis_store *s;
    struct st_slice worker;
    char (*ids)[ST_ID_MAX + 1];
    size_t max, n;
};

/* Those of one queue.  Entries whose job is no longer held by anybody are swept. */
static stint_code flagged_in(struct flagging *w, struct st_slice queue, const struct st_slice *ids, size_t n,
                             stint_error *err)
{
    struct st_redis_store *s = w->s;
    struct st_redis_key key;
    size_t dead = 0;
    struct st_slice *sweep = calloc(n + 2, sizeof(*sweep));

    if (!sweep)
        return st_fail(err, STINT_ENOMEM, "no memory for %zu jobs", n);
    st_redis_batch_reset(&s->b);
    for (size_t i = 0; i < n; i++) {
        const struct st_slice argv[] = {st_slice_cstr("HMGET"), st_redis_task_key(&key, queue, ids[i]),
                                        st_slice_cstr("stint"), st_slice_cstr("state")};

        st_redis_add(&s->b, ST_REDIS_READ, argv[1], argv, 4);
    }
    if (st_redis_go_each(s, err)) {
        free(sweep);
        return err->code;
    }
    for (size_t i = 0; i < n; i++) {
        const redisReply *r = st_redis_reply(&s->b, i);
        struct st_redis_task t;

        if (r->elements != 2 || !st_slice_is(st_redis_text(r->element[1]), "active")) {
            sweep[2 + dead++] = ids[i];
        } else if (st_redis_task_unpack(st_redis_text(r->element[0]), &t) && st_slice_is(w->worker, t.worker) &&
                   w->n < w->max && ids[i].len <= ST_ID_MAX) {
            memset(w->ids[w->n], 0, sizeof(w->ids[0]));
            memcpy(w->ids[w->n++], ids[i].p, ids[i].len);
        }
    }
    st_redis_batch_reset(&s->b);
    sweep[0] = st_slice_cstr("SREM");
    sweep[1] = st_redis_own_key(&key, queue, "cancel");
    if (dead)
        st_redis_add(&s->b, ST_REDIS_READ, sweep[1], sweep, dead + 2);
    free(sweep);
    return dead ? st_redis_go(s, err) : STINT_OK;
}

/* The ids asked to stop in each queue, by reference to what args keeps. */
static stint_code flags_read(struct flagging *w, struct st_redis_args *args, size_t *per_queue, stint_error *err)
{
    struct st_redis_store *s = w->s;

    st_redis_batch_reset(&s->b);
    for (size_t q = 0; q < s->queues.n; q++) {
        struct st_redis_key key;
        const struct st_slice argv[] = {st_slice_cstr("SMEMBERS"),
                                        st_redis_own_key(&key, st_slice_cstr(s->queues.p[q]), "cancel")};

        st_redis_add(&s->b, ST_REDIS_READ, argv[1], argv, 2);
    }
    if (s->b.n && st_redis_go_each(s, err))
        return err->code;
    for (size_t q = 0; q < s->queues.n; q++) {
        const redisReply *r = st_redis_reply(&s->b, q);

        per_queue[q] = r->elements;
        for (size_t i = 0; i < r->elements; i++)
            st_redis_arg_copy(args, st_redis_text(r->element[i]).p, st_redis_text(r->element[i]).len);
    }
    return args->failed ? st_fail(err, STINT_ENOMEM, "no memory for the jobs to stop") : STINT_OK;
}

stint_code st_redis_op_flagged(struct st_store *base, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                               size_t *n_out, stint_error *err)
{
    struct flagging w = {.s = st_redis_of(base), .worker = worker, .ids = ids, .max = max};
    struct st_redis_args args;
    size_t *per_queue = NULL, at = 0;
    stint_error local = {0};
    stint_code code;

    err = err ? err : &local;
    *n_out = 0;
    if (st_redis_queues_read(w.s, false, err))
        return err->code;
    per_queue = calloc(w.s->queues.n + 1, sizeof(*per_queue));
    if (!per_queue)
        return st_fail(err, STINT_ENOMEM, "no memory for the jobs to stop");
    st_redis_args_init(&args);
    code = flags_read(&w, &args, per_queue, err);
    for (size_t q = 0; !code && q < w.s->queues.n; q++) {
        if (per_queue[q])
            code = flagged_in(&w, st_slice_cstr(w.s->queues.p[q]), args.p + at, per_queue[q], err);
        at += per_queue[q];
    }
    *n_out = w.n;
    st_redis_args_clear(&args);
    free(per_queue);
    return code;
}
