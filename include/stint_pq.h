/* SPDX-License-Identifier: Apache-2.0
 *
 * stint_pq.h - Stint inside an application's own PostgreSQL transactions.
 *
 * For applications whose tables live in the database where Stint's schema is.  Connections are
 * libpq's: `PGconn` is a struct pg_conn.
 */
#ifndef STINT_PQ_H
#define STINT_PQ_H

#include "stint.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn;

/* Adds jobs in the transaction that is open on conn: they exist, and workers see them, if and when
 * it commits.  All n or none.
 *
 * conn is a connection to the database of st; it must be idle in a transaction (BEGIN was sent, no
 * answer is outstanding).  STINT_EINVAL: it is not, or the store of st is not PostgreSQL.  After any
 * error that the server has told, as after every failed statement, the transaction can only be
 * rolled back.  A job with a unique key waits for another transaction that has just taken the same
 * key. */
STINT_API stint_code stint_pq_enqueue(stint *st, struct pg_conn *conn, const stint_job *jobs, size_t n,
                                      stint_enqueued *out, stint_error *err);

/* The connection of a handler's transaction: run statements on it, but no BEGIN, COMMIT or
 * ROLLBACK.  NULL where the store is not PostgreSQL. */
STINT_API struct pg_conn *stint_pq_tx(stint_tx *tx);

#ifdef __cplusplus
}
#endif
#endif
