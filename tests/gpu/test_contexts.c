/* SPDX-License-Identifier: Apache-2.0 */
/* test_contexts.c - what engines do with contexts and with memory that is mapped
 * piece by piece: expandable segments, sleep, another current context, a reset; and
 * drivers that do not begin, or make no context. */
#include "tests/gpu/rig.h"

#define PART ((uint64_t)2 << 20) /* bytes of a mapping */
#define PARTS (RIG_BYTES / PART + 1)

static CUdeviceptr reserved;

static void map_all(void)
{
	const CUmemProp prop = {.type = 1, .location = {1, 0}};
	const CUmemAccess access = {{1, 0}, 3};
	CUmemHandle handle;
	uint64_t i;

	for (i = 0; i < PARTS; i++) {
		GPU_OK(cuMemCreate, &handle, PART, &prop, 0);
		GPU_OK(cuMemMap, reserved + i * PART, PART, 0, handle, 0);
		GPU_OK(cuMemRelease, handle);
	}
	GPU_OK(cuMemSetAccess, reserved, PARTS * PART, &access, 1);
}

static void unmap_all(void)
{
	uint64_t i;

	for (i = 0; i < PARTS; i++)
		GPU_OK(cuMemUnmap, reserved + i * PART, PART);
}

/* Put the pool into memory of many mappings, as PyTorch's expandable segments and
 * vLLM's memory that can sleep are. */
static int set_up_mapped(void **state)
{
	(void)state;
	rig_open(&rig);
	rig.device->close(rig.pool);
	gpu_free(rig.memory);
	GPU_OK(cuMemAddressReserve, &reserved, PARTS * PART, 0, 0, 0);
	map_all();
	rig.memory = reserved;
	rig_layout(&rig);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_fill_pool(&rig, 1);
	return 0;
}

static int tear_down_mapped(void **state)
{
	(void)state;
	rig.device->close(rig.pool);
	GPU_OK(cuCtxSynchronize);
	unmap_all();
	GPU_OK(cuMemAddressFree, reserved, PARTS * PART);
	rig.memory = gpu_alloc(RIG_BYTES);
	rig_layout(&rig);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_close(&rig);
	return 0;
}

static void pages_may_lie_in_several_mappings(void **state)
{
	(void)state;
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_staging(&rig);
	rig_check_load(&rig, 0, RIG_BLOCKS, 3);
	rig_check_save(&rig, RIG_BLOCKS);
}

/* Transfers that begin while the pages are unmapped fail, and leave the context
 * whole.  The pages are then mapped again at the same addresses. */
static void pages_may_be_unmapped_and_mapped_again(void **state)
{
	struct rig_batch b;

	(void)state;
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_staging(&rig);
	for (unsigned round = 0; round < 3; round++) {
		rig_check_load(&rig, 0, RIG_BLOCKS, round);
		GPU_OK(cuCtxSynchronize);
		unmap_all();
		rig_make_load(&rig, &b, 0, RIG_BLOCKS, 99);
		assert_int_equal(rig.device->load(rig.pool, &b.batch), -EIO);
		rig_make(&rig, &b, rig.staging, RIG_BLOCK, 2, RIG_BLOCKS);
		assert_int_equal(rig.device->save(rig.pool, &b.batch), -EIO);
		map_all();
		rig_fill_pool(&rig, 10 + round);
		rig_check_save(&rig, RIG_BLOCKS);
	}
}

/* Return the context of a new stream, which is the current one. */
static CUcontext context_now(void)
{
	CUstream stream = gpu_stream();
	CUcontext context;

	GPU_OK(cuStreamGetCtx, stream, &context);
	GPU_OK(cuStreamDestroy_v2, stream);
	return context;
}

