/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_limit.c - how fast this server can do what the store asks of it.
 *
 * The tables are the store's own (src/store/sql/), and every row is moved as a worker moves it;
 * nothing else is: one connection, no worker, no leases to keep, no choice between lanes, no
 * verdicts.  Two ways, and the limit is the better one:
 *
 *     plain       prepared statements written for this loop
 *     functions   the schema's own functions, called with the fewest arguments
 *
 *     drain      finish the batch before, claim the next one      until nothing is ready;
 * pipelined: one round trip and one commit per batch
 *     --two      the same with a round trip and a commit for each of the two
 *     --enqueue  a batch into `entry` and `ready`, and its count: one round trip, one commit
 *     --pin      a second connection holds a REPEATABLE READ snapshot all the while
 *
 * The claimer remembers the last job it took and starts there, which is right as long as nobody
 * else puts jobs behind it. One line of JSON comes out.  `fifths` are rates over each fifth of the
 * jobs.
 */
#include <endian.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE     "bench"
#define TYPE      "bench.noop"
#define WORKER    "limit-00000000-0000-0000-0000-000000000000"
#define LEASE_US  (60 * 1000000LL)
#define BATCH_MAX 10000
#define KEY_LEN   17 /* 0 and the 16 bytes of a UUID */
#define SLOT_MS   133200000
#define PARAM_MAX 24
#define FIFTHS    5

enum { BYTEA = 17, INT8 = 20, INT2 = 21, INT4 = 23, TEXT = 25 };

struct job {
    unsigned char id[KEY_LEN];
    int64_t key, fence;
    int payload_len;
    unsigned char payload[256]; /* what a worker must have before it can run it */
};

struct limit {
    PGconn *c;
    PGconn *pin;
    const char *conninfo, *schema;
    const char *variant; /* of a drain: plain, functions; of an enqueue: values, unnest, functions */
    int64_t lane, gid;
    int64_t from; /* the last (key, id) that was claimed */
    unsigned char from_id[KEY_LEN];
    int policy;
    struct job *held;
    size_t n_held;

    int64_t batch, enqueue, payload_len;
    bool two, pinned;
};

static void die(struct limit *l, const char *what)
{
    fprintf(stderr, "postgres_limit: %s: %s\n", what, l->c ? PQerrorMessage(l->c) : "no memory");
    exit(1);
}

