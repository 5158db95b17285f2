/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_read.c - looking at jobs whole: ours, and those of stock asynq programs.
 *
 * One script reads all parts of a job, so they are of one moment.  Where it is, is what asynq's own keys say; our packed field
 * adds what asynq does not keep.  A job that only stock programs have touched has no such field: then the message tells what
 * it can, its headers are shown as meta, and what nobody has written down stays unknown.
 *
 * Thread: the handle's.
 */
#include <stdlib.h>
#include <string.h>

#include "asynq.pb-c.h"
#include "base/clock.h"
#include "base/json.h"
#include "store/redis_look.h"

#define LOOK_MAX 50 /* jobs of one script call */
#define META_MAX ((size_t)1 << 20)
#define EXPIRED  "asynq: task lease expired" /* how a stock server's recoverer ends an attempt */

/* The parts of an answer: see lua/look.lua */
enum {
    L_STATE,
    L_MSG,
    L_SINCE,
    L_STINT,
    L_META,
    L_KEY,
    L_REF,
    L_PROGRESS,
    L_UNIQUE,
    L_RESULT,
    L_RUNS,
    L_SCORE,
    L_CANCELLED,
    L_RULES,
    L_N
};

struct look {
    struct st_slice id, queue;
    const redisReply *r;
    int64_t now_us;
    enum st_redis_how_much how;
    struct st_redis_msg msg;
    struct st_redis_task task;
    bool ours;        /* has the packed field */
    bool held;        /* and its hold is the truth */
    int64_t score_us; /* in the set it is in; 0 = none */
};

static struct st_slice part(const struct look *l, int which)
{
    return st_redis_text(l->r->element[which]);
}

/* ---- texts ----------------------------------------------------------------------------------------------------- */

static bool dup_text(char **to, struct st_slice s)
{
    *to = s.p ? st_slice_dup(s) : NULL;
    return !s.p || *to;
}

static bool dup_bytes(struct st_slice *to, struct st_slice s)
{
    char *p;

    if (!dup_text(&p, s))
        return false;
    *to = p ? ST_SLICE(p, s.len) : ST_NONE;
    return true;
}

/* A producer's headers as the JSON object that our own meta is. */
static bool headers_as_meta(const struct look *l, struct st_slice *to)
{
    const Asynq__TaskMessage *m = l->msg.own;
    struct st_buf b;
    struct st_jw w;
    bool fine;

    if (!m || m->n_headers == 0)
        return true;
    st_buf_init(&b, META_MAX);
    st_jw_init(&w, &b);
    st_jw_open(&w, '{');
    for (size_t i = 0; i < m->n_headers; i++) {
        if (!m->headers[i]->key || !st_utf8_valid(m->headers[i]->key, strlen(m->headers[i]->key)))
            continue;
        st_jw_key(&w, m->headers[i]->key);
        st_jw_cstr(&w, m->headers[i]->value && st_utf8_valid(m->headers[i]->value, strlen(m->headers[i]->value))
                           ? m->headers[i]->value
                           : NULL);
    }
    st_jw_close(&w, '}');
    fine = b.failed || dup_bytes(to, st_buf_view(&b)); /* too much of it is left out */
    st_buf_clear(&b);
    return fine;
}

/* The key as given, or what a stock producer's lock is called behind asynq:{Q}:unique: */
static struct st_slice key_of(const struct look *l)
{
    const struct st_slice own = part(l, L_KEY), lock = l->msg.unique_key;
    struct st_redis_key prefix;
    struct st_slice head;

    if (own.p || !lock.p)
        return own;
    head = st_redis_key(&prefix, l->queue, "unique:");
    if (lock.len > head.len && memcmp(lock.p, head.p, head.len) == 0)
        return ST_SLICE(lock.p + head.len, lock.len - head.len);
    return lock;
}

/* Cancelled while it waited: no attempt has ended so. */
static bool cancelled_waiting(const struct look *l, enum st_state state)
{
    return state == ST_CANCELLED && l->task.last_state != ST_CANCELLED;
}

static struct st_slice error_of(const struct look *l, const struct st_job_info *i)
{
    if (cancelled_waiting(l, i->state))
        return st_slice_cstr("cancelled before it ran");
    return i->error_kind ? l->msg.error_msg : ST_NONE;
}

static struct st_slice worker_of(const struct look *l, enum st_state state)
{
    const bool shown = l->held || st_state_ended(state);

    return shown && l->ours && l->task.worker[0] ? st_slice_cstr(l->task.worker) : ST_NONE;
}

