/* SPDX-License-Identifier: Apache-2.0
 *
 * suite.c - runs every case on every backend.
 *
 * A new store is done when it has a line in `backends` and this program passes.  What a store
 * cannot do is left out by its capability bits, and named at the end.
 */
#include "suite.h"

#include <errno.h>
#include <libpq-fe.h>
#include <sys/wait.h>
#include <unistd.h>

#include "redis_kit.h"

static struct test_case *cases;
static size_t n_cases;

void test_register(struct test_case *c)
{
    c->next = cases;
    cases = c;
    n_cases++;
}

/* ---- backends --------------------------------------------------------------------------- */

static void sqlite_fresh(struct t *t)
{
    const char *tmp = getenv("TMPDIR");

    if (!tmp) /* in memory where there is such a place: thousands of commits wait for the disk
                 otherwise */
        tmp = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(t->dir, sizeof(t->dir), "%s/stint-suite-XXXXXX", tmp);
    assert_non_null(mkdtemp(t->dir));
    snprintf(t->url, sizeof(t->url), "sqlite:%s/stint.db", t->dir);
}

static void sqlite_drop(struct t *t)
{
    static const char *const files[] = {"stint.db", "stint.db-wal", "stint.db-shm", "copy.db"};
    char path[512];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", t->dir, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(t->dir), 0); /* a store leaves nothing else behind */
}

/* A schema of its own in the database that STINT_TEST_PG names; scripts/pg-test sets it. */
static void postgres_fresh(struct t *t)
{
    const char *url = getenv("STINT_TEST_PG");
    unsigned random[2];
    int n;

    st_random(random, sizeof(random));
    snprintf(t->dir, sizeof(t->dir), "t_%08x%08x", random[0], random[1]);
    n = snprintf(t->url, sizeof(t->url), "%s%cschema=%s", url, strchr(url, '?') ? '&' : '?', t->dir);
    assert_true(n > 0 && (size_t)n < sizeof(t->url));
}

/* libpq does not know our own parameters, which come last. */
static PGconn *postgres_connect(void)
{
    char url[512];
    char *ours;

    snprintf(url, sizeof(url), "%s", getenv("STINT_TEST_PG"));
    ours = strstr(url, "&listen=");
    if (ours)
        *ours = '\0';
    return PQconnectdb(url);
}

static void postgres_drop(struct t *t)
{
    PGconn *c = postgres_connect();
    PGresult *r;
    char sql[2048];

    snprintf(sql, sizeof(sql),
             "SET client_min_messages = error; DROP SCHEMA IF EXISTS %s CASCADE;"
             " DROP ROLE IF EXISTS %s_enqueue, %s_worker, %s_read",
             t->dir, t->dir, t->dir, t->dir);
    r = PQexec(c, sql);
    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        print_message("drop %s: %s", t->dir, PQerrorMessage(c));
    assert_int_equal(PQresultStatus(r), PGRES_COMMAND_OK);
    PQclear(r);
    PQfinish(c);
}

