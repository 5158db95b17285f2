/* SPDX-License-Identifier: Apache-2.0
 *
 * test_postgres_mark.c - how far a process remembers to have claimed: never past what may still
 * come.
 *
 * First with snapshots made up, then on a server: producers that hold their transactions open, a
 * reader that pins the horizon, a writer that stays open, and a claimer that must take everything
 * in order.
 */
#include "postgres_lab.h"

/* ---- made-up snapshots ---------------------------------------------------------------------- */

#define NOTHING INT64_MAX /* in place of a first row */
#define WINDOW  2000      /* as in postgres_mark.c */

struct memory {
    struct st_pg_shared sh;
    struct st_pg_lane lane, *list[1];
};

static void memory_open(struct memory *m)
{
    memset(m, 0, sizeof(*m));
    m->lane.tail = st_pg_begin;
    m->list[0] = &m->lane;
    m->sh.lanes = m->list;
    m->sh.n_lanes = 1;
}

static void memory_close(struct memory *m)
{
    free(m->lane.notes);
    free(m->lane.exceptions);
}

static struct st_pg_pos pos(int64_t key)
{
    return (struct st_pg_pos){.key = key, .id = {.p = {1, 'x'}, .len = 2}};
}

static struct st_pg_seen claim_begins(struct memory *m)
{
    return (struct st_pg_seen){.lane = &m->lane, .from = *st_pg_mark_from(&m->lane), .sweeps = m->lane.sweeps};
}

/* It has committed: its number, what was open then, the first row still there, and what it took, up
 * to which key. */
static void claim_ends(struct memory *m, struct st_pg_seen seen, uint64_t xid, const char *snapshot, int64_t first,
                       size_t n, int64_t mark)
{
    seen.first = pos(first);
    seen.n = n;
    seen.mark = pos(mark);
    st_pg_marks_learn(&m->sh, xid, snapshot, &seen, 1);
}

static void claim(struct memory *m, uint64_t xid, const char *snapshot, int64_t first, size_t n, int64_t mark)
{
    claim_ends(m, claim_begins(m), xid, snapshot, first, n, mark);
}

static int64_t tail(const struct memory *m)
{
    return m->lane.tail.key;
}

static int64_t begins_at(const struct memory *m)
{
    return st_pg_mark_from(&m->lane)->key;
}

static void the_tail_follows_when_everything_below_a_claim_has_ended(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    claim(&m, 100, "90:100:90", NOTHING, 10, 50);
    assert_int_equal(tail(&m), INT64_MIN);
    claim(&m, 101, "90:101:90", NOTHING, 10, 60); /* 90 may still put something before 50 */
    assert_int_equal(tail(&m), INT64_MIN);
    claim(&m, 102, "102:102:", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 60);
    memory_close(&m);
}

static void a_commit_below_the_mark_is_met_before_the_tail_passes(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    claim(&m, 100, "90:100:90", NOTHING, 10, 50);
    claim(&m, 101, "101:101:", 30, 0, 0); /* 90 is in, with key 30 */
    assert_int_equal(tail(&m), 30);
    assert_int_equal(begins_at(&m), 30);
    claim(&m, 102, "102:102:", NOTHING, 1, 30);
    claim(&m, 103, "103:103:", NOTHING, 5, 70);
    assert_int_equal(tail(&m), 30);
    claim(&m, 104, "104:104:", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 70);
    memory_close(&m);
}

/* A snapshot's xmax is the last number that has *ended* and one; who began after it is in no list.
 * The twin of our rule that remembers the snapshot's xmax of a claim and waits until a later xmin
 * has reached it would pass such a writer. */
static bool twin_passes(uint64_t noted_xmax, uint64_t later_xmin)
{
    return later_xmin >= noted_xmax;
}

static void a_writer_that_no_list_names_is_not_passed(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    /* 831 has written and is open, 830 was the last to end: the claim, 832, sees 831:831: */
    claim(&m, 832, "831:831:", NOTHING, 10, 50);
    claim(&m, 833, "831:831:", NOTHING, 0, 0); /* at once again: 832 is not even counted as ended */
    assert_true(twin_passes(831, 831));
    assert_int_equal(tail(&m), INT64_MIN);
    claim(&m, 834, "831:833:831", NOTHING, 0, 0); /* and when it is */
    assert_true(twin_passes(831, 831));
    assert_int_equal(tail(&m), INT64_MIN);
    claim(&m, 835, "835:835:", 40, 0, 0); /* there it is */
    assert_int_equal(tail(&m), 40);
    memory_close(&m);
}

