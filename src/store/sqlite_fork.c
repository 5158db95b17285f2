/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_fork.c - what fork() leaves of our connections in the child.
 *
 * SQLite keeps, for a whole process, what it holds locked of which file.  A child inherits that
 * account and none of the locks, so a connection it opened to the same file would believe in locks
 * that it does not have: somebody else could then delete the write-ahead log under it.  Therefore
 * what was inherited is closed in the child before the first connection of its own is opened; and
 * that is possible only if no thread was inside SQLite when the fork came:
 *
 *     fork() --prepare--> wait until nobody is inside, let nobody in --> fork --> go on
 *                                    `--not in time--> fork all the same; the child may not open
 *
 * The gate is that "inside": every stretch of calls to SQLite stands in ST_SQ_GATE, and no
 * transaction of ours is open between two of them.
 *
 * Closing in the child writes nothing: no checkpoint, no unlink; the locks it drops are the
 * child's, which has none.
 *
 * Thread: any.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <time.h>

#include "base/thread.h"

#define WAIT_US ST_SEC /* for those inside, before fork() goes on without them */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved; /* somebody left, or a fork is over */
static int inside, forking;
static struct st_sq_conn *conns;   /* all that are open */
static struct st_sq_conn *orphans; /* the parent's, in its child */
static bool unclean;               /* somebody was inside when this process was forked off */
static _Thread_local int depth;    /* of this thread's gates */

/* ---- the gate ---------------------------------------------------------------------------- */

struct st_sq_gate st_sq_gate_enter(void)
{
    st_sq_fork_watch();
    if (depth++ == 0) {
        pthread_mutex_lock(&mu);
        while (forking)
            pthread_cond_wait(&moved, &mu);
        inside++;
        pthread_mutex_unlock(&mu);
    }
    return (struct st_sq_gate){0};
}

void st_sq_gate_leave(struct st_sq_gate *gate)
{
    (void)gate;
    if (depth == 0 || --depth > 0) /* 0: forked in between */
        return;
    pthread_mutex_lock(&mu);
    if (--inside == 0 && forking)
        pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mu);
}

/* ---- connections ------------------------------------------------------------------------- */

void st_sq_conn_list(struct st_sq_conn *c)
{
    pthread_mutex_lock(&mu);
    c->listed = true;
    c->prev = NULL;
    c->next = conns;
    if (conns)
        conns->prev = c;
    conns = c;
    pthread_mutex_unlock(&mu);
}

void st_sq_conn_unlist(struct st_sq_conn *c)
{
    if (!c->listed)
        return;
    pthread_mutex_lock(&mu);
    c->listed = false;
    if (c->prev)
        c->prev->next = c->next;
    else
        conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    pthread_mutex_unlock(&mu);
}

/* ---- fork -------------------------------------------------------------------------------- */

/* The lock is kept over the fork, so that the list is whole in the child. */
static void prepare(void)
{
    const int64_t until = st_clock_mono_us() + WAIT_US;
    const int mine = depth > 0; /* a transaction of this very thread: no use to wait */
    int64_t left = WAIT_US;

    pthread_mutex_lock(&mu);
    forking++;
    while (!mine && inside > 0 && left > 0) {
        st_cond_wait_us(&moved, &mu, left);
        left = until - st_clock_mono_us();
    }
}

static void in_parent(void)
{
    if (--forking == 0)
        pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mu);
}

static void in_child(void)
{
    struct st_sq_conn **last = &orphans;

    unclean = unclean || inside > 0;
    inside = depth = forking = 0;
    while (*last)
        last = &(*last)->next;
    *last = conns;
    conns = NULL;
    st_cond_init(&moved);
    pthread_mutex_unlock(&mu); /* the forking thread's, and so this one's */
    st_sq_registry_forget();
}

static void watch(void)
{
    st_random_unit(); /* its own handlers come first: those inside may need its lock to get out */
    st_cond_init(&moved);
    pthread_atfork(prepare, in_parent, in_child);
}

void st_sq_fork_watch(void)
{
    pthread_once(&once, watch);
}

static void orphan_close(struct st_sq_conn *c)
{
    sqlite3_stmt *st;

    if (!c->db)
        return;
    sqlite3_db_config(c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_busy_handler(c->db, NULL, NULL);
    while ((st = sqlite3_next_stmt(c->db, NULL)))
        sqlite3_finalize(st);
    sqlite3_close_v2(c->db);
    c->db = NULL;
}

stint_code st_sq_fork_settle(stint_error *err)
{
    if (unclean) {
        st_fail(err, STINT_ESTATE,
                "this process was forked while another thread was using a store, so it cannot open "
                "one");
        st_err_remedy(err, "fork while no call is under way, or start a program of its own (exec)");
        return STINT_ESTATE;
    }
    for (; orphans; orphans = orphans->next)
        orphan_close(orphans);
    return STINT_OK;
}
