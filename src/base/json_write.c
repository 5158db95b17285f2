/* SPDX-License-Identifier: Apache-2.0
 *
 * json_write.c - writing JSON.
 *
 * Strings are escaped so that a document is one line and harmless on a terminal: control
 * characters, DEL and C1 included, never appear as such.  Bytes that are not UTF-8 should not come
 * here; where they do, each becomes U+FFFD, and the document stays JSON.
 *
 * Thread: whichever owns the buffer.
 */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static void put_escaped(struct st_buf *b, unsigned char c)
{
    static const char from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\", hex[] = "0123456789abcdef";
    const char *f = c ? strchr(from, c) : NULL;

    if (f)
        st_buf_put(b, (char[]){'\\', to[f - from]}, 2);
    else
        st_buf_put(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
}

static bool is_c1(struct st_slice s, size_t i, size_t n)
{
    return n == 2 && (unsigned char)s.p[i] == 0xc2 && (unsigned char)s.p[i + 1] < 0xa0;
}

void st_json_put_string(struct st_buf *b, struct st_slice s)
{
    size_t from = 0, i = 0;

    st_buf_putc(b, '"');
    while (i < s.len) {
        unsigned char c = (unsigned char)s.p[i];
        size_t n = c < 0x80 ? 1 : st_utf8_len(s.p + i, s.len - i);
        bool c1 = is_c1(s, i, n);

        if (n > 0 && !c1 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
            i += n;
            continue;
        }
        st_buf_put(b, s.p + from, i - from);
        if (n == 0)
            st_buf_puts(b, "\xef\xbf\xbd");
        else
            put_escaped(b, c1 ? (unsigned char)s.p[i + 1] : c);
        i += n ? n : 1;
        from = i;
    }
    st_buf_put(b, s.p + from, i - from);
    st_buf_putc(b, '"');
}

void st_json_put_cstr(struct st_buf *b, const char *s)
{
    if (s)
        st_json_put_string(b, st_slice_cstr(s));
    else
        st_buf_puts(b, "null");
}

void st_jw_init(struct st_jw *w, struct st_buf *b)
{
    *w = (struct st_jw){.b = b};
}

/* Before a value or name: the comma that the one before it left owing. */
static struct st_buf *next(struct st_jw *w)
{
    if (w->comma)
        st_buf_putc(w->b, ',');
    w->comma = true;
    return w->b;
}

void st_jw_open(struct st_jw *w, char c)
{
    st_buf_putc(next(w), c);
    w->comma = false;
}

void st_jw_close(struct st_jw *w, char c)
{
    st_buf_putc(w->b, c);
    w->comma = true;
}

void st_jw_key(struct st_jw *w, const char *key)
{
    st_json_put_string(next(w), st_slice_cstr(key));
    st_buf_putc(w->b, ':');
    w->comma = false;
}

void st_jw_raw(struct st_jw *w, struct st_slice json)
{
    st_buf_slice(next(w), json);
}

void st_jw_str(struct st_jw *w, struct st_slice s)
{
    if (s.p)
        st_json_put_string(next(w), s);
    else
        st_jw_null(w);
}

void st_jw_cstr(struct st_jw *w, const char *s)
{
    st_json_put_cstr(next(w), s);
}

void st_jw_int(struct st_jw *w, int64_t v)
{
    st_buf_printf(next(w), "%" PRId64, v);
}

/* printf writes the decimal point of the host program's locale; JSON knows one. */
static void fix_point(char *s)
{
    char *from = s + strspn(s, "-0123456789"), *to = from;

    if (!*from)
        return;
    while (*from && !strchr("0123456789", *from))
        from++;
    *to++ = '.';
    memmove(to, from, strlen(from) + 1);
}

void st_jw_num(struct st_jw *w, double v, int decimals)
{
    char text[400]; /* DBL_MAX has 309 digits */

    if (!isfinite(v)) {
        st_jw_null(w);
        return;
    }
    if (decimals < 0)
        decimals = 0;
    snprintf(text, sizeof(text), "%.*f", decimals < 17 ? decimals : 17, v);
    fix_point(text);
    st_buf_puts(next(w), text);
}

void st_jw_bool(struct st_jw *w, bool v)
{
    st_buf_puts(next(w), v ? "true" : "false");
}

void st_jw_null(struct st_jw *w)
{
    st_buf_puts(next(w), "null");
}

void st_jw_time(struct st_jw *w, int64_t us)
{
    char text[ST_TIME_TEXT];

    st_jw_cstr(w, us ? st_time_format(us, text) : NULL);
}

static void key_base64(struct st_jw *w, const char *key)
{
    struct st_buf name;

    st_buf_init(&name, 1024);
    st_buf_puts(&name, key);
    st_buf_puts(&name, "_base64");
    if (name.failed)
        w->b->failed = true;
    else
        st_jw_key(w, name.p);
    st_buf_clear(&name);
}

void st_jw_bytes(struct st_jw *w, const char *key, struct st_slice bytes)
{
    if (bytes.p && !st_json_ok(bytes) && !st_utf8_valid(bytes.p, bytes.len)) {
        key_base64(w, key);
        st_buf_putc(next(w), '"');
        st_buf_base64(w->b, bytes);
        st_buf_putc(w->b, '"');
        return;
    }
    st_jw_key(w, key);
    if (bytes.p && st_json_ok(bytes))
        st_jw_raw(w, bytes);
    else
        st_jw_str(w, bytes);
}
