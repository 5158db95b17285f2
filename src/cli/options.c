/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - one table per command: reads its options.
 *
 * getopt_long does the reading.  Its two liberties are taken back: options may not be abbreviated
 * (a new option would change what an old script means), and its messages are replaced by ours.  It
 * is asked to give the words in their order, and those that are no options are gathered at the
 * front of argv: so a negative number, which getopt knows only as an option, can be one of them.
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/suggest.h"

enum {
    OPT_HELP = 100,
    OPT_VERSION,
    OPT_STORE,
    OPT_CONFIG,
    OPT_JSON,
    OPT_STORE_TIMEOUT,
    OPT_LOG_LEVEL,
    OPT_LOG_FORMAT,
    OPT_COLOR,
};

const struct cli_option cli_globals[] = {
    {"store", 0, "URL", OPT_STORE,
     "which store: sqlite:PATH, a file's path, postgres://USER@HOST/DATABASE or redis://HOST"},
    {"config", 'c', "FILE", OPT_CONFIG, "the configuration [$STINT_CONFIG, else ./stint.yaml if it is there]"},
    {"json", 0, NULL, OPT_JSON, "print JSON, errors too"},
    {"store-timeout", 0, "DURATION", OPT_STORE_TIMEOUT, "how long to wait for a busy or absent store [5s]"},
    {"log-level", 0, "LEVEL", OPT_LOG_LEVEL, "debug, info, warn, error or off [$STINT_LOG_LEVEL]"},
    {"log-format", 0, "FORMAT", OPT_LOG_FORMAT, "logfmt or json [$STINT_LOG_FORMAT]"},
    {"color", 0, "WHEN", OPT_COLOR, "auto, always or never [auto]"},
    {"help", 'h', NULL, OPT_HELP, "print help and stop"},
    {NULL, 0, NULL, 0, NULL},
};

const struct cli_option cli_firsts[] = {
    {"version", 'V', NULL, OPT_VERSION, "print the version and stop"},
    {NULL, 0, NULL, 0, NULL},
};

/* ---- reading ------------------------------------------------------------------------ */

#define OPTIONS_MAX 48
#define DIGITS      "0::1::2::3::4::5::6::7::8::9::" /* takes the rest of its word, never the next */
#define WORD        1                                /* what getopt calls a word that is no option */

/* getopt's tables made from ours: val is the option's id. */
struct tables {
    struct option longs[OPTIONS_MAX + 1];
    const struct cli_option *by[OPTIONS_MAX];
    char shorts[3 + 2 * OPTIONS_MAX + sizeof(DIGITS)];
    size_t n;
};

static void tables_add(struct tables *t, const struct cli_option *list)
{
    for (; list && list->name && t->n < OPTIONS_MAX; list++) {
        size_t len = strlen(t->shorts);

        t->longs[t->n].name = list->name;
        t->longs[t->n].has_arg = list->arg ? required_argument : no_argument;
        t->longs[t->n].val = 1000 + list->id;
        t->by[t->n++] = list;
        if (list->letter) {
            t->shorts[len++] = list->letter;
            if (list->arg)
                t->shorts[len++] = ':';
            t->shorts[len] = '\0';
        }
    }
}

/* before: options in front of the command, stop at the first word. */
static void tables_make(struct tables *t, const struct cli *c, bool before)
{
    memset(t, 0, sizeof(*t));
    strcpy(t->shorts, before ? "+:" : "-:" DIGITS);
    if (c->command)
        tables_add(t, c->command->options);
    else
        tables_add(t, cli_firsts);
    tables_add(t, cli_globals);
}

static int unknown_option(struct cli *c, const struct tables *t, const char *word)
{
    const char *names[OPTIONS_MAX + 1];
    const char *near;
    size_t len = strcspn(word, "=");

    if (strncmp(word, "--", 2) != 0)
        return cli_usage(c, "unknown option '%s'", word);
    for (size_t i = 0; i < t->n; i++)
        names[i] = t->longs[i].name;
    names[t->n] = NULL;
    near = st_suggest(ST_SLICE(word + 2, len - 2), names);
    if (near)
        return cli_usage(c, "unknown option '%.*s'; did you mean '--%s'?", (int)len, word, near);
    return cli_usage(c, "unknown option '%.*s'", (int)len, word);
}

/* The word of the command line that getopt has just understood as a long option. */
static const char *option_word(char **argv)
{
    const char *last = argv[optind - 1];

    return optarg && optarg == last ? argv[optind - 2] : last;
}

static bool abbreviated(char **argv, const struct cli_option *o)
{
    const char *word = option_word(argv);

    return strncmp(word, "--", 2) == 0 && strcspn(word + 2, "=") != strlen(o->name);
}

