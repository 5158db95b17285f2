/* SPDX-License-Identifier: Apache-2.0
 *
 * spec.c - the spec hash: one name for the same work.
 *
 * The canonical text is what Python's json.dumps(json.loads(doc), sort_keys=True,
 * ensure_ascii=False, separators=(',', ':')) gives.  Where Python gives no JSON, we do:
 *   - a number too large for a double (1e400) keeps its own text;
 *   - a lone surrogate stays an escape (\ud800), and sorts by its code point;
 *   - integers have no limit of digits.
 *
 * One pass: members are written to the output as they come, and an object whose keys were not
 * in order is put in order when it closes.  The member records of all open objects share one
 * stack, their keys (unescaped) share one buffer.
 *
 * Invariants:
 *   (1) canonical(canonical(x)) == canonical(x);
 *   (2) the document was checked, so the walk never runs past its end and never deeper than
 *       ST_JSON_DEPTH.
 *
 * Thread: any; there is no state here.
 */
#include "job/spec.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "job/number.h"

struct member {
    size_t key, key_len; /* in canon.keys */
    size_t at, len;      /* "key":value in the output */
};

struct canon {
    const char *p, *end;
    struct st_buf *out;
    struct st_buf keys;    /* unescaped keys of the open objects */
    struct st_buf scratch; /* an unescaped string, or an object being put in order */
    struct member *members;
    size_t n, cap;
    bool no_memory;
};

static void put_value(struct canon *c);

static void skip_blanks(struct canon *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool failed(const struct canon *c)
{
    return c->no_memory || c->out->failed || c->keys.failed || c->scratch.failed;
}

/* ---- strings ----------------------------------------------------------------------- */

static unsigned hex4(const char *p)
{
    unsigned v = 0;

    for (int i = 0; i < 4; i++) {
        unsigned char c = (unsigned char)p[i];

        v = v << 4 | (c <= '9' ? c - (unsigned)'0' : (c | 0x20u) - (unsigned)'a' + 10);
    }
    return v;
}

/* UTF-8, with lone surrogates encoded as if they were characters, so that bytes sort as code
 * points do. */
static void put_code_point(struct st_buf *b, unsigned cp)
{
    if (cp < 0x80) {
        st_buf_putc(b, (char)cp);
        return;
    }
    if (cp < 0x800) {
        st_buf_putc(b, (char)(0xC0 | cp >> 6));
    } else {
        if (cp < 0x10000) {
            st_buf_putc(b, (char)(0xE0 | cp >> 12));
        } else {
            st_buf_putc(b, (char)(0xF0 | cp >> 18));
            st_buf_putc(b, (char)(0x80 | (cp >> 12 & 0x3F)));
        }
        st_buf_putc(b, (char)(0x80 | (cp >> 6 & 0x3F)));
    }
    st_buf_putc(b, (char)(0x80 | (cp & 0x3F)));
}

/* p is behind "\u"; returns what is behind the escape, or behind both of a surrogate pair. */
static const char *unescape_u(const char *p, const char *end, struct st_buf *b)
{
    unsigned cp = hex4(p);

    p += 4;
    if (cp >= 0xD800 && cp < 0xDC00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
        unsigned low = hex4(p + 2);

        if (low >= 0xDC00 && low < 0xE000) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
            p += 6;
        }
    }
    put_code_point(b, cp);
    return p;
}

static char unescape_c(char c)
{
    switch (c) {
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    default:
        return c; /* " \ / */
    }
}

static void unescape(struct st_slice raw, struct st_buf *b)
{
    const char *p = raw.p, *end = raw.p + raw.len;

    while (p < end) {
        const char *esc = memchr(p, '\\', (size_t)(end - p));

        st_buf_put(b, p, (size_t)((esc ? esc : end) - p));
        if (!esc)
            return;
        if (esc[1] == 'u') {
            p = unescape_u(esc + 2, end, b);
        } else {
            st_buf_putc(b, unescape_c(esc[1]));
            p = esc + 2;
        }
    }
}

static void put_control(struct st_buf *b, unsigned char ch)
{
    static const char short_form[0x20] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};

    if (short_form[ch]) {
        st_buf_putc(b, '\\');
        st_buf_putc(b, short_form[ch]);
    } else {
        st_buf_printf(b, "\\u%04x", ch);
    }
}

static bool is_surrogate(const unsigned char *p, size_t left)
{
    return left >= 3 && p[0] == 0xED && p[1] >= 0xA0;
}

