/* SPDX-License-Identifier: Apache-2.0
 *
 * files.c - reading files from outside, which have a maximum.
 */
#include "cli/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

/* Up to b->max bytes; *more = there were more than that. */
static stint_code read_fd(int fd, const char *name, struct st_buf *b, bool *more, stint_error *err)
{
    char chunk[65536];

    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));

        if (n == 0)
            return STINT_OK;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return st_refuse(err, "name a file that this user may read", "cannot read %s: %s", name, strerror(errno));
        *more = b->len + (size_t)n > b->max;
        if (*more)
            return STINT_OK;
        st_buf_put(b, chunk, (size_t)n);
        if (b->failed)
            return st_fail(err, STINT_ENOMEM, "no memory for %s", name);
    }
}

static const char *name_of(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

stint_code cli_read_limited(const char *path, size_t max, char **out, size_t *len, bool *more, stint_error *err)
{
    bool in = strcmp(path, "-") == 0;
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    struct st_buf b;
    stint_code rc;

    *out = NULL;
    *len = 0;
    *more = false;
    if (fd < 0)
        return st_refuse(err, "name a file that is there and that this user may read", "cannot open %s: %s", path,
                         strerror(errno));
    st_buf_init(&b, max);
    rc = read_fd(fd, name_of(path), &b, more, err);
    if (!in)
        close(fd);
    st_buf_put(&b, "", 0);
    if (rc == STINT_OK && !*more) {
        *len = b.len;
        *out = st_buf_take(&b);
        if (!*out)
            rc = st_fail(err, STINT_ENOMEM, "no memory for %s", name_of(path));
    }
    st_buf_clear(&b);
    return rc;
}

stint_code cli_read_all(const char *path, size_t max, char **out, size_t *len, stint_error *err)
{
    bool more;
    stint_code rc = cli_read_limited(path, max, out, len, &more, err);

    if (rc == STINT_OK && more)
        rc = st_refuse(err, "make it smaller, or name another file", "%s is larger than the limit of %zu bytes",
                       name_of(path), max);
    return rc;
}

stint_code cli_copy_file(const char *path, stint_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char chunk[65536];
    ssize_t n = 0;

    if (fd < 0) {
        st_fail(err, errno == ENOENT ? STINT_ENOTFOUND : STINT_ESTATE, "cannot open %s: %s", path, strerror(errno));
        st_err_remedy(err, "the file was removed, or lies on the worker's machine, or is another user's");
        return err->code;
    }
    while ((n = read(fd, chunk, sizeof(chunk))) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && fwrite(chunk, 1, (size_t)n, stdout) != (size_t)n)
            break;
    close(fd);
    return n < 0 ? st_fail(err, STINT_ESTATE, "cannot read %s: %s", path, strerror(errno)) : STINT_OK;
}
