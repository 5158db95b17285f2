/* SPDX-License-Identifier: Apache-2.0
 *
 * job_follow.c - `stint job logs --follow`: what attempts write, as they write it.
 *
 *     NONE --an attempt goes on--> OPEN --it has ended, its file is at its end--> NONE
 *
 * The store says which attempt goes on and when one has ended; its file is read in between.  An
 * attempt's outcome is written after its log, so that what is there then is all of it.
 *
 * Invariants:
 *   (1) attempts come in the order of their fences, each at most once;
 *   (2) no byte of a file is printed twice.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/jobs.h"

#define LOOK_MS 200 /* how long a line may wait */

struct follow {
    struct cli *c;
    int64_t only;  /* attempt; 0 = any */
    int64_t fence; /* of the attempt that is open, or was the last */
    bool open;     /* it is not known to have ended */
    bool begun;    /* something was looked at */
    int fd;        /* -1 = no file yet */
};

static void attempt_close(struct follow *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
    f->open = false;
}

/* The next one; where there are several, people are told which. */
static void attempt_open(struct follow *f, const struct st_attempt_info *a)
{
    attempt_close(f);
    if (f->begun || a->n > 1)
        fprintf(stderr, "attempt %d:\n", a->n);
    f->begun = f->open = true;
    f->fence = a->fence;
}

/* Prints what the file has got since. */
static void file_print(struct follow *f, const struct st_job_info *info, const struct st_attempt_info *a)
{
    char chunk[65536], *path = f->fd < 0 ? cli_log_path(f->c, info, a) : NULL;
    ssize_t n;

    if (path)
        f->fd = open(path, O_RDONLY | O_CLOEXEC);
    free(path);
    while (f->fd >= 0 && ((n = read(f->fd, chunk, sizeof(chunk))) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0)
            fwrite(chunk, 1, (size_t)n, stdout);
}

static void attempt_follow(struct follow *f, const struct st_job_info *info, const struct st_attempt_info *a)
{
    if (a->fence < f->fence || (a->fence == f->fence && !f->open))
        return;
    if (a->fence != f->fence)
        attempt_open(f, a);
    file_print(f, info, a);
    if (!a->outcome)
        return;
    if (f->fd < 0)
        cli_log_print(f->c, info, a);
    attempt_close(f);
}

static bool is_wanted(const struct follow *f, const struct st_job_info *info, size_t i)
{
    if (f->only)
        return info->attempts[i].n == f->only;
    return f->begun || i + 1 == info->n_attempts;
}

/* Is there nothing more to come? */
static bool look(struct follow *f, const struct st_job_info *info)
{
    for (size_t i = 0; i < info->n_attempts; i++)
        if (is_wanted(f, info, i))
            attempt_follow(f, info, &info->attempts[i]);
    fflush(stdout);
    return st_state_ended(info->state) || ferror(stdout) || (f->only && f->begun && !f->open);
}

static int nothing_seen(struct follow *f, const char *id)
{
    if (f->only)
        return cli_error(f->c, STINT_ENOTFOUND, "`stint job show` lists the attempts",
                         "job %s has ended without attempt %lld", id, (long long)f->only);
    return cli_error(f->c, STINT_ESTATE, NULL, "job %s has ended without having run", id);
}

int cli_job_follow(struct cli *c, const char *id, int64_t n)
{
    struct follow f = {.c = c, .only = n, .fd = -1};
    struct st_job_info info;
    stint_error err;
    bool over = false, woken;

    while (!over) {
        if (!cli_job_get(c, id, &info))
            break;
        over = look(&f, &info);
        st_job_info_clear(&info);
        if (!over && st_store_wait(c->store, LOOK_MS, &woken, &err)) {
            cli_fail(c, &err);
            break;
        }
    }
    attempt_close(&f);
    if (!over)
        return c->exit;
    return f.begun ? CLI_DONE : nothing_seen(&f, id);
}
