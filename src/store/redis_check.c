/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_check.c - what `doctor` asks a Redis store, and a worker before it begins.
 *
 * Each master is asked what it says of itself (INFO), and how it is set up, where that may be asked (CONFIG).  Then what this user may do
 * is tried on keys that do not exist, the keys are asked for their kind, and the queues are looked through for what would wait for ever.
 *
 * Nothing is changed.
 *
 * Thread: the handle's.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis_look.h"

#define OLDEST    602   /* 6.2: LMOVE, RPOP with a count, ZINTER */
#define LOOKED_AT 10000 /* jobs of each list that are looked at */

struct check {
    struct st_redis_store *s;
    st_finding_fn found;
    void *arg;
};

static void say(const struct check *k, enum st_severity sev, const char *remedy, const char *fmt, ...) ST_PRINTF(4, 5);

static void say(const struct check *k, enum st_severity sev, const char *remedy, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    k->found(k->arg, sev, text, remedy);
}

/* To Redis 6.2 CLIENT and CLUSTER are @admin as a whole. */
static const char rights_remedy[] =
    "ACL SETUSER NAME ~asynq:* ~stint:* resetchannels &asynq:cancel &stint:* &__redis__:invalidate +@all -@admin"
    " -@dangerous +info +config|get +client|id +client|setname +client|tracking +cluster|slots +cluster|info +role";

static int64_t number(struct st_slice text, const char *name)
{
    int64_t n = 0;

    return st_parse_i64(st_redis_info(text, name), &n) ? n : 0;
}

/* ---- a server ----------------------------------------------------------------------------------------------------- */

/* In a Cluster what is said of a node follows the line that names it. */
static void check_version(const struct check *k, struct st_slice info)
{
    const struct st_slice port = st_redis_is_cluster(k->s->r) ? st_redis_info(info, "tcp_port") : ST_NONE;
    const struct st_slice valkey = st_redis_info(info, "valkey_version"), redis = st_redis_info(info, "redis_version");
    const struct st_slice v = valkey.p ? valkey : redis;
    char text[32];
    int major = 0, minor = 0;

    snprintf(text, sizeof(text), "%.*s", (int)(v.len < 31 ? v.len : 31), v.p ? v.p : "");
    if (sscanf(text, "%d.%d", &major, &minor) != 2)
        say(k, ST_WARNING, "use Redis 6.2 or newer, or Valkey", "the server does not say which version it is");
    else if (major * 100 + minor < OLDEST)
        say(k, ST_BAD, "use Redis 6.2 or newer, or Valkey", "Redis %s is too old", text);
    else
        say(k, ST_FINE, "", "%s %s%s%.*s", valkey.p ? "Valkey" : "Redis", text, port.p ? ", the node at port " : "",
            (int)port.len, port.p ? port.p : "");
}

static void check_memory(const struct check *k, struct st_slice info)
{
    const struct st_slice policy = st_redis_info(info, "maxmemory_policy");
    const int64_t max = number(info, "maxmemory"), used = number(info, "used_memory"),
                  evicted = number(info, "evicted_keys");

    if (policy.len > 9 && memcmp(policy.p, "volatile-", 9) == 0)
        say(k, ST_WARNING, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
            "maxmemory-policy is %.*s: %s", (int)policy.len, policy.p,
            max ? "unique keys are deleted silently when memory is short"
                : "once maxmemory is set, unique keys are deleted silently");
    else if (policy.p && !st_slice_is(policy, "noeviction"))
        say(k, max ? ST_BAD : ST_WARNING, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
            "maxmemory-policy is %.*s: %s", (int)policy.len, policy.p,
            max ? "jobs are deleted silently when memory is short"
                : "once maxmemory is set, jobs are deleted silently");
    else
        say(k, ST_FINE, "", "nothing is evicted");
    if (evicted > 0)
        say(k, ST_WARNING, "see what is missing, and set maxmemory-policy to noeviction; CONFIG RESETSTAT forgets this",
            "%lld keys were evicted since the server started: jobs may be among them", (long long)evicted);
    if (max > 0 && used >= max)
        say(k, ST_BAD, "raise maxmemory, or shorten retention",
            "maxmemory is used up (%lld of %lld bytes): no job can be added", (long long)used, (long long)max);
    else if (max > 0 && used > max / 5 * 4)
        say(k, ST_WARNING, "raise maxmemory, or shorten retention",
            "%lld%% of maxmemory is in use: at 100%% no job can be added",
            (long long)(used / (max / 100 ? max / 100 : 1)));
}

