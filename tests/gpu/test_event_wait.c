/* SPDX-License-Identifier: Apache-2.0 */
/* Order on the device: event waits, and memory that kvfs reserves. */
#include "tests/gpu/rig.h"

static int set_up(void **state)
{
	(void)state;
	rig_open(&rig);
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_staging(&rig);
	return 0;
}

/* ---- event waits ---- */

/* Let a kernel of the compute stream write the pages for a while. */
static void write_late(CUstream stream, unsigned char value)
{
	gpu_spin(stream, 30000000);
	GPU_OK(cuMemsetD8Async, rig.memory, value, RIG_BYTES, stream);
}

static void load_behind(void *event_wait, uint64_t seed)
{
	struct rig_batch b;

	rig_make_load(&rig, &b, 0, RIG_BLOCKS, seed);
	b.batch.event_wait = event_wait;
	assert_int_equal(rig.device->load(rig.pool, &b.batch), 0);
	rig_on_image(&rig, &b, true);
}

/* Earlier work of the stream must not overwrite the bytes of the load. */
static void a_load_comes_after_what_the_stream_was_given(void **state)
{
	CUstream stream = gpu_stream();
	void *event_wait;

	(void)state;
	write_late(stream, 0x5a);
	assert_int_equal(
		rig.device->event_wait(rig.pool, stream, NULL, &event_wait), 0);
	memset(rig.image, 0x5a, RIG_BYTES);
	load_behind(event_wait, 1);
	assert_true(rig.device->event_wait_is_done(event_wait));
	rig.device->event_wait_free(event_wait);
	rig_assert_is_image(&rig);
	GPU_OK(cuStreamDestroy_v2, stream);
}

static void a_save_has_what_the_stream_wrote_before(void **state)
{
	CUstream stream = gpu_stream();
	struct rig_batch b;
	void *event_wait;
	uint64_t i;

	(void)state;
	write_late(stream, 0x6b);
	assert_int_equal(
		rig.device->event_wait(rig.pool, stream, NULL, &event_wait), 0);
	rig_make(&rig, &b, rig.staging, RIG_BLOCK, 0, RIG_BLOCKS);
	b.batch.event_wait = event_wait;
	assert_int_equal(rig.device->save(rig.pool, &b.batch), 0);
	for (i = 0; i < rig.staging_bytes; i++)
		if (rig.staging[i] != 0x6b)
			fail_msg("byte %lu is %02x", i, rig.staging[i]);
	rig.device->event_wait_free(event_wait);
	GPU_OK(cuStreamDestroy_v2, stream);
}

/* The event may be destroyed or recorded again right after the call. */
static void an_event_is_taken_as_it_is_at_the_call(void **state)
{
	CUstream stream = gpu_stream(), other = gpu_stream();
	CUevent event = gpu_event();
	void *event_wait;

	(void)state;
	write_late(stream, 0x7c);
	GPU_OK(cuEventRecord, event, stream);
	assert_int_equal(
		rig.device->event_wait(rig.pool, NULL, event, &event_wait), 0);
	GPU_OK(cuEventRecord, event, other);
	GPU_OK(cuEventDestroy_v2, event);
	assert_false(rig.device->event_wait_is_done(event_wait));
	memset(rig.image, 0x7c, RIG_BYTES);
	load_behind(event_wait, 2);
	rig.device->event_wait_free(event_wait);
	rig_assert_is_image(&rig);
	GPU_OK(cuStreamDestroy_v2, stream);
	GPU_OK(cuStreamDestroy_v2, other);
}

