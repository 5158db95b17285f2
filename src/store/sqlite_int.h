/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_int.h - what the files of the SQLite store share; only they and their tests include it.
 *
 *     handle A --.  submit   .-------------------.
 *     handle B --+---------> | writer thread     |---> the one write connection
 *     handle C --'  <answer  | (one per file)    |
 *        |                   `-------------------'
 *        `--- its own read connection: get, list, queues, ... never wait for the writer
 *
 * Inside the store `err` is never NULL: a function that returns NULL or false has filled it.
 */
#ifndef ST_STORE_SQLITE_INT_H
#define ST_STORE_SQLITE_INT_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/log.h"
#include "store/store.h"

#define ST_SQ_APP_ID 0x53746e74 /* "Stnt" */

/* ---- statements (sqlite_sql.c) ---------------------------------------------------------- */

enum st_sq_sql {
#define X(name, flags, sql) SQ_##name,
#include "store/sqlite_sql.inc"
#undef X
    SQ_SQL_N
};

/* What the tests of plans and guards want to know of a statement. */
enum {
    SQ_HOT = 1 << 0, /* cost must not depend on how many jobs there are: no scan, no sort */
};

struct st_sq_sql_info {
    const char *name;
    const char *sql;
    unsigned flags;
};
extern const struct st_sq_sql_info st_sq_sql_info[SQ_SQL_N];

/* ---- fork (sqlite_fork.c) --------------------------------------------------------------- */

struct st_sq_conn;

struct st_sq_gate {
    int nothing;
};
struct st_sq_gate st_sq_gate_enter(void);
void st_sq_gate_leave(struct st_sq_gate *gate);

/* Calls of SQLite from here to the end of the block are a stretch that fork() waits for.  They may
 * nest.  No transaction of ours is left open behind it, and nobody sleeps in it for another thread.
 */
#define ST_SQ_GATE struct st_sq_gate st_gate __attribute__((cleanup(st_sq_gate_leave), unused)) = st_sq_gate_enter()

/* Every open connection is on the list; taking one off twice is fine. */
void st_sq_conn_list(struct st_sq_conn *c);
void st_sq_conn_unlist(struct st_sq_conn *c);

void st_sq_fork_watch(void);
/* Before a connection is opened: closes what the parent had open.  STINT_ESTATE: cannot be done. */
stint_code st_sq_fork_settle(stint_error *err);
/* In sqlite_file.c: the writers of the parent have no threads here. */
void st_sq_registry_forget(void);

/* ---- a connection (sqlite_conn.c) ------------------------------------------------------- */

struct st_sq_conn {
    sqlite3 *db;
    sqlite3_stmt *stmt[SQ_SQL_N]; /* prepared when first used */
    int64_t (*until)(void *arg);  /* how long to wait for a lock (CLOCK_MONOTONIC) */
    void *until_arg;
    int64_t until_us; /* the same, when there is no function */
    bool listed;      /* sqlite_fork.c */
    struct st_sq_conn *prev, *next;
};

/* Opens path with our busy handler.  Nothing is read yet. */
stint_code st_sq_conn_open(struct st_sq_conn *c, const char *path, stint_error *err);
void st_sq_conn_close(struct st_sq_conn *c);

/* Fills err: this user may not do that to the file, and whose it is.  what: "opened", "written". */
stint_code st_sq_forbidden(const char *path, const char *what, stint_error *err);
/* Fills err from the connection's last error. */
stint_code st_sq_fail(sqlite3 *db, const char *what, stint_error *err);

/* A statement ready to be bound, or NULL. */
sqlite3_stmt *st_sq_stmt(struct st_sq_conn *c, enum st_sq_sql which, stint_error *err);

/* SQLITE_ROW or SQLITE_DONE, or -1 with err filled; resets the statement unless it is a row. */
int st_sq_step(struct st_sq_conn *c, sqlite3_stmt *st, stint_error *err);
/* Runs a statement that gives no rows. */
stint_code st_sq_run(struct st_sq_conn *c, sqlite3_stmt *st, stint_error *err);
stint_code st_sq_exec(struct st_sq_conn *c, const char *sql, stint_error *err);
/* The first column of the first row of any text; 0 if there is none. */
stint_code st_sq_query_int(struct st_sq_conn *c, const char *sql, int64_t *out, stint_error *err);

