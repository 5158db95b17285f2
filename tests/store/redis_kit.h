/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_kit.h - what the tests of the Redis store share: a server to be emptied, and commands to it as anybody could send them.
 *
 * They run beside a server that scripts/redis-test has started.
 */
#ifndef ST_TESTS_STORE_REDIS_KIT_H
#define ST_TESTS_STORE_REDIS_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis_conn.h"

static struct st_redis *redis_kit_client(const char *url)
{
    stint_error err = {0};
    struct st_redis *r;

    if (st_redis_open(url, 20000, &r, &err))
        fail_msg("%s: %s", url, err.message);
    return r;
}

/* Every key of every node is gone. */
static inline void redis_empty(const char *url)
{
    struct st_redis *r = redis_kit_client(url);
    struct st_redis_batch b;
    stint_error err = {0};

    st_redis_batch_init(&b);
    st_redis_addv(&b, ST_REDIS_WRITE | ST_REDIS_ALL, "FLUSHALL", (char *)NULL);
    if (st_redis_run(r, &b, &err) || st_redis_reply_fail(r, st_redis_reply(&b, 0), &err))
        fail_msg("FLUSHALL: %s", err.message);
    st_redis_batch_clear(&b);
    st_redis_close(r);
}

#endif
