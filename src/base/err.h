/* SPDX-License-Identifier: Apache-2.0
 *
 * err.h - filling the caller's stint_error.
 */
#ifndef ST_BASE_ERR_H
#define ST_BASE_ERR_H

#include "stint.h"

#define ST_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Fill err (which may be NULL) and return code.  The message is one sentence
 * without a final newline or full stop; too long a message is cut at a UTF-8 boundary.
 * Clears detail and remedy. */
stint_code st_fail(stint_error *err, stint_code code, const char *fmt, ...) ST_PRINTF(3, 4);

/* EINVAL with a remedy: what is wrong, and what to do about it. */
stint_code st_refuse(stint_error *err, const char *remedy, const char *fmt, ...) ST_PRINTF(3, 4);

/* Add to an error that st_fail has filled. */
void st_err_remedy(stint_error *err, const char *fmt, ...) ST_PRINTF(2, 3);
void st_err_detail(stint_error *err, const char *detail);

/* Put "fmt: " in front of the message that is there. */
void st_err_prefix(stint_error *err, const char *fmt, ...) ST_PRINTF(2, 3);

void st_err_clear(stint_error *err);

#endif
