/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_tls.c - TLS on a socket, with OpenSSL.
 *
 * The server's certificate is verified against tls_ca or the system's authorities, and its name against tls_name or the
 * host in the URL, unless the URL says tls_verify=no.  OpenSSL's own sockets would raise SIGPIPE: it gets others.
 *
 * Thread: one at a time; the table of socket functions is made once.
 */
#include "store/redis_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* ---- sockets for OpenSSL --------------------------------------------------------------------------- */

static BIO_METHOD *method;

static int fd_of(BIO *b)
{
    return (int)(intptr_t)BIO_get_data(b);
}

static int bio_write(BIO *b, const char *p, int len)
{
    const ssize_t n = send(fd_of(b), p, (size_t)len, MSG_NOSIGNAL);

    BIO_clear_retry_flags(b);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(b);
    return (int)n;
}

static int bio_read(BIO *b, char *p, int len)
{
    const ssize_t n = recv(fd_of(b), p, (size_t)len, 0);

    BIO_clear_retry_flags(b);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(b);
    return (int)n;
}

static long bio_ctrl(BIO *b, int command, long a, void *p)
{
    (void)b;
    (void)a;
    (void)p;
    return command == BIO_CTRL_FLUSH;
}

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stint socket");
    if (method) {
        BIO_meth_set_write(method, bio_write);
        BIO_meth_set_read(method, bio_read);
        BIO_meth_set_ctrl(method, bio_ctrl);
    }
}

static BIO *bio_new(int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    BIO *b;

    pthread_once(&once, make_method);
    b = method ? BIO_new(method) : NULL;
    if (b) {
        BIO_set_data(b, (void *)(intptr_t)fd);
        BIO_set_init(b, 1);
    }
    return b;
}

/* ---- the context ------------------------------------------------------------------------------------- */

static const char *reason(void)
{
    const unsigned long e = ERR_peek_last_error();
    const char *text = e ? ERR_reason_error_string(e) : NULL;

    return text ? text : "it cannot be read";
}

static stint_code load_ca(SSL_CTX *ctx, const char *ca, stint_error *err)
{
    struct stat st;
    const bool there = !ca || stat(ca, &st) == 0;
    const bool folder = ca && there && S_ISDIR(st.st_mode);

    if (!there)
        return st_refuse(err, "name a file with certificates in PEM format", "tls_ca=%.160s: %s", ca, strerror(errno));
    if (!ca ? SSL_CTX_set_default_verify_paths(ctx) == 1
            : SSL_CTX_load_verify_locations(ctx, folder ? NULL : ca, folder ? ca : NULL) == 1)
        return STINT_OK;
    return st_refuse(err, "name a file with certificates in PEM format", "tls_ca=%.160s: %s", ca ? ca : "the system's",
                     reason());
}

static stint_code load_own(SSL_CTX *ctx, const struct st_redis_url *u, stint_error *err)
{
    if (!u->tls_cert)
        return STINT_OK;
    if (SSL_CTX_use_certificate_chain_file(ctx, u->tls_cert) != 1)
        return st_refuse(err, "name a file with a certificate in PEM format", "tls_cert=%.160s: %s", u->tls_cert,
                         reason());
    if (SSL_CTX_use_PrivateKey_file(ctx, u->tls_key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        return st_refuse(err, "name the file with the certificate's key in PEM format, without a passphrase",
                         "tls_key=%.160s: %s", u->tls_key, reason());
    return STINT_OK;
}

stint_code st_redis_tls_context(const struct st_redis_url *u, SSL_CTX **out, stint_error *err)
{
    SSL_CTX *ctx;
    stint_code code = STINT_OK;

    ERR_clear_error();
    ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx)
        return st_fail(err, STINT_ENOMEM, "no memory for TLS");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(ctx, u->tls_verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (u->tls_verify)
        code = load_ca(ctx, u->tls_ca, err);
    if (!code)
        code = load_own(ctx, u, err);
    if (code)
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    return code;
}

/* ---- one connection -------------------------------------------------------------------------------------- */

static bool is_ip(const char *host)
{
    unsigned char bytes[16];

    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

/* Whom we expect.  false = no memory. */
static bool expect(SSL *ssl, const char *name, bool verify)
{
    X509_VERIFY_PARAM *p = SSL_get0_param(ssl);

    if (!is_ip(name))
        return SSL_set_tlsext_host_name(ssl, name) == 1 && (!verify || SSL_set1_host(ssl, name) == 1);
    return !verify || X509_VERIFY_PARAM_set1_ip_asc(p, name) == 1;
}

/* A port without TLS waits for the rest of a command, or hangs up. */
static stint_code not_tls(const char *name, const char *what, stint_error *err)
{
    st_fail(err, STINT_EAGAIN, "%.100s %s", name, what);
    st_err_remedy(err, "start the server, or check the port and whether it speaks TLS: redis:// is without");
    return STINT_EAGAIN;
}

static stint_code refused(struct st_redis_link *l, const char *name, stint_error *err)
{
    const long verdict = SSL_get_verify_result(l->ssl);

    if (verdict != X509_V_OK) {
        st_fail(err, STINT_ESTORE, "the certificate of %.100s is not accepted: %s", name,
                X509_verify_cert_error_string(verdict));
        if (verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID)
            st_err_remedy(err, "renew the server's certificate, or set the clock of this machine");
        else
            st_err_remedy(
                err,
                "name the authority (tls_ca=FILE) or the server as its certificate does (tls_name=NAME) in the URL");
        return STINT_ESTORE;
    }
    if (!ERR_peek_last_error())
        return not_tls(name, "closed the connection before TLS was set up", err);
    st_fail(err, STINT_ESTORE, "TLS with %.100s failed: %s", name, reason());
    st_err_remedy(err, "check that the port speaks TLS, and whether it wants a certificate (tls_cert=, tls_key=)");
    return STINT_ESTORE;
}

stint_code st_redis_tls_start(struct st_redis_link *l, SSL_CTX *ctx, const char *host, const struct st_redis_url *u,
                              int64_t until_us, stint_error *err)
{
    const char *name = u->tls_name ? u->tls_name : host;
    BIO *b = bio_new(l->fd);

    l->ssl = SSL_new(ctx);
    if (!l->ssl || !b || !expect(l->ssl, name, u->tls_verify)) {
        BIO_free(b);
        return st_fail(err, STINT_ENOMEM, "no memory for TLS with %s", name);
    }
    SSL_set_bio(l->ssl, b, b);
    for (;;) {
        int n, e;

        ERR_clear_error();
        n = SSL_connect(l->ssl);
        if (n == 1)
            return STINT_OK;
        e = SSL_get_error(l->ssl, n);
        if (e != SSL_ERROR_WANT_READ && e != SSL_ERROR_WANT_WRITE)
            return refused(l, name, err);
        if (st_redis_poll(l->fd, e == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, -1, until_us) <= 0)
            return not_tls(name, "does not answer to TLS", err);
    }
}
