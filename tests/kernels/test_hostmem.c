/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the library allocates: it grows in place, and its pages are
 * mapped at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "kernels/device/device.h"

#define MIB ((uint64_t)1 << 20)

static void *reserve(uint64_t bytes, uint64_t max, uint8_t **ret_base)
{
	void *memory, *base;

	assert_int_equal(
		kv_device_host.reserve("host", bytes, max, &memory, &base), 0);
	*ret_base = base;
	return memory;
}

/* Return whether the byte is mapped; a system call reads it, so that nothing
 * crashes. */
static bool is_there(const uint8_t *at)
{
	int fds[2];
	bool there;

	assert_int_equal(pipe(fds), 0);
	there = write(fds[1], at, 1) == 1;
	assert_true(there || errno == EFAULT);
	close(fds[0]);
	close(fds[1]);
	return there;
}

static void it_grows_where_it_is(void **state)
{
	uint8_t *base;
	void *memory = reserve(1, 64 * MIB, &base);
	uint64_t n;

	(void)state;
	for (n = 1; n < 64 * MIB; n = n * 3 + 4095) {
		assert_int_equal(kv_device_host.grow(memory, n), 0);
		assert_true(is_there(base + n - 1));
		assert_false(is_there(base + kv_round_up(n, KV_PAGE)));
		assert_int_equal(base[n - 1], 0);
		base[n - 1] = (uint8_t)(n % 251 + 1);
	}
	assert_int_equal(kv_device_host.grow(memory, 64 * MIB), 0);
	for (n = 1; n < 64 * MIB; n = n * 3 + 4095)
		assert_int_equal(base[n - 1], (uint8_t)(n % 251 + 1));
	assert_int_equal(kv_device_host.grow(memory, MIB), 0);
	assert_true(is_there(base + 64 * MIB - 1));
	kv_device_host.release(memory);
	assert_false(is_there(base));
	kv_device_host.release(NULL);
}

static void more_than_there_is_is_refused_and_nothing_lost(void **state)
{
	const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) *
				 (uint64_t)sysconf(_SC_PAGESIZE);
	void *memory, *other, *at;
	uint8_t *base;

	(void)state;
	memory = reserve(MIB, 4 * machine, &base);
	base[MIB - 1] = 7;
	assert_int_equal(kv_device_host.grow(memory, 2 * machine), -ENOMEM);
	assert_int_equal(kv_device_host.grow(memory, 5 * machine), -ENOMEM);
	assert_false(is_there(base + MIB));
	assert_int_equal(kv_device_host.grow(memory, 2 * MIB), 0);
	assert_int_equal(base[MIB - 1], 7);
	assert_int_equal(kv_device_host.reserve("host", 2 * machine,
						2 * machine, &other, &at),
			 -ENOMEM);
	assert_int_equal(
		kv_device_host.reserve("host", 1, UINT64_MAX, &other, &at),
		-ENOMEM);
	kv_device_host.release(memory);
}

static void a_child_does_not_have_it(void **state)
{
	uint8_t *base;
	void *memory = reserve(MIB, MIB, &base);
	int status;
	pid_t pid;

	(void)state;
	base[0] = 1;
	pid = fork();
	if (pid == 0)
		_exit(is_there(base) ? 1 : 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(base[0], 1);
	kv_device_host.release(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_grows_where_it_is),
		cmocka_unit_test(
			more_than_there_is_is_refused_and_nothing_lost),
		cmocka_unit_test(a_child_does_not_have_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
