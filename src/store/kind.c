/* SPDX-License-Identifier: Apache-2.0
 *
 * kind.c - which store a URL names.  Alone, so that whoever only reads a URL needs no store.
 */
#include <string.h>

#include "store/store.h"

static const struct {
    const char *scheme, *kind;
} schemes[] = {
    {"sqlite:", "sqlite"},         {"postgres://", "postgres"},    {"postgresql://", "postgres"},
    {"redis://", "redis"},         {"rediss://", "redis"},         {"redis+unix://", "redis"},
    {"redis-socket://", "redis"},  {"redis-sentinel://", "redis"}, {"rediss-sentinel://", "redis"},
    {"redis-cluster://", "redis"}, {"rediss-cluster://", "redis"},
};

const char *st_store_kind(const char *url)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (strncmp(url, schemes[i].scheme, strlen(schemes[i].scheme)) == 0)
            return schemes[i].kind;
    return NULL;
}
