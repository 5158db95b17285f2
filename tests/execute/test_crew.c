/* SPDX-License-Identifier: Apache-2.0
 *
 * test_crew.c - how resident children are kept up, stopped and replaced.
 */
#include "talk_kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "execute/run.h"

#define PID_ECHO                                                                                                       \
    "ready()\n"                                                                                                        \
    "for r in reqs(): say(task_id=r['task_id'], result=os.getpid())\n"

static void touch(struct fx *fx, const char *name)
{
    FILE *f = fopen(fx_path(fx, name), "we");

    assert_non_null(f);
    fclose(f);
}

/* The pid of the child that answers. */
static long pid_of(struct kit *k)
{
    struct fx_job j;
    long pid;

    kit_job(k, &j, "who", "0");
    kit_run(k, &j);
    if (!j.ran.ok)
        fail_msg("failed: %s", j.ran.message);
    pid = atol(j.ran.result);
    assert_true(pid > 1);
    fx_job_clear(&j);
    return pid;
}

/* ---- health ---------------------------------------------------------------------- */

struct health {
    int n; /* how often it was told */
    bool healthy;
    char name[32], note[512];
};

static void on_health(void *arg, const char *name, bool healthy, const char *note)
{
    struct health *h = arg;

    h->n++;
    h->healthy = healthy;
    snprintf(h->name, sizeof(h->name), "%s", name);
    snprintf(h->note, sizeof(h->note), "%s", note ? note : "");
}

static bool told_bad(void *arg)
{
    return ((struct health *)arg)->n == 1;
}

static bool told_good(void *arg)
{
    return ((struct health *)arg)->n == 2;
}

static void watch(struct fx *fx, struct health *h)
{
    memset(h, 0, sizeof(*h));
    h->healthy = true;
    fx->opt.health = on_health;
    fx->opt.health_arg = h;
    fx_reopen(fx);
    /* nobody wants to wait for minutes */
    fx->x->supervise.first_us = ST_MS;
    fx->x->supervise.most_us = 10 * ST_MS;
}

static void no_more_taken(struct kit *k)
{
    struct fx_job j;
    struct st_run *run;
    stint_error err;

    assert_int_equal(st_exec_room(k->fx->x, &k->cmd), 0);
    kit_job(k, &j, "late", "0");
    assert_int_equal(st_exec_run(k->fx->x, &k->cmd, j.job, NULL, NULL, &run, &err), STINT_EAGAIN);
    assert_null(run);
    fx_job_clear(&j);
}

/* ---- crashes --------------------------------------------------------------------- */

static void a_child_that_dies_fails_what_it_had(void **state)
{
    struct kit k;
    struct fx_job a, b;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']: note('out of ideas\\n'); os.kill(os.getpid(), 9)\n");
    kit_job(&k, &a, "a", "0");
    kit_job(&k, &b, "b", "1");
    kit_start(&k, &a);
    kit_start(&k, &b);
    fx_wait(k.fx, &a);
    fx_wait(k.fx, &b);
    kit_failed(&a, ST_KIND_CHILD_CRASHED, "the child died: killed by signal 9 (SIGKILL): out of ideas");
    assert_int_equal(a.ran.signal, 9);
    assert_true(a.ran.max_rss_kb > 0);
    assert_int_equal(a.ran.advice, ST_BY_POLICY);
    assert_string_equal(a.ran.log_tail, "out of ideas\n");
    kit_failed(&b, ST_KIND_CHILD_CRASHED, "the child died: killed by signal 9 (SIGKILL): out of ideas");
    fx_job_clear(&a);
    fx_job_clear(&b);
    kit_clear(&k);
}

static void answers_given_before_the_end_count(void **state)
{
    struct kit k;
    struct fx_job a, b;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']: say(task_id='a', result='done'); os._exit(3)\n");
    kit_job(&k, &a, "a", "0");
    kit_job(&k, &b, "b", "1");
    kit_start(&k, &a);
    kit_start(&k, &b);
    fx_wait(k.fx, &a);
    fx_wait(k.fx, &b);
    kit_ok(&a, "\"done\"");
    kit_failed(&b, ST_KIND_CHILD_CRASHED, "the child died: exit status 3");
    assert_int_equal(b.ran.exit_code, 3);
    fx_job_clear(&a);
    fx_job_clear(&b);
    kit_clear(&k);
}

/* Its last line may lack the newline, but nothing else. */
static void a_last_answer_needs_no_newline(void **state)
{
    struct kit k;
    struct fx_job a, b;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']:\n"
             "        os.write(1, "
             "b'{\"task_id\":\"b\",\"result\":1}\\n{\"task_id\":\"a\",\"result\":22}')\n"
             "        os._exit(3)\n");
    kit_job(&k, &a, "a", "0");
    kit_job(&k, &b, "b", "1");
    kit_start(&k, &a);
    kit_start(&k, &b);
    fx_wait(k.fx, &a);
    fx_wait(k.fx, &b);
    kit_ok(&a, "22");
    kit_ok(&b, "1");
    fx_job_clear(&a);
    fx_job_clear(&b);
    kit_clear(&k);
}

