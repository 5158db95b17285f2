/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_int.h - what the files of the Redis store share; only they and their tests include it.
 *
 *     handle A ---- its own connections ----.
 *     handle B ---- its own connections ----+--> server: the scripts in lua/ do the work
 *
 * The layout is asynq's, key by key and byte by byte: a stock client, server or inspector works beside us.  What is
 * ours beside it begins with `stint`, and stock programs never look at it.
 *
 *     asynq:queues                      SET   every queue
 *     asynq:{Q}:t:ID                    HASH  msg (protobuf), state, pending_since (ns), result, unique_key, group; and
 * of ours: stint          the packed field, below stint_meta     JSON stint_key      the unique key as given stint_lock
 * the name of a window's lock (an `active` one is in unique_key, so that a stock server frees it) stint_ref result_ref
 *                                             stint_progress JSON
 *                                             stint_runs     ended attempts, below
 *     asynq:{Q}:pending active          LIST  ids
 *     asynq:{Q}:lease scheduled retry   ZSET  id -> seconds; ours have six decimals
 *     asynq:{Q}:archived completed      ZSET  id -> seconds
 *     asynq:{Q}:paused processed failed ...
 *     stint:{Q}:fence                   the last fence given in this queue
 *     stint:{Q}:rules                   HASH  rule sets claims were made with, by their digest
 *     stint:{Q}:cancel                  SET   ids of held jobs that are asked to stop
 *     stint:{Q}:cancelled               ZSET  ids in archived that were cancelled -> finished, seconds
 *
 * Where a job is, is what asynq's keys say.  Shown states: pending = in pending, or in scheduled or retry and due;
 * scheduled, retrying = in that set and not due; claimed, running = active, by the hold; succeeded = completed;
 * cancelled = archived and in stint:{Q}:cancelled with the same second; failed = archived otherwise.
 *
 * The hold in the packed field is the truth only while state is `active` and the score in `lease` is hold.lease_us:
 * otherwise somebody else (a stock server) has taken the job since.
 *
 * An operation may be given no `err`; it then takes a local one, so that further inside it is never NULL.
 */
#ifndef ST_STORE_REDIS_INT_H
#define ST_STORE_REDIS_INT_H

#include "base/buf.h"
#include "base/log.h"
#include "store/redis_conn.h"
#include "store/store.h"

/* ---- the packed field (redis_task.c) ----------------------------------------------------------------
 *
 * Fixed offsets, big-endian, so that Lua can cut it without parsing.  lua/lib.lua has the same numbers.
 *
 *     0  version 1   flags 1   skips 1   last_outcome 1   last_state 1   kind 1   -- 2
 *     8  last_fence 8   finished 8   created 8   due 8
 *    40  first_started 8   timeout 8 (-1 = none of its own)   unique_until 8   = 64 bytes, then, once it was claimed,
 * the hold: 64  state 1   fence 8   lease 8   run_started 8   digest 16   rules 16   worker ...
 */
#define ST_RT_VERSION 1
#define ST_RT_FIXED   64
#define ST_RT_HOLD    57 /* without the worker */
enum {
    ST_RT_BY_TYPE = 1,  /* max_attempts is the type's */
    ST_RT_NO_LIMIT = 2, /* max_attempts is 0 */
    ST_RT_CANCEL = 4,   /* asked to stop */
    ST_RT_ACTIVE = 8,   /* its key is held while it lives */
    ST_RT_WINDOW = 16,  /* its key is held until unique_until_us */
    ST_RT_FOREIGN = 32, /* somebody else's program enqueued it */
    ST_RT_META = 64,    /* there is a stint_meta */
};

struct st_redis_task {
    unsigned flags;
    int skips;                /* claimed and reaped so often in a row */
    int last_outcome;         /* of last_fence: enum st_outcome + 1; ST_RT_LEASE_EXPIRED; 0 = none yet */
    enum st_state last_state; /* what it made of the job */
    enum st_kind kind;        /* of the last error; its text is the message's error_msg */
    int64_t created_us, due_us, first_started_us;
    int64_t timeout_us; /* exact; -1 = none of its own (by type, or the message's for a foreign one) */
    int64_t last_fence, unique_until_us, finished_us;
    /* the hold, of the attempt going on or of the last one */
    enum st_state held; /* ST_CLAIMED, ST_RUNNING; 0 = never claimed by us */
    int64_t fence, lease_us, run_started_us;
    char digest[17]; /* of msg at the claim */
    char rules[17];  /* the rule set of the claim; all '0' = the default policy */
    char worker[ST_ID_MAX + 1];
};
#define ST_RT_LEASE_EXPIRED 100