static void check_aof(const struct check *k, struct st_slice info, struct st_slice fsync)
{
    if (st_slice_is(st_redis_info(info, "aof_last_write_status"), "err"))
        say(k, ST_BAD, "make room on the server's disk; see the server's log",
            "the append-only file cannot be written: nothing can be added");
    else if (st_slice_is(fsync, "always"))
        say(k, ST_FINE, "", "every change is on disk before it is acknowledged (appendfsync always)");
    else if (st_slice_is(fsync, "no"))
        say(k, ST_WARNING, "CONFIG SET appendfsync everysec",
            "appendfsync is no: a power cut may lose half a minute of acknowledged jobs");
    else
        say(k, ST_FINE, "", "append-only file, appendfsync %.*s: a power cut may lose up to 1 s of acknowledged jobs",
            fsync.p ? (int)fsync.len : 7, fsync.p ? fsync.p : "unknown");
}

static void check_kept(const struct check *k, struct st_slice info, struct st_slice fsync, struct st_slice save)
{
    if (st_slice_is(st_redis_info(info, "rdb_last_bgsave_status"), "err"))
        say(k, ST_BAD, "make room on the server's disk; see the server's log",
            "the last snapshot has failed: with stop-writes-on-bgsave-error nothing can be added");
    if (st_slice_is(st_redis_info(info, "loading"), "1"))
        say(k, ST_WARNING, "wait", "the server is still loading its data");
    if (st_slice_is(st_redis_info(info, "aof_enabled"), "1"))
        check_aof(k, info, fsync);
    else if (save.p && save.len == 0)
        say(k, ST_WARNING, "CONFIG SET appendonly yes, and the same in redis.conf",
            "nothing is kept on disk (appendonly no, no save): every job is lost when the server stops");
    else
        say(k, ST_WARNING, "CONFIG SET appendonly yes, and the same in redis.conf",
            "only snapshots are kept (appendonly no): jobs that came since the last one are lost when the server stops "
            "hard");
}

static void check_replicas(const struct check *k, struct st_slice info)
{
    const int64_t n = number(info, "connected_slaves");

    if (st_slice_is(st_redis_info(info, "role"), "slave"))
        say(k, ST_BAD, "name the master in the URL, or use redis-sentinel://",
            "this server is a replica: it cannot be written to");
    else if (n > 0)
        say(k, ST_FINE, "", "%lld %s a moment later, so a failover may lose the last acknowledged jobs", (long long)n,
            n == 1 ? "replica, which follows" : "replicas, which follow");
}

static void check_clients(const struct check *k, struct st_slice info)
{
    const int64_t n = number(info, "connected_clients"), max = number(info, "maxclients");

    if (max > 0 && n > max / 5 * 4)
        say(k, ST_WARNING, "raise maxclients, or see who has so many connections: CLIENT LIST",
            "%lld of %lld connections are in use", (long long)n, (long long)max);
}

static struct st_slice config_value(const redisReply *r, size_t node)
{
    const redisReply *pair = r && r->type == REDIS_REPLY_ARRAY && node < r->elements ? r->element[node] : NULL;

    return pair && pair->type == REDIS_REPLY_ARRAY && pair->elements == 2 ? st_redis_text(pair->element[1]) : ST_NONE;
}

static void add_all(struct st_redis_batch *b, const char *one, const char *two, const char *three)
{
    const struct st_slice argv[] = {st_slice_cstr(one), st_slice_cstr(two), st_slice_cstr(three)};

    st_redis_add(b, ST_REDIS_READ | ST_REDIS_ALL, ST_NONE, argv, two ? 3 : 1);
}

