/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_connect.c - making a connection, with a deadline.
 *
 * A URL may name several hosts.  They are tried in their order, one at a time, each with its share of
 * what is left of the time: a host that is silent does not use up the others' turn (the library's own
 * connect_timeout does not hold for connections made without blocking).  target_session_attrs stays the
 * library's, host by host; prefer-standby is what it is defined as, a round with "standby" and one
 * with "any".
 *
 * Then one question tells whether a pooler stands between (the backend that answers is not the one that
 * greeted us), how the clocks differ, and what the server promises.
 *
 * Thread: the handle's.
 */
#include "store/postgres_conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define HOSTS_MAX  16
#define PARAMS_MAX 16
#define SERVER_MIN 130000 /* xid8, which the marks are made of */

struct params {
    const char *keys[PARAMS_MAX + 1], *values[PARAMS_MAX + 1];
    size_t n;
};

static void param(struct params *p, const char *key, const char *value)
{
    if (!value || p->n == PARAMS_MAX)
        return;
    p->keys[p->n] = key;
    p->values[p->n++] = value;
    p->keys[p->n] = p->values[p->n] = NULL;
}

/* ---- hosts ---------------------------------------------------------------------------------- */

/* The hosts of a URL; lists with commas, cut up.  The texts are owned. */
struct hosts {
    char *host, *addr, *port;
    const char *hosts[HOSTS_MAX], *addrs[HOSTS_MAX], *ports[HOSTS_MAX];
    size_t n; /* 0 = the library knows best (a service file, or more than we can hold) */
    bool prefer_standby;
};

static size_t cut(char *list, const char **out)
{
    size_t n = 0;
    char *item;

    while ((item = list ? strsep(&list, ",") : NULL) && n < HOSTS_MAX)
        out[n++] = item;
    return item ? HOSTS_MAX + 1 : n; /* too many */
}

static char *dup_or_null(const char *s)
{
    return s && *s ? strdup(s) : NULL;
}

static const char *value_of(const PQconninfoOption *o, const char *key)
{
    for (; o && o->keyword; o++)
        if (strcmp(o->keyword, key) == 0)
            return o->val;
    return NULL;
}

static const char *or_env(const char *value, const char *env)
{
    return value && *value ? value : getenv(env);
}

static void hosts_clear(struct hosts *h)
{
    free(h->host);
    free(h->addr);
    free(h->port);
}

static void hosts_read(const char *conninfo, struct hosts *h)
{
    PQconninfoOption *o = PQconninfoParse(conninfo, NULL);
    const char *attrs = value_of(o, "target_session_attrs");
    size_t n_hosts, n_addrs, n_ports;

    memset(h, 0, sizeof(*h));
    h->host = dup_or_null(or_env(value_of(o, "host"), "PGHOST"));
    h->addr = dup_or_null(or_env(value_of(o, "hostaddr"), "PGHOSTADDR"));
    h->port = dup_or_null(or_env(value_of(o, "port"), "PGPORT"));
    h->prefer_standby = attrs && strcmp(attrs, "prefer-standby") == 0;
    n_hosts = cut(h->host, h->hosts);
    n_addrs = cut(h->addr, h->addrs);
    n_ports = cut(h->port, h->ports);
    h->n = n_addrs > n_hosts ? n_addrs : n_hosts;
    if (h->n > HOSTS_MAX || (n_ports > 1 && n_ports != h->n) || value_of(o, "service"))
        h->n = 0;
    for (size_t i = n_ports; n_ports == 1 && i < h->n; i++)
        h->ports[i] = h->ports[0];
    PQconninfoFree(o);
}

/* ---- one connection ---------------------------------------------------------------------------- */

