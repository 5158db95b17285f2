/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn_loop.c - what starting processes can give: a bare posix_spawn loop.
 *
 *     spawn_loop PROGRAM JOBS IN_FLIGHT      prints jobs per second
 *
 * Each process gets three pipes, as ours do: its stdin is closed at once, its stdout and stderr
 * are read to their end, and it is reaped.
 */
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define IN_FLIGHT_MAX 64

extern char **environ;

struct job {
    pid_t pid;
    int fds[2]; /* stdout, stderr; -1 = at its end */
};

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static bool start(char *path, struct job *j)
{
    posix_spawn_file_actions_t fa;
    char *argv[] = {path, NULL};
    int p[3][2];

    for (int i = 0; i < 3; i++)
        if (pipe2(p[i], O_CLOEXEC))
            return false;
    posix_spawn_file_actions_init(&fa);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&fa, p[i][i > 0], i);
    if (posix_spawn(&j->pid, path, &fa, NULL, argv, environ))
        return false;
    posix_spawn_file_actions_destroy(&fa);
    for (int i = 0; i < 3; i++)
        close(p[i][i > 0]);
    close(p[0][1]);
    j->fds[0] = p[1][0];
    j->fds[1] = p[2][0];
    return true;
}

/* Reads what is there; true when it is over. */
static bool serve(struct job *j, const struct pollfd *p)
{
    char buf[4096];

    for (int i = 0; i < 2; i++)
        if (j->fds[i] >= 0 && p[i].revents && read(j->fds[i], buf, sizeof(buf)) <= 0) {
            close(j->fds[i]);
            j->fds[i] = -1;
        }
    if (j->fds[0] >= 0 || j->fds[1] >= 0)
        return false;
    waitpid(j->pid, NULL, 0);
    return true;
}

int main(int argc, char **argv)
{
    long jobs = argc == 4 ? atol(argv[2]) : 0, started = 0, done = 0;
    int in_flight = argc == 4 ? atoi(argv[3]) : 0, n = 0;
    struct job j[IN_FLIGHT_MAX];
    struct pollfd p[2 * IN_FLIGHT_MAX];
    double began = now();

    if (jobs < 1 || in_flight < 1 || in_flight > IN_FLIGHT_MAX) {
        fprintf(stderr, "usage: spawn_loop PROGRAM JOBS IN_FLIGHT\n");
        return 2;
    }
    while (done < jobs) {
        for (; started < jobs && n < in_flight; started++, n++)
            if (!start(argv[1], &j[n]))
                return 1;
        for (int i = 0; i < 2 * n; i++)
            p[i] = (struct pollfd){j[i / 2].fds[i % 2], POLLIN, 0};
        poll(p, (nfds_t)(2 * n), -1);
        for (int i = n - 1; i >= 0; i--)
            if (serve(&j[i], &p[2 * i])) {
                j[i] = j[--n];
                done++;
            }
    }
    printf("%.0f\n", (double)jobs / (now() - began));
    return 0;
}
