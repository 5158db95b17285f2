/* SPDX-License-Identifier: Apache-2.0
 *
 * config_keys.c - maps of stint.yaml by table, and the kinds of values they hold.
 *
 * Every message begins with file:line:column of the value it is about, or of the key where that is
 * at fault.
 */
#include "cli/config_keys.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/suggest.h"
#include "job/number.h"

#define KEYS_MAX 32

/* ---- messages --------------------------------------------------------------------------- */

stint_code st_conf_wrong(struct st_conf *c, const struct st_yaml *v, const char *name)
{
    st_err_prefix(c->err, "%s:%d:%d: %s", c->file, v->line, v->column, name);
    return STINT_EINVAL;
}

stint_code st_conf_wrong_key(struct st_conf *c, const struct st_yaml *v)
{
    st_err_prefix(c->err, "%s:%d:%d", c->file, v->key_line, v->key_column);
    return STINT_EINVAL;
}

stint_code st_conf_nomem(struct st_conf *c)
{
    return st_fail(c->err, STINT_ENOMEM, "no memory to read %s", c->file);
}

stint_code st_conf_remedy(struct st_conf *c, const char *fmt, ...)
{
    char text[sizeof(c->err->remedy)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    st_err_remedy(c->err, "%s", text);
    return STINT_EINVAL;
}

static stint_code unknown_key(struct st_conf *c, const struct st_yaml *v, const char *where,
                              const struct st_conf_key *keys)
{
    char list[sizeof(c->err->remedy)] = "the keys here are";
    const char *names[KEYS_MAX + 1];
    const char *near;
    size_t n = 0;

    for (; keys[n].name && n < KEYS_MAX; n++) {
        size_t len = strlen(list);

        names[n] = keys[n].name;
        snprintf(list + len, sizeof(list) - len, "%s %s", n ? "," : "", keys[n].name);
    }
    names[n] = NULL;
    near = st_suggest(st_slice_cstr(v->key), names);
    if (near)
        st_yaml_fail_key(c->err, c->file, v, "unknown key '%.60s' in %s; did you mean '%s'?", v->key, where, near);
    else
        st_yaml_fail_key(c->err, c->file, v, "unknown key '%.60s' in %s", v->key, where);
    return st_conf_remedy(c, "%s", list);
}

static const struct st_conf_key *find_key(const struct st_conf_key *keys, const char *name)
{
    for (; keys->name; keys++)
        if (strcmp(keys->name, name) == 0)
            return keys;
    return NULL;
}

/* ---- maps ------------------------------------------------------------------------------- */

stint_code st_conf_is_map(struct st_conf *c, const struct st_yaml *v, const char *what)
{
    if (v->kind == ST_YAML_MAP)
        return STINT_OK;
    st_yaml_fail(c->err, c->file, v, "%s must be a map of `key: value` lines", what);
    return st_conf_remedy(c, "write {key: value}, or the keys indented on the lines below");
}

stint_code st_conf_map(struct st_conf *c, const struct st_yaml *map, const char *where, const struct st_conf_key *keys,
                       void *base)
{
    stint_code rc = st_conf_is_map(c, map, where);

    for (const struct st_yaml *v = rc ? NULL : map->first; v; v = v->next) {
        const struct st_conf_key *k = find_key(keys, v->key);

        if (!k)
            return unknown_key(c, v, where, keys);
        if (!k->read) {
            st_yaml_fail_key(c->err, c->file, v, "'%s' is not in this version of stint yet", v->key);
            st_err_remedy(c->err, "remove the key, or use a version that has it");
            return STINT_EINVAL;
        }
    }
    for (const struct st_conf_key *k = keys; !rc && k->name; k++) {
        const struct st_yaml *v = st_yaml_member(map, k->name);

        if (v && !st_yaml_is_null(v))
            rc = k->read(c, v, k, (char *)base + k->offset);
    }
    return rc;
}

/* ---- texts ------------------------------------------------------------------------------ */

const char *st_conf_scalar(struct st_conf *c, const struct st_yaml *v, const char *name)
{
    if (v->kind == ST_YAML_SCALAR)
        return v->text;
    st_yaml_fail(c->err, c->file, v, "%s: one value is expected here, not a %s", name,
                 v->kind == ST_YAML_LIST ? "list" : "map");
    st_conf_remedy(c, "write %s: VALUE", name);
    return NULL;
}

static stint_code set_text(struct st_conf *c, char **field, char *text)
{
    if (!text)
        return st_conf_nomem(c);
    free(*field);
    *field = text;
    return STINT_OK;
}

static stint_code is_empty(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k)
{
    st_yaml_fail(c->err, c->file, v, "%s is empty", k->name);
    return st_conf_remedy(c, "give it a value, or leave the key out");
}

stint_code st_conf_text(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    if (!*text)
        return is_empty(c, v, k);
    return set_text(c, field, strdup(text));
}

char *st_conf_join(const struct st_conf *c, const char *path)
{
    char *out;

    if (path[0] == '/' || !c->dir)
        return strdup(path);
    if (strncmp(path, "./", 2) == 0)
        path += 2;
    if (asprintf(&out, "%s%s%s", c->dir, c->dir[strlen(c->dir) - 1] == '/' ? "" : "/", path) < 0)
        return NULL;
    return out;
}

stint_code st_conf_path(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    if (!*text)
        return is_empty(c, v, k);
    if (strlen(text) >= PATH_MAX / 2) {
        st_yaml_fail(c->err, c->file, v, "%s: the path is too long", k->name);
        return st_conf_remedy(c, "a path has less than %d bytes", PATH_MAX / 2);
    }
    return set_text(c, field, st_conf_join(c, text));
}

void st_conf_strings_free(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

static stint_code not_a_list(struct st_conf *c, const struct st_yaml *v, const char *what)
{
    st_yaml_fail(c->err, c->file, v, "%s must be a list", what);
    return st_conf_remedy(c, "write %s: [a, b]", what);
}

stint_code st_conf_strings(struct st_conf *c, const struct st_yaml *v, const char *what,
                           stint_code (*check)(struct st_slice, stint_error *), char ***out)
{
    char **list;
    size_t n = 0;

    *out = NULL;
    if (v->kind != ST_YAML_LIST)
        return not_a_list(c, v, what);
    list = calloc(v->n + 1, sizeof(*list));
    if (!list)
        return st_conf_nomem(c);
    for (const struct st_yaml *m = v->first; m; m = m->next) {
        const char *text = st_conf_scalar(c, m, what);
        stint_code rc = text ? STINT_OK : STINT_EINVAL;

        if (!rc && check && check(st_slice_cstr(text), c->err))
            rc = st_conf_wrong(c, m, what);
        if (!rc && !(list[n++] = strdup(text)))
            rc = st_conf_nomem(c);
        if (rc) {
            st_conf_strings_free(list);
            return rc;
        }
    }
    *out = list;
    return STINT_OK;
}

/* ---- numbers ---------------------------------------------------------------------------- */

stint_code st_conf_int(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);
    int64_t n;

    if (!text)
        return STINT_EINVAL;
    if (!st_parse_i64(st_slice_cstr(text), &n))
        st_yaml_fail(c->err, c->file, v, "%s: '%.40s' is not a whole number", k->name, text);
    else if (n < k->min || n > k->max)
        st_yaml_fail(c->err, c->file, v, "%s: %.40s is not between %lld and %lld", k->name, text, (long long)k->min,
                     (long long)k->max);
    else {
        *(int *)field = (int)n;
        return STINT_OK;
    }
    return st_conf_remedy(c, "write a whole number between %lld and %lld", (long long)k->min, (long long)k->max);
}

/* "0.1" and the like: digits, at most one point, no sign and no exponent. */
static bool is_decimal(const char *s)
{
    size_t digits = strspn(s, "0123456789");

    if (!digits || strlen(s) > 20)
        return false;
    if (s[digits] != '.')
        return !s[digits];
    s += digits + 1;
    digits = strspn(s, "0123456789");
    return digits && !s[digits];
}

stint_code st_conf_double(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const double low = (double)k->min / 1000, high = (double)k->max / 1000;
    const char *text = st_conf_scalar(c, v, k->name);
    double d;

    if (!text)
        return STINT_EINVAL;
    if (!is_decimal(text)) {
        st_yaml_fail(c->err, c->file, v, "%s: '%.40s' is not a number", k->name, text);
        return st_conf_remedy(c, "write a number between %g and %g, such as 1 or 0.5", low, high);
    }
    if (!st_number_parse(st_slice_cstr(text), &d))
        return st_conf_nomem(c);
    if (d < low || d > high) {
        st_yaml_fail(c->err, c->file, v, "%s: %.40s is not between %g and %g", k->name, text, low, high);
        return st_conf_remedy(c, "write a number between %g and %g", low, high);
    }
    *(double *)field = d;
    return STINT_OK;
}

stint_code st_conf_duration(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);
    char low[ST_DURATION_TEXT], high[ST_DURATION_TEXT];
    int64_t us;

    if (!text)
        return STINT_EINVAL;
    if (st_duration_parse(st_slice_cstr(text), &us, c->err))
        return st_conf_wrong(c, v, k->name);
    if (us < k->min || (k->max && us > k->max)) {
        st_duration_format(k->min, low);
        st_duration_format(k->max ? k->max : 36500 * ST_DAY, high);
        st_yaml_fail(c->err, c->file, v, "%s: %.40s is not between %s and %s", k->name, text, low, high);
        return st_conf_remedy(c, "write a duration between %s and %s", low, high);
    }
    *(int64_t *)field = us;
    return STINT_OK;
}

