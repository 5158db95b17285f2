/* SPDX-License-Identifier: Apache-2.0
 *
 * stint_sqlite.h - Stint inside an application's own SQLite transactions.
 *
 * For applications whose tables live in the store's file: Stint makes the file, the application
 * adds its tables to it, and leaves Stint's alone.  Their SQLite must be the very library that
 * libstint uses (the system's shared one): two copies in one process do not see each other's locks.
 */
#ifndef STINT_SQLITE_H
#define STINT_SQLITE_H

#include "stint.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sqlite3;

/* Adds jobs in the transaction that is open on db: they exist, and workers see them, if and when it
 * commits.  All n or none; the transaction itself stays open either way.
 *
 * db is a connection to the file of st.  STINT_EINVAL: it is not, or no transaction is open, or the
 * store of st is not SQLite.  STINT_EAGAIN: another connection is writing and db's busy timeout has
 * passed; SQLite wants such a transaction rolled back and begun again (BEGIN IMMEDIATE avoids it).
 */
STINT_API stint_code stint_sqlite_enqueue(stint *st, struct sqlite3 *db, const stint_job *jobs, size_t n,
                                          stint_enqueued *out, stint_error *err);

/* The connection of a handler's transaction: prepare statements on it, write, finalize them.  NULL
 * where the store is not SQLite. */
STINT_API struct sqlite3 *stint_sqlite_tx(stint_tx *tx);

#ifdef __cplusplus
}
#endif
#endif
