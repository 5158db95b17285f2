/* SPDX-License-Identifier: Apache-2.0
 *
 * link.c - the worker's end of a minder.
 *
 * The socket never blocks: what it does not take at once waits in a queue, descriptors and all.
 *
 *     OPEN --EOF--> LOST --close--> CLOSING --reaped, handles closed--> freed
 *       `-----------close------------^
 *
 * Thread: the loop's.
 */
#include "execute/link.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "execute/execute.h"

#define MINDER_FD     3
#define CLOSE_WAIT_MS 10000 /* for a minder that does not end, before we leave it behind */
#define SILENCE_MS    2000  /* after a kill, before we look whether the minder is stopped */
#define MINDERS_MAX   64

extern char **environ;

struct packet {
    struct packet *next;
    struct st_minder_msg msg;
    int fds[ST_MD_FDS];
    int n_fds;
};

enum link_state { LINK_OPEN, LINK_LOST, LINK_CLOSING };

struct st_link {
    uv_loop_t *loop;
    enum link_state state;
    struct st_link_calls calls;
    pid_t pid;
    int sock, pidfd;
    uv_poll_t sock_poll, exit_poll;
    uv_timer_t patience;
    int open_handles;
    struct packet *first, **last; /* waiting to be sent */
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- the minders of this process ------------------------------------------------- */

static pthread_mutex_t minders_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t minders[MINDERS_MAX];

static bool minders_swap(pid_t from, pid_t to)
{
    bool done = false;

    pthread_mutex_lock(&minders_lock);
    for (int i = 0; i < MINDERS_MAX && !done; i++)
        if (minders[i] == from) {
            minders[i] = to;
            done = true;
        }
    pthread_mutex_unlock(&minders_lock);
    return done;
}

bool st_link_is_minder(int pid)
{
    return minders_swap(pid, pid);
}

/* ---- sending --------------------------------------------------------------------- */

static void packet_free(struct packet *p)
{
    while (p->n_fds > 0)
        close(p->fds[--p->n_fds]);
    free(p);
}

/* 0, or an errno. */
static int packet_send(struct st_link *l, const struct packet *p)
{
    union {
        char buf[CMSG_SPACE(sizeof(p->fds))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(void *)&p->msg, sizeof(p->msg)};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (p->n_fds) {
        struct cmsghdr *c = &control.align;

        h.msg_control = &control;
        h.msg_controllen = sizeof(control);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(p->fds));
        memcpy(CMSG_DATA(c), p->fds, sizeof(p->fds));
    }
    do
        n = sendmsg(l->sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? errno : 0;
}

static void on_socket(uv_poll_t *handle, int status, int events);

static void watch(struct st_link *l)
{
    uv_poll_start(&l->sock_poll, l->first ? UV_READABLE | UV_WRITABLE : UV_READABLE, on_socket);
}

/* Takes the packet, but not its descriptors if it could not be sent.  0, or an errno. */
static int packet_put(struct st_link *l, struct packet *p)
{
    int e = l->state != LINK_OPEN ? EPIPE : l->first ? EAGAIN : packet_send(l, p);

    if (e == EAGAIN) {
        p->next = NULL;
        *l->last = p;
        l->last = &p->next;
        watch(l);
        return 0;
    }
    if (e)
        p->n_fds = 0;
    packet_free(p);
    return e;
}

static void queue_drop(struct st_link *l)
{
    while (l->first) {
        struct packet *p = l->first;

        l->first = p->next;
        packet_free(p);
    }
    l->last = &l->first;
}

static void queue_flush(struct st_link *l)
{
    while (l->first) {
        struct packet *p = l->first;

        if (packet_send(l, p) == EAGAIN)
            break;
        l->first = p->next; /* any other error: the reader will see the end of the socket too */
        packet_free(p);
    }
    if (!l->first)
        l->last = &l->first;
    watch(l);
}

stint_code st_link_spawn(struct st_link *l, uint64_t tag, unsigned flags, const int fds[ST_MD_FDS], stint_error *err)
{
    struct packet *p = calloc(1, sizeof(*p));
    int e;

    if (!p)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    p->msg = (struct st_minder_msg){.op = ST_MD_SPAWN, .flags = flags, .tag = tag};
    p->n_fds = ST_MD_FDS;
    memcpy(p->fds, fds, sizeof(p->fds));
    e = packet_put(l, p);
    return e ? st_fail(err, STINT_EAGAIN, "the minder cannot be reached: %s", strerror(e)) : STINT_OK;
}

/* Is it stopped, by a job that means ill or by somebody who does not know better? */
static bool is_stopped(pid_t pid)
{
    char path[64], text[512], *end;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    end = strrchr(text, ')');
    return end && (end[2] == 'T' || end[2] == 't');
}

/* Something was to be killed a while ago and nothing was heard since.  A minder that is stopped will never do it: without it
 * the kernel and we will. */
static void on_silence(uv_timer_t *timer)
{
    struct st_link *l = timer->data;

    if (!is_stopped(l->pid))
        return;
    st_log(ST_LOG_ERROR, "minder.stopped", ST_FI("pid", l->pid));
    kill(l->pid, SIGKILL);
    uv_timer_stop(timer);
}

void st_link_signal(struct st_link *l, uint64_t tag, int sig)
{
    struct packet *p = calloc(1, sizeof(*p));

    if (!p) { /* a run that cannot be stopped is worse than all of them stopped */
        shutdown(l->sock, SHUT_RDWR);
        return;
    }
    p->msg = (struct st_minder_msg){.op = ST_MD_SIGNAL, .tag = tag, .sig = sig};
    packet_put(l, p);
    if (sig == SIGKILL && l->state == LINK_OPEN && !uv_is_active((uv_handle_t *)&l->patience))
        uv_timer_start(&l->patience, on_silence, SILENCE_MS, SILENCE_MS);
}

/* ---- receiving ------------------------------------------------------------------- */

static void lost(struct st_link *l)
{
    if (l->state != LINK_OPEN)
        return;
    l->state = LINK_LOST;
    uv_poll_stop(&l->sock_poll);
    uv_timer_stop(&l->patience);
    minders_swap(l->pid, 0);
    queue_drop(l);
    st_log(ST_LOG_ERROR, "minder.lost", ST_FI("pid", l->pid));
    l->calls.lost(l->calls.arg, l);
}

void st_link_check(struct st_link *l)
{
    struct st_minder_msg msg;

    while (l->state == LINK_OPEN) {
        ssize_t n = recv(l->sock, &msg, sizeof(msg), MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n == (ssize_t)sizeof(msg)) {
            uv_timer_stop(&l->patience); /* it lives */
            l->calls.heard(l->calls.arg, &msg);
        } else {
            lost(l);
        }
    }
}

static void on_socket(uv_poll_t *handle, int status, int events)
{
    struct st_link *l = handle->data;

    if (events & UV_WRITABLE)
        queue_flush(l);
    if (events & UV_READABLE || status < 0)
        st_link_check(l);
}

/* ---- the end --------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle)
{
    struct st_link *l = handle->data;

    if (--l->open_handles)
        return;
    if (l->pidfd >= 0)
        close(l->pidfd);
    l->closed(l->closed_arg);
    free(l);
}

static void close_handles(struct st_link *l)
{
    uv_handle_t *all[] = {(uv_handle_t *)&l->exit_poll, (uv_handle_t *)&l->patience};

    minders_swap(l->pid, 0);
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (!uv_is_closing(all[i]))
            uv_close(all[i], on_closed);
}

static void on_ended(uv_poll_t *handle, int status, int events)
{
    struct st_link *l = handle->data;
    pid_t got = waitpid(l->pid, NULL, WNOHANG);

    (void)status, (void)events;
    if (got == l->pid || (got < 0 && errno == ECHILD))
        close_handles(l);
}

static void on_patience(uv_timer_t *timer)
{
    struct st_link *l = timer->data;

    if (is_stopped(l->pid)) {
        kill(l->pid, SIGKILL);
        return; /* on_ended follows */
    }
    st_log(ST_LOG_WARN, "minder.left", ST_FI("pid", l->pid));
    close_handles(l);
}

