/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_look.h - what get and list of the PostgreSQL store share.
 */
#ifndef ST_STORE_POSTGRES_LOOK_H
#define ST_STORE_POSTGRES_LOOK_H

#include "store/postgres_op.h"

/* The columns of PG_LOOK_COLUMNS and the three behind them; those of an attempt follow in GET. */
enum {
    ST_PG_C_SEQ,
    ST_PG_C_ID,
    ST_PG_C_TYPE,
    ST_PG_C_QUEUE,
    ST_PG_C_STATE,
    ST_PG_C_PRIORITY,
    ST_PG_C_ATTEMPT,
    ST_PG_C_MAX,
    ST_PG_C_TIMEOUT,
    ST_PG_C_CREATED,
    ST_PG_C_DUE,
    ST_PG_C_FIRST,
    ST_PG_C_FINISHED,
    ST_PG_C_LEASE,
    ST_PG_C_STARTED,
    ST_PG_C_FENCE,
    ST_PG_C_WORKER,
    ST_PG_C_CANCEL,
    ST_PG_C_PROGRESS,
    ST_PG_C_RESULT_REF,
    ST_PG_C_KEY,
    ST_PG_C_UMODE,
    ST_PG_C_KIND,
    ST_PG_C_ERROR,
    ST_PG_C_POLICY,
    ST_PG_C_NOW,
    ST_PG_C_PAYLOAD,
    ST_PG_C_META,
    ST_PG_C_RESULT,
    ST_PG_C_N
};

/* Fills out from a row; on an error there is nothing to clear. */
stint_code st_pg_info_read(const PGresult *r, int row, struct st_job_info *out, stint_error *err);

#endif
