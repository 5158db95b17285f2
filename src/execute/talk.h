/* SPDX-License-Identifier: Apache-2.0
 *
 * talk.h - what is said to a child that works by lines, and what its answers come to.
 *
 *     > {"task_id":"..","type":"..","payload":..,"retry_count":0,"max_retry":2,"queue":"..",
 *        "attempt":1,"deadline":"2025-01-01T12:00:00.000000Z","fence":7,"traceparent":null}
 *     < {"task_id":"..","result":..,"error":null,"retry":false}
 *
 * The payload goes out as the bytes it is, except that newlines between the values of a
 * pretty-printed one become blanks.  One that is no JSON goes as null, with its bytes in
 * "payload_base64".  max_retry of a job without a limit is ST_TALK_NO_LIMIT.
 */
#ifndef ST_EXECUTE_TALK_H
#define ST_EXECUTE_TALK_H

#include "base/buf.h"
#include "base/clock.h"
#include "execute/execute.h"
#include "execute/frames.h"

#define ST_TALK_NO_LIMIT 2147483647

/* The text of a time, kept for those of the same second. */
struct st_talk_time {
    int64_t second;
    char text[ST_TIME_TEXT];
};

/* Appends a request and its newline.  deadline_us: real time, 0 = none.  false: it is longer than
 * line_max (or there is no memory) and was not appended. */
bool st_talk_request(struct st_buf *b, const struct st_job *job, int64_t deadline_us, struct st_talk_time *time,
                     size_t line_max);
/* {"task_id":"..","cancel":true} */
void st_talk_cancel(struct st_buf *b, const struct st_job *job);

/* Can what a child said last, without a newline, be taken for a line?  Not if it broke off in the
 * midst of an answer, and ready is too late. */
bool st_talk_is_whole(struct st_slice line);

/* Is it {"status":"ready"}? */
bool st_talk_ready(const struct st_frame *f);
/* From {"status":"error","error":..} to its text; NULL if it is something else.  free() it. */
char *st_talk_error(const struct st_frame *f);

/* ok, result, kind, message, advice and retry_after_us of *ran.  line: what the frame is of. */
void st_talk_answer(const struct st_frame *f, size_t result_max, struct st_ran *ran);
/* The same for an answer that is broken or was cut. */
void st_talk_broken(struct st_slice line, bool whole, size_t line_max, struct st_ran *ran);
/* A request that is longer than a line may be. */
void st_talk_too_long(const struct st_job *job, size_t line_max, struct st_ran *ran);

#endif
