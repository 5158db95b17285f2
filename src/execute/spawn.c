/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.c - the few steps between a new process and its program.
 *
 * The child shares the parent's memory and the parent waits until it has called exec (what vfork
 * does), so starting costs no copy of page tables and an error comes back by a plain store.
 * It runs on a stack of its own, in one function, and calls nothing that takes a lock.
 *
 * Thread: the minder's only one.
 */
#include "execute/spawn.h"

#include <errno.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

const int st_spawn_ignored[] = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT, SIGTSTP, SIGTTIN,
                                SIGTTOU, SIGPIPE, SIGUSR1, SIGUSR2, SIGXFSZ, 0};

static pid_t parent;

__attribute__((noreturn)) static void give_up(struct st_spawn *s, enum st_stage stage)
{
    s->stage = stage;
    s->err = errno;
    _exit(127);
}

/* As execvp(3) looks, except that a file that is no program is an error and not a shell script. */
static void exec_first(struct st_spawn *s)
{
    int err = ENOENT;

    for (char **path = s->paths; *path; path++) {
        execve(*path, s->argv, s->env);
        if (errno == EACCES) {
            /* A later one may do.  A directory that we may not look into says nothing. */
            if (!s->paths[1] || !access(*path, F_OK))
                err = EACCES;
        } else if (errno != ENOENT && errno != ENOTDIR) {
            err = errno;
            break;
        }
    }
    errno = err;
}

static void take_limits(struct st_spawn *s)
{
    if (s->cgroup_fd >= 0 && write(s->cgroup_fd, "0", 1) != 1)
        give_up(s, ST_STAGE_CAPS);
    for (int i = 0; i < s->n_limits; i++) {
        struct rlimit lim, old;

        if (getrlimit((unsigned)s->limits[i].resource, &old))
            give_up(s, ST_STAGE_CAPS);
        lim.rlim_max = s->limits[i].hard < old.rlim_max ? s->limits[i].hard : old.rlim_max;
        lim.rlim_cur = s->limits[i].soft < lim.rlim_max ? s->limits[i].soft : lim.rlim_max;
        if (setrlimit((unsigned)s->limits[i].resource, &lim))
            give_up(s, ST_STAGE_CAPS);
    }
}

static int child(void *arg)
{
    struct st_spawn *s = arg;
    struct sigaction dfl = {.sa_handler = SIG_DFL};
    sigset_t none;

    /* The parent may have died before it was asked to send us a signal for it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        give_up(s, ST_STAGE_SETUP);
    if (setpgid(0, 0))
        give_up(s, ST_STAGE_SETUP);
    take_limits(s);
    for (int fd = 0; fd < 3; fd++)
        if (dup2(s->fds[fd], fd) < 0)
            give_up(s, ST_STAGE_SETUP);
    syscall(SYS_close_range, 3U, ~0U, 0U); /* all are close-on-exec anyway */
    if (s->cwd && chdir(s->cwd))
        give_up(s, ST_STAGE_CWD);
    for (const int *sig = st_spawn_ignored; *sig; sig++)
        sigaction(*sig, &dfl, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    exec_first(s);
    give_up(s, ST_STAGE_EXEC);
}

pid_t st_spawn(struct st_spawn *s)
{
    static char stack[64 * 1024] __attribute__((aligned(64)));
    sigset_t all, old;
    pid_t pid;

    s->stage = ST_STAGE_OK;
    parent = getpid();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    pid = clone(child, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, s);
    if (pid < 0) {
        s->stage = ST_STAGE_FORK;
        s->err = errno;
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (s->stage == ST_STAGE_OK)
        return pid;
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return -1;
}