/* false: not ours, or cut; *out is then that of a foreign job never claimed by us. */
bool st_redis_task_unpack(struct st_slice field, struct st_redis_task *out);
void st_redis_task_pack(const struct st_redis_task *t, struct st_buf *out);
/* Is the hold the truth?  state: the hash's; score: the lease's, seconds, or NaN. */
bool st_redis_task_holds(const struct st_redis_task *t, struct st_slice state, double score);

/* One of stint_runs: 4 bytes length of what follows, then outcome 1 (enum st_outcome, ST_RT_LEASE_EXPIRED), kind 1, n
 * 4, fence 8, started 8, ended 8, worker 1+, and what the worker told: exit_code 4, signal 4, max_rss_kb 8, message 4+,
 * log 4+, log_tail 4+. */
struct st_redis_run {
    int outcome;
    enum st_kind kind;
    int n;
    int64_t fence, started_us, ended_us;
    struct st_slice worker;
    int exit_code, signal;
    int64_t max_rss_kb;
    struct st_slice message, log, log_tail; /* p NULL = none */
};
/* Takes the first off *runs; false: there is none, or it is damaged. */
bool st_redis_run_next(struct st_slice *runs, struct st_redis_run *out);
/* The part the worker tells, appended. */
void st_redis_run_told(struct st_buf *out, const struct st_redis_run *r);

/* Seconds with six decimals, as scores are written; and back. */
#define ST_REDIS_SCORE 32
void st_redis_score(char out[ST_REDIS_SCORE], int64_t us);
int64_t st_redis_score_us(double score);

/* ---- asynq's message (redis_msg.c) --------------------------------------------------------------------- */

#define ST_REDIS_RETENTION       86400           /* seconds: how long our own are kept once completed */
#define ST_REDIS_FOREIGN_TIMEOUT (1800 * ST_SEC) /* asynq's, where a message has neither timeout nor deadline */

struct st_redis_msg {
    struct st_slice type, payload, id, queue, error_msg, unique_key, group_key;
    int retry, retried;
    int64_t timeout_s, deadline_s, last_failed_s, retention_s, completed_s;
    void *own; /* what the slices point into */
};
/* ESTORE-free: false = no message, or larger than we take.  st_redis_msg_clear() after true. */
bool st_redis_msg_read(struct st_slice bytes, struct st_redis_msg *out);
void st_redis_msg_clear(struct st_redis_msg *m);
void st_redis_msg_write(const struct st_redis_msg *m, struct st_buf *out);
/* The message of a new job of ours; unique_key: the lock's name, or none. */
void st_redis_msg_new(const struct st_new_job *j, struct st_slice unique_key, struct st_buf *out);

/* The job's own values over the policy of its rule. */
struct st_policy st_redis_policy(const struct st_policy *rule, const struct st_redis_msg *m,
                                 const struct st_redis_task *t);

/* ---- keys (redis_key.c) ----------------------------------------------------------------------------------- */

/* "asynq:{Q}:SUFFIX", "stint:{Q}:SUFFIX"; live until out does. */
#define ST_REDIS_KEY_MAX 1024
struct st_redis_key {
    char p[ST_REDIS_KEY_MAX];
};
struct st_slice st_redis_key(struct st_redis_key *out, struct st_slice queue, const char *suffix);
struct st_slice st_redis_own_key(struct st_redis_key *out, struct st_slice queue, const char *suffix);
struct st_slice st_redis_task_key(struct st_redis_key *out, struct st_slice queue, struct st_slice id);
/* asynq:{Q}:unique:TYPE:KEY, where KEY is the payload's MD5 if the key is the job's spec hash: then a stock producer's
 * Unique excludes ours, and ours it. */
