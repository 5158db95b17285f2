/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_id.c - ids ascend and differ, file names are safe, processes are told apart.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/id.h"
#include "unit.h"

#define T0 (1735732800 * ST_SEC) /* 2025-01-01T12:00:00Z */

/* --- UUIDv7 --- */

static void an_id_has_the_form_of_a_uuid_of_version_7(void **state)
{
    char id[ST_UUID_LEN + 1];

    (void)state;
    st_id_new(id);
    assert_int_equal(strlen(id), ST_UUID_LEN);
    assert_int_equal(strspn(id, "0123456789abcdef-"), ST_UUID_LEN);
    for (int i = 0; i < ST_UUID_LEN; i++)
        assert_int_equal(id[i] == '-', i == 8 || i == 13 || i == 18 || i == 23);
    assert_int_equal(id[14], '7');
    assert_non_null(strchr("89ab", id[19]));
    assert_int_equal(st_id_check(st_slice_cstr(id), NULL), STINT_OK);
}

static void an_id_starts_with_the_time(void **state)
{
    int64_t far = 4102444800 * ST_SEC; /* later than every other time here */
    char id[ST_UUID_LEN + 1], want[16];

    (void)state;
    st_id_new_at(far + 5 * ST_MS + 999, id);
    snprintf(want, sizeof(want), "%08x-%04x", (unsigned)((far / ST_MS + 5) >> 16),
             (unsigned)((far / ST_MS + 5) & 0xffff));
    assert_memory_equal(id, want, 13);
}

/* More ids in one millisecond than the counter has room for, then a clock that steps back. */
static void ids_ascend_when_the_clock_stands_still_or_steps_back(void **state)
{
    char last[ST_UUID_LEN + 1], id[ST_UUID_LEN + 1];

    (void)state;
    st_id_new_at(T0, last);
    for (int i = 0; i < 600000; i++) {
        st_id_new_at(i < 400000 ? T0 : T0 - i * ST_SEC, id);
        assert_true(strcmp(last, id) < 0);
        memcpy(last, id, sizeof(id));
    }
    st_id_new_at(-1, id);
    assert_true(strcmp(last, id) < 0);
}

#define THREADS 4
#define IDS     20000

static char made[THREADS][IDS][ST_UUID_LEN + 1];

static void *make_ids(void *arg)
{
    char(*ids)[ST_UUID_LEN + 1] = arg;

    for (int i = 0; i < IDS; i++)
        st_id_new(ids[i]);
    return NULL;
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void threads_share_one_ascending_row(void **state)
{
    pthread_t t[THREADS];

    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, make_ids, made[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < THREADS; i++)
        for (int k = 1; k < IDS; k++)
            assert_true(strcmp(made[i][k - 1], made[i][k]) < 0);
    qsort(made, THREADS * IDS, ST_UUID_LEN + 1, compare_ids);
    for (int i = 1; i < THREADS * IDS; i++)
        assert_string_not_equal(made[0][0] + (size_t)(i - 1) * (ST_UUID_LEN + 1),
                                made[0][0] + (size_t)i * (ST_UUID_LEN + 1));
}

static void a_forked_child_makes_other_ids(void **state)
{
    char ours[ST_UUID_LEN + 1], theirs[ST_UUID_LEN + 1];
    int fds[2];
    pid_t pid;

    (void)state;
    st_id_new_at(T0, ours); /* there are random bytes to inherit */
    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        st_id_new_at(T0, theirs);
        _exit(write(fds[1], theirs, sizeof(theirs)) == sizeof(theirs) ? 0 : 1);
    }
    st_id_new_at(T0, ours);
    assert_int_equal(read(fds[0], theirs, sizeof(theirs)), sizeof(theirs));
    assert_string_not_equal(ours + 24, theirs + 24);
    waitpid(pid, NULL, 0);
    close(fds[0]);
    close(fds[1]);
}

/* --- names --- */

