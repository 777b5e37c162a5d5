/* SPDX-License-Identifier: Apache-2.0 */
/* Listing a space's keys, page by page, and the end of a space. */
#include "tests/kernels/world.h"

#define BLOCKS 200u
#define LISTED 4096u

static int by_key(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(kvfs_key));
}

/* List all keys of @space, sorted.  Return their number. */
static size_t list(kvfs_space *space, kvfs_key *keys, size_t page)
{
	uint64_t cursor = 0;
	size_t n = 0;
	long r;

	do {
		r = kvfs_space_keys(space, &cursor, keys + n, page);
		assert_true(r >= 0 && (size_t)r <= page);
		n += (size_t)r;
		assert_true(n + page <= LISTED);
	} while (cursor != 0);
	qsort(keys, n, sizeof(*keys), by_key);
	return n;
}

static void assert_listed(kvfs_space *space, uint32_t n, size_t page)
{
	kvfs_key *keys = calloc(LISTED, sizeof(*keys));
	kvfs_key *saved = calloc(n + 1, sizeof(*saved));

	for (uint32_t i = 0; i < n; i++)
		saved[i] = world_key(i);
	qsort(saved, n, sizeof(*saved), by_key);
	assert_int_equal(list(space, keys, page), n);
	assert_memory_equal(keys, saved, n * sizeof(*saved));
	free(saved);
	free(keys);
}

static void a_spaces_keys_are_listed_once_in_pages_of_any_size(void **state)
{
	struct world *w = *state;

	assert_listed(w->space, 0, 64);
	world_save(w, BLOCKS);
	for (size_t page = 64; page < 1500; page = page * 3 / 2)
		assert_listed(w->space, BLOCKS, page);
}

static void what_stays_is_listed_while_the_space_grows(void **state)
{
	struct world *w = *state;
	kvfs_key *keys = calloc(LISTED, sizeof(*keys)), key;
	uint64_t cursor = 0;
	size_t n;
	long r;

	world_save(w, 100);
	r = kvfs_space_keys(w->space, &cursor, keys, 64);
	assert_in_range(r, 1, 64);
	assert_int_not_equal(cursor, 0);
	n = (size_t)r;
	world_save(w, PAGES);
	do {
		r = kvfs_space_keys(w->space, &cursor, keys + n, 64);
		assert_true(r >= 0);
		n += (size_t)r;
	} while (cursor != 0);
	qsort(keys, n, sizeof(*keys), by_key);
	for (uint32_t i = 0; i < 100; i++) {
		key = world_key(i);
		assert_non_null(bsearch(&key, keys, n, sizeof(key), by_key));
	}
	free(keys);
}

static void listings_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key keys[64];
	uint64_t cursor = 0;
	kvfs_space *other;

	assert_int_equal(kvfs_space_keys(NULL, &cursor, keys, 64), -EINVAL);
	assert_int_equal(kvfs_space_keys(w->space, NULL, keys, 64), -EINVAL);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, NULL, 64), -EINVAL);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 63), -EINVAL);
	world_save(w, 10);
	cursor = UINT64_MAX;
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 64), 0);
	assert_int_equal(cursor, 0);
	cursor = 0xffffffff;
	assert_in_range(kvfs_space_keys(w->space, &cursor, keys, 64), 0, 10);
	assert_int_equal(
		kvfs_space_open(w->session, "absent", WORLD_LAYOUT, 0, &other),
		-ENOENT);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 64),
			 -ENOTCONN);
	assert_int_equal(kvfs_space_remove(w->space), -ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

static void a_removed_space_is_gone_and_is_not_made_again(void **state)
{
	struct world *w = *state;
	kvfs_key keys[64], key = world_key(0);
	const kvfs_query query = {.space = w->space, .keys = &key, .n = 1};
	kvfs_space *again;
	uint64_t cursor = 0;
	uint8_t states;

	assert_int_equal(kvfs_space_remove(NULL), -EINVAL);
	world_save(w, 50);
	assert_int_equal(kvfs_space_remove(w->space), 0);
	assert_int_equal(kvfs_probe(&query, 1, &states), 0);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 64), -ENOENT);
	assert_int_equal(
		kvfs_space_open(w->session, w->space_name, NULL, 0, &again),
		-ENOENT);
	assert_int_equal(kvfs_space_remove(w->space), -ENOENT);
	/* After the removal, a space with this name can have another layout. */
	world_space_open(w->session, w->space_name,
			 "{\"tensors\":[{\"name\":\"x\",\"dtype\":\"U8\","
			 "\"shape\":[64]}]}",
			 KVFS_CREATE | 0700, &again);
	assert_int_equal(kvfs_space_keys(again, &cursor, keys, 64), 0);
	assert_int_equal(kvfs_space_remove(again), 0);
	kvfs_space_close(again);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_spaces_keys_are_listed_once_in_pages_of_any_size),
		test(what_stays_is_listed_while_the_space_grows),
		test(listings_that_cannot_be_are_refused),
		test(a_removed_space_is_gone_and_is_not_made_again),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
