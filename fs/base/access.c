/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.c - compare the mount's rules, and the permission bits of a space, with the
 * ids of a caller.
 *
 * OWNS      nothing; the caller's arrays are borrowed for the call.
 *
 * LOCKING   none: pure functions.
 */
#include "fs/base/access.h"

bool kv_caller_in_group(const struct kv_caller *caller, uint32_t gid)
{
	if (caller->gid == gid)
		return true;
	for (size_t i = 0; i < caller->n_groups; i++)
		if (caller->groups[i] == gid)
			return true;
	return false;
}

bool kv_rules_root(const struct kv_rules *rules, uint32_t uid)
{
	return uid == 0 && !rules->squash;
}

bool kv_rules_operator(const struct kv_rules *rules, uint32_t uid)
{
	return uid == 0 ? kv_rules_root(rules, uid) : uid == geteuid();
}

bool kv_access_ok(const struct kv_rules *rules,
		  const struct kv_space_info *space,
		  const struct kv_caller *caller, int want)
{
	uint32_t bits;

	if (kv_rules_root(rules, caller->uid))
		return true;
	if (caller->uid == space->uid)
		bits = space->mode >> 6;
	else if (kv_caller_in_group(caller, space->gid))
		bits = space->mode >> 3;
	else
		bits = space->mode;
	want &= R_OK | W_OK | X_OK;
	return (bits & (uint32_t)want) == (uint32_t)want;
}

static bool root_dir_ok(const struct kv_rules *rules,
			const struct kv_caller *caller, int want)
{
	const struct kv_space_info root = {
		.uid = rules->uid, .gid = rules->gid, .mode = rules->mode};

	return kv_access_ok(rules, &root, caller, want);
}

bool kv_rules_admit(const struct kv_rules *rules,
		    const struct kv_caller *caller)
{
	bool listed = rules->n_allow == 0;

	for (size_t i = 0; !listed && i < rules->n_allow; i++)
		listed =
			rules->allow[i].is_group
				? kv_caller_in_group(caller, rules->allow[i].id)
				: caller->uid == rules->allow[i].id;
	return kv_rules_operator(rules, caller->uid) ||
	       (listed && root_dir_ok(rules, caller, X_OK));
}

bool kv_rules_may_make(const struct kv_rules *rules,
		       const struct kv_caller *caller)
{
	return kv_rules_operator(rules, caller->uid) ||
	       (rules->mkdir == 0 && root_dir_ok(rules, caller, W_OK | X_OK));
}
