/* SPDX-License-Identifier: Apache-2.0
 *
 * case_look.c - get, list, counts.
 */
#include "suite.h"

#include "job/spec.h"

TEST(get_of_an_unknown_job_says_so)
{
    struct st_store *s = test_store(t);
    struct st_job_info i;
    stint_error err = {0};

    assert_int_equal(st_store_get(s, T0, S("nobody"), &i, &err), STINT_ENOTFOUND);
    assert_non_null(strstr(err.message, "nobody"));
}

/* ---- list ------------------------------------------------------------------------------- */

/* The types of what a request lists, in order: "a b c" */
static const char *listed(struct st_store *s, struct st_list_req req)
{
    static char got[512];
    struct st_job_info *list;
    uint64_t next;
    size_t n;

    got[0] = '\0';
    req.now_us = req.now_us ? req.now_us : T0;
    req.limit = req.limit ? req.limit : 100;
    OK(st_store_list(s, &req, &list, &n, &next, NULL));
    for (size_t i = 0; i < n; i++) {
        strcat(got, i ? " " : "");
        strcat(got, list[i].type);
    }
    st_job_info_list_free(list, n);
    return got;
}

static void add(struct t *t, struct st_store *s, const char *type, const char *queue, int64_t due)
{
    struct st_new_job j = test_job(t, type);

    j.queue = S(queue);
    j.due_us = due;
    test_add(t, s, T0, j);
}

TEST(a_list_is_newest_first)
{
    struct st_store *s = test_store(t);

    assert_string_equal(listed(s, (struct st_list_req){0}), "");
    test_enqueue(t, s, "a");
    test_enqueue(t, s, "b");
    test_enqueue(t, s, "c");
    assert_string_equal(listed(s, (struct st_list_req){0}), "c b a");
}

TEST(a_list_goes_on_where_its_cursor_points)
{
    struct st_store *s = test_store(t);
    struct st_list_req req = {.now_us = T0, .limit = 2};
    struct st_job_info *list;
    char got[64] = "";
    size_t n, pages = 0;

    for (int i = 0; i < 5; i++)
        test_enqueue(t, s, (const char *[]){"a", "b", "c", "d", "e"}[i]);
    do {
        OK(st_store_list(s, &req, &list, &n, &req.after, NULL));
        for (size_t i = 0; i < n; i++)
            strcat(got, list[i].type);
        st_job_info_list_free(list, n);
        pages++;
    } while (req.after);
    assert_string_equal(got, "edcba");
    assert_int_equal(pages, 3);
}

TEST(a_list_shows_states_as_people_see_them)
{
    struct st_store *s = test_store(t);
    struct st_job *job;

    add(t, s, "scheduled", "q", T0 + 60 * SEC);
    test_enqueue(t, s, "failed");
    job = test_claim(t, s, T0, 10 * SEC);
    OK(test_finish(s, T0, job, ST_OUT_FAILED));
    st_job_free(job);
    test_enqueue(t, s, "retrying");
    job = test_claim(t, s, T0, 10 * SEC);
    {
        struct st_finish f = test_fin(job, ST_OUT_RETRY);

        f.delay_us = 60 * SEC;
        OK(test_finish_item(s, T0, &f));
    }
    st_job_free(job);
    test_enqueue(t, s, "running");
    st_job_free(test_claim(t, s, T0, 10 * SEC));
    test_enqueue(t, s, "claimed");
    st_job_free(test_prefetch(t, s, T0, 10 * SEC));
    test_enqueue(t, s, "pending");
    for (int i = 0; i < ST_SHOWN_N; i++) {
        const char *name = st_shown_name((enum st_shown)i);
        const bool there = i != ST_SHOW_BLOCKED && i != ST_SHOW_SUCCEEDED && i != ST_SHOW_CANCELLED;

        assert_string_equal(listed(s, (struct st_list_req){.states = 1u << i}), there ? name : "");
    }
    assert_string_equal(listed(s, (struct st_list_req){.states = 1u << ST_SHOW_PENDING | 1u << ST_SHOW_FAILED}),
                        "pending failed");
    /* What is due by then is pending, whether or not somebody has looked. */
    assert_string_equal(listed(s, (struct st_list_req){.now_us = T0 + 60 * SEC, .states = 1u << ST_SHOW_PENDING}),
                        "pending retrying scheduled");
}

