/* SPDX-License-Identifier: Apache-2.0 */
/* test_paged_pool.c - a paged pool on the GPU: pages are mapped, written and
 * given back while a compute stream uses them; and an engine that has no other
 * memory. */
#include "tests/kernels/world.h"
#include "tests/gpu/gpu.h"

#define A_WHILE 30000000u /* nanoseconds that a kernel takes */
#define MANY 12u

static CUstream compute;
static CUdeviceptr copy; /* device memory to which streams copy a page */
static struct standin_alive before;
static kvfs_pool *pool;

static int setup(void **state)
{
	struct world *w = *state;
	int r;

	before = gpu_alive();
	compute = gpu_stream();
	copy = gpu_alloc(PAYLOAD);
	r = world_setup(state);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "cuda", w->space, 4, MANY, &pool),
		0);
	return r;
}

static int teardown(void **state)
{
	int r;

	kvfs_pool_close(kv_steal(pool));
	r = world_teardown(state);
	gpu_free(copy);
	GPU_OK(cuStreamDestroy_v2, compute);
	gpu_assert_same(&before);
	return r;
}

static struct kvfs_pool_info info_of(kvfs_pool *p)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(p, &info), 0);
	return info;
}

static kvfs_mapping *begin(struct world *w, kvfs_pool *p, uint32_t first,
			   size_t n)
{
	kvfs_key keys[PAGES];
	int64_t unused[PAGES];
	kvfs_mapping *map;

	world_chain(first, n, keys, unused);
	assert_int_equal(kvfs_map(p, w->space, keys, n, NULL, &map), 0);
	return map;
}

static bool holds_block(CUdeviceptr at, uint32_t block)
{
	static uint8_t bytes[PAYLOAD];

	GPU_OK(cuMemcpyDtoH_v2, bytes, at, PAYLOAD);
	return world_is(bytes, block);
}

static bool is_all(CUdeviceptr at, uint8_t value)
{
	static uint8_t bytes[PAYLOAD];
	size_t i;

	GPU_OK(cuMemcpyDtoH_v2, bytes, at, PAYLOAD);
	for (i = 0; i < PAYLOAD; i++)
		if (bytes[i] != value)
			return false;
	return true;
}

static CUdeviceptr addr_of(kvfs_mapping *map, size_t i)
{
	void *at = kvfs_map_addr(map, i, NULL);

	assert_non_null(at);
	return (CUdeviceptr)(uintptr_t)at;
}

/* Copy a page in the compute stream, after a kernel that runs for a while. */
static void copy_later(CUdeviceptr from)
{
	gpu_spin(compute, A_WHILE);
	GPU_OK(cuMemcpyDtoDAsync_v2, copy, from, PAYLOAD, compute);
}

static void blocks_are_mapped_and_the_pool_grows(void **state)
{
	struct world *w = *state;
	const void *base = info_of(pool).base;
	kvfs_mapping *first, *all;
	CUdeviceptr at;
	size_t i;

	world_save(w, MANY);
	first = begin(w, pool, 0, 3);
	assert_int_equal(kvfs_map_wait(first, 60 * SECOND), 3);
	at = addr_of(first, 2);
	all = begin(w, pool, 0, MANY);
	assert_int_equal(kvfs_map_wait(all, 60 * SECOND), MANY);
	assert_int_equal(addr_of(first, 2), at);
	assert_int_equal(addr_of(all, 2), at);
	for (i = 0; i < MANY; i++)
		assert_true(holds_block(addr_of(all, i), (uint32_t)i));
	assert_int_equal(info_of(pool).pages, MANY);
	assert_ptr_equal(info_of(pool).base, base);
	assert_int_equal(kvfs_unmap(first, NULL), 0);
	assert_int_equal(kvfs_unmap(all, NULL), 0);
}

/* The save, and maps made later, come after the work of the stream. */
static void what_a_stream_computes_is_sealed_when_it_is_done(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .stream = compute};
	const kvfs_key keys[] = {world_key(0), world_key(1)};
	kvfs_pages *pages;
	kvfs_pool *host;
	kvfs_mapping *here, *there;
	kvfs_xfer *xfer;
	size_t i, k;

	assert_int_equal(kvfs_pages_take(pool, 2, &pages), 0);
	gpu_spin(compute, A_WHILE);
	for (i = 0; i < 2; i++)
		GPU_OK(cuMemsetD8Async,
		       (CUdeviceptr)(uintptr_t)kvfs_pages_addr(pages, i, NULL),
		       (unsigned char)(0x51 + i), PAYLOAD, compute);
	assert_int_equal(
		kvfs_pages_seal(pages, w->space, keys, NULL, 2, &opts, &xfer),
		0);
	here = begin(w, pool, 0, 2);
	assert_int_equal(kvfs_map_wait(here, 60 * SECOND), 2);
	for (i = 0; i < 2; i++)
		assert_true(is_all(addr_of(here, i), (uint8_t)(0x51 + i)));
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 2);
	kvfs_xfer_free(xfer);
	kvfs_pages_free(pages);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", w->space, 2, 2, &host),
		0);
	there = begin(w, host, 0, 2);
	assert_int_equal(kvfs_map_wait(there, 60 * SECOND), 2);
	for (i = 0; i < 2; i++) {
		const uint8_t *at = kvfs_map_addr(there, i, NULL);

		for (k = 0; k < PAYLOAD; k++)
			assert_int_equal(at[k], 0x51 + i);
	}
	assert_int_equal(kvfs_unmap(there, NULL), 0);
	assert_int_equal(kvfs_unmap(here, NULL), 0);
	kvfs_pool_close(host);
}

