/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_block.c - headers of safetensors files that other programs wrote, and
 * files that must be refused.
 *
 * OWNS      a layout of two tensors, for the group.
 *
 * LOCKING   none: one thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "common/block.h"

#define HEX16 "00112233445566778899aabbccddeeff"
#define K "\"k\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}"
#define V "\"v\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[12,17]}"
#define ONE(t) "{\"k\":{" t "}}"

struct parsed {
	uint64_t length, payload;
	struct kv_meta meta;
};

/* Parse a file with the header @json, of which the first @have bytes are in
 * memory. */
static int parse_some(const char *json, size_t have,
		      const struct kv_layout *layout, struct parsed *ret_parsed)
{
	size_t len = strlen(json);
	_cleanup_(kv_freep) char *head = malloc(8 + len);
	uint64_t n = len;

	memcpy(head, &n, 8);
	memcpy(head + 8, json, len);
	return kv_block_parse(head, KV_MIN(have, 8 + len), layout,
			      &ret_parsed->length, &ret_parsed->payload,
			      &ret_parsed->meta);
}

static int parse(const char *json, const struct kv_layout *layout,
		 struct parsed *ret_parsed)
{
	return parse_some(json, SIZE_MAX, layout, ret_parsed);
}

static int refusal(const char *json)
{
	struct parsed parsed;

	return parse(json, NULL, &parsed);
}

static struct kv_layout *make_layout(const char *text)
{
	struct kv_layout *layout;

	assert_int_equal(kv_layout_parse(text, strlen(text), &layout), 0);
	return layout;
}

static int setup(void **state)
{
	*state = make_layout(
		"{\"tensors\":["
		"{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
		"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[5]}]}");
	return 0;
}

static int teardown(void **state)
{
	kv_layout_free(*state);
	return 0;
}

static void bytes_that_are_no_header_are_refused(void **state)
{
	struct parsed p;

	(void)state;
	assert_int_equal(kv_block_parse("hello world", 11, NULL, &p.length,
					&p.payload, &p.meta),
			 -EINVAL);
	assert_int_equal(kv_block_parse("\0\0\0\0\0\0\0\0{}", 10, NULL,
					&p.length, &p.payload, &p.meta),
			 -EINVAL);
	assert_int_equal(kv_block_parse("\1\0\0\0\0\0\0\0{}", 10, NULL,
					&p.length, &p.payload, &p.meta),
			 -EINVAL);
	assert_int_equal(refusal(" {}"), -EINVAL);
	assert_int_equal(refusal("[]"), -EINVAL);
}

static void a_header_beyond_the_maximum_is_too_big(void **state)
{
	uint8_t head[16] = {1, 0, 0x80, 0, 0, 0, 0, 0, '{'}; /* 8 MiB + 1 */
	struct parsed p;

	(void)state;
	assert_int_equal(kv_block_parse(head, sizeof(head), NULL, &p.length,
					&p.payload, &p.meta),
			 -EFBIG);
	memset(head, 0xff, 8);
	assert_int_equal(kv_block_parse(head, sizeof(head), NULL, &p.length,
					&p.payload, &p.meta),
			 -EFBIG);
	memcpy(head, "\0\0\x80\0\0\0\0\0", 8);
	assert_int_equal(kv_block_parse(head, sizeof(head), NULL, &p.length,
					&p.payload, &p.meta),
			 -EAGAIN);
}

static void an_incomplete_header_asks_for_more(void **state)
{
	const char *json = "{" K "," V "}";
	struct parsed p;

	for (size_t have = 0; have < 8 + strlen(json); have++)
		assert_int_equal(parse_some(json, have, *state, &p), -EAGAIN);
	assert_int_equal(parse(json, *state, &p), 0);
}

