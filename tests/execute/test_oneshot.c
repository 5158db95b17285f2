/* SPDX-License-Identifier: Apache-2.0
 *
 * test_oneshot.c - what goes into a command and what comes out of it.
 */
#include "fixture.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "execute/command.h"

/* ---- the result ------------------------------------------------------------------ */

static void check_ok(const struct fx_job *j, const char *result)
{
    if (!j->ran.ok)
        fail_msg("failed: %s", j->ran.message ? j->ran.message : "(no message)");
    if (!result) {
        assert_null(j->ran.result);
        return;
    }
    assert_non_null(j->ran.result);
    assert_string_equal(j->ran.result, result);
    assert_int_equal(j->ran.result_len, strlen(result));
}

static void check_failed(const struct fx_job *j, enum st_kind kind, const char *message)
{
    assert_false(j->ran.ok);
    assert_string_equal(st_kind_name(j->ran.kind), st_kind_name(kind));
    assert_non_null(j->ran.message);
    assert_string_equal(j->ran.message, message);
    assert_null(j->ran.result);
}

/* Replace argument n. */
static void set_arg(struct fx_job *j, int n, const char *text)
{
    free(j->argv[n]);
    j->argv[n] = strdup(text);
}

static void the_payload_comes_on_stdin_and_stdout_is_the_result(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "cat", "{\"a\": 1.10}");
    fx_run(*state, &j);
    check_ok(&j, "{\"a\": 1.10}");
    assert_int_equal(j.ran.exit_code, 0);
    assert_int_equal(j.ran.aborted, ST_ABORT_NOT);
    assert_int_equal(j.ran.retry_after_us, -1);
    assert_true(j.ran.max_rss_kb > 0);
    assert_null(j.ran.log);
    assert_null(j.ran.log_tail);
    fx_job_clear(&j);
}

static void an_empty_payload_is_an_empty_stdin(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "wc -c | tr -d ' '", "");
    fx_run(*state, &j);
    check_ok(&j, "0");
    fx_job_clear(&j);
}

static void a_payload_larger_than_a_pipe_arrives_whole(void **state)
{
    const size_t len = 1 << 20;
    char *payload = malloc(len);
    struct fx_job j;

    for (size_t i = 0; i < len; i++)
        payload[i] = (char)(i * 7 % 251);
    fx_job_sh(&j, "cat", "");
    fx_job_payload(&j, payload, len, NULL);
    fx_run(*state, &j);
    assert_true(j.ran.ok);
    assert_int_equal(j.ran.result_len, len);
    assert_memory_equal(j.ran.result, payload, len);
    free(payload);
    fx_job_clear(&j);
}

static void a_command_need_not_read_its_payload(void **state)
{
    char *payload = calloc(1, 1 << 20);
    struct fx_job j;

    fx_job_sh(&j, "echo done", "");
    fx_job_payload(&j, payload, 1 << 20, NULL);
    fx_run(*state, &j);
    check_ok(&j, "done");
    fx_job_clear(&j);

    fx_job_sh(&j, "exec <&-; sleep 0.05; echo closed", "");
    fx_job_payload(&j, payload, 1 << 20, NULL);
    fx_run(*state, &j);
    check_ok(&j, "closed");
    free(payload);
    fx_job_clear(&j);
}

static void a_command_may_close_its_stdout_early(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "echo early; exec >&- 2>&-; sleep 0.05; exit 0", "");
    fx_run(*state, &j);
    check_ok(&j, "early");
    fx_job_clear(&j);
}

static void exit_65_is_permanent_and_others_go_by_policy(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "echo bad address >&2; exit 65", "");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_PERMANENT, "exit status 65: bad address");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    assert_int_equal(j.ran.exit_code, 65);
    fx_job_clear(&j);

    fx_job_sh(&j, "exit 75", "");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_EXIT, "exit status 75");
    assert_int_equal(j.ran.advice, ST_BY_POLICY);
    fx_job_clear(&j);
}

