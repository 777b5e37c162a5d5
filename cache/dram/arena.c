/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - slots: which block has which piece of DRAM, and who makes place.
 *
 * OWNS     the classes (one access class and one slot size each) and the slots
 *          of their segments.
 *
 * STATES   of a slot, and the function that makes each step:
 *
 *             FREE -> FILLING   kv_slot_take_locked
 *          FILLING -> READY     kv_slot_publish_locked
 *          FILLING -> FREE      kv_slot_give_locked   (the fill failed)
 *            READY -> FREE      kv_slot_give_locked   (evicted, removed)
 *
 * INVARIANTS, asserted by kv_arena_check_locked
 *   (1) A READY slot and its block point at each other; a slot of another state
 *       has no block.
 *   (2) Exactly the READY slots that are not pinned are on their list.
 *   (3) class->idle counts the slots for which kv_slot_idle holds, as do the
 *       segments' and the lists' idle, arena->idle their bytes.
 *   (4) Only idle slots are evicted: never one that is leased, held by a reader
 *       or a write, waiting to be written, or pinned.
 *   (5) space->busy_dram are the bytes of its slots that are neither FREE nor
 *       idle, arena->guaranteed what all spaces are guaranteed beyond these.  A
 * byte is charged once, from kv_slot_take_locked to kv_slot_give_locked,
 *       whoever waits for it.
 *
 * LOCKING  cache->lock.  slot data belongs to whoever fills, holds or leases
 * it.
 */
#include "cache/block/block.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

#include <sys/stat.h>

/* Clients that were told to unmap a segment do so at once, or never. */
#define UNMAP_NS 1000000000u

struct kv_prologue *kv_slot_prologue(const struct kv_slot *slot)
{
	const struct kv_segment *segment = slot->segment;

	return (void *)(segment->base + (uint64_t)(slot - segment->slot) *
						segment->class->slot_bytes);
}

uint8_t *kv_slot_file(const struct kv_slot *slot)
{
	return (uint8_t *)kv_slot_prologue(slot) + KV_PAGE;
}

bool kv_block_dirty(const struct kv_block *block)
{
	return block->flags & (BLOCK_QUEUED | BLOCK_WRITING);
}

bool kv_slot_idle(const struct kv_slot *slot)
{
	return slot->state == SLOT_READY && !slot->leases && !slot->holds &&
	       !slot->pinned && !kv_block_dirty(slot->block);
}

/* What @space is guaranteed and does not hold fast already. */
static uint64_t guaranteed(const struct kv_space *space)
{
	return space->guaranteed_dram > space->busy_dram
		       ? space->guaranteed_dram - space->busy_dram
		       : 0;
}

bool kv_guaranteed_dram(const struct kv_space *space, uint64_t bytes)
{
	return space->bytes_dram + space->filling_dram + bytes <=
	       space->guaranteed_dram;
}

static void add_busy(struct kv_cache *cache, struct kv_space *space,
		     uint64_t bytes)
{
	cache->arena.guaranteed -= guaranteed(space);
	space->busy_dram += bytes;
	cache->arena.guaranteed += guaranteed(space);
}

void kv_guarantee_dram_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t bytes)
{
	cache->arena.guaranteed -= guaranteed(space);
	space->guaranteed_dram = bytes;
	cache->arena.guaranteed += guaranteed(space);
}

static void add_idle(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	struct kv_class *class = slot->segment->class;
	uint64_t bytes = class->slot_bytes;

	class->idle += (uint32_t)by;
	slot->segment->idle += (uint32_t)by;
	slot->list->idle += (uint32_t)by;
	cache->arena.idle += by > 0 ? bytes : -bytes;
	cache->room |= by > 0;
	add_busy(cache, slot->list->space, by > 0 ? -bytes : bytes);
}

void kv_slot_before(struct kv_cache *cache, struct kv_slot *slot)
{
	if (kv_slot_idle(slot))
		add_idle(cache, slot, -1);
}

void kv_slot_after(struct kv_cache *cache, struct kv_slot *slot)
{
	if (kv_slot_idle(slot))
		add_idle(cache, slot, 1);
}