struct st_slice st_redis_lock_key(struct st_redis_key *out, const struct st_new_job *j);
/* What every script of a queue is given, in this order; lua/lib.lua counts on it. */
#define ST_REDIS_KEYS(X)                                                                                               \
    X(PENDING, "asynq", "pending")                                                                                     \
    X(ACTIVE, "asynq", "active")                                                                                       \
    X(LEASE, "asynq", "lease")                                                                                         \
    X(SCHEDULED, "asynq", "scheduled")                                                                                 \
    X(RETRY, "asynq", "retry")                                                                                         \
    X(COMPLETED, "asynq", "completed")                                                                                 \
    X(ARCHIVED, "asynq", "archived")                                                                                   \
    X(PAUSED, "asynq", "paused")                                                                                       \
    X(PROCESSED, "asynq", "processed")                                                                                 \
    X(FAILED, "asynq", "failed")                                                                                       \
    X(FENCE, "stint", "fence")                                                                                         \
    X(RULES, "stint", "rules")                                                                                         \
    X(CANCEL, "stint", "cancel")                                                                                       \
    X(CANCELLED, "stint", "cancelled")                                                                                 \
    X(TASK, "asynq", "t:")
enum {
#define X(name, owner, suffix) ST_RK_##name,
    ST_REDIS_KEYS(X)
#undef X
        ST_RK_N /* TASK is only what a task's key begins with */
};
struct st_redis_keys {
    struct st_slice k[ST_RK_N];
    char text[ST_RK_N * (ST_NAME_MAX + 24)];
};
void st_redis_keys(struct st_redis_keys *out, struct st_slice queue);
#define ST_REDIS_QUEUES "asynq:queues"
#define ST_REDIS_CANCEL "asynq:cancel" /* a channel: ids */

/* A queue's number in this process, for st_job.ref; and back.  A hint: 0 and numbers nobody gave are ST_NONE. */
#define ST_REDIS_REFS_MAX 65536
uint64_t st_redis_ref(struct st_slice queue);
struct st_slice st_redis_ref_queue(uint64_t ref);

/* ---- scripts (redis_script.c) ------------------------------------------------------------------------------- */

/* Each is lib.lua and its own file.  Arguments and answers: at the top of the file. */
enum st_redis_lua {
#define X(name) ST_LUA_##name,
#include "store/redis_script.inc"
#undef X
    ST_LUA_N
};
struct st_redis_script *st_redis_lua(enum st_redis_lua which);

/* ---- a handle (redis.c) -------------------------------------------------------------------------------------- */

struct st_redis_names {
    char (*p)[ST_NAME_MAX + 1]; /* by name */
    size_t n, odd;              /* odd: how many more there are, whose names cannot be ours */
    int64_t read_us;            /* CLOCK_MONOTONIC; 0 = never */
};

struct st_redis_store {
    struct st_store base; /* first */
    struct st_redis *r;
    struct st_redis_batch b;      /* for whoever is running; reset before each use */
    struct st_redis_names queues; /* asynq:queues, as last read */
    int64_t clock_off_us;         /* server's clock - ours, as last seen */
    bool runqy, notify;
    bool may_lose;                /* a server that evicts jobs is all right */
    bool no_storage;              /* runqy: nothing is kept of what has ended */
    bool rights_seen;             /* redis_check.c: the user may do all that is needed */
    unsigned turn;                /* where a claim of all queues begins */
    struct st_redis_rules *rules; /* redis_rules.c: the rule set of the last claim */
    struct st_redis_wait *w;      /* redis_wait.c; made by the first wait or watch */
    struct st_redis_care *care;   /* redis_worker.c, redis_prune.c: what they remember; made when first needed */
};

static inline struct st_redis_store *st_redis_of(struct st_store *s)
{
    return (struct st_redis_store *)s;
}

/* Queues that are there, read again when they are older than a second or `fresh`. */
stint_code st_redis_queues_read(struct st_redis_store *s, bool fresh, stint_error *err);
/* The handle has used or seen this queue: no need to read for it. */
void st_redis_queues_add(struct st_redis_store *s, struct st_slice queue);
/* The same for all members of a set. */
void st_redis_queues_saw(struct st_redis_store *s, const redisReply *reply);
/* Which queue each job is in: queues[i] points into s->queues or the table behind st_redis_ref, both good until the
 * next call; p NULL = nowhere.  hints: refs, tried first, or NULL. */
stint_code st_redis_locate(struct st_redis_store *s, const struct st_slice *ids, const uint64_t *hints, size_t n,
                           struct st_slice *queues, stint_error *err);
/* The queues a request means, in its order: indexes of s->queues, each once.  room for s->queues.n; returns how many.
 */
