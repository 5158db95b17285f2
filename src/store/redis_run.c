/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_run.c - sends a batch, reads the answers, and tries again what may be tried again.
 *
 * It goes in rounds.  Each sends what is still pending, one write to each node that is concerned, then reads the answers:
 *
 *     PENDING --answer-->                   DONE
 *     PENDING --MOVED, ASK, NOSCRIPT, ..--> PENDING  it has done nothing: once more, elsewhere or with the script
 *     PENDING --no answer, it only reads--> PENDING
 *     PENDING --not sent to its end-->      PENDING  nobody can have run it
 *     PENDING --no answer, it writes-->     LOST     nobody knows: never sent again
 *
 * Invariants:
 *   (1) a command that writes and was sent to its end is sent again only after the server has said that it did nothing;
 *   (2) EAGAIN and ESTORE are only returned while no command that writes is DONE or LOST.
 *
 * Thread: the client's.
 */
#include "store/redis_net.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_MIN_US (10 * ST_MS)
#define PAUSE_MAX_US (200 * ST_MS)
#define BREAKS_MAX   3 /* how often the connection to a single server may end under a batch that is tried again */
#define READONLY_MAX 3 /* a single server that says it is a replica: perhaps its name leads elsewhere by now */
#define AT_ONCE      6 /* redirections that are followed without a pause */
#define LEAST_US     (100 * ST_MS) /* with less left nothing is sent any more; a quarter of the time if that is less */

struct run {
    struct st_redis *r;
    struct st_redis_batch *b;
    int64_t until_us, last_us, pause_us; /* last_us: when something may be sent at the latest */
    size_t n_jobs, rounds, breaks, readonly;
    bool stop;  /* trying again is of no use */
    bool pause; /* before the next round */
    bool lost;  /* at least one request is */
    stint_error err;
};

/* ---- placing -------------------------------------------------------------------------------------------- */

static bool add_job(struct run *x, size_t item, struct st_redis_node *n)
{
    struct st_redis *r = x->r;

    if (x->n_jobs == r->cap_jobs) {
        const size_t cap = r->cap_jobs ? 2 * r->cap_jobs : 64;
        struct st_redis_job *jobs = realloc(r->jobs, cap * sizeof(*jobs));

        if (!jobs) {
            st_fail(&x->err, STINT_ENOMEM, "no memory for a batch");
            x->stop = true;
            return false;
        }
        r->jobs = jobs;
        r->cap_jobs = cap;
    }
    r->jobs[x->n_jobs++] = (struct st_redis_job){.item = item, .node = n};
    n->jobs++;
    return true;
}

static bool place_all(struct run *x, size_t item)
{
    for (size_t i = 0; i < x->r->n_nodes; i++)
        if (x->r->nodes[i]->master && !add_job(x, item, x->r->nodes[i]))
            return false;
    return true;
}

static bool place_one(struct run *x, size_t item)
{
    const struct st_redis_request *q = &x->b->items[item];
    struct st_redis_node *n = q->ask ? q->ask : st_redis_node_of(x->r, q->slot);

    if (q->flags & ST_REDIS_ALL && x->r->cluster)
        return place_all(x, item);
    if (n)
        return add_job(x, item, n);
    st_fail(&x->err, STINT_EAGAIN, "%s: no node of the Cluster has slot %d", x->r->url.where, q->slot);
    st_err_remedy(&x->err, "look at `redis-cli CLUSTER INFO`");
    x->r->map_old = x->pause = true;
    return true;
}

/* Which node each pending request goes to.  false = not now. */
static bool place(struct run *x)
{
    struct st_redis *r = x->r;

    x->n_jobs = 0;
    for (size_t i = 0; i < r->n_nodes; i++)
        r->nodes[i]->jobs = 0;
    if (r->cluster && r->map_old && st_redis_map_read(r, x->until_us, &x->err)) {
        x->stop = x->err.code != STINT_EAGAIN;
        x->pause = true;
        return false;
    }
    for (size_t i = 0; i < x->b->n; i++)
        if (x->b->items[i].fate == ST_REDIS_PENDING && !place_one(x, i))
            return false;
    return true;
}

