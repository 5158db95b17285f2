/* SPDX-License-Identifier: Apache-2.0
 *
 * complete.h - from what came of an attempt to what is written about it.
 */
#ifndef ST_COMPLETE_COMPLETE_H
#define ST_COMPLETE_COMPLETE_H

#include "execute/execute.h"
#include "store/store.h"

/* An attempt that is over, on its way to the store.  One allocation that may be larger than this struct
 * (the worker's own record begins with it); free with st_done_free. */
struct st_done {
    struct st_done *next;
    struct st_job *job; /* owned */
    struct st_ran ran;
    int64_t started_boot_us; /* 0 = never started */
    char *result_ref;        /* the file its result went to */
};
void st_done_free(struct st_done *d);

/* What to write.  false: nothing, the job is somebody else's now (or gone).  unit in [0,1) for the jitter.
 * f points into d. */
bool st_done_decide(const struct st_done *d, double unit, int64_t now_boot_us, struct st_finish *f);

/* Results above this go to files. */
#define ST_RESULT_INLINE (64 * 1024)

/* Moves a large result into a file under dir (temp name, fsync, rename) and sets d->result_ref; a small one stays.
 * If it cannot be written the attempt becomes a failed one, kind internal. */
void st_result_settle(struct st_done *d, const char *dir);
/* Where they go unless configured: beside the store's file, or in the working directory; for free(). */
char *st_results_dir(const char *store_url);
/* The outcome was refused: the file must not stay. */
void st_result_discard(struct st_done *d);

#endif
