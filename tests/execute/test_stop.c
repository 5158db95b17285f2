/* SPDX-License-Identifier: Apache-2.0
 *
 * test_stop.c - how runs are stopped, and that nothing outlives them: not what they started, not
 * their worker, not their minder.
 */
#include "fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "execute/proc.h"

extern char **environ;

/* A daemon in the manner of the old books: its own session, nothing open, its parent gone.  Its
 * pid goes to $D/NAME.  It does not listen to TERM. */
#define DAEMON(name, wrap)                                                                                             \
    "(" wrap " setsid sh -c 'trap \"\" TERM HUP; echo $$ > '$D'/" name                                                 \
    "; exec <&- >&- 2>&-; while :; do sleep 1000; done' &) ; "                                                         \
    "until [ -s $D/" name " ]; do sleep 0.01; done; "

/* A job that knows the test's directory as $D. */
static void job_in(struct fx *fx, struct fx_job *j, const char *script)
{
    static char env[80], *envp[] = {env, NULL};

    snprintf(env, sizeof(env), "D=%s", fx->dir);
    fx_job_sh(j, script, "");
    j->cmd.env = envp;
}

static long number_in(struct fx *fx, const char *name)
{
    long n = 0;

    if (!fx_file_number(fx_path(fx, name), &n))
        fail_msg("no number in %s", name);
    return n;
}

static void touch(struct fx *fx, const char *name)
{
    FILE *f = fopen(fx_path(fx, name), "we");

    assert_non_null(f);
    fclose(f);
}

/* ---- timeout, abort, kill -------------------------------------------------------- */

static void a_command_that_takes_too_long_is_a_timeout(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "sleep 1000", "");
    j.job->policy.timeout_us = 150 * ST_MS;
    fx_run(*state, &j);
    assert_false(j.ran.ok);
    assert_int_equal(j.ran.kind, ST_KIND_TIMEOUT);
    assert_string_equal(j.ran.message, "timed out after 150ms");
    assert_int_equal(j.ran.aborted, ST_ABORT_NOT);
    assert_int_equal(j.ran.signal, SIGTERM);
    fx_job_clear(&j);
}

static void a_timeout_takes_the_whole_tree(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j,
           "sleep 1000 & echo $! > $D/plain; " DAEMON("daemon", "") "trap '' TERM; "
                                                                    "while :; do sleep 1000; done");
    j.job->policy.timeout_us = 3 * ST_SEC;
    j.cmd.grace_us = 50 * ST_MS;
    fx_run(fx, &j);
    assert_int_equal(j.ran.kind, ST_KIND_TIMEOUT);
    assert_int_equal(j.ran.signal, SIGKILL);
    assert_false(fx_alive(number_in(fx, "plain")));
    assert_false(fx_alive(number_in(fx, "daemon")));
    fx_job_clear(&j);
}

static void an_aborted_run_tells_the_first_reason(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "sleep 1000", "");
    fx_start(*state, &j);
    st_exec_abort(j.run, ST_ABORT_TAKEN);
    st_exec_kill(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(*state, &j);
    assert_int_equal(j.ran.aborted, ST_ABORT_TAKEN);
    assert_false(j.ran.ok);
    assert_string_equal(j.ran.message, "stopped: taken_by_another_worker");
    fx_job_clear(&j);

    fx_job_sh(&j, "sleep 1000", "");
    fx_start(*state, &j);
    st_exec_abort(j.run, ST_ABORT_CANCELLED);
    fx_wait(*state, &j);
    assert_int_equal(j.ran.kind, ST_KIND_CANCELLED);
    assert_int_equal(j.ran.signal, SIGTERM);
    fx_job_clear(&j);
}

static void a_command_may_use_the_grace_to_end_well(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j,
           "trap 'echo saved >&2; exit 0' TERM; echo $$ > $D/ready; "
           "while :; do sleep 0.01; done");
    j.cmd.grace_us = ST_HOUR;
    fx_start(fx, &j);
    fx_wait_number(fx, fx_path(fx, "ready"));
    st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(fx, &j);
    assert_int_equal(j.ran.aborted, ST_ABORT_SHUTDOWN);
    assert_int_equal(j.ran.exit_code, 0);
    assert_false(j.ran.ok);
    assert_non_null(strstr(j.ran.log_tail, "saved\n"));
    fx_job_clear(&j);
}

