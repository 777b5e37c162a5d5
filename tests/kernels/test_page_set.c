/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of pages that the engine writes: taken, sealed in place, or dropped. */
#include "tests/kernels/paged.h"

static kvfs_pages *take(kvfs_pool *pool, size_t n)
{
	kvfs_pages *pages;

	assert_int_equal(kvfs_pages_take(pool, n, &pages), 0);
	return pages;
}

static void fill(void *at, uint32_t block)
{
	size_t i;

	for (i = 0; i < PAYLOAD; i++)
		((uint8_t *)at)[i] = world_byte(block, i);
}

/* Take @n pages of the pool and write the bytes of blocks @first .. to them. */
static kvfs_pages *compute(kvfs_pool *pool, uint32_t first, size_t n)
{
	kvfs_pages *pages = take(pool, n);
	size_t i;

	for (i = 0; i < n; i++)
		fill(kvfs_pages_addr(pages, i, NULL), first + (uint32_t)i);
	return pages;
}

static int seal(struct world *w, kvfs_pages *pages, uint32_t first, size_t n,
		const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	kvfs_key keys[PAGES];
	int64_t unused[PAGES];

	world_chain(first, n, keys, unused);
	return kvfs_pages_seal(pages, w->space, keys, NULL, n, opts, ret_xfer);
}

static void wait_for(kvfs_xfer *xfer, enum kvfs_stage stage, long n)
{
	assert_int_equal(kvfs_xfer_wait(xfer, stage, LONG), n);
	kvfs_xfer_free(xfer);
}

static void what_was_sealed_is_mapped_without_a_copy(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 6, 6), *other = reserve(w, 6, 6);
	kvfs_pages *pages = compute(pool, 0, 5);
	int64_t page[5];
	kvfs_mapping *m;
	kvfs_xfer *xfer;
	size_t i;

	assert_int_equal(info_of(pool).pages_taken, 5);
	for (i = 0; i < 5; i++) {
		page[i] = kvfs_pages_page(pages, i);
		assert_ptr_equal(kvfs_pages_addr(pages, i, "v"),
				 (uint8_t *)kvfs_pages_addr(pages, i, NULL) +
					 TENSOR);
	}
	assert_int_equal(seal(w, pages, 0, 4, NULL, &xfer), 0);
	m = map(w, pool, 0, 5, 4); /* the pool has the four sealed blocks */
	for (i = 0; i < 4; i++) {
		assert_int_equal(kvfs_map_page(m, i), page[i]);
		assert_true(is_block(m, i, (uint32_t)i));
	}
	unmap(m);
	wait_for(xfer, KVFS_SEALED, 4);
	kvfs_pages_free(pages);
	wait_for_mapped(pool, 0);
	assert_int_equal(info_of(pool).pages_cached, 4);
	assert_int_equal(info_of(pool).pages_free, 2);
	assert_int_equal(slow.loads, 0);
	m = map(w, other, 0, 4, 4);
	for (i = 0; i < 4; i++)
		assert_true(is_block(m, i, (uint32_t)i));
	unmap(m);
	kvfs_pool_close(other);
	kvfs_pool_close(pool);
}

static void what_was_dropped_is_sealed_nowhere(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	kvfs_pages *pages = compute(pool, 0, 4);
	kvfs_mapping *m;

	assert_int_equal(kvfs_pages_drop(pages, NULL), 0);
	assert_int_equal(info_of(pool).pages_free, 4);
	m = map(w, pool, 0, 4, 0);
	assert_int_equal(kvfs_map_status(m, 0), -ENOENT);
	unmap(m);
	kvfs_pages_free(pages);
	kvfs_pages_free(compute(pool, 0, 4));
	assert_int_equal(info_of(pool).pages_free, 4);
	kvfs_pages_free(NULL);
	kvfs_pool_close(pool);
}

static void assert_over(struct world *w, kvfs_pages *pages)
{
	kvfs_xfer *xfer;

	assert_int_equal(seal(w, pages, 0, 1, NULL, &xfer), -EINVAL);
	assert_int_equal(kvfs_pages_drop(pages, NULL), -EINVAL);
	assert_int_equal(kvfs_pages_page(pages, 0), -EINVAL);
	assert_null(kvfs_pages_addr(pages, 0, NULL));
}

