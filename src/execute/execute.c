/* SPDX-License-Identifier: Apache-2.0
 *
 * execute.c - the executor: one minder, its runs, and what is to be done when the minder dies.
 *
 * The minder is started with the first run.  If it is killed, the kernel kills the commands (their
 * parent-death signal), and what they have left comes to this process, a subreaper too.  Then
 *
 *     socket at its end -> reap the minder -> kill the orphans until none is left -> runs are over
 *
 * and the next run gets a new minder.
 *
 * Thread: the loop's.
 */
#include "execute/execute.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/child.h"

#define SWEEP_MS     5
#define SWEEP_ROUNDS 2000
#define STALE_US     ST_MIN

/* A minder that died. */
struct st_lost {
    struct st_exec *x;
    struct st_lost *next;
    pid_t pid;
    uv_timer_t timer;
    int rounds;
    struct st_procs procs;
};

/* ---- after a minder's death ------------------------------------------------------ */

/* Does its environment name one of that minder's runs? */
static bool is_owned(const struct st_lost *l, pid_t pid)
{
    size_t len;
    char *env = st_proc_env(pid, &len);
    bool owned = false;

    for (struct st_child *c = l->x->children; c && !owned; c = c->next)
        owned = c->lost == l && c->ops->owns(c, env, len);
    free(env);
    return owned;
}

/* Which of our children came from that minder?  Its commands were in its session.  A child of ours
 * in a session of its own can only be one that left it, unless it is another minder: this program
 * starts nothing else, and an in-process handler's children stay in our session. */
static bool is_orphan(const struct st_lost *l, const struct st_proc *p)
{
    if (p->ppid != getpid() || st_link_is_minder(p->pid))
        return false;
    if (p->session == l->pid || p->session != getsid(0))
        return true;
    return is_owned(l, p->pid);
}

/* One round.  Returns how many are still there. */
static size_t orphans_kill(struct st_lost *l)
{
    size_t left = 0;

    if (!st_procs_scan(&l->procs))
        return 1;
    st_procs_tops(&l->procs, getpid());
    for (size_t i = 0; i < l->procs.n; i++) {
        const struct st_proc *p = &l->procs.p[i];
        const struct st_proc *top = p->top ? st_procs_find(&l->procs, p->top) : NULL;

        if (!top || !is_orphan(l, top))
            continue;
        if (!st_proc_dead(p))
            st_proc_signal(p, SIGKILL);
        if (p == top)
            waitpid(p->pid, NULL, WNOHANG);
        left++;
    }
    return left;
}

static void lost_closed(uv_handle_t *handle)
{
    struct st_lost *l = handle->data, **at;
    struct st_exec *x = l->x;

    for (at = &x->lost; *at != l; at = &(*at)->next)
        ;
    *at = l->next;
    st_procs_clear(&l->procs);
    free(l);
    st_exec_check_closed(x);
}

static void lost_sweep(uv_timer_t *timer)
{
    struct st_lost *l = timer->data;

    if (orphans_kill(l) && ++l->rounds < SWEEP_ROUNDS) {
        uv_timer_start(timer, lost_sweep, SWEEP_MS, 0);
        return;
    }
    for (struct st_child *c = l->x->children, *next; c; c = next) {
        next = c->next;
        if (c->lost == l)
            st_child_swept(c);
    }
    uv_close((uv_handle_t *)timer, lost_closed);
}

static void lost_reaped(void *arg)
{
    struct st_lost *l = arg;

    l->x->open_handles--;
    lost_sweep(&l->timer);
}

static void link_lost(void *arg, struct st_link *link)
{
    struct st_exec *x = arg;
    struct st_lost *l = calloc(1, sizeof(*l));

    if (!l)
        abort(); /* not to be told apart from a worker that was killed: nothing is lost */
    *l = (struct st_lost){.x = x, .next = x->lost, .pid = st_link_pid(link)};
    x->lost = l;
    if (x->link == link)
        x->link = NULL;
    uv_timer_init(x->loop, &l->timer);
    l->timer.data = l;
    for (struct st_child *c = x->children; c; c = c->next)
        if (c->link == link)
            st_child_minder_died(c, l);
    st_link_close(link, lost_reaped, l);
}

/* ---- the minder ------------------------------------------------------------------ */

static void link_heard(void *arg, const struct st_minder_msg *msg)
{
    struct st_exec *x = arg;

    for (struct st_child *c = x->children; c; c = c->next)
        if (c->tag == msg->tag) {
            st_child_heard(c, msg);
            return;
        }
}

stint_code st_exec_link(struct st_exec *x, struct st_link **out, stint_error *err)
{
    stint_code rc = STINT_OK;

    if (!x->link) {
        struct st_link_calls calls = {.heard = link_heard, .lost = link_lost, .arg = x};

        rc = st_link_start(x->loop, x->self, calls, &x->link, err);
        if (rc == STINT_OK)
            x->open_handles++;
    }
    *out = x->link;
    return rc;
}

/* ---- the executor ---------------------------------------------------------------- */

/* The directory's absolute path; it is made if it is not there.  NULL stays NULL. */
static bool dir_path(const char *path, char **out)
{
    char *copy = NULL;

    if (path) {
        mkdir(path, 0700);
        copy = realpath(path, NULL);
        if (!copy)
            copy = strdup(path);
        if (!copy)
            return false;
    }
    free(*out);
    *out = copy;
    return true;
}

