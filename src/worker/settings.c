/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.c - the settings' defaults, their end, and the search for a type's configuration.
 *
 * Everything the settings point to is theirs.  A type finds its configuration by the most specific
 * pattern: the exact name, else the longest prefix; whatever the order in the file.
 */
#include "worker/settings.h"

#include <stdlib.h>
#include <string.h>

void st_settings_init(struct st_settings *s)
{
    memset(s, 0, sizeof(*s));
    s->slots = 10;
    s->lease_us = 60 * ST_SEC;
    s->renew_us = 20 * ST_SEC;
    s->poll_us = 5 * ST_SEC;
    s->shutdown_us = 30 * ST_SEC;
    s->notify = true;
    s->limits = st_limits_default;
    s->intake.grace_us = 30 * ST_SEC;
    s->keep.succeeded_us = 7 * ST_DAY;
    s->keep.failed_us = 90 * ST_DAY;
    s->keep.cancelled_us = 7 * ST_DAY;
}

static void strings_free(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

static void weights_free(struct st_queue_weight *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(list[i].name);
    free(list);
}

static void type_clear(struct st_type_conf *t)
{
    free(t->pattern);
    strings_free(t->command.argv);
    free(t->command.cwd);
    free(t->command.name);
    strings_free(t->command.env);
    strings_free(t->command.inherit_env);
}

static void parent_clear(struct st_parent_conf *p)
{
    free(p->name);
    free(p->type);
    weights_free(p->subs, p->n_subs);
}

void st_settings_clear(struct st_settings *s)
{
    for (size_t i = 0; i < s->n_types; i++)
        type_clear(&s->types[i]);
    for (size_t i = 0; i < s->n_parents; i++)
        parent_clear(&s->parents[i]);
    free(s->intake.rq);
    free(s->intake.function);
    strings_free(s->intake.queues);
    free(s->types);
    free(s->parents);
    weights_free(s->queues, s->n_queues);
    strings_free(s->only_types);
    free(s->path);
    free(s->store);
    free(s->signal);
    free(s->worker_id);
    free(s->worker_name);
    free(s->results_dir);
    free(s->logs_dir);
    memset(s, 0, sizeof(*s));
}

/* ---- queues as people write them ----------------------------------------------------------- */

static bool has_queue(const struct st_queue_weight *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return true;
    return false;
}

static size_t count_commas(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += *text == ',';
    return n;
}

/* One "name" or "name=weight" of a list. */
static stint_code one_queue(struct st_slice word, struct st_queue_weight *list, size_t n, bool *weighted,
                            stint_error *err)
{
    const char *eq = word.len ? memchr(word.p, '=', word.len) : NULL;
    struct st_slice name = eq ? ST_SLICE(word.p, (size_t)(eq - word.p)) : word;
    int64_t weight = 0;
    stint_code rc = st_queue_check(name, err);

    if (rc)
        return rc;
    if (n > 0 && *weighted != !!eq)
        return st_fail(err, STINT_EINVAL, "either every queue has a weight (a=3,b=1) or none has");
    *weighted = eq;
    if (eq &&
        (!st_parse_i64(ST_SLICE(eq + 1, word.len - name.len - 1), &weight) || weight < 1 || weight > ST_WEIGHT_MAX))
        return st_fail(err, STINT_EINVAL, "the weight of '%.*s' is not a number between 1 and %d", (int)name.len,
                       name.p, ST_WEIGHT_MAX);
    list[n].weight = (int)weight;
    list[n].name = st_slice_dup(name);
    if (!list[n].name)
        return st_fail(err, STINT_ENOMEM, "no memory for the queues");
    if (has_queue(list, n, list[n].name)) {
        free(list[n].name);
        return st_fail(err, STINT_EINVAL, "the queue '%.*s' is named twice", (int)name.len, name.p);
    }
    return STINT_OK;
}

stint_code st_settings_queues(struct st_settings *s, const char *text, stint_error *err)
{
    struct st_queue_weight *list = calloc(count_commas(text) + 1, sizeof(*list));
    bool weighted = false;
    size_t n = 0;

    if (!list)
        return st_fail(err, STINT_ENOMEM, "no memory for the queues");
    for (;;) {
        size_t len = strcspn(text, ",");
        stint_code rc = one_queue(ST_SLICE(text, len), list, n, &weighted, err);

        if (rc) {
            weights_free(list, n);
            return rc;
        }
        n++;
        if (!text[len])
            break;
        text += len + 1;
    }
    weights_free(s->queues, s->n_queues);
    s->queues = list;
    s->n_queues = n;
    s->weighted = weighted;
    return STINT_OK;
}

bool st_settings_announced(const struct st_settings *s, struct st_slice queue)
{
    for (char **q = s->intake.rq ? s->intake.queues : NULL; q && *q; q++)
        if (st_queue_covers(st_slice_cstr(*q), queue))
            return true;
    return false;
}

/* ---- types ------------------------------------------------------------------------------------ */

const struct st_type_conf *st_settings_type(const struct st_settings *s, struct st_slice type)
{
    const struct st_type_conf *best = NULL;
    int best_fit = 0;

    for (size_t i = 0; i < s->n_types; i++) {
        int fit = st_pattern_match(st_slice_cstr(s->types[i].pattern), type);

        if (fit > best_fit) {
            best = &s->types[i];
            best_fit = fit;
        }
    }
    return best;
}

const struct st_type_conf *st_settings_handler(const struct st_settings *s, struct st_slice type, struct st_slice queue)
{
    struct st_slice parent = st_queue_parent(queue);

    for (size_t i = 0; i < s->n_parents; i++) {
        const struct st_parent_conf *p = &s->parents[i];

        if (p->type && st_slice_is(parent, p->name))
            return st_settings_type(s, st_slice_cstr(p->type));
    }
    return st_settings_type(s, type);
}