static stint_code check_servers(const struct check *k, stint_error *err)
{
    struct st_redis_batch b;
    const redisReply *infos;
    stint_code code;

    st_redis_batch_init(&b);
    add_all(&b, "INFO", NULL, NULL);
    add_all(&b, "CONFIG", "GET", "appendfsync");
    add_all(&b, "CONFIG", "GET", "save");
    code = st_redis_run(k->s->r, &b, err);
    infos = code ? NULL : st_redis_reply(&b, 0);
    for (size_t i = 0; !code && infos->type == REDIS_REPLY_ARRAY && i < infos->elements; i++) {
        const struct st_slice info = st_redis_text(infos->element[i]);

        if (infos->element[i]->type != REDIS_REPLY_STRING) {
            say(k, ST_WARNING, "allow INFO to this user, and CONFIG GET if you may",
                "the server does not say how it is set up");
            continue;
        }
        check_version(k, info);
        check_memory(k, info);
        check_kept(k, info, config_value(st_redis_reply(&b, 1), i), config_value(st_redis_reply(&b, 2), i));
        check_replicas(k, info);
        check_clients(k, info);
    }
    st_redis_batch_clear(&b);
    return code;
}

/* ---- its Cluster ------------------------------------------------------------------------------------------------------ */

static stint_code check_cluster(const struct check *k, stint_error *err)
{
    struct st_redis_batch b;
    struct st_slice state;
    stint_code code;

    if (!st_redis_is_cluster(k->s->r))
        return STINT_OK;
    st_redis_batch_init(&b);
    st_redis_add(&b, ST_REDIS_READ, ST_NONE, (const struct st_slice[]){st_slice_cstr("CLUSTER"), st_slice_cstr("INFO")},
                 2);
    code = st_redis_run(k->s->r, &b, err);
    state = code ? ST_NONE : st_redis_info(st_redis_text(st_redis_reply(&b, 0)), "cluster_state");
    if (!code && st_redis_reply(&b, 0)->type == REDIS_REPLY_ERROR)
        say(k, ST_WARNING, rights_remedy,
            "this user may not CLUSTER INFO: whether all slots have a master is not known");
    else if (!code && !st_slice_is(state, "ok"))
        say(k, ST_BAD, "see CLUSTER NODES: some slots have no master", "the Cluster's state is %.*s", (int)state.len,
            state.p ? state.p : "");
    else if (!code)
        say(k, ST_FINE, "", "a Cluster; its state is ok; new jobs are noticed by looking ten times a second");
    st_redis_batch_clear(&b);
    return code;
}

/* ---- what this user may do ------------------------------------------------------------------------------------------------ */

/* What the scripts write with, each with arguments of one letter, on a key of their own that is gone again at the end.  Answers the first one
 * that the user may not run. */
#define IN_SCRIPTS                                                                                                     \
    "for c, a in string.gmatch('DEL: HSET:xx HDEL:x INCRBY:x LPUSH:x RPUSH:x RPOP: LREM:0x LTRIM:00 ZADD:0x ZREM:x "   \
    "SADD:x SREM:x "                                                                                                   \
    "SET:x SETNX:x EXPIRE:0 EXPIREAT:0', '(%u+):(%w*)') do "                                                           \
    "local argv = {c, KEYS[1]} "                                                                                       \
    "for w in string.gmatch(a, '.') do argv[#argv + 1] = w end "                                                       \
    "local r = redis.pcall(unpack(argv)) "                                                                             \
    "local e = type(r) == 'table' and r.err or '' "                                                                    \
    "if string.find(e, 'user executing', 1, true) or string.find(e, 'ACL failure', 1, true) then "                     \
    "redis.pcall('DEL', KEYS[1]) return redis.error_reply('NOPERM ' .. c) end "                                        \
    "end return redis.call('DEL', KEYS[1])"

