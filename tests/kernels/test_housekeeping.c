/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that evict, pin and clear blocks, and statistics. */
#include "tests/kernels/world.h"

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0), bad = {.len = 1};

	assert_int_equal(kvfs_evict(NULL, &key, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_evict(w->space, NULL, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_evict(w->space, &bad, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_pin(w->space, NULL, 0, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_pin(w->space, &key, 1, 0, NULL), -EINVAL);
	assert_int_equal(kvfs_unpin(w->space, &key, 1, 0, NULL), -EINVAL);
	/* A call with too many keys fails before it reads them. */
	assert_int_equal(kvfs_evict(w->space, &key, SIZE_MAX, NULL), -EINVAL);
	assert_int_equal(kvfs_ended(w->space, &key, SIZE_MAX), -EINVAL);
	assert_int_equal(kvfs_pin(w->space, &key, 0, SIZE_MAX, NULL), -EINVAL);
	assert_int_equal(kvfs_unpin(w->space, &key, 0, SIZE_MAX, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_space_clear(NULL), -EINVAL);
	assert_int_equal(kvfs_stats(w->session, NULL), -EINVAL);
}

static void eviction_goes_on_past_missing_keys(void **state)
{
	struct world *w = *state;
	kvfs_key keys[4] = {world_key(0), world_key(50), world_key(1),
			    world_key(51)};
	int statuses[4];

	world_save(w, 3);
	assert_int_equal(kvfs_evict(w->space, keys, 4, statuses), 2);
	assert_int_equal(statuses[0], 0);
	assert_int_equal(statuses[1], -ENOENT);
	assert_int_equal(statuses[2], 0);
	assert_int_equal(statuses[3], -ENOENT);
	assert_int_equal(kvfs_evict(w->space, keys, 4, NULL), 0);
}

static void eviction_takes_more_keys_than_a_message(void **state)
{
	struct world *w = *state;
	kvfs_key keys[1200];
	int statuses[1200];
	size_t i;

	world_save(w, 3);
	for (i = 0; i < 1200; i++)
		keys[i] = world_key((uint32_t)(1199 - i));
	assert_int_equal(kvfs_evict(w->space, keys, 1200, statuses), 3);
	assert_int_equal(statuses[1199], 0);
	assert_int_equal(statuses[0], -ENOENT);
}

static void without_a_daemon_every_key_says_so(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	int status = 0;
	char *text;

	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_evict(w->space, &key, 1, &status), 0);
	assert_int_equal(status, -ENOTCONN);
	assert_int_equal(kvfs_space_clear(w->space), -ENOTCONN);
	assert_int_equal(kvfs_stats(w->session, &text), -ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

static void pins_are_of_a_half_open_range(void **state)
{
	struct world *w = *state;
	kvfs_key keys[4];
	int64_t pages[4];
	int statuses[3];
	char *text;

	world_save(w, 3);
	world_chain(0, 4, keys, pages);
	assert_int_equal(kvfs_pin(w->space, keys, 1, 4, statuses), 2);
	assert_int_equal(statuses[2], -ENOENT);
	assert_int_equal(kvfs_stats(w->session, &text), 0);
	assert_non_null(strstr(text, " 2 pinned"));
	free(text);
	assert_int_equal(kvfs_unpin(w->space, keys, 0, 3, NULL), 3);
	assert_int_equal(kvfs_stats(w->session, &text), 0);
	assert_non_null(strstr(text, " 0 pinned"));
	free(text);
	assert_int_equal(kvfs_pin(w->space, keys, 2, 2, NULL), 0);
	/* Pin the first block and the last block in a call each. */
	assert_int_equal(kvfs_pin(w->space, keys, 0, 1, NULL), 1);
	assert_int_equal(kvfs_unpin(w->space, keys, 1, 3, NULL), 2);
	assert_int_equal(kvfs_pin(w->space, keys, 2, 3, NULL), 1);
	assert_int_equal(kvfs_stats(w->session, &text), 0);
	assert_non_null(strstr(text, " 2 pinned"));
	free(text);
	assert_int_equal(kvfs_unpin(w->space, keys, 0, 3, NULL), 3);
}

static void a_cleared_space_has_no_blocks(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	uint8_t s;

	world_save(w, 3);
	assert_int_equal(kvfs_probe(&query, 1, &s), 1);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	assert_int_equal(kvfs_probe(&query, 1, &s), 0);
	world_save(w, 1);
	assert_int_equal(kvfs_probe(&query, 1, &s), 1);
}

/* The saves have more blocks than staging memory holds, so some blocks are
 * reserved only after the clear. */
static void saves_begun_before_a_clear_never_seal(void **state)
{
	struct world *w = *state;
	kvfs_key keys[900];
	int64_t pages[900];
	uint8_t states[900];
	kvfs_query query = {w->space, keys, 900};
	kvfs_xfer *xfer;
	size_t i;
	int s;

	world_save(w, 1);
	for (i = 0; i < 900; i++) {
		keys[i] = world_key((uint32_t)i);
		pages[i] = (int64_t)(i % PAGES);
	}
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 900, pages,
				   NULL, &xfer),
			 0);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	assert_true(kvfs_probe(&query, 1, states) >= 0);
	for (i = 0; i < 900; i++) {
		s = kvfs_xfer_status(xfer, i);
		assert_true(s >= 0 || s == -ESTALE || s == -ENOSPC);
		assert_int_equal(states[i], KVFS_ABSENT);
	}
	assert_int_equal(kvfs_xfer_status(xfer, 899), -ESTALE);
	kvfs_xfer_free(xfer);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(arguments_that_cannot_be_are_refused),
		test(without_a_daemon_every_key_says_so),
		test(eviction_goes_on_past_missing_keys),
		test(eviction_takes_more_keys_than_a_message),
		test(pins_are_of_a_half_open_range),
		test(a_cleared_space_has_no_blocks),
		test(saves_begun_before_a_clear_never_seal),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
