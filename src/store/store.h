/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h - what a store must do.
 *
 * One level: whole queue operations, each atomic, so that no caller ever needs a transaction, a
 * lock or an SQL string.  Everything that changes an attempt is fenced by (id, fence).
 *
 * For every operation:
 *  - it blocks, for at most s->timeout_ms;
 *  - a handle is used by one thread at a time (only st_store_interrupt may come from another);
 *  - now_us == 0 in a request means the store's own clock (tests pass a value);
 *  - on error nothing has changed, except after STINT_EUNKNOWN: then it may have, and every
 *    operation may be repeated safely to find out;
 *  - EAGAIN: busy or away, try again.  ESTORE: full, read-only, not ours, schema too new: an
 *    operator is needed.  EINVAL naming the store: this store cannot do that (see caps).
 */
#ifndef ST_STORE_STORE_H
#define ST_STORE_STORE_H

#include "job/job.h"

/* The only differences between stores that callers may see. */
enum {
    ST_CAP_PRIORITY = 1 << 0, /* a number per job orders a queue */
    ST_CAP_TYPE_FILTER =
        1 << 1, /* a claim can choose by type; without it what no rule covers is taken and put off, uncharged */
    ST_CAP_DUE_ORDER = 1 << 2,      /* equal priorities run in order of their due time */
    ST_CAP_UNIQUE_FOREVER = 1 << 3, /* a key can be held for ever */
    ST_CAP_BATCH_ATOMIC = 1 << 4,   /* n jobs are enqueued all or none, whatever their queues */
    ST_CAP_USER_TX = 1 << 5,        /* enqueue inside the caller's own transaction */
    ST_CAP_ATOMIC_HANDLER = 1 << 6, /* one transaction for a whole attempt: claim, handler's writes, outcome */
    ST_CAP_FENCE_FOREIGN = 1 << 7,  /* refuses stale writes of foreign programs too */
};
const char *st_cap_name(unsigned bit); /* "PRIORITY" */

struct st_store;

/* ---- claim ---------------------------------------------------------------------- */

/* What a worker does with a type.  The most specific pattern wins. */
struct st_type_rule {
    struct st_slice pattern; /* NAME or PREFIX* */
    struct st_slice queue;   /* only jobs of this queue (a parent means its subs); none = any */
    struct st_policy policy; /* written with the claim, so that anyone can reap it */
    int64_t lease_us;        /* 0 = the request's */
    size_t max;              /* take at most so many by this rule; 0 = no limit of its own */
};

/* The rule for a job of this queue and type: one that names a queue before one that does not, then the most
 * specific pattern.  NULL = none matches.  Stores use this, so that all decide alike. */
const struct st_type_rule *st_rule_find(const struct st_type_rule *rules, size_t n, struct st_slice queue,
                                        struct st_slice type);

struct st_claim_req {
    int64_t now_us;
    struct st_slice worker;
    const struct st_slice *queues; /* in order, first wins; a parent means its subs too */
    size_t n_queues;               /* 0 = all queues, as if they were one */
    const struct st_type_rule *types;
    size_t n_types; /* 0 = all types, default policy */
    int64_t lease_us;
    /* Not NULL: where others are claiming at this moment it may bring less than there is, and says so here: ask again soon. */
    bool *crowded;
    int64_t
        due_by_us; /* > 0: take only jobs that were due by then; a store may leave them claimed.  With ST_CAP_DUE_ORDER */
    size_t n;      /* take at most so many */
    size_t n_run; /* the first n_run become running at once, the others claimed */
};

/* Why acquire-by-id was refused. */
enum st_refusal {
    ST_REFUSED_NOT,
    ST_REFUSED_UNKNOWN,
    ST_REFUSED_NOT_DUE,
    ST_REFUSED_PAUSED,
    ST_REFUSED_EXHAUSTED, /* no attempt left in its budget */
    ST_REFUSED_HELD,
    ST_REFUSED_ENDED,
};
const char *st_refusal_name(enum st_refusal r); /* "not due", ... */