static bool info_texts(const struct look *l, struct st_job_info *i)
{
    if (!dup_text(&i->id, l->id) || !dup_text(&i->queue, l->queue) ||
        !dup_text(&i->type, l->msg.type.p ? l->msg.type : st_slice_cstr("")) ||
        !dup_text(&i->worker, worker_of(l, i->state)) || !dup_text(&i->result_ref, part(l, L_REF)) ||
        !dup_text(&i->key, key_of(l)) || !dup_text(&i->error_message, error_of(l, i)) ||
        !dup_bytes(&i->progress, part(l, L_PROGRESS)))
        return false;
    if (l->how == ST_LOOK_BARE)
        return true;
    if (!dup_bytes(&i->payload, l->msg.payload) || !dup_bytes(&i->result, part(l, L_RESULT)))
        return false;
    return part(l, L_META).p ? dup_bytes(&i->meta, part(l, L_META)) : headers_as_meta(l, &i->meta);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static enum st_state state_of(const struct look *l)
{
    const struct st_slice s = part(l, L_STATE);

    if (st_slice_is(s, "active"))
        return l->held ? l->task.held : ST_RUNNING;
    if (st_slice_is(s, "completed"))
        return ST_SUCCEEDED;
    if (st_slice_is(s, "archived"))
        return part(l, L_CANCELLED).p ? ST_CANCELLED : ST_FAILED;
    return st_slice_is(s, "aggregating") ? ST_BLOCKED : ST_PENDING;
}

/* In which set it waits decides, as it does for the counts. */
static enum st_shown shown_of(const struct look *l, enum st_state state)
{
    const struct st_slice s = part(l, L_STATE);

    if (state != ST_PENDING)
        return st_state_shown(state, 0, 0, l->now_us);
    if (l->score_us > l->now_us && st_slice_is(s, "scheduled"))
        return ST_SHOW_SCHEDULED;
    return l->score_us > l->now_us && st_slice_is(s, "retry") ? ST_SHOW_RETRYING : ST_SHOW_PENDING;
}

/* Runs that count: those before, and the one that goes on or has ended the job. */
static int attempt_of(const struct look *l, enum st_state state)
{
    const bool this_one = st_state_held(state) || state == ST_SUCCEEDED || state == ST_FAILED ||
                          (state == ST_CANCELLED && !cancelled_waiting(l, state));

    return l->msg.retried + (this_one && l->msg.retried < INT32_MAX);
}

static enum st_kind kind_of(const struct look *l)
{
    if (l->ours && l->task.kind)
        return l->task.kind;
    if (!l->msg.error_msg.len)
        return ST_KIND_NONE;
    return st_slice_is(l->msg.error_msg, EXPIRED) ? ST_KIND_LEASE_EXPIRED : ST_KIND_APP_ERROR;
}

static int64_t created_of(const struct look *l)
{
    const int64_t since = st_redis_int(l->r->element[L_SINCE], 0) / 1000;

    if (l->task.created_us)
        return l->task.created_us;
    return st_redis_id_time(l->id) ? st_redis_id_time(l->id) : since;
}

static int64_t due_of(const struct look *l, enum st_state state)
{
    const int64_t since = st_redis_int(l->r->element[L_SINCE], 0) / 1000;

    if (state == ST_PENDING && l->score_us)
        return l->score_us;
    return l->task.due_us ? l->task.due_us : since ? since : created_of(l);
}

static int64_t finished_of(const struct look *l, enum st_state state)
{
    if (!st_state_ended(state))
        return 0;
    if (l->task.finished_us)
        return l->task.finished_us;
    return state == ST_SUCCEEDED ? l->msg.completed_s * ST_SEC : l->score_us;
}

static void info_policy(const struct look *l, struct st_job_info *i)
{
    const struct st_policy rule = st_redis_rules_policy(part(l, L_RULES), l->queue, l->msg.type);
    const struct st_policy p = st_redis_policy(&rule, &l->msg, &l->task);

    i->max_attempts = p.max_attempts;
    i->timeout_us = p.timeout_us;
}

static void info_numbers(const struct look *l, struct st_job_info *i)
{
    i->state = state_of(l);
    i->shown = shown_of(l, i->state);
    i->attempt = attempt_of(l, i->state);
    i->created_us = created_of(l);
    i->due_us = due_of(l, i->state);
    i->started_us = l->task.first_started_us;
    i->finished_us = finished_of(l, i->state);
    i->lease_until_us = st_state_held(i->state) ? l->score_us : 0;
    i->run_started_us = l->held || st_state_ended(i->state) ? l->task.run_started_us : 0;
    i->fence = l->task.fence ? l->task.fence : l->task.last_fence;
    i->cancel_requested = st_state_held(i->state) && l->task.flags & ST_RT_CANCEL;
    i->unique = l->task.flags & ST_RT_ACTIVE                          ? ST_UNIQUE_ACTIVE
                : l->task.flags & ST_RT_WINDOW || part(l, L_UNIQUE).p ? ST_UNIQUE_WINDOW
                                                                      : ST_UNIQUE_NONE;
    i->error_kind = kind_of(l);
    if (i->state == ST_RUNNING && i->timeout_us > 0 && i->run_started_us)
        i->deadline_us = i->run_started_us + i->timeout_us;
}

/* ---- attempts ------------------------------------------------------------------------------------------------------ */

static struct st_attempt_info *attempt_new(struct st_job_info *i)
{
    struct st_attempt_info *grown = realloc(i->attempts, (i->n_attempts + 1) * sizeof(*grown));

    if (!grown)
        return NULL;
    i->attempts = grown;
    memset(&grown[i->n_attempts], 0, sizeof(*grown));
    grown[i->n_attempts].exit_code = -1;
    return &grown[i->n_attempts++];
}

static const char *outcome_name(int outcome)
{
    return outcome == ST_RT_LEASE_EXPIRED ? "lease_expired" : st_outcome_name((enum st_outcome)outcome);
}

static bool attempt_ended(const struct st_redis_run *r, struct st_attempt_info *a)
{
    a->n = r->n;
    a->fence = r->fence;
    a->started_us = r->started_us;
    a->ended_us = r->ended_us;
    a->kind = r->kind;
    a->exit_code = r->exit_code;
    a->signal = r->signal;
    a->max_rss_kb = r->max_rss_kb;
    a->log_tail_len = r->log_tail.len;
    a->outcome = strdup(outcome_name(r->outcome));
    return a->outcome && dup_text(&a->worker, r->worker) && dup_text(&a->message, r->message) &&
           dup_text(&a->log, r->log) && dup_text(&a->log_tail, r->log_tail);
}

/* What goes on has no entry of its own; nor has what a stock server did. */
static bool attempt_now(const struct look *l, const struct st_job_info *i, struct st_attempt_info *a)
{
    a->n = i->attempt;
    a->fence = l->held ? i->fence : 0;
    a->started_us = i->run_started_us;
    return !i->worker || (a->worker = strdup(i->worker));
}

static bool attempt_foreign(const struct look *l, const struct st_job_info *i, struct st_attempt_info *a)
{
    a->n = i->attempt;
    a->ended_us = i->finished_us;
    a->kind = i->state == ST_SUCCEEDED ? ST_KIND_NONE : kind_of(l);
    a->outcome = strdup(st_outcome_name(i->state == ST_SUCCEEDED ? ST_OUT_SUCCEEDED : ST_OUT_FAILED));
    return a->outcome && (i->state == ST_SUCCEEDED || dup_text(&a->message, l->msg.error_msg));
}

/* A success of ours of which there was nothing more to tell. */
static bool attempt_plain(const struct look *l, const struct st_job_info *i, struct st_attempt_info *a)
{
    a->n = i->attempt;
    a->fence = l->task.fence;
    a->started_us = l->task.run_started_us;
    a->ended_us = l->task.finished_us;
    return (a->outcome = strdup(st_outcome_name(ST_OUT_SUCCEEDED))) &&
           (!l->task.worker[0] || (a->worker = strdup(l->task.worker)));
}

static bool attempts_read(const struct look *l, struct st_job_info *i)
{
    struct st_slice runs = part(l, L_RUNS);
    struct st_attempt_info *a = NULL;
    struct st_redis_run r;

    while (st_redis_run_next(&runs, &r))
        if (!(a = attempt_new(i)) || !attempt_ended(&r, a))
            return false;
    if (st_state_held(i->state))
        return (a = attempt_new(i)) && attempt_now(l, i, a);
    if ((i->state == ST_SUCCEEDED || i->state == ST_FAILED) && (!l->ours || !l->task.finished_us))
        return (a = attempt_new(i)) && attempt_foreign(l, i, a);
    if (i->state == ST_SUCCEEDED && (!a || a->fence != l->task.fence))
        return (a = attempt_new(i)) && attempt_plain(l, i, a);
    return true;
}

/* ---- together ------------------------------------------------------------------------------------------------------- */

static stint_code info_read(struct look *l, struct st_job_info *i, stint_error *err)
{
    const double score = st_redis_score_read(l->r->element[L_SCORE]);
    bool fine;

    if (!st_redis_msg_read(part(l, L_MSG), &l->msg))
        memset(&l->msg, 0, sizeof(l->msg)); /* damaged, or not there: it is shown all the same */
    l->ours = st_redis_task_unpack(part(l, L_STINT), &l->task);
    l->held = st_redis_task_holds(&l->task, part(l, L_STATE), score);
    l->score_us = isnan(score) ? 0 : st_redis_score_us(score);
    info_policy(l, i);
    info_numbers(l, i);
    fine = info_texts(l, i) && (l->how != ST_LOOK_ALL || attempts_read(l, i));
    st_redis_msg_clear(&l->msg);
    if (fine)
        return STINT_OK;
    st_job_info_clear(i);
    return st_fail(err, STINT_ENOMEM, "out of memory for a job");
}

static void add_look(struct st_redis_batch *b, struct st_slice queue, const struct st_slice *ids, size_t n,
                     enum st_redis_how_much how)
{
    static const char *const sets[] = {"lease", "scheduled", "retry", "archived", "completed"};
    struct st_redis_key names[7 + LOOK_MAX];
    struct st_slice keys[7 + LOOK_MAX], args[1 + LOOK_MAX];
    char text[ST_REDIS_NUM];

    for (size_t i = 0; i < 5; i++)
        keys[i] = st_redis_key(&names[i], queue, sets[i]);
    keys[5] = st_redis_own_key(&names[5], queue, "cancelled");
    keys[6] = st_redis_own_key(&names[6], queue, "rules");
    args[0] = st_redis_num(text, how);
    for (size_t i = 0; i < n; i++) {
        keys[7 + i] = st_redis_task_key(&names[7 + i], queue, ids[i]);
        args[1 + i] = ids[i];
    }
    st_redis_add_script(b, ST_REDIS_READ, st_redis_lua(ST_LUA_look), keys, 7 + n, args, 1 + n);
}

static stint_code look_read(struct st_redis_store *s, const redisReply *r, struct look *l, const struct st_slice *ids,
                            size_t n, int64_t *now_us, struct st_job_info *out, stint_error *err)
{
    stint_code code = st_redis_reply_fail(s->r, r, err);

    if (!code && (r->type != REDIS_REPLY_ARRAY || r->elements != n + 1))
        code = st_fail(err, STINT_ESTORE, "a look at %zu jobs got an answer that makes no sense", n);
    if (!code && *now_us == 0)
        *now_us = st_redis_int(r->element[0], 0);
    l->now_us = *now_us;
    for (size_t i = 0; !code && i < n; i++) {
        l->r = r->element[i + 1];
        l->id = ids[i];
        if (l->r->type == REDIS_REPLY_ARRAY && l->r->elements == L_N)
            code = info_read(l, &out[i], err);
    }
    return code;
}

static stint_code look_some(struct st_redis_store *s, struct st_slice queue, const struct st_slice *ids, size_t n,
                            enum st_redis_how_much how, int64_t *now_us, struct st_job_info *out, stint_error *err)
{
    struct look l = {.queue = queue, .how = how};
    struct st_redis_batch b;
    stint_code code;

    st_redis_batch_init(&b);
    add_look(&b, queue, ids, n, how);
    code = st_redis_run(s->r, &b, err);
    if (!code)
        code = look_read(s, st_redis_reply(&b, 0), &l, ids, n, now_us, out, err);
    st_redis_batch_clear(&b);
    return code;
}

stint_code st_redis_look(struct st_redis_store *s, struct st_slice queue, const struct st_slice *ids, size_t n,
                         enum st_redis_how_much how, int64_t *now_us, struct st_job_info *out, stint_error *err)
{
    stint_code code = STINT_OK;

    memset(out, 0, n * sizeof(*out));
    for (size_t at = 0; !code && at < n; at += LOOK_MAX)
        code = look_some(s, queue, ids + at, n - at < LOOK_MAX ? n - at : LOOK_MAX, how, now_us, out + at, err);
    for (size_t i = 0; code && i < n; i++)
        st_job_info_clear(&out[i]);
    return code;
}

static stint_code get(struct st_redis_store *s, int64_t now_us, struct st_slice id, struct st_job_info *out,
                      stint_error *err)
{
    struct st_slice queue;

    if (st_redis_locate(s, &id, NULL, 1, &queue, err))
        return err->code;
    if (queue.p && st_redis_look(s, queue, &id, 1, ST_LOOK_ALL, &now_us, out, err))
        return err->code;
    return out->id ? STINT_OK : st_fail(err, STINT_ENOTFOUND, "there is no job %.*s", (int)id.len, id.p);
}

stint_code st_redis_op_get(struct st_store *base, int64_t now_us, struct st_slice id, struct st_job_info *out,
                           stint_error *err)
{
    stint_error local = {0};

    memset(out, 0, sizeof(*out));
    return st_redis_told(get(st_redis_of(base), now_us, id, out, &local), &local, err);
}
