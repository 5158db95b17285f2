/* SPDX-License-Identifier: Apache-2.0
 *
 * case_claim.c - which jobs a claim gives, in which order, and what it writes.
 */
#include "suite.h"

/* Claims one by one and checks the types in order: "a b c" */
static void order_is(struct t *t, struct st_store *s, int64_t now, const char *types)
{
    struct st_job *job;
    char got[512] = "";

    while ((job = test_claim(t, s, now, 10 * SEC))) {
        strcat(got, got[0] ? " " : "");
        strcat(got, job->type);
        st_job_free(job);
    }
    assert_string_equal(got, types);
}

static void add(struct t *t, struct st_store *s, const char *type, const char *queue, int priority, int64_t due)
{
    struct st_new_job j = test_job(t, type);

    j.queue = S(queue);
    j.priority = priority;
    j.due_us = due;
    test_add(t, s, T0, j);
}

/* ---- order ------------------------------------------------------------------------------ */

TEST(higher_priorities_come_first)
{
    struct st_store *s = test_store(t);

    NEEDS(t, s, ST_CAP_PRIORITY);
    add(t, s, "low", "q", -5, T0);
    add(t, s, "high", "q", 32767, T0);
    add(t, s, "least", "q", -32768, T0);
    add(t, s, "middle", "q", 0, T0);
    order_is(t, s, T0, "high middle low least");
}

TEST(equal_priorities_come_in_order_of_their_due_time)
{
    struct st_store *s = test_store(t);

    NEEDS(t, s, ST_CAP_DUE_ORDER);
    add(t, s, "third", "q", 0, T0 - 1 * SEC);
    add(t, s, "first", "q", 0, T0 - 9 * SEC);
    add(t, s, "second", "q", 0, T0 - 5 * SEC);
    order_is(t, s, T0, "first second third");
}

TEST(equal_due_times_come_in_order_of_their_ids)
{
    static const char *const ids[] = {"c", "a", "d", "b"};
    struct st_store *s = test_store(t);
    struct st_new_job j;

    NEEDS(t, s, ST_CAP_DUE_ORDER);
    for (int i = 0; i < 4; i++) {
        j = test_job(t, ids[i]); /* several types: the order holds across them */
        j.id = S(ids[i]);
        j.due_us = T0;
        test_add(t, s, T0, j);
    }
    order_is(t, s, T0, "a b c d");
}

/* Many types merged into one order, in one batch. */
TEST(a_batch_over_many_types_is_in_order)
{
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 200);
    struct st_job *jobs[200];
    char type[16];
    size_t n;

    NEEDS(t, s, ST_CAP_PRIORITY);
    NEEDS(t, s, ST_CAP_DUE_ORDER);
    for (int i = 0; i < 200; i++) {
        snprintf(type, sizeof(type), "t%d", (i * 7) % 5);
        add(t, s, type, "q", (i * 13) % 4, T0 - (i * 17) % 50);
    }
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 200);
    for (size_t i = 1; i < n; i++) {
        const struct st_job *a = jobs[i - 1], *b = jobs[i];

        assert_true(a->priority > b->priority ||
                    (a->priority == b->priority &&
                     (a->due_us < b->due_us || (a->due_us == b->due_us && strcmp(a->id, b->id) < 0))));
    }
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
}

TEST(queues_are_served_in_the_order_asked_for)
{
    const struct st_slice queues[] = {S("second"), S("first")};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 3);
    struct st_job *jobs[3];
    size_t n;

    add(t, s, "a", "first", 0, T0);
    add(t, s, "b", "second", 0, T0);
    add(t, s, "c", "third", 0, T0);
    req.queues = queues;
    req.n_queues = 2;
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 2); /* nobody asked for the third */
    assert_string_equal(jobs[0]->type, "b");
    assert_string_equal(jobs[1]->type, "a");
    st_job_free(jobs[0]);
    st_job_free(jobs[1]);
}

TEST(a_parent_queue_means_its_subs_too)
{
    const struct st_slice parent[] = {S("post")}, sub[] = {S("post.fast")};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 10);

    add(t, s, "a", "post", 0, T0);
    add(t, s, "b", "post.fast", 0, T0);
    add(t, s, "c", "post.slow", 0, T0);
    add(t, s, "d", "poster", 0, T0);
    req.n_queues = 1;
    req.queues = sub;
    assert_int_equal(test_claim_count(s, &req), 1);
    req.queues = parent;
    assert_int_equal(test_claim_count(s, &req), 2);
    assert_int_equal(test_count(s, T0, "poster", ST_SHOW_PENDING), 1);
}