static void an_answer_that_breaks_off_is_none(void **state)
{
    struct kit k;
    struct fx_job a;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    os.write(1, b'{\"task_id\":\"a\",\"result\":22')\n"
             "    os._exit(3)\n");
    kit_job(&k, &a, "a", "0");
    kit_start(&k, &a);
    fx_wait(k.fx, &a);
    kit_failed(&a, ST_KIND_CHILD_CRASHED, "the child died: exit status 3");
    fx_job_clear(&a);
    kit_clear(&k);
}

static void a_child_that_crashed_is_started_again(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    struct fx_job j;

    watch(fx, &h);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']: os._exit(1)\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    for (int i = 0; i < 4; i++) {
        kit_job(&k, &j, "bad", "1");
        kit_run(&k, &j);
        kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child died: exit status 1");
        fx_job_clear(&j);
        pid_of(&k); /* this one waits for the next child */
    }
    assert_int_equal(h.n, 0);
    kit_clear(&k);
}

static bool alive_again(void *arg)
{
    long pid;

    return fx_file_number(arg, &pid);
}

static void nobody_has_to_ask_for_it(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    char again[128];

    watch(fx, &h);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "if os.path.exists(D + '/first'): mark('again')\n"
             "mark('first')\n" PID_ECHO);
    kill((pid_t)pid_of(&k), SIGKILL);
    snprintf(again, sizeof(again), "%s", fx_path(fx, "again"));
    fx_until(fx, alive_again, again);
    kit_clear(&k);
}

static void children_that_keep_crashing_are_given_up_for_a_while(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    struct fx_job j;

    watch(fx, &h);
    fx->x->supervise.cool_us = 300 * ST_MS;
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "if not os.path.exists(D + '/mended'):\n"
             "    note('warming up\\ncannot find the model\\n'); sys.exit(3)\n" PID_ECHO);
    kit_job(&k, &j, "waits", "0");
    kit_run(&k, &j);
    kit_given_back(&j); /* not charged for it */
    fx_job_clear(&j);
    assert_int_equal(h.n, 1);
    assert_false(h.healthy);
    assert_string_equal(h.name, "a.*");
    assert_string_equal(h.note, "5 crashes in 10m; next try in 300ms; last: exit status 3 before it "
                                "was ready: cannot find the model");
    no_more_taken(&k);

    touch(fx, "mended");
    fx_until(fx, told_good, &h); /* tried without being asked */
    assert_true(h.healthy);
    assert_int_equal(st_exec_room(fx->x, &k.cmd), 4);
    pid_of(&k);
    kit_clear(&k);
}

static void a_child_that_never_gets_ready_is_a_crash(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    struct fx_job j;

    watch(fx, &h);
    fx->x->supervise.crashes = 2;
    kit_init(&k, fx, ST_MODE_RESIDENT, "raw('hello\\n')\ntime.sleep(1000)\n");
    k.cmd.startup_us = 100 * ST_MS;
    kit_job(&k, &j, "waits", "0");
    kit_run(&k, &j);
    kit_given_back(&j);
    fx_job_clear(&j);
    assert_non_null(strstr(h.note, "last: not ready within 100ms"));
    kit_clear(&k);
}

static void a_child_may_say_that_it_cannot_start(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    struct fx_job j;

    watch(fx, &h);
    fx->x->supervise.crashes = 1;
    kit_init(&k, fx, ST_MODE_RESIDENT, "say(status='error', error='no GPU \\u00e9')\ntime.sleep(1000)\n");
    kit_job(&k, &j, "waits", "0");
    kit_run(&k, &j);
    kit_given_back(&j);
    fx_job_clear(&j);
    assert_non_null(strstr(h.note, "last: no GPU \xc3\xa9"));
    kit_clear(&k);
}

static void so_is_a_program_that_is_not_there(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    struct fx_job j;

    watch(fx, &h);
    fx->x->supervise.crashes = 2;
    kit_init(&k, fx, ST_MODE_RESIDENT, "");
    free(k.argv[0]);
    k.argv[0] = strdup("/no/such/program");
    kit_job(&k, &j, "waits", "0");
    kit_run(&k, &j);
    kit_given_back(&j);
    fx_job_clear(&j);
    assert_non_null(strstr(h.note, "last: cannot run /no/such/program: No such file or directory"));
    kit_clear(&k);
}

static void a_parked_crew_stays_down_until_it_is_configured_again(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    struct fx_job j;
    stint_error err;

    watch(fx, &h);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']: os._exit(7)\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.park = true;
    kit_job(&k, &j, "bad", "1");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child died: exit status 7");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    fx_job_clear(&j);
    assert_true(told_bad(&h));
    assert_string_equal(h.note, "a child crashed and is not restarted (on_child_crash: park); last: "
                                "exit status 7");
    no_more_taken(&k);
    assert_int_equal(st_exec_configure(fx->x, &fx->opt, &err), STINT_OK);
    assert_true(told_good(&h));
    pid_of(&k);
    kit_clear(&k);
}

