/* SPDX-License-Identifier: Apache-2.0
 *
 * err.c - filling the caller's stint_error, and what the codes are called.
 *
 * Invariant: every text in a stint_error is one line of valid UTF-8, whatever was formatted into
 * it.  It may go to a terminal, a log line or a JSON document without another look.
 *
 * Thread: any; an error belongs to whoever passed it.
 */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

#ifndef STINT_VERSION
#define STINT_VERSION "unknown"
#endif

#define TEXT_MAX sizeof(((stint_error *)0)->message)

static const char *const code_names[] = {
#define X(name, text) #name,
    STINT_CODES(X)
#undef X
};

static const char *const code_texts[] = {
#define X(name, text) text,
    STINT_CODES(X)
#undef X
};

#define N_CODES (sizeof(code_names) / sizeof(code_names[0]))

const char *stint_code_name(stint_code code)
{
    return (size_t)code < N_CODES ? code_names[code] : "?";
}

const char *stint_code_text(stint_code code)
{
    return (size_t)code < N_CODES ? code_texts[code] : "not a code of this library";
}

const char *stint_version(void)
{
    return STINT_VERSION;
}

/* Control characters become blanks (a final newline goes), bytes that are not UTF-8 become '?'. */
static void make_one_line(char *s)
{
    size_t len = strlen(s), n;

    while (len > 0 && (s[len - 1] == '\n' || s[len - 1] == '\r'))
        s[--len] = '\0';
    for (size_t i = 0; i < len; i += n) {
        n = st_utf8_len(s + i, len - i);
        if (n == 0) {
            s[i] = '?';
            n = 1;
        } else if (n == 1 && ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)) {
            s[i] = ' ';
        } else if (n == 2 && (unsigned char)s[i] == 0xc2 && (unsigned char)s[i + 1] < 0xa0) {
            s[i] = s[i + 1] = ' '; /* C1 controls: a terminal may obey them */
        }
    }
}

/* Formats into out[size], size at most TEXT_MAX.  The arguments may point into out. */
static void format_text(char *out, size_t size, const char *fmt, va_list ap) ST_PRINTF(3, 0);
static void format_text(char *out, size_t size, const char *fmt, va_list ap)
{
    char tmp[TEXT_MAX + 4]; /* room to see whether the cut splits a character */
    size_t len;

    if (vsnprintf(tmp, sizeof(tmp), fmt, ap) < 0)
        tmp[0] = '\0';
    len = strlen(tmp);
    len = st_utf8_cut(tmp, len, size - 1);
    memcpy(out, tmp, len);
    out[len] = '\0';
    make_one_line(out);
}

static void fill(stint_error *err, stint_code code, const char *fmt, va_list ap) ST_PRINTF(3, 0);
static void fill(stint_error *err, stint_code code, const char *fmt, va_list ap)
{
    format_text(err->message, sizeof(err->message), fmt, ap);
    err->code = code;
    err->detail[0] = '\0';
    err->remedy[0] = '\0';
}

stint_code st_fail(stint_error *err, stint_code code, const char *fmt, ...)
{
    va_list ap;

    if (!err)
        return code;
    va_start(ap, fmt);
    fill(err, code, fmt, ap);
    va_end(ap);
    return code;
}

stint_code st_refuse(stint_error *err, const char *remedy, const char *fmt, ...)
{
    va_list ap;

    if (!err)
        return STINT_EINVAL;
    va_start(ap, fmt);
    fill(err, STINT_EINVAL, fmt, ap);
    va_end(ap);
    st_err_remedy(err, "%s", remedy);
    return STINT_EINVAL;
}

void st_err_remedy(stint_error *err, const char *fmt, ...)
{
    va_list ap;

    if (!err)
        return;
    va_start(ap, fmt);
    format_text(err->remedy, sizeof(err->remedy), fmt, ap);
    va_end(ap);
}

void st_err_detail(stint_error *err, const char *detail)
{
    size_t len;

    if (!err)
        return;
    if (!detail)
        detail = "";
    len = st_utf8_cut(detail, strlen(detail), sizeof(err->detail) - 1);
    memmove(err->detail, detail, len);
    err->detail[len] = '\0';
    make_one_line(err->detail);
}

static void join(stint_error *err, const char *fmt, ...) ST_PRINTF(2, 3);
static void join(stint_error *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    format_text(err->message, sizeof(err->message), fmt, ap);
    va_end(ap);
}

void st_err_prefix(stint_error *err, const char *fmt, ...)
{
    char prefix[sizeof(err->message)];
    va_list ap;

    if (!err)
        return;
    va_start(ap, fmt);
    format_text(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    join(err, "%s: %s", prefix, err->message);
}

void st_err_clear(stint_error *err)
{
    if (err)
        memset(err, 0, sizeof(*err));
}
