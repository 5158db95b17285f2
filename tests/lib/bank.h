/* SPDX-License-Identifier: Apache-2.0
 *
 * bank.h - an application whose table, `ledger`, lives in the store's file.
 */
#ifndef TESTS_LIB_BANK_H
#define TESTS_LIB_BANK_H

#include <sqlite3.h>

#include "kit.h"
#include "stint_sqlite.h"

struct bank {
    struct kit k;
    sqlite3 *db; /* the application's own connection */
    stint_worker *w;
    stint_enqueued job;
    stint_code (*act)(stint_attempt *a, struct bank *b);
    stint_tx_fn in_tx;
    stint_code answer; /* of prepare or finish_with */
    stint_error err;
    atomic_int runs, completed, lost, renewed, go;
};

static inline void run_sql(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

static inline sqlite3 *open_db(const struct kit *k)
{
    char path[96];
    sqlite3 *db;

    snprintf(path, sizeof(path), "%s/stint.db", k->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

static inline int rows(struct bank *b, const char *sql)
{
    sqlite3_stmt *st;
    int n;

    assert_int_equal(sqlite3_prepare_v2(b->db, sql, -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    n = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    return n;
}

static inline int ledger(struct bank *b)
{
    return rows(b, "SELECT count(*) FROM ledger");
}

static inline void complain(void *arg, enum st_severity sev, const char *what, const char *remedy)
{
    (void)remedy;
    if (sev == ST_BAD) {
        print_error("store: %s\n", what);
        (*(int *)arg)++;
    }
}

/* The store's own checks, its counts among them. */
static inline void check_store(struct bank *b)
{
    int bad = 0;

    OK(st_store_check(b->k.store, complain, &bad, NULL));
    assert_int_equal(bad, 0);
}

static inline stint_code handle(stint_attempt *a, void *arg)
{
    struct bank *b = arg;

    atomic_fetch_add(&b->runs, 1);
    return b->act(a, b);
}

static inline void on_event(void *arg, const stint_event *e)
{
    struct bank *b = arg;

    if (e->kind == STINT_EVENT_ATTEMPT_COMPLETED)
        atomic_fetch_add(&b->completed, 1);
    if (e->kind == STINT_EVENT_ATTEMPT_ALREADY_COMPLETED || e->kind == STINT_EVENT_ATTEMPT_TAKEN_BY_ANOTHER_WORKER)
        atomic_fetch_add(&b->lost, 1);
    if (e->kind == STINT_EVENT_ATTEMPT_LEASE_RENEWED)
        atomic_fetch_add(&b->renewed, 1);
}

static inline void bank_open(struct bank *b, int once, stint_code (*act)(stint_attempt *a, struct bank *b))
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;

    memset(b, 0, sizeof(*b));
    kit_open(&b->k);
    b->act = act;
    opt.once = once;
    opt.event = on_event;
    opt.event_arg = b;
    b->w = kit_worker(&b->k, &opt);
    kit_handle(b->w, "t", handle, b);
    b->db = open_db(&b->k);
    run_sql(b->db, "CREATE TABLE ledger (job TEXT, amount INTEGER)");
    kit_add(&b->k, "t", "{}", &b->job);
}

static inline void bank_close(struct bank *b)
{
    check_store(b);
    sqlite3_close(b->db);
    stint_worker_free(b->w);
    kit_close(&b->k);
}

#endif
