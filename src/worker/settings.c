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
    free(s->types);
    free(s->parents);
    weights_free(s->queues, s->n_queues);
    strings_free(s->only_types);
    free(s->path);
    free(s->store);
    free(s->worker_id);
    free(s->worker_name);
    free(s->results_dir);
    free(s->logs_dir);
    memset(s, 0, sizeof(*s));
}

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

const struct st_type_conf *st_settings_handler(const struct st_settings *s, struct st_slice type,
                                               struct st_slice queue)
{
    struct st_slice parent = st_queue_parent(queue);

    for (size_t i = 0; i < s->n_parents; i++) {
        const struct st_parent_conf *p = &s->parents[i];

        if (p->type && st_slice_is(parent, p->name))
            return st_settings_type(s, st_slice_cstr(p->type));
    }
    return st_settings_type(s, type);
}
