/* SPDX-License-Identifier: Apache-2.0
 *
 * config_types.c - `types:` and `queues:` of stint.yaml: which command runs a job, and how.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/config_keys.h"

/* ---- programs --------------------------------------------------------------------------- */

/* 0 = there is a file that may be run, else why not. */
static int cannot_run(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return errno;
    if (!S_ISREG(st.st_mode))
        return S_ISDIR(st.st_mode) ? EISDIR : EACCES;
    return access(path, X_OK) == 0 ? 0 : errno;
}

static const char *env_path(const struct st_command *cmd)
{
    const char *path = getenv("PATH");

    for (size_t i = 0; cmd->env && cmd->env[i]; i++)
        if (strncmp(cmd->env[i], "PATH=", 5) == 0)
            return cmd->env[i] + 5;
    return path ? path : "/usr/local/bin:/usr/bin:/bin";
}

static bool on_path(const char *dirs, const char *name)
{
    char file[4096];

    while (*dirs) {
        size_t n = strcspn(dirs, ":");

        if (n && n + strlen(name) + 2 < sizeof(file)) {
            snprintf(file, sizeof(file), "%.*s/%s", (int)n, dirs, name);
            if (cannot_run(file) == 0)
                return true;
        }
        dirs += n + (dirs[n] == ':');
    }
    return false;
}

stint_code st_conf_program(const struct st_command *cmd, stint_error *err)
{
    const char *name = cmd->argv[0];
    int why = strchr(name, '/') ? cannot_run(name) : 0;

    if (!strchr(name, '/') && !on_path(env_path(cmd), name)) {
        st_fail(err, STINT_EINVAL, "the program '%.80s' is not on the PATH", name);
        st_err_remedy(err, "install it, or write its path; a path with a slash is taken from the "
                           "file's directory");
    } else if (why == EACCES) {
        st_fail(err, STINT_EINVAL, "'%.120s' may not be run", name);
        st_err_remedy(err, "chmod +x %.120s", name);
    } else if (why) {
        st_refuse(err, "name a program; a path with a slash is taken from the file's directory",
                  "'%.120s' cannot be run: %s", name, strerror(why));
    } else {
        return STINT_OK;
    }
    return STINT_EINVAL;
}

stint_code st_conf_cwd(const struct st_command *cmd, stint_error *err)
{
    static const char remedy[] =
        "make the directory, or name another; a relative one is taken from the file's directory";
    struct stat st;

    if (!cmd->cwd)
        return STINT_OK;
    if (stat(cmd->cwd, &st) != 0)
        return st_refuse(err, remedy, "'%.120s': %s", cmd->cwd, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return st_refuse(err, remedy, "'%.120s' is not a directory", cmd->cwd);
    return STINT_OK;
}

/* ---- one type --------------------------------------------------------------------------- */

static stint_code read_run(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_command *cmd = field;
    char *first;
    stint_code rc;

    if (v->kind == ST_YAML_SCALAR) {
        st_yaml_fail(c->err, c->file, v, "run must be a list of the program and its arguments");
        st_err_remedy(c->err, "write run: [program, argument, ...]; for a shell line run: [sh, -c, \"...\"]");
        return STINT_EINVAL;
    }
    rc = st_conf_strings(c, v, k->name, NULL, &cmd->argv);
    if (rc)
        return rc;
    if (!cmd->argv[0] || !*cmd->argv[0]) {
        st_yaml_fail(c->err, c->file, v, "run names no program");
        return st_conf_remedy(c, "write run: [program, argument, ...]");
    }
    if (!strchr(cmd->argv[0], '/'))
        return STINT_OK;
    first = st_conf_join(c, cmd->argv[0]);
    if (!first)
        return st_conf_nomem(c);
    free(cmd->argv[0]);
    cmd->argv[0] = first;
    return STINT_OK;
}

static stint_code read_payload_by(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    static const char *const names[] = {
        [ST_PAYLOAD_STDIN] = "stdin", [ST_PAYLOAD_FILE] = "file", [ST_PAYLOAD_ARGUMENT] = "argument"};
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *(enum st_payload_by *)field = (enum st_payload_by)i;
            return STINT_OK;
        }
    }
    st_yaml_fail(c->err, c->file, v, "payload: '%.40s' is not known", text);
    return st_conf_remedy(c, "it is stdin, file or argument");
}

