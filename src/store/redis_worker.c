/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_worker.c - who works here, and who leads.
 *
 *     stint:{stint}:workers   HASH   worker id -> its row: last beat, process, and what it says of itself, a line each
 *     stint:{stint}:leader    HASH   epoch, worker, until (us)
 *     stint:{stint}:layout    STRING the version of our keys: there since the first beat
 *
 * The three share a slot, so that a row is taken away under the epoch of the leader who asks.  The epoch grows whenever
 * leadership is taken by somebody who does not hold it at that moment.
 *
 * A worker whose row is gone between two beats, and the mark of the store with it, has lost all jobs too: somebody has
 * emptied the server (FLUSHALL), or it came back without its data.  That is said once, loudly.
 *
 * What asynq's and runqy's own tools show of a worker is written beside it: see redis_asynq.c.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "store/redis_look.h"

#define ROW_MAX 8192

/* ---- a row as text -------------------------------------------------------------------------------------- */

/* One line; whatever would end it early becomes a blank. */
static void put_line(struct st_buf *b, const char *text)
{
    for (; *text; text++)
        st_buf_putc(b, *text == '\n' ? ' ' : *text);
    st_buf_putc(b, '\n');
}

static void put_number(struct st_buf *b, int64_t n)
{
    st_buf_printf(b, "%lld\n", (long long)n);
}

/* Which process: compared by the script as it is. */
static void put_process(struct st_buf *b, const struct st_worker_info *w)
{
    const size_t at = b->len;

    st_buf_printf(b, "%d\t%llu\t%s\t%s", w->pid, (unsigned long long)w->pid_start, w->boot_id, w->host);
    for (size_t i = at; i < b->len; i++)
        if (b->p[i] == '\n')
            b->p[i] = ' ';
}

static void put_rest(struct st_buf *b, const struct st_worker_info *w)
{
    put_line(b, w->name);
    put_number(b, w->slots);
    put_number(b, w->running);
    put_line(b, w->queues);
    put_line(b, w->types);
    put_number(b, w->healthy);
    put_number(b, w->quiet);
    put_number(b, w->started_us);
    put_line(b, w->note);
}

/* The next part of a text, up to the separator or its end. */
static struct st_slice part(struct st_slice *left, char until)
{
    const char *end = left->len ? memchr(left->p, until, left->len) : NULL;
    const struct st_slice got = ST_SLICE(left->p, end ? (size_t)(end - left->p) : left->len);

    left->p += got.len + (end ? 1 : 0);
    left->len -= got.len + (end ? 1 : 0);
    return got;
}

static int64_t part_int(struct st_slice *left, char until)
{
    int64_t n = 0;

    return st_parse_i64(part(left, until), &n) ? n : 0;
}

static void copy(struct st_slice from, char *to, size_t size)
{
    const size_t n = from.len < size ? from.len : st_utf8_cut(from.p, from.len, size - 1);

    if (n)
        memcpy(to, from.p, n);
    to[n] = '\0';
}

void st_redis_worker_row(struct st_slice id, struct st_slice row, struct st_worker_info *w)
{
    memset(w, 0, sizeof(*w));
    copy(id, w->id, sizeof(w->id));
    w->last_beat_us = part_int(&row, '\n');
    w->pid = (int)part_int(&row, '\t');
    w->pid_start = (uint64_t)part_int(&row, '\t');
    copy(part(&row, '\t'), w->boot_id, sizeof(w->boot_id));
    copy(part(&row, '\n'), w->host, sizeof(w->host));
    copy(part(&row, '\n'), w->name, sizeof(w->name));
    w->slots = (int)part_int(&row, '\n');
    w->running = (int)part_int(&row, '\n');
    copy(part(&row, '\n'), w->queues, sizeof(w->queues));
    copy(part(&row, '\n'), w->types, sizeof(w->types));
    w->healthy = part_int(&row, '\n') != 0;
    w->quiet = part_int(&row, '\n') != 0;
    w->started_us = part_int(&row, '\n');
    copy(part(&row, '\n'), w->note, sizeof(w->note));
}

/* ---- beats ---------------------------------------------------------------------------------------------- */

static void say_emptied(struct st_redis_store *s, const char *id)
{
    st_log(ST_LOG_ERROR, "store.emptied", ST_F("where", st_redis_where(s->r)), ST_F("worker", id),
           ST_F("effect", "every job that was there is gone"),
           ST_F("remedy",
                "somebody has run FLUSHALL or FLUSHDB, or the server came back without its data: see `stint doctor`"));
}

static stint_code beat_answer(struct st_redis_store *s, const struct st_worker_info *w, const redisReply *r,
                              stint_error *err)
{
    struct st_redis_care *care = st_redis_care(s, err);

    if (!care)
        return err->code;
    if (st_redis_reply_fail(s->r, r, err))
        return err->code;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3)
        return st_fail(err, STINT_ESTORE, "a beat got an answer that makes no sense");
    if (st_redis_int(r->element[0], -1) < 0)
        return st_fail(err, STINT_EEXISTS, "the worker id %s is in use by another process", w->id);
    if (care->beaten && !st_redis_int(r->element[0], 1) && !st_redis_int(r->element[1], 1))
        say_emptied(s, w->id);
    care->beaten = true;
    return STINT_OK;
}

