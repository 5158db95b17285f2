/* SPDX-License-Identifier: Apache-2.0
 *
 * takeover.h - starting under a worker id that somebody may have used before.
 */
#ifndef ST_MAINTAIN_TAKEOVER_H
#define ST_MAINTAIN_TAKEOVER_H

#include "store/store.h"

/* Before the worker of this row claims anything.  EINVAL: a live worker has the id.  EAGAIN: jobs of the one that had it
 * before are still leased to it; they are rescued as soon as their leases are over: ask again.  OK: the id is ours, and
 * the row is written. */
stint_code st_takeover(struct st_store *s, const struct st_worker_info *self, stint_error *err);

/* Is the process of this row surely gone?  Only a process of the same host and boot can tell. */
bool st_worker_process_gone(const struct st_worker_info *w);
/* What st_worker_process_gone compares: the boot and the pid namespace. */
void st_worker_boot_name(char out[64]);

#endif
