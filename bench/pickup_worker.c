/* SPDX-License-Identifier: Apache-2.0
 *
 * pickup_worker.c - a worker of the library that says when a handler has begun, in the words of
 * bench/peers/run.
 *
 *     pickup_worker URL QUEUE     prints "ready", then "I NANOSECONDS" for each job {"i": I, ...},
 * until standard input ends
 *
 * The clock is CLOCK_REALTIME, as Go's time.Now(): the producer beside it is asynq's own client.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stint.h"

static stint_code begun(stint_attempt *a, void *arg)
{
    struct timespec ts;
    size_t len;
    const char *payload, *number;

    (void)arg;
    clock_gettime(CLOCK_REALTIME, &ts);
    payload = stint_attempt_payload(a, &len);
    number = len ? memchr(payload, ':', len) : NULL;
    printf("%ld %" PRId64 "\n", number ? strtol(number + 1, NULL, 10) : -1L,
           (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec);
    fflush(stdout);
    return STINT_OK;
}

static int fail(const stint_error *err)
{
    fprintf(stderr, "pickup_worker: %s\n", err->message);
    return 1;
}

int main(int argc, char **argv)
{
    stint_worker_options opt = STINT_WORKER_OPTIONS_INIT;
    stint_worker *w = NULL;
    stint_error err;
    char buf[256];

    if (argc != 3) {
        fprintf(stderr, "usage: pickup_worker URL QUEUE\n");
        return 2;
    }
    opt.slots = 10;
    opt.queues = argv[2];
    if (stint_worker_new(argv[1], &opt, &w, &err) != STINT_OK ||
        stint_worker_handle(w, "*", begun, NULL, NULL, &err) != STINT_OK || stint_worker_start(w, &err) != STINT_OK)
        return fail(&err);
    puts("ready");
    fflush(stdout);
    while (read(0, buf, sizeof(buf)) > 0)
        continue;
    stint_worker_stop(w);
    if (stint_worker_join(w, &err) != STINT_OK)
        return fail(&err);
    stint_worker_free(w);
    return 0;
}
