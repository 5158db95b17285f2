/* SPDX-License-Identifier: Apache-2.0
 *
 * spec.h - the spec hash: one name for the same work.
 *
 * Canonical JSON text: keys sorted by code point at every level, no blanks, Python's number text,
 * only what must be escaped escaped.  A payload of reproq's form (an object with a string `task_path` and a
 * member `v`) is hashed as its own canonical text; any other job as {"payload":...,"queue":...,"type":...}.
 * A payload that is not JSON, an empty one too, enters as the member "payload_base64" instead.  Repeated keys: the last one counts.
 */
#ifndef ST_JOB_SPEC_H
#define ST_JOB_SPEC_H

#include "base/json.h"

#define ST_HASH_LEN 64 /* lower-case hex of a SHA-256 */

/* The canonical text of a document, appended.  EINVAL if it is not JSON; ENOMEM if it does not fit. */
stint_code st_json_canonical(struct st_slice doc, struct st_buf *out, stint_error *err);

stint_code st_spec_hash(struct st_slice type, struct st_slice queue, struct st_slice payload, char out[ST_HASH_LEN + 1],
                        stint_error *err);

#endif