struct st_acquire {
    struct st_slice id;
    struct st_job *job;  /* out: NULL = refused, */
    enum st_refusal why; /* out: for this reason */
};

/* ---- while it runs ---------------------------------------------------------------- */

struct st_renew {
    struct st_slice id;
    int64_t fence;
    uint64_t ref;
    int64_t lease_us;         /* new expiry = store's now + lease_us */
    int64_t started_ago_us;   /* >= 0: it started so long ago, write that too (claimed -> running) */
    struct st_slice progress; /* JSON, or none */
    stint_code verdict;       /* out: OK or ELOST; EAGAIN: somebody else is at it this moment, its lease is as it was */
    bool cancel;              /* out: somebody asked for it to be cancelled */
};

enum st_outcome {
    ST_OUT_SUCCEEDED,
    ST_OUT_RETRY, /* pending again at now + delay_us */
    ST_OUT_FAILED,
    ST_OUT_CANCELLED,
    ST_OUT_RELEASED, /* pending again at now + delay_us, the attempt given back */
};
const char *st_outcome_name(enum st_outcome o);

/* Repeating a finish is safe: where this very outcome of (id, fence) is already written the verdict
 * is OK again.  Where the job is no longer held under this fence it is ELOST and nothing changes.
 * A cancel request turns RETRY and RELEASED into CANCELLED (kind cancelled). */
struct st_finish {
    struct st_slice id;
    int64_t fence;
    uint64_t ref;
    enum st_state held_as; /* a hint that saves the store a look: ST_CLAIMED or ST_RUNNING; 0 = unknown */
    enum st_outcome outcome;
    int64_t delay_us;
    int64_t started_ago_us; /* -1: never started */
    struct st_slice result; /* p NULL = none */
    struct st_slice result_ref;
    enum st_kind kind;
    struct st_slice message;
    int exit_code; /* -1 = none */
    int signal;
    int64_t max_rss_kb;
    struct st_slice log;      /* path */
    struct st_slice log_tail; /* last bytes of stderr, at most 16 KiB */
    stint_code verdict;       /* out: OK or ELOST; EAGAIN: somebody else is at it this moment, finish it again later */
    enum st_state state;      /* out, when OK: what became of the job */
};

/* The right to write about an attempt. */
struct st_hold {
    struct st_slice id;
    int64_t fence;
    uint64_t ref;
};

/* A transaction of the store that a handler writes in too.  conn is the engine's own: sqlite3 *. */
struct st_tx {
    struct st_store *store;
    void *conn;
};
typedef stint_code (*st_tx_fn)(void *arg, struct st_tx *tx, stint_error *err);

struct st_reaped {
    char id[ST_ID_MAX + 1];
    int64_t fence;
    char worker[ST_ID_MAX + 1]; /* who lost it */
    enum st_state from, to;
};

/* ---- looking and steering ---------------------------------------------------------- */

struct st_list_req {
    int64_t now_us;
    unsigned states;       /* bit 1 << enum st_shown; 0 = all */
    struct st_slice queue; /* a parent means its subs too */
    struct st_slice type;  /* NAME or PREFIX* */
    struct st_slice spec_hash;
    struct st_slice worker;
    struct st_slice key;
    int64_t ended_before_us; /* 0 = any */
    uint64_t after;          /* cursor of the last one seen; 0 = from the newest */
    size_t limit;
    bool with_payload; /* payload, meta and result are filled only then */
};

struct st_queue_info {
    char name[ST_NAME_MAX + 1];
    bool paused;
    int64_t counts[ST_SHOWN_N];
    int64_t oldest_due_us; /* due time of the job waiting longest; 0 = none is due */
};

struct st_worker_info {
    char id[ST_ID_MAX + 1];
    char name[ST_ID_MAX + 1];
    char host[256];
    char boot_id[64];
    int pid;
    uint64_t pid_start;
    int slots, running;
    char queues[1024]; /* JSON arrays of strings */
    char weights
        [256]; /* of the queues: "3 1 1"; "" = strictly in their order.  For stores whose tools show it; not in a list */
    char types[1024];
    bool healthy;
    bool quiet;     /* takes no new jobs */
    char note[240]; /* why it is not healthy */
    bool leader;    /* list only */
    int64_t epoch;
    int64_t started_us, last_beat_us;
};

