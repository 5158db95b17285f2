/* SPDX-License-Identifier: Apache-2.0
 *
 * case_upkeep.c - retention, workers, the lead, backup, doctor.
 */
#include "suite.h"

#include <unistd.h>

/* ---- retention -------------------------------------------------------------------------- */

static const char *ended(struct t *t, struct st_store *s, int64_t now, enum st_outcome outcome)
{
    struct st_finish f;
    const char *id = test_add(t, s, now, test_job(t, "mail"));
    struct st_job *job = test_claim(t, s, now, 10 * SEC);

    assert_string_equal(job->id, id);
    f = test_fin(job, outcome);
    f.log = S("log-file");
    if (outcome == ST_OUT_SUCCEEDED)
        f.result_ref = S("result-file");
    OK(test_finish_item(s, now, &f));
    st_job_free(job);
    return id;
}

static size_t prune(struct st_store *s, struct st_prune_req req)
{
    struct st_pruned gone;
    size_t n;

    OK(st_store_prune(s, &req, &gone, NULL));
    n = gone.n;
    st_pruned_clear(&gone);
    return n;
}

static bool exists(struct st_store *s, const char *id)
{
    struct st_job_info i;
    const stint_code code = st_store_get(s, T0, S(id), &i, NULL);

    if (!code)
        st_job_info_clear(&i);
    return !code;
}

TEST(each_state_has_a_retention_of_its_own)
{
    struct st_store *s = test_store(t);
    const char *ok = ended(t, s, T0, ST_OUT_SUCCEEDED), *bad = ended(t, s, T0, ST_OUT_FAILED),
               *off = ended(t, s, T0, ST_OUT_CANCELLED), *live = test_enqueue(t, s, "mail");
    const struct st_retention keep = {.succeeded_us = 10 * SEC, .failed_us = 30 * SEC, .cancelled_us = 20 * SEC};

    assert_int_equal(prune(s, (struct st_prune_req){T0 + 10 * SEC, keep, 0, 10, false}), 0);
    assert_int_equal(prune(s, (struct st_prune_req){T0 + 11 * SEC, keep, 0, 10, false}), 1);
    assert_false(exists(s, ok));
    assert_int_equal(prune(s, (struct st_prune_req){T0 + 21 * SEC, keep, 0, 10, false}), 1);
    assert_false(exists(s, off));
    assert_int_equal(prune(s, (struct st_prune_req){T0 + 31 * SEC, keep, 0, 10, false}), 1);
    assert_false(exists(s, bad));
    assert_true(exists(s, live));
    assert_int_equal(prune(s, (struct st_prune_req){T0 + 9999 * SEC, keep, 0, 10, false}), 0);
}

TEST(retention_0_keeps_for_ever)
{
    struct st_store *s = test_store(t);
    const char *id = ended(t, s, T0, ST_OUT_FAILED);
    const struct st_retention keep = {.succeeded_us = SEC, .cancelled_us = SEC};

    assert_int_equal(prune(s, (struct st_prune_req){T0 + 36500 * ST_DAY, keep, 0, 10, false}), 0);
    assert_true(exists(s, id));
}

TEST(prune_works_in_batches_and_names_the_files)
{
    struct st_store *s = test_store(t);
    struct st_prune_req req = {T0 + 60 * SEC, {SEC, SEC, SEC}, 0, 3, false};
    struct st_pruned gone;
    size_t files = 0, jobs = 0;

    for (int i = 0; i < 4; i++)
        ended(t, s, T0, ST_OUT_SUCCEEDED);
    ended(t, s, T0, ST_OUT_FAILED);
    req.dry_run = true;
    assert_int_equal(prune(s, req), 5);
    req.dry_run = false;
    OK(st_store_prune(s, &req, &gone, NULL));
    assert_int_equal(gone.n, 3);
    assert_true(gone.more);
    do {
        jobs += gone.n;
        files += gone.n_files;
        for (size_t i = 0; i < gone.n_files; i++)
            assert_true(!strcmp(gone.files[i], "log-file") || !strcmp(gone.files[i], "result-file"));
        st_pruned_clear(&gone);
        OK(st_store_prune(s, &req, &gone, NULL));
    } while (gone.n);
    st_pruned_clear(&gone);
    assert_int_equal(jobs, 5);
    assert_int_equal(files, 9); /* 4 results, 5 logs */
    assert_int_equal(test_count(s, T0, "default", ST_SHOW_SUCCEEDED), 0);
}