static void a_command_that_kills_itself_is_killed(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "kill -9 $$", "");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_KILLED, "killed by signal 9 (SIGKILL)");
    assert_int_equal(j.ran.signal, 9);
    assert_int_equal(j.ran.exit_code, -1);
    fx_job_clear(&j);
}

static void an_envelope_is_opened(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "echo '{\"ok\":true,\"return\":{\"n\":1.50}}'", "");
    fx_run(*state, &j);
    check_ok(&j, "{\"n\":1.50}");
    fx_job_clear(&j);

    fx_job_sh(&j, "echo '{\"ok\":false,\"exception_class\":\"KeyError\",\"message\":\"x\"}'; exit 1", "");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_APP_ERROR, "KeyError: x");
    assert_int_equal(j.ran.exit_code, 1);
    fx_job_clear(&j);
}

/* ---- limits and logs ------------------------------------------------------------- */

static long own_rss_kb(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void a_result_over_the_limit_kills_the_command(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;
    long before;

    fx->opt.limits.result = 100000;
    assert_int_equal(st_exec_configure(fx->x, &fx->opt, NULL), STINT_OK);
    before = own_rss_kb();
    fx_job_sh(&j, "head -c 1073741824 /dev/zero; sleep 1000", "");
    fx_run(fx, &j);
    check_failed(&j, ST_KIND_RESULT_TOO_LARGE, "the result is larger than 100000 bytes");
    assert_int_equal(j.ran.signal, 9);
    assert_true(own_rss_kb() - before < 50 * 1024);
    fx_job_clear(&j);
}

static void a_result_of_just_the_limit_is_kept(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    fx->opt.limits.result = 5000;
    assert_int_equal(st_exec_configure(fx->x, &fx->opt, NULL), STINT_OK);
    fx_job_sh(&j, "head -c 5000 /dev/zero | tr '\\0' x", "");
    fx_run(fx, &j);
    assert_true(j.ran.ok);
    assert_int_equal(j.ran.result_len, 5000);
    fx_job_clear(&j);

    fx_job_sh(&j, "head -c 5001 /dev/zero | tr '\\0' x", "");
    fx_run(fx, &j);
    check_failed(&j, ST_KIND_RESULT_TOO_LARGE, "the result is larger than 5000 bytes");
    fx_job_clear(&j);
}

static void the_end_of_stderr_is_kept(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "echo one >&2; echo two >&2; echo result", "");
    fx_run(*state, &j);
    check_ok(&j, "result");
    assert_string_equal(j.ran.log_tail, "one\ntwo\n");
    assert_int_equal(j.ran.log_tail_len, 8);
    fx_job_clear(&j);
}

static void a_long_stderr_keeps_16_kib_and_says_that_it_was_cut(void **state)
{
    for (int odd = 0; odd < 2; odd++) { /* one of the two cuts a character */
        struct fx_job j;

        fx_job_py(&j,
                  "import sys\n"
                  "sys.stderr.write('\\u00e9' * 300000 + 'END' + 'X' * int(sys.stdin.read()))\n"
                  "sys.exit(1)",
                  odd ? "1" : "0");
        fx_run(*state, &j);
        assert_true(j.ran.log_tail_len <= 16384);
        assert_true(j.ran.log_tail_len > 16300);
        assert_int_equal(strlen(j.ran.log_tail), j.ran.log_tail_len);
        assert_true(st_utf8_valid(j.ran.log_tail, j.ran.log_tail_len));
        assert_memory_equal(j.ran.log_tail,
                            odd ? "[cut here: only the end of 600004 bytes]\n\xc3\xa9"
                                : "[cut here: only the end of 600003 bytes]\n\xc3\xa9",
                            43);
        assert_string_equal(j.ran.log_tail + j.ran.log_tail_len - 5, odd ? "\xa9"
                                                                           "ENDX"
                                                                         : "\xc3\xa9"
                                                                           "END");
        fx_job_clear(&j);
    }
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = calloc(1, 1 << 20);

    assert_non_null(f);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) < (1 << 20) - 1);
    fclose(f);
    return text;
}

