/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - what a worker and its commands are configured with: stint.yaml, flags and
 * environment, resolved.
 */
#ifndef ST_WORKER_SETTINGS_H
#define ST_WORKER_SETTINGS_H

#include "execute/execute.h"
#include "store/store.h"

/* A handler that comes with stint and needs no program. */
enum st_builtin {
    ST_BUILTIN_NONE,
    ST_BUILTIN_MOCK, /* sleeps, and returns figures */
};

struct st_type_conf {
    char *pattern;           /* NAME or PREFIX* */
    int line;                /* in stint.yaml, for messages */
    enum st_builtin builtin; /* then command is not used */
    struct st_command command;
    struct st_policy policy;    /* the type's values over the defaults */
    int64_t lease_us, renew_us; /* 0 = the worker's */
};

#define ST_WEIGHT_MAX 1000000

struct st_queue_weight {
    char *name;
    int weight; /* 0 in a strict list */
};

/* A parent queue that picks the handler, and its subs, highest priority first. */
struct st_parent_conf {
    char *name;
    char *type; /* handler for every job of this parent, or NULL */
    struct st_queue_weight *subs;
    size_t n_subs;
};

/* Jobs that an RQ queue announces: their ids come from there, the jobs themselves are in the store. */
struct st_intake_conf {
    char *rq;         /* the URL; NULL = there is no intake */
    char **queues;    /* NULL-terminated; queues of the same names in the store are claimed from only after grace */
    char *function;   /* what the messages call, or its last part */
    int64_t grace_us; /* 30 s */
};

struct st_settings {
    char *path;   /* the file read, or NULL */
    char *store;  /* `store:` of the file, or NULL */
    char *signal; /* `signal:` of the file or STINT_SIGNAL, or NULL */

    char *worker_id;   /* NULL = made up */
    char *worker_name; /* --name, or NULL */
    int slots;         /* 10 */
    struct st_queue_weight *queues;
    size_t n_queues; /* 0 = all */
    bool weighted;
    char **only_types; /* worker.types / --types: NULL-terminated patterns, or NULL = every configured one */
    int64_t lease_us, renew_us, poll_us, shutdown_us; /* 60 s, 20 s, 5 s, 30 s */
    int claim_batch;                                  /* 0 = chosen by the worker */
    char *results_dir; /* NULL = "stint-results" beside the store file or in the working directory */
    char *logs_dir;    /* NULL = none */
    bool notify;       /* true */
    struct st_limits limits;
    struct st_retention keep; /* 7d, 90d, 7d */
    bool runqy;
    struct st_parent_conf *parents;
    size_t n_parents;
    struct st_intake_conf intake;
    struct st_type_conf *types;
    size_t n_types;
};

void st_settings_init(struct st_settings *s); /* the defaults */
void st_settings_clear(struct st_settings *s);

/* "a,b" strictly in order, or "a=3,b=1" by weight; in place of those that are there. */
stint_code st_settings_queues(struct st_settings *s, const char *text, stint_error *err);

/* Is this one of the queues that the intake announces? */
bool st_settings_announced(const struct st_settings *s, struct st_slice queue);

/* The type's configuration, the most specific pattern first; NULL = none. */
const struct st_type_conf *st_settings_type(const struct st_settings *s, struct st_slice type);
/* The same for a job: its parent queue may pick the handler. */
const struct st_type_conf *st_settings_handler(const struct st_settings *s, struct st_slice type,
                                               struct st_slice queue);

#endif