/* A worker that has not beaten for so long has lost its id. */
#define ST_WORKER_SILENT_US (60 * ST_SEC)

struct st_retention {
    int64_t succeeded_us, failed_us, cancelled_us; /* 0 = keep for ever */
};

struct st_prune_req {
    int64_t now_us;
    struct st_retention keep;
    int64_t epoch; /* of the leader who asks; 0 = an operator.  A stale epoch: ELOST */
    size_t limit;
    bool dry_run; /* count only */
};

/* What was removed: the files that went with it are the caller's to unlink. */
struct st_pruned {
    size_t n;
    bool more;
    char **files; /* result files and logs */
    size_t n_files;
};
void st_pruned_clear(struct st_pruned *p);

struct st_lead_req {
    int64_t now_us;
    struct st_slice worker;
    int64_t term_us;
    bool release;
};
struct st_lead {
    bool leader;
    int64_t epoch; /* grows with every change of leader */
    int64_t until_us;
    char holder[ST_ID_MAX + 1];
};

struct st_schema {
    int have, want; /* versions; have 0 = nothing there yet */
    int compat;     /* programs that want at least this version can use it; 0 = those that want `have` */
};
/* Is it newer than this program can use? */
static inline bool st_schema_too_new(const struct st_schema *v)
{
    return v->have > v->want && (v->compat ? v->compat : v->have) > v->want;
}
enum st_schema_sql {
    ST_SCHEMA_SQL_UP,    /* all that bringing it up would run, roles too */
    ST_SCHEMA_SQL_ROLES, /* the roles, if they are missing; "" if not */
};

/* A finding of `doctor`. */
enum st_severity { ST_FINE, ST_WARNING, ST_BAD };
typedef void (*st_finding_fn)(void *arg, enum st_severity sev, const char *what, const char *remedy);
typedef void (*st_progress_fn)(void *arg, int64_t done, int64_t total);

struct st_store_about {
    char kind[16];       /* "sqlite" */
    char where[512];     /* path or address, no secrets */
    char durability[64]; /* "wal, synchronous=full" */
    char version[64];    /* of the engine */
};

/* What a wait may hear of. */
enum {
    ST_NEWS_WORK = 1 << 0,   /* there may be jobs to claim */
    ST_NEWS_CANCEL = 1 << 1, /* a job of this worker was asked to stop: see flagged */
    ST_NEWS_LOST = 1 << 2,   /* a job of this worker may have been taken from it: renew tells */
    ST_NEWS_LOOK = 1 << 3,   /* there were jobs already when it fell asleep: claim once; it sleeps on, for others */
    ST_NEWS_DEAF = 1 << 4,   /* its waits hear of nothing at present: look by yourself, from time to time */
};

struct st_store_ops {
    const char *name;
    unsigned caps;

    /* All n or none.  An id that is there already with the same type, queue and payload is answered
     * as the first time; with others it is EEXISTS.  A key that is held makes out[i] the holder, duplicate.
     * Two equal keys in one batch: the second is a duplicate of the first. */
    stint_code (*enqueue)(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                          struct st_enqueued *out, stint_error *err);

    /* The same inside a transaction that is open on conn (as in st_tx, or the caller's own).  With ST_CAP_USER_TX. */
    stint_code (*enqueue_tx)(struct st_store *s, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                             struct st_enqueued *out, stint_error *err);

    /* Order: queues as asked; within: priority desc, due asc, id asc.  Paused queues (or a paused parent) give nothing.
     * out has room for req->n; each job is one allocation, owned by the caller. */
    stint_code (*claim)(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                        stint_error *err);

    /* A finish and the next claim together, in one transaction where the store can.  NULL = the store does them one
     * after the other.  *finished tells how far it came when an error is returned: false = the finish
     * itself failed, true = the finish is done and the claim failed. */
    stint_code (*exchange)(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                           const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                           stint_error *err);