static void a_row_that_somebody_has_locked_holds_the_tail(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    claim(&m, 100, "100:100:", 20, 10, 50); /* 20 was skipped: locked */
    claim(&m, 101, "101:101:", 20, 10, 60);
    assert_int_equal(tail(&m), 20);
    claim(&m, 102, "102:102:", 20, 10, 70);
    assert_int_equal(tail(&m), 20);
    claim(&m, 103, "103:103:", NOTHING, 0, 0); /* cancelled, or taken by the other */
    assert_int_equal(tail(&m), 70);
    memory_close(&m);
}

/* So many are claimed past the tail while 90 is open. */
static void claim_past(struct memory *m, size_t n, size_t each)
{
    char snapshot[64];

    for (size_t i = 0; i * each < n; i++) {
        const uint64_t xid = 100 + i;
        const size_t left = n - i * each;

        snprintf(snapshot, sizeof(snapshot), "90:%d:90", (int)xid);
        claim(m, xid, snapshot, NOTHING, left < each ? left : each, (int64_t)(xid * 10));
    }
}

static void who_stays_open_is_set_aside_only_past_the_window(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    claim_past(&m, WINDOW, 500);
    assert_int_equal(m.lane.n_exceptions, 0);
    claim(&m, 104, "90:104:90", NOTHING, 0, 0);
    assert_int_equal(tail(&m), INT64_MIN);
    claim(&m, 105, "90:105:90", NOTHING, 1, 1050); /* one more */
    assert_int_equal(m.lane.n_exceptions, 1);
    assert_int_equal(m.lane.exceptions[0].xid, 90);
    claim(&m, 106, "90:106:90", NOTHING, 1, 1060); /* the tail goes on without it */
    assert_int_equal(tail(&m), 1050);
    assert_int_equal(begins_at(&m), 1050);
    claim(&m, 107, "90:107:90,95", NOTHING, 0, 0); /* a number below that was not there before: no exception */
    assert_int_equal(tail(&m), 1050);
    memory_close(&m);
}

static void when_it_has_ended_the_lane_is_swept_from_where_the_tail_was(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    claim(&m, 80, "80:80:", NOTHING, 1, 5);
    claim(&m, 81, "81:81:", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 5);
    claim_past(&m, WINDOW + 1, 500);
    claim(&m, 110, "90:110:90", NOTHING, 1, 1100);
    assert_int_equal(tail(&m), 1040);
    claim(&m, 111, "111:111:", NOTHING, 0,
          0); /* it has ended; this claim began at 1040 and could not see what it left */
    assert_int_equal(m.lane.n_exceptions, 0);
    assert_true(m.lane.sweeping);
    assert_int_equal(begins_at(&m), 5);
    claim(&m, 112, "112:112:", 300, 1, 200); /* 200 was taken, 300 is locked by somebody */
    assert_true(m.lane.sweeping);
    assert_int_equal(begins_at(&m), 300);
    claim(&m, 113, "113:113:", 300, 0, 0);
    assert_int_equal(begins_at(&m), 300);
    claim(&m, 114, "114:114:", 5000, 1, 300); /* the first that is there lies after the tail: over */
    assert_false(m.lane.sweeping);
    assert_int_equal(tail(&m), 1100);
    assert_int_equal(begins_at(&m), 1100);
    memory_close(&m);
}

/* Two claims at once: the one that tells later may have looked before. */
static void a_claim_that_began_before_does_not_end_a_sweep(void **state)
{
    struct st_pg_seen early;
    struct memory m;

    (void)state;
    memory_open(&m);
    claim_past(&m, WINDOW + 1, 500);
    early = claim_begins(&m); /* from the beginning, as the tail stands there */
    claim(&m, 110, "90:110:90", NOTHING, 1, 1100);
    assert_int_equal(tail(&m), 1040);
    claim(&m, 112, "112:112:", NOTHING, 0, 0); /* 90 has ended */
    assert_true(m.lane.sweeping);
    claim_ends(&m, early, 111, "90:110:90", NOTHING, 0, 0); /* it did not see what 90 has left */
    assert_true(m.lane.sweeping);
    assert_int_equal(begins_at(&m), INT64_MIN);
    claim(&m, 113, "113:113:", NOTHING, 1, 30);
    assert_false(m.lane.sweeping);
    memory_close(&m);
}

