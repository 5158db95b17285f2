/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_postgres.c - what a PostgreSQL server says about a measurement, over a connection of its
 * own.
 *
 * Between begin and end a thread counts connections four times a second; it has a connection of its
 * own too, so that nothing here is used by two threads.  The figures are the server's: of the whole
 * cluster (log, transactions) or of the database (commits, pages), so nothing else should be going
 * on there.
 */
#include "cli/bench_postgres.h"

#include <libpq-fe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"
#include "base/thread.h"

#define SAMPLE_US 250000
#define GONE_MS   3000
#define CHUNK     1000000

struct marks {
    int64_t wal, xid, commits, buffers;
};

struct bench_pg {
    char *conninfo, *schema; /* the schema is quoted for SQL */
    PGconn *c, *pin;
    struct marks at;

    pthread_t thread; /* between begin and end */
    bool sampling;
    atomic_bool stop;
    atomic_int connections;
};

/* ---- the URL ----------------------------------------------------------------------------------
 */

bool bench_pg_is(const char *url)
{
    return strncmp(url, "postgres://", 11) == 0 || strncmp(url, "postgresql://", 13) == 0;
}

/* Our own parameters, which libpq does not know, go; *schema is a copy of the one among them, or
 * NULL. */
static char *strip(const char *url, char **schema)
{
    static const char *const ours[] = {"schema=", "listen=", "notify="};
    const char *q = strchr(url, '?');
    char *out = strdup(url), *to;

    *schema = NULL;
    if (!out || !q)
        return out;
    to = out + (q - url);
    for (char mark = '?'; *q;) {
        size_t len = strcspn(++q, "&"), i = 0;

        while (i < 3 && strncmp(q, ours[i], 7) != 0)
            i++;
        if (i == 0)
            *schema = strndup(q + 7, len - 7);
        if (i == 3) {
            *to++ = mark;
            mark = '&';
            memcpy(to, q, len);
            to += len;
        }
        q += len;
    }
    *to = '\0';
    return out;
}

/* ---- connections ------------------------------------------------------------------------------
 */

static stint_code failed(PGconn *c, const char *what, stint_error *err)
{
    char text[160];
    size_t n;

    snprintf(text, sizeof(text), "%s", c ? PQerrorMessage(c) : "no memory");
    for (n = strlen(text); n > 0 && text[n - 1] == '\n';)
        text[--n] = '\0';
    return st_fail(err, STINT_ESTORE, "%s: %s", what, text);
}

static PGconn *connect_to(const struct bench_pg *p, stint_error *err)
{
    const char *const names[] = {"dbname", "application_name", "connect_timeout", NULL};
    const char *const values[] = {p->conninfo, "stint-bench", "5", NULL};
    PGconn *c = PQconnectdbParams(names, values, 1);

    if (c && PQstatus(c) == CONNECTION_OK)
        return c;
    failed(c, "cannot connect to the server", err);
    PQfinish(c);
    return NULL;
}

static stint_code run(PGconn *c, const char *sql, stint_error *err)
{
    PGresult *r = PQexec(c, sql);
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK || PQresultStatus(r) == PGRES_TUPLES_OK;

    PQclear(r);
    return ok ? STINT_OK : failed(c, "the server refuses", err);
}

/* The first row's numbers. */
static stint_code ask(PGconn *c, const char *sql, int64_t *out, int n, stint_error *err)
{
    PGresult *r = PQexec(c, sql);
    stint_code rc = STINT_OK;

    if (PQresultStatus(r) != PGRES_TUPLES_OK || PQntuples(r) < 1 || PQnfields(r) < n)
        rc = failed(c, "the server does not answer", err);
    for (int i = 0; rc == STINT_OK && i < n; i++)
        out[i] = strtoll(PQgetvalue(r, 0, i), NULL, 10);
    PQclear(r);
    return rc;
}

stint_code bench_pg_open(const char *url, struct bench_pg **out, stint_error *err)
{
    struct bench_pg *p = calloc(1, sizeof(*p));
    char *schema = NULL, *quoted;

    *out = NULL;
    if (!p || !(p->conninfo = strip(url, &schema))) {
        free(p);
        return st_fail(err, STINT_ENOMEM, "no memory");
    }
    p->c = connect_to(p, err);
    if (p->c && (quoted = PQescapeIdentifier(p->c, schema ? schema : "stint", strlen(schema ? schema : "stint")))) {
        p->schema = strdup(quoted);
        PQfreemem(quoted);
    }
    free(schema);
    if (!p->schema) {
        stint_code rc = p->c ? st_fail(err, STINT_ENOMEM, "no memory") : err->code;

        bench_pg_close(p);
        return rc;
    }
    *out = p;
    return STINT_OK;
}

static void sampling_end(struct bench_pg *p)
{
    if (!p->sampling)
        return;
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    p->sampling = false;
}