static inline void bind_int(sqlite3_stmt *st, int i, int64_t v)
{
    sqlite3_bind_int64(st, i, v);
}
static inline void bind_text(sqlite3_stmt *st, int i, struct st_slice s)
{
    if (s.p)
        sqlite3_bind_text(st, i, s.p, (int)s.len, SQLITE_STATIC);
    else
        sqlite3_bind_null(st, i);
}
static inline void bind_blob(sqlite3_stmt *st, int i, struct st_slice s)
{
    if (s.p)
        sqlite3_bind_blob(st, i, s.len ? s.p : "", (int)s.len, SQLITE_STATIC);
    else
        sqlite3_bind_null(st, i);
}
/* NULL where v is below zero (or zero, for _pos): "not given" */
static inline void bind_opt(sqlite3_stmt *st, int i, int64_t v)
{
    if (v >= 0)
        sqlite3_bind_int64(st, i, v);
    else
        sqlite3_bind_null(st, i);
}
static inline void bind_pos(sqlite3_stmt *st, int i, int64_t v)
{
    bind_opt(st, i, v > 0 ? v : -1);
}

static inline int64_t col_int(sqlite3_stmt *st, int i)
{
    return sqlite3_column_int64(st, i);
}
static inline int64_t col_opt(sqlite3_stmt *st, int i) /* -1 = NULL */
{
    return sqlite3_column_type(st, i) == SQLITE_NULL ? -1 : sqlite3_column_int64(st, i);
}
/* A view that lives until the statement moves on.  NULL gives ST_NONE. */
static inline struct st_slice col_slice(sqlite3_stmt *st, int i)
{
    const char *p;

    if (sqlite3_column_type(st, i) == SQLITE_NULL)
        return ST_NONE;
    p = sqlite3_column_blob(st, i);
    return ST_SLICE(p ? p : "", (size_t)sqlite3_column_bytes(st, i));
}

/* ---- schema (sqlite_schema.c) ----------------------------------------------------------- */

struct st_sq_migration {
    int version;
    const char *sql;
};
extern const struct st_sq_migration st_sq_migrations[];
extern const int st_sq_n_migrations;
#define ST_SQ_VERSION (st_sq_migrations[st_sq_n_migrations - 1].version)

/* Is this file ours, or empty?  ESTORE if it is not.  *have = its version, 0 = nothing there. */
stint_code st_sq_schema_read(struct st_sq_conn *c, int *have, stint_error *err);
/* Brings the file up to the last version of the list; several processes may do so at once. */
stint_code st_sq_schema_up(struct st_sq_conn *c, const struct st_sq_migration *list, int n, stint_error *err);
/* The same, inside a write transaction that is open. */
stint_code st_sq_schema_up_tx(struct st_sq_conn *c, const struct st_sq_migration *list, int n, stint_error *err);

/* ---- lanes, counts, policies (sqlite_lane.c) -------------------------------------------- */

/* A (queue, type).  Job rows keep only its number. */
struct st_sq_lane {
    int64_t id;
    struct st_slice queue, type; /* queue.p is the allocation */
    int64_t delta[ST_SHOWN_N];   /* what this transaction changes in the counts */
    bool touched;
};

struct st_sq_policy {
    int64_t id;
    struct st_policy policy;
};

struct st_sq_lanes {
    struct st_sq_lane *v; /* by id */
    size_t n, cap;
    size_t n_base;  /* how many there were when the transaction began */
    size_t last;    /* where the last search ended */
    uint32_t *hash; /* (queue, type) -> index + 1 */
    size_t n_hash;  /* a power of two; 0 = none */
};

#define ST_SQ_POLICIES 64

struct st_sq_writer;

/* Learn of lanes that other processes have made. */
stint_code st_sq_lanes_refresh(struct st_sq_conn *c, struct st_sq_lanes *l, stint_error *err);
void st_sq_lanes_clear(struct st_sq_lanes *l);
struct st_sq_lane *st_sq_lane_by_id(struct st_sq_writer *w, int64_t id, stint_error *err);
struct st_sq_lane *st_sq_lane_get(struct st_sq_writer *w, struct st_slice queue, struct st_slice type,
                                  stint_error *err); /* made if need be */
