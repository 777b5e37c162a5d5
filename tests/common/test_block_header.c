/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_block_header.c - names of blocks, and headers that kvfs writes.
 *
 * OWNS      a layout of two tensors, for the group; temporary files of a test.
 *
 * LOCKING   none: one thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <jansson.h>

#include "common/block.h"

#define HEX16 "00112233445566778899aabbccddeeff"
struct parsed {
	uint64_t length, payload;
	struct kv_meta meta;
};

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

static struct kv_key key_of(uint8_t byte, uint8_t len)
{
	struct kv_key key = {.len = len};

	memset(key.b, byte, len);
	return key;
}

/* ---- names of a block's file ---- */

static void a_name_that_is_not_exactly_a_key_is_refused(void **state)
{
	static const char *const bad[] = {
		"",
		"00",
		"00112233445566778899aabbccddeef",
		HEX16 "0",
		"00112233445566778899AABBCCDDEEFF",
		"0x112233445566778899aabbccddeeff",
		"g0112233445566778899aabbccddeeff",
		HEX16 HEX16 "0",
		HEX16 HEX16 HEX16,
		" " HEX16,
		HEX16 "\n",
		"00112233445566778899aabbccddeef\xc3",
	};
	struct kv_key key = key_of(7, 16), before = key;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(kv_key_parse(bad[i], &key), -EINVAL);
	assert_memory_equal(&key, &before, sizeof(key));
}

static void names_of_both_lengths_come_back(void **state)
{
	static const char *const names[] = {HEX16, HEX16 HEX16};
	char name[KV_NAME_MAX + 1];
	struct kv_key key;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++) {
		memset(&key, 0xff, sizeof(key));
		assert_int_equal(kv_key_parse(names[i], &key), 0);
		assert_int_equal(key.len, 16 * (i + 1));
		assert_int_equal(key.b[15], 0xff);
		kv_key_name(&key, name);
		assert_string_equal(name, names[i]);
	}
	assert_int_equal(kv_key_parse(HEX16, &key), 0);
	assert_int_equal(key.b[16], 0);
	assert_int_equal(key.b[31], 0);
}

/* ---- headers that kvfs writes ---- */

static void a_key_of_another_length_is_refused(void **state)
{
	struct kv_layout *layout = *state;
	_cleanup_(kv_freep) char *header =
		malloc(kv_block_header_bytes(layout));
	struct kv_key key = key_of(1, 20), good = key_of(1, 16);
	struct kv_meta none = {0}, bad = {.parent = key};

	assert_int_equal(kv_block_header_write(layout, &key, &none, header),
			 -EINVAL);
	assert_int_equal(kv_block_header_write(layout, &good, &bad, header),
			 -EINVAL);
}

static void what_is_written_is_parsed(void **state)
{
	struct kv_layout *layout = *state;
	uint64_t bytes = kv_block_header_bytes(layout);
	_cleanup_(kv_freep) char *header = malloc(bytes);
	static const struct {
		uint8_t key, parent;
		uint32_t position, tokens;
	} cases[] = {{16, 0, 0, 0},
		     {16, 16, 1, 16},
		     {32, 32, UINT32_MAX, UINT32_MAX}};
	struct parsed p;

	assert_int_equal(bytes, KV_PAGE);
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		struct kv_key key = key_of(0xab, cases[i].key);
		struct kv_meta meta = {
			.parent = key_of(0xcd, cases[i].parent),
			.position = cases[i].position,
			.tokens = cases[i].tokens,
		};

		assert_int_equal(
			kv_block_header_write(layout, &key, &meta, header), 0);
		assert_int_equal(kv_block_parse(header, bytes, layout,
						&p.length, &p.payload, &p.meta),
				 0);
		assert_int_equal(p.payload, bytes);
		assert_int_equal(p.length, bytes + layout->payload);
		assert_true(kv_key_equal(&p.meta.parent, &meta.parent));
		assert_int_equal(p.meta.position, meta.position);
		assert_int_equal(p.meta.tokens, meta.tokens);
	}
}

