/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - blocks wanted in DRAM: leased by acquires, or brought there by
 * hints, unleased and within a budget.
 *
 * OWNS       the state of every kv_want between submit and release.
 *
 * STATES     of a want:
 *
 *              (new) -> LEASED | -errno   want_start_locked, at once
 *              (new) -> WAITING           for a read, a save, or room
 *            WAITING -> (new)             the read, save or wait for room ended
 *            WAITING -> -errno            kv_acquire_cancel
 *
 *            A want of a hint settles with 0 where one of an acquire is leased.
 *
 *            A block in a segment that must stay free of leases is first moved
 *            beside other leased blocks; its want waits for the move.
 *
 * INVARIANTS
 *   (1) A waiting want is on exactly one list: of a read, of a fill, or
 *       short_of_room, and then its acquire is on cache->short_of_room.
 *   (2) acquire->pending counts its waiting wants.
 *   (3) A lease is held exactly by the wants with status 0.
 *   (4) want->block is valid while the leased slot has the block.  A slot in
 *       state LEFT has no block any more.
 *   (5) The blocks that hints are reading from SSD take at most 1 / HINT_READS
 *       of the arena, or there is only one such block; the other hints wait,
 *       and take turns.
 *   (6) Slots that hints filled and that are not used yet, and blocks that hints
 *       have begun to bring, take at most half of the arena: hints do not drive
 *       out used blocks.  A read that a hint began goes on, and stays charged,
 *       if the caller cancels the hint.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "cache/core/ledger.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"

#define AHEAD 8u   /* keys whose memory is prefetched ahead of the look-up */
#define LOOKS 256u /* wants of waiting acquires that are retried in one pass */
#define HINT_READS 16u

void kv_want_link(struct kv_want **list, struct kv_want *want)
{
	want->next = *list;
	want->prev = list;
	if (*list)
		(*list)->prev = &want->next;
	*list = want;
}

void kv_want_unlink(struct kv_want *want)
{
	if (!want->prev)
		return;
	*want->prev = want->next;
	if (want->next)
		want->next->prev = want->prev;
	want->prev = NULL;
	want->next = NULL;
}

/* Return whether the leased slot has a block: the block may be removed. */
static bool has_block(const struct kv_want *want)
{
	return want->slot && want->slot->block;
}

/* Touch the leased blocks; of a chain, only those before the first missing
 * block.  Touch children before parents, so that a parent stays more recent. */
static void touch_all(struct kv_cache *cache, struct kv_acquire *acquire)
{
	const struct kv_layout *layout = acquire->space->layout;
	size_t n = acquire->n;

	if (acquire->again)
		return;
	if (layout && layout->reuse == KV_REUSE_PREFIX)
		for (n = 0; n < acquire->n && acquire->wants[n].status == 0;)
			n++;
	while (n-- > 0)
		if (has_block(&acquire->wants[n]))
			kv_block_touch_locked(cache, acquire->wants[n].block);
}

/* Stop charging a prefetch for the bytes that @want brings to DRAM. */
static void uncharge(struct kv_cache *cache, struct kv_want *want)
{
	cache->arena.hinted -= want->hinted;
	cache->hint_reads -= want->hint_reads;
	want->hinted = want->hint_reads = 0;
}

/* Count the leading settled wants.  Return whether @part bytes are leased. */
static bool count_leading(struct kv_acquire *acquire)
{
	const struct kv_want *want = &acquire->wants[acquire->leading];

	for (; acquire->leading < acquire->n && want->status != -EINPROGRESS;
	     acquire->leading++, want++)
		if (want->status == 0)
			acquire->leading_bytes += want->length;
	return acquire->leading_bytes >= acquire->part;
}

static void settle(struct kv_cache *cache, struct kv_want *want, int status)
{
	struct kv_acquire *acquire = want->acquire;

	kv_assert_locked(&cache->lock);
	uncharge(cache, want);
	want->status = status;
	if (--acquire->pending == 0)
		touch_all(cache, acquire);
	else if (!acquire->part || acquire->submitting ||
		 !count_leading(acquire))
		return;
	if (acquire->told)
		return;
	acquire->told = true;
	acquire->next_deferred = cache->deferred.settled;
	cache->deferred.settled = acquire;
}