void st_sq_count(struct st_sq_lane *lane, enum st_shown bucket, int64_t n);
stint_code st_sq_counts_flush(struct st_sq_writer *w, stint_error *err);
void st_sq_counts_drop(struct st_sq_writer *w); /* the transaction is rolled back */

/* A job's ref: its row and its lane, so that an outcome needs no look at the row first.  0 = they
 * do not fit. */
#define ST_SQ_REF_SEQ 40
static inline uint64_t st_sq_ref(int64_t seq, int64_t lane)
{
    const bool fits = seq >> ST_SQ_REF_SEQ == 0 && lane >> (63 - ST_SQ_REF_SEQ) == 0;

    return fits ? (uint64_t)lane << ST_SQ_REF_SEQ | (uint64_t)seq : 0;
}
static inline int64_t st_sq_ref_seq(uint64_t ref)
{
    return (int64_t)(ref & (((uint64_t)1 << ST_SQ_REF_SEQ) - 1));
}
static inline int64_t st_sq_ref_lane(uint64_t ref)
{
    return (int64_t)(ref >> ST_SQ_REF_SEQ);
}

/* ready: a pending job is known to be due */
static inline enum st_shown st_sq_bucket(enum st_state s, bool ready, int attempt)
{
    return st_state_shown(s, ready ? 0 : 1, attempt, 0);
}

/* The number of an effective policy, and back. */
stint_code st_sq_policy_id(struct st_sq_writer *w, const struct st_policy *p, int64_t *id, stint_error *err);
stint_code st_sq_policy_get(struct st_sq_conn *c, int64_t id, struct st_policy *out, stint_error *err);

/* ---- the writer (sqlite_writer.c) ------------------------------------------------------- */

enum st_sq_req_state { SQ_QUEUED, SQ_BEGUN, SQ_DONE };

/* One operation, on the stack of the thread that asks for it. */
struct st_sq_req {
    /* Runs inside the transaction, on the writer's thread.  Any error rolls it back. */
    stint_code (*run)(struct st_sq_writer *w, void *arg, stint_error *err);
    /* Optional, outside a transaction: *need = there is something to write.  If there is nothing,
     * the answer is what probe has left in arg. */
    stint_code (*probe)(struct st_sq_writer *w, void *arg, bool *need, stint_error *err);
    void (*undo)(void *arg); /* optional: forget the answer, it will run again or has failed */
    void *arg;

    struct st_sq_req *next;
    enum st_sq_req_state state;
    int64_t until_us; /* CLOCK_MONOTONIC */
    pthread_cond_t cond;
    stint_code code;
    stint_error err;
};

struct st_sq_writer {
    struct st_sq_writer *next; /* in the registry */
    int refs;
    dev_t dev;
    ino_t ino;
    char *path;
    bool migrated; /* it was opened by somebody who wanted the current schema */

    pthread_t thread;
    pthread_mutex_t mu; /* guards what is below, up to the blank line */
    pthread_cond_t cond;
    struct st_sq_req *head, **tail;
    bool stop;
    bool want_full; /* a handle has asked for synchronous=FULL */
    uint64_t n_commits, n_requests;

    /* Only the writer's thread (and the opener, before it starts). */
    struct st_sq_conn c;
    bool full;
    bool claims_hot; /* the last claim found something: do not probe first */
    struct st_sq_lanes lanes;
    struct st_sq_policy policies[ST_SQ_POLICIES];
    size_t n_policies;
};

struct st_sq_open {
    int timeout_ms;
    bool no_create, no_migrate, sync_normal;
};
/* The writer of this file, shared by all handles of the process. */
stint_code st_sq_writer_get(const char *path, const struct st_sq_open *opt, struct st_sq_writer **out,
                            stint_error *err);
void st_sq_writer_put(struct st_sq_writer *w);
void *st_sq_writer_main(void *w); /* its thread */
/* The name of a filesystem that SQLite should not live on, or NULL. */
const char *st_sq_network_fs(const char *path);

