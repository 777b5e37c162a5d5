/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coverage.c - the record of the byte ranges of a file that were written.
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

#include "fs/mount/mount.h"

static void too_many_holes_are_refused_and_change_nothing(void **state)
{
	struct kv_coverage c = {0};

	(void)state;
	for (uint64_t i = 0; i < KV_COVERAGE_MAX; i++)
		assert_int_equal(kv_coverage_add(&c, i * 4, i * 4 + 2), 0);
	assert_int_equal(kv_coverage_add(&c, 1000000, 1000001), -EFBIG);
	assert_int_equal(c.n, KV_COVERAGE_MAX);
	/* The ranges are not charged to the user, so they must be few. */
	assert_in_range(c.room * sizeof(*c.ranges), 1, KV_PAGE);
	assert_int_equal(kv_coverage_add(&c, 0, 100), 0);
	assert_int_equal(kv_coverage_prefix(&c), 102);
	kv_coverage_fini(&c);
}

/* The 128 KiB requests of a 64 MiB block arrive in the worst order. */
static void every_order_of_large_requests_is_recorded(void **state)
{
	const uint64_t request = 128u << 10, end = 64u << 20;
	struct kv_coverage c = {0};

	(void)state;
	for (int odd = 1; odd >= 0; odd--)
		for (uint64_t i = odd * request; i < end; i += 2 * request)
			assert_int_equal(kv_coverage_add(&c, i, i + request),
					 0);
	assert_int_equal(kv_coverage_prefix(&c), end);
	kv_coverage_fini(&c);
}

static void nothing_written_covers_nothing(void **state)
{
	struct kv_coverage c = {0};

	(void)state;
	assert_int_equal(kv_coverage_add(&c, 5, 5), 0);
	assert_int_equal(kv_coverage_prefix(&c), 0);
	assert_int_equal(kv_coverage_end(&c), 0);
	kv_coverage_fini(&c);
}

static void a_hole_ends_the_prefix_until_it_is_filled(void **state)
{
	struct kv_coverage c = {0};

	(void)state;
	kv_coverage_add(&c, 100, 200);
	assert_int_equal(kv_coverage_prefix(&c), 0);
	kv_coverage_add(&c, 0, 50);
	assert_int_equal(kv_coverage_prefix(&c), 50);
	assert_int_equal(kv_coverage_end(&c), 200);
	kv_coverage_add(&c, 50, 99);
	assert_int_equal(kv_coverage_prefix(&c), 99);
	kv_coverage_add(&c, 99, 100);
	assert_int_equal(kv_coverage_prefix(&c), 200);
	assert_int_equal(c.n, 1);
	kv_coverage_fini(&c);
}

static void check_ranges(const struct kv_coverage *c, const uint8_t *model,
			 size_t n)
{
	size_t i = 0;

	for (size_t k = 0; k < c->n; k++) {
		for (; i < c->ranges[k].start; i++)
			assert_int_equal(model[i], 0);
		for (; i < c->ranges[k].end; i++)
			assert_int_equal(model[i], 1);
		assert_true(k + 1 == c->n ||
			    c->ranges[k].end < c->ranges[k + 1].start);
	}
	for (; i < n; i++)
		assert_int_equal(model[i], 0);
}

static void random_writes_agree_with_a_map_of_bytes(void **state)
{
	uint8_t model[512];
	unsigned seed = 7;

	(void)state;
	for (int round = 0; round < 200; round++) {
		struct kv_coverage c = {0};

		memset(model, 0, sizeof(model));
		for (int i = 0; i < 40; i++) {
			size_t start = (size_t)rand_r(&seed) % 500;
			size_t n = (size_t)rand_r(&seed) % 12;

			assert_int_equal(kv_coverage_add(&c, start, start + n),
					 0);
			memset(model + start, 1, n);
			check_ranges(&c, model, sizeof(model));
		}
		kv_coverage_fini(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(too_many_holes_are_refused_and_change_nothing),
		cmocka_unit_test(every_order_of_large_requests_is_recorded),
		cmocka_unit_test(nothing_written_covers_nothing),
		cmocka_unit_test(a_hole_ends_the_prefix_until_it_is_filled),
		cmocka_unit_test(random_writes_agree_with_a_map_of_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
