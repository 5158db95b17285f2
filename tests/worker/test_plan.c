/* SPDX-License-Identifier: Apache-2.0
 *
 * test_plan.c - which queues and types a worker asks for.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "claim/plan.h"

static struct st_queue_weight queues_ab[] = {{"a", 3}, {"b", 1}};
static struct st_type_conf types_two[] = {{.pattern = "mail"}, {.pattern = "img*"}};

static void settings_fill(struct st_settings *s)
{
    memset(s, 0, sizeof(*s));
    s->slots = 1;
    s->lease_us = 60 * ST_SEC;
    for (size_t i = 0; i < 2; i++)
        types_two[i].policy = st_policy_default;
    s->types = types_two;
    s->n_types = 2;
}

static void request(const struct st_settings *s, struct st_plan **p, struct st_claim_req *req)
{
    stint_error err;

    memset(req, 0, sizeof(*req));
    assert_int_equal(st_plan_new(s, NULL, 0, p, &err), STINT_OK);
    st_plan_request(*p, req);
}

static void a_list_is_asked_for_as_it_stands(void **state)
{
    struct st_claim_req req;
    struct st_settings s;
    struct st_plan *p;

    (void)state;
    settings_fill(&s);
    s.queues = queues_ab;
    s.n_queues = 2;
    request(&s, &p, &req);
    assert_int_equal(req.n_queues, 2);
    assert_true(st_slice_is(req.queues[0], "a") && st_slice_is(req.queues[1], "b"));
    assert_int_equal(req.n_types, 2);
    assert_string_equal(st_plan_queues_json(p), "[\"a\",\"b\"]");
    assert_string_equal(st_plan_types_json(p), "[\"mail\",\"img*\"]");
    st_plan_unref(p);
}

static void weights_decide_how_often_a_queue_comes_first(void **state)
{
    struct st_claim_req req;
    struct st_settings s;
    struct st_plan *p;
    int first = 0;

    (void)state;
    settings_fill(&s);
    s.queues = queues_ab;
    s.n_queues = 2;
    s.weighted = true;
    request(&s, &p, &req);
    for (int i = 0; i < 4000; i++) {
        st_plan_request(p, &req);
        assert_int_equal(req.n_queues, 2);
        assert_false(st_slice_eq(req.queues[0], req.queues[1]));
        first += st_slice_is(req.queues[0], "a");
    }
    assert_in_range(first, 2700, 3300); /* 3000 expected; ten standard deviations */
    st_plan_unref(p);
}

static void subs_come_by_priority_before_their_parent(void **state)
{
    struct st_queue_weight subs[] = {{"premium", 10}, {"standard", 3}};
    struct st_parent_conf parent = {.name = "ml", .type = "mail", .subs = subs, .n_subs = 2};
    struct st_claim_req req;
    struct st_settings s;
    struct st_plan *p;

    (void)state;
    settings_fill(&s);
    s.parents = &parent;
    s.n_parents = 1;
    request(&s, &p, &req);
    assert_int_equal(req.n_queues, 4);
    assert_true(st_slice_is(req.queues[0], "ml.premium") && st_slice_is(req.queues[1], "ml.standard") &&
                st_slice_is(req.queues[2], "ml") && st_slice_is(req.queues[3], ST_QUEUE_ANY));
    st_plan_unref(p);
}

static void a_parent_picks_the_handler_for_every_type_in_it(void **state)
{
    struct st_parent_conf parent = {.name = "ml", .type = "mail"};
    const struct st_type_rule *r;
    struct st_claim_req req;
    struct st_settings s;
    struct st_plan *p;

    (void)state;
    settings_fill(&s);
    types_two[0].policy.max_attempts = 9;
    s.parents = &parent;
    s.n_parents = 1;
    request(&s, &p, &req);
    r = st_rule_find(req.types, req.n_types, st_slice_cstr("ml.premium"), st_slice_cstr("whatever"));
    assert_non_null(r);
    assert_int_equal(r->policy.max_attempts, 9);
    assert_null(st_rule_find(req.types, req.n_types, st_slice_cstr("other"), st_slice_cstr("whatever")));
    assert_non_null(st_rule_find(req.types, req.n_types, st_slice_cstr("other"), st_slice_cstr("img.png")));
    st_plan_unref(p);
}

static void types_asked_for_narrow_what_is_configured(void **state)
{
    char *only[] = {"img.png", NULL};
    struct st_claim_req req;
    struct st_settings s;
    struct st_plan *p;
    stint_error err;

    (void)state;
    settings_fill(&s);
    s.only_types = only;
    request(&s, &p, &req);
    assert_int_equal(req.n_types, 1);
    assert_true(st_slice_is(req.types[0].pattern, "img.png"));
    st_plan_unref(p);
    only[0] = "unheard";
    assert_int_equal(st_plan_new(&s, NULL, 0, &p, &err), STINT_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_asked_for_as_it_stands),
        cmocka_unit_test(weights_decide_how_often_a_queue_comes_first),
        cmocka_unit_test(subs_come_by_priority_before_their_parent),
        cmocka_unit_test(a_parent_picks_the_handler_for_every_type_in_it),
        cmocka_unit_test(types_asked_for_narrow_what_is_configured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
