/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - which queues in which order, which types with which policies.
 *
 * A strict list is asked for as it stands.  A weighted one is drawn anew for every claim: the chance of a queue
 * to come first is its share of the weights, and so on down the list.  A parent that has configured
 * subs is asked for as sub, sub, ..., parent, the highest priority first.
 */
#include "claim/plan.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define JSON_MAX 1000 /* what st_worker_info has room for */

struct entry {
    char *name;
    double weight; /* 0 = strict */
    size_t group;  /* entries of one group are drawn together and keep their order */
};

struct st_plan {
    atomic_int refs;
    int64_t lease_us;
    struct entry *entries;
    size_t n_entries, n_groups;
    bool weighted;
    struct st_slice *names; /* of the entries */
    struct st_slice *order; /* scratch: what the request points to */
    bool *taken;            /* scratch: groups already drawn */
    struct st_type_rule *rules;
    size_t n_rules, cap_rules;
    atomic_int *rooms;          /* per rule */
    struct st_type_rule *asked; /* scratch: the rules with room */
    char *queues_json, *types_json;
};

static stint_code no_memory(stint_error *err)
{
    return st_fail(err, STINT_ENOMEM, "no memory for the claim plan");
}

/* ---- queues --------------------------------------------------------------------- */

static const struct st_parent_conf *find_parent(const struct st_settings *s, const char *name)
{
    for (size_t i = 0; i < s->n_parents; i++) {
        if (strcmp(s->parents[i].name, name) == 0)
            return &s->parents[i];
    }
    return NULL;
}

static bool add_entry(struct st_plan *p, const char *name, int weight)
{
    struct entry *e = realloc(p->entries, (p->n_entries + 1) * sizeof(*e));

    if (!e)
        return false;
    p->entries = e;
    e = &e[p->n_entries];
    e->name = strdup(name);
    e->weight = weight;
    e->group = p->n_groups;
    if (!e->name)
        return false;
    p->n_entries++;
    return true;
}

/* One queue as asked for; its configured subs come first. */
static bool add_group(struct st_plan *p, const struct st_settings *s, const char *name, int weight)
{
    const struct st_parent_conf *parent = find_parent(s, name);
    char sub[2 * ST_NAME_MAX + 2];

    for (size_t i = 0; parent && i < parent->n_subs; i++) {
        snprintf(sub, sizeof(sub), "%s.%s", name, parent->subs[i].name);
        if (!add_entry(p, sub, weight))
            return false;
    }
    if (!add_entry(p, name, weight))
        return false;
    p->n_groups++;
    return true;
}

static bool plan_queues(struct st_plan *p, const struct st_settings *s)
{
    p->weighted = s->weighted;
    for (size_t i = 0; i < s->n_queues; i++) {
        if (!add_group(p, s, s->queues[i].name, s->weighted ? s->queues[i].weight : 0))
            return false;
    }
    if (s->n_queues == 0 && s->n_parents > 0) {
        for (size_t i = 0; i < s->n_parents; i++) {
            if (!add_group(p, s, s->parents[i].name, 0))
                return false;
        }
        if (!add_group(p, s, ST_QUEUE_ANY, 0))
            return false;
    }
    p->order = calloc(p->n_entries + 1, sizeof(*p->order));
    p->taken = calloc(p->n_groups + 1, sizeof(*p->taken));
    p->names = calloc(p->n_entries + 1, sizeof(*p->names));
    for (size_t i = 0; p->names && i < p->n_entries; i++)
        p->names[i] = st_slice_cstr(p->entries[i].name);
    return p->order && p->taken && p->names;
}

/* ---- types ---------------------------------------------------------------------- */

/* Is the type among those asked for with --types? */
static bool wanted(const struct st_settings *s, const char *pattern)
{
    if (!s->only_types)
        return true;
    for (char **t = s->only_types; *t; t++) {
        if (st_pattern_match(st_slice_cstr(*t), st_slice_cstr(pattern)) > 0)
            return true;
    }
    return false;
}

