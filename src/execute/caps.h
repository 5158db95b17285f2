/* SPDX-License-Identifier: Apache-2.0
 *
 * caps.h - what a command may use, on the worker's side: was it a cap that ended it?
 */
#ifndef ST_EXECUTE_CAPS_H
#define ST_EXECUTE_CAPS_H

#include "execute/child.h"

/* A child that is over: did one of its caps end it?  Then *ran says so (kind oom or caps). */
bool st_caps_blame(const struct st_caps *caps, const struct st_child *c, struct st_ran *ran);
/* It printed too much. */
void st_caps_fail_output(const struct st_caps *caps, struct st_ran *ran);

#endif