/* Who does not say when it started did so at its first beat here. */
static struct st_worker_info with_start(struct st_redis_store *s, const struct st_worker_info *w, int64_t now_us)
{
    struct st_worker_info self = *w;
    stint_error err = {0};
    struct st_redis_care *care = self.started_us ? NULL : st_redis_care(s, &err);

    if (care && !care->since_us)
        care->since_us = now_us ? now_us : st_redis_store_now(s);
    if (care)
        self.started_us = care->since_us;
    return self;
}

stint_code st_redis_op_worker_beat(struct st_store *store, int64_t now_us, const struct st_worker_info *given,
                                   stint_error *err)
{
    struct st_redis_store *s = st_redis_of(store);
    const struct st_worker_info self = with_start(s, given, now_us), *w = &self;
    const struct st_slice keys[] = {st_slice_cstr(ST_REDIS_WORKERS), st_slice_cstr(ST_REDIS_LAYOUT)};
    char now[24], silent[24], version[12];
    struct st_buf process, rest;
    struct st_redis_batch b;
    stint_error local = {0};
    stint_code code;

    snprintf(now, sizeof(now), "%lld", (long long)now_us);
    snprintf(silent, sizeof(silent), "%lld", (long long)ST_WORKER_SILENT_US);
    snprintf(version, sizeof(version), "%d", ST_REDIS_LAYOUT_VERSION);
    st_buf_init(&process, ROW_MAX);
    st_buf_init(&rest, ROW_MAX);
    put_process(&process, w);
    put_rest(&rest, w);
    st_redis_batch_init(&b);
    st_redis_add_script(&b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_worker_beat), keys, 2,
                        (const struct st_slice[]){st_slice_cstr(w->id), st_slice_cstr(now), st_slice_cstr(silent),
                                                  st_buf_view(&process), st_buf_view(&rest), st_slice_cstr(version)},
                        6);
    code = process.failed || rest.failed ? st_fail(&local, STINT_ENOMEM, "no memory for a worker's row")
                                         : st_redis_run(s->r, &b, &local);
    if (!code)
        code = beat_answer(s, w, st_redis_reply(&b, 0), &local);
    st_redis_batch_clear(&b);
    st_buf_clear(&process);
    st_buf_clear(&rest);
    if (!code && !now_us) {
        st_redis_asynq_beat(s, w);
    }
    return st_redis_told(code, &local, err);
}

/* ---- the list ------------------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct st_worker_info *)a)->id, ((const struct st_worker_info *)b)->id);
}

static void mark_leader(struct st_worker_info *list, size_t n, const redisReply *leader, int64_t now_us)
{
    const struct st_slice holder = st_redis_text(leader->element[1]);
    const bool live = st_redis_int(leader->element[2], 0) > now_us;

    for (size_t i = 0; i < n; i++) {
        list[i].leader = live && st_slice_is(holder, list[i].id);
        list[i].epoch = list[i].leader ? st_redis_int(leader->element[0], 0) : 0;
    }
}

static stint_code list_read(struct st_redis_store *s, const struct st_redis_batch *b, struct st_worker_info **out,
                            size_t *n_out, stint_error *err)
{
    const redisReply *rows = st_redis_reply(b, 0), *leader = st_redis_reply(b, 1), *time = st_redis_reply(b, 2);
    const size_t n = rows && rows->type == REDIS_REPLY_ARRAY ? rows->elements / 2 : 0;

    if (st_redis_reply_fail(s->r, rows, err) || st_redis_reply_fail(s->r, leader, err))
        return err->code;
    *out = calloc(n + 1, sizeof(**out));
    if (!*out)
        return st_fail(err, STINT_ENOMEM, "out of memory for the workers");
    for (size_t i = 0; i < n; i++)
        st_redis_worker_row(st_redis_text(rows->element[2 * i]), st_redis_text(rows->element[2 * i + 1]), &(*out)[i]);
    qsort(*out, n, sizeof(**out), by_id);
    if (leader->type == REDIS_REPLY_ARRAY && leader->elements == 3)
        mark_leader(*out, n, leader, st_redis_time(time));
    *n_out = n;
    return STINT_OK;
}

stint_code st_redis_op_worker_list(struct st_store *store, struct st_worker_info **out, size_t *n_out, stint_error *err)
{
    struct st_redis_store *s = st_redis_of(store);
    struct st_redis_batch b;
    stint_error local = {0};
    stint_code code;

    *out = NULL;
    *n_out = 0;
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ, "HGETALL", ST_REDIS_WORKERS, NULL);
    st_redis_addv(&b, ST_REDIS_READ, "HMGET", ST_REDIS_LEADER, "epoch", "worker", "until", NULL);
    st_redis_addv(&b, ST_REDIS_READ, "TIME", NULL);
    code = st_redis_run(s->r, &b, &local);
    if (!code)
        code = list_read(s, &b, out, n_out, &local);
    st_redis_batch_clear(&b);
    return st_redis_told(code, &local, err);
}

/* ---- taking one away ------------------------------------------------------------------------------------ */

