/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - slots of DRAM, and their sizes.
 *
 * A model's blocks are all of one size.  So four slot sizes may be in use
 * between two powers of two: three are exact, for the first block sizes that
 * come, and the fourth is the power of two itself.  Later sizes are rounded up
 * to one of these.  An exact size that no segment and no file uses is replaced
 * by a new one.
 *
 * OWNS     the classes (one access class and one slot size each) and the
 *          slots of their segments; cache->sizes.
 *
 * STATES   of a slot, and the function that makes each step:
 *
 *          FREE    -> FILLING   kv_slot_take_locked
 *          FILLING -> READY     kv_slot_publish_locked
 *          FILLING -> FREE      kv_slot_give_locked (the fill failed)
 *          READY   -> FREE      kv_slot_give_locked (evicted, removed)
 *          READY   -> LEFT      kv_slot_leave_locked (leases keep it)
 *          LEFT    -> FREE      kv_slot_give_locked (with the last lease)
 *
 * INVARIANTS, asserted by tests/cache/check_arena.h
 *   (1) A READY slot and its block point at each other; a slot of another state
 *       has no block.  A LEFT slot is leased.
 *   (2) Exactly the READY slots that are not pinned are on their list.
 *   (3) Only idle slots are evicted: never a slot that is leased, held by a
 *       reader or a write, waiting to be written, or pinned.
 *   (4) A byte is charged once, from kv_slot_take_locked to
 *       kv_slot_give_locked, however many clients wait for it.
 *   and the invariants of slot.c and ledger.c.
 *
 * LOCKING  cache->lock.  A slot's data belongs to the fill, the holds or the
 *          leases.
 */
#include "cache/dram/dram.h"
#include "cache/core/slot.h"
#include "cache/core/feed.h"
#include "cache/core/ledger.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"

#include <sys/stat.h>

#define NOT_PINNED 8u /* 1 / NOT_PINNED of the arena is kept free of pins */

static unsigned octave(uint64_t n)
{
	return 63 - (unsigned)__builtin_clzll(n - 1);
}

static bool size_in_use(struct kv_cache *cache, uint64_t slot_bytes)
{
	struct kv_class *class;
	struct kv_ssd_class *ssd;

	LIST_FOREACH(class, &cache->arena.classes, link)
		if (class->slot_bytes == slot_bytes && class->n_segments)
			return true;
	LIST_FOREACH(ssd, &cache->ssd.classes, link)
		if (ssd->slot_bytes == slot_bytes && ssd->total)
			return true;
	return false;
}

void kv_size_used(struct kv_cache *cache, uint64_t slot_bytes)
{
	uint64_t *sizes = cache->sizes[octave(slot_bytes)];

	for (unsigned i = 0; i < SIZE_CLASSES - 1; i++)
		if (sizes[i] == slot_bytes)
			return;
	for (unsigned i = 0; i < SIZE_CLASSES - 1; i++)
		if (sizes[i] == 0 || !size_in_use(cache, sizes[i])) {
			sizes[i] = slot_bytes;
			return;
		}
}

uint64_t kv_size_class(struct kv_cache *cache, uint64_t length)
{
	uint64_t want = kv_round_up(length, KV_PAGE) + KV_PAGE;
	uint64_t limit = cache->arena.segment_bytes, best, *sizes;

	if (cache->ssd.on)
		limit = KV_MIN(limit, cache->ssd.segment_bytes);
	if (length == 0 || length > UINT32_MAX || want > limit)
		return 0;
	kv_size_used(cache, want);
	sizes = cache->sizes[octave(want)];
	best = KV_MIN(1ull << (octave(want) + 1), limit);
	for (unsigned i = 0; i < SIZE_CLASSES - 1; i++)
		if (sizes[i] >= want && sizes[i] < best)
			best = sizes[i];
	return best;
}

bool kv_arena_grows_locked(const struct kv_cache *cache)
{
	const struct kv_arena *arena = &cache->arena;
	const uint64_t now = kv_now_ns();

	kv_assert_locked(&cache->lock);
	return arena->growing || now - arena->kept_ns < KV_UNMAP_NS ||
	       (arena->retired_count && now - arena->retired_ns < KV_UNMAP_NS);
}

