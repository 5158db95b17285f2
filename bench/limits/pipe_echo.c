/* SPDX-License-Identifier: Apache-2.0
 *
 * pipe_echo.c - what pipes can give: a bare parent and one child that echoes JSON lines.
 *
 *     pipe_echo CHILD JOBS IN_FLIGHT      prints jobs per second
 *
 * The parent keeps IN_FLIGHT requests under way over the same kind of pipes as ours: it makes each
 * from a job's id, payload, number and deadline, writes what it may with one write, takes all
 * answers of one read, finds out whose each is and keeps a copy of its result until the next one.
 * No timeouts, no checks, no event loop, no JSON.
 */
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE (1u << 20)

extern char **environ;

static char in[SIZE], out[4 * SIZE];

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static bool start(char *path, int *to, int *from, pid_t *pid)
{
    posix_spawn_file_actions_t fa;
    char *argv[] = {path, NULL};
    int a[2], b[2];

    if (pipe2(a, O_CLOEXEC) || pipe2(b, O_CLOEXEC) || posix_spawn_file_actions_init(&fa))
        return false;
    posix_spawn_file_actions_adddup2(&fa, a[0], 0);
    posix_spawn_file_actions_adddup2(&fa, b[1], 1);
    if (posix_spawn(pid, path, &fa, NULL, argv, environ))
        return false;
    close(a[0]);
    close(b[1]);
    *to = a[1];
    *from = b[0];
    return true;
}

#define PUT(p, text) ((char *)mempcpy(p, text, sizeof(text) - 1))

/* n with at least `width` digits. */
static char *put_digits(char *p, long n, int width)
{
    char text[24], *t = text + sizeof(text);

    for (; n || width > 0; n /= 10, width--)
        *--t = (char)('0' + n % 10);
    return mempcpy(p, t, (size_t)(text + sizeof(text) - t));
}

static char *request(char *p, long n)
{
    static const char payload[] = "{\"order\": 4711, \"text\": \"hello world\", \"items\": [1, 2, 3]}";

    p = PUT(p, "{\"task_id\":\"019a0000-0000-7000-8000-");
    p = put_digits(p, n, 12);
    p = PUT(p, "\",\"type\":\"echo\",\"payload\":");
    p = mempcpy(p, payload, sizeof(payload) - 1);
    p = PUT(p, ",\"retry_count\":0,\"max_retry\":2,\"queue\":\"default\",\"attempt\":1,"
               "\"deadline\":\"2030-01-01T12:00:00.");
    p = put_digits(p, n % 1000000, 6);
    p = PUT(p, "Z\",\"fence\":");
    p = put_digits(p, n + 1, 1);
    return PUT(p, ",\"traceparent\":null}\n");
}

/* Whose answer is it?  {"task_id":"019a0000-0000-7000-8000-000000000000","result":..,"error":
 * with or without a blank after each colon and comma, as Python writes it. */
static long answer(const char *line, const char *end, char **result)
{
    const bool blank = line[11] == ' ';
    const char *tail = blank ? ", \"error\":" : ",\"error\":", *from = line + (blank ? 62 : 59);
    const char *to = memmem(from, (size_t)(end - from), tail, strlen(tail));
    long n = 0;

    for (const char *p = line + (blank ? 37 : 36); *p >= '0' && *p <= '9'; p++)
        n = 10 * n + (*p - '0');
    free(*result);
    *result = to ? malloc((size_t)(to - from) + 1) : NULL;
    if (*result)
        *(char *)mempcpy(*result, from, (size_t)(to - from)) = '\0';
    return n;
}

static double run(int to, int from, long jobs, long in_flight)
{
    size_t have = 0, unsent = 0;
    long sent = 0, got = 0, sum = 0;
    double began = now();
    char *result = NULL;

    while (got < jobs) {
        for (; sent < jobs && sent - got < in_flight; sent++)
            unsent = (size_t)(request(out + unsent, sent) - out);
        if (unsent) {
            ssize_t n = write(to, out, unsent);

            if (n > 0)
                memmove(out, out + n, unsent -= (size_t)n);
        }
        if (unsent) {
            struct pollfd p[2] = {{from, POLLIN, 0}, {to, POLLOUT, 0}};

            poll(p, 2, -1);
            if (!(p[0].revents & POLLIN))
                continue;
        }
        ssize_t n = read(from, in + have, sizeof(in) - have);
        char *line = in, *end = in + have + n, *nl;

        if (n <= 0)
            return -1;
        for (; (nl = memchr(line, '\n', (size_t)(end - line))); line = nl + 1, got++)
            sum += answer(line, nl, &result);
        have = (size_t)(end - line);
        memmove(in, line, have);
    }
    free(result);
    return sum == jobs * (jobs - 1) / 2 ? (double)jobs / (now() - began) : -1;
}

int main(int argc, char **argv)
{
    char ready[64];
    double rate;
    int to, from;
    pid_t pid;

    if (argc != 4 || !start(argv[1], &to, &from, &pid) || read(from, ready, sizeof(ready)) <= 0) {
        fprintf(stderr, "usage: pipe_echo CHILD JOBS IN_FLIGHT\n");
        return 2;
    }
    fcntl(to, F_SETFL, O_NONBLOCK);
    rate = run(to, from, atol(argv[2]), atol(argv[3]));
    close(to);
    waitpid(pid, NULL, 0);
    if (rate < 0)
        return 1;
    printf("%.0f\n", rate);
    return 0;
}