static void a_claim_that_began_before_all_was_forgotten_moves_nothing(void **state)
{
    struct st_pg_seen early;
    struct memory m;

    (void)state;
    memory_open(&m);
    claim(&m, 100, "100:100:", NOTHING, 1, 50);
    claim(&m, 101, "101:101:", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 50);
    early = claim_begins(&m);
    st_pg_marks_forget(&m.sh);
    claim(&m, 103, "102:102:", 10, 1, 60);                 /* from the beginning: there is a row at 10, locked */
    claim_ends(&m, early, 102, "104:104:", NOTHING, 0, 0); /* it began at 50, and cannot know of 10 */
    assert_int_equal(tail(&m), INT64_MIN);
    claim(&m, 104, "105:105:", 10, 0, 0);
    assert_int_equal(tail(&m), 10);
    memory_close(&m);
}

static void a_snapshot_that_cannot_be_read_makes_it_forget(void **state)
{
    static const char *const bad[] = {"", "12", "12:13", "x:y:z"};
    struct memory m;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memory_open(&m);
        claim(&m, 100, "100:100:", NOTHING, 1, 50);
        claim(&m, 101, "101:101:", NOTHING, 1, 60);
        assert_int_equal(tail(&m), 50);
        claim(&m, 102, bad[i], NOTHING, 1, 70);
        assert_int_equal(tail(&m), INT64_MIN);
        assert_int_equal(m.lane.n_notes, 0);
        memory_close(&m);
    }
}

static void more_notes_than_there_is_room_for_hold_the_tail_longer(void **state)
{
    char snapshot[64];
    struct memory m;

    (void)state;
    memory_open(&m);
    for (int i = 0; i < ST_PG_NOTES + 10; i++) {
        snprintf(snapshot, sizeof(snapshot), "90:%d:90", 100 + i);
        claim(&m, (uint64_t)(100 + i), snapshot, NOTHING, 1, 1000 + i);
    }
    assert_int_equal(m.lane.n_notes, ST_PG_NOTES);
    /* 90 has ended; 170 has not, and what it may bring lies before the last mark */
    claim(&m, 174, "170:174:170", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 1000 + ST_PG_NOTES - 2);
    claim(&m, 175, "175:175:", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 1000 + ST_PG_NOTES + 9);
    memory_close(&m);
}

/* Of very many lanes only few are at work. */
static void a_lane_at_rest_keeps_nothing(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    claim(&m, 100, "90:100:90", NOTHING, WINDOW + 1, 50);
    claim(&m, 101, "90:101:90", NOTHING, 1, 60);
    assert_true(m.lane.notes && m.lane.exceptions);
    claim(&m, 102, "102:102:", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 60);
    assert_null(m.lane.notes);
    assert_null(m.lane.exceptions);
    claim(&m, 103, "103:103:", NOTHING, 1, 70);
    claim(&m, 104, "104:104:", NOTHING, 0, 0);
    assert_int_equal(tail(&m), 70);
    memory_close(&m);
}

static void a_slow_sweep_looks_from_the_beginning(void **state)
{
    struct memory m;

    (void)state;
    memory_open(&m);
    claim(&m, 100, "100:100:", NOTHING, 1, 50);
    claim(&m, 101, "101:101:", NOTHING, 0, 0);
    m.sh.swept_us = st_clock_mono_us();
    st_pg_marks_sweep(&m.sh);
    assert_int_equal(begins_at(&m), 50);
    m.sh.swept_us = st_clock_mono_us() - 11 * SEC;
    st_pg_marks_sweep(&m.sh);
    assert_int_equal(begins_at(&m), INT64_MIN);
    st_pg_marks_swept(&m.sh, 3 * SEC);
    claim(&m, 102, "102:102:", NOTHING, 0, 0);
    assert_int_equal(begins_at(&m), 50);
    m.sh.swept_us = st_clock_mono_us() - 299 * SEC; /* it took 3 s: not every 10 s */
    st_pg_marks_sweep(&m.sh);
    assert_int_equal(begins_at(&m), 50);
    m.sh.swept_us = st_clock_mono_us() - 301 * SEC;
    st_pg_marks_sweep(&m.sh);
    assert_int_equal(begins_at(&m), INT64_MIN);
    memory_close(&m);
}

/* ---- on a server: what one process remembers ------------------------------------------------- */

static struct st_claim_req any(size_t n)
{
    return (struct st_claim_req){.worker = S("w1"), .lease_us = ST_HOUR, .n = n, .n_run = n};
}

