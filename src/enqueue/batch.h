/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h - many jobs from newline-delimited JSON.
 *
 *     {"type":"mail","payload":{"to":"a@example.org"},"queue":"mail","delay":"5m"}
 *
 * Members: type, payload, queue, priority, delay or at, max_attempts, timeout, key, unique, id,
 * meta.  What is missing or null (but for payload, where null is a payload) comes from the
 * defaults; any other member is an error.  Payload and meta are taken as the bytes they are.
 * Blank lines are skipped.  Every error names its line.
 */
#ifndef ST_ENQUEUE_BATCH_H
#define ST_ENQUEUE_BATCH_H

#include "enqueue/enqueue.h"

#define ST_BATCH_LINE_MAX  ((size_t)16 << 20)
#define ST_BATCH_JOBS_MAX  ((size_t)1000000)
#define ST_BATCH_BYTES_MAX ((size_t)1 << 30)

struct st_batch {
    struct st_new_job *jobs; /* checked, ready for st_enqueue() */
    size_t *lines;           /* where each of them stands, 1 = first */
    size_t n;
    size_t line; /* the last line looked at, 1 = first */

    /* its own */
    struct st_new_job defaults;
    size_t payload_max;
    size_t cap;
    struct st_buf partial; /* a line whose end has not come yet */
    struct st_batch_chunk *texts;
    size_t bytes;
};

/* The defaults are views: they must live as long as the batch.  Their id is not used. */
void st_batch_init(struct st_batch *b, const struct st_new_job *defaults, size_t payload_max);
void st_batch_clear(struct st_batch *b);

/* Bytes as they come from a file, lines cut anywhere; st_batch_end() after the last ones (which
 * need no newline).  After an error the batch can only be cleared. */
stint_code st_batch_feed(struct st_batch *b, struct st_slice bytes, stint_error *err);
stint_code st_batch_end(struct st_batch *b, stint_error *err);

/* One line without its newline. */
stint_code st_batch_line(struct st_batch *b, struct st_slice line, stint_error *err);

/* Hands the jobs to the store as st_enqueue does; out has room for b->n.  An error that is about
 * one job names its line. */
stint_code st_batch_enqueue(const struct st_batch *b, struct st_store *store, struct st_enqueued *out,
                            stint_error *err);

#endif
