/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_arena.h - assert the invariants of the arena, its slots and the ledger.
 *
 * Call kv_arena_check_locked with cache->lock held.
 */
#ifndef KV_TESTS_CACHE_CHECK_ARENA_H
#define KV_TESTS_CACHE_CHECK_ARENA_H

#include "cache/core/ledger.h"
#include "cache/core/list.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"

/* Check that the lists of a space have their slots in the order in which these
 * became dirty or unpersisted (slot->seq).  Return the number of unpersisted
 * blocks. */
static inline uint64_t check_lists(const struct kv_space *space)
{
	const struct kv_slot *slot;
	uint64_t n = 0, seq = 0;

	TAILQ_FOREACH(slot, &space->unpersisted, dirty) {
		assert(kv_block_unpersisted(slot->block) && slot->seq > seq);
		seq = slot->seq;
		n++;
	}
	seq = 0;
	TAILQ_FOREACH(slot, &space->dirty, dirty) {
		assert(kv_block_dirty(slot->block) && slot->seq > seq);
		seq = slot->seq;
	}
	seq = 0;
	TAILQ_FOREACH(slot, &space->unwritten, unwritten) {
		assert(kv_block_dirty(slot->block) && slot->seq > seq);
		seq = slot->seq;
	}
	return n;
}

static inline uint32_t claimed_by(const struct kv_tenant *tenant,
				  const struct kv_segments *segments)
{
	const struct kv_segment *segment;
	uint32_t n = 0;

	TAILQ_FOREACH(segment, segments, link)
		n += segment->keeper == tenant;
	return n;
}

static inline void check_claims(const struct kv_cache *cache)
{
	const struct kv_segment *segment;
	const struct kv_tenant *tenant;
	const struct kv_class *class;
	uint32_t claimed = 0, segments, kept;

	LIST_FOREACH(tenant, &cache->tenants, link) {
		segments = 0;
		kept = claimed_by(tenant, &cache->arena.retired) +
		       claimed_by(tenant, &cache->arena.dead) +
		       claimed_by(tenant, &cache->arena.kept);
		LIST_FOREACH(class, &cache->arena.classes, link) {
			if (class->tenant != tenant)
				continue;
			segments += class->n_segments;
			TAILQ_FOREACH(segment, &class->segments, link)
				kept += segment->kept > 0;
		}
		assert(segments == tenant->segments);
		assert(kept == tenant->kept_segments);
		claimed += KV_MAX(kept, kv_guaranteed_segments(cache, tenant));
	}
	assert(claimed == cache->arena.claimed);
}

/* Check that a user's counts of bytes (struct kv_node) are the sums of those of
 * its spaces. */
static inline void check_ledger(struct kv_cache *cache)
{
	const struct kv_tenant *tenant;

	for (enum kv_node_tier tier = 0; tier < TIERS; tier++) {
		uint64_t due = 0;

		LIST_FOREACH(tenant, &cache->tenants, link) {
			struct kv_node sum = {0}, all = tenant->in[tier];

			for (uint32_t i = 0; i < cache->spaces.n; i++) {
				const struct kv_space *space =
					cache->spaces.sorted[i];

				if (space->tenant != tenant)
					continue;
				sum.bytes += space->in[tier].bytes;
				sum.coming += space->in[tier].coming;
				sum.fast += space->in[tier].fast;
				sum.promised += space->in[tier].guaranteed;
				sum.due += kv_due(space, tier);
			}
			assert(sum.bytes == all.bytes && sum.due == all.due);
			assert(sum.coming == all.coming);
			assert(sum.fast == all.fast);
			assert(sum.promised == all.promised);
			due += kv_tenant_due(tenant, tier);
		}
		assert(due == cache->due[tier]);
	}
}

/* Check that each pinned block is charged for its slot on SSD, or for the slot
 * that it will have there. */
static inline void check_charges(struct kv_cache *cache)
{
	uint64_t pinned = 0;

	for (uint32_t i = 0; i < cache->table.used; i++) {
		const struct kv_block *block = kv_table_at(&cache->table, i);

		if (!(block->flags & BLOCK_PINNED))
			continue;
		if (block->file != KV_NONE)
			pinned += kv_ssd_pin_bytes(
				cache, kv_extent_bytes(cache, block));
		else if (block->slot)
			pinned += kv_ssd_pin_bytes(
				cache, block->slot->segment->class->slot_bytes);
	}
	assert(pinned == cache->ssd.pinned);
	for (uint32_t i = 0; i < cache->spaces.n; i++)
		pinned -= cache->spaces.sorted[i]->in[SSD].fast;
	assert(pinned == 0);
}

static inline void kv_arena_check_locked(struct kv_cache *cache)
{
	uint64_t used = 0, idle_bytes = 0, busy = 0, vacant = 0;
	uint64_t unpersisted = 0;
	struct kv_segment *segment;
	struct kv_class *class;
	struct kv_evict_list *list;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(class, &cache->arena.classes, link) {
		uint32_t idle = 0, on_lists = 0, kept;

		TAILQ_FOREACH(list, &class->lists, link)
			on_lists += list->idle;
		TAILQ_FOREACH(segment, &class->segments, link) {
			vacant += segment->free == segment->slots;
			kept = 0;
			for (uint32_t i = 0; i < segment->slots; i++) {
				struct kv_slot *slot = &segment->slot[i];
				bool ready = slot->state == SLOT_READY;

				assert(ready == (bool)slot->block);
				assert(!ready || slot->block->slot == slot);
				assert((ready && !slot->pinned) ==
				       slot->node.linked);
				assert((slot->state != SLOT_FREE) ==
				       (bool)slot->list);
				assert(!ready || slot->list->space->place ==
							 slot->block->place);
				assert(ready || !slot->leases == (slot->state !=
								  SLOT_LEFT));
				unpersisted += ready && kv_block_unpersisted(
								slot->block);
				idle += kv_slot_idle(slot);
				kept += slot->state == SLOT_FILLING ||
					slot->leases || slot->pinned;
				if (slot->state != SLOT_FREE)
					used += class->slot_bytes;
			}
			assert(kept == segment->kept);
		}
		assert(idle == class->idle && idle == on_lists);
		idle_bytes += idle * class->slot_bytes;
	}
	assert(used == cache->arena.used);
	assert(vacant == cache->arena.vacant);
	assert(idle_bytes == cache->arena.idle);
	for (uint32_t i = 0; i < cache->spaces.n; i++) {
		busy += cache->spaces.sorted[i]->in[DRAM].fast;
		unpersisted -= check_lists(cache->spaces.sorted[i]);
	}
	assert(unpersisted == 0);
	check_ledger(cache);
	check_charges(cache);
	check_claims(cache);
	assert(busy == used - idle_bytes);
}

#endif
