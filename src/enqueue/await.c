/* SPDX-License-Identifier: Apache-2.0
 *
 * await.c - wait until a job has ended.
 *
 * The store's hint may be lost or come for another job: it only decides when to look again.  A store that tells whom its
 * news is for tells nobody of an end, since that would cost every job something; there we look after 10 ms, and then
 * ever more seldom: a job is seen to have ended within a fifth of the time it took, and half a second at most.
 *
 * Thread: the store handle's.
 */
#include "enqueue/await.h"

#define LOOK_MS       1000 /* without a hint */
#define LOOK_FIRST_MS 10   /* where there are none */
#define LOOK_LAST_MS  500

/* How long to sleep if nothing is heard. */
static int look_ms(const struct st_store *store, int64_t waited_us)
{
    int64_t ms = waited_us / ST_MS / 5;

    if (!store->ops->watch)
        return LOOK_MS;
    return ms < LOOK_FIRST_MS ? LOOK_FIRST_MS : ms > LOOK_LAST_MS ? LOOK_LAST_MS : (int)ms;
}

/* How long the next sleep may be; 0 = the time has passed. */
static int sleep_ms(int timeout_ms, int64_t end_us, int64_t now_us, int most_ms)
{
    int64_t left_ms = (end_us - now_us + ST_MS - 1) / ST_MS;

    if (timeout_ms < 0 || left_ms > most_ms)
        return most_ms;
    return left_ms > 0 ? (int)left_ms : 0;
}

/* It was there and is not any more: removed, or a task of somebody else's that is kept no longer than it runs. */
static stint_code gone(struct st_slice id, stint_error *err)
{
    st_fail(err, STINT_ENOTFOUND, "job %.*s is gone: nobody knows how it has ended", (int)id.len, id.p);
    st_err_detail(err, ST_AWAIT_GONE);
    st_err_remedy(
        err, "it was removed, or is not kept once it has succeeded; asynq's producers ask for that with Retention");
    return STINT_ENOTFOUND;
}

stint_code st_await(struct st_store *store, struct st_slice id, int timeout_ms, struct st_job_info *out,
                    stint_error *err)
{
    const int64_t began_us = st_clock_mono_us(), end_us = began_us + timeout_ms * ST_MS;
    bool seen = false;

    for (;;) {
        stint_code rc = st_store_get(store, 0, id, out, err);
        int64_t now_us;
        bool woken;
        int ms;

        if (rc == STINT_ENOTFOUND && seen)
            return gone(id, err);
        if (rc != STINT_OK || st_state_ended(out->state))
            return rc;
        seen = true;
        now_us = st_clock_mono_us();
        ms = sleep_ms(timeout_ms, end_us, now_us, look_ms(store, now_us - began_us));
        if (ms == 0) {
            rc = st_fail(err, STINT_ETIMEOUT, "job %s is still %s", out->id, st_shown_name(out->shown));
            st_job_info_clear(out);
            return rc;
        }
        st_job_info_clear(out);
        rc = st_store_wait(store, ms, &woken, err);
        if (rc != STINT_OK)
            return rc;
    }
}
