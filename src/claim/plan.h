/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - what a worker asks the store for: which queues in which order, which types with
 * which policies.  Made from the settings; never changed afterwards, so that two threads may read it.
 */
#ifndef ST_CLAIM_PLAN_H
#define ST_CLAIM_PLAN_H

#include <limits.h>

#include "store/store.h"
#include "worker/settings.h"

struct st_plan;

/* A type served by a function in this process. */
struct st_plan_handler {
    const char *pattern;
    struct st_policy policy;
    int64_t lease_us; /* 0 = the worker's */
};

/* settings are copied.  EINVAL when there is nothing the worker could run. */
stint_code st_plan_new(const struct st_settings *s, const struct st_plan_handler *handlers, size_t n_handlers,
                       struct st_plan **out, stint_error *err);
struct st_plan *st_plan_ref(struct st_plan *p);
void st_plan_unref(struct st_plan *p);

/* The rules, in the plan's order: what a claim may take. */
const struct st_type_rule *st_plan_rules(const struct st_plan *p, size_t *n);
/* The next request takes at most so many by rule i: 0 = none, ST_ROOM_ANY = as many as there are.  Any thread. */
#define ST_ROOM_ANY INT_MAX
void st_plan_set_room(struct st_plan *p, size_t i, int room);

/* The queues it names, in no order that matters; none = all. */
const struct st_slice *st_plan_queues(const struct st_plan *p, size_t *n);

/* Fills queues, types and lease of *req with views into the plan.  With weights the order of the queues is drawn
 * anew into the plan's scratch space: one thread only.  false: no rule has room, there is nothing to ask for. */
bool st_plan_request(struct st_plan *p, struct st_claim_req *req);

/* The names as JSON arrays, for the workers table. */
const char *st_plan_queues_json(const struct st_plan *p);
/* Of the same queues in the same order, with blanks between them; "" = a strict list, or no room. */
void st_plan_weights(const struct st_plan *p, char *out, size_t size);
const char *st_plan_types_json(const struct st_plan *p);

#endif
