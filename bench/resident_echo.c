/* SPDX-License-Identifier: Apache-2.0
 *
 * resident_echo.c - a resident child that answers every request with its payload.
 *
 * It does what a good child does and no more: read what is there, answer all whole lines, write
 * all answers at once.  Used beside our executor and beside a bare parent (limits/pipe_echo.c).
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SIZE (1u << 20)

static char in[SIZE], out[2 * SIZE];

/* Behind the value at p. */
static const char *value_end(const char *p, const char *end)
{
    int depth = 0;

    for (; p < end; p++) {
        if (*p == '"') {
            for (p++; p < end && *p != '"'; p++)
                p += *p == '\\';
        } else if (*p == '{' || *p == '[') {
            depth++;
            continue;
        } else if (depth == 0 && (*p == ',' || *p == '}')) {
            return p;
        } else if (*p == '}' || *p == ']') {
            depth--;
        } else {
            continue;
        }
        if (depth == 0)
            return p + 1;
    }
    return end;
}

static char *put(char *to, const void *p, size_t n)
{
    memcpy(to, p, n);
    return to + n;
}

/* The members stand in a fixed order: {"task_id":..,"type":..,"payload":.. */
static char *answer(char *to, const char *line, const char *end)
{
    static const char head[] = "{\"task_id\":", pay[] = ",\"payload\":", mid[] = ",\"result\":",
                      tail[] = ",\"error\":null,\"retry\":false}\n";
    const char *id = line + sizeof(head) - 1, *id_end = value_end(id, end), *p, *p_end;

    p = memmem(id_end, (size_t)(end - id_end), pay, sizeof(pay) - 1);
    if (!p)
        return to;
    p += sizeof(pay) - 1;
    p_end = value_end(p, end);
    to = put(to, line, (size_t)(id_end - line));
    to = put(to, mid, sizeof(mid) - 1);
    to = put(to, p, (size_t)(p_end - p));
    return put(to, tail, sizeof(tail) - 1);
}

static bool write_all(const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(1, p, n);

        if (w <= 0)
            return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

int main(void)
{
    size_t have = 0;
    ssize_t n;

    if (!write_all("{\"status\":\"ready\"}\n", 19))
        return 1;
    while ((n = read(0, in + have, sizeof(in) - have)) > 0) {
        const char *line = in, *end = in + have + n, *nl;
        char *to = out;

        while ((nl = memchr(line, '\n', (size_t)(end - line)))) {
            to = answer(to, line, nl);
            line = nl + 1;
        }
        have = (size_t)(end - line);
        memmove(in, line, have);
        if (have == sizeof(in) || !write_all(out, (size_t)(to - out)))
            return 1;
    }
    return 0;
}
