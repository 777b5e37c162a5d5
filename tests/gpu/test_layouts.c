/* SPDX-License-Identifier: Apache-2.0 */
/* test_layouts.c - every layout, saved and loaded bit for bit, on the host and
 * on the GPU, by each path of the bytes. */
#include "tests/gpu/memory.h"

/* a model whose layouts have strides of 4 KiB */
static const struct dims middle = {2, 4, 64, 8};
/* a model whose layouts have strides of 256 bytes */
static const struct dims small = {2, 1, 32, 4};
/* a model whose layouts have strides of 32 KiB */
static const struct dims qwen3 = {36, 8, 128, 16};

/* Set some page numbers of a load to -1, so that these pages are skipped. */
static void skip_some(int64_t *pages, size_t n)
{
	size_t i;

	for (i = 3; i < n; i += 5)
		pages[i] = -1;
}

/* Check that the lease has the bytes of the pages, in the tensors' order. */
static void assert_blocks_are(struct engine *e, kvfs_lease *lease, size_t n,
			      const int64_t *pages)
{
	uint8_t *block = malloc(e->shape.block);
	const void *data;
	uint64_t bytes;
	size_t i;

	for (i = 0; i < n; i += n / 3 + 1) {
		shape_block(&e->shape, e->image,
			    pages + i * e->shape.pages_per_block, block, false);
		data = kvfs_lease_data(lease, i, &bytes);
		assert_int_equal(bytes, e->shape.block);
		assert_memory_equal(data, block, bytes);
	}
	free(block);
}

/* Set the expected contents: the bytes of layers @first .. + @layers of the
 * blocks in the pages @to, and 0xa5 elsewhere. */
static void expect_layers(struct engine *e, uint8_t *saved, size_t n,
			  const int64_t *from, const int64_t *to,
			  uint32_t first, uint32_t layers)
{
	const uint32_t all = kvfs_space_layers(e->space);
	const struct pool_shape *shape = &e->shape;
	uint8_t *block = malloc(shape->block);
	size_t i, v;

	memset(e->image, 0xa5, shape->bytes);
	for (i = 0; i < n; i++) {
		uint8_t *tensor = block;
		uint64_t bytes = 0, layer;

		shape_block(shape, saved, from + i * shape->pages_per_block,
			    block, false);
		for (v = 0; v < shape->n_views; v++) {
			bytes += shape->views[v].bytes * shape->views[v].count *
				 shape->pages_per_block;
			if (v + 1 < shape->n_views &&
			    strcmp(shape->views[v].tensor,
				   shape->views[v + 1].tensor) == 0)
				continue;
			layer = bytes / all;
			memset(tensor, 0xa5, first * layer);
			memset(tensor + (first + layers) * layer, 0xa5,
			       bytes - (first + layers) * layer);
			tensor += bytes;
			bytes = 0;
		}
		shape_block(shape, e->image, to + i * shape->pages_per_block,
			    block, true);
	}
	free(block);
}

static void load_and_check(struct engine *e, kvfs_lease *lease, size_t n,
			   const int64_t *pages, const kvfs_opts *opts)
{
	kvfs_xfer *xfer;
	size_t i;

	if (engine_is_host(e))
		memset((void *)e->shape.base, 0xa5, e->shape.bytes);
	else {
		GPU_OK(cuMemsetD8Async, e->shape.base, 0xa5, e->shape.bytes,
		       CU_LEGACY);
		GPU_OK(cuCtxSynchronize);
	}
	assert_int_equal(kvfs_load(e->pool, lease, n, pages, opts, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 120 * SECOND), n);
	for (i = 0; i < n; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), 0);
	kvfs_xfer_free(xfer);
	engine_assert_is_image(e, "a load writes these pages and no others");
}

