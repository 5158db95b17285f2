/* SPDX-License-Identifier: Apache-2.0
 *
 * output.c - tables, times, colours and progress bars for people; documents for programs.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

int cli_print_json(struct cli *c, struct st_buf *b)
{
    if (b->failed || !b->p) {
        st_buf_clear(b);
        return cli_error(c, STINT_ENOMEM, NULL, "the answer does not fit into memory");
    }
    st_buf_putc(b, '\n');
    fwrite(b->p, 1, b->len, stdout);
    st_buf_clear(b);
    return CLI_DONE;
}

/* ---- colours ------------------------------------------------------------------------ */

const char *cli_paint(const struct cli *c, enum cli_color color)
{
    static const char *const codes[] = {"\033[0m",  "\033[1m",  "\033[2m", "\033[31m",
                                        "\033[32m", "\033[33m", "\033[34m"};

    return c->color_out ? codes[color] : "";
}

enum cli_color cli_state_color(enum st_shown s)
{
    switch (s) {
    case ST_SHOW_SUCCEEDED:
        return CLI_GREEN;
    case ST_SHOW_FAILED:
        return CLI_RED;
    case ST_SHOW_RUNNING:
    case ST_SHOW_CLAIMED:
        return CLI_BLUE;
    case ST_SHOW_RETRYING:
        return CLI_YELLOW;
    case ST_SHOW_CANCELLED:
        return CLI_DIM;
    default:
        return CLI_PLAIN;
    }
}

/* ---- text --------------------------------------------------------------------------- */

char *cli_clean(char *s)
{
    size_t len = strlen(s), n;

    for (size_t i = 0; i < len; i += n) {
        unsigned char ch = (unsigned char)s[i];

        n = st_utf8_len(s + i, len - i);
        if (n == 0) {
            s[i] = '?';
            n = 1;
        } else if (ch == '\n' || ch == '\r' || ch == '\t') {
            s[i] = ' ';
        } else if (ch < 0x20 || ch == 0x7f) {
            s[i] = '?';
        } else if (n == 2 && ch == 0xc2 && (unsigned char)s[i + 1] < 0xa0) {
            s[i] = s[i + 1] = '?'; /* C1 controls: a terminal may obey them */
        }
    }
    return s;
}

char *cli_safe(const char *s, char *out, size_t size)
{
    size_t n = st_utf8_cut(s, strlen(s), size - 1);

    memcpy(out, s, n);
    out[n] = '\0';
    return cli_clean(out);
}

