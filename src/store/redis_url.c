/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_url.c - what a Redis URL says.
 *
 *     redis[s][-sentinel|-cluster]://[USER[:PASSWORD]@]HOST[:PORT][,...][/DB][?OPTION=VALUE&...]
 *     redis+unix://[USER[:PASSWORD]@]/PATH[?db=N&...]
 *
 * User, password, path and values may be percent-encoded.  An error never shows a password: it names the part that is wrong.
 *
 * Thread: any.
 */
#include "store/redis_net.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT_REDIS    6379
#define PORT_SENTINEL 26379
#define UNIX_PATH_MAX 107

static const struct scheme {
    const char *name;
    enum st_redis_kind kind;
    bool tls, local;
} schemes[] = {
    {"redis", ST_REDIS_ONE, false, false},
    {"rediss", ST_REDIS_ONE, true, false},
    {"redis+unix", ST_REDIS_ONE, false, true},
    {"redis-socket", ST_REDIS_ONE, false, true},
    {"redis-sentinel", ST_REDIS_SENTINEL, false, false},
    {"rediss-sentinel", ST_REDIS_SENTINEL, true, false},
    {"redis-cluster", ST_REDIS_CLUSTER, false, false},
    {"rediss-cluster", ST_REDIS_CLUSTER, true, false},
};

/* *rest is what follows "://". */
static const struct scheme *scheme_of(const char *url, const char **rest)
{
    const char *colon = url ? strstr(url, "://") : NULL;

    for (size_t i = 0; colon && i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (st_slice_is(ST_SLICE(url, (size_t)(colon - url)), schemes[i].name)) {
            *rest = colon + 3;
            return &schemes[i];
        }
    }
    return NULL;
}

bool st_redis_url_is(const char *url)
{
    const char *rest;

    return scheme_of(url, &rest) != NULL;
}

/* ---- addresses ----------------------------------------------------------------------------------- */

char *st_redis_addr_text(const struct st_redis_addr *a, char *out, size_t size)
{
    if (!a->port)
        snprintf(out, size, "%s", a->host);
    else
        snprintf(out, size, strchr(a->host, ':') ? "[%s]:%d" : "%s:%d", a->host, a->port);
    return out;
}

bool st_redis_addr_eq(const struct st_redis_addr *a, const struct st_redis_addr *b)
{
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}

/* ---- decoding ---------------------------------------------------------------------------------------- */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* "a%20b" -> "a b"; what: for the message. */
static stint_code decode(struct st_slice s, const char *what, char **out, stint_error *err)
{
    char *to = malloc(s.len + 1);
    size_t n = 0;

    if (!to)
        return st_fail(err, STINT_ENOMEM, "no memory for a URL");
    for (size_t i = 0; i < s.len; i++) {
        int c = (unsigned char)s.p[i];

        if (c == '%') {
            const int high = i + 2 < s.len ? hex(s.p[i + 1]) : -1, low = i + 2 < s.len ? hex(s.p[i + 2]) : -1;

            c = high < 0 || low < 0 ? 0 : high * 16 + low;
            i += 2;
        }
        if (!c) {
            free(to);
            return st_refuse(err, "write a percent sign as %25",
                             "the %s in the Redis URL has a %% that is not followed by two digits", what);
        }
        to[n++] = (char)c;
    }
    to[n] = '\0';
    free(*out);
    *out = to;
    return STINT_OK;
}

static struct st_slice cut_at(struct st_slice *s, char c)
{
    const char *at = s->p ? memchr(s->p, c, s->len) : NULL;
    struct st_slice head = *s;

    if (!at) {
        *s = ST_NONE;
        return head;
    }
    head.len = (size_t)(at - s->p);
    *s = ST_SLICE(at + 1, s->len - head.len - 1);
    return head;
}

/* ---- the parts ------------------------------------------------------------------------------------------ */

