/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_net_kit.h - what the tests of the Redis client share.
 *
 * They run beside servers that scripts/redis-test has started; without, the program is skipped.  What a real server does
 * not do on demand, a small false one does: it answers a greeting, and then what the test says.
 */
#ifndef ST_TESTS_STORE_REDIS_NET_KIT_H
#define ST_TESTS_STORE_REDIS_NET_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/redis_net.h"

#define S(text)  st_slice_cstr(text)
#define OK(call) assert_int_equal((call), STINT_OK)
#define SKIPPED  77
#define LONG_MS  30000

static stint_error kit_err;

static inline const char *kit_url(void)
{
    return getenv("STINT_TEST_REDIS");
}

static inline bool kit_is(const char *kind)
{
    const char *have = getenv("STINT_TEST_REDIS_KIND");

    return have && strcmp(have, kind) == 0;
}

/* "kill 1" */
static inline int kit_ctl_try(const char *what)
{
    char command[512];

    snprintf(command, sizeof(command), "%s %s >/dev/null 2>&1", getenv("STINT_TEST_REDIS_CTL"), what);
    return system(command);
}

static inline void kit_ctl(const char *what)
{
    assert_int_equal(kit_ctl_try(what), 0);
}

static inline struct st_redis *kit_open_url(const char *url, int timeout_ms)
{
    struct st_redis *r;

    OK(st_redis_open(url, timeout_ms, &r, &kit_err));
    return r;
}

static inline struct st_redis *kit_open(int timeout_ms)
{
    return kit_open_url(kit_url(), timeout_ms);
}

/* One command from words; its code.  *n and text are of the answer; both may be NULL. */
static inline stint_code kit_do(struct st_redis *r, unsigned flags, const char *line, int64_t *n, char text[64])
{
    struct st_slice argv[16];
    char words[512], *rest = words, *word;
    struct st_redis_batch b;
    size_t argc = 0;
    stint_code code;

    snprintf(words, sizeof(words), "%s", line);
    while ((word = strsep(&rest, " ")) && argc < 16)
        argv[argc++] = S(word);
    st_redis_batch_init(&b);
    st_redis_add(&b, flags, argc > 1 ? argv[1] : ST_NONE, argv, argc);
    code = st_redis_run(r, &b, &kit_err);
    if (!code)
        code = st_redis_reply_fail(r, st_redis_reply(&b, 0), &kit_err);
    if (!code && n)
        *n = st_redis_int(st_redis_reply(&b, 0), -1);
    if (!code && text)
        snprintf(text, 64, "%.*s", (int)st_redis_text(st_redis_reply(&b, 0)).len,
                 st_redis_text(st_redis_reply(&b, 0)).p);
    st_redis_batch_clear(&b);
    return code;
}

static inline int64_t kit_int(struct st_redis *r, unsigned flags, const char *line)
{
    int64_t n = -1;

    OK(kit_do(r, flags, line, &n, NULL));
    return n;
}

/* Runs ctl after a while, from a thread. */
struct kit_later {
    pthread_t thread;
    int ms;
    const char *what;
};

static inline void *kit_later_run(void *arg)
{
    struct kit_later *l = arg;

    usleep((useconds_t)l->ms * 1000);
    kit_ctl_try(l->what);
    return NULL;
}

static inline void kit_later(struct kit_later *l, int ms, const char *what)
{
    *l = (struct kit_later){.ms = ms, .what = what};
    assert_int_equal(pthread_create(&l->thread, NULL, kit_later_run, l), 0);
}

/* ---- a false server ----------------------------------------------------------------------- */

#define FALSE_ROUNDS 8

/* Each request that comes after the greeting is answered with the next of `says`; NULL ends the connection.  Greetings are
 * counted: they are the connections. */
struct kit_false {
    pthread_t thread;
    int fd;
    char path[64], url[96];
    const char *says[FALSE_ROUNDS];
    int greetings, rounds;
};

static inline void kit_false_talk(struct kit_false *f, int c)
{
    static const char greeting[] = "+OK\r\n+OK\r\n+OK\r\n:7\r\n"; /* HELLO, SETNAME, ROLE, ID */
    char got[65536];

    if (read(c, got, sizeof(got)) <= 0 || write(c, greeting, sizeof(greeting) - 1) < 0)
        return;
    f->greetings++;
    while (read(c, got, sizeof(got)) > 0) {
        const char *say = f->rounds < FALSE_ROUNDS ? f->says[f->rounds++] : NULL;

        if (say && write(c, say, strlen(say)) < 0)
            return;
        if (!say || (f->rounds < FALSE_ROUNDS && !f->says[f->rounds])) {
            f->rounds++;
            return;
        }
    }
}

static inline void *kit_false_run(void *arg)
{
    struct kit_false *f = arg;
    int c;

    while ((c = accept(f->fd, NULL, NULL)) >= 0) {
        kit_false_talk(f, c);
        close(c);
    }
    return NULL;
}

static inline void kit_false_start(struct kit_false *f, const char *const *says, size_t n)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    memset(f, 0, sizeof(*f));
    memcpy(f->says, says, n * sizeof(*says));
    snprintf(f->path, sizeof(f->path), "/tmp/stint-false-%d", (int)getpid());
    snprintf(f->url, sizeof(f->url), "redis+unix://%s", f->path);
    unlink(f->path);
    memcpy(sa.sun_path, f->path, strlen(f->path));
    f->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(f->fd, 16), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, kit_false_run, f), 0);
}

static inline void kit_false_stop(struct kit_false *f)
{
    shutdown(f->fd, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    close(f->fd);
    unlink(f->path);
}

#endif
