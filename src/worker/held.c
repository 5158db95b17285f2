/* SPDX-License-Identifier: Apache-2.0
 *
 * held.c - the jobs this worker holds.
 *
 * A list in the order they came, and a hash by id for answers that name one.  A job leaves the table when its
 * attempt is over; then it belongs to the courier.
 *
 * Thread: loop.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker/worker_int.h"

static size_t bucket_of(const char *id)
{
    uint32_t h = 2166136261u;

    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 16777619u;
    return h % HELD_BUCKETS;
}

/* The one place a held job changes state. */
static void held_set(struct held *h, enum held_state to)
{
    struct st_worker *w = h->w;

    assert(h->state != HELD_OVER && to != HELD_QUEUED);
    if (h->state == HELD_QUEUED)
        w->n_queued--;
    else
        w->n_running--;
    if (to == HELD_RUNNING)
        w->n_running++;
    h->state = to;
    atomic_store(&w->vitals.running,
                 (int)(w->n_running < (size_t)w->settings->slots ? w->n_running : (size_t)w->settings->slots));
}

struct held *held_new(struct st_worker *w, struct st_job *job)
{
    struct held *h = calloc(1, sizeof(*h));
    size_t b = bucket_of(job->id);

    if (!h)
        return NULL;
    h->w = w;
    h->done.job = job;
    h->done.ran = (struct st_ran)ST_RAN_INIT;
    st_item_init(&h->item, NULL, NULL, job);
    h->queued_us = st_clock_boot_us();
    h->start_told = job->state == ST_RUNNING;
    h->hash_next = w->buckets[b];
    w->buckets[b] = h;
    h->prev = w->last;
    *(w->last ? &w->last->next : &w->first) = h;
    w->last = h;
    if (!w->next_queued)
        w->next_queued = h;
    w->n_held++;
    w->n_queued++;
    return h;
}

struct held *held_find(struct st_worker *w, const char *id, int64_t fence)
{
    struct held *h = w->buckets[bucket_of(id)];

    while (h && (strcmp(h->done.job->id, id) != 0 || (fence && h->done.job->fence != fence)))
        h = h->hash_next;
    return h;
}

/* The queued jobs stand behind next_queued, but for those that left out of turn. */
static void skip_begun(struct st_worker *w)
{
    while (w->next_queued && w->next_queued->state != HELD_QUEUED)
        w->next_queued = w->next_queued->next;
}

static void unlink_held(struct held *h)
{
    struct st_worker *w = h->w;
    struct held **p = &w->buckets[bucket_of(h->done.job->id)];

    held_set(h, HELD_OVER);
    skip_begun(w);
    while (*p != h)
        p = &(*p)->hash_next;
    *p = h->hash_next;
    *(h->prev ? &h->prev->next : &w->first) = h->next;
    *(h->next ? &h->next->prev : &w->last) = h->prev;
    w->n_held--;
    st_item_clear(&h->item);
}

void held_began(struct held *h)
{
    held_set(h, HELD_RUNNING);
    skip_begun(h->w);
}

int64_t held_started(const struct held *h)
{
    return h->item.fn ? atomic_load(&h->item.started_us) : h->done.started_boot_us;
}

void held_over(struct held *h)
{
    struct st_worker *w = h->w;

    unlink_held(h);
    h->done.next = NULL;
    *(w->out_last ? &w->out_last->next : &w->out_first) = &h->done;
    w->out_last = &h->done;
    w->n_out++;
    w->ended++;
}

void held_forget(struct held *h)
{
    unlink_held(h);
    st_done_free(&h->done);
}
