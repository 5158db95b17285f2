/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_spec.c - any bytes into the canonical text and the spec hash.
 *
 * What must hold:
 *   - exactly the JSON documents have a canonical text, and it is JSON;
 *   - it is its own canonical text;
 *   - it has no blanks outside strings, and keys in strictly ascending order;
 *   - every payload has a hash, and blanks around it change nothing.
 */
#include "fuzz.h"

#include <string.h>

#include "job/spec.h"

/* Two raw keys by code point.  Canonical keys escape controls, quotes, backslashes and lone
 * surrogates, so they are compared one character at a time. */
static uint32_t next_char(struct st_slice *s)
{
    unsigned char c = (unsigned char)*s->p;
    size_t n = 1;
    uint32_t cp = c;

    if (c == '\\' && s->p[1] == 'u') {
        char hex[5] = {s->p[2], s->p[3], s->p[4], s->p[5], '\0'};

        cp = (uint32_t)strtoul(hex, NULL, 16);
        n = 6;
    } else if (c == '\\') {
        const char *at = strchr("b\bf\fn\nr\rt\t\"\"\\\\", s->p[1]);

        MUST(at);
        cp = (unsigned char)at[1];
        n = 2;
    } else if (c >= 0x80) {
        n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        cp = c & (0x3Fu >> (n - 1));
        for (size_t i = 1; i < n; i++)
            cp = cp << 6 | ((unsigned char)s->p[i] & 0x3Fu);
    }
    s->p += n;
    s->len -= n;
    return cp;
}

static bool before(struct st_slice a, struct st_slice b)
{
    while (a.len && b.len) {
        uint32_t x = next_char(&a), y = next_char(&b);

        if (x != y)
            return x < y;
    }
    return a.len < b.len;
}

static void check_order(struct st_slice v)
{
    enum st_json_type type = st_json_typeof(v);
    struct st_slice key, value, last = ST_NONE;
    size_t pos = 0, expect = 1;

    if (type != ST_JSON_OBJECT && type != ST_JSON_ARRAY)
        return;
    while (st_json_next(v, &pos, &key, &value)) {
        size_t at = (size_t)(value.p - v.p);

        MUST(at == expect + (type == ST_JSON_OBJECT ? key.len + 3 : 0));
        if (type == ST_JSON_OBJECT) {
            MUST(!last.p || before(last, key));
            last = key;
        }
        check_order(value);
        expect = at + value.len + 1;
    }
}

static void check_hash(struct st_slice payload, bool json)
{
    char one[ST_HASH_LEN + 1], two[ST_HASH_LEN + 1];
    struct st_slice type = st_slice_cstr("t"), queue = st_slice_cstr("q");
    struct st_buf padded;

    MUST(st_spec_hash(type, queue, payload, one, NULL) == STINT_OK);
    MUST(strlen(one) == ST_HASH_LEN && strspn(one, "0123456789abcdef") == ST_HASH_LEN);
    st_buf_init(&padded, payload.len + 2);
    st_buf_putc(&padded, ' ');
    st_buf_slice(&padded, payload);
    st_buf_putc(&padded, '\n');
    MUST(st_spec_hash(type, queue, st_buf_view(&padded), two, NULL) == STINT_OK);
    MUST(json == !strcmp(one, two));
    st_buf_clear(&padded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_slice doc = ST_SLICE((const char *)data, size);
    struct st_buf one, two;
    bool json = st_json_ok(doc);

    st_buf_init(&one, 8 * size + 64);
    st_buf_init(&two, 8 * size + 64);
    MUST((st_json_canonical(doc, &one, NULL) == STINT_OK) == json);
    if (json) {
        MUST(st_json_ok(st_buf_view(&one)));
        MUST(st_json_canonical(st_buf_view(&one), &two, NULL) == STINT_OK);
        MUST(st_slice_eq(st_buf_view(&one), st_buf_view(&two)));
        check_order(st_buf_view(&one));
    }
    check_hash(doc, json);
    st_buf_clear(&one);
    st_buf_clear(&two);
    return 0;
}
