/* SPDX-License-Identifier: Apache-2.0 */
/* The pinned buffers of a copy stream, as kvfs_pool_staging sets them. */
#include "tests/gpu/rig.h"

static void assert_buffers(unsigned n, uint64_t bytes)
{
	struct kvfs_pool_info info = rig_info(&rig);

	assert_int_equal(info.buffers, n);
	assert_int_equal(info.buffer_bytes, bytes);
}

static void set_buffers(uint64_t bytes, unsigned n)
{
	assert_int_equal(rig.device->staging(rig.pool, bytes, n), 0);
}

/* Each copy stream gets the new buffers at once, whatever it had before. */
static void the_buffers_are_as_many_and_as_large_as_was_asked(void **state)
{
	static const struct {
		uint64_t bytes;
		unsigned n;
	} some[] = {{64 << 10, 3}, {4 << 20, 8}, {1 << 20, 2}, {100 << 10, 5}};
	const uint64_t streams = KV_MIN(sysconf(_SC_NPROCESSORS_ONLN), 4);
	uint64_t i, pinned, all, tables = 0;

	(void)state;
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_staging(&rig);
	assert_buffers(2, 8 << 20);
	for (i = 0; i < KV_ARRAY_LEN(some); i++) {
		all = some[i].n * some[i].bytes;
		set_buffers(some[i].bytes, some[i].n);
		assert_buffers(some[i].n, some[i].bytes);
		rig_check_load(&rig, 0, RIG_BLOCKS, 100 * i);
		rig_fill_pool(&rig, 100 * i + 50);
		rig_check_save(&rig, RIG_BLOCKS);
		pinned = rig_info(&rig).bytes_pinned;
		if (tables == 0)
			tables = pinned - streams * all;
		assert_int_equal(pinned, tables + streams * all);
		assert_true(tables <= streams << 20);
	}
}

/* Wherever the memory ends, all copy streams keep what they had. */
static void buffers_that_cannot_be_had_leave_the_old_ones(void **state)
{
	const unsigned streams =
		(unsigned)KV_MIN(sysconf(_SC_NPROCESSORS_ONLN), 4);
	uint64_t pinned;
	char fault[64];

	(void)state;
	rig_needs_faults();
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	set_buffers(64 << 10, 3);
	pinned = rig_info(&rig).bytes_pinned;
	for (unsigned i = 1; i <= 5 * streams; i++) {
		snprintf(fault, sizeof(fault), "fail=cuMemHostAlloc:%u:2", i);
		gpu_set(fault);
		assert_int_equal(rig.device->staging(rig.pool, 1 << 20, 5),
				 -ENOMEM);
		assert_buffers(3, 64 << 10);
		assert_int_equal(rig_info(&rig).bytes_pinned, pinned);
	}
	rig_check_load(&rig, 0, RIG_BLOCKS, 5);
}

static void the_buffers_are_never_too_many_nor_too_small(void **state)
{
	(void)state;
	set_buffers(1 << 20, 1);
	assert_buffers(2, 1 << 20);
	set_buffers(1 << 20, UINT32_MAX);
	assert_buffers(8, 1 << 20);
	set_buffers(UINT64_MAX, 2);
	assert_buffers(2, 32 << 20);
	set_buffers(UINT64_MAX, 7);
	assert_buffers(7, (64 << 20) / 7 / 4096 * 4096);
	set_buffers(1, 4);
	assert_buffers(4, 64 << 10);
	set_buffers((64 << 10) + 4095, 4);
	assert_buffers(4, 64 << 10);
}

#define TEST(name) \
	cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		TEST(the_buffers_are_as_many_and_as_large_as_was_asked),
		TEST(the_buffers_are_never_too_many_nor_too_small),
		TEST(buffers_that_cannot_be_had_leave_the_old_ones),
	};

	(void)argc;
	gpu_begin(argv);
	if (gpu_open() < 0)
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
