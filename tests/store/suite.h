/* SPDX-License-Identifier: Apache-2.0
 *
 * suite.h - the conformance suite's own tools.
 *
 * A case is written once, against store.h alone, and runs on every backend of the table in suite.c,
 * each time on a fresh store.  Clocks are arguments: T0 is now, T0 + 5 * SEC is five seconds later,
 * nothing sleeps.
 */
#ifndef ST_TESTS_STORE_SUITE_H
#define ST_TESTS_STORE_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

#define SEC     ST_SEC
#define T0      ((int64_t)1700000000 * ST_SEC)
#define S(text) st_slice_cstr(text)

struct t;

/* A kind of store: where a fresh one may live, and how it is cleaned up. */
struct backend {
    const char *name;
    const char *needs;
    void (*fresh)(struct t *t);
    void (*drop)(struct t *t);
};

struct t {
    const struct backend *backend;
    const char *name; /* of the case */
    char url[512];
    char dir[256];
    struct st_store *stores[32];
    size_t n_stores;
    char (*ids)[ST_ID_MAX + 1];
    size_t n_ids;
};

struct test_case {
    const char *name;
    void (*run)(struct t *t);
    struct test_case *next;
};
void test_register(struct test_case *c);

/* Defines a case and makes it known. */
#define TEST(id)                                                                                                       \
    static void id(struct t *t);                                                                                       \
    __attribute__((constructor)) static void register_##id(void)                                                       \
    {                                                                                                                  \
        static struct test_case c = {#id, id, NULL};                                                                   \
        test_register(&c);                                                                                             \
    }                                                                                                                  \
    static void id(struct t *t)

#define OK(call) assert_int_equal((call), STINT_OK)

/* Another handle on this case's store; closed at its end. */
struct st_store *test_store(struct t *t);
void test_close(struct t *t, struct st_store *s); /* earlier than that */

/* Goes on only if the store has the capability; else says what was left out, and leaves. */
#define NEEDS(t, s, cap)                                                                                               \
    do {                                                                                                               \
        if (!((s)->ops->caps & (cap))) {                                                                               \
            test_gated((t), (cap));                                                                                    \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
void test_gated(struct t *t, unsigned cap);
/* The priority to give where it does not matter which: none on a store without them. */
int test_priority(struct st_store *s, int priority);

/* ---- jobs ------------------------------------------------------------------------------- */

/* A new id that lives as long as the case. */
const char *test_id(struct t *t);
/* A job of this type in queue "default" with payload {}; change it as needed. */
struct st_new_job test_job(struct t *t, const char *type);
/* Enqueues it; its id, or the holder's. */
const char *test_add(struct t *t, struct st_store *s, int64_t now, struct st_new_job j);
/* The short form, at T0. */
const char *test_enqueue(struct t *t, struct st_store *s, const char *type);

struct st_claim_req test_req(int64_t now, const char *worker, size_t n);
/* Exactly one job, running; NULL if there is none. */
struct st_job *test_claim(struct t *t, struct st_store *s, int64_t now, int64_t lease);
struct st_job *test_claim_as(struct t *t, struct st_store *s, int64_t now, int64_t lease, const char *worker);
/* The same, prefetched: claimed, not started. */
struct st_job *test_prefetch(struct t *t, struct st_store *s, int64_t now, int64_t lease);
/* How many a request gives; they are freed. */
size_t test_claim_count(struct st_store *s, const struct st_claim_req *req);

struct st_finish test_fin(const struct st_job *job, enum st_outcome outcome);
/* Writes one outcome and gives the verdict. */
stint_code test_finish(struct st_store *s, int64_t now, const struct st_job *job, enum st_outcome o);
stint_code test_finish_item(struct st_store *s, int64_t now, struct st_finish *f);

/* ---- looking ---------------------------------------------------------------------------- */

struct st_job_info test_get(struct st_store *s, int64_t now, const char *id);
enum st_shown test_shown(struct st_store *s, int64_t now, const char *id);
int64_t test_count(struct st_store *s, int64_t now, const char *queue, enum st_shown shown);
stint_code test_cancel(struct st_store *s, int64_t now, const char *id, bool *asked);
stint_code test_retry(struct st_store *s, int64_t now, const char *id);
size_t test_reap(struct st_store *s, int64_t now, const char *me, struct st_reaped *out, size_t max);

/* ---- other processes -------------------------------------------------------------------- */

/* Before the first test_store of the case: a handle does not survive a fork.
 * Runs fn in a new process with a handle of its own; its return is the exit code.  No asserts in
 * there. */
int test_fork(struct t *t, int (*fn)(struct st_store *s, void *arg), void *arg);
int test_join(int pid); /* the exit code; -1 = it did not end by itself */

#endif