static void a_set_is_sealed_or_dropped_once(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	kvfs_pages *sealed = compute(pool, 0, 2), *dropped = take(pool, 2);
	struct kvfs_pool_info before = {.size = sizeof(before)};
	kvfs_xfer *xfer;

	assert_int_equal(seal(w, sealed, 0, 2, NULL, &xfer), 0);
	wait_for(xfer, KVFS_SEALED, 2);
	assert_int_equal(kvfs_pages_drop(dropped, NULL), 0);
	wait_for_mapped(pool, 0);
	before = info_of(pool);
	assert_over(w, sealed);
	assert_over(w, dropped);
	assert_int_equal(info_of(pool).pages_free, before.pages_free);
	assert_int_equal(info_of(pool).pages_cached, before.pages_cached);
	kvfs_pages_free(sealed);
	kvfs_pages_free(dropped);
	kvfs_pool_close(pool);
}

static void what_cannot_be_sealed_stays_taken(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	kvfs_pages *pages = compute(pool, 0, 2);
	const kvfs_key key = world_key(0), bad = {.len = 5};
	const kvfs_opts layers = {.size = sizeof(layers), .layers = 1};
	kvfs_space *other;
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_space_open(w->session, "bytes",
					 "{\"tensors\":[{\"name\":\"x\","
					 "\"dtype\":\"U8\",\"shape\":[3]}]}",
					 KVFS_CREATE, &other),
			 0);
	assert_int_equal(seal(w, NULL, 0, 2, NULL, &xfer), -EINVAL);
	assert_int_equal(seal(w, pages, 0, 3, NULL, &xfer), -EINVAL);
	assert_int_equal(seal(w, pages, 0, 2, NULL, NULL), -EINVAL);
	assert_int_equal(seal(w, pages, 0, 2, &layers, &xfer), -EINVAL);
	assert_int_equal(
		kvfs_pages_seal(pages, NULL, &key, NULL, 1, NULL, &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_pages_seal(pages, other, &key, NULL, 1, NULL, &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_pages_seal(pages, w->space, &bad, NULL, 1, NULL, &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_pages_seal(pages, w->space, NULL, NULL, 1, NULL, &xfer),
		-EINVAL);
	assert_int_equal(kvfs_pages_page(pages, 2), -EINVAL);
	assert_null(kvfs_pages_addr(pages, 2, NULL));
	assert_null(kvfs_pages_addr(pages, 0, "none"));
	assert_int_equal(info_of(pool).pages_taken, 2);
	assert_int_equal(seal(w, pages, 0, 2, NULL, &xfer), 0);
	wait_for(xfer, KVFS_SEALED, 2);
	kvfs_pages_free(pages);
	kvfs_space_close(other);
	kvfs_pool_close(pool);
}

static void pages_are_taken_all_or_none(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 6);
	kvfs_pages *pages, *more;
	kvfs_mapping *m;

	world_save(w, 3);
	assert_int_equal(kvfs_pages_take(w->pool, 1, &pages), -EINVAL);
	assert_int_equal(kvfs_pages_take(pool, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_pages_take(pool, 7, &pages), -ENOSPC);
	assert_int_equal(info_of(pool).pages_taken, 0);
	m = map(w, pool, 0, 3, 3);
	pages = take(pool, 2);
	assert_int_equal(kvfs_pages_take(pool, 2, &more), -ENOSPC);
	unmap(m);
	/* this take evicts the blocks that the pool has cached */
	more = take(pool, 4);
	kvfs_pages_free(more);
	kvfs_pages_free(pages);
	kvfs_pages_free(take(pool, 0));
	assert_int_equal(info_of(pool).pages_free, 6);
	kvfs_pool_close(pool);
}

static void a_key_that_has_a_page_keeps_it(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 6, 6);
	kvfs_pages *pages;
	kvfs_mapping *m;
	kvfs_xfer *xfer;
	int64_t page;

	world_save(w, 1);
	m = map(w, pool, 0, 1, 1);
	page = kvfs_map_page(m, 0);
	unmap(m);
	pages = compute(pool, 0, 3);
	assert_int_equal(seal(w, pages, 0, 3, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), 3);
	assert_int_equal(kvfs_xfer_status(xfer, 0), KVFS_PRESENT);
	kvfs_xfer_free(xfer);
	kvfs_pages_free(pages);
	m = map(w, pool, 0, 3, 3);
	assert_int_equal(kvfs_map_page(m, 0), page);
	wait_for_mapped(pool, 3);
	assert_int_equal(info_of(pool).pages_free, 3);
	unmap(m);
	kvfs_pool_close(pool);
}

/* Pages of a save are not reused before the save has read them. */
static void a_page_is_not_taken_before_it_was_saved(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	kvfs_pages *pages = compute(pool, 0, 2), *more;
	kvfs_xfer *xfer;

	slow_shut(true);
	assert_int_equal(seal(w, pages, 0, 2, NULL, &xfer), 0);
	kvfs_pages_free(pages);
	assert_int_equal(kvfs_pages_take(pool, 1, &more), -ENOSPC);
	slow_shut(false);
	wait_for(xfer, KVFS_SEALED, 2);
	wait_for_mapped(pool, 0);
	kvfs_pages_free(take(pool, 2));
	kvfs_pool_close(pool);
}

/* A page that a stream still writes is neither saved nor mapped. */
static void pages_are_sealed_after_the_streams_work(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 3, 3);
	struct slow_stream stream = {0};
	const kvfs_opts opts = {.size = sizeof(opts), .stream = &stream};
	kvfs_pages *pages = take(pool, 3), *more;
	uint8_t *at[3];
	kvfs_mapping *m;
	kvfs_xfer *xfer;
	size_t i;

	for (i = 0; i < 3; i++)
		at[i] = kvfs_pages_addr(pages, i, NULL);
	assert_int_equal(seal(w, pages, 0, 2, &opts, &xfer), 0);
	m = begin(w, pool, 0, 2, NULL);
	assert_int_equal(kvfs_map_wait(m, 30000000), -ETIMEDOUT);
	assert_null(kvfs_map_addr(m, 0, NULL));
	assert_int_equal(kvfs_pages_take(pool, 1, &more), -ENOSPC);
	assert_int_equal(slow.saves, 0);
	for (i = 0; i < 3; i++)
		fill(at[i], (uint32_t)i);
	stream.over = true;
	assert_int_equal(kvfs_map_wait(m, LONG), 2);
	assert_ptr_equal(kvfs_map_addr(m, 1, NULL), at[1]);
	wait_for(xfer, KVFS_SEALED, 2);
	kvfs_pages_free(pages);
	unmap(m);
	wait_for_mapped(pool, 0);
	assert_int_equal(info_of(pool).pages_cached, 2);
	assert_int_equal(info_of(pool).pages_free, 1);
	kvfs_pool_close(pool);
}