size_t st_redis_queues_asked(const struct st_redis_store *s, const struct st_slice *asked, size_t n, size_t *out);
/* Runs s->b; the first answer that is an error of its own becomes the call's. */
stint_code st_redis_go(struct st_redis_store *s, stint_error *err);
/* The same where each answer is of one queue: what st_redis_broken() says is left to the caller, and the other queues
 * are served. */
stint_code st_redis_go_each(struct st_redis_store *s, stint_error *err);
/* A script has met a key of another kind in its queue, and has written nothing. */
bool st_redis_broken(const redisReply *reply);
/* The same of an error that was made of such an answer. */
bool st_redis_broken_said(const stint_error *err);
/* People are told that nothing of this queue is run; once a minute. */
void st_redis_tell_broken(struct st_slice queue);
/* Learns the server's clock from a script's answer. */
void st_redis_saw(struct st_redis_store *s, int64_t now_us);
/* What an argument says: the text of a number. */
#define ST_REDIS_NUM 24
struct st_slice st_redis_num(char out[ST_REDIS_NUM], int64_t v);

/* Arguments of a script, and the bytes that are made for them; both live until clear. */
struct st_redis_args {
    struct st_slice *p;
    size_t n, cap;
    struct st_redis_bytes *bytes;
    bool failed; /* no memory */
};
void st_redis_args_init(struct st_redis_args *a);
void st_redis_args_clear(struct st_redis_args *a);
void st_redis_arg(struct st_redis_args *a, struct st_slice s); /* none is '' */
void st_redis_arg_copy(struct st_redis_args *a, const void *p, size_t n);
void st_redis_arg_num(struct st_redis_args *a, int64_t v);
/* Adds a script of this queue with args[from..) as its arguments.  Its index in the batch. */
size_t st_redis_add_lua(struct st_redis_store *s, unsigned flags, enum st_redis_lua which, struct st_slice queue,
                        const struct st_redis_args *a, size_t from);

/* Of a message, as the scripts compute it. */
void st_redis_digest(struct st_slice msg, char out[17]);
/* Does the queue of a sub have a parent whose pause counts?  The name whose `paused` is to be looked at, its own if it
 * has none. */
struct st_slice st_redis_pause_of(struct st_slice queue);

/* May this user do all that moves of jobs need (redis_check.c)?  A script that is refused in the middle keeps what it
 * has written, and a job that was taken must be finished: so this is asked before the first is taken.  Asks until it
 * was so once.  ESTORE: it may not. */
stint_code st_redis_rights(struct st_redis_store *s, stint_error *err);

/* A claimed task as a job: out may be NULL with OK where the message cannot be read. */
struct st_redis_claimed {
    struct st_slice queue, id, msg, field, meta;
    int64_t now_us;
};
stint_code st_redis_job(const struct st_redis_claimed *c, const struct st_type_rule *rules, size_t n, int64_t lease_us,
                        struct st_job **out, const struct st_type_rule **rule, stint_error *err);

/* An item of a finish that is not a caller's: back to `retry`, uncharged, because nobody here has a handler. */
#define ST_REDIS_NO_HANDLER 0x10000
/* Outcomes into s->b, without running it, and what became of them.  A queue per item; p NULL = leave it out. */
struct st_redis_finishing {
    struct st_finish *items;
    const struct st_slice *queues;
    size_t n;
    struct st_redis_args args;
    size_t *order; /* items by call */
    struct st_redis_call *calls;
    size_t n_calls;
};
stint_code st_redis_finishing_add(struct st_redis_store *s, struct st_redis_finishing *f, int64_t now_us,
                                  stint_error *err);
/* false in missing[i]: it was where it was looked for. */
stint_code st_redis_finishing_take(struct st_redis_store *s, struct st_redis_finishing *f, bool *missing,
                                   stint_error *err);
void st_redis_finishing_clear(struct st_redis_finishing *f);
/* Queues by the items' refs, then the rest by looking; then all that is missing. */
stint_code st_redis_finish_queues(struct st_redis_store *s, struct st_finish *items, size_t n, struct st_slice *queues,
                                  stint_error *err);
stint_code st_redis_finish_missing(struct st_redis_store *s, int64_t now_us, struct st_finish *items, size_t n,
                                   struct st_slice *queues, bool *missing, stint_error *err);
/* Adds the files a removed job leaves behind. */
stint_code st_redis_pruned_add(struct st_pruned *out, struct st_slice ref, struct st_slice runs, stint_error *err);

