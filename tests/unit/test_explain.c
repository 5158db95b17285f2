/* SPDX-License-Identifier: Apache-2.0
 *
 * test_explain.c - why a job is not running: every reason, from facts made up here.
 */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "cli/explain.h"
#include "worker/down.h"

#define NOW (1800000000 * ST_SEC)

/* A pending, due job of queue mail.fast, and two live workers with free slots that serve it. */
struct scene {
    struct st_job_info job;
    struct st_queue_info queues[2];
    struct st_worker_info workers[2];
    struct st_settings settings;
    struct cli_facts f;
    struct cli_reason reasons[CLI_REASONS_MAX];
    size_t n;
};

static void scene_init(struct scene *s)
{
    memset(s, 0, sizeof(*s));
    s->job = (struct st_job_info){.id = "j",
                                  .type = "send",
                                  .queue = "mail.fast",
                                  .state = ST_PENDING,
                                  .max_attempts = 3,
                                  .due_us = NOW - ST_SEC};
    strcpy(s->queues[0].name, "mail");
    strcpy(s->queues[1].name, "mail.fast");
    for (int i = 0; i < 2; i++) {
        struct st_worker_info *w = &s->workers[i];

        snprintf(w->id, sizeof(w->id), "w%d", i);
        strcpy(w->queues, i ? "[]" : "[\"other\",\"mail\"]");
        strcpy(w->types, i ? "[\"send\"]" : "[\"s*\"]");
        w->healthy = true;
        w->slots = 2;
        w->running = 1;
        w->last_beat_us = NOW - ST_SEC;
    }
    s->f = (struct cli_facts){.now_us = NOW,
                              .job = &s->job,
                              .queues = s->queues,
                              .n_queues = 2,
                              .workers = s->workers,
                              .n_workers = 2,
                              .settings = &s->settings};
}

/* The codes of all reasons, with commas. */
static const char *codes(struct scene *s)
{
    static char out[256];

    s->n = cli_explain(&s->f, s->reasons);
    out[0] = '\0';
    for (size_t i = 0; i < s->n; i++) {
        strcat(out, i ? "," : "");
        strcat(out, s->reasons[i].code);
    }
    return out;
}

static void both_workers(struct scene *s, void (*set)(struct st_worker_info *))
{
    set(&s->workers[0]);
    set(&s->workers[1]);
}

static void a_job_that_nothing_keeps_runs_soon(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    assert_string_equal(codes(&s), "soon");
    assert_non_null(strstr(s.reasons[0].text, "a free slot (2 of 2)"));
}

static void silence(struct st_worker_info *w)
{
    w->last_beat_us = NOW - CLI_LIVE_US;
}

static void a_worker_is_live_until_it_was_silent_for_thirty_seconds(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    both_workers(&s, silence);
    assert_string_equal(codes(&s), "no_worker");
    assert_non_null(strstr(s.reasons[0].text, "2 known"));
    s.workers[1].last_beat_us++;
    assert_string_equal(codes(&s), "soon");
    s.f.n_workers = 0;
    assert_string_equal(codes(&s), "no_worker");
    assert_non_null(strstr(s.reasons[0].text, "no worker serves this store"));
}

static void other_queue(struct st_worker_info *w)
{
    strcpy(w->queues, "[\"mailbox\",\"mail.slow\"]");
}

static void other_type(struct st_worker_info *w)
{
    strcpy(w->types, "[\"sen\",\"send.*\"]");
}

static void workers_must_serve_the_queue_and_the_type(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    both_workers(&s, other_queue);
    assert_string_equal(codes(&s), "no_worker_for_queue");
    scene_init(&s);
    both_workers(&s, other_type);
    assert_string_equal(codes(&s), "no_worker_for_type");
    strcpy(s.workers[1].types, "not JSON"); /* proves nothing against it */
    assert_string_equal(codes(&s), "soon");
    strcpy(s.workers[1].types, "[\"*\"]");
    assert_string_equal(codes(&s), "soon");
}

static void a_parent_queue_that_picks_the_handler_makes_the_type_irrelevant(void **state)
{
    struct st_parent_conf parent = {.name = "mail", .type = "any"};
    struct scene s;

    (void)state;
    scene_init(&s);
    both_workers(&s, other_type);
    s.settings.parents = &parent;
    s.settings.n_parents = 1;
    assert_string_equal(codes(&s), "soon");
}

