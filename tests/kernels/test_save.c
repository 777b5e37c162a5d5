/* SPDX-License-Identifier: Apache-2.0 */
/* Saves: refused calls, blocks that exist already, and what other clients
 * see. */
#include "tests/kernels/world.h"

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key keys[2] = {world_key(0), world_key(1)};
	int64_t pages[2] = {0, -1};
	kvfs_meta meta[2] = {{.parent = {.len = 32}}};
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_save(NULL, w->space, keys, NULL, 1, pages, NULL, &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_save(w->pool, NULL, keys, NULL, 1, pages, NULL, &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 2, pages, NULL, &xfer),
		-EINVAL);
	pages[1] = PAGES;
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 2, pages, NULL, &xfer),
		-EINVAL);
	pages[1] = 1;
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, meta, 2, pages, NULL, &xfer),
		-EINVAL);
	keys[1].len = 20;
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 2, pages, NULL, &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 1, NULL, NULL, &xfer),
		-EINVAL);
}

static void saving_some_layers_is_refused(void **state)
{
	struct world *w = *state;
	const kvfs_key key = world_key(0);
	const int64_t page = 0;
	kvfs_opts opts = {.size = sizeof(opts), .layers = 1};
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_save(w->pool, w->space, &key, NULL, 1, &page,
				   &opts, &xfer),
			 -EOPNOTSUPP);
	opts.layers = TENSOR;
	assert_int_equal(kvfs_save(w->pool, w->space, &key, NULL, 1, &page,
				   &opts, &xfer),
			 -EOPNOTSUPP);
	opts = (kvfs_opts){.size = sizeof(opts), .reserved = {0, 1}};
	assert_int_equal(kvfs_save(w->pool, w->space, &key, NULL, 1, &page,
				   &opts, &xfer),
			 -EINVAL);
}

static void another_spaces_layout_is_refused(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	int64_t page = 0;
	kvfs_space *other;
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_space_open(w->session, "otherlayout",
					 "{\"tensors\":[{\"name\":\"v\","
					 "\"dtype\":\"U8\",\"shape\":[131072]}"
					 "]}",
					 KVFS_CREATE, &other),
			 0);
	assert_int_equal(
		kvfs_save(w->pool, other, &key, NULL, 1, &page, NULL, &xfer),
		-EINVAL);
	kvfs_space_close(other);
}

static void stages_come_in_order_and_the_pages_come_back(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfer;

	world_chain(0, 100, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 100, pages,
				   NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND), 100);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	assert_true(info.bytes_staging >= 1 << 20);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 100);
	assert_int_equal(kvfs_xfer_status(xfer, 99), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 100), -EINVAL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND), 100);
	assert_int_equal(kvfs_xfer_poll(xfer, 0), -EINVAL);
	assert_int_equal(kvfs_xfer_poll(xfer, 5), -EINVAL);
	kvfs_xfer_free(xfer);
}

static void what_is_there_is_skipped_and_the_first_bytes_stay(void **state)
{
	struct world *w = *state;
	kvfs_key keys[3];
	int64_t pages[3];
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 2);
	world_chain(0, 3, keys, pages);
	world_fill(w, 0, 77);
	world_fill(w, 2, 2);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 3, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 3);
	assert_int_equal(kvfs_xfer_status(xfer, 0), KVFS_PRESENT);
	assert_int_equal(kvfs_xfer_status(xfer, 1), KVFS_PRESENT);
	assert_int_equal(kvfs_xfer_status(xfer, 2), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND), 3);
	kvfs_xfer_free(xfer);
	lease = world_acquire(w, 3, 3);
	assert_true(world_is(kvfs_lease_data(lease, 0, NULL), 0));
	kvfs_release(lease);
}

static void a_key_twice_in_one_save_is_saved_once(void **state)
{
	struct world *w = *state;
	kvfs_key keys[2] = {world_key(5), world_key(5)};
	int64_t pages[2] = {0, 1};
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 2, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 2);
	assert_int_equal(kvfs_xfer_status(xfer, 0) + kvfs_xfer_status(xfer, 1),
			 KVFS_PRESENT);
	kvfs_xfer_free(xfer);
}

/* A transfer keeps its pages until its own copy has ended. */
static void transfers_on_the_same_pages_are_counted(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *a, *b;

	world_chain(1000, 60, keys, pages);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 30, pages, NULL, &a),
		0);
	assert_int_equal(kvfs_save(w->pool, w->space, keys + 30, NULL, 30,
				   pages, NULL, &b),
			 0);
	assert_int_equal(kvfs_xfer_wait(a, KVFS_COPIED, 20 * SECOND), 30);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_true(info.pages_saving == 0 || info.pages_saving == 30);
	assert_int_equal(kvfs_xfer_wait(b, KVFS_COPIED, 20 * SECOND), 30);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	kvfs_xfer_free(a);
	kvfs_xfer_free(b);
}

