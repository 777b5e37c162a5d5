/* SPDX-License-Identifier: Apache-2.0 */
/* run.sh: long */
/* test_calls.c - the number of driver calls for a load: each call costs
 * microseconds of a processor, each copy a part of the bus.  127 blocks of 1.1
 * MiB, 36 layers of 32 KiB; only the stand-in counts calls. */
#include "tests/gpu/memory.h"

#define BLOCKS 127u
#define COPIES_MAX 400u
#define CALLS_MAX 3000u

static const struct dims dims = {36, 4, 128, 16};
static bool registered;
static size_t every = 1; /* test one of this many shapes */

/* Number of driver calls that give the device work, and of the copies and
 * launches that these calls contain. */
struct count {
	uint64_t copies, launches, calls;
};

static struct count count_now(void)
{
	static const char *const others[] = {
		"cuCtxPushCurrent_v2",
		"cuCtxPopCurrent_v2",
		"cuThreadExchangeStreamCaptureMode",
		"cuEventRecord",
		"cuEventSynchronize",
		"cuEventQuery",
		"cuStreamWaitEvent",
		"cuStreamSynchronize",
		"cuMemAlloc_v2",
		"cuMemHostAlloc",
		"cuStreamCreateWithPriority",
		"cuEventCreate",
	};
	struct count count = {
		.copies = gpu.calls("cuMemcpyHtoDAsync_v2") +
			  gpu.calls("cuMemcpyAsync"),
		.launches = gpu.calls("cuLaunchKernel"),
	};
	size_t i;

	count.calls = count.copies + count.launches;
	for (i = 0; i < KV_ARRAY_LEN(others); i++)
		count.calls += gpu.calls(others[i]);
	return count;
}

/* Wait until the library has tried to register as many bytes as the blocks
 * have, and has found out how loads are copied. */
static void settle(struct engine *e)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	uint64_t blocks = BLOCKS * e->shape.block;
	unsigned i;

	for (i = 0; i < 6000; i++) {
		assert_int_equal(kvfs_pool_info(e->pool, &info), 0);
		if ((registered ? info.bytes_registered : info.bytes_refused) >=
			    blocks &&
		    (strstr(info.path, "registered") != NULL) == registered)
			return;
		usleep(10000);
	}
	fail_msg("%lu bytes registered, %lu refused, %s", info.bytes_registered,
		 info.bytes_refused, info.path);
}

/* Load, and return whether the driver was called few times. */
static bool load_is_few_calls(struct engine *e, const char *shape,
			      kvfs_lease *lease, const int64_t *pages,
			      bool by_layer)
{
	struct count before = count_now(), now;
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_load(e->pool, lease, BLOCKS, pages,
			  KVFS_OPTS(.flags = by_layer ? KVFS_BY_LAYER : 0),
			  &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	kvfs_xfer_free(xfer);
	now = count_now();
	now.copies -= before.copies;
	now.launches -= before.launches;
	now.calls -= before.calls;
	printf("%s, %s: %lu copies, %lu launches, %lu calls\n", shape,
	       by_layer ? "by layer" : "whole", now.copies, now.launches,
	       now.calls);
	return now.copies <= COPIES_MAX && now.calls <= CALLS_MAX;
}

/* Memory is registered in the background, and one of these blocks may lie in
 * memory that is not registered yet. */
static void count_load(struct engine *e, const char *shape, kvfs_lease *lease,
		       const int64_t *pages, bool by_layer)
{
	unsigned i;

	for (i = 0; i < 100; i++) {
		if (load_is_few_calls(e, shape, lease, pages, by_layer))
			return;
		usleep(100000);
	}
	fail_msg("%s, %s: always many calls", shape,
		 by_layer ? "by layer" : "whole");
}

static void a_load_is_few_copies(void **state)
{
	int64_t *pages;
	struct engine e;
	kvfs_lease *lease;
	size_t i;
	uint32_t n;

	for (i = 0; i < KV_ARRAY_LEN(shapes); i += every) {
		n = BLOCKS * shapes[i].pages_per_block;
		pages = engine_pages(n, n, 3);
		engine_open(&e, *state, "cuda", &shapes[i], &dims, n);
		engine_fill(&e, i + 1);
		engine_save(&e, BLOCKS, pages, KVFS_SEALED);
		lease = engine_acquire(&e, BLOCKS);
		settle(&e);
		count_load(&e, shapes[i].name, lease, pages, false);
		count_load(&e, shapes[i].name, lease, pages, true);
		engine_assert_is_image(&e, shapes[i].name);
		kvfs_release(lease);
		engine_close(&e);
		free(pages);
	}
}

static int begin(void **state, const char *arena)
{
	static char options[128];
	struct world *w;
	int r;

	snprintf(options, sizeof(options),
		 "dram=640M,ssd=0,scrub=0,segment=64M,hugepages=off,arena=%s",
		 arena);
	r = world_begin(state, options);
	w = *state;
	return r < 0 ? r : kvfs_open(w->path, &w->session);
}

static int sealed(void **state)
{
	return begin(state, "sealed");
}

static int writable(void **state)
{
	return begin(state, "rw");
}

static int end(void **state)
{
	struct world *w = *state;

	kvfs_close(w->session);
	return world_group_teardown(state);
}

static int run(const char *name, CMFixtureFunction setup)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_load_is_few_copies),
	};

	return cmocka_run_group_tests_name(name, tests, setup, end);
}

int main(int argc, char **argv)
{
	int failed;

	(void)argc;
	gpu_begin(argv);
	if (gpu_is_real()) {
		puts("a real driver does not count its calls");
		return 77;
	}
	if (gpu_open() < 0)
		return 1;
	gpu_set("delay=0,readonly=1");
	registered = true;
	failed = run("registered", sealed);
	every = 4;
	gpu_set("readonly=0");
	failed += run("arena=rw", writable);
	registered = false;
	every = 3;
	return failed + run("staged", sealed);
}
