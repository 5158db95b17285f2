/* SPDX-License-Identifier: Apache-2.0
 *
 * files.c - reading files from outside, which have a maximum.
 */
#include "cli/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

static stint_code read_fd(int fd, const char *name, struct st_buf *b, stint_error *err)
{
    char chunk[65536];

    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));

        if (n == 0)
            return STINT_OK;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return st_fail(err, STINT_EINVAL, "cannot read %s: %s", name, strerror(errno));
        st_buf_put(b, chunk, (size_t)n);
        if (b->failed)
            return st_fail(err, STINT_EINVAL, "%s is larger than the limit of %zu bytes", name,
                           b->max);
    }
}

stint_code cli_read_all(const char *path, size_t max, char **out, size_t *len, stint_error *err)
{
    bool in = strcmp(path, "-") == 0;
    const char *name = in ? "standard input" : path;
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    struct st_buf b;
    stint_code rc;

    *out = NULL;
    *len = 0;
    if (fd < 0)
        return st_fail(err, STINT_EINVAL, "cannot open %s: %s", name, strerror(errno));
    st_buf_init(&b, max);
    rc = read_fd(fd, name, &b, err);
    if (!in)
        close(fd);
    st_buf_put(&b, "", 0);
    *len = b.len;
    if (rc == STINT_OK && !b.p) {
        *out = calloc(1, 1);
        return *out ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory for %s", name);
    }
    if (rc == STINT_OK)
        *out = st_buf_take(&b);
    st_buf_clear(&b);
    return rc;
}
