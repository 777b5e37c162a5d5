/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of blocks to pages of a paged pool: a block has one page, kept while the
 * block is used. */
#include "tests/kernels/paged.h"

/* ---- paged pools ---- */

static void pools_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_space *untyped;
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_reserve(NULL, "host", w->space, 1, 1, &pool),
			 -EINVAL);
	assert_int_equal(
		kvfs_pool_reserve(w->session, NULL, w->space, 1, 1, &pool),
		-EINVAL);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", NULL, 1, 1, &pool),
		-EINVAL);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", w->space, 0, 1, &pool),
		-EINVAL);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", w->space, 2, 1, &pool),
		-EINVAL);
	assert_int_equal(kvfs_pool_reserve(w->session, "host", w->space, 1,
					   UINT64_MAX / 2, &pool),
			 -EINVAL);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", w->space, 1, 1, NULL),
		-EINVAL);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "tape", w->space, 1, 1, &pool),
		-ENODEV);
	/* Ask for a pool of more memory than any machine has. */
	assert_int_equal(kvfs_pool_reserve(w->session, "host", w->space,
					   UINT32_MAX, UINT32_MAX, &pool),
			 -ENOMEM);
	assert_int_equal(kvfs_space_open(w->session, "untyped", NULL,
					 KVFS_CREATE, &untyped),
			 0);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", untyped, 1, 1, &pool),
		-EMEDIUMTYPE);
	kvfs_space_close(untyped);
}

static void a_pool_tells_what_it_has(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 3, 5);
	struct kvfs_pool_info info = info_of(pool);

	assert_non_null(info.base);
	assert_int_equal(info.page_bytes, PAYLOAD);
	assert_int_equal(info.pages, 3);
	assert_int_equal(info.pages_max, 5);
	assert_int_equal(info.pages_free, 3);
	assert_int_equal(info_of(w->pool).page_bytes, 0);
	kvfs_pool_close(pool);
}

static void a_loads_pages_are_not_the_callers_to_name(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	const kvfs_key key = world_key(0);
	const int64_t page = 0, none = -1;
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 1);
	lease = world_acquire(w, 1, 1);
	assert_int_equal(kvfs_load(pool, lease, 1, &page, NULL, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_load(pool, lease, 1, &none, NULL, &xfer),
			 -EINVAL);
	assert_int_equal(
		kvfs_save(pool, w->space, &key, NULL, 1, &page, NULL, &xfer),
		-EINVAL);
	kvfs_release(lease);
	kvfs_pool_close(pool);
}

static kvfs_xfer *begin_save_must(struct world *w, const kvfs_key *keys,
				  size_t n)
{
	const kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_MUST};
	int64_t pages[PAGES];
	kvfs_xfer *xfer;

	for (size_t i = 0; i < n; i++)
		pages[i] = (int64_t)i;
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, n, pages,
				   &opts, &xfer),
			 0);
	return xfer;
}

/* DRAM has 64 MiB, room for half of the blocks. */
static void more_than_dram_holds_is_mapped(void **state)
{
	struct world *w = *state;
	const uint32_t n = 900;
	kvfs_pool *pool = reserve(w, n, n);
	kvfs_key *keys = calloc(n, sizeof(*keys));
	kvfs_mapping *m;
	kvfs_xfer *xfer;

	for (uint32_t i = 0; i < n; i += 100) {
		for (uint32_t k = 0; k < 100; k++) {
			keys[i + k] = world_key(i + k);
			world_fill(w, k, i + k);
		}
		xfer = begin_save_must(w, keys + i, 100);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), 100);
		kvfs_xfer_free(xfer);
	}
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, LONG), 1);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_map(pool, w->space, keys, n, NULL, &m), 0);
	assert_int_equal(kvfs_map_wait(m, 3 * LONG), n);
	for (uint32_t i = 0; i < n; i++)
		assert_true(is_block(m, i, i));
	unmap(m);
	/* Close the pool while most blocks of the map are still being
	 * loaded. */
	assert_int_equal(kvfs_evict(w->space, keys, 1, NULL), 1);
	kvfs_pool_close(pool);
	pool = reserve(w, n, n);
	assert_int_equal(kvfs_map(pool, w->space, keys + 1, n - 1, NULL, &m),
			 0);
	kvfs_pool_close(pool);
	free(keys);
}