/* false = place again: the server turned out to be part of a Cluster. */
static bool connect_all(struct run *x)
{
    struct st_redis *r = x->r;
    const bool was_cluster = r->cluster;
    const size_t n = r->n_nodes;

    for (size_t i = 0; i < n; i++) {
        struct st_redis_node *node = r->nodes[i];

        if (!node->jobs)
            continue;
        node->failed = st_redis_node_up(r, node, x->until_us, &x->err) != STINT_OK;
        if (!node->failed)
            continue;
        x->pause = r->map_old = true;
        if (x->err.code != STINT_EAGAIN || (r->url.kind == ST_REDIS_ONE && !r->cluster))
            x->stop = true;
    }
    return r->cluster == was_cluster;
}

/* ---- sending -------------------------------------------------------------------------------------------- */

static bool loads_already(const struct run *x, size_t job)
{
    const struct st_redis_job *jobs = x->r->jobs;
    const struct st_redis_request *q = &x->b->items[jobs[job].item];

    for (size_t i = 0; i < job; i++) {
        const struct st_redis_request *other = &x->b->items[jobs[i].item];

        if (other->load && other->script == q->script && jobs[i].node == jobs[job].node)
            return true;
    }
    return false;
}

static void put_extras(struct run *x, size_t job)
{
    struct st_redis_job *j = &x->r->jobs[job];
    const struct st_redis_request *q = &x->b->items[j->item];
    const struct st_slice asking[1] = {ST_SLICE("ASKING", 6)};

    if (q->load && !loads_already(x, job)) {
        const struct st_slice load[3] = {ST_SLICE("SCRIPT", 6), ST_SLICE("LOAD", 4), st_slice_cstr(q->script->text)};

        st_redis_put_command(&j->node->out, load, 3);
        j->skip++;
    }
    if (q->ask) {
        st_redis_put_command(&j->node->out, asking, 1);
        j->skip++;
    }
}

/* The bytes for each node. */
static void copy_out(struct run *x)
{
    for (size_t i = 0; i < x->r->n_nodes; i++)
        st_buf_reset(&x->r->nodes[i]->out);
    for (size_t i = 0; i < x->n_jobs; i++) {
        struct st_redis_job *j = &x->r->jobs[i];
        const struct st_redis_request *q = &x->b->items[j->item];

        put_extras(x, i);
        st_buf_put(&j->node->out, x->b->wire.p + q->off, q->len);
        j->end = j->node->out.len;
    }
    for (size_t i = 0; i < x->r->n_nodes; i++) {
        struct st_redis_node *n = x->r->nodes[i];

        n->bytes = n->out.p;
        n->len = n->out.len;
        if (n->out.failed) {
            st_fail(&x->err, STINT_ENOMEM, "no memory for a batch");
            n->failed = x->stop = true;
        }
    }
}

/* Is the batch, as it is, what one node is sent? */
static bool goes_whole(const struct run *x)
{
    const struct st_redis_job *jobs = x->r->jobs;

    if (x->n_jobs != x->b->n || jobs[0].node->jobs != x->n_jobs)
        return false;
    for (size_t i = 0; i < x->n_jobs; i++)
        if (x->b->items[i].load || x->b->items[i].ask)
            return false;
    return true;
}

static void fill(struct run *x)
{
    struct st_redis_job *jobs = x->r->jobs;

    if (!goes_whole(x)) {
        copy_out(x);
        return;
    }
    jobs[0].node->bytes = x->b->wire.p;
    jobs[0].node->len = x->b->wire.len;
    for (size_t i = 0; i < x->n_jobs; i++)
        jobs[i].end = x->b->items[i].off + x->b->items[i].len;
}