static void an_event_wait_does_not_wait_for_another_one(void **state)
{
	const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	CUstream slow, idle;
	CUevent late = gpu_event(), now = gpu_event();
	void *first, *second;
	int i;

	(void)state;
	/* With a single hardware queue the stream waits for work of other
	 * streams. */
	if (queues != NULL && atoi(queues) == 1) {
		GPU_OK(cuEventDestroy_v2, late);
		GPU_OK(cuEventDestroy_v2, now);
		skip();
	}
	slow = gpu_stream();
	idle = gpu_stream();
	gpu_spin(slow, 3000000000u);
	GPU_OK(cuEventRecord, late, slow);
	GPU_OK(cuEventRecord, now, idle);
	assert_int_equal(rig.device->event_wait(rig.pool, NULL, late, &first),
			 0);
	assert_int_equal(rig.device->event_wait(rig.pool, NULL, now, &second),
			 0);
	for (i = 0; i < 20000 && !rig.device->event_wait_is_done(second); i++)
		usleep(1000);
	assert_true(rig.device->event_wait_is_done(second));
	assert_false(rig.device->event_wait_is_done(first));
	/* The event wait may be freed before the stream has passed it. */
	rig.device->event_wait_free(first);
	rig.device->event_wait_free(second);
	GPU_OK(cuStreamSynchronize, slow);
	GPU_OK(cuStreamDestroy_v2, slow);
	GPU_OK(cuStreamDestroy_v2, idle);
	GPU_OK(cuEventDestroy_v2, late);
	GPU_OK(cuEventDestroy_v2, now);
}

static void an_event_wait_of_nothing_is_refused(void **state)
{
	void *event_wait;

	(void)state;
	assert_int_equal(
		rig.device->event_wait(rig.pool, NULL, NULL, &event_wait),
		-EINVAL);
}

/* ---- order ---- */

struct ordering {
	CUstream stream;
	/* event wait of the batch in flight; NULL: no batch was submitted
	 * yet */
	void *fence;
	int r;
};

/* On the copy thread, make a stream wait for the batch in flight. */
static void order_behind(const struct kvfs_batch *batch, void *event_wait)
{
	struct ordering *ordering = batch->owner;

	assert_null(ordering->fence);
	ordering->fence = event_wait;
	ordering->r = rig.device->order(event_wait, ordering->stream);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	GPU_OK(cuMemcpyDtoDAsync_v2, rig.copy, rig.memory, RIG_BYTES,
	       ordering->stream);
}

static void load_and_order(struct ordering *ordering, uint64_t seed)
{
	struct rig_batch b;

	rig_make_load(&rig, &b, 0, RIG_BLOCKS, seed);
	b.batch.submitted = order_behind;
	b.batch.owner = ordering;
	assert_int_equal(rig.device->load(rig.pool, &b.batch), 0);
	rig_on_image(&rig, &b, true);
}

/* A stream that was ordered after the load reads the loaded bytes. */
static void a_stream_comes_after_what_was_submitted(void **state)
{
	struct ordering ordering = {.stream = gpu_stream()};
	int round;

	(void)state;
	rig.copy = gpu_alloc(RIG_BYTES);
	for (round = 0; round < 10; round++) {
		ordering.fence = NULL;
		load_and_order(&ordering, 100 * (uint64_t)round);
		assert_non_null(ordering.fence);
		assert_int_equal(ordering.r, 0);
		/* The batch has ended, so nothing waits for its event wait any
		 * more. */
		assert_true(rig.device->event_wait_is_done(ordering.fence));
		rig.device->event_wait_free(ordering.fence);
		GPU_OK(cuStreamSynchronize, ordering.stream);
		GPU_OK(cuMemcpyDtoH_v2, rig.now, rig.copy, RIG_BYTES);
		assert_true(memcmp(rig.now, rig.image, RIG_BYTES) == 0);
	}
	gpu_free(rig.copy);
	GPU_OK(cuStreamDestroy_v2, ordering.stream);
}

/* A batch that the device refused is not reported as submitted. */
static void what_failed_was_never_submitted(void **state)
{
	struct ordering ordering = {.stream = gpu_stream()};
	struct rig_batch b;

	(void)state;
	rig_needs_faults();
	rig_make(&rig, &b, rig.arena, RIG_BLOCK, 3, RIG_BLOCKS);
	b.batch.submitted = order_behind;
	b.batch.owner = &ordering;
	gpu_set("fail=cuLaunchKernel:1:1");
	assert_int_equal(rig.device->load(rig.pool, &b.batch), -EIO);
	assert_null(ordering.fence);
	rig_read(&rig);
	memcpy(rig.image, rig.now, RIG_BYTES);
	GPU_OK(cuStreamDestroy_v2, ordering.stream);
}

