/* SPDX-License-Identifier: Apache-2.0
 *
 * yaml_tree.c - reads a YAML document into a tree, by libyaml's events.
 *
 * The event interface gives a position for everything, which its document interface does not for
 * keys, and never expands an alias behind our back.  Everything that grows has a maximum: see
 * yaml_tree.h.
 *
 * Invariant: every node hangs in the tree as soon as it exists, so that the root is all there is to
 * free.
 */
#include "cli/yaml_tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    const char *name;
    struct st_slice text;
    size_t nodes;
    stint_error *err;
};

/* ---- errors --------------------------------------------------------------------------- */

static stint_code fail_at(stint_error *err, const char *name, int line, int column, const char *fmt, va_list ap)
{
    char text[sizeof(((stint_error *)0)->message)];

    vsnprintf(text, sizeof(text), fmt, ap);
    return st_fail(err, STINT_EINVAL, "%s:%d:%d: %s", name, line, column, text);
}

stint_code st_yaml_fail(stint_error *err, const char *name, const struct st_yaml *at, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_at(err, name, at->line, at->column, fmt, ap);
    va_end(ap);
    return STINT_EINVAL;
}

stint_code st_yaml_fail_key(stint_error *err, const char *name, const struct st_yaml *at, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (at->key)
        fail_at(err, name, at->key_line, at->key_column, fmt, ap);
    else
        fail_at(err, name, at->line, at->column, fmt, ap);
    va_end(ap);
    return STINT_EINVAL;
}

ST_PRINTF(3, 4)
static stint_code fail_mark(struct reader *r, yaml_mark_t mark, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_at(r->err, r->name, (int)mark.line + 1, (int)mark.column + 1, fmt, ap);
    va_end(ap);
    return STINT_EINVAL;
}

static stint_code no_memory(struct reader *r)
{
    return st_fail(r->err, STINT_ENOMEM, "no memory to read %s", r->name);
}

/* Where a byte offset is; columns count characters. */
static yaml_mark_t mark_of(struct st_slice text, size_t offset)
{
    yaml_mark_t m = {0};

    for (size_t i = 0; i < offset && i < text.len; i++) {
        if (text.p[i] == '\n') {
            m.line++;
            m.column = 0;
        } else if (((unsigned char)text.p[i] & 0xc0) != 0x80) {
            m.column++;
        }
    }
    return m;
}

/* What libyaml has to say, with a position whatever it stumbled over. */
static stint_code fail_parser(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "it cannot be read";

    if (p->error == YAML_MEMORY_ERROR)
        return no_memory(r);
    if (p->error == YAML_READER_ERROR)
        return fail_mark(r, mark_of(r->text, p->problem_offset), "%s", problem);
    if (p->context)
        return fail_mark(r, p->problem_mark, "%s (%s that began in line %zu)", problem, p->context,
                         p->context_mark.line + 1);
    return fail_mark(r, p->problem_mark, "%s", problem);
}

/* ---- nodes ---------------------------------------------------------------------------- */

void st_yaml_free(struct st_yaml *node)
{
    while (node) {
        struct st_yaml *next = node->next;

        st_yaml_free(node->first);
        free(node->key);
        free(node->text);
        free(node);
        node = next;
    }
}

static struct st_yaml *node_new(enum st_yaml_kind kind, yaml_mark_t at)
{
    struct st_yaml *node = calloc(1, sizeof(*node));

    if (node) {
        node->kind = kind;
        node->line = (int)at.line + 1;
        node->column = (int)at.column + 1;
    }
    return node;
}