/* Quoted, and escaped only where it must be. */
static void put_text(struct st_buf *b, const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;

    st_buf_putc(b, '"');
    for (size_t i = 0; i < len; i++) {
        if (p[i] < 0x20) {
            put_control(b, p[i]);
        } else if (p[i] == '"' || p[i] == '\\') {
            st_buf_putc(b, '\\');
            st_buf_putc(b, (char)p[i]);
        } else if (is_surrogate(p + i, len - i)) {
            st_buf_printf(b, "\\u%04x", 0xD000u | (p[i + 1] & 0x3Fu) << 6 | (p[i + 2] & 0x3Fu));
            i += 2;
        } else {
            st_buf_putc(b, (char)p[i]);
        }
    }
    st_buf_putc(b, '"');
}

/* c->p is at a quote; gives what is between it and its partner, and steps behind that. */
static struct st_slice take_raw(struct canon *c)
{
    const char *start = ++c->p;

    while (*c->p != '"')
        c->p += *c->p == '\\' ? 2 : 1;
    return ST_SLICE(start, (size_t)(c->p++ - start));
}

static void put_string(struct canon *c)
{
    struct st_slice raw = take_raw(c);

    if (!memchr(raw.p, '\\', raw.len)) { /* then it is canonical as it stands */
        st_buf_put(c->out, raw.p - 1, raw.len + 2);
        return;
    }
    st_buf_reset(&c->scratch);
    unescape(raw, &c->scratch);
    if (!c->scratch.failed)
        put_text(c->out, c->scratch.p, c->scratch.len);
}

/* ---- numbers ----------------------------------------------------------------------- */

static bool in_number(char ch)
{
    return (ch >= '0' && ch <= '9') || ch == '-' || ch == '+' || ch == '.' || ch == 'e' || ch == 'E';
}

static void put_float(struct canon *c, struct st_slice text)
{
    char repr[ST_NUMBER_TEXT];
    double d;

    if (!st_number_parse(text, &d))
        c->no_memory = true;
    else if (isinf(d))
        st_buf_slice(c->out, text);
    else
        st_buf_puts(c->out, st_number_repr(d, repr));
}

static void put_number(struct canon *c)
{
    const char *start = c->p;
    bool whole = true;
    struct st_slice text;

    for (; c->p < c->end && in_number(*c->p); c->p++)
        if (*c->p == '.' || *c->p == 'e' || *c->p == 'E')
            whole = false;
    text = ST_SLICE(start, (size_t)(c->p - start));
    if (!whole)
        put_float(c, text);
    else if (st_slice_is(text, "-0"))
        st_buf_putc(c->out, '0');
    else
        st_buf_slice(c->out, text);
}

/* ---- objects and arrays -------------------------------------------------------------- */

static struct member *member_push(struct canon *c)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 32;
        struct member *m = reallocarray(c->members, cap, sizeof(*m));

        if (!m) {
            c->no_memory = true;
            return NULL;
        }
        c->members = m;
        c->cap = cap;
    }
    return &c->members[c->n++];
}

static int key_cmp(const struct st_buf *keys, const struct member *a, const struct member *b)
{
    return st_slice_cmp(ST_SLICE(keys->p + a->key, a->key_len), ST_SLICE(keys->p + b->key, b->key_len));
}

/* By key; of equal ones the last in the document comes last. */
static int member_cmp(const void *x, const void *y, void *keys)
{
    const struct member *a = x, *b = y;
    int order = key_cmp(keys, a, b);

    return order ? order : (a->at > b->at) - (a->at < b->at);
}

static bool in_order(const struct canon *c, size_t first)
{
    for (size_t i = first + 1; i < c->n; i++)
        if (key_cmp(&c->keys, &c->members[i - 1], &c->members[i]) >= 0)
            return false;
    return true;
}

/* Rewrites the members first .. n of the object that ends the output. */
static void put_in_order(struct canon *c, size_t first)
{
    size_t start = c->members[first].at;

    qsort_r(c->members + first, c->n - first, sizeof(*c->members), member_cmp, &c->keys);
    st_buf_reset(&c->scratch);
    for (size_t i = first; i < c->n; i++) {
        const struct member *m = &c->members[i];

        if (i + 1 < c->n && key_cmp(&c->keys, m, m + 1) == 0)
            continue; /* a later one has the same key */
        if (c->scratch.len)
            st_buf_putc(&c->scratch, ',');
        st_buf_put(&c->scratch, c->out->p + m->at, m->len);
    }
    if (c->scratch.failed)
        return;
    c->out->len = start;
    st_buf_put(c->out, c->scratch.p, c->scratch.len);
}

/* c->p is at the key's quote. */
static void put_member(struct canon *c)
{
    size_t key = c->keys.len, at = c->out->len, index = c->n;
    struct member *m = member_push(c);

    if (!m)
        return;
    unescape(take_raw(c), &c->keys);
    if (c->keys.failed)
        return;
    *m = (struct member){.key = key, .key_len = c->keys.len - key, .at = at};
    put_text(c->out, c->keys.p + key, m->key_len);
    skip_blanks(c);
    c->p++; /* : */
    st_buf_putc(c->out, ':');
    put_value(c);
    c->members[index].len = c->out->len - at; /* the stack may have moved */
}

