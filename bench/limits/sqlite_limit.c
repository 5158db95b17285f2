/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_limit.c - how fast this disk and SQLite can do what the store asks of them.
 *
 * The statements are the store's own (sqlite_sql.inc), and so are the settings of the connection; nothing else is:
 * one thread, one connection, no queue between, no worker, no leases to keep, no choice between lanes.  What
 * `stint bench` reaches beside it is the share that is left when a whole worker stands around the same SQL.
 *
 *     drain      BEGIN; finish the batch before; claim the next one; counts; COMMIT     until nothing is ready
 *     --two      the same with a transaction for each of the two
 *     --enqueue  BEGIN; insert a batch; counts; COMMIT
 *
 * The store must exist: `stint bench --only batch --store sqlite:FILE` makes and fills one.  A drained store
 * is a sound store: fences, counts and states are as a worker leaves them.  Left out, because a claim asks it
 * once per batch and not per job: what has become due, which queues are paused, which lanes are new.
 */
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
#define X(name, flags, sql) SQ_##name,
#include "store/sqlite_sql.inc"
#undef X
    SQ_N
};

static const char *const texts[SQ_N] = {
#define X(name, flags, sql) [SQ_##name] = sql,
#include "store/sqlite_sql.inc"
#undef X
};

/* As the store writes them. */
enum { CLAIMED = 2 };
enum { SHOWN_PENDING = 2, SHOWN_CLAIMED = 4, SHOWN_SUCCEEDED = 6 };

#define QUEUE       "bench"
#define TYPE        "bench.noop"
#define WORKER      "limit-00000000-0000-0000-0000-000000000000"
#define LEASE_US    (60 * 1000000LL)
#define BATCH_MAX   10000
#define PAYLOAD_MAX (1 << 20)

/* What a worker must have of a job before it can run it: copied out of the row. */
struct job {
    int64_t seq, fence;
    int attempt;
    size_t id_len, payload_len;
    char bytes[]; /* id, payload */
};

struct limit {
    sqlite3 *db;
    sqlite3_stmt *stmt[SQ_N];
    int64_t lane, policy;
    struct job **held;
    size_t n_held;

    const char *path;
    int64_t batch, enqueue, payload_len;
    bool normal, two;
};

static void die(struct limit *l, const char *what)
{
    fprintf(stderr, "sqlite_limit: %s: %s\n", what, l->db ? sqlite3_errmsg(l->db) : "no memory");
    exit(1);
}

