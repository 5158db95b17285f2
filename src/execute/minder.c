/* SPDX-License-Identifier: Apache-2.0
 *
 * minder.c - the process between a worker and its commands.
 *
 * A worker can be killed at any moment, and then nobody would be left to stop what it had started.
 * So it starts nothing itself: it has a minder, a small process that is the parent of all commands
 * and, being a subreaper, of everything they leave behind.  While the worker lives the
 * minder does as it is told (minder.h).  When the socket says that the worker is gone, it
 * kills everything below itself and exits.
 *
 *     worker ==socket== minder -+- command --- ...
 *                               +- command
 *                               `- orphans of commands, dead or alive
 *
 * Invariants:
 *   (1) a run's GONE is sent when nothing that is known to belong to it is left;
 *   (2) a command's pid is not reaped before its process group was killed, so that the number
 *       cannot belong to somebody else by then.
 *
 * Thread: only one.  Signals are ignored but SIGCHLD, which comes through a descriptor.
 */
#include "execute/minder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "execute/execute.h"
#include "execute/spawn.h"
#include "execute/sweep.h"

#define LOOK_ROUNDS 8
#define GIVE_UP_US  (10 * ST_SEC) /* one that KILL does not end in this time hangs in the kernel */
#define PATH_TRIES  64

struct minder {
    int sock, sigchld, worker; /* worker: a pidfd, -1 where there is none */
    bool alone;                /* the worker is gone */
    int wait_ms;               /* when to sweep again; -1 = when something happens */
    struct st_sweep sweep;
    struct st_cgroups cgroups;
};

