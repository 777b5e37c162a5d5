/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_token_ids.c - token ids in memory and in the header of a block; headers
 * whose token ids do not fit the block are refused.
 *
 * OWNS      a layout with "token_ids", for the group.
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

#define TENSORS \
	"\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4,8]}]"

static struct kv_layout *make_layout(const char *text)
{
	struct kv_layout *layout = NULL;

	assert_int_equal(kv_layout_parse(text, strlen(text), &layout), 0);
	return layout;
}

static int setup(void **state)
{
	*state = make_layout("{" TENSORS ",\"token_ids\":true,\"tokens\":4}");
	return 0;
}

static int teardown(void **state)
{
	kv_layout_free(*state);
	return 0;
}

static struct kv_token_ids *make(uint32_t n, const void *extras, uint32_t len)
{
	struct kv_token_ids *ids = malloc(kv_token_ids_bytes(n, len));

	ids->n = n;
	ids->extras_len = len;
	for (uint32_t i = 0; i < n; i++)
		ids->ids[i] = i == 1 ? UINT32_MAX : i * 1000;
	memcpy(ids->ids + n, extras, len);
	return ids;
}

static void a_layout_needs_tokens_for_it(void **state)
{
	static const char *const bad[] = {
		"{" TENSORS ",\"token_ids\":true}",
		"{" TENSORS ",\"token_ids\":true,\"tokens\":0}",
		"{" TENSORS ",\"token_ids\":true,\"tokens\":8193}",
		"{" TENSORS ",\"token_ids\":1,\"tokens\":4}",
		"{" TENSORS ",\"token_ids\":\"true\",\"tokens\":4}",
		"{" TENSORS ",\"token_ids\":null,\"tokens\":4}",
	};
	struct kv_layout *layout;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(
			kv_layout_parse(bad[i], strlen(bad[i]), &layout),
			-EINVAL);
}

static void a_layout_says_it_only_if_it_is_so(void **state)
{
	struct kv_layout *yes = *state;
	_cleanup_(kv_layout_freep) struct kv_layout *no =
		make_layout("{" TENSORS ",\"tokens\":4,\"token_ids\":false}");
	const char *said = "{" TENSORS ",\"token_ids\":true,\"tokens\":4}";
	const char *denied = "{" TENSORS ",\"token_ids\":false}";

	assert_true(yes->token_ids);
	assert_non_null(strstr(yes->json, "\"token_ids\": true"));
	assert_false(no->token_ids);
	assert_null(strstr(no->json, "token_ids"));
	assert_int_equal(kv_layout_agrees(yes, said, strlen(said)), 1);
	assert_int_equal(kv_layout_agrees(yes, denied, strlen(denied)), 0);
	assert_int_equal(kv_layout_agrees(no, said, strlen(said)), 0);
	assert_int_equal(kv_layout_agrees(no, denied, strlen(denied)), 1);
	assert_int_equal(kv_layout_agrees(yes, yes->json, strlen(yes->json)),
			 1);
}

static void a_header_without_them_is_as_it_was(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout =
		make_layout("{" TENSORS ",\"tokens\":4}");
	struct kv_token_ids *ids = make(4, "", 0);
	struct kv_key key = {.b = "k", .len = 16};
	struct kv_meta meta = {.tokens = 4};
	char header[2 * KV_PAGE];

	(void)state;
	assert_int_equal(kv_block_header_bytes(layout), KV_PAGE);
	assert_int_equal(kv_block_header_write(layout, &key, &meta, header), 0);
	assert_memory_equal(header + 8, "{\"__metadata__\":{\"kvfs\":\"1\",",
			    28);
	assert_null(memmem(header, KV_PAGE, "token_ids", 9));
	assert_non_null(
		memmem(header, KV_PAGE, "\"tokens\":\"4\"},\"k\":", 18));
	/* the block has token ids, but its layout does not ask for them */
	meta.ids = ids;
	assert_int_equal(kv_block_header_write(layout, &key, &meta, header),
			 -EINVAL);
	free(ids);
}

