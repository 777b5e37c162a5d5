/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim.c - who makes place on SSD: a victim of the same size of slots, or a
 * whole file of another size.
 *
 * OWNS       nothing; it decides.
 *
 * INVARIANTS
 *   (1) Nobody's need takes a space below what it is owed but its own.
 *   (2) A space that has less than it is owed takes from others before it gives
 *       anything up.
 *
 * LOCKING    cache->lock; let go of only to ask the index what a file holds.
 */
#include "cache/blocks.h"
#include "cache/dram.h"
#include "cache/ssd.h"
#include "point.h"

#define FILES_TRIED 4
#define PATIENCE_NS 5000000000u

static bool may_evict(void *arg, uint32_t number)
{
	struct kv_cache *cache = arg;
	struct kv_block *block = kv_table_at(&cache->table, number);

	return !block->refs &&
	       !(block->flags & (BLOCK_PINNED | BLOCK_REMOVED)) &&
	       (!block->slot || kv_slot_idle(block->slot));
}

static void evict(struct kv_cache *cache, struct kv_block *block)
{
	cache->stats.evicted_ssd++;
	KV_POINT("evict.ssd");
	if (block->slot) {
		kv_extent_detach_locked(cache, block);
		kv_block_space(cache, block)->loose++;
	} else {
		kv_shelf_gone(cache, kv_extent_shelf(cache, block), block);
		kv_block_remove_locked(cache, block);
	}
}

static bool evict_from(struct kv_cache *cache, struct kv_shelf *shelf)
{
	uint32_t victim = kv_policy_victim(&shelf->policy, may_evict, cache);

	if (victim == KV_NONE)
		return false;
	evict(cache, kv_table_at(&cache->table, victim));
	return true;
}

/* What @space is guaranteed beyond what it has pinned. */
static uint64_t owed(const struct kv_space *space)
{
	return space->owed_ssd > space->pinned_ssd
		       ? space->owed_ssd - space->pinned_ssd
		       : 0;
}

void kv_owe_ssd_locked(struct kv_cache *cache, struct kv_space *space,
		       uint64_t bytes)
{
	cache->ssd.owed -= owed(space);
	space->owed_ssd = bytes;
	cache->ssd.owed += owed(space);
}

void kv_ssd_pinned_locked(struct kv_cache *cache, struct kv_space *space,
			  uint64_t bytes)
{
	cache->ssd.owed -= owed(space);
	space->pinned_ssd += bytes;
	cache->ssd.owed += owed(space);
	cache->ssd.pinned += bytes;
}

bool kv_ssd_over_floor(const struct kv_cache *cache,
		       const struct kv_space *space, uint64_t bytes)
{
	const struct kv_ssd *ssd = &cache->ssd;

	if (!ssd->on)
		return false;
	if (ssd->pinned + bytes > ssd->file_budget - ssd->file_budget / 16)
		return true;
	return space->pinned_ssd + bytes > space->owed_ssd &&
	       ssd->pinned + bytes + ssd->owed - owed(space) > ssd->file_budget;
}

static bool gives(const struct kv_space *space, const struct kv_space *taker,
		  uint64_t bytes)
{
	return space == taker || space->bytes_ssd >= space->owed_ssd + bytes;
}

static struct kv_shelf *coldest_shelf(const struct kv_ssd_class *class,
				      const struct kv_space *taker,
				      const struct kv_space *but,
				      uint32_t *ret_age)
{
	struct kv_shelf *shelf, *best = NULL;

	*ret_age = 0;
	TAILQ_FOREACH(shelf, &class->shelves, link)
	{
		uint32_t age;

		if (!shelf->blocks)
			break;
		if (shelf->space == but ||
		    !gives(shelf->space, taker, class->slot_bytes))
			continue;
		age = kv_policy_age(&shelf->policy);
		if (!best || age > *ret_age) {
			best = shelf;
			*ret_age = age;
		}
	}
	return best;
}

static bool evict_one(struct kv_cache *cache, const struct kv_ssd_class *class,
		      const struct kv_space *taker, const struct kv_space *but)
{
	struct kv_shelf *shelf, *best;
	uint32_t age;

	best = coldest_shelf(class, taker, but, &age);
	if (best && evict_from(cache, best))
		return true;
	/* All it has is in use. */
	TAILQ_FOREACH(shelf, &class->shelves, link)
	if (shelf != best && shelf->blocks && shelf->space != but &&
	    gives(shelf->space, taker, class->slot_bytes) &&
	    evict_from(cache, shelf))
		return true;
	return false;
}

bool kv_reclaim_own_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_shelf *shelf, *best = NULL;
	uint32_t best_age = 0;

	LIST_FOREACH(shelf, &space->ssd_shelves, own)
	if (shelf->blocks) {
		uint32_t age = kv_policy_age(&shelf->policy);

		if (!best || age > best_age) {
			best = shelf;
			best_age = age;
		}
	}
	return best && evict_from(cache, best);
}

