/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a snapshot back into pages. */
#include <dirent.h>

#include "tests/kernels/world.h"

#define BIG 600u /* blocks: more than fit into DRAM */

static void take(struct world *w, const char *name, size_t n)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];

	world_chain(0, n, keys, pages);
	assert_int_equal(kvfs_snapshot(w->space, name, keys, NULL, n, NULL), 0);
}

static kvfs_xfer *restore(struct world *w, const char *name,
			  const uint32_t *positions, size_t n,
			  const int64_t *pages, const kvfs_opts *opts)
{
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_restore(w->pool, w->space, name, positions, n,
				      pages, opts, &xfer),
			 0);
	return xfer;
}

static void restore_all(struct world *w, const char *name,
			const uint32_t *positions, size_t n,
			const int64_t *pages)
{
	kvfs_xfer *xfer = restore(w, name, positions, n, pages, NULL);

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), n);
	kvfs_xfer_free(xfer);
}

static void wipe(struct world *w)
{
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
}

static bool untouched(const struct world *w, int64_t page)
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
	uint32_t same[2] = {1, 1};
	int64_t pages[2] = {0, 1}, twice[2] = {3, 3}, out[1] = {PAGES};
	kvfs_xfer *x;

	assert_int_equal(
		kvfs_restore(NULL, w->space, "a", NULL, 1, pages, NULL, &x),
		-EINVAL);
	assert_int_equal(
		kvfs_restore(w->pool, NULL, "a", NULL, 1, pages, NULL, &x),
		-EINVAL);
	assert_int_equal(
		kvfs_restore(w->pool, w->space, "", NULL, 1, pages, NULL, &x),
		-EINVAL);
	assert_int_equal(
		kvfs_restore(w->pool, w->space, "a", same, 2, pages, NULL, &x),
		-EINVAL);
	assert_int_equal(
		kvfs_restore(w->pool, w->space, "a", NULL, 1, NULL, NULL, &x),
		-EINVAL);
	assert_int_equal(
		kvfs_restore(w->pool, w->space, "a", NULL, 2, twice, NULL, &x),
		-EINVAL);
	assert_int_equal(
		kvfs_restore(w->pool, w->space, "a", NULL, 1, out, NULL, &x),
		-EINVAL);
	assert_int_equal(kvfs_restore(w->pool, w->space, "a", NULL, 1, pages,
				      NULL, NULL),
			 -EINVAL);
	x = restore(w, "a", NULL, 0, pages, NULL);
	assert_int_equal(kvfs_xfer_poll(x, KVFS_COPIED), 1);
	assert_int_equal(kvfs_xfer_wait_some(x, 1, 0), -EINVAL);
	assert_int_equal(kvfs_xfer_wait_some(x, 0, 0), 0);
	kvfs_xfer_free(x);
}

/* Other pages, fewer of them, and nothing but what was asked for. */
static void only_the_blocks_asked_for_come(void **state)
{
	struct world *w = *state;
	uint32_t positions[3] = {1, 7, 19};
	int64_t pages[3] = {200, 3, 77};
	int64_t page;

	world_save(w, 20);
	take(w, "a", 20);
	wipe(w);
	restore_all(w, "a", positions, 3, pages);
	assert_true(world_page_is(w, 200, 1));
	assert_true(world_page_is(w, 3, 7));
	assert_true(world_page_is(w, 77, 19));
	for (page = 0; page < PAGES; page++)
		if (page != 200 && page != 3 && page != 77)
			assert_true(untouched(w, page));
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);
}