int st_pg_poll(PGconn *c, short events, int64_t until_us)
{
    struct pollfd p = {.fd = PQsocket(c), .events = events};

    for (;;) {
        const int64_t left = until_us - st_clock_mono_us();
        int n;

        if (p.fd < 0)
            return -1;
        n = poll(&p, 1, left <= 0 ? 0 : (int)((left + ST_MS - 1) / ST_MS));
        if (n > 0)
            return 1;
        if (n == 0 && left <= 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
    }
}

static void ignore_notice(void *arg, const char *message)
{
    (void)arg;
    (void)message;
}

/* What the URL says comes before what stands first here; what stands behind it always holds. */
static void params_fill(struct params *p, const char *conninfo, const struct hosts *h, size_t i, const char *attrs,
                        const char *user_timeout)
{
    p->n = 0;
    param(p, "fallback_application_name", "stint");
    param(p, "keepalives", "1");
    param(p, "keepalives_idle", "30");
    param(p, "keepalives_interval", "10");
    param(p, "keepalives_count", "3");
    param(p, "tcp_user_timeout", user_timeout);
    if (!getenv("PGGSSENCMODE")) /* looking for a ticket costs more than the connection */
        param(p, "gssencmode", "disable");
    param(p, "dbname", conninfo);
    param(p, "client_encoding", "UTF8");
    param(p, "target_session_attrs", attrs);
    if (!h->n)
        return;
    param(p, "host", h->hosts[i] ? h->hosts[i] : "");
    param(p, "hostaddr", h->addrs[i] ? h->addrs[i] : "");
    param(p, "port", h->ports[i] && *h->ports[i] ? h->ports[i] : "5432");
}

static PGconn *start(struct params *p)
{
    PGconn *c = PQconnectStartParams(p->keys, p->values, 1);

    if (c) {
        PQsetNoticeProcessor(c, ignore_notice, NULL);
        PQsetErrorVerbosity(c, PQERRORS_VERBOSE); /* so that a refusal's SQLSTATE can be read */
    }
    return c;
}

/* false = it failed (PQerrorMessage says why) or the time has passed (*late). */
static bool finish(PGconn *c, int64_t until_us, bool *late)
{
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;

    *late = false;
    if (PQstatus(c) == CONNECTION_BAD)
        return false;
    while (want != PGRES_POLLING_OK) {
        const int ready = st_pg_poll(c, want == PGRES_POLLING_READING ? POLLIN : POLLOUT, until_us);

        *late = ready == 0;
        if (ready <= 0)
            return false;
        want = PQconnectPoll(c);
        if (want == PGRES_POLLING_FAILED)
            return false;
    }
    return true;
}

static void host_name(struct st_pg *s, const char *conninfo, const struct hosts *h, size_t i, char *out, size_t size)
{
    const char *host = h->n < 2 ? NULL : h->hosts[i] && *h->hosts[i] ? h->hosts[i] : h->addrs[i];

    if (host)
        snprintf(out, size, "%s:%s", host, h->ports[i] && *h->ports[i] ? h->ports[i] : "5432");
    else
        snprintf(out, size, "%s", conninfo == s->url.listen ? s->url.listen_where : s->url.where);
}

static PGconn *try_host(struct st_pg *s, const char *conninfo, const struct hosts *h, size_t i, const char *attrs,
                        int64_t until_us, stint_error *err)
{
    const int64_t began_us = st_clock_mono_us();
    struct params p;
    char where[256], user_timeout[16];
    PGconn *c;
    bool late;

    snprintf(user_timeout, sizeof(user_timeout), "%d", s->base.timeout_ms + 1000);
    host_name(s, conninfo, h, i, where, sizeof(where));
    params_fill(&p, conninfo, h, i, attrs, user_timeout);
    c = start(&p);
    if (c && finish(c, until_us, &late))
        return c;
    if (!c) {
        st_fail(err, STINT_ENOMEM, "no memory for a connection to %s", where);
    } else if (late) {
        st_fail(err, STINT_EAGAIN, "%s does not answer (waited %d ms)", where,
                (int)((st_clock_mono_us() - began_us) / ST_MS));
        st_err_remedy(err, "start the server, or check host, port and the firewall");
    } else {
        st_pg_connect_fail(s, c, where, err);
    }
    PQfinish(c);
    return NULL;
}

/* One round over the hosts.  Of several failures the one that an operator must look at is told. */
static PGconn *try_hosts(struct st_pg *s, const char *conninfo, const struct hosts *h, const char *attrs,
                         int64_t until_us, stint_error *err)
{
    const size_t n = h->n ? h->n : 1;
    stint_error one = {0};

    for (size_t i = 0; i < n; i++) {
        const int64_t now = st_clock_mono_us();
        const int64_t share = (until_us - now) / (int64_t)(n - i);
        PGconn *c = try_host(s, conninfo, h, i, attrs, now + (share > 0 ? share : 0), &one);

        if (c)
            return c;
        if (i == 0 || err->code == STINT_EAGAIN)
            *err = one;
    }
    return NULL;
}

static PGconn *any_host(struct st_pg *s, const char *conninfo, int64_t until_us, stint_error *err)
{
    struct hosts h;
    PGconn *c;

    hosts_read(conninfo, &h);
    if (h.n < 2 || !h.prefer_standby) {
        c = try_hosts(s, conninfo, &h, NULL, until_us, err);
    } else {
        const int64_t now = st_clock_mono_us();

        c = try_hosts(s, conninfo, &h, "standby", now + (until_us - now) / 2, err);
        if (!c)
            c = try_hosts(s, conninfo, &h, "any", until_us, err);
    }
    hosts_clear(&h);
    if (c)
        st_err_clear(err); /* of a host that was tried before */
    return c;
}

/* ---- what is at the other end ---------------------------------------------------------------------- */

static stint_code too_old(struct st_pg *s, PGconn *c, stint_error *err)
{
    st_fail(err, STINT_ESTORE, "%s runs PostgreSQL %s, which is too old", s->url.where,
            PQparameterStatus(c, "server_version"));
    st_err_remedy(err, "use version %d or later", SERVER_MIN / 10000);
    return err->code;
}

static stint_code ask(struct st_pg *s, PGconn *c, int64_t until_us, struct st_pg_probe *out, stint_error *err)
{
    static const char sql[] = "SELECT pg_catalog.pg_backend_pid(), (extract(epoch FROM pg_catalog.clock_timestamp())"
                              " OPERATOR(pg_catalog.*) 1000000)::int8, pg_catalog.current_setting('fsync'),"
                              " pg_catalog.current_setting('synchronous_commit')";
    struct st_pg_args none;
    PGresult *r = NULL;
    int64_t before, after;
    struct st_slice fsync, sync;

    st_pg_args_init(&none);
    before = st_clock_real_us();
    if (st_pg_exec_on(s, c, sql, &none, until_us, &r, err) != ST_PG_DONE)
        return err->code;
    after = st_clock_real_us();
    fsync = st_pg_get(r, 0, 2);
    sync = st_pg_get(r, 0, 3);
    out->pooled = st_pg_get_i64(r, 0, 0, 0) != PQbackendPID(c);
    out->clock_off_us = st_pg_get_i64(r, 0, 1, after) - (before + (after - before) / 2);
    out->boot_off_us = out->clock_off_us + after - st_clock_boot_us();
    snprintf(out->durability, sizeof(out->durability), "fsync=%.*s, synchronous_commit=%.*s", (int)fsync.len, fsync.p,
             (int)sync.len, sync.p);
    PQclear(r);
    return STINT_OK;
}

PGconn *st_pg_connect_until(struct st_pg *s, const char *conninfo, int64_t until_us, struct st_pg_probe *probe,
                            stint_error *err)
{
    PGconn *c;

    if (st_pg_fork_check(s, err))
        return NULL;
    c = any_host(s, conninfo ? conninfo : s->url.conninfo, until_us, err);
    if (!c)
        return NULL;
    fcntl(PQsocket(c), F_SETFD, FD_CLOEXEC);
    PQsetErrorVerbosity(c, PQERRORS_DEFAULT);
    if (PQserverVersion(c) < SERVER_MIN ? too_old(s, c, err) : probe && ask(s, c, until_us, probe, err)) {
        PQfinish(c);
        return NULL;
    }
    return c;
}

PGconn *st_pg_connect(struct st_pg *s, const char *conninfo, bool *pooled, stint_error *err)
{
    struct st_pg_probe probe = {0};
    PGconn *c =
        st_pg_connect_until(s, conninfo, st_clock_mono_us() + s->base.timeout_ms * ST_MS, pooled ? &probe : NULL, err);

    if (pooled)
        *pooled = probe.pooled;
    return c;
}
