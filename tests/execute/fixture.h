/* SPDX-License-Identifier: Apache-2.0
 *
 * fixture.h - a loop, an executor and real processes for the tests of execute/.
 *
 * The test program is its own minder: main() begins with `if (fx_is_minder(...)) return ...`.
 */
#ifndef TEST_EXECUTE_FIXTURE_H
#define TEST_EXECUTE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "execute/execute.h"

/* How long anything may take here before the test is called hung. */
#ifndef FX_PATIENCE_US
#define FX_PATIENCE_US (60 * ST_SEC)
#endif

struct fx {
    uv_loop_t loop;
    struct st_exec *x;
    struct st_exec_options opt;
    char dir[64]; /* empty when the test begins, removed at its end */
    int fds_before;
};

int fx_setup(void **state);
int fx_teardown(void **state);
#define FX_TEST(f) cmocka_unit_test_setup_teardown(f, fx_setup, fx_teardown)

/* Closes the executor and makes one with fx->opt. */
void fx_reopen(struct fx *fx);

/* One attempt of a shell script.  Change what you like, then fx_run(). */
struct fx_job {
    struct st_command cmd;
    char *argv[8];
    struct st_job *job;
    struct st_ran ran;
    struct st_run *run; /* NULL when it is over */
    int done;           /* how often done was called */
};
void fx_job_sh(struct fx_job *j, const char *script, const char *payload);
void fx_job_py(struct fx_job *j, const char *script, const char *payload);
void fx_job_payload(struct fx_job *j, const void *payload, size_t len, const char *meta);
void fx_job_clear(struct fx_job *j);

void fx_on_ran(void *arg, struct st_ran *ran); /* the done of a struct fx_job */
void fx_start(struct fx *fx, struct fx_job *j);
void fx_wait(struct fx *fx, struct fx_job *j); /* until done */
void fx_run(struct fx *fx, struct fx_job *j);  /* both */
/* Run the loop until cond(arg), at most for FX_PATIENCE_US. */
void fx_until(struct fx *fx, bool (*cond)(void *arg), void *arg);
/* Run the loop until this file has a whole line; its number. */
long fx_wait_number(struct fx *fx, const char *path);
bool fx_file_number(const char *path, long *out);

const char *fx_path(struct fx *fx, const char *name); /* dir/name; a static buffer, four in turn */

/* Is there such a process, and is it no zombie? */
bool fx_alive(long pid);
/* Fails the test if the process is still there after FX_PATIENCE_US. */
void fx_expect_gone(long pid);

int fx_open_fds(void);
int fx_minder_pid(void); /* our only child, or 0 */
int fx_children(void);   /* of the calling process, zombies too */

bool fx_is_minder(int argc, char **argv, int *rc);

#endif
