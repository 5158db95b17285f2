/* SPDX-License-Identifier: Apache-2.0
 *
 * command.c - from a type's command and a job to what the minder is asked to start.
 *
 * A child sees what is listed here and nothing else: the arguments with their placeholders filled
 * in, and an environment made of a small base set, what the type's configuration adds, and the
 * job's own names.  The job's names win over everything.
 */
#include "execute/command.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "execute/minder.h"
#include "execute/proc.h"

#define DEFAULT_PATH    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define ENV_MAX         4096
#define TRACEPARENT_MAX 512

extern char **environ;

/* ---- environment ----------------------------------------------------------------- */

struct env {
    const char *v[ENV_MAX];
    size_t n;
};

static bool same_name(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");

    return n == strcspn(b, "=") && !strncmp(a, b, n);
}

/* A later value takes the place of an earlier one. */
static bool env_put(struct env *e, const char *text)
{
    for (size_t i = 0; i < e->n; i++)
        if (same_name(e->v[i], text)) {
            e->v[i] = text;
            return true;
        }
    if (e->n == ENV_MAX)
        return false;
    e->v[e->n++] = text;
    return true;
}

static void env_remove(struct env *e, const char *name)
{
    for (size_t i = 0; i < e->n; i++)
        if (same_name(e->v[i], name))
            e->v[i--] = e->v[--e->n];
}

static bool env_inherit(struct env *e, const char *name)
{
    for (char **v = environ; v && *v; v++)
        if (strchr(*v, '=') && same_name(*v, name))
            return env_put(e, *v);
    return true;
}

static bool env_base(struct env *e, const struct st_command *cmd)
{
    static const char *const names[] = {"PATH", "HOME", "LANG", "TZ", "TMPDIR"};
    bool ok = env_put(e, "PATH=" DEFAULT_PATH);

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        ok = ok && env_inherit(e, names[i]);
    for (char **v = environ; cmd->inherit_all && v && *v; v++)
        ok = ok && (!strchr(*v, '=') || env_put(e, *v));
    for (char **v = cmd->inherit_env; v && *v; v++)
        ok = ok && env_inherit(e, *v);
    for (char **v = cmd->env; v && *v; v++)
        ok = ok && env_put(e, *v);
    return ok;
}

/* meta.traceparent, if it is a string that fits into a variable. */
static void put_traceparent(const struct st_job *job, struct st_buf *b)
{
    struct st_slice v = ST_NONE;
    struct st_buf text;

    if (job->meta.p && st_json_ok(job->meta))
        v = st_json_member(st_json_trim(job->meta), "traceparent");
    if (!v.p || st_json_typeof(v) != ST_JSON_STRING)
        return;
    st_buf_init(&text, TRACEPARENT_MAX);
    if (st_json_string(v, &text) && !text.failed && text.len && strlen(text.p) == text.len) {
        st_buf_printf(b, "TRACEPARENT=%s", text.p);
        st_buf_putc(b, '\0');
    }
    st_buf_clear(&text);
}

/* The job's own variables, each with its NUL. */
static void own_env(const struct st_job *job, int64_t deadline_us, struct st_buf *b)
{
    char time[ST_TIME_TEXT];

    st_buf_printf(b, "STINT_JOB_ID=%s%c", job->id, 0);
    st_buf_printf(b, "STINT_TYPE=%s%c", job->type, 0);
    st_buf_printf(b, "STINT_QUEUE=%s%c", job->queue, 0);
    st_buf_printf(b, "STINT_ATTEMPT=%d%c", job->attempt, 0);
    st_buf_printf(b, "STINT_FENCE=%lld%c", (long long)job->fence, 0);
    if (deadline_us)
        st_buf_printf(b, "STINT_DEADLINE=%s%c", st_time_format(deadline_us, time), 0);
    put_traceparent(job, b);
}

static const char *const own_names[] = {"STINT_JOB_ID", "STINT_TYPE",     "STINT_QUEUE", "STINT_ATTEMPT",
                                        "STINT_FENCE",  "STINT_DEADLINE", "TRACEPARENT", "STINT_CHILD"};

/* What a command is started for. */
struct purpose {
    const struct st_job *job; /* NULL: no job in particular, but this: */
    const char *mark;
    int64_t deadline_us; /* of the job */
};

