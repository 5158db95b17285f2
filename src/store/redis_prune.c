/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_prune.c - removing ended jobs whose time is over.
 *
 *     prune    by the caller's retention: our own completed jobs, and the archived ones, whoever enqueued them.  A completed job
 *              of a stock producer is kept for as long as that has asked for
 *     upkeep   what asynq's own janitor does: completed jobs whose retention, kept with each, is over; and what dead servers have left
 *              in its lists
 *
 * The score of a completed job is when it ended and its retention; of an archived one when it ended, in whole seconds.  So candidates are
 * a range of scores, and a peek at each decides.  A script removes them, each only if it has not moved meanwhile.
 *
 * The leader's epoch is checked before each batch.  One that is frozen between the check and its write removes what anybody might: the
 * conditions are in the script.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_look.h"

#define REMOVE_MAX 200             /* of one script call: each may have a result of megabytes to free */
#define JANITOR_US (8 * ST_SEC)    /* as asynq */
#define SERVERS_US (3600 * ST_SEC) /* how long a dead server's entry is left */
#define STEP_MAX   1000            /* jobs of one step of upkeep */

struct victim {
    char id[ST_ID_MAX + 1];
    char score[40];
};

/* A call's arguments; too large for the stack of a small thread. */
struct room {
    struct st_redis_key names[REMOVE_MAX + 2];
    struct st_slice keys[REMOVE_MAX + 2], args[2 * REMOVE_MAX + 1];
};

struct prune {
    struct st_redis_store *s;
    const struct st_prune_req *req;
    struct st_pruned *out;
    int64_t now_us;
    size_t limit;
    struct st_slice queue;
    const char *set; /* completed or archived */
    bool janitor;    /* by the retention kept with each job */
    bool enough;
    struct victim *victims;
    size_t n;
    struct room *room;
    const struct st_slice *ids;
    const double *scores;
};

/* ---- whose time is over --------------------------------------------------------------------------------------- */

static bool is_over(const struct prune *p, int64_t finished_us, int64_t keep_us)
{
    return keep_us > 0 && finished_us > 0 && finished_us < p->now_us - keep_us;
}

static bool to_go(const struct prune *p, const struct st_redis_peek *k, double score)
{
    const struct st_retention *keep = &p->req->keep;
    const int64_t died = k->task.finished_us ? k->task.finished_us : st_redis_score_us(score);

    switch (k->state) {
    case ST_SUCCEEDED:
        return !(k->task.flags & ST_RT_FOREIGN) && is_over(p, k->task.finished_us, keep->succeeded_us);
    case ST_FAILED:
        return is_over(p, died, keep->failed_us);
    case ST_CANCELLED:
        return is_over(p, died, keep->cancelled_us);
    default:
        return false;
    }
}

static void add_victim(struct prune *p, struct st_slice id, double score)
{
    struct victim *v;

    if (p->n == p->limit) {
        p->enough = p->out->more = true;
        return;
    }
    if (p->req->dry_run && !p->janitor) {
        p->out->n++;
        return;
    }
    v = &p->victims[p->n++];
    memcpy(v->id, id.p, id.len);
    v->id[id.len] = '\0';
    snprintf(v->score, sizeof(v->score), "%.17g", score);
}

static void on_peek(void *arg, size_t i, const struct st_redis_peek *k)
{
    struct prune *p = arg;

    if (to_go(p, k, p->scores[i]))
        add_victim(p, p->ids[i], p->scores[i]);
}

static stint_code on_chunk(void *arg, const struct st_slice *ids, const double *scores, size_t n, stint_error *err)
{
    struct prune *p = arg;

    p->ids = ids;
    p->scores = scores;
    if (!p->janitor)
        return st_redis_peek(p->s, p->queue, ids, n, false, on_peek, p, err);
    for (size_t i = 0; i < n; i++)
        add_victim(p, ids[i], scores[i]);
    return STINT_OK;
}

/* ---- removing them ---------------------------------------------------------------------------------------------- */

static bool file_add(struct st_pruned *out, struct st_slice name)
{
    char **grown;

    if (!name.len)
        return true;
    grown = realloc(out->files, (out->n_files + 1) * sizeof(*grown));
    if (!grown)
        return false;
    out->files = grown;
    grown[out->n_files] = st_slice_dup(name);
    if (!grown[out->n_files])
        return false;
    out->n_files++;
    return true;
}

