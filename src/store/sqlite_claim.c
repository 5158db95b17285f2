/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_claim.c - taking jobs: by queues and types, or one by its id.
 *
 * The lanes of a group (a queue and its subs) are merged by their heads: the best lane gives jobs
 * until the second best has a better one.  So the cost depends on the number of lanes and of jobs
 * taken, never on how many are waiting.
 *
 *     lane mail/send     [9 . . . .]  <- best head: take while better than 7
 *     lane mail/digest   [7 . .]
 *     lane mail/purge    [ ]          <- empty: out
 *
 * Invariants:
 *   (1) rows are collected first and updated afterwards: no index changes under a scan;
 *   (2) a job is answered only if its row says so: UPDATE guarded by state and fence;
 *   (3) a claim that finds nothing writes nothing (probe).
 *
 * Thread: the writer's.
 */
#include "store/sqlite_int.h"

#include <stdlib.h>
#include <string.h>

#define PROMOTE_MAX 1000

struct head {
    struct st_sq_lane *lane;
    const struct st_type_rule *rule; /* NULL = the default policy */
    bool known;                      /* the three below are filled */
    int64_t priority, due;
    char id[ST_ID_MAX + 1];
};

struct claim {
    const struct st_claim_req *req;
    struct st_job **out;
    size_t n_out;
    int64_t now_us;
    size_t *taken; /* per rule, while the claim runs */
};

/* The lanes a request may take from, group by group. */
struct plan {
    struct head *heads;
    size_t n;
    int64_t due_by; /* 0 = all that is ready */
    bool *seen;     /* per lane: it belongs to an earlier group */
    struct st_slice *paused;
    size_t n_paused;
    char *paused_text;
};

/* ---- the plan --------------------------------------------------------------------------- */

static void plan_clear(struct plan *p)
{
    free(p->heads);
    free(p->seen);
    free(p->paused);
    free(p->paused_text);
}

/* Paused queues, as views of one block of text. */
static stint_code paused_read(struct st_sq_writer *w, struct plan *p, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_PAUSED, err);
    struct st_buf text;
    size_t at = 0, n = 0;
    int rc;

    if (!st)
        return err->code;
    st_buf_init(&text, 64u << 20);
    while ((rc = st_sq_step(&w->c, st, err)) == SQLITE_ROW) {
        st_buf_slice(&text, col_slice(st, 0));
        st_buf_putc(&text, '\0');
        n++;
    }
    if (rc < 0 || n == 0) {
        st_buf_clear(&text);
        return rc < 0 ? err->code : STINT_OK;
    }
    p->paused = calloc(n, sizeof(*p->paused));
    p->paused_text = st_buf_take(&text);
    if (!p->paused || !p->paused_text)
        return st_fail(err, STINT_ENOMEM, "out of memory for the paused queues");
    for (; p->n_paused < n; at += p->paused[p->n_paused++].len + 1)
        p->paused[p->n_paused] = st_slice_cstr(p->paused_text + at);
    return STINT_OK;
}

static bool is_paused(const struct plan *p, struct st_slice queue)
{
    for (size_t i = 0; i < p->n_paused; i++)
        if (st_queue_covers(p->paused[i], queue))
            return true;
    return false;
}

static stint_code plan_init(struct st_sq_writer *w, struct plan *p, const struct st_claim_req *req, stint_error *err)
{
    memset(p, 0, sizeof(*p));
    p->due_by = req->due_by_us;
    if (st_sq_lanes_refresh(&w->c, &w->lanes, err) || paused_read(w, p, err))
        return err->code;
    p->heads = calloc(w->lanes.n + 1, sizeof(*p->heads));
    p->seen = calloc(w->lanes.n + 1, sizeof(*p->seen));
    if (!p->heads || !p->seen)
        return st_fail(err, STINT_ENOMEM, "out of memory for the claim");
    return STINT_OK;
}

