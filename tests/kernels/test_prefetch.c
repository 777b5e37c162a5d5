/* SPDX-License-Identifier: Apache-2.0 */
/* Hints: blocks needed soon, and blocks no longer needed. */
#include "tests/kernels/world.h"

#define FLOOD 900u /* number of blocks: too many for DRAM, few enough for SSD */

static void save_from(struct world *w, uint32_t first, size_t n)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;
	size_t i;

	world_chain(first, n, keys, pages);
	for (i = 0; i < n; i++)
		world_fill(w, pages[i], first + (uint32_t)i);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, n, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 120 * SECOND), n);
	kvfs_xfer_free(xfer);
}

static size_t count(struct world *w, uint32_t first, size_t n, uint8_t state)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	uint8_t states[PAGES];
	kvfs_query query = {w->space, keys, n};
	size_t i, found = 0;

	world_chain(first, n, keys, pages);
	assert_true(kvfs_probe(&query, 1, states) >= 0);
	for (i = 0; i < n; i++)
		found += states[i] == state;
	return found;
}

/* Save other blocks until the @n blocks are only on SSD. */
static void drive_out(struct world *w, uint32_t first, size_t n)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	uint32_t i;

	world_chain(first, n, keys, pages);
	assert_int_equal(kvfs_ended(w->space, keys, n), 0);
	for (i = 0; i < FLOOD && count(w, first, n, KVFS_SSD) < n; i += 50)
		save_from(w, 1000 + i, 50);
	assert_int_equal(count(w, first, n, KVFS_SSD), n);
}

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0), bad = {.len = 1};
	kvfs_query query = {w->space, &key, 1}, wrong = {w->space, &bad, 1};
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_prefetch(NULL, 1, KVFS_OPTS(.deadline = 1), &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_prefetch(NULL, 0, KVFS_OPTS(.deadline = 1), &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_prefetch(&wrong, 1, KVFS_OPTS(.deadline = 1), &xfer),
		-EINVAL);
	assert_int_equal(
		kvfs_prefetch(&query, 1, KVFS_OPTS(.deadline = 1), NULL),
		-EINVAL);
	assert_int_equal(kvfs_ended(NULL, &key, 1), -EINVAL);
	assert_int_equal(kvfs_ended(w->space, &bad, 1), -EINVAL);
	assert_int_equal(kvfs_ended(w->space, &key, 0), 0);
	query.n = 0;
	assert_int_equal(
		kvfs_prefetch(&query, 1, KVFS_OPTS(.deadline = 1), &xfer), 0);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 1);
	kvfs_xfer_free(xfer);
}

static void blocks_come_back_to_dram(void **state)
{
	struct world *w = *state;
	kvfs_key keys[11];
	int64_t pages[11];
	kvfs_query query = {w->space, keys, 11};
	kvfs_xfer *xfer;
	size_t i;

	save_from(w, 0, 10);
	drive_out(w, 0, 10);
	/* blocks 0 to 9 were saved, block 10 was not */
	world_chain(0, 11, keys, pages);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 10);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 60 * SECOND), 10);
	for (i = 0; i < 10; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 10), -ENOENT);
	assert_int_equal(kvfs_xfer_status(xfer, 11), -EINVAL);
	kvfs_xfer_free(xfer);
	assert_int_equal(count(w, 0, 10, KVFS_DRAM), 10);
}

static void more_keys_than_a_message_and_more_spaces_than_one(void **state)
{
	static kvfs_key keys[1200];
	struct world *w = *state;
	kvfs_query queries[2] = {{w->space, keys, 1200}, {NULL, keys, 3}};
	kvfs_space *other;
	kvfs_xfer *xfer;
	size_t i;

	assert_int_equal(kvfs_space_open(w->session, "prefetched", WORLD_LAYOUT,
					 KVFS_CREATE | 0700, &other),
			 0);
	save_from(w, 1190, 10);
	for (i = 0; i < 1200; i++)
		keys[i] = world_key((uint32_t)i);
	queries[1].space = other;
	assert_int_equal(kvfs_prefetch(queries, 2, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 10);
	assert_int_equal(kvfs_xfer_status(xfer, 1189), -ENOENT);
	assert_int_equal(kvfs_xfer_status(xfer, 1190), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 1199), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 1202), -ENOENT);
	kvfs_xfer_free(xfer);
	kvfs_space_close(other);
}

static void a_prefetch_can_be_cancelled_or_forgotten(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, PAGES};
	kvfs_xfer *xfer;
	size_t i;
	int s;

	save_from(w, 0, PAGES);
	drive_out(w, 0, PAGES);
	world_chain(0, PAGES, keys, pages);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &xfer), 0);
	kvfs_xfer_cancel(xfer);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	for (i = 0; i < PAGES; i++) {
		s = kvfs_xfer_status(xfer, i);
		assert_true(s == 0 || s == -ECANCELED || s == -ENOSPC);
	}
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &xfer), 0);
	kvfs_xfer_free(xfer);
}