/* Rule sets: what a claim's rules were, kept so that anyone can reap (redis_rules.c).  The digest of these rules, 16
 * hex digits. */
const char *st_redis_rules_ref(struct st_redis_store *s, const struct st_type_rule *rules, size_t n,
                               struct st_slice *text);
/* Into this queue, where a claim has found that they are not there.  Uses s->b. */
stint_code st_redis_rules_write(struct st_redis_store *s, struct st_slice queue, const char *ref, struct st_slice text,
                                stint_error *err);
/* The policy for a job of this queue and type, from a rule set's text (p NULL = the default policy). */
struct st_policy st_redis_rules_policy(struct st_slice text, struct st_slice queue, struct st_slice type);
void st_redis_rules_close(struct st_redis_store *s);

/* ---- the operations ------------------------------------------------------------------------------------------- */

#define ST_REDIS_OP(name, ...) stint_code st_redis_op_##name(struct st_store *base, __VA_ARGS__, stint_error *err)
/* write side */
ST_REDIS_OP(enqueue, int64_t now_us, const struct st_new_job *jobs, size_t n, struct st_enqueued *out);
ST_REDIS_OP(claim, const struct st_claim_req *req, struct st_job **out, size_t *n_out);
ST_REDIS_OP(exchange, int64_t now_us, struct st_finish *items, size_t n, const struct st_claim_req *req,
            struct st_job **out, size_t *n_out, bool *finished);
ST_REDIS_OP(acquire, struct st_slice id, const struct st_claim_req *req, struct st_job **out, enum st_refusal *why);
ST_REDIS_OP(renew, int64_t now_us, struct st_renew *items, size_t n);
ST_REDIS_OP(finish, int64_t now_us, struct st_finish *items, size_t n);
ST_REDIS_OP(reap, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max, size_t *n_out);
ST_REDIS_OP(disown, int64_t now_us, struct st_slice worker, const struct st_slice *known, size_t n, size_t *n_given);
ST_REDIS_OP(flagged, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max, size_t *n_out);
ST_REDIS_OP(cancel, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts, bool *asked);
ST_REDIS_OP(retry, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts);
ST_REDIS_OP(discard, const struct st_slice *ids, size_t n, stint_code *verdicts, struct st_pruned *out);
ST_REDIS_OP(pause, int64_t now_us, struct st_slice queue, bool paused);
/* read side */
ST_REDIS_OP(get, int64_t now_us, struct st_slice id, struct st_job_info *out);
ST_REDIS_OP(list, const struct st_list_req *req, struct st_job_info **out, size_t *n_out, uint64_t *next);
ST_REDIS_OP(queues, int64_t now_us, struct st_queue_info **out, size_t *n_out);
ST_REDIS_OP(next_due, int64_t now_us, int64_t *due_us);
ST_REDIS_OP(prune, const struct st_prune_req *req, struct st_pruned *out);
ST_REDIS_OP(upkeep, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us);
ST_REDIS_OP(worker_beat, int64_t now_us, const struct st_worker_info *w);
ST_REDIS_OP(worker_list, struct st_worker_info **out, size_t *n_out);
ST_REDIS_OP(worker_remove, int64_t now_us, struct st_slice id, bool expire_leases, int64_t epoch, int64_t if_beat_us);
ST_REDIS_OP(lead, const struct st_lead_req *req, struct st_lead *out);
ST_REDIS_OP(wait, int timeout_ms, bool *woken);
ST_REDIS_OP(watch, struct st_slice worker, const struct st_slice *queues, size_t n, bool work);
ST_REDIS_OP(check, st_finding_fn found, void *arg);
void st_redis_op_interrupt(struct st_store *base);
unsigned st_redis_op_news(struct st_store *base);
void st_redis_op_about(struct st_store *base, struct st_store_about *out);
stint_code st_redis_op_fit(struct st_store *base, stint_error *err);
void st_redis_wait_close(struct st_redis_store *s); /* a store that never waited too */
void st_redis_care_close(struct st_redis_store *s);
/* The table, and the same with what runqy expects around it (redis_runqy.c). */
extern const struct st_store_ops st_redis_ops;
const struct st_store_ops *st_redis_runqy_ops(void);
/* The handle's waits can be interrupted from now on (an eventfd, or what it needs).  Called by open. */
stint_code st_redis_wait_open(struct st_redis_store *s, stint_error *err);

#endif