/* Fills heads with the lanes of one group: asked (p NULL = all queues). */
static void plan_group(struct st_sq_writer *w, struct plan *p, const struct st_claim_req *req, struct st_slice asked)
{
    p->n = 0;
    for (size_t i = 0; i < w->lanes.n; i++) {
        struct st_sq_lane *lane = &w->lanes.v[i];
        const struct st_type_rule *rule = NULL;

        if (p->seen[i] || (asked.p && !st_queue_covers(asked, lane->queue)))
            continue;
        p->seen[i] = true;
        if (req->n_types && !(rule = st_rule_find(req->types, req->n_types, lane->queue, lane->type)))
            continue;
        if (is_paused(p, lane->queue))
            continue;
        p->heads[p->n].lane = lane;
        p->heads[p->n].rule = rule;
        p->heads[p->n].known = false;
        p->n++;
    }
}

static size_t group_count(const struct st_claim_req *req)
{
    return req->n_queues ? req->n_queues : 1;
}

static struct st_slice group_name(const struct st_claim_req *req, size_t i)
{
    return req->n_queues ? req->queues[i] : ST_NONE;
}

/* ---- heads ------------------------------------------------------------------------------ */

static void head_set(struct head *h, int64_t priority, int64_t due, struct st_slice id)
{
    const size_t n = id.len < ST_ID_MAX ? id.len : ST_ID_MAX;

    h->priority = priority;
    h->due = due;
    memcpy(h->id, id.p, n);
    h->id[n] = '\0';
    h->known = true;
}

static bool before(int64_t priority, int64_t due, struct st_slice id, const struct head *h)
{
    if (priority != h->priority)
        return priority > h->priority;
    if (due != h->due)
        return due < h->due;
    return st_slice_cmp(id, st_slice_cstr(h->id)) < 0;
}

/* *any = false: the lane has nothing ready. */
static stint_code head_peek(struct st_sq_writer *w, const struct plan *p, struct head *h, bool *any, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, p->due_by ? SQ_HEAD_BY : SQ_HEAD, err);
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, h->lane->id);
    if (p->due_by)
        bind_int(st, 2, p->due_by);
    rc = st_sq_step(&w->c, st, err);
    if (rc < 0)
        return err->code;
    *any = rc == SQLITE_ROW;
    if (*any) {
        head_set(h, col_int(st, 0), col_int(st, 1), col_slice(st, 2));
        sqlite3_reset(st);
    }
    return STINT_OK;
}

static void head_drop(struct plan *p, size_t i)
{
    p->heads[i] = p->heads[--p->n];
}

/* Peeks at all lanes of the group and drops the empty ones.  A single lane is not looked at: it is
 * simply taken from. */
static stint_code heads_peek(struct st_sq_writer *w, struct plan *p, stint_error *err)
{
    bool any = false;

    if (p->n < 2)
        return STINT_OK;
    for (size_t i = 0; i < p->n;) {
        if (head_peek(w, p, &p->heads[i], &any, err))
            return err->code;
        if (any)
            i++;
        else
            head_drop(p, i);
    }
    return STINT_OK;
}

/* The best head, and the best of the others (NULL = none). */
static size_t heads_best(const struct plan *p, const struct head **second)
{
    size_t best = 0;

    *second = NULL;
    for (size_t i = 1; i < p->n; i++) {
        const struct head *h = &p->heads[i];

        if (before(h->priority, h->due, st_slice_cstr(h->id), &p->heads[best])) {
            *second = &p->heads[best];
            best = i;
        } else if (!*second || before(h->priority, h->due, st_slice_cstr(h->id), *second)) {
            *second = h;
        }
    }
    return best;
}

/* ---- taking ----------------------------------------------------------------------------- */

static void apply_rule(struct st_job *job, const struct st_claim_req *req, const struct st_type_rule *rule,
                       int64_t own_max, int64_t own_timeout)
{
    job->policy = rule ? rule->policy : st_policy_default;
    job->lease_us = rule && rule->lease_us ? rule->lease_us : req->lease_us;
    if (own_max >= 0)
        job->policy.max_attempts = (int)own_max;
    if (own_timeout >= 0)
        job->policy.timeout_us = own_timeout;
}

/* A job from a row of SQ_READY, as it will be once it is claimed. */
static struct st_job *job_from(sqlite3_stmt *st, const struct head *h, struct claim *cl)
{
    struct st_job *job =
        st_job_new(col_slice(st, 1), h->lane->type, h->lane->queue, col_slice(st, 9), col_slice(st, 10));

