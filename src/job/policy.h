/* SPDX-License-Identifier: Apache-2.0
 *
 * policy.h - how often, how long and how soon again: retry policies.
 */
#ifndef ST_JOB_POLICY_H
#define ST_JOB_POLICY_H

#include "base/buf.h"
#include "base/clock.h"

enum st_backoff {
    ST_BACKOFF_EXPONENTIAL, /* initial * multiplier^(attempt-1), at most max */
    ST_BACKOFF_LINEAR,      /* initial * attempt, at most max */
    ST_BACKOFF_FIXED,       /* initial */
    ST_BACKOFF_ASYNQ,       /* n^4 + 15 + random(30) * (n+1) seconds, n = retries so far = attempt-1 */
    ST_BACKOFF_LIST,        /* delays[attempt-1], the last one repeated */
};

#define ST_DELAYS_MAX   16
#define ST_ATTEMPTS_MAX 1000000 /* the most that max_attempts may say */

struct st_policy {
    int max_attempts;   /* runs, not retries; 0 = no limit */
    int64_t timeout_us; /* wall clock per attempt; 0 = none */
    enum st_backoff backoff;
    int64_t initial_us;
    double multiplier;
    int64_t max_us;
    double jitter; /* 0.1 = up to 10% more or less (not for asynq, which has its own) */
    int n_delays;
    int64_t delays_us[ST_DELAYS_MAX];
};

/* 3 runs, 1 h, exponential 10 s x2 cap 300 s, jitter 0.1 */
extern const struct st_policy st_policy_default;

/* How long to wait after attempt (1 = the first run) has failed.  unit is a random number in [0,1);
 * with jitter j the delay is scaled by 1 - j + 2*j*unit.  Never negative, never overflows. */
int64_t st_policy_delay(const struct st_policy *p, int attempt, double unit);

/* May it run again after this attempt?  max_attempts 0 = always. */
bool st_policy_may_retry(int max_attempts, int attempt);

const char *st_backoff_name(enum st_backoff b);
bool st_backoff_parse(struct st_slice s, enum st_backoff *out);

/* As one line of JSON with fixed member order, and back; what stores keep. */
void st_policy_write(const struct st_policy *p, struct st_buf *out);
bool st_policy_read(struct st_slice text, struct st_policy *out);

#endif