static stint_code parse_user(struct st_slice s, struct st_redis_url *u, stint_error *err)
{
    const struct st_slice user = cut_at(&s, ':');
    stint_code code = STINT_OK;

    if (user.len)
        code = decode(user, "user", &u->user, err);
    if (!code && s.p)
        code = decode(s, "password", &u->password, err);
    if (!code && !u->password && user.len) /* a user without one: ACL's nopass */
        code = decode(ST_SLICE("", 0), "password", &u->password, err);
    return code;
}

static bool port_of(struct st_slice s, int *port)
{
    int64_t n;

    if (!st_parse_i64(s, &n) || n < 1 || n > 65535)
        return false;
    *port = (int)n;
    return true;
}

static bool host_ok(struct st_slice s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.p[i] <= ' ' || strchr("[]@/?#%\\\"", s.p[i]) || s.p[i] == 0x7f)
            return false;
    return s.len > 0 && s.len < sizeof(((struct st_redis_addr *)0)->host);
}

/* "host", "host:port", "[::1]:port" */
static stint_code parse_host(struct st_slice s, int port, struct st_redis_addr *a, stint_error *err)
{
    const char *close = s.len && s.p[0] == '[' ? memchr(s.p, ']', s.len) : NULL;
    const struct st_slice whole = s;
    struct st_slice host, rest;

    if (close) {
        host = ST_SLICE(s.p + 1, (size_t)(close - s.p - 1));
        rest = ST_SLICE(close + 1, (size_t)(s.p + s.len - close - 1));
    } else {
        host = cut_at(&s, ':');
        rest = s.p ? ST_SLICE(s.p - 1, s.len + 1) : ST_SLICE("", 0);
    }
    a->port = port;
    if (rest.len && (rest.p[0] != ':' || !port_of(ST_SLICE(rest.p + 1, rest.len - 1), &a->port)))
        return st_refuse(err,
                         "a port is a number from 1 to 65535; special characters of a password are percent-encoded",
                         "the Redis URL has a bad port"); /* what it is may be part of a password */
    if (!host_ok(host))
        return st_refuse(err, "write redis://HOST:PORT/DB; special characters of a password are percent-encoded",
                         whole.len ? "the Redis URL has a bad host" : "the Redis URL names no host");
    memcpy(a->host, host.p, host.len);
    a->host[host.len] = '\0';
    return STINT_OK;
}

static stint_code parse_hosts(struct st_slice s, struct st_redis_url *u, stint_error *err)
{
    const int port = u->kind == ST_REDIS_SENTINEL ? PORT_SENTINEL : PORT_REDIS;

    do {
        const struct st_slice one = cut_at(&s, ',');

        if (u->n_hosts == ST_REDIS_HOSTS_MAX)
            return st_refuse(err, "name a few of them: the others are found through these",
                             "the Redis URL names more than %d hosts", ST_REDIS_HOSTS_MAX);
        if (parse_host(one, port, &u->hosts[u->n_hosts++], err))
            return err ? err->code : STINT_EINVAL;
    } while (s.p);
    if (u->n_hosts > 1 && u->kind == ST_REDIS_ONE)
        return st_refuse(err, "use redis-sentinel:// or redis-cluster://",
                         "a redis:// URL names one host, this one has %zu", u->n_hosts);
    return STINT_OK;
}

static stint_code parse_db(struct st_slice s, struct st_redis_url *u, stint_error *err)
{
    int64_t n = 0;

    if (s.len && (!st_parse_i64(s, &n) || n < 0 || n > 1000000))
        return st_refuse(err, "the database is a number: redis://HOST/0", "the Redis URL has a bad database");
    if (n && u->kind == ST_REDIS_CLUSTER)
        return st_refuse(err, "leave it out", "a Redis Cluster has no databases but 0, the URL names %d", (int)n);
    u->db = (int)n;
    return STINT_OK;
}

/* ---- options ---------------------------------------------------------------------------------------------- */