    if (!job)
        return NULL;
    job->ref = (uint64_t)col_int(st, 0);
    job->priority = (int)col_int(st, 2);
    job->due_us = col_int(st, 3);
    job->attempt = (int)col_int(st, 4) + 1;
    job->fence = col_int(st, 5) + 1;
    job->created_us = col_int(st, 8);
    job->state = cl->n_out < cl->req->n_run ? ST_RUNNING : ST_CLAIMED;
    apply_rule(job, cl->req, h->rule, col_opt(st, 6), col_opt(st, 7));
    job->lease_until_us = cl->now_us + job->lease_us;
    return job;
}

/* How many more may be taken by this rule. */
static size_t rule_left(const struct claim *cl, const struct st_type_rule *rule)
{
    if (!rule || !rule->max)
        return cl->req->n;
    return rule->max - cl->taken[rule - cl->req->types];
}

/* Reads ready rows of one lane into out, as long as they come before `limit` (NULL = no limit).
 * The first row that does not becomes the lane's head; *more = false: there is none. */
static stint_code lane_read(struct st_sq_writer *w, struct claim *cl, struct head *h, const struct head *limit,
                            bool *more, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, cl->req->due_by_us ? SQ_READY_BY : SQ_READY, err);
    const size_t room = cl->req->n - cl->n_out, left = rule_left(cl, h->rule);
    const size_t end = cl->n_out + (left < room ? left : room);
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, h->lane->id);
    bind_int(st, 2, (int64_t)(end - cl->n_out) + 1);
    if (cl->req->due_by_us)
        bind_int(st, 3, cl->req->due_by_us);
    *more = false;
    while ((rc = st_sq_step(&w->c, st, err)) == SQLITE_ROW) {
        const int64_t priority = col_int(st, 2), due = col_int(st, 3);

        if (cl->n_out == end || (limit && !before(priority, due, col_slice(st, 1), limit))) {
            head_set(h, priority, due, col_slice(st, 1));
            *more = true;
            break;
        }
        cl->out[cl->n_out] = job_from(st, h, cl);
        if (!cl->out[cl->n_out]) {
            rc = -1;
            st_fail(err, STINT_ENOMEM, "out of memory for a job");
            break;
        }
        cl->n_out++;
    }
    sqlite3_reset(st);
    return rc < 0 ? err->code : STINT_OK;
}

static stint_code job_mark(struct st_sq_writer *w, const struct claim *cl, const struct st_job *job, int64_t policy,
                           stint_error *err)
{
    const enum st_event ev = job->state == ST_RUNNING ? ST_EV_CLAIM_RUN : ST_EV_CLAIM;
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_CLAIM, err);

    if (!st)
        return err->code;
    bind_int(st, 1, (int64_t)job->ref);
    bind_int(st, 2, st_state_next(ST_PENDING, ev));
    bind_int(st, 3, job->attempt);
    bind_int(st, 4, job->fence);
    bind_int(st, 5, job->lease_until_us);
    bind_text(st, 6, cl->req->worker);
    bind_int(st, 7, policy);
    bind_opt(st, 8, job->state == ST_RUNNING ? cl->now_us : -1);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    if (sqlite3_changes(w->c.db) != 1)
        return st_fail(err, STINT_ESTORE, "%s is damaged: job %s is ready but not pending", w->path, job->id);
    return STINT_OK;
}

/* Marks jobs [from, to), all of one state, with one statement. */
static stint_code jobs_mark(struct st_sq_writer *w, const struct claim *cl, size_t from, size_t to, int64_t policy,
                            stint_error *err)
{
    const enum st_state state = cl->out[from]->state;
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_CLAIM_MANY, err);
    stint_code code = STINT_OK;
    struct st_buf seqs;

    if (!st)
        return err->code;
    st_buf_init(&seqs, (to - from) * 24 + 16);
    for (size_t i = from; i < to; i++)
        st_buf_printf(&seqs, "%c%llu", i == from ? '[' : ',', (unsigned long long)cl->out[i]->ref);
    st_buf_putc(&seqs, ']');
    if (seqs.failed) {
        st_buf_clear(&seqs);
        return st_fail(err, STINT_ENOMEM, "out of memory for a claim of %zu jobs", to - from);
    }
    bind_text(st, 1, st_buf_view(&seqs));
    bind_int(st, 2, st_state_next(ST_PENDING, state == ST_RUNNING ? ST_EV_CLAIM_RUN : ST_EV_CLAIM));
    bind_int(st, 3, cl->out[from]->lease_until_us);
    bind_text(st, 4, cl->req->worker);
    bind_int(st, 5, policy);
    bind_opt(st, 6, state == ST_RUNNING ? cl->now_us : -1);
    code = st_sq_run(&w->c, st, err);
    if (!code && sqlite3_changes(w->c.db) != (int)(to - from))
        code = st_fail(err, STINT_ESTORE, "%s is damaged: a job is ready but not pending", w->path);
    st_buf_clear(&seqs);
    return code;
}

