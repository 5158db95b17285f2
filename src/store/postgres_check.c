/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_check.c - what `doctor` asks a PostgreSQL store.
 *
 * Most questions are put to the server as they stand in postgres_check.inc: each answers rows of
 * (severity, what, remedy), the remedy being the command that mends it; a last row with severity 0
 * says what was found to be right.  A question that this role may not ask is a warning by itself.
 * Of other people's queries only the head is shown, up to the first literal, without numbers.
 *
 * Nothing is changed, and nothing waits for a lock that a worker needs.
 *
 * Thread: the handle's.
 */
#include <stdarg.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/postgres_conn.h"
#include "store/postgres_op.h"

#define NEWEST_TESTED 18
#define QUESTION_MAX  ((size_t)64 << 10)
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

/* ---- questions to the server ----------------------------------------------------------------- */

struct question {
    const char *about; /* told when it cannot be asked */
    const char *sql;
};

static const struct question questions[] = {
#define Q(about, sql) {about, sql},
#define J(about, sql)
#include "store/postgres_check.inc"
#undef Q
#undef J
};

static const struct question about_jobs[] = {
#define Q(about, sql)
#define J(about, sql) {about, sql},
#include "store/postgres_check.inc"
#undef Q
#undef J
};

#define OURS "'{s}'::regnamespace"

/* Not a finding but the end of all questions: the server is away. */
static bool away(const struct st_pg *s, stint_code code)
{
    return code && !s->c;
}

/* Runs one question.  Behind a pooler a session has the search_path of its user, and others may have put operators there. */
static stint_code put(const struct check *k, const char *sql, PGresult **r, stint_error *err)
{
    struct st_buf b;
    stint_code code;

    if (!k->s->pooled)
        return st_pg_exec(k->s, sql, NULL, false, r, err);
    st_buf_init(&b, QUESTION_MAX);
    st_buf_puts(&b, "SET LOCAL search_path = pg_catalog; ");
    st_buf_puts(&b, sql);
    code = b.failed ? st_fail(err, STINT_ENOMEM, "no memory for a question to %s", k->s->url.where)
                    : st_pg_exec(k->s, b.p, NULL, false, r, err);
    st_buf_clear(&b);
    return code;
}

static stint_code ask(const struct check *k, const struct question *q, stint_error *err)
{
    PGresult *r = NULL;
    const stint_code code = put(k, q->sql, &r, err);

    if (away(k->s, code))
        return code;
    if (code)
        say(k, ST_WARNING, err->remedy[0] ? err->remedy : "ask as the owner of the schema", "cannot see %s: %s",
            q->about, err->message);
    for (int row = 0; !code && row < PQntuples(r); row++)
        if (!PQgetisnull(r, row, 1))
            k->found(k->arg, (enum st_severity)atoi(PQgetvalue(r, row, 0)), PQgetvalue(r, row, 1),
                     PQgetvalue(r, row, 2));
    PQclear(r);
    return STINT_OK;
}

static stint_code ask_all(const struct check *k, const struct question *q, size_t n, stint_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ask(k, &q[i], err))
            return err->code;
    return STINT_OK;
}

#define ASK_ALL(k, list, err) ask_all((k), (list), sizeof(list) / sizeof((list)[0]), (err))

/* ---- what the schema has --------------------------------------------------------------------- */

/* A name at p, up to a space or parenthesis. */
static struct st_slice name_at(const char *p)
{
    return ST_SLICE(p, strcspn(p, " (\n"));
}

/* The next statement after p in a migration that makes something with a name of its own; NULL =
 * none. */
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

/* The statement itself is the remedy: it ends at a line's last semicolon, one with a body in
 * `quote` after that. */
static void missing(const struct check *k, const char *what, struct st_slice name, const char *text, const char *quote)
{
    const char *body = quote ? strstr(text, quote) : NULL, *end = strstr(text, ";\n");
    char *copy, *sql = NULL;

    if (body && (body = strstr(body + strlen(quote), quote)))
        end = body + strlen(quote);
    copy = strndup(text, end ? (size_t)(end - text) : strlen(text));
    if (copy)
        sql = st_pg_in_schema(k->s, copy);
    say(k, ST_BAD, sql ? sql : "`stint migrate sql`", "the %s %.*s is missing", what, (int)name.len, name.p);
    free(copy);
    free(sql);
}

/* Views that one block makes, all of them at every run: it is told once, with the first of them
 * that is missing. */
