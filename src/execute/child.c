/* SPDX-License-Identifier: Apache-2.0
 *
 * child.c - a process under the minder and our ends of its pipes.
 *
 *     RUNNING --stop--> STOPPING --grace--> KILLING
 *        |  `-------------|------kill--------^ |
 *        +----------------+--------------------+--gone--> DRAINING --both pipes at EOF--> DONE
 *
 * A child is over when it was reaped, nothing that it started is left (the minder says GONE), and
 * both pipes have reached their end.  Somebody outside the tree may hold a pipe: then we stop
 * reading a while after GONE.
 *
 * stdin, where it stays open: what is put is gathered and goes out with one write before the loop
 * sleeps; a first part goes earlier, so that the child need not wait for all.  What the pipe does
 * not take at once is `sending`; meanwhile the next is gathered.
 *
 * Invariants:
 *   (1) over is called once, then freed once, from the loop, when all handles are closed;
 *   (2) what st_child_seen() does not count was never read by the child.
 *
 * Thread: the loop's.
 */
#include "execute/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/ends.h"

#define EOF_EXTRA_US ST_SEC
#define PUT_MAX      ((size_t)1 << 31)
#define PUT_EARLY    8192              /* goes out at once, so that the child works while we gather */
#define PUT_MOST     65536             /* what a pipe takes */
#define PUT_KEEP     ((size_t)1 << 20) /* a buffer larger than this is given back when empty */

static void on_timer(uv_timer_t *timer);
static void child_check(struct st_child *c);

/* The one place a child changes state. */
static void child_set(struct st_child *c, enum st_child_state to)
{
    static const bool legal[ST_CHILD_N][ST_CHILD_N] = {
        [ST_CHILD_RUNNING] = {[ST_CHILD_STOPPING] = true, [ST_CHILD_KILLING] = true, [ST_CHILD_DRAINING] = true},
        [ST_CHILD_STOPPING] = {[ST_CHILD_KILLING] = true, [ST_CHILD_DRAINING] = true},
        [ST_CHILD_KILLING] = {[ST_CHILD_DRAINING] = true},
        [ST_CHILD_DRAINING] = {[ST_CHILD_DONE] = true},
    };

    assert(legal[c->state][to]);
    c->state = to;
}

/* ---- handles --------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle)
{
    struct st_child *c = handle->data;
    struct st_exec *x = c->x;

    if (--c->open_handles)
        return;
    st_buf_clear(&c->sending);
    st_buf_clear(&c->put);
    x->n_children--;
    c->ops->freed(c);
    st_exec_check_closed(x);
}

static void pipe_close(uv_pipe_t *pipe, bool *open)
{
    if (*open)
        uv_close((uv_handle_t *)pipe, on_closed);
    *open = false;
}

/* Our end of stdin. */
static void in_close(struct st_child *c)
{
    pipe_close(&c->in, &c->in_open);
    if (c->ear_open) {
        uv_poll_stop(&c->ear);
        close(c->ear_fd);
        uv_close((uv_handle_t *)&c->ear, on_closed);
    }
    c->ear_open = false;
}

/* Nobody reads stdin any more: what is in the pipe will never be read. */
static void in_count(struct st_child *c)
{
    uint64_t taken = c->n_sent;
    uv_os_fd_t fd;
    int left = 0;

    if (!c->in_open || uv_fileno((uv_handle_t *)&c->in, &fd) || ioctl(fd, FIONREAD, &left))
        return;
    if (c->writing)
        taken += c->sending.len - uv_stream_get_write_queue_size((uv_stream_t *)&c->in);
    if (left >= 0 && (uint64_t)left <= taken)
        c->n_seen = taken - (uint64_t)left;
}

uint64_t st_child_seen(const struct st_child *c)
{
    return c->n_seen != UINT64_MAX ? c->n_seen : c->n_sent;
}

static void timer_set(struct st_child *c, int64_t after_us)
{
    c->deadline_us = st_clock_mono_us() + after_us;
    uv_timer_start(&c->timer, on_timer, (uint64_t)((after_us + ST_MS - 1) / ST_MS), 0);
}

void st_child_after(struct st_child *c, int64_t after_us)
{
    if (c->state == ST_CHILD_RUNNING && !c->reaped)
        timer_set(c, after_us);
}

void st_child_in_time(struct st_child *c)
{
    if (c->state == ST_CHILD_RUNNING)
        uv_timer_stop(&c->timer);
}

/* ---- the end --------------------------------------------------------------------- */

static void child_done(struct st_child *c)
{
    child_set(c, ST_CHILD_DONE);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    st_exec_clean(c);
    in_close(c);
    pipe_close(&c->out, &c->out_open);
    pipe_close(&c->errs, &c->errs_open);
    uv_close((uv_handle_t *)&c->timer, on_closed);
    c->ops->over(c);
}

