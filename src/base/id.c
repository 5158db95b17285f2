/* SPDX-License-Identifier: Apache-2.0
 *
 * id.c - job ids and other names that must be unique.
 *
 * A UUIDv7 as we make it:
 *
 *     48 bits  milliseconds since 1970, never going back within the process
 *      4 bits  version 7
 *     12 bits  counter, high part   \  starts at a random value below half its range in each
 *      2 bits  variant              |  new millisecond, then counts up; when it is used up
 *      6 bits  counter, low part    /  the milliseconds run ahead of the clock by one
 *     56 bits  random
 *
 * Invariants:
 *   (1) (milliseconds, counter) only grows, so ids of one process ascend, clock or no clock;
 *   (2) random bytes are handed out once: a forked child drops those it inherited.
 *
 * Thread: any; one mutex guards the counter and the store of random bytes.
 */
#include "base/id.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"

#define COUNTER_BITS 18
#define COUNTER_MAX  (((uint32_t)1 << COUNTER_BITS) - 1)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t last_ms;
static uint32_t counter;
static unsigned char pool[1024]; /* one getrandom(2) for many ids */
static size_t pool_left;

static char host[65];
static char boot_id[65];

void st_random(void *p, size_t n)
{
    unsigned char *at = p;

    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);

        if (got > 0) {
            at += got;
            n -= (size_t)got;
        } else if (errno != EINTR) {
            static const char text[] = "stint: the kernel gives no random bytes\n";
            ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);

            (void)ignored;
            abort();
        }
    }
}

/* Under the lock. */
static uint64_t pool_take(size_t n)
{
    uint64_t v = 0;

    assert(n <= sizeof(v));
    if (pool_left < n) {
        st_random(pool, sizeof(pool));
        pool_left = sizeof(pool);
    }
    pool_left -= n;
    memcpy(&v, pool + pool_left, n);
    return v;
}

static void fork_prepare(void)
{
    pthread_mutex_lock(&lock);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void fork_child(void)
{
    pool_left = 0;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    if (pthread_atfork(fork_prepare, fork_parent, fork_child) != 0)
        abort(); /* no memory at the first id: two processes must not share their ids */
}

double st_random_unit(void)
{
    uint64_t v;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    v = pool_take(sizeof(v));
    pthread_mutex_unlock(&lock);
    return (double)(v >> 11) * 0x1p-53;
}

/* Under the lock. */
static void tick(uint64_t now_ms)
{
    if (now_ms > last_ms)
        last_ms = now_ms;
    else if (counter < COUNTER_MAX) {
        counter++;
        return;
    } else
        last_ms++;
    counter = (uint32_t)pool_take(4) & COUNTER_MAX >> 1;
}

static char *put_hex(char *out, uint64_t v, int digits)
{
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
        *out++ = "0123456789abcdef"[v >> shift & 15];
    return out;
}

void st_id_new(char out[ST_UUID_LEN + 1])
{
    st_id_new_at(st_clock_real_us(), out);
}

void st_id_new_at(int64_t now_us, char out[ST_UUID_LEN + 1])
{
    uint64_t ms, count, rest;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    tick(now_us > 0 ? (uint64_t)(now_us / ST_MS) : 0);
    ms = last_ms;
    count = counter;
    rest = pool_take(7);
    pthread_mutex_unlock(&lock);

    out = put_hex(out, ms >> 16, 8);
    *out++ = '-';
    out = put_hex(out, ms, 4);
    *out++ = '-';
    out = put_hex(out, 0x7000 | count >> 6, 4);
    *out++ = '-';
    out = put_hex(out, 0x8000 | (count & 0x3f) << 8 | rest >> 48, 4);
    *out++ = '-';
    out = put_hex(out, rest, 12);
    *out = '\0';
}

static bool has_control(struct st_slice s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.p[i];

        if (c < 0x20 || c == 0x7f)
            return true;
        if (c == 0xc2 && i + 1 < s.len && (unsigned char)s.p[i + 1] < 0xa0)
            return true;
    }
    return false;
}

stint_code st_id_check(struct st_slice id, stint_error *err)
{
    static const char chars[] = "an id is UTF-8 text without control characters, such as order-42";

    if (id.len == 0)
        return st_refuse(err, "give it 1 to 128 bytes, or leave it out", "the id is empty");
    if (id.len > ST_ID_MAX)
        return st_refuse(err, "shorten it, for example to a hash of it", "the id has %zu bytes, more than %d", id.len,
                         ST_ID_MAX);
    if (!st_utf8_valid(id.p, id.len))
        return st_refuse(err, chars, "the id is not UTF-8");
    if (has_control(id))
        return st_refuse(err, chars, "the id has a control character in it");
    return STINT_OK;
}