static int missing_together(const struct check *k, const PGresult *r)
{
    static const char *const names[] = {"_job", "job", "_live", "live", "_dead", "dead"};
    static const char head[] = "DO $views$";
    const char *block = NULL;

    for (int i = st_pg_n_migrations - 1; i >= 0 && !block; i--)
        block = strstr(st_pg_migrations[i].up, head);
    for (size_t i = 0; block && i < sizeof(names) / sizeof(names[0]); i++)
        if (!has(r, ST_SLICE(names[i], strlen(names[i])))) {
            missing(k, "view", ST_SLICE(names[i], strlen(names[i])), block, "$views$");
            return 1;
        }
    return 0;
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

static stint_code check_made(const struct check *k, const char *what, const char *const *heads, size_t n,
                             const char *sql, stint_error *err)
{
    PGresult *r = NULL;
    struct st_slice name;
    int n_missing = 0;

    if (put(k, sql, &r, err))
        return err->code;
    if (strcmp(what, "view") == 0) /* the others are made from these */
        n_missing = missing_together(k, r);
    for (int i = 0; i < st_pg_n_migrations; i++)
        for (const char *p = st_pg_migrations[i].up; (p = next_made(p, heads, n, &name)); p += name.len) {
            if (has(r, name) || latest(heads, n, name) != p)
                continue;
            missing(k, what, name, p, strcmp(what, "function") == 0 ? "$f$" : NULL);
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
    const int want = st_pg_migrations[st_pg_n_migrations - 1].version;
    int have = 0;

    if (st_pg_schema_check(k->s, st_pg_migrations, st_pg_n_migrations, &have, err))
        return err->code;
    say(k, ST_FINE, "", "schema version %d, this program wants %d", have, want);
    if (check_made(k, "index", indexes, 2,
                   "SELECT c.relname FROM pg_class c WHERE c.relnamespace = " OURS " AND c.relkind IN ('i', 'I')",
                   err) ||
        check_made(k, "function", functions, 2, "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = " OURS, err))
        return err->code;
    return check_made(k, "view", views, 2,
                      "SELECT c.relname FROM pg_class c WHERE c.relnamespace = " OURS " AND c.relkind = 'v'", err);
}

/* ---- what the jobs say ----------------------------------------------------------------------- */

static stint_code check_jobs(const struct check *k, stint_error *err)
{
    PGresult *r = NULL;
    long long bytes;

    if (put(k,
            "SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::int8 FROM pg_class c WHERE "
            "c.relnamespace = " OURS " AND c.relname ~ '^(entry|ended|ready|lease)(_[0-9]+)?$'",
            &r, err))
        return err->code;
    bytes = atoll(PQgetvalue(r, 0, 0));
    PQclear(r);
    if (bytes > SMALL_BYTES) {
        say(k, ST_FINE, "", "%lld MiB of jobs: too many to compare them with the counts", bytes >> 20);
        return STINT_OK;
    }
    return ASK_ALL(k, about_jobs, err);
}

/* ---- the connection -------------------------------------------------------------------------- */

/* Two sessions with the same answer are in one database of one running server. */
static bool ask_whereabouts(struct st_pg *s, PGconn *c, char *out, size_t size, stint_error *err)
{
    static const char sql[] = "SELECT pg_catalog.concat_ws(' ',"
                              " extract(epoch FROM pg_catalog.pg_postmaster_start_time())::int8,"
                              " (SELECT d.oid FROM pg_catalog.pg_database d"
                              " WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()))";
    PGresult *r = NULL;

    if (st_pg_exec_on(s, c, sql, NULL, st_clock_mono_us() + s->base.timeout_ms * ST_MS, &r, err) != ST_PG_DONE)
        return false;
    snprintf(out, size, "%s", PQgetvalue(r, 0, 0));
    PQclear(r);
    return true;
}

/* Nobody is told what happens elsewhere, and nothing complains. */
static void check_listen(const struct check *k)
{
    static const char how[] = "let listen= name the server's own address and the store's database (: as %3A, / as %2F)";
    struct st_pg *s = k->s;
    char here[128] = "", there[128] = "";
    stint_error err = {0};
    bool pooled = false;
    PGconn *c = st_pg_connect(s, s->url.listen, &pooled, &err);

    if (!c || !ask_whereabouts(s, c, there, sizeof(there), &err) || !ask_whereabouts(s, s->c, here, sizeof(here), &err))
        say(k, ST_WARNING, *err.remedy ? err.remedy : how,
            "listen= does not lead to the server, workers find jobs by polling: %s", err.message);
    else if (pooled)
        say(k, ST_WARNING, how,
            "listen= leads to a pooler, and LISTEN does not go through it: workers find jobs by polling");
    else if (strcmp(here, there) != 0)
        say(k, ST_WARNING, how, "listen= leads to %s, which is not where the store is: workers find jobs by polling",
            s->url.listen_where);
    else
        say(k, ST_FINE, "", "wake-ups come by listen=");
    PQfinish(c);
}

static void check_connection(const struct check *k)
{
    struct st_pg *s = k->s;
    const int major = PQserverVersion(s->c) / 10000;

    if (major > NEWEST_TESTED)
        say(k, ST_WARNING, "look for a newer stint before you rely on it",
            "PostgreSQL %d is newer than what this program was tested with (13 to %d)", major, NEWEST_TESTED);
    else
        say(k, ST_FINE, "", "PostgreSQL %d is a version this program was tested with", major);
    if (!s->url.notify)
        say(k, ST_FINE, "", "notify=off: workers find jobs by polling");
    else if (s->url.listen)
        check_listen(k);
    else if (s->pooled)
        say(k, ST_WARNING,
            "add listen=URL with the server's own address (: as %3A, / as %2F), or notify=off if "
            "polling will do",
            "a pooler stands before the server, and LISTEN does not go through it: workers find "
            "jobs by polling");
    else
        say(k, ST_FINE, "", "no pooler stands before the server: wake-ups come by LISTEN");
    if (s->clock_off_us < ST_SEC && s->clock_off_us > -ST_SEC) /* else `doctor` itself says so */
        say(k, ST_FINE, "", "the server's clock and ours differ by %lld ms",
            (long long)(llabs(s->clock_off_us) / 1000));
}

stint_code st_pg_check(struct st_store *store, st_finding_fn found, void *arg, stint_error *err)
{
    struct check k = {.s = st_pg_of(store), .found = found, .arg = arg};
    stint_error local = {0};
    stint_code code = check_schema(&k, &local);

    if (!code)
        code = ASK_ALL(&k, questions, &local);
    if (!code)
        code = check_jobs(&k, &local);
    if (!code && k.s->c)
        check_connection(&k);
    return st_pg_told(code, &local, err);
}
