/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - key to block, in memory.  All calls with the lock held.
 */
#ifndef KV_CACHE_CORE_TABLE_H
#define KV_CACHE_CORE_TABLE_H

#include "cache/core/core.h"

int kv_table_init(struct kv_table *table);
void kv_table_fini(struct kv_table *table);
struct kv_block *kv_table_at(const struct kv_table *table, uint32_t number);
/* The block with that kv_block_id, or NULL; a removed one if it is held. */
struct kv_block *kv_table_find_id(struct kv_cache *cache, uint64_t id);
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

#endif
