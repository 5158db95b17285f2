/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_pickle.h - pickles read without running anything, and JSON values written as pickles.
 *
 * A pickle is a program.  This reader knows the few instructions that plain values are made of, and one class, uuid.UUID,
 * which it does not import either: it only reads the number.  Everything else is refused by name.
 */
#ifndef ST_INTAKE_RQ_PICKLE_H
#define ST_INTAKE_RQ_PICKLE_H

#include "base/buf.h"

enum st_pickle_kind {
    ST_PICKLE_NONE,
    ST_PICKLE_BOOL,
    ST_PICKLE_INT,
    ST_PICKLE_FLOAT,
    ST_PICKLE_STR,
    ST_PICKLE_BYTES,
    ST_PICKLE_TUPLE,
    ST_PICKLE_LIST,
    ST_PICKLE_DICT,  /* key, value, key, value, ... */
    ST_PICKLE_CLASS, /* uuid.UUID itself */
    ST_PICKLE_UUID,
};

/* A value; they refer to one another by number, and may do so in circles. */
struct st_pickle_value {
    enum st_pickle_kind kind;
    struct st_slice bytes; /* of a text; of an integer: little-endian, two's complement, at least one byte */
    uint32_t *kids;
    size_t n, cap;
    unsigned char raw[8]; /* what bytes of a short integer point to */
    unsigned char uuid[16];
};

#define ST_PICKLE_BYTES_MAX  (1u << 20)
#define ST_PICKLE_VALUES_MAX 65536

struct st_pickle {
    struct st_pickle_value *v; /* never moves while it is read */
    size_t n;
    uint32_t root;
};

/* EINVAL says what was refused.  Texts are views of doc.  Clear it in any case. */
stint_code st_pickle_read(struct st_slice doc, struct st_pickle *out, stint_error *err);
void st_pickle_clear(struct st_pickle *p);
/* An integer that fits. */
bool st_pickle_i64(const struct st_pickle_value *v, int64_t *out);

/* A checked JSON document as a pickle, protocol 4.  ST_NONE writes None. */
void st_pickle_write(struct st_buf *b, struct st_slice json);

#endif