void kv_cache_freeze(struct kv_cache *cache)
{
	kv_lock(cache);
	cache->arena.frozen = true;
	kv_unlock(cache);
}

int kv_slot_take_locked(struct kv_cache *cache, struct kv_space *space,
			uint64_t length, struct kv_slot **ret_slot)
{
	struct kv_arena *arena = &cache->arena;
	uint64_t slot_bytes = kv_size_class(cache, length);
	struct kv_class *class, *vacant = NULL;
	struct kv_segment *segment;
	struct kv_evict_list *list;
	struct kv_slot *slot;

	kv_assert_locked(&cache->lock);
	if (!slot_bytes)
		return -EFBIG;
	if (arena->frozen)
		return -ENOSPC;
	LIST_FOREACH(class, &arena->classes, link) {
		if (class->slot_bytes == slot_bytes &&
		    kv_class_fits(class, space))
			break;
		if (class->n_segments == 0)
			vacant = class;
	}
	if (!class && !vacant) {
		vacant = calloc(1, sizeof(*class));
		if (!vacant)
			return -ENOMEM;
		TAILQ_INIT(&vacant->segments);
		TAILQ_INIT(&vacant->lists);
		LIST_INSERT_HEAD(&arena->classes, vacant, link);
	}
	if (!class) {
		class = vacant;
		class->uid = space->uid;
		class->tenant = space->tenant;
		class->gid = space->gid;
		class->read_bits = kv_read_bits(space->mode);
		class->slot_bytes = slot_bytes;
		/* free the eviction lists that spaces have in this class */
		kv_evict_lists_free(&class->lists);
	}
	if (!kv_dram_fit_quota_locked(cache, space, slot_bytes))
		return -ENOSPC;
	slot = kv_dram_evict_for_locked(cache, class, space);
	if (!slot)
		return kv_arena_grows_locked(cache) ? -EBUSY : -ENOSPC;
	list = kv_evict_list_make(space, DRAM, class, &class->lists,
				  &arena->eviction);
	if (!list)
		return -ENOMEM;

	segment = slot->segment;
	arena->vacant -= segment->free == segment->slots;
	TAILQ_REMOVE(&segment->free_list, slot, link);
	slot->state = SLOT_FILLING;
	slot->list = list;
	arena->used += slot_bytes;
	kv_count_coming(DRAM, space, slot_bytes);
	kv_count_fast(cache, DRAM, space, slot_bytes);
	kv_slot_after(cache, slot);
	if (--segment->free == 0) {
		TAILQ_REMOVE(&class->segments, segment, link);
		TAILQ_INSERT_TAIL(&class->segments, segment, link);
	}
	*ret_slot = slot;
	return 0;
}

bool kv_slot_pin_fits(const struct kv_cache *cache,
		      const struct kv_space *space, const struct kv_slot *slot,
		      bool charged)
{
	const struct kv_arena *arena = &cache->arena;
	uint64_t total = arena->max * arena->segment_bytes;
	uint64_t bytes = slot->segment->class->slot_bytes;

	return cache->pins.bytes + bytes <= total - total / NOT_PINNED &&
	       kv_segment_may_keep(cache, slot->segment) &&
	       !(charged ? kv_slot_idle(slot) &&
				   kv_arena_over_floor(cache, space, 0)
			 : kv_slot_over_floor(cache, slot));
}

void kv_slot_pin_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	const struct kv_block *block = slot->block;

	kv_assert_locked(&cache->lock);
	if (slot->pinned || !(block->flags & BLOCK_PINNED) ||
	    !kv_slot_pin_fits(cache, kv_block_space(cache, block), slot, true))
		return;
	slot->pinned = true;
	kv_evict_list_drop(slot->list, block->number);
	cache->pins.bytes += slot->segment->class->slot_bytes;
}

void kv_slot_unpin_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	kv_assert_locked(&cache->lock);
	if (!slot->pinned)
		return;
	slot->pinned = false;
	kv_evict_list_add(cache, slot->list, slot->block, false);
	cache->pins.bytes -= slot->segment->class->slot_bytes;
}