TEST(a_sub_named_before_its_parent_is_served_first)
{
    const struct st_slice queues[] = {S("post.slow"), S("post")};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 3);
    struct st_job *jobs[3];
    size_t n;

    add(t, s, "a", "post.fast", 0, T0 - 5);
    add(t, s, "b", "post.slow", 0, T0);
    req.queues = queues;
    req.n_queues = 2;
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 2);
    assert_string_equal(jobs[0]->type, "b");
    assert_string_equal(jobs[1]->type, "a");
    st_job_free(jobs[0]);
    st_job_free(jobs[1]);
}

TEST(all_queues_are_one_when_none_is_named)
{
    struct st_store *s = test_store(t);

    NEEDS(t, s, ST_CAP_PRIORITY);
    add(t, s, "a", "one", 1, T0);
    add(t, s, "b", "two", 3, T0);
    add(t, s, "c", "three", 2, T0);
    order_is(t, s, T0, "b c a");
}

/* ---- types ------------------------------------------------------------------------------ */

static const struct st_policy quick = {.max_attempts = 7, .timeout_us = 4 * SEC, .multiplier = 1};
static const struct st_policy slow = {.max_attempts = 2, .timeout_us = 9 * SEC, .multiplier = 1};

TEST(only_the_types_asked_for_are_given)
{
    const struct st_type_rule rules[] = {{.pattern = S("mail"), .policy = quick},
                                         {.pattern = S("image.*"), .policy = slow}};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 10);

    NEEDS(t, s, ST_CAP_TYPE_FILTER);
    add(t, s, "mail", "q", 0, T0);
    add(t, s, "mailx", "q", 0, T0);
    add(t, s, "image.crop", "q", 0, T0);
    add(t, s, "image.", "q", 0, T0);
    add(t, s, "imag", "q", 0, T0);
    req.types = rules;
    req.n_types = 2;
    assert_int_equal(test_claim_count(s, &req), 3);
    assert_int_equal(test_claim_count(s, &req), 0);
    order_is(t, s, T0, "mailx imag");
}

