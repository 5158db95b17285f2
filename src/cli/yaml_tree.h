/* SPDX-License-Identifier: Apache-2.0
 *
 * yaml_tree.h - a small YAML document as a tree that knows where everything stood.
 *
 * Only what a configuration needs: scalars, lists and maps with scalar keys.  Anchors, aliases,
 * tags, repeated keys and second documents are refused.  At most 1 MiB, 32 levels, 65536 nodes,
 * 4096 keys in one map.
 */
#ifndef ST_CLI_YAML_TREE_H
#define ST_CLI_YAML_TREE_H

#include "base/err.h"
#include "base/str.h"

#define ST_YAML_SIZE_MAX  ((size_t)1 << 20)
#define ST_YAML_DEPTH_MAX 32
#define ST_YAML_NODES_MAX 65536
#define ST_YAML_KEYS_MAX  4096

enum st_yaml_kind { ST_YAML_SCALAR, ST_YAML_LIST, ST_YAML_MAP };

struct st_yaml {
    enum st_yaml_kind kind;
    int line, column; /* of the value; 1 = first */
    char *key;        /* in a map; no NUL inside */
    int key_line, key_column;
    char *text; /* of a scalar, NUL-terminated, no NUL inside */
    bool plain; /* written without quotes: then `null`, `~` and nothing mean "not given" */
    struct st_yaml *first, *next;
    size_t n; /* members of a list or map */
};

/* name stands in messages, all of which begin "name:line:column: ".  An empty document is an
 * empty map.  *out is for st_yaml_free. */
stint_code st_yaml_parse(const char *name, struct st_slice text, struct st_yaml **out, stint_error *err);
void st_yaml_free(struct st_yaml *node); /* NULL is fine */

bool st_yaml_is_null(const struct st_yaml *node);
const struct st_yaml *st_yaml_member(const struct st_yaml *map, const char *key); /* NULL = not there */

/* Fills err with "name:line:column: ..." and returns EINVAL: of the value, of the key. */
stint_code st_yaml_fail(stint_error *err, const char *name, const struct st_yaml *at, const char *fmt, ...)
    ST_PRINTF(4, 5);
stint_code st_yaml_fail_key(stint_error *err, const char *name, const struct st_yaml *at, const char *fmt, ...)
    ST_PRINTF(4, 5);

#endif