static void an_order_of_no_stream_is_refused(void **state)
{
	CUstream stream = gpu_stream();
	void *event_wait;

	(void)state;
	assert_int_equal(
		rig.device->event_wait(rig.pool, stream, NULL, &event_wait), 0);
	assert_int_equal(rig.device->order(event_wait, NULL), -EINVAL);
	rig.device->event_wait_free(event_wait);
	GPU_OK(cuStreamDestroy_v2, stream);
}

/* ---- captures ---- */

static void end_capture(CUstream stream, size_t nodes)
{
	CUgraph graph;
	size_t n = 0;

	GPU_OK(cuStreamEndCapture, stream, &graph);
	GPU_OK(cuGraphGetNodes, graph, NULL, &n);
	assert_int_equal(n, nodes);
	GPU_OK(cuGraphDestroy, graph);
}

/* The captured graph has no operation of the plug-in, the capture stays valid,
 * and copies continue meanwhile. */
static void a_stream_that_is_captured_is_refused_and_not_disturbed(void **state)
{
	CUstream stream = gpu_stream(), other = gpu_stream();
	void *event_wait, *none = NULL;
	int mode;

	(void)state;
	for (mode = CU_CAPTURE_GLOBAL; mode <= CU_CAPTURE_RELAXED; mode++) {
		write_late(other, 0x11);
		assert_int_equal(rig.device->event_wait(rig.pool, other, NULL,
							&event_wait),
				 0);
		GPU_OK(cuStreamBeginCapture_v2, stream, mode);
		GPU_OK(cuMemsetD8Async, rig.memory, 0x22, RIG_BYTES, stream);
		assert_int_equal(
			rig.device->event_wait(rig.pool, stream, NULL, &none),
			-EBUSY);
		assert_null(none);
		assert_int_equal(rig.device->order(event_wait, stream), -EBUSY);
		memset(rig.image, 0x11, RIG_BYTES);
		load_behind(event_wait, (uint64_t)mode);
		end_capture(stream, 1);
		rig.device->event_wait_free(event_wait);
		rig_assert_is_image(&rig);
	}
	GPU_OK(cuStreamDestroy_v2, stream);
	GPU_OK(cuStreamDestroy_v2, other);
}

/* Only the driver knows whether an event belongs to a capture, and asking may
 * end the capture. */
static void an_event_of_a_capture_is_refused(void **state)
{
	CUstream stream = gpu_stream();
	CUevent event = gpu_event();
	CUgraph graph = NULL;
	void *none = NULL;

	(void)state;
	GPU_OK(cuStreamBeginCapture_v2, stream, CU_CAPTURE_RELAXED);
	GPU_OK(cuEventRecord, event, stream);
	assert_int_equal(rig.device->event_wait(rig.pool, NULL, event, &none),
			 -EBUSY);
	assert_null(none);
	if (gpu.cuStreamEndCapture(stream, &graph) == CU_OK)
		GPU_OK(cuGraphDestroy, graph);
	GPU_OK(cuEventDestroy_v2, event);
	GPU_OK(cuStreamDestroy_v2, stream);
}

/* ---- device memory that kvfs reserves ---- */

#define UNIT ((uint64_t)2 << 20)

static void memory_grows_in_place_and_keeps_its_bytes(void **state)
{
	uint8_t written[64], back[64];
	struct kvfs_pool_info info = {.size = sizeof(info)};
	void *memory, *base;

	(void)state;
	memset(written, 0x42, sizeof(written));
	assert_int_equal(
		rig.device->reserve("cuda", UNIT, 16 * UNIT, &memory, &base),
		0);
	GPU_OK(cuMemcpyHtoD_v2, (uintptr_t)base, written, sizeof(written));
	assert_int_equal(rig.device->grow(memory, 5 * UNIT), 0);
	assert_int_equal(rig.device->grow(memory, 5 * UNIT - 7), 0);
	GPU_OK(cuMemcpyHtoD_v2, (uintptr_t)base + 5 * UNIT - 64, written, 64);
	GPU_OK(cuMemcpyDtoH_v2, back, (uintptr_t)base, sizeof(back));
	assert_memory_equal(back, written, sizeof(back));
	assert_int_equal(rig.device->grow(memory, 17 * UNIT), -ENOMEM);
	rig.device->info(rig.pool, &info);
	rig.device->release(memory);
}

