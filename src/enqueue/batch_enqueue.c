/* SPDX-License-Identifier: Apache-2.0
 *
 * batch_enqueue.c - a batch into the store, all or none, and which line it was if it cannot be.
 */
#include "enqueue/batch.h"

#include <string.h>

static bool same_job(const struct st_new_job *a, const struct st_new_job *b)
{
    return st_slice_eq(a->type, b->type) && st_slice_eq(a->queue, b->queue) && st_slice_eq(a->payload, b->payload);
}

/* Is this the id the store speaks of?  Its words are "the id ID is taken by another job". */
static bool named(const char *message, struct st_slice id)
{
    static const char before[] = "the id ", after[] = " is taken";
    const char *at = message + sizeof(before) - 1;

    return strncmp(message, before, sizeof(before) - 1) == 0 && strlen(at) >= id.len && memcmp(at, id.p, id.len) == 0 &&
           strncmp(at + id.len, after, sizeof(after) - 1) == 0;
}

/* The job that has the id in the store; *job points into *info.  false: there is none. */
static bool stored(struct st_store *store, struct st_slice id, struct st_job_info *info, struct st_new_job *job)
{
    stint_error ignored;

    if (st_store_get(store, 0, id, info, &ignored) != STINT_OK)
        return false;
    *job = (struct st_new_job){
        .type = st_slice_cstr(info->type), .queue = st_slice_cstr(info->queue), .payload = info->payload};
    return true;
}

/* The line to name is the first of that id which is not the job that has it: one in the store, or
 * one further up in the batch. */
static void blame(const struct st_batch *b, struct st_store *store, size_t first, stint_error *err)
{
    struct st_new_job owner = b->jobs[first];
    struct st_slice id = owner.id;
    struct st_job_info info;
    bool there = stored(store, id, &info, &owner);
    size_t i = first;

    while (i < b->n && !(st_slice_eq(b->jobs[i].id, id) && !same_job(&b->jobs[i], &owner)))
        i++;
    if (i < b->n && !there)
        st_fail(err, STINT_EEXISTS, "the id %.*s is that of line %zu already", (int)id.len, id.p, b->lines[first]);
    st_err_prefix(err, "line %zu", b->lines[i < b->n ? i : first]);
    if (there)
        st_job_info_clear(&info);
}

stint_code st_batch_enqueue(const struct st_batch *b, struct st_store *store, struct st_enqueued *out, stint_error *err)
{
    stint_code rc = st_enqueue(store, b->jobs, b->n, out, err);

    if (rc != STINT_EEXISTS || !err)
        return rc;
    for (size_t i = 0; i < b->n; i++) {
        if (!named(err->message, b->jobs[i].id))
            continue;
        blame(b, store, i, err);
        break;
    }
    st_err_remedy(err, "give the line an id of its own, or none");
    return rc;
}
