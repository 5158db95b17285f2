/* SPDX-License-Identifier: Apache-2.0
 *
 * result.h - from how a command ended and what it printed to what came of the attempt.
 */
#ifndef ST_EXECUTE_RESULT_H
#define ST_EXECUTE_RESULT_H

#include "base/buf.h"
#include "execute/execute.h"

/* Fills ok, result, kind, message, advice, exit_code and signal of *ran from the wait status and
 * stdout (which may be taken over).  ran->log_tail is there already. */
void st_result_fill(struct st_ran *ran, int status, struct st_buf *out);

/* The last line of log_tail that is not blank, cut to a length that fits a message. */
struct st_slice st_result_last_line(const struct st_ran *ran);
/* "exit status 3" or "killed by signal 9 (SIGKILL)" */
#define ST_RESULT_STATUS 64
char *st_result_status(int status, char out[ST_RESULT_STATUS]);

#endif
