/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - blocks inside the cache: the table, their states, pins, quotas.
 */
#ifndef KV_CACHE_BLOCK_BLOCK_H
#define KV_CACHE_BLOCK_BLOCK_H

#include "cache/core/slot.h"

/* table.c; all with the lock held */
int kv_table_init(struct kv_table *table);
void kv_table_fini(struct kv_table *table);
struct kv_block *kv_table_at(const struct kv_table *table, uint32_t number);
struct kv_block *kv_table_find(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key);
/* A new block in its directory, which is made; -EEXIST, -ENOMEM. */
int kv_table_insert(struct kv_cache *cache, struct kv_space *space,
		    const struct kv_key *key, struct kv_block **ret_block);
/* Have the processor fetch what an insert of @key will look at: the bucket,
 * and when that has come, the block in it.  @key is KV_KEY_MAX bytes. */
enum kv_table_ahead { KV_AHEAD_BUCKET, KV_AHEAD_BLOCK };
void kv_table_look_ahead(const struct kv_cache *cache,
			 const struct kv_space *space, const uint8_t *key,
			 enum kv_table_ahead what);
void kv_table_fetch(const struct kv_table *table, uint32_t number);
void kv_table_unlink(struct kv_cache *cache, struct kv_block *block);
void kv_table_free(struct kv_cache *cache, struct kv_block *block);
/* Of a space's key, of all its 32 bytes; seeded. */
uint64_t kv_key_hash(const struct kv_cache *cache, const struct kv_space *space,
		     const uint8_t *key);
struct kv_key kv_block_key(const struct kv_block *block);
uint64_t kv_block_id(const struct kv_block *block);
struct kv_space *kv_block_space(struct kv_cache *cache,
				const struct kv_block *block);
void kv_dirs_free(struct kv_space *space);

/* blocks.c; with the lock held */
/* Free what nothing needs any more of a removed block; maybe the block. */
void kv_block_settle_locked(struct kv_cache *cache, struct kv_block *block);
void kv_block_remove_locked(struct kv_cache *cache, struct kv_block *block);
void kv_block_touch_locked(struct kv_cache *cache, struct kv_block *block);
/* It was asked for, and found or saved: count that in the miss curve. */
void kv_block_asked_locked(struct kv_cache *cache,
			   const struct kv_block *block);
/* A use ends: blocks of a chain come back from the tail, and leave so. */
void kv_block_renew_locked(struct kv_cache *cache, struct kv_block *block);

/* How the tiers evict.  -EINVAL: no such policy. */
int kv_arena_eviction_init(struct kv_cache *cache);
int kv_extent_eviction_init(struct kv_cache *cache);

/* pins.c; with the lock held */
/* Would enough to evict remain if it were pinned? */
bool kv_pin_fits_locked(struct kv_cache *cache, const struct kv_block *block);

/* quota.c; lock held */
/* Bring every space within its quotas; lets go of the lock now and then. */
void kv_quotas_keep(struct kv_cache *cache);
/* Work out what is guaranteed to whom; at mount. */
void kv_quotas_settle(struct kv_cache *cache);

#endif
