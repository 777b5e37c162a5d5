/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - the blocks by key, and the spaces by id, in memory.  Call all
 * functions with cache->lock held. */
#ifndef KV_CACHE_CORE_TABLE_H
#define KV_CACHE_CORE_TABLE_H

#include "cache/core/core.h"

void kv_table_fini(struct kv_table *table);
struct kv_block *kv_table_at(const struct kv_table *table, uint32_t number);
/* Return the block with this kv_block_id, or NULL.  A removed block is returned
 * only while it is held. */
struct kv_block *kv_table_find_id(struct kv_cache *cache, uint64_t id);
struct kv_block *kv_table_find(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key);
/* Create a block, and its directory if needed; -EEXIST, -ENOMEM. */
int kv_table_insert(struct kv_cache *cache, struct kv_space *space,
		    const struct kv_key *key, struct kv_block **ret_block);
/* Prefetch the bucket of @key, which has KV_KEY_MAX bytes, into the processor's
 * cache; call again to prefetch the bucket's first block. */
enum kv_table_ahead { KV_AHEAD_BUCKET, KV_AHEAD_BLOCK };
void kv_table_look_ahead(const struct kv_cache *cache,
			 const struct kv_space *space, const uint8_t *key,
			 enum kv_table_ahead what);
void kv_table_fetch(const struct kv_table *table, uint32_t number);
void kv_table_unlink(struct kv_cache *cache, struct kv_block *block);
void kv_table_free(struct kv_cache *cache, struct kv_block *block);
/* Return a seeded hash of a space and all 32 bytes of a key. */
uint64_t kv_key_hash(const struct kv_cache *cache, const struct kv_space *space,
		     const uint8_t *key);
struct kv_key kv_block_key(const struct kv_block *block);
uint64_t kv_block_id(const struct kv_block *block);
struct kv_space *kv_block_space(struct kv_cache *cache,
				const struct kv_block *block);
void kv_dirs_free(struct kv_space *space);

/* Find a live or removed space; NULL: none has this id. */
struct kv_space *kv_space_with_id(const struct kv_cache *cache, uint32_t id);
/* Return the space with the lowest id above @after, or NULL. */
struct kv_space *kv_space_behind(const struct kv_cache *cache, uint32_t after);
/* Add @space, whose id is set, to cache->spaces.  -EEXIST, -ENOSPC, -ENOMEM. */
int kv_spaces_enter(struct kv_cache *cache, struct kv_space *space);
/* Remove @space from cache->spaces. */
void kv_spaces_leave(struct kv_cache *cache, struct kv_space *space);

#endif