void kv_slot_lease_locked(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	kv_slot_before(cache, slot);
	slot->leases = (uint32_t)((int)slot->leases + by);
	kv_slot_after(cache, slot);
}

void kv_slot_hold_locked(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	kv_slot_before(cache, slot);
	slot->holds = (uint32_t)((int)slot->holds + by);
	kv_slot_after(cache, slot);
}

bool kv_arena_over_floor(const struct kv_cache *cache,
			 const struct kv_space *space, uint64_t bytes)
{
	const struct kv_arena *arena = &cache->arena;
	uint64_t total = arena->max * arena->segment_bytes;
	uint64_t busy = arena->used - arena->idle + bytes;

	if (busy > total - total / 16)
		return true;
	/* Its own guarantee is there for it, that of others is not. */
	return space->busy_dram + bytes > space->guaranteed_dram &&
	       busy + arena->guaranteed - guaranteed(space) > total;
}

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	struct kv_cache *cache = arg;

	return &kv_table_at(&cache->table, block)->slot->node;
}

int kv_arena_eviction_init(struct kv_cache *cache)
{
	return kv_eviction_init(&cache->arena.eviction, cache->config.evict,
				&cache->clock, node_of, cache);
}

static struct kv_class *class_get(struct kv_cache *cache,
				  const struct kv_space *space,
				  uint64_t slot_bytes)
{
	uint32_t bits = space->mode & (S_IRUSR | S_IRGRP | S_IROTH);
	struct kv_class *class, *vacant = NULL;

	LIST_FOREACH(class, &cache->arena.classes, link) {
		if (class->slot_bytes == slot_bytes &&
		    class->uid == space->uid && class->gid == space->gid &&
		    class->read_bits == bits)
			return class;
		if (class->n_segments == 0)
			vacant = class;
	}
	class = vacant;
	if (!class) {
		class = calloc(1, sizeof(*class));
		if (!class)
			return NULL;
		TAILQ_INIT(&class->segments);
		TAILQ_INIT(&class->lists);
		LIST_INSERT_HEAD(&cache->arena.classes, class, link);
	}
	class->uid = space->uid;
	class->gid = space->gid;
	class->read_bits = bits;
	class->slot_bytes = slot_bytes;
	kv_evict_lists_free(&class->lists); /* of those it served before */
	return class;
}

bool kv_class_fits(const struct kv_class *class, const struct kv_space *space)
{
	return class->uid == space->uid && class->gid == space->gid &&
	       class->read_bits == (space->mode & 0444);
}

bool kv_arena_grows_locked(const struct kv_cache *cache)
{
	const struct kv_arena *arena = &cache->arena;

	return arena->growing || (arena->retired_count &&
				  kv_now_ns() - arena->retired_ns < UNMAP_NS);
}

int kv_slot_take_locked(struct kv_cache *cache, struct kv_space *space,
			uint64_t length, struct kv_slot **ret_slot)
{
	struct kv_arena *arena = &cache->arena;
	uint64_t slot_bytes = kv_size_class(cache, length);
	struct kv_segment *segment;
	struct kv_class *class;
	struct kv_evict_list *list;
	struct kv_slot *slot;

	if (!slot_bytes)
		return -EFBIG;
	class = class_get(cache, space, slot_bytes);
	if (!class)
		return -ENOMEM;
	if (!kv_quota_dram_locked(cache, space, slot_bytes))
		return -ENOSPC;
	slot = kv_dram_evict_for_locked(cache, class, space);
	if (!slot)
		return kv_arena_grows_locked(cache) ? -EBUSY : -ENOSPC;
	list = kv_evict_list_make(space, &space->dram_lists, class,
				  &class->lists, &arena->eviction);
	if (!list)
		return -ENOMEM;

	segment = slot->segment;
	arena->vacant -= segment->free == segment->slots;
	TAILQ_REMOVE(&segment->free_list, slot, link);
	slot->state = SLOT_FILLING;
	slot->list = list;
	arena->used += slot_bytes;
	space->filling_dram += slot_bytes;
	add_busy(cache, space, slot_bytes);
	if (--segment->free == 0) {
		TAILQ_REMOVE(&class->segments, segment, link);
		TAILQ_INSERT_TAIL(&class->segments, segment, link);
	}
	*ret_slot = slot;
	return 0;
}

