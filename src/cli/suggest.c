/* SPDX-License-Identifier: Apache-2.0
 *
 * suggest.c - "did you mean": the known name nearest to a mistyped one.
 *
 * Distance is the number of letters to insert, delete, replace or swap with their neighbour.  A
 * name is near when a third of it or less differs, or when the given text is its beginning.
 */
#include "cli/suggest.h"

#include <string.h>

#define WORD_MAX 40

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;

    return m < c ? m : c;
}

/* Optimal string alignment; texts longer than WORD_MAX are never near. */
static int distance(struct st_slice a, struct st_slice b)
{
    int row[WORD_MAX + 1], above[WORD_MAX + 1], above2[WORD_MAX + 1] = {0};

    if (a.len > WORD_MAX || b.len > WORD_MAX)
        return WORD_MAX + 1;
    for (size_t j = 0; j <= b.len; j++)
        above[j] = (int)j;
    for (size_t i = 1; i <= a.len; i++) {
        row[0] = (int)i;
        for (size_t j = 1; j <= b.len; j++) {
            int same = a.p[i - 1] == b.p[j - 1];

            row[j] = least(above[j] + 1, row[j - 1] + 1, above[j - 1] + !same);
            if (i > 1 && j > 1 && a.p[i - 1] == b.p[j - 2] && a.p[i - 2] == b.p[j - 1])
                row[j] = least(row[j], row[j], above2[j - 2] + 1);
        }
        memcpy(above2, above, sizeof(above2));
        memcpy(above, row, sizeof(above));
    }
    return above[b.len];
}

const char *st_suggest(struct st_slice given, const char *const *names)
{
    const char *best = NULL;
    int best_d = WORD_MAX;

    if (given.len == 0)
        return NULL;
    for (size_t i = 0; names[i]; i++) {
        struct st_slice name = st_slice_cstr(names[i]);
        int d = distance(given, name);
        int near = (int)(name.len < 3 ? 1 : (name.len + 2) / 3);

        if (given.len >= 2 && given.len < name.len && memcmp(given.p, name.p, given.len) == 0)
            d = 1;
        if (d <= near && d < best_d) {
            best = names[i];
            best_d = d;
        }
    }
    return best;
}
