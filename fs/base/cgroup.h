/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.h - how much memory the control groups of this process may have,
 * version 1 and 2.
 */
#ifndef KV_FS_BASE_CGROUP_H
#define KV_FS_BASE_CGROUP_H

#include <limits.h>

#include "common/kv.h"

enum kv_cgroup_memory {
	KV_CGROUP_PAGES,      /* ordinary memory, shared memory too */
	KV_CGROUP_HUGE_PAGES, /* of 2 MiB, which the other does not count */
};

struct kv_cgroup_limit {
	uint64_t bytes;	     /* UINT64_MAX: none */
	char file[PATH_MAX]; /* that says so */
};

/*
 * The lowest limit of the group that this process is in, and of those above it,
 * as far as they can be seen from here.  What cannot be read limits nothing.
 * @root goes before every path: "" but in tests.
 */
void kv_cgroup_limit(const char *root, enum kv_cgroup_memory what,
		     struct kv_cgroup_limit *ret_limit);

#endif