/* Marks the jobs from `from` on, all of one lane: first the running ones, then the others. */
static stint_code lane_mark(struct st_sq_writer *w, struct claim *cl, struct head *h, size_t from, stint_error *err)
{
    int64_t policy;

    if (from == cl->n_out)
        return STINT_OK;
    if (st_sq_policy_id(w, h->rule ? &h->rule->policy : &st_policy_default, &policy, err))
        return err->code;
    for (size_t i = from, to; i < cl->n_out; i = to) {
        for (to = i + 1; to < cl->n_out && cl->out[to]->state == cl->out[i]->state;)
            to++;
        if (to - i > 1 ? jobs_mark(w, cl, i, to, policy, err) : job_mark(w, cl, cl->out[i], policy, err))
            return err->code;
        st_sq_count(h->lane, st_sq_bucket(cl->out[i]->state, false, 1), (int64_t)(to - i));
        st_sq_count(h->lane, ST_SHOW_PENDING, -(int64_t)(to - i));
    }
    for (size_t i = from; i < cl->n_out; i++)
        cl->out[i]->ref = st_sq_ref((int64_t)cl->out[i]->ref, h->lane->id);
    return STINT_OK;
}

static stint_code group_take(struct st_sq_writer *w, struct claim *cl, struct plan *p, stint_error *err)
{
    const struct st_type_rule *rule;
    const struct head *second;
    size_t best, from;
    bool more;

    if (heads_peek(w, p, err))
        return err->code;
    while (cl->n_out < cl->req->n && p->n > 0) {
        best = heads_best(p, &second);
        rule = p->heads[best].rule;
        from = cl->n_out;
        more = false;
        if (rule_left(cl, rule) > 0 &&
            (lane_read(w, cl, &p->heads[best], second, &more, err) || lane_mark(w, cl, &p->heads[best], from, err)))
            return err->code;
        if (rule)
            cl->taken[rule - cl->req->types] += cl->n_out - from;
        if (!more)
            head_drop(p, best);
    }
    return STINT_OK;
}

/* ---- what has become due ---------------------------------------------------------------- */

static stint_code promote_one(struct st_sq_writer *w, int64_t seq, int64_t lane_id, int attempt, stint_error *err)
{
    struct st_sq_lane *lane = st_sq_lane_by_id(w, lane_id, err);
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_PROMOTE, err);

    if (!lane || !st)
        return err->code;
    bind_int(st, 1, seq);
    if (st_sq_run(&w->c, st, err))
        return err->code;
    st_sq_count(lane, st_sq_bucket(ST_PENDING, false, attempt), -1);
    st_sq_count(lane, ST_SHOW_PENDING, 1);
    return STINT_OK;
}

/* Makes up to PROMOTE_MAX overdue jobs ready, oldest first. */
static stint_code promote(struct st_sq_writer *w, int64_t now, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_DUE_SOME, err);
    struct due {
        int64_t seq, lane;
        int attempt;
    } * due;
    size_t n = 0;
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, now);
    bind_int(st, 2, PROMOTE_MAX);
    rc = st_sq_step(&w->c, st, err);
    if (rc != SQLITE_ROW)
        return rc < 0 ? err->code : STINT_OK;
    due = malloc(PROMOTE_MAX * sizeof(*due));
    if (!due) {
        sqlite3_reset(st);
        return st_fail(err, STINT_ENOMEM, "out of memory for due jobs");
    }
    for (; rc == SQLITE_ROW && n < PROMOTE_MAX; rc = st_sq_step(&w->c, st, err))
        due[n++] = (struct due){col_int(st, 0), col_int(st, 1), (int)col_int(st, 2)};
    sqlite3_reset(st);
    for (size_t i = 0; i < n && rc >= 0; i++)
        if (promote_one(w, due[i].seq, due[i].lane, due[i].attempt, err))
            rc = -1;
    free(due);
    return rc < 0 ? err->code : STINT_OK;
}

