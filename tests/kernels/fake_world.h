/* SPDX-License-Identifier: Apache-2.0 */
/* fake_world.h - world.h with a pool on the fake device, and helpers that the
 * tests of the fake device share. */
#ifndef KV_TESTS_KERNELS_FAKE_WORLD_H
#define KV_TESTS_KERNELS_FAKE_WORLD_H

#include "tests/kernels/world.h"

#include "tests/kernels/fake_device.h"

/* number of blocks, 8 MiB in all, which a load layer by layer copies in two
 * steps */
#define BLOCKS 64u
#define LAST_LAYER 65535u

static struct fake_stream slow, compute;

static inline kvfs_pool *fake_pool(struct world *w)
{
	kvfs_view views[] = {
		{"k", w->memory, PAYLOAD, TENSOR, 1, 0},
		{"v", w->memory + TENSOR, PAYLOAD, TENSOR, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "fake",
		.space = w->space,
		.views = views,
		.n_views = 2,
		.pages = PAGES,
		.pages_per_block = 1,
	};
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	return pool;
}

static inline int fake_setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	memset(&fake, 0, sizeof(fake));
	memset(&slow, 0, sizeof(slow));
	memset(&compute, 0, sizeof(compute));
	fake.session = w->session;
	fake.caller = pthread_self();
	fake.held_from = fake.running_from = UINT64_MAX;
	kvfs_pool_close(w->pool);
	w->pool = fake_pool(w);
	return 0;
}

static inline int fake_teardown(void **state)
{
	struct world *w = *state;

	/* Reset the settings of the fake device, also after a test that
	 * failed. */
	fake.held_from = fake.running_from = UINT64_MAX;
	fake.saves_held = fake.saves_running = false;
	fake_device.order = fake_order;
	slow.quiet = true;
	kvfs_pool_close(kv_steal(w->pool));
	fake_assert_clean();
	world_teardown(state);
	assert_int_equal(fake.wrong, 0);
	assert_int_equal(fake.attached, 0);
	return 0;
}

static inline bool untouched(const struct world *w, size_t pages)
{
	size_t i;

	for (i = 0; i < pages * PAYLOAD; i++)
		if (w->memory[i] != 0xee)
			return false;
	return true;
}

static inline kvfs_xfer *begin_save_pages(struct world *w, uint32_t first,
					  size_t n, const int64_t *pages,
					  const kvfs_opts *opts)
{
	kvfs_key keys[PAGES];
	int64_t unused[PAGES];
	kvfs_xfer *xfer;

	world_chain(first, n, keys, unused);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, n, pages, opts, &xfer),
		0);
	return xfer;
}

/* Begin to save pages 0 .. n - 1 as blocks from number @first on. */
static inline kvfs_xfer *begin_save(struct world *w, uint32_t first, size_t n,
				    const kvfs_opts *opts)
{
	kvfs_key unused[PAGES];
	int64_t pages[PAGES];

	world_chain(first, n, unused, pages);
	return begin_save_pages(w, first, n, pages, opts);
}

/* Begin to load the saved blocks 0 .. n - 1 into clean pages. */
static inline kvfs_xfer *begin_load(struct world *w, size_t n,
				    const kvfs_opts *opts)
{
	int64_t pages[PAGES];
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	size_t i;

	lease = world_acquire(w, n, (long)n);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	for (i = 0; i < n; i++)
		pages[i] = (int64_t)i;
	assert_int_equal(kvfs_load(w->pool, lease, n, pages, opts, &xfer), 0);
	kvfs_release(lease);
	return xfer;
}

static inline void wait_until(const atomic_int *value, int wanted)
{
	int i;

	for (i = 0; i < 60000 && *value != wanted; i++)
		usleep(1000);
	assert_int_equal(*value, wanted);
}

static inline void wait_for_some(const atomic_int *value)
{
	int i;

	for (i = 0; i < 60000 && *value == 0; i++)
		usleep(1000);
	assert_true(*value > 0);
}

static inline void assert_pages_loading(struct world *w, uint64_t n)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_loading, n);
}

static inline void assert_blocks_are_there(struct world *w, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		assert_true(world_page_is(w, (int64_t)i, (uint32_t)i));
}

#endif
