/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout.c - the JSON of `.layout`, its refusals and its canonical form.
 *
 * OWNS      nothing: every test frees what it parses.
 *
 * LOCKING   none: one thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "common/layout.h"

#define ONE "{\"tensors\":[{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]}]"
#define SHAPE(s) \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":" s "}]}"
#define TENSORS(t) "{\"tensors\":[" t "]}"

static int parse(const char *text, struct kv_layout **ret_layout)
{
	return kv_layout_parse(text, strlen(text), ret_layout);
}

static int refusal(const char *text)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;

	return parse(text, &layout);
}

static int agrees(const struct kv_layout *layout, const char *text)
{
	return kv_layout_agrees(layout, text, strlen(text));
}

static void the_engines_keys_are_no_part_of_the_comparison(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *own = NULL;
	_cleanup_(kv_layout_freep) struct kv_layout *engine = NULL;
	_cleanup_(kv_layout_freep) struct kv_layout *again = NULL;

	(void)state;
	assert_int_equal(parse(ONE "}", &own), 0);
	assert_int_equal(parse(ONE ",\"keys\":\"engine\"}", &engine), 0);
	assert_false(own->engine_keys);
	assert_true(engine->engine_keys);
	assert_non_null(strstr(engine->json, "\"keys\": \"engine\""));
	assert_int_equal(parse(engine->json, &again), 0);
	assert_true(again->engine_keys);
	assert_string_equal(again->json, engine->json);
	assert_int_equal(agrees(own, ONE ",\"keys\":\"engine\"}"), 1);
	assert_int_equal(agrees(engine, ONE "}"), 1);
	assert_int_equal(refusal(ONE ",\"keys\":\"kvfs\"}"), -EINVAL);
	assert_int_equal(refusal(ONE ",\"keys\":true}"), -EINVAL);
}

static void another_seed_changes_only_the_seed(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	_cleanup_(kv_layout_freep) struct kv_layout *wanted = NULL;

	(void)state;
	assert_int_equal(parse(ONE "}", &layout), 0);
	assert_true(layout->seed_drawn);
	assert_int_equal(kv_layout_set_seed(layout, 0xabc), 0);
	assert_false(layout->seed_drawn);
	assert_int_equal(parse(ONE ",\"seed\":\"0000000000000abc\"}", &wanted),
			 0);
	assert_string_equal(layout->json, wanted->json);
}

