/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.h - may this caller use that space?  The answer of access(2) for a
 * directory of the space's owner, group and mode, wherever a request came from.
 */
#ifndef KV_FS_BASE_ACCESS_H
#define KV_FS_BASE_ACCESS_H

#include <sys/types.h>

#include "cache/cache.h"

struct kv_caller {
	uint32_t uid, gid;
	const gid_t *groups; /* supplementary ones; NULL if there are none */
	size_t n_groups;
};

/*
 * Whether @caller has every right of @want: R_OK, W_OK and X_OK bits.  Exactly
 * one of owner, group and others decides, as POSIX has it: an owner without a
 * right does not get it from the group.  Uid 0 may do everything.
 */
bool kv_access_ok(const struct kv_space_info *space,
		  const struct kv_caller *caller, int want);

#endif
