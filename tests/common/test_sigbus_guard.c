/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sigbus_guard.c - access to mapped memory without pages is reported as an
 * error and raises no signal.
 *
 * OWNS      SIGBUS.
 *
 * LOCKING   none: one thread.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "common/copy.h"
#include "common/sigbus_guard.h"

static char *page; /* page of an empty file: any access to it raises SIGBUS */
static int file;
static sigjmp_buf stray;

static void on_stray(int number)
{
	(void)number;
	siglongjmp(stray, 1);
}

static int nothing(void *arg)
{
	(void)arg;
	return 7;
}

static int touch(void *arg)
{
	return *(volatile char *)arg;
}

static int hash_copy(void *hash)
{
	char copy[KV_PAGE];

	kv_hash_begin(hash);
	kv_hash_copy(hash, copy, page, KV_PAGE);
	return 0;
}

static int leave(void *arg)
{
	(void)arg;
	kv_sigbus_guard_leave();
	return 0;
}

static int touch_and_leave(void *arg)
{
	assert_int_equal(kv_sigbus_guard(touch, arg), -EFAULT);
	kv_sigbus_guard_leave();
	return 0;
}

/* Install the guard's handler again, because cmocka replaces it before each
 * test. */
static void take_sigbus(void)
{
	static struct sigaction guard;

	if (!guard.sa_sigaction) {
		signal(SIGBUS, on_stray);
		assert_int_equal(kv_sigbus_guard(nothing, NULL), 7);
		sigaction(SIGBUS, NULL, &guard);
	}
	sigaction(SIGBUS, &guard, NULL);
}

static int map_an_empty_file(void **state)
{
	(void)state;
	file = memfd_create("empty", 0);
	page = mmap(NULL, KV_PAGE, PROT_READ, MAP_SHARED, file, 0);
	return page == MAP_FAILED;
}

static int unmap_it(void **state)
{
	(void)state;
	munmap(page, KV_PAGE);
	return close(file);
}

static void a_page_that_is_not_there_is_an_error_each_time(void **state)
{
	(void)state;
	take_sigbus();
	for (int i = 0; i < 3; i++)
		assert_int_equal(kv_sigbus_guard(touch, page), -EFAULT);
	assert_int_equal(kv_sigbus_guard(nothing, NULL), 7);
}

static void a_copy_fails_while_its_source_is_away(void **state)
{
	struct kv_hash *hash;

	(void)state;
	take_sigbus();
	assert_int_equal(kv_hash_new(&hash), 0);
	assert_int_equal(kv_sigbus_guard(hash_copy, hash), -EFAULT);
	assert_int_equal(ftruncate(file, KV_PAGE), 0);
	assert_int_equal(kv_sigbus_guard(hash_copy, hash), 0);
	assert_int_equal(ftruncate(file, 0), 0);
	kv_hash_free(hash);
}

static void a_guarded_call_can_leave_by_itself(void **state)
{
	(void)state;
	take_sigbus();
	assert_int_equal(kv_sigbus_guard(leave, NULL), -EFAULT);
	/* no guard is active, so this call just returns */
	kv_sigbus_guard_leave();
}

static void a_guard_within_a_guard_catches_its_own(void **state)
{
	(void)state;
	take_sigbus();
	assert_int_equal(kv_sigbus_guard(touch_and_leave, page), -EFAULT);
}

static void one_outside_goes_to_whose_signal_it_was(void **state)
{
	(void)state;
	take_sigbus();
	if (!sigsetjmp(stray, 1)) {
		touch(page);
		fail();
	}
	assert_int_equal(kv_sigbus_guard(touch, page), -EFAULT);
}

/* A client punched a hole into its memory, and the kernel has no free page for
 * the hole. */
static void memory_that_heals_is_zeros_where_its_file_has_no_page(void **state)
{
	int fd = memfd_create("mended", MFD_CLOEXEC);
	char *at;

	(void)state;
	take_sigbus();
	assert_true(fd >= 0 && ftruncate(fd, 4 * KV_PAGE) == 0);
	at = mmap(NULL, 4 * KV_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(at, MAP_FAILED);
	memset(at, 'x', 4 * KV_PAGE);
	assert_int_equal(kv_sigbus_mend(at, 4 * KV_PAGE, 2 * KV_PAGE), 0);
	assert_int_equal(ftruncate(fd, KV_PAGE), 0);
	assert_int_equal(touch(at + 3 * KV_PAGE), 0);
	at[2 * KV_PAGE] = 'y';
	assert_int_equal(touch(at + 2 * KV_PAGE), 'y');
	/* the page has memory again and can be read */
	assert_int_equal(touch(at), 'x');
	assert_int_equal(kv_sigbus_guard(touch, page), -EFAULT);
	kv_sigbus_mend_end(at);
	assert_int_equal(kv_sigbus_guard(touch, at + KV_PAGE), -EFAULT);
	munmap(at, 4 * KV_PAGE);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_page_that_is_not_there_is_an_error_each_time),
		cmocka_unit_test(a_copy_fails_while_its_source_is_away),
		cmocka_unit_test(a_guarded_call_can_leave_by_itself),
		cmocka_unit_test(a_guard_within_a_guard_catches_its_own),
		cmocka_unit_test(one_outside_goes_to_whose_signal_it_was),
		cmocka_unit_test(
			memory_that_heals_is_zeros_where_its_file_has_no_page),
	};

	return cmocka_run_group_tests(tests, map_an_empty_file, unmap_it);
}
