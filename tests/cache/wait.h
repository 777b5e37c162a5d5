/* SPDX-License-Identifier: Apache-2.0 */
/* wait.h - calls of the cache that end by a callback: submit, and wait on the
 * test's thread. */
#ifndef KV_TESTS_CACHE_WAIT_H
#define KV_TESTS_CACHE_WAIT_H

#include "cache/cache.h"

struct kv_waiter {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
};

#define KV_WAITER_INIT                                                     \
	{                                                                  \
		PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false \
	}

static inline void kv_waiter_wake(struct kv_waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	waiter->done = true;
	pthread_cond_signal(&waiter->cond);
	pthread_mutex_unlock(&waiter->lock);
}

static inline void kv_waiter_wait(struct kv_waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	while (!waiter->done)
		pthread_cond_wait(&waiter->cond, &waiter->lock);
	pthread_mutex_unlock(&waiter->lock);
}

static inline void kv_flush_wake(struct kv_flush *flush, int status)
{
	(void)status;
	kv_waiter_wake(flush->arg);
}

/* Wait until the block is durable.  Return 0, -ENOSPC, -EIO, or -EOPNOTSUPP (no
 * SSD tier). */
static inline int kv_block_sync(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_flush flush = {.done = kv_flush_wake, .arg = &waiter};

	kv_block_flush_submit(cache, block, &flush);
	kv_waiter_wait(&waiter);
	return flush.status;
}

/* Wait until everything sealed or removed in the space so far is durable. */
static inline int kv_space_sync(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_flush flush = {.done = kv_flush_wake, .arg = &waiter};

	kv_flush_submit(cache, space, &flush);
	kv_waiter_wait(&waiter);
	return flush.status;
}

/* Wait until the block is durable, and drop it from DRAM.  Return 0, -EBUSY
 * (the block is leased), or -ENOSPC. */
static inline int kv_block_demote(struct kv_cache *cache,
				  struct kv_block *block)
{
	int r = kv_block_sync(cache, block);

	return r < 0 ? r : kv_block_demote_try(cache, block);
}

static inline void kv_acquire_wake(struct kv_acquire *acquire, void *arg)
{
	(void)acquire;
	kv_waiter_wake(arg);
}

/* Wait until the block is in DRAM.  Return 0 or -ENOSPC. */
static inline int kv_block_promote(struct kv_cache *cache,
				   struct kv_block *block)
{
	struct kv_waiter waiter = KV_WAITER_INIT;
	_cleanup_(kv_freep) struct kv_acquire *acquire =
		calloc(1, sizeof(*acquire) + sizeof(struct kv_want));
	const struct kv_block_info info = kv_block_stat(cache, block);
	int r;

	if (!acquire)
		return -ENOMEM;
	acquire->space = info.space;
	acquire->n = 1;
	acquire->wait_room = true;
	acquire->done = kv_acquire_wake;
	acquire->arg = &waiter;
	acquire->wants[0].key = info.key;
	if (kv_acquire_submit(cache, acquire))
		kv_waiter_wait(&waiter);
	else
		kv_acquire_touch(cache, acquire);
	r = acquire->wants[0].status;
	kv_acquire_release(cache, acquire);
	return r;
}

/* Remove every block of the space. */
static inline int kv_space_clear(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_clear *clear;
	int r = kv_clear_begin(cache, space, &clear);

	if (r < 0)
		return r;
	do
		r = kv_clear_some(cache, clear);
	while (r > 0);
	kv_clear_end(clear);
	return r;
}

#endif
