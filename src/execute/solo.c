/* SPDX-License-Identifier: Apache-2.0
 *
 * solo.c - one attempt, one process: what oneshot.c and lines.c share.
 */
#include "execute/solo.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "execute/caps.h"

/* ---- starting -------------------------------------------------------------------- */

bool st_solo_init(struct st_solo *s, struct st_exec *x, const struct st_run_ops *run_ops,
                  const struct st_child_ops *child_ops, const struct st_command *cmd)
{
    *s = (struct st_solo){.run.ops = run_ops, .caps = cmd->caps, .log = {.fd = -1}, .ran = ST_RAN_INIT};
    s->program = strdup(cmd->argv && cmd->argv[0] ? cmd->argv[0] : "");
    s->cwd = cmd->cwd ? strdup(cmd->cwd) : NULL;
    if (!s->program || (cmd->cwd && !s->cwd))
        return false;
    st_child_init(&s->child, x, child_ops, cmd->grace_us);
    return true;
}

void st_solo_for(struct st_solo *s, const struct st_job *job, st_ran_fn done, void *arg)
{
    s->job = job;
    s->done = done;
    s->arg = arg;
    s->child.x->n_runs++;
}

stint_code st_solo_start(struct st_solo *s, const struct st_prepared *prep, enum st_stdin kind, struct st_slice input,
                         stint_error *err)
{
    struct st_exec *x = s->child.x;
    stint_code rc = st_child_start(&s->child, &prep->body, kind, input, err);

    if (rc == STINT_OK) {
        st_runlog_open(&s->log, x->logs_dir, s->job, x->limits.output);
        return rc;
    }
    s->unheard = s->decided = true;
    x->n_runs--;
    st_child_discard(&s->child);
    return rc;
}

void st_solo_forgo(struct st_solo *s)
{
    s->decided = true;
    st_child_forgo(&s->child);
}

/* ---- while it runs --------------------------------------------------------------- */

bool st_solo_decide(struct st_solo *s)
{
    const struct st_child *c = &s->child;

    if (s->decided || c->reaped || c->minder_died || c->state >= ST_CHILD_DRAINING)
        return false;
    s->decided = true;
    return true;
}

void st_solo_stop(struct st_run *run, enum st_abort why, bool now)
{
    struct st_solo *s = (struct st_solo *)(void *)run;

    if (st_solo_decide(s)) {
        s->ran.aborted = why;
        st_ran_fail(&s->ran, why == ST_ABORT_CANCELLED ? ST_KIND_CANCELLED : ST_KIND_KILLED, "stopped: %s",
                    st_abort_name(why));
    }
    if (now)
        st_child_kill(&s->child);
    else
        st_child_stop(&s->child);
}

void st_solo_timed_out(struct st_solo *s)
{
    char text[ST_DURATION_TEXT];

    if (st_solo_decide(s))
        st_ran_fail(&s->ran, ST_KIND_TIMEOUT, "timed out after %s",
                    st_duration_format(s->job->policy.timeout_us, text));
    st_child_stop(&s->child);
}

bool st_solo_printed(struct st_solo *s, size_t n)
{
    s->n_output += (int64_t)n;
    return s->caps.output <= 0 || s->n_output <= s->caps.output;
}

bool st_solo_owns(const struct st_child *c, const char *env, size_t len)
{
    return st_env_is_job(env, len, st_solo_of(c)->job);
}

/* ---- the end --------------------------------------------------------------------- */

bool st_solo_over(struct st_solo *s)
{
    const struct st_child *c = &s->child;

    if (c->flags & ST_MD_LEFT)
        st_log(ST_LOG_WARN, "run.left", ST_F("job", s->job->id),
               ST_F("error", "a process of this job could not be killed"));
    st_runlog_finish(&s->log, &s->ran);
    st_child_fill(c, &s->ran);
    if (s->decided)
        return true;
    if (c->stage != ST_STAGE_OK)
        st_child_refused(c, s->program, s->cwd, &s->ran);
    else if (c->minder_died)
        st_ran_fail(&s->ran, ST_KIND_CHILD_CRASHED, "the process that minds the commands died");
    else
        return st_caps_blame(&s->caps, c, &s->ran);
    return true;
}

void st_solo_tell(struct st_solo *s)
{
    struct st_ran ran = s->ran;

    s->ran = (struct st_ran)ST_RAN_INIT;
    if (s->unheard) {
        st_ran_clear(&ran);
    } else {
        s->child.x->n_runs--;
        s->done(s->arg, &ran);
    }
    st_solo_clear(s);
}

void st_solo_clear(struct st_solo *s)
{
    st_runlog_clear(&s->log);
    st_ran_clear(&s->ran);
    free(s->program);
    free(s->cwd);
}
