/* SPDX-License-Identifier: Apache-2.0
 *
 * await.c - wait until a job has ended.
 *
 * The store's hint may be lost or come for another job: it only decides when to look again.
 *
 * Thread: the store handle's.
 */
#include "enqueue/await.h"

#define LOOK_MS 1000 /* without a hint */

/* How long the next sleep may be; 0 = the time has passed. */
static int sleep_ms(int timeout_ms, int64_t end_us, int64_t now_us)
{
    int64_t left_ms = (end_us - now_us + ST_MS - 1) / ST_MS;

    if (timeout_ms < 0 || left_ms > LOOK_MS)
        return LOOK_MS;
    return left_ms > 0 ? (int)left_ms : 0;
}

stint_code st_await(struct st_store *store, struct st_slice id, int timeout_ms,
                    struct st_job_info *out, stint_error *err)
{
    int64_t end_us = st_clock_mono_us() + timeout_ms * ST_MS;

    for (;;) {
        stint_code rc = st_store_get(store, 0, id, out, err);
        bool woken;
        int ms;

        if (rc != STINT_OK || st_state_ended(out->state))
            return rc;
        ms = sleep_ms(timeout_ms, end_us, st_clock_mono_us());
        if (ms == 0) {
            rc = st_fail(err, STINT_ETIMEOUT, "job %s is still %s", out->id,
                         st_shown_name(out->shown));
            st_job_info_clear(out);
            return rc;
        }
        st_job_info_clear(out);
        rc = st_store_wait(store, ms, &woken, err);
        if (rc != STINT_OK)
            return rc;
    }
}
