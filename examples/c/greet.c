/* SPDX-License-Identifier: Apache-2.0
 *
 * greet.c - a program that adds a job and works: all in one process.
 *
 *     cc greet.c $(pkg-config --cflags --libs stint) -o greet
 *     ./greet sqlite:greet.db Ada
 */
#include <stdio.h>
#include <string.h>

#include <stint.h>

/* The first attempt fails, to see it tried again. */
static stint_code greet(stint_attempt *a, void *arg)
{
    char text[256];
    int n;

    (void)arg;
    if (stint_attempt_number(a) == 1)
        return stint_attempt_fail(a, STINT_RETRY, 100, "nobody answered");
    n = snprintf(text, sizeof(text), "\"Hello, %.200s!\"", stint_attempt_payload(a, NULL));
    return stint_attempt_complete(a, text, (size_t)n);
}

static void tell(void *arg, const stint_event *event)
{
    printf("%s %s\n", event->name, event->state ? event->state : "");
    if (event->state && strcmp(event->state, "succeeded") == 0)
        stint_worker_stop(*(stint_worker **)arg);
}

int main(int argc, char **argv)
{
    stint_worker_options options = STINT_WORKER_OPTIONS_INIT;
    stint_job job = STINT_JOB_INIT;
    stint_worker *worker = NULL;
    stint_error err = {STINT_OK, "", "", ""};
    stint *st = NULL;

    job.type = "greet";
    job.payload = argc > 2 ? argv[2] : "world";
    job.payload_len = strlen((const char *)job.payload);
    options.event = tell;
    options.event_arg = &worker;
    if (stint_open(argc > 1 ? argv[1] : NULL, 0, &st, &err) != STINT_OK ||
        stint_enqueue(st, &job, 1, NULL, &err) != STINT_OK ||
        stint_worker_new(argc > 1 ? argv[1] : NULL, &options, &worker, &err) != STINT_OK ||
        stint_worker_handle(worker, "greet", greet, NULL, NULL, &err) != STINT_OK ||
        stint_worker_run(worker, &err) != STINT_OK)
        fprintf(stderr, "%s: %s\n", stint_code_name(err.code), err.message);
    stint_worker_free(worker);
    stint_close(st);
    return err.code != STINT_OK;
}
