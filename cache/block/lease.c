/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - blocks wanted in DRAM, and leased.
 *
 * OWNS       the state of every kv_want between submit and release.
 *
 * STATES     of a want:
 *              (new) -> LEASED | -errno    kv_want_start_locked, at once
 *              (new) -> WAITING            for a read, or for a save
 *            WAITING -> (new)              what it waited for has ended
 *            WAITING -> -errno             kv_acquire_cancel
 *
 * INVARIANTS
 *   (1) A waiting want is on exactly one list, of a read or of a fill.
 *   (2) acquire->pending counts its waiting wants.
 *   (3) A lease is held exactly by the wants with status 0.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"

void kv_want_link(struct kv_want **list, struct kv_want *want)
{
	want->next = *list;
	want->prev = list;
	if (*list)
		(*list)->prev = &want->next;
	*list = want;
}

static void want_unlink(struct kv_want *want)
{
	if (!want->prev)
		return;
	*want->prev = want->next;
	if (want->next)
		want->next->prev = want->prev;
	want->prev = NULL;
	want->next = NULL;
}

/* How many of the wants are of use: of a chain, those before the first that is
 * missing. */
static size_t usable(const struct kv_acquire *acquire)
{
	const struct kv_layout *layout = acquire->space->layout;
	size_t n = 0;

	if (!layout || layout->reuse != KV_REUSE_PREFIX)
		return acquire->n;
	while (n < acquire->n && acquire->wants[n].status == 0)
		n++;
	return n;
}

/* From the tail, whatever came first: so a parent is never older than its
 * child. */
static void touch_all(struct kv_cache *cache, struct kv_acquire *acquire)
{
	for (size_t i = usable(acquire); i-- > 0;)
		if (acquire->wants[i].slot)
			kv_block_touch_locked(cache, acquire->wants[i].block);
}

static void one_settled(struct kv_cache *cache, struct kv_acquire *acquire)
{
	if (--acquire->pending)
		return;
	touch_all(cache, acquire);
	kv_defer_settled(cache, acquire);
}

void kv_want_settle_locked(struct kv_cache *cache, struct kv_want *want,
			   int status)
{
	want->status = status;
	one_settled(cache, want->acquire);
}

static void lend(struct kv_cache *cache, struct kv_block *block,
		 struct kv_want *want)
{
	struct kv_slot *slot = block->slot;

	kv_slot_lease_locked(cache, slot, 1);
	cache->stats.leases++;
	want->slot = slot;
	want->block = block;
	want->segment = slot->segment->id;
	want->offset = (uint64_t)(kv_slot_file(slot) - slot->segment->base);
	want->length = block->length;
	want->payload = slot->payload;
}

void kv_want_hold_locked(struct kv_cache *cache, struct kv_want *want,
			 struct kv_block *block)
{
	lend(cache, block, want);
	want->status = 0;
}

/* @paid: its slot was taken for this want, and has been charged all along. */
static int lease_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want, bool paid)
{
	struct kv_slot *slot = block->slot;
	struct kv_segment *segment = slot->segment;

	if (!paid && kv_slot_idle(slot) &&
	    kv_arena_over_floor(cache, slot->list->space,
				segment->class->slot_bytes))
		return -ENOSPC;
	/* Its segment may hold others' blocks that this client may not read. */
	if (!kv_class_fits(segment->class, kv_block_space(cache, block)))
		return -ENOSPC;
	lend(cache, block, want);
	return 0;
}

static int start(struct kv_cache *cache, struct kv_want *want, bool first)
{
	struct kv_acquire *acquire = want->acquire;
	struct kv_space *space = acquire->space;
	struct kv_block *block = kv_table_find(cache, space, &want->key);
	struct kv_fill *fill;

	/* The space changed hands while it was leased: read it in anew. */
	if (block && block->slot && block->file != KV_NONE &&
	    !block->slot->leases && !block->slot->holds &&
	    !kv_class_fits(block->slot->segment->class, space))
		kv_slot_give_locked(cache, block->slot);
	if (acquire->hint && block && block->slot) {
		if (!first)
			kv_prefetch_landed_locked(cache, acquire->hint,
						  block->slot);
		return 0;
	}
	if (acquire->hint && !block)
		return -ENOENT;
	if (acquire->hint)
		return kv_read_join_locked(cache, block, want);
	if (block && block->slot) {
		cache->stats.hits_dram += first;
		return lease_locked(cache, block, want, !first);
	}
	if (block && acquire->resident)
		return -EAGAIN;
	if (block) {
		cache->stats.hits_ssd += first;
		return kv_read_join_locked(cache, block, want);
	}
	fill = acquire->wait_saving
		       ? kv_fill_find_locked(cache, space, &want->key)
		       : NULL;
	if (fill) {
		kv_want_link(&fill->waiters, want);
		return -EINPROGRESS;
	}
	cache->stats.misses++;
	return -ENOENT;
}

