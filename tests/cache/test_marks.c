/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_marks.c - the set of hashes in ssd.h that forgets a hash when another
 * one takes its place in the array.
 *
 * OWNS      its marks.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/ssd/ssd.h"

#define N 16u

/* Return a hash whose place in the array is @at; another @who gives another
 * hash for the same place. */
static uint64_t hash_of(uint64_t who, uint32_t at)
{
	return who << 33 | at;
}

static void what_was_marked_is_found_until_it_is_lifted(void **state)
{
	uint32_t marks[N] = {0};

	(void)state;
	for (uint32_t at = 0; at < N; at++) {
		assert_false(kv_marks_find(marks, N, hash_of(0, at)));
		kv_marks_set(marks, N, hash_of(0, at));
		assert_true(kv_marks_find(marks, N, hash_of(0, at)));
	}
	kv_marks_lift(marks, N, hash_of(0, 3));
	for (uint32_t at = 0; at < N; at++)
		assert_int_equal(kv_marks_find(marks, N, hash_of(0, at)),
				 at != 3);
}

static void a_later_one_takes_the_place(void **state)
{
	uint32_t marks[N] = {0};

	(void)state;
	kv_marks_set(marks, N, hash_of(1, 5));
	kv_marks_set(marks, N, hash_of(2, 5));
	assert_false(kv_marks_find(marks, N, hash_of(1, 5)));
	assert_true(kv_marks_find(marks, N, hash_of(2, 5)));
}

static void what_is_not_found_is_not_lifted(void **state)
{
	uint32_t marks[N] = {0};

	(void)state;
	kv_marks_lift(marks, N, hash_of(1, 5));
	assert_false(kv_marks_find(marks, N, hash_of(1, 5)));
	kv_marks_set(marks, N, hash_of(2, 5));
	kv_marks_lift(marks, N, hash_of(1, 5));
	assert_true(kv_marks_find(marks, N, hash_of(2, 5)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_marked_is_found_until_it_is_lifted),
		cmocka_unit_test(a_later_one_takes_the_place),
		cmocka_unit_test(what_is_not_found_is_not_lifted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
