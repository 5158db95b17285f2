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
    const char *why; /* what is wrong at p; NULL so far */
};

enum { PLAIN = 1, BLANK = 2, DIGIT = 4 };

/* PLAIN: may stand in a string as it is, and is ASCII. */
static const unsigned char class_of[256] = {
    ['\t'] = BLANK,
    ['\n'] = BLANK,
    ['\r'] = BLANK,
    [' '] = BLANK | PLAIN,
    ['!'] = PLAIN,
    ['#' ... '/'] = PLAIN,
    ['0' ... '9'] = DIGIT | PLAIN,
    [':' ... '['] = PLAIN,
    [']' ... 0x7f] = PLAIN,
};

static inline bool is(char c, int class)
{
    return class_of[(unsigned char)c] & class;
}

/* p stays in a register while all is well: these take it and give the end of what they stepped
 * over, or NULL with s->p and s->why set. */
static const char *wrong(struct scan *s, const char *p, const char *why)
{
    s->p = p;
    s->why = why;
    return NULL;
}

static void scan_init(struct scan *s, struct st_slice doc, size_t pos)
{
    s->start = doc.len ? doc.p : "";
    s->p = s->start + pos;
    s->end = s->start + doc.len;
    s->why = NULL;
}

static inline const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && is(*p, BLANK))
        p++;
    return p;
}

static inline bool at(const char *p, const char *end, char c)
{
    return p < end && *p == c;
}

/* --- strings --- */

/* Steps over bytes that need no thought, eight at a time. */
static inline const char *skip_plain(const char *p, const char *end)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t w, quote, slash, stop;

    while ((size_t)(end - p) >= sizeof(w)) {
        memcpy(&w, p, sizeof(w));
        quote = w ^ ones * '"';
        slash = w ^ ones * '\\';
        /* x - ones borrows into the high bit of a byte that was 0, or of one behind it: the first
         * byte that is marked is a true one. */
        stop = (w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & high;
        if (stop) {
            if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
                return p + __builtin_ctzll(stop) / 8;
            break;
        }
        p += sizeof(w);
    }
    while (p < end && is(*p, PLAIN))
        p++;
    return p;
}

