/* SPDX-License-Identifier: Apache-2.0
 *
 * str.c - bytes as {ptr, len}, UTF-8, and small text helpers.
 *
 * Slices compare by their bytes: a missing one equals an empty one; who must tell them apart
 * looks at p.
 *
 * Thread: any; no state.
 */
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

struct st_slice st_slice_cstr(const char *s)
{
    return s ? ST_SLICE(s, strlen(s)) : ST_NONE;
}

bool st_slice_eq(struct st_slice a, struct st_slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

bool st_slice_is(struct st_slice a, const char *s)
{
    return st_slice_eq(a, st_slice_cstr(s));
}

int st_slice_cmp(struct st_slice a, struct st_slice b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.p, b.p, n) : 0;

    if (c != 0)
        return c;
    return (a.len > b.len) - (a.len < b.len);
}

char *st_slice_dup(struct st_slice a)
{
    char *p;

    if (a.len == SIZE_MAX)
        return NULL;
    p = malloc(a.len + 1);
    if (!p)
        return NULL;
    if (a.len)
        memcpy(p, a.p, a.len);
    p[a.len] = '\0';
    return p;
}

static bool continues(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* Table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF. */
size_t st_utf8_len(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;

    if (len == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    if (p[0] < 0xe0)
        return len >= 2 && continues(p[1]) ? 2 : 0;
    if (p[0] < 0xf0) {
        if (len < 3 || !continues(p[1]) || !continues(p[2]))
            return 0;
        if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f))
            return 0;
        return 3;
    }
    if (len < 4 || !continues(p[1]) || !continues(p[2]) || !continues(p[3]))
        return 0;
    if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return 4;
}

bool st_utf8_valid(const char *p, size_t len)
{
    size_t i = 0, n;
    uint64_t w;

    while (i < len) {
        while (len - i >= sizeof(w)) { /* mostly ASCII: eight bytes at a time */
            memcpy(&w, p + i, sizeof(w));
            if (w & 0x8080808080808080u)
                break;
            i += sizeof(w);
        }
        if (i == len)
            break;
        n = st_utf8_len(p + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

size_t st_utf8_cut(const char *p, size_t len, size_t max)
{
    size_t n = max;

    if (len <= max)
        return len;
    while (n > 0 && max - n < 4 && continues((unsigned char)p[n]))
        n--;
    return max - n < 4 ? n : max; /* more continuation bytes than that: not UTF-8 anyway */
}

bool st_parse_i64(struct st_slice s, int64_t *out)
{
    bool minus = s.len > 0 && s.p[0] == '-';
    int64_t v = 0;

    if (s.len == (size_t)minus)
        return false;
    for (size_t i = minus; i < s.len; i++) {
        int d = s.p[i] - '0';

        if (d < 0 || d > 9 || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_sub_overflow(v, d, &v)) /* counts downwards: INT64_MIN has no positive */
            return false;
    }
    if (!minus && v == INT64_MIN)
        return false;
    *out = minus ? v : -v;
    return true;
}

int st_pattern_match(struct st_slice pattern, struct st_slice name)
{
    size_t n = pattern.len;

    if (n == 0 || pattern.p[n - 1] != '*')
        return st_slice_eq(pattern, name) ? INT32_MAX : 0;
    n--;
    if (name.len < n || (n && memcmp(pattern.p, name.p, n) != 0) || n >= INT32_MAX - 1)
        return 0;
    return 1 + (int)n;
}
