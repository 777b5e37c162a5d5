/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.h - count numbers by their length in bits.
 *
 * Add with one lock held for each histogram, or from one thread.  Any thread may copy a
 * histogram meanwhile.
 */
#ifndef KV_COMMON_HISTOGRAM_H
#define KV_COMMON_HISTOGRAM_H

#include "common/kv.h"

#define KV_HISTOGRAM_BITS 40u

struct kv_histogram {
	uint64_t sum;
	/* at[n]: numbers of n bits, which are below 1 << n; the last: all longer ones */
	uint64_t at[KV_HISTOGRAM_BITS + 1];
};

static inline void kv_histogram_add(struct kv_histogram *h, uint64_t number)
{
	const unsigned bits =
		number ? 64u - (unsigned)__builtin_clzll(number) : 0;
	uint64_t *at = &h->at[KV_MIN(bits, KV_HISTOGRAM_BITS)];

	__atomic_store_n(at, *at + 1, __ATOMIC_RELAXED);
	__atomic_store_n(&h->sum, h->sum + number, __ATOMIC_RELAXED);
}

static inline void kv_histogram_copy(const struct kv_histogram *h,
				     struct kv_histogram *ret)
{
	ret->sum = __atomic_load_n(&h->sum, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < KV_ARRAY_LEN(h->at); i++)
		ret->at[i] = __atomic_load_n(&h->at[i], __ATOMIC_RELAXED);
}

#endif
