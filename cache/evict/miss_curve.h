/* SPDX-License-Identifier: Apache-2.0 */
/*
 * miss_curve.h - the hit rates that caches of other sizes would have.
 *
 * Keys are sampled by their hash.  For each use of a sampled key, the curve
 * computes the bytes of distinct blocks used since the key's last use: an LRU
 * cache of that size would have had the block.  The more keys there are, the
 * smaller the sampled part, so memory and time stay bounded.  Old uses fade.
 *
 * Call all functions with cache->lock held.
 */
#ifndef KV_CACHE_EVICT_MISS_CURVE_H
#define KV_CACHE_EVICT_MISS_CURVE_H

#include "common/kv.h"

/* Sizes: 1, 2 and 4 times the cache's memory, and unlimited memory. */
#define KV_MISS_CURVE_SIZES 4

struct kv_miss_curve;

/* Free the curve with free(3).  -ENOMEM. */
int kv_miss_curve_new(struct kv_miss_curve **ret_curve);
/* Count the use of a block, or its arrival after a miss.  @hash: seeded hash of
 * its key; @capacity: bytes of the cache. */
void kv_miss_curve_use(struct kv_miss_curve *curve, uint64_t hash,
		       uint64_t bytes, uint64_t capacity);
/* Estimate the hit rates, 0 to 1; 0 before the first use. */
void kv_miss_curve_estimate(const struct kv_miss_curve *curve,
			    double ret_rates[KV_MISS_CURVE_SIZES]);

#endif
