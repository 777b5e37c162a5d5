/* SPDX-License-Identifier: Apache-2.0 */
/* alone.h - reserve room for a new block as the mount does for a file that is
 * being written: wait while the arena grows, and while writes to SSD make
 * room. */
#ifndef KV_TESTS_CACHE_ALONE_H
#define KV_TESTS_CACHE_ALONE_H

#include <unistd.h>

#include "cache/cache.h"
#include "tests/cache/wait.h"

static inline int begin_alone(struct kv_cache *cache, struct kv_space *space,
			      uint64_t bytes, struct kv_fill **ret_fill)
{
	const uint64_t until = kv_now_ns() + 30000000000u;
	int r;

	while ((r = kv_fill_begin(cache, space, NULL, bytes, ret_fill)) ==
		       -EBUSY &&
	       kv_now_ns() < until)
		usleep(1000);
	return r == -EBUSY ? -ENOSPC : r;
}

#endif
