/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers.h - a cache with both tiers, and spaces whose chains are saved as
 * libkvfs saves them.
 */
#ifndef KV_TESTS_CACHE_TIERS_H
#define KV_TESTS_CACHE_TIERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "cache/dram/dram.h"
#include "tests/cache/wait.h"
#include "tests/cache/check_arena.h"
#include "common/copy.h"
#include "tests/tree.h"

#define BYTES 100000u
#define PREFIX_LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[95904]}]}"
#define WINDOW_LAYOUT                                                      \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[95904]" \
	"}],\"reuse\":\"window:4\"}"

struct tiers {
	char path[64];
	struct kv_cache_config config;
	struct kv_cache *cache;
	/* space "a" of user 1: it has a layout, with "reuse": "prefix" */
	struct kv_space *space;
};

static inline struct kv_space *tiers_space(struct tiers *t, const char *name,
					   uint32_t uid, const char *layout)
{
	struct kv_space *space = kv_space_find(t->cache, name);

	if (space)
		return space;
	assert_int_equal(
		kv_space_create(t->cache, name, uid, uid, 0755, &space), 0);
	if (layout)
		assert_int_equal(kv_space_set_layout(t->cache, space, 0, layout,
						     strlen(layout)),
				 0);
	return space;
}

static inline void tiers_open(struct tiers *t)
{
	char *why = NULL;
	int r = kv_cache_open(&t->config, &t->cache, &why);

	if (r < 0)
		print_error("%s\n", why ? why : "?");
	assert_int_equal(r, 0);
	t->space = tiers_space(t, "a", 1, PREFIX_LAYOUT);
}

static inline void tiers_reopen(struct tiers *t)
{
	kv_cache_close(t->cache);
	tiers_open(t);
}

/* Open a new store without an SSD tier. */
static inline void tiers_without_ssd(struct tiers *t)
{
	kv_cache_close(t->cache);
	tree_remove(t->path);
	assert_int_equal(mkdir(t->path, 0700), 0);
	t->config.ssd = 0;
	tiers_open(t);
}

static inline int tiers_set_up(void **state)
{
	struct tiers *t = calloc(1, sizeof(*t));

	strcpy(t->path, "kvfs-test-XXXXXX");
	assert_non_null(mkdtemp(t->path));
	t->config.store = t->path;
	t->config.dram = 64 << 20;
	t->config.ssd = 128 << 20;
	t->config.ssd_given = true;
	t->config.segment = 8 << 20;
	t->config.evict = "lru";
	tiers_open(t);
	*state = t;
	return 0;
}

static inline int tiers_tear_down(void **state)
{
	struct tiers *t = *state;

	kv_lock(t->cache);
	kv_arena_check_locked(t->cache);
	kv_unlock(t->cache);
	kv_cache_close(t->cache);
	tree_remove(t->path);
	free(t);
	return 0;
}

/* Return the key of block @position of chain @chain. */
static inline struct kv_key tiers_key(unsigned chain, unsigned position)
{
	struct kv_key key = {.len = 16};

	memcpy(key.b + 4, &chain, sizeof(chain));
	memcpy(key.b + 8, &position, sizeof(position));
	key.b[0] = (uint8_t)(position * 7 + chain);
	return key;
}

static inline int tiers_begin(struct tiers *t, struct kv_space *space,
			      unsigned chain, unsigned position,
			      struct kv_fill **ret_fill)
{
	struct kv_key key = tiers_key(chain, position);
	int r;

	/* The arena grows in the background: try again. */
	while ((r = kv_fill_begin(t->cache, space, &key, BYTES, ret_fill)) ==
	       -EBUSY)
		usleep(1000);
	return r;
}

static inline int tiers_seal(struct tiers *t, struct kv_fill *fill,
			     unsigned chain, unsigned position)
{
	struct kv_key key = tiers_key(chain, position);
	struct kv_meta meta = {.position = position, .mtime_ns = 77};
	struct kv_digest digest;

	if (position)
		meta.parent = tiers_key(chain, position - 1);
	memset(kv_fill_data(fill), (int)(chain + position), BYTES);
	digest = kv_digest_of(kv_fill_data(fill), BYTES);
	return kv_fill_seal(t->cache, fill, &key, &meta, 4096, &digest);
}