static void an_id_is_short_printable_utf8(void **state)
{
    char text[200];
    stint_error err;

    (void)state;
    memset(text, 'a', sizeof(text));
    assert_int_equal(st_id_check(LIT("a"), &err), STINT_OK);
    assert_int_equal(st_id_check(LIT("a b/../\xc3\xa4\xe2\x82\xac"), &err), STINT_OK);
    assert_int_equal(st_id_check(ST_SLICE(text, 128), &err), STINT_OK);
    assert_int_equal(st_id_check(ST_SLICE(text, 129), &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "129 bytes"));
    assert_int_equal(st_id_check(LIT(""), &err), STINT_EINVAL);
    assert_int_equal(st_id_check(ST_NONE, &err), STINT_EINVAL);
    assert_int_equal(st_id_check(LIT("a\0b"), &err), STINT_EINVAL);
    assert_int_equal(st_id_check(LIT("a\n"), &err), STINT_EINVAL);
    assert_int_equal(st_id_check(LIT("\x7f"), &err), STINT_EINVAL);
    assert_int_equal(st_id_check(LIT("\xc2\x85"), &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "control"));
    assert_int_equal(st_id_check(LIT("\xc2\xa0"), &err), STINT_OK);
    assert_int_equal(st_id_check(LIT("a\xff"), &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "UTF-8"));
}

static void file_names_hold_no_path(void **state)
{
    static const char *const t[][2] = {
        {"plain_ID-42", "plain_ID-42"}, {".", "%2e"},     {"..", "%2e%2e"},       {"a/b", "a%2fb"},
        {"../x", "%2e%2e%2fx"},         {"%2e", "%252e"}, {"\xc3\xa4", "%c3%a4"}, {"a b", "a%20b"},
    };
    char out[ST_ID_FILE_MAX + 1];

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        assert_string_equal(st_id_file_name(st_slice_cstr(t[i][0]), out), t[i][1]);
}

static void long_ids_give_names_that_file_systems_take(void **state)
{
    char text[ST_ID_MAX], out[ST_ID_FILE_MAX + 1], other[ST_ID_FILE_MAX + 1];

    (void)state;
    memset(text, 'a', sizeof(text));
    assert_int_equal(strlen(st_id_file_name(ST_SLICE(text, ST_ID_MAX), out)), ST_ID_MAX);
    for (size_t n = 1; n <= ST_ID_MAX; n++) {
        memset(text, '/', n);
        assert_true(strlen(st_id_file_name(ST_SLICE(text, n), out)) <= 150);
        assert_int_equal(strspn(out, "0123456789abcdef%-"), strlen(out));
        text[n - 1] = '.';
        st_id_file_name(ST_SLICE(text, n), other);
        assert_string_not_equal(out, other);
    }
    assert_int_equal(strlen(st_id_file_name(ST_NONE, out)), 66);
}

static void worker_ids_name_host_and_process(void **state)
{
    char a[ST_ID_MAX + 1], b[ST_ID_MAX + 1], want[ST_ID_MAX + 1];

    (void)state;
    snprintf(want, sizeof(want), "%s-%d-", st_host_name(), (int)getpid());
    st_worker_id_new(a);
    st_worker_id_new(b);
    assert_memory_equal(a, want, strlen(want));
    assert_int_equal(strlen(a), strlen(want) + 8);
    assert_string_not_equal(a, b);
    assert_int_equal(st_id_check(st_slice_cstr(a), NULL), STINT_OK);
}

