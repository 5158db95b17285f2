/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_json.c - any bytes into the JSON scanner, the walkers and the writer.
 *
 * What must hold:
 *   - the scanner says yes to exactly the documents that a plain reading of RFC 8259 accepts;
 *   - the walkers' ranges are documents themselves, lie inside their container in order, and
 *     between them there is nothing but blanks and punctuation;
 *   - every member is found by its name; a string survives unescaping, writing and reading;
 *   - whatever the bytes are, st_jw_bytes makes a document of them.
 */
#include "fuzz.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"

/* --- the plain reading: recursive, one byte at a time, sharing nothing with the scanner --- */

struct plain {
    const uint8_t *p, *end;
};

static int peek(struct plain *r)
{
    return r->p < r->end ? *r->p : -1;
}

static bool eat(struct plain *r, int c)
{
    if (peek(r) != c)
        return false;
    r->p++;
    return true;
}

static void blanks(struct plain *r)
{
    while (eat(r, ' ') || eat(r, '\t') || eat(r, '\n') || eat(r, '\r'))
        ;
}

static bool digits(struct plain *r)
{
    const uint8_t *from = r->p;

    while (peek(r) >= '0' && peek(r) <= '9')
        r->p++;
    return r->p > from;
}

static bool plain_number(struct plain *r)
{
    eat(r, '-');
    if (!eat(r, '0') && !digits(r))
        return false;
    if (eat(r, '.') && !digits(r))
        return false;
    if (eat(r, 'e') || eat(r, 'E')) {
        if (!eat(r, '+'))
            eat(r, '-');
        return digits(r);
    }
    return true;
}

/* One character above ASCII, by the arithmetic of its code point. */
static bool plain_utf8(struct plain *r)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    int c = *r->p++, more = c >= 0xf8 ? 0 : c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
    uint32_t v = (uint32_t)c & (0x3fu >> more);

    if (more == 0)
        return false;
    for (int i = 0; i < more; i++) {
        if (peek(r) < 0x80 || peek(r) > 0xbf)
            return false;
        v = v << 6 | (*r->p++ & 0x3fu);
    }
    return v >= least[more] && v <= 0x10ffff && (v < 0xd800 || v > 0xdfff);
}

static bool plain_string(struct plain *r)
{
    if (!eat(r, '"'))
        return false;
    while (!eat(r, '"')) {
        if (peek(r) < 0x20) /* the end, too */
            return false;
        if (peek(r) >= 0x80) {
            if (!plain_utf8(r))
                return false;
        } else if (eat(r, '\\')) {
            if (eat(r, 'u')) {
                for (int i = 0; i < 4; i++, r->p++)
                    if (peek(r) <= 0 || !strchr("0123456789abcdefABCDEF", peek(r)))
                        return false;
            } else if (peek(r) <= 0 || !strchr("\"\\/bfnrt", *r->p++)) {
                return false;
            }
        } else {
            r->p++;
        }
    }
    return true;
}

static bool plain_value(struct plain *r, int depth);

static bool plain_items(struct plain *r, int depth, bool object)
{
    char close = object ? '}' : ']';

    if (depth > ST_JSON_DEPTH)
        return false;
    blanks(r);
    if (eat(r, close))
        return true;
    do {
        if (object) {
            blanks(r);
            if (!plain_string(r))
                return false;
            blanks(r);
            if (!eat(r, ':'))
                return false;
        }
        if (!plain_value(r, depth))
            return false;
    } while (eat(r, ','));
    return eat(r, close);
}

static bool plain_word(struct plain *r, const char *word)
{
    while (*word)
        if (!eat(r, *word++))
            return false;
    return true;
}

static bool plain_value(struct plain *r, int depth)
{
    bool ok;

    blanks(r);
    if (eat(r, '{'))
        ok = plain_items(r, depth + 1, true);
    else if (eat(r, '['))
        ok = plain_items(r, depth + 1, false);
    else if (peek(r) == '"')
        ok = plain_string(r);
    else if (peek(r) == 't')
        ok = plain_word(r, "true");
    else if (peek(r) == 'f')
        ok = plain_word(r, "false");
    else if (peek(r) == 'n')
        ok = plain_word(r, "null");
    else
        ok = plain_number(r);
    blanks(r);
    return ok;
}

static bool plain_document(const uint8_t *data, size_t size)
{
    struct plain r = {data, data + size};

    return plain_value(&r, 0) && r.p == r.end;
}

/* --- what must hold for the walkers --- */

/* Blanks around exactly the characters of `punctuation`, in order. */
static bool gap_is(const char *from, const char *to, const char *punctuation)
{
    struct plain r = {(const uint8_t *)from, (const uint8_t *)to};

    for (blanks(&r); *punctuation; blanks(&r))
        if (!eat(&r, *punctuation++))
            return false;
    return r.p == r.end;
}