static void a_log_file_has_both_streams_in_the_order_they_came(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;
    struct stat st;
    char want[400], *text;

    fx->opt.logs_dir = fx_path(fx, "logs");
    assert_int_equal(st_exec_configure(fx->x, &fx->opt, NULL), STINT_OK);
    fx_job_sh(&j,
              "echo a; echo b; echo x >&2; "
              "until [ \"$(tail -n1 $LOG)\" = x ]; do sleep 0.01; done; "
              "printf c; until [ \"$(tail -n1 $LOG)\" = c ]; do sleep 0.01; done; echo y >&2",
              "");
    snprintf(want, sizeof(want), "%s/logs/job-1-2-%lld.log", fx->dir, (long long)j.job->fence);
    char env[500], *envp[] = {env, NULL};
    snprintf(env, sizeof(env), "LOG=%s", want);
    j.cmd.env = envp;
    fx_run(fx, &j);
    check_ok(&j, "a\nb\nc");
    assert_string_equal(j.ran.log, want);
    assert_int_equal(stat(want, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    text = read_file(want);
    assert_string_equal(text, "STDOUT:\na\nb\nSTDERR:\nx\nSTDOUT:\nc\nSTDERR:\ny\n");
    free(text);
    fx_job_clear(&j);
}

static void each_stream_of_a_log_file_is_cut_at_its_limit(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;
    char *text;

    fx->opt.logs_dir = fx_path(fx, "logs");
    fx->opt.limits.output = 10;
    assert_int_equal(st_exec_configure(fx->x, &fx->opt, NULL), STINT_OK);
    fx_job_sh(&j, "echo 0123456789abcdef; exec >&-; sleep 0.05; echo err-0123456789 >&2", "");
    fx_run(fx, &j);
    check_ok(&j, "0123456789abcdef");
    assert_string_equal(j.ran.log_tail, "err-0123456789\n");
    text = read_file(j.ran.log);
    assert_string_equal(text, "STDOUT:\n0123456789\n[cut here: more than 10 bytes]\n"
                              "STDERR:\nerr-012345\n[cut here: more than 10 bytes]\n");
    free(text);
    fx_job_clear(&j);
}

static void a_log_directory_that_cannot_be_used_does_not_stop_the_job(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    fx->opt.logs_dir = "/proc/nothing/here";
    assert_int_equal(st_exec_configure(fx->x, &fx->opt, NULL), STINT_OK);
    fx_job_sh(&j, "echo fine", "");
    fx_run(fx, &j);
    check_ok(&j, "fine");
    assert_null(j.ran.log);
    fx_job_clear(&j);
}

static void an_id_with_any_bytes_makes_a_file_name(void **state)
{
    char id[ST_ID_MAX + 1], a[ST_JOB_FILE_MAX + 1], b[ST_JOB_FILE_MAX + 1];

    (void)state;
    assert_string_equal(st_job_file_name("a-b_C1", a), "a-b_C1");
    assert_null(strpbrk(st_job_file_name("../x", a), "./"));
    memset(id, '/', ST_ID_MAX);
    id[ST_ID_MAX] = '\0';
    st_job_file_name(id, a);
    assert_true(strlen(a) <= ST_JOB_FILE_MAX);
    assert_null(strchr(a, '/'));
    id[ST_ID_MAX - 1] = '.';
    st_job_file_name(id, b);
    assert_string_not_equal(a, b);
}

/* ---- payload by argument and file ------------------------------------------------ */

static void placeholders_are_filled_in_also_inside_an_argument(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "printf '%s|' \"$@\"", "{\"p\":1}");
    set_arg(&j, 3, "sh");
    set_arg(&j, 4, "{id}");
    set_arg(&j, 5, "n={attempt}:{id}:{other}{");
    set_arg(&j, 6, "x{payload}y{payload}");
    j.cmd.payload_by = ST_PAYLOAD_ARGUMENT;
    fx_run(*state, &j);
    check_ok(&j, "job-1|n=2:job-1:{other}{|x{\"p\":1}y{\"p\":1}|");
    fx_job_clear(&j);
}

static void a_payload_argument_without_a_placeholder_comes_last(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "printf '%s|' \"$@\"; wc -c | tr -d ' '", "p {id}");
    set_arg(&j, 3, "sh");
    j.cmd.payload_by = ST_PAYLOAD_ARGUMENT;
    fx_run(*state, &j);
    check_ok(&j, "p {id}|0");
    fx_job_clear(&j);
}

