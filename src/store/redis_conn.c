/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_conn.c - the client: its connections, and how they introduce themselves.
 *
 * A connection is made when first needed, and again when it was lost.  It says who it is (AUTH, SELECT, CLIENT SETNAME) and
 * asks whom it talks to (HELLO, with the old protocol) in one round trip before anything of the caller's is sent: a
 * failure until then has changed nothing.
 *
 * After fork() the child's copy is of no use and not a byte goes to the server: see st_redis_fork_check.
 *
 * Thread: the client's.
 */
#include "store/redis_net.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 5000

/* ---- fork -------------------------------------------------------------------------------------------- */

stint_code st_redis_fork_check(const struct st_redis *r, stint_error *err)
{
    if (r->pid == getpid())
        return STINT_OK;
    st_fail(err, STINT_ESTATE, "this handle on %s was opened before the process was forked", r->url.where);
    st_err_remedy(err, "open the store again in the child");
    return STINT_ESTATE;
}

/* ---- introducing ourselves ------------------------------------------------------------------------------ */

enum step { S_AUTH, S_SELECT, S_HELLO, S_NAME, S_ROLE, S_ID, N_STEPS };

/* Its bytes; which: the steps that are in it, in their order. */
static void introduce(struct st_buf *b, const struct st_redis_login *as, bool which[N_STEPS])
{
    char db[16];
    struct st_slice auth[3] = {ST_SLICE("AUTH", 4), st_slice_cstr(as->user), st_slice_cstr(as->password)};
    const struct st_slice select[2] = {ST_SLICE("SELECT", 6),
                                       ST_SLICE(db, (size_t)snprintf(db, sizeof(db), "%d", as->db))};
    const struct st_slice hello[2] = {ST_SLICE("HELLO", 5), ST_SLICE("2", 1)};
    const struct st_slice name[3] = {ST_SLICE("CLIENT", 6), ST_SLICE("SETNAME", 7), ST_SLICE("stint", 5)};
    const struct st_slice role[1] = {ST_SLICE("ROLE", 4)}, id[2] = {ST_SLICE("CLIENT", 6), ST_SLICE("ID", 2)};

    if (!as->user)
        auth[1] = auth[2];
    if ((which[S_AUTH] = as->password != NULL))
        st_redis_put_command(b, auth, as->user ? 3 : 2);
    if ((which[S_SELECT] = as->db != 0))
        st_redis_put_command(b, select, 2);
    which[S_HELLO] = which[S_NAME] = true;
    st_redis_put_command(b, hello, 2);
    st_redis_put_command(b, name, 3);
    if ((which[S_ROLE] = which[S_ID] = !as->sentinel)) {
        st_redis_put_command(b, role, 1);
        st_redis_put_command(b, id, 2);
    }
}

/* The answer to HELLO: names and values in turns. */
static void read_hello(const redisReply *a, struct st_redis_hello *h)
{
    for (size_t i = 0; a->type == REDIS_REPLY_ARRAY && i + 1 < a->elements; i += 2) {
        const struct st_slice name = st_redis_text(a->element[i]), value = st_redis_text(a->element[i + 1]);

        if (st_slice_is(name, "mode"))
            h->cluster = st_slice_is(value, "cluster");
        else if (st_slice_is(name, "role"))
            h->replica = st_slice_is(value, "replica") || st_slice_is(value, "slave");
        else if (st_slice_is(name, "id"))
            h->id = st_redis_int(a->element[i + 1], 0);
    }
}

static stint_code read_role(const char *where, const redisReply *a, struct st_redis_hello *h, stint_error *err)
{
    const struct st_slice role = a->type == REDIS_REPLY_ARRAY && a->elements ? st_redis_text(a->element[0]) : ST_NONE;

    if (st_slice_is(role, "sentinel")) {
        st_fail(err, STINT_ESTORE, "%s is a Sentinel and keeps no data", where);
        st_err_remedy(err, "write redis-sentinel://HOST:PORT?master=NAME, or name the server it watches");
        return STINT_ESTORE;
    }
    if (role.p)
        h->replica = !st_slice_is(role, "master");
    return STINT_OK;
}

/* HELLO, ROLE and the name are welcome, not needed: an old server, a proxy or an ACL may refuse them. */
static stint_code step_done(const char *where, enum step step, const redisReply *a, struct st_redis_hello *h,
                            stint_error *err)
{
    const bool error = a->type == REDIS_REPLY_ERROR;
    const bool fatal = step <= S_SELECT || st_redis_error_is(a, "NOAUTH") || st_redis_error_is(a, "DENIED");

    if (error)
        return fatal || strstr(a->str, "max number of clients") ? st_redis_error(where, a, err) : STINT_OK;
    if (step == S_HELLO)
        read_hello(a, h);
    if (step == S_ROLE)
        return read_role(where, a, h, err);
    if (step == S_ID)
        h->id = st_redis_int(a, 0);
    return STINT_OK;
}

