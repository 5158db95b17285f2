/* SPDX-License-Identifier: Apache-2.0
 *
 * fork.c - handles in a process that was forked from the one that made them.
 *
 * Such a process has a copy of every handle and nothing behind it: the threads are the parent's,
 * and the descriptors are shared, so that a stop in the child would stop the parent's worker.  Each
 * entry looks at the process first, and touches nothing of the handle if it is another.
 *
 * Thread: any, signal handlers too.
 */
#include <unistd.h>

#include "lib/lib.h"

#define EXIT_FORKED 70 /* as in sysexits.h: an error of the software */

bool st_lib_forked(pid_t made_in)
{
    return getpid() != made_in;
}

stint_code st_lib_same_process(pid_t made_in, const char *what, const char *again, stint_error *err)
{
    if (!st_lib_forked(made_in))
        return STINT_OK;
    st_fail(err, STINT_ESTATE, "this %s belongs to the process that this one was forked from", what);
    st_err_remedy(err, "after fork(), call %s again in the child", again);
    return STINT_ESTATE;
}

void st_lib_end_fork(pid_t made_in)
{
    if (st_lib_forked(made_in))
        _exit(EXIT_FORKED);
}
