/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_err.c - what a refusal of PostgreSQL means to the caller.
 *
 * The SQLSTATE decides the code and the remedy; it is also the error's detail.  Messages name the
 * server as host:port/database, never a password.
 *
 * Thread: the handle's.
 */
#include "store/postgres_conn.h"

#include <string.h>

enum remedy {
    NO_REMEDY,
    R_LATER,
    R_CREDENTIALS,
    R_DATABASE,
    R_GRANT,
    R_DISK,
    R_MEMORY,
    R_CONNECTIONS,
    R_PRIMARY,
    R_MIGRATE,
    R_START,
    R_WAIT,
    R_TLS,
    R_SERVICE,
    R_SESSION,
    R_POOLER_FULL,
    R_POOLER_DATABASE,
};

/* The longest prefix of the SQLSTATE wins. */
static const struct {
    const char *prefix;
    stint_code code;
    enum remedy remedy;
} states[] = {
    {"ST001", STINT_EINVAL, NO_REMEDY},  {"ST002", STINT_EEXISTS, NO_REMEDY},    {"ST003", STINT_ELOST, NO_REMEDY},
    {"ST004", STINT_ESTATE, NO_REMEDY},  {"08", STINT_EAGAIN, R_START},          {"25006", STINT_ESTORE, R_PRIMARY},
    {"28", STINT_ESTORE, R_CREDENTIALS}, {"3D000", STINT_ESTORE, R_DATABASE},    {"3F000", STINT_ESTORE, R_MIGRATE},
    {"40001", STINT_EAGAIN, R_LATER},    {"40P01", STINT_EAGAIN, R_LATER},       {"42501", STINT_ESTORE, R_GRANT},
    {"42883", STINT_ESTORE, R_MIGRATE},  {"42P01", STINT_ESTORE, R_MIGRATE},     {"53", STINT_EAGAIN, R_MEMORY},
    {"53100", STINT_ESTORE, R_DISK},     {"53300", STINT_EAGAIN, R_CONNECTIONS}, {"55P03", STINT_EAGAIN, R_LATER},
    {"57014", STINT_EAGAIN, R_LATER},    {"57P0", STINT_EAGAIN, R_START},        {"57P03", STINT_EAGAIN, R_WAIT},
};

/* What the library says of itself, without a SQLSTATE, and a pooler with one that says nothing; the first that fits. */
static const struct {
    const char *word;
    enum remedy remedy;
} words[] = {
    {"could not translate host name", R_START}, /* which may have any of these in it */
    {"SSL", R_TLS},
    {"certificate", R_TLS},
    {"definition of service", R_SERVICE},
    {"hot standby", R_SESSION},
    {"read-only", R_SESSION},
    {"max_client_conn", R_POOLER_FULL},
    {"bouncer config error", R_POOLER_DATABASE},
    {"no such database", R_POOLER_DATABASE},
};

static void remedy_put(struct st_pg *s, PGconn *c, enum remedy r, stint_error *err)
{
    const char *user = c && PQuser(c) ? PQuser(c) : "the user";

    switch (r) {
    case R_LATER:
        st_err_remedy(err, "try again");
        break;
    case R_CREDENTIALS:
        st_err_remedy(err, "check user and password (in the URL, PGPASSWORD or ~/.pgpass) and the server's "
                           "pg_hba.conf");
        break;
    case R_DATABASE:
        st_err_remedy(err, "make the database (createdb), or name another in the URL");
        break;
    case R_GRANT:
        if (c && PQstatus(c) != CONNECTION_OK) { /* it is not let in */
            st_err_remedy(err, "its owner can run: GRANT CONNECT ON DATABASE \"%s\" TO \"%s\"", PQdb(c) ? PQdb(c) : "",
                          user);
            break;
        }
        st_err_remedy(err, "its owner can run: GRANT \"%s_worker\" TO \"%s\"; `stint migrate sql` prints the roles",
                      s->url.schema, user);
        break;
    case R_DISK:
        st_err_remedy(err, "make room on the disk of the server");
        break;
    case R_MEMORY:
        st_err_remedy(err, "give the server more memory, or less to do");
        break;
    case R_CONNECTIONS:
        st_err_remedy(err, "raise max_connections, or put a pooler before the server");
        break;
    case R_PRIMARY:
        st_err_remedy(
            err, "it is read-only: connect to the primary (add target_session_attrs=read-write and all hosts to the "
                 "URL); if this is it, default_transaction_read_only is on: see `stint doctor`");
        break;
    case R_MIGRATE:
        st_err_remedy(
            err,
            "check schema=%s in the URL, and run `stint migrate up`; if it has nothing to do, `stint doctor` names "
            "what is missing",
            s->url.schema);
        break;
    case R_START:
        st_err_remedy(err, "start the server, or check host and port in the URL");
        break;
    case R_WAIT:
        st_err_remedy(err, "try again when the server has started");
        break;
    case R_TLS:
        st_err_remedy(err, "check sslmode and the certificates that the URL names, and whether the server speaks TLS");
        break;
    case R_SERVICE:
        st_err_remedy(err, "correct service= in the URL, or define the service in pg_service.conf");
        break;
    case R_SESSION:
        st_err_remedy(err, "name all hosts in the URL, or change its target_session_attrs");
        break;
    case R_POOLER_FULL:
        st_err_remedy(err, "raise the pooler's max_client_conn, or connect from fewer processes");
        break;
    case R_POOLER_DATABASE:
        st_err_remedy(err, "add the database to the pooler's [databases], or name another in the URL");
        break;
    case NO_REMEDY:
        break;
    }
}