static void another_context_may_be_current(void **state)
{
	struct rig_batch b;
	CUcontext other;
	CUdeviceptr none;
	void *pool, *wait;

	(void)state;
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_make_load(&rig, &b, 0, RIG_BLOCKS, 5);
	GPU_OK(cuCtxSetCurrent, NULL);
	assert_int_equal(rig.device->open(&rig.desc, &pool), 0);
	assert_int_equal(rig.device->load(pool, &b.batch), 0);
	rig.device->close(pool);
	assert_int_equal(gpu.cuMemAlloc_v2(&none, 4096), CU_INVALID_CONTEXT);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	rig_on_image(&rig, &b, true);
	rig_assert_is_image(&rig);
	rig_needs_faults();
	gpu_set("devices=2");
	GPU_OK(cuDevicePrimaryCtxRetain, &other, 1);
	GPU_OK(cuCtxSetCurrent, other);
	assert_int_equal(rig.device->open(&rig.desc, &pool), 0);
	assert_int_equal(rig.device->load(pool, &b.batch), 0);
	assert_int_equal(rig.device->staging(pool, 1 << 20, 2), 0);
	assert_int_equal(rig.device->event_wait(pool, CU_LEGACY, NULL, &wait),
			 0);
	rig.device->event_wait_free(wait);
	rig.device->close(pool);
	assert_ptr_equal(context_now(), other);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	GPU_OK(cuDevicePrimaryCtxRelease_v2, 1);
	gpu_set("devices=1");
	rig_assert_is_image(&rig);
}

/* Reset the context, and check that transfers fail and that a pool made later works.
 * @again: the process uses the context again before the plug-in is called. */
static void reset_the_context(bool again)
{
	struct rig_batch b;
	CUdeviceptr reused = 0;
	void *wait, *memory, *base;

	rig_needs_faults();
	rig_arena_to_register(&rig, RIG_BLOCKS * RIG_BLOCK);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig_wait_tried(&rig, rig.arena_bytes);
	rig_check_load(&rig, 0, RIG_BLOCKS, 6);
	assert_int_equal(
		rig.device->event_wait(rig.pool, CU_LEGACY, NULL, &wait), 0);
	if (!again)
		assert_int_equal(rig.device->reserve("cuda:0", PART, 2 * PART,
						     &memory, &base),
				 0);
	GPU_OK(cuDevicePrimaryCtxReset_v2, 0);
	rig_make_load(&rig, &b, 0, RIG_BLOCKS, 7);
	if (!again)
		assert_int_equal(rig.device->load(rig.pool, &b.batch), -EIO);
	gpu_retain(0);
	/* Other memory gets the addresses of the pool and of the plug-in. */
	if (again) {
		reused = gpu_alloc(RIG_BYTES + (64 << 20));
		assert_in_range(rig.memory, reused, reused + (32 << 20));
	}
	assert_int_equal(rig.device->load(rig.pool, &b.batch), -EIO);
	assert_int_equal(rig.device->save(rig.pool, &b.batch), -EIO);
	assert_true(rig.device->event_wait_is_done(wait));
	rig.device->event_wait_free(wait);
	assert_string_equal(rig_info(&rig).reason,
			    "the GPU's context has failed");
	if (again)
		gpu_free(reused);
	else
		rig.device->release(memory); /* the reset has left it */
	rig.device->close(rig.pool);
	GPU_OK(cuDevicePrimaryCtxRelease_v2, 0);
	rig.memory = gpu_alloc(RIG_BYTES);
	GPU_OK(cuMemcpyHtoD_v2, rig.memory, rig.image, RIG_BYTES);
	rig_layout(&rig);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_wait_tried(&rig, rig.arena_bytes);
	rig_check_load(&rig, 0, RIG_BLOCKS, 8);
}

static void after_a_reset_a_new_pool_works(void **state)
{
	(void)state;
	reset_the_context(false);
}

/* Have the rig's memory at the first addresses, which are reused first. */
static int set_up_first(void **state)
{
	if (gpu.set != NULL)
		gpu_reset();
	return rig_set_up(state);
}

static void memory_at_the_old_addresses_hides_no_reset(void **state)
{
	(void)state;
	reset_the_context(true);
}

