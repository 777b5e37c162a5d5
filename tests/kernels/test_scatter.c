/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the GPU's kernels, compared with the device "host". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/cuda/plan.h"
#include "kernels/device/device.h"

#define STRIDES_MAX 64
#define BLOCKS_MAX 8
#define PPB_MAX 4

struct layout {
	const char *name;
	uint32_t ppb;
	uint64_t pages;
	size_t n;
	uint64_t memory; /* number of bytes of the pool */
	/* in these strides, base is an offset in the pool's memory */
	struct kvfs_stride stride[STRIDES_MAX];
};

static void add(struct layout *l, uint64_t base, uint64_t block_stride,
		uint64_t bytes, uint64_t count, uint64_t segment_stride)
{
	struct kvfs_stride *last = &l->stride[l->n - (l->n > 0)];
	uint64_t offset =
		l->n == 0 ? 0
			  : last->offset + last->bytes * last->count * l->ppb;

	assert_true(l->n < STRIDES_MAX);
	l->stride[l->n++] = (struct kvfs_stride){
		.offset = offset,
		.base = (uint8_t *)(uintptr_t)base,
		.block_stride = block_stride,
		.bytes = bytes,
		.count = count,
		.segment_stride = segment_stride,
	};
	l->memory =
		KV_MAX(l->memory, base + (l->pages - 1) * block_stride +
					  (count - 1) * segment_stride + bytes);
}

static struct layout begin(const char *name, uint64_t pages, uint32_t ppb)
{
	return (struct layout){.name = name, .pages = pages, .ppb = ppb};
}

/* Lay out @n layers one after the other, each with pages of @bytes. */
static struct layout layer_first(const char *name, size_t n, uint64_t bytes,
				 uint32_t ppb)
{
	struct layout l = begin(name, 16, ppb);
	size_t i;

	for (i = 0; i < n; i++)
		add(&l, i * l.pages * bytes, bytes, bytes, 1, 0);
	return l;
}

/* Lay out K and V of each layer apart: two runs per page. */
static struct layout split(size_t n, uint64_t bytes)
{
	struct layout l = begin("K/V split", 16, 1);
	size_t i;

	for (i = 0; i < n; i++)
		add(&l, i * 2 * l.pages * bytes, bytes, bytes, 2,
		    l.pages * bytes);
	return l;
}

/* Lay out heads first: the pages interleave within each head. */
static struct layout head_first(size_t n, uint64_t heads, uint64_t bytes)
{
	struct layout l = begin("head-first", 16, 2);
	size_t i;

	for (i = 0; i < n; i++)
		add(&l, i * heads * l.pages * bytes, bytes, bytes, heads,
		    l.pages * bytes);
	return l;
}

static struct layout page_first(void)
{
	struct layout l = begin("page-first", 8, 2);

	add(&l, 0, 1100 << 10, 1100 << 10, 1, 0);
	return l;
}

/* Make runs of lengths and addresses that no vector access fits. */
static struct layout odd(void)
{
	struct layout l = begin("odd", 16, 3);

	add(&l, 1, 4099, 4097, 1, 0);
	add(&l, 70003, 13, 7, 1, 0);
	add(&l, 71000, 40, 18, 2, 20);
	add(&l, 72000, 64, 1, 3, 5);
	return l;
}

/* Mix large tensors, copied as runs, with small scales for the kernel. */
static struct layout mixed(void)
{
	struct layout l = begin("fp8 and scales", 8, 1);

	add(&l, 0, 1 << 20, 1 << 20, 1, 0);
	add(&l, 8 << 20, 128, 128, 1, 0);
	add(&l, 9 << 20, 1 << 20, 1 << 20, 1, 0);
	add(&l, 17 << 20, 128, 128, 1, 0);
	return l;
}

struct world {
	struct layout l;
	/* strides of two pools, which differ only by the pool's memory */
	struct kvfs_strides mine, theirs;
	uint8_t *pool, *other, *staging;
	uint8_t *tensors[BLOCKS_MAX], *back[BLOCKS_MAX];
	int64_t pages[BLOCKS_MAX][PPB_MAX];
	struct kvfs_copy copies[BLOCKS_MAX];
	size_t n;
	uint64_t block, block_at;
};

