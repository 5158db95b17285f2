/* SPDX-License-Identifier: Apache-2.0
 *
 * ends.c - the descriptors of one start: what the command gets and what we keep.
 */
#include "execute/ends.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void st_ends_close(struct st_ends *e)
{
    for (int i = 0; i < ST_MD_FDS; i++)
        if (e->child[i] >= 0)
            close(e->child[i]);
    for (int i = 0; i < 3; i++)
        if (e->own[i] >= 0)
            close(e->own[i]);
    *e = (struct st_ends)ST_ENDS_INIT;
}

static bool open_pipe(int *read_end, int *write_end)
{
    int p[2];

    if (pipe2(p, O_CLOEXEC))
        return false;
    *read_end = p[0];
    *write_end = p[1];
    return true;
}

static bool open_body(const struct st_buf *body, int *fd)
{
    *fd = memfd_create("stint-run", MFD_CLOEXEC);
    return *fd >= 0 && write(*fd, body->p, body->len) == (ssize_t)body->len;
}

stint_code st_ends_open(struct st_ends *e, const struct st_buf *body, bool by_stdin, stint_error *err)
{
    bool ok = open_body(body, &e->child[0]);

    if (ok && by_stdin)
        ok = open_pipe(&e->child[1], &e->own[0]);
    else if (ok)
        ok = (e->child[1] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
    ok = ok && open_pipe(&e->own[1], &e->child[2]) && open_pipe(&e->own[2], &e->child[3]);
    if (!ok)
        return st_fail(err, STINT_EAGAIN, "cannot make pipes for a command: %s", strerror(errno));
    return STINT_OK;
}