void st_link_close(struct st_link *l, void (*closed)(void *arg), void *arg)
{
    assert(l->state != LINK_CLOSING);
    l->state = LINK_CLOSING;
    l->closed = closed;
    l->closed_arg = arg;
    queue_drop(l);
    uv_close((uv_handle_t *)&l->sock_poll, on_closed);
    close(l->sock); /* this is what tells the minder */
    uv_poll_start(&l->exit_poll, UV_READABLE, on_ended);
    uv_timer_start(&l->patience, on_patience, CLOSE_WAIT_MS, 0);
}

int st_link_pid(const struct st_link *l)
{
    return l->pid;
}

/* ---- the start ------------------------------------------------------------------- */

/* In a session of its own, so that the terminal's signals pass it by. */
static int minder_exec(const char *self, int sock, pid_t *pid)
{
    char fd_text[16], arg[] = ST_MINDER_ARG, name[] = "stint";
    char *argv[] = {name, arg, fd_text, NULL};
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none;
    int e;

    snprintf(fd_text, sizeof(fd_text), "%d", MINDER_FD);
    sigemptyset(&none);
    if ((e = posix_spawn_file_actions_init(&fa)))
        return e;
    if ((e = posix_spawnattr_init(&at))) {
        posix_spawn_file_actions_destroy(&fa);
        return e;
    }
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&at, &none);
    e = posix_spawn_file_actions_adddup2(&fa, sock, MINDER_FD);
    if (!e)
        e = posix_spawn(pid, self ? self : "/proc/self/exe", &fa, &at, argv, environ);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    return e;
}

static int minder_start(const char *self, int *sock, pid_t *pid, int *pidfd)
{
    int pair[2], e;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return errno;
    e = minder_exec(self, pair[1], pid);
    close(pair[1]);
    if (e) {
        close(pair[0]);
        return e;
    }
    *pidfd = (int)syscall(SYS_pidfd_open, *pid, 0);
    *sock = pair[0];
    if (*pidfd >= 0)
        return 0;
    e = errno;
    close(pair[0]); /* it sees the end of the socket and goes */
    while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return e;
}

stint_code st_link_start(uv_loop_t *loop, const char *self, struct st_link_calls calls, struct st_link **out,
                         stint_error *err)
{
    struct st_link *l = calloc(1, sizeof(*l));
    int e;

    *out = NULL;
    if (!l)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    /* Should the minder be killed, its orphans come to us. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    e = minder_start(self, &l->sock, &l->pid, &l->pidfd);
    if (e) {
        free(l);
        return st_fail(err, STINT_EAGAIN, "cannot start the minder: %s", strerror(e));
    }
    l->loop = loop;
    l->calls = calls;
    l->last = &l->first;
    minders_swap(0, l->pid);
    uv_poll_init(loop, &l->sock_poll, l->sock);
    uv_poll_init(loop, &l->exit_poll, l->pidfd);
    uv_timer_init(loop, &l->patience);
    l->sock_poll.data = l->exit_poll.data = l->patience.data = l;
    l->open_handles = 3;
    watch(l);
    *out = l;
    return STINT_OK;
}