TEST(a_list_is_filtered)
{
    struct st_store *s = test_store(t);
    struct st_new_job j;
    struct st_job *job;
    char hash[ST_HASH_LEN + 1];

    add(t, s, "mail.a", "post", T0);
    add(t, s, "mail.b", "post.fast", T0 + 1);
    add(t, s, "sms", "other", T0 + 2);
    j = test_job(t, "mail.keyed"); /* all have come at T0: their ids tell which is newest */
    j.unique = ST_UNIQUE_ACTIVE;
    j.key = S("k1");
    j.due_us = T0 + 3;
    test_add(t, s, T0, j);
    assert_string_equal(listed(s, (struct st_list_req){.queue = S("post")}), "mail.b mail.a");
    assert_string_equal(listed(s, (struct st_list_req){.queue = S("post.fast")}), "mail.b");
    assert_string_equal(listed(s, (struct st_list_req){.type = S("sms")}), "sms");
    assert_string_equal(listed(s, (struct st_list_req){.type = S("mail.*")}), "mail.keyed mail.b mail.a");
    assert_string_equal(listed(s, (struct st_list_req){.key = S("k1")}), "mail.keyed");
    OK(st_spec_hash(S("sms"), S("other"), S("{}"), hash, NULL));
    assert_string_equal(listed(s, (struct st_list_req){.spec_hash = S(hash)}), "sms");
    job = test_claim_as(t, s, T0 + 1, 10 * SEC, "w7");
    assert_string_equal(listed(s, (struct st_list_req){.worker = S("w7")}), "mail.a");
    OK(test_finish(s, T0 + 5 * SEC, job, ST_OUT_SUCCEEDED));
    assert_string_equal(listed(s, (struct st_list_req){.ended_before_us = T0 + 5 * SEC}), "");
    assert_string_equal(listed(s, (struct st_list_req){.ended_before_us = T0 + 5 * SEC + 1}), "mail.a");
    st_job_free(job);
}

