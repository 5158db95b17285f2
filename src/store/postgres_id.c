/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_id.c - ids and lanes as the tables keep them.
 *
 * The functions in sql/ compute slots and lanes too: what is here and there must give the same.
 *
 * Thread: any.
 */
#include "store/postgres_int.h"

#include <inttypes.h>
#include <sodium.h>
#include <string.h>

enum { KEY_UUID, KEY_TEXT }; /* the first byte of a key */

/* Lowercase only: an id comes back as it was given, to the letter. */
static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool dash_at(size_t i)
{
    return i == 8 || i == 13 || i == 18 || i == 23;
}

static bool uuid_parse(struct st_slice id, unsigned char out[16])
{
    size_t n = 0;

    if (id.len != ST_UUID_LEN)
        return false;
    for (size_t i = 0; i < ST_UUID_LEN; i++) {
        const int v = hex_value(id.p[i]);

        if (dash_at(i) ? id.p[i] != '-' : v < 0)
            return false;
        if (dash_at(i))
            continue;
        out[n / 2] = (unsigned char)(n % 2 ? out[n / 2] << 4 | v : v);
        n++;
    }
    return true;
}

void st_pg_key(struct st_slice id, struct st_pg_key *out)
{
    const size_t len = id.len <= ST_ID_MAX ? id.len : ST_ID_MAX; /* callers have checked it */

    out->p[0] = KEY_UUID;
    out->len = 17;
    if (uuid_parse(id, out->p + 1))
        return;
    out->p[0] = KEY_TEXT;
    if (len)
        memcpy(out->p + 1, id.p, len);
    out->len = len + 1;
}

static void uuid_format(const unsigned char *p, char *out)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0, n = 0; i < ST_UUID_LEN; i++) {
        if (dash_at(i)) {
            out[i] = '-';
            continue;
        }
        out[i] = digits[n % 2 ? p[n / 2] & 15 : p[n / 2] >> 4];
        n++;
    }
    out[ST_UUID_LEN] = '\0';
}

bool st_pg_key_text(struct st_slice key, char out[ST_ID_MAX + 1])
{
    out[0] = '\0';
    if (key.len == 17 && key.p[0] == KEY_UUID) {
        uuid_format((const unsigned char *)key.p + 1, out);
        return true;
    }
    if (key.len < 2 || key.len > ST_PG_KEY_MAX || key.p[0] != KEY_TEXT)
        return false;
    memcpy(out, key.p + 1, key.len - 1);
    out[key.len - 1] = '\0';
    return true;
}

int st_pg_slot(const struct st_pg_key *key)
{
    int64_t ms = 0;

    if (key->len != 17 || key->p[0] != KEY_UUID || key->p[7] >> 4 != 7)
        return ST_PG_KEPT;
    for (int i = 1; i <= 6; i++)
        ms = ms << 8 | key->p[i];
    return (int)(ms / ST_PG_SLOT_MS % ST_PG_SLOTS);
}

int64_t st_pg_lane_id(struct st_slice queue, struct st_slice type, int priority)
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state h;
    char number[16];
    uint64_t id = 0;

    snprintf(number, sizeof(number), "%d", priority);
    crypto_hash_sha256_init(&h);
    crypto_hash_sha256_update(&h, (const unsigned char *)queue.p, queue.len);
    crypto_hash_sha256_update(&h, (const unsigned char *)"\n", 1);
    crypto_hash_sha256_update(&h, (const unsigned char *)type.p, type.len);
    crypto_hash_sha256_update(&h, (const unsigned char *)"\n", 1);
    crypto_hash_sha256_update(&h, (const unsigned char *)number, strlen(number));
    crypto_hash_sha256_final(&h, hash);
    for (int i = 0; i < 8; i++)
        id = id << 8 | hash[i];
    return (int64_t)(id & ~(uint64_t)1);
}
