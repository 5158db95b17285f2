/* SPDX-License-Identifier: Apache-2.0
 *
 * names.h - what queues, types and unique keys may be called.
 */
#ifndef ST_JOB_NAMES_H
#define ST_JOB_NAMES_H

#include "base/err.h"
#include "base/str.h"

#define ST_NAME_MAX 128
#define ST_KEY_MAX  512

/* Queue and type names: 1..128 bytes of UTF-8 without blanks, control characters, '*', '{', '}', ',' or quotes.
 * A queue name may have one or more dots, `parent.sub`, but no empty part.  EINVAL names the thing. */
stint_code st_queue_check(struct st_slice name, stint_error *err);
stint_code st_type_check(struct st_slice name, stint_error *err);
/* A type as configured or asked for: NAME or PREFIX*, "*" too. */
stint_code st_type_pattern_check(struct st_slice name, stint_error *err);
stint_code st_key_check(struct st_slice key, stint_error *err); /* 1..512 bytes of UTF-8, no NUL */

/* The part before the first dot, or the whole name. */
struct st_slice st_queue_parent(struct st_slice name);
/* Asked for in a claim: every queue that no earlier entry means. */
#define ST_QUEUE_ANY "*"
/* Does asking for `asked` mean `name`?  Equal, or asked is name's parent, or ST_QUEUE_ANY. */
bool st_queue_covers(struct st_slice asked, struct st_slice name);

#define ST_PRIORITY_MIN (-32768)
#define ST_PRIORITY_MAX 32767

#endif
