/* SPDX-License-Identifier: Apache-2.0
 *
 * config.h - stint.yaml, flags and environment into settings.
 */
#ifndef ST_CLI_CONFIG_H
#define ST_CLI_CONFIG_H

#include "worker/settings.h"

#define ST_SLOTS_MAX 4096 /* of --slots, STINT_SLOTS and worker.slots */

/* Reads a stint.yaml (at most 1 MiB, nesting 32) over the defaults in *s.  Errors name file:line:column,
 * the key and the remedy.  Relative paths in it (cwd, results_dir, logs_dir, a command with a slash) are taken from
 * the file's directory.  check_programs: a command that cannot be found or run is an error too. */
stint_code st_config_read(const char *path, bool check_programs, struct st_settings *s, stint_error *err);
/* The same from text; name stands in messages, dir for relative paths. */
stint_code st_config_parse(const char *name, const char *dir, struct st_slice text, bool check_programs,
                           struct st_settings *s, stint_error *err);

/* STINT_WORKER_ID, STINT_SLOTS, STINT_QUEUES (a,b or a=3,b=1), STINT_POLL, STINT_SIGNAL over *s.  EINVAL names the variable. */
stint_code st_config_env(struct st_settings *s, stint_error *err);

/* "a,b" strict or "a=3,b=1" weighted, for --queues and STINT_QUEUES. */
stint_code st_config_queues(const char *text, struct st_settings *s, stint_error *err);
/* "mail,img*" for --types. */
stint_code st_config_types(const char *text, struct st_settings *s, stint_error *err);

/* --config, $STINT_CONFIG, or ./stint.yaml if it is there; NULL = none.  Not freed by the caller. */
const char *st_config_find(const char *flag);

/* The store: flag > STINT_STORE > store: > DATABASE_URL > REDIS_URL > sqlite:stint.db.  A plain path is a
 * SQLite file.  dev = true leaves DATABASE_URL and REDIS_URL out. */
const char *st_config_store(const char *flag, const struct st_settings *s, bool dev);
/* EINVAL if that store is of a kind this version does not have; says where the URL came from, but not the URL: it
 * may hold a password. */
stint_code st_config_store_check(const char *flag, const struct st_settings *s, bool dev, stint_error *err);

#endif