bool st_yaml_is_null(const struct st_yaml *node)
{
    return node->kind == ST_YAML_SCALAR && node->plain &&
           (!*node->text || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

const struct st_yaml *st_yaml_member(const struct st_yaml *map, const char *key)
{
    if (map->kind != ST_YAML_MAP)
        return NULL;
    for (const struct st_yaml *m = map->first; m; m = m->next)
        if (strcmp(m->key, key) == 0)
            return m;
    return NULL;
}

/* ---- events --------------------------------------------------------------------------- */

static stint_code next_event(struct reader *r, yaml_event_t *ev)
{
    return yaml_parser_parse(&r->parser, ev) ? STINT_OK : fail_parser(r);
}

/* Anchors and tags would change what a value means without a reader seeing it. */
static stint_code refuse_decoration(struct reader *r, const yaml_event_t *ev)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;

    switch (ev->type) {
    case YAML_ALIAS_EVENT:
        return fail_mark(r, ev->start_mark, "aliases such as *%.40s are not allowed here; write it out",
                         (const char *)ev->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        anchor = ev->data.scalar.anchor;
        tag = ev->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = ev->data.sequence_start.anchor;
        tag = ev->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = ev->data.mapping_start.anchor;
        tag = ev->data.mapping_start.tag;
        break;
    default:
        break;
    }
    if (anchor)
        return fail_mark(r, ev->start_mark, "anchors such as &%.40s are not allowed here; write it out",
                         (const char *)anchor);
    if (tag)
        return fail_mark(r, ev->start_mark, "tags such as %.40s are not allowed here", (const char *)tag);
    return STINT_OK;
}

/* The text of a scalar event, as ours. */
static stint_code take_text(struct reader *r, const yaml_event_t *ev, char **out)
{
    const char *p = (const char *)ev->data.scalar.value;
    size_t len = ev->data.scalar.length;

    if (memchr(p, '\0', len))
        return fail_mark(r, ev->start_mark, "a text with a NUL character is not allowed here");
    *out = st_slice_dup(ST_SLICE(p, len));
    return *out ? STINT_OK : no_memory(r);
}

static stint_code read_members(struct reader *r, struct st_yaml *node, int depth);

/* Makes the node that begins with this event at *at, and reads what is inside it. */
static stint_code read_node(struct reader *r, const yaml_event_t *ev, struct st_yaml **at, int depth)
{
    stint_code rc = refuse_decoration(r, ev);
    struct st_yaml *node;

    if (rc)
        return rc;
    if (depth >= ST_YAML_DEPTH_MAX)
        return fail_mark(r, ev->start_mark, "more than %d levels", ST_YAML_DEPTH_MAX);
    if (r->nodes++ >= ST_YAML_NODES_MAX)
        return fail_mark(r, ev->start_mark, "more than %d values", ST_YAML_NODES_MAX);
    node = node_new(ev->type == YAML_SCALAR_EVENT           ? ST_YAML_SCALAR
                    : ev->type == YAML_SEQUENCE_START_EVENT ? ST_YAML_LIST
                                                            : ST_YAML_MAP,
                    ev->start_mark);
    if (!node)
        return no_memory(r);
    *at = node;
    if (node->kind != ST_YAML_SCALAR)
        return read_members(r, node, depth);
    node->plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return take_text(r, ev, &node->text);
}

static stint_code check_key(struct reader *r, const struct st_yaml *map, const char *key, yaml_mark_t at)
{
    if (map->n >= ST_YAML_KEYS_MAX)
        return fail_mark(r, at, "more than %d keys in one map", ST_YAML_KEYS_MAX);
    for (const struct st_yaml *m = map->first; m; m = m->next)
        if (m->key && strcmp(m->key, key) == 0)
            return fail_mark(r, at, "the key '%.60s' is here for the second time; the first is in line %d", key,
                             m->key_line);
    return STINT_OK;
}

/* A key, and then its value as the map's next member. */
static stint_code read_pair(struct reader *r, const yaml_event_t *key_ev, struct st_yaml *map, struct st_yaml **at,
                            int depth)
{
    stint_code rc = refuse_decoration(r, key_ev);
    yaml_mark_t mark = key_ev->start_mark;
    char *key = NULL;
    yaml_event_t ev;

    if (rc)
        return rc;
    if (key_ev->type != YAML_SCALAR_EVENT)
        return fail_mark(r, mark, "a key must be a plain text");
    rc = take_text(r, key_ev, &key);
    if (!rc)
        rc = check_key(r, map, key, mark);
    if (!rc)
        rc = next_event(r, &ev);
    if (!rc) {
        rc = read_node(r, &ev, at, depth + 1);
        yaml_event_delete(&ev);
    }
    if (*at) {
        (*at)->key = key;
        (*at)->key_line = (int)mark.line + 1;
        (*at)->key_column = (int)mark.column + 1;
    } else {
        free(key);
    }
    return rc;
}

static stint_code read_members(struct reader *r, struct st_yaml *node, int depth)
{
    struct st_yaml **at = &node->first;
    stint_code rc = STINT_OK;

    while (!rc) {
        yaml_event_t ev;
        bool end;

        rc = next_event(r, &ev);
        if (rc)
            return rc;
        end = ev.type == YAML_SEQUENCE_END_EVENT || ev.type == YAML_MAPPING_END_EVENT;
        if (!end && node->kind == ST_YAML_MAP)
            rc = read_pair(r, &ev, node, at, depth);
        else if (!end)
            rc = read_node(r, &ev, at, depth + 1);
        yaml_event_delete(&ev);
        if (end)
            return STINT_OK;
        if (*at)
            at = &(*at)->next;
        node->n++;
    }
    return rc;
}

/* Stream start, one document or none, stream end. */
static stint_code read_stream(struct reader *r, struct st_yaml **root)
{
    stint_code rc = STINT_OK;
    bool end = false;

    while (!rc && !end) {
        yaml_event_t ev;

        rc = next_event(r, &ev);
        if (rc)
            return rc;
        end = ev.type == YAML_STREAM_END_EVENT;
        if (ev.type == YAML_DOCUMENT_START_EVENT && *root)
            rc = fail_mark(r, ev.start_mark, "a second document begins here; only one is allowed");
        else if (ev.type == YAML_SCALAR_EVENT || ev.type == YAML_SEQUENCE_START_EVENT ||
                 ev.type == YAML_MAPPING_START_EVENT || ev.type == YAML_ALIAS_EVENT)
            rc = read_node(r, &ev, root, 0);
        yaml_event_delete(&ev);
    }
    return rc;
}

/* Nothing but comments is an empty map. */
static stint_code settle_root(struct reader *r, struct st_yaml **root)
{
    yaml_mark_t top = {0};

    if (*root && !st_yaml_is_null(*root))
        return STINT_OK;
    st_yaml_free(*root);
    *root = node_new(ST_YAML_MAP, top);
    return *root ? STINT_OK : no_memory(r);
}

static struct st_slice without_bom(struct st_slice text)
{
    if (text.len >= 3 && memcmp(text.p, "\xef\xbb\xbf", 3) == 0)
        return ST_SLICE(text.p + 3, text.len - 3);
    return text;
}

stint_code st_yaml_parse(const char *name, struct st_slice text, struct st_yaml **out, stint_error *err)
{
    struct reader r = {.name = name, .text = without_bom(text), .err = err};
    struct st_yaml *root = NULL;
    stint_code rc;

    *out = NULL;
    if (text.len > ST_YAML_SIZE_MAX)
        return st_fail(err, STINT_EINVAL, "%s:1:1: the file has more than %zu bytes", name, ST_YAML_SIZE_MAX);
    if (!yaml_parser_initialize(&r.parser))
        return no_memory(&r);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)(r.text.p ? r.text.p : ""), r.text.len);
    rc = read_stream(&r, &root);
    yaml_parser_delete(&r.parser);
    if (!rc)
        rc = settle_root(&r, &root);
    if (rc) {
        st_yaml_free(root);
        return rc;
    }
    *out = root;
    return STINT_OK;
}
