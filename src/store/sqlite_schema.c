/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_schema.c - the tables of the SQLite store and how they came to be.
 *
 * user_version counts the migrations that were applied; application_id says that the file is ours.
 * A new version is one more entry in the list: it runs in a transaction of its own, in which
 * user_version is read again, so that several processes may open an old file at once.
 *
 *     job       one narrow row per job; a change of state rewrites this row and nothing else
 *     payload   written once
 *     attempt   one row per ended attempt, except the successful one: its facts stay in the job
 *     lane      (queue, type) by number        policy   effective policies by number
 *     count     jobs per lane and bucket (enum st_shown), kept with every change
 *     ukey      who holds a unique key; outlives the job
 *
 * Columns of job that need a word:
 *     ready, later   1 while pending: known to be due, or not; else NULL
 *     lease_until, worker   NULL unless held (worker stays with an ended job: who ended it)
 *     finished, ended   when, and the state once more; NULL unless ended
 *     cancel    1 = asked to stop, 2 = was asked and has ended
 *     skips     times in a row it was lost before it had started
 * Each partial index covers only the jobs in that situation, so that no history slows a claim.  An
 * UPDATE pays for every index that names one of its columns: that is why ready and later, state and
 * ended are two, so that a claim and a success touch two indexes each.
 */
#include "store/sqlite_int.h"

#include <string.h>

static const char version_1[] =
    "CREATE TABLE lane("
    " id INTEGER PRIMARY KEY, queue TEXT NOT NULL, type TEXT NOT NULL, UNIQUE(queue, type));"
    "CREATE TABLE policy(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);"
    "CREATE TABLE paused(queue TEXT NOT NULL PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE count("
    " lane INTEGER NOT NULL, bucket INTEGER NOT NULL, n INTEGER NOT NULL,"
    " PRIMARY KEY(lane, bucket)) WITHOUT ROWID;"
    "CREATE TABLE job("
    " seq INTEGER PRIMARY KEY,"
    " id TEXT NOT NULL UNIQUE,"
    " lane INTEGER NOT NULL,"
    " state INTEGER NOT NULL,"
    " ready INTEGER,"
    " later INTEGER,"
    " priority INTEGER NOT NULL,"
    " due INTEGER NOT NULL,"
    " attempt INTEGER NOT NULL DEFAULT 0,"
    " fence INTEGER NOT NULL,"
    " skips INTEGER NOT NULL DEFAULT 0,"
    " cancel INTEGER NOT NULL DEFAULT 0,"
    " lease_until INTEGER,"
    " worker TEXT,"
    " policy INTEGER,"
    " max_attempts INTEGER,"
    " timeout INTEGER,"
    " umode INTEGER NOT NULL DEFAULT 0,"
    " key TEXT,"
    " created INTEGER NOT NULL,"
    " first_started INTEGER,"
    " started INTEGER,"
    " finished INTEGER,"
    " ended INTEGER,"
    " error_kind INTEGER,"
    " error TEXT,"
    " exit_code INTEGER,"
    " signal INTEGER,"
    " max_rss INTEGER,"
    " log TEXT,"
    " result_ref TEXT,"
    " progress BLOB,"
    " log_tail BLOB,"
    " result BLOB);"
    "CREATE INDEX job_ready ON job(lane, priority DESC, due, id) WHERE ready = 1;"
    "CREATE INDEX job_due ON job(due, lane) WHERE later = 1;"
    "CREATE INDEX job_lease ON job(lease_until) WHERE lease_until IS NOT NULL;"
    "CREATE INDEX job_cancel ON job(cancel) WHERE cancel = 1;"
    "CREATE INDEX job_ended ON job(ended, finished) WHERE ended IS NOT NULL;"
    "CREATE TABLE payload(seq INTEGER PRIMARY KEY, bytes BLOB, meta BLOB);"
    "CREATE TABLE attempt("
    " seq INTEGER NOT NULL, fence INTEGER NOT NULL, n INTEGER NOT NULL, worker TEXT,"
    " started INTEGER, ended INTEGER NOT NULL, outcome TEXT NOT NULL, kind INTEGER NOT NULL,"
    " message TEXT, exit_code INTEGER, signal INTEGER, max_rss INTEGER, log TEXT, log_tail BLOB,"
    " PRIMARY KEY(seq, fence)) WITHOUT ROWID;"
    "CREATE TABLE ukey("
    " type TEXT NOT NULL, key TEXT NOT NULL, job TEXT NOT NULL, mode INTEGER NOT NULL,"
    " until INTEGER, PRIMARY KEY(type, key)) WITHOUT ROWID;"
    "CREATE INDEX ukey_until ON ukey(until) WHERE until IS NOT NULL;"
    "CREATE TABLE worker("
    " id TEXT NOT NULL PRIMARY KEY, name TEXT, host TEXT, boot_id TEXT, pid INTEGER,"
    " pid_start INTEGER, slots INTEGER, running INTEGER, queues TEXT, types TEXT, healthy INTEGER,"
    " quiet INTEGER, note TEXT, started INTEGER, beat INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE leader("
    " one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, worker TEXT,"
    " until INTEGER NOT NULL);";

