/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_sql.c - the table of the SQLite store's statements, by number.
 */
#include "store/sqlite_int.h"

const struct st_sq_sql_info st_sq_sql_info[SQ_SQL_N] = {
#define X(name, flags, sql) [SQ_##name] = {#name, sql, flags},
#include "store/sqlite_sql.inc"
#undef X
};