static void a_job_cannot_choose_the_program(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "true", "sh");
    set_arg(&j, 0, "{payload}");
    j.cmd.payload_by = ST_PAYLOAD_ARGUMENT;
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "cannot run {payload}: No such file or directory");
    fx_job_clear(&j);
}

static void a_payload_too_long_for_an_argument_is_refused(void **state)
{
    char *payload = malloc(131072);
    struct fx_job j;

    memset(payload, 'x', 131072);
    fx_job_sh(&j, "printf %s \"$1\" | wc -c | tr -d ' '", "");
    set_arg(&j, 3, "sh");
    j.cmd.payload_by = ST_PAYLOAD_ARGUMENT;
    fx_job_payload(&j, payload, 131071, NULL);
    fx_run(*state, &j);
    check_ok(&j, "131071");
    fx_job_clear(&j);

    fx_job_sh(&j, "true", "");
    j.cmd.payload_by = ST_PAYLOAD_ARGUMENT;
    fx_job_payload(&j, payload, 131072, NULL);
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_PERMANENT,
                 "the payload (131072 bytes) is too long for an argument (128 KiB); "
                 "use payload: stdin or payload: file for this type");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    fx_job_clear(&j);

    fx_job_sh(&j, "true", "");
    set_arg(&j, 3, "{payload}{payload}");
    j.cmd.payload_by = ST_PAYLOAD_ARGUMENT;
    fx_job_payload(&j, payload, 70000, NULL);
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_PERMANENT,
                 "argument 3 is too long with its placeholders filled in (128 KiB); "
                 "use payload: stdin or payload: file for this type");
    free(payload);
    fx_job_clear(&j);
}

static void a_payload_with_a_zero_byte_is_no_argument(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "true", "");
    j.cmd.payload_by = ST_PAYLOAD_ARGUMENT;
    fx_job_payload(&j, "a\0b", 3, NULL);
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_PERMANENT,
                 "the payload has a zero byte and cannot be an argument; "
                 "use payload: stdin or payload: file for this type");
    assert_int_equal(j.ran.advice, ST_PERMANENT);
    fx_job_clear(&j);
}

static void a_payload_file_is_ours_alone_and_gone_afterwards(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;
    char *path;

    setenv("TMPDIR", fx->dir, 1);
    fx_job_sh(&j, "stat -c %a \"$1\"; echo \"$1\"; cat \"$1\"", "the payload");
    set_arg(&j, 3, "sh");
    j.cmd.payload_by = ST_PAYLOAD_FILE;
    fx_run(fx, &j);
    unsetenv("TMPDIR");
    assert_true(j.ran.ok);
    assert_memory_equal(j.ran.result, "600\n", 4);
    path = j.ran.result + 4;
    assert_memory_equal(path, fx->dir, strlen(fx->dir));
    assert_non_null(strstr(path, "/stint-job-1-"));
    *strchr(path, '\n') = '\0';
    assert_string_equal(path + strlen(path) + 1, "the payload");
    assert_int_equal(access(path, F_OK), -1);
    fx_job_clear(&j);
}

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2; /* . and .. */
}

