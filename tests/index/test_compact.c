/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_compact.c - compacting an index after most of its records were deleted.
 *
 * OWNS      nothing but its fixture.
 *
 * LOCKING   none: one thread.
 */
#include <sys/stat.h>

#include "tests/index/index_fixture.h"

/* Make a directory with the name of the copy, so that not even root can make
 * the copy. */
static void a_copy_that_cannot_be_made_leaves_the_index_as_it_was(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {0};
	char copy[64];

	snprintf(copy, sizeof(copy), "%s/compact.tmp", f->directory);
	assert_int_equal(put_slots(f, 0, 50000), 0);
	assert_int_equal(delete_slots(f, 1000, 49000, 1), 0);
	assert_int_equal(mkdir(copy, 0700), 0);
	assert_int_equal(kv_index_compact(&f->index, f->directory, MAP),
			 -EISDIR);
	rmdir(copy);
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, 1000);
}

static void compaction_halves_a_shrunken_index_and_only_that(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {0};
	uint64_t before;

	assert_int_equal(kv_index_compact(&f->index, f->directory, MAP), 0);
	for (uint64_t id = 0; id < 100000; id += 10000)
		assert_int_equal(put_slots(f, id, 10000), 0);
	assert_int_equal(kv_index_compact(&f->index, f->directory, MAP), 0);
	for (uint64_t id = 1000; id < 100000; id += 1000)
		assert_int_equal(delete_slots(f, id, 1000, 1), 0);
	before = kv_index_bytes(f->index);
	assert_int_equal(kv_index_compact(&f->index, f->directory, MAP), 1);
	assert_true(kv_index_bytes(f->index) < before / 2);
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, 1000);
	assert_int_equal(put_slots(f, 5000, 1000), 0);
	assert_int_equal(open_again(f, false), 0);
	seen = (struct seen){0};
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, 2000);
}

/* A mount with a lower cap has made LMDB's map smaller than the index. */
static void an_index_larger_than_its_map_is_compacted_for_any_gain(void **state)
{
	struct fixture *f = *state;
	uint64_t before;

	assert_int_equal(put_slots(f, 0, 50000), 0);
	assert_int_equal(delete_slots(f, 0, 10000, 1), 0);
	before = kv_index_bytes(f->index);
	assert_int_equal(kv_index_compact(&f->index, f->directory, MAP), 0);
	assert_int_equal(kv_index_compact(&f->index, f->directory, before / 2),
			 1);
	assert_true(kv_index_bytes(f->index) < before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_index_larger_than_its_map_is_compacted_for_any_gain),
		TEST(a_copy_that_cannot_be_made_leaves_the_index_as_it_was),
		TEST(compaction_halves_a_shrunken_index_and_only_that),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
