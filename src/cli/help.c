/* SPDX-License-Identifier: Apache-2.0
 *
 * help.c - the help of a command, from its table: for people, and as JSON.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* ---- for people --------------------------------------------------------------------- */

static void print_option(const struct cli_option *o)
{
    char left[64];

    snprintf(left, sizeof(left), "%c%c%s--%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
             o->letter ? ", " : "  ", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    if (strlen(left) <= 28)
        printf("  %-28s %s\n", left, o->help);
    else
        printf("  %s\n  %-28s %s\n", left, "", o->help);
}

void cli_help_globals(void)
{
    printf("\nGlobal options:\n");
    for (const struct cli_option *o = cli_globals; o->name; o++)
        print_option(o);
    print_option(&cli_firsts[0]);
}

/* Each line of text, indented. */
static void print_lines(const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        printf("  %.*s\n", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

/* The lines that begin with this digit. */
static void print_lines_of(const char *text, char digit)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        if (*text == digit)
            printf("  %.*s\n", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

/* In the order of their numbers, the command's own and the usual ones; an own 0 stands for "done".
 */
static void print_exits(const char *own)
{
    static const char usual[] = "0  done\n2  wrong usage or configuration\n"
                                "4  the store is away, full, read-only, not ours, or newer than this program";

    printf("\nExit codes:\n");
    for (char digit = '0'; digit <= '9'; digit++) {
        if (digit != '0' || *own != '0')
            print_lines_of(usual, digit);
        print_lines_of(own, digit);
    }
}

static void print_synopsis(const struct cli_command *cmd, const char *full_name)
{
    const char *line = cmd->synopsis ? cmd->synopsis : "";
    const char *lead = "Usage:";

    do {
        size_t n = strcspn(line, "\n");

        printf("%s stint %s%s%.*s\n", lead, full_name, n ? " " : "", (int)n, line);
        line += n + (line[n] == '\n');
        lead = "      ";
    } while (*line);
}

static void print_help(const struct cli_command *cmd, const char *full_name)
{
    if (cmd->verbs)
        printf("Usage: stint %s VERB [options] [arguments]\n", full_name);
    else
        print_synopsis(cmd, full_name);
    printf("\n%s\n", cmd->about ? cmd->about : cmd->summary);
    if (cmd->verbs) {
        printf("\nVerbs:\n");
        for (size_t i = 0; cmd->verbs[i]; i++)
            printf("  %-10s %s\n", cmd->verbs[i]->name, cmd->verbs[i]->summary);
    }
    if (cmd->options && cmd->options->name) {
        printf("\nOptions:\n");
        for (const struct cli_option *o = cmd->options; o->name; o++)
            print_option(o);
    }
    printf("\nGlobal options:\n");
    for (const struct cli_option *o = cli_globals; o->name; o++)
        print_option(o);
    if (cmd->examples) {
        printf("\nExamples:\n");
        print_lines(cmd->examples);
    }
    print_exits(cmd->exits ? cmd->exits : "");
}

/* ---- as JSON ------------------------------------------------------------------------ */

static void put_cstr(struct st_jw *w, const char *key, const char *s)
{
    st_jw_key(w, key);
    st_jw_cstr(w, s);
}

void cli_help_commands(struct st_jw *w, const char *key, const struct cli_command *const *list)
{
    st_jw_key(w, key);
    st_jw_open(w, '[');
    for (size_t i = 0; list && list[i]; i++) {
        st_jw_open(w, '{');
        put_cstr(w, "name", list[i]->name);
        put_cstr(w, "summary", list[i]->summary);
        st_jw_close(w, '}');
    }
    st_jw_close(w, ']');
}

void cli_help_options(struct st_jw *w, const char *key, const struct cli_option *list)
{
    st_jw_key(w, key);
    st_jw_open(w, '[');
    for (; list && list->name; list++) {
        char letter[2] = {list->letter, '\0'};

        st_jw_open(w, '{');
        put_cstr(w, "name", list->name);
        put_cstr(w, "letter", list->letter ? letter : NULL);
        put_cstr(w, "argument", list->arg);
        put_cstr(w, "summary", list->help);
        st_jw_close(w, '}');
    }
    st_jw_close(w, ']');
}

/* One string per line of text; lead, if there is one, in front of each. */
static void put_lines(struct st_jw *w, const char *key, const char *lead, const char *text)
{
    char line[256];

    st_jw_key(w, key);
    st_jw_open(w, '[');
    while (text && (*text || lead)) {
        size_t n = strcspn(text, "\n");

        snprintf(line, sizeof(line), "%s%s%.*s", lead ? lead : "", lead && n ? " " : "", (int)n, text);
        st_jw_cstr(w, line);
        if (!text[n])
            break;
        text += n + 1;
    }
    st_jw_close(w, ']');
}

static int json_help(struct cli *c, const struct cli_command *cmd, const char *full_name)
{
    const char *synopsis = cmd->synopsis ? cmd->synopsis : "";
    char lead[96];
    struct st_buf b;
    struct st_jw w;

    snprintf(lead, sizeof(lead), "stint %s", full_name);
    st_buf_init(&b, 65536);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    put_cstr(&w, "name", full_name);
    put_cstr(&w, "summary", cmd->summary);
    put_lines(&w, "usage", lead, cmd->verbs ? "VERB [options] [arguments]" : synopsis);
    put_cstr(&w, "about", cmd->about ? cmd->about : cmd->summary);
    cli_help_commands(&w, "verbs", cmd->verbs);
    cli_help_options(&w, "options", cmd->options);
    put_lines(&w, "examples", NULL, cmd->examples);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

int cli_help(struct cli *c, const struct cli_command *cmd, const char *full_name)
{
    if (c->json)
        return json_help(c, cmd, full_name);
    print_help(cmd, full_name);
    return CLI_DONE;
}