static uint8_t *memory(uint64_t bytes, uint8_t value)
{
	uint8_t *at = aligned_alloc(KV_PAGE, kv_round_up(bytes, KV_PAGE));

	assert_non_null(at);
	memset(at, value, bytes);
	return at;
}

static struct kvfs_strides pieces_at(const struct layout *l, uint8_t *pool)
{
	struct kvfs_strides strides = {l->ppb, l->n, NULL};
	size_t i;

	strides.stride = calloc(l->n, sizeof(*strides.stride));
	assert_non_null(strides.stride);
	for (i = 0; i < l->n; i++) {
		strides.stride[i] = l->stride[i];
		strides.stride[i].base = pool + (uintptr_t)l->stride[i].base;
	}
	return strides;
}

static void world_new(struct world *w, struct layout l, size_t n, bool skips)
{
	const struct kvfs_stride *last = &l.stride[l.n - 1];
	size_t i, p, next = l.pages;

	memset(w, 0, sizeof(*w));
	w->l = l;
	w->n = n;
	w->block = last->offset + last->bytes * last->count * l.ppb;
	w->pool = memory(l.memory, 0xee);
	w->other = memory(l.memory, 0xee);
	w->mine = pieces_at(&l, w->pool);
	w->theirs = pieces_at(&l, w->other);
	for (i = 0; i < n; i++) {
		w->tensors[i] = memory(w->block, 0);
		w->back[i] = memory(w->block, 0);
		for (p = 0; p < w->block; p++)
			w->tensors[i][p] =
				(uint8_t)((p * 7 + p / 251 + i * 31) | 1);
		for (p = 0; p < l.ppb; p++)
			w->pages[i][p] = skips && (i + p) % 3 == 1
						 ? -1
						 : (int64_t)--next;
		w->copies[i] = (struct kvfs_copy){w->tensors[i], w->pages[i]};
	}
}

static void world_free(struct world *w)
{
	size_t i;

	for (i = 0; i < w->n; i++) {
		free(w->tensors[i]);
		free(w->back[i]);
	}
	free(w->pool);
	free(w->other);
	free(w->mine.stride);
	free(w->theirs.stride);
}

static struct kv_scatter_args args_of(struct world *w,
				      const struct kv_plan *plan,
				      const struct kv_pass *pass, size_t i,
				      uint8_t *staging, bool loads)
{
	w->block_at = (uintptr_t)(loads ? w->tensors[i] : w->back[i]);
	return (struct kv_scatter_args){
		.sections = plan->sections + pass->section,
		.pages = w->pages[i],
		.blocks = plan->in_place ? &w->block_at : NULL,
		.staging = (uintptr_t)staging,
		.staging_stride = pass->stride,
		.n_sections = (uint32_t)pass->n_sections,
		.pages_per_block = w->l.ppb,
		.block_units = pass->units,
		.units = pass->units,
		.lanes = plan->lanes,
	};
}

static void move(uint8_t *staging, const struct kv_run *run, uint8_t *tensors,
		 bool loads)
{
	if (loads)
		memcpy(staging + run->at, tensors + run->from, run->bytes);
	else
		memcpy(tensors + run->from, staging + run->at, run->bytes);
}

/* Run the threads of a GPU launch one after the other. */
static void launch(const struct kv_scatter_args *scatter, bool loads)
{
	uint32_t thread, threads = 4 * scatter->lanes;

	for (thread = 0; thread < threads; thread++)
		kv_scatter_run(scatter, thread, threads, loads);
}

/* Copy block @i through staging memory, and check that the copies stay inside
 * that memory. */