static void a_command_that_ignores_term_is_killed_after_the_grace(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j, "trap '' TERM; echo $$ > $D/ready; while :; do sleep 1000; done");
    j.cmd.grace_us = 100 * ST_MS;
    fx_start(fx, &j);
    fx_wait_number(fx, fx_path(fx, "ready"));
    st_exec_abort(j.run, ST_ABORT_CANCELLED);
    fx_wait(fx, &j);
    assert_int_equal(j.ran.signal, SIGKILL);
    fx_job_clear(&j);
}

static void kill_does_not_wait_for_the_grace(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j, "trap '' TERM; " DAEMON("daemon", "") "while :; do sleep 1000; done");
    j.cmd.grace_us = ST_HOUR;
    fx_start(fx, &j);
    fx_wait_number(fx, fx_path(fx, "daemon"));
    st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    st_exec_kill(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(fx, &j);
    assert_int_equal(j.ran.signal, SIGKILL);
    assert_false(fx_alive(number_in(fx, "daemon")));
    fx_job_clear(&j);
}

static void no_grace_means_kill(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j, "trap '' TERM; echo $$ > $D/ready; while :; do sleep 1000; done");
    j.cmd.grace_us = 0;
    fx_start(fx, &j);
    fx_wait_number(fx, fx_path(fx, "ready"));
    st_exec_abort(j.run, ST_ABORT_CANCELLED);
    fx_wait(fx, &j);
    assert_int_equal(j.ran.signal, SIGKILL);
    fx_job_clear(&j);
}

static void term_reaches_what_left_the_group(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    /* one that is still below the command, and one whose parent is gone */
    job_in(fx, &j,
           "trap : TERM; " /* before the others are up; they do not inherit it */
           "setsid sh -c 'trap \"echo 1 > $D/got1; exit\" TERM; echo 1 > $D/up1; "
           "while :; do sleep 0.01; done' & "
           "(setsid sh -c 'trap \"echo 1 > $D/got2; exit\" TERM; echo 1 > $D/up2; "
           "while :; do sleep 0.01; done' &); "
           "until [ -s $D/got1 -a -s $D/got2 ]; do sleep 0.01; done; exit 0");
    j.cmd.grace_us = ST_HOUR;
    fx_start(fx, &j);
    fx_wait_number(fx, fx_path(fx, "up1"));
    fx_wait_number(fx, fx_path(fx, "up2"));
    st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(fx, &j);
    assert_int_equal(j.ran.exit_code, 0);
    fx_job_clear(&j);
}

static void a_stopped_command_hears_term(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j, "trap 'exit 7' TERM; echo $$ > $D/ready; kill -STOP $$; sleep 1000");
    j.cmd.grace_us = ST_HOUR;
    fx_start(fx, &j);
    fx_wait_number(fx, fx_path(fx, "ready"));
    st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(fx, &j);
    assert_true(j.ran.exit_code == 7 || j.ran.signal == SIGTERM);
    fx_job_clear(&j);
}

static void stopping_closes_stdin(void **state)
{
    char *payload = calloc(1, 1 << 20);
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j,
           "trap '[ $(wc -c) -lt 1048576 ]; exit $?' TERM; echo $$ > $D/ready; "
           "while :; do sleep 0.01; done");
    fx_job_payload(&j, payload, 1 << 20, NULL);
    j.cmd.grace_us = ST_HOUR;
    fx_start(fx, &j);
    fx_wait_number(fx, fx_path(fx, "ready"));
    st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(fx, &j);
    assert_int_equal(j.ran.exit_code, 0); /* it found the end before the whole payload had come */
    free(payload);
    fx_job_clear(&j);
}

/* ---- what a command leaves behind ------------------------------------------------ */