    /* By id: pending and due, or held with an expired lease (that attempt ends as lease_expired).
     * Refused: *out NULL, *why set, ESTATE (ENOTFOUND for unknown).  Types and queues of req do not
     * filter; its rules give the policy.  n and n_run are ignored: it runs at once. */
    stint_code (*acquire)(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                          enum st_refusal *why, stint_error *err);

    /* The same for several at once, each by itself; an id may be there twice.  OK: each has a job or a reason.  An error: so
     * have those that were dealt with, the others neither.  NULL = the store does them one after the other. */
    stint_code (*acquire_many)(struct st_store *s, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                               stint_error *err);

    stint_code (*renew)(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err);

    stint_code (*finish)(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err);

    /* Runs fn inside a transaction in which the job is held; ELOST, and fn is not called, if it is not.  Then writes
     * *fin, which fn has filled, as finish would (NULL = nothing), and commits.  Any error, fn's too, rolls all of it
     * back.  fn runs on this thread and holds the store's lock.  NULL = the store has no such transactions. */
    stint_code (*transact)(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                           struct st_finish *fin, stint_error *err);

    /* As transact without an outcome, but the transaction stays open on this handle: the next transact goes on in it and
     * ends it, whatever comes of it.  Nothing else may be asked of the handle in between but abandon, which rolls it
     * back.  With ST_CAP_ATOMIC_HANDLER. */
    stint_code (*transact_open)(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                                stint_error *err);
    void (*abandon)(struct st_store *s);

    /* Jobs held by other workers whose lease has expired, oldest first, at most max.  running: charged, retry with
     * its backoff or failed, kind lease_expired.  claimed: not charged, but from the 4th time in a row as if it had run.
     * A cancel request makes it cancelled. */
    stint_code (*reap)(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                       size_t *n_out, stint_error *err);

    /* After a claim that ended EUNKNOWN: gives back, uncharged, every job held by `worker` that is not among
     * known (ids).  Only the worker itself may ask. */
    stint_code (*disown)(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                         size_t n, size_t *n_given, stint_error *err);

    /* Ids of jobs held by worker that are asked to cancel; a cheap read. */
    stint_code (*flagged)(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                          size_t *n_out, stint_error *err);

    /* Per id a verdict: OK, ENOTFOUND, ESTATE (already ended).  asked[i] (may be NULL): it runs and was asked to stop. */
    stint_code (*cancel)(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts,
                         bool *asked, stint_error *err);
    /* failed or cancelled -> pending now, attempt 0, errors kept.  ESTATE otherwise, EEXISTS if another live job
     * holds its key. */
    stint_code (*retry)(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts,
                        stint_error *err);
    /* Removes ended jobs.  ESTATE if not ended. */
    stint_code (*discard)(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                          struct st_pruned *out, stint_error *err);

    stint_code (*pause)(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err);

    stint_code (*get)(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                      stint_error *err);
    /* Newest first.  *out is an array for free() after clearing each. */
    stint_code (*list)(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                       uint64_t *next, stint_error *err);
    /* Every queue that has or had jobs or is paused, by name. */
    stint_code (*queues)(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                         stint_error *err);
    stint_code (*next_due)(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err); /* 0 = none */

    stint_code (*prune)(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err);
    /* The leader's housekeeping inside the store, one short step of it: call it again after *again_us.  req as in prune (limit
     * and dry_run do not count); out: what went with it.  NULL = nothing to do. */
    stint_code (*upkeep)(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us,
                         stint_error *err);

    /* Inserts or refreshes w's row; last_beat becomes the store's now.  EEXISTS: the row belongs to another process (host,
     * boot id, pid, start) that has beaten within ST_WORKER_SILENT_US. */
    stint_code (*worker_beat)(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err);
    stint_code (*worker_list)(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err);
    /* Removes the row.  expire_leases (only when the process is known to be gone): its leases end now.  epoch as in
     * prune.  if_beat_us > 0: only while its last beat is still this one (ELOST otherwise). */
    stint_code (*worker_remove)(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                                int64_t epoch, int64_t if_beat_us, stint_error *err);

