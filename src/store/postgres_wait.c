/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_wait.c - sleeping until somebody says that there is work, or news of this worker's jobs.
 *
 * A handle that was told what to watch has a connection of its own for LISTEN, and no other.  The channel is the
 * schema's name:
 *
 *     w QUEUE    there is work             for those who sleep; nobody does: it is not sent
 *     c WORKER   a job was asked to stop   for that worker
 *     l WORKER   a job may be another's    for that worker
 *
 * A worker that wants jobs and has none is asleep: its session holds a shared lock for each of its queues.  Whoever has
 * enqueued looks, after his commit, if somebody holds one, and only then notifies, so that a busy system commits without
 * NOTIFY's global lock.  After the locks are taken, and before it sleeps, the session looks once if there is work:
 *
 *     AWAKE --locks taken--> ASLEEP --w: locks released--> AWAKE    ST_NEWS_WORK
 *                              `------there was something--> ASLEEP ST_NEWS_LOOK: the claim that follows is the last look
 *
 *     an enqueue commits before that look   the look finds it
 *     it commits later                      then it finds the lock, and notifies
 *
 *     it looked before the locks were       the look finds that somebody is at the table of what waits, and is
 *     taken, and commits after the look     repeated until that has ended: in a moment, then less and less often
 *     (the SQL functions do)
 *
 * So nothing is missed but what is lost with a connection: that costs a poll.
 *
 * The connection is asked for a sign of life from time to time, and made anew when it is lost.  While there is none, or
 * where there cannot be one (notify=off; a pooler, and no listen=), waits only let time pass, and say so: ST_NEWS_DEAF.
 * A handle that was not told what to watch makes no connection: its waits come back twice a second.  NOTIFY for
 * every job that ends would be dear, and who waits for an end looks more often by himself (see enqueue/await.c).
 *
 * Thread: the handle's; st_pg_interrupt may come from any.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "store/postgres_conn.h"

#define BEAT_US (20 * ST_SEC) /* so long without a word: is anybody there? */
#define DOZE_US (500 * ST_MS) /* a wait that was not told what for */
#define LOCKS   50 /* for the queues of one session: a server has room for 64 per connection, for all it does */
#define ALL     (ST_NEWS_WORK | ST_NEWS_CANCEL | ST_NEWS_LOST)

struct st_pg_wait {
    PGconn *c; /* NULL = there is none */
    bool mute; /* nor can there be one */

    /* what it is for; the names are in one allocation */
    bool watched, work;
    struct st_slice *queues, worker;
    size_t n_queues; /* 0 = all */

    bool asleep;     /* the locks are held */
    bool relock;     /* but for other queues than those */
    int64_t look_us; /* asleep: when to look again, since somebody had not committed yet; 0 = never */
    struct st_tries looks;
    bool owed; /* an answer is under way to a request that nobody waits for */
    int64_t asked_us, heard_us;
    struct st_tries tries;
    int64_t retry_us; /* when to connect again */
    bool away;        /* people were told that it is lost */

    unsigned pending; /* heard, and not told yet */
    unsigned news;    /* what the last wait has told */
    bool told_deaf;
};

static struct st_pg_wait *wait_of(struct st_pg *s, stint_error *err)
{
    if (s->w)
        return s->w;
    s->w = calloc(1, sizeof(*s->w));
    if (!s->w) {
        st_fail(err, STINT_ENOMEM, "no memory to wait");
        return NULL;
    }
    s->w->tries = (struct st_tries){.base_us = 100 * ST_MS, .max_us = 5 * ST_SEC};
    s->w->looks = (struct st_tries){.base_us = 5 * ST_MS, .max_us = 500 * ST_MS};
    s->w->mute = !s->url.notify;
    return s->w;
}

/* ---- what it is for ---------------------------------------------------------------------------- */

static bool same_queues(const struct st_pg_wait *w, const struct st_slice *queues, size_t n)
{
    if (n != w->n_queues)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!st_slice_eq(w->queues[i], queues[i]))
            return false;
    return true;
}

static struct st_slice keep(char **at, struct st_slice from)
{
    struct st_slice copy = ST_SLICE(*at, from.len);

    memcpy(*at, from.p, from.len);
    *at += from.len;
    return copy;
}

static bool names_take(struct st_pg_wait *w, struct st_slice worker, const struct st_slice *queues, size_t n)
{
    size_t size = n * sizeof(*queues) + worker.len;
    struct st_slice *list;
    char *text;

    for (size_t i = 0; i < n; i++)
        size += queues[i].len;
    list = malloc(size);
    if (!list)
        return false;
    text = (char *)(list + n);
    for (size_t i = 0; i < n; i++)
        list[i] = keep(&text, queues[i]);
    w->worker = keep(&text, worker);
    free(w->queues);
    w->queues = list;
    w->n_queues = n;
    return true;
}

stint_code st_pg_watch(struct st_store *store, struct st_slice worker, const struct st_slice *queues, size_t n,
                       bool work, stint_error *err)
{
    struct st_pg_wait *w = wait_of(st_pg_of(store), err);

    if (!w)
        return STINT_ENOMEM;
    if (!w->watched || !st_slice_eq(w->worker, worker) || !same_queues(w, queues, n)) {
        if (!names_take(w, worker, queues, n))
            return st_fail(err, STINT_ENOMEM, "no memory to watch %zu queues", n);
        w->watched = w->relock = true;
    }
    w->work = work;
    if (!work)
        w->pending &= ~(unsigned)(ST_NEWS_WORK | ST_NEWS_LOOK);
    return STINT_OK;
}

static bool is_ours(const struct st_pg_wait *w, struct st_slice queue)
{
    bool covered = w->n_queues == 0;

    for (size_t i = 0; !covered && i < w->n_queues; i++)
        covered = st_queue_covers(w->queues[i], queue);
    return covered;
}

/* ---- the connection ---------------------------------------------------------------------------------- */

static void lost(struct st_pg *s, const stint_error *err)
{
    struct st_pg_wait *w = s->w;

    if (!w->away)
        st_log(ST_LOG_WARN, "store.listen_lost", ST_F("where", s->url.where),
               ST_F("error", err ? err->message : "the connection was lost"),
               ST_F("effect", "new jobs are noticed by polling until it is back"));
    w->away = true;
    PQfinish(w->c);
    w->c = NULL;
    w->asleep = w->owed = false;
    w->look_us = 0;
    w->retry_us = st_clock_mono_us() + st_tries_next(&w->tries);
}

/* Behind a pooler one backend listens and another would have to tell. */
static void be_mute(struct st_pg *s)
{
    s->w->mute = true;
    st_log(ST_LOG_WARN, "store.no_listen", ST_F("where", s->url.where),
           ST_F("why", "a connection pooler stands between"), ST_F("effect", "new jobs are noticed by polling"),
           ST_F("remedy", "add listen=URL to the store's URL, with the server's own address"));
}

/* The session looks with the snapshot of each statement, and may rest for as long as it likes. */
static bool start_listening(struct st_pg *s, PGconn *c, stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    char sql[512];

    snprintf(sql, sizeof(sql),
             "SET search_path = pg_catalog; SET default_transaction_isolation = 'read committed'; SET "
             "statement_timeout = %d;"
             " SET lock_timeout = 0;"
             " SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'; LISTEN %s",
             s->base.timeout_ms < INT32_MAX - 1000 ? s->base.timeout_ms + 1000 : 0, s->url.quoted);
    return st_pg_exec_on(s, c, sql, NULL, until_us, NULL, err) == ST_PG_DONE;
}

/* What was said before is lost: it may have been about us. */
static void connect_now(struct st_pg *s)
{
    struct st_pg_wait *w = s->w;
    stint_error err = {0};
    bool pooled = false;

    w->c = st_pg_connect(s, s->url.listen, &pooled, &err);
    if (w->c && pooled) {
        PQfinish(w->c);
        w->c = NULL;
        be_mute(s);
        return;
    }
    if (!w->c || !start_listening(s, w->c, &err)) {
        lost(s, &err);
        return;
    }
    st_log(w->away ? ST_LOG_INFO : ST_LOG_DEBUG, "store.listening", ST_F("where", s->url.where));
    w->away = false;
    w->heard_us = st_clock_mono_us();
    w->pending |= ST_NEWS_CANCEL | ST_NEWS_LOST;
}

/* ---- hearing -------------------------------------------------------------------------------------------- */

static unsigned meaning(const struct st_pg_wait *w, const char *text)
{
    const struct st_slice name = st_slice_cstr(text[0] && text[1] ? text + 2 : "");

    if (strncmp(text, "w ", 2) == 0)
        return w->work && is_ours(w, name) ? ST_NEWS_WORK : 0;
    if (strncmp(text, "c ", 2) == 0)
        return st_slice_eq(name, w->worker) ? ST_NEWS_CANCEL : 0;
    if (strncmp(text, "l ", 2) == 0)
        return st_slice_eq(name, w->worker) ? ST_NEWS_LOST : 0;
    return 0;
}

static void take_notes(struct st_pg_wait *w)
{
    PGnotify *n;

    while ((n = PQnotifies(w->c))) {
        w->pending |= meaning(w, n->extra ? n->extra : "");
        PQfreemem(n);
    }
}

/* Reads the answer that is under way, as far as it has come.  false = it is a refusal. */
static bool take_answer(struct st_pg_wait *w)
{
    bool fine = true;

    while (w->owed && !PQisBusy(w->c)) {
        PGresult *r = PQgetResult(w->c);

        if (!r) {
            w->owed = false;
            w->tries.n = 0;
        } else if (PQresultStatus(r) != PGRES_TUPLES_OK) {
            fine = false;
        }
        PQclear(r);
    }
    return fine;
}

/* Whatever has come.  false = the connection cannot be used any more. */
static bool hear(struct st_pg_wait *w)
{
    if (!PQconsumeInput(w->c))
        return false;
    w->heard_us = st_clock_mono_us();
    if (!take_answer(w) || PQstatus(w->c) != CONNECTION_OK)
        return false;
    take_notes(w);
    return true;
}

/* Waits for the answer that is under way. */
static bool settle(struct st_pg *s)
{
    struct st_pg_wait *w = s->w;
    const int64_t until_us = w->asked_us + s->base.timeout_ms * ST_MS;

    while (w->owed)
        if (st_pg_poll(w->c, POLLIN, until_us) <= 0 || !hear(w))
            return false;
    return true;
}

/* A few bytes, after the answer to all that was sent before: they fit into the socket. */
static bool ask(struct st_pg *s, const char *sql)
{
    struct st_pg_wait *w = s->w;

    if (!settle(s) || !PQsendQuery(w->c, sql))
        return false;
    w->owed = true;
    w->asked_us = st_clock_mono_us();
    return true;
}

/* ---- falling asleep -------------------------------------------------------------------------------------- */

static bool is_ascii(struct st_slice name)
{
    for (size_t i = 0; i < name.len; i++)
        if ((unsigned char)name.p[i] > 0x7e)
            return false;
    return true;
}

/* narrow: a name may be one that the database does not have the characters of.  Who listens for all queues hears its own too: so
 * do those of very many, since whoever uses up the server's locks takes them from everybody. */
static void put_queues(const struct st_pg_wait *w, struct st_pg_args *a, bool narrow)
{
    bool all = w->n_queues == 0 || w->n_queues > LOCKS;

    for (size_t i = 0; !all && i < w->n_queues; i++)
        all = st_slice_is(w->queues[i], ST_QUEUE_ANY) || (narrow && !is_ascii(w->queues[i]));
    st_pg_array(a, ST_PG_TEXT);
    if (all)
        st_pg_item_bytes(a, st_slice_cstr(ST_QUEUE_ANY));
    for (size_t i = 0; !all && i < w->n_queues; i++)
        st_pg_item_bytes(a, w->queues[i]);
    st_pg_array_end(a);
}

/* Of the even lanes only what the claims have not passed; of the odd ones, which have no order to speak of, all. */
static void put_lanes(struct st_pg *s, struct st_pg_args *a)
{
    struct st_pg_shared *sh = s->sh;

    pthread_mutex_lock(&sh->mu);
    st_pg_i64(a, sh->lanes_seen);
    st_pg_i64(a, sh->lanes_max);
    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < sh->n_lanes; i++) {
        if (!is_ours(s->w, sh->lanes[i]->queue))
            continue;
        st_pg_item_i64(a, sh->lanes[i]->id);
        st_pg_item_i64(a, sh->lanes[i]->id + 1);
    }
    st_pg_array_end(a);
    st_pg_array(a, ST_PG_INT8);
    for (size_t i = 0; i < sh->n_lanes; i++) {
        if (!is_ours(s->w, sh->lanes[i]->queue))
            continue;
        st_pg_item_i64(a, st_pg_mark_from(sh->lanes[i])->key);
        st_pg_item_i64(a, INT64_MIN);
    }
    st_pg_array_end(a);
    pthread_mutex_unlock(&sh->mu);
}

/* The answer to a look: 1 there is something, 2 somebody may be about to commit something. */
static void take_look(struct st_pg_wait *w, int64_t seen)
{
    w->relock = false;
    w->tries.n = 0;
    w->heard_us = st_clock_mono_us();
    if (seen & 1)
        w->pending |= ST_NEWS_LOOK;
    if (!(seen & 2))
        w->looks.n = 0;
    w->look_us = seen & 2 ? w->heard_us + st_tries_next(&w->looks) : 0;
}

/* What was heard before the look is seen by it; what comes with its answer may be newer. */
static bool fall_asleep(struct st_pg *s, stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + s->base.timeout_ms * ST_MS;
    const char *sql = st_pg_sql_text(s, PG_ASLEEP);
    struct st_pg_wait *w = s->w;
    struct st_pg_args a;
    PGresult *r = NULL;

    if (!sql || !settle(s) || !hear(w))
        return false;
    w->pending &= ~(unsigned)ST_NEWS_WORK;
    w->asleep = true; /* even if no answer comes */
    st_pg_args_init(&a);
    put_queues(w, &a, st_pg_narrow(w->c));
    put_lanes(s, &a);
    if (st_pg_exec_on(s, w->c, sql, &a, until_us, &r, err) == ST_PG_DONE) {
        take_look(w, st_pg_get_i64(r, 0, 0, 0));
        take_notes(w);
    }
    PQclear(r);
    st_pg_args_clear(&a);
    return err->code == STINT_OK;
}

static bool wake_up(struct st_pg *s)
{
    s->w->asleep = false;
    s->w->look_us = 0;
    s->w->looks.n = 0;
    return ask(s, "SELECT pg_advisory_unlock_all()");
}

static bool must_look(const struct st_pg_wait *w)
{
    return w->look_us && st_clock_mono_us() >= w->look_us;
}

/* Asleep if and only if it is to be.  Whoever was told of work is awake. */
static bool adjust(struct st_pg *s, stint_error *err)
{
    struct st_pg_wait *w = s->w;

    if (w->asleep && (!w->work || w->relock || w->pending & ST_NEWS_WORK) && !wake_up(s))
        return false;
    if (w->work && (!w->asleep || must_look(w)) && !(w->pending & ST_NEWS_WORK) && !fall_asleep(s, err))
        return false;
    return !(w->asleep && w->pending & ST_NEWS_WORK) || wake_up(s);
}

/* ---- waiting ------------------------------------------------------------------------------------------------ */

/* When it must do something of its own accord. */
static int64_t next_us(const struct st_pg *s, int64_t until_us)
{
    const struct st_pg_wait *w = s->w;
    int64_t at = until_us;

    if (w->c)
        at = w->owed ? w->asked_us + s->base.timeout_ms * ST_MS : w->heard_us + BEAT_US;
    else if (!w->mute)
        at = w->retry_us;
    if (w->asleep && w->look_us && w->look_us < at)
        at = w->look_us;
    return at < until_us ? at : until_us;
}

enum event { NOTHING_YET, SLEPT_OUT, INTERRUPTED, SOMETHING_CAME };

static enum event sleep_until(struct st_pg *s, PGconn *c, int64_t until_us)
{
    struct pollfd fds[2] = {{.fd = s->wake_fd, .events = POLLIN}, {.fd = c ? PQsocket(c) : -1, .events = POLLIN}};
    const int64_t left = until_us - st_clock_mono_us(), us = left < 0 ? 0 : left;
    const struct timespec ts = {.tv_sec = (time_t)(us / ST_SEC), .tv_nsec = (long)(us % ST_SEC) * 1000};
    uint64_t count;

    if (ppoll(fds, 2, &ts, NULL) <= 0)
        return SLEPT_OUT;
    if (!fds[0].revents)
        return SOMETHING_CAME;
    if (read(s->wake_fd, &count, sizeof(count)) < 0)
        return SLEPT_OUT;
    return INTERRUPTED;
}

static bool keep_alive(struct st_pg *s)
{
    struct st_pg_wait *w = s->w;
    const int64_t now = st_clock_mono_us();

    if (w->owed)
        return now < w->asked_us + s->base.timeout_ms * ST_MS;
    return now < w->heard_us + BEAT_US || ask(s, "SELECT 1");
}

static void tend(struct st_pg *s, bool readable)
{
    struct st_pg_wait *w = s->w;
    stint_error err = {0};

    if (!w->c && !w->mute && st_clock_mono_us() >= w->retry_us)
        connect_now(s);
    if (w->c && ((readable && !hear(w)) || !keep_alive(s) || !adjust(s, &err)))
        lost(s, err.code ? &err : NULL);
    if (w->told_deaf != !w->c)
        w->pending |= ALL;
}

static void tell(struct st_pg_wait *w, bool *woken)
{
    *woken = true;
    w->told_deaf = !w->c;
    if (!w->work)
        w->pending &= ~(unsigned)(ST_NEWS_WORK | ST_NEWS_LOOK);
    w->news = w->pending | (w->c ? 0 : ST_NEWS_DEAF);
    w->pending = 0;
}

static void wait_in(struct st_pg *s, int64_t until_us, bool *woken)
{
    struct st_pg_wait *w = s->w;
    enum event event = NOTHING_YET;

    st_pg_conn_drop(s); /* a worker of four threads has four connections */
    for (;;) {
        tend(s, event == SOMETHING_CAME);
        if (w->pending) {
            tell(w, woken);
            return;
        }
        if (st_clock_mono_us() >= until_us && event == SLEPT_OUT)
            return;
        event = sleep_until(s, w->c, next_us(s, until_us));
        if (event == INTERRUPTED)
            return;
    }
}

static void doze(struct st_pg *s, int64_t until_us, bool *woken)
{
    const int64_t nap_us = st_clock_mono_us() + DOZE_US;

    *woken = sleep_until(s, NULL, nap_us < until_us ? nap_us : until_us) == SLEPT_OUT && nap_us < until_us;
    if (*woken)
        s->w->news = ALL | ST_NEWS_DEAF;
}

stint_code st_pg_wait(struct st_store *store, int timeout_ms, bool *woken, stint_error *err)
{
    const int64_t until_us = st_clock_mono_us() + timeout_ms * ST_MS;
    struct st_pg *s = st_pg_of(store);
    stint_error local = {0};

    *woken = false;
    if (st_pg_fork_check(s, &local) || !wait_of(s, &local)) {
        if (err)
            *err = local;
        return local.code;
    }
    s->w->news = 0;
    if (s->w->watched)
        wait_in(s, until_us, woken);
    else
        doze(s, until_us, woken);
    return STINT_OK;
}

unsigned st_pg_news(struct st_store *store)
{
    const struct st_pg *s = st_pg_of(store);

    return s->w ? s->w->news : 0;
}

void st_pg_wait_close(struct st_pg *s)
{
    if (!s->w)
        return;
    PQfinish(s->w->c);
    free(s->w->queues);
    free(s->w);
    s->w = NULL;
}