static void an_idle_child_may_go(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    long first;

    watch(fx, &h);
    fx->x->supervise.crashes = 1;
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    say(task_id=r['task_id'], result=os.getpid()); break\n");
    first = pid_of(&k);
    fx_expect_gone(first);
    for (int i = 0; i < 5; i++)
        pid_of(&k);
    assert_int_equal(h.n, 0);
    kit_clear(&k);
}

/* ---- children that leave without having done anything ----------------------------- */

/* Three children have not read it: that is an attempt.  The crew is given up after five. */
static void check_never_reads(struct kit *k, struct health *h, const char *how)
{
    struct fx_job a, b;
    char text[128];

    kit_job(k, &a, "a", "0");
    kit_run(k, &a);
    snprintf(text, sizeof(text), "the child died: %s without reading its request", how);
    kit_failed(&a, ST_KIND_CHILD_CRASHED, text);
    assert_int_equal(a.ran.advice, ST_BY_POLICY);
    assert_int_equal(h->n, 0);
    kit_job(k, &b, "b", "0");
    kit_run(k, &b);
    kit_given_back(&b);
    assert_true(told_bad(h));
    assert_non_null(strstr(h->note, "5 crashes in 10m; next try in 10m; last: "));
    assert_non_null(strstr(h->note, how));
    no_more_taken(k);
    fx_job_clear(&a);
    fx_job_clear(&b);
}

static void a_child_that_never_reads_is_a_crash_however_it_exits(void **state)
{
    struct health h;
    struct kit k;

    watch(*state, &h);
    kit_init(&k, *state, ST_MODE_RESIDENT, "ready()\ntime.sleep(0.05)\nos._exit(0)\n");
    check_never_reads(&k, &h, "exit status 0");
    kit_clear(&k);
}

static void also_if_its_only_job_was_its_last(void **state)
{
    struct health h;
    struct kit k;

    watch(*state, &h);
    kit_init(&k, *state, ST_MODE_RESIDENT, "ready()\ntime.sleep(0.05)\nos._exit(0)\n");
    k.cmd.recycle.jobs = 1;
    check_never_reads(&k, &h, "exit status 0");
    kit_clear(&k);
}

static void also_if_it_closes_its_stdin_first(void **state)
{
    struct health h;
    struct kit k;

    watch(*state, &h);
    kit_init(&k, *state, ST_MODE_RESIDENT, "ready()\nos.close(0)\ntime.sleep(0.05)\nos._exit(0)\n");
    check_never_reads(&k, &h, "exit status 0");
    kit_clear(&k);
}

/* One has a long job, so that another is kept ready; that one does not stay. */
static void a_spare_child_that_does_not_stay_is_a_crash(void **state)
{
    struct health h;
    struct kit k;
    struct fx_job j;

    watch(*state, &h);
    kit_init(&k, *state, ST_MODE_RESIDENT,
             "try: os.open(D + '/first', os.O_CREAT | os.O_EXCL)\n"
             "except FileExistsError: ready(); os._exit(0)\n"
             "ready()\n"
             "for r in reqs(): await_file('go'); say(task_id=r['task_id'], result=1)\n");
    k.cmd.processes = 2;
    k.cmd.max_in_flight = 1;
    kit_job(&k, &j, "j", "0");
    kit_start(&k, &j);
    fx_until(k.fx, told_bad, &h);
    touch(k.fx, "go");
    fx_wait(k.fx, &j);
    kit_ok(&j, "1");
    fx_job_clear(&j);
    kit_clear(&k);
}

static void one_that_answers_and_goes_is_none(void **state)
{
    struct health h;
    struct kit k;
    struct fx_job j[8];
    char id[8];

    watch(*state, &h);
    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nr = json.loads(os.read(0, 1 << 16).split(b'\\n')[0])\n"
             "say(task_id=r['task_id'], result=1)\nos._exit(0)\n");
    k.cmd.max_in_flight = 1;
    for (int i = 0; i < 8; i++) {
        snprintf(id, sizeof(id), "j%d", i);
        kit_job(&k, &j[i], id, "0");
        kit_start(&k, &j[i]);
    }
    for (int i = 0; i < 8; i++) {
        fx_wait(k.fx, &j[i]);
        kit_ok(&j[i], "1");
        fx_job_clear(&j[i]);
    }
    assert_int_equal(h.n, 0);
    kit_clear(&k);
}

static void a_child_that_closes_its_stdin_is_replaced(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;
    long pid;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "if os.path.exists(D + '/deaf'):\n"
             "    ready()\n"
             "    for r in reqs(): say(task_id=r['task_id'], result=os.getpid())\n"
             "ready()\n"
             "os.close(0)\n"
             "mark('deaf')\n"
             "while True: time.sleep(1000)\n");
    k.cmd.grace_us = 50 * ST_MS;
    fx->x->supervise.first_us = ST_MS;
    kit_job(&k, &j, "j", "0");
    kit_start(&k, &j);
    pid = fx_wait_number(fx, fx_path(fx, "deaf"));
    fx_wait(fx, &j);
    if (j.ran.ok) /* it had not been sent yet, and went to the next child */
        assert_int_not_equal(atol(j.ran.result), pid);
    else
        kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child died: it closed its stdin");
    fx_job_clear(&j);
    assert_int_not_equal(pid_of(&k), pid);
    fx_expect_gone(pid);
    kit_clear(&k);
}