static void the_head_and_the_tail_come_first(void **state)
{
	const kvfs_opts opts = {.size = sizeof(opts), .head = 2, .tail = 3};
	struct world *w = *state;
	int64_t pages[PAGES];
	kvfs_xfer *xfer;
	size_t i;

	world_save(w, PAGES);
	take(w, "a", PAGES);
	wipe(w);
	for (i = 0; i < PAGES; i++)
		pages[i] = (int64_t)(PAGES - 1 - i);
	xfer = restore(w, "a", NULL, PAGES, pages, &opts);
	assert_true(kvfs_xfer_wait_some(xfer, 2, 20 * SECOND) >= 2);
	assert_int_equal(kvfs_xfer_status(xfer, 0), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 1), 0);
	assert_true(world_page_is(w, PAGES - 1, 0));
	assert_true(kvfs_xfer_wait_some(xfer, 5, 20 * SECOND) >= 5);
	for (i = PAGES - 3; i < PAGES; i++) {
		assert_int_equal(kvfs_xfer_status(xfer, i), 0);
		assert_true(world_page_is(w, pages[i], (uint32_t)i));
	}
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), PAGES);
	kvfs_xfer_free(xfer);
	for (i = 0; i < PAGES; i++)
		assert_true(world_page_is(w, pages[i], (uint32_t)i));
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);
}

static void what_is_missing_fails_by_itself(void **state)
{
	struct world *w = *state;
	uint32_t positions[4] = {0, 1, 2, 5};
	int64_t pages[4] = {10, 11, 12, 13};
	kvfs_key key = world_key(1);
	kvfs_xfer *xfer;

	world_save(w, 3);
	take(w, "a", 3);
	assert_int_equal(kvfs_evict(w->space, &key, 1, NULL), 1);
	wipe(w);
	xfer = restore(w, "a", positions, 4, pages, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND), 2);
	assert_int_equal(kvfs_xfer_status(xfer, 0), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 1), -ENOENT);
	assert_int_equal(kvfs_xfer_status(xfer, 2), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 3), -ENOENT);
	assert_true(untouched(w, 11));
	assert_true(untouched(w, 13));
	assert_true(world_page_is(w, 12, 2));
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);

	xfer = restore(w, "a", NULL, 2, pages, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 1), -ENOENT);
	kvfs_xfer_free(xfer);
}

static void a_restore_can_be_cancelled_and_freed(void **state)
{
	struct world *w = *state;
	int64_t pages[PAGES];
	kvfs_key keys[PAGES];
	kvfs_xfer *xfer;
	size_t i;
	long n;

	world_chain(0, PAGES, keys, pages);
	world_save(w, PAGES);
	take(w, "a", PAGES);
	xfer = restore(w, "a", NULL, PAGES, pages, NULL);
	kvfs_xfer_cancel(xfer);
	n = kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND);
	for (i = 0; i < PAGES; i++)
		n -= kvfs_xfer_status(xfer, i) != -ECANCELED;
	assert_int_equal(n, 0);
	kvfs_xfer_free(xfer);
	/* It goes on by itself; closing the pool waits for it. */
	kvfs_xfer_free(restore(w, "a", NULL, PAGES, pages, NULL));
	kvfs_pool_close(w->pool);
	w->pool = world_pool(w, w->space);
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);
}

static unsigned workers(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	char path[300], name[32];
	unsigned n = 0;
	FILE *f;

	while ((task = readdir(tasks)) != NULL) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm",
			 task->d_name);
		f = fopen(path, "re");
		if (f == NULL)
			continue;
		if (fgets(name, sizeof(name), f) != NULL)
			n += strcmp(name, "kvfs-worker\n") == 0;
		fclose(f);
	}
	closedir(tasks);
	return n;
}

static void wait_for_workers(unsigned n)
{
	int i;

	for (i = 0; i < 3000 && workers() != n; i++)
		usleep(10000);
	assert_int_equal(workers(), n);
}

