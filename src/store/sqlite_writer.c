/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_writer.c - the one thread of a process that writes to a file.
 *
 * Handles put requests into a queue and wait.  The writer takes the write lock, then everything
 * that is queued by that time, runs it in one transaction, commits, and answers all of them: while
 * one commit is being synced, the next group gathers.
 *
 *     QUEUED --lock taken--> BEGUN --committed or rolled back--> DONE
 *     QUEUED --its time is over--> withdrawn by its owner: EAGAIN, nothing was done
 *
 * Invariants:
 *   (1) a request is answered only after the commit that holds its writes;
 *   (2) a request that fails takes nothing with it: its group is rolled back and the requests run
 *       again, each in a transaction of its own (so `run` must be repeatable after `undo`);
 *   (3) a request that has nothing to write takes no lock (probe).
 *
 * Thread: the writer's own, except st_sq_submit.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>

#define GROUP_MAX 1024
#define IDLE_MS   500

static void to_timespec(int64_t us, struct timespec *ts)
{
    ts->tv_sec = (time_t)(us / ST_SEC);
    ts->tv_nsec = (long)(us % ST_SEC) * 1000;
}

/* ---- answering, with the lock held ------------------------------------------------------ */

static void answer(struct st_sq_writer *w, struct st_sq_req *req)
{
    w->n_requests++;
    req->state = SQ_DONE;
    pthread_cond_signal(&req->cond); /* its owner may run, and be gone, once we unlock */
}

static void answer_list(struct st_sq_writer *w, struct st_sq_req *list)
{
    struct st_sq_req *next;

    pthread_mutex_lock(&w->mu);
    for (; list; list = next) {
        next = list->next;
        answer(w, list);
    }
    pthread_mutex_unlock(&w->mu);
}

static void list_fail(struct st_sq_req *list, const stint_error *err)
{
    for (; list; list = list->next) {
        if (list->undo)
            list->undo(list->arg);
        list->code = err->code;
        list->err = *err;
    }
}

/* ---- the queue -------------------------------------------------------------------------- */

static void queue_push(struct st_sq_writer *w, struct st_sq_req *req)
{
    req->next = NULL;
    req->state = SQ_QUEUED;
    *w->tail = req;
    w->tail = &req->next;
}

static void queue_remove(struct st_sq_writer *w, struct st_sq_req *req)
{
    struct st_sq_req **p = &w->head;

    while (*p != req)
        p = &(*p)->next;
    *p = req->next;
    if (w->tail == &req->next)
        w->tail = p;
}

/* At most max of the oldest; they are BEGUN now. */
static struct st_sq_req *queue_take(struct st_sq_writer *w, size_t max)
{
    struct st_sq_req *list, **p;

    pthread_mutex_lock(&w->mu);
    list = w->head;
    for (p = &w->head; *p && max > 0; p = &(*p)->next, max--)
        (*p)->state = SQ_BEGUN;
    w->head = *p;
    *p = NULL;
    if (!w->head)
        w->tail = &w->head;
    pthread_mutex_unlock(&w->mu);
    return list;
}

/* Until when somebody in the queue is willing to wait for the write lock; 0 = nobody. */
static int64_t queue_until(void *arg)
{
    struct st_sq_writer *w = arg;
    int64_t until = 0;

    pthread_mutex_lock(&w->mu);
    for (struct st_sq_req *r = w->head; r; r = r->next)
        if (r->until_us > until)
            until = r->until_us;
    pthread_mutex_unlock(&w->mu);
    return until;
}

/* Answers everything that is queued (or only what is overdue) with err. */
static void queue_fail(struct st_sq_writer *w, const stint_error *err, bool overdue_only)
{
    const int64_t now = st_clock_mono_us();
    struct st_sq_req *req, *next;

    pthread_mutex_lock(&w->mu);
    for (req = w->head; req; req = next) {
        next = req->next;
        if (overdue_only && req->until_us > now)
            continue;
        queue_remove(w, req);
        req->code = err->code;
        req->err = *err;
        answer(w, req);
    }
    pthread_mutex_unlock(&w->mu);
}

/* ---- transactions ----------------------------------------------------------------------- */

static stint_code run_simple(struct st_sq_writer *w, enum st_sq_sql which, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, which, err);

    return st ? st_sq_run(&w->c, st, err) : err->code;
}

