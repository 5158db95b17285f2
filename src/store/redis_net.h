/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_net.h - what the files of the Redis client share among themselves; whoever uses it includes redis_conn.h.
 *
 *     redis_url       what a URL says
 *     redis_link      one socket, with or without redis_tls
 *     redis_conn      a link that has introduced itself; the client
 *     redis_sentinel  who is the master now
 *     redis_route     which node has which slot
 *     redis_batch     commands, as bytes
 *     redis_run       sends them, reads the answers, tries again what may be tried again
 *     redis_ear       a connection that listens
 */
#ifndef ST_STORE_REDIS_NET_H
#define ST_STORE_REDIS_NET_H

#include <openssl/ssl.h>
#include <sys/types.h>

#include "base/clock.h"
#include "store/redis_conn.h"

#define ST_REDIS_URL_MAX     4096
#define ST_REDIS_HOSTS_MAX   16
#define ST_REDIS_OPTIONS_MAX 16
#define ST_REDIS_SLOTS       16384
#define ST_REDIS_NODES_MAX   256
#define ST_REDIS_BATCH_MAX   ((size_t)512 << 20) /* bytes of one batch */
#define ST_REDIS_ANSWER_MAX  ((size_t)512 << 20) /* bytes of one answer */

/* ---- URL (redis_url.c) ------------------------------------------------------------------------ */

struct st_redis_addr {
    char host[256]; /* a path, if port is 0 */
    int port;
};

enum st_redis_kind { ST_REDIS_ONE, ST_REDIS_SENTINEL, ST_REDIS_CLUSTER };

struct st_redis_url {
    enum st_redis_kind kind;
    bool tls, tls_verify;
    int db;
    struct st_redis_addr hosts[ST_REDIS_HOSTS_MAX];
    size_t n_hosts;
    char *user, *password; /* NULL = not given */
    char *master, *sentinel_user, *sentinel_password;
    char *tls_ca, *tls_cert, *tls_key, *tls_name;
    struct {
        char *name, *value;
    } options[ST_REDIS_OPTIONS_MAX];
    size_t n_options;
    char where[320];
};

stint_code st_redis_url_parse(const char *url, struct st_redis_url *out, stint_error *err);
void st_redis_url_clear(struct st_redis_url *u); /* wipes the secrets */
/* As st_redis_option and st_redis_options_check. */
const char *st_redis_url_option(const struct st_redis_url *u, const char *name);
stint_code st_redis_url_options_check(const struct st_redis_url *u, const char *const *known, stint_error *err);
/* "HOST:PORT", a path as it is. */
char *st_redis_addr_text(const struct st_redis_addr *a, char *out, size_t size);
bool st_redis_addr_eq(const struct st_redis_addr *a, const struct st_redis_addr *b);

/* ---- a socket (redis_link.c, redis_tls.c) -------------------------------------------------------- */

struct st_redis_link {
    int fd; /* -1 = none */
    SSL *ssl;
    redisReader *reader;
    size_t fed;  /* bytes read since the last whole answer */
    bool wanted; /* TLS waits for the socket to become writable before it can go on reading */
};

/* EAGAIN: not reached in time, or refused.  ESTORE: its certificate is not accepted. */
stint_code st_redis_link_open(struct st_redis_link *l, const struct st_redis_addr *to, const struct st_redis_url *u,
                              SSL_CTX *tls, int64_t until_us, stint_error *err);
/* Closes without a word to the other end. */
void st_redis_link_close(struct st_redis_link *l);
/* Has an idle connection ended meanwhile? */
bool st_redis_link_broken(struct st_redis_link *l);
/* *sent: how many bytes are on their way, whatever comes of it.  Reads what is there meanwhile. */
stint_code st_redis_link_send(struct st_redis_link *l, const char *p, size_t len, size_t *sent, int64_t until_us,
                              stint_error *err);
/* The next answer.  fd2 (or -1): when it becomes readable, OK with *out NULL.  EAGAIN: the connection is lost;
 * ETIMEOUT; ESTORE: what comes is not an answer of Redis, or too large a one. */
stint_code st_redis_link_recv(struct st_redis_link *l, redisReply **out, int fd2, int64_t until_us, stint_error *err);
/* Waits for events at the socket.  0 = the time has passed, -1 = it cannot be used, 2 = fd2 is readable. */
int st_redis_poll(int fd, short events, int fd2, int64_t until_us);
/* An answer that is there already, if one is. */
stint_code st_redis_link_next(struct st_redis_link *l, redisReply **out, stint_error *err);

/* One context for all connections of a client; made when first needed. */
stint_code st_redis_tls_context(const struct st_redis_url *u, SSL_CTX **out, stint_error *err);
stint_code st_redis_tls_start(struct st_redis_link *l, SSL_CTX *ctx, const char *host, const struct st_redis_url *u,
                              int64_t until_us, stint_error *err);

