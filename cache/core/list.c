/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - one order of leaving per space and class.
 *
 * OWNS       the shelves.
 *
 * INVARIANTS
 *   (1) In a class's list, shelves with blocks come before those without.
 *
 * LOCKING    the cache's lock.
 */
#include "cache/block/block.h"
#include "cache/ssd/ssd.h"

struct kv_shelf *kv_shelf_find(const struct kv_shelf_list *own,
			       const void *class)
{
	struct kv_shelf *shelf;

	/* As many as the space has sizes of blocks: one, as a rule. */
	LIST_FOREACH(shelf, own, own)
		if (shelf->class == class)
			return shelf;
	return NULL;
}

struct kv_shelf *kv_shelf_make(struct kv_space *space,
			       struct kv_shelf_list *own, const void *class,
			       struct kv_shelves *beside,
			       struct kv_eviction *eviction)
{
	struct kv_shelf *shelf = kv_shelf_find(own, class);

	if (shelf)
		return shelf;
	shelf = calloc(1, sizeof(*shelf));
	if (!shelf)
		return NULL;
	shelf->space = space;
	shelf->class = class;
	shelf->beside = beside;
	shelf->ssd = own == &space->ssd_shelves;
	kv_policy_init(&shelf->policy, eviction);
	TAILQ_INSERT_TAIL(beside, shelf, link);
	LIST_INSERT_HEAD(own, shelf, own);
	return shelf;
}

static void add(struct kv_shelf *shelf, uint32_t block,
		const struct kv_arrival *arrival)
{
	kv_policy_insert(&shelf->policy, block, arrival);
	if (shelf->blocks++ == 0) {
		TAILQ_REMOVE(shelf->beside, shelf, link);
		TAILQ_INSERT_HEAD(shelf->beside, shelf, link);
	}
}

static uint32_t parent_of(struct kv_cache *cache, const struct kv_shelf *shelf,
			  const struct kv_slot_record *record)
{
	struct kv_key key = {.len = record->parent_len};
	const struct kv_block *parent;

	if (!key.len)
		return KV_NONE;
	memcpy(key.b, record->parent, sizeof(key.b));
	parent = kv_table_find(cache, shelf->space, &key);
	if (!parent ||
	    (shelf->ssd ? kv_extent_shelf(cache, parent) != shelf
			: !parent->slot || parent->slot->shelf != shelf))
		return KV_NONE;
	return kv_policy_has(&shelf->policy, parent->number) ? parent->number
							     : KV_NONE;
}

/* How often it was used before: the other tier knows, or else the ghost. */
static struct kv_past past_of(struct kv_cache *cache,
			      const struct kv_shelf *shelf,
			      const struct kv_block *block, bool promoted)
{
	const struct kv_node *other = promoted	   ? &block->node
				      : shelf->ssd ? &block->slot->node
						   : NULL;

	if (other)
		return (struct kv_past){other->tick, other->uses};
	return kv_ghost_take(&cache->ghost,
			     kv_key_hash(cache, shelf->space, block->key));
}

void kv_shelf_gone(struct kv_cache *cache, const struct kv_shelf *shelf,
		   const struct kv_block *block)
{
	if (!shelf || !kv_policy_has(&shelf->policy, block->number))
		return;
	kv_ghost_fit(&cache->ghost, cache->arena.eviction.blocks);
	kv_ghost_put(&cache->ghost,
		     kv_key_hash(cache, shelf->space, block->key),
		     kv_policy_past(&shelf->policy, block->number));
}

void kv_shelf_add(struct kv_cache *cache, struct kv_shelf *shelf,
		  const struct kv_block *block, bool promoted)
{
	const struct kv_slot_record *record =
		&kv_slot_prologue(block->slot)->record;
	const struct kv_arrival arrival = {
		.parent = parent_of(cache, shelf, record),
		.position = record->position,
		.past = past_of(cache, shelf, block, promoted),
		.promoted = promoted,
		.same = shelf->ssd,
		.now_ns = kv_now_ns(),
	};

	add(shelf, block->number, &arrival);
}

void kv_shelf_add_plain(struct kv_shelf *shelf, const struct kv_block *block)
{
	const struct kv_arrival arrival = {
		.parent = KV_NONE,
		.past.uses = (uint8_t)KV_MIN(block->hits + 1u, KV_USES_MAX),
		.same = true,
	};

	add(shelf, block->number, &arrival);
}

void kv_shelf_drop(struct kv_shelf *shelf, uint32_t block)
{
	if (!kv_policy_has(&shelf->policy, block))
		return;
	kv_policy_remove(&shelf->policy, block);
	if (--shelf->blocks == 0) {
		TAILQ_REMOVE(shelf->beside, shelf, link);
		TAILQ_INSERT_TAIL(shelf->beside, shelf, link);
	}
}

void kv_shelves_free(struct kv_shelves *shelves)
{
	struct kv_shelf *shelf;

	while ((shelf = TAILQ_FIRST(shelves))) {
		TAILQ_REMOVE(shelves, shelf, link);
		LIST_REMOVE(shelf, own);
		free(shelf);
	}
}
