/* SPDX-License-Identifier: Apache-2.0 */
/*
 * causes.h - why blocks are absent: a table of causes by key, and a log of
 * look-ups that ended early, both of fixed size.
 *
 * Call the functions but init and fini with cache->lock held.  Each takes
 * constant time, and none allocates memory.
 */
#ifndef KV_CACHE_CORE_CAUSES_H
#define KV_CACHE_CORE_CAUSES_H

#include "cache/core/core.h"

int kv_causes_init(struct kv_cache *cache); /* -ENOMEM */
void kv_causes_fini(struct kv_cache *cache);

/* Note why the block, which still has its key, leaves the cache or is not
 * written to SSD; or why a key of @space was not saved. */
void kv_cause_note_block(struct kv_cache *cache, const struct kv_block *block,
			 enum kv_cause cause);
void kv_cause_note(struct kv_cache *cache, const struct kv_space *space,
		   const struct kv_key *key, enum kv_cause cause);
/* Forget the cause: the block was saved again. */
void kv_cause_lift(struct kv_cache *cache, const struct kv_space *space,
		   const struct kv_key *key);
/* Set cause, since and idle of @miss, whose key is set and absent.  Return as
 * kv_block_past does. */
int kv_cause_find(struct kv_cache *cache, const struct kv_space *space,
		  struct kv_miss *miss);

/* Count @miss by its cause, and log it. */
void kv_miss_log(struct kv_cache *cache, const struct kv_miss *miss);

#endif
