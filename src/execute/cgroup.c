/* SPDX-License-Identifier: Apache-2.0
 *
 * cgroup.c - a control group of its own for a run that has a cap on processes or memory.
 *
 * Groups are called stint-PID-TAG after the minder and the run.  Those of a minder that was killed
 * are removed by the next one.
 *
 * Thread: the minder's only one.
 */
#include "execute/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX 16384
#define LEAF     "stint-worker"

/* ---- files ----------------------------------------------------------------------- */

/* What is in dir/name, NUL-terminated; "" if it cannot be read. */
static const char *file_read(const char *dir, const char *name, char out[FILE_MAX])
{
    char path[4300];
    ssize_t n = -1;
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, out, FILE_MAX - 1);
        close(fd);
    }
    out[n > 0 ? n : 0] = '\0';
    return out;
}

static int file_open(const char *dir, const char *name)
{
    char path[4300];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return open(path, O_WRONLY | O_CLOEXEC);
}

static bool file_write(const char *dir, const char *name, const char *text)
{
    int fd = file_open(dir, name);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return ok;
}

static bool file_number(const char *dir, const char *name, uint64_t n)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
    return file_write(dir, name, text);
}

/* Is it one of the words in this text? */
static bool has_word(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = text; (p = strstr(p, word)); p += len)
        if ((p == text || strchr(" ,\n", p[-1])) && (!p[len] || strchr(" ,\n", p[len])))
            return true;
    return false;
}

/* ---- where we are ---------------------------------------------------------------- */

/* Our path in a hierarchy: "0::/path" for v2, "8:pids:/path" for v1. */
static bool own_path(const char *controller, char *out, size_t size)
{
    char line[4096], *rest;
    FILE *f = fopen("/proc/self/cgroup", "re");
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f)) {
        char *name = strchr(line, ':'), *path = name ? strchr(name + 1, ':') : NULL;

        if (!path)
            continue;
        *path++ = '\0';
        found = *controller ? has_word(name + 1, controller) : !name[1];
        if ((rest = strchr(path, '\n')))
            *rest = '\0';
        if (found)
            snprintf(out, size, "%s", path);
    }
    if (f)
        fclose(f);
    return found;
}

/* Where the hierarchy is mounted, and which part of it: from /proc/self/mountinfo. */
static bool mount_of(const char *type, const char *controller, char *root, char *at)
{
    char line[8192], fstype[64], options[2048], *dash;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f)) {
        dash = strstr(line, " - ");
        if (!dash || sscanf(dash, " - %63s %*s %2047s", fstype, options) != 2)
            continue;
        found = !strcmp(fstype, type) && (!*controller || has_word(options, controller)) &&
                sscanf(line, "%*s %*s %*s %4095s %4095s", root, at) == 2;
    }
    if (f)
        fclose(f);
    return found;
}

/* The directory of the group we are in; free() it. */
static char *own_dir(const char *type, const char *controller)
{
    char root[4096], at[4096], path[4096], *dir = NULL;
    size_t skip;

    if (!own_path(controller, path, sizeof(path)) || !mount_of(type, controller, root, at))
        return NULL;
    skip = strcmp(root, "/") ? strlen(root) : 0;
    if (strncmp(path, root, skip) || asprintf(&dir, "%s%s", at, path + skip) < 0)
        return NULL;
    return dir;
}

/* ---- making room for groups ------------------------------------------------------ */

/* Only the worker and its minder are in there? */
static bool alone_in(const char *dir)
{
    char text[FILE_MAX], *p = text, *end;

    for (file_read(dir, "cgroup.procs", text); *p; p = end) {
        long pid = strtol(p, &end, 10);

        if (end == p)
            break;
        if (pid != getpid() && pid != getppid())
            return false;
        end += *end == '\n';
    }
    return true;
}

static bool to_leaf(const char *dir)
{
    char leaf[4200];

    snprintf(leaf, sizeof(leaf), "%s/" LEAF, dir);
    if (mkdir(leaf, 0755) && errno != EEXIST)
        return false;
    return file_number(leaf, "cgroup.procs", (uint64_t)getppid()) &&
           file_number(leaf, "cgroup.procs", (uint64_t)getpid());
}

