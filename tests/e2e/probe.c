/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.c - the command that end-to-end tests run as a job.
 *
 *     probe ledger FILE    append "id attempt fence" to FILE, one write
 *     probe hold DIR       write our pid to DIR/started.ID.ATTEMPT, wait for DIR/go, print the
 * attempt probe stubborn DIR   the same, deaf to TERM probe family DIR     the same, with a child,
 * and a grandchild in a session of its own probe fds            print the open descriptors as JSON
 *     probe fill N         print N bytes
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *need(const char *name)
{
    const char *value = getenv(name);

    if (!value) {
        fprintf(stderr, "%s is not set\n", name);
        exit(1);
    }
    return value;
}

static void check(int ok, const char *what)
{
    if (ok)
        return;
    perror(what);
    exit(1);
}

static int ledger(const char *path)
{
    char line[256];
    int n =
        snprintf(line, sizeof(line), "%s %s %s\n", need("STINT_JOB_ID"), need("STINT_ATTEMPT"), need("STINT_FENCE"));
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);

    check(fd >= 0, path);
    check(write(fd, line, (size_t)n) == n, "write");
    return 0;
}

/* Appears whole: written under another name first. */
static void announce(const char *dir, const char *suffix)
{
    char name[4096], temp[4200];
    FILE *f;

    snprintf(name, sizeof(name), "%s/started.%s.%s%s", dir, need("STINT_JOB_ID"), need("STINT_ATTEMPT"), suffix);
    snprintf(temp, sizeof(temp), "%s.tmp", name);
    f = fopen(temp, "w");
    check(f != NULL, temp);
    fprintf(f, "%ld\n", (long)getpid());
    check(fclose(f) == 0, temp);
    check(rename(temp, name) == 0, name);
}

static void wait_for(const char *dir, const char *what)
{
    const struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", dir, what);
    while (access(path, F_OK) != 0)
        nanosleep(&nap, NULL);
}

static int hold(const char *dir)
{
    announce(dir, "");
    wait_for(dir, "go");
    printf("%s", need("STINT_ATTEMPT"));
    return 0;
}

static int family(const char *dir)
{
    pid_t pid = fork();

    check(pid >= 0, "fork");
    if (pid == 0) {
        announce(dir, ".child");
        wait_for(dir, "never");
    }
    pid = fork();
    check(pid >= 0, "fork");
    if (pid == 0) {
        if (fork() != 0)
            _exit(0);
        setsid();
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        announce(dir, ".grandchild");
        wait_for(dir, "never");
    }
    return hold(dir);
}

static int fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    const char *comma = "";
    struct dirent *e;

    check(d != NULL, "/proc/self/fd");
    printf("[");
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(d))
            continue;
        printf("%s%s", comma, e->d_name);
        comma = ",";
    }
    printf("]");
    return 0;
}

static int fill(long n)
{
    for (long i = 0; i < n; i++)
        putchar('a' + (int)(i % 26));
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    const char *arg = argc > 2 ? argv[2] : ".";

    if (strcmp(verb, "ledger") == 0)
        return ledger(arg);
    if (strcmp(verb, "hold") == 0)
        return hold(arg);
    if (strcmp(verb, "stubborn") == 0) {
        signal(SIGTERM, SIG_IGN);
        return hold(arg);
    }
    if (strcmp(verb, "family") == 0)
        return family(arg);
    if (strcmp(verb, "fds") == 0)
        return fds();
    if (strcmp(verb, "fill") == 0)
        return fill(atol(arg));
    fprintf(stderr, "probe: unknown verb '%s'\n", verb);
    return 2;
}