/* Appends all variables to out, NUL after each; their number in *n.  false = too many, or no
 * memory. */
static bool env_build(const struct st_command *cmd, const struct purpose *what, struct st_buf *out, uint32_t *n)
{
    struct env *e = calloc(1, sizeof(*e));
    size_t before = out->len;
    char in_flight[48];
    bool ok = e;

    snprintf(in_flight, sizeof(in_flight), "STINT_MAX_IN_FLIGHT=%d", cmd->max_in_flight > 0 ? cmd->max_in_flight : 1);
    if (ok && !what->job)
        ok = env_put(e, in_flight);
    ok = ok && env_base(e, cmd);

    *n = 0;
    if (ok) {
        for (size_t i = 0; i < sizeof(own_names) / sizeof(*own_names); i++)
            env_remove(e, own_names[i]);
        for (size_t i = 0; i < e->n; i++)
            st_buf_put(out, e->v[i], strlen(e->v[i]) + 1);
        if (what->job)
            own_env(what->job, what->deadline_us, out);
        else
            st_buf_put(out, what->mark, strlen(what->mark) + 1);
        for (size_t i = before; !out->failed && i < out->len; i++)
            *n += out->p[i] == '\0';
    }
    free(e);
    return ok;
}

bool st_env_is_job(const char *env, size_t len, const struct st_job *job)
{
    char id[sizeof("STINT_JOB_ID=") + ST_ID_MAX], fence[sizeof("STINT_FENCE=") + 24];

    snprintf(id, sizeof(id), "STINT_JOB_ID=%s", job->id);
    snprintf(fence, sizeof(fence), "STINT_FENCE=%lld", (long long)job->fence);
    return st_env_has(env, len, id) && st_env_has(env, len, fence);
}

/* ---- arguments ------------------------------------------------------------------- */

enum { PH_ID, PH_ATTEMPT, PH_PAYLOAD, PH_FILE, PH_N };
static const char *const placeholders[PH_N] = {"{id}", "{attempt}", "{payload}", "{payload_file}"};

static int placeholder_at(const char *s)
{
    for (int i = 0; i < PH_N; i++)
        if (!strncmp(s, placeholders[i], strlen(placeholders[i])))
            return i;
    return -1;
}

/* Appends the argument with its NUL; marks in used[] what was filled in. */
static void expand(const char *arg, const struct st_slice values[PH_N], bool used[PH_N], struct st_buf *out)
{
    while (*arg) {
        int ph = *arg == '{' ? placeholder_at(arg) : -1;

        if (ph < 0) {
            st_buf_putc(out, *arg++);
            continue;
        }
        used[ph] = true;
        st_buf_slice(out, values[ph]);
        arg += strlen(placeholders[ph]);
    }
    st_buf_putc(out, '\0');
}

static bool has_placeholder(char **argv, int ph)
{
    for (char **a = argv + 1; *a; a++)
        if (strstr(*a, placeholders[ph]))
            return true;
    return false;
}

/* Children that work by lines get it that way. */
static enum st_payload_by payload_by(const struct st_command *cmd)
{
    return cmd->mode == ST_MODE_ONESHOT ? cmd->payload_by : ST_PAYLOAD_STDIN;
}

/* A placeholder for what does not come that way is a mistake in the configuration. */
static bool check_placeholders(const struct st_command *cmd, struct st_ran *why)
{
    if (cmd->mode == ST_MODE_RESIDENT &&
        (has_placeholder(cmd->argv, PH_ID) || has_placeholder(cmd->argv, PH_ATTEMPT))) {
        st_ran_fail(why, ST_KIND_NO_HANDLER,
                    "the command of this type has {id} or {attempt}, which a resident child cannot "
                    "have: it runs many jobs");
        return false;
    }
    if (payload_by(cmd) != ST_PAYLOAD_ARGUMENT && has_placeholder(cmd->argv, PH_PAYLOAD)) {
        st_ran_fail(why, ST_KIND_NO_HANDLER, "the command of this type has {payload}, which needs payload: argument");
        return false;
    }
    if (payload_by(cmd) != ST_PAYLOAD_FILE && has_placeholder(cmd->argv, PH_FILE)) {
        st_ran_fail(why, ST_KIND_NO_HANDLER, "the command of this type has {payload_file}, which needs payload: file");
        return false;
    }
    return true;
}

