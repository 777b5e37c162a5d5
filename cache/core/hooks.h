/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - the only calls of lower folders of cache/ to folders above them.
 *
 * When a block loses its slot or its extent, block/ frees the block if nothing
 * else holds its bytes, and wakes the wants that wait for room.  The remote
 * tier handles missing and durable blocks.  (A commit calls space/ by
 * cache->snapshots.write.)
 */
#ifndef KV_CACHE_CORE_HOOKS_H
#define KV_CACHE_CORE_HOOKS_H

#include "cache/core/core.h"

/* ---- block/: freeing blocks, acquires that wait for room, users' pins ---- */

struct kv_block_hooks {
	void (*settle_locked)(struct kv_cache *cache, struct kv_block *block);
	void (*remove_locked)(struct kv_cache *cache, struct kv_block *block);
	/* Let acquires that wait for room in DRAM try again. */
	void (*room_locked)(struct kv_cache *cache);
	bool (*pinned_by_user)(struct kv_cache *cache,
			       const struct kv_block *block);
};

/* Free the slot and the extent of a removed block, unless they are in use. */
static inline void kv_block_settle_locked(struct kv_cache *cache,
					  struct kv_block *block)
{
	cache->block_hooks->settle_locked(cache, block);
}

static inline void kv_block_remove_locked(struct kv_cache *cache,
					  struct kv_block *block)
{
	cache->block_hooks->remove_locked(cache, block);
}

/* Return whether the user pinned the block; pins by snapshots do not count. */
static inline bool kv_block_pinned_by_user(struct kv_cache *cache,
					   const struct kv_block *block)
{
	return cache->block_hooks->pinned_by_user(cache, block);
}

/* ---- remote/: blocks on other nodes ---- */

/* The table is NULL without a remote tier. */
struct kv_remote_hooks {
	/* The implementation of kv_remote_want_locked. */
	int (*want_locked)(struct kv_cache *cache, struct kv_want *want);
	/* Search other nodes for missing blocks once all wants have begun. */
	void (*look_locked)(struct kv_cache *cache, struct kv_acquire *acquire);
	/* may: return whether the remote tier may have the block @key;
	 * coming: return whether it has found the block and is fetching it. */
	bool (*may_locked)(struct kv_cache *cache, struct kv_space *space,
			   const struct kv_key *key);
	bool (*coming_locked)(struct kv_cache *cache, struct kv_space *space,
			      const struct kv_key *key);
	/* Note that a block is durable here; with remote_write=reuse, also that
	 * a durable block was used for the first time. */
	void (*durable_locked)(struct kv_cache *cache,
			       const struct kv_block *block);
};

/* Let @want, whose block is missing, wait for the remote tier.  -EINPROGRESS:
 * it waits; -ENOENT: the remote tier does not have the block. */
static inline int kv_remote_want_locked(struct kv_cache *cache,
					struct kv_want *want)
{
	const struct kv_remote_hooks *remote = cache->remote_hooks;

	return remote ? remote->want_locked(cache, want) : -ENOENT;
}

#endif
