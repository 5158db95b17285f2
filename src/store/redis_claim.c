/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_claim.c - taking jobs, alone or together with the outcomes of the last ones.
 *
 * One script call takes n from several queues in the order asked (in a Cluster: one queue per call).  The layout knows no types: a job
 * whose type no rule covers was taken by mistake and goes to `retry`, uncharged; one that is beyond a rule's own limit goes back to the head of
 * its queue.  If this process stops before it has given them back, their leases end.
 *
 * The queues' names are read in the same round trip, so that a queue that came into being a moment ago is seen.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/redis_int.h"

#define CALL_QUEUES   16
#define CALL_JOBS     1000
#define QUEUE_KEYS    (ST_RK_N + 1)
#define JOB_PARTS     5
#define ROUNDS_MAX    8
#define NO_HANDLER_US (30 * ST_SEC)

struct claiming {
    struct st_redis_store *s;
    const struct st_claim_req *req;
    struct st_job **out;
    size_t n;                        /* so many are in out */
    size_t run;                      /* so many of them run */
    struct st_slice *queues;         /* in order; interned names */
    size_t n_queues, cap_queues, at; /* at: the first that was not asked yet */
    bool *seen;                      /* by ref: is it in queues?  NULL while they are few */
    size_t call_n;                   /* queues of the call that is on its way */
    size_t reply, names_reply;
    const char *rules;
    struct st_slice rules_text;
    size_t *taken;          /* by rule */
    struct st_finish *back; /* to be given back */
    size_t n_back, cap_back;
    struct st_redis_args ids; /* the bytes of their ids and messages */
    bool again;               /* some were given back: there may be more behind them */
    bool full;                /* the last call gave all it was asked for */
    int64_t now_us;
};

/* ---- which queues -------------------------------------------------------------------------------------------- */

static bool listed(const struct claiming *c, uint64_t ref, struct st_slice name)
{
    if (c->seen)
        return c->seen[ref];
    for (size_t i = 0; i < c->n_queues; i++)
        if (c->queues[i].p == name.p) /* of one name there is one */
            return true;
    return false;
}

/* Where there are many, they are marked as well: to look through all of them for each would take too long. */
static bool queues_room(struct claiming *c)
{
    const size_t cap = 2 * c->cap_queues;
    struct st_slice *p = realloc(c->queues, cap * sizeof(*p));

    if (!p)
        return false;
    c->queues = p;
    c->cap_queues = cap;
    if (c->seen || !(c->seen = calloc(ST_REDIS_REFS_MAX + 1, sizeof(*c->seen))))
        return true;
    for (size_t i = 0; i < c->n_queues; i++)
        c->seen[st_redis_ref(c->queues[i])] = true;
    return true;
}

static void queue_add(struct claiming *c, struct st_slice name)
{
    const uint64_t ref = st_redis_ref(name);
    const struct st_slice own = st_redis_ref_queue(ref); /* outlives the list of names */

    if (!own.p || listed(c, ref, own))
        return;
    if (c->n_queues == c->cap_queues && !queues_room(c))
        return; /* the next claim may have room for it */
    c->queues[c->n_queues++] = own;
    if (c->seen)
        c->seen[ref] = true;
}

/* Known queues that an entry of the request means, from a place that moves on: none shall starve behind another. */
static void queues_covered(struct claiming *c, struct st_slice asked)
{
    const struct st_redis_names *known = &c->s->queues;
    const size_t from = st_slice_is(asked, ST_QUEUE_ANY) && known->n ? c->s->turn++ % known->n : 0;

    for (size_t i = 0; i < known->n; i++) {
        const struct st_slice name = st_slice_cstr(known->p[(from + i) % known->n]);

        if (st_queue_covers(asked, name))
            queue_add(c, name);
    }
}

/* Adds what is not there yet; a queue that was asked for by its name needs not be known. */
static void queues_choose(struct claiming *c)
{
    const struct st_claim_req *req = c->req;

    if (!req->n_queues)
        queues_covered(c, st_slice_cstr(ST_QUEUE_ANY));
    for (size_t i = 0; i < req->n_queues; i++) {
        if (!st_slice_is(req->queues[i], ST_QUEUE_ANY))
            queue_add(c, req->queues[i]);
        queues_covered(c, req->queues[i]);
    }
}

