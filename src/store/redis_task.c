/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_task.c - the packed field and the list of ended attempts, as bytes and as structs.
 *
 * What is read here was written by this program or by somebody with write access to the server: every length is checked.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/redis_int.h"

/* ---- numbers ------------------------------------------------------------------------------------------ */

static int64_t get_be(const char *p, size_t n)
{
    uint64_t v = 0;

    for (size_t i = 0; i < n; i++)
        v = v << 8 | (unsigned char)p[i];
    return (int64_t)v;
}

static void put_be(struct st_buf *out, int64_t v, size_t n)
{
    for (size_t i = n; i-- > 0;)
        st_buf_putc(out, (char)((uint64_t)v >> (8 * i)));
}

void st_redis_score(char out[ST_REDIS_SCORE], int64_t us)
{
    snprintf(out, ST_REDIS_SCORE, "%s%lld.%06lld", us < 0 ? "-" : "", llabs((long long)us / 1000000),
             llabs((long long)us % 1000000));
}

int64_t st_redis_score_us(double score)
{
    if (!(score > -9e12 && score < 9e12))
        return score > 0 ? INT64_MAX : 0;
    return llround(score * 1e6);
}

/* ---- the packed field ------------------------------------------------------------------------------------- */

static void hold_unpack(struct st_slice f, struct st_redis_task *out)
{
    const char *p = f.p + ST_RT_FIXED;
    const size_t worker = f.len - ST_RT_FIXED - ST_RT_HOLD;

    out->held = p[0] == ST_CLAIMED || p[0] == ST_RUNNING ? (enum st_state)p[0] : 0;
    out->fence = get_be(p + 1, 8);
    out->lease_us = get_be(p + 9, 8);
    out->run_started_us = get_be(p + 17, 8);
    memcpy(out->digest, p + 25, 16);
    memcpy(out->rules, p + 41, 16);
    memcpy(out->worker, p + ST_RT_HOLD, worker);
}

bool st_redis_task_unpack(struct st_slice f, struct st_redis_task *out)
{
    memset(out, 0, sizeof(*out));
    out->timeout_us = -1;
    out->flags = ST_RT_FOREIGN;
    if (f.len < ST_RT_FIXED || f.p[0] != ST_RT_VERSION)
        return false;
    out->flags = (unsigned char)f.p[1];
    out->skips = (unsigned char)f.p[2];
    out->last_outcome = (unsigned char)f.p[3];
    out->last_state = (unsigned char)f.p[4] < ST_STATE_N ? (enum st_state)f.p[4] : 0;
    out->kind = (unsigned char)f.p[5] < ST_KIND_N ? (enum st_kind)f.p[5] : ST_KIND_INTERNAL;
    out->last_fence = get_be(f.p + 8, 8);
    out->finished_us = get_be(f.p + 16, 8);
    out->created_us = get_be(f.p + 24, 8);
    out->due_us = get_be(f.p + 32, 8);
    out->first_started_us = get_be(f.p + 40, 8);
    out->timeout_us = get_be(f.p + 48, 8);
    out->unique_until_us = get_be(f.p + 56, 8);
    if (f.len >= ST_RT_FIXED + ST_RT_HOLD && f.len <= ST_RT_FIXED + ST_RT_HOLD + ST_ID_MAX)
        hold_unpack(f, out);
    return true;
}

void st_redis_task_pack(const struct st_redis_task *t, struct st_buf *out)
{
    const char head[8] = {ST_RT_VERSION,         (char)t->flags,      (char)t->skips,
                          (char)t->last_outcome, (char)t->last_state, (char)t->kind};
    const int64_t fixed[] = {t->last_fence,       t->finished_us, t->created_us,     t->due_us,
                             t->first_started_us, t->timeout_us,  t->unique_until_us};

    st_buf_put(out, head, sizeof(head));
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        put_be(out, fixed[i], 8);
    if (!t->fence)
        return;
    st_buf_putc(out, (char)t->held);
    put_be(out, t->fence, 8);
    put_be(out, t->lease_us, 8);
    put_be(out, t->run_started_us, 8);
    st_buf_put(out, t->digest, 16);
    st_buf_put(out, t->rules, 16);
    st_buf_puts(out, t->worker);
}

bool st_redis_task_holds(const struct st_redis_task *t, struct st_slice state, double score)
{
    return t->held && st_slice_is(state, "active") && !isnan(score) && st_redis_score_us(score) == t->lease_us;
}

/* ---- ended attempts ------------------------------------------------------------------------------------------ */

#define RUN_HEAD 30 /* outcome 1, kind 1, n 4, fence 8, started 8, ended 8 */

static bool take(struct st_slice *from, size_t n, const char **out)
{
    if (from->len < n)
        return false;
    *out = from->p;
    from->p += n;
    from->len -= n;
    return true;
}

/* A text behind its length; all ones = none. */
static bool take_text(struct st_slice *from, size_t width, struct st_slice *out)
{
    const char *p;
    int64_t len;

    if (!take(from, width, &p))
        return false;
    len = get_be(p, width);
    *out = ST_NONE;
    if (width == 4 && len == 0xffffffff)
        return true;
    if (!take(from, (size_t)len, &p))
        return false;
    *out = ST_SLICE(p, (size_t)len);
    return true;
}

static bool told_read(struct st_slice *rest, struct st_redis_run *out)
{
    const char *p;

    if (!take(rest, 16, &p))
        return false;
    out->exit_code = (int32_t)get_be(p, 4);
    out->signal = (int32_t)get_be(p + 4, 4);
    out->max_rss_kb = get_be(p + 8, 8);
    return take_text(rest, 4, &out->message) && take_text(rest, 4, &out->log) && take_text(rest, 4, &out->log_tail);
}

bool st_redis_run_next(struct st_slice *runs, struct st_redis_run *out)
{
    struct st_slice rest;
    const char *p;

    memset(out, 0, sizeof(*out));
    if (!take_text(runs, 4, &rest) || !take(&rest, RUN_HEAD, &p))
        return false;
    out->outcome = (unsigned char)p[0];
    out->kind = (unsigned char)p[1] < ST_KIND_N ? (enum st_kind)p[1] : ST_KIND_INTERNAL;
    out->n = (int32_t)get_be(p + 2, 4);
    out->fence = get_be(p + 6, 8);
    out->started_us = get_be(p + 14, 8);
    out->ended_us = get_be(p + 22, 8);
    return take_text(&rest, 1, &out->worker) && told_read(&rest, out);
}

static void put_text(struct st_buf *out, struct st_slice s)
{
    put_be(out, s.p ? (int64_t)s.len : -1, 4);
    st_buf_slice(out, s);
}

void st_redis_run_told(struct st_buf *out, const struct st_redis_run *r)
{
    put_be(out, r->exit_code, 4);
    put_be(out, r->signal, 4);
    put_be(out, r->max_rss_kb, 8);
    put_text(out, r->message);
    put_text(out, r->log);
    put_text(out, r->log_tail);
}