/* Save @n blocks and load them to other pages; a few also layer by layer. */
static void there_and_back(struct world *w, const char *device,
			   const struct shape *shape, const struct dims *dims,
			   size_t n)
{
	size_t n_pages = n * shape->pages_per_block;
	uint64_t pages = n_pages + n_pages / 4 + 3;
	int64_t *from = engine_pages(n_pages, pages, 1);
	int64_t *to = engine_pages(n_pages, pages, 2);
	kvfs_opts opts = {.size = sizeof(opts)};
	struct engine e;
	kvfs_lease *lease;
	uint8_t *saved;
	uint32_t all, l;

	engine_open(&e, w, device, shape, dims, pages);
	engine_fill(&e, n);
	engine_save(&e, n, from, KVFS_SEALED);
	engine_assert_is_image(&e, "a save leaves the pages as they are");
	lease = engine_acquire(&e, n);
	assert_blocks_are(&e, lease, n, from);

	skip_some(to, n_pages);
	saved = e.image;
	e.image = malloc(e.shape.bytes);
	all = kvfs_space_layers(e.space);
	expect_layers(&e, saved, n, from, to, 0, all);
	load_and_check(&e, lease, n, to, NULL);
	if (n < 10) {
		opts.flags = KVFS_BY_LAYER;
		load_and_check(&e, lease, n, to, &opts);
		opts.layers = 1;
		for (l = 0; l < all; l++) {
			opts.first_layer = l;
			opts.flags ^= KVFS_BY_LAYER;
			expect_layers(&e, saved, n, from, to, l, 1);
			load_and_check(&e, lease, n, to, &opts);
		}
	}
	kvfs_release(lease);
	engine_close(&e);
	free(saved);
	free(from);
	free(to);
}

/* Test @n layouts: every @step-th one of all. */
static void layouts(struct world *w, const char *device,
		    const struct dims *dims, size_t n, size_t step)
{
	struct standin_alive before = gpu_alive();
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(shapes); i += step) {
		print_message("%s, %s, %zu\n", device, shapes[i].name, n);
		there_and_back(w, device, &shapes[i], dims, n);
	}
	if (strcmp(device, "host") != 0)
		gpu_assert_same(&before);
}

static void on_the_host_each_layout_comes_back_bit_for_bit(void **state)
{
	layouts(*state, "host", &middle, 1, 1);
	layouts(*state, "host", &middle, 5, 1);
	layouts(*state, "host", &middle, 127, 1);
}

static void on_the_host_4096_blocks_come_back(void **state)
{
	layouts(*state, "host", &small, 4096, 5);
}

static void one_block_comes_back_from_the_device(void **state)
{
	layouts(*state, "cuda", &middle, 1, 1);
}

static void each_layout_comes_back_from_the_device(void **state)
{
	layouts(*state, "cuda", &middle, 5, 1);
	layouts(*state, "cuda", &middle, 127, 1);
}

static void from_the_device_4096_blocks_come_back(void **state)
{
	layouts(*state, "cuda", &small, 4096, gpu_is_real() ? 1 : 4);
}

static void some_layouts_come_back_from_the_device(void **state)
{
	layouts(*state, "cuda", &middle, 127, 2);
	layouts(*state, "cuda", &small, 4096, 7);
}

/* Test all layers (286 MiB) on a real GPU; two layers are enough for the
 * stand-in. */
static void qwen3_comes_back_from_the_device(void **state)
{
	struct dims dims = qwen3;

	if (!gpu_is_real())
		dims.layers = 2;
	there_and_back(*state, "cuda", &shapes[0], &dims, 127);
	there_and_back(*state, "cuda", &shapes[2], &dims, 127);
}

/* Check that the pool reports @path as the way of its bytes.  The path may be
 * reported late, because memory is registered in the background. */
static void assert_path(struct world *w, const char *path, const char *reason)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	int64_t page = 0;
	struct engine e;
	unsigned i;

	if (gpu_is_real())
		skip();
	engine_open(&e, w, "cuda", &shapes[0], &middle, 1);
	engine_save(&e, 1, &page, KVFS_SEALED);
	kvfs_release(engine_acquire(&e, 1));
	for (i = 0; i < 3000; i++) {
		assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
		if (strstr(info.reason, reason) != NULL)
			break;
		usleep(10000);
	}
	assert_non_null(strstr(info.reason, reason));
	assert_non_null(strstr(info.path, path));
	engine_close(&e);
}

static void the_arena_is_registered(void **state)
{
	int value = 0;

	/* The library of denied.c answers the plug-in that there is no read-only
	 * registration; the tests of the other paths follow. */
	assert_int_equal(
		gpu.plugins_attribute(&value, CU_READ_ONLY_HOST_REGISTER, 0),
		CU_OK);
	if (value == 0)
		skip();
	assert_path(*state, "registered", "read-only memory");
}

static void what_cannot_be_registered_is_staged(void **state)
{
	assert_path(*state, "staging", "registers writable memory only");
}

static void the_arena_is_registered_while_it_is_writable(void **state)
{
	assert_path(*state, "registered", "while it was writable");
}

/* Check that a pool is refused if its view @at is replaced by @change. */
static void assert_refused(const struct engine *e, size_t at, kvfs_view change,
			   const char *what)
{
	struct engine other = *e;

	other.shape.views[at] = change;
	other.pool = NULL;
	if (engine_register(&other) != -EINVAL)
		fail_msg("%s in view %zu is accepted", what, at);
}

