/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.c - hashes that were marked, as far as is remembered.
 *
 * OWNS       nothing: the marks are the caller's.
 *
 * INVARIANTS
 *   (1) A hash's mark is never 0, and stands in the one place that the hash
 *       gives it, or nowhere: a later one may stand there instead.
 *
 * LOCKING    the caller's.
 */
#include "cache/core/marks.h"

static uint32_t mark_of(uint64_t hash)
{
	return (uint32_t)(hash >> 32) | 1;
}

bool kv_marks_find(const uint32_t *marks, size_t n, uint64_t hash)
{
	return marks[hash % n] == mark_of(hash);
}

void kv_marks_set(uint32_t *marks, size_t n, uint64_t hash)
{
	marks[hash % n] = mark_of(hash);
}

void kv_marks_lift(uint32_t *marks, size_t n, uint64_t hash)
{
	if (kv_marks_find(marks, n, hash))
		marks[hash % n] = 0;
}