static void child_check(struct st_child *c)
{
    if (c->state == ST_CHILD_DRAINING && !c->out_open && !c->errs_open)
        child_done(c);
}

/* Nothing of it is left: what is in the pipes is all there is. */
static void child_gone(struct st_child *c)
{
    if (c->state >= ST_CHILD_DRAINING)
        return;
    child_set(c, ST_CHILD_DRAINING);
    in_close(c);
    timer_set(c, c->grace_us + EOF_EXTRA_US);
    child_check(c);
}

void st_child_fill(const struct st_child *c, struct st_ran *ran)
{
    if (c->reaped && WIFSIGNALED(c->status))
        ran->signal = WTERMSIG(c->status);
    else if (c->reaped)
        ran->exit_code = WEXITSTATUS(c->status);
    ran->max_rss_kb = c->max_rss_kb;
}

void st_child_refused(const struct st_child *c, const char *program, const char *cwd, struct st_ran *ran)
{
    if (c->stage == ST_STAGE_EXEC && c->err == E2BIG) {
        st_ran_fail(ran, ST_KIND_PERMANENT,
                    "the arguments and environment of %s are too long; "
                    "use payload: stdin or payload: file for this type",
                    program);
        ran->advice = ST_PERMANENT;
    } else if (c->stage == ST_STAGE_EXEC) {
        st_ran_fail(ran, ST_KIND_NO_HANDLER, "cannot run %s: %s", program, strerror(c->err));
    } else if (c->stage == ST_STAGE_CAPS) {
        st_ran_fail(ran, ST_KIND_CAPS,
                    "the cap on processes of %s cannot be kept here: it needs a cgroup that we may "
                    "write to, or a worker that does not run as root",
                    program);
        ran->advice = ST_PERMANENT;
    } else if (c->stage == ST_STAGE_CWD) {
        st_ran_fail(ran, ST_KIND_NO_HANDLER, "cannot run %s in %s: %s", program, cwd ? cwd : ".", strerror(c->err));
    } else {
        st_ran_fail(ran, ST_KIND_INTERNAL, "no process could be made for %s: %s", program, strerror(c->err));
    }
}

/* ---- stopping -------------------------------------------------------------------- */

void st_child_kill(struct st_child *c)
{
    if (c->state >= ST_CHILD_KILLING)
        return;
    child_set(c, ST_CHILD_KILLING);
    c->stopped = c->stopped || !c->reaped;
    uv_timer_stop(&c->timer);
    in_close(c);
    if (c->link)
        st_link_signal(c->link, c->tag, SIGKILL);
}

void st_child_stop(struct st_child *c)
{
    if (c->state >= ST_CHILD_STOPPING)
        return;
    if (c->grace_us <= 0) {
        st_child_kill(c);
        return;
    }
    child_set(c, ST_CHILD_STOPPING);
    c->stopped = !c->reaped;
    in_close(c);
    if (c->link)
        st_link_signal(c->link, c->tag, SIGTERM);
    timer_set(c, c->grace_us);
}

static void on_timer(uv_timer_t *timer)
{
    struct st_child *c = timer->data;
    int64_t left = c->deadline_us - st_clock_mono_us();

    if (left > 0) { /* the loop's clock runs ahead of ours by up to an iteration */
        uv_timer_start(timer, on_timer, (uint64_t)((left + ST_MS - 1) / ST_MS), 0);
        return;
    }
    switch (c->state) {
    case ST_CHILD_RUNNING:
        c->ops->late(c);
        break;
    case ST_CHILD_STOPPING:
        st_child_kill(c);
        break;
    case ST_CHILD_DRAINING:
        pipe_close(&c->out, &c->out_open);
        pipe_close(&c->errs, &c->errs_open);
        child_check(c);
        break;
    default:
        break;
    }
}

/* ---- what it prints -------------------------------------------------------------- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct st_child *c = handle->data;

    (void)suggested;
    *buf = uv_buf_init(c->x->read_buf, ST_READ_SIZE);
    if (c->ops->room && handle == (uv_handle_t *)&c->out)
        c->ops->room(c, buf);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct st_child *c = stream->data;
    bool is_out = stream == (uv_stream_t *)&c->out;

    if (n > 0) {
        c->early = true;
        c->ops->read(c, is_out ? ST_STDOUT : ST_STDERR, buf->base, (size_t)n);
    } else if (n < 0) {
        pipe_close((uv_pipe_t *)stream, is_out ? &c->out_open : &c->errs_open);
        if (is_out && c->ops->silent)
            c->ops->silent(c);
        child_check(c);
    }
}

/* ---- what it is told ------------------------------------------------------------- */

static void in_deaf(struct st_child *c)
{
    in_count(c);
    in_close(c);
    if (c->ops->deaf)
        c->ops->deaf(c);
}

