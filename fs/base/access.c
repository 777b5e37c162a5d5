/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.c - permission bits of a space against a caller's ids.
 *
 * OWNS      nothing; the caller's arrays are borrowed for the call.
 *
 * LOCKING   none: pure functions.
 */
#include "fs/base/access.h"

static bool in_group(const struct kv_caller *caller, uint32_t gid)
{
	if (caller->gid == gid)
		return true;
	for (size_t i = 0; i < caller->n_groups; i++)
		if (caller->groups[i] == gid)
			return true;
	return false;
}

bool kv_access_ok(const struct kv_space_info *space,
		  const struct kv_caller *caller, int want)
{
	uint32_t bits;

	if (caller->uid == 0)
		return true;
	if (caller->uid == space->uid)
		bits = space->mode >> 6;
	else if (in_group(caller, space->gid))
		bits = space->mode >> 3;
	else
		bits = space->mode;
	want &= R_OK | W_OK | X_OK;
	return (bits & (uint32_t)want) == (uint32_t)want;
}
