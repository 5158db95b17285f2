/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_scripts.h - RQ's moves, each one step for everybody else.
 *
 * They name keys that are not among KEYS, which only a Cluster would mind; RQ's own keys do not fit one either.
 */
#ifndef ST_INTAKE_RQ_SCRIPTS_H
#define ST_INTAKE_RQ_SCRIPTS_H

#include "store/redis_conn.h"

extern struct st_redis_script st_rq_script_take, st_rq_script_start, st_rq_script_end, st_rq_script_beat,
    st_rq_script_stuck, st_rq_script_lost, st_rq_script_back;
void st_rq_scripts_init(void);

#endif
