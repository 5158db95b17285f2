/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - what execute.c and oneshot.c share: the executor and its runs.
 *
 * Thread: the loop's.
 */
#ifndef ST_EXECUTE_RUN_H
#define ST_EXECUTE_RUN_H

#include "execute/execute.h"
#include "execute/link.h"
#include "execute/proc.h"

#define ST_READ_SIZE 65536

struct st_exec {
    uv_loop_t *loop;
    char *self, *logs_dir;
    struct st_limits limits;
    struct st_link *link; /* NULL until the first run, and after the minder died */
    uint64_t last_tag;
    struct st_run *runs; /* all that go on */
    char *read_buf;      /* ST_READ_SIZE; filled and emptied within one callback */

    struct st_lost *lost;      /* minders that died and whose runs are being cleaned up */
    int open_links;            /* that will still call back */
    void (*closed)(void *arg); /* set by st_exec_close */
    void *closed_arg;
};

/* The link to a minder, started if there is none. */
stint_code st_exec_link(struct st_exec *x, struct st_link **out, stint_error *err);

/* ---- one run, as execute.c sees it ------------------------------------------------ */

struct st_run *st_run_next(const struct st_run *run);
uint64_t st_run_tag(const struct st_run *run);
const struct st_link *st_run_link(const struct st_run *run);
const struct st_lost *st_run_lost(const struct st_run *run);
/* Does this process, a child of ours since its minder died, come from this run? */
bool st_run_owns(const struct st_run *run, pid_t pid);

void st_run_heard(struct st_run *run, const struct st_minder_msg *msg);
void st_run_minder_died(struct st_run *run, const struct st_lost *lost); /* at once */
void st_run_swept(struct st_run *run); /* when nothing is left of it */

#endif
