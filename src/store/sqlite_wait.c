/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite_wait.c - sleeping until somebody, in any process, has committed something.
 *
 * A commit appends to the -wal file: inotify tells.  But it tells before the commit can be seen (it
 * is synced first, then published in shared memory), so after an event data_version is looked at in
 * short, growing steps.  Behind that, a look each second, should inotify not be there.
 *
 *     asleep --wal written--> looking --data_version moved--> woken
 *                                `------1 s without---------> asleep
 *
 * The first wait of a handle returns at once: it cannot know what happened before.
 *
 * Thread: the handle's; st_sq_interrupt may come from any.
 */
#include "store/sqlite_int.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#define SLOW_LOOK_US  ST_SEC
#define LOOK_FIRST_US 100
#define LOOK_CLOSE_US (2 * ST_MS) /* a sync usually takes less */
#define LOOK_MOST_US  (100 * ST_MS)
#define LOOK_TOTAL_US ST_SEC
#define LOOK_AFTER_US                                                                                                  \
    (20 * ST_MS) /* once a commit was seen: for another that came along with it  \
                                    */

void st_sq_interrupt(struct st_store *store)
{
    const uint64_t one = 1;
    ssize_t n = write(st_sq_of(store)->wake_fd, &one, sizeof(one));

    (void)n; /* a full counter means that it is signalled already */
}

static void watch(struct st_sq *s, struct st_sq_conn *c)
{
    const char *wal = sqlite3_filename_wal(sqlite3_db_filename(c->db, "main"));

    if (s->inotify_fd != -1)
        return;
    s->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (s->inotify_fd >= 0 && inotify_add_watch(s->inotify_fd, wal, IN_MODIFY) >= 0)
        return;
    st_log(ST_LOG_WARN, "store.no_inotify", ST_F("path", wal), ST_F("why", "new jobs are noticed once a second only"));
    if (s->inotify_fd >= 0)
        close(s->inotify_fd);
    s->inotify_fd = -2;
}

static stint_code version_read(struct st_sq_conn *c, int64_t *version, stint_error *err)
{
    sqlite3_stmt *st = st_sq_stmt(c, SQ_DATA_VERSION, err);
    const int rc = st ? st_sq_step(c, st, err) : -1;

    if (rc < 0)
        return err->code;
    *version = col_int(st, 0);
    sqlite3_reset(st);
    return STINT_OK;
}

/* *moved: something was committed since wait last said so. */
static stint_code look(struct st_sq *s, struct st_sq_conn *c, bool *moved, stint_error *err)
{
    int64_t version = 0;
    ST_SQ_GATE;

    if (version_read(c, &version, err))
        return err->code;
    *moved = version != s->seen_version;
    s->seen_version = version;
    return STINT_OK;
}

static void drain(int fd)
{
    char buf[4096] __attribute__((aligned(8)));

    while (read(fd, buf, sizeof(buf)) > 0)
        ;
}

enum event { EV_NONE, EV_WAL, EV_INTERRUPT };

static enum event sleep_until(struct st_sq *s, int64_t until)
{
    struct pollfd fds[2] = {{.fd = s->wake_fd, .events = POLLIN},
                            {.fd = s->inotify_fd >= 0 ? s->inotify_fd : -1, .events = POLLIN}};
    int64_t left = until - st_clock_mono_us();
    struct timespec ts;

    left = left < 0 ? 0 : left;
    ts = (struct timespec){.tv_sec = (time_t)(left / ST_SEC), .tv_nsec = (long)(left % ST_SEC) * 1000};
    if (ppoll(fds, 2, &ts, NULL) <= 0)
        return EV_NONE;
    if (fds[0].revents) {
        drain(s->wake_fd);
        return EV_INTERRUPT;
    }
    drain(s->inotify_fd);
    return EV_WAL;
}

/* How long to sleep before the next look: in short, growing steps while a commit may be about to
 * become visible, else long. */
static int64_t nap(const struct st_sq *s, int64_t now, int64_t *step)
{
    const int64_t us = *step;

    if (now >= s->look_until_us) {
        *step = LOOK_FIRST_US;
        return SLOW_LOOK_US;
    }
    *step = us < LOOK_CLOSE_US ? us * 3 / 2 : us * 2;
    if (*step > LOOK_MOST_US)
        *step = LOOK_MOST_US;
    return us;
}

/* look_until_us stays with the handle: a wait that ends early leaves the rest of the looking to the
 * next. */
static stint_code wait_in(struct st_sq *s, struct st_sq_conn *c, int64_t until, bool *woken, stint_error *err)
{
    int64_t now, us, step = LOOK_FIRST_US;
    enum event ev;

    watch(s, c);
    for (;;) {
        if (look(s, c, woken, err))
            return err->code;
        now = st_clock_mono_us();
        if (*woken && s->look_until_us > now + LOOK_AFTER_US)
            s->look_until_us = now + LOOK_AFTER_US;
        if (*woken || now >= until)
            return STINT_OK;
        us = nap(s, now, &step);
        ev = sleep_until(s, until - now < us ? until : now + us);
        if (ev == EV_INTERRUPT)
            return STINT_OK;
        if (ev == EV_WAL) {
            s->look_until_us = st_clock_mono_us() + LOOK_TOTAL_US;
            step = LOOK_FIRST_US;
        }
    }
}

stint_code st_sq_wait(struct st_store *store, int timeout_ms, bool *woken, stint_error *err)
{
    struct st_sq *s = st_sq_of(store);
    stint_error local;
    struct st_sq_conn *c = st_sq_reader(s, &local);
    stint_code code;

    *woken = false;
    code = c ? wait_in(s, c, st_clock_mono_us() + timeout_ms * ST_MS, woken, &local) : local.code;
    if (code && err)
        *err = local;
    return code;
}
