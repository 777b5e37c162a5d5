/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_standin.c - the stand-in driver shows what tests rely on it to show.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/gpu/gpu.h"

#define N 65536u
#define TRIES 200

static CUdeviceptr memory;
static uint8_t *pinned; /* 2 * N, from the driver */
static CUstream a, b;

static int setup(void **state)
{
	(void)state;
	memory = gpu_alloc(N);
	GPU_OK(cuMemHostAlloc, (void **)&pinned, 2 * N, 0);
	a = gpu_stream();
	b = gpu_stream();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	gpu.hold(false);
	gpu.forgive();
	gpu_set("delay=100,readonly=1,memops=1,pageable=1");
	GPU_OK(cuCtxSynchronize);
	GPU_OK(cuStreamDestroy_v2, a);
	GPU_OK(cuStreamDestroy_v2, b);
	GPU_OK(cuMemFreeHost, pinned);
	GPU_OK(cuMemFree_v2, memory);
	return 0;
}

/* How often the reader, in stream b, misses what stream a wrote. */
static unsigned misses(bool ordered)
{
	CUevent written = gpu_event();
	unsigned i, missed = 0;

	for (i = 0; i < TRIES; i++) {
		pinned[0] = (uint8_t)i;
		pinned[N] = (uint8_t)~i;
		GPU_OK(cuMemcpyHtoDAsync_v2, memory, pinned, N, a);
		GPU_OK(cuEventRecord, written, a);
		if (ordered)
			GPU_OK(cuStreamWaitEvent, b, written, 0);
		GPU_OK(cuMemcpyDtoHAsync_v2, pinned + N, memory, N, b);
		GPU_OK(cuCtxSynchronize);
		missed += pinned[N] != (uint8_t)i;
	}
	GPU_OK(cuEventDestroy_v2, written);
	return missed;
}

static void
streams_overtake_each_other_unless_an_event_orders_them(void **state)
{
	(void)state;
#ifndef __SANITIZE_THREAD__ /* which would find that they do */
	assert_true(misses(false) > 0);
#endif
	assert_int_equal(misses(true), 0);
}

static void a_copy_reads_what_is_there_when_it_runs(void **state)
{
	(void)state;
	gpu.hold(true);
	memset(pinned, 1, N);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, pinned, N, a);
	memset(pinned, 2, N);
	assert_int_equal(gpu.cuStreamQuery(a), CU_NOT_READY);
	assert_int_equal(gpu.pending(), 1);
	gpu.hold(false);
	GPU_OK(cuStreamSynchronize, a);
	GPU_OK(cuMemcpyDtoH_v2, pinned, memory, N);
	assert_int_equal(pinned[0], 2);
}

static void the_legacy_stream_waits_for_blocking_streams_only(void **state)
{
	CUstream blocking;

	(void)state;
	GPU_OK(cuStreamCreateWithPriority, &blocking, 0, 0);
	gpu_spin(blocking, 20000000);
	GPU_OK(cuMemsetD8Async, memory, 7, N, blocking);
	GPU_OK(cuMemcpyDtoH_v2, pinned, memory, N);
	assert_int_equal(pinned[N - 1], 7);
	gpu.hold(true);
	GPU_OK(cuMemsetD8Async, memory, 8, N, a);
	GPU_OK(cuLaunchHostFunc, b, free, NULL);
	GPU_OK(cuStreamSynchronize, b);
	gpu.hold(false);
	GPU_OK(cuStreamDestroy_v2, blocking);
}

static void new_memory_is_poisoned_and_never_where_other_was(void **state)
{
	CUdeviceptr one = gpu_alloc(N), two;

	(void)state;
	GPU_OK(cuMemcpyDtoH_v2, pinned, one, N);
	assert_int_equal(pinned[5], 0xcd);
	gpu_free(one);
	two = gpu_alloc(N);
	assert_true(two != one);
	gpu_free(two);
}

static void
a_copy_to_memory_that_went_is_a_bug_and_breaks_the_device(void **state)
{
	CUdeviceptr gone = gpu_alloc(N);

	(void)state;
	gpu.hold(true);
	GPU_OK(cuMemcpyHtoDAsync_v2, gone, pinned, N, a);
	GPU_OK(cuMemFree_v2, gone);
	gpu.hold(false);
	assert_int_equal(gpu.cuStreamSynchronize(a), CU_ILLEGAL_ADDRESS);
	assert_int_equal(gpu.cuMemAlloc_v2(&gone, N), CU_ILLEGAL_ADDRESS);
	assert_int_equal(gpu.bugs(), 1);
}

static void the_host_cannot_touch_device_memory(void **state)
{
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)memory = 1;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* A sanitizer makes an exit of the signal. */
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

