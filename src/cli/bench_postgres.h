/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_postgres.h - what a PostgreSQL server says about a measurement, over a connection of its
 * own.
 */
#ifndef ST_CLI_BENCH_POSTGRES_H
#define ST_CLI_BENCH_POSTGRES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct bench_pg;

/* What one part has cost.  Totals; divide by its jobs. */
struct bench_pg_cost {
    bool known;
    int64_t wal_bytes;
    int64_t commits; /* all of them, reads and autovacuum too */
    int64_t writes;  /* transactions that wrote: numbers given out */
    int64_t buffers; /* pages looked at in this database, by whomever */
    int64_t dead;    /* dead rows in the store's tables afterwards */
    int connections; /* of ours at once, the most that were seen; ours = application_name stint */
};

bool bench_pg_is(const char *url);
stint_code bench_pg_open(const char *url, struct bench_pg **out, stint_error *err);
void bench_pg_close(struct bench_pg *p); /* NULL is fine */

/* From here ... */
stint_code bench_pg_begin(struct bench_pg *p, stint_error *err);
/* ... to here.  Waits a moment for connections to be gone, since that is when they tell what they
 * did. */
stint_code bench_pg_end(struct bench_pg *p, struct bench_pg_cost *out, stint_error *err);

/* Holds a snapshot on a connection of its own until unpin, so that nothing that dies can be cleared
 * away. */
stint_code bench_pg_pin(struct bench_pg *p, stint_error *err);
void bench_pg_unpin(struct bench_pg *p);

/* Jobs beside those that are measured, written straight into the tables; what:
 * "waiting=5000000,scheduled=1000000". waiting     in the measured lane, due an hour ago: ahead of
 * what is enqueued now scheduled   in the measured lane, due tomorrow history     succeeded, over
 * the last week unserved    in the measured queue, of a type nobody serves, with a higher priority
 *     paused      in a queue that is paused */
stint_code bench_pg_preload(struct bench_pg *p, const char *what, int64_t payload_len, stint_error *err);

#endif
