/* SPDX-License-Identifier: Apache-2.0 */
/* The device "host": which bytes go where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/device.h"

#define PAGES 8
#define PAGE_BYTES 2048

static uint8_t pool[PAGES * PAGE_BYTES], block[2 * PAGE_BYTES];
static uint8_t back[sizeof(block)];

static void host_load(const struct kv_pieces *pieces, const int64_t *pages,
		      uint8_t *tensors)
{
	const struct kv_copy copy = {tensors, pages};
	const struct kv_batch batch = {
		.pieces = pieces, .copies = &copy, .n = 1};

	assert_int_equal(kv_device_host.load(NULL, &batch), 0);
}

static void host_save(const struct kv_pieces *pieces, const int64_t *pages,
		      uint8_t *tensors)
{
	const struct kv_copy copy = {tensors, pages};
	const struct kv_batch batch = {
		.pieces = pieces, .copies = &copy, .n = 1};

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

/* Two pages a block, each page in one run. */
static struct kv_piece whole = {0, pool, PAGE_BYTES, PAGE_BYTES, 1, 0};
static const struct kv_pieces two_pages = {2, 1, &whole};

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
	/* Two tensors: one in two segments a page, one in a single one. */
	struct kv_piece pieces[] = {
		{0, pool, 256, 256, 2, PAGES * 256},
		{1024, pool + 2 * PAGES * 256, 100, 100, 1, 0},
	};
	const struct kv_pieces strided = {2, 2, pieces};
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

static void a_device_of_another_name_is_not_there(void **state)
{
	(void)state;
	assert_null(kv_device_find("hos"));
	assert_null(kv_device_find("cuda"));
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
		cmocka_unit_test(a_device_of_another_name_is_not_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