static void what_is_not_an_object_with_tensors_is_refused(void **state)
{
	static const char *const bad[] = {
		"",
		"null",
		"[]",
		"{}",
		"{\"tokens\":16}",
		"{\"tensors\":[]}",
		"\"tensors\"",
		"{\"tensors\":{}}",
		"{\"tensors\":null}",
		"{",
		ONE,
		ONE "} x",
		ONE "}{}",
		"{\"tensors\":[null]}",
		"{\"tensors\":[1]}",
		"\xff\xfe",
		"{\"tensors\":[[]]}",
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(refusal(bad[i]), -EINVAL);
}

static void unknown_and_repeated_members_are_refused(void **state)
{
	static const char *const bad[] = {
		ONE ",\"extra\":1}",
		ONE ",\"Tokens\":1}",
		ONE ",\"tokens\":1,\"tokens\":1}",
		TENSORS("{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[1],"
			"\"order\":1}"),
		TENSORS("{\"name\":\"k\",\"name\":\"k\",\"dtype\":\"U8\","
			"\"shape\":[1]}"),
		TENSORS("{\"name\":\"k\",\"dtype\":\"U8\"}"),
		TENSORS("{\"name\":\"k\",\"shape\":[1]}"),
		TENSORS("{\"dtype\":\"U8\",\"shape\":[1]}"),
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(refusal(bad[i]), -EINVAL);
}

static void bad_names_and_dtypes_are_refused(void **state)
{
	static const char *const bad[] = {
		"{\"name\":\"\",\"dtype\":\"U8\",\"shape\":[1]}",
		"{\"name\":1,\"dtype\":\"U8\",\"shape\":[1]}",
		"{\"name\":\"a\\u0000b\",\"dtype\":\"U8\",\"shape\":[1]}",
		"{\"name\":\"__metadata__\",\"dtype\":\"U8\",\"shape\":[1]}",
		"{\"name\":\"\xff\",\"dtype\":\"U8\",\"shape\":[1]}",
		"{\"name\":\"k\",\"dtype\":\"u8\",\"shape\":[1]}",
		"{\"name\":\"k\",\"dtype\":\"\",\"shape\":[1]}",
		"{\"name\":\"k\",\"dtype\":\"F4\",\"shape\":[2]}",
		"{\"name\":\"k\",\"dtype\":\"BF16BF16BF16BF16\",\"shape\":[1]}",
		"{\"name\":\"k\",\"dtype\":7,\"shape\":[1]}",
	};
	char name[KV_TENSOR_NAME_MAX + 2], text[1024];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++) {
		snprintf(text, sizeof(text), TENSORS("%s"), bad[i]);
		assert_int_equal(refusal(text), -EINVAL);
	}
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	snprintf(text, sizeof(text),
		 TENSORS("{\"name\":\"%s\",\"dtype\":\"U8\",\"shape\":[1]}"),
		 name);
	assert_int_equal(refusal(text), -EINVAL);
}

static void two_tensors_of_one_name_are_refused(void **state)
{
	(void)state;
	assert_int_equal(
		refusal(TENSORS(
			"{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[1]},"
			"{\"name\":\"k\",\"dtype\":\"U8\","
			"\"shape\":[2]}")),
		-EINVAL);
}

static void zero_negative_and_overflowing_shapes_are_refused(void **state)
{
	static const char *const bad[] = {
		SHAPE("[0]"),
		SHAPE("[1,0]"),
		SHAPE("[-1]"),
		SHAPE("[1.0]"),
		SHAPE("[1e3]"),
		SHAPE("[NaN]"),
		SHAPE("[\"1\"]"),
		SHAPE("[null]"),
		SHAPE("1"),
		SHAPE("{}"),
		SHAPE("[01]"),
		SHAPE("[1,]"),
		SHAPE("[9223372036854775808]"),
		SHAPE("[1e999]"),
		SHAPE("[1,1,1,1,1,1,1,1,1]"),
		SHAPE("[4294967296,4294967296]"),
		SHAPE("[9223372036854775807,3]"),
		SHAPE("[1099511627777]"), /* 2^40 + 1 */
		TENSORS("{\"name\":\"k\",\"dtype\":\"U8\","
			"\"shape\":[1099511627776]},"
			"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[1]}"),
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(refusal(bad[i]), -EINVAL);
}

static void bad_values_of_optional_members_are_refused(void **state)
{
	static const char *const bad[] = {
		"\"tokens\":-1",
		"\"tokens\":4294967296",
		"\"tokens\":16.0",
		"\"tokens\":\"16\"",
		"\"tokens\":null",
		"\"reuse\":\"Prefix\"",
		"\"reuse\":\"\"",
		"\"reuse\":1",
		"\"reuse\":\"window\"",
		"\"reuse\":\"window:\"",
		"\"reuse\":\"window:0\"",
		"\"reuse\":\"window:-1\"",
		"\"reuse\":\"window:+1\"",
		"\"reuse\":\"window: 1\"",
		"\"reuse\":\"window:01\"",
		"\"reuse\":\"window:1x\"",
		"\"reuse\":\"window:4294967296\"",
		"\"reuse\":\"window:99999999999999999999\"",
		"\"fingerprint\":\"abc\"",
		"\"fingerprint\":\"0x\"",
		"\"fingerprint\":\" a\"",
		"\"fingerprint\":7",
		"\"salt\":\"g0\"",
		"\"salt\":null",
		"\"seed\":\"\"",
		"\"seed\":\"0123456789abcde\"",
		"\"seed\":\"0123456789abcdef0\"",
		"\"seed\":\"0123456789abcdeg\"",
		"\"seed\":\"0x23456789abcdef\"",
		"\"seed\":1",
	};
	char text[512];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++) {
		snprintf(text, sizeof(text), ONE ",%s}", bad[i]);
		assert_int_equal(refusal(text), -EINVAL);
	}
}

static void a_salt_of_65_bytes_is_refused(void **state)
{
	char text[512], blob[2 * KV_BLOB_MAX + 3];

	(void)state;
	memset(blob, 'a', sizeof(blob));
	blob[sizeof(blob) - 1] = '\0';
	snprintf(text, sizeof(text), ONE ",\"salt\":\"%s\"}", blob);
	assert_int_equal(refusal(text), -EINVAL);
}

static void a_bomb_of_brackets_is_refused(void **state)
{
	_cleanup_(kv_freep) char *text = malloc(KV_LAYOUT_TEXT_MAX);
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;

	(void)state;
	memset(text, '[', KV_LAYOUT_TEXT_MAX);
	assert_int_equal(kv_layout_parse(text, KV_LAYOUT_TEXT_MAX, &layout),
			 -EINVAL);
	for (size_t i = 0; i + 5 < KV_LAYOUT_TEXT_MAX; i += 5)
		memcpy(text + i, "{\"a\":", 5);
	assert_int_equal(kv_layout_parse(text, KV_LAYOUT_TEXT_MAX, &layout),
			 -EINVAL);
}

static void a_longer_text_is_too_big(void **state)
{
	_cleanup_(kv_freep) char *text = malloc(KV_LAYOUT_TEXT_MAX + 1);
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;

	(void)state;
	memset(text, ' ', KV_LAYOUT_TEXT_MAX + 1);
	memcpy(text, ONE "}", sizeof(ONE "}") - 1);
	assert_int_equal(kv_layout_parse(text, KV_LAYOUT_TEXT_MAX + 1, &layout),
			 -EFBIG);
	assert_int_equal(kv_layout_parse(text, KV_LAYOUT_TEXT_MAX, &layout), 0);
}

/* The canonical text of any layout must fit into the limit, so that it can be
 * written to another space. */
static void a_text_whose_canonical_form_is_longer_is_too_big(void **state)
{
	_cleanup_(kv_freep) char *text = malloc(KV_LAYOUT_TEXT_MAX + 64);
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	size_t n = 0;

	(void)state;
	n += (size_t)sprintf(text + n, "{\"tensors\":[");
	for (unsigned i = 0; n < KV_LAYOUT_TEXT_MAX - 60; i++)
		n += (size_t)sprintf(text + n,
				     "%s{\"name\":\"%u\",\"dtype\":\"U8\","
				     "\"shape\":[]}",
				     i ? "," : "", i);
	n += (size_t)sprintf(text + n, "]}");
	assert_true(n <= KV_LAYOUT_TEXT_MAX);
	assert_int_equal(kv_layout_parse(text, n, &layout), -EFBIG);
}

static void a_missing_member_gets_its_default(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;

	(void)state;
	assert_int_equal(parse(ONE "}", &layout), 0);
	assert_int_equal(layout->n_tensors, 1);
	assert_int_equal(layout->payload, 12);
	assert_int_equal(layout->tokens, 0);
	assert_int_equal(layout->reuse, KV_REUSE_PREFIX);
	assert_int_equal(layout->fingerprint_len, 0);
	assert_int_equal(layout->salt_len, 0);
}

static void a_missing_seed_is_drawn_anew_each_time(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *a = NULL, *b = NULL;

	(void)state;
	assert_int_equal(parse(ONE "}", &a), 0);
	assert_int_equal(parse(ONE "}", &b), 0);
	assert_true(a->seed != b->seed);
}

static void every_member_is_read(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	static const uint8_t fingerprint[] = {0xde, 0xad}, salt[] = {0};

	(void)state;
	assert_int_equal(
		parse("{\"salt\":\"00\",\"seed\":\"0123456789ABCDEF\","
		      "\"fingerprint\":\"dEAd\",\"reuse\":\"window:"
		      "4294967295\","
		      "\"tokens\":4294967295,\"tensors\":["
		      "{\"shape\":[3],\"dtype\":\"F32\",\"name\":\"a\"},"
		      "{\"shape\":[],\"dtype\":\"I64\",\"name\":\"b\"}]}",
		      &layout),
		0);
	assert_int_equal(layout->tokens, UINT32_MAX);
	assert_int_equal(layout->reuse, KV_REUSE_WINDOW);
	assert_int_equal(layout->window, UINT32_MAX);
	assert_int_equal(layout->seed, 0x0123456789abcdef);
	assert_int_equal(layout->fingerprint_len, 2);
	assert_memory_equal(layout->fingerprint, fingerprint, 2);
	assert_int_equal(layout->salt_len, 1);
	assert_memory_equal(layout->salt, salt, 1);
	assert_int_equal(layout->n_tensors, 2);
	assert_string_equal(layout->tensors[0].name, "a");
	assert_int_equal(layout->tensors[0].offset, 0);
	assert_int_equal(layout->tensors[0].bytes, 12);
	assert_int_equal(layout->tensors[1].ndim, 0);
	assert_int_equal(layout->tensors[1].offset, 12);
	assert_int_equal(layout->tensors[1].bytes, 8);
	assert_int_equal(layout->payload, 20);
}

static void the_canonical_text_has_a_fixed_form(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;

	(void)state;
	assert_int_equal(parse(ONE ",\"salt\":\"AB\",\"reuse\":\"last\","
				   "\"seed\":\"00000000000000ff\"}",
			       &layout),
			 0);
	assert_string_equal(
		layout->json,
		"{\"tensors\": [{\"name\": \"k\", \"dtype\": \"BF16\", "
		"\"shape\": [2, 3]}], \"tokens\": 0, \"reuse\": \"last\", "
		"\"fingerprint\": \"\", \"seed\": \"00000000000000ff\", "
		"\"salt\": \"ab\"}\n");
}

static void the_canonical_text_parses_to_itself(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *a = NULL, *b = NULL;

	(void)state;
	assert_int_equal(
		parse("{\"tensors\":[{\"name\":"
		      "\"q\\\"\\\\\\u0001\\ud83d\\ude00/"
		      "\xc3\xa9\",\"dtype\":\"F8_E4M3\",\"shape\":[1,2,3,4,5,6,"
		      "7,8]}],\"reuse\":\"window:7\"}",
		      &a),
		0);
	assert_int_equal(parse(a->json, &b), 0);
	assert_string_equal(a->json, b->json);
	assert_string_equal(a->header, b->header);
	assert_int_equal(agrees(a, b->json), 1);
}

static void every_dtype_of_whole_bytes_is_known(void **state)
{
	static const char *const names[] = {
		"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "I16", "U16", "F16",
		"BF16", "I32", "U32", "F32",	 "F64",	    "I64", "U64"};
	static const uint32_t bytes[] = {1, 1, 1, 1, 1, 2, 2, 2,
					 2, 4, 4, 4, 8, 8, 8};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++)
		assert_int_equal(kv_dtype_bytes(names[i]), bytes[i]);
	assert_int_equal(kv_dtype_bytes("F4"), 0);
	assert_int_equal(kv_dtype_bytes(""), 0);
	assert_int_equal(kv_dtype_bytes("bf16"), 0);
}

