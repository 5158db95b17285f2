/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c - what a command stands on: errors and exit codes, settings, the store, the log.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/config.h"

/* ---- errors ------------------------------------------------------------------------- */

int cli_exit_code(stint_code code)
{
    switch (code) {
    case STINT_OK:
        return CLI_DONE;
    case STINT_EINVAL:
    case STINT_EEXISTS:
        return CLI_USAGE;
    case STINT_ENOTFOUND:
        return CLI_NOTFOUND;
    case STINT_ESTATE:
    case STINT_ELOST:
        return CLI_FAILED;
    case STINT_ETIMEOUT:
        return CLI_TIMEOUT;
    case STINT_EUNKNOWN:
        return CLI_UNKNOWN;
    case STINT_EAGAIN:
    case STINT_ESTORE:
    case STINT_ENOMEM:
        break;
    }
    return CLI_STORE;
}

static void print_error_json(const stint_error *err)
{
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, 16384);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "error");
    st_jw_open(&w, '{');
    st_jw_key(&w, "code");
    st_jw_cstr(&w, stint_code_name(err->code));
    st_jw_key(&w, "message");
    st_jw_cstr(&w, err->message);
    st_jw_key(&w, "remedy");
    st_jw_cstr(&w, err->remedy);
    st_jw_close(&w, '}');
    st_jw_close(&w, '}');
    if (!b.failed)
        printf("%s\n", b.p);
    st_buf_clear(&b);
}

/* A code says what to do next: that is the remedy where nobody knows a better one. */
void cli_remedy(const struct cli *c, stint_error *err)
{
    if (err->remedy[0])
        return;
    switch (err->code) {
    case STINT_OK:
        return;
    case STINT_EINVAL:
        st_err_remedy(err, "`stint %s%s--help` shows how it is used", c->name, c->name[0] ? " " : "");
        return;
    case STINT_ENOTFOUND:
        st_err_remedy(err, "`stint job list` shows the jobs there are; old ones are removed by retention");
        return;
    case STINT_ESTATE:
    case STINT_EEXISTS:
    case STINT_ELOST:
        st_err_remedy(err, "`stint job show ID` tells what has become of it");
        return;
    case STINT_EAGAIN:
        st_err_remedy(err, "try again, or wait longer with --store-timeout");
        return;
    case STINT_ESTORE:
        st_err_remedy(err, "`stint doctor` looks at the store");
        return;
    case STINT_EUNKNOWN:
        st_err_remedy(err, "look whether it was done, and repeat the command if not");
        return;
    case STINT_ETIMEOUT:
        st_err_remedy(err, "it goes on; wait longer, or ask `stint explain ID` what keeps it");
        return;
    case STINT_ENOMEM:
        st_err_remedy(err, "try again when the machine has memory to spare");
        return;
    }
}

int cli_fail(struct cli *c, const stint_error *given)
{
    char text[sizeof(given->message)], remedy[sizeof(given->remedy)];
    stint_error err = *given;

    c->exit = cli_exit_code(err.code);
    cli_remedy(c, &err);
    if (c->json) {
        print_error_json(&err);
        return c->exit;
    }
    fprintf(stderr, "stint: %s\n", cli_safe(err.message, text, sizeof(text)));
    fprintf(stderr, "  %s\n", cli_safe(err.remedy, remedy, sizeof(remedy)));
    return c->exit;
}

int cli_error(struct cli *c, stint_code code, const char *remedy, const char *fmt, ...)
{
    char text[sizeof(((stint_error *)0)->message)];
    stint_error err;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    text[st_utf8_cut(text, strlen(text), sizeof(text) - 1)] = '\0';
    st_fail(&err, code, "%s", text);
    if (remedy)
        st_err_remedy(&err, "%s", remedy);
    return cli_fail(c, &err);
}