static void they_come_back_from_a_header(void **state)
{
	struct kv_layout *layout = *state;
	const uint64_t bytes = kv_block_header_bytes(layout);
	char *header = malloc(bytes);
	char extras[KV_EXTRAS_MAX];
	struct kv_key key = {.b = "k", .len = 16};
	const uint32_t lens[] = {0, 1, KV_EXTRAS_MAX};

	for (uint32_t i = 0; i < KV_EXTRAS_MAX; i++)
		extras[i] = (char)(i * 7);
	for (uint32_t n = 1; n <= 4; n++)
		for (size_t i = 0; i < KV_ARRAY_LEN(lens); i++) {
			struct kv_token_ids *ids = make(n, extras, lens[i]);
			struct kv_token_ids *got = NULL;
			struct kv_meta meta = {.tokens = n, .ids = ids}, seen;
			uint64_t length, payload;

			assert_int_equal(kv_block_header_write(layout, &key,
							       &meta, header),
					 0);
			assert_int_equal(kv_block_parse(header, bytes, layout,
							&length, &payload,
							&seen),
					 0);
			assert_int_equal(payload, bytes);
			assert_int_equal(length, bytes + 32);
			assert_int_equal(seen.tokens, n);
			assert_int_equal(
				kv_block_parse_token_ids(header, bytes, &got),
				0);
			assert_memory_equal(got, ids,
					    kv_token_ids_bytes(n, lens[i]));
			free(got);
			free(ids);
		}
	free(header);
}

static void the_longest_fit(void **state)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout =
		make_layout("{" TENSORS ",\"token_ids\":true,\"tokens\":8192}");
	const uint64_t bytes = kv_block_header_bytes(layout);
	char extras[KV_EXTRAS_MAX] = {0}, *header = malloc(bytes + 1);
	struct kv_token_ids *ids = make(8192, extras, KV_EXTRAS_MAX), *got;
	struct kv_key key = {.len = 32};
	struct kv_meta meta = {.parent = key,
			       .position = UINT32_MAX,
			       .tokens = 8192,
			       .ids = ids};

	(void)state;
	memset(ids->ids, 0xff, 8192 * sizeof(uint32_t));
	header[bytes] = 'x';
	assert_int_equal(kv_block_header_write(layout, &key, &meta, header), 0);
	assert_int_equal(header[bytes], 'x');
	assert_int_equal(kv_block_parse_token_ids(header, bytes, &got), 0);
	assert_memory_equal(got, ids, kv_token_ids_bytes(8192, KV_EXTRAS_MAX));
	free(got);
	free(ids);
	free(header);
}

static void a_save_without_them_is_refused(void **state)
{
	struct kv_layout *layout = *state;
	_cleanup_(kv_freep) char *header =
		malloc(kv_block_header_bytes(layout));
	struct kv_token_ids *five = make(5, "", 0);
	struct kv_key key = {.len = 16};
	struct kv_meta none = {.tokens = 4}, many = {.tokens = 4, .ids = five};

	assert_int_equal(kv_block_header_write(layout, &key, &none, header),
			 -EINVAL);
	assert_int_equal(kv_block_header_write(layout, &key, &many, header),
			 -EINVAL);
	free(five);
}

/* Parse a file with this metadata, as another program might write it. */
static int take(const struct kv_layout *layout, const char *metadata,
		uint32_t *ret_tokens)
{
	char text[1000];
	uint64_t length, payload, n;
	struct kv_meta meta = {0};
	int r;

	n = (uint64_t)sprintf(text + 8,
			      "{\"__metadata__\":{%s},\"k\":{\"dtype\":\"U8\","
			      "\"shape\":[4,8],\"data_offsets\":[0,32]}}",
			      metadata);
	memcpy(text, &n, 8);
	r = kv_block_parse(text, 8 + n, layout, &length, &payload, &meta);
	*ret_tokens = meta.tokens;
	return r;
}