static char **own_option(struct st_redis_url *u, struct st_slice name)
{
    const struct {
        const char *name;
        char **at;
    } own[] = {
        {"master", &u->master},     {"sentinel_user", &u->sentinel_user}, {"sentinel_password", &u->sentinel_password},
        {"tls_ca", &u->tls_ca},     {"tls_cert", &u->tls_cert},           {"tls_key", &u->tls_key},
        {"tls_name", &u->tls_name},
    };

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (st_slice_is(name, own[i].name))
            return own[i].at;
    return NULL;
}

static stint_code parse_verify(struct st_slice v, struct st_redis_url *u, stint_error *err)
{
    u->tls_verify = st_slice_is(v, "yes");
    if (u->tls_verify || st_slice_is(v, "no"))
        return STINT_OK;
    return st_refuse(err, "write tls_verify=yes or tls_verify=no", "tls_verify in the Redis URL is neither yes nor no");
}

static stint_code parse_option(struct st_slice s, struct st_redis_url *u, stint_error *err)
{
    const struct st_slice name = cut_at(&s, '=');
    char **own = own_option(u, name);
    stint_code code;

    if (!name.len || !s.p)
        return st_refuse(err, "options are NAME=VALUE, joined by &", "the Redis URL has an option without a value");
    if (own)
        return decode(s, "value of an option", own, err);
    if (st_slice_is(name, "tls_verify"))
        return parse_verify(s, u, err);
    if (st_slice_is(name, "db"))
        return parse_db(s, u, err);
    if (u->n_options == ST_REDIS_OPTIONS_MAX)
        return st_refuse(err, "leave some out", "the Redis URL has more than %d options", ST_REDIS_OPTIONS_MAX);
    code = decode(name, "name of an option", &u->options[u->n_options].name, err);
    if (!code)
        code = decode(s, "value of an option", &u->options[u->n_options].value, err);
    u->n_options++;
    return code;
}

static stint_code parse_options(struct st_slice s, struct st_redis_url *u, stint_error *err)
{
    stint_code code = STINT_OK;

    while (s.p && s.len && !code)
        code = parse_option(cut_at(&s, '&'), u, err);
    return code;
}

/* ---- all of it ------------------------------------------------------------------------------------------------ */

static stint_code check(struct st_redis_url *u, stint_error *err)
{
    const bool tls_options = u->tls_ca || u->tls_cert || u->tls_key || u->tls_name || !u->tls_verify;

    if (u->kind == ST_REDIS_SENTINEL && !(u->master && *u->master))
        return st_refuse(err, "add ?master=NAME, the name the sentinels know it by",
                         "a redis-sentinel:// URL needs the master's name");
    if (u->kind != ST_REDIS_SENTINEL && (u->master || u->sentinel_user || u->sentinel_password))
        return st_refuse(err, "write redis-sentinel://, or leave it out",
                         "master and sentinel_... are options of redis-sentinel:// only");
    if (tls_options && !u->tls)
        return st_refuse(err, "write rediss:// for TLS, or leave them out",
                         "tls_... options are for URLs that begin with rediss");
    if (!u->tls_cert != !u->tls_key)
        return st_refuse(err, "give both", "tls_cert and tls_key belong together");
    return STINT_OK;
}

static void name_it(struct st_redis_url *u)
{
    char host[280];

    st_redis_addr_text(&u->hosts[0], host, sizeof(host));
    if (u->kind == ST_REDIS_SENTINEL)
        snprintf(u->where, sizeof(u->where), "%.32s@%s/%d", u->master, host, u->db);
    else
        snprintf(u->where, sizeof(u->where), u->hosts[0].port ? "%s/%d" : "%s db %d", host, u->db);
}

/* The socket's path is what stands behind the '@', with its slash. */
static stint_code parse_path(struct st_slice s, struct st_redis_url *u, stint_error *err)
{
    char *path = NULL;
    stint_code code = decode(s, "path", &path, err);

    if (code)
        return code;
    if (path[0] != '/' || strlen(path) > UNIX_PATH_MAX)
        code = st_refuse(err, "write redis+unix:///run/redis/redis.sock",
                         "a socket's path begins with / and has at most %d bytes", UNIX_PATH_MAX);
    else
        snprintf(u->hosts[u->n_hosts++].host, sizeof(u->hosts[0].host), "%s", path);
    free(path);
    return code;
}

