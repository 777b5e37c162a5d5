/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that say why blocks are absent, and which look-ups ended early. */
#include "tests/kernels/world.h"

#define WINDOW                                                             \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]" \
	"},{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[65536]}],"          \
	"\"reuse\":\"window:2\"}"

static kvfs_miss misses[4096];

/* Return the look-ups logged in @space, in misses[]. */
static size_t look(kvfs_space *space)
{
	uint64_t cursor = 0;
	size_t n = 0;
	long r;

	while ((r = kvfs_misses(space, &cursor, misses + n, 4096 - n)) > 0)
		n += (size_t)r;
	assert_int_equal(r, 0);
	return n;
}

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0), bad = {.len = 33};
	uint64_t cursor = 0;

	assert_int_equal(kvfs_why(NULL, &key, 1, misses), -EINVAL);
	assert_int_equal(kvfs_why(w->space, NULL, 1, misses), -EINVAL);
	assert_int_equal(kvfs_why(w->space, &key, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_why(w->space, &bad, 1, misses), -EINVAL);
	assert_int_equal(kvfs_why(w->space, &key, SIZE_MAX, misses), -EINVAL);
	assert_int_equal(kvfs_why(w->space, NULL, 0, NULL), 0);
	assert_int_equal(kvfs_misses(NULL, &cursor, misses, 256), -EINVAL);
	assert_int_equal(kvfs_misses(w->space, NULL, misses, 256), -EINVAL);
	assert_int_equal(kvfs_misses(w->space, &cursor, NULL, 256), -EINVAL);
	assert_int_equal(kvfs_misses(w->space, &cursor, misses, 255), -EINVAL);
	cursor = UINT64_MAX;
	assert_int_equal(kvfs_misses(w->space, &cursor, misses, 256), 0);
}

static void causes_are_in_the_order_asked(void **state)
{
	struct world *w = *state;
	kvfs_key keys[1000];
	const int64_t now = (int64_t)time(NULL);

	for (uint32_t i = 0; i < 1000; i++)
		keys[i] = world_key(i);
	world_save(w, 3);
	assert_int_equal(kvfs_evict(w->space, &keys[1], 1, NULL), 1);
	assert_int_equal(kvfs_why(w->space, keys, 1000, misses), 998);
	for (uint32_t i = 0; i < 1000; i++)
		assert_memory_equal(&misses[i].key, &keys[i], sizeof(keys[i]));
	assert_int_equal(misses[0].cause, KVFS_CAUSE_NONE);
	assert_int_equal(misses[1].cause, KVFS_CAUSE_REMOVED);
	assert_in_range(misses[1].since, now, now + 600);
	assert_int_equal(misses[2].cause, KVFS_CAUSE_NONE);
	assert_int_equal(misses[999].cause, KVFS_CAUSE_UNSEEN);
	assert_in_range(misses[999].since, now - 600, now);
}

static void a_look_up_that_ends_early_is_logged_once(void **state)
{
	struct world *w = *state;
	static kvfs_key keys[2000];
	static uint8_t states[2000];
	kvfs_query query = {w->space, keys, 2000};
	kvfs_lease *lease;
	kvfs_space *window;

	for (uint32_t i = 0; i < 2000; i++)
		keys[i] = world_key(i);
	world_save(w, 8);
	query.n = 8;
	assert_int_equal(kvfs_match(&query, 1), 8);
	assert_int_equal(look(w->space), 0);
	query.n = 2000; /* four messages */
	assert_int_equal(kvfs_match(&query, 1), 8);
	assert_int_equal(look(w->space), 1);
	assert_memory_equal(&misses[0].key, &keys[8], sizeof(keys[8]));
	assert_int_equal(misses[0].cause, KVFS_CAUSE_UNSEEN);
	assert_int_equal(misses[0].place, 8);
	assert_int_equal(misses[0].n, 512);
	assert_in_range(misses[0].asked_ns / 1000000000, time(NULL) - 600,
			time(NULL));
	query.n = 10;
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, 10 * SECOND), 8);
	kvfs_release(lease);
	assert_int_equal(look(w->space), 2);
	/* Without reuse of prefixes, blocks before the last one may be absent. */
	assert_int_equal(kvfs_space_open(w->session, "window", WINDOW,
					 KVFS_CREATE, &window),
			 0);
	for (uint32_t i = 4; i < 6; i++) {
		int64_t page = 0;
		kvfs_xfer *xfer;

		assert_int_equal(kvfs_save(w->pool, window, &keys[i], NULL, 1,
					   &page, NULL, &xfer),
				 0);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 10 * SECOND),
				 1);
		kvfs_xfer_free(xfer);
	}
	query.space = window;
	query.n = 6;
	assert_int_equal(kvfs_probe(&query, 1, states), 2);
	assert_int_equal(look(window), 0);
	query.n = 7;
	assert_int_equal(kvfs_probe(&query, 1, states), 2);
	assert_int_equal(look(window), 1);
	assert_memory_equal(&misses[0].key, &keys[6], sizeof(keys[6]));
	kvfs_space_close(window);
}

static void many_look_ups_are_listed(void **state)
{
	struct world *w = *state;
	kvfs_query query = {w->space, NULL, 1};
	size_t n = look(w->space);

	for (uint32_t i = 0; i < 1000; i++) {
		kvfs_key key = world_key(i);

		query.keys = &key;
		assert_int_equal(kvfs_match(&query, 1), 0);
	}
	assert_int_equal(look(w->space), n + 1000);
}

static void a_daemon_that_is_not_there_is_an_error(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	uint64_t cursor = 0;

	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_why(w->space, &key, 1, misses), -ENOTCONN);
	assert_int_equal(kvfs_misses(w->space, &cursor, misses, 256),
			 -ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	assert_int_equal(kvfs_why(w->space, &key, 1, misses), 1);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(arguments_that_cannot_be_are_refused),
		test(causes_are_in_the_order_asked),
		test(a_look_up_that_ends_early_is_logged_once),
		test(many_look_ups_are_listed),
		test(a_daemon_that_is_not_there_is_an_error),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
