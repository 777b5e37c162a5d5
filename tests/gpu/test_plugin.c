/* SPDX-License-Identifier: Apache-2.0 */
/* Which libraries are taken for devices.  Those tried lie beside this program;
 * no GPU is used. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "kernels/kvfs.h"
#include "kernels/device/device.h"

static void a_plugin_of_this_version_is_taken(void **state)
{
	const struct kv_device *device = kv_device_find("present:3");

	(void)state;
	assert_non_null(device);
	assert_string_equal(device->name, "present");
	assert_ptr_equal(kv_device_find("present"), device);
}

static void a_plugin_of_another_version_is_none(void **state)
{
	(void)state;
	assert_null(kv_device_find("past"));
	assert_null(kv_device_find("future"));
	assert_null(kv_device_find("future:1"));
}

static void what_is_no_name_of_a_plugin_is_looked_for_nowhere(void **state)
{
	(void)state;
	assert_null(kv_device_find(""));
	assert_null(kv_device_find("present3"));
	assert_null(kv_device_find("../gpu/present"));
	assert_null(kv_device_find("absent"));
}

static void a_pool_on_a_plugin_of_another_version_is_refused(void **state)
{
	static uint8_t memory[4096];
	kvfs_view view = {"k", memory, 4096, 4096, 1, 0};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "future",
		.views = &view,
		.n_views = 1,
		.pages = 1,
		.pages_per_block = 1,
	};
	kvfs_session *session;
	kvfs_pool *pool = NULL;

	(void)state;
	assert_int_equal(kvfs_open("/nowhere", &session), 0);
	assert_int_equal(
		kvfs_space_open(session, "m",
				"{\"tensors\":[{\"name\":\"k\",\"dtype\":"
				"\"U8\",\"shape\":[4096]}]}",
				0, &desc.space),
		0);
	assert_int_equal(kvfs_pool_register(session, &desc, &pool), -ENODEV);
	assert_int_equal(
		kvfs_pool_reserve(session, "past", desc.space, 1, 1, &pool),
		-ENODEV);
	assert_null(pool);
	kvfs_space_close(desc.space);
	kvfs_close(session);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plugin_of_this_version_is_taken),
		cmocka_unit_test(a_plugin_of_another_version_is_none),
		cmocka_unit_test(
			what_is_no_name_of_a_plugin_is_looked_for_nowhere),
		cmocka_unit_test(
			a_pool_on_a_plugin_of_another_version_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
