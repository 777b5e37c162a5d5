/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_name.c - names that can be written, and node ids.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fs/daemon.h"
#include "fs/mount/mount.h"

#define K "ab000000000000000000000000000001"

static void names_that_are_not_keys_are_refused(void **state)
{
	static const char *const names[] = {
		"",
		"a",
		"x",
		"AB000000000000000000000000000001",
		"ab00000000000000000000000000000",
		"ab0000000000000000000000000000011",
		"ab00000000000000000000000000000g",
		K ".tmp",
		" " K,
		K " ",
		"." K,
		"." K ".",
		"..",
		".",
		".x." K,
		".." K ".x",
		".ab.x",
		".layout",
		"cd000000000000000000000000000001",
		".cd000000000000000000000000000001.x"};
	struct kv_name name;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++)
		assert_int_equal(kv_name_parse(names[i], 0xab, &name), -EINVAL);
	assert_int_equal(kv_name_parse(K, -1, &name), -EINVAL);
	assert_int_equal(kv_name_parse(".layout.", -1, &name), -EINVAL);
	assert_int_equal(kv_name_parse(".layoutx", -1, &name), -EINVAL);
	assert_int_equal(kv_name_parse("x", -1, &name), -EINVAL);
}

static void a_name_of_256_bytes_is_too_long(void **state)
{
	char text[257] = {0};
	struct kv_name name;

	(void)state;
	memset(text, 'a', 256);
	assert_int_equal(kv_name_parse(text, 0xaa, &name), -ENAMETOOLONG);
	text[255] = '\0';
	assert_int_equal(kv_name_parse(text, 0xaa, &name), -EINVAL);
}

static void keys_staging_names_and_layouts_are_told_apart(void **state)
{
	struct kv_name name;

	(void)state;
	assert_int_equal(kv_name_parse(K, 0xab, &name), 0);
	assert_int_equal(name.kind, KV_NAME_KEY);
	assert_int_equal(name.key.len, 16);
	assert_int_equal(kv_name_parse(K K, 0xab, &name), 0);
	assert_int_equal(name.key.len, 32);
	assert_int_equal(kv_name_parse("." K ".aBcD.1", 0xab, &name), 0);
	assert_int_equal(name.kind, KV_NAME_TEMP);
	assert_int_equal(name.key.b[15], 1);
	assert_int_equal(kv_name_parse(".layout", -1, &name), 0);
	assert_int_equal(name.kind, KV_NAME_LAYOUT);
	assert_int_equal(kv_name_parse(".layout.xYz", -1, &name), 0);
	assert_int_equal(name.kind, KV_NAME_LAYOUT_TEMP);
}

static void node_ids_decode_to_what_they_were_made_of(void **state)
{
	struct kv_node n;

	(void)state;
	n = kv_node_decode(1);
	assert_int_equal(n.type, KV_NODE_FIXED);
	n = kv_node_decode(kv_node_of(KV_NODE_BLOCK, (UINT64_C(1) << 60) - 1));
	assert_int_equal(n.type, KV_NODE_BLOCK);
	assert_int_equal(n.value, (UINT64_C(1) << 60) - 1);
	n = kv_node_decode(kv_node_of(KV_NODE_TENANT, UINT32_MAX - 1));
	assert_int_equal(n.type, KV_NODE_TENANT);
	assert_int_equal(n.value, UINT32_MAX - 1);
	n = kv_node_decode(kv_node_of_dir(UINT32_MAX, 0xff, 0xfffff));
	assert_int_equal(n.type, KV_NODE_DIR);
	assert_int_equal(n.space, UINT32_MAX);
	assert_int_equal(n.byte, 0xff);
	assert_int_equal(n.life, 0xfffff);
	n = kv_node_decode(kv_node_in(KV_NODE_SPACE, 7));
	assert_int_equal(n.type, KV_NODE_SPACE);
	assert_int_equal(n.space, 7);
	n = kv_node_decode(kv_node_in(KV_NODE_LAYOUT, 7));
	assert_int_equal(n.type, KV_NODE_LAYOUT);
	n = kv_node_decode(kv_node_of(KV_NODE_UPLOAD, 0x1234567));
	assert_int_equal(n.type, KV_NODE_UPLOAD);
	assert_int_equal(n.value, 0x1234567);
}

static void directories_are_two_lowercase_digits(void **state)
{
	static const char *const names[] = {"",	  "a",	"abc", "AB", "g0",
					    "0g", "..", ".",   " a", "0x"};
	uint8_t byte;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++)
		assert_int_equal(kv_dir_parse(names[i], &byte), -EINVAL);
	assert_int_equal(kv_dir_parse("0f", &byte), 0);
	assert_int_equal(byte, 0x0f);
}

static void only_the_mount_on_top_of_the_very_path_counts(void **state)
{
	const char *text = "/dev/sda1 / ext4 rw,relatime 0 0\n"
			   "/s /m fuse.kvfs rw 0 0\n"
			   "x /m2 fuse.sshfs rw 0 0\n"
			   "/s /with\\040blank fuse.kvfs rw 0 0\n"
			   "x /m2/sub tmpfs rw 0 0\n"
			   "/s /o fuse.kvfs rw 0 0\n"
			   "x /o tmpfs rw 0 0\n";

	(void)state;
	assert_int_equal(kv_mounts_find(text, "/m"), 1);
	assert_int_equal(kv_mounts_find(text, "/m2"), 2);
	assert_int_equal(kv_mounts_find(text, "/m2/sub"), 0);
	assert_int_equal(kv_mounts_find(text, "/with blank"), 1);
	assert_int_equal(kv_mounts_find(text, "/o"), 0);
	assert_int_equal(kv_mounts_find(text, "/"), 0);
	assert_int_equal(kv_mounts_find(text, "/mm"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_that_are_not_keys_are_refused),
		cmocka_unit_test(a_name_of_256_bytes_is_too_long),
		cmocka_unit_test(keys_staging_names_and_layouts_are_told_apart),
		cmocka_unit_test(node_ids_decode_to_what_they_were_made_of),
		cmocka_unit_test(directories_are_two_lowercase_digits),
		cmocka_unit_test(only_the_mount_on_top_of_the_very_path_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
