/* SPDX-License-Identifier: Apache-2.0
 *
 * test_state.c - every state with every event, against a table written down a second time.
 */
#include <string.h>

#include "job/state.h"
#include "unit.h"

/* Every legal change there is; all other pairs must be refused. */
static const struct {
    const char *from, *event, *to;
} legal[] = {
    {"blocked", "unblock", "pending"},   {"blocked", "cancel", "cancelled"}, {"pending", "claim", "claimed"},
    {"pending", "claim_run", "running"}, {"pending", "cancel", "cancelled"}, {"claimed", "start", "running"},
    {"claimed", "succeed", "succeeded"}, {"claimed", "retry", "pending"},    {"claimed", "fail", "failed"},
    {"claimed", "release", "pending"},   {"claimed", "cancel", "cancelled"}, {"claimed", "steal", "running"},
    {"running", "succeed", "succeeded"}, {"running", "retry", "pending"},    {"running", "fail", "failed"},
    {"running", "release", "pending"},   {"running", "cancel", "cancelled"}, {"running", "steal", "running"},
    {"failed", "revive", "pending"},     {"cancelled", "revive", "pending"},
};
#define LEGAL_N (sizeof(legal) / sizeof(legal[0]))

static const char *expected(const char *from, const char *event)
{
    for (size_t i = 0; i < LEGAL_N; i++)
        if (!strcmp(legal[i].from, from) && !strcmp(legal[i].event, event))
            return legal[i].to;
    return "refused";
}

static void every_event_in_every_state_does_what_the_table_says(void **state)
{
    size_t n_legal = 0;

    (void)state;
    for (int s = 0; s < ST_STATE_N; s++) {
        for (int e = 0; e < ST_EVENT_N; e++) {
            const char *want = expected(st_state_name((enum st_state)s), st_event_name((enum st_event)e));
            int got = st_state_next((enum st_state)s, (enum st_event)e);

            assert_string_equal(got < 0 ? "refused" : st_state_name((enum st_state)got), want);
            n_legal += got >= 0;
        }
    }
    assert_int_equal(n_legal, LEGAL_N); /* no line of the table names a state that is not there */
}

static void nothing_follows_a_success(void **state)
{
    (void)state;
    for (int e = 0; e < ST_EVENT_N; e++)
        assert_int_equal(st_state_next(ST_SUCCEEDED, (enum st_event)e), -1);
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    assert_int_equal(st_state_next(ST_STATE_N, ST_EV_CANCEL), -1);
    assert_int_equal(st_state_next((enum st_state) - 1, ST_EV_CANCEL), -1);
    assert_int_equal(st_state_next(ST_PENDING, ST_EVENT_N), -1);
    assert_string_equal(st_state_name(ST_STATE_N), "?");
    assert_string_equal(st_shown_name(ST_SHOWN_N), "?");
    assert_string_equal(st_kind_name(ST_KIND_N), "internal");
}

/* They are in people's databases. */
static void stored_numbers_never_change(void **state)
{
    (void)state;
    assert_int_equal(ST_BLOCKED, 0);
    assert_int_equal(ST_PENDING, 1);
    assert_int_equal(ST_CLAIMED, 2);
    assert_int_equal(ST_RUNNING, 3);
    assert_int_equal(ST_SUCCEEDED, 4);
    assert_int_equal(ST_FAILED, 5);
    assert_int_equal(ST_CANCELLED, 6);
    assert_int_equal(ST_KIND_APP_ERROR, 1);
    assert_int_equal(ST_KIND_LEASE_EXPIRED, 8);
    assert_int_equal(ST_KIND_INTERNAL, 16);
}

static void a_pending_job_is_shown_by_its_due_time_and_attempt(void **state)
{
    (void)state;
    assert_int_equal(st_state_shown(ST_PENDING, 100, 0, 100), ST_SHOW_PENDING);
    assert_int_equal(st_state_shown(ST_PENDING, 100, 2, 100), ST_SHOW_PENDING);
    assert_int_equal(st_state_shown(ST_PENDING, 101, 0, 100), ST_SHOW_SCHEDULED);
    assert_int_equal(st_state_shown(ST_PENDING, 101, 1, 100), ST_SHOW_RETRYING);
}

static void other_states_are_shown_by_their_own_name(void **state)
{
    (void)state;
    for (int s = 0; s < ST_STATE_N; s++) {
        const char *name = st_state_name((enum st_state)s);
        enum st_shown shown = st_state_shown((enum st_state)s, 200, 1, 100);

        if (s != ST_PENDING)
            assert_string_equal(st_shown_name(shown), name);
    }
}

static void names_shown_to_people_can_be_read_back(void **state)
{
    enum st_shown shown;

    (void)state;
    for (int i = 0; i < ST_SHOWN_N; i++) {
        assert_true(st_shown_parse(st_slice_cstr(st_shown_name((enum st_shown)i)), &shown));
        assert_int_equal(shown, i);
    }
    assert_false(st_shown_parse(st_slice_cstr("dead"), &shown));
    assert_false(st_shown_parse(st_slice_cstr("Pending"), &shown));
    assert_false(st_shown_parse(st_slice_cstr(""), &shown));
}

static void held_and_ended_are_disjoint(void **state)
{
    (void)state;
    for (int s = 0; s < ST_STATE_N; s++)
        assert_false(st_state_held((enum st_state)s) && st_state_ended((enum st_state)s));
    assert_true(st_state_held(ST_CLAIMED) && st_state_held(ST_RUNNING));
    assert_true(st_state_ended(ST_SUCCEEDED) && st_state_ended(ST_FAILED));
    assert_true(st_state_ended(ST_CANCELLED) && !st_state_ended(ST_PENDING));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_in_every_state_does_what_the_table_says),
        cmocka_unit_test(nothing_follows_a_success),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(stored_numbers_never_change),
        cmocka_unit_test(a_pending_job_is_shown_by_its_due_time_and_attempt),
        cmocka_unit_test(other_states_are_shown_by_their_own_name),
        cmocka_unit_test(names_shown_to_people_can_be_read_back),
        cmocka_unit_test(held_and_ended_are_disjoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
