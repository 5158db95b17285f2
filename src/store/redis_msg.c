/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_msg.c - asynq's task message, read and written.
 *
 * Written once, at the enqueue; what changes later (retried, error_msg, ...) is changed by the scripts in the bytes that are
 * there, so that fields we do not know stay.
 */
#include <stdlib.h>
#include <string.h>

#include "asynq.pb-c.h"
#include "store/redis_int.h"

#define MSG_MAX        ((size_t)64 << 20) /* more than any payload we take; a foreign one may be larger than our own limit */
#define NO_LIMIT_RETRY INT32_MAX

/* ---- reading ------------------------------------------------------------------------------------------- */

static struct st_slice text(const char *s)
{
    return s && *s ? st_slice_cstr(s) : ST_NONE;
}

bool st_redis_msg_read(struct st_slice bytes, struct st_redis_msg *out)
{
    Asynq__TaskMessage *m;

    memset(out, 0, sizeof(*out));
    if (!bytes.len || bytes.len > MSG_MAX)
        return false;
    m = asynq__task_message__unpack(NULL, bytes.len, (const uint8_t *)bytes.p);
    if (!m)
        return false;
    if (m->type.len && memchr(m->type.data, 0, m->type.len)) { /* it would be taken for another type */
        asynq__task_message__free_unpacked(m, NULL);
        return false;
    }
    *out =
        (struct st_redis_msg){.type = ST_SLICE((const char *)m->type.data, m->type.len),
                              .payload = ST_SLICE(m->payload.len ? (const char *)m->payload.data : "", m->payload.len),
                              .id = text(m->id),
                              .queue = text(m->queue),
                              .error_msg = text(m->error_msg),
                              .unique_key = text(m->unique_key),
                              .group_key = text(m->group_key),
                              .retry = m->retry,
                              .retried = m->retried,
                              .timeout_s = m->timeout,
                              .deadline_s = m->deadline,
                              .last_failed_s = m->last_failed_at,
                              .retention_s = m->retention,
                              .completed_s = m->completed_at,
                              .own = m};
    return true;
}

void st_redis_msg_clear(struct st_redis_msg *m)
{
    if (m->own)
        asynq__task_message__free_unpacked(m->own, NULL);
    memset(m, 0, sizeof(*m));
}

/* ---- writing ------------------------------------------------------------------------------------------- */

/* protobuf-c wants strings that end with a NUL; ours do not, so the few fields are written by hand, in ascending order and without
 * zeros, as Go's encoder does. */
static void put_varint(struct st_buf *out, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        st_buf_putc(out, (char)(v | 0x80));
    st_buf_putc(out, (char)v);
}

static void put_text(struct st_buf *out, unsigned field, struct st_slice s)
{
    if (!s.len)
        return;
    put_varint(out, field << 3 | 2);
    put_varint(out, s.len);
    st_buf_slice(out, s);
}

static void put_int(struct st_buf *out, unsigned field, int64_t v)
{
    if (!v)
        return;
    put_varint(out, field << 3);
    put_varint(out, (uint64_t)v);
}

void st_redis_msg_write(const struct st_redis_msg *m, struct st_buf *out)
{
    put_text(out, 1, m->type);
    put_text(out, 2, m->payload);
    put_text(out, 3, m->id);
    put_text(out, 4, m->queue);
    put_int(out, 5, m->retry);
    put_int(out, 6, m->retried);
    put_text(out, 7, m->error_msg);
    put_int(out, 8, m->timeout_s);
    put_int(out, 9, m->deadline_s);
    put_text(out, 10, m->unique_key);
    put_int(out, 11, m->last_failed_s);
    put_int(out, 12, m->retention_s);
    put_int(out, 13, m->completed_s);
    put_text(out, 14, m->group_key);
}

/* Seconds, rounded up: a stock server must not stop it earlier than we would. */
static int64_t timeout_s(int64_t us)
{
    if (us < 0)
        us = st_policy_default.timeout_us;
    return us / ST_SEC + (us % ST_SEC != 0);
}

void st_redis_msg_new(const struct st_new_job *j, struct st_slice unique_key, struct st_buf *out)
{
    const int max = j->max_attempts < 0 ? st_policy_default.max_attempts : j->max_attempts;
    const struct st_redis_msg m = {.type = j->type,
                                   .payload = j->payload,
                                   .id = j->id,
                                   .queue = j->queue,
                                   .retry = max ? max - 1 : NO_LIMIT_RETRY,
                                   .timeout_s = timeout_s(j->timeout_us),
                                   .unique_key = unique_key,
                                   .retention_s = ST_REDIS_RETENTION};

    st_redis_msg_write(&m, out);
}

/* ---- what holds for it ------------------------------------------------------------------------------------ */

static int own_max_attempts(const struct st_redis_msg *m)
{
    if (m->retry < 0)
        return 1;
    return m->retry < ST_ATTEMPTS_MAX ? m->retry + 1 : ST_ATTEMPTS_MAX;
}

/* asynq: the timeout, and the deadline if that is sooner; we count both from the start. */
static int64_t foreign_timeout(const struct st_redis_msg *m)
{
    if (m->timeout_s > 0 && m->timeout_s < INT64_MAX / ST_SEC)
        return m->timeout_s * ST_SEC;
    return m->deadline_s > 0 ? 0 : ST_REDIS_FOREIGN_TIMEOUT;
}

struct st_policy st_redis_policy(const struct st_policy *rule, const struct st_redis_msg *m,
                                 const struct st_redis_task *t)
{
    struct st_policy p = *rule;

    if (t->flags & ST_RT_FOREIGN) {
        p.max_attempts = own_max_attempts(m);
        p.timeout_us = foreign_timeout(m);
        return p;
    }
    if (t->flags & ST_RT_NO_LIMIT)
        p.max_attempts = 0;
    else if (!(t->flags & ST_RT_BY_TYPE))
        p.max_attempts = own_max_attempts(m);
    if (t->timeout_us >= 0)
        p.timeout_us = t->timeout_us;
    return p;
}