static int hex_value(char c)
{
    if (is(c, DIGIT))
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

static const char *scan_escape(struct scan *s, const char *p)
{
    if (s->end - p < 2)
        return wrong(s, p, "a string is not closed");
    if (p[1] == 'u')
        return hex4(p, s->end) >= 0 ? p + 6 : wrong(s, p, "\\u needs four hexadecimal digits");
    if (p[1] == '\0' || !strchr("\"\\/bfnrt", p[1]))
        return wrong(s, p, "there is no such escape");
    return p + 2;
}

/* From the opening quote to behind the closing one. */
static const char *scan_string(struct scan *s, const char *p)
{
    size_t n;

    for (p++;;) {
        p = skip_plain(p, s->end);
        if (p == s->end)
            return wrong(s, p, "a string is not closed");
        if (*p == '"')
            return p + 1;
        if (*p == '\\') {
            if (!(p = scan_escape(s, p)))
                return NULL;
            continue;
        }
        if ((unsigned char)*p < 0x20)
            return wrong(s, p, "a control character in a string must be escaped");
        n = st_utf8_len(p, (size_t)(s->end - p));
        if (n == 0)
            return wrong(s, p, "a string is not UTF-8");
        p += n;
    }
}

/* --- numbers and words --- */

static const char *scan_digits(struct scan *s, const char *p)
{
    if (p == s->end || !is(*p, DIGIT))
        return wrong(s, p, "a digit is missing");
    while (p < s->end && is(*p, DIGIT))
        p++;
    return p;
}

static const char *scan_number(struct scan *s, const char *p)
{
    const char *end = s->end;

    if (at(p, end, '-'))
        p++;
    if (at(p, end, '0')) {
        p++;
        if (p < end && is(*p, DIGIT))
            return wrong(s, p, "a number must not start with 0");
    } else if (!(p = scan_digits(s, p))) {
        return NULL;
    }
    if (at(p, end, '.') && !(p = scan_digits(s, p + 1)))
        return NULL;
    if (at(p, end, 'e') || at(p, end, 'E')) {
        p++;
        if (at(p, end, '+') || at(p, end, '-'))
            p++;
        return scan_digits(s, p);
    }
    return p;
}

static const char *scan_word(struct scan *s, const char *p, const char *word, size_t n)
{
    if ((size_t)(s->end - p) < n || memcmp(p, word, n) != 0)
        return wrong(s, p, "this is no value");
    return p + n;
}

static const char *scan_scalar(struct scan *s, const char *p)
{
    switch (*p) {
    case '"':
        return scan_string(s, p);
    case 't':
        return scan_word(s, p, "true", 4);
    case 'f':
        return scan_word(s, p, "false", 5);
    case 'n':
        return scan_word(s, p, "null", 4);
    default:
        if (*p == '-' || is(*p, DIGIT))
            return scan_number(s, p);
        return wrong(s, p, "this is no value");
    }
}

/* --- containers --- */

/* The containers that are open around a place: one bit each, set for an object. */
struct nest {
    unsigned depth;
    bool object; /* the innermost */
    uint64_t bits[ST_JSON_DEPTH / 64];
};

static inline bool nest_open(struct nest *n, bool object)
{
    uint64_t *word = &n->bits[n->depth / 64 % (ST_JSON_DEPTH / 64)];
    uint64_t bit = (uint64_t)1 << n->depth % 64;

    if (n->depth == ST_JSON_DEPTH)
        return false;
    n->depth++;
    n->object = object;
    *word = object ? *word | bit : *word & ~bit;
    return true;
}

static inline void nest_close(struct nest *n)
{
    unsigned above = --n->depth - 1;

    n->object = n->depth && n->bits[above / 64] >> above % 64 & 1;
}

/* From before a name to behind its colon. */
static const char *scan_key(struct scan *s, const char *p)
{
    p = skip_blanks(p, s->end);
    if (!at(p, s->end, '"'))
        return wrong(s, p, "a member's name is missing");
    if (!(p = scan_string(s, p)))
        return NULL;
    p = skip_blanks(p, s->end);
    return at(p, s->end, ':') ? p + 1 : wrong(s, p, "a colon is missing");
}

/* Behind a value: closes what ends here.  Gives where the next value is expected, or with depth 0
 * where the outermost one is over. */
static const char *scan_after(struct scan *s, const char *p, struct nest *n)
{
    while (n->depth > 0) {
        p = skip_blanks(p, s->end);
        if (p == s->end)
            return wrong(s, p, n->object ? "an object is not closed" : "an array is not closed");
        if (*p == ',')
            return n->object ? scan_key(s, p + 1) : p + 1;
        if (*p != (n->object ? '}' : ']'))
            return wrong(s, p, n->object ? "a comma or } is missing" : "a comma or ] is missing");
        p++;
        nest_close(n);
    }
    return p;
}

/* One whole value, blanks before it allowed; s->p is behind it. */
static bool scan_value(struct scan *s)
{
    struct nest n;
    const char *p = s->p;

    n.depth = 0; /* the bits need no start */
    n.object = false;
    do {
        p = skip_blanks(p, s->end);
        if (p == s->end)
            return wrong(s, p, "a value is missing");
        if (*p == '{' || *p == '[') {
            if (!nest_open(&n, *p == '{'))
                return wrong(s, p, "it is nested too deeply");
            p = skip_blanks(p + 1, s->end);
            if (!at(p, s->end, n.object ? '}' : ']')) {
                if (n.object && !(p = scan_key(s, p)))
                    return false;
                continue;
            }
        } else if (!(p = scan_scalar(s, p))) {
            return false;
        }
        if (!(p = scan_after(s, p, &n)))
            return false;
    } while (n.depth > 0);
    s->p = p;
    return true;
}

static bool scan_document(struct scan *s)
{
    if (!scan_value(s))
        return false;
    s->p = skip_blanks(s->p, s->end);
    return s->p == s->end || wrong(s, s->p, "something follows the value");
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
    while (doc.len && is(doc.p[doc.len - 1], BLANK))
        doc.len--;
    while (doc.len && is(doc.p[0], BLANK)) {
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

/* Before the next element: over the opening bracket or the comma.  NULL: there is none. */
static const char *enter_next(const char *p, const char *end, bool first)
{
    p = skip_blanks(p, end);
    if (first ? !at(p, end, '{') && !at(p, end, '[') : !at(p, end, ','))
        return NULL;
    p = skip_blanks(p + 1, end);
    return at(p, end, '}') || at(p, end, ']') ? NULL : p;
}

/* The value at s->p, which becomes the end of it. */
static bool take_value(struct scan *s, struct st_slice *value)
{
    const char *from = s->p = skip_blanks(s->p, s->end);

    if (!scan_value(s))
        return false;
    *value = ST_SLICE(from, (size_t)(s->p - from));
    return true;
}

bool st_json_next(struct st_slice container, size_t *pos, struct st_slice *key, struct st_slice *value)
{
    struct scan s;
    const char *from, *p;

    *key = ST_NONE;
    *value = ST_NONE;
    if (*pos > container.len)
        return false;
    scan_init(&s, container, *pos);
    from = enter_next(s.p, s.end, *pos == 0);
    if (!from)
        return false;
    s.p = from;
    if (at(from, s.end, '"')) { /* perhaps a name: in arrays no colon follows */
        if (!(p = scan_string(&s, from)))
            return false;
        s.p = p;
        *value = ST_SLICE(from, (size_t)(p - from));
        p = skip_blanks(p, s.end);
        if (at(p, s.end, ':')) {
            *key = ST_SLICE(value->p + 1, value->len - 2);
            s.p = p + 1;
            if (!take_value(&s, value))
                return false;
        }
    } else if (!take_value(&s, value)) {
        return false;
    }
    *pos = (size_t)(s.p - s.start);
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
            return put_utf8(0x10000 + ((uint32_t)(c - 0xd800) << 10) + (uint32_t)(low - 0xdc00), out);
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