TEST(the_most_specific_rule_gives_policy_and_lease)
{
    const struct st_type_rule rules[] = {
        {.pattern = S("*"), .policy = slow, .lease_us = 30 * SEC},
        {.pattern = S("mail.*"), .policy = slow, .lease_us = 40 * SEC},
        {.pattern = S("mail.send"), .policy = quick},
        {.pattern = S("mail.s*"), .policy = slow, .lease_us = 50 * SEC},
    };
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 1);
    struct st_job *job;
    size_t n;

    NEEDS(t, s, ST_CAP_TYPE_FILTER);
    req.types = rules;
    req.n_types = 4;
    add(t, s, "mail.send", "q", 0, T0);
    OK(st_store_claim(s, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(job->policy.max_attempts, 7);
    assert_int_equal(job->policy.timeout_us, 4 * SEC);
    assert_int_equal(job->lease_us, 10 * SEC); /* the rule has none: the request's */
    assert_int_equal(job->lease_until_us, T0 + 10 * SEC);
    st_job_free(job);
    add(t, s, "mail.save", "q", 0, T0);
    OK(st_store_claim(s, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(job->lease_us, 50 * SEC);
    assert_int_equal(job->lease_until_us, T0 + 50 * SEC);
    st_job_free(job);
}

TEST(a_rule_for_a_queue_goes_before_one_for_all)
{
    const struct st_type_rule rules[] = {
        {.pattern = S("mail"), .policy = slow},
        {.pattern = S("*"), .queue = S("post"), .policy = quick},
    };
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 1);
    struct st_job *job;
    size_t n;

    NEEDS(t, s, ST_CAP_TYPE_FILTER);
    req.types = rules;
    req.n_types = 2;
    add(t, s, "mail", "post.fast", 0, T0);
    add(t, s, "sms", "other", 0, T0);
    OK(st_store_claim(s, &req, &job, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(job->policy.max_attempts, 7);
    st_job_free(job);
    assert_int_equal(test_claim_count(s, &req), 0); /* sms elsewhere has no rule */
}

/* ---- against a model --------------------------------------------------------------------- */

#define MODEL_JOBS  400
#define MODEL_TYPES 40
#define MODEL_TAKE  90

struct model_job {
    const char *id;
    int type, priority;
    bool taken;
    int64_t due;
};

static unsigned model_random(unsigned *seed, unsigned below)
{
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 16) % below;
}

static int model_order(const void *a, const void *b)
{
    const struct model_job *x = a, *y = b;

    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    if (x->due != y->due)
        return x->due < y->due ? -1 : 1;
    return strcmp(x->id, y->id);
}

static void model_fill(struct t *t, struct st_store *s, int64_t now, unsigned *seed, unsigned types,
                       struct model_job *jobs)
{
    const int64_t at = now ? now : st_store_now(s) - 60 * SEC;
    char type[8];

    for (size_t i = 0; i < MODEL_JOBS; i++) {
        struct st_new_job j;

        jobs[i].type =
            (int)(model_random(seed, types) * model_random(seed, types) / types); /* some have more than others */
        jobs[i].priority = model_random(seed, 4) == 0;
        snprintf(type, sizeof(type), "t%02d", jobs[i].type);
        j = test_job(t, type);
        j.priority = jobs[i].priority;
        j.due_us = now || model_random(seed, 3) == 0 ? at - model_random(seed, 30) * SEC : 0;
        jobs[i].id = test_add(t, s, now, j);
        jobs[i].taken = false;
    }
    for (size_t i = 0; i < MODEL_JOBS; i++) {
        struct st_job_info info = test_get(s, now, jobs[i].id);

        jobs[i].due = info.due_us;
        st_job_info_clear(&info);
    }
    qsort(jobs, MODEL_JOBS, sizeof(*jobs), model_order);
}

/* One claim, and what it should have given. */
static size_t model_claim(struct st_store *s, struct st_claim_req *req, struct model_job *jobs)
{
    struct st_job *got[MODEL_TAKE];
    size_t left[3] = {SIZE_MAX, SIZE_MAX, SIZE_MAX}, n, at = 0;

    for (size_t i = 0; i < req->n_types; i++)
        left[i] = req->types[i].max ? req->types[i].max : SIZE_MAX;
    OK(st_store_claim(s, req, got, &n, NULL));
    for (size_t i = 0; i < MODEL_JOBS && at < req->n; i++) {
        const int rule = req->n_types < 3 ? 0 : jobs[i].type >= 10 ? 0 : jobs[i].type > 0 ? 1 : 2;
        const struct st_type_rule *r = req->n_types ? &req->types[rule] : NULL;

        if (jobs[i].taken || left[rule] == 0)
            continue;
        assert_true(at < n);
        assert_string_equal(got[at]->id, jobs[i].id);
        assert_int_equal(got[at]->state, at < req->n_run ? ST_RUNNING : ST_CLAIMED);
        assert_int_equal(got[at]->lease_us, r && r->lease_us ? r->lease_us : req->lease_us);
        if (req->now_us)
            assert_int_equal(got[at]->lease_until_us, T0 + got[at]->lease_us);
        if (r)
            assert_int_equal(got[at]->policy.max_attempts, r->policy.max_attempts);
        jobs[i].taken = true;
        left[rule]--;
        at++;
    }
    assert_int_equal(n, at);
    for (size_t i = 0; i < n; i++)
        st_job_free(got[i]);
    return n;
}

/* One rule for all, several alike, several with policies and leases of their own; with limits and without. */
static void model_request(struct st_claim_req *req, struct st_type_rule *rules, unsigned *seed)
{
    static const char *const patterns[] = {"t*", "t0*", "t00"};
    const bool differ = model_random(seed, 2);

    req->n = 1 + model_random(seed, MODEL_TAKE);
    req->n_run = model_random(seed, (unsigned)req->n + 1);
    req->n_types = model_random(seed, 3) ? 3 : model_random(seed, 2);
    req->types = rules;
    for (size_t i = 0; i < req->n_types; i++)
        rules[i] = (struct st_type_rule){.pattern = S(patterns[i]),
                                         .policy = differ && i == 1 ? slow : quick,
                                         .lease_us = differ && i == 2 ? 77 * SEC : 0,
                                         .max = model_random(seed, 3) ? 0 : 1 + model_random(seed, 20)};
}

static void model_run(struct t *t, struct st_store *s, int64_t now, unsigned types)
{
    struct model_job jobs[MODEL_JOBS];
    struct st_type_rule rules[3];
    const struct st_type_rule none = {.pattern = S("none"), .policy = quick};
    struct st_claim_req look = test_req(now, "w1", 1);
    unsigned seed = types;
    size_t done = 0;

    look.types = &none;
    look.n_types = 1;
    model_fill(t, s, now, &seed, types, jobs);
    test_claim_count(s, &look); /* from here on it knows of all types */
    for (int dry = 0; done < MODEL_JOBS; dry++) {
        struct st_claim_req req = test_req(now, "w1", 0);
        size_t n;

        model_request(&req, rules, &seed);
        n = model_claim(s, &req, jobs);
        done += n;
        dry = n ? 0 : dry;
        assert_true(dry < 1000);
    }
}

/* By a time that is given, and by the store's own clock. */
TEST(claims_give_what_a_model_of_them_gives)
{
    static const unsigned types[] = {1, 2, 3, 7, MODEL_TYPES};
    struct st_store *s = test_store(t);

    NEEDS(t, s, ST_CAP_PRIORITY);
    NEEDS(t, s, ST_CAP_DUE_ORDER);
    NEEDS(t, s, ST_CAP_TYPE_FILTER);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        model_run(t, s, T0, types[i]);
        model_run(t, s, 0, types[i]);
    }
}

TEST(a_rule_may_limit_how_many_are_taken_by_it)
{
    const struct st_type_rule rules[] = {{.pattern = S("mail*"), .policy = quick, .max = 2},
                                         {.pattern = S("sms"), .policy = slow}};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 10);
    struct st_job *jobs[10];
    size_t n, mails = 0;

    NEEDS(t, s, ST_CAP_TYPE_FILTER);
    for (int i = 0; i < 3; i++) {
        add(t, s, "mail.a", "one", 0, T0);
        add(t, s, "mail.b", "two", 0, T0);
        add(t, s, "sms", "one", 0, T0);
    }
    req.types = rules;
    req.n_types = 2;
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    for (size_t i = 0; i < n; i++) {
        mails += strcmp(jobs[i]->type, "sms") != 0;
        st_job_free(jobs[i]);
    }
    assert_int_equal(mails, 2); /* of all types and queues that the rule covers */
    assert_int_equal(n, 5);
    assert_int_equal(test_claim_count(s, &req), 2); /* each claim anew */
}

TEST(a_jobs_own_values_go_before_the_types)
{
    const struct st_type_rule rules[] = {{.pattern = S("mail"), .policy = quick}};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 1);
    struct st_new_job j = test_job(t, "mail");
    struct st_job_info i;
    struct st_job *job;
    size_t n;

    j.max_attempts = 0;
    j.timeout_us = 0;
    test_add(t, s, T0, j);
    req.types = rules;
    req.n_types = 1;
    OK(st_store_claim(s, &req, &job, &n, NULL));
    assert_int_equal(job->policy.max_attempts, 0);
    assert_int_equal(job->policy.timeout_us, 0);
    st_job_free(job);
    i = test_get(s, T0, j.id.p);
    assert_int_equal(i.max_attempts, 0);
    assert_int_equal(i.timeout_us, 0);
    assert_int_equal(i.deadline_us, 0);
    st_job_info_clear(&i);
}

