/* SPDX-License-Identifier: Apache-2.0
 *
 * test_caps.c - what a command may use: CPU time, memory, files, processes, output.
 */
#include "talk_kit.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- CPU time -------------------------------------------------------------------- */

static void a_command_that_computes_too_long_is_killed(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "while :; do :; done", "");
    j.cmd.caps.cpu_us = ST_SEC;
    fx_run(*state, &j);
    kit_failed(&j, ST_KIND_CAPS, "killed: it used more CPU time than its cap of 1s");
    assert_int_equal(j.ran.signal, SIGXCPU);
    fx_job_clear(&j);
}

static void one_that_does_not_listen_is_killed_a_second_later(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "trap '' XCPU; while :; do :; done", "");
    j.cmd.caps.cpu_us = ST_SEC;
    fx_run(*state, &j);
    kit_failed(&j, ST_KIND_CAPS, "killed: it used more CPU time than its cap of 1s");
    assert_int_equal(j.ran.signal, SIGKILL);
    fx_job_clear(&j);
}

/* What a resident child has used for others is not held against the next. */
static void a_resident_child_has_its_cpu_time_per_request(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\n"
             "for r in reqs():\n"
             "    end = time.process_time() + r['payload']\n"
             "    while time.process_time() < end: pass\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.caps.cpu_us = ST_SEC;
    k.cmd.max_in_flight = 1;
    for (int i = 0; i < 4; i++) {
        kit_job(&k, &j, "j", "0.5");
        kit_run(&k, &j);
        assert_true(j.ran.ok);
        fx_job_clear(&j);
    }
    kit_job(&k, &j, "greedy", "100");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CAPS, "killed: it used more CPU time than its cap of 1s");
    assert_int_equal(j.ran.signal, SIGXCPU);
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ---- memory and files ------------------------------------------------------------ */

static void memory_above_the_cap_is_not_given(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\n"
             "for r in reqs():\n"
             "    try: a = bytearray(r['payload']); say(task_id=r['task_id'], result=len(a))\n"
             "    except MemoryError: say(task_id=r['task_id'], error='no memory', retry=True)\n");
    k.cmd.caps.memory = 128 << 20;
    kit_expect(&k, "small", "1048576", "1048576");
    kit_job(&k, &j, "large", "268435456");
    kit_run(&k, &j);
    assert_false(j.ran.ok);
    if (j.ran.kind != ST_KIND_OOM) /* by a group */
        kit_failed(&j, ST_KIND_APP_ERROR, "no memory");
    fx_job_clear(&j);
    kit_clear(&k);
}

static void killed_with_a_memory_cap_is_out_of_memory(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "kill -KILL $$", "");
    j.cmd.caps.memory = 64 << 20;
    fx_run(*state, &j);
    kit_failed_like(&j, ST_KIND_OOM, "killed by signal 9 (SIGKILL), having a memory cap of 67108864");
    assert_int_equal(j.ran.signal, SIGKILL);
    fx_job_clear(&j);
}

static void files_above_the_cap_are_not_opened(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "ulimit -Sn; ulimit -Hn", "");
    j.cmd.caps.files = 17;
    fx_run(*state, &j);
    kit_ok(&j, "17\n17");
    fx_job_clear(&j);
}

/* ---- output ---------------------------------------------------------------------- */

static void a_command_that_prints_too_much_is_killed(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "while :; do echo line; echo error >&2; done", "");
    j.cmd.caps.output = 100000;
    fx_run(*state, &j);
    kit_failed(&j, ST_KIND_CAPS, "it printed more than its cap of 100000 bytes");
    fx_job_clear(&j);
}

static void so_is_a_resident_child(void **state)
{
    struct kit k;
    struct fx_job j;
    long pid = 0;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\n"
             "for r in reqs():\n"
             "    for i in range(r['payload']): raw('x' * 999 + '\\n')\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.caps.output = 100000;
    for (int i = 0; i < 5; i++) { /* counted from answer to answer */
        kit_job(&k, &j, "some", "50");
        kit_run(&k, &j);
        assert_true(j.ran.ok);
        assert_true(!pid || pid == atol(j.ran.result));
        pid = atol(j.ran.result);
        fx_job_clear(&j);
    }
    kit_job(&k, &j, "more", "1048576");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CAPS, "it printed more than its cap of 100000 bytes");
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ---- processes ------------------------------------------------------------------- */

