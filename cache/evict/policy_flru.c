/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_flru.c - lists by number of uses: 1, 2, 3, 4 and more; the list head
 * of the largest age over uses goes.
 *
 * OWNS       nothing.
 * LOCKING    the cache's lock.
 */
#include "cache/evict/policy.h"

#define MOST 4u

static unsigned list(unsigned uses, unsigned depth)
{
	(void)depth;
	return KV_MIN(KV_MAX(uses, 1u), MOST);
}

static float worth(const struct kv_eviction *eviction, unsigned which,
		   uint32_t age)
{
	(void)eviction;
	return (float)which / ((float)age + 1);
}

const struct kv_policy_kind kv_policy_flru = {
	.name = "flru",
	.lists = MOST + 1,
	.list = list,
	.worth = worth,
};