static bool add_rule(struct st_plan *p, const char *queue, const char *pattern, const struct st_policy *policy,
                     int64_t lease_us)
{
    struct st_type_rule *r;

    if (p->n_rules == p->cap_rules) {
        p->cap_rules = p->cap_rules ? 2 * p->cap_rules : 8;
        r = realloc(p->rules, p->cap_rules * sizeof(*r));
        if (!r)
            return false;
        p->rules = r;
    }
    r = &p->rules[p->n_rules];
    memset(r, 0, sizeof(*r));
    r->pattern = st_slice_cstr(strdup(pattern));
    if (queue)
        r->queue = st_slice_cstr(strdup(queue));
    r->policy = *policy;
    r->lease_us = lease_us;
    p->n_rules++;
    return r->pattern.p && (!queue || r->queue.p);
}

/* --types mail with a configured "mail*" asks for mail alone, with the configured policy. */
static bool add_narrowed(struct st_plan *p, const struct st_settings *s, const struct st_type_conf *t)
{
    for (char **o = s->only_types; o && *o; o++) {
        if (st_pattern_match(st_slice_cstr(*o), st_slice_cstr(t->pattern)) > 0)
            continue; /* taken whole */
        if (st_settings_type(s, st_slice_cstr(*o)) == t && !add_rule(p, NULL, *o, &t->policy, t->lease_us))
            return false;
    }
    return true;
}

static bool plan_types(struct st_plan *p, const struct st_settings *s, const struct st_plan_handler *handlers,
                       size_t n_handlers)
{
    for (size_t i = 0; i < n_handlers; i++) {
        if (wanted(s, handlers[i].pattern) &&
            !add_rule(p, NULL, handlers[i].pattern, &handlers[i].policy, handlers[i].lease_us))
            return false;
    }
    for (size_t i = 0; i < s->n_types; i++) {
        const struct st_type_conf *t = &s->types[i];

        if (wanted(s, t->pattern)) {
            if (!add_rule(p, NULL, t->pattern, &t->policy, t->lease_us))
                return false;
        } else if (!add_narrowed(p, s, t)) {
            return false;
        }
    }
    for (size_t i = 0; i < s->n_parents; i++) {
        const struct st_parent_conf *q = &s->parents[i];
        const struct st_type_conf *t = q->type ? st_settings_type(s, st_slice_cstr(q->type)) : NULL;

        if (t && wanted(s, t->pattern) && !add_rule(p, q->name, "*", &t->policy, t->lease_us))
            return false;
    }
    return true;
}

static bool plan_rooms(struct st_plan *p)
{
    p->rooms = calloc(p->n_rules + 1, sizeof(*p->rooms));
    p->asked = calloc(p->n_rules + 1, sizeof(*p->asked));
    for (size_t i = 0; p->rooms && i < p->n_rules; i++)
        atomic_init(&p->rooms[i], ST_ROOM_ANY);
    return p->rooms && p->asked;
}

/* ---- the whole ------------------------------------------------------------------- */

/* As long as it fits into the workers table; then an ellipsis. */
static void put_name(struct st_jw *w, const struct st_buf *b, struct st_slice name, bool *full)
{
    if (*full)
        return;
    *full = b->len + 2 * name.len + 16 > JSON_MAX;
    st_jw_str(w, *full ? st_slice_cstr("...") : name);
}

static bool plan_json(struct st_plan *p)
{
    struct st_buf b;
    struct st_jw w;
    bool full = false;

    st_buf_init(&b, JSON_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '[');
    for (size_t i = 0; i < p->n_entries; i++)
        put_name(&w, &b, st_slice_cstr(p->entries[i].name), &full);
    st_jw_close(&w, ']');
    p->queues_json = st_buf_take(&b);
    full = false;
    st_jw_init(&w, &b);
    st_jw_open(&w, '[');
    for (size_t i = 0; i < p->n_rules; i++) {
        if (!p->rules[i].queue.p)
            put_name(&w, &b, p->rules[i].pattern, &full);
    }
    st_jw_close(&w, ']');
    p->types_json = st_buf_take(&b);
    st_buf_clear(&b);
    return p->queues_json && p->types_json;
}

stint_code st_plan_new(const struct st_settings *s, const struct st_plan_handler *handlers, size_t n_handlers,
                       struct st_plan **out, stint_error *err)
{
    struct st_plan *p = calloc(1, sizeof(*p));

