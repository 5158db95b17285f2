/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_version.c - `stint version`: which program this is.
 */
#include <stdio.h>

#include "cli/cli.h"

static int run(struct cli *c)
{
    const char *arg;
    struct st_buf b;
    struct st_jw w;

    if (c->command && (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 0, 0)))
        return c->exit;
    if (!c->json) {
        printf("stint %s\n", stint_version());
        return CLI_DONE;
    }
    st_buf_init(&b, 4096);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "version");
    st_jw_cstr(&w, stint_version());
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

const struct cli_command cmd_version = {
    .name = "version",
    .summary = "print the version",
    .synopsis = "",
    .about = "Prints the version of this program.",
    .examples = "stint version\nstint version --json",
    .run = run,
};