/* ---- claim ------------------------------------------------------------------------------ */

static stint_code claim_in(struct st_sq_writer *w, struct claim *cl, stint_error *err)
{
    struct plan p;
    stint_code code;

    cl->now_us = st_sq_now(cl->req->now_us);
    code = promote(w, cl->now_us, err);
    if (code)
        return code;
    cl->taken = calloc(cl->req->n_types + 1, sizeof(*cl->taken));
    if (!cl->taken)
        return st_fail(err, STINT_ENOMEM, "out of memory for the claim");
    code = plan_init(w, &p, cl->req, err);
    for (size_t i = 0; !code && i < group_count(cl->req) && cl->n_out < cl->req->n; i++) {
        plan_group(w, &p, cl->req, group_name(cl->req, i));
        code = group_take(w, cl, &p, err);
    }
    plan_clear(&p);
    free(cl->taken);
    w->claims_hot = !code && cl->n_out == cl->req->n;
    return code;
}

static stint_code claim_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    return claim_in(w, arg, err);
}

static stint_code due_any(struct st_sq_writer *w, int64_t now, bool *any, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(&w->c, SQ_DUE_ANY, err);
    int rc;

    if (!st)
        return err->code;
    bind_int(st, 1, now);
    rc = st_sq_step(&w->c, st, err);
    if (rc == SQLITE_ROW)
        sqlite3_reset(st);
    *any = rc == SQLITE_ROW;
    return rc < 0 ? err->code : STINT_OK;
}

/* Is there anything to take or to promote?  Reads only. */
static stint_code claim_probe(struct st_sq_writer *w, void *arg, bool *need, stint_error *err)
{
    struct claim *cl = arg;
    struct plan p;
    stint_code code;

    *need = w->claims_hot;
    if (*need)
        return STINT_OK;
    if (due_any(w, st_sq_now(cl->req->now_us), need, err) || *need)
        return *need ? STINT_OK : err->code;
    code = plan_init(w, &p, cl->req, err);
    for (size_t i = 0; !code && !*need && i < group_count(cl->req); i++) {
        plan_group(w, &p, cl->req, group_name(cl->req, i));
        for (size_t k = 0; !code && !*need && k < p.n; k++)
            code = head_peek(w, &p, &p.heads[k], need, err);
    }
    plan_clear(&p);
    return code;
}

static void claim_undo(void *arg)
{
    struct claim *cl = arg;

    while (cl->n_out > 0)
        st_job_free(cl->out[--cl->n_out]);
}

stint_code st_sq_claim(struct st_store *s, const struct st_claim_req *req, struct st_job **out, size_t *n_out,
                       stint_error *err)
{
    struct claim cl = {.req = req, .out = out};
    struct st_sq_req r = {.run = claim_run, .probe = claim_probe, .undo = claim_undo, .arg = &cl};
    const stint_code code = st_sq_submit(st_sq_of(s), &r, err);

    *n_out = cl.n_out;
    return code;
}

/* ---- finish and claim in one transaction ------------------------------------------------ */

struct exchange {
    struct st_sq_finish_arg fin;
    struct claim cl;
};

static stint_code exchange_run(struct st_sq_writer *w, void *arg, stint_error *err)
{
    struct exchange *x = arg;

    if (st_sq_finish_run(w, &x->fin, err))
        return err->code;
    return claim_in(w, &x->cl, err);
}

static void exchange_undo(void *arg)
{
    claim_undo(&((struct exchange *)arg)->cl);
}

stint_code st_sq_exchange(struct st_store *s, int64_t now_us, struct st_finish *items, size_t n,
                          const struct st_claim_req *req, struct st_job **out, size_t *n_out, bool *finished,
                          stint_error *err)
{
    struct exchange x = {.fin = {.now_us = now_us, .items = items, .n = n}, .cl = {.req = req, .out = out}};
    struct st_sq_req r = {.run = exchange_run, .undo = exchange_undo, .arg = &x};
    const stint_code code = st_sq_submit(st_sq_of(s), &r, err);

    *n_out = x.cl.n_out;
    *finished = code == STINT_OK;
    return code;
}
