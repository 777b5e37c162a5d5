/* SPDX-License-Identifier: Apache-2.0 */
/* test_alloc.c - without memory, parsers return -ENOMEM and leak nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/block.h"
#include "fs/daemon.h"
#include "tests/alloc.h"

static const char text[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
	"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[5]}],\"tokens\":4,"
	"\"salt\":\"00ff\",\"fingerprint\":\"ab\",\"reuse\":\"window:3\"}";

/* Return whether @r is the result of a failed allocation: if jansson has no
 * memory for a string, it reports the string as invalid. */
static bool may(int r)
{
	return r == -ENOMEM || r == -EINVAL;
}

static void layout(void *arg)
{
	_cleanup_(kv_layout_freep) struct kv_layout *parsed = NULL;
	int r = kv_layout_parse(text, strlen(text), &parsed);

	(void)arg;
	alloc_must(r == 0 || may(r));
	if (r < 0)
		return;
	r = kv_layout_agrees(parsed, text, strlen(text));
	alloc_must(r == 1 || may(r));
}

static void a_layout_is_parsed_or_enomem(void **state)
{
	(void)state;
	assert_true(alloc_every(&(struct alloc_script){.run = layout}, NULL,
				1) > 10);
	assert_true(alloc_every(&(struct alloc_script){.run = layout}, NULL,
				1000) > 10);
}

struct file {
	struct kv_layout *layout;
	uint8_t head[8192];
	size_t bytes;
};

static void header(void *arg)
{
	struct file *file = arg;
	struct kv_key key = {.b = "k", .len = 16};
	struct kv_meta meta = {.parent = key, .position = 3, .tokens = 4};
	uint64_t length, payload;
	int r = kv_block_header_write(file->layout, &key, &meta, file->head);

	alloc_must(r == 0 || may(r));
	if (r < 0)
		return;
	meta = (struct kv_meta){0};
	r = kv_block_parse(file->head, file->bytes, file->layout, &length,
			   &payload, &meta);
	alloc_must(r == 0 || may(r));
	alloc_must(r < 0 || (payload == file->bytes && meta.position == 3));
	r = kv_block_parse(file->head, file->bytes, NULL, &length, &payload,
			   &meta);
	alloc_must(r == 0 || may(r));
}

static void a_header_is_written_and_parsed_or_enomem(void **state)
{
	struct file file = {0};

	(void)state;
	assert_int_equal(kv_layout_parse(text, strlen(text), &file.layout), 0);
	file.bytes = kv_block_header_bytes(file.layout);
	assert_in_range(file.bytes, 1, sizeof(file.head));
	assert_true(alloc_every(&(struct alloc_script){.run = header}, &file,
				1) > 10);
	assert_true(alloc_every(&(struct alloc_script){.run = header}, &file,
				1000) > 10);
	kv_layout_free(file.layout);
}

static void options(void *arg)
{
	char *argv[] = {(char *)"kvfs",
			(char *)"-o",
			(char *)"dram=64M,ssd=1G,control=c",
			(char *)"store",
			arg,
			NULL};
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_options parsed;
	int r = kv_options_parse(5, argv, &parsed, &why);

	alloc_must(r == 0 || may(r));
	if (r == 0)
		kv_options_fini(&parsed);
}

static void a_command_line_is_understood_or_refused(void **state)
{
	(void)state;
	assert_true(alloc_every(&(struct alloc_script){.run = options},
				(char *)"/mnt", 1) > 3);
	assert_true(alloc_every(&(struct alloc_script){.run = options},
				(char *)"/mnt", 1000) > 3);
	assert_true(alloc_every(&(struct alloc_script){.run = options},
				(char *)"", 1) > 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_layout_is_parsed_or_enomem),
		cmocka_unit_test(a_header_is_written_and_parsed_or_enomem),
		cmocka_unit_test(a_command_line_is_understood_or_refused),
	};

	if (alloc_skip())
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