void bench_pg_close(struct bench_pg *p)
{
    if (!p)
        return;
    sampling_end(p);
    bench_pg_unpin(p);
    PQfinish(p->c);
    free(p->conninfo);
    free(p->schema);
    free(p);
}

/* ---- what a part costs --------------------------------------------------------------------------
 */

#define OURS "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'stint'"

static void *sample(void *arg)
{
    struct bench_pg *p = arg;
    PGconn *c = connect_to(p, NULL);
    int64_t n;

    while (c && !atomic_load(&p->stop)) {
        if (ask(c, "SELECT count(*) " OURS, &n, 1, NULL) != STINT_OK)
            break;
        if (n > atomic_load(&p->connections))
            atomic_store(&p->connections, (int)n);
        usleep(SAMPLE_US);
    }
    PQfinish(c);
    return NULL;
}

static stint_code look(struct bench_pg *p, struct marks *m, stint_error *err)
{
    int64_t v[4] = {0};
    stint_code rc = ask(p->c,
                        "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8, "
                        "pg_snapshot_xmax(pg_current_snapshot())::text::int8, "
                        "xact_commit, blks_hit + blks_read FROM pg_stat_database WHERE datname = "
                        "current_database()",
                        v, 4, err);

    *m = (struct marks){.wal = v[0], .xid = v[1], .commits = v[2], .buffers = v[3]};
    return rc;
}

/* Until none of our connections is left. */
static void await_gone(struct bench_pg *p)
{
    int64_t n = 1;

    for (int ms = 0; n > 0 && ms < GONE_MS; ms += 20) {
        if (ask(p->c, "SELECT count(*) " OURS, &n, 1, NULL) != STINT_OK)
            return;
        if (n > 0)
            usleep(20000);
    }
}

stint_code bench_pg_begin(struct bench_pg *p, stint_error *err)
{
    stint_code rc;

    await_gone(p);
    atomic_store(&p->stop, false);
    atomic_store(&p->connections, 0);
    rc = look(p, &p->at, err);
    if (rc == STINT_OK)
        rc = st_thread_start(&p->thread, "stint-bench-pg", sample, p, err);
    p->sampling = rc == STINT_OK;
    return rc;
}

stint_code bench_pg_end(struct bench_pg *p, struct bench_pg_cost *out, stint_error *err)
{
    struct marks now;
    char *sql;
    stint_code rc;

    sampling_end(p);
    await_gone(p);
    rc = look(p, &now, err);
    if (rc != STINT_OK)
        return rc;
    *out = (struct bench_pg_cost){.known = true,
                                  .wal_bytes = now.wal - p->at.wal,
                                  .writes = now.xid - p->at.xid,
                                  .commits = now.commits - p->at.commits,
                                  .buffers = now.buffers - p->at.buffers,
                                  .connections = atomic_load(&p->connections)};
    if (asprintf(&sql,
                 "SELECT coalesce(sum(s.n_dead_tup), 0)::int8 FROM pg_stat_user_tables s JOIN "
                 "pg_namespace n "
                 "ON n.nspname = s.schemaname WHERE n.oid = '%s'::regnamespace",
                 p->schema) < 0)
        return st_fail(err, STINT_ENOMEM, "no memory");
    rc = ask(p->c, sql, &out->dead, 1, err);
    free(sql);
    return rc;
}

/* ---- a pinned horizon
 * ----------------------------------------------------------------------------- */

stint_code bench_pg_pin(struct bench_pg *p, stint_error *err)
{
    stint_code rc;

    p->pin = connect_to(p, err);
    if (!p->pin)
        return err->code;
    rc = run(p->pin, "BEGIN ISOLATION LEVEL REPEATABLE READ", err);
    return rc == STINT_OK ? run(p->pin, "SELECT count(*) FROM pg_class", err) : rc;
}

void bench_pg_unpin(struct bench_pg *p)
{
    PQfinish(p->pin);
    p->pin = NULL;
}

/* ---- jobs beside
 * ------------------------------------------------------------------------------------ */

/* New ids, which grow with i and are younger than those of jobs that have ended, and their entries. */
#define NEW_ROWS                                                                                                       \
    "WITH t AS MATERIALIZED (SELECT i, (extract(epoch FROM now()) * 1000)::int8 - (i "                                 \
    "%% 5) * %s AS ms "                                                                                                \
    "FROM generate_series(%lld::int8, %lld::int8) i), "                                                                \
    "u AS MATERIALIZED (SELECT i, ms, '\\x00'::bytea || substr(int8send(ms), 3, 6) || "                                \
    "substr(int8send(28672 + (i >> 18)), 7, 2) || "                                                                    \
    "int8send((-9223372036854775807 - 1) | ((i & 262143) << 44) | (random() * "                                        \
    "17592186044415)::int8) AS id FROM t), "                                                                           \
    "e AS (INSERT INTO %s.entry(lane, created, due, slot, umode, id, payload) SELECT %s, ms * "                        \
    "1000, %s, %s._home(id), "                                                                                         \
    "0, id, convert_to('1' || repeat('0', %lld), 'UTF8') FROM u RETURNING due, slot, id, ctid AS at) "

