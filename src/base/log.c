/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c - one line per event, logfmt or JSON.
 *
 * Invariants:
 *   (1) a line has at most LINE_MAX bytes, is valid UTF-8 and holds no control character; one
 *       that was shortened says so with cut=true;
 *   (2) the sink is called by one thread at a time, with times in ascending order as far as the
 *       clock allows.
 *
 * A sink that logs would wait for itself: what it logs is dropped.
 *
 * Thread: any.  One mutex guards sink and format; the level is atomic, so that a line below it
 * costs one load.
 */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"

#define LINE_MAX  8192
#define VALUE_MAX 2048 /* bytes of one value */
#define TAIL_MAX  16   /* kept free for cut=true and the closing brace */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int threshold = ST_LOG_INFO;
static atomic_bool has_sink;
static st_log_sink sink;
static void *sink_arg;
static bool sink_json;
static _Thread_local bool inside;

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

enum st_log_level st_log_threshold(void)
{
    return (enum st_log_level)atomic_load_explicit(&threshold, memory_order_relaxed);
}

void st_log_set_level(enum st_log_level level)
{
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

bool st_log_level_parse(const char *s, enum st_log_level *out)
{
    for (int i = ST_LOG_DEBUG; s && i <= ST_LOG_OFF; i++) {
        if (strcmp(s, level_names[i]) == 0) {
            *out = (enum st_log_level)i;
            return true;
        }
    }
    return false;
}

void st_log_set_sink(st_log_sink new_sink, void *arg, bool json)
{
    pthread_mutex_lock(&lock);
    sink = new_sink;
    sink_arg = arg;
    sink_json = json;
    atomic_store(&has_sink, new_sink != NULL);
    pthread_mutex_unlock(&lock);
}

/* --- formatting --- */

static bool needs_quotes(struct st_slice s)
{
    size_t n;

    for (size_t i = 0; i < s.len; i += n) {
        unsigned char c = (unsigned char)s.p[i];

        n = st_utf8_len(s.p + i, s.len - i);
        if (n == 0 || c <= ' ' || c == '"' || c == '=' || c == 0x7f)
            return true;
        if (n == 2 && c == 0xc2 && (unsigned char)s.p[i + 1] < 0xa0)
            return true;
    }
    return s.len == 0;
}

static void put_key(struct st_buf *b, bool json, const char *key)
{
    if (b->len > (size_t)json) /* not the first: JSON has its brace already */
        st_buf_putc(b, json ? ',' : ' ');
    if (json) {
        st_json_put_string(b, st_slice_cstr(key));
        st_buf_putc(b, ':');
    } else {
        st_buf_puts(b, key);
        st_buf_putc(b, '=');
    }
}

static void put_text(struct st_buf *b, bool json, const char *key, struct st_slice s)
{
    put_key(b, json, key);
    if (json && !s.p)
        st_buf_puts(b, "null");
    else if (json || needs_quotes(s))
        st_json_put_string(b, s); /* the escapes are the same */
    else
        st_buf_slice(b, s);
}

/* One field, whole or, if it does not fit, not at all.  Returns whether all of it is there. */
static bool put_field(struct st_buf *b, bool json, const struct st_field *f)
{
    size_t from = b->len, n = st_utf8_cut(f->str.p, f->str.len, VALUE_MAX);

    if (f->is_num) {
        put_key(b, json, f->key);
        st_buf_printf(b, "%" PRId64, f->num);
    } else {
        put_text(b, json, f->key, ST_SLICE(f->str.p, n));
    }
    if (!b->failed)
        return n == f->str.len;
    b->failed = false;
    b->len = from;
    b->p[from] = '\0';
    return false;
}

static void format_line(struct st_buf *b, bool json, enum st_log_level level, const char *event,
                        const struct st_field *fields)
{
    char ts[ST_TIME_TEXT];
    bool whole = true;

    if (json)
        st_buf_putc(b, '{');
    put_text(b, json, "ts", st_slice_cstr(st_time_format(st_clock_real_us(), ts)));
    put_text(b, json, "level", st_slice_cstr(level_names[level]));
    whole &= put_field(b, json, &ST_F("event", event));
    for (; fields && fields->key; fields++)
        whole &= put_field(b, json, fields);
    b->max = LINE_MAX;
    if (!whole) {
        put_key(b, json, "cut");
        st_buf_puts(b, "true");
    }
    if (json)
        st_buf_putc(b, '}');
}

void st_log_fields(enum st_log_level level, const char *event, const struct st_field *fields)
{
    char mem[LINE_MAX + 1];
    struct st_buf b = {.p = mem, .cap = sizeof(mem), .max = LINE_MAX - TAIL_MAX};

    if (level < st_log_threshold() || level >= ST_LOG_OFF || !atomic_load(&has_sink) || inside)
        return;
    mem[0] = '\0';
    inside = true;
    pthread_mutex_lock(&lock);
    format_line(&b, sink_json, level, event, fields);
    if (sink)
        sink(sink_arg, level, b.p, b.len);
    pthread_mutex_unlock(&lock);
    inside = false;
}

void st_log_stderr_sink(void *arg, enum st_log_level level, const char *line, size_t len)
{
    char mem[LINE_MAX + 1];
    size_t done = 0;

    (void)arg;
    (void)level;
    if (len > LINE_MAX)
        len = LINE_MAX;
    memcpy(mem, line, len);
    mem[len++] = '\n';
    while (done < len) {
        ssize_t n = write(STDERR_FILENO, mem + done, len - done);

        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            return; /* nobody to tell */
    }
}