/* A thread each; one stays for the next, and ends with the session. */
static void restores_at_the_same_time_have_threads_of_their_own(void **state)
{
	struct world *w = *state;
	int64_t pages[3] = {0, 1, 2};
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool;
	kvfs_xfer *xfers[3];
	int round, i;

	world_save(w, 3);
	take(w, "a", 3);
	wait_for_workers(0);
	for (round = 0; round < 3; round++) {
		world_freeze(w);
		for (i = 0; i < 3; i++)
			xfers[i] = restore(w, "a", NULL, 1, pages + i, NULL);
		wait_for_workers(3);
		world_thaw(w);
		for (i = 0; i < 3; i++) {
			kvfs_xfer_wait(xfers[i], KVFS_COPIED, 20 * SECOND);
			kvfs_xfer_free(xfers[i]);
		}
		wait_for_workers(1);
	}
	session = w->session;
	space = w->space;
	pool = w->pool;
	assert_int_equal(kvfs_open(w->path, &w->session), 0);
	world_wait_connected(w->session, 1);
	kvfs_pool_close(pool);
	kvfs_space_close(space);
	kvfs_close(session);
	wait_for_workers(0);
	assert_int_equal(kvfs_space_open(w->session, w->space_name,
					 WORLD_LAYOUT, 0, &w->space),
			 0);
	w->pool = world_pool(w, w->space);
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);
}

static void a_daemon_that_is_gone_ends_it(void **state)
{
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SECOND / 10};
	struct world *w = *state;
	int64_t pages[2] = {0, 1};
	kvfs_xfer *xfer;
	int s;

	world_save(w, 2);
	take(w, "a", 2);
	world_freeze(w);
	xfer = restore(w, "a", NULL, 2, pages, &opts);
	assert_int_equal(kvfs_xfer_wait_some(xfer, 1, 0), -ETIMEDOUT);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	s = kvfs_xfer_status(xfer, 1);
	assert_true(s == -ETIMEDOUT || s == -ENOTCONN);
	kvfs_xfer_free(xfer);
	world_thaw(w);
	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	xfer = restore(w, "a", NULL, 2, pages, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOTCONN);
	kvfs_xfer_free(xfer);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

/* Save, restore, go on, three times: each turn's context is longer. */
static void three_turns_in_a_row(void **state)
{
	struct world *w = *state;
	kvfs_key keys[60];
	int64_t pages[60], other[60];
	kvfs_xfer *xfer;
	char name[16];
	size_t turn, i, n = 0;

	world_chain(0, 60, keys, pages);
	for (turn = 1; turn <= 3; turn++) {
		for (i = n; i < 20 * turn; i++)
			world_fill(w, pages[i], (uint32_t)i);
		n = 20 * turn;
		assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, n,
					   pages, NULL, &xfer),
				 0);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND),
				 n);
		kvfs_xfer_free(xfer);
		snprintf(name, sizeof(name), "turn %zu", turn);
		take(w, name, n);
		wipe(w);
		for (i = 0; i < n; i++)
			other[i] = (int64_t)(i + 30 * turn);
		restore_all(w, name, NULL, n, other);
		for (i = 0; i < n; i++)
			assert_true(world_page_is(w, other[i], (uint32_t)i));
		/* The engine goes on from there, at its own pages. */
		restore_all(w, name, NULL, n, pages);
	}
	for (turn = 1; turn <= 3; turn++) {
		snprintf(name, sizeof(name), "turn %zu", turn);
		assert_int_equal(kvfs_snapshot_drop(w->space, name), 0);
	}
}

