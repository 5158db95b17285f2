/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres.c - the PostgreSQL store: URLs, opening and closing a handle, and its table of operations.
 *
 * The files around it:
 *     postgres_connect  making a connection        postgres_conn     requests, deadlines, retries
 *     postgres_err      what a refusal means       postgres_args     binary parameters and results
 *     postgres_id       ids and lanes              postgres_sql.inc  every statement
 *     postgres_schema   versions                   sql/              tables and functions
 *     postgres_{lane,mark}                         what a process knows of the lanes
 *     postgres_{enqueue,claim,acquire,finish,reap,steer,prune,worker,tx}   operations that write
 *     postgres_{read,list,queues,check,wait}                               those that look
 *
 *     postgres://USER:PASSWORD@HOST:PORT/DB?...&schema=NAME&listen=URL&notify=off
 *
 * The last three are ours and taken out; the rest is libpq's.
 *
 * Forked children: a handle belongs to the process that opened it.  In a child every call is ESTATE, and
 * closing it frees memory without a byte to the parent's server; a child opens its own.
 *
 * Thread: a handle belongs to one thread at a time; the registry is guarded.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/postgres_conn.h"

/* ---- URLs ------------------------------------------------------------------------------------- */

#define SCHEMA_MAX 55 /* NAMEDATALEN - 1, less the end of a role's name: _enqueue */
#define URL_MAX    8192

/* Where the hosts begin, behind user and password; as libpq finds it: at the first '@', if no '/' stands before it. */
static const char *hosts_of(const char *url)
{
    const char *at = strstr(url, "://") + 3;
    const size_t user = strcspn(at, "@/");

    return at[user] == '@' ? at + user + 1 : at;
}

/* Where the parameters begin, at '?': one in a password does not count. */
static const char *query_of(const char *url)
{
    return strchr(hosts_of(url), '?');
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* NULL = no memory, or not well-formed. */
static char *percent_decode(const char *p, size_t len)
{
    char *out = malloc(len + 1);
    size_t n = 0;

    for (size_t i = 0; out && i < len; i++) {
        if (p[i] != '%') {
            out[n++] = p[i];
        } else if (i + 2 < len && hex(p[i + 1]) >= 0 && hex(p[i + 2]) >= 0 && (p[i + 1] != '0' || p[i + 2] != '0')) {
            out[n++] = (char)(hex(p[i + 1]) << 4 | hex(p[i + 2]));
            i += 2;
        } else {
            free(out);
            return NULL;
        }
    }
    if (out)
        out[n] = '\0';
    return out;
}

/* Names go into SQL text, in literals, format() and function bodies too: nothing that ends one of these.  What is in the schema
 * is ours, to grant, to revoke and to drop: not the one that everybody shares. */
static stint_code schema_check(const char *name, stint_error *err)
{
    const size_t len = strlen(name);

    if (len == 0 || len > SCHEMA_MAX || !st_utf8_valid(name, len) || strpbrk(name, "'\"\\{}$;%") ||
        strncmp(name, "pg_", 3) == 0)
        return st_refuse(err, "a name has 1 to 55 bytes, none of ' \" \\ { } $ ; %, and does not begin with pg_",
                         "schema=%s cannot be the name of a schema", name);
    if (strcmp(name, "public") == 0 || strcmp(name, "information_schema") == 0)
        return st_refuse(err, "name one that stint has for itself, such as schema=stint_jobs",
                         "schema=%s is shared with others", name);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f)
            return st_refuse(err, "use letters, digits and _", "a schema's name has control characters");
    return STINT_OK;
}

static stint_code is_url(const char *text, stint_error *err)
{
    if (strncmp(text, "postgres://", 11) == 0 || strncmp(text, "postgresql://", 13) == 0)
        return STINT_OK;
    return st_refuse(err, "for example listen=postgres%3A%2F%2Fhost%2Fdb", "listen= is not the URL of a server");
}

/* Is it one of ours?  Then it is taken (*mine). */
static stint_code take_param(struct st_pg_url *u, const char *p, size_t len, bool *mine, stint_error *err)
{
    static const char *const names[] = {"schema=", "listen=", "notify="};
    char *value = NULL;
    size_t k = 0;

    while (k < 3 && (len < 7 || strncmp(p, names[k], 7) != 0))
        k++;
    *mine = k < 3;
    if (!*mine)
        return STINT_OK;
    value = percent_decode(p + 7, len - 7);
    if (!value)
        return st_refuse(err, "write % as %25", "%s is not well-formed in the store's URL", names[k]);
    if (k == 0) {
        free(u->schema);
        u->schema = value;
        return schema_check(value, err);
    }
    if (k == 1) {
        free(u->listen);
        u->listen = value;
        return is_url(value, err);
    }
    u->notify = strcmp(value, "off") != 0;
    k = u->notify && strcmp(value, "on") != 0;
    free(value);
    return k ? st_refuse(err, "it takes notify=on (the default) or notify=off", "notify= is neither on nor off")
             : STINT_OK;
}

