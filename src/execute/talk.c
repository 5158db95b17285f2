/* SPDX-License-Identifier: Apache-2.0
 *
 * talk.c - what is said to a child that works by lines, and what its answers come to.
 *
 * An answer without an error is a success.  An error is for good unless it comes with
 * "retry":true; then the policy decides, and "retry_after" over it.
 */
#include "execute/talk.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"

#define TRACEPARENT_MAX 512

/* ---- requests -------------------------------------------------------------------- */

/* A request is written in three pieces, each into room that was made for it at once. */

#define HEAD_MAX(id, type) (64 + 6 * (id).len + 6 * (type).len)
#define TAIL_MAX(queue)    (320 + ST_TIME_TEXT + TRACEPARENT_MAX + 6 * (queue).len)

#define LIT(p, text) ((char *)mempcpy(p, text, sizeof(text) - 1))

/* ASCII that needs no escape; eight bytes at a time. */
static bool is_plain(struct st_slice s)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t w;

    for (; s.len; s.p += sizeof(w), s.len -= sizeof(w)) {
        w = ones * '0';
        if (s.len < sizeof(w)) {
            memcpy(&w, s.p, s.len);
            s.len = sizeof(w);
        } else {
            memcpy(&w, s.p, sizeof(w));
        }
        if ((w | (w - ones * 0x20) | ((w ^ ones * '"') - ones) | ((w ^ ones * '\\') - ones)) & high)
            return false;
    }
    return true;
}

/* Quoted; there is room for six times its length and the quotes. */
static char *put_text(char *p, struct st_slice s)
{
    struct st_buf b = {.p = p, .cap = 6 * s.len + 3, .max = 6 * s.len + 2};

    if (!is_plain(s)) {
        st_json_put_string(&b, s);
        return p + b.len;
    }
    *p++ = '"';
    p = mempcpy(p, s.p, s.len);
    *p++ = '"';
    return p;
}

static char *put_int(char *p, int64_t v)
{
    char text[24], *t = text + sizeof(text);
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do
        *--t = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--t = '-';
    return mempcpy(p, t, (size_t)(text + sizeof(text) - t));
}

static char *put_time(char *p, int64_t us, struct st_talk_time *time)
{
    int64_t second = us / ST_SEC, rest = us % ST_SEC;
    size_t len;

    if (second != time->second || !time->text[0]) {
        st_time_format(second * ST_SEC, time->text);
        time->second = second;
    }
    len = strlen(time->text); /* it ends in 000000Z */
    *p++ = '"';
    memcpy(p, time->text, len);
    for (char *d = p + len - 1; rest; rest /= 10)
        *--d = (char)('0' + rest % 10);
    p += len;
    *p++ = '"';
    return p;
}

/* meta.traceparent, if it is a string of a sensible length. */
static char *put_traceparent(char *p, struct st_slice meta)
{
    struct st_slice v = ST_NONE;

    if (meta.p && st_json_ok(meta))
        v = st_json_member(meta, "traceparent");
    if (v.p && v.len <= TRACEPARENT_MAX && st_json_typeof(v) == ST_JSON_STRING)
        return mempcpy(p, v.p, v.len);
    return LIT(p, "null");
}

static void room_used(struct st_buf *b, const char *end)
{
    b->len = (size_t)(end - b->p);
    b->p[b->len] = '\0';
}

static void put_head(struct st_buf *b, const struct st_job *job)
{
    struct st_slice id = st_slice_cstr(job->id), type = st_slice_cstr(job->type);
    char *p = st_buf_room(b, HEAD_MAX(id, type));

    if (!p)
        return;
    p = LIT(p, "{\"task_id\":");
    p = put_text(p, id);
    p = LIT(p, ",\"type\":");
    p = put_text(p, type);
    p = LIT(p, ",\"payload\":");
    room_used(b, p);
}

static void put_tail(struct st_buf *b, const struct st_job *job, int64_t deadline_us, struct st_talk_time *time)
{
    struct st_slice queue = st_slice_cstr(job->queue);
    int max = job->policy.max_attempts;
    char *p = st_buf_room(b, TAIL_MAX(queue));

    if (!p)
        return;
    p = LIT(p, ",\"retry_count\":");
    p = put_int(p, job->attempt > 0 ? job->attempt - 1 : 0);
    p = LIT(p, ",\"max_retry\":");
    p = put_int(p, max > 0 ? max - 1 : ST_TALK_NO_LIMIT);
    p = LIT(p, ",\"queue\":");
    p = put_text(p, queue);
    p = LIT(p, ",\"attempt\":");
    p = put_int(p, job->attempt);
    p = LIT(p, ",\"deadline\":");
    p = deadline_us ? put_time(p, deadline_us, time) : LIT(p, "null");
    p = LIT(p, ",\"fence\":");
    p = put_int(p, job->fence);
    p = LIT(p, ",\"traceparent\":");
    p = put_traceparent(p, job->meta);
    p = LIT(p, "}\n");
    room_used(b, p);
}

