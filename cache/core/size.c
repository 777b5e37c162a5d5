/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size.c - the slot sizes in use: at most four for each power of two.
 *
 * A model's blocks are all of one size, so three of the four are exact, given
 * to the first sizes that come; whatever comes later is rounded up to one of
 * them or to the power of two itself, the fourth.  An exact size that no
 * segment and no file has any more makes place for another.
 *
 * OWNS     cache->sizes.
 * LOCKING  cache->lock.
 */
#include "cache/dram/dram.h"

static unsigned octave(uint64_t n)
{
	return 63 - (unsigned)__builtin_clzll(n - 1);
}

static bool in_use(struct kv_cache *cache, uint64_t slot_bytes)
{
	struct kv_class *class;
	struct kv_ssd_class *ssd;

	LIST_FOREACH(class, &cache->arena.classes, link)
		if (class->slot_bytes == slot_bytes && class->n_segments)
			return true;
	LIST_FOREACH(ssd, &cache->ssd.classes, link)
		if (ssd->slot_bytes == slot_bytes && ssd->total)
			return true;
	return false;
}

void kv_size_used(struct kv_cache *cache, uint64_t slot_bytes)
{
	uint64_t *sizes = cache->sizes[octave(slot_bytes)];

	for (unsigned i = 0; i < SIZE_CLASSES - 1; i++)
		if (sizes[i] == slot_bytes)
			return;
	for (unsigned i = 0; i < SIZE_CLASSES - 1; i++)
		if (sizes[i] == 0 || !in_use(cache, sizes[i])) {
			sizes[i] = slot_bytes;
			return;
		}
}

uint64_t kv_size_class(struct kv_cache *cache, uint64_t length)
{
	uint64_t want = kv_round_up(length, KV_PAGE) + KV_PAGE;
	uint64_t limit = cache->arena.segment_bytes, best, *sizes;

	if (cache->ssd.on)
		limit = KV_MIN(limit, cache->ssd.segment_bytes);
	if (length == 0 || length > UINT32_MAX || want > limit)
		return 0;
	kv_size_used(cache, want);
	sizes = cache->sizes[octave(want)];
	best = KV_MIN(1ull << (octave(want) + 1), limit);
	for (unsigned i = 0; i < SIZE_CLASSES - 1; i++)
		if (sizes[i] >= want && sizes[i] < best)
			best = sizes[i];
	return best;
}
