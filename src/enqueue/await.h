/* SPDX-License-Identifier: Apache-2.0
 *
 * await.h - wait until a job has ended.
 */
#ifndef ST_ENQUEUE_AWAIT_H
#define ST_ENQUEUE_AWAIT_H

#include "store/store.h"

/* Fills *out (st_job_info_clear) once the job has ended.  timeout_ms < 0 waits without limit;
 * ETIMEOUT otherwise.  Woken by the store's hints, with a slow poll behind them.  ENOTFOUND with the
 * detail ST_AWAIT_GONE: it was there when the wait began. */
#define ST_AWAIT_GONE "gone"
stint_code st_await(struct st_store *store, struct st_slice id, int timeout_ms, struct st_job_info *out,
                    stint_error *err);

#endif
