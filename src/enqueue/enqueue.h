/* SPDX-License-Identifier: Apache-2.0
 *
 * enqueue.h - the way every new job takes into a store: checked, filled in, handed over.
 */
#ifndef ST_ENQUEUE_ENQUEUE_H
#define ST_ENQUEUE_ENQUEUE_H

#include "job/spec.h"
#include "store/store.h"

#define ST_PAYLOAD_MAX   ((size_t)1 << 20) /* limits.payload, unless configured */
#define ST_QUEUE_DEFAULT "default"

/* A job with room for the texts that are made for it: job.id and job.key may point into the item,
 * so it must not move after st_enqueue_check. */
struct st_enqueue_item {
    struct st_new_job job;
    char id[ST_UUID_LEN + 1];
    char key[ST_HASH_LEN + 1];
};

/* What a job is when nothing was said: no texts, priority 0, now, attempts and timeout by type. */
extern const struct st_new_job st_new_job_default;

/* "active", "forever" or a duration, as --unique and the batch's `unique` take it.
 * The message does not name the option or member: the caller puts that in front. */
stint_code st_unique_parse(struct st_slice text, enum st_unique *out, int64_t *window_us, stint_error *err);

/* "none" or a duration, as --timeout and the batch's `timeout` take it.  0 = none.  The message does
 * not name the option or member. */
stint_code st_timeout_parse(struct st_slice text, int64_t *us, stint_error *err);

/* Fills err: len bytes are too many.  more: it has more than len, nobody counted. */
stint_code st_payload_too_large(size_t len, bool more, size_t max, stint_error *err);

/* Checks everything about the job and fills in what was not given: the id (a new UUIDv7), the
 * queue, an empty payload; a key without `unique` means active, `unique` without a key means the
 * spec hash.  EINVAL names the thing.  The payload may be any bytes: a caller that promises JSON
 * checks that itself. */
stint_code st_enqueue_check(struct st_enqueue_item *item, size_t payload_max, stint_error *err);

/* Hands checked jobs to the store, all or none.  After EUNKNOWN the same ids are sent again, which
 * changes nothing if they were there, until the store's timeout has passed; only then the
 * answer is EUNKNOWN.  out[] has the ids that were sent whatever the answer is. */
stint_code st_enqueue(struct st_store *store, const struct st_new_job *jobs, size_t n, struct st_enqueued *out,
                      stint_error *err);

#endif
