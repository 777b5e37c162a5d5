/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of a layout, and the bytes of a block in each layer. */
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

static void assert_range(struct kvfs_range range, uint64_t from, uint64_t to)
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
	struct kvfs_range ranges[3];

	(void)state;
	assert_int_equal(layout->layers, 36);
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
	struct kvfs_range ranges[3];

	(void)s;
	assert_int_equal(layout->layers, 3);
	assert_int_equal(kv_layout_ranges(layout, 1, 1, ranges), 1);
	assert_range(ranges[0], 20, 50);
	assert_int_equal(kv_layout_ranges(layout, 1, 2, ranges), 1);
	assert_range(ranges[0], 20, 57);
}

static void a_tensor_without_dimensions_is_a_layer(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = parse(
		LAYOUT(TENSOR("a", "F32", "[]") "," TENSOR("b", "F32", "[4]")));
	struct kvfs_range ranges[2];

	(void)state;
	assert_int_equal(layout->layers, 2);
	assert_int_equal(kv_layout_ranges(layout, 0, 1, ranges), 1);
	assert_range(ranges[0], 0, 4);
}

static void all_layers_are_all_bytes_once(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = parse(LAYOUT(
		TENSOR("k", "U8", "[5,3]") "," TENSOR("v", "U8", "[5,7]")));
	struct kvfs_range ranges[2];
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

#define FOUR                                            \
	TENSOR("k0", "U8", "[8,16,64]")                 \
	"," TENSOR("v0", "U8", "[8,16,64]") "," TENSOR( \
		"k1", "U8", "[8,16,64]") "," TENSOR("v1", "U8", "[8,16,64]")
#define SAID(tensors, layers) \
	"{\"tensors\":[" tensors "],\"layers\":" layers "}"

/* Check that each byte of a block is in exactly one layer, and that the number
 * of pieces is right. */
static void assert_whole(const struct kv_layout *layout)
{
	_cleanup_(kv_freep) struct kvfs_range *ranges =
		calloc(layout->layer_pieces, sizeof(*ranges));
	_cleanup_(kv_freep) uint8_t *seen = calloc(layout->payload, 1);
	size_t n;

	assert_int_equal(kv_layout_ranges(layout, 0, layout->layers, ranges),
			 1);
	assert_range(ranges[0], 0, layout->payload);
	for (uint32_t l = 0; l < layout->layers; l++) {
		n = kv_layout_ranges(layout, l, 1, ranges);
		assert_in_range(n, 1, layout->layer_pieces);
		for (size_t i = 0; i < n; i++) {
			assert_true(i == 0 ||
				    ranges[i].from > ranges[i - 1].to);
			for (uint64_t b = ranges[i].from; b < ranges[i].to; b++)
				seen[b]++;
		}
	}
	for (uint64_t b = 0; b < layout->payload; b++)
		assert_int_equal(seen[b], 1);
}

static void layers_are_the_tensors_that_are_listed(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout =
		parse(SAID(FOUR, "[[\"k0\",\"v0\"],[\"k1\",\"v1\"]]"));
	_cleanup_(kv_layout_freep) struct kv_layout *apart =
		parse(SAID(FOUR, "[[\"v1\",\"k0\"],[\"k1\"],[\"v0\"]]"));
	struct kvfs_range ranges[4];

	(void)state;
	assert_int_equal(layout->layers, 2);
	assert_int_equal(kv_layout_ranges(layout, 1, 1, ranges), 1);
	assert_range(ranges[0], 16384, 32768);
	assert_whole(layout);
	assert_int_equal(apart->layers, 3);
	assert_int_equal(kv_layout_ranges(apart, 0, 1, ranges), 2);
	assert_range(ranges[0], 0, 8192);
	assert_range(ranges[1], 24576, 32768);
	assert_whole(apart);
}

static void layers_are_the_dimension_that_is_said(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = parse(SAID(
		TENSOR("kv", "BF16", "[2,6,5]") "," TENSOR("s", "U8", "[3,6]"),
		"1"));
	struct kvfs_range ranges[5];

	(void)state;
	assert_int_equal(layout->layers, 6);
	assert_int_equal(kv_layout_ranges(layout, 2, 2, ranges), 5);
	assert_range(ranges[0], 20, 40);
	assert_range(ranges[1], 80, 100);
	assert_range(ranges[2], 122, 124);
	assert_range(ranges[4], 134, 136);
	assert_whole(layout);
}

static void each_tensor_is_a_layer_if_that_is_said(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout =
		parse(SAID(FOUR, "\"tensors\""));

	(void)state;
	assert_int_equal(layout->layers, 4);
	assert_whole(layout);
}

static void layers_that_cannot_be_are_refused(void **state)
{
	static const char *const bad[] = {
		SAID(FOUR, "3"),
		SAID(FOUR, "-1"),
		SAID(FOUR, "9223372036854775807"),
		SAID(FOUR, "1.0"),
		SAID(FOUR, "null"),
		SAID(FOUR, "true"),
		SAID(FOUR, "\"tensor\""),
		SAID(FOUR, "{}"),
		SAID(FOUR, "[]"),
		SAID(FOUR, "[\"k0\",\"v0\",\"k1\",\"v1\"]"),
		SAID(FOUR, "[[\"k0\",\"v0\"],[\"k1\"]]"),
		SAID(FOUR, "[[\"k0\",\"v0\"],[],[\"k1\",\"v1\"]]"),
		SAID(FOUR, "[[\"k0\",\"v0\"],[\"k1\",\"v1\",\"k0\"]]"),
		SAID(FOUR, "[[\"k0\",\"v0\"],[\"k1\",\"w1\"]]"),
		SAID(FOUR, "[[\"k0\",\"v0\"],[\"k1\",1]]"),
		SAID(TENSOR("k", "U8", "[4,2]") "," TENSOR("v", "U8", "[4,3]"),
		     "1"),
		SAID(TENSOR("k", "U8", "[65537,2]"), "1"),
		SAID(TENSOR("k", "U8", "[2,4294967296]"), "1"),
	};
	struct kv_layout *layout;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(
			kv_layout_parse(bad[i], strlen(bad[i]), &layout),
			-EINVAL);
}

/* The canonical text of a layout has "layers" only if the given text had it. */
static void a_layout_that_does_not_say_it_has_the_text_it_had(void **state)
{
	const char *text = LAYOUT(FOUR);
	_cleanup_(kv_layout_freep) struct kv_layout *silent = parse(text);
	_cleanup_(kv_layout_freep) struct kv_layout *said =
		parse(SAID(FOUR, "[[\"k0\",\"v0\"],[\"k1\",\"v1\"]]"));
	_cleanup_(kv_layout_freep) struct kv_layout *again = parse(said->json);

	(void)state;
	assert_int_equal(silent->layers, 8);
	assert_null(strstr(silent->json, "layers"));
	assert_non_null(strstr(
		said->json,
		", \"layers\": [[\"k0\", \"v0\"], [\"k1\", \"v1\"]]}\n"));
	assert_string_equal(again->json, said->json);
	assert_int_equal(kv_layout_agrees(said, text, strlen(text)), 1);
	assert_int_equal(
		kv_layout_agrees(silent, said->json, strlen(said->json)), 0);
	text = SAID(FOUR, "0");
	assert_int_equal(kv_layout_agrees(silent, text, strlen(text)), 1);
	assert_int_equal(kv_layout_agrees(said, text, strlen(text)), 0);
	text = SAID(FOUR, "[[\"k0\",\"k1\"],[\"v0\",\"v1\"]]");
	assert_int_equal(kv_layout_agrees(said, text, strlen(text)), 0);
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
		cmocka_unit_test(layers_are_the_tensors_that_are_listed),
		cmocka_unit_test(layers_are_the_dimension_that_is_said),
		cmocka_unit_test(each_tensor_is_a_layer_if_that_is_said),
		cmocka_unit_test(layers_that_cannot_be_are_refused),
		cmocka_unit_test(
			a_layout_that_does_not_say_it_has_the_text_it_had),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
