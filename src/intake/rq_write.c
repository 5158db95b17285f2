/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_write.c - a JSON value as a pickle of protocol 4, as Python's own would read it.
 *
 * Numbers without a point are integers of any length, others are floats; a key that is there twice comes twice, and
 * the last one wins, as with json.loads.
 */
#include <string.h>

#include "base/json.h"
#include "intake/rq_pickle.h"
#include "job/number.h"

#define LONG_DIGITS_MAX 4000 /* Python reads no longer ones from text */

static void put_le(struct st_buf *b, uint64_t n, size_t width)
{
    for (size_t i = 0; i < width; i++)
        st_buf_putc(b, (char)(unsigned char)(n >> 8 * i));
}

static void put_text(struct st_buf *b, struct st_slice s)
{
    st_buf_putc(b, 'X');
    put_le(b, s.len, 4);
    st_buf_slice(b, s);
}

static void put_string(struct st_buf *b, struct st_slice v)
{
    struct st_buf text;

    st_buf_init(&text, v.len + 8);
    if (!st_json_string(v, &text) || text.failed)
        b->failed = true;
    else
        put_text(b, text.p ? st_buf_view(&text) : ST_SLICE("", 0));
    st_buf_clear(&text);
}

static void put_i64(struct st_buf *b, int64_t n)
{
    if (n >= INT32_MIN && n <= INT32_MAX) {
        st_buf_putc(b, 'J');
        put_le(b, (uint64_t)n, 4);
        return;
    }
    st_buf_put(b, "\x8a\x08", 2);
    put_le(b, (uint64_t)n, 8);
}

static void put_double(struct st_buf *b, struct st_slice v)
{
    double d = 0;
    uint64_t n;

    if (!st_number_parse(v, &d))
        b->failed = true;
    memcpy(&n, &d, sizeof(n));
    st_buf_putc(b, 'G');
    for (size_t i = 8; i > 0; i--)
        st_buf_putc(b, (char)(unsigned char)(n >> 8 * (i - 1)));
}

static void put_number(struct st_buf *b, struct st_slice v)
{
    int64_t n;

    if (st_json_i64(v, &n)) {
        put_i64(b, n);
    } else if (memchr(v.p, '.', v.len) || memchr(v.p, 'e', v.len) || memchr(v.p, 'E', v.len) ||
               v.len > LONG_DIGITS_MAX) {
        put_double(b, v);
    } else {
        st_buf_putc(b, 'L');
        st_buf_slice(b, v);
        st_buf_puts(b, "L\n");
    }
}

static void put_value(struct st_buf *b, struct st_slice v);

/* In batches, as Python writes them: no more than so many between two marks is needed on the reader's stack. */
static void put_items(struct st_buf *b, struct st_slice v, bool object)
{
    struct st_slice key, value;
    size_t pos = 0, n = 0;

    st_buf_putc(b, object ? '}' : ']');
    while (st_json_next(v, &pos, &key, &value)) {
        if (n++ % 1000 == 0)
            st_buf_puts(b, n == 1 ? "(" : object ? "u(" : "e(");
        if (object)
            put_string(b, ST_SLICE(key.p - 1, key.len + 2));
        put_value(b, value);
    }
    if (n)
        st_buf_putc(b, object ? 'u' : 'e');
}

static void put_value(struct st_buf *b, struct st_slice v)
{
    switch (st_json_typeof(v)) {
    case ST_JSON_NULL:
        st_buf_putc(b, 'N');
        break;
    case ST_JSON_FALSE:
        st_buf_putc(b, '\x89');
        break;
    case ST_JSON_TRUE:
        st_buf_putc(b, '\x88');
        break;
    case ST_JSON_NUMBER:
        put_number(b, v);
        break;
    case ST_JSON_STRING:
        put_string(b, v);
        break;
    case ST_JSON_ARRAY:
    case ST_JSON_OBJECT:
        put_items(b, v, st_json_typeof(v) == ST_JSON_OBJECT);
        break;
    }
}

void st_pickle_write(struct st_buf *b, struct st_slice json)
{
    st_buf_put(b, "\x80\x04", 2);
    if (json.p)
        put_value(b, st_json_trim(json));
    else
        st_buf_putc(b, 'N');
    st_buf_putc(b, '.');
}
