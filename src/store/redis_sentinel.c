/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_sentinel.c - asks the sentinels who the master is.
 *
 * They are asked in the order of the URL, each with its share of what is left of the time, on a connection made for
 * this one question.  Whether the one they name is the master, it must say itself (ROLE, in st_redis_node_up): right after
 * a failover they may not know yet.
 *
 * Thread: the client's.
 */
#include "store/redis_net.h"

#include <stdio.h>
#include <string.h>

static stint_code read_addr(const char *where, const char *master, const redisReply *a, struct st_redis_addr *out,
                            stint_error *err)
{
    const struct st_slice host =
        a->type == REDIS_REPLY_ARRAY && a->elements == 2 ? st_redis_text(a->element[0]) : ST_NONE;
    const int64_t port = host.len ? st_redis_int(a->element[1], 0) : 0;

    if (!host.len) {
        st_fail(err, STINT_ESTORE, "the sentinel %s knows no master called %.64s", where, master);
        st_err_remedy(err, "correct master= in the URL: `redis-cli -p 26379 SENTINEL MASTERS` lists them");
        return STINT_ESTORE;
    }
    if (host.len >= sizeof(out->host) || port < 1 || port > 65535)
        return st_fail(err, STINT_EAGAIN, "the sentinel %s names an address that is none", where);
    memcpy(out->host, host.p, host.len);
    out->host[host.len] = '\0';
    out->port = (int)port;
    return STINT_OK;
}

static stint_code ask_one(struct st_redis *r, const struct st_redis_addr *sentinel, struct st_redis_addr *out,
                          int64_t until_us, stint_error *err)
{
    const struct st_redis_login as = {
        .user = r->url.sentinel_user, .password = r->url.sentinel_password, .sentinel = true};
    const char *const argv[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", r->url.master, NULL};
    struct st_redis_link l;
    struct st_redis_hello h;
    redisReply *a = NULL;
    char where[280];
    stint_code code = st_redis_connect_as(r, sentinel, &as, &l, &h, until_us, err);

    if (code && err && (strcmp(err->detail, "NOAUTH") == 0 || strcmp(err->detail, "WRONGPASS") == 0))
        st_err_remedy(err, "the Sentinels' own user and password are sentinel_user= and sentinel_password= in the URL");
    if (code)
        return code;
    st_redis_addr_text(sentinel, where, sizeof(where));
    code = st_redis_ask(&l, where, argv, &a, until_us, err);
    if (!code)
        code = read_addr(where, r->url.master, a, out, err);
    if (a)
        freeReplyObject(a);
    st_redis_link_close(&l);
    return code;
}

/* Of several failures the one that an operator must look at is told. */
stint_code st_redis_master_find(struct st_redis *r, struct st_redis_addr *out, int64_t until_us, stint_error *err)
{
    stint_error first = {0}, one = {0};

    for (size_t i = 0; i < r->url.n_hosts; i++) {
        const int64_t now = st_clock_mono_us(), left = until_us > now ? until_us - now : 0;

        if (ask_one(r, &r->url.hosts[i], out, now + left / (int64_t)(r->url.n_hosts - i), &one) == STINT_OK)
            return STINT_OK;
        if (i == 0 || first.code == STINT_EAGAIN)
            first = one;
    }
    if (err)
        *err = first;
    return first.code;
}