static bool hand_down(const char *dir, const char *controller)
{
    char text[FILE_MAX], order[32];

    if (has_word(file_read(dir, "cgroup.subtree_control", text), controller))
        return true;
    if (!has_word(file_read(dir, "cgroup.controllers", text), controller))
        return false;
    snprintf(order, sizeof(order), "+%s", controller);
    if (file_write(dir, "cgroup.subtree_control", order))
        return true;
    return errno == EBUSY && alone_in(dir) && to_leaf(dir) && file_write(dir, "cgroup.subtree_control", order);
}

/* What minders that are gone have left. */
static void remove_stale(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[4400];
    int pid;

    while (d && (e = readdir(d)))
        if (sscanf(e->d_name, "stint-%d-", &pid) == 1 && kill(pid, 0) && errno == ESRCH) {
            snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
            rmdir(path);
        }
    if (d)
        closedir(d);
}

static void look(struct st_cgroups *g)
{
    if (g->looked)
        return;
    g->looked = true;
    g->dir = own_dir("cgroup2", "");
    if (g->dir && !access(g->dir, W_OK)) {
        g->v2 = true;
        g->pids = hand_down(g->dir, "pids");
        g->memory = hand_down(g->dir, "memory");
    }
    if (!g->pids && !g->memory) {
        free(g->dir);
        g->v2 = false;
        g->dir = own_dir("cgroup", "pids");
        g->pids = g->dir && !access(g->dir, W_OK);
    }
    if (g->pids || g->memory)
        remove_stale(g->dir);
}

void st_cgroups_clear(struct st_cgroups *g)
{
    free(g->dir);
    *g = (struct st_cgroups){0};
}

/* ---- one group ------------------------------------------------------------------- */

static bool set_caps(struct st_cgroup *cg, uint64_t processes, uint64_t memory)
{
    cg->pids = processes;
    if (processes && !file_number(cg->dir, "pids.max", processes))
        return false;
    if (!memory)
        return true;
    file_write(cg->dir, "memory.swap.max", "0"); /* where there is swap */
    file_write(cg->dir, "memory.oom.group", "1");
    cg->memory = true;
    return file_number(cg->dir, "memory.max", memory);
}

struct st_cgroup *st_cgroup_make(struct st_cgroups *g, uint64_t tag, uint64_t processes, uint64_t memory)
{
    struct st_cgroup *cg;

    look(g);
    processes = g->pids ? processes : 0;
    memory = g->memory ? memory : 0;
    if ((!processes && !memory) || !(cg = calloc(1, sizeof(*cg))))
        return NULL;
    cg->v2 = g->v2;
    cg->procs_fd = -1;
    if (asprintf(&cg->dir, "%s/stint-%d-%llu", g->dir, getpid(), (unsigned long long)tag) < 0) {
        free(cg);
        return NULL;
    }
    if (!mkdir(cg->dir, 0755) && set_caps(cg, processes, memory))
        cg->procs_fd = file_open(cg->dir, "cgroup.procs");
    if (cg->procs_fd >= 0)
        return cg;
    st_cgroup_remove(cg);
    return NULL;
}

void st_cgroup_kill(const struct st_cgroup *cg)
{
    char text[FILE_MAX], *p = text, *end;

    file_write(cg->dir, "pids.max", "0");
    if (cg->v2 && file_write(cg->dir, "cgroup.kill", "1"))
        return;
    for (file_read(cg->dir, "cgroup.procs", text); *p; p = end) {
        long pid = strtol(p, &end, 10);

        if (end == p)
            break;
        if (pid > 1 && pid != getpid())
            kill((pid_t)pid, SIGKILL);
        end += *end == '\n';
    }
}

bool st_cgroup_empty(const struct st_cgroup *cg)
{
    char text[FILE_MAX];

    return !*file_read(cg->dir, "cgroup.procs", text);
}

bool st_cgroup_oom(const struct st_cgroup *cg)
{
    char text[FILE_MAX];
    const char *at;

    if (!cg->memory)
        return false;
    at = strstr(file_read(cg->dir, "memory.events", text), "oom_kill ");
    return at && atoll(at + strlen("oom_kill ")) > 0;
}

void st_cgroup_remove(struct st_cgroup *cg)
{
    if (!cg)
        return;
    if (cg->procs_fd >= 0)
        close(cg->procs_fd);
    rmdir(cg->dir);
    free(cg->dir);
    free(cg);
}
