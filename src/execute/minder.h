/* SPDX-License-Identifier: Apache-2.0
 *
 * minder.h - what the worker and its minder say to each other.
 *
 * One packet (SOCK_SEQPACKET) is one struct st_minder_msg.  Both ends are the same program, so the
 * struct goes as it is.
 *
 *     worker                               minder
 *       SPAWN tag + 4 descriptors  ------->
 *                                  <-------  FAILED tag stage err: not started, the end of it
 *                                  <-------  STARTED tag pid, if SPAWN had the flag ST_MD_TELL
 *       SIGNAL tag sig             ------->
 *                                  <-------  EXITED tag status max_rss_kb (the command was reaped)
 *                                  <-------  GONE tag (and so is everything it started)
 *
 * Other starts that went well are not told: it would only wake the worker.
 * EXITED with the flag ST_MD_AND_GONE stands for both.  After EXITED a tag is never sent signals
 * that matter: the minder is killing what is left already.
 *
 * The descriptors of SPAWN are, in this order: a memfd with the body, stdin, stdout, stderr.
 * The body is a struct st_minder_body followed by NUL-terminated strings: cwd, the file to unlink
 * when the run is over (both may be empty), argc arguments, envc "NAME=value" texts.
 */
#ifndef ST_EXECUTE_MINDER_H
#define ST_EXECUTE_MINDER_H

#include <stdint.h>

enum st_minder_op {
    ST_MD_SPAWN = 1,
    ST_MD_SIGNAL,
    ST_MD_FAILED,
    ST_MD_STARTED,
    ST_MD_EXITED,
    ST_MD_GONE,
};

/* Where starting a command failed. */
enum st_stage {
    ST_STAGE_OK,
    ST_STAGE_BODY,  /* the request itself: too long or not whole */
    ST_STAGE_FORK,  /* no process to be had */
    ST_STAGE_SETUP, /* descriptors or process group */
    ST_STAGE_CAPS,  /* a cap that cannot be kept here */
    ST_STAGE_CWD,
    ST_STAGE_EXEC,
};

#define ST_MD_AND_GONE 1u /* EXITED: nothing else is left of this run */
#define ST_MD_TELL     4u /* SPAWN: say STARTED */
#define ST_MD_OOM      8u /* EXITED: the kernel killed some of it for its memory */
#define ST_MD_LEFT     2u /* GONE: a process could not be killed in time (it hangs in the kernel) */

struct st_minder_msg {
    uint32_t op;
    uint32_t flags;
    uint64_t tag; /* the worker's name for a run; only grows */
    int32_t stage, err;
    int32_t sig;
    int32_t status; /* as from wait(2) */
    int32_t pid, pad;
    int64_t cpu_us;     /* of the command and what it waited for */
    int64_t max_rss_kb; /* of the command and what it waited for; at least the minder's own */
};

#define ST_MD_FDS        4
#define ST_MD_BODY_MAX   (8u << 20)
#define ST_MD_BODY_MAGIC 0x53544d31u

/* Places in limits[]; 0 = none. */
enum { ST_LIMIT_CPU_S, ST_LIMIT_MEMORY, ST_LIMIT_FILES, ST_LIMIT_PROCESSES };

struct st_minder_body {
    uint32_t magic;
    uint32_t size; /* of the whole body */
    uint32_t argc, envc;
    uint64_t limits[8];
};

#endif
