/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_args.c - parameters and results in PostgreSQL's binary format.
 *
 * Numbers are big-endian.  An array is a header (dimensions, are there NULLs, element type, length,
 * lower bound), then each item with its length in front, -1 for NULL.  The header's length is
 * written when the array ends.
 *
 * Thread: whoever owns the parameters.
 */
#include "store/postgres_op.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

/* The server refuses a message of 1 GiB; so do we, before it is sent. */
#define ARGS_MAX ((size_t)1 << 30)

/* Where in an array's header its length stands. */
#define ARRAY_HEADER   20
#define ARRAY_HAS_NULL 4
#define ARRAY_LENGTH   12

enum {
    OID_BOOL_ARRAY = 1000,
    OID_BYTEA_ARRAY = 1001,
    OID_INT2_ARRAY = 1005,
    OID_INT4_ARRAY = 1007,
    OID_TEXT_ARRAY = 1009,
    OID_INT8_ARRAY = 1016
};

void st_pg_args_init(struct st_pg_args *a)
{
    memset(a, 0, sizeof(*a));
    st_buf_init(&a->buf, ARGS_MAX);
}

void st_pg_args_clear(struct st_pg_args *a)
{
    st_buf_clear(&a->buf);
    st_pg_args_init(a);
}

/* ---- one value --------------------------------------------------------------------------- */

static void put_i16(struct st_buf *b, int16_t v)
{
    const uint16_t be = htobe16((uint16_t)v);

    st_buf_put(b, &be, sizeof(be));
}

static void put_i32(struct st_buf *b, int32_t v)
{
    const uint32_t be = htobe32((uint32_t)v);

    st_buf_put(b, &be, sizeof(be));
}

static void put_i64(struct st_buf *b, int64_t v)
{
    const uint64_t be = htobe64((uint64_t)v);

    st_buf_put(b, &be, sizeof(be));
}

/* Begins a parameter; its length is known when the next step calls end().  One too many is a failure. */
static bool begin(struct st_pg_args *a, unsigned oid)
{
    if (a->n >= ST_PG_ARGS) {
        a->buf.failed = true;
        return false;
    }
    a->oid[a->n] = oid;
    a->at[a->n] = a->buf.len;
    return true;
}

static void end(struct st_pg_args *a)
{
    a->len[a->n] = (int)(a->buf.len - a->at[a->n]);
    a->n++;
}

void st_pg_i64(struct st_pg_args *a, int64_t v)
{
    if (!begin(a, ST_PG_INT8))
        return;
    put_i64(&a->buf, v);
    end(a);
}

void st_pg_i32(struct st_pg_args *a, int32_t v)
{
    if (!begin(a, ST_PG_INT4))
        return;
    put_i32(&a->buf, v);
    end(a);
}

void st_pg_bool(struct st_pg_args *a, bool v)
{
    if (!begin(a, ST_PG_BOOL))
        return;
    st_buf_putc(&a->buf, v ? 1 : 0);
    end(a);
}

void st_pg_null(struct st_pg_args *a, unsigned oid)
{
    if (begin(a, oid))
        a->len[a->n++] = -1;
}

static void put_bytes(struct st_pg_args *a, unsigned oid, struct st_slice s)
{
    if (!s.p) {
        st_pg_null(a, oid);
        return;
    }
    if (!begin(a, oid))
        return;
    st_buf_slice(&a->buf, s);
    end(a);
}

void st_pg_text(struct st_pg_args *a, struct st_slice s)
{
    put_bytes(a, ST_PG_TEXT, s);
}

void st_pg_bytes(struct st_pg_args *a, struct st_slice s)
{
    put_bytes(a, ST_PG_BYTEA, s);
}

/* ---- arrays ------------------------------------------------------------------------------ */

static unsigned array_oid(unsigned elem)
{
    switch (elem) {
    case ST_PG_BOOL:
        return OID_BOOL_ARRAY;
    case ST_PG_BYTEA:
        return OID_BYTEA_ARRAY;
    case ST_PG_INT2:
        return OID_INT2_ARRAY;
    case ST_PG_INT4:
        return OID_INT4_ARRAY;
    case ST_PG_TEXT:
        return OID_TEXT_ARRAY;
    case ST_PG_INT8:
        return OID_INT8_ARRAY;
    default:
        return 0;
    }
}

void st_pg_array(struct st_pg_args *a, unsigned elem)
{
    a->n_items = 0;
    a->array = a->buf.len;
    if (!begin(a, array_oid(elem)))
        return;
    put_i32(&a->buf, 1); /* dimensions */
    put_i32(&a->buf, 0); /* NULLs among the items */
    put_i32(&a->buf, (int32_t)elem);
    put_i32(&a->buf, 0); /* items */
    put_i32(&a->buf, 1); /* the first one's number */
}

void st_pg_item_i64(struct st_pg_args *a, int64_t v)
{
    put_i32(&a->buf, sizeof(v));
    put_i64(&a->buf, v);
    a->n_items++;
}

void st_pg_item_i32(struct st_pg_args *a, int32_t v)
{
    put_i32(&a->buf, sizeof(v));
    put_i32(&a->buf, v);
    a->n_items++;
}

void st_pg_item_i16(struct st_pg_args *a, int16_t v)
{
    put_i32(&a->buf, sizeof(v));
    put_i16(&a->buf, v);
    a->n_items++;
}

void st_pg_item_bytes(struct st_pg_args *a, struct st_slice s)
{
    if (!s.p) {
        st_pg_item_null(a);
        return;
    }
    put_i32(&a->buf, s.len <= ARGS_MAX ? (int32_t)s.len : 0);
    st_buf_slice(&a->buf, s); /* too long: fails here */
    a->n_items++;
}

