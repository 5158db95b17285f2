/* SPDX-License-Identifier: Apache-2.0
 *
 * frames.h - a child's stdout, line by line, and what a line says.
 *
 * Bytes are read straight into the buffer, and what comes out are ranges inside it: nothing is
 * copied or altered.  They stay until st_frames_room() is called again.
 */
#ifndef ST_EXECUTE_FRAMES_H
#define ST_EXECUTE_FRAMES_H

#include <stdbool.h>

#include "base/str.h"

/* ---- lines ----------------------------------------------------------------------- */

struct st_frames {
    char *p;
    size_t cap, max;    /* max: of a line, without its newline */
    size_t start, end;  /* bytes there */
    size_t seen;        /* no newline before here */
    bool dropping;      /* the rest of a line that was too long */
    uint64_t n_dropped; /* lines that were too long */
};

enum st_frames_got {
    ST_FRAMES_NONE, /* no whole line is there */
    ST_FRAMES_LINE,
    ST_FRAMES_CUT, /* a line that is too long: this is its beginning; the rest is dropped */
};

void st_frames_init(struct st_frames *f, size_t max);
void st_frames_clear(struct st_frames *f);

/* Where to read to, and how much at most; NULL = no memory.  All lines must have been taken. */
char *st_frames_room(struct st_frames *f, size_t *n);
void st_frames_filled(struct st_frames *f, size_t n);
/* The same for bytes that are elsewhere; the number of bytes taken.  0 = no memory. */
size_t st_frames_put(struct st_frames *f, const char *p, size_t n);

enum st_frames_got st_frames_next(struct st_frames *f, struct st_slice *line);
/* At the end of the stream: what stands behind the last newline, if anything. */
bool st_frames_rest(struct st_frames *f, struct st_slice *line);

/* ---- what a line says ------------------------------------------------------------ */

enum st_frame_kind {
    ST_FRAME_NOISE,    /* not for us: something was printed */
    ST_FRAME_STATUS,   /* {"status": ...} without a task_id */
    ST_FRAME_ANSWER,   /* {"task_id", "result", "error", "retry", "retry_after", "fence"} */
    ST_FRAME_PROGRESS, /* {"task_id", "progress"} with neither result nor error */
    ST_FRAME_BROKEN,   /* begins with a task_id, but is not JSON, or was cut */
};

/* Values are ranges of the line, ST_NONE where they are missing; the last of a repeated name. */
struct st_frame {
    enum st_frame_kind kind;
    struct st_slice task_id; /* the text between the quotes, escapes and all */
    struct st_slice status, result, error, progress;
    bool retry, cancel;
    int64_t retry_after_us; /* -1 = not said */
    int64_t fence;          /* -1 = not said */
};

/* whole: all of the line is there. */
void st_frame_parse(struct st_slice line, bool whole, struct st_frame *out);

/* Does this raw text (between quotes) spell id? */
bool st_frame_id_is(struct st_slice raw, const char *id);

#endif