int cli_usage(struct cli *c, const char *fmt, ...)
{
    char text[sizeof(((stint_error *)0)->message)];
    stint_error err;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    st_fail(&err, STINT_EINVAL, "%s", text);
    if (!c->name[0])
        st_err_remedy(&err, "`stint help` lists the commands");
    return cli_fail(c, &err);
}

void cli_warn(struct cli *c, const char *fmt, ...)
{
    char text[512], safe[512];
    va_list ap;

    (void)c;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr, "stint: warning: %s\n", cli_safe(text, safe, sizeof(safe)));
}

/* ---- settings ----------------------------------------------------------------------- */

struct st_settings *cli_settings(struct cli *c)
{
    const char *path = st_config_find(c->config_flag);
    stint_error err;

    if (c->have_settings)
        return &c->settings;
    st_settings_clear(&c->settings);
    st_settings_init(&c->settings);
    if ((path && st_config_read(path, false, &c->settings, &err)) || st_config_env(&c->settings, &err)) {
        cli_fail(c, &err);
        return NULL;
    }
    c->have_settings = true;
    return &c->settings;
}

/* ---- store -------------------------------------------------------------------------- */

const char *cli_store_url(struct cli *c, bool dev)
{
    struct st_settings *s = cli_settings(c);
    const char *url = s ? st_config_store(c->store_flag, s, dev) : NULL;
    stint_error err;

    if (url && st_config_store_check(c->store_flag, s, dev, &err)) {
        cli_fail(c, &err);
        return NULL;
    }
    return url;
}

static void pause_ms(int ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&ts, NULL);
}

stint_code cli_store_open(struct cli *c, const char *url, unsigned flags, struct st_store **out, stint_error *err)
{
    int64_t end_us = st_clock_mono_us() + c->store_timeout_ms * ST_MS;
    struct st_store_open opt = {.timeout_ms = c->store_timeout_ms,
                                .no_create = !(flags & CLI_CREATE),
                                .no_migrate = flags & CLI_NO_MIGRATE,
                                .signal = c->settings.signal,
                                .runqy = c->settings.runqy};
    int wait_ms = 10;

    for (;;) {
        stint_code rc = st_store_open(url, &opt, out, err);
        int64_t left_us = end_us - st_clock_mono_us();

        if (rc == STINT_OK)
            (*out)->timeout_ms = c->store_timeout_ms;
        if (rc != STINT_EAGAIN || left_us <= wait_ms * ST_MS)
            return rc;
        pause_ms(wait_ms);
        wait_ms = wait_ms < 200 ? wait_ms * 2 : 200;
        left_us = end_us - st_clock_mono_us();
        opt.timeout_ms = left_us > ST_MS ? (int)(left_us / ST_MS) : 1;
    }
}

struct st_store *cli_store(struct cli *c, unsigned flags)
{
    const char *url;
    stint_error err;

    if (c->store)
        return c->store;
    url = cli_store_url(c, false);
    if (!url)
        return NULL;
    if (cli_store_open(c, url, flags, &c->store, &err)) {
        c->store = NULL;
        cli_fail(c, &err);
        return NULL;
    }
    return c->store;
}

void cli_clear(struct cli *c)
{
    st_store_close(c->store);
    c->store = NULL;
    st_settings_clear(&c->settings);
}

/* ---- log ---------------------------------------------------------------------------- */

void cli_log_start(struct cli *c, enum st_log_level level)
{
    bool json = c->log_format && strcmp(c->log_format, "json") == 0;

    if (c->log_level)
        st_log_level_parse(c->log_level, &level);
    st_log_set_level(level);
    st_log_set_sink(st_log_stderr_sink, NULL, json);
}

/* ---- files -------------------------------------------------------------------------- */

size_t cli_unlink(struct cli *c, const struct st_pruned *p)
{
    size_t failed = 0;

    for (size_t i = 0; i < p->n_files; i++) {
        if (unlink(p->files[i]) == 0 || errno == ENOENT)
            continue;
        cli_warn(c, "cannot remove %s: %s", p->files[i], strerror(errno));
        failed++;
    }
    return failed;
}