struct kind {
    const char *name;
    const char *queue, *type;
    int priority;
    const char *due; /* of row u */
    bool ended, paused;
};

static const struct kind kinds[] = {
    {"waiting", "bench", "bench.noop", 0, "ms * 1000 + i", false, false},
    {"scheduled", "bench", "bench.noop", 0, "(ms + 86400000) * 1000 + i", false, false},
    {"history", "bench", "bench.noop", 0, "ms * 1000", true, false},
    {"unserved", "bench", "bench.unserved", 10, "ms * 1000 + i", false, false},
    {"paused", "bench-paused", "bench.noop", 0, "ms * 1000 + i", false, true},
};

/* Rows first .. last of a kind, as the store would have left them. */
static char *rows_sql(const struct bench_pg *p, const struct kind *k, int64_t first, int64_t last, int64_t payload_len)
{
    const char *s = p->schema;
    char lane[160];
    struct st_buf b;

    snprintf(lane, sizeof(lane), "%s._lane('%s', '%s', %d)", s, k->queue, k->type, k->priority);
    st_buf_init(&b, 1 << 14);
    /* history lies in several slots, the others in the present one */
    st_buf_printf(&b, NEW_ROWS, k->ended ? "133200000" : "0", (long long)first, (long long)last, s, lane, k->due, s,
                  (long long)payload_len - 1);
    if (k->ended)
        st_buf_printf(&b,
                      ", n AS (INSERT INTO %s.ended(fence, finished, started, n, slot, part, "
                      "outcome, state, kind, id, worker) "
                      "SELECT 1, (ms + 1) * 1000, ms * 1000, 1, %s._home(id), 0, 0, 4, 0, id, "
                      "'preload' FROM u) "
                      "INSERT INTO %s.tally(lane, waiting, succeeded) VALUES (%s, 0, %lld)",
                      s, s, s, lane, (long long)(last - first + 1));
    else
        st_buf_printf(&b,
                      ", r AS (INSERT INTO %s.ready(lane, key, fence, attempt, slot, skips, keyed, id, at) "
                      "SELECT %s, due, 0, 0, slot, 0, false, id, at FROM e) "
                      "INSERT INTO %s.tally(lane, waiting) VALUES (%s, %lld)",
                      s, lane, s, lane, (long long)(last - first + 1));
    st_buf_printf(&b, "; SELECT %s._lanes_note(ARRAY[%s], ARRAY['%s'], ARRAY['%s'], ARRAY[%d])", s, lane, k->queue,
                  k->type, k->priority);
    if (k->paused)
        st_buf_printf(&b, "; INSERT INTO %s.paused VALUES ('%s', 1) ON CONFLICT DO NOTHING", s, k->queue);
    return st_buf_take(&b);
}

static stint_code load_kind(struct bench_pg *p, const struct kind *k, int64_t n, int64_t payload_len, stint_error *err)
{
    static int64_t serial; /* no id twice */
    stint_code rc = STINT_OK;

    for (int64_t step; rc == STINT_OK && n > 0; n -= step) {
        char *sql;

        step = n < CHUNK ? n : CHUNK;
        sql = rows_sql(p, k, serial, serial + step - 1, payload_len);
        serial += step;
        rc = sql ? run(p->c, sql, err) : st_fail(err, STINT_ENOMEM, "no memory");
        free(sql);
    }
    return rc;
}

static const struct kind *find_kind(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        if (st_slice_is(ST_SLICE(name, len), kinds[i].name))
            return &kinds[i];
    }
    return NULL;
}

stint_code bench_pg_preload(struct bench_pg *p, const char *what, int64_t payload_len, stint_error *err)
{
    char *sql;
    stint_code rc = STINT_OK;

    while (rc == STINT_OK && *what) {
        size_t len = strcspn(what, ","), eq = strcspn(what, "=,");
        const struct kind *k = find_kind(what, eq);
        int64_t n;

        if (!k || eq == len || !st_parse_i64(ST_SLICE(what + eq + 1, len - eq - 1), &n) || n < 0)
            return st_fail(err, STINT_EINVAL,
                           "--preload: '%.*s' is not one of waiting, scheduled, history, unserved, paused "
                           "with a number",
                           (int)(len > 60 ? 60 : len), what);
        rc = load_kind(p, k, n, payload_len, err);
        what += len + (what[len] == ',');
    }
    if (rc == STINT_OK &&
        asprintf(&sql, "VACUUM (ANALYZE) %s.ready, %s.entry, %s.ended, %s.lease, %s.grp, %s.tally, %s.lane", p->schema,
                 p->schema, p->schema, p->schema, p->schema, p->schema, p->schema) > 0) {
        rc = run(p->c, sql, err);
        free(sql);
    }
    if (rc == STINT_OK)
        run(p->c, "CHECKPOINT", NULL); /* not everybody may */
    return rc;
}
