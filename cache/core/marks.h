/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.h - a lossy set of hashes.
 *
 * The caller owns the array of @n marks, initially zero, and its lock.  A hash
 * has one place; a later hash may overwrite it.  kv_marks_find finds a hash
 * that was never added with a probability of 2^-31.
 */
#ifndef KV_CACHE_CORE_MARKS_H
#define KV_CACHE_CORE_MARKS_H

#include "common/kv.h"

static inline bool kv_marks_find(const uint32_t *marks, size_t n, uint64_t hash)
{
	return marks[hash % n] == ((uint32_t)(hash >> 32) | 1); /* never 0 */
}

static inline void kv_marks_set(uint32_t *marks, size_t n, uint64_t hash)
{
	marks[hash % n] = (uint32_t)(hash >> 32) | 1;
}

static inline void kv_marks_lift(uint32_t *marks, size_t n, uint64_t hash)
{
	if (kv_marks_find(marks, n, hash))
		marks[hash % n] = 0;
}

#endif
