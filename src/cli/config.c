/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - stint.yaml, environment and flags into settings.
 *
 *     flag > environment > stint.yaml > default
 *
 * The file's keys are tables: what is not in a table is an error.  The sections are read in the
 * order of the tables, so that `types:` finds the worker's lease and `queues:` finds the types,
 * whatever their order in the file.
 */
#include "cli/config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/config_keys.h"
#include "cli/files.h"
#include "store/store.h"

/* ---- queues and types of the worker ------------------------------------------------------- */

static void drop_queues(struct st_queue_weight *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(list[i].name);
    free(list);
}

static void take_queues(struct st_settings *s, struct st_queue_weight *list, size_t n, bool weighted)
{
    drop_queues(s->queues, s->n_queues);
    s->queues = list;
    s->n_queues = n;
    s->weighted = weighted;
}

static bool has_queue(const struct st_queue_weight *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return true;
    return false;
}

static stint_code read_queue(struct st_conf *c, const struct st_yaml *m, bool weighted, struct st_queue_weight *list,
                             size_t n)
{
    static const struct st_conf_key weight = {.name = "the weight", .min = 1, .max = ST_WEIGHT_MAX};
    const char *name = weighted ? m->key : st_conf_scalar(c, m, "queues");
    stint_code rc;

    if (!name)
        return STINT_EINVAL;
    if (st_queue_check(st_slice_cstr(name), c->err))
        return weighted ? st_conf_wrong_key(c, m) : st_conf_wrong(c, m, "queues");
    if (has_queue(list, n, name))
        return st_yaml_fail(c->err, c->file, m, "queues: '%.60s' is here for the second time", name);
    rc = weighted ? st_conf_int(c, m, &weight, &list[n].weight) : STINT_OK;
    if (!rc && !(list[n].name = strdup(name)))
        rc = st_conf_nomem(c);
    return rc;
}

static stint_code read_queues(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    bool weighted = v->kind == ST_YAML_MAP;
    struct st_queue_weight *list;
    size_t n = 0;

    if (v->kind == ST_YAML_SCALAR)
        return st_yaml_fail(c->err, c->file, v, "%s must be a list [a, b] (first wins) or a map {a: 3, b: 1} (weights)",
                            k->name);
    list = calloc(v->n + 1, sizeof(*list));
    if (!list)
        return st_conf_nomem(c);
    for (const struct st_yaml *m = v->first; m; m = m->next) {
        stint_code rc = read_queue(c, m, weighted, list, n);

        if (rc) {
            drop_queues(list, n);
            return rc;
        }
        n++;
    }
    take_queues(field, list, n, weighted);
    return STINT_OK;
}

static stint_code read_only_types(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    char ***only = field;
    char **list;
    stint_code rc = st_conf_strings(c, v, k->name, st_type_pattern_check, &list);

    if (rc)
        return rc;
    if (!list[0]) {
        st_conf_strings_free(list);
        return st_yaml_fail(c->err, c->file, v, "types is empty; leave it out to serve every configured type");
    }
    st_conf_strings_free(*only);
    *only = list;
    return STINT_OK;
}

/* ---- sections ----------------------------------------------------------------------------- */

static stint_code read_id(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    stint_code rc = st_conf_text(c, v, k, field);

    if (!rc && st_id_check(st_slice_cstr(v->text), c->err))
        return st_conf_wrong(c, v, k->name);
    return rc;
}

#define AT(member) offsetof(struct st_settings, member)