static void a_payload_file_goes_also_when_nothing_could_be_started(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    setenv("TMPDIR", fx->dir, 1);
    fx_job_sh(&j, "", "x");
    set_arg(&j, 0, "no-such-program");
    j.cmd.payload_by = ST_PAYLOAD_FILE;
    fx_run(fx, &j);
    unsetenv("TMPDIR");
    assert_int_equal(j.ran.kind, ST_KIND_NO_HANDLER);
    assert_int_equal(entries(fx->dir), 0);
    fx_job_clear(&j);
}

static void a_payload_file_that_cannot_be_made_is_a_failed_attempt(void **state)
{
    struct fx_job j;

    setenv("TMPDIR", "/no/such/dir", 1);
    fx_job_sh(&j, "true", "x");
    j.cmd.payload_by = ST_PAYLOAD_FILE;
    fx_run(*state, &j);
    unsetenv("TMPDIR");
    check_failed(&j, ST_KIND_INTERNAL, "cannot make a payload file in /no/such/dir: No such file or directory");
    fx_job_clear(&j);
}

static void a_payload_file_takes_its_placeholder(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "cat \"${1#--in=}\"; echo $#", "by file\n");
    set_arg(&j, 3, "sh");
    set_arg(&j, 4, "--in={payload_file}");
    j.cmd.payload_by = ST_PAYLOAD_FILE;
    fx_run(*state, &j);
    check_ok(&j, "by file\n1");
    fx_job_clear(&j);
}

static void a_payload_placeholder_must_agree_with_the_way_payloads_come(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "true", "");
    set_arg(&j, 3, "-f{payload_file}");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "the command of this type has {payload_file}, which needs payload: file");
    fx_job_clear(&j);

    fx_job_sh(&j, "true", "");
    set_arg(&j, 3, "{payload}");
    j.cmd.payload_by = ST_PAYLOAD_FILE;
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "the command of this type has {payload}, which needs payload: argument");
    fx_job_clear(&j);
}

/* ---- environment and descriptors ------------------------------------------------- */

static void check_env(struct fx *fx, struct fx_job *j, const char *want)
{
    fx_run(fx, j);
    check_ok(j, want);
    fx_job_clear(j);
}

