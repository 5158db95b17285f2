/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sqlite_file.c - the file itself: whose it is, who may use it, versions, and what survives.
 */
#include "sqlite_kit.h"

#include <grp.h>
#include <signal.h>

/* ---- whose file ------------------------------------------------------------------------- */

static void the_file_is_its_owners_alone(void **state)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    struct st_store *s = kit_open(1000);
    char path[128];
    struct stat sb;

    (void)state;
    OK(kit_add(s, "a", NULL));
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s%s", kit_path, ends[i]);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0600);
    }
    st_store_close(s);
}

static void a_file_that_is_not_sqlite_is_refused_and_left_alone(void **state)
{
    static const char text[] = "Dear diary, this is not a database, and it is longer than a header.....";
    char back[sizeof(text)] = "";
    FILE *f;

    (void)state;
    kit_write(kit_path, text, sizeof(text));
    kit_refused(NULL, STINT_ESTORE, "not a database");
    f = fopen(kit_path, "r");
    assert_non_null(f);
    assert_int_equal(fread(back, 1, sizeof(back), f), sizeof(text));
    fclose(f);
    assert_memory_equal(back, text, sizeof(text));
}

static void a_sqlite_file_of_another_program_is_refused_and_left_alone(void **state)
{
    sqlite3 *db = kit_raw();
    sqlite3_stmt *st;

    (void)state;
    kit_exec(db, "CREATE TABLE diary(day, text)");
    sqlite3_close(db);
    kit_refused(NULL, STINT_ESTORE, "another program");
    db = kit_raw();
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA journal_mode", -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    assert_string_equal(sqlite3_column_text(st, 0), "delete"); /* not even that was changed */
    sqlite3_finalize(st);
    assert_int_equal(kit_int(db, "SELECT count(*) FROM sqlite_schema"), 1);
    sqlite3_close(db);
}

static void an_empty_file_becomes_a_store(void **state)
{
    struct st_store *s;

    (void)state;
    kit_write(kit_path, "", 0);
    s = kit_open(1000);
    OK(kit_add(s, "a", NULL));
    st_store_close(s);
}

static void no_store_is_made_where_none_is_wanted(void **state)
{
    const struct st_store_open opt = {.no_create = true};

    (void)state;
    kit_refused(&opt, STINT_ESTORE, "there is no store");
    assert_int_not_equal(access(kit_path, F_OK), 0);
}

static void a_directory_is_no_store(void **state)
{
    (void)state;
    assert_int_equal(mkdir(kit_path, 0700), 0);
    kit_refused(NULL, STINT_ESTORE, "not a file");
}

/* A worker waits for EAGAIN to pass: the directory may be on a disk that is yet to be mounted. */
static void a_missing_directory_is_named_and_may_still_come(void **state)
{
    const struct st_store_open opt = {.no_create = true};
    char dir[80];

    (void)state;
    snprintf(dir, sizeof(dir), "%s/none", kit_dir);
    snprintf(kit_path, sizeof(kit_path), "%s/stint.db", dir);
    kit_refused(NULL, STINT_EAGAIN, dir);
    kit_refused(&opt, STINT_EAGAIN, dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    st_store_close(kit_open(1000));
}

static void a_link_to_nowhere_is_named_and_may_still_lead_somewhere(void **state)
{
    char target[80];

    (void)state;
    snprintf(target, sizeof(target), "%s/none/stint.db", kit_dir);
    assert_int_equal(symlink(target, kit_path), 0);
    kit_refused(NULL, STINT_EAGAIN, kit_path);
}

static void options_that_are_not_there_are_refused(void **state)
{
    struct st_store *s;
    stint_error err = {0};

    (void)state;
    assert_int_equal(st_store_open("sqlite:", NULL, &s, &err), STINT_EINVAL);
    assert_int_equal(st_store_open("sqlite::memory:", NULL, &s, &err), STINT_EINVAL);
    assert_int_equal(st_store_open("sqlite:x.db?sync=off", NULL, &s, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "sync=off"));
    assert_int_equal(st_store_open("mysql://x", NULL, &s, &err), STINT_EINVAL);
    assert_int_equal(st_store_open("stint.db", NULL, &s, &err), STINT_EINVAL);
    assert_true(err.remedy[0]);
}

/* Root may write anywhere, so somebody else tries. */
static int as_nobody(int (*fn)(void))
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (geteuid() == 0 && (setgroups(0, NULL) || setgid(65534) || setuid(65534)))
            _exit(77);
        _exit(fn());
    }
    return kit_join(pid);
}

