/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_yaml.c - any bytes as a stint.yaml.
 *
 * What must hold:
 *   - a tree has positions inside the text, no repeated keys, and keeps to the limits;
 *   - an error is EINVAL and begins with a position that is there;
 *   - settings that were accepted are ones a worker can use.
 */
#include "fuzz.h"

#include <string.h>

#include "cli/config.h"
#include "cli/yaml_tree.h"

static int count_lines(struct st_slice text)
{
    int n = 1;

    for (size_t i = 0; i < text.len; i++) { /* YAML knows more line ends than \n */
        unsigned char ch = (unsigned char)text.p[i];

        n += ch == '\n' || ch == '\r' || ch == 0x85 || ch == 0xa8 || ch == 0xa9;
    }
    return n;
}

static void check_position(int line, int column, struct st_slice text)
{
    MUST(line >= 1 && line <= count_lines(text) + 1);
    MUST(column >= 1 && (size_t)column <= text.len + 2);
}

static void check_error(const stint_error *err, struct st_slice text)
{
    int line = 0, column = 0, end = 0;

    MUST(err->code == STINT_EINVAL);
    MUST(sscanf(err->message, "f:%d:%d: %n", &line, &column, &end) == 2 && end > 0);
    MUST(st_utf8_valid(err->message, strlen(err->message)));
    check_position(line, column, text);
}

static void check_tree(const struct st_yaml *node, struct st_slice text, int depth)
{
    size_t n = 0;

    MUST(depth <= ST_YAML_DEPTH_MAX);
    check_position(node->line, node->column, text);
    MUST((node->kind == ST_YAML_SCALAR) == !!node->text);
    for (const struct st_yaml *m = node->first; m; m = m->next) {
        n++;
        MUST((node->kind == ST_YAML_MAP) == !!m->key);
        if (m->key) {
            check_position(m->key_line, m->key_column, text);
            MUST(st_yaml_member(node, m->key) == m); /* it is the only one of its name */
        }
        check_tree(m, text, depth + 1);
    }
    MUST(n == node->n);
}

static void check_settings(const struct st_settings *s)
{
    MUST(s->slots >= 1 && s->lease_us > 0 && s->renew_us > 0 && s->renew_us <= s->lease_us / 2);
    MUST(s->poll_us > 0 && s->shutdown_us >= 0 && s->limits.payload > 0 && s->limits.result > 0);
    for (size_t i = 0; i < s->n_types; i++) {
        const struct st_type_conf *t = &s->types[i];

        MUST(st_type_pattern_check(st_slice_cstr(t->pattern), NULL) == STINT_OK);
        MUST(t->command.argv && t->command.argv[0] && *t->command.argv[0]);
        MUST(t->policy.n_delays <= ST_DELAYS_MAX && t->policy.max_attempts >= 0);
        MUST(st_policy_delay(&t->policy, 1, 0.5) >= 0);
    }
    for (size_t i = 0; i < s->n_queues; i++)
        MUST(st_queue_check(st_slice_cstr(s->queues[i].name), NULL) == STINT_OK);
    for (size_t i = 0; i < s->n_parents; i++)
        MUST(!s->parents[i].type || st_settings_type(s, st_slice_cstr(s->parents[i].type)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_slice text = ST_SLICE((const char *)data, size);
    struct st_yaml *root = NULL;
    struct st_settings s;
    stint_error err = {0};

    if (st_yaml_parse("f", text, &root, &err) == STINT_OK)
        check_tree(root, text, 0);
    else
        check_error(&err, text);
    st_settings_init(&s);
    if (st_config_parse("f", "/d", text, false, &s, &err) == STINT_OK) {
        MUST(root);
        check_settings(&s);
    } else {
        check_error(&err, text);
    }
    st_settings_clear(&s);
    st_yaml_free(root);
    return 0;
}