static void memory_that_cannot_be_had_leaves_nothing(void **state)
{
	static const char *const faults[] = {
		"fail=cuMemCreate:1:2",
		"fail=cuMemMap:1:2",
		"fail=cuMemSetAccess:1:2",
		"fail=cuMemAddressReserve:1:2",
	};
	struct standin_alive now, then = gpu_alive();
	void *memory, *base;
	size_t i;

	(void)state;
	rig_needs_faults();
	for (i = 0; i < KV_ARRAY_LEN(faults); i++) {
		gpu_set(faults[i]);
		assert_int_equal(rig.device->reserve("cuda:0", UNIT, 4 * UNIT,
						     &memory, &base),
				 -ENOMEM);
		now = gpu_alive();
		assert_int_equal(now.reserved, then.reserved);
		assert_int_equal(now.device_bytes, then.device_bytes);
	}
	assert_int_equal(
		rig.device->reserve("cuda:0", UNIT, 4 * UNIT, &memory, &base),
		0);
	gpu_set("fail=cuMemMap:1:2");
	assert_int_equal(rig.device->grow(memory, 3 * UNIT), -ENOMEM);
	assert_int_equal(rig.device->grow(memory, 3 * UNIT), 0);
	rig.device->release(memory);
}

static void memory_of_a_wrong_size_or_device_is_refused(void **state)
{
	void *memory, *base;

	(void)state;
	assert_int_equal(rig.device->reserve("cuda", 0, UNIT, &memory, &base),
			 -EINVAL);
	assert_int_equal(
		rig.device->reserve("cuda", 2 * UNIT, UNIT, &memory, &base),
		-EINVAL);
	assert_int_equal(
		rig.device->reserve("cuda:77", UNIT, UNIT, &memory, &base),
		-ENODEV);
}

/* Memory that kvfs reserved outlives every pool, and any pool can use it. */
static void memory_holds_its_device(void **state)
{
	kvfs_pool_desc desc = rig.desc;
	kvfs_view view = {"t", NULL, UNIT, UNIT, 1, 0};
	void *memory, *base, *pool;

	(void)state;
	assert_int_equal(
		rig.device->reserve("cuda", 4 * UNIT, 4 * UNIT, &memory, &base),
		0);
	rig.device->close(rig.pool);
	view.base = base;
	desc.views = &view;
	desc.n_views = 1;
	desc.pages = 4;
	assert_int_equal(rig.device->open(&desc, &pool), 0);
	rig.device->close(pool);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig.device->release(memory);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(a_load_comes_after_what_the_stream_was_given),
		TEST(a_save_has_what_the_stream_wrote_before),
		TEST(an_event_is_taken_as_it_is_at_the_call),
		TEST(an_event_wait_does_not_wait_for_another_one),
		TEST(an_event_wait_of_nothing_is_refused),
		TEST(a_stream_comes_after_what_was_submitted),
		TEST(what_failed_was_never_submitted),
		TEST(an_order_of_no_stream_is_refused),
		TEST(a_stream_that_is_captured_is_refused_and_not_disturbed),
		TEST(an_event_of_a_capture_is_refused),
		TEST(memory_grows_in_place_and_keeps_its_bytes),
		TEST(memory_that_cannot_be_had_leaves_nothing),
		TEST(memory_of_a_wrong_size_or_device_is_refused),
		TEST(memory_holds_its_device),
	};

	(void)argc;
	gpu_begin(argv);
	if (gpu_open() < 0)
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