/* The memory is registered in the context of the GPU that was used first. */
static void a_reset_of_one_gpu_does_not_break_another(void **state)
{
	kvfs_view view = {"t", NULL, PART, PART, 1, 0};
	kvfs_pool_desc desc = rig.desc;
	CUcontext other;
	void *pool;

	(void)state;
	rig_needs_faults();
	rig_arena_to_register(&rig, RIG_BLOCKS * RIG_BLOCK);
	rig.device->close(rig.pool);
	gpu_set("devices=2");
	GPU_OK(cuDevicePrimaryCtxRetain, &other, 1);
	GPU_OK(cuCtxSetCurrent, other);
	view.base = (void *)(uintptr_t)gpu_alloc(PART);
	desc.views = &view;
	desc.n_views = desc.pages = 1;
	assert_int_equal(rig.device->open(&desc, &pool), 0);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig_wait_tried(&rig, rig.arena_bytes);
	rig_check_load(&rig, 0, RIG_BLOCKS, 9);
	GPU_OK(cuDevicePrimaryCtxReset_v2, 1);
	rig_check_load(&rig, 0, RIG_BLOCKS, 10);
	rig.device->close(pool);
	GPU_OK(cuDevicePrimaryCtxRelease_v2, 1);
	rig_check_load(&rig, 0, RIG_BLOCKS, 11);
}

static int tear_down_two(void **state)
{
	int r = rig_tear_down(state);

	gpu_set("devices=1");
	return r;
}

/* 46: the GPU is in exclusive mode, and another process has it; 805 to 809: there
 * is no connection to the MPS server.  Both may pass. */
static const struct {
	int code, error;
} failures[] = {{46, -EBUSY},	{805, -EBUSY},	{806, -EBUSY}, {807, -EBUSY},
		{808, -EBUSY},	{809, -EBUSY},	{2, -ENOMEM},  {3, -ENODEV},
		{100, -ENODEV}, {803, -ENODEV}, {802, -EIO},   {999, -EIO}};

/* Let @call fail with each error, and then no more. */
static void open_when_it_fails(const char *call, int other)
{
	char fault[64];

	rig.desc.device = "cuda:0";
	for (size_t i = 0; i < KV_ARRAY_LEN(failures); i++) {
		snprintf(fault, sizeof(fault), "fail=%s:1:%d", call,
			 failures[i].code);
		gpu_set(fault);
		assert_int_equal(rig.device->open(&rig.desc, &rig.pool),
				 failures[i].error == -EIO ? other
							   : failures[i].error);
	}
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_check_load(&rig, 0, RIG_BLOCKS, 9);
}

static int set_up_closed(void **state)
{
	(void)state;
	rig_prepare(&rig);
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	return 0;
}

/* The plug-in initialises the driver only once: this is the first test. */
static void a_driver_that_does_not_begin_is_tried_again(void **state)
{
	(void)state;
	if (gpu.set == NULL)
		assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_needs_faults();
	open_when_it_fails("cuInit", -ENODEV);
}

static void without_a_context_the_device_is_busy(void **state)
{
	(void)state;
	if (gpu.set == NULL)
		assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_needs_faults();
	open_when_it_fails("cuDevicePrimaryCtxRetain", -EIO);
}

#define TEST(name) \
	cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
#define CLOSED(name) \
	cmocka_unit_test_setup_teardown(name, set_up_closed, rig_tear_down)
#define MAPPED(name) \
	cmocka_unit_test_setup_teardown(name, set_up_mapped, tear_down_mapped)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CLOSED(a_driver_that_does_not_begin_is_tried_again),
		CLOSED(without_a_context_the_device_is_busy),
		MAPPED(pages_may_lie_in_several_mappings),
		MAPPED(pages_may_be_unmapped_and_mapped_again),
		TEST(another_context_may_be_current),
		TEST(after_a_reset_a_new_pool_works),
		cmocka_unit_test_setup_teardown(
			a_reset_of_one_gpu_does_not_break_another, rig_set_up,
			tear_down_two),
		cmocka_unit_test_setup_teardown(
			memory_at_the_old_addresses_hides_no_reset,
			set_up_first, rig_tear_down),
	};

	(void)argc;
	gpu_begin(argv);
	if (gpu_open() < 0)
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
