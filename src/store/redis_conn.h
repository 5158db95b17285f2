/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_conn.h - talking to Redis: one server, a Sentinel's master or a Cluster, as if it were one.
 *
 * A client belongs to one thread.  It connects when it is first needed, and again when the connection was lost.
 * Requests go in batches: all commands of one are sent, then all answers are read; in a Cluster each goes to the
 * node of its slot, and the order is kept within a node only.
 *
 * hiredis parses answers; commands are written straight into the buffer that is sent; sockets, deadlines, TLS and routing are ours (close-on-exec, no SIGPIPE).
 * Knows nothing of jobs: the store, the intake and the signal use it.
 */
#ifndef ST_STORE_REDIS_CONN_H
#define ST_STORE_REDIS_CONN_H

#include <hiredis/hiredis.h>

#include "base/buf.h"

struct st_redis;

/* redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]  rediss://... (TLS)  redis+unix://[USER:PASSWORD@]/PATH[?db=N] (also redis-socket://)
 * redis-sentinel://[USER:PASSWORD@]HOST[:PORT],...[/DB]?master=NAME   redis-cluster://[...@]HOST[:PORT],...   (rediss-... with TLS)
 * Options: tls_ca= tls_cert= tls_key= (paths) tls_name= tls_verify=no; sentinel_user= sentinel_password=; whatever else is
 * there is the caller's: see st_redis_option.  A plain redis:// server that turns out to be a Cluster node is treated as one. */
bool st_redis_url_is(const char *url); /* by its scheme */
/* Checks the URL; does not connect.  timeout_ms: how long a batch may take, connecting included; 0 = 5000. */
stint_code st_redis_open(const char *url, int timeout_ms, struct st_redis **out, stint_error *err);
void st_redis_close(struct st_redis *r); /* NULL is fine */
void st_redis_timeout(struct st_redis *r, int timeout_ms);
/* The value of one of the URL's options that are not our own, decoded; NULL = not there. */
const char *st_redis_option(const struct st_redis *r, const char *name);
/* EINVAL naming the option if the URL has one that is neither ours nor among known (NULL-terminated). */
stint_code st_redis_options_check(const struct st_redis *r, const char *const *known, stint_error *err);
/* "HOST:PORT/DB", never a secret. */
const char *st_redis_where(const struct st_redis *r);
bool st_redis_is_cluster(const struct st_redis *r); /* known after the first batch */
/* Grows whenever a new connection was made: whoever kept state in a connection has to make it anew. */
unsigned st_redis_generation(const struct st_redis *r);

/* ---- scripts --------------------------------------------------------------------------------- */

/* Static, one per text.  sha is filled by st_redis_script_init (idempotent, any thread). */
struct st_redis_script {
    const char *name; /* for messages */
    const char *text;
    char sha[41];
};
void st_redis_script_init(struct st_redis_script *s);

/* ---- batches --------------------------------------------------------------------------------- */

struct st_redis_request; /* one command of a batch */

struct st_redis_batch {
    struct st_redis_request *items;
    size_t n, cap;
    struct st_buf wire; /* the commands as they are sent, one behind the other */
    bool failed;        /* no memory, or too much of it: run says which */
    bool writes;        /* one of them may change something */
};

enum {
    ST_REDIS_READ = 0,
    ST_REDIS_WRITE =
        1 << 0, /* may change something: an answer that does not come is EUNKNOWN, and it is not sent twice */
    ST_REDIS_ALL =
        1 << 1, /* to every master of a Cluster; the answers are one array, a node each (an array of one elsewhere) */
};

void st_redis_batch_init(struct st_redis_batch *b);
void st_redis_batch_reset(struct st_redis_batch *b); /* frees requests and answers, keeps the array */
void st_redis_batch_clear(struct st_redis_batch *b);

/* Copies argv.  slot_key: the key whose slot decides the node, ST_NONE = any node.  Its index, for st_redis_reply. */
size_t st_redis_add(struct st_redis_batch *b, unsigned flags, struct st_slice slot_key, const struct st_slice *argv,
                    size_t argc);