/* Notes why a node's connection is of no use any more. */
static void broke(struct run *x, struct st_redis_node *n, stint_code code)
{
    char where[280];

    st_redis_link_close(&n->link);
    n->failed = x->pause = x->r->map_old = true;
    x->breaks++;
    if (code != STINT_EAGAIN && code != STINT_ETIMEOUT)
        x->stop = true; /* what it says is no answer: it would say it again */
    else
        x->err.code = STINT_EAGAIN;
    st_err_prefix(&x->err, "%s", st_redis_addr_text(&n->addr, where, sizeof(where)));
}

static void send_all(struct run *x)
{
    for (size_t i = 0; i < x->r->n_nodes; i++) {
        struct st_redis_node *n = x->r->nodes[i];

        n->sent = 0;
        if (n->jobs && !n->failed)
            n->failed = st_redis_link_send(&n->link, n->bytes, n->len, &n->sent, x->until_us, &x->err) != STINT_OK;
    }
}

/* ---- answers -------------------------------------------------------------------------------------------- */

/* The job's answer; an error of a SCRIPT LOAD before it says more than the NOSCRIPT that follows. */
static stint_code read_job(struct st_redis_job *j, int64_t until_us, stint_error *err)
{
    redisReply *early = NULL, *a = NULL;
    stint_code code = STINT_OK;

    for (unsigned k = 0; k <= j->skip && !code; k++) {
        code = st_redis_link_recv(&j->node->link, &a, -1, until_us, err);
        if (!code && k < j->skip && a->type == REDIS_REPLY_ERROR && !early)
            early = a;
        else if (!code && k < j->skip)
            freeReplyObject(a);
    }
    if (code) {
        if (early)
            freeReplyObject(early);
        return code;
    }
    if (early)
        freeReplyObject(a);
    j->reply = early ? early : a;
    return STINT_OK;
}

/* What was sent to a node whose sending failed may have been answered in part. */
static void read_node(struct run *x, struct st_redis_node *n)
{
    const bool half = n->failed;
    const int64_t until_us = half ? st_clock_mono_us() : x->until_us;
    stint_error ignored;
    stint_code code = STINT_OK;

    for (size_t i = 0; i < x->n_jobs && !code; i++)
        if (x->r->jobs[i].node == n)
            code = read_job(&x->r->jobs[i], until_us, half ? &ignored : &x->err);
    if (half)
        broke(x, n, STINT_EAGAIN);
    else if (code)
        broke(x, n, code);
}

static void read_all(struct run *x)
{
    for (size_t i = 0; i < x->r->n_nodes; i++)
        if (x->r->nodes[i]->jobs && x->r->nodes[i]->link.fd >= 0)
            read_node(x, x->r->nodes[i]);
}

static void follow(struct run *x, struct st_redis_request *q, const redisReply *a, const struct st_redis_node *from,
                   bool ask)
{
    int slot = 0;
    struct st_redis_node *n = st_redis_redirect(x->r, a, from, &slot);

    if (ask) {
        q->ask = n;
        return;
    }
    x->r->cluster = x->r->map_old = true;
    q->ask = NULL;
    if (n && q->slot < 0)
        q->slot = slot;
    if (n)
        x->r->slots[slot] = n;
}

/* READONLY: the master is another by now. */
static bool demoted(struct run *x, struct st_redis_node *n)
{
    st_redis_link_close(&n->link);
    x->r->map_old = x->pause = true;
    return x->r->cluster || x->r->url.kind == ST_REDIS_SENTINEL || ++x->readonly < READONLY_MAX;
}

/* Does this answer mean that it has done nothing, and that another try may help? */
static bool again(struct run *x, struct st_redis_request *q, const redisReply *a, struct st_redis_node *n)
{
    if (a->type != REDIS_REPLY_ERROR)
        return false;
    if (st_redis_error_is(a, "MOVED") || st_redis_error_is(a, "ASK")) {
        follow(x, q, a, n, st_redis_error_is(a, "ASK"));
        return true;
    }
    if (st_redis_error_is(a, "NOSCRIPT") && q->script) {
        q->load = true;
        return true;
    }
    if (st_redis_error_is(a, "READONLY"))
        return demoted(x, n);
    if (!st_redis_error_is(a, "LOADING") && !st_redis_error_is(a, "TRYAGAIN") && !st_redis_error_is(a, "CLUSTERDOWN") &&
        !st_redis_error_is(a, "MASTERDOWN"))
        return false;
    x->pause = x->r->map_old = true;
    return true;
}

