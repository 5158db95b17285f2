/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_batch.c - any bytes as a batch of jobs.
 *
 * What must hold:
 *   - fed whole or in pieces, the bytes give the same jobs or the same error;
 *   - an error is EINVAL and names a line that is there;
 *   - payload and meta are bytes of the input, and JSON;
 *   - every job passes the check again, unchanged.
 */
#include "fuzz.h"

#include <string.h>

#include "enqueue/batch.h"

#define PAYLOAD_MAX 64

static stint_code feed(struct st_batch *b, struct st_slice text, size_t piece, stint_error *err)
{
    struct st_new_job defaults = st_new_job_default;
    stint_code rc = STINT_OK;

    defaults.delay_us = ST_SEC;
    st_batch_init(b, &defaults, PAYLOAD_MAX);
    for (size_t at = 0; rc == STINT_OK && at < text.len; at += piece) {
        size_t left = text.len - at;

        rc = st_batch_feed(b, ST_SLICE(text.p + at, left < piece ? left : piece), err);
    }
    return rc == STINT_OK ? st_batch_end(b, err) : rc;
}

static void check_from_input(struct st_slice text, struct st_slice part)
{
    if (part.len) {
        MUST(memmem(text.p, text.len, part.p, part.len));
        MUST(st_json_ok(part));
    }
}

static void check_job(struct st_slice text, const struct st_new_job *job)
{
    struct st_enqueue_item again = {.job = *job};

    MUST(st_enqueue_check(&again, PAYLOAD_MAX, NULL) == STINT_OK);
    MUST(st_slice_eq(again.job.id, job->id) && st_slice_eq(again.job.key, job->key));
    MUST(st_slice_eq(again.job.queue, job->queue) && again.job.unique == job->unique);
    MUST(job->key.len > 0 || job->unique == ST_UNIQUE_NONE);
    check_from_input(text, job->payload);
    check_from_input(text, job->meta);
}

static void check_same(const struct st_new_job *a, const struct st_new_job *b)
{
    MUST(st_slice_eq(a->type, b->type) && st_slice_eq(a->queue, b->queue));
    MUST(st_slice_eq(a->payload, b->payload) && st_slice_eq(a->meta, b->meta));
    MUST(st_slice_eq(a->key, b->key) && a->unique == b->unique);
    MUST(a->priority == b->priority && a->max_attempts == b->max_attempts);
    MUST(a->delay_us == b->delay_us && a->due_us == b->due_us);
    MUST(a->timeout_us == b->timeout_us && a->window_us == b->window_us);
}

static void check_error(const stint_error *err, const struct st_batch *b)
{
    size_t line = 0;

    MUST(err->code == STINT_EINVAL);
    MUST(sscanf(err->message, "line %zu: ", &line) == 1 && line == b->line && line >= 1);
    MUST(st_utf8_valid(err->message, strlen(err->message)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_slice text = ST_SLICE((const char *)data, size);
    size_t piece = size ? data[size - 1] % 16 + 1u : 1;
    stint_error err_whole = {0}, err_cut = {0};
    struct st_batch whole, cut;
    stint_code rc = feed(&whole, text, size ? size : 1, &err_whole);

    MUST(feed(&cut, text, piece, &err_cut) == rc);
    MUST(whole.n == cut.n && whole.line == cut.line);
    for (size_t i = 0; i < whole.n; i++) {
        check_job(text, &whole.jobs[i]);
        check_same(&whole.jobs[i], &cut.jobs[i]);
    }
    if (rc != STINT_OK) {
        check_error(&err_whole, &whole);
        MUST(!strcmp(err_whole.message, err_cut.message));
    }
    st_batch_clear(&whole);
    st_batch_clear(&cut);
    return 0;
}
