/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_script.c - the scripts' texts: each file of lua/ behind what they share.
 *
 * Put together once per process, when the first one is needed.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "redis_files.h"
#include "store/redis_int.h"

static struct st_redis_script scripts[ST_LUA_N] = {
#define X(script) [ST_LUA_##script] = {.name = #script},
#include "store/redis_script.inc"
#undef X
};

static const char *const bodies[ST_LUA_N] = {
#define X(script) [ST_LUA_##script] = script##_lua,
#include "store/redis_script.inc"
#undef X
};

/* One block for all texts; it lives as long as the process. */
static char *texts;

static void scripts_make(void)
{
    const size_t lib = sizeof(lib_lua) - 1;
    size_t len = 0;
    char *at;

    for (int i = 0; i < ST_LUA_N; i++)
        len += lib + strlen(bodies[i]) + 1;
    at = texts = malloc(len);
    for (int i = 0; at && i < ST_LUA_N; i++) {
        const size_t n = strlen(bodies[i]) + 1;

        memcpy(at, lib_lua, lib);
        memcpy(at + lib, bodies[i], n);
        scripts[i].text = at;
        st_redis_script_init(&scripts[i]);
        at += lib + n;
    }
}

struct st_redis_script *st_redis_lua(enum st_redis_lua which)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, scripts_make);
    if (!scripts[which].text)
        scripts[which].text = bodies[which]; /* no memory: the server will complain, and nothing is done */
    return &scripts[which];
}
