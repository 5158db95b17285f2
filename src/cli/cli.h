/* SPDX-License-Identifier: Apache-2.0
 *
 * cli.h - what the commands of `stint` share: options, help, errors, output.
 *
 * A command is one constant `const struct cli_command cmd_NAME` in its own file.  Its run function
 * reads its options with cli_option, does its work and returns an exit code:
 *
 *     static int run(struct cli *c)
 *     {
 *         const char *arg;
 *         int opt;
 *
 *         while ((opt = cli_option(c, &arg)) > 0) {
 *             switch (opt) {
 *             case OPT_QUEUE:
 *                 queue = arg;
 *                 break;
 *             }
 *         }
 *         if (opt == CLI_STOP || !cli_args(c, 1, 1))
 *             return c->exit;
 *         store = cli_store(c, 0);
 *         if (!store)
 *             return c->exit;
 *         if (st_store_get(store, ..., &err))
 *             return cli_fail(c, &err);
 *
 * Functions that return bool or a pointer have, where they fail, said why and set c->exit.
 * What is asked for goes to stdout, everything else to stderr.
 */
#ifndef ST_CLI_CLI_H
#define ST_CLI_CLI_H

#include "base/json.h"
#include "base/log.h"
#include "cli/files.h"
#include "store/store.h"
#include "worker/settings.h"

enum cli_exit {
    CLI_DONE = 0,
    CLI_FAILED = 1,   /* the asked-for thing failed */
    CLI_USAGE = 2,    /* usage, configuration, payload */
    CLI_NOTFOUND = 3, /* no such job, queue or worker */
    CLI_STORE = 4,    /* store away, full, read-only, not ours, newer schema */
    CLI_TIMEOUT = 5,  /* --timeout passed */
    CLI_UNKNOWN = 6,  /* outcome unknown, repeat with the same --id */
};

/* ---- commands --------------------------------------------------------------------- */

struct cli;

struct cli_option {
    const char *name; /* "queue" for --queue; NULL ends the table */
    char letter;      /* 'q' for -q; 0 = none */
    const char *arg;  /* "NAME": takes an argument, called so in the help; NULL = takes none */
    int id;           /* what cli_option returns: 1 .. 99, one per option */
    const char *help; /* one line, no full stop */
};

/* A line of .exits, for commands that change the store. */
#define CLI_EXIT_UNKNOWN "6  the outcome is not known: look whether it was done, and repeat it if not"

struct cli_command {
    const char *name;
    const char *summary;              /* one line for the list of commands */
    const char *synopsis;             /* "TYPE [JSON|-] [options]", behind the command's name; lines allowed */
    const char *about;                /* what it does: a paragraph or two, lines of at most 90 columns; may be NULL */
    const struct cli_option *options; /* its own; the global ones are known everywhere; may be NULL */
    const char *examples;             /* lines, without indentation; may be NULL */
    const char *exits;                /* lines "1  the job failed", those that differ from the usual; may be NULL */
    int (*run)(struct cli *c);
    const struct cli_command *const *verbs; /* `job show`: then run is NULL; NULL-terminated */
};

extern const struct cli_command cmd_backup, cmd_bench, cmd_dead, cmd_dev, cmd_doctor, cmd_enqueue, cmd_explain, cmd_job,
    cmd_migrate, cmd_prune, cmd_queue, cmd_version, cmd_worker, cmd_workers;

struct cli {
    const struct cli_command *command; /* the one that runs */
    char name[64];                     /* "job show" */
    int argc;
    char **argv; /* argv[0] is the command's own name */
    char **args; /* after cli_option is through: what is no option */
    int n_args;
    int exit; /* why a helper said no */

    /* the global options, resolved */
    const char *store_flag, *config_flag; /* as given, or NULL */
    bool json;
    int store_timeout_ms;               /* 5000 */
    const char *log_level, *log_format; /* flag or environment, checked; NULL = not given */
    const char *color;                  /* "auto", "always", "never" */
    bool color_out, color_err;          /* may stdout, stderr be coloured? */
    bool tty_err;                       /* is stderr a terminal? */
    bool want_help, want_version;       /* before any command */
    bool parsing;                       /* cli_option has begun */

    /* made when first asked for, freed by main */
    struct st_settings settings;
    bool have_settings;
    struct st_store *store;
};

/* ---- options ---------------------------------------------------------------------- */

#define CLI_END  0  /* no more options: c->args[0 .. c->n_args) is the rest */
#define CLI_STOP -1 /* help was printed or the options are wrong: return c->exit */

/* The next option of the command, or one of the above.  Global options are handled inside. */
int cli_option(struct cli *c, const char **arg);
/* Are there min..max arguments (max -1 = any number)? */
bool cli_args(struct cli *c, int min, int max);

/* Wrong usage: prints the message and where help is; returns CLI_USAGE and sets c->exit. */
int cli_usage(struct cli *c, const char *fmt, ...) ST_PRINTF(2, 3);

/* Values; what names the thing in the message, such as "--slots". */
bool cli_int(struct cli *c, const char *what, const char *text, int64_t min, int64_t max, int64_t *out);
bool cli_duration(struct cli *c, const char *what, const char *text, int64_t *us);
bool cli_time(struct cli *c, const char *what, const char *text, int64_t *us);

/* Help for a command, the whole page, to stdout; the exit code. */
int cli_help(struct cli *c, const struct cli_command *cmd, const char *full_name);

/* ---- errors ------------------------------------------------------------------------ */

/* The exit code that goes with a code. */
int cli_exit_code(stint_code code);
/* Gives an error that has no remedy the one that goes with its code. */
void cli_remedy(const struct cli *c, stint_error *err);
/* Prints err: "stint: message" and the remedy to stderr; with --json
 * {"error":{"code","message","remedy"}} to stdout.  Returns the exit code and sets c->exit. */
