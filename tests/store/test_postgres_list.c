/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_list.c - lists of the PostgreSQL store, with more jobs than are ever read at once.
 *
 * Which way a list takes depends on how many jobs can match.  Whatever it is, the pages must be
 * what the list of all jobs says, filtered here.
 */
#include "postgres_kit.h"

#include "job/spec.h"

#define T0     ((int64_t)1700000000 * ST_SEC)
#define BATCH  1000
#define ROUNDS 22 /* more waiting jobs than the small places are read for */

static const char *const queues[] = {"one", "two", "two.sub"};
static const char *const types[] = {"a", "b.x", "b.y", "rare"};

static unsigned dice(unsigned n)
{
    static uint64_t seed = 7;

    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

/* ---- a store with jobs in every state ----------------------------------------------------- */

static void add_batch(struct st_store *s, int round)
{
    static char ids[BATCH][ST_UUID_LEN + 1], keys[BATCH][16];
    static struct st_enqueued out[BATCH];
    static struct st_new_job jobs[BATCH];

    for (int i = 0; i < BATCH; i++) {
        st_id_new(ids[i]);
        snprintf(keys[i], sizeof(keys[i]), "k%d.%d", round, i);
        jobs[i] = (struct st_new_job){
            .id = S(ids[i]),
            .type = S(types[round == 3 && i < 5 ? 3 : dice(3)]),
            .queue = S(queues[dice(3)]),
            .payload = S(dice(2) ? "{\"x\":1}" : "{\"x\": 2}"),
            .priority = (int)dice(2),
            .max_attempts = -1,
            .timeout_us = -1,
            .delay_us = dice(200) ? 0 : 60 * ST_SEC,
        };
        if (i % 100 == 0) {
            jobs[i].unique = ST_UNIQUE_ACTIVE;
            jobs[i].key = S(keys[i]);
        }
    }
    OK(st_store_enqueue(s, T0, jobs, BATCH, out, &kit_err));
}

static void work_some(struct st_store *s, int round)
{
    struct st_claim_req req = {.now_us = T0 + round * ST_SEC,
                               .worker = S(round == 5  ? "rare"
                                           : round % 2 ? "w1"
                                                       : "w2"),
                               .lease_us = 1000 * ST_SEC,
                               .n = 40,
                               .n_run = 30};
    struct st_job *jobs[40];
    size_t n;

    OK(st_store_claim(s, &req, jobs, &n, &kit_err));
    assert_int_equal(n, 40);
    for (size_t i = 0; i < n; i++) {
        struct st_finish f = {.id = S(jobs[i]->id),
                              .fence = jobs[i]->fence,
                              .outcome = (enum st_outcome)dice(5),
                              .delay_us = 60 * ST_SEC,
                              .started_ago_us = -1,
                              .exit_code = -1,
                              .kind = ST_KIND_EXIT,
                              .message = S("exit 1")};

        if (i % 4)
            OK(st_store_finish(s, req.now_us + ST_SEC, &f, 1, &kit_err));
        st_job_free(jobs[i]);
    }
}

static struct st_store *fill(void)
{
    struct st_store_open opt = {.timeout_ms = 60000};
    struct st_store *s;

    OK(st_store_open(kit_url, &opt, &s, &kit_err));
    for (int round = 0; round < ROUNDS; round++) {
        add_batch(s, round);
        work_some(s, round);
    }
    return s;
}

/* ---- a list against the list of all --------------------------------------------------------- */

static bool matches(const struct st_list_req *r, const struct st_job_info *j)
{
    char hash[ST_HASH_LEN + 1];

    if (r->spec_hash.p) {
        OK(st_spec_hash(S(j->type), S(j->queue), j->payload, hash, &kit_err));
        if (!st_slice_is(r->spec_hash, hash))
            return false;
    }
    return (!r->states || r->states & (1u << j->shown)) && (!r->queue.p || st_queue_covers(r->queue, S(j->queue))) &&
           (!r->type.p || st_pattern_match(r->type, S(j->type))) &&
           (!r->worker.p || (j->worker && st_slice_is(r->worker, j->worker))) &&
           (!r->key.p || (j->key && st_slice_is(r->key, j->key))) &&
           (!r->ended_before_us || (j->finished_us && j->finished_us < r->ended_before_us));
}

struct all {
    struct st_job_info *v;
    size_t n, at;
};

static const struct st_job_info *next_match(struct all *all, const struct st_list_req *r)
{
    while (all->at < all->n)
        if (matches(r, &all->v[all->at++]))
            return &all->v[all->at - 1];
    return NULL;
}

static void check_page(struct all *all, const struct st_list_req *r, const struct st_job_info *page, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct st_job_info *want = next_match(all, r);

        assert_non_null(want);
        assert_string_equal(page[i].id, want->id);
        assert_int_equal(page[i].shown, want->shown);
        assert_int_equal(page[i].cursor, want->cursor);
        assert_int_equal(page[i].finished_us, want->finished_us);
    }
}