static void clear_base_env(void)
{
    static const char *const names[] = {"HOME", "LANG", "TZ", "TMPDIR", "TRACEPARENT"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
}

#define SHOW_ENV                                                                                                       \
    "import os\nprint('\\n'.join(sorted(k+'='+v for k,v in os.environ.items() "                                        \
    "if k not in ('LC_CTYPE','PYTHONCOERCECLOCALE'))))"

static void a_command_sees_its_own_environment_and_nothing_else(void **state)
{
    struct fx_job j;
    char want[1000];

    clear_base_env();
    setenv("PATH", "/usr/bin:/bin", 1);
    setenv("LANG", "C.UTF-8", 1);
    setenv("SECRET", "1", 1);
    setenv("STINT_STORE", "sqlite:secret.db", 1);
    setenv("STINT_DEADLINE", "outer", 1);
    fx_job_py(&j, SHOW_ENV, "");
    j.job->policy.timeout_us = 0;
    snprintf(want, sizeof(want),
             "LANG=C.UTF-8\nPATH=/usr/bin:/bin\nSTINT_ATTEMPT=2\nSTINT_FENCE=%lld\n"
             "STINT_JOB_ID=job-1\nSTINT_QUEUE=mail.fast\nSTINT_TYPE=a.type",
             (long long)j.job->fence);
    check_env(*state, &j, want);
}

static void the_type_adds_variables_and_the_job_has_the_last_word(void **state)
{
    char *env[] = {"MINE=1", "PATH=/usr/bin:/bin:/mine", "STINT_JOB_ID=forged", "LANG=en", NULL};
    char *inherit[] = {"SHARED", "NOT_SET", "STINT_FENCE", NULL};
    struct fx_job j;
    char want[1000];

    clear_base_env();
    setenv("SHARED", "yes", 1);
    setenv("STINT_FENCE", "forged", 1);
    setenv("LANG", "C.UTF-8", 1);
    fx_job_py(&j, SHOW_ENV, "");
    j.job->policy.timeout_us = 0;
    j.cmd.env = env;
    j.cmd.inherit_env = inherit;
    snprintf(want, sizeof(want),
             "LANG=en\nMINE=1\nPATH=/usr/bin:/bin:/mine\nSHARED=yes\nSTINT_ATTEMPT=2\n"
             "STINT_FENCE=%lld\nSTINT_JOB_ID=job-1\nSTINT_QUEUE=mail.fast\nSTINT_TYPE=a.type",
             (long long)j.job->fence);
    check_env(*state, &j, want);
    unsetenv("STINT_FENCE");
}

static void a_type_may_inherit_everything(void **state)
{
    struct fx_job j;

    setenv("ODD_ONE", "a=b", 1);
    setenv("TRACEPARENT", "outer", 1);
    fx_job_sh(&j, "echo $ODD_ONE $STINT_JOB_ID ${TRACEPARENT-none} ${STINT_DEADLINE-none}", "");
    j.job->policy.timeout_us = 0;
    j.cmd.inherit_all = true;
    check_env(*state, &j, "a=b job-1 none none");
    unsetenv("TRACEPARENT");
}

static void the_path_has_a_default(void **state)
{
    char old[4096];
    struct fx_job j;

    snprintf(old, sizeof(old), "%s", getenv("PATH"));
    unsetenv("PATH");
    fx_job_sh(&j, "echo $PATH", "");
    check_env(*state, &j, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    setenv("PATH", old, 1);
}

static void the_deadline_is_now_and_the_timeout(void **state)
{
    struct fx_job j;
    int64_t before, after, deadline;

    fx_job_sh(&j, "printf %s $STINT_DEADLINE", "");
    j.job->policy.timeout_us = ST_HOUR;
    before = st_clock_real_us();
    fx_run(*state, &j);
    after = st_clock_real_us();
    assert_true(j.ran.ok);
    assert_int_equal(st_time_parse(st_slice_cstr(j.ran.result), &deadline, NULL), STINT_OK);
    assert_true(deadline >= before + ST_HOUR && deadline <= after + ST_HOUR);
    fx_job_clear(&j);
}

static void the_trace_goes_on_in_the_command(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "printf %s ${TRACEPARENT-none}", "");
    fx_job_payload(&j, "", 0, "{\"traceparent\":\"00-ab-cd-01\"}");
    check_env(*state, &j, "00-ab-cd-01");
    fx_job_sh(&j, "printf %s ${TRACEPARENT-none}", "");
    fx_job_payload(&j, "", 0, "{\"traceparent\":7}");
    check_env(*state, &j, "none");
    fx_job_sh(&j, "printf %s ${TRACEPARENT-none}${INJECTED-}", "");
    fx_job_payload(&j, "", 0, "{\"traceparent\":\"a\\u0000INJECTED=1\"}");
    check_env(*state, &j, "none");
}

static void no_descriptor_leaks_into_a_command(void **state)
{
    int leak = dup(0); /* not close-on-exec, as a careless library would leave it */
    struct fx_job j;

    fx_job_py(&j,
              "import os\n"
              "def is_open(fd):\n"
              "  try: os.fstat(fd)\n"
              "  except OSError: return False\n"
              "  return True\n"
              "print([fd for fd in range(1024) if is_open(fd)])",
              "");
    fx_run(*state, &j);
    check_ok(&j, "[0, 1, 2]");
    fx_job_clear(&j);
    close(leak);
}

static void signals_are_as_a_program_expects_them(void **state)
{
    sigset_t block, old;
    struct fx_job j;

    sigemptyset(&block);
    sigaddset(&block, SIGTERM);
    sigaddset(&block, SIGUSR1);
    sigprocmask(SIG_BLOCK, &block, &old);
    fx_job_sh(&j, "^Sig(Blk|Ign)", "");
    set_arg(&j, 0, "grep");
    set_arg(&j, 1, "-hE");
    set_arg(&j, 3, "/proc/self/status");
    fx_run(*state, &j);
    sigprocmask(SIG_SETMASK, &old, NULL);
    check_ok(&j, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000");
    fx_job_clear(&j);
}

static void a_command_leads_its_own_process_group(void **state)
{
    struct fx_job j;

    fx_job_py(&j, "import os; print(os.getpgrp() == os.getpid(), os.getsid(0) != os.getpid())", "");
    fx_run(*state, &j);
    check_ok(&j, "True True");
    fx_job_clear(&j);
}

/* ---- starting -------------------------------------------------------------------- */

static void a_command_runs_in_its_directory(void **state)
{
    struct fx *fx = *state;
    struct fx_job j;

    fx_job_sh(&j, "pwd -P", "");
    j.cmd.cwd = fx->dir;
    fx_run(fx, &j);
    check_ok(&j, fx->dir);
    fx_job_clear(&j);
}

static void a_program_that_is_not_there_is_named(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "", "");
    set_arg(&j, 0, "no-such-program");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "cannot run no-such-program: No such file or directory");
    assert_int_equal(j.ran.exit_code, -1);
    fx_job_clear(&j);

    fx_job_sh(&j, "", "");
    set_arg(&j, 0, "/etc/passwd");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "cannot run /etc/passwd: Permission denied");
    fx_job_clear(&j);
}