static void what_a_command_leaves_in_its_group_is_killed(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j, "sleep 1000 & echo $! > $D/pid; echo ok");
    fx_run(fx, &j);
    assert_true(j.ran.ok);
    assert_string_equal(j.ran.result, "ok");
    assert_false(fx_alive(number_in(fx, "pid")));
    fx_job_clear(&j);
}

static void a_daemon_left_behind_is_killed(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j, DAEMON("daemon", "") "echo ok");
    fx_run(fx, &j);
    assert_true(j.ran.ok);
    assert_false(fx_alive(number_in(fx, "daemon")));
    fx_job_clear(&j);
}

static void a_daemon_with_an_empty_environment_is_killed(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j, DAEMON("daemon", "env -i") "echo ok");
    fx_run(fx, &j);
    assert_true(j.ran.ok);
    assert_false(fx_alive(number_in(fx, "daemon")));
    fx_job_clear(&j);
}

static void a_daemon_dies_with_what_it_started(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    job_in(fx, &j,
           "(setsid sh -c 'env -i setsid sh -c \"exec sleep 1000\" & echo $! > $D/below; wait' &); "
           "until [ -s $D/below ]; do sleep 0.01; done; exit 3");
    fx_run(fx, &j);
    assert_int_equal(j.ran.exit_code, 3);
    assert_false(fx_alive(number_in(fx, "below")));
    fx_job_clear(&j);
}

/* Two runs at a time: the end of one is no reason to touch what belongs to the other. */
static void the_end_of_one_run_spares_the_orphans_of_another(void **state)
{
    struct fx *fx = *state;
    struct fx_job a, b;

    job_in(fx, &a, DAEMON("named", "") DAEMON("nameless", "env -i") "until [ -e $D/stop ]; do sleep 0.01; done");
    fx_start(fx, &a);
    fx_wait_number(fx, fx_path(fx, "nameless"));
    for (int i = 0; i < 3; i++) {
        fx_job_sh(&b, "true", "");
        fx_run(fx, &b);
        assert_true(b.ran.ok);
        fx_job_clear(&b);
    }
    assert_true(fx_alive(number_in(fx, "named")));
    assert_true(fx_alive(number_in(fx, "nameless")));
    touch(fx, "stop");
    fx_wait(fx, &a);
    assert_true(a.ran.ok);
    assert_false(fx_alive(number_in(fx, "named")));
    assert_false(fx_alive(number_in(fx, "nameless")));
    fx_job_clear(&a);
}

static void a_run_takes_its_own_orphans_along_while_others_go_on(void **state)
{
    struct fx *fx = *state;
    struct fx_job a, b;

    job_in(fx, &a, "until [ -e $D/stop ]; do sleep 0.01; done");
    fx_start(fx, &a);
    job_in(fx, &b, DAEMON("named", ""));
    fx_run(fx, &b);
    assert_true(b.ran.ok);
    assert_false(fx_alive(number_in(fx, "named")));
    fx_job_clear(&b);
    touch(fx, "stop");
    fx_wait(fx, &a);
    assert_true(a.ran.ok);
    fx_job_clear(&a);
}

static void an_orphan_of_nobody_goes_with_the_last_run_it_can_belong_to(void **state)
{
    struct fx *fx = *state;
    struct fx_job a, b;

    job_in(fx, &a, "echo $$ > $D/a; until [ -e $D/stop ]; do sleep 0.01; done");
    fx_start(fx, &a);
    fx_wait_number(fx, fx_path(fx, "a"));
    job_in(fx, &b, DAEMON("nameless", "env -i"));
    fx_run(fx, &b);
    assert_true(b.ran.ok);
    fx_job_clear(&b);
    touch(fx, "stop");
    fx_wait(fx, &a);
    assert_false(fx_alive(number_in(fx, "nameless")));
    fx_job_clear(&a);
}

