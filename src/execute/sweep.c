/* SPDX-License-Identifier: Apache-2.0
 *
 * sweep.c - who belongs to which run, and how the minder gets rid of them.
 *
 * Everything a run starts is below the minder, whatever it does: a process whose parent dies is
 * given to the nearest subreaper, and that is us.  So each process here has a "top": the child of
 * ours that it descends from.  The top is either a command, or an orphan:
 *
 *     minder -+- command of run 7 --- ...            belongs to 7
 *             +- orphan, in the group of 7           belongs to 7
 *             +- orphan, environment names 8         belongs to 8
 *             `- orphan, names nobody                killed when every run has ended that was there
 *                                                    when it was first seen: one of them left it
 *
 * Killing: stop the trees until a picture shows no process in them that still runs, then kill all
 * that are in it.  A stopped process cannot fork, so nothing slips through between looking and
 * killing.
 *
 * Thread: the minder's only one.
 */
#include "execute/sweep.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHILDREN_MAX 2048
#define STOP_ROUNDS  32

void st_sweep_init(struct st_sweep *s)
{
    *s = (struct st_sweep){.children_fd = -1};
}

/* Room for one more; the array may move. */
static bool room(void **mem, size_t n, size_t *cap, size_t size)
{
    size_t want = *cap ? 2 * *cap : 16;
    void *more;

    if (n < *cap)
        return true;
    more = realloc(*mem, want * size);
    if (!more)
        return false;
    *mem = more;
    *cap = want;
    return true;
}

struct st_minded *st_sweep_add(struct st_sweep *s, uint64_t tag)
{
    void *mem = s->runs;
    bool ok = room(&mem, s->n_runs, &s->cap_runs, sizeof(*s->runs));

    s->runs = mem;
    if (!ok)
        return NULL;
    s->runs[s->n_runs] = (struct st_minded){.tag = tag};
    if (tag > s->max_tag)
        s->max_tag = tag;
    return &s->runs[s->n_runs++];
}

struct st_minded *st_sweep_by_tag(struct st_sweep *s, uint64_t tag)
{
    for (size_t i = 0; i < s->n_runs; i++)
        if (s->runs[i].tag == tag)
            return &s->runs[i];
    return NULL;
}

struct st_minded *st_sweep_by_pid(struct st_sweep *s, pid_t pid)
{
    for (size_t i = 0; i < s->n_runs; i++)
        if (s->runs[i].pid == pid && !s->runs[i].ending)
            return &s->runs[i];
    return NULL;
}

void st_sweep_drop(struct st_sweep *s, struct st_minded *run)
{
    if (run->unlink)
        unlink(run->unlink);
    free(run->unlink);
    st_cgroup_remove(run->cgroup);
    free(run->env[0]);
    free(run->env[1]);
    *run = s->runs[--s->n_runs];
}

void st_sweep_forget(struct st_sweep *s, pid_t pid)
{
    for (size_t i = 0; i < s->n_orphans; i++)
        if (s->orphans[i].pid == pid) {
            s->orphans[i] = s->orphans[--s->n_orphans];
            return;
        }
}

static struct st_orphan *orphan_find(const struct st_sweep *s, pid_t pid)
{
    for (size_t i = 0; i < s->n_orphans; i++)
        if (s->orphans[i].pid == pid)
            return &s->orphans[i];
    return NULL;
}

/* Whose is it?  0: nobody can tell. */
static uint64_t owner_of(const struct st_sweep *s, const struct st_proc *p)
{
    uint64_t owner = 0;
    size_t len;
    char *env;

    for (size_t i = 0; i < s->n_runs; i++)
        if (s->runs[i].pid == p->pgrp)
            return s->runs[i].tag;
    env = st_proc_env(p->pid, &len);
    for (size_t i = 0; i < s->n_runs && !owner; i++)
        if (s->runs[i].env[0] && st_env_has(env, len, s->runs[i].env[0]) && s->runs[i].env[1] &&
            st_env_has(env, len, s->runs[i].env[1]))
            owner = s->runs[i].tag;
    free(env);
    return owner;
}

static bool orphan_add(struct st_sweep *s, const struct st_proc *p)
{
    void *mem = s->orphans;
    bool ok = room(&mem, s->n_orphans, &s->cap_orphans, sizeof(*s->orphans));

    s->orphans = mem;
    if (!ok)
        return false;
    s->orphans[s->n_orphans++] = (struct st_orphan){.pid = p->pid, .owner = owner_of(s, p), .seen_max = s->max_tag};
    return true;
}

static bool orphan_doomed(const struct st_sweep *s, const struct st_orphan *o);

/* A child of ours was seen: a command, a known orphan, or a new one.  false: it is not known. */
static bool child_seen(struct st_sweep *s, pid_t pid, bool stop)
{
    struct st_proc p;

    if (st_sweep_by_pid(s, pid) || orphan_find(s, pid))
        return true;
    if (stop)
        kill(pid, SIGSTOP); /* a child that is not reaped: nobody else can have this number */
    if (!st_proc_read(pid, &p) || st_proc_dead(&p) || !orphan_add(s, &p))
        return false;
    if (stop && !orphan_doomed(s, &s->orphans[s->n_orphans - 1]))
        kill(pid, SIGCONT);
    return true;
}