static void staging_is_made_as_large_as_was_asked(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	const uint64_t all = (uint64_t)96 << 20;
	int i;

	world_save(w, 3);
	assert_int_equal(kvfs_pool_staging(NULL, 1, 1), -EINVAL);
	assert_int_equal(kvfs_pool_staging(pool, 0, 1), -EINVAL);
	assert_int_equal(kvfs_pool_staging(pool, 1, 0), -EINVAL);
	assert_int_equal(kvfs_pool_staging(pool, UINT64_MAX, 2), -EINVAL);
	assert_int_equal(kvfs_pool_staging(pool, UINT64_MAX / 2, 1), -ENOMEM);
	assert_int_equal(kvfs_pool_staging(pool, all / 4, 4), 0);
	for (i = 0; i < 2000 && info_of(pool).bytes_staging < all; i++)
		usleep(10000);
	assert_true(info_of(pool).bytes_staging >= all);
	world_save(w, 3);
	assert_true(info_of(w->pool).bytes_staging >= all);
	kvfs_pool_close(pool);
}

/* ---- maps of blocks to pages ---- */

static void maps_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	const kvfs_key key = world_key(0), bad = {.len = 20};
	kvfs_opts opts = {.size = sizeof(opts)};
	kvfs_mapping *m;
	kvfs_space *other;
	int at;

	assert_int_equal(kvfs_map(NULL, w->space, &key, 1, NULL, &m), -EINVAL);
	assert_int_equal(kvfs_map(w->pool, w->space, &key, 1, NULL, &m),
			 -EINVAL);
	assert_int_equal(kvfs_map(pool, NULL, &key, 1, NULL, &m), -EINVAL);
	assert_int_equal(kvfs_map(pool, w->space, NULL, 1, NULL, &m), -EINVAL);
	assert_int_equal(kvfs_map(pool, w->space, &bad, 1, NULL, &m), -EINVAL);
	assert_int_equal(kvfs_map(pool, w->space, &key, 1, NULL, NULL),
			 -EINVAL);
	opts = (kvfs_opts){.size = sizeof(kvfs_opts), .layers = 1};
	assert_int_equal(kvfs_map(pool, w->space, &key, 1, &opts, &m), -EINVAL);
	opts = (kvfs_opts){.size = sizeof(kvfs_opts), .flags = KVFS_MUST};
	assert_int_equal(kvfs_map(pool, w->space, &key, 1, &opts, &m), -EINVAL);
	opts = (kvfs_opts){
		.size = sizeof(kvfs_opts), .stream = &at, .event = &at};
	assert_int_equal(kvfs_map(pool, w->space, &key, 1, &opts, &m), -EINVAL);
	assert_int_equal(kvfs_space_open(w->session, "bytes",
					 "{\"tensors\":[{\"name\":\"x\","
					 "\"dtype\":\"U8\",\"shape\":[3]}]}",
					 KVFS_CREATE, &other),
			 0);
	assert_int_equal(kvfs_map(pool, other, &key, 1, NULL, &m), -EINVAL);
	kvfs_space_close(other);
	assert_int_equal(kvfs_map(pool, w->space, NULL, 0, NULL, &m), 0);
	assert_int_equal(kvfs_map_wait(m, 0), 0);
	assert_int_equal(kvfs_map_status(m, 0), -EINVAL);
	assert_int_equal(kvfs_map_page(m, 0), -EINVAL);
	assert_null(kvfs_map_addr(m, 0, NULL));
	unmap(m);
	assert_int_equal(kvfs_map_status(NULL, 0), -EINVAL);
	assert_int_equal(kvfs_unmap(NULL, NULL), 0);
	assert_int_equal(info_of(pool).pages_free, 2);
	kvfs_pool_close(pool);
}

/* One block has one page: the second map sees bytes that were written to the
 * page after the first map, since nothing is copied again. */
