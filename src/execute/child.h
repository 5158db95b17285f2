/* SPDX-License-Identifier: Apache-2.0
 *
 * child.h - a process under the minder and our ends of its pipes.
 *
 * Embedded in what it runs for: one attempt (oneshot.c, lines.c) or many (resident.c).
 *
 * Thread: the loop's.
 */
#ifndef ST_EXECUTE_CHILD_H
#define ST_EXECUTE_CHILD_H

#include "execute/command.h"
#include "execute/run.h"
#include "execute/runlog.h"

enum st_child_state {
    ST_CHILD_RUNNING,
    ST_CHILD_STOPPING, /* TERM was sent, the grace runs */
    ST_CHILD_KILLING,
    ST_CHILD_DRAINING, /* nothing of it is left but what is in the pipes */
    ST_CHILD_DONE,
    ST_CHILD_N,
};

struct st_child;

/* All are called from the loop, but for over of a child that was discarded. */
struct st_child_ops {
    /* Where stdout is to be read into; NULL = the executor's buffer. */
    void (*room)(struct st_child *c, uv_buf_t *buf);
    void (*read)(struct st_child *c, enum st_stream from, const char *p, size_t n);
    /* stdout is at its end; NULL = nobody asks. */
    void (*silent)(struct st_child *c);
    /* Nobody reads its stdin any more; NULL = nobody asks. */
    void (*deaf)(struct st_child *c);
    /* The time set with st_child_after() has passed and it still runs. */
    void (*late)(struct st_child *c);
    /* It may finish what it has, and should have no more; NULL = it cannot have more. */
    void (*drain)(struct st_child *c);
    /* It is over, and this is how: started, status and the rest are set. */
    void (*over)(struct st_child *c);
    /* All handles are closed: free it. */
    void (*freed)(struct st_child *c);
    /* Is this the environment of something it started? */
    bool (*owns)(const struct st_child *c, const char *env, size_t len);
};

struct st_child {
    const struct st_child_ops *ops;
    struct st_exec *x;
    struct st_child *next, **prev; /* all of the executor */
    struct st_link *link;          /* NULL: its minder died */
    const struct st_lost *lost;    /* then: who cleans up */
    uint64_t tag;
    enum st_child_state state;
    int64_t grace_us, deadline_us; /* deadline: of the state, by CLOCK_MONOTONIC */

    /* what is known of it */
    pid_t pid; /* 0 = not told (see st_child_start) */
    bool minder_died;
    bool stopped;        /* we asked it to end, while it still ran */
    enum st_stage stage; /* not ST_STAGE_OK: it was not started, and err says why */
    int err;
    bool reaped; /* then: */
    int status;
    unsigned flags; /* ST_MD_* of its end */
    int64_t max_rss_kb, cpu_us;

    uv_pipe_t in, out, errs;
    uv_timer_t timer;
    int open_handles;
    bool in_open, out_open, errs_open; /* initialised and not closed */

    /* stdin, where it stays open */
    uv_poll_t ear; /* tells when nobody reads it any more; on a descriptor of its own */
    int ear_fd;
    bool ear_open;
    uv_write_t write;
    bool writing;               /* `sending` is on its way */
    bool close_in;              /* when all is sent */
    struct st_buf sending, put; /* put: gathered since the last flush */
    uint64_t n_put, n_sent;     /* bytes so far; the kernel may have taken n_sent of them */
    uint64_t n_seen;            /* of those it has read so many; UINT64_MAX = not known */
    bool early;                 /* nothing has gone out early since it printed something */
    bool dirty;                 /* in the executor's list of those to be flushed */
    struct st_child *dirty_next;
};

enum st_stdin {
    ST_STDIN_NONE, /* /dev/null */
    ST_STDIN_ONCE, /* these bytes, then the end */
    ST_STDIN_OPEN, /* for st_child_put() */
};

void st_child_init(struct st_child *c, struct st_exec *x, const struct st_child_ops *ops, int64_t grace_us);
/* input must stay until over was called.  On an error nothing runs: st_child_discard(). */
stint_code st_child_start(struct st_child *c, const struct st_buf *body, enum st_stdin kind, struct st_slice input,
                          stint_error *err);
/* Nothing was started.  Calls over, and freed from the loop. */
void st_child_discard(struct st_child *c);
/* The same, but over comes from the loop, too. */
void st_child_forgo(struct st_child *c);

/* late() is called after this long.  Only while it runs. */
void st_child_after(struct st_child *c, int64_t after_us);
void st_child_in_time(struct st_child *c); /* not any more */

/* Bytes for stdin; they go out, with all that was put by then, before the loop sleeps again. */
struct st_buf *st_child_put(struct st_child *c);        /* append to it ... */
void st_child_wrote(struct st_child *c, size_t before); /* ... where its length was that */
void st_child_flush(struct st_child *c);
void st_child_close_in(struct st_child *c); /* when all is sent */
/* How many of those bytes it may have read, when it is over: the others it has not. */
uint64_t st_child_seen(const struct st_child *c);

/* Close stdin, TERM to the tree, grace, KILL, sweep. */
void st_child_stop(struct st_child *c);
void st_child_kill(struct st_child *c);

/* exit_code, signal and max_rss_kb of *ran. */
void st_child_fill(const struct st_child *c, struct st_ran *ran);
/* A failed attempt that says why it was not started. */
void st_child_refused(const struct st_child *c, const char *program, const char *cwd, struct st_ran *ran);

/* ---- for execute.c ---- */
void st_child_heard(struct st_child *c, const struct st_minder_msg *msg);
void st_child_minder_died(struct st_child *c, const struct st_lost *lost); /* at once */
void st_child_swept(struct st_child *c);                                   /* when nothing is left of it */

#endif
