/* SPDX-License-Identifier: Apache-2.0 */
/* test_stream_sync.c - loads and saves beside a compute stream that continues.
 * All bytes of the pool have one value at a time, which each block or page must
 * have. */
#include "tests/gpu/memory.h"

#define BLOCKS 64u
#define ROUNDS 6u
#define A_WHILE 150000000u /* duration of a kernel, in nanoseconds */

/* a model whose layouts have strides of 4 KiB */
static const struct dims dims = {4, 4, 64, 8};
static CUstream compute;
static struct engine e;
static struct standin_alive before;
static int64_t pages[BLOCKS];

static int setup(void **state)
{
	size_t i;

	before = gpu_alive();
	compute = gpu_stream();
	engine_open(&e, *state, "cuda", &shapes[2], &dims, BLOCKS);
	for (i = 0; i < BLOCKS; i++)
		pages[i] = (int64_t)i;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (gpu.hold != NULL)
		gpu.hold(false);
	engine_close(&e);
	GPU_OK(cuStreamDestroy_v2, compute);
	gpu_assert_same(&before);
	return 0;
}

/* In @stream, after a while, set all of the pool's memory to @value. */
static void write_later(CUstream stream, uint8_t value)
{
	gpu_spin(stream, A_WHILE);
	GPU_OK(cuMemsetD8Async, e.shape.base, value, e.shape.bytes, stream);
}

/* Make the keys of the blocks of round @round. */
static void keys_of(unsigned round, kvfs_key *keys)
{
	uint32_t i;

	for (i = 0; i < BLOCKS; i++)
		keys[i] = world_key(round * BLOCKS + i);
}

static kvfs_xfer *save(unsigned round, const kvfs_opts *opts)
{
	kvfs_key keys[BLOCKS];
	kvfs_xfer *xfer;

	keys_of(round, keys);
	assert_int_equal(kvfs_save(e.pool, e.space, keys, NULL, BLOCKS, pages,
				   opts, &xfer),
			 0);
	return xfer;
}

static kvfs_xfer *load(kvfs_lease *lease, const kvfs_opts *opts)
{
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_load(e.pool, lease, BLOCKS, pages, opts, &xfer),
			 0);
	return xfer;
}

static void finish(kvfs_xfer *xfer, enum kvfs_stage stage)
{
	assert_int_equal(kvfs_xfer_wait(xfer, stage, 120 * SECOND), BLOCKS);
	kvfs_xfer_free(xfer);
}

static kvfs_lease *acquire(unsigned round)
{
	kvfs_key keys[BLOCKS];
	kvfs_query query = {e.space, keys, BLOCKS};
	kvfs_lease *lease;

	keys_of(round, keys);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), BLOCKS);
	return lease;
}

/* Wait until all memory is registered: registering waits for streams. */
static void settle(void)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	uint64_t last = 0;
	int same = 0, i;

	for (i = 0; i < 20000 && same < 150; i++) {
		assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
		info.bytes_registered += info.bytes_refused;
		same = info.bytes_registered == last &&
				       info.bytes_staging >= 64u << 20
			       ? same + 1
			       : 0;
		last = info.bytes_registered;
		usleep(3000);
	}
}

/* Order @stream after the transfer, retrying until the copies are submitted. */
static void order(kvfs_xfer *xfer, CUstream stream)
{
	int r;

	while ((r = kvfs_xfer_order(xfer, stream)) == -EAGAIN)
		assert_int_equal(
			kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 120 * SECOND),
			BLOCKS);
	assert_int_equal(r, 0);
}

static void assert_all(const uint8_t *at, uint64_t bytes, uint8_t value,
		       const char *what)
{
	uint64_t i;

	for (i = 0; i < bytes; i++)
		if (at[i] != value)
			fail_msg("%s: byte %lu is %02x, not %02x", what, i,
				 at[i], value);
}

static void assert_saved(unsigned round, uint8_t value)
{
	kvfs_lease *lease = acquire(round);
	uint64_t bytes;
	size_t i;

	for (i = 0; i < BLOCKS; i++) {
		const void *data = kvfs_lease_data(lease, i, &bytes);

		assert_all(data, bytes, value, "a block");
	}
	kvfs_release(lease);
}

