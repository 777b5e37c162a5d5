/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rate.h - token buckets, and exponential back-off.
 *
 * Call with one lock held for each bucket, or from one thread.
 */
#ifndef KV_COMMON_RATE_H
#define KV_COMMON_RATE_H

#include "common/kv.h"

/* A token bucket; a zeroed bucket is full. */
struct kv_bucket {
	double credit; /* negative: debt */
	uint64_t ns;   /* time of the last refill; 0: no refill yet */
};

/* Add the tokens since the last call, @rate per second, up to @most.  Return
 * whether any credit is left. */
static inline bool kv_bucket_fill(struct kv_bucket *bucket, double rate,
				  double most)
{
	const uint64_t now = kv_now_ns();

	if (bucket->ns)
		bucket->credit += rate * (double)(now - bucket->ns) / 1e9;
	else
		bucket->credit = most;
	bucket->credit = KV_MIN(bucket->credit, most);
	bucket->ns = now;
	return bucket->credit > 0;
}

/* Return the pause after a pause of @last: @first, then doubled each time, up
 * to @most. */
static inline uint64_t kv_backoff(uint64_t last, uint64_t first, uint64_t most)
{
	return KV_MIN(KV_MAX(2 * last, first), most);
}

#endif