size_t kv_acquire_take(struct kv_cache *cache, struct kv_acquire *acquire)
{
	size_t leading;

	kv_lock(cache);
	count_leading(acquire);
	leading = acquire->leading;
	acquire->leading_bytes = 0;
	acquire->told = false;
	kv_unlock(cache);
	return leading;
}

void kv_want_lend_locked(struct kv_cache *cache, struct kv_want *want,
			 struct kv_block *block)
{
	struct kv_slot *slot = block->slot;

	kv_slot_lease_locked(cache, slot, 1);
	cache->stats.leases++;
	want->status = 0;
	want->slot = slot;
	want->block = block;
	want->segment = slot->segment->id;
	want->offset =
		(uint64_t)(kv_slot_file(slot) - slot->segment->memory.base);
	want->length = block->length;
	want->payload = slot->payload;
}

/* ---- room ---- */

static int wait_in_line(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;

	want->short_of_room = true;
	acquire->room_at =
		KV_MIN(acquire->room_at, (size_t)(want - acquire->wants));
	if (acquire->short_of_room++ == 0)
		TAILQ_INSERT_TAIL(&cache->short_of_room, acquire, link);
	return -EINPROGRESS;
}

/*
 * Let @want wait for room: for new segments, and for the writes and reads that
 * were in flight when @want first found no room.  Wants do not wait for leases:
 * two clients with half of the same blocks each would wait for each other.
 *   -ENOSPC  no room can be expected
 */