static void a_child_that_closes_its_stdout_is_replaced(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']:\n"
             "        os.close(1)\n"
             "        while True: time.sleep(1000)\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.grace_us = 50 * ST_MS;
    fx->x->supervise.first_us = ST_MS;
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child died: it closed its stdout");
    fx_job_clear(&j);
    pid_of(&k);
    kit_clear(&k);
}

/* It left a process behind that holds its pipes, in a session of its own. */
static void what_a_child_leaves_behind_goes_with_it(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;
    long left;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if os.fork() == 0:\n"
             "        os.setsid(); signal.signal(15, signal.SIG_IGN)\n"
             "        if os.fork() == 0:\n"
             "            mark('left')\n"
             "            while True: time.sleep(1000)\n"
             "        os._exit(0)\n"
             "    await_file('left')\n"
             "    os._exit(1)\n");
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the child died: exit status 1");
    left = fx_wait_number(fx, fx_path(fx, "left"));
    assert_false(fx_alive(left)); /* gone before the job was told */
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ... while another child goes on. */
static void and_only_that(void **state)
{
    struct fx *fx = *state;
    struct kit k, other;
    struct fx_job j;
    long left, pid;

    kit_init(&other, fx, ST_MODE_RESIDENT, PID_ECHO);
    other.cmd.name = (char *)(uintptr_t) "other";
    pid = pid_of(&other);
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if os.fork() == 0:\n"
             "        os.setsid()\n"
             "        if os.fork() == 0:\n"
             "            mark('left')\n"
             "            while True: time.sleep(1000)\n"
             "        os._exit(0)\n"
             "    await_file('left')\n"
             "    os._exit(1)\n");
    kit_job(&k, &j, "j", "1");
    kit_run(&k, &j);
    left = fx_wait_number(fx, fx_path(fx, "left"));
    assert_false(fx_alive(left));
    assert_int_equal(pid_of(&other), pid);
    fx_job_clear(&j);
    kit_clear(&k);
    kit_clear(&other);
}

static bool was_read(void *arg)
{
    size_t len;

    return st_run_progress(((struct fx_job *)arg)->run, &len) != NULL;
}

static void a_dead_minder_is_no_crash_of_the_child(void **state)
{
    struct fx *fx = *state;
    struct health h;
    struct kit k;
    struct fx_job j;
    long pid;

    watch(fx, &h);
    fx->x->supervise.crashes = 1;
    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if not r['payload']: say(task_id=r['task_id'], result=os.getpid())\n"
             "    else: say(task_id=r['task_id'], progress=1)\n");
    pid = pid_of(&k);
    kit_job(&k, &j, "j", "1");
    kit_start(&k, &j);
    fx_until(fx, was_read, &j); /* what was not read would go to the next child */
    kill(fx_minder_pid(), SIGKILL);
    fx_wait(fx, &j);
    kit_failed(&j, ST_KIND_CHILD_CRASHED, "the process that minds the commands died");
    fx_job_clear(&j);
    assert_false(fx_alive(pid));
    assert_int_not_equal(pid_of(&k), pid);
    assert_int_equal(h.n, 0);
    kit_clear(&k);
}

/* ---- timeouts and aborts --------------------------------------------------------- */

static void a_job_that_takes_too_long_takes_its_child_along(void **state)
{
    struct kit k;
    struct fx_job slow, other;

    kit_init(&k, *state, ST_MODE_RESIDENT, "ready()\nfor r in reqs(): time.sleep(1000)\n");
    kit_job(&k, &slow, "slow", "1");
    slow.job->policy.timeout_us = 100 * ST_MS;
    kit_job(&k, &other, "other", "1");
    kit_start(&k, &slow);
    kit_start(&k, &other);
    fx_wait(k.fx, &slow);
    fx_wait(k.fx, &other);
    kit_failed(&slow, ST_KIND_TIMEOUT, "timed out after 100ms");
    assert_int_equal(slow.ran.signal, SIGTERM);
    kit_given_back(&other); /* uncharged */
    fx_job_clear(&slow);
    fx_job_clear(&other);
    kit_clear(&k);
}

static void what_is_answered_in_the_grace_counts(void **state)
{
    struct kit k;
    struct fx_job slow, other;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "def on_term(*_): say(task_id='slow', result=1); say(task_id='other', result=2); "
             "os._exit(0)\n"
             "signal.signal(15, on_term)\n"
             "ready()\nfor r in reqs(): pass\n"
             "while True: time.sleep(0.01)\n"); /* a long one may not hear the signal */
    kit_job(&k, &slow, "slow", "1");
    slow.job->policy.timeout_us = 100 * ST_MS;
    kit_job(&k, &other, "other", "1");
    kit_start(&k, &slow);
    kit_start(&k, &other);
    fx_wait(k.fx, &slow);
    fx_wait(k.fx, &other);
    kit_failed(&slow, ST_KIND_TIMEOUT, "timed out after 100ms"); /* too late is too late */
    kit_ok(&other, "2");
    fx_job_clear(&slow);
    fx_job_clear(&other);
    kit_clear(&k);
}