static void check_list(struct st_store *s, struct all *all, struct st_list_req r, int pages)
{
    struct st_job_info *page;
    size_t n;

    r.now_us = T0 + 30 * ST_SEC;
    r.limit = r.limit ? r.limit : 50;
    all->at = 0;
    for (int i = 0; i < pages; i++) {
        OK(st_store_list(s, &r, &page, &n, &r.after, &kit_err));
        assert_true(n <= r.limit);
        check_page(all, &r, page, n);
        st_job_info_list_free(page, n);
        if (!r.after) {
            assert_null(next_match(all, &r)); /* that was all */
            return;
        }
    }
}

static void a_list_is_the_same_whichever_way_it_was_found(void **state)
{
    struct st_list_req req = {.now_us = T0 + 30 * ST_SEC, .limit = ROUNDS * BATCH, .with_payload = true};
    struct st_store *s = fill();
    struct all all = {0};
    char hash[ST_HASH_LEN + 1];
    uint64_t next;

    (void)state;
    (void)kit_pooled; /* it makes no difference here */
    OK(st_store_list(s, &req, &all.v, &all.n, &next, &kit_err));
    assert_int_equal(all.n, ROUNDS * BATCH);
    assert_int_equal(next, 0);
    check_list(s, &all, (struct st_list_req){.limit = 9999}, 9);
    for (unsigned i = 0; i < ST_SHOWN_N; i++)
        check_list(s, &all, (struct st_list_req){.states = 1u << i}, 20);
    for (int i = 0; i < 60; i++) {
        struct st_list_req r = {.limit = 1 + dice(300), .states = dice(2) ? 1 + dice(511) : 0};

        if (dice(3) == 0)
            r.queue = S(queues[dice(3)]);
        if (dice(3) == 0)
            r.type = S(dice(2) ? "b.*" : types[dice(4)]);
        if (dice(3) == 0)
            r.worker = S(((const char *[]){"w1", "w2", "rare", "nobody"})[dice(4)]);
        if (dice(8) == 0)
            r.key = S("k7.300");
        if (dice(4) == 0)
            r.ended_before_us = T0 + dice(30) * ST_SEC;
        check_list(s, &all, r, 4);
    }
    OK(st_spec_hash(S("rare"), S("two"), S("{\"x\":2}"), hash, &kit_err));
    check_list(s, &all, (struct st_list_req){.spec_hash = S(hash)}, 99);
    OK(st_spec_hash(S("a"), S("one"), S("{\"x\":1}"), hash, &kit_err));
    check_list(s, &all, (struct st_list_req){.spec_hash = S(hash), .states = 1u << ST_SHOW_PENDING}, 3);
    st_job_info_list_free(all.v, all.n);
    st_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {KIT_TEST(a_list_is_the_same_whichever_way_it_was_found)};

    KIT_NEEDS_SERVER
    return cmocka_run_group_tests(tests, NULL, NULL);
}
