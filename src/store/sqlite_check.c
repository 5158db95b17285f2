/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_check.c - what `doctor` asks a SQLite store, and what it says about itself.
 *
 * Thread: the handle's, on its own read connection.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define WAL_LARGE  (256ll << 20)
#define FREE_SMALL (256ull << 20)

struct check {
    struct st_sq *s;
    struct st_sq_conn *c;
    st_finding_fn found;
    void *arg;
};

static void say(const struct check *k, enum st_severity sev, const char *remedy, const char *fmt, ...) ST_PRINTF(4, 5);

static void say(const struct check *k, enum st_severity sev, const char *remedy, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    k->found(k->arg, sev, text, remedy);
}

static stint_code check_schema(const struct check *k, stint_error *err)
{
    int have;

    if (st_sq_schema_read(k->c, &have, err))
        return err->code;
    if (have == ST_SQ_VERSION)
        say(k, ST_FINE, "", "schema version %d", have);
    else
        say(k, ST_BAD, have < ST_SQ_VERSION ? "run `stint migrate up`" : "use a newer stint",
            "schema version %d, this program wants %d", have, ST_SQ_VERSION);
    return STINT_OK;
}

static stint_code check_indexes(const struct check *k, stint_error *err)
{
    int64_t n;

    if (st_sq_query_int(k->c,
                        "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name IN"
                        " ('job_ready','job_due','job_lease','job_cancel','job_ended','ukey_until')",
                        &n, err))
        return err->code;
    if (n == 6)
        say(k, ST_FINE, "", "all indexes are there");
    else
        say(k, ST_BAD, "restore a backup: somebody has changed the tables", "%d indexes are missing", (int)(6 - n));
    return STINT_OK;
}

static stint_code check_integrity(const struct check *k, stint_error *err)
{
    sqlite3_stmt *st = NULL;
    struct st_slice answer;

    if (sqlite3_prepare_v2(k->c->db, "PRAGMA quick_check(1)", -1, &st, NULL) != SQLITE_OK ||
        sqlite3_step(st) != SQLITE_ROW) {
        sqlite3_finalize(st);
        return st_sq_fail(k->c->db, "quick_check", err);
    }
    answer = col_slice(st, 0);
    if (st_slice_is(answer, "ok"))
        say(k, ST_FINE, "", "the file is sound");
    else
        say(k, ST_BAD, "restore a backup; `sqlite3 FILE .recover` may save the rest", "the file is damaged: %.*s",
            (int)answer.len, answer.p);
    sqlite3_finalize(st);
    return STINT_OK;
}

/* Every lane and bucket whose count is not what the jobs say. */
#define COUNTS_WRONG                                                                                                   \
    "SELECT count(*) FROM (SELECT lane, bucket, sum(n) FROM ("                                                         \
    "SELECT lane, CASE state WHEN 0 THEN 0 WHEN 1 THEN CASE WHEN ready = 1 THEN 2"                                     \
    " WHEN attempt > 0 THEN 3 ELSE 1 END ELSE state + 2 END AS bucket, 1 AS n FROM job"                                \
    " UNION ALL SELECT lane, bucket, -n FROM count) GROUP BY lane, bucket HAVING sum(n) <> 0)"

static stint_code check_counts(const struct check *k, stint_error *err)
{
    int64_t wrong;

    if (st_sq_query_int(k->c, COUNTS_WRONG, &wrong, err))
        return err->code;
    if (!wrong)
        say(k, ST_FINE, "", "the counts are right");
    else
        say(k, ST_BAD, "somebody has written to the tables directly; restore a backup",
            "the counts of %lld (queue, type, state) are wrong", (long long)wrong);
    return STINT_OK;
}

/* Columns that must go together, as sqlite_schema.c has them; and what should have gone with its
 * job. */
#define ROWS_WRONG                                                                                                     \
    "SELECT count(*) FROM job WHERE (state >= 4) <> (ended IS NOT NULL) OR ended <> state"                             \
    " OR (ended IS NULL) <> (finished IS NULL)"                                                                        \
    " OR (state IN (2, 3)) <> (lease_until IS NOT NULL)"                                                               \
    " OR (state = 1) <> (coalesce(ready, later) IS NOT NULL) OR (ready = 1 AND later = 1)"                             \
    " OR (cancel = 1 AND lease_until IS NULL)"
#define ROWS_ORPHANED                                                                                                  \
    "SELECT (SELECT count(*) FROM payload WHERE seq NOT IN (SELECT seq FROM job)) +"                                   \
    " (SELECT count(*) FROM attempt WHERE seq NOT IN (SELECT seq FROM job)) +"                                         \
    " (SELECT count(*) FROM job WHERE lane NOT IN (SELECT id FROM lane))"

static stint_code check_rows(const struct check *k, stint_error *err)
{
    int64_t wrong, orphans;

    if (st_sq_query_int(k->c, ROWS_WRONG, &wrong, err) || st_sq_query_int(k->c, ROWS_ORPHANED, &orphans, err))
        return err->code;
    if (!wrong && !orphans)
        say(k, ST_FINE, "", "every job's row makes sense");
    else
        say(k, ST_BAD, "somebody has written to the tables directly; restore a backup",
            "%lld rows contradict themselves, %lld belong to nothing", (long long)wrong, (long long)orphans);
    return STINT_OK;
}