/* The server takes only UTF-8 without NUL as text, and of that what the database can hold: the rest becomes '?'. */
static void put_clean(struct st_buf *b, struct st_slice s, bool narrow)
{
    for (size_t i = 0; i < s.len;) {
        const size_t n = s.p[i] ? st_utf8_len(s.p + i, s.len - i) : 0;

        if (n == 1 || (n && !narrow))
            st_buf_put(b, s.p + i, n);
        else
            st_buf_putc(b, '?');
        i += n ? n : 1;
    }
}

void st_pg_item_text(struct st_pg_args *a, struct st_slice s)
{
    size_t at;
    uint32_t be;

    if (!s.p) {
        st_pg_item_null(a);
        return;
    }
    at = a->buf.len;
    put_i32(&a->buf, 0);
    put_clean(&a->buf, s, a->narrow);
    a->n_items++;
    be = htobe32((uint32_t)(a->buf.len - at - sizeof(be)));
    if (!a->buf.failed)
        memcpy(a->buf.p + at, &be, sizeof(be));
}

void st_pg_shown(struct st_pg_args *a, struct st_slice s)
{
    if (!s.p) {
        st_pg_null(a, ST_PG_TEXT);
        return;
    }
    if (!begin(a, ST_PG_TEXT))
        return;
    put_clean(&a->buf, s, a->narrow);
    end(a);
}

void st_pg_no_array(struct st_pg_args *a, unsigned elem)
{
    st_pg_null(a, array_oid(elem));
}

static void header_set(struct st_pg_args *a, size_t field, int32_t v)
{
    const uint32_t be = htobe32((uint32_t)v);

    if (!a->buf.failed)
        memcpy(a->buf.p + a->array + field, &be, sizeof(be));
}

void st_pg_item_null(struct st_pg_args *a)
{
    put_i32(&a->buf, -1);
    header_set(a, ARRAY_HAS_NULL, 1);
    a->n_items++;
}

void st_pg_array_end(struct st_pg_args *a)
{
    if (a->buf.failed)
        return;
    header_set(a, ARRAY_LENGTH, a->n_items);
    end(a);
}

void st_pg_ids(struct st_pg_args *a, const struct st_slice *ids, size_t n)
{
    struct st_pg_key key;

    st_pg_array(a, ST_PG_BYTEA);
    for (size_t i = 0; i < n; i++) {
        st_pg_key(ids[i], &key);
        st_pg_item_bytes(a, ST_SLICE((const char *)key.p, key.len));
    }
    st_pg_array_end(a);
}

/* ---- results ------------------------------------------------------------------------------ */

bool st_pg_is_null(const PGresult *r, int row, int col)
{
    return PQgetisnull(r, row, col);
}

int64_t st_pg_get_i64(const PGresult *r, int row, int col, int64_t fallback)
{
    const char *p = PQgetvalue(r, row, col);
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;

    if (!p || PQgetisnull(r, row, col))
        return fallback;
    switch (PQgetlength(r, row, col)) {
    case 1:
        return *p;
    case 2:
        memcpy(&u16, p, sizeof(u16));
        return (int16_t)be16toh(u16);
    case 4:
        memcpy(&u32, p, sizeof(u32));
        return (int32_t)be32toh(u32);
    case 8:
        memcpy(&u64, p, sizeof(u64));
        return (int64_t)be64toh(u64);
    default:
        return fallback;
    }
}

bool st_pg_get_bool(const PGresult *r, int row, int col)
{
    return st_pg_get_i64(r, row, col, 0) != 0;
}

struct st_slice st_pg_get(const PGresult *r, int row, int col)
{
    const char *p = PQgetvalue(r, row, col);

    if (!p || PQgetisnull(r, row, col))
        return ST_NONE;
    return ST_SLICE(p, (size_t)PQgetlength(r, row, col));
}

char *st_pg_get_dup(const PGresult *r, int row, int col, bool *oom)
{
    const struct st_slice s = st_pg_get(r, row, col);
    char *copy = s.p ? st_slice_dup(s) : NULL;

    if (s.p && !copy)
        *oom = true;
    return copy;
}

bool st_pg_get_id(const PGresult *r, int row, int col, char out[ST_ID_MAX + 1])
{
    return st_pg_key_text(st_pg_get(r, row, col), out);
}

/* ---- arrays of a result ------------------------------------------------------------------- */

static int32_t be32(const char *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return (int32_t)be32toh(v);
}

bool st_pg_get_array(const PGresult *r, int row, int col, struct st_pg_array *out)
{
    const struct st_slice s = st_pg_get(r, row, col);

    *out = (struct st_pg_array){0};
    if (!s.p || s.len < 12)
        return false;
    if (be32(s.p) == 1 && s.len >= ARRAY_HEADER)
        *out = (struct st_pg_array){.at = s.p + ARRAY_HEADER, .end = s.p + s.len, .left = be32(s.p + ARRAY_LENGTH)};
    return true;
}

bool st_pg_array_next(struct st_pg_array *a, struct st_slice *item)
{
    int32_t len;

    *item = ST_NONE;
    if (a->left <= 0 || a->end - a->at < 4)
        return false;
    len = be32(a->at);
    a->at += 4;
    a->left--;
    if (len < 0)
        return true;
    if (a->end - a->at < len)
        return false;
    *item = ST_SLICE(a->at, (size_t)len);
    a->at += len;
    return true;
}

void st_pg_policy_own(struct st_policy *p, const PGresult *r, int row, int max, int timeout)
{
    if (max >= 0 && !st_pg_is_null(r, row, max))
        p->max_attempts = (int)st_pg_get_i64(r, row, max, 0);
    if (timeout >= 0 && !st_pg_is_null(r, row, timeout))
        p->timeout_us = st_pg_get_i64(r, row, timeout, 0);
}
