/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_conn.c - one SQLite connection: opening, waiting for locks, statements, errors.
 *
 * `database is locked` never reaches a caller: the busy handler waits, in steps that grow from 0.2
 * to 5 ms, until the connection's time is over; what is left then is EAGAIN.
 *
 * Thread: whoever owns the connection.  Connections are opened without SQLite's own mutexes.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUSY_FIRST_US 200
#define BUSY_MOST_US  5000

static void sleep_us(int64_t us)
{
    struct timespec ts = {.tv_sec = (time_t)(us / ST_SEC), .tv_nsec = (long)(us % ST_SEC) * 1000};

    nanosleep(&ts, NULL);
}

/* Called by SQLite with the number of times it has waited already; 0 = give up. */
static int busy(void *arg, int times)
{
    struct st_sq_conn *c = arg;
    int64_t until = c->until ? c->until(c->until_arg) : c->until_us;
    int64_t left = until - st_clock_mono_us();
    int64_t us = times < 5 ? BUSY_FIRST_US << times : BUSY_MOST_US;

    if (left <= 0)
        return 0;
    us = us / 2 + (int64_t)((double)us * st_random_unit());
    sleep_us(us < left ? us : left);
    return 1;
}

/* "alice", or the number of an owner who has no name here. */
static void owner_name(uid_t uid, char *out, size_t size)
{
    struct passwd pw, *found = NULL;
    char texts[4096];

    if (getpwuid_r(uid, &pw, texts, sizeof(texts), &found) == 0 && found)
        snprintf(out, size, "%s", found->pw_name);
    else
        snprintf(out, size, "user %u", (unsigned)uid);
}

stint_code st_sq_forbidden(const char *path, const char *what, stint_error *err)
{
    char owner[64];
    struct stat sb;

    if (access(path, W_OK) != 0 && errno == EROFS) {
        st_fail(err, STINT_ESTORE, "%s cannot be %s: its filesystem is read-only", path, what);
        st_err_remedy(err, "mount it for writing, or name another file");
        return STINT_ESTORE;
    }
    if (stat(path, &sb) != 0)
        return st_fail(err, STINT_ESTORE, "%s cannot be %s: %s", path, what, strerror(errno));
    owner_name(sb.st_uid, owner, sizeof(owner));
    st_fail(err, STINT_ESTORE, "%s cannot be %s: it belongs to %s and has mode %04o", path, what, owner,
            (unsigned)sb.st_mode & 07777);
    st_err_remedy(err, "run this as %s, or let this user read and write the file and its directory", owner);
    return STINT_ESTORE;
}

static stint_code cannot_open(sqlite3 *db, const char *path, stint_error *err)
{
    const int sys = sqlite3_system_errno(db);

    if (sys == EACCES || sys == EPERM || sys == EROFS)
        return st_sq_forbidden(path, "opened", err);
    return st_fail(err, sys == EMFILE || sys == ENFILE ? STINT_EAGAIN : STINT_ESTORE, "%s cannot be opened: %s", path,
                   sys ? strerror(sys) : sqlite3_errmsg(db));
}

stint_code st_sq_conn_open(struct st_sq_conn *c, const char *path, stint_error *err)
{
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    ST_SQ_GATE;
    int rc;

    st_sq_conn_list(c);
    rc = sqlite3_open_v2(path, &c->db, flags, NULL);
    if (!c->db)
        return st_fail(err, STINT_ENOMEM, "cannot open %s", path);
    sqlite3_extended_result_codes(c->db, 1);
    if (rc != SQLITE_OK)
        return cannot_open(c->db, path, err);
    sqlite3_busy_handler(c->db, busy, c);
    return STINT_OK;
}

void st_sq_conn_close(struct st_sq_conn *c)
{
    ST_SQ_GATE;

    st_sq_conn_unlist(c);
    for (int i = 0; i < SQ_SQL_N; i++) {
        sqlite3_finalize(c->stmt[i]);
        c->stmt[i] = NULL;
    }
    sqlite3_close(c->db);
    c->db = NULL;
}

/* SQLite answers NULL for a connection that did not get as far as its file. */
static const char *file_of(sqlite3 *db)
{
    const char *name = sqlite3_db_filename(db, "main");

    return name && *name ? name : "the store";
}