static bool is_plain(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* File systems take 255 bytes; a hundred and more stay free for what callers append. */
#define NAME_MAX_PLAIN 150

static char *hashed_name(struct st_slice id, char *out)
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    char *at = out;

    crypto_hash_sha256(hash, (const unsigned char *)id.p, id.len);
    *at++ = '%'; /* "%-" is no encoded byte: no short name looks like this */
    *at++ = '-';
    for (size_t i = 0; i < sizeof(hash); i++)
        at = put_hex(at, hash[i], 2);
    *at = '\0';
    return out;
}

char *st_id_file_name(struct st_slice id, char out[ST_ID_FILE_MAX + 1])
{
    char *at = out;

    if (id.len == 0)
        return hashed_name(id, out);
    for (size_t i = 0; i < id.len; i++) {
        if (at - out > NAME_MAX_PLAIN - 3)
            return hashed_name(id, out);
        if (is_plain(id.p[i])) {
            *at++ = id.p[i];
        } else {
            *at++ = '%';
            at = put_hex(at, (unsigned char)id.p[i], 2);
        }
    }
    *at = '\0';
    return out;
}

/* The first n - 1 bytes of a small file; -1 and errno if it cannot be read. */
static ssize_t read_small(const char *path, char *out, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    int saved;

    if (fd < 0)
        return -1;
    do
        got = read(fd, out, n - 1);
    while (got < 0 && errno == EINTR);
    saved = errno;
    close(fd);
    errno = saved;
    if (got >= 0)
        out[got] = '\0';
    return got;
}

/* What kernel and administrator call this machine, in characters that fit into an id. */
static void read_names(void)
{
    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0')
        strcpy(host, "localhost");
    for (char *p = host; *p; p++)
        if (!is_plain(*p) && *p != '.')
            *p = '_';
    if (read_small("/proc/sys/kernel/random/boot_id", boot_id, sizeof(boot_id)) < 0)
        boot_id[0] = '\0';
    boot_id[strcspn(boot_id, " \r\n")] = '\0';
}

static pthread_once_t names_once = PTHREAD_ONCE_INIT;

const char *st_host_name(void)
{
    pthread_once(&names_once, read_names);
    return host;
}

const char *st_boot_id(void)
{
    pthread_once(&names_once, read_names);
    return boot_id;
}

/* The state and field 22 of /proc/PID/stat.  The name in field 2 may hold anything, ')' and
 * blanks too, so fields are counted from the last ')'. */
static bool stat_start(const char *stat, char *state, uint64_t *start)
{
    const char *p = strrchr(stat, ')');

    if (!p || p[1] != ' ')
        return false;
    p += 2;
    *state = *p;
    for (int field = 3; field < 22; field++) {
        p = strchr(p, ' ');
        if (!p)
            return false;
        p++;
    }
    *start = strtoull(p, NULL, 10);
    return *start != 0;
}

/* 1 = alive, *start set; 0 = gone; -1 = cannot be seen. */
static int look_at(int pid, uint64_t *start)
{
    char path[64], stat[2048], state;

    if (pid <= 0)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (read_small(path, stat, sizeof(stat)) < 0) {
        if (errno != ENOENT && errno != ESRCH)
            return -1;
        return kill(pid, 0) != 0 && errno == ESRCH ? 0 : -1; /* /proc may hide it from us */
    }
    if (!stat_start(stat, &state, start))
        return -1;
    return state == 'Z' || state == 'X' ? 0 : 1;
}

uint64_t st_pid_start(int pid)
{
    uint64_t start;

    return look_at(pid, &start) == 1 ? start : 0;
}

bool st_pid_gone(int pid, uint64_t start)
{
    uint64_t now;
    int seen;

    if (start == 0)
        return false;
    seen = look_at(pid, &now);
    return seen == 0 || (seen == 1 && now != start);
}

void st_worker_id_new(char out[ST_ID_MAX + 1])
{
    uint32_t r;

    st_random(&r, sizeof(r));
    snprintf(out, ST_ID_MAX + 1, "%s-%d-%08x", st_host_name(), (int)getpid(), r);
}