static void what_is_not_json_is_refused(void **state)
{
	static const char *const bad[] = {
		"{",
		"{}}",
		"{} x",
		"{" K,
		"{" K ",}",
		"{" K "," K "}",
		"{" K "} {}",
		"{\"a\\u0000\":1}",
		"{\"\xff\":1}",
		"{\"k\":{\"dtype\":\"U8\",\"shape\":[NaN],"
		"\"data_offsets\":[0,1]}}",
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(refusal(bad[i]), -EINVAL);
}

static void a_tensor_that_is_not_one_is_refused(void **state)
{
	static const char *const bad[] = {
		"{\"k\":1}",
		"{\"k\":[]}",
		ONE(""),
		ONE("\"dtype\":\"U8\",\"shape\":[1]"),
		ONE("\"dtype\":\"U8\",\"data_offsets\":[0,1]"),
		ONE("\"shape\":[1],\"data_offsets\":[0,1]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],"
		    "\"x\":1"),
		ONE("\"dtype\":\"U9\",\"shape\":[1],\"data_offsets\":[0,1]"),
		ONE("\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]"),
		ONE("\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]"),
		ONE("\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{}"),
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(refusal(bad[i]), -EINVAL);
}

static void sizes_that_do_not_fit_their_shape_are_refused(void **state)
{
	static const char *const bad[] = {
		ONE("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]"),
		ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,2]"),
		ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,2]"),
		ONE("\"dtype\":\"U64\",\"shape\":[2305843009213693952],"
		    "\"data_offsets\":[0,0]"),
		ONE("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],"
		    "\"data_offsets\":[0,0]"),
		ONE("\"dtype\":\"U8\",\"shape\":[9223372036854775808],"
		    "\"data_offsets\":[0,9223372036854775808]"),
		"{" K ",\"w\":{\"dtype\":\"U8\",\"shape\":"
		"[4294967296,4294967296],\"data_offsets\":[12,12]}}",
		"{" K ",\"w\":{\"dtype\":\"U64\",\"shape\":"
		"[2305843009213693953],\"data_offsets\":[12,20]}}",
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(refusal(bad[i]), -EINVAL);
}

static void holes_and_overlaps_are_refused(void **state)
{
	(void)state;
	assert_int_equal(refusal("{" K ",\"v\":{\"dtype\":\"U8\",\"shape\":[5],"
				 "\"data_offsets\":[13,18]}}"),
			 -EINVAL);
	assert_int_equal(refusal("{" K ",\"v\":{\"dtype\":\"U8\",\"shape\":[5],"
				 "\"data_offsets\":[11,16]}}"),
			 -EINVAL);
	assert_int_equal(refusal("{" K ",\"v\":{\"dtype\":\"U8\",\"shape\":[5],"
				 "\"data_offsets\":[0,5]}}"),
			 -EINVAL);
	assert_int_equal(refusal("{" V "}"), -EINVAL);
}

static void a_file_without_payload_is_refused(void **state)
{
	(void)state;
	assert_int_equal(refusal("{}"), -EINVAL);
	assert_int_equal(refusal("{\"__metadata__\":{}}"), -EINVAL);
	assert_int_equal(refusal(ONE("\"dtype\":\"U8\",\"shape\":[0],"
				     "\"data_offsets\":[0,0]")),
			 -EINVAL);
}

static void metadata_that_is_not_strings_is_refused(void **state)
{
	(void)state;
	assert_int_equal(refusal("{\"__metadata__\":1," K "}"), -EINVAL);
	assert_int_equal(refusal("{\"__metadata__\":[]," K "}"), -EINVAL);
	assert_int_equal(refusal("{\"__metadata__\":{\"tokens\":16}," K "}"),
			 -EINVAL);
	assert_int_equal(refusal("{\"__metadata__\":{\"a\":null}," K "}"),
			 -EINVAL);
}

/* The header is valid, but parsing it would take hundreds of megabytes. */
static void a_header_of_too_many_values_is_refused(void **state)
{
	static const char begin[] = "{\"k\":{\"dtype\":\"U8\",\"shape\":[1";
	static const char end[] = "],\"data_offsets\":[0,1]}}";
	const size_t dims = (1u << 17) + 1;
	_cleanup_(kv_freep) char *json =
		malloc(sizeof(begin) + 2 * dims + sizeof(end));
	char *at = json + sprintf(json, "%s", begin);

	(void)state;
	for (size_t i = 0; i < dims; i++, at += 2)
		memcpy(at, ",1", 2);
	memcpy(at, end, sizeof(end));
	assert_int_equal(refusal(json), -EINVAL);
	memset(at - 20, ' ', 20);
	assert_int_equal(refusal(json), 0);
}

static void a_nest_of_brackets_is_refused(void **state)
{
	char json[100001];

	(void)state;
	memset(json, '[', sizeof(json) - 1);
	json[sizeof(json) - 1] = '\0';
	memcpy(json, "{\"k\":", 5);
	assert_int_equal(refusal(json), -EINVAL);
}

static void another_layout_is_told_apart(void **state)
{
	static const char *const other[] = {
		"{" K "}",
		"{" K ",\"w\":{\"dtype\":\"U8\",\"shape\":[5],"
		"\"data_offsets\":[12,17]}}",
		"{" K ",\"v\":{\"dtype\":\"I8\",\"shape\":[5],"
		"\"data_offsets\":[12,17]}}",
		"{" K ",\"v\":{\"dtype\":\"U8\",\"shape\":[5,1],"
		"\"data_offsets\":[12,17]}}",
		"{" K ",\"v\":{\"dtype\":\"U8\",\"shape\":[6],"
		"\"data_offsets\":[12,18]}}",
		"{" K "," V ",\"w\":{\"dtype\":\"U8\",\"shape\":[1],"
		"\"data_offsets\":[17,18]}}",
		"{\"v\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}"
		","
		"\"k\":{\"dtype\":\"BF16\",\"shape\":[2,3],"
		"\"data_offsets\":[5,17]}}",
		"{\"k\":{\"dtype\":\"BF16\",\"shape\":[3,2],"
		"\"data_offsets\":[0,12]}," V "}",
	};
	struct parsed p;

	for (size_t i = 0; i < KV_ARRAY_LEN(other); i++) {
		assert_int_equal(parse(other[i], *state, &p), -EBADMSG);
		assert_int_equal(parse(other[i], NULL, &p), 0);
	}
}

static void a_failure_writes_no_result(void **state)
{
	struct parsed p, before;

	memset(&p, 0x5a, sizeof(p));
	before = p;
	assert_int_equal(parse("{" K "}", *state, &p), -EBADMSG);
	assert_int_equal(parse("{}", *state, &p), -EINVAL);
	assert_memory_equal(&p, &before, sizeof(p));
}

static void order_in_the_json_does_not_matter(void **state)
{
	const char *json = "{" V ",\"__metadata__\":{}," K "}    ";
	struct parsed p;

	assert_int_equal(parse(json, *state, &p), 0);
	assert_int_equal(p.payload, 8 + strlen(json));
	assert_int_equal(p.length, p.payload + 17);
}

static void empty_tensors_beside_others_are_taken(void **state)
{
	struct parsed p;

	(void)state;
	assert_int_equal(parse("{\"e\":{\"dtype\":\"U8\",\"shape\":[0],"
			       "\"data_offsets\":[12,12]}," K "," V "}",
			       NULL, &p),
			 0);
	assert_int_equal(p.length - p.payload, 17);
}

static void metadata_of_others_is_passed_over(void **state)
{
	static const char *const foreign[] = {
		"\"format\":\"pt\"",
		"\"parent\":\"\",\"position\":\"\",\"tokens\":\"\"",
		"\"parent\":\"nonsense\",\"position\":\"-1\",\"tokens\":\"x\"",
		"\"parent\":\"" HEX16 "0\",\"position\":\"1.5\"",
		"\"position\":\"4294967296\",\"tokens\":\"99999999999\"",
		"\"position\":\" 1\",\"tokens\":\"+1\"",
	};
	char json[1024];
	struct parsed p;

	for (size_t i = 0; i < KV_ARRAY_LEN(foreign); i++) {
		snprintf(json, sizeof(json),
			 "{\"__metadata__\":{%s}," K "," V "}", foreign[i]);
		assert_int_equal(parse(json, *state, &p), 0);
		assert_int_equal(p.meta.parent.len, 0);
		assert_int_equal(p.meta.position, 0);
		assert_int_equal(p.meta.tokens, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_that_are_no_header_are_refused),
		cmocka_unit_test(a_header_beyond_the_maximum_is_too_big),
		cmocka_unit_test(an_incomplete_header_asks_for_more),
		cmocka_unit_test(what_is_not_json_is_refused),
		cmocka_unit_test(a_tensor_that_is_not_one_is_refused),
		cmocka_unit_test(sizes_that_do_not_fit_their_shape_are_refused),
		cmocka_unit_test(holes_and_overlaps_are_refused),
		cmocka_unit_test(a_file_without_payload_is_refused),
		cmocka_unit_test(metadata_that_is_not_strings_is_refused),
		cmocka_unit_test(a_header_of_too_many_values_is_refused),
		cmocka_unit_test(a_nest_of_brackets_is_refused),
		cmocka_unit_test(another_layout_is_told_apart),
		cmocka_unit_test(a_failure_writes_no_result),
		cmocka_unit_test(order_in_the_json_does_not_matter),
		cmocka_unit_test(empty_tensors_beside_others_are_taken),
		cmocka_unit_test(metadata_of_others_is_passed_over),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
