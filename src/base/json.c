/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - looking at JSON without altering it.
 *
 * One scanner does everything: it checks, and the walkers use it to step over values.  It keeps
 * one bit per open container instead of recursing:
 *
 *     VALUE --scalar--> AFTER --','--> VALUE or KEY
 *     VALUE --'[' '{'-> FIRST --']' '}'--> AFTER          (an empty container)
 *                       FIRST -----------> VALUE or KEY
 *     KEY --"..." ':'-> VALUE
 *     AFTER --']' '}'-> AFTER, one level up; at level 0 the value is over
 *
 * Invariants:
 *   (1) start <= p <= end: nothing outside the document is read, checked document or not;
 *   (2) time is linear in the bytes stepped over, memory is constant.
 *
 * Thread: any; no state.
 */
#include "base/json.h"

#include <string.h>

struct scan {
    const char *start, *p, *end;
    const char *why;                     /* what is wrong at p; NULL so far */
    unsigned depth;                      /* open containers */
    uint64_t object[ST_JSON_DEPTH / 64]; /* bit i: level i is an object, else an array */
};

static bool wrong(struct scan *s, const char *why)
{
    s->why = why;
    return false;
}

static void scan_init(struct scan *s, struct st_slice doc, size_t pos)
{
    s->start = doc.len ? doc.p : "";
    s->p = s->start + pos;
    s->end = s->start + doc.len;
    s->why = NULL;
    s->depth = 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_blanks(struct scan *s)
{
    while (s->p < s->end && is_blank(*s->p))
        s->p++;
}

static bool at(const struct scan *s, char c)
{
    return s->p < s->end && *s->p == c;
}

/* --- strings --- */

/* Steps over bytes that need no thought: ASCII but quote, backslash and controls. */
static const char *skip_plain(const char *p, const char *end)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t w, quote, slash;

    while ((size_t)(end - p) >= sizeof(w)) {
        memcpy(&w, p, sizeof(w));
        quote = w ^ ones * '"';
        slash = w ^ ones * '\\';
        /* x - ones borrows into the high bit of a byte that was 0 (or of a byte behind one,
         * which only makes the loop below look closer). */
        if ((w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & high)
            break;
        p += sizeof(w);
    }
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' &&
           *p != '\\')
        p++;
    return p;
}

static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* "\uXXXX" at p; -1 if it is not that. */
static int32_t hex4(const char *p, const char *end)
{
    int32_t v = 0;

    if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        int h = hex_value(p[i]);

        if (h < 0)
            return -1;
        v = v << 4 | h;
    }
    return v;
}

static bool scan_escape(struct scan *s)
{
    if (s->end - s->p < 2)
        return wrong(s, "a string is not closed");
    if (s->p[1] == 'u') {
        if (hex4(s->p, s->end) < 0)
            return wrong(s, "\\u needs four hexadecimal digits");
        s->p += 6;
        return true;
    }
    if (s->p[1] == '\0' || !strchr("\"\\/bfnrt", s->p[1]))
        return wrong(s, "there is no such escape");
    s->p += 2;
    return true;
}

/* At the opening quote; ends behind the closing one. */
static bool scan_string(struct scan *s)
{
    size_t n;

    for (s->p++;;) {
        s->p = skip_plain(s->p, s->end);
        if (s->p == s->end)
            return wrong(s, "a string is not closed");
        if (*s->p == '"') {
            s->p++;
            return true;
        }
        if (*s->p == '\\') {
            if (!scan_escape(s))
                return false;
            continue;
        }
        if ((unsigned char)*s->p < 0x20)
            return wrong(s, "a control character in a string must be escaped");
        n = st_utf8_len(s->p, (size_t)(s->end - s->p));
        if (n == 0)
            return wrong(s, "a string is not UTF-8");
        s->p += n;
    }
}

/* --- numbers and words --- */

static bool scan_digits(struct scan *s)
{
    if (s->p == s->end || !is_digit(*s->p))
        return wrong(s, "a digit is missing");
    while (s->p < s->end && is_digit(*s->p))
        s->p++;
    return true;
}

static bool scan_number(struct scan *s)
{
    if (at(s, '-'))
        s->p++;
    if (at(s, '0')) {
        s->p++;
        if (s->p < s->end && is_digit(*s->p))
            return wrong(s, "a number must not start with 0");
    } else if (!scan_digits(s)) {
        return false;
    }
    if (at(s, '.')) {
        s->p++;
        if (!scan_digits(s))
            return false;
    }
    if (at(s, 'e') || at(s, 'E')) {
        s->p++;
        if (at(s, '+') || at(s, '-'))
            s->p++;
        return scan_digits(s);
    }
    return true;
}