static void a_chain_mapped_twice_is_copied_once(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 20, 20);
	struct kvfs_pool_info info = info_of(pool);
	kvfs_mapping *a, *b;
	uint8_t *at;
	size_t i;

	world_save(w, 20);
	a = map(w, pool, 0, 20, 20);
	assert_int_equal(slow.loads, 20);
	for (i = 0; i < 20; i++) {
		at = kvfs_map_addr(a, i, NULL);
		assert_true(world_is(at, (uint32_t)i));
		assert_ptr_equal(at, (uint8_t *)info.base +
					     (uint64_t)kvfs_map_page(a, i) *
						     info.page_bytes);
		assert_ptr_equal(kvfs_map_addr(a, i, "k"), at);
		assert_ptr_equal(kvfs_map_addr(a, i, "v"), at + TENSOR);
		assert_null(kvfs_map_addr(a, i, "w"));
		at[5] ^= 0xff;
	}
	b = map(w, pool, 0, 20, 20);
	assert_int_equal(slow.loads, 20);
	for (i = 0; i < 20; i++) {
		assert_int_equal(kvfs_map_page(a, i), kvfs_map_page(b, i));
		at = kvfs_map_addr(b, i, NULL);
		assert_int_equal(at[5], (uint8_t)~world_byte((uint32_t)i, 5));
	}
	unmap(a);
	assert_int_equal(info_of(pool).pages_mapped, 20);
	assert_ptr_equal(kvfs_map_addr(b, 19, NULL), at);
	unmap(b);
	assert_int_equal(info_of(pool).pages_cached, 20);
	kvfs_pool_close(pool);
}

static void one_key_twice_in_a_map_is_one_page(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	const kvfs_key keys[] = {world_key(1), world_key(0), world_key(1)};
	kvfs_mapping *m;

	world_save(w, 2);
	assert_int_equal(kvfs_map(pool, w->space, keys, 3, NULL, &m), 0);
	assert_int_equal(kvfs_map_wait(m, LONG), 3);
	assert_int_equal(kvfs_map_page(m, 0), kvfs_map_page(m, 2));
	assert_int_equal(info_of(pool).pages_mapped, 2);
	assert_int_equal(slow.loads, 2);
	unmap(m);
	assert_int_equal(info_of(pool).pages_mapped, 0);
	kvfs_pool_close(pool);
}

/* A map returns no address before its bytes are loaded. */
static void a_block_under_way_is_joined_and_not_shown(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 8, 8);
	kvfs_mapping *a, *b;
	size_t i;

	world_save(w, 8);
	slow_shut(true);
	a = begin(w, pool, 0, 6, NULL);
	b = begin(w, pool, 2, 6, NULL);
	assert_int_equal(kvfs_map_poll(a), 0);
	assert_int_equal(kvfs_map_wait(b, 1000000), -ETIMEDOUT);
	for (i = 0; i < 6; i++) {
		assert_int_equal(kvfs_map_status(b, i), -EINPROGRESS);
		assert_int_equal(kvfs_map_page(b, i), -EINPROGRESS);
		assert_null(kvfs_map_addr(b, i, NULL));
	}
	assert_int_equal(info_of(pool).pages_mapped, 8);
	slow_shut(false);
	assert_int_equal(kvfs_map_wait(b, LONG), 6);
	assert_int_equal(kvfs_map_wait(a, LONG), 6);
	assert_int_equal(slow.loads, 8);
	for (i = 0; i < 6; i++) {
		assert_true(is_block(a, i, (uint32_t)i));
		assert_true(is_block(b, i, (uint32_t)i + 2));
	}
	unmap(a);
	unmap(b);
	kvfs_pool_close(pool);
}

static void the_page_unmapped_for_longest_goes_first(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 3, 3);
	uint32_t i;

	world_save(w, 4);
	for (i = 0; i < 3; i++)
		unmap(map(w, pool, i, 1, 1));
	unmap(map(w, pool, 0, 1, 1));
	assert_int_equal(slow.loads, 3);
	/* block 3 gets the page of block 1, which was unmapped first */
	unmap(map(w, pool, 3, 1, 1));
	unmap(map(w, pool, 2, 1, 1));
	unmap(map(w, pool, 0, 1, 1));
	assert_int_equal(slow.loads, 4);
	unmap(map(w, pool, 1, 1, 1));
	assert_int_equal(slow.loads, 5);
	kvfs_pool_close(pool);
}

