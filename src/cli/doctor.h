/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor.h - what `stint doctor` looks at.
 */
#ifndef ST_CLI_DOCTOR_H
#define ST_CLI_DOCTOR_H

#include "cli/cli.h"

struct cli_finding {
    enum st_severity severity;
    const char *area;    /* "configuration", "store", ... */
    char *what, *remedy; /* remedy may be NULL */
};

struct cli_doctor {
    struct cli *c;
    const char *area; /* of the findings to come */
    struct cli_finding *list;
    size_t n, cap;
    bool failed; /* no memory */
};

void cli_found(struct cli_doctor *d, enum st_severity severity, const char *remedy, const char *fmt, ...)
    ST_PRINTF(4, 5);

/* RQ's Redis, where there is an intake.  Without it messages wait, and jobs start after the grace only. */
void cli_doctor_intake(struct cli_doctor *d, const struct st_settings *s, const char *store_url);
/* The machine and the process: clocks, limits, what can be capped, directories. */
void cli_doctor_host(struct cli_doctor *d, const struct st_settings *s, const char *url);

#endif