/* Copies the URL less our own parameters. */
static stint_code split(const char *url, struct st_pg_url *u, stint_error *err)
{
    const char *query = query_of(url), *p = query ? query + 1 : NULL;
    struct st_buf b;
    char glue = '?';

    st_buf_init(&b, URL_MAX);
    st_buf_put(&b, url, query ? (size_t)(query - url) : strlen(url));
    while (p && *p) {
        const size_t len = strcspn(p, "&");
        bool mine = false;

        if (take_param(u, p, len, &mine, err)) {
            st_buf_clear(&b);
            return err->code;
        }
        if (!mine && len) {
            st_buf_putc(&b, glue);
            st_buf_put(&b, p, len);
            glue = '&';
        }
        p += len + (p[len] == '&');
    }
    u->conninfo = st_buf_take(&b);
    return u->conninfo ? STINT_OK : st_refuse(err, "shorten it", "the store's URL is too long");
}

#define HOW_A_URL_IS "postgres://USER:PASSWORD@HOST:PORT/DATABASE; characters such as @ / ? % in a password as %XX"

/* libpq quotes what it does not understand, which may be the password: only a parameter's name is told. */
static stint_code parse_fail(const char *message, stint_error *err)
{
    static const char known[] = "invalid URI query parameter: ";
    const bool name = message && strncmp(message, known, strlen(known)) == 0;
    const size_t len = message ? strcspn(message, name ? "\r\n" : ":\"\r\n") : 0;

    return st_refuse(err, HOW_A_URL_IS, "the store's URL is not one of PostgreSQL: %.*s", (int)len,
                     message ? message : "");
}

static const char *option(const PQconninfoOption *o, const char *key, const char *fallback)
{
    for (; o->keyword; o++)
        if (strcmp(o->keyword, key) == 0 && o->val && *o->val)
            return o->val;
    return fallback;
}

static const char *or_env(const char *value, const char *env, const char *fallback)
{
    const char *e = getenv(env);

    return value ? value : e && *e ? e : fallback;
}

/* host:port/database, several hosts as they are listed. */
static void where_put(struct st_buf *b, const PQconninfoOption *o, const char *schema)
{
    const char *host = or_env(option(o, "host", option(o, "hostaddr", NULL)), "PGHOST", "local");
    const char *port = or_env(option(o, "port", NULL), "PGPORT", "5432");
    const char *user = or_env(option(o, "user", NULL), "PGUSER", "");
    const char *db = or_env(option(o, "dbname", NULL), "PGDATABASE", user);

    while (*host) {
        const size_t nh = strcspn(host, ","), np = strcspn(port, ",");

        st_buf_put(b, host, nh);
        st_buf_putc(b, ':');
        st_buf_put(b, port, np);
        host += nh + (host[nh] == ',');
        port += port[np] == ',' ? np + 1 : 0;
        if (*host)
            st_buf_putc(b, ',');
    }
    st_buf_printf(b, "/%s", db);
    if (strcmp(schema, "stint") != 0)
        st_buf_printf(b, "?schema=%s", schema);
}

/* With an '@' or '/' in a password, or without a host behind it, libpq takes a piece of it for host, port or database, and these are
 * told.  NULL = refused; PQconninfoFree() what is returned. */
static PQconninfoOption *parse(const char *url, stint_error *err)
{
    const char *hosts = hosts_of(url), *port;
    char *message = NULL;
    PQconninfoOption *o;

    if (memchr(hosts, '@', strcspn(hosts, "?"))) {
        st_refuse(err, HOW_A_URL_IS, "the store's URL has an @ too many");
        return NULL;
    }
    o = PQconninfoParse(url, &message);
    if (!o)
        parse_fail(message, err);
    PQfreemem(message);
    port = o ? option(o, "port", "") : "";
    if (port[strspn(port, "0123456789,")]) {
        PQconninfoFree(o);
        st_refuse(err, HOW_A_URL_IS, "the store's URL has a port that is not a number");
        return NULL;
    }
    return o;
}

static stint_code listen_read(struct st_pg_url *u, stint_error *err)
{
    PQconninfoOption *o = parse(u->listen, err);
    struct st_buf b;

    if (!o) {
        st_err_prefix(err, "listen=");
        return err->code;
    }
    st_buf_init(&b, URL_MAX);
    where_put(&b, o, "stint");
    u->listen_where = st_buf_take(&b);
    PQconninfoFree(o);
    return u->listen_where ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory for the store's URL");
}

