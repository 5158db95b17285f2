/* SPDX-License-Identifier: Apache-2.0
 *
 * supervise.h - when a child that died may be started again.
 *
 *     UP --crash--> UP, next start after 1 s, 2 s, ... 5 min
 *     UP --5 crashes in 10 min--> OPEN --10 min--> TRYING --ready--> UP
 *                                   ^----crash----'
 *     any --park--> PARKED, until it is reset
 *
 * No clock, no process: the caller tells what happened, and when.
 */
#ifndef ST_EXECUTE_SUPERVISE_H
#define ST_EXECUTE_SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>

#define ST_CRASHES_MAX 16

struct st_supervise_conf {
    int64_t first_us, most_us; /* wait before a restart; doubles from crash to crash */
    int64_t calm_us;           /* after this long without a crash it starts small again */
    int crashes;               /* so many, at most ST_CRASHES_MAX, ... */
    int64_t window_us;         /* ... in so long are too many */
    int64_t cool_us;           /* then nothing is tried for this long */
};
extern const struct st_supervise_conf st_supervise_default;

enum st_supervise_state { ST_SUPERVISE_UP, ST_SUPERVISE_OPEN, ST_SUPERVISE_TRYING, ST_SUPERVISE_PARKED };

struct st_supervise {
    enum st_supervise_state state;
    int64_t crashed_us[ST_CRASHES_MAX]; /* the last ones, in turn */
    uint64_t n_crashes;
    int64_t wait_us;  /* the last wait */
    int64_t start_us; /* no start before */
    bool doubtful;    /* none got ready since the last crash: try with one */
};

/* Each says whether it is another health now.  A crash while a restart is waited for is part of
 * the same trouble and counts once. */
bool st_supervise_crashed(struct st_supervise *s, const struct st_supervise_conf *conf, int64_t now_us);
bool st_supervise_ready(struct st_supervise *s);
bool st_supervise_park(struct st_supervise *s);

static inline bool st_supervise_healthy(const struct st_supervise *s)
{
    return s->state == ST_SUPERVISE_UP;
}
/* How long until one may be started: 0 = now, -1 = never. */
int64_t st_supervise_wait(const struct st_supervise *s, int64_t now_us);
/* One is started. */
void st_supervise_started(struct st_supervise *s);

#endif