static void unlease(struct kv_cache *cache, struct kv_want *want)
{
	if (!want->slot)
		return;
	kv_slot_lease_locked(cache, want->slot, -1);
	cache->stats.leases--;
	want->slot = NULL;
	kv_block_settle_locked(cache, want->block);
}

void kv_want_start_locked(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;
	bool first = want->status != -EINPROGRESS;
	int r;

	/* Starting may let go of the lock: one more pending keeps the acquire
	 * here, and a cancel in between wins. */
	acquire->pending++;
	want->status = -EINPROGRESS;
	r = start(cache, want, first);
	if (want->status != -EINPROGRESS) {
		want_unlink(want);
		unlease(cache, want);
	} else if (r != -EINPROGRESS) {
		kv_want_settle_locked(cache, want, r);
	}
	one_settled(cache, acquire);
}

void kv_wants_restart_locked(struct kv_cache *cache, struct kv_want **list)
{
	while (*list) {
		struct kv_want *want = *list;

		want_unlink(want);
		kv_want_start_locked(cache, want);
	}
}

void kv_wants_miss_locked(struct kv_cache *cache, struct kv_want **list)
{
	while (*list) {
		struct kv_want *want = *list;

		want_unlink(want);
		cache->stats.misses++;
		kv_want_settle_locked(cache, want, -ENOENT);
	}
}

size_t kv_acquire_submit(struct kv_cache *cache, struct kv_acquire *acquire)
{
	size_t pending;

	kv_lock(cache);
	/* One more than there are, so that nothing settles before all began. */
	acquire->pending = acquire->n + 1;
	/* From the head: if there is not room for all, a prefix is got. */
	for (size_t i = 0; i < acquire->n; i++) {
		struct kv_want *want = &acquire->wants[i];

		want->acquire = acquire;
		want->status = 0;
		want->slot = NULL;
		want->prev = NULL;
		if (acquire->space->removed)
			kv_want_settle_locked(cache, want, -ENOENT);
		else
			kv_want_start_locked(cache, want);
	}
	pending = --acquire->pending;
	if (!pending)
		touch_all(cache, acquire);
	kv_unlock(cache);
	return pending;
}

void kv_acquire_cancel(struct kv_cache *cache, struct kv_acquire *acquire,
		       int status)
{
	kv_lock(cache);
	for (size_t i = 0; i < acquire->n && acquire->pending; i++) {
		struct kv_want *want = &acquire->wants[i];

		if (want->status != -EINPROGRESS)
			continue;
		want_unlink(want);
		kv_want_settle_locked(cache, want, status);
	}
	kv_unlock(cache);
}

void kv_acquire_release(struct kv_cache *cache, struct kv_acquire *acquire)
{
	kv_lock(cache);
	for (size_t i = acquire->n; i-- > 0;) {
		struct kv_want *want = &acquire->wants[i];

		if (want->status == 0) {
			kv_block_renew_locked(cache, want->block);
			unlease(cache, want);
		}
	}
	kv_unlock(cache);
}

void kv_probe(struct kv_cache *cache, struct kv_space *space,
	      const struct kv_key *keys, size_t n, uint8_t *ret_states)
{
	bool offline;

	kv_lock(cache);
	offline = kv_health_offline_locked(cache);
	for (size_t i = 0; i < n; i++) {
		struct kv_block *block =
			space->removed ? NULL
				       : kv_table_find(cache, space, &keys[i]);

		if (block)
			ret_states[i] = block->slot ? KV_DRAM
					: offline   ? KV_ABSENT
						    : KV_SSD;
		else if (kv_fill_find_locked(cache, space, &keys[i]))
			ret_states[i] = KV_SAVING;
		else
			ret_states[i] = KV_ABSENT;
	}
	kv_unlock(cache);
}