/* The server that STINT_TEST_REDIS names, emptied; scripts/redis-test sets it. */
static void redis_fresh(struct t *t)
{
    snprintf(t->dir, sizeof(t->dir), "%s",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"); /* for a backup nobody makes */
    snprintf(t->url, sizeof(t->url), "%s", getenv("STINT_TEST_REDIS"));
    redis_empty(t->url);
}

static void redis_drop(struct t *t)
{
    redis_empty(t->url);
}

/* needs: the variable of the environment without which it is left out. */
static const struct backend backends[] = {
    {"sqlite", NULL, sqlite_fresh, sqlite_drop},
    {"postgres", "STINT_TEST_PG", postgres_fresh, postgres_drop},
    {"redis", "STINT_TEST_REDIS", redis_fresh, redis_drop},
};
#define BACKENDS (sizeof(backends) / sizeof(backends[0]))

/* STINT_TEST_STORE names the only one to run. */
static bool chosen(const struct backend *b)
{
    const char *only = getenv("STINT_TEST_STORE");

    return (!b->needs || getenv(b->needs)) && (!only || !*only || strcmp(only, b->name) == 0);
}

/* ---- what was left out ------------------------------------------------------------------ */

static char gated[4096];

void test_gated(struct t *t, unsigned cap)
{
    const size_t len = strlen(gated);

    snprintf(gated + len, sizeof(gated) - len, "  %s lacks %s: %s\n", t->backend->name, st_cap_name(cap), t->name);
}

int test_priority(struct st_store *s, int priority)
{
    return s->ops->caps & ST_CAP_PRIORITY ? priority : 0;
}

/* ---- handles ---------------------------------------------------------------------------- */

struct st_store *test_store(struct t *t)
{
    struct st_store_open opt = {.timeout_ms = 30000}; /* a loaded machine is not a failure */
    struct st_store *s;
    stint_error err = {0};

    if (st_store_open(t->url, &opt, &s, &err))
        fail_msg("cannot open %s: %s", t->url, err.message);
    assert_true(t->n_stores < sizeof(t->stores) / sizeof(t->stores[0]));
    t->stores[t->n_stores++] = s;
    return s;
}

void test_close(struct t *t, struct st_store *s)
{
    for (size_t i = 0; i < t->n_stores; i++)
        if (t->stores[i] == s)
            t->stores[i] = NULL;
    st_store_close(s);
}

/* ---- jobs ------------------------------------------------------------------------------- */

#define IDS_MAX 40000

const char *test_id(struct t *t)
{
    assert_true(t->n_ids < IDS_MAX);
    st_id_new(t->ids[t->n_ids]);
    return t->ids[t->n_ids++];
}

struct st_new_job test_job(struct t *t, const char *type)
{
    return (struct st_new_job){.id = S(test_id(t)),
                               .type = S(type),
                               .queue = S("default"),
                               .payload = S("{}"),
                               .max_attempts = -1,
                               .timeout_us = -1};
}

const char *test_add(struct t *t, struct st_store *s, int64_t now, struct st_new_job j)
{
    struct st_enqueued out;
    stint_error err = {0};

    if (st_store_enqueue(s, now, &j, 1, &out, &err))
        fail_msg("enqueue: %s", err.message);
    assert_true(t->n_ids < IDS_MAX);
    memcpy(t->ids[t->n_ids], out.id, sizeof(out.id));
    return t->ids[t->n_ids++];
}

const char *test_enqueue(struct t *t, struct st_store *s, const char *type)
{
    return test_add(t, s, T0, test_job(t, type));
}

struct st_claim_req test_req(int64_t now, const char *worker, size_t n)
{
    return (struct st_claim_req){.now_us = now, .worker = S(worker), .lease_us = 10 * SEC, .n = n, .n_run = n};
}

static struct st_job *claim_one(struct st_store *s, const struct st_claim_req *req)
{
    struct st_job *job = NULL;
    stint_error err = {0};
    size_t n;

    if (st_store_claim(s, req, &job, &n, &err))
        fail_msg("claim: %s", err.message);
    return n ? job : NULL;
}

struct st_job *test_claim_as(struct t *t, struct st_store *s, int64_t now, int64_t lease, const char *worker)
{
    struct st_claim_req req = test_req(now, worker, 1);

    (void)t;
    req.lease_us = lease;
    return claim_one(s, &req);
}

struct st_job *test_claim(struct t *t, struct st_store *s, int64_t now, int64_t lease)
{
    return test_claim_as(t, s, now, lease, "w1");
}

struct st_job *test_prefetch(struct t *t, struct st_store *s, int64_t now, int64_t lease)
{
    struct st_claim_req req = test_req(now, "w1", 1);

    (void)t;
    req.lease_us = lease;
    req.n_run = 0;
    return claim_one(s, &req);
}

size_t test_claim_count(struct st_store *s, const struct st_claim_req *req)
{
    struct st_job **jobs = calloc(req->n, sizeof(*jobs));
    size_t n;

    assert_non_null(jobs);
    OK(st_store_claim(s, req, jobs, &n, NULL));
    for (size_t i = 0; i < n; i++)
        st_job_free(jobs[i]);
    free(jobs);
    return n;
}

struct st_finish test_fin(const struct st_job *job, enum st_outcome outcome)
{
    return (struct st_finish){.id = S(job->id),
                              .fence = job->fence,
                              .ref = job->ref,
                              .outcome = outcome,
                              .started_ago_us = -1,
                              .exit_code = -1};
}

stint_code test_finish_item(struct st_store *s, int64_t now, struct st_finish *f)
{
    OK(st_store_finish(s, now, f, 1, NULL));
    return f->verdict;
}

stint_code test_finish(struct st_store *s, int64_t now, const struct st_job *job, enum st_outcome o)
{
    struct st_finish f = test_fin(job, o);

    return test_finish_item(s, now, &f);
}

/* ---- looking ---------------------------------------------------------------------------- */

struct st_job_info test_get(struct st_store *s, int64_t now, const char *id)
{
    struct st_job_info info;
    stint_error err = {0};

    if (st_store_get(s, now, S(id), &info, &err))
        fail_msg("get %s: %s", id, err.message);
    return info;
}

enum st_shown test_shown(struct st_store *s, int64_t now, const char *id)
{
    struct st_job_info info = test_get(s, now, id);
    const enum st_shown shown = info.shown;

    st_job_info_clear(&info);
    return shown;
}

int64_t test_count(struct st_store *s, int64_t now, const char *queue, enum st_shown shown)
{
    struct st_queue_info *q;
    int64_t count = -1;
    size_t n;

    OK(st_store_queues(s, now, &q, &n, NULL));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(q[i].name, queue))
            count = q[i].counts[shown];
    free(q);
    return count;
}

