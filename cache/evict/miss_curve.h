/* SPDX-License-Identifier: Apache-2.0 */
/*
 * miss_curve.h - what hit rate would more memory give?
 *
 * Of all keys a few are followed, chosen by their hash, and for each use of one
 * of them the bytes of distinct blocks used since its last use: a cache that
 * leaves blocks in the order of their last use would have had it if it held as
 * many.  The more keys there are, the smaller the part that is followed, so
 * memory and time stay bounded.  Old uses fade.
 *
 * All calls under the cache's lock.
 */
#ifndef KV_CACHE_EVICT_MISS_CURVE_H
#define KV_CACHE_EVICT_MISS_CURVE_H

#include "common/kv.h"

/* Of the cache's memory: 1, 2, 4 times, and any. */
#define KV_MISS_CURVE_SIZES 4

struct kv_miss_curve;

int kv_miss_curve_new(struct kv_miss_curve **ret_curve); /* -ENOMEM */
void kv_miss_curve_free(struct kv_miss_curve *curve);	 /* takes NULL */
/* A block is used, or comes in because it was asked for and not there.
 * @hash: of its key, seeded; @capacity: of the memory there is. */
void kv_miss_curve_use(struct kv_miss_curve *curve, uint64_t hash,
		       uint64_t bytes, uint64_t capacity);
/* Between 0 and 1; 0 where nothing was used yet. */
void kv_miss_curve_estimate(const struct kv_miss_curve *curve,
			    double ret_rates[KV_MISS_CURVE_SIZES]);

#endif