static void wrong_views_of_each_layout_are_refused(void **state)
{
	struct engine e;

	for (size_t i = 0; i < KV_ARRAY_LEN(shapes); i++) {
		print_message("%s\n", shapes[i].name);
		engine_open(&e, *state, "host", &shapes[i], &middle, 12);
		for (size_t k = 0; k < e.shape.n_views; k++) {
			const kvfs_view good = e.shape.views[k];
			char *base = (char *)e.shape.base;
			kvfs_view v;

#define REFUSED(field, wrong, what)             \
	do {                                    \
		v = good;                       \
		v.field = (wrong);              \
		assert_refused(&e, k, v, what); \
	} while (0)
			REFUSED(bytes, good.bytes + 1, "a byte too many");
			REFUSED(bytes, good.bytes - 1, "a byte too few");
			REFUSED(count, good.count + 1, "a run too many");
			REFUSED(block_stride, 0, "no stride");
			REFUSED(block_stride, good.bytes - 1, "an overlap");
			REFUSED(block_stride, UINT64_MAX / 4, "an overflow");
			REFUSED(base, base + e.shape.bytes - good.bytes,
				"an end outside");
			REFUSED(base, base - 1, "a beginning outside");
			REFUSED(base, NULL, "no address");
			REFUSED(tensor, "x", "an unknown tensor");
			if (good.count > 1)
				REFUSED(segment_stride, good.bytes - 1,
					"an overlap of runs");
		}
		e.shape.n_views--;
		assert_refused(&e, 0, e.shape.views[0], "a view too few");
		e.shape.n_views++;
		e.shape.pages *= 2;
		assert_refused(&e, 0, e.shape.views[0], "too many pages");
		e.shape.pages /= 2;
		e.shape.pages_per_block++;
		assert_refused(&e, 0, e.shape.views[0], "a page too many");
		engine_close(&e);
	}
}

/* Open one session for all tests: its staging is made only once. */
static int begin(void **state, const char *arena)
{
	static char options[128];
	struct world *w;
	int r;

	snprintf(options, sizeof(options), "dram=%s,ssd=0,scrub=0,arena=%s",
		 gpu_is_real() ? "2G" : "128M,segment=8M,hugepages=off", arena);
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

static int run_host(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			on_the_host_each_layout_comes_back_bit_for_bit),
		cmocka_unit_test(on_the_host_4096_blocks_come_back),
		cmocka_unit_test(wrong_views_of_each_layout_are_refused),
	};

	return cmocka_run_group_tests_name("host", tests, sealed, end);
}

static int run_cuda(const char *name, CMFixtureFunction setup)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_block_comes_back_from_the_device),
		cmocka_unit_test(each_layout_comes_back_from_the_device),
		cmocka_unit_test(from_the_device_4096_blocks_come_back),
		cmocka_unit_test(qwen3_comes_back_from_the_device),
		cmocka_unit_test(the_arena_is_registered),
	};

	return cmocka_run_group_tests_name(name, tests, setup, end);
}

/* Run the tests with settings that make the bytes take another path. */
static int run_other_way(const char *name, CMFixtureFunction setup,
			 struct CMUnitTest is_so)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(some_layouts_come_back_from_the_device),
		cmocka_unit_test(qwen3_comes_back_from_the_device),
		is_so,
	};

	return cmocka_run_group_tests_name(name, tests, setup, end);
}

static void a_few_layouts_come_back_from_the_device(void **state)
{
	layouts(*state, "cuda", &middle, 9, 1);
}

/* `test_layouts quick`: fewer layouts, for tools that make everything slow. */
static int run_quick(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_few_layouts_come_back_from_the_device),
	};

	if (gpu_open() < 0)
		return 1;
	return cmocka_run_group_tests_name("quick", tests, sealed, end);
}

int main(int argc, char **argv)
{
	int failed;

	gpu_begin(argv);
	if (argc > 1)
		return run_quick();
	failed = run_host();
	if (gpu_open() < 0)
		return 1;
	gpu_set("delay=20,pageable=0,readonly=1");
	failed += run_cuda("cuda, as the device is", sealed);
	gpu_set("readonly=0");
	if (!gpu_is_real())
		failed += run_other_way(
			"cuda, staged", sealed,
			(struct CMUnitTest)cmocka_unit_test(
				what_cannot_be_registered_is_staged));
	return failed +
	       run_other_way(
		       "cuda, arena=rw", writable,
		       (struct CMUnitTest)cmocka_unit_test(
			       the_arena_is_registered_while_it_is_writable));
}