/* Nothing of this is there, so nothing changes.  What nobody can do without comes first. */
static const struct {
    const char *argv[6];
    enum st_severity without;
    const char *what;
} rights[] = {
    {{"EVAL", "return redis.call('DEL', KEYS[1])", "1", "asynq:{stint-doctor}:t:none"},
     ST_BAD,
     "run scripts on asynq:*"},
    {{"EVAL", IN_SCRIPTS, "1", "asynq:{stint-doctor}:t:none"}, ST_BAD, "run all that scripts need"},
    {{"DEL", "stint:{stint-doctor}:none"}, ST_BAD, "write stint:*"},
    {{"SREM", "asynq:queues", ""}, ST_BAD, "write asynq:queues"},
    {{"PUBLISH", "asynq:cancel", ""}, ST_WARNING, "publish asynq:cancel: stock workers are not told of a cancellation"},
    {{"PUBLISH", "stint:wake:", ""}, ST_WARNING, "publish stint:wake:*"},
    {{"CLIENT", "TRACKING", "OFF"},
     ST_WARNING,
     "CLIENT TRACKING: workers look for jobs ten times a second instead of being told"},
};
#define RIGHTS (sizeof(rights) / sizeof(rights[0]))

static void add_right(struct st_redis_batch *b, const char *const *argv)
{
    const bool eval = strcmp(argv[0], "EVAL") == 0, client = strcmp(argv[0], "CLIENT") == 0,
               channel = strcmp(argv[0], "PUBLISH") == 0;
    struct st_slice slices[6];
    size_t n = 0;

    for (; n < 6 && argv[n]; n++)
        slices[n] = st_slice_cstr(argv[n]);
    st_redis_add(b, ST_REDIS_READ, client || channel ? ST_NONE : slices[eval ? 3 : 1], slices, n);
}

/* Is it about rights?  Then `more` is the command, where the answer names one. */
static bool lacks_right(const redisReply *r, char more[32])
{
    if (!st_redis_error_is(r, "NOPERM"))
        return false;
    more[0] = '\0';
    if (r->str[6] && !strchr(r->str + 7, ' ')) /* IN_SCRIPTS */
        snprintf(more, 32, ": %s", r->str + 7);
    return true;
}

/* What a server of this kind refuses to everybody is said once.  READONLY and WRONGTYPE are told of by those who look for that. */
static bool refused_before(const struct st_redis_batch *b, size_t i)
{
    const redisReply *r = st_redis_reply(b, i);
    const size_t word = strcspn(r->str, " ");

    for (size_t k = 0; k < i; k++) {
        const redisReply *old = st_redis_reply(b, k);

        if (old->type == REDIS_REPLY_ERROR && strncmp(old->str, r->str, word + 1) == 0)
            return true;
    }
    return st_redis_error_is(r, "READONLY") || st_redis_error_is(r, "WRONGTYPE") || strncmp(r->str, "ERR", 3) == 0;
}

static void judge_right(const struct check *k, const struct st_redis_batch *b, size_t i)
{
    const redisReply *r = st_redis_reply(b, i);
    stint_error why = {0};
    char more[32];

    if (r->type != REDIS_REPLY_ERROR)
        return;
    if (lacks_right(r, more)) {
        say(k, rights[i].without, rights_remedy, "this user may not %s%s", rights[i].what, more);
    } else if (!refused_before(b, i)) {
        st_redis_reply_fail(k->s->r, r, &why);
        say(k, ST_BAD, why.remedy[0] ? why.remedy : "see the server's log", "the server refuses to %s: %s",
            rights[i].what, r->str);
    }
}

static stint_code ask_rights(struct st_redis_store *s, struct st_redis_batch *b, size_t n, stint_error *err)
{
    st_redis_batch_init(b);
    for (size_t i = 0; i < n; i++)
        add_right(b, rights[i].argv);
    return st_redis_run(s->r, b, err);
}

static stint_code check_rights(const struct check *k, stint_error *err)
{
    struct st_redis_batch b;
    size_t wrong = 0;
    const stint_code code = ask_rights(k->s, &b, RIGHTS, err);

    for (size_t i = 0; !code && i < RIGHTS; i++) {
        judge_right(k, &b, i);
        wrong += st_redis_reply(&b, i)->type == REDIS_REPLY_ERROR;
    }
    if (!code && !wrong)
        say(k, ST_FINE, "", "this user may do all that is needed");
    st_redis_batch_clear(&b);
    return code;
}