static void put_object(struct canon *c)
{
    size_t first = c->n, keys = c->keys.len;

    st_buf_putc(c->out, '{');
    c->p++;
    skip_blanks(c);
    while (!failed(c) && *c->p != '}') {
        put_member(c);
        if (failed(c))
            return;
        skip_blanks(c);
        if (*c->p == ',') {
            c->p++;
            skip_blanks(c);
            st_buf_putc(c->out, ',');
        }
    }
    if (failed(c))
        return;
    c->p++;
    if (!in_order(c, first))
        put_in_order(c, first);
    st_buf_putc(c->out, '}');
    c->n = first;
    c->keys.len = keys;
}

static void put_array(struct canon *c)
{
    st_buf_putc(c->out, '[');
    c->p++;
    skip_blanks(c);
    while (!failed(c) && *c->p != ']') {
        put_value(c);
        if (failed(c))
            return;
        skip_blanks(c);
        if (*c->p == ',') {
            c->p++;
            st_buf_putc(c->out, ',');
        }
    }
    c->p++;
    st_buf_putc(c->out, ']');
}

static void put_word(struct canon *c, const char *word)
{
    st_buf_puts(c->out, word);
    c->p += strlen(word);
}

static void put_value(struct canon *c)
{
    skip_blanks(c);
    switch (*c->p) {
    case '{':
        put_object(c);
        break;
    case '[':
        put_array(c);
        break;
    case '"':
        put_string(c);
        break;
    case 't':
        put_word(c, "true");
        break;
    case 'f':
        put_word(c, "false");
        break;
    case 'n':
        put_word(c, "null");
        break;
    default:
        put_number(c);
    }
}

static stint_code canonical_checked(struct st_slice doc, struct st_buf *out, stint_error *err)
{
    struct canon c = {.p = doc.p, .end = doc.p + doc.len, .out = out};
    bool bad;

    st_buf_init(&c.keys, doc.len + 1);
    st_buf_putc(&c.keys, ' '); /* never empty, so that a key has an address */
    st_buf_init(&c.scratch, out->max);
    put_value(&c);
    bad = failed(&c);
    st_buf_clear(&c.keys);
    st_buf_clear(&c.scratch);
    free(c.members);
    if (bad)
        return st_fail(err, STINT_ENOMEM, "no room for the canonical text of a document");
    return STINT_OK;
}

stint_code st_json_canonical(struct st_slice doc, struct st_buf *out, stint_error *err)
{
    stint_code rc = st_json_check(doc, err);

    return rc == STINT_OK ? canonical_checked(doc, out, err) : rc;
}

/* ---- the hash ---------------------------------------------------------------------- */

/* reproq hashes the whole spec, which names the task itself. */
static bool is_reproq(struct st_slice doc)
{
    struct st_slice task;

    doc = st_json_trim(doc);
    if (st_json_typeof(doc) != ST_JSON_OBJECT)
        return false;
    task = st_json_member(doc, "task_path");
    return task.p && st_json_typeof(task) == ST_JSON_STRING && st_json_member(doc, "v").p;
}

static stint_code put_spec(struct st_slice type, struct st_slice queue, struct st_slice payload, struct st_buf *out,
                           stint_error *err)
{
    bool json = payload.len && st_json_ok(payload);
    stint_code rc = STINT_OK;

    if (json && is_reproq(payload))
        return canonical_checked(payload, out, err);
    if (json) {
        st_buf_puts(out, "{\"payload\":");
        rc = canonical_checked(payload, out, err);
    } else {
        st_buf_puts(out, "{\"payload_base64\":\"");
        st_buf_base64(out, payload);
        st_buf_putc(out, '"');
    }
    st_buf_puts(out, ",\"queue\":");
    put_text(out, queue.p, queue.len);
    st_buf_puts(out, ",\"type\":");
    put_text(out, type.p, type.len);
    st_buf_putc(out, '}');
    return rc;
}

stint_code st_spec_hash(struct st_slice type, struct st_slice queue, struct st_slice payload, char out[ST_HASH_LEN + 1],
                        stint_error *err)
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    struct st_buf text;
    stint_code rc;

    /* 1e15 becomes 1000000000000000.0: no text grows more than fivefold. */
    st_buf_init(&text, 5 * payload.len + 6 * (type.len + queue.len) + 128);
    rc = put_spec(type, queue, payload, &text, err);
    if (rc == STINT_OK && text.failed)
        rc = st_fail(err, STINT_ENOMEM, "no memory for a spec hash");
    if (rc == STINT_OK) {
        crypto_hash_sha256(hash, (const unsigned char *)text.p, text.len);
        sodium_bin2hex(out, ST_HASH_LEN + 1, hash, sizeof(hash));
    }
    st_buf_clear(&text);
    return rc;
}
