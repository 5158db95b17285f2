/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_link.c - one socket to one server, every wait with a deadline.
 *
 * The socket never blocks, is closed on exec and raises no SIGPIPE.  While a long batch is being sent the answers that
 * come are read, so that neither side waits for the other.  An answer has a size beyond which it is refused.
 *
 * Invariant: after any failure the link is to be closed: what was on its way cannot be told apart any more.
 *
 * Thread: one at a time.
 */
#include "store/redis_net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define READ_SIZE   16384 /* the parser moves what is left of it often: not larger */
#define IDLE_BUFFER (1 << 20)

/* ---- waiting --------------------------------------------------------------------------------------- */

int st_redis_poll(int fd, short events, int fd2, int64_t until_us)
{
    struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = fd2, .events = POLLIN}};

    for (;;) {
        const int64_t left = until_us - st_clock_mono_us();
        const int64_t ms = left <= 0 ? 0 : (left + ST_MS - 1) / ST_MS;
        const int n = poll(p, fd2 < 0 ? 1 : 2, ms > 1000000 ? 1000000 : (int)ms);

        if (n > 0)
            return p[0].revents ? 1 : 2;
        if (n == 0 && left <= 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
    }
}

/* ---- connecting ----------------------------------------------------------------------------------------- */

static void set_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value)); /* the connection works without */
}

static void tune(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

/* A connected descriptor, or -1 with errno. */
static int dial(int family, const struct sockaddr *sa, socklen_t len, int64_t until_us)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failed = 0;
    socklen_t size = sizeof(failed);

    if (fd < 0)
        return -1;
    if (connect(fd, sa, len) == 0)
        return fd;
    if (errno == EINPROGRESS) {
        const int ready = st_redis_poll(fd, POLLOUT, -1, until_us);

        if (ready > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) == 0 && !failed)
            return fd;
        errno = ready == 0 ? ETIMEDOUT : failed ? failed : errno;
    }
    failed = errno;
    close(fd);
    errno = failed;
    return -1;
}

static int dial_path(const char *path, int64_t until_us)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd;

    memcpy(sa.sun_path, path, strnlen(path, sizeof(sa.sun_path) - 1));
    do /* a full backlog is EAGAIN at once, for sockets of this kind */
        fd = dial(AF_UNIX, (const struct sockaddr *)&sa, sizeof(sa), until_us);
    while (fd < 0 && errno == EAGAIN && st_redis_poll(-1, 0, -1, st_clock_mono_us() + 10 * ST_MS) == 0 &&
           st_clock_mono_us() < until_us);
    return fd;
}

/* The addresses of a name in their order, each with its share of what is left of the time.  *why: what went wrong. */
static int dial_name(const struct st_redis_addr *to, int64_t until_us, const char **why)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    char port[16];
    int fd = -1, n = 0, failed;

    snprintf(port, sizeof(port), "%d", to->port);
    failed = getaddrinfo(to->host, port, &hints, &all);
    if (failed) {
        *why = gai_strerror(failed);
        return -1;
    }
    for (const struct addrinfo *a = all; a; a = a->ai_next)
        n++;
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next, n--) {
        const int64_t now = st_clock_mono_us();

        fd = dial(a->ai_family, a->ai_addr, a->ai_addrlen, now + (until_us > now ? until_us - now : 0) / n);
    }
    failed = errno;
    freeaddrinfo(all);
    *why = strerror(failed);
    if (fd >= 0)
        tune(fd);
    return fd;
}

stint_code st_redis_link_open(struct st_redis_link *l, const struct st_redis_addr *to, const struct st_redis_url *u,
                              SSL_CTX *tls, int64_t until_us, stint_error *err)
{
    const char *why = NULL;
    char where[280];
    stint_code code = STINT_OK;

    memset(l, 0, sizeof(*l));
    l->fd = to->port ? dial_name(to, until_us, &why) : dial_path(to->host, until_us);
    st_redis_addr_text(to, where, sizeof(where));
    if (l->fd < 0) {
        st_fail(err, STINT_EAGAIN, "cannot connect to %s: %s", where, why ? why : strerror(errno));
        st_redis_away(where, err);
        return STINT_EAGAIN;
    }
    l->reader = redisReaderCreate();
    if (!l->reader)
        code = st_fail(err, STINT_ENOMEM, "no memory for a connection to %s", where);
    else
        l->reader->maxbuf = IDLE_BUFFER;
    if (!code && tls)
        code = st_redis_tls_start(l, tls, to->host, u, until_us, err);
    if (code)
        st_redis_link_close(l);
    return code;
}

void st_redis_link_close(struct st_redis_link *l)
{
    if (l->ssl)
        SSL_free(l->ssl); /* sends nothing */
    if (l->reader)
        redisReaderFree(l->reader);
    if (l->fd >= 0)
        close(l->fd);
    *l = (struct st_redis_link){.fd = -1};
}

/* ---- bytes in and out --------------------------------------------------------------------------------------- */

enum { IO_LATER = -1, IO_END = -2, IO_FAILED = -3 };