static void a_child_that_ignores_term_is_killed(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "signal.signal(15, signal.SIG_IGN)\nready()\nwhile True: time.sleep(1000)\n");
    k.cmd.grace_us = 50 * ST_MS;
    kit_job(&k, &j, "j", "1");
    j.job->policy.timeout_us = 50 * ST_MS;
    kit_run(&k, &j);
    kit_failed(&j, ST_KIND_TIMEOUT, "timed out after 50ms");
    assert_int_equal(j.ran.signal, SIGKILL);
    fx_job_clear(&j);
    kit_clear(&k);
}

/* Others are not disturbed: that is what the cancel line is for. */
#define CANCELS                                                                                                        \
    "ready(cancel=True)\n"                                                                                             \
    "for r in reqs():\n"                                                                                               \
    "    if r.get('cancel'): say(task_id=r['task_id'], error='stopped')\n"                                             \
    "    elif r['payload'] == 1: mark('slow')\n"                                                                       \
    "    else: say(task_id=r['task_id'], result=os.getpid())\n"

static void a_child_that_understands_it_is_asked_to_cancel(void **state)
{
    struct kit k;
    struct fx_job slow;
    long pid;

    kit_init(&k, *state, ST_MODE_RESIDENT, CANCELS);
    pid = pid_of(&k);
    kit_job(&k, &slow, "slow", "1");
    slow.job->policy.timeout_us = 50 * ST_MS;
    kit_run(&k, &slow);
    kit_failed(&slow, ST_KIND_TIMEOUT, "timed out after 50ms");
    assert_int_equal(slow.ran.signal, 0);
    fx_job_clear(&slow);

    kit_job(&k, &slow, "slow", "1");
    kit_start(&k, &slow);
    fx_wait_number(k.fx, fx_path(k.fx, "slow"));
    st_exec_abort(slow.run, ST_ABORT_CANCELLED);
    fx_wait(k.fx, &slow);
    assert_int_equal(slow.ran.aborted, ST_ABORT_CANCELLED);
    assert_int_equal(slow.ran.kind, ST_KIND_CANCELLED);
    fx_job_clear(&slow);
    assert_int_equal(pid_of(&k), pid); /* it lives */
    kit_clear(&k);
}

static void a_child_that_does_not_cancel_is_stopped_after_the_grace(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready(cancel=True)\nfor r in reqs(): mark('cancelled' if r.get('cancel') else 'got')\n");
    k.cmd.grace_us = 100 * ST_MS;
    kit_job(&k, &j, "j", "1");
    kit_start(&k, &j);
    fx_wait_number(k.fx, fx_path(k.fx, "got"));
    st_exec_abort(j.run, ST_ABORT_TAKEN);
    fx_wait(k.fx, &j);
    assert_int_equal(j.ran.aborted, ST_ABORT_TAKEN);
    fx_wait_number(k.fx, fx_path(k.fx, "cancelled"));
    fx_job_clear(&j);
    kit_clear(&k);
}

static void an_abort_stops_a_child_that_cannot_cancel(void **state)
{
    struct kit k;
    struct fx_job j, other;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']: mark('got')\n"
             "    time.sleep(1000)\n");
    kit_job(&k, &j, "j", "1");
    kit_job(&k, &other, "other", "1");
    kit_start(&k, &j);
    kit_start(&k, &other);
    fx_wait_number(k.fx, fx_path(k.fx, "got"));
    st_exec_abort(j.run, ST_ABORT_CANCELLED);
    st_exec_abort(j.run, ST_ABORT_TAKEN); /* the first reason counts */
    fx_wait(k.fx, &j);
    fx_wait(k.fx, &other);
    assert_int_equal(j.ran.aborted, ST_ABORT_CANCELLED);
    assert_string_equal(j.ran.message, "stopped: cancelled");
    assert_int_equal(j.ran.signal, SIGTERM);
    kit_given_back(&other);
    fx_job_clear(&j);
    fx_job_clear(&other);
    kit_clear(&k);
}

static void kill_does_not_wait_for_the_grace(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "signal.signal(15, signal.SIG_IGN)\nready(cancel=True)\nfor r in reqs(): mark('got')\n"
             "while True: time.sleep(1000)\n");
    k.cmd.grace_us = ST_HOUR;
    kit_job(&k, &j, "j", "1");
    kit_start(&k, &j);
    fx_wait_number(k.fx, fx_path(k.fx, "got"));
    st_exec_abort(j.run, ST_ABORT_SHUTDOWN);
    st_exec_kill(j.run, ST_ABORT_SHUTDOWN);
    fx_wait(k.fx, &j);
    assert_int_equal(j.ran.signal, SIGKILL);
    assert_int_equal(j.ran.aborted, ST_ABORT_SHUTDOWN);
    fx_job_clear(&j);
    kit_clear(&k);
}