static size_t take(struct st_store *s, size_t n)
{
    const struct st_claim_req req = any(n);
    struct st_job *jobs[16];
    stint_error err = {0};
    size_t got = 0;

    assert_true(n <= 16);
    if (st_store_claim(s, &req, jobs, &got, &err))
        fail_msg("claim: %s", err.message);
    for (size_t i = 0; i < got; i++)
        st_job_free(jobs[i]);
    return got;
}

static struct st_new_job job(const char *id)
{
    return (struct st_new_job){
        .id = S(id), .type = S("t"), .queue = S("q"), .payload = S("{}"), .max_attempts = -1, .timeout_us = -1};
}

static void add_later(struct st_store *s, int64_t delay_us)
{
    char id[ST_ID_MAX + 1];
    struct st_enqueued out;
    struct st_new_job j;

    st_id_new(id);
    j = job(id);
    j.delay_us = delay_us;
    OK(st_store_enqueue(s, 0, &j, 1, &out, NULL));
}

static void add(struct st_store *s)
{
    add_later(s, 0);
}

/* A row where none can come by the rules: as a clock that was set back would put it. */
static void plant(PGconn *c)
{
    char id[ST_ID_MAX + 1];

    st_id_new(id);
    lab_execf(c,
              "INSERT INTO entry(lane, created, due, slot, umode, id, payload) VALUES (_lane('q', "
              "'t', 0), 1, 1,"
              " _home(_key('%s')), 0, _key('%s'), '{}');"
              " INSERT INTO ready VALUES (_lane('q', 't', 0), 1, 0, 0, _home(_key('%s')), 0, "
              "false, _key('%s'))",
              id, id, id, id);
}

static struct st_pg_lane *lane_of(struct st_store *s)
{
    struct st_pg_lane *lane = st_pg_lane_by_id(st_pg_of(s)->sh, st_pg_lane_id(S("q"), S("t"), 0));

    assert_non_null(lane);
    return lane;
}

/* A store that has claimed so far that its tail has left the beginning.  Others on this server may
 * hold it for a while. */
static struct st_store *advanced(void)
{
    struct st_store *s = lab_store("a");

    for (int i = 0; i < 2000; i++) {
        add(s);
        assert_int_equal(take(s, 5), 1);
        assert_int_equal(take(s, 5), 0);
        if (lane_of(s)->tail.key > INT64_MIN && !lane_of(s)->sweeping)
            return s;
        usleep(5000);
    }
    fail_msg("the tail does not move");
    return NULL;
}

static void a_claim_does_not_look_behind_its_tail(void **state)
{
    struct st_store *s = advanced();
    PGconn *c = lab_connect();

    (void)state;
    plant(c);
    assert_int_equal(take(s, 5), 0);
    st_pg_of(s)->sh->swept_us = st_clock_mono_us() - 3600 * SEC; /* until the slow sweep does */
    assert_int_equal(take(s, 5), 1);
    assert_int_equal(lab_int(c, "SELECT count(*) FROM ready"), 0);
    lab_close(c);
    st_store_close(s);
}

static void another_server_makes_it_look_from_the_beginning(void **state)
{
    struct st_store *s = advanced();
    PGconn *c = lab_connect();

    (void)state;
    plant(c);
    assert_int_equal(take(s, 5), 0);
    st_pg_of(s)->sh->server_started -= 1; /* of the server we knew */
    assert_int_equal(take(s, 5), 1);
    lab_close(c);
    st_store_close(s);
}

static void a_clock_that_was_set_back_makes_it_look_from_the_beginning(void **state)
{
    struct st_store *s = advanced();
    PGconn *c = lab_connect();

    (void)state;
    plant(c);
    assert_int_equal(take(s, 5), 0);
    st_pg_of(s)->sh->last_now_us += 10 * SEC;
    assert_int_equal(take(s, 5), 1);
    assert_int_equal(take(s, 5), 0);
    plant(c);
    assert_int_equal(take(s, 5), 1); /* it had to begin anew */
    lab_close(c);
    st_store_close(s);
}