TEST(the_types_values_are_kept_with_the_claim)
{
    const struct st_type_rule rules[] = {{.pattern = S("mail"), .policy = quick}};
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 1);
    const char *id = test_enqueue(t, s, "mail");
    struct st_job_info i;

    req.types = rules;
    req.n_types = 1;
    assert_int_equal(test_claim_count(s, &req), 1);
    i = test_get(s, T0, id);
    assert_int_equal(i.max_attempts, 7);
    assert_int_equal(i.timeout_us, 4 * SEC);
    assert_int_equal(i.deadline_us, T0 + 4 * SEC);
    st_job_info_clear(&i);
}

/* ---- due -------------------------------------------------------------------------------- */

TEST(a_job_is_not_given_before_it_is_due)
{
    struct st_store *s = test_store(t);

    add(t, s, "mail", "q", 0, T0 + 5 * SEC);
    assert_null(test_claim(t, s, T0 + 5 * SEC - 1, 10 * SEC));
    order_is(t, s, T0 + 5 * SEC, "mail");
}

TEST(a_delay_counts_from_the_enqueue)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_job_info i;

    j.delay_us = 7 * SEC;
    test_add(t, s, T0, j);
    i = test_get(s, T0, j.id.p);
    assert_int_equal(i.due_us, T0 + 7 * SEC);
    st_job_info_clear(&i);
    assert_null(test_claim(t, s, T0 + 6 * SEC, 10 * SEC));
    order_is(t, s, T0 + 7 * SEC, "mail");
}