    stint_code (*lead)(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err);

    /* Sleeps until there may be work or news, the time has passed, or st_store_interrupt: a hint, never
     * a promise.  *woken: something changed. */
    stint_code (*wait)(struct st_store *s, int timeout_ms, bool *woken, stint_error *err);
    void (*interrupt)(struct st_store *s); /* any thread; also makes the next wait return at once */

    /* What the waits of this handle are for: what concerns this worker's own jobs, and with `work` also jobs to claim in
     * these queues (n 0 = all; a parent means its subs too).  May be told again, and should be: a worker that asks for
     * jobs anyway does not count as asleep.  NULL = this store's waits are for everything.
     * Without it such a store's waits hear of nothing, and come back now and then. */
    stint_code (*watch)(struct st_store *s, struct st_slice worker, const struct st_slice *queues, size_t n, bool work,
                        stint_error *err);
    /* What the last wait heard of, as ST_NEWS_ bits.  NULL = a wait that was woken may have heard of anything. */
    unsigned (*news)(struct st_store *s);

    /* Asked before a worker begins: ESTORE where jobs would be lost silently and nobody has said that they may.  What else may lose
     * them is said in the log.  NULL = there is nothing to say. */
    stint_code (*fit)(struct st_store *s, stint_error *err);
    stint_code (*schema)(struct st_store *s, bool up, struct st_schema *out, stint_error *err);
    /* Takes versions away, newest first, until it is at `to`; 0 = nothing is left, jobs included.  NULL = it cannot. */
    stint_code (*schema_down)(struct st_store *s, int to, struct st_schema *out, stint_error *err);
    /* The text for an operator with more rights; *sql is for free().  NULL = this store has none. */
    stint_code (*schema_sql)(struct st_store *s, enum st_schema_sql what, char **sql, stint_error *err);
    stint_code (*backup)(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err);
    stint_code (*check)(struct st_store *s, st_finding_fn found, void *arg, stint_error *err);
    void (*about)(struct st_store *s, struct st_store_about *out);
    int64_t (*now)(struct st_store *s); /* the store's clock, best known */

    void (*close)(struct st_store *s); /* accepts a half-opened store */
};

struct st_store {
    const struct st_store_ops *ops;
    int timeout_ms;
};

struct st_store_open {
    int timeout_ms;     /* 0 = 5000 */
    bool no_create;     /* a store that is not there: ESTORE instead of making one */
    bool no_migrate;    /* leave the schema as it is (for `migrate status`) */
    const char *signal; /* a Redis URL: wake-ups go through it (see signal.c); NULL = the store's own */
    bool runqy;         /* with what runqy's clients expect; only a Redis store can (see redis_runqy.c) */
};

/* What a store's URL looks like, for messages. */
#define ST_STORE_URLS "sqlite:PATH, postgres://USER@HOST/DATABASE or redis://HOST, for example sqlite:stint.db"
/* The kind of store a URL names ("sqlite"), or NULL. */
const char *st_store_kind(const char *url);

/* url: sqlite:PATH[?sync=full|normal].  Each call gives a handle of its own; handles on the same
 * file in one process share a writer. */
stint_code st_store_open(const char *url, const struct st_store_open *opt, struct st_store **out, stint_error *err);
stint_code st_store_sqlite_open(const char *path_and_query, const struct st_store_open *opt, struct st_store **out,
                                stint_error *err);
/* url: postgres://... as libpq takes it, with our own [&schema=NAME][&listen=URL][&notify=off].  Each handle has a
 * connection of its own, made when it is first needed. */
stint_code st_store_postgres_open(const char *url, const struct st_store_open *opt, struct st_store **out,
                                  stint_error *err);

/* url: see redis_conn.h, with our own [&notify=off][&runqy=1][&redis_storage=false][&may_lose=yes].  Each handle has a connection of its own. */
stint_code st_store_redis_open(const char *url, const struct st_store_open *opt, struct st_store **out,
                               stint_error *err);