static stint_code busy_file(sqlite3 *db, stint_error *err)
{
    st_fail(err, STINT_EAGAIN, "another process is writing to %s", file_of(db));
    st_err_remedy(err, "try again, or wait longer for it (--store-timeout)");
    return STINT_EAGAIN;
}

static stint_code full(sqlite3 *db, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "the disk of %s is full", file_of(db));
    st_err_remedy(err, "free some space, or remove ended jobs with `stint prune`");
    return STINT_ESTORE;
}

static stint_code readonly(sqlite3 *db, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s or its directory cannot be written", file_of(db));
    st_err_remedy(err, "give this user write permission for the file and the directory it is in");
    return STINT_ESTORE;
}

static stint_code broken(sqlite3 *db, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s: %s", file_of(db), sqlite3_errmsg(db));
    st_err_remedy(err, "name another file, or put a backup in its place");
    return STINT_ESTORE;
}

static stint_code other(sqlite3 *db, stint_error *err)
{
    const int sys = sqlite3_system_errno(db);

    return st_fail(err, STINT_ESTORE, "%s: %s%s%s", file_of(db), sqlite3_errmsg(db), sys ? ": " : "",
                   sys ? strerror(sys) : "");
}

static stint_code fail_by_code(sqlite3 *db, int rc, stint_error *err)
{
    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return busy_file(db, err);
    case SQLITE_NOMEM:
        return st_fail(err, STINT_ENOMEM, "out of memory");
    case SQLITE_FULL:
        return full(db, err);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return readonly(db, err);
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return broken(db, err);
    case SQLITE_TOOBIG:
        return st_refuse(err, "put the data in a file and enqueue its name", "a job is too large for the store");
    case SQLITE_IOERR: /* some writes, of the shared index for one, tell only so */
        if (sqlite3_system_errno(db) == ENOSPC || sqlite3_system_errno(db) == EDQUOT)
            return full(db, err);
        return other(db, err);
    default:
        return other(db, err);
    }
}

/* What was going on is for whoever reads the code: it stands in the detail, behind SQLite's number.
 */
stint_code st_sq_fail(sqlite3 *db, const char *what, stint_error *err)
{
    const int rc = sqlite3_extended_errcode(db);
    const stint_code code = fail_by_code(db, rc, err);
    char detail[64];

    snprintf(detail, sizeof(detail), "%d %.40s", rc, what);
    st_err_detail(err, detail);
    return code;
}

sqlite3_stmt *st_sq_stmt(struct st_sq_conn *c, enum st_sq_sql which, stint_error *err)
{
    const struct st_sq_sql_info *info = &st_sq_sql_info[which];

    if (c->stmt[which])
        return c->stmt[which];
    if (sqlite3_prepare_v3(c->db, info->sql, -1, SQLITE_PREPARE_PERSISTENT, &c->stmt[which], NULL) != SQLITE_OK)
        st_sq_fail(c->db, info->name, err);
    return c->stmt[which];
}

int st_sq_step(struct st_sq_conn *c, sqlite3_stmt *st, stint_error *err)
{
    int rc = sqlite3_step(st);

    if (rc == SQLITE_ROW)
        return rc;
    if (rc != SQLITE_DONE) {
        st_sq_fail(c->db, sqlite3_sql(st), err);
        rc = -1;
    }
    sqlite3_reset(st);
    return rc;
}

stint_code st_sq_run(struct st_sq_conn *c, sqlite3_stmt *st, stint_error *err)
{
    const int rc = st_sq_step(c, st, err);

    if (rc == SQLITE_ROW)
        sqlite3_reset(st);
    return rc < 0 ? err->code : STINT_OK;
}

stint_code st_sq_exec(struct st_sq_conn *c, const char *sql, stint_error *err)
{
    if (sqlite3_exec(c->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return st_sq_fail(c->db, "exec", err);
    return STINT_OK;
}

stint_code st_sq_query_int(struct st_sq_conn *c, const char *sql, int64_t *out, stint_error *err)
{
    sqlite3_stmt *st = NULL;
    stint_code code = STINT_OK;
    int rc;

    *out = 0;
    if (sqlite3_prepare_v2(c->db, sql, -1, &st, NULL) != SQLITE_OK)
        return st_sq_fail(c->db, "prepare", err);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int64(st, 0);
    else if (rc != SQLITE_DONE)
        code = st_sq_fail(c->db, "query", err);
    sqlite3_finalize(st);
    return code;
}