static stint_code url_read(const char *url, struct st_pg_url *u, stint_error *err)
{
    PQconninfoOption *o;
    struct st_buf b;

    u->notify = true;
    if (split(url, u, err) || (u->listen && listen_read(u, err)))
        return err->code;
    if (!u->schema)
        u->schema = strdup("stint");
    o = parse(u->conninfo, err);
    if (!o)
        return err->code;
    st_buf_init(&b, URL_MAX);
    if (u->schema) {
        where_put(&b, o, u->schema);
        u->where = st_buf_take(&b);
        st_buf_printf(&b, "\"%s\"", u->schema);
        u->quoted = st_buf_take(&b);
    }
    PQconninfoFree(o);
    return u->where && u->quoted ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory for the store's URL");
}

static void url_clear(struct st_pg_url *u)
{
    free(u->conninfo);
    free(u->listen);
    free(u->listen_where);
    free(u->where);
    free(u->schema);
    free(u->quoted);
}

/* ---- what handles of one URL share ---------------------------------------------------------------- */

static pthread_mutex_t registry_mu = PTHREAD_MUTEX_INITIALIZER;
static struct st_pg_shared *registry;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

/* A child starts with none: what it inherits may have been in the middle of a change. */
static void registry_forget(void)
{
    pthread_mutex_init(&registry_mu, NULL);
    registry = NULL;
}

static void registry_watch(void)
{
    pthread_atfork(NULL, NULL, registry_forget);
}

static void shared_free(struct st_pg_shared *sh)
{
    st_pg_lanes_clear(sh);
    pthread_mutex_destroy(&sh->mu);
    free(sh->url);
    free(sh);
}

static struct st_pg_shared *shared_new(const char *url)
{
    struct st_pg_shared_own *own = calloc(1, sizeof(*own));

    if (!own)
        return NULL;
    pthread_mutex_init(&own->sh.mu, NULL);
    own->sh.url = strdup(url);
    if (own->sh.url)
        return &own->sh;
    shared_free(&own->sh);
    return NULL;
}

static struct st_pg_shared *shared_get(const char *url)
{
    struct st_pg_shared *sh;

    pthread_once(&registry_once, registry_watch);
    pthread_mutex_lock(&registry_mu);
    for (sh = registry; sh && strcmp(sh->url, url) != 0;)
        sh = sh->next;
    if (!sh && (sh = shared_new(url))) {
        sh->next = registry;
        registry = sh;
    }
    if (sh)
        sh->refs++;
    pthread_mutex_unlock(&registry_mu);
    return sh;
}

static void shared_put(struct st_pg_shared *sh)
{
    struct st_pg_shared **at = &registry;

    pthread_mutex_lock(&registry_mu);
    if (--sh->refs == 0) {
        while (*at && *at != sh)
            at = &(*at)->next;
        if (*at)
            *at = sh->next;
        shared_free(sh);
    }
    pthread_mutex_unlock(&registry_mu);
}

/* ---- small operations ------------------------------------------------------------------------------ */

static int64_t pg_now(struct st_store *store)
{
    return st_clock_boot_us() + st_pg_of(store)->boot_off_us;
}