/* A file that was deleted or replaced would swallow jobs that nobody will find again. */
static stint_code still_there(struct st_sq_writer *w, stint_error *err)
{
    int moved = 0;

    sqlite3_file_control(w->c.db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (!moved)
        return STINT_OK;
    st_fail(err, STINT_ESTORE, "%s was deleted or replaced while in use", w->path);
    st_err_remedy(err, "put the file back, or start this program again to use the new one");
    return STINT_ESTORE;
}

static stint_code tx_begin(struct st_sq_writer *w, stint_error *err)
{
    bool want_full;

    if (still_there(w, err))
        return err->code;
    pthread_mutex_lock(&w->mu);
    want_full = w->want_full;
    pthread_mutex_unlock(&w->mu);
    if (want_full && !w->full) {
        if (st_sq_exec(&w->c, "PRAGMA synchronous = FULL", err))
            return err->code;
        w->full = true;
    }
    if (run_simple(w, SQ_BEGIN, err))
        return err->code;
    w->lanes.n_base = w->lanes.n;
    return STINT_OK;
}

/* SQLite itself rolls back after some errors (a full disk): then there is nothing to do. */
static void tx_rollback(struct st_sq_writer *w)
{
    stint_error ignored;

    if (!sqlite3_get_autocommit(w->c.db))
        run_simple(w, SQ_ROLLBACK, &ignored);
    st_sq_counts_drop(w);
}

/* An I/O error while committing leaves open whether the commit will be found in the file. */
static stint_code tx_commit(struct st_sq_writer *w, stint_error *err)
{
    if (st_sq_counts_flush(w, err)) {
        tx_rollback(w);
        return err->code;
    }
    if (run_simple(w, SQ_COMMIT, err)) {
        if ((sqlite3_extended_errcode(w->c.db) & 0xff) == SQLITE_IOERR)
            err->code = STINT_EUNKNOWN;
        tx_rollback(w);
        return err->code;
    }
    pthread_mutex_lock(&w->mu);
    w->n_commits++;
    pthread_mutex_unlock(&w->mu);
    return STINT_OK;
}

/* ---- serving ---------------------------------------------------------------------------- */

/* Runs the whole list in the transaction that is open.  false: rolled back, nothing happened. */
static bool group_run(struct st_sq_writer *w, struct st_sq_req *list)
{
    struct st_sq_req *r, *u;

    for (r = list; r; r = r->next) {
        st_err_clear(&r->err);
        r->code = r->run(w, r->arg, &r->err);
        if (!r->code)
            continue;
        tx_rollback(w);
        for (u = list; u; u = u->next)
            if (u->undo)
                u->undo(u->arg);
        return false;
    }
    return true;
}

/* One request in a transaction of its own. */
static void single_serve(struct st_sq_writer *w, struct st_sq_req *req)
{
    stint_error err;

    st_err_clear(&err);
    w->c.until = NULL;
    w->c.until_us = req->until_us;
    if (tx_begin(w, &err))
        list_fail(req, &err);
    else if (group_run(w, req) && tx_commit(w, &err))
        list_fail(req, &err);
    w->c.until = queue_until;
}

static void group_serve(struct st_sq_writer *w)
{
    struct st_sq_req *list, *next;
    stint_error err;

    st_err_clear(&err);
    if (tx_begin(w, &err)) {
        queue_fail(w, &err, err.code == STINT_EAGAIN);
        return;
    }
    list = queue_take(w, GROUP_MAX);
    if (!list) { /* all have withdrawn */
        tx_rollback(w);
        return;
    }
    if (group_run(w, list)) {
        if (tx_commit(w, &err))
            list_fail(list, &err);
    } else if (list->next) {
        for (struct st_sq_req *r = list; r; r = next) {
            next = r->next;
            r->next = NULL;
            single_serve(w, r);
            r->next = next;
        }
    }
    answer_list(w, list);
}

/* The oldest request, if every one in the queue can be probed; it is BEGUN then. */
static struct st_sq_req *queue_take_probe(struct st_sq_writer *w)
{
    struct st_sq_req *r;

    pthread_mutex_lock(&w->mu);
    for (r = w->head; r && r->probe; r = r->next)
        ;
    if (!r && (r = w->head)) {
        queue_remove(w, r);
        r->next = NULL;
        r->state = SQ_BEGUN;
    } else {
        r = NULL;
    }
    pthread_mutex_unlock(&w->mu);
    return r;
}

static void queue_put_back(struct st_sq_writer *w, struct st_sq_req *req)
{
    pthread_mutex_lock(&w->mu);
    req->state = SQ_QUEUED;
    req->next = w->head;
    if (!w->head)
        w->tail = &req->next;
    w->head = req;
    pthread_cond_signal(&req->cond); /* its time counts again */
    pthread_mutex_unlock(&w->mu);
}

/* Answers requests that need no lock, until one does.  false: nothing is left to do. */
static bool probes_serve(struct st_sq_writer *w)
{
    struct st_sq_req *req;
    bool need;

    while ((req = queue_take_probe(w))) {
        need = false;
        st_err_clear(&req->err);
        w->c.until = NULL;
        w->c.until_us = req->until_us;
        req->code = still_there(w, &req->err);
        if (!req->code)
            req->code = req->probe(w, req->arg, &need, &req->err);
        w->c.until = queue_until;
        if (!req->code && need) {
            queue_put_back(w, req);
            return true;
        }
        answer_list(w, req);
    }
    pthread_mutex_lock(&w->mu);
    need = w->head != NULL;
    pthread_mutex_unlock(&w->mu);
    return need;
}

static void release_memory(struct st_sq_writer *w)
{
    ST_SQ_GATE;

    sqlite3_db_release_memory(w->c.db);
    malloc_trim(0);
}

/* Gives memory back once nothing has happened for a while. */
static void idle_wait(struct st_sq_writer *w)
{
    struct timespec ts;

    to_timespec(st_clock_mono_us() + IDLE_MS * ST_MS, &ts);
    if (pthread_cond_timedwait(&w->cond, &w->mu, &ts) != ETIMEDOUT)
        return;
    pthread_mutex_unlock(&w->mu);
    release_memory(w);
    pthread_mutex_lock(&w->mu);
    while (!w->head && !w->stop)
        pthread_cond_wait(&w->cond, &w->mu);
}

static void serve(struct st_sq_writer *w)
{
    ST_SQ_GATE;

    if (probes_serve(w))
        group_serve(w);
}

void *st_sq_writer_main(void *arg)
{
    struct st_sq_writer *w = arg;
    bool work;

    w->c.until = queue_until;
    w->c.until_arg = w;
    for (;;) {
        pthread_mutex_lock(&w->mu);
        while (!w->head && !w->stop)
            idle_wait(w);
        work = w->head != NULL;
        pthread_mutex_unlock(&w->mu);
        if (!work)
            return NULL; /* stopped: no handle is left that could ask */
        serve(w);
    }
}

/* ---- the asking side -------------------------------------------------------------------- */

static stint_code withdraw(struct st_sq_writer *w, struct st_sq_req *req)
{
    queue_remove(w, req);
    st_fail(&req->err, STINT_EAGAIN, "%s is busy: no answer within the time given", w->path);
    st_err_remedy(&req->err, "try again, or wait longer for it (--store-timeout)");
    return STINT_EAGAIN;
}

/* With the lock held.  A request that has begun is waited for, however long it takes. */
static stint_code await(struct st_sq_writer *w, struct st_sq_req *req)
{
    struct timespec ts;

    to_timespec(req->until_us, &ts);
    while (req->state != SQ_DONE) {
        if (req->state == SQ_BEGUN)
            pthread_cond_wait(&req->cond, &w->mu);
        else if (pthread_cond_timedwait(&req->cond, &w->mu, &ts) == ETIMEDOUT && req->state == SQ_QUEUED)
            return withdraw(w, req);
    }
    return req->code;
}

stint_code st_sq_submit(struct st_sq *s, struct st_sq_req *req, stint_error *err)
{
    struct st_sq_writer *w = s->w;
    pthread_condattr_t attr;
    stint_code code;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&req->cond, &attr);
    pthread_condattr_destroy(&attr);
    req->until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;

    pthread_mutex_lock(&w->mu);
    queue_push(w, req);
    pthread_cond_signal(&w->cond);
    code = await(w, req);
    pthread_mutex_unlock(&w->mu);

    pthread_cond_destroy(&req->cond);
    if (code && err)
        *err = req->err;
    return code;
}