static void the_header_says_what_the_design_promises(void **state)
{
	struct kv_layout *layout = *state;
	uint64_t bytes = kv_block_header_bytes(layout);
	_cleanup_(kv_freep) char *header = malloc(bytes);
	_cleanup_(json_decrefp) json_t *json = NULL;
	struct kv_key key = key_of(0xab, 16);
	struct kv_meta meta = {.position = 3, .tokens = 16};
	const char *k, *parent, *position, *tokens, *format;

	assert_int_equal(kv_block_header_write(layout, &key, &meta, header), 0);
	json = json_loadb(header + 8, bytes - 8, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(json);
	assert_int_equal(json_unpack(json, "{s:{s:s,s:s,s:s,s:s,s:s!}}",
				     "__metadata__", "kvfs", &format, "key", &k,
				     "parent", &parent, "position", &position,
				     "tokens", &tokens),
			 0);
	assert_string_equal(format, "1");
	assert_string_equal(k, "abababababababababababababababab");
	assert_string_equal(parent, "");
	assert_string_equal(position, "3");
	assert_string_equal(tokens, "16");
	assert_int_equal(header[bytes - 1], ' ');
}

static void the_same_arguments_give_the_same_bytes(void **state)
{
	struct kv_layout *layout = *state;
	uint64_t bytes = kv_block_header_bytes(layout);
	_cleanup_(kv_freep) char *a = malloc(bytes);
	_cleanup_(kv_freep) char *b = malloc(bytes);
	struct kv_key key = key_of(0xab, 32);
	struct kv_meta meta = {.position = 3, .tokens = 16};

	memset(a, 1, bytes);
	memset(b, 2, bytes);
	assert_int_equal(kv_block_header_write(layout, &key, &meta, a), 0);
	meta.mtime_ns = 77; /* a block's file does not store its mtime */
	assert_int_equal(kv_block_header_write(layout, &key, &meta, b), 0);
	assert_memory_equal(a, b, bytes);
}

/* Try tensor names of all lengths, so that the last page of the header has any
 * number of free bytes. */
static void the_longest_values_fit_whatever_the_names(void **state)
{
	struct kv_key key = key_of(0xff, 32);
	struct kv_meta meta = {key, UINT32_MAX, UINT32_MAX, 0};
	char text[20000], name[KV_TENSOR_NAME_MAX + 1];
	struct parsed p;

	(void)state;
	for (int len = 1; len <= KV_TENSOR_NAME_MAX; len++) {
		_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
		_cleanup_(kv_freep) char *header = NULL;
		size_t n = (size_t)sprintf(text, "{\"tensors\":[");
		uint64_t bytes;

		memset(name, 'n', sizeof(name));
		name[len] = '\0';
		for (int i = 0; i < 26; i++) {
			name[0] = (char)('a' + i);
			n += (size_t)sprintf(text + n,
					     "%s{\"name\":\"%s\",\"dtype\":"
					     "\"U8\",\"shape\":[1]}",
					     i ? "," : "", name);
		}
		sprintf(text + n, "]}");
		layout = make_layout(text);
		bytes = kv_block_header_bytes(layout);
		assert_int_equal(bytes % KV_PAGE, 0);
		header = malloc(bytes);
		assert_int_equal(
			kv_block_header_write(layout, &key, &meta, header), 0);
		assert_int_equal(kv_block_parse(header, bytes, layout,
						&p.length, &p.payload, &p.meta),
				 0);
		assert_int_equal(p.payload, bytes);
	}
}

static void names_that_need_escapes_come_back(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = make_layout(
		"{\"tensors\":[{\"name\":\"q\\\"\\\\\\u0001\\ud83d\\ude00/\","
		"\"dtype\":\"C64\",\"shape\":[]}]}");
	_cleanup_(kv_freep) char *header =
		malloc(kv_block_header_bytes(layout));
	struct kv_key key = key_of(1, 16);
	struct kv_meta meta = {0};
	struct parsed p;

	(void)state;
	assert_int_equal(kv_block_header_write(layout, &key, &meta, header), 0);
	assert_int_equal(kv_block_parse(header, KV_PAGE, layout, &p.length,
					&p.payload, &p.meta),
			 0);
	assert_int_equal(p.length, KV_PAGE + 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_that_is_not_exactly_a_key_is_refused),
		cmocka_unit_test(names_of_both_lengths_come_back),
		cmocka_unit_test(a_key_of_another_length_is_refused),
		cmocka_unit_test(what_is_written_is_parsed),
		cmocka_unit_test(the_header_says_what_the_design_promises),
		cmocka_unit_test(the_same_arguments_give_the_same_bytes),
		cmocka_unit_test(the_longest_values_fit_whatever_the_names),
		cmocka_unit_test(names_that_need_escapes_come_back),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