/* Dropped pages stay with the set until the stream has ended its writes. */
static void dropped_pages_are_free_after_the_streams_work(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	struct slow_stream stream = {0};
	kvfs_pages *pages = take(pool, 2), *more;
	int i;

	assert_int_equal(kvfs_pages_drop(pages, &stream), 0);
	kvfs_pages_free(pages);
	assert_int_equal(kvfs_pages_take(pool, 1, &more), -ENOSPC);
	stream.over = true;
	for (i = 0; i < 2000 && info_of(pool).pages_free < 2; i++)
		usleep(10000);
	kvfs_pages_free(take(pool, 2));
	kvfs_pool_close(pool);
}

/* The close of a pool waits for copies from its pages, but not for the
 * daemon. */
static void a_pool_is_closed_before_its_saves_are_sealed(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	kvfs_pages *pages = compute(pool, 0, 2);
	kvfs_xfer *xfer;
	int i;

	slow_shut(true);
	assert_int_equal(seal(w, pages, 0, 2, NULL, &xfer), 0);
	for (i = 0; i < 2000 && slow.saves < 1; i++)
		usleep(10000);
	world_freeze(w);
	slow_shut(false);
	kvfs_pool_close(pool);
	world_thaw(w);
	wait_for(xfer, KVFS_SEALED, 2);
}

