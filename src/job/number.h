/* SPDX-License-Identifier: Apache-2.0
 *
 * number.h - doubles as text, the same in every locale.
 */
#ifndef ST_JOB_NUMBER_H
#define ST_JOB_NUMBER_H

#include "base/str.h"

/* The shortest text that reads back as d, written as Python's repr does: 1.0, 0.0001, 1e-05,
 * 1e+16, -0.0.  d must be finite.  Returns out. */
#define ST_NUMBER_TEXT 32
char *st_number_repr(double d, char out[ST_NUMBER_TEXT]);

/* JSON's number text to the nearest double; infinity if it is too large.  false: no memory. */
bool st_number_parse(struct st_slice text, double *out);

#endif