static void what_cannot_begin_in_time_ends(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, PAGES};
	kvfs_xfer *xfer;

	save_from(w, 0, PAGES);
	drive_out(w, 0, PAGES);
	world_chain(0, PAGES, keys, pages);
	world_freeze(w);
	assert_int_equal(
		kvfs_prefetch(&query, 1, KVFS_OPTS(.deadline = 1), &xfer), 0);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	world_thaw(w);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	for (size_t i = 0; i < PAGES; i++) {
		int s = kvfs_xfer_status(xfer, i);

		assert_true(s == 0 || s == -ETIMEDOUT || s == -ENOSPC);
	}
	kvfs_xfer_free(xfer);
}

static void without_a_daemon_nothing_comes(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_xfer *xfer, *under_way;

	world_freeze(w);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &under_way), 0);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_xfer_wait(under_way, KVFS_COPIED, 60 * SECOND),
			 0);
	assert_int_equal(kvfs_xfer_status(under_way, 0), -ENOTCONN);
	kvfs_xfer_free(under_way);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOTCONN);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_ended(w->space, &key, 1), 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

/* Acquire the first @n blocks and release them. */
static void use(struct world *w, const kvfs_key *keys, size_t n)
{
	kvfs_query query = {w->space, keys, n};
	kvfs_lease *lease;

	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, 60 * SECOND), n);
	kvfs_release(lease);
}

static void ahead(struct world *w, const kvfs_key *keys, size_t all, size_t n)
{
	kvfs_query query = {w->space, keys, all};
	kvfs_lease *lease;
	size_t i;

	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.flags = KVFS_READ_AHEAD,
						.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, 60 * SECOND), n);
	for (i = 0; i < all; i++)
		assert_int_equal(kvfs_lease_status(lease, i),
				 i < n ? 0 : -EAGAIN);
	kvfs_release(lease);
}

static void the_rest_of_a_chain_comes_behind_its_head_if_asked(void **state)
{
	struct world *w = *state;
	kvfs_key keys[10];
	int64_t pages[10];
	kvfs_query query = {w->space, keys, 10};
	kvfs_query last = {w->space, keys + 9, 1};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_chain(0, 10, keys, pages);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.flags = KVFS_READ_AHEAD |
							 KVFS_WAIT_SAVING,
						.deadline = 1),
				      &lease),
			 -EINVAL);
	save_from(w, 0, 10);
	drive_out(w, 0, 10);
	/* With three of the blocks in DRAM, KVFS_READ_AHEAD reads no blocks:
	 * such reads would end before the prefetch of the last block. */
	use(w, keys, 3);
	ahead(w, keys, 10, 3);
	assert_int_equal(kvfs_prefetch(&last, 1, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 1);
	kvfs_xfer_free(xfer);
	assert_int_equal(count(w, 3, 6, KVFS_SSD), 6);
	/* An acquire without KVFS_READ_AHEAD reads no other blocks. */
	use(w, keys, 6);
	assert_int_equal(count(w, 6, 3, KVFS_SSD), 3);
	query.n = 9;
	ahead(w, keys, 9, 6);
	while (count(w, 0, 10, KVFS_DRAM) < 10)
		usleep(1000);
}

/* The newer conversation is evicted first, because it has ended. */
static void what_has_ended_goes_first(void **state)
{
	struct world *w = *state;
	kvfs_key keys[100];
	int64_t pages[100];
	size_t n = 0;

	save_from(w, 0, 100);
	save_from(w, 200, 100);
	world_chain(200, 100, keys, pages);
	assert_int_equal(kvfs_ended(w->space, keys, 100), 0);
	while (count(w, 0, 100, KVFS_DRAM) == 100 &&
	       count(w, 200, 100, KVFS_DRAM) > 50 && n < FLOOD) {
		save_from(w, 1000 + (uint32_t)n, 20);
		n += 20;
	}
	assert_int_equal(count(w, 0, 100, KVFS_DRAM), 100);
	assert_true(count(w, 200, 100, KVFS_DRAM) <= 50);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(arguments_that_cannot_be_are_refused),
		TEST(blocks_come_back_to_dram),
		TEST(more_keys_than_a_message_and_more_spaces_than_one),
		TEST(a_prefetch_can_be_cancelled_or_forgotten),
		TEST(what_cannot_begin_in_time_ends),
		TEST(without_a_daemon_nothing_comes),
		TEST(the_rest_of_a_chain_comes_behind_its_head_if_asked),
		TEST(what_has_ended_goes_first),
	};

	return cmocka_run_group_tests_name("prefetch", tests, world_group_setup,
					   world_group_teardown);
}
