/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shadow_cache.h - is what was learned better than what is simple?
 *
 * Of all keys a part is followed, chosen by hash, in three small caches of that
 * part of the tier's size, which weigh their blocks by age alone, by age and
 * uses, and by what was learned.  The tier does as the one that has the most
 * hits of late.
 *
 * All calls under the cache's lock.
 */
#ifndef KV_CACHE_EVICT_SHADOW_CACHE_H
#define KV_CACHE_EVICT_SHADOW_CACHE_H

#include <stdbool.h>
#include <stdint.h>

enum kv_weigh { KV_WEIGH_LEARNED, KV_WEIGH_AGE, KV_WEIGH_USES, KV_WEIGHS };

struct kv_shadow_cache;
struct kv_eviction;

/* @eviction: the tier's, which outlives it.  NULL: no memory. */
struct kv_shadow_cache *kv_shadow_cache_new(const struct kv_eviction *eviction);
void kv_shadow_cache_free(struct kv_shadow_cache *shadow); /* takes NULL */
/* A block was asked for. @hash: of its key; @position: in its chain. */
void kv_shadow_cache_ask(struct kv_shadow_cache *shadow, uint64_t hash,
			 uint32_t position);
/* Is it one of those?  If not, its position need not be found out. */
bool kv_shadow_cache_follows(const struct kv_shadow_cache *shadow,
			     uint64_t hash);
enum kv_weigh kv_shadow_cache_winner(const struct kv_shadow_cache *shadow);
/* Of lhd's @list: 1 / age, or uses / age. */
float kv_weigh_simply(enum kv_weigh how, unsigned list, uint32_t age);

#endif
