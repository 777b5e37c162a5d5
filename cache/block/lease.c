/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - blocks wanted in DRAM: leased by acquires, or brought there by
 * prefetches, unleased and within a budget.
 *
 * One thread cuts the prefetches into batches and submits them in turn as
 * acquires with a hint.  If an acquire wants a block of a batch meanwhile, the
 * block is read once and its slot charged once.
 *
 * OWNS       the state of every kv_want between submit and release; the
 *            prefetches in flight, and their batches.
 *
 * STATES     of a want:
 *
 *              (new) -> LEASED | -errno   want_start_locked, at once
 *              (new) -> WAITING           for a read, a save, or room
 *            WAITING -> (new)             that has ended
 *            WAITING -> -errno            kv_acquire_cancel
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
 *   (5) Batches in flight have at most prefetcher->budget bytes, or there is
 *       only one.  The first remote batch of each prefetch is not limited: it
 *       only finds out whether the rest is worth fetching, and takes no memory
 *       yet.
 *   (6) A prefetch is on the list from kv_prefetch_submit until its done runs.
 *   (7) Slots that prefetches filled and that are not used yet take at most
 *       half of the arena: hints do not drive out used blocks.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/ledger.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/thread.h"

#define LOOKS 256u /* blocks of waiting acquires retried in one pass */
#define BATCH 16u  /* blocks of one prefetch batch */
#define SECOND 1000000000u

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

/* Return whether the leased slot still has its block; the block may be gone. */
static bool has_block(const struct kv_want *want)
{
	return want->slot && want->slot->block;
}

/* Touch the leased blocks; of a chain, only those before the first missing
 * block.  Touch children before parents, so that a parent is always more
 * recent. */
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