static uint8_t *mapping(int prot)
{
	void *at = mmap(NULL, N, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(at != MAP_FAILED);
	return at;
}

static void read_only_memory_is_registered_only_as_such(void **state)
{
	uint8_t *at = mapping(PROT_READ);

	(void)state;
	assert_int_equal(gpu.cuMemHostRegister_v2(at, N, 0), CU_INVALID_VALUE);
	gpu_set("readonly=0");
	assert_int_equal(gpu.cuMemHostRegister_v2(at, N, CU_REGISTER_READ_ONLY),
			 CU_NOT_SUPPORTED);
	gpu_set("readonly=1");
	GPU_OK(cuMemHostRegister_v2, at, N, CU_REGISTER_READ_ONLY);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at, N, a);
	assert_int_equal(gpu.cuMemcpyDtoHAsync_v2(at, memory, N, a),
			 CU_INVALID_VALUE);
	GPU_OK(cuStreamSynchronize, a);
	assert_int_equal(gpu.cuMemHostRegister_v2(at, N, CU_REGISTER_READ_ONLY),
			 CU_ALREADY_REGISTERED);
	GPU_OK(cuMemHostUnregister, at);
	munmap(at, N);
}

static void a_copy_lies_in_one_registration(void **state)
{
	uint8_t *at = mapping(PROT_READ | PROT_WRITE);

	(void)state;
	GPU_OK(cuMemHostRegister_v2, at, N / 2, 0);
	assert_int_equal(gpu.cuMemcpyHtoDAsync_v2(memory, at, N, a),
			 CU_INVALID_VALUE);
	GPU_OK(cuMemHostRegister_v2, at + N / 2, N / 2, 0);
	assert_int_equal(gpu.cuMemcpyHtoDAsync_v2(memory, at, N, a),
			 CU_INVALID_VALUE);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at + N / 2, N / 2, a);
	GPU_OK(cuStreamSynchronize, a);
	GPU_OK(cuMemHostUnregister, at);
	GPU_OK(cuMemHostUnregister, at + N / 2);
	munmap(at, N);
}

static void a_registration_that_goes_under_a_copy_is_a_bug(void **state)
{
	uint8_t *at = mapping(PROT_READ | PROT_WRITE);

	(void)state;
	GPU_OK(cuMemHostRegister_v2, at, N, 0);
	gpu.hold(true);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at, N, a);
	GPU_OK(cuMemHostUnregister, at);
	gpu.hold(false);
	assert_int_equal(gpu.cuStreamSynchronize(a), CU_ILLEGAL_ADDRESS);
	munmap(at, N);
}

static void pageable_memory_is_copied_at_once_or_refused(void **state)
{
	uint8_t *at = malloc(N);

	(void)state;
	memset(at, 9, N);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at, N, a);
	assert_int_equal(gpu.pending(), 0);
	gpu_set("pageable=0");
	assert_int_equal(gpu.cuMemcpyHtoDAsync_v2(memory, at, N, a),
			 CU_INVALID_VALUE);
	free(at);
}

static void call_it(void *arg)
{
	*(CUresult *)arg = gpu.cuStreamQuery(a);
}

static void a_host_function_may_not_call_the_driver(void **state)
{
	CUresult r = CU_OK;

	(void)state;
	GPU_OK(cuLaunchHostFunc, a, call_it, &r);
	GPU_OK(cuStreamSynchronize, a);
	assert_int_equal(r, CU_NOT_PERMITTED);
	assert_int_equal(gpu.bugs(), 1);
}

static void a_call_fails_when_it_is_told_to(void **state)
{
	CUevent event;

	(void)state;
	gpu_set("fail=cuEventCreate:2:2");
	event = gpu_event();
	GPU_OK(cuEventDestroy_v2, event);
	assert_int_equal(gpu.cuEventCreate(&event, 0), CU_OUT_OF_MEMORY);
	event = gpu_event();
	GPU_OK(cuEventDestroy_v2, event);
	assert_int_equal(gpu.cuEventDestroy_v2(event), CU_INVALID_HANDLE);
	assert_int_equal(gpu.bugs(), 1);
}

static void a_fork_has_no_driver(void **state)
{
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0)
		_exit(gpu.cuStreamQuery(a) == CU_NOT_INITIALIZED ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(streams_overtake_each_other_unless_an_event_orders_them),
		TEST(a_copy_reads_what_is_there_when_it_runs),
		TEST(the_legacy_stream_waits_for_blocking_streams_only),
		TEST(new_memory_is_poisoned_and_never_where_other_was),
		TEST(a_copy_to_memory_that_went_is_a_bug_and_breaks_the_device),
		TEST(the_host_cannot_touch_device_memory),
		TEST(read_only_memory_is_registered_only_as_such),
		TEST(a_copy_lies_in_one_registration),
		TEST(a_registration_that_goes_under_a_copy_is_a_bug),
		TEST(pageable_memory_is_copied_at_once_or_refused),
		TEST(a_host_function_may_not_call_the_driver),
		TEST(a_call_fails_when_it_is_told_to),
		TEST(a_fork_has_no_driver),
	};

	(void)argc;
	gpu_begin(argv);
	if (gpu_is_real())
		return 77;
	if (gpu_open() < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