static void a_file_that_does_not_say_them_is_refused(void **state)
{
	static const char *const bad[] = {
		"",
		"\"tokens\":\"4\"",
		"\"tokens\":\"4\",\"token_ids\":\"\"",
		"\"tokens\":\"4\",\"token_ids\":\"1,2,3\"",
		"\"tokens\":\"4\",\"token_ids\":\"1,2,3,4,5\"",
		"\"token_ids\":\"1,2,3,4,5\"",
		"\"tokens\":\"02\",\"token_ids\":\"1,2\"",
		"\"tokens\":\" 2\",\"token_ids\":\"1,2\"",
		"\"tokens\":\"2 \",\"token_ids\":\"1,2\"",
		"\"tokens\":\"two\",\"token_ids\":\"1,2\"",
		"\"tokens\":\"\",\"token_ids\":\"1,2\"",
		"\"tokens\":\"4294967298\",\"token_ids\":\"1,2\"",
		"\"token_ids\":\"1,2,,3\"",
		"\"token_ids\":\"1,2,3,\"",
		"\"token_ids\":\",1,2,3\"",
		"\"token_ids\":\"1, 2\"",
		"\"token_ids\":\"-1\"",
		"\"token_ids\":\"01\"",
		"\"token_ids\":\"4294967296\"",
		"\"token_ids\":\"99999999999999999999\"",
		"\"token_ids\":\"1\",\"extras\":\"0\"",
		"\"token_ids\":\"1\",\"extras\":\"0G\"",
		"\"token_ids\":\"1\",\"extras\":\"AB\"",
	};
	uint32_t tokens;

	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(take(*state, bad[i], &tokens), -EINVAL);
	assert_int_equal(
		take(*state, "\"token_ids\":\"0,4294967295\"", &tokens), 0);
	assert_int_equal(tokens, 2);
	assert_int_equal(take(*state,
			      "\"tokens\":\"1\",\"token_ids\":\"7\","
			      "\"extras\":\"00ff\"",
			      &tokens),
			 0);
	/* Without a layout that has token ids, the text of "token_ids" is not
	 * checked. */
	assert_int_equal(take(NULL, "\"token_ids\":\"x\"", &tokens), 0);
}

static void bytes_that_are_none_are_refused(void **state)
{
	struct kv_token_ids *ids = make(3, "ab", 2), *got = NULL;
	const size_t bytes = kv_token_ids_bytes(3, 2);

	(void)state;
	assert_int_equal(kv_token_ids_check(ids, bytes), bytes);
	for (size_t n = 0; n < bytes; n++) {
		assert_int_equal(kv_token_ids_check(ids, n), -EINVAL);
		assert_int_equal(kv_token_ids_copy(ids, n, &got), -EINVAL);
	}
	assert_int_equal(kv_token_ids_copy(ids, bytes + 9, &got), 0);
	assert_memory_equal(got, ids, bytes);
	free(got);
	ids->n = 0;
	assert_int_equal(kv_token_ids_check(ids, bytes), -EINVAL);
	ids->n = UINT32_MAX;
	assert_int_equal(kv_token_ids_check(ids, SIZE_MAX), -EINVAL);
	ids->n = 3;
	ids->extras_len = KV_EXTRAS_MAX + 1;
	assert_int_equal(kv_token_ids_check(ids, SIZE_MAX), -EINVAL);
	free(ids);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_layout_needs_tokens_for_it),
		cmocka_unit_test(a_layout_says_it_only_if_it_is_so),
		cmocka_unit_test(a_header_without_them_is_as_it_was),
		cmocka_unit_test(they_come_back_from_a_header),
		cmocka_unit_test(the_longest_fit),
		cmocka_unit_test(a_save_without_them_is_refused),
		cmocka_unit_test(a_file_that_does_not_say_them_is_refused),
		cmocka_unit_test(bytes_that_are_none_are_refused),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
