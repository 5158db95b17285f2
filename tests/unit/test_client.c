/* SPDX-License-Identifier: Apache-2.0
 *
 * test_client.c - the public interface, on a store file of its own.
 */
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "stint.h"
#include "unit.h"

static char dir[64];
static char url[96];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/stint-client.XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(url, sizeof(url), "sqlite:%s/s.db", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static stint *open_store(void)
{
    stint_error err = {0};
    stint *st;

    if (stint_open(url, 0, &st, &err) != STINT_OK)
        fail_msg("%s", err.message);
    return st;
}

static stint_job mail(void)
{
    stint_job job = STINT_JOB_INIT;

    job.type = "mail";
    job.payload = "{\"n\" : 1.10}";
    job.payload_len = strlen(job.payload);
    return job;
}

/* The text of a string member of the job; checks that the whole is JSON. */
static void check_member(stint *st, const char *id, const char *member, const char *want)
{
    struct st_slice v;
    char *json;

    assert_int_equal(stint_get(st, id, &json, NULL), STINT_OK);
    assert_true(st_json_ok(st_slice_cstr(json)));
    v = st_json_member(st_slice_cstr(json), member);
    assert_slice_equal(v, want);
    stint_free(json);
}

static void a_job_comes_back_as_it_went_in(void **state)
{
    stint *st = open_store();
    stint_enqueued out;
    stint_job job = mail();

    (void)state;
    job.queue = "post.slow";
    job.priority = 9;
    job.meta = "{\"by\":\"me\"}";
    job.timeout_ms = 1500;
    job.max_attempts = 7;
    assert_int_equal(stint_enqueue(st, &job, 1, &out, NULL), STINT_OK);
    assert_int_equal(out.duplicate, 0);
    check_member(st, out.id, "payload", "{\"n\" : 1.10}");
    check_member(st, out.id, "queue", "\"post.slow\"");
    check_member(st, out.id, "priority", "9");
    check_member(st, out.id, "meta", "{\"by\":\"me\"}");
    check_member(st, out.id, "timeout", "\"1s500ms\"");
    check_member(st, out.id, "max_attempts", "7");
    check_member(st, out.id, "state", "\"pending\"");
    stint_close(st);
}

static void a_delayed_job_is_scheduled(void **state)
{
    stint *st = open_store();
    stint_enqueued out[2];
    stint_job jobs[2] = {mail(), mail()};

    (void)state;
    jobs[0].delay_ms = 3600000;
    jobs[1].at_us = (int64_t)4102444800 * 1000000;
    assert_int_equal(stint_enqueue(st, jobs, 2, out, NULL), STINT_OK);
    check_member(st, out[0].id, "state", "\"scheduled\"");
    check_member(st, out[1].id, "state", "\"scheduled\"");
    check_member(st, out[1].id, "run_at", "\"2100-01-01T00:00:00.000000Z\"");
    stint_close(st);
}

static void repeating_an_id_enqueues_nothing_new(void **state)
{
    stint *st = open_store();
    stint_enqueued out;
    stint_error err;
    stint_job job = mail();

    (void)state;
    job.id = "same";
    assert_int_equal(stint_enqueue(st, &job, 1, &out, NULL), STINT_OK);
    assert_int_equal(stint_enqueue(st, &job, 1, &out, NULL), STINT_OK);
    assert_string_equal(out.id, "same");
    job.type = "other";
    assert_int_equal(stint_enqueue(st, &job, 1, &out, &err), STINT_EEXISTS);
    stint_close(st);
}

static void a_unique_job_is_added_once(void **state)
{
    stint *st = open_store();
    stint_enqueued one, two;
    stint_job job = mail();

    (void)state;
    job.type = "once";
    job.unique = "10m";
    assert_int_equal(stint_enqueue(st, &job, 1, &one, NULL), STINT_OK);
    job.payload = " {\"n\":1.1} "; /* the same work, written otherwise */
    job.payload_len = strlen(job.payload);
    assert_int_equal(stint_enqueue(st, &job, 1, &two, NULL), STINT_OK);
    assert_int_equal(one.duplicate, 0);
    assert_int_equal(two.duplicate, 1);
    assert_string_equal(one.id, two.id);
    stint_close(st);
}

static void one_bad_job_keeps_all_out(void **state)
{
    stint *st = open_store();
    stint_enqueued out[2];
    stint_error err;
    stint_job jobs[2] = {mail(), mail()};
    char *json;

    (void)state;
    jobs[0].id = "good";
    jobs[1].queue = "no good";
    assert_int_equal(stint_enqueue(st, jobs, 2, out, &err), STINT_EINVAL);
    assert_non_null(strstr(err.message, "job 2 of 2: queue name"));
    assert_int_equal(stint_get(st, "good", &json, NULL), STINT_ENOTFOUND);
    assert_null(json);
    stint_close(st);
}

static void requests_that_make_no_sense_are_refused(void **state)
{
    stint *st = open_store();
    stint_job job = mail();
    const char *end;
    char *json;

    (void)state;
    job.type = NULL;
    assert_int_equal(stint_enqueue(st, &job, 1, NULL, NULL), STINT_EINVAL);
    job = mail();
    job.payload = NULL;
    assert_int_equal(stint_enqueue(st, &job, 1, NULL, NULL), STINT_EINVAL);
    job = mail();
    job.delay_ms = INT64_MAX;
    assert_int_equal(stint_enqueue(st, &job, 1, NULL, NULL), STINT_EINVAL);
    job = mail();
    job.timeout_ms = -2;
    assert_int_equal(stint_enqueue(st, &job, 1, NULL, NULL), STINT_EINVAL);
    job = mail();
    job.unique = "sometimes";
    assert_int_equal(stint_enqueue(st, &job, 1, NULL, NULL), STINT_EINVAL);
    assert_int_equal(stint_enqueue(st, NULL, 0, NULL, NULL), STINT_OK);
    assert_int_equal(stint_get(st, NULL, &json, NULL), STINT_EINVAL);
    assert_int_equal(stint_get(st, "", &json, NULL), STINT_EINVAL);
    assert_int_equal(stint_wait(st, "nobody", 0, &end, NULL), STINT_ENOTFOUND);
    assert_int_equal(stint_cancel(st, "nobody", NULL), STINT_ENOTFOUND);
    assert_int_equal(stint_cancel(st, NULL, NULL), STINT_EINVAL);
    stint_close(st);
    stint_close(NULL);
    assert_int_equal(stint_open(url, -1, &st, NULL), STINT_EINVAL);
    assert_null(st);
}

static void a_cancelled_job_has_ended_and_cannot_be_cancelled_again(void **state)
{
    stint *st = open_store();
    stint_enqueued out;
    stint_job job = mail();
    const char *end;

    (void)state;
    assert_int_equal(stint_enqueue(st, &job, 1, &out, NULL), STINT_OK);
    assert_int_equal(stint_wait(st, out.id, 0, &end, NULL), STINT_ETIMEOUT);
    assert_null(end);
    assert_int_equal(stint_cancel(st, out.id, NULL), STINT_OK);
    assert_int_equal(stint_wait(st, out.id, 0, &end, NULL), STINT_OK);
    assert_string_equal(end, "cancelled");
    assert_int_equal(stint_cancel(st, out.id, NULL), STINT_ESTATE);
    stint_close(st);
}

static void *cancel_it(void *id)
{
    stint *st = open_store();

    assert_int_equal(stint_cancel(st, id, NULL), STINT_OK);
    stint_close(st);
    return NULL;
}

/* Whichever comes first, the wait or the cancel, the wait ends. */
static void waiting_ends_when_somebody_else_ends_the_job(void **state)
{
    stint *st = open_store();
    stint_enqueued out;
    stint_job job = mail();
    const char *end;
    pthread_t other;

    (void)state;
    assert_int_equal(stint_enqueue(st, &job, 1, &out, NULL), STINT_OK);
    assert_int_equal(pthread_create(&other, NULL, cancel_it, out.id), 0);
    assert_int_equal(stint_wait(st, out.id, -1, &end, NULL), STINT_OK);
    assert_string_equal(end, "cancelled");
    pthread_join(other, NULL);
    stint_close(st);
}

static void without_a_url_the_environment_names_the_store(void **state)
{
    stint *named = open_store(), *st;
    stint_enqueued out;
    stint_job job = mail();

    (void)state;
    assert_int_equal(stint_enqueue(named, &job, 1, &out, NULL), STINT_OK);
    setenv("DATABASE_URL", "sqlite:/nowhere/at/all.db", 1);
    setenv("STINT_STORE", url, 1);
    assert_int_equal(stint_open(NULL, 0, &st, NULL), STINT_OK);
    check_member(st, out.id, "type", "\"mail\"");
    stint_close(st);
    setenv("STINT_STORE", "", 1);                                   /* empty is not set */
    assert_int_equal(stint_open(NULL, 0, &st, NULL), STINT_EAGAIN); /* its directory may come yet */
    unsetenv("STINT_STORE");
    unsetenv("DATABASE_URL");
    stint_close(named);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_comes_back_as_it_went_in),
        cmocka_unit_test(a_delayed_job_is_scheduled),
        cmocka_unit_test(repeating_an_id_enqueues_nothing_new),
        cmocka_unit_test(a_unique_job_is_added_once),
        cmocka_unit_test(one_bad_job_keeps_all_out),
        cmocka_unit_test(requests_that_make_no_sense_are_refused),
        cmocka_unit_test(a_cancelled_job_has_ended_and_cannot_be_cancelled_again),
        cmocka_unit_test(waiting_ends_when_somebody_else_ends_the_job),
        cmocka_unit_test(without_a_url_the_environment_names_the_store),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