/* Without a daemon, sealed blocks are still found in the pool. */
static void without_a_daemon_sealed_pages_are_still_hits(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	kvfs_pages *pages = compute(pool, 0, 3);
	kvfs_mapping *m;
	kvfs_xfer *xfer;

	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(seal(w, pages, 0, 3, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 2), -ENOTCONN);
	kvfs_xfer_free(xfer);
	kvfs_pages_free(pages);
	m = map(w, pool, 0, 3, 3);
	assert_true(is_block(m, 2, 2));
	unmap(m);
	wait_for_mapped(pool, 0);
	kvfs_pool_close(pool);
}

static void a_clear_forgets_what_is_being_sealed(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	kvfs_pages *pages = compute(pool, 0, 3);
	kvfs_mapping *m;
	kvfs_xfer *xfer;

	slow_shut(true);
	assert_int_equal(seal(w, pages, 0, 3, NULL, &xfer), 0);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	m = map(w, pool, 0, 3, 0);
	unmap(m);
	slow_shut(false);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), 0);
	kvfs_xfer_free(xfer);
	kvfs_pages_free(pages);
	wait_for_mapped(pool, 0);
	unmap(map(w, pool, 0, 3, 0));
	kvfs_pages_free(take(pool, 4));
	kvfs_pool_close(pool);
}

/* ---- blocks of different sizes ---- */

static void one_size(struct world *w, unsigned payload)
{
	char layout[128], name[16];
	const kvfs_key keys[] = {world_key(0), world_key(1), world_key(2)};
	kvfs_pool *pool, *other;
	kvfs_pages *pages;
	kvfs_mapping *m;
	kvfs_space *space;
	kvfs_xfer *xfer;
	size_t i;

	snprintf(name, sizeof(name), "size%u", payload);
	snprintf(layout, sizeof(layout),
		 "{\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\","
		 "\"shape\":[%u]}]}",
		 payload);
	assert_int_equal(
		kvfs_space_open(w->session, name, layout, KVFS_CREATE, &space),
		0);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", space, 3, 3, &pool), 0);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", space, 1, 3, &other), 0);
	assert_int_equal(info_of(pool).page_bytes,
			 (payload + 4095) / 4096 * 4096);
	pages = take(pool, 3);
	for (i = 0; i < 3; i++)
		memset(kvfs_pages_addr(pages, i, "a"), (int)i + 1, payload);
	assert_int_equal(
		kvfs_pages_seal(pages, space, keys, NULL, 3, NULL, &xfer), 0);
	wait_for(xfer, KVFS_SEALED, 3);
	kvfs_pages_free(pages);
	assert_int_equal(kvfs_map(other, space, keys, 3, NULL, &m), 0);
	assert_int_equal(kvfs_map_wait(m, LONG), 3);
	for (i = 0; i < 3; i++) {
		const uint8_t *at = kvfs_map_addr(m, i, "a");
		size_t k;

		/* Bytes past the end of the block are zero. */
		for (k = 0; k < info_of(other).page_bytes; k++)
			assert_int_equal(at[k], k < payload ? i + 1 : 0);
	}
	unmap(m);
	kvfs_pool_close(other);
	kvfs_pool_close(pool);
	kvfs_space_close(space);
}

static void pages_hold_blocks_of_every_size(void **state)
{
	const unsigned sizes[] = {1,	2,    63,   64,	  4095,	 4096,
				  4097, 8191, 8192, 8193, 65537, 1000003};
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(sizes); i++)
		one_size(*state, sizes[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(what_was_sealed_is_mapped_without_a_copy),
		T(what_was_dropped_is_sealed_nowhere),
		T(a_set_is_sealed_or_dropped_once),
		T(what_cannot_be_sealed_stays_taken),
		T(pages_are_taken_all_or_none),
		T(a_key_that_has_a_page_keeps_it),
		T(a_page_is_not_taken_before_it_was_saved),
		T(pages_are_sealed_after_the_streams_work),
		T(dropped_pages_are_free_after_the_streams_work),
		T(a_pool_is_closed_before_its_saves_are_sealed),
		T(without_a_daemon_sealed_pages_are_still_hits),
		T(a_clear_forgets_what_is_being_sealed),
		T(pages_hold_blocks_of_every_size),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
