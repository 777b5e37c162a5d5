/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.h - hashes that were marked, as far as is remembered.
 *
 * The @n marks are the caller's, zeros to begin with, and so is the lock.
 */
#ifndef KV_CACHE_CORE_MARKS_H
#define KV_CACHE_CORE_MARKS_H

#include "common/kv.h"

/* A @hash that was set is found until it is lifted, or a later one has taken
 * its place.  One that was not is found by accident, once in 2^31 times. */
bool kv_marks_find(const uint32_t *marks, size_t n, uint64_t hash);
void kv_marks_set(uint32_t *marks, size_t n, uint64_t hash);
/* No harm if it is not found. */
void kv_marks_lift(uint32_t *marks, size_t n, uint64_t hash);

#endif
