/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_redis_url.c - any text as the URL of a Redis server.
 *
 * What must hold: what is accepted names at least one host with a port or a path, and is accepted by its scheme; what is
 * refused says why, with a remedy; and neither shows the password, which is here always the same word.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "store/redis_net.h"

#define SECRET "hushhush"

static void check_good(const char *text, const struct st_redis_url *u)
{
    MUST(st_redis_url_is(text));
    MUST(u->n_hosts >= 1 && u->n_hosts <= ST_REDIS_HOSTS_MAX);
    MUST(u->db >= 0 && u->where[0]);
    for (size_t i = 0; i < u->n_hosts; i++) {
        MUST(u->hosts[i].host[0]);
        MUST(u->hosts[i].port >= 0 && u->hosts[i].port <= 65535);
        MUST(u->hosts[i].port > 0 || u->hosts[i].host[0] == '/');
    }
    for (size_t i = 0; i < u->n_options; i++)
        MUST(st_redis_url_option(u, u->options[i].name));
}

static void check(const char *text)
{
    struct st_redis_url u;
    stint_error err = {0};

    if (st_redis_url_parse(text, &u, &err) == STINT_OK) {
        check_good(text, &u);
        st_redis_url_clear(&u);
        return;
    }
    MUST(err.code == STINT_EINVAL && err.message[0] && err.remedy[0]);
    MUST(!strstr(err.message, SECRET) && !strstr(err.remedy, SECRET));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 32);

    MUST(text);
    memcpy(text, data, size);
    text[size] = '\0';
    check(text);
    strcpy(text, "redis://u:" SECRET "@");
    memcpy(text + 19, data, size);
    text[19 + size] = '\0';
    check(text);
    free(text);
    return 0;
}