void kv_slot_hint_over_locked(struct kv_cache *cache, struct kv_slot *slot,
			      bool used)
{
	uint64_t bytes = slot->segment->class->slot_bytes;

	kv_assert_locked(&cache->lock);
	if (!slot->hinted)
		return;
	slot->hinted = false;
	cache->arena.hinted -= bytes;
	if (used)
		cache->stats.prefetch_used += bytes;
	else
		cache->stats.prefetch_unused += bytes;
}

void kv_slot_publish_locked(struct kv_cache *cache, struct kv_slot *slot,
			    struct kv_block *block)
{
	struct kv_class *class = slot->segment->class;
	struct kv_space *space = slot->list->space;

	kv_assert_locked(&cache->lock);
	assert(slot->state == SLOT_FILLING && !block->slot);
	assert(space->place == block->place);
	kv_slot_before(cache, slot);
	slot->state = SLOT_READY;
	slot->block = block;
	slot->former = UINT64_MAX;
	slot->lost = false;
	block->slot = slot;
	if (kv_block_unpersisted(block))
		kv_unpersisted_add_locked(cache, slot);
	slot->payload = kv_slot_prologue(slot)->record.payload;
	kv_slot_pin_locked(cache, slot);
	kv_count_coming(DRAM, space, -class->slot_bytes);
	kv_count_bytes(DRAM, space, class->slot_bytes);
	if (!slot->pinned)
		kv_evict_list_add(cache, slot->list, block,
				  block->file != KV_NONE);
	kv_slot_after(cache, slot);
	kv_feed_note_locked(cache, space, block);
}

/* Separate a READY slot from its block. */
static void part(struct kv_cache *cache, struct kv_slot *slot)
{
	kv_orphan_drop_locked(cache, slot);
	if (kv_block_unpersisted(slot->block))
		kv_unpersisted_drop_locked(cache, slot);
	kv_evict_list_drop(slot->list, slot->block->number);
	kv_count_bytes(DRAM, slot->list->space,
		       -slot->segment->class->slot_bytes);
	slot->block->slot = NULL;
	if (!(slot->block->flags & BLOCK_REMOVED))
		kv_feed_note_locked(cache, slot->list->space, slot->block);
	slot->block = NULL;
}

void kv_slot_leave_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	const uint64_t bytes = slot->segment->class->slot_bytes;

	kv_assert_locked(&cache->lock);
	assert(slot->state == SLOT_READY && slot->leases && !slot->holds);
	assert(!kv_block_dirty(slot->block));
	kv_slot_before(cache, slot);
	part(cache, slot);
	kv_slot_hint_over_locked(cache, slot, true);
	if (slot->pinned)
		cache->pins.bytes -= bytes;
	slot->must = slot->pinned = slot->alone = false;
	slot->state = SLOT_LEFT;
	kv_count_coming(DRAM, slot->list->space, bytes);
	kv_slot_after(cache, slot);
}

void kv_slot_give_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_segment *segment = slot->segment;
	struct kv_class *class = segment->class;
	struct kv_space *space = slot->list->space;

	kv_assert_locked(&cache->lock);
	assert(slot->state != SLOT_FREE && !slot->leases && !slot->holds);
	kv_slot_before(cache, slot);
	kv_count_fast(cache, DRAM, space, -class->slot_bytes);
	if (slot->state == SLOT_READY)
		part(cache, slot);
	else
		kv_count_coming(DRAM, space, -class->slot_bytes);
	kv_slot_hint_over_locked(cache, slot, false);
	slot->state = SLOT_FREE;
	slot->list = NULL;
	if (slot->pinned)
		cache->pins.bytes -= class->slot_bytes;
	slot->must = slot->pinned = slot->alone = false;
	cache->arena.used -= class->slot_bytes;
	TAILQ_INSERT_HEAD(&segment->free_list, slot, link);
	if (segment->free++ == 0) {
		TAILQ_REMOVE(&class->segments, segment, link);
		TAILQ_INSERT_HEAD(&class->segments, segment, link);
	}
	cache->arena.vacant += segment->free == segment->slots;
	cache->room = true;
}