static void a_text_that_gives_less_agrees(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;

	(void)state;
	assert_int_equal(parse(ONE ",\"tokens\":16,\"reuse\":\"window:2\","
				   "\"fingerprint\":\"aa\",\"salt\":\"bb\","
				   "\"seed\":\"00000000000000ff\"}",
			       &layout),
			 0);
	assert_int_equal(agrees(layout, layout->json), 1);
	assert_int_equal(agrees(layout, ONE "}"), 1);
	assert_int_equal(agrees(layout, ONE ",\"tokens\":16}"), 1);
	assert_int_equal(agrees(layout, ONE ",\"salt\":\"BB\"}"), 1);
}

static void a_text_that_differs_in_one_member_does_not_agree(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	static const char *const other[] = {
		ONE ",\"tokens\":0}",
		ONE ",\"reuse\":\"prefix\"}",
		ONE ",\"reuse\":\"window:3\"}",
		ONE ",\"fingerprint\":\"\"}",
		ONE ",\"fingerprint\":\"ab\"}",
		ONE ",\"salt\":\"bb00\"}",
		ONE ",\"seed\":\"00000000000000fe\"}",
		SHAPE("[2,3]"),
		TENSORS("{\"name\":\"k\",\"dtype\":\"F16\",\"shape\":[2,3]}"),
		TENSORS("{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[3,2]}"),
		TENSORS("{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[6]}"),
		TENSORS("{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3,1]"
			"}"),
		TENSORS("{\"name\":\"v\",\"dtype\":\"BF16\",\"shape\":[2,3]}"),
		TENSORS("{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
			"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[1]}"),
	};

	(void)state;
	assert_int_equal(parse(ONE ",\"tokens\":16,\"reuse\":\"window:2\","
				   "\"fingerprint\":\"aa\",\"salt\":\"bb\","
				   "\"seed\":\"00000000000000ff\"}",
			       &layout),
			 0);
	for (size_t i = 0; i < KV_ARRAY_LEN(other); i++)
		assert_int_equal(agrees(layout, other[i]), 0);
	assert_int_equal(agrees(layout, "{}"), -EINVAL);
}

