/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_int.h - what the files of worker/ share.  Everything here belongs to the loop thread.
 */
#ifndef ST_WORKER_WORKER_INT_H
#define ST_WORKER_WORKER_INT_H

#include "base/log.h"
#include "base/thread.h"
#include "claim/hint.h"
#include "claim/lease.h"
#include "intake/intake.h"
#include "maintain/maintain.h"
#include "worker/worker.h"

/*
 * A job we hold.
 *
 *   QUEUED --slot free--> RUNNING --executor is done--> OVER --> courier
 *      `-- cancelled, lost, released before it began ---^
 *
 * In-process attempts are RUNNING as soon as they are in the pool, which has one thread per slot; they begin when
 * a thread takes them.
 */
enum held_state { HELD_QUEUED, HELD_RUNNING, HELD_OVER };

struct held {
    struct st_done done; /* first: it goes on to the courier as that */
    struct st_worker *w;
    enum held_state state;
    struct held *prev, *next; /* all held jobs, oldest first */
    struct held *hash_next;
    struct st_pool_item item; /* in-process attempts */
    struct st_run *run;       /* command attempts */
    int64_t asked_us;         /* CLOCK_BOOTTIME before the request that got the lease we have */
    struct st_lease lease;
    int64_t renew_us, grace_us;
    int64_t queued_us;       /* CLOCK_BOOTTIME when it came */
    bool start_told;         /* the store knows that it runs */
    bool beating;            /* is part of a beat under way */
    uint64_t progress_print; /* of what its child last said */
    enum st_abort stopping;
};

/*
 *   OPENING -> WORKING -> DRAINING -> FLUSHING -> CLOSING
 *                            |  claims nothing; what runs may end
 *                                         |  nothing runs; the courier writes what it has
 *                                                      |  threads end, handles close
 */
enum phase { OPENING, WORKING, DRAINING, FLUSHING, CLOSING };

#define HELD_BUCKETS 1024

/* What is asked for.  Without an intake there is only main. */
struct plans {
    struct st_plan *main; /* at any time; the late ones' where there is nothing else */
    struct st_plan *late; /* the announced queues, after the grace; NULL = none */
    struct st_plan *all;  /* both, for those who look */
    bool only_late;
};

struct st_worker {
    struct st_worker_options opt;
    char id[ST_ID_MAX + 1];
    const struct st_settings *settings;
    struct st_settings *own_settings; /* after a reload */
    struct plans plans;
    struct st_opener opener;

    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t poll;     /* when to ask again by ourselves */
    uv_timer_t tick;     /* leases, while anything is held */
    uv_timer_t deadline; /* of the graceful stop */
    uv_timer_t nudge;    /* of the pool, while it has items */
    uv_signal_t signals[4];
    uv_poll_t stop_poll; /* of opt.stop_fd */
    atomic_int stops;    /* how often we were told to stop */
    int stops_seen;
    bool in_advance, again;

    struct st_courier *courier;
    struct st_lessor *lessor;
    struct st_hinter *hinter;
    struct st_maintainer *maintainer;
    struct st_intake *intake; /* NULL = none */
    struct st_exec *exec;
    struct st_pool *pool;
    struct st_vitals vitals;
    struct st_worker_info row; /* what it registers as; not changed after the start */
    struct st_observer observer;
    int told_running; /* what the workers table was last told */
    int64_t told_us;
    bool renew_all;    /* some of what we hold may not be ours: ask */
    int64_t looked_us; /* CLOCK_BOOTTIME of the last look for cancelled jobs that nobody told us of */

    enum phase phase;
    bool begun; /* it was WORKING once */
    bool quiet;

    /* held jobs */
    struct held *first, *last;
    struct held *buckets[HELD_BUCKETS];
    struct held *next_queued; /* the oldest that waits for a slot */
    size_t n_held, n_queued, n_running;

    /* outcomes on their way to the courier */
    struct st_done *out_first, *out_last;
    size_t n_out, in_hand;

    /* attempts on their way to the pool */
    struct st_pool_item *push_first, *push_last;
    size_t n_push;
    size_t n_pooled; /* in the pool, waiting or running */

    /* types: parallel to settings->types, and to the plan's rules */
    struct type_state *types;
    int *rule_types; /* index of the type, -1 = in-process */
    int *rooms;      /* what the claim under way may take of each */
    bool resident;   /* some type has resident children */
    bool lines;      /* some type's children speak in lines: they may tell of progress */

