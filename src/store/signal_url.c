/* SPDX-License-Identifier: Apache-2.0
 *
 * signal_url.c - what the URL of a signal says.  Alone, so that whoever only reads a configuration needs no connection.
 */
#include <stdio.h>
#include <string.h>

#include "store/redis_net.h"
#include "store/signal_int.h"

stint_code st_signal_channels(const struct st_redis_url *u, struct st_signal_channels *out, stint_error *err)
{
    static const char *const words[ST_SIGNAL_N] = {"sched", "owls", "cancel"}, *const known[] = {"prefix", NULL};
    const char *prefix = st_redis_url_option(u, "prefix");

    if (!prefix)
        prefix = "stint";
    if (!*prefix || strlen(prefix) > ST_SIGNAL_PREFIX_MAX)
        return st_refuse(err, "name it in fewer", "prefix= of a signal has 1 to %d bytes", ST_SIGNAL_PREFIX_MAX);
    for (size_t i = 0; i < ST_SIGNAL_N; i++)
        snprintf(out->names[i], sizeof(out->names[i]), "%s:%s", prefix, words[i]);
    return st_redis_url_options_check(u, known, err);
}

stint_code st_signal_url_check(const char *url, stint_error *err)
{
    struct st_signal_channels channels;
    struct st_redis_url u;
    stint_code code = st_redis_url_parse(url, &u, err);

    if (code)
        return code;
    code = st_signal_channels(&u, &channels, err);
    st_redis_url_clear(&u);
    return code;
}