/* A cancelled save seals each of its blocks whole, or not at all. */
static void a_cancelled_save_seals_whole_blocks_or_none(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	uint8_t states[PAGES];
	kvfs_query query = {w->space, keys, 200};
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfer;
	size_t i;
	int s;

	world_save(w, 1); /* the first save makes the staging memory */
	assert_int_equal(kvfs_space_clear(w->space), 0);
	world_chain(0, 200, keys, pages);
	for (i = 0; i < 200; i++)
		world_fill(w, pages[i], (uint32_t)i);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 200, pages,
				   NULL, &xfer),
			 0);
	kvfs_xfer_cancel(xfer);
	kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	memset(w->memory, 0, (size_t)PAGES * PAYLOAD);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 1);
	kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	assert_true(kvfs_probe(&query, 1, states) >= 0);
	for (i = 0; i < 200; i++) {
		s = kvfs_xfer_status(xfer, i);
		assert_true(s == 0 || s == -ECANCELED);
		assert_int_equal(states[i] >= KVFS_SSD, s == 0);
	}
	kvfs_xfer_free(xfer);
}

/* The next save can save blocks that were reserved and then cancelled. */
static void reservations_of_a_cancelled_save_are_given_up(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;
	long n;

	world_save(w, 1);
	world_chain(0, 100, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 100, pages,
				   NULL, &xfer),
			 0);
	kvfs_xfer_cancel(xfer);
	kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 100, pages,
				   NULL, &xfer),
			 0);
	n = kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	kvfs_xfer_free(xfer);
	assert_int_equal(n, 100);
}

static void parents_positions_and_tokens_are_as_given(void **state)
{
	struct world *w = *state;
	kvfs_key keys[2] = {world_key(0), world_key(1)};
	int64_t pages[2] = {0, 1};
	kvfs_meta meta[2] = {
		{.parent = {.len = 0}, .position = 41, .tokens = 3},
		{.parent = {.len = KVFS_CHAIN}, .position = 42},
	};
	char text[4096] = "", name[65], parent[100];
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, meta, 2, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 2);
	kvfs_xfer_free(xfer);
	lease = world_acquire(w, 2, 2);
	kvfs_key_name(&keys[0], name);
	snprintf(parent, sizeof(parent), "\"parent\":\"%s\"", name);
	memcpy(text, (const char *)kvfs_lease_file(lease, 0, NULL) + 8, 1000);
	assert_null(strstr(text, parent));
	assert_non_null(strstr(text, "\"position\":\"41\""));
	assert_non_null(strstr(text, "\"tokens\":\"3\""));
	memcpy(text, (const char *)kvfs_lease_file(lease, 1, NULL) + 8, 1000);
	assert_non_null(strstr(text, parent));
	assert_non_null(strstr(text, "\"position\":\"42\""));
	assert_non_null(strstr(text, "\"tokens\":\"4\""));
	kvfs_release(lease);
}

static void more_blocks_than_staging_holds_get_through(void **state)
{
	struct world *w = *state;
	kvfs_key keys[4 * PAGES];
	int64_t pages[4 * PAGES];
	size_t i, n = KV_ARRAY_LEN(keys);
	kvfs_xfer *xfer;

	for (i = 0; i < n; i++) {
		keys[i] = world_key(5000 + (uint32_t)i);
		pages[i] = (int64_t)(i % PAGES);
	}
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, n, pages, NULL, &xfer),
		0);
	assert_true(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND) > 0);
	for (i = 0; i < n; i++)
		assert_true(kvfs_xfer_status(xfer, i) == 0 ||
			    kvfs_xfer_status(xfer, i) == -ENOSPC);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_space_clear(w->space), 0);
}

static void nothing_to_save_is_done_at_once(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_save(w->pool, w->space, NULL, NULL, 0, NULL, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_DURABLE), 1);
	kvfs_xfer_free(xfer);
	kvfs_xfer_free(NULL);
	assert_int_equal(kvfs_xfer_poll(NULL, KVFS_COPIED), -EINVAL);
}

static void a_save_that_nobody_waits_for_goes_on(void **state)
{
	struct world *w = *state;
	kvfs_key keys[50];
	int64_t pages[50];
	kvfs_xfer *xfer;

	world_chain(0, 50, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 50, pages,
				   NULL, &xfer),
			 0);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_flush(w->space, KVFS_SEALED, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 1);
	kvfs_xfer_free(xfer);
	kvfs_release(world_acquire(w, 50, 50));
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(arguments_that_cannot_be_are_refused),
		test(saving_some_layers_is_refused),
		test(another_spaces_layout_is_refused),
		test(stages_come_in_order_and_the_pages_come_back),
		test(what_is_there_is_skipped_and_the_first_bytes_stay),
		test(a_key_twice_in_one_save_is_saved_once),
		test(transfers_on_the_same_pages_are_counted),
		test(a_cancelled_save_seals_whole_blocks_or_none),
		test(reservations_of_a_cancelled_save_are_given_up),
		test(parents_positions_and_tokens_are_as_given),
		test(more_blocks_than_staging_holds_get_through),
		test(nothing_to_save_is_done_at_once),
		test(a_save_that_nobody_waits_for_goes_on),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