stint_code st_redis_rights(struct st_redis_store *s, stint_error *err)
{
    struct st_redis_batch b;
    stint_code code;
    size_t n = 0;
    char more[32];

    if (s->rights_seen)
        return STINT_OK;
    while (n < RIGHTS && rights[n].without == ST_BAD)
        n++;
    code = ask_rights(s, &b, n, err);
    for (size_t i = 0; !code && i < n; i++)
        if (lacks_right(st_redis_reply(&b, i), more)) {
            code = st_fail(err, STINT_ESTORE, "%s: this user may not %s%s", st_redis_where(s->r), rights[i].what, more);
            st_err_remedy(err, "%s", rights_remedy);
        }
    s->rights_seen = !code;
    st_redis_batch_clear(&b);
    return code;
}

/* ---- the kinds of keys -------------------------------------------------------------------------------------------------------- */

/* Those without which nothing is taken, or no outcome can be written.  Counters and the pause do without. */
static const char *const kinds[ST_RK_N] = {
    [ST_RK_PENDING] = "list", [ST_RK_ACTIVE] = "list",    [ST_RK_LEASE] = "zset",     [ST_RK_SCHEDULED] = "zset",
    [ST_RK_RETRY] = "zset",   [ST_RK_COMPLETED] = "zset", [ST_RK_ARCHIVED] = "zset",  [ST_RK_FENCE] = "string",
    [ST_RK_RULES] = "hash",   [ST_RK_CANCEL] = "set",     [ST_RK_CANCELLED] = "zset",
};

static const struct {
    const char *key, *kind;
} common[] = {
    {ST_REDIS_QUEUES, "set"},    {ST_REDIS_WORKERS, "hash"}, {ST_REDIS_LEADER, "hash"},
    {ST_REDIS_LAYOUT, "string"}, {"asynq:servers", "zset"},  {"asynq:workers", "zset"},
};
#define COMMON (sizeof(common) / sizeof(common[0]))

static void add_type(struct st_redis_batch *b, struct st_slice key)
{
    st_redis_add(b, ST_REDIS_READ, key, (const struct st_slice[]){st_slice_cstr("TYPE"), key}, 2);
}

/* Is it of this kind, or not there?  Who may not ask is told of the queue as a whole. */
static bool kind_is(const struct check *k, const redisReply *r, struct st_slice key, const char *kind,
                    const char *effect)
{
    const struct st_slice is = st_redis_text(r);

    if (!is.p || st_slice_is(is, kind) || st_slice_is(is, "none"))
        return true;
    say(k, ST_BAD, "find out who made it and remove it, or give the jobs a database of their own (/DB in the URL)",
        "%.*s is a %.*s and no %s: %s", (int)key.len, key.p, (int)is.len, is.p, kind, effect);
    return false;
}

static stint_code check_common(const struct check *k, bool *queues, stint_error *err)
{
    struct st_redis_batch b;
    stint_code code;

    st_redis_batch_init(&b);
    for (size_t i = 0; i < COMMON; i++)
        add_type(&b, st_slice_cstr(common[i].key));
    code = st_redis_run(k->s->r, &b, err);
    for (size_t i = 0; !code && i < COMMON; i++) {
        const bool good = kind_is(k, st_redis_reply(&b, i), st_slice_cstr(common[i].key), common[i].kind,
                                  i ? "workers are not shown, or none can lead" : "no queue is found");

        *queues = i ? *queues : good;
    }
    st_redis_batch_clear(&b);
    return code;
}

static stint_code check_kinds(const struct check *k, const char *queue, bool *good, stint_error *err)
{
    struct st_redis_keys keys;
    struct st_redis_batch b;
    stint_code code;
    size_t n = 0;

    st_redis_keys(&keys, st_slice_cstr(queue));
    st_redis_batch_init(&b);
    for (size_t i = 0; i < ST_RK_N; i++)
        if (kinds[i])
            add_type(&b, keys.k[i]);
    code = st_redis_run(k->s->r, &b, err);
    *good = true;
    for (size_t i = 0; !code && i < ST_RK_N; i++)
        if (kinds[i] && !kind_is(k, st_redis_reply(&b, n++), keys.k[i], kinds[i],
                                 "jobs of this queue are not run, or their outcomes not written"))
            *good = false;
    st_redis_batch_clear(&b);
    return code;
}

