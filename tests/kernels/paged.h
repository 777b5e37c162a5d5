/* SPDX-License-Identifier: Apache-2.0 */
/* paged.h - a world with a slow device, and paged pools in it.
 */
#ifndef KV_TESTS_KERNELS_PAGED_H
#define KV_TESTS_KERNELS_PAGED_H

#include "tests/kernels/slow.h"
#include "tests/kernels/world.h"

#define LONG (20 * SECOND)

static inline kvfs_pool *reserve(struct world *w, uint64_t pages, uint64_t max)
{
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_reserve(w->session, "host", w->space, pages,
					   max, &pool),
			 0);
	return pool;
}

static inline struct kvfs_pool_info info_of(kvfs_pool *pool)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(pool, &info), 0);
	assert_int_equal(info.pages_free + info.pages_cached +
				 info.pages_mapped + info.pages_taken,
			 info.pages);
	return info;
}

/* Wait until @n pages are mapped: pages of cancelled maps are given back when
 * their copies end. */
static inline void wait_for_mapped(kvfs_pool *pool, uint64_t n)
{
	int i;

	for (i = 0; i < 2000 && info_of(pool).pages_mapped != n; i++)
		usleep(10000);
	assert_int_equal(info_of(pool).pages_mapped, n);
}

/* Begin to map blocks @first .. @first + @n - 1 of the test's space. */
static inline kvfs_mapping *begin(struct world *w, kvfs_pool *pool,
				  uint32_t first, size_t n,
				  const kvfs_opts *opts)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_mapping *map;

	world_chain(first, n, keys, pages);
	assert_int_equal(kvfs_map(pool, w->space, keys, n, opts, &map), 0);
	return map;
}

static inline kvfs_mapping *map(struct world *w, kvfs_pool *pool,
				uint32_t first, size_t n, long there)
{
	kvfs_mapping *m = begin(w, pool, first, n, NULL);

	assert_int_equal(kvfs_map_wait(m, LONG), there);
	assert_int_equal(kvfs_map_poll(m), 1);
	return m;
}

static inline void unmap(kvfs_mapping *m)
{
	assert_int_equal(kvfs_unmap(m, NULL), 0);
}

static inline bool is_block(kvfs_mapping *m, size_t i, uint32_t block)
{
	const uint8_t *at = kvfs_map_addr(m, i, NULL);

	return at != NULL && world_is(at, block);
}

static inline void wait_for_loads(size_t n)
{
	int i;

	for (i = 0; i < 2000 && slow.loads < n; i++)
		usleep(10000);
	assert_true(slow.loads >= n);
}

static inline int setup(void **state)
{
	slow_shut(false);
	slow.fail = 0;
	slow.full = slow.kept = false;
	slow_default.over = true;
	slow.loads = slow.saves = 0;
	return world_setup(state);
}

static inline int setup_plain(void **state)
{
	slow.plain = true;
	return setup(state);
}

static inline int teardown_plain(void **state)
{
	slow.plain = false;
	return world_teardown(state);
}

/* Check that no page is mapped and the device has no event wait left. */
static inline int teardown(void **state)
{
	int r;

	slow_shut(false);
	slow_default.over = true;
	r = world_teardown(state);
	assert_int_equal(slow.event_waits, 0);
	return r;
}

#endif