/* The same from C strings, NULL-terminated; slot_key is the first argument after the command's name, or none. */
size_t st_redis_addv(struct st_redis_batch *b, unsigned flags, ...) __attribute__((sentinel));
/* EVALSHA; where the server does not know the script it is sent whole, once, and runs after the rest of the batch.  The
 * first key decides the node. */
size_t st_redis_add_script(struct st_redis_batch *b, unsigned flags, struct st_redis_script *s,
                           const struct st_slice *keys, size_t n_keys, const struct st_slice *args, size_t n_args);

/* Sends all and reads all answers.  OK: every command has an answer, which may be an error of its own (see
 * st_redis_reply_fail).  EAGAIN: nothing was done.  EUNKNOWN: commands that write may have been done, any of them; those that
 * have an answer have one.  ESTORE: wrong password, not permitted.  MOVED, ASK, NOSCRIPT, LOADING, READONLY (after a
 * failover), TRYAGAIN and CLUSTERDOWN are dealt with within the time, as none of them has done anything. */
stint_code st_redis_run(struct st_redis *r, struct st_redis_batch *b, stint_error *err);
/* The answer, which the batch owns; NULL = there is none. */
redisReply *st_redis_reply(const struct st_redis_batch *b, size_t i);
/* OK if the answer is no error.  Otherwise err says what it means: OOM, MISCONF, NOPERM, READONLY -> ESTORE; BUSY, LOADING,
 * CLUSTERDOWN, MASTERDOWN -> EAGAIN; WRONGTYPE and the rest ESTORE.  err->detail is the error's first word.  No answer: EUNKNOWN. */
stint_code st_redis_reply_fail(struct st_redis *r, const redisReply *reply, stint_error *err);
bool st_redis_error_is(const redisReply *e, const char *word);    /* is it an error with that first word? */
struct st_slice st_redis_text(const redisReply *reply);           /* of a string or status; ST_NONE for nil */
int64_t st_redis_int(const redisReply *reply, int64_t otherwise); /* of an integer, or a string that is one */
/* A line of INFO: "aof_enabled" -> "1"; p NULL = there is none. */
struct st_slice st_redis_info(struct st_slice text, const char *name);

/* ---- listening --------------------------------------------------------------------------------- */

/* A connection that is told things: SUBSCRIBE, and the invalidations of CLIENT TRACKING ... REDIRECT.  One thread, but
 * for st_redis_ear_interrupt. */
struct st_redis_ear;

/* On the same server as r (in a Cluster: the node of slot_key, or any).  Each has a connection of its own, made when first needed. */
stint_code st_redis_ear_open(struct st_redis *r, struct st_slice slot_key, struct st_redis_ear **out, stint_error *err);
void st_redis_ear_close(struct st_redis_ear *e);
/* Subscribes these channels, all at once; also after a reconnect. */
stint_code st_redis_ear_subscribe(struct st_redis_ear *e, const struct st_slice *channels, size_t n, stint_error *err);
/* The id of its connection at the server (CLIENT ID), for REDIRECT; 0 = not connected. */
int64_t st_redis_ear_id(struct st_redis_ear *e);
/* The next thing it is told: *channel and *message live until the next call.  OK with *channel ST_NONE: the time has passed or it
 * was interrupted.  message may be ST_NONE (an invalidation of everything); an invalidation of n keys is n messages.
 * EAGAIN: the connection was lost, and with it whatever was said meanwhile; the next call makes a new one. */
stint_code st_redis_ear_next(struct st_redis_ear *e, int timeout_ms, struct st_slice *channel, struct st_slice *message,
                             stint_error *err);
/* Hears nothing, but can be interrupted: for a while in which there is nobody to hear. */
void st_redis_ear_sleep(struct st_redis_ear *e, int timeout_ms);
void st_redis_ear_interrupt(struct st_redis_ear *e); /* any thread; also makes the next call return at once */

#endif