/* A process that forks and leaves, in a new session each time, is never where one just looked. */
static void one_that_runs_away_by_forking_is_caught(void **state)
{
    struct fx *fx = *state;
    char self[200], fence[40], dir[80];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    assert_true(n > 0);
    self[n] = '\0';
    for (int round = 0; round < 4; round++) {
        struct st_procs ps = {0};
        struct fx_job j;

        /* killed, and ending by itself */
        job_in(fx, &j,
               "\"$1\" --hopper $D/up1 & \"$1\" --hopper $D/up2 & "
               "until [ -e $D/stop ]; do sleep 0.01; done");
        j.argv[3] = strdup("sh");
        j.argv[4] = strdup(self);
        snprintf(fence, sizeof(fence), "STINT_FENCE=%lld", (long long)j.job->fence);
        snprintf(dir, sizeof(dir), "D=%s", fx->dir);
        fx_start(fx, &j);
        fx_wait_number(fx, fx_path(fx, "up1"));
        fx_wait_number(fx, fx_path(fx, "up2"));
        if (round % 2)
            touch(fx, "stop");
        else
            st_exec_kill(j.run, ST_ABORT_CANCELLED);
        fx_wait(fx, &j);
        fx_job_clear(&j);
        assert_true(st_procs_scan(&ps));
        for (size_t i = 0; i < ps.n; i++) {
            size_t len;
            char *env = st_proc_env(ps.p[i].pid, &len);

            assert_false(!st_proc_dead(&ps.p[i]) && st_env_has(env, len, fence) && st_env_has(env, len, dir));
            free(env);
        }
        st_procs_clear(&ps);
        unlink(fx_path(fx, "stop"));
        unlink(fx_path(fx, "up1"));
        unlink(fx_path(fx, "up2"));
    }
}

/* Orphans are held while it is decided whose they are; those of other runs must go on. */
static void an_orphan_that_was_held_goes_on(void **state)
{
    struct fx *fx = *state;
    struct fx_job a, b;

    job_in(fx, &a,
           "for i in $(seq 200); do (setsid sh -c 'echo $$ >> $D/all' &); done; "
           "until [ $(wc -l < $D/all) -eq 200 ]; do sleep 0.01; done");
    fx_start(fx, &a);
    while (!a.done) {
        fx_job_sh(&b, "(setsid sleep 1000 &); sleep 1000 & exit 0", "");
        fx_run(fx, &b);
        assert_true(b.ran.ok);
        fx_job_clear(&b);
    }
    assert_true(a.ran.ok);
    fx_job_clear(&a);
}

static void a_pipe_held_by_a_stranger_does_not_hold_the_run(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;
    char path[40];
    int fd;

    job_in(fx, &j, "echo $$ > $D/pid; until [ -e $D/stop ]; do sleep 0.01; done; echo ok");
    j.cmd.grace_us = 10 * ST_MS;
    fx_start(fx, &j);
    snprintf(path, sizeof(path), "/proc/%ld/fd/1", fx_wait_number(fx, fx_path(fx, "pid")));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    touch(fx, "stop");
    fx_wait(fx, &j);
    assert_true(j.ran.ok);
    assert_string_equal(j.ran.result, "ok");
    close(fd);
    fx_job_clear(&j);
}

/* The end of the command is not the end of its output. */
static void a_run_is_over_when_its_pipes_are(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;
    char path[40];
    long pid;
    int fd;

    job_in(fx, &j, "echo $$ > $D/pid; until [ -e $D/stop ]; do sleep 0.01; done; echo ok");
    j.cmd.grace_us = ST_HOUR;
    fx_start(fx, &j);
    pid = fx_wait_number(fx, fx_path(fx, "pid"));
    snprintf(path, sizeof(path), "/proc/%ld/fd/1", pid);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    touch(fx, "stop");
    fx_expect_gone(pid);
    for (int i = 0; i < 50; i++) {
        uv_run(&fx->loop, UV_RUN_NOWAIT);
        poll(NULL, 0, 1);
    }
    assert_int_equal(j.done, 0);
    assert_int_equal(write(fd, "late\n", 5), 5);
    close(fd);
    fx_wait(fx, &j);
    assert_true(j.ran.ok);
    assert_string_equal(j.ran.result, "ok\nlate");
    fx_job_clear(&j);
}

