/* SPDX-License-Identifier: Apache-2.0
 *
 * signal_int.h - what the parts of the signal share: telling (signal_tell.c), hearing (signal_hear.c), and the store that
 * is wrapped around both (signal.c).
 *
 * Three channels, named after the URL's prefix= (stint):
 *
 *     PREFIX:sched    there may be work     a queue's name, or * for any
 *     PREFIX:owls     a job was taken       the worker that had it, or *
 *     PREFIX:cancel   a job is to stop      its id
 */
#ifndef ST_STORE_SIGNAL_INT_H
#define ST_STORE_SIGNAL_INT_H

#include "store/redis_conn.h"
#include "store/store.h"

enum st_signal_what { ST_SIGNAL_SCHED, ST_SIGNAL_OWLS, ST_SIGNAL_CANCEL, ST_SIGNAL_N };

#define ST_SIGNAL_PREFIX_MAX 64
#define ST_SIGNAL_ANY        "*"
#define ST_SIGNAL_TIMEOUT_MS 1000

struct st_signal_channels {
    char names[ST_SIGNAL_N][ST_SIGNAL_PREFIX_MAX + 16];
};

struct st_redis_url;
/* EINVAL if it has options that are not for this. */
stint_code st_signal_channels(const struct st_redis_url *u, struct st_signal_channels *out, stint_error *err);

/* ---- telling: a thread of its own, so that nobody waits for Redis -------------------------------- */

struct st_teller;

struct st_teller *st_teller_new(const char *url, const struct st_signal_channels *channels, stint_error *err);
/* Soon; the same thing said twice before it is sent is sent once. */
void st_teller_tell(struct st_teller *t, enum st_signal_what what, struct st_slice about);
/* Sends what is left, if that is possible within ST_SIGNAL_TIMEOUT_MS.  NULL is fine. */
void st_teller_free(struct st_teller *t);

/* ---- hearing: the waits of one handle ------------------------------------------------------------ */

struct st_hearer;

struct st_hearer *st_hearer_new(struct st_redis *r, const struct st_signal_channels *channels, stint_error *err);
void st_hearer_free(struct st_hearer *h);
stint_code st_hearer_watch(struct st_hearer *h, struct st_slice worker, const struct st_slice *queues, size_t n,
                           bool work, stint_error *err);
/* While Redis is away the real store's own waits stand in. */
stint_code st_hearer_wait(struct st_hearer *h, struct st_store *real, int timeout_ms, bool *woken, stint_error *err);
unsigned st_hearer_news(struct st_hearer *h);
void st_hearer_interrupt(struct st_hearer *h); /* any thread */

#endif
