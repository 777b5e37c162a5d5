/* SPDX-License-Identifier: Apache-2.0 */
/* Loads: the destination of each byte, and pages that stay unchanged. */
#include "tests/kernels/world.h"

static bool page_untouched(const struct world *w, int64_t page)
{
	const uint8_t *at = w->memory + (size_t)page * PAYLOAD;
	size_t i;

	for (i = 0; i < PAYLOAD; i++)
		if (at[i] != 0xee)
			return false;
	return true;
}

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	int64_t pages[2] = {0, PAGES};
	kvfs_opts beyond = {.size = sizeof(beyond), .first = 1};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 2);
	lease = world_acquire(w, 2, 2);
	assert_int_equal(kvfs_load(NULL, lease, 1, pages, NULL, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_load(w->pool, NULL, 1, pages, NULL, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_load(w->pool, lease, 1, NULL, NULL, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_load(w->pool, lease, 1, pages, NULL, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_load(w->pool, lease, 2, pages, NULL, &xfer),
			 -EINVAL);
	pages[1] = -2;
	assert_int_equal(kvfs_load(w->pool, lease, 2, pages, NULL, &xfer),
			 -EINVAL);
	pages[1] = 0;
	assert_int_equal(kvfs_load(w->pool, lease, 2, pages, NULL, &xfer),
			 -EINVAL);
	pages[1] = 1;
	assert_int_equal(kvfs_load(w->pool, lease, 3, pages, NULL, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_load(w->pool, lease, 2, pages, &beyond, &xfer),
			 -EINVAL);
	/* A refused call does not make the next call fail. */
	assert_int_equal(kvfs_load(w->pool, lease, 2, pages, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER), 2);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
}

static void a_block_that_is_not_held_leaves_its_page_alone(void **state)
{
	struct world *w = *state;
	int64_t pages[3] = {10, 11, 12};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 2);
	lease = world_acquire(w, 3, 2);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	assert_int_equal(kvfs_load(w->pool, lease, 3, pages, NULL, &xfer), 0);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER), 2);
	assert_int_equal(kvfs_xfer_status(xfer, 2), -ENOENT);
	assert_true(world_page_is(w, 10, 0));
	assert_true(world_page_is(w, 11, 1));
	assert_true(page_untouched(w, 12));
	kvfs_xfer_free(xfer);
}

static void every_block_comes_back_as_it_was_saved(void **state)
{
	struct world *w = *state;
	int64_t pages[200];
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	int i;

	world_save(w, 200);
	lease = world_acquire(w, 200, 200);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	for (i = 0; i < 200; i++)
		pages[i] = PAGES - 1 - i;
	assert_int_equal(kvfs_load(w->pool, lease, 200, pages, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER), 200);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_DURABLE), 1);
	for (i = 0; i < 200; i++) {
		assert_int_equal(kvfs_xfer_status(xfer, (size_t)i), 0);
		assert_true(world_page_is(w, pages[i], (uint32_t)i));
	}
	for (i = 0; i < PAGES - 200; i++)
		assert_true(page_untouched(w, i));
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_loading, 0);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
}

static void a_part_of_a_lease_can_be_loaded_and_pages_skipped(void **state)
{
	struct world *w = *state;
	int64_t pages[3] = {5, -1, 0};
	kvfs_opts opts = {.size = sizeof(opts), .first = 4};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 8);
	lease = world_acquire(w, 8, 8);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	assert_int_equal(kvfs_load(w->pool, lease, 3, pages, &opts, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER), 3);
	assert_true(world_page_is(w, 5, 4));
	assert_true(world_page_is(w, 0, 6));
	assert_true(page_untouched(w, 4));
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
}

/* After a cancel, a page has either its block or its old bytes, and is
 * not written once the load says COPIED. */