static void say(struct minder *m, struct st_minder_msg msg)
{
    while (send(m->sock, &msg, sizeof(msg), MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* ---- starting a command ---------------------------------------------------------- */

struct request {
    char *text;     /* the body */
    char **strings; /* argv, NULL, env, NULL */
    char *cwd, *unlink;
    char **argv, **env;
    char *paths[PATH_TRIES + 1];
    char *path_text;
    uint64_t limits[8];
};

static void request_clear(struct request *r)
{
    free(r->text);
    free(r->strings);
    free(r->path_text);
}

static char *next_string(char **at, char *end)
{
    char *s = *at, *nul = s < end ? memchr(s, '\0', (size_t)(end - s)) : NULL;

    if (nul)
        *at = nul + 1;
    return nul ? s : NULL;
}

static int request_split(struct request *r, size_t size)
{
    struct st_minder_body *b = (struct st_minder_body *)(void *)r->text;
    char *at = r->text + sizeof(*b), *end = r->text + size;
    size_t n, want;

    if (size < sizeof(*b) || b->magic != ST_MD_BODY_MAGIC || b->size != size || !b->argc || b->argc > size ||
        b->envc > size)
        return EINVAL;
    memcpy(r->limits, b->limits, sizeof(r->limits));
    want = (size_t)b->argc + b->envc;
    r->strings = calloc(want + 2, sizeof(char *));
    if (!r->strings)
        return ENOMEM;
    r->cwd = next_string(&at, end);
    r->unlink = next_string(&at, end);
    r->argv = r->strings;
    r->env = r->strings + b->argc + 1;
    for (n = 0; n < want; n++) {
        char *s = next_string(&at, end);

        if (!s)
            return EINVAL;
        r->strings[n < b->argc ? n : n + 1] = s;
    }
    return 0;
}

static int request_read(struct request *r, int fd)
{
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) || st.st_size < 0)
        return EINVAL;
    if (st.st_size > (off_t)ST_MD_BODY_MAX)
        return E2BIG;
    r->text = malloc((size_t)st.st_size + 1);
    if (!r->text)
        return ENOMEM;
    n = pread(fd, r->text, (size_t)st.st_size, 0);
    if (n != st.st_size)
        return EINVAL;
    return request_split(r, (size_t)n);
}

static const char *env_get(char **env, const char *name)
{
    size_t len = strlen(name);

    for (; *env; env++)
        if (!strncmp(*env, name, len) && (*env)[len] == '=')
            return *env + len + 1;
    return NULL;
}

/* Where the program may be: itself if it has a slash, else in each directory of the PATH that it
 * will see. */
static int request_paths(struct request *r)
{
    const char *name = r->argv[0], *path = env_get(r->env, "PATH");
    size_t n = 0, name_len = strlen(name), size;
    char *out;

    r->paths[0] = r->argv[0];
    if (!*name || strchr(name, '/') || !path)
        return 0;
    size = strlen(path) + (name_len + 3) * PATH_TRIES;
    out = r->path_text = malloc(size);
    if (!out)
        return ENOMEM;
    for (; n < PATH_TRIES; n++) {
        size_t len = strcspn(path, ":");

        r->paths[n] = out;
        out = mempcpy(out, len ? path : ".", len ? len : 1);
        *out++ = '/';
        out = (char *)mempcpy(out, name, name_len + 1);
        path += len;
        if (!*path++)
            return 0;
    }
    return 0;
}

static void run_remember(struct st_minded *run, const struct request *r)
{
    const char *id = env_get(r->env, "STINT_JOB_ID");
    const char *fence = env_get(r->env, "STINT_FENCE");
    const char *child = env_get(r->env, "STINT_CHILD");

    if (id && fence) {
        run->env[0] = strdup(id - strlen("STINT_JOB_ID="));
        run->env[1] = strdup(fence - strlen("STINT_FENCE="));
    } else if (child) { /* one text does for both */
        run->env[0] = strdup(child - strlen("STINT_CHILD="));
        run->env[1] = strdup(child - strlen("STINT_CHILD="));
    }
    if (*r->unlink)
        run->unlink = strdup(r->unlink);
}

static void add_limit(struct st_spawn *s, int resource, uint64_t soft, uint64_t hard)
{
    s->limits[s->n_limits++] = (struct st_spawn_limit){resource, soft, hard};
}

/* Processes: by a group, else by an rlimit, which counts all that the user has. */
static bool cap_processes(const struct st_minded *run, uint64_t max, struct st_spawn *s)
{
    uint64_t others;

    if (!max || (run->cgroup && run->cgroup->pids))
        return true;
    if (!st_nproc_binds() || !st_proc_user_tasks(&others))
        return false;
    add_limit(s, RLIMIT_NPROC, others + max, others + max);
    return true;
}

/* What the run may use.  false: that cannot be kept here. */
static bool set_caps(struct minder *m, struct st_minded *run, const uint64_t *limits, struct st_spawn *s)
{
    uint64_t cpu_s = limits[ST_LIMIT_CPU_S], memory = limits[ST_LIMIT_MEMORY];
    uint64_t files = limits[ST_LIMIT_FILES], processes = limits[ST_LIMIT_PROCESSES];

    if (memory || processes)
        run->cgroup = st_cgroup_make(&m->cgroups, run->tag, processes, memory);
    if (run->cgroup)
        s->cgroup_fd = run->cgroup->procs_fd;
    if (cpu_s) /* a second to say so, then it is killed */
        add_limit(s, RLIMIT_CPU, cpu_s, cpu_s + 1);
    if (memory && !(run->cgroup && run->cgroup->memory))
        add_limit(s, RLIMIT_DATA, memory, memory);
    if (files)
        add_limit(s, RLIMIT_NOFILE, files, files);
    return cap_processes(run, processes, s);
}

static void on_spawn(struct minder *m, uint64_t tag, unsigned flags, const int *fds)
{
    struct request r = {0};
    struct st_spawn s = {.fds = {fds[1], fds[2], fds[3]}, .cgroup_fd = -1, .stage = ST_STAGE_BODY};
    struct st_minded *run = NULL;
    pid_t pid = -1;

    s.err = request_read(&r, fds[0]);
    if (!s.err)
        s.err = request_paths(&r);
    if (!s.err && !(run = st_sweep_add(&m->sweep, tag)))
        s.err = ENOMEM;
    if (!s.err && !set_caps(m, run, r.limits, &s)) {
        s.stage = ST_STAGE_CAPS;
        s.err = EPERM;
    }
    if (!s.err) {
        s.paths = r.paths;
        s.argv = r.argv;
        s.env = r.env;
        s.cwd = *r.cwd ? r.cwd : NULL;
        run_remember(run, &r);
        run->pid = pid = st_spawn(&s);
    }
    request_clear(&r);
    if (pid > 0) {
        if (flags & ST_MD_TELL)
            say(m, (struct st_minder_msg){.op = ST_MD_STARTED, .tag = tag, .pid = pid});
        return;
    }
    if (run)
        st_sweep_drop(&m->sweep, run);
    say(m, (struct st_minder_msg){.op = ST_MD_FAILED, .tag = tag, .stage = (int)s.stage, .err = s.err});
}

/* ---- what the worker says -------------------------------------------------------- */

static void on_signal(struct minder *m, const struct st_minder_msg *msg)
{
    struct st_minded *run = st_sweep_by_tag(&m->sweep, msg->tag);

    if (!run || run->ending)
        return;
    if (msg->sig == SIGKILL) {
        run->killing = true;
        kill(-run->pid, SIGKILL);
        if (run->cgroup)
            st_cgroup_kill(run->cgroup);
        m->wait_ms = 0; /* the rest of the tree goes in the sweep */
        return;
    }
    st_sweep_signal(&m->sweep, run, msg->sig);
    if (msg->sig == SIGTERM) /* one that is stopped would not hear it */
        st_sweep_signal(&m->sweep, run, SIGCONT);
}

static int take_fds(struct msghdr *h, int *fds)
{
    int n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        size_t bytes = c->cmsg_len - CMSG_LEN(0);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        n = (int)(bytes / sizeof(int));
        memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof(int));
    }
    return n;
}

