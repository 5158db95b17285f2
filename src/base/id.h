/* SPDX-License-Identifier: Apache-2.0
 *
 * id.h - job ids and other names that must be unique.
 */
#ifndef ST_BASE_ID_H
#define ST_BASE_ID_H

#include "base/err.h"
#include "base/str.h"

#define ST_ID_MAX   STINT_ID_MAX
#define ST_UUID_LEN 36

/* A UUIDv7.  Ids made by one process are in ascending order.  Any thread. */
void st_id_new(char out[ST_UUID_LEN + 1]);
void st_id_new_at(int64_t now_us, char out[ST_UUID_LEN + 1]);

/* 1..128 bytes of UTF-8 without control characters. */
stint_code st_id_check(struct st_slice id, stint_error *err);

/* A name for files: bytes outside [A-Za-z0-9_-] become %xx.  Never "", "." or "..";
 * different ids give different names.  An id that would give more than 150 bytes, which file
 * systems may refuse, becomes "%-" and its SHA-256; so does an empty one. */
#define ST_ID_FILE_MAX (3 * ST_ID_MAX)
char *st_id_file_name(struct st_slice id, char out[ST_ID_FILE_MAX + 1]);

/* n random bytes; the program cannot go on without them. */
void st_random(void *p, size_t n);
/* Uniform in [0, 1). */
double st_random_unit(void);

/* This machine's name and the kernel's boot id (empty if it has none); static strings. */
const char *st_host_name(void);
const char *st_boot_id(void);
/* When a process started, in clock ticks since boot; 0 if there is no such process (a zombie
 * counts as gone).  Together with the pid this names a process for good. */
uint64_t st_pid_start(int pid);
/* Is the process that st_pid_start gave this start for gone?  Only a sure yes is true: a process
 * that cannot be looked at (no descriptors left, hidden /proc) and a start of 0 are not gone. */
bool st_pid_gone(int pid, uint64_t start);

/* host-pid-8hex: "web1-4711-9f86d081" */
void st_worker_id_new(char out[ST_ID_MAX + 1]);

#endif
