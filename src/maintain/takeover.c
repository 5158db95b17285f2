/* SPDX-License-Identifier: Apache-2.0
 *
 * takeover.c - starting under a worker id that somebody may have used before.
 *
 * A worker never reaps what it holds itself, so jobs that a dead worker of the same id left behind would wait for
 * somebody else, perhaps for ever.  Before the first claim nothing is ours yet: whatever is held under this id is rescued
 * like anybody's, charged and with its backoff.
 */
#include "maintain/takeover.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "maintain/maintain.h"

#define REAP_BATCH 100

void st_worker_boot_name(char out[64])
{
    char ns[32] = "";
    ssize_t n = readlink("/proc/self/ns/pid", ns, sizeof(ns) - 1);

    ns[n > 0 ? n : 0] = '\0';
    snprintf(out, 64, "%.36s %.24s", st_boot_id(), ns);
}

bool st_worker_process_gone(const struct st_worker_info *w)
{
    char boot[64];

    st_worker_boot_name(boot);
    if (strcmp(w->host, st_host_name()) != 0 || !*st_boot_id() || strcmp(w->boot_id, boot) != 0 || w->pid <= 0)
        return false;
    return st_pid_gone(w->pid, w->pid_start);
}

static stint_code in_use(const struct st_worker_info *w, stint_error *err)
{
    st_fail(err, STINT_EINVAL, "worker id %s is in use by pid %d on %s", w->id, w->pid, w->host);
    st_err_remedy(err, "give each worker an id of its own (STINT_WORKER_ID, worker.id), or none");
    return STINT_EINVAL;
}

static bool same_process(const struct st_worker_info *a, const struct st_worker_info *b)
{
    return a->pid == b->pid && a->pid_start == b->pid_start && strcmp(a->host, b->host) == 0 &&
           strcmp(a->boot_id, b->boot_id) == 0;
}

/* Looks for the id's row: refuses a live one, removes a dead one. */
static stint_code check_row(struct st_store *s, const struct st_worker_info *self, stint_error *err)
{
    struct st_worker_info *list = NULL;
    stint_code rc;
    size_t n = 0;

    rc = st_store_worker_list(s, &list, &n, err);
    for (size_t i = 0; rc == STINT_OK && i < n; i++) {
        bool gone = st_worker_process_gone(&list[i]);

        if (strcmp(list[i].id, self->id) != 0 || same_process(&list[i], self))
            continue;
        if (!gone && st_store_now(s) - list[i].last_beat_us < ST_WORKER_STALE)
            rc = in_use(&list[i], err);
        else
            rc = st_store_worker_remove(s, 0, st_slice_cstr(self->id), gone, 0, list[i].last_beat_us, err);
    }
    free(list);
    return rc;
}

static stint_code rescue(struct st_store *s, stint_error *err)
{
    struct st_reaped *r = calloc(REAP_BATCH, sizeof(*r));
    stint_code rc = STINT_OK;
    size_t n = REAP_BATCH;

    if (!r)
        return st_fail(err, STINT_ENOMEM, "no memory to rescue jobs");
    while (rc == STINT_OK && n == REAP_BATCH)
        rc = st_store_reap(s, 0, st_slice_cstr(""), r, REAP_BATCH, &n, err);
    free(r);
    return rc;
}

static stint_code still_leased(struct st_store *s, const char *id, stint_error *err)
{
    struct st_list_req req = {
        .worker = st_slice_cstr(id), .limit = 1, .states = 1u << ST_SHOW_CLAIMED | 1u << ST_SHOW_RUNNING};
    struct st_job_info *list = NULL;
    uint64_t next;
    size_t n = 0;
    stint_code rc = st_store_list(s, &req, &list, &n, &next, err);

    st_job_info_list_free(list, n);
    if (rc == STINT_OK && n > 0)
        rc = st_fail(err, STINT_EAGAIN, "jobs are still leased to an earlier worker of the id %s", id);
    return rc;
}

/* Two that start at the same moment both find the id free: the row decides, which only one of them can write. */
static stint_code take_id(struct st_store *s, const struct st_worker_info *self, stint_error *err)
{
    stint_code rc = st_store_worker_beat(s, 0, self, err);

    if (rc != STINT_EEXISTS)
        return rc;
    st_fail(err, STINT_EINVAL, "worker id %s is in use by another process", self->id);
    st_err_remedy(err, "give each worker an id of its own (STINT_WORKER_ID, worker.id), or none");
    return STINT_EINVAL;
}

stint_code st_takeover(struct st_store *s, const struct st_worker_info *self, stint_error *err)
{
    stint_code rc = check_row(s, self, err);

    if (rc == STINT_ELOST) /* the row has changed meanwhile: look again */
        return st_fail(err, STINT_EAGAIN, "another worker is starting as %s", self->id);
    if (rc == STINT_OK)
        rc = take_id(s, self, err);
    if (rc == STINT_OK)
        rc = rescue(s, err);
    if (rc == STINT_OK)
        rc = still_leased(s, self->id, err);
    return rc;
}