static void of_a_chain_the_end_goes_first(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 3, 3);

	world_save(w, 4);
	unmap(map(w, pool, 0, 3, 3));
	/* block 3 gets the page of block 2, the end of the chain */
	unmap(map(w, pool, 3, 1, 1));
	unmap(map(w, pool, 0, 2, 2));
	assert_int_equal(slow.loads, 4);
	kvfs_pool_close(pool);
}

static void a_map_gives_up_others_blocks_before_its_own(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	uint32_t i;

	world_save(w, 6);
	for (i = 2; i < 6; i++)
		unmap(map(w, pool, i, 1, 1));
	/* The map of blocks 0 to 2 reuses the page of block 2, although it was
	 * unmapped first. */
	unmap(map(w, pool, 0, 3, 3));
	assert_int_equal(slow.loads, 6);
	kvfs_pool_close(pool);
}

/* A map of more blocks than the pool has pages gets pages for a prefix. */
static void a_pool_smaller_than_the_prompt_has_its_prefix(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 5, 5);
	kvfs_mapping *m;
	size_t i;

	world_save(w, 12);
	/* without the first block the last blocks are useless */
	m = map(w, pool, 7, 5, 5);
	unmap(m);
	m = map(w, pool, 0, 12, 5);
	for (i = 0; i < 12; i++) {
		assert_int_equal(kvfs_map_status(m, i), i < 5 ? 0 : -ENOSPC);
		assert_int_equal(kvfs_map_page(m, i) < 0, i >= 5);
		assert_true((kvfs_map_addr(m, i, NULL) == NULL) == (i >= 5));
		if (i < 5)
			assert_true(is_block(m, i, (uint32_t)i));
	}
	unmap(m);
	assert_int_equal(info_of(pool).pages_cached, 5);
	m = map(w, pool, 7, 5, 5);
	for (i = 0; i < 5; i++)
		assert_true(is_block(m, i, 7 + (uint32_t)i));
	unmap(m);
	kvfs_pool_close(pool);
}

static void half_mapped_requests_leave_room_when_unmapped(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 8, 8);
	kvfs_mapping *a, *b;
	kvfs_pages *taken;
	int i;

	world_save(w, 20);
	for (i = 0; i < 50; i++) {
		a = map(w, pool, 0, 5, 5);
		b = map(w, pool, 10, 10, 3);
		assert_int_equal(kvfs_pages_take(pool, 1, &taken), -ENOSPC);
		unmap(a);
		a = map(w, pool, 0, 5, 5);
		unmap(b);
		b = map(w, pool, 13, 7, 3);
		unmap(a);
		unmap(b);
		assert_int_equal(info_of(pool).pages_mapped, 0);
	}
	kvfs_pool_close(pool);
}

/* A block that is not in the cache takes no page. */
static void an_absent_block_takes_no_page(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	kvfs_mapping *m;
	size_t i;

	world_save(w, 4);
	unmap(map(w, pool, 0, 4, 4));
	m = map(w, pool, 100, 50, 0);
	for (i = 0; i < 50; i++)
		assert_int_equal(kvfs_map_status(m, i), -ENOENT);
	unmap(m);
	unmap(map(w, pool, 0, 4, 4));
	assert_int_equal(slow.loads, 4);
	kvfs_pool_close(pool);
}