static const struct st_conf_key worker_keys[] = {
    {"id", read_id, AT(worker_id), 0, 0},
    {"slots", st_conf_int, AT(slots), 1, ST_SLOTS_MAX},
    {"queues", read_queues, 0, 0, 0},
    {"types", read_only_types, AT(only_types), 0, 0},
    {"lease", st_conf_duration, AT(lease_us), 100 * ST_MS, ST_DAY},
    {"renew", st_conf_duration, AT(renew_us), 10 * ST_MS, ST_DAY},
    {"poll", st_conf_duration, AT(poll_us), 10 * ST_MS, ST_DAY},
    {"claim_batch", st_conf_int, AT(claim_batch), 1, 10000},
    {"shutdown_timeout", st_conf_duration, AT(shutdown_us), 0, ST_DAY},
    {"results_dir", st_conf_path, AT(results_dir), 0, 0},
    {"logs_dir", st_conf_path, AT(logs_dir), 0, 0},
    {"notify", st_conf_bool, AT(notify), 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static stint_code read_worker(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_settings *s = field;
    stint_code rc = st_conf_map(c, v, k->name, worker_keys, s);
    const struct st_yaml *renew = st_yaml_member(v, "renew"), *lease = st_yaml_member(v, "lease");

    if (rc)
        return rc;
    if (lease && !renew)
        s->renew_us = s->lease_us / 3;
    if (s->renew_us > s->lease_us / 2)
        return st_yaml_fail(c->err, c->file, renew, "renew must be at most half of the lease");
    return STINT_OK;
}

#define SIZE_MOST ((int64_t)1 << 30)

static const struct st_conf_key limits_keys[] = {
    {"payload", st_conf_size, offsetof(struct st_limits, payload), 1, SIZE_MOST},
    {"result", st_conf_size, offsetof(struct st_limits, result), 1, SIZE_MOST},
    {"line", st_conf_size, offsetof(struct st_limits, line), 1024, SIZE_MOST},
    {"output", st_conf_size, offsetof(struct st_limits, output), 1, SIZE_MOST},
    {NULL, NULL, 0, 0, 0},
};

static stint_code read_limits(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    return st_conf_map(c, v, k->name, limits_keys, field);
}

static const struct st_conf_key retention_keys[] = {
    {"succeeded", st_conf_keep, offsetof(struct st_retention, succeeded_us), ST_MS, 0},
    {"failed", st_conf_keep, offsetof(struct st_retention, failed_us), ST_MS, 0},
    {"cancelled", st_conf_keep, offsetof(struct st_retention, cancelled_us), ST_MS, 0},
    {NULL, NULL, 0, 0, 0},
};

static stint_code read_retention(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    return st_conf_map(c, v, k->name, retention_keys, field);
}

/* "scheme:..." as RFC 3986 has it; anything else is a path. */
static bool is_url(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");

    return n > 1 && text[n] == ':';
}

/* "host=... password=...", as libpq takes it too: no path, and not to be shown. */
static bool is_words(const char *text)
{
    static const char *const words[] = {"host", "hostaddr", "port", "dbname", "user", "password", "service", "sslmode"};
    const size_t n = strcspn(text, "= ");

    for (size_t i = 0; text[n] == '=' && i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == n && strncmp(text, words[i], n) == 0)
            return true;
    return false;
}

#define WORDS_WRONG  "is a list of words as libpq takes it, not a store's URL"
#define WORDS_REMEDY "write it as postgres://USER@HOST/DATABASE, with what else there is behind a ?"

/* What is wrong with a URL of no store we have. */
static const char *kind_wrong(const char *text)
{
    char whole[32];

    snprintf(whole, sizeof(whole), "%.*s://", (int)strcspn(text, ":"), text);
    return st_store_kind(whole) ? "but has no // behind that" : "which this version does not have";
}

static stint_code read_store(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    if (is_words(text)) {
        st_yaml_fail(c->err, c->file, v, "store: " WORDS_WRONG);
        st_err_remedy(c->err, WORDS_REMEDY);
        return STINT_EINVAL;
    }
    if (is_url(text) && !st_store_kind(text)) {
        st_yaml_fail(c->err, c->file, v, "store: names a store of the kind %.*s, %s", (int)strcspn(text, ":"), text,
                     kind_wrong(text));
        st_err_remedy(c->err, "use " ST_STORE_URLS);
        return STINT_EINVAL;
    }
    return st_conf_text(c, v, k, field);
}

static stint_code read_signal(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);
    stint_error why = {0};

    if (!text)
        return STINT_EINVAL;
    if (st_signal_url_check(text, &why)) {
        st_yaml_fail(c->err, c->file, v, "signal: %s", why.message);
        st_err_remedy(c->err, "%s", why.remedy);
        return STINT_EINVAL;
    }
    return st_conf_text(c, v, k, field);
}

static const struct st_conf_key top_keys[] = {
    {"store", read_store, AT(store), 0, 0},    {"worker", read_worker, 0, 0, 0},
    {"limits", read_limits, AT(limits), 0, 0}, {"retention", read_retention, AT(keep), 0, 0},
    {"runqy", st_conf_bool, AT(runqy), 0, 0},  {"types", st_conf_types, 0, 0, 0},
    {"queues", st_conf_parents, 0, 0, 0},      {"intake", st_conf_intake, AT(intake), 0, 0},
    {"signal", read_signal, AT(signal), 0, 0}, {NULL, NULL, 0, 0, 0},
};

/* ---- the file ----------------------------------------------------------------------------- */

stint_code st_config_parse(const char *name, const char *dir, struct st_slice text, bool check_programs,
                           struct st_settings *s, stint_error *err)
{
    struct st_conf c = {.file = name, .dir = dir, .check_programs = check_programs, .s = s, .err = err};
    stint_error own;
    struct st_yaml *root;
    stint_code rc;

    if (!err)
        c.err = &own;
    rc = st_yaml_parse(name, text, &root, c.err);
    if (rc == STINT_EINVAL && !c.err->remedy[0])
        st_conf_remedy(&c, "correct the YAML there: indent with blanks, quote texts with : # { [");
    if (rc)
        return rc;
    rc = st_conf_map(&c, root, "stint.yaml", top_keys, s);
    st_yaml_free(root);
    if (rc == STINT_EINVAL && !c.err->remedy[0])
        st_conf_remedy(&c, "stint.yaml(5) and docs/configuration.md tell what each key takes");
    return rc;
}

/* The directory of a file, absolute; NULL if it cannot be told. */
static char *dir_of(const char *path)
{
    char *copy = strdup(path), *slash, *dir;

    if (!copy)
        return NULL;
    slash = strrchr(copy, '/');
    if (slash)
        slash[slash == copy] = '\0';
    dir = realpath(slash ? copy : ".", NULL);
    free(copy);
    return dir;
}

stint_code st_config_read(const char *path, bool check_programs, struct st_settings *s, stint_error *err)
{
    char *text = NULL, *dir = NULL;
    size_t len;
    stint_code rc;

    rc = cli_read_all(path, ST_YAML_SIZE_MAX, &text, &len, err);
    if (rc) {
        st_err_prefix(err, "configuration");
        return rc;
    }
    dir = dir_of(path);
    free(s->path);
    s->path = strdup(path);
    if (!dir || !s->path)
        rc = st_refuse(err, "name it with --config by a path that is there",
                       "configuration: cannot tell the directory of %s", path);
    else
        rc = st_config_parse(path, dir, ST_SLICE(text, len), check_programs, s, err);
    free(text);
    free(dir);
    return rc;
}

const char *st_config_find(const char *flag)
{
    const char *env = getenv("STINT_CONFIG");

    if (flag)
        return flag;
    if (env && *env)
        return env;
    return access("stint.yaml", F_OK) == 0 ? "stint.yaml" : NULL;
}

/* ---- flags and environment ---------------------------------------------------------------- */

static size_t count_commas(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += *text == ',';
    return n;
}

stint_code st_config_queues(const char *text, struct st_settings *s, stint_error *err)
{
    return st_settings_queues(s, text, err);
}

stint_code st_config_types(const char *text, struct st_settings *s, stint_error *err)
{
    char **list = calloc(count_commas(text) + 2, sizeof(*list));
    stint_code rc = STINT_OK;

    if (!list)
        return st_fail(err, STINT_ENOMEM, "no memory for the types");
    for (size_t n = 0; !rc; n++) {
        size_t len = strcspn(text, ",");

        rc = st_type_pattern_check(ST_SLICE(text, len), err);
        if (!rc && !(list[n] = st_slice_dup(ST_SLICE(text, len))))
            rc = st_fail(err, STINT_ENOMEM, "no memory for the types");
        if (!text[len])
            break;
        text += len + 1;
    }
    if (rc) {
        st_conf_strings_free(list);
        return rc;
    }
    st_conf_strings_free(s->only_types);
    s->only_types = list;
    return STINT_OK;
}

static const char *env_value(const char *name)
{
    const char *v = getenv(name);

    return v && *v ? v : NULL;
}

static stint_code env_worker_id(struct st_settings *s, stint_error *err)
{
    const char *v = env_value("STINT_WORKER_ID");
    char *copy;

    if (!v)
        return STINT_OK;
    if (st_id_check(st_slice_cstr(v), err)) {
        st_err_prefix(err, "STINT_WORKER_ID");
        return STINT_EINVAL;
    }
    copy = strdup(v);
    if (!copy)
        return st_fail(err, STINT_ENOMEM, "no memory for STINT_WORKER_ID");
    free(s->worker_id);
    s->worker_id = copy;
    return STINT_OK;
}

static stint_code env_poll(struct st_settings *s, stint_error *err)
{
    const char *v = env_value("STINT_POLL");
    int64_t us;

    if (!v)
        return STINT_OK;
    if (st_duration_parse(st_slice_cstr(v), &us, err)) {
        st_err_prefix(err, "STINT_POLL");
        return STINT_EINVAL;
    }
    if (us < 10 * ST_MS || us > ST_DAY)
        return st_refuse(err, "set it to a duration in that range, such as 5s, or unset it",
                         "STINT_POLL: %.40s is not between 10ms and 1d", v);
    s->poll_us = us;
    return STINT_OK;
}

static stint_code env_signal(struct st_settings *s, stint_error *err)
{
    const char *v = env_value("STINT_SIGNAL");
    char *copy;

    if (!v)
        return STINT_OK;
    if (st_signal_url_check(v, err)) {
        st_err_prefix(err, "STINT_SIGNAL");
        return STINT_EINVAL;
    }
    copy = strdup(v);
    if (!copy)
        return st_fail(err, STINT_ENOMEM, "no memory for STINT_SIGNAL");
    free(s->signal);
    s->signal = copy;
    return STINT_OK;
}

stint_code st_config_env(struct st_settings *s, stint_error *err)
{
    const char *slots = env_value("STINT_SLOTS"), *queues = env_value("STINT_QUEUES");
    stint_code rc = env_worker_id(s, err);
    int64_t n;

    if (!rc)
        rc = env_poll(s, err);
    if (!rc)
        rc = env_signal(s, err);
    if (rc)
        return rc;
    if (slots) {
        if (!st_parse_i64(st_slice_cstr(slots), &n) || n < 1 || n > ST_SLOTS_MAX)
            return st_refuse(err, "set it to such a number, or unset it",
                             "STINT_SLOTS: '%.40s' is not a number between 1 and %d", slots, ST_SLOTS_MAX);
        s->slots = (int)n;
    }
    if (queues && (rc = st_config_queues(queues, s, err)) != STINT_OK)
        st_err_prefix(err, "STINT_QUEUES");
    return rc;
}

/* ---- the store ---------------------------------------------------------------------------- */

static const char *as_url(const char *text)
{
    static char url[PATH_MAX + 16];

    if (is_url(text) || strlen(text) >= PATH_MAX)
        return text;
    snprintf(url, sizeof(url), "sqlite:%s", text);
    return url;
}

/* Where a store may be named, the first that does so wins. */
struct store_source {
    const char *name, *text;
};

static struct store_source store_source(const char *flag, const struct st_settings *s, bool dev)
{
    const struct store_source all[] = {
        {"--store", flag},
        {"STINT_STORE", env_value("STINT_STORE")},
        {"store:", s->store},
        {"DATABASE_URL", dev ? NULL : env_value("DATABASE_URL")},
        {"REDIS_URL", dev ? NULL : env_value("REDIS_URL")},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].text)
            return all[i];
    return (struct store_source){NULL, "sqlite:stint.db"};
}

const char *st_config_store(const char *flag, const struct st_settings *s, bool dev)
{
    return as_url(store_source(flag, s, dev).text);
}

stint_code st_config_store_check(const char *flag, const struct st_settings *s, bool dev, stint_error *err)
{
    struct store_source from = store_source(flag, s, dev);

    if (is_words(from.text)) {
        st_fail(err, STINT_EINVAL, "%s " WORDS_WRONG, from.name);
        st_err_remedy(err, WORDS_REMEDY);
        return STINT_EINVAL;
    }
    if (!is_url(from.text) || st_store_kind(from.text))
        return STINT_OK;
    st_fail(err, STINT_EINVAL, "%s names a store of the kind %.*s, %s", from.name, (int)strcspn(from.text, ":"),
            from.text, kind_wrong(from.text));
    if (strstr(from.name, "_URL"))
        st_err_remedy(err,
                      "STINT_STORE=sqlite:stint.db, or `store: sqlite:stint.db` in stint.yaml, stands "
                      "above %s",
                      from.name);
    else
        st_err_remedy(err, "use " ST_STORE_URLS);
    return STINT_EINVAL;
}
