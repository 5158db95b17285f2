/* SPDX-License-Identifier: Apache-2.0
 *
 * runlog.h - what a command printed: the end of its stderr, and a log file if one is wanted.
 */
#ifndef ST_EXECUTE_RUNLOG_H
#define ST_EXECUTE_RUNLOG_H

#include "execute/execute.h"

#define ST_TAIL_MAX 16384

enum st_stream { ST_STDOUT, ST_STDERR };

struct st_runlog {
    int fd;     /* -1 = no file */
    char *path; /* NULL = no file */
    size_t max; /* of each stream in the file */
    size_t written[2];
    bool cut[2]; /* and the file says so */
    int last;    /* stream of the last byte in the file; -1 = none */
    bool at_line_start;

    char *ring;     /* the last ST_TAIL_MAX bytes of stderr; made when the first one comes */
    uint64_t total; /* bytes of stderr in all */
};

/* Where the log of an attempt lies in dir; free() it, NULL = no memory. */
char *st_runlog_path(const char *dir, const char *id, int attempt, int64_t fence);
/* dir NULL = no file.  A file that cannot be made is logged and done without. */
void st_runlog_open(struct st_runlog *l, const char *dir, const struct st_job *job, size_t max);
void st_runlog_put(struct st_runlog *l, enum st_stream from, const char *p, size_t len);
/* Into the file only. */
void st_runlog_file(struct st_runlog *l, enum st_stream from, const char *p, size_t len);
/* The end of stderr, as a copy, into tail and tail_len of *ran. */
void st_runlog_tail(const struct st_runlog *l, struct st_ran *ran);
/* Closes the file; path, tail and tail_len go to *ran. */
void st_runlog_finish(struct st_runlog *l, struct st_ran *ran);
/* Throws it away. */
void st_runlog_clear(struct st_runlog *l);

#endif
