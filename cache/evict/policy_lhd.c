/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_lhd.c - learned hit density over leaves.
 *
 * Blocks used once are on four lists by their place in the chain, the others on
 * seven by number of uses, 2 to 8 and more.  The head of each list is its
 * oldest leaf; the one goes whose list and age have shown the lowest hit
 * density, or the lowest weight by a simpler rule while that does better.
 *
 * OWNS       nothing.
 * LOCKING    the cache's lock.
 */
#include "cache/evict/policy.h"

#define MOST 8u
#define PERIOD 8192u /* uses until the worth is worked out anew, at least */

static unsigned list(unsigned uses, unsigned depth)
{
	return uses <= 1 ? 1 + depth : KV_DEPTHS - 1 + KV_MIN(uses, MOST);
}

unsigned kv_lhd_uses(unsigned which)
{
	return which <= KV_DEPTHS ? 1 : which - KV_DEPTHS + 1;
}

static float worth(const struct kv_eviction *eviction, unsigned which,
		   uint32_t age)
{
	enum kv_weigh how = kv_shadow_cache_winner(eviction->shadow);

	if (how != KV_WEIGH_LEARNED)
		return kv_weigh_simply(how, which, age);
	return kv_hit_density_worth(&eviction->density, which, age);
}

static int begin(struct kv_eviction *eviction)
{
	kv_hit_density_init(&eviction->density);
	eviction->shadow = kv_shadow_cache_new(eviction);
	return eviction->shadow ? 0 : -ENOMEM;
}

static void entered(struct kv_eviction *eviction, unsigned which)
{
	struct kv_hit_density *density = &eviction->density;

	kv_hit_density_entered(density, which);
	kv_hit_density_settle(density, KV_MAX(PERIOD, eviction->blocks));
}

static void used(struct kv_eviction *eviction, unsigned which, uint32_t age)
{
	kv_hit_density_used(&eviction->density, which, age);
}

const struct kv_policy_kind kv_policy_lhd = {
	.name = "lhd",
	.lists = KV_HIT_DENSITY_LISTS,
	.list = list,
	.worth = worth,
	.begin = begin,
	.entered = entered,
	.used = used,
};
