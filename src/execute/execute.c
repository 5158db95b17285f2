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

#include "base/log.h"
#include "execute/run.h"

#define SWEEP_MS     5
#define SWEEP_ROUNDS 2000

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

static void exec_free_if_idle(struct st_exec *x);

/* Which of our children came from that minder?  Its commands were in its session.  A child of ours
 * in a session of its own can only be one that left it, unless it is another minder: this program
 * starts nothing else, and an in-process handler's children stay in our session. */
static bool is_orphan(const struct st_lost *l, const struct st_proc *p)
{
    if (p->ppid != getpid() || st_link_is_minder(p->pid))
        return false;
    if (p->session == l->pid || p->session != getsid(0))
        return true;
    for (struct st_run *r = l->x->runs; r; r = st_run_next(r))
        if (st_run_lost(r) == l && st_run_owns(r, p->pid))
            return true;
    return false;
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
    exec_free_if_idle(x);
}

static void lost_sweep(uv_timer_t *timer)
{
    struct st_lost *l = timer->data;

    if (orphans_kill(l) && ++l->rounds < SWEEP_ROUNDS) {
        uv_timer_start(timer, lost_sweep, SWEEP_MS, 0);
        return;
    }
    for (struct st_run *r = l->x->runs, *next; r; r = next) {
        next = st_run_next(r);
        if (st_run_lost(r) == l)
            st_run_swept(r);
    }
    uv_close((uv_handle_t *)timer, lost_closed);
}

static void lost_reaped(void *arg)
{
    struct st_lost *l = arg;

    l->x->open_links--;
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
    for (struct st_run *r = x->runs; r; r = st_run_next(r))
        if (st_run_link(r) == link)
            st_run_minder_died(r, l);
    st_link_close(link, lost_reaped, l);
}

/* ---- the minder ------------------------------------------------------------------ */

static void link_heard(void *arg, const struct st_minder_msg *msg)
{
    struct st_exec *x = arg;

    for (struct st_run *r = x->runs; r; r = st_run_next(r))
        if (st_run_tag(r) == msg->tag) {
            st_run_heard(r, msg);
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
            x->open_links++;
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
    return STINT_OK;
}

stint_code st_exec_new(uv_loop_t *loop, const struct st_exec_options *opt, struct st_exec **out,
                       stint_error *err)
{
    struct st_exec *x = calloc(1, sizeof(*x));
    struct sigaction pipe_action;
    stint_code rc = STINT_OK;

    *out = NULL;
    if (!x || !(x->read_buf = malloc(ST_READ_SIZE)) ||
        (opt->self && !(x->self = strdup(opt->self))))
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
    /* A command need not read its stdin; writing to it must not end us. */
    if (!sigaction(SIGPIPE, NULL, &pipe_action) && pipe_action.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
    *out = x;
    return STINT_OK;
}

static void exec_free_if_idle(struct st_exec *x)
{
    if (!x->closed || x->open_links || x->lost)
        return;
    x->closed(x->closed_arg);
    free(x->self);
    free(x->logs_dir);
    free(x->read_buf);
    free(x);
}

static void link_closed(void *arg)
{
    struct st_exec *x = arg;

    x->open_links--;
    exec_free_if_idle(x);
}

static void idle_closed(uv_handle_t *handle)
{
    struct st_exec *x = handle->data;

    free(handle);
    link_closed(x);
}

void st_exec_close(struct st_exec *x, void (*closed)(void *arg), void *arg)
{
    struct st_link *link = x->link;

    assert(!x->runs);
    x->closed = closed;
    x->closed_arg = arg;
    x->link = NULL;
    if (link) {
        st_link_close(link, link_closed, x);
    } else if (!x->lost) {
        /* Nothing to wait for, but closed must come from the loop. */
        uv_timer_t *t = malloc(sizeof(*t));

        if (!t) {
            exec_free_if_idle(x);
            return;
        }
        x->open_links++;
        uv_timer_init(x->loop, t);
        t->data = x;
        uv_close((uv_handle_t *)t, idle_closed);
    }
}
