/* SPDX-License-Identifier: Apache-2.0
 *
 * show.h - a job as the JSON people and programs read.
 */
#ifndef ST_JOB_SHOW_H
#define ST_JOB_SHOW_H

#include "base/json.h"
#include "job/job.h"

/* The largest document a job may become; what a buffer for st_job_show_json is made with. */
#define ST_SHOW_MAX ((size_t)256 << 20)

/* Is there an error to show?  A cancellation is one only while the job is cancelled. */
bool st_job_has_error(const struct st_job_info *info);

/* One JSON object.  full = as `job show`; otherwise as in a list: without errors and attempts,
 * and without payload, result, meta, progress and spec_hash where the payload was not loaded. */
void st_job_show_json(struct st_jw *w, const struct st_job_info *info, bool full);

#endif
