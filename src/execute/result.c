/* SPDX-License-Identifier: Apache-2.0
 *
 * result.c - from how a command ended and what it printed to what came of the attempt.
 *
 *     exit 0    succeeded; stdout, less one final newline, is the result, byte for byte
 *     exit 65   failed for good        (EX_DATAERR of sysexits.h)
 *     exit 75   try again              (EX_TEMPFAIL); by the policy, like every other number
 *     signal    killed
 *
 * A command may print an envelope instead of a bare result: an object with a boolean `ok` and
 * `return` or `exception_class`.  Success needs both, exit 0 and ok: true.
 */
#include "execute/result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/json.h"

#define EXIT_PERMANENT 65
#define LINE_MAX_SHOWN 500

struct envelope {
    bool is, ok;
    struct st_slice ret, class, message, traceback; /* JSON values, ST_NONE where missing */
};

static struct envelope envelope_read(struct st_slice doc)
{
    struct envelope e = {0};
    struct st_slice ok;

    doc = st_json_trim(doc);
    if (!doc.len || *doc.p != '{' || !st_json_ok(doc))
        return e;
    ok = st_json_member(doc, "ok");
    e.ret = st_json_member(doc, "return");
    e.class = st_json_member(doc, "exception_class");
    e.message = st_json_member(doc, "message");
    e.traceback = st_json_member(doc, "traceback");
    e.is = ok.p && st_json_bool(ok, &e.ok) && (e.ret.p || e.class.p);
    return e;
}

/* A string's text; any other value as it is written. */
static void put_text(struct st_buf *b, struct st_slice v)
{
    if (v.p && st_json_typeof(v) != ST_JSON_NULL && !st_json_string(v, b))
        st_buf_slice(b, v);
}

/* "Class: message", the traceback on the lines below. */
static void envelope_fail(struct st_ran *ran, enum st_kind kind, const struct envelope *e)
{
    struct st_buf b;
    size_t len;

    st_buf_init(&b, e->class.len + e->message.len + e->traceback.len + 64); /* cut at the end */
    put_text(&b, e->class);
    if (b.len && e->message.p)
        st_buf_puts(&b, ": ");
    put_text(&b, e->message);
    if (!b.len)
        st_buf_puts(&b, "the command said ok: false");
    len = b.len;
    if (e->traceback.p) {
        st_buf_putc(&b, '\n');
        put_text(&b, e->traceback);
        if (b.len == len + 1)
            b.p[len] = '\0';
    }
    st_ran_fail(ran, kind, "%s", b.p ? b.p : "the command said ok: false");
    st_buf_clear(&b);
}

struct st_slice st_result_last_line(const struct st_ran *ran)
{
    const char *p = ran->log_tail, *end, *start;
    size_t len;

    if (!p)
        return ST_NONE;
    end = p + ran->log_tail_len;
    while (end > p && strchr(" \t\r\n", end[-1]))
        end--;
    for (start = end; start > p && start[-1] != '\n'; start--)
        ;
    len = (size_t)(end - start);
    return ST_SLICE(start, len > LINE_MAX_SHOWN ? st_utf8_cut(start, len, LINE_MAX_SHOWN) : len);
}

char *st_result_status(int status, char out[ST_RESULT_STATUS])
{
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const char *name = sig ? sigabbrev_np(sig) : NULL;

    if (!sig)
        snprintf(out, ST_RESULT_STATUS, "exit status %d", WEXITSTATUS(status));
    else
        snprintf(out, ST_RESULT_STATUS, "killed by signal %d%s%s%s", sig, name ? " (SIG" : "", name ? name : "",
                 name ? ")" : "");
    return out;
}

static void exit_fail(struct st_ran *ran, int code, const struct envelope *e)
{
    enum st_kind kind = code == EXIT_PERMANENT ? ST_KIND_PERMANENT : ST_KIND_EXIT;
    struct st_slice line = st_result_last_line(ran);

    if (code == EXIT_PERMANENT)
        ran->advice = ST_PERMANENT;
    if (e->is && !e->ok) {
        envelope_fail(ran, code == EXIT_PERMANENT ? ST_KIND_PERMANENT : ST_KIND_APP_ERROR, e);
        return;
    }
    st_ran_fail(ran, kind, "exit status %d%s%.*s", code, line.len ? ": " : "", (int)line.len, line.p ? line.p : "");
}

/* Takes the bytes over where it can. */
static void result_take(struct st_ran *ran, struct st_buf *out, struct st_slice value)
{
    if (!value.len)
        return;
    ran->result_len = value.len;
    if (value.p == out->p) {
        ran->result = st_buf_take(out);
        if (ran->result)
            ran->result[value.len] = '\0';
    } else {
        ran->result = st_slice_dup(value);
    }
    if (!ran->result) {
        ran->result_len = 0;
        st_ran_fail(ran, ST_KIND_INTERNAL, "no memory for the result");
    }
}

void st_result_fill(struct st_ran *ran, int status, struct st_buf *out)
{
    struct st_slice text = st_buf_view(out);
    struct envelope e = envelope_read(text);
    char how[ST_RESULT_STATUS];

    ran->ok = false;
    if (WIFSIGNALED(status)) {
        ran->signal = WTERMSIG(status);
        st_ran_fail(ran, ST_KIND_KILLED, "%s", st_result_status(status, how));
        return;
    }
    ran->exit_code = WEXITSTATUS(status);
    if (ran->exit_code) {
        exit_fail(ran, ran->exit_code, &e);
        return;
    }
    if (e.is && !e.ok) {
        envelope_fail(ran, ST_KIND_APP_ERROR, &e);
        return;
    }
    ran->ok = true;
    if (text.len && text.p[text.len - 1] == '\n')
        text.len--;
    result_take(ran, out, e.is ? e.ret : text);
}
