/* SPDX-License-Identifier: Apache-2.0
 *
 * proc.c - looking at processes through /proc.
 */
#include "execute/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENVIRON_MAX (2u << 20)

/* "PID (comm) S PPID PGRP SESSION ... STARTTIME": comm may hold anything, so count from its end. */
static bool stat_parse(char *text, struct st_proc *out)
{
    char *p = strrchr(text, ')');
    int pid, ppid, pgrp, session;
    unsigned long long start;
    char state;

    if (!p || sscanf(text, "%d", &pid) != 1)
        return false;
    if (sscanf(p + 1, " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &ppid,
               &pgrp, &session, &start) != 5)
        return false;
    *out = (struct st_proc){.pid = pid, .ppid = ppid, .pgrp = pgrp, .session = session, .start = start, .state = state};
    return true;
}

static bool stat_read(int dir, const char *path, struct st_proc *out)
{
    char text[1024];
    ssize_t n;
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    return stat_parse(text, out);
}

bool st_proc_read(pid_t pid, struct st_proc *out)
{
    char path[40];

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    return stat_read(AT_FDCWD, path, out);
}

static bool procs_add(struct st_procs *ps, const struct st_proc *p)
{
    if (ps->n == ps->cap) {
        size_t cap = ps->cap ? 2 * ps->cap : 256;
        struct st_proc *mem = realloc(ps->p, cap * sizeof(*mem));

        if (!mem)
            return false;
        ps->p = mem;
        ps->cap = cap;
    }
    ps->p[ps->n++] = *p;
    return true;
}

static int by_pid(const void *a, const void *b)
{
    const struct st_proc *x = a, *y = b;

    return (x->pid > y->pid) - (x->pid < y->pid);
}

bool st_procs_scan(struct st_procs *ps)
{
    DIR *dir = opendir("/proc"); /* close-on-exec by itself */
    struct dirent *e;
    bool ok = true;

    ps->n = 0;
    if (!dir)
        return false;
    while (ok && (e = readdir(dir))) {
        char path[32];
        struct st_proc p;

        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        if (snprintf(path, sizeof(path), "%s/stat", e->d_name) >= (int)sizeof(path))
            continue;
        if (stat_read(dirfd(dir), path, &p))
            ok = procs_add(ps, &p);
    }
    closedir(dir);
    if (ps->n)
        qsort(ps->p, ps->n, sizeof(*ps->p), by_pid);
    return ok;
}

void st_procs_clear(struct st_procs *ps)
{
    free(ps->p);
    *ps = (struct st_procs){0};
}

struct st_proc *st_procs_find(const struct st_procs *ps, pid_t pid)
{
    struct st_proc key = {.pid = pid};

    if (!ps->n)
        return NULL;
    return bsearch(&key, ps->p, ps->n, sizeof(*ps->p), by_pid);
}

void st_procs_tops(struct st_procs *ps, pid_t root)
{
    for (size_t i = 0; i < ps->n; i++)
        ps->p[i].top = 0;
    /* Parents mostly come first, so most climbs end at a neighbour whose top is known.  A picture
     * taken while processes come and go may hold a ring: nobody climbs further than n steps. */
    for (size_t i = 0; i < ps->n; i++) {
        struct st_proc *p = &ps->p[i], *at = p;

        for (size_t steps = 0; at && steps <= ps->n; steps++) {
            if (at->top || at->ppid == root) {
                p->top = at->top ? at->top : at->pid;
                break;
            }
            at = at->ppid > 0 ? st_procs_find(ps, at->ppid) : NULL;
        }
    }
}

bool st_env_has(const char *env, size_t len, const char *text)
{
    size_t want = strlen(text);

    for (size_t at = 0; at < len;) {
        size_t n = strnlen(env + at, len - at);

        if (n == want && !memcmp(env + at, text, n))
            return true;
        at += n + 1;
    }
    return false;
}

char *st_proc_env(pid_t pid, size_t *len)
{
    size_t cap = 4096;
    char path[40], *mem = malloc(cap);
    ssize_t got;
    int fd;

    *len = 0;
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    while (mem && fd >= 0 && (got = read(fd, mem + *len, cap - *len)) > 0) {
        char *more;

        *len += (size_t)got;
        if (*len < cap)
            continue;
        if (cap >= ENVIRON_MAX || !(more = realloc(mem, 2 * cap)))
            break;
        mem = more;
        cap *= 2;
    }
    if (fd >= 0)
        close(fd);
    return mem;
}

void st_proc_signal(const struct st_proc *p, int sig)
{
    struct st_proc now;
    int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);

    if (fd < 0) {
        if (errno != ESRCH && st_proc_read(p->pid, &now) && now.start == p->start)
            kill(p->pid, sig);
        return;
    }
    /* The descriptor is bound to whoever has the number now; then the start time must be right. */
    if (st_proc_read(p->pid, &now) && now.start == p->start)
        syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0);
    close(fd);
}

static int pids_parse(const char *text, pid_t *pids, int max)
{
    int n = 0;

    while (*text && n < max) {
        char *end;
        long v = strtol(text, &end, 10);

        if (end == text)
            break;
        pids[n++] = (pid_t)v;
        text = end;
        while (*text == ' ')
            text++;
    }
    return n;
}

int st_proc_children(int *fd, pid_t *pids, int max)
{
    char text[16384];
    size_t n = 0;
    ssize_t got;

    if (*fd < 0) {
        snprintf(text, sizeof(text), "/proc/self/task/%d/children", (int)getpid());
        *fd = open(text, O_RDONLY | O_CLOEXEC);
        if (*fd < 0)
            return -1;
    }
    while (n < sizeof(text) - 1 && (got = pread(*fd, text + n, sizeof(text) - 1 - n, (off_t)n)) > 0)
        n += (size_t)got;
    if (n >= sizeof(text) - 1)
        return -1; /* more than fits: the caller scans instead */
    text[n] = '\0';
    return pids_parse(text, pids, max);
}

bool st_proc_user_tasks(uint64_t *n)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    struct stat st;
    char path[300];

    *n = 0;
    if (!d)
        return false;
    while ((e = readdir(d))) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof(path), "%s/task", e->d_name);
        if (!fstatat(dirfd(d), path, &st, 0) && st.st_uid == getuid())
            *n += st.st_nlink > 2 ? st.st_nlink - 2 : 1; /* a directory for each */
    }
    closedir(d);
    return true;
}

bool st_nproc_binds(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}, {0}};
    const uint32_t free_of_it = 1u << CAP_SYS_ADMIN | 1u << CAP_SYS_RESOURCE;

    return getuid() != 0 && !syscall(SYS_capget, &head, data) && !(data[0].effective & free_of_it);
}
