/* SPDX-License-Identifier: Apache-2.0
 *
 * buf.h - a growing byte buffer with a maximum from birth.
 *
 * Appends never fail in the caller's face: the first one that does not fit (or finds no
 * memory) sets `failed`, later ones do nothing.  Check once, at the end.
 */
#ifndef ST_BASE_BUF_H
#define ST_BASE_BUF_H

#include "base/err.h"
#include "base/str.h"

struct st_buf {
    char *p;    /* always NUL-terminated once something was appended; NULL before */
    size_t len; /* without the NUL */
    size_t cap;
    size_t max;  /* len never grows above it */
    bool failed; /* something did not fit or no memory was left */
};

void st_buf_init(struct st_buf *b, size_t max);
void st_buf_clear(struct st_buf *b); /* frees; the buffer may be used again with the same max */
void st_buf_reset(struct st_buf *b); /* empties, keeps the memory */

void st_buf_put(struct st_buf *b, const void *p, size_t n);
void st_buf_putc(struct st_buf *b, char c);
void st_buf_puts(struct st_buf *b, const char *s);
void st_buf_slice(struct st_buf *b, struct st_slice s);
void st_buf_printf(struct st_buf *b, const char *fmt, ...) ST_PRINTF(2, 3);
void st_buf_base64(struct st_buf *b, struct st_slice s);
/* n bytes behind the end, to be written by the caller, who then adds what it has written to len
 * and puts the NUL.  NULL = they do not fit; then `failed` is set. */
char *st_buf_room(struct st_buf *b, size_t n);

/* Give the bytes to the caller (free()); the buffer is empty afterwards.  NULL if failed. */
char *st_buf_take(struct st_buf *b);
struct st_slice st_buf_view(const struct st_buf *b);

#endif
