/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_info.c - what the server says of itself, in short: `about`, and the warning of a worker that starts where jobs may be lost.
 *
 * Thread: the handle's.
 */
#include <stdatomic.h>
#include <string.h>

#include "store/redis_look.h"

struct st_slice st_redis_info(struct st_slice text, const char *name)
{
    const size_t len = strlen(name);

    for (size_t at = 0; at < text.len;) {
        const char *line = text.p + at, *end = memchr(line, '\n', text.len - at);
        size_t n = end ? (size_t)(end - line) : text.len - at;

        at += n + 1;
        if (n && line[n - 1] == '\r')
            n--;
        if (n > len && line[len] == ':' && memcmp(line, name, len) == 0)
            return ST_SLICE(line + len + 1, n - len - 1);
    }
    return ST_NONE;
}

struct short_info {
    char version[48], policy[32], fsync[16], save[64];
    bool aof, known, save_known;
    int64_t maxmemory;
};

static void copy(struct st_slice from, char *to, size_t size)
{
    snprintf(to, size, "%.*s", (int)(from.len < size ? from.len : size - 1), from.p ? from.p : "");
}

/* The second of a CONFIG GET's two. */
static struct st_slice config_value(const redisReply *r)
{
    return r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 ? st_redis_text(r->element[1]) : ST_NONE;
}

static void info_parse(struct st_slice text, struct short_info *i)
{
    struct st_slice version = st_redis_info(text, "valkey_version");
    int64_t n = 0;

    i->known = text.len > 0;
    snprintf(i->version, sizeof(i->version), "%s ", version.p ? "Valkey" : "Redis");
    if (!version.p)
        version = st_redis_info(text, "redis_version");
    copy(version, i->version + strlen(i->version), sizeof(i->version) - strlen(i->version));
    copy(st_redis_info(text, "maxmemory_policy"), i->policy, sizeof(i->policy));
    i->aof = st_slice_is(st_redis_info(text, "aof_enabled"), "1");
    i->maxmemory = st_parse_i64(st_redis_info(text, "maxmemory"), &n) ? n : 0;
}

static void ask(struct st_redis_store *s, struct short_info *i)
{
    struct st_redis_batch b;
    stint_error err = {0};

    memset(i, 0, sizeof(*i));
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ, "INFO", NULL);
    st_redis_add(&b, ST_REDIS_READ, ST_NONE,
                 (const struct st_slice[]){st_slice_cstr("CONFIG"), st_slice_cstr("GET"), st_slice_cstr("appendfsync")},
                 3);
    st_redis_add(&b, ST_REDIS_READ, ST_NONE,
                 (const struct st_slice[]){st_slice_cstr("CONFIG"), st_slice_cstr("GET"), st_slice_cstr("save")}, 3);
    if (!st_redis_run(s->r, &b, &err)) {
        if (st_redis_reply(&b, 0)->type == REDIS_REPLY_STRING)
            info_parse(st_redis_text(st_redis_reply(&b, 0)), i);
        copy(config_value(st_redis_reply(&b, 1)), i->fsync, sizeof(i->fsync));
        i->save_known = config_value(st_redis_reply(&b, 2)).p != NULL;
        copy(config_value(st_redis_reply(&b, 2)), i->save, sizeof(i->save));
    }
    st_redis_batch_clear(&b);
}

void st_redis_op_about(struct st_store *base, struct st_store_about *out)
{
    struct st_redis_store *s = st_redis_of(base);
    struct short_info i;

    ask(s, &i);
    memset(out, 0, sizeof(*out));
    snprintf(out->kind, sizeof(out->kind), "redis");
    snprintf(out->where, sizeof(out->where), "%s", st_redis_where(s->r));
    snprintf(out->version, sizeof(out->version), "%s", i.known ? i.version : "Redis");
    if (i.aof)
        snprintf(out->durability, sizeof(out->durability), "append-only file, fsync %s",
                 i.fsync[0] ? i.fsync : "unknown");
    else if (!i.known || !i.save_known)
        snprintf(out->durability, sizeof(out->durability), "unknown");
    else
        snprintf(out->durability, sizeof(out->durability), "%s", i.save[0] ? "snapshots only" : "none: in memory only");
}

/* Jobs are deleted when memory is short: all of them may be, not only what has a time to live. */
static bool deletes_jobs(const struct short_info *i)
{
    return i->known && i->maxmemory && strncmp(i->policy, "allkeys-", 8) == 0;
}

static void warn_of(struct st_redis_store *s, const struct short_info *i)
{
    const bool some = strncmp(i->policy, "volatile-", 9) == 0;

    if (i->known && i->policy[0] && strcmp(i->policy, "noeviction") != 0)
        st_log(ST_LOG_WARN, "store.evicts", ST_F("where", st_redis_where(s->r)), ST_F("maxmemory-policy", i->policy),
               ST_F("effect", some           ? "unique keys are deleted silently when memory is short"
                              : i->maxmemory ? "jobs are deleted silently when memory is short"
                                             : "once maxmemory is set, jobs are deleted silently when memory is short"),
               ST_F("remedy", "CONFIG SET maxmemory-policy noeviction"));
    if (i->known && !i->aof && i->save_known && !i->save[0])
        st_log(ST_LOG_WARN, "store.not_kept", ST_F("where", st_redis_where(s->r)),
               ST_F("effect", "every job is lost when the server stops"), ST_F("remedy", "CONFIG SET appendonly yes"));
}

stint_code st_redis_op_fit(struct st_store *base, stint_error *err)
{
    struct st_redis_store *s = st_redis_of(base);
    struct short_info i;

    ask(s, &i);
    if (deletes_jobs(&i) && !s->may_lose) {
        st_fail(err, STINT_ESTORE, "%s deletes jobs silently when memory is short: its maxmemory-policy is %s",
                st_redis_where(s->r), i.policy);
        st_err_remedy(err, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; or, if jobs may be "
                           "lost, may_lose=yes in the URL");
        return err->code;
    }
    warn_of(s, &i);
    return STINT_OK;
}
