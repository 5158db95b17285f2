/* SPDX-License-Identifier: Apache-2.0
 *
 * supervise.c - when a child that died may be started again.
 */
#include "execute/supervise.h"

#include "base/clock.h"

const struct st_supervise_conf st_supervise_default = {.first_us = ST_SEC,
                                                       .most_us = 5 * ST_MIN,
                                                       .calm_us = 10 * ST_MIN,
                                                       .crashes = 5,
                                                       .window_us = 10 * ST_MIN,
                                                       .cool_us = 10 * ST_MIN};

static int64_t last_crash(const struct st_supervise *s, uint64_t back)
{
    return s->crashed_us[(s->n_crashes - 1 - back) % ST_CRASHES_MAX];
}

static bool too_many(const struct st_supervise *s, const struct st_supervise_conf *conf, int64_t now_us)
{
    uint64_t n = (uint64_t)conf->crashes;

    return s->n_crashes >= n && now_us - last_crash(s, n - 1) <= conf->window_us;
}

static void open_for(struct st_supervise *s, int64_t start_us)
{
    s->state = ST_SUPERVISE_OPEN;
    s->start_us = start_us;
}

static void count(struct st_supervise *s, const struct st_supervise_conf *conf, int64_t now_us)
{
    if (s->n_crashes == 0 || now_us - last_crash(s, 0) > conf->calm_us)
        s->wait_us = 0;
    s->wait_us = s->wait_us ? 2 * s->wait_us : conf->first_us;
    if (s->wait_us > conf->most_us)
        s->wait_us = conf->most_us;
    s->crashed_us[s->n_crashes++ % ST_CRASHES_MAX] = now_us;
    s->start_us = now_us + s->wait_us;
    s->doubtful = true;
}

bool st_supervise_crashed(struct st_supervise *s, const struct st_supervise_conf *conf, int64_t now_us)
{
    switch (s->state) {
    case ST_SUPERVISE_UP:
        if (now_us < s->start_us)
            return false;
        count(s, conf, now_us);
        if (!too_many(s, conf, now_us))
            return false;
        open_for(s, now_us + conf->cool_us);
        return true;
    case ST_SUPERVISE_TRYING:
        count(s, conf, now_us);
        open_for(s, now_us + conf->cool_us);
        return false;
    case ST_SUPERVISE_OPEN:
    case ST_SUPERVISE_PARKED:
        break;
    }
    return false;
}

bool st_supervise_ready(struct st_supervise *s)
{
    bool other = s->state == ST_SUPERVISE_TRYING;

    if (s->state == ST_SUPERVISE_UP || s->state == ST_SUPERVISE_TRYING) {
        s->state = ST_SUPERVISE_UP;
        s->doubtful = false;
    }
    return other;
}

bool st_supervise_park(struct st_supervise *s)
{
    bool other = st_supervise_healthy(s);

    s->state = ST_SUPERVISE_PARKED;
    return other;
}

int64_t st_supervise_wait(const struct st_supervise *s, int64_t now_us)
{
    if (s->state == ST_SUPERVISE_PARKED)
        return -1;
    return now_us < s->start_us ? s->start_us - now_us : 0;
}

void st_supervise_started(struct st_supervise *s)
{
    if (s->state == ST_SUPERVISE_OPEN)
        s->state = ST_SUPERVISE_TRYING;
}