TEST(what_has_become_due_is_given_in_its_order)
{
    struct st_store *s = test_store(t);

    NEEDS(t, s, ST_CAP_PRIORITY);
    add(t, s, "later", "q", 0, T0 + 9 * SEC);
    add(t, s, "urgent", "q", 5, T0 + 8 * SEC);
    add(t, s, "sooner", "q", 0, T0 + 3 * SEC);
    add(t, s, "far", "q", 9, T0 + 99 * SEC);
    order_is(t, s, T0 + 10 * SEC, "urgent sooner later");
}

/* More than any one step promotes at once. */
TEST(very_many_overdue_jobs_are_all_given)
{
    enum { N = 2500 };
    struct st_store *s = test_store(t);
    struct st_new_job *jobs = calloc(N, sizeof(*jobs));
    struct st_enqueued *out = calloc(N, sizeof(*out));
    struct st_claim_req req = test_req(T0 + 60 * SEC, "w1", 500);
    size_t total = 0, n;

    assert_non_null(jobs);
    assert_non_null(out);
    for (int i = 0; i < N; i++) {
        jobs[i] = test_job(t, "mail");
        jobs[i].due_us = T0 + (i % 50) * SEC + 1;
    }
    OK(st_store_enqueue(s, T0, jobs, N, out, NULL));
    while ((n = test_claim_count(s, &req)) > 0)
        total += n;
    assert_int_equal(total, N);
    free(jobs);
    free(out);
}

TEST(next_due_is_the_earliest_job_still_to_come)
{
    struct st_store *s = test_store(t);
    int64_t due;

    OK(st_store_next_due(s, T0, &due, NULL));
    assert_int_equal(due, 0);
    test_enqueue(t, s, "now");
    OK(st_store_next_due(s, T0, &due, NULL));
    assert_int_equal(due, 0); /* what is due already is no reason to wait */
    add(t, s, "later", "q", 0, T0 + 9 * SEC);
    add(t, s, "sooner", "other", 0, T0 + 4 * SEC);
    OK(st_store_next_due(s, T0, &due, NULL));
    assert_int_equal(due, T0 + 4 * SEC);
}

/* ---- what a claim writes ---------------------------------------------------------------- */

TEST(a_claimed_job_carries_all_it_needs)
{
    struct st_store *s = test_store(t);
    struct st_new_job j = test_job(t, "mail");
    struct st_job_info i;
    struct st_job *job;

    j.queue = S("post.fast");
    j.meta = S("{\"a\":1}");
    j.priority = test_priority(s, 3);
    test_add(t, s, T0, j);
    job = test_claim(t, s, T0 + 2 * SEC, 10 * SEC);
    assert_string_equal(job->id, j.id.p);
    assert_string_equal(job->type, "mail");
    assert_string_equal(job->queue, "post.fast");
    assert_true(st_slice_is(job->payload, "{}"));
    assert_true(st_slice_is(job->meta, "{\"a\":1}"));
    assert_int_equal(job->fence, 1);
    assert_int_equal(job->attempt, 1);
    assert_int_equal(job->priority, test_priority(s, 3));
    assert_int_equal(job->state, ST_RUNNING);
    assert_int_equal(job->created_us, T0);
    assert_int_equal(job->due_us, T0);
    assert_int_equal(job->lease_us, 10 * SEC);
    assert_int_equal(job->lease_until_us, T0 + 12 * SEC);
    i = test_get(s, T0 + 2 * SEC, job->id);
    assert_int_equal(i.shown, ST_SHOW_RUNNING);
    assert_int_equal(i.attempt, 1);
    assert_int_equal(i.fence, 1);
    assert_string_equal(i.worker, "w1");
    assert_int_equal(i.started_us, T0 + 2 * SEC);
    assert_int_equal(i.lease_until_us, T0 + 12 * SEC);
    assert_int_equal(i.n_attempts, 1);
    assert_null(i.attempts[0].outcome); /* it is going on */
    assert_int_equal(i.attempts[0].started_us, T0 + 2 * SEC);
    assert_string_equal(i.attempts[0].worker, "w1");
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(the_first_n_run_jobs_are_running_and_the_others_claimed)
{
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 5);
    struct st_job *jobs[5];
    size_t n;

    for (int i = 0; i < 5; i++)
        test_enqueue(t, s, i % 2 ? "mail" : "sms");
    req.n_run = 2;
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 5);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(jobs[i]->state, i < 2 ? ST_RUNNING : ST_CLAIMED);
        assert_int_equal(test_shown(s, T0, jobs[i]->id), i < 2 ? ST_SHOW_RUNNING : ST_SHOW_CLAIMED);
        st_job_free(jobs[i]);
    }
}