static void assert_device(CUdeviceptr at, uint64_t bytes, uint8_t value,
			  const char *what)
{
	uint8_t *now = malloc(bytes);

	GPU_OK(cuMemcpyDtoH_v2, now, at, bytes);
	assert_all(now, bytes, value, what);
	free(now);
}

/* Check that every page of the pool, or of its copy at @at, is full of @value.
 * The gaps between pages do not count. */
static void assert_pages_at(CUdeviceptr at, uint8_t value, const char *what)
{
	uint8_t *image = malloc(e.shape.bytes);
	uint8_t *page = malloc(shape_page_bytes(&e.shape));
	unsigned i;

	GPU_OK(cuMemcpyDtoH_v2, image, at, e.shape.bytes);
	for (i = 0; i < BLOCKS; i++) {
		shape_page(&e.shape, image, i, page, false);
		assert_all(page, shape_page_bytes(&e.shape), value, what);
	}
	free(page);
	free(image);
}

static void assert_pages(uint8_t value, const char *what)
{
	assert_pages_at(e.shape.base, value, what);
}

static void fill_now(uint8_t value)
{
	GPU_OK(cuMemsetD8Async, e.shape.base, value, e.shape.bytes, compute);
	GPU_OK(cuStreamSynchronize, compute);
}

static void a_save_waits_for_the_event_of_what_computes_its_pages(void **state)
{
	CUevent written = gpu_event();
	kvfs_opts opts = {.size = sizeof(opts), .event = written};
	kvfs_xfer *xfer;

	(void)state;
	fill_now(1);
	/* warm up, because the first save takes longer */
	finish(save(1, NULL), KVFS_SEALED);
	write_later(compute, 2);
	GPU_OK(cuEventRecord, written, compute);
	xfer = save(0, &opts);
	/* The library uses the caller's event only during the call. */
	GPU_OK(cuEventDestroy_v2, written);
	finish(xfer, KVFS_SEALED);
	assert_saved(0, 2);
}

static void a_save_waits_for_the_stream_that_computes_its_pages(void **state)
{
	kvfs_opts opts = {.size = sizeof(opts), .stream = compute};

	(void)state;
	fill_now(1);
	write_later(compute, 2);
	finish(save(0, &opts), KVFS_SEALED);
	assert_saved(0, 2);
}

static void a_save_waits_for_the_legacy_stream(void **state)
{
	kvfs_opts opts = {.size = sizeof(opts), .stream = CU_LEGACY};

	(void)state;
	fill_now(1);
	write_later(CU_LEGACY, 2);
	finish(save(0, &opts), KVFS_SEALED);
	assert_saved(0, 2);
}

/* The first save of a pool waits for streams while memory is registered, so
 * that only the second one shows whether a save without a stream is ordered. */
static void
the_second_save_without_a_stream_waits_for_the_default_one(void **state)
{
	(void)state;
	fill_now(1);
	finish(save(1, NULL), KVFS_SEALED);
	settle();
	write_later(NULL, 2);
	finish(save(0, NULL), KVFS_SEALED);
	assert_saved(0, 2);
	assert_saved(1, 1);
}

static void wait_for_word(void *arg)
{
	while (!*(atomic_bool *)arg)
		usleep(1000);
}

static void a_save_that_asks_for_no_order_waits_for_nothing(void **state)
{
	kvfs_opts opts = {.size = sizeof(opts), .stream = KVFS_NO_STREAM};
	atomic_bool over = false;

	(void)state;
	fill_now(1);
	finish(save(1, &opts), KVFS_SEALED);
	settle();
	GPU_OK(cuLaunchHostFunc, NULL, wait_for_word, &over);
	write_later(NULL, 2);
	finish(save(0, &opts), KVFS_SEALED);
	over = true;
	GPU_OK(cuCtxSynchronize);
	assert_saved(0, 1);
}