void kv_want_settle_locked(struct kv_cache *cache, struct kv_want *want,
			   int status)
{
	kv_assert_locked(&cache->lock);
	want->status = status;
	if (--want->acquire->pending)
		return;
	touch_all(cache, want->acquire);
	kv_defer_settled(cache, want->acquire);
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

/* ---- room ---- */

/*
 * Let @want wait for room: for new segments, and for the writes and reads that
 * were in flight when it first found no room.  Wants do not wait for leases:
 * two clients that each lease half of the same blocks would wait for each
 * other.
 *   -ENOSPC  no room is to come
 */
static int wait_for_room(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;

	if (!want->writes && !want->reads) {
		want->writes = cache->cleaned + cache->ssd.dirty;
		want->reads = cache->reads_begun;
	}
	if (!kv_arena_grows_locked(cache) &&
	    !(acquire->wait_room &&
	      ((!cache->ssd.error && cache->cleaned < want->writes &&
		kv_writes_may_make_room_locked(cache)) ||
	       cache->reads_ended < want->reads)))
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

void kv_wants_look_again_locked(struct kv_cache *cache)
{
	struct kv_acquire *acquire = TAILQ_FIRST(&cache->short_of_room);
	unsigned left = LOOKS;
	bool any = false;

	kv_assert_locked(&cache->lock);
	while (acquire && left) {
		struct kv_acquire *next = TAILQ_NEXT(acquire, link);
		size_t i = acquire->room_at;

		/* Counted one too many, so that the acquire stays on the
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
		if (--acquire->short_of_room == 0)
			TAILQ_REMOVE(&cache->short_of_room, acquire, link);
		acquire = next;
	}
	/* The remaining wants retry at the next unlock; but if none succeeded,
	 * only when there is new room: otherwise kv_cond_wait would not
	 * sleep. */
	cache->room = left == 0 && any;
}

/* ---- wants ---- */

static void count_misses(struct kv_cache *cache, struct kv_space *space,
			 uint64_t n)
{
	cache->stats.lookups.misses += n;
	space->lookups.misses += n;
}

/*
 * Lease the want's block, or let the want wait.  @first: the want did not wait
 * before.  @came: the read or save that it waited for has ended.  Return 0,
 * -EINPROGRESS, or the error.
 */
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
		if (!kv_segment_may_keep(cache, block->slot->segment))
			return acquire->resident ? -EAGAIN
						 : kv_read_join_locked(
							   cache, block, want);
		/* A slot taken for this want is charged already.  A segment of
		 * another access class may hold blocks that this client may not
		 * read. */
		if ((!came && kv_slot_over_floor(cache, block->slot)) ||
		    !kv_class_fits(block->slot->segment->class, space))
			return -ENOSPC;
		lend(cache, block, want);
		return 0;
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
	want->status = -EINPROGRESS;
	r = try_want(cache, want, first, came);
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
			count_misses(cache, want->acquire->space, 1);
		kv_want_settle_locked(cache, want, -ENOENT);
	}
}

size_t kv_acquire_submit(struct kv_cache *cache, struct kv_acquire *acquire)
{
	size_t pending;

	kv_lock(cache);
	/* Counted one too many, so that nothing settles before all wants have
	 * begun. */
	acquire->pending = acquire->n + 1;
	acquire->submitting = true;
	acquire->look = NULL;
	acquire->short_of_room = 0;
	acquire->room_at = acquire->n;
	/* In chain order: if room runs out, the client gets a prefix of the
	 * chain. */
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
	count_misses(cache, space, n - found);
	kv_unlock(cache);
}

/* ---- prefetches ---- */

struct kv_prefetch_batch {
	struct kv_cache *cache;
	struct kv_prefetch *prefetch;
	size_t *at; /* index of each want among the prefetch's keys */
	uint64_t bytes;
	TAILQ_ENTRY(kv_prefetch_batch) link;
	struct kv_acquire acquire; /* last, because its wants follow it */
};

struct prefetch_need {
	uint64_t bytes;
	bool missing; /* look for the block in the remote tier */
};

/* Return -EINPROGRESS if the block has to be read, or else the key's final
 * status. */
static int state_of(struct kv_cache *cache, struct kv_prefetch *prefetch,
		    const struct kv_key *key, struct prefetch_need *ret_need)
{
	const struct kv_layout *layout = prefetch->space->layout;
	struct kv_prefetcher *all = &cache->prefetcher;
	struct kv_block *block = NULL;

	if (prefetch->cancelled || all->stop)
		return -ECANCELED;
	if (prefetch->deadline_ns && kv_now_ns() >= prefetch->deadline_ns)
		return -ETIMEDOUT;
	if (!prefetch->space->removed)
		block = kv_table_find(cache, prefetch->space, key);
	if (block && block->slot)
		return 0;
	if (!block && !kv_remote_may_locked(cache, prefetch->space, key))
		return -ENOENT;
	ret_need->missing = !block;
	if (block)
		ret_need->bytes = kv_extent_bytes(cache, block);
	else
		ret_need->bytes =
			layout ? KV_PAGE + kv_block_header_bytes(layout) +
					 layout->payload
			       : 0;
	if (cache->arena.hinted + all->bytes + ret_need->bytes >
	    kv_tier_bytes(cache, DRAM) / 2)
		return -ENOSPC;
	return -EINPROGRESS;
}

static void batch_done(struct kv_acquire *acquire, void *arg)
{
	struct kv_prefetch_batch *batch = arg;
	struct kv_cache *cache = batch->cache;

	(void)acquire;
	kv_lock(cache);
	TAILQ_INSERT_TAIL(&cache->prefetcher.landed, batch, link);
	pthread_cond_signal(&cache->prefetcher.wake);
	kv_unlock(cache);
}

/* Settle the keys that need no read, and return a batch of those that do, as
 * far as the budget allows; NULL: nothing to read now. */
static struct kv_prefetch_batch *gather(struct kv_cache *cache,
					struct kv_prefetch *prefetch)
{
	struct kv_prefetcher *all = &cache->prefetcher;
	struct kv_prefetch_batch *batch = NULL;
	const size_t room = KV_MIN(
		KV_MAX(cache->config.remote.threshold, BATCH), prefetch->n);
	struct prefetch_need need;

	while (prefetch->next < prefetch->n &&
	       (!batch || batch->acquire.n < room)) {
		const size_t at = prefetch->next;
		int r = state_of(cache, prefetch, &prefetch->keys[at], &need);
		struct kv_acquire *acquire;

		if (r == -EINPROGRESS) {
			/* The first missing block begins a batch. */
			if (batch && need.missing && !prefetch->rest)
				break;
			if (all->bytes &&
			    all->bytes + need.bytes > all->budget &&
			    !(batch && need.missing && !batch->acquire.goes_on))
				break;
		}
		if (r == -EINPROGRESS && !batch) {
			batch = calloc(1,
				       sizeof(*batch) +
					       room * (sizeof(struct kv_want) +
						       sizeof(size_t)));
			if (batch) {
				batch->cache = cache;
				batch->prefetch = prefetch;
				batch->at =
					(size_t *)&batch->acquire.wants[room];
				batch->acquire.space = prefetch->space;
				batch->acquire.goes_on = prefetch->rest > 0;
			} else {
				r = -ENOMEM;
			}
		}
		prefetch->status[at] = r;
		prefetch->next++;
		if (r != -EINPROGRESS)
			continue;
		if (need.missing && !prefetch->rest)
			prefetch->rest = prefetch->n - at;
		acquire = &batch->acquire;
		batch->at[acquire->n] = at;
		acquire->wants[acquire->n++].key = prefetch->keys[at];
		batch->bytes += need.bytes;
		all->bytes += need.bytes;
	}
	return batch;
}

static void batch_end(struct kv_cache *cache, struct kv_prefetch_batch *batch)
{
	struct kv_prefetch *prefetch = batch->prefetch;
	size_t n = batch->acquire.n;

	for (size_t i = 0; i < n; i++)
		prefetch->status[batch->at[i]] = batch->acquire.wants[i].status;
	prefetch->under_way -= n;
	cache->prefetcher.bytes -= batch->bytes;
	free(batch);
}

/* Finish a landed batch, submit the next batch, or finish a prefetch.  Return
 * false if there is nothing to do but wait. */
static bool prefetch_step(struct kv_cache *cache)
{
	struct kv_prefetcher *all = &cache->prefetcher;
	struct kv_prefetch_batch *batch = TAILQ_FIRST(&all->landed);
	struct kv_prefetch *prefetch;
	struct kv_acquire *acquire;
	bool pending;

	if (batch) {
		TAILQ_REMOVE(&all->landed, batch, link);
		batch_end(cache, batch);
		return true;
	}
	TAILQ_FOREACH(prefetch, &all->list, link) {
		batch = gather(cache, prefetch);
		if (!batch &&
		    (prefetch->next < prefetch->n || prefetch->under_way))
			continue;
		TAILQ_REMOVE(&all->list, prefetch, link);
		if (batch) {
			TAILQ_INSERT_TAIL(&all->list, prefetch, link);
			acquire = &batch->acquire;
			acquire->hint = prefetch;
			acquire->remote = true;
			acquire->uid = prefetch->uid;
			acquire->more = prefetch->more;
			acquire->rest = prefetch->rest;
			acquire->done = batch_done;
			acquire->arg = batch;
			prefetch->under_way += acquire->n;
			kv_unlock(cache);
			pending = kv_acquire_submit(cache, acquire);
			kv_lock(cache);
			if (!pending)
				batch_end(cache, batch);
		} else {
			kv_unlock(cache);
			prefetch->done(prefetch, prefetch->arg);
			kv_lock(cache);
		}
		return true;
	}
	return false;
}

static void *prefetcher(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_prefetcher *all = &cache->prefetcher;

	kv_lock(cache);
	while (!all->stop || !TAILQ_EMPTY(&all->list))
		if (!prefetch_step(cache))
			kv_cond_wait(cache, &all->wake, SECOND / 10);
	kv_unlock(cache);
	return NULL;
}

void kv_prefetch_submit(struct kv_cache *cache, struct kv_prefetch *prefetch)
{
	prefetch->next = 0;
	prefetch->under_way = 0;
	prefetch->bytes = 0;
	prefetch->rest = 0;
	prefetch->cancelled = false;
	kv_lock(cache);
	TAILQ_INSERT_TAIL(&cache->prefetcher.list, prefetch, link);
	pthread_cond_signal(&cache->prefetcher.wake);
	kv_unlock(cache);
}

void kv_prefetch_cancel(struct kv_cache *cache, struct kv_prefetch *prefetch)
{
	kv_lock(cache);
	prefetch->cancelled = true;
	pthread_cond_signal(&cache->prefetcher.wake);
	kv_unlock(cache);
}

void kv_prefetch_landed_locked(struct kv_cache *cache,
			       struct kv_prefetch *prefetch,
			       struct kv_slot *slot)
{
	uint64_t bytes = slot->segment->class->slot_bytes;

	kv_assert_locked(&cache->lock);
	prefetch->bytes += bytes;
	cache->stats.prefetched += bytes;
	if (slot->leases) { /* an acquire has leased the block already */
		cache->stats.prefetch_used += bytes;
	} else if (!slot->hinted) {
		slot->hinted = true;
		cache->arena.hinted += bytes;
	}
}

int kv_prefetcher_start(struct kv_cache *cache)
{
	struct kv_prefetcher *all = &cache->prefetcher;
	int r;

	all->budget = kv_tier_bytes(cache, DRAM) / 16;
	r = kv_thread_start(&all->thread, "kvfs-prefetch", prefetcher, cache);
	all->running = r == 0;
	return r;
}

void kv_prefetcher_stop(struct kv_cache *cache)
{
	struct kv_prefetcher *all = &cache->prefetcher;

	if (!all->running)
		return;
	kv_lock(cache);
	all->stop = true;
	pthread_cond_signal(&all->wake);
	kv_unlock(cache);
	pthread_join(all->thread, NULL);
	all->running = false;
}
