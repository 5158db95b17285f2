/* SPDX-License-Identifier: Apache-2.0
 *
 * types.c - which types can be run right now, and how many more of each.
 *
 *     FINE --killed again and again--> QUARANTINED --a while--> on probation --success--> FINE
 *     FINE --its children cannot be kept up (the executor says so)--> BROKEN --they can again--> FINE
 *
 * A type that is not FINE is not asked for: its jobs stay for other workers, and people are told why.
 *
 * Thread: loop.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/down.h"
#include "worker/worker_int.h"

#define KILLS_MAX  5             /* in a row */
#define KILLS_SPAN (10 * ST_MIN) /* within this */
#define QUARANTINE (10 * ST_MIN)

struct type_state {
    int kills;
    int64_t first_kill_us;        /* CLOCK_BOOTTIME */
    int64_t quarantined_until_us; /* 0 = it is not */
    bool broken;
    char note[160];
};

/* ---- from rules to types ----------------------------------------------------------- */

static int index_of(const struct st_worker *w, const struct st_type_conf *conf)
{
    return conf ? (int)(conf - w->settings->types) : -1;
}

static int rule_type(const struct st_worker *w, const struct st_type_rule *rule)
{
    for (size_t i = 0; i < w->opt.n_handlers; i++) {
        if (st_slice_is(rule->pattern, w->opt.handlers[i].pattern) && !rule->queue.p)
            return -1;
    }
    if (rule->queue.p)
        return index_of(w, st_settings_handler(w->settings, rule->pattern, rule->queue));
    for (size_t i = 0; i < w->settings->n_types; i++) {
        if (st_slice_is(rule->pattern, w->settings->types[i].pattern))
            return (int)i;
    }
    return index_of(w, st_settings_type(w->settings, rule->pattern));
}

stint_code types_init(struct st_worker *w, stint_error *err)
{
    size_t n_rules;
    const struct st_type_rule *rules = st_plan_rules(w->plans.main, &n_rules);

    types_clear(w);
    w->types = calloc(w->settings->n_types + 1, sizeof(*w->types));
    w->rule_types = calloc(n_rules + 1, sizeof(*w->rule_types));
    w->rooms = calloc(w->settings->n_types + 1, sizeof(*w->rooms));
    if (!w->types || !w->rule_types || !w->rooms)
        return st_fail(err, STINT_ENOMEM, "no memory for %zu types", w->settings->n_types);
    for (size_t i = 0; i < n_rules; i++)
        w->rule_types[i] = rule_type(w, &rules[i]);
    w->resident = w->lines = false;
    for (size_t i = 0; i < w->settings->n_types; i++) {
        w->resident = w->resident || w->settings->types[i].command.mode == ST_MODE_RESIDENT;
        w->lines = w->lines || w->settings->types[i].command.mode != ST_MODE_ONESHOT;
    }
    return STINT_OK;
}

void types_clear(struct st_worker *w)
{
    free(w->types);
    free(w->rule_types);
    free(w->rooms);
    w->types = NULL;
    w->rule_types = NULL;
    w->rooms = NULL;
}

/* ---- health ------------------------------------------------------------------------- */

static bool fine(const struct type_state *t)
{
    return !t->broken && !t->quarantined_until_us;
}

/* The worker's row names every type that is not fine. */
static void tell_health(struct st_worker *w)
{
    struct st_down *down = calloc(w->settings->n_types + 1, sizeof(*down));
    char note[sizeof(w->row.note)] = "some types cannot be run";
    size_t n = 0, bad = 0;

    for (size_t i = 0; i < w->settings->n_types; i++) {
        if (fine(&w->types[i]))
            continue;
        bad++;
        if (down)
            down[n++] = (struct st_down){w->settings->types[i].pattern, w->types[i].note};
    }
    if (n)
        st_down_write(down, n, note, sizeof(note));
    if (w->maintainer)
        st_maintainer_health(w->maintainer, !bad, bad ? note : NULL);
    free(down);
}

static void quarantine(struct st_worker *w, size_t i, enum st_kind kind, int64_t now)
{
    struct type_state *t = &w->types[i];
    const char *pattern = w->settings->types[i].pattern;

    t->quarantined_until_us = now + QUARANTINE;
    snprintf(t->note, sizeof(t->note), "quarantined for 10m: %d attempts in a row ended %s", t->kills,
             st_kind_name(kind));
    st_log(ST_LOG_ERROR, "type.quarantined", ST_F("type", pattern), ST_FI("kills", t->kills),
           ST_F("kind", st_kind_name(kind)), ST_F("for", "10m"));
    tell_health(w);
}

static void lift(struct st_worker *w, size_t i)
{
    struct type_state *t = &w->types[i];

    t->quarantined_until_us = 0;
    t->kills = KILLS_MAX - 1; /* on probation: one more and it is back */
    t->first_kill_us = st_clock_boot_us();
    st_log(ST_LOG_INFO, "type.on_probation", ST_F("type", w->settings->types[i].pattern));
    tell_health(w);
}