static stint_code check_keys(const struct check *k, stint_error *err)
{
    int64_t n;

    if (st_sq_query_int(k->c,
                        "SELECT count(*) FROM ukey u WHERE mode = 1 AND NOT EXISTS"
                        " (SELECT 1 FROM job j WHERE j.id = u.job AND j.finished IS NULL)",
                        &n, err))
        return err->code;
    if (!n)
        say(k, ST_FINE, "", "every active key has its job");
    else
        say(k, ST_BAD, "somebody has written to the tables directly; restore a backup",
            "%lld active keys belong to no live job", (long long)n);
    return STINT_OK;
}

static void check_disk(const struct check *k)
{
    const char *path = k->s->w->path, *net = st_sq_network_fs(path);
    unsigned long long left;
    struct statvfs fs;

    if (net)
        say(k, ST_WARNING, "put the file on a local disk", "%s is on a network filesystem (%s)", path, net);
    else
        say(k, ST_FINE, "", "%s is on a local filesystem", path);
    if (statvfs(path, &fs) != 0)
        return;
    left = (unsigned long long)fs.f_bavail * fs.f_frsize;
    say(k, left < FREE_SMALL ? ST_WARNING : ST_FINE, left < FREE_SMALL ? "free some space" : "",
        "%llu MiB free on its disk", left >> 20);
}

static void check_wal(const struct check *k)
{
    const char *wal = sqlite3_filename_wal(sqlite3_db_filename(k->c->db, "main"));
    struct stat sb;

    if (stat(wal, &sb) != 0)
        return;
    say(k, sb.st_size > WAL_LARGE ? ST_WARNING : ST_FINE,
        sb.st_size > WAL_LARGE ? "a program holds a read open for long: end it" : "",
        "the write-ahead log has %lld MiB", (long long)(sb.st_size >> 20));
}

static void check_durability(const struct check *k)
{
    if (k->s->sync_normal)
        say(k, ST_WARNING, "leave out ?sync=normal",
            "synchronous=normal: a power cut may undo the last jobs that were acknowledged");
    else
        say(k, ST_FINE, "", "synchronous=full: what is acknowledged survives a power cut");
}

static void check_mode(const struct check *k)
{
    struct stat sb;

    if (stat(k->s->w->path, &sb) != 0)
        return;
    if (sb.st_mode & 077)
        say(k, ST_WARNING, "chmod 600 it, unless that is meant", "%s can be read by others (mode %03o)", k->s->w->path,
            (unsigned)sb.st_mode & 0777);
    else
        say(k, ST_FINE, "", "only its owner can read it");
}

stint_code st_sq_check(struct st_store *store, st_finding_fn found, void *arg, stint_error *err)
{
    stint_error local;
    ST_SQ_GATE;
    struct st_sq *s = st_sq_of(store);
    struct check k = {.s = s, .c = st_sq_reader(s, &local), .found = found, .arg = arg};

    if (!k.c || check_schema(&k, &local) || check_integrity(&k, &local) || check_indexes(&k, &local) ||
        check_counts(&k, &local) || check_rows(&k, &local) || check_keys(&k, &local)) {
        if (err)
            *err = local;
        return local.code;
    }
    check_disk(&k);
    check_wal(&k);
    check_mode(&k);
    check_durability(&k);
    return STINT_OK;
}

void st_sq_about(struct st_store *store, struct st_store_about *out)
{
    const struct st_sq *s = st_sq_of(store);

    memset(out, 0, sizeof(*out));
    snprintf(out->kind, sizeof(out->kind), "sqlite");
    snprintf(out->where, sizeof(out->where), "%s", s->w->path);
    snprintf(out->durability, sizeof(out->durability), "wal, synchronous=%s", s->sync_normal ? "normal" : "full");
    snprintf(out->version, sizeof(out->version), "SQLite %s", sqlite3_libversion());
}

/* ---- schema ----------------------------------------------------------------------------- */

static stint_code up_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    (void)arg;
    return st_sq_schema_up_tx(&w->c, st_sq_migrations, st_sq_n_migrations, err);
}

stint_code st_sq_schema(struct st_store *store, bool up, struct st_schema *out, stint_error *err)
{
    struct st_sq *s = st_sq_of(store);
    struct st_sq_req req = {.run = up_run};
    stint_error local;
    struct st_sq_conn *c;

    memset(out, 0, sizeof(*out));
    if (up && st_sq_submit(s, &req, &local)) {
        if (err)
            *err = local;
        return local.code;
    }
    c = st_sq_reader(s, &local);
    if (!c || st_sq_schema_read(c, &out->have, &local)) {
        if (err)
            *err = local;
        return local.code;
    }
    out->want = ST_SQ_VERSION;
    return STINT_OK;
}
