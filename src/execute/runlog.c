/* SPDX-License-Identifier: Apache-2.0
 *
 * runlog.c - what a command printed: the end of its stderr, and a log file if one is wanted.
 *
 * The file is written as the output comes, so that it can be followed; a heading stands where the
 * stream changes:
 *
 *     STDOUT:
 *     42
 *     STDERR:
 *     warning: guessed
 *
 * Each stream is cut at a maximum, and a line says so; the command is not made to wait.
 */
#include "execute/runlog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "execute/command.h"

char *st_runlog_path(const char *dir, const char *id, int attempt, int64_t fence)
{
    char name[ST_JOB_FILE_MAX + 1], *path;

    if (asprintf(&path, "%s/%s-%d-%lld.log", dir, st_job_file_name(id, name), attempt, (long long)fence) < 0)
        return NULL;
    return path;
}

void st_runlog_open(struct st_runlog *l, const char *dir, const struct st_job *job, size_t max)
{
    *l = (struct st_runlog){.fd = -1, .max = max, .last = -1, .at_line_start = true};
    if (!dir)
        return;
    l->path = st_runlog_path(dir, job->id, job->attempt, job->fence);
    if (!l->path)
        return;
    l->fd = open(l->path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (l->fd >= 0)
        return;
    st_log(ST_LOG_WARN, "log.failed", ST_F("job", job->id), ST_F("path", l->path), ST_F("error", strerror(errno)));
    free(l->path);
    l->path = NULL;
}

/* A log that cannot be written costs the log, not the job. */
static void file_put(struct st_runlog *l, const char *p, size_t len)
{
    while (len && l->fd >= 0) {
        ssize_t n = write(l->fd, p, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            st_log(ST_LOG_WARN, "log.failed", ST_F("path", l->path), ST_F("error", strerror(errno)));
            close(l->fd);
            l->fd = -1;
            return;
        }
        l->at_line_start = p[n - 1] == '\n';
        p += n;
        len -= (size_t)n;
    }
}

static void file_puts(struct st_runlog *l, const char *s)
{
    file_put(l, s, strlen(s));
}

void st_runlog_file(struct st_runlog *l, enum st_stream from, const char *p, size_t len)
{
    size_t fits = l->max - l->written[from];
    char line[80];

    if (l->fd < 0 || l->cut[from])
        return;
    if (l->last != (int)from) {
        if (!l->at_line_start)
            file_puts(l, "\n");
        file_puts(l, from == ST_STDOUT ? "STDOUT:\n" : "STDERR:\n");
        l->last = (int)from;
    }
    file_put(l, p, len < fits ? len : st_utf8_cut(p, len, fits));
    l->written[from] += len < fits ? len : fits;
    if (len <= fits)
        return;
    l->cut[from] = true;
    snprintf(line, sizeof(line), "%s[cut here: more than %zu bytes]\n", l->at_line_start ? "" : "\n", l->max);
    file_puts(l, line);
}

static void tail_put(struct st_runlog *l, const char *p, size_t len)
{
    if (!l->ring && !(l->ring = malloc(ST_TAIL_MAX)))
        return;
    if (len > ST_TAIL_MAX) {
        l->total += len - ST_TAIL_MAX;
        p += len - ST_TAIL_MAX;
        len = ST_TAIL_MAX;
    }
    while (len) {
        size_t at = (size_t)(l->total % ST_TAIL_MAX);
        size_t n = len < ST_TAIL_MAX - at ? len : ST_TAIL_MAX - at;

        memcpy(l->ring + at, p, n);
        l->total += n;
        p += n;
        len -= n;
    }
}

void st_runlog_put(struct st_runlog *l, enum st_stream from, const char *p, size_t len)
{
    st_runlog_file(l, from, p, len);
    if (from == ST_STDERR)
        tail_put(l, p, len);
}

/* The ring in order.  If the beginning was lost, a first line says so, and the text after it
 * starts at a character. */
void st_runlog_tail(const struct st_runlog *l, struct st_ran *ran)
{
    size_t at = (size_t)(l->total % ST_TAIL_MAX), skip = 0, n = 0;
    char *out;

    if (!l->total || !l->ring)
        return;
    out = malloc(l->total < ST_TAIL_MAX ? (size_t)l->total + 1 : ST_TAIL_MAX + 1);
    if (!out)
        return;
    if (l->total <= ST_TAIL_MAX) {
        memcpy(out, l->ring, (size_t)l->total);
        n = (size_t)l->total;
    } else {
        char whole[ST_TAIL_MAX];

        memcpy(whole, l->ring + at, ST_TAIL_MAX - at);
        memcpy(whole + ST_TAIL_MAX - at, l->ring, at);
        n = (size_t)snprintf(out, 80, "[cut here: only the end of %llu bytes]\n", (unsigned long long)l->total);
        skip = n;
        for (int i = 0; i < 3 && (whole[skip] & 0xC0) == 0x80; i++)
            skip++;
        memcpy(out + n, whole + skip, ST_TAIL_MAX - skip);
        n += ST_TAIL_MAX - skip;
    }
    out[n] = '\0';
    ran->log_tail = out;
    ran->log_tail_len = n;
}

void st_runlog_finish(struct st_runlog *l, struct st_ran *ran)
{
    st_runlog_tail(l, ran);
    ran->log = l->path;
    l->path = NULL;
    st_runlog_clear(l);
}

void st_runlog_clear(struct st_runlog *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    free(l->path);
    free(l->ring);
    l->path = l->ring = NULL;
}