static void names_take(struct claiming *c)
{
    const redisReply *r = st_redis_reply(&c->s->b, c->names_reply);

    if (r && r->type == REDIS_REPLY_ARRAY)
        st_redis_queues_saw(c->s, r);
    queues_choose(c);
}

struct st_slice st_redis_pause_of(struct st_slice queue)
{
    return st_queue_parent(queue);
}

/* In a Cluster a parent's pause is in another slot: what it says is read before. */
static stint_code parents_read(struct claiming *c, stint_error *err)
{
    struct st_redis_store *s = c->s;
    size_t n = 0, at = 0;

    st_redis_batch_reset(&s->b);
    for (size_t i = c->at; i < c->n_queues; i++) {
        struct st_redis_key key;
        const struct st_slice parent = st_queue_parent(c->queues[i]);
        struct st_slice argv[2] = {st_slice_cstr("EXISTS"), st_redis_key(&key, parent, "paused")};

        st_redis_add(&s->b, ST_REDIS_READ, argv[1], argv, 2);
    }
    if (s->b.n && st_redis_go(s, err))
        return err->code;
    for (size_t i = n = c->at; i < c->n_queues; i++)
        if (!st_redis_int(st_redis_reply(&s->b, at++), 0))
            c->queues[n++] = c->queues[i];
    c->n_queues = n;
    return STINT_OK;
}

/* ---- the call -------------------------------------------------------------------------------------------------- */

static void call_add(struct claiming *c)
{
    const bool cluster = st_redis_is_cluster(c->s->r);
    const size_t left = c->n_queues - c->at, most = cluster ? 1 : CALL_QUEUES;
    struct st_redis_keys keys[CALL_QUEUES];
    struct st_redis_key parents[CALL_QUEUES];
    struct st_slice all[CALL_QUEUES * QUEUE_KEYS], args[6];
    char now[ST_REDIS_NUM], n[ST_REDIS_NUM], run[ST_REDIS_NUM], lease[ST_REDIS_NUM];
    const size_t want = c->req->n - c->n, runs = c->req->n_run > c->run ? c->req->n_run - c->run : 0;

    c->call_n = left < most ? left : most;
    for (size_t i = 0; i < c->call_n; i++) {
        const struct st_slice q = c->queues[c->at + i];

        st_redis_keys(&keys[i], q);
        memcpy(all + i * QUEUE_KEYS, keys[i].k, sizeof(keys[i].k));
        all[i * QUEUE_KEYS + ST_RK_N] =
            cluster ? keys[i].k[ST_RK_PAUSED] : st_redis_key(&parents[i], st_queue_parent(q), "paused");
    }
    args[0] = st_redis_num(now, c->req->now_us);
    args[1] = st_redis_num(n, (int64_t)(want < CALL_JOBS ? want : CALL_JOBS));
    args[2] = st_redis_num(run, (int64_t)runs);
    args[3] = st_redis_num(lease, c->req->lease_us);
    args[4] = c->req->worker;
    args[5] = st_slice_cstr(c->rules);
    c->reply =
        st_redis_add_script(&c->s->b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_claim), all, c->call_n * QUEUE_KEYS, args, 6);
}

static void names_add(struct claiming *c)
{
    c->names_reply = st_redis_addv(&c->s->b, ST_REDIS_READ, "SMEMBERS", ST_REDIS_QUEUES, (char *)NULL);
}

/* ---- from a task to a job ------------------------------------------------------------------------------------------ */

/* asynq's deadline is a moment; ours is a length of time from the start. */
static void deadline_apply(struct st_policy *p, const struct st_redis_msg *m, int64_t now_us)
{
    int64_t left;

    if (m->deadline_s <= 0 || m->deadline_s > INT64_MAX / ST_SEC)
        return;
    left = m->deadline_s * ST_SEC - now_us;
    if (left < ST_MS)
        left = ST_MS;
    if (!p->timeout_us || left < p->timeout_us)
        p->timeout_us = left;
}

