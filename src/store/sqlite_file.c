/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_file.c - finding, making and checking the file; one writer per file and process.
 *
 * A file of somebody else is never touched: it is looked at before anything is set that would
 * write to it.  The registry knows writers by device and inode, so that two spellings of a path
 * share one.
 *
 * We never open(2) a file that SQLite has open: closing it would drop SQLite's POSIX locks.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (256 * 1024)

static pthread_mutex_t registry_mu = PTHREAD_MUTEX_INITIALIZER;
static struct st_sq_writer *registry;

/* ---- the file --------------------------------------------------------------------------- */

/* The directory of path if it is not there, for free(); else NULL. */
static char *missing_dir(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash && slash > path ? strndup(path, (size_t)(slash - path)) : NULL;

    if (dir && access(dir, F_OK) != 0 && errno == ENOENT)
        return dir;
    free(dir);
    return NULL;
}

/* Its place is not there, or not yet: a disk that is not mounted, a directory still to be made.
 * Takes dir, which is missing; NULL = it is not the directory. */
static stint_code away(const char *path, char *dir, stint_error *err)
{
    if (dir)
        st_fail(err, STINT_EAGAIN, "there is no directory %s for the store", dir);
    else
        st_fail(err, STINT_EAGAIN, "the store %s is a link to a place that is not there", path);
    st_err_remedy(err, "make the directory, or name another store");
    free(dir);
    return STINT_EAGAIN;
}

static stint_code no_store(const char *path, stint_error *err)
{
    char *dir = missing_dir(path);

    if (dir)
        return away(path, dir, err);
    st_fail(err, STINT_ESTORE, "there is no store at %s", path);
    st_err_remedy(err, "`stint enqueue` or `stint worker` makes one; or name another with --store");
    return STINT_ESTORE;
}

static stint_code cannot_create(const char *path, int e, stint_error *err)
{
    if (e == ENOENT)
        return away(path, missing_dir(path), err);
    st_fail(err, STINT_ESTORE, "cannot create the store %s: %s", path, strerror(e));
    if (e == ENOSPC || e == EDQUOT)
        st_err_remedy(err, "free some space on that disk");
    else
        st_err_remedy(err, "choose a directory that this user may write to");
    return STINT_ESTORE;
}

/* Only its owner may read it: payloads may hold anything.  -wal and -shm take over the mode. */
static stint_code file_create(const char *path, stint_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0 && errno != EEXIST)
        return cannot_create(path, errno, err);
    if (fd >= 0)
        close(fd);
    return STINT_OK;
}

static stint_code file_find(const char *path, const struct st_sq_open *opt, struct stat *sb, stint_error *err)
{
    if (stat(path, sb) == 0)
        return STINT_OK;
    if (errno != ENOENT)
        return cannot_create(path, errno, err);
    if (opt->no_create)
        return no_store(path, err);
    if (file_create(path, err))
        return err->code;
    return stat(path, sb) == 0 ? STINT_OK : cannot_create(path, errno, err);
}

static stint_code file_check(const char *path, const struct stat *sb, stint_error *err)
{
    if (S_ISREG(sb->st_mode))
        return STINT_OK;
    st_fail(err, STINT_ESTORE, "%s is not a file", path);
    st_err_remedy(err, "name a file, for example sqlite:stint.db");
    return STINT_ESTORE;
}

const char *st_sq_network_fs(const char *path)
{
    static const struct {
        uint32_t magic;
        const char *name;
    } known[] = {
        {0x6969, "nfs"},      {0xff534d42, "cifs"}, {0xfe534d42, "smb2"}, {0x517b, "smb"},
        {0x65735546, "fuse"}, {0x01021997, "9p"},   {0x5346414f, "afs"},  {0x00c36400, "ceph"},
    };
    struct statfs fs;

    if (statfs(path, &fs) != 0)
        return NULL;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if ((uint32_t)fs.f_type == known[i].magic)
            return known[i].name;
    return NULL;
}

/* ---- the write connection --------------------------------------------------------------- */

static stint_code wal_on(struct st_sq_conn *c, stint_error *err)
{
    sqlite3_stmt *st = NULL;
    stint_code code = STINT_OK;
    int rc;

    if (sqlite3_prepare_v2(c->db, "PRAGMA journal_mode = WAL", -1, &st, NULL) != SQLITE_OK)
        return st_sq_fail(c->db, "journal_mode", err);
    rc = sqlite3_step(st);
    if (rc != SQLITE_ROW)
        code = st_sq_fail(c->db, "journal_mode", err);
    else if (!st_slice_is(col_slice(st, 0), "wal"))
        code = st_fail(err, STINT_ESTORE, "%s cannot use a write-ahead log on this filesystem",
                       sqlite3_db_filename(c->db, "main"));
    sqlite3_finalize(st);
    return code;
}

