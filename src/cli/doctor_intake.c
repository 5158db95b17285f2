/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor_intake.c - what `doctor` asks RQ's Redis: would messages be taken, and are they kept?
 *
 * Nothing of it is an error: without any message the jobs start after the grace.  A write is tried on a key that does not
 * exist, in a script, which is what the intake does all day.
 */
#include <stdio.h>
#include <string.h>

#include "cli/doctor.h"
#include "store/redis_conn.h"

#define NO_MESSAGES "RQ's messages are not taken: "
#define RIGHTS                                                                                                         \
    "ACL SETUSER NAME ~rq:* resetchannels &rq:* &__redis__:invalidate +@all -@admin -@dangerous +info +client|id"      \
    " +client|setname +client|tracking +role"

enum { P_SUSPENDED, P_WRITE, P_PUBLISH, P_INFO, P_WORKERS, P_QUEUES };

static void add_probes(struct st_redis_batch *b, const struct st_intake_conf *conf)
{
    char key[ST_NAME_MAX + 16];

    st_redis_addv(b, ST_REDIS_READ, "EXISTS", "rq:suspended", NULL);
    st_redis_addv(b, ST_REDIS_READ, "EVAL", "return redis.call('DEL', KEYS[1])", "1", "rq:job:stint-doctor", NULL);
    st_redis_addv(b, ST_REDIS_READ, "PUBLISH", "rq:pubsub:stint-doctor", "", NULL);
    st_redis_addv(b, ST_REDIS_READ, "INFO", NULL);
    st_redis_addv(b, ST_REDIS_READ, "TYPE", "rq:workers", NULL);
    for (size_t i = 0; conf->queues[i]; i++) {
        snprintf(key, sizeof(key), "rq:queue:%s", conf->queues[i]);
        st_redis_addv(b, ST_REDIS_READ, "TYPE", key, NULL);
    }
}

static bool check_write(struct cli_doctor *d, struct st_redis *r, const redisReply *a)
{
    stint_error err = {0};

    if (!st_redis_reply_fail(r, a, &err))
        return true;
    cli_found(d, ST_WARNING, st_redis_error_is(a, "NOPERM") ? RIGHTS : err.remedy, NO_MESSAGES "%s", err.message);
    return false;
}

/* Who may not publish may not listen either. */
static bool check_channels(struct cli_doctor *d, const redisReply *a)
{
    if (!st_redis_error_is(a, "NOPERM"))
        return true;
    cli_found(d, ST_WARNING, RIGHTS,
              "this user may not use the channels rq:*: RQ's stop commands are not heard, and messages are looked for "
              "now and then");
    return false;
}

/* What is said of the server, if this user may ask. */
static bool check_memory(struct cli_doctor *d, const redisReply *a)
{
    const struct st_slice info = st_redis_text(a), policy = st_redis_info(info, "maxmemory_policy");
    int64_t max = 0, used = 0;

    if (!info.p || !st_parse_i64(st_redis_info(info, "maxmemory"), &max) || max == 0)
        return true;
    if (policy.p && !st_slice_is(policy, "noeviction")) {
        cli_found(d, ST_WARNING, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
                  "RQ's Redis deletes messages when memory is short (maxmemory-policy %.*s): their runs start after "
                  "the grace",
                  (int)policy.len, policy.p);
        return false;
    }
    if (!st_parse_i64(st_redis_info(info, "used_memory"), &used) || used < max)
        return true;
    cli_found(d, ST_WARNING, "raise maxmemory, or shorten RQ's result_ttl and failure_ttl",
              NO_MESSAGES "RQ's Redis has used up its maxmemory");
    return false;
}

static bool check_kind(struct cli_doctor *d, const redisReply *a, const char *key, const char *name, const char *kind)
{
    const struct st_slice is = st_redis_text(a);

    if (!is.p || st_slice_is(is, kind) || st_slice_is(is, "none"))
        return true;
    cli_found(d, ST_WARNING, "find out who made it, and remove it", "%s%s is a %.*s and no %s of RQ's", key, name,
              (int)is.len, is.p, kind);
    return false;
}

static void check_answers(struct cli_doctor *d, struct st_redis *r, const struct st_redis_batch *b,
                          const struct st_intake_conf *conf)
{
    bool good = check_write(d, r, st_redis_reply(b, P_WRITE));

    good = check_channels(d, st_redis_reply(b, P_PUBLISH)) && good;
    good = check_memory(d, st_redis_reply(b, P_INFO)) && good;
    good = check_kind(d, st_redis_reply(b, P_WORKERS), "rq:workers", "", "set") && good;
    for (size_t i = 0; conf->queues[i]; i++)
        good = check_kind(d, st_redis_reply(b, P_QUEUES + i), "rq:queue:", conf->queues[i], "list") && good;
    if (st_redis_int(st_redis_reply(b, P_SUSPENDED), 0) == 1)
        cli_found(d, ST_WARNING, "`rq resume` ends that", "RQ is suspended at %s: its messages are not taken",
                  st_redis_where(r));
    else if (good)
        cli_found(d, ST_FINE, NULL, "RQ's Redis at %s answers", st_redis_where(r));
}

void cli_doctor_intake(struct cli_doctor *d, const struct st_settings *s, const char *store_url)
{
    struct st_redis *r = NULL;
    struct st_redis_batch b;
    stint_error err = {0};

    if (!s->intake.rq)
        return;
    d->area = "intake";
    if (st_redis_url_is(store_url))
        cli_found(d, ST_BAD, "use a postgres:// or sqlite: store, or take `intake` out of stint.yaml",
                  "the intake stands in front of a PostgreSQL or SQLite store, not of a Redis one");
    st_redis_batch_init(&b);
    add_probes(&b, &s->intake);
    if (st_redis_open(s->intake.rq, d->c->store_timeout_ms, &r, &err) || st_redis_run(r, &b, &err))
        cli_found(d, ST_WARNING, err.remedy, NO_MESSAGES "%s", err.message);
    else
        check_answers(d, r, &b, &s->intake);
    st_redis_batch_clear(&b);
    st_redis_close(r);
}
