/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sqlite_writer.c - the writer: group commit, waiting for the lock, disks that fail, and
 * writing nothing where there is nothing to write.
 *
 * A connection beside the store holds the write lock where requests must gather; a VFS that fails
 * on request stands for a bad disk.
 */
#include "sqlite_kit.h"

/* ---- a disk that fails ------------------------------------------------------------------ */

enum fault { FAULT_NONE, FAULT_FULL, FAULT_SYNC, FAULT_WRITE };
static int fault; /* enum fault; what the next writes to the log run into */

struct shim_file {
    sqlite3_file base;
    const sqlite3_io_methods *real_methods;
    bool wal;
    sqlite3_file real[]; /* the real file follows */
};

static sqlite3_vfs shim_vfs;
static sqlite3_io_methods shim_methods;

static sqlite3_file *real_of(sqlite3_file *f)
{
    return ((struct shim_file *)f)->real;
}
static bool breaks(sqlite3_file *f, enum fault what)
{
    return ((struct shim_file *)f)->wal && __atomic_load_n(&fault, __ATOMIC_SEQ_CST) == (int)what;
}

#define PASS(name, params, args)                                                                                       \
    static int shim_##name params                                                                                      \
    {                                                                                                                  \
        return real_of(f)->pMethods->x##name args;                                                                     \
    }
PASS(Close, (sqlite3_file * f), (real_of(f)))
PASS(Read, (sqlite3_file * f, void *p, int n, sqlite3_int64 at), (real_of(f), p, n, at))
PASS(Truncate, (sqlite3_file * f, sqlite3_int64 size), (real_of(f), size))
PASS(FileSize, (sqlite3_file * f, sqlite3_int64 *size), (real_of(f), size))
PASS(Lock, (sqlite3_file * f, int how), (real_of(f), how))
PASS(Unlock, (sqlite3_file * f, int how), (real_of(f), how))
PASS(CheckReservedLock, (sqlite3_file * f, int *out), (real_of(f), out))
PASS(FileControl, (sqlite3_file * f, int op, void *arg), (real_of(f), op, arg))
PASS(SectorSize, (sqlite3_file * f), (real_of(f)))
PASS(DeviceCharacteristics, (sqlite3_file * f), (real_of(f)))
PASS(ShmMap, (sqlite3_file * f, int i, int size, int extend, void volatile **p), (real_of(f), i, size, extend, p))
PASS(ShmLock, (sqlite3_file * f, int at, int n, int flags), (real_of(f), at, n, flags))
PASS(ShmUnmap, (sqlite3_file * f, int del), (real_of(f), del))
PASS(Fetch, (sqlite3_file * f, sqlite3_int64 at, int n, void **p), (real_of(f), at, n, p))
PASS(Unfetch, (sqlite3_file * f, sqlite3_int64 at, void *p), (real_of(f), at, p))

static void shim_ShmBarrier(sqlite3_file *f)
{
    real_of(f)->pMethods->xShmBarrier(real_of(f));
}
static int shim_Write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    if (breaks(f, FAULT_FULL))
        return SQLITE_FULL;
    if (breaks(f, FAULT_WRITE))
        return SQLITE_IOERR_WRITE;
    return real_of(f)->pMethods->xWrite(real_of(f), p, n, at);
}
static int shim_Sync(sqlite3_file *f, int flags)
{
    return breaks(f, FAULT_SYNC) ? SQLITE_IOERR_FSYNC : real_of(f)->pMethods->xSync(real_of(f), flags);
}

static int shim_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *f, int flags, int *out)
{
    sqlite3_vfs *real = vfs->pAppData;
    struct shim_file *s = (struct shim_file *)f;
    const int rc = real->xOpen(real, name, s->real, flags, out);

    s->base.pMethods = s->real->pMethods ? &shim_methods : NULL;
    s->wal = (flags & SQLITE_OPEN_WAL) != 0;
    return rc;
}

