/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deadline.c - the heap of deadlines.
 *
 * OWNS      the deadlines of each test.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fs/control/server.h"

enum { N = 1000 };

static void an_empty_list_has_no_first(void **state)
{
	struct kv_deadlines list = {0};
	struct kv_deadline d = {0};

	(void)state;
	assert_null(kv_deadline_first(&list));
	kv_deadline_clear(&list, &d);
	assert_null(kv_deadline_first(&list));
	kv_deadlines_fini(&list);
}

static void deadlines_come_in_order_whatever_order_they_were_set(void **state)
{
	static struct kv_deadline d[N];
	struct kv_deadlines list = {0};
	struct kv_deadline *first;
	uint64_t last = 0;

	(void)state;
	for (size_t i = 0; i < N; i++)
		assert_int_equal(kv_deadline_set(&list, &d[i], i * 7919 % 997),
				 0);
	for (size_t i = 0; i < N; i++) {
		first = kv_deadline_first(&list);
		assert_true(first->at_ns >= last);
		last = first->at_ns;
		kv_deadline_clear(&list, first);
	}
	assert_null(kv_deadline_first(&list));
	kv_deadlines_fini(&list);
}

static void a_cleared_one_never_comes(void **state)
{
	static struct kv_deadline d[N];
	struct kv_deadlines list = {0};
	struct kv_deadline *first;
	uint64_t last = 0;
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < N; i++)
		assert_int_equal(kv_deadline_set(&list, &d[i], i * 31 % 1009),
				 0);
	for (size_t i = 0; i < N; i += 3)
		kv_deadline_clear(&list, &d[i]);
	for (; (first = kv_deadline_first(&list)); n++) {
		assert_int_not_equal((first - d) % 3, 0);
		assert_true(first->at_ns >= last);
		last = first->at_ns;
		kv_deadline_clear(&list, first);
	}
	assert_int_equal(n, N - (N + 2) / 3);
	kv_deadlines_fini(&list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_list_has_no_first),
		cmocka_unit_test(a_cleared_one_never_comes),
		cmocka_unit_test(
			deadlines_come_in_order_whatever_order_they_were_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
