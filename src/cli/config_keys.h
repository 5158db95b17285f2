/* SPDX-License-Identifier: Apache-2.0
 *
 * config_keys.h - maps of stint.yaml by table: which keys there are and where their values go.
 */
#ifndef ST_CLI_CONFIG_KEYS_H
#define ST_CLI_CONFIG_KEYS_H

#include "cli/yaml_tree.h"
#include "worker/settings.h"

struct st_conf {
    const char *file; /* in messages */
    const char *dir;  /* what relative paths are taken from; NULL = they stay */
    bool check_programs;
    struct st_settings *s;
    stint_error *err;
};

struct st_conf_key {
    const char *name;
    /* Puts the value into *field; NULL = this version does not have it. */
    stint_code (*read)(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field);
    size_t offset;    /* of the field in what the map fills */
    int64_t min, max; /* of a number, duration (microseconds) or size */
};

/* Reads the members of a map into *base, in the order of the table (ended by a NULL name).  Keys
 * that are not in it are errors; a key without a value counts as not there. */
stint_code st_conf_map(struct st_conf *c, const struct st_yaml *map, const char *where, const struct st_conf_key *keys,
                       void *base);
stint_code st_conf_is_map(struct st_conf *c, const struct st_yaml *v, const char *what);

/* Readers of one value; field is what the name says. */
typedef stint_code st_conf_read(struct st_conf *c, const struct st_yaml *v, const struct st_conf_key *k, void *field);
st_conf_read st_conf_text;     /* char *: freed and replaced */
st_conf_read st_conf_path;     /* char *: relative to the file's directory */
st_conf_read st_conf_int;      /* int */
st_conf_read st_conf_duration; /* int64_t */
st_conf_read st_conf_keep;     /* int64_t: a duration or `forever` (0) */
st_conf_read st_conf_timeout;  /* int64_t: a duration or `none` (0) */
st_conf_read st_conf_size;     /* size_t: 512, 64KiB, 1MiB */
st_conf_read st_conf_bool;     /* bool: true/false, yes/no, on/off */
st_conf_read st_conf_double;   /* double, between min and max thousandths */

/* A list of scalars as a NULL-terminated list of texts; check may be NULL. */
stint_code st_conf_strings(struct st_conf *c, const struct st_yaml *v, const char *what,
                           stint_code (*check)(struct st_slice, stint_error *), char ***out);
void st_conf_strings_free(char **list);

/* err says what is wrong with the value (or key) at v: puts the position and the name in front. */
stint_code st_conf_wrong(struct st_conf *c, const struct st_yaml *v, const char *name);
stint_code st_conf_wrong_key(struct st_conf *c, const struct st_yaml *v);
stint_code st_conf_nomem(struct st_conf *c);
/* What to do about what err says; returns EINVAL. */
stint_code st_conf_remedy(struct st_conf *c, const char *fmt, ...) ST_PRINTF(2, 3);
/* The text of a scalar, or NULL after saying that one is needed. */
const char *st_conf_scalar(struct st_conf *c, const struct st_yaml *v, const char *name);
/* dir/path, or path where it stands by itself; NULL = no memory. */
char *st_conf_join(const struct st_conf *c, const char *path);

/* config_types.c: `types:`, and `queues:` which refers to them. */
st_conf_read st_conf_types, st_conf_parents;
/* config_intake.c: `intake:`, into a struct st_intake_conf. */
st_conf_read st_conf_intake;
/* config_children.c: keys of a type.  Their fields: enum st_mode, bool park, struct st_recycle, struct st_caps. */
st_conf_read st_conf_mode, st_conf_on_crash, st_conf_recycle, st_conf_caps;
/* Does the type have keys that its mode does not use? */
stint_code st_conf_check_mode(struct st_conf *c, const struct st_yaml *type, enum st_mode mode);
/* Can the command be run, is its directory there?  The message does not name the key. */
stint_code st_conf_program(const struct st_command *cmd, stint_error *err);
stint_code st_conf_cwd(const struct st_command *cmd, stint_error *err);

#endif