static bool scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
        return wrong(s, "this is no value");
    s->p += n;
    return true;
}

static bool scan_scalar(struct scan *s)
{
    switch (*s->p) {
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        if (*s->p == '-' || is_digit(*s->p))
            return scan_number(s);
        return wrong(s, "this is no value");
    }
}

/* --- containers --- */

static bool in_object(const struct scan *s)
{
    unsigned level = s->depth - 1;

    return s->object[level / 64] >> level % 64 & 1;
}

static bool scan_open(struct scan *s)
{
    uint64_t bit = (uint64_t)1 << s->depth % 64;

    if (s->depth == ST_JSON_DEPTH)
        return wrong(s, "it is nested too deeply");
    if (*s->p == '{')
        s->object[s->depth / 64] |= bit;
    else
        s->object[s->depth / 64] &= ~bit;
    s->depth++;
    s->p++;
    return true;
}

static bool scan_key(struct scan *s)
{
    skip_blanks(s);
    if (!at(s, '"'))
        return wrong(s, "a member's name is missing");
    if (!scan_string(s))
        return false;
    skip_blanks(s);
    if (!at(s, ':'))
        return wrong(s, "a colon is missing");
    s->p++;
    return true;
}

/* Behind a value: closes what ends here.  True with depth 0 = the outermost value is over, else
 * p is where the next value is expected. */
static bool scan_after(struct scan *s)
{
    while (s->depth > 0) {
        skip_blanks(s);
        if (s->p == s->end)
            return wrong(s, in_object(s) ? "an object is not closed" : "an array is not closed");
        if (*s->p == ',') {
            s->p++;
            return !in_object(s) || scan_key(s);
        }
        if (*s->p != (in_object(s) ? '}' : ']'))
            return wrong(s, in_object(s) ? "a comma or } is missing" : "a comma or ] is missing");
        s->p++;
        s->depth--;
    }
    return true;
}

/* One whole value, blanks before it allowed. */
static bool scan_value(struct scan *s)
{
    s->depth = 0;
    do {
        skip_blanks(s);
        if (s->p == s->end)
            return wrong(s, "a value is missing");
        if (*s->p == '{' || *s->p == '[') {
            if (!scan_open(s))
                return false;
            skip_blanks(s);
            if (!at(s, in_object(s) ? '}' : ']')) {
                if (in_object(s) && !scan_key(s))
                    return false;
                continue;
            }
        } else if (!scan_scalar(s)) {
            return false;
        }
        if (!scan_after(s))
            return false;
    } while (s->depth > 0);
    return true;
}

static bool scan_document(struct scan *s)
{
    if (!scan_value(s))
        return false;
    skip_blanks(s);
    return s->p == s->end || wrong(s, "something follows the value");
}

stint_code st_json_check(struct st_slice doc, stint_error *err)
{
    struct scan s;

    scan_init(&s, doc, 0);
    if (scan_document(&s))
        return STINT_OK;
    return st_fail(err, STINT_EINVAL, "not JSON: %s at byte %zu", s.why, (size_t)(s.p - s.start));
}

bool st_json_ok(struct st_slice doc)
{
    struct scan s;

    scan_init(&s, doc, 0);
    return scan_document(&s);
}

/* --- walking --- */

struct st_slice st_json_trim(struct st_slice doc)
{
    while (doc.len && is_blank(doc.p[doc.len - 1]))
        doc.len--;
    while (doc.len && is_blank(doc.p[0])) {
        doc.p++;
        doc.len--;
    }
    return doc;
}

enum st_json_type st_json_typeof(struct st_slice v)
{
    switch (v.len ? v.p[0] : 'n') {
    case '{':
        return ST_JSON_OBJECT;
    case '[':
        return ST_JSON_ARRAY;
    case '"':
        return ST_JSON_STRING;
    case 't':
        return ST_JSON_TRUE;
    case 'f':
        return ST_JSON_FALSE;
    case 'n':
        return ST_JSON_NULL;
    default:
        return ST_JSON_NUMBER;
    }
}