static ssize_t tls_result(struct st_redis_link *l, int n)
{
    const int e = SSL_get_error(l->ssl, n);

    l->wanted = e == SSL_ERROR_WANT_WRITE;
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE)
        return IO_LATER;
    return e == SSL_ERROR_ZERO_RETURN ? IO_END : IO_FAILED;
}

static ssize_t plain_result(ssize_t n)
{
    if (n >= 0)
        return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? IO_LATER : IO_FAILED;
}

static ssize_t put(struct st_redis_link *l, const char *p, size_t len)
{
    int n;

    if (!l->ssl)
        return plain_result(send(l->fd, p, len, MSG_NOSIGNAL));
    ERR_clear_error();
    n = SSL_write(l->ssl, p, len > 1 << 30 ? 1 << 30 : (int)len);
    return n > 0 ? n : tls_result(l, n);
}

static ssize_t get(struct st_redis_link *l, char *p, size_t len)
{
    ssize_t n;

    if (!l->ssl) {
        n = plain_result(recv(l->fd, p, len, 0));
        return n == 0 ? IO_END : n;
    }
    ERR_clear_error();
    n = SSL_read(l->ssl, p, (int)len);
    return n > 0 ? n : tls_result(l, (int)n);
}

bool st_redis_link_broken(struct st_redis_link *l)
{
    char c;
    ssize_t n;

    if (l->fd < 0)
        return true;
    n = recv(l->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return false;
    if (n <= 0 || !l->ssl) /* an answer that nobody asked for is a farewell */
        return true;
    ERR_clear_error();
    n = SSL_peek(l->ssl, &c, 1); /* TLS has things to say of its own */
    return n > 0 || tls_result(l, (int)n) != IO_LATER;
}

static stint_code lost(ssize_t how, stint_error *err)
{
    if (how == IO_END || errno == 0)
        return st_fail(err, STINT_EAGAIN, "the server closed the connection");
    return st_fail(err, STINT_EAGAIN, "the connection was lost: %s", strerror(errno));
}

/* Reads what is there, at most one portion.  ETIMEOUT: nothing. */
static stint_code feed(struct st_redis_link *l, stint_error *err)
{
    char bytes[READ_SIZE];
    ssize_t n;

    errno = 0;
    n = get(l, bytes, sizeof(bytes));
    if (n == IO_LATER)
        return STINT_ETIMEOUT;
    if (n < 0)
        return lost(n, err);
    l->fed += (size_t)n;
    if (l->fed > ST_REDIS_ANSWER_MAX)
        return st_fail(err, STINT_ESTORE, "the server's answer is larger than %zu MiB", ST_REDIS_ANSWER_MAX >> 20);
    if (redisReaderFeed(l->reader, bytes, (size_t)n) != REDIS_OK)
        return st_fail(err, STINT_ENOMEM, "no memory for the server's answer");
    return STINT_OK;
}

stint_code st_redis_link_send(struct st_redis_link *l, const char *p, size_t len, size_t *sent, int64_t until_us,
                              stint_error *err)
{
    stint_code code = STINT_OK;

    *sent = 0;
    while (*sent < len) {
        int ready;
        ssize_t n;

        errno = 0;
        n = put(l, p + *sent, len - *sent);
        if (n >= 0) {
            *sent += (size_t)n;
            continue;
        }
        if (n != IO_LATER)
            return lost(n, err);
        ready = st_redis_poll(l->fd, POLLIN | POLLOUT, -1, until_us);
        if (ready < 0)
            return lost(IO_FAILED, err);
        if (ready == 0)
            return st_fail(err, STINT_ETIMEOUT, "the server does not take what it is sent");
        while (!code)
            code = feed(l, err);
        if (code != STINT_ETIMEOUT)
            return code;
        code = STINT_OK;
    }
    return STINT_OK;
}

stint_code st_redis_link_next(struct st_redis_link *l, redisReply **out, stint_error *err)
{
    void *reply = NULL;

    *out = NULL;
    if (redisReaderGetReply(l->reader, &reply) != REDIS_OK) {
        if (l->reader->err == REDIS_ERR_OOM)
            return st_fail(err, STINT_ENOMEM, "no memory for the server's answer");
        st_fail(err, STINT_ESTORE, "the answer is not one of a Redis server: %s", l->reader->errstr);
        st_err_remedy(err, "check host and port in the URL, and whether it wants TLS (rediss://)");
        return STINT_ESTORE;
    }
    *out = reply;
    if (reply)
        l->fed = 0;
    return STINT_OK;
}

stint_code st_redis_link_recv(struct st_redis_link *l, redisReply **out, int fd2, int64_t until_us, stint_error *err)
{
    for (;;) {
        stint_code code = st_redis_link_next(l, out, err);
        int ready;

        if (code || *out)
            return code;
        if (!(l->ssl && SSL_pending(l->ssl))) {
            ready = st_redis_poll(l->fd, l->wanted ? POLLIN | POLLOUT : POLLIN, fd2, until_us);
            if (ready == 2)
                return STINT_OK;
            if (ready < 0)
                return lost(IO_FAILED, err);
            if (ready == 0)
                return st_fail(err, STINT_ETIMEOUT, "the server does not answer");
        }
        code = feed(l, err);
        if (code && code != STINT_ETIMEOUT)
            return code;
    }
}