static void job_fill(struct st_job *job, const struct st_redis_msg *m, const struct st_redis_task *t,
                     const struct st_redis_claimed *c, const struct st_type_rule *rule, int64_t lease_us)
{
    job->fence = t->fence;
    job->attempt = m->retried < INT32_MAX ? m->retried + 1 : m->retried;
    job->state = t->held;
    job->policy = st_redis_policy(rule ? &rule->policy : &st_policy_default, m, t);
    deadline_apply(&job->policy, m, c->now_us);
    job->created_us = t->created_us;
    job->due_us = t->due_us;
    job->lease_until_us = t->lease_us;
    job->lease_us = lease_us;
    job->ref = st_redis_ref(c->queue);
}

stint_code st_redis_job(const struct st_redis_claimed *c, const struct st_type_rule *rules, size_t n, int64_t lease_us,
                        struct st_job **out, const struct st_type_rule **rule, stint_error *err)
{
    struct st_redis_task t;
    struct st_redis_msg m;

    *out = NULL;
    *rule = NULL;
    if (!st_redis_task_unpack(c->field, &t) || !st_redis_msg_read(c->msg, &m))
        return STINT_OK;
    *rule = st_rule_find(rules, n, c->queue, m.type);
    *out = st_job_new(c->id, m.type.p ? m.type : ST_SLICE("", 0), c->queue, m.payload, c->meta);
    if (*out)
        job_fill(*out, &m, &t, c, *rule, lease_us);
    st_redis_msg_clear(&m);
    return *out ? STINT_OK : st_fail(err, STINT_ENOMEM, "no memory for a job");
}

/* ---- what goes back -------------------------------------------------------------------------------------------------- */

static struct st_finish *back_more(struct claiming *c)
{
    if (c->n_back == c->cap_back) {
        const size_t cap = c->cap_back ? 2 * c->cap_back : 16;
        struct st_finish *p = realloc(c->back, cap * sizeof(*p));

        if (!p)
            return NULL; /* its lease ends */
        c->back = p;
        c->cap_back = cap;
    }
    return &c->back[c->n_back++];
}

static struct st_slice keep(struct claiming *c, struct st_slice s)
{
    st_redis_arg_copy(&c->ids, s.p, s.len);
    return c->ids.failed ? ST_SLICE("", 0) : c->ids.p[c->ids.n - 1];
}

static void give_back(struct claiming *c, const struct st_redis_claimed *t, enum st_outcome outcome, enum st_kind kind,
                      const char *message)
{
    struct st_redis_task task;
    struct st_finish *f = st_redis_task_unpack(t->field, &task) ? back_more(c) : NULL;

    if (!f)
        return;
    *f = (struct st_finish){.id = keep(c, t->id),
                            .fence = task.fence,
                            .ref = st_redis_ref(t->queue),
                            .outcome = outcome,
                            .kind = kind,
                            .message = message ? keep(c, st_slice_cstr(message)) : ST_NONE,
                            .started_ago_us = -1,
                            .exit_code = -1};
    if (kind == ST_KIND_NO_HANDLER) {
        f->held_as = (enum st_state)ST_REDIS_NO_HANDLER;
        f->delay_us = NO_HANDLER_US;
    }
    c->again = true;
}

static void no_handler(struct claiming *c, const struct st_redis_claimed *t, const struct st_job *job)
{
    char message[320];

    snprintf(message, sizeof(message), "no handler for the type %s on worker %.*s", job->type, (int)c->req->worker.len,
             c->req->worker.p);
    st_log(ST_LOG_WARN, "job.no_handler", ST_F("job", job->id), ST_F("type", job->type), ST_F("queue", job->queue));
    give_back(c, t, ST_OUT_RELEASED, ST_KIND_NO_HANDLER, message);
}

/* asynq takes ids of any length and bytes; ours have an end.  A stock server may still run it. */
static bool id_fits(struct st_slice id)
{
    return id.len > 0 && id.len <= ST_ID_MAX && !memchr(id.p, '\0', id.len);
}

static void bad_id(struct claiming *c, const struct st_redis_claimed *t)
{
    const struct st_slice head = {t->id.p, t->id.len < ST_ID_MAX ? t->id.len : ST_ID_MAX};

    st_log(ST_LOG_ERROR, "job.bad_id", ST_FS("job", head), ST_FI("bytes", t->id.len), ST_FS("queue", t->queue));
    give_back(c, t, ST_OUT_RELEASED, ST_KIND_NO_HANDLER, "its id does not have 1 to 128 bytes, none of them zero");
}

