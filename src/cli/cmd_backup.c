/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_backup.c - `stint backup FILE`: a copy of the store while it is used.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

static int report(struct cli *c, const char *path)
{
    struct stat st = {0};
    struct st_buf b;
    struct st_jw w;

    if (stat(path, &st) != 0)
        return cli_error(c, STINT_ESTORE, NULL, "the copy %s is not there: %s", path, strerror(errno));
    if (!c->json) {
        printf("%s, %lld bytes\n", path, (long long)st.st_size);
        return CLI_DONE;
    }
    st_buf_init(&b, 65536);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "file");
    if (st_utf8_valid(path, strlen(path)))
        st_jw_cstr(&w, path);
    else
        st_jw_null(&w);
    st_jw_key(&w, "bytes");
    st_jw_int(&w, st.st_size);
    st_jw_close(&w, '}');
    return cli_print_json(c, &b);
}

static int run(struct cli *c)
{
    struct cli_progress bar;
    struct st_store *store;
    const char *arg, *path;
    stint_error err;
    stint_code rc;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 1, 1))
        return c->exit;
    path = c->args[0];
    if (access(path, F_OK) == 0)
        return cli_error(c, STINT_EINVAL, "choose another name, or remove it first", "%s is already there", path);
    store = cli_store(c, 0);
    if (!store)
        return c->exit;
    cli_progress_start(c, &bar, "copying", "pages", 0);
    rc = st_store_backup(store, path, cli_progress_fn, &bar, &err);
    cli_progress_end(&bar);
    return rc ? cli_fail(c, &err) : report(c, path);
}

const struct cli_command cmd_backup = {
    .name = "backup",
    .summary = "copy the store to a file while it is used",
    .synopsis = "FILE",
    .about = "Writes a consistent copy of a SQLite store to FILE, which must not be there yet.  Workers and "
             "producers\n"
             "go on meanwhile.  Result files and logs lie in directories of their own: copy those too.",
    .examples = "stint backup \"stint-$(date +%F).db\"",
    .run = run,
};
