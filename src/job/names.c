/* SPDX-License-Identifier: Apache-2.0
 *
 * names.c - what queues, types and unique keys may be called.
 *
 * Names end up in shell words, YAML, Redis keys and logs, so what would need quoting there is
 * refused here, once.  Blanks and control characters are meant as Unicode means them.
 *
 * Thread: any; there is no state here.
 */
#include "job/names.h"

#include <string.h>

#define QUOTED_MAX 48

/* The code point at *i of valid UTF-8; moves *i behind it. */
static uint32_t code_point(struct st_slice s, size_t *i)
{
    unsigned char c = (unsigned char)s.p[(*i)++];
    uint32_t cp = c;

    if (c >= 0xF0)
        cp = c & 0x07u;
    else if (c >= 0xE0)
        cp = c & 0x0Fu;
    else if (c >= 0xC0)
        cp = c & 0x1Fu;
    while (*i < s.len && ((unsigned char)s.p[*i] & 0xC0) == 0x80)
        cp = cp << 6 | ((unsigned char)s.p[(*i)++] & 0x3Fu);
    return cp;
}

static bool is_control(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7F && cp <= 0x9F);
}

static bool is_blank(uint32_t cp)
{
    return cp == ' ' || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200B) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000 || cp == 0xFEFF;
}

/* The name as a message may show it: no control characters, not too long. */
static const char *quoted(struct st_slice name, char out[QUOTED_MAX + 8])
{
    size_t n = st_utf8_cut(name.p, name.len, QUOTED_MAX);

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name.p[i];

        out[i] = is_control(c) && c < 0x80 ? '?' : (char)c;
    }
    strcpy(out + n, n < name.len ? "..." : "");
    return out;
}

static stint_code refuse_cp(const char *what, struct st_slice name, uint32_t cp, stint_error *err)
{
    char text[QUOTED_MAX + 8];
    stint_code rc;

    quoted(name, text);
    if (is_control(cp))
        rc = st_fail(err, STINT_EINVAL, "%s name \"%s\" has a control character", what, text);
    else if (is_blank(cp))
        rc = st_fail(err, STINT_EINVAL, "%s name \"%s\" has a blank in it", what, text);
    else
        rc = st_fail(err, STINT_EINVAL, "%s name \"%s\" has a '%c' in it", what, text, (int)cp);
    st_err_remedy(err, "use letters, digits and any of . _ - : / instead");
    return rc;
}

static stint_code size_check(const char *what, struct st_slice s, size_t max, stint_error *err)
{
    if (s.len == 0) {
        st_fail(err, STINT_EINVAL, "the %s is empty", what);
        st_err_remedy(err, "it has 1 to %zu bytes", max);
    } else if (s.len > max) {
        st_fail(err, STINT_EINVAL, "the %s has %zu bytes, the most is %zu", what, s.len, max);
        st_err_remedy(err, "shorten it, for example to a hash of it");
    } else if (!st_utf8_valid(s.p, s.len)) {
        return st_refuse(err, "write it in UTF-8", "the %s is not UTF-8", what);
    } else {
        return STINT_OK;
    }
    return STINT_EINVAL;
}

/* what: "queue" or "type". */
static stint_code chars_check(const char *what, struct st_slice name, stint_error *err)
{
    size_t i = 0;

    while (i < name.len) {
        uint32_t cp = code_point(name, &i);

        if (is_control(cp) || is_blank(cp) || (cp < 0x80 && strchr("*{},\"'`", (int)cp)))
            return refuse_cp(what, name, cp, err);
    }
    return STINT_OK;
}

static bool has_empty_part(struct st_slice name)
{
    if (name.p[0] == '.' || name.p[name.len - 1] == '.')
        return true;
    return memmem(name.p, name.len, "..", 2) != NULL;
}

stint_code st_queue_check(struct st_slice name, stint_error *err)
{
    char text[QUOTED_MAX + 8];
    stint_code rc = size_check("queue name", name, ST_NAME_MAX, err);

    if (rc == STINT_OK)
        rc = chars_check("queue", name, err);
    if (rc == STINT_OK && has_empty_part(name)) {
        rc = st_fail(err, STINT_EINVAL, "queue name \"%s\" has an empty part", quoted(name, text));
        st_err_remedy(err, "write parent.sub, with a name on both sides of each dot");
    }
    return rc;
}

stint_code st_type_check(struct st_slice name, stint_error *err)
{
    stint_code rc = size_check("type name", name, ST_NAME_MAX, err);

    return rc == STINT_OK ? chars_check("type", name, err) : rc;
}

stint_code st_type_pattern_check(struct st_slice name, stint_error *err)
{
    stint_code rc = size_check("type name", name, ST_NAME_MAX, err);

    if (rc != STINT_OK)
        return rc;
    if (name.p[name.len - 1] == '*')
        name.len--;
    return chars_check("type", name, err);
}

stint_code st_key_check(struct st_slice key, stint_error *err)
{
    stint_code rc = size_check("unique key", key, ST_KEY_MAX, err);

    if (rc == STINT_OK && memchr(key.p, '\0', key.len))
        rc = st_refuse(err, "leave that character out", "the unique key has a NUL character in it");
    return rc;
}

struct st_slice st_queue_parent(struct st_slice name)
{
    const char *dot = name.len ? memchr(name.p, '.', name.len) : NULL;

    return dot ? ST_SLICE(name.p, (size_t)(dot - name.p)) : name;
}

bool st_queue_covers(struct st_slice asked, struct st_slice name)
{
    if (st_slice_is(asked, ST_QUEUE_ANY))
        return true;
    return st_slice_eq(asked, name) || st_slice_eq(asked, st_queue_parent(name));
}
