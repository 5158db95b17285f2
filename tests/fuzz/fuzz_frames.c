/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_frames.c - any bytes as the stdout of a child that works by lines.
 *
 * The first byte says how the rest is cut into reads and how long a line may be.  What must hold:
 * the lines are those of the stream whatever the cuts; none is longer than the limit, and the
 * buffer does not outgrow it; every range lies inside its line and is the JSON value that the
 * walkers of json.h find there; an answer comes to a result or an error, never to both.
 */
#include "fuzz.h"

#include <string.h>

#include "base/json.h"
#include "execute/frames.h"
#include "execute/talk.h"

static bool inside(struct st_slice s, struct st_slice line)
{
    return !s.p || (s.p >= line.p && s.p + s.len <= line.p + line.len);
}

/* What the walkers of a checked document say. */
static void check_member(struct st_slice line, const char *key, struct st_slice got)
{
    struct st_slice want = st_json_member(line, key);

    MUST(want.p == got.p && want.len == got.len);
}

static void check_answer(const struct st_frame *f, struct st_slice line)
{
    struct st_ran ran = ST_RAN_INIT;

    st_talk_answer(f, 64, &ran);
    MUST(ran.ok == (ran.result != NULL));
    MUST(ran.ok == (ran.message == NULL));
    MUST(ran.result_len <= 64);
    MUST(!ran.message || st_utf8_valid(ran.message, strlen(ran.message)));
    MUST(ran.retry_after_us >= -1);
    if (ran.ok && f->result.p)
        MUST(ran.result_len == f->result.len && !memcmp(ran.result, f->result.p, f->result.len));
    st_ran_clear(&ran);
    check_member(line, "result", f->result);
    check_member(line, "error", f->error);
    check_member(line, "progress", f->progress);
}

static void check_status(const struct st_frame *f)
{
    char *error = st_talk_error(f);

    MUST(!(error && st_talk_ready(f)));
    free(error);
}

static void check_line(struct st_slice line, bool whole)
{
    struct st_ran ran = ST_RAN_INIT;
    struct st_frame f;

    st_frame_parse(line, whole, &f);
    MUST(inside(f.task_id, line) && inside(f.result, line) && inside(f.error, line));
    MUST(inside(f.progress, line) && inside(f.status, line));
    MUST((f.kind == ST_FRAME_NOISE || f.kind == ST_FRAME_STATUS) || f.task_id.p);
    MUST(f.retry_after_us >= -1);
    switch (f.kind) {
    case ST_FRAME_NOISE:
        break;
    case ST_FRAME_STATUS:
        MUST(whole && st_json_ok(line) && f.status.p);
        check_status(&f);
        break;
    case ST_FRAME_ANSWER:
    case ST_FRAME_PROGRESS:
        MUST(whole && st_json_ok(line));
        check_answer(&f, line);
        break;
    case ST_FRAME_BROKEN:
        MUST(!whole || !st_json_ok(line));
        st_talk_broken(line, whole, 64, &ran);
        MUST(!ran.ok && ran.message);
        st_ran_clear(&ran);
        break;
    }
}

/* The next line of the stream by other means; its length without the newline, or -1. */
static long next_line(const char *p, size_t left)
{
    const char *nl = left ? memchr(p, '\n', left) : NULL;

    return nl ? (long)(nl - p) : -1;
}

static void check_next(enum st_frames_got got, struct st_slice line, const char *at, size_t left, size_t max)
{
    long want = next_line(at, left);

    if (got == ST_FRAMES_LINE)
        MUST(want >= 0 && (size_t)want == line.len && line.len <= max);
    else
        MUST((want < 0 || (size_t)want > max) && line.len == max);
    MUST(line.len == 0 || !memcmp(line.p, at, line.len));
    check_line(line, got == ST_FRAMES_LINE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *stream = (const char *)data + 1, *at = stream, *end = (const char *)data + size;
    size_t step = size ? 1 + data[0] % 32 : 1, max = size && data[0] & 0x80 ? 24 : 4096, took;
    struct st_frames f;
    struct st_slice line;
    enum st_frames_got got;

    if (!size)
        return 0;
    st_frames_init(&f, max);
    for (const char *p = stream; p < end; p += took) {
        took = st_frames_put(&f, p, (size_t)(end - p) < step ? (size_t)(end - p) : step);
        MUST(took > 0);
        while ((got = st_frames_next(&f, &line)) != ST_FRAMES_NONE) {
            long len = next_line(at, (size_t)(end - at));

            check_next(got, line, at, (size_t)(end - at), max);
            at = len < 0 ? end : at + len + 1;
        }
        MUST(f.start <= f.seen && f.seen <= f.end && f.end <= f.cap);
    }
    if (st_frames_rest(&f, &line)) {
        MUST(line.len <= max && line.len == (size_t)(end - at));
        check_line(line, true);
    }
    MUST(at == end || line.len == (size_t)(end - at));
    st_frames_clear(&f);
    return 0;
}
