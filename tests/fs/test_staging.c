/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_staging.c - which descriptors a client may save from.
 *
 * OWNS      the descriptors it makes.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "fs/control/staging.h"

enum { BYTES = 1 << 20, HUGE_PAGE = 2 << 20 };

static int memfd(unsigned flags, off_t bytes, int seals)
{
	int fd = memfd_create("staging", MFD_ALLOW_SEALING | flags);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void refuses(int fd, uint64_t bytes, int why)
{
	struct kv_staging *staging = NULL;

	assert_int_equal(kv_staging_map(fd, bytes, NULL, &staging), why);
	assert_null(staging);
	close(fd);
}

static void what_is_no_memfd_is_refused(void **state)
{
	int pipes[2];

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	refuses(pipes[0], 1, -EINVAL);
	refuses(pipes[1], 1, -EINVAL);
	refuses(open("/", O_RDONLY | O_DIRECTORY), 1, -EINVAL);
	refuses(open("/dev/zero", O_RDWR), 1, -EINVAL);
	refuses(open("/proc/self/exe", O_RDONLY), 1, -EINVAL);
}

static void a_memfd_that_could_shrink_is_refused(void **state)
{
	(void)state;
	refuses(memfd(0, BYTES, 0), BYTES, -EPERM);
	refuses(memfd(0, BYTES, F_SEAL_GROW), BYTES, -EPERM);
}

static void a_size_of_zero_or_beyond_the_file_is_refused(void **state)
{
	(void)state;
	refuses(memfd(0, BYTES, F_SEAL_SHRINK), 0, -EINVAL);
	refuses(memfd(0, BYTES, F_SEAL_SHRINK), BYTES + 1, -EINVAL);
	refuses(memfd(0, BYTES, F_SEAL_SHRINK), UINT64_MAX, -EINVAL);
}

static void one_not_open_for_reading_is_refused(void **state)
{
	char path[32];
	int fd = memfd(0, BYTES, F_SEAL_SHRINK);

	(void)state;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	refuses(open(path, O_WRONLY), BYTES, -EACCES);
	close(fd);
}

static void one_open_for_reading_only_is_enough(void **state)
{
	struct kv_staging *staging;
	char path[32];
	int fd = memfd(0, BYTES, F_SEAL_SHRINK), reader;

	(void)state;
	assert_int_equal(pwrite(fd, "x", 1, BYTES - 1), 1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reader = open(path, O_RDONLY);
	assert_int_equal(kv_staging_map(reader, BYTES, NULL, &staging), 0);
	close(reader);
	close(fd);
	kv_staging_hold(staging);
	kv_staging_put(staging);
	assert_int_equal(staging->data[BYTES - 1], 'x');
	kv_staging_put(staging);
	kv_staging_put(NULL);
}

static void only_what_lies_inside_is_inside(void **state)
{
	struct kv_staging s = {.bytes = BYTES};

	(void)state;
	assert_true(kv_staging_has(&s, 0, BYTES));
	assert_true(kv_staging_has(&s, BYTES - 1, 1));
	assert_false(kv_staging_has(&s, 1, BYTES));
	assert_false(kv_staging_has(&s, BYTES + 1, 0));
	assert_false(kv_staging_has(&s, UINT64_MAX, 2));
	assert_false(kv_staging_has(&s, 2, UINT64_MAX));
}

static void huge_pages_are_mapped_and_unmapped_whole(void **state)
{
	struct kv_staging *staging;
	int fd = memfd_create("huge", MFD_ALLOW_SEALING | MFD_HUGETLB);

	(void)state;
	if (fd < 0)
		skip();
	assert_int_equal(ftruncate(fd, HUGE_PAGE), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	if (kv_staging_map(fd, 5000, NULL, &staging) < 0) {
		close(fd); /* no free huge page on this machine */
		skip();
	}
	assert_int_equal(staging->data[4999], 0);
	kv_staging_put(staging);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_no_memfd_is_refused),
		cmocka_unit_test(a_memfd_that_could_shrink_is_refused),
		cmocka_unit_test(a_size_of_zero_or_beyond_the_file_is_refused),
		cmocka_unit_test(one_not_open_for_reading_is_refused),
		cmocka_unit_test(one_open_for_reading_only_is_enough),
		cmocka_unit_test(only_what_lies_inside_is_inside),
		cmocka_unit_test(huge_pages_are_mapped_and_unmapped_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
