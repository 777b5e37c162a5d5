/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bytes.c - bytes as hex digits, and bytes from and into a file.
 *
 * OWNS      a file that has no name.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "common/bytes.h"

static void digits_are_read_as_they_were_written(void **state)
{
	uint8_t bytes[256], again[256];
	char text[2 * sizeof(bytes) + 1];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	kv_hex(bytes, sizeof(bytes), text);
	assert_int_equal(strlen(text), 2 * sizeof(bytes));
	assert_int_equal(kv_unhex(text, sizeof(bytes), again), 0);
	assert_memory_equal(bytes, again, sizeof(bytes));
}

static void other_characters_are_refused(void **state)
{
	static const char *const texts[] = {"0g", "G0", "AB", "0", "", " 0"};
	uint8_t byte;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(texts); i++)
		assert_int_equal(kv_unhex(texts[i], 1, &byte), -EINVAL);
}

static void a_file_is_read_to_its_end(void **state)
{
	char text[16] = "";
	int fd = memfd_create("test", MFD_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(kv_write_all(fd, "0123456789", 10), 0);
	assert_int_equal(kv_read_at(fd, 0, text, 4), 4);
	assert_memory_equal(text, "0123", 4);
	assert_int_equal(kv_read_at(fd, 7, text, sizeof(text)), 3);
	assert_memory_equal(text, "789", 3);
	assert_int_equal(kv_read_at(fd, 10, text, sizeof(text)), 0);
	close(fd);
}

static void what_fails_is_told(void **state)
{
	int fds[2];
	char c;

	(void)state;
	assert_int_equal(kv_read_at(-1, 0, &c, 1), -EBADF);
	assert_int_equal(kv_write_all(-1, "", 1), -EBADF);
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(kv_read_at(fds[0], 0, &c, 1), -ESPIPE);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(digits_are_read_as_they_were_written),
		cmocka_unit_test(other_characters_are_refused),
		cmocka_unit_test(a_file_is_read_to_its_end),
		cmocka_unit_test(what_fails_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