static int64_t clock_us(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* ---- parameters, in binary ---------------------------------------------------------------- */

struct params {
    int n;
    unsigned char *buf[PARAM_MAX];
    size_t len[PARAM_MAX], cap[PARAM_MAX];
};

static void put(struct params *p, const void *bytes, size_t n)
{
    int i = p->n - 1;

    if (p->len[i] + n > p->cap[i]) {
        p->cap[i] = (p->len[i] + n) * 2 + 64;
        p->buf[i] = realloc(p->buf[i], p->cap[i]);
        if (!p->buf[i])
            abort();
    }
    memcpy(p->buf[i] + p->len[i], bytes, n);
    p->len[i] += n;
}

static void put32(struct params *p, int32_t v)
{
    uint32_t be = htobe32((uint32_t)v);

    put(p, &be, 4);
}

static void put64(struct params *p, int64_t v)
{
    uint64_t be = htobe64((uint64_t)v);

    put(p, &be, 8);
}

static void next(struct params *p)
{
    p->len[p->n++] = 0;
}

static void add_i64(struct params *p, int64_t v)
{
    next(p);
    put64(p, v);
}

static void add_i32(struct params *p, int32_t v)
{
    next(p);
    put32(p, v);
}

static void add_bytes(struct params *p, const void *bytes, size_t n)
{
    next(p);
    put(p, bytes, n);
}

/* The head of an array of n items; each follows as its length and its bytes. */
static void add_array(struct params *p, int elem, size_t n, bool nulls)
{
    next(p);
    put32(p, 1);
    put32(p, nulls);
    put32(p, elem);
    put32(p, (int32_t)n);
    put32(p, 1);
}

static void item_i64(struct params *p, int64_t v)
{
    put32(p, 8);
    put64(p, v);
}

static void item_i16(struct params *p, int v)
{
    uint16_t be = htobe16((uint16_t)v);

    put32(p, 2);
    put(p, &be, 2);
}

static void item_bytes(struct params *p, const void *bytes, size_t n)
{
    put32(p, (int32_t)n);
    put(p, bytes, n);
}

static void add_nulls(struct params *p, int elem, size_t n)
{
    add_array(p, elem, n, true);
    for (size_t i = 0; i < n; i++)
        put32(p, -1);
}

/* ---- statements --------------------------------------------------------------------------- */

/* The work of one transaction is sent without waiting in between, and answered at the end. */
static void send(struct limit *l, const char *name, struct params *p)
{
    const char *values[PARAM_MAX];
    int lengths[PARAM_MAX], formats[PARAM_MAX];

    for (int i = 0; i < p->n; i++) {
        values[i] = (const char *)p->buf[i];
        lengths[i] = (int)p->len[i];
        formats[i] = 1;
    }
    if (!PQsendQueryPrepared(l->c, name, p->n, values, lengths, formats, 1))
        die(l, name);
    p->n = 0;
}

static void sync_point(struct limit *l)
{
    if (!PQpipelineSync(l->c))
        die(l, "sync");
}

/* The next statement's answer. */
static PGresult *answer(struct limit *l, const char *what)
{
    PGresult *r = PQgetResult(l->c), *end;

    if (!r || (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK))
        die(l, what);
    end = PQgetResult(l->c);
    if (end)
        die(l, what);
    return r;
}

static void synced(struct limit *l)
{
    PGresult *r = PQgetResult(l->c);

    if (!r || PQresultStatus(r) != PGRES_PIPELINE_SYNC)
        die(l, "commit");
    PQclear(r);
}

static void prepare(struct limit *l, const char *name, const char *sql)
{
    PGresult *r = PQprepare(l->c, name, sql, 0, NULL);

    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        die(l, name);
    PQclear(r);
}

static void prepare_plain(struct limit *l)
{
    prepare(l, "claim",
            "WITH s AS MATERIALIZED (SELECT x.ctid AS tid FROM ready x WHERE x.lane = $1::int8 "
            "AND (x.key, x.id) >= ($2::int8, $7::bytea) AND x.key <= $3::int8 ORDER BY x.lane, x.key, "
            "x.id LIMIT $4::int4), "
            "d AS MATERIALIZED (DELETE FROM ready x WHERE x.ctid = ANY (ARRAY(SELECT s.tid FROM s)) "
            "RETURNING x.lane, x.key, x.fence + 1 AS fence, x.attempt + 1 AS attempt, x.slot, x.skips, "
            "x.keyed, x.id, x.at), "
            "g AS (INSERT INTO grp(gid, look_at, lease, policy, n, worker, ids) "
            "SELECT nextval('grp_seq'), $3 + $5::int8, $5, $6::int4, count(*), '" WORKER "', array_agg(d.id) FROM d "
            "HAVING count(*) > 0 RETURNING gid), "
            "l AS (INSERT INTO lease(gid, lane, fence, until, due, started, attempt, slot, skips, "
            "keyed, id) "
            "SELECT g.gid, d.lane, d.fence, $3 + $5, d.key, NULL, d.attempt, d.slot, d.skips, d.keyed, "
            "d.id "
            "FROM g CROSS JOIN d), "
            "t AS (INSERT INTO tally(lane, waiting) SELECT $1, -count(*) FROM d HAVING count(*) > 0) "
            "SELECT d.id, d.key, d.fence, e.payload, g.gid FROM g CROSS JOIN d "
            "LEFT JOIN LATERAL (SELECT e.payload FROM entry e WHERE e.ctid = d.at AND e.id = d.id "
            "AND e.slot = d.slot LIMIT 1) e ON true");
    /* The lookup is lateral, with a limit, so that no planner can begin with the other side; nobody
     * else is here, so what was found is what is deleted, and the caller compares the counts. */
    prepare(l, "finish",
            "WITH x AS MATERIALIZED (SELECT l.* FROM unnest($1::bytea[], $2::int8[]) u(id, fence) "
            "CROSS JOIN LATERAL "
            "(SELECT l.ctid AS tid, l.id, l.fence, l.attempt, l.slot FROM lease l WHERE l.id = u.id "
            "AND l.fence = u.fence "
            "LIMIT 1) l), "
            "d AS (DELETE FROM lease l WHERE l.ctid = ANY (ARRAY(SELECT x.tid FROM x)) RETURNING 1), "
            "e AS (INSERT INTO ended(fence, finished, started, n, policy, slot, part, outcome, state, "
            "kind, id, worker) "
            "SELECT x.fence, $3::int8, $3, x.attempt, $4::int4, x.slot, 0, 0, 4, 0, x.id, '" WORKER "' FROM x), "
            "g AS (DELETE FROM grp WHERE gid = $5::int8), "
            "t AS (INSERT INTO tally(lane, waiting, succeeded) SELECT $6::int8, 0, count(*) FROM x) "
            "SELECT count(*) FROM d");
    prepare(l, "entries",
            "INSERT INTO entry(lane, created, due, slot, umode, id, payload) "
            "SELECT $1::int8, $2::int8, $2, $3::int2, 0, u.id, u.payload FROM unnest($4::bytea[], "
            "$5::bytea[]) u(id, payload)");
    prepare(l, "readies",
            "INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id) "
            "SELECT $1::int8, $2::int8, 0, 0, $3::int2, 0, false, u.id FROM unnest($4::bytea[]) u(id)");
    prepare(l, "count", "INSERT INTO tally(lane, waiting) VALUES ($1::int8, $2::int8)");
}

static void prepare_functions(struct limit *l)
{
    prepare(l, "claim_fn",
            "SELECT id, key, fence, payload, 0::int8 FROM _claim(0, '" WORKER
            "', $1::int4, 0, ARRAY[$2::int8], ARRAY[0], "
            "ARRAY[1], ARRAY[$3::int8], ARRAY[$6::bytea], ARRAY[$4::int8], ARRAY[$5::int4], "
            "ARRAY[$1], false, false) WHERE ord > 0");
    prepare(l, "finish_fn",
            "SELECT sum(CASE ord WHEN 0 THEN cardinality($1::bytea[]) ELSE 1 END)::int8 FROM _settle(0, "
            "NULL, $1, $2::int8[], $3::int2[], $4::int8[], $5::int8[], NULL, NULL, NULL, NULL, NULL, "
            "NULL, NULL, NULL, NULL, false)");
    prepare(l, "enqueue_fn",
            "SELECT _enqueue(0, ARRAY[$1::int8], ARRAY['" QUEUE "'], ARRAY['" TYPE
            "'], ARRAY[0], $2::bytea[], $3::int2[], "
            "$4::int8[], $5::int8[], $5, $6::int4[], $7::int8[], $8::bytea[], $9::bytea[])");
}

/* ---- opening ------------------------------------------------------------------------------ */

static PGconn *connect_to(struct limit *l)
{
    PGconn *c = PQconnectdb(l->conninfo);

    if (PQstatus(c) != CONNECTION_OK) {
        fprintf(stderr, "postgres_limit: %s", PQerrorMessage(c));
        exit(1);
    }
    return c;
}

static int64_t query_int(struct limit *l, const char *sql)
{
    PGresult *r = PQexec(l->c, sql);
    int64_t v;

    if (PQresultStatus(r) != PGRES_TUPLES_OK || PQntuples(r) != 1)
        die(l, sql);
    v = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return v;
}

static void run(struct limit *l, PGconn *c, const char *sql)
{
    PGresult *r = PQexec(c, sql);

    if (PQresultStatus(r) != PGRES_COMMAND_OK && PQresultStatus(r) != PGRES_TUPLES_OK) {
        l->c = c;
        die(l, sql);
    }
    PQclear(r);
}

/* The planner's settings are those of the store's functions: only the indexes. */
static void open_store(struct limit *l)
{
    char sql[512], *schema;

    l->c = connect_to(l);
    schema = PQescapeIdentifier(l->c, l->schema, strlen(l->schema));
    snprintf(sql, sizeof(sql),
             "SET search_path = %s; SET enable_seqscan = off; SET enable_bitmapscan = off; SET "
             "enable_hashjoin = off;"
             "SET enable_mergejoin = off; SET enable_material = off; SET plan_cache_mode = "
             "force_generic_plan; SET jit = off",
             schema);
    run(l, l->c, sql);
    PQfreemem(schema);
    l->lane = query_int(l, "SELECT _lane('" QUEUE "', '" TYPE "', 0)");
    run(l, l->c,
        "SELECT _lanes_note(ARRAY[_lane('" QUEUE "', '" TYPE "', 0)], ARRAY['" QUEUE "'], ARRAY['" TYPE
        "'], ARRAY[0])");
    run(l, l->c, "INSERT INTO policy(text) VALUES ('{}') ON CONFLICT DO NOTHING");
    l->policy = (int)query_int(l, "SELECT min(id) FROM policy");
    if (strcmp(l->variant, "functions") == 0)
        prepare_functions(l);
    else
        prepare_plain(l);
    if (l->pinned) {
        l->pin = connect_to(l);
        run(l, l->pin, "BEGIN ISOLATION LEVEL REPEATABLE READ");
        run(l, l->pin, "SELECT count(*) FROM pg_class");
    }
}

/* ---- drain -------------------------------------------------------------------------------- */

static void add_held_ids(struct limit *l, struct params *p)
{
    add_array(p, BYTEA, l->n_held, false);
    for (size_t i = 0; i < l->n_held; i++)
        item_bytes(p, l->held[i].id, KEY_LEN);
    add_array(p, INT8, l->n_held, false);
    for (size_t i = 0; i < l->n_held; i++)
        item_i64(p, l->held[i].fence);
}

static void send_finish_fn(struct limit *l, struct params *p)
{
    const size_t n = l->n_held;

    add_held_ids(l, p);
    add_array(p, INT2, n, false); /* outcome: succeeded */
    for (size_t i = 0; i < n; i++)
        item_i16(p, 0);
    add_array(p, INT8, n, false); /* delay */
    for (size_t i = 0; i < n; i++)
        item_i64(p, 0);
    add_array(p, INT8, n, false); /* started so long ago */
    for (size_t i = 0; i < n; i++)
        item_i64(p, 0);
    send(l, "finish_fn", p);
}

static void send_finish(struct limit *l, struct params *p)
{
    if (strcmp(l->variant, "functions") == 0) {
        send_finish_fn(l, p);
        return;
    }
    add_held_ids(l, p);
    add_i64(p, clock_us(CLOCK_REALTIME));
    add_i32(p, l->policy);
    add_i64(p, l->gid);
    add_i64(p, l->lane);
    send(l, "finish", p);
}

static void send_claim(struct limit *l, struct params *p)
{
    if (strcmp(l->variant, "functions") == 0) {
        add_i32(p, (int32_t)l->batch);
        add_i64(p, l->lane);
        add_i64(p, l->from);
        add_i64(p, LEASE_US);
        add_i32(p, l->policy);
        add_bytes(p, l->from_id, KEY_LEN);
        send(l, "claim_fn", p);
        return;
    }
    add_i64(p, l->lane);
    add_i64(p, l->from);
    add_i64(p, clock_us(CLOCK_REALTIME));
    add_i32(p, (int32_t)l->batch);
    add_i64(p, LEASE_US);
    add_i32(p, l->policy);
    add_bytes(p, l->from_id, KEY_LEN);
    send(l, "claim", p);
}

static int64_t get64(const PGresult *r, int row, int col)
{
    uint64_t be;

    memcpy(&be, PQgetvalue(r, row, col), 8);
    return (int64_t)be64toh(be);
}

static size_t take_finish(struct limit *l)
{
    PGresult *r = answer(l, "finish");
    const size_t n = l->n_held;

    if (get64(r, 0, 0) != (int64_t)n) {
        fprintf(stderr, "postgres_limit: a job was not ours any more: is a worker running on this store?\n");
        exit(1);
    }
    PQclear(r);
    l->n_held = 0;
    return n;
}

static size_t take_claim(struct limit *l)
{
    PGresult *r = answer(l, "claim");
    const int n = PQntuples(r);

    for (int i = 0; i < n; i++) {
        struct job *job = &l->held[i];

        memcpy(job->id, PQgetvalue(r, i, 0), KEY_LEN);
        job->key = get64(r, i, 1);
        job->fence = get64(r, i, 2);
        job->payload_len = PQgetlength(r, i, 3);
        if (job->payload_len > (int)sizeof(job->payload))
            job->payload_len = sizeof(job->payload);
        memcpy(job->payload, PQgetvalue(r, i, 3), (size_t)job->payload_len);
        l->gid = get64(r, i, 4);
        if (job->key > l->from || (job->key == l->from && memcmp(job->id, l->from_id, KEY_LEN) > 0)) {
            l->from = job->key;
            memcpy(l->from_id, job->id, KEY_LEN);
        }
    }
    PQclear(r);
    l->n_held = (size_t)n;
    return l->n_held;
}

struct marks {
    int64_t total, start, at[FIFTHS];
};

/* When each fifth was done. */
static void note(struct marks *m, int64_t done)
{
    for (int i = 0; i < FIFTHS; i++) {
        if (!m->at[i] && done >= m->total * (i + 1) / FIFTHS)
            m->at[i] = clock_us(CLOCK_MONOTONIC);
    }
}

static int64_t drain(struct limit *l, struct marks *m)
{
    struct params p = {0};
    size_t finished, claimed;
    int64_t done = 0;

    if (!PQenterPipelineMode(l->c))
        die(l, "pipeline");
    do {
        finished = l->n_held;
        if (finished)
            send_finish(l, &p);
        if (l->two && finished) {
            sync_point(l);
            take_finish(l);
            synced(l);
        }
        send_claim(l, &p);
        sync_point(l);
        if (!l->two && finished)
            take_finish(l);
        claimed = take_claim(l);
        synced(l);
        done += (int64_t)finished;
        note(m, done);
    } while (claimed);
    PQexitPipelineMode(l->c);
    return done;
}

/* ---- enqueue ------------------------------------------------------------------------------ */

/* The form of the store's ids: time first, so that they grow. */
static void new_id(unsigned char id[KEY_LEN], int64_t now)
{
    static uint64_t serial;
    const uint64_t ms = (uint64_t)(now / 1000), n = serial++, mixed = n * 0x9e3779b97f4a7c15ULL;

    id[0] = 0;
    for (int i = 0; i < 6; i++)
        id[1 + i] = (unsigned char)(ms >> (40 - 8 * i));
    id[7] = (unsigned char)(0x70 | (n >> 24 & 0xf));
    id[8] = (unsigned char)(n >> 16);
    id[9] = (unsigned char)(0x80 | (n >> 10 & 0x3f));
    id[10] = (unsigned char)(n >> 2);
    for (int i = 0; i < 6; i++)
        id[11 + i] = (unsigned char)(mixed >> (56 - 8 * i));
}

static int slot_of(int64_t now)
{
    return (int)(now / 1000 / SLOT_MS % 16);
}

/* As rows: one prepared INSERT ... VALUES ($1, ...), (...), ... per table.  At most so many fit
 * into 65,535 parameters. */
#define VALUES_MAX 5000

static void prepare_values(struct limit *l, int64_t n)
{
    char *sql = malloc((size_t)n * 96 + 256), *s;

    s = sql + sprintf(sql, "INSERT INTO entry(lane, created, due, slot, umode, id, payload) VALUES ");
    for (int64_t i = 0; i < n; i++)
        s += sprintf(s, "%s($1::int8,$2::int8,$2,$3::int2,0,$%lld::bytea,$%lld::bytea)", i ? "," : "",
                     4 + 2 * (long long)i, 5 + 2 * (long long)i);
    prepare(l, "entry_values", sql);
    s = sql + sprintf(sql, "INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id) VALUES ");
    for (int64_t i = 0; i < n; i++)
        s += sprintf(s, "%s($1::int8,$2::int8,0,0,$3::int2,0,false,$%lld::bytea)", i ? "," : "", 4 + (long long)i);
    prepare(l, "ready_values", sql);
    free(sql);
}

struct rows {
    int64_t n, now;
    unsigned char (*ids)[KEY_LEN];
    const char *payload;
};

static void send_values_one(struct limit *l, const char *name, const struct rows *r, bool payload)
{
    const size_t max = 3 + (size_t)r->n * 2;
    const char **values = calloc(max, sizeof(*values));
    int *lengths = calloc(max, sizeof(*lengths)), *formats = calloc(max, sizeof(*formats)), n = 3;
    uint64_t lane = htobe64((uint64_t)l->lane), now = htobe64((uint64_t)r->now);
    uint16_t slot = htobe16((uint16_t)slot_of(r->now));

    if (!values || !lengths || !formats)
        die(l, "no memory");
    values[0] = (char *)&lane, lengths[0] = 8;
    values[1] = (char *)&now, lengths[1] = 8;
    values[2] = (char *)&slot, lengths[2] = 2;
    for (int64_t i = 0; i < r->n; i++) {
        values[n] = (char *)r->ids[i], lengths[n++] = KEY_LEN;
        if (payload)
            values[n] = r->payload, lengths[n++] = (int)l->payload_len;
    }
    for (int i = 0; i < n; i++)
        formats[i] = 1;
    if (!PQsendQueryPrepared(l->c, name, n, values, lengths, formats, 1))
        die(l, name);
    free(values);
    free(lengths);
    free(formats);
}

static void send_unnest(struct limit *l, struct params *p, const struct rows *r)
{
    uint16_t slot = htobe16((uint16_t)slot_of(r->now));

    for (int both = 0; both < 2; both++) {
        add_i64(p, l->lane);
        add_i64(p, r->now);
        add_bytes(p, &slot, 2);
        add_array(p, BYTEA, (size_t)r->n, false);
        for (int64_t i = 0; i < r->n; i++)
            item_bytes(p, r->ids[i], KEY_LEN);
        if (!both) {
            add_array(p, BYTEA, (size_t)r->n, false);
            for (int64_t i = 0; i < r->n; i++)
                item_bytes(p, r->payload, (size_t)l->payload_len);
        }
        send(l, both ? "readies" : "entries", p);
    }
}

static void send_enqueue_fn(struct limit *l, struct params *p, const struct rows *r)
{
    const size_t n = (size_t)r->n;

    add_i64(p, l->lane);
    add_array(p, BYTEA, n, false);
    for (size_t i = 0; i < n; i++)
        item_bytes(p, r->ids[i], KEY_LEN);
    add_array(p, INT2, n, false);
    for (size_t i = 0; i < n; i++)
        item_i16(p, slot_of(r->now));
    add_array(p, INT8, n, false);
    for (size_t i = 0; i < n; i++)
        item_i64(p, l->lane);
    add_array(p, INT8, n, false);
    for (size_t i = 0; i < n; i++)
        item_i64(p, 0);
    add_nulls(p, INT4, n);
    add_nulls(p, INT8, n);
    add_array(p, BYTEA, n, false);
    for (size_t i = 0; i < n; i++)
        item_bytes(p, r->payload, (size_t)l->payload_len);
    add_nulls(p, BYTEA, n);
    send(l, "enqueue_fn", p);
}

/* How many answers will come. */
static int send_rows(struct limit *l, struct params *p, const struct rows *r)
{
    if (strcmp(l->variant, "functions") == 0) {
        send_enqueue_fn(l, p, r);
        return 1;
    }
    if (strcmp(l->variant, "values") == 0) {
        send_values_one(l, "entry_values", r, true);
        send_values_one(l, "ready_values", r, false);
    } else {
        send_unnest(l, p, r);
    }
    add_i64(p, l->lane);
    add_i64(p, r->n);
    send(l, "count", p);
    return 3;
}

static int64_t enqueue(struct limit *l, struct marks *m)
{
    char *payload = malloc((size_t)l->payload_len);
    struct rows r = {.ids = calloc((size_t)l->batch, KEY_LEN), .payload = payload, .n = l->batch};
    struct params p = {0};
    int64_t done = 0;
    int answers;

    if (!payload || !r.ids)
        die(l, "payload");
    memset(payload, '0', (size_t)l->payload_len);
    payload[0] = '1';
    if (strcmp(l->variant, "values") == 0)
        prepare_values(l, r.n);
    PQenterPipelineMode(l->c);
    m->start = clock_us(CLOCK_MONOTONIC);
    for (; done < l->enqueue; done += r.n) {
        r.now = clock_us(CLOCK_REALTIME);
        for (int64_t i = 0; i < r.n; i++)
            new_id(r.ids[i], r.now);
        answers = send_rows(l, &p, &r);
        sync_point(l);
        while (answers-- > 0)
            PQclear(answer(l, "enqueue"));
        synced(l);
        note(m, done + r.n);
    }
    PQexitPipelineMode(l->c);
    free(payload);
    free(r.ids);
    return done;
}

/* ---- the program --------------------------------------------------------------------------- */

static void usage(void)
{
    fprintf(stderr, "usage: postgres_limit CONNINFO [--schema NAME] [--batch N] [--variant "
                    "plain|functions] [--two] [--pin]\n"
                    "       postgres_limit CONNINFO --enqueue N [--variant "
                    "values|unnest|functions] [--batch N] [--payload BYTES]\n"
                    "Drains the queue `" QUEUE "` of a store that `stint migrate up` has made, or fills it.\n");
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
        if (strcmp(*a, "--two") == 0)
            l->two = true;
        else if (strcmp(*a, "--pin") == 0)
            l->pinned = true;
        else if (strcmp(*a, "--batch") == 0)
            l->batch = number(*++a, BATCH_MAX);
        else if (strcmp(*a, "--enqueue") == 0)
            l->enqueue = number(*++a, 100000000);
        else if (strcmp(*a, "--payload") == 0)
            l->payload_len = number(*++a, 256);
        else if (strcmp(*a, "--variant") == 0 && a[1])
            l->variant = *++a;
        else if (strcmp(*a, "--schema") == 0 && a[1])
            l->schema = *++a;
        else if (**a == '-' || l->conninfo)
            usage();
        else
            l->conninfo = *a;
    }
    if (!l->conninfo)
        usage();
    if (!l->variant)
        l->variant = l->enqueue ? "values" : "plain";
    if (strcmp(l->variant, "functions") != 0 && strcmp(l->variant, "plain") != 0 && strcmp(l->variant, "values") != 0 &&
        strcmp(l->variant, "unnest") != 0)
        usage();
    if (l->enqueue && strcmp(l->variant, "values") == 0 && l->batch > VALUES_MAX)
        usage();
}