/* For a program that owns its process, before the first store is opened: turns off what the engines count for
 * others.  A library inside somebody's program must not call it. */
void st_store_own_process(void);

/* Wrap a real store; closing the wrapper closes it. */
struct st_store *st_store_trace(struct st_store *real); /* logs each call: op, n, code, micros (debug) */

/* The same with wake-ups through Redis.  EINVAL: not a URL for that; then real is still the caller's. */
stint_code st_store_signal(struct st_store *real, const char *url, struct st_store **out, stint_error *err);
stint_code st_signal_url_check(const char *url, stint_error *err);

enum st_fault { ST_FAULT_BEFORE, ST_FAULT_AFTER }; /* EAGAIN, nothing done; EUNKNOWN, all done */
struct st_fault_plan {                             /* shared by several handles of one test; zero it first */
    int nth;                                       /* break the nth call that can fail (1 = first) */
    enum st_fault how;
    int seen; /* atomically counted */
    int fired;
    const char *op; /* which operation was broken */
};
struct st_store *st_store_faulty(struct st_store *real, struct st_fault_plan *plan);

/* Callers use these: they check arguments and call through ops. */
stint_code st_store_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err);
stint_code st_store_enqueue_tx(struct st_store *s, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                               struct st_enqueued *out, stint_error *err);
stint_code st_store_fit(struct st_store *s, stint_error *err);
stint_code st_store_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                          stint_error *err);
stint_code st_store_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                             const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                             stint_error *err);
stint_code st_store_acquire(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                            enum st_refusal *why, stint_error *err);
stint_code st_store_acquire_many(struct st_store *s, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                                 stint_error *err);
stint_code st_store_renew(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err);
stint_code st_store_finish(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err);
stint_code st_store_transact(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                             struct st_finish *fin, stint_error *err);
stint_code st_store_transact_open(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn,
                                  void *arg, stint_error *err);
void st_store_abandon(struct st_store *s);
stint_code st_store_reap(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                         size_t *n_out, stint_error *err);
stint_code st_store_disown(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                           size_t n, size_t *n_given, stint_error *err);
stint_code st_store_flagged(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                            size_t *n_out, stint_error *err);
stint_code st_store_cancel(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                           stint_code *verdicts, bool *asked, stint_error *err);
stint_code st_store_retry(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n,
                          stint_code *verdicts, stint_error *err);
stint_code st_store_discard(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                            struct st_pruned *out, stint_error *err);
stint_code st_store_pause(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err);
stint_code st_store_get(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                        stint_error *err);
stint_code st_store_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                         uint64_t *next, stint_error *err);
void st_job_info_list_free(struct st_job_info *list, size_t n);
stint_code st_store_queues(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                           stint_error *err);
stint_code st_store_next_due(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err);
stint_code st_store_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err);
stint_code st_store_upkeep(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us,
                           stint_error *err);
stint_code st_store_worker_beat(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err);
stint_code st_store_worker_list(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err);
stint_code st_store_worker_remove(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                                  int64_t epoch, int64_t if_beat_us, stint_error *err);
stint_code st_store_lead(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err);
stint_code st_store_wait(struct st_store *s, int timeout_ms, bool *woken, stint_error *err);
void st_store_interrupt(struct st_store *s);
stint_code st_store_watch(struct st_store *s, struct st_slice worker, const struct st_slice *queues, size_t n,
                          bool work, stint_error *err);
unsigned st_store_news(struct st_store *s);
stint_code st_store_schema(struct st_store *s, bool up, struct st_schema *out, stint_error *err);
stint_code st_store_schema_down(struct st_store *s, int to, struct st_schema *out, stint_error *err);
stint_code st_store_schema_sql(struct st_store *s, enum st_schema_sql what, char **sql, stint_error *err);
stint_code st_store_backup(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err);
stint_code st_store_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err);
void st_store_about(struct st_store *s, struct st_store_about *out);
int64_t st_store_now(struct st_store *s);
void st_store_close(struct st_store *s); /* NULL is fine */

#endif