static bool one_of(struct cli *c, const char *what, const char *arg, const char *const *names)
{
    char remedy[120];

    for (size_t i = 0; names[i]; i++)
        if (strcmp(arg, names[i]) == 0)
            return true;
    snprintf(remedy, sizeof(remedy), "it is one of");
    for (size_t i = 0; names[i]; i++) {
        size_t len = strlen(remedy);

        snprintf(remedy + len, sizeof(remedy) - len, "%s %s", i ? "," : "", names[i]);
    }
    cli_error(c, STINT_EINVAL, remedy, "%s: '%s' is not known", what, arg);
    return false;
}

static const char *const log_levels[] = {"debug", "info", "warn", "error", "off", NULL};
static const char *const log_formats[] = {"logfmt", "json", NULL};
static const char *const color_words[] = {"auto", "always", "never", NULL};

static void resolve_color(struct cli *c)
{
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    bool wish = !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
    bool always = strcmp(c->color, "always") == 0;

    if (strcmp(c->color, "never") == 0)
        wish = false;
    c->color_out = always || (wish && isatty(STDOUT_FILENO));
    c->color_err = always || (wish && c->tty_err);
}

static bool global_option(struct cli *c, int id, const char *arg)
{
    int64_t us;

    switch (id) {
    case OPT_STORE:
        if (!*arg) {
            cli_error(c, STINT_EINVAL, "name a store, --store sqlite:PATH, or leave --store out", "--store is empty");
            return false;
        }
        c->store_flag = arg;
        return true;
    case OPT_CONFIG:
        c->config_flag = arg;
        return true;
    case OPT_JSON:
        c->json = true;
        return true;
    case OPT_STORE_TIMEOUT:
        if (!cli_duration(c, "--store-timeout", arg, &us))
            return false;
        us = us > ST_DAY ? ST_DAY : us;
        c->store_timeout_ms = us < ST_MS ? 1 : (int)(us / ST_MS);
        return true;
    case OPT_LOG_LEVEL:
        c->log_level = arg;
        if (!one_of(c, "--log-level", arg, log_levels))
            return false;
        break;
    case OPT_LOG_FORMAT:
        c->log_format = arg;
        if (!one_of(c, "--log-format", arg, log_formats))
            return false;
        break;
    case OPT_COLOR:
        if (!one_of(c, "--color", arg, color_words))
            return false;
        c->color = arg;
        resolve_color(c);
        return true;
    default:
        return true;
    }
    cli_log_start(c, ST_LOG_WARN);
    return true;
}

/* "-5", "-0.5", "-1e9" */
static bool is_negative(const char *word)
{
    size_t digits = strspn(word + 1, "0123456789");
    char *end;

    if (word[0] != '-' || !digits)
        return false;
    strtod(word, &end);
    return !*end && !strpbrk(word, "xXpP");
}

/* Puts a word that is no option behind those that came before it. */
static void keep_word(struct cli *c, char *word)
{
    c->argv[1 + c->n_args++] = word;
}

/* What getopt answered, as one of ours: the option's id, CLI_END or CLI_STOP. */
static int understand(struct cli *c, const struct tables *t, int got, const char **arg)
{
    const struct cli_option *o = NULL;

    if (got == -1)
        return CLI_END;
    for (size_t i = 0; i < t->n; i++)
        if (got == 1000 + t->by[i]->id || (got < 256 && got == t->by[i]->letter))
            o = t->by[i];
    if (!o && got == ':' && optopt) {
        cli_usage(c, "option '%s' needs an argument", c->argv[optind - 1]);
        return CLI_STOP;
    }
    if (!o && optopt && optopt >= 1000) {
        cli_usage(c, "option '%.*s' takes no argument", (int)strcspn(c->argv[optind - 1], "="), c->argv[optind - 1]);
        return CLI_STOP;
    }
    if (!o && got >= '0' && got <= '9') {
        unknown_option(c, t, c->argv[optind - 1]);
        return CLI_STOP;
    }
    if (!o && optopt) {
        cli_usage(c, "unknown option '-%c'", optopt);
        return CLI_STOP;
    }
    if (!o || (got >= 1000 && abbreviated(c->argv, o))) {
        unknown_option(c, t, o ? option_word(c->argv) : c->argv[optind - 1]);
        return CLI_STOP;
    }
    *arg = optarg;
    return o->id;
}

/* getopt's next answer that is no word of its own. */
static int next_got(struct cli *c, const struct tables *t)
{
    for (;;) {
        int got = getopt_long(c->argc, c->argv, t->shorts, t->longs, NULL);

        if (got == WORD)
            keep_word(c, optarg);
        else if (got >= '0' && got <= '9' && is_negative(c->argv[optind - 1]))
            keep_word(c, c->argv[optind - 1]);
        else
            return got;
    }
}

