/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_check.c - what `doctor` asks a PostgreSQL store.
 *
 * Most questions are put to the server as they stand in `questions`: each answers rows of (severity, what, remedy), the
 * remedy being the command that mends it; a last row with severity 0 says what was found to be right.  A question that this
 * role may not ask is a warning by itself.  Of other people's queries only the head is shown, up to the first literal,
 * without numbers.
 *
 * Nothing is changed, and nothing waits for a lock that a worker needs.
 *
 * Thread: the handle's.
 */
#include <stdarg.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/postgres_op.h"

#define NEWEST_TESTED 18
#define SMALL_BYTES   (256ll << 20) /* so much is counted job by job */

struct check {
    struct st_pg *s;
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

/* ---- questions to the server ------------------------------------------------------------------- */

#define RELOAD "; SELECT pg_reload_conf()"
/* The head of a query: nothing from the first literal on, no numbers. */
#define HEAD(query)                                                                                                    \
    "left(regexp_replace(regexp_replace(regexp_replace(" query ", '(''|\\$[A-Za-z_]*\\$).*$', '?'), '\\d+', '?', 'g'),"  \
    " '\\s+', ' ', 'g'), 60)"
/* h:mm:ss */
#define SINCE(moment) "date_trunc('second', clock_timestamp() - " moment ")"
#define OURS          "'{s}'::regnamespace"

static const struct {
    const char *about; /* when it cannot be asked */
    const char *sql;
} questions[] = {
    {"whether it is a standby",
     "SELECT 2, 'this server is a standby: nothing can be written to it',"
     " 'connect to the primary: name all hosts in the URL and add target_session_attrs=read-write' WHERE pg_is_in_recovery()"},

    {"what other sessions do",
     "SELECT 1, format('the role %s cannot see what other sessions do: findings about them may be missing', current_user),"
     " format('GRANT pg_monitor TO %I', current_user) WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE')"},

    /* what keeps dead rows from being removed */
    {"sessions with old snapshots",
     "WITH a AS (SELECT * FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND a.datname = current_database()"
     " AND a.backend_type NOT IN ('walsender', 'autovacuum worker') AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)"
     " AND a.xact_start < clock_timestamp() - interval '1 minute' ORDER BY a.xact_start LIMIT 5)"
     " SELECT 1, format('pid %s (%s, %s, %s) has been in a transaction for %s and keeps dead rows from being removed; its query since %s: %s',"
     " a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no name'), a.state, " SINCE("a.xact_start") ","
     " to_char(a.query_start, 'YYYY-MM-DD HH24:MI:SS'), " HEAD("a.query") "),"
     " format('SELECT pg_terminate_backend(%s)', a.pid) FROM a"
     " UNION ALL SELECT 0, 'no session holds an old snapshot', '' WHERE NOT EXISTS (SELECT FROM a)"},

    {"prepared transactions",
     "SELECT 1, format('the prepared transaction %L of %s has been open for %s and keeps dead rows from being removed', p.gid, p.owner, "
     SINCE("p.prepared") "), format('ROLLBACK PREPARED %1$L, or COMMIT PREPARED %1$L', p.gid) FROM pg_prepared_xacts p"
     " WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 minute' ORDER BY p.prepared LIMIT 5"},

    {"replication slots",
     "SELECT 1, CASE WHEN r.active THEN format('the replica at slot %s keeps dead rows of the last %s transactions"
     " (hot_standby_feedback)', r.slot_name, age(r.xmin)) ELSE format('nobody uses the replication slot %s, which keeps %s of WAL%s',"
     " r.slot_name, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), r.restart_lsn)), CASE WHEN r.xmin IS NOT NULL THEN"
     " format(' and dead rows of the last %s transactions', age(r.xmin)) ELSE '' END) END,"
     " CASE WHEN r.active THEN 'end the long query there, or on the replica: ALTER SYSTEM SET hot_standby_feedback = off" RELOAD "'"
     " ELSE format('SELECT pg_drop_replication_slot(%L)', r.slot_name) END"
     " FROM pg_replication_slots r WHERE NOT pg_is_in_recovery() AND (r.active AND age(r.xmin) > 100000"
     " OR NOT r.active AND coalesce(r.restart_lsn::text, r.xmin::text) IS NOT NULL) ORDER BY age(r.xmin) DESC NULLS LAST LIMIT 5"},

    {"replicas",
     "SELECT 1, format('the replica %s (pid %s) keeps dead rows of the last %s transactions (hot_standby_feedback)',"
     " r.application_name, r.pid, age(r.backend_xmin)),"
     " 'end the long query there, or on the replica: ALTER SYSTEM SET hot_standby_feedback = off" RELOAD "'"
     " FROM pg_stat_replication r WHERE age(r.backend_xmin) > 100000"
     " AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid)"
     " UNION ALL SELECT * FROM (SELECT 1, format('%s replicas, and none of them is waited for: a failover may lose jobs that were acknowledged"
     " and run others again', count(*)), 'ALTER SYSTEM SET synchronous_standby_names = ''ANY 1 (*)''" RELOAD "' FROM pg_stat_replication r"
     " WHERE current_setting('synchronous_standby_names') = ''"
     " AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')"
     " HAVING count(*) > 0) x"},

    /* what is left lying about */
    {"the hot tables",
     "WITH t AS (SELECT c.oid, c.relname, pg_stat_get_dead_tuples(c.oid) AS dead, pg_stat_get_live_tuples(c.oid) AS live,"
     " pg_table_size(c.oid) AS size FROM pg_class c WHERE c.relnamespace = " OURS
     " AND c.relname IN ('ready', 'lease', 'grp', 'tally', 'ukey')),"
     " f AS (SELECT 1, format('%s has %s dead rows beside %s live ones (%s)', t.relname, t.dead, t.live, pg_size_pretty(t.size)),"
     " format('VACUUM {s}.%I', t.relname) FROM t WHERE t.dead > 100000 AND t.dead > 5 * t.live"
     " UNION ALL SELECT 1, format('%s takes %s for %s rows', t.relname, pg_size_pretty(t.size), t.live),"
     " format('VACUUM (TRUNCATE) {s}.%I', t.relname) FROM t WHERE t.dead <= 100000 AND t.size > greatest(67108864, 2000 * t.live)"
     " UNION ALL SELECT 1, format('the index %s takes %s for %s rows', x.relname, pg_size_pretty(pg_relation_size(x.oid)), t.live),"
     " format('REINDEX INDEX CONCURRENTLY {s}.%I', x.relname) FROM t JOIN pg_index i ON i.indrelid = t.oid JOIN pg_class x"
     " ON x.oid = i.indexrelid WHERE t.dead <= 100000 AND pg_relation_size(x.oid) > greatest(67108864, 2000 * t.live))"
     " SELECT * FROM f UNION ALL SELECT 0, (SELECT string_agg(format('%s %s live %s dead', t.relname, t.live, t.dead), ', ') FROM t), ''"
     " WHERE NOT EXISTS (SELECT FROM f)"},

    {"indexes",
     "SELECT CASE WHEN x.relname ~ '_cc(new|old)[0-9]*$' THEN 1 ELSE 2 END, CASE WHEN x.relname ~ '_cc(new|old)[0-9]*$' THEN"
     " format('the index %s is what an interrupted REINDEX has left: it costs and serves nothing', x.relname)"
     " ELSE format('the index %s is not valid', x.relname) END, CASE WHEN x.relname ~ '_cc(new|old)[0-9]*$' THEN"
     " format('DROP INDEX CONCURRENTLY {s}.%I', x.relname) ELSE format('REINDEX INDEX CONCURRENTLY {s}.%I', x.relname) END"
     " FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid WHERE x.relnamespace = " OURS " AND NOT i.indisvalid"
     " AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.datname = current_database())"},

    {"the NOTIFY queue",
     "SELECT CASE WHEN u > 0.5 THEN 2 WHEN u > 0.01 THEN 1 ELSE 0 END, format('the NOTIFY queue is %s%% full%s', round((100 * u)::numeric, 1),"
     " CASE WHEN u > 0.01 THEN ': a session that listens is in a long transaction; at 100% no enqueue can commit' ELSE '' END),"
     " CASE WHEN u > 0.01 THEN coalesce((SELECT format('SELECT pg_terminate_backend(%s)', a.pid) FROM pg_stat_activity a"
     " WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend' ORDER BY a.xact_start LIMIT 1),"
     " 'end the oldest transaction in pg_stat_activity') ELSE '' END FROM pg_notification_queue_usage() u"},

    /* settings */
    {"settings",
     "WITH f AS (SELECT 1, v.what, format('ALTER SYSTEM SET %s = on" RELOAD "', v.name) FROM (VALUES"
     " ('fsync', 'fsync is off: a crash of the machine may destroy the database'),"
     " ('full_page_writes', 'full_page_writes is off: a crash of the machine may destroy the database'),"
     " ('synchronous_commit', 'synchronous_commit is off: a crash may undo the last jobs that were acknowledged'),"
     " ('autovacuum', 'autovacuum is off: nobody cleans the history, and the server stops when its transaction numbers run out'),"
     " ('track_counts', 'track_counts is off: autovacuum does not know what to do')) v(name, what)"
     " WHERE current_setting(v.name) = 'off')"
     " SELECT * FROM f UNION ALL SELECT 0, 'fsync, full_page_writes, synchronous_commit and autovacuum are on', ''"
     " WHERE NOT EXISTS (SELECT FROM f)"},

    {"settings of the tables",
     "SELECT 1, format('autovacuum is off for %s', c.relname), format('ALTER TABLE {s}.%I RESET (autovacuum_enabled)', c.relname)"
     " FROM pg_class c WHERE c.relnamespace = " OURS " AND EXISTS (SELECT FROM unnest(c.reloptions) o"
     " WHERE o ~ '^autovacuum_enabled=(off|false|no|0)$') ORDER BY c.relname LIMIT 5"},

    {"transaction numbers",
     "WITH d AS (SELECT age(d.datfrozenxid) AS age, current_setting('autovacuum_freeze_max_age')::int8 AS max FROM pg_database d"
     " WHERE d.datname = current_database()), o AS (SELECT c.oid, age(c.relfrozenxid) AS age FROM pg_class c"
     " WHERE c.relkind IN ('r', 't', 'm') ORDER BY age(c.relfrozenxid) DESC LIMIT 1)"
     " SELECT CASE WHEN d.age > 1500000000 THEN 2 WHEN d.age > d.max * 1.2 THEN 1 ELSE 0 END,"
     " format('the oldest transaction number is %s old%s', d.age, CASE WHEN d.age > d.max * 1.2 THEN"
     " format(' (in %s): at 2147483648 the server stops; end what keeps old rows, then freeze', o.oid::regclass) ELSE '' END),"
     " CASE WHEN d.age > d.max * 1.2 THEN format('VACUUM (FREEZE) %s', o.oid::regclass) ELSE '' END FROM d, o"},

    {"connections",
     "WITH n AS (SELECT sum(d.numbackends) AS used, current_setting('max_connections')::int4 AS max,"
     " current_setting('superuser_reserved_connections')::int4 AS kept FROM pg_stat_database d WHERE d.datid <> 0)"
     " SELECT CASE WHEN n.used >= 0.8 * (n.max - n.kept) THEN 1 ELSE 0 END, format('%s of %s connections are in use', n.used, n.max - n.kept),"
     " CASE WHEN n.used >= 0.8 * (n.max - n.kept) THEN format('ALTER SYSTEM SET max_connections = %s, then restart the server;"
     " or put a pooler before it', 2 * n.max) ELSE '' END FROM n"},

    /* what this role may do; one that only looks is not expected to do more */
    {"grants",
     "WITH p AS (SELECT format('{s}.%I', c.relname) AS thing, 1 AS nth, v.verb, has_table_privilege(c.oid, v.verb) AS may FROM pg_class c"
     " CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) v(verb) WHERE c.relnamespace = " OURS
     " AND c.relkind IN ('r', 'p') AND (v.verb = 'SELECT' OR c.relname <> 'schema_version') AND (v.verb <> 'TRUNCATE'"
     " OR c.relname ~ '^(entry|ended)_')"
     " UNION ALL SELECT 'ALL SEQUENCES IN SCHEMA {s}', 2, 'USAGE', CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE') END"
     " FROM pg_class c WHERE c.relnamespace = " OURS " AND c.relkind = 'S'"
     " UNION ALL SELECT 'ALL FUNCTIONS IN SCHEMA {s}', 3, 'EXECUTE', has_function_privilege(f.oid, 'EXECUTE') FROM pg_proc f"
     " WHERE f.pronamespace = " OURS "),"
     " m AS (SELECT p.thing, string_agg(DISTINCT p.verb, ', ') AS verbs FROM p WHERE NOT p.may GROUP BY p.nth, p.thing ORDER BY p.nth, p.thing),"
     " w AS (SELECT has_table_privilege('{s}.ready', 'INSERT, DELETE') AS works)"
     " SELECT 1, format('the role %s may not work or enqueue here', current_user), CASE WHEN EXISTS (SELECT FROM pg_roles r"
     " WHERE r.rolname = '{s_plain}_worker') THEN format('GRANT %I TO %I', '{s_plain}_worker', current_user) ELSE"
     " format('GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {s} TO %1$I; GRANT USAGE ON ALL SEQUENCES IN SCHEMA {s}"
     " TO %1$I; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {s} TO %1$I', current_user) END FROM w WHERE NOT w.works"
     " UNION ALL SELECT * FROM (SELECT 2, format('the role %s may not %s on %s', current_user, m.verbs, m.thing),"
     " format('GRANT %s ON %s TO %I', m.verbs, m.thing, current_user) FROM w, m WHERE w.works LIMIT 5) x"
     " UNION ALL SELECT 0, format('the role %s has the grants it needs%s', current_user, CASE WHEN pg_has_role((SELECT c.relowner"
     " FROM pg_class c WHERE c.oid = '{s}.ready'::regclass), 'USAGE') THEN '' ELSE"
     " '; it does not own the tables, so only autovacuum cleans them' END), '' FROM w WHERE w.works AND NOT EXISTS (SELECT FROM m)"},
};

/* Not a finding but the end of all questions: the server is away. */
static bool away(const struct st_pg *s, stint_code code)
{
    return code && (code != STINT_ESTORE || !s->c);
}

static stint_code ask(const struct check *k, const char *about, const char *sql, stint_error *err)
{
    PGresult *r = NULL;
    const stint_code code = st_pg_exec(k->s, sql, NULL, false, &r, err);

    if (away(k->s, code))
        return code;
    if (code)
        say(k, ST_WARNING, err->remedy[0] ? err->remedy : "ask as the owner of the schema", "cannot see %s: %s", about,
            err->message);
    for (int row = 0; !code && row < PQntuples(r); row++)
        if (!PQgetisnull(r, row, 1))
            k->found(k->arg, (enum st_severity)atoi(PQgetvalue(r, row, 0)), PQgetvalue(r, row, 1), PQgetvalue(r, row, 2));
    PQclear(r);
    return STINT_OK;
}

/* ---- what the schema has -------------------------------------------------------------------------- */

/* A name at p, up to a space or parenthesis. */
static struct st_slice name_at(const char *p)
{
    return ST_SLICE(p, strcspn(p, " (\n"));
}

/* The next statement after p in a migration that makes something with a name of its own; NULL = none. */
static const char *next_made(const char *p, const char *const *heads, size_t n, struct st_slice *name)
{
    for (; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        for (size_t i = 0; i < n; i++) {
            const size_t len = strlen(heads[i]);

            if (strncmp(p, heads[i], len) != 0)
                continue;
            *name = name_at(p + len);
            return p;
        }
    }
    return NULL;
}

static bool has(const PGresult *r, struct st_slice name)
{
    for (int row = 0; row < PQntuples(r); row++)
        if (st_slice_is(name, PQgetvalue(r, row, 0)))
            return true;
    return false;
}

/* The statement itself is the remedy: it ends at a line's last semicolon, a function after its body. */
static void missing(const struct check *k, const char *what, struct st_slice name, const char *text)
{
    const char *body = strstr(text, "$f$"), *end = strstr(text, ";\n");
    char *copy, *sql = NULL;

    if (strcmp(what, "function") == 0 && body && strstr(body + 3, "$f$"))
        end = strstr(body + 3, "$f$") + 3;
    copy = strndup(text, end ? (size_t)(end - text) : strlen(text));
    if (copy)
        sql = st_pg_in_schema(k->s, copy);
    say(k, ST_BAD, sql ? sql : "`stint migrate sql`", "the %s %.*s is missing", what, (int)name.len, name.p);
    free(copy);
    free(sql);
}

/* The statement that made it last, in the newest version that has one. */
static const char *latest(const char *const *heads, size_t n, struct st_slice want)
{
    struct st_slice name;

    for (int i = st_pg_n_migrations - 1; i >= 0; i--)
        for (const char *p = st_pg_migrations[i].up; (p = next_made(p, heads, n, &name)); p += name.len)
            if (st_slice_eq(name, want))
                return p;
    return NULL;
}

static stint_code check_made(const struct check *k, const char *what, const char *const *heads, size_t n, const char *sql,
                             stint_error *err)
{
    PGresult *r = NULL;
    struct st_slice name;
    int n_missing = 0;

    if (st_pg_exec(k->s, sql, NULL, false, &r, err))
        return err->code;
    for (int i = 0; i < st_pg_n_migrations; i++)
        for (const char *p = st_pg_migrations[i].up; (p = next_made(p, heads, n, &name)); p += name.len) {
            if (has(r, name) || latest(heads, n, name) != p)
                continue;
            missing(k, what, name, p);
            n_missing++;
        }
    PQclear(r);
    if (!n_missing)
        say(k, ST_FINE, "", "no %s is missing", what);
    return STINT_OK;
}

static stint_code check_schema(const struct check *k, stint_error *err)
{
    static const char *const indexes[] = {"CREATE INDEX ", "CREATE UNIQUE INDEX "};
    static const char *const functions[] = {"CREATE FUNCTION {s}.", "CREATE OR REPLACE FUNCTION {s}."};
    static const char *const views[] = {"CREATE VIEW {s}.", "CREATE OR REPLACE VIEW {s}."};
    static const char keys[] =
        "SELECT 2, format('the table %s has lost its primary key', c.relname), format('ALTER TABLE {s}.%I ADD PRIMARY KEY (%s)', v.name, v.columns)"
        " FROM (VALUES ('entry', 'id, slot'), ('ended', 'id, fence, part, slot'), ('ready', 'lane, key, id'), ('lease', 'id'), ('grp', 'gid'),"
        " ('policy', 'id'), ('ukey', 'type, key'), ('paused', 'queue'), ('worker', 'id'), ('leader', 'one')) v(name, columns) JOIN pg_class c"
        " ON c.relname = v.name AND c.relnamespace = " OURS
        " WHERE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)";
    const int want = st_pg_migrations[st_pg_n_migrations - 1].version;
    int have = 0;

    if (st_pg_schema_check(k->s, st_pg_migrations, st_pg_n_migrations, &have, err))
        return err->code;
    say(k, ST_FINE, "", "schema version %d, this program wants %d", have, want);
    if (check_made(k, "index", indexes, 2,
                   "SELECT c.relname FROM pg_class c WHERE c.relnamespace = " OURS " AND c.relkind IN ('i', 'I')", err) ||
        check_made(k, "function", functions, 2, "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = " OURS, err) ||
        check_made(k, "view", views, 2, "SELECT c.relname FROM pg_class c WHERE c.relnamespace = " OURS " AND c.relkind = 'v'",
                   err))
        return err->code;
    return ask(k, "primary keys", keys, err);
}

/* ---- what the jobs say ------------------------------------------------------------------------------- */

#define COUNTS                                                                                                         \
    "SELECT CASE WHEN count(*) > 0 THEN 2 ELSE 0 END, CASE WHEN count(*) > 0 THEN"                                     \
    " format('the counts of %s lanes (queue, type, priority) are wrong', count(*)) ELSE 'the counts are right' END,"   \
    " CASE WHEN count(*) > 0 THEN 'SELECT {s}._recount()' ELSE '' END"                                                 \
    " FROM (SELECT x.lane FROM (SELECT t.* FROM {s}.tally t UNION ALL SELECT c.lane, -c.waiting, -c.succeeded, -c.failed, -c.cancelled" \
    " FROM {s}._counts() c) x GROUP BY x.lane HAVING sum(x.waiting) <> 0 OR sum(x.succeeded) <> 0 OR sum(x.failed) <> 0" \
    " OR sum(x.cancelled) <> 0) wrong"
#define STRAYS                                                                                                         \
    "WITH s AS (SELECT * FROM {s}._strays()), f AS (SELECT 2, format(CASE s.kind WHEN 1 THEN '%s jobs are nowhere: they neither wait nor"     \
    " run, and have not ended' WHEN 2 THEN '%s rows wait without a job' ELSE '%s jobs are held by nobody: no worker would find them when"   \
    " their leases end' END, count(*)), 'SELECT {s}._mend()' FROM s GROUP BY s.kind)"                                  \
    " SELECT * FROM f UNION ALL SELECT 0, 'every job is in its place', '' WHERE NOT EXISTS (SELECT FROM f)"

static stint_code check_jobs(const struct check *k, stint_error *err)
{
    PGresult *r = NULL;
    long long bytes;

    if (st_pg_exec(k->s,
                   "SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::int8 FROM pg_class c WHERE c.relnamespace = " OURS
                   " AND c.relname ~ '^(entry|ended|ready|lease)(_[0-9]+)?$'",
                   NULL, false, &r, err))
        return err->code;
    bytes = atoll(PQgetvalue(r, 0, 0));
    PQclear(r);
    if (bytes > SMALL_BYTES) {
        say(k, ST_FINE, "", "%lld MiB of jobs: too many to compare them with the counts", bytes >> 20);
        return STINT_OK;
    }
    return ask(k, "the counts", COUNTS, err) ? err->code : ask(k, "the jobs", STRAYS, err);
}

/* ---- the connection ------------------------------------------------------------------------------------- */

static void check_connection(const struct check *k)
{
    const struct st_pg *s = k->s;
    const int major = PQserverVersion(s->c) / 10000;

    if (major > NEWEST_TESTED)
        say(k, ST_WARNING, "look for a newer stint before you rely on it",
            "PostgreSQL %d is newer than what this program was tested with (13 to %d)", major, NEWEST_TESTED);
    else
        say(k, ST_FINE, "", "PostgreSQL %d is a version this program was tested with", major);
    if (!s->url.notify)
        say(k, ST_FINE, "", "notify=off: workers find jobs by polling");
    else if (s->pooled && !s->url.listen)
        say(k, ST_WARNING,
            "add listen=URL with the server's own address (: as %3A, / as %2F), or notify=off if polling will do",
            "a pooler stands before the server, and LISTEN does not go through it: workers find jobs by polling");
    else
        say(k, ST_FINE, "", s->pooled ? "a pooler stands before the server; wake-ups come by listen="
                                      : "no pooler stands before the server: wake-ups come by LISTEN");
    if (s->clock_off_us < ST_SEC && s->clock_off_us > -ST_SEC) /* else `doctor` itself says so */
        say(k, ST_FINE, "", "the server's clock and ours differ by %lld ms", (long long)(llabs(s->clock_off_us) / 1000));
}

stint_code st_pg_check(struct st_store *store, st_finding_fn found, void *arg, stint_error *err)
{
    struct check k = {.s = st_pg_of(store), .found = found, .arg = arg};
    stint_error local = {0};
    stint_code code = check_schema(&k, &local);

    for (size_t i = 0; !code && i < sizeof(questions) / sizeof(questions[0]); i++)
        code = ask(&k, questions[i].about, questions[i].sql, &local);
    if (!code)
        code = check_jobs(&k, &local);
    if (!code && k.s->c)
        check_connection(&k);
    return st_pg_told(code, &local, err);
}
