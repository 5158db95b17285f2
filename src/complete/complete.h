/* SPDX-License-Identifier: Apache-2.0
 *
 * complete.h - from what came of an attempt to what is written about it.
 */
#ifndef ST_COMPLETE_COMPLETE_H
#define ST_COMPLETE_COMPLETE_H

#include "execute/execute.h"
#include "store/store.h"

struct st_done;

/* Somebody who wants to know what came of an attempt.  Embedded in his own record, which over takes back. */
struct st_ticket {
    /* f: what the store answered (its verdict may be ELOST); NULL = nothing was written, the job is somebody else's.  May
     * take d->ran.result for itself.  Any thread, once. */
    void (*over)(struct st_ticket *t, struct st_done *d, const struct st_finish *f);
};

/* An attempt that is over, on its way to the store.  One allocation that may be larger than this struct
 * (the worker's own record begins with it); free with st_done_free. */
struct st_done {
    struct st_done *next;
    struct st_job *job; /* owned */
    struct st_ran ran;
    int64_t started_boot_us;  /* 0 = never started */
    char *result_ref;         /* the file its result went to */
    bool to_file;             /* its result goes to a file, however small */
    bool put_off;             /* given back because it cannot be run here for a while */
    struct st_ticket *ticket; /* NULL = nobody waits */
};
void st_done_free(struct st_done *d); /* whoever waits is told, if he was not */
void st_done_tell(struct st_done *d, const struct st_finish *f);

/* What to write.  false: nothing, the job is somebody else's now (or gone).  unit in [0,1) for the jitter.
 * f points into d. */
bool st_done_decide(const struct st_done *d, double unit, int64_t now_boot_us, struct st_finish *f);

/* Results above this go to files. */
#define ST_RESULT_INLINE (64 * 1024)

/* Moves a large result (or any, with to_file) into a file under dir (temp name, fsync, rename) and sets d->result_ref; a
 * small one stays where it is, file or not.
 * If it cannot be written the attempt becomes a failed one, kind internal. */
void st_result_settle(struct st_done *d, const char *dir);
/* Where they go unless configured: beside the store's file, or in the working directory; for free(). */
char *st_results_dir(const char *store_url);
/* The outcome was refused: the file must not stay. */
void st_result_discard(struct st_done *d);

#endif
