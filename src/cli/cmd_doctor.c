/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_doctor.c - `stint doctor`: looks at everything that may be wrong and says what to do about
 * it.
 *
 * Nothing is changed, and no store is made.  One problem does not hide the next: where the
 * configuration cannot be read the rest is checked with the defaults.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/config.h"
#include "cli/config_keys.h"
#include "cli/doctor.h"
#include "store/redis_conn.h"

void cli_found(struct cli_doctor *d, enum st_severity severity, const char *remedy, const char *fmt, ...)
{
    struct cli_finding *f;
    char text[1024];
    va_list ap;

    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 32;

        f = realloc(d->list, cap * sizeof(*f));
        if (!f) {
            d->failed = true;
            return;
        }
        d->list = f;
        d->cap = cap;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    f = &d->list[d->n++];
    f->severity = severity;
    f->area = d->area;
    f->what = strdup(cli_clean(text));
    f->remedy = remedy && *remedy ? strdup(remedy) : NULL;
    if (!f->what || (remedy && *remedy && !f->remedy))
        d->failed = true;
}

static void found_error(struct cli_doctor *d, const stint_error *err)
{
    cli_found(d, ST_BAD, err->remedy, "%s", err->message);
}

/* ---- configuration ---------------------------------------------------------------------- */

static void check_type(struct cli_doctor *d, const struct st_settings *s, const struct st_type_conf *t)
{
    stint_error err;
    bool ok = true;

    if (t->builtin) {
        cli_found(d, ST_FINE, NULL, "type %s is built in", t->pattern);
        return;
    }
    if (st_conf_program(&t->command, &err)) {
        cli_found(d, ST_BAD, err.remedy, "type %s (%s:%d): run: %s", t->pattern, s->path, t->line, err.message);
        ok = false;
    }
    if (st_conf_cwd(&t->command, &err)) {
        cli_found(d, ST_BAD, err.remedy, "type %s (%s:%d): cwd: %s", t->pattern, s->path, t->line, err.message);
        ok = false;
    }
    if (ok)
        cli_found(d, ST_FINE, NULL, "type %s runs %s", t->pattern, t->command.argv[0]);
}

/* Does worker.types let this one through, whole or in part? */
static bool served(const struct st_settings *s, const struct st_type_conf *t)
{
    for (char **only = s->only_types; only && *only; only++)
        if (st_pattern_match(st_slice_cstr(*only), st_slice_cstr(t->pattern)) > 0 ||
            st_settings_type(s, st_slice_cstr(*only)) == t)
            return true;
    return !s->only_types;
}

static void check_only_types(struct cli_doctor *d, const struct st_settings *s)
{
    for (char **only = s->only_types; only && *only; only++) {
        bool hit = st_settings_type(s, st_slice_cstr(*only));

        for (size_t i = 0; i < s->n_types; i++)
            hit |= st_pattern_match(st_slice_cstr(*only), st_slice_cstr(s->types[i].pattern)) > 0;
        if (!hit)
            cli_found(d, ST_WARNING, "add it under `types:`, or remove it from `worker.types`",
                      "worker.types names %s, which is not configured", *only);
    }
    for (size_t i = 0; i < s->n_types; i++)
        if (!served(s, &s->types[i]))
            cli_found(d, ST_WARNING, "add it to `worker.types` if this worker should run it",
                      "type %s is configured, but worker.types leaves it out", s->types[i].pattern);
}

/* A sub behind its parent in a list is never asked for by itself. */
static void check_queues(struct cli_doctor *d, const struct st_settings *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        for (size_t j = 0; j < i; j++)
            if (st_queue_covers(st_slice_cstr(s->queues[j].name), st_slice_cstr(s->queues[i].name)))
                cli_found(d, ST_WARNING, "put the sub before its parent, or leave it out",
                          "queue %s is shadowed: %s stands before it and means its subs too", s->queues[i].name,
                          s->queues[j].name);
}