TEST(a_revived_job_is_out_of_the_reach_of_retention)
{
    struct st_store *s = test_store(t);
    const char *id = ended(t, s, T0, ST_OUT_FAILED);

    OK(test_retry(s, T0, id));
    assert_int_equal(prune(s, (struct st_prune_req){T0 + 99 * SEC, {SEC, SEC, SEC}, 0, 9, false}), 0);
}

/* ---- the lead --------------------------------------------------------------------------- */

static struct st_lead lead(struct st_store *s, int64_t now, const char *worker, bool release)
{
    struct st_lead_req req = {.now_us = now, .worker = S(worker), .term_us = 10 * SEC, .release = release};
    struct st_lead l;

    OK(st_store_lead(s, &req, &l, NULL));
    return l;
}

TEST(there_is_one_leader_and_its_epoch_grows_with_every_change)
{
    struct st_store *s = test_store(t);
    struct st_lead l = lead(s, T0, "a", false);

    assert_true(l.leader);
    assert_int_equal(l.epoch, 1);
    assert_int_equal(l.until_us, T0 + 10 * SEC);
    assert_string_equal(l.holder, "a");
    l = lead(s, T0 + 5 * SEC, "b", false);
    assert_false(l.leader);
    assert_int_equal(l.epoch, 1);
    assert_string_equal(l.holder, "a");
    l = lead(s, T0 + 5 * SEC, "a", false); /* renewing keeps the epoch */
    assert_true(l.leader);
    assert_int_equal(l.epoch, 1);
    assert_int_equal(l.until_us, T0 + 15 * SEC);
    l = lead(s, T0 + 15 * SEC, "b", false); /* expired */
    assert_true(l.leader);
    assert_int_equal(l.epoch, 2);
    l = lead(s, T0 + 16 * SEC, "a", false);
    assert_false(l.leader);
}

TEST(a_leader_that_was_away_gets_a_new_epoch)
{
    struct st_store *s = test_store(t);

    assert_int_equal(lead(s, T0, "a", false).epoch, 1);
    assert_int_equal(lead(s, T0 + 10 * SEC, "a", false).epoch, 2);
}

TEST(a_released_lead_is_free_at_once)
{
    struct st_store *s = test_store(t);
    struct st_lead l;

    lead(s, T0, "a", false);
    l = lead(s, T0 + SEC, "b", true); /* not b's to release */
    assert_false(l.leader);
    assert_false(lead(s, T0 + SEC, "b", false).leader);
    l = lead(s, T0 + SEC, "a", true);
    assert_false(l.leader);
    l = lead(s, T0 + SEC, "b", false);
    assert_true(l.leader);
    assert_int_equal(l.epoch, 2);
}

TEST(a_worker_id_belongs_to_one_process_until_it_is_silent)
{
    struct st_store *s = test_store(t);
    struct st_worker_info a = {.id = "w1", .host = "h", .boot_id = "b", .pid = 7, .pid_start = 70};
    struct st_worker_info b = a;

    b.pid_start = 71; /* the same pid, another process */
    OK(st_store_worker_beat(s, T0, &a, NULL));
    assert_int_equal(st_store_worker_beat(s, T0 + SEC, &b, NULL), STINT_EEXISTS);
    OK(st_store_worker_beat(s, T0 + 2 * SEC, &a, NULL));
    OK(st_store_worker_beat(s, T0 + 2 * SEC + ST_WORKER_SILENT_US + 1, &b, NULL));
    assert_int_equal(st_store_worker_beat(s, T0 + 3 * SEC + ST_WORKER_SILENT_US, &a, NULL), STINT_EEXISTS);
}

