/* SPDX-License-Identifier: Apache-2.0
 *
 * files.h - reading files from outside, which have a maximum.
 */
#ifndef ST_CLI_FILES_H
#define ST_CLI_FILES_H

#include <stdbool.h>

#include "base/err.h"

/* All of a file ("-" = stdin), at most max bytes; free *out, which ends with a NUL.  EINVAL names
 * the file. */
stint_code cli_read_all(const char *path, size_t max, char **out, size_t *len, stint_error *err);

/* The same for a caller with words of its own for what is too large: then it is OK, *more is true
 * and *out NULL. */
stint_code cli_read_limited(const char *path, size_t max, char **out, size_t *len, bool *more, stint_error *err);

/* All of a file to stdout; ENOTFOUND when it is not there. */
stint_code cli_copy_file(const char *path, stint_error *err);

#endif