static bool was_killed(const struct st_ran *r)
{
    return r->aborted == ST_ABORT_NOT && !r->ok &&
           (r->kind == ST_KIND_KILLED || r->kind == ST_KIND_OOM || r->kind == ST_KIND_CAPS);
}

void types_on_end(struct st_worker *w, const struct st_job *job, const struct st_ran *ran)
{
    int i = index_of(w, st_settings_handler(w->settings, st_slice_cstr(job->type), st_slice_cstr(job->queue)));
    int64_t now = st_clock_boot_us();
    struct type_state *t;

    if (i < 0)
        return;
    t = &w->types[i];
    if (!was_killed(ran)) {
        if (ran->aborted == ST_ABORT_NOT)
            t->kills = 0;
        return;
    }
    if (t->kills == 0 || now - t->first_kill_us > KILLS_SPAN) {
        t->kills = 0;
        t->first_kill_us = now;
    }
    if (++t->kills >= KILLS_MAX && !t->quarantined_until_us)
        quarantine(w, (size_t)i, ran->kind, now);
}

/* The executor speaks. */
void types_on_health(void *arg, const char *name, bool healthy, const char *note)
{
    struct st_worker *w = arg;

    for (size_t i = 0; i < w->settings->n_types; i++) {
        if (strcmp(w->settings->types[i].pattern, name) != 0)
            continue;
        w->types[i].broken = !healthy;
        if (!healthy || !w->types[i].quarantined_until_us)
            snprintf(w->types[i].note, sizeof(w->types[i].note), "%s", note ? note : "");
        st_log(healthy ? ST_LOG_INFO : ST_LOG_ERROR, healthy ? "type.healthy" : "type.unhealthy", ST_F("type", name),
               ST_F("note", note ? note : ""));
    }
    tell_health(w);
    feed_wet(w);
    worker_advance(w);
}

/* ---- room --------------------------------------------------------------------------- */

/* How many more of this type can begin right now. */
static int room_now(struct st_worker *w, size_t i)
{
    struct type_state *t = &w->types[i];

    if (t->quarantined_until_us && st_clock_boot_us() >= t->quarantined_until_us)
        lift(w, i);
    if (!fine(t))
        return 0;
    if (w->settings->types[i].command.mode != ST_MODE_RESIDENT)
        return ST_ROOM_ANY;
    return st_exec_room(w->exec, &w->settings->types[i].command);
}

bool types_can_begin(struct st_worker *w, const struct st_type_conf *conf)
{
    return room_now(w, (size_t)index_of(w, conf)) > 0;
}

bool types_down(struct st_worker *w, const struct st_job *job)
{
    int i = index_of(w, st_settings_handler(w->settings, st_slice_cstr(job->type), st_slice_cstr(job->queue)));

    return i >= 0 && room_now(w, (size_t)i) <= 0 && !fine(&w->types[i]);
}

/* Waiting jobs of resident types take room too. */
static void subtract_queued(struct st_worker *w)
{
    for (struct held *h = w->next_queued; h; h = h->next) {
        const struct st_job *job = h->done.job;
        int i = index_of(w, st_settings_handler(w->settings, st_slice_cstr(job->type), st_slice_cstr(job->queue)));

        if (h->state == HELD_QUEUED && i >= 0 && w->rooms[i] != ST_ROOM_ANY && w->rooms[i] > 0)
            w->rooms[i]--;
    }
}

bool types_make_room(struct st_worker *w, size_t ahead)
{
    size_t n_rules;
    bool any = false;

    st_plan_rules(w->plans.main, &n_rules);
    for (size_t i = 0; i < w->settings->n_types; i++) {
        w->rooms[i] = room_now(w, i);
        if (w->rooms[i] > 0 && w->rooms[i] != ST_ROOM_ANY)
            w->rooms[i] += (int)ahead;
    }
    if (w->resident)
        subtract_queued(w);
    for (size_t i = 0; i < n_rules; i++) {
        int room = w->rule_types[i] < 0 ? ST_ROOM_ANY : w->rooms[w->rule_types[i]];

        st_plan_set_room(w->plans.main, i, room);
        if (w->plans.late) /* the same rules in the same order */
            st_plan_set_room(w->plans.late, i, room);
        any = any || room > 0;
    }
    return any;
}

/* Did the answer use up the room of some type?  Then there may be more of it. */
bool types_used_up(struct st_worker *w, struct st_job *const *jobs, size_t n)
{
    if (!w->resident)
        return false;
    for (size_t k = 0; k < n; k++) {
        int i =
            index_of(w, st_settings_handler(w->settings, st_slice_cstr(jobs[k]->type), st_slice_cstr(jobs[k]->queue)));

        if (i >= 0 && w->rooms[i] != ST_ROOM_ANY && --w->rooms[i] == 0)
            return true;
    }
    return false;
}