TEST(a_stale_epoch_is_refused)
{
    struct st_store *s = test_store(t);
    struct st_prune_req req = {T0 + 60 * SEC, {SEC, SEC, SEC}, 1, 10, false};
    struct st_worker_info w = {.id = "w1"};
    struct st_pruned gone;
    const char *id = ended(t, s, T0, ST_OUT_SUCCEEDED);

    OK(st_store_worker_beat(s, T0, &w, NULL));
    lead(s, T0, "a", false);
    lead(s, T0 + 20 * SEC, "b", false);
    assert_int_equal(st_store_prune(s, &req, &gone, NULL), STINT_ELOST);
    assert_true(exists(s, id));
    assert_int_equal(st_store_worker_remove(s, T0, S("w1"), true, 1, 0, NULL), STINT_ELOST);
    req.epoch = 2;
    OK(st_store_prune(s, &req, &gone, NULL));
    assert_int_equal(gone.n, 1);
    st_pruned_clear(&gone);
    OK(st_store_worker_remove(s, T0, S("w1"), true, 2, 0, NULL));
}

/* ---- workers ---------------------------------------------------------------------------- */

TEST(workers_are_listed_as_they_reported)
{
    struct st_store *s = test_store(t);
    struct st_worker_info a = {.id = "w-a",
                               .name = "mailer",
                               .host = "web1",
                               .boot_id = "b00t",
                               .pid = 4711,
                               .pid_start = 99,
                               .slots = 10,
                               .running = 3,
                               .queues = "[\"default\"]",
                               .types = "[\"mail\"]",
                               .healthy = true,
                               .quiet = true,
                               .note = "fine",
                               .started_us = T0 - SEC};
    struct st_worker_info b = {.id = "w-b"}, *list;
    size_t n;

    OK(st_store_worker_beat(s, T0, &b, NULL));
    OK(st_store_worker_beat(s, T0, &a, NULL));
    a.running = 4;
    OK(st_store_worker_beat(s, T0 + 2 * SEC, &a, NULL));
    OK(st_store_worker_list(s, &list, &n, NULL));
    assert_int_equal(n, 2);
    assert_string_equal(list[0].id, "w-a");
    assert_string_equal(list[0].name, "mailer");
    assert_string_equal(list[0].host, "web1");
    assert_string_equal(list[0].boot_id, "b00t");
    assert_int_equal(list[0].pid, 4711);
    assert_int_equal(list[0].pid_start, 99);
    assert_int_equal(list[0].slots, 10);
    assert_int_equal(list[0].running, 4);
    assert_string_equal(list[0].queues, "[\"default\"]");
    assert_string_equal(list[0].types, "[\"mail\"]");
    assert_true(list[0].healthy);
    assert_true(list[0].quiet);
    assert_string_equal(list[0].note, "fine");
    assert_int_equal(list[0].started_us, T0 - SEC);
    assert_int_equal(list[0].last_beat_us, T0 + 2 * SEC);
    assert_string_equal(list[1].id, "w-b");
    free(list);
}

TEST(the_list_of_workers_names_the_leader)
{
    struct st_store *s = test_store(t);
    struct st_worker_info a = {.id = "a"}, b = {.id = "b"}, *list;
    size_t n;

    OK(st_store_worker_beat(s, 0, &a, NULL));
    OK(st_store_worker_beat(s, 0, &b, NULL));
    assert_true(lead(s, 0, "b", false).leader);
    OK(st_store_worker_list(s, &list, &n, NULL));
    assert_int_equal(n, 2);
    assert_false(list[0].leader);
    assert_true(list[1].leader);
    assert_int_equal(list[1].epoch, 1);
    free(list);
}

TEST(a_removed_worker_is_gone_and_its_jobs_stay_until_their_lease_ends)
{
    struct st_store *s = test_store(t);
    struct st_worker_info w = {.id = "w1"}, *list;
    struct st_job *job;
    size_t n;

    OK(st_store_worker_beat(s, T0, &w, NULL));
    test_enqueue(t, s, "mail");
    job = test_claim(t, s, T0, 10 * SEC);
    OK(st_store_worker_remove(s, T0, S("w1"), false, 0, 0, NULL));
    OK(st_store_worker_list(s, &list, &n, NULL));
    assert_int_equal(n, 0);
    free(list);
    assert_int_equal(test_reap(s, T0 + 5 * SEC, "w2", NULL, 0), 0);
    OK(st_store_worker_remove(s, T0, S("w1"), false, 0, 0, NULL)); /* again: it is as asked for */
    st_job_free(job);
}