static void an_error_makes_it_look_from_the_beginning(void **state)
{
    const struct st_claim_req req = any(1);
    struct st_store *s = advanced();
    PGconn *c = lab_connect();
    struct st_job *job = NULL;
    size_t n;

    (void)state;
    plant(c);
    assert_int_equal(take(s, 5), 0);
    lab_exec(c, "ALTER FUNCTION _claim RENAME TO hidden");
    assert_int_not_equal(st_store_claim(s, &req, &job, &n, NULL), STINT_OK);
    lab_exec(c, "ALTER FUNCTION hidden RENAME TO _claim");
    assert_int_equal(lane_of(s)->tail.key, INT64_MIN);
    assert_int_equal(take(s, 5), 1);
    lab_close(c);
    st_store_close(s);
}

/* Times given by a test are no clock: nothing is learnt from them. */
static void a_claim_at_another_time_leaves_no_mark(void **state)
{
    struct st_store *s = lab_store("a");
    struct st_claim_req req = any(1);
    struct st_job *job = NULL;
    size_t n;

    (void)state;
    add(s);
    for (int i = 0; i < 3; i++)
        add_later(s, ST_HOUR);
    for (int i = 0; i < 4; i++) {
        req.now_us = st_store_now(s) + 2 * ST_HOUR;
        OK(st_store_claim(s, &req, &job, &n, NULL));
        assert_int_equal(n, 1);
        st_job_free(job);
    }
    add(s);
    assert_int_equal(take(s, 5), 1);
    add(s);
    assert_int_equal(take(s, 5), 1);
    st_store_close(s);
}

/* ---- on a server: overtaking ----------------------------------------------------------------- */

#define PRODUCERS 4
#define JOBS_MAX  20000

struct made {
    char id[ST_ID_MAX + 1];
    int64_t visible_us; /* when its commit was acknowledged */
};

struct taken {
    char id[ST_ID_MAX + 1];
    int64_t key;
    int claim; /* by which */
};

static struct harness {
    atomic_bool stop;
    struct producer {
        struct st_store *s;
        unsigned seed;
    } producers[PRODUCERS];
    struct made *made;
    atomic_int n_made;
    atomic_int failed;
    struct taken *taken;
    int n_taken;
    int64_t *claim_began_us, *claim_last_key;
    int n_claims;
    size_t most_exceptions;
} h;

/* In the transaction that is open on c. */
static bool add_in(struct st_store *s, PGconn *c, const char *id)
{
    const struct st_new_job j = job(id);
    struct st_enqueued out;

    return st_store_enqueue_tx(s, c, 0, &j, 1, &out, NULL) == STINT_OK;
}

/* All at once. */
static void add_many(struct st_store *s, size_t n)
{
    struct st_new_job *jobs = calloc(n, sizeof(*jobs));
    struct st_enqueued *out = calloc(n, sizeof(*out));
    char(*ids)[ST_ID_MAX + 1] = calloc(n, sizeof(*ids));

    assert_true(jobs && out && ids);
    for (size_t i = 0; i < n; i++) {
        st_id_new(ids[i]);
        jobs[i] = job(ids[i]);
    }
    OK(st_store_enqueue(s, 0, jobs, n, out, NULL));
    free(jobs);
    free(out);
    free(ids);
}

/* 0-3 ms, one in fifty up to 300 ms. */
static useconds_t pause_us(unsigned *seed)
{
    return (useconds_t)(rand_r(seed) % 50 == 0 ? rand_r(seed) % 300000 : rand_r(seed) % 3000);
}

static void produce(void *arg)
{
    struct producer *p = arg;
    unsigned *seed = &p->seed;
    PGconn *c = lab_try_connect();

    while (c && !atomic_load(&h.stop) && !atomic_load(&lab_over)) {
        struct made m;
        bool ok = lab_try(c, "BEGIN");
        int at;

        st_id_new(m.id);
        if (rand_r(seed) % 4 == 0) { /* it has its number long before it adds the job */
            ok = ok && lab_try(c, "SELECT pg_current_xact_id()");
            usleep(pause_us(seed));
        }
        ok = ok && add_in(p->s, c, m.id);
        usleep(pause_us(seed));
        ok = ok && lab_try(c, "COMMIT");
        m.visible_us = st_clock_mono_us();
        at = ok ? atomic_fetch_add(&h.n_made, 1) : -1;
        if (at < 0 || at >= JOBS_MAX) {
            atomic_fetch_add(&h.failed, 1);
            break;
        }
        h.made[at] = m;
    }
    if (!c)
        atomic_fetch_add(&h.failed, 1);
    PQfinish(c);
}

