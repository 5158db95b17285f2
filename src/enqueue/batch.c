/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c - many jobs from newline-delimited JSON.
 *
 * A line is read into an item whose texts are copied to chunks that never move; payload and
 * meta go there byte for byte.  Lines, jobs and bytes are bounded.
 *
 * Invariant: whatever is in jobs[0 .. n) has passed st_enqueue_check.
 *
 * Thread: the caller's.
 */
#include "enqueue/batch.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_SIZE ((size_t)64 << 10)
#define TEXT_MAX   4096 /* no string of a line but payload and meta is longer */

struct st_batch_chunk {
    struct st_batch_chunk *next;
    size_t len, cap;
    char bytes[];
};

void st_batch_init(struct st_batch *b, const struct st_new_job *defaults, size_t payload_max)
{
    memset(b, 0, sizeof(*b));
    b->defaults = *defaults;
    b->defaults.id = ST_NONE;
    b->payload_max = payload_max;
    st_buf_init(&b->partial, ST_BATCH_LINE_MAX);
}

void st_batch_clear(struct st_batch *b)
{
    while (b->texts) {
        struct st_batch_chunk *next = b->texts->next;

        free(b->texts);
        b->texts = next;
    }
    st_buf_clear(&b->partial);
    free(b->jobs);
    free(b->lines);
    b->jobs = NULL;
    b->lines = NULL;
    b->n = b->cap = b->bytes = 0;
}

/* ---- texts that stay --------------------------------------------------------------- */

static struct st_batch_chunk *chunk_for(struct st_batch *b, size_t len)
{
    struct st_batch_chunk *c = b->texts;
    size_t cap = len > CHUNK_SIZE ? len : CHUNK_SIZE;

    if (c && c->cap - c->len >= len)
        return c;
    c = malloc(sizeof(*c) + cap);
    if (!c)
        return NULL;
    c->len = 0;
    c->cap = cap;
    c->next = b->texts;
    b->texts = c;
    return c;
}

/* Makes *s a copy that lives as long as the batch. */
static stint_code keep(struct st_batch *b, struct st_slice *s, stint_error *err)
{
    struct st_batch_chunk *c;

    if (!s->p)
        return STINT_OK;
    if (b->bytes + s->len > ST_BATCH_BYTES_MAX) {
        stint_code rc = st_fail(err, STINT_EINVAL, "the batch has more than %zu bytes", ST_BATCH_BYTES_MAX);

        st_err_remedy(err, "send it in several batches");
        return rc;
    }
    c = chunk_for(b, s->len);
    if (!c)
        return st_fail(err, STINT_ENOMEM, "no memory for the batch");
    if (s->len)
        memcpy(c->bytes + c->len, s->p, s->len);
    s->p = c->bytes + c->len;
    c->len += s->len;
    b->bytes += s->len;
    return STINT_OK;
}

/* ---- members ----------------------------------------------------------------------- */

struct reader {
    struct st_batch *b;
    struct st_enqueue_item item;
    unsigned seen; /* bit 1 << index in members[] */
    bool has_delay, has_at;
    stint_error *err;
};

/* want: "a string"; like: what one looks like. */
static stint_code wrong_type(struct reader *r, const char *want, const char *like)
{
    st_fail(r->err, STINT_EINVAL, "is not %s", want);
    st_err_remedy(r->err, "write it as %s", like);
    return STINT_EINVAL;
}

/* A string's text, kept. */
static stint_code read_text(struct reader *r, struct st_slice v, struct st_slice *out)
{
    struct st_buf text;
    stint_code rc;

    if (st_json_typeof(v) != ST_JSON_STRING)
        return wrong_type(r, "a string", "\"text\", in double quotes");
    st_buf_init(&text, TEXT_MAX);
    st_json_string(v, &text);
    if (text.failed) {
        rc = st_refuse(r->err, "shorten it; only payload and meta may be long", "is longer than %d bytes", TEXT_MAX);
    } else {
        *out = ST_SLICE(text.p ? text.p : "", text.len);
        rc = keep(r->b, out, r->err);
    }
    st_buf_clear(&text);
    return rc;
}

static stint_code read_int(struct reader *r, struct st_slice v, int64_t min, int64_t max, int *out)
{
    int64_t n;

    if (!st_json_i64(v, &n))
        return wrong_type(r, "a whole number", "digits without quotes, such as 5");
    if (n < min || n > max) {
        st_fail(r->err, STINT_EINVAL, "%lld is out of range", (long long)n);
        st_err_remedy(r->err, "write a number between %lld and %lld", (long long)min, (long long)max);
        return STINT_EINVAL;
    }
    *out = (int)n;
    return STINT_OK;
}

/* A duration, by one of the functions that read one. */
static stint_code read_span(struct reader *r, struct st_slice v,
                            stint_code (*parse)(struct st_slice, int64_t *, stint_error *), int64_t *out)
{
    struct st_slice text;
    stint_code rc;

    if (st_json_typeof(v) == ST_JSON_NUMBER)
        return wrong_type(r, "a duration with a unit", "a string such as \"90s\" or \"1h30m\"");
    rc = read_text(r, v, &text);
    return rc == STINT_OK ? parse(text, out, r->err) : rc;
}

