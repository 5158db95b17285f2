/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_ear.c - a connection that is told things.
 *
 *     AWAY --connect, subscribe--> HEARS --lost--> AWAY   (the caller is told once, with EAGAIN)
 *
 * What is said while it is AWAY is lost: whoever listens looks for himself after each EAGAIN.  When nothing is heard for a
 * while the server is asked for a sign of life, so that a connection that died without a word is noticed.
 *
 * An ear has a client of its own, which only finds the server for it, so it may live in another thread than the
 * client it was opened from.
 *
 * Thread: one, but for st_redis_ear_interrupt.
 */
#include "store/redis_net.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CHANNELS_MAX 64
#define SILENCE_US   (10 * ST_SEC) /* then a PING; the same again, and the connection is given up */
#define INVALIDATE   "__redis__:invalidate"

struct st_redis_ear {
    struct st_redis *r; /* its own */
    int slot;           /* -1 = any node */
    struct st_redis_link link;
    int64_t id;
    int bell; /* eventfd */
    char *channels[CHANNELS_MAX];
    size_t n_channels;
    int64_t heard_us, pinged_us; /* pinged_us: 0 = not since */
    redisReply *said;            /* what the last call's slices point into */
    size_t keys_left;            /* of an invalidation in `said` */
};

static void forget(struct st_redis_ear *e)
{
    if (e->said)
        freeReplyObject(e->said);
    e->said = NULL;
    e->keys_left = 0;
}

static void hang_up(struct st_redis_ear *e)
{
    st_redis_link_close(&e->link);
    e->id = 0;
}

/* ---- connecting ------------------------------------------------------------------------------------------ */

stint_code st_redis_ear_open(struct st_redis *r, struct st_slice slot_key, struct st_redis_ear **out, stint_error *err)
{
    struct st_redis_ear *e = calloc(1, sizeof(*e));
    stint_code code;

    *out = NULL;
    if (!e)
        return st_fail(err, STINT_ENOMEM, "no memory to listen to Redis");
    e->link.fd = -1;
    e->slot = slot_key.p ? st_redis_slot(slot_key) : -1;
    e->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    code = e->bell < 0 ? st_fail(err, STINT_EAGAIN, "no descriptor to listen to Redis")
                       : st_redis_open(r->text, r->timeout_ms, &e->r, err);
    if (!code && r->cluster)
        e->r->cluster = e->r->map_old = true;
    if (code)
        st_redis_ear_close(e);
    else
        *out = e;
    return code;
}

void st_redis_ear_close(struct st_redis_ear *e)
{
    if (!e)
        return;
    forget(e);
    hang_up(e);
    if (e->bell >= 0)
        close(e->bell);
    for (size_t i = 0; i < e->n_channels; i++)
        free(e->channels[i]);
    st_redis_close(e->r);
    free(e);
}

/* Where to connect: the master, or the slot's node.  The client's own connections are not kept. */
static stint_code find(struct st_redis_ear *e, struct st_redis_addr *out, int64_t until_us, stint_error *err)
{
    struct st_redis *r = e->r;
    struct st_redis_node *n;
    stint_code code;

    if (r->url.kind == ST_REDIS_SENTINEL)
        return st_redis_master_find(r, out, until_us, err);
    *out = r->url.hosts[0];
    if (!r->cluster)
        return STINT_OK;
    code = st_redis_map_read(r, until_us, err);
    n = code ? NULL : st_redis_node_of(r, e->slot);
    for (size_t i = 0; i < r->n_nodes; i++)
        st_redis_link_close(&r->nodes[i]->link);
    if (!code && !n)
        code = st_fail(err, STINT_EAGAIN, "%s: no node of the Cluster has slot %d", r->url.where, e->slot);
    if (!code)
        *out = n->addr;
    return code;
}

static stint_code send_command(struct st_redis_ear *e, const struct st_slice *argv, size_t argc, int64_t until_us,
                               stint_error *err)
{
    struct st_buf b;
    size_t sent;
    stint_code code;

    st_buf_init(&b, 64 << 10);
    st_redis_put_command(&b, argv, argc);
    code = b.failed ? st_fail(err, STINT_ENOMEM, "no memory for a command")
                    : st_redis_link_send(&e->link, b.p, b.len, &sent, until_us, err);
    st_buf_clear(&b);
    return code;
}

