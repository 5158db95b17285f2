/* SPDX-License-Identifier: Apache-2.0
 *
 * enqueue.c - add a job from a C or C++ program and wait for it.
 *
 *     cc enqueue.c $(pkg-config --cflags --libs stint) -o enqueue
 *     ./enqueue sqlite:stint.db report '{"name": "June", "numbers": [3, 4, 5]}'
 *
 * Prints the id at once and, with WAIT_MS given, the state it ended in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stint.h>

static int complain(const stint_error *err)
{
    fprintf(stderr, "%s: %s\n", stint_code_name(err->code), err->message);
    return 1;
}

static int enqueue(stint *st, const char *type, const char *payload, stint_enqueued *out)
{
    stint_job job = STINT_JOB_INIT;
    stint_error err;

    job.type = type;
    job.payload = payload;
    job.payload_len = strlen(payload);
    if (stint_enqueue(st, &job, 1, out, &err) != STINT_OK)
        return complain(&err);
    printf("%s\n", out->id);
    fflush(stdout);
    return 0;
}

static int wait_for(stint *st, const char *id, int timeout_ms)
{
    const char *state;
    stint_error err;

    if (stint_wait(st, id, timeout_ms, &state, &err) != STINT_OK)
        return complain(&err);
    printf("%s\n", state);
    return strcmp(state, "succeeded") != 0;
}

int main(int argc, char **argv)
{
    stint *st;
    stint_error err;
    stint_enqueued job;
    int rc;

    if (argc < 4) {
        fprintf(stderr, "usage: enqueue STORE TYPE PAYLOAD [WAIT_MS]\n");
        return 2;
    }
    if (stint_open(argv[1], 0, &st, &err) != STINT_OK)
        return complain(&err);
    rc = enqueue(st, argv[2], argv[3], &job);
    if (rc == 0 && argc > 4)
        rc = wait_for(st, job.id, atoi(argv[4]));
    stint_close(st);
    return rc;
}
