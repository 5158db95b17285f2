/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_worker.c - who works here, and who leads.
 *
 * The leader's row is one: (epoch, worker, until).  The epoch grows whenever leadership is taken by
 * somebody who does not hold it at that moment, so a leader that was away can be told from the one
 * of today.
 *
 * Thread: the writer's; the list is read on the handle's own connection.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>

static void copy_col(char *to, size_t size, struct st_slice s)
{
    const size_t n = s.len < size - 1 ? s.len : st_utf8_cut(s.p, s.len, size - 1);

    if (n)
        memcpy(to, s.p, n);
    to[n] = '\0';
}

/* ---- workers ---------------------------------------------------------------------------- */

struct beat {
    int64_t now_us;
    const struct st_worker_info *w;
};

static stint_code beat_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    const struct beat *b = arg;
    const struct st_worker_info *i = b->w;
    const int64_t now = st_sq_now(b->now_us);
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_WORKER_BEAT, err);

    if (!st)
        return err->code;
    bind_text(st, 1, st_slice_cstr(i->id));
    bind_text(st, 2, st_slice_cstr(i->name));
    bind_text(st, 3, st_slice_cstr(i->host));
    bind_text(st, 4, st_slice_cstr(i->boot_id));
    bind_int(st, 5, i->pid);
    bind_int(st, 6, (int64_t)i->pid_start);
    bind_int(st, 7, i->slots);
    bind_int(st, 8, i->running);
    bind_text(st, 9, st_slice_cstr(i->queues));
    bind_text(st, 10, st_slice_cstr(i->types));
    bind_int(st, 11, i->healthy);
    bind_int(st, 12, i->quiet);
    bind_text(st, 13, st_slice_cstr(i->note));
    bind_int(st, 14, i->started_us ? i->started_us : now);
    bind_int(st, 15, now);
    bind_int(st, 16, now - ST_WORKER_SILENT_US);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    if (sqlite3_changes(w->c.db) != 1)
        return st_fail(err, STINT_EEXISTS, "the worker id %s is in use by another process", i->id);
    return STINT_OK;
}

stint_code st_sq_worker_beat(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err)
{
    struct beat b = {now_us, w};
    struct st_sq_req req = {.run = beat_run, .arg = &b};

    return st_sq_submit(st_sq_of(s), &req, err);
}

static void worker_read(sqlite3_stmt *st, struct st_worker_info *i)
{
    memset(i, 0, sizeof(*i));
    copy_col(i->id, sizeof(i->id), col_slice(st, 0));
    copy_col(i->name, sizeof(i->name), col_slice(st, 1));
    copy_col(i->host, sizeof(i->host), col_slice(st, 2));
    copy_col(i->boot_id, sizeof(i->boot_id), col_slice(st, 3));
    i->pid = (int)col_int(st, 4);
    i->pid_start = (uint64_t)col_int(st, 5);
    i->slots = (int)col_int(st, 6);
    i->running = (int)col_int(st, 7);
    copy_col(i->queues, sizeof(i->queues), col_slice(st, 8));
    copy_col(i->types, sizeof(i->types), col_slice(st, 9));
    i->healthy = col_int(st, 10) != 0;
    i->quiet = col_int(st, 11) != 0;
    copy_col(i->note, sizeof(i->note), col_slice(st, 12));
    i->started_us = col_int(st, 13);
    i->last_beat_us = col_int(st, 14);
    i->epoch = col_int(st, 15);
    i->leader = i->epoch > 0 && col_int(st, 16) > st_clock_real_us();
}

static stint_code list_read(struct st_sq_conn *c, struct st_worker_info **out, size_t *n, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_WORKER_LIST, err);
    struct st_worker_info *grown;
    size_t cap = 0;
    int rc;

    if (!st)
        return err->code;
    while ((rc = st_sq_step(c, st, err)) == SQLITE_ROW) {
        if (*n == cap) {
            cap = cap ? cap * 2 : 8;
            grown = realloc(*out, cap * sizeof(**out));
            if (!grown) {
                sqlite3_reset(st);
                return st_fail(err, STINT_ENOMEM, "out of memory for the workers");
            }
            *out = grown;
        }
        worker_read(st, &(*out)[(*n)++]);
    }
    return rc < 0 ? err->code : STINT_OK;
}

stint_code st_sq_worker_list(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err)
{
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(st_sq_of(s), &local);

    *out = NULL;
    *n_out = 0;
    if (c && !list_read(c, out, n_out, &local))
        return STINT_OK;
    free(*out);
    *out = NULL;
    *n_out = 0;
    if (err)
        *err = local;
    return local.code;
}

struct removal {
    int64_t now_us;
    struct st_slice id;
    bool expire_leases;
    int64_t epoch, if_beat_us;
};

