/* SPDX-License-Identifier: Apache-2.0
 *
 * frames.c - a child's stdout, line by line, and what a line says.
 *
 * Invariants:
 *   (1) start <= seen <= end <= cap, and no newline stands in [start, seen);
 *   (2) cap is at most max + 1 or CHUNK, whichever is more: a child cannot make us keep more.
 *
 * Thread: one at a time.
 */
#include "execute/frames.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"

#define CHUNK           65536
#define KEEP            (1u << 20) /* a buffer larger than this is given back when it is empty */
#define RETRY_AFTER_MAX (36500 * ST_DAY)

/* ---- lines ----------------------------------------------------------------------- */

void st_frames_init(struct st_frames *f, size_t max)
{
    *f = (struct st_frames){.max = max < SIZE_MAX / 4 ? max : SIZE_MAX / 4};
}

void st_frames_clear(struct st_frames *f)
{
    free(f->p);
    st_frames_init(f, f->max);
}

static void to_front(struct st_frames *f)
{
    if (f->start == 0)
        return;
    memmove(f->p, f->p + f->start, f->end - f->start);
    f->end -= f->start;
    f->seen -= f->start;
    f->start = 0;
}

static bool grow(struct st_frames *f)
{
    size_t most = f->max + 1 > CHUNK ? f->max + 1 : CHUNK;
    size_t cap = f->cap ? 2 * f->cap : CHUNK;
    char *p;

    if (cap > most)
        cap = most;
    p = realloc(f->p, cap);
    if (!p)
        return false;
    f->p = p;
    f->cap = cap;
    return true;
}

char *st_frames_room(struct st_frames *f, size_t *n)
{
    *n = 0;
    if (f->start == f->end) {
        f->start = f->end = f->seen = 0;
        if (f->cap > KEEP) {
            free(f->p);
            f->p = NULL;
            f->cap = 0;
        }
    }
    to_front(f);
    if (f->end == f->cap && !grow(f))
        return NULL;
    *n = f->cap - f->end;
    return f->p + f->end;
}

void st_frames_filled(struct st_frames *f, size_t n)
{
    f->end += n;
}

size_t st_frames_put(struct st_frames *f, const char *p, size_t n)
{
    size_t room;
    char *to = st_frames_room(f, &room);

    if (!to)
        return 0;
    n = n < room ? n : room;
    memcpy(to, p, n);
    st_frames_filled(f, n);
    return n;
}

/* Nothing of [start, upto) is needed. */
static void skip_to(struct st_frames *f, size_t upto)
{
    f->start = f->seen = upto;
}

enum st_frames_got st_frames_next(struct st_frames *f, struct st_slice *line)
{
    while (f->seen < f->end) {
        char *nl = memchr(f->p + f->seen, '\n', f->end - f->seen);
        size_t upto = nl ? (size_t)(nl - f->p) : f->end;
        size_t len = upto - f->start;

        if (f->dropping) {
            f->dropping = !nl;
            skip_to(f, nl ? upto + 1 : upto);
            continue;
        }
        *line = ST_SLICE(f->p + f->start, len);
        if (len > f->max) {
            line->len = f->max;
            f->dropping = !nl;
            f->n_dropped++;
            skip_to(f, nl ? upto + 1 : upto);
            return ST_FRAMES_CUT;
        }
        if (nl) {
            skip_to(f, upto + 1);
            return ST_FRAMES_LINE;
        }
        f->seen = upto;
    }
    return ST_FRAMES_NONE;
}

bool st_frames_rest(struct st_frames *f, struct st_slice *line)
{
    bool any = f->end > f->start && !f->dropping;

    *line = any ? ST_SLICE(f->p + f->start, f->end - f->start) : ST_NONE;
    skip_to(f, f->end);
    return any;
}

/* ---- what a line says ------------------------------------------------------------ */

