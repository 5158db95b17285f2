/* SPDX-License-Identifier: Apache-2.0
 *
 * kit.h - what the tests of stint.h share: a store of their own, jobs, waiting for facts.
 *
 * They use the public interface; the store behind it only for what other workers would do.
 */
#ifndef TESTS_LIB_KIT_H
#define TESTS_LIB_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "stint.h"
#include "store/store.h"

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        stint_code ok_ = (call);                                                                                       \
        if (ok_ != STINT_OK)                                                                                           \
            print_error("%s: %s\n", #call, stint_code_name(ok_));                                                      \
        assert_int_equal(ok_, STINT_OK);                                                                               \
    } while (0)

/* Waits for a fact, at most 30 s. */
#define UNTIL(fact)                                                                                                    \
    do {                                                                                                               \
        for (int tries_ = 0; !(fact) && tries_ < 30000; tries_++)                                                      \
            usleep(1000);                                                                                              \
        assert_true(fact);                                                                                             \
    } while (0)

struct kit {
    char dir[64], url[96];
    stint *st;              /* the test's own */
    struct st_store *store; /* the same, as another worker would use it */
};

static inline void kit_open(struct kit *k)
{
    stint_error err = {0};

    memset(k, 0, sizeof(*k));
    snprintf(k->dir, sizeof(k->dir), "/tmp/stint-lib-XXXXXX");
    assert_non_null(mkdtemp(k->dir));
    snprintf(k->url, sizeof(k->url), "sqlite:%s/stint.db?sync=normal", k->dir);
    OK(stint_open(k->url, 0, &k->st, &err));
    OK(st_store_open(k->url, &(struct st_store_open){.timeout_ms = 5000}, &k->store, &err));
}

static inline int kit_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static inline void kit_close(struct kit *k)
{
    stint_close(k->st);
    st_store_close(k->store);
    nftw(k->dir, kit_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Adds a job; its id lies in out. */
static inline void kit_add(struct kit *k, const char *type, const char *payload, stint_enqueued *out)
{
    stint_job job = STINT_JOB_INIT;

    job.type = type;
    job.payload = payload;
    job.payload_len = strlen(payload);
    OK(stint_enqueue(k->st, &job, 1, out, NULL));
}

static inline void kit_add_many(struct kit *k, const char *type, int n)
{
    stint_enqueued out;

    for (int i = 0; i < n; i++)
        kit_add(k, type, "{}", &out);
}

/* A member of the job's JSON as its text, in a buffer of the caller's. */
static inline const char *kit_member(struct kit *k, const char *id, const char *key, char out[1024])
{
    struct st_slice v;
    char *json;

    OK(stint_get(k->st, id, &json, NULL));
    v = st_json_member(st_slice_cstr(json), key);
    snprintf(out, 1024, "%.*s", (int)v.len, v.p ? v.p : "");
    stint_free(json);
    return out;
}

static inline bool kit_is(struct kit *k, const char *id, const char *key, const char *text)
{
    char got[1024];

    return strcmp(kit_member(k, id, key, got), text) == 0;
}

#define CHECK_MEMBER(k, id, key, text)                                                                                 \
    do {                                                                                                               \
        char got_[1024];                                                                                               \
        assert_string_equal(kit_member((k), (id), (key), got_), (text));                                               \
    } while (0)

/* Waits until it has ended, and says how. */
static inline const char *kit_wait(struct kit *k, const char *id)
{
    const char *state = NULL;

    OK(stint_wait(k->st, id, 30000, &state, NULL));
    return state;
}

static inline stint_worker *kit_worker(struct kit *k, const stint_worker_options *opt)
{
    stint_worker *w = NULL;
    stint_error err = {0};

    if (stint_worker_new(k->url, opt, &w, &err) != STINT_OK)
        fail_msg("%s", err.message);
    return w;
}

static inline void kit_handle(stint_worker *w, const char *type, stint_handler_fn fn, void *arg)
{
    OK(stint_worker_handle(w, type, fn, arg, NULL, NULL));
}

static inline void kit_stop(stint_worker *w)
{
    stint_error err = {0};

    stint_worker_stop(w);
    if (stint_worker_join(w, &err) != STINT_OK)
        fail_msg("%s", err.message);
}

/* ---- what another worker does ------------------------------------------------------------ */

/* Takes the job once its lease is over in the store's eyes. */
static inline struct st_job *kit_steal(struct kit *k, const char *id)
{
    struct st_claim_req req = {.worker = st_slice_cstr("thief"), .lease_us = ST_HOUR};
    struct st_job *stolen = NULL;
    enum st_refusal why;

    req.now_us = st_store_now(k->store) + ST_HOUR;
    OK(st_store_acquire(k->store, st_slice_cstr(id), &req, &stolen, &why, NULL));
    return stolen;
}

static inline void kit_finish(struct kit *k, const struct st_job *job)
{
    struct st_finish f = {.id = st_slice_cstr(job->id),
                          .fence = job->fence,
                          .outcome = ST_OUT_SUCCEEDED,
                          .exit_code = -1,
                          .started_ago_us = -1};

    OK(st_store_finish(k->store, 0, &f, 1, NULL));
    assert_int_equal(f.verdict, STINT_OK);
}

static inline void kit_discard(struct kit *k, const char *id)
{
    struct st_slice ids = st_slice_cstr(id);
    struct st_pruned out;
    stint_code verdict;

    OK(st_store_discard(k->store, &ids, 1, &verdict, &out, NULL));
    assert_int_equal(verdict, STINT_OK);
    st_pruned_clear(&out);
}

#endif
