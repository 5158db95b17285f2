/* SPDX-License-Identifier: Apache-2.0
 *
 * run_worker.c - a worker as the commands start it.
 */
#include "cli/run_worker.h"

#include <stdlib.h>
#include <string.h>

#include "cli/config.h"
#include "complete/complete.h"

static stint_code lay_flags(const struct cli_worker_flags *f, struct st_settings *s, stint_error *err)
{
    stint_code rc = STINT_OK;

    if (f->queues)
        rc = st_config_queues(f->queues, s, err);
    if (rc == STINT_OK && f->types)
        rc = st_config_types(f->types, s, err);
    if (rc != STINT_OK)
        return rc;
    if (f->slots > 0)
        s->slots = (int)f->slots;
    if (f->name) {
        free(s->worker_name);
        s->worker_name = strdup(f->name);
        if (!s->worker_name)
            return st_fail(err, STINT_ENOMEM, "no memory for the worker's name");
    }
    return STINT_OK;
}

stint_code cli_worker_settings(struct cli *c, const struct cli_worker_flags *f, const char *text, struct st_settings *s,
                               stint_error *err)
{
    const char *path = st_config_find(c->config_flag);
    stint_code rc = STINT_OK;

    st_settings_init(s);
    if (path)
        rc = st_config_read(path, true, s, err);
    else if (text)
        rc = st_config_parse("the built-in examples", ".", st_slice_cstr(text), true, s, err);
    if (rc == STINT_OK)
        rc = st_config_env(s, err);
    if (rc == STINT_OK)
        rc = lay_flags(f, s, err);
    return rc;
}

static stint_code open_url(void *arg, struct st_store **out, stint_error *err)
{
    const struct cli_place *place = arg;
    struct st_store_open opt = {.timeout_ms = 5000, .signal = place->signal, .runqy = place->runqy};
    stint_code rc = st_store_open(place->url, &opt, out, err);

    if (rc == STINT_OK && st_log_threshold() == ST_LOG_DEBUG) {
        struct st_store *traced = st_store_trace(*out);

        *out = traced ? traced : *out;
    }
    return rc;
}

struct st_opener cli_opener(const struct cli_place *place)
{
    return (struct st_opener){.open = open_url, .arg = (void *)(uintptr_t)place};
}

char *cli_results_dir(const char *url)
{
    return st_results_dir(url);
}
