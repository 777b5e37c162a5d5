/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_histogram.c - numbers by their length in bits.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/histogram.h"

static void a_bucket_has_the_numbers_of_one_length(void **state)
{
	static const struct {
		uint64_t number;
		unsigned bits;
	} cases[] = {{0, 0},
		     {1, 1},
		     {2, 2},
		     {3, 2},
		     {4, 3},
		     {1023, 10},
		     {1024, 11},
		     {(UINT64_C(1) << 39) - 1, 39},
		     {UINT64_C(1) << 39, KV_HISTOGRAM_BITS},
		     {UINT64_C(1) << 62, KV_HISTOGRAM_BITS}};
	struct kv_histogram h = {0}, copy;
	uint64_t sum = 0;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		const uint64_t before = h.at[cases[i].bits];

		kv_histogram_add(&h, cases[i].number);
		sum += cases[i].number;
		assert_int_equal(h.at[cases[i].bits], before + 1);
		assert_int_equal(h.sum, sum);
	}
	kv_histogram_copy(&h, &copy);
	assert_memory_equal(&h, &copy, sizeof(h));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_bucket_has_the_numbers_of_one_length),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