int cli_fail(struct cli *c, const stint_error *err);
/* The same with a message made here. */
int cli_error(struct cli *c, stint_code code, const char *remedy, const char *fmt, ...) ST_PRINTF(4, 5);
/* "stint: warning: ..." to stderr, whatever --json says. */
void cli_warn(struct cli *c, const char *fmt, ...) ST_PRINTF(2, 3);

/* ---- settings and store -------------------------------------------------------------- */

/* stint.yaml (--config, $STINT_CONFIG, ./stint.yaml) and the environment over the defaults.  Read
 * once; flags of the command are the command's to lay over it.  Programs are not looked for: that
 * is for whoever runs them. */
struct st_settings *cli_settings(struct cli *c);

/* The store's URL by the rule of precedence; dev leaves DATABASE_URL and REDIS_URL out.  NULL: of a
 * kind that this version does not have. */
const char *cli_store_url(struct cli *c, bool dev);

enum {
    CLI_CREATE = 1 << 0,     /* make the store if it is not there */
    CLI_NO_MIGRATE = 1 << 1, /* leave the schema as it is */
};
/* Opens the store, for up to --store-timeout while it is busy or away.  One handle, closed by main;
 * asking again gives the same one. */
struct st_store *cli_store(struct cli *c, unsigned flags);
/* A handle of one's own on any url, with the same patience (no message, no c->exit). */
stint_code cli_store_open(struct cli *c, const char *url, unsigned flags, struct st_store **out, stint_error *err);

/* Log to stderr: by --log-level and --log-format, else at `level` as logfmt.  main has called it
 * with ST_LOG_WARN; worker and dev call it again. */
void cli_log_start(struct cli *c, enum st_log_level level);

/* ---- output -------------------------------------------------------------------------- */

/* Writes a finished JSON document and a newline to stdout; returns CLI_DONE, or what went wrong. */
int cli_print_json(struct cli *c, struct st_buf *b);
#define CLI_JSON_MAX ((size_t)1 << 30) /* the largest document a command prints */

enum cli_color { CLI_PLAIN, CLI_BOLD, CLI_DIM, CLI_RED, CLI_GREEN, CLI_YELLOW, CLI_BLUE };
/* The escape sequence for stdout, or "". */
const char *cli_paint(const struct cli *c, enum cli_color color);
enum cli_color cli_state_color(enum st_shown s);

/* A table for people.  Columns as wide as their widest cell; a heading that begins with '>' aligns
 * right. Control characters in cells are shown as '?'. */
#define CLI_COLUMNS_MAX 16
struct cli_table {
    const char *heads[CLI_COLUMNS_MAX];
    int n_columns;
    char **cells;
    enum cli_color *colors;
    size_t n_cells, cap;
    bool failed; /* no memory: print says so */
};
void cli_table_init(struct cli_table *t, const char *const *heads); /* NULL-terminated */
void cli_table_cell(struct cli_table *t, const char *fmt, ...) ST_PRINTF(2, 3);
void cli_table_color(struct cli_table *t, enum cli_color color); /* of the cell added last */
int cli_table_print(struct cli *c, struct cli_table *t);         /* to stdout, and frees it; exit code */

/* Makes outside text fit for a terminal and for JSON, in place: one line of UTF-8, whatever is not
 * becomes '?'. */
char *cli_clean(char *s);
/* The same as a copy, cut to size.  Returns out. */
char *cli_safe(const char *s, char *out, size_t size);

#define CLI_TEXT 80
/* "850ms", "12s", "3m", "2h", "5d": one unit, two where it helps ("2h10m"). */
char *cli_human(int64_t us, char out[CLI_TEXT]);
/* "3m ago", "in 12s", "now" */
char *cli_age(int64_t now_us, int64_t then_us, char out[CLI_TEXT]);
/* Local time: "14:03:05" today, "Jan 02 14:03" this year, "2024-01-02" before; 0 = "-" */
char *cli_clock(int64_t now_us, int64_t then_us, char out[CLI_TEXT]);
/* Both: "14:03:05 (3m ago)" */
char *cli_when(int64_t now_us, int64_t then_us, char out[CLI_TEXT]);

/* A progress bar on stderr, only if that is a terminal and --json is not given.  Redrawn at most
 * ten times a second. */
struct cli_progress {
    bool on;
    const char *what, *unit;
    int64_t done, total; /* total 0 = unknown */
    int64_t start_us, drawn_us;
};
/* unit: "jobs"; "bytes" are drawn as KiB, MiB or GiB. */
void cli_progress_start(struct cli *c, struct cli_progress *p, const char *what, const char *unit, int64_t total);
void cli_progress_set(struct cli_progress *p, int64_t done, int64_t total);
void cli_progress_fn(void *progress, int64_t done, int64_t total); /* an st_progress_fn */
void cli_progress_end(struct cli_progress *p);                     /* wipes it */

/* Unlinks what a prune or discard left behind; counts what could not be removed. */
size_t cli_unlink(struct cli *c, const struct st_pruned *p);

/* ---- for main ----------------------------------------------------------------------------- */

bool cli_init(struct cli *c, int argc, char **argv);
void cli_clear(struct cli *c);
/* Takes the global options in front of the next word; afterwards c->argv[0] is that word. */
bool cli_options_before(struct cli *c);

extern const struct cli_option cli_globals[]; /* known everywhere */
extern const struct cli_option cli_firsts[];  /* known before a command only */
void cli_help_globals(void);
/* Members of a JSON document of help. */
void cli_help_commands(struct st_jw *w, const char *key, const struct cli_command *const *list);
void cli_help_options(struct st_jw *w, const char *key, const struct cli_option *list);

#endif