/* Fills code, detail and remedy of an error whose message is there. */
static stint_code by_state(struct st_pg *s, PGconn *c, const char *sqlstate, stint_error *err)
{
    size_t best = 0;

    err->code = STINT_ESTORE;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        const size_t len = strlen(states[i].prefix);

        if (len > best && strncmp(sqlstate, states[i].prefix, len) == 0) {
            best = len;
            err->code = states[i].code;
            remedy_put(s, c, states[i].remedy, err);
        }
    }
    st_err_detail(err, sqlstate);
    return err->code;
}

bool st_pg_is_state(const PGresult *r, const char *sqlstate)
{
    const char *have = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;

    return have && strcmp(have, sqlstate) == 0;
}

bool st_pg_definite(const PGresult *r)
{
    const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
    const char *severity = r ? PQresultErrorField(r, PG_DIAG_SEVERITY_NONLOCALIZED) : NULL;

    if (!severity) /* poolers do not send it */
        severity = r ? PQresultErrorField(r, PG_DIAG_SEVERITY) : NULL;
    if (!state || !severity || strcmp(severity, "ERROR") != 0)
        return false;
    return strncmp(state, "08", 2) != 0 && strncmp(state, "57P", 3) != 0;
}

static int line_length(const char *text)
{
    return (int)strcspn(text, "\r\n");
}

static stint_code broken(struct st_pg *s, PGconn *c, const char *what, stint_error *err)
{
    const char *text = c ? PQerrorMessage(c) : NULL;

    if (!text || !*text)
        text = "the connection was lost";
    st_fail(err, STINT_EAGAIN, "%s%s%s: %.*s", what ? what : "", what ? " on " : "", s->url.where, line_length(text),
            text);
    remedy_put(s, c, R_START, err);
    return err->code;
}

stint_code st_pg_fail(struct st_pg *s, PGconn *c, const PGresult *r, const char *what, stint_error *err)
{
    const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
    const char *text = r ? PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    const char *hint = r ? PQresultErrorField(r, PG_DIAG_MESSAGE_HINT) : NULL;
    const bool ours = state && strncmp(state, "ST0", 3) == 0;

    if (!state)
        return broken(s, c, what, err);
    if (!text)
        text = "refused";
    if (ours) /* what our own functions say is meant for the caller */
        st_fail(err, STINT_EINVAL, "%s", text);
    else
        st_fail(err, STINT_ESTORE, "%s%s%s: %s", what ? what : "", what ? " on " : "", s->url.where, text);
    by_state(s, c, state, err);
    if (hint && !err->remedy[0])
        st_err_remedy(err, "%s", hint);
    return err->code;
}

/* ---- connecting ----------------------------------------------------------------------------- */

static bool is_state_text(const char *p)
{
    return strspn(p, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && p[5] == ':';
}

/* The library keeps no SQLSTATE of a refused connection, but with enough verbosity it stands in the text:
 * `... failed: FATAL:  28P01: password authentication failed`.  *text moves to what follows it. */
static bool state_in_text(const char **text, char out[6])
{
    for (const char *p = *text; (p = strstr(p, ":  ")); p++) {
        if (!is_state_text(p + 3))
            continue;
        memcpy(out, p + 3, 5);
        out[5] = '\0';
        *text = p + 3 + 6 + (p[3 + 6] == ' ');
        return true;
    }
    return false;
}

/* A host may have several addresses, each with a line of its own: the last one says most. */
static const char *after_failed(const char *text)
{
    const char *p = text;

    while ((p = strstr(p, "failed: ")))
        text = p += strlen("failed: ");
    return text;
}

static enum remedy by_word(const char *text, int len)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (memmem(text, (size_t)len, words[i].word, strlen(words[i].word)))
            return words[i].remedy;
    return R_START;
}

stint_code st_pg_connect_fail(struct st_pg *s, PGconn *c, const char *where, stint_error *err)
{
    const bool password = c && PQconnectionNeedsPassword(c);
    const char *text = c ? PQerrorMessage(c) : "out of memory";
    char state[6];

    if (strncmp(text, "invalid ", 8) == 0) {
        st_fail(err, STINT_EINVAL, "%s: %.*s", where, line_length(text), text);
        st_err_remedy(err, "correct the store's URL");
        return err->code;
    }
    text = after_failed(text);
    if (state_in_text(&text, state)) {
        st_fail(err, STINT_ESTORE, "cannot connect to %s: %.*s", where, line_length(text), text);
        by_state(s, c, state, err);
        if (strcmp(state, "08P01") == 0)
            remedy_put(s, c, by_word(text, line_length(text)), err);
        return err->code;
    }
    st_fail(err, password ? STINT_ESTORE : STINT_EAGAIN, "cannot connect to %s: %.*s", where, line_length(text), text);
    remedy_put(s, c, password ? R_CREDENTIALS : by_word(text, line_length(text)), err);
    return err->code;
}