TEST(a_prefetched_job_has_not_started)
{
    struct st_store *s = test_store(t);
    struct st_job_info i;
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_prefetch(t, s, T0, 10 * SEC);
    i = test_get(s, T0, job->id);
    assert_int_equal(i.started_us, 0);
    assert_int_equal(i.deadline_us, 0);
    assert_int_equal(i.attempt, 1); /* charged at the claim */
    assert_int_equal(i.lease_until_us, T0 + 10 * SEC);
    st_job_info_clear(&i);
    st_job_free(job);
}

TEST(a_job_is_given_once)
{
    struct st_store *s = test_store(t), *other = test_store(t);
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    assert_non_null(job);
    assert_null(test_claim_as(t, other, T0, 10 * SEC, "w2"));
    assert_null(test_claim_as(t, other, T0 + 99 * SEC, 10 * SEC, "w2")); /* expired: to be reaped first */
    st_job_free(job);
}

TEST(a_claim_gives_at_most_n)
{
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 3);

    for (int i = 0; i < 7; i++)
        test_enqueue(t, s, "mail");
    assert_int_equal(test_claim_count(s, &req), 3);
    assert_int_equal(test_claim_count(s, &req), 3);
    assert_int_equal(test_claim_count(s, &req), 1);
    assert_int_equal(test_claim_count(s, &req), 0);
}

/* ---- pause ------------------------------------------------------------------------------ */

TEST(a_paused_queue_gives_nothing_until_it_is_resumed)
{
    struct st_store *s = test_store(t);

    add(t, s, "a", "one", 0, T0);
    add(t, s, "b", "two", 0, T0);
    OK(st_store_pause(s, T0, S("one"), true, NULL));
    OK(st_store_pause(s, T0, S("one"), true, NULL)); /* twice is once */
    order_is(t, s, T0, "b");
    OK(st_store_pause(s, T0, S("one"), false, NULL));
    order_is(t, s, T0, "a");
}

TEST(a_paused_parent_holds_its_subs_back)
{
    struct st_store *s = test_store(t);

    add(t, s, "a", "post.fast", 0, T0);
    add(t, s, "b", "post", 0, T0);
    OK(st_store_pause(s, T0, S("post"), true, NULL));
    order_is(t, s, T0, "");
}

TEST(a_paused_sub_leaves_its_parent_alone)
{
    struct st_store *s = test_store(t);

    add(t, s, "a", "post.fast", 0, T0);
    add(t, s, "b", "post", 0, T0);
    add(t, s, "c", "post.slow", 0, T0);
    OK(st_store_pause(s, T0, S("post.fast"), true, NULL));
    order_is(t, s, T0, "b c");
}

TEST(a_queue_may_be_paused_before_it_has_jobs)
{
    struct st_store *s = test_store(t);
    struct st_queue_info *q;
    size_t n;

    OK(st_store_pause(s, T0, S("future"), true, NULL));
    add(t, s, "a", "future", 0, T0);
    order_is(t, s, T0, "");
    OK(st_store_queues(s, T0, &q, &n, NULL));
    assert_int_equal(n, 1);
    assert_string_equal(q[0].name, "future");
    assert_true(q[0].paused);
    free(q);
}

