/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_data.h - what an RQ job says is to be done, and what it is told in return.
 */
#ifndef ST_INTAKE_RQ_DATA_H
#define ST_INTAKE_RQ_DATA_H

#include "base/buf.h"
#include "base/id.h"

enum st_rq_format { ST_RQ_PICKLE, ST_RQ_JSON };

#define ST_RQ_FUNCTION_MAX 255
/* What the data may have before and after it is inflated. */
#define ST_RQ_DATA_MAX (1u << 20)
/* Results above this are not handed back through Redis; the run has them. */
#define ST_RQ_RESULT_MAX (1u << 20)

struct st_rq_call {
    enum st_rq_format format; /* known as soon as the data could be inflated */
    char function[ST_RQ_FUNCTION_MAX + 1];
    char run_id[ST_ID_MAX + 1];
};

/* Reads the field `data` of a job's hash: zlib or not, JSON or pickle.  function: what the called one must be, or end with
 * after a dot.  The run id is its first argument, or the keyword argument run_id: a text, a UUID or a whole number.
 * EINVAL says what is wrong, in a sentence that may be shown to whoever sent it. */
stint_code st_rq_data_read(struct st_slice data, const char *function, struct st_rq_call *out, stint_error *err);

/* A result (JSON, text, or none) in the serializer's bytes, base64.  false: it is too large, or is neither. */
bool st_rq_data_result(enum st_rq_format format, struct st_slice result, struct st_buf *out);
/* A message as RQ keeps what went wrong: zlib, base64. */
bool st_rq_data_message(struct st_slice text, struct st_buf *out);

#endif