/* The jobs are gone: too late for an error. */
static void files_read(struct st_pruned *out, const redisReply *r)
{
    struct st_slice runs = st_redis_text(r->element[1]);
    struct st_redis_run run;
    bool fine = file_add(out, st_redis_text(r->element[0]));

    while (fine && st_redis_run_next(&runs, &run))
        fine = file_add(out, run.log);
    if (!fine)
        st_log(ST_LOG_WARN, "prune.files", ST_F("error", "out of memory: some files of removed jobs stay"));
}

static void add_remove(struct st_redis_batch *b, const struct prune *p, size_t at, size_t n)
{
    struct st_redis_key *names = p->room->names;
    struct st_slice *keys = p->room->keys, *args = p->room->args;

    keys[0] = st_redis_key(&names[0], p->queue, p->set);
    keys[1] = st_redis_own_key(&names[1], p->queue, "cancelled");
    args[0] = st_slice_cstr(p->set);
    for (size_t i = 0; i < n; i++) {
        const struct victim *v = &p->victims[at + i];

        keys[i + 2] = st_redis_task_key(&names[i + 2], p->queue, st_slice_cstr(v->id));
        args[2 * i + 1] = st_slice_cstr(v->id);
        args[2 * i + 2] = st_slice_cstr(v->score);
    }
    st_redis_add_script(b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_remove), keys, n + 2, args, 2 * n + 1);
}

static stint_code remove_some(struct prune *p, size_t at, size_t n, stint_error *err)
{
    struct st_redis_batch b;
    const redisReply *r;
    stint_code code;

    if (st_redis_epoch_check(p->s, p->req->epoch, err))
        return err->code;
    st_redis_batch_init(&b);
    add_remove(&b, p, at, n);
    code = st_redis_run(p->s->r, &b, err);
    r = code ? NULL : st_redis_reply(&b, 0);
    if (!code)
        code = st_redis_reply_fail(p->s->r, r, err);
    for (size_t i = 0; !code && i < r->elements; i++) {
        p->out->n++;
        if (r->element[i]->type == REDIS_REPLY_ARRAY && r->element[i]->elements == 2)
            files_read(p->out, r->element[i]);
    }
    st_redis_batch_clear(&b);
    return code;
}

static stint_code remove_victims(struct prune *p, stint_error *err)
{
    for (size_t at = 0; at < p->n; at += REMOVE_MAX)
        if (remove_some(p, at, p->n - at < REMOVE_MAX ? p->n - at : REMOVE_MAX, err))
            return err->code;
    return STINT_OK;
}

/* ---- one set of a queue ---------------------------------------------------------------------------------------------- */

/* Candidates: scores up to `max_us`. */
static stint_code prune_set(struct prune *p, const char *set, int64_t max_us, stint_error *err)
{
    const size_t room = p->req->dry_run ? SIZE_MAX : p->req->limit;
    char max[ST_REDIS_SCORE];
    const struct st_redis_walk w = {.queue = p->queue, .set = set, .max = max, .enough = &p->enough};

    st_redis_score(max, max_us);
    p->set = set;
    p->n = 0;
    p->limit = p->out->n < room ? room - p->out->n : 0;
    if (st_redis_walk(p->s, &w, on_chunk, p, err))
        return err->code;
    return remove_victims(p, err);
}

static int64_t least(int64_t a, int64_t b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

static stint_code prune_queue(struct prune *p, stint_error *err)
{
    const struct st_retention *keep = &p->req->keep;
    const int64_t dead = least(keep->failed_us, keep->cancelled_us);

    if (keep->succeeded_us > 0 &&
        prune_set(p, "completed", p->now_us - keep->succeeded_us + ST_REDIS_RETENTION * ST_SEC, err))
        return err->code;
    return dead > 0 ? prune_set(p, "archived", p->now_us - dead, err) : STINT_OK;
}

static stint_code janitor_queue(struct prune *p, stint_error *err)
{
    p->janitor = true;
    return prune_set(p, "completed", p->now_us, err);
}

/* ---- all queues --------------------------------------------------------------------------------------------------------- */

/* Whether the asker leads, and what time it is. */
static stint_code begin(struct prune *p, stint_error *err)
{
    struct st_redis_batch b;
    stint_code code = st_redis_epoch_check(p->s, p->req->epoch, err);

    if (code || p->now_us)
        return code;
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ, "TIME", NULL);
    code = st_redis_run(p->s->r, &b, err);
    if (!code)
        p->now_us = st_redis_time(st_redis_reply(&b, 0));
    st_redis_batch_clear(&b);
    return code;
}