    /* feeding */
    bool capped;        /* the last claim took all there was room for: ask again when a place is free */
    bool asking;        /* a claim is under way */
    bool answered;      /* the courier waits for what we say to its answer */
    size_t n_asked;     /* how many slots it may fill */
    int64_t asked_us;   /* monotonic; where others were claiming, since the first time */
    int64_t late_at_us; /* CLOCK_BOOTTIME: when to ask for late ones */
    unsigned turns;     /* whose turn it is to have a single free slot */
    bool disowning;
    bool doubt;                  /* the store may believe that we hold what we do not know of: disown */
    int64_t sure_us;             /* CLOCK_BOOTTIME of the last disown */
    struct st_tries start_tries; /* attempts that could not be started */
    bool dry;                    /* the last claim found less than it asked for */
    bool hinted;                 /* that claim was made because of a hint */
    bool relook;                 /* there was a hint meanwhile: ask once more */
    bool recheck;                /* jobs that it brings may have been asked to stop meanwhile */
    int n_polls;                 /* since there was work */
    struct st_tries tries;
    struct st_tries crowd; /* claims in a row that others were in the way of */
    double rate;           /* attempts ended per second, smoothed */
    double trip_us;        /* what a claim takes, smoothed */
    int64_t ended, ended_at_reply, reply_us;
    int64_t finish_seq, ask_seq, empty_seq; /* once: was the empty claim asked after the last outcome was written? */

    struct st_tally tally;
    stint_code result;
    stint_error error;
};

/* held.c */
struct held *held_new(struct st_worker *w, struct st_job *job);
struct held *held_find(struct st_worker *w, const char *id, int64_t fence); /* fence 0 = any */
void held_over(struct held *h);                                             /* out of the table, into the outbox */
void held_forget(struct held *h);           /* out of the table, freed: it is not ours any more */
void held_began(struct held *h);            /* QUEUED -> RUNNING */
int64_t held_started(const struct held *h); /* CLOCK_BOOTTIME when its attempt began; 0 = not yet */

/* slots.c */
void slots_fill(struct st_worker *w);
void slots_collect(struct st_worker *w); /* what the pool has done */
void slots_abort(struct held *h, enum st_abort why, bool now);
void slots_release_queued(struct st_worker *w, int64_t older_than_us);
void slots_put_off(struct held *h); /* a waiting one is given back: it cannot be run here for a while */

/* feed.c */
void feed(struct st_worker *w);
void feed_on_news(struct st_worker *w, struct st_courier_news *news);
void feed_wet(struct st_worker *w);              /* there may be work: ask */
void feed_hold(struct st_worker *w, int64_t us); /* ask for nothing for a while */
void feed_on_hint(struct st_worker *w);
bool feed_hears(struct st_worker *w);                            /* somebody tells us of work */
struct held *feed_take(struct st_worker *w, struct st_job *job); /* NULL = no memory: it is freed, and in doubt */

/* types.c */
stint_code types_init(struct st_worker *w, stint_error *err); /* after settings and plan are set */
void types_clear(struct st_worker *w);
void types_on_end(struct st_worker *w, const struct st_job *job, const struct st_ran *ran);
void types_on_health(void *worker, const char *name, bool healthy, const char *note);
bool types_can_begin(struct st_worker *w, const struct st_type_conf *conf);
bool types_down(struct st_worker *w, const struct st_job *job); /* quarantined or broken */
bool types_make_room(struct st_worker *w, size_t ahead);        /* false: nothing can be asked for */
bool types_used_up(struct st_worker *w, struct st_job *const *jobs, size_t n);

/* announce.c */
stint_code plans_make(struct st_worker *w, const struct st_settings *s, struct plans *out, stint_error *err);
void plans_clear(struct plans *p);
stint_code announce_begin(struct st_worker *w, stint_error *err);
void announce_hear(struct st_worker *w);
bool announce_same(const struct st_settings *a, const struct st_settings *b); /* is it the same intake? */
void announce_feed(struct st_worker *w);
size_t announce_share(struct st_worker *w, size_t n_free);

/* beat.c */
void beat_start(struct st_worker *w);
void beat_on_news(struct st_worker *w, struct st_lessor_news *news);
void beat_all(struct st_worker *w); /* renew everything now: it tells what is no longer ours */

/* stop.c */
void stop_step(struct st_worker *w);
void stop_on_deadline(uv_timer_t *t);

/* worker.c */
void worker_advance(struct st_worker *w);
void worker_send_out(struct st_worker *w);
void worker_hear_courier(struct st_worker *w);

#endif
