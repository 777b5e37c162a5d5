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
	const struct kvfs_device *device = kv_device_find("present:3");

	(void)state;
	assert_non_null(device);
	assert_string_equal(device->name, "present");
	assert_ptr_equal(kv_device_find("present"), device);
}

/* Two pages a block, in runs, one of them passed over; all of it, and a part. */
static void a_plugin_moves_what_the_host_moves(void **state)
{
	static uint8_t memory[2][8 * 256], tensors[2][1024];
	static const int64_t pages[] = {5, -1};
	static const struct kvfs_range some = {100, 700};
	struct kvfs_stride strides[2] = {{0, NULL, 256, 64, 4, 64},
					 {512, NULL, 256, 256, 1, 0}};
	const struct kvfs_strides all = {2, 2, strides};
	const struct kv_two {
		const struct kvfs_device *device;
	} two[] = {{kv_device_find("present")}, {&kv_device_host}};
	size_t i, k;
	int part;

	(void)state;
	for (part = 0; part < 2; part++) {
		for (i = 0; i < 2; i++) {
			const struct kvfs_copy copy = {tensors[i], pages};
			const struct kvfs_batch batch = {
				.strides = &all,
				.ranges = &some,
				.n_ranges = (size_t)part,
				.copies = &copy,
				.n = 1,
			};

			strides[0].base = strides[1].base = memory[i];
			memset(memory[i], 0x5a, sizeof(memory[i]));
			for (k = 0; k < sizeof(tensors[i]); k++)
				tensors[i][k] = (uint8_t)(7 * k + k / 256);
			assert_int_equal(two[i].device->load(NULL, &batch), 0);
			memset(tensors[i], 0x11, sizeof(tensors[i]));
			assert_int_equal(two[i].device->save(NULL, &batch), 0);
		}
		assert_memory_equal(memory[0], memory[1], sizeof(memory[0]));
		assert_memory_equal(tensors[0], tensors[1], sizeof(tensors[0]));
	}
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
		cmocka_unit_test(a_plugin_moves_what_the_host_moves),
		cmocka_unit_test(a_plugin_of_another_version_is_none),
		cmocka_unit_test(
			what_is_no_name_of_a_plugin_is_looked_for_nowhere),
		cmocka_unit_test(
			a_pool_on_a_plugin_of_another_version_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