static stint_code remove_answer(struct st_redis_store *s, const redisReply *r, struct st_slice id, stint_error *err)
{
    if (st_redis_reply_fail(s->r, r, err))
        return err->code;
    switch (st_redis_int(r, 0)) {
    case -1:
        return st_fail(err, STINT_ELOST, "this leader's time is over");
    case -2:
        return st_fail(err, STINT_ELOST, "worker %.*s has moved on", (int)id.len, id.p);
    default:
        return STINT_OK;
    }
}

static stint_code take_row(struct st_redis_store *s, struct st_slice id, bool gone, int64_t epoch, int64_t if_beat_us,
                           stint_error *err)
{
    const struct st_slice keys[] = {st_slice_cstr(ST_REDIS_WORKERS), st_slice_cstr(ST_REDIS_LEADER)};
    char epoch_text[24], beat[24];
    struct st_redis_batch b;
    struct st_worker_info *w;
    stint_code code;

    snprintf(epoch_text, sizeof(epoch_text), "%lld", (long long)epoch);
    snprintf(beat, sizeof(beat), "%lld", (long long)if_beat_us);
    st_redis_batch_init(&b);
    st_redis_add(&b, ST_REDIS_READ, keys[0], (const struct st_slice[]){st_slice_cstr("HGET"), keys[0], id}, 3);
    st_redis_add_script(
        &b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_worker_remove), keys, 2,
        (const struct st_slice[]){id, st_slice_cstr(epoch_text), st_slice_cstr(beat), st_slice_cstr(gone ? "1" : "0")},
        4);
    code = st_redis_run(s->r, &b, err);
    if (!code)
        code = remove_answer(s, st_redis_reply(&b, 1), id, err);
    w = code ? NULL : malloc(sizeof(*w));
    if (w && st_redis_text(st_redis_reply(&b, 0)).p) {
        st_redis_worker_row(id, st_redis_text(st_redis_reply(&b, 0)), w);
        st_redis_asynq_gone(s, w);
    }
    free(w);
    st_redis_batch_clear(&b);
    return code;
}

/* The row first: whoever may not take it must not end the leases of one that lives. */
stint_code st_redis_op_worker_remove(struct st_store *store, int64_t now_us, struct st_slice id, bool expire_leases,
                                     int64_t epoch, int64_t if_beat_us, stint_error *err)
{
    struct st_redis_store *s = st_redis_of(store);
    stint_error local = {0};
    stint_code code = take_row(s, id, expire_leases, epoch, if_beat_us, &local);

    if (!code && expire_leases)
        code = st_redis_expire_leases(s, now_us, id, &local);
    return st_redis_told(code, &local, err);
}

/* ---- the lead ------------------------------------------------------------------------------------------- */

static stint_code lead_read(struct st_redis_store *s, const redisReply *r, struct st_lead *out, stint_error *err)
{
    if (st_redis_reply_fail(s->r, r, err))
        return err->code;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 4)
        return st_fail(err, STINT_ESTORE, "the election got an answer that makes no sense");
    out->leader = st_redis_int(r->element[0], 0) == 1;
    out->epoch = st_redis_int(r->element[1], 0);
    out->until_us = st_redis_int(r->element[2], 0);
    copy(st_redis_text(r->element[3]), out->holder, sizeof(out->holder));
    return STINT_OK;
}

stint_code st_redis_op_lead(struct st_store *store, const struct st_lead_req *req, struct st_lead *out,
                            stint_error *err)
{
    struct st_redis_store *s = st_redis_of(store);
    const struct st_slice key = st_slice_cstr(ST_REDIS_LEADER);
    char now[24], term[24];
    struct st_redis_batch b;
    stint_error local = {0};
    stint_code code;

    memset(out, 0, sizeof(*out));
    snprintf(now, sizeof(now), "%lld", (long long)req->now_us);
    snprintf(term, sizeof(term), "%lld", (long long)req->term_us);
    st_redis_batch_init(&b);
    st_redis_add_script(&b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_lead), &key, 1,
                        (const struct st_slice[]){st_slice_cstr(now), req->worker, st_slice_cstr(term),
                                                  st_slice_cstr(req->release ? "1" : "0")},
                        4);
    code = st_redis_run(s->r, &b, &local);
    if (!code)
        code = lead_read(s, st_redis_reply(&b, 0), out, &local);
    st_redis_batch_clear(&b);
    return st_redis_told(code, &local, err);
}

stint_code st_redis_epoch_check(struct st_redis_store *s, int64_t epoch, stint_error *err)
{
    struct st_redis_batch b;
    stint_code code;

    if (epoch == 0)
        return STINT_OK;
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ, "HGET", ST_REDIS_LEADER, "epoch", NULL);
    code = st_redis_run(s->r, &b, err);
    if (!code)
        code = st_redis_reply_fail(s->r, st_redis_reply(&b, 0), err);
    if (!code && st_redis_int(st_redis_reply(&b, 0), 0) != epoch)
        code = st_fail(err, STINT_ELOST, "this leader's time is over");
    st_redis_batch_clear(&b);
    return code;
}
