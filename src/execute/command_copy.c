/* SPDX-License-Identifier: Apache-2.0
 *
 * command_copy.c - commands that outlive the configuration they came from.
 */
#include <stdlib.h>
#include <string.h>

#include "execute/command.h"

static char **list_copy(char **from)
{
    size_t n = 0;
    char **to;

    while (from[n])
        n++;
    to = calloc(n + 1, sizeof(*to));
    for (size_t i = 0; to && i < n; i++)
        if (!(to[i] = strdup(from[i]))) {
            while (i--)
                free(to[i]);
            free(to);
            return NULL;
        }
    return to;
}

static void list_free(char **list)
{
    for (char **s = list; s && *s; s++)
        free(*s);
    free(list);
}

static bool list_same(char **a, char **b)
{
    if (!a || !b)
        return (!a || !*a) && (!b || !*b);
    for (; *a && *b; a++, b++)
        if (strcmp(*a, *b))
            return false;
    return !*a && !*b;
}

static bool text_same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

bool st_command_copy(const struct st_command *from, struct st_command *to)
{
    bool ok = true;

    *to = *from;
    to->argv = from->argv ? list_copy(from->argv) : NULL;
    to->env = from->env ? list_copy(from->env) : NULL;
    to->inherit_env = from->inherit_env ? list_copy(from->inherit_env) : NULL;
    to->cwd = from->cwd ? strdup(from->cwd) : NULL;
    to->name = from->name ? strdup(from->name) : NULL;
    ok = !from->argv == !to->argv && !from->env == !to->env && !from->inherit_env == !to->inherit_env &&
         !from->cwd == !to->cwd && !from->name == !to->name;
    if (!ok)
        st_command_clear(to);
    return ok;
}

void st_command_clear(struct st_command *cmd)
{
    list_free(cmd->argv);
    list_free(cmd->env);
    list_free(cmd->inherit_env);
    free(cmd->cwd);
    free(cmd->name);
    *cmd = (struct st_command){0};
}

bool st_command_same(const struct st_command *a, const struct st_command *b)
{
    return a->mode == b->mode && a->payload_by == b->payload_by && a->grace_us == b->grace_us &&
           a->inherit_all == b->inherit_all && !memcmp(&a->caps, &b->caps, sizeof(a->caps)) &&
           a->startup_us == b->startup_us && a->processes == b->processes && a->max_in_flight == b->max_in_flight &&
           a->park == b->park && !memcmp(&a->recycle, &b->recycle, sizeof(a->recycle)) && text_same(a->cwd, b->cwd) &&
           text_same(a->name, b->name) && list_same(a->argv, b->argv) && list_same(a->env, b->env) &&
           list_same(a->inherit_env, b->inherit_env);
}