static void one_that_waits_is_simply_not_started(void **state)
{
    struct kit k;
    struct fx_job first, second;

    kit_init(&k, *state, ST_MODE_RESIDENT, CANCELS);
    k.cmd.max_in_flight = 1;
    kit_job(&k, &first, "first", "0");
    kit_job(&k, &second, "second", "0");
    kit_start(&k, &first);
    kit_start(&k, &second);
    st_exec_abort(second.run, ST_ABORT_CANCELLED);
    assert_int_equal(second.done, 0); /* told from the loop only */
    st_exec_kill(second.run, ST_ABORT_TAKEN);
    fx_wait(k.fx, &second);
    assert_int_equal(second.ran.aborted, ST_ABORT_CANCELLED);
    fx_wait(k.fx, &first);
    assert_true(first.ran.ok);
    fx_job_clear(&first);
    fx_job_clear(&second);
    kit_clear(&k);
}

/* The timeout is the job's own: it does not run while it waits. */
static void waiting_is_no_part_of_the_timeout(void **state)
{
    struct kit k;
    struct fx_job j;

    kit_init(&k, *state, ST_MODE_RESIDENT, "time.sleep(0.3)\n" PID_ECHO);
    kit_job(&k, &j, "j", "0");
    j.job->policy.timeout_us = 250 * ST_MS;
    kit_run(&k, &j);
    if (!j.ran.ok)
        fail_msg("failed: %s", j.ran.message);
    fx_job_clear(&j);
    kit_clear(&k);
}

/* ---- fresh children -------------------------------------------------------------- */

static void a_child_is_replaced_after_so_many_jobs(void **state)
{
    struct kit k;
    long pid[6];

    kit_init(&k, *state, ST_MODE_RESIDENT, PID_ECHO "mark('ended%d' % os.getpid())\n");
    k.cmd.recycle.jobs = 2;
    for (int i = 0; i < 6; i++)
        pid[i] = pid_of(&k);
    for (int i = 0; i < 6; i += 2) {
        char name[32];

        assert_int_equal(pid[i], pid[i + 1]);
        assert_int_not_equal(pid[i], i ? pid[i - 1] : 0);
        snprintf(name, sizeof(name), "ended%ld", pid[i]);
        fx_wait_number(k.fx, fx_path(k.fx, name)); /* by the end of its input */
    }
    kit_clear(&k);
}

static void it_finishes_what_it_has(void **state)
{
    struct kit k;
    struct fx_job slow;
    long pid;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    if r['payload']: mark('slow'); await_file('go')\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.recycle.jobs = 1;
    kit_job(&k, &slow, "slow", "1");
    kit_start(&k, &slow);
    pid = fx_wait_number(k.fx, fx_path(k.fx, "slow"));
    assert_int_not_equal(pid_of(&k), pid);
    assert_int_equal(slow.done, 0);
    touch(k.fx, "go");
    fx_wait(k.fx, &slow);
    assert_int_equal(atol(slow.ran.result), pid);
    fx_expect_gone(pid);
    fx_job_clear(&slow);
    kit_clear(&k);
}

static void a_child_is_replaced_when_it_is_old(void **state)
{
    struct kit k;
    long pid;

    kit_init(&k, *state, ST_MODE_RESIDENT, PID_ECHO);
    k.cmd.recycle.age_us = 1; /* old at its first answer */
    pid = pid_of(&k);
    assert_int_not_equal(pid_of(&k), pid);
    fx_expect_gone(pid);
    kit_clear(&k);
}

static void a_child_is_replaced_when_it_has_grown(void **state)
{
    struct kit k;
    struct fx_job j;
    long pid;
    int rounds = 0;

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nkeep = []\nfor r in reqs():\n"
             "    if r['payload']: keep.append(bytearray(100 << 20))\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.recycle.rss = 64 << 20;
    pid = pid_of(&k);
    kit_job(&k, &j, "grow", "1");
    kit_run(&k, &j);
    fx_job_clear(&j);
    while (pid_of(&k) == pid && ++rounds < 1000) /* it is looked at once a second */
        usleep(5000);
    assert_in_range(rounds, 0, 999);
    fx_expect_gone(pid);
    kit_clear(&k);
}

static bool is_gone(void *pid)
{
    return !fx_alive(*(long *)pid);
}

static void a_child_that_has_nothing_to_do_is_replaced_too(void **state)
{
    struct kit k;
    long pid;

    kit_init(&k, *state, ST_MODE_RESIDENT, PID_ECHO);
    k.cmd.recycle.age_us = ST_SEC; /* longer than until its first answer, as a rule */
    pid = pid_of(&k);
    fx_until(k.fx, is_gone, &pid);
    kit_clear(&k);

    kit_init(&k, *state, ST_MODE_RESIDENT,
             "ready()\nkeep = []\nfor r in reqs():\n"
             "    keep.append(bytearray(100 << 20))\n"
             "    say(task_id=r['task_id'], result=os.getpid())\n");
    k.cmd.recycle.rss = 64 << 20;
    pid = pid_of(&k);
    fx_until(k.fx, is_gone, &pid);
    kit_clear(&k);
}