/* What a link says has no name in it. */
static stint_code from_link(const char *where, stint_code code, stint_error *err)
{
    if (err)
        st_err_prefix(err, "%s", where);
    if (code != STINT_ETIMEOUT && code != STINT_EAGAIN)
        return code;
    if (err)
        err->code = STINT_EAGAIN;
    if (code == STINT_ETIMEOUT)
        st_err_remedy(err,
                      "it takes connections and says nothing: see what holds it up (its process, a script, its disk)");
    else
        st_redis_away(where, err);
    return STINT_EAGAIN;
}

/* It took the connection and ended it when it was greeted: so does a port that speaks TLS. */
static stint_code hung_up(const char *where, stint_error *err)
{
    const stint_code code = from_link(where, STINT_EAGAIN, err);

    st_err_remedy(err, "start the server, or check host and port in the URL, and whether it wants TLS (rediss://)");
    return code;
}

static stint_code greet(const char *where, const struct st_redis_login *as, struct st_redis_link *l,
                        struct st_redis_hello *h, int64_t until_us, stint_error *err)
{
    bool which[N_STEPS] = {0};
    struct st_buf b;
    size_t sent;
    stint_code code;

    st_buf_init(&b, 64 << 10);
    introduce(&b, as, which);
    code = b.failed ? st_fail(err, STINT_ENOMEM, "no memory for a greeting")
                    : st_redis_link_send(l, b.p, b.len, &sent, until_us, err);
    if (b.p)
        sodium_memzero(b.p, b.len);
    st_buf_clear(&b);
    if (code == STINT_EAGAIN) /* it may have said why before it hung up */
        code = STINT_OK;
    for (int i = 0; i < N_STEPS && !code; i++) {
        redisReply *a;

        if (!which[i])
            continue;
        code = st_redis_link_recv(l, &a, -1, until_us, err);
        if (code == STINT_EAGAIN && !l->ssl && where[0] != '/')
            return hung_up(where, err);
        if (code)
            return from_link(where, code, err);
        code = step_done(where, (enum step)i, a, h, err);
        freeReplyObject(a);
    }
    return code;
}

stint_code st_redis_connect_as(struct st_redis *r, const struct st_redis_addr *to, const struct st_redis_login *as,
                               struct st_redis_link *l, struct st_redis_hello *hello, int64_t until_us,
                               stint_error *err)
{
    char where[280];
    stint_code code = STINT_OK;

    memset(hello, 0, sizeof(*hello));
    *l = (struct st_redis_link){.fd = -1};
    if (r->url.tls && !r->tls)
        code = st_redis_tls_context(&r->url, &r->tls, err);
    if (!code)
        code = st_redis_link_open(l, to, &r->url, r->tls, until_us, err);
    if (code)
        return code;
    code = greet(st_redis_addr_text(to, where, sizeof(where)), as, l, hello, until_us, err);
    if (code)
        st_redis_link_close(l);
    return code;
}

stint_code st_redis_connect(struct st_redis *r, const struct st_redis_addr *to, struct st_redis_link *l,
                            struct st_redis_hello *hello, int64_t until_us, stint_error *err)
{
    const struct st_redis_login as = {.user = r->url.user, .password = r->url.password, .db = r->url.db};

    return st_redis_connect_as(r, to, &as, l, hello, until_us, err);
}

stint_code st_redis_ask(struct st_redis_link *l, const char *where, const char *const *argv, redisReply **out,
                        int64_t until_us, stint_error *err)
{
    struct st_slice args[8];
    struct st_buf b;
    size_t n = 0, sent;
    stint_code code;

    while (argv[n] && n < 8) {
        args[n] = st_slice_cstr(argv[n]);
        n++;
    }
    st_buf_init(&b, 4096);
    st_redis_put_command(&b, args, n);
    code = b.failed ? st_fail(err, STINT_ENOMEM, "no memory for a command")
                    : st_redis_link_send(l, b.p, b.len, &sent, until_us, err);
    st_buf_clear(&b);
    if (!code)
        code = st_redis_link_recv(l, out, -1, until_us, err);
    if (code)
        return from_link(where, code, err);
    if ((*out)->type == REDIS_REPLY_ERROR) {
        code = st_redis_error(where, *out, err);
        freeReplyObject(*out);
        *out = NULL;
    }
    return code;
}

