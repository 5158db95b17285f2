/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor_host.c - what `stint doctor` says of the machine and the process.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/doctor.h"
#include "cli/run_worker.h"

/* ---- clock ------------------------------------------------------------------------------ */

#define YEAR_2024_US ((int64_t)1704067200 * ST_SEC)

static void check_clock(struct cli_doctor *d)
{
    int64_t now_us = st_clock_real_us();
    char text[ST_TIME_TEXT];

    d->area = "clock";
    if (now_us < YEAR_2024_US)
        cli_found(d, ST_BAD, "set the clock; due times and retention go by it", "this machine believes it is %s",
                  st_time_format(now_us, text));
    else
        cli_found(d, ST_FINE, NULL, "it is %s", st_time_format(now_us, text));
}

/* ---- limits ----------------------------------------------------------------------------- */

/* Pipes, pidfd and files of one run, on both sides of the exec; and what the worker has open
 * anyway. */
#define FDS_PER_SLOT 8
#define FDS_OTHER    64

static void check_descriptors(struct cli_doctor *d, int slots)
{
    long long need = FDS_OTHER + (long long)slots * FDS_PER_SLOT;
    char remedy[100];
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return;
    snprintf(remedy, sizeof(remedy), "`ulimit -n %lld` before the worker, or fewer slots", need);
    if (r.rlim_cur != RLIM_INFINITY && (long long)r.rlim_cur < need)
        cli_found(d, ST_BAD, remedy, "%lld open files are allowed; %d slots need about %lld", (long long)r.rlim_cur,
                  slots, need);
    else if (r.rlim_cur == RLIM_INFINITY)
        cli_found(d, ST_FINE, NULL, "no limit on open files");
    else
        cli_found(d, ST_FINE, NULL, "%lld open files are allowed; %d slots need about %lld", (long long)r.rlim_cur,
                  slots, need);
}

static void check_processes(struct cli_doctor *d, int slots)
{
    struct rlimit r;

    if (geteuid() == 0 || getrlimit(RLIMIT_NPROC, &r) != 0 || r.rlim_cur == RLIM_INFINITY)
        return;
    if ((long long)r.rlim_cur < 16 + 4LL * slots)
        cli_found(d, ST_WARNING, "`ulimit -u` before the worker, or fewer slots",
                  "this user may have %lld processes, which is little for %d slots", (long long)r.rlim_cur, slots);
}

static void check_pidfd(struct cli_doctor *d)
{
    long fd = syscall(SYS_pidfd_open, getpid(), 0);

    if (fd >= 0) {
        close((int)fd);
        cli_found(d, ST_FINE, NULL, "the kernel has pidfds");
    } else {
        cli_found(d, ST_BAD, "commands need Linux 5.3, and a sandbox that allows pidfd_open",
                  "the kernel has no pidfds: %s", strerror(errno));
    }
}

/* ---- caps ------------------------------------------------------------------------------- */

/* The directory of our own cgroup under root, by the line of /proc/self/cgroup that begins so. */
static bool own_cgroup(const char *prefix, const char *root, char *out, size_t size)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[1024];
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f)) {
        const char *at = strstr(line, prefix);

        line[strcspn(line, "\n")] = '\0';
        if (!at || (prefix[0] == '0' && at != line))
            continue;
        found = snprintf(out, size, "%s%s", root, at + strlen(prefix)) < (int)size;
    }
    if (f)
        fclose(f);
    return found;
}

static bool file_has_word(const char *path, const char *word)
{
    FILE *f = fopen(path, "re");
    char line[512] = "";
    bool has = false;

    if (f && fgets(line, sizeof(line), f))
        has = strstr(line, word);
    if (f)
        fclose(f);
    return has;
}

static void check_caps(struct cli_doctor *d)
{
    char dir[1200], controllers[1300];

    d->area = "caps";
    if (own_cgroup("0::", "/sys/fs/cgroup", dir, sizeof(dir))) {
        snprintf(controllers, sizeof(controllers), "%s/cgroup.controllers", dir);
        if (file_has_word(controllers, "pids") && access(dir, W_OK) == 0) {
            cli_found(d, ST_FINE, NULL, "the number of a job's processes can be capped: cgroup v2 is writable");
            return;
        }
    }
    if (own_cgroup(":pids:", "/sys/fs/cgroup/pids", dir, sizeof(dir)) && access(dir, W_OK) == 0)
        cli_found(d, ST_FINE, NULL, "the number of a job's processes can be capped: cgroup v1 pids is writable");
    else if (geteuid() != 0)
        cli_found(d, ST_FINE, NULL,
                  "the number of processes can be capped for this user as a whole (RLIMIT_NPROC); "
                  "no cgroup is writable");
    else
        cli_found(d, ST_FINE, NULL,
                  "the number of a job's processes cannot be capped here: RLIMIT_NPROC does not "
                  "bind root, and no "
                  "cgroup is writable");
}

/* ---- directories ------------------------------------------------------------------------ */

/* Can files be written there, now or, if we make it, once the directory has been made? */
static void check_dir(struct cli_doctor *d, const char *what, const char *path, bool made)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    struct stat st;

    if (stat(path, &st) == 0) {
        if (!S_ISDIR(st.st_mode))
            cli_found(d, ST_BAD, NULL, "%s %s is not a directory", what, path);
        else if (access(path, W_OK | X_OK) != 0)
            cli_found(d, ST_BAD, "choose another, or let this user write to it", "%s %s: %s", what, path,
                      strerror(errno));
        else
            cli_found(d, ST_FINE, NULL, "%s %s is writable", what, path);
        return;
    }
    snprintf(parent, sizeof(parent), "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (!*parent)
        strcpy(parent, "/");
    if (!made)
        cli_found(d, ST_BAD, "make it, or let TMPDIR name another", "%s %s: %s", what, path, strerror(errno));
    else if (access(parent, W_OK | X_OK) != 0)
        cli_found(d, ST_BAD, "make it, or choose another", "%s %s is not there and cannot be made: %s", what, path,
                  strerror(errno));
    else
        cli_found(d, ST_FINE, NULL, "%s %s will be made when it is needed", what, path);
}

static void check_dirs(struct cli_doctor *d, const struct st_settings *s, const char *url)
{
    const char *tmp = getenv("TMPDIR");
    char *results = s->results_dir ? strdup(s->results_dir) : cli_results_dir(url);

    d->area = "directories";
    if (results)
        check_dir(d, "results", results, true);
    else
        d->failed = true;
    if (s->logs_dir)
        check_dir(d, "logs", s->logs_dir, true);
    check_dir(d, "temporary files", tmp && *tmp == '/' ? tmp : "/tmp", false); /* as payload files go */
    free(results);
}

void cli_doctor_host(struct cli_doctor *d, const struct st_settings *s, const char *url)
{
    check_clock(d);
    d->area = "limits";
    check_descriptors(d, s->slots);
    check_processes(d, s->slots);
    check_pidfd(d);
    check_caps(d);
    check_dirs(d, s, url);
}
