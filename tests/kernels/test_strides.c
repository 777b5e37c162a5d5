/* SPDX-License-Identifier: Apache-2.0 */
/* Valid descriptors of pools, and the strides made from them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/transfer/xfer.h"

/* Tensors: k 4096 bytes, v 4096 bytes. */
#define LAYOUT                                                              \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4096]}," \
	"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[4096]}]}"
#define PAGES 8

static uint8_t memory[PAGES * 8192];
static struct kv_layout *layout;

static int setup(void **state)
{
	(void)state;
	return kv_layout_parse(LAYOUT, strlen(LAYOUT), &layout);
}

static int teardown(void **state)
{
	(void)state;
	kv_layout_free(layout);
	return 0;
}

/* Two views: k in the first half of each page's 8192 bytes, v in the second. */
static kvfs_view good[2] = {
	{"k", memory, 8192, 4096, 1, 0},
	{"v", memory + 4096, 8192, 4096, 1, 0},
};

static int make(const kvfs_view *views, size_t n, uint64_t pages,
		uint32_t pages_per_block)
{
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.views = views,
		.n_views = n,
		.pages = pages,
		.pages_per_block = pages_per_block,
		.memory = memory,
		.memory_bytes = sizeof(memory),
	};
	struct kvfs_strides strides = {0};
	int r = kv_strides_new(&desc, layout, &strides);

	free(strides.stride);
	return r;
}

/* Make strides from the two good views, the first one replaced by @change. */
static int make_changed(kvfs_view change)
{
	kvfs_view views[2] = {change, good[1]};

	return make(views, 2, PAGES, 1);
}

static void nulls_and_zeros_are_refused(void **state)
{
	(void)state;
	assert_int_equal(
		make_changed((kvfs_view){NULL, memory, 8192, 4096, 1, 0}),
		-EINVAL);
	assert_int_equal(make_changed((kvfs_view){"k", NULL, 8192, 4096, 1, 0}),
			 -EINVAL);
	assert_int_equal(make_changed((kvfs_view){"k", memory, 0, 4096, 1, 0}),
			 -EINVAL);
	assert_int_equal(make_changed((kvfs_view){"k", memory, 8192, 0, 1, 0}),
			 -EINVAL);
	assert_int_equal(
		make_changed((kvfs_view){"k", memory, 8192, 4096, 0, 0}),
		-EINVAL);
}

static void pages_of_a_view_that_overlap_are_refused(void **state)
{
	(void)state;
	assert_int_equal(
		make_changed((kvfs_view){"k", memory, 4095, 4096, 1, 0}),
		-EINVAL);
	assert_int_equal(
		make_changed((kvfs_view){"k", memory, 3072, 1024, 4, 1024}),
		-EINVAL);
}

static void segments_of_a_page_that_overlap_are_refused(void **state)
{
	(void)state;
	assert_int_equal(
		make_changed((kvfs_view){"k", memory, 8192, 1024, 4, 1023}),
		-EINVAL);
	assert_int_equal(
		make_changed((kvfs_view){"k", memory, 8192, 1024, 4, 0}),
		-EINVAL);
}

static void pages_that_lie_between_each_others_segments_are_accepted(void **s)
{
	(void)s;
	assert_int_equal(make_changed((kvfs_view){"k", memory, 1024, 1024, 4,
						  PAGES * 1024}),
			 0);
	assert_int_equal(make_changed((kvfs_view){"k", memory, 1024, 1024, 4,
						  PAGES * 1024 - 1}),
			 -EINVAL);
}

static void a_product_or_sum_that_overflows_is_refused(void **state)
{
	(void)state;
	assert_int_equal(make_changed((kvfs_view){"k", memory, UINT64_MAX / 2,
						  4096, 1, 0}),
			 -EINVAL);
	assert_int_equal(make_changed((kvfs_view){"k", memory, 8192, 4096,
						  UINT64_MAX, UINT64_MAX}),
			 -EINVAL);
	assert_int_equal(
		make_changed((kvfs_view){"k", (void *)(UINTPTR_MAX - 4096),
					 8192, 4096, 1, 0}),
		-EINVAL);
}

static void an_end_outside_the_memory_is_refused(void **state)
{
	void *before = (void *)((uintptr_t)memory - 1);

	(void)state;
	assert_int_equal(make(good, 2, PAGES, 1), 0);
	assert_int_equal(make(good, 2, PAGES + 1, 1), -EINVAL);
	assert_int_equal(
		make_changed((kvfs_view){"k", before, 8192, 4096, 1, 0}),
		-EINVAL);
}

static void a_tensor_not_covered_exactly_is_refused(void **state)
{
	kvfs_view twice[3] = {good[0], good[1], good[0]};

	(void)state;
	assert_int_equal(make(good, 1, PAGES, 1), -EINVAL);
	assert_int_equal(make(twice, 3, PAGES, 1), -EINVAL);
	assert_int_equal(make(good, 2, PAGES, 2), -EINVAL);
	assert_int_equal(
		make_changed((kvfs_view){"k", memory, 8192, 4095, 1, 0}),
		-EINVAL);
	assert_int_equal(
		make_changed((kvfs_view){"w", memory, 8192, 4096, 1, 0}),
		-EINVAL);
}

static void views_that_follow_each_other_become_one_piece(void **state)
{
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .views = good,
			       .n_views = 2,
			       .pages = PAGES,
			       .pages_per_block = 1};
	struct kvfs_strides strides;

	(void)state;
	assert_int_equal(kv_strides_new(&desc, layout, &strides), 0);
	assert_int_equal(strides.n, 1);
	assert_int_equal(strides.stride[0].bytes, 8192);
	free(strides.stride);
}

static void views_are_put_in_the_order_of_the_tensors(void **state)
{
	kvfs_view views[3] = {
		{"v", memory, 4096, 4096, 1, 0},
		{"k", memory + 40000, 1024, 1024, 2, 1024 * PAGES},
		{"k", memory + 10000, 2048, 2048, 1, 0},
	};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .views = views,
			       .n_views = 3,
			       .pages = 2,
			       .pages_per_block = 1};
	struct kvfs_strides strides;

	(void)state;
	assert_int_equal(kv_strides_new(&desc, layout, &strides), 0);
	assert_int_equal(strides.n, 3);
	assert_int_equal(strides.stride[0].offset, 0);
	assert_int_equal(strides.stride[0].count, 2);
	assert_int_equal(strides.stride[1].offset, 2048);
	assert_ptr_equal(strides.stride[1].base, memory + 10000);
	assert_int_equal(strides.stride[2].offset, 4096);
	assert_ptr_equal(strides.stride[2].base, memory);
	free(strides.stride);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nulls_and_zeros_are_refused),
		cmocka_unit_test(pages_of_a_view_that_overlap_are_refused),
		cmocka_unit_test(segments_of_a_page_that_overlap_are_refused),
		cmocka_unit_test(
			pages_that_lie_between_each_others_segments_are_accepted),
		cmocka_unit_test(a_product_or_sum_that_overflows_is_refused),
		cmocka_unit_test(an_end_outside_the_memory_is_refused),
		cmocka_unit_test(a_tensor_not_covered_exactly_is_refused),
		cmocka_unit_test(views_that_follow_each_other_become_one_piece),
		cmocka_unit_test(views_are_put_in_the_order_of_the_tensors),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