static stint_code beat_check(struct st_sq_writer *w, const struct removal *r, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_WORKER_GET, err);
    bool same;
    int rc;

    if (!st)
        return err->code;
    bind_text(st, 1, r->id);
    rc = st_sq_step(&w->c, st, err);
    if (rc < 0)
        return err->code;
    same = rc == SQLITE_ROW && col_int(st, 0) == r->if_beat_us;
    sqlite3_reset(st);
    if (!same)
        return st_fail(err, STINT_ELOST, "worker %.*s has moved on", (int)r->id.len, r->id.p);
    return STINT_OK;
}

static stint_code leader_read(struct st_sq_conn *c, struct st_lead *out, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_LEADER_GET, err);
    int rc;

    memset(out, 0, sizeof(*out));
    if (!st)
        return err->code;
    rc = st_sq_step(c, st, err);
    if (rc < 0)
        return err->code;
    if (rc == SQLITE_ROW) {
        out->epoch = col_int(st, 0);
        copy_col(out->holder, sizeof(out->holder), col_slice(st, 1));
        out->until_us = col_int(st, 2);
        sqlite3_reset(st);
    }
    return STINT_OK;
}

static stint_code leader_write(struct st_sq_writer *w, const struct st_lead *l, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_LEADER_SET, err);

    if (!st)
        return err->code;
    bind_int(st, 1, l->epoch);
    bind_text(st, 2, st_slice_cstr(l->holder));
    bind_int(st, 3, l->until_us);
    return st_sq_run(&w->c, st, err);
}

/* A process that is gone holds nothing any more: neither jobs nor the lead. */
static stint_code expire_all(struct st_sq_writer *w, struct st_slice id, int64_t now, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_WORKER_EXPIRE, err);
    struct st_lead l;

    if (!st)
        return err->code;
    bind_text(st, 1, id);
    bind_int(st, 2, now);
    if (st_sq_run(&w->c, st, err) || leader_read(&w->c, &l, err))
        return err->code;
    if (!st_slice_is(id, l.holder) || l.until_us <= now)
        return STINT_OK;
    l.until_us = now;
    return leader_write(w, &l, err);
}

static stint_code remove_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    const struct removal *r = arg;
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_WORKER_DEL, err);

    if (!st || st_sq_epoch_check(w, r->epoch, err))
        return err->code;
    if (r->if_beat_us > 0 && beat_check(w, r, err))
        return err->code;
    bind_text(st, 1, r->id);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    return r->expire_leases ? expire_all(w, r->id, st_sq_now(r->now_us), err) : STINT_OK;
}

stint_code st_sq_worker_remove(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                               int64_t epoch, int64_t if_beat_us, stint_error *err)
{
    struct removal r = {now_us, id, expire_leases, epoch, if_beat_us};
    struct st_sq_req req = {.run = remove_run, .arg = &r};

    return st_sq_submit(st_sq_of(s), &req, err);
}

/* ---- the lead --------------------------------------------------------------------------- */

struct lead {
    const struct st_lead_req *req;
    struct st_lead *out;
};

stint_code st_sq_epoch_check(struct st_sq_writer *w, int64_t epoch, stint_error *err)
{
    struct st_lead l;

    if (epoch == 0)
        return STINT_OK;
    if (leader_read(&w->c, &l, err))
        return err->code;
    if (l.epoch != epoch)
        return st_fail(err, STINT_ELOST, "epoch %lld leads no longer: it is %lld now", (long long)epoch,
                       (long long)l.epoch);
    return STINT_OK;
}

/* Reads who leads.  *mine, *free as of now. */
static stint_code lead_look(struct st_sq_writer *w, struct lead *l, int64_t now, bool *mine, bool *free_,
                            stint_error *err)
{
    if (leader_read(&w->c, l->out, err))
        return err->code;
    *free_ = l->out->until_us <= now;
    *mine = !*free_ && st_slice_is(l->req->worker, l->out->holder);
    return STINT_OK;
}

static stint_code lead_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct lead *l = arg;
    const int64_t now = st_sq_now(l->req->now_us);
    bool mine = false, free_ = false;

    if (lead_look(w, l, now, &mine, &free_, err))
        return err->code;
    if (l->req->release ? !mine : !mine && !free_)
        return STINT_OK;
    if (l->req->release) {
        l->out->until_us = now;
        l->out->leader = false;
    } else {
        l->out->epoch += mine ? 0 : 1;
        l->out->until_us = now + l->req->term_us;
        l->out->leader = true;
        copy_col(l->out->holder, sizeof(l->out->holder), l->req->worker);
    }
    return leader_write(w, l->out, err);
}

static stint_code lead_probe(struct st_sq_writer *w, void *arg, bool *need, stint_error *err)
{
    struct lead *l = arg;
    bool mine = false, free_ = false;

    if (lead_look(w, l, st_sq_now(l->req->now_us), &mine, &free_, err))
        return err->code;
    *need = mine || (free_ && !l->req->release);
    return STINT_OK;
}

stint_code st_sq_lead(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err)
{
    struct lead l = {req, out};
    struct st_sq_req r = {.run = lead_run, .probe = lead_probe, .arg = &l};

    memset(out, 0, sizeof(*out));
    return st_sq_submit(st_sq_of(s), &r, err);
}
