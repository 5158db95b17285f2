/* SPDX-License-Identifier: Apache-2.0
 *
 * down.c - the types that a worker cannot run right now, in the note of its row.
 */
#include "worker/down.h"

#include <stdint.h>
#include <string.h>

#include "base/buf.h"

#define BEGIN      "cannot run "
#define OTHERS     "..."
#define REASON_MIN 80 /* bytes kept for the reasons */

void st_down_write(const struct st_down *list, size_t n, char *out, size_t size)
{
    struct st_buf b;
    size_t len;

    st_buf_init(&b, 65536);
    st_buf_puts(&b, BEGIN);
    for (size_t i = 0; i < n; i++) {
        bool fits = i == 0 || b.len + strlen(list[i].pattern) + REASON_MIN < size;

        st_buf_printf(&b, "%s%s", i ? ", " : "", fits ? list[i].pattern : OTHERS);
        if (!fits)
            break;
    }
    for (size_t i = 0; i < n; i++) {
        st_buf_puts(&b, i ? "; " : " - ");
        if (n > 1)
            st_buf_printf(&b, "%s: ", list[i].pattern);
        st_buf_puts(&b, list[i].why);
    }
    len = b.p ? st_utf8_cut(b.p, b.len, size - 1) : 0;
    memcpy(out, b.p ? b.p : "", len);
    out[len] = '\0';
    st_buf_clear(&b);
}

bool st_down_names(const char *note)
{
    return strncmp(note, BEGIN, strlen(BEGIN)) == 0;
}

int st_down_match(const char *note, struct st_slice type)
{
    const char *at = note + strlen(BEGIN);
    bool more = true;
    int best = 0;

    if (!st_down_names(note))
        return INT32_MAX;
    while (more) {
        struct st_slice name = ST_SLICE(at, strcspn(at, " "));
        int match;

        at += name.len + (at[name.len] == ' ');
        more = name.len && name.p[name.len - 1] == ',';
        name.len -= more;
        match = st_slice_is(name, OTHERS) ? INT32_MAX : st_pattern_match(name, type);
        best = match > best ? match : best;
    }
    return best;
}
