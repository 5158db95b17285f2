/* SPDX-License-Identifier: Apache-2.0
 *
 * mock.h - the built-in handler `mock`: a model that computes nothing.
 */
#ifndef ST_EXECUTE_MOCK_H
#define ST_EXECUTE_MOCK_H

#include "execute/pool.h"

/* Sleeps and returns random figures.  Payload: a number of seconds, or {"seconds": N, "fail": "why"}, both optional;
 * without seconds it is 1.  Result: {"n", "mean", "std", "min", "max", "seconds"}. */
st_handler_fn st_mock_handler(void);

/* The seconds of a payload, 0 to a day; EINVAL otherwise. */
stint_code st_mock_seconds(struct st_slice payload, double *out, stint_error *err);

#endif