static int shim_setup(void **state)
{
    sqlite3_vfs *real = sqlite3_vfs_find(NULL);

    (void)state;
    shim_vfs = *real;
    shim_vfs.zName = "shim";
    shim_vfs.szOsFile += (int)sizeof(struct shim_file);
    shim_vfs.pAppData = real;
    shim_vfs.xOpen = shim_open;
    shim_methods = (sqlite3_io_methods){3,
                                        shim_Close,
                                        shim_Read,
                                        shim_Write,
                                        shim_Truncate,
                                        shim_Sync,
                                        shim_FileSize,
                                        shim_Lock,
                                        shim_Unlock,
                                        shim_CheckReservedLock,
                                        shim_FileControl,
                                        shim_SectorSize,
                                        shim_DeviceCharacteristics,
                                        shim_ShmMap,
                                        shim_ShmLock,
                                        shim_ShmBarrier,
                                        shim_ShmUnmap,
                                        shim_Fetch,
                                        shim_Unfetch};
    return sqlite3_vfs_register(&shim_vfs, 1);
}

/* An enqueue runs into the fault; then the disk is well again. */
static void add_with(struct st_store *s, enum fault what, const char *id, stint_code want)
{
    stint_error err = {0};
    stint_code code;

    __atomic_store_n(&fault, (int)what, __ATOMIC_SEQ_CST);
    code = kit_add(s, id, &err);
    __atomic_store_n(&fault, FAULT_NONE, __ATOMIC_SEQ_CST);
    if (code != want)
        fail_msg("%s instead of %s: %s", stint_code_name(code), stint_code_name(want), err.message);
    if (want == STINT_ESTORE)
        assert_true(err.remedy[0]);
}

static void a_full_disk_is_told_and_nothing_is_half_written(void **state)
{
    struct st_store *s = kit_open(1000);

    (void)state;
    OK(kit_add(s, "before", NULL));
    add_with(s, FAULT_FULL, "lost", STINT_ESTORE);
    assert_false(kit_has(s, "lost"));
    OK(kit_add(s, "after", NULL)); /* and it goes on once there is room */
    assert_true(kit_has(s, "before"));
    assert_true(kit_has(s, "after"));
    OK(kit_add(s, "lost", NULL));
    st_store_close(s);
}

/* The commit's record was written; whether it is on the disk nobody knows. */
static void a_sync_that_fails_leaves_the_outcome_unknown(void **state)
{
    struct st_store *s = kit_open(1000);

    (void)state;
    OK(kit_add(s, "before", NULL));
    add_with(s, FAULT_SYNC, "unknown", STINT_EUNKNOWN);
    OK(kit_add(s, "unknown", NULL)); /* repeating with the same id resolves it */
    assert_true(kit_has(s, "before"));
    assert_true(kit_has(s, "unknown"));
    st_store_close(s);
}

static void a_write_that_fails_is_no_success(void **state)
{
    struct st_store *s = kit_open(1000);
    struct st_queue_info *q;
    size_t n;

    (void)state;
    OK(kit_add(s, "before", NULL));
    add_with(s, FAULT_WRITE, "unknown", STINT_EUNKNOWN);
    OK(kit_add(s, "unknown", NULL));
    OK(st_store_queues(s, T0, &q, &n, NULL));
    assert_int_equal(q[0].counts[ST_SHOW_PENDING], 2); /* counted once */
    free(q);
    st_store_close(s);
}

static void a_claim_that_could_not_be_written_gives_no_jobs(void **state)
{
    struct st_store *s = kit_open(1000);
    struct st_claim_req req = {.now_us = T0, .worker = S("w1"), .lease_us = SEC, .n = 5, .n_run = 5};
    struct st_job *jobs[5];
    size_t n = 99;

    (void)state;
    kit_fill(s, "a", "default", "mail", 5, T0);
    __atomic_store_n(&fault, FAULT_FULL, __ATOMIC_SEQ_CST);
    assert_int_equal(st_store_claim(s, &req, jobs, &n, NULL), STINT_ESTORE);
    __atomic_store_n(&fault, FAULT_NONE, __ATOMIC_SEQ_CST);
    assert_int_equal(n, 0);
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 5);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(jobs[i]->fence, 1);
        st_job_free(jobs[i]);
    }
    st_store_close(s);
}

/* ---- gathering -------------------------------------------------------------------------- */