/* The pages of the pool are not reused until the stream has read them. */
static void what_a_stream_reads_is_not_overwritten(void **state)
{
	struct world *w = *state;
	kvfs_mapping *map, *next;
	int i;

	world_save(w, 2 * MANY);
	map = begin(w, pool, 0, MANY);
	assert_int_equal(kvfs_map_wait(map, 60 * SECOND), MANY);
	copy_later(addr_of(map, 5));
	assert_int_equal(kvfs_unmap(map, compute), 0);
	for (i = 0; i < 60000; i++) {
		next = begin(w, pool, MANY, MANY);
		if (kvfs_map_wait(next, 60 * SECOND) == MANY)
			break;
		assert_int_equal(kvfs_map_status(next, 0), -ENOSPC);
		assert_int_equal(kvfs_unmap(next, NULL), 0);
		usleep(1000);
	}
	assert_true(i > 0 && i < 60000);
	GPU_OK(cuStreamSynchronize, compute);
	assert_true(holds_block(copy, 5));
	assert_true(holds_block(addr_of(next, 5), MANY + 5));
	assert_int_equal(kvfs_unmap(next, NULL), 0);
}

/* The host waits until the copies are submitted, the stream until they end. */
static void a_stream_waits_for_the_map(void **state)
{
	struct world *w = *state;
	kvfs_mapping *map;
	int r;

	world_save(w, MANY);
	map = begin(w, pool, 0, MANY);
	while ((r = kvfs_map_order(map, compute)) == -EAGAIN)
		usleep(50);
	assert_int_equal(r, 0);
	GPU_OK(cuMemcpyDtoDAsync_v2, copy, addr_of(map, MANY - 1), PAYLOAD,
	       compute);
	GPU_OK(cuStreamSynchronize, compute);
	assert_true(holds_block(copy, MANY - 1));
	assert_int_equal(kvfs_map_wait(map, 60 * SECOND), MANY);
	assert_int_equal(kvfs_unmap(map, NULL), 0);
}

static void a_pool_is_closed_when_its_streams_are_done(void **state)
{
	struct world *w = *state;
	kvfs_pages *pages;
	kvfs_mapping *map;

	world_save(w, 1);
	map = begin(w, pool, 0, 1);
	assert_int_equal(kvfs_map_wait(map, 60 * SECOND), 1);
	assert_int_equal(kvfs_pages_take(pool, 1, &pages), 0);
	copy_later(addr_of(map, 0));
	GPU_OK(cuMemsetD8Async,
	       (CUdeviceptr)(uintptr_t)kvfs_pages_addr(pages, 0, NULL), 1,
	       PAYLOAD, compute);
	assert_int_equal(kvfs_unmap(map, compute), 0);
	assert_int_equal(kvfs_pages_drop(pages, compute), 0);
	kvfs_pages_free(pages);
	kvfs_pool_close(kv_steal(pool));
	GPU_OK(cuStreamSynchronize, compute);
	assert_true(holds_block(copy, 0));
}

/* ---- an engine without an allocator of its own ---- */

/* The engine maps the blocks of a prompt, sums them by a kernel, computes blocks that
 * are missing into pages that it takes, and gives all pages back as soon as the GPU has
 * the work.  There are far fewer pages than blocks. */
#define PROMPT 8u
#define CONVERSATIONS 12u
#define BLOCKS (CONVERSATIONS * PROMPT)
#define REQUESTS_MAX 200u

static unsigned requests = REQUESTS_MAX;
/* addresses of the pages of each request, on the host, and the sum of its pages, on
 * the GPU */
static uint64_t *addresses;
static CUdeviceptr sums;
static uint64_t expected[REQUESTS_MAX];

/* Return the byte of which a computed block consists. */
static uint8_t value_of(uint32_t block)
{
	return (uint8_t)(block * 37 + 11);
}

/* Compute a block into a page, in @stream, and save the page.  Return false if no page
 * can be taken now. */