static int wait_for_room(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;

	if (!want->writes && !want->reads) {
		want->writes = cache->cleaned + cache->ssd.dirty;
		want->reads = cache->reads_begun;
	}
	kv_writer_hurry_locked(cache);
	if (!kv_arena_grows_locked(cache) &&
	    !(acquire->wait_room &&
	      ((!cache->ssd.error && cache->cleaned < want->writes &&
		kv_writes_may_make_room_locked(cache)) ||
	       cache->reads_ended < want->reads)))
		return -ENOSPC;
	kv_commit_kick_locked(cache, true);
	return wait_in_line(cache, want);
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

void kv_wants_look_again_locked(struct kv_cache *cache)
{
	struct kv_acquire *acquire = TAILQ_FIRST(&cache->short_of_room);
	unsigned left = LOOKS;
	bool any = false, hints_wait = false;

	kv_assert_locked(&cache->lock);
	while (acquire && left) {
		struct kv_acquire *next = TAILQ_NEXT(acquire, link);
		size_t i = acquire->room_at;

		if (acquire->hint && hints_wait) {
			acquire = next;
			continue;
		}
		/* Count one want too many, so that the acquire stays on the
		 * list while its wants restart in order. */
		acquire->short_of_room++;
		for (; left && acquire->short_of_room > 1; i++) {
			struct kv_want *want = &acquire->wants[i];

			if (want->short_of_room) {
				want_start_locked(cache, want);
				left--;
			}
			if (want->short_of_room)
				break;
			any = true;
		}
		acquire->room_at = i;
		if (--acquire->short_of_room == 0) {
			TAILQ_REMOVE(&cache->short_of_room, acquire, link);
		} else if (acquire->hint) {
			/* Let the next prefetch take its turn. */
			hints_wait = true;
			TAILQ_REMOVE(&cache->short_of_room, acquire, link);
			TAILQ_INSERT_TAIL(&cache->short_of_room, acquire, link);
		}
		acquire = next;
	}
	/* At the next unlock the remaining wants retry.  If no want succeeded,
	 * they retry only when there is new room: otherwise kv_cond_wait would
	 * not sleep. */
	cache->room = left == 0 && any;
}

/* ---- wants ---- */

static void count_hit(struct kv_cache *cache, struct kv_want *want,
		      const struct kv_block *block)
{
	struct kv_space *space = want->acquire->space;
	const bool dram = block->slot;

	want->from = dram ? KV_DRAM : KV_SSD;
	cache->stats.lookups.hits_dram += dram;
	space->lookups.hits_dram += dram;
	cache->stats.lookups.hits_ssd += !dram;
	space->lookups.hits_ssd += !dram;
	cache->stats.hit_tokens += space->layout ? space->layout->tokens : 0;
	kv_histogram_add(&cache->stats.hit_age[dram ? DRAM : SSD],
			 kv_block_age(cache, block));
}

static void count_misses(struct kv_cache *cache, struct kv_space *space,
			 uint64_t n)
{
	cache->stats.lookups.misses += n;
	space->lookups.misses += n;
}

/* Read @block (NULL: missing) into DRAM for a prefetch, without a lease.  @came
 * and the return value are those of try_want. */
static int try_hint(struct kv_cache *cache, struct kv_want *want,
		    struct kv_block *block, bool came)
{
	const struct kv_remote_hooks *remote = cache->remote_hooks;
	struct kv_space *space = want->acquire->space;
	const struct kv_layout *layout = space->layout;
	const uint64_t all = kv_tier_bytes(cache, DRAM);
	struct kv_slot *slot = block ? block->slot : NULL;
	uint64_t bytes = 0;
	int r;

	if (slot && came) {
		bytes = slot->segment->class->slot_bytes;
		cache->stats.prefetched += bytes;
		if (slot->leases) { /* an acquire has leased the slot already */
			cache->stats.prefetch_used += bytes;
		} else if (!slot->hinted) {
			slot->hinted = true;
			cache->arena.hinted += bytes;
		}
	}
	if (slot)
		return 0;
	if (!block && !(remote && remote->may_locked(cache, space, &want->key)))
		return -ENOENT;
	if (block)
		bytes = kv_extent_bytes(cache, block);
	else if (layout)
		bytes = KV_PAGE + kv_block_header_bytes(layout) +
			layout->payload;
	if (cache->arena.hinted + bytes > all / 2)
		return -ENOSPC;
	if (block && cache->hint_reads &&
	    cache->hint_reads + bytes > all / HINT_READS)
		return wait_in_line(cache, want);
	/* Fetches from the remote tier have a budget of their own. */
	r = block ? kv_read_join_locked(cache, block, want)
		  : kv_remote_want_locked(cache, want);
	if (r != -EINPROGRESS)
		return r;
	want->hinted = bytes;
	want->hint_reads = block ? bytes : 0;
	cache->arena.hinted += want->hinted;
	cache->hint_reads += want->hint_reads;
	return r;
}

/* Lease the want's block, or let the want wait.  @first: this is the want's
 * first try.  @came: the read or save for which the want waited has ended.
 * Return 0, -EINPROGRESS, or the error. */
static int try_want(struct kv_cache *cache, struct kv_want *want, bool first,
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
	if (acquire->hint)
		return try_hint(cache, want, block, came);
	if (block && block->slot) {
		if (first)
			count_hit(cache, want, block);
		if (!kv_segment_may_keep(cache, block->slot->segment))
			return acquire->resident ? -EAGAIN
						 : kv_read_join_locked(
							   cache, block, want);
		/* A slot taken for this want is charged already.  A segment of
		 * another class may hold blocks that the client may not read. */
		if ((!came && kv_slot_over_floor(cache, block->slot)) ||
		    !kv_class_fits(block->slot->segment->class, space))
			return -ENOSPC;
		kv_want_lend_locked(cache, want, block);
		return 0;
	}
	if (block && acquire->resident)
		return -EAGAIN;
	if (block) {
		if (first)
			count_hit(cache, want, block);
		return kv_read_join_locked(cache, block, want);
	}
	fill = acquire->wait_saving
		       ? kv_fill_find_locked(cache, space, &want->key)
		       : NULL;
	if (fill) {
		kv_want_link(&fill->waiters, want);
		return -EINPROGRESS;
	}
	if (kv_remote_want_locked(cache, want) == -EINPROGRESS) {
		want->from = KV_REMOTE;
		return -EINPROGRESS;
	}
	if (!acquire->sealed)
		count_misses(cache, space, 1);
	return -ENOENT;
}

static void want_start_locked(struct kv_cache *cache, struct kv_want *want)
{
	const bool first = want->status != -EINPROGRESS;
	const bool came = !first && !want->short_of_room;
	int r;

	kv_assert_locked(&cache->lock);
	wait_no_more(cache, want);
	uncharge(cache, want);
	want->status = -EINPROGRESS;
	r = try_want(cache, want, first, came);
	if (r == -ENOSPC || r == -EBUSY)
		r = wait_for_room(cache, want);
	if (r != -EINPROGRESS)
		settle(cache, want, r);
}

void kv_wants_restart_locked(struct kv_cache *cache, struct kv_want **list)
{
	kv_assert_locked(&cache->lock);
	while (*list) {
		struct kv_want *want = *list;

		kv_want_unlink(want);
		want_start_locked(cache, want);
	}
}

void kv_wants_fail_locked(struct kv_cache *cache, struct kv_want **list,
			  int status)
{
	kv_assert_locked(&cache->lock);
	while (*list) {
		struct kv_want *want = *list;

		kv_want_unlink(want);
		if (status == -ENOENT && !want->acquire->sealed)
			count_misses(cache, want->acquire->space, 1);
		settle(cache, want, status);
	}
}

size_t kv_acquire_submit(struct kv_cache *cache, struct kv_acquire *acquire)
{
	size_t pending;

	kv_lock(cache);
	/* Count one want too many, so that the acquire does not settle before
	 * all wants have begun. */
	acquire->pending = acquire->n + 1;
	acquire->submitting = true;
	acquire->told = false;
	acquire->leading = acquire->leading_bytes = 0;
	acquire->look = NULL;
	acquire->short_of_room = 0;
	acquire->room_at = acquire->n;
	acquire->end = acquire->wants + acquire->n;
	/* Begin in chain order: without room the client gets a prefix. */
	for (size_t i = 0; i < acquire->n; i++) {
		struct kv_want *want = &acquire->wants[i];

		want->acquire = acquire;
		want->status = 0;
		want->slot = NULL;
		want->prev = NULL;
		want->short_of_room = false;
		want->writes = want->reads = 0;
		want->hinted = want->hint_reads = 0;
		if (acquire->space->removed)
			settle(cache, want, -ENOENT);
		else
			want_start_locked(cache, want);
	}
	if (cache->remote_hooks)
		cache->remote_hooks->look_locked(cache, acquire);
	acquire->submitting = false;
	pending = --acquire->pending;
	kv_unlock(cache);
	return pending;
}

void kv_acquire_touch(struct kv_cache *cache, struct kv_acquire *acquire)
{
	kv_lock(cache);
	touch_all(cache, acquire);
	kv_unlock(cache);
}

void kv_acquire_cancel(struct kv_cache *cache, struct kv_acquire *acquire,
		       int status)
{
	kv_lock(cache);
	for (size_t i = 0; i < acquire->n && acquire->pending; i++) {
		struct kv_want *want = &acquire->wants[i];

		if (want->status != -EINPROGRESS ||
		    (acquire->hint && !want->short_of_room))
			continue;
		kv_want_unlink(want);
		wait_no_more(cache, want);
		settle(cache, want, status);
	}
	kv_unlock(cache);
}

void kv_acquire_release(struct kv_cache *cache, struct kv_acquire *acquire)
{
	kv_lock(cache);
	for (size_t i = acquire->n; i-- > 0;) {
		struct kv_want *want = &acquire->wants[i];
		struct kv_slot *slot;

		if (want->status != 0)
			continue;
		if (has_block(want))
			kv_block_renew_locked(cache, want->block);
		slot = kv_steal(want->slot);
		if (!slot)
			continue;
		kv_slot_lease_locked(cache, slot, -1);
		cache->stats.leases--;
		if (slot->block)
			kv_block_settle_locked(cache, want->block);
		else if (!slot->leases)
			kv_slot_give_locked(cache, slot);
	}
	kv_unlock(cache);
}

void kv_probe(struct kv_cache *cache, struct kv_space *space,
	      const struct kv_key *keys, size_t n, uint8_t *ret_states)
{
	const struct kv_remote_hooks *remote = cache->remote_hooks;
	kv_lock(cache);
	for (size_t i = 0; i < n; i++) {
		struct kv_block *block;

		/* Each look-up waits for the memory of a bucket and of a block:
		 * prefetch the memory for the keys that come next. */
		if (i + 2 * AHEAD < n)
			kv_table_look_ahead(cache, space, keys[i + 2 * AHEAD].b,
					    KV_AHEAD_BUCKET);
		if (i + AHEAD < n)
			kv_table_look_ahead(cache, space, keys[i + AHEAD].b,
					    KV_AHEAD_BLOCK);
		block = space->removed ? NULL
				       : kv_table_find(cache, space, &keys[i]);
		if (block)
			ret_states[i] =
				block->slot ? KV_DRAM
				: kv_health_offline_locked(
					  cache, kv_device_of(cache, block))
					? KV_ABSENT
					: KV_SSD;
		else if (remote &&
			 remote->coming_locked(cache, space, &keys[i]))
			ret_states[i] = KV_REMOTE;
		else if (kv_fill_find_locked(cache, space, &keys[i]))
			ret_states[i] = KV_SAVING;
		else
			ret_states[i] = KV_ABSENT;
	}
	kv_unlock(cache);
}

size_t kv_asked(struct kv_cache *cache, struct kv_space *space,
		const uint8_t *states, size_t n)
{
	size_t found = 0, first = 0;
	bool prefix;

	for (size_t i = 0; i < n; i++)
		found += states[i] >= KV_SSD;
	kv_lock(cache);
	cache->stats.lookups.asked += n;
	cache->stats.lookups.found += found;
	space->lookups.asked += n;
	space->lookups.found += found;
	count_misses(cache, space, n - found);
	prefix = !space->layout || space->layout->reuse == KV_REUSE_PREFIX;
	kv_unlock(cache);
	if (found == n)
		return n;
	if (prefix)
		while (states[first] >= KV_SSD)
			first++;
	else
		for (first = n; first > 0 && states[first - 1] < KV_SSD;)
			first--;
	return first < n && states[first] == KV_ABSENT ? first : n;
}

/* ---- causes of misses ---- */

/* Set the cause of @miss, whose key is set. */
static void find_cause(struct kv_cache *cache, struct kv_space *space,
		       struct kv_miss *miss)
{
	const struct kv_block *block = kv_table_find(cache, space, &miss->key);

	if (block && !block->slot &&
	    kv_health_offline_locked(cache, kv_device_of(cache, block)))
		miss->cause = KV_CAUSE_OFFLINE;
	else if (block || kv_fill_find_locked(cache, space, &miss->key))
		miss->cause = KV_CAUSE_NONE;
	else
		(void)kv_cause_find(cache, space, miss);
}

void kv_missed(struct kv_cache *cache, struct kv_space *space, uint32_t uid,
	       const struct kv_key *key, size_t place, size_t n)
{
	struct kv_miss miss = {
		.asked_ns = kv_wall_ns(),
		.uid = uid,
		.space = space->id,
		.place = (uint16_t)place,
		.n = (uint16_t)n,
		.key = *key,
	};

	if (!cache->config.why)
		return;
	kv_lock(cache);
	find_cause(cache, space, &miss);
	if (miss.cause != KV_CAUSE_NONE)
		kv_miss_log(cache, &miss);
	kv_unlock(cache);
}

void kv_why_absent(struct kv_cache *cache, struct kv_space *space,
		   struct kv_miss *misses, size_t n)
{
	kv_lock(cache);
	for (size_t i = 0; i < n; i++)
		find_cause(cache, space, &misses[i]);
	kv_unlock(cache);
}