TEST(what_runs_goes_on_when_its_queue_is_paused)
{
    struct st_store *s = test_store(t);
    struct st_job *job;

    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    OK(st_store_pause(s, T0, S("default"), true, NULL));
    OK(test_finish(s, T0, job, ST_OUT_SUCCEEDED));
    st_job_free(job);
}

/* ---- by due time ------------------------------------------------------------------------ */

TEST(a_claim_may_ask_for_what_was_due_by_a_moment_only)
{
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 10);
    struct st_job *jobs[10];
    size_t n;

    NEEDS(t, s, ST_CAP_DUE_ORDER);
    add(t, s, "late", "q", 0, T0 - 40 * SEC);
    add(t, s, "edge", "q", 0, T0 - 30 * SEC);
    add(t, s, "fresh", "q", 5, T0 - 29 * SEC);
    add(t, s, "future", "q", 0, T0 + 1 * SEC);
    req.lease_us = 60 * SEC;
    req.due_by_us = T0 - 30 * SEC;
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 2);
    assert_string_equal(jobs[0]->type, "late");
    assert_string_equal(jobs[1]->type, "edge");
    assert_int_equal(jobs[0]->lease_us, 60 * SEC);
    assert_int_equal(jobs[0]->lease_until_us, T0 + 60 * SEC);
    OK(test_finish(s, T0, jobs[0], ST_OUT_SUCCEEDED));
    st_job_free(jobs[0]);
    st_job_free(jobs[1]);
    order_is(t, s, T0, "fresh");
}

/* ---- several by their ids ---------------------------------------------------------------- */

TEST(several_are_acquired_at_once_each_by_itself)
{
    struct st_store *s = test_store(t);
    struct st_claim_req req = test_req(T0, "w1", 1);
    struct st_new_job later = test_job(t, "later");
    const char *a = test_enqueue(t, s, "a"), *b = test_enqueue(t, s, "b"), *c;
    struct st_job *held = test_claim_as(t, s, T0, 10 * SEC, "w2"), *over;
    const char *free_one = strcmp(held->id, a) == 0 ? b : a;
    struct st_acquire items[6];

    later.due_us = T0 + 5 * SEC;
    c = test_add(t, s, T0, later);
    over = test_claim_as(t, s, T0, 10 * SEC, "w2"); /* takes the free one, and gives it back */
    assert_string_equal(over->id, free_one);
    OK(test_finish(s, T0, over, ST_OUT_RELEASED));
    items[0].id = S(held->id);
    items[1].id = S(free_one);
    items[2].id = S("nobody");
    items[3].id = S(free_one);
    items[4].id = S(c);
    items[5].id = S(held->id);
    req.lease_us = 60 * SEC;
    OK(st_store_acquire_many(s, items, 6, &req, NULL));
    assert_int_equal(items[0].why, ST_REFUSED_HELD);
    assert_non_null(items[1].job);
    assert_string_equal(items[1].job->id, free_one);
    assert_int_equal(items[1].job->fence, over->fence + 1);
    assert_int_equal(items[1].job->attempt, 1);
    assert_int_equal(items[1].job->lease_until_us, T0 + 60 * SEC);
    assert_int_equal(items[2].why, ST_REFUSED_UNKNOWN);
    assert_null(items[3].job);
    assert_int_equal(items[3].why, ST_REFUSED_HELD);
    assert_int_equal(items[4].why, ST_REFUSED_NOT_DUE);
    assert_int_equal(items[5].why, ST_REFUSED_HELD);
    OK(test_finish(s, T0, items[1].job, ST_OUT_SUCCEEDED));
    st_job_free(items[1].job);
    items[0].id = S(held->id); /* its lease is over: stolen */
    items[1].id = S(free_one);
    req.now_us = T0 + 11 * SEC;
    OK(st_store_acquire_many(s, items, 2, &req, NULL));
    assert_int_equal(items[0].job->attempt, 2);
    assert_int_equal(items[1].why, ST_REFUSED_ENDED);
    assert_int_equal(test_finish(s, T0 + 11 * SEC, held, ST_OUT_SUCCEEDED), STINT_ELOST);
    st_job_free(items[0].job);
    st_job_free(held);
    st_job_free(over);
}