static int try_open(void)
{
    struct st_store *s;
    stint_error err;

    return kit_try(NULL, &s, &err) == STINT_ESTORE && err.remedy[0] ? 0 : 1;
}

static void a_read_only_directory_is_refused_with_a_remedy(void **state)
{
    (void)state;
    assert_int_equal(chmod(kit_dir, 0555), 0);
    assert_int_equal(as_nobody(try_open), 0);
    assert_int_equal(chmod(kit_dir, 0755), 0);
}

static void a_read_only_file_is_refused_with_a_remedy(void **state)
{
    (void)state;
    st_store_close(kit_open(1000));
    assert_int_equal(chmod(kit_path, 0444), 0);
    assert_int_equal(chmod(kit_dir, 0777), 0);
    assert_int_equal(as_nobody(try_open), 0);
}

static int try_open_of_root(void)
{
    struct st_store *s;
    stint_error err;

    if (kit_try(NULL, &s, &err) != STINT_ESTORE || !strstr(err.message, kit_path) || !err.remedy[0])
        return 1;
    return strstr(err.message, "it belongs to root") && strstr(err.message, "0600") ? 0 : 2;
}

static void a_file_of_somebody_else_is_named_with_its_owner(void **state)
{
    (void)state;
    st_store_close(kit_open(1000));
    assert_int_equal(chmod(kit_dir, 0777), 0);
    if (geteuid() != 0)
        skip(); /* only root can make a file that belongs to somebody else */
    assert_int_equal(as_nobody(try_open_of_root), 0);
}

static void a_file_in_a_read_only_directory_is_refused_with_a_remedy(void **state)
{
    (void)state;
    st_store_close(kit_open(1000));
    assert_int_equal(chmod(kit_path, 0666), 0);
    assert_int_equal(chmod(kit_dir, 0555), 0);
    assert_int_equal(as_nobody(try_open), 0);
    assert_int_equal(chmod(kit_dir, 0755), 0);
}

static void a_file_that_was_deleted_in_use_takes_no_more_jobs(void **state)
{
    struct st_store *s = kit_open(1000);
    stint_error err = {0};

    (void)state;
    OK(kit_add(s, "a", NULL));
    assert_int_equal(unlink(kit_path), 0);
    assert_int_equal(kit_add(s, "b", &err), STINT_ESTORE);
    assert_non_null(strstr(err.message, "deleted"));
    st_store_close(s);
}

static void two_spellings_of_a_path_share_one_writer(void **state)
{
    struct st_store *a = kit_open(1000), *b;
    char path[160];

    (void)state;
    snprintf(path, sizeof(path), "%s/../%s/./stint.db", kit_dir, strrchr(kit_dir, '/') + 1);
    OK(st_store_sqlite_open(path, NULL, &b, NULL));
    assert_ptr_equal(st_sq_of(a)->w, st_sq_of(b)->w);
    st_store_close(a);
    OK(kit_add(b, "a", NULL));
    st_store_close(b);
}

/* ---- durability ------------------------------------------------------------------------- */

