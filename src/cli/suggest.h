/* SPDX-License-Identifier: Apache-2.0
 *
 * suggest.h - "did you mean": the known name nearest to a mistyped one.
 */
#ifndef ST_CLI_SUGGEST_H
#define ST_CLI_SUGGEST_H

#include "base/str.h"

/* Which of the names (NULL-terminated) was meant?  NULL = none is near. */
const char *st_suggest(struct st_slice given, const char *const *names);

#endif