/* Waits until each channel is confirmed. */
static stint_code subscribe(struct st_redis_ear *e, int64_t until_us, stint_error *err)
{
    struct st_slice argv[CHANNELS_MAX + 1] = {ST_SLICE("SUBSCRIBE", 9)};
    stint_code code;

    if (!e->n_channels)
        return STINT_OK;
    for (size_t i = 0; i < e->n_channels; i++)
        argv[i + 1] = st_slice_cstr(e->channels[i]);
    code = send_command(e, argv, e->n_channels + 1, until_us, err);
    for (size_t i = 0; i < e->n_channels && !code;) {
        redisReply *a;

        code = st_redis_link_recv(&e->link, &a, -1, until_us, err);
        if (code)
            break;
        if (a->type == REDIS_REPLY_ERROR)
            code = st_redis_error(e->r->url.where, a, err);
        else if (a->type == REDIS_REPLY_ARRAY && a->elements && st_slice_is(st_redis_text(a->element[0]), "subscribe"))
            i++;
        freeReplyObject(a);
    }
    return code;
}

static stint_code up(struct st_redis_ear *e, stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + e->r->timeout_ms * ST_MS;
    struct st_redis_hello h;
    struct st_redis_addr at;
    stint_code code = st_redis_fork_check(e->r, err);

    if (code || e->link.fd >= 0)
        return code;
    code = find(e, &at, until_us, err);
    if (!code)
        code = st_redis_connect(e->r, &at, &e->link, &h, until_us, err);
    if (code)
        return code;
    if (h.cluster && e->slot >= 0 && !e->r->cluster && !e->r->url.db && at.port) {
        e->r->cluster = e->r->map_old = true;
        hang_up(e);
        return up(e, err); /* once: now it is known */
    }
    if (h.replica && e->r->url.kind == ST_REDIS_SENTINEL) {
        hang_up(e);
        return st_redis_lost(e->r->url.where, "the sentinels' master is a replica by now", err);
    }
    e->id = h.id;
    code = subscribe(e, until_us, err);
    if (code)
        hang_up(e);
    e->heard_us = st_clock_mono_us();
    e->pinged_us = 0;
    return code == STINT_ETIMEOUT ? STINT_EAGAIN : code;
}

/* ---- what to listen to ------------------------------------------------------------------------------------ */

/* Keeps the names; false = no memory. */
static bool remember(struct st_redis_ear *e, const struct st_slice *channels, size_t n)
{
    for (size_t i = 0; i < e->n_channels; i++)
        free(e->channels[i]);
    e->n_channels = 0;
    for (size_t i = 0; i < n; i++) {
        char *name = st_slice_dup(channels[i]);

        if (!name)
            return false;
        e->channels[e->n_channels++] = name;
    }
    return true;
}

stint_code st_redis_ear_subscribe(struct st_redis_ear *e, const struct st_slice *channels, size_t n, stint_error *err)
{
    if (n > CHANNELS_MAX)
        return st_fail(err, STINT_EINVAL, "at most %d channels can be listened to at once", CHANNELS_MAX);
    forget(e);
    hang_up(e); /* a new connection listens to these and to no others */
    if (!remember(e, channels, n))
        return st_fail(err, STINT_ENOMEM, "no memory to listen to Redis");
    return up(e, err);
}

int64_t st_redis_ear_id(struct st_redis_ear *e)
{
    return e->id;
}

/* ---- listening ---------------------------------------------------------------------------------------------- */

void st_redis_ear_interrupt(struct st_redis_ear *e)
{
    const uint64_t one = 1;

    if (write(e->bell, &one, sizeof(one)) < 0)
        return; /* full: it rings already */
}

static void silence_bell(struct st_redis_ear *e)
{
    uint64_t n;

    if (read(e->bell, &n, sizeof(n)) < 0)
        return; /* it did not ring */
}

