/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - the program `stint`: finds the command and runs it.
 *
 *     stint [global options] COMMAND [VERB] [options] [arguments]
 *
 * Options of the whole program may stand on either side of the command.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/suggest.h"
#include "execute/execute.h"

static const struct cli_command cmd_help;

static const struct cli_command *const commands[] = {
    &cmd_dev,    &cmd_worker,  &cmd_enqueue, &cmd_job,     &cmd_queue, &cmd_dead,    &cmd_workers, &cmd_prune,
    &cmd_backup, &cmd_migrate, &cmd_doctor,  &cmd_explain, &cmd_bench, &cmd_version, &cmd_help,    NULL,
};

static void print_overview(void)
{
    printf("stint %s - background jobs on the database you already have\n\n", stint_version());
    printf("Usage: stint [global options] COMMAND [options] [arguments]\n\nCommands:\n");
    for (size_t i = 0; commands[i]; i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    cli_help_globals();
    printf("\nExamples:\n"
           "  stint dev --once                              run the example jobs and stop\n"
           "  stint enqueue mail.send '{\"to\":\"ada\"}'        add a job\n"
           "  stint worker                                  run jobs by ./stint.yaml\n"
           "  stint job wait ID                             until it has ended\n");
    printf("\nThe store is --store, $STINT_STORE, `store:` in stint.yaml, $DATABASE_URL, "
           "$REDIS_URL, or\n"
           "sqlite:stint.db.  `stint help COMMAND` tells more.\n");
}

static int overview(struct cli *c)
{
    struct st_buf b;
    struct st_jw w;

    if (!c->json) {
        print_overview();
        return CLI_DONE;
    }
    st_buf_init(&b, 65536);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    cli_help_commands(&w, "commands", commands);
    cli_help_options(&w, "global_options", cli_globals);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

static const struct cli_command *find(const struct cli_command *const *list, const char *name)
{
    for (size_t i = 0; list[i]; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}

/* The exit code for a name that nobody has. */
static int unknown(struct cli *c, const char *what, const struct cli_command *const *list, const char *given)
{
    const char *names[32];
    const char *near;
    size_t n = 0;

    for (; list[n] && n + 1 < sizeof(names) / sizeof(names[0]); n++)
        names[n] = list[n]->name;
    names[n] = NULL;
    near = st_suggest(st_slice_cstr(given), names);
    if (near)
        return cli_usage(c, "unknown %s '%s'; did you mean '%s'?", what, given, near);
    return cli_usage(c, "unknown %s '%s'", what, given);
}

/* Goes from c->argv to the command it names; NULL = help was printed or c->exit is set. */
static const struct cli_command *descend(struct cli *c, const struct cli_command *cmd)
{
    snprintf(c->name, sizeof(c->name), "%s", cmd->name);
    c->command = cmd;
    while (cmd->verbs) {
        const struct cli_command *verb;
        size_t len = strlen(c->name);

        if (!cli_options_before(c))
            return NULL;
        if (c->argc < 1) {
            cli_usage(c, "`stint %s` needs to know what to do", c->name);
            return NULL;
        }
        verb = find(cmd->verbs, c->argv[0]);
        if (!verb) {
            unknown(c, "verb", cmd->verbs, c->argv[0]);
            return NULL;
        }
        cmd = verb;
        snprintf(c->name + len, sizeof(c->name) - len, " %s", cmd->name);
        c->command = cmd;
    }
    return cmd;
}

/* ---- help --------------------------------------------------------------------------- */

static int help(struct cli *c)
{
    const struct cli_command *cmd;
    const char *arg;
    char name[64];

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 0, 2))
        return c->exit;
    if (c->n_args == 0)
        return overview(c);
    cmd = find(commands, c->args[0]);
    if (!cmd)
        return unknown(c, "command", commands, c->args[0]);
    snprintf(name, sizeof(name), "%s", cmd->name);
    if (c->n_args > 1) {
        const struct cli_command *verb = cmd->verbs ? find(cmd->verbs, c->args[1]) : NULL;

        if (!cmd->verbs)
            return cli_usage(c, "`stint %s` has no verbs", cmd->name);
        if (!verb)
            return unknown(c, "verb", cmd->verbs, c->args[1]);
        snprintf(name, sizeof(name), "%s %s", cmd->name, verb->name);
        cmd = verb;
    }
    return cli_help(c, cmd, name);
}

static const struct cli_command cmd_help = {
    .name = "help",
    .summary = "this text, or the help of a command",
    .synopsis = "[COMMAND [VERB]]",
    .about = "Prints the commands there are, or the help of one, as --help does.",
    .examples = "stint help\nstint help job wait\nstint help --json | jq -r '.commands[].name'",
    .run = help,
};

/* ---- the program -------------------------------------------------------------------- */

static int run(struct cli *c)
{
    const struct cli_command *cmd;

    if (!cli_options_before(c))
        return c->exit;
    if (c->want_version)
        return cmd_version.run(c);
    if (c->want_help)
        return overview(c);
    if (c->argc == 0 && c->json)
        return cli_usage(c, "no command is given");
    if (c->argc == 0) {
        print_overview();
        return CLI_USAGE;
    }
    cmd = find(commands, c->argv[0]);
    if (!cmd)
        return unknown(c, "command", commands, c->argv[0]);
    cmd = descend(c, cmd);
    if (!cmd)
        return c->exit;
    return cmd->run(c);
}

/* Output that could not be written is a failure, whatever else went well. */
static int flushed(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "stint: cannot write to standard output\n");
    return code ? code : CLI_FAILED;
}

int main(int argc, char **argv)
{
    struct cli c;
    int code;

    if (argc == 3 && strcmp(argv[1], ST_MINDER_ARG) == 0)
        return st_minder_main(atoi(argv[2]));
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like any other */
    st_store_own_process();
    if (!cli_init(&c, argc, argv))
        return c.exit;
    code = run(&c);
    cli_clear(&c);
    return flushed(code);
}
