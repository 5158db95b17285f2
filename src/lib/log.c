/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c - the library's log goes where the host wants it.
 *
 * Thread: any.
 */
#include <pthread.h>

#include "base/log.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those who set it */
static stint_log_fn host_fn;                             /* changed only while there is no sink */
static void *host_arg;

static void to_host(void *arg, enum st_log_level level, const char *line, size_t len)
{
    (void)arg;
    (void)len;
    host_fn(host_arg, (stint_log_level)level, line);
}

void stint_log_to(stint_log_level level, stint_log_fn fn, void *arg)
{
    pthread_mutex_lock(&lock);
    st_log_set_sink(NULL, NULL, false);
    host_fn = fn;
    host_arg = arg;
    st_log_set_level((enum st_log_level)level);
    if (fn)
        st_log_set_sink(to_host, NULL, false);
    pthread_mutex_unlock(&lock);
}