static kvfs_pool *big_pool(struct world *w, uint8_t *memory)
{
	uint8_t *small = w->memory;
	kvfs_view views[] = {
		{"k", memory, PAYLOAD, TENSOR, 1, 0},
		{"v", memory + TENSOR, PAYLOAD, TENSOR, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = w->space,
		.views = views,
		.n_views = 2,
		.pages = BIG,
		.pages_per_block = 1,
	};
	kvfs_pool *pool;

	assert_ptr_not_equal(small, memory);
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	return pool;
}

/* It lives on SSD then, pinned or not, and comes back a few at a time. */
static void a_context_larger_than_dram(void **state)
{
	static kvfs_key keys[BIG];
	static int64_t pages[BIG];
	struct world *w = *state;
	uint8_t *memory = malloc((size_t)BIG * PAYLOAD);
	kvfs_pool *pool = big_pool(w, memory);
	kvfs_xfer *xfer;
	size_t i, j;
	long n;

	for (i = 0; i < BIG; i++) {
		keys[i] = world_key((uint32_t)i);
		pages[i] = (int64_t)i;
		for (j = 0; j < PAYLOAD; j++)
			memory[i * PAYLOAD + j] = world_byte((uint32_t)i, j);
	}
	for (i = 0; i < BIG; i += 100) {
		assert_int_equal(kvfs_save(pool, w->space, keys + i, NULL, 100,
					   pages + i, NULL, &xfer),
				 0);
		assert_int_equal(
			kvfs_xfer_wait(xfer, KVFS_DURABLE, 60 * SECOND), 100);
		kvfs_xfer_free(xfer);
	}
	assert_int_equal(kvfs_snapshot(w->space, "big", keys, NULL, BIG, NULL),
			 0);
	memset(memory, 0xee, (size_t)BIG * PAYLOAD);
	assert_int_equal(kvfs_restore(pool, w->space, "big", NULL, BIG, pages,
				      NULL, &xfer),
			 0);
	n = kvfs_xfer_wait(xfer, KVFS_COPIED, 120 * SECOND);
	for (i = 0; i < BIG && n != BIG; i++)
		if (kvfs_xfer_status(xfer, i) != 0)
			fail_msg("block %zu: %d", i, kvfs_xfer_status(xfer, i));
	assert_int_equal(n, BIG);
	kvfs_xfer_free(xfer);
	for (i = 0; i < BIG; i++)
		assert_true(world_is(memory + i * PAYLOAD, (uint32_t)i));
	assert_int_equal(kvfs_snapshot_drop(w->space, "big"), 0);
	kvfs_pool_close(pool);
	free(memory);
}

/* A position floors to a block boundary, and the blocks of a prefix are
 * the same whatever follows it. */
static void a_prefix_has_the_same_blocks_in_any_chain(void **state)
{
	struct world *w = *state;
	uint32_t tokens[43], other[43];
	kvfs_key keys[10], longer[10];
	long n;
	int i;

	for (i = 0; i < 43; i++)
		tokens[i] = other[i] = (uint32_t)i * 31;
	other[41] = 1; /* in the tail that no block has */
	assert_int_equal(
		kvfs_key_chain(w->space, NULL, tokens, 3, NULL, 0, keys, 10),
		0);
	n = kvfs_key_chain(w->space, NULL, tokens, 23, NULL, 0, keys, 10);
	assert_int_equal(n, 5); /* of 4 tokens each */
	assert_int_equal(
		kvfs_key_chain(w->space, NULL, tokens, 43, NULL, 0, longer, 10),
		10);
	assert_memory_equal(keys, longer, 5 * sizeof(keys[0]));
	assert_int_equal(
		kvfs_key_chain(w->space, NULL, other, 43, NULL, 0, keys, 10),
		10);
	assert_memory_equal(keys, longer, sizeof(keys));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(arguments_that_cannot_be_are_refused),
		TEST(only_the_blocks_asked_for_come),
		TEST(the_head_and_the_tail_come_first),
		TEST(what_is_missing_fails_by_itself),
		TEST(a_restore_can_be_cancelled_and_freed),
		TEST(restores_at_the_same_time_have_threads_of_their_own),
		TEST(a_daemon_that_is_gone_ends_it),
		TEST(three_turns_in_a_row),
		TEST(a_context_larger_than_dram),
		TEST(a_prefix_has_the_same_blocks_in_any_chain),
	};

	return cmocka_run_group_tests_name("restore", tests, world_group_setup,
					   world_group_teardown);
}
