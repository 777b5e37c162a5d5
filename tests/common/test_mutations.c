/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mutations.c - layouts and block headers, damaged at random.
 *
 * Accepted texts must be consistent, and other texts must be refused as the
 * headers document.  Meant to be run with SAN=address,undefined too.  The seed is
 * printed; give it as the argument to see a failure again.
 *
 * OWNS      the state of the random numbers.
 *
 * LOCKING   none: one thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

#include "common/block.h"

#define ROUNDS 20000
#define TEXT_MAX 4096
#define MUTATIONS 6 /* highest number of mutations of one text */

struct text {
	char bytes[TEXT_MAX];
	size_t len;
};

static uint64_t seed;

static uint64_t next_random(void)
{
	uint64_t z = seed += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static size_t below(size_t n)
{
	return n ? next_random() % n : 0;
}

static const char *const layouts[] = {
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
	"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[]}],\"tokens\":16,"
	"\"reuse\":\"window:4\",\"fingerprint\":\"00ff\",\"seed\":"
	"\"0123456789abcdef\",\"salt\":\"\"}",
	"{\"tensors\":[{\"name\":\"\\u00e9\\\"\",\"dtype\":\"F8_E4M3\","
	"\"shape\":[1,2,3,4,5,6,7,8]}],\"reuse\":\"last\"}",
};

static const char *const headers[] = {
	"{\"__metadata__\":{\"kvfs\":\"1\",\"key\":\"00\",\"parent\":"
	"\"00112233445566778899aabbccddeeff\",\"position\":\"3\",\"tokens\":"
	"\"16\"},\"k\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":"
	"[0,12]},\"v\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}"
	"}     ",
	"{\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},"
	"\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}",
};

static const char *const words[] = {
	"0",
	"1",
	"-1",
	"2147483648",
	"9223372036854775807",
	"1e308",
	"\"\"",
	"null",
	"[",
	"]",
	"{",
	"}",
	",",
	":",
	"\"",
	"\\u0000",
	"\\ud800",
	"\xff",
	"\"k\"",
	"\"tensors\"",
	"\"shape\"",
	"\"__metadata__\"",
	"[[[[[[[[",
	" ",
	"window:0",
	"4294967296",
	"1099511627776",
	"\"U8\"",
	"true",
	"0.5",
};

static void replace(struct text *text, size_t at, size_t gone, const char *with,
		    size_t len)
{
	if (text->len - gone + len > TEXT_MAX)
		return;
	memmove(text->bytes + at + len, text->bytes + at + gone,
		text->len - at - gone);
	memcpy(text->bytes + at, with, len);
	text->len += len - gone;
}

static void mutate(struct text *text)
{
	const char *word = words[below(KV_ARRAY_LEN(words))];
	size_t at = below(text->len + 1);
	size_t n = below(KV_MIN(text->len - at, (size_t)40) + 1);
	char copy[40];

	switch (below(6)) {
	case 0: /* flip one bit */
		if (at < text->len)
			text->bytes[at] ^= (char)(1u << below(8));
		break;
	case 1: /* insert a word, or replace text by it */
		replace(text, at, below(2) ? n : 0, word, strlen(word));
		break;
	case 2: /* remove some bytes */
		replace(text, at, n, "", 0);
		break;
	case 3: /* repeat some bytes */
		memcpy(copy, text->bytes + at, n);
		replace(text, below(text->len + 1), 0, copy, n);
		break;
	case 4: /* cut off the end of the text */
		text->len = below(8) ? text->len : at;
		break;
	default: /* replace a digit by another one */
		for (size_t i = at; i < text->len; i++)
			if (text->bytes[i] >= '0' && text->bytes[i] <= '9') {
				text->bytes[i] = (char)('0' + below(10));
				break;
			}
	}
}

static struct text damaged(const char *const *from, size_t n)
{
	const char *text = from[below(n)];
	struct text out = {.len = strlen(text)};

	memcpy(out.bytes, text, out.len);
	for (size_t i = below(MUTATIONS) + 1; i > 0; i--)
		mutate(&out);
	return out;
}

/* Copy the text to memory of exactly its size, so that a sanitizer finds a read
 * beyond its end. */
static char *exact(const void *prefix, size_t prefix_len,
		   const struct text *text)
{
	char *bytes = malloc(prefix_len + text->len);

	memcpy(bytes, prefix, prefix_len);
	memcpy(bytes + prefix_len, text->bytes, text->len);
	return bytes;
}

static void check_layout(const struct kv_layout *layout, const char *text,
			 size_t len)
{
	_cleanup_(kv_layout_freep) struct kv_layout *again = NULL;
	uint64_t bytes = kv_block_header_bytes(layout), at = 0, length, payload;
	_cleanup_(kv_freep) char *header = malloc(bytes);
	struct kv_key key = {.len = 32};
	struct kv_meta meta = {key, UINT32_MAX, UINT32_MAX, 0};

	for (uint32_t i = 0; i < layout->n_tensors; i++) {
		assert_int_equal(layout->tensors[i].offset, at);
		assert_true(layout->tensors[i].bytes > 0);
		at += layout->tensors[i].bytes;
	}
	assert_int_equal(at, layout->payload);
	assert_int_equal(kv_layout_agrees(layout, text, len), 1);
	assert_int_equal(
		kv_layout_parse(layout->json, strlen(layout->json), &again), 0);
	assert_string_equal(layout->json, again->json);

	assert_int_equal(kv_block_header_write(layout, &key, &meta, header), 0);
	assert_int_equal(
		kv_block_parse(header, bytes, again, &length, &payload, &meta),
		0);
	assert_int_equal(payload, bytes);
	assert_int_equal(length, bytes + layout->payload);
}

static void a_damaged_layout_is_refused_or_whole(void **state)
{
	unsigned taken = 0;

	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
		struct text t = damaged(layouts, KV_ARRAY_LEN(layouts));
		_cleanup_(kv_freep) char *text = exact("", 0, &t);
		int r = kv_layout_parse(text, t.len, &layout);

		if (r == 0)
			check_layout(layout, text, t.len);
		else
			assert_int_equal(r, -EINVAL);
		taken += r == 0;
	}
	assert_in_range(taken, ROUNDS / 100, ROUNDS - ROUNDS / 100);
}