static void check_text(struct st_slice v)
{
    struct st_buf text, again, back;

    st_buf_init(&text, 1 << 20);
    st_buf_init(&again, 1 << 20);
    st_buf_init(&back, 1 << 20);
    MUST(st_json_string(v, &text) && !text.failed);
    MUST(st_utf8_valid(text.p, text.len));
    st_json_put_string(&again, st_buf_view(&text));
    MUST(st_json_ok(st_buf_view(&again)));
    MUST(st_json_string(st_buf_view(&again), &back));
    MUST(st_slice_eq(st_buf_view(&text), st_buf_view(&back)));
    st_buf_clear(&text);
    st_buf_clear(&again);
    st_buf_clear(&back);
}

static void check_member(struct st_slice obj, struct st_slice key, struct st_slice value)
{
    struct st_buf name;
    struct st_slice found;

    st_buf_init(&name, 1 << 20);
    MUST(st_json_string(ST_SLICE(key.p - 1, key.len + 2), &name));
    if (!memchr(name.p, '\0', name.len)) {
        MUST(st_json_key_is(key, name.p));
        found = st_json_member(obj, name.p);
        MUST(found.p && found.p >= value.p); /* this one, or a later one of that name */
    } else {
        MUST(!st_json_key_is(key, name.p));
    }
    st_buf_clear(&name);
}

static void check_number(struct st_slice v)
{
    char text[32];
    int64_t ours = 0, theirs;
    char *end;
    bool is = st_json_i64(v, &ours);

    if (v.len >= sizeof(text)) {
        MUST(!is);
        return;
    }
    memcpy(text, v.p, v.len);
    text[v.len] = '\0';
    errno = 0;
    theirs = strtoll(text, &end, 10);
    MUST(is == (errno == 0 && *end == '\0'));
    MUST(!is || ours == theirs);
}

static void check_value(struct st_slice v);

static void check_container(struct st_slice c)
{
    bool object = c.p[0] == '{';
    const char *last = c.p;
    struct st_slice key, value;
    size_t pos = 0, n = 0;

    while (st_json_next(c, &pos, &key, &value)) {
        const char *from = object ? key.p - 1 : value.p;

        MUST(value.p > c.p && value.p + value.len < c.p + c.len);
        MUST(pos == (size_t)(value.p + value.len - c.p));
        MUST(object == (key.p != NULL));
        MUST(gap_is(last, from, n == 0 ? (object ? "{" : "[") : ","));
        MUST(!object || gap_is(key.p + key.len + 1, value.p, ":"));
        MUST(value.len > 0 && st_json_ok(value));
        MUST(st_slice_eq(value, st_json_trim(value)));
        if (object && c.len < 1000) /* quadratic */
            check_member(c, key, value);
        check_value(value);
        last = value.p + value.len;
        n++;
    }
    MUST(gap_is(last, c.p + c.len, n ? (object ? "}" : "]") : (object ? "{}" : "[]")));
}

static void check_value(struct st_slice v)
{
    bool b;

    MUST(st_json_bool(v, &b) == (v.p[0] == 't' || v.p[0] == 'f'));
    switch (st_json_typeof(v)) {
    case ST_JSON_OBJECT:
    case ST_JSON_ARRAY:
        check_container(v);
        break;
    case ST_JSON_STRING:
        check_text(v);
        break;
    case ST_JSON_NUMBER:
        check_number(v);
        break;
    default:
        break;
    }
}

static void check_written(struct st_slice bytes)
{
    struct st_buf b;
    struct st_jw w;
    stint_error err;

    st_buf_init(&b, 1 << 22);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_bytes(&w, "k", bytes);
    st_jw_close(&w, '}');
    MUST(!b.failed);
    if (st_json_check(st_buf_view(&b), &err) != STINT_OK) /* we went one deeper */
        MUST(strstr(err.message, "nested too deeply"));
    st_buf_clear(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_slice doc = ST_SLICE((const char *)data, size), key, value;
    size_t pos = 0;
    stint_error err = {0};
    bool ok = st_json_check(doc, &err) == STINT_OK;

    MUST(ok == st_json_ok(doc));
    MUST(ok == plain_document(data, size));
    MUST(ok || (err.code == STINT_EINVAL && err.message[0]));
    if (ok) {
        check_value(st_json_trim(doc));
    } else { /* unchecked bytes: the walkers stay inside and end */
        while (st_json_next(doc, &pos, &key, &value))
            MUST(value.p >= doc.p && value.p + value.len <= doc.p + doc.len);
        st_json_member(doc, "a");
    }
    check_written(doc);
    return 0;
}
