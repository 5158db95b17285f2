/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_int.h - what the files of the PostgreSQL store share; only they and their tests include it.
 *
 *     handle A ---- its own connection ----.
 *     handle B ---- its own connection ----+--> server: the functions in sql/ do the work
 *        |                                 |
 *        `-- shared per process and URL: lanes, marks, policies, what the server is
 *
 * Inside the store `err` is never NULL: a function that returns NULL or false has filled it.
 * Whatever is written goes through a function of the schema, one call = one transaction, so that it works behind a
 * connection pooler and is the same for every program that calls it.
 */
#ifndef ST_STORE_POSTGRES_INT_H
#define ST_STORE_POSTGRES_INT_H

#include <libpq-fe.h>
#include <pthread.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/log.h"
#include "store/store.h"

/* ---- ids and lanes (postgres_id.c) ---------------------------------------------------------- */

/* A job's id as the tables keep it: 0x00 and the 16 bytes of a UUID in its usual text, else 0x01 and the text. */
#define ST_PG_KEY_MAX (ST_ID_MAX + 1)
struct st_pg_key {
    unsigned char p[ST_PG_KEY_MAX];
    size_t len;
};
void st_pg_key(struct st_slice id, struct st_pg_key *out);
/* Back to text; false: it is no key. */
bool st_pg_key_text(struct st_slice key, char out[ST_ID_MAX + 1]);

/* The slot of the ring an id belongs to: by the time inside a UUIDv7, ST_PG_KEPT for all others. */
#define ST_PG_SLOTS   16
#define ST_PG_SLOT_MS 133200000 /* 37 h */
#define ST_PG_KEPT    16
int st_pg_slot(const struct st_pg_key *key);

/* A lane's number: a digest of (queue, type, priority), always even.  The odd one beside it holds jobs whose due time is
 * older than the moment they were put there. */
int64_t st_pg_lane_id(struct st_slice queue, struct st_slice type, int priority);

/* ---- parameters and results (postgres_args.c) ------------------------------------------------ */

/* Parameters of one call, all in binary.  Views of the caller's bytes are copied.  A failure (no memory, too large) is
 * kept and told by the call. */
#define ST_PG_ARGS 24
struct st_pg_args {
    int n;
    struct st_buf buf;     /* the bytes of all parameters */
    size_t at[ST_PG_ARGS]; /* where each begins */
    int len[ST_PG_ARGS];   /* -1 = NULL */
    unsigned oid[ST_PG_ARGS];
    size_t array; /* where the array header that is being filled begins */
    int32_t n_items;
    bool narrow; /* of st_pg_item_text and st_pg_shown only ASCII is sent */
};
void st_pg_args_init(struct st_pg_args *a);
void st_pg_args_clear(struct st_pg_args *a);
void st_pg_i64(struct st_pg_args *a, int64_t v);
void st_pg_i32(struct st_pg_args *a, int32_t v);
void st_pg_bool(struct st_pg_args *a, bool v);
void st_pg_text(struct st_pg_args *a, struct st_slice s);  /* p NULL = NULL */
void st_pg_bytes(struct st_pg_args *a, struct st_slice s); /* bytea; p NULL = NULL */
void st_pg_shown(struct st_pg_args *a, struct st_slice s); /* for people: what is no text becomes '?'; p NULL = NULL */
void st_pg_null(struct st_pg_args *a, unsigned oid);

/* An array parameter: begin, items, end.  Every item has the array's element type. */
enum { ST_PG_BOOL = 16, ST_PG_BYTEA = 17, ST_PG_INT8 = 20, ST_PG_INT2 = 21, ST_PG_INT4 = 23, ST_PG_TEXT = 25 };
void st_pg_array(struct st_pg_args *a, unsigned elem);
void st_pg_item_i64(struct st_pg_args *a, int64_t v);
void st_pg_item_i32(struct st_pg_args *a, int32_t v);
void st_pg_item_i16(struct st_pg_args *a, int16_t v);
void st_pg_item_bytes(struct st_pg_args *a, struct st_slice s); /* for text too; p NULL = NULL */
void st_pg_item_text(struct st_pg_args *a, struct st_slice s);  /* any bytes: what is no text becomes '?' */
void st_pg_item_null(struct st_pg_args *a);
void st_pg_array_end(struct st_pg_args *a);
void st_pg_no_array(struct st_pg_args *a, unsigned elem); /* NULL in place of an array */
/* The commonest: ids as keys. */
void st_pg_ids(struct st_pg_args *a, const struct st_slice *ids, size_t n);

/* Results come in binary.  NULL gives the fallback, or ST_NONE. */
int64_t st_pg_get_i64(const PGresult *r, int row, int col, int64_t fallback); /* int2, int4, int8, bool */
bool st_pg_get_bool(const PGresult *r, int row, int col);
struct st_slice st_pg_get(const PGresult *r, int row, int col);
bool st_pg_is_null(const PGresult *r, int row, int col);
char *st_pg_get_dup(const PGresult *r, int row, int col, bool *oom); /* NUL-terminated copy; NULL = NULL */
/* A key column as text. */
bool st_pg_get_id(const PGresult *r, int row, int col, char out[ST_ID_MAX + 1]);

/* ---- statements (postgres_sql.c) -------------------------------------------------------------- */

enum st_pg_sql {
#define X(name, sql) PG_##name,
#include "store/postgres_sql.inc"
#undef X
    PG_SQL_N
};

/* ---- what handles of one URL share (postgres.c) ------------------------------------------------ */

/* How far this process has claimed in a lane; see postgres_mark.c. */
struct st_pg_pos {
    int64_t key;
    struct st_pg_key id;
};
struct st_pg_note {
    struct st_pg_pos mark;
    uint64_t xid;
    size_t n; /* jobs that claim took */
};
struct st_pg_exception {
    uint64_t xid;
    struct st_pg_pos low;
};
#define ST_PG_NOTES      64
#define ST_PG_EXCEPTIONS 64

struct st_pg_lane {
    int64_t id;                  /* even */
    struct st_slice queue, type; /* queue.p is the allocation */
    int priority;
    struct st_pg_pos tail;  /* no runnable row of the even lane is before it, exceptions aside */
    struct st_pg_pos sweep; /* look from here once more */
    bool sweeping;
    uint64_t sweeps;          /* how many were asked for */
    struct st_pg_note *notes; /* oldest first; ST_PG_NOTES, made when first needed */
    size_t n_notes;
    struct st_pg_exception *exceptions; /* ST_PG_EXCEPTIONS */
    size_t n_exceptions;
};

struct st_pg_shared {
    struct st_pg_shared *next; /* in the registry */
    int refs;
    char *url;
    pthread_mutex_t mu;        /* guards what is below */
    struct st_pg_lane **lanes; /* by id; grow only, never moved */
    size_t n_lanes, cap_lanes;
    int64_t lanes_seen, lanes_max; /* how many rows the registry had, and its last number */
    int64_t lanes_read_us;         /* CLOCK_MONOTONIC */
    int64_t last_now_us;           /* to see a clock that was set back */
    int64_t server_started;
    int64_t swept_us, sweep_cost_us; /* the slow sweep behind it all; CLOCK_MONOTONIC */
    struct {
        int32_t id;
        char *text;
    } policies[64];
    size_t n_policies;
};

/* ---- a connection (postgres_conn.c) -------------------------------------------------------------
 *
 * Opened when first needed, and again after it was lost; every call has a deadline (the handle's timeout_ms).
 * What a failed call means:
 *     could not connect, or nothing was sent              EAGAIN
 *     sent, and no whole answer came: writes EUNKNOWN,    reads EAGAIN
 *     the server said no                                  by SQLSTATE: 40001 40P01 55P03 57014 53xxx 57P0x 08xxx EAGAIN,
 *                                                         53100 (disk full) 25006 (read-only) 3F000 42P01 42883 (no schema)
 *                                                         42501 (not allowed) 28xxx 3D000 ESTORE, others ESTORE too;
 *                                                         our own functions raise ST001 EINVAL, ST002 EEXISTS, ST003 ELOST, ST004 ESTATE
 */
struct st_pg;

struct st_pg_step {
    enum st_pg_sql which;
    const struct st_pg_args *args; /* NULL = none */
    PGresult *res;                 /* out, PQclear() by the caller; NULL if it failed */
};

/* Runs the steps in one transaction and one round trip.  Either all have a result and it is committed, or an error
 * is returned and all results are cleared.  writes: the transaction changes something. */
stint_code st_pg_run(struct st_pg *s, struct st_pg_step *steps, size_t n, bool writes, stint_error *err);
/* The same, and in the same round trip another step in a transaction of its own after it: a hint, whatever becomes of
 * either.  NULL = none.  Not through a pooler. */
stint_code st_pg_run_then(struct st_pg *s, struct st_pg_step *steps, size_t n, struct st_pg_step *after, bool writes,
                          stint_error *err);
/* One step. */
stint_code st_pg_call(struct st_pg *s, enum st_pg_sql which, const struct st_pg_args *args, bool writes, PGresult **res,
                      stint_error *err);
/* The same on a connection in somebody's open transaction (never reconnects, never prepares). */
stint_code st_pg_call_on(struct st_pg *s, PGconn *c, enum st_pg_sql which, const struct st_pg_args *args,
                         PGresult **res, stint_error *err);
/* Any text, for migrations and doctor; several statements are allowed when args is NULL (simple protocol, text results). */
stint_code st_pg_exec(struct st_pg *s, const char *sql, const struct st_pg_args *args, bool writes, PGresult **res,
                      stint_error *err);
/* The statement's text for this handle's schema; lives as long as the handle. */
const char *st_pg_sql_text(struct st_pg *s, enum st_pg_sql which);
/* {s} replaced by the quoted schema; free().  NULL = no memory. */
char *st_pg_in_schema(const struct st_pg *s, const char *sql);
/* Fills err from a failed result or a broken connection. */
stint_code st_pg_fail(struct st_pg *s, PGconn *c, const PGresult *r, const char *what, stint_error *err);

/* ---- a handle (postgres.c) ----------------------------------------------------------------------- */

struct st_pg_url {
    char *conninfo;     /* for libpq: the URL without our own parameters */
    char *listen;       /* a direct URL for LISTEN, or NULL: the same */
    char *where;        /* for people: host, port, database; no secrets */
    char *listen_where; /* the same of listen; NULL without one */
    char *schema;       /* as given: "stint" */
    char *quoted;       /* as an SQL identifier */
    bool notify;        /* false: notify=off, polling only */
};

struct st_pg {
    struct st_store base; /* first, so that a struct st_store * is one of us */
    struct st_pg_url url;
    struct st_pg_shared *sh;

    PGconn *c;   /* NULL = not connected */
    bool pooled; /* a pooler stands between: no prepared statements, no LISTEN */
    bool prepared[PG_SQL_N];
    char *text[PG_SQL_N]; /* with the schema filled in; made when first used */
    int64_t clock_off_us; /* server's clock - ours, as last seen */
    int64_t boot_off_us;  /* server's clock - CLOCK_BOOTTIME: nobody can set that */
    bool checked;         /* this connection's schema is one we know */
    bool narrow;          /* the database cannot hold every character */
    bool no_create, no_migrate;

    int64_t next_due_us; /* what the last claim learnt: the next job of its lanes; 0 = none */
    bool next_due_fresh; /* nothing was asked since */
    int64_t careful_us;  /* CLOCK_MONOTONIC: until then claims step round rows that others are at */

    PGconn *tx;   /* for transactions of handlers; made when first used */
    bool tx_open; /* by transact_open */

    struct st_pg_wait *w;    /* postgres_wait.c: the LISTEN connection; made by the first wait */
    struct st_pg_care *care; /* postgres_upkeep.c: how far prune and upkeep have come; made by the first of them */
    int wake_fd;             /* eventfd: interrupt */
};

static inline struct st_pg *st_pg_of(struct st_store *s)
{
    return (struct st_pg *)s;
}

/* A new connection for this URL (NULL = the store's), with a deadline of timeout_ms, close-on-exec, application_name stint.
 * NULL = err filled (EAGAIN, or ESTORE where no second try helps). */
PGconn *st_pg_connect(struct st_pg *s, const char *conninfo, bool *pooled, stint_error *err);
/* Sends nothing; waits for and collects results with the handle's deadline. */

/* ---- schema (postgres_schema.c) ------------------------------------------------------------------- */

struct st_pg_migration {
    int version;
    int compat;            /* programs that know this version can work beside it */
    const char *up, *down; /* with {s} */
};
extern const struct st_pg_migration st_pg_migrations[];
extern const int st_pg_n_migrations;

/* Is the schema one that this program knows?  *have 0 = none there.  ESTORE with the command to run if not. */
stint_code st_pg_schema_check(struct st_pg *s, const struct st_pg_migration *list, int n, int *have, stint_error *err);
stint_code st_pg_schema_up(struct st_pg *s, const struct st_pg_migration *list, int n, stint_error *err);
stint_code st_pg_schema_down(struct st_pg *s, const struct st_pg_migration *list, int n, int to, stint_error *err);

/* ---- lanes and marks (postgres_lane.c, postgres_mark.c) ------------------------------------------- */

/* Reads the registry if it may have changed (force: anyway). */
stint_code st_pg_lanes_refresh(struct st_pg *s, bool force, stint_error *err);
struct st_pg_lane *st_pg_lane_by_id(struct st_pg_shared *sh, int64_t id); /* odd or even; NULL = unknown.  Under mu */
void st_pg_lanes_clear(struct st_pg_shared *sh); /* frees lanes and policies, for the last handle */

extern const struct st_pg_pos st_pg_begin; /* before every row */
/* Everything known about positions is forgotten: the next claim looks from the beginning.  Under mu. */
void st_pg_marks_forget(struct st_pg_shared *sh);
/* Where a claim begins in an even lane.  Under mu. */
const struct st_pg_pos *st_pg_mark_from(const struct st_pg_lane *lane);
/* What a claim has found in one even lane. */
struct st_pg_seen {
    struct st_pg_lane *lane;
    struct st_pg_pos from, first,
        mark;        /* where it began; the first row still there, or how far it looked; the last it took */
    uint64_t sweeps; /* of the lane, when it began */
    bool skipped;    /* it was not looked at */
    size_t n;        /* how many it took */
};
/* The claim is committed: learn from it.  Under mu. */
void st_pg_marks_learn(struct st_pg_shared *sh, uint64_t xid, const char *snapshot, const struct st_pg_seen *seen,
                       size_t n);
/* Time for a sweep from the beginning?  Under mu. */
void st_pg_marks_sweep(struct st_pg_shared *sh);
void st_pg_marks_swept(struct st_pg_shared *sh, int64_t took_us);
/* The number of a policy, made if need be. */
stint_code st_pg_policy_id(struct st_pg *s, const struct st_policy *p, int32_t *id, stint_error *err);

/* ---- the operations, one per entry of struct st_store_ops ------------------------------------------ */

#define ST_PG_OP(name, ...) stint_code st_pg_##name(struct st_store *s, __VA_ARGS__, stint_error *err)
ST_PG_OP(enqueue, int64_t now_us, const struct st_new_job *jobs, size_t n, struct st_enqueued *out);
ST_PG_OP(enqueue_tx, void *conn, int64_t now_us, const struct st_new_job *jobs, size_t n, struct st_enqueued *out);
ST_PG_OP(claim, const struct st_claim_req *req, struct st_job **out, size_t *n_out);
ST_PG_OP(exchange, int64_t now_us, struct st_finish *items, size_t n, const struct st_claim_req *req,
         struct st_job **out, size_t *n_out, bool *finished);
ST_PG_OP(acquire_many, struct st_acquire *items, size_t n, const struct st_claim_req *req);
ST_PG_OP(acquire, struct st_slice id, const struct st_claim_req *req, struct st_job **out, enum st_refusal *why);
ST_PG_OP(renew, int64_t now_us, struct st_renew *items, size_t n);
ST_PG_OP(finish, int64_t now_us, struct st_finish *items, size_t n);
ST_PG_OP(transact, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg, struct st_finish *fin);
ST_PG_OP(transact_open, int64_t now_us, const struct st_hold *hold, st_tx_fn fn, void *arg);
void st_pg_abandon(struct st_store *s);
ST_PG_OP(reap, int64_t now_us, struct st_slice me, struct st_reaped *out, size_t max, size_t *n_out);
ST_PG_OP(disown, int64_t now_us, struct st_slice worker, const struct st_slice *known, size_t n, size_t *n_given);
ST_PG_OP(flagged, struct st_slice worker, char (*ids)[ST_ID_MAX + 1], size_t max, size_t *n_out);
ST_PG_OP(cancel, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts, bool *asked);
ST_PG_OP(retry, int64_t now_us, const struct st_slice *ids, size_t n, stint_code *verdicts);
ST_PG_OP(discard, const struct st_slice *ids, size_t n, stint_code *verdicts, struct st_pruned *out);
ST_PG_OP(pause, int64_t now_us, struct st_slice queue, bool paused);
ST_PG_OP(get_job, int64_t now_us, struct st_slice id, struct st_job_info *out);
ST_PG_OP(list, const struct st_list_req *req, struct st_job_info **out, size_t *n_out, uint64_t *next);
ST_PG_OP(queues, int64_t now_us, struct st_queue_info **out, size_t *n_out);
ST_PG_OP(next_due, int64_t now_us, int64_t *due_us);
ST_PG_OP(prune, const struct st_prune_req *req, struct st_pruned *out);
ST_PG_OP(upkeep, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us);
ST_PG_OP(worker_beat, int64_t now_us, const struct st_worker_info *w);
ST_PG_OP(worker_list, struct st_worker_info **out, size_t *n_out);
ST_PG_OP(worker_remove, int64_t now_us, struct st_slice id, bool expire_leases, int64_t epoch, int64_t if_beat_us);
ST_PG_OP(lead, const struct st_lead_req *req, struct st_lead *out);
ST_PG_OP(wait, int timeout_ms, bool *woken);
ST_PG_OP(watch, struct st_slice worker, const struct st_slice *queues, size_t n, bool work);
ST_PG_OP(schema, bool up, struct st_schema *out);
ST_PG_OP(backup, const char *path, st_progress_fn progress, void *arg);
ST_PG_OP(check, st_finding_fn found, void *arg);
void st_pg_interrupt(struct st_store *s);
unsigned st_pg_news(struct st_store *s);
void st_pg_about(struct st_store *s, struct st_store_about *out);
void st_pg_wait_close(struct st_pg *s);
void st_pg_care_close(struct st_pg *s);

#endif