static void a_load_waits_for_what_still_reads_its_pages(void **state)
{
	CUdeviceptr seen = gpu_alloc(e.shape.bytes);
	kvfs_opts opts = {.size = sizeof(opts), .stream = compute};
	kvfs_lease *lease;

	(void)state;
	fill_now(2);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	fill_now(1);
	gpu_spin(compute, A_WHILE);
	GPU_OK(cuMemcpyDtoDAsync_v2, seen, e.shape.base, e.shape.bytes,
	       compute);
	finish(load(lease, &opts), KVFS_COPIED);
	GPU_OK(cuStreamSynchronize, compute);
	assert_device(seen, e.shape.bytes, 1, "what was read");
	assert_pages(2, "the pages");
	kvfs_release(lease);
	gpu_free(seen);
}

/* In each round, on the device: the stream writes the pages, then they are
 * saved, then the stream writes again after it has waited for the save. */
static void a_stream_that_goes_on_writing_is_saved_round_by_round(void **state)
{
	kvfs_opts opts = {.size = sizeof(opts), .stream = compute};
	kvfs_xfer *xfers[ROUNDS];
	unsigned round;

	(void)state;
	for (round = 0; round < ROUNDS; round++) {
		if (round % 2 == 0)
			gpu_spin(compute, A_WHILE / 20);
		GPU_OK(cuMemsetD8Async, e.shape.base, (uint8_t)(round + 1),
		       e.shape.bytes, compute);
		xfers[round] = save(round, &opts);
		order(xfers[round], compute);
	}
	GPU_OK(cuMemsetD8Async, e.shape.base, 0xff, e.shape.bytes, compute);
	for (round = 0; round < ROUNDS; round++)
		finish(xfers[round], KVFS_SEALED);
	for (round = 0; round < ROUNDS; round++)
		assert_saved(round, (uint8_t)(round + 1));
}

/* In each round: load, let the stream read the pages, load again. */
static void a_stream_reads_what_each_load_brought(void **state)
{
	CUdeviceptr seen = gpu_alloc(ROUNDS * e.shape.bytes);
	kvfs_opts opts = {.size = sizeof(opts), .stream = compute};
	kvfs_lease *leases[ROUNDS];
	kvfs_xfer *xfers[ROUNDS];
	unsigned round;

	(void)state;
	for (round = 0; round < ROUNDS; round++) {
		fill_now((uint8_t)(round + 1));
		finish(save(round, NULL), KVFS_SEALED);
		leases[round] = acquire(round);
	}
	for (round = 0; round < ROUNDS; round++) {
		xfers[round] = load(leases[round], &opts);
		kvfs_release(leases[round]);
		order(xfers[round], compute);
		GPU_OK(cuMemcpyDtoDAsync_v2, seen + round * e.shape.bytes,
		       e.shape.base, e.shape.bytes, compute);
	}
	/* The transfer may be freed: the stream stays ordered after it. */
	for (round = 0; round < ROUNDS; round++)
		kvfs_xfer_free(xfers[round]);
	GPU_OK(cuStreamSynchronize, compute);
	for (round = 0; round < ROUNDS; round++)
		assert_pages_at(seen + round * e.shape.bytes,
				(uint8_t)(round + 1), "what a load brought");
	gpu_free(seen);
}

/* Order the stream after each layer as soon as the layer is submitted. */
static void a_layer_is_ordered_before_what_reads_it(void **state)
{
	uint64_t bytes = e.shape.views[0].bytes * BLOCKS;
	CUdeviceptr seen = gpu_alloc(2 * dims.layers * bytes);
	kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_BY_LAYER};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	uint32_t l, v;
	int r;

	(void)state;
	fill_now(5);
	finish(save(0, NULL), KVFS_SEALED);
	fill_now(1);
	lease = acquire(0);
	xfer = load(lease, &opts);
	for (l = 0; l < dims.layers; l++) {
		while ((r = kvfs_xfer_order_layer(xfer, l, compute)) == -EAGAIN)
			usleep(50);
		assert_int_equal(r, 0);
		for (v = 0; v < 2; v++)
			GPU_OK(cuMemcpyDtoDAsync_v2, seen + (2 * l + v) * bytes,
			       (CUdeviceptr)e.shape.views[v * dims.layers + l]
				       .base,
			       bytes, compute);
	}
	assert_int_equal(
		kvfs_xfer_order_layer(xfer, (uint32_t)dims.layers, compute),
		-EINVAL);
	GPU_OK(cuStreamSynchronize, compute);
	assert_device(seen, 2 * dims.layers * bytes, 5, "the layers");
	finish(xfer, KVFS_COPIED);
	kvfs_release(lease);
	gpu_free(seen);
}

