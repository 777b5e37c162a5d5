/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a block belong to which layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

#define TENSOR(name, dtype, shape) \
	"{\"name\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":" shape "}"
#define LAYOUT(tensors) "{\"tensors\":[" tensors "]}"

static struct kv_layout *parse(const char *text)
{
	struct kv_layout *layout;

	assert_int_equal(kv_layout_parse(text, strlen(text), &layout), 0);
	return layout;
}

static void assert_range(struct kv_range range, uint64_t from, uint64_t to)
{
	assert_int_equal(range.from, from);
	assert_int_equal(range.to, to);
}

static void tensors_of_one_first_dimension_have_that_many_layers(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout =
		parse(LAYOUT(TENSOR("k", "BF16", "[36,16,8]") "," TENSOR(
			"v", "BF16", "[36,16,8]") "," TENSOR("s", "F32",
							     "[36]")));
	struct kv_range ranges[3];

	(void)state;
	assert_int_equal(kv_layout_layers(layout), 36);
	assert_int_equal(kv_layout_ranges(layout, 0, 1, ranges), 3);
	assert_range(ranges[0], 0, 256);
	assert_range(ranges[1], 36 * 256, 37 * 256);
	assert_range(ranges[2], 72 * 256, 72 * 256 + 4);
	assert_int_equal(kv_layout_ranges(layout, 34, 2, ranges), 3);
	assert_range(ranges[0], 34 * 256, 36 * 256);
	assert_range(ranges[1], 70 * 256, 72 * 256);
	assert_range(ranges[2], 72 * 256 + 34 * 4, 72 * 256 + 36 * 4);
	assert_int_equal(kv_layout_ranges(layout, 3, 0, ranges), 0);
}

static void tensors_of_other_first_dimensions_are_layers_themselves(void **s)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout =
		parse(LAYOUT(TENSOR("a", "U8", "[2,10]") "," TENSOR(
			"b", "U8", "[3,10]") "," TENSOR("c", "U8", "[7]")));
	struct kv_range ranges[3];

	(void)s;
	assert_int_equal(kv_layout_layers(layout), 3);
	assert_int_equal(kv_layout_ranges(layout, 1, 1, ranges), 1);
	assert_range(ranges[0], 20, 50);
	assert_int_equal(kv_layout_ranges(layout, 1, 2, ranges), 1);
	assert_range(ranges[0], 20, 57);
}

static void a_tensor_without_dimensions_is_a_layer(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = parse(
		LAYOUT(TENSOR("a", "F32", "[]") "," TENSOR("b", "F32", "[4]")));
	struct kv_range ranges[2];

	(void)state;
	assert_int_equal(kv_layout_layers(layout), 2);
	assert_int_equal(kv_layout_ranges(layout, 0, 1, ranges), 1);
	assert_range(ranges[0], 0, 4);
}

static void all_layers_are_all_bytes_once(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = parse(LAYOUT(
		TENSOR("k", "U8", "[5,3]") "," TENSOR("v", "U8", "[5,7]")));
	struct kv_range ranges[2];
	uint64_t bytes = 0;
	uint8_t seen[50] = {0};
	uint32_t l;
	size_t n, i;

	(void)state;
	assert_int_equal(kv_layout_ranges(layout, 0, 5, ranges), 1);
	assert_range(ranges[0], 0, layout->payload);
	for (l = 0; l < 5; l++) {
		n = kv_layout_ranges(layout, l, 1, ranges);
		for (i = 0; i < n; i++)
			for (; ranges[i].from < ranges[i].to; bytes++)
				seen[ranges[i].from++]++;
	}
	assert_int_equal(bytes, layout->payload);
	for (i = 0; i < sizeof(seen); i++)
		assert_int_equal(seen[i], 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			tensors_of_one_first_dimension_have_that_many_layers),
		cmocka_unit_test(
			tensors_of_other_first_dimensions_are_layers_themselves),
		cmocka_unit_test(a_tensor_without_dimensions_is_a_layer),
		cmocka_unit_test(all_layers_are_all_bytes_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
