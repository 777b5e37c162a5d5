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
 *   (2) Exactly the READY slots are on their class's policy.
 *   (3) class->idle counts the slots for which kv_slot_idle holds, arena->idle
 *       their bytes.
 *   (4) Only idle slots are evicted: never one that is leased, held by a reader
 *       or a write, waiting to be written, or pinned.
 *
 * LOCKING  cache->lock.  slot data belongs to whoever fills, holds or leases
 * it.
 */
#include "cache/core.h"

#include <sys/stat.h>

/* Turns of 10 ms while segments are being made; callers that serve others are
 * kept for a few only. */
#define TRIES_PATIENT 100
#define TRIES_HASTY 50

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
	       !(slot->block->flags & BLOCK_PINNED) &&
	       !kv_block_dirty(slot->block);
}

void kv_slot_before(struct kv_cache *cache, struct kv_slot *slot)
{
	if (!kv_slot_idle(slot))
		return;
	slot->segment->class->idle--;
	cache->arena.idle -= slot->segment->class->slot_bytes;
}

void kv_slot_after(struct kv_cache *cache, struct kv_slot *slot)
{
	if (!kv_slot_idle(slot))
		return;
	slot->segment->class->idle++;
	cache->arena.idle += slot->segment->class->slot_bytes;
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

bool kv_arena_over_floor(const struct kv_cache *cache, uint64_t bytes)
{
	const struct kv_arena *arena = &cache->arena;
	uint64_t total = arena->max * arena->segment_bytes;

	return arena->used - arena->idle + bytes > total - total / 16;
}

static struct kv_node *node_of(void *arg, uint32_t block)
{
	struct kv_cache *cache = arg;

	return &kv_table_at(&cache->table, block)->slot->node;
}

static struct kv_class *class_get(struct kv_cache *cache,
				  const struct kv_space *space,
				  uint64_t slot_bytes)
{
	uint32_t bits = space->mode & (S_IRUSR | S_IRGRP | S_IROTH);
	struct kv_class *class, *vacant = NULL;

	LIST_FOREACH(class, &cache->arena.classes, link)
	{
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
		LIST_INSERT_HEAD(&cache->arena.classes, class, link);
	}
	class->uid = space->uid;
	class->gid = space->gid;
	class->read_bits = bits;
	class->slot_bytes = slot_bytes;
	kv_policy_init(&class->policy, cache->config.evict, &cache->clock,
		       node_of, cache);
	return class;
}

bool kv_class_fits(const struct kv_class *class, const struct kv_space *space)
{
	return class->uid == space->uid && class->gid == space->gid &&
	       class->read_bits == (space->mode & 0444);
}

static bool same_access(const struct kv_class *a, const struct kv_class *b)
{
	return a->uid == b->uid && a->gid == b->gid &&
	       a->read_bits == b->read_bits;
}

/* Cut @segment into slots for @class. */
static int segment_use(struct kv_cache *cache, struct kv_segment *segment,
		       struct kv_class *class)
{
	uint32_t n = (uint32_t)(cache->arena.segment_bytes / class->slot_bytes);
	struct kv_slot *slots = calloc(n, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	free(segment->slot);
	segment->slot = slots;
	segment->slots = n;
	kv_segment_slots(segment, class);
	return 0;
}

static bool may_evict(void *arg, uint32_t number)
{
	struct kv_cache *cache = arg;
	struct kv_block *block = kv_table_at(&cache->table, number);
	struct kv_space *space = kv_block_space(cache, block);

	/* A removed one goes by itself when its last reader does. */
	if (!kv_slot_idle(block->slot) || (block->flags & BLOCK_REMOVED))
		return false;
	/* An open file holds its bytes. */
	if (block->refs && block->file == KV_NONE)
		return false;
	return !space->quota.reserve_dram ||
	       space->bytes_dram > space->quota.reserve_dram;
}

void kv_block_drop_dram_locked(struct kv_cache *cache, struct kv_block *block)
{
	cache->stats.evicted_dram++;
	if (block->file == KV_NONE) {
		kv_block_remove_locked(cache, block);
		return;
	}
	kv_slot_give_locked(cache, block->slot);
}

static bool evict_one(struct kv_cache *cache, struct kv_class *class)
{
	uint32_t victim;

	if (!class->idle)
		return false;
	victim = kv_policy_victim(&class->policy, may_evict, cache);
	if (victim == KV_NONE)
		return false;
	kv_block_drop_dram_locked(cache, kv_table_at(&cache->table, victim));
	return true;
}

static bool may_empty(struct kv_cache *cache, const struct kv_segment *segment)
{
	for (uint32_t i = 0; i < segment->slots; i++) {
		const struct kv_slot *slot = &segment->slot[i];

		if (slot->state == SLOT_FILLING ||
		    (slot->state == SLOT_READY &&
		     !may_evict(cache, slot->block->number)))
			return false;
	}
	return true;
}

static void empty_segment(struct kv_cache *cache, struct kv_segment *segment)
{
	for (uint32_t i = 0; i < segment->slots; i++)
		if (segment->slot[i].state == SLOT_READY)
			kv_block_drop_dram_locked(cache,
						  segment->slot[i].block);
}

/* The class that has gone longest without a use of its oldest block. */
static struct kv_class *coldest_class(struct kv_cache *cache,
				      const struct kv_class *but)
{
	struct kv_class *class, *best = NULL;
	uint32_t best_age = 0;

	LIST_FOREACH(class, &cache->arena.classes, link)
	{
		uint32_t age = kv_policy_age(&class->policy);

		if (class == but || !class->n_segments || !class->idle)
			continue;
		if (!best || age > best_age) {
			best = class;
			best_age = age;
		}
	}
	return best;
}

/* A segment of another class: an empty one, or the coldest class's. */
static struct kv_segment *segment_to_steal(struct kv_cache *cache,
					   const struct kv_class *thief)
{
	struct kv_segment *segment;
	struct kv_class *class;

	LIST_FOREACH(class, &cache->arena.classes, link)
	TAILQ_FOREACH(segment, &class->segments, link)
	if (class != thief && segment->free == segment->slots)
		return segment;
	class = coldest_class(cache, thief);
	if (!class)
		return NULL;
	TAILQ_FOREACH_REVERSE(segment, &class->segments, kv_segments, link)
	if (may_empty(cache, segment))
		return segment;
	return NULL;
}

static bool steal(struct kv_cache *cache, struct kv_class *class)
{
	struct kv_segment *segment = segment_to_steal(cache, class);

	if (!segment)
		return false;
	empty_segment(cache, segment);
	if (segment->free != segment->slots)
		return true; /* an open file kept one: look again */
	if (!same_access(segment->class, class)) {
		kv_segment_retire_locked(cache, segment);
		return true;
	}
	TAILQ_REMOVE(&segment->class->segments, segment, link);
	segment->class->n_segments--;
	return segment_use(cache, segment, class) == 0;
}

/* While the SSD takes nothing, what waits for it is not worth more than what
 * comes: give the oldest up. */
static bool shed_queued(struct kv_cache *cache)
{
	struct kv_slot *slot;

	if (!cache->ssd.error)
		return false;
	TAILQ_FOREACH(slot, &cache->ssd.queue, link)
	{
		if (slot->must)
			continue;
		kv_write_unqueue_locked(cache, slot->block);
		cache->stats.dropped_saves++;
		return true;
	}
	return false;
}

static struct kv_slot *free_slot(struct kv_class *class)
{
	struct kv_segment *segment = TAILQ_FIRST(&class->segments);

	/* Segments with free slots are kept in front. */
	return segment && segment->free ? TAILQ_FIRST(&segment->free_list)
					: NULL;
}

static struct kv_slot *make_room(struct kv_cache *cache, struct kv_class *class)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_segment *spare = TAILQ_FIRST(&arena->spare);
	struct kv_slot *slot = free_slot(class);
	struct kv_class *cold;

	if (slot)
		return slot;
	if (spare) {
		TAILQ_REMOVE(&arena->spare, spare, link);
		if (segment_use(cache, spare, class) < 0)
			TAILQ_INSERT_TAIL(&arena->spare, spare, link);
		return free_slot(class);
	}
	if (arena->growing)
		return NULL;
	cold = coldest_class(cache, class);
	if (cold && class->n_segments < cold->n_segments &&
	    kv_policy_age(&cold->policy) / 2 > kv_policy_age(&class->policy) &&
	    steal(cache, class))
		return free_slot(class);
	if (evict_one(cache, class) || steal(cache, class) ||
	    (shed_queued(cache) && evict_one(cache, class)))
		return free_slot(class);
	return NULL;
}

int kv_slot_take_locked(struct kv_cache *cache, struct kv_space *space,
			uint64_t length, bool wait, struct kv_slot **ret_slot)
{
	struct kv_arena *arena = &cache->arena;
	uint64_t slot_bytes = kv_size_class(cache, length);
	struct kv_segment *segment;
	struct kv_class *class;
	struct kv_slot *slot = NULL;
	int tries = wait ? TRIES_PATIENT : TRIES_HASTY;

	if (!slot_bytes)
		return -EFBIG;
	for (int try = 0; try < tries; try++) {
		class = class_get(cache, space, slot_bytes);
		if (!class)
			return -ENOMEM;
		slot = make_room(cache, class);
		if (slot || (!arena->growing && !arena->retired_count) ||
		    (!wait && !arena->growing))
			break;
		kv_cond_wait(cache, &arena->grown, 10000000u);
	}
	if (!slot)
		return -ENOSPC;

	segment = slot->segment;
	TAILQ_REMOVE(&segment->free_list, slot, link);
	slot->state = SLOT_FILLING;
	arena->used += slot_bytes;
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

	assert(slot->state == SLOT_FILLING && !block->slot);
	slot->state = SLOT_READY;
	slot->block = block;
	block->slot = slot;
	slot->payload = kv_slot_prologue(slot)->record.payload;
	kv_block_space(cache, block)->bytes_dram += class->slot_bytes;
	kv_policy_insert(&class->policy, block->number, kv_now_ns());
	kv_slot_after(cache, slot);
}

void kv_slot_give_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_segment *segment = slot->segment;
	struct kv_class *class = segment->class;

	assert(slot->state != SLOT_FREE && !slot->leases && !slot->holds);
	kv_slot_before(cache, slot);
	if (slot->state == SLOT_READY) {
		kv_policy_remove(&class->policy, slot->block->number);
		kv_block_space(cache, slot->block)->bytes_dram -=
			class->slot_bytes;
		slot->block->slot = NULL;
		slot->block = NULL;
	}
	slot->state = SLOT_FREE;
	slot->must = false;
	cache->arena.used -= class->slot_bytes;
	TAILQ_INSERT_HEAD(&segment->free_list, slot, link);
	if (segment->free++ == 0) {
		TAILQ_REMOVE(&class->segments, segment, link);
		TAILQ_INSERT_HEAD(&class->segments, segment, link);
	}
	pthread_cond_broadcast(&cache->arena.grown);
}

void kv_arena_check_locked(struct kv_cache *cache)
{
	uint64_t used = 0, idle_bytes = 0;
	struct kv_segment *segment;
	struct kv_class *class;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(class, &cache->arena.classes, link)
	{
		uint32_t idle = 0;

		TAILQ_FOREACH(segment, &class->segments, link)
		for (uint32_t i = 0; i < segment->slots; i++) {
			struct kv_slot *slot = &segment->slot[i];
			bool ready = slot->state == SLOT_READY;

			assert(ready == (slot->block != NULL));
			assert(!ready || slot->block->slot == slot);
			assert(ready == slot->node.linked);
			assert(ready || !slot->leases);
			idle += kv_slot_idle(slot);
			if (slot->state != SLOT_FREE)
				used += class->slot_bytes;
		}
		assert(idle == class->idle);
		idle_bytes += idle * class->slot_bytes;
	}
	assert(used == cache->arena.used);
	assert(idle_bytes == cache->arena.idle);
}
