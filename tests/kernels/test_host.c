/* SPDX-License-Identifier: Apache-2.0 */
/* The device "host": from where and to where it copies each byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/device/device.h"

#define PAGES 8
#define PAGE_BYTES 2048

static uint8_t pool[PAGES * PAGE_BYTES], block[2 * PAGE_BYTES];
static uint8_t back[sizeof(block)];

static void host_load(const struct kvfs_strides *strides, const int64_t *pages,
		      uint8_t *tensors)
{
	const struct kvfs_copy copy = {tensors, pages};
	const struct kvfs_batch batch = {
		.strides = strides, .copies = &copy, .n = 1};

	assert_int_equal(kv_device_host.load(NULL, &batch), 0);
}

static void host_save(const struct kvfs_strides *strides, const int64_t *pages,
		      uint8_t *tensors)
{
	const struct kvfs_copy copy = {tensors, pages};
	const struct kvfs_batch batch = {
		.strides = strides, .copies = &copy, .n = 1};

	assert_int_equal(kv_device_host.save(NULL, &batch), 0);
}

static void fill(void)
{
	size_t i;

	memset(pool, 0xee, sizeof(pool));
	memset(back, 0, sizeof(back));
	for (i = 0; i < sizeof(block); i++)
		block[i] = (uint8_t)(i * 7 + i / 256);
}

static bool untouched(const uint8_t *at, size_t n)
{
	while (n-- > 0)
		if (at[n] != 0xee)
			return false;
	return true;
}

/* Each block has two pages, and each page is one run of bytes. */
static struct kvfs_stride whole = {0, pool, PAGE_BYTES, PAGE_BYTES, 1, 0};
static const struct kvfs_strides two_pages = {2, 1, &whole};

static void a_page_that_is_skipped_is_not_touched_nor_the_first_one(void **s)
{
	const int64_t first[] = {-1, 0}, second[] = {3, -1};

	(void)s;
	fill();
	host_load(&two_pages, first, block);
	assert_memory_equal(pool, block + PAGE_BYTES, PAGE_BYTES);
	assert_true(untouched(pool + PAGE_BYTES, (PAGES - 1) * PAGE_BYTES));
	host_load(&two_pages, second, block);
	assert_memory_equal(pool + 3 * PAGE_BYTES, block, PAGE_BYTES);
	assert_true(untouched(pool + 4 * PAGE_BYTES, 4 * PAGE_BYTES));
}

static void pages_in_a_row_and_apart_get_the_same_bytes(void **state)
{
	const int64_t row[] = {2, 3}, apart[] = {6, 4};

	(void)state;
	fill();
	host_load(&two_pages, row, block);
	host_load(&two_pages, apart, block);
	assert_memory_equal(pool + 2 * PAGE_BYTES, block, sizeof(block));
	assert_memory_equal(pool + 6 * PAGE_BYTES, block, PAGE_BYTES);
	assert_memory_equal(pool + 4 * PAGE_BYTES, block + PAGE_BYTES,
			    PAGE_BYTES);
	assert_true(untouched(pool + 5 * PAGE_BYTES, PAGE_BYTES));
}

static void strided_segments_go_there_and_back(void **state)
{
	/* A page has two runs of the first tensor's bytes, and one of the
	 * second's. */
	struct kvfs_stride strides[] = {
		{0, pool, 256, 256, 2, PAGES * 256},
		{1024, pool + 2 * PAGES * 256, 100, 100, 1, 0},
	};
	const struct kvfs_strides strided = {2, 2, strides};
	const int64_t pages[] = {5, 1};

	(void)state;
	fill();
	host_load(&strided, pages, block);
	assert_memory_equal(pool + 5 * 256, block, 256);
	assert_memory_equal(pool + PAGES * 256 + 5 * 256, block + 256, 256);
	assert_memory_equal(pool + 1 * 256, block + 512, 256);
	assert_memory_equal(pool + 2 * PAGES * 256 + 500, block + 1024, 100);
	assert_memory_equal(pool + 2 * PAGES * 256 + 100, block + 1124, 100);
	host_save(&strided, pages, back);
	assert_memory_equal(back, block, 1224);
}

