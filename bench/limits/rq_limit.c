/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_limit.c - what a raw loop over RQ and PostgreSQL does per second: the limit that the intake is measured against.
 *
 *     rq_limit CONNINFO REDIS_SOCKET N
 *
 * As the plainest worker would, one message after the other: LMOVE to the intermediate list and HGET of the data (one
 * pipeline), one UPDATE that wins the lease, RQ's `started` (one pipeline), one UPDATE that writes the outcome, RQ's `finished`
 * (one pipeline).  Two transactions per run, both durable as the server is set.  Nothing is executed, no file is written.
 */
#include <hiredis/hiredis.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void die(const char *what, const char *why)
{
    fprintf(stderr, "rq_limit: %s: %s\n", what, why);
    exit(1);
}

static PGresult *sql(PGconn *c, const char *text)
{
    PGresult *r = PQexec(c, text);

    if (PQresultStatus(r) != PGRES_COMMAND_OK && PQresultStatus(r) != PGRES_TUPLES_OK)
        die("SQL", PQerrorMessage(c));
    return r;
}

static void prepare(PGconn *c, long n)
{
    char text[512];

    PQclear(sql(c, "DROP TABLE IF EXISTS model_runs"));
    PQclear(sql(c,
                "CREATE TABLE model_runs(id text PRIMARY KEY, status text NOT NULL DEFAULT 'PENDING', lease_owner text,"
                " lease_expires_at timestamptz, started_at timestamptz, finished_at timestamptz,"
                " attempt_count int NOT NULL DEFAULT 0, result_ref text)"));
    snprintf(text, sizeof(text), "INSERT INTO model_runs(id) SELECT 'r' || i FROM generate_series(0, %ld) i", n - 1);
    PQclear(sql(c, text));
    PQclear(PQprepare(
        c, "acquire",
        "UPDATE model_runs SET status = 'RUNNING', lease_owner = 'w', lease_expires_at = now() + interval '60 s',"
        " started_at = coalesce(started_at, now()), attempt_count = attempt_count + 1 WHERE id = $1 AND"
        " (status = 'PENDING' OR (status = 'RUNNING' AND lease_expires_at < now())) RETURNING id",
        1, NULL));
    PQclear(
        PQprepare(c, "finish",
                  "UPDATE model_runs SET status = 'SUCCEEDED', finished_at = now(), result_ref = 'x' WHERE id = $1 AND"
                  " lease_owner = 'w' AND status = 'RUNNING'",
                  1, NULL));
}

static void fill(redisContext *r, long n)
{
    for (long i = 0; i < n; i++) {
        redisAppendCommand(r, "HSET rq:job:j%ld data r%ld origin default status queued", i, i);
        redisAppendCommand(r, "RPUSH rq:queue:default j%ld", i);
        if (i % 1000 == 999 || i == n - 1)
            for (long k = 0; k < 2 * (i % 1000 + 1); k++) {
                redisReply *a = NULL;

                if (redisGetReply(r, (void **)&a) != REDIS_OK)
                    die("redis", r->errstr);
                freeReplyObject(a);
            }
    }
}

static void drop_answers(redisContext *r, int n)
{
    while (n-- > 0) {
        redisReply *a = NULL;

        if (redisGetReply(r, (void **)&a) != REDIS_OK)
            die("redis", r->errstr);
        freeReplyObject(a);
    }
}

static void update(PGconn *c, const char *name, const char *id)
{
    PGresult *r = PQexecPrepared(c, name, 1, &id, NULL, NULL, 0);

    if ((PQresultStatus(r) != PGRES_COMMAND_OK && PQresultStatus(r) != PGRES_TUPLES_OK) ||
        strcmp(PQcmdTuples(r), "1") != 0)
        die(name, PQerrorMessage(c));
    PQclear(r);
}

/* RQ's side as its own worker writes it, without what only a dashboard wants. */
static void started(redisContext *r, const char *job, double now)
{
    redisAppendCommand(r, "HSET rq:job:%s status started started_at %f worker_name w", job, now);
    redisAppendCommand(r, "ZADD rq:wip:default %f %s:e", now + 90, job);
    redisAppendCommand(r, "HSET rq:execution:%s:e id e job_id %s created_at %f last_heartbeat %f", job, job, now, now);
    redisAppendCommand(r, "LREM rq:queue:default:intermediate 1 %s", job);
    drop_answers(r, 4);
}

static void finished(redisContext *r, const char *job, double now)
{
    redisAppendCommand(r, "MULTI");
    redisAppendCommand(r, "HSET rq:job:%s status finished ended_at %f", job, now);
    redisAppendCommand(r, "XADD rq:results:%s MAXLEN ~ 10 * type 1 worker_name w return_value gASILg==", job);
    redisAppendCommand(r, "EXPIRE rq:results:%s 500", job);
    redisAppendCommand(r, "ZADD rq:finished:default %f %s", now + 500, job);
    redisAppendCommand(r, "EXPIRE rq:job:%s 500", job);
    redisAppendCommand(r, "ZREM rq:wip:default %s:e", job);
    redisAppendCommand(r, "DEL rq:execution:%s:e", job);
    redisAppendCommand(r, "HINCRBY rq:worker:w successful_job_count 1");
    redisAppendCommand(r, "EXEC");
    drop_answers(r, 10);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    long n = argc == 4 ? strtol(argv[3], NULL, 10) : 0;
    redisContext *r;
    PGconn *c;
    double began;

    if (n < 1)
        die("usage", "rq_limit CONNINFO REDIS_SOCKET N");
    c = PQconnectdb(argv[1]);
    if (PQstatus(c) != CONNECTION_OK)
        die("connect", PQerrorMessage(c));
    r = redisConnectUnix(argv[2]);
    if (!r || r->err)
        die("redis", r ? r->errstr : "no memory");
    prepare(c, n);
    fill(r, n);
    began = seconds();
    for (long i = 0; i < n; i++) {
        redisReply *job = redisCommand(r, "LMOVE rq:queue:default rq:queue:default:intermediate LEFT RIGHT"), *data;

        if (!job || job->type != REDIS_REPLY_STRING)
            die("LMOVE", "nothing there");
        data = redisCommand(r, "HGET rq:job:%s data", job->str);
        if (!data || data->type != REDIS_REPLY_STRING)
            die("HGET", "nothing there");
        update(c, "acquire", data->str);
        started(r, job->str, (double)time(NULL));
        update(c, "finish", data->str);
        finished(r, job->str, (double)time(NULL));
        freeReplyObject(job);
        freeReplyObject(data);
    }
    printf("%.0f\n", (double)n / (seconds() - began));
    redisFree(r);
    PQfinish(c);
    return 0;
}
