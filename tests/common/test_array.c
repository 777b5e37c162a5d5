/* SPDX-License-Identifier: Apache-2.0 */
/* test_array.c - growable arrays, token buckets and back-off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/array.h"
#include "common/rate.h"

static void reserved_room_holds_what_was_asked_for(void **state)
{
	uint64_t *items = NULL;
	size_t room = 0;

	(void)state;
	assert_int_equal(kv_array_reserve(&items, &room, 1), 0);
	assert_int_equal(room, 16);
	items[0] = 7;
	assert_int_equal(kv_array_reserve(&items, &room, 17), 0);
	assert_int_equal(room, 32);
	assert_int_equal(kv_array_reserve(&items, &room, 1000), 0);
	assert_int_equal(room, 1000);
	assert_int_equal(items[0], 7);
	items[999] = 9;
	free(items);
}

static void an_array_that_cannot_grow_stays(void **state)
{
	/* volatile: otherwise the compiler warns that the size is too large */
	volatile size_t too_many = SIZE_MAX / 2;
	uint64_t *items = NULL, *before;
	size_t room = 0;

	(void)state;
	assert_int_equal(kv_array_reserve(&items, &room, 1), 0);
	before = items;
	assert_int_equal(kv_array_reserve(&items, &room, too_many), -ENOMEM);
	assert_ptr_equal(items, before);
	assert_int_equal(room, 16);
	free(items);
}

static void items_are_appended_one_by_one(void **state)
{
	uint32_t *items = NULL;
	size_t n = 0;

	(void)state;
	for (int round = 0; round < 2; round++) {
		while (n < 5000) {
			assert_int_equal(kv_array_more(&items, n), 0);
			items[n] = (uint32_t)n;
			n++;
		}
		for (size_t i = 0; i < n; i++)
			assert_int_equal(items[i], i);
		n = 100; /* the owner of an array may drop its last items */
	}
	free(items);
}

static void a_bucket_begins_full_and_pays_its_debt(void **state)
{
	struct kv_bucket bucket = {0};

	(void)state;
	assert_true(kv_bucket_fill(&bucket, 1000, 500));
	assert_true(bucket.credit == 500);
	bucket.credit -= 1500;
	assert_false(kv_bucket_fill(&bucket, 1000, 500));
	bucket.ns -= UINT64_C(2000000000);
	assert_true(kv_bucket_fill(&bucket, 1000, 500));
	assert_true(bucket.credit == 500);
}

static void each_pause_is_twice_the_one_before(void **state)
{
	(void)state;
	assert_int_equal(kv_backoff(0, 10, 35), 10);
	assert_int_equal(kv_backoff(10, 10, 35), 20);
	assert_int_equal(kv_backoff(20, 10, 35), 35);
	assert_int_equal(kv_backoff(35, 10, 35), 35);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reserved_room_holds_what_was_asked_for),
		cmocka_unit_test(an_array_that_cannot_grow_stays),
		cmocka_unit_test(items_are_appended_one_by_one),
		cmocka_unit_test(a_bucket_begins_full_and_pays_its_debt),
		cmocka_unit_test(each_pause_is_twice_the_one_before),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