static void the_most_careful_handle_decides_for_all(void **state)
{
    struct st_store_about about;
    struct st_store *normal, *full;
    char url[128];

    (void)state;
    snprintf(url, sizeof(url), "%s?sync=normal", kit_path);
    OK(st_store_sqlite_open(url, NULL, &normal, NULL));
    OK(kit_add(normal, "a", NULL));
    assert_int_equal(kit_int(st_sq_of(normal)->w->c.db, "PRAGMA synchronous"), 1);
    st_store_about(normal, &about);
    assert_string_equal(about.durability, "wal, synchronous=normal");
    full = kit_open(1000);
    OK(kit_add(full, "b", NULL));
    assert_int_equal(kit_int(st_sq_of(full)->w->c.db, "PRAGMA synchronous"), 2);
    st_store_close(normal);
    st_store_close(full);
}

/* Adds jobs for ever and tells each one that was acknowledged. */
static void add_for_ever(int fd)
{
    struct st_store *s;
    char id[32];

    if (st_store_sqlite_open(kit_path, NULL, &s, NULL))
        _exit(1);
    for (int i = 0;; i++) {
        memset(id, 0, sizeof(id));
        snprintf(id, sizeof(id), "job-%d", i);
        if (kit_add(s, id, NULL) || write(fd, id, sizeof(id)) != sizeof(id))
            _exit(2);
    }
}

static void found_bad(void *arg, enum st_severity sev, const char *what, const char *remedy)
{
    (void)remedy;
    if (sev == ST_BAD) {
        print_error("%s\n", what);
        ++*(int *)arg;
    }
}

static void kill_9_in_mid_write_loses_nothing_acknowledged(void **state)
{
    struct st_store *s;
    char id[32], last[32] = "";
    int fds[2], bad = 0, seen = 0;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        add_for_ever(fds[1]);
    close(fds[1]);
    while (seen < 300 && read(fds[0], id, sizeof(id)) == sizeof(id))
        seen++;
    kill(pid, SIGKILL);
    while (read(fds[0], id, sizeof(id)) == sizeof(id)) { /* what it could still tell */
        memcpy(last, id, sizeof(id));
        seen++;
    }
    assert_int_equal(kit_join(pid), -1);
    close(fds[0]);
    assert_true(seen >= 300);
    s = kit_open(5000);
    for (int i = 0; i < seen; i++) {
        snprintf(id, sizeof(id), "job-%d", i);
        assert_true(kit_has(s, id));
    }
    OK(st_store_check(s, found_bad, &bad, NULL));
    assert_int_equal(bad, 0);
    st_store_close(s);
}

/* ---- many at once ----------------------------------------------------------------------- */

static int open_and_add(int i, int gate)
{
    struct st_store *s;
    stint_error err = {0};
    char id[16], byte;

    snprintf(id, sizeof(id), "p%d", i);
    if (read(gate, &byte, 1) != 0 || st_store_sqlite_open(kit_path, NULL, &s, &err) || kit_add(s, id, &err)) {
        print_error("%s (%s)\n", err.message, err.detail);
        return 1;
    }
    st_store_close(s);
    return 0;
}

static void eight_processes_open_a_fresh_file_at_once(void **state)
{
    pid_t pids[8];
    struct st_store *s;
    char id[16];
    int gate[2];

    (void)state;
    for (int round = 0; round < 5; round++) {
        unlink(kit_path);
        assert_int_equal(pipe(gate), 0);
        fflush(NULL);
        for (int i = 0; i < 8; i++) {
            pids[i] = fork();
            assert_true(pids[i] >= 0);
            if (pids[i] == 0) {
                close(gate[1]);
                _exit(open_and_add(i, gate[0]));
            }
        }
        close(gate[1]);
        close(gate[0]);
        for (int i = 0; i < 8; i++)
            assert_int_equal(kit_join(pids[i]), 0);
        s = kit_open(5000);
        for (int i = 0; i < 8; i++) {
            snprintf(id, sizeof(id), "p%d", i);
            assert_true(kit_has(s, id));
        }
        st_store_close(s);
    }
}

/* ---- versions --------------------------------------------------------------------------- */

static void a_newer_schema_is_refused(void **state)
{
    sqlite3 *db;

    (void)state;
    st_store_close(kit_open(1000));
    db = kit_raw();
    kit_exec(db, "PRAGMA user_version = 999");
    sqlite3_close(db);
    kit_refused(NULL, STINT_ESTORE, "999");
}