/* One packet.  false: there is none now, or the worker is gone. */
static bool hear(struct minder *m)
{
    struct st_minder_msg msg;
    int fds[ST_MD_FDS];
    union {
        char buf[CMSG_SPACE(sizeof(fds))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {&msg, sizeof(msg)};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(m->sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int n_fds;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        m->alone = true;
        return false;
    }
    n_fds = take_fds(&h, fds);
    if (n == sizeof(msg) && msg.op == ST_MD_SPAWN && n_fds == ST_MD_FDS)
        on_spawn(m, msg.tag, msg.flags, fds);
    else if (n == sizeof(msg) && msg.op == ST_MD_SPAWN) /* those that did not fit were dropped */
        say(m, (struct st_minder_msg){.op = ST_MD_FAILED, .tag = msg.tag, .stage = ST_STAGE_BODY, .err = EMFILE});
    else if (n == sizeof(msg) && msg.op == ST_MD_SIGNAL)
        on_signal(m, &msg);
    while (n_fds > 0)
        close(fds[--n_fds]);
    return true;
}

/* ---- children that ended --------------------------------------------------------- */

static int64_t cpu_us(const struct rusage *ru)
{
    return (ru->ru_utime.tv_sec + ru->ru_stime.tv_sec) * ST_SEC + ru->ru_utime.tv_usec + ru->ru_stime.tv_usec;
}

static void run_reaped(struct minder *m, struct st_minded *run, int status, const struct rusage *ru)
{
    struct st_minder_msg msg = {
        .op = ST_MD_EXITED, .tag = run->tag, .status = status, .max_rss_kb = ru->ru_maxrss, .cpu_us = cpu_us(ru)};

    run->ending = true;
    run->reaped_us = st_clock_mono_us();
    if (run->cgroup) {
        msg.flags |= st_cgroup_oom(run->cgroup) ? ST_MD_OOM : 0;
        st_cgroup_kill(run->cgroup);
    }
    /* Most runs leave nothing behind: then one message says it all. */
    if (st_sweep_look(&m->sweep, false) && !st_sweep_left(&m->sweep, run)) {
        msg.flags |= ST_MD_AND_GONE;
        st_sweep_drop(&m->sweep, run);
    }
    say(m, msg);
}

enum reaped { REAP_NOBODY, REAP_SOME, REAP_CHILDLESS };

/* Reap who has ended.  CHILDLESS: there is nothing below us any more. */
static enum reaped reap(struct minder *m)
{
    enum reaped any = REAP_NOBODY;

    for (;;) {
        siginfo_t si = {0};
        struct rusage ru = {0};
        struct st_minded *run;
        int status = 0;

        if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT))
            return errno == ECHILD ? REAP_CHILDLESS : any;
        if (!si.si_pid)
            return any;
        any = REAP_SOME;
        run = st_sweep_by_pid(&m->sweep, si.si_pid);
        if (run)
            kill(-run->pid, SIGKILL);
        wait4(si.si_pid, &status, WNOHANG, &ru);
        if (run)
            run_reaped(m, run, status, &ru);
        else
            st_sweep_forget(&m->sweep, si.si_pid);
    }
}

/* Tell of the runs that are over.  sure: all children are known. */
static void runs_over(struct minder *m, bool sure)
{
    for (size_t i = 0; i < m->sweep.n_runs;) {
        struct st_minded *run = &m->sweep.runs[i];
        bool late = run->ending && st_clock_mono_us() - run->reaped_us > GIVE_UP_US;
        uint64_t tag = run->tag;

        if (!run->ending || ((!sure || st_sweep_left(&m->sweep, run)) && !late)) {
            i++;
            continue;
        }
        st_sweep_drop(&m->sweep, run);
        say(m, (struct st_minder_msg){.op = ST_MD_GONE, .tag = tag, .flags = late ? ST_MD_LEFT : 0});
    }
}

/* What has to go, goes; who is through, is told.  A child that ends while the list of children is
 * read can hide another, or have left one: look again, and hold them, until nobody ended. */
static void sweep(struct minder *m)
{
    bool sure = false, killed;

    for (int round = 0; round < LOOK_ROUNDS && !sure; round++) {
        sure = st_sweep_look(&m->sweep, round > 0);
        switch (reap(m)) {
        case REAP_NOBODY:
            break;
        case REAP_SOME:
            sure = false;
            break;
        case REAP_CHILDLESS:
            sure = true;
            break;
        }
    }
    killed = st_sweep_kill(&m->sweep);
    runs_over(m, sure);
    if (sure && !killed)
        m->wait_ms = -1;
    else
        m->wait_ms = m->wait_ms <= 0 ? 1 : m->wait_ms < 512 ? 2 * m->wait_ms : 512;
}