static void set_reply(struct st_redis_request *q, redisReply *a)
{
    if (q->reply)
        freeReplyObject(q->reply);
    q->reply = a;
}

/* No answer has come, nor will one. */
static void unanswered(struct run *x, const struct st_redis_job *j)
{
    struct st_redis_request *q = &x->b->items[j->item];

    if (q->flags & ST_REDIS_WRITE && j->end && j->end <= j->node->sent) {
        q->fate = ST_REDIS_LOST;
        x->lost = true;
    }
    set_reply(q, NULL);
}

static redisReply *array_of(size_t n)
{
    redisReply *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    a->type = REDIS_REPLY_ARRAY;
    a->elements = n;
    a->element = calloc(n ? n : 1, sizeof(*a->element));
    if (a->element)
        return a;
    free(a);
    return NULL;
}

/* The answers of all nodes, as one; n jobs from the first on are of this item. */
static void settle_all(struct run *x, struct st_redis_job *first, size_t n)
{
    struct st_redis_request *q = &x->b->items[first->item];
    redisReply *a = array_of(n);

    q->fate = a ? ST_REDIS_DONE : ST_REDIS_PENDING;
    for (size_t i = 0; i < n; i++) {
        struct st_redis_job *j = &first[i];

        if (!j->reply && q->fate == ST_REDIS_DONE)
            q->fate = ST_REDIS_PENDING;
        if (!j->reply)
            unanswered(x, j);
        else if (again(x, q, j->reply, j->node) && q->fate == ST_REDIS_DONE)
            q->fate = ST_REDIS_PENDING;
        if (a)
            a->element[i] = j->reply;
        else if (j->reply)
            freeReplyObject(j->reply);
    }
    if (q->fate == ST_REDIS_DONE) {
        set_reply(q, a);
        return;
    }
    if (a)
        freeReplyObject(a);
    else
        x->stop = true;
    if (q->flags & ST_REDIS_WRITE && q->fate == ST_REDIS_PENDING) { /* some nodes have done it */
        q->fate = ST_REDIS_LOST;
        x->lost = true;
    }
}

static void settle(struct run *x, struct st_redis_job *j)
{
    struct st_redis_request *q = &x->b->items[j->item];

    if (!j->reply) {
        unanswered(x, j);
        return;
    }
    set_reply(q, j->reply);
    if (!again(x, q, q->reply, j->node))
        q->fate = ST_REDIS_DONE;
    if (!st_redis_error_is(q->reply, "ASK") && !st_redis_error_is(q->reply, "NOSCRIPT"))
        q->ask = NULL;
}

static void settle_jobs(struct run *x)
{
    struct st_redis_job *jobs = x->r->jobs;

    for (size_t i = 0, n; i < x->n_jobs; i += n) {
        for (n = 1; i + n < x->n_jobs && jobs[i + n].item == jobs[i].item; n++)
            ;
        if (x->b->items[jobs[i].item].flags & ST_REDIS_ALL)
            settle_all(x, &jobs[i], n);
        else
            settle(x, &jobs[i]);
    }
}

/* ---- rounds --------------------------------------------------------------------------------------------- */

/* Sending now would most likely end in not knowing what became of it. */
static bool too_late(struct run *x)
{
    if (st_clock_mono_us() <= x->last_us)
        return false;
    if (!x->err.code)
        st_fail(&x->err, STINT_EAGAIN, "%s: there was no time left after connecting", x->r->url.where);
    x->stop = true;
    return true;
}

static void one_round(struct run *x)
{
    x->pause = false;
    x->rounds++;
    do
        if (!place(x))
            return;
    while (x->n_jobs && !connect_all(x));
    if (!x->n_jobs || too_late(x))
        return;
    fill(x);
    send_all(x);
    read_all(x);
    settle_jobs(x);
}