static stint_code check_env_name(struct st_slice name, stint_error *err)
{
    if (name.len == 0)
        return st_refuse(err, "write NAME: value", "the name of a variable is empty");
    if (memchr(name.p, '=', name.len))
        return st_refuse(err, "write NAME: value", "the name of a variable has a '=' in it");
    if (name.len > 9 && memcmp(name.p, "STINT_JOB_", 10) == 0)
        return st_refuse(err, "choose another name", "STINT_JOB_ variables are set by stint itself");
    return STINT_OK;
}

static stint_code read_env(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    stint_code rc = st_conf_is_map(c, v, k->name);
    char **env;
    size_t n = 0;

    if (rc)
        return rc;
    env = calloc(v->n + 1, sizeof(*env));
    if (!env)
        return st_conf_nomem(c);
    *(char ***)field = env;
    for (const struct st_yaml *m = v->first; m; m = m->next) {
        const char *text = st_conf_scalar(c, m, m->key);

        if (!text)
            return STINT_EINVAL;
        if (check_env_name(st_slice_cstr(m->key), c->err))
            return st_conf_wrong_key(c, m);
        if (asprintf(&env[n], "%s=%s", m->key, st_yaml_is_null(m) ? "" : text) < 0) {
            env[n] = NULL;
            return st_conf_nomem(c);
        }
        n++;
    }
    return STINT_OK;
}

static stint_code read_inherit(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_command *cmd = field;

    if (v->kind == ST_YAML_SCALAR && strcmp(v->text, "all") == 0) {
        cmd->inherit_all = true;
        return STINT_OK;
    }
    if (v->kind != ST_YAML_LIST)
        return st_yaml_fail(c->err, c->file, v, "inherit_env must be `all` or a list of names");
    return st_conf_strings(c, v, k->name, check_env_name, &cmd->inherit_env);
}

/* ---- retry and lease -------------------------------------------------------------------- */

static stint_code read_backoff(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    if (st_backoff_parse(st_slice_cstr(text), field))
        return STINT_OK;
    st_yaml_fail(c->err, c->file, v, "backoff: '%.40s' is not known", text);
    return st_conf_remedy(c, "it is exponential, linear, fixed, asynq or list");
}

static stint_code read_delays(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_policy *p = field;
    const struct st_conf_key one = {.name = k->name, .max = 3650 * ST_DAY};

    if (v->kind != ST_YAML_LIST || v->n == 0)
        return st_yaml_fail(c->err, c->file, v, "delays must be a list of durations, such as [10s, 1m]");
    if (v->n > ST_DELAYS_MAX)
        return st_yaml_fail(c->err, c->file, v, "delays has %zu entries, the most is %d", v->n, ST_DELAYS_MAX);
    p->n_delays = 0;
    for (const struct st_yaml *m = v->first; m; m = m->next) {
        stint_code rc = st_conf_duration(c, m, &one, &p->delays_us[p->n_delays]);

        if (rc)
            return rc;
        p->n_delays++;
    }
    return STINT_OK;
}