const struct st_sq_migration st_sq_migrations[] = {
    {1, version_1},
};
const int st_sq_n_migrations = (int)(sizeof(st_sq_migrations) / sizeof(st_sq_migrations[0]));

static stint_code not_ours(struct st_sq_conn *c, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s is a SQLite file of another program", sqlite3_db_filename(c->db, "main"));
    st_err_remedy(err, "name another file, for example sqlite:stint.db");
    return STINT_ESTORE;
}

static stint_code read_marks(struct st_sq_conn *c, int64_t *app, int64_t *version, int64_t *tables, stint_error *err)
{
    if (st_sq_query_int(c, "PRAGMA application_id", app, err) ||
        st_sq_query_int(c, "PRAGMA user_version", version, err))
        return err->code;
    return st_sq_query_int(c, "SELECT count(*) FROM sqlite_schema", tables, err);
}

/* In one transaction: another process may be making the tables right now. */
stint_code st_sq_schema_read(struct st_sq_conn *c, int *have, stint_error *err)
{
    const bool alone = sqlite3_get_autocommit(c->db);
    int64_t app = 0, version = 0, tables = 0;
    stint_code code;
    ST_SQ_GATE;

    *have = 0;
    if (alone && st_sq_exec(c, "BEGIN", err))
        return err->code;
    code = read_marks(c, &app, &version, &tables, err);
    if (alone && !sqlite3_get_autocommit(c->db))
        sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
    if (code)
        return code;
    if (app != ST_SQ_APP_ID && (app != 0 || version != 0 || tables != 0))
        return not_ours(c, err);
    *have = (int)version;
    return STINT_OK;
}

static stint_code too_new(struct st_sq_conn *c, int have, int want, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s has schema version %d, this program knows only up to %d",
            sqlite3_db_filename(c->db, "main"), have, want);
    st_err_remedy(err, "use a newer stint");
    return STINT_ESTORE;
}

/* One version further, in the transaction that is open. */
static stint_code migrate_one(struct st_sq_conn *c, const struct st_sq_migration *m, stint_error *err)
{
    char sql[96];

    if (st_sq_exec(c, m->sql, err)) {
        st_err_prefix(err, "migration to version %d", m->version);
        return err->code;
    }
    snprintf(sql, sizeof(sql), "PRAGMA application_id = %d; PRAGMA user_version = %d", ST_SQ_APP_ID, m->version);
    return st_sq_exec(c, sql, err);
}

stint_code st_sq_schema_up_tx(struct st_sq_conn *c, const struct st_sq_migration *list, int n, stint_error *err)
{
    int have;

    if (st_sq_schema_read(c, &have, err))
        return err->code;
    if (have > list[n - 1].version)
        return too_new(c, have, list[n - 1].version, err);
    for (int i = 0; i < n; i++)
        if (list[i].version > have && migrate_one(c, &list[i], err))
            return err->code;
    return STINT_OK;
}

stint_code st_sq_schema_up(struct st_sq_conn *c, const struct st_sq_migration *list, int n, stint_error *err)
{
    int have;

    if (st_sq_schema_read(c, &have, err))
        return err->code;
    if (have > list[n - 1].version)
        return too_new(c, have, list[n - 1].version, err);
    if (have == list[n - 1].version)
        return STINT_OK;
    if (st_sq_exec(c, "BEGIN IMMEDIATE", err))
        return err->code;
    if (st_sq_schema_up_tx(c, list, n, err) || st_sq_exec(c, "COMMIT", err)) {
        if (!sqlite3_get_autocommit(c->db))
            sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
        return err->code;
    }
    st_log(ST_LOG_INFO, "store.migrated", ST_F("path", sqlite3_db_filename(c->db, "main")), ST_FI("from", have),
           ST_FI("to", list[n - 1].version));
    return STINT_OK;
}
