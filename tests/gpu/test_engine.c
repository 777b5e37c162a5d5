/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine.c - an engine without an allocator of its own: it reserves pages of the
 * library, maps the blocks of a prompt, computes on the pages (a kernel that sums
 * them), computes the blocks that are missing into pages that it takes, and gives all
 * back as soon as the GPU has the work.  There are far fewer pages than blocks.
 */
#include "tests/kernels/world.h"
#include "tests/gpu/gpu.h"

#define CAPACITY 16u /* pages; a prompt has up to PROMPT blocks */
#define PROMPT 8u
#define CONVERSATIONS 12u
#define BLOCKS (CONVERSATIONS * PROMPT)
#define STREAMS 2u

static unsigned requests = 200;
static struct standin_alive before;
static kvfs_pool *pool;
static CUstream streams[STREAMS];
/* For each request the addresses of its pages, and the sum; memory of the GPU. */
static CUdeviceptr addresses, sums;
static uint64_t *pinned; /* the addresses, on the host */
static uint64_t *expected;
static bool saved[BLOCKS];

/* Return the byte of which a computed block consists. */
static uint8_t value_of(uint32_t block)
{
	return (uint8_t)(block * 37 + 11);
}

static uint64_t sum_of(uint32_t block)
{
	return PAYLOAD / 8 * (value_of(block) * 0x0101010101010101ull);
}

static int setup(void **state)
{
	struct world *w;
	int r;

	before = gpu_alive();
	r = world_setup(state);
	w = *state;
	for (unsigned i = 0; i < STREAMS; i++)
		streams[i] = gpu_stream();
	addresses = gpu_alloc(requests * PROMPT * 8ull);
	sums = gpu_alloc(requests * 8ull);
	GPU_OK(cuMemHostAlloc, (void **)&pinned, requests * PROMPT * 8ull, 0);
	GPU_OK(cuMemsetD8Async, sums, 0, requests * 8ull, CU_LEGACY);
	GPU_OK(cuCtxSynchronize);
	expected = calloc(requests, sizeof(*expected));
	memset(saved, 0, sizeof(saved));
	assert_int_equal(kvfs_pool_reserve(w->session, "cuda", w->space, 4,
					   CAPACITY, &pool),
			 0);
	return r;
}

static int teardown(void **state)
{
	int r;

	kvfs_pool_close(kv_steal(pool));
	r = world_teardown(state);
	free(expected);
	gpu_free(addresses);
	gpu_free(sums);
	GPU_OK(cuMemFreeHost, pinned);
	for (unsigned i = 0; i < STREAMS; i++)
		GPU_OK(cuStreamDestroy_v2, streams[i]);
	gpu_assert_same(&before);
	return r;
}

/* Compute block @block into a page, in @stream, and save the page.  Return false if
 * no page can be taken now. */
static bool compute(struct world *w, uint32_t block, CUstream stream)
{
	const kvfs_key key = world_key(block);
	kvfs_pages *page;
	kvfs_xfer *xfer;

	if (kvfs_pages_take(pool, 1, &page) < 0)
		return false;
	GPU_OK(cuMemsetD8Async,
	       (CUdeviceptr)(uintptr_t)kvfs_pages_addr(page, 0, NULL),
	       value_of(block), PAYLOAD, stream);
	assert_int_equal(kvfs_pages_seal(page, w->space, &key, NULL, 1,
					 KVFS_OPTS(.stream = stream), &xfer),
			 0);
	/* The next request may wait for the save; this engine does. */
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 1);
	assert_int_equal(kvfs_xfer_status(xfer, 0), 0);
	kvfs_xfer_free(xfer);
	kvfs_pages_free(page);
	saved[block] = true;
	return true;
}

/* Sum the first @n blocks of a conversation in @stream.  Return the number of blocks
 * that got pages. */
static size_t attend(struct world *w, unsigned request, uint32_t first,
		     size_t n, CUstream stream)
{
	uint64_t *pages = pinned + request * PROMPT;
	uint64_t what[3] = {addresses + request * PROMPT * 8ull, PAYLOAD,
			    sums + request * 8ull};
	void *parameters[] = {what};
	kvfs_key keys[PROMPT];
	kvfs_mapping *map;
	size_t got = 0;
	int r;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = world_key(first + i);
	assert_int_equal(kvfs_map(pool, w->space, keys, n, NULL, &map), 0);
	if (request % 2 == 0) {
		assert_true(kvfs_map_wait(map, 60 * SECOND) >= 0);
	} else {
		/* Order the stream instead of waiting for the copies. */
		while ((r = kvfs_map_order(map, stream)) == -EAGAIN)
			usleep(50);
		assert_int_equal(r, 0);
	}
	for (; got < n && kvfs_map_addr(map, got, NULL) != NULL; got++)
		pages[got] = (uintptr_t)kvfs_map_addr(map, got, NULL);
	for (size_t i = 0; i < n; i++) {
		r = kvfs_map_status(map, i);
		assert_true(r == 0 || r == -ENOSPC || r == -EINPROGRESS);
		assert_true(i >= got || r != -ENOSPC);
	}
	if (got > 0) {
		gpu_spin(stream, 20000000); /* layers before */
		GPU_OK(cuMemcpyHtoDAsync_v2, what[0], pages, got * 8, stream);
		GPU_OK(cuLaunchKernel, gpu.sum, (unsigned)got, 1, 1, 64, 1, 1,
		       0, stream, parameters, NULL);
	}
	/* The kernel may run much later. */
	assert_int_equal(kvfs_unmap(map, stream), 0);
	for (uint32_t i = 0; i < got; i++)
		expected[request] += sum_of(first + i);
	return got;
}

static void pages_that_a_kernel_reads_keep_their_blocks(void **state)
{
	struct world *w = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	size_t mapped = 0, short_of = 0, n;
	unsigned seed = 7, request;
	uint32_t first;
	uint64_t *now;

	for (request = 0; request < requests; request++) {
		CUstream stream = streams[request % STREAMS];

		seed = seed * 1103515245u + 12345u;
		first = (seed >> 8) % CONVERSATIONS * PROMPT;
		n = 1 + (seed >> 20) % PROMPT;
		for (uint32_t i = 0; i < n; i++)
			if (!saved[first + i] &&
			    !compute(w, first + i, stream)) {
				n = i;
				short_of++;
			}
		if (n > 0)
			mapped += attend(w, request, first, n, stream);
	}
	GPU_OK(cuCtxSynchronize);
	now = malloc(requests * 8ull);
	GPU_OK(cuMemcpyDtoH_v2, now, sums, requests * 8ull);
	for (request = 0; request < requests; request++)
		if (now[request] != expected[request])
			fail_msg("request %u: the pages changed under it",
				 request);
	free(now);
	/* Pages of maps that were ended early are given back after their copies. */
	do {
		usleep(1000);
		assert_int_equal(kvfs_pool_info(pool, &info), 0);
	} while (info.pages_mapped > 0);
	assert_int_equal(info.pages, CAPACITY);
	print_message("%zu blocks summed in %u pages, %zu times no page\n",
		      mapped, CAPACITY, short_of);
	assert_true(mapped > requests / 4);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			pages_that_a_kernel_reads_keep_their_blocks, setup,
			teardown),
	};

	gpu_begin(argv);
	if (argc > 1)
		requests = 60;
	if (gpu_open() < 0)
		return 77;
	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