/* Before the next element: over the opening bracket or the comma, and not at the end. */
static bool enter_next(struct scan *s, bool first)
{
    skip_blanks(s);
    if (first ? !at(s, '{') && !at(s, '[') : !at(s, ','))
        return false;
    s->p++;
    skip_blanks(s);
    return !at(s, '}') && !at(s, ']');
}

/* The value at p, which becomes the end of it. */
static bool take_value(struct scan *s, struct st_slice *value)
{
    const char *from;

    skip_blanks(s);
    from = s->p;
    if (!scan_value(s))
        return false;
    *value = ST_SLICE(from, (size_t)(s->p - from));
    return true;
}

bool st_json_next(struct st_slice container, size_t *pos, struct st_slice *key,
                  struct st_slice *value)
{
    struct scan s;
    const char *end;

    *key = ST_NONE;
    *value = ST_NONE;
    if (*pos > container.len)
        return false;
    scan_init(&s, container, *pos);
    if (!enter_next(&s, *pos == 0) || !take_value(&s, value))
        return false;
    end = s.p;
    skip_blanks(&s);
    if (value->p[0] == '"' && at(&s, ':')) { /* it was a name: in arrays no colon follows */
        *key = ST_SLICE(value->p + 1, value->len - 2);
        s.p++;
        if (!take_value(&s, value))
            return false;
        end = s.p;
    }
    *pos = (size_t)(end - s.start);
    return true;
}

struct st_slice st_json_member(struct st_slice obj, const char *key)
{
    struct st_slice found = ST_NONE, k, v;
    size_t pos = 0;

    obj = st_json_trim(obj);
    if (obj.len == 0 || st_json_typeof(obj) != ST_JSON_OBJECT)
        return ST_NONE;
    while (st_json_next(obj, &pos, &k, &v))
        if (st_json_key_is(k, key))
            found = v;
    return found;
}

/* --- text --- */

static size_t put_utf8(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* Undoes the escape at *p, steps over it, and gives its bytes; a lone surrogate is U+FFFD. */
static size_t unescape(const char **p, const char *end, char out[4])
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    int32_t c = hex4(*p, end), low;
    const char *f;

    if (c < 0) {
        char e = end - *p >= 2 ? (*p)[1] : '\\';

        *p += end - *p >= 2 ? 2 : 1;
        f = e ? strchr(from, e) : NULL;
        out[0] = f ? to[f - from] : e;
        return 1;
    }
    *p += 6;
    if (c >= 0xd800 && c < 0xdc00) {
        low = hex4(*p, end);
        if (low >= 0xdc00 && low < 0xe000) {
            *p += 6;
            return put_utf8(0x10000 + ((uint32_t)(c - 0xd800) << 10) + (uint32_t)(low - 0xdc00),
                            out);
        }
    }
    return put_utf8(c >= 0xd800 && c < 0xe000 ? 0xfffd : (uint32_t)c, out);
}

bool st_json_key_is(struct st_slice raw, const char *key)
{
    const char *p = raw.p, *end;
    size_t left = strlen(key), n;
    char text[4];

    if (!raw.p)
        return false;
    end = raw.p + raw.len;
    if (raw.len == 0 || !memchr(raw.p, '\\', raw.len))
        return st_slice_eq(raw, ST_SLICE(key, left));
    while (p < end) {
        text[0] = *p;
        n = 1;
        if (*p == '\\')
            n = unescape(&p, end, text);
        else
            p++;
        if (n > left || memcmp(text, key, n) != 0)
            return false;
        key += n;
        left -= n;
    }
    return left == 0;
}

bool st_json_string(struct st_slice v, struct st_buf *out)
{
    const char *p, *end, *slash;
    char text[4];

    if (v.len < 2 || v.p[0] != '"')
        return false;
    p = v.p + 1;
    end = v.p + v.len - 1;
    while (p < end) {
        slash = memchr(p, '\\', (size_t)(end - p));
        if (!slash)
            slash = end;
        st_buf_put(out, p, (size_t)(slash - p));
        p = slash;
        if (p < end)
            st_buf_put(out, text, unescape(&p, end, text));
    }
    st_buf_put(out, "", 0);
    return true;
}

bool st_json_i64(struct st_slice v, int64_t *out)
{
    return st_parse_i64(v, out);
}

bool st_json_bool(struct st_slice v, bool *out)
{
    if (!st_slice_is(v, "true") && !st_slice_is(v, "false"))
        return false;
    *out = v.p[0] == 't';
    return true;
}