/* Columns a text takes: characters, not bytes. */
static size_t width(const char *s)
{
    size_t n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* ---- tables ------------------------------------------------------------------------- */

void cli_table_init(struct cli_table *t, const char *const *heads)
{
    memset(t, 0, sizeof(*t));
    while (heads[t->n_columns] && t->n_columns < CLI_COLUMNS_MAX) {
        t->heads[t->n_columns] = heads[t->n_columns];
        t->n_columns++;
    }
}

static bool table_grow(struct cli_table *t)
{
    size_t cap = t->cap ? t->cap * 2 : 64;
    char **cells = realloc(t->cells, cap * sizeof(*cells));
    enum cli_color *colors;

    if (!cells)
        return false;
    t->cells = cells;
    colors = realloc(t->colors, cap * sizeof(*colors));
    if (!colors)
        return false;
    t->colors = colors;
    t->cap = cap;
    return true;
}

void cli_table_cell(struct cli_table *t, const char *fmt, ...)
{
    char text[1024], safe[1024];
    va_list ap;

    if (t->failed || (t->n_cells == t->cap && !table_grow(t))) {
        t->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    t->colors[t->n_cells] = CLI_PLAIN;
    t->cells[t->n_cells] = strdup(cli_safe(text, safe, sizeof(safe)));
    if (!t->cells[t->n_cells])
        t->failed = true;
    else
        t->n_cells++;
}

void cli_table_color(struct cli_table *t, enum cli_color color)
{
    if (!t->failed && t->n_cells)
        t->colors[t->n_cells - 1] = color;
}

static void table_row(struct cli *c, const struct cli_table *t, const size_t *widths, char *const *cells,
                      const enum cli_color *colors)
{
    int last = t->n_columns - 1;

    while (last > 0 && !*cells[last]) /* no blanks at the end of a line */
        last--;
    for (int i = 0; i <= last; i++) {
        enum cli_color color = colors ? colors[i] : CLI_BOLD;
        const char *cell = cells[i];
        int pad = (int)(widths[i] - width(cell));
        bool right = t->heads[i][0] == '>';

        printf("%*s", right ? pad : 0, "");
        if (color != CLI_PLAIN)
            printf("%s%s%s", cli_paint(c, color), cell, cli_paint(c, CLI_PLAIN));
        else
            fputs(cell, stdout);
        if (i < last)
            printf("%*s", (right ? 0 : pad) + 2, "");
    }
    putchar('\n');
}

static void table_clear(struct cli_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t->colors);
    memset(t, 0, sizeof(*t));
}

int cli_table_print(struct cli *c, struct cli_table *t)
{
    size_t widths[CLI_COLUMNS_MAX] = {0}, columns = (size_t)t->n_columns;
    char *heads[CLI_COLUMNS_MAX] = {NULL};

    if (t->failed) {
        table_clear(t);
        return cli_error(c, STINT_ENOMEM, NULL, "the table does not fit into memory");
    }
    for (size_t i = 0; i < columns; i++) {
        heads[i] = (char *)t->heads[i] + (t->heads[i][0] == '>');
        widths[i] = width(heads[i]);
    }
    for (size_t i = 0; i < t->n_cells; i++)
        if (width(t->cells[i]) > widths[i % columns])
            widths[i % columns] = width(t->cells[i]);
    table_row(c, t, widths, heads, NULL);
    for (size_t i = 0; i + columns <= t->n_cells; i += columns)
        table_row(c, t, widths, t->cells + i, t->colors + i);
    table_clear(t);
    return CLI_DONE;
}

/* ---- times -------------------------------------------------------------------------- */

char *cli_human(int64_t us, char out[CLI_TEXT])
{
    long long s;

    if (us < 0)
        us = us == INT64_MIN ? INT64_MAX : -us;
    s = (long long)(us / ST_SEC);
    if (us < ST_SEC)
        snprintf(out, CLI_TEXT, "%lldms", (long long)(us / ST_MS));
    else if (us < 10 * ST_SEC && us / (ST_SEC / 10) % 10)
        snprintf(out, CLI_TEXT, "%lld.%llds", s, (long long)(us / (ST_SEC / 10) % 10));
    else if (s < 60)
        snprintf(out, CLI_TEXT, "%llds", s);
    else if (s < 600 && s % 60)
        snprintf(out, CLI_TEXT, "%lldm%llds", s / 60, s % 60);
    else if (s < 3600)
        snprintf(out, CLI_TEXT, "%lldm", s / 60);
    else if (s < 36000 && s / 60 % 60)
        snprintf(out, CLI_TEXT, "%lldh%lldm", s / 3600, s / 60 % 60);
    else if (s < 86400)
        snprintf(out, CLI_TEXT, "%lldh", s / 3600);
    else
        snprintf(out, CLI_TEXT, "%lldd", s / 86400);
    return out;
}

char *cli_age(int64_t now_us, int64_t then_us, char out[CLI_TEXT])
{
    int64_t d = now_us - then_us;
    char text[CLI_TEXT];

    if (d > -ST_MS && d < ST_MS)
        snprintf(out, CLI_TEXT, "now");
    else if (d < 0)
        snprintf(out, CLI_TEXT, "in %.60s",
                 cli_human(d < -10 * ST_SEC ? d - (ST_SEC - 1) : d, text)); /* whole seconds: rounded up */
    else
        snprintf(out, CLI_TEXT, "%.60s ago", cli_human(d, text));
    return out;
}

char *cli_clock(int64_t now_us, int64_t then_us, char out[CLI_TEXT])
{
    time_t now = (time_t)(now_us / ST_SEC), then = (time_t)(then_us / ST_SEC);
    struct tm a, b;
    const char *fmt = "%Y-%m-%d";

    if (then_us == 0 || !localtime_r(&now, &a) || !localtime_r(&then, &b)) {
        strcpy(out, "-");
        return out;
    }
    if (a.tm_year == b.tm_year)
        fmt = a.tm_yday == b.tm_yday ? "%H:%M:%S" : "%b %d %H:%M";
    if (strftime(out, CLI_TEXT, fmt, &b) == 0)
        strcpy(out, "-");
    return out;
}

char *cli_when(int64_t now_us, int64_t then_us, char out[CLI_TEXT])
{
    char clock[CLI_TEXT], age[CLI_TEXT];

    cli_clock(now_us, then_us, clock);
    if (then_us == 0)
        return strcpy(out, clock);
    snprintf(out, CLI_TEXT, "%.30s (%.40s)", clock, cli_age(now_us, then_us, age));
    return out;
}

/* ---- progress ----------------------------------------------------------------------- */

#define BAR 24

void cli_progress_start(struct cli *c, struct cli_progress *p, const char *what, const char *unit, int64_t total)
{
    memset(p, 0, sizeof(*p));
    p->on = c->tty_err && !c->json;
    p->what = what;
    p->unit = unit;
    p->total = total;
    p->start_us = st_clock_mono_us();
}

/* What a number is divided by to be read, and what it is then called: all of a bar in one. */
static double progress_scale(const struct cli_progress *p, const char **unit)
{
    static const struct {
        int64_t bytes;
        const char *name;
    } units[] = {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}};
    int64_t most = p->total > p->done ? p->total : p->done;

    *unit = p->unit;
    for (size_t i = 0; strcmp(p->unit, "bytes") == 0 && i < sizeof(units) / sizeof(units[0]); i++) {
        if (most < units[i].bytes)
            continue;
        *unit = units[i].name;
        return (double)units[i].bytes;
    }
    return 1;
}