static void the_boot_id_is_what_the_kernel_says(void **state)
{
    char want[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    (void)state;
    if (f) {
        assert_int_equal(fscanf(f, "%63s", want), 1);
        fclose(f);
    }
    assert_string_equal(st_boot_id(), want);
    assert_ptr_equal(st_boot_id(), st_boot_id());
}

/* --- randomness --- */

static void random_units_fill_their_range(void **state)
{
    int low = 0, high = 0;

    (void)state;
    for (int i = 0; i < 10000; i++) {
        double v = st_random_unit();

        assert_true(v >= 0 && v < 1);
        low += v < 0.25;
        high += v >= 0.75;
    }
    assert_in_range(low, 2000, 3000); /* 11 standard deviations */
    assert_in_range(high, 2000, 3000);
}

static void random_bytes_are_all_filled(void **state)
{
    unsigned char sum[1000] = {0}, p[1000];

    (void)state;
    for (int round = 0; round < 16; round++) {
        st_random(p, sizeof(p));
        for (size_t i = 0; i < sizeof(p); i++)
            sum[i] |= p[i];
    }
    for (size_t i = 0; i < sizeof(sum); i++)
        assert_int_not_equal(sum[i], 0);
}

/* --- processes --- */

/* A child that lives until the pipe is closed; ready when it has taken its name. */
static pid_t start_child(const char *name, int *hold)
{
    int to[2], from[2];
    char c;
    pid_t pid;

    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(to[1]);
        prctl(PR_SET_NAME, name);
        if (write(from[1], "r", 1) == 1 && read(to[0], &c, 1) == 0)
            _exit(0);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    assert_int_equal(read(from[0], &c, 1), 1);
    close(from[0]);
    *hold = to[1];
    return pid;
}

static void a_process_is_known_by_pid_and_start(void **state)
{
    uint64_t start = st_pid_start((int)getpid());

    (void)state;
    assert_true(start > 0);
    assert_true(st_pid_start((int)getpid()) == start);
    assert_false(st_pid_gone((int)getpid(), start));
    assert_true(st_pid_gone((int)getpid(), start + 1)); /* another had this pid */
    assert_true(st_pid_start(0) == 0);
    assert_true(st_pid_start(-1) == 0);
    assert_true(st_pid_start(INT32_MAX) == 0);
    assert_true(st_pid_gone(INT32_MAX, 1));
    assert_false(st_pid_gone(INT32_MAX, 0)); /* nobody knew its start */
}

static void a_zombie_is_gone_and_so_is_what_was_reaped(void **state)
{
    int hold;
    pid_t pid = start_child("child", &hold);
    uint64_t start = st_pid_start((int)pid);
    siginfo_t info;

    (void)state;
    assert_true(start >= st_pid_start((int)getpid()));
    assert_false(st_pid_gone((int)pid, start));
    close(hold);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_true(st_pid_start((int)pid) == 0);
    assert_true(st_pid_gone((int)pid, start));
    waitpid(pid, NULL, 0);
    assert_true(st_pid_start((int)pid) == 0);
    assert_true(st_pid_gone((int)pid, start));
}

static void a_process_may_be_called_anything(void **state)
{
    static const char *const names[] = {"a) Z 1 2 3", "((", ") X", "x\ny z", "1 2 3 4 5 6 7"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        uint64_t mine = st_pid_start((int)getpid());
        int hold;
        pid_t pid = start_child(names[i], &hold);
        uint64_t start = st_pid_start((int)pid);

        assert_true(start >= mine && start < mine + 1000000);
        close(hold);
        waitpid(pid, NULL, 0);
    }
}

static void a_process_that_cannot_be_looked_at_is_not_gone(void **state)
{
    uint64_t start = st_pid_start((int)getpid());
    struct rlimit was, none;
    bool gone;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    gone = st_pid_gone((int)getpid(), start);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_false(gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_id_has_the_form_of_a_uuid_of_version_7),
        cmocka_unit_test(ids_ascend_when_the_clock_stands_still_or_steps_back),
        cmocka_unit_test(threads_share_one_ascending_row),
        cmocka_unit_test(a_forked_child_makes_other_ids),
        cmocka_unit_test(an_id_starts_with_the_time),
        cmocka_unit_test(an_id_is_short_printable_utf8),
        cmocka_unit_test(file_names_hold_no_path),
        cmocka_unit_test(long_ids_give_names_that_file_systems_take),
        cmocka_unit_test(worker_ids_name_host_and_process),
        cmocka_unit_test(the_boot_id_is_what_the_kernel_says),
        cmocka_unit_test(random_units_fill_their_range),
        cmocka_unit_test(random_bytes_are_all_filled),
        cmocka_unit_test(a_process_is_known_by_pid_and_start),
        cmocka_unit_test(a_zombie_is_gone_and_so_is_what_was_reaped),
        cmocka_unit_test(a_process_may_be_called_anything),
        cmocka_unit_test(a_process_that_cannot_be_looked_at_is_not_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