stint_code st_exec_configure(struct st_exec *x, const struct st_exec_options *opt, stint_error *err)
{
    if (!dir_path(opt->logs_dir, &x->logs_dir))
        return st_fail(err, STINT_ENOMEM, "out of memory");
    x->limits = opt->limits;
    x->health = opt->health;
    x->health_arg = opt->health_arg;
    x->generation++;
    st_resident_configured(x);
    return STINT_OK;
}

stint_code st_exec_new(uv_loop_t *loop, const struct st_exec_options *opt, struct st_exec **out, stint_error *err)
{
    struct st_exec *x = calloc(1, sizeof(*x));
    struct sigaction pipe_action;
    stint_code rc = STINT_OK;

    *out = NULL;
    if (!x || !(x->read_buf = malloc(ST_READ_SIZE)) || (opt->self && !(x->self = strdup(opt->self))))
        rc = st_fail(err, STINT_ENOMEM, "out of memory");
    if (rc == STINT_OK)
        rc = st_exec_configure(x, opt, err);
    if (rc != STINT_OK) {
        if (x) {
            free(x->read_buf);
            free(x->self);
        }
        free(x);
        return rc;
    }
    x->loop = loop;
    x->supervise = st_supervise_default;
    x->stale_us = STALE_US;
    x->ended_last = &x->ended;
    uv_prepare_init(loop, &x->before_sleep);
    x->before_sleep.data = x;
    /* A command need not read its stdin; writing to it must not end us. */
    if (!sigaction(SIGPIPE, NULL, &pipe_action) && pipe_action.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
    *out = x;
    return STINT_OK;
}

/* ---- runs ------------------------------------------------------------------------ */

stint_code st_exec_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                       void *arg, struct st_run **out, stint_error *err)
{
    *out = NULL;
    if (cmd->mode == ST_MODE_RESIDENT)
        return st_resident_run(x, cmd, job, done, arg, out, err);
    uv_update_time(x->loop); /* timers count from here */
    if (cmd->mode == ST_MODE_ONESHOT_LINES)
        return st_lines_run(x, cmd, job, done, arg, out, err);
    return st_oneshot_run(x, cmd, job, done, arg, out, err);
}

int st_exec_room(struct st_exec *x, const struct st_command *cmd)
{
    return cmd->mode == ST_MODE_RESIDENT ? st_resident_room(x, cmd) : INT_MAX;
}

void st_exec_abort(struct st_run *run, enum st_abort why)
{
    run->ops->stop(run, why, false);
}

void st_exec_kill(struct st_run *run, enum st_abort why)
{
    run->ops->stop(run, why, true);
}

const char *st_run_progress(struct st_run *run, size_t *len)
{
    *len = 0;
    return run->ops->progress ? run->ops->progress(run, len) : NULL;
}

int64_t st_exec_mono_us(const struct st_exec *x)
{
    return x->mono_us ? x->mono_us : st_clock_mono_us();
}

int64_t st_exec_real_us(const struct st_exec *x)
{
    return x->real_us ? x->real_us : st_clock_real_us();
}

/* ---- before the loop sleeps ------------------------------------------------------ */

static void before_sleep(uv_prepare_t *handle)
{
    struct st_exec *x = handle->data;

    while (x->ended || x->dirty) {
        st_resident_tell_ended(x);
        if (x->dirty) {
            struct st_child *c = x->dirty;

            st_exec_clean(c);
            st_child_flush(c);
        }
    }
    uv_prepare_stop(handle);
}

void st_exec_wake(struct st_exec *x)
{
    if (!uv_is_active((uv_handle_t *)&x->before_sleep))
        uv_prepare_start(&x->before_sleep, before_sleep);
}

void st_exec_dirty(struct st_child *c)
{
    if (c->dirty)
        return;
    c->dirty = true;
    c->dirty_next = c->x->dirty;
    c->x->dirty = c;
    st_exec_wake(c->x);
}

void st_exec_clean(struct st_child *c)
{
    struct st_child **at = &c->x->dirty;

    if (!c->dirty)
        return;
    while (*at != c)
        at = &(*at)->dirty_next;
    *at = c->dirty_next;
    c->dirty = false;
}

/* ---- the end --------------------------------------------------------------------- */

static void on_all_closed(uv_handle_t *handle)
{
    struct st_exec *x = handle->data;

    x->closed(x->closed_arg);
    free(x->self);
    free(x->logs_dir);
    free(x->read_buf);
    free(x);
}

static void link_closed(void *arg)
{
    struct st_exec *x = arg;

    x->open_handles--;
    st_exec_check_closed(x);
}

/* In turn: the children, their crews, the minder, ourselves. */
void st_exec_check_closed(struct st_exec *x)
{
    if (!x->closed || x->n_children)
        return;
    st_resident_free(x);
    if (x->link) {
        struct st_link *link = x->link;

        x->link = NULL;
        st_link_close(link, link_closed, x);
    }
    if (!x->open_handles && !x->lost && !uv_is_closing((uv_handle_t *)&x->before_sleep))
        uv_close((uv_handle_t *)&x->before_sleep, on_all_closed);
}

void st_exec_drain(struct st_exec *x)
{
    x->draining = true;
    uv_update_time(x->loop);
    st_resident_drain(x);
    for (struct st_child *c = x->children; c; c = c->next)
        if (c->ops->drain)
            c->ops->drain(c);
}

void st_exec_close(struct st_exec *x, void (*closed)(void *arg), void *arg)
{
    assert(!x->n_runs);
    x->closed = closed;
    x->closed_arg = arg;
    uv_update_time(x->loop);
    st_resident_close(x);
    st_exec_check_closed(x);
}