static void progress_draw(const struct cli_progress *p, int64_t now_us)
{
    double took = (double)(now_us - p->start_us) / 1e6;
    double rate = took > 0 ? (double)p->done / took : 0;
    int full = p->total > 0 ? (int)((double)BAR * (double)p->done / (double)p->total) : 0;
    const char *unit;
    double by = progress_scale(p, &unit);
    int digits = by > 1 ? 1 : 0;

    full = full > BAR ? BAR : full;
    fprintf(stderr, "\r\033[K%s ", p->what);
    if (p->total > 0)
        fprintf(stderr, "[%.*s%*s] %.*f/%.*f", full, "########################", BAR - full, "", digits,
                (double)p->done / by, digits, (double)p->total / by);
    else
        fprintf(stderr, "%.*f", digits, (double)p->done / by);
    fprintf(stderr, " %s  %.*f/s", unit, digits, rate / by);
    fflush(stderr);
}

void cli_progress_set(struct cli_progress *p, int64_t done, int64_t total)
{
    int64_t now_us;

    p->done = done;
    p->total = total;
    if (!p->on)
        return;
    now_us = st_clock_mono_us();
    if (p->drawn_us && now_us - p->drawn_us < ST_SEC / 10 && done != total)
        return;
    p->drawn_us = now_us;
    progress_draw(p, now_us);
}

void cli_progress_fn(void *progress, int64_t done, int64_t total)
{
    cli_progress_set(progress, done, total);
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->on && p->drawn_us)
        fprintf(stderr, "\r\033[K");
    p->on = false;
}