/* Hints as to order: the last given back is the first to come out again. */
static void given_back(struct claiming *c)
{
    stint_error err = {0};

    for (size_t i = 0; i < c->n_back / 2; i++) {
        const struct st_finish f = c->back[i];

        c->back[i] = c->back[c->n_back - 1 - i];
        c->back[c->n_back - 1 - i] = f;
    }
    if (c->n_back && st_redis_op_finish(&c->s->base, c->req->now_us, c->back, c->n_back, &err))
        st_log(ST_LOG_WARN, "job.not_given_back", ST_FI("jobs", c->n_back), ST_FE(&err)); /* disown or reap will */
    c->n_back = 0;
    st_redis_args_clear(&c->ids);
}

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

static stint_code job_take(struct claiming *c, const struct st_redis_claimed *t, stint_error *err)
{
    const struct st_claim_req *req = c->req;
    const struct st_type_rule *rule;
    struct st_job *job;

    if (!id_fits(t->id)) {
        bad_id(c, t);
        return STINT_OK;
    }
    if (st_redis_job(t, req->types, req->n_types, req->lease_us, &job, &rule, err))
        return err->code;
    if (!job) {
        st_log(ST_LOG_ERROR, "job.unreadable", ST_FS("job", t->id), ST_FS("queue", t->queue));
        give_back(c, t, ST_OUT_FAILED, ST_KIND_INTERNAL, "its message cannot be read");
        return STINT_OK;
    }
    if (req->n_types && !rule) {
        no_handler(c, t, job);
    } else if (rule && rule->max && c->taken[rule - req->types] >= rule->max) {
        give_back(c, t, ST_OUT_RELEASED, ST_KIND_NONE, NULL);
    } else {
        if (rule)
            c->taken[rule - req->types]++;
        c->run += job->state == ST_RUNNING;
        c->out[c->n++] = job;
        return STINT_OK;
    }
    st_job_free(job);
    return STINT_OK;
}

static void say_vanished(const struct claiming *c, const redisReply *pairs)
{
    for (size_t i = 0; pairs->type == REDIS_REPLY_ARRAY && i + 1 < pairs->elements; i += 2) {
        const size_t q = (size_t)st_redis_int(pairs->element[i], 1) - 1;

        st_log(ST_LOG_WARN, "job.vanished", ST_FI("jobs", st_redis_int(pairs->element[i + 1], 0)),
               ST_FS("queue", c->queues[c->at + (q < c->call_n ? q : 0)]));
    }
}

/* *lacks: the rules must be written to this queue first, ST_NONE = not. */
static stint_code call_take(struct claiming *c, struct st_slice *lacks, stint_error *err)
{
    const redisReply *r = st_redis_reply(&c->s->b, c->reply);
    int64_t n;

    *lacks = ST_NONE;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3 || (r->elements - 3) % JOB_PARTS)
        return st_fail(err, STINT_ESTORE, "redis: the claim script answered something else");
    c->now_us = st_redis_int(r->element[0], 0);
    if (!c->req->now_us)
        st_redis_saw(c->s, c->now_us);
    n = st_redis_int(r->element[1], 0);
    if (n > 0 && (size_t)n <= c->call_n)
        *lacks = c->queues[c->at + (size_t)n - 1];
    if (n < 0 && (size_t)-n <= c->call_n)
        st_redis_tell_broken(c->queues[c->at + (size_t)-n - 1]);
    c->full = (r->elements - 3) / JOB_PARTS >= CALL_JOBS;
    say_vanished(c, r->element[2]);
    for (size_t i = 3; i < r->elements; i += JOB_PARTS) {
        redisReply **e = r->element + i;
        const size_t q = (size_t)st_redis_int(e[0], 1) - 1;
        const struct st_redis_claimed t = {.queue = c->queues[c->at + (q < c->call_n ? q : 0)],
                                           .id = st_redis_text(e[1]),
                                           .msg = st_redis_text(e[2]),
                                           .field = st_redis_text(e[3]),
                                           .meta = st_redis_text(e[4]),
                                           .now_us = c->now_us};

        if (job_take(c, &t, err))
            return err->code;
    }
    return STINT_OK;
}

