/* SPDX-License-Identifier: Apache-2.0 */
/* Detect a user namespace in which some users have no id; see
 * tests/mount/userns.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "common/kv.h"

static void a_map_of_all_users_is_whole(void **state)
{
	(void)state;
	assert_true(kv_uid_map_is_whole("         0          0 4294967295\n"));
	assert_true(kv_uid_map_is_whole("0 0 2147483648\n"
					"2147483648 2147483648 2147483647\n"));
}

static void any_other_map_hides_users(void **state)
{
	static const char *const maps[] = {
		"",
		"0 1000 1\n",
		"0 100000 65536\n",
		"0 1000 1\n1 100000 65536\n",
		"0 0 4294967294\n",
		"nonsense",
		"0 0",
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(maps); i++)
		assert_false(kv_uid_map_is_whole(maps[i]));
}

static void root_has_a_number_everywhere(void **state)
{
	(void)state;
	assert_false(kv_user_is_hidden(0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_map_of_all_users_is_whole),
		cmocka_unit_test(any_other_map_hides_users),
		cmocka_unit_test(root_has_a_number_everywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
