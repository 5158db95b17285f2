/* SPDX-License-Identifier: Apache-2.0
 *
 * enqueue.c - checked jobs into the store, and an unknown outcome made known.
 *
 *     jobs --store--> OK | EINVAL | EEXISTS | EAGAIN | ESTORE
 *            |  ^
 *    EUNKNOWN|  |the same ids again, until the store's timeout has passed
 *            `--'
 *
 * Invariants:
 *   (1) no job without an id reaches a store, so an unknown outcome can always be asked again;
 *   (2) once one try ended EUNKNOWN, "nothing was changed" is no longer an answer: EAGAIN and
 *       ESTORE of a later try speak of that try alone.
 *
 * Thread: the store handle's.
 */
#include "enqueue/enqueue.h"

#include <string.h>
#include <time.h>

#define REPEAT_FIRST_US (10 * ST_MS)
#define REPEAT_MAX_US   (500 * ST_MS)

static void name_ids(const struct st_new_job *jobs, size_t n, struct st_enqueued *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = jobs[i].id.len < ST_ID_MAX ? jobs[i].id.len : ST_ID_MAX;

        if (len)
            memcpy(out[i].id, jobs[i].id.p, len);
        out[i].id[len] = '\0';
        out[i].duplicate = false;
    }
}

static void pause_us(int64_t us)
{
    struct timespec t = {.tv_sec = us / ST_SEC, .tv_nsec = us % ST_SEC * 1000};

    nanosleep(&t, NULL);
}

/* Does this answer to a repeated enqueue say what became of the first? */
static bool settles(stint_code rc)
{
    return rc == STINT_OK || rc == STINT_EEXISTS || rc == STINT_EINVAL;
}

stint_code st_enqueue(struct st_store *store, const struct st_new_job *jobs, size_t n, struct st_enqueued *out,
                      stint_error *err)
{
    int64_t give_up_us = st_clock_mono_us() + store->timeout_ms * ST_MS;
    int64_t wait_us = REPEAT_FIRST_US;
    stint_error unknown, later;
    stint_code rc;

    name_ids(jobs, n, out);
    if (n == 0)
        return STINT_OK;
    rc = st_store_enqueue(store, 0, jobs, n, out, err);
    if (rc != STINT_EUNKNOWN)
        return rc;
    if (err)
        unknown = *err;
    while (st_clock_mono_us() + wait_us < give_up_us) {
        pause_us(wait_us);
        rc = st_store_enqueue(store, 0, jobs, n, out, err ? &later : NULL);
        if (settles(rc)) {
            if (err && rc != STINT_OK)
                *err = later;
            return rc;
        }
        wait_us = wait_us * 2 < REPEAT_MAX_US ? wait_us * 2 : REPEAT_MAX_US;
    }
    name_ids(jobs, n, out);
    if (err)
        *err = unknown;
    return STINT_EUNKNOWN;
}