stint_code st_conf_keep(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    if (v->kind == ST_YAML_SCALAR && strcmp(v->text, "forever") == 0) {
        *(int64_t *)field = 0;
        return STINT_OK;
    }
    return st_conf_duration(c, v, k, field);
}

stint_code st_conf_timeout(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    if (v->kind == ST_YAML_SCALAR && strcmp(v->text, "none") == 0) {
        *(int64_t *)field = 0;
        return STINT_OK;
    }
    return st_conf_duration(c, v, k, field);
}

/* Bytes, with or without a unit; -1 = no size. */
static int64_t parse_size(const char *text)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {{"", 1}, {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    size_t digits = strspn(text, "0123456789");
    int64_t n;

    if (digits > 12 || !st_parse_i64(ST_SLICE(text, digits), &n))
        return -1;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(text + digits, units[i].name) == 0)
            return n > INT64_MAX / units[i].bytes ? INT64_MAX : n * units[i].bytes;
    return -1;
}

stint_code st_conf_size(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);
    int64_t n;

    if (!text)
        return STINT_EINVAL;
    n = parse_size(text);
    if (n < 0) {
        st_yaml_fail(c->err, c->file, v, "%s: '%.40s' is not a size", k->name, text);
        return st_conf_remedy(c, "write bytes, or a number with KiB, MiB or GiB: 512KiB");
    }
    if (n < k->min || n > k->max) {
        st_yaml_fail(c->err, c->file, v, "%s: %.40s is not between %lld and %lld bytes", k->name, text,
                     (long long)k->min, (long long)k->max);
        return st_conf_remedy(c, "write a size in that range, such as 1MiB");
    }
    *(size_t *)field = (size_t)n;
    return STINT_OK;
}

stint_code st_conf_bool(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    static const char *const yes[] = {"true", "yes", "on", NULL}, *const no[] = {"false", "no", "off", NULL};
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    for (size_t i = 0; yes[i]; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *(bool *)field = strcmp(text, yes[i]) == 0;
            return STINT_OK;
        }
    }
    st_yaml_fail(c->err, c->file, v, "%s: '%.40s' is neither true nor false", k->name, text);
    return st_conf_remedy(c, "write true or false; yes and on, no and off mean the same");
}
