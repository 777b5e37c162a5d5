/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expiry.c - remove the blocks that were unused for the ttl of their space or
 * of their user; the clock of last uses.
 *
 * A hand goes around the table of blocks once in PASS_TICKS seconds: eviction
 * lists are not sorted by time, and a walk over them would need one entry more
 * in each block.  A block that has expired leaves all tiers here; objects of the
 * remote tier stay, and no tombstone is written.
 *
 * OWNS       the hand, cache->may_expire, and the clock.
 *
 * INVARIANTS
 *   (1) Only idle blocks expire: none that is pinned, in a snapshot, leased,
 *       open, being written, or awaited by a flush.
 *   (2) A block is unused for at least as long as kv_block_age says, but for
 *       a second for each mount.  After a crash, or if the clock is lost, all
 *       blocks count as used at the mount.
 *
 * LOCKING    cache->lock, which a walk releases after AT_ONCE blocks.
 */
#include "cache/space/space.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "common/crash_point.h"

#define PASS_TICKS 16u
#define STEP_MIN 65536u /* least number of blocks to examine in a tick */
#define AT_ONCE 4096u
#define REMOVAL 64u /* removing a block takes as long as examining so many */

static int64_t wall_now(void)
{
	return kv_wall_ns() / 1000000000;
}

void kv_uses_begin(struct kv_cache *cache, uint32_t newest)
{
	const struct kv_store_info *info = &cache->info;
	const uint32_t last = KV_MAX(info->clock, newest);
	struct kv_use_clock *uses = &cache->uses;

	uses->from_ns = kv_now_ns();
	/* A second later, for eviction: no use is as old as one before. */
	uses->base = last ? last + 1
			  : (uint32_t)KV_MIN(KV_MAX(wall_now(), 1), INT32_MAX);
	uses->floor = info->clock ? info->floor : uses->base;
	uses->ahead = wall_now() - uses->base;
}

static uint64_t ttl_of(const struct kv_space *space)
{
	const uint64_t own = space->quota.ttl, all = space->tenant->quota.ttl;

	return own && all ? KV_MIN(own, all) : own | all;
}

static bool any_ttl(const struct kv_cache *cache)
{
	const struct kv_tenant *tenant;

	LIST_FOREACH(tenant, &cache->tenants, link)
		if (tenant->quota.ttl)
			return true;
	for (uint32_t i = 0; i < cache->spaces.n; i++)
		if (cache->spaces.sorted[i]->quota.ttl)
			return true;
	return false;
}

static bool has_expired(struct kv_cache *cache, const struct kv_block *block)
{
	const struct kv_space *space = kv_block_space(cache, block);
	const struct kv_slot *slot = block->slot;
	const uint64_t ttl = ttl_of(space);

	if (!ttl || kv_block_age(cache, block) <= ttl || block->refs ||
	    (block->flags & BLOCK_PINNED))
		return false;
	return !slot || (kv_slot_idle(slot) && (block->file != KV_NONE ||
						slot->seq > space->asked_seq));
}

void kv_blocks_expire(struct kv_cache *cache)
{
	const uint32_t step = KV_MAX(cache->table.used / PASS_TICKS, STEP_MIN);
	const int64_t ahead = wall_now() - kv_use_now(cache);
	uint32_t work = 0;

	kv_assert_locked(&cache->lock);
	/* The times that users see follow the wall clock when it jumps. */
	if (ahead - cache->uses.ahead > 1 || cache->uses.ahead - ahead > 1)
		cache->uses.ahead = ahead;
	if (cache->config.read_only)
		return;
	for (uint32_t i = 0;
	     cache->may_expire && i < KV_MIN(step, cache->table.used); i++) {
		struct kv_block *block;

		/* There may be 65,536 spaces: look at them once in a pass. */
		if (cache->expiry_at >= cache->table.used) {
			cache->expiry_at = 0;
			cache->may_expire = any_ttl(cache);
			if (!cache->may_expire)
				return;
		}
		block = kv_table_at(&cache->table, cache->expiry_at++);
		work++;
		if (!(block->flags & BLOCK_REMOVED) &&
		    has_expired(cache, block)) {
			KV_POINT("expire");
			kv_cause_note_block(cache, block, KV_CAUSE_EXPIRED);
			cache->stats.expired++;
			kv_block_remove_locked(cache, block);
			work += REMOVAL;
		}
		if (work >= AT_ONCE) {
			work = 0;
			kv_yield(cache);
		}
	}
}