static void sicken(struct st_worker_info *w)
{
    w->healthy = false;
    strcpy(w->note, "the disk is full");
}

static void quieten(struct st_worker_info *w)
{
    w->quiet = true;
}

static void fill(struct st_worker_info *w)
{
    w->running = w->slots;
}

static void workers_must_be_healthy_awake_and_have_a_free_slot(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    both_workers(&s, sicken);
    assert_string_equal(codes(&s), "workers_unhealthy");
    assert_non_null(strstr(s.reasons[0].text, "the disk is full"));
    assert_string_equal(s.reasons[0].remedy, "");
    scene_init(&s);
    both_workers(&s, quieten);
    assert_string_equal(codes(&s), "workers_quiet");
    scene_init(&s);
    both_workers(&s, fill);
    assert_string_equal(codes(&s), "workers_busy");
    s.workers[0].running = 0;
    assert_string_equal(codes(&s), "soon");
}

static void a_worker_is_unwell_only_for_the_types_it_names(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    both_workers(&s, sicken);
    s.workers[1].pid = 7;
    strcpy(s.workers[1].host, "box");
    strcpy(s.workers[1].note, "cannot run send - 5 crashes in 10m; last: exit status 3");
    assert_string_equal(codes(&s), "workers_unhealthy");
    assert_non_null(strstr(s.reasons[0].text, "w1 says: cannot run send - 5 crashes"));
    assert_string_equal(s.reasons[0].remedy, "when the cause is mended, `kill -HUP 7` on box has it try again at once");
    strcpy(s.workers[1].note, "cannot run sender, sen, other - sender: send");
    assert_string_equal(codes(&s), "soon");
    strcpy(s.workers[1].note, "cannot run sender, send, other - sender: killed");
    assert_string_equal(codes(&s), "workers_unhealthy");
    strcpy(s.workers[1].note, "cannot run sender, ... - sender: killed"); /* it may be one of these */
    assert_string_equal(codes(&s), "workers_unhealthy");
    /* what is served by its own name is not what a pattern is about */
    strcpy(s.workers[1].note, "cannot run s* - killed");
    assert_string_equal(codes(&s), "soon");
    strcpy(s.workers[1].types, "[\"x\",\"s*\"]");
    assert_string_equal(codes(&s), "workers_unhealthy");
}

static void the_note_names_as_many_types_as_fit(void **state)
{
    struct st_down two[] = {{"a", "5 crashes"}, {"b.*", "quarantined"}}, many[100];
    char note[240], names[100][8];

    (void)state;
    st_down_write(two, 1, note, sizeof(note));
    assert_string_equal(note, "cannot run a - 5 crashes");
    st_down_write(two, 2, note, sizeof(note));
    assert_string_equal(note, "cannot run a, b.* - a: 5 crashes; b.*: quarantined");
    assert_int_equal(st_down_match(note, st_slice_cstr("b.c")), 3);
    assert_int_equal(st_down_match(note, st_slice_cstr("c")), 0);
    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof(names[i]), "t%d", i);
        many[i] = (struct st_down){names[i], "a reason that is rather long"};
    }
    st_down_write(many, 100, note, sizeof(note));
    assert_int_equal(strlen(note), sizeof(note) - 1);
    assert_non_null(strstr(note, ", ... - t0: a reason that is rather long; t1: "));
    assert_int_equal(st_down_match(note, st_slice_cstr("t99")), INT32_MAX);
}

static void what_keeps_the_job_itself_is_told_with_all_the_rest(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    s.job.due_us = NOW + ST_HOUR;
    assert_string_equal(codes(&s), "not_due");
    s.job.error_kind = ST_KIND_NO_HANDLER; /* a worker without its type had it, and put it off */
    s.job.error_message = "no handler for the type mail on worker w1";
    assert_string_equal(codes(&s), "retrying");
    assert_non_null(strstr(s.reasons[0].text, "no handler for the type mail on worker w1"));
    s.job.attempt = 1;
    s.job.error_kind = ST_KIND_EXIT;
    s.job.error_message = "exit status 1";
    assert_string_equal(codes(&s), "retrying");
    assert_non_null(strstr(s.reasons[0].text, "exit: exit status 1"));
    s.queues[0].paused = s.queues[1].paused = true;
    s.f.n_workers = 0;
    assert_string_equal(codes(&s), "retrying,queue_paused,queue_paused,no_worker");
    assert_string_equal(s.reasons[1].remedy, "`stint queue resume mail`");
}