static void a_saved_row_of_pages_is_what_was_loaded(void **state)
{
	const int64_t row[] = {0, 1};

	(void)state;
	fill();
	host_load(&two_pages, row, block);
	host_save(&two_pages, row, back);
	assert_memory_equal(back, block, sizeof(block));
}

/* A block has two tensors and two pages: a page has two runs of the first
 * tensor and one of the second. */
#define STRIDED 1224
static struct kvfs_stride strided[] = {
	{0, pool, 256, 256, 2, PAGES * 256},
	{1024, pool + 2 * PAGES * 256, 100, 100, 1, 0},
};

static bool is_skipped(const int64_t *pages, size_t i)
{
	return pages[i < 1024 ? i / 512 : (i - 1024) / 100] < 0;
}

static size_t count_written(const uint8_t *at, size_t n)
{
	size_t written = 0;

	while (n-- > 0)
		written += at[n] != 0xee;
	return written;
}

/* Check bytes @from .. @to of the block in @back, except skipped pages. */
static size_t check_back(const struct kvfs_range *range, const int64_t *pages)
{
	size_t i, n = 0;

	for (i = 0; i < STRIDED; i++) {
		bool in = i >= range->from && i < range->to &&
			  !is_skipped(pages, i);

		if (back[i] != (in ? block[i] : 0xee))
			fail_msg("byte %zu", i);
		n += in;
	}
	return n;
}

static void try_range(struct kvfs_range range, const int64_t *pages)
{
	const uint64_t middle = (range.from + range.to) / 2;
	const struct kvfs_range halves[] = {{range.from, middle},
					    {middle, range.to}};
	const struct kvfs_strides strides = {2, 2, strided};
	const struct kvfs_copy there = {block, pages}, again = {back, pages};
	struct kvfs_batch batch = {.strides = &strides,
				   .ranges = halves,
				   .n_ranges = 2,
				   .copies = &there,
				   .n = 1};

	memset(pool, 0xee, sizeof(pool));
	memset(back, 0xee, sizeof(back));
	kv_device_host.load(NULL, &batch);
	batch.copies = &again;
	batch.n_ranges = 0;
	kv_device_host.save(NULL, &batch);
	assert_int_equal(check_back(&range, pages),
			 count_written(pool, sizeof(pool)));
	batch.copies = &there;
	kv_device_host.load(NULL, &batch);
	memset(back, 0xee, sizeof(back));
	batch.copies = &again;
	batch.n_ranges = 2;
	kv_device_host.save(NULL, &batch);
	check_back(&range, pages);
}

static void only_the_bytes_of_the_ranges_are_copied(void **state)
{
	const int64_t pages[][2] = {{5, 1}, {2, 3}, {-1, 4}, {0, -1}};
	uint64_t from, to;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(block); i++)
		block[i] = (uint8_t)((i * 7 + i / 256) % 0xee);
	for (i = 0; i < KV_ARRAY_LEN(pages); i++)
		for (from = 0; from < STRIDED; from += 37)
			for (to = from + 2; to <= STRIDED; to += 41)
				try_range((struct kvfs_range){from, to},
					  pages[i]);
}

static void a_device_of_another_name_is_not_there(void **state)
{
	(void)state;
	assert_null(kv_device_find("hos"));
	assert_null(kv_device_find("cud"));
	assert_ptr_equal(kv_device_find("host"), &kv_device_host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_page_that_is_skipped_is_not_touched_nor_the_first_one),
		cmocka_unit_test(pages_in_a_row_and_apart_get_the_same_bytes),
		cmocka_unit_test(strided_segments_go_there_and_back),
		cmocka_unit_test(a_saved_row_of_pages_is_what_was_loaded),
		cmocka_unit_test(only_the_bytes_of_the_ranges_are_copied),
		cmocka_unit_test(a_device_of_another_name_is_not_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