static const struct st_conf_key retry_keys[] = {
    {"max_attempts", st_conf_int, offsetof(struct st_policy, max_attempts), 0, ST_ATTEMPTS_MAX},
    {"backoff", read_backoff, offsetof(struct st_policy, backoff), 0, 0},
    {"initial", st_conf_duration, offsetof(struct st_policy, initial_us), 0, 365 * ST_DAY},
    {"multiplier", st_conf_double, offsetof(struct st_policy, multiplier), 1000, 100000},
    {"max", st_conf_duration, offsetof(struct st_policy, max_us), 0, 3650 * ST_DAY},
    {"jitter", st_conf_double, offsetof(struct st_policy, jitter), 0, 1000},
    {"delays", read_delays, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static stint_code read_retry(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_policy *p = field;
    stint_code rc = st_conf_map(c, v, k->name, retry_keys, p);
    const struct st_yaml *backoff = st_yaml_member(v, "backoff");
    const struct st_yaml *max = st_yaml_member(v, "max"), *initial = st_yaml_member(v, "initial");

    if (rc)
        return rc;
    if (p->n_delays && !backoff)
        p->backoff = ST_BACKOFF_LIST;
    if (p->backoff == ST_BACKOFF_LIST && !p->n_delays) {
        st_yaml_fail(c->err, c->file, backoff, "backoff: list needs `delays`");
        return st_conf_remedy(c, "add delays: [10s, 1m, 10m]");
    }
    if (p->backoff != ST_BACKOFF_LIST && p->n_delays)
        return st_yaml_fail_key(c->err, c->file, st_yaml_member(v, "delays"), "delays is only for `backoff: list`");
    if (initial && !max && p->max_us < p->initial_us)
        p->max_us = p->initial_us;
    if (max && p->max_us < p->initial_us)
        return st_yaml_fail(c->err, c->file, max, "max: %.40s is shorter than the first wait", max->text);
    return STINT_OK;
}

static const struct st_conf_key lease_keys[] = {
    {"duration", st_conf_duration, offsetof(struct st_type_conf, lease_us), 100 * ST_MS, ST_DAY},
    {"renew", st_conf_duration, offsetof(struct st_type_conf, renew_us), 10 * ST_MS, ST_DAY},
    {NULL, NULL, 0, 0, 0},
};

static stint_code read_lease(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_type_conf *t = field;
    stint_code rc = st_conf_map(c, v, k->name, lease_keys, t);
    int64_t lease_us;

    if (rc)
        return rc;
    if (t->lease_us && !t->renew_us)
        t->renew_us = t->lease_us / 3;
    lease_us = t->lease_us ? t->lease_us : c->s->lease_us;
    if (t->renew_us > lease_us / 2)
        return st_yaml_fail(c->err, c->file, st_yaml_member(v, "renew"), "renew must be at most half of the lease");
    return STINT_OK;
}

/* ---- placeholders ------------------------------------------------------------------------- */

static stint_code wrong_placeholder(struct st_conf *c, const struct st_yaml *arg, const char *text, const char *needs,
                                    enum st_mode mode)
{
    if (mode == ST_MODE_ONESHOT) {
        st_yaml_fail(c->err, c->file, arg, "run: %s is filled in only with `payload: %s`", text, needs);
        st_err_remedy(c->err, "add `payload: %s`, or take %s out", needs, text);
    } else {
        st_yaml_fail(c->err, c->file, arg, "run: %s is not filled in with `mode: %s`", text,
                     mode == ST_MODE_RESIDENT ? "resident" : "oneshot-lines");
        st_err_remedy(c->err, "take %s out; the child finds it in the request line", text);
    }
    return STINT_EINVAL;
}

/* A payload that comes another way has nothing to put for its placeholder, and a child for many
 * jobs has nothing to put for any.  The program itself, the first of the list, is taken as it is. */
static stint_code check_placeholders(struct st_conf *c, const struct st_yaml *run, const struct st_command *cmd)
{
    const bool oneshot = cmd->mode == ST_MODE_ONESHOT, resident = cmd->mode == ST_MODE_RESIDENT;
    const struct {
        const char *text, *needs;
        bool good;
    } known[] = {{"{payload}", "argument", oneshot && cmd->payload_by == ST_PAYLOAD_ARGUMENT},
                 {"{payload_file}", "file", oneshot && cmd->payload_by == ST_PAYLOAD_FILE},
                 {"{id}", NULL, !resident},
                 {"{attempt}", NULL, !resident}};

    for (const struct st_yaml *m = run->first->next; m; m = m->next)
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            if (!known[i].good && strstr(m->text, known[i].text))
                return wrong_placeholder(c, m, known[i].text, known[i].needs, cmd->mode);
    return STINT_OK;
}

/* ---- types ------------------------------------------------------------------------------ */

#define AT(member) offsetof(struct st_type_conf, member)

static stint_code read_builtin(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    if (strcmp(text, "mock") != 0) {
        st_yaml_fail(c->err, c->file, v, "builtin: '%.40s' is not known", text);
        return st_conf_remedy(c,
                              "the one that there is: builtin: mock; for a program of your own write run: [program]");
    }
    *(enum st_builtin *)field = ST_BUILTIN_MOCK;
    return STINT_OK;
}

/* What is about a program has no effect on a handler that is none. */
static stint_code check_builtin(struct st_conf *c, const struct st_yaml *type)
{
    static const char *const keys[] = {
        "run",       "mode",          "payload",         "grace",          "cwd",     "env", "inherit_env",
        "processes", "max_in_flight", "startup_timeout", "on_child_crash", "recycle", "caps"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const struct st_yaml *v = st_yaml_member(type, keys[i]);

        if (!v)
            continue;
        st_yaml_fail_key(c->err, c->file, v, "%s does not go with builtin", keys[i]);
        return st_conf_remedy(c, "take one of the two out");
    }
    return STINT_OK;
}

static const struct st_conf_key type_keys[] = {
    {"run", read_run, AT(command), 0, 0},
    {"builtin", read_builtin, AT(builtin), 0, 0},
    {"mode", st_conf_mode, AT(command.mode), 0, 0},
    {"payload", read_payload_by, AT(command.payload_by), 0, 0},
    {"timeout", st_conf_timeout, AT(policy.timeout_us), ST_MS, 3650 * ST_DAY},
    {"grace", st_conf_duration, AT(command.grace_us), 0, ST_DAY},
    {"cwd", st_conf_path, AT(command.cwd), 0, 0},
    {"env", read_env, AT(command.env), 0, 0},
    {"inherit_env", read_inherit, AT(command), 0, 0},
    {"retry", read_retry, AT(policy), 0, 0},
    {"lease", read_lease, 0, 0, 0},
    {"processes", st_conf_int, AT(command.processes), 1, 1024},
    {"max_in_flight", st_conf_int, AT(command.max_in_flight), 1, 10000},
    {"startup_timeout", st_conf_duration, AT(command.startup_us), ST_MS, ST_DAY},
    {"on_child_crash", st_conf_on_crash, AT(command.park), 0, 0},
    {"recycle", st_conf_recycle, AT(command.recycle), 0, 0},
    {"caps", st_conf_caps, AT(command.caps), 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static stint_code read_type(struct st_conf *c, const struct st_yaml *v, struct st_type_conf *t)
{
    const struct st_yaml *run = st_yaml_member(v, "run"), *cwd = st_yaml_member(v, "cwd");
    stint_code rc;

    t->policy = st_policy_default;
    t->command.grace_us = 5 * ST_SEC;
    t->line = v->key_line;
    t->pattern = strdup(v->key);
    t->command.name = strdup(v->key);
    if (!t->pattern || !t->command.name)
        return st_conf_nomem(c);
    if (st_type_pattern_check(st_slice_cstr(v->key), c->err))
        return st_conf_wrong_key(c, v);
    rc = st_conf_map(c, v, "a type", type_keys, t);
    if (rc)
        return rc;
    if (t->builtin)
        return check_builtin(c, v);
    if (!t->command.argv) {
        st_yaml_fail_key(c->err, c->file, v, "the type '%.60s' has no `run`", v->key);
        st_err_remedy(c->err, "add run: [program, argument, ...]");
        return STINT_EINVAL;
    }
    if (st_conf_check_mode(c, v, t->command.mode))
        return STINT_EINVAL;
    if (check_placeholders(c, run, &t->command))
        return STINT_EINVAL;
    if (!c->check_programs)
        return STINT_OK;
    if (st_conf_program(&t->command, c->err))
        return st_conf_wrong(c, run->first, "run");
    if (st_conf_cwd(&t->command, c->err))
        return st_conf_wrong(c, cwd, "cwd");
    return STINT_OK;
}

stint_code st_conf_types(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_settings *s = field;
    stint_code rc = st_conf_is_map(c, v, k->name);

    if (rc || v->n == 0)
        return rc;
    s->types = calloc(v->n, sizeof(*s->types));
    if (!s->types)
        return st_conf_nomem(c);
    for (const struct st_yaml *m = v->first; m && !rc; m = m->next)
        rc = read_type(c, m, &s->types[s->n_types++]);
    return rc;
}

/* ---- parent queues ---------------------------------------------------------------------- */

/* The highest first; equal ones as they stand in the file. */
static void sort_subs(struct st_queue_weight *subs, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct st_queue_weight w = subs[i];
        size_t j = i;

        for (; j > 0 && subs[j - 1].weight < w.weight; j--)
            subs[j] = subs[j - 1];
        subs[j] = w;
    }
}

static stint_code check_sub(struct st_conf *c, const struct st_yaml *m, const char *parent)
{
    char full[2 * ST_NAME_MAX + 2];

    if (snprintf(full, sizeof(full), "%s.%s", parent, m->key) >= (int)sizeof(full))
        return st_yaml_fail_key(c->err, c->file, m, "the name of the queue is too long");
    if (st_queue_check(st_slice_cstr(full), c->err))
        return st_conf_wrong_key(c, m);
    return STINT_OK;
}

static stint_code read_subs(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    static const struct st_conf_key priority = {.name = "subs", .min = -32768, .max = 32767};
    struct st_parent_conf *p = field;
    stint_code rc = st_conf_is_map(c, v, k->name);

    if (rc || v->n == 0)
        return rc;
    p->subs = calloc(v->n, sizeof(*p->subs));
    if (!p->subs)
        return st_conf_nomem(c);
    for (const struct st_yaml *m = v->first; m; m = m->next) {
        struct st_queue_weight *sub = &p->subs[p->n_subs];

        rc = check_sub(c, m, p->name);
        if (!rc)
            rc = st_conf_int(c, m, &priority, &sub->weight);
        if (!rc && !(sub->name = strdup(m->key)))
            rc = st_conf_nomem(c);
        if (rc)
            return rc;
        p->n_subs++;
    }
    sort_subs(p->subs, p->n_subs);
    return STINT_OK;
}

static const struct st_conf_key parent_keys[] = {
    {"type", st_conf_text, offsetof(struct st_parent_conf, type), 0, 0},
    {"subs", read_subs, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static stint_code read_parent(struct st_conf *c, const struct st_yaml *v, struct st_parent_conf *p)
{
    stint_code rc;

    p->name = strdup(v->key);
    if (!p->name)
        return st_conf_nomem(c);
    if (st_queue_check(st_slice_cstr(v->key), c->err))
        return st_conf_wrong_key(c, v);
    if (strchr(v->key, '.'))
        return st_yaml_fail_key(c->err, c->file, v,
                                "'%.60s' is a sub-queue; name its parent here and the subs below it", v->key);
    if (st_yaml_is_null(v))
        return STINT_OK;
    rc = st_conf_map(c, v, "a queue", parent_keys, p);
    if (!rc && p->type && !st_settings_type(c->s, st_slice_cstr(p->type))) {
        st_yaml_fail(c->err, c->file, st_yaml_member(v, "type"), "type: there is no '%.60s' under `types:`", p->type);
        return st_conf_remedy(c, "add the type under `types:`, or name one that is there");
    }
    return rc;
}

stint_code st_conf_parents(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_settings *s = field;
    stint_code rc = st_conf_is_map(c, v, k->name);

    if (rc || v->n == 0)
        return rc;
    s->parents = calloc(v->n, sizeof(*s->parents));
    if (!s->parents)
        return st_conf_nomem(c);
    for (const struct st_yaml *m = v->first; m && !rc; m = m->next)
        rc = read_parent(c, m, &s->parents[s->n_parents++]);
    return rc;
}
