/* SPDX-License-Identifier: Apache-2.0
 *
 * fixture.c - a loop, an executor and real processes for the tests of execute/.
 */
#include "fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "execute/proc.h"

bool fx_is_minder(int argc, char **argv, int *rc)
{
    if (argc < 3 || strcmp(argv[1], ST_MINDER_ARG))
        return false;
    *rc = st_minder_main(atoi(argv[2]));
    return true;
}

int fx_open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static int children(int *only)
{
    struct st_procs ps = {0};
    int n = 0;

    *only = 0;
    assert_true(st_procs_scan(&ps));
    for (size_t i = 0; i < ps.n; i++)
        if (ps.p[i].ppid == getpid()) {
            *only = ps.p[i].pid;
            n++;
        }
    st_procs_clear(&ps);
    return n;
}

int fx_children(void)
{
    int only;

    return children(&only);
}

int fx_minder_pid(void)
{
    int only;

    return children(&only) == 1 ? only : 0;
}

static void open_exec(struct fx *fx)
{
    stint_error err;

    if (st_exec_new(&fx->loop, &fx->opt, &fx->x, &err) != STINT_OK)
        fail_msg("%s", err.message);
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

static void close_exec(struct fx *fx)
{
    bool closed = false;

    st_exec_close(fx->x, on_closed, &closed);
    assert_false(closed);
    while (!closed)
        uv_run(&fx->loop, UV_RUN_ONCE);
    uv_run(&fx->loop, UV_RUN_DEFAULT);
}

int fx_setup(void **state)
{
    struct fx *fx = calloc(1, sizeof(*fx));

    assert_non_null(fx);
    assert_int_equal(uv_loop_init(&fx->loop), 0); /* the first loop opens a pipe that stays */
    assert_int_equal(uv_loop_close(&fx->loop), 0);
    fx->fds_before = fx_open_fds();
    strcpy(fx->dir, "/tmp/stint-execute-XXXXXX");
    assert_non_null(mkdtemp(fx->dir));
    assert_int_equal(uv_loop_init(&fx->loop), 0);
    fx->opt.limits = st_limits_default;
    fx->opt.worker_id = "test";
    open_exec(fx);
    *state = fx;
    return 0;
}

void fx_reopen(struct fx *fx)
{
    close_exec(fx);
    open_exec(fx);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/* Nothing may be left: no descriptor, no child, no handle. */
int fx_teardown(void **state)
{
    struct fx *fx = *state;

    close_exec(fx);
    assert_int_equal(uv_loop_close(&fx->loop), 0);
    assert_int_equal(fx_children(), 0);
    assert_int_equal(fx_open_fds(), fx->fds_before);
    nftw(fx->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(fx);
    return 0;
}

/* ---- jobs ------------------------------------------------------------------------ */

static void job_init(struct fx_job *j, const char *prog, const char *flag, const char *script)
{
    memset(j, 0, sizeof(*j));
    j->argv[0] = strdup(prog);
    j->argv[1] = strdup(flag);
    j->argv[2] = strdup(script);
    j->cmd.argv = j->argv;
    j->cmd.grace_us = 5 * ST_SEC;
}

void fx_job_payload(struct fx_job *j, const void *payload, size_t len, const char *meta)
{
    static int64_t fence;

    st_job_free(j->job);
    j->job = st_job_new(st_slice_cstr("job-1"), st_slice_cstr("a.type"), st_slice_cstr("mail.fast"),
                        ST_SLICE(payload, len), st_slice_cstr(meta));
    assert_non_null(j->job);
    j->job->fence = ++fence;
    j->job->attempt = 2;
    j->job->policy = st_policy_default;
}

void fx_job_sh(struct fx_job *j, const char *script, const char *payload)
{
    job_init(j, "sh", "-c", script);
    fx_job_payload(j, payload, strlen(payload), NULL);
}

void fx_job_py(struct fx_job *j, const char *script, const char *payload)
{
    job_init(j, "python3", "-c", script);
    fx_job_payload(j, payload, strlen(payload), NULL);
}

void fx_job_clear(struct fx_job *j)
{
    for (size_t i = 0; i < sizeof(j->argv) / sizeof(*j->argv); i++)
        free(j->argv[i]);
    st_job_free(j->job);
    st_ran_clear(&j->ran);
}

void fx_on_ran(void *arg, struct st_ran *ran)
{
    struct fx_job *j = arg;

    j->done++;
    j->run = NULL;
    j->ran = *ran;
    *ran = (struct st_ran)ST_RAN_INIT;
}

void fx_start(struct fx *fx, struct fx_job *j)
{
    stint_error err;

    if (st_exec_run(fx->x, &j->cmd, j->job, fx_on_ran, j, &j->run, &err) != STINT_OK)
        fail_msg("%s", err.message);
    assert_int_equal(j->done, 0);
}

static void on_tick(uv_timer_t *t)
{
    (void)t;
}

void fx_until(struct fx *fx, bool (*cond)(void *arg), void *arg)
{
    int64_t end = st_clock_mono_us() + FX_PATIENCE_US;
    uv_timer_t tick;

    uv_timer_init(&fx->loop, &tick);
    uv_timer_start(&tick, on_tick, 5, 5);
    while (!cond(arg)) {
        if (st_clock_mono_us() > end)
            fail_msg("nothing happened for a minute");
        uv_run(&fx->loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(&fx->loop, UV_RUN_NOWAIT);
}

static bool is_done(void *arg)
{
    return ((struct fx_job *)arg)->done > 0;
}

void fx_wait(struct fx *fx, struct fx_job *j)
{
    fx_until(fx, is_done, j);
    assert_int_equal(j->done, 1);
}

void fx_run(struct fx *fx, struct fx_job *j)
{
    fx_start(fx, j);
    fx_wait(fx, j);
}

/* ---- files and processes --------------------------------------------------------- */

const char *fx_path(struct fx *fx, const char *name)
{
    static char bufs[4][256];
    static unsigned at;
    char *buf = bufs[at++ % 4];

    snprintf(buf, sizeof(bufs[0]), "%s/%s", fx->dir, name);
    return buf;
}

bool fx_file_number(const char *path, long *out)
{
    char text[64];
    FILE *f = fopen(path, "re");
    bool whole = f && fgets(text, sizeof(text), f) && strchr(text, '\n');

    if (f)
        fclose(f);
    if (whole)
        *out = atol(text);
    return whole;
}

struct number {
    const char *path;
    long value;
};

static bool has_number(void *arg)
{
    struct number *n = arg;

    return fx_file_number(n->path, &n->value);
}

long fx_wait_number(struct fx *fx, const char *path)
{
    struct number n = {.path = path};

    fx_until(fx, has_number, &n);
    return n.value;
}

bool fx_alive(long pid)
{
    struct st_proc p;

    return st_proc_read((pid_t)pid, &p) && !st_proc_dead(&p);
}

void fx_expect_gone(long pid)
{
    int64_t end = st_clock_mono_us() + FX_PATIENCE_US;

    assert_true(pid > 1);
    while (fx_alive(pid)) {
        if (st_clock_mono_us() > end)
            fail_msg("process %ld is still there", pid);
        poll(NULL, 0, 2);
    }
}
