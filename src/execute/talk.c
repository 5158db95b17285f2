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

#define PUT(b, text) st_buf_put(b, text, sizeof(text) - 1)

/* ---- requests -------------------------------------------------------------------- */

static void blank_out(char *p, size_t len, char c)
{
    for (char *at; (at = memchr(p, c, len)); p = at + 1) {
        *at = ' ';
        len -= (size_t)(at + 1 - p);
    }
}

/* Raw newlines can only stand between values: a string must escape them.  Many readers take a
 * carriage return for the end of a line, too. */
static void put_json(struct st_buf *b, struct st_slice json)
{
    size_t before = b->len;

    st_buf_slice(b, json);
    if (b->failed)
        return;
    blank_out(b->p + before, json.len, '\n');
    blank_out(b->p + before, json.len, '\r');
}

static void put_payload(struct st_buf *b, struct st_slice payload)
{
    if (st_json_ok(payload)) {
        PUT(b, ",\"payload\":");
        put_json(b, payload);
        return;
    }
    PUT(b, ",\"payload\":null,\"payload_base64\":\"");
    st_buf_base64(b, payload);
    st_buf_putc(b, '"');
}

static void put_int(struct st_buf *b, int64_t v)
{
    char text[24], *p = text + sizeof(text);
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    st_buf_put(b, p, (size_t)(text + sizeof(text) - p));
}

static void put_deadline(struct st_buf *b, int64_t deadline_us)
{
    char text[ST_TIME_TEXT];

    if (!deadline_us) {
        PUT(b, "null");
        return;
    }
    st_buf_putc(b, '"');
    st_buf_puts(b, st_time_format(deadline_us, text));
    st_buf_putc(b, '"');
}

/* meta.traceparent, if it is a string of a sensible length. */
static void put_traceparent(struct st_buf *b, struct st_slice meta)
{
    struct st_slice v = ST_NONE;

    if (meta.p && st_json_ok(meta))
        v = st_json_member(meta, "traceparent");
    if (v.p && v.len <= TRACEPARENT_MAX && st_json_typeof(v) == ST_JSON_STRING)
        st_buf_slice(b, v);
    else
        PUT(b, "null");
}

bool st_talk_request(struct st_buf *b, const struct st_job *job, int64_t deadline_us,
                     size_t line_max)
{
    int max = job->policy.max_attempts;
    size_t before = b->len;
    bool ok;

    PUT(b, "{\"task_id\":");
    st_json_put_string(b, st_slice_cstr(job->id));
    PUT(b, ",\"type\":");
    st_json_put_string(b, st_slice_cstr(job->type));
    put_payload(b, job->payload);
    PUT(b, ",\"retry_count\":");
    put_int(b, job->attempt > 0 ? job->attempt - 1 : 0);
    PUT(b, ",\"max_retry\":");
    put_int(b, max > 0 ? max - 1 : ST_TALK_NO_LIMIT);
    PUT(b, ",\"queue\":");
    st_json_put_string(b, st_slice_cstr(job->queue));
    PUT(b, ",\"attempt\":");
    put_int(b, job->attempt);
    PUT(b, ",\"deadline\":");
    put_deadline(b, deadline_us);
    PUT(b, ",\"fence\":");
    put_int(b, job->fence);
    PUT(b, ",\"traceparent\":");
    put_traceparent(b, job->meta);
    PUT(b, "}\n");
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
    PUT(b, "{\"task_id\":");
    st_json_put_string(b, st_slice_cstr(job->id));
    PUT(b, ",\"cancel\":true}\n");
}

void st_talk_too_long(const struct st_job *job, size_t line_max, struct st_ran *ran)
{
    st_ran_fail(ran, ST_KIND_PERMANENT,
                "the request with its payload of %zu bytes is longer than a line may be (%zu bytes)",
                job->payload.len, line_max);
    ran->advice = ST_PERMANENT;
}

/* ---- answers --------------------------------------------------------------------- */

bool st_talk_ready(const struct st_frame *f)
{
    return f->kind == ST_FRAME_STATUS && st_slice_is(f->status, "\"ready\"");
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

static bool no_error(struct st_slice error)
{
    return !error.p || st_slice_is(error, "null") || st_slice_is(error, "\"\"") ||
           st_slice_is(error, "false");
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
        st_ran_fail(ran, ST_KIND_RESULT_TOO_LARGE, "the answer is longer than a line may be (%zu "
                                                   "bytes)", line_max);
    else if (st_json_check(line, &err) != STINT_OK)
        st_ran_fail(ran, ST_KIND_BAD_RESULT, "the answer is %s", err.message);
    else
        st_ran_fail(ran, ST_KIND_BAD_RESULT, "the answer cannot be read");
}