static void free_takes_null(void **state)
{
	(void)state;
	kv_layout_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			the_engines_keys_are_no_part_of_the_comparison),
		cmocka_unit_test(another_seed_changes_only_the_seed),
		cmocka_unit_test(what_is_not_an_object_with_tensors_is_refused),
		cmocka_unit_test(unknown_and_repeated_members_are_refused),
		cmocka_unit_test(bad_names_and_dtypes_are_refused),
		cmocka_unit_test(two_tensors_of_one_name_are_refused),
		cmocka_unit_test(
			zero_negative_and_overflowing_shapes_are_refused),
		cmocka_unit_test(bad_values_of_optional_members_are_refused),
		cmocka_unit_test(a_salt_of_65_bytes_is_refused),
		cmocka_unit_test(a_bomb_of_brackets_is_refused),
		cmocka_unit_test(a_longer_text_is_too_big),
		cmocka_unit_test(
			a_text_whose_canonical_form_is_longer_is_too_big),
		cmocka_unit_test(a_missing_member_gets_its_default),
		cmocka_unit_test(a_missing_seed_is_drawn_anew_each_time),
		cmocka_unit_test(every_member_is_read),
		cmocka_unit_test(the_canonical_text_has_a_fixed_form),
		cmocka_unit_test(the_canonical_text_parses_to_itself),
		cmocka_unit_test(every_dtype_of_whole_bytes_is_known),
		cmocka_unit_test(a_text_that_gives_less_agrees),
		cmocka_unit_test(
			a_text_that_differs_in_one_member_does_not_agree),
		cmocka_unit_test(free_takes_null),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