static void pass_block(struct world *w, const struct kv_plan *plan,
		       const struct kv_pass *pass, size_t i, bool loads)
{
	uint8_t *staging = memory(pass->stride + 64, 0xcc);
	struct kv_scatter_args scatter =
		args_of(w, plan, pass, i, staging, loads);
	uint8_t *tensors = loads ? w->tensors[i] : w->back[i];
	size_t r;

	if (!loads)
		launch(&scatter, false);
	for (r = 0; r < pass->n_runs; r++)
		move(staging, &plan->runs[pass->run + r], tensors, loads);
	if (loads)
		launch(&scatter, true);
	for (r = 0; r < 64; r++)
		assert_int_equal(staging[pass->stride + r], 0xcc);
	free(staging);
}

struct run_copy {
	uint8_t *tensors;
	bool loads;
	size_t n;
};

static int copy_run(void *arg, uint64_t pool, uint64_t offset, uint64_t bytes)
{
	struct run_copy *c = arg;
	uint8_t *at = (uint8_t *)(uintptr_t)pool;

	if (c->loads)
		memcpy(at, c->tensors + offset, bytes);
	else
		memcpy(c->tensors + offset, at, bytes);
	c->n++;
	return 0;
}

static void direct_block(struct world *w, const struct kv_plan *plan, size_t i,
			 bool loads)
{
	struct run_copy c = {loads ? w->tensors[i] : w->back[i], loads, 0};
	size_t s;

	for (s = 0; s < plan->n_direct; s++)
		assert_int_equal(kv_plan_each_run(&plan->direct[s], w->pages[i],
						  copy_run, &c),
				 0);
}

static void do_plan(struct world *w, const struct kv_plan *plan, bool loads)
{
	size_t i, p;

	for (i = 0; i < w->n; i++) {
		for (p = 0; p < plan->n_passes; p++)
			pass_block(w, plan, &plan->passes[p], i, loads);
		direct_block(w, plan, i, loads);
	}
}

/* Load the ranges by the GPU's scatter kernel and by the device "host", and
 * compare the pages; then save the pages by both, and compare the blocks. */
static void compare(struct layout l, const struct kvfs_range *ranges,
		    size_t n_ranges, uint64_t staging, bool skips)
{
	struct kvfs_batch batch = {.ranges = ranges, .n_ranges = n_ranges};
	struct kvfs_copy saves[BLOCKS_MAX];
	struct kv_plan plan;
	struct world w;
	uint8_t *saved;
	size_t i;

	world_new(&w, l, 16 / l.ppb > BLOCKS_MAX ? BLOCKS_MAX : l.pages / l.ppb,
		  skips);
	assert_int_equal(
		kv_plan_init(&plan, &w.mine, ranges, n_ranges, staging), 0);
	for (i = 0; i < plan.n_passes; i++)
		assert_true(plan.passes[i].stride <= staging);
	assert_int_equal(plan.in_place, staging == 0);
	batch.copies = w.copies;
	batch.n = w.n;
	batch.strides = &w.theirs;
	assert_int_equal(kv_device_host.load(NULL, &batch), 0);
	do_plan(&w, &plan, true);
	if (memcmp(w.pool, w.other, l.memory) != 0)
		fail_msg("%s: loaded otherwise", l.name);

	for (i = 0; i < w.n; i++) {
		saved = memory(w.block, 0);
		saves[i] = (struct kvfs_copy){saved, w.pages[i]};
	}
	batch.copies = saves;
	if (!skips) {
		assert_int_equal(kv_device_host.save(NULL, &batch), 0);
		do_plan(&w, &plan, false);
	}
	for (i = 0; i < w.n; i++) {
		if (memcmp(saves[i].tensors, w.back[i], w.block) != 0)
			fail_msg("%s: saved otherwise", l.name);
		free(saves[i].tensors);
	}
	kv_plan_fini(&plan);
	world_free(&w);
}

static size_t all_layouts(struct layout *l)
{
	size_t n = 0;

	l[n++] = layer_first("layer-first, 32 KiB", 6, 32 << 10, 1);
	l[n++] = layer_first("layer-first, 4 KiB, four pages a block", 9, 4096,
			     4);
	l[n++] = layer_first("MLA, 18 KiB", 5, 576 * 2 * 16, 1);
	l[n++] = layer_first("indexer, 132 bytes", 7, 132, 2);
	l[n++] = layer_first("runs of 8 bytes", 3, 8, 2);
	l[n++] = split(4, 16 << 10);
	l[n++] = head_first(3, 8, 4096);
	l[n++] = head_first(2, 4, 100);
	l[n++] = page_first();
	l[n++] = odd();
	l[n++] = mixed();
	return n;
}

