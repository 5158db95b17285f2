/* SPDX-License-Identifier: Apache-2.0
 *
 * config_intake.c - `intake:` of stint.yaml: jobs that are announced by somebody else's queue.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/config_keys.h"

/* The URL itself is checked in full when the worker opens it: here only what it is for. */
static stint_code read_rq(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    static const char *const schemes[] = {
        "redis://", "rediss://", "redis+unix://", "redis-socket://", "redis-sentinel://", "rediss-sentinel://", NULL};
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    for (size_t i = 0; schemes[i]; i++)
        if (strncmp(text, schemes[i], strlen(schemes[i])) == 0)
            return st_conf_text(c, v, k, field);
    if (strncmp(text, "redis-cluster://", 16) == 0 || strncmp(text, "rediss-cluster://", 17) == 0) {
        st_yaml_fail(c->err, c->file, v, "rq: RQ's keys do not fit a Redis Cluster");
        return st_conf_remedy(c, "use a single server or Sentinel: redis://HOST:6379/0");
    }
    st_yaml_fail(c->err, c->file, v, "rq: not the URL of a Redis server");
    return st_conf_remedy(c, "write rq: redis://HOST:6379/0 (also rediss://, redis+unix:///PATH)");
}

static bool is_among(char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

static stint_code read_names(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    char ***names = field;
    char **list;
    stint_code rc = st_conf_strings(c, v, k->name, st_queue_check, &list);

    if (rc)
        return rc;
    if (!list[0]) {
        st_conf_strings_free(list);
        st_yaml_fail(c->err, c->file, v, "queues is empty");
        return st_conf_remedy(c, "name RQ's queues: queues: [default]");
    }
    for (size_t i = 1; list[i]; i++) {
        if (is_among(list, i, list[i])) {
            st_yaml_fail(c->err, c->file, v, "queues: '%.60s' is here for the second time", list[i]);
            st_conf_strings_free(list);
            return st_conf_remedy(c, "name each queue once");
        }
    }
    st_conf_strings_free(*names);
    *names = list;
    return STINT_OK;
}

/* A dotted path would never match: what is compared is the end of it. */
static stint_code read_function(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    const char *text = st_conf_scalar(c, v, k->name);

    if (!text)
        return STINT_EINVAL;
    if (strlen(text) > 200) {
        st_yaml_fail(c->err, c->file, v, "function: the name is too long");
        return st_conf_remedy(c, "name the function as the producers do, or its last part: execute_run");
    }
    return st_conf_text(c, v, k, field);
}

#define AT(member) offsetof(struct st_intake_conf, member)

static const struct st_conf_key intake_keys[] = {
    {"rq", read_rq, AT(rq), 0, 0},
    {"queues", read_names, AT(queues), 0, 0},
    {"function", read_function, AT(function), 0, 0},
    {"grace", st_conf_duration, AT(grace_us), ST_SEC, ST_DAY},
    {NULL, NULL, 0, 0, 0},
};

stint_code st_conf_intake(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field)
{
    struct st_intake_conf *in = field;
    stint_code rc = st_conf_map(c, v, k->name, intake_keys, in);

    if (rc)
        return rc;
    if (!in->rq) {
        st_yaml_fail(c->err, c->file, v, "intake has no `rq`");
        return st_conf_remedy(c, "add rq: redis://HOST:6379/0, or take intake out");
    }
    if (!in->queues && !(in->queues = calloc(2, sizeof(*in->queues))))
        return st_conf_nomem(c);
    if (!in->queues[0] && !(in->queues[0] = strdup("default")))
        return st_conf_nomem(c);
    if (!in->function && !(in->function = strdup("execute_run")))
        return st_conf_nomem(c);
    return STINT_OK;
}
