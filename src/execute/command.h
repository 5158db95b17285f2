/* SPDX-License-Identifier: Apache-2.0
 *
 * command.h - from a type's command and a job to what the minder is asked to start.
 */
#ifndef ST_EXECUTE_COMMAND_H
#define ST_EXECUTE_COMMAND_H

#include "base/buf.h"
#include "execute/execute.h"

/* An argument, its NUL included, may not be longer (the kernel's MAX_ARG_STRLEN). */
#define ST_ARG_MAX 131072

struct st_prepared {
    struct st_buf body; /* for the minder */
    char *payload_file; /* written; remove it when nothing was started.  NULL = none */
    bool by_stdin;      /* the payload goes to stdin */
};

/* Fills *out.  false: this job cannot be run so; *why is a failed attempt that says why, and there
 * is nothing to clear. */
bool st_command_prepare(const struct st_command *cmd, const struct st_job *job, int64_t deadline_us,
                        struct st_prepared *out, struct st_ran *why);
/* The same for a resident child, which runs for no job in particular.  mark: a variable that names
 * it. */
bool st_command_prepare_resident(const struct st_command *cmd, const char *mark, struct st_prepared *out,
                                 struct st_ran *why);
/* Also removes the payload file. */
void st_prepared_clear(struct st_prepared *p);

/* A copy of all it points to; false = no memory, and nothing to clear. */
bool st_command_copy(const struct st_command *from, struct st_command *to);
void st_command_clear(struct st_command *cmd);
bool st_command_same(const struct st_command *a, const struct st_command *b);

/* Is this the environment of something that was started for this attempt? */
bool st_env_is_job(const char *env, size_t len, const struct st_job *job);

/* A file name for this job: the encoded id, shortened by a hash where it would be too long. */
#define ST_JOB_FILE_MAX 180
char *st_job_file_name(const char *id, char out[ST_JOB_FILE_MAX + 1]);

#endif