/* ---- a node, and the client (redis_conn.c) ---------------------------------------------------------- */

struct st_redis_node {
    struct st_redis_addr addr;
    struct st_redis_link link;
    struct st_buf out; /* what goes to it in this round; empty if the batch is sent as it is */
    const char *bytes; /* the same, or the batch's */
    size_t len, sent;
    size_t jobs; /* of this round */
    bool master; /* has slots, as far as we know */
    bool failed; /* in the last round that wanted it */
};

/* One command on its way to one node. */
struct st_redis_job {
    size_t item;
    struct st_redis_node *node;
    size_t end;    /* of its bytes among the node's */
    unsigned skip; /* answers that come before its own */
    redisReply *reply;
};

struct st_redis {
    struct st_redis_url url;
    char *text; /* the URL, for the ears */
    pid_t pid;
    int timeout_ms;
    unsigned generation;
    bool cluster;
    SSL_CTX *tls;
    struct st_redis_node **nodes; /* without a Cluster there is one */
    size_t n_nodes;
    struct st_redis_node *slots[ST_REDIS_SLOTS]; /* NULL = nobody's */
    bool map_old;                                /* read the slot map before anything else */
    struct st_redis_job *jobs;
    size_t cap_jobs;
};

/* What a server says of itself when we come. */
struct st_redis_hello {
    bool cluster, replica;
    int64_t id;
};

/* ESTATE in a process that was forked off after the client was opened. */
stint_code st_redis_fork_check(const struct st_redis *r, stint_error *err);
/* Connects and introduces itself.  Nothing of the caller's has been sent when this fails: EAGAIN or ESTORE. */
stint_code st_redis_connect(struct st_redis *r, const struct st_redis_addr *to, struct st_redis_link *l,
                            struct st_redis_hello *hello, int64_t until_us, stint_error *err);
/* The same with another user; sentinel: it is one. */
struct st_redis_login {
    const char *user, *password;
    int db;
    bool sentinel;
};
stint_code st_redis_connect_as(struct st_redis *r, const struct st_redis_addr *to, const struct st_redis_login *as,
                               struct st_redis_link *l, struct st_redis_hello *hello, int64_t until_us,
                               stint_error *err);
/* One command on a connection at rest.  OK: *out is its answer, to be freed, and no error. */
stint_code st_redis_ask(struct st_redis_link *l, const char *where, const char *const *argv, redisReply **out,
                        int64_t until_us, stint_error *err);
/* The node's connection, made if need be. */
stint_code st_redis_node_up(struct st_redis *r, struct st_redis_node *n, int64_t until_us, stint_error *err);
void st_redis_node_free(struct st_redis_node *n);
/* Finds one or makes it; NULL = no memory, or too many. */
struct st_redis_node *st_redis_node_at(struct st_redis *r, const struct st_redis_addr *a);

/* ---- who and where (redis_sentinel.c, redis_route.c) --------------------------------------------------- */

/* The master's address, which has confirmed nothing yet.  EAGAIN: no sentinel knows one. */
stint_code st_redis_master_find(struct st_redis *r, struct st_redis_addr *out, int64_t until_us, stint_error *err);

int st_redis_slot(struct st_slice key);
/* Reads the slot map from whichever node answers. */
stint_code st_redis_map_read(struct st_redis *r, int64_t until_us, stint_error *err);
/* Forgets nodes that have no slots any more, when there are many.  Not while requests point to them. */
void st_redis_nodes_trim(struct st_redis *r);
/* NULL = the slot is nobody's.  slot -1: any master. */
struct st_redis_node *st_redis_node_of(struct st_redis *r, int slot);
/* The node that "MOVED slot host:port" or "ASK ..." names; from: who said it.  *slot is filled. */
struct st_redis_node *st_redis_redirect(struct st_redis *r, const redisReply *e, const struct st_redis_node *from,
                                        int *slot);

/* ---- batches (redis_batch.c) ---------------------------------------------------------------------------- */

enum st_redis_fate { ST_REDIS_PENDING, ST_REDIS_DONE, ST_REDIS_LOST };

struct st_redis_request {
    size_t off, len; /* in the batch's bytes */
    int slot;        /* -1 = any node */
    unsigned flags;
    enum st_redis_fate fate;
    bool load; /* the node did not know the script */
    struct st_redis_script *script;
    struct st_redis_node *ask; /* goes there once, with ASKING */
    redisReply *reply;
};

void st_redis_put_command(struct st_buf *b, const struct st_slice *argv, size_t argc);

/* ---- errors (redis_err.c) ---------------------------------------------------------------------------------- */

/* Fills err with an error reply's meaning. */
stint_code st_redis_error(const char *where, const redisReply *e, stint_error *err);
stint_code st_redis_lost(const char *where, const char *why, stint_error *err); /* EAGAIN */
void st_redis_away(const char *where, stint_error *err); /* the remedy, for a server or a socket that is not there */

#endif