/* A list as a later release would have it. */
static const struct st_sq_migration later[] = {
    {1, NULL}, /* filled with the real one */
    {2, "ALTER TABLE job ADD COLUMN color TEXT; CREATE TABLE paint(color TEXT PRIMARY KEY)"},
    {3, "INSERT INTO paint VALUES ('red')"},
};

static stint_code migrate(int n, stint_error *err)
{
    struct st_sq_migration list[3];
    struct st_sq_conn c = {0};
    stint_code code;

    memcpy(list, later, sizeof(list));
    list[0] = st_sq_migrations[0];
    c.until_us = st_clock_mono_us() + 10 * SEC;
    code = st_sq_conn_open(&c, kit_path, err);
    if (!code)
        code = st_sq_schema_up(&c, list, n, err);
    st_sq_conn_close(&c);
    return code;
}

static void an_older_schema_is_brought_up_and_keeps_its_jobs(void **state)
{
    struct st_store *s = kit_open(1000);
    stint_error err = {0};
    sqlite3 *db;

    (void)state;
    OK(kit_add(s, "a", NULL));
    st_store_close(s);
    OK(migrate(3, &err));
    OK(migrate(3, &err)); /* once is enough */
    db = kit_raw();
    assert_int_equal(kit_int(db, "PRAGMA user_version"), 3);
    assert_int_equal(kit_int(db, "SELECT count(*) FROM paint"), 1);
    assert_int_equal(kit_int(db, "SELECT count(*) FROM job WHERE color IS NULL"), 1);
    sqlite3_close(db);
    assert_int_equal(migrate(2, &err), STINT_ESTORE); /* that program is too old now */
}

static void a_migration_that_fails_changes_nothing(void **state)
{
    const struct st_sq_migration list[] = {
        st_sq_migrations[0], {2, "CREATE TABLE paint(color)"}, {3, "INSERT INTO nowhere VALUES (1)"}};
    struct st_sq_conn c = {0};
    stint_error err = {0};
    sqlite3 *db;

    (void)state;
    st_store_close(kit_open(1000));
    OK(st_sq_conn_open(&c, kit_path, &err));
    assert_int_equal(st_sq_schema_up(&c, list, 3, &err), STINT_ESTORE);
    assert_non_null(strstr(err.message, "version 3"));
    st_sq_conn_close(&c);
    db = kit_raw();
    assert_int_equal(kit_int(db, "PRAGMA user_version"), 1);
    assert_int_equal(kit_int(db, "SELECT count(*) FROM sqlite_schema WHERE name = 'paint'"), 0);
    sqlite3_close(db);
    st_store_close(kit_open(1000));
}

static void several_processes_may_migrate_at_once(void **state)
{
    stint_error err = {0};
    pid_t pids[4];
    int gate[2];
    char byte;
    sqlite3 *db;

    (void)state;
    st_store_close(kit_open(1000));
    assert_int_equal(pipe(gate), 0);
    fflush(NULL);
    for (int i = 0; i < 4; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            close(gate[1]);
            _exit(read(gate[0], &byte, 1) == 0 && migrate(3, &err) == STINT_OK ? 0 : 1);
        }
    }
    close(gate[1]);
    close(gate[0]);
    for (int i = 0; i < 4; i++)
        assert_int_equal(kit_join(pids[i]), 0);
    db = kit_raw();
    assert_int_equal(kit_int(db, "SELECT count(*) FROM paint"), 1);
    sqlite3_close(db);
}

static void a_store_opened_only_to_look_is_migrated_by_the_next_one(void **state)
{
    const struct st_store_open look = {.no_migrate = true};
    struct st_store *a, *b;
    struct st_schema v;
    stint_error err;

    (void)state;
    OK(kit_try(&look, &a, &err));
    OK(st_store_schema(a, false, &v, NULL));
    assert_int_equal(v.have, 0);
    assert_int_equal(v.want, ST_SQ_VERSION);
    b = kit_open(1000); /* shares the writer */
    OK(kit_add(b, "a", NULL));
    OK(st_store_schema(a, false, &v, NULL));
    assert_int_equal(v.have, ST_SQ_VERSION);
    st_store_close(a);
    st_store_close(b);
}

