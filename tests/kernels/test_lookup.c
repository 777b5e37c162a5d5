/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that look blocks up: probe and match. */
#include "tests/kernels/world.h"

#define LAST                                                               \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]" \
	"},{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[65536]}],"          \
	"\"reuse\":\"last\"}"
#define WINDOW                                                             \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]" \
	"},{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[65536]}],"          \
	"\"reuse\":\"window:2\"}"

/* Save block @block of @space, which has the same tensors as the pool. */
static void save_one(struct world *w, kvfs_space *space, uint32_t block)
{
	kvfs_key key = world_key(block);
	int64_t page = 0;
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_save(w->pool, space, &key, NULL, 1, &page, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 10 * SECOND), 1);
	kvfs_xfer_free(xfer);
}

static void queries_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0), bad = {.len = 33};
	kvfs_query query = {w->space, &key, 1};
	uint8_t s;

	assert_int_equal(kvfs_probe(NULL, 1, &s), -EINVAL);
	assert_int_equal(kvfs_probe(&query, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_match(NULL, 1), -EINVAL);
	query.keys = &bad;
	assert_int_equal(kvfs_probe(&query, 1, &s), -EINVAL);
	query.keys = NULL;
	assert_int_equal(kvfs_match(&query, 1), -EINVAL);
	query.keys = &key;
	query.n = SIZE_MAX;
	assert_int_equal(kvfs_match(&query, 1), -EINVAL);
	query.space = NULL;
	assert_int_equal(kvfs_probe(&query, 1, &s), -EINVAL);
	assert_int_equal(kvfs_probe(NULL, 0, NULL), 0);
	assert_int_equal(kvfs_match(NULL, 0), 0);
}

static void states_are_in_the_order_asked_and_counted(void **state)
{
	struct world *w = *state;
	kvfs_key keys[4] = {world_key(1), world_key(9), world_key(0),
			    world_key(8)};
	kvfs_query queries[2] = {{w->space, keys, 3}, {w->space, keys + 3, 1}};
	uint8_t states[4];

	world_save(w, 2);
	assert_int_equal(kvfs_probe(queries, 2, states), 2);
	assert_true(states[0] >= KVFS_SSD);
	assert_int_equal(states[1], KVFS_ABSENT);
	assert_true(states[2] >= KVFS_SSD);
	assert_int_equal(states[3], KVFS_ABSENT);
}

static void more_keys_than_a_message_holds_are_probed(void **state)
{
	struct world *w = *state;
	kvfs_key keys[1300];
	uint8_t states[1300];
	kvfs_query query = {w->space, keys, 1300};
	size_t i;

	world_save(w, 3);
	for (i = 0; i < 1300; i++)
		keys[i] = world_key((uint32_t)i % 1297);
	assert_int_equal(kvfs_probe(&query, 1, states), 6);
	assert_int_equal(states[1299], states[2]);
}

static void a_prefix_ends_at_the_first_hole(void **state)
{
	struct world *w = *state;
	kvfs_key keys[10];
	int64_t pages[10];
	kvfs_query query = {w->space, keys, 10};

	world_save(w, 8);
	world_chain(0, 10, keys, pages);
	assert_int_equal(kvfs_match(&query, 1), 8);
	assert_int_equal(kvfs_evict(w->space, &keys[3], 1, NULL), 1);
	assert_int_equal(kvfs_match(&query, 1), 3);
	assert_int_equal(kvfs_evict(w->space, &keys[0], 1, NULL), 1);
	assert_int_equal(kvfs_match(&query, 1), 0);
}

static void the_match_suits_every_spaces_reuse_rule(void **state)
{
	struct world *w = *state;
	kvfs_key keys[8];
	int64_t pages[8];
	kvfs_space *last, *window;
	kvfs_query queries[3];

	world_save(w, 6);
	world_chain(0, 8, keys, pages);
	assert_int_equal(
		kvfs_space_open(w->session, "last", LAST, KVFS_CREATE, &last),
		0);
	assert_int_equal(kvfs_space_open(w->session, "window", WINDOW,
					 KVFS_CREATE, &window),
			 0);
	queries[0] = (kvfs_query){w->space, keys, 8};
	queries[1] = (kvfs_query){last, keys, 8};
	queries[2] = (kvfs_query){window, keys, 8};
	assert_int_equal(kvfs_match(queries, 2), 0);
	save_one(w, last, 4);
	save_one(w, last, 7);
	assert_int_equal(kvfs_match(queries, 2), 5);
	assert_int_equal(kvfs_match(queries, 3), 0);
	save_one(w, window, 4);
	assert_int_equal(kvfs_match(queries, 3), 0);
	save_one(w, window, 3);
	assert_int_equal(kvfs_match(queries, 3), 5);
	assert_int_equal(kvfs_match(queries + 1, 1), 8);
	kvfs_space_close(last);
	kvfs_space_close(window);
}

static void a_daemon_that_is_not_there_is_a_miss(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	uint8_t s = KVFS_DRAM;

	world_save(w, 1);
	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_probe(&query, 1, &s), 0);
	assert_int_equal(s, KVFS_ABSENT);
	assert_int_equal(kvfs_match(&query, 1), 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	assert_int_equal(kvfs_probe(&query, 1, &s), 1);
	assert_int_equal(s, KVFS_SSD);
}

static void a_daemon_that_does_not_answer_is_a_miss_after_a_second(void **s)
{
	struct world *w = *s;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	uint8_t now = KVFS_DRAM;
	uint64_t before;

	world_save(w, 1);
	assert_int_equal(kvfs_probe(&query, 1, &now), 1);
	world_freeze(w);
	before = kv_now_ns();
	assert_int_equal(kvfs_probe(&query, 1, &now), 0);
	assert_int_equal(now, KVFS_ABSENT);
	assert_in_range(kv_now_ns() - before, SECOND / 2, 20 * SECOND);
	/* For a second after a time-out, calls miss at once.  Try again if this
	 * thread was late. */
	for (int i = 0; i < 20 && kv_now_ns() - before >= SECOND / 2; i++) {
		before = kv_now_ns();
		assert_int_equal(kvfs_probe(&query, 1, &now), 0);
	}
	assert_true(kv_now_ns() - before < SECOND / 2);
	world_thaw(w);
	for (before = kv_now_ns(); kvfs_probe(&query, 1, &now) != 1;) {
		assert_true(kv_now_ns() - before < 20 * SECOND);
		usleep(10000);
	}
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(queries_that_cannot_be_are_refused),
		test(a_daemon_that_is_not_there_is_a_miss),
		test(a_daemon_that_does_not_answer_is_a_miss_after_a_second),
		test(states_are_in_the_order_asked_and_counted),
		test(more_keys_than_a_message_holds_are_probed),
		test(a_prefix_ends_at_the_first_hole),
		test(the_match_suits_every_spaces_reuse_rule),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
