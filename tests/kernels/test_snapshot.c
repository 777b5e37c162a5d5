/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: made, read back, listed, dropped. */
#include "tests/kernels/world.h"

#define MANY 1300u /* number of blocks: three messages, the last one short */

static int snapshot(struct world *w, const char *name, size_t n,
		    size_t *ret_missing)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];

	world_chain(0, n, keys, pages);
	return kvfs_snapshot(w->space, name, keys, NULL, n, ret_missing);
}

static char *pinned_line(struct world *w)
{
	char *text;

	assert_int_equal(kvfs_stats(w->session, &text), 0);
	return text;
}

static void assert_pinned(struct world *w, const char *words)
{
	char *text = pinned_line(w);

	assert_non_null(strstr(text, words));
	free(text);
}

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key keys[2] = {world_key(0), world_key(1)}, bad = {.len = 1};
	uint32_t down[2] = {4, 3}, same[2] = {4, 4};
	uint32_t far[1] = {KVFS_POSITION_MAX + 1};
	char name[257], *names;

	memset(name, 'x', 256);
	name[256] = '\0';
	assert_int_equal(kvfs_snapshot(NULL, "a", keys, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, NULL, keys, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, "", keys, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, ".a", keys, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, "a/b", keys, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, name, keys, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, "a", keys, NULL, 0, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, "a", &bad, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, "a", keys, down, 2, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, "a", keys, same, 2, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot(w->space, "a", keys, far, 1, NULL),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot_keys(w->space, "", NULL, NULL, 0),
			 -EINVAL);
	assert_int_equal(kvfs_snapshot_drop(w->space, "a/b"), -EINVAL);
	assert_int_equal(kvfs_snapshot_list(w->space, NULL), -EINVAL);
	assert_int_equal(kvfs_snapshot_list(NULL, &names), -EINVAL);
}

static void a_name_that_is_not_there_is_told(void **state)
{
	struct world *w = *state;
	char *names;

	assert_int_equal(kvfs_snapshot_keys(w->space, "a", NULL, NULL, 0),
			 -ENOENT);
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), -ENOENT);
	assert_int_equal(kvfs_snapshot_list(w->space, &names), 0);
	free(names);
}

static void a_snapshot_lists_its_keys_and_positions(void **state)
{
	struct world *w = *state;
	kvfs_key keys[3] = {world_key(0), world_key(2), world_key(5)};
	kvfs_key got[3];
	uint32_t positions[3] = {0, 2, 99999999}, at[3];
	char *names;

	world_save(w, 6);
	assert_int_equal(
		kvfs_snapshot(w->space, "turn 1", keys, positions, 3, NULL), 0);
	assert_int_equal(kvfs_snapshot_keys(w->space, "turn 1", got, at, 3), 3);
	assert_memory_equal(got, keys, sizeof(keys));
	assert_memory_equal(at, positions, sizeof(positions));
	/* Get as many keys as the array has room for; the call returns the
	 * number of all. */
	memset(got, 0, sizeof(got));
	assert_int_equal(kvfs_snapshot_keys(w->space, "turn 1", got, NULL, 1),
			 3);
	assert_int_equal(got[1].len, 0);
	assert_int_equal(kvfs_snapshot_keys(w->space, "turn 1", NULL, NULL, 0),
			 3);
	assert_int_equal(snapshot(w, "turn 2", 6, NULL), 0);
	assert_int_equal(kvfs_snapshot_list(w->space, &names), 2);
	assert_string_equal(names, "turn 1");
	assert_string_equal(names + strlen("turn 1") + 1, "turn 2");
	free(names);
	assert_int_equal(kvfs_snapshot_drop(w->space, "turn 1"), 0);
	assert_int_equal(kvfs_snapshot_drop(w->space, "turn 1"), -ENOENT);
	assert_int_equal(kvfs_snapshot_drop(w->space, "turn 2"), 0);
}

static void a_snapshot_pins_until_it_is_dropped(void **state)
{
	struct world *w = *state;
	kvfs_key keys[4];
	int64_t pages[4];

	world_chain(0, 4, keys, pages);
	world_save(w, 4);
	assert_int_equal(snapshot(w, "a", 3, NULL), 0);
	assert_pinned(w, " 3 pinned");
	assert_int_equal(snapshot(w, "b", 4, NULL), 0);
	assert_int_equal(kvfs_pin(w->space, keys, 0, 1, NULL), 1);
	assert_pinned(w, " 4 pinned");
	/* Dropping one snapshot keeps the other. */
	assert_int_equal(kvfs_snapshot_drop(w->space, "b"), 0);
	assert_pinned(w, " 3 pinned");
	assert_int_equal(kvfs_unpin(w->space, keys, 1, 3, NULL), 2);
	assert_pinned(w, " 3 pinned");
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);
	assert_pinned(w, " 1 pinned");
	assert_int_equal(kvfs_unpin(w->space, keys, 0, 1, NULL), 1);
	assert_pinned(w, " 0 pinned");
}

