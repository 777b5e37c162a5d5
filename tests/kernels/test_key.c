/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: how they are computed, and the forms of their names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>
#include <cmocka.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

#define TENSORS "\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[64]}]"
#define LAYOUT                                                             \
	"{" TENSORS ",\"tokens\":2,\"fingerprint\":\"abcd\",\"seed\":\"00" \
	"00000000000007\",\"salt\":\"0102\"}"
#define N 5

static const uint32_t tokens[2 * N + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static kvfs_session *session;
static kvfs_space *space;

static int setup(void **state)
{
	(void)state;
	return kvfs_open("/nonexistent", &session) |
	       kvfs_space_open(session, "s", LAYOUT, 0, &space);
}

static int teardown(void **state)
{
	(void)state;
	kvfs_space_close(space);
	kvfs_close(session);
	return 0;
}

static void field(uint8_t **at, const char *tag, const void *data, uint64_t n)
{
	uint32_t len = (uint32_t)strlen(tag);

	memcpy(*at, &len, 4);
	memcpy(*at + 4, tag, len);
	memcpy(*at + 4 + len, &n, 8);
	memcpy(*at + 12 + len, data, n);
	*at += 12 + len + n;
}

static void the_key_is_the_hash_of_the_documented_bytes(void **state)
{
	kvfs_extra extra = {"lora", "\x09", 1};
	uint8_t text[512], *at = text, zero[16] = {0};
	XXH128_canonical_t expected;
	kvfs_key keys[2];

	(void)state;
	assert_int_equal(
		kvfs_key_chain(space, NULL, tokens, 4, &extra, 1, keys, 2), 2);
	memcpy(at, "kvfs-key-1", 11);
	at += 11;
	field(&at, "fingerprint", "\xab\xcd", 2);
	field(&at, "parent", zero, 16);
	field(&at, "salt", "\x01\x02", 2);
	field(&at, "x:lora", "\x09", 1);
	field(&at, "tokens", tokens, 8);
	XXH128_canonicalFromHash(
		&expected, XXH3_128bits_withSeed(text, (size_t)(at - text), 7));
	assert_int_equal(keys[0].len, 16);
	assert_memory_equal(keys[0].bytes, expected.digest, 16);
}

static void only_full_blocks_have_keys_and_no_more_than_asked_for(void **state)
{
	kvfs_key keys[N + 1];

	(void)state;
	assert_int_equal(kvfs_key_chain(space, NULL, tokens, 2 * N + 1, NULL, 0,
					keys, N + 1),
			 N);
	assert_int_equal(kvfs_key_chain(space, NULL, tokens, 2 * N + 1, NULL, 0,
					keys, 2),
			 2);
	assert_int_equal(kvfs_key_chain(space, NULL, NULL, 0, NULL, 0, NULL, 0),
			 0);
}

static void a_chain_can_be_made_in_two_parts(void **state)
{
	kvfs_key whole[N], part[N];

	(void)state;
	kvfs_key_chain(space, NULL, tokens, 2 * N, NULL, 0, whole, N);
	kvfs_key_chain(space, NULL, tokens, 4, NULL, 0, part, N);
	kvfs_key_chain(space, &part[1], tokens + 4, 2 * N - 4, NULL, 0,
		       part + 2, N - 2);
	assert_memory_equal(whole, part, sizeof(whole));
}

static void everything_that_matters_changes_the_key(void **state)
{
	kvfs_extra a = {"a", "bc", 2}, b = {"ab", "c", 1};
	uint32_t other[2] = {1, 3};
	kvfs_key keys[6], parent = {.bytes = {1}, .len = 32};
	size_t i, j;

	(void)state;
	kvfs_key_chain(space, NULL, tokens, 2, NULL, 0, &keys[0], 1);
	kvfs_key_chain(space, NULL, tokens, 2, &a, 1, &keys[1], 1);
	kvfs_key_chain(space, NULL, tokens, 2, &b, 1, &keys[2], 1);
	kvfs_key_chain(space, NULL, other, 2, NULL, 0, &keys[3], 1);
	kvfs_key_chain(space, &parent, tokens, 2, NULL, 0, &keys[4], 1);
	parent.len = 16;
	kvfs_key_chain(space, &parent, tokens, 2, NULL, 0, &keys[5], 1);
	for (i = 0; i < 6; i++)
		for (j = 0; j < i; j++)
			assert_memory_not_equal(keys[i].bytes, keys[j].bytes,
						16);
}

static void a_chain_that_cannot_be_is_refused(void **state)
{
	kvfs_key key, parent = {.len = 17};
	kvfs_extra untagged = {NULL, "x", 1}, null = {"x", NULL, 1};
	kvfs_space *tokenless;

	(void)state;
	assert_int_equal(
		kvfs_key_chain(NULL, NULL, tokens, 2, NULL, 0, &key, 1),
		-EINVAL);
	assert_int_equal(
		kvfs_key_chain(space, &parent, tokens, 2, NULL, 0, &key, 1),
		-EINVAL);
	assert_int_equal(
		kvfs_key_chain(space, NULL, tokens, 2, &untagged, 1, &key, 1),
		-EINVAL);
	assert_int_equal(
		kvfs_key_chain(space, NULL, tokens, 2, &null, 1, &key, 1),
		-EINVAL);
	assert_int_equal(kvfs_key_chain(space, NULL, NULL, 2, NULL, 0, &key, 1),
			 -EINVAL);
	assert_int_equal(
		kvfs_space_open(session, "t", "{" TENSORS "}", 0, &tokenless),
		0);
	assert_int_equal(
		kvfs_key_chain(tokenless, NULL, tokens, 2, NULL, 0, &key, 1),
		-EINVAL);
	kvfs_space_close(tokenless);
}

static void a_name_is_the_key_in_hex_and_back(void **state)
{
	kvfs_key key, same;
	char name[65];

	(void)state;
	assert_int_equal(kvfs_key_set("0123456789abcdef", 16, &key), 0);
	kvfs_key_name(&key, name);
	assert_string_equal(name, "30313233343536373839616263646566");
	assert_int_equal(kvfs_key_parse(name, &same), 0);
	assert_memory_equal(&key, &same, sizeof(key));
}

static void other_lengths_and_names_are_refused(void **state)
{
	kvfs_key key;

	(void)state;
	assert_int_equal(kvfs_key_set("0123456789abcdef", 15, &key), -EINVAL);
	assert_int_equal(kvfs_key_set(NULL, 16, &key), -EINVAL);
	assert_int_equal(kvfs_key_parse(NULL, &key), -EINVAL);
	assert_int_equal(kvfs_key_parse("30", &key), -EINVAL);
	assert_int_equal(
		kvfs_key_parse("3031323334353637383961626364656G", &key),
		-EINVAL);
	assert_int_equal(kvfs_key_fold(NULL, 1, &key), -EINVAL);
}

static void a_long_key_is_folded_by_sha256(void **state)
{
	kvfs_key key;
	char name[65];

	(void)state;
	assert_int_equal(kvfs_key_fold("abc", 3, &key), 0);
	kvfs_key_name(&key, name);
	assert_string_equal(name, "ba7816bf8f01cfea414140de5dae2223"
				  "b00361a396177a9cb410ff61f20015ad");
	assert_int_equal(kvfs_key_fold(NULL, 0, &key), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_chain_that_cannot_be_is_refused),
		cmocka_unit_test(other_lengths_and_names_are_refused),
		cmocka_unit_test(the_key_is_the_hash_of_the_documented_bytes),
		cmocka_unit_test(
			only_full_blocks_have_keys_and_no_more_than_asked_for),
		cmocka_unit_test(a_chain_can_be_made_in_two_parts),
		cmocka_unit_test(everything_that_matters_changes_the_key),
		cmocka_unit_test(a_name_is_the_key_in_hex_and_back),
		cmocka_unit_test(a_long_key_is_folded_by_sha256),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