/* The copies wait for a kernel of the stream: ordering the stream after them
 * would deadlock. */
static void an_order_before_it_is_submitted_orders_nothing(void **state)
{
	CUdeviceptr seen = gpu_alloc(e.shape.bytes);
	kvfs_opts opts = {.size = sizeof(opts), .stream = compute};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	(void)state;
	fill_now(2);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	fill_now(1);
	gpu_spin(compute, A_WHILE);
	xfer = load(lease, &opts);
	assert_int_equal(kvfs_xfer_order(xfer, compute), -EAGAIN);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_SUBMITTED), 0);
	order(xfer, compute);
	GPU_OK(cuMemcpyDtoDAsync_v2, seen, e.shape.base, e.shape.bytes,
	       compute);
	GPU_OK(cuStreamSynchronize, compute);
	assert_pages_at(seen, 2, "what was read after the order");
	finish(xfer, KVFS_COPIED);
	kvfs_release(lease);
	gpu_free(seen);
}

/* A load for a captured stream is refused: it begins nothing and holds no
 * pages. */
static void a_stream_that_is_captured_is_refused(void **state)
{
	kvfs_opts opts = {.size = sizeof(opts), .stream = compute};
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfer = NULL;
	kvfs_lease *lease;
	CUgraph graph;

	(void)state;
	fill_now(3);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	GPU_OK(cuStreamBeginCapture_v2, compute, CU_CAPTURE_GLOBAL);
	assert_int_equal(kvfs_load(e.pool, lease, BLOCKS, pages, &opts, &xfer),
			 -EBUSY);
	assert_null(xfer);
	GPU_OK(cuStreamEndCapture, compute, &graph);
	GPU_OK(cuGraphDestroy, graph);
	assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
	assert_int_equal(info.pages_loading, 0);
	finish(load(lease, &opts), KVFS_COPIED);
	kvfs_release(lease);
}

#define WAITERS 8

static uint64_t calls_to_look(void)
{
	return gpu.calls("cuEventQuery") + gpu.calls("cuCtxPushCurrent_v2");
}

/* Eight loads wait for a busy stream: the number of driver calls is bounded by
 * the time that passes, not by the number of loads. */
static void transfers_that_wait_ask_the_driver_seldom(void **state)
{
	kvfs_opts opts = {.size = sizeof(opts), .stream = compute};
	kvfs_xfer *xfers[WAITERS];
	kvfs_lease *lease;
	uint64_t calls, start;
	int i;

	(void)state;
	if (gpu.calls == NULL)
		skip();
	fill_now(2);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	settle();
	gpu.hold(true);
	gpu_spin(compute, 1);
	for (i = 0; i < WAITERS; i++)
		xfers[i] = load(lease, &opts);
	start = kv_now_ns();
	calls = calls_to_look();
	usleep(300000);
	calls = calls_to_look() - calls;
	/* A poll makes two driver calls.  Each ms there is one poll, of one in
	 * 32 of the loads; at the beginning there are more. */
	assert_true(calls < 300 + 3 * (kv_now_ns() - start) / 1000000);
	assert_true(calls > 0);
	gpu.hold(false);
	for (i = 0; i < WAITERS; i++)
		finish(xfers[i], KVFS_COPIED);
	kvfs_release(lease);
}

static void an_order_after_the_end_holds_nothing_up(void **state)
{
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	(void)state;
	fill_now(3);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	xfer = load(lease, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	assert_int_equal(kvfs_xfer_order(xfer, compute), 0);
	GPU_OK(cuStreamSynchronize, compute);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
}

/* Cancel in the middle of the copies: pages that are reused after COPIED must
 * keep the new bytes. */
static void
pages_of_a_cancelled_load_are_not_written_once_it_is_copied(void **state)
{
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	unsigned round;

	(void)state;
	fill_now(2);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	for (round = 0; round < 20; round++) {
		fill_now(1);
		xfer = load(lease, KVFS_OPTS(.stream = KVFS_NO_STREAM));
		usleep(round * 50);
		kvfs_xfer_cancel(xfer);
		assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >=
			    0);
		assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
		assert_int_equal(info.pages_loading, 0);
		fill_now(3);
		kvfs_xfer_free(xfer);
		usleep(2000);
		assert_pages(3, "pages that are another's by now");
	}
	kvfs_release(lease);
}

