/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.c - blocks that somebody says he will want: from SSD, or a remote tier,
 * to DRAM, unleased, within a budget.
 *
 * One thread cuts the prefetches into batches and hands them in turn to the
 * reads that serve acquires, too: a block that is wanted meanwhile has its slot
 * charged once, and comes once.
 *
 * OWNS       the prefetches under way, and their batches.
 *
 * INVARIANTS
 *   (1) Batches under way have at most prefetcher->budget bytes, or are alone;
 *       but for the first that is looked for of each prefetch, which has all that
 *       it takes to tell whether the rest is worth it, and no memory yet.
 *   (2) A prefetch is on the list from kv_prefetch_submit until its done runs.
 *   (3) Slots that prefetches filled and nobody used yet hold at most half of
 *       the arena: hints do not drive out what is used.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"
#include "common/thread.h"

#define BATCH 16u
#define SECOND 1000000000u

struct kv_prefetch_batch {
	struct kv_cache *cache;
	struct kv_prefetch *prefetch;
	size_t *at; /* each want's place among the prefetch's keys */
	uint64_t bytes;
	TAILQ_ENTRY(kv_prefetch_batch) link;
	struct kv_acquire acquire; /* last: has its wants behind it */
};

static uint64_t arena_bytes(const struct kv_cache *cache)
{
	return cache->arena.max * cache->arena.segment_bytes;
}

/* Of a block that is not here, by its layout. */
static uint64_t remote_bytes(const struct kv_space *space)
{
	const struct kv_layout *layout = space->layout;

	return layout ? KV_PAGE + kv_block_header_bytes(layout) +
				layout->payload
		      : 0;
}

struct need {
	uint64_t bytes;
	bool missing; /* it is to be looked for */
};

/* -EINPROGRESS: it has to be read. */
static int state_of(struct kv_cache *cache, struct kv_prefetch *prefetch,
		    const struct kv_key *key, struct need *ret_need)
{
	struct kv_prefetcher *all = &cache->prefetcher;
	struct kv_block *block;

	if (prefetch->cancelled || all->stop)
		return -ECANCELED;
	if (prefetch->deadline_ns && kv_now_ns() >= prefetch->deadline_ns)
		return -ETIMEDOUT;
	block = prefetch->space->removed
			? NULL
			: kv_table_find(cache, prefetch->space, key);
	if (block && block->slot)
		return 0;
	if (!block && !kv_remote_may_locked(cache, prefetch->space, key))
		return -ENOENT;
	ret_need->missing = !block;
	ret_need->bytes = block ? kv_extent_bytes(cache, block)
				: remote_bytes(prefetch->space);
	if (cache->arena.hinted + all->bytes + ret_need->bytes >
	    arena_bytes(cache) / 2)
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

static struct kv_prefetch_batch *
batch_new(struct kv_cache *cache, struct kv_prefetch *prefetch, size_t room)
{
	struct kv_prefetch_batch *batch =
		calloc(1, sizeof(*batch) + room * (sizeof(struct kv_want) +
						   sizeof(size_t)));

	if (!batch)
		return NULL;
	batch->cache = cache;
	batch->prefetch = prefetch;
	batch->at = (size_t *)&batch->acquire.wants[room];
	batch->acquire.space = prefetch->space;
	batch->acquire.goes_on = prefetch->rest > 0;
	return batch;
}

/* Whether it may be read now, with @batch, which is NULL if it is the first. */
static bool may_join(const struct kv_prefetcher *all,
		     const struct kv_prefetch_batch *batch,
		     const struct kv_prefetch *prefetch,
		     const struct need *need)
{
	if (batch && need->missing && !prefetch->rest)
		return false; /* the first that is looked for begins one */
	if (!all->bytes || all->bytes + need->bytes <= all->budget)
		return true;
	return batch && need->missing && !batch->acquire.goes_on;
}

static void join(struct kv_prefetcher *all, struct kv_prefetch_batch *batch,
		 size_t at, const struct need *need)
{
	struct kv_prefetch *prefetch = batch->prefetch;

	if (need->missing && !prefetch->rest)
		prefetch->rest = prefetch->n - at;
	batch->at[batch->acquire.n] = at;
	batch->acquire.wants[batch->acquire.n++].key = prefetch->keys[at];
	batch->bytes += need->bytes;
	all->bytes += need->bytes;
}

/* Settle what needs no read, and gather what does, as far as it may begin now.
 * NULL: there is nothing to read now. */
static struct kv_prefetch_batch *gather(struct kv_cache *cache,
					struct kv_prefetch *prefetch)
{
	struct kv_prefetcher *all = &cache->prefetcher;
	struct kv_prefetch_batch *batch = NULL;
	const size_t room = KV_MIN(
		KV_MAX(cache->config.remote.threshold, BATCH), prefetch->n);
	struct need need;

	while (prefetch->next < prefetch->n &&
	       (!batch || batch->acquire.n < room)) {
		size_t i = prefetch->next;
		int r = state_of(cache, prefetch, &prefetch->keys[i], &need);

		if (r == -EINPROGRESS && !may_join(all, batch, prefetch, &need))
			break;
		if (r == -EINPROGRESS && !batch) {
			batch = batch_new(cache, prefetch, room);
			r = batch ? r : -ENOMEM;
		}
		prefetch->status[i] = r;
		prefetch->next++;
		if (r == -EINPROGRESS)
			join(all, batch, i, &need);
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

static void begin(struct kv_cache *cache, struct kv_prefetch *prefetch,
		  struct kv_prefetch_batch *batch)
{
	size_t n = batch->acquire.n;
	bool pending;

	batch->acquire.hint = prefetch;
	batch->acquire.remote = true;
	batch->acquire.uid = prefetch->uid;
	batch->acquire.more = prefetch->more;
	batch->acquire.rest = prefetch->rest;
	batch->acquire.done = batch_done;
	batch->acquire.arg = batch;
	prefetch->under_way += n;
	kv_unlock(cache);
	pending = kv_acquire_submit(cache, &batch->acquire);
	kv_lock(cache);
	if (!pending)
		batch_end(cache, batch);
}

/* False: there is nothing to do but wait. */
static bool turn(struct kv_cache *cache)
{
	struct kv_prefetcher *all = &cache->prefetcher;
	struct kv_prefetch_batch *batch = TAILQ_FIRST(&all->landed);
	struct kv_prefetch *prefetch;

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
			begin(cache, prefetch, batch);
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
		if (!turn(cache))
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
	if (slot->leases) { /* somebody was quicker than the hint */
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

	all->budget = arena_bytes(cache) / 16;
	r = kv_thread_start(&all->thread, "kvfs-prefetch", prefetcher, cache);
	all->running = r == 0;
	return r;
}

void kv_prefetcher_init(struct kv_cache *cache)
{
	TAILQ_INIT(&cache->prefetcher.list);
	TAILQ_INIT(&cache->prefetcher.landed);
	kv_cond_init(&cache->prefetcher.wake);
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
