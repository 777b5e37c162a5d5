/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - what a space may have at most, and what it is guaranteed.
 *
 * OWNS       space->quota, ->guaranteed_dram, ->guaranteed_ssd.
 *
 * INVARIANTS
 *   (1) What a space holds, is being filled or written for it and is asked for
 *       it now together is within its quota: a slot is given only then.
 *   (2) What all spaces are guaranteed is never more than the tier has.
 *
 * LOCKING    cache->lock.
 */
#include "cache/space/space.h"
#include "cache/core/core.h"
#include "cache/core/slot.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"

#define EVICT_AT_ONCE 256u

static uint64_t dram_bytes(const struct kv_cache *cache)
{
	return cache->arena.max * cache->arena.segment_bytes;
}

static bool over(const struct kv_space *space, bool dram)
{
	const struct kv_quota *quota = &space->quota;

	return dram ? quota->quota_dram && space->bytes_dram > quota->quota_dram
		    : quota->quota_ssd && space->bytes_ssd > quota->quota_ssd;
}

static void keep(struct kv_cache *cache, struct kv_space *space, bool dram)
{
	unsigned n = 0;

	while (!space->removed && over(space, dram) &&
	       (dram ? kv_dram_evict_own_locked(cache, space)
		     : kv_ssd_evict_own_locked(cache, space)))
		if (++n % EVICT_AT_ONCE == 0) {
			kv_unlock(cache);
			kv_lock(cache);
		}
}

void kv_quotas_keep(struct kv_cache *cache)
{
	for (uint32_t id = 0; id < cache->n_spaces; id++) {
		struct kv_space *space = cache->spaces[id];

		if (!space || space->removed)
			continue;
		keep(cache, space, true);
		keep(cache, space, false);
	}
}

/* All reserves but that of @but. */
static void reserves(const struct kv_cache *cache, const struct kv_space *but,
		     uint64_t *ret_dram, uint64_t *ret_ssd)
{
	*ret_dram = *ret_ssd = 0;
	for (uint32_t id = 0; id < cache->n_spaces; id++) {
		const struct kv_space *space = cache->spaces[id];

		if (!space || space == but || space->removed)
			continue;
		*ret_dram += space->quota.reserve_dram;
		*ret_ssd += space->quota.reserve_ssd;
	}
}

static uint64_t share(uint64_t bytes, uint64_t sum, uint64_t tier)
{
	return sum <= tier
		       ? bytes
		       : (uint64_t)((double)bytes * (double)tier / (double)sum);
}

/* Mounted with a smaller tier, everybody is guaranteed less. */
void kv_quotas_settle(struct kv_cache *cache)
{
	uint64_t dram, ssd;

	kv_lock(cache);
	reserves(cache, NULL, &dram, &ssd);
	for (uint32_t id = 0; id < cache->n_spaces; id++) {
		struct kv_space *space = cache->spaces[id];

		if (!space || space->removed)
			continue;
		kv_guarantee_dram_locked(cache, space,
					 share(space->quota.reserve_dram, dram,
					       dram_bytes(cache)));
		kv_guarantee_ssd_locked(cache, space,
					share(space->quota.reserve_ssd, ssd,
					      cache->ssd.file_budget));
	}
	kv_unlock(cache);
}

/* A guarantee may always be lowered, and raised while there is enough. */
static bool can_promise(struct kv_cache *cache, const struct kv_space *space,
			const struct kv_quota *quota)
{
	uint64_t dram, ssd;

	reserves(cache, space, &dram, &ssd);
	return (quota->reserve_dram <= space->quota.reserve_dram ||
		(quota->reserve_dram <= dram_bytes(cache) &&
		 dram + quota->reserve_dram <= dram_bytes(cache))) &&
	       (quota->reserve_ssd <= space->quota.reserve_ssd ||
		(quota->reserve_ssd <= cache->ssd.file_budget &&
		 ssd + quota->reserve_ssd <= cache->ssd.file_budget));
}

int kv_space_set_quota(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_quota *quota)
{
	bool may;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	may = !space->removed && can_promise(cache, space, quota);
	if (may) {
		space->put_credit = (double)quota->rate_put;
		space->put_ns = 0;
		space->quota = *quota;
	}
	kv_unlock(cache);
	if (!may)
		return -ENOSPC;
	kv_quotas_settle(cache);
	kv_periodic_wake(&cache->housekeeper);
	return kv_space_persist(cache, space);
}