static int64_t clock_us(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* ---- statements --------------------------------------------------------------------------- */

static sqlite3_stmt *get(struct limit *l, int which)
{
    if (!l->stmt[which] &&
        sqlite3_prepare_v3(l->db, texts[which], -1, SQLITE_PREPARE_PERSISTENT, &l->stmt[which], NULL) != SQLITE_OK)
        die(l, texts[which]);
    return l->stmt[which];
}

static void run(struct limit *l, sqlite3_stmt *st)
{
    if (sqlite3_step(st) != SQLITE_DONE)
        die(l, sqlite3_sql(st));
    sqlite3_reset(st);
}

/* For an UPDATE of one row whose guard must hold. */
static void run_one(struct limit *l, sqlite3_stmt *st)
{
    run(l, st);
    if (sqlite3_changes(l->db) != 1) {
        fprintf(stderr, "sqlite_limit: a row did not change: is a worker running on this store?\n");
        exit(1);
    }
}

static void count(struct limit *l, int bucket, int64_t n)
{
    sqlite3_stmt *st = get(l, SQ_COUNT_ADD);

    if (!n)
        return;
    sqlite3_bind_int64(st, 1, l->lane);
    sqlite3_bind_int(st, 2, bucket);
    sqlite3_bind_int64(st, 3, n);
    run(l, st);
}

/* ---- opening ------------------------------------------------------------------------------ */

static int64_t query_int(struct limit *l, const char *sql)
{
    sqlite3_stmt *st = NULL;
    int64_t v = 0;

    if (sqlite3_prepare_v2(l->db, sql, -1, &st, NULL) != SQLITE_OK)
        die(l, sql);
    if (sqlite3_step(st) == SQLITE_ROW)
        v = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return v;
}

static void find_lane(struct limit *l)
{
    sqlite3_stmt *st;

    l->lane = query_int(l, "SELECT id FROM lane WHERE queue = '" QUEUE "' AND type = '" TYPE "'");
    if (l->lane)
        return;
    st = get(l, SQ_LANE_ADD);
    sqlite3_bind_text(st, 1, QUEUE, -1, SQLITE_STATIC);
    sqlite3_bind_text(st, 2, TYPE, -1, SQLITE_STATIC);
    run(l, st);
    l->lane = sqlite3_last_insert_rowid(l->db);
}

/* The number of a policy; its text is never read here. */
static void find_policy(struct limit *l)
{
    sqlite3_stmt *st;

    l->policy = query_int(l, "SELECT min(id) FROM policy");
    if (l->policy)
        return;
    st = get(l, SQ_POLICY_ADD);
    sqlite3_bind_text(st, 1, "{}", -1, SQLITE_STATIC);
    run(l, st);
    l->policy = sqlite3_last_insert_rowid(l->db);
}

/* The settings are those of the store's write connection. */
static void open_store(struct limit *l)
{
    const char *pragmas = "PRAGMA journal_mode = WAL;"
                          "PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -2000;"
                          "PRAGMA journal_size_limit = 16777216; PRAGMA wal_autocheckpoint = 1000;"
                          "PRAGMA foreign_keys = OFF; PRAGMA trusted_schema = OFF";

    if (sqlite3_open_v2(l->path, &l->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        die(l, l->path);
    sqlite3_busy_timeout(l->db, 5000);
    if (sqlite3_exec(l->db, pragmas, NULL, NULL, NULL) != SQLITE_OK ||
        (l->normal && sqlite3_exec(l->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL) != SQLITE_OK))
        die(l, "pragmas");
    find_lane(l);
    find_policy(l);
}

/* Closing writes the log back into the file, as it does when a worker ends. */
static void close_store(struct limit *l)
{
    for (int i = 0; i < SQ_N; i++)
        sqlite3_finalize(l->stmt[i]);
    sqlite3_close(l->db);
}

/* ---- drain -------------------------------------------------------------------------------- */

static void finish_one(struct limit *l, const struct job *job, int64_t now)
{
    sqlite3_stmt *st = get(l, SQ_SUCCEED_AS);

    sqlite3_bind_int64(st, 1, job->seq);
    sqlite3_bind_int64(st, 2, job->fence);
    sqlite3_bind_int64(st, 3, now);
    sqlite3_bind_int64(st, 4, now);
    for (int i = 5; i <= 11; i++)
        sqlite3_bind_null(st, i); /* no result, no exit code, no log */
    sqlite3_bind_int(st, 12, CLAIMED);
    sqlite3_bind_text(st, 13, job->bytes, (int)job->id_len, SQLITE_STATIC);
    run_one(l, st);
}

static size_t finish(struct limit *l)
{
    const size_t n = l->n_held;
    const int64_t now = clock_us(CLOCK_REALTIME);

    for (size_t i = 0; i < n; i++) {
        finish_one(l, l->held[i], now);
        free(l->held[i]);
    }
    l->n_held = 0;
    return n;
}

static struct job *job_from(struct limit *l, sqlite3_stmt *st)
{
    const size_t id_len = (size_t)sqlite3_column_bytes(st, 1), len = (size_t)sqlite3_column_bytes(st, 9);
    struct job *job = malloc(sizeof(*job) + id_len + len);

    if (!job)
        die(l, "a job");
    job->seq = sqlite3_column_int64(st, 0);
    job->attempt = sqlite3_column_int(st, 4) + 1;
    job->fence = sqlite3_column_int64(st, 5) + 1;
    job->id_len = id_len;
    job->payload_len = len;
    memcpy(job->bytes, sqlite3_column_text(st, 1), id_len);
    if (len)
        memcpy(job->bytes + id_len, sqlite3_column_blob(st, 9), len);
    return job;
}

/* All of a batch with one statement. */
static void mark(struct limit *l, int64_t now)
{
    sqlite3_stmt *st = get(l, SQ_CLAIM_MANY);
    char *seqs = malloc(l->n_held * 24 + 16);
    size_t at = 0;

    if (!seqs)
        die(l, "a batch");
    for (size_t i = 0; i < l->n_held; i++)
        at += (size_t)sprintf(seqs + at, "%c%lld", i ? ',' : '[', (long long)l->held[i]->seq);
    seqs[at++] = ']';
    sqlite3_bind_text(st, 1, seqs, (int)at, SQLITE_STATIC);
    sqlite3_bind_int(st, 2, CLAIMED);
    sqlite3_bind_int64(st, 3, now + LEASE_US);
    sqlite3_bind_text(st, 4, WORKER, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 5, l->policy);
    sqlite3_bind_null(st, 6);
    run(l, st);
    if (sqlite3_changes(l->db) != (int)l->n_held)
        die(l, "a claimed row did not change");
    free(seqs);
}

/* Rows first, then updates: no index changes under the scan. */
static size_t claim(struct limit *l)
{
    const int64_t now = clock_us(CLOCK_REALTIME);
    sqlite3_stmt *st = get(l, SQ_READY);
    int rc;

    sqlite3_bind_int64(st, 1, l->lane);
    sqlite3_bind_int64(st, 2, l->batch);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        l->held[l->n_held++] = job_from(l, st);
    if (rc != SQLITE_DONE)
        die(l, "ready");
    sqlite3_reset(st);
    if (l->n_held)
        mark(l, now);
    return l->n_held;
}

/* Counts as they are after `finished` jobs ended and `claimed` ones were taken, and the end of the transaction. */
static void commit(struct limit *l, size_t finished, size_t claimed)
{
    count(l, SHOWN_PENDING, -(int64_t)claimed);
    count(l, SHOWN_CLAIMED, (int64_t)claimed - (int64_t)finished);
    count(l, SHOWN_SUCCEEDED, (int64_t)finished);
    run(l, get(l, SQ_COMMIT));
}

static int64_t drain(struct limit *l)
{
    size_t finished, claimed;
    int64_t total = 0;

    do {
        run(l, get(l, SQ_BEGIN));
        finished = finish(l);
        if (l->two && finished) {
            commit(l, finished, 0);
            run(l, get(l, SQ_BEGIN));
        }
        claimed = claim(l);
        commit(l, l->two ? 0 : finished, claimed);
        total += (int64_t)finished;
    } while (claimed);
    return total;
}

/* ---- enqueue ------------------------------------------------------------------------------ */

/* The form of the store's ids: time first, so that they grow. */
static void new_id(char id[37], int64_t now)
{
    static uint64_t serial;
    const uint64_t ms = (uint64_t)(now / 1000), n = serial++;

    snprintf(id, 37, "%08x-%04x-7%03x-8%03x-%012llx", (unsigned)(ms >> 16), (unsigned)(ms & 0xffff),
             (unsigned)(n >> 24) & 0xfff, (unsigned)(n >> 12) & 0xfff,
             (unsigned long long)(n * 0x9e3779b97f4a7c15ULL >> 16));
}

static void add_one(struct limit *l, const char *payload, int64_t now)
{
    sqlite3_stmt *st = get(l, SQ_JOB_ADD), *bytes = get(l, SQ_PAYLOAD_ADD);
    char id[37];

    new_id(id, now);
    sqlite3_bind_text(st, 1, id, 36, SQLITE_STATIC);
    sqlite3_bind_int64(st, 2, l->lane);
    sqlite3_bind_int(st, 3, 1);
    sqlite3_bind_int(st, 4, 0);
    sqlite3_bind_int64(st, 5, now);
    sqlite3_bind_int(st, 8, 0);
    sqlite3_bind_int64(st, 10, now); /* the others stay NULL: not given */
    run_one(l, st);
    sqlite3_bind_int64(bytes, 1, sqlite3_last_insert_rowid(l->db));
    sqlite3_bind_blob(bytes, 2, payload, (int)l->payload_len, SQLITE_STATIC);
    run(l, bytes);
}

static int64_t enqueue(struct limit *l)
{
    char *payload = malloc((size_t)l->payload_len);
    int64_t done = 0, n, now;

    if (!payload)
        die(l, "payload");
    memset(payload, '0', (size_t)l->payload_len);
    payload[0] = '1';
    for (; done < l->enqueue; done += n) {
        n = l->enqueue - done < l->batch ? l->enqueue - done : l->batch;
        now = clock_us(CLOCK_REALTIME);
        run(l, get(l, SQ_BEGIN));
        for (int64_t i = 0; i < n; i++)
            add_one(l, payload, now);
        count(l, SHOWN_PENDING, n);
        run(l, get(l, SQ_COMMIT));
    }
    free(payload);
    return done;
}

/* ---- the program --------------------------------------------------------------------------- */

static void usage(void)
{
    fprintf(stderr,
            "usage: sqlite_limit FILE [--batch N] [--sync full|normal] [--two] [--enqueue N] [--payload BYTES]\n"
            "Drains the queue `" QUEUE "` of a store made by `stint bench --only batch`, or fills it.\n");
    exit(2);
}

static int64_t number(const char *text, int64_t max)
{
    char *end;
    long long v = text ? strtoll(text, &end, 10) : 0;

    if (!text || *end || v < 1 || v > max)
        usage();
    return v;
}

static void read_options(struct limit *l, char **argv)
{
    for (char **a = argv + 1; *a; a++) {
        if (strcmp(*a, "--two") == 0) {
            l->two = true;
        } else if (strcmp(*a, "--batch") == 0) {
            l->batch = number(*++a, BATCH_MAX);
        } else if (strcmp(*a, "--enqueue") == 0) {
            l->enqueue = number(*++a, 100000000);
        } else if (strcmp(*a, "--payload") == 0) {
            l->payload_len = number(*++a, PAYLOAD_MAX);
        } else if (strcmp(*a, "--sync") == 0) {
            if (!*++a || (strcmp(*a, "full") != 0 && strcmp(*a, "normal") != 0))
                usage();
            l->normal = strcmp(*a, "normal") == 0;
        } else if (**a == '-' || l->path) {
            usage();
        } else {
            l->path = *a;
        }
    }
    if (!l->path)
        usage();
}

/* Opening and closing count where `stint bench` counts them: for a drain, not for an enqueue. */
int main(int argc, char **argv)
{
    struct limit l = {.batch = 500, .payload_len = 60};
    int64_t start, end, jobs;
    double seconds;

    (void)argc;
    read_options(&l, argv);
    l.held = calloc((size_t)l.batch, sizeof(struct job *));
    if (!l.held)
        die(&l, "a batch");
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0); /* as the program does */
    start = clock_us(CLOCK_MONOTONIC);
    open_store(&l);
    if (l.enqueue)
        start = clock_us(CLOCK_MONOTONIC);
    jobs = l.enqueue ? enqueue(&l) : drain(&l);
    end = clock_us(CLOCK_MONOTONIC);
    close_store(&l);
    if (!l.enqueue)
        end = clock_us(CLOCK_MONOTONIC);
    seconds = (double)(end - start) / 1e6;
    free(l.held);
    printf("{\"what\":\"%s\",\"jobs\":%lld,\"batch\":%lld,\"transactions\":%d,\"sync\":\"%s\",\"sqlite\":\"%s\","
           "\"seconds\":%.6f,\"per_s\":%.1f}\n",
           l.enqueue ? "enqueue" : "drain", (long long)jobs, (long long)l.batch, l.two ? 2 : 1,
           l.normal ? "normal" : "full", sqlite3_libversion(), seconds, (double)jobs / seconds);
    return 0;
}