static void every_layout_gets_the_bytes_that_the_host_device_gives(void **s)
{
	struct layout l[16];
	size_t i, n = all_layouts(l);

	(void)s;
	for (i = 0; i < n; i++) {
		compare(l[i], NULL, 0, 16 << 20, false);
		compare(l[i], NULL, 0, 16 << 20, true);
	}
}

static void blocks_larger_than_staging_go_in_passes(void **state)
{
	struct layout l[16];
	size_t i, n = all_layouts(l);

	(void)state;
	for (i = 0; i < n; i++) {
		compare(l[i], NULL, 0, 4096, false);
		compare(l[i], NULL, 0, 10000, true);
		compare(l[i], NULL, 0, 64, false);
	}
}

static void bytes_may_be_where_the_host_has_them(void **state)
{
	struct layout l[16];
	size_t i, n = all_layouts(l);

	(void)state;
	for (i = 0; i < n; i++) {
		compare(l[i], NULL, 0, 0, false);
		compare(l[i], NULL, 0, 0, true);
	}
}

static void ranges_touch_no_other_byte(void **state)
{
	struct layout l[16];
	size_t i, n = all_layouts(l);

	(void)state;
	for (i = 0; i < n; i++) {
		const struct kvfs_stride *last = &l[i].stride[l[i].n - 1];
		uint64_t block =
			last->offset + last->bytes * last->count * l[i].ppb;
		const struct kvfs_range two[] = {{block / 7, block / 3},
						 {block / 2 + 1, block - 1}};
		const struct kvfs_range one = {block / 2, block / 2 + 1};

		compare(l[i], two, 2, 16 << 20, false);
		compare(l[i], two, 2, 4096, true);
		compare(l[i], &one, 1, 16 << 20, false);
		compare(l[i], two, 2, 0, false);
		compare(l[i], two, 2, 0, true);
		compare(l[i], &one, 1, 0, false);
	}
}

static void a_unit_of_a_skipped_page_has_no_bytes(void **state)
{
	const int64_t pages[] = {-1, 3};
	const struct kv_section section = {
		.base = 1 << 20,
		.block_stride = 512,
		.bytes = 512,
		.count = 1,
		.length = 1024,
	};
	const struct kv_scatter_args scatter = {
		.sections = &section,
		.pages = pages,
		.staging = 4096,
		.n_sections = 1,
		.pages_per_block = 2,
		.block_units = 2,
		.units = 2,
		.lanes = 32,
	};
	struct kv_unit unit = kv_scatter_unit(&scatter, 0);

	(void)state;
	assert_int_equal(unit.bytes, 0);
	unit = kv_scatter_unit(&scatter, 1);
	assert_int_equal(unit.bytes, 512);
	assert_int_equal(unit.pool, (1 << 20) + 3 * 512);
	assert_int_equal(unit.staging, 4096 + 512);
}

static void accesses_are_as_wide_as_both_addresses_allow(void **state)
{
	(void)state;
	assert_int_equal(kv_scatter_width(4096, 16), 16);
	assert_int_equal(kv_scatter_width(4096 + 8, 16), 8);
	assert_int_equal(kv_scatter_width(4096 + 8, 24), 16);
	assert_int_equal(kv_scatter_width(4096 + 4, 16), 4);
	assert_int_equal(kv_scatter_width(4096 + 2, 16), 2);
	assert_int_equal(kv_scatter_width(4096 + 1, 16), 1);
}

static int note_run(void *arg, uint64_t pool, uint64_t offset, uint64_t bytes)
{
	uint64_t *sizes = arg;

	(void)pool;
	(void)offset;
	sizes[++sizes[0]] = bytes;
	return 0;
}