struct asker {
    pthread_t thread;
    struct st_store *s;
    struct st_new_job job;
    struct st_enqueued out;
    stint_code code;
    char id[16];
};

static void *ask(void *arg)
{
    struct asker *a = arg;

    a->code = st_store_enqueue(a->s, T0, &a->job, 1, &a->out, NULL);
    return NULL;
}

static void asker_start(struct asker *a, int i)
{
    snprintf(a->id, sizeof(a->id), "job-%d", i);
    a->job = (struct st_new_job){.id = S(a->id),
                                 .type = S("mail"),
                                 .queue = S("default"),
                                 .payload = S("{}"),
                                 .max_attempts = -1,
                                 .timeout_us = -1};
    a->s = kit_open(60000);
}

static size_t queued(struct st_sq_writer *w)
{
    size_t n = 0;

    pthread_mutex_lock(&w->mu);
    for (struct st_sq_req *r = w->head; r; r = r->next)
        n++;
    pthread_mutex_unlock(&w->mu);
    return n;
}

/* All requests wait, in this order, for the lock that somebody else has. */
static void gather(struct asker *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(pthread_create(&a[i].thread, NULL, ask, &a[i]), 0);
        while (queued(st_sq_of(a[0].s)->w) < i + 1)
            sched_yield();
    }
}

static uint64_t commits(struct st_store *s)
{
    struct st_sq_writer *w = st_sq_of(s)->w;
    uint64_t n;

    pthread_mutex_lock(&w->mu);
    n = w->n_commits;
    pthread_mutex_unlock(&w->mu);
    return n;
}

static void requests_that_wait_together_are_committed_together(void **state)
{
    struct asker a[20];
    sqlite3 *db;
    uint64_t before;

    (void)state;
    for (int i = 0; i < 20; i++)
        asker_start(&a[i], i);
    db = kit_raw();
    before = commits(a[0].s);
    kit_exec(db, "BEGIN IMMEDIATE");
    gather(a, 20);
    kit_exec(db, "COMMIT");
    for (int i = 0; i < 20; i++) {
        pthread_join(a[i].thread, NULL);
        OK(a[i].code);
        assert_true(kit_has(a[0].s, a[i].id));
    }
    assert_int_equal(commits(a[0].s) - before, 1);
    for (int i = 0; i < 20; i++)
        st_store_close(a[i].s);
    sqlite3_close(db);
}

static void a_request_that_fails_does_not_harm_those_beside_it(void **state)
{
    struct asker a[6];
    sqlite3 *db;

    (void)state;
    for (int i = 0; i < 6; i++)
        asker_start(&a[i], i);
    OK(kit_add(a[0].s, "taken", NULL));
    a[3].job.id = S("taken"); /* with another payload: EEXISTS */
    a[3].job.payload = S("[]");
    a[1].job.queue = S("new"); /* makes a lane that the first try has to forget */
    db = kit_raw();
    kit_exec(db, "BEGIN IMMEDIATE");
    gather(a, 6);
    kit_exec(db, "COMMIT");
    for (int i = 0; i < 6; i++) {
        pthread_join(a[i].thread, NULL);
        assert_int_equal(a[i].code, i == 3 ? STINT_EEXISTS : STINT_OK);
        assert_int_equal(kit_has(a[0].s, a[i].id), i != 3);
    }
    assert_int_equal(kit_int(db, "SELECT sum(n) FROM count"), 6);
    assert_int_equal(kit_int(db, "SELECT count(*) FROM job JOIN lane ON lane.id = job.lane"), 6);
    for (int i = 0; i < 6; i++)
        st_store_close(a[i].s);
    sqlite3_close(db);
}

/* ---- waiting for the lock --------------------------------------------------------------- */

static void a_lock_that_is_not_given_in_time_is_eagain_and_nothing_happened(void **state)
{
    struct st_store *s = kit_open(30);
    sqlite3 *db = kit_raw();
    stint_error err = {0};

    (void)state;
    kit_exec(db, "BEGIN IMMEDIATE");
    assert_int_equal(kit_add(s, "late", &err), STINT_EAGAIN);
    assert_null(strstr(err.message, "locked"));
    kit_exec(db, "COMMIT");
    s->timeout_ms = 10000;
    OK(kit_add(s, "next", NULL));
    assert_false(kit_has(s, "late")); /* a request that was given up is not done later */
    st_store_close(s);
    sqlite3_close(db);
}