static void check_block(const char *file, size_t len, uint64_t json_len)
{
	struct kv_meta meta, longer_meta;
	uint64_t length, payload, longer_length, longer_payload;
	_cleanup_(kv_freep) char *longer = calloc(1, len + 100);

	assert_int_equal(
		kv_block_parse(file, len, NULL, &length, &payload, &meta), 0);
	assert_int_equal(payload, 8 + json_len);
	assert_true(length > payload);
	assert_true(meta.parent.len == 0 || meta.parent.len == 16 ||
		    meta.parent.len == 32);

	memcpy(longer, file, len);
	assert_int_equal(kv_block_parse(longer, len + 100, NULL, &longer_length,
					&longer_payload, &longer_meta),
			 0);
	assert_int_equal(length, longer_length);
	assert_int_equal(payload, longer_payload);
}

static void a_damaged_header_is_refused_or_whole(void **state)
{
	static const int errors[] = {0, -EINVAL, -EAGAIN, -EFBIG, -EBADMSG};
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	unsigned count[KV_ARRAY_LEN(errors)] = {0};

	(void)state;
	assert_int_equal(
		kv_layout_parse(layouts[0], strlen(layouts[0]), &layout), 0);
	for (int i = 0; i < ROUNDS; i++) {
		struct text t = damaged(headers, KV_ARRAY_LEN(headers));
		uint64_t n = t.len, length, payload;
		_cleanup_(kv_freep) char *file = NULL;
		struct kv_meta meta;
		size_t e = 0;
		int r;

		if (below(10) == 0)
			n ^= (uint64_t)1 << below(64);
		file = exact(&n, sizeof(n), &t);
		r = kv_block_parse(file, 8 + t.len, layout, &length, &payload,
				   &meta);
		while (e < KV_ARRAY_LEN(errors) && errors[e] != r)
			e++;
		assert_true(e < KV_ARRAY_LEN(errors));
		count[e]++;
		if (r == 0 || r == -EBADMSG)
			check_block(file, 8 + t.len, n);
	}
	for (size_t e = 0; e < KV_ARRAY_LEN(errors); e++)
		assert_true(count[e] > 0);
}

static void bytes_at_random_are_refused(void **state)
{
	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
		struct text t = {.len = below(64)};
		_cleanup_(kv_freep) char *text = NULL;
		uint64_t length, payload;
		struct kv_meta meta;
		int r;

		for (size_t k = 0; k < t.len; k++)
			t.bytes[k] = (char)next_random();
		text = exact("", 0, &t);
		assert_int_equal(kv_layout_parse(text, t.len, &layout),
				 -EINVAL);
		r = kv_block_parse(text, t.len, NULL, &length, &payload, &meta);
		assert_true(r == -EINVAL || r == -EAGAIN || r == -EFBIG);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_damaged_layout_is_refused_or_whole),
		cmocka_unit_test(a_damaged_header_is_refused_or_whole),
		cmocka_unit_test(bytes_at_random_are_refused),
	};

	if (argc > 1)
		seed = strtoull(argv[1], NULL, 16);
	else if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return 1;
	printf("seed %" PRIx64 "\n", seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