static void a_used_up_budget_and_a_blocked_job_are_told(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    s.job.attempt = 3;
    assert_string_equal(codes(&s), "exhausted");
    s.job.max_attempts = 0;
    assert_string_equal(codes(&s), "soon");
    s.job.state = ST_BLOCKED;
    s.job.cancel_requested = true;
    assert_string_equal(codes(&s), "blocked,cancel_requested");
}

static void a_held_job_names_its_worker_and_its_lease(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    s.job.worker = "w7";
    s.job.state = ST_CLAIMED;
    s.job.lease_until_us = NOW + ST_MIN;
    assert_string_equal(codes(&s), "claimed");
    s.job.state = ST_RUNNING;
    s.job.cancel_requested = true;
    assert_string_equal(codes(&s), "running,cancel_requested");
    assert_non_null(strstr(s.reasons[0].text, "held by worker w7 until"));
    s.job.cancel_requested = false;
    s.job.lease_until_us = NOW;
    assert_string_equal(codes(&s), "lease_expired");
    assert_non_null(strstr(s.reasons[0].text, "a live worker will take"));
    s.f.n_workers = 0;
    assert_string_equal(codes(&s), "lease_expired");
    assert_non_null(strstr(s.reasons[0].text, "no live worker"));
}

static void an_ended_job_says_how_it_ended_and_nothing_else(void **state)
{
    struct scene s;

    (void)state;
    scene_init(&s);
    s.f.n_workers = 0;
    s.job.finished_us = NOW - ST_SEC;
    s.job.state = ST_SUCCEEDED;
    assert_string_equal(codes(&s), "succeeded");
    s.job.state = ST_CANCELLED;
    assert_string_equal(codes(&s), "cancelled");
    s.job.state = ST_FAILED;
    assert_string_equal(codes(&s), "failed");
    assert_non_null(strstr(s.reasons[0].text, "for good"));
    s.job.attempt = 3;
    assert_string_equal(codes(&s), "failed");
    assert_non_null(strstr(s.reasons[0].text, "3 of 3 attempts"));
}

static void an_announced_job_says_when_it_is_claimed_without_a_message(void **state)
{
    char *queues[] = {"mail", NULL}, url[] = "redis://x";
    struct scene s;

    (void)state;
    scene_init(&s);
    s.settings.intake = (struct st_intake_conf){.rq = url, .queues = queues, .grace_us = 30 * ST_SEC};
    assert_string_equal(codes(&s), "announced");
    assert_non_null(strstr(s.reasons[0].text, "in 29s"));
    s.job.due_us = NOW + ST_SEC;
    assert_string_equal(codes(&s), "not_due,announced");
    s.job.due_us = NOW - 30 * ST_SEC;
    assert_string_equal(codes(&s), "soon");
    queues[0] = "other";
    s.job.due_us = NOW;
    assert_string_equal(codes(&s), "soon");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_that_nothing_keeps_runs_soon),
        cmocka_unit_test(a_worker_is_live_until_it_was_silent_for_thirty_seconds),
        cmocka_unit_test(workers_must_serve_the_queue_and_the_type),
        cmocka_unit_test(a_parent_queue_that_picks_the_handler_makes_the_type_irrelevant),
        cmocka_unit_test(workers_must_be_healthy_awake_and_have_a_free_slot),
        cmocka_unit_test(a_worker_is_unwell_only_for_the_types_it_names),
        cmocka_unit_test(the_note_names_as_many_types_as_fit),
        cmocka_unit_test(what_keeps_the_job_itself_is_told_with_all_the_rest),
        cmocka_unit_test(a_used_up_budget_and_a_blocked_job_are_told),
        cmocka_unit_test(an_announced_job_says_when_it_is_claimed_without_a_message),
        cmocka_unit_test(a_held_job_names_its_worker_and_its_lease),
        cmocka_unit_test(an_ended_job_says_how_it_ended_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