static stint_code read_type(struct reader *r, struct st_slice v)
{
    return read_text(r, v, &r->item.job.type);
}

static stint_code read_queue(struct reader *r, struct st_slice v)
{
    return read_text(r, v, &r->item.job.queue);
}

static stint_code read_id(struct reader *r, struct st_slice v)
{
    return read_text(r, v, &r->item.job.id);
}

static stint_code read_key(struct reader *r, struct st_slice v)
{
    return read_text(r, v, &r->item.job.key);
}

/* Copied when the whole line has proved good. */
static stint_code read_payload(struct reader *r, struct st_slice v)
{
    r->item.job.payload = v;
    return STINT_OK;
}

static stint_code read_meta(struct reader *r, struct st_slice v)
{
    if (st_json_typeof(v) != ST_JSON_OBJECT)
        return wrong_type(r, "an object", "{\"name\":\"value\"}");
    r->item.job.meta = v;
    return STINT_OK;
}

static stint_code read_priority(struct reader *r, struct st_slice v)
{
    return read_int(r, v, ST_PRIORITY_MIN, ST_PRIORITY_MAX, &r->item.job.priority);
}

static stint_code read_max_attempts(struct reader *r, struct st_slice v)
{
    return read_int(r, v, 0, ST_ATTEMPTS_MAX, &r->item.job.max_attempts);
}

static stint_code read_timeout(struct reader *r, struct st_slice v)
{
    return read_span(r, v, st_timeout_parse, &r->item.job.timeout_us);
}

static stint_code read_delay(struct reader *r, struct st_slice v)
{
    r->has_delay = true;
    return read_span(r, v, st_duration_parse, &r->item.job.delay_us);
}

static stint_code read_at(struct reader *r, struct st_slice v)
{
    struct st_slice text;
    stint_code rc = read_text(r, v, &text);

    r->has_at = true;
    return rc == STINT_OK ? st_time_parse(text, &r->item.job.due_us, r->err) : rc;
}

static stint_code read_unique(struct reader *r, struct st_slice v)
{
    struct st_slice text;
    stint_code rc = read_text(r, v, &text);

    if (rc != STINT_OK)
        return rc;
    return st_unique_parse(text, &r->item.job.unique, &r->item.job.window_us, r->err);
}

static const struct {
    const char *name;
    stint_code (*read)(struct reader *r, struct st_slice v);
} members[] = {
    {"type", read_type},
    {"payload", read_payload},
    {"queue", read_queue},
    {"priority", read_priority},
    {"delay", read_delay},
    {"at", read_at},
    {"max_attempts", read_max_attempts},
    {"timeout", read_timeout},
    {"key", read_key},
    {"unique", read_unique},
    {"id", read_id},
    {"meta", read_meta},
};
#define MEMBERS_N (sizeof(members) / sizeof(members[0]))

static stint_code unknown_member(struct reader *r, struct st_slice key)
{
    stint_code rc =
        st_fail(r->err, STINT_EINVAL, "there is no member \"%.*s\"", (int)st_utf8_cut(key.p, key.len, 64), key.p);

    st_err_remedy(r->err, "members are type, payload, queue, priority, delay, at, max_attempts, "
                          "timeout, key, unique, id, meta");
    return rc;
}

static stint_code read_member(struct reader *r, struct st_slice key, struct st_slice v)
{
    size_t i = 0;
    stint_code rc = STINT_OK;

    while (i < MEMBERS_N && !st_json_key_is(key, members[i].name))
        i++;
    if (i == MEMBERS_N)
        return unknown_member(r, key);
    if (r->seen & 1u << i)
        return st_refuse(r->err, "keep one of them", "%s is given twice", members[i].name);
    r->seen |= 1u << i;
    if (st_json_typeof(v) != ST_JSON_NULL || members[i].read == read_payload)
        rc = members[i].read(r, v);
    if (rc != STINT_OK)
        st_err_prefix(r->err, "%s", members[i].name);
    return rc;
}

/* ---- lines ------------------------------------------------------------------------- */

static bool grow(struct st_batch *b)
{
    size_t cap = b->cap ? b->cap * 2 : 64;
    struct st_new_job *jobs = reallocarray(b->jobs, cap, sizeof(*jobs));
    size_t *lines;

    if (!jobs)
        return false;
    b->jobs = jobs;
    lines = reallocarray(b->lines, cap, sizeof(*lines));
    if (!lines)
        return false;
    b->lines = lines;
    b->cap = cap;
    return true;
}

static stint_code add_job(struct st_batch *b, const struct st_new_job *job, stint_error *err)
{
    if (b->n == ST_BATCH_JOBS_MAX) {
        stint_code rc = st_fail(err, STINT_EINVAL, "the batch has more than %zu jobs", ST_BATCH_JOBS_MAX);

        st_err_remedy(err, "send it in several batches");
        return rc;
    }
    if (b->n == b->cap && !grow(b))
        return st_fail(err, STINT_ENOMEM, "no memory for the batch");
    b->lines[b->n] = b->line;
    b->jobs[b->n++] = *job;
    return STINT_OK;
}