static inline int tiers_save(struct tiers *t, struct kv_space *space,
			     unsigned chain, unsigned position)
{
	struct kv_fill *fill;
	int r = tiers_begin(t, space, chain, position, &fill);

	return r < 0 ? r : tiers_seal(t, fill, chain, position);
}

/* Save a block; wait for room as a client does. */
static inline void tiers_must_save(struct tiers *t, struct kv_space *space,
				   unsigned chain, unsigned position)
{
	int r;

	while ((r = tiers_save(t, space, chain, position)) == -ENOSPC)
		usleep(1000);
	assert_int_equal(r, 0);
}

static inline struct kv_block *tiers_get(struct tiers *t,
					 struct kv_space *space, unsigned chain,
					 unsigned position)
{
	struct kv_key key = tiers_key(chain, position);
	struct kv_block *block;

	return kv_block_get(t->cache, space, &key, &block) == 0 ? block : NULL;
}

/* Return the KV_TIER_* flags of a block; 0: the cache does not have it. */
static inline unsigned tiers_of(struct tiers *t, struct kv_space *space,
				unsigned chain, unsigned position)
{
	struct kv_block *block = tiers_get(t, space, chain, position);
	unsigned tiers = 0;

	if (block) {
		tiers = kv_block_stat(t->cache, block).tiers;
		kv_block_put(t->cache, block);
	}
	return tiers;
}

static inline struct kv_cache_stats tiers_stats(struct tiers *t)
{
	struct kv_cache_stats stats;

	kv_cache_stats(t->cache, &stats);
	return stats;
}

/* Wait until all blocks that the writer may write are on SSD. */
static inline void tiers_quiet(struct tiers *t)
{
	while (tiers_stats(t).dirty_blocks)
		usleep(1000);
}

static inline void tiers_wake(struct kv_acquire *acquire, void *arg)
{
	(void)acquire;
	kv_waiter_wake(arg);
}

/* Prepare an acquire of @n blocks of a chain, to be submitted.  The
 * acquire wakes @waiter when it has settled. */
static inline struct kv_acquire *tiers_acquire_new(struct kv_space *space,
						   unsigned chain, unsigned n,
						   struct kv_waiter *waiter)
{
	struct kv_acquire *acquire =
		calloc(1, sizeof(*acquire) + n * sizeof(struct kv_want));

	acquire->space = space;
	acquire->n = n;
	acquire->done = tiers_wake;
	acquire->arg = waiter;
	for (unsigned i = 0; i < n; i++)
		acquire->wants[i].key = tiers_key(chain, i);
	return acquire;
}

/* Acquire @n blocks of a chain; the caller releases and frees. */
static inline struct kv_acquire *tiers_acquire(struct tiers *t,
					       struct kv_space *space,
					       unsigned chain, unsigned n)
{
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_acquire *acquire =
		tiers_acquire_new(space, chain, n, &waiter);

	if (kv_acquire_submit(t->cache, acquire))
		kv_waiter_wait(&waiter);
	else
		kv_acquire_touch(t->cache, acquire);
	return acquire;
}

static inline void tiers_release(struct tiers *t, struct kv_acquire *acquire)
{
	kv_acquire_release(t->cache, acquire);
	free(acquire);
}

/* Acquire the first @n blocks of a chain, and release them.  Return how many
 * could be leased. */
static inline unsigned tiers_use(struct tiers *t, struct kv_space *space,
				 unsigned chain, unsigned n)
{
	struct kv_acquire *acquire = tiers_acquire(t, space, chain, n);
	unsigned hits = 0;

	while (hits < n && acquire->wants[hits].status == 0)
		hits++;
	tiers_release(t, acquire);
	return hits;
}

/* Drop the first blocks of a chain from DRAM; they stay on SSD. */
static inline void tiers_demote(struct tiers *t, struct kv_space *space,
				unsigned chain, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct kv_block *block = tiers_get(t, space, chain, i);

		assert_non_null(block);
		assert_int_equal(kv_block_demote(t->cache, block), 0);
		kv_block_put(t->cache, block);
	}
}

#define TEST(t) \
	cmocka_unit_test_setup_teardown(t, tiers_set_up, tiers_tear_down)

#endif
