/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_args.c - the arguments of a script.
 */
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "store/redis_int.h"

#define BLOCK 16384

struct st_redis_bytes {
    struct st_redis_bytes *next;
    size_t used, cap;
    char p[];
};

void st_redis_args_init(struct st_redis_args *a)
{
    memset(a, 0, sizeof(*a));
}

void st_redis_args_clear(struct st_redis_args *a)
{
    while (a->bytes) {
        struct st_redis_bytes *next = a->bytes->next;

        free(a->bytes);
        a->bytes = next;
    }
    free(a->p);
    memset(a, 0, sizeof(*a));
}

void st_redis_arg(struct st_redis_args *a, struct st_slice s)
{
    if (a->n == a->cap) {
        const size_t cap = a->cap ? 2 * a->cap : 64;
        struct st_slice *p = realloc(a->p, cap * sizeof(*p));

        if (!p) {
            a->failed = true;
            return;
        }
        a->p = p;
        a->cap = cap;
    }
    a->p[a->n++] = s.p ? s : ST_SLICE("", 0);
}

static char *bytes(struct st_redis_args *a, size_t n)
{
    struct st_redis_bytes *b = a->bytes;
    char *p;

    if (!b || b->cap - b->used < n) {
        const size_t cap = n > BLOCK ? n : BLOCK;

        b = malloc(sizeof(*b) + cap);
        if (!b)
            return NULL;
        b->next = a->bytes;
        b->used = 0;
        b->cap = cap;
        a->bytes = b;
    }
    p = b->p + b->used;
    b->used += n;
    return p;
}

void st_redis_arg_copy(struct st_redis_args *a, const void *p, size_t n)
{
    char *copy = bytes(a, n);

    if (!copy) {
        a->failed = true;
        return;
    }
    if (n)
        memcpy(copy, p, n);
    st_redis_arg(a, ST_SLICE(copy, n));
}

void st_redis_arg_num(struct st_redis_args *a, int64_t v)
{
    char text[ST_REDIS_NUM];
    const struct st_slice s = st_redis_num(text, v);

    st_redis_arg_copy(a, s.p, s.len);
}

size_t st_redis_add_lua(struct st_redis_store *s, unsigned flags, enum st_redis_lua which, struct st_slice queue,
                        const struct st_redis_args *a, size_t from)
{
    struct st_redis_keys keys;

    st_redis_keys(&keys, queue);
    if (a->failed)
        s->b.failed = true;
    return st_redis_add_script(&s->b, flags, st_redis_lua(which), keys.k, ST_RK_N, a->p + from, a->n - from);
}

/* ---- what scripts compute too ------------------------------------------------------------------------- */

#define DIGEST_MAX 65536

void st_redis_digest(struct st_slice msg, char out[17])
{
    unsigned char sha[EVP_MAX_MD_SIZE] = {0};
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    char len[ST_REDIS_NUM];

    if (c) {
        EVP_DigestInit_ex(c, EVP_sha1(), NULL);
        if (msg.len > DIGEST_MAX) {
            const struct st_slice n = st_redis_num(len, (int64_t)msg.len);

            EVP_DigestUpdate(c, n.p, n.len);
            msg = ST_SLICE(msg.p + msg.len - DIGEST_MAX, DIGEST_MAX);
        }
        EVP_DigestUpdate(c, msg.p, msg.len);
        EVP_DigestFinal_ex(c, sha, NULL);
        EVP_MD_CTX_free(c);
    }
    for (int i = 0; i < 8; i++)
        snprintf(out + 2 * i, 3, "%02x", sha[i]);
}