/* A load that is cancelled during the copy gives no page back. */
static void
a_cancelled_load_keeps_its_pages_until_the_copy_is_over(void **state)
{
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	unsigned i;

	(void)state;
	if (gpu.hold == NULL)
		skip();
	fill_now(2);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	fill_now(1);
	settle();
	gpu.hold(true);
	xfer = load(lease, KVFS_OPTS(.stream = KVFS_NO_STREAM));
	for (i = 0; i < 20000 && gpu.pending() == 0; i++)
		usleep(1000);
	assert_true(gpu.pending() > 0);
	kvfs_xfer_cancel(xfer);
	kvfs_release(lease);
	usleep(20000);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
	assert_true(info.pages_loading > 0);
	gpu.hold(false);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
	assert_int_equal(info.pages_loading, 0);
	kvfs_xfer_free(xfer);
}

static void *let_go(void *arg)
{
	(void)arg;
	usleep(50000);
	gpu.hold(false);
	return NULL;
}

/* The engine frees its memory right after it has closed the pool. */
static void closing_a_pool_waits_for_its_copies(void **state)
{
	kvfs_xfer *loading, *saving;
	kvfs_lease *lease;
	pthread_t thread;

	(void)state;
	fill_now(2);
	finish(save(0, NULL), KVFS_SEALED);
	lease = acquire(0);
	if (gpu.hold != NULL) {
		settle();
		gpu.hold(true);
	}
	loading = load(lease, KVFS_OPTS(.stream = KVFS_NO_STREAM));
	saving = save(1, KVFS_OPTS(.stream = KVFS_NO_STREAM));
	kvfs_release(lease);
	if (gpu.hold != NULL)
		assert_int_equal(pthread_create(&thread, NULL, let_go, NULL),
				 0);
	kvfs_pool_close(kv_steal(e.pool));
	assert_int_equal(kvfs_xfer_poll(loading, KVFS_COPIED), 1);
	assert_int_equal(kvfs_xfer_poll(saving, KVFS_COPIED), 1);
	GPU_OK(cuMemFree_v2, e.shape.base);
	if (gpu.hold != NULL)
		pthread_join(thread, NULL);
	kvfs_xfer_free(loading);
	kvfs_xfer_free(saving);
	e.shape.base = gpu_alloc(e.shape.bytes);
}

static int group(void **state)
{
	return world_begin(state, "dram=128M,ssd=0,segment=8M,"
				  "hugepages=off,scrub=0");
}

static int run(const char *name)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(a_save_waits_for_the_event_of_what_computes_its_pages),
		TEST(a_save_waits_for_the_stream_that_computes_its_pages),
		TEST(a_save_waits_for_the_legacy_stream),
		TEST(the_second_save_without_a_stream_waits_for_the_default_one),
		TEST(a_save_that_asks_for_no_order_waits_for_nothing),
		TEST(a_load_waits_for_what_still_reads_its_pages),
		TEST(a_stream_that_goes_on_writing_is_saved_round_by_round),
		TEST(a_stream_reads_what_each_load_brought),
		TEST(a_layer_is_ordered_before_what_reads_it),
		TEST(an_order_before_it_is_submitted_orders_nothing),
		TEST(a_stream_that_is_captured_is_refused),
		TEST(transfers_that_wait_ask_the_driver_seldom),
		TEST(an_order_after_the_end_holds_nothing_up),
		TEST(pages_of_a_cancelled_load_are_not_written_once_it_is_copied),
		TEST(a_cancelled_load_keeps_its_pages_until_the_copy_is_over),
		TEST(closing_a_pool_waits_for_its_copies),
	};

	return cmocka_run_group_tests_name(name, tests, group,
					   world_group_teardown);
}

int main(int argc, char **argv)
{
	int failed;

	gpu_begin(argv);
	if (gpu_open() < 0)
		return 1;
	gpu_set("readonly=1");
	failed = run("registered");
	if (!gpu_is_real() && argc == 1) {
		gpu_set("readonly=0");
		failed += run("staged");
	}
	return failed;
}