/* ---- nodes --------------------------------------------------------------------------------------------------- */

struct st_redis_node *st_redis_node_at(struct st_redis *r, const struct st_redis_addr *a)
{
    struct st_redis_node **nodes, *n;

    for (size_t i = 0; i < r->n_nodes; i++)
        if (st_redis_addr_eq(&r->nodes[i]->addr, a))
            return r->nodes[i];
    if (r->n_nodes == ST_REDIS_NODES_MAX)
        return NULL;
    nodes = realloc(r->nodes, (r->n_nodes + 1) * sizeof(*nodes));
    if (!nodes)
        return NULL;
    r->nodes = nodes;
    n = calloc(1, sizeof(*n));
    if (!n)
        return NULL;
    n->addr = *a;
    n->link.fd = -1;
    st_buf_init(&n->out, 2 * ST_REDIS_BATCH_MAX);
    r->nodes[r->n_nodes++] = n;
    return n;
}

void st_redis_node_free(struct st_redis_node *n)
{
    st_redis_link_close(&n->link);
    st_buf_clear(&n->out);
    free(n);
}

/* A plain server that is part of a Cluster is treated as one. */
static void learn(struct st_redis *r, const struct st_redis_hello *h)
{
    r->generation++;
    if (h->cluster && !r->cluster && r->url.kind == ST_REDIS_ONE && !r->url.db && r->url.hosts[0].port)
        r->cluster = r->map_old = true;
}

static stint_code not_master(struct st_redis_node *n, stint_error *err)
{
    char where[280];

    st_redis_link_close(&n->link);
    return st_redis_lost(st_redis_addr_text(&n->addr, where, sizeof(where)),
                         "the sentinels say it is the master, but it is not (yet)", err);
}

stint_code st_redis_node_up(struct st_redis *r, struct st_redis_node *n, int64_t until_us, stint_error *err)
{
    struct st_redis_hello h;
    stint_code code = STINT_OK;

    if (n->link.fd >= 0 && !st_redis_link_broken(&n->link))
        return STINT_OK;
    st_redis_link_close(&n->link);
    if (r->url.kind == ST_REDIS_SENTINEL)
        code = st_redis_master_find(r, &n->addr, until_us, err);
    if (!code)
        code = st_redis_connect(r, &n->addr, &n->link, &h, until_us, err);
    if (code)
        return code;
    learn(r, &h);
    return h.replica && r->url.kind == ST_REDIS_SENTINEL ? not_master(n, err) : STINT_OK;
}

/* ---- the client ------------------------------------------------------------------------------------------------ */

stint_code st_redis_open(const char *url, int timeout_ms, struct st_redis **out, stint_error *err)
{
    struct st_redis *r = calloc(1, sizeof(*r));
    stint_code code;

    *out = NULL;
    if (!r)
        return st_fail(err, STINT_ENOMEM, "no memory for a Redis client");
    code = st_redis_url_parse(url, &r->url, err);
    if (code) {
        free(r);
        return code;
    }
    r->pid = getpid();
    r->cluster = r->map_old = r->url.kind == ST_REDIS_CLUSTER;
    st_redis_timeout(r, timeout_ms);
    r->text = strdup(url);
    for (size_t i = 0; i < r->url.n_hosts && r->text && r->url.kind != ST_REDIS_SENTINEL; i++)
        if (!st_redis_node_at(r, &r->url.hosts[i]))
            break;
    if (r->url.kind == ST_REDIS_SENTINEL)
        (void)st_redis_node_at(r, &(struct st_redis_addr){.port = 1}); /* its address is found later */
    if (!r->text || !r->n_nodes) {
        st_redis_close(r);
        return st_fail(err, STINT_ENOMEM, "no memory for a Redis client");
    }
    *out = r;
    return STINT_OK;
}

void st_redis_close(struct st_redis *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_nodes; i++)
        st_redis_node_free(r->nodes[i]);
    free(r->nodes);
    free(r->jobs);
    if (r->tls)
        SSL_CTX_free(r->tls);
    if (r->text)
        sodium_memzero(r->text, strlen(r->text));
    free(r->text);
    st_redis_url_clear(&r->url);
    free(r);
}

void st_redis_timeout(struct st_redis *r, int timeout_ms)
{
    r->timeout_ms = timeout_ms > 0 ? timeout_ms : TIMEOUT_MS;
}

const char *st_redis_where(const struct st_redis *r)
{
    return r->url.where;
}

bool st_redis_is_cluster(const struct st_redis *r)
{
    return r->cluster;
}

unsigned st_redis_generation(const struct st_redis *r)
{
    return r->generation;
}
