/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_kit.h - what the tests of the SQLite store alone share: a directory, files, raw
 * connections.
 */
#ifndef ST_TESTS_STORE_SQLITE_KIT_H
#define ST_TESTS_STORE_SQLITE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/sqlite_int.h"

#define SEC      ST_SEC
#define T0       ((int64_t)1700000000 * ST_SEC)
#define S(text)  st_slice_cstr(text)
#define OK(call) assert_int_equal((call), STINT_OK)

static char kit_dir[64];
static char kit_path[96]; /* of the store */

/* cmocka's setup and teardown: a fresh directory for each test. */
static inline int kit_setup(void **state)
{
    (void)state;
    strcpy(kit_dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/stint-test-XXXXXX" : "/tmp/stint-test-XXXXXX");
    assert_non_null(mkdtemp(kit_dir));
    snprintf(kit_path, sizeof(kit_path), "%s/stint.db", kit_dir);
    return 0;
}

static inline int kit_teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", kit_dir);
    return system(command);
}

#define KIT_TEST(fn) cmocka_unit_test_setup_teardown(fn, kit_setup, kit_teardown)

static inline stint_code kit_try(const struct st_store_open *opt, struct st_store **s, stint_error *err)
{
    memset(err, 0, sizeof(*err));
    return st_store_sqlite_open(kit_path, opt, s, err);
}

static inline struct st_store *kit_open(int timeout_ms)
{
    struct st_store_open opt = {.timeout_ms = timeout_ms};
    struct st_store *s;
    stint_error err;

    if (kit_try(&opt, &s, &err))
        fail_msg("cannot open %s: %s", kit_path, err.message);
    return s;
}

/* Opening fails, with this text in the message and some remedy. */
static inline void kit_refused(const struct st_store_open *opt, stint_code code, const char *text)
{
    struct st_store *s;
    stint_error err;

    assert_int_equal(kit_try(opt, &s, &err), code);
    assert_null(s);
    if (!strstr(err.message, text))
        fail_msg("\"%s\" is not in \"%s\"", text, err.message);
    assert_true(err.remedy[0]);
}

static inline stint_code kit_add(struct st_store *s, const char *id, stint_error *err)
{
    struct st_new_job j = {.id = S(id),
                           .type = S("mail"),
                           .queue = S("default"),
                           .payload = S("{}"),
                           .max_attempts = -1,
                           .timeout_us = -1};
    struct st_enqueued out;

    return st_store_enqueue(s, T0, &j, 1, &out, err);
}

/* Adds n jobs in batches; ids are prefix-0, prefix-1, ... */
static inline void kit_fill(struct st_store *s, const char *prefix, const char *queue, const char *type, size_t n,
                            int64_t due)
{
    static struct st_new_job jobs[500];
    static struct st_enqueued out[500];
    static char ids[500][48];
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        snprintf(ids[k], sizeof(ids[k]), "%s-%zu", prefix, i);
        jobs[k] = (struct st_new_job){.id = S(ids[k]),
                                      .type = S(type),
                                      .queue = S(queue),
                                      .payload = S("{}"),
                                      .due_us = due,
                                      .max_attempts = -1,
                                      .timeout_us = -1};
        if (++k == 500 || i + 1 == n) {
            OK(st_store_enqueue(s, T0, jobs, k, out, NULL));
            k = 0;
        }
    }
}

static inline bool kit_has(struct st_store *s, const char *id)
{
    struct st_job_info i;

    if (st_store_get(s, T0, S(id), &i, NULL))
        return false;
    st_job_info_clear(&i);
    return true;
}

/* A connection beside the store's own. */
static inline sqlite3 *kit_raw(void)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(kit_path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

static inline void kit_exec(sqlite3 *db, const char *sql)
{
    char *message = NULL;

    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
}

static inline int64_t kit_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *st;
    int64_t v;

    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    v = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return v;
}

static inline void kit_write(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline int kit_join(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
