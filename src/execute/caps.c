/* SPDX-License-Identifier: Apache-2.0
 *
 * caps.c - what a command may use, on the worker's side: was it a cap that ended it?
 *
 *     cpu        SIGXCPU at the soft limit, SIGKILL at the hard one
 *     memory     SIGKILL by the kernel (a cgroup); where allocations are refused instead (an
 *                rlimit), the program's own words tell
 *     output     counted by us
 *     files, processes   calls that fail inside the program: its own words tell
 */
#include "execute/caps.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"

void st_caps_fail_output(const struct st_caps *caps, struct st_ran *ran)
{
    st_ran_fail(ran, ST_KIND_CAPS, "it printed more than its cap of %lld bytes", (long long)caps->output);
}

bool st_caps_blame(const struct st_caps *caps, const struct st_child *c, struct st_ran *ran)
{
    int sig = c->reaped && WIFSIGNALED(c->status) ? WTERMSIG(c->status) : 0;
    bool cpu = caps->cpu_us > 0 && (sig == SIGXCPU || (sig == SIGKILL && c->cpu_us >= caps->cpu_us));
    char text[ST_DURATION_TEXT];

    if (c->flags & ST_MD_OOM)
        st_ran_fail(ran, ST_KIND_OOM, "killed: it used more memory than its cap of %lld bytes",
                    (long long)caps->memory);
    else if (cpu)
        st_ran_fail(ran, ST_KIND_CAPS, "killed: it used more CPU time than its cap of %s",
                    st_duration_format(caps->cpu_us, text));
    else if (sig == SIGKILL && caps->memory > 0)
        st_ran_fail(ran, ST_KIND_OOM,
                    "killed by signal 9 (SIGKILL), having a memory cap of %lld bytes: probably out "
                    "of memory",
                    (long long)caps->memory);
    else
        return false;
    return true;
}