static stint_code configure(struct st_sq_writer *w, const struct st_sq_open *opt, stint_error *err)
{
    int have;

    if (st_sq_schema_read(&w->c, &have, err) || wal_on(&w->c, err) ||
        st_sq_exec(&w->c,
                   "PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -2000;"
                   "PRAGMA journal_size_limit = 16777216; PRAGMA wal_autocheckpoint = 1000;"
                   "PRAGMA foreign_keys = OFF; PRAGMA trusted_schema = OFF",
                   err))
        return err->code;
    if (opt->sync_normal && st_sq_exec(&w->c, "PRAGMA synchronous = NORMAL", err))
        return err->code;
    w->full = !opt->sync_normal;
    w->want_full = w->full;
    w->migrated = !opt->no_migrate;
    if (opt->no_migrate)
        return STINT_OK;
    return st_sq_schema_up(&w->c, st_sq_migrations, st_sq_n_migrations, err);
}

/* Several processes may open a fresh file at once.  Turning it to WAL does not always ask the busy
 * handler, so what is busy is tried again from the start. */
static stint_code setup(struct st_sq_writer *w, const struct st_sq_open *opt, stint_error *err)
{
    const int64_t until = st_clock_mono_us() + opt->timeout_ms * ST_MS;
    const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};
    stint_code code;
    ST_SQ_GATE;

    w->c.until_us = until;
    code = st_sq_fork_settle(err);
    if (!code)
        code = st_sq_conn_open(&w->c, w->path, err);
    if (code)
        return code;
    if (sqlite3_db_readonly(w->c.db, "main") == 1)
        return st_sq_forbidden(w->path, "written", err);
    while ((code = configure(w, opt, err)) == STINT_EAGAIN && st_clock_mono_us() < until)
        nanosleep(&pause, NULL);
    return code;
}

/* ---- writers ---------------------------------------------------------------------------- */

static void writer_free(struct st_sq_writer *w)
{
    st_sq_conn_close(&w->c);
    st_sq_lanes_clear(&w->lanes);
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->mu);
    free(w->path);
    free(w);
}

/* Signals are the host's business: none is delivered to this thread. */
static stint_code writer_start(struct st_sq_writer *w, stint_error *err)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&w->thread, &attr, st_sq_writer_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc)
        return st_fail(err, STINT_ENOMEM, "cannot start the writer of %s: %s", w->path, strerror(rc));
    pthread_setname_np(w->thread, "stint-store");
    return STINT_OK;
}

static struct st_sq_writer *writer_new(const char *path, const struct stat *sb)
{
    struct st_sq_writer *w = calloc(1, sizeof(*w));
    pthread_condattr_t attr;

    if (!w)
        return NULL;
    w->path = realpath(path, NULL);
    if (!w->path) {
        free(w);
        return NULL;
    }
    w->dev = sb->st_dev;
    w->ino = sb->st_ino;
    w->refs = 1;
    w->tail = &w->head;
    pthread_mutex_init(&w->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->cond, &attr);
    pthread_condattr_destroy(&attr);
    return w;
}

static stint_code writer_open(const char *path, const struct stat *sb, const struct st_sq_open *opt,
                              struct st_sq_writer **out, stint_error *err)
{
    struct st_sq_writer *w = writer_new(path, sb);
    const char *net;

    if (!w)
        return st_fail(err, STINT_ENOMEM, "cannot open %s", path);
    if (setup(w, opt, err) || writer_start(w, err)) {
        writer_free(w);
        return err->code;
    }
    net = st_sq_network_fs(w->path);
    if (net)
        st_log(ST_LOG_WARN, "store.network_filesystem", ST_F("path", w->path), ST_F("type", net),
               ST_F("why", "file locks and shared memory are not reliable there; jobs may be lost"));
    w->next = registry;
    registry = w;
    *out = w;
    return STINT_OK;
}

static struct st_sq_writer *writer_find(const struct stat *sb)
{
    struct st_sq_writer *w = registry;

    while (w && (w->dev != sb->st_dev || w->ino != sb->st_ino))
        w = w->next;
    return w;
}

static void writer_share(struct st_sq_writer *w, const struct st_sq_open *opt)
{
    w->refs++;
    if (opt->sync_normal)
        return;
    pthread_mutex_lock(&w->mu);
    w->want_full = true; /* the most careful handle decides for all */
    pthread_mutex_unlock(&w->mu);
}

stint_code st_sq_writer_get(const char *path, const struct st_sq_open *opt, struct st_sq_writer **out, stint_error *err)
{
    struct stat sb;
    stint_code code;

    pthread_mutex_lock(&registry_mu);
    code = file_find(path, opt, &sb, err);
    if (!code)
        code = file_check(path, &sb, err);
    if (!code && (*out = writer_find(&sb)))
        writer_share(*out, opt);
    else if (!code)
        code = writer_open(path, &sb, opt, out, err);
    pthread_mutex_unlock(&registry_mu);
    return code;
}

void st_sq_writer_put(struct st_sq_writer *w)
{
    struct st_sq_writer **p = &registry;

    pthread_mutex_lock(&registry_mu);
    if (--w->refs == 0) {
        while (*p != w)
            p = &(*p)->next;
        *p = w->next;
        pthread_mutex_lock(&w->mu);
        w->stop = true;
        pthread_cond_signal(&w->cond);
        pthread_mutex_unlock(&w->mu);
        pthread_join(w->thread, NULL);
        writer_free(w);
    }
    pthread_mutex_unlock(&registry_mu);
}

void st_sq_registry_forget(void)
{
    pthread_mutex_init(&registry_mu, NULL);
    registry = NULL;
}

void st_store_own_process(void)
{
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0); /* a global lock at every allocation */
}