static bool compute_block(struct world *w, uint32_t block, CUstream stream)
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
	/* The next request could wait for the save instead. */
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 1);
	assert_int_equal(kvfs_xfer_status(xfer, 0), 0);
	kvfs_xfer_free(xfer);
	kvfs_pages_free(page);
	return true;
}

/* Sum the first @n blocks of a conversation in @stream.  Return the number of blocks
 * that got pages. */
static size_t attend(struct world *w, unsigned request, uint32_t first,
		     size_t n, CUstream stream)
{
	uint64_t *pages = addresses + request * PROMPT;
	uint64_t what[3] = {(uintptr_t)pages, PAYLOAD, sums + request * 8ull};
	void *parameters[] = {what};
	kvfs_mapping *map = begin(w, pool, first, n);
	size_t got = 0;
	int r;

	if (request % 2 == 0) {
		assert_true(kvfs_map_wait(map, 60 * SECOND) >= 0);
	} else {
		/* Order the stream instead of waiting for the copies. */
		while ((r = kvfs_map_order(map, stream)) == -EAGAIN)
			usleep(50);
		assert_int_equal(r, 0);
	}
	for (; got < n && kvfs_map_addr(map, got, NULL) != NULL; got++)
		pages[got] = addr_of(map, got);
	for (size_t i = 0; i < n; i++) {
		r = kvfs_map_status(map, i);
		assert_true(r == 0 || r == -ENOSPC || r == -EINPROGRESS);
		assert_true(i >= got || r != -ENOSPC);
	}
	if (got > 0) {
		gpu_spin(stream, 20000000); /* layers before */
		GPU_OK(cuLaunchKernel, gpu.sum, (unsigned)got, 1, 1, 64, 1, 1,
		       0, stream, parameters, NULL);
	}
	/* The kernel may run much later. */
	assert_int_equal(kvfs_unmap(map, stream), 0);
	for (uint32_t i = 0; i < got; i++)
		expected[request] +=
			PAYLOAD / 8 *
			(value_of(first + i) * 0x0101010101010101ull);
	return got;
}

static void pages_that_a_kernel_reads_keep_their_blocks(void **state)
{
	static bool saved[BLOCKS];
	const CUstream streams[] = {compute, gpu_stream()};
	size_t mapped = 0, short_of = 0, n;
	uint64_t now[REQUESTS_MAX];
	unsigned seed = 7, request;
	uint32_t first;

	GPU_OK(cuMemHostAlloc, (void **)&addresses, requests * PROMPT * 8ull,
	       CU_REGISTER_MAPPED);
	sums = gpu_alloc(sizeof(now));
	GPU_OK(cuMemsetD8Async, sums, 0, sizeof(now), CU_LEGACY);
	GPU_OK(cuCtxSynchronize);
	for (request = 0; request < requests; request++) {
		CUstream stream = streams[request % KV_ARRAY_LEN(streams)];

		seed = seed * 1103515245u + 12345u;
		first = (seed >> 8) % CONVERSATIONS * PROMPT;
		n = 1 + (seed >> 20) % PROMPT;
		for (uint32_t i = 0; i < n; i++) {
			if (saved[first + i])
				continue;
			saved[first + i] =
				compute_block(*state, first + i, stream);
			if (!saved[first + i]) {
				n = i;
				short_of++;
			}
		}
		if (n > 0)
			mapped += attend(*state, request, first, n, stream);
	}
	GPU_OK(cuCtxSynchronize);
	GPU_OK(cuMemcpyDtoH_v2, now, sums, sizeof(now));
	for (request = 0; request < requests; request++)
		if (now[request] != expected[request])
			fail_msg("request %u: the pages changed under it",
				 request);
	/* Pages of maps that were ended early are given back after their copies. */
	while (info_of(pool).pages_mapped > 0)
		usleep(1000);
	assert_int_equal(info_of(pool).pages, MANY);
	print_message("%zu blocks summed in %u pages, %zu times no page\n",
		      mapped, MANY, short_of);
	assert_true(mapped > requests / 4);
	GPU_OK(cuStreamDestroy_v2, streams[1]);
	gpu_free(sums);
	GPU_OK(cuMemFreeHost, addresses);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(blocks_are_mapped_and_the_pool_grows),
		TEST(what_a_stream_computes_is_sealed_when_it_is_done),
		TEST(what_a_stream_reads_is_not_overwritten),
		TEST(a_stream_waits_for_the_map),
		TEST(a_pool_is_closed_when_its_streams_are_done),
		TEST(pages_that_a_kernel_reads_keep_their_blocks),
	};

	gpu_begin(argv);
	if (argc > 1)
		requests = 60;
	if (gpu_open() < 0)
		return 77;
	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