/* ---- many ------------------------------------------------------------------------ */

static void two_hundred_runs_leave_nothing(void **state)
{
    struct fx *fx = *state;
    int fds = 0;

    for (int i = 0; i < 200; i++) {
        struct fx_job j;

        fx_job_sh(&j, i % 10 ? "cat" : "sleep 100 & exit 1", "x");
        fx_run(fx, &j);
        assert_int_equal(j.ran.ok, i % 10 != 0);
        fx_job_clear(&j);
        if (i == 0)
            fds = fx_open_fds();
    }
    assert_int_equal(fx_open_fds(), fds);
    assert_int_equal(fx_children(), 1);
}

static void runs_beside_each_other_keep_their_results_apart(void **state)
{
    enum { N = 40 };
    static struct fx_job jobs[N];
    struct fx *fx = *state;
    char payload[16];

    for (int i = 0; i < N; i++) {
        snprintf(payload, sizeof(payload), "%d", i);
        fx_job_sh(&jobs[i], "cat; echo err >&2", payload);
        fx_start(fx, &jobs[i]);
    }
    for (int i = 0; i < N; i++) {
        fx_wait(fx, &jobs[i]);
        snprintf(payload, sizeof(payload), "%d", i);
        assert_true(jobs[i].ran.ok);
        assert_string_equal(jobs[i].ran.result, payload);
        assert_string_equal(jobs[i].ran.log_tail, "err\n");
        fx_job_clear(&jobs[i]);
    }
}

/* More than the socket takes at once. */
static void a_minder_that_is_slow_gets_its_requests_later(void **state)
{
    enum { N = 400 };
    static struct fx_job jobs[N];
    struct fx *fx = *state;
    struct rlimit old, high;
    int minder;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    high = (struct rlimit){old.rlim_max, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &high), 0);
    fx_job_sh(&jobs[0], "true", "");
    fx_run(fx, &jobs[0]);
    fx_job_clear(&jobs[0]);
    minder = fx_minder_pid();
    assert_true(minder > 0);
    kill(minder, SIGSTOP);
    for (int i = 0; i < N; i++) {
        fx_job_sh(&jobs[i], "exit 7", "");
        fx_start(fx, &jobs[i]);
        if (i % 2)
            st_exec_abort(jobs[i].run, ST_ABORT_SHUTDOWN);
    }
    uv_run(&fx->loop, UV_RUN_NOWAIT);
    kill(minder, SIGCONT);
    for (int i = 0; i < N; i++) {
        fx_wait(fx, &jobs[i]);
        assert_false(jobs[i].ran.ok);
        assert_int_equal(jobs[i].ran.aborted, i % 2 ? ST_ABORT_SHUTDOWN : ST_ABORT_NOT);
        assert_true(i % 2 || jobs[i].ran.exit_code == 7);
        fx_job_clear(&jobs[i]);
    }
    assert_int_equal(fx_minder_pid(), minder);
    setrlimit(RLIMIT_NOFILE, &old);
}

/* ---- deaths ---------------------------------------------------------------------- */

static void a_minder_that_is_killed_fails_its_runs_and_is_replaced(void **state)
{
    struct fx *fx = *state;
    struct fx_job a, b;
    long own;
    int minder;

    job_in(fx, &a, DAEMON("named", "") DAEMON("nameless", "env -i") "echo $$ > $D/own; while :; do sleep 1000; done");
    fx_start(fx, &a);
    fx_job_sh(&b, "sleep 1000", "");
    fx_start(fx, &b);
    own = fx_wait_number(fx, fx_path(fx, "own"));
    minder = fx_minder_pid();
    assert_true(minder > 0);
    kill(minder, SIGKILL);
    fx_wait(fx, &a);
    fx_wait(fx, &b);
    assert_false(a.ran.ok);
    assert_int_equal(a.ran.kind, ST_KIND_CHILD_CRASHED);
    assert_string_equal(a.ran.message, "the process that minds the commands died");
    assert_int_equal(a.ran.aborted, ST_ABORT_NOT);
    assert_int_equal(b.ran.kind, ST_KIND_CHILD_CRASHED);
    assert_false(fx_alive(own));
    assert_false(fx_alive(number_in(fx, "named")));
    assert_false(fx_alive(number_in(fx, "nameless")));
    assert_int_equal(fx_children(), 0);
    fx_job_clear(&a);
    fx_job_clear(&b);

    fx_job_sh(&a, "cat", "again");
    fx_run(fx, &a);
    assert_string_equal(a.ran.result, "again");
    fx_job_clear(&a);
}

