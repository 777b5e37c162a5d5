/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clear.c - taking all blocks out of a space, while others come.
 *
 * OWNS       each kv_clear: which blocks there were when it began.
 *
 * LOCKING    cache->lock, let go of after every CLEAR_AT_ONCE blocks.
 */
#include "cache/space/space.h"
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"

/* Blocks that are removed before others have the lock, and how long they have it
 * at least. */
#define CLEAR_AT_ONCE 128u
#define CLEAR_PAUSE_US 50u

struct place {
	uint64_t slot_id, block; /* on SSD; its id */
};

struct kv_clear {
	struct kv_space *space;
	uint64_t generation;  /* blocks from this on came later */
	struct place *places; /* NULL: not gathered yet */
	size_t n, room, at;
};

int kv_clear_begin(struct kv_cache *cache, struct kv_space *space,
		   struct kv_clear **ret_clear)
{
	struct kv_clear *clear;

	if (cache->config.read_only)
		return -EROFS;
	clear = calloc(1, sizeof(*clear));
	if (!clear)
		return -ENOMEM;
	clear->space = kv_space_get(space);
	kv_lock(cache);
	space->clears++;
	space->shrunk = true;
	clear->generation = cache->generation;
	kv_fills_stale_locked(cache, space);
	kv_unlock(cache);
	*ret_clear = clear;
	return 0;
}

static bool came_later(const struct kv_clear *clear,
		       const struct kv_block *block)
{
	return block->slot &&
	       kv_slot_prologue(block->slot)->record.generation >=
		       clear->generation;
}

static int gather_dir_locked(struct kv_cache *cache, struct kv_clear *clear,
			     const struct kv_dir *dir)
{
	struct place *places;

	kv_assert_locked(&cache->lock);
	if (clear->n + dir->blocks > clear->room) {
		clear->room = 2 * clear->room + dir->blocks;
		places = realloc(clear->places,
				 clear->room * sizeof(*clear->places));
		if (!places)
			return -ENOMEM;
		clear->places = places;
	}
	for (uint32_t i = 0; dir->buckets && i <= dir->mask; i++)
		for (uint32_t n = dir->buckets[i]; n != KV_NONE;) {
			struct kv_block *block = kv_table_at(&cache->table, n);

			n = block->next;
			if (!came_later(clear, block))
				clear->places[clear->n++] = (struct place){
					kv_slot_id(block->file,
						   block->slot_number),
					kv_block_id(block)};
		}
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->slot_id < y->slot_id ? -1 : x->slot_id > y->slot_id;
}

/* In the order of the SSD, which is the one in which they are deleted. */
static int gather(struct kv_cache *cache, struct kv_clear *clear)
{
	int r = 0;

	for (unsigned byte = 0; r == 0 && byte < 256; byte++) {
		kv_lock(cache);
		if (clear->space->dirs[byte])
			r = gather_dir_locked(cache, clear,
					      clear->space->dirs[byte]);
		kv_unlock(cache);
	}
	if (clear->n)
		qsort(clear->places, clear->n, sizeof(*clear->places),
		      by_place);
	return r;
}

int kv_clear_some(struct kv_cache *cache, struct kv_clear *clear)
{
	struct kv_block *open[CLEAR_AT_ONCE];
	size_t n_open = 0, end;
	int r = clear->places ? 0 : gather(cache, clear);

	if (r < 0)
		return r;
	end = KV_MIN(clear->at + CLEAR_AT_ONCE, clear->n);
	kv_lock(cache);
	for (; clear->at < end; clear->at++) {
		struct kv_block *block =
			kv_table_find_id(cache, clear->places[clear->at].block);

		if (block && (block->flags & BLOCK_REMOVED))
			continue;
		if (block && block->refs == 0) {
			cache->stats.removed++;
			kv_block_unwanted_locked(cache, block);
			kv_block_remove_locked(cache, block);
		} else if (block) {
			block->refs++;
			open[n_open++] = block;
		}
	}
	kv_unlock(cache);
	while (n_open > 0) {
		kv_block_remove(cache, open[--n_open]);
		kv_block_put(cache, open[n_open]);
	}
	usleep(CLEAR_PAUSE_US);
	return clear->at < clear->n;
}

void kv_clear_end(struct kv_clear *clear)
{
	if (!clear)
		return;
	kv_space_put(clear->space);
	free(clear->places);
	free(clear);
}