static void on_sent(uv_write_t *req, int status)
{
    struct st_child *c = req->data;

    c->writing = false;
    c->n_sent += c->sending.len; /* on an error nobody knows: they may have been */
    st_buf_reset(&c->sending);
    if (status == UV_ECANCELED)
        return; /* closed */
    if (status < 0)
        in_deaf(c);
    else
        st_child_flush(c);
}

/* The other end of a pipe is closed: that is an error, and the only thing that is watched for. */
static void on_ear(uv_poll_t *ear, int status, int events)
{
    (void)status, (void)events;
    in_deaf(ear->data);
}

/* Takes what was gathered. */
static void in_turn(struct st_child *c)
{
    struct st_buf was = c->sending;

    c->sending = c->put;
    c->put = was;
    if (c->put.cap > PUT_KEEP)
        st_buf_clear(&c->put);
}

static void in_queue(struct st_child *c, size_t done)
{
    uv_buf_t rest = uv_buf_init(c->sending.p + done, (unsigned)(c->sending.len - done));

    c->write.data = c;
    /* What has gone is not counted twice: on_sent counts all that is left. */
    memmove(c->sending.p, rest.base, rest.len);
    c->sending.len = rest.len;
    rest.base = c->sending.p;
    c->writing = !uv_write(&c->write, (uv_stream_t *)&c->in, &rest, 1, on_sent);
    if (!c->writing)
        in_deaf(c);
}

void st_child_flush(struct st_child *c)
{
    uv_buf_t all;
    int n = 0;

    if (c->writing || !c->in_open)
        return;
    if (c->put.len) {
        in_turn(c);
        all = uv_buf_init(c->sending.p, (unsigned)c->sending.len);
        n = uv_try_write((uv_stream_t *)&c->in, &all, 1);
        if (n < 0 && n != UV_EAGAIN) {
            in_deaf(c);
            return;
        }
        n = n < 0 ? 0 : n;
        c->n_sent += (size_t)n;
        if ((size_t)n < c->sending.len) {
            in_queue(c, (size_t)n);
            return;
        }
        st_buf_reset(&c->sending);
    }
    if (c->close_in)
        in_close(c);
}

struct st_buf *st_child_put(struct st_child *c)
{
    return &c->put;
}

void st_child_wrote(struct st_child *c, size_t before)
{
    c->n_put += c->put.len - before;
    if (c->put.len >= (c->early ? PUT_EARLY : PUT_MOST)) {
        c->early = false;
        st_child_flush(c);
    }
    st_exec_dirty(c);
}

void st_child_close_in(struct st_child *c)
{
    c->close_in = true;
    st_exec_dirty(c);
}

static void on_once_sent(uv_write_t *req, int status)
{
    struct st_child *c = req->data;

    (void)status; /* a command that does not want its input has its reasons */
    in_close(c);
}

/* ---- what the minder says -------------------------------------------------------- */

void st_child_heard(struct st_child *c, const struct st_minder_msg *msg)
{
    switch (msg->op) {
    case ST_MD_FAILED:
        c->stage = (enum st_stage)msg->stage;
        c->err = msg->err;
        child_gone(c);
        break;
    case ST_MD_STARTED:
        c->pid = msg->pid;
        break;
    case ST_MD_EXITED:
        c->reaped = true;
        in_count(c);
        uv_timer_stop(&c->timer);
        c->status = msg->status;
        c->flags |= msg->flags;
        c->max_rss_kb = msg->max_rss_kb;
        c->cpu_us = msg->cpu_us;
        if (msg->flags & ST_MD_AND_GONE)
            child_gone(c);
        break;
    case ST_MD_GONE:
        c->flags |= msg->flags;
        child_gone(c);
        break;
    default:
        break;
    }
}

void st_child_minder_died(struct st_child *c, const struct st_lost *lost)
{
    c->link = NULL;
    c->lost = lost;
    c->minder_died = c->minder_died || !c->reaped;
    in_close(c);
    uv_timer_stop(&c->timer);
}

void st_child_swept(struct st_child *c)
{
    child_gone(c);
}

/* ---- starting -------------------------------------------------------------------- */

void st_child_init(struct st_child *c, struct st_exec *x, const struct st_child_ops *ops, int64_t grace_us)
{
    *c = (struct st_child){.ops = ops, .x = x, .tag = ++x->last_tag, .grace_us = grace_us, .n_seen = UINT64_MAX};
    st_buf_init(&c->sending, PUT_MAX);
    st_buf_init(&c->put, PUT_MAX);
    uv_timer_init(x->loop, &c->timer);
    c->timer.data = c;
    c->open_handles = 1;
    x->n_children++;
    c->next = x->children;
    c->prev = &x->children;
    if (x->children)
        x->children->prev = &c->next;
    x->children = c;
}