void st_redis_ear_sleep(struct st_redis_ear *e, int timeout_ms)
{
    st_redis_poll(-1, 0, e->bell, st_clock_mono_us() + timeout_ms * ST_MS);
    silence_bell(e);
}

/* The next key of an invalidation that is being told; the last first. */
static bool next_key(struct st_redis_ear *e, struct st_slice *channel, struct st_slice *message)
{
    const redisReply *keys = e->said && e->said->elements == 3 ? e->said->element[2] : NULL;

    if (!e->keys_left)
        return false;
    e->keys_left--;
    *channel = st_redis_text(e->said->element[1]);
    *message = st_redis_text(keys->element[e->keys_left]);
    return true;
}

/* true = it is something for the caller. */
static bool take(struct st_redis_ear *e, redisReply *a, struct st_slice *channel, struct st_slice *message)
{
    forget(e);
    e->said = a;
    e->heard_us = st_clock_mono_us();
    e->pinged_us = 0;
    if (a->type != REDIS_REPLY_ARRAY || a->elements != 3 || !st_slice_is(st_redis_text(a->element[0]), "message"))
        return false; /* a sign of life */
    if (a->element[2]->type == REDIS_REPLY_ARRAY) {
        e->keys_left = a->element[2]->elements;
        return next_key(e, channel, message);
    }
    *channel = st_redis_text(a->element[1]);
    *message = st_redis_text(a->element[2]);
    return true;
}

static stint_code lost(struct st_redis_ear *e, stint_code code, stint_error *err)
{
    hang_up(e);
    if (err)
        st_err_prefix(err, "listening to %s", e->r->url.where);
    if (code != STINT_ETIMEOUT)
        return code;
    if (err)
        err->code = STINT_EAGAIN;
    return STINT_EAGAIN;
}

/* After a wait in which nothing came.  ETIMEOUT: no sign of life came since it was last asked for. */
static stint_code knock(struct st_redis_ear *e, stint_error *err)
{
    const struct st_slice ping[1] = {ST_SLICE("PING", 4)};
    const int64_t now = st_clock_mono_us();

    if (now - e->heard_us < SILENCE_US)
        return STINT_OK;
    if (!e->pinged_us) {
        e->pinged_us = now;
        return send_command(e, ping, 1, now + ST_SEC, err);
    }
    return now - e->pinged_us < SILENCE_US ? STINT_OK
                                           : st_fail(err, STINT_ETIMEOUT, "the server gives no sign of life");
}

/* When to look at the clock again. */
static int64_t wake_at(const struct st_redis_ear *e, int64_t until_us)
{
    const int64_t at = (e->pinged_us ? e->pinged_us : e->heard_us) + SILENCE_US;

    return at < until_us ? at : until_us;
}

/* OK with *done: there is something, or it was interrupted. */
static stint_code hear(struct st_redis_ear *e, int64_t until_us, struct st_slice *channel, struct st_slice *message,
                       bool *done, stint_error *err)
{
    redisReply *a = NULL;
    stint_code code = st_redis_link_recv(&e->link, &a, e->bell, wake_at(e, until_us), err);

    if (code == STINT_ETIMEOUT) {
        code = knock(e, err);
        return code ? lost(e, code, err) : STINT_OK;
    }
    if (code)
        return lost(e, code, err);
    if (!a)
        silence_bell(e);
    *done = !a || take(e, a, channel, message);
    return STINT_OK;
}

stint_code st_redis_ear_next(struct st_redis_ear *e, int timeout_ms, struct st_slice *channel, struct st_slice *message,
                             stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + (timeout_ms > 0 ? timeout_ms : 0) * ST_MS;
    bool done = false;
    stint_code code;

    *channel = *message = ST_NONE;
    if (next_key(e, channel, message))
        return STINT_OK;
    code = up(e, err);
    while (!code && !done) {
        code = hear(e, until_us, channel, message, &done, err);
        if (!done && st_clock_mono_us() >= until_us)
            break;
    }
    return code;
}