static bool check_argument(const struct st_command *cmd, const struct st_job *job, struct st_ran *why)
{
    if (payload_by(cmd) != ST_PAYLOAD_ARGUMENT)
        return true;
    if (job->payload.len >= ST_ARG_MAX) {
        st_ran_fail(why, ST_KIND_PERMANENT,
                    "the payload (%zu bytes) is too long for an argument (128 KiB); "
                    "use payload: stdin or payload: file for this type",
                    job->payload.len);
    } else if (job->payload.len && memchr(job->payload.p, '\0', job->payload.len)) {
        st_ran_fail(why, ST_KIND_PERMANENT,
                    "the payload has a zero byte and cannot be an argument; "
                    "use payload: stdin or payload: file for this type");
    } else {
        return true;
    }
    why->advice = ST_PERMANENT;
    return false;
}

/* Appends argv to out, NUL after each; their number in *n. */
static bool argv_build(const struct st_command *cmd, const struct st_job *job, const char *file, struct st_buf *out,
                       uint32_t *n, struct st_ran *why)
{
    char attempt[16];
    const size_t attempt_len = (size_t)snprintf(attempt, sizeof(attempt), "%d", job->attempt);
    const struct st_slice values[PH_N] = {st_slice_cstr(job->id), ST_SLICE(attempt, attempt_len), job->payload,
                                          st_slice_cstr(file)};
    bool used[PH_N] = {false};

    st_buf_put(out, cmd->argv[0], strlen(cmd->argv[0]) + 1); /* never made of a job's bytes */
    for (*n = 1; cmd->argv[*n]; ++*n) {
        size_t before = out->len;

        expand(cmd->argv[*n], values, used, out);
        if (out->len - before > ST_ARG_MAX) {
            st_ran_fail(why, ST_KIND_PERMANENT,
                        "argument %u is too long with its placeholders filled in (128 KiB); use "
                        "payload: stdin or payload: file for this type",
                        *n);
            why->advice = ST_PERMANENT;
            return false;
        }
    }
    if ((payload_by(cmd) == ST_PAYLOAD_ARGUMENT && !used[PH_PAYLOAD]) ||
        (payload_by(cmd) == ST_PAYLOAD_FILE && !used[PH_FILE])) {
        st_buf_slice(out, values[payload_by(cmd) == ST_PAYLOAD_FILE ? PH_FILE : PH_PAYLOAD]);
        st_buf_putc(out, '\0');
        ++*n;
    }
    return true;
}

/* ---- payload file ---------------------------------------------------------------- */

char *st_job_file_name(const char *id, char out[ST_JOB_FILE_MAX + 1])
{
    char whole[ST_ID_FILE_MAX + 1];
    unsigned char hash[16];
    const size_t keep = ST_JOB_FILE_MAX - 2 * sizeof(hash) - 1;

    st_id_file_name(st_slice_cstr(id), whole);
    if (strlen(whole) <= ST_JOB_FILE_MAX)
        return strcpy(out, whole);
    crypto_generichash(hash, sizeof(hash), (const unsigned char *)id, strlen(id), NULL, 0);
    memcpy(out, whole, keep);
    out[keep] = '~'; /* no encoded id has one */
    sodium_bin2hex(out + keep + 1, 2 * sizeof(hash) + 1, hash, sizeof(hash));
    return out;
}

