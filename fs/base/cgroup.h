/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.h - the memory limits of this process's control groups (version 2).
 */
#ifndef KV_FS_BASE_CGROUP_H
#define KV_FS_BASE_CGROUP_H

#include <limits.h>

#include "common/kv.h"

struct kv_cgroup_limit {
	uint64_t bytes;	     /* UINT64_MAX: none */
	char file[PATH_MAX]; /* that has the limit */
};

/*
 * Find the lowest limit of this process's group and of the groups above it, as far
 * as they are visible: of memory, or of huge pages of 2 MiB, which the other
 * limit does not count.  A file that cannot be read limits nothing.  @root goes
 * before every path: "" except in tests.
 */
void kv_cgroup_limit(const char *root, bool huge_pages,
		     struct kv_cgroup_limit *ret_limit);

#endif
