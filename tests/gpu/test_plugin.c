/* SPDX-License-Identifier: Apache-2.0 */
/* Which libraries are accepted as devices, and the messages for others.  The
 * libraries lie beside this program; no GPU is used. */
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

/* Copy a block, and a part of one, by the plug-in.  The block has two pages:
 * the first has its bytes in runs, the second is skipped. */
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

/* Return the line that kv_device_find prints for a rejected @name, if any. */
static const char *said_of(const char *name)
{
	static char text[1024];
	FILE *f = tmpfile();
	int err = dup(2);
	ssize_t n;

	assert_non_null(f);
	dup2(fileno(f), 2);
	assert_null(kv_device_find(name));
	dup2(err, 2);
	close(err);
	n = pread(fileno(f), text, sizeof(text) - 1, 0);
	assert_true(n >= 0);
	text[n] = '\0';
	fclose(f);
	if (n > 0)
		assert_ptr_equal(strchr(text, '\n'), text + n - 1);
	return text;
}

static void assert_says(const char *name, const char *what)
{
	const char *said = said_of(name);

	if (strncmp(said, "libkvfs: no device \"", 20) != 0 ||
	    strstr(said, what) == NULL)
		fail_msg("of \"%s\" was said: %s", name, said);
}

static void a_plugin_of_another_version_is_none(void **state)
{
	char ours[64];

	(void)state;
	snprintf(ours, sizeof(ours), "version %u of kvfs_device.h, and",
		 KVFS_DEVICE_VERSION - 1);
	assert_says("past", ours);
	snprintf(ours, sizeof(ours), "and this library version %u\n",
		 KVFS_DEVICE_VERSION);
	assert_says("future", ours);
	assert_says("past", ours);
	assert_says("future:1", ours);
}

static void a_plugin_that_lacks_something_is_none(void **state)
{
	(void)state;
	assert_says("partial", "\"partial\": the device has event_wait, but no "
			       "event_wait_is_done\n");
	assert_says("other", "the table has the name \"host\"\n");
	assert_says("nameless", "no symbol kvfs_device_nameless\n");
}

static void a_plugin_that_is_refused_may_have_threads(void **state)
{
	(void)state;
	assert_says("threaded", "version");
	usleep(50000);
}

static void what_cannot_be_loaded_is_told_by_the_linker(void **state)
{
	(void)state;
	assert_says("broken", "/libkvfs-broken.so.1: ");
	assert_says("absent", "libkvfs-absent.so.1: cannot open");
}

static void the_same_is_not_said_twice_together(void **state)
{
	(void)state;
	assert_says("past", "version");
	assert_string_equal(said_of("past"), "");
	assert_string_equal(said_of("past:7"), "");
	assert_says("absent", "cannot open");
	assert_says("past", "version");
}

static void what_is_no_name_of_a_plugin_is_looked_for_nowhere(void **state)
{
	static const char *const names[] = {"", "present3", "../gpu/present",
					    "presentpresentpresentpresentpres"};
	size_t i;

	(void)state;
	for (i = 0; i < KV_ARRAY_LEN(names); i++)
		assert_says(names[i], "\": that is no name of a device\n");
}

static void a_pool_on_a_plugin_that_is_none_is_refused(void **state)
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
	desc.device = "partial";
	assert_int_equal(kvfs_pool_register(session, &desc, &pool), -ENODEV);
	assert_int_equal(
		kvfs_pool_reserve(session, "present", desc.space, 1, 1, &pool),
		-EOPNOTSUPP);
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
		cmocka_unit_test(a_plugin_that_lacks_something_is_none),
		cmocka_unit_test(a_plugin_that_is_refused_may_have_threads),
		cmocka_unit_test(what_cannot_be_loaded_is_told_by_the_linker),
		cmocka_unit_test(the_same_is_not_said_twice_together),
		cmocka_unit_test(
			what_is_no_name_of_a_plugin_is_looked_for_nowhere),
		cmocka_unit_test(a_pool_on_a_plugin_that_is_none_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