/* Seconds with a fraction, a JSON number, as microseconds; -1 if it makes no sense. */
static int64_t seconds(struct st_slice v)
{
    double value = 0, unit = 1;
    int exp = 0;
    bool minus = false;
    size_t i = 0;

    if (!v.len || v.p[0] < '0' || v.p[0] > '9')
        return -1; /* nothing below 0 */
    for (; i < v.len && v.p[i] >= '0' && v.p[i] <= '9'; i++)
        value = value * 10 + (v.p[i] - '0');
    if (i < v.len && v.p[i] == '.')
        for (i++; i < v.len && v.p[i] >= '0' && v.p[i] <= '9'; i++)
            value += (v.p[i] - '0') * (unit /= 10);
    if (i < v.len && (v.p[i] == 'e' || v.p[i] == 'E')) {
        i++;
        if (i < v.len && (v.p[i] == '-' || v.p[i] == '+'))
            minus = v.p[i++] == '-';
        for (; i < v.len && exp < 400; i++)
            exp = exp * 10 + (v.p[i] - '0');
    }
    while (exp-- > 0)
        value = minus ? value / 10 : value * 10;
    value *= (double)ST_SEC;
    return value < (double)RETRY_AFTER_MAX ? (int64_t)(value + 0.5) : RETRY_AFTER_MAX;
}

#define IS(s, text) ((s).len == sizeof(text) - 1 && !memcmp((s).p, text, sizeof(text) - 1))

/* A name of ours that is written with escapes; any other stays as it is. */
static struct st_slice plain_key(struct st_slice key)
{
    static const char *const ours[] = {"task_id", "result", "error", "retry",      "progress",
                                       "status",  "cancel", "fence", "retry_after"};

    for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
        if (st_json_key_is(key, ours[i]))
            return st_slice_cstr(ours[i]);
    return key;
}

static void take_task_id(struct st_frame *out, struct st_slice v)
{
    out->task_id = ST_NONE;
    if (st_json_typeof(v) == ST_JSON_STRING)
        out->task_id = ST_SLICE(v.p + 1, v.len - 2);
}

static void take_member(struct st_frame *out, struct st_slice key, struct st_slice v)
{
    if (key.len && memchr(key.p, '\\', key.len))
        key = plain_key(key);
    if (IS(key, "task_id"))
        take_task_id(out, v);
    else if (IS(key, "result"))
        out->result = v;
    else if (IS(key, "error"))
        out->error = v;
    else if (IS(key, "retry"))
        out->retry = IS(v, "true");
    else if (IS(key, "progress"))
        out->progress = v;
    else if (IS(key, "status"))
        out->status = v;
    else if (IS(key, "cancel"))
        out->cancel = IS(v, "true");
    else if (IS(key, "retry_after"))
        out->retry_after_us = seconds(v);
    else if (IS(key, "fence") && !st_json_i64(v, &out->fence))
        out->fence = -1;
}

static enum st_frame_kind kind_of(const struct st_frame *f)
{
    if (!f->task_id.p)
        return f->status.p ? ST_FRAME_STATUS : ST_FRAME_NOISE;
    return f->progress.p && !f->result.p && !f->error.p ? ST_FRAME_PROGRESS : ST_FRAME_ANSWER;
}

void st_frame_parse(struct st_slice line, bool whole, struct st_frame *out)
{
    struct st_slice key, value;
    size_t pos = 0;
    bool ok = whole;

    *out = (struct st_frame){.kind = ST_FRAME_NOISE, .retry_after_us = -1, .fence = -1};
    line = st_json_trim(line);
    if (!line.len || line.p[0] != '{')
        return;
    /* Each step checks the value it steps over, so one pass tells whether all of it is JSON. */
    while (st_json_next(line, &pos, &key, &value)) {
        if (!key.p) {
            ok = false;
            break;
        }
        take_member(out, key, value);
    }
    if (pos == 0)
        return; /* no members: {} or nothing of the kind */
    line = st_json_trim(ST_SLICE(line.p + pos, line.len - pos));
    if (ok && IS(line, "}"))
        out->kind = kind_of(out);
    else if (out->task_id.p)
        out->kind = ST_FRAME_BROKEN;
}

bool st_frame_id_is(struct st_slice raw, const char *id)
{
    return st_json_key_is(raw, id);
}