/* The '@' that ends the user is the last one before the path begins. */
static struct st_slice cut_user(struct st_slice *s)
{
    const char *slash = memchr(s->p, '/', s->len);
    const size_t n = slash ? (size_t)(slash - s->p) : s->len;
    const char *at = memrchr(s->p, '@', n);
    struct st_slice user = ST_NONE;

    if (at) {
        user = ST_SLICE(s->p, (size_t)(at - s->p));
        *s = ST_SLICE(at + 1, s->len - user.len - 1);
    }
    return user;
}

static stint_code parse(const struct scheme *scheme, const char *rest, struct st_redis_url *u, stint_error *err)
{
    struct st_slice options = st_slice_cstr(rest), hosts = cut_at(&options, '?'), user = cut_user(&hosts), db = ST_NONE;
    stint_code code = user.p ? parse_user(user, u, err) : STINT_OK;

    if (!code && scheme->local) {
        code = parse_path(hosts, u, err);
    } else if (!code) {
        db = hosts;
        hosts = cut_at(&db, '/');
        code = parse_hosts(hosts, u, err);
    }
    if (!code && db.p)
        code = parse_db(db, u, err);
    if (!code)
        code = parse_options(options, u, err);
    return code ? code : check(u, err);
}

stint_code st_redis_url_parse(const char *url, struct st_redis_url *out, stint_error *err)
{
    const char *rest;
    const struct scheme *scheme = scheme_of(url, &rest);
    stint_code code;

    memset(out, 0, sizeof(*out));
    if (!scheme)
        return st_refuse(
            err, "write redis://HOST:PORT/DB, rediss://, redis+unix:///PATH, redis-sentinel:// or redis-cluster://",
            "this is not the URL of a Redis server");
    if (strlen(url) > ST_REDIS_URL_MAX)
        return st_refuse(err, "shorten it", "the Redis URL is longer than %d bytes", ST_REDIS_URL_MAX);
    out->kind = scheme->kind;
    out->tls = scheme->tls;
    out->tls_verify = true;
    code = parse(scheme, rest, out, err);
    if (code)
        st_redis_url_clear(out);
    else
        name_it(out);
    return code;
}

static void wipe(char *secret)
{
    if (secret)
        sodium_memzero(secret, strlen(secret));
    free(secret);
}

void st_redis_url_clear(struct st_redis_url *u)
{
    free(u->user);
    wipe(u->password);
    free(u->master);
    free(u->sentinel_user);
    wipe(u->sentinel_password);
    free(u->tls_ca);
    free(u->tls_cert);
    free(u->tls_key);
    free(u->tls_name);
    for (size_t i = 0; i < u->n_options; i++) {
        free(u->options[i].name);
        free(u->options[i].value);
    }
    memset(u, 0, sizeof(*u));
}

/* ---- other people's options --------------------------------------------------------------------------------------- */

const char *st_redis_url_option(const struct st_redis_url *u, const char *name)
{
    for (size_t i = 0; i < u->n_options; i++)
        if (strcmp(u->options[i].name, name) == 0)
            return u->options[i].value;
    return NULL;
}

stint_code st_redis_url_options_check(const struct st_redis_url *u, const char *const *known, stint_error *err)
{
    for (size_t i = 0; i < u->n_options; i++) {
        const char *const *k = known;

        while (k && *k && strcmp(*k, u->options[i].name) != 0)
            k++;
        if (!k || !*k)
            return st_refuse(err, "leave it out, or see docs/redis.md for those there are",
                             "the Redis URL has an unknown option: %.64s", u->options[i].name);
    }
    return STINT_OK;
}

const char *st_redis_option(const struct st_redis *r, const char *name)
{
    return st_redis_url_option(&r->url, name);
}

stint_code st_redis_options_check(const struct st_redis *r, const char *const *known, stint_error *err)
{
    return st_redis_url_options_check(&r->url, known, err);
}
