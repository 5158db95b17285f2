/* SPDX-License-Identifier: Apache-2.0
 *
 * maintain.h - rescue lost jobs, keep the workers table true, lead.
 */
#ifndef ST_MAINTAIN_MAINTAIN_H
#define ST_MAINTAIN_MAINTAIN_H

#include <stdatomic.h>

#include "claim/courier.h"

/* What the loop tells about itself; written by the loop, read by the thread. */
struct st_vitals {
    atomic_int running;
    atomic_bool quiet;
};

struct st_maintain_options {
    struct st_worker_info self; /* id, name, slots, queues, types...; host, pid and times are filled in */
    int64_t lease_us;           /* sets the pace of reaping */
    struct st_retention keep;
    const struct st_vitals *vitals;
    const struct st_observer *observer; /* stays the caller's */
};

/* Fills what a worker's row says of its process: host, boot, pid. */
void st_worker_describe(struct st_worker_info *w);

struct st_maintainer;

stint_code st_maintainer_new(const struct st_opener *opener, const struct st_maintain_options *opt, uv_async_t *wake,
                             struct st_maintainer **out, stint_error *err);
/* What people are told: healthy, or why not (note, which may be NULL). */
void st_maintainer_health(struct st_maintainer *m, bool healthy, const char *note);
/* Beat now: something people look at has changed. */
void st_maintainer_nudge(struct st_maintainer *m);
/* HUP: other queues, types, slots or retention. */
void st_maintainer_configure(struct st_maintainer *m, const struct st_maintain_options *opt);
/* News since the last call. */
struct st_maintain_news {
    bool rescued; /* jobs have come back to the queue */
    bool ousted;  /* another process has our worker id: we were silent for too long */
};
struct st_maintain_news st_maintainer_take(struct st_maintainer *m);
/* Gives up leadership, removes the worker's row (trying for at most deadline_us), stops and joins. */
void st_maintainer_free(struct st_maintainer *m, int64_t deadline_us);

/* A worker whose last beat is older than this is taken for dead by people and by the leader. */
#define ST_WORKER_BEAT  (10 * ST_SEC)
#define ST_WORKER_STALE ST_WORKER_SILENT_US
#define ST_LEADER_TERM  (30 * ST_SEC)

#endif