static void a_directory_that_is_not_there_is_named(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "true", "");
    j.cmd.cwd = "/no/such/dir";
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "cannot run sh in /no/such/dir: No such file or directory");
    fx_job_clear(&j);
}

static void a_program_is_looked_for_in_the_path_it_will_see(void **state)
{
    struct fx *fx = *state;
    char path[100], *env[] = {path, NULL};
    struct fx_job j;
    FILE *f = fopen(fx_path(fx, "my-tool"), "we");

    fputs("#!/bin/sh\necho found\n", f);
    fchmod(fileno(f), 0700);
    fclose(f);
    snprintf(path, sizeof(path), "PATH=/nowhere:%s", fx->dir);
    fx_job_sh(&j, "", "");
    set_arg(&j, 0, "my-tool");
    j.cmd.env = env;
    fx_run(fx, &j);
    check_ok(&j, "found");
    fx_job_clear(&j);
}

static void an_empty_command_is_a_failed_attempt(void **state)
{
    struct fx_job j;

    fx_job_sh(&j, "", "");
    set_arg(&j, 0, "");
    fx_run(*state, &j);
    check_failed(&j, ST_KIND_NO_HANDLER, "the command of type a.type is empty");
    fx_job_clear(&j);
}

static void a_start_without_descriptors_changes_nothing(void **state)
{
    struct fx *fx = *state;
    stint_code rc = STINT_EAGAIN;
    struct rlimit old, low;
    struct fx_job j;
    int fds, errors = 0;

    fx_job_sh(&j, "true", "");
    fx_run(fx, &j); /* with a minder, and all that a loop opens once */
    fx_job_clear(&j);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    fds = fx_open_fds();
    for (rlim_t more = 0; rc != STINT_OK && more < 20; more++) {
        stint_error err;

        fx_job_sh(&j, "cat", "x");
        low = (struct rlimit){(rlim_t)fds - 3 + more, old.rlim_max}; /* . and .. and the reader's */
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        rc = st_exec_run(fx->x, &j.cmd, j.job, fx_on_ran, &j, &j.run, &err);
        setrlimit(RLIMIT_NOFILE, &old);
        if (rc == STINT_OK)
            break;
        assert_int_equal(rc, STINT_EAGAIN);
        assert_null(j.run);
        errors++;
        for (int i = 0; i < 5; i++)
            uv_run(&fx->loop, UV_RUN_NOWAIT);
        assert_int_equal(j.done, 0);
        assert_int_equal(fx_open_fds(), fds);
        fx_job_clear(&j);
    }
    assert_true(errors >= 4);
    assert_int_equal(rc, STINT_OK);
    fx_wait(fx, &j);
    check_ok(&j, "x");
    fx_job_clear(&j);
}

