/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - blocks wanted in DRAM, and leased.
 *
 * OWNS       the state of every kv_want between submit and release.
 *
 * STATES     of a want:
 *              (new) -> LEASED | -errno    want_start_locked, at once
 *              (new) -> WAITING            for a read, for a save, for room
 *            WAITING -> (new)              what it waited for has ended
 *            WAITING -> -errno             kv_acquire_cancel
 *            A block whose segment must remain such that it can be emptied is
 *            waited for until it was moved beside others that are leased.
 *
 * INVARIANTS
 *   (1) A waiting want is on exactly one list, of a read or of a fill, or
 *       short_of_room, and then its acquire is on cache->short_of_room.
 *   (2) acquire->pending counts its waiting wants.
 *   (3) A lease is held exactly by the wants with status 0.
 *   (4) A want's block is there while the slot that it leases has it; who leases
 *       a slot that its block has left has nothing to do with that any more.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
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

/* The slot that it leases may have been left by its block, which may be gone. */
static bool has_block(const struct kv_want *want)
{
	return want->slot && want->slot->block;
}

/* From the tail, whatever came first: so a parent is never older than its
 * child. */
static void touch_all(struct kv_cache *cache, struct kv_acquire *acquire)
{
	if (acquire->again)
		return;
	for (size_t i = usable(acquire); i-- > 0;)
		if (has_block(&acquire->wants[i]))
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
	kv_assert_locked(&cache->lock);
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
	want->offset =
		(uint64_t)(kv_slot_file(slot) - slot->segment->memory.base);
	want->length = block->length;
	want->payload = slot->payload;
}

void kv_want_hold_locked(struct kv_cache *cache, struct kv_want *want,
			 struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	lend(cache, block, want);
	want->status = 0;
}

/* @paid: its slot was taken for this want, and has been charged all along. */
static int lease_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want, bool paid)
{
	struct kv_slot *slot = block->slot;
	struct kv_segment *segment = slot->segment;

	kv_assert_locked(&cache->lock);
	if (!paid && kv_slot_over_floor(cache, slot))
		return -ENOSPC;
	/* The slot's segment may hold others' blocks that this client may not
	 * read. */
	if (!kv_class_fits(segment->class, kv_block_space(cache, block)))
		return -ENOSPC;
	lend(cache, block, want);
	return 0;
}

/* ---- room ---- */

#define LOOKS 256u /* wants that begin in one go */

/* Is anything under way, of what was when @want first found no room, that may
 * make some?  Leases are not waited for: two clients with half of what both
 * want would wait for each other. */
static bool room_may_come(const struct kv_cache *cache,
			  const struct kv_want *want)
{
	if (kv_arena_grows_locked(cache))
		return true;
	return want->acquire->wait_room &&
	       ((!cache->ssd.error && cache->cleaned < want->writes &&
		 kv_writes_may_make_room_locked(cache)) ||
		cache->reads_ended < want->reads);
}

/* Let @want wait for room; -ENOSPC: there will be none. */
static int wait_for_room(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;

	if (!want->writes && !want->reads) {
		want->writes = cache->cleaned + cache->ssd.dirty;
		want->reads = cache->reads_begun;
	}
	if (!room_may_come(cache, want))
		return -ENOSPC;
	want->short_of_room = true;
	acquire->room_at =
		KV_MIN(acquire->room_at, (size_t)(want - acquire->wants));
	if (acquire->short_of_room++ == 0)
		TAILQ_INSERT_TAIL(&cache->short_of_room, acquire, link);
	kv_commit_kick_locked(cache, true);
	return -EINPROGRESS;
}

static void wait_no_more(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;

	if (!want->short_of_room)
		return;
	want->short_of_room = false;
	if (--acquire->short_of_room == 0)
		TAILQ_REMOVE(&cache->short_of_room, acquire, link);
}

static void want_start_locked(struct kv_cache *cache, struct kv_want *want);

/* From the first on, as far as there is room; so many that begin are left. */
static unsigned look_again(struct kv_cache *cache, struct kv_acquire *acquire,
			   unsigned left, bool *any)
{
	size_t i = acquire->room_at;

	/* Counted once too often, the acquire stays on the list. */
	acquire->short_of_room++;
	while (left && acquire->short_of_room > 1) {
		struct kv_want *want = &acquire->wants[i];

		if (want->short_of_room) {
			want_start_locked(cache, want);
			left--;
		}
		if (want->short_of_room)
			break;
		*any = true;
		i++;
	}
	acquire->room_at = i;
	if (--acquire->short_of_room == 0)
		TAILQ_REMOVE(&cache->short_of_room, acquire, link);
	return left;
}

void kv_wants_look_again_locked(struct kv_cache *cache)
{
	struct kv_acquire *acquire = TAILQ_FIRST(&cache->short_of_room);
	unsigned left = LOOKS;
	bool any = false;

	kv_assert_locked(&cache->lock);
	while (acquire && left) {
		struct kv_acquire *next = TAILQ_NEXT(acquire, link);

		left = look_again(cache, acquire, left, &any);
		acquire = next;
	}
	/* The others, when the lock is let go next; but where nobody got on,
	 * when there is room again: who waits would not sleep else. */
	cache->room = left == 0 && any;
}

/* ---- wants ---- */

static void missed(struct kv_cache *cache, struct kv_space *space, uint64_t n)
{
	cache->stats.lookups.misses += n;
	space->lookups.misses += n;
}

