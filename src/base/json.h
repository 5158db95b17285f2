/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h - JSON that never alters a user's bytes.
 *
 * A document is only ever looked at: st_json_check says whether it is JSON, the walkers give
 * byte ranges inside it.  Nothing is re-printed, so 30-digit numbers, 1.10, duplicate keys and
 * the order of members survive.  Strict RFC 8259, UTF-8; escaped lone surrogates are legal
 * grammar and are let through; nesting up to ST_JSON_DEPTH.
 */
#ifndef ST_BASE_JSON_H
#define ST_BASE_JSON_H

#include "base/buf.h"

#define ST_JSON_DEPTH 512

enum st_json_type {
    ST_JSON_NULL,
    ST_JSON_FALSE,
    ST_JSON_TRUE,
    ST_JSON_NUMBER,
    ST_JSON_STRING,
    ST_JSON_ARRAY,
    ST_JSON_OBJECT,
};

/* Is this one JSON document (blanks around it allowed)?  EINVAL with the byte offset if not. */
stint_code st_json_check(struct st_slice doc, stint_error *err);
/* Same answer, without a message. */
bool st_json_ok(struct st_slice doc);

/* The walkers below expect a document that st_json_check has passed. */

struct st_slice st_json_trim(struct st_slice doc);   /* without the blanks around it */
enum st_json_type st_json_typeof(struct st_slice v); /* of a trimmed value */

/* Steps through an object or array: start with *pos = 0; false at the end.  key is the raw text
 * between the quotes, escapes and all (ST_NONE in arrays). */
bool st_json_next(struct st_slice container, size_t *pos, struct st_slice *key, struct st_slice *value);

/* The value of a member, the last one if the key is repeated (as most parsers do).  Keys are
 * compared after unescaping.  ST_NONE if obj is not an object or has no such member. */
struct st_slice st_json_member(struct st_slice obj, const char *key);

/* Does this raw string text (between quotes) spell key? */
bool st_json_key_is(struct st_slice raw, const char *key);

/* The text of a string value, quotes and escapes undone, appended to out.  false if v is no string.  A
 * lone surrogate becomes U+FFFD. */
bool st_json_string(struct st_slice v, struct st_buf *out);
bool st_json_i64(struct st_slice v, int64_t *out); /* integers that fit, and nothing else */
bool st_json_bool(struct st_slice v, bool *out);

/* Writing.  Text that is not UTF-8 must not come here. */
void st_json_put_string(struct st_buf *b, struct st_slice s); /* quoted, escaped */
void st_json_put_cstr(struct st_buf *b, const char *s);       /* NULL writes null */

/* A small writer that minds the commas:  st_jw_open(&w,'{'); st_jw_key(&w,"a"); st_jw_int(&w,1);
 * st_jw_close(&w,'}'). */
struct st_jw {
    struct st_buf *b;
    bool comma;
};
void st_jw_init(struct st_jw *w, struct st_buf *b);
void st_jw_open(struct st_jw *w, char c);
void st_jw_close(struct st_jw *w, char c);
void st_jw_key(struct st_jw *w, const char *key);
void st_jw_raw(struct st_jw *w, struct st_slice json); /* a checked document, as it is */
void st_jw_str(struct st_jw *w, struct st_slice s);    /* p == NULL writes null */
void st_jw_cstr(struct st_jw *w, const char *s);       /* NULL writes null */
void st_jw_int(struct st_jw *w, int64_t v);
void st_jw_num(struct st_jw *w, double v, int decimals);
void st_jw_bool(struct st_jw *w, bool v);
void st_jw_null(struct st_jw *w);
void st_jw_time(struct st_jw *w, int64_t us); /* RFC 3339; 0 writes null */
/* A user's bytes under `key`: JSON as it is, other UTF-8 as a string, anything else as
 * base64 under key + "_base64".  p == NULL writes null. */
void st_jw_bytes(struct st_jw *w, const char *key, struct st_slice bytes);

#endif