static bool is_pending(const struct run *x)
{
    for (size_t i = 0; i < x->b->n; i++)
        if (x->b->items[i].fate == ST_REDIS_PENDING)
            return true;
    return false;
}

/* Is another round of use?  Sleeps before it, where that is wise. */
static bool go_on(struct run *x)
{
    const int64_t left = x->until_us - st_clock_mono_us();

    if (x->stop || x->lost || left <= 0 || !is_pending(x))
        return false;
    if (x->breaks > BREAKS_MAX && x->r->url.kind == ST_REDIS_ONE && !x->r->cluster)
        return false;
    if ((x->pause && !(x->breaks == 1 && x->rounds == 1)) || x->rounds > AT_ONCE) {
        x->pause_us = x->pause_us ? 2 * x->pause_us : PAUSE_MIN_US;
        if (x->pause_us > PAUSE_MAX_US)
            x->pause_us = PAUSE_MAX_US;
        st_redis_poll(-1, 0, -1, st_clock_mono_us() + (x->pause_us < left ? x->pause_us : left));
    }
    return true;
}

static stint_code unknown(struct run *x)
{
    if (!x->err.message[0])
        st_fail(&x->err, STINT_EUNKNOWN, "%s did not answer", x->r->url.where);
    x->err.code = STINT_EUNKNOWN;
    st_err_remedy(&x->err, "it may have been done: look before doing it again");
    return STINT_EUNKNOWN;
}

/* What the caller is told, and whether an error that we would have liked to try again becomes the answer. */
static stint_code verdict(struct run *x)
{
    size_t pending = 0, silent = 0, wrote = 0;
    const redisReply *said = NULL;

    for (size_t i = 0; i < x->b->n; i++) {
        const struct st_redis_request *q = &x->b->items[i];

        wrote += q->fate == ST_REDIS_DONE && q->flags & ST_REDIS_WRITE;
        if (q->fate != ST_REDIS_PENDING)
            continue;
        pending++;
        silent += !q->reply;
        said = q->reply ? q->reply : said;
    }
    if (x->lost || (wrote && silent))
        return unknown(x);
    if (!pending)
        return STINT_OK;
    if (!wrote) {
        if (said && !silent)
            st_redis_error(x->r->url.where, said, &x->err);
        return x->err.code ? x->err.code : STINT_EAGAIN;
    }
    for (size_t i = 0; i < x->b->n; i++)
        x->b->items[i].fate = ST_REDIS_DONE;
    return STINT_OK;
}

static void fresh(struct st_redis_batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        struct st_redis_request *q = &b->items[i];

        set_reply(q, NULL);
        q->fate = ST_REDIS_PENDING;
        q->load = false;
        q->ask = NULL;
    }
}

static stint_code too_much(const struct st_redis_batch *b, stint_error *err)
{
    if (b->wire.failed && b->wire.len > ST_REDIS_BATCH_MAX / 2)
        return st_refuse(err, "send less at once", "a batch for Redis is larger than %zu MiB",
                         ST_REDIS_BATCH_MAX >> 20);
    return st_fail(err, STINT_ENOMEM, "no memory for a batch");
}

stint_code st_redis_run(struct st_redis *r, struct st_redis_batch *b, stint_error *err)
{
    struct run x = {.r = r, .b = b, .until_us = st_clock_mono_us() + r->timeout_ms * ST_MS};
    stint_code code = st_redis_fork_check(r, err);

    if (!code && b->failed)
        code = too_much(b, err);
    if (code || !b->n)
        return code;
    x.last_us = x.until_us - (r->timeout_ms * ST_MS / 4 < LEAST_US ? r->timeout_ms * ST_MS / 4 : LEAST_US);
    fresh(b);
    st_redis_nodes_trim(r);
    do
        one_round(&x);
    while (go_on(&x));
    code = verdict(&x);
    if (code && err)
        *err = x.err;
    return code;
}