/* The loop had no chance to notice yet. */
static void a_minder_killed_while_idle_costs_no_attempt(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;
    int minder;

    fx_job_sh(&j, "true", "");
    fx_run(fx, &j);
    fx_job_clear(&j);
    minder = fx_minder_pid();
    assert_true(minder > 0);
    kill(minder, SIGKILL);
    fx_expect_gone(minder);
    fx_job_sh(&j, "cat", "x");
    fx_run(fx, &j);
    assert_true(j.ran.ok);
    fx_job_clear(&j);
}

static void a_run_whose_minder_died_may_be_aborted(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    fx_job_sh(&j, "sleep 1000", "");
    fx_start(fx, &j);
    kill(fx_minder_pid(), SIGKILL);
    uv_run(&fx->loop, UV_RUN_ONCE);
    if (j.run)
        st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    uv_run(&fx->loop, UV_RUN_ONCE);
    if (j.run)
        st_exec_kill(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(fx, &j);
    assert_false(j.ran.ok);
    fx_job_clear(&j);
}

/* A worker in a process of its own, with one run of $1 and its files in the directory. */
static pid_t worker_start(struct fx *fx, const char *script)
{
    char *argv[] = {"worker", "--worker", fx->dir, (char *)(uintptr_t)script, NULL};
    pid_t pid;

    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    return pid;
}

static int worker_main(char *dir, const char *script)
{
    struct fx fx = {.opt.limits = st_limits_default};
    struct fx_job j;

    snprintf(fx.dir, sizeof(fx.dir), "%s", dir);
    setenv("TMPDIR", dir, 1);
    uv_loop_init(&fx.loop);
    if (st_exec_new(&fx.loop, &fx.opt, &fx.x, NULL) != STINT_OK)
        return 1;
    job_in(&fx, &j, script);
    j.cmd.payload_by = ST_PAYLOAD_FILE;
    fx_start(&fx, &j);
    uv_run(&fx.loop, UV_RUN_DEFAULT);
    return 0;
}

static void a_worker_that_is_killed_leaves_nothing_running(void **state)
{
    struct fx *fx = *state;
    static const char *const names[] = {"own", "plain", "named", "nameless", "minder"};
    long pids[5];
    pid_t worker;
    DIR *dir;
    struct dirent *e;

    worker = worker_start(fx, "echo $PPID > $D/minder; trap '' TERM; "
                              "sleep 1000 & echo $! > $D/plain; " DAEMON("named", "")
                                  DAEMON("nameless", "env -i") "echo $$ > $D/own; while :; do sleep 1000; done");
    for (int i = 0; i < 5; i++)
        pids[i] = fx_wait_number(fx, fx_path(fx, names[i]));
    for (int i = 0; i < 5; i++)
        assert_true(fx_alive(pids[i]));
    kill(worker, SIGKILL);
    assert_int_equal(waitpid(worker, NULL, 0), worker);
    for (int i = 0; i < 5; i++)
        fx_expect_gone(pids[i]);
    waitpid((pid_t)pids[4], NULL, 0); /* came to us, if we are a subreaper */
    dir = opendir(fx->dir);
    while ((e = readdir(dir)))
        assert_null(strstr(e->d_name, "stint-job")); /* the payload's file */
    closedir(dir);
}

/* With the worker out of the way, so that it is the kernel's doing alone. */
static void a_command_dies_with_its_minder(void **state)
{
    struct fx *fx = *state;
    pid_t worker = worker_start(fx, "echo $PPID > $D/minder; echo $$ > $D/own; exec sleep 1000");
    long minder = fx_wait_number(fx, fx_path(fx, "minder"));
    long own = fx_wait_number(fx, fx_path(fx, "own"));

    kill(worker, SIGSTOP);
    kill((pid_t)minder, SIGKILL);
    fx_expect_gone(own);
    kill(worker, SIGKILL);
    assert_int_equal(waitpid(worker, NULL, 0), worker);
    waitpid((pid_t)own, NULL, 0); /* both came to us, if we are a subreaper */
    waitpid((pid_t)minder, NULL, 0);
}

static void the_terminals_signals_pass_the_minder_by(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGQUIT};
    struct fx *fx = *state;
    struct fx_job j;
    int minder;

    fx_job_sh(&j, "true", "");
    fx_run(fx, &j);
    fx_job_clear(&j);
    minder = fx_minder_pid();
    assert_true(minder > 0);
    assert_int_equal(getsid(minder), minder);
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
        kill(minder, signals[i]);
    fx_job_sh(&j, "cat", "still here");
    fx_run(fx, &j);
    assert_string_equal(j.ran.result, "still here");
    assert_int_equal(fx_minder_pid(), minder);
    fx_job_clear(&j);
}