/* ---- a handle (sqlite.c) ---------------------------------------------------------------- */

struct st_sq {
    struct st_store base; /* first, so that a struct st_store * is one of us */
    struct st_sq_writer *w;
    struct st_sq_conn rd;     /* opened when first used */
    struct st_sq_lanes lanes; /* what the read connection has seen */
    struct st_sq_writer *tx;  /* for transactions of handlers; made when first used */
    int wake_fd;              /* eventfd: interrupt */
    int inotify_fd;           /* -1 = not yet, -2 = not available */
    int64_t look_until_us;    /* something was written: look closely until then */
    int64_t seen_version;     /* data_version when wait last returned; -1 = never */
    bool sync_normal;
};

static inline struct st_sq *st_sq_of(struct st_store *s)
{
    return (struct st_sq *)s;
}

/* Hands the request to the writer and waits for the answer; at most timeout_ms until it begins. */
stint_code st_sq_submit(struct st_sq *s, struct st_sq_req *req, stint_error *err);
/* The read connection, opened if need be, with its lock timeout set; NULL = err filled. */
struct st_sq_conn *st_sq_reader(struct st_sq *s, stint_error *err);

static inline int64_t st_sq_now(int64_t now_us)
{
    return now_us ? now_us : st_clock_real_us();
}

/* ---- the operations, one per entry of struct st_store_ops ------------------------------- */

stint_code st_sq_enqueue(struct st_store *s, int64_t now_us, const struct st_new_job *jobs, size_t n,
                         struct st_enqueued *out, stint_error *err);
stint_code st_sq_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                       stint_error *err);
stint_code st_sq_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                          const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                          stint_error *err);
stint_code st_sq_acquire_many(struct st_store *s, struct st_acquire *items, size_t n, const struct st_claim_req *req,
                              stint_error *err);
stint_code st_sq_acquire(struct st_store *s, struct st_slice id, const struct st_claim_req *req, struct st_job **out,
                         enum st_refusal *why, stint_error *err);
stint_code st_sq_renew(struct st_store *s, int64_t now_us, struct st_renew *items, size_t n, stint_error *err);
stint_code st_sq_finish(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n, stint_error *err);
stint_code st_sq_reap(struct st_store *s, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max,
                      size_t *n_out, stint_error *err);
stint_code st_sq_disown(struct st_store *s, int64_t now_us, struct st_slice worker, const struct st_slice *known,
                        size_t n, size_t *n_given, stint_error *err);
stint_code st_sq_flagged(struct st_store *s, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max,
                         size_t *n_out, stint_error *err);
stint_code st_sq_cancel(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts,
                        bool *asked, stint_error *err);
stint_code st_sq_retry(struct st_store *s, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts,
                       stint_error *err);
stint_code st_sq_discard(struct st_store *s, const struct st_slice *ids, size_t n, stint_code *verdicts,
                         struct st_pruned *out, stint_error *err);
stint_code st_sq_pause(struct st_store *s, int64_t now_us, struct st_slice queue, bool paused, stint_error *err);
stint_code st_sq_get(struct st_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out, stint_error *err);
stint_code st_sq_list(struct st_store *s, const struct st_list_req *req, struct st_job_info **out, size_t *n_out,
                      uint64_t *next, stint_error *err);
stint_code st_sq_queues(struct st_store *s, int64_t now_us, struct st_queue_info **out, size_t *n_out,
                        stint_error *err);
stint_code st_sq_next_due(struct st_store *s, int64_t now_us, int64_t *due_us, stint_error *err);
stint_code st_sq_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err);
stint_code st_sq_worker_beat(struct st_store *s, int64_t now_us, const struct st_worker_info *w, stint_error *err);
stint_code st_sq_worker_list(struct st_store *s, struct st_worker_info **out, size_t *n_out, stint_error *err);
stint_code st_sq_worker_remove(struct st_store *s, int64_t now_us, struct st_slice id, bool expire_leases,
                               int64_t epoch, int64_t if_beat_us, stint_error *err);