static void pages_in_a_row_are_one_copy(void **state)
{
	const int64_t pages[] = {4, 5, 6, 2};
	const struct kv_section section = {
		.block_stride = 1 << 20,
		.bytes = 1 << 20,
		.count = 1,
		.length = 4 << 20,
	};
	uint64_t sizes[8] = {0};

	(void)state;
	assert_int_equal(kv_plan_each_run(&section, pages, note_run, sizes), 0);
	assert_int_equal(sizes[0], 2);
	assert_int_equal(sizes[1], 3 << 20);
	assert_int_equal(sizes[2], 1 << 20);
}

/* Tensors with long runs are copied run by run, other tensors by the kernel. */
static void the_way_of_a_piece_follows_from_the_length_of_its_runs(void **state)
{
	struct layout l = mixed();
	struct kvfs_strides strides = pieces_at(&l, NULL);
	struct kv_plan plan;

	(void)state;
	assert_int_equal(kv_plan_init(&plan, &strides, NULL, 0, 1 << 20), 0);
	assert_int_equal(plan.n_direct, 2);
	assert_int_equal(plan.n_sections, 2);
	assert_int_equal(plan.n_passes, 1);
	assert_int_equal(plan.lanes, 8);
	kv_plan_fini(&plan);
	free(strides.stride);
	l = page_first();
	strides = pieces_at(&l, NULL);
	assert_int_equal(kv_plan_init(&plan, &strides, NULL, 0, 1 << 20), 0);
	assert_int_equal(plan.n_direct, 1);
	assert_int_equal(plan.n_passes, 0);
	kv_plan_fini(&plan);
	free(strides.stride);
}

/* Neighbouring pieces of a block are copied as one whole run. */
static void a_layer_first_block_is_one_run_of_staging(void **state)
{
	struct layout l = layer_first("layers", 36, 32 << 10, 1);
	struct kvfs_strides strides = pieces_at(&l, NULL);
	struct kv_plan plan;

	(void)state;
	assert_int_equal(kv_plan_init(&plan, &strides, NULL, 0, 16 << 20), 0);
	assert_int_equal(plan.n_passes, 1);
	assert_int_equal(plan.n_runs, 1);
	assert_int_equal(plan.runs[0].bytes, 36 * (32 << 10));
	assert_int_equal(plan.lanes, 32);
	kv_plan_fini(&plan);
	free(strides.stride);
}

/* A range within a page is planned as a run of its own, a range across two pages as
 * two. */
static void a_part_of_a_run_is_a_run(void **state)
{
	struct layout l = page_first();
	struct kvfs_strides strides = pieces_at(&l, NULL);
	const uint64_t page = 1100 << 10;
	const struct kvfs_range within = {page + 4096, page + 20480},
				across = {page - 4096, page + 8192};
	struct kv_plan plan;

	(void)state;
	assert_int_equal(kv_plan_init(&plan, &strides, &within, 1, 16 << 20),
			 0);
	assert_int_equal(plan.n_direct, 0);
	assert_int_equal(plan.passes[0].units, 4);
	assert_true(kv_plan_is_short(&plan));
	kv_plan_fini(&plan);
	assert_int_equal(kv_plan_init(&plan, &strides, &across, 1, 0), 0);
	assert_int_equal(plan.n_direct, 0);
	assert_int_equal(plan.n_sections, 2);
	assert_int_equal(plan.passes[0].units, 3);
	kv_plan_fini(&plan);
	free(strides.stride);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			every_layout_gets_the_bytes_that_the_host_device_gives),
		cmocka_unit_test(blocks_larger_than_staging_go_in_passes),
		cmocka_unit_test(bytes_may_be_where_the_host_has_them),
		cmocka_unit_test(ranges_touch_no_other_byte),
		cmocka_unit_test(a_part_of_a_run_is_a_run),
		cmocka_unit_test(a_unit_of_a_skipped_page_has_no_bytes),
		cmocka_unit_test(accesses_are_as_wide_as_both_addresses_allow),
		cmocka_unit_test(pages_in_a_row_are_one_copy),
		cmocka_unit_test(
			the_way_of_a_piece_follows_from_the_length_of_its_runs),
		cmocka_unit_test(a_layer_first_block_is_one_run_of_staging),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