/* The blocks whose records name @file; lets go of the lock. */
static size_t blocks_in(struct kv_cache *cache, const struct kv_file *file,
			uint32_t *numbers)
{
	uint32_t id = file->id, slots = file->slots;
	struct kv_slot_record record;
	size_t n = 0;

	kv_unlock(cache);
	for (uint32_t place = 0; place < slots; place++) {
		struct kv_key key = {0};
		struct kv_block *block;

		if (kv_index_get(cache->index, kv_slot_id(id, place), &record) <
		    0)
			continue;
		key.len = record.key_len;
		memcpy(key.b, record.key, sizeof(key.b));
		kv_lock(cache);
		block = record.space < cache->n_spaces &&
					cache->spaces[record.space]
				? kv_table_find(cache,
						cache->spaces[record.space],
						&key)
				: NULL;
		if (block && block->file == id && block->place == place)
			numbers[n++] = block->number;
		kv_unlock(cache);
	}
	kv_lock(cache);
	return n;
}

static bool may_all_go(struct kv_cache *cache, const struct kv_file *file,
		       const struct kv_space *taker, const uint32_t *numbers,
		       size_t n)
{
	bool may = true;

	for (size_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);
		struct kv_space *space = kv_block_space(cache, block);

		if (block->file != file->id)
			continue; /* gone meanwhile */
		space->leaving += file->slot_bytes;
		may = may && may_evict(cache, numbers[i]) &&
		      (space == taker || !space->owed_ssd ||
		       space->bytes_ssd >= space->owed_ssd + space->leaving);
	}
	for (size_t i = 0; i < n; i++)
		kv_block_space(cache, kv_table_at(&cache->table, numbers[i]))
			->leaving = 0;
	return may;
}

static bool empty_file(struct kv_cache *cache, struct kv_file *file,
		       const struct kv_space *taker)
{
	_cleanup_(kv_freep) uint32_t *numbers =
		malloc(file->slots * sizeof(*numbers));
	bool any = false;
	size_t n;

	if (!numbers)
		return false;
	n = blocks_in(cache, file, numbers);
	if (!may_all_go(cache, file, taker, numbers, n))
		return false;
	for (size_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);

		if (block->file != file->id)
			continue;
		evict(cache, block);
		any = true;
	}
	return any;
}

/* Even with @bytes more it has no more than it is owed: others give first. */
static bool entitled(const struct kv_space *taker, uint64_t bytes)
{
	return taker &&
	       taker->bytes_ssd + taker->writing_ssd + bytes <= taker->owed_ssd;
}

bool kv_reclaim_file(struct kv_cache *cache, const struct kv_ssd_class *but,
		     const struct kv_space *taker)
{
	const bool spared = entitled(taker, but->slot_bytes);
	struct kv_ssd_class *class, *coldest = NULL;
	uint32_t ids[FILES_TRIED], coldest_age = 0;
	struct kv_file *file;
	unsigned n = 0;

	LIST_FOREACH(class, &cache->ssd.classes, link)
	{
		uint32_t age;

		if (class == but || !class->n_files ||
		    !coldest_shelf(class, taker, spared ? taker : NULL, &age))
			continue;
		if (coldest && age <= coldest_age)
			continue;
		coldest = class;
		coldest_age = age;
	}
	if (!coldest)
		return false;
	/* Those with room are in front: least is lost with them. */
	TAILQ_FOREACH(file, &coldest->files, link)
	if (n < FILES_TRIED)
		ids[n++] = file->id;
	for (unsigned i = 0; i < n; i++) {
		file = kv_file_at(cache, ids[i]);
		if (file && empty_file(cache, file, spared ? NULL : taker))
			return true;
	}
	return false;
}

/* Is there a space that has, unpinned, more than it is owed? */
static bool others_could(const struct kv_cache *cache,
			 const struct kv_space *taker)
{
	for (uint32_t id = 0; id < cache->n_spaces; id++) {
		const struct kv_space *space = cache->spaces[id];

		if (space && space != taker && !space->removed &&
		    space->bytes_ssd >
			    KV_MAX(space->owed_ssd, space->pinned_ssd))
			return true;
	}
	return false;
}

bool kv_reclaim_later_locked(const struct kv_cache *cache,
			     struct kv_space *taker, uint64_t bytes)
{
	uint64_t now = kv_now_ns();

	if (!entitled(taker, bytes) || !others_could(cache, taker))
		return false;
	if (!taker->short_since)
		taker->short_since = now;
	return now - taker->short_since < PATIENCE_NS;
}

bool kv_reclaim_one_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			   struct kv_space *taker)
{
	return evict_one(cache, class, taker,
			 entitled(taker, class->slot_bytes) ? taker : NULL);
}
