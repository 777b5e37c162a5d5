/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contents.c - what is done to all the blocks of a space at once.
 *
 * OWNS       nothing of its own.
 * LOCKING    cache->lock, let go of between blocks; a block is held meanwhile.
 */
#include "cache/block/block.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"

/* Call @each on every block, held, without the lock, until one returns != 0. */
static int for_each_block(struct kv_cache *cache, struct kv_space *space,
			  int (*each)(struct kv_cache *, struct kv_block *,
				      void *),
			  void *arg)
{
	int r = 0;

	for (unsigned byte = 0; r == 0 && byte < 256; byte++) {
		_cleanup_(kv_freep) uint64_t *ids = NULL;
		size_t n;

		r = kv_dir_list(cache, space, (uint8_t)byte, &ids, &n);
		for (size_t i = 0; r == 0 && i < n; i++) {
			struct kv_block *block;

			if (kv_block_get_id(cache, ids[i], &block) < 0)
				continue;
			r = each(cache, block, arg);
			kv_block_put(cache, block);
		}
	}
	return r;
}

static int fits(struct kv_cache *cache, struct kv_block *block, void *arg)
{
	const struct kv_layout *layout = arg;
	uint64_t length, payload;
	struct kv_meta meta;
	struct kv_view view;
	int r = kv_view_get(cache, block, &view);

	if (r == -EBADMSG || r == -ENOENT)
		return 0; /* damaged or gone: no block any more */
	if (r < 0)
		return r;
	r = kv_block_parse(view.data, view.length, layout, &length, &payload,
			   &meta);
	kv_view_put(cache, &view);
	return r < 0 ? -EBADMSG : 0;
}

int kv_space_set_layout(struct kv_cache *cache, struct kv_space *space,
			const char *text, size_t len)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	const struct kv_layout *there;
	int r;

	if (cache->config.read_only)
		return -EROFS;
	r = kv_layout_parse(text, len, &layout);
	if (r < 0)
		return r;
	kv_lock(cache);
	there = space->layout;
	kv_unlock(cache);
	if (!there) {
		r = for_each_block(cache, space, fits, layout);
		if (r < 0)
			return r;
		kv_lock(cache);
		if (!space->layout)
			space->layout = kv_steal(layout);
		there = layout ? space->layout : NULL;
		kv_unlock(cache);
	}
	if (there) {
		r = kv_layout_agrees(there, text, len);
		return r == 1 ? 0 : r == 0 ? -EEXIST : r;
	}
	return kv_space_persist(cache, space);
}

static int drop(struct kv_cache *cache, struct kv_block *block, void *arg)
{
	(void)arg;
	kv_block_remove(cache, block);
	return 0;
}

int kv_space_clear(struct kv_cache *cache, struct kv_space *space)
{
	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	space->clears++;
	kv_fills_stale_locked(cache, space);
	kv_unlock(cache);
	return for_each_block(cache, space, drop, NULL);
}

/* Into a slot of the space's new access class, if it is worth keeping. */
static int move(struct kv_cache *cache, struct kv_block *block, void *arg)
{
	struct kv_slot *old, *new;
	uint64_t bytes;

	(void)arg;
	kv_lock(cache);
	old = block->slot;
	if (!old || (block->flags & BLOCK_REMOVED)) {
		kv_unlock(cache);
		return 0;
	}
	/* A leased block stays where its readers have it mapped. */
	if (old->leases || old->holds) {
		int r = old->leases ? 0 : -EBUSY;

		kv_unlock(cache);
		return r;
	}
	if (block->file != KV_NONE) {
		kv_slot_give_locked(cache, old);
		kv_unlock(cache);
		return 0;
	}
	kv_slot_hold_locked(cache, old, 1);
	if (kv_slot_take_locked(cache, kv_block_space(cache, block),
				block->length, true, &new) < 0) {
		kv_slot_hold_locked(cache, old, -1);
		kv_unlock(cache);
		return -ENOSPC;
	}
	bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	kv_unlock(cache);
	memcpy(kv_slot_prologue(new), kv_slot_prologue(old), bytes);
	kv_lock(cache);
	kv_slot_hold_locked(cache, old, -1);
	if (block->flags & BLOCK_QUEUED)
		kv_write_dequeue_locked(cache, block);
	if (block->slot != old || (block->flags & BLOCK_REMOVED) ||
	    old->leases || old->holds || kv_block_dirty(block)) {
		kv_slot_give_locked(cache, new);
		kv_unlock(cache);
		return -EBUSY;
	}
	kv_slot_give_locked(cache, old);
	new->alone = true;
	kv_slot_publish_locked(cache, new, block);
	if (cache->config.writeback == KV_WRITEBACK_ALL)
		kv_write_enqueue_locked(cache, block, false);
	kv_unlock(cache);
	return 0;
}

static int move_or_drop(struct kv_cache *cache, struct kv_block *block,
			void *arg)
{
	/* What is being written comes back durable, and is simply let go. */
	for (int try = 0; try < 100; try++) {
		if (move(cache, block, arg) != -EBUSY)
			break;
		usleep(10000);
	}
	/* Still leased: with an SSD it is read in anew when the lease is over.
	 */
	kv_lock(cache);
	if (block->slot && !(block->flags & BLOCK_REMOVED) && !cache->ssd.on &&
	    !kv_class_fits(block->slot->segment->class,
			   kv_block_space(cache, block)))
		kv_block_remove_locked(cache, block);
	kv_unlock(cache);
	return 0;
}

int kv_space_chown(struct kv_cache *cache, struct kv_space *space, uint32_t uid,
		   uint32_t gid, uint32_t mode)
{
	bool same;
	int r;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	same = space->uid == uid && space->gid == gid &&
	       (space->mode & 0444) == (mode & 0444);
	space->uid = uid;
	space->gid = gid;
	space->mode = mode & 07777;
	kv_unlock(cache);
	r = same ? 0 : for_each_block(cache, space, move_or_drop, NULL);
	return r < 0 ? r : kv_space_persist(cache, space);
}

/* From the tail, so that it is the tail that goes first. */
void kv_blocks_ended(struct kv_cache *cache, struct kv_space *space,
		     const struct kv_key *keys, size_t n)
{
	kv_lock(cache);
	for (size_t i = n; i-- > 0 && !space->removed;) {
		struct kv_block *block = kv_table_find(cache, space, &keys[i]);

		if (block && block->slot)
			kv_policy_end(&block->slot->list->policy,
				      block->number);
		if (block && block->file != KV_NONE)
			kv_policy_end(&kv_extent_list(cache, block)->policy,
				      block->number);
	}
	kv_unlock(cache);
}
