/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_conn.h - what the connection, the handle and the schema of the PostgreSQL store share among
 * themselves; nobody else needs it.
 */
#ifndef ST_STORE_POSTGRES_CONN_H
#define ST_STORE_POSTGRES_CONN_H

#include <sys/types.h>

#include "store/postgres_int.h"

/* What a handle has besides what all files of the store may see. */
struct st_pg_own {
    struct st_pg pg;  /* first, so that a struct st_pg * is one of us */
    pid_t pid;        /* who opened it; in a forked child it is of no use */
    int64_t until_us; /* when the call under way must be over, CLOCK_MONOTONIC */
    bool no_prepare;  /* prepared statements were not there: a pooler that does not look like one */
    bool farewell;    /* the server has said that it ends the connection */
};

/* What the handles of one URL know of their server. */
struct st_pg_shared_own {
    struct st_pg_shared sh; /* first */
    bool known;             /* its schema was found to be one of ours */
    int64_t clock_off_us, boot_off_us;
    char version[64];
    char durability[64];
};

static inline struct st_pg_own *st_pg_own(struct st_pg *s)
{
    return (struct st_pg_own *)s;
}

/* ESTATE in a process that was forked off after the handle was opened. */
stint_code st_pg_fork_check(struct st_pg *s, stint_error *err);
/* Frees a connection.  inherited: it is the parent's; not a byte goes to its server. */
void st_pg_hangup(PGconn *c, bool inherited);

/* ---- connecting (postgres_connect.c) -------------------------------------------------------- */

/* As st_pg_connect, until a moment; tells also how far the server's clock is ahead of ours and what it is. */
struct st_pg_probe {
    bool pooled;
    int64_t clock_off_us, boot_off_us;
    char durability[64];
};
PGconn *st_pg_connect_until(struct st_pg *s, const char *conninfo, int64_t until_us, struct st_pg_probe *probe,
                            stint_error *err);
/* Waits until the socket is ready for events (POLLIN, POLLOUT).  0 = the time has passed, -1 = it cannot be used. */
int st_pg_poll(PGconn *c, short events, int64_t until_us);

/* ---- requests (postgres_conn.c) --------------------------------------------------------------- */

/* What became of a request. */
enum st_pg_fate {
    ST_PG_DONE,
    ST_PG_REFUSED, /* the server said no, and nothing of it remains */
    ST_PG_BROKEN,  /* no whole answer came, nor will one */
    ST_PG_LATE,    /* none came in time */
};

/* Runs one text on this very connection: never reconnects.  As st_pg_exec otherwise. */
enum st_pg_fate st_pg_exec_on(struct st_pg *s, PGconn *c, const char *sql, const struct st_pg_args *args,
                              int64_t until_us, PGresult **res, stint_error *err);
/* Connects if need be; does not look at the schema.  The call's deadline must be set. */
stint_code st_pg_conn_up(struct st_pg *s, stint_error *err);
/* Is the database one that cannot hold every character? */
bool st_pg_narrow(PGconn *c);
/* Closes the connection; the next call makes a new one. */
void st_pg_conn_drop(struct st_pg *s);
/* Asks the server to stop what c is doing, without waiting for an answer. */
void st_pg_cancel_soon(PGconn *c);

/* ---- errors (postgres_err.c) ------------------------------------------------------------------- */

/* Is the failed result a definite no, after which the transaction is rolled back? */
bool st_pg_definite(const PGresult *r);
/* Fills err after a connection could not be made. */
stint_code st_pg_connect_fail(struct st_pg *s, PGconn *c, const char *where, stint_error *err);
bool st_pg_is_state(const PGresult *r, const char *sqlstate);

/* ---- schema (postgres_schema.c) ------------------------------------------------------------------ */

/* A new handle's first look: makes the tables if nothing is there and it may. */
stint_code st_pg_schema_open(struct st_pg *s, stint_error *err);
/* The same for a connection made later. */
stint_code st_pg_schema_known(struct st_pg *s, stint_error *err);
/* Operations of the store's table. */
stint_code st_pg_schema_take_down(struct st_store *s, int to, struct st_schema *out, stint_error *err);
stint_code st_pg_schema_sql(struct st_store *s, enum st_schema_sql what, char **sql, stint_error *err);

#endif
