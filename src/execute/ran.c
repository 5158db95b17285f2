/* SPDX-License-Identifier: Apache-2.0
 *
 * ran.c - what came of an attempt: the record, and the names around it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "execute/execute.h"

#define MESSAGE_MAX 10000

const struct st_limits st_limits_default = {
    .payload = 1u << 20, .result = 10u << 20, .line = 16u << 20, .output = 1u << 20};

const char *st_abort_name(enum st_abort a)
{
    static const char *const names[] = {
        [ST_ABORT_NOT] = "",
        [ST_ABORT_TAKEN] = "taken_by_another_worker",
        [ST_ABORT_CANCELLED] = "cancelled",
        [ST_ABORT_SHUTDOWN] = "shutdown",
        [ST_ABORT_LEASE] = "lease_expired",
        [ST_ABORT_NOT_FOUND] = "not_found",
        [ST_ABORT_ALREADY_COMPLETED] = "already_completed",
        [ST_ABORT_ERROR] = "error",
        [ST_ABORT_TIMEOUT] = "timeout",
    };

    return (size_t)a < sizeof(names) / sizeof(*names) ? names[a] : "";
}

void st_ran_clear(struct st_ran *ran)
{
    free(ran->result);
    free(ran->message);
    free(ran->log);
    free(ran->log_tail);
    *ran = (struct st_ran)ST_RAN_INIT;
}

/* How many bytes the character at p has; 0 if it is none, or one no text should hold. */
static size_t char_len(const char *p, size_t left)
{
    for (size_t n = 1; n <= 4 && n <= left; n++)
        if (st_utf8_valid(p, n))
            return *p ? n : 0;
    return 0;
}

/* Stores want UTF-8; programs print what they like. */
static char *clean(const char *p, size_t len)
{
    struct st_buf b;

    st_buf_init(&b, MESSAGE_MAX);
    st_buf_puts(&b, "");
    while (len && !b.failed) {
        size_t n = char_len(p, len);

        if (n)
            st_buf_put(&b, p, n);
        else
            st_buf_puts(&b, "\xef\xbf\xbd");
        p += n ? n : 1;
        len -= n ? n : 1;
    }
    b.failed = !b.p; /* what did not fit is cut, at a character */
    return st_buf_take(&b);
}

void st_ran_fail(struct st_ran *ran, enum st_kind kind, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    int n;

    free(ran->message);
    ran->message = NULL;
    ran->ok = false;
    ran->kind = kind;
    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    ran->message = clean(text, (size_t)n);
    free(text);
}