/* Leases that a rule wants longer or shorter than the request. */
static stint_code leases_adjust(struct claiming *c, stint_error *err)
{
    const struct st_claim_req *req = c->req;
    struct st_renew *r = NULL;
    stint_code code = STINT_OK;
    size_t n = 0;
    bool any = false;

    for (size_t i = 0; i < req->n_types; i++)
        any = any || (req->types[i].lease_us && req->types[i].lease_us != req->lease_us);
    if (!any || !c->n)
        return STINT_OK;
    r = calloc(c->n, sizeof(*r));
    for (size_t i = 0; r && i < c->n; i++) {
        struct st_job *job = c->out[i];
        const struct st_type_rule *rule =
            st_rule_find(req->types, req->n_types, st_slice_cstr(job->queue), st_slice_cstr(job->type));

        if (rule && rule->lease_us && rule->lease_us != req->lease_us)
            r[n++] = (struct st_renew){.id = st_slice_cstr(job->id),
                                       .fence = job->fence,
                                       .ref = job->ref,
                                       .lease_us = rule->lease_us,
                                       .started_ago_us = -1};
    }
    if (n)
        code = st_redis_op_renew(&c->s->base, req->now_us, r, n, err);
    for (size_t i = 0, k = 0; !code && i < c->n && k < n; i++)
        if (r[k].id.p == c->out[i]->id) {
            c->out[i]->lease_us = r[k].lease_us;
            c->out[i]->lease_until_us = c->now_us + r[k++].lease_us;
        }
    free(r);
    if (code) /* they are ours all the same, for the request's time */
        st_log(ST_LOG_WARN, "lease.not_adjusted", ST_FE(err));
    return STINT_OK;
}

/* ---- rounds -------------------------------------------------------------------------------------------------------------- */

static stint_code claiming_init(struct claiming *c, struct st_redis_store *s, const struct st_claim_req *req,
                                struct st_job **out, stint_error *err)
{
    *c = (struct claiming){.s = s, .req = req, .out = out};
    st_redis_args_init(&c->ids);
    c->rules = st_redis_rules_ref(s, req->types, req->n_types, &c->rules_text);
    c->taken = calloc(req->n_types + 1, sizeof(*c->taken));
    c->cap_queues = 64;
    c->queues = calloc(c->cap_queues, sizeof(*c->queues));
    if (!c->taken || !c->queues)
        return st_fail(err, STINT_ENOMEM, "no memory for a claim");
    queues_choose(c);
    return STINT_OK;
}

static void claiming_clear(struct claiming *c)
{
    st_redis_args_clear(&c->ids);
    free(c->taken);
    free(c->queues);
    free(c->seen);
    free(c->back);
}

/* After an answer: what is next?  *done: nothing. */
static stint_code claiming_next(struct claiming *c, struct st_slice lacks, int *rounds, bool *done, stint_error *err)
{
    const bool again = c->again;

    *done = false;
    if (lacks.p)
        return st_redis_rules_write(c->s, lacks, c->rules, c->rules_text, err);
    given_back(c);
    c->again = false;
    if (again && ++*rounds < ROUNDS_MAX)
        return STINT_OK; /* the same queues once more */
    if (!c->full)
        c->at += c->call_n;
    *done = c->n >= c->req->n || c->at >= c->n_queues;
    return STINT_OK;
}

/* Goes on from where it is until it has n, or has asked every queue. */
static stint_code claiming_rest(struct claiming *c, int rounds, stint_error *err)
{
    struct st_slice lacks;
    bool done = c->n >= c->req->n || c->at >= c->n_queues;

    if (!done && st_redis_is_cluster(c->s->r) && parents_read(c, err))
        return err->code;
    done = done || c->at >= c->n_queues;
    while (!done) {
        st_redis_batch_reset(&c->s->b);
        call_add(c);
        if (st_redis_go(c->s, err) || call_take(c, &lacks, err) || claiming_next(c, lacks, &rounds, &done, err))
            return err->code;
    }
    return STINT_OK;
}

/* Together with whatever is in the batch already: the first call, and the names of the queues. */
static void claiming_begin(struct claiming *c)
{
    if (c->n_queues && !st_redis_is_cluster(c->s->r))
        call_add(c);
    else
        c->call_n = 0;
    names_add(c);
}

