/* SPDX-License-Identifier: Apache-2.0
 *
 * result.c - large results live in files, the store keeps their path.
 *
 * A file's name carries the job and the fence, so that two attempts never write to the same one; it is written
 * under a temporary name, synced and renamed, so that a path in the store always leads to a whole result.
 *
 * A small result that goes to a file because somebody looks for it there is in the store as well: its file is not synced, and
 * what a power failure takes of it the store still has.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "complete/complete.h"

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);

        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

static bool sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok;

    if (fd < 0)
        return false;
    ok = fsync(fd) == 0;
    close(fd);
    return ok;
}

/* errno tells why not. */
static bool write_file(const char *dir, const char *temp, const char *path, const char *p, size_t n, bool sync)
{
    int fd, saved;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return false;
    fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    if (!write_all(fd, p, n) || (sync && fsync(fd) != 0)) {
        saved = errno;
        close(fd);
        unlink(temp);
        errno = saved;
        return false;
    }
    if (close(fd) != 0 || rename(temp, path) != 0) {
        saved = errno;
        unlink(temp);
        errno = saved;
        return false;
    }
    return !sync || sync_dir(dir);
}

static void settle_failed(struct st_done *d, const char *path)
{
    int why = errno;

    free(d->ran.result);
    d->ran.result = NULL;
    d->ran.result_len = 0;
    d->ran.ok = false;
    st_ran_fail(&d->ran, ST_KIND_INTERNAL, "the result could not be written to %s: %s", path, strerror(why));
}

void st_result_settle(struct st_done *d, const char *dir)
{
    char name[ST_ID_FILE_MAX + 1], path[PATH_MAX], temp[PATH_MAX];
    int n;

    if (!d->ran.ok || d->ran.aborted != ST_ABORT_NOT || d->result_ref ||
        (d->ran.result_len <= ST_RESULT_INLINE && !d->to_file))
        return;
    st_id_file_name(st_slice_cstr(d->job->id), name);
    n = snprintf(path, sizeof(path), "%s/%s-%lld.result", dir, name, (long long)d->job->fence);
    if (n < 0 || (size_t)n + 4 >= sizeof(temp)) {
        errno = ENAMETOOLONG;
        settle_failed(d, dir);
        return;
    }
    memcpy(temp, path, (size_t)n);
    memcpy(temp + n, ".tmp", 5);
    if (!write_file(dir, temp, path, d->ran.result ? d->ran.result : "null", d->ran.result ? d->ran.result_len : 4,
                    d->ran.result_len > ST_RESULT_INLINE)) {
        settle_failed(d, path);
        return;
    }
    d->result_ref = strdup(path);
    if (!d->result_ref) {
        errno = ENOMEM;
        unlink(path);
        settle_failed(d, path);
    }
}

void st_result_discard(struct st_done *d)
{
    if (!d->result_ref)
        return;
    unlink(d->result_ref);
    free(d->result_ref);
    d->result_ref = NULL;
}

/* "sqlite:a/b.db?sync=normal" -> "a"; anything else -> "." */
static void store_dir(const char *url, char *out, size_t size)
{
    const char *path = strncmp(url, "sqlite:", 7) == 0 ? url + 7 : strstr(url, "://") ? "" : url;
    size_t len = strcspn(path, "?");

    while (len > 0 && path[len - 1] != '/')
        len--;
    while (len > 1 && path[len - 1] == '/')
        len--;
    if (len == 0)
        snprintf(out, size, ".");
    else
        snprintf(out, size, "%.*s", (int)len, path);
}

/* Absolute, since it is kept with the jobs; also where the directory is not there yet. */
char *st_results_dir(const char *url)
{
    char dir[PATH_MAX], full[PATH_MAX];
    char *out = NULL;
    const char *base = "";

    store_dir(url, dir, sizeof(dir));
    if (realpath(dir, full))
        snprintf(dir, sizeof(dir), "%s", full);
    else if (dir[0] != '/' && getcwd(full, sizeof(full)))
        base = full;
    if (asprintf(&out, "%s%s%s/stint-results", base, *base ? "/" : "", strcmp(dir, "/") == 0 ? "" : dir) < 0)
        return NULL;
    return out;
}