static void a_retired_child_that_does_not_go_is_stopped(void **state)
{
    struct kit k;
    long pid;

    kit_init(&k, *state, ST_MODE_RESIDENT, PID_ECHO "while True: time.sleep(1000)\n");
    k.cmd.recycle.jobs = 1;
    k.cmd.grace_us = 20 * ST_MS;
    k.fx->x->supervise.crashes = 1;
    pid = pid_of(&k);
    for (int i = 0; i < 20 && fx_alive(pid); i++)
        pid_of(&k);
    assert_true(st_exec_room(k.fx->x, &k.cmd) > 0); /* that was no crash */
    kit_clear(&k);
}

static void a_retired_child_that_goes_on_printing_is_stopped(void **state)
{
    struct kit k;
    long pid;

    kit_init(&k, *state, ST_MODE_RESIDENT, PID_ECHO "while True:\n    raw('still here\\n')\n    time.sleep(0.002)\n");
    k.cmd.recycle.jobs = 1;
    k.cmd.grace_us = 100 * ST_MS;
    pid = pid_of(&k);
    fx_until(k.fx, is_gone, &pid);
    kit_clear(&k);
}

static void another_configuration_needs_other_children(void **state)
{
    struct kit k;
    stint_error err;
    char other[96];
    long pid;

    kit_init(&k, *state, ST_MODE_RESIDENT, PID_ECHO);
    pid = pid_of(&k);
    assert_int_equal(st_exec_configure(k.fx->x, &k.fx->opt, &err), STINT_OK);
    assert_int_equal(pid_of(&k), pid);
    snprintf(other, sizeof(other), "D=%s/", k.fx->dir);
    k.envp[0] = other;
    assert_int_equal(st_exec_configure(k.fx->x, &k.fx->opt, &err), STINT_OK);
    assert_int_not_equal(pid_of(&k), pid);
    fx_expect_gone(pid);
    kit_clear(&k);
}

static void children_of_a_type_that_is_gone_go(void **state)
{
    struct fx *fx = *state;
    struct kit k, kept;
    stint_error err;
    long pid, pid_kept;

    fx->x->stale_us = 50 * ST_MS;
    kit_init(&k, fx, ST_MODE_RESIDENT, PID_ECHO);
    kit_init(&kept, fx, ST_MODE_RESIDENT, PID_ECHO);
    kept.cmd.name = (char *)(uintptr_t) "kept";
    pid = pid_of(&k);
    pid_kept = pid_of(&kept);
    assert_int_equal(st_exec_configure(fx->x, &fx->opt, &err), STINT_OK);
    assert_int_equal(st_exec_room(fx->x, &kept.cmd), 4);
    while (fx_alive(pid))
        uv_run(&fx->loop, UV_RUN_ONCE);
    assert_int_equal(pid_of(&kept), pid_kept);
    kit_clear(&k);
    kit_clear(&kept);
}

/* ---- the end --------------------------------------------------------------------- */

static void close_stops_the_children(void **state)
{
    struct fx *fx = *state;
    struct kit k, stubborn;
    long pid, pid_stubborn;

    kit_init(&k, fx, ST_MODE_RESIDENT, "signal.signal(15, lambda *_: mark('term') or sys.exit(0))\n" PID_ECHO);
    kit_init(&stubborn, fx, ST_MODE_RESIDENT,
             "signal.signal(15, signal.SIG_IGN)\n" PID_ECHO "while True: time.sleep(1000)\n");
    stubborn.cmd.name = (char *)(uintptr_t) "stubborn";
    stubborn.cmd.grace_us = 50 * ST_MS;
    pid = pid_of(&k);
    pid_stubborn = pid_of(&stubborn);
    fx_reopen(fx);
    assert_false(fx_alive(pid));
    assert_false(fx_alive(pid_stubborn));
    kit_clear(&k);
    kit_clear(&stubborn);
}

/* Of what stops only what a child works on is waited for. */
static void a_drained_crew_finishes_what_it_has_and_nothing_else(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job has, waits;
    long pid;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nfor r in reqs():\n"
             "    mark('pid'); await_file('go'); say(task_id=r['task_id'], result=1)\n");
    k.cmd.max_in_flight = 1;
    kit_job(&k, &has, "has", "0");
    kit_job(&k, &waits, "waits", "0");
    kit_start(&k, &has);
    kit_start(&k, &waits);
    pid = fx_wait_number(fx, fx_path(fx, "pid"));
    st_exec_drain(fx->x);
    fx_wait(fx, &waits);
    kit_given_back(&waits);
    assert_int_equal(has.done, 0);
    touch(fx, "go");
    fx_wait(fx, &has);
    kit_ok(&has, "1");
    while (fx_alive(pid)) /* it has nothing more to do */
        uv_run(&fx->loop, UV_RUN_ONCE);
    assert_int_equal(st_exec_room(fx->x, &k.cmd), 0);
    fx_job_clear(&has);
    fx_job_clear(&waits);
    kit_clear(&k);
}

