/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_err.c - what an error of Redis means to the caller, and small readings of answers.
 *
 * An error's first word decides the code and the remedy; it is also the error's detail.  Messages name the
 * server as host:port/db, never a password.
 *
 * Thread: any.
 */
#include "store/redis_net.h"

#include <ctype.h>
#include <string.h>

static const struct {
    const char *word;
    stint_code code;
    const char *remedy;
} meanings[] = {
    {"BUSY", STINT_EAGAIN, "a script has been running for long; try again, or end it with SCRIPT KILL"},
    {"LOADING", STINT_EAGAIN, "the server is reading its data; try again"},
    {"CLUSTERDOWN", STINT_EAGAIN, "look at `redis-cli CLUSTER INFO`; try again when the Cluster is whole"},
    {"MASTERDOWN", STINT_EAGAIN, "try again when its master is back"},
    {"TRYAGAIN", STINT_EAGAIN, "try again when the slot has been moved"},
    {"NOREPLICAS", STINT_EAGAIN, "too few replicas are connected (min-replicas-to-write); try again when they are"},
    {"OOM", STINT_ESTORE, "the server's maxmemory is used up: raise it, or let jobs be done or pruned"},
    {"MISCONF", STINT_ESTORE, "the server cannot write to its disk: make room, then see its log"},
    {"READONLY", STINT_ESTORE, "it is a replica: name the master in the URL, or use redis-sentinel://"},
    {"NOPERM", STINT_ESTORE, "let the user's ACL allow it: see docs/redis.md"},
    {"NOAUTH", STINT_ESTORE, "put the password into the URL: redis://:PASSWORD@HOST, redis+unix://:PASSWORD@/PATH"},
    {"WRONGPASS", STINT_ESTORE, "correct the user and the password in the URL"},
    {"DENIED", STINT_ESTORE, "the server is in protected mode: give it a password and put that into the URL"},
    {"WRONGTYPE", STINT_ESTORE, "something else uses this key: give the jobs a database of their own (/DB in the URL)"},
    {"NOSCRIPT", STINT_EAGAIN, "try again"},
};

/* Redis 6.2 hides what a script was refused behind where: "ERR Error running script (call to f_...): @user_script:16: -OOM ..." */
static const char *word_in_script(const char *p)
{
    while ((p = strstr(p, ": "))) {
        p += 2;
        if (isupper((unsigned char)p[*p == '-']) && isupper((unsigned char)p[1 + (*p == '-')]))
            return p + (*p == '-');
    }
    return NULL;
}

static struct st_slice first_word(const redisReply *e)
{
    const char *hidden = strncmp(e->str, "ERR Error running script", 24) ? NULL : word_in_script(e->str);
    const char *p = hidden ? hidden : e->str, *end = strchr(p, ' ');

    return ST_SLICE(p, end ? (size_t)(end - p) : strlen(p));
}

bool st_redis_error_is(const redisReply *e, const char *word)
{
    return e && e->type == REDIS_REPLY_ERROR && st_slice_is(first_word(e), word);
}

/* "ERR max number of clients reached", and what else has no word of its own. */
static void by_text(const redisReply *e, stint_error *err)
{
    if (strstr(e->str, "max number of clients")) {
        err->code = STINT_EAGAIN;
        st_err_remedy(err, "raise the server's maxclients, or connect from fewer processes");
    } else if (strstr(e->str, "user executing the script can't") ||
               strstr(e->str, "ACL failure in script")) { /* NOPERM, said of a command in a script */
        st_err_remedy(err, "let the user's ACL allow all commands and keys that docs/redis.md names");
    } else if (strstr(e->str, "no password is set") || strstr(e->str, "any password configured") ||
               strstr(e->str, "invalid password")) {
        st_err_remedy(err, "correct the user and the password in the URL");
    } else if (strstr(e->str, "DB index")) {
        st_err_remedy(err, "name a database that the server has (its setting `databases`)");
    } else if (strstr(e->str, "unknown command") && strstr(e->str, "SENTINEL")) {
        st_err_remedy(err, "it is no Sentinel: name one (their port is 26379 by default), or write redis://HOST:PORT");
    } else if (strstr(e->str, "unknown command")) {
        st_err_remedy(err, "use Redis 6.2 or later, and a user who may run it");
    } else if (strstr(e->str, "cluster support disabled")) {
        st_err_remedy(err, "it is a server of its own and no Cluster: write redis://HOST:PORT");
    }
}

/* What it says, but for one text that explains HELLO to its caller. */
static struct st_slice text_of(const redisReply *e)
{
    if (strncmp(e->str, "NOAUTH HELLO", 12) == 0)
        return st_slice_cstr("NOAUTH the server wants a password");
    return ST_SLICE(e->str, e->len < 200 ? e->len : 200);
}

stint_code st_redis_error(const char *where, const redisReply *e, stint_error *err)
{
    stint_error none = {0};
    const struct st_slice word = first_word(e), text = text_of(e);
    char detail[sizeof(err->detail)];

    if (!err)
        err = &none;
    st_fail(err, STINT_ESTORE, "%s: %.*s", where, (int)text.len, text.p);
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (st_slice_is(word, meanings[i].word)) {
            err->code = meanings[i].code;
            st_err_remedy(err, "%s", meanings[i].remedy);
        }
    }
    if (!err->remedy[0])
        by_text(e, err);
    snprintf(detail, sizeof(detail), "%.*s", (int)(word.len < sizeof(detail) ? word.len : 0), word.p);
    st_err_detail(err, detail);
    return err->code;
}

stint_code st_redis_reply_fail(struct st_redis *r, const redisReply *reply, stint_error *err)
{
    if (!reply)
        return st_fail(err, STINT_EUNKNOWN, "%s did not answer; it may have been done", r->url.where);
    if (reply->type != REDIS_REPLY_ERROR)
        return STINT_OK;
    return st_redis_error(r->url.where, reply, err);
}

void st_redis_away(const char *where, stint_error *err)
{
    st_err_remedy(err, "start the server, or check %s in the URL",
                  where[0] == '/' ? "the socket's path" : "host and port");
}

stint_code st_redis_lost(const char *where, const char *why, stint_error *err)
{
    st_fail(err, STINT_EAGAIN, "%s: %s", where, why);
    st_redis_away(where, err);
    return STINT_EAGAIN;
}

struct st_slice st_redis_text(const redisReply *reply)
{
    if (!reply || (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS))
        return ST_NONE;
    return ST_SLICE(reply->str, reply->len);
}

int64_t st_redis_int(const redisReply *reply, int64_t otherwise)
{
    int64_t n;

    if (reply && reply->type == REDIS_REPLY_INTEGER)
        return reply->integer;
    return st_redis_text(reply).p && st_parse_i64(st_redis_text(reply), &n) ? n : otherwise;
}