stint_code test_cancel(struct st_store *s, int64_t now, const char *id, bool *asked)
{
    const struct st_slice ids[1] = {S(id)};
    stint_code verdict;
    bool asked_local;

    OK(st_store_cancel(s, now, ids, 1, &verdict, asked ? asked : &asked_local, NULL));
    return verdict;
}

stint_code test_retry(struct st_store *s, int64_t now, const char *id)
{
    const struct st_slice ids[1] = {S(id)};
    stint_code verdict;

    OK(st_store_retry(s, now, ids, 1, &verdict, NULL));
    return verdict;
}

size_t test_reap(struct st_store *s, int64_t now, const char *me, struct st_reaped *out, size_t max)
{
    struct st_reaped local[16];
    size_t n;

    OK(st_store_reap(s, now, S(me), out ? out : local, out ? max : 16, &n, NULL));
    return n;
}

/* ---- other processes -------------------------------------------------------------------- */

int test_fork(struct t *t, int (*fn)(struct st_store *s, void *arg), void *arg)
{
    struct st_store_open opt = {.timeout_ms = 30000};
    struct st_store *s;
    pid_t pid;
    int rc;

    for (size_t i = 0; i < t->n_stores; i++)
        assert_null(t->stores[i]);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return (int)pid;
    if (st_store_open(t->url, &opt, &s, NULL))
        _exit(99);
    rc = fn(s, arg);
    st_store_close(s);
    _exit(rc);
}

int test_join(int pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- running ---------------------------------------------------------------------------- */

struct run {
    const struct backend *backend;
    const struct test_case *c;
    struct t t;
};

static int setup(void **state)
{
    struct run *r = *state;

    memset(&r->t, 0, sizeof(r->t));
    r->t.backend = r->backend;
    r->t.name = r->c->name;
    r->t.ids = calloc(IDS_MAX, sizeof(*r->t.ids));
    assert_non_null(r->t.ids);
    r->backend->fresh(&r->t);
    return 0;
}

static int teardown(void **state)
{
    struct run *r = *state;

    for (size_t i = 0; i < r->t.n_stores; i++)
        st_store_close(r->t.stores[i]);
    r->backend->drop(&r->t);
    free(r->t.ids);
    return 0;
}

static void run_case(void **state)
{
    struct run *r = *state;

    r->c->run(&r->t);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct CMUnitTest *)a)->name, ((const struct CMUnitTest *)b)->name);
}

int main(int argc, char **argv)
{
    size_t n = n_cases * BACKENDS;
    struct CMUnitTest *tests = calloc(n, sizeof(*tests));
    struct run *runs = calloc(n, sizeof(*runs));
    char(*names)[160] = calloc(n, sizeof(*names));
    size_t at = 0;
    int failed;

    if (!tests || !runs || !names)
        return 1;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* a pattern such as "*reap*" */
    for (size_t b = 0; b < BACKENDS; b++) {
        for (struct test_case *c = chosen(&backends[b]) ? cases : NULL; c; c = c->next, at++) {
            runs[at] = (struct run){.backend = &backends[b], .c = c};
            snprintf(names[at], sizeof(names[at]), "%s: %s", backends[b].name, c->name);
            tests[at] = (struct CMUnitTest){names[at], run_case, setup, teardown, &runs[at]};
        }
    }
    n = at;
    qsort(tests, n, sizeof(*tests), by_name);
    failed = _cmocka_run_group_tests("stores", tests, n, NULL, NULL);
    printf("left out for want of a capability:\n%s", gated[0] ? gated : "  nothing\n");
    free(tests);
    free(runs);
    free(names);
    return failed;
}
