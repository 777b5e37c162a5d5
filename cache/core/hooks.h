/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - the only calls of the tiers to what stands above them.
 *
 * A block that loses its slot or its extent may be gone with that, and its end
 * is block/'s, as are those who wait for the room that it leaves.  What is
 * missing, or durable, is the remote tier's affair.  (And what a commit writes
 * first of snapshots, space/'s: cache->snapshots.write.)
 */
#ifndef KV_CACHE_CORE_HOOKS_H
#define KV_CACHE_CORE_HOOKS_H

#include "cache/core/core.h"

/* ---- block/: the end of a block, who waits for room, a user's pin ---- */

struct kv_block_hooks {
	void (*settle_locked)(struct kv_cache *cache, struct kv_block *block);
	void (*remove_locked)(struct kv_cache *cache, struct kv_block *block);
	void (*room_locked)(struct kv_cache *cache);
	bool (*pinned_by_user)(struct kv_cache *cache,
			       const struct kv_block *block);
};

/* Free what nothing needs any more of a removed block; maybe the block. */
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

/* Wants that are short of room look again. */
static inline void kv_wants_room_locked(struct kv_cache *cache)
{
	cache->block_hooks->room_locked(cache);
}

/* The pin that its user set, not its snapshots. */
static inline bool kv_block_pinned_by_user(struct kv_cache *cache,
					   const struct kv_block *block)
{
	return cache->block_hooks->pinned_by_user(cache, block);
}

/* ---- remote/: what is not here may be elsewhere ---- */

/* By a table, which is there where a remote tier is: all that calls it can be
 * built, and read, without. */
struct kv_remote_hooks {
	int (*want_locked)(struct kv_cache *cache, struct kv_want *want);
	void (*look_locked)(struct kv_cache *cache, struct kv_acquire *acquire);
	bool (*may_locked)(struct kv_cache *cache, struct kv_space *space,
			   const struct kv_key *key);
	bool (*coming_locked)(struct kv_cache *cache, struct kv_space *space,
			      const struct kv_key *key);
	void (*durable_locked)(struct kv_cache *cache,
			       const struct kv_block *block);
	void (*used_locked)(struct kv_cache *cache,
			    const struct kv_block *block);
};

/* Have @want, whose block is missing, wait for it: -EINPROGRESS; or -ENOENT. */
static inline int kv_remote_want_locked(struct kv_cache *cache,
					struct kv_want *want)
{
	const struct kv_remote_hooks *remote = cache->remote_hooks;

	return remote ? remote->want_locked(cache, want) : -ENOENT;
}

/* All wants of @acquire have begun: look for what they miss. */
static inline void kv_remote_look_locked(struct kv_cache *cache,
					 struct kv_acquire *acquire)
{
	if (cache->remote_hooks)
		cache->remote_hooks->look_locked(cache, acquire);
}

/* Whether a look for @key has a point; and whether it was found and is on its
 * way. */
static inline bool kv_remote_may_locked(struct kv_cache *cache,
					struct kv_space *space,
					const struct kv_key *key)
{
	const struct kv_remote_hooks *remote = cache->remote_hooks;

	return remote && remote->may_locked(cache, space, key);
}

static inline bool kv_remote_coming_locked(struct kv_cache *cache,
					   struct kv_space *space,
					   const struct kv_key *key)
{
	const struct kv_remote_hooks *remote = cache->remote_hooks;

	return remote && remote->coming_locked(cache, space, key);
}

/* A block is durable here. */
static inline void kv_remote_durable_locked(struct kv_cache *cache,
					    const struct kv_block *block)
{
	if (cache->remote_hooks)
		cache->remote_hooks->durable_locked(cache, block);
}

/* A block that was durable here is used for the first time. */
static inline void kv_remote_used_locked(struct kv_cache *cache,
					 const struct kv_block *block)
{
	if (cache->remote_hooks)
		cache->remote_hooks->used_locked(cache, block);
}

#endif