static void reads_do_not_wait_for_a_writer(void **state)
{
    struct st_store *s = kit_open(30);
    sqlite3 *db = kit_raw();
    struct st_queue_info *q;
    size_t n;

    (void)state;
    OK(kit_add(s, "a", NULL));
    kit_exec(db, "BEGIN IMMEDIATE; UPDATE job SET priority = 1");
    assert_true(kit_has(s, "a"));
    OK(st_store_queues(s, T0, &q, &n, NULL));
    assert_int_equal(n, 1);
    free(q);
    kit_exec(db, "COMMIT");
    st_store_close(s);
    sqlite3_close(db);
}

/* ---- writing nothing -------------------------------------------------------------------- */

/* What an idle worker does all day, while somebody else has the write lock for good. */
static void an_idle_worker_needs_no_write_lock(void **state)
{
    struct st_store *s = kit_open(30);
    struct st_claim_req req = {.now_us = T0, .worker = S("w1"), .lease_us = SEC, .n = 5, .n_run = 5};
    const struct st_type_rule rule = {.pattern = S("sms")};
    struct st_lead_req lead = {.now_us = T0, .worker = S("w1"), .term_us = SEC};
    struct st_prune_req prune = {.now_us = T0, .keep = {SEC, SEC, SEC}, .limit = 10};
    struct st_pruned pruned;
    struct st_reaped reaped[1];
    struct st_job *jobs[5];
    struct st_lead led;
    sqlite3 *db = kit_raw();
    uint64_t before;
    size_t n;

    (void)state;
    kit_fill(s, "a", "default", "mail", 3, T0);      /* not our type */
    kit_fill(s, "b", "default", "sms", 3, T0 + SEC); /* not due */
    lead.worker = S("somebody");
    OK(st_store_lead(s, &lead, &led, NULL));
    before = commits(s);
    kit_exec(db, "BEGIN IMMEDIATE");
    req.types = &rule;
    req.n_types = 1;
    OK(st_store_claim(s, &req, jobs, &n, NULL));
    assert_int_equal(n, 0);
    OK(st_store_reap(s, T0, S("w1"), reaped, 1, &n, NULL));
    lead.worker = S("w1");
    OK(st_store_lead(s, &lead, &led, NULL));
    assert_false(led.leader);
    OK(st_store_prune(s, &prune, &pruned, NULL));
    kit_exec(db, "COMMIT");
    assert_int_equal(commits(s), before);
    st_store_close(s);
    sqlite3_close(db);
}

static void a_store_is_reopened_many_times_without_leaving_anything(void **state)
{
    char path[128];

    (void)state;
    for (int i = 0; i < 50; i++) {
        struct st_store *a = kit_open(1000), *b = kit_open(1000);

        OK(kit_add(i % 2 ? a : b, "same", NULL));
        st_store_close(a);
        st_store_close(b);
    }
    snprintf(path, sizeof(path), "%s-wal", kit_path);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KIT_TEST(a_full_disk_is_told_and_nothing_is_half_written),
        KIT_TEST(a_sync_that_fails_leaves_the_outcome_unknown),
        KIT_TEST(a_write_that_fails_is_no_success),
        KIT_TEST(a_claim_that_could_not_be_written_gives_no_jobs),
        KIT_TEST(requests_that_wait_together_are_committed_together),
        KIT_TEST(a_request_that_fails_does_not_harm_those_beside_it),
        KIT_TEST(a_lock_that_is_not_given_in_time_is_eagain_and_nothing_happened),
        KIT_TEST(reads_do_not_wait_for_a_writer),
        KIT_TEST(an_idle_worker_needs_no_write_lock),
        KIT_TEST(a_store_is_reopened_many_times_without_leaving_anything),
    };

    return cmocka_run_group_tests(tests, shim_setup, NULL);
}