    *out = NULL;
    if (!p)
        return no_memory(err);
    atomic_init(&p->refs, 1);
    p->lease_us = s->lease_us;
    if (!plan_queues(p, s) || !plan_types(p, s, handlers, n_handlers) || !plan_rooms(p) || !plan_json(p)) {
        st_plan_unref(p);
        return no_memory(err);
    }
    if (p->n_rules == 0) {
        st_plan_unref(p);
        st_fail(err, STINT_EINVAL, "there is no type this worker could run");
        st_err_remedy(err, s->only_types ? "--types names none of the types in the configuration"
                                         : "list them under `types:` in stint.yaml");
        return STINT_EINVAL;
    }
    *out = p;
    return STINT_OK;
}

struct st_plan *st_plan_ref(struct st_plan *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void st_plan_unref(struct st_plan *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    for (size_t i = 0; i < p->n_entries; i++)
        free(p->entries[i].name);
    for (size_t i = 0; i < p->n_rules; i++) {
        free((char *)p->rules[i].pattern.p);
        free((char *)p->rules[i].queue.p);
    }
    free(p->entries);
    free(p->names);
    free(p->order);
    free(p->taken);
    free(p->rooms);
    free(p->asked);
    free(p->rules);
    free(p->queues_json);
    free(p->types_json);
    free(p);
}

/* The group that comes next, drawn by weight from those not yet taken. */
static size_t draw_group(const struct st_plan *p, const bool *taken)
{
    double sum = 0, at;
    size_t last = 0;

    for (size_t i = 0; i < p->n_entries; i++) {
        bool head = i == 0 || p->entries[i].group != p->entries[i - 1].group;

        if (head && !taken[p->entries[i].group])
            sum += p->entries[i].weight;
    }
    at = st_random_unit() * sum;
    for (size_t i = 0; i < p->n_entries; i++) {
        bool head = i == 0 || p->entries[i].group != p->entries[i - 1].group;

        if (!head || taken[p->entries[i].group])
            continue;
        last = p->entries[i].group;
        at -= p->entries[i].weight;
        if (at < 0)
            break;
    }
    return last;
}

static void order_weighted(struct st_plan *p)
{
    bool *taken = p->taken;
    size_t n = 0;

    memset(taken, 0, p->n_groups * sizeof(*taken));
    for (size_t k = 0; k < p->n_groups; k++) {
        size_t g = draw_group(p, taken);

        taken[g] = true;
        for (size_t i = 0; i < p->n_entries; i++) {
            if (p->entries[i].group == g)
                p->order[n++] = st_slice_cstr(p->entries[i].name);
        }
    }
}

const struct st_slice *st_plan_queues(const struct st_plan *p, size_t *n)
{
    *n = p->n_entries;
    return p->names;
}

const struct st_type_rule *st_plan_rules(const struct st_plan *p, size_t *n)
{
    *n = p->n_rules;
    return p->rules;
}

void st_plan_set_room(struct st_plan *p, size_t i, int room)
{
    atomic_store(&p->rooms[i], room);
}

/* A rule without room is left out; its jobs are for somebody else. */
static size_t ask_with_room(struct st_plan *p)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n_rules; i++) {
        int room = atomic_load(&p->rooms[i]);

        if (room <= 0)
            continue;
        p->asked[n] = p->rules[i];
        p->asked[n].max = room == ST_ROOM_ANY ? 0 : (size_t)room;
        n++;
    }
    return n;
}

bool st_plan_request(struct st_plan *p, struct st_claim_req *req)
{
    if (p->weighted) {
        order_weighted(p);
    } else {
        for (size_t i = 0; i < p->n_entries; i++)
            p->order[i] = st_slice_cstr(p->entries[i].name);
    }
    req->queues = p->order;
    req->n_queues = p->n_entries;
    req->types = p->asked;
    req->n_types = ask_with_room(p);
    req->lease_us = p->lease_us;
    return req->n_types > 0;
}

const char *st_plan_queues_json(const struct st_plan *p)
{
    return p->queues_json;
}

void st_plan_weights(const struct st_plan *p, char *out, size_t size)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; p->weighted && i < p->n_entries && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%.0f", i ? " " : "", p->entries[i].weight);
    if (at >= size)
        out[0] = '\0';
}

const char *st_plan_types_json(const struct st_plan *p)
{
    return p->types_json;
}