stint_code st_sq_lead(struct st_store *s, const struct st_lead_req *req, struct st_lead *out, stint_error *err);
stint_code st_sq_wait(struct st_store *s, int timeout_ms, bool *woken, stint_error *err);
void st_sq_interrupt(struct st_store *s);
stint_code st_sq_transact(struct st_store *s, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg,
                          struct st_finish *fin, stint_error *err);
stint_code st_sq_enqueue_tx(struct st_store *s, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n,
                            struct st_enqueued *out, stint_error *err);
void st_sq_tx_free(struct st_sq_writer *tx); /* NULL is fine */
stint_code st_sq_schema(struct st_store *s, bool up, struct st_schema *out, stint_error *err);
stint_code st_sq_backup(struct st_store *s, const char *path, st_progress_fn progress, void *arg, stint_error *err);
stint_code st_sq_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err);
void st_sq_about(struct st_store *s, struct st_store_about *out);

/* ---- shared between the operations ------------------------------------------------------ */

/* A row as the state changes need it (sqlite_row.c). */
struct st_sq_row {
    int64_t seq;
    char id[ST_ID_MAX + 1];
    struct st_sq_lane *lane;
    enum st_state state;
    bool ready;
    int attempt, skips;
    int64_t fence, due, lease_until, policy, started;
    int64_t max_attempts; /* the job's own; -1 = none */
    int64_t timeout_us;
    bool cancel;
    enum st_unique unique;
    char worker[ST_ID_MAX + 1];
    char key[ST_KEY_MAX + 1];
};
/* By ref if it still names this id, else by id.  *found. */
stint_code st_sq_row_find(struct st_sq_writer *w, struct st_slice id, uint64_t ref, struct st_sq_row *row, bool *found,
                          stint_error *err);
stint_code st_sq_row_read(struct st_sq_writer *w, sqlite3_stmt *st, struct st_sq_row *row, stint_error *err);

/* What an attempt that ends leaves behind. */
struct st_sq_ended {
    int64_t now_us;
    int64_t started_us;  /* 0 = never */
    const char *outcome; /* the attempt's */
    enum st_kind kind;
    struct st_slice message;
    int exit_code, signal;
    int64_t max_rss_kb;
    struct st_slice log, log_tail;
};
stint_code st_sq_attempt_add(struct st_sq_writer *w, const struct st_sq_row *row, const struct st_sq_ended *e,
                             stint_error *err);

/* The three ways a row leaves the hands of a worker, or ends.  Each asks st_state_next, writes the
 * row, moves the counts and lets go of the key. */
stint_code st_sq_row_to_pending(struct st_sq_writer *w, const struct st_sq_row *row, enum st_event ev, int64_t now_us,
                                int64_t due_us, int attempt, int skips, const struct st_sq_ended *e, stint_error *err);
stint_code st_sq_row_end(struct st_sq_writer *w, const struct st_sq_row *row, enum st_event ev,
                         const struct st_sq_ended *e, stint_error *err);
stint_code st_sq_row_succeed(struct st_sq_writer *w, const struct st_sq_row *row, const struct st_finish *f,
                             const struct st_sq_ended *e, stint_error *err);
stint_code st_sq_key_free(struct st_sq_writer *w, const struct st_sq_row *row, stint_error *err);

/* One enqueue (sqlite_enqueue.c), for transactions. */
struct st_sq_enqueue_arg {
    int64_t now_us;
    const struct st_new_job *jobs;
    size_t n;
    struct st_enqueued *out;
};
stint_code st_sq_enqueue_run(struct st_sq_writer *w, void *arg, stint_error *err);

/* One finish (sqlite_finish.c), for exchange. */
struct st_sq_finish_arg {
    int64_t now_us;
    struct st_finish *items;
    size_t n;
};
stint_code st_sq_finish_run(struct st_sq_writer *w, void *arg, stint_error *err);

/* Does a stale epoch ask?  ELOST then. */
stint_code st_sq_epoch_check(struct st_sq_writer *w, int64_t epoch, stint_error *err);

/* Was the move of state legal?  A wrong one is our own mistake: nothing is written. */
stint_code st_sq_next(const struct st_sq_row *row, enum st_event ev, enum st_state *to, stint_error *err);

/* Files that go with removed jobs. */
bool st_sq_pruned_add(struct st_pruned *p, struct st_slice file);

#endif
