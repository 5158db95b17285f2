/* SPDX-License-Identifier: Apache-2.0
 *
 * lease.h - keep claimed jobs ours for as long as they run.
 */
#ifndef ST_CLAIM_LEASE_H
#define ST_CLAIM_LEASE_H

#include "claim/courier.h"

/* When we ourselves stop believing in a lease, counted from before the request that got it. */
struct st_lease {
    int64_t renew_at_us; /* CLOCK_BOOTTIME, like the others */
    int64_t stop_at_us;  /* ask the attempt to stop */
    int64_t kill_at_us;  /* no more grace */
};

/* asked: CLOCK_BOOTTIME before the claim or renewal was sent.  renew_us 0 = a third of the lease.  grace_us: what the
 * attempt may take to stop; it is taken from the end of the lease, at most a third of it. */
struct st_lease st_lease_from(int64_t asked_us, int64_t lease_us, int64_t renew_us, int64_t grace_us);

/* One job in a beat; ids and values, no pointers. */
struct st_beat {
    char id[ST_ID_MAX + 1];
    int64_t fence;
    uint64_t ref;
    int64_t lease_us;
    int64_t started_boot_us; /* 0 = nothing to tell of its start */
    char *progress;          /* JSON to be told, or NULL; whoever has the beat frees it */
    stint_code verdict;      /* answer: OK, ELOST, EAGAIN: not renewed, ask again */
    enum st_abort lost;      /* ELOST: what became of the job */
    bool cancel;
};

void st_beats_free(struct st_beat *beats, size_t n);

/* The store says that a job is not ours any more: taken, already completed, or gone? */
enum st_abort st_lost_reason(struct st_store *s, const char *id);

struct st_lessor;

/* The thread that renews; alone with its store handle, so that nothing can starve it. */
stint_code st_lessor_new(const struct st_opener *opener, const char *worker_id, uv_async_t *wake,
                         struct st_lessor **out, stint_error *err);
/* Renew these (the array is taken over).  One beat at a time: false, and the array stays the caller's, while
 * one is under way. */
bool st_lessor_beat(struct st_lessor *l, struct st_beat *beats, size_t n);
/* Look for cancel requests (a cheap read); answered in flagged. */
void st_lessor_look(struct st_lessor *l);

struct st_lessor_news {
    struct st_beat *beats; /* the answer to a beat; st_beats_free() it */
    size_t n;
    stint_code code;                /* OK: the verdicts count */
    int64_t asked_us;               /* CLOCK_BOOTTIME before it was sent */
    char (*flagged)[ST_ID_MAX + 1]; /* free() it */
    size_t n_flagged;
};
void st_lessor_take(struct st_lessor *l, struct st_lessor_news *news);
void st_lessor_free(struct st_lessor *l); /* stops and joins */

#endif