/* Any thread. */
void st_pg_interrupt(struct st_store *store)
{
    const uint64_t one = 1;
    ssize_t n;

    do {
        n = write(st_pg_of(store)->wake_fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR); /* EAGAIN: it is full of wake-ups */
}

void st_pg_about(struct st_store *store, struct st_store_about *out)
{
    struct st_pg *s = st_pg_of(store);
    struct st_pg_shared_own *sh = (struct st_pg_shared_own *)s->sh;

    memset(out, 0, sizeof(*out));
    snprintf(out->kind, sizeof(out->kind), "postgres");
    snprintf(out->where, sizeof(out->where), "%s", s->url.where);
    pthread_mutex_lock(&sh->sh.mu);
    snprintf(out->durability, sizeof(out->durability), "%s", sh->durability);
    snprintf(out->version, sizeof(out->version), "%s", sh->version);
    pthread_mutex_unlock(&sh->sh.mu);
}

stint_code st_pg_backup(struct st_store *store, const char *path, st_progress_fn progress, void *arg, stint_error *err)
{
    const struct st_pg *s = st_pg_of(store);

    (void)path;
    (void)progress;
    (void)arg;
    st_fail(err, STINT_EINVAL, "the postgres store makes no backups of its own");
    st_err_remedy(err, "use pg_dump --schema=%s, or a base backup of the server", s->url.quoted);
    return STINT_EINVAL;
}

/* ---- closing ------------------------------------------------------------------------------------------ */

static void pg_close(struct st_store *store)
{
    struct st_pg *s = st_pg_of(store);
    const bool inherited = st_pg_own(s)->pid != getpid();

    if (!inherited) /* what a child inherits of the waits stays, unused */
        st_pg_wait_close(s);
    st_pg_care_close(s);
    st_pg_hangup(s->c, inherited);
    st_pg_hangup(s->tx, inherited);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    for (int i = 0; i < PG_SQL_N; i++)
        free(s->text[i]);
    url_clear(&s->url);
    if (s->sh && !inherited)
        shared_put(s->sh);
    free(s);
}

static const struct st_store_ops postgres_ops = {
    .name = "postgres",
    .caps = ST_CAP_PRIORITY | ST_CAP_TYPE_FILTER | ST_CAP_DUE_ORDER | ST_CAP_UNIQUE_FOREVER | ST_CAP_BATCH_ATOMIC |
            ST_CAP_USER_TX | ST_CAP_ATOMIC_HANDLER | ST_CAP_FENCE_FOREIGN,
    .enqueue = st_pg_enqueue,
    .enqueue_tx = st_pg_enqueue_tx,
    .claim = st_pg_claim,
    .exchange = st_pg_exchange,
    .acquire = st_pg_acquire,
    .acquire_many = st_pg_acquire_many,
    .renew = st_pg_renew,
    .finish = st_pg_finish,
    .transact = st_pg_transact,
    .transact_open = st_pg_transact_open,
    .abandon = st_pg_abandon,
    .reap = st_pg_reap,
    .disown = st_pg_disown,
    .flagged = st_pg_flagged,
    .cancel = st_pg_cancel,
    .retry = st_pg_retry,
    .discard = st_pg_discard,
    .pause = st_pg_pause,
    .get = st_pg_get_job,
    .list = st_pg_list,
    .queues = st_pg_queues,
    .next_due = st_pg_next_due,
    .prune = st_pg_prune,
    .upkeep = st_pg_upkeep,
    .worker_beat = st_pg_worker_beat,
    .worker_list = st_pg_worker_list,
    .worker_remove = st_pg_worker_remove,
    .lead = st_pg_lead,
    .wait = st_pg_wait,
    .interrupt = st_pg_interrupt,
    .watch = st_pg_watch,
    .news = st_pg_news,
    .schema = st_pg_schema,
    .schema_down = st_pg_schema_take_down,
    .schema_sql = st_pg_schema_sql,
    .backup = st_pg_backup,
    .check = st_pg_check,
    .about = st_pg_about,
    .now = pg_now,
    .close = pg_close,
};

/* ---- opening ------------------------------------------------------------------------------------------- */

/* The first handle of a URL connects, to say at once what is wrong; the others when they are first used. */
static stint_code first_look(struct st_pg *s, stint_error *err)
{
    struct st_pg_shared_own *sh = (struct st_pg_shared_own *)s->sh;
    bool known;

    pthread_mutex_lock(&sh->sh.mu);
    known = sh->known;
    s->clock_off_us = sh->clock_off_us;
    s->boot_off_us = sh->boot_off_us;
    pthread_mutex_unlock(&sh->sh.mu);
    if (known)
        return STINT_OK;
    st_pg_own(s)->until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    if (st_pg_conn_up(s, err) || s->no_migrate)
        return err->code;
    if (st_pg_schema_open(s, err))
        return err->code;
    pthread_mutex_lock(&sh->sh.mu);
    sh->known = true;
    pthread_mutex_unlock(&sh->sh.mu);
    return STINT_OK;
}

static stint_code handle_open(struct st_pg *s, const char *url, const struct st_store_open *opt, stint_error *err)
{
    s->base.ops = &postgres_ops;
    s->base.timeout_ms = opt && opt->timeout_ms > 0 ? opt->timeout_ms : 5000;
    s->no_create = opt && opt->no_create;
    s->no_migrate = opt && opt->no_migrate;
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return st_fail(err, STINT_EAGAIN, "cannot open a PostgreSQL store: %s", strerror(errno));
    if (url_read(url, &s->url, err))
        return err->code;
    s->sh = shared_get(url);
    if (!s->sh)
        return st_fail(err, STINT_ENOMEM, "no memory for %s", s->url.where);
    return first_look(s, err);
}

stint_code st_store_postgres_open(const char *url, const struct st_store_open *opt, struct st_store **out,
                                  stint_error *err)
{
    struct st_pg_own *own = calloc(1, sizeof(*own));
    stint_error local = {0};

    *out = NULL;
    if (!own)
        return st_fail(err, STINT_ENOMEM, "no memory for a store");
    own->pid = getpid();
    if (!handle_open(&own->pg, url, opt, &local)) {
        *out = &own->pg.base;
        return STINT_OK;
    }
    if (err)
        *err = local;
    pg_close(&own->pg.base); /* copes with whatever was not reached */
    return local.code;
}