/* Forks and leaves for ever, each time in a new session; says in the file when it is well under
 * way. */
static int hopper_main(const char *path)
{
    for (int hops = 0;; hops++) {
        pid_t pid = fork();

        if (pid > 0)
            _exit(0);
        setsid();
        if (hops == 20) {
            int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

            if (write(fd, "1\n", 2) != 2)
                return 1;
            close(fd);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(a_command_that_takes_too_long_is_a_timeout),
        FX_TEST(a_timeout_takes_the_whole_tree),
        FX_TEST(an_aborted_run_tells_the_first_reason),
        FX_TEST(a_command_may_use_the_grace_to_end_well),
        FX_TEST(a_command_that_ignores_term_is_killed_after_the_grace),
        FX_TEST(kill_does_not_wait_for_the_grace),
        FX_TEST(no_grace_means_kill),
        FX_TEST(term_reaches_what_left_the_group),
        FX_TEST(a_stopped_command_hears_term),
        FX_TEST(stopping_closes_stdin),
        FX_TEST(what_a_command_leaves_in_its_group_is_killed),
        FX_TEST(a_daemon_left_behind_is_killed),
        FX_TEST(a_daemon_with_an_empty_environment_is_killed),
        FX_TEST(a_daemon_dies_with_what_it_started),
        FX_TEST(the_end_of_one_run_spares_the_orphans_of_another),
        FX_TEST(a_run_takes_its_own_orphans_along_while_others_go_on),
        FX_TEST(an_orphan_of_nobody_goes_with_the_last_run_it_can_belong_to),
        FX_TEST(one_that_runs_away_by_forking_is_caught),
        FX_TEST(an_orphan_that_was_held_goes_on),
        FX_TEST(a_pipe_held_by_a_stranger_does_not_hold_the_run),
        FX_TEST(a_run_is_over_when_its_pipes_are),
        FX_TEST(two_hundred_runs_leave_nothing),
        FX_TEST(runs_beside_each_other_keep_their_results_apart),
        FX_TEST(a_minder_that_is_slow_gets_its_requests_later),
        FX_TEST(a_minder_that_is_killed_fails_its_runs_and_is_replaced),
        FX_TEST(a_minder_killed_while_idle_costs_no_attempt),
        FX_TEST(a_run_whose_minder_died_may_be_aborted),
        FX_TEST(a_worker_that_is_killed_leaves_nothing_running),
        FX_TEST(a_command_dies_with_its_minder),
        FX_TEST(the_terminals_signals_pass_the_minder_by),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    if (argc == 3 && !strcmp(argv[1], "--hopper"))
        return hopper_main(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "--worker"))
        return worker_main(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