void kv_slot_publish_locked(struct kv_cache *cache, struct kv_slot *slot,
			    struct kv_block *block)
{
	struct kv_class *class = slot->segment->class;
	struct kv_space *space = slot->list->space;

	assert(slot->state == SLOT_FILLING && !block->slot);
	assert(space->id == block->space);
	slot->state = SLOT_READY;
	slot->block = block;
	block->slot = slot;
	slot->payload = kv_slot_prologue(slot)->record.payload;
	kv_pin_slot_locked(cache, slot);
	space->filling_dram -= class->slot_bytes;
	space->bytes_dram += class->slot_bytes;
	if (!slot->pinned)
		kv_evict_list_add(cache, slot->list, block,
				  block->file != KV_NONE);
	kv_slot_after(cache, slot);
}

void kv_slot_give_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_segment *segment = slot->segment;
	struct kv_class *class = segment->class;
	struct kv_space *space = slot->list->space;

	assert(slot->state != SLOT_FREE && !slot->leases && !slot->holds);
	kv_slot_before(cache, slot);
	add_busy(cache, space, -class->slot_bytes);
	if (slot->state == SLOT_READY) {
		kv_orphan_drop_locked(cache, slot);
		kv_evict_list_drop(slot->list, slot->block->number);
		space->bytes_dram -= class->slot_bytes;
		slot->block->slot = NULL;
		slot->block = NULL;
	} else {
		space->filling_dram -= class->slot_bytes;
	}
	kv_prefetch_settled_locked(cache, slot, false);
	slot->state = SLOT_FREE;
	slot->list = NULL;
	if (slot->pinned)
		cache->pins.bytes -= class->slot_bytes;
	slot->must = slot->pinned = slot->alone = slot->denied = false;
	cache->arena.used -= class->slot_bytes;
	TAILQ_INSERT_HEAD(&segment->free_list, slot, link);
	if (segment->free++ == 0) {
		TAILQ_REMOVE(&class->segments, segment, link);
		TAILQ_INSERT_HEAD(&class->segments, segment, link);
	}
	cache->arena.vacant += segment->free == segment->slots;
	cache->room = true;
}

void kv_arena_check_locked(struct kv_cache *cache)
{
	uint64_t used = 0, idle_bytes = 0, busy = 0, promised = 0, vacant = 0;
	struct kv_segment *segment;
	struct kv_class *class;
	struct kv_evict_list *list;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(class, &cache->arena.classes, link) {
		uint32_t idle = 0, on_lists = 0;

		TAILQ_FOREACH(list, &class->lists, link)
			on_lists += list->idle;
		TAILQ_FOREACH(segment, &class->segments, link) {
			vacant += segment->free == segment->slots;
			for (uint32_t i = 0; i < segment->slots; i++) {
				struct kv_slot *slot = &segment->slot[i];
				bool ready = slot->state == SLOT_READY;

				assert(ready == (slot->block != NULL));
				assert(!ready || slot->block->slot == slot);
				assert((ready && !slot->pinned) ==
				       slot->node.linked);
				assert((slot->state != SLOT_FREE) ==
				       (slot->list != NULL));
				assert(!ready || slot->list->space->id ==
							 slot->block->space);
				assert(ready || !slot->leases);
				idle += kv_slot_idle(slot);
				if (slot->state != SLOT_FREE)
					used += class->slot_bytes;
			}
		}
		assert(idle == class->idle && idle == on_lists);
		idle_bytes += idle * class->slot_bytes;
	}
	assert(used == cache->arena.used);
	assert(vacant == cache->arena.vacant);
	assert(idle_bytes == cache->arena.idle);
	for (uint32_t id = 0; id < cache->n_spaces; id++)
		if (cache->spaces[id]) {
			busy += cache->spaces[id]->busy_dram;
			promised += guaranteed(cache->spaces[id]);
		}
	assert(busy == used - idle_bytes);
	assert(promised == cache->arena.guaranteed);
}