static void a_child_that_is_not_ready_is_not_waited_for(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job j;
    struct health h;
    long pid;

    watch(fx, &h);
    fx->x->supervise.crashes = 1;
    kit_init(&k, fx, ST_MODE_RESIDENT, "mark('pid')\ntime.sleep(1000)\n");
    k.cmd.startup_us = ST_HOUR;
    kit_job(&k, &j, "j", "0");
    kit_start(&k, &j);
    pid = fx_wait_number(fx, fx_path(fx, "pid"));
    st_exec_drain(fx->x);
    fx_wait(fx, &j);
    kit_given_back(&j);
    while (fx_alive(pid))
        uv_run(&fx->loop, UV_RUN_ONCE);
    assert_int_equal(h.n, 0);
    fx_job_clear(&j);
    kit_clear(&k);
}

/* A request that its child had not read has nobody to go to. */
static void what_a_child_leaves_unread_while_draining_is_given_back(void **state)
{
    struct fx *fx = *state;
    struct kit k;
    struct fx_job a, b;

    kit_init(&k, fx, ST_MODE_RESIDENT,
             "ready()\nline = b''\n"
             "while not line.endswith(b'\\n'): line += os.read(0, 1)\n"
             "mark('read'); await_file('go')\n"
             "say(task_id=json.loads(line)['task_id'], result=1); os._exit(0)\n");
    kit_job(&k, &a, "a", "0");
    kit_job(&k, &b, "b", "0");
    kit_start(&k, &a);
    kit_start(&k, &b);
    fx_wait_number(fx, fx_path(fx, "read"));
    st_exec_drain(fx->x);
    touch(fx, "go");
    fx_wait(fx, &a);
    fx_wait(fx, &b);
    kit_ok(&a, "1");
    kit_given_back(&b);
    fx_job_clear(&a);
    fx_job_clear(&b);
    kit_clear(&k);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(a_child_that_dies_fails_what_it_had),
        FX_TEST(answers_given_before_the_end_count),
        FX_TEST(a_last_answer_needs_no_newline),
        FX_TEST(an_answer_that_breaks_off_is_none),
        FX_TEST(a_child_that_crashed_is_started_again),
        FX_TEST(nobody_has_to_ask_for_it),
        FX_TEST(children_that_keep_crashing_are_given_up_for_a_while),
        FX_TEST(a_child_that_never_gets_ready_is_a_crash),
        FX_TEST(a_child_may_say_that_it_cannot_start),
        FX_TEST(so_is_a_program_that_is_not_there),
        FX_TEST(a_parked_crew_stays_down_until_it_is_configured_again),
        FX_TEST(an_idle_child_may_go),
        FX_TEST(a_child_that_never_reads_is_a_crash_however_it_exits),
        FX_TEST(also_if_its_only_job_was_its_last),
        FX_TEST(also_if_it_closes_its_stdin_first),
        FX_TEST(a_spare_child_that_does_not_stay_is_a_crash),
        FX_TEST(one_that_answers_and_goes_is_none),
        FX_TEST(a_child_that_closes_its_stdin_is_replaced),
        FX_TEST(a_child_that_closes_its_stdout_is_replaced),
        FX_TEST(what_a_child_leaves_behind_goes_with_it),
        FX_TEST(and_only_that),
        FX_TEST(a_dead_minder_is_no_crash_of_the_child),
        FX_TEST(a_job_that_takes_too_long_takes_its_child_along),
        FX_TEST(what_is_answered_in_the_grace_counts),
        FX_TEST(a_child_that_ignores_term_is_killed),
        FX_TEST(a_child_that_understands_it_is_asked_to_cancel),
        FX_TEST(a_child_that_does_not_cancel_is_stopped_after_the_grace),
        FX_TEST(an_abort_stops_a_child_that_cannot_cancel),
        FX_TEST(kill_does_not_wait_for_the_grace),
        FX_TEST(one_that_waits_is_simply_not_started),
        FX_TEST(waiting_is_no_part_of_the_timeout),
        FX_TEST(a_child_is_replaced_after_so_many_jobs),
        FX_TEST(it_finishes_what_it_has),
        FX_TEST(a_child_is_replaced_when_it_is_old),
        FX_TEST(a_child_is_replaced_when_it_has_grown),
        FX_TEST(a_child_that_has_nothing_to_do_is_replaced_too),
        FX_TEST(a_retired_child_that_does_not_go_is_stopped),
        FX_TEST(a_retired_child_that_goes_on_printing_is_stopped),
        FX_TEST(another_configuration_needs_other_children),
        FX_TEST(children_of_a_type_that_is_gone_go),
        FX_TEST(close_stops_the_children),
        FX_TEST(a_drained_crew_finishes_what_it_has_and_nothing_else),
        FX_TEST(a_child_that_is_not_ready_is_not_waited_for),
        FX_TEST(what_a_child_leaves_unread_while_draining_is_given_back),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