bool st_sweep_look(struct st_sweep *s, bool stop)
{
    pid_t pids[CHILDREN_MAX];
    int n = st_proc_children(&s->children_fd, pids, CHILDREN_MAX);
    bool sure = true;

    if (n >= 0 && n < CHILDREN_MAX) {
        for (int i = 0; i < n; i++)
            sure &= child_seen(s, pids[i], stop);
        return sure;
    }
    sure = st_procs_scan(&s->procs);
    for (size_t i = 0; i < s->procs.n; i++)
        if (s->procs.p[i].ppid == getpid())
            sure &= child_seen(s, s->procs.p[i].pid, stop);
    return sure;
}

/* The oldest run that has not ended. */
static uint64_t min_live(const struct st_sweep *s)
{
    uint64_t min = UINT64_MAX;

    for (size_t i = 0; i < s->n_runs; i++)
        if (!s->runs[i].ending && s->runs[i].tag < min)
            min = s->runs[i].tag;
    return min;
}

static bool orphan_doomed(const struct st_sweep *s, const struct st_orphan *o)
{
    for (size_t i = 0; o->owner && i < s->n_runs; i++)
        if (s->runs[i].tag == o->owner)
            return s->runs[i].ending || s->runs[i].killing;
    if (o->owner)
        return true; /* its run is over */
    return o->seen_max < min_live(s);
}

bool st_sweep_left(const struct st_sweep *s, const struct st_minded *run)
{
    if (run->cgroup && !st_cgroup_empty(run->cgroup))
        return true;
    for (size_t i = 0; i < s->n_orphans; i++)
        if (s->orphans[i].owner == run->tag || (!s->orphans[i].owner && orphan_doomed(s, &s->orphans[i])))
            return true;
    return false;
}

static bool top_doomed(const struct st_sweep *s, pid_t top)
{
    const struct st_orphan *o = orphan_find(s, top);

    if (o)
        return orphan_doomed(s, o);
    for (size_t i = 0; i < s->n_runs; i++)
        if (s->runs[i].pid == top)
            return s->runs[i].killing;
    return false;
}

/* Who must go?  Those keep their ->top; the others' becomes 0.  How many. */
static size_t mark(struct st_sweep *s, bool all)
{
    size_t marked = 0;

    st_procs_tops(&s->procs, getpid());
    for (size_t i = 0; i < s->procs.n; i++) {
        struct st_proc *p = &s->procs.p[i];

        if (p->top && !st_proc_dead(p) && (all || top_doomed(s, p->top)))
            marked++;
        else
            p->top = 0;
    }
    return marked;
}

/* Stop all that are marked and not stopped yet; how many those were. */
static size_t stop_marked(struct st_sweep *s)
{
    size_t running = 0;

    for (size_t i = 0; i < s->procs.n; i++) {
        const struct st_proc *p = &s->procs.p[i];

        if (p->top > 0 && p->state != 'T' && p->state != 't') {
            st_proc_signal(p, SIGSTOP);
            running++;
        }
    }
    return running;
}

static void kill_trees(struct st_sweep *s, bool all)
{
    size_t running = 1;

    for (int round = 0; round < STOP_ROUNDS && running; round++) {
        st_sweep_look(s, true);
        if (!st_procs_scan(&s->procs) || !mark(s, all))
            return;
        running = stop_marked(s);
    }
    for (size_t i = 0; i < s->procs.n; i++)
        if (s->procs.p[i].top > 0)
            st_proc_signal(&s->procs.p[i], SIGKILL);
}

/* Who is in the group of a run that has to go, whatever became of it. */
static bool kill_groups(const struct st_sweep *s, bool all)
{
    bool any = false;

    for (size_t i = 0; i < s->n_runs; i++) {
        const struct st_minded *run = &s->runs[i];

        if (run->cgroup && (all || run->ending || run->killing) && !st_cgroup_empty(run->cgroup)) {
            st_cgroup_kill(run->cgroup);
            any = true;
        }
    }
    return any;
}

bool st_sweep_kill(struct st_sweep *s)
{
    bool any = false, groups = kill_groups(s, false);

    for (size_t i = 0; i < s->n_orphans && !any; i++)
        any = orphan_doomed(s, &s->orphans[i]);
    for (size_t i = 0; i < s->n_runs && !any; i++)
        any = s->runs[i].killing && !s->runs[i].ending;
    if (any)
        kill_trees(s, false);
    return any || groups;
}

void st_sweep_kill_all(struct st_sweep *s)
{
    for (size_t i = 0; i < s->n_runs; i++)
        if (!s->runs[i].ending)
            kill(-s->runs[i].pid, SIGKILL);
    kill_groups(s, true);
    kill_trees(s, true);
}

void st_sweep_signal(struct st_sweep *s, const struct st_minded *run, int sig)
{
    if (run->ending)
        return;
    kill(-run->pid, sig);
    st_sweep_look(s, false);
    if (!st_procs_scan(&s->procs))
        return;
    st_procs_tops(&s->procs, getpid());
    for (size_t i = 0; i < s->procs.n; i++) {
        const struct st_proc *p = &s->procs.p[i];
        const struct st_orphan *o = p->top > 0 ? orphan_find(s, p->top) : NULL;

        if (p->top > 0 && (p->top == run->pid || (o && o->owner == run->tag)) && p->pgrp != run->pid &&
            !st_proc_dead(p))
            st_proc_signal(p, sig);
    }
}