static void pipe_init(struct st_child *c, uv_pipe_t *pipe, bool *open)
{
    uv_pipe_init(c->x->loop, pipe, 0);
    pipe->data = c;
    c->open_handles++;
    *open = true;
}

static int pipe_read(struct st_child *c, uv_pipe_t *pipe, bool *open, int *fd)
{
    int rc;

    pipe_init(c, pipe, open);
    rc = uv_pipe_open(pipe, *fd);
    if (!rc) {
        *fd = -1;
        rc = uv_read_start((uv_stream_t *)pipe, on_alloc, on_read);
    }
    return rc;
}

static int in_open(struct st_child *c, int *fd)
{
    int rc;

    pipe_init(c, &c->in, &c->in_open);
    rc = uv_pipe_open(&c->in, *fd);
    if (!rc)
        *fd = -1;
    return rc;
}

static int ear_open(struct st_child *c)
{
    uv_os_fd_t fd;
    int rc = uv_fileno((uv_handle_t *)&c->in, &fd);

    if (rc || !c->ops->deaf)
        return rc;
    c->ear_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (c->ear_fd < 0)
        return -errno;
    if ((rc = uv_poll_init(c->x->loop, &c->ear, c->ear_fd))) {
        close(c->ear_fd);
        return rc;
    }
    c->ear.data = c;
    c->ear_open = true;
    c->open_handles++;
    return uv_poll_start(&c->ear, UV_DISCONNECT, on_ear);
}

/* Most payloads fit into the pipe at once; the rest is written as the command reads. */
static int in_once(struct st_child *c, struct st_slice left, int *fd)
{
    ssize_t n;
    uv_buf_t buf;
    int rc;

    if (fcntl(*fd, F_SETFL, O_NONBLOCK))
        return -errno;
    while (left.len && (n = write(*fd, left.p, left.len)) > 0) {
        left.p += n;
        left.len -= (size_t)n;
    }
    if (!left.len) {
        close(*fd);
        *fd = -1;
        return 0;
    }
    if ((rc = in_open(c, fd)))
        return rc;
    c->write.data = c;
    buf = uv_buf_init((char *)(uintptr_t)left.p, (unsigned)left.len);
    return uv_write(&c->write, (uv_stream_t *)&c->in, &buf, 1, on_once_sent);
}

static stint_code handles_open(struct st_child *c, struct st_ends *e, enum st_stdin kind, struct st_slice input,
                               stint_error *err)
{
    int rc = 0;

    if (kind == ST_STDIN_ONCE)
        rc = in_once(c, input, &e->own[0]);
    else if (kind == ST_STDIN_OPEN)
        rc = in_open(c, &e->own[0]);
    if (!rc && kind == ST_STDIN_OPEN)
        rc = ear_open(c);
    if (!rc)
        rc = pipe_read(c, &c->out, &c->out_open, &e->own[1]);
    if (!rc)
        rc = pipe_read(c, &c->errs, &c->errs_open, &e->own[2]);
    if (rc)
        return st_fail(err, STINT_EAGAIN, "cannot open pipes of a command: %s", uv_strerror(rc));
    return STINT_OK;
}

/* A minder that died a moment ago is only noticed when it is written to: then try once more. */
static stint_code ask(struct st_child *c, struct st_ends *e, unsigned flags, stint_error *err)
{
    struct st_link *link;
    stint_code rc = STINT_OK;

    for (int tries = 0; tries < 2; tries++) {
        rc = st_exec_link(c->x, &link, err);
        if (rc != STINT_OK)
            return rc;
        rc = st_link_spawn(link, c->tag, flags, e->child, err);
        if (rc == STINT_OK) {
            c->link = link;
            for (int i = 0; i < ST_MD_FDS; i++)
                e->child[i] = -1;
            return rc;
        }
        st_link_check(link);
    }
    return rc;
}

stint_code st_child_start(struct st_child *c, const struct st_buf *body, enum st_stdin kind, struct st_slice input,
                          stint_error *err)
{
    struct st_ends e = ST_ENDS_INIT;
    stint_code rc = st_ends_open(&e, body, kind != ST_STDIN_NONE, err);

    if (rc == STINT_OK)
        rc = handles_open(c, &e, kind, input, err);
    if (rc == STINT_OK)
        rc = ask(c, &e, kind == ST_STDIN_OPEN ? ST_MD_TELL : 0, err);
    st_ends_close(&e);
    return rc;
}

void st_child_discard(struct st_child *c)
{
    child_set(c, ST_CHILD_DRAINING);
    child_done(c);
}

void st_child_forgo(struct st_child *c)
{
    child_set(c, ST_CHILD_DRAINING);
    timer_set(c, 0);
}
