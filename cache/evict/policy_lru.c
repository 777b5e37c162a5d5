/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_lru.c - the block that was used longest ago goes.
 *
 * OWNS       nothing.
 * LOCKING    the cache's lock.
 */
#include "cache/evict/policy.h"

static unsigned list(unsigned uses, unsigned depth)
{
	(void)uses;
	(void)depth;
	return 1;
}

static float worth(const struct kv_eviction *eviction, unsigned which,
		   uint32_t age)
{
	(void)eviction;
	(void)which;
	return 1 / ((float)age + 1);
}

const struct kv_policy_kind kv_policy_lru = {
	.name = "lru",
	.lists = 2,
	.list = list,
	.worth = worth,
};
