/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_backup.c - a copy of the store while it is in use.
 *
 * The copy is made on the handle's read connection, in steps, to a temporary name beside the
 * target; it gets its name only when it is whole and synced.  An existing file is never
 * overwritten.
 *
 * Thread: the handle's.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_PAGES 256

struct copy {
    sqlite3 *to;
    const char *temp;
    st_progress_fn progress;
    void *arg;
};

static stint_code file_fail(const char *what, const char *path, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "cannot %s %s: %s", what, path, strerror(errno));
    st_err_remedy(err, "choose a directory that this user may write to and that has room");
    return STINT_ESTORE;
}

/* A read transaction holds one moment of the store still; writers go on meanwhile. */
static stint_code copy_pages(struct st_sq_conn *c, struct copy *k, stint_error *err)
{
    sqlite3_backup *b = sqlite3_backup_init(k->to, "main", c->db, "main");
    int rc;

    if (!b)
        return st_sq_fail(k->to, "backup", err);
    do {
        rc = sqlite3_backup_step(b, STEP_PAGES);
        if (k->progress)
            k->progress(k->arg, sqlite3_backup_pagecount(b) - sqlite3_backup_remaining(b), sqlite3_backup_pagecount(b));
    } while (rc == SQLITE_OK);
    sqlite3_backup_finish(b);
    return rc == SQLITE_DONE ? STINT_OK : st_sq_fail(k->to, "backup", err);
}

static stint_code copy_all(struct st_sq_conn *c, struct copy *k, stint_error *err)
{
    stint_code code;

    if (st_sq_exec(c, "BEGIN; SELECT 1 FROM sqlite_schema LIMIT 1", err))
        return err->code;
    code = copy_pages(c, k, err);
    sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
    return code;
}

static stint_code copy_open(struct st_sq_conn *c, struct copy *k, stint_error *err)
{
    stint_code code;

    if (sqlite3_open_v2(k->temp, &k->to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return st_sq_fail(k->to, "open the backup", err);
    sqlite3_exec(k->to, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
    code = copy_all(c, k, err);
    /* One file is a backup: without a log beside it. */
    if (!code && sqlite3_exec(k->to, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL) != SQLITE_OK)
        code = st_sq_fail(k->to, "close the backup", err);
    return code;
}

static stint_code sync_path(const char *path, int flags, stint_error *err)
{
    int fd = open(path, flags | O_CLOEXEC);
    stint_code code = STINT_OK;

    if (fd < 0 || fsync(fd) != 0)
        code = file_fail("sync", path, err);
    if (fd >= 0)
        close(fd);
    return code;
}

/* RENAME_NOREPLACE: somebody may have taken the name meanwhile. */
static stint_code put_in_place(const char *temp, const char *path, stint_error *err)
{
    char *dir = strdup(path), *slash;
    stint_code code;

    if (!dir)
        return st_fail(err, STINT_ENOMEM, "out of memory for a file name");
    slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    code = sync_path(temp, O_RDONLY, err);
    if (!code && renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_NOREPLACE) != 0)
        code = file_fail("name the backup", path, err);
    if (!code)
        code = sync_path(slash ? dir : ".", O_RDONLY | O_DIRECTORY, err);
    free(dir);
    return code;
}

static stint_code backup_to(struct st_sq_conn *c, const char *temp, const char *path, st_progress_fn progress,
                            void *arg, stint_error *err)
{
    struct copy k = {.temp = temp, .progress = progress, .arg = arg};
    int fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    stint_code code;

    if (fd < 0)
        return file_fail("create", temp, err);
    close(fd);
    code = copy_open(c, &k, err);
    sqlite3_close(k.to);
    if (!code)
        code = put_in_place(temp, path, err);
    if (code)
        unlink(temp);
    return code;
}

static stint_code taken(const char *path, stint_error *err)
{
    st_fail(err, STINT_EINVAL, "%s exists already", path);
    st_err_remedy(err, "name a new file: a backup never overwrites one");
    return STINT_EINVAL;
}

/* Messages speak of the name that was asked for: the temporary one is that and a suffix. */
static void name_target(stint_error *err, const char *suffix)
{
    const size_t len = strlen(suffix);
    char *at = strstr(err->message, suffix);

    if (at)
        memmove(at, at + len, strlen(at + len) + 1);
}

stint_code st_sq_backup(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err)
{
    stint_error local;
    ST_SQ_GATE;
    struct st_sq_conn *c = st_sq_reader(st_sq_of(s), &local);
    const size_t size = strlen(path) + 32;
    char *temp = malloc(size);
    struct stat sb;
    stint_code code;

    if (!temp)
        code = st_fail(&local, STINT_ENOMEM, "out of memory for a file name");
    else if (lstat(path, &sb) == 0)
        code = taken(path, &local);
    else if (!c)
        code = local.code;
    else {
        snprintf(temp, size, "%s.tmp-%d", path, (int)getpid());
        code = backup_to(c, temp, path, progress, arg, &local);
        if (code)
            name_target(&local, temp + strlen(path));
    }
    free(temp);
    if (code && err)
        *err = local;
    return code;
}