/* Keeps what still points into the line or the item. */
static stint_code keep_job(struct st_batch *b, struct reader *r, stint_error *err)
{
    struct st_new_job *job = &r->item.job;
    stint_code rc = STINT_OK;

    if (job->id.p == r->item.id)
        rc = keep(b, &job->id, err);
    if (rc == STINT_OK && job->key.p == r->item.key)
        rc = keep(b, &job->key, err);
    if (rc == STINT_OK && job->payload.p != b->defaults.payload.p)
        rc = keep(b, &job->payload, err);
    if (rc == STINT_OK && job->meta.p != b->defaults.meta.p)
        rc = keep(b, &job->meta, err);
    return rc == STINT_OK ? add_job(b, job, err) : rc;
}

/* A line's own delay stands above a default time, and the other way round. */
static stint_code settle_times(struct reader *r)
{
    if (r->has_delay && r->has_at)
        return st_refuse(r->err, "one of them is enough: take the other out", "both delay and at are given");
    if (r->has_delay)
        r->item.job.due_us = 0;
    if (r->has_at)
        r->item.job.delay_us = 0;
    return STINT_OK;
}

static stint_code read_line(struct st_batch *b, struct st_slice doc, stint_error *err)
{
    static const char object[] = "each line is one object, such as {\"type\":\"mail\",\"payload\":{}}";
    struct reader r = {.b = b, .item = {.job = b->defaults}, .err = err};
    struct st_slice key, value;
    stint_code rc = st_json_check(doc, err);
    size_t pos = 0;

    if (rc != STINT_OK) {
        st_err_remedy(err, "%s", object);
        return rc;
    }
    if (st_json_typeof(doc) != ST_JSON_OBJECT)
        return st_refuse(err, object, "is not a JSON object");
    while (rc == STINT_OK && st_json_next(doc, &pos, &key, &value))
        rc = read_member(&r, key, value);
    if (rc == STINT_OK && !r.item.job.type.p)
        rc = st_refuse(err, "add \"type\", or name the TYPE of all lines in the command", "type: is missing");
    if (rc == STINT_OK)
        rc = settle_times(&r);
    if (rc == STINT_OK)
        rc = st_enqueue_check(&r.item, b->payload_max, err);
    return rc == STINT_OK ? keep_job(b, &r, err) : rc;
}

static stint_code too_long(stint_error *err)
{
    return st_refuse(err, "put the data in a file and enqueue its name", "has more than %zu bytes", ST_BATCH_LINE_MAX);
}

stint_code st_batch_line(struct st_batch *b, struct st_slice line, stint_error *err)
{
    struct st_slice doc = st_json_trim(line);
    stint_code rc = STINT_OK;

    b->line++;
    if (line.len > ST_BATCH_LINE_MAX)
        rc = too_long(err);
    else if (doc.len)
        rc = read_line(b, doc, err);
    if (rc != STINT_OK)
        st_err_prefix(err, "line %zu", b->line);
    return rc;
}

/* Bytes of a line that lie in more than one piece. */
static stint_code partial_keep(struct st_batch *b, struct st_slice bytes, stint_error *err)
{
    stint_code rc;

    if (b->partial.len + bytes.len > ST_BATCH_LINE_MAX) {
        rc = too_long(err);
    } else {
        st_buf_slice(&b->partial, bytes);
        if (!b->partial.failed)
            return STINT_OK;
        rc = st_fail(err, STINT_ENOMEM, "no memory for the line");
    }
    st_err_prefix(err, "line %zu", b->line + 1);
    return rc;
}

/* The last piece of such a line. */
static stint_code partial_line(struct st_batch *b, struct st_slice rest, stint_error *err)
{
    stint_code rc = partial_keep(b, rest, err);

    if (rc == STINT_OK)
        rc = st_batch_line(b, st_buf_view(&b->partial), err);
    st_buf_reset(&b->partial);
    return rc;
}

stint_code st_batch_feed(struct st_batch *b, struct st_slice bytes, stint_error *err)
{
    while (bytes.len) {
        const char *nl = memchr(bytes.p, '\n', bytes.len);
        struct st_slice line = ST_SLICE(bytes.p, nl ? (size_t)(nl - bytes.p) : bytes.len);
        stint_code rc;

        if (!nl)
            return partial_keep(b, line, err);
        rc = b->partial.len ? partial_line(b, line, err) : st_batch_line(b, line, err);
        if (rc != STINT_OK)
            return rc;
        bytes = ST_SLICE(nl + 1, bytes.len - line.len - 1);
    }
    return STINT_OK;
}

stint_code st_batch_end(struct st_batch *b, stint_error *err)
{
    return b->partial.len ? partial_line(b, ST_NONE, err) : STINT_OK;
}