static void harness_open(void)
{
    memset(&h, 0, sizeof(h));
    h.made = calloc(JOBS_MAX, sizeof(*h.made));
    h.taken = calloc(JOBS_MAX, sizeof(*h.taken));
    h.claim_began_us = calloc(JOBS_MAX, sizeof(*h.claim_began_us));
    h.claim_last_key = calloc(JOBS_MAX, sizeof(*h.claim_last_key));
    assert_true(h.made && h.taken && h.claim_began_us && h.claim_last_key);
}

static void harness_close(void)
{
    free(h.made);
    free(h.taken);
    free(h.claim_began_us);
    free(h.claim_last_key);
}

static size_t harness_claim(struct st_store *s)
{
    const struct st_claim_req req = any(100);
    struct st_job *jobs[100];
    stint_error err = {0};
    size_t n = 0;

    assert_true(h.n_claims < JOBS_MAX);
    h.claim_began_us[h.n_claims] = st_clock_mono_us();
    h.claim_last_key[h.n_claims] = INT64_MIN;
    if (st_store_claim(s, &req, jobs, &n, &err))
        fail_msg("claim: %s", err.message);
    for (size_t i = 0; i < n; i++) {
        struct taken *t = &h.taken[h.n_taken++];

        assert_true(h.n_taken < JOBS_MAX);
        snprintf(t->id, sizeof(t->id), "%s", jobs[i]->id);
        t->key = jobs[i]->due_us;
        t->claim = h.n_claims;
        if (t->key > h.claim_last_key[h.n_claims])
            h.claim_last_key[h.n_claims] = t->key;
        st_job_free(jobs[i]);
    }
    h.n_claims++;
    for (size_t i = 0; i < st_pg_of(s)->sh->n_lanes; i++) { /* nobody else uses this handle's process */
        const size_t e = st_pg_of(s)->sh->lanes[i]->n_exceptions;

        h.most_exceptions = e > h.most_exceptions ? e : h.most_exceptions;
    }
    return n;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(a, b); /* both begin with the id */
}

/* Jobs that a later one overtook: a claim that began when this one was visible took a later key and
 * left it. */
static int overtaken(int64_t *longest_us)
{
    int n = 0;

    *longest_us = 0;
    for (int i = 0; i < atomic_load(&h.n_made); i++) {
        const struct made *m = &h.made[i];
        const struct taken *t = bsearch(m, h.taken, (size_t)h.n_taken, sizeof(*h.taken), by_id);
        bool passed = false;

        for (int c = t->claim - 1; c >= 0 && h.claim_began_us[c] > m->visible_us; c--)
            passed |= h.claim_last_key[c] > t->key;
        n += passed;
        if (passed && h.claim_began_us[t->claim] - m->visible_us > *longest_us)
            *longest_us = h.claim_began_us[t->claim] - m->visible_us;
    }
    return n;
}

/* Every job that was committed was claimed, once. */
static void check_all_taken(void)
{
    const int n = atomic_load(&h.n_made);

    assert_int_equal(atomic_load(&h.failed), 0);
    assert_int_equal(h.n_taken, n);
    qsort(h.taken, (size_t)h.n_taken, sizeof(*h.taken), by_id);
    for (int i = 1; i < h.n_taken; i++)
        assert_string_not_equal(h.taken[i - 1].id, h.taken[i].id);
    for (int i = 0; i < n; i++)
        assert_non_null(bsearch(&h.made[i], h.taken, (size_t)h.n_taken, sizeof(*h.taken), by_id));
}

static void produce_and_claim(struct st_store *s, int64_t us)
{
    struct lab_racer *racers[PRODUCERS];
    const int64_t end = st_clock_mono_us() + us;

    atomic_store(&h.stop, false);
    for (int i = 0; i < PRODUCERS; i++) {
        h.producers[i].s = lab_store("producer");
        h.producers[i].seed = (unsigned)(i + 1 + atomic_load(&h.n_made));
        racers[i] = lab_start(produce, &h.producers[i]);
    }
    while (st_clock_mono_us() < end && atomic_load(&h.n_made) < JOBS_MAX / 2)
        harness_claim(s);
    atomic_store(&h.stop, true);
    for (int i = 0; i < PRODUCERS; i++) {
        lab_join(racers[i]);
        st_store_close(h.producers[i].s);
    }
}

/* No claim may find nothing and leave something. */
static void drain(struct st_store *s, PGconn *c)
{
    while (harness_claim(s) > 0)
        ;
    assert_int_equal(lab_int(c, "SELECT count(*) FROM ready"), 0);
}

