/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_key.c - the names of keys, and queues by number.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "job/spec.h"
#include "store/redis_int.h"

/* ---- names ------------------------------------------------------------------------------------------------ */

static struct st_slice key_of(struct st_redis_key *out, const char *owner, struct st_slice queue, const char *suffix)
{
    const int n = snprintf(out->p, sizeof(out->p), "%s:{%.*s}:%s", owner, (int)queue.len, queue.p, suffix);

    return ST_SLICE(out->p, (size_t)n);
}

struct st_slice st_redis_key(struct st_redis_key *out, struct st_slice queue, const char *suffix)
{
    return key_of(out, "asynq", queue, suffix);
}

struct st_slice st_redis_own_key(struct st_redis_key *out, struct st_slice queue, const char *suffix)
{
    return key_of(out, "stint", queue, suffix);
}

struct st_slice st_redis_task_key(struct st_redis_key *out, struct st_slice queue, struct st_slice id)
{
    struct st_slice key = key_of(out, "asynq", queue, "t:");
    const size_t room = sizeof(out->p) - key.len, n = id.len < room ? id.len : room;

    memcpy(out->p + key.len, id.p, n); /* ids may hold any byte */
    key.len += n;
    return key;
}

void st_redis_keys(struct st_redis_keys *out, struct st_slice queue)
{
    static const char *const names[ST_RK_N][2] = {
#define X(name, owner, suffix) [ST_RK_##name] = {owner, suffix},
        ST_REDIS_KEYS(X)
#undef X
    };
    char *at = out->text;

    for (int i = 0; i < ST_RK_N; i++) {
        const int n = sprintf(at, "%s:{%.*s}:%s", names[i][0], (int)queue.len, queue.p, names[i][1]);

        out->k[i] = ST_SLICE(at, (size_t)n);
        at += n + 1;
    }
}

static void md5_hex(struct st_slice bytes, char out[33])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;

    EVP_Digest(bytes.p ? bytes.p : "", bytes.len, digest, &len, EVP_md5(), NULL);
    for (unsigned i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", i < len ? digest[i] : 0);
}

/* Is the key the one a job has that was given none? */
static bool key_is_spec(const struct st_new_job *j)
{
    char hash[ST_HASH_LEN + 1];

    return j->key.len == ST_HASH_LEN && !st_spec_hash(j->type, j->queue, j->payload, hash, NULL) &&
           st_slice_is(j->key, hash);
}

struct st_slice st_redis_lock_key(struct st_redis_key *out, const struct st_new_job *j)
{
    char md5[33];
    struct st_slice tail = j->key;
    int n;

    if (key_is_spec(j)) {
        md5_hex(j->payload, md5);
        tail = ST_SLICE(md5, j->payload.len ? 32 : 0); /* no payload: asynq's key ends there */
    }
    n = snprintf(out->p, sizeof(out->p), "asynq:{%.*s}:unique:%.*s:%.*s", (int)j->queue.len, j->queue.p,
                 (int)j->type.len, j->type.p, (int)tail.len, tail.p);
    return ST_SLICE(out->p, (size_t)n);
}

/* ---- queues by number ----------------------------------------------------------------------------------------- */

/* Grows only, and names never move: a ref stays good for as long as the process lives. */
#define REFS_WAYS 1024
static struct {
    pthread_mutex_t mu;
    char **names;
    uint32_t *next, first[REFS_WAYS]; /* refs whose names have the same hash, 0 = no more */
    size_t n, cap;
} refs = {.mu = PTHREAD_MUTEX_INITIALIZER};

static size_t way_of(struct st_slice queue)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < queue.len; i++)
        h = (h ^ (unsigned char)queue.p[i]) * 16777619u;
    return h % REFS_WAYS;
}

static bool refs_room(void)
{
    const size_t cap = refs.cap ? 2 * refs.cap : 64;
    char **names;
    uint32_t *next;

    if (refs.n < refs.cap)
        return true;
    if (cap > ST_REDIS_REFS_MAX)
        return false;
    names = realloc(refs.names, cap * sizeof(*names));
    refs.names = names ? names : refs.names;
    next = realloc(refs.next, cap * sizeof(*next));
    refs.next = next ? next : refs.next;
    if (names && next)
        refs.cap = cap;
    return names && next;
}

uint64_t st_redis_ref(struct st_slice queue)
{
    const size_t way = way_of(queue);
    uint64_t ref;

    pthread_mutex_lock(&refs.mu);
    ref = refs.first[way];
    while (ref && !st_slice_is(queue, refs.names[ref - 1]))
        ref = refs.next[ref - 1];
    if (!ref && refs_room() && (refs.names[refs.n] = st_slice_dup(queue))) {
        refs.next[refs.n] = refs.first[way];
        ref = refs.first[way] = (uint32_t)++refs.n;
    }
    pthread_mutex_unlock(&refs.mu);
    return ref;
}

struct st_slice st_redis_ref_queue(uint64_t ref)
{
    struct st_slice name = ST_NONE;

    pthread_mutex_lock(&refs.mu);
    if (ref > 0 && ref <= refs.n)
        name = st_slice_cstr(refs.names[ref - 1]);
    pthread_mutex_unlock(&refs.mu);
    return name;
}
