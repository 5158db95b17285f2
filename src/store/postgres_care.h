/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_care.h - how far a handle has come with pruning and with the leader's housekeeping.
 *
 * Nothing here must survive: whoever leads next begins again, and finds less to do.
 */
#ifndef ST_STORE_POSTGRES_CARE_H
#define ST_STORE_POSTGRES_CARE_H

#include "store/postgres_op.h"

/* The slot that is being emptied; see "the ring" in sql/postgres_1.sql.
 *
 *   REST -> WAIT -> LOOK -> EMPTY -> REST     something was removed or too much added meanwhile:
 * REST, and again
 */
struct st_pg_ring {
    enum { RING_REST, RING_WAIT, RING_LOOK, RING_EMPTY } state;
    int32_t slot;
    int64_t seq, gone, since_us, xid; /* as _ring_begin told */
    int64_t keep_us;                  /* what it was begun with */
    int64_t before_us;                /* what succeeded before that goes */
    unsigned char after[ST_PG_KEY_MAX];
    size_t after_len;
    int64_t *lanes, *counts; /* what goes, by lane, in their order */
    size_t n;
};

enum st_pg_chore { CHORE_RING, CHORE_FOLD, CHORE_SUMMARIZE, CHORE_VACUUM, CHORE_JUDGE, CHORE_REINDEX, CHORE_N };

#define ST_PG_HOT 7 /* tables that are vacuumed by the leader */

struct st_pg_care {
    int32_t slot; /* prune: where to look on for succeeded jobs */
    int64_t from_us;

    int64_t epoch;          /* of the last call */
    int64_t at_us[CHORE_N]; /* when each is due, CLOCK_MONOTONIC */
    struct st_pg_ring ring;
    struct {
        char name[16];
        int64_t dead; /* before it was vacuumed; 0 = it was not */
        int64_t at_us, wait_us;
    } hot[ST_PG_HOT];
    size_t n_hot;
};

/* Made when first asked for; NULL = no memory, err is filled. */
struct st_pg_care *st_pg_care(struct st_pg *s, stint_error *err);

#endif
