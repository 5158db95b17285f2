/* SPDX-License-Identifier: Apache-2.0
 *
 * buf.c - a growing byte buffer with a maximum from birth.
 *
 * Invariants:
 *   (1) len <= max, and p[len] is NUL whenever p is not NULL;
 *   (2) an append is whole or not at all: after a failed one the bytes before it still stand.
 *
 * Memory is only asked for when cap is too small, so a buffer over a fixed array of max + 1 bytes
 * (p, cap and max set by hand, never cleared or taken) never allocates.
 *
 * Thread: one at a time.
 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 64

void st_buf_init(struct st_buf *b, size_t max)
{
    *b = (struct st_buf){.max = max < SIZE_MAX / 4 ? max : SIZE_MAX / 4};
}

void st_buf_clear(struct st_buf *b)
{
    free(b->p);
    st_buf_init(b, b->max);
}

void st_buf_reset(struct st_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->p)
        b->p[0] = '\0';
}

/* Room for n more bytes and the NUL. */
static bool reserve(struct st_buf *b, size_t n)
{
    size_t cap = b->cap ? b->cap : FIRST_CAP;
    char *p;

    if (b->failed)
        return false;
    if (n > b->max - b->len) {
        b->failed = true;
        return false;
    }
    if (b->len + n < b->cap)
        return true;
    while (cap <= b->len + n)
        cap *= 2;
    if (cap > b->max + 1)
        cap = b->max + 1;
    p = realloc(b->p, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    b->p[b->len] = '\0';
    return true;
}

void st_buf_put(struct st_buf *b, const void *p, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
    b->p[b->len] = '\0';
}

char *st_buf_room(struct st_buf *b, size_t n)
{
    return reserve(b, n) ? b->p + b->len : NULL;
}

void st_buf_putc(struct st_buf *b, char c)
{
    st_buf_put(b, &c, 1);
}

void st_buf_puts(struct st_buf *b, const char *s)
{
    st_buf_put(b, s, strlen(s));
}

void st_buf_slice(struct st_buf *b, struct st_slice s)
{
    st_buf_put(b, s.p, s.len);
}

void st_buf_printf(struct st_buf *b, const char *fmt, ...)
{
    size_t room;
    va_list ap;
    int n;

    if (!reserve(b, 0))
        return;
    room = b->cap - b->len;
    va_start(ap, fmt);
    n = vsnprintf(b->p + b->len, room, fmt, ap);
    va_end(ap);
    if (n < 0)
        b->failed = true;
    if (n >= 0 && reserve(b, (size_t)n)) {
        if ((size_t)n >= room) {
            va_start(ap, fmt);
            vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap);
            va_end(ap);
        }
        b->len += (size_t)n;
    }
    b->p[b->len] = '\0';
}

void st_buf_base64(struct st_buf *b, struct st_slice s)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)s.p;
    char *out;

    if (s.len > b->max || !reserve(b, (s.len + 2) / 3 * 4)) {
        b->failed = true;
        return;
    }
    out = b->p + b->len;
    for (size_t i = 0; i < s.len; i += 3) {
        size_t left = s.len - i;
        uint32_t v = (uint32_t)p[i] << 16;

        if (left > 1)
            v |= (uint32_t)p[i + 1] << 8;
        if (left > 2)
            v |= p[i + 2];
        *out++ = digit[v >> 18];
        *out++ = digit[v >> 12 & 63];
        *out++ = left > 1 ? digit[v >> 6 & 63] : '=';
        *out++ = left > 2 ? digit[v & 63] : '=';
    }
    *out = '\0';
    b->len = (size_t)(out - b->p);
}

char *st_buf_take(struct st_buf *b)
{
    char *p;

    if (!reserve(b, 0)) { /* also gives an empty buffer its NUL */
        st_buf_clear(b);
        b->failed = true;
        return NULL;
    }
    p = b->p;
    st_buf_init(b, b->max);
    return p;
}

struct st_slice st_buf_view(const struct st_buf *b)
{
    return ST_SLICE(b->p ? b->p : "", b->len);
}