/* Tries to become many: each child tries, too.  Every one leaves a file. */
static const char bomb[] = "import os, sys, time\n"
                           "open(os.environ['D'] + '/main', 'w').close()\n"
                           "while True:\n"
                           "    try:\n"
                           "        if os.fork() == 0: open(os.environ['D'] + '/p%d' % os.getpid(), 'w').close()\n"
                           "    except OSError: open(os.environ['D'] + '/refused', 'w').close(); time.sleep(0.01)\n";

static int files_in(struct fx *fx, const char *begin)
{
    DIR *d = opendir(fx->dir);
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)))
        n += !strncmp(e->d_name, begin, strlen(begin));
    closedir(d);
    return n;
}

static bool was_refused(void *arg)
{
    return files_in(arg, "refused") > 0;
}

/* A bomb in a cap of 8: it gets that far and no further, and nothing of it is left. */
static void bomb_in(struct fx *fx)
{
    struct fx_job j;
    char env[96], *envp[] = {env, NULL};
    int made;

    snprintf(env, sizeof(env), "D=%s", fx->dir);
    fx_job_py(&j, bomb, "");
    free(j.argv[0]);
    j.argv[0] = strdup("/usr/bin/python3");
    j.cmd.env = envp;
    j.cmd.caps.processes = 8;
    j.cmd.grace_us = 100 * ST_MS;
    fx_start(fx, &j);
    fx_until(fx, was_refused, fx);
    st_exec_abort(j.run, ST_ABORT_CANCELLED);
    fx_wait(fx, &j);
    made = files_in(fx, "p");
    assert_in_range(made, 1, 7);
    assert_int_equal(j.ran.kind, ST_KIND_CANCELLED);
    fx_job_clear(&j);
}

static bool pids_group_writable(void)
{
    return geteuid() == 0 &&
           (!access("/sys/fs/cgroup/pids/tasks", W_OK) || !access("/sys/fs/cgroup/cgroup.subtree_control", W_OK));
}

static int groups_left(void)
{
    DIR *d = opendir("/sys/fs/cgroup/pids");
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)))
        n += !strncmp(e->d_name, "stint-", 6);
    if (d)
        closedir(d);
    return n;
}

static void a_group_keeps_the_number_of_processes(void **state)
{
    int before = groups_left();

    if (!pids_group_writable())
        skip();
    bomb_in(*state);
    assert_int_equal(groups_left(), before);
}

/* Runs it in a process of its own that is somebody else; the test fails if it does. */
static void apart(void (*become)(void), void (*what)(struct fx *fx))
{
    int status = -1;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        void *fx;

        become();
        fx_setup(&fx);
        what(fx);
        fx_teardown(&fx);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A user who has no other processes that come and go. */
static void become_nobody(void)
{
    uid_t id = 61000 + (uid_t)getpid() % 1000;

    if (setgid(id) || setuid(id))
        _exit(2);
}

static void an_unprivileged_user_is_kept_to_the_number_of_processes(void **state)
{
    (void)state;
    if (geteuid() != 0)
        bomb_in(*state);
    else
        apart(become_nobody, bomb_in);
}

static void become_without_groups(void)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/sys/fs/cgroup", "tmpfs", MS_RDONLY, NULL))
        _exit(2);
}

static void refused(struct fx *fx)
{
    struct fx_job j;
    struct kit k;

    fx_job_sh(&j, "echo hello", "");
    j.cmd.caps.processes = 8;
    fx_run(fx, &j);
    kit_failed_like(&j, ST_KIND_CAPS, "the cap on processes of sh cannot be kept here");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    fx_job_clear(&j);

    kit_init(&k, fx, ST_MODE_RESIDENT, "ready()");
    k.cmd.caps.processes = 8;
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed_like(&j, ST_KIND_CAPS, "the cap on processes of /usr/bin/python3 cannot be kept here");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    fx_job_clear(&j);
    kit_clear(&k);
}

static void a_cap_on_processes_that_cannot_be_kept_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    apart(become_without_groups, refused);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(a_command_that_computes_too_long_is_killed),
        FX_TEST(one_that_does_not_listen_is_killed_a_second_later),
        FX_TEST(a_resident_child_has_its_cpu_time_per_request),
        FX_TEST(memory_above_the_cap_is_not_given),
        FX_TEST(killed_with_a_memory_cap_is_out_of_memory),
        FX_TEST(files_above_the_cap_are_not_opened),
        FX_TEST(a_command_that_prints_too_much_is_killed),
        FX_TEST(so_is_a_resident_child),
        FX_TEST(a_group_keeps_the_number_of_processes),
        FX_TEST(an_unprivileged_user_is_kept_to_the_number_of_processes),
        FX_TEST(a_cap_on_processes_that_cannot_be_kept_is_refused),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