/* What is left stands behind `--`, or, before a command, is the command and all that is its own. */
static void end_of_options(struct cli *c, bool before)
{
    if (before) {
        c->args = c->argv + optind;
        c->n_args = c->argc - optind;
        return;
    }
    while (optind < c->argc)
        keep_word(c, c->argv[optind++]);
    c->args = c->argv + 1;
}

static int next_option(struct cli *c, bool before, const char **arg)
{
    struct tables t;
    int id;

    tables_make(&t, c, before);
    if (!c->parsing) {
        optind = 0; /* glibc: forget everything */
        opterr = 0;
        c->n_args = 0;
        c->parsing = true;
    }
    *arg = NULL;
    id = understand(c, &t, next_got(c, &t), arg);
    if (id <= 0)
        c->parsing = false;
    if (id == CLI_END)
        end_of_options(c, before);
    return id;
}

int cli_option(struct cli *c, const char **arg)
{
    for (;;) {
        int id = next_option(c, false, arg);

        if (id < OPT_HELP)
            return id;
        if (id == OPT_HELP) {
            c->exit = cli_help(c, c->command, c->name);
            return CLI_STOP;
        }
        if (!global_option(c, id, *arg))
            return CLI_STOP;
    }
}

bool cli_options_before(struct cli *c)
{
    const char *arg;
    int id;

    while ((id = next_option(c, true, &arg)) > 0) {
        if (id == OPT_HELP && c->command) {
            c->exit = cli_help(c, c->command, c->name);
            return false;
        }
        c->want_help |= id == OPT_HELP;
        c->want_version |= id == OPT_VERSION;
        if (!global_option(c, id, arg))
            return false;
    }
    if (id == CLI_STOP)
        return false;
    c->argc = c->n_args;
    c->argv = c->args;
    return true;
}

bool cli_args(struct cli *c, int min, int max)
{
    if (c->n_args < min)
        cli_usage(c, "an argument is missing: stint %s %.*s", c->name, (int)strcspn(c->command->synopsis, "\n"),
                  c->command->synopsis);
    else if (max >= 0 && c->n_args > max)
        cli_usage(c, "unexpected argument '%s'", c->args[max]);
    else
        return true;
    return false;
}

/* ---- values -------------------------------------------------------------------------- */

bool cli_int(struct cli *c, const char *what, const char *text, int64_t min, int64_t max, int64_t *out)
{
    if (!st_parse_i64(st_slice_cstr(text), out)) {
        cli_usage(c, "%s: '%s' is not a whole number", what, text);
        return false;
    }
    if (*out < min || *out > max) {
        cli_usage(c, "%s: %s is not between %lld and %lld", what, text, (long long)min, (long long)max);
        return false;
    }
    return true;
}

bool cli_duration(struct cli *c, const char *what, const char *text, int64_t *us)
{
    stint_error err;

    if (st_duration_parse(st_slice_cstr(text), us, &err) == STINT_OK)
        return true;
    st_err_prefix(&err, "%s", what);
    cli_fail(c, &err);
    return false;
}

bool cli_time(struct cli *c, const char *what, const char *text, int64_t *us)
{
    stint_error err;

    if (st_time_parse(st_slice_cstr(text), us, &err) == STINT_OK)
        return true;
    st_err_prefix(&err, "%s", what);
    cli_fail(c, &err);
    return false;
}

/* ---- begin --------------------------------------------------------------------------- */

/* Errors in the options themselves must already come as JSON if that is asked for anywhere. */
static bool asks_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

static bool from_environment(struct cli *c)
{
    const char *level = getenv("STINT_LOG_LEVEL");
    const char *format = getenv("STINT_LOG_FORMAT");

    if (level && *level && !one_of(c, "STINT_LOG_LEVEL", level, log_levels))
        return false;
    if (format && *format && !one_of(c, "STINT_LOG_FORMAT", format, log_formats))
        return false;
    c->log_level = level && *level ? level : NULL;
    c->log_format = format && *format ? format : NULL;
    return true;
}

bool cli_init(struct cli *c, int argc, char **argv)
{
    memset(c, 0, sizeof(*c));
    c->argc = argc;
    c->argv = argv;
    c->json = asks_json(argc, argv);
    c->store_timeout_ms = 5000;
    c->tty_err = isatty(STDERR_FILENO);
    c->color = "auto";
    resolve_color(c);
    st_settings_init(&c->settings);
    if (!from_environment(c))
        return false;
    cli_log_start(c, ST_LOG_WARN);
    return true;
}