static stint_code claiming_go_on(struct claiming *c, stint_error *err)
{
    struct st_slice lacks = ST_NONE;
    int rounds = 0;
    bool done;

    if (c->call_n && call_take(c, &lacks, err))
        return err->code;
    names_take(c);
    if (c->call_n && claiming_next(c, lacks, &rounds, &done, err))
        return err->code;
    return claiming_rest(c, rounds, err) ? err->code : leases_adjust(c, err);
}

/* Some are taken already and the rest failed: those are the answer.  None: the error is. */
static stint_code claiming_end(struct claiming *c, stint_code code, size_t *n_out, stint_error *err)
{
    if (code && c->n) {
        st_log(ST_LOG_WARN, "claim.cut_short", ST_FI("jobs", c->n), ST_FE(err));
        code = STINT_OK;
    }
    *n_out = c->n;
    claiming_clear(c);
    return code;
}

/* ---- the operations ---------------------------------------------------------------------------------------------------------- */

stint_code st_redis_op_claim(struct st_store *base, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                             stint_error *err)
{
    struct claiming c;
    stint_error local = {0};
    stint_code code;

    err = err ? err : &local;
    *n_out = 0;
    if (st_redis_rights(st_redis_of(base), err))
        return err->code;
    code = claiming_init(&c, st_redis_of(base), req, out, err);
    if (!code) {
        st_redis_batch_reset(&c.s->b);
        claiming_begin(&c);
        code = st_redis_go(c.s, err);
    }
    if (!code)
        code = claiming_go_on(&c, err);
    return claiming_end(&c, code, n_out, err);
}

/* An answer that did not come, or an error: the claim behind the outcomes may have taken jobs nobody knows of. */
static stint_code unknown(stint_code code, stint_error *err)
{
    if (code == STINT_EAGAIN)
        return code;
    err->code = STINT_EUNKNOWN;
    return STINT_EUNKNOWN;
}

static stint_code exchange_in(struct claiming *c, int64_t now_us, struct st_finish *items, size_t n,
                              struct st_slice *queues, bool *missing, bool *finished, stint_error *err)
{
    struct st_redis_finishing f = {.items = items, .queues = queues, .n = n};
    struct st_redis_store *s = c->s;
    stint_code code = st_redis_finish_queues(s, items, n, queues, err);

    if (code)
        return code;
    st_redis_batch_reset(&s->b);
    code = st_redis_finishing_add(s, &f, now_us, err);
    if (!code) {
        claiming_begin(c);
        code = st_redis_run(s->r, &s->b, err);
        if (!code && st_redis_finishing_take(s, &f, missing, err))
            code = unknown(STINT_ESTORE, err);
    }
    st_redis_finishing_clear(&f);
    if (code)
        return code;
    *finished = true;
    for (size_t i = 0; i < n; i++)
        *finished = *finished && !missing[i];
    for (size_t i = f.n_calls; i < s->b.n; i++)
        if (st_redis_reply_fail(s->r, st_redis_reply(&s->b, i), err))
            return err->code;
    code = claiming_go_on(c, err);
    if (!*finished) { /* a ref that led nowhere */
        stint_error late = {0};

        *finished = !st_redis_finish_missing(s, now_us, items, n, queues, missing, &late);
        if (!*finished && !c->n) {
            *err = late;
            code = late.code;
        }
    }
    return code;
}

stint_code st_redis_op_exchange(struct st_store *base, int64_t now_us, struct st_finish *items, size_t n,
                                const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                                stint_error *err)
{
    struct st_slice *queues = calloc(n + 1, sizeof(*queues));
    bool *missing = calloc(n + 1, sizeof(*missing));
    struct claiming c;
    stint_error local = {0};
    stint_code code;

    err = err ? err : &local;
    *n_out = 0;
    *finished = false;
    code = claiming_init(&c, st_redis_of(base), req, out, err);
    if (!queues || !missing)
        code = st_fail(err, STINT_ENOMEM, "no memory for %zu outcomes", n);
    if (!code)
        code = exchange_in(&c, now_us, items, n, queues, missing, finished, err);
    free(queues);
    free(missing);
    return claiming_end(&c, code, n_out, err);
}