static stint_code each_queue(struct prune *p, stint_code (*fn)(struct prune *p, stint_error *err), stint_error *err)
{
    char(*names)[ST_NAME_MAX + 1];
    stint_code code = begin(p, err);
    size_t n;

    if (code || st_redis_queues_read(p->s, true, err))
        return err->code;
    n = p->s->queues.n;
    names = calloc(n + 1, sizeof(*names));
    p->victims = malloc((p->req->limit + 1) * sizeof(*p->victims));
    p->room = malloc(sizeof(*p->room));
    if (!names || !p->victims || !p->room)
        code = st_fail(err, STINT_ENOMEM, "no memory to remove jobs");
    else
        memcpy(names, p->s->queues.p, n * sizeof(*names));
    for (size_t i = 0; !code && i < n; i++) {
        p->queue = st_slice_cstr(names[i]);
        code = fn(p, err);
        if (code && !strcmp(err->detail, "WRONGTYPE"))
            code = STINT_OK; /* a queue that is broken: the others all the same */
    }
    free(names);
    free(p->victims);
    free(p->room);
    return code;
}

stint_code st_redis_op_prune(struct st_store *base, const struct st_prune_req *req, struct st_pruned *out,
                             stint_error *err)
{
    struct prune p = {.s = st_redis_of(base), .req = req, .out = out, .now_us = req->now_us};
    stint_error local = {0};
    stint_code code;

    memset(out, 0, sizeof(*out));
    code = each_queue(&p, prune_queue, &local);
    if (code && out->n) /* some are gone, and their files are to be unlinked: the rest is for the next time */
        code = STINT_OK;
    return st_redis_told(code, &local, err);
}

/* ---- upkeep ----------------------------------------------------------------------------------------------------------------- */

/* asynq's readers pass over what is out of date, and nobody takes it away. */
static stint_code bury_servers(struct prune *p, stint_error *err)
{
    struct st_redis_batch b;
    char max[ST_REDIS_SCORE];
    stint_code code;

    st_redis_score(max, p->now_us - SERVERS_US);
    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_WRITE, "ZREMRANGEBYSCORE", "asynq:servers", "-inf", max, NULL);
    st_redis_addv(&b, ST_REDIS_WRITE, "ZREMRANGEBYSCORE", "asynq:workers", "-inf", max, NULL);
    code = st_redis_run(p->s->r, &b, err);
    st_redis_batch_clear(&b);
    return code;
}

/* What the server has thrown away since the last look: jobs, or a whole list of them, and then nobody would miss them. */
static void tell_evicted(struct st_redis_store *s)
{
    stint_error err = {0};
    struct st_redis_care *care = st_redis_care(s, &err);
    struct st_redis_batch b;
    const redisReply *r;
    int64_t now = 0;
    bool known;

    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_READ | ST_REDIS_ALL, "INFO", "stats", NULL);
    r = st_redis_run(s->r, &b, &err) ? NULL : st_redis_reply(&b, 0);
    known = care && r && r->type == REDIS_REPLY_ARRAY;
    for (size_t i = 0; known && i < r->elements; i++) {
        int64_t n = 0;

        known = st_parse_i64(st_redis_info(st_redis_text(r->element[i]), "evicted_keys"), &n);
        now += n;
    }
    st_redis_batch_clear(&b);
    if (!known)
        return;
    if (care->evicted && now > care->evicted - 1)
        st_log(ST_LOG_ERROR, "store.evicted", ST_F("where", st_redis_where(s->r)),
               ST_FI("keys", now - (care->evicted - 1)),
               ST_F("effect", "jobs may be among them, or lists of jobs: those are never run"),
               ST_F("remedy", "CONFIG SET maxmemory-policy noeviction; add again what is missing"));
    care->evicted = now + 1;
}

stint_code st_redis_op_upkeep(struct st_store *base, const struct st_prune_req *req, struct st_pruned *out,
                              int64_t *again_us, stint_error *err)
{
    const struct st_prune_req step = {.now_us = req->now_us, .epoch = req->epoch, .limit = STEP_MAX};
    struct prune p = {.s = st_redis_of(base), .req = &step, .out = out, .now_us = req->now_us};
    stint_error local = {0};
    stint_code code;

    memset(out, 0, sizeof(*out));
    code = each_queue(&p, janitor_queue, &local);
    if (!code)
        code = bury_servers(&p, &local);
    if (!code)
        tell_evicted(p.s);
    if (code && out->n)
        code = STINT_OK;
    *again_us = out->more ? 10 * ST_MS : JANITOR_US;
    return st_redis_told(code, &local, err);
}
