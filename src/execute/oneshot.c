/* SPDX-License-Identifier: Apache-2.0
 *
 * oneshot.c - one attempt, one process: the payload goes in, stdout is the result.
 *
 * Invariants: those of solo.h.
 *
 * Thread: the loop's.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "execute/caps.h"
#include "execute/result.h"
#include "execute/solo.h"

struct oneshot {
    struct st_solo solo;
    size_t result_max;
    bool full; /* what it prints is not kept any more */
    char *payload_file;
    struct st_buf stdout_buf;
};

static struct oneshot *of_child(const struct st_child *c)
{
    return (struct oneshot *)(void *)st_solo_of(c);
}

/* ---- the end --------------------------------------------------------------------- */

static void oneshot_free(struct oneshot *o)
{
    st_buf_clear(&o->stdout_buf);
    free(o->payload_file);
    free(o);
}

static void on_freed(struct st_child *c)
{
    st_solo_tell(st_solo_of(c));
    oneshot_free(of_child(c));
}

static void on_over(struct st_child *c)
{
    struct oneshot *o = of_child(c);

    if (o->payload_file)
        unlink(o->payload_file); /* the minder's task, but it may have died or refused */
    if (!st_solo_over(&o->solo))
        st_result_fill(&o->solo.ran, c->status, &o->stdout_buf);
}

static void on_late(struct st_child *c)
{
    st_solo_timed_out(st_solo_of(c));
}

/* ---- what it prints -------------------------------------------------------------- */

/* Too much; what comes now is drained, so that nobody is stuck in a write.  Where it came after the
 * end, there is no result all the same. */
static bool too_much(struct oneshot *o)
{
    bool first = !o->solo.decided;

    o->solo.decided = o->full = true;
    st_buf_clear(&o->stdout_buf);
    st_child_kill(&o->solo.child);
    return first;
}

static void stdout_put(struct oneshot *o, const char *p, size_t n)
{
    if (o->full)
        return;
    st_buf_put(&o->stdout_buf, p, n);
    if (o->stdout_buf.failed && too_much(o))
        st_ran_fail(&o->solo.ran, ST_KIND_RESULT_TOO_LARGE, "the result is larger than %zu bytes", o->result_max);
}

static void on_read(struct st_child *c, enum st_stream from, const char *p, size_t n)
{
    struct oneshot *o = of_child(c);

    st_runlog_put(&o->solo.log, from, p, n);
    if (from == ST_STDOUT)
        stdout_put(o, p, n);
    if (!st_solo_printed(&o->solo, n) && too_much(o))
        st_caps_fail_output(&o->solo.caps, &o->solo.ran);
}

/* ---- starting -------------------------------------------------------------------- */

static const struct st_child_ops child_ops = {
    .read = on_read, .late = on_late, .over = on_over, .freed = on_freed, .owns = st_solo_owns};
static const struct st_run_ops run_ops = {.stop = st_solo_stop};

static struct oneshot *oneshot_new(struct st_exec *x, const struct st_command *cmd)
{
    struct oneshot *o = calloc(1, sizeof(*o));

    if (!o)
        return NULL;
    o->result_max = x->limits.result;
    st_buf_init(&o->stdout_buf, x->limits.result);
    if (st_solo_init(&o->solo, x, &run_ops, &child_ops, cmd))
        return o;
    st_solo_clear(&o->solo);
    oneshot_free(o);
    return NULL;
}

stint_code st_oneshot_run(struct st_exec *x, const struct st_command *cmd, const struct st_job *job, st_ran_fn done,
                          void *arg, struct st_run **out, stint_error *err)
{
    int64_t timeout_us = job->policy.timeout_us;
    struct oneshot *o = oneshot_new(x, cmd);
    struct st_prepared prep;
    stint_code rc;

    if (!o)
        return st_fail(err, STINT_ENOMEM, "out of memory");
    st_solo_for(&o->solo, job, done, arg);
    *out = &o->solo.run;
    if (!st_command_prepare(cmd, job, timeout_us > 0 ? st_clock_real_us() + timeout_us : 0, &prep, &o->solo.ran)) {
        st_solo_forgo(&o->solo);
        return STINT_OK;
    }
    rc = st_solo_start(&o->solo, &prep, prep.by_stdin ? ST_STDIN_ONCE : ST_STDIN_NONE, job->payload, err);
    if (rc == STINT_OK) {
        o->payload_file = prep.payload_file;
        prep.payload_file = NULL;
        if (timeout_us > 0)
            st_child_after(&o->solo.child, timeout_us);
    } else {
        *out = NULL;
    }
    st_prepared_clear(&prep);
    return rc;
}
