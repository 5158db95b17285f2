/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - the memory of a job: one block for a held one, many for what people see.
 */
#include "job/job.h"

#include <stdlib.h>
#include <string.h>

/* Copies s behind *at with a NUL after it and moves *at on.  "Not given" stays not given. */
static struct st_slice text_copy(char **at, struct st_slice s)
{
    char *p = *at;

    if (!s.p)
        return ST_NONE;
    if (s.len)
        memcpy(p, s.p, s.len);
    p[s.len] = '\0';
    *at = p + s.len + 1;
    return ST_SLICE(p, s.len);
}

static const char *name_copy(char **at, struct st_slice s)
{
    return text_copy(at, s.p ? s : ST_SLICE("", 0)).p;
}

struct st_job *st_job_new(struct st_slice id, struct st_slice type, struct st_slice queue, struct st_slice payload,
                          struct st_slice meta)
{
    size_t texts = id.len + type.len + queue.len + payload.len + meta.len + 5;
    struct st_job *job = malloc(sizeof(*job) + texts);
    char *at;

    if (!job)
        return NULL;
    memset(job, 0, sizeof(*job));
    at = (char *)(job + 1);
    job->id = name_copy(&at, id);
    job->type = name_copy(&at, type);
    job->queue = name_copy(&at, queue);
    job->payload = text_copy(&at, payload);
    job->meta = text_copy(&at, meta);
    job->state = ST_CLAIMED;
    job->policy = st_policy_default;
    return job;
}

void st_job_free(struct st_job *job)
{
    free(job);
}

static void attempt_clear(struct st_attempt_info *a)
{
    free(a->worker);
    free(a->outcome);
    free(a->message);
    free(a->log);
    free(a->log_tail);
}

void st_job_info_clear(struct st_job_info *info)
{
    for (size_t i = 0; i < info->n_attempts; i++)
        attempt_clear(&info->attempts[i]);
    free(info->attempts);
    free(info->id);
    free(info->type);
    free(info->queue);
    free(info->worker);
    free((void *)info->payload.p);
    free((void *)info->result.p);
    free((void *)info->meta.p);
    free((void *)info->progress.p);
    free(info->result_ref);
    free(info->key);
    free(info->error_message);
    memset(info, 0, sizeof(*info));
}