static void a_pool_grows_while_it_is_mapped(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 1, 40);
	const void *base = info_of(pool).base;
	kvfs_mapping *m[20];
	const void *at[20];
	size_t i;

	world_save(w, 40);
	for (i = 0; i < 20; i++) {
		m[i] = map(w, pool, 2 * (uint32_t)i, 2, 2);
		at[i] = kvfs_map_addr(m[i], 1, NULL);
	}
	assert_int_equal(info_of(pool).pages, 40);
	assert_ptr_equal(info_of(pool).base, base);
	for (i = 0; i < 20; i++) {
		assert_ptr_equal(kvfs_map_addr(m[i], 1, NULL), at[i]);
		assert_true(is_block(m[i], 0, 2 * (uint32_t)i));
		assert_true(is_block(m[i], 1, 2 * (uint32_t)i + 1));
		unmap(m[i]);
	}
	kvfs_pool_close(pool);
}

static void a_pool_that_cannot_grow_goes_on_with_what_it_has(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 10), *none;
	kvfs_mapping *m;

	world_save(w, 6);
	slow.full = true;
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", w->space, 1, 1, &none),
		-ENOMEM);
	m = map(w, pool, 0, 6, 2);
	assert_int_equal(kvfs_map_status(m, 2), -ENOSPC);
	slow.full = false;
	unmap(m);
	unmap(map(w, pool, 0, 6, 6));
	assert_int_equal(info_of(pool).pages, 6);
	kvfs_pool_close(pool);
}

static void one_key_in_two_spaces_is_two_pages(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	const kvfs_key key = world_key(0);
	const int64_t page = 9;
	kvfs_mapping *a, *b;
	kvfs_space *other;
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_space_open(w->session, "twin", WORLD_LAYOUT,
					 KVFS_CREATE, &other),
			 0);
	world_save(w, 1);
	world_fill(w, page, 77);
	assert_int_equal(
		kvfs_save(w->pool, other, &key, NULL, 1, &page, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), 1);
	kvfs_xfer_free(xfer);
	a = map(w, pool, 0, 1, 1);
	assert_int_equal(kvfs_map(pool, other, &key, 1, NULL, &b), 0);
	assert_int_equal(kvfs_map_wait(b, LONG), 1);
	assert_true(is_block(a, 0, 0));
	assert_true(is_block(b, 0, 77));
	unmap(a);
	unmap(b);
	kvfs_pool_close(pool);
	kvfs_space_close(other);
}

/* A page stays usable after its block was evicted, but not after a clear of the
 * space. */
static void eviction_leaves_pages_and_a_clear_does_not(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	const kvfs_key key = world_key(0);
	kvfs_mapping *a, *b;

	world_save(w, 2);
	unmap(map(w, pool, 0, 2, 2));
	assert_int_equal(kvfs_evict(w->space, &key, 1, NULL), 1);
	a = map(w, pool, 0, 2, 2);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	b = map(w, pool, 0, 2, 0);
	assert_int_equal(kvfs_map_status(b, 1), -ENOENT);
	assert_true(is_block(a, 1, 1));
	unmap(a);
	unmap(b);
	assert_int_equal(info_of(pool).pages_free, 4);
	world_save(w, 2);
	b = map(w, pool, 0, 2, 2);
	assert_true(is_block(b, 0, 0));
	assert_int_equal(slow.loads, 4);
	unmap(b);
	kvfs_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(pools_that_cannot_be_are_refused),
		T(a_pool_tells_what_it_has),
		T(a_loads_pages_are_not_the_callers_to_name),
		T(staging_is_made_as_large_as_was_asked),
		T(more_than_dram_holds_is_mapped),
		T(maps_that_cannot_be_are_refused),
		T(a_chain_mapped_twice_is_copied_once),
		T(one_key_twice_in_a_map_is_one_page),
		T(a_block_under_way_is_joined_and_not_shown),
		T(the_page_unmapped_for_longest_goes_first),
		T(of_a_chain_the_end_goes_first),
		T(a_map_gives_up_others_blocks_before_its_own),
		T(a_pool_smaller_than_the_prompt_has_its_prefix),
		T(half_mapped_requests_leave_room_when_unmapped),
		T(an_absent_block_takes_no_page),
		T(a_pool_grows_while_it_is_mapped),
		T(a_pool_that_cannot_grow_goes_on_with_what_it_has),
		T(one_key_in_two_spaces_is_two_pages),
		T(eviction_leaves_pages_and_a_clear_does_not),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
