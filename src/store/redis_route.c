/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_route.c - which node of a Cluster has which slot.
 *
 * A key's slot is the CRC16 of what stands between its first { and the next }, or of all of it.  The map is read from any
 * node that answers, when we first come, after a MOVED, and when a node is gone; what MOVED says holds meanwhile.
 *
 * Nodes are forgotten between batches only (requests point to them), and those that the URL names never.
 *
 * Thread: the client's.
 */
#include "store/redis_net.h"

#include <stdlib.h>
#include <string.h>

#define NODES_MANY 64

/* ---- slots ------------------------------------------------------------------------------------------- */

/* CRC-16/XMODEM, four bits at a time. */
static unsigned crc16(const char *p, size_t len)
{
    static const uint16_t table[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
                                       0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef};
    unsigned crc = 0;

    for (size_t i = 0; i < len; i++) {
        const unsigned c = (unsigned char)p[i];

        crc = ((crc << 4) & 0xffff) ^ table[((crc >> 12) ^ (c >> 4)) & 15];
        crc = ((crc << 4) & 0xffff) ^ table[((crc >> 12) ^ c) & 15];
    }
    return crc;
}

int st_redis_slot(struct st_slice key)
{
    const char *open = memchr(key.p, '{', key.len);
    const char *close = open ? memchr(open, '}', key.len - (size_t)(open - key.p)) : NULL;

    if (close && close > open + 1)
        key = ST_SLICE(open + 1, (size_t)(close - open - 1));
    return (int)(crc16(key.p, key.len) % ST_REDIS_SLOTS);
}

/* ---- the map ------------------------------------------------------------------------------------------- */

/* A node as CLUSTER SLOTS and redirections name it.  Without a host it is the one who speaks. */
static struct st_redis_node *named(struct st_redis *r, struct st_slice host, int64_t port,
                                   const struct st_redis_node *from)
{
    struct st_redis_addr a = {.port = (int)port};

    if (port < 1 || port > 65535 || host.len >= sizeof(a.host))
        return NULL;
    if (!host.len || st_slice_is(host, "?"))
        memcpy(a.host, from->addr.host, sizeof(a.host));
    else
        memcpy(a.host, host.p, host.len);
    return st_redis_node_at(r, &a);
}

/* One range: [first, last, [host, port, ...], replicas...]. */
static void take_range(struct st_redis *r, const redisReply *e, const struct st_redis_node *from)
{
    const redisReply *m = e->type == REDIS_REPLY_ARRAY && e->elements >= 3 ? e->element[2] : NULL;
    struct st_redis_node *n = NULL;
    int64_t first, last;

    if (!m || m->type != REDIS_REPLY_ARRAY || m->elements < 2)
        return;
    n = named(r, st_redis_text(m->element[0]), st_redis_int(m->element[1], 0), from);
    first = st_redis_int(e->element[0], -1);
    last = st_redis_int(e->element[1], -1);
    if (!n || first < 0 || last >= ST_REDIS_SLOTS)
        return;
    n->master = true;
    for (int64_t i = first; i <= last; i++)
        r->slots[i] = n;
}

static void take_map(struct st_redis *r, const redisReply *map, const struct st_redis_node *from)
{
    memset(r->slots, 0, sizeof(r->slots));
    for (size_t i = 0; i < r->n_nodes; i++)
        r->nodes[i]->master = false;
    for (size_t i = 0; i < map->elements; i++)
        take_range(r, map->element[i], from);
    r->map_old = false;
}

static stint_code read_from(struct st_redis *r, struct st_redis_node *n, int64_t until_us, stint_error *err)
{
    static const char *const argv[] = {"CLUSTER", "SLOTS", NULL};
    redisReply *map = NULL;
    char where[280];
    stint_code code = st_redis_node_up(r, n, until_us, err);

    if (code)
        return code;
    st_redis_addr_text(&n->addr, where, sizeof(where));
    code = st_redis_ask(&n->link, where, argv, &map, until_us, err);
    if (code) {
        st_redis_link_close(&n->link);
        return code;
    }
    if (map->type == REDIS_REPLY_ARRAY && map->elements)
        take_map(r, map, n);
    else
        code = st_redis_lost(where, "this node of the Cluster knows no slots", err);
    freeReplyObject(map);
    return code;
}

/* Those with an open connection are asked first; a silent one does not use up the others' turn. */
stint_code st_redis_map_read(struct st_redis *r, int64_t until_us, stint_error *err)
{
    const size_t n = r->n_nodes; /* grows while we read */
    size_t left = 2 * n;

    for (int connected = 1; connected >= 0; connected--) {
        for (size_t i = 0; i < n; i++, left--) {
            const int64_t now = st_clock_mono_us(),
                          share = (until_us > now ? until_us - now : 0) / (left < 4 ? (int64_t)left : 4);

            if ((r->nodes[i]->link.fd >= 0) == (connected == 1) &&
                read_from(r, r->nodes[i], now + share, err) == STINT_OK)
                return STINT_OK;
        }
    }
    return err ? err->code : STINT_EAGAIN;
}

void st_redis_nodes_trim(struct st_redis *r)
{
    size_t n = r->url.n_hosts;

    if (!r->cluster || r->map_old || r->n_nodes < NODES_MANY)
        return;
    for (size_t i = n; i < r->n_nodes; i++) {
        if (r->nodes[i]->master)
            r->nodes[n++] = r->nodes[i];
        else
            st_redis_node_free(r->nodes[i]);
    }
    r->n_nodes = n;
}

/* One that is connected, or at least did not just fail. */
static struct st_redis_node *any_master(struct st_redis *r)
{
    struct st_redis_node *best = NULL;
    int best_rank = -1;

    for (size_t i = 0; i < r->n_nodes; i++) {
        struct st_redis_node *n = r->nodes[i];
        const int rank = n->link.fd >= 0 ? 2 : !n->failed;

        if (n->master && rank > best_rank) {
            best = n;
            best_rank = rank;
        }
    }
    return best;
}

struct st_redis_node *st_redis_node_of(struct st_redis *r, int slot)
{
    if (!r->cluster)
        return r->nodes[0];
    if (slot >= 0)
        return r->slots[slot];
    return any_master(r);
}

/* "MOVED 3999 127.0.0.1:6381": the port is behind the last colon. */
struct st_redis_node *st_redis_redirect(struct st_redis *r, const redisReply *e, const struct st_redis_node *from,
                                        int *slot)
{
    const char *p = memchr(e->str, ' ', e->len);
    const char *q = p ? strchr(p + 1, ' ') : NULL;
    const char *colon = q ? strrchr(q, ':') : NULL;
    int64_t n, port;

    if (!colon || !st_parse_i64(ST_SLICE(p + 1, (size_t)(q - p - 1)), &n) || n < 0 || n >= ST_REDIS_SLOTS ||
        !st_parse_i64(st_slice_cstr(colon + 1), &port))
        return NULL;
    *slot = (int)n;
    return named(r, ST_SLICE(q + 1, (size_t)(colon - q - 1)), port, from);
}