static void an_executor_that_ran_nothing_closes(void **state)
{
    fx_reopen(*state);
}

static void a_minder_that_cannot_be_started_is_an_error_and_no_attempt(void **state)
{
    struct fx *fx = *state;
    struct st_run *run = (struct st_run *)1;
    stint_error err;
    struct fx_job j;

    fx->opt.self = "/no/such/program";
    fx_reopen(fx);
    fx_job_sh(&j, "true", "");
    assert_int_equal(st_exec_run(fx->x, &j.cmd, j.job, NULL, NULL, &run, &err), STINT_EAGAIN);
    assert_string_equal(err.message, "cannot start the minder: No such file or directory");
    assert_null(run);
    fx_job_clear(&j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(the_payload_comes_on_stdin_and_stdout_is_the_result),
        FX_TEST(an_empty_payload_is_an_empty_stdin),
        FX_TEST(a_payload_larger_than_a_pipe_arrives_whole),
        FX_TEST(a_command_need_not_read_its_payload),
        FX_TEST(a_command_may_close_its_stdout_early),
        FX_TEST(exit_65_is_permanent_and_others_go_by_policy),
        FX_TEST(a_command_that_kills_itself_is_killed),
        FX_TEST(an_envelope_is_opened),
        FX_TEST(a_result_over_the_limit_kills_the_command),
        FX_TEST(a_result_of_just_the_limit_is_kept),
        FX_TEST(the_end_of_stderr_is_kept),
        FX_TEST(a_long_stderr_keeps_16_kib_and_says_that_it_was_cut),
        FX_TEST(a_log_file_has_both_streams_in_the_order_they_came),
        FX_TEST(each_stream_of_a_log_file_is_cut_at_its_limit),
        FX_TEST(a_log_directory_that_cannot_be_used_does_not_stop_the_job),
        FX_TEST(an_id_with_any_bytes_makes_a_file_name),
        FX_TEST(placeholders_are_filled_in_also_inside_an_argument),
        FX_TEST(a_payload_argument_without_a_placeholder_comes_last),
        FX_TEST(a_job_cannot_choose_the_program),
        FX_TEST(a_payload_too_long_for_an_argument_is_refused),
        FX_TEST(a_payload_with_a_zero_byte_is_no_argument),
        FX_TEST(a_payload_file_is_ours_alone_and_gone_afterwards),
        FX_TEST(a_payload_file_goes_also_when_nothing_could_be_started),
        FX_TEST(a_payload_file_that_cannot_be_made_is_a_failed_attempt),
        FX_TEST(a_payload_file_takes_its_placeholder),
        FX_TEST(a_payload_placeholder_must_agree_with_the_way_payloads_come),
        FX_TEST(a_command_sees_its_own_environment_and_nothing_else),
        FX_TEST(the_type_adds_variables_and_the_job_has_the_last_word),
        FX_TEST(a_type_may_inherit_everything),
        FX_TEST(the_path_has_a_default),
        FX_TEST(the_deadline_is_now_and_the_timeout),
        FX_TEST(the_trace_goes_on_in_the_command),
        FX_TEST(no_descriptor_leaks_into_a_command),
        FX_TEST(signals_are_as_a_program_expects_them),
        FX_TEST(a_command_leads_its_own_process_group),
        FX_TEST(a_command_runs_in_its_directory),
        FX_TEST(a_program_that_is_not_there_is_named),
        FX_TEST(a_directory_that_is_not_there_is_named),
        FX_TEST(a_program_is_looked_for_in_the_path_it_will_see),
        FX_TEST(an_empty_command_is_a_failed_attempt),
        FX_TEST(a_start_without_descriptors_changes_nothing),
        FX_TEST(an_executor_that_ran_nothing_closes),
        FX_TEST(a_minder_that_cannot_be_started_is_an_error_and_no_attempt),
    };
    int rc;

    if (fx_is_minder(argc, argv, &rc))
        return rc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
