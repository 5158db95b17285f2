/* SPDX-License-Identifier: Apache-2.0
 *
 * talk_kit.h - children that work by lines, written in Python, and jobs for them.
 *
 * A script has these at hand:  ready(**more), reqs() (an iterator over decoded requests),
 * say(**line) (one line of JSON), raw(text) (as it is), note(text) (to stderr), D (the test's
 * directory).
 */
#ifndef TEST_EXECUTE_TALK_KIT_H
#define TEST_EXECUTE_TALK_KIT_H

#include "fixture.h"

/* A command that runs this script. */
struct kit {
    struct fx *fx;
    struct st_command cmd;
    char *argv[5];
    char env[96], *envp[2];
};
void kit_init(struct kit *k, struct fx *fx, enum st_mode mode, const char *script);
void kit_clear(struct kit *k);

/* One attempt of it. */
void kit_job(struct kit *k, struct fx_job *j, const char *id, const char *payload);
void kit_job_bytes(struct kit *k, struct fx_job *j, const char *id, const void *payload, size_t len);
void kit_start(struct kit *k, struct fx_job *j); /* with the command as it is now */
void kit_run(struct kit *k, struct fx_job *j);
/* All of it: run this payload, expect this result. */
void kit_expect(struct kit *k, const char *id, const char *payload, const char *result);

void kit_ok(const struct fx_job *j, const char *result);
void kit_failed(const struct fx_job *j, enum st_kind kind, const char *message);
/* The same, but the message only begins so. */
void kit_failed_like(const struct fx_job *j, enum st_kind kind, const char *begins);
/* Released, uncharged. */
void kit_given_back(const struct fx_job *j);

#endif