static void blank_out(char *p, size_t len, char c)
{
    for (char *at; (at = memchr(p, c, len)); p = at + 1) {
        *at = ' ';
        len -= (size_t)(at + 1 - p);
    }
}

/* Raw newlines can only stand between values: a string must escape them.  Many readers take a
 * carriage return for the end of a line, too. */
static void put_payload(struct st_buf *b, struct st_slice payload)
{
    size_t before = b->len;

    if (!st_json_ok(payload)) {
        st_buf_puts(b, "null,\"payload_base64\":\"");
        st_buf_base64(b, payload);
        st_buf_putc(b, '"');
        return;
    }
    st_buf_slice(b, payload);
    if (b->failed)
        return;
    blank_out(b->p + before, payload.len, '\n');
    blank_out(b->p + before, payload.len, '\r');
}

bool st_talk_request(struct st_buf *b, const struct st_job *job, int64_t deadline_us, struct st_talk_time *time,
                     size_t line_max)
{
    size_t before = b->len;
    bool ok;

    put_head(b, job);
    put_payload(b, job->payload);
    put_tail(b, job, deadline_us, time);
    ok = !b->failed && b->len - before <= line_max + 1;
    if (!ok && b->p) {
        b->len = before;
        b->p[before] = '\0';
        b->failed = false;
    }
    return ok;
}

void st_talk_cancel(struct st_buf *b, const struct st_job *job)
{
    st_buf_puts(b, "{\"task_id\":");
    st_json_put_string(b, st_slice_cstr(job->id));
    st_buf_puts(b, ",\"cancel\":true}\n");
}

void st_talk_too_long(const struct st_job *job, size_t line_max, struct st_ran *ran)
{
    st_ran_fail(ran, ST_KIND_PERMANENT,
                "the request with its payload of %zu bytes is longer than a line may be (%zu bytes)", job->payload.len,
                line_max);
    ran->advice = ST_PERMANENT;
}

/* ---- answers --------------------------------------------------------------------- */

bool st_talk_ready(const struct st_frame *f)
{
    return f->kind == ST_FRAME_STATUS && st_slice_is(f->status, "\"ready\"");
}

bool st_talk_is_whole(struct st_slice line)
{
    struct st_frame f;

    st_frame_parse(line, true, &f);
    return f.kind != ST_FRAME_BROKEN && !st_talk_ready(&f);
}

/* A string's text; any other value as it is written. */
static char *text_of(struct st_slice v)
{
    struct st_buf b;

    st_buf_init(&b, v.len + 1);
    if (!st_json_string(v, &b))
        st_buf_slice(&b, v);
    return st_buf_take(&b);
}

char *st_talk_error(const struct st_frame *f)
{
    if (f->kind != ST_FRAME_STATUS || !st_slice_is(f->status, "\"error\""))
        return NULL;
    return f->error.p ? text_of(f->error) : strdup("it said status: error");
}

#define IS(s, text) ((s).len == sizeof(text) - 1 && !memcmp((s).p, text, sizeof(text) - 1))

static bool no_error(struct st_slice error)
{
    return !error.p || IS(error, "null") || IS(error, "\"\"") || IS(error, "false");
}

static void take_result(struct st_slice result, size_t max, struct st_ran *ran)
{
    if (!result.p)
        result = ST_SLICE("null", 4);
    if (result.len > max) {
        st_ran_fail(ran, ST_KIND_RESULT_TOO_LARGE, "the result is larger than %zu bytes", max);
        return;
    }
    ran->result = st_slice_dup(result);
    ran->result_len = result.len;
    ran->ok = ran->result != NULL;
    if (!ran->ok)
        st_ran_fail(ran, ST_KIND_INTERNAL, "no memory for the result");
}

void st_talk_answer(const struct st_frame *f, size_t result_max, struct st_ran *ran)
{
    char *text;

    if (no_error(f->error)) {
        take_result(f->result, result_max, ran);
        return;
    }
    text = text_of(f->error);
    st_ran_fail(ran, ST_KIND_APP_ERROR, "%s", text ? text : "no memory for its error");
    free(text);
    ran->advice = f->retry ? ST_BY_POLICY : ST_PERMANENT;
    if (f->retry)
        ran->retry_after_us = f->retry_after_us;
}

void st_talk_broken(struct st_slice line, bool whole, size_t line_max, struct st_ran *ran)
{
    stint_error err;

    if (!whole)
        st_ran_fail(ran, ST_KIND_RESULT_TOO_LARGE, "the answer is longer than a line may be (%zu bytes)", line_max);
    else if (st_json_check(line, &err) != STINT_OK)
        st_ran_fail(ran, ST_KIND_BAD_RESULT, "the answer is %s", err.message);
    else
        st_ran_fail(ran, ST_KIND_BAD_RESULT, "the answer cannot be read");
}