/* Dead rows cannot be removed while it lasts. */
static PGconn *pin(void)
{
    PGconn *c = lab_connect();

    lab_exec(c, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    lab_exec(c, "SELECT count(*) FROM ready");
    return c;
}

static void no_job_is_overtaken_once_its_commit_is_visible(void **state)
{
    struct st_store *s = lab_store("claimer");
    PGconn *c = lab_connect(), *reader = pin();
    int64_t longest;
    int n;

    (void)state;
    harness_open();
    produce_and_claim(s, 2500 * ST_MS);
    drain(s, c);
    check_all_taken();
    n = overtaken(&longest);
    print_message("%d jobs in %d claims, %d overtaken, the longest for %d us; at most %zu "
                  "transactions set aside\n",
                  h.n_taken, h.n_claims, n, (int)longest, h.most_exceptions);
    if (h.most_exceptions == 0) /* else the window was exceeded, and a sweep may come late */
        assert_int_equal(n, 0);
    harness_close();
    lab_close(reader);
    lab_close(c);
    st_store_close(s);
}

static bool was_taken(int from, const char *id)
{
    bool found = false;

    for (int i = from; !found && i < h.n_taken; i++)
        found = strcmp(h.taken[i].id, id) == 0;
    return found;
}

/* One that stays open while more than the window is claimed: prepared where the server allows it.
 */
static void a_writer_open_for_long_is_waited_for_by_nobody_and_not_forgotten(void **state)
{
    struct st_store *s = advanced();
    PGconn *c = lab_connect(), *writer = lab_connect(), *reader = pin();
    const bool prepared = lab_int(c, "SELECT current_setting('max_prepared_transactions')::int") > 0;
    struct made *own;
    int64_t key;
    int from, n = 0;

    (void)state;
    harness_open();
    own = &h.made[atomic_fetch_add(&h.n_made, 1)];
    st_id_new(own->id);
    lab_exec(writer, "BEGIN");
    assert_true(add_in(s, writer, own->id));
    key = lab_int(writer, "SELECT max(key) FROM ready");
    if (prepared)
        lab_execf(writer, "PREPARE TRANSACTION '%s'", kit_schema);
    add_many(s, WINDOW + 200);
    while (harness_claim(s) > 0)
        ;
    assert_true(h.most_exceptions > 0); /* it was set aside, */
    h.n_taken = 0;
    produce_and_claim(s, 1000 * ST_MS);
    assert_true(lane_of(s)->tail.key > key); /* and passed */
    if (prepared)
        lab_execf(writer, "COMMIT PREPARED '%s'", kit_schema);
    else
        lab_exec(writer, "COMMIT");
    own->visible_us = st_clock_mono_us();
    for (from = h.n_taken; n < 10 && !was_taken(from, own->id); n++)
        harness_claim(s);
    print_message("%d jobs beside a writer that was open%s, at most %zu set aside; claim %d after "
                  "its commit took its job\n",
                  h.n_taken, prepared ? " (prepared)" : "", h.most_exceptions, n);
    assert_true(n <= 3);
    drain(s, c);
    check_all_taken();
    harness_close();
    lab_close(reader);
    lab_close(writer);
    lab_close(c);
    st_store_close(s);
}

/* The made-up case above, with real ones: the last to begin has put a row before one that is there
 * already, and nobody has ended since.  (Others on this server may end meanwhile; then it is an
 * easier case.) */
static void the_tail_does_not_pass_a_real_writer_that_no_list_names(void **state)
{
    struct st_store *s = advanced();
    PGconn *writer = lab_connect(), *c = lab_connect();

    (void)state;
    for (int i = 0; i < 5; i++) {
        char id[ST_ID_MAX + 1];
        int64_t key;

        add_later(s, 50 * ST_MS);
        st_id_new(id);
        lab_exec(writer, "BEGIN");
        assert_true(add_in(s, writer, id));
        key = lab_intf(writer, "SELECT key FROM ready WHERE id = _key('%s')", id);
        while (take(s, 5) == 0)
            usleep(1000);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(take(s, 5), 0);
            assert_true(lane_of(s)->tail.key <= key);
        }
        lab_exec(writer, "COMMIT");
        assert_int_equal(take(s, 5), 1);
        assert_int_equal(lab_int(c, "SELECT count(*) FROM ready"), 0);
    }
    lab_close(writer);
    lab_close(c);
    st_store_close(s);
}

