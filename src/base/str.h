/* SPDX-License-Identifier: Apache-2.0
 *
 * str.h - bytes as {ptr, len}, and small text helpers.
 */
#ifndef ST_BASE_STR_H
#define ST_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A view of somebody else's bytes.  p may be NULL only when len is 0; a NULL p
 * means "not given", a non-NULL p with len 0 means "given, empty". */
struct st_slice {
    const char *p;
    size_t len;
};

#define ST_SLICE(ptr, n) ((struct st_slice){(ptr), (n)})
#define ST_NONE          ((struct st_slice){NULL, 0})

struct st_slice st_slice_cstr(const char *s); /* NULL gives ST_NONE */
bool st_slice_eq(struct st_slice a, struct st_slice b);
bool st_slice_is(struct st_slice a, const char *s);
int st_slice_cmp(struct st_slice a, struct st_slice b); /* memcmp order, shorter first */
char *st_slice_dup(struct st_slice a);                  /* NUL-terminated; NULL = no memory */

bool st_utf8_valid(const char *p, size_t len);
/* How many bytes the character at p has, 1 to 4; 0 if it is none or len is 0. */
size_t st_utf8_len(const char *p, size_t len);
/* The largest n <= len at which p may be cut without splitting a UTF-8 character. */
size_t st_utf8_cut(const char *p, size_t len, size_t max);

/* Decimal text to a number, the whole string, no sign but '-', no blanks. */
bool st_parse_i64(struct st_slice s, int64_t *out);

/* "type" matches NAME exactly or PREFIX* by prefix.  Returns how specific the match
 * is: 0 = none, 1 + length of the prefix, or INT32_MAX for an exact name. */
int st_pattern_match(struct st_slice pattern, struct st_slice name);

#endif