/* started is the first start of all; how long the last run took is another matter. */
TEST(a_list_tells_when_the_last_run_started)
{
    struct st_store *s = test_store(t);
    struct st_list_req req = {.now_us = T0 + 100 * SEC, .limit = 1};
    struct st_job_info *list;
    struct st_job *job;
    uint64_t next;
    size_t n;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    OK(test_finish(s, T0 + SEC, job, ST_OUT_RETRY));
    st_job_free(job);
    job = test_claim(t, s, T0 + 90 * SEC, 10 * SEC);
    OK(test_finish(s, T0 + 91 * SEC, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
    OK(st_store_list(s, &req, &list, &n, &next, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(list[0].started_us, T0);
    assert_int_equal(list[0].run_started_us, T0 + 90 * SEC);
    assert_int_equal(list[0].finished_us, T0 + 91 * SEC);
    st_job_info_list_free(list, n);
}

TEST(payload_meta_and_result_are_listed_only_on_request)
{
    struct st_store *s = test_store(t);
    struct st_list_req req = {.now_us = T0, .limit = 1};
    struct st_job_info *list;
    uint64_t next;
    size_t n;

    test_enqueue(t, s, "mail");
    OK(st_store_list(s, &req, &list, &n, &next, NULL));
    assert_int_equal(n, 1);
    assert_null(list[0].payload.p);
    assert_int_equal(list[0].n_attempts, 0);
    st_job_info_list_free(list, n);
    req.with_payload = true;
    OK(st_store_list(s, &req, &list, &n, &next, NULL));
    assert_true(st_slice_is(list[0].payload, "{}"));
    st_job_info_list_free(list, n);
}

/* ---- counts ----------------------------------------------------------------------------- */

TEST(queues_are_listed_by_name_with_their_counts)
{
    struct st_store *s = test_store(t);
    struct st_queue_info *q;
    size_t n;

    OK(st_store_queues(s, T0, &q, &n, NULL));
    assert_int_equal(n, 0);
    free(q);
    add(t, s, "a", "zeta", T0);
    add(t, s, "b", "zeta", T0 - 5 * SEC);
    add(t, s, "a", "alpha", T0 + 60 * SEC);
    OK(st_store_queues(s, T0, &q, &n, NULL));
    assert_int_equal(n, 2);
    assert_string_equal(q[0].name, "alpha");
    assert_int_equal(q[0].counts[ST_SHOW_SCHEDULED], 1);
    assert_int_equal(q[0].counts[ST_SHOW_PENDING], 0);
    assert_int_equal(q[0].oldest_due_us, 0);
    assert_string_equal(q[1].name, "zeta");
    assert_int_equal(q[1].counts[ST_SHOW_PENDING], 2);
    assert_int_equal(q[1].oldest_due_us, T0 - 5 * SEC);
    assert_false(q[1].paused);
    free(q);
}

TEST(a_queue_stays_listed_when_its_jobs_are_gone)
{
    struct st_store *s = test_store(t);
    struct st_pruned gone;
    struct st_slice id[1] = {S(test_enqueue(t, s, "mail"))};
    stint_code verdict;

    OK(test_cancel(s, T0, id[0].p, NULL));
    OK(st_store_discard(s, id, 1, &verdict, &gone, NULL));
    st_pruned_clear(&gone);
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_CANCELLED), 0);
}

TEST(what_has_become_due_is_counted_as_pending_before_anybody_claims)
{
    struct st_store *s = test_store(t);
    struct st_queue_info *q;
    size_t n;

    add(t, s, "a", "q", T0 + 5 * SEC);
    add(t, s, "a", "q", T0 + 50 * SEC);
    OK(st_store_queues(s, T0 + 10 * SEC, &q, &n, NULL));
    assert_int_equal(q[0].counts[ST_SHOW_PENDING], 1);
    assert_int_equal(q[0].counts[ST_SHOW_SCHEDULED], 1);
    assert_int_equal(q[0].oldest_due_us, T0 + 5 * SEC);
    free(q);
}

TEST(the_oldest_due_job_may_have_any_priority)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_queue_info *q;
    size_t n;

    NEEDS(t, s, ST_CAP_PRIORITY);
    j.priority = 9;
    test_add(t, s, T0, j);
    j = test_job(t, "mail");
    j.priority = -9;
    j.due_us = T0 - 30 * SEC;
    test_add(t, s, T0, j);
    j = test_job(t, "sms");
    j.due_us = T0 - 20 * SEC;
    test_add(t, s, T0, j);
    OK(st_store_queues(s, T0, &q, &n, NULL));
    assert_int_equal(q[0].oldest_due_us, T0 - 30 * SEC);
    free(q);
}

/* A long random walk over every operation; the counts must be what a list of all jobs says. */
static void counts_are_true(struct st_store *s, int64_t now)
{
    struct st_list_req req = {.now_us = now, .limit = 1000};
    int64_t want[ST_SHOWN_N] = {0};
    struct st_job_info *list;
    size_t n;

    do {
        OK(st_store_list(s, &req, &list, &n, &req.after, NULL));
        for (size_t i = 0; i < n; i++)
            want[list[i].shown]++;
        st_job_info_list_free(list, n);
    } while (req.after);
    for (int i = 0; i < ST_SHOWN_N; i++) {
        int64_t got = 0;
        struct st_queue_info *q;

        OK(st_store_queues(s, now, &q, &n, NULL));
        for (size_t k = 0; k < n; k++)
            got += q[k].counts[i];
        free(q);
        assert_int_equal(got, want[i]);
    }
}

static unsigned dice(uint64_t *seed, unsigned n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*seed >> 33) % n;
}

#define HELD_MAX 64
struct walk {
    struct st_store *s;
    int64_t now;
    uint64_t seed;
    struct st_job *held[HELD_MAX];
    size_t n_held;
    const char *ids[4000];
    size_t n_ids;
};

static void walk_add(struct t *t, struct walk *w)
{
    static const char *const queues[] = {"one", "two", "two.sub"};
    static const char *const types[] = {"a", "b", "c"};
    struct st_new_job j = test_job(t, types[dice(&w->seed, 3)]);
    struct st_enqueued out;

    j.queue = S(queues[dice(&w->seed, 3)]);
    j.priority = test_priority(w->s, (int)dice(&w->seed, 3));
    j.delay_us = dice(&w->seed, 3) ? 0 : (int64_t)dice(&w->seed, 30) * SEC;
    if (dice(&w->seed, 4) == 0) {
        j.unique = ST_UNIQUE_ACTIVE;
        j.key = S(types[dice(&w->seed, 3)]);
    }
    OK(st_store_enqueue(w->s, w->now, &j, 1, &out, NULL));
    if (!out.duplicate)
        w->ids[w->n_ids++] = j.id.p;
}