/* ---- the jobs ------------------------------------------------------------------------------------------------------------------ */

struct jobs {
    struct st_redis_store *s;
    struct st_slice queue;
    size_t seen, there, unleased;
};

static void on_peek(void *arg, size_t i, const struct st_redis_peek *p)
{
    struct jobs *j = arg;

    (void)i;
    j->there++;
    j->unleased += st_slice_is(p->asynq, "active") && isnan(p->lease_s);
}

static stint_code on_chunk(void *arg, const struct st_slice *ids, const double *scores, size_t n, stint_error *err)
{
    struct jobs *j = arg;

    (void)scores;
    j->seen += n;
    return st_redis_peek(j->s, j->queue, ids, n, false, on_peek, j, err);
}

static stint_code check_queue(const struct check *k, const char *name, stint_error *err)
{
    static const char *const sets[] = {"pending", "active", "scheduled", "retry"};
    struct jobs j = {.s = k->s, .queue = st_slice_cstr(name)};

    for (size_t i = 0; i < 4; i++) {
        const struct st_redis_walk w = {.queue = j.queue, .set = sets[i], .list = i < 2, .most = LOOKED_AT};

        if (st_redis_walk(k->s, &w, on_chunk, &j, err))
            return err->code;
    }
    if (j.seen > j.there)
        say(k, ST_WARNING, "they are passed over and counted; find out who deleted them: eviction, DEL, FLUSHALL",
            "queue %s names %zu jobs that are gone", name, j.seen - j.there);
    if (j.unleased)
        say(k, ST_WARNING, "redis-cli LREM them from asynq:{QUEUE}:active and LPUSH them to asynq:{QUEUE}:pending",
            "queue %s has %zu active jobs without a lease: nobody will take them up", name, j.unleased);
    return STINT_OK;
}

static stint_code check_jobs(const struct check *k, stint_error *err)
{
    char(*names)[ST_NAME_MAX + 1];
    stint_code code = st_redis_queues_read(k->s, true, err);
    const size_t n = k->s->queues.n;
    bool good = true;

    if (code)
        return code;
    names = calloc(n + 1, sizeof(*names));
    if (!names)
        return st_fail(err, STINT_ENOMEM, "no memory for the names of %zu queues", n);
    if (n)
        memcpy(names, k->s->queues.p, n * sizeof(*names));
    if (k->s->queues.odd)
        say(k, ST_WARNING, "give them other names, and remove these: redis-cli SREM asynq:queues NAME",
            "%zu queues are not served: their names are empty, longer than %d bytes or hold a zero byte",
            k->s->queues.odd, ST_NAME_MAX);
    for (size_t i = 0; !code && i < n; i++) {
        code = check_kinds(k, names[i], &good, err);
        if (!code && good)
            code = check_queue(k, names[i], err);
        if (code && st_redis_broken_said(err)) { /* a user who may not ask for the kinds */
            say(k, ST_BAD,
                "see which: redis-cli TYPE asynq:{QUEUE}:pending, then active, scheduled, retry; and remove it",
                "one of the keys of queue %s is of another kind: nothing of it is run", names[i]);
            code = STINT_OK;
        }
    }
    free(names);
    return code;
}

stint_code st_redis_op_check(struct st_store *base, st_finding_fn found, void *arg, stint_error *err)
{
    const struct check k = {.s = st_redis_of(base), .found = found, .arg = arg};
    stint_error local = {0};
    bool queues = true;
    stint_code code = check_servers(&k, &local);

    if (!code)
        code = check_cluster(&k, &local);
    if (!code)
        code = check_rights(&k, &local);
    if (!code)
        code = check_common(&k, &queues, &local);
    if (!code && queues)
        code = check_jobs(&k, &local);
    return st_redis_told(code, &local, err);
}