static void report(struct limit *l, const struct marks *m, int64_t jobs, int64_t end, int64_t wal)
{
    int64_t from = m->start;

    printf("{\"what\":\"%s\",\"variant\":\"%s\",\"batch\":%lld,\"transactions\":%d,\"pinned\":%s,"
           "\"jobs\":%lld,\"per_s\":%.1f,"
           "\"wal_bytes_per_job\":%.1f,\"server\":%d,\"fifths\":[",
           l->enqueue ? "enqueue" : "drain", l->variant, (long long)l->batch, l->two ? 2 : 1,
           l->pinned ? "true" : "false", (long long)jobs, (double)jobs * 1e6 / (double)(end - m->start),
           jobs ? (double)wal / (double)jobs : 0, PQserverVersion(l->c));
    for (int i = 0; i < FIFTHS; i++) {
        int64_t took = m->at[i] - from;

        printf("%s%.0f", i ? "," : "", took > 0 ? (double)jobs / FIFTHS * 1e6 / (double)took : 0);
        from = m->at[i];
    }
    printf("]}\n");
}

int main(int argc, char **argv)
{
    struct limit l = {.schema = "stint", .batch = 500, .payload_len = 60};
    const char *lsn = "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8";
    struct marks m = {0};
    int64_t jobs, wal, end;

    (void)argc;
    read_options(&l, argv);
    l.held = calloc(BATCH_MAX, sizeof(*l.held));
    if (!l.held)
        die(&l, "held");
    open_store(&l);
    wal = query_int(&l, lsn);
    m.total = l.enqueue ? l.enqueue
                        : query_int(&l, "SELECT coalesce(sum(waiting), 0)::int8 FROM tally WHERE lane = "
                                        "_lane('" QUEUE "', '" TYPE "', 0)");
    m.start = clock_us(CLOCK_MONOTONIC);
    jobs = l.enqueue ? enqueue(&l, &m) : drain(&l, &m);
    end = clock_us(CLOCK_MONOTONIC);
    report(&l, &m, jobs, end, query_int(&l, lsn) - wal);
    if (l.pin)
        PQfinish(l.pin);
    PQfinish(l.c);
    free(l.held);
    return 0;
}