static void walk_claim(struct walk *w)
{
    struct st_claim_req req = test_req(w->now, dice(&w->seed, 2) ? "w1" : "w2", 1 + dice(&w->seed, 5));
    size_t n;

    if (w->n_held + req.n > HELD_MAX)
        return;
    req.n_run = dice(&w->seed, 6);
    OK(st_store_claim(w->s, &req, w->held + w->n_held, &n, NULL));
    w->n_held += n;
}

static void walk_finish(struct walk *w)
{
    struct st_finish f;
    size_t i;

    if (!w->n_held)
        return;
    i = dice(&w->seed, (unsigned)w->n_held);
    f = test_fin(w->held[i], (enum st_outcome)dice(&w->seed, 5));
    f.delay_us = (int64_t)dice(&w->seed, 2) * 15 * SEC;
    OK(st_store_finish(w->s, w->now, &f, 1, NULL));
    st_job_free(w->held[i]);
    w->held[i] = w->held[--w->n_held];
}

static void walk_renew(struct walk *w)
{
    for (size_t i = 0; i < w->n_held; i++) {
        struct st_renew r = {.id = S(w->held[i]->id),
                             .fence = w->held[i]->fence,
                             .lease_us = 10 * SEC,
                             .started_ago_us = dice(&w->seed, 2) ? 0 : -1};

        OK(st_store_renew(w->s, w->now, &r, 1, NULL));
    }
}

static void walk_steer(struct walk *w)
{
    struct st_prune_req prune = {.now_us = w->now, .keep = {20 * SEC, 40 * SEC, 30 * SEC}, .limit = 5};
    struct st_claim_req req = test_req(w->now, "w3", 1);
    const char *id = w->n_ids ? w->ids[dice(&w->seed, (unsigned)w->n_ids)] : "nobody";
    const struct st_slice ids[1] = {S(id)};
    struct st_pruned gone;
    enum st_refusal why;
    struct st_job *job;
    stint_code verdict;
    size_t n;

    switch (dice(&w->seed, 7)) {
    case 0:
        test_cancel(w->s, w->now, id, NULL);
        break;
    case 1:
        test_retry(w->s, w->now, id);
        break;
    case 2:
        OK(st_store_discard(w->s, ids, 1, &verdict, &gone, NULL));
        st_pruned_clear(&gone);
        break;
    case 3:
        OK(st_store_prune(w->s, &prune, &gone, NULL));
        st_pruned_clear(&gone);
        break;
    case 4:
        if (!st_store_acquire(w->s, ids[0], &req, &job, &why, NULL))
            st_job_free(job);
        break;
    case 5:
        OK(st_store_disown(w->s, w->now, S("w2"), NULL, 0, &n, NULL));
        break;
    default:
        test_reap(w->s, w->now, "w1", NULL, 0);
        break;
    }
}

static void nothing_bad(void *arg, enum st_severity sev, const char *what, const char *remedy)
{
    (void)arg;
    (void)remedy;
    if (sev == ST_BAD)
        fail_msg("the doctor says: %s", what);
}

TEST(counts_stay_true_through_thousands_of_random_operations)
{
    struct walk *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->s = test_store(t);
    w->now = T0;
    w->seed = 42;
    for (int step = 0; step < 4000; step++) {
        const unsigned what = dice(&w->seed, 20);

        w->now += dice(&w->seed, 10) ? 0 : (int64_t)dice(&w->seed, 4) * SEC;
        if (what < 8 && w->n_ids < 3900)
            walk_add(t, w);
        else if (what < 11)
            walk_claim(w);
        else if (what < 15)
            walk_finish(w);
        else if (what < 16)
            walk_renew(w);
        else
            walk_steer(w);
        if (step % 500 == 499)
            counts_are_true(w->s, w->now);
    }
    OK(st_store_check(w->s, nothing_bad, NULL, NULL));
    while (w->n_held)
        st_job_free(w->held[--w->n_held]);
    free(w);
}