static void a_missing_block_is_told_and_nothing_is_pinned(void **state)
{
	struct world *w = *state;
	size_t missing = 77;

	world_save(w, 3);
	assert_int_equal(snapshot(w, "a", 5, &missing), -ENOENT);
	assert_int_equal(missing, 3);
	assert_pinned(w, " 0 pinned");
	assert_int_equal(kvfs_snapshot_keys(w->space, "a", NULL, NULL, 0),
			 -ENOENT);
	assert_int_equal(snapshot(w, "a", 3, &missing), 0);
	assert_int_equal(snapshot(w, "a", 3, &missing), -EEXIST);
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);
}

static void spaces_have_names_of_their_own(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_space *other;

	world_save(w, 1);
	assert_int_equal(kvfs_space_open(w->session, "other", WORLD_LAYOUT,
					 KVFS_CREATE | 0700, &other),
			 0);
	assert_int_equal(kvfs_snapshot(other, "a", &key, NULL, 1, NULL),
			 -ENOENT);
	assert_int_equal(snapshot(w, "a", 1, NULL), 0);
	assert_int_equal(kvfs_snapshot_drop(other, "a"), -ENOENT);
	assert_int_equal(kvfs_snapshot_drop(w->space, "a"), 0);
	kvfs_space_close(other);
}

/* The positions have gaps: each message must continue at the right position. */
static void more_blocks_than_a_message_has(void **state)
{
	static kvfs_key keys[MANY], got[MANY];
	static uint32_t positions[MANY], at[MANY];
	struct world *w = *state;
	kvfs_xfer *xfer;
	size_t i, missing;

	for (i = 0; i < MANY; i++) {
		keys[i] = world_key((uint32_t)(i % 7));
		positions[i] = (uint32_t)(3 * i);
	}
	world_save(w, 6);
	/* Block 6 does not exist; its first index in the snapshot is 6. */
	assert_int_equal(kvfs_snapshot(w->space, "long", keys, positions, MANY,
				       &missing),
			 -ENOENT);
	assert_int_equal(missing, 6);
	assert_pinned(w, " 0 pinned");
	world_save(w, 7);
	assert_int_equal(kvfs_snapshot(w->space, "long", keys, positions, MANY,
				       &missing),
			 0);
	assert_pinned(w, " 7 pinned");
	assert_int_equal(kvfs_snapshot_keys(w->space, "long", got, at, MANY),
			 MANY);
	assert_memory_equal(got, keys, sizeof(keys));
	assert_memory_equal(at, positions, sizeof(positions));
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 60 * SECOND), 1);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_snapshot_drop(w->space, "long"), 0);
	assert_pinned(w, " 0 pinned");
}

/* Flushed snapshots survive SIGKILL, and pin their blocks again. */
static void a_flushed_snapshot_survives_the_daemon(void **state)
{
	struct world *w = *state;
	kvfs_key keys[3], got[3];
	int64_t pages[3];
	kvfs_xfer *xfer;
	char *names;

	world_chain(0, 3, keys, pages);
	world_save(w, 3);
	assert_int_equal(snapshot(w, "kept", 3, NULL), 0);
	assert_int_equal(snapshot(w, "dropped", 3, NULL), 0);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 60 * SECOND), 1);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_snapshot_drop(w->space, "dropped"), 0);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 60 * SECOND), 1);
	kvfs_xfer_free(xfer);

	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(snapshot(w, "x", 1, NULL), -ENOTCONN);
	assert_int_equal(kvfs_snapshot_list(w->space, &names), -ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	assert_int_equal(kvfs_snapshot_list(w->space, &names), 1);
	assert_string_equal(names, "kept");
	free(names);
	assert_int_equal(kvfs_snapshot_keys(w->space, "kept", got, NULL, 3), 3);
	assert_memory_equal(got, keys, sizeof(keys));
	assert_pinned(w, " 3 pinned");
	assert_int_equal(kvfs_snapshot_drop(w->space, "kept"), 0);
	assert_pinned(w, " 0 pinned");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(arguments_that_cannot_be_are_refused),
		TEST(a_name_that_is_not_there_is_told),
		TEST(a_snapshot_lists_its_keys_and_positions),
		TEST(a_snapshot_pins_until_it_is_dropped),
		TEST(a_missing_block_is_told_and_nothing_is_pinned),
		TEST(spaces_have_names_of_their_own),
		TEST(more_blocks_than_a_message_has),
		TEST(a_flushed_snapshot_survives_the_daemon),
	};

	return cmocka_run_group_tests_name("snapshot", tests, world_group_setup,
					   world_group_teardown);
}
