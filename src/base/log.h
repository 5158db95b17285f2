/* SPDX-License-Identifier: Apache-2.0
 *
 * log.h - one line per event, logfmt or JSON.
 *
 *     st_log(ST_LOG_INFO, "job.claimed", ST_F("job", id), ST_FI("attempt", 1));
 *     ts=2025-01-01T12:00:00.000000Z level=info event=job.claimed job=42 attempt=1
 *
 * The event comes first, then fields.  Payloads and secrets are never logged.  Lines are written
 * whole, whichever thread they come from.  Without a sink nothing is written.
 */
#ifndef ST_BASE_LOG_H
#define ST_BASE_LOG_H

#include "base/err.h"
#include "base/str.h"

enum st_log_level { ST_LOG_DEBUG, ST_LOG_INFO, ST_LOG_WARN, ST_LOG_ERROR, ST_LOG_OFF };

struct st_field {
    const char *key; /* NULL: this field is not there */
    struct st_slice str;
    int64_t num;
    bool is_num;
};

#define ST_F(k, s)      ((struct st_field){.key = (k), .str = st_slice_cstr(s)})
#define ST_FS(k, slice) ((struct st_field){.key = (k), .str = (slice)})
#define ST_FI(k, n)     ((struct st_field){.key = (k), .num = (int64_t)(n), .is_num = true})
/* message and code of an error, as fields "error" and "code" */
#define ST_FE(e) ST_F("error", (e)->message), ST_F("code", stint_code_name((e)->code))

#define st_log(level, event, ...)                                                                                      \
    do {                                                                                                               \
        if ((level) >= st_log_threshold())                                                                             \
            st_log_fields((level), (event), (const struct st_field[]){__VA_ARGS__ __VA_OPT__(, ){0}});                 \
    } while (0)

void st_log_fields(enum st_log_level level, const char *event, const struct st_field *fields);

enum st_log_level st_log_threshold(void);
void st_log_set_level(enum st_log_level level);
bool st_log_level_parse(const char *s, enum st_log_level *out); /* debug info warn error off */

typedef void (*st_log_sink)(void *arg, enum st_log_level level, const char *line, size_t len);
/* The line comes without a newline; json chooses the format. */
void st_log_set_sink(st_log_sink sink, void *arg, bool json);
/* A sink that writes to stderr with one write(2) per line. */
void st_log_stderr_sink(void *arg, enum st_log_level level, const char *line, size_t len);

#endif