static void a_cancelled_load_touches_nothing_after_copied(void **state)
{
	struct world *w = *state;
	int64_t pages[200];
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	int i, s;

	world_save(w, 200);
	lease = world_acquire(w, 200, 200);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	for (i = 0; i < 200; i++)
		pages[i] = i;
	assert_int_equal(kvfs_load(w->pool, lease, 200, pages, NULL, &xfer), 0);
	kvfs_xfer_cancel(xfer);
	kvfs_release(lease);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER) >= 0);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_loading, 0);
	for (i = 0; i < 200; i++) {
		s = kvfs_xfer_status(xfer, (size_t)i);
		assert_true(s == 0 || s == -ECANCELED);
		assert_true(s == 0 ? world_page_is(w, i, (uint32_t)i)
				   : page_untouched(w, i));
	}
	kvfs_xfer_free(xfer);
}

/* Two loads on different pages: when one ends, only its pages are no longer
 * counted. */
static void loads_under_way_are_counted_not_flagged(void **state)
{
	struct world *w = *state;
	int64_t pages[200];
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_lease *lease;
	kvfs_xfer *a, *b;
	int i;

	world_save(w, 100);
	lease = world_acquire(w, 100, 100);
	for (i = 0; i < 200; i++)
		pages[i] = i;
	assert_int_equal(kvfs_load(w->pool, lease, 100, pages, NULL, &a), 0);
	assert_int_equal(kvfs_load(w->pool, lease, 100, pages + 100, NULL, &b),
			 0);
	assert_int_equal(kvfs_xfer_wait(a, KVFS_COPIED, KVFS_FOREVER), 100);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_true(info.pages_loading == 100 || info.pages_loading == 0);
	assert_int_equal(kvfs_xfer_wait(b, KVFS_COPIED, KVFS_FOREVER), 100);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_loading, 0);
	kvfs_xfer_free(a);
	kvfs_xfer_free(b);
	kvfs_release(lease);
}

/* A load begins before its lease settles, and no thread waits for it. */
static void a_load_begins_by_itself_when_its_lease_settles(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	int64_t page = 7;
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 1);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, NULL, &xfer), 0);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 10 * SECOND), 1);
	assert_true(world_page_is(w, 7, 0));
	kvfs_xfer_free(xfer);
}

static void blocks_of_another_layout_are_not_loaded(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query;
	int64_t page = 0;
	kvfs_view view = {"x", w->memory, PAYLOAD, PAYLOAD, 1, 0};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.views = &view,
		.n_views = 1,
		.pages = PAGES,
		.pages_per_block = 1,
	};
	kvfs_space *other;
	kvfs_lease *lease;
	kvfs_pool *pool;
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_space_open(w->session, "whole",
					 "{\"tensors\":[{\"name\":\"x\","
					 "\"dtype\":\"U8\",\"shape\":[131072]}"
					 "]}",
					 KVFS_CREATE, &other),
			 0);
	desc.space = other;
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	assert_int_equal(
		kvfs_save(pool, other, &key, NULL, 1, &page, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 10 * SECOND), 1);
	kvfs_xfer_free(xfer);
	query = (kvfs_query){other, &key, 1};
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = SECOND), &lease),
		0);
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 10 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -EBADMSG);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	kvfs_pool_close(pool);
	kvfs_space_close(other);
}

static void a_pool_is_closed_only_when_its_loads_are_done(void **state)
{
	struct world *w = *state;
	int64_t pages[100];
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	int i;

	world_save(w, 100);
	lease = world_acquire(w, 100, 100);
	for (i = 0; i < 100; i++)
		pages[i] = i + 100;
	assert_int_equal(kvfs_load(w->pool, lease, 100, pages, NULL, &xfer), 0);
	kvfs_release(lease);
	kvfs_pool_close(kv_steal(w->pool));
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 1);
	for (i = 0; i < 100; i++)
		assert_true(world_page_is(w, pages[i], (uint32_t)i));
	kvfs_xfer_free(xfer);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(arguments_that_cannot_be_are_refused),
		test(a_block_that_is_not_held_leaves_its_page_alone),
		test(blocks_of_another_layout_are_not_loaded),
		test(every_block_comes_back_as_it_was_saved),
		test(a_part_of_a_lease_can_be_loaded_and_pages_skipped),
		test(a_cancelled_load_touches_nothing_after_copied),
		test(loads_under_way_are_counted_not_flagged),
		test(a_load_begins_by_itself_when_its_lease_settles),
		test(a_pool_is_closed_only_when_its_loads_are_done),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