static bool write_all(int fd, struct st_slice s)
{
    while (s.len) {
        ssize_t n = write(fd, s.p, s.len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        s.p += n;
        s.len -= (size_t)n;
    }
    return true;
}

/* The payload in a file only we can read; its path, or NULL with *why filled. */
static char *payload_write(const struct st_job *job, struct st_ran *why)
{
    const char *dir = getenv("TMPDIR");
    char name[ST_JOB_FILE_MAX + 1];
    char *path = NULL;
    bool ok;
    int fd;

    if (!dir || *dir != '/')
        dir = "/tmp";
    if (asprintf(&path, "%s/stint-%s-%lld-XXXXXX", dir, st_job_file_name(job->id, name), (long long)job->fence) < 0) {
        st_ran_fail(why, ST_KIND_INTERNAL, "out of memory");
        return NULL;
    }
    fd = mkostemp(path, O_CLOEXEC); /* 0600 */
    if (fd < 0) {
        st_ran_fail(why, ST_KIND_INTERNAL, "cannot make a payload file in %s: %s", dir, strerror(errno));
        free(path);
        return NULL;
    }
    ok = write_all(fd, job->payload);
    if (!ok) {
        st_ran_fail(why, ST_KIND_INTERNAL, "cannot write the payload file %s: %s", path, strerror(errno));
        unlink(path);
        free(path);
        path = NULL;
    }
    close(fd);
    return path;
}

/* ---- all of it ------------------------------------------------------------------- */

void st_prepared_clear(struct st_prepared *p)
{
    if (p->payload_file)
        unlink(p->payload_file);
    free(p->payload_file);
    p->payload_file = NULL;
    st_buf_clear(&p->body);
}

static void argv_plain(const struct st_command *cmd, struct st_buf *out, uint32_t *n)
{
    for (*n = 0; cmd->argv[*n]; ++*n)
        st_buf_put(out, cmd->argv[*n], strlen(cmd->argv[*n]) + 1);
}

static void limits_build(const struct st_command *cmd, uint64_t *limits)
{
    const struct st_caps *caps = &cmd->caps;

    /* A resident child's CPU time is counted by request (member.c). */
    if (caps->cpu_us > 0 && cmd->mode != ST_MODE_RESIDENT)
        limits[ST_LIMIT_CPU_S] = (uint64_t)((caps->cpu_us + ST_SEC - 1) / ST_SEC);
    if (caps->memory > 0)
        limits[ST_LIMIT_MEMORY] = (uint64_t)caps->memory;
    if (caps->files > 0)
        limits[ST_LIMIT_FILES] = (uint64_t)caps->files;
    if (caps->processes > 0)
        limits[ST_LIMIT_PROCESSES] = (uint64_t)caps->processes;
}

static bool body_build(const struct st_command *cmd, const struct purpose *what, struct st_prepared *p,
                       struct st_ran *why)
{
    struct st_minder_body head = {.magic = ST_MD_BODY_MAGIC};
    struct st_buf *b = &p->body;

    limits_build(cmd, head.limits);
    st_buf_put(b, &head, sizeof(head));
    st_buf_printf(b, "%s%c", cmd->cwd ? cmd->cwd : "", 0);
    st_buf_printf(b, "%s%c", p->payload_file ? p->payload_file : "", 0);
    if (!what->job)
        argv_plain(cmd, b, &head.argc);
    else if (!argv_build(cmd, what->job, p->payload_file, b, &head.argc, why))
        return false;
    if (!env_build(cmd, what, b, &head.envc) || b->failed) {
        st_ran_fail(why, ST_KIND_INTERNAL, "the arguments and environment of this command are too large");
        return false;
    }
    head.size = (uint32_t)b->len;
    memcpy(b->p, &head, sizeof(head));
    return true;
}

static bool prepare(const struct st_command *cmd, const struct purpose *what, struct st_prepared *out,
                    struct st_ran *why)
{
    *out = (struct st_prepared){.by_stdin = payload_by(cmd) == ST_PAYLOAD_STDIN};
    st_buf_init(&out->body, ST_MD_BODY_MAX);
    if (!cmd->argv || !cmd->argv[0] || !*cmd->argv[0]) {
        st_ran_fail(why, ST_KIND_NO_HANDLER, "the command of type %s is empty",
                    what->job   ? what->job->type
                    : cmd->name ? cmd->name
                                : "");
        return false;
    }
    if (!check_placeholders(cmd, why) || (what->job && !check_argument(cmd, what->job, why)))
        return false;
    if (payload_by(cmd) == ST_PAYLOAD_FILE && !(out->payload_file = payload_write(what->job, why)))
        return false;
    if (body_build(cmd, what, out, why))
        return true;
    st_prepared_clear(out);
    return false;
}

bool st_command_prepare(const struct st_command *cmd, const struct st_job *job, int64_t deadline_us,
                        struct st_prepared *out, struct st_ran *why)
{
    return prepare(cmd, &(struct purpose){.job = job, .deadline_us = deadline_us}, out, why);
}

bool st_command_prepare_resident(const struct st_command *cmd, const char *mark, struct st_prepared *out,
                                 struct st_ran *why)
{
    return prepare(cmd, &(struct purpose){.mark = mark}, out, why);
}