/* ---- doctor
 * -----------------------------------------------------------------------------------------------
 */

struct finding {
    const char *text;
    int times;
};

static void look_for(void *arg, enum st_severity sev, const char *what, const char *remedy)
{
    struct finding *f = arg;

    f->times += sev != ST_FINE && strstr(what, f->text) && remedy[0];
}

static void doctor_says(struct st_store *s, const char *text)
{
    struct finding f = {text, 0};

    OK(st_store_check(s, look_for, &f, NULL));
    if (!f.times)
        fail_msg("the doctor did not say: %s", text);
}

static void the_doctor_sees_what_is_wrong(void **state)
{
    struct st_store *s;
    sqlite3 *db;
    char url[128];

    (void)state;
    snprintf(url, sizeof(url), "%s?sync=normal", kit_path);
    OK(st_store_sqlite_open(url, NULL, &s, NULL));
    OK(kit_add(s, "a", NULL));
    doctor_says(s, "synchronous=normal");
    assert_int_equal(chmod(kit_path, 0644), 0);
    doctor_says(s, "can be read by others");
    db = kit_raw();
    kit_exec(db, "INSERT INTO ukey VALUES ('mail', 'k', 'nobody', 1, NULL)");
    doctor_says(s, "keys belong to no live job");
    kit_exec(db, "INSERT INTO payload(seq) VALUES (77)");
    doctor_says(s, "0 rows contradict themselves, 1 belong to nothing");
    kit_exec(db, "UPDATE job SET later = 1");
    doctor_says(s, "1 rows contradict themselves");
    kit_exec(db, "UPDATE count SET n = n + 1");
    doctor_says(s, "counts of 1");
    kit_exec(db, "DROP INDEX job_ended");
    doctor_says(s, "indexes are missing");
    sqlite3_close(db);
    st_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(the_file_is_its_owners_alone),
        KIT_TEST(a_file_that_is_not_sqlite_is_refused_and_left_alone),
        KIT_TEST(a_sqlite_file_of_another_program_is_refused_and_left_alone),
        KIT_TEST(an_empty_file_becomes_a_store),
        KIT_TEST(no_store_is_made_where_none_is_wanted),
        KIT_TEST(a_directory_is_no_store),
        KIT_TEST(a_missing_directory_is_named_and_may_still_come),
        KIT_TEST(a_link_to_nowhere_is_named_and_may_still_lead_somewhere),
        KIT_TEST(options_that_are_not_there_are_refused),
        KIT_TEST(a_read_only_directory_is_refused_with_a_remedy),
        KIT_TEST(a_read_only_file_is_refused_with_a_remedy),
        KIT_TEST(a_file_of_somebody_else_is_named_with_its_owner),
        KIT_TEST(a_file_in_a_read_only_directory_is_refused_with_a_remedy),
        KIT_TEST(a_file_that_was_deleted_in_use_takes_no_more_jobs),
        KIT_TEST(two_spellings_of_a_path_share_one_writer),
        KIT_TEST(the_most_careful_handle_decides_for_all),
        KIT_TEST(kill_9_in_mid_write_loses_nothing_acknowledged),
        KIT_TEST(eight_processes_open_a_fresh_file_at_once),
        KIT_TEST(a_newer_schema_is_refused),
        KIT_TEST(an_older_schema_is_brought_up_and_keeps_its_jobs),
        KIT_TEST(a_migration_that_fails_changes_nothing),
        KIT_TEST(several_processes_may_migrate_at_once),
        KIT_TEST(a_store_opened_only_to_look_is_migrated_by_the_next_one),
        KIT_TEST(the_doctor_sees_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