/* @came: what it waited for did, be it a read or a save. */
static int start(struct kv_cache *cache, struct kv_want *want, bool first,
		 bool came)
{
	struct kv_acquire *acquire = want->acquire;
	struct kv_space *space = acquire->space;
	struct kv_block *block = kv_table_find(cache, space, &want->key);
	struct kv_fill *fill;

	first = first && !acquire->again;
	if (acquire->sealed && block)
		return 0;
	if (block)
		kv_block_rehome_locked(cache, block);
	if (acquire->hint && block && block->slot) {
		if (came)
			kv_prefetch_landed_locked(cache, acquire->hint,
						  block->slot);
		return 0;
	}
	if (acquire->hint && !block)
		return kv_remote_want_locked(cache, want);
	if (acquire->hint)
		return kv_read_join_locked(cache, block, want);
	if (block && block->slot) {
		cache->stats.lookups.hits_dram += first;
		space->lookups.hits_dram += first;
		if (kv_segment_may_keep(cache, block->slot->segment))
			return lease_locked(cache, block, want, came);
		return acquire->resident
			       ? -EAGAIN
			       : kv_read_join_locked(cache, block, want);
	}
	if (block && acquire->resident)
		return -EAGAIN;
	if (block) {
		cache->stats.lookups.hits_ssd += first;
		space->lookups.hits_ssd += first;
		return kv_read_join_locked(cache, block, want);
	}
	fill = acquire->wait_saving
		       ? kv_fill_find_locked(cache, space, &want->key)
		       : NULL;
	if (fill) {
		kv_want_link(&fill->waiters, want);
		return -EINPROGRESS;
	}
	if (kv_remote_want_locked(cache, want) == -EINPROGRESS)
		return -EINPROGRESS;
	if (!acquire->sealed)
		missed(cache, space, 1);
	return -ENOENT;
}

static void unlease(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_slot *slot = kv_steal(want->slot);

	if (!slot)
		return;
	kv_slot_lease_locked(cache, slot, -1);
	cache->stats.leases--;
	if (slot->block)
		kv_block_settle_locked(cache, want->block);
	else if (!slot->leases)
		kv_slot_give_locked(cache, slot);
}

/* Look the want's block up and lease it, or see to it that it comes. */
static void want_start_locked(struct kv_cache *cache, struct kv_want *want)
{
	const bool first = want->status != -EINPROGRESS;
	const bool came = !first && !want->short_of_room;
	int r;

	kv_assert_locked(&cache->lock);
	wait_no_more(cache, want);
	want->status = -EINPROGRESS;
	r = start(cache, want, first, came);
	if (r == -ENOSPC || r == -EBUSY)
		r = wait_for_room(cache, want);
	if (r != -EINPROGRESS)
		kv_want_settle_locked(cache, want, r);
}

void kv_wants_restart_locked(struct kv_cache *cache, struct kv_want **list)
{
	kv_assert_locked(&cache->lock);
	while (*list) {
		struct kv_want *want = *list;

		want_unlink(want);
		want_start_locked(cache, want);
	}
}

void kv_wants_miss_locked(struct kv_cache *cache, struct kv_want **list)
{
	kv_assert_locked(&cache->lock);
	while (*list) {
		struct kv_want *want = *list;

		want_unlink(want);
		if (!want->acquire->sealed)
			missed(cache, want->acquire->space, 1);
		kv_want_settle_locked(cache, want, -ENOENT);
	}
}

size_t kv_acquire_submit(struct kv_cache *cache, struct kv_acquire *acquire)
{
	size_t pending;

	kv_lock(cache);
	/* Count once too often, so that nothing settles before all began. */
	acquire->pending = acquire->n + 1;
	acquire->submitting = true;
	acquire->look = NULL;
	acquire->short_of_room = 0;
	acquire->room_at = acquire->n;
	/* From the head: if there is not room for all, a prefix is got. */
	for (size_t i = 0; i < acquire->n; i++) {
		struct kv_want *want = &acquire->wants[i];

		want->acquire = acquire;
		want->status = 0;
		want->slot = NULL;
		want->prev = NULL;
		want->short_of_room = false;
		want->writes = want->reads = 0;
		if (acquire->space->removed)
			kv_want_settle_locked(cache, want, -ENOENT);
		else
			want_start_locked(cache, want);
	}
	acquire->submitting = false;
	kv_remote_look_locked(cache, acquire);
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
		wait_no_more(cache, want);
		kv_want_settle_locked(cache, want, status);
	}
	kv_unlock(cache);
}

void kv_acquire_release(struct kv_cache *cache, struct kv_acquire *acquire)
{
	kv_lock(cache);
	for (size_t i = acquire->n; i-- > 0;) {
		struct kv_want *want = &acquire->wants[i];

		if (want->status != 0)
			continue;
		if (has_block(want))
			kv_block_renew_locked(cache, want->block);
		unlease(cache, want);
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
		else if (kv_remote_coming_locked(cache, space, &keys[i]))
			ret_states[i] = KV_REMOTE;
		else if (kv_fill_find_locked(cache, space, &keys[i]))
			ret_states[i] = KV_SAVING;
		else
			ret_states[i] = KV_ABSENT;
	}
	kv_unlock(cache);
}

void kv_asked(struct kv_cache *cache, struct kv_space *space,
	      const uint8_t *states, size_t n)
{
	uint64_t found = 0;

	for (size_t i = 0; i < n; i++)
		found += states[i] >= KV_SSD;
	kv_lock(cache);
	cache->stats.lookups.asked += n;
	cache->stats.lookups.found += found;
	space->lookups.asked += n;
	space->lookups.found += found;
	missed(cache, space, n - found);
	kv_unlock(cache);
}
