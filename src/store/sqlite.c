/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite.c - the SQLite store: opening and closing a handle, and its table of operations.
 *
 * The files around it:
 *     sqlite_file     the file and the registry of writers      sqlite_writer   the writer's thread
 *     sqlite_conn     a connection                              sqlite_sql.inc  every statement
 *     sqlite_schema   tables and versions                       sqlite_lane     lanes, counts
 *     sqlite_row      changes of state that are shared          sqlite_tx       others write too
 *     sqlite_{enqueue,claim,acquire,finish,reap,steer,prune,worker}   what the writer runs
 *     sqlite_{read,queues,wait,backup,check}                          what a handle does itself
 *
 * Thread: a handle belongs to one thread at a time.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- the read connection ---------------------------------------------------------------- */

struct st_sq_conn *st_sq_reader(struct st_sq *s, stint_error *err)
{
    ST_SQ_GATE; /* also for callers who are not inside: a wait, which sleeps */

    s->rd.until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    if (s->rd.db)
        return &s->rd;
    if (st_sq_conn_open(&s->rd, s->w->path, err) ||
        st_sq_exec(&s->rd, "PRAGMA cache_size = -256; PRAGMA query_only = ON; PRAGMA temp_store = MEMORY", err)) {
        st_sq_conn_close(&s->rd);
        return NULL;
    }
    return &s->rd;
}

/* ---- closing ---------------------------------------------------------------------------- */

static void sq_close(struct st_store *store)
{
    struct st_sq *s = st_sq_of(store);

    st_sq_conn_close(&s->rd);
    st_sq_tx_free(s->tx);
    st_sq_lanes_clear(&s->lanes);
    if (s->inotify_fd >= 0)
        close(s->inotify_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    if (s->w)
        st_sq_writer_put(s->w);
    free(s);
}

static int64_t sq_now(struct st_store *s)
{
    (void)s;
    return st_clock_real_us();
}

static const struct st_store_ops sqlite_ops = {
    .name = "sqlite",
    .caps = ST_CAP_PRIORITY | ST_CAP_TYPE_FILTER | ST_CAP_DUE_ORDER | ST_CAP_UNIQUE_FOREVER | ST_CAP_BATCH_ATOMIC |
            ST_CAP_USER_TX | ST_CAP_FENCE_FOREIGN,
    .enqueue = st_sq_enqueue,
    .enqueue_tx = st_sq_enqueue_tx,
    .claim = st_sq_claim,
    .exchange = st_sq_exchange,
    .acquire = st_sq_acquire,
    .acquire_many = st_sq_acquire_many,
    .renew = st_sq_renew,
    .finish = st_sq_finish,
    .transact = st_sq_transact,
    .reap = st_sq_reap,
    .disown = st_sq_disown,
    .flagged = st_sq_flagged,
    .cancel = st_sq_cancel,
    .retry = st_sq_retry,
    .discard = st_sq_discard,
    .pause = st_sq_pause,
    .get = st_sq_get,
    .list = st_sq_list,
    .queues = st_sq_queues,
    .next_due = st_sq_next_due,
    .prune = st_sq_prune,
    .worker_beat = st_sq_worker_beat,
    .worker_list = st_sq_worker_list,
    .worker_remove = st_sq_worker_remove,
    .lead = st_sq_lead,
    .wait = st_sq_wait,
    .interrupt = st_sq_interrupt,
    .schema = st_sq_schema,
    .backup = st_sq_backup,
    .check = st_sq_check,
    .about = st_sq_about,
    .now = sq_now,
    .close = sq_close,
};

/* ---- opening ---------------------------------------------------------------------------- */

/* PATH[?sync=full|normal] */
static stint_code parse(const char *text, char **path, bool *sync_normal, stint_error *err)
{
    const char *query = strchr(text, '?');
    const size_t len = query ? (size_t)(query - text) : strlen(text);

    *path = NULL;
    *sync_normal = query && strcmp(query, "?sync=normal") == 0;
    if (len == 0 || strncmp(text, ":memory:", 8) == 0) {
        st_fail(err, STINT_EINVAL, "a SQLite store needs the path of a file");
        st_err_remedy(err, "for example sqlite:stint.db");
        return STINT_EINVAL;
    }
    if (query && !*sync_normal && strcmp(query, "?sync=full") != 0) {
        st_fail(err, STINT_EINVAL, "a SQLite store has no option %s", query + 1);
        st_err_remedy(err, "it takes ?sync=full (the default) or ?sync=normal");
        return STINT_EINVAL;
    }
    *path = strndup(text, len);
    return *path ? STINT_OK : st_fail(err, STINT_ENOMEM, "out of memory for a path");
}

static stint_code handle_open(struct st_sq *s, const char *path, const struct st_sq_open *opt, stint_error *err)
{
    struct st_schema schema;

    s->base.ops = &sqlite_ops;
    s->base.timeout_ms = opt->timeout_ms;
    s->inotify_fd = -1;
    s->seen_version = -1;
    s->sync_normal = opt->sync_normal;
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return st_fail(err, STINT_EAGAIN, "cannot open %s: %s", path, strerror(errno));
    if (st_sq_writer_get(path, opt, &s->w, err))
        return err->code;
    /* A writer that was opened for `migrate status` has left the schema as it was. */
    if (!opt->no_migrate && !s->w->migrated && st_sq_schema(&s->base, true, &schema, err))
        return err->code;
    return STINT_OK;
}

stint_code st_store_sqlite_open(const char *path_and_query, const struct st_store_open *opt, struct st_store **out,
                                stint_error *err)
{
    struct st_sq_open o = {.timeout_ms = opt && opt->timeout_ms > 0 ? opt->timeout_ms : 5000,
                           .no_create = opt && opt->no_create,
                           .no_migrate = opt && opt->no_migrate};
    stint_error local = {0};
    struct st_sq *s = NULL;
    char *path;
    stint_code code;

    *out = NULL;
    code = parse(path_and_query, &path, &o.sync_normal, &local);
    if (!code && !(s = calloc(1, sizeof(*s))))
        code = st_fail(&local, STINT_ENOMEM, "cannot open %s", path);
    if (!code)
        code = handle_open(s, path, &o, &local);
    free(path);
    if (!code) {
        *out = &s->base;
        return STINT_OK;
    }
    if (s) /* close copes with whatever was not reached */
        sq_close(&s->base);
    if (err)
        *err = local;
    return code;
}
