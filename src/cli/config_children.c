/* SPDX-License-Identifier: Apache-2.0
 *
 * config_children.c - the keys of a type that say how its children are kept: mode, crashes, recycling, caps.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/config_keys.h"

stint_code st_conf_mode(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    static const char *const names[] = {
        [ST_MODE_ONESHOT] = "oneshot", [ST_MODE_ONESHOT_LINES] = "oneshot-lines", [ST_MODE_RESIDENT] = "resident"};
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *(enum st_mode *)field = (enum st_mode)i;
            return STINT_OK;
        }
    }
    st_yaml_fail(c->err, c->file, v, "mode: '%.40s' is not known", text);
    st_err_remedy(c->err, "it is oneshot, oneshot-lines or resident");
    return STINT_EINVAL;
}

stint_code st_conf_on_crash(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    if (strcmp(text, "park") == 0 || strcmp(text, "restart") == 0) {
        *(bool *)field = text[0] == 'p';
        return STINT_OK;
    }
    st_yaml_fail(c->err, c->file, v, "on_child_crash: '%.40s' is not known", text);
    st_err_remedy(c->err, "it is restart or park");
    return STINT_EINVAL;
}

/* A size into an int64_t. */
static stint_code read_bytes(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    size_t bytes = 0;
    stint_code rc = st_conf_size(c, v, k, &bytes);

    if (rc == STINT_OK)
        *(int64_t *)field = (int64_t)bytes;
    return rc;
}

static stint_code read_count(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    int n = 0;
    stint_code rc = st_conf_int(c, v, k, &n);

    if (rc == STINT_OK)
        *(int64_t *)field = n;
    return rc;
}

#define BYTES_MAX ((int64_t)1 << 50)

static const struct st_conf_key recycle_keys[] = {
    {"jobs", read_count, offsetof(struct st_recycle, jobs), 1, 1000000000},
    {"age", st_conf_duration, offsetof(struct st_recycle, age_us), ST_SEC, 3650 * ST_DAY},
    {"rss", read_bytes, offsetof(struct st_recycle, rss), 1 << 20, BYTES_MAX},
    {NULL, NULL, 0, 0, 0},
};

stint_code st_conf_recycle(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    return st_conf_map(c, v, k->name, recycle_keys, field);
}

static const struct st_conf_key caps_keys[] = {
    {"cpu", st_conf_duration, offsetof(struct st_caps, cpu_us), ST_SEC, 3650 * ST_DAY},
    {"memory", read_bytes, offsetof(struct st_caps, memory), 1 << 20, BYTES_MAX},
    {"files", read_count, offsetof(struct st_caps, files), 8, 1000000000},
    {"processes", read_count, offsetof(struct st_caps, processes), 1, 1000000000},
    {"output", read_bytes, offsetof(struct st_caps, output), 1, BYTES_MAX},
    {NULL, NULL, 0, 0, 0},
};

stint_code st_conf_caps(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    return st_conf_map(c, v, k->name, caps_keys, field);
}

/* A key that the type's mode does not use would be silently without effect. */
stint_code st_conf_check_mode(struct st_conf *c, const struct st_yaml *type, enum st_mode mode)
{
    static const struct {
        const char *key;
        bool lines, resident; /* with which modes it goes */
        bool oneshot;
    } keys[] = {
        {"processes", false, true, false},      {"max_in_flight", false, true, false},
        {"on_child_crash", false, true, false}, {"recycle", false, true, false},
        {"startup_timeout", true, true, false}, {"payload", false, false, true},
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const struct st_yaml *v = st_yaml_member(type, keys[i].key);
        bool ok = mode == ST_MODE_RESIDENT        ? keys[i].resident
                  : mode == ST_MODE_ONESHOT_LINES ? keys[i].lines
                                                  : keys[i].oneshot;

        if (!v || ok)
            continue;
        st_yaml_fail_key(c->err, c->file, v, "%s is not for this mode", keys[i].key);
        st_err_remedy(c->err, "%s",
                      keys[i].oneshot ? "payload is for mode: oneshot; other modes get it in the request line"
                                      : "add mode: resident, or take it out");
        return STINT_EINVAL;
    }
    return STINT_OK;
}