TEST(leases_of_a_process_known_to_be_gone_end_at_once)
{
    struct st_store *s = test_store(t);
    struct st_worker_info w = {.id = "w1"};
    struct st_job *mine, *other;

    OK(st_store_worker_beat(s, T0, &w, NULL));
    test_enqueue(t, s, "mail");
    test_enqueue(t, s, "mail");
    mine = test_claim_as(t, s, T0, 3600 * SEC, "w1");
    other = test_claim_as(t, s, T0, 3600 * SEC, "w2");
    OK(st_store_worker_remove(s, T0 + SEC, S("w1"), true, 0, T0, NULL));
    assert_int_equal(test_reap(s, T0 + SEC, "w3", NULL, 0), 1);
    assert_int_equal(test_shown(s, T0 + SEC, other->id), ST_SHOW_RUNNING);
    assert_int_equal(test_finish(s, T0 + SEC, mine, ST_OUT_SUCCEEDED), STINT_ELOST);
    st_job_free(mine);
    st_job_free(other);
}

TEST(a_worker_that_has_beaten_meanwhile_is_not_removed)
{
    struct st_store *s = test_store(t);
    struct st_worker_info w = {.id = "w1"}, *list;
    size_t n;

    OK(st_store_worker_beat(s, T0, &w, NULL));
    OK(st_store_worker_beat(s, T0 + SEC, &w, NULL));
    assert_int_equal(st_store_worker_remove(s, T0, S("w1"), true, 0, T0, NULL), STINT_ELOST);
    OK(st_store_worker_list(s, &list, &n, NULL));
    assert_int_equal(n, 1);
    free(list);
}

/* ---- the store itself ------------------------------------------------------------------- */

TEST(a_store_tells_about_itself)
{
    struct st_store *s = test_store(t);
    struct st_store_about a;
    struct st_schema v;

    st_store_about(s, &a);
    assert_string_equal(a.kind, t->backend->name);
    assert_true(a.where[0] && a.durability[0] && a.version[0]);
    OK(st_store_schema(s, false, &v, NULL));
    assert_true(v.have > 0);
    assert_int_equal(v.have, v.want);
    OK(st_store_schema(s, true, &v, NULL)); /* up from the top stays there */
    assert_int_equal(v.have, v.want);
    assert_true(st_store_now(s) > T0);
}

static void count_bad(void *arg, enum st_severity sev, const char *what, const char *remedy)
{
    (void)what;
    assert_true(sev == ST_FINE || remedy[0]);
    ((int *)arg)[sev]++;
}

TEST(the_doctor_finds_nothing_wrong_with_a_store_in_use)
{
    struct st_store *s = test_store(t);
    int found[3] = {0};

    ended(t, s, T0, ST_OUT_SUCCEEDED);
    test_enqueue(t, s, "mail");
    OK(st_store_check(s, count_bad, found, NULL));
    assert_true(found[ST_FINE] > 0);
    assert_int_equal(found[ST_BAD], 0);
}

TEST(a_backup_is_a_store_with_the_same_jobs)
{
    struct st_store *s = test_store(t), *copy;
    const char *done = ended(t, s, T0, ST_OUT_SUCCEEDED), *id = test_enqueue(t, s, "mail");
    char path[300], url[320];
    stint_error err = {0};
    stint_code code;

    snprintf(path, sizeof(path), "%s/copy.db", t->dir);
    code = st_store_backup(s, path, NULL, NULL, &err);
    if (code == STINT_EINVAL) { /* a store that leaves this to its server's own tools says so */
        assert_non_null(strstr(err.message, s->ops->name));
        return;
    }
    OK(code);
    snprintf(url, sizeof(url), "%s:%s", s->ops->name, path);
    OK(st_store_open(url, NULL, &copy, NULL));
    assert_int_equal(test_shown(copy, T0, done), ST_SHOW_SUCCEEDED);
    assert_int_equal(test_shown(copy, T0, id), ST_SHOW_PENDING);
    st_store_close(copy);
    assert_int_equal(st_store_backup(s, path, NULL, NULL, &err), STINT_EINVAL); /* never overwrites */
    assert_true(err.remedy[0]);
    unlink(path);
}