static void check_config(struct cli_doctor *d, struct st_settings *s)
{
    const char *path = st_config_find(d->c->config_flag);
    stint_error err;

    d->area = "configuration";
    if (!path) {
        cli_found(d, ST_WARNING, "a worker needs one: list what to run under `types:`", "there is no stint.yaml here");
    } else if (st_config_read(path, false, s, &err)) {
        found_error(d, &err);
        st_settings_clear(s);
        st_settings_init(s);
        path = NULL;
    }
    if (st_config_env(s, &err))
        found_error(d, &err);
    if (!path)
        return;
    cli_found(d, ST_FINE, NULL, "%s can be read; %zu type%s, %d slot%s", path, s->n_types, s->n_types == 1 ? "" : "s",
              s->slots, s->slots == 1 ? "" : "s");
    if (s->n_types == 0)
        cli_found(d, ST_WARNING, "list what to run under `types:`",
                  "%s has no types: a worker would have nothing to run", path);
    for (size_t i = 0; i < s->n_types; i++)
        check_type(d, s, &s->types[i]);
    check_only_types(d, s);
    check_queues(d, s);
}

/* ---- store ------------------------------------------------------------------------------ */

static void store_found(void *arg, enum st_severity severity, const char *what, const char *remedy)
{
    cli_found(arg, severity, remedy, "%s", what);
}

static bool not_there_yet(const char *url)
{
    char path[4096];

    if (strncmp(url, "sqlite:", 7) != 0 || strlen(url) >= sizeof(path))
        return false;
    snprintf(path, sizeof(path), "%.*s", (int)strcspn(url + 7, "?"), url + 7);
    return access(path, F_OK) != 0;
}

static void check_clock(struct cli_doctor *d, struct st_store *store)
{
    int64_t off_us = st_store_now(store) - st_clock_real_us();
    char text[CLI_TEXT];

    if (off_us > ST_SEC || off_us < -ST_SEC)
        cli_found(d, ST_WARNING, "let both machines keep their clocks by NTP",
                  "the store's clock and this machine's differ by %s; leases go by the store's",
                  cli_human(off_us, text));
}

static void check_open_store(struct cli_doctor *d, struct st_store *store)
{
    struct st_store_about about = {0};
    struct st_schema schema = {0};
    stint_error err;

    st_store_about(store, &about);
    cli_found(d, ST_FINE, NULL, "%s at %s, %s", about.version, about.where, about.durability);
    if (st_store_schema(store, false, &schema, &err))
        found_error(d, &err);
    else if (schema.have == 0 && schema.want > 0) /* an older one is the store's to judge */
        cli_found(d, ST_WARNING, "`stint migrate up`, or let the first enqueue or worker do it",
                  "schema version %d, this program wants %d", schema.have, schema.want);
    else if (st_store_check(store, store_found, d, &err))
        found_error(d, &err);
    check_clock(d, store);
}

/* It can be made when it is needed, unless its directory is missing too. */
static void check_missing(struct cli_doctor *d, const char *url)
{
    struct st_store_open opt = {.timeout_ms = 1, .no_create = true, .no_migrate = true};
    struct st_store *store = NULL;
    stint_error err;

    if (st_store_open(url, &opt, &store, &err) == STINT_EAGAIN)
        found_error(d, &err);
    else
        cli_found(d, ST_WARNING, "the first enqueue or worker makes it; else check --store and $STINT_STORE",
                  "there is no store at %s yet", url);
    st_store_close(store);
}

static void check_store(struct cli_doctor *d, const char *url)
{
    struct st_store *store = NULL;
    stint_error err;

    d->area = "store";
    if (not_there_yet(url)) {
        check_missing(d, url);
        return;
    }
    if (cli_store_open(d->c, url, CLI_NO_MIGRATE, &store, &err)) {
        found_error(d, &err);
        return;
    }
    check_open_store(d, store);
    st_store_close(store);
}

/* ---- report ----------------------------------------------------------------------------- */

static const char *const words[] = {[ST_FINE] = "ok", [ST_WARNING] = "warning", [ST_BAD] = "error"};
static const enum cli_color colors[] = {[ST_FINE] = CLI_GREEN, [ST_WARNING] = CLI_YELLOW, [ST_BAD] = CLI_RED};

/* As it can be pasted: in full, and a function in its lines, since some are comments.  The text is
 * used up. */