static bool sweep_due(const struct minder *m)
{
    for (size_t i = 0; i < m->sweep.n_runs; i++)
        if (m->sweep.runs[i].ending || m->sweep.runs[i].killing)
            return true;
    return m->wait_ms >= 0;
}

/* ---- the loop -------------------------------------------------------------------- */

static void drain(int fd)
{
    struct signalfd_siginfo si[8];

    while (read(fd, si, sizeof(si)) > 0)
        ;
}

static void serve(struct minder *m)
{
    struct pollfd p[3] = {{m->sock, POLLIN, 0}, {m->sigchld, POLLIN, 0}, {m->worker, POLLIN, 0}};

    while (!m->alone) {
        if (poll(p, 3, m->wait_ms) < 0 && errno != EINTR)
            return;
        if (p[1].revents) {
            drain(m->sigchld);
            reap(m);
        }
        if (p[0].revents)
            while (hear(m))
                ;
        if (p[2].revents) {
            while (hear(m)) /* what it said last does not matter any more, but frees descriptors */
                ;
            m->alone = true;
        }
        if (!m->alone && (sweep_due(m) || m->sweep.n_orphans))
            sweep(m);
    }
}

/* The worker is gone: nothing may outlive it. */
static void end_all(struct minder *m)
{
    struct pollfd p = {m->sigchld, POLLIN, 0};
    int ms = 1;

    while (reap(m) != REAP_CHILDLESS) {
        st_sweep_kill_all(&m->sweep);
        if (reap(m) == REAP_CHILDLESS)
            break;
        poll(&p, 1, ms);
        drain(m->sigchld);
        ms = ms < 256 ? 2 * ms : 256;
    }
    while (m->sweep.n_runs)
        st_sweep_drop(&m->sweep, &m->sweep.runs[0]);
}

static int stdio_null(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (dup2(fd, i) < 0)
            return -1;
    if (fcntl(2, F_GETFD) < 0 && dup2(fd, 2) < 0)
        return -1;
    if (fd > 2)
        close(fd);
    return 0;
}

/* What the worker, or a library in it, has left open without close-on-exec. */
static void close_others(int keep)
{
    DIR *dir;
    struct dirent *e;

    if ((keep == 3 || !syscall(SYS_close_range, 3U, (unsigned)keep - 1, 0U)) &&
        !syscall(SYS_close_range, (unsigned)keep + 1, ~0U, 0U))
        return;
    dir = opendir("/proc/self/fd"); /* an older kernel */
    while (dir && (e = readdir(dir))) {
        int fd = atoi(e->d_name);

        if (fd > 2 && fd != keep && fd != dirfd(dir))
            close(fd);
    }
    if (dir)
        closedir(dir);
}

static void setup_signals(sigset_t *chld)
{
    struct sigaction ign = {.sa_handler = SIG_IGN};
    unsigned long dfl[8] = {0}; /* the kernel's struct, whatever its order: all zero */

    /* libc hides two signals from sigaction(2), and ignores them in what posix_spawn starts. */
    for (int sig = 1; sig < NSIG; sig++)
        syscall(SYS_rt_sigaction, sig, dfl, NULL, (size_t)8);
    for (const int *sig = st_spawn_ignored; *sig; sig++)
        sigaction(*sig, &ign, NULL);
    sigemptyset(chld);
    sigaddset(chld, SIGCHLD);
    sigprocmask(SIG_SETMASK, chld, NULL);
}

static int setup(struct minder *m)
{
    sigset_t chld;

    setup_signals(&chld);
    prctl(PR_SET_NAME, "stint-minder");
    if (m->sock < 3 || stdio_null() || fcntl(m->sock, F_SETFD, FD_CLOEXEC) || prctl(PR_SET_CHILD_SUBREAPER, 1))
        return -1;
    close_others(m->sock);
    m->sigchld = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    m->worker = (int)syscall(SYS_pidfd_open, getppid(), 0);
    return m->sigchld < 0 ? -1 : 0;
}

int st_minder_main(int fd)
{
    struct minder m = {.sock = fd, .worker = -1, .wait_ms = -1};

    st_sweep_init(&m.sweep);
    if (setup(&m)) {
        fprintf(stderr, "stint: the minder cannot start: %s\n", strerror(errno));
        return 1;
    }
    serve(&m);
    end_all(&m);
    st_procs_clear(&m.sweep.procs);
    st_cgroups_clear(&m.cgroups);
    free(m.sweep.runs);
    free(m.sweep.orphans);
    return 0;
}