/* ---- on a server: two claims of one process -------------------------------------------------- */

static struct slow {
    struct st_store *s;
    struct st_job *held, *got[5];
    size_t n;
    stint_code code;
} slow;

/* An outcome and a claim in one transaction, whose time is that of its beginning. */
static void finish_and_claim(void *arg)
{
    struct slow *x = arg;
    const struct st_claim_req req = any(5);
    struct st_finish f = {.id = S(x->held->id),
                          .fence = x->held->fence,
                          .outcome = ST_OUT_SUCCEEDED,
                          .started_ago_us = -1,
                          .exit_code = -1};
    bool finished;

    x->code = st_store_exchange(x->s, 0, &f, 1, &req, x->got, &x->n, &finished, NULL);
}

static void a_claim_that_began_before_another_does_not_speak_for_what_came_since(void **state)
{
    PGconn *c = lab_connect(), *other = lab_connect(), *writer = lab_connect();
    const struct st_claim_req one = any(1);
    struct st_store *s = advanced();
    char id[ST_ID_MAX + 1];
    struct lab_racer *r;
    size_t n;

    (void)state;
    memset(&slow, 0, sizeof(slow));
    lab_patient(c);
    slow.s = lab_store("a");
    add(s);
    usleep(1000);
    OK(st_store_claim(slow.s, &one, &slow.held, &n, NULL));
    assert_int_equal(n, 1);
    lab_exec(other, "BEGIN; SELECT FROM lease FOR UPDATE");
    r = lab_start(finish_and_claim, &slow); /* it has begun, and is held up before it looks */
    lab_until_waits(r, c, "a");
    lab_exec(writer, "BEGIN");
    st_id_new(id);
    assert_true(add_in(s, writer, id));
    add(s);
    usleep(1000);
    assert_int_equal(take(s, 5), 1); /* past the one that is still to be committed */
    lab_exec(writer, "COMMIT");
    lab_exec(other, "ROLLBACK");
    lab_join(r);
    OK(slow.code);
    assert_int_equal(slow.n, 0); /* both are later than its beginning */
    assert_int_equal(take(s, 5), 1);
    assert_int_equal(lab_int(c, "SELECT count(*) FROM ready"), 0);
    st_job_free(slow.held);
    st_store_close(slow.s);
    st_store_close(s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest pure[] = {
        cmocka_unit_test(the_tail_follows_when_everything_below_a_claim_has_ended),
        cmocka_unit_test(a_commit_below_the_mark_is_met_before_the_tail_passes),
        cmocka_unit_test(a_writer_that_no_list_names_is_not_passed),
        cmocka_unit_test(a_row_that_somebody_has_locked_holds_the_tail),
        cmocka_unit_test(who_stays_open_is_set_aside_only_past_the_window),
        cmocka_unit_test(when_it_has_ended_the_lane_is_swept_from_where_the_tail_was),
        cmocka_unit_test(a_claim_that_began_before_does_not_end_a_sweep),
        cmocka_unit_test(a_claim_that_began_before_all_was_forgotten_moves_nothing),
        cmocka_unit_test(a_snapshot_that_cannot_be_read_makes_it_forget),
        cmocka_unit_test(more_notes_than_there_is_room_for_hold_the_tail_longer),
        cmocka_unit_test(a_lane_at_rest_keeps_nothing),
        cmocka_unit_test(a_slow_sweep_looks_from_the_beginning),
    };
    const struct CMUnitTest real[] = {
        LAB_TEST(a_claim_does_not_look_behind_its_tail),
        LAB_TEST(another_server_makes_it_look_from_the_beginning),
        LAB_TEST(a_clock_that_was_set_back_makes_it_look_from_the_beginning),
        LAB_TEST(an_error_makes_it_look_from_the_beginning),
        LAB_TEST(a_claim_at_another_time_leaves_no_mark),
        LAB_TEST(the_tail_does_not_pass_a_real_writer_that_no_list_names),
        LAB_TEST(a_claim_that_began_before_another_does_not_speak_for_what_came_since),
        LAB_TEST(no_job_is_overtaken_once_its_commit_is_visible),
        LAB_TEST(a_writer_open_for_long_is_waited_for_by_nobody_and_not_forgotten),
    };
    int failed;

    KIT_NEEDS_SERVER
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    failed = cmocka_run_group_tests(pure, NULL, NULL);
    return failed + cmocka_run_group_tests(real, NULL, NULL);
}