static void print_remedy(char *remedy)
{
    const char *lead = "->";

    for (char *line = remedy, *next; line; line = next, lead = "  ") {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        printf("           %s %s\n", lead, cli_clean(line));
    }
}

static void print_text(struct cli_doctor *d, const size_t counts[3])
{
    const char *area = "";

    for (size_t i = 0; i < d->n; i++) {
        const struct cli_finding *f = &d->list[i];
        char safe[1024];

        if (strcmp(area, f->area) != 0)
            printf("%s%s%s\n", cli_paint(d->c, CLI_BOLD), f->area, cli_paint(d->c, CLI_PLAIN));
        area = f->area;
        printf("  %s%-8s%s %s\n", cli_paint(d->c, colors[f->severity]), words[f->severity], cli_paint(d->c, CLI_PLAIN),
               cli_safe(f->what, safe, sizeof(safe)));
        if (f->remedy)
            print_remedy(f->remedy);
    }
    printf("%zu ok, %zu warning%s, %zu error%s\n", counts[ST_FINE], counts[ST_WARNING],
           counts[ST_WARNING] == 1 ? "" : "s", counts[ST_BAD], counts[ST_BAD] == 1 ? "" : "s");
}

static int print_json(struct cli_doctor *d, const size_t counts[3])
{
    struct st_buf b;
    struct st_jw w;

    st_buf_init(&b, CLI_JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    st_jw_key(&w, "ok");
    st_jw_bool(&w, counts[ST_BAD] == 0);
    st_jw_key(&w, "findings");
    st_jw_open(&w, '[');
    for (size_t i = 0; i < d->n; i++) {
        st_jw_open(&w, '{');
        st_jw_key(&w, "severity");
        st_jw_cstr(&w, words[d->list[i].severity]);
        st_jw_key(&w, "area");
        st_jw_cstr(&w, d->list[i].area);
        st_jw_key(&w, "what");
        st_jw_cstr(&w, d->list[i].what);
        st_jw_key(&w, "remedy");
        st_jw_cstr(&w, d->list[i].remedy ? d->list[i].remedy : "");
        st_jw_close(&w, '}');
    }
    st_jw_close(&w, ']');
    st_jw_close(&w, '}');
    return cli_print_json(d->c, &b);
}

static int report(struct cli_doctor *d)
{
    size_t counts[3] = {0};
    int code = CLI_DONE;

    for (size_t i = 0; i < d->n; i++)
        counts[d->list[i].severity]++;
    if (d->failed)
        code = cli_error(d->c, STINT_ENOMEM, NULL, "no memory for the findings");
    else if (d->c->json)
        code = print_json(d, counts);
    else
        print_text(d, counts);
    for (size_t i = 0; i < d->n; i++) {
        free(d->list[i].what);
        free(d->list[i].remedy);
    }
    free(d->list);
    return code ? code : counts[ST_BAD] ? CLI_FAILED : CLI_DONE;
}

static int run(struct cli *c)
{
    struct cli_doctor d = {.c = c};
    const char *arg, *url;
    stint_error err;

    if (cli_option(c, &arg) == CLI_STOP || !cli_args(c, 0, 0))
        return c->exit;
    check_config(&d, &c->settings);
    url = st_config_store(c->store_flag, &c->settings, false);
    if (st_config_store_check(c->store_flag, &c->settings, false, &err)) {
        d.area = "store";
        found_error(&d, &err);
    } else {
        check_store(&d, url);
    }
    cli_doctor_intake(&d, &c->settings, url);
    cli_doctor_host(&d, &c->settings, url);
    return report(&d);
}

const struct cli_command cmd_doctor = {
    .name = "doctor",
    .summary = "check configuration, store and machine",
    .synopsis = "",
    .about = "Checks the configuration and the programs it names, the store, the clock, the limits "
             "of this process,\n"
             "what can be capped here, and the directories; prints what it found, with remedies.  "
             "Changes nothing.",
    .examples = "stint doctor\nstint doctor --json | jq '.findings[] | select(.severity!=\"ok\")'",
    .exits = "1  an error was found",
    .run = run,
};
